#!/usr/bin/env python3
"""Run the C test binaries and the pytest suites, and end with one line of counts.

usage: tests/run.py [--only NAME] [--pytest DIR ...] [--pytest-args "..."]
                    [--fuzz FOLDER --fuzz-seconds N] BINARY ...
--only keeps tests whose binary, file or test name contains NAME. Each binary is one
process with its own time-out; a binary that dies counts as one failure."""
import argparse
import os
import re
import subprocess
import sys
import tempfile
import time


def run_binary(path, only, timeout):
    name = os.path.basename(path)
    cmd = [path]
    if only and only not in name:
        listed = subprocess.run([path, "-l"], capture_output=True, text=True, timeout=60).stdout
        if not any(only in line for line in listed.split()):
            return None
        cmd = [path, "-f", only]
    env = dict(os.environ, CMOCKA_MESSAGE_OUTPUT="TAP", TIMEOUT=str(timeout))
    start = time.monotonic()
    try:
        p = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env,
                           timeout=timeout + 30)
        out, rc = p.stdout.decode("utf-8", "replace"), p.returncode
    except subprocess.TimeoutExpired as e:
        out, rc = (e.stdout or b"").decode("utf-8", "replace") + "\ntimed out", 124
    # cmocka writes a skipped test as "not ok N # SKIP name"
    skipped = len(re.findall(r"^(?:not )?ok \d+ # SKIP", out, re.M))
    passed = len(re.findall(r"^ok \d+\b(?! # SKIP)", out, re.M))
    failed = len(re.findall(r"^not ok \d+\b(?! # SKIP)", out, re.M))
    if rc != 0 and failed == 0:
        failed = 1
    if failed:
        sys.stdout.write(out)
    print(f"{name}: {passed} passed, {failed} failed, {skipped} skipped "
          f"({time.monotonic() - start:.1f} s)", flush=True)
    return passed, failed, skipped


def run_pytest(dirs, only, extra):
    dirs = [d for d in dirs if os.path.isdir(d)]
    cmd = [sys.executable, "-m", "pytest", "-q", *extra, *dirs]
    if only:
        cmd += ["-k", only]
    p = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    sys.stdout.write(p.stdout)

    def count(word):
        m = re.findall(rf"(\d+) {word}", p.stdout.strip().splitlines()[-1] if p.stdout.strip() else "")
        return int(m[-1]) if m else 0
    failed = count("failed") + count("error") + count("errors")
    if p.returncode not in (0, 5) and failed == 0:
        failed = 1
    return count("passed"), failed, count("skipped")


def run_fuzzers(folder, only, seconds):
    passed = failed = 0
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if not name.startswith("fuzz_") or not os.access(path, os.X_OK) or only not in name:
            continue
        with tempfile.TemporaryDirectory() as found:
            seeds = os.path.join("tests/fuzz/seeds", name[5:])
            p = subprocess.run([path, f"-max_total_time={seconds}", "-timeout=10",
                                "-rss_limit_mb=2048", f"-artifact_prefix={found}/", found,
                                *([seeds] if os.path.isdir(seeds) else [])],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        out = p.stdout.decode("utf-8", "replace")
        runs = re.findall(r"Done (\d+) runs", out)
        ok = p.returncode == 0 and runs and int(runs[-1]) > 0
        passed, failed = passed + bool(ok), failed + (not ok)
        print(f"{name}: {runs[-1] if runs else 0} runs, {'ok' if ok else 'FAILED'}", flush=True)
        if not ok:
            sys.stdout.write(out[-6000:])
    return passed, failed, 0


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--only", default="")
    a.add_argument("--timeout", type=int, default=300)
    a.add_argument("--pytest", action="append", default=[])
    a.add_argument("--pytest-args", default="")
    a.add_argument("--fuzz", default="", help="folder of fuzz_* binaries")
    a.add_argument("--fuzz-seconds", type=int, default=5)
    a.add_argument("binaries", nargs="*")
    a = a.parse_args()
    total = [0, 0, 0]
    for b in a.binaries:
        r = run_binary(b, a.only, a.timeout)
        if r:
            total = [x + y for x, y in zip(total, r)]
    if a.fuzz and os.path.isdir(a.fuzz):
        total = [x + y for x, y in zip(total, run_fuzzers(a.fuzz, a.only, a.fuzz_seconds))]
    if a.pytest:
        r = run_pytest(a.pytest, a.only, a.pytest_args.split())
        total = [x + y for x, y in zip(total, r)]
    print(f"{total[0]} passed, {total[1]} failed, {total[2]} skipped")
    return 1 if total[1] or not total[0] else 0


if __name__ == "__main__":
    sys.exit(main())
