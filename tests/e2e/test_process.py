"""The processes: an engine that dies, a daemon that is told to stop, killed or started
twice, a model file that is missing or cut short. What clients and state see of it."""
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import threading
import time

import pytest

from rack import (BIN, MODEL, SLOW, Stream, cpu_ticks, limit_descriptors, post_bytes,
                  wait_for)

TEXT = "/v1/completions"
SMALL = ("--kv-mib", "64")  # loads sooner
LONG = {"prompt": "Once upon a time", "max_tokens": 1500, "ignore_eos": True, "stream": True}
SHORT = {"prompt": "Hello", "max_tokens": 2}

pytestmark = pytest.mark.san


def engine(rack):
    pids = rack.children()
    assert len(pids) == 1
    return pids[0]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def journal(state_dir):
    """[(what, result, detail)] in order."""
    db = sqlite3.connect(f"file:{state_dir}/state.db?mode=ro", uri=True)
    try:
        return db.execute("SELECT what, result, detail FROM journal ORDER BY id").fetchall()
    finally:
        db.close()


def reason(rack):
    status, headers, body = rack.get("/readyz")
    assert status == 503 and int(headers["Retry-After"]) >= 1
    return json.loads(body)["error"]["message"]


def test_engine_killed(start):
    """Open streams get one error frame, unanswered requests 503 with Retry-After; then
    the engine is back, and the daemon never noticed more than that."""
    r = start(*SMALL, "--on-engine-loss", "fail")
    answers = []
    streams = [Stream(r, LONG) for _ in range(2)]
    for s in streams:
        wait_for(s.begun)
    waiting = threading.Thread(target=lambda: answers.append(
        r.request("POST", TEXT, dict(LONG, stream=False, max_tokens=1400))))
    waiting.start()
    wait_for(lambda: len(r.local("/api/v1/requests")["requests"]) == 3)
    first = engine(r)
    os.kill(first, signal.SIGKILL)
    for s in streams:
        frames = s.frames()
        assert frames[-1] != "[DONE]"
        assert [f for f in frames if "error" in f] == [frames[-1]]
        assert "signal 9" in frames[-1]["error"]["message"]
    waiting.join(30 * SLOW)
    status, headers, body = answers[0]
    assert status == 503 and int(headers["Retry-After"]) >= 1
    assert "signal 9" in json.loads(body)["error"]["message"]
    assert r.get("/healthz")[0] == 200
    wait_for(r.is_ready, 60)
    assert engine(r) != first
    assert r.post(TEXT, SHORT)[0] == 200
    m = r.metrics()
    assert m["llmrack_engine_failures_total"] == 1
    assert m["llmrack_engine_starts_total"] == 2
    assert m["vllm:num_requests_running"] == 0
    assert r.local("/api/v1/status")["instances"][0]["restarts"] == 1
    what = [(w, result) for w, result, _ in journal(r.dir.name)]
    assert what == [("daemon.start", "ok"), ("config.seed", "ok"), ("engine.start", "ok"),
                    ("engine.ready", "ok"), ("engine.run", "failed"), ("engine.start", "ok"),
                    ("engine.ready", "ok")]


def outcome(data):
    """What one client got, as one word."""
    status = data.split(b" ", 2)[1].decode() if data else "nothing"
    if status != "200" or b"event-stream" not in data:
        return status
    done, errors = data.count(b"data: [DONE]"), data.count(b'data: {"error"')
    return {(1, 0): "stream done", (0, 1): "stream error"}.get((done, errors), "stream broken")


def client(rack, seed, over, outcomes):
    rnd = random.Random(seed)
    while not over.is_set():
        body = {"prompt": "Once " * rnd.randint(1, 200), "max_tokens": rnd.randint(1, 40),
                "ignore_eos": True, "stream": rnd.random() < 0.6, "n": rnd.choice((1, 1, 2))}
        with rack.raw() as sock:
            sock.sendall(post_bytes(TEXT, body, "Connection: close"))
            if rnd.random() < 0.25:  # leaves without listening
                over.wait(rnd.random() * 0.2)
                continue
            data = b""
            while got := sock.recv(65536):
                data += got
        outcomes.append(outcome(data))
        if outcomes[-1] in ("429", "503"):
            over.wait(0.1)


def test_engine_killed_under_load(start):
    """Whatever is under way, each client gets one whole outcome and nothing is left over.
    Most go on; only who was under way at two deaths has an error."""
    r = start(*SMALL, "--max-seqs", "8", "--max-waiting", "8")
    fds = len(os.listdir(f"/proc/{r.p.pid}/fd"))
    over, outcomes = threading.Event(), []
    threads = [threading.Thread(target=client, args=(r, i, over, outcomes)) for i in range(10)]
    for t in threads:
        t.start()
    for _ in range(3):
        wait_for(r.is_ready, 60)
        before = r.metric("llmrack_steps_total")
        wait_for(lambda: r.metric("llmrack_steps_total") > before + 20)
        os.kill(engine(r), signal.SIGKILL)
    wait_for(r.is_ready, 60)
    over.set()
    for t in threads:
        t.join(60 * SLOW)
        assert not t.is_alive()
    assert set(outcomes) <= {"200", "429", "500", "503", "stream done", "stream error"}, outcomes
    assert r.metric("llmrack_requests_resumed_total") > 0
    wait_for(lambda: not r.local("/api/v1/requests")["requests"])
    wait_for(lambda: r.metric("llmrack_kv_blocks_used") == 0)
    assert len(os.listdir(f"/proc/{r.p.pid}/fd")) <= fds + 2  # of the questions just asked


def test_engine_that_hangs_is_restarted(start):
    r = start(*SMALL, "--stuck-s", "2")
    s = Stream(r, dict(LONG, max_tokens=400))
    wait_for(s.begun)
    first = engine(r)
    os.kill(first, signal.SIGSTOP)
    wait_for(lambda: "no step has ended" in r.logged())
    assert r.get("/healthz")[0] == 200
    frames = s.frames()  # goes on in the next one
    assert frames[-1] == "[DONE]" and engine(r) != first
    assert frames[-2]["choices"][0]["finish_reason"] == "length"
    assert r.post(TEXT, SHORT)[0] == 200


def test_queue_is_bounded(start):
    """One runs, one waits, the next is told to come back; a place that is left is free."""
    r = start(*SMALL, "--max-seqs", "1", "--max-waiting", "1")
    streams = [Stream(r, LONG), Stream(r, LONG)]
    wait_for(lambda: len(r.local("/api/v1/requests")["requests"]) == 2)
    wait_for(lambda: any(s.begun() for s in streams))
    status, body, headers = r.post(TEXT, SHORT)
    assert status == 429 and int(headers["Retry-After"]) >= 1
    assert "queue is full" in body["error"]["message"]
    for s in streams:
        s.sock.shutdown(2)
    wait_for(lambda: r.post(TEXT, SHORT)[0] == 200)
    assert r.metric("vllm:admission_rejections_total") >= 1


def test_secret_is_not_on_show(rack):
    """The key of the prefix hash: in no process list, and the state is its owner's only."""
    with open(f"/proc/{engine(rack)}/cmdline", "rb") as f:
        args = f.read()
    assert b"--fd=3" in args and not re.search(rb"[0-9a-f]{32}", args)
    for name in "state.db", "llmrackd.lock":
        assert os.stat(os.path.join(rack.dir.name, name)).st_mode & 0o077 == 0


def test_second_daemon_is_refused(rack):
    p = subprocess.run([os.path.join(BIN, "llmrackd"), "--state-dir", rack.dir.name,
                        "--listen", "127.0.0.1:0", "--model", MODEL],
                       capture_output=True, text=True, timeout=30 * SLOW)
    assert p.returncode == 5
    assert f"in use by another llmrackd (process {rack.p.pid})" in p.stderr
    assert rack.get("/healthz")[0] == 200
    assert os.path.exists(rack.sock)


def test_sigterm_drains(start):
    """No new requests, the running one goes on to its end, then the daemon stops."""
    r = start(*SMALL)
    s = Stream(r, dict(LONG, max_tokens=300 // SLOW))
    wait_for(s.begun)
    pid = engine(r)
    r.p.send_signal(signal.SIGTERM)
    wait_for(lambda: r.get("/readyz")[0] == 503)
    status, body, headers = r.post(TEXT, SHORT)
    assert status == 503 and int(headers["Retry-After"]) >= 1
    assert "stopping" in body["error"]["message"]
    assert r.get("/healthz")[0] == 200
    frames = s.frames()
    assert frames[-1] == "[DONE]"
    assert len([f for f in frames[:-1] if f["choices"][0]["text"]]) > 100 // SLOW
    assert r.p.wait(20 * SLOW) == 0
    assert not alive(pid)
    assert not os.path.exists(r.sock)
    what = [(w, result) for w, result, _ in journal(r.dir.name)]
    assert what[-3:] == [("daemon.drain", "ok"), ("engine.stop", "ok"), ("daemon.stop", "ok")]


def test_hangup_ends_nothing(start):
    """A terminal that goes away ends neither the daemon nor its engine."""
    r = start(*SMALL)
    pid = engine(r)
    r.p.send_signal(signal.SIGHUP)
    os.kill(pid, signal.SIGHUP)
    wait_for(lambda: "Hangup" in r.logged())
    assert r.post(TEXT, SHORT)[0] == 200
    assert r.children() == [pid]


def test_stop_while_it_loads_and_while_it_waits(start):
    """SIGTERM with no engine that answers: over at once, and no engine is left."""
    r = start(ready=False)
    r.p.send_signal(signal.SIGTERM)
    assert r.p.wait(20 * SLOW) == 0
    assert journal(r.dir.name)[-1][:2] == ("daemon.stop", "ok")
    r = start(*SMALL)
    os.kill(engine(r), signal.SIGKILL)
    wait_for(lambda: r.instance().get("state") == "waiting to restart",
             step=0.002)
    r.p.send_signal(signal.SIGTERM)
    assert r.p.wait(20 * SLOW) == 0
    assert [x[:2] for x in journal(r.dir.name)[-3:]] == [
        ("engine.run", "failed"), ("daemon.drain", "ok"), ("daemon.stop", "ok")]


def test_options_that_change_no_token(start):
    """Chunks, whole prompts, threads (more than there are cores too), prefix reuse: the
    numbers of an answer are the same to the last bit."""
    ask = {"prompt": "Once upon a time there was a small engine that " * 12, "max_tokens": 12,
           "temperature": 0.7, "seed": 3, "ignore_eos": True, "logprobs": 3}
    answers = []
    for options in ((), ("--mode", "colocated"), ("--step-tok", "16"), ("--threads", "1"),
                    ("--threads", "5", "--no-reuse")):
        r = start(*SMALL, *options)
        for _ in range(2):  # the second time with its prefix cached, where that is on
            answers.append(r.post(TEXT, ask)[1]["choices"][0])
        r.stop()
    assert all(a == answers[0] for a in answers[1:])


def test_drain_has_a_limit(start):
    r = start(*SMALL, "--drain-s", "1")
    s = Stream(r, LONG)
    wait_for(s.begun)
    r.p.send_signal(signal.SIGINT)
    frames = s.frames()
    assert "error" in frames[-1] and frames[-1] != "[DONE]"
    assert r.p.wait(20 * SLOW) == 0


def test_second_signal_ends_the_wait(start):
    r = start(*SMALL)
    s = Stream(r, LONG)
    wait_for(s.begun)
    r.p.send_signal(signal.SIGTERM)
    wait_for(lambda: r.get("/readyz")[0] == 503)
    r.p.send_signal(signal.SIGTERM)
    frames = s.frames()
    assert "error" in frames[-1]
    assert r.p.wait(10 * SLOW) == 0


def test_killed_daemon_takes_its_engine_and_leaves_its_state(start):
    r = start(*SMALL, "--name", "kept")
    pid = engine(r)
    r.p.kill()
    r.p.wait()
    wait_for(lambda: not alive(pid), 10)
    state = r.dir.name
    p = subprocess.Popen([os.path.join(BIN, "llmrackd"), "--state-dir", state, "--listen", "",
                          "--model", MODEL], stdout=subprocess.PIPE, text=True)
    assert "listens on the control socket" in p.stdout.readline()
    p.terminate()
    assert p.wait(30 * SLOW) == 0
    p.stdout.close()
    db = sqlite3.connect(os.path.join(state, "state.db"))
    assert db.execute("SELECT name, family, format, main_type FROM model").fetchall() == [
        ("kept", "llama", "gguf", "Q4_1")]
    (name, model, mode, options), = db.execute(
        "SELECT name, model, mode, options FROM instance")
    db.close()
    assert (name, model, mode) == ("main", "kept", "chunked")
    assert json.loads(options) == ["--kv-mib=64"]
    assert len([x for x in journal(state) if x[0] == "daemon.start"]) == 2


def test_missing_model_then_there(start, tmp_path):
    """The daemon is up and says what is wrong; the file appears and is served."""
    path = tmp_path / "late.gguf"
    r = start(*SMALL, model=str(path), ready=False)
    wait_for(lambda: "is not served" in reason(r) and "late.gguf" in reason(r))
    assert r.get("/healthz")[0] == 200
    status, body, headers = r.post(TEXT, SHORT)
    assert status == 503 and int(headers["Retry-After"]) >= 1
    wait_for(lambda: r.instance().get("state") == "failed")
    os.symlink(os.path.abspath(MODEL), path)
    wait_for(r.is_ready, 60)
    assert r.post(TEXT, SHORT)[0] == 200
    assert ("model.open", "failed") in [(w, x) for w, x, _ in journal(r.dir.name)]


def test_model_cut_short(start, tmp_path):
    """A file that loses its end while it is served can end the engine, never the daemon."""
    path = tmp_path / "cut.gguf"
    shutil.copyfile(MODEL, path)
    r = start(*SMALL, "--on-engine-loss", "fail", model=str(path))
    pid = engine(r)
    os.truncate(path, os.path.getsize(path) // 2)
    for _ in range(3):  # works as long as no page of the lost half is needed
        r.post(TEXT, SHORT)
    if pid in r.children():
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not r.is_ready() and "cut.gguf" in reason(r))
    assert r.get("/healthz")[0] == 200
    assert r.p.poll() is None
    shutil.copyfile(MODEL, tmp_path / "whole.gguf")
    os.replace(tmp_path / "whole.gguf", path)
    wait_for(r.is_ready, 90)
    assert r.post(TEXT, SHORT)[0] == 200


def test_idle_is_idle(start):
    """No request, no work: after the last one threads sleep, those of the kernels too."""
    r = start(*SMALL)
    assert r.post(TEXT, dict(SHORT, max_tokens=20, ignore_eos=True))[0] == 200
    wait_for(lambda: r.metric("vllm:num_requests_running") == 0)
    steps = r.metric("llmrack_steps_total")
    before = [cpu_ticks(pid) for pid in (engine(r), r.p.pid)]
    time.sleep(1)
    used = [cpu_ticks(pid) - n for pid, n in zip((engine(r), r.p.pid), before)]
    assert used[0] <= 1 and used[1] <= 5, used  # of a hundred; a thread that spins has them all
    assert r.metric("llmrack_steps_total") == steps


def test_low_limit_of_descriptors(start, tmp_path):
    """Fewer connections and a warning, or a refusal that says what to raise."""
    r = start(*SMALL, descriptors=256)
    assert "only 256 descriptors are allowed: at most 96 connections" in r.logged()
    assert r.post(TEXT, SHORT)[0] == 200
    p = subprocess.run([os.path.join(BIN, "llmrackd"), "--state-dir", str(tmp_path), "--listen",
                        "127.0.0.1:0", "--model", MODEL], capture_output=True, text=True,
                       timeout=30 * SLOW, preexec_fn=lambda: limit_descriptors(100))
    assert p.returncode == 6 and "only 100 descriptors" in p.stderr and "ulimit -n" in p.stderr


def test_usage(tmp_path):
    def run(*args):
        return subprocess.run([os.path.join(BIN, "llmrackd"), *args], capture_output=True,
                              text=True, timeout=30 * SLOW)

    p = run("--state-dir", str(tmp_path), "--set", "limits.none=3")
    assert p.returncode == 2 and "limits.none" in p.stderr
    p = run("--thread", "x")
    assert p.returncode == 2 and "did you mean --threads?" in p.stderr
    p = run("--model", "x", "--step-tok", "3")
    assert p.returncode == 2 and "from 16 to" in p.stderr
    p = run("--model", "x", "--state-dir", str(tmp_path), "--listen", "127.0.0.1:99999")
    assert p.returncode == 2 and "a port from 0 to 65535" in p.stderr
    p = run("--version")
    assert p.returncode == 0 and p.stdout.startswith("llmrackd ")
    p = run("--help")
    assert p.returncode == 0 and "--state-dir DIR" in p.stdout


def test_port_in_use(rack, tmp_path):
    p = subprocess.run([os.path.join(BIN, "llmrackd"), "--state-dir", str(tmp_path / "s"),
                        "--listen", f"127.0.0.1:{rack.port}", "--model", MODEL],
                       capture_output=True, text=True, timeout=30 * SLOW)
    assert p.returncode != 0
    assert str(rack.port) in p.stderr
    what = [(w, result) for w, result, _ in journal(tmp_path / "s")]
    assert what[-1] == ("daemon.stop", "failed")
