#!/usr/bin/env python3
"""Makes tiny random models of each family, as GGUF or as a Hugging Face folder.

The same seed and options give the same bytes. Needs numpy, and gguf (PyPI) for GGUF.

    tiny_models.py --family llama --type Q4_1 out.gguf
    tiny_models.py --family qwen3 --type BF16 --shards 3 --weights ref.npz out-folder
    tiny_models.py --all DIR        one of everything that the tests use

A path that ends in .gguf makes a GGUF file, any other one a folder. From Python:

    import tiny_models
    spec = tiny_models.Spec(family="llama", type="Q8_0", rope="llama3", tied=True)
    weights = tiny_models.write(spec, path)

write() returns (and --weights saves, with the hyper-parameters as JSON under "spec") the
weights as the file holds them, dequantised to float32, by Hugging Face name and in Hugging
Face order: rotary pairs are (j, j + d/2) for every family. GGUF files of architecture
llama hold q and k with the rows of each head interleaved; what is returned is not.
"""
import argparse
import dataclasses
import json
import os
import struct
import sys

import numpy as np

FAMILIES = {
    # model_type, GGUF architecture, default of head_dim (None: n_embd / n_head)
    "llama": dict(arch="llama", cls="LlamaForCausalLM", permuted=True, head_dim=None),
    "mistral": dict(arch="llama", cls="MistralForCausalLM", permuted=True, head_dim=None),
    "qwen2": dict(arch="qwen2", cls="Qwen2ForCausalLM", permuted=False, head_dim=None),
    "qwen3": dict(arch="qwen3", cls="Qwen3ForCausalLM", permuted=False, head_dim=32),
    "mixtral": dict(arch="llama", cls="MixtralForCausalLM", permuted=True, head_dim=None),
    "qwen2_moe": dict(arch="qwen2moe", cls="Qwen2MoeForCausalLM", permuted=False, head_dim=None),
    "qwen3_moe": dict(arch="qwen3moe", cls="Qwen3MoeForCausalLM", permuted=False, head_dim=32),
    "olmoe": dict(arch="olmoe", cls="OlmoeForCausalLM", permuted=False, head_dim=None),
    "gpt_oss": dict(arch="gpt-oss", cls="GptOssForCausalLM", permuted=False, head_dim=32),
    "deepseek_v2": dict(arch="deepseek2", cls="DeepseekV2ForCausalLM", permuted=False,
                        head_dim=None),
    "deepseek_v3": dict(arch="deepseek2", cls="DeepseekV3ForCausalLM", permuted=False,
                        head_dim=None),
    "kimi_k2": dict(arch="deepseek2", cls="KimiK2ForCausalLM", permuted=False, head_dim=None),
}
# Mixtures of experts: (number, chosen, width, width of the shared one), are weights normalised
MOE = {"mixtral": (4, 2, 96, 0, True), "qwen2_moe": (6, 3, 48, 64, False),
       "qwen3_moe": (8, 2, 48, 0, True), "olmoe": (8, 3, 96, 0, False),
       "gpt_oss": (8, 3, 96, 0, False), "deepseek_v2": (8, 3, 48, 96, False),
       "deepseek_v3": (8, 2, 48, 48, True), "kimi_k2": (8, 2, 48, 48, True)}
# Latent attention: q_lora, kv_lora, nope, rope, v; groups of experts and how many count,
# the experts' scale, the first layers without experts.
MLA = {"deepseek_v2": ((0, 64, 32, 16, 32), (4, 2, 2.0, 1)),
       "deepseek_v3": ((96, 64, 32, 16, 32), (2, 1, 2.5, 1)),
       "kimi_k2": ((96, 64, 32, 16, 32), (1, 1, 1.5, 1))}
BF16_SEED = {"gpt_oss": 5, "deepseek_v2": 5, "deepseek_v3": 8, "kimi_k2": 2}
# What a folder of Mixtral calls the parts, from the names of the other families.
MIXTRAL_NAMES = {"mlp.gate.": "block_sparse_moe.gate.", "mlp.experts.": "block_sparse_moe.experts.",
                 ".gate_proj.": ".w1.", ".up_proj.": ".w3.", ".down_proj.": ".w2."}
GGUF_TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1",
              "Q4_K", "Q5_K", "Q6_K", "MXFP4"]
HF_TYPES = ["F32", "F16", "BF16", "MXFP4", "FP8"]
# What takes the place of a type whose block does not divide the row.
FALLBACK = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=64)
MSCALE = 0.8  # of deepseek's yarn, for all dimensions
YARN = dict(factor=8.0, beta_fast=8.0, beta_slow=1.0, original_max_position_embeddings=64)


@dataclasses.dataclass
class Spec:
    family: str = "llama"
    type: str = "F32"
    tied: bool = False
    rope: str = "none"  # none | linear | llama3 | yarn
    seed: int = 1
    n_layer: int = 0  # 0: 2, or 3 for families with dense layers first
    n_embd: int = 0  # 0: 64, or 256 for the K types
    n_head: int = 4
    n_kv_head: int = 2
    head_dim: int = 0  # 0: the family's habit
    n_ff: int = 0  # 0: 96, or 512 for the K types
    n_vocab: int = 320
    n_ctx: int = 512
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_factor: float = 4.0  # of linear scaling
    sliding_window: int = 0
    qkv_bias: bool = False  # qwen2 has it always
    shards: int = 1
    # What differs between writers of config.json; both must load.
    rope_key: str = "rope_type"  # rope_type | type | rope_parameters
    prefix: str = "model."
    split_kv_b: bool = False  # latent attention in GGUF: kv_b as its two parts
    extra: bool = False  # tensors and keys that a loader must pass over

    def __post_init__(self):
        if self.family not in FAMILIES:
            raise SystemExit(f"unknown family '{self.family}': {', '.join(FAMILIES)}")
        if self.type not in [*GGUF_TYPES, *HF_TYPES]:
            raise SystemExit(f"unknown type '{self.type}': {', '.join(GGUF_TYPES)}, FP8")
        wide = self.type.endswith("_K")
        self.n_embd = self.n_embd or (256 if wide else 64)
        self.n_ff = self.n_ff or (512 if wide else 96)
        self.head_dim = (self.head_dim or FAMILIES[self.family]["head_dim"]
                         or self.n_embd // self.n_head)
        self.qkv_bias = self.qkv_bias or self.family in ("qwen2", "qwen2_moe", "gpt_oss")
        self.n_layer = self.n_layer or (3 if self.mla else 2)
        if self.mla:
            self.rope = "yarn"
            self.n_kv_head = self.n_head
        if self.family == "gpt_oss":
            self.rope, self.sliding_window = "yarn", self.sliding_window or 16

    @property
    def qk_norm(self):
        return self.family in ("qwen3", "qwen3_moe", "olmoe")

    @property
    def mla(self):
        return MLA.get(self.family)

    @property
    def moe(self):
        return MOE.get(self.family)


# ---------------------------------------------------------------- weights


def draw(spec):
    """Weights by Hugging Face name (float32), in file order."""
    rng = np.random.default_rng(spec.seed)
    d, q_dim, kv_dim = spec.n_embd, spec.n_head * spec.head_dim, spec.n_kv_head * spec.head_dim

    def mat(rows, cols, gain=1.0):
        w = rng.standard_normal((rows, cols)) * (gain / np.sqrt(cols))
        return w.astype(np.float32)

    def vec(n, mean=0.0, std=0.1):
        return (mean + std * rng.standard_normal(n)).astype(np.float32)

    w = {"model.embed_tokens.weight": mat(spec.n_vocab, d, np.sqrt(d))}
    for i in range(spec.n_layer):
        p = f"model.layers.{i}."
        w[p + "input_layernorm.weight"] = vec(d, 1.0)
        if spec.mla:
            q_lora, kv_lora, nope, rope, v = spec.mla[0]
            q, q_dim = spec.n_head * (nope + rope), spec.n_head * v
            if q_lora:
                w[p + "self_attn.q_a_proj.weight"] = mat(q_lora, d)
                w[p + "self_attn.q_a_layernorm.weight"] = vec(q_lora, 1.0)
                w[p + "self_attn.q_b_proj.weight"] = mat(q, q_lora)
            else:
                w[p + "self_attn.q_proj.weight"] = mat(q, d)
            w[p + "self_attn.kv_a_proj_with_mqa.weight"] = mat(kv_lora + rope, d)
            w[p + "self_attn.kv_a_layernorm.weight"] = vec(kv_lora, 1.0)
            w[p + "self_attn.kv_b_proj.weight"] = mat(spec.n_head * (nope + v), kv_lora)
        for x, n in (("q", q_dim), ("k", kv_dim), ("v", kv_dim)) if not spec.mla else ():
            w[p + f"self_attn.{x}_proj.weight"] = mat(n, d, 1.5 if spec.rope != "yarn" else 1.0)
            if spec.qkv_bias:
                w[p + f"self_attn.{x}_proj.bias"] = vec(n, 0.0, 0.3)
            if spec.qk_norm and x != "v":
                width = n if spec.family == "olmoe" else spec.head_dim
                w[p + f"self_attn.{x}_norm.weight"] = vec(width, 1.0, 0.3)
        w[p + "self_attn.o_proj.weight"] = mat(d, q_dim)
        if spec.family == "gpt_oss":
            w[p + "self_attn.o_proj.bias"] = vec(d, 0.0, 0.3)
            w[p + "self_attn.sinks"] = vec(spec.n_head, 0.5, 1.5)
        w[p + "post_attention_layernorm.weight"] = vec(d, 1.0)
        if spec.moe and not (spec.mla and i < spec.mla[1][3]):
            n, _, ff, shared, _ = spec.moe
            w[p + "mlp.gate.weight"] = mat(n, d, 4.0)  # a decided router
            if spec.family == "gpt_oss":
                w[p + "mlp.gate.bias"] = vec(n, 0.0, 1.0)
            if spec.family in ("deepseek_v3", "kimi_k2"):
                w[p + "mlp.gate.e_score_correction_bias"] = vec(n, 0.3, 0.2)
            for x in range(n):
                # gpt-oss: some values beyond the limit of 7
                for part, rows, cols in (("gate", ff, d), ("up", ff, d), ("down", d, ff)):
                    wide = {"down": 0.3}.get(part, 2.5) if spec.family == "gpt_oss" else 1.0
                    w[p + f"mlp.experts.{x}.{part}_proj.weight"] = mat(rows, cols, wide)
                    if spec.family == "gpt_oss":
                        w[p + f"mlp.experts.{x}.{part}_proj.bias"] = vec(rows, 0.0, 0.5)
            if shared:
                name = p + ("mlp.shared_experts." if spec.mla else "mlp.shared_expert.")
                if not spec.mla:
                    w[p + "mlp.shared_expert_gate.weight"] = mat(1, d)
                w[name + "gate_proj.weight"] = mat(shared, d)
                w[name + "up_proj.weight"] = mat(shared, d)
                w[name + "down_proj.weight"] = mat(d, shared)
            continue
        w[p + "mlp.gate_proj.weight"] = mat(spec.n_ff, d)
        w[p + "mlp.up_proj.weight"] = mat(spec.n_ff, d)
        w[p + "mlp.down_proj.weight"] = mat(d, spec.n_ff)
    w["model.norm.weight"] = vec(d, 1.0)
    if not spec.tied:
        w["lm_head.weight"] = mat(spec.n_vocab, d, 2.0)
    return w


def llama3_factors(spec):
    """What each inverse frequency is divided by (the published llama3 rule)."""
    n = spec.head_dim // 2
    inv = spec.rope_theta ** (-2.0 * np.arange(n) / spec.head_dim)
    wave = 2 * np.pi / inv
    low, high = LLAMA3["low_freq_factor"], LLAMA3["high_freq_factor"]
    orig, factor = LLAMA3["original_max_position_embeddings"], LLAMA3["factor"]
    smooth = (orig / wave - low) / (high - low)
    mid = 1.0 / ((1 - smooth) / factor + smooth)
    return np.where(wave < orig / high, 1.0, np.where(wave > orig / low, factor, mid))


# ---------------------------------------------------------------- block formats


def pack_k(kind, values, rng):
    """Random valid blocks with about the spread of values: uint8 [rows, bytes]."""
    rows, cols = values.shape
    n, std = rows * cols // 256, float(values.std())

    def halves(x):
        x = x * (0.5 + rng.random(n))
        return x.astype(np.float16).view(np.uint8).reshape(n, 2)

    if kind == "Q6_K":
        ql = rng.integers(0, 256, (n, 128), dtype=np.uint8)
        qh = rng.integers(0, 256, (n, 64), dtype=np.uint8)
        scales = rng.integers(-32, 33, (n, 16)).astype(np.int8).view(np.uint8)
        block = np.concatenate([ql, qh, scales, halves(std / 350)], axis=1)
    else:
        top = 15 if kind == "Q4_K" else 31
        d = std / (11.0 * top)
        parts = [halves(d), halves(d * top / 2), rng.integers(0, 256, (n, 12), dtype=np.uint8)]
        if kind == "Q5_K":
            parts.append(rng.integers(0, 256, (n, 32), dtype=np.uint8))
        parts.append(rng.integers(0, 256, (n, 128), dtype=np.uint8))
        block = np.concatenate(parts, axis=1)
    return np.ascontiguousarray(block.reshape(rows, -1))


def to_bf16(a):
    u = np.ascontiguousarray(a, dtype=np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(u):
    return (u.astype(np.uint32) << 16).view(np.float32)


# ---------------------------------------------------------------- vocabulary


def byte_chars():
    """The 256 letters that byte-level BPE writes bytes as, by byte."""
    keep = [*range(33, 127), *range(161, 173), *range(174, 256)]
    out, extra = {}, 0
    for b in range(256):
        out[b] = chr(b) if b in keep else chr(256 + extra)
        extra += b not in keep
    return [out[b] for b in range(256)]


def vocabulary(spec):
    """Tokens, merges, special ids: 256 bytes, a few merges, three specials, padding."""
    chars = byte_chars()
    sp = chars[32]
    merges = [(sp, "t"), ("h", "e"), (sp + "t", "he"), ("i", "n"), (sp, "a"), ("e", "r")]
    tokens = chars + [a + b for a, b in merges]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    if spec.n_vocab < len(tokens) + len(special):
        raise SystemExit(f"--vocab must be at least {len(tokens) + len(special)}")
    first = len(tokens)
    tokens = tokens + special
    n_pad = spec.n_vocab - len(tokens)
    return tokens + [f"<pad{i}>" for i in range(n_pad)], merges, first, len(special)


# ---------------------------------------------------------------- GGUF


def gguf_name(name, arch):
    table = {"embed_tokens": "token_embd", "norm": "output_norm", "input_layernorm": "attn_norm",
             "post_attention_layernorm": "ffn_norm", "q_proj": "attn_q", "k_proj": "attn_k",
             "v_proj": "attn_v", "o_proj": "attn_output", "q_norm": "attn_q_norm",
             "k_norm": "attn_k_norm", "gate_proj": "ffn_gate", "up_proj": "ffn_up",
             "down_proj": "ffn_down", "lm_head": "output", "gate": "ffn_gate_inp",
             "shared_expert_gate": "ffn_gate_inp_shexp", "q_a_proj": "attn_q_a",
             "q_a_layernorm": "attn_q_a_norm", "q_b_proj": "attn_q_b",
             "kv_a_proj_with_mqa": "attn_kv_a_mqa", "kv_a_layernorm": "attn_kv_a_norm",
             "kv_b_proj": "attn_kv_b", "k_b_proj": "attn_k_b", "v_b_proj": "attn_v_b"}
    parts = name.split(".")
    block = f"blk.{parts[2]}." if parts[1] == "layers" else ""
    if parts[-1] == "sinks":
        return f"{block}attn_sinks.weight"
    if arch == "gpt-oss" and "post_attention_layernorm" in parts:
        return f"{block}post_attention_norm.weight"
    if "experts" in parts:
        return f"{block}{table[parts[-2]]}_exps.{parts[-1]}"
    if parts[-1] == "e_score_correction_bias":
        return f"{block}exp_probs_b.bias"
    if "shared_expert" in parts or "shared_experts" in parts:
        return f"{block}{table[parts[-2]]}_shexp.weight"
    return f"{block}{table[parts[-2]]}.{parts[-1]}"


def interleave(spec, n_head):
    """Row order that turns pairs (j, j + d/2) of each head into (2j, 2j + 1)."""
    half = spec.head_dim // 2
    order = np.arange(spec.head_dim).reshape(2, half).T.reshape(-1)
    return (np.arange(n_head)[:, None] * spec.head_dim + order).reshape(-1)


def split_kv_b(spec, parts):
    """kv_b as files of latent attention have it: K's part turned, a plane a head."""
    _, kv_lora, nope, _, v = spec.mla[0]
    out = []
    for name, w in parts:
        if name.endswith("kv_b_proj.weight"):
            w = w.reshape(spec.n_head, nope + v, kv_lora)
            out.append((name.replace("kv_b_proj", "k_b_proj"),
                        np.ascontiguousarray(w[:, :nope].swapaxes(1, 2))))
            out.append((name.replace("kv_b_proj", "v_b_proj"), np.ascontiguousarray(w[:, nope:])))
        else:
            out.append((name, w))
    return out


def join_kv_b(spec, weights):
    for name in [n for n in weights if n.endswith(".k_b_proj.weight")]:
        k = weights.pop(name).swapaxes(1, 2)
        v = weights.pop(name.replace(".k_b", ".v_b"))
        weights[name.replace(".k_b", ".kv_b")] = np.concatenate([k, v], axis=1).reshape(
            -1, k.shape[2])


def write_gguf(spec, path):
    import gguf
    fam, rng = FAMILIES[spec.family], np.random.default_rng(spec.seed + 1)
    out = gguf.GGUFWriter(path, fam["arch"])
    out.add_name(f"tiny {spec.family}")
    out.add_block_count(spec.n_layer)
    out.add_context_length(spec.n_ctx)
    out.add_embedding_length(spec.n_embd)
    out.add_feed_forward_length(spec.n_ff)
    out.add_head_count(spec.n_head)
    out.add_head_count_kv(1 if spec.split_kv_b else spec.n_kv_head)
    out.add_layer_norm_rms_eps(spec.norm_eps)
    out.add_rope_freq_base(spec.rope_theta)
    out.add_vocab_size(spec.n_vocab)
    if spec.rope == "yarn":
        out.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        out.add_rope_scaling_factor(YARN["factor"])
        out.add_rope_scaling_orig_ctx_len(YARN["original_max_position_embeddings"])
        out.add_rope_scaling_yarn_beta_fast(YARN["beta_fast"])
        out.add_rope_scaling_yarn_beta_slow(YARN["beta_slow"])
    if spec.mla:
        (q_lora, kv_lora, nope, rope, v), (n_group, top_group, scale, dense) = spec.mla
        if q_lora:
            out.add_q_lora_rank(q_lora)
        out.add_kv_lora_rank(kv_lora)
        out.add_rope_dimension_count(rope)
        if spec.split_kv_b:
            out.add_key_length(kv_lora + rope)
            out.add_value_length(kv_lora)
            out.add_key_length_mla(nope + rope)
            out.add_value_length_mla(v)
        else:
            out.add_key_length(nope + rope)
            out.add_value_length(v)
        out.add_rope_scaling_yarn_log_mul(0.1 * MSCALE)
        out.add_leading_dense_block_count(dense)
        out.add_expert_shared_count(spec.moe[3] // spec.moe[2])
        out.add_expert_weights_scale(scale)
        out.add_expert_weights_norm(spec.moe[4])
        out.add_expert_gating_func(gguf.ExpertGatingFuncType.SOFTMAX
                                   if spec.family == "deepseek_v2"
                                   else gguf.ExpertGatingFuncType.SIGMOID)
        out.add_expert_group_count(n_group)
        out.add_expert_group_used_count(top_group)
    elif spec.head_dim * spec.n_head != spec.n_embd:
        out.add_key_length(spec.head_dim)
        out.add_value_length(spec.head_dim)
    if fam["permuted"]:
        out.add_rope_dimension_count(spec.head_dim)
    if spec.sliding_window:
        out.add_sliding_window(spec.sliding_window)
    if spec.moe:
        n, k, ff, shared, _ = spec.moe
        out.add_expert_count(n)
        out.add_expert_used_count(k)
        out.add_expert_feed_forward_length(ff)
        if shared and not spec.mla:
            out.add_expert_shared_feed_forward_length(shared)
    if spec.rope == "linear":
        out.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        out.add_rope_scaling_factor(spec.rope_factor)
    tokens, merges, first, n_special = vocabulary(spec)
    types = [1] * first + [3] * n_special + [5] * (len(tokens) - first - n_special)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list(tokens)
    out.add_token_types(types)
    out.add_token_merges([f"{a} {b}" for a, b in merges])
    out.add_bos_token_id(first)
    out.add_eos_token_id(first + 2)
    if spec.extra:
        out.add_array("general.tags", ["a", "b"])
        out.add_uint32("somebody.else", 7)
        out.add_tensor("somebody.else.weight", np.ones((3, 5), np.float32))
    if spec.rope == "llama3":
        out.add_tensor("rope_freqs.weight", llama3_factors(spec).astype(np.float32))

    weights, merged = {}, {}
    parts = list(draw(spec).items())
    if spec.split_kv_b:
        parts = split_kv_b(spec, parts)
    for name, w in parts:
        order = None
        if fam["permuted"] and name.split(".")[-2] in ("q_proj", "k_proj"):
            order = interleave(spec, spec.n_head if ".q_proj" in name else spec.n_kv_head)
            w = w[order]
        router = name.endswith(("mlp.gate.weight", "shared_expert_gate.weight"))
        kind = spec.type if w.ndim > 1 and not router else "F32"
        if kind.endswith("_K") and w.shape[-1] % 256:
            kind = FALLBACK[kind]
        if kind == "MXFP4" and ".experts." not in name:
            kind = "Q8_0"
        if kind.startswith("Q") and w.shape[-1] % 32:
            kind = "F16"
        if kind == "F32":
            data = w
        elif kind == "F16":
            data = w.astype(np.float16)
        elif kind.endswith("_K"):
            data = pack_k(kind, w, rng)
        else:
            data = gguf.quants.quantize(w, gguf.GGMLQuantizationType[kind])
        raw = None if kind in ("F32", "F16") else gguf.GGMLQuantizationType[kind]
        if ".experts." in name:  # one tensor for all of a layer
            planes = merged.setdefault(gguf_name(name, fam["arch"]), [])
            planes.append(data)
            if len(planes) == spec.moe[0]:
                out.add_tensor(gguf_name(name, fam["arch"]), np.stack(planes), raw_dtype=raw)
        else:
            out.add_tensor(gguf_name(name, fam["arch"]), data, raw_dtype=raw)
        if kind in ("F32", "F16"):
            back = data.astype(np.float32)
        else:
            back = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind])
        back = back.reshape(w.shape)
        if order is not None:
            plain = np.empty_like(back)
            plain[order] = back
            back = plain
        weights[name] = back
    join_kv_b(spec, weights)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return weights


# ---------------------------------------------------------------- Hugging Face folder


def hf_config(spec):
    fam = FAMILIES[spec.family]
    c = dict(architectures=[fam["cls"]], model_type=spec.family, hidden_size=spec.n_embd,
             num_hidden_layers=spec.n_layer, num_attention_heads=spec.n_head,
             intermediate_size=spec.n_ff, vocab_size=spec.n_vocab,
             max_position_embeddings=spec.n_ctx, rms_norm_eps=spec.norm_eps,
             tie_word_embeddings=spec.tied, hidden_act="silu", bos_token_id=262,
             eos_token_id=[262, 264] if spec.extra else 264,
             torch_dtype={"F32": "float32", "F16": "float16"}.get(spec.type, "bfloat16"))
    if spec.n_kv_head != spec.n_head:
        c["num_key_value_heads"] = spec.n_kv_head
    if spec.mla:
        (q_lora, kv_lora, nope, rope, v), (n_group, top_group, scale, dense) = spec.mla
        c.update(q_lora_rank=q_lora or None, kv_lora_rank=kv_lora, qk_nope_head_dim=nope,
                 qk_rope_head_dim=rope, v_head_dim=v, n_group=n_group, topk_group=top_group,
                 n_routed_experts=spec.moe[0], n_shared_experts=spec.moe[3] // spec.moe[2],
                 first_k_dense_replace=dense, moe_layer_freq=1, routed_scaling_factor=scale,
                 scoring_func="softmax" if spec.family == "deepseek_v2" else "sigmoid",
                 topk_method="group_limited_greedy" if spec.family == "deepseek_v2"
                 else "noaux_tc", num_nextn_predict_layers=0)
    elif spec.head_dim * spec.n_head != spec.n_embd:
        c["head_dim"] = spec.head_dim
    if spec.family == "llama" and spec.qkv_bias:
        c["attention_bias"] = True
    if spec.family == "mistral":
        c["sliding_window"] = spec.sliding_window or None
    if spec.moe:
        n, k, ff, shared, normalised = spec.moe
        local = spec.family in ("mixtral", "gpt_oss")
        if not spec.mla:
            c["num_local_experts" if local else "num_experts"] = n
        c["num_experts_per_tok"] = k
        if spec.family in ("mixtral", "olmoe", "gpt_oss"):
            c["intermediate_size"] = ff
        else:
            c["moe_intermediate_size"] = ff
        if shared and not spec.mla:
            c["shared_expert_intermediate_size"] = shared
        if not local:
            c["norm_topk_prob"] = normalised
    if spec.family == "gpt_oss":
        c.update(attention_bias=True, swiglu_limit=7.0, sliding_window=spec.sliding_window,
                 layer_types=["full_attention" if i % 2 else "sliding_attention"
                              for i in range(spec.n_layer)])
        if spec.type == "MXFP4":
            c["quantization_config"] = {"quant_method": "mxfp4"}
    if spec.family in ("qwen2", "qwen3"):
        c["use_sliding_window"] = False
        c["sliding_window"] = 32768
    if spec.type == "FP8":
        c["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3",
                                    "activation_scheme": "dynamic",
                                    "weight_block_size": [128, 128]}
    scaling = None
    kind_key = "rope_type" if spec.rope_key == "rope_parameters" else spec.rope_key
    if spec.rope == "linear":
        scaling = {kind_key: "linear", "factor": spec.rope_factor}
    elif spec.rope == "llama3":
        scaling = {kind_key: "llama3", **LLAMA3}
    elif spec.rope == "yarn":
        scaling = {kind_key: "yarn", **YARN}
        if spec.family == "gpt_oss":
            scaling["truncate"] = False
        if spec.mla:
            scaling.update(mscale=MSCALE, mscale_all_dim=MSCALE)
    if spec.rope_key == "rope_parameters":
        c["rope_parameters"] = {**(scaling or {"rope_type": "default"}),
                                "rope_theta": spec.rope_theta}
    else:
        c["rope_theta"] = spec.rope_theta
        c["rope_scaling"] = scaling
    return c


def write_safetensors(path, tensors):
    """tensors: name -> (type, shape, bytes). 8 bytes of length, JSON, data."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (kind, shape, data) in tensors.items():
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            f.write(data)


def hf_tokenizer(spec):
    tokens, merges, first, n_special = vocabulary(spec)
    added = [dict(id=first + i, content=tokens[first + i], special=True, single_word=False,
                  lstrip=False, rstrip=False, normalized=False) for i in range(n_special)]
    byte_level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True,
                      use_regex=True)
    return dict(version="1.0", truncation=None, padding=None, added_tokens=added,
                normalizer=None, pre_tokenizer=byte_level, post_processor=None,
                decoder=byte_level,
                model=dict(type="BPE", dropout=None, unk_token=None,
                           continuing_subword_prefix=None, end_of_word_suffix=None,
                           fuse_unk=False, byte_fallback=False,
                           vocab={t: i for i, t in enumerate(tokens)
                                  if not first <= i < first + n_special},
                           merges=[f"{a} {b}" for a, b in merges]))


def mxfp4_split(w):
    """Blocks (low half: the even element), scales and the values that they stand for."""
    values = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6], np.float32)
    b = w.reshape(*w.shape[:-1], -1, 32)
    top = np.abs(b).max(axis=-1, keepdims=True)
    e = np.where(top > 0, np.floor(np.log2(np.where(top > 0, top, 1))) - 2 + 127, 0)
    scale = np.exp2(e - 127).astype(np.float32)
    code = np.abs((b / scale)[..., None] - values).argmin(axis=-1).astype(np.uint8)
    back = (values[code] * scale).reshape(w.shape)
    return code[..., ::2] | code[..., 1::2] << 4, e[..., 0].astype(np.uint8), back


def e4m3_values():
    """The 256 values of E4M3 (no infinities); the two NaN as 0."""
    out = np.zeros(256, np.float32)
    for v in range(256):
        exp, man = v >> 3 & 15, v & 7
        x = (1 + man / 8) * 2.0 ** (exp - 7) if exp else man / 8 * 2.0 ** -6
        out[v] = 0 if v & 127 == 127 else (-x if v & 128 else x)
    return out


def fp8_blocks(w, rng):
    """Codes, scales of 128 x 128 blocks, and code times scale in float32."""
    values = e4m3_values()
    order = np.array([v for v in np.argsort(values, kind="stable") if v & 127 != 127])
    rows, cols = w.shape
    scale = np.empty((-(-rows // 128), -(-cols // 128)), np.float32)
    codes, back = np.empty(w.shape, np.uint8), np.empty(w.shape, np.float32)
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            at = np.s_[i * 128:(i + 1) * 128, j * 128:(j + 1) * 128]
            scale[i, j] = np.abs(w[at]).max() / 448 * rng.uniform(1, 2)
            x = w[at] / scale[i, j]
            n = np.clip(np.searchsorted(values[order], x), 1, len(order) - 1)
            low, high = values[order][n - 1], values[order][n]
            codes[at] = order[np.where(x - low < high - x, n - 1, n)]
            back[at] = values[codes[at]] * scale[i, j]
    return codes, scale, back


def pack_gpt_oss(spec, weights, stored):
    """Experts of all layers as their folders hold them; takes them out of stored."""
    n = spec.moe[0]
    for i in range(spec.n_layer):
        p = f"model.layers.{i}.mlp.experts."

        def all_of(part, leaf):
            return np.stack([weights[f"{p}{x}.{part}_proj.{leaf}"] for x in range(n)])

        for leaf in ("weight", "bias"):
            gate, up = all_of("gate", leaf), all_of("up", leaf)
            both = np.stack([gate, up], axis=2).reshape(n, -1, *gate.shape[2:])
            for name, w in (("gate_up_proj", both), ("down_proj", all_of("down", leaf))):
                if leaf == "bias" or spec.type != "MXFP4":
                    data = w if leaf == "bias" else np.ascontiguousarray(w.swapaxes(1, 2))
                    kind = "BF16" if spec.type == "MXFP4" else spec.type
                    data = to_bf16(data) if kind == "BF16" else data
                    data = data.astype(np.float16) if kind == "F16" else data
                    tail = "_bias" if leaf == "bias" else ""
                    stored[p + name + tail] = (kind, data.shape, data.tobytes())
                    continue
                blocks, scales, _ = mxfp4_split(w)
                stored[p + name + "_blocks"] = ("U8", blocks.shape, blocks.tobytes())
                stored[p + name + "_scales"] = ("U8", scales.shape, scales.tobytes())


def write_hf(spec, path):
    if spec.type not in HF_TYPES:
        raise SystemExit(f"a folder holds {', '.join(HF_TYPES)}, not {spec.type}")
    os.makedirs(path, exist_ok=True)

    def dump(name, obj):
        with open(os.path.join(path, name), "w", encoding="utf-8") as f:
            json.dump(obj, f, ensure_ascii=False, indent=1)

    weights, stored, rng = {}, {}, np.random.default_rng(spec.seed + 2)
    for name, w in draw(spec).items():
        if spec.type == "MXFP4" and ".experts." in name and name.endswith("weight"):
            weights[name] = mxfp4_split(w)[2]
            continue
        if spec.type == "FP8" and name.endswith("proj.weight") or \
                spec.type == "FP8" and name.endswith("proj_with_mqa.weight"):
            codes, scale, weights[name] = fp8_blocks(w, rng)
            stored[name] = ("F8_E4M3", codes.shape, codes.tobytes())
            stored[name + "_scale_inv"] = ("F32", scale.shape, scale.tobytes())
            continue
        if spec.type == "F32":
            data, back = w, w
        elif spec.type == "F16":
            data = w.astype(np.float16)
            back = data.astype(np.float32)
        else:
            data = to_bf16(w)
            back = from_bf16(data)
        weights[name] = back
        as_stored = name
        if name.startswith("model."):
            as_stored = spec.prefix + name[len("model."):]
        if spec.family == "mixtral" and ".mlp." in name:
            for a, b in MIXTRAL_NAMES.items():
                as_stored = as_stored.replace(a, b)
        if spec.family == "gpt_oss" and ".experts." in name:
            continue
        if spec.family == "gpt_oss":
            as_stored = as_stored.replace("mlp.gate.", "mlp.router.")
        kind = "BF16" if spec.type in ("MXFP4", "FP8") else spec.type
        stored[as_stored] = (kind, w.shape, np.ascontiguousarray(data).tobytes())
    if spec.family == "gpt_oss":
        pack_gpt_oss(spec, weights, stored)
    if spec.extra:
        stored[spec.prefix + "layers.0.self_attn.rotary_emb.inv_freq"] = \
            ("F32", (4,), np.ones(4, np.float32).tobytes())
        stored["somebody.else"] = ("I64", (2,), np.arange(2).tobytes())

    names = list(stored)
    if spec.shards == 1:
        write_safetensors(os.path.join(path, "model.safetensors"), stored)
    else:
        index = {"metadata": {"total_size": sum(len(t[2]) for t in stored.values())},
                 "weight_map": {}}
        for s, part in enumerate(np.array_split(np.arange(len(names)), spec.shards)):
            file = f"model-{s + 1:05d}-of-{spec.shards:05d}.safetensors"
            write_safetensors(os.path.join(path, file), {names[i]: stored[names[i]] for i in part})
            index["weight_map"].update({names[i]: file for i in part})
        dump("model.safetensors.index.json", index)
    dump("config.json", hf_config(spec))
    dump("tokenizer.json", hf_tokenizer(spec))
    dump("tokenizer_config.json", dict(bos_token="<|endoftext|>", eos_token="<|im_end|>",
                                       add_bos_token=False, model_max_length=spec.n_ctx))
    return weights


def write(spec, path):
    """Make the model at path; returns its weights by name, as the file holds them."""
    return write_gguf(spec, path) if path.endswith(".gguf") else write_hf(spec, path)


def write_all(folder):
    """One of everything, with NAME.npz beside each; returns the names."""
    os.makedirs(folder, exist_ok=True)
    todo = {}
    for family in FAMILIES:
        if family in MOE:
            todo[f"{family}-F32"] = Spec(family=family)
        for kind in ("F32", "Q8_0") if family != "kimi_k2" else ():  # the same as v3's
            todo[f"{family}-{kind}.gguf"] = Spec(family=family, type=kind, tied=kind == "Q8_0")
        # a seed whose routers are decided in spite of rounding
        todo[f"{family}-BF16"] = Spec(family=family, type="BF16", shards=2,
                                      seed=BF16_SEED.get(family, 1))
    for kind in GGUF_TYPES[:-1]:
        todo[f"llama-{kind}.gguf"] = Spec(type=kind)
    for kind in ("Q4_K", "Q5_K", "Q6_K"):
        todo[f"llama-{kind}-fallback.gguf"] = Spec(type=kind, n_ff=288)
    for rope in ("linear", "llama3"):
        todo[f"llama-F32-{rope}.gguf"] = Spec(rope=rope, tied=True)
        for key in ("rope_type", "type", "rope_parameters"):
            todo[f"llama-F32-{rope}-{key}"] = Spec(rope=rope, tied=True, rope_key=key)
    todo["llama-F16"] = Spec(type="F16")
    todo["llama-F32-bare"] = Spec(prefix="", extra=True)
    todo["llama-F32-extra.gguf"] = Spec(extra=True)
    todo["llama-F32-bias"] = Spec(qkv_bias=True)
    for kind in ("F32", "Q8_0"):
        todo[f"deepseek_v3-{kind}-split.gguf"] = Spec(family="deepseek_v3", type=kind,
                                                      split_kv_b=True)
    # n_embd of more than one block, and one that is cut short
    todo["deepseek_v3-FP8"] = Spec(family="deepseek_v3", type="FP8", shards=2, n_embd=160, n_ff=288)
    todo["llama-FP8"] = Spec(type="FP8", n_embd=192, n_ff=320)
    for name in ("gpt_oss-MXFP4", "gpt_oss-MXFP4.gguf"):
        todo[name] = Spec(family="gpt_oss", type="MXFP4")
    todo["llama-F32-yarn"] = Spec(rope="yarn")
    todo["llama-F32-yarn.gguf"] = Spec(rope="yarn")
    todo["mistral-F32-window"] = Spec(family="mistral", sliding_window=16)
    for name, spec in todo.items():
        save_weights(os.path.join(folder, name.replace(".gguf", "-gguf") + ".npz"), spec,
                     write(spec, os.path.join(folder, name)))
    return list(todo)


def save_weights(path, spec, weights):
    np.savez(path, spec=json.dumps(dataclasses.asdict(spec)), **weights)


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("path", nargs="?", help="file to make (.gguf) or folder")
    p.add_argument("--all", metavar="DIR", help="make one of everything in DIR")
    p.add_argument("--weights", metavar="NPZ", help="save the weights that the file holds")
    for f in dataclasses.fields(Spec):
        flag = "--" + f.name.replace("_", "-")
        if f.type in (bool, "bool"):
            p.add_argument(flag, action="store_true")
        else:
            choices = {"family": list(FAMILIES), "type": GGUF_TYPES,
                       "rope": ["none", "linear", "llama3", "yarn"],
                       "rope_key": ["rope_type", "type", "rope_parameters"]}.get(f.name)
            p.add_argument(flag, type=type(f.default), default=f.default, choices=choices)
    a = p.parse_args()
    if a.all:
        print("\n".join(write_all(a.all)))
        return 0
    if not a.path:
        p.error("a path to write, or --all DIR")
    spec = Spec(**{f.name: getattr(a, f.name) for f in dataclasses.fields(Spec)})
    weights = write(spec, a.path)
    if a.weights:
        save_weights(a.weights, spec, weights)
    return 0


if __name__ == "__main__":
    sys.exit(main())
