"""Experts that move by themselves: a topic that loads some of them is answered, and what
goes wrong in mid-move leaves the old map. The text stays the same through all of it.

MOE_MODEL=path takes another mixture of experts than the tiny one that is made here."""
import json
import os
import signal
import sys
import threading

import pytest

import rack as rack_module
from rack import BIN, SLOW, Stream, wait_for

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "tools"))

TEXT = "/v1/completions"
STATE_MS = 3000  # the deadline of each state of a move
SHARED = os.environ.get("SHARED", "../shared")
H200 = os.path.join(SHARED, "topologies", "nccl-hgx-h200-8gpu-4nvs.xml")
CONFIG = """
rack: {rack}
model_roots: [{root}]
models: {{moe: {{path: {path}}}}}
instances:
  main: {{model: moe, ctx: 512, step_tok: 64, kv: {{mib: 64}}, layout: {{adp: 4, ep: 4}},
          experts: {{spare: 1, policy: off, sample_ms: 100, share_s: 1, dwell_s: 1, enter: 0.97,
                     leave: 0.99, min_gain: 0.01, horizon_s: 86400, copy_share: 0.5}}}}
"""


def start(root, rack="cpu:4"):
    """A daemon whose engine has the points at which a test stops it."""
    engine = os.path.join(BIN, "llmrack-engine-faults")
    if not os.path.exists(engine):
        pytest.skip(f"not there: {engine}")
    path = os.environ.get("MOE_MODEL")
    if not path:
        tiny_models = pytest.importorskip("tiny_models")
        path = str(root / "moe")
        tiny_models.write(tiny_models.Spec(family="qwen3_moe"), path)
    path = os.path.realpath(path)
    (root / "llmrackd.yaml").write_text(
        CONFIG.format(rack=rack, root=os.path.dirname(path), path=path))
    fault_file = str(root / "fault")
    os.environ.update(LLMRACK_FAULT_FILE=fault_file, LLMRACK_MOVE_STATE_MS=str(STATE_MS * SLOW))
    try:
        r = rack_module.Rack("--engine", engine, "--config", str(root / "llmrackd.yaml"),
                             model=None)
    finally:
        del os.environ["LLMRACK_FAULT_FILE"], os.environ["LLMRACK_MOVE_STATE_MS"]
    r.fault_file = fault_file
    return r


@pytest.fixture(scope="module")
def moe(tmp_path_factory):
    r = start(tmp_path_factory.mktemp("moves"))
    yield r
    assert r.p.poll() is None, "the daemon ended during the tests: " + r.logged()
    r.stop()


def body(i, n):
    return {"prompt": f"{i} a topic that is hot", "max_tokens": n, "temperature": 0,
            "ignore_eos": True}


def ask(rack, i, n=16):
    status, said, _ = rack.post(TEXT, body(i, n))
    assert status == 200, said
    return said["choices"][0]["text"]


def shown(rack):
    return rack.local("/api/v1/experts")["experts"][0]


def maps(rack):
    return [y["map"] for y in shown(rack)["layers"]]


def history(rack, what):
    return [e for e in rack.local("/api/v1/experts/history?limit=64")["history"]
            if e["what"] == what]


def journal(rack, what):
    rows = rack.local("/api/v1/journal?limit=300")["journal"]
    return [(r["result"], r["detail"]) for r in rows if r["what"] == what]


def apply(rack, method="planner"):
    """An operator's plan that has something to do; its operation."""
    status, _, said = rack.local_request("POST", "/api/v1/experts/apply", {"method": method})
    assert status == 202, said
    return json.loads(said)["operation"]


def ended(rack, operation):
    def over():
        op = rack.local("/api/v1/operations/" + operation)
        return op["state"] != "running" and op
    return wait_for(over, 60)


def hold(rack, point, who, action):
    """The next time that the engine comes to the point it stops there for so many ms, 0: for
    ever; or the whole of it is killed, or stopped."""
    with open(rack.fault_file + ".new", "w") as f:
        f.write(f"{point} {who} {action}")
    os.rename(rack.fault_file + ".new", rack.fault_file)


def held(rack):
    return not os.path.exists(rack.fault_file)


def counted(rack):
    """Requests, until loads are known."""
    def known():
        ask(rack, 1, 4)
        return sum(shown(rack)["layers"][0]["load"]) > 0
    wait_for(known, 60)


class Busy:
    """Requests all the time; every text as it was."""

    def __init__(self, rack, want):
        self.rack, self.want, self.wrong, self.end = rack, want, [], False
        self.asked = 0
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(2)]

    def run(self, at):
        while not self.end:
            for i in range(at, len(self.want), len(self.threads)):
                try:
                    text = ask(self.rack, i)
                except Exception as e:  # told by the test's own thread
                    text = repr(e)
                self.asked += 1
                if text != self.want[i]:
                    self.wrong.append((i, text, self.want[i]))
                    return

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *exc):
        self.end = True
        for t in self.threads:
            t.join()


def test_a_hot_topic_is_answered(moe):
    """Under auto copies follow the topic; not one token differs, and it is all told."""
    want = [ask(moe, i) for i in range(4)]
    loaded = maps(moe)
    with Busy(moe, want) as busy:
        moe.commit("instances.main.experts.", policy="auto")
        wait_for(lambda: busy.wrong or (shown(moe)["moves_done"] and not shown(moe)["plan"] and
                                        history(moe, "outcome")), 60)
        moe.commit("instances.main.experts.", policy="off")
        wait_for(lambda: not shown(moe)["plan"], 60)
    assert not busy.wrong and busy.asked > 0
    assert [ask(moe, i) for i in range(4)] == want
    x, m = shown(moe), moe.metrics()
    assert x["moves_aborted"] == 0 and x["bytes_moved"] > 0
    assert x["slack_us"] is None and x["step_bytes"] >= x["expert_bytes"]  # no objective
    assert maps(moe) != loaded
    changed = [y for y, was in zip(x["layers"], loaded) if y["map"] != was]
    assert any(y["balancedness"] > y["balancedness_loaded"] for y in changed)
    assert any(r == "ok" and "predicted" in d for r, d in journal(moe, "experts.plan"))
    moves = journal(moe, "experts.move")
    assert all(r == "ok" and ("steps took" in d or "no step ran" in d) for r, d in moves)
    assert any("steps took" in d for r, d in moves)
    told = history(moe, "outcome")
    assert told[-1]["predicted_us"] is not None and told[-1]["realised_us"] is not None
    gains = journal(moe, "experts.gain")
    assert gains and all(r == "ok" and "realised" in d for r, d in gains)
    measured = [e for e in history(moe, "move") if e["realised_us"] is not None]
    assert 0 < len(measured) <= x["moves_measured"] <= x["moves_done"]
    assert m['llmrack_expert_moves_measured_total{instance="main"}'] == x["moves_measured"]
    for key in "predicted", "realised":
        assert m[f'llmrack_expert_gain_{key}_seconds{{instance="main"}}'] == pytest.approx(
            x[key + "_us"] / 1e6, rel=1e-3)
    assert m['llmrack_expert_moves_total{result="done"}'] == x["moves_done"]
    assert "llmrack_expert_added_step_seconds" in m
    for y in x["layers"]:
        labels = f'{{instance="main",layer="{y["layer"]}"}}'
        assert m["llmrack_expert_copies" + labels] == y["copies"]
        assert 0 < m["llmrack_expert_balancedness" + labels] <= 1
        assert m["llmrack_expert_imbalance" + labels] >= 1
        for phase in "prefill", "decode":
            at = f'{{instance="main",layer="{y["layer"]}",phase="{phase}"}}'
            assert m["llmrack_expert_assignments_total" + at] >= sum(y[phase]["assignments"]) > 0
            assert m["llmrack_expert_dispatch_bytes_total" + at] > 0
    assert sum(v for k, v in m.items() if k.startswith("llmrack_expert_rank_load")) > 0


def test_a_stalled_move_is_given_up(moe):
    """The loader stops: at its deadline the move ends, the old map stays, and it is said."""
    want, before = ask(moe, 0), None
    counted(moe)
    before, stalled = maps(moe), shown(moe)["moves_stalled"]
    hold(moe, "expert_load", 0, 2 * STATE_MS * SLOW)
    op = ended(moe, apply(moe, "eplb"))
    assert op["state"] == "failed" and "loading: not done within" in op["message"], op
    assert maps(moe) == before and shown(moe)["moves_stalled"] == stalled + 1
    assert any(r == "failed" and "the old map stays" in d for r, d in journal(moe, "experts.move"))
    assert ask(moe, 0) == want
    assert held(moe)
    assert ended(moe, apply(moe, "eplb"))["state"] == "done"  # when the loader is back
    assert ask(moe, 0) == want


def on_device(rack, rank):
    """What stands in the slots of a rank, over all layers."""
    x = shown(rack)
    return {e for y in x["layers"] for e in y["map"][rank * x["n_slots"]:(rank + 1) * x["n_slots"]]}


def test_experts_leave_a_cordoned_device(moe):
    """Its copies move elsewhere while requests run, and none comes back before it is in
    service again; the text stays."""
    want = [ask(moe, i) for i in range(4)]
    counted(moe)
    before = shown(moe)
    assert on_device(moe, 3) != {-1}
    path = "/api/v1/devices/cpu3/"
    with Busy(moe, want) as busy:
        assert moe.local_request("POST", path + "cordon", {"reason": "a fan"})[0] == 200
        moe.commit("instances.main.experts.", policy="auto")
        wait_for(lambda: busy.wrong or (on_device(moe, 3) == {-1} and not shown(moe)["plan"]), 60)
        moe.commit("instances.main.experts.", policy="off")
        wait_for(lambda: not shown(moe)["plan"], 60)
        assert on_device(moe, 3) == {-1}
        op = ended(moe, apply(moe, "planner"))  # an operator's plan leaves it alone too
        assert op["state"] == "done" and on_device(moe, 3) == {-1}, op
        assert moe.local_request("POST", path + "uncordon", {})[0] == 200
        op = ended(moe, apply(moe, "planner"))
        assert op["state"] == "done" and on_device(moe, 3) != {-1}, op
    assert not busy.wrong and busy.asked > 0
    x = shown(moe)
    assert x["moves_done"] > before["moves_done"]
    assert x["moves_aborted"] == before["moves_aborted"]
    assert any("are out or missing" in d for r, d in journal(moe, "experts.plan") if r == "ok")
    assert [ask(moe, i) for i in range(4)] == want


@pytest.mark.parametrize("point,who", [("expert_load", 0), ("expert_flip", 2), ("expert_free", 1)])
def test_an_engine_is_killed_in_mid_move(moe, point, who):
    """Its requests go on with the next engine, which has the experts as loaded; not one
    token is lost or differs. The plan is over, and nothing of it is left."""
    pid, plain = moe.instance()["pid"], ask(moe, 3, 200)
    counted(moe)
    loaded = [y["map"] for y in shown(moe)["layers"]]
    streams = [Stream(moe, body(3, 200)) for _ in range(2)]
    for s in streams:
        wait_for(s.begun)
    hold(moe, point, who, 0)
    op = apply(moe, "eplb" if point == "expert_load" else "planner")
    wait_for(lambda: held(moe))
    os.kill(pid, signal.SIGKILL)
    for s in streams:
        assert "".join(f["choices"][0]["text"] for f in s.frames()[:-1]) == plain
    back = wait_for(lambda: moe.is_ready() and moe.instance()["pid"] not in (0, pid) and
                    shown(moe), 60)
    assert back["plan"] == 0 and back["moves"] == [] and back["moves_done"] == 0
    assert ended(moe, op)["state"] == "failed"
    assert any("ended with its engine" in d for r, d in journal(moe, "experts.plan"))
    first = list(range(8))
    for y in back["layers"]:
        if not os.environ.get("MOE_MODEL"):
            assert [e for e in y["map"] if e >= 0] == first, (loaded, y)
        assert y["copies"] == len(set(e for e in y["map"] if e >= 0))
    assert ask(moe, 3, 200) == plain


def without_gpu(path, device):
    """The recorded rack again, without one GPU."""
    lines = path.read_text().split("\n")
    first = next(i for i, s in enumerate(lines) if f'busid="{device}"' in s)
    last = next(i for i in range(first, len(lines)) if "</gpu>" in lines[i]) + 1
    path.write_text("\n".join(lines[:first] + lines[last + 1:]))


def test_a_device_is_lost_in_mid_move(tmp_path):
    """While a move is being loaded a device to which its plan writes is lost: the plan is
    called back, what has flipped stays and is all that is shown; then the experts of the
    lost device go elsewhere. The text stays."""
    if not os.path.exists(H200):
        pytest.skip("no recorded topologies")
    file = tmp_path / "rack.xml"
    file.write_bytes(open(H200, "rb").read())
    r = start(tmp_path, file)
    try:
        want = [ask(r, i) for i in range(4)]
        counted(r)
        loaded = maps(r)
        plan = json.loads(r.local_request("POST", "/api/v1/experts/plan",
                                          {"method": "eplb"})[2])
        rank = plan["moves"][-1]["device"]
        hold(r, "expert_load", 0, 1000 * SLOW)
        op = apply(r, "eplb")
        wait_for(lambda: held(r), 60)
        device = shown(r)["device_ids"][rank]
        without_gpu(file, device)
        os.kill(r.p.pid, signal.SIGHUP)
        wait_for(lambda: device not in {d["id"] for d in r.local("/api/v1/devices")["devices"]}, 60)
        with Busy(r, want) as busy:
            op = ended(r, op)
            assert op["state"] == "failed" and f"rank {rank}, which is out" in op["message"], op
            x = shown(r)
            assert x["plan"] == 0 and x["moves"] == [] and x["moves_done"] < len(plan["moves"])
            n = x["moves_done"]
            moved = {m["layer"] for m in plan["moves"] if m["group"] < n}
            for y, was in zip(x["layers"], loaded):
                assert y["map"] == was or y["layer"] in moved
                assert set(y["map"]) - {-1} == set(range(x["n_experts"]))
            assert any(f"rank {rank}, which is out" in d
                       for _, d in journal(r, "experts.call-back"))
            r.commit("instances.main.experts.", policy="auto")
            wait_for(lambda: busy.wrong or (on_device(r, rank) == {-1} and not shown(r)["plan"]),
                     60)
        assert not busy.wrong and busy.asked > 0
        assert [ask(r, i) for i in range(4)] == want
        for y in shown(r)["layers"]:
            assert set(y["map"]) - {-1} == set(range(x["n_experts"]))
    finally:
        assert r.p.poll() is None, "the daemon ended during the test: " + r.logged()
        r.stop()


def apply_most(rack):
    """The plan from nothing that has most to load."""
    def bytes_of(method):
        status, _, said = rack.local_request("POST", "/api/v1/experts/plan", {"method": method})
        assert status == 200, said
        return json.loads(said)["bytes"]
    return apply(rack, max(("eplb", "planner"), key=bytes_of))


def stopped(pid):
    with open(f"/proc/{pid}/stat") as f:
        return f.read().rsplit(")", 1)[1].split()[0] == "T"


POINTS = [("loading", "expert_load", 0), ("verifying", "expert_check", 0)] + [
    (state, point, who) for who in (0, 3)
    for state, point in (("warming", "expert_warm"), ("ready", "expert_vote"),
                         ("flip", "expert_turn"), ("flip", "expert_flip"),
                         ("freed", "expert_free"))]
SHORT = [("ready", "expert_vote", 3, "stop"), ("flip", "expert_flip", 0, "slow")]


@pytest.mark.parametrize("state,point,who,action", [
    pytest.param(*p, a, marks=[] if (*p, a) in SHORT else pytest.mark.skipif(
        not os.environ.get("LLMRACK_LONG"), reason="all of them with LLMRACK_LONG=1"))
    for p in POINTS for a in ("kill", "stop", "slow")])
def test_struck_at_a_state(moe, state, point, who, action):
    """The loader or a rank is slow, or its process stopped or killed, at a state of a move:
    the map is the old one or the new one, no token is lost, and the next plan is made."""
    wait_for(moe.is_ready, 120)
    pid, plain = moe.instance()["pid"], ask(moe, 3, 100)
    counted(moe)
    before = shown(moe)
    streams = [Stream(moe, body(3, 100)) for _ in range(2)]
    for s in streams:
        s.sock.settimeout(120 * SLOW)  # an engine that ended often is begun again later
        wait_for(s.begun)
    hold(moe, point, who, STATE_MS // 6 if action == "slow" else action)
    op = apply_most(moe)
    wait_for(lambda: held(moe))
    if action == "stop":
        wait_for(lambda: stopped(pid))
        # the daemon may have given it up by then: requests go on with the next one
        threading.Timer(1.3 * STATE_MS * SLOW / 1000, lambda: os.kill(pid, signal.SIGCONT)).start()
    for s in streams:
        s.thread.join(120 * SLOW)
        assert "".join(f["choices"][0]["text"] for f in s.frames()[:-1]) == plain
    op = ended(moe, op)
    after = wait_for(lambda: moe.is_ready() and moe.instance()["pid"] and shown(moe), 60)
    same = moe.instance()["pid"] == pid
    assert same or action != "slow"
    assert not same or action != "kill"
    assert after["plan"] == 0 and after["moves"] == []
    if action == "slow":
        assert op["state"] == "done" and after["moves_aborted"] == before["moves_aborted"]
    elif op["state"] == "failed" and same:
        assert state in op["message"] and "not done within" in op["message"], op
        assert state not in ("flip", "freed")
    elif op["state"] == "failed":
        assert any("ended with its engine" in d for r, d in journal(moe, "experts.plan"))
    for y in after["layers"]:  # a map by the rules, whichever
        slots = [y["map"][i:i + after["n_slots"]]
                 for i in range(0, len(y["map"]), after["n_slots"])]
        for device in slots:
            held_by = [e for e in device if e >= 0]
            assert len(set(held_by)) == len(held_by), y
        assert {e for e in y["map"] if e >= 0} == set(range(after["n_experts"])), y
    assert ask(moe, 3, 100) == plain
    counted(moe)
    assert ended(moe, apply_most(moe))["state"] == "done"
    assert ask(moe, 3, 100) == plain
