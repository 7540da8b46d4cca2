"""llmctl load: rates are measured, runs are kept with their contract, and only runs with
the same contract are compared. The executor makes tokens up: what is tested is the way."""
import json
import os
import signal
import socket
import subprocess

import pytest

from rack import BIN, SLOW, Rack, wait_for

# a second of arrivals: what they are to meet would ask for more (least_s)
WORK = ["in", "uniform:16-64", "out", "8", "requests", "20", "seconds", "1"]


@pytest.fixture(scope="module")
def rack():
    r = Rack("--executor", "null", "--set", "instances.main.slo.ttft_ms=60000",
             "--set", "instances.main.slo.tpot_ms=60000",
             "--set", "instances.main.slo.attainment=0.9", "--set", "cost.device_hour=3.6")
    yield r
    assert r.p.poll() is None, "the daemon ended during the tests: " + r.logged()
    r.stop()


def llmctl(rack, *words):
    return subprocess.run([os.path.join(BIN, "llmctl"), "--socket", rack.sock, *words],
                          capture_output=True, text=True, timeout=60 * SLOW)


def load(rack, *words):
    """A run as JSON."""
    p = llmctl(rack, "-j", "load", *WORK, *words)
    assert p.returncode == 0, p.stderr
    return json.loads(p.stdout)


@pytest.fixture(scope="module")
def runs(rack):
    """Two of one contract, one of another seed."""
    return [load(rack, "rate", "80", "seed", s)["id"] for s in ("7", "7", "8")]


def test_a_run_is_measured_kept_and_drawn(rack, tmp_path):
    before = rack.metrics()
    png = tmp_path / "a.png"
    run = load(rack, "rate", "50", "png", str(png))
    r, c = run["result"], run["contract"]
    point, = r["points"]
    assert (point["requests"], point["good"], point["refused"], point["aborted"]) == (50, 50, 0, 0)
    assert r["goodput"] == 50 and not r["searched"] and r["complete"]
    assert r["attainment"] == 1 and point["pass"] and point["low"] > 0.9
    assert r["cost_per_good"] == pytest.approx(3.6 / 3600 / 50)
    assert 0 <= point["ttft_ms"]["p50"] <= point["ttft_ms"]["p99"]
    # the daemon saw what was sent: all requests of the point, and those of the step's cost
    sent = rack.metric('vllm:request_success_total{finished_reason="length"}') - before.get(
        'vllm:request_success_total{finished_reason="length"}', 0)
    assert sent == 50 + 3 * 3 + 3 + 8
    assert c["work"] == {"arrival": "poisson", "burst": 1, "in": "uniform:16-64", "out": "8",
                         "shared_tok": 0, "prefixes": 1, "seed": 1, "requests": 20,
                         "least_s": 3 * (60 + 7 * 60), "point_s": 1, "max_tok": c["served"]["ctx"]}
    assert c["slo"] == {"ttft_ms": 60000, "tpot_ms": 60000, "target": 0.9}
    assert c["served"]["revision"] == 1 and len(c["served"]["model_hash"]) == 16
    assert [len(come) for come in r["arrivals"]] == [50] * 3
    assert all(16 <= i <= 64 and o == 8 for come in r["arrivals"] for _, i, o in come)
    assert all(a[0] <= b[0] for come in r["arrivals"] for a, b in zip(come, come[1:]))
    assert r["cost"]["step_tok"] == 512 and r["cost"]["decode_parts"] >= 1
    assert set(r["steps"]) == {"idle", "loaded"}
    assert r["steps"]["loaded"]["prompt_tok"] <= sum(i for _, i, _ in r["arrivals"][0])
    assert png.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    kept = rack.local(f"/api/v1/loads/{run['id']}")
    assert kept["contract"] == c and kept["result"] == r


def test_list_show_compare(rack, runs):
    listed = json.loads(llmctl(rack, "-j", "load", "list").stdout)["loads"]
    assert [x["id"] for x in listed[:3]] == runs[::-1]
    assert listed[0]["goodput"] == 80 and listed[0]["mode"] == "chunked"
    assert "GOODPUT/S" in llmctl(rack, "load", "list", "2").stdout
    assert "goodput req/s" in llmctl(rack, "load", "show", str(runs[0])).stdout
    p = llmctl(rack, "load", "compare", str(runs[0]), str(runs[1]))
    assert p.returncode == 0 and "goodput (requests/s)" in p.stdout, p.stderr
    p = llmctl(rack, "load", "compare", str(runs[0]), str(runs[2]))
    assert p.returncode == 5 and "work.seed is 7 in one and 8 in the other" in p.stderr
    assert llmctl(rack, "load", "show", "9999").returncode == 3


def test_what_is_compared_may_differ(rack, runs):
    rack.commit(log_level="info", limits__idle_s=80)
    assert rack.local("/api/v1/config")["revision"] == 2
    other = load(rack, "rate", "80", "seed", "7")["id"]
    p = llmctl(rack, "-j", "load", "compare", str(runs[0]), str(other))
    assert json.loads(p.stdout)["differs"] == [{"field": "served.revision", "a": "1", "b": "2"}]


def test_a_run_of_another_revision_is_refused(rack, runs):
    old = rack.local(f"/api/v1/loads/{runs[0]}")
    old["contract"]["served"]["generation"] = 999
    body = {"contract": old["contract"], "result": old["result"]}
    status, _, answer = rack.local_request("POST", "/api/v1/loads", body)
    assert status == 409 and b"changed while it was measured" in answer
    assert rack.local_request("POST", "/api/v1/loads", {"contract": 1, "result": {}})[0] == 400


def test_a_trace_is_replayed(rack, tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps({
        "timestamp": 100 * i, "input_length": 1200, "output_length": 40,
        "hash_ids": [1, 2, 10 + i]}) + "\n" for i in range(20)))
    before = rack.metrics()
    p = llmctl(rack, "-j", "load", "trace", str(trace), "divide", "8", "pace", "4",
               "requests", "20", "seconds", "1")
    assert p.returncode == 0, p.stderr
    run = json.loads(p.stdout)
    assert run["contract"]["work"]["arrival"] == "trace"
    assert run["result"]["goodput"] == pytest.approx(40)
    point, = run["result"]["points"]
    assert point["good"] == point["requests"] in (40, 80, 120)  # 40 may be too few to be sure
    # all but the first find the two blocks of 64 tokens that they share
    hits = rack.metric("vllm:prefix_cache_hits_total") - before.get("vllm:prefix_cache_hits_total", 0)
    assert hits >= 15 * 128


def test_advice_needs_a_search_and_labels_its_figures(rack, runs):
    p = llmctl(rack, "pd", "advise")
    assert p.returncode == 3 and "llmctl load measures one" in p.stderr
    p = llmctl(rack, "pd", "advise", "nope")
    assert p.returncode == 3 and "there is no instance 'nope'" in p.stderr
    run = load(rack, "ttft", "200", "tpot", "50")
    assert run["result"]["searched"] and run["result"]["goodput"] > 0
    p = llmctl(rack, "-j", "pd", "advise", "main")
    assert p.returncode == 0, p.stderr
    a = json.loads(p.stdout)
    modes = {m["mode"]: m for m in a["modes"]}
    assert a["against"] == run["id"] and set(modes) == {"colocated", "chunked", "split"}
    assert modes["chunked"]["measured"] and modes["chunked"]["run"] == run["id"]
    assert modes["chunked"]["basis"] == f"measured, run {run['id']}"
    assert modes["chunked"]["goodput"] == modes["chunked"]["low"] == run["result"]["goodput"]
    assert modes["chunked"]["high"] == run["result"]["bound"]
    assert modes["colocated"]["low"] < modes["colocated"]["goodput"] < modes["colocated"]["high"]
    assert a["sure"] == (a["next"] is None) and a["pace"] > 0
    assert a["costs"].startswith(f"run {run['id']}; under load")
    assert modes["colocated"]["basis"].startswith("predicted, error")
    assert modes["split"]["basis"] == "not possible" and "two devices" in modes["split"]["why"]
    assert a["scaling"].startswith("not known")  # of one device there is no part
    assert "BASIS" in llmctl(rack, "pd", "advise").stdout


@pytest.mark.parametrize("words,says", [
    (["ttft", "0", "tpot", "0"], "no target"), (["in", "0"], "no length"),
    (["arrival", "trace"], "name it"), (["instance", "none"], "no instance 'none'"),
    (["rate", "x"], "takes a number"), (["trace", "/nowhere"], "/nowhere"),
    (["burst", "2"], "arrival bursty"), (["ttft", "3", "ttft", "4"], "'ttft' stands twice"),
    (["seed", "1.5"], "a whole number from 0"),
    (["ttft", "9e9"], "from 0 to 3600000 ms"), (["seconds", "0"], "from 1 to 86400 s"),
    (["in", "300", "shared", "300"], "share 300"), (["prefixes", "3"], "shared TOKENS too"),
    (["in", "9000"], "over the context of instance main"), (["quality", "77"], "no quality run 77"),
    (["trace", "/dev/null", "shared", "3"], "comes from the trace"),
    (["png", "/nowhere/x.png"], "cannot write '/nowhere/x.png'"), (["png", "/"], "a folder")])
def test_odd_words_are_refused(rack, words, says):
    p = llmctl(rack, "load", *words)
    assert p.returncode != 0 and says in p.stderr


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_keeps_what_was_measured(rack, signal_number):
    done = 'vllm:request_success_total{finished_reason="length"}'
    before = rack.metrics().get(done, 0)
    p = subprocess.Popen([os.path.join(BIN, "llmctl"), "--socket", rack.sock, "-j", "load",
                          "rate", "40", "requests", "4000", "in", "8", "out", "4"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: rack.metrics().get(done, 0) > before + 50)
    p.send_signal(signal_number)
    out, err = p.communicate(timeout=30 * SLOW)
    run = json.loads(out)
    said = f"stopped: what was measured is kept as run {run['id']}, not complete"
    assert p.returncode == 1 and said in err
    assert not rack.local("/api/v1/loads?limit=1")["loads"][0]["complete"]
    point, = run["result"]["points"]
    assert not run["result"]["complete"] and not point["pass"]
    assert 0 < point["requests"] < 4000 and point["good"] == point["requests"]
    assert rack.local(f"/api/v1/loads/{run['id']}")["result"]["goodput"] == 0


def test_many_streams_on_the_control_socket_shut_no_operator_out(rack):
    """What a load run holds open, idle ones too, is far more than sequences in a step."""
    held = []
    for _ in range(400):
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(20 * SLOW)
        s.connect(rack.sock)
        s.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert s.recv(4096).startswith(b"HTTP/1.1 200")
        held.append(s)
    p = llmctl(rack, "show", "status")
    assert p.returncode == 0, p.stderr
    for s in held:
        s.close()


def test_who_may_not_keep_a_run_is_told_before_it(rack):
    p = subprocess.run([os.path.join(BIN, "llmctl"), "-u", f"http://127.0.0.1:{rack.port}", "load"],
                       capture_output=True, text=True, timeout=60 * SLOW,
                       env={**os.environ, "LLMCTL_KEY": rack.key("read")["Authorization"][7:]})
    assert p.returncode == 4 and p.stderr.count("\n") == 1 and "'admin'" in p.stderr


def test_a_daemon_that_goes_ends_the_run():
    r = Rack("--executor", "null")
    p = subprocess.Popen([os.path.join(BIN, "llmctl"), "--socket", r.sock, "load", "rate", "50",
                          "ttft", "60000", "requests", "100000", "seconds", "2000"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    done = 'vllm:request_success_total{finished_reason="length"}'
    wait_for(lambda: r.metrics().get(done, 0) > 50)
    r.stop()
    out, err = p.communicate(timeout=60 * SLOW)
    assert p.returncode == 6 and "requests in a row found no daemon; the run was not kept" in err
    assert "complete" in out  # what was measured is shown
