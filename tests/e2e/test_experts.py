"""Experts that can move: what is shown of them over REST and in llmctl, dry runs, orders,
and the same text whatever moves."""
import json
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

import rack as rack_module
from rack import BIN, SLOW, wait_for

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "tools"))

TEXT = "/v1/completions"
EXPERTS, RANKS, SLOTS = 8, 4, 3
CONFIG = """
rack: cpu:4
model_roots: [{root}]
models: {{moe: {{path: {path}}}}}
instances:
  main: {{model: moe, ctx: 512, step_tok: 64, kv: {{mib: 16}}, layout: {{adp: 4, ep: 4, emulate: "cpu:2x2"}},
          experts: {{spare: 1, policy: off, sample_ms: 100, affinity: 0.2}}}}
"""


@pytest.fixture(scope="module")
def moe(tmp_path_factory):
    tiny_models = pytest.importorskip("tiny_models")
    root = tmp_path_factory.mktemp("experts")
    tiny_models.write(tiny_models.Spec(family="qwen3_moe"), str(root / "moe"))
    (root / "llmrackd.yaml").write_text(CONFIG.format(root=root, path=root / "moe"))
    r = rack_module.Rack("--config", str(root / "llmrackd.yaml"), model=None)
    r.rows = Counter()  # that ran for the texts asked for
    yield r
    assert r.p.poll() is None, "the daemon ended during the tests: " + r.logged()
    r.stop()


def ask(rack, i, n=12):
    status, body, _ = rack.post(TEXT, {"prompt": f"{i} the inner heart of it", "max_tokens": n,
                                       "temperature": 0, "ignore_eos": True})
    assert status == 200, body
    u = body["usage"]
    if hasattr(rack, "rows"):
        rack.rows.update(prompt=u["prompt_tokens"] - u["prompt_tokens_details"]["cached_tokens"],
                         decode=u["completion_tokens"] - 1, asked=1)
    return body["choices"][0]["text"]


def shown(rack, path=""):
    (one,) = rack.local("/api/v1/experts" + path)["experts"]
    return one


def order(rack, what, **body):
    status, _, data = rack.local_request("POST", "/api/v1/experts/" + what, body)
    return status, json.loads(data)


def operation(rack, said):
    """The operation of an answer, when it has ended."""
    def ended():
        op = rack.local("/api/v1/operations/" + said["operation"])
        return op["state"] != "running" and op
    return wait_for(ended, 60)


def journal(rack, what):
    rows = rack.local("/api/v1/journal?limit=200")["journal"]
    return [r for r in rows if r["what"] == what]


def loaded(rack):
    """Requests, until the daemon has counted them: its loads are not zero any more."""
    def counted():
        ask(rack, 1)
        return sum(shown(rack)["layers"][0]["load"]) > 0
    wait_for(counted, 60)


def test_what_is_shown(moe):
    """Every layer with loads, the table as loaded, phases apart; they agree with each other."""
    loaded(moe)
    x = shown(moe)
    assert (x["instance"], x["n_experts"], x["n_devices"], x["n_slots"]) == (
        "main", EXPERTS, RANKS, SLOTS)
    assert x["device_ids"] == [f"cpu{i}" for i in range(RANKS)]
    assert x["policy"] == "off" and not x["frozen"] and x["plan"] == 0
    assert x["prefill_steps"] > 0 and x["decode_steps"] > 0
    assert [y["layer"] for y in x["layers"]] == list(range(x["n_layers"]))
    for y in x["layers"]:
        assert y["map"] == [0, 1, -1, 2, 3, -1, 4, 5, -1, 6, 7, -1] and y["copies"] == EXPERTS
        assert y["imbalance"] == pytest.approx(max(y["load"]) * EXPERTS / sum(y["load"]), rel=1e-3)
        assert y["balancedness"] == y["balancedness_loaded"]
        assert y["balancedness"] == pytest.approx(
            sum(y["devices"]) / RANKS / max(y["devices"]), rel=1e-3)
        assert sum(y["devices"]) == pytest.approx(sum(y["load"]), rel=1e-3)
        for phase in "prefill", "decode":
            assert sum(y[phase]["assignments"]) > 0 and y[phase]["imbalance"] >= 1
    m = moe.metrics()
    assert m['llmrack_expert_copies{instance="main",layer="0"}'] == EXPERTS
    assert 0 < m['llmrack_expert_balancedness{instance="main",layer="1"}'] <= 1
    assert m['llmrack_expert_imbalance{instance="main",layer="1"}'] >= 1
    assert m['llmrack_expert_balancedness_loaded{instance="main",layer="1"}'] <= 1
    (one,) = shown(moe, "?layer=1")["layers"]
    assert one["layer"] == 1
    assert moe.local_request("GET", "/api/v1/experts?instance=other")[0] == 404


TOP_K = 2


def test_counts_add_up(moe):
    """Every row that ran since the engine warmed up is counted by its kind, in each layer,
    once for each of its experts; of the last layer only rows that give a token run. By
    expert, by layer and in /metrics it is the same."""
    loaded(moe)
    for i in range(3):
        ask(moe, 100 + i, 9)
    want = [[moe.rows["prompt"] * TOP_K, moe.rows["decode"] * TOP_K] for _ in shown(moe)["layers"]]
    want[-1][0] = moe.rows["asked"] * TOP_K

    def sums():
        return [[sum(y[p]["assignments"]) for p in ("prefill", "decode")]
                for y in shown(moe)["layers"]]
    try:
        wait_for(lambda: sums() == want, 30)
    finally:
        assert sums() == want
    x, m = shown(moe), moe.metrics()
    for y in x["layers"]:
        for phase in "prefill", "decode":
            p, at = y[phase], f'{{instance="main",layer="{y["layer"]}",phase="{phase}"}}'
            for key, name, unit in (("assignments", "assignments", 1), ("overflow", "overflow", 1),
                                    ("replica_hits", "replica_hits", 1),
                                    ("service_us", "service_seconds", 1e-6),
                                    ("queue_us", "queue_seconds", 1e-6)):
                assert len(p[key]) == EXPERTS
                assert m[f"llmrack_expert_{name}_total" + at] == pytest.approx(
                    sum(p[key]) * unit, rel=1e-3), key
            for key in "dispatch_bytes", "combine_bytes":
                assert m[f"llmrack_expert_{key}_total" + at] == p[key] > 0
            for key in "dispatch", "combine":
                assert m[f"llmrack_expert_{key}_seconds_total" + at] == pytest.approx(
                    p[key + "_us"] * 1e-6)
            for key in "overflow_moved", "overflow_next", "overflow_dropped":
                assert m[f"llmrack_expert_{key}_total" + at] == p[key] == 0
            assert sum(p["overflow"]) == sum(p["replica_hits"]) == 0  # all is where it was loaded
            assert all((a > 0) == (us > 0) for a, us in zip(p["assignments"], p["service_us"]))
    assert (x["moves_measured"], x["predicted_us"], x["realised_us"]) == (0, 0, 0)


def test_plan_apply_and_the_same_text(moe):
    """A dry run moves nothing; what it says is what apply does, while requests run; their
    text stays, and so does that of later ones."""
    loaded(moe)
    with ThreadPoolExecutor(4) as pool:
        want = list(pool.map(lambda i: ask(moe, i, 24), range(8)))
        for method in "planner", "eplb", "increment":
            before = [y["map"] for y in shown(moe)["layers"]]
            status, plan = order(moe, "plan", method=method)
            assert status == 200 and plan["method"] == method
            assert [y["map"] for y in shown(moe)["layers"]] == before
            assert sum(y["moves"] for y in plan["layers"]) == len(plan["moves"])
            assert plan["bytes"] == sum(m["bytes"] for m in plan["moves"])
            if method == "planner":  # experts chosen together come to one host
                assert 0 < plan["apart_before"] <= 1 and plan["apart_after"] < plan["apart_before"]
            answers = [pool.submit(ask, moe, i, 24) for i in range(8)]
            status, said = order(moe, "apply", method=method, instance="main")
            assert status == 202, said
            op = operation(moe, said)
            assert op["state"] == "done" and op["kind"] == "experts.apply", op
            assert [a.result() for a in answers] == want
    x = shown(moe)
    assert x["moves_done"] > 0 and x["moves_aborted"] == 0 and x["bytes_moved"] > 0
    assert any(y["copies"] > EXPERTS for y in x["layers"])
    wait_for(lambda: ask(moe, 1) and sum(sum(y["decode"]["replica_hits"]) for y in shown(moe)["layers"]),
             60)
    events = moe.local("/api/v1/experts/history?limit=64")["history"]
    (first,) = [e for e in events if e["what"] == "plan" and e["plan"] == 1 and
                e["predicted_us"] is not None]
    assert first["bytes"] > 0 and first["instance"] == "main"
    assert any(e["what"] == "move" and e["bytes"] > 0 for e in events)
    rows = journal(moe, "experts.apply")
    assert len(rows) == 3 and all(r["actor"] != "daemon" and r["subject"] == "main" for r in rows)


UPCYCLED = "var/models/SmolLM2-135M-8x-upcycled.gguf"
MANY = """
rack: cpu:4
model_roots: [{root}]
models: {{moe: {{path: {path}}}}}
instances:
  main: {{model: moe, ctx: 512, step_tok: 64, kv: {{mib: 128}}, layout: {{adp: 4, ep: 4}},
          experts: {{spare: 1, policy: off, sample_ms: 200, copy_share: 0.5, routing: {routing}}}}}
"""


@pytest.mark.skipif(not (os.environ.get("LLMRACK_LONG") and os.path.exists(UPCYCLED)),
                    reason="LLMRACK_LONG=1 and the upcycled demo model")
@pytest.mark.parametrize("routing", ["static", "least-loaded", "probabilities"])
def test_greedy_text_through_a_hundred_moves(tmp_path, routing):
    """The upcycled demo model under load: the planner's and EPLB's plans in turn, of two
    topics, until a hundred moves are done; no text changes."""
    path = os.path.realpath(UPCYCLED)
    (tmp_path / "c.yaml").write_text(MANY.format(root=os.path.dirname(path), path=path,
                                                 routing=routing))
    r = rack_module.Rack("--config", str(tmp_path / "c.yaml"), model=None)
    topics = ["{i} + 7 = {j}. 12 + 8 = 20. 13 + 9 =", "Chapter {i}. Once upon a time there was a"]

    def text(k):
        prompt = topics[k % 2].format(i=k + 11, j=k + 18)
        status, body, _ = r.post(TEXT, {"prompt": prompt, "max_tokens": 24, "temperature": 0,
                                        "ignore_eos": True})
        assert status == 200, body
        return body["choices"][0]["text"]

    try:
        with ThreadPoolExecutor(6) as pool:
            want = list(pool.map(text, range(12)))
            turn = 0
            while shown(r, "?layer=0")["moves_done"] < 100:
                assert turn < 12, shown(r, "?layer=0")
                said = order(r, "apply", method=["planner", "eplb"][turn % 2])[1]
                of = range(turn % 2, 12, 2)  # one topic: the next plan's loads are its
                while True:
                    assert list(pool.map(text, of)) == [want[k] for k in of]
                    op = r.local("/api/v1/operations/" + said["operation"])
                    if op["state"] != "running":
                        break
                assert op["state"] == "done", op
                turn += 1
            assert list(pool.map(text, range(12))) == want
        assert shown(r, "?layer=0")["moves_aborted"] == 0
    finally:
        r.stop()


@pytest.mark.skipif(not (os.environ.get("LLMRACK_LONG") and os.path.exists(UPCYCLED)),
                    reason="LLMRACK_LONG=1 and the upcycled demo model")
def test_affinity_keeps_rows_on_their_host(tmp_path):
    """Two hosts of four, 8 experts in 16 slots: beside a plan of as many copies by the same
    planner without affinity, one with it sends a fifth fewer bytes to the other host, for
    the same prompts. Twice the same plan gives the same bytes within 3 %."""
    path = os.path.realpath(UPCYCLED)
    text = MANY.format(root=os.path.dirname(path), path=path, routing="least-loaded")
    for a, b in (("cpu:4", "cpu:8"), ("mib: 128", "mib: 256"),
                 ("adp: 4, ep: 4", 'adp: 8, ep: 8, emulate: "cpu:2x4"')):
        assert a in text
        text = text.replace(a, b)
    (tmp_path / "c.yaml").write_text(text)
    r = rack_module.Rack("--config", str(tmp_path / "c.yaml"), model=None)
    topics = ["{i}. We add numbers: 11 + 7 = 18. 12 + 8 = 20. 13 + 9 =",
              "Chapter {i}. Once upon a time there was a small village by the sea. The"]

    def travelled():
        rows = [c for c in r.local("/api/v1/ranks")["comm"]
                if (c["group"], c["call"]) == ("ep", "all-to-all")]
        return sum(c["cut_bytes"] for c in rows), sum(c["bytes"] for c in rows)

    def one(i):
        assert r.post(TEXT, {"prompt": topics[i % 2].format(i=i), "max_tokens": 24,
                             "temperature": 0, "ignore_eos": True})[0] == 200

    def cut(start):
        before = travelled()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(one, range(start, start + 48)))
        return [b - a for a, b in zip(before, travelled())]

    def planned():
        """The planner's map by the loads of both topics; copies; what was said of it."""
        cut(1000)
        plan = order(r, "plan", method="planner")[1]
        said = order(r, "apply", method="planner")[1]

        def ended():
            op = r.local("/api/v1/operations/" + said["operation"])
            return op["state"] != "running" and op
        op = wait_for(ended, 900, 0.5)
        assert op["state"] == "done", op
        return sum(y["copies"] for y in shown(r)["layers"]), plan

    try:
        copies, _ = planned()
        plain, again = cut(2000), cut(3000)
        r.commit("instances.main.experts.", 120, affinity=0.2)  # the engine may begin anew
        wait_for(r.is_ready, 60)
        with_affinity, plan = planned()
        near, near_again = cut(2000), cut(3000)
        print(f"bytes to another host, and in all: {plain} and {again} without affinity, "
              f"{near} and {near_again} with it; foreseen {plan['apart_after']:.3f} of the ways "
              f"(as loaded {plan['apart_before']:.3f})")
        assert with_affinity == copies == 16 * shown(r, "?layer=0")["n_layers"]
        for x, y in (plain, again), (near, near_again):
            assert abs(x[0] - y[0]) < 0.03 * x[0]
        assert near[0] + near_again[0] < 0.8 * (plain[0] + again[0])
        assert plan["apart_after"] < 0.5 * plan["apart_before"]
    finally:
        r.stop()


def test_freeze_and_thaw(moe):
    assert order(moe, "freeze", reason="a test") == (200, {"instance": "main", "frozen": True})
    assert shown(moe)["frozen"]
    status, said = order(moe, "apply")
    assert status == 409 and "frozen" in said["error"]["message"]
    assert order(moe, "freeze")[0] == 409
    assert order(moe, "plan")[0] == 200  # a dry run moves nothing
    assert order(moe, "thaw")[0] == 200 and not shown(moe)["frozen"]
    assert "a test" in journal(moe, "experts.freeze")[0]["detail"]
    assert journal(moe, "experts.thaw")
    for body, says in ({"method": "best"}, "no method"), ({"instance": "x"}, "'x'"), ({"a": 1}, "'a'"):
        status, said = order(moe, "plan", **body)
        assert status in (400, 404) and says in said["error"]["message"], said
    key = moe.key("read")
    assert moe.request("POST", "/api/v1/experts/apply", {}, key)[0] == 403


def ctl(rack, *words):
    out = subprocess.run([os.path.join(BIN, "llmctl"), "-y", "--socket", rack.sock, *words],
                         capture_output=True, text=True, timeout=60 * SLOW)
    return out.returncode, out.stdout + out.stderr


def test_verbs(moe):
    """Without a terminal the map is of digits; a layer is devices by experts."""
    loaded(moe)
    code, text = ctl(moe, "experts", "show")
    rows = [line.split() for line in text.splitlines()]
    head = rows.index(["LAYER", "R", "BEFORE", "NOW", "COPIES", "EXPERTS", "DEVICES"])
    line = rows[head + 1]
    assert code == 0 and line[0] == "0" and len(line[5]) == EXPERTS and len(line[6]) == RANKS
    assert set(line[5]) <= set(".0123456789") and "\x1b" not in text
    code, text = ctl(moe, "experts", "show", "1")
    assert code == 0 and "layer 1  R " in text
    assert sum(line.startswith("cpu") for line in text.splitlines()) == RANKS
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("ROWS "))  # by kind of rows ..
    assert [line.split()[0] for line in lines[at + 1:at + 3]] == ["prefill", "decode"]
    assert all(line.split()[1] not in ("0", "-") for line in lines[at + 1:at + 3])
    at = next(i for i, line in enumerate(lines) if line.startswith("EXPERT "))  # .. and by expert
    assert sorted(line.split()[0] for line in lines[at + 1:at + 1 + EXPERTS]) == [
        f"E{i}" for i in range(EXPERTS)]
    assert ctl(moe, "experts", "show", "99")[0] != 0
    assert "saves a step" in ctl(moe, "experts", "plan", "planner")[1]
    code, text = ctl(moe, "experts", "apply", "planner")
    assert code == 0 and ("moves done" in text or "nothing to move" in text), text
    assert "PREDICTED" in ctl(moe, "experts", "history")[1]
    assert ctl(moe, "experts", "freeze", "reason", "a test") == (0, "experts of main are frozen\n")
    assert ctl(moe, "experts", "thaw") == (0, "experts of main may move\n")
