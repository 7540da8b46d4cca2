"""Engines that stop while they have nothing to do: it is told, what comes goes to another
engine at once where there is one, and one that goes on in time is as before. A KV tier whose
disk fails is an alarm as long as it does."""
import os
import signal
import subprocess
import sys
import threading

import pytest

import rack as rack_module
from rack import BIN, SLOW, wait_for

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "tools"))

TEXT = "/v1/completions"
CONFIG = """
rack: cpu:6
model_roots: [{folder}]
models: {{moe: {{path: {folder}/moe}}}}
instances:
  one: {{model: moe, served_as: one, ctx: 256, threads: 1, kv: {{mib: 1}}, layout: {{tp: 2}},
    answer_ms: 1500, stuck_s: 60}}
  two: {{model: moe, served_as: two, ctx: 256, threads: 1, kv: {{mib: 1}}, replicas: 2,
    answer_ms: 1500, stuck_s: 60}}
  pools: {{model: moe, served_as: pools, mode: split, ctx: 256, threads: 1, kv: {{mib: 1}},
    answer_ms: 1500, stuck_s: 60, prefill: {{engines: 1}}, decode: {{engines: 1}}}}
"""
NAMES = ["one", "pools/decode", "pools/prefill", "two", "two:2"]


@pytest.fixture(scope="module")
def r(tmp_path_factory):
    folder = tmp_path_factory.mktemp("silent")
    tiny_models = pytest.importorskip("tiny_models")
    tiny_models.write(tiny_models.Spec(family="qwen3_moe"), str(folder / "moe"))
    (folder / "llmrackd.yaml").write_text(CONFIG.format(folder=folder))
    rack = rack_module.Rack("--config", str(folder / "llmrackd.yaml"), model=None)
    wait_for(lambda: states(rack) == dict.fromkeys(NAMES, "ready"), 60)
    yield rack
    assert rack.p.poll() is None, "the daemon ended during the tests: " + rack.logged()
    rack.stop()


def engines(rack):
    return {i["name"]: i for i in rack.local("/api/v1/instances")["instances"]}


def states(rack):
    return {k: i["state"] for k, i in engines(rack).items()}


def alarms(rack):
    return {a["id"]: a["text"] for a in rack.local("/api/v1/alarms")["alarms"]
            if not a["ended_ms"]}


def told(rack, name):
    """Results of the journal's rows of its signs of life, the first one first."""
    rows = sorted(rack.local("/api/v1/journal")["journal"], key=lambda row: row["id"])
    return [row["result"] for row in rows
            if row["what"] == "engine.silent" and row["detail"].startswith(f"{name}: ")]


def resumed(rack):
    text = rack.local_request("GET", "/metrics")[2].decode()
    return sum(float(x.rsplit(" ", 1)[1]) for x in text.splitlines()
               if x.startswith("llmrack_requests_resumed_total"))


def ask(rack, model, first=7):
    status, body, _ = rack.post(TEXT, {"model": model, "prompt": [first, 8, 9, 10] * 8,
                                       "max_tokens": 6, "temperature": 0, "ignore_eos": True})
    assert status == 200, body
    assert body["usage"]["completion_tokens"] == 6
    return body["choices"][0]["text"]


def order(rack, name, what, state):
    assert rack.local_request("POST", f"/api/v1/instances/{name}/{what}", {})[0] == 202
    wait_for(lambda: states(rack)[name] == state, 20)


def stop(rack, name):
    pid = engines(rack)[name]["pid"]
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: states(rack)[name] == "not answering", 20)
    assert "no sign of life" in engines(rack)[name]["error"]
    assert "no sign of life" in alarms(rack)[f"instance.silent {name}"]
    return pid


def go_on(rack, name, pid, state="ready"):
    os.kill(pid, signal.SIGCONT)
    wait_for(lambda: states(rack)[name] == state, 20)
    wait_for(lambda: f"instance.silent {name}" not in alarms(rack), 20)
    now = engines(rack)[name]
    assert (now["pid"], now["restarts"]) == (pid, 0)
    assert told(rack, name)[-2:] == ["failed", "ok"]


def test_the_other_replica_has_what_comes(r):
    """All of it, at once, though the one that stopped has less to do; its drain is shown too,
    and ends."""
    want = [ask(r, "one", k) for k in range(6)]
    for stopped in "two", "two:2":
        pid = stop(r, stopped)
        assert [ask(r, "two", k) for k in range(6)] == want
        now = engines(r)[stopped]
        assert now["state"] == "not answering" and now["live"] == 0
        assert r.get("/readyz")[0] == 200 and b"two" not in r.get("/readyz")[2]
        shown = subprocess.run([os.path.join(BIN, "llmctl"), "--socket", r.sock, "-c",
                                "show instances"], capture_output=True, text=True, timeout=60)
        assert shown.returncode == 0 and "not answering" in shown.stdout, shown
        go_on(r, stopped, pid)
    order(r, "two:2", "drain", "draining")
    pid = stop(r, "two:2")
    go_on(r, "two:2", pid, "draining")
    order(r, "two:2", "undrain", "ready")


def test_either_pool_is_passed_over(r):
    want = ask(r, "one", 3)
    for stopped in "pools/prefill", "pools/decode":
        pid = stop(r, stopped)
        assert ask(r, "pools", 3) == want
        pool = {p["engine"]: p for p in r.local("/api/v1/pools")["pools"]}[stopped]
        assert not pool["ready"]
        assert f"{stopped}: " in r.get("/readyz")[2].decode()  # as degraded
        go_on(r, stopped, pid)
        assert ask(r, "pools", 3) == want


@pytest.mark.parametrize("model, stopped", [
    ("two", "two"), ("two", "two:2"), ("pools", "pools/prefill"), ("pools", "pools/decode")])
def test_what_it_was_given_goes_on(r, model, stopped):
    """Before it is known to be silent: with another engine, long before stuck_s, and as it
    would have been. When it goes on nothing of it is left there."""
    want = {k: ask(r, "one", k) for k in range(8)}
    answers = {}
    before = resumed(r)
    pid = engines(r)[stopped]["pid"]
    other = {"two": "two:2", "two:2": "two"}.get(stopped)
    if other:  # all of them are given to the one
        order(r, other, "drain", "draining")
    os.kill(pid, signal.SIGSTOP)
    threads = [threading.Thread(target=lambda k=k: answers.__setitem__(k, ask(r, model, k)))
               for k in want]
    for t in threads:
        t.start()
    if other:
        wait_for(lambda: engines(r)[stopped]["live"] == len(want), 20)
        order(r, other, "undrain", "ready")
    for t in threads:
        t.join(50 * SLOW)
    assert answers == want
    assert engines(r)[stopped]["pid"] == pid
    go_on(r, stopped, pid)
    wait_for(lambda: not [k for k in r.local("/api/v1/kv")["kv"] if k["used"]], 20)
    assert not [i for i in engines(r).values() if i["live"] or i["running"] or i["waiting"]]
    # those of a prefill engine are still their decode engine's
    assert resumed(r) > before or stopped == "pools/prefill"


def test_the_only_engine(r):
    """What comes waits, and is answered when the engine goes on, or else by its next one. Each
    rank is a thread of one process: any of them stops all."""
    want = ask(r, "one", 4)
    answers = []
    pid = stop(r, "one")
    threads = [threading.Thread(target=lambda: answers.append(ask(r, "one", 4)))
               for _ in range(2)]
    threads[0].start()
    wait_for(lambda: engines(r)["one"]["live"] == 1, 20)
    go_on(r, "one", pid)
    threads[0].join(30 * SLOW)
    tasks = [int(t) for t in os.listdir(f"/proc/{pid}/task") if int(t) != pid]
    r.commit("instances.one.", stuck_s=2)
    os.kill(tasks[-1], signal.SIGSTOP)
    wait_for(lambda: states(r)["one"] == "not answering", 20)
    threads[1].start()
    threads[1].join(60 * SLOW)
    assert answers == [want] * 2
    assert engines(r)["one"]["pid"] != pid and engines(r)["one"]["restarts"] == 1
    assert "the engine has not answered for " in r.logged()
    wait_for(lambda: not alarms(r), 20)
