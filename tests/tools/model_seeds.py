#!/usr/bin/env python3
"""Writes the seeds of the model file fuzzers: model_seeds.py tests/fuzz/seeds

Small right files from which the fuzzers set out; the same bytes at each run. Needs numpy
and gguf (PyPI)."""
import json
import os
import sys

import numpy as np
import gguf

import tiny_models


def gguf_seed(path, arch, more):
    w = gguf.GGUFWriter(path, arch)
    w.add_name("seed")
    w.add_block_count(1)
    w.add_context_length(16)
    w.add_embedding_length(32)
    w.add_feed_forward_length(32)
    w.add_head_count(2)
    w.add_head_count_kv(1)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_token_list(["a", "b", "<|x|>"])
    w.add_token_types([1, 1, 3])
    w.add_token_scores([0.0, -1.0, -2.0])
    if more:
        w.add_bool("a", True)
        w.add_array("b", [1.5, 2.5])
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(2.0)
        w.add_custom_alignment(64)
    w.add_tensor("token_embd.weight", np.zeros((3, 34), np.uint8),
                 raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    w.add_tensor("output_norm.weight", np.zeros(32, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    out = sys.argv[1]
    for kind in ("gguf", "safetensors", "hfconfig"):
        os.makedirs(os.path.join(out, kind), exist_ok=True)
    gguf_seed(os.path.join(out, "gguf", "plain"), "llama", False)
    gguf_seed(os.path.join(out, "gguf", "more"), "qwen2", True)
    tiny_models.write_safetensors(os.path.join(out, "safetensors", "single"), {
        "model.norm.weight": ("BF16", (4,), bytes(8)),
        "lm_head.weight": ("F32", (2, 2), bytes(16)), "x": ("I64", (), bytes(8))})
    with open(os.path.join(out, "safetensors", "index"), "w", encoding="utf-8") as f:
        json.dump({"metadata": {"total_size": 24},
                   "weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}, f)
    for name, spec in (("llama3", tiny_models.Spec(rope="llama3", extra=True)),
                       ("mistral", tiny_models.Spec(family="mistral", sliding_window=8)),
                       ("qwen3", tiny_models.Spec(family="qwen3", rope="linear",
                                                  rope_key="rope_parameters"))):
        with open(os.path.join(out, "hfconfig", name), "w", encoding="utf-8") as f:
            json.dump(tiny_models.hf_config(spec), f)


if __name__ == "__main__":
    main()
