"""BF16 and quantised models over meshes of ranks, by test_replay --check: teacher-forced with
one rank's routing replayed, and free, where choices may differ only within the measured
error. Differences are counted and printed (pytest -s)."""
import os
import re
import subprocess
import sys

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests/tools"))
TOOL = os.path.join(ROOT, "build/rel/tests/model/test_replay")

# Normalised error of logits, replayed. Sums over ranks differ from one rank's in the last
# bit; what they carry over a border moves by a step of the type: 2^-8 in BF16, of int8
# activations 1/127 of the largest in a block.
BOUND = {"BF16": 1e-2, "FP8": 1e-2, "Q8_0": 2e-2, "Q4_1": 3e-2, "MXFP4": 3e-2}

DENSE = ["tp2", "tp4 sp", "tp4 pp2", "cp4 ring", "cp2 tp2 pp2 sp striped",
         "cp2 tp2 pp2 ulysses"]
EXPERTS = ["tp2 ep2", "tp4 ep4 sp", "tp4 pp2 ep4", "adp4 ep4", "adp2 tp2 sp ep4",
           "adp2 cp2 ep4 ring", "cp2 tp2 pp2 ep4 sp striped", "cp4 ep4 usp cp_u2"]

MODELS = [("llama", "BF16", DENSE), ("qwen3", "Q8_0", DENSE), ("llama", "Q4_1", DENSE),
          ("mixtral", "BF16", EXPERTS), ("mixtral", "Q4_1", EXPERTS),
          ("qwen2_moe", "Q8_0", EXPERTS), ("qwen3_moe", "BF16", EXPERTS),
          ("qwen3_moe", "Q4_1", EXPERTS), ("olmoe", "Q8_0", EXPERTS),
          ("gpt_oss", "MXFP4", EXPERTS), ("deepseek_v2", "Q8_0", EXPERTS),
          ("deepseek_v3", "FP8", EXPERTS), ("kimi_k2", "BF16", EXPERTS)]


@pytest.mark.parametrize("family,kind,layouts", MODELS,
                         ids=[f"{f}-{k}" for f, k, _ in MODELS])
def test_types(tmp_path, family, kind, layouts):
    tiny_models = pytest.importorskip("tiny_models")
    pytest.importorskip("gguf")
    folder = kind in ("FP8", "BF16", "MXFP4")
    path = str(tmp_path / ("model" if folder else "model.gguf"))
    # heads and widths such that a block of 32 is never cut
    spec = tiny_models.Spec(family=family, type=kind, n_ff=256, seed=3,
                            head_dim=0 if tiny_models.MLA.get(family) else 32)
    tiny_models.write(spec, path)
    kv = "bf16" if kind == "BF16" else "f16"
    p = subprocess.run([TOOL, "--check", path, kv, str(BOUND[kind]), *layouts],
                       capture_output=True, text=True, timeout=120, check=False)
    print(p.stdout, p.stderr)
    assert p.returncode == 0, p.stdout + p.stderr
    # every layout ran both ways; replayed runs lose no row
    assert len(re.findall("replayed", p.stdout)) == len(layouts)
    assert len(re.findall(" free ", p.stdout)) == (len(layouts) if layouts is EXPERTS else 0)
