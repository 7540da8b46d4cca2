"""llmrackd --probe nvml: the helper as the daemon starts it, against the fake library."""
import json
import os
import shutil
import signal
import subprocess

import pytest

import rack as rack_module

DAEMON = os.path.join(rack_module.BIN, "llmrackd")
TWO_GPUS = """driver=570.1
count=2
gpu0.uuid=GPU-a
gpu0.pci=00000000:1B:00.0
gpu0.nvlinks=2
gpu0.nvlink.to=hidden
gpu1.rc.nvmlDeviceGetHandleByIndex_v2=15
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """A folder with a libnvidia-ml.so.1 of our own."""
    if not shutil.which("cc"):
        pytest.skip("no compiler")
    folder = tmp_path_factory.mktemp("nvml")
    subprocess.run(["cc", "-std=gnu11", "-D_GNU_SOURCE", "-w", "-shared", "-fPIC", "-I.", "-o",
                    folder / "libnvidia-ml.so.1", "tests/tools/fake_nvml.c"], check=True)
    (folder / "conf").write_text(TWO_GPUS)
    return folder


def probe(text, env):
    p = subprocess.run([DAEMON, "--probe", "nvml"], input=text, capture_output=True, text=True,
                       env=dict(os.environ, **env), timeout=60)
    return p.returncode, [json.loads(line) for line in p.stdout.splitlines()]


def test_no_driver():
    """No library: one line that says so, and no failure of the program."""
    rc, lines = probe("", {"LD_LIBRARY_PATH": "/nonexistent"})
    if "gpus" in lines[0]:
        pytest.skip("this machine has an NVIDIA driver")
    assert rc == 0 and len(lines) == 1 and "libnvidia-ml.so.1" in lines[0]["error"]


def test_lines(library):
    """One report at once and one for each byte; a lost GPU does not hide the other."""
    env = {"LD_LIBRARY_PATH": str(library), "FAKE_NVML": str(library / "conf")}
    rc, lines = probe("\n\n", env)
    assert rc == 0 and len(lines) == 3 and lines[0]["gpus"] == lines[2]["gpus"]
    assert lines[0]["gpus"][0]["pci"] == "0000:1b:00.0"
    assert len(lines[0]["gpus"][0]["nvlinks"]) == 2
    assert lines[0]["gpus"][1] == {"index": 1, "error": "GPU is lost"}


def test_crash(library):
    """A call that dies takes the helper with it."""
    (library / "crash").write_text(TWO_GPUS + "do.nvmlDeviceGetUUID=crash\n")
    rc, lines = probe("", {"LD_LIBRARY_PATH": str(library), "FAKE_NVML": str(library / "crash")})
    assert rc == -6 and lines == []


def findings(r):
    return r.local("/api/v1/findings")["findings"]


@pytest.fixture
def driven(library, monkeypatch):
    """A daemon whose driver says what a file of ours tells it to."""
    conf = library / "driven"
    conf.write_text(TWO_GPUS + "gpu0.name=NVIDIA H200\ngpu0.fabric=2 0 0 0 0 0\n")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    monkeypatch.setenv("FAKE_NVML", str(conf))
    r = rack_module.Rack("--rack", "auto", "--set", "rack_check_s=1", ready=False)
    r.conf = conf
    yield r
    r.stop()


def test_a_fabric_in_progress_is_looked_at_again(driven):
    """Without a signal: the registration ends, and the daemon notices by itself."""
    def joined():
        return not [f for f in findings(driven) if f["kind"] == "fabric"]

    assert not joined()
    assert "fabric in progress" in driven.local("/api/v1/topology")["text"]
    driven.conf.write_text(driven.conf.read_text().replace("fabric=2", "fabric=3"))
    rack_module.wait_for(joined, 60)
    assert "fabric joined" in driven.local("/api/v1/topology")["text"]


def test_health_is_asked_for_again(driven):
    """Without a signal: an Xid becomes a finding and a row of the journal."""
    def said():
        return [f for f in findings(driven) if "Xid 79" in f["text"]]

    assert not said()
    driven.conf.write_text(driven.conf.read_text().replace("fabric=2", "fabric=3") +
                           "gpu0.xid=79\n")
    rack_module.wait_for(said, 60)
    rows = driven.local("/api/v1/journal")["journal"]
    assert [r for r in rows if r["what"] == "rack.changed" and "GPU 0" in r["detail"]]


def test_a_driver_that_hangs_stops_nothing(driven):
    """The rack is read beside the control thread: while the driver hangs it answers."""
    good = driven.conf.read_text().replace("fabric=2", "fabric=3")
    driven.conf.write_text("do.nvmlDeviceGetUUID=hang\n" + good)
    os.kill(driven.p.pid, signal.SIGHUP)
    rack_module.wait_for(lambda: "the rack is read again" in driven.logged())
    seen = 0
    while not [f for f in findings(driven) if "gave no answer" in f["text"]]:
        driven.local("/api/v1/plans")  # a route of the control thread
        seen += 1
        assert seen < 100000
    assert seen > 1, "nothing was answered before the driver's deadline"
    assert driven.local("/api/v1/topology")["devices"]
    driven.conf.write_text(good)
    os.kill(driven.p.pid, signal.SIGHUP)
    rack_module.wait_for(lambda: not [f for f in findings(driven)
                                      if "gave no answer" in f["text"]], 60)
