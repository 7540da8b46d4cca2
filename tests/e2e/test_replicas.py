"""Replicas of an instance: together they find as many prefixes as one would, share the
load, and one that drains gives away what its engine has not heard of."""
import os
import queue
import random
import threading

import pytest

import rack as rack_module
from rack import MODEL, SLOW, Stream, wait_for

TEXT = "/v1/completions"
CONFIG = f"""
model_roots: [{os.path.dirname(os.path.realpath(MODEL))}]
models: {{small: {{path: {os.path.realpath(MODEL)}}}}}
instances:
  main: {{model: small, step_tok: 128, kv: {{mib: 48}}, threads: 1}}
"""
PREFIXES, REQUESTS, CLIENTS, PREFIX_TOK, OWN_TOK, ANSWER = 4, 128, 8, 96, 16, 4


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    path = tmp_path_factory.mktemp("replicas") / "llmrackd.yaml"
    path.write_text(CONFIG)
    r = rack_module.Rack("--rack", "cpu:2", "--config", str(path), model=None)
    yield r
    assert r.p.poll() is None, "the daemon ended during the tests: " + r.logged()
    r.stop()


def instances(rack):
    return rack.local("/api/v1/instances")["instances"]


def change(rack, n, **values):
    rack.commit("instances.main.", **values)
    names = ["main"] + [f"main:{i}" for i in range(2, n + 1)]
    wait_for(lambda: sorted((i["name"], i["state"]) for i in instances(rack)) ==
             [(k, "ready") for k in names], 60)


def trace(seed):
    """Prompts as token ids: a few prefixes, some asked for more often, an end of its own."""
    rng = random.Random(seed)
    prefix = [[rng.randrange(1000, 40000) for _ in range(PREFIX_TOK)] for _ in range(PREFIXES)]
    for _ in range(REQUESTS):
        p = rng.randrange(PREFIXES) * rng.randrange(PREFIXES) // PREFIXES
        yield prefix[p] + [rng.randrange(1000, 40000) for _ in range(OWN_TOK)]


class Sampler(threading.Thread):
    """What is outstanding at each replica, summed over many looks."""

    def __init__(self, rack):
        super().__init__()
        self.rack, self.over, self.sums = rack, threading.Event(), {}

    def run(self):
        while not self.over.wait(0.01):
            for i in instances(self.rack):
                self.sums[i["name"]] = self.sums.get(i["name"], 0) + i["outstanding_tokens"]


def play(rack, seed):
    """(share of prompt tokens found, {replica: tokens outstanding, summed})."""
    def counts():
        rows = rack.local("/api/v1/kv")["kv"]
        return sum(r["hits"] for r in rows), sum(r["queries"] for r in rows)

    def client():
        while True:
            try:
                prompt = todo.get_nowait()
            except queue.Empty:
                return
            answers.append(rack.post(TEXT, {"prompt": prompt, "max_tokens": ANSWER,
                                            "temperature": 0, "ignore_eos": True})[0])

    todo, answers = queue.Queue(), []
    for prompt in trace(seed):
        todo.put(prompt)
    hits, queries = counts()
    sampler = Sampler(rack)
    sampler.start()
    clients = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for c in clients:
        c.start()
    for c in clients:
        c.join(120 * SLOW)
        assert not c.is_alive()
    sampler.over.set()
    sampler.join()
    assert answers == [200] * REQUESTS
    now_hits, now_queries = counts()
    assert now_queries - queries == REQUESTS * (PREFIX_TOK + OWN_TOK)
    return (now_hits - hits) / (now_queries - queries), sampler.sums


def test_hit_rate_and_load(two):
    """Of two replicas the hit rate is within 5 % of that of one, and neither has more than
    1.2 times the mean outstanding."""
    one, _ = play(two, 1)
    change(two, 2, replicas=2)
    both, sums = play(two, 2)
    mean = sum(sums.values()) / 2
    said = f"one {one:.3f}, two {both:.3f}, most loaded {max(sums.values()) / mean:.3f}"
    print(said)
    assert one > 0.5, said
    assert both > 0.95 * one, said
    assert set(sums) == {"main", "main:2"} and max(sums.values()) < 1.2 * mean, said


def test_drain_of_a_replica(two):
    """What runs there ends there, whole; what waits in its engine goes to the other at once,
    as does what comes; then both serve."""
    change(two, 2, max_seqs=1)
    ask = {"prompt": "Once upon a time", "max_tokens": 150, "temperature": 0, "ignore_eos": True}
    want = two.post(TEXT, ask)[1]["choices"][0]["text"]
    streams = [Stream(two, ask) for _ in range(8)]
    wait_for(lambda: all(i["live"] > 2 and i["running"] for i in instances(two)))
    status, _, body = two.local_request("POST", "/api/v1/instances/main:2/drain", {})
    assert status == 202, body
    wait_for(lambda: {i["name"]: i["state"] for i in instances(two)}["main:2"] == "draining")
    wait_for(lambda: {i["name"]: i["live"] for i in instances(two)}["main:2"] <= 1)
    assert two.metric("llmrack_requests_resumed_total") >= 2
    assert two.post(TEXT, ask)[1]["choices"][0]["text"] == want
    for s in streams:
        frames = s.frames()
        assert frames[-1] == "[DONE]"
        assert "".join(f["choices"][0]["text"] for f in frames[:-1]) == want
    at = {i["name"]: i for i in instances(two)}
    assert at["main:2"]["live"] == 0 and at["main:2"]["state"] == "draining"
    assert two.local_request("POST", "/api/v1/instances/main:2/undrain", {})[0] == 202
    wait_for(lambda: [i["state"] for i in instances(two)] == ["ready", "ready"])
