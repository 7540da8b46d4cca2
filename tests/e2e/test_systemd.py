"""llmrackd as a service: units, notices, watchdog, a socket handed over. A small manager of
our own stands for PID 1."""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

import pytest

from rack import BIN, MODEL, SLOW, UnixConnection, wait_for

ANALYZE = shutil.which("systemd-analyze")


def handed_over(fd):
    """A command before another one, which then has fd as systemd passes it."""
    code = ("import os, sys\n"
            f"os.dup2({fd}, 3)\n"
            f"{fd} == 3 or os.close({fd})\n"
            "os.environ['LISTEN_PID'] = str(os.getpid())\n"
            "os.execv(sys.argv[1], sys.argv[1:])\n")
    return [sys.executable, "-c", code]


class Manager:
    """Starts llmrackd as systemd would and hears what it says."""

    def __init__(self, *options, watchdog_s=None, pass_socket=True):
        self.dir = tempfile.TemporaryDirectory(prefix="llmrack-")
        self.sock = os.path.join(self.dir.name, "control.sock")
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(os.path.join(self.dir.name, "notify"))
        self.news = []
        env = dict(os.environ, NOTIFY_SOCKET=self.notify.getsockname())
        if watchdog_s:
            env["WATCHDOG_USEC"] = str(int(watchdog_s * 1e6))
        self.listener = None
        command = [os.path.join(BIN, "llmrackd"), "--state-dir",
                   os.path.join(self.dir.name, "state"), "--socket", self.sock, "--listen",
                   "", *options]
        if pass_socket:
            self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.listener.bind(self.sock)
            self.listener.listen()
            env.update(LISTEN_FDS="1")
            command = handed_over(self.listener.fileno()) + command
        self.log = open(os.path.join(self.dir.name, "log"), "wb+")
        self.p = subprocess.Popen(command, env=env, stderr=self.log, pass_fds=[
            self.listener.fileno()] if self.listener else [])

    def hear(self):
        """All notices so far."""
        self.notify.setblocking(False)
        try:
            while True:
                self.news += self.notify.recv(4096).decode().split("\n")
        except BlockingIOError:
            return self.news

    def heard(self, what, seconds=20):
        def there():
            assert self.p.poll() is None, self.logged()
            return any(n.startswith(what) for n in self.hear())
        wait_for(there, seconds)
        return next(n for n in self.news if n.startswith(what))

    def logged(self):
        with open(self.log.name, "rb") as f:
            return f.read().decode("utf-8", "replace")

    def get(self, path):
        c = UnixConnection(self.sock)
        try:
            c.request("GET", path)
            return c.getresponse().status
        finally:
            c.close()

    def children(self):
        with open(f"/proc/{self.p.pid}/task/{self.p.pid}/children") as f:
            return [int(x) for x in f.read().split()]

    def stop(self, how=signal.SIGTERM):
        if self.p.poll() is None:
            self.p.send_signal(how)
        code = self.p.wait(60 * SLOW)
        self.hear()
        self.notify.close()
        self.log.close()
        if self.listener:
            self.listener.close()
        self.dir.cleanup()
        return code


@pytest.fixture(scope="module")
def manager():
    m = Manager("--model", MODEL, watchdog_s=1)
    yield m
    assert m.p.poll() is None, m.logged()
    assert m.stop(signal.SIGKILL) == -signal.SIGKILL


@pytest.mark.san
def test_ready_when_the_control_socket_serves(manager):
    assert manager.heard("EXTEND_TIMEOUT_USEC=") == "EXTEND_TIMEOUT_USEC=120000000"
    manager.heard("READY=1", 60)
    assert manager.get("/healthz") == 200
    manager.heard("STATUS=1 of 1 instances ready", 60)


def test_the_socket_is_the_one_that_was_handed_over(manager):
    manager.heard("READY=1", 60)
    assert manager.get("/api/v1/status") == 200
    assert not os.path.exists(os.path.join(manager.dir.name, "state", "llmrackd.sock"))


def test_watchdog_is_fed(manager):
    manager.heard("READY=1", 60)
    before = manager.hear().count("WATCHDOG=1")
    wait_for(lambda: manager.hear().count("WATCHDOG=1") >= before + 3, 30)


def test_children_do_not_hear_the_manager(manager):
    manager.heard("STATUS=1 of 1", 60)
    children = manager.children()
    assert children
    for pid in children:
        with open(f"/proc/{pid}/environ", "rb") as f:
            names = {v.split(b"=")[0] for v in f.read().split(b"\0")}
        assert b"PATH" in names
        assert not names & {b"NOTIFY_SOCKET", b"WATCHDOG_USEC", b"LISTEN_FDS", b"LISTEN_PID"}
        for fd in os.listdir(f"/proc/{pid}/fd"):
            at = os.path.realpath(f"/proc/{pid}/fd/{fd}")
            assert "control.sock" not in at


def test_reload(manager):
    manager.heard("STATUS=1 of 1", 60)
    ready = manager.hear().count("READY=1")
    manager.p.send_signal(signal.SIGHUP)
    wait_for(lambda: manager.hear().count("READY=1") == ready + 1)
    assert manager.news.count("RELOADING=1") == 1
    at = next(n for n in manager.news if n.startswith("MONOTONIC_USEC="))
    assert 0 <= time.monotonic() - int(at.split("=")[1]) / 1e6 < 60 * SLOW
    assert manager.news.index("RELOADING=1") < len(manager.news) - manager.news[::-1].index(
        "READY=1") - 1


def test_a_stopped_process_is_silent(manager):
    """Nobody else feeds the watchdog in its stead."""
    manager.heard("STATUS=1 of 1", 60)
    manager.p.send_signal(signal.SIGSTOP)
    try:
        wait_for(lambda: open(f"/proc/{manager.p.pid}/stat").read().split()[2] == "T")
        before = len(manager.hear())
        time.sleep(1.2)
        assert len(manager.hear()) == before
    finally:
        manager.p.send_signal(signal.SIGCONT)
    wait_for(lambda: "WATCHDOG=1" in manager.hear()[before:])


@pytest.mark.san
def test_stop_says_so_and_leaves_the_socket():
    m = Manager()
    m.heard("READY=1", 60)
    m.heard("STATUS=0 of 0 instances ready")
    path = m.sock
    m.p.send_signal(signal.SIGTERM)
    m.p.wait(60 * SLOW)
    news = m.hear()
    assert "STOPPING=1" in news
    assert news[news.index("STOPPING=1") + 1] == "EXTEND_TIMEOUT_USEC=50000000"
    assert os.path.exists(path)  # it is the manager's
    assert m.stop() == 0


def test_without_a_manager_it_makes_its_own_socket():
    m = Manager(pass_socket=False)
    m.heard("READY=1", 60)
    assert m.get("/healthz") == 200
    path = m.sock
    m.p.send_signal(signal.SIGTERM)
    assert m.p.wait(60 * SLOW) == 0
    assert not os.path.exists(path)
    m.stop()


def test_a_wrong_descriptor_is_refused():
    with tempfile.TemporaryDirectory() as d, tempfile.TemporaryFile() as f:
        p = subprocess.run(
            [*handed_over(f.fileno()), os.path.join(BIN, "llmrackd"), "--state-dir", d,
             "--listen", ""],
            env=dict(os.environ, LISTEN_FDS="1"), pass_fds=[f.fileno()], timeout=30 * SLOW,
            capture_output=True, text=True)
    assert p.returncode == 2
    assert "no listening UNIX stream socket" in p.stderr


# ---- units ----

@pytest.fixture
def units(tmp_path):
    for name in ("llmrackd.service", "llmrackd.socket"):
        with open(os.path.join("systemd", name)) as f:
            text = f.read().replace("@BINDIR@", os.path.abspath(BIN))
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.skipif(not ANALYZE, reason="no systemd-analyze")
def test_units_verify(units):
    p = subprocess.run([ANALYZE, "verify", "--man=no", str(units / "llmrackd.service"),
                        str(units / "llmrackd.socket")], capture_output=True, text=True,
                       timeout=60)
    assert (p.returncode, p.stderr) == (0, "")


@pytest.mark.skipif(not ANALYZE, reason="no systemd-analyze")
def test_sandbox_is_tight(units):
    p = subprocess.run([ANALYZE, "security", "--offline=true", "--threshold=30",
                        "--no-pager", str(units / "llmrackd.service")],
                       capture_output=True, text=True, timeout=60)
    level = re.search(r"exposure level for llmrackd.service: ([\d.]+)", p.stdout)
    assert level and float(level.group(1)) < 3.0 and p.returncode == 0, p.stdout


def test_what_the_sandbox_must_leave():
    with open("systemd/llmrackd.service") as f:
        lines = f.read().split("\n")
    assert "Type=notify" in lines
    assert "NoNewPrivileges=yes" in lines
    for never in ("MemoryDenyWriteExecute=", "PrivateUsers=", "PrivateDevices="):
        assert not any(line.startswith(never) for line in lines)
    families = next(line for line in lines if line.startswith("RestrictAddressFamilies="))
    assert "AF_NETLINK" in families and "AF_UNIX" in families
    assert "LimitMEMLOCK=infinity" in lines
    assert any(line.startswith("DeviceAllow=char-nvidia ") for line in lines)
    command = next(line for line in lines if line.startswith("ExecStart="))
    p = subprocess.run([os.path.join(BIN, "llmrackd"), "--help"], capture_output=True,
                       text=True, timeout=30)
    for option in re.findall(r"--[a-z-]+", command):
        assert f"{option} " in p.stdout


def test_the_command_of_the_unit_runs(tmp_path):
    """With its paths moved: the options, the shipped configuration, no model."""
    with open("systemd/llmrackd.service") as f:
        command = re.search(r"^ExecStart=(.*)$", f.read(), re.M).group(1)
    command = (command.replace("@BINDIR@", BIN)
               .replace("/etc/llmrackd.yaml", "etc/llmrackd.yaml")
               .replace("/var/lib/llmrack", str(tmp_path / "state"))
               .replace("/run/llmrack", str(tmp_path)))
    p = subprocess.Popen([*command.split(), "--listen", ""], stderr=subprocess.PIPE)
    try:
        wait_for(lambda: os.path.exists(tmp_path / "llmrackd.sock") or p.poll() is not None)
        c = UnixConnection(str(tmp_path / "llmrackd.sock"))
        c.request("GET", "/api/v1/config")
        r = c.getresponse()
        body = json.loads(r.read())
        c.close()
        assert (r.status, body["revision"]) == (200, 1)
        with open("etc/llmrackd.yaml") as f:
            assert body["text"] == f.read()
    finally:
        p.send_signal(signal.SIGTERM)
        assert p.wait(60 * SLOW) == 0, p.stderr.read()
        p.stderr.close()


@pytest.mark.skipif(not shutil.which("systemd-sysusers"), reason="no systemd-sysusers")
def test_users(tmp_path):
    (tmp_path / "etc").mkdir()
    for _ in range(2):  # an upgrade runs it again
        subprocess.run(["systemd-sysusers", f"--root={tmp_path}",
                        os.path.abspath("systemd/llmrack.sysusers")], check=True,
                       capture_output=True, timeout=30)
    groups = (tmp_path / "etc/group").read_text()
    assert re.search(r"^llmrack:", groups, re.M) and re.search(r"^llmrack-admin:", groups, re.M)
    assert re.search(r"^llmrack:.*:/usr/sbin/nologin$", (tmp_path / "etc/passwd").read_text(),
                     re.M)
