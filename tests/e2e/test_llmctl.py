"""llmctl against a daemon: one-shot, fed by a pipe, and in a terminal (a pty, with the keys
that a person presses)."""
import json
import re
import signal
import socket
import subprocess
import tarfile
import termios

import pytest

from rack import SLOW, wait_for
from terminal import CTL, Terminal

pytestmark = pytest.mark.san


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
    assert ctl(rack, "show", "models", "-j").stdout == p.stdout


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

@pytest.fixture
def terminal(rack, tmp_path):
    t = Terminal("-s", rack.sock, home=tmp_path)
    t.shows("llmctl>$")
    yield t
    t.stop()


def test_keys(terminal):
    t = terminal
    t.keys("sh\t")
    t.shows("^llmctl> show$")
    t.keys("\t\t")
    t.shows(r"(?s)llmctl> show\n.*alarms.*llmctl> show$")
    assert all(word in t.text() for word in ("models", "status", "topology"))
    t.keys("?")
    t.shows(r"(?s)the rack as a tree.*llmctl> show$")
    t.keys("\x03")  # Ctrl-C: a new line, nothing is run
    t.shows("^llmctl>$")
    t.keys("show mod\t\r")
    t.shows("(?s)MODEL .*llmctl>$")
    t.keys("\x1b[A")  # up: the line before
    t.shows("llmctl> show models$")
    t.size(84)
    t.keys("\r")
    t.shows("(?s)MODEL .*~.*llmctl>$")
    t.keys("nonsense\r")
    t.shows("no verb fits 'nonsense'")
    t.keys("exit\r")
    assert t.ends() == 0


def test_chat_is_stopped_and_goes_on(terminal, rack):
    t = terminal
    t.keys("chat\r")
    t.shows("^you>$")
    t.keys("Write a very long story about the sea, with many chapters.\r")
    wait_for(lambda: rack.local("/api/v1/requests")["requests"])
    t.shows(r"chapters\.\n(.*\n)*.*( [a-z]+){5}")
    t.keys("\x03")
    t.shows(r"^\[stopped\]\nyou>$")
    wait_for(lambda: not rack.local("/api/v1/requests")["requests"])
    t.keys("/reset\r")
    t.keys("Say only the word yes.\r")
    t.shows(r"TTFT \d+ ms, \d+ tokens, \d+ tokens/s\]")
    t.keys("/reset\r")
    t.shows("forgotten\nyou>$")
    t.keys("/exit\r")
    t.shows("^llmctl>$")
    t.keys("\x04")  # the end of input
    assert t.ends() == 0


@pytest.mark.parametrize("signo", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_terminal_and_history_in_order(terminal, tmp_path, signo):
    t = terminal
    fd = t.child.child_fd
    assert not termios.tcgetattr(fd)[3] & termios.ICANON  # readline has it
    t.keys("version\r")
    t.shows(r"schema .*\nllmctl>$")
    t.child.kill(signo)
    wait_for(lambda: termios.tcgetattr(fd)[3] & termios.ICANON)
    assert t.ends() == 0
    assert (tmp_path / ".llmctl_history").read_text() == "version\n"


def test_a_change_from_the_draft_to_the_history(start, tmp_path):
    """Against a real store: checked, pending with a countdown, confirmed, undone."""
    rack = start()
    p = ctl(rack, "config", "set", "limits.idle_s", "81")
    assert p.returncode == 0 and re.search(r"limits.idle_s +75 +81 +hot", p.stdout), p.stderr
    p = ctl(rack, "config", "set", "limits.idle_s", "many")
    assert p.returncode == 2 and "limits.idle_s" in p.stdout + p.stderr
    assert ctl(rack, "config", "set", "limits.idle_s", "81").returncode == 0
    assert "+  idle_s: 81" in ctl(rack, "config", "diff").stdout
    t = Terminal("-s", rack.sock, home=tmp_path)
    try:
        t.shows("llmctl>$")
        t.keys("config commit confirm 300 comment 'longer idle'\r")
        t.shows(r"revision (\d+) is rolled back in \d+ s")
        t.shows(r"llmctl \(rev 2 pending 29\d s\)>$")
        p = ctl(rack, "config", "commit")
        assert p.returncode == 5 and "revision 2 waits" in p.stderr
        t.keys("config confirm\r")
        t.shows(r"^llmctl>$")
        t.keys("config rollback 1\r")
        t.shows(r"equal to 1\? \[y/N\]$")
        t.keys("y\r")
        t.shows(r"^config.rollback .*\n(.*\n)*llmctl>$")
        t.keys("exit\r")
        assert t.ends() == 0
    finally:
        t.stop()
    p = ctl(rack, "config", "rollback", "2")
    assert p.returncode == 4 and "-y says yes" in p.stderr
    p = ctl(rack, "config", "rollback", "2", "-y")
    assert p.returncode == 0, p.stderr
    history = ctl(rack, "config", "history").stdout
    assert re.search(r"^ +4 +confirmed ", history, re.M), history
    assert re.search(r"^ +3 +superseded ", history, re.M), history
    assert re.search(r"^ +2 +superseded .*longer idle", history, re.M), history
    assert "idle_s: 81" in ctl(rack, "config", "show").stdout
    assert ctl(rack, "config", "diff", "1", "3").stdout == "no difference\n"
    assert "+  idle_s: 81" in ctl(rack, "config", "diff", "1").stdout  # against what runs
    p = ctl(rack, "support-bundle", str(tmp_path / "b.tgz"))
    assert p.returncode == 0, p.stderr
    with tarfile.open(tmp_path / "b.tgz") as bundle:
        assert {"support/config.yaml", "support/journal.json", "support/rack.json",
                "support/log.txt"} <= set(bundle.getnames())
    assert ctl(rack, "selftest").returncode == 0
    assert ctl(rack, "journal", "verify").returncode == 0


def test_bundle_of_a_killed_daemon(start, tmp_path):
    """What its store says is there, without what looks secret."""
    rack = start("--executor", "null")
    secret = "abcdefghij12." + 64 * "7"
    text = rack.local("/api/v1/config")["text"].replace("idle_s: 75", "idle_s: 82") + (
        f"# password: hunter2\n# {secret}\n")
    assert rack.local_request("PUT", "/api/v1/config/draft", {"text": text})[0] == 200
    p = ctl(rack, "config", "commit", "comment", "pin: secret=4711 it was")
    assert p.returncode == 0, p.stderr
    rack.p.kill()
    rack.p.wait()
    p = ctl(rack, "support-bundle", str(tmp_path / "b.tgz"))
    assert p.returncode == 0 and "does not answer" in p.stdout, p.stderr
    with tarfile.open(tmp_path / "b.tgz") as bundle:
        m = {x.name.removeprefix("support/"): bundle.extractfile(x).read().decode()
             for x in bundle.getmembers()}
    assert "idle_s: 82" in m["config.yaml"] and "# password: (struck out)" in m["config.yaml"]
    assert json.loads(m["faults.json"]) == [] and json.loads(m["slo.json"]) == []
    rows = json.loads(m["journal.json"])
    assert any(r["what"] == "config.commit" and "secret=(struck out) it was" in r["detail"]
               for r in rows)
    assert not any(x in "".join(m.values()) for x in ("hunter2", 64 * "7", "4711"))
    p = subprocess.run([CTL.replace("llmctl", "llmrackd"), "--support", "--state-dir",
                        str(tmp_path / "none")], capture_output=True, text=True, timeout=30)
    assert p.returncode == 3 and "no state database" in json.loads(p.stdout)["faults"][0]
