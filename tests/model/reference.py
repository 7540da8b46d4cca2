"""Logits of decoders in float64, from the published definitions of Llama, Mistral, Qwen2,
Qwen3, Mixtral, Qwen2-MoE, Qwen3-MoE, OLMoE, gpt-oss,
DeepSeek-V2, -V3 and Kimi K2: nothing of the product's code is used. Weights by Hugging Face name, rotary
pairs (j, j + d/2).

    cfg, weights = read_gguf(path)            (dequantised)
    cfg, weights = read_npz(path)             (as tiny_models.py saves them)
    logits = Reference(cfg, weights).run(ids)
"""
import json

import numpy as np


class Config:
    """What the definitions need to know."""

    def __init__(self, **kw):
        self.n_layer = self.n_head = self.n_kv_head = self.head_dim = 0
        self.norm_eps, self.rope_theta = 1e-5, 10000.0
        self.rope, self.rope_factor, self.rope_divisors = "none", 1.0, None
        self.llama3 = None  # factor, low_freq_factor, high_freq_factor, original context
        self.yarn = None  # factor, beta_fast, beta_slow, original context, truncate
        self.rope_scale = 1.0  # of cos and sin
        self.sliding_window, self.window_every = 0, 1
        self.mla = None  # kv_lora, nope, rope, v
        self.softmax_scale = 1.0
        self.sigmoid, self.n_group, self.top_group, self.scale = False, 1, 1, 1.0
        self.chosen, self.limit = False, 0.0  # gpt-oss: softmax over the chosen; its unit
        self.top_k, self.normalise = 0, False  # of experts
        self.__dict__.update(kw)


def inv_freq(cfg):
    """Rotation per position of each pair, with the model's scaling."""
    d = cfg.mla[2] if cfg.mla else cfg.head_dim
    inv = cfg.rope_theta ** (-np.arange(0, d, 2, dtype=np.float64) / d)
    if cfg.rope == "linear":
        return inv / cfg.rope_factor
    if cfg.rope_divisors is not None:
        return inv / np.asarray(cfg.rope_divisors, np.float64)
    if cfg.yarn is not None:
        factor, fast, slow, orig, truncate = cfg.yarn

        def pair(turns):
            return d * np.log(orig / (turns * 2 * np.pi)) / (2 * np.log(cfg.rope_theta))

        low, high = pair(fast), pair(slow)
        if truncate:
            low, high = np.floor(low), np.ceil(high)
        low, high = max(low, 0), min(high, d - 1)
        if low == high:
            high += 0.001
        ramp = np.clip((np.arange(d // 2) - low) / (high - low), 0, 1)
        return inv / factor * ramp + inv * (1 - ramp)
    if cfg.rope == "llama3":
        factor, low, high, orig = cfg.llama3
        out = []
        for f in inv:
            wave = 2 * np.pi / f
            if wave < orig / high:
                out.append(f)
            elif wave > orig / low:
                out.append(f / factor)
            else:
                s = (orig / wave - low) / (high - low)
                out.append((1 - s) * f / factor + s * f)
        return np.array(out)
    return inv


def rms_norm(x, w, eps):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * w


def silu(x):
    return x / (1 + np.exp(-x))


class Reference:
    def __init__(self, cfg, weights):
        self.cfg = cfg
        self.w = {k: v.astype(np.float64) for k, v in weights.items()}
        self.inv = inv_freq(cfg)
        self.clear()

    def clear(self):
        self.kv = [(np.zeros((0, self.cfg.n_kv_head, self.cfg.head_dim)),) * 2
                   for _ in range(self.cfg.n_layer)]
        self.n = 0
        # by row: smallest gap of logits between an expert chosen and one not, over the layers
        self.margin = np.zeros(0)

    def linear(self, x, name):
        y = x @ self.w[name + ".weight"].T
        bias = self.w.get(name + ".bias")
        return y if bias is None else y + bias

    def rotate(self, x, pos):
        half = self.cfg.head_dim // 2
        angle = pos[:, None] * self.inv[None, :]
        cos, sin = (self.cfg.rope_scale * f(angle)[:, None, :] for f in (np.cos, np.sin))
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def rotate_pairs(self, x, pos):
        """Pairs (2j, 2j + 1), as DeepSeek has them."""
        angle = pos[:, None] * self.inv[None, :]
        cos, sin = (self.cfg.rope_scale * f(angle)[:, None, :] for f in (np.cos, np.sin))
        a, b = x[..., ::2], x[..., 1::2]
        out = np.empty_like(x)
        out[..., ::2], out[..., 1::2] = a * cos - b * sin, b * cos + a * sin
        return out

    def latent_attention(self, x, i, pos):
        """Not absorbed: K and V of every head are made from the latents."""
        c, p = self.cfg, f"model.layers.{i}.self_attn."
        kv_lora, nope, rope, v_dim = c.mla
        n = len(x)
        if p + "q_a_proj.weight" in self.w:
            q = rms_norm(self.linear(x, p + "q_a_proj"), self.w[p + "q_a_layernorm.weight"],
                         c.norm_eps)
            q = self.linear(q, p + "q_b_proj")
        else:
            q = self.linear(x, p + "q_proj")
        q = q.reshape(n, c.n_head, nope + rope)
        q_rot = self.rotate_pairs(q[..., nope:], pos)
        kv = self.linear(x, p + "kv_a_proj_with_mqa")
        k_rot = self.rotate_pairs(kv[:, None, kv_lora:], pos)[:, 0]
        latent = rms_norm(kv[:, :kv_lora], self.w[p + "kv_a_layernorm.weight"], c.norm_eps)
        both = self.linear(latent, p + "kv_b_proj").reshape(n, c.n_head, nope + v_dim)
        new = both[..., :nope], both[..., nope:], k_rot
        if len(self.kv[i]) == 3:
            new = tuple(np.concatenate([a, b]) for a, b in zip(self.kv[i], new))
        self.kv[i] = k, v, k_rot = new
        mask = np.arange(len(k))[None, :] > pos[:, None]
        out = np.empty((n, c.n_head, v_dim))
        for h in range(c.n_head):
            s = (q[:, h, :nope] @ k[:, h].T + q_rot[:, h] @ k_rot.T) * c.softmax_scale
            s /= np.sqrt(nope + rope)
            s[mask] = -np.inf
            s = np.exp(s - s.max(axis=-1, keepdims=True))
            out[:, h] = s / s.sum(axis=-1, keepdims=True) @ v[:, h]
        return self.linear(out.reshape(n, -1), p + "o_proj")

    def attention(self, x, i, pos):
        if self.cfg.mla:
            return self.latent_attention(x, i, pos)
        c, p = self.cfg, f"model.layers.{i}.self_attn."
        n = len(x)
        q = self.linear(x, p + "q_proj").reshape(n, c.n_head, c.head_dim)
        k = self.linear(x, p + "k_proj").reshape(n, c.n_kv_head, c.head_dim)
        v = self.linear(x, p + "v_proj").reshape(n, c.n_kv_head, c.head_dim)
        norm = self.w.get(p + "q_norm.weight")
        if norm is not None and len(norm) > c.head_dim:  # over all heads together
            k_norm = self.w[p + "k_norm.weight"]
            q = rms_norm(q.reshape(n, -1), norm, c.norm_eps).reshape(q.shape)
            k = rms_norm(k.reshape(n, -1), k_norm, c.norm_eps).reshape(k.shape)
        elif norm is not None:
            q = rms_norm(q, self.w[p + "q_norm.weight"], c.norm_eps)
            k = rms_norm(k, self.w[p + "k_norm.weight"], c.norm_eps)
        q, k = self.rotate(q, pos), self.rotate(k, pos)
        k = np.concatenate([self.kv[i][0], k])
        v = np.concatenate([self.kv[i][1], v])
        self.kv[i] = (k, v)
        at = np.arange(len(k))
        mask = at[None, :] > pos[:, None]
        if c.sliding_window and i % c.window_every == 0:
            mask |= at[None, :] <= pos[:, None] - c.sliding_window
        out = np.empty_like(q)
        for h in range(c.n_head):
            g = h // (c.n_head // c.n_kv_head)
            s = q[:, h] @ k[:, g].T / np.sqrt(c.head_dim)
            s[mask] = -np.inf
            sink = self.w.get(p + "sinks")
            if sink is not None:  # one more column, whose share is dropped
                s = np.concatenate([s, np.full((n, 1), sink[h])], axis=1)
            s = np.exp(s - s.max(axis=-1, keepdims=True))
            s = s / s.sum(axis=-1, keepdims=True)
            out[:, h] = s[:, :len(k)] @ v[:, g]
        return self.linear(out.reshape(n, -1), p + "o_proj")

    def glu(self, x, p):
        limit = self.cfg.limit
        if limit:
            gate = np.minimum(self.linear(x, p + "gate_proj"), limit)
            up = np.clip(self.linear(x, p + "up_proj"), -limit, limit)
            return self.linear((up + 1) * gate / (1 + np.exp(-1.702 * gate)), p + "down_proj")
        return self.linear(silu(self.linear(x, p + "gate_proj")) * self.linear(x, p + "up_proj"),
                           p + "down_proj")

    def gap(self, a, b):
        """How far logits would have to move for b to reach a, at least."""
        if self.cfg.sigmoid:
            return 4 * (a - b)  # a sigmoid's slope is at most 1/4
        return np.log(a) - np.log(b) if b > 0 else np.inf

    def groups(self, by):
        """Scores to choose by, 0 outside the best groups; and by how much these won."""
        c = self.cfg
        if c.n_group == 1:
            return by, np.inf
        g = by.reshape(c.n_group, -1)
        best = np.sort(g, axis=1)[:, -2:].sum(axis=1) if c.sigmoid else g.max(axis=1)
        order = np.argsort(-best, kind="stable")
        kept = np.isin(np.arange(c.n_group), order[:c.top_group])
        gap = self.gap(best[order[c.top_group - 1]], best[order[c.top_group]])
        return np.where(kept[:, None], g, 0).reshape(-1), gap

    def deepseek_ffn(self, h, p):
        c = self.cfg
        logits = self.linear(h, p + "gate")
        if c.sigmoid:
            score = 1 / (1 + np.exp(-logits))
            by = score + self.w[p + "gate.e_score_correction_bias"]
        else:
            score = np.exp(logits - logits.max(axis=1, keepdims=True))
            score /= score.sum(axis=1, keepdims=True)
            by = score
        out = self.glu(h, p + "shared_experts.")
        for r in range(len(h)):
            masked, gap = self.groups(by[r])
            order = np.argsort(-masked, kind="stable")
            chosen = order[:c.top_k]
            gap = min(gap, self.gap(masked[chosen[-1]], masked[order[c.top_k]]))
            at = self.n - len(h) + r
            self.margin[at] = min(self.margin[at], gap)
            weight = score[r, chosen]
            if c.normalise:
                weight = weight / weight.sum()
            for x, w in zip(chosen, weight):
                out[r] += c.scale * w * self.glu(h[r:r + 1], f"{p}experts.{x}.")[0]
        return out

    def ffn(self, h, p):
        c = self.cfg
        if p + "gate.weight" not in self.w:
            return self.glu(h, p)
        if c.mla:
            return self.deepseek_ffn(h, p)
        logits = self.linear(h, p + "gate")
        prob = np.exp(logits - logits.max(axis=1, keepdims=True))
        prob /= prob.sum(axis=1, keepdims=True)
        out = np.zeros_like(h)
        for r in range(len(h)):
            order = np.argsort(-prob[r], kind="stable")
            chosen = order[:c.top_k]
            if c.top_k < len(order):
                gap = logits[r, chosen[-1]] - logits[r, order[c.top_k]]
                at = self.n - len(h) + r
                self.margin[at] = min(self.margin[at], gap)
            weight = prob[r, chosen]
            if c.chosen:
                weight = np.exp(logits[r, chosen] - logits[r, chosen[0]])
                weight /= weight.sum()
            if c.normalise:
                weight = weight / weight.sum()
            for x, w in zip(chosen, weight):
                out[r] += w * self.glu(h[r:r + 1], f"{p}experts.{x}.")[0]
        if p + "shared_expert.gate_proj.weight" in self.w:
            gate = 1 / (1 + np.exp(-self.linear(h, p + "shared_expert_gate")))
            out += gate * self.glu(h, p + "shared_expert.")
        return out

    def run(self, ids):
        """Logits [n, vocab] of the tokens that follow what was run before."""
        c = self.cfg
        pos = self.n + np.arange(len(ids))
        self.n += len(ids)
        self.margin = np.concatenate([self.margin, np.full(len(ids), np.inf)])
        x = self.w["model.embed_tokens.weight"][np.asarray(ids)]
        for i in range(c.n_layer):
            p = f"model.layers.{i}."
            h = rms_norm(x, self.w[p + "input_layernorm.weight"], c.norm_eps)
            x = x + self.attention(h, i, pos)
            h = rms_norm(x, self.w[p + "post_attention_layernorm.weight"], c.norm_eps)
            x = x + self.ffn(h, p + "mlp.")
        x = rms_norm(x, self.w["model.norm.weight"], c.norm_eps)
        head = self.w.get("lm_head.weight")
        return x @ (self.w["model.embed_tokens.weight"] if head is None else head).T


# ---------------------------------------------------------------- weights


# Experts a token and whether their weights are normalised, as tiny_models.py writes them.
MOE = {"mixtral": (2, True), "qwen2_moe": (3, False), "qwen3_moe": (2, True), "olmoe": (3, False),
       "gpt_oss": (3, False), "deepseek_v2": (3, False), "deepseek_v3": (2, True),
       "kimi_k2": (2, True)}
# Groups of experts, how many count, their scale.
GROUPS = {"deepseek_v2": (4, 2, 2.0), "deepseek_v3": (2, 1, 2.5), "kimi_k2": (1, 1, 1.5)}


def read_npz(path):
    """As tiny_models.py saves them: hyper-parameters under "spec"."""
    data = dict(np.load(path))
    s = json.loads(str(data.pop("spec")))
    cfg = Config(n_layer=s["n_layer"], n_head=s["n_head"], n_kv_head=s["n_kv_head"],
                 head_dim=s["head_dim"], norm_eps=s["norm_eps"], rope_theta=s["rope_theta"],
                 rope=s["rope"], rope_factor=s["rope_factor"], llama3=(8.0, 1.0, 4.0, 64),
                 sliding_window=s["sliding_window"])
    if s["rope"] == "yarn":
        cfg.yarn = 8.0, 8.0, 1.0, 64, s["family"] != "gpt_oss"
        cfg.rope_scale = 0.1 * np.log(8.0) + 1
    if s["family"] in GROUPS:
        cfg.mla = 64, 32, 16, 32
        cfg.n_group, cfg.top_group, cfg.scale = GROUPS[s["family"]]
        cfg.sigmoid = s["family"] != "deepseek_v2"
        cfg.rope_scale = 1.0  # mscale and mscale_all_dim are equal
        cfg.softmax_scale = (0.1 * 0.8 * np.log(8.0) + 1) ** 2
    if s["family"] == "gpt_oss":
        cfg.chosen, cfg.limit, cfg.window_every = True, 7.0, 2
    if s["family"] in MOE:
        cfg.top_k, cfg.normalise = MOE[s["family"]]
    return cfg, data


HF_NAMES = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj",
            "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
            "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
            "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm",
            "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
HF_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def pairs_apart(w, n_head):
    """Rows of each head from pairs (2j, 2j + 1), as llama files hold them, to (j, j + d/2)."""
    d = w.shape[0] // n_head
    return w.reshape(n_head, d // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def read_gguf(path):
    import gguf
    r = gguf.GGUFReader(path)
    arch = r.fields["general.architecture"].contents()

    def key(name, default=None):
        f = r.fields.get(f"{arch}.{name}")
        return default if f is None else f.contents()

    n_head, n_embd = key("attention.head_count"), key("embedding_length")
    cfg = Config(n_layer=key("block_count"), n_head=n_head,
                 n_kv_head=key("attention.head_count_kv", n_head),
                 head_dim=key("attention.key_length", n_embd // n_head),
                 norm_eps=key("attention.layer_norm_rms_epsilon"),
                 rope_theta=key("rope.freq_base", 10000.0),
                 sliding_window=key("attention.sliding_window", 0) or 0)
    if key("rope.scaling.type") == "linear":
        cfg.rope, cfg.rope_factor = "linear", key("rope.scaling.factor")
    weights = {}
    for t in r.tensors:
        w = gguf.quants.dequantize(t.data, t.tensor_type)
        w = w.reshape([int(x) for x in reversed(t.shape)])
        parts = t.name.split(".")
        if t.name == "rope_freqs.weight":
            cfg.rope_divisors = w
        elif parts[0] == "blk":
            if arch == "llama" and parts[2] in ("attn_q", "attn_k"):
                w = pairs_apart(w, n_head if parts[2] == "attn_q" else cfg.n_kv_head)
            weights[f"model.layers.{parts[1]}.{HF_NAMES[parts[2]]}.{parts[3]}"] = w
        elif parts[0] in HF_TOP:
            weights[f"{HF_TOP[parts[0]]}.{parts[1]}"] = w
    return cfg, weights
