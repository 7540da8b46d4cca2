#!/usr/bin/env python3
"""The mixture-of-experts shape of shared/bench/make_gguf.py in Q4_1, whose own output is 16 bit.

usage: moe_shape.py SHARED OUT.gguf
Its generator runs with the name F16 standing for Q4_1: same shape, same random weights."""
import os
import sys
import types

import gguf


class Types:
    F16 = gguf.GGMLQuantizationType.Q4_1
    BF16 = gguf.GGMLQuantizationType.BF16
    F32 = gguf.GGMLQuantizationType.F32


class Writer(gguf.GGUFWriter):
    def add_file_type(self, ftype):
        super().add_file_type(3 if ftype == 1 else ftype)  # mostly Q4_1


def main():
    shared, out = sys.argv[1:3]
    sys.path.insert(0, os.path.join(shared, "bench"))
    import make_gguf
    make_gguf.gguf = types.SimpleNamespace(GGUFWriter=Writer, GGMLQuantizationType=Types,
                                           quants=gguf.quants)
    sys.argv = ["make_gguf.py", "moe", "f16", out + ".part"]
    make_gguf.main()
    os.rename(out + ".part", out)


if __name__ == "__main__":
    main()
