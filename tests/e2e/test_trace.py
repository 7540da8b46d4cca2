"""llmctl trace: what engines do and when, as the Trace Event Format wants it; nothing of what
requests say is in it."""
import json
import os
import subprocess
import sys
import threading

import pytest

from rack import BIN, SLOW, Rack, wait_for

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "tools"))
tiny_models = pytest.importorskip("tiny_models")
PROMPT = "the inner heart of the secret forest"


@pytest.fixture(scope="module")
def rack(tmp_path_factory):
    model = str(tmp_path_factory.mktemp("model") / "moe")
    tiny_models.write(tiny_models.Spec(family="qwen3_moe"), model)
    r = Rack("--rack", "cpu:2", "--kv-mib", "8", "--set", "instances.main.layout.tp=2",
             "--set", "instances.main.layout.ep=2", model=model)
    yield r
    assert r.p.poll() is None, "the daemon ended during the tests: " + r.logged()
    r.stop()


def llmctl(rack, *words):
    return subprocess.run([os.path.join(BIN, "llmctl"), "--socket", rack.sock, *words],
                          capture_output=True, text=True, timeout=60 * SLOW)


class Load:
    """Requests, one after the other, until it is left."""

    def __init__(self, rack, **more):
        self.rack, self.stop, self.ids = rack, threading.Event(), []
        self.body = {"prompt": PROMPT, "max_tokens": 40, "ignore_eos": True, **more}

    def work(self):
        while not self.stop.is_set():
            self.ids.append(self.rack.post("/v1/completions", self.body)[1]["id"])

    def __enter__(self):
        self.thread = threading.Thread(target=self.work)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


def read(path):
    """The events by name, the rules of the format checked on all."""
    whole = json.loads(path.read_text())
    assert PROMPT.split()[1] not in path.read_text()
    named, out, last = set(), {}, 0
    for v in whole["traceEvents"]:
        at = (v["pid"], v["tid"])
        if v["ph"] == "M":
            assert v["name"] in ("process_name", "thread_name") and v["args"]["name"]
            named.add(at)
            continue
        assert v["ph"] in "XC" and at in named and v["ts"] >= last
        assert v["ph"] == "C" or v["dur"] >= 0
        last = v["ts"]
        out.setdefault(v["name"], []).append(v)
    return whole, out


def inside(v, spans):
    return any(s["ts"] - 2 <= v["ts"] and v["ts"] + v["dur"] <= s["ts"] + s["dur"] + 2 for s in spans)


def test_of_all_for_a_time(rack, tmp_path):
    path = tmp_path / "a.json"
    with Load(rack) as load:
        wait_for(lambda: load.ids)
        p = llmctl(rack, "trace", "1s", str(path))
    assert p.returncode == 0, p.stderr
    whole, by = read(path)
    # a second of so small a model may be more than there is room for: then it says so
    assert whole["otherData"]["dropped_events"] >= 0 and whole["otherData"]["engines"] == 1
    for name in ("step", "rank step", "dispatch", "expert", "combine", "prefill chunk",
                 "decode step", "queue", "prefill", "decode", "requests"):
        assert by.get(name), name
    # each layer's spans are inside a step of their rank, on both ranks
    for name in "dispatch", "expert", "combine":
        assert {v["tid"] for v in by[name]} == {1, 2} and {v["args"]["layer"] for v in by[name]} == {0, 1}
        for v in by[name][4:-4:len(by[name]) // 50 + 1]:
            assert inside(v, [s for s in by["rank step"] if s["tid"] == v["tid"]]), v
    # what a request did in a step took as long as the step
    steps = {v["args"]["ticket"]: v for v in by["step"]}
    for v in by["decode step"]:
        s = steps[v["args"]["ticket"]]
        assert (v["ts"], v["dur"], v["args"]["tokens"]) == (s["ts"], s["dur"], 1)
    # it is over: nothing is kept any more
    n = len(json.loads(rack.local_request("GET", "/api/v1/trace")[2])["traceEvents"])
    assert rack.post("/v1/completions", {"prompt": "a", "max_tokens": 4})[0] == 200
    assert len(json.loads(rack.local_request("GET", "/api/v1/trace")[2])["traceEvents"]) == n


def test_of_one_request(rack, tmp_path):
    path = tmp_path / "b.json"
    with Load(rack), Load(rack, max_tokens=450):
        long = wait_for(lambda: [r for r in rack.local("/api/v1/requests")["requests"]
                                 if r["max_tokens"] == 450])[0]
        p = llmctl(rack, "trace", long["label"], str(path))
    assert p.returncode == 0, p.stderr
    _, by = read(path)
    mine = {v["tid"] for v in by["decode step"]}
    assert len(mine) == 1 and by["step"] and by["rank step"]
    assert all(v["args"]["position"] > 0 for v in by["decode step"])
    assert len({v["tid"] for name in ("queue", "prefill", "decode") for v in by.get(name, [])}) <= 1


def test_what_is_refused(rack, tmp_path):
    path = tmp_path / "c.json"
    p = llmctl(rack, "trace", "no-such-request", str(path))
    assert p.returncode == 3 and "no request 'no-such-request' is in progress" in p.stderr
    assert not path.exists()
    p = llmctl(rack, "trace", "1s", str(path), "instance", "other")
    assert p.returncode == 3 and "no instance 'other'" in p.stderr
    assert rack.local_request("POST", "/api/v1/trace", {"seconds": 601})[0] == 400
