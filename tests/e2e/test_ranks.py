"""Many ranks: what the daemon shows of them, layouts that are refused before anything is
stopped, where ranks are placed, and what happens when one of them goes wrong."""
import json
import os
import re
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import rack as rack_module
from rack import BIN, MODEL, SLOW, Stream, wait_for

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "tools"))

TEXT = "/v1/completions"
ASK = {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
HIDDEN, LAYERS = 576, 30  # of the demo model
CONFIG = f"""
rack: cpu:8
model_roots: [{os.path.dirname(os.path.realpath(MODEL))}]
models: {{small: {{path: {os.path.realpath(MODEL)}}}}}
instances:
  main: {{model: small, step_tok: 64, kv: {{mib: 16}}, layout: {{tp: 3}}}}
"""


@pytest.fixture(scope="module")
def mesh(tmp_path_factory):
    path = tmp_path_factory.mktemp("ranks") / "llmrackd.yaml"
    path.write_text(CONFIG)
    r = rack_module.Rack("--config", str(path), model=None)
    yield r
    assert r.p.poll() is None, "the daemon ended during the tests: " + r.logged()
    r.stop()


def ranks(rack):
    return rack.local("/api/v1/ranks?instance=main")["ranks"]


def comm(rack):
    return {(c["rank"], c["group"], c["call"]): c for c in rack.local("/api/v1/ranks")["comm"]}


def main(rack):
    return rack.local("/api/v1/instances")["instances"][0]


def journal(rack, what):
    rows = rack.local("/api/v1/journal?limit=200")["journal"]
    return [r["detail"] for r in rows if r["what"] == what]


def check(rack, **directives):
    """What a commit of these directives of the instance would do."""
    sets = [{"path": "instances.main." + k.replace("__", "."), "value": v}
            for k, v in directives.items()]
    status, _, body = rack.local_request("PATCH", "/api/v1/config/draft", {"set": sets})
    assert status == 200, body
    return json.loads(body)


def commit(rack, **directives):
    rack.commit("instances.main.", **directives)
    wait_for(lambda: {i["state"] for i in rack.local("/api/v1/instances")["instances"]} == {"ready"})


def test_what_a_rank_holds(mesh):
    """Three ranks, each with a third of the model, where the ledger said."""
    rows = wait_for(lambda: [r for r in ranks(mesh) if r["kv_ledger_bytes"]])
    assert [(r["rank"], r["at"], r["device"]) for r in rows] == [
        (i, f"tp{i}", f"cpu{i}") for i in range(3)]
    for r in rows:
        assert r["instance"] == "main" and r["generation"] == 1
        for part in "weight", "kv", "scratch":
            held, counted = r[part + "_bytes"], r[part + "_ledger_bytes"]
            assert 0.8 * counted < held < 1.01 * counted, (part, r)
    whole = sum(r["weight_bytes"] for r in rows)
    assert whole == main(mesh)["weight_bytes"]
    devices = mesh.local("/api/v1/devices")["devices"]
    assert {d["id"]: d["ranks"] for d in devices} == {
        f"cpu{i}": [f"main/{i} tp{i}"] if i < 3 else [] for i in range(8)}


def test_bytes_and_time_of_collectives(mesh):
    """A step's all-reduces are two a layer and one of the embedding, each rank reads
    2 (p - 1) / p of the rows; the scrape says the same."""
    before, steps = comm(mesh), mesh.metric("llmrack_steps_total")
    busy = [r["busy_s"] for r in ranks(mesh)]
    assert sum(r["straggler"] for r in ranks(mesh)) == pytest.approx(len(busy), rel=1e-3)
    status, body, _ = mesh.post(TEXT, ASK)
    assert status == 200
    after, steps = comm(mesh), mesh.metric("llmrack_steps_total") - steps
    u = body["usage"]
    rows = u["total_tokens"] - 1  # of the last token no step was made
    sums = rows * (2 * LAYERS + 1) - 2 * (u["prompt_tokens"] - 1)  # the last layer: one row
    for i in range(3):
        a, b = after[i, "tp", "all-reduce"], before[i, "tp", "all-reduce"]
        assert a["calls"] - b["calls"] == steps * (2 * LAYERS + 1)
        assert a["bytes"] - b["bytes"] == sums * HIDDEN * 4 * 2 * 2 / 3
        assert 0 <= a["wait_ms"] <= a["ms"]
        assert b["link_ms"] < a["link_ms"] and 0 < a["link_share"] <= 1
    for r, was in zip(ranks(mesh), busy):
        assert r["busy_s"] > was and 0 < r["busy_share"] <= 1 and 0 <= r["wait_share"] <= 1
    m = mesh.metrics()
    for i in range(3):
        who = f'rank="{i}"'
        assert m[f'llmrack_link_busy_seconds_total{{{who},group="tp",call="all-reduce"}}'] > 0
        assert m[f'llmrack_comm_bytes_total{{{who},group="tp",call="all-reduce"}}'] == \
            after[i, "tp", "all-reduce"]["bytes"]
        assert m[f'llmrack_rank_memory_bytes{{{who},part="weights"}}'] == \
            ranks(mesh)[i]["weight_bytes"]


@pytest.mark.parametrize("layout,says", [
    (dict(layout__tp=5), "tp 5 does not divide the model's 9 attention heads"),
    (dict(layout__tp=3, layout__ep=3), r"ep 3 \(tp 3\): a dense model has no experts"),
    (dict(layout__cp=2, layout__cp_method="ulysses"),
     "over 2 cp ranks does not divide a rank's 3 attention heads"),
    (dict(layout__cp=4, layout__cp_method="usp", layout__cp_u=3), "cp 4, cp_u 3"),
    (dict(layout__pp=31), "pp 31|31 stages"),
    (dict(layout__pp=3), "9 ranks and 8 devices in service"),
    (dict(layout__auto=True), "the planner chooses"),
    (dict(layout__tp=1, round_as__tp=2), r"2 tp ranks \(round_as.tp\) could not share the model"),
    (dict(round_as__tp=9), r"3 tp ranks cannot round as 9 \(round_as.tp\)"),
    (dict(layout__tp=1, layout__cp=4, round_as__cp=2), "4 ranks that share positions cannot"),
    (dict(layout__tp=1, layout__cp=2, layout__cp_method="striped", round_as__cp=2), "stripes"),
], ids=["heads", "experts", "cp", "cp_u", "layers", "devices", "auto", "as-heads", "as-tp",
        "as-cp", "as-stripes"])
def test_refused_before_anything_is_stopped(mesh, layout, says):
    """Each is a fault of the check, with the sentence that says what does not divide."""
    pid = main(mesh)["pid"]
    said = check(mesh, **layout)
    assert not (said["ok"] and said["fits"])
    assert re.search(says, json.dumps(said)), json.dumps(said)
    status, _, body = mesh.local_request("POST", "/api/v1/config/commit", {})
    assert status in (400, 409) and main(mesh)["pid"] == pid, body
    assert mesh.local_request("DELETE", "/api/v1/config/draft")[0] == 200


def test_context_over_ranks(start):
    """Two ranks share the positions of a prompt, three the heads of each: KV is divided by
    both where the ledger said, a block stands for twice as many positions, what was cached
    answers to the letter, and the collectives of both are counted."""
    r = start("--rack", "cpu:8", "--kv-mib", "16", "--step-tok", "64")
    commit(r, layout__cp=6, layout__cp_method="usp", layout__cp_u=3)
    assert main(r)["layout"] == "cp6 cp_u3 usp"
    rows = wait_for(lambda: [x for x in ranks(r) if x["kv_ledger_bytes"]])
    assert [x["at"] for x in rows] == [f"cp{i} cp_u{j}" for i in range(2) for j in range(3)]
    for x in rows:
        assert x["kv_bytes"] == x["kv_ledger_bytes"]
        assert 0.8 * x["scratch_ledger_bytes"] < x["scratch_bytes"] < x["scratch_ledger_bytes"]
    ask = dict(ASK, prompt="A rabbit lived in a forest with three friends. " * 12)
    first = r.post(TEXT, ask)[1]
    again = r.post(TEXT, ask)[1]
    assert first["choices"][0]["text"] == again["choices"][0]["text"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] % 32 == 0
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 64
    counts = comm(r)
    assert counts[0, "cp", "recv"]["bytes"] > 0 and counts[0, "cp", "all-to-all"]["bytes"] > 0
    assert counts[0, "cp_u", "all-to-all"]["bytes"] > 0


def test_layouts_that_round_alike(start):
    """Told to round as three tp ranks and two that share positions, one engine, these
    ranks and two pools of them give the same tokens and logprobs, to the last bit."""
    r = start("--rack", "cpu:8", "--kv-mib", "16", "--step-tok", "64")
    asks = [dict(ASK, prompt="A rabbit lived in a forest. " * n, seed=n, logprobs=3,
                 temperature=n % 2, max_tokens=24) for n in (1, 3, 12)]

    def answers():
        return [r.post(TEXT, a)[1]["choices"][0] for a in asks]

    plain = answers()
    commit(r, round_as__tp=3, round_as__cp=2)
    alike = answers()
    assert alike != plain  # other bits
    for change in (dict(layout__tp=3), dict(layout__tp=1, layout__cp=2),
                   dict(layout__cp_method="allgather", layout__tp=3),
                   dict(layout__tp=1, layout__cp=1, mode="split", prefill__layout__tp=3),
                   dict(prefill__layout__tp=1, prefill__layout__cp=2, decode__layout__tp=3)):
        commit(r, **change)
        assert answers() == alike, change
    commit(r, round_as__tp=0, round_as__cp=0)  # pools do so of their own accord
    assert answers() == alike


def test_groups_share_the_experts(start, tmp_path):
    """Two groups of two ranks: each has KV for requests of its own, and half of it; experts
    stand over all four. Many at once are answered as by one rank."""
    tiny_models = pytest.importorskip("tiny_models")
    tiny_models.write(tiny_models.Spec(family="qwen3_moe"), str(tmp_path / "moe"))
    r = start("--rack", "cpu:8", "--kv-mib", "8", model=str(tmp_path / "moe"))
    asks = [dict(ASK, prompt=f"{i} the inner heart" * (1 + i % 3)) for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        want = [a[1]["choices"][0]["text"] for a in pool.map(lambda a: r.post(TEXT, a), asks)]
        whole, kv = ranks(r)[0]["weight_bytes"], ranks(r)[0]["kv_bytes"]
        said = check(r, layout__adp=2)
        assert re.search("ep 1 with tp 1, cp 1 and adp 2: .* ep 2|do not regroup", json.dumps(said)), said
        assert r.local_request("DELETE", "/api/v1/config/draft")[0] == 200
        commit(r, layout__adp=2, layout__tp=2, layout__ep=4)
        rows = wait_for(lambda: [x for x in ranks(r) if x["kv_ledger_bytes"]])
        assert [x["at"] for x in rows] == [f"tp{i % 2} adp{i // 2} ep{i}" for i in range(4)]
        for x in rows:
            assert x["kv_bytes"] * 4 == kv and x["weight_bytes"] < whole
        got = [a[1]["choices"][0]["text"] for a in pool.map(lambda a: r.post(TEXT, a), asks)]
        assert got == want
        again = list(pool.map(lambda a: r.post(TEXT, a), asks))
    assert [a[1]["choices"][0]["text"] for a in again] == want
    assert any(a[1]["usage"]["prompt_tokens_details"]["cached_tokens"] for a in again)
    for i in range(4):
        assert comm(r)[i, "ep", "all-to-all"]["bytes"] > 0


def test_seven_stages_then_the_planner(start):
    """pp 7 works; its ranks leave a cordoned device alone; auto is the planner's choice, and
    says why; all answer alike."""
    r = start("--rack", "cpu:8", "--kv-mib", "16", "--step-tok", "64")
    want = r.post(TEXT, ASK)[1]["choices"][0]["text"]
    assert r.local_request("POST", "/api/v1/devices/cpu3/cordon", {"reason": "a test"})[0] == 200
    commit(r, layout__pp=7)
    rows = ranks(r)
    assert [x["at"] for x in rows] == [f"pp{i}" for i in range(7)]
    assert sorted(x["device"] for x in rows) == [f"cpu{i}" for i in range(8) if i != 3]
    assert r.post(TEXT, ASK)[1]["choices"][0]["text"] == want
    assert main(r)["layout_why"] is None
    said = check(r, layout__pp=8)
    assert "8 ranks and 7 devices in service" in json.dumps(said) and not said["fits"]
    assert r.local_request("DELETE", "/api/v1/config/draft")[0] == 200
    status, _, body = r.local_request("PATCH", "/api/v1/config/draft", {
        "set": [{"path": "instances.main.layout.auto", "value": True}],
        "unset": ["instances.main.layout.pp"]})
    assert status == 200 and json.loads(body)["fits"], body
    assert any("by the planner" in a["why"] for a in json.loads(body)["actions"]), body
    generation = main(r)["generation"]
    assert r.local_request("POST", "/api/v1/config/commit", {})[0] == 202
    wait_for(lambda: main(r)["generation"] > generation and main(r)["state"] == "ready", 60)
    assert re.match(r"\w+.* of \d+ layouts: \d+ tokens/s, TTFT", main(r)["layout_why"])
    assert journal(r, "instance.layout") == [main(r)["layout_why"]]
    assert len(ranks(r)) == main(r)["ranks"]
    assert all(x["device"] != "cpu3" for x in ranks(r))
    assert r.post(TEXT, ASK)[1]["choices"][0]["text"] == want


# ---- when something breaks ----


def error_of(stream):
    """Of a stream that broke: its one error frame."""
    errors = [f for f in stream.frames() if isinstance(f, dict) and "error" in f]
    assert len(errors) == 1
    return errors[0]["error"]


def comes_back(rack, pid):
    wait_for(lambda: main(rack)["pid"] not in (0, pid) and main(rack)["state"] == "ready", 60)
    status, body, _ = rack.post(TEXT, ASK)
    assert status == 200 and body["choices"][0]["text"]
    assert len(ranks(rack)) == 3


def test_engine_killed_under_a_stream(mesh):
    """Whoever waited sees a pause, and the text of an undisturbed run."""
    greedy = dict(ASK, max_tokens=150)
    seeded = dict(greedy, temperature=0.9, seed=7, n=2, presence_penalty=0.5, logprobs=2)
    want = [mesh.post(TEXT, a)[1] for a in (greedy, seeded)]
    pid = main(mesh)["pid"]
    s = Stream(mesh, dict(greedy, stream_options={"include_usage": True}))
    both = []
    t = threading.Thread(target=lambda: both.append(mesh.post(TEXT, seeded)))
    t.start()
    wait_for(lambda: [r for r in mesh.local("/api/v1/requests")["requests"]
                      if r["output_tokens"] > 2][2:])
    os.kill(pid, signal.SIGKILL)
    frames = s.frames()
    assert frames[-1] == "[DONE]" and not [f for f in frames[:-1] if "error" in f]
    text = "".join(f["choices"][0]["text"] for f in frames[:-1] if f["choices"])
    assert text == want[0]["choices"][0]["text"]
    tokens = "prompt_tokens", "completion_tokens", "total_tokens"
    assert [frames[-2]["usage"][k] for k in tokens] == [want[0]["usage"][k] for k in tokens]
    t.join(60 * SLOW)
    status, body, _ = both[0]
    assert status == 200 and body["choices"] == want[1]["choices"]
    assert [body["usage"][k] for k in tokens] == [want[1]["usage"][k] for k in tokens]
    comes_back(mesh, pid)
    assert mesh.metric("llmrack_engine_failures_total") == 1
    assert mesh.metric("llmrack_requests_resumed_total") == 3


def test_engine_killed_and_told_to_fail(mesh):
    """Hot: from now on one clear error for whoever waited; then all ranks are there again."""
    want = mesh.post(TEXT, ASK)[1]["choices"][0]["text"]
    pid = main(mesh)["pid"]
    commit(mesh, on_engine_loss="fail")
    assert main(mesh)["pid"] == pid
    s = Stream(mesh, dict(ASK, max_tokens=600))
    wait_for(s.begun)
    os.kill(pid, signal.SIGKILL)
    e = error_of(s)
    assert "failed, try again" in e["message"] and e["type"] == "service_unavailable_error"
    comes_back(mesh, pid)
    assert mesh.post(TEXT, ASK)[1]["choices"][0]["text"] == want


def fault_config(tmp_path_factory, **layout):
    words = ", ".join(f"{k}: {v}" for k, v in layout.items())
    path = tmp_path_factory.mktemp("ranks") / "llmrackd.yaml"
    path.write_text(CONFIG.replace("tp: 3", words).replace(
        "step_tok", "on_engine_loss: fail, step_tok"))
    return str(path)


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """With an engine that stops where a file says, and does not wait long for it."""
    engine = os.path.join(BIN, "llmrack-engine-faults")
    if not os.path.exists(engine):
        pytest.skip(f"not there: {engine}")
    path = str(tmp_path_factory.mktemp("fault") / "file")
    os.environ.update(LLMRACK_FAULT_FILE=path, LLMRACK_COMM_TIMEOUT_MS="1000")
    try:
        r = rack_module.Rack("--engine", engine, "--config",
                             fault_config(tmp_path_factory, tp=3), model=None)
    finally:
        del os.environ["LLMRACK_FAULT_FILE"], os.environ["LLMRACK_COMM_TIMEOUT_MS"]
    r.fault_file = path
    yield r
    assert r.p.poll() is None, "the daemon ended during the tests: " + r.logged()
    r.stop()


def fault(rack, point, rank, ms):
    with open(rack.fault_file + ".new", "w") as f:
        f.write(f"{point} {rank} {ms}")
    os.rename(rack.fault_file + ".new", rack.fault_file)


@pytest.mark.parametrize("point,rank,ms", [("rank", 2, 0), ("rank", 0, 0),
                                           ("collective", 1, 4000)],
                         ids=["stopped", "leader", "late"])
def test_the_rank_is_named(faulty, point, rank, ms):
    """A rank that stops, or comes to a collective too late, ends the step on all of them:
    each request has one error that names it, so have status and journal; the engine comes
    back and answers as before."""
    want = faulty.post(TEXT, ASK)[1]["choices"][0]["text"]
    pid = main(faulty)["pid"]
    failed = len(journal(faulty, "engine.run"))
    streams = [Stream(faulty, dict(ASK, max_tokens=600)) for _ in range(2)]
    for s in streams:
        wait_for(s.begun)
    fault(faulty, point, rank, ms)
    named = re.compile(rf"\brank {rank} (did not come to \S+ \d+ of group '\w+' \(step \d+\)|"
                       r"has not ended its step) within \d\.\d s")
    for s in streams:
        assert named.search(error_of(s)["message"])
    rows = wait_for(lambda: journal(faulty, "engine.run")[failed:] and
                    journal(faulty, "engine.run"))
    assert len(rows) == failed + 1 and named.search(rows[0])
    comes_back(faulty, pid)
    assert not os.path.exists(faulty.fault_file)
    assert faulty.post(TEXT, ASK)[1]["choices"][0]["text"] == want


def test_a_stopped_rank_is_outlived(faulty):
    """Configured so, the requests go on once the ranks are there again."""
    commit(faulty, on_engine_loss="recompute")
    ask = dict(ASK, max_tokens=100)
    want = faulty.post(TEXT, ask)[1]["choices"][0]["text"]
    pid = main(faulty)["pid"]
    s = Stream(faulty, ask)
    wait_for(s.begun)
    fault(faulty, "rank", 1, 0)
    frames = s.frames()
    assert frames[-1] == "[DONE]"
    assert "".join(f["choices"][0]["text"] for f in frames[:-1]) == want
    assert main(faulty)["pid"] != pid
    commit(faulty, on_engine_loss="fail")
