"""Several instances of one daemon, and engines that are replaced while they answer."""
import json
import os
import re
import threading

import pytest

import rack as rack_module
from rack import MODEL, SLOW, Stream, wait_for

TEXT = "/v1/completions"
CONFIG = f"""
model_roots: [{os.path.dirname(os.path.realpath(MODEL))}]
models:
  small:
    path: {os.path.realpath(MODEL)}
instances:
  one: {{model: small, served_as: alpha, kv: {{mib: 16}}}}
  two: {{model: small, served_as: beta, kv: {{mib: 16}}}}
"""
LONG = {"model": "alpha", "prompt": "Once upon a time", "max_tokens": 300, "temperature": 0,
        "ignore_eos": True}


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    path = tmp_path_factory.mktemp("fleet") / "llmrackd.yaml"
    path.write_text(CONFIG)
    r = rack_module.Rack("--config", str(path), model=None, ready=False)
    wait_for(lambda: [i["state"] for i in instances(r)] == ["ready", "ready"], 60)
    yield r
    assert r.p.poll() is None, "the daemon ended during the tests: " + r.logged()
    r.stop()


def instances(rack):
    return rack.local("/api/v1/status")["instances"]


def pids(rack):
    return {i["name"]: i["pid"] for i in instances(rack)}


def test_two_names_at_once(two):
    status, body, _ = two.post(TEXT, {"prompt": "Hello", "max_tokens": 2})
    assert status == 400 and body["error"]["param"] == "model"
    assert "'alpha', 'beta'" in body["error"]["message"]
    answers = {}

    def ask(name):
        answers[name] = two.post(TEXT, dict(LONG, model=name, max_tokens=20))

    threads = [threading.Thread(target=ask, args=(name,)) for name in ("alpha", "beta")]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60 * SLOW)
    texts = []
    for name in "alpha", "beta":
        status, body, _ = answers[name]
        assert status == 200 and body["model"] == name
        texts.append(body["choices"][0]["text"])
    assert texts[0] == texts[1]  # one file
    listed = json.loads(two.get("/v1/models")[2])["data"]
    assert [m["id"] for m in listed] == ["alpha", "beta"]
    status, body, _ = two.post(TEXT, {"model": "gamma", "prompt": "Hello"})
    assert status == 404 and "'alpha', 'beta'" in body["error"]["message"]


def commit(rack, path, value):
    """What the check said of it."""
    status, _, body = rack.local_request("PATCH", "/api/v1/config/draft",
                                         {"set": [{"path": path, "value": value}]})
    check = json.loads(body)
    assert status == 200 and check["ok"], check
    before = rack.local("/api/v1/config")["revision"]
    status, _, body = rack.local_request("POST", "/api/v1/config/commit", {})
    assert status == 202, body
    wait_for(lambda: rack.local("/api/v1/config")["revision"] > before)
    return check


def counted(rack, name):
    """{(model, instance): value} of one counter."""
    text = rack.local_request("GET", "/metrics")[2].decode()
    rows = re.findall(rf'^{name}\{{model_name="([^"]*)",engine="0"(?:,instance="([^"]*)")?[^}}]*\}} (\S+)$',
                      text, re.M)
    return {(m, i): float(v) for m, i, v in rows}


def test_each_engine_has_its_own_series(two):
    tokens, answers = "vllm:generation_tokens_total", "vllm:e2e_request_latency_seconds_count"
    before, n = counted(two, tokens), counted(two, answers)
    assert set(before) == {("alpha", "one"), ("beta", "two")}
    assert set(n) == {("alpha", ""), ("beta", "")}
    for _ in range(2):
        two.post(TEXT, dict(LONG, model="beta", max_tokens=7))
    wait_for(lambda: counted(two, tokens)["beta", "two"] == before["beta", "two"] + 14)
    assert counted(two, tokens)["alpha", "one"] == before["alpha", "one"]
    after = counted(two, answers)
    assert after["beta", ""] == n["beta", ""] + 2 and after["alpha", ""] == n["alpha", ""]


def test_replaced_under_a_stream(two):
    """The stream goes on on its old engine, whose place a new one has taken."""
    want = two.post(TEXT, LONG)[1]["choices"][0]["text"]
    before, sums = pids(two), counted(two, "vllm:generation_tokens_total")
    s = Stream(two, LONG)
    wait_for(s.begun)
    check = commit(two, "instances.one.step_tok", 64)
    assert [(a["action"], a["instance"], a["why"]) for a in check["actions"]
            if a["action"] != "keep"] == [("replace", "one", "step_tok 512 -> 64")]
    wait_for(lambda: pids(two)["one"] not in (before["one"], 0), 60)
    assert two.post(TEXT, dict(LONG, max_tokens=2))[0] == 200
    frames = s.frames()
    assert frames[-1] == "[DONE]"
    assert "".join(f["choices"][0]["text"] for f in frames[:-1]) == want
    wait_for(lambda: len(instances(two)) == 2)
    after = pids(two)
    assert after["two"] == before["two"] and after["one"] != before["one"]
    assert two.metric("llmrack_engine_failures_total") == 0
    now = counted(two, "vllm:generation_tokens_total")  # the old engine's are kept
    assert now["alpha", "one"] >= sums["alpha", "one"] + LONG["max_tokens"]
    assert now["beta", "two"] == sums["beta", "two"]


def test_sampling_default_touches_no_engine(two):
    before = pids(two)
    check = commit(two, "instances.two.sampling.temperature", 0)
    assert all(a["action"] in ("keep", "hot") for a in check["actions"])
    assert pids(two) == before
    ask = {"model": "beta", "prompt": "Once upon a time", "max_tokens": 12, "ignore_eos": True}
    texts = [two.post(TEXT, ask)[1]["choices"][0]["text"] for _ in range(3)]
    assert texts[0] == texts[1] == texts[2]  # greedy, unasked


def on_cpus(pid):
    """The CPUs of all threads of a process."""
    return set().union(*(os.sched_getaffinity(int(t)) for t in os.listdir(f"/proc/{pid}/task")))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU is not shared out")
def test_cpus_change_hands_live(two):
    """An instance that goes gives its CPUs to the one that stays, and one that comes takes
    some: under a stream, without a new engine."""
    all_cpus = os.sched_getaffinity(0)
    before = pids(two)
    want = two.post(TEXT, LONG)[1]["choices"][0]["text"]
    assert on_cpus(before["one"]) < all_cpus
    assert two.local_request("POST", "/api/v1/instances/two/stop", {"reason": "test"})[0] == 202
    wait_for(lambda: on_cpus(before["one"]) == all_cpus)
    row = next(i for i in two.local("/api/v1/instances")["instances"] if i["name"] == "one")
    assert row["threads"] == len(all_cpus) and row["pid"] == before["one"]
    s = Stream(two, LONG)
    wait_for(s.begun)
    assert two.local_request("POST", "/api/v1/instances/two/start", {})[0] == 202
    wait_for(lambda: on_cpus(before["one"]) < all_cpus, 60)
    frames = s.frames()
    assert "".join(f["choices"][0]["text"] for f in frames[:-1]) == want
    wait_for(lambda: [i["state"] for i in instances(two)] == ["ready", "ready"], 60)
    after = pids(two)
    assert after["one"] == before["one"]
    cpus = {i["name"]: i["cpus"] for i in two.local("/api/v1/instances")["instances"]}
    assert cpus["one"] != cpus["two"] and not on_cpus(after["one"]) & on_cpus(after["two"])


def test_no_model_at_all(start):
    """It runs, says so, and can be told one."""
    r = start("--config", os.devnull, model=None, ready=False)
    status, headers, body = r.get("/readyz")
    assert status == 503 and int(headers["Retry-After"]) >= 1
    assert "no instance is configured" in json.loads(body)["error"]["message"]
    status, body, _ = r.post(TEXT, {"prompt": "Hello"})
    assert status == 503 and "no model is configured" in body["error"]["message"]
    assert r.get("/healthz")[0] == 200
    assert instances(r) == []
