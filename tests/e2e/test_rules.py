"""etc/prometheus-rules.yaml: every metric that an alert names is one of /metrics, with labels
that it has; promtool accepts the file; every alert fires on series made up for it, and is quiet on others."""
import os
import re
import shutil
import subprocess

import pytest

from rack import SLOW

RULES = "etc/prometheus-rules.yaml"
OWN = {"up"}  # of Prometheus itself


def rules():
    """[(alert, expr)] by indentation; what the file means as YAML is promtool's to say."""
    out, name, lines = [], None, open(RULES, encoding="utf-8").read().splitlines()
    for i, line in enumerate(lines):
        if m := re.match(r"\s+- alert: (\w+)$", line):
            name = m[1]
        elif m := re.match(r"(\s+)expr: (.*)$", line):
            text = m[2]
            if text == ">-":
                text, k = "", i + 1
                while len(lines[k]) - len(lines[k].lstrip()) > len(m[1]):
                    text += lines[k].strip() + " "
                    k += 1
            out.append((name, text))
    return out


def names_of(expr):
    bare = re.sub(r'"[^"]*"', '""', expr)
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]", "", bare)
    bare = re.sub(r"\b(by|without|on|ignoring) \([^)]*\)", "", bare)
    words = set(re.findall(r"[a-zA-Z_][\w:]*", bare))
    words -= {"sum", "max", "avg", "rate", "increase", "deriv", "and", "or", "unless", "time",
              "histogram_quantile"}
    return {re.sub(r"_bucket$", "", w) for w in words}


def test_every_metric_is_there(rack):
    text = rack.local_request("GET", "/metrics")[2].decode()
    known = set(re.findall(r"^# TYPE (\S+) ", text, re.M))
    found = rules()
    assert len(found) >= 24
    for alert, expr in found:
        used = names_of(expr)
        assert used, alert
        assert used <= known | OWN, f"{alert}: /metrics has no {sorted(used - known - OWN)}"
    # a name that is wrong would be found
    assert not names_of("rate(vllm:num_preemption_total[5m]) > 1") <= known


def test_every_label_is_there(rack):
    """Labels with a value in an expression are labels of that metric's samples, or values of
    its table."""
    text = rack.local_request("GET", "/metrics")[2].decode()
    for alert, expr in rules():
        for name, inside in re.findall(r"([a-zA-Z_][\w:]*)\{([^}]*)\}", expr):
            for label, value in re.findall(r'(\w+)(?:=~|!=|=)"([^"]*)"', inside):
                if name in OWN or name.startswith("llmrack_slo_"):
                    continue  # samples only once a request was made
                assert re.search(rf'^{name}\{{[^}}]*{label}="({value})"', text, re.M), (alert, label, value)


@pytest.fixture
def promtool():
    path = shutil.which("promtool") or shutil.which("var/bin/promtool")
    if not path:
        pytest.skip("no promtool on this machine (tests/tools/promtool.sh fetches it)")
    return path


def test_promtool_accepts(promtool):
    p = subprocess.run([promtool, "check", "rules", RULES], capture_output=True, text=True, timeout=60 * SLOW)
    assert p.returncode == 0, p.stdout + p.stderr
    assert f"{len(rules())} rules found" in p.stdout


# Of each alert: series of one minute's steps that make it fire, and others of the same metrics
# that do not; where it fires is looked at in minute `at`. Further members: how many fire.
M, I = 'model_name="m",engine="0"', 'instance="main"'
SLO = 'instance="main",slo_class="default"'


def slo(late, minutes):
    return {f'llmrack_slo_requests_total{{{SLO},end="met"}}': f"0+{100 - late}x{minutes}",
            f'llmrack_slo_requests_total{{{SLO},end="late"}}': f"0+{late}x{minutes}",
            f"llmrack_slo_attainment_target{{{SLO}}}": f"0.99x{minutes}"}


def ranks(wait):
    return {f'llmrack_rank_busy_seconds_total{{{M},{I},rank="{i}"}}': "0+50x40" for i in range(3)} | {
        f'llmrack_rank_wait_seconds_total{{{M},{I},rank="{i}"}}': f"0+{wait if i else 0}x40" for i in range(3)}


def http(errors):
    return {'llmrack_http_requests_total{code="5xx"}': f"0+{errors}x20",
            'llmrack_http_requests_total{code="2xx"}': "0+100x20"}


def handoffs(seconds):
    """A hundred a minute, each as long."""
    return {f'llmrack_handoff_seconds_bucket{{{M},instance="main/decode",le="{le}"}}':
            f"0+{100 if seconds <= float(le.replace('+Inf', 'inf')) else 0}x40"
            for le in ("0.1", "0.5", "1", "2.5", "5", "+Inf")}


def moves(done, aborted):
    return {'llmrack_expert_moves_total{result="done"}': f"0+{done}x60",
            'llmrack_expert_moves_total{result="aborted"}': f"0+{aborted}x60"}


def experts(balance, rows):
    return {f'llmrack_expert_balancedness{{{I},layer="0"}}': f"{balance}x60",
            f'llmrack_expert_balancedness{{{I},layer="1"}}': "0.95x60",
            f'llmrack_expert_assignments_total{{{I},layer="0",phase="decode"}}': f"0+{rows}x60",
            f'llmrack_expert_assignments_total{{{I},layer="0",phase="prefill"}}': "0x60"}


def stuck(exports, taken):
    return {f'llmrack_kv_exports{{{M},instance="main/prefill"}}': f"{exports}x30",
            f'llmrack_kv_handoffs_total{{{M},instance="main/prefill"}}': "0x30",
            f'llmrack_kv_handoffs_total{{{M},instance="main/decode"}}': f"0+{taken}x30"}


def one(series, fires, quiet, at):
    return {series: fires}, {series: quiet}, at


LINK = 'llmrack_link_congested{rack="",kind="nvlink",from="gpu0",to="nvswitch0"}'
CASES = {
    "LlmrackDown": one('up{job="llmrack"}', "0x9", "1x9", 5),
    "LlmrackNotReady": one("llmrack_ready", "0x20", "0x3 1x20", 10),
    "LlmrackEngineRestarts": one("llmrack_engine_failures_total", "0+1x20", "0+0x9 1+0x9", 15),
    "LlmrackServerErrors": (http(10), http(2), 15),
    "LlmrackWrongKeys": one("llmrack_http_auth_failures_total", "0+120x30", "0+6x30", 25),
    # three days old, and one day (the clock of the tests begins at 0)
    "LlmrackBackupOld": one("llmrack_backup_timestamp_seconds", "-259200x90", "-86400x90", 80),
    "LlmrackSloBurnFast": (slo(50, 70), slo(2, 70), 70),
    "LlmrackSloBurnSlow": (slo(10, 400), slo(1, 400), 390),
    "LlmrackKvFull": one(f"vllm:kv_cache_usage_perc{{{M},{I}}}", "0.99x20", "0.9x20", 15),
    "LlmrackQueueGrows": one(f"vllm:num_requests_waiting{{{M},{I}}}", "0+1x30", "7x30", 25),
    "LlmrackRefusals": one('vllm:admission_rejections_total{model_name="m"}', "0+2x20", "5x20", 15),
    "LlmrackPreemptions": one(f"vllm:num_preemptions_total{{{M},{I}}}", "0+60x40", "0+1x40", 30),
    "LlmrackKvDiskFails": one(f"llmrack_kv_tier_failed_jobs_total{{{M},{I}}}", "0+1x30", "0x9 1x20", 20),
    "LlmrackHandoffSlow": (handoffs(2), handoffs(0.4), 30),
    "LlmrackHandoffStuck": (stuck(3, 0), stuck(3, 5), 25),
    "LlmrackHandoffRetries": one(f"llmrack_kv_handoff_retries_total{{{M},{I}}}", "0+2x20", "0x8 1x20", 15),
    "LlmrackHandoffsLost": one(f"llmrack_kv_handoff_lost_total{{{M},{I}}}", "0+1x30", "4x30", 25),
    "LlmrackHandoffQuarantine": one(f"llmrack_kv_quarantined_blocks{{{M},{I}}}", "8x30", "8x9 0x20", 20),
    "LlmrackRanksUneven": (ranks(45), ranks(5), 35),
    "LlmrackLinkCongested": one(LINK, "1x9", "0x9", 5),
    "LlmrackNvlinkCongested": one('llmrack_nvlink_busy_share{device="0000:04:00.0",link="3"}', "0.9x20", "0.5x20", 10),
    "LlmrackExpertsUnbalanced": (experts(0.4, 100), experts(0.8, 100), 45),
    "LlmrackExpertMovesStall": one("llmrack_expert_moves_stalled_total", "0x9 1x20", "1x30", 20),
    "LlmrackExpertMovesAbort": (moves(1, 1), moves(10, 1), 55),
}
# nothing is asked of experts, and nothing waits: no alert either
MORE_QUIET = {"LlmrackExpertsUnbalanced": experts(0.4, 0), "LlmrackHandoffStuck": stuck(0, 0)}


def unit(alert, series, at, fire):
    """One test of promtool: how many alerts of this name fire in that minute."""
    lines = ["  - interval: 1m", "    input_series:"]
    lines += [f"      - {{series: '{name}', values: '{values}'}}" for name, values in series.items()]
    lines += ["    promql_expr_test:",
              f"      - expr: count(ALERTS{{alertname=\"{alert}\",alertstate=\"firing\"}})",
              f"        eval_time: {at}m",
              "        exp_samples: [" + ("{labels: '{}', value: 1}" if fire else "") + "]"]
    return lines


def promtool_test(promtool, tmp_path, tests):
    case = tmp_path / "case.yaml"
    case.write_text("\n".join([f"rule_files: [{os.path.abspath(RULES)}]", "evaluation_interval: 1m", "tests:"] +
                              [line for t in tests for line in t]) + "\n")
    p = subprocess.run([promtool, "test", "rules", str(case)], capture_output=True, text=True, timeout=300 * SLOW)
    return p.returncode, p.stdout + p.stderr


def test_every_alert_fires_and_is_quiet(promtool, tmp_path):
    """Each of the file, no other: with series of its fault it fires, with those of a healthy
    daemon it does not. That such a test can fail is shown by turning one round."""
    assert {name for name, _ in rules()} == set(CASES)
    tests = []
    for alert, (fires, quiet, at) in CASES.items():
        tests += [unit(alert, fires, at, True), unit(alert, quiet, at, False)]
    tests += [unit(a, series, CASES[a][2], False) for a, series in MORE_QUIET.items()]
    code, said = promtool_test(promtool, tmp_path, tests)
    assert code == 0, said
    fires, quiet, at = CASES["LlmrackLinkCongested"]
    for turned in unit("LlmrackLinkCongested", fires, at, False), unit("LlmrackLinkCongested", quiet, at, True):
        assert promtool_test(promtool, tmp_path, [turned])[0] != 0


WORDS = """
rule_files: [{rules}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {{series: '{link}', values: '1x9'}}
      - {{series: 'llmrack_backup_timestamp_seconds', values: '-259200x90'}}
    alert_rule_test:
      - eval_time: 5m
        alertname: LlmrackLinkCongested
        exp_alerts: [{{exp_labels: {{severity: warning, kind: nvlink, from: gpu0, to: nvswitch0}}, exp_annotations: {{summary: "the nvlink link between gpu0 and nvswitch0 is taken most of the time", description: "Steps wait for it: llmctl show links. Another layout or placement would use it less."}}}}]
      - eval_time: 80m
        alertname: LlmrackBackupOld
        exp_alerts: [{{exp_labels: {{severity: warning}}, exp_annotations: {{summary: "the newest copy of the state is 3d 1h 20m 0s old", description: "One is made every day into the state directory's backups; the alarm state.backup says what is in the way."}}}}]
"""


def test_what_alerts_say(promtool, tmp_path):
    """Labels and values are in the sentences."""
    case = tmp_path / "case.yaml"
    case.write_text(WORDS.format(rules=os.path.abspath(RULES), link=LINK))
    p = subprocess.run([promtool, "test", "rules", str(case)], capture_output=True, text=True, timeout=60 * SLOW)
    assert p.returncode == 0, p.stdout + p.stderr
