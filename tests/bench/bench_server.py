"""The served side of `make bench`: a real daemon under the load of shared/bench/sse_load.py,
and with the null executor for what HTTP and scheduling cost. Used by bench.py."""
import http.client
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

SHARED = os.environ.get("SHARED", "../shared")
KEYS = ("server_8", "ttft_8", "ready", "peak_memory", "cpu_per_token", "gap_under_prefill",
        "queue_wait", "tokenize", "null_ttft", "null_cpu_share")
TICK = os.sysconf("SC_CLK_TCK")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_http(port, path, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            c = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            c.request("GET", path)
            if c.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.01)
    raise SystemExit(f"no answer from 127.0.0.1:{port}{path} in {seconds} s")


class Daemon:
    def __init__(self, model, threads, *options):
        self.dir = tempfile.TemporaryDirectory()
        self.port = free_port()
        t = time.monotonic()
        self.p = subprocess.Popen(["build/llmrackd", "--state-dir", self.dir.name, "--listen",
                                   f"127.0.0.1:{self.port}", "--model", model, "--threads",
                                   str(threads), "--name", "m", *options], stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL)
        wait_http(self.port, "/readyz", 60)
        self.ready_s = time.monotonic() - t

    def engine_pid(self):
        for pid in os.listdir("/proc"):
            try:
                stat = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
            except (OSError, IndexError):
                continue
            if pid.isdigit() and int(stat[1]) == self.p.pid:
                return int(pid)
        raise SystemExit("the engine process is gone")

    def close(self):
        self.p.terminate()
        self.p.wait(timeout=40)
        self.dir.cleanup()


class PeerServer:
    def __init__(self, model, threads):
        self.port = free_port()
        self.p = subprocess.Popen([sys.executable, "tests/bench/peer_server.py", model,
                                   str(threads), str(self.port)], stderr=subprocess.DEVNULL)
        wait_http(self.port, "/v1/models", 60)

    def close(self):
        self.p.terminate()
        self.p.wait(timeout=20)


def load(port, runs=1, **kw):
    args = [x for k, v in kw.items() for x in (f"--{k}", str(v))]
    out = subprocess.run([sys.executable, f"{SHARED}/bench/sse_load.py", "--port", str(port),
                          "--runs", str(runs), *args], capture_output=True, text=True,
                         check=True).stdout
    line = out.strip().splitlines()[-1]
    return {k: float(v) for k, v in re.findall(r"(\w+)=([0-9.]+)", line)}


def cpu_s(path):
    f = open(path).read().rsplit(")", 1)[1].split()
    return (int(f[11]) + int(f[12])) / TICK


def peak_but_kv(pid):
    """Peak of a process less the shared memory it holds: its part of the KV pool (a memfd)."""
    kb = dict(re.findall(r"(VmHWM|RssShmem):\s+(\d+)", open(f"/proc/{pid}/status").read()))
    return 1024 * (int(kb["VmHWM"]) - int(kb["RssShmem"]))


def row(value, unit, goal, ok, **more):
    return dict(value=value, unit=unit, goal=goal, ok=bool(ok), **more)


def pair(ours, peer, unit, goal, smaller_is_better=False):
    ratio = None
    if peer:
        ratio = statistics.median([b / a if smaller_is_better else a / b
                                   for a, b in zip(ours, peer)])
    return dict(unit=unit, ours=statistics.median(ours),
                peer=statistics.median(peer) if peer else None, ratio=ratio, limit=None,
                limit_ratio=None, goal={"ratio": goal}, ok=ratio is None or ratio >= goal)


def served(model, threads, with_peer, rounds):
    """server_8 and ttft_8, interleaved with the peer's server."""
    ours = Daemon(model, threads)
    peer = PeerServer(model, threads) if with_peer else None
    got = {"o": [], "p": []}
    for _ in range(rounds):
        got["o"].append(load(ours.port, streams=8, requests=24, prompt=128, tokens=64))
        if peer:
            got["p"].append(load(peer.port, streams=8, requests=24, prompt=128, tokens=64))
    pid = ours.engine_pid()
    tokens = rounds * 24 * 64
    cpu = cpu_s(f"/proc/{pid}/stat") + cpu_s(f"/proc/{ours.p.pid}/stat")
    peak = peak_but_kv(pid) + peak_but_kv(ours.p.pid)
    size = os.path.getsize(model)
    rows = {
        "server_8": pair([r["out_tok_s"] for r in got["o"]], [r["out_tok_s"] for r in got["p"]],
                         "tok/s", 2.2),
        "ttft_8": pair([r["ttft50"] for r in got["o"]], [r["ttft50"] for r in got["p"]], "ms", 3.0,
                       smaller_is_better=True),
        "ready": row(ours.ready_s, "s", "<= 1.0", ours.ready_s <= 1.0),
        "peak_memory": row(peak / size, "x file", "< 1.6", peak < 1.6 * size, peak_bytes=peak,
                           file_bytes=size, what="daemon and engine, KV pool left out"),
        "cpu_per_token": row(1e3 * cpu / tokens, "ms", "", True,
                             what="daemon and engine, prompts of 128 included"),
        "gap_under_prefill": gap_row(ours.port),
        "queue_wait": queue_row(ours),
        "tokenize": tokenize_row(ours.port),
    }
    ours.close()
    if peer:
        peer.close()
    return rows


def metric(daemon, name):
    """From the UNIX socket, where we need no key."""
    c = http.client.HTTPConnection("localhost", timeout=30)
    c.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    c.sock.settimeout(30)
    c.sock.connect(daemon.dir.name + "/llmrackd.sock")
    c.request("GET", "/metrics")
    text = c.getresponse().read().decode()
    c.close()
    return sum(float(x) for x in re.findall(rf"^{name}(?:{{[^}}]*}})? ([0-9.e+-]+)$", text, re.M))


def gap_row(port):
    """Longest gap between tokens of four running streams while a 2048-token prompt arrives."""
    base = {}
    t = threading.Thread(target=lambda: base.update(
        load(port, streams=4, requests=4, prompt=64, tokens=256)))
    t.start()
    time.sleep(0.6)
    load(port, streams=1, requests=1, prompt=2048, tokens=2)
    t.join()
    return row(base["gapmax"], "ms", "", True, what="4 streams, one prompt of 2048 arrives",
               p50=base["gap50"])


def queue_row(daemon):
    n, s = (metric(daemon, f"vllm:request_queue_time_seconds_{k}") for k in ("count", "sum"))
    return row(1e3 * s / max(n, 1), "ms", "", True, what="mean time in the queue over this run")


def tokenize_row(port):
    text = "".join(f"The {k}th rack holds {k * 7} devices, and über-fast links; x={k}.\n"
                   for k in range(16000))
    body = json.dumps({"prompt": text})
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    t = time.monotonic()
    c.request("POST", "/tokenize", body, {"Content-Type": "application/json"})
    r = c.getresponse()
    r.read()
    return row(len(text.encode()) / 1e6 / (time.monotonic() - t), "MB/s", "", r.status == 200,
               what="POST /tokenize of 1 MB, JSON and HTTP included")


def null_executor(model, threads, step_8_s):
    """TTFT and CPU of everything but the model: 1 stream, then 8."""
    d = Daemon(model, threads, "--executor", "null")
    one = load(d.port, streams=1, requests=40, prompt=16, tokens=4)
    pid = d.engine_pid()
    before = cpu_s(f"/proc/{d.p.pid}/stat") + cpu_s(f"/proc/{pid}/stat")
    load(d.port, streams=8, requests=400, prompt=128, tokens=256)
    cpu = cpu_s(f"/proc/{d.p.pid}/stat") + cpu_s(f"/proc/{pid}/stat") - before
    d.close()
    share = cpu / (400 * 256 / 8) / step_8_s
    return {
        "null_ttft": row(one["ttft50"], "ms", "< 1", one["ttft50"] < 1.0),
        "null_cpu_share": row(100 * share, "%", "< 2", share < 0.02,
                              what="CPU of daemon and scheduler per step of 8 over a real step"),
    }


def measure(model, threads, with_peer, rounds):
    rows = served(model, threads, with_peer, rounds)
    rows.update(null_executor(model, threads, 8 / max(rows["server_8"]["ours"], 1)))
    return rows
