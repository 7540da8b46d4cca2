#!/usr/bin/env python3
"""`make demo-moe`: experts of a mixture on 8 virtual devices, two topics of prompts in turn.

Starts the daemon with the policy auto, sends prompts of one topic and then the other, and
shows what the controller makes of it: which experts are hot, balancedness of the devices with
the experts as they were loaded and as they stand now, the moves, and what those added to the
time of a step. Ends by itself, prints a table and draws the same as a PNG.

usage: demo_moe.py MODEL PICTURE.png [SECONDS]   (runs from the project root; a topic lasts
SECONDS, 40, or until nothing has moved for a while, at most three times that)"""
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

DEVICES, CLIENTS, PHASES, QUIET = 8, 16, 4, 8
TOPICS = {
    "sums": "{i}. We add numbers: 11 + 7 = 18. 12 + 8 = 20. 13 + 9 = 22. 14 + 10 = 24. 15 + 11 =",
    "a tale": "Chapter {i}. Once upon a time there was a small village by the sea. The fishermen "
              "went out before the sun rose and came home when the bells rang. A girl named Anna",
}
CONFIG = """
rack: cpu:{n}
model_roots: [{root}]
models: {{moe: {{path: {path}}}}}
instances:
  main:
    model: moe
    ctx: 512
    step_tok: 128
    kv: {{mib: 256}}
    layout: {{adp: {n}, ep: {n}}}
    experts: {{spare: 1, policy: auto, sample_ms: 500, share_s: 5, dwell_s: 5, horizon_s: 600,
              max_moves: 16, copy_share: 0.3}}
"""


class Daemon:
    def __init__(self, model, folder):
        conf = os.path.join(folder, "llmrackd.yaml")
        path = os.path.realpath(model)
        with open(conf, "w", encoding="utf-8") as f:
            f.write(CONFIG.format(n=DEVICES, root=os.path.dirname(path), path=path))
        self.log = open(os.path.join(folder, "log"), "wb+")
        self.p = subprocess.Popen(["build/llmrackd", "--state-dir", folder, "--config", conf,
                                   "--listen", "127.0.0.1:0"], stderr=self.log)
        self.socket = os.path.join(folder, "llmrackd.sock")
        self.wait(lambda: os.path.exists(self.socket), 30)
        self.wait(lambda: self.get("status")["ready"], 180)
        self.port = self.get("status")["port"]

    def wait(self, what, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.p.poll() is None:
            try:
                if what():
                    return
            except (OSError, ValueError):
                pass
            time.sleep(0.1)
        self.log.seek(0)
        sys.exit("the daemon was not ready in time:\n" + self.log.read().decode()[-2000:])

    def ctl(self, *words):
        return subprocess.run(["build/llmctl", "--socket", self.socket, *words], text=True,
                              capture_output=True, timeout=60).stdout

    def get(self, path):
        out = self.ctl("-j", *{"status": ["show", "status"], "metrics": ["show", "metrics"],
                               "experts": ["experts", "show"],
                               "history": ["experts", "history"]}[path])
        return json.loads(out)

    def stop(self):
        if self.p.poll() is None:
            self.p.send_signal(signal.SIGTERM)
            try:
                self.p.wait(30)
            except subprocess.TimeoutExpired:
                self.p.kill()
                self.p.wait()


class Load:
    """Clients that each ask again as soon as they are answered."""

    def __init__(self, port):
        self.port, self.topic, self.end, self.n, self.failed = port, None, False, 0, None
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.run, daemon=True) for _ in range(CLIENTS)]

    def start(self, topic):
        self.topic = topic
        for t in self.threads:
            if not t.is_alive():
                t.start()

    def run(self):
        while not self.end:
            with self.lock:
                self.n += 1
                prompt = TOPICS[self.topic].format(i=self.n)
            body = json.dumps({"prompt": prompt, "max_tokens": 40, "temperature": 0.7,
                               "seed": self.n, "ignore_eos": True})
            try:
                c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
                c.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
                r = c.getresponse()
                said = r.read()
                if r.status != 200:
                    raise OSError(said.decode()[:200])
            except OSError as e:
                self.failed = self.failed or e
                time.sleep(0.5)

    def stop(self):
        self.end = True
        for t in self.threads:
            t.join(120)


class Watch:
    """Samples of what the daemon shows, and the steps between two of them."""

    def __init__(self, daemon):
        self.daemon, self.start, self.rows, self.events = daemon, time.time(), [], {}
        self.last = self.counted = None
        self.moving = True

    def tokens(self, x):
        return [[p + d for p, d in zip(y["prefill"]["assignments"], y["decode"]["assignments"])]
                for y in x["layers"]]

    def sample(self, topic, phase):
        (x,) = self.daemon.get("experts")["experts"]
        now = time.time() - self.start
        self.moving = x["plan"] > 0
        n = len(x["layers"])
        if not any(sum(y["load"]) for y in x["layers"]):
            return  # nothing is known yet
        tokens, steps = self.tokens(x), x["prefill_steps"] + x["decode_steps"]
        row = {"t": now, "topic": topic, "phase": phase, "moves": x["moves_done"], "aborted": x["moves_aborted"],
               "now": sum(y["balancedness"] for y in x["layers"]) / n,
               "loaded": sum(y["balancedness_loaded"] for y in x["layers"]) / n,
               "r": sum(y["imbalance"] for y in x["layers"]) / n, "tokens": None, "step": None,
               "layers": x["layers"]}
        if self.last:
            row["tokens"] = [[b - a for a, b in zip(was, is_)]
                             for was, is_ in zip(self.counted, tokens)]
            if steps > self.last[1]:
                row["step"] = 1e3 * (now - self.last[0]) / (steps - self.last[1])
        self.last, self.counted = (now, steps), tokens
        self.rows.append(row)
        for e in self.daemon.get("history")["history"]:
            key = (e["at_ms"], e["what"], e["plan"], e["move"])
            self.events[key] = dict(e, t=e["at_ms"] / 1e3 - self.start)

    def of(self, what):
        return sorted((e for e in self.events.values() if e["what"] == what), key=lambda e: e["t"])


def busiest(watch):
    """The layer whose hottest expert differs most between the topics' loads."""
    best, layer = -1, 0
    for l in range(len(watch.rows[0]["layers"])):
        mean = {}
        for topic in TOPICS:
            rows = [r["tokens"][l] for r in watch.rows if r["topic"] == topic and r["tokens"]]
            total = [sum(c) for c in zip(*rows)]
            mean[topic] = [v / max(1, sum(total)) for v in total]
        a, b = mean.values()
        apart = sum(abs(x - y) for x, y in zip(a, b))
        if apart > best:
            best, layer = apart, l
    return layer


def middle(values):
    v = sorted(values)
    return v[len(v) // 2] if v else float("nan")


def table(watch, seconds):
    print(f"\n{'topic':8} {'from':>6} {'R':>6} {'as loaded':>10} {'at its end':>10} {'moves':>6}  "
          f"{'step ms':>8}")
    at = 0
    for phase in range(PHASES):
        rows = [r for r in watch.rows if r["phase"] == phase]
        last = rows[-1]
        print(f"{last['topic']:8} {rows[0]['t']:5.0f}s {last['r']:6.2f} {last['loaded']:10.3f} "
              f"{last['now']:10.3f} {last['moves'] - at:6}  "
              f"{middle([r['step'] for r in rows if r['step']]):8.2f}")
        at = last["moves"]
    print("\nR: largest over mean load of the experts; balancedness: mean over largest load of the\n"
          "devices, of the loads at the end of each topic, mean over the layers")
    outcomes, moves = watch.of("outcome"), watch.of("move")
    if outcomes:
        print(f"gain of a step: foreseen {sum(e['predicted_us'] for e in outcomes):.0f} us, "
              f"realised {sum(e['realised_us'] for e in outcomes):.0f} us "
              f"(of {len(outcomes)} layers' plans)")
    added = [e["added_us"] for e in moves if e["added_us"] is not None]
    if added:
        print(f"step time during a move less before it: mean {sum(added) / len(added) / 1e3:+.2f} ms, "
              f"median {middle(added) / 1e3:+.2f} ms over {len(added)} moves, largest "
              f"{max(added) / 1e3:+.2f} ms (a step takes "
              f"{middle([r['step'] for r in watch.rows if r['step']]):.1f} ms)")


def draw(watch, layer, path):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    t = [r["t"] for r in watch.rows]
    fig, (heat, bal, step) = plt.subplots(
        3, 1, figsize=(10, 9.2), sharex=True, height_ratios=[1, 1.35, 1.1], layout="constrained")
    fig.suptitle(f"Experts follow the topic: {DEVICES} virtual devices, "
                 f"{len(watch.rows[0]['layers'])} layers of "
                 f"{len(watch.rows[0]['layers'][0]['load'])} experts, policy auto", fontsize=13)

    rows = [r for r in watch.rows if r["tokens"] and sum(r["tokens"][layer])]
    share = np.array([[v * len(r["tokens"][layer]) / sum(r["tokens"][layer])
                       for v in r["tokens"][layer]] for r in rows]).T
    edges = [t[0]] + [r["t"] for r in rows]
    mesh = heat.pcolormesh(edges, np.arange(share.shape[0] + 1) - 0.5, share, vmin=0,
                           vmax=max(3, np.percentile(share, 98)), cmap="viridis")
    heat.set_ylabel(f"expert of layer {layer}")
    heat.set_yticks(range(share.shape[0]))
    heat.set_title("load of each expert over the mean of its layer", fontsize=10, loc="left")
    bar = heat.inset_axes([0.72, 1.05, 0.28, 0.05])
    fig.colorbar(mesh, cax=bar, orientation="horizontal")
    bar.xaxis.set_ticks_position("top")
    bar.tick_params(labelsize=8, pad=1)

    bal.plot(t, [r["loaded"] for r in watch.rows], color="0.55", ls="--",
             label="experts as they were loaded")
    bal.plot(t, [r["now"] for r in watch.rows], color="tab:blue", lw=2,
             label="experts as they stand")
    for i, e in enumerate(watch.of("move")):
        bal.axvline(e["t"], ymax=0.06, color="tab:red", lw=1,
                    label="a move is done" if i == 0 else None)
    plans = [e for e in watch.of("plan") if e["predicted_us"] is not None]
    for i, e in enumerate(plans):
        bal.plot([e["t"]], [1.02], "v", color="tab:orange", ms=7, clip_on=False,
                 label="a plan begins" if i == 0 else None)
    bal.set_ylim(0, 1.15)
    bal.set_ylabel("balancedness")
    bal.set_title("mean over largest load of the devices, mean over all layers; 1 = even",
                  fontsize=10, loc="left")
    bal.grid(alpha=0.3)
    bal.legend(loc="upper right", ncols=4, fontsize=8, framealpha=0.9)

    step.plot([r["t"] for r in watch.rows if r["step"]],
              [r["step"] for r in watch.rows if r["step"]], color="tab:green",
              label="time of a step")
    added = [e for e in watch.of("move") if e["added_us"] is not None]
    step.plot([e["t"] for e in added], [e["added_us"] / 1e3 for e in added], ".",
              color="tab:red", ms=5, label="step time during a move less before it")
    step.axhline(0, color="0.7", lw=0.8)
    step.set_ylabel("ms")
    step.set_xlabel("time (s)")
    step.grid(alpha=0.3)
    step.legend(loc="upper right", ncols=4, fontsize=8, framealpha=0.9)

    for phase in range(PHASES):
        of = [r["t"] for r in watch.rows if r["phase"] == phase]
        for ax in heat, bal, step:
            if phase:
                ax.axvline(of[0], color="0.25", lw=1, ls=":")
        for ax, at in (heat, share.shape[0] - 0.6), (bal, 0.03):
            ax.text(of[0] + 0.6, at, next(r["topic"] for r in watch.rows if r["phase"] == phase),
                    va="top" if ax is heat else "bottom", fontsize=9, fontweight="bold",
                    color="white" if ax is heat else "0.25",
                    bbox={"fc": "0.15" if ax is heat else "white", "ec": "none", "pad": 1.5})
    high = [r["step"] for r in watch.rows if r["step"]] + [e["added_us"] / 1e3 for e in added]
    step.set_ylim(min(0, 1.1 * np.percentile(high, 1)), 1.25 * np.percentile(high, 98))
    heat.set_xlim(watch.rows[0]["t"], watch.rows[-1]["t"])
    fig.savefig(path, dpi=120)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 40
    topics = list(TOPICS)
    with tempfile.TemporaryDirectory(prefix="llmrack-moe-") as folder:
        print(f"starting llmrackd: {DEVICES} virtual devices, ep {DEVICES}", flush=True)
        daemon = Daemon(sys.argv[1], folder)
        load, watch = Load(daemon.port), Watch(daemon)
        try:
            for phase in range(PHASES):
                topic = topics[phase % len(topics)]
                load.start(topic)
                begun = quiet = time.monotonic()
                # until nothing has moved for a while: how long that takes is the machine's
                while time.monotonic() < min(quiet + QUIET, begun + 3 * seconds) or \
                        time.monotonic() < begun + seconds:
                    time.sleep(0.8)
                    watch.sample(topic, phase)
                    if watch.moving:
                        quiet = time.monotonic()
                r = watch.rows[-1]
                print(f"{r['t']:5.0f} s  topic '{topic}': balancedness {r['loaded']:.3f} as loaded, "
                      f"{r['now']:.3f} now, {r['moves']} moves done", flush=True)
            layer = busiest(watch)
            print(f"\nlayer {layer}, as `llmctl experts show {layer}` has it:\n")
            print(daemon.ctl("experts", "show", str(layer)))
            load.stop()
        finally:
            load.end = True
            daemon.stop()
    if load.failed:
        sys.exit(f"a request failed: {load.failed}")
    table(watch, seconds)
    draw(watch, layer, sys.argv[2])
    print(f"\nthe picture is {sys.argv[2]}")


if __name__ == "__main__":
    main()
