"""What the counts of layers of experts cost of a step, by instructions: at most 1 %.

    tests/bench/tally_cost.py [--bin BENCH_TALLY] [--steps N] MODEL OUT.json

Runs bench_tally under callgrind, which counts instructions only inside rank_run, and adds
up what is done for the counts: the report and the page after a step and the marks of the
all-to-alls. All of op_group is counted with them, though most of it would be there without
counts; not seen is what is inlined elsewhere, a reading of the clock for each expert. Time
that ranks wait for each other is no part of a step. A model of small layers is the harder
case: counts cost the same for any size. Without valgrind there is nothing to measure:
the file says so, and the exit status is 0."""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

LAYOUTS = {"tally_alone": "tp1", "tally_apart": "adp2 ep2"}
# inclusive; forward_tally_mark may run `marked` itself: then both count
PARTS = ["forward_report", "forward_altered", "expertpage_put", "expertpage_step", "marked", "paired",
         "forward_tally_mark", "forward_tally_begin", "forward_counts_clear", "cpu_op_group"]
WAITS = ["gate_wait"]
GOAL = 0.01


def inclusive(text):
    """Instructions by function, and of all, of callgrind_annotate --inclusive=yes."""
    cost, total = {}, 0
    for line in text.splitlines():
        m = re.match(r"\s*([\d,]+)\s+\([^)]*\)\s+(?:\S+:)?([\w.]+|PROGRAM TOTALS)", line)
        if not m:
            continue
        n = int(m.group(1).replace(",", ""))
        if "PROGRAM TOTALS" in line:
            total = n
            continue
        name = m.group(2).split(".")[0].split("'")[0]
        cost[name] = max(cost.get(name, 0), n)
    return cost, total


def measure(binary, model, layout, steps, root):
    out = os.path.join(root, "callgrind.out")
    subprocess.run(["valgrind", "--tool=callgrind", "--toggle-collect=rank_run",
                    f"--callgrind-out-file={out}", binary, model, layout, str(steps)],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=3000)
    said = subprocess.run(["callgrind_annotate", "--inclusive=yes", "--threshold=100", out],
                          check=True, capture_output=True, text=True, timeout=600).stdout
    cost, total = inclusive(said)
    total -= sum(cost.get(w, 0) for w in WAITS)
    parts = {p: cost.get(p, 0) for p in PARTS}
    assert parts["forward_report"] and parts["expertpage_put"] and parts["cpu_op_group"], parts
    assert total > 10 * sum(parts.values()), (total, parts)
    return parts, total


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--bin", default="build/rel/tests/bench/bench_tally")
    a.add_argument("--steps", type=int, default=8)
    a.add_argument("model")
    a.add_argument("out")
    a = a.parse_args()
    rows = {}
    if not shutil.which("valgrind"):
        rows["tally_skipped"] = {"value": len(LAYOUTS), "goal": "reported: no valgrind here", "ok": True}
    for key, layout in (LAYOUTS.items() if not rows else ()):
        with tempfile.TemporaryDirectory() as root:
            parts, total = measure(a.bin, a.model, layout, a.steps, root)
        share = sum(parts.values()) / total
        rows[key + "_share"] = {"value": share, "goal": f"at most {GOAL}", "ok": share <= GOAL}
        rows[key + "_instructions"] = {"value": total // a.steps, "goal": "reported: of a step", "ok": True}
        print(f"{layout}: {100 * share:.3f} % of {total // a.steps} instructions a step:",
              ", ".join(f"{p} {n // a.steps}" for p, n in parts.items() if n), flush=True)
    with open(a.out, "w") as f:
        json.dump(rows, f, indent=1)
    return 0 if all(r["ok"] for r in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
