#!/usr/bin/env python3
"""Rows of tests/unit/test_dtype.c: a few values of seeded blocks of every block format, as
the `gguf` package (PyPI) dequantises them. Run it and paste what it prints."""
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "MXFP4": []}
AT = (0, 1, 17, 63, 128, 255)


def fill(n):
    state, out = 12345, np.empty(n, np.uint8)
    for i in range(n):
        state = (state * 1664525 + 1013904223) % 2**32
        out[i] = state >> 24
    return out


for name, halves in HALVES.items():
    t = GGMLQuantizationType[name]
    elems, size = GGML_QUANT_SIZES[t]
    raw = fill(256 // elems * size).reshape(-1, size)
    for at in halves:
        raw[:, at + 1] = raw[:, at + 1] & 0x83 | 0x20  # halves of size 2^-7 to 2^-6
    if name == "MXFP4":
        raw[:, 0] = 124 + raw[:, 0] % 4  # scales of 2^-4 to 2^-1
    v = quants.dequantize(raw.reshape(1, -1), t).astype(np.float32).ravel() + np.float32(0)  # no -0
    total = np.uint32(v.view(np.uint32).astype(np.uint64).sum() % 2**32)
    print("    {DT_%s, {%s}, 0x%08x}," % (name, ", ".join("%sf" % float(v[i]).hex() for i in AT), total))
