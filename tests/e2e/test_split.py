"""An instance in two pools: the same text as from one engine, whatever engine dies, and
changes between the modes that lose no request."""
import json
import os
import re
import signal
import subprocess
import sys
import threading

import pytest

import rack as rack_module
from rack import BIN, MODEL, SLOW, wait_for

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "tools"))
TEXT = "/v1/completions"
CONFIG = f"""
model_roots: [{os.path.dirname(os.path.realpath(MODEL))}]
models: {{small: {{path: {os.path.realpath(MODEL)}}}}}
instances:
  main: {{model: small, step_tok: 64, kv: {{mib: 48}}, threads: 1, mode: MODE}}
"""
PROMPT, ANSWER = 200, 24


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    path = tmp_path_factory.mktemp("split") / "llmrackd.yaml"
    path.write_text(CONFIG.replace("MODE", "split"))
    r = rack_module.Rack("--rack", "cpu:4", "--config", str(path), model=None)
    wait_for(lambda: ready(r, POOLS), 60)
    yield r
    assert r.p.poll() is None, "the daemon ended during the tests: " + r.logged()
    r.stop()


POOLS = ["main/decode", "main/prefill"]


def engines(rack):
    return {i["name"]: i for i in rack.local("/api/v1/instances")["instances"]}


def ready(rack, names):
    return sorted((k, i["state"]) for k, i in engines(rack).items()) == \
        [(k, "ready") for k in sorted(names)]


def change(rack, names, **values):
    rack.commit("instances.main.", 90, **values)
    wait_for(lambda: ready(rack, names), 90)


def body(n, **more):
    """A prompt of its own for each n, as token ids."""
    return dict({"prompt": [1000 + (17 * n + 31 * i) % 40000 for i in range(PROMPT)],
                 "max_tokens": ANSWER, "temperature": 0.9, "seed": 100 + n,
                 "ignore_eos": True}, **more)


def ask(rack, n, **more):
    status, answer, _ = rack.post(TEXT, body(n, **more))
    assert status == 200, answer
    return answer["choices"][0]["text"], answer["usage"]["completion_tokens"]


def sums(rack, name, which=""):
    """Of the rows of all engines, or of those with that label."""
    text = rack.local_request("GET", "/metrics")[2].decode()
    return sum(float(x.rsplit(" ", 1)[1]) for x in text.splitlines()
               if x.startswith((name + "{", name + " ")) and which in x)


class Load(threading.Thread):
    """Clients that ask without a pause until they are told to stop, and keep what came."""

    def __init__(self, rack, clients=3):
        super().__init__()
        self.rack, self.over, self.answers, self.faults, self.n = rack, False, {}, [], 0
        self.lock = threading.Lock()
        self.clients = [threading.Thread(target=self.client) for _ in range(clients)]

    def client(self):
        while not self.over:
            with self.lock:
                n = self.n % 8
                self.n += 1
            try:
                text = ask(self.rack, n)
            except Exception as e:
                self.faults.append(repr(e))
                return
            with self.lock:
                self.answers.setdefault(n, set()).add(text)

    def __enter__(self):
        for c in self.clients:
            c.start()
        return self

    def __exit__(self, *_):
        self.over = True
        for c in self.clients:
            c.join(120 * SLOW)
            assert not c.is_alive()


@pytest.fixture(scope="module")
def expected(split):
    """What the two pools answer when nothing happens; all handed over."""
    before = sums(split, "llmrack_handoff_seconds_count")
    out = [ask(split, n) for n in range(8)]
    assert sums(split, "llmrack_handoff_seconds_count") == before + 8
    return out


def as_expected(load, expected):
    assert load.faults == []
    assert load.answers
    for n, texts in load.answers.items():
        assert texts == {expected[n]}, n


def test_prompts_are_handed_over(split, expected):
    at = engines(split)
    assert at["main/prefill"]["mode"] == at["main/decode"]["mode"] == "split"
    assert all(n == ANSWER for _, n in expected)
    assert len({text for text, _ in expected}) > 1
    shown = split.local("/api/v1/pools")
    assert {p["engine"]: p["role"] for p in shown["pools"]} == \
        {"main/prefill": "prefill", "main/decode": "decode"}
    decode = next(p for p in shown["pools"] if p["role"] == "decode")
    assert decode["handoffs"] == len(expected) and decode["recomputed"] == 0
    assert decode["bytes"] == sums(split, "llmrack_kv_handoff_bytes_total") > 0
    assert 0 < decode["handoff_ms"]["p50"] <= decode["handoff_ms"]["p99"]
    assert sum(p["exports"] + p["quarantined_blocks"] for p in shown["pools"]) == 0
    assert [w["instance"] for w in shown["windows"]] == ["main"]
    table = subprocess.run([os.path.join(BIN, "llmctl"), "--socket", split.sock, "-c",
                            "show pools"], capture_output=True, text=True, timeout=30)
    assert table.returncode == 0 and "QUARANTINE" in table.stdout, table
    assert "main/decode" in table.stdout and "REMOVED S" in table.stdout


def test_one_token_is_the_prefill_pools(split, expected):
    """No handoff and no step of the decode engine; the token is the longer answer's first."""
    def counted():
        return {name: sums(split, "llmrack_steps_total", f'instance="{name}"') for name in POOLS}
    first = [ask(split, n)[0] for n in range(3)]
    handed, before = sums(split, "llmrack_handoff_seconds_count"), counted()
    for n in range(3):
        text, tokens = ask(split, n, max_tokens=1)
        assert tokens == 1 and first[n].startswith(text)
    after = counted()
    assert after["main/decode"] == before["main/decode"] > 0
    assert after["main/prefill"] >= before["main/prefill"] + 3
    assert sums(split, "llmrack_handoff_seconds_count") == handed


def test_one_slo_row_for_both_pools(split, expected):
    rows = split.local("/api/v1/slo?window_s=3600")["slo"]
    assert [(r["instance"], r["class"]) for r in rows] == [("main", "")]
    assert rows[0]["met"] >= len(expected) and rows[0]["ttft_ms"]["p50"] > 0
    text = split.local_request("GET", "/metrics")[2].decode()
    assert {x.split('instance="')[1].split('"')[0] for x in text.splitlines()
            if x.startswith("llmrack_slo_")} == {"main"}


def degraded(rack):
    status, _, body = rack.local_request("GET", "/readyz")
    assert status == 200, body
    return json.loads(body)["degraded"]


def test_half_of_it_is_told(split, expected):
    """Without a prefill pool it answers, and says what is missing; an operator's stop is no
    lack."""
    assert degraded(split) == [] == split.local("/api/v1/status")["degraded"]
    os.kill(engines(split)["main/prefill"]["pid"], signal.SIGKILL)
    told = wait_for(lambda: degraded(split), 30)
    assert len(told) == 1 and told[0].startswith("main/prefill: "), told
    assert ask(split, 0) == expected[0]
    wait_for(lambda: ready(split, POOLS) and not degraded(split), 60)


def memory_mib():
    """What engines may use: the machine's, or less by the control group."""
    most = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")]
    for path in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            with open("/sys/fs/cgroup/" + path, encoding="ascii") as f:
                most.append(int(f.read()))
        except (OSError, ValueError):
            pass  # none such, or "max"
    return min(most) >> 20


def test_pairs_that_cannot_be_are_refused_by_the_check(split):
    def said(path, value):
        path = "instances.main." + path
        status, _, body = split.local_request("PATCH", "/api/v1/config/draft",
                                              {"set": [{"path": path, "value": value}]})
        assert split.local_request("DELETE", "/api/v1/config/draft")[0] in (200, 204)
        assert status == 200 and json.loads(body)["ok"] is False, body
        return body.decode()
    before = {k: i["pid"] for k, i in engines(split).items()}
    assert "instance 'main/decode': tp 2 does not divide" in said("decode.layout.tp", 2)
    text = said("decode.kv.mib", 8)
    assert "its KV pool is for a context of" in text and "that of 'main/prefill' for" in text
    assert "of KV and the pool may be 1 MiB: lower ctx or raise kv.mib" in said("decode.kv.mib", 1)
    # each pool would fit alone, both do not
    assert re.search(r"2 engines \('main/\w+' \.\.\) need \d+ MiB together and \d+ MiB are free",
                     said("kv.mib", memory_mib() * 3 // 4))
    assert "8 ranks and 4 devices" in said("prefill.layout.pp", 8)
    assert "no experts to share over groups" in said("decode.layout.adp", 2)
    assert "replicas" in said("replicas", 2)
    assert {k: i["pid"] for k, i in engines(split).items()} == before


def test_layouts_of_pools_also_by_the_planner(split, expected):
    change(split, POOLS, prefill__layout__pp=2)
    assert engines(split)["main/prefill"]["layout"].startswith("pp2")
    before = sums(split, "llmrack_handoff_seconds_count")
    new = [ask(split, n) for n in range(20, 24)]
    assert sums(split, "llmrack_handoff_seconds_count") == before + 4
    change(split, POOLS, prefill__layout__pp=0)
    change(split, POOLS, prefill__layout__auto="true")
    assert [ask(split, n) for n in range(20, 24)] == new
    assert ask(split, 30)[1] == ANSWER
    notes = [r for r in split.local("/api/v1/journal")["journal"]
             if "instance.layout" in str(r) and "main/prefill" in str(r)]
    assert notes and "prompts/s, TTFT" in str(notes), split.local("/api/v1/journal")
    change(split, POOLS, prefill__layout__auto="false")
    assert [ask(split, n) for n in range(8)] == expected


MOE = """
model_roots: [{root}]
models: {{moe: {{path: {path}}}}}
instances:
  main: {{model: moe, ctx: 512, step_tok: 64, kv: {{mib: 16}}, threads: 1, mode: MODE,
          prefill: {{layout: {{adp: 1, ep: 1}}}}, layout: {{adp: 2, ep: 2}}}}
"""


def test_groups_in_the_decode_pool(tmp_path):
    """adp there, several groups of requests: the text of the same layout by itself."""
    tiny_models = pytest.importorskip("tiny_models")
    path = str(tmp_path / "moe")
    tiny_models.write(tiny_models.Spec(family="qwen3_moe"), path)
    (tmp_path / "c.yaml").write_text(MOE.format(root=tmp_path, path=path)
                                     .replace("MODE", "split"))
    r = rack_module.Rack("--rack", "cpu:4", "--config", str(tmp_path / "c.yaml"), model=None)
    try:
        def asked(n):
            status, said, _ = r.post(TEXT, {"prompt": [1 + (7 * n + 3 * i) % 200 for i in range(90)],
                                            "max_tokens": 12, "temperature": 0, "logprobs": 2,
                                            "ignore_eos": True})
            assert status == 200, said
            return said["choices"][0]
        out = [asked(n) for n in range(4)]
        assert sums(r, "llmrack_handoff_seconds_count") == 4
        change(r, ["main"], mode="chunked")
        assert [asked(n)["text"] for n in range(4)] == [x["text"] for x in out]
    finally:
        r.stop()


def test_an_engine_of_either_pool_is_killed(split, expected):
    for name in POOLS:
        with Load(split) as load:
            wait_for(lambda: len(load.answers) >= 2, 60)
            was = engines(split)[name]["pid"]
            os.kill(was, signal.SIGKILL)
            seen = load.n
            wait_for(lambda: load.n >= seen + 6, 90)
            wait_for(lambda: ready(split, POOLS) and engines(split)[name]["pid"] != was, 60)
        as_expected(load, expected)


def test_a_change_of_the_mode_loses_nothing(split, expected):
    with Load(split) as load:
        for mode, names in (("chunked", ["main"]), ("split", POOLS), ("colocated", ["main"])):
            change(split, names, mode=mode)
            seen = load.n
            wait_for(lambda: load.n >= seen + 4 or load.faults, 60)
    as_expected(load, expected)
    assert [ask(split, n) for n in range(8)] == expected
