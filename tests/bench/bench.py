#!/usr/bin/env python3
"""`make bench` and `make bench-peer`: speed as ratios within one run.

usage: bench.py [--peer] [--pairs 7] [--threads 2] [--out FILE] [--only KEY,..] [--model FILE]
Each figure is the median of `pairs` rounds; in a round the machine's limit (read bandwidth
or int8 peak, shared/bench/limits.c), our pass and the peer's pass follow each other, so
that a change of the machine's state hits all three. Floors: a decode step reads every
weight once (and the KV of its context); a prefill token costs 2 operations per weight of
the linear layers, head excluded. Prints one table and writes one JSON object per key:
ours, peer, ratio, limit, limit_ratio, goal, ok (and unit, what)."""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(__file__))
import bench_server  # noqa: E402

LINEAR = 106.2e6     # weights of the demo model's linear layers, head excluded
KV_TOKEN = 23040     # bytes a position of the demo model, 16-bit KV
ROOT = os.getcwd()

# key: command, tokens it handles, goals: ratio to the peer, ratio to the limit
ROWS = {
    "prefill_512": dict(cmd="prefill 512", tok=512, ratio=2.5, limit="int8", limit_goal=0.20),
    "prefill_2048": dict(cmd="prefill 2048", tok=2048, ratio=2.2, limit="int8", limit_goal=None),
    "decode_1": dict(cmd="decode 1 16 64", tok=64, ratio=1.4, limit="read", limit_goal=0.65),
    "decode_8": dict(cmd="decode 8 16 24", tok=192, ratio=2.5, limit=None, limit_goal=None),
    "decode_32": dict(cmd="decode 32 16 12", tok=384, ratio=3.0, limit=None, limit_goal=None),
    "decode_depth_2048": dict(cmd="decode 1 2048 48", tok=48, ratio=1.8, limit="read",
                              limit_goal=0.60),
}


# the same model in other types (made with the peer's own converter): never behind the peer
CONVERTED = {"bf16": 32, "q8_0": 7}  # llama.cpp file types
CONVERTED_ROWS = {k: dict(ROWS[k], ratio=0.97, limit=None, limit_goal=None)
                  for k in ("prefill_512", "decode_1", "decode_32")}


class Worker:
    """One side of the comparison: commands in, seconds out."""

    def __init__(self, argv):
        self.p = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  text=True, bufsize=1)
        self.hello = self.p.stdout.readline().split()
        if not self.hello or self.hello[0] != "ready":
            raise SystemExit(f"{argv[0]} did not start")

    def ask(self, cmd):
        self.p.stdin.write(cmd + "\n")
        self.p.stdin.flush()
        return float(self.p.stdout.readline())

    def close(self):
        self.p.stdin.close()
        self.p.wait(timeout=20)


def convert(model, name):
    """The demo model as another type, kept beside it."""
    import ctypes
    import llama_cpp
    out = os.path.join(os.path.dirname(model), f"bench-{name}.gguf")
    if not os.path.exists(out):
        quiet = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
        p = llama_cpp.llama_model_quantize_default_params()
        p.ftype, p.allow_requantize, p.pure = CONVERTED[name], True, True
        if llama_cpp.llama_model_quantize(model.encode(), (out + ".part").encode(),
                                          ctypes.byref(p)) != 0:
            raise SystemExit(f"could not convert {model} to {name}")
        os.rename(out + ".part", out)
    return out


def limit_now(kind, threads, cache={}):
    """GB/s of a read of 1 GiB, measured each time, or int8 GOP/s, measured once a run."""
    what = {"read": ["-q"], "int8": []}[kind]
    if kind == "int8" and kind in cache:
        return cache[kind]
    out = subprocess.run(["build/limits", *what, str(threads), "1"], capture_output=True,
                         text=True, check=True).stdout
    line = re.search({"read": r"read-sum 1 GiB.*", "int8": r"int8 .*"}[kind], out).group(0)
    cache[kind] = float(line.split("median")[1].split()[0])
    return cache[kind]


def limit_ratio(key, row, tok_s, limit, weight_bytes):
    if row["limit"] == "int8":
        return 2 * LINEAR * tok_s / (limit * 1e9)
    bytes_tok = weight_bytes + (KV_TOKEN * 2048 if "depth" in key else 0)
    return bytes_tok * tok_s / (limit * 1e9)


def compare(rows, pairs, threads, model, with_peer, suffix=""):
    ours = Worker(["build/rel/tests/bench/bench_engine", model, str(threads)])
    peer = Worker([sys.executable, "tests/bench/peer.py", model, str(threads)]) if with_peer else None
    weight_bytes = float(ours.hello[2])
    result = {}
    for key, row in rows.items():
        got = {"ours": [], "peer": [], "limit": [], "share": []}
        ours.ask(row["cmd"])
        if peer:
            peer.ask(row["cmd"])
        for _ in range(pairs):
            limit = limit_now(row["limit"], threads) if row["limit"] else None
            o = row["tok"] / ours.ask(row["cmd"])
            got["ours"].append(o)
            if peer:
                got["peer"].append(row["tok"] / peer.ask(row["cmd"]))
            if limit:
                got["limit"].append(limit)
                got["share"].append(limit_ratio(key, row, o, limit, weight_bytes))
        result[key + suffix] = judge(row, got)
        print_row(key + suffix, result[key + suffix])
    ours.close()
    if peer:
        peer.close()
    return result


def attention(threads, pairs):
    """Attention of a 2048-token prompt apart, over the machine's bf16 peak of the same run."""
    shares = []
    for _ in range(max(1, pairs // 2)):
        out = subprocess.run(["build/rel/tests/ops/bench_ops", "-t", str(threads), "-r", "5"],
                             capture_output=True, text=True, check=True).stdout
        shares.append(float(re.search(r"^prefill 2048 .*?([0-9.]+) % of peak", out, re.M).group(1)))
    v = statistics.median(shares)
    return dict(value=v, unit="% bf16", goal=">= 25", ok=v >= 25)


def judge(row, got):
    med = {k: statistics.median(v) if v else None for k, v in got.items()}
    ratio = (statistics.median([a / b for a, b in zip(got["ours"], got["peer"])])
             if got["peer"] else None)
    goal = row["limit_goal"]
    if goal and row["limit"] == "read" and row["cmd"].startswith("decode 1 16"):
        goal = 0.65 if med["limit"] < 40 else 0.50
    ok = (ratio is None or ratio >= row["ratio"]) and (goal is None or med["share"] >= goal)
    return dict(unit="tok/s", ours=med["ours"], peer=med["peer"], ratio=ratio,
                limit=med["limit"], limit_ratio=med["share"],
                goal={"ratio": row["ratio"], "limit_ratio": goal}, ok=bool(ok))


def num(v, digits=2):
    return "-" if v is None else f"{v:.{digits}f}" if isinstance(v, float) else str(v)


def print_row(key, r):
    goal = r["goal"]
    if isinstance(goal, dict):
        goal = " ".join(f"{k}>={v}" for k, v in goal.items() if v is not None)
    print(f"{key:26} {num(r.get('ours', r.get('value'))):>10} {r.get('unit', ''):8}"
          f"{num(r.get('peer')):>10} {num(r.get('ratio')):>7} {num(r.get('limit'), 1):>9} "
          f"{num(r.get('limit_ratio')):>7}  {goal or '':32} {'ok' if r['ok'] else 'MISSED'}",
          flush=True)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--peer", action="store_true")
    a.add_argument("--pairs", type=int, default=7)
    a.add_argument("--threads", type=int, default=2)
    a.add_argument("--only", default="")
    a.add_argument("--model", default="var/models/SmolLM2-135M-Instruct.Q4_1.gguf")
    a.add_argument("--out", default="build/bench.json")
    a = a.parse_args()
    wanted = [k for k in a.only.split(",") if k]
    print(f"{'':26} {'ours':>10} {'':8}{'peer':>10} {'ratio':>7} {'limit':>9} {'share':>7}  goal")
    rows = {k: v for k, v in ROWS.items() if not wanted or k in wanted}
    result = compare(rows, a.pairs, a.threads, a.model, a.peer) if rows else {}
    if not wanted or "attention_2048" in wanted:
        result["attention_2048"] = attention(a.threads, a.pairs)
        print_row("attention_2048", result["attention_2048"])
    for name in CONVERTED if a.peer else ():
        rows = {k: v for k, v in CONVERTED_ROWS.items() if not wanted or f"{k}_{name}" in wanted}
        if rows:
            got = compare(rows, a.pairs, a.threads, convert(a.model, name), True, f"_{name}")
            result.update(got)
    for key, row in bench_server.measure(a.model, a.threads, a.peer, max(1, a.pairs // 3)).items() \
            if not wanted or set(wanted) & set(bench_server.KEYS) else ():
        if not wanted or key in wanted:
            result[key] = row
            print_row(key, row)
    with open(a.out, "w", encoding="utf-8") as f:
        json.dump({"when": time.strftime("%Y-%m-%d"), "threads": a.threads,
                   "model": os.path.basename(a.model), "rows": result}, f, indent=1)
    print(f"{sum(r['ok'] for r in result.values())} of {len(result)} goals met; {a.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
