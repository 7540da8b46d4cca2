"""The rack behind the daemon: a recorded one is emulated, a lost GPU is told, formulas and
plans are answered, FILEs belong to llmctl."""
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import time

import pytest

import rack as rack_module
from test_llmctl import ctl

SHARED = os.environ.get("SHARED", "../shared")
H200 = os.path.join(SHARED, "topologies", "nccl-hgx-h200-8gpu-4nvs.xml")


def control(r, method, path, body=None, expect=200):
    """A control route over the UNIX socket: the parsed answer."""
    c = rack_module.UnixConnection(r.sock, timeout=120)
    c.request(method, path, None if body is None else json.dumps(body))
    a = c.getresponse()
    data = a.read()
    c.close()
    assert a.status == expect, (a.status, data)
    return json.loads(data)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A daemon whose rack is a file that the test may change."""
    if not os.path.exists(H200):
        pytest.skip("no recorded topologies")
    path = tmp_path_factory.mktemp("rack") / "rack.xml"
    path.write_bytes(open(H200, "rb").read())
    r = rack_module.Rack("--rack", str(path))
    r.file = path
    yield r
    r.stop()


def test_a_recorded_rack_is_emulated_and_says_so(recorded):
    for path in "/api/v1/status", "/api/v1/topology":
        assert recorded.local(path)["emulated"] is True
    assert recorded.metrics()["llmrack_emulated"] == 1
    assert len(recorded.local("/api/v1/topology")["devices"]) == 8
    out = ctl(recorded, "show", "topology").stdout
    assert "emulated" in out and "NVIDIA H200" in out and "4 NVSwitches" in out
    assert "NV18" in ctl(recorded, "show", "topology", "matrix").stdout


def test_record_and_export_write_llmctls_own_files(recorded, tmp_path):
    p = ctl(recorded, "topology", "record", str(tmp_path / "r.json"))
    assert p.returncode == 0, p.stderr
    assert json.load(open(tmp_path / "r.json"))
    p = ctl(recorded, "topology", "export", "nccl", str(tmp_path / "r.xml"))
    assert p.returncode == 0 and open(tmp_path / "r.xml").read().startswith("<system")
    p = ctl(recorded, "topology", "record", str(tmp_path / "none" / "r.json"))
    assert p.returncode == 1 and "cannot write" in p.stderr


def journalled(r, what, part):
    """Details of the journal's rows of this kind."""
    db = sqlite3.connect(f"file:{r.dir.name}/state.db?mode=ro", uri=True)
    rows = db.execute("SELECT detail FROM journal WHERE what = ? ORDER BY id", (what,)).fetchall()
    db.close()
    return [d for d, in rows if part in d]


def plan_of(r, **ask):
    """(answer of POST /api/v1/plan, devices of its best row's groups and ranks)."""
    answer = control(r, "POST", "/api/v1/plan", dict({"model": "llama-3.1-70b"}, **ask))
    stored = r.local(f"/api/v1/plans/{answer['id']}")
    return answer, set(re.findall(r"0000:[0-9a-f]{2}:00\.0", stored["text"]))


def test_a_lost_gpu_is_found_journalled_and_shown(recorded):
    answer, before = plan_of(recorded)
    assert answer["plan"]["devices"] == 8 and len(before) == 8
    lines = recorded.file.read_text().split("\n")
    first = next(i for i, s in enumerate(lines) if "<gpu " in s) - 1  # its <pci>
    last = next(i for i, s in enumerate(lines) if "</gpu>" in s) + 1
    recorded.file.write_text("\n".join(lines[:first] + lines[last + 1:]))
    os.kill(recorded.p.pid, signal.SIGHUP)
    end = time.monotonic() + 30
    while len(recorded.local("/api/v1/topology")["devices"]) != 7 and time.monotonic() < end:
        time.sleep(0.05)
    kinds = [(f["severity"], f["kind"]) for f in recorded.local("/api/v1/findings")["findings"]]
    assert ("bad", "lost") in kinds, kinds
    assert recorded.local("/api/v1/status")["findings_bad"] >= 1
    assert "lost" in ctl(recorded, "show", "findings").stdout
    lost = journalled(recorded, "rack.changed", "lost device")
    assert len(lost) == 1
    gone = re.search(r"0000:[0-9a-f]{2}:00\.0", lost[0])[0]
    answer, after = plan_of(recorded)
    assert answer["plan"]["devices"] == 7
    assert gone in before and gone not in after and after < before


def test_a_cordoned_device_is_planned_around(recorded):
    device = recorded.local("/api/v1/topology")["devices"][0]["id"]
    free = plan_of(recorded)[0]["plan"]["devices"]
    control(recorded, "POST", f"/api/v1/devices/{device}/cordon", {"reason": "fan"})
    try:
        d = recorded.local("/api/v1/topology")["devices"][0]
        assert d["state"] == "cordoned" and d["reason"] == "fan"
        answer, used = plan_of(recorded)
        assert answer["plan"]["devices"] == free - 1 and device not in used
        assert answer["plan"]["cordoned"] == 1
    finally:
        control(recorded, "POST", f"/api/v1/devices/{device}/uncordon", {})
    assert plan_of(recorded)[0]["plan"]["devices"] == free


def test_paths_are_measured_and_planned_with():
    r = rack_module.Rack("--rack", "cpu:3", ready=False)
    try:
        before = control(r, "POST", "/api/v1/plan", {"model": "smollm2-135m"})
        assert before["plan"]["measured"] is False and "measured" not in before["text"]
        pairs = control(r, "POST", "/api/v1/topology/probe", {"seconds": 20})["pairs"]
        assert {(p["a"], p["b"]) for p in pairs} == {("cpu0", "cpu1"), ("cpu0", "cpu2"),
                                                     ("cpu1", "cpu2")}
        for p in pairs:
            assert p["bytes_per_s"] > 1e6 and p["latency_s"] > 0 and p["spread"] >= 0
            assert len(p["sizes"]) == 3
        today = time.strftime("%Y-%m-%d", time.gmtime())
        assert f"measured {today}" in r.local("/api/v1/topology/matrix")["text"]
        after = control(r, "POST", "/api/v1/plan", {"model": "smollm2-135m"})
        assert after["plan"]["measured"] is True and f"links: measured {today}" in after["text"]
        shown = r.local("/api/v1/plans/last")
        assert shown["id"] == after["id"] and shown["rows"] >= 1
        assert r.local("/api/v1/plans")["plans"][0]["id"] == after["id"]
        p = ctl(r, "topology", "probe")
        assert p.returncode == 0 and "cpu0" in p.stdout and "GB/s" in p.stdout, p.stderr
        p = ctl(r, "plan", "list")
        assert p.returncode == 0 and str(after["id"]) in p.stdout
        p = ctl(r, "plan", "show", str(after["id"]))
        assert p.returncode == 0 and "rank 0: pool 0" in p.stdout
        p = ctl(r, "plan", "show", str(after["id"]), "--dot")
        assert p.returncode == 0 and p.stdout.startswith("graph placement {")
        dot = r.local(f"/api/v1/plans/{after['id']}?dot=1")["text"]
        assert dot.startswith("graph placement {") and dot.rstrip().endswith("}")
        assert control(r, "GET", "/api/v1/plans/77", expect=404)
        assert control(r, "GET", f"/api/v1/plans/{after['id']}?row=11", expect=400)
        assert control(r, "POST", "/api/v1/topology/probe", {"seconds": 0}, expect=400)
    finally:
        r.stop()


def test_a_rack_of_gpus_that_is_not_here_is_not_measured(recorded):
    e = control(recorded, "POST", "/api/v1/topology/probe", {}, expect=400)["error"]
    assert "no CPU device" in e["message"] and "emulated" in e["message"]


def test_a_damaged_rack_file_leaves_what_was_known(recorded):
    before = recorded.local("/api/v1/topology")["devices"]
    good = recorded.file.read_text()
    recorded.file.write_text(good[:len(good) // 2])
    os.kill(recorded.p.pid, signal.SIGHUP)
    time.sleep(0.3)
    assert recorded.local("/api/v1/topology")["devices"] == before
    recorded.file.write_text(good)


def test_explain(rack):
    out = ctl(rack, "explain", "ep-traffic", "P=8", "T=4096", "k=2", "H=8192", "bytes=2").stdout
    assert "128 MiB" in out and "112 MiB" in out and "224 MiB" in out
    assert "collective" in ctl(rack, "explain").stdout
    p = ctl(rack, "explain", "nonsense")
    assert p.returncode == 3 and "nonsense" in p.stderr
    p = ctl(rack, "explain", "collective", "q=8")
    assert p.returncode == 2 and "q" in p.stderr


def test_plan(rack, tmp_path):
    p = ctl(rack, "plan", "make", "deepseek-v3", "--rack", "hgx-h200", "--workload",
            "isl=1024,osl=1024")
    assert p.returncode == 0, p.stderr
    assert "tok/s/GPU" in p.stdout and "discarded" in p.stdout and "ledger" in p.stdout
    p = ctl(rack, "plan", "make", "llama-3.1-70b", "--rack=hgx-h200", "--why=tp4")
    assert p.returncode == 0 and "1 capacity" in p.stdout and "6 dp" in p.stdout
    config = tmp_path / "config.json"
    config.write_text(open("etc/models/llama-3.1-8b.json").read())
    p = ctl(rack, "plan", "make", str(config), "--rack", "hgx-h200")
    assert p.returncode == 0 and "layout" in p.stdout


def test_a_served_model_is_planned_from_its_file(rack):
    name = rack.local("/api/v1/models")["models"][0]["name"]
    a = control(rack, "POST", "/api/v1/plan", {"model": name, "rack": "cpu:1"})
    assert a["plan"]["model"] == name
    counted = sum(a["plan"]["rows"][0]["ledger"]["weights"].values())
    held = rack.local("/api/v1/status")["instances"][0]["weight_bytes"]
    assert abs(counted / held - 1) < 0.03, (counted, held)


def test_plan_refusals(rack, tmp_path):
    for args, code, words in ((("nosuch",), 3, "nosuch"), (("../../none",), 2, "no model's name"),
                              ((), 2, "MODEL"), (("kimi-k3", "--bogus", "1"), 2, "--bogus"),
                              (("kimi-k3", "--rack", "nowhere"), 3, "nowhere"),
                              (("kimi-k3", "--rack", "hgx-h200", "--slo", "ttft=x"), 2, "ttft"),
                              (("kimi-k3", "--rack", "hgx-h200", "--rate", "-1"), 2, "rate")):
        p = ctl(rack, "plan", "make", *args)
        assert p.returncode == code and words in p.stderr, (args, p.returncode, p.stderr)


def test_an_unknown_rack_is_one_sentence(tmp_path):
    binary = os.path.join(os.environ.get("LLMRACK_BIN", "build"), "llmrackd")
    p = subprocess.run([binary, "--state-dir", str(tmp_path), "--listen", "127.0.0.1:0", "--rack",
                        "no-such-rack", "--model", "none.gguf"], capture_output=True, text=True,
                       timeout=60)
    assert p.returncode != 0 and "no-such-rack" in p.stderr and "--rack" in p.stderr


def test_a_link_that_goes_down_is_told(rack):
    made = subprocess.run(["ip", "link", "add", "lrk0", "type", "veth", "peer", "name", "lrk1"],
                          capture_output=True) if shutil.which("ip") else None
    if not made or made.returncode:
        pytest.skip("no network devices can be made here")
    try:
        subprocess.run(["ip", "link", "set", "lrk1", "up"], check=True)
        for state in "up", "down":
            subprocess.run(["ip", "link", "set", "lrk0", state], check=True)
            rack_module.wait_for(lambda: f"NIC lrk0 is {state}" in rack.logged())
    finally:
        subprocess.run(["ip", "link", "del", "lrk0"], check=True)
    rack_module.wait_for(lambda: "NIC lrk0 is gone" in rack.logged())
