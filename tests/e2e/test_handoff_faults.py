"""Engines, ranks and copies that are killed, stopped or slow, at each state that a handoff
of KV passes: a request in flight has the text that it has without faults, in time; nothing
stays pinned, reserved or in quarantine; engines are ready again, and another instance of
the same daemon answers all the while. The engines are those with fault points (base/fault.h),
which look at every step whether a KV block is lost or owned twice, and abort if one is.

All rows with LLMRACK_LONG=1, else those that are marked quick."""
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
LONG = os.environ.get("LLMRACK_LONG") == "1"
SEED = int(os.environ.get("SEED", "0")) or random.randrange(1, 1 << 30)
DEADLINE_S = 40
POOLS = ["main/decode", "main/prefill"]
CONFIG = """
rack: cpu:6
model_roots: [{folder}]
models: {{moe: {{path: {folder}/moe}}}}
instances:
  main:
    {{model: moe, served_as: two, mode: split, ctx: 512, step_tok: 32, max_seqs: 8, threads: 2,
     stuck_s: 3, restart_wait_s: {wait}, layout: {{tp: 2}}, kv: {{mib: 2}},
     handoff: {{lease_ms: 400, stall_ms: 800, sums: true}}}}
  other:
    {{model: moe, served_as: one, ctx: 512, threads: 1, layout: {{tp: 2}}, kv: {{mib: 2}}}}
"""
LEVEL = ["llmrack_kv_blocks_used", "llmrack_kv_exports", "llmrack_kv_export_blocks",
         "llmrack_kv_quarantined_blocks", "llmrack_kv_held_blocks", "llmrack_kv_imports"]


def launch(folder, wait=30):
    """A daemon with two pools and another instance, of one tiny model."""
    engine = os.path.join(BIN, "llmrack-engine-faults")
    daemon = os.path.join(BIN, "llmrackd-faults")
    tiny_models = pytest.importorskip("tiny_models")
    for program in engine, daemon:
        if not os.path.exists(program):
            pytest.skip(f"not there: {program}")
    tiny_models.write(tiny_models.Spec(family="qwen3_moe"), str(folder / "moe"))
    (folder / "llmrackd.yaml").write_text(CONFIG.format(folder=folder, wait=wait))
    settings = {"LLMRACK_FAULT_FILE": str(folder / "fault"), "LLMRACK_COMM_TIMEOUT_MS": "1000",
                "LLMRACK_BACKOFF_MAX_MS": "100"}
    os.environ.update(settings)
    try:
        r = rack_module.Rack("--engine", engine, "--config", str(folder / "llmrackd.yaml"),
                             model=None, program=[daemon])
    finally:
        for name in settings:
            del os.environ[name]
    r.fault_file = str(folder / "fault")
    wait_for(lambda: all_ready(r), 60)
    return r


@pytest.fixture(scope="module")
def pools(tmp_path_factory):
    r = launch(tmp_path_factory.mktemp("faults"))
    yield r
    assert r.p.poll() is None, "the daemon ended during the tests: " + r.logged()
    logged = r.logged()
    r.stop()
    assert logged.count("invariant does not hold") == r.planted, logged


def engines(rack):
    return {i["name"]: i for i in rack.local("/api/v1/instances")["instances"]}


def all_ready(rack):
    return {k: i["state"] for k, i in engines(rack).items()} == \
        dict.fromkeys([*POOLS, "other"], "ready")


def sums(rack, name):
    text = rack.local_request("GET", "/metrics")[2].decode()
    return sum(float(x.rsplit(" ", 1)[1]) for x in text.splitlines()
               if x.startswith((name + "{", name + " ")))


def level(rack):
    return [sums(rack, k) for k in LEVEL]


def held(rack):
    """What is held for requests and handoffs, in any view of it; {} at rest."""
    out = {k: v for k, v in zip(LEVEL, level(rack)) if v}
    for p in rack.local("/api/v1/pools")["pools"]:
        out.update({(p["engine"], k): p[k] for k in (
            "exports", "export_blocks", "quarantined_blocks", "imports", "helping", "away",
            "running", "waiting", "stalled") if p[k]})
    requests = rack.local("/api/v1/requests")["requests"]
    return {**out, "requests": requests} if requests else out


def at_rest(rack, seconds=20):
    end = time.monotonic() + seconds * SLOW
    while rest := held(rack):
        assert time.monotonic() < end, (rest, engines(rack))
        time.sleep(0.02)


def kv(rack):
    """Of each engine of the pools: blocks in all, and of them used."""
    return {k["instance"]: (k["blocks"], k["used"]) for k in rack.local("/api/v1/kv")["kv"]
            if k["instance"] in POOLS}


def body(n, model="two", **more):
    """A prompt of its own for each n, of several chunks."""
    rng = random.Random(n)
    return dict({"model": model, "prompt": [10 + rng.randrange(200) for _ in range(200)],
                 "max_tokens": 24, "temperature": 0.9, "seed": n, "ignore_eos": True,
                 "stream": True}, **more)


class Exchange(threading.Thread):
    """A streamed request: text, or error; `events` are the kinds of its frames."""

    def __init__(self, rack, n, leave_after=None, **more):
        super().__init__()
        self.sent = post_bytes(TEXT, body(n, **more), "Connection: close")
        self.rack, self.leave_after, self.data = rack, leave_after, b""
        self.start()

    def run(self):
        with self.rack.raw() as s:
            s.settimeout(DEADLINE_S * SLOW if self.leave_after is None else self.leave_after)
            s.sendall(self.sent)
            try:
                while got := s.recv(65536):
                    self.data += got
            except TimeoutError:
                self.data = None

    def end(self):
        """(status, frames); frames None where the client left."""
        self.join(2 * DEADLINE_S * SLOW)
        assert not self.is_alive(), "it hangs"
        if self.data is None:
            assert self.leave_after is not None, "no end within the deadline"
            return 0, None
        head, rest = self.data.split(b"\r\n\r\n", 1)
        if b"chunked" in head.lower():
            rest = unchunk(rest)
        status = int(head.split(b" ")[1])
        return status, rack_module.parse_sse(rest) if status == 200 else json.loads(rest)

    def text(self):
        status, frames = self.end()
        assert status == 200, frames
        assert frames[-1] == "[DONE]" and not [f for f in frames if "error" in f], frames[-2:]
        ends = [c["finish_reason"] for f in frames[:-1] for c in f["choices"]
                if c["finish_reason"]]
        assert ends == ["length"]
        return "".join(c["text"] for f in frames[:-1] for c in f["choices"])


class Other(threading.Thread):
    """Asks the other instance without a pause, and looks whether it gives the same answer."""

    def __init__(self, rack):
        super().__init__()
        self.rack, self.over, self.n, self.faults = rack, False, 0, []
        self.want = Exchange(rack, 1, model="one").text()
        self.start()

    def run(self):
        while not self.over and not self.faults:
            try:
                assert Exchange(self.rack, 1, model="one").text() == self.want
                self.n += 1
            except (AssertionError, OSError, ValueError) as e:
                self.faults.append(repr(e))

    def end(self):
        self.over = True
        self.join(2 * DEADLINE_S * SLOW)
        assert self.faults == [] and self.n > 0


def plant(rack, *lines):
    with open(rack.fault_file + ".new", "w") as f:
        f.write("".join(x + "\n" for x in lines))
    os.rename(rack.fault_file + ".new", rack.fault_file)


def planted(rack):
    """Lines that have not happened yet."""
    try:
        with open(rack.fault_file) as f:
            return f.read().splitlines()
    except FileNotFoundError:
        return []


def signal_to(pid, *signals):
    try:
        for s in signals:
            os.kill(pid, s)
    except ProcessLookupError:
        pass  # killed as stuck meanwhile


def act(pid, action):
    """What is done to an engine while a handoff is held at a state."""
    if action == "kill":
        signal_to(pid, signal.SIGKILL)
    elif action == "stop":
        signal_to(pid, signal.SIGSTOP)
        time.sleep(1.2)
        signal_to(pid, signal.SIGCONT)
    elif action == "gone":  # and is killed for it
        signal_to(pid, signal.SIGSTOP)
    elif action == "slow":
        for _ in range(20):
            signal_to(pid, signal.SIGSTOP)
            time.sleep(0.02)
            signal_to(pid, signal.SIGCONT)
            time.sleep(0.01)


# What must come before a state, the state, and which engine passes it.
STATES = {
    "export_open": ([], "prefill"),
    "export_sent": ([], "prefill"),
    "export_quarantine": (["pull@decode 0 1500"], "prefill"),
    "import_queued": ([], "decode"),
    "import_wait": ([], "decode"),
    "import_pull": ([], "decode"),
    "import_lost": (["pull@decode 0 fail"] * 3, "decode"),
    "import_closing": (["pull@decode 0 900"], "decode"),
}
HOLD = 300
QUICK = {("export_open", "prefill", "kill"), ("export_sent", "decode", "kill"),
         ("import_wait", "prefill", "stop"), ("import_pull", "decode", "stop"),
         ("export_quarantine", "prefill", "kill"), ("import_closing", "decode", "kill"),
         ("import_lost", "decode", "slow")}
ROWS = [(s, who, action) for s in STATES for who in ("prefill", "decode")
        for action in ("kill", "stop", "slow")]
ROWS += [("import_queued", "prefill", "gone"), ("export_open", "prefill", "gone"),
         ("import_queued", "decode", "gone"), ("import_pull", "decode", "gone")]
# A rank is a thread: it is held at its next step, or for ever; the watchdog names it.
ALONE = {
    "rank of prefill slow": ["export_open@prefill 0 1", "rank@prefill 1 500"],
    "rank of prefill stopped": ["export_open@prefill 0 1", "rank@prefill 1 0"],
    "rank of prefill ends": ["export_open@prefill 0 1", "rank@prefill 1 kill"],
    "rank of prefill stopped before its first step": ["rank@prefill 1 0"],
    "collective of prefill stopped": ["export_open@prefill 0 1", "collective@prefill 1 0"],
    "rank of decode slow": ["import_pull@decode 0 1", "rank@decode 1 500"],
    "rank of decode stopped": ["import_pull@decode 0 1", "rank@decode 0 0"],
    "rank of decode ends": ["import_pull@decode 0 1", "rank@decode 0 kill"],
    "collective of decode slow": ["rank@decode 1 1", "collective@decode 1 500"],
    "a copy is slow": ["pull@decode 0 120"],
    "a copy fails": ["pull@decode 0 fail"],
    "a copy fails as often as it may": ["pull@decode 0 fail"] * 3,
    "a copy is late": ["pull@decode 0 900"],
    "a copy never comes back": ["pull@decode 0 0"],  # its engine ends for it
    "a copy fails, then is late": ["pull@decode 0 fail", "pull@decode 0 900"],
}
ALONE_QUICK = {"rank of prefill stopped", "rank of decode slow", "a copy fails"}


def some(rows, quick):
    return [r for r in rows if LONG or r in quick]


def through(rack, other, n, lines, do=lambda: None):
    """Requests with these faults planted until all have happened (where the machine is slow
    one may be recomputed before it gets so far); then do(), while the last one runs."""
    seen, size = other.n, kv(rack)
    plant(rack, *lines)
    for k in range(0, 50000, 10000):
        want = Exchange(rack, n + k, model="one").text()
        x = Exchange(rack, n + k)
        wait_for(lambda: not planted(rack) or not x.is_alive(), DEADLINE_S)
        if not planted(rack):
            break
        assert x.text() == want
    do()
    assert x.text() == want and not planted(rack)
    wait_for(lambda: all_ready(rack), 30)
    at_rest(rack)
    wait_for(lambda: all_ready(rack), 30)  # it may be an engine's end that let go
    wait_for(lambda: other.n > seen or other.faults, 20)
    assert kv(rack) == size
    assert rack.logged().count("invariant does not hold") == rack.planted


@pytest.fixture(scope="module")
def other(pools):
    pools.planted = 0
    o = Other(pools)
    yield o
    o.end()


@pytest.mark.parametrize("state,who,action", some(ROWS, QUICK))
def test_an_engine_at_a_state(pools, other, state, who, action):
    before, passes = STATES[state]
    pid = engines(pools)["main/" + who]["pid"]
    n = 1000 + ROWS.index((state, who, action))
    through(pools, other, n, [*before, f"{state}@{passes} 0 {HOLD}"], lambda: act(pid, action))
    if action in ("kill", "gone"):
        wait_for(lambda: engines(pools)["main/" + who]["pid"] not in (0, pid), 20)
        wait_for(lambda: all_ready(pools), 20)
        at_rest(pools)
    assert (engines(pools)["main/" + who]["pid"] == pid) == (action in ("stop", "slow"))


@pytest.mark.parametrize("what", some(ALONE, ALONE_QUICK))
def test_a_rank_or_a_copy(pools, other, what):
    n = 2000 + list(ALONE).index(what)
    through(pools, other, n, ALONE[what])


def test_a_reader_that_stops(pools, other):
    """What was offered to it is in quarantine, for all to see, and taken back in the end; the
    request goes on when the reader was found to be stuck."""
    want = Exchange(pools, 2900, model="one").text()
    pid = engines(pools)["main/decode"]["pid"]
    before = sums(pools, "llmrack_kv_handoff_lease_ends_total")

    def prefill():
        return next(p for p in pools.local("/api/v1/pools")["pools"] if p["role"] == "prefill")
    plant(pools, "import_pull@decode 0 stop")
    x = Exchange(pools, 2900)
    wait_for(lambda: prefill()["quarantined_blocks"] > 0 or not x.is_alive(), DEADLINE_S)
    assert x.is_alive() and 0 < prefill()["quarantined_blocks"] <= prefill()["export_blocks"]
    assert sums(pools, "llmrack_kv_handoff_lease_ends_total") > before
    assert x.text() == want
    wait_for(lambda: engines(pools)["main/decode"]["pid"] not in (0, pid), 20)
    wait_for(lambda: all_ready(pools), 30)
    at_rest(pools)


def test_a_leak_is_caught(pools, other):
    """A pin that is not given back: the engine says so at once and aborts; the request, whose
    KV the other has by then, goes on."""
    want = Exchange(pools, 3000, model="one").text()
    pid = engines(pools)["main/prefill"]["pid"]
    pools.planted += 1
    plant(pools, "unpin@prefill 0 fail")
    assert Exchange(pools, 3000).text() == want
    wait_for(lambda: engines(pools)["main/prefill"]["pid"] not in (0, pid), 20)
    wait_for(lambda: all_ready(pools), 20)
    at_rest(pools)
    runs = [r["detail"] for r in pools.local("/api/v1/journal?limit=50")["journal"]
            if r["what"] == "engine.run"]
    assert sum("an invariant does not hold: KV blocks are pinned" in x for x in runs) == 1


def test_two_engines_go_under_one_request(pools, other):
    """It may be why: one error, and the next request is served."""
    plant(pools, "rank@decode 0 kill", "rank@prefill 0 kill")
    status, frames = Exchange(pools, 3100).end()
    errors = [f["error"] for f in frames if "error" in f] if status == 200 else [frames["error"]]
    assert len(errors) == 1 and "failed 2 times under this request" in errors[0]["message"]
    assert errors[0]["type"] == "server_error", errors
    wait_for(lambda: all_ready(pools), 20)
    at_rest(pools)
    assert Exchange(pools, 3101).text() == Exchange(pools, 3101, model="one").text()


class Leavers(threading.Thread):
    """Requests of which two thirds are left at a random moment; others end with a stop
    string, or whole. Each has a prompt that no engine has seen."""

    def __init__(self, rack, first, count):
        super().__init__()
        self.rack, self.numbers = rack, range(first, first + count)
        self.rng, self.faults, self.left, self.whole = random.Random(SEED + first), [], 0, 0
        self.start()

    def run(self):
        try:
            for n in self.numbers:
                self.one(n)
        except (AssertionError, ValueError, OSError) as e:
            self.faults.append(repr(e))

    def one(self, n):
        want, more = None, {}
        leave = self.rng.choice((None, self.rng.uniform(0.001, 0.05), self.rng.expovariate(20)))
        if leave is None:
            want = Exchange(self.rack, n, model="one").text()
        else:
            more = {"max_tokens": 300}  # there is something to leave
        if want and self.rng.random() < 0.5:
            stop = want[self.rng.randrange(len(want))]
            want, more = want[:want.index(stop)], {"stop": [stop]}
        status, frames = Exchange(self.rack, n, leave, **more).end()
        if frames is None:
            self.left += 1
            return
        assert status == 200 and frames[-1] == "[DONE]", frames
        text = "".join(c["text"] for f in frames[:-1] for c in f["choices"])
        assert want is None or text == want, n
        self.whole += 1


def test_random_cancels(pools, other):
    """Hundreds of them, at any state, while some copies and steps are slow."""
    rng, clients, each = random.Random(SEED), 6, 200 if LONG else 30
    print(f"seed {SEED}")
    blocks, begun = kv(pools), sums(pools, "llmrack_kv_handoffs_total")
    threads = [Leavers(pools, 10000 + 1000 * i, each) for i in range(clients)]
    while any(t.is_alive() for t in threads):
        plant(pools, rng.choice(("pull@decode 0 60", "pull@decode 0 fail", "rank@prefill 1 40",
                                 "rank@decode 0 40", "import_wait@decode 0 20",
                                 "export_open@prefill 0 30", "pull@decode 0 500")))
        time.sleep(0.1)
    if os.path.exists(pools.fault_file):
        os.unlink(pools.fault_file)
    assert [f for t in threads for f in t.faults] == [], SEED
    left, whole = sum(t.left for t in threads), sum(t.whole for t in threads)
    print(f"{left} left, {whole} whole")
    assert left > clients * each / 10 and whole > clients * each / 4
    assert sums(pools, "llmrack_kv_handoffs_total") > begun + whole / 4
    at_rest(pools)
    assert kv(pools) == blocks and all(used == 0 for _, used in blocks.values()), SEED
    assert all_ready(pools)


def only_error(frames):
    """Of a stream that has begun: tokens, then one error, then nothing."""
    assert "[DONE]" not in frames
    assert ["error" in f for f in frames] == [False] * (len(frames) - 1) + [True]
    assert not [c["finish_reason"] for f in frames[:-1] for c in f["choices"]
                if c["finish_reason"]]
    return frames[-1]["error"]


def hold_all(rack, body_s):
    """A stream that has begun and requests that wait, with no engine that goes on: both are
    stopped. Returns (begun, waiting)."""
    begun = Exchange(rack, 5000, **body_s)
    wait_for(lambda: begun.data.count(b"data: ") >= 3, 20)
    for name in POOLS:
        signal_to(engines(rack)[name]["pid"], signal.SIGSTOP)
    waiting = [Exchange(rack, 5001), Exchange(rack, 5002, stream=False)]
    wait_for(lambda: len(rack.local("/api/v1/requests")["requests"]) == 3, 20)
    return begun, waiting


def test_no_engine_is_left(tmp_path):
    """The model's files are gone when both engines die: each request has one error, once it
    has waited as long as it may; a new one is refused at once. With on_engine_loss: fail
    none waits. When the files are back so is the service."""
    r = launch(tmp_path, wait=2)
    r.planted = 0
    want = Exchange(r, 5000, model="one").text()
    long = {"max_tokens": 280}
    try:
        begun, waiting = hold_all(r, long)
        os.rename(tmp_path / "moe", tmp_path / "away")
        for name in POOLS:
            signal_to(engines(r)[name]["pid"], signal.SIGKILL)
        status, frames = begun.end()
        errors = [only_error(frames)]
        for x in waiting:
            status, answer = x.end()
            assert status == 503, answer
            assert b"retry-after: " in x.data.lower()
            errors.append(answer["error"])
        for e in errors:
            assert "has come back within 2 s, try again: " in e["message"], e
            assert e["code"] == "unavailable" and e["type"] == "service_unavailable_error", e
        status, answer = Exchange(r, 5003).end()
        assert status == 503 and answer["error"]["code"] == "unavailable", answer
        assert Exchange(r, 5000, model="one").text() == want
        assert not r.local("/api/v1/requests")["requests"]
        os.rename(tmp_path / "away", tmp_path / "moe")
        wait_for(lambda: all_ready(r), 60)
        at_rest(r)
        assert Exchange(r, 5000).text() == want
        lose_at_once(r, long)
    finally:
        r.stop()


def lose_at_once(r, long):
    r.commit("instances.main.", on_engine_loss="fail")
    begun, waiting = hold_all(r, long)
    for name in POOLS:
        signal_to(engines(r)[name]["pid"], signal.SIGKILL)
    status, frames = begun.end()
    error = only_error(frames)
    assert "the engine of 'two' failed, try again: " in error["message"], error
    for x in waiting:
        status, answer = x.end()
        assert status == 503 and answer["error"]["code"] == error["code"] == "unavailable", answer
    wait_for(lambda: all_ready(r), 60)
    at_rest(r)
