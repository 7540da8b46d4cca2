"""The administrator's REST: operations and events, orders, journal, devices, maintenance,
backups, self-test, support. Over the UNIX socket, as root."""
import contextlib
import json
import os
import select
import socket
import time

import pytest

from rack import MODEL, Rack, SLOW, UnixConnection, wait_for

ROOT = os.path.dirname(os.path.abspath(MODEL))
OPTIONS = ["--executor", "null", "--set", f"model_roots=[{ROOT}]"]
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}


@pytest.fixture(scope="module")
def admin():
    r = Rack(*OPTIONS)
    yield r
    assert r.p.poll() is None, r.logged()
    r.stop()


def call(rack, method, path, body=None, expect=200):
    status, headers, data = rack.local_request(method, "/api/v1" + path, body)
    assert status == expect, (method, path, status, data)
    return json.loads(data) if headers["Content-Type"] == "application/json" else data


def operation(rack, method, path, body=None, expect="done"):
    """Start one, wait for its end."""
    status, headers, data = rack.local_request(method, "/api/v1" + path, body)
    assert status == 202, (status, data)
    op = json.loads(data)["operation"]
    assert headers["Location"] == "/api/v1/operations/" + op

    def ended():
        o = rack.local(headers["Location"])
        return o["state"] != "running" and o

    o = wait_for(ended, 60)
    assert o["state"] == expect, o
    assert o["ended_ms"] >= o["started_ms"] and o["actor"] == "uid 0"
    return o


class Events:
    """A stream of events, read with a deadline."""

    def __init__(self, rack, path):
        self.c = UnixConnection(rack.sock, timeout=20 * SLOW)
        self.c.request("GET", "/api/v1" + path)
        self.r = self.c.getresponse()
        assert self.r.status == 200
        assert self.r.headers["Content-Type"] == "text/event-stream"
        assert self.line() == ": listening" and self.line() == ""

    def line(self):
        return self.r.readline().decode().rstrip("\n")

    def frame(self):
        """(kind, parsed data); comments are passed over."""
        kind = None
        while True:
            line = self.line()
            if line.startswith("event: "):
                kind = line[7:]
            elif line.startswith("data: "):
                assert self.line() == ""
                return kind, json.loads(line[6:])

    def until(self, kind, what):
        while True:
            k, data = self.frame()
            if k == kind and what(data):
                return data

    def close(self):
        self.r.close()
        self.c.close()


@contextlib.contextmanager
def events(rack, path="/events"):
    e = Events(rack, path)
    try:
        yield e
    finally:
        e.close()


def chat_status(rack):
    return rack.request("POST", "/v1/chat/completions", CHAT)[0]


# ---- instances ----

def test_orders_and_their_events(admin):
    with events(admin) as ev:
        operation(admin, "POST", "/instances/main/drain", {"reason": "a new fan"})
        row = ev.until("journal", lambda d: d["what"] == "instance.drain")
        assert (row["actor"], row["origin"], row["detail"]) == ("uid 0", "unix", "a new fan")
        op = ev.until("operation", lambda d: d["state"] == "done")
        assert (op["kind"], op["subject"]) == ("instance.drain", "main")
        assert chat_status(admin) == 503
        operation(admin, "POST", "/instances/main/undrain")
        assert chat_status(admin) == 200
        before = call(admin, "GET", "/instances")["instances"][0]
        operation(admin, "POST", "/instances/main/restart")
        after, = call(admin, "GET", "/instances")["instances"]
        assert after["pid"] != before["pid"] and after["generation"] > before["generation"]
        ready = ev.until("instance", lambda d: d["state"] == "ready"
                         and d["generation"] == after["generation"])
        assert ready["name"] == "main"
        operation(admin, "POST", "/instances/main/stop")
        assert not os.path.exists(f"/proc/{after['pid']}")
        assert chat_status(admin) == 503
        call(admin, "POST", "/instances/main/stop", expect=409)
        operation(admin, "POST", "/instances/main/start")
        assert chat_status(admin) == 200
    e = call(admin, "POST", "/instances/other/stop", expect=404)["error"]
    assert "'main'" in e["message"] and e["code"] == "not_found"
    e = call(admin, "POST", "/instances/main/stop", {"reson": "x"}, expect=400)["error"]
    assert e["param"] == "reson"


def test_a_request_is_ended_by_its_id(start):
    r = start("--set", f"model_roots=[{ROOT}]")
    s = r.raw()
    body = json.dumps(dict(CHAT, max_tokens=5000, stream=True, ignore_eos=True)).encode()
    s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: mine-1\r\n"
              b"Content-Length: %d\r\n\r\n" % len(body) + body)
    wait_for(lambda: r.local("/api/v1/requests")["requests"])
    assert call(r, "DELETE", "/requests/mine-1") == {"canceled": 1}
    data = b""
    while b"the request was ended" not in data:
        got = s.recv(65536)
        assert got, data[-500:]
        data += got
    wait_for(lambda: not r.local("/api/v1/requests")["requests"])
    call(r, "DELETE", "/requests/mine-1", expect=404)
    kv, = call(r, "GET", "/kv")["kv"]
    assert kv["instance"] == "main" and kv["blocks"] == kv["used"] + kv["cached"] + kv["free"]
    assert kv["queries"] > 0
    s.close()


# ---- models ----

def test_models(admin, tmp_path):
    path = os.path.abspath(MODEL)
    o = operation(admin, "POST", "/models/main/verify")
    assert "vocabulary" in o["message"]
    call(admin, "POST", "/models/none/verify", expect=404)
    call(admin, "POST", "/models", {"name": "main", "path": path}, expect=409)
    for bad in ("/etc/passwd", str(tmp_path), "/dev/zero", ROOT + "/../../Makefile"):
        status = admin.local_request("POST", "/api/v1/models", {"name": "b", "path": bad})[0]
        assert status in (403, 404), bad
    call(admin, "POST", "/models", {"name": "a.b", "path": path}, expect=400)
    call(admin, "PUT", "/config/draft", {"text": "models:\n  x:\n    path: /etc/passwd\n"})
    e = call(admin, "POST", "/config/commit", {}, expect=403)["error"]
    assert "model_roots" in e["message"]
    e = call(admin, "POST", "/models", {"name": "second", "path": path}, expect=409)["error"]
    assert "draft" in e["message"]
    call(admin, "DELETE", "/config/draft")
    operation(admin, "POST", "/models", {"name": "second", "path": path})
    assert f"second:\n    path: {path}" in call(admin, "GET", "/config")["text"]
    revision = admin.local("/api/v1/status")["revision"]
    operation(admin, "DELETE", "/models/second")
    assert "second:" not in call(admin, "GET", "/config")["text"]
    assert admin.local("/api/v1/status")["revision"] > revision
    call(admin, "DELETE", "/models/second", expect=404)
    call(admin, "DELETE", "/models/main", expect=409)


# ---- the rack ----

def test_devices(admin):
    d = call(admin, "GET", "/devices")["devices"][0]
    assert d["state"] == "in service" and d["kind"] == "cpu"
    path = f"/devices/{d['id']}/"
    assert call(admin, "POST", path + "cordon", {"reason": "hot"})["changed"] is True
    assert call(admin, "POST", path + "cordon", {"reason": "hot"})["changed"] is False
    d = call(admin, "GET", "/devices")["devices"][0]
    assert (d["state"], d["reason"], d["actor"]) == ("cordoned", "hot", "uid 0")
    assert call(admin, "POST", path + "uncordon")["state"] == "in service"
    call(admin, "POST", "/devices/gpu77/cordon", expect=404)


# ---- journal, log ----

def test_journal(admin):
    for i in range(3):
        call(admin, "PUT", "/log", {"level": "info"})
    newest = call(admin, "GET", "/journal?limit=2")["journal"]
    assert [r["what"] for r in newest] == ["log.level"] * 2
    older = call(admin, "GET", f"/journal?limit=1&before={newest[1]['id']}")["journal"]
    assert older[0]["id"] == newest[1]["id"] - 1
    check = call(admin, "GET", "/journal/verify")
    assert check == {"whole": True, "rows": newest[0]["id"], "fault": None}
    for bad in ("limit=0", "limit=501", "limit=x", "before=-1", "limit=1&limit=2", "limt=1",
                "limit=", "limit=01", "limit=1%00"):
        call(admin, "GET", "/journal?" + bad, expect=400)


def test_log(admin):
    with events(admin, "/log/stream") as ev:
        call(admin, "PUT", "/log", {"level": "debug"})
        line = ev.until("log", lambda d: "PUT /api/v1/log" in d["text"])
        assert line["level"] == "debug"
    log = call(admin, "GET", "/log")
    assert log["level"] == "debug" and len(log["lines"]) <= 500
    assert any(x["seq"] == line["seq"] and x["text"] == line["text"] for x in log["lines"])
    call(admin, "PUT", "/log", {"level": "loud"}, expect=400)
    assert call(admin, "PUT", "/log", {"level": "info"}) == {"level": "info"}


def test_a_reader_that_does_not_read_is_dropped(admin):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    s.connect(admin.sock)
    s.sendall(b"GET /api/v1/events HTTP/1.1\r\nHost: x\r\n\r\n")
    for i in range(5000):
        call(admin, "POST", "/maintenance", {"on": False, "reason": "r" * 255})
        if i % 20 == 19 and closed(s):
            break
    else:
        raise AssertionError("it is still there after 5000 events that it did not read")
    assert i > 100  # but not at once
    s.close()
    with events(admin) as ev:
        call(admin, "PUT", "/log", {"level": "info"})
        assert ev.until("journal", lambda d: d["what"] == "log.level")["subject"] == "info"


def closed(s):
    """The other side has closed, whatever is still to be read."""
    p = select.poll()
    p.register(s, select.POLLRDHUP)
    return any(e & (select.POLLRDHUP | select.POLLHUP) for _, e in p.poll(0))


# ---- maintenance, self-test, support ----

def test_maintenance_outlives_a_restart(start):
    r = start(*OPTIONS)
    assert call(r, "POST", "/maintenance", {"on": True, "reason": "fans"})["on"] is True
    status, headers, body = r.request("POST", "/v1/chat/completions", CHAT)
    assert status == 503 and int(headers["Retry-After"]) >= 1 and b"fans" in body
    assert r.get("/readyz")[0] == 503
    assert r.get("/v1/models")[0] == 200
    s = r.local("/api/v1/status")
    assert (s["maintenance"], s["maintenance_reason"]) == (True, "fans")
    assert call(r, "POST", "/selftest")["ok"] is True  # operators may try it meanwhile
    r.restart()
    assert r.local("/api/v1/status")["maintenance"] is True
    wait_for(lambda: r.local("/api/v1/status")["ready"])
    assert chat_status(r) == 503
    call(r, "POST", "/maintenance", {"on": False})
    wait_for(lambda: chat_status(r) == 200)
    call(r, "POST", "/maintenance", {"reason": "x"}, expect=400)
    whats = [row["what"] for row in call(r, "GET", "/journal")["journal"]]
    assert "maintenance.enter" in whats and "maintenance.leave" in whats


def test_selftest(admin):
    t = call(admin, "POST", "/selftest")
    assert t["ok"] is True
    names = [c["name"].split()[0] for c in t["checks"]]
    assert names == ["state", "journal", "disk", "generate"]
    assert all(c["ok"] and c["message"] for c in t["checks"])


def test_support_and_limits(admin):
    secret = admin.key("infer")["Authorization"].split(".")[1]
    word = "xylophone-in-a-prompt"
    admin.post("/v1/chat/completions", dict(CHAT, messages=[{"role": "user", "content": word}]))
    data = json.dumps(call(admin, "GET", "/support"))
    assert secret not in data and word not in data
    b = json.loads(data)
    assert b["config"]["revision"] == b["status"]["revision"] >= 1
    assert b["journal"] and b["log"] and b["metrics"] and b["rack"]["nodes"]
    limits = call(admin, "GET", "/limits")
    assert limits["max_connections"] >= 16 and limits["connections"] >= 1


# ---- backups ----

def test_backup_and_restore(start, tmp_path):
    r = start(*OPTIONS)
    key = r.key("read")
    copy = call(r, "GET", "/backup")
    assert copy[:15] == b"SQLite format 3"
    assert not [f for f in os.listdir(r.dir.name) if f.startswith(("download", "upload"))]
    later = r.key("read")

    def send(data):
        c = UnixConnection(r.sock)
        c.request("POST", "/api/v1/restore", data,
                  {"Content-Type": "application/octet-stream"})
        a = c.getresponse()
        body = a.read()
        c.close()
        return a.status, json.loads(body)

    def outcome(op):
        return wait_for(lambda: [o for o in call(r, "GET", "/operations")["operations"]
                                 if o["id"] == op and o["state"] != "running"])[0]

    status, body = send(b"this is no state" * 1000)
    assert status == 202
    o = outcome(body["operation"])
    assert o["state"] == "failed" and "not a database" in o["message"]
    assert send(b"")[0] == 400
    status, body = send(copy)
    o = outcome(body["operation"])
    assert o["state"] == "done" and "starts next" in o["message"]
    assert r.get("/api/v1/version", **later)[0] == 200  # until then all stays as it is
    r.restart()
    assert r.get("/api/v1/version", **key)[0] == 200
    assert r.get("/api/v1/version", **later)[0] == 401  # it was made after the backup
    assert call(r, "GET", "/journal/verify")["whole"] is True
    assert any("restore" in row["what"] for row in call(r, "GET", "/journal")["journal"])
    assert not [f for f in os.listdir(r.dir.name) if f.startswith(("download", "upload"))]


def test_events_end_with_the_daemon(start):
    r = start(*OPTIONS)
    with events(r) as ev:
        began = time.monotonic()
        r.stop()
        kind, data = ev.frame()
        while kind is not None:
            kind, data = ev.frame()
        assert data["error"]["code"] == "unavailable"
    assert time.monotonic() - began < 60 * SLOW
