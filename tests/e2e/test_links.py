"""Links of the rack: what ranks read of each other is shown on the links between them, and a
link that is taken most of the time is an alarm that names both of its ends, until it is not."""
import os
import subprocess
import sys
import threading

import pytest

import rack as rack_module
from rack import BIN, SLOW, wait_for

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "tools"))
tiny_models = pytest.importorskip("tiny_models")
ASK = {"prompt": "the inner heart", "max_tokens": 4, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def rack(tmp_path_factory):
    """Two ranks on two emulated hosts; what is read of the second comes very slowly."""
    engine = os.path.join(BIN, "llmrack-engine-faults")
    if not os.path.exists(engine):
        pytest.skip(f"not there: {engine}")
    model = str(tmp_path_factory.mktemp("model") / "tiny")
    tiny_models.write(tiny_models.Spec(), model)
    os.environ["LLMRACK_LINK_SLOW"] = "1 100000"
    try:
        r = rack_module.Rack("--engine", engine, "--rack", "cpu:2x1", "--kv-mib", "8",
                             "--set", "instances.main.layout.tp=2",
                             "--set", "instances.main.layout.emulate=cpu:2x1", model=model)
    finally:
        del os.environ["LLMRACK_LINK_SLOW"]
    yield r
    assert r.p.poll() is None, "the daemon ended during the tests: " + r.logged()
    r.stop()


def links(rack):
    return {(x["a"], x["b"]): x for x in rack.local("/api/v1/links")["links"]}


def read_by(rack):
    """Bytes that each rank has read, by its own counters."""
    out = {}
    for c in rack.local("/api/v1/ranks")["comm"]:
        out[c["rank"]] = out.get(c["rank"], 0) + c["bytes"]
    return out


def alarms(rack):
    return {a["id"]: a for a in rack.local("/api/v1/alarms")["alarms"]
            if a["id"].startswith("link.congested") and not a["ended_ms"]}


def test_bytes_are_on_their_links(rack):
    """Every link of the way has what the one side read in one direction and what the other
    side read in the other; the shell and the scrape say the same."""
    assert rack.post("/v1/completions", ASK)[0] == 200
    want = read_by(rack)
    assert want[0] > 0 and want[1] > 0
    table = wait_for(lambda: (t := links(rack)) and t[("network", "host0")]["bytes_ab"] == want[0] and t)
    assert len(table) == 4 and {x["rack"] for x in table.values()} == {"cpu:2x1"}
    for (a, b), x in table.items():
        ab, ba = (want[0], want[1]) if b in ("host0", "host0/cpu0") else (want[1], want[0])
        assert (x["bytes_ab"], x["bytes_ba"]) == (ab, ba), (a, b, x)
        assert x["mostly"] == "all-reduce" and sum(x["calls"].values()) == sum(want.values())
        assert x["kind"] == ("net" if a == "network" else "memory") and x["bandwidth"] > 1e9
    m = rack.metrics()
    name = 'llmrack_link_bytes_total{rack="cpu:2x1",kind="net",from="host1",to="network"}'
    assert m[name] == want[0]
    p = subprocess.run([os.path.join(BIN, "llmctl"), "--socket", rack.sock, "show", "links"],
                       capture_output=True, text=True, timeout=60 * SLOW)
    assert p.returncode == 0 and "BUSY" in p.stdout and "host1/cpu1" in p.stdout, p.stdout + p.stderr
    assert rack.local("/api/v1/links")["nvlinks"] == []


def test_a_congested_link_is_told_and_ends(rack):
    """The slow way's links are told of, by both ends, with the instance; the wide ones beside
    them are not; without load it is over, and both are in the journal."""
    stop = threading.Event()

    def work():  # long prompts: much on the way at a time, so that a slow machine changes little
        n = 0
        while not stop.is_set():
            n += 1
            assert rack.post("/v1/completions", dict(ASK, prompt=f"{n} " + "the inner heart " * 12, max_tokens=1))[0] == 200

    t = threading.Thread(target=work)
    t.start()
    try:
        found = wait_for(lambda: alarms(rack), 120)
        a = wait_for(lambda: alarms(rack).get("link.congested network host1"), 20)
        assert "the net link from host1 to network of emulated cpu:2x1 was taken" in a["text"]
        assert "instance main" in a["text"] and a["severity"] == "warning"
        assert all(x.split()[1] == "network" for x in found), found
        row = links(rack)["network", "host1"]
        assert row["state"] == "congested" and row["busy_share"] > 0.6 and row["instance"] == "main"
        m = rack.metrics()
        assert m['llmrack_link_congested{rack="cpu:2x1",kind="net",from="network",to="host1"}'] == 1
    finally:
        stop.set()
        t.join(60 * SLOW)
    wait_for(lambda: not alarms(rack), 40)
    assert links(rack)["network", "host1"]["state"] == "ok"
    rows = [r["what"] for r in rack.local("/api/v1/journal?limit=200")["journal"]
            if r["subject"].startswith("link.congested network host1")]
    assert sorted(rows) == ["alarm.clear", "alarm.raise"], rows
