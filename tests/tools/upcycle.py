#!/usr/bin/env python3
"""Makes a mixture of experts from a dense llama model: real text, real skew, and an oracle.

    upcycle.py DENSE.gguf OUT.gguf [--experts 8] [--top-k 2]

Every layer gets E copies of its FFN and a router. The weights of the chosen experts sum to
1, so the output equals the dense model's whatever the router picks. The router's rows are
the centres of E clusters of the layer's real hidden states over texts of several kinds, so
that topics really load different experts. Needs numpy and gguf (PyPI). The same input gives
the same bytes.
"""
import argparse
import os
import sys

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "model"))
import reference  # noqa: E402

TOKENS = 64  # of each text
SHARPNESS = 6.0  # logits of a state at its own centre, over the others' mean


def texts():
    """Kinds of text that a reader would tell apart at once."""
    def part(path, n, skip=0):
        with open(os.path.join(ROOT, path), encoding="utf-8") as f:
            return f.read()[skip:skip + n]
    return [part("README.md", 900), part("kernels/cpu_ops.c", 900, 1500),
            part("tests/golden/prompts.txt", 900),
            " ".join(f"{a} + {b} = {a + b}." for a, b in zip(range(11, 90), range(7, 86))),
            "Once upon a time there was a small village by the sea. The fishermen went out "
            "before the sun rose and came home when the bells rang. A girl named Anna waited "
            "for her father on the old pier every evening, and she counted the white sails. " * 3]


def encode(reader, text):
    """Greedy longest match over the file's byte-level vocabulary: near enough to real ids."""
    toks = reader.fields["tokenizer.ggml.tokens"].contents()
    ids = {t: i for i, t in enumerate(toks)}
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    chars, extra = {}, 0
    for b in range(256):
        chars[b] = chr(b) if b in keep else chr(256 + extra)
        extra += b not in keep
    s, out, at = "".join(chars[b] for b in text.encode()), [], 0
    while at < len(s) and len(out) < TOKENS:
        n = next((n for n in range(min(24, len(s) - at), 0, -1) if s[at:at + n] in ids), 1)
        out.append(ids.get(s[at:at + n], 0))
        at += n
    return out


class Watch(reference.Reference):
    """Keeps what goes into each layer's FFN."""

    def __init__(self, cfg, weights):
        super().__init__(cfg, weights)
        self.seen = {}

    def ffn(self, h, p):
        self.seen.setdefault(int(p.split(".")[2]), []).append(h)
        return super().ffn(h, p)


def centres(states, n, rng):
    """k-means on directions from the mean: rows of a router without bias."""
    mean = states.mean(axis=0)
    x = states - mean
    axis = mean / np.linalg.norm(mean)
    x = x - (x @ axis)[:, None] * axis  # what all states share must not choose
    x /= np.linalg.norm(x, axis=1, keepdims=True) + 1e-9
    c = x[rng.choice(len(x), n, replace=False)]
    for _ in range(25):
        near = (x @ c.T).argmax(axis=1)
        for k in range(n):
            rows = x[near == k]
            if len(rows):
                c[k] = rows.sum(axis=0)
                c[k] /= np.linalg.norm(c[k]) + 1e-9
    scale = SHARPNESS / np.sqrt((states ** 2).sum(axis=1).mean())
    return (c * scale).astype(np.float32)


def copy_metadata(reader, out, n, k):
    """All keys of the dense file, then those of the experts."""
    import gguf
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        kind = field.types[0]
        sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        out.add_key_value(field.name, field.contents(), kind, sub_type=sub)
    out.add_expert_count(n)
    out.add_expert_used_count(k)


def main():
    import gguf
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("dense")
    p.add_argument("out")
    p.add_argument("--experts", type=int, default=8)
    p.add_argument("--top-k", type=int, default=2)
    a = p.parse_args()
    reader = gguf.GGUFReader(a.dense)
    if reader.fields["general.architecture"].contents() != "llama":
        raise SystemExit(f"{a.dense}: a dense model of architecture llama would be right")
    watch = Watch(*reference.read_gguf(a.dense))
    for text in texts():
        watch.clear()
        watch.run(encode(reader, text))
    rng = np.random.default_rng(1)
    out = gguf.GGUFWriter(a.out + ".part", "llama")
    copy_metadata(reader, out, a.experts, a.top_k)
    for t in reader.tensors:
        parts = t.name.split(".")
        if parts[0] == "blk" and parts[2] in ("ffn_gate", "ffn_up", "ffn_down"):
            out.add_tensor(f"blk.{parts[1]}.{parts[2]}_exps.weight",
                           np.stack([t.data] * a.experts), raw_dtype=t.tensor_type)
        else:
            out.add_tensor(t.name, t.data, raw_dtype=t.tensor_type)
    for layer, states in sorted(watch.seen.items()):
        router = centres(np.concatenate(states), a.experts, rng)
        out.add_tensor(f"blk.{layer}.ffn_gate_inp.weight", router)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    os.replace(a.out + ".part", a.out)


if __name__ == "__main__":
    main()
