"""etc/prometheus-rules.yaml: every metric that an alert names is one of /metrics, with labels
that it has; promtool accepts the file, and alerts fire on series made up for it."""
import os
import re
import shutil
import subprocess

import pytest

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
    return words - {"sum", "max", "avg", "rate", "increase", "deriv", "and", "or", "unless"}


def test_every_metric_is_there(rack):
    text = rack.local_request("GET", "/metrics")[2].decode()
    known = set(re.findall(r"^# TYPE (\S+) ", text, re.M))
    found = rules()
    assert len(found) >= 17
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
    p = subprocess.run([promtool, "check", "rules", RULES], capture_output=True, text=True, timeout=60)
    assert p.returncode == 0, p.stdout + p.stderr
    assert f"{len(rules())} rules found" in p.stdout


FIRES = """
rule_files: [{rules}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {{series: 'llmrack_ready', values: '0x20'}}
      - {{series: 'vllm:kv_cache_usage_perc{{instance="main"}}', values: '0.99x20'}}
      - {{series: 'llmrack_engine_failures_total', values: '0+1x20'}}
      - {{series: 'llmrack_slo_requests_total{{instance="main",slo_class="default",end="met"}}', values: '0+10x70'}}
      - {{series: 'llmrack_slo_requests_total{{instance="main",slo_class="default",end="late"}}', values: '0+10x70'}}
      - {{series: 'llmrack_slo_attainment_target{{instance="main",slo_class="default"}}', values: '0.99x70'}}
      - {{series: 'llmrack_rank_busy_seconds_total{{model_name="m",instance="main",rank="0"}}', values: '0+50x70'}}
      - {{series: 'llmrack_rank_busy_seconds_total{{model_name="m",instance="main",rank="1"}}', values: '0+50x70'}}
      - {{series: 'llmrack_rank_wait_seconds_total{{model_name="m",instance="main",rank="0"}}', values: '0+0x70'}}
      - {{series: 'llmrack_rank_wait_seconds_total{{model_name="m",instance="main",rank="1"}}', values: '0+45x70'}}
      - {{series: 'vllm:num_preemptions_total{{instance="main"}}', values: '0x70'}}
    alert_rule_test:
      - {{eval_time: 4m, alertname: LlmrackNotReady, exp_alerts: []}}
      - eval_time: 10m
        alertname: LlmrackNotReady
        exp_alerts: [{{exp_labels: {{severity: critical}}, exp_annotations: {{summary: "no model answers", description: "llmctl show status says why; a model that loads takes its time."}}}}]
      - eval_time: 70m
        alertname: LlmrackSloBurnFast
        exp_alerts: [{{exp_labels: {{severity: critical, instance: main, slo_class: default}}, exp_annotations: {{summary: "instance main, class default: 50% of the requests miss the SLO"}}}}]
      - eval_time: 60m
        alertname: LlmrackRanksUneven
        exp_alerts: [{{exp_labels: {{severity: warning, instance: main, model_name: m}}, exp_annotations: {{summary: "instance main: one rank works half as much again as the mean", description: "A slow device, or experts that are out of balance: llmctl show ranks."}}}}]
      - {{eval_time: 60m, alertname: LlmrackPreemptions, exp_alerts: []}}
"""


def test_alerts_fire(promtool, tmp_path):
    case = tmp_path / "case.yaml"
    case.write_text(FIRES.format(rules=os.path.abspath(RULES)))
    p = subprocess.run([promtool, "test", "rules", str(case)], capture_output=True, text=True, timeout=60)
    assert p.returncode == 0, p.stdout + p.stderr
