#!/usr/bin/env python3
"""Files of at most 600 lines, functions of at most 60, over the sources of all floors."""
import subprocess
import sys

FILE_MAX, FUNCTION_MAX = 600, 60
ROOTS = ("base", "kernels", "topo", "state", "daemon", "ctl")


def functions(lines):
    """(line, lines) of each: from a brace at the margin to the one that closes it."""
    start = None
    for n, line in enumerate(lines, 1):
        if line == "{":
            start = n
        elif line == "}" and start:
            yield start, n - start + 1
            start = None


faults, files = [], 0
patterns = [f"{root}/*.{end}" for root in ROOTS for end in "ch"]
listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
                        capture_output=True, text=True, check=True).stdout.split()
for path in sorted(set(listed)):
    try:
        with open(path) as f:
            lines = f.read().split("\n")[:-1]
    except FileNotFoundError:  # removed, and not committed yet
        continue
    files += 1
    if len(lines) > FILE_MAX:
        faults.append(f"{path}: {len(lines)} lines; {FILE_MAX} at most: split it by meaning")
    for at, n in functions(lines):
        if n > FUNCTION_MAX:
            faults.append(f"{path}:{at}: a function of {n} lines; {FUNCTION_MAX} at most")
for f in faults:
    print(f)
print(f"sizes: {files} files, {len(faults)} faults")
sys.exit(1 if faults else 0)
