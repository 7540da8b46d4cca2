#!/usr/bin/env python3
"""`make demo`: start the daemon, ask one streamed question, print the answer with TTFT and
tokens/s, stop cleanly.

usage: demo.py MODEL [QUESTION]   (standard library only; runs from the project root)"""
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

QUESTION = "What is the capital of France, and what is it known for?"


def wait_ready(daemon, port, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if daemon.poll() is not None:
            sys.exit(f"the daemon ended with exit code {daemon.returncode}")
        try:
            c = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            c.request("GET", "/readyz")
            if c.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.02)
    sys.exit("the model was not ready in time")


def ask(port, question):
    body = json.dumps({"messages": [{"role": "user", "content": question}], "stream": True,
                       "temperature": 0, "max_tokens": 160,
                       "stream_options": {"include_usage": True}})
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    start = time.monotonic()
    c.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    r = c.getresponse()
    if r.status != 200:
        sys.exit(f"HTTP {r.status}: {r.read().decode()}")
    first = last = None
    usage = {}
    for line in r:
        if not line.startswith(b"data: {"):
            continue
        frame = json.loads(line[6:])
        if "error" in frame:
            sys.exit(frame["error"]["message"])
        usage = frame.get("usage") or usage
        text = "".join(x["delta"].get("content") or "" for x in frame["choices"])
        if text:
            last = time.monotonic()
            first = first or last
            print(text, end="", flush=True)
    n = usage["completion_tokens"]
    print(f"\n\nTTFT {1e3 * (first - start):.0f} ms, {n} tokens at "
          f"{(n - 1) / (last - first):.0f} tokens/s")


def main():
    model = sys.argv[1]
    question = sys.argv[2] if len(sys.argv) > 2 else QUESTION
    with tempfile.TemporaryDirectory() as state:
        t0 = time.monotonic()
        daemon = subprocess.Popen(["build/llmrackd", "--state-dir", state, "--listen",
                                   "127.0.0.1:0", "--model", model],
                                  stdout=subprocess.PIPE, text=True)
        try:
            port = None
            for line in daemon.stdout:
                m = re.search(r"http://127\.0\.0\.1:(\d+)", line)
                if m:
                    port = int(m.group(1))
                    break
            if port is None:
                sys.exit(f"the daemon ended with exit code {daemon.wait()}")
            wait_ready(daemon, port, 60)
            print(f"ready in {time.monotonic() - t0:.2f} s, {os.path.basename(model)}")
            print(f"> {question}\n")
            ask(port, question)
            daemon.send_signal(signal.SIGTERM)
            daemon.stdout.close()
            rc = daemon.wait(timeout=40)
            print("stopped cleanly" if rc == 0 else f"the daemon ended with exit code {rc}")
            return rc
        finally:
            if daemon.poll() is None:
                daemon.kill()


if __name__ == "__main__":
    sys.exit(main())
