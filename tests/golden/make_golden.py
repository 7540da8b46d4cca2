#!/usr/bin/env python3
"""Makes demo.npz: what the demo model's logits are, by the float64 reference on its
dequantised weights, and what the peer (llama-cpp-python, F16 KV, 2 threads) makes of them.

    make_golden.py MODEL.gguf prompts.txt demo.npz        (needs gguf and llama-cpp-python)

Each line of prompts.txt is a prompt (\\n: a line break). The text of a prompt is its tokens
and what the reference says next, greedily. Per position are kept: the mean of the
reference's logits, its largest ones, the peer's choice, and both sides' values at a fixed
random choice of columns, which give unbiased RMS errors of the centred logits without
keeping all of them.
"""
import hashlib
import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "model"))
import reference  # noqa: E402

N_NEXT, N_TOP, N_COLS, SEED = 12, 16, 160, 20


def say(ref, ids):
    """ids and the reference's continuation; its logits at every position."""
    ref.clear()
    ids, rows = list(ids), [ref.run(ids)]
    for _ in range(N_NEXT):
        ids.append(int(rows[-1][-1].argmax()))
        rows.append(ref.run(ids[-1:]))
    return ids, np.concatenate(rows)


def main():
    model, prompts, out = sys.argv[1:4]
    from llama_cpp import Llama
    peer = Llama(model, n_ctx=512, n_threads=2, n_threads_batch=2, logits_all=True,
                 verbose=False)
    ref = reference.Reference(*reference.read_gguf(model))
    keep = {k: [] for k in ("ids", "length", "n_prompt", "mean", "top_id", "top", "cols",
                            "peer_mean_error", "peer_cols_error", "peer_top_id")}
    cols = None
    for line in open(prompts, encoding="utf-8"):
        text = line.rstrip("\n").replace("\\n", "\n").replace("\\\n", "\\n")
        prompt = peer.tokenize(text.encode(), add_bos=False, special=True)
        ids, logits = say(ref, prompt)
        if cols is None:
            rng = np.random.default_rng(SEED)
            cols = np.sort(rng.choice(logits.shape[1], N_COLS, replace=False))
        peer.reset()
        peer.eval(ids)
        theirs = np.array(peer.scores[:len(ids)], dtype=np.float64)
        top = np.argsort(-logits, axis=1, kind="stable")[:, :N_TOP]
        error = theirs - logits
        keep["ids"].append(np.array(ids, np.int32))
        keep["length"].append(len(ids))
        keep["n_prompt"].append(len(prompt))
        keep["mean"].append(logits.mean(axis=1).astype(np.float32))
        keep["top_id"].append(top.astype(np.int32))
        keep["top"].append(np.take_along_axis(logits, top, 1).astype(np.float32))
        keep["cols"].append(logits[:, cols].astype(np.float32))
        keep["peer_mean_error"].append(error.mean(axis=1).astype(np.float32))
        keep["peer_top_id"].append(theirs.argmax(axis=1).astype(np.int32))
        keep["peer_cols_error"].append(error[:, cols].astype(np.float16))
        whole = error - error.mean(axis=1, keepdims=True)
        part = whole[:, cols]
        print(f"{len(prompt):3d}+{N_NEXT} tokens, peer's RMS error {np.sqrt((whole**2).mean()):.4f}"
              f" (at the columns {np.sqrt((part**2).mean()):.4f})"
              f" {peer.detokenize(ids[len(prompt):])!r}", flush=True)
    with open(model, "rb") as f:
        sha = hashlib.sha256(f.read()).hexdigest()
    np.savez_compressed(
        out, sha256=sha, col_ids=cols.astype(np.int32), length=np.array(keep["length"]),
        n_prompt=np.array(keep["n_prompt"]),
        **{k: np.concatenate(v) for k, v in keep.items() if k not in ("length", "n_prompt")})
    print(f"{out}: {os.path.getsize(out)} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
