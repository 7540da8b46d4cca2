"""Eight ranks in two pools under random faults: engines are killed, stopped and slowed, ranks,
collectives and copies of KV are held, clients come and leave at any moment. Each request has
exactly one end, in time and with the text that it has without faults, or one clear error; in
the end pools, descriptors and memory are where they were.

LLMRACK_SOAK_S seconds of it (make soak: 600), seed SEED."""
import http.client
import json
import os
import random
import signal
import sys
import threading
import time

import pytest

import rack as rack_module
from rack import BIN, SLOW, post_bytes, unchunk, wait_for

sys.path.append(os.path.join(os.path.dirname(__file__), "..", "tools"))

TEXT = "/v1/completions"
SECONDS = float(os.environ.get("LLMRACK_SOAK_S", "25"))
SEED = int(os.environ.get("SEED", "0")) or random.randrange(1, 1 << 30)
CLIENTS, KINDS, DEADLINE_S = 6, 16, 90
CONFIG = """
rack: cpu:8
model_roots: [{folder}]
models: {{moe: {{path: {folder}/moe}}}}
instances:
  main:
    {{model: moe, mode: split, ctx: 512, step_tok: 64, max_seqs: 8, threads: 2, stuck_s: 3,
     restart_wait_s: 60, layout: {{tp: 2, ep: 2}}, kv: {{mib: 2}},
     handoff: {{lease_ms: 1000, stall_ms: 1500, sums: true}}, prefill: {{engines: 2}}, decode: {{engines: 2}}}}
"""
LEVEL = ["llmrack_kv_blocks_used", "llmrack_kv_exports", "llmrack_kv_export_blocks",
         "llmrack_kv_quarantined_blocks", "llmrack_kv_held_blocks", "llmrack_kv_imports"]


@pytest.fixture(scope="module")
def soak(tmp_path_factory):
    engine = os.path.join(BIN, "llmrack-engine-faults")
    tiny_models = pytest.importorskip("tiny_models")
    if not os.path.exists(engine):
        pytest.skip(f"not there: {engine}")
    folder = tmp_path_factory.mktemp("soak")
    tiny_models.write(tiny_models.Spec(family="qwen3_moe"), str(folder / "moe"))
    (folder / "llmrackd.yaml").write_text(CONFIG.format(folder=folder))
    os.environ.update(LLMRACK_FAULT_FILE=str(folder / "fault"), LLMRACK_COMM_TIMEOUT_MS="1000")
    try:
        r = rack_module.Rack("--engine", engine, "--config", str(folder / "llmrackd.yaml"),
                             model=None)
    finally:
        del os.environ["LLMRACK_FAULT_FILE"], os.environ["LLMRACK_COMM_TIMEOUT_MS"]
    r.fault_file = str(folder / "fault")
    wait_for(lambda: all_ready(r), 60)
    yield r
    assert r.p.poll() is None, "the daemon ended during the test: " + r.logged()
    r.stop()


def engines(rack):
    return rack.local("/api/v1/instances")["instances"]


def all_ready(rack):
    return [i["state"] for i in engines(rack)] == ["ready"] * 4


def sums(rack, name):
    text = rack.local_request("GET", "/metrics")[2].decode()
    return sum(float(x.rsplit(" ", 1)[1]) for x in text.splitlines()
               if x.startswith((name + "{", name + " ")))


def body(n):
    """One of KINDS requests; some begin alike."""
    rng = random.Random(n)
    shared = [10 + (7 * i + n % 3) % 200 for i in range(rng.choice((0, 0, 64, 130)))]
    return {"prompt": shared + [10 + rng.randrange(200) for _ in range(rng.randrange(1, 260))],
            "max_tokens": rng.randrange(1, 40), "temperature": rng.choice((0, 0.9)),
            "seed": 50 + n, "ignore_eos": True, "stream": True}


def exchange(rack, n, leave_after=None):
    """(text, None), (None, error), or (None, None) where the client left after so long."""
    end = time.monotonic() + DEADLINE_S * SLOW
    data = b""
    with rack.raw() as s:
        s.sendall(post_bytes(TEXT, body(n), "Connection: close"))
        until = end if leave_after is None else time.monotonic() + leave_after
        while True:
            left = until - time.monotonic()
            if left <= 0:
                assert leave_after is not None, f"request {n} hangs: {data[-300:]!r}"
                return None, None
            s.settimeout(left)
            try:
                got = s.recv(65536)
            except TimeoutError:
                continue
            if not got:
                break
            data += got
    head, rest = data.split(b"\r\n\r\n", 1)
    if b"chunked" in head.lower():
        rest = unchunk(rest)
    if b" 200 " not in head.split(b"\r\n")[0]:
        return None, json.loads(rest)["error"]["message"]
    frames = rack_module.parse_sse(rest)
    errors = [f["error"]["message"] for f in frames if "error" in f and f != "[DONE]"]
    whole = [f for f in frames if f != "[DONE]" and "error" not in f]
    ends = [c["finish_reason"] for f in whole for c in f["choices"] if c["finish_reason"]]
    assert len(errors) + len(ends) == 1, (n, errors, ends)
    assert errors or frames.count("[DONE]") == 1 and frames[-1] == "[DONE]"
    return (None, errors[0]) if errors else (
        "".join(c["text"] for f in whole for c in f["choices"]), None)


class Clients:
    """Requests without a pause, of which a third is left at a random moment."""

    def __init__(self, rack, want, seed):
        self.rack, self.want, self.over = rack, want, False
        self.lock, self.faults, self.errors = threading.Lock(), [], []
        self.good = self.left = 0
        self.threads = [threading.Thread(target=self.run, args=(random.Random(seed + i),))
                        for i in range(CLIENTS)]
        for t in self.threads:
            t.start()

    def run(self, rng):
        while not self.over and not self.faults:
            n = rng.randrange(KINDS)
            leave = rng.expovariate(4) if rng.random() < 0.35 else None
            try:
                text, error = exchange(self.rack, n, leave)
                assert text is None or text == self.want[n], (n, text, self.want[n])
            except (AssertionError, ValueError, OSError, http.client.HTTPException) as e:
                self.faults.append(repr(e))
                return
            with self.lock:
                self.good += text is not None
                self.left += text is None and error is None
                if error:
                    self.errors.append(error)

    def end(self):
        self.over = True
        for t in self.threads:
            t.join(2 * DEADLINE_S * SLOW)
            assert not t.is_alive(), "a client hangs"


def send(pid, *signals):
    """False: it has gone already."""
    try:
        for s in signals:
            os.kill(pid, s)
        return True
    except ProcessLookupError:
        return False


def one_fault(rack, rng):
    """Does it; what it was."""
    at = rng.choice(engines(rack))
    kind = rng.choice(("kill", "stop", "stop", "slow", "rank", "collective", "pull", "pull"))
    if not at["pid"] and kind in ("kill", "stop", "slow"):
        return "none"
    if kind == "kill":
        send(at["pid"], signal.SIGKILL)
    elif kind == "stop":
        send(at["pid"], signal.SIGSTOP)
        time.sleep(rng.choice((0.05, 0.4, 1.5, 4)))
        send(at["pid"], signal.SIGCONT)
    elif kind == "slow":
        for _ in range(40):
            send(at["pid"], signal.SIGSTOP)
            time.sleep(0.02)
            send(at["pid"], signal.SIGCONT)
            time.sleep(0.01)
    else:
        ms = rng.choice((30, 300, 1500, 4000) if kind == "pull" else (30, 300, 3000, 0))
        with open(rack.fault_file + ".new", "w") as f:
            f.write(f"{kind} {rng.randrange(2) if kind != 'pull' else 0} {ms}")
        os.rename(rack.fault_file + ".new", rack.fault_file)
        kind += f" {ms}"
    return kind


def open_files(rack):
    return len(os.listdir(f"/proc/{rack.p.pid}/fd"))


def resident_mib(rack):
    with open(f"/proc/{rack.p.pid}/status") as f:
        return next(int(x.split()[1]) for x in f if x.startswith("VmRSS")) / 1024


def pools(rack):
    return sum(sums(rack, "llmrack_kv_blocks_" + k) for k in ("free", "cached"))


def level(rack):
    return [sums(rack, k) for k in LEVEL]


def test_soak(soak):
    rng = random.Random(SEED)
    print(f"seed {SEED}, {SECONDS:.0f} s")
    want = [exchange(soak, n)[0] for n in range(KINDS)]
    assert None not in want and len(set(want)) > KINDS / 2
    wait_for(lambda: level(soak) == [0] * len(LEVEL), 20)
    files, blocks, mib = open_files(soak), pools(soak), resident_mib(soak)
    clients, done = Clients(soak, want, SEED), {}
    try:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end and not clients.faults:
            what = one_fault(soak, rng)
            done[what] = done.get(what, 0) + 1
            time.sleep(rng.uniform(0.2, 2.5))
    finally:
        if os.path.exists(soak.fault_file):
            os.unlink(soak.fault_file)
        clients.end()
    print(f"faults {done}; {clients.good} answers, {clients.left} left, "
          f"{len(clients.errors)} errors {sorted(set(clients.errors))}")
    assert clients.faults == [], (SEED, clients.faults)
    assert "invariant does not hold" not in soak.logged()
    assert clients.good > SECONDS / 10 and clients.left > 0
    assert all(e.strip() for e in clients.errors)
    wait_for(lambda: all_ready(soak), 90)
    assert [exchange(soak, n)[0] for n in range(KINDS)] == want, SEED
    wait_for(lambda: level(soak) == [0] * len(LEVEL), 20)
    assert pools(soak) == blocks, SEED
    wait_for(lambda: open_files(soak) <= files, 20)
    assert resident_mib(soak) < mib + 64, SEED
