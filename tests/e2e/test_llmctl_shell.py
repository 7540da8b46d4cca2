"""llmctl as operators use it, against a small fake daemon: prompt, news, questions,
completion, editing, waiting, live screens, exit codes, keys and TLS, bundles."""
import json
import os
import re
import ssl
import subprocess
import tarfile
import time

import pytest

from fake import FakeDaemon
from rack import SLOW, wait_for
from terminal import CTL, Terminal

TEXT = "rack: auto\ninstances:\n  main:\n    mode: chunked\n"
CHECKED = {"ok": True, "fits": True, "faults": [],
           "changes": [{"path": "instances.main.mode", "from": "chunked", "to": "colocated",
                        "class": "drain"}],
           "actions": [{"action": "replace", "instance": "main", "live": 3, "fits": True,
                        "need_bytes": 1 << 30, "have_bytes": 4 << 30, "why": "mode"}]}


@pytest.fixture
def fake(tmp_path):
    f = FakeDaemon(str(tmp_path / "sock"))
    f.sock = str(tmp_path / "sock")
    yield f
    f.stop()


@pytest.fixture
def shell(fake, tmp_path):
    """A function that opens the shell (or a verb) in a terminal."""
    opened = []

    def go(*args, wait="llmctl.*>$", **kw):
        t = Terminal("-s", fake.sock, *args, home=tmp_path, **kw)
        opened.append(t)
        t.shows(wait)
        return t

    yield go
    for t in opened:
        t.stop()


def ctl(fake, *args, stdin="", env=None, target=None):
    return subprocess.run([CTL, *(target or ("-s", fake.sock)), *args], input=stdin,
                          capture_output=True, text=True, timeout=60 * SLOW,
                          env={**os.environ, **(env or {})})


def pending(fake, left_s, rev=7):
    end = time.monotonic() + left_s
    fake.set("GET /api/v1/status", lambda _: (200, {
        "ready": True, "pending": {"revision": rev, "left_s": end - time.monotonic()}}))


# ---- the prompt and news ----

def test_the_prompt_counts_down_under_what_is_typed(fake, shell):
    pending(fake, 583)
    t = shell(wait=r"^llmctl \(rev 7 pending 58\d s\)>$")
    t.keys("show sta")
    first = int(t.shows(r"pending (\d+) s\)> show sta$")[1])
    t.shows(rf"pending {first - 2} s\)> show sta$")
    assert len([x for x in t.lines() if "pending" in x]) == 1  # in place, no new lines
    t.keys("tus\r")
    t.shows(r"ready +yes")
    fake.set("GET /api/v1/status", {"ready": True})
    fake.push("journal", {"actor": "uid 7", "what": "config.confirm", "subject": "7",
                          "result": "ok", "at_ms": 1})
    t.shows(r"^llmctl>$")


def test_leaving_with_a_pending_revision_is_asked_about(fake, shell):
    pending(fake, 583)
    t = shell()
    t.keys("exit\r")
    t.shows(r"Revision 7 is not confirmed: it is rolled back in 58\d s\. Leave all the same\?")
    t.keys("n\r")
    t.shows(r"same\? \[y/N\] n\n(.*\n)*llmctl \(rev 7 .*>$")
    t.keys("\x04")
    t.shows(r"(?s)same\?.*same\? \[y/N\]$")
    t.keys("y\r")
    assert t.ends() == 0


def test_a_reminder_before_it_is_rolled_back(fake, shell):
    pending(fake, 32)
    t = shell()
    t.keys("abc")
    t.shows(r"^revision 7 is rolled back in 30 s, unless: config confirm\n"
            r"llmctl \(rev 7 pending \d+ s\)> abc$")


def test_news_do_not_mix_with_the_line(fake, shell):
    t = shell()
    wait_for(lambda: fake.streams["/api/v1/events"])
    t.keys("show sta\x1b[D\x1b[D")  # the cursor stands inside
    t.shows(r"^llmctl> show sta$")
    fake.push("alarm", {"severity": "critical", "active": True, "since_ms": 1,
                        "text": "instance main failed"})
    fake.push("instance", {"name": "main", "state": "ready", "error": None})
    t.shows(r"critical: instance main failed\n.*instance main is ready\nllmctl> show sta$")
    assert t.screen.cursor.x == len("llmctl> show s")
    t.keys("\x05tus\r")
    t.shows(r"^version +9\.9")
    own = {"actor": f"uid {os.getuid()}", "what": "own.deed", "result": "ok", "at_ms": 1}
    fake.push("journal", own)  # nobody needs to be told what he did
    fake.push("journal", dict(own, actor="uid 4242", what="his.deed"))
    t.shows("his.deed")
    assert "own.deed" not in t.text()


def test_news_wait_while_the_history_is_searched(fake, shell):
    t = shell()
    wait_for(lambda: fake.streams["/api/v1/events"])
    t.keys("version\r")
    t.keys("\x12ver")  # Ctrl-R
    t.shows(r"^\(reverse-i-search\)`ver': version$")
    fake.push("alarm", {"severity": "major", "active": True, "since_ms": 1, "text": "late news"})
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        t.read()
    assert "late news" not in t.text() and "(reverse-i-search)`ver': version" in t.text()
    t.keys("\x05")
    t.shows(r"major: late news\nllmctl> version$")


def test_ctrl_c_clears_and_the_history_is_kept(fake, shell, tmp_path):
    t = shell()
    t.keys("show nonsense")
    t.shows("^llmctl> show nonsense$")
    t.keys("\x03")
    t.shows(r"^llmctl> show nonsense\nllmctl>$")
    t.keys("help exit\r")
    t.shows(r"leave the shell\nllmctl>$")
    t.keys("\x04")
    assert t.ends() == 0
    assert (tmp_path / ".llmctl_history").read_text() == "help exit\n"
    t = shell()
    t.keys("\x1b[A")
    t.shows("^llmctl> help exit$")


# ---- completion ----

def test_tab_knows_the_daemons_names(fake, shell):
    fake.set("GET /api/v1/status", {"ready": True, "instances": [{"name": "main"},
                                                                 {"name": "draft-8b"}]})
    fake.set("GET /api/v1/devices", {"devices": [{"id": "0000:3b:00.0"}, {"id": "cpu0"}]})
    fake.set("GET /api/v1/config/revisions", {"revisions": [{"revision": 12}, {"revision": 7}]})
    fake.set("GET /api/v1/config/paths", {"paths": [{"path": "instances.*.slo.ttft_ms"},
                                                    {"path": "rack"}]})
    t = shell()
    t.keys("inst sto dr\t")
    t.shows("^llmctl> inst sto draft-8b$")
    t.keys("\x15device cordon 0\t")
    t.shows("^llmctl> device cordon 0000:3b:00.0$")
    t.keys("\x15config rollback 1\t")
    t.shows("^llmctl> config rollback 12$")
    t.keys("\x15config set instances.m\t250")
    t.shows(r"^llmctl> config set instances\.main\.slo\.ttft_ms 250$")
    n = len(fake.made("GET", "/api/v1/config/revisions"))
    t.keys("\x15config show \t\t")
    t.shows("(?s)7 .*draft.*running")
    t.keys("\x15config diff 7 d\t")
    t.shows("^llmctl> config diff 7 draft$")
    assert len(fake.made("GET", "/api/v1/config/revisions")) <= n + 1  # a short memory
    t.keys("\x15key ?")
    t.shows(r"(?s)key create NAME.*key list.*llmctl> key$")


def test_completion_for_bash(fake, tmp_path):
    fake.set("GET /api/v1/status", {"instances": [{"name": "main"}, {"name": "mini"}]})
    script = ctl(fake, "completion", "bash").stdout
    for words, want in ((["llmctl", "-s", fake.sock, "inst", "stop", "m"], "main mini"),
                        (["llmctl", "conf"], "config"),
                        (["llmctl", "-s", fake.sock, "config", "ro"], "rollback")):
        line = " ".join(words)
        p = subprocess.run(
            ["bash", "-c", script + "\nCOMP_WORDS=(" + line + ")\n"
             f"COMP_CWORD={len(words) - 1}\nCOMP_LINE='{line}'\nCOMP_POINT={len(line)}\n"
             "_llmctl\necho ${COMPREPLY[@]}"], capture_output=True, text=True, timeout=30 * SLOW,
            env={**os.environ, "PATH": os.path.dirname(os.path.abspath(CTL)) + ":"
                 + os.environ["PATH"]})
        assert p.stdout == want + "\n", (words, p)


# ---- questions, operations, exit codes ----

def test_destructive_verbs_ask(fake, shell):
    fake.set("POST /api/v1/instances/main/stop", {"operation": "op-1"}, 202)
    fake.set("GET /api/v1/operations/op-1", {"id": "op-1", "kind": "instance.stop",
                                             "subject": "main", "state": "done",
                                             "message": "stopped"})
    p = ctl(fake, "instance", "stop", "main")
    assert p.returncode == 4 and "-y" in p.stderr
    t = shell()
    t.keys("instance stop main\r")
    t.shows(r"Stop instance main\? What runs on it is drained first\. \[y/N\]$")
    t.keys("\r")
    t.shows("nothing was done")
    assert not fake.made("POST", "/api/v1/instances/main/stop")
    t.keys("instance stop main reason 'new fan'\r")
    t.shows(r"(?s)\[y/N\].*\[y/N\]$")
    t.keys("y\r")
    t.shows("^instance.stop main: stopped$")
    assert ctl(fake, "-y", "instance", "stop", "main").returncode == 0
    assert fake.made("POST", "/api/v1/instances/main/stop") == [{"reason": "new fan"}, {}]


def test_operations_are_followed(fake):
    states = iter(["running", "running", "done"])
    fake.set("POST /api/v1/config/commit", {"operation": "op-2", "revision": 8}, 202)
    fake.set("GET /api/v1/operations/op-2", lambda _: (200, {
        "id": "op-2", "kind": "config.commit", "subject": "8", "state": next(states),
        "message": "applied"}))
    fake.set("GET /api/v1/config", {"revision": 8, "pending": {"revision": 8, "left_s": 300}})
    p = ctl(fake, "config", "commit", "confirm", "5m", "guard", "comment", "more threads")
    assert p.returncode == 0, p.stderr
    assert p.stdout == ("config.commit 8: applied\nIt is kept by `config confirm`; without, "
                        "revision 8 is rolled back in 300 s.\n")
    assert fake.made("POST", "/api/v1/config/commit") == [
        {"confirm": True, "confirm_s": 300, "guard": "on", "comment": "more threads"}]
    fake.set("GET /api/v1/operations/op-2", {"kind": "config.commit", "state": "failed",
                                             "message": "the engine ended: no memory"})
    p = ctl(fake, "config", "commit")
    assert p.returncode == 1 and "the engine ended: no memory" in p.stderr
    p = ctl(fake, "-n", "config", "commit")
    assert p.returncode == 0 and p.stdout == "operation op-2\n"
    fake.set("GET /api/v1/operations/op-2", {"kind": "config.commit", "state": "running"})
    p = ctl(fake, "--timeout", "1", "config", "commit")
    assert p.returncode == 6 and "operation op-2 goes on" in p.stderr


def test_exit_code_by_class(fake):
    for status, code in ((400, 2), (401, 4), (403, 4), (404, 3), (409, 5), (429, 6), (500, 1),
                         (503, 6)):
        fake.set("GET /api/v1/kv", {"error": {"message": "why \x1b[31m not"}}, status)
        p = ctl(fake, "show", "kv")
        assert p.returncode == code and re.fullmatch(r"llmctl: why .\[31m not\n", p.stderr)
        assert "\x1b" not in p.stderr


def test_wait(fake, tmp_path):
    p = ctl(fake, "wait", "ready")
    assert p.returncode == 0
    fake.set("GET /api/v1/status", {"ready": False, "reason": "main loads"})
    p = ctl(fake, "-t", "1", "wait", "ready")
    assert p.returncode == 6 and "main loads" in p.stderr
    looks = iter([("ready", 0), ("draining", 2), ("draining", 0)])

    def drains(_):
        state, n = next(looks)
        return 200, {"instances": [{"name": "main", "state": state, "running": n, "waiting": 0},
                                   {"name": "other", "state": "ready", "running": 9}]}
    fake.set("GET /api/v1/instances", drains)
    assert ctl(fake, "wait", "drained", "main").returncode == 0
    fake.set("GET /api/v1/instances", {"instances": []})
    assert ctl(fake, "wait", "drained", "main").returncode == 3
    fake.set("GET /api/v1/config", {"revision": 7, "state": "confirmed"})
    assert ctl(fake, "wait", "confirmed").returncode == 0
    assert ctl(fake, "wait", "confirmed", "x").returncode == 2
    late = str(tmp_path / "late")  # the daemon comes while it is waited for
    p = subprocess.Popen([CTL, "-s", late, "wait", "ready"])
    f = FakeDaemon(late)
    assert p.wait(20 * SLOW) == 0
    f.stop()


# ---- configuration ----

def test_set_shows_what_it_does_and_faults_where_they_are(fake):
    fake.set("PATCH /api/v1/config/draft", CHECKED)
    p = ctl(fake, "config", "set", "instances.main.mode", "colocated")
    assert p.returncode == 0
    assert re.search(r"instances.main.mode +chunked +colocated +drain\n\nACTION +INSTANCE.*\n"
                     r"replace +main +3 +1.0 GiB +4.0 GiB +yes +mode\n", p.stdout)
    assert ctl(fake, "config", "set", "a.b", "[x, y]").returncode == 0
    assert ctl(fake, "config", "unset", "a.b").returncode == 0
    assert fake.made("PATCH", "/api/v1/config/draft") == [
        {"set": [{"path": "instances.main.mode", "value": "colocated"}]},
        {"set": [{"path": "a.b", "value": "[x, y]"}]}, {"unset": ["a.b"]}]
    fake.set("GET /api/v1/config/draft", {"text": TEXT, "base": 6})
    fake.set("POST /api/v1/config/check", {"ok": False, "faults": [
        {"line": 4, "column": 11, "path": "instances.main.mode", "message": "no such mode"}]})
    p = ctl(fake, "config", "check")
    assert p.returncode == 2 and "1 fault in the configuration" in p.stderr
    assert p.stdout == ("line 4, column 11  instances.main.mode: no such mode\n"
                        "        mode: chunked\n" + 14 * " " + "^\n")


def test_files_travel(fake, tmp_path):
    file = tmp_path / "a file.yaml"
    file.write_text(TEXT)
    fake.set("PUT /api/v1/config/draft", CHECKED)
    fake.set("GET /api/v1/config/revisions/3", {"text": TEXT})
    fake.set("GET /api/v1/backup", b"\0bytes\xff")
    fake.set("POST /api/v1/restore", {"state": "at the next start"})
    assert ctl(fake, "config", "load", str(file)).returncode == 0
    assert fake.made("PUT", "/api/v1/config/draft") == [{"text": TEXT}]
    out = tmp_path / "out"
    assert ctl(fake, "config", "save", str(out), "3").returncode == 0
    assert out.read_text() == TEXT
    assert ctl(fake, "backup", str(out)).returncode == 0
    assert out.read_bytes() == b"\0bytes\xff" and out.stat().st_mode & 0o777 == 0o600
    assert ctl(fake, "-y", "restore", str(out)).returncode == 0
    assert fake.made("POST", "/api/v1/restore") == [b"\0bytes\xff"]
    p = ctl(fake, "config", "load", str(tmp_path / "none"))
    assert p.returncode == 3 and "none" in p.stderr
    file.write_bytes(b"a: 1\n\0b: 2\n")
    p = ctl(fake, "config", "load", str(file))
    assert p.returncode == 2 and "zero byte" in p.stderr
    p = ctl(fake, "backup", str(tmp_path / "no" / "where"))
    assert p.returncode == 1 and not list(tmp_path.glob("*.part"))


def test_edit_until_it_has_no_faults(fake, shell, tmp_path):
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nenv > "$0.env"\n'
                      'n=$(cat "$0.n" 2>/dev/null || echo 0); echo $((n + 1)) > "$0.n"\n'
                      'if [ $n = 0 ]; then sed -i s/chunked/odd/ "$1"\n'
                      'else sed -i s/odd/colocated/ "$1"; fi\n')
    editor.chmod(0o755)
    fake.set("GET /api/v1/config", {"revision": 6, "text": TEXT})
    fake.set("POST /api/v1/config/check", lambda b: (200, CHECKED if "odd" not in b["text"] else {
        "ok": False, "faults": [{"line": 4, "column": 11, "path": "instances.main.mode",
                                 "message": "'odd' is no mode"}]}))
    fake.set("PUT /api/v1/config/draft", CHECKED)
    t = shell(env={"EDITOR": str(editor), "VISUAL": "", "LLMCTL_KEY": "id.very-secret"})
    t.keys("config edit\r")
    t.shows(r"^line 4, column 11  instances.main.mode: 'odd' is no mode\n"
            r" {8}mode: odd\n {14}\^\n1 fault in the configuration\nEdit again\? \[y/N\]$")
    t.keys("y\r")
    t.shows(r"^replace +main .*\nthe draft is stored; `config commit` applies it$")
    assert fake.made("PUT", "/api/v1/config/draft") == [
        {"text": TEXT.replace("chunked", "colocated"), "base": 6}]
    assert "very-secret" not in (tmp_path / "editor.env").read_text()
    (tmp_path / "editor.n").unlink()
    t.keys("config edit\r")
    t.shows(r"(?s)Edit again.*Edit again\? \[y/N\]$")
    t.keys("n\r")
    left = t.shows(r"^What was written is in (\S+)$")[1]  # no work is lost
    assert "odd" in open(left).read()
    os.unlink(left)
    assert len(fake.made("PUT", "/api/v1/config/draft")) == 1


# ---- streams and live screens ----

def test_log_and_events_are_followed(fake):
    fake.set("GET /api/v1/log", {"level": "info", "lines": [
        {"at_ms": 1000, "level": "warn", "text": f"line {i}"} for i in range(5)]})
    p = subprocess.Popen([CTL, "-s", fake.sock, "log", "-f", "2"], stdout=subprocess.PIPE,
                         text=True)
    wait_for(lambda: fake.streams["/api/v1/log/stream"])
    fake.push("log", {"at_ms": 2000, "level": "info", "text": "a new\x1b line"},
              "/api/v1/log/stream")
    lines = [p.stdout.readline().split(" ", 1)[1] for _ in range(3)]
    assert lines == ["warn  line 3\n", "warn  line 4\n", "info  a new? line\n"]
    p.send_signal(2)
    assert p.wait(20 * SLOW) == 0  # Ctrl-C is its good end
    p = subprocess.Popen([CTL, "-j", "-t", "3", "-s", fake.sock, "show", "events"],
                         stdout=subprocess.PIPE, text=True)
    wait_for(lambda: fake.streams["/api/v1/events"])
    fake.push("operation", {"id": "x"})
    assert json.loads(p.stdout.readline()) == {"event": "operation", "data": {"id": "x"}}
    assert p.wait(20 * SLOW) == 0


def status_of(tokens):
    return {"version": "9.9", "uptime_s": 75, "ready": True, "revision": 7, "alarms": 1,
            "pending": {"revision": 8, "left_s": 40.2},
            "requests": {"running": 12, "waiting": 3},
            "tokens": {"prompt": 10 * tokens, "generated": tokens},
            "ttft_ms": {"p50": 120, "p95": 340}, "tpot_ms": {"p50": 9.5, "p95": 18},
            "instances": [{"name": "main", "state": "ready", "running": 12, "waiting": 3,
                           "kv_used": 50, "kv_total": 100, "model": "m" * 70}]}


def test_monitor(fake, shell):
    tokens = iter(range(0, 100000, 400))
    fake.set("GET /api/v1/status", lambda _: (200, status_of(next(tokens))))
    fake.set("GET /api/v1/slo", {"slo": [
        {"instance": "main", "class": "", "attainment": 0.983, "ttft_ms": {"p95": 340},
         "tpot_ms": {"p95": 18}, "good_tokens_per_s": 380}]})
    fake.set("GET /api/v1/devices", {"devices": [{"id": "gpu0", "kind": "gpu",
                                                  "state": "in service"}]})
    fake.set("GET /api/v1/alarms", {"alarms": [{"severity": "major", "text": "fan is slow",
                                                "ended_ms": None}]})
    t = shell("monitor", wait=r"^tokens/s +\d\d+ out")
    t.shows(r"^llmrackd 9\.9  up 1m 15s  ready  rev 7  rev 8 pending 40 s  1 alarm  ")
    t.shows(r"^requests +12 running +3 waiting$")
    t.shows(r"^main +ready +12 +3 +50.0 % +98.3 % +340 ms +18 ms +380 +m+~$")
    t.shows(r"(?s)^gpu0 +gpu +in service$.*^major  fan is slow$.*^q leaves$")
    assert t.raw.count(b"\x1b[2J") == 1  # frames replace each other: no flicker
    t.size(60, 12)
    t.shows(r"(?s)^requests .*^main +ready +12 ")
    wait_for(lambda: t.read() and all(len(x) <= 60 for x in t.lines()) and
             not any("q leaves" in x for x in t.lines()[:8]))
    fake.set("GET /api/v1/status", {"error": {"message": "gone"}}, 500)
    t.size(100, 30)
    t.shows(r"^gone$")  # and the last figures stay
    t.shows(r"^main +ready")
    t.keys("q")
    assert t.ends() == 0
    assert t.raw.endswith(b"\x1b[?25h\x1b[?1049l")


def test_watch(fake, shell):
    n = iter(range(10000))
    fake.set("GET /api/v1/kv", lambda _: (200, {"kv": [{"instance": "main", "used": next(n)}]}))
    t = shell()
    t.keys("watch show kv 1\r")
    first = int(t.shows(r"(?s)^show kv   each 1 s   .*^main +(\d+)$")[1])
    t.shows(rf"(?m)^main +{first + 2}$")
    t.keys("q")
    t.shows(r"llmctl>$")
    assert b"\x1b[?1049l" in t.raw  # what was there before is back
    p = ctl(fake, "-t", "1.5", "watch", "show", "kv", "1")
    assert p.returncode == 0 and len(re.findall(r"^main +\d+$", p.stdout, re.M)) == 2
    p = ctl(fake, "watch", "instance", "stop", "main")
    assert p.returncode == 2 and "cannot be watched" in p.stderr
    p = ctl(fake, "monitor")
    assert p.returncode == 4 and "terminal" in p.stderr


# ---- TCP: keys and TLS ----

def test_the_key_is_sent_and_not_shown(tmp_path):
    f = FakeDaemon()
    url = ("--url", f"http://127.0.0.1:{f.port}")
    file = tmp_path / "key"
    file.write_text("id.from-file\n")
    for args, env in (((), {"LLMCTL_KEY": "id.from-env"}), (("--key", f"@{file}"), {}),
                      (("--key", "id.from-argv"), {"LLMCTL_KEY": "id.other"})):
        assert ctl(f, *args, "show", "status", target=url, env=env).returncode == 0
    sent = [r[3].get("Authorization") for r in f.requests]
    assert sent == ["Bearer id.from-env", "Bearer id.from-file", "Bearer id.from-argv"]
    p = subprocess.Popen([CTL, *url, "--key", "id.from-argv", "show", "events"],
                         stdout=subprocess.DEVNULL)
    wait_for(lambda: f.streams["/api/v1/events"])
    with open(f"/proc/{p.pid}/cmdline", "rb") as c:
        assert b"from-argv" not in c.read()
    p.kill()
    p.wait()
    f.stop()


def test_tls_is_verified(tmp_path):
    pem = str(tmp_path / "cert.pem")
    if subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
                       "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1",
                       "-keyout", pem + ".key", "-out", pem], capture_output=True).returncode:
        pytest.skip("openssl is not there")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, pem + ".key")
    f = FakeDaemon(context=context)
    url = ("--url", f"https://127.0.0.1:{f.port}")
    p = ctl(f, "show", "status", target=url)
    assert p.returncode == 4 and "not trusted" in p.stderr and "--ca" in p.stderr
    assert ctl(f, "--ca", pem, "show", "status", target=url).returncode == 0
    f.stop()


# ---- bundles ----

SECRET = "abcdefghij12." + 64 * "5"


def members(path):
    with tarfile.open(path) as t:
        return {m.name.removeprefix("support/"): t.extractfile(m).read().decode()
                for m in t.getmembers()}


def test_bundle_of_a_living_daemon(fake, tmp_path):
    fake.set("GET /api/v1/support", {
        "config": "rack: auto\npassword: hunter2\ntls_key: /etc/key.pem\n",
        "status": {"tokens": {"prompt": 12}, "note": f"key {SECRET}"},
        "journal": None,
        "log": [{"at_ms": 1, "level": "info",
                 "text": 'request r1: answer of 9 bytes: "my dear diary"'}]})
    out = tmp_path / "b.tgz"
    p = ctl(fake, "support-bundle", str(out))
    assert p.returncode == 0 and out.stat().st_mode & 0o777 == 0o600, p.stderr
    m = members(out)
    assert m["config.yaml"] == "rack: auto\npassword: (struck out)\ntls_key: /etc/key.pem\n"
    assert json.loads(m["status.json"])["tokens"] == {"prompt": 12}
    assert m["log.txt"] == "1 info request r1: answer of 9 bytes: (struck out)\n"
    assert "missing  journal: there is none" in m["MANIFEST"]
    assert not any(x in "".join(m.values()) for x in ("hunter2", "diary", 64 * "5"))
    fake.set("GET /api/v1/support", {"error": {"message": "not you"}}, 403)
    p = ctl(fake, "support-bundle", str(tmp_path / "c.tgz"))
    assert p.returncode == 4 and not list(tmp_path.glob("c.tgz*"))


def test_bundle_of_a_dead_daemon(tmp_path):
    state = tmp_path / "state"
    state.mkdir()
    (state / "state.db").write_bytes(b"SQLite format 3\0 secret")
    (state / "llmrackd.log").write_text(f"it died\nAuthorization: Bearer {SECRET}\n")
    (state / "rack.json").write_text("{}")
    (state / "link.log").symlink_to("/etc/shadow")
    out = tmp_path / "b.tgz"
    p = ctl(None, "support-bundle", str(out), target=("-s", str(state / "llmrackd.sock")))
    assert p.returncode == 0 and "does not answer" in p.stdout, p.stderr
    m = members(out)
    assert m["state/llmrackd.log"] == "it died\nAuthorization: Bearer (struck out)\n"
    assert {"state/rack.json", "state-folder.txt", "machine.txt", "MANIFEST"} <= set(m)
    assert "state/link.log" not in m and "state/state.db" not in m
    assert "not a database" in m["faults.json"]
    assert "missing  journal: there is none" in m["MANIFEST"]
    assert "no daemon answers" in m["MANIFEST"]
