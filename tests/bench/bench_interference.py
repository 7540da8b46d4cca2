#!/usr/bin/env python3
"""`make bench-interference`: what a prompt does to those who are being answered, and the
goodput of the three modes, on the same two cores.

usage: bench_interference.py MODEL OUT.json OUT.png [--rounds 5] [--no-goodput]
Four streams run. Then a prompt of 128 or of 1024 tokens comes: how long does a step of the
streams last from its sending to its first token, over a step before it? Each moment counts
alike: the figure is the median over the time of the prefill of the time between tokens that
it fell into, so that one long step weighs as much as the many short ones it displaces.
Ratios are within one round of one mode; rounds of the modes are interleaved; the median of
the rounds counts. Colocated and chunked have one engine with two threads, split has two
with one each. The bound of chunked for a prompt: what a step of step_tok of its tokens adds
about the middle of its time, measured on the idle engine, and the decode step that it carries.
Goodput is `llmctl load`: few requests a rate, targets from what this run measured, each
search GOODPUT_S at most; what `llmctl pd advise` predicts from each of them alone
stands beside it. Every key has value, goal, ok; exits 1 where a goal is missed."""
import argparse
import json
import os
import random
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "e2e"))
from rack import BIN, Rack, post_bytes, wait_for  # noqa: E402

MODES = ("colocated", "chunked", "split")
PROMPTS = (128, 1024)
STREAMS, BUDGET, REPEATS, PAUSE_S, SETTLE_S, LIMIT_S = 4, 64, 2, 0.6, 0.15, 120
GOODPUT_S = 600  # a mode's search at most; on two cores they take one to four minutes
BOUND_REPEATS = 3
CHAPTER = {128: 1.8, 1024: 12.6}  # reported by others, of a larger model on a GPU
SETTINGS = {
    "colocated": dict(threads=2, step_tok=PROMPTS[-1] + STREAMS),
    "chunked": dict(threads=2, step_tok=BUDGET),
    "split": dict(threads=1, step_tok=BUDGET, prefill__step_tok=256),
}
rng = random.Random(15)


class Flow:
    """One streamed answer: when its tokens came."""

    def __init__(self, rack, sel, prompt, answer):
        body = {"prompt": [rng.randrange(1000, 40000) for _ in range(prompt)],
                "max_tokens": answer, "temperature": 0, "ignore_eos": True, "stream": True}
        self.sock = socket.create_connection(("127.0.0.1", rack.port), timeout=LIMIT_S)
        self.seen, self.sel, self.over = [], sel, False
        self.sent = time.perf_counter()
        self.sock.sendall(post_bytes("/v1/completions", body))
        sel.register(self.sock, selectors.EVENT_READ, self)

    def read(self):
        data = self.sock.recv(65536)
        n = data.count(b"data: {")
        if n:
            self.seen.append((time.perf_counter(), n))
        self.over |= not data or b"[DONE]" in data

    def close(self):
        self.sel.unregister(self.sock)
        self.sock.close()

    def steps(self, a, b):
        """(how much of it lies within a..b, time between two tokens), each."""
        for (t0, _), (t1, n) in zip(self.seen, self.seen[1:]):
            inside = min(t1, b) - max(t0, a)
            if inside > 0:
                yield inside, (t1 - t0) / n


def pump(sel, seconds, done=lambda: False):
    end = time.perf_counter() + seconds
    while not done() and time.perf_counter() < end:
        for key, _ in sel.select(min(0.05, max(0, end - time.perf_counter()))):
            key.data.read()


def median_of_time(steps):
    """Of (time, value): the value at which half of the time is reached."""
    steps = sorted(steps, key=lambda s: s[1])
    half, at = sum(w for w, _ in steps) / 2, 0
    for w, v in steps:
        at += w
        if at >= half:
            return v
    raise SystemExit("no step was seen")


def first_token(rack, sel, prompt, answer=2):  # of one token is no handoff
    f = Flow(rack, sel, prompt, answer)
    pump(sel, LIMIT_S, lambda: f.seen or f.over)
    if not f.seen:
        raise SystemExit(f"a prompt of {prompt} tokens got no token")
    return f


class Mode:
    def __init__(self, name, model):
        self.name, self.ratios, self.steps = name, {n: [] for n in PROMPTS}, {n: [] for n in PROMPTS}
        self.budget_step, self.ttft = ({n: [] for n in PROMPTS} for _ in range(2))
        self.pure, self.trace = [], []
        sets = dict(SETTINGS[name], mode=name, max_seqs=16, kv__mib=320)
        self.rack = Rack("--rack", "cpu:2", "--stuck-s", "0", *(
            x for k, v in sets.items()
            for x in ("--set", f"instances.main.{k.replace('__', '.')}={v}")), model=model)
        wait_for(lambda: {i["state"] for i in self.engines()} == {"ready"}, LIMIT_S)

    def engines(self):
        return self.rack.local("/api/v1/instances")["instances"]

    def alone(self, prompt):
        """Time to the first token on the idle instance."""
        with selectors.DefaultSelector() as sel:
            f = first_token(self.rack, sel, prompt)
            f.close()
        return f.seen[0][0] - f.sent

    def round(self):
        for n in PROMPTS if self.name == "chunked" else ():
            # a budget's step: what one more of them adds to a prompt, about where half of
            # its time is over: later steps are longer, so that is at 9/16 and not at a half
            self.budget_step[n].append(statistics.median(
                self.alone(n * 13 // 16) - self.alone(n * 5 // 16)
                for _ in range(BOUND_REPEATS)) * BUDGET / (n // 2))
        pure, busy = [], {n: [] for n in PROMPTS}
        with selectors.DefaultSelector() as sel:
            flows = [Flow(self.rack, sel, 24 + i, 1900) for i in range(STREAMS)]
            pump(sel, LIMIT_S, lambda: all(len(f.seen) > 2 for f in flows))
            for n in PROMPTS * REPEATS:
                start = time.perf_counter()
                pump(sel, PAUSE_S)
                p = first_token(self.rack, sel, n)
                shown = p.seen[0][0]
                pump(sel, SETTLE_S)
                p.close()
                if any(f.over for f in flows):
                    raise SystemExit(f"{self.name}: a stream ended before the prompts did")
                for f in flows:
                    pure += f.steps(start + SETTLE_S, p.sent)
                    busy[n] += f.steps(p.sent, shown)
                self.ttft[n].append(shown - p.sent)
                if n == PROMPTS[-1]:
                    self.trace = [(t1 - p.sent, (t1 - t0) / k) for (t0, _), (t1, k) in zip(
                        flows[0].seen, flows[0].seen[1:]) if t1 > start]
            for f in flows:
                f.close()
        step = median_of_time(pure)
        self.pure.append(step)
        for n in PROMPTS:
            self.steps[n].append(median_of_time(busy[n]))
            self.ratios[n].append(self.steps[n][-1] / step)
        wait_for(lambda: sum(i["running"] for i in self.engines()) == 0, 20)

    def goodput(self, ttft_ms, tpot_ms):
        """A search of `llmctl load`, stopped after GOODPUT_S: then the best rate so far that
        passed. So many requests that one run of a rate without a bad one is sure."""
        p = subprocess.Popen(
            [os.path.join(BIN, "llmctl"), "--socket", self.rack.sock, "-j", "load", "ttft",
             str(ttft_ms), "tpot", str(tpot_ms), "target", "90", "in", "uniform:32-256", "out",
             "16", "requests", "36", "seconds", "30", "seed", "3"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            out, err = p.communicate(timeout=GOODPUT_S)
        except subprocess.TimeoutExpired:
            p.send_signal(signal.SIGINT)
            out, err = p.communicate(timeout=30)
        if not out and p.returncode != 1:  # 1: stopped before a rate was tried
            raise SystemExit(f"llmctl load: {err}")
        if not out:
            return {"goodput": 0, "complete": False}
        return json.loads(out)["result"]

    def advice(self):
        """What `llmctl pd advise` says from its run alone, or why it says nothing."""
        p = subprocess.run([os.path.join(BIN, "llmctl"), "--socket", self.rack.sock, "-j", "pd",
                            "advise", "main"], capture_output=True, text=True, timeout=120)
        if p.returncode:
            return p.stderr.strip()
        return json.loads(p.stdout)


def put_goodput(put, modes, slo):
    """Measured, and beside it what `pd advise` predicts from the run of one mode alone: what
    it foretells of that run, and how good the mode is that it names."""
    found, never = {}, float("inf")
    for m in modes:
        found[m.name] = r = m.goodput(*slo)
        put(f"goodput_{m.name}", r["goodput"], never,
            f"shown; {'a whole search' if r['complete'] else 'cut: at least'}; TTFT {slo[0]} "
            f"ms, TPOT {slo[1]} ms, 90 %")
        put(f"goodput_{m.name}_attainment", r.get("attainment", 0), never, "shown")
    best = max(r["goodput"] for r in found.values())
    for m in modes:
        said = m.advice()
        if isinstance(said, str):
            print(f"not predicted from {m.name}: {said}", flush=True)
            continue
        print(f"from {m.name} alone: {said['text']}", flush=True)
        for row in said["modes"]:
            value = row["predicted"] if row["measured"] else row["goodput"]
            if value is not None:
                put(f"goodput_{row['mode']}_from_{m.name}", value, never, "shown; " + (
                    f"its error is {100 * row['error']:+.0f} %" if row["error"] is not None else
                    f"between {row['low']:.2f} and {row['high']:.2f}"))
            if row["error"] is not None:
                put(f"advice_from_{m.name}_error", abs(row["error"]), 0.2, "at most 0.2")
        named = found[said["modes"][0]["mode"]]["goodput"]
        put(f"advice_from_{m.name}_loss", 1 - named / best if best else 0,
            0.1 if said["sure"] else never,
            "at most 0.1 below the best" if said["sure"] else
            f"shown; not certain, measure {said['next']}")
    return found


def picture(modes, bound, found, slo, path):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    colours = {"colocated": "#c44e52", "chunked": "#dd8452", "split": "#4c72b0"}
    fig = plt.figure(figsize=(10, 7.2), layout="constrained")
    grid = fig.add_gridspec(2, 2, width_ratios=[1.5, 1])
    ax = fig.add_subplot(grid[0, :])
    for m in modes:
        ax.plot([t for t, _ in m.trace], [1e3 * v for _, v in m.trace], ".-", lw=1, ms=4,
                drawstyle="steps-pre", color=colours[m.name],
                label=f"{m.name} (prefill takes {statistics.median(m.ttft[PROMPTS[-1]]):.2f} s)")
    ax.axvline(0, color="grey", lw=0.8, ls=":")
    ax.set(yscale="log", ylim=(1, None), xlabel="seconds since a prompt of 1024 tokens was sent",
           ylabel="time between tokens, ms", title="One of four running streams")
    ax.legend(frameon=False)
    ax = fig.add_subplot(grid[1, 0])
    for i, m in enumerate(modes):
        for j, n in enumerate(PROMPTS):
            x, v = i + 0.4 * j - 0.2, statistics.median(m.ratios[n])
            ax.bar(x, v, 0.36, color=colours[m.name], alpha=(0.55, 1)[j])
            ax.plot([x] * len(m.ratios[n]), m.ratios[n], "k.", ms=3)
            ax.annotate(f"{v:.2f}x\n{n} tokens", (x, max(*m.ratios[n], v)), ha="center",
                        va="bottom", xytext=(0, 3), textcoords="offset points",
                        bbox=dict(fc="white", ec="none", pad=0.5, alpha=0.8))
    ax.hlines(1.15, 1.6, 2.4, color="k", ls="--", lw=1)
    for j, n in enumerate(PROMPTS):
        ax.hlines(bound[n], 0.6 + 0.4 * j, 1 + 0.4 * j, color="k", ls="--", lw=1)
    ax.set_xticks(range(len(modes)), [m.name for m in modes])
    top = max(*bound.values(), *(max(m.ratios[n]) for m in modes for n in PROMPTS))
    ax.set(yscale="log", ylim=(0.7, 3 * top), ylabel="over pure decode",
           title="Decode step P50 while a prompt is prefilled (dashed: goal; dots: rounds)")
    ax.minorticks_off()
    ticks = [t for t in (1, 2, 5, 10, 20, 50, 100, 200, 500) if t < 2.2 * top]
    ax.set_yticks(ticks, [str(t) for t in ticks])
    ax = fig.add_subplot(grid[1, 1])
    if found:
        for i, m in enumerate(modes):
            ax.bar(i, found[m.name]["goodput"], 0.6, color=colours[m.name])
            cut = "" if found[m.name]["complete"] else f"cut after {GOODPUT_S} s:\nat least "
            ax.annotate(f"{cut}{found[m.name]['goodput']:.2f}", (i, found[m.name]["goodput"]),
                        ha="center", va="bottom", xytext=(0, 2), textcoords="offset points")
        ax.set_xticks(range(len(modes)), [m.name for m in modes])
        ax.set(ylabel="requests/s", ylim=(0, 1.12 * max(r["goodput"] for r in found.values())),
               title=f"Goodput on two cores (short runs)\n"
               f"90 %: TTFT {slo[0]} ms, TPOT {slo[1]} ms")
    else:
        ax.set_axis_off()
    fig.savefig(path, dpi=130)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("model")
    a.add_argument("json")
    a.add_argument("png")
    a.add_argument("--rounds", type=int, default=5)
    a.add_argument("--no-goodput", action="store_true")
    a = a.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    rows, modes = {}, []

    def put(key, value, limit, goal):
        ok = value <= limit
        rows[key] = {"value": round(value, 4), "goal": goal, "ok": ok}
        print(f"{key:<34} {value:10.3f}  {goal:<58} {'ok' if ok else 'MISSED'}", flush=True)

    try:
        for name in MODES:
            modes.append(Mode(name, a.model))
        for _ in range(a.rounds):
            for m in modes:
                m.round()
        chunked = modes[MODES.index("chunked")]
        bound = {n: 1 + statistics.median(b / p for b, p in zip(chunked.budget_step[n],
                                                                chunked.pure)) for n in PROMPTS}
        limits = {"colocated": lambda n: (float("inf"), "shown"),
                  "chunked": lambda n: (bound[n], f"at most {bound[n]:.2f}: a step of {BUDGET} "
                                        "tokens and decode's"),
                  "split": lambda n: (1.15, "at most 1.15")}
        for m in modes:
            put(f"{m.name}_pure_ms", 1e3 * statistics.median(m.pure), float("inf"), "shown")
            for n in PROMPTS:
                limit, goal = limits[m.name](n)
                put(f"{m.name}_{n}", statistics.median(m.ratios[n]), limit,
                    goal + (f" (others report {CHAPTER[n]})" if m.name == "colocated" else ""))
                put(f"{m.name}_{n}_ttft_ms", 1e3 * statistics.median(m.ttft[n]), float("inf"),
                    "shown")
        for n in PROMPTS:
            put(f"chunked_{n}_budget_step_ms", 1e3 * statistics.median(chunked.budget_step[n]),
                float("inf"), "shown")
        pure = 1e3 * statistics.median(chunked.pure)
        slo = (round(4e3 * chunked.alone(512)), round(2.5 * pure))
        found = {} if a.no_goodput else put_goodput(put, modes, slo)
        picture(modes, bound, found, slo, a.png)
    finally:
        for m in modes:
            m.rack.stop()
    with open(a.json, "w") as f:
        json.dump(rows, f, indent=1)
    return not all(r["ok"] for r in rows.values())


if __name__ == "__main__":
    sys.exit(main())
