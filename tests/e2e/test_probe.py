"""llmrackd --probe nvml: the helper as the daemon starts it, against the fake library."""
import json
import os
import shutil
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
