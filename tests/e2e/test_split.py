"""An instance in two pools: the same text as from one engine, whatever engine dies, and
changes between the modes that lose no request."""
import json
import os
import signal
import subprocess
import threading

import pytest

import rack as rack_module
from rack import BIN, MODEL, SLOW, wait_for

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
    status, _, body = rack.local_request("PATCH", "/api/v1/config/draft", {
        "set": [{"path": "instances.main." + k.replace("__", "."), "value": v}
                for k, v in values.items()]})
    assert status == 200 and json.loads(body)["fits"], body
    assert rack.local_request("POST", "/api/v1/config/commit", {})[0] == 202
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
