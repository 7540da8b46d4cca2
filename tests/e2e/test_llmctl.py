"""llmctl against a daemon: one-shot, fed by a pipe, and in a terminal (a pty, with the keys
that a person presses)."""
import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import termios
import time

import pytest

from rack import BIN, SLOW, wait_for

pytestmark = pytest.mark.san

CTL = os.path.join(BIN, "llmctl")


def ctl(rack, *args, stdin=""):
    return subprocess.run([CTL, "-s", rack.sock, *args], input=stdin, capture_output=True,
                          text=True, timeout=60 * SLOW)


# ---- one-shot ----

def test_each_show_verb(rack):
    for verb, words in {"status": ["version", "ready", "yes", "INSTANCE"],
                        "models": ["MODEL", "llama", "Q4_1", "gguf"],
                        "metrics": ["METRIC", "vllm:num_requests_running"],
                        "topology": ["1 device", "cpu0", "emulated"],
                        "requests": ["no requests"]}.items():
        p = ctl(rack, "show", verb)
        assert p.returncode == 0 and not p.stderr
        for w in words:
            assert w in p.stdout, (verb, p.stdout)


def test_json_is_the_daemons(rack):
    p = ctl(rack, "-j", "show", "models")
    assert p.returncode == 0
    assert json.loads(p.stdout) == rack.local("/api/v1/models")


def test_exit_codes_and_sentences(rack, tmp_path):
    for args, code, words in ((("show", "nonsense"), 2, "no verb fits"),
                              (("sh", "m"), 2, "'show models', 'show metrics'"),
                              (("version", "now"), 2, "takes no argument"),
                              (("--none",), 2, "--help"),
                              (("-c", "version"), 0, ""), (("help",), 0, "")):
        p = ctl(rack, *args)
        assert p.returncode == code and words in p.stderr, (args, p.stderr)
        assert (p.stderr == "") == (code == 0)
    p = subprocess.run([CTL, "-s", str(tmp_path / "none"), "show", "status"],
                       capture_output=True, text=True, timeout=30 * SLOW)
    assert p.returncode == 6 and "no daemon answers" in p.stderr


def test_piped_lines(rack):
    p = ctl(rack, stdin="# a comment\n\nversion\nshow models\n")
    assert p.returncode == 0 and "daemon" in p.stdout and "MODEL" in p.stdout
    assert "llmctl>" not in p.stdout and "\x1b" not in p.stdout
    p = ctl(rack, stdin="bad\nversion\n")
    assert p.returncode == 2 and p.stdout == ""
    p = ctl(rack, stdin="chat\nSay only the word yes.\n/reset\n/exit\nversion\n")
    assert p.returncode == 0 and re.search(r"TTFT \d+ ms, \d+ tokens, \d+ tokens/s", p.stdout)
    assert "forgotten" in p.stdout and "schema" in p.stdout


def test_ctrl_c_ends_a_call_that_hangs(tmp_path):
    path = str(tmp_path / "deaf")
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(path)
        s.listen()
        p = subprocess.Popen([CTL, "-s", path, "show", "status"], stderr=subprocess.PIPE, text=True)
        with s.accept()[0] as conn:
            conn.recv(4096)
            p.send_signal(signal.SIGINT)
            assert "stopped" in p.communicate(timeout=15 * SLOW)[1]
        assert p.returncode != 0


# ---- in a terminal ----

def plain(text):
    """Without colours and other escapes."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


class Terminal:
    """llmctl with a pty for its terminal; what it shows is gathered in .text."""

    def __init__(self, rack, home):
        self.text = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm", HOME=str(home))
            os.execv(CTL, [CTL, "-s", rack.sock])
        self.size(100)
        self.sees("llmctl> ")

    def size(self, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))

    def read(self, seconds):
        if select.select([self.fd], [], [], seconds)[0]:
            try:
                self.text += os.read(self.fd, 65536).decode("utf-8", "replace")
            except OSError:  # closed
                pass

    def sees(self, what, seconds=20):
        """Until the text shown holds it; what was shown up to its end is handed out."""
        end = time.monotonic() + seconds * SLOW
        while not (m := re.search(what if hasattr(what, "search") else re.escape(what), self.text)):
            assert time.monotonic() < end, f"{what!r} is not in {self.text!r}"
            self.read(0.2)
        seen, self.text = self.text[:m.end()], self.text[m.end():]
        return seen

    def keys(self, text):
        os.write(self.fd, text.encode())

    def end(self):
        """Exit code, or minus the signal."""
        status = wait_for(lambda: os.waitpid(self.pid, os.WNOHANG)[::-1])
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status[0])


@pytest.fixture
def terminal(rack, tmp_path):
    t = Terminal(rack, tmp_path)
    yield t
    try:
        os.kill(t.pid, signal.SIGKILL)
        os.waitpid(t.pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


def test_keys(terminal):
    t = terminal
    t.keys("sh\t")
    t.sees("show ")
    t.keys("\t\t")
    listed = t.sees(re.compile("topology.*llmctl> show ", re.S))
    assert "models" in listed and "status" in listed
    t.keys("?")
    assert "the rack as a tree" in t.sees(re.compile("topology .*llmctl> show ", re.S))
    t.keys("\x03")  # Ctrl-C: a new line, nothing is run
    t.sees("llmctl> ")
    t.keys("show mod\t\r")
    assert "MODEL" in t.sees(re.compile("MODEL.*llmctl> ", re.S))
    t.keys("\x1b[A")  # up: the line before
    t.sees("show models")
    t.size(84)
    t.keys("\r")
    table = t.sees(re.compile("MODEL.*llmctl> ", re.S))
    assert "~" in table and max(map(len, re.split("[\r\n]+", plain(table)))) <= 84
    t.keys("nonsense\r")
    t.sees("no verb fits 'nonsense'")
    t.keys("exit\r")
    assert t.end() == 0


def test_chat_is_stopped_and_goes_on(terminal, rack):
    t = terminal
    t.keys("chat\r")
    t.sees("you> ")
    t.keys("Write a very long story about the sea, with many chapters.\r")
    wait_for(lambda: rack.local("/api/v1/requests")["requests"])
    t.sees(re.compile("sea.*( [a-z]+){5}", re.S))
    t.keys("\x03")
    t.sees("[stopped]")
    t.sees("you> ")
    wait_for(lambda: not rack.local("/api/v1/requests")["requests"])
    t.keys("/reset\r")
    t.keys("Say only the word yes.\r")
    t.sees(re.compile(r"TTFT \d+ ms, \d+ tokens, \d+ tokens/s\]"))
    t.keys("/reset\r")
    t.sees("forgotten")
    t.keys("/exit\r")
    t.sees("llmctl> ")
    t.keys("\x04")  # the end of input
    assert t.end() == 0


@pytest.mark.parametrize("signo", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_terminal_and_history_in_order(terminal, tmp_path, signo):
    t = terminal
    before = termios.tcgetattr(t.fd)[3]
    assert not before & termios.ICANON  # readline has it
    t.keys("version\r")
    t.sees("schema")
    t.sees("llmctl> ")
    os.kill(t.pid, signo)
    wait_for(lambda: termios.tcgetattr(t.fd)[3] & termios.ICANON)
    assert t.end() == 0
    assert (tmp_path / ".llmctl_history").read_text() == "version\n"
