"""The short form of `make crash-test`: SIGKILL at named steps and at random moments."""
import os
import re
import subprocess
import sys

import pytest
from rack import BIN, MODEL

FAULTS = os.path.join(BIN, "llmrackd-faults")


@pytest.mark.skipif(not os.path.exists(FAULTS), reason=f"not there: {FAULTS}")
def test_killed_and_nothing_lost():
    p = subprocess.run([sys.executable, "tests/fault/crash.py", "--bin", FAULTS, "--model",
                        MODEL, "--kills", "25", "--seed", str(os.getpid())],
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                       timeout=300)
    print(p.stdout)
    assert p.returncode == 0
    m = re.fullmatch(r"kills: (\d+), lost: 0", p.stdout.splitlines()[-1])
    assert m and int(m[1]) >= 25
