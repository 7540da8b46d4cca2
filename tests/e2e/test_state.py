"""The state folder under a real daemon: damaged, recovered, restored; hashes of the journal in
the log. No model: these daemons start at once."""
import json
import os
import re
import resource
import sqlite3
import subprocess

import pytest

from rack import BIN, SLOW, Rack, UnixConnection, wait_for


def run(state, *options):
    return subprocess.run([os.path.join(BIN, "llmrackd"), "--state-dir", state, "--listen", "",
                           *options], capture_output=True, text=True, timeout=30 * SLOW)


def again(r):
    """The daemon of r, started again on its folder."""
    r.p = subprocess.Popen([os.path.join(BIN, "llmrackd"), "--state-dir", r.dir.name,
                            "--listen", "127.0.0.1:0"], stderr=r.log)
    r.port = wait_for(r.listening)["port"]


def ruin(path):
    with open(path, "r+b") as f:
        f.seek(4096)
        f.write(b"\xa5" * (os.path.getsize(path) - 4096))


def backup(r):
    status, _, data = r.local_request("GET", "/api/v1/backup")
    assert status == 200 and data.startswith(b"SQLite format 3")
    return data


@pytest.fixture
def empty():
    r = Rack(model=None, ready=False)
    yield r
    r.stop()


def test_a_damaged_state_is_refused_and_recovered(empty):
    r, state = empty, empty.dir.name
    os.makedirs(os.path.join(state, "backups"), exist_ok=True)
    with open(os.path.join(state, "backups", "state-20260101T000000.000Z-v3.db"), "wb") as f:
        f.write(backup(r))
    r.p.kill()
    r.p.wait()
    ruin(os.path.join(state, "state.db"))
    for name in ("state.db-wal", "state.db-shm"):
        if os.path.exists(os.path.join(state, name)):
            os.unlink(os.path.join(state, name))
    size = os.path.getsize(os.path.join(state, "state.db"))
    p = run(state)
    assert p.returncode == 1
    assert "--recover" in p.stderr and "state-20260101T000000.000Z-v3.db" in p.stderr
    assert os.path.getsize(os.path.join(state, "state.db")) == size
    p = run(state, "--recover")
    assert p.returncode == 0, p.stderr
    assert "state-20260101" in p.stdout and "state.db.broken-1" in p.stdout
    assert run(state, "--recover").returncode == 5  # whole again
    again(r)
    whats = [x["what"] for x in r.local("/api/v1/journal")["journal"]]
    assert whats[:2] == ["daemon.start", "store.restored"]
    assert r.local("/api/v1/journal/verify")["whole"]


def test_a_restore_takes_the_place_at_the_next_start(empty):
    r = empty
    data = backup(r)
    assert r.local_request("PUT", "/api/v1/log", {"level": "debug"})[0] == 200
    c = UnixConnection(r.sock)
    c.request("POST", "/api/v1/restore", data, {"Content-Type": "application/octet-stream"})
    a = c.getresponse()
    op = json.loads(a.read())["operation"]
    assert a.status == 202
    wait_for(lambda: r.local(f"/api/v1/operations/{op}")["state"] == "done")
    assert "log.level" in [x["what"] for x in r.local("/api/v1/journal")["journal"]]
    r.p.terminate()
    assert r.p.wait(30 * SLOW) == 0
    again(r)
    rows = r.local("/api/v1/journal")["journal"]
    assert "log.level" not in [x["what"] for x in rows]
    assert "store.restored" in [x["what"] for x in rows]
    assert os.path.exists(os.path.join(r.dir.name, "state.db.old"))


SHELL = 'mount -t tmpfs -o size=12m none "$0" && exec "$@"'


@pytest.fixture
def on_small_disk(tmp_path):
    """A daemon whose state lies on a disk of 12 MiB of its own: (it, that disk seen from
    outside, a request over its socket)."""
    state, sock = tmp_path / "state", str(tmp_path / "sock")
    state.mkdir()
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    probe = subprocess.run(["unshare", *user, "--mount", "sh", "-c", SHELL, str(state), "true"],
                           capture_output=True, timeout=30)
    if probe.returncode:
        pytest.skip("no mount namespace here: " + probe.stderr.decode())
    log = open(tmp_path / "log", "wb+")
    p = subprocess.Popen(["unshare", *user, "--mount", "sh", "-c", SHELL, str(state),
                          os.path.join(BIN, "llmrackd"), "--state-dir", str(state), "--socket",
                          sock, "--listen", ""], stderr=log)

    def ask(method, path, body=None):
        c = UnixConnection(sock)
        try:
            c.request(method, path, body and json.dumps(body))
            a = c.getresponse()
            return a.status, json.loads(a.read())
        finally:
            c.close()

    def up():
        assert p.poll() is None
        try:
            return ask("GET", "/api/v1/status")[0] == 200
        except OSError:
            return False

    wait_for(up)
    yield p, f"/proc/{p.pid}/root{state}", ask
    p.terminate()
    assert p.wait(30 * SLOW) == 0
    log.close()


def fill(path):
    with open(path, "wb", buffering=0) as f:
        n = 1 << 16
        while n:
            try:
                f.write(b"x" * n)
            except OSError:
                n //= 2


def test_a_full_disk_refuses_changes_and_the_daemon_serves_on(on_small_disk):
    p, disk, ask = on_small_disk
    text = ask("GET", "/api/v1/config")[1]["text"]
    fill(disk + "/filler")
    status, a = ask("PUT", "/api/v1/config/draft", {"text": text + "# x\n" * 100000})
    assert status == 503 and "full" in a["error"]["message"], a
    assert os.path.exists(disk + "/reserve")
    for level in ("debug", "info") * 10:  # what must be in the journal still fits
        assert ask("PUT", "/api/v1/log", {"level": level})[0] == 200
    assert not os.path.exists(disk + "/reserve")
    assert ask("GET", "/healthz")[0] == 200
    assert ask("GET", "/api/v1/journal/verify")[1]["whole"]
    os.unlink(disk + "/filler")
    assert ask("PUT", "/api/v1/config/draft", {"text": text + "# x\n" * 100000})[0] == 200
    assert ask("GET", "/api/v1/config/draft")[1]["text"].endswith("# x\n")


def test_a_limit_of_file_sizes_is_a_write_that_fails(empty):
    none = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    text = empty.local("/api/v1/config")["text"] + "# a comment\n" * 10000
    resource.prlimit(empty.p.pid, resource.RLIMIT_FSIZE, (4096, none[1]))
    status, _, body = empty.local_request("PUT", "/api/v1/config/draft", {"text": text})
    said = json.loads(body)["error"]["message"]
    assert status >= 500 and said.startswith("state database") and len(said) < 300, (status, said)
    assert empty.get("/healthz")[0] == 200
    resource.prlimit(empty.p.pid, resource.RLIMIT_FSIZE, none)
    assert empty.local_request("PUT", "/api/v1/config/draft", {"text": text})[0] == 200
    assert empty.local("/api/v1/journal/verify")["whole"]


def test_the_log_has_hashes(empty):
    """A journal that was cut off and set right in the store still shows against the log:
    what operators do at info, the daemon's own rows at debug (or under systemd)."""
    r = empty
    for level in ("debug", "info"):
        assert r.local_request("PUT", "/api/v1/log", {"level": level})[0] == 200
    rows = r.local("/api/v1/journal")["journal"]
    said = dict(re.findall(r"journal row (\d+): .*, hash ([0-9a-f]{64})", r.logged()))
    assert said == {str(x["id"]): x["hash"] for x in rows if x["actor"] != "daemon"}


def test_a_changed_journal_shows(empty):
    r = empty
    assert r.local("/api/v1/journal/verify")["whole"]
    with sqlite3.connect(os.path.join(r.dir.name, "state.db")) as db:
        db.execute("UPDATE journal SET actor = 'uid 4711' WHERE id = 1")
    found = r.local("/api/v1/journal/verify")
    assert not found["whole"] and "row 1" in found["fault"]
