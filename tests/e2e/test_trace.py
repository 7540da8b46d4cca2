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
    tiny_models.write(tiny_models.Spec(family="qwen3_moe", n_ctx=16384), model)
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
            self.ids.append(self.rack.post("/v1/completions", self.body)[1].get("id"))

    def __enter__(self):
        self.thread = threading.Thread(target=self.work)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


def check_nesting(spans):
    """On one track: a span is inside the one around it or begins when that is over. What of
    two spans laps over is dropped or misplaced by Perfetto and chrome://tracing."""
    open_until = []
    for v in sorted(spans, key=lambda v: (v["ts"], -v["dur"])):
        while open_until and open_until[-1] <= v["ts"]:
            open_until.pop()
        assert not open_until or v["ts"] + v["dur"] <= open_until[-1], (v, open_until)
        open_until.append(v["ts"] + v["dur"])


def check_metadata(events):
    """Names and places of all processes and threads, each once; returns those named."""
    seen = {}
    for v in events:
        if v["ph"] == "M":
            at = (v["pid"], v["tid"]) if v["name"].startswith("thread") else v["pid"]
            key = v["name"], at
            assert key not in seen, key
            seen[key] = v["args"]["sort_index" if v["name"].endswith("sort_index") else "name"]
    for name, at in seen:
        assert name in ("process_name", "process_sort_index", "thread_name", "thread_sort_index")
        other = name.replace("name", "sort_index") if name.endswith("name") else name.replace("sort_index", "name")
        assert (other, at) in seen, (name, at)
    threads = [at for name, at in seen if name == "thread_name"]
    assert all(pid and tid for pid, tid in threads)  # 0 is the idle task to Perfetto
    assert all(("process_name", pid) in seen for pid, _ in threads)
    return set(threads)


def read(path):
    """The events by name. All the rules of the Trace Event Format that these files rely on are
    checked: known phases, named tracks, times that rise, whole microseconds, lengths that are
    none below 0, spans that nest on their track, arrows that begin at a span and end at one."""
    whole = json.loads(path.read_text())
    assert PROMPT.split()[1] not in path.read_text()
    events, out, last, tracks, flows = whole["traceEvents"], {}, 0, {}, {}
    named = check_metadata(events)
    starts = {(v["pid"], v["tid"], v["ts"]) for v in events if v["ph"] == "X"}
    for v in events:
        if v["ph"] == "M":
            continue
        at = (v["pid"], v["tid"])
        assert v["ph"] in "XCsf" and at in named and v["cat"]
        assert isinstance(v["ts"], int) and v["ts"] >= last
        last = v["ts"]
        if v["ph"] == "X":
            assert isinstance(v["dur"], int) and v["dur"] >= 0
            tracks.setdefault(at, []).append(v)
        elif v["ph"] == "C":
            assert v["args"] and all(isinstance(n, int) and n >= 0 for n in v["args"].values())
        else:
            assert (*at, v["ts"]) in starts, v
            flows.setdefault(v["id"], []).append(v)
            continue
        out.setdefault(v["name"], []).append(v)
    for spans in tracks.values():
        check_nesting(spans)
    for steps in flows.values():
        assert [v["ph"] for v in steps].count("s") == 1, steps
        assert len({v["name"] for v in steps}) == 1
        assert all(v["bp"] == "e" for v in steps if v["ph"] == "f")
    return whole, out


def test_the_checker_can_fail():
    check_nesting([{"ts": 0, "dur": 10}, {"ts": 0, "dur": 4}, {"ts": 4, "dur": 6}, {"ts": 10, "dur": 1}])
    with pytest.raises(AssertionError):
        check_nesting([{"ts": 0, "dur": 10}, {"ts": 4, "dur": 7}])
    with pytest.raises(AssertionError):
        check_metadata([{"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "a"}}])


def inside(v, spans):
    return any(s["ts"] <= v["ts"] and v["ts"] + v["dur"] <= s["ts"] + s["dur"] for s in spans)


def test_of_all_for_a_time(rack, tmp_path):
    path = tmp_path / "a.json"
    with Load(rack) as load:
        wait_for(lambda: load.ids)
        for seconds in 1, 4, 16, 60:  # until a request began and ended in it, however slow the machine
            p = llmctl(rack, "trace", f"{seconds}s", str(path))
            assert p.returncode == 0, p.stderr
            whole, by = read(path)
            if by.get("queue") and by.get("prefill chunk"):
                break
    facts = whole["otherData"]
    assert facts["engines"] == 1 and (facts["full_after_s"] is None) == (facts["dropped_events"] == 0)
    assert f"{len(whole['traceEvents'])} events in {path}" in p.stdout
    assert ("had no room" in p.stdout) == (facts["dropped_events"] > 0)
    for name in ("step", "rank step", "dispatch", "expert", "combine", "prefill chunk",
                 "decode step", "queue", "prefill", "decode", "requests"):
        assert by.get(name), name
    # each layer's spans are inside a step of their rank, on both ranks
    for name in "dispatch", "expert", "combine":
        assert {v["tid"] for v in by[name]} == {1000, 1001} and {v["args"]["layer"] for v in by[name]} == {0, 1}
        for v in by[name][4:-4:len(by[name]) // 50 + 1]:
            assert inside(v, [s for s in by["rank step"] if s["tid"] == v["tid"]]), v
    # what a request did in a step took as long as the step; what its ranks did lies in it
    steps = {v["args"]["step"]: v for v in by["step"]}
    for v in by["decode step"]:
        s = steps[v["args"]["step"]]
        assert (v["ts"], v["dur"], v["args"]["tokens"]) == (s["ts"], s["dur"], 1)
    arrows = [v for v in whole["traceEvents"] if v["ph"] == "f"]
    assert {v["tid"] for v in arrows} == {1000, 1001} and len(arrows) >= 2 * len(steps) - 4
    for v in by["decode"]:
        assert v["args"]["end"] == "length" and v["args"]["tokens"] == 40
    # it is over: nothing is kept any more
    n = len(json.loads(rack.local_request("GET", "/api/v1/trace")[2])["traceEvents"])
    assert rack.post("/v1/completions", {"prompt": "a", "max_tokens": 4})[0] == 200
    assert len(json.loads(rack.local_request("GET", "/api/v1/trace")[2])["traceEvents"]) == n


def long_one(rack, max_tokens):
    return wait_for(lambda: [r for r in rack.local("/api/v1/requests")["requests"]
                             if r["max_tokens"] == max_tokens])[0]


def test_of_one_request(rack, tmp_path):
    """Its own tracks and no other's, until it ends; and then it cannot be traced any more."""
    path = tmp_path / "b.json"
    with Load(rack), Load(rack, max_tokens=450):
        long = long_one(rack, 450)
        p = llmctl(rack, "trace", long["label"], str(path))
    assert p.returncode == 0, p.stderr
    assert f"request {long['id']} ended: length\n" in p.stdout
    _, by = read(path)
    mine = {v["tid"] for v in by["decode step"]}
    assert len(mine) == 1 and by["step"] and by["rank step"]
    assert all(v["args"]["position"] > 0 and v["args"]["request"] == long["id"] for v in by["decode step"])
    assert [v["args"]["end"] for v in by["decode"]] == ["length"]
    assert {v["tid"] for name in ("queue", "prefill", "decode") for v in by.get(name, [])} == {min(mine) - 1}
    for name in long["label"], f"#{long['id']}":
        p = llmctl(rack, "trace", name, str(tmp_path / "no.json"))
        assert p.returncode == 3 and "has ended: only one in progress can be traced" in p.stderr
    assert not (tmp_path / "no.json").exists()


def test_of_one_that_is_canceled(rack, tmp_path):
    path = tmp_path / "d.json"
    said = []
    with Load(rack, max_tokens=15000) as load:
        long = long_one(rack, 15000)
        t = threading.Thread(target=lambda: said.append(llmctl(rack, "trace", long["label"], str(path))))
        t.start()
        wait_for(lambda: [r for r in rack.local("/api/v1/journal?limit=20")["journal"]
                          if r["what"] == "trace.begin" and long["label"] in r["detail"]])
        load.stop.set()
        assert rack.local_request("DELETE", f"/api/v1/requests/{long['id']}")[0] == 200
        t.join(60 * SLOW)
    assert said[0].returncode == 0, said[0].stderr
    assert f"request {long['id']} was canceled while it was traced" in said[0].stdout
    assert [v["args"]["end"] for v in read(path)[1]["decode"]] == ["canceled"]


def test_of_one_that_goes_on(rack, tmp_path):
    """It is over at its time, and says that the request is not."""
    path = tmp_path / "e.json"
    with Load(rack, max_tokens=16000) as load:
        long = long_one(rack, 16000)
        p = llmctl(rack, "trace", f"#{long['id']}", str(path), "for", "1s")
        assert p.returncode == 0, p.stderr
        assert f"request {long['id']} still runs after 1 s: the trace ends there\n" in p.stdout
        load.stop.set()
        assert rack.local_request("DELETE", f"/api/v1/requests/{long['id']}")[0] == 200
        _, by = read(path)
        assert by["decode step"] and not by.get("decode")


def test_experts_that_all_stand_here(tmp_path):
    """One rank, no way to other ranks: the products have their spans all the same; a dense
    model has none."""
    for family, names in ("qwen3_moe", {"expert"}), ("llama", set()):
        model = str(tmp_path / family)
        tiny_models.write(tiny_models.Spec(family=family), model)
        r = Rack("--kv-mib", "8", model=model)
        path = tmp_path / f"{family}.json"
        try:
            with Load(r) as load:
                wait_for(lambda: load.ids)
                p = llmctl(r, "trace", "2s", str(path))
            assert p.returncode == 0, p.stderr
        finally:
            r.stop()
        _, by = read(path)
        assert by["rank step"] and {"dispatch", "expert", "combine"} & set(by) == names
        for v in by.get("expert", [])[4:-4:len(by.get("expert", [])) // 50 + 1]:
            assert inside(v, by["rank step"]) and v["args"]["layer"] in (0, 1)


def test_what_is_refused(rack, tmp_path):
    path = tmp_path / "c.json"
    p = llmctl(rack, "trace", "no-such-request", str(path))
    assert p.returncode == 3 and "no request 'no-such-request' is known: it is neither in progress" in p.stderr
    p = llmctl(rack, "trace", "#99999999", str(path))
    assert p.returncode == 3 and "no request '99999999' is known" in p.stderr
    assert not path.exists()
    for words in ("no-such-request", "for", "ever"), ("1s", "for", "2s"):
        p = llmctl(rack, "trace", words[0], str(path), *words[1:])
        assert p.returncode == 2 and "such as 30s or 2m" in p.stderr
    p = llmctl(rack, "trace", "1s", str(path), "instance", "other")
    assert p.returncode == 3 and "no instance 'other'" in p.stderr
    assert rack.local_request("POST", "/api/v1/trace", {"seconds": 601})[0] == 400
