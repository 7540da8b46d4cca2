"""Logits of forward passes against the float64 reference: tiny random models of each
family and type on every backend and instruction set, and the demo model against its golden
values. The passes are run by build/.../tests/model/test_forward --dump."""
import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path += [HERE, os.path.join(ROOT, "tests", "tools")]
import reference  # noqa: E402

TOOL = os.path.join(ROOT, os.environ.get("LLMRACK_OBJ", "build/rel"), "tests/model/test_forward")
DEMO = os.environ.get("DEMO_MODEL") or os.path.join(
    ROOT, "var/models/SmolLM2-135M-Instruct.Q4_1.gguf")
GOLDEN = os.path.join(ROOT, "tests/golden/demo.npz")
ISAS = ["portable", "avx2", "avx512"]
N_TOK = 90

# Largest error of centred logits, RMS over RMS of the reference's. F32 and F16 matrices are
# multiplied in f32; BF16 rounds the activations to 8 bits of mantissa (in FP8 folders
# the router and the head are BF16), the others to int8
# in blocks of 32. KV is F16 (11 bits) or BF16 (8 bits).
BOUND = {"F32": 1e-3, "F16": 1e-3, "BF16": 1e-2, "FP8": 1e-2}
ROUTER_GAP = 0.1  # of logits that rounded activations may turn round
BOUND_QUANT, BOUND_KV_BF16, BOUND_QUANT_KV_BF16 = 3e-2, 1e-2, 5e-2


def run(model, seqs, backend="cpu", isa="auto", kv="f16", threads=2, budget=64):
    """Logits of each id list, or a skip where this machine lacks the instruction set."""
    data = b"".join(np.array([len(s), *s], np.int32).tobytes() for s in seqs)
    p = subprocess.run([TOOL, "--dump", model, backend, isa, kv, str(threads), str(budget)],
                       input=data, stdout=subprocess.PIPE, check=False)
    if p.returncode == 3:
        pytest.skip(f"no {isa} here")
    assert p.returncode == 0
    n = sum(len(s) for s in seqs)
    out = np.frombuffer(p.stdout, np.float32).reshape(n, -1)
    return np.split(out, np.cumsum([len(s) for s in seqs])[:-1])


def centred(x):
    return x - x.mean(axis=1, keepdims=True)


def error(ours, ref):
    e = centred(ours.astype(np.float64)) - centred(ref)
    return np.sqrt((e * e).mean()) / np.sqrt((centred(ref) ** 2).mean())


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Folder with one of everything, and the reference's logits by name."""
    tiny_models = pytest.importorskip("tiny_models")
    pytest.importorskip("gguf")
    folder = str(tmp_path_factory.mktemp("tiny"))
    ids = [int(x) for x in np.random.default_rng(3).integers(0, 320, N_TOK)]
    refs = {}
    for name in tiny_models.write_all(folder):
        npz = os.path.join(folder, name.replace(".gguf", "-gguf") + ".npz")
        model = reference.Reference(*reference.read_npz(npz))
        refs[name] = model.run(ids), model.margin
    return folder, ids, refs


def kind_of(name):
    return name.replace(".gguf", "").split("-")[1]


def bound_of(name, kv):
    kind = kind_of(name)
    if kind in BOUND:
        return max(BOUND[kind], BOUND_KV_BF16 if kv == "bf16" else 0)
    return BOUND_QUANT_KV_BF16 if kv == "bf16" else BOUND_QUANT


@pytest.mark.parametrize("backend,isa,kv", [("cpu", i, "f16") for i in ISAS] +
                         [("cpu", "auto", "bf16"), ("far", "auto", "f16")])
def test_tiny_models(tiny, backend, isa, kv):
    folder, ids, refs = tiny
    for name, (ref, margin) in refs.items():
        ours = run(os.path.join(folder, name), [ids], backend, isa, kv)[0]
        # where the router of a rounded model is undecided it may choose otherwise
        rows = margin > (0 if kind_of(name) in ("F32", "F16") else ROUTER_GAP)
        assert rows.mean() > 0.7, f"{name}: {rows.mean():.2f}"
        e, bound = error(ours[rows], ref[rows]), bound_of(name, kv)
        print(f"{name:36s} {backend} {isa:8s} {kv} {e:.2e} (bound {bound:.1e})")
        assert np.isfinite(ours).all()
        assert e <= bound, f"{name} on {backend} {isa}: error {e:.2e}, bound {bound:.1e}"


def test_bound_sees_faults(tiny):
    """The F32 bound is tight enough: half a percent on one matrix is over it."""
    folder, ids, refs = tiny
    cfg, w = reference.read_npz(os.path.join(folder, "llama-F32-gguf.npz"))
    w["model.layers.0.mlp.up_proj.weight"] *= 1.005
    off = reference.Reference(cfg, w).run(ids)
    assert error(off, refs["llama-F32.gguf"][0]) > BOUND["F32"]
    cfg, w = reference.read_npz(os.path.join(folder, "qwen3_moe-F32-gguf.npz"))
    cfg.normalise = False
    off = reference.Reference(cfg, w).run(ids)
    assert error(off, refs["qwen3_moe-F32.gguf"][0]) > BOUND["F32"]


# ---------------------------------------------------------------- the demo model


@pytest.fixture(scope="session")
def golden():
    if not os.path.exists(DEMO):
        pytest.skip("no demo model")
    g = dict(np.load(GOLDEN))
    with open(DEMO, "rb") as f:
        if hashlib.sha256(f.read()).hexdigest() != str(g["sha256"]):
            pytest.skip("another demo model")
    g["seqs"] = np.split(g["ids"], np.cumsum(g["length"])[:-1])
    # both sides' centred values at the golden columns and at the reference's largest
    g["ref_cols"] = g["cols"].astype(np.float64) - g["mean"][:, None]
    g["ref_top"] = g["top"].astype(np.float64) - g["mean"][:, None]
    g["peer_error"] = g["peer_cols_error"].astype(np.float64) - g["peer_mean_error"][:, None]
    return g


@pytest.fixture(scope="session")
def demo_logits(golden):
    """Our centred logits of the first n golden texts, each kind of run made once."""
    seen = {}

    def get(kv, isa, n):
        if (kv, isa, n) not in seen:
            texts = [list(s) for s in golden["seqs"][:n]]
            seen[kv, isa, n] = np.concatenate(
                [centred(x.astype(np.float64)) for x in run(DEMO, texts, isa=isa, kv=kv)])
        return seen[kv, isa, n]
    return get


def rms(x):
    return float(np.sqrt((x * x).mean()))


@pytest.mark.parametrize("isa,n", [("portable", 4), ("avx2", 20), ("auto", 20)])
def test_demo_error_beside_peer(golden, demo_logits, isa, n):
    ours = demo_logits("f16", isa, n)
    rows = slice(len(ours))
    e = rms(ours[:, golden["col_ids"]] - golden["ref_cols"][rows])
    peer = rms(golden["peer_error"][rows])
    print(f"{isa}: RMS error of centred logits {e:.4f}, peer {peer:.4f}, ratio {e / peer:.3f}")
    assert e <= 1.1 * peer


@pytest.mark.parametrize("kv", ["f16", "bf16"])
def test_demo_argmax(golden, demo_logits, kv):
    """Along the reference's own text the next token is the same wherever the reference is
    sure: its two best further apart than twice the largest error at that step. Where it is
    not sure a different choice is no fault; there are no more of them than the peer has,
    within what chance does to so few."""
    g, ours = golden, demo_logits(kv, "auto", 20)
    top_err = np.abs(np.take_along_axis(ours, g["top_id"], 1) - g["ref_top"])
    col_err = np.abs(ours[:, g["col_ids"]] - g["ref_cols"])
    worst = np.maximum(top_err.max(axis=1), col_err.max(axis=1))
    gap = g["ref_top"][:, 0] - g["ref_top"][:, 1]
    sure = gap > 2 * worst
    differs = ours.argmax(axis=1) != g["top_id"][:, 0]
    peer_differs = g["peer_top_id"] != g["top_id"][:, 0]
    end = np.cumsum(g["length"])
    said = np.zeros(len(gap), bool)  # positions whose next token the reference chose
    for a, b in zip(end - g["length"] + g["n_prompt"] - 1, end):
        said[a:b] = True
    for i in np.flatnonzero(differs):
        print(f"differs: position {i}, gap {gap[i]:.3f}, largest error {worst[i]:.3f}")
    for name, at in (("reference's text", said), ("all positions", np.ones_like(said))):
        print(f"{kv}, {name}: {at.sum()} steps, {(at & ~sure).sum()} unsure; "
              f"{(differs & at).sum()} differ, {(peer_differs & at).sum()} of the peer's")
    assert not (differs & sure).any()
    assert differs.sum() <= peer_differs.sum() + 3 * np.sqrt(peer_differs.sum())
