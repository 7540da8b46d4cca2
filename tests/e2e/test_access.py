"""Who may do what: keys over TCP against every route, limits, local users by their groups,
prefixes kept apart, and crowds of connections. Keys are made over the UNIX socket."""
import http.client
import json
import os
import re
import socket
import sqlite3
import statistics
import subprocess
import sys

import openai
import pytest

from rack import SLOW, limit_descriptors, post_bytes, read_answer, wait_for

TEXT = "/v1/completions"
SHORT = {"prompt": "Hello", "max_tokens": 2}
LONG = {"prompt": "Once upon a time", "max_tokens": 1500, "ignore_eos": True, "stream": True}
LEVELS = {"NONE": 0, "INFER": 1, "READ": 2, "ADMIN": 3}


def error_of(body):
    e = json.loads(body)["error"]
    assert set(e) == {"message", "type", "param", "code"} and e["message"]
    return e


def routes():
    """(method, path, access) of each row of route.def, its {names} filled in."""
    with open("daemon/api/route.def") as f:
        rows = re.findall(r'^ROUTE\("(\w+)", "([^"]+)", (\w+),', f.read(), re.M)
    assert len(rows) > 20
    return [(m, re.sub(r"\{[^}]*\}", "1", path), access) for m, path, access in rows]


def status_of(rack, method, path, headers):
    """Of the answer's first line, without waiting for the end of a stream."""
    c = http.client.HTTPConnection("127.0.0.1", rack.port, timeout=30 * SLOW)
    try:
        c.request(method, path, None if method == "GET" else "{}",
                  {"Content-Type": "application/json", **headers})
        return c.getresponse().status
    finally:
        c.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """One with keys of each scope; most tests make further ones."""
    import rack as rack_module
    r = rack_module.Rack("--kv-mib", "64", "--log-level", "debug")
    r.by_scope = {"infer": r.key("infer"), "read": r.key("read"), "admin": r.key("admin")}
    yield r
    assert r.p.poll() is None, "the daemon ended during the tests: " + r.logged()
    r.stop()


# ---- scopes ----

@pytest.mark.parametrize("scope,level", [(None, 1), ("infer", 1), ("read", 2), ("admin", 3)])
def test_every_route_by_scope(guarded, scope, level):
    """What is allowed is asked for only where asking changes nothing."""
    headers = guarded.by_scope[scope] if scope else {}
    for method, path, access in routes():
        if LEVELS[access] > level:
            want = 403 if scope else 401
            assert status_of(guarded, method, path, headers) == want, (method, path)
        elif method == "GET" or access == "INFER":
            got = status_of(guarded, method, path, headers)
            assert got not in (401, 403, 405), (method, path, got)


def test_metrics_need_read_and_tokenize_needs_infer(guarded):
    assert guarded.get("/metrics")[0] == 401
    assert guarded.get("/metrics", **guarded.by_scope["infer"])[0] == 403
    status, _, body = guarded.get("/metrics", **guarded.by_scope["read"])
    assert status == 200 and b"llmrack_http_auth_failures_total" in body
    assert guarded.post("/tokenize", {"prompt": "a"}, **guarded.by_scope["infer"])[0] == 200


def test_both_headers_and_the_openai_client(guarded):
    key = guarded.key()["Authorization"].split()[1]
    assert guarded.post(TEXT, SHORT, **{"X-Api-Key": key})[0] == 200
    assert guarded.post(TEXT, SHORT, Authorization="bearer  " + key)[0] == 200
    client = openai.OpenAI(base_url=guarded.url + "/v1", api_key=key, max_retries=0)
    model = client.models.list().data[0].id
    assert client.completions.create(model=model, **SHORT).usage.completion_tokens == 2
    wrong = openai.OpenAI(base_url=guarded.url + "/v1", api_key=key[:-1] + "g", max_retries=0)
    with pytest.raises(openai.AuthenticationError) as e:
        wrong.models.list()
    assert e.value.code == "invalid_api_key"


def test_a_missing_key_is_told_how(guarded):
    status, h, body = guarded.get("/api/v1/status")
    assert status == 401 and h["WWW-Authenticate"] == 'Bearer realm="llmrack"'
    assert "'read'" in error_of(body)["message"]
    status, _, body = guarded.get("/api/v1/status", **guarded.by_scope["infer"])
    assert status == 403 and error_of(body)["code"] == "forbidden"


# ---- life of a key ----

def test_life_of_a_key(guarded):
    header = guarded.key("read", req_per_min=600)
    key = header["Authorization"].split()[1]
    ident, secret = key.split(".")
    assert len(secret) == 64 and guarded.get("/api/v1/status", **header)[0] == 200
    row, = [k for k in guarded.local("/api/v1/keys")["keys"] if k["id"] == ident]
    assert row["state"] == "valid" and row["scopes"] == "read" and row["req_per_min"] == 600
    assert row["used_ms"] >= row["made_ms"]
    status, h, _ = guarded.local_request("DELETE", "/api/v1/keys/" + ident)
    assert status == 200
    status, _, body = guarded.get("/api/v1/status", **header)
    assert status == 401 and "revoked" in error_of(body)["message"]
    assert guarded.local_request("DELETE", "/api/v1/keys/" + ident)[0] == 409
    assert guarded.local_request("DELETE", "/api/v1/keys/nobody")[0] == 404
    assert guarded.request("POST", "/api/v1/keys", {"name": "x", "scopes": "infer"},
                           guarded.by_scope["admin"])[0] == 201
    db = sqlite3.connect(f"file:{guarded.dir.name}/state.db?mode=ro", uri=True)
    rows = db.execute("select actor, origin, what, result from journal where subject = ?"
                      " order by id", (ident,)).fetchall()
    db.close()
    me = f"uid {os.geteuid()}"
    assert rows == [(me, "unix", "key.create", "ok"), (me, "unix", "key.revoke", "ok"),
                    (me, "unix", "key.revoke", "refused")]
    kept = guarded.logged()
    for name in "state.db", "state.db-wal":
        with open(os.path.join(guarded.dir.name, name), "rb") as f:
            kept += f.read().decode("latin-1")
    assert ident in kept and secret not in kept and bytes.fromhex(secret).decode("latin-1") not in kept


@pytest.mark.parametrize("body", [{}, {"name": "x"}, {"name": "x", "scopes": "root"},
                                  {"name": "", "scopes": "read"}, {"name": "x", "scopes": "read,"},
                                  {"name": "x", "scopes": "read", "expires_s": 0},
                                  {"name": "x", "scopes": "read", "streams": -1},
                                  {"name": "x", "scopes": "read", "expire_s": 5}, []])
def test_bad_new_keys(guarded, body):
    before = len(guarded.local("/api/v1/keys")["keys"])
    status, _, data = guarded.local_request("POST", "/api/v1/keys", body)
    assert status == 400
    error_of(data)
    assert len(guarded.local("/api/v1/keys")["keys"]) == before


def test_expiry(guarded):
    header = guarded.key("read", expires_s=2)
    assert guarded.get("/api/v1/version", **header)[0] == 200
    wait_for(lambda: guarded.get("/api/v1/version", **header)[0] == 401, 10)
    assert "expired" in error_of(guarded.get("/api/v1/version", **header)[2])["message"]


def test_revocation_ends_what_runs(guarded):
    header = guarded.key()
    with guarded.raw() as s:
        s.sendall(post_bytes(TEXT, LONG, "Authorization: " + header["Authorization"]))
        assert b" 200 " in s.recv(4096)
        ident = header["Authorization"].split()[1].split(".")[0]
        assert guarded.local_request("DELETE", "/api/v1/keys/" + ident)[0] == 200
        data = b""
        while b"\r\n0\r\n" not in data:
            got = s.recv(1 << 16)
            assert got
            data += got
        assert b"was revoked" in data and b"[DONE]" not in data
    wait_for(lambda: guarded.local("/api/v1/status")["requests"]["open"] == 0)


# ---- limits ----

def limited(answer, most_s=60):
    status, body, h = answer
    assert status == 429 and 1 <= int(h["Retry-After"]) <= most_s
    assert body["error"]["type"] == "rate_limit_error" and body["error"]["code"] == "rate_limit_exceeded"
    return True


def test_requests_a_minute(guarded):
    header = guarded.key(req_per_min=3)
    for _ in range(3):
        assert guarded.post(TEXT, SHORT, **header)[0] == 200
    assert limited(guarded.post(TEXT, SHORT, **header))
    assert limited(guarded.post("/tokenize", {"prompt": "a"}, **header))
    assert guarded.get("/healthz", **header)[0] == 200  # costs nothing
    assert guarded.post(TEXT, SHORT, **guarded.key())[0] == 200  # another key


def test_tokens_a_minute(guarded):
    header = guarded.key(tok_per_min=50)
    ids = list(range(300, 345))
    assert guarded.post(TEXT, {"prompt": ids, "max_tokens": 30, "ignore_eos": True}, **header)[0] == 200
    assert limited(guarded.post(TEXT, SHORT, **header))
    assert guarded.post("/tokenize", {"prompt": "a"}, **header)[0] == 200


def test_streams_at_a_time(guarded):
    header = guarded.key(streams=2)
    socks = [guarded.raw() for _ in range(2)]
    for s in socks:
        s.sendall(post_bytes(TEXT, LONG, "Authorization: " + header["Authorization"]))
        assert b" 200 " in s.recv(4096)
    assert limited(guarded.post(TEXT, SHORT, **header))
    for s in socks:
        s.close()
    wait_for(lambda: guarded.post(TEXT, SHORT, **header)[0] == 200)
    for _ in range(10):  # one after the other is one at a time, however fast
        assert guarded.post(TEXT, {"prompt": "a", "max_tokens": 1}, **header)[0] == 200


def from_address(rack, address, headers):
    c = http.client.HTTPConnection("127.0.0.1", rack.port, timeout=30 * SLOW,
                                   source_address=(address, 0))
    try:
        c.request("GET", "/v1/models", headers=headers)
        r = c.getresponse()
        r.read()
        return r.status, r.headers
    finally:
        c.close()


def test_wrong_keys_cost_their_sender(guarded):
    """From addresses of their own, so that other tests are not told to wait."""
    wrong = {"Authorization": "Bearer abcdefghijkl." + "0" * 64}
    before = guarded.metric("llmrack_http_auth_failures_total")
    got = [from_address(guarded, "127.9.9.1", wrong) for _ in range(60)]
    codes = [status for status, _ in got]
    n = codes.index(429)
    assert n >= 5 and set(codes[:n]) == {401} and codes[-1] == 429
    assert all(h["Connection"] == "close" for _, h in got)
    assert int(got[-1][1]["Retry-After"]) >= 1
    assert from_address(guarded, "127.9.9.1", guarded.by_scope["infer"])[0] == 200
    assert from_address(guarded, "127.9.9.1", {})[0] == 200
    assert from_address(guarded, "127.9.9.2", wrong)[0] == 401
    assert guarded.metric("llmrack_http_auth_failures_total") == before + 61


def test_a_refused_body_is_not_read_to_its_end(guarded):
    with guarded.raw() as s:
        s.sendall(b"POST /api/v1/keys HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60000000\r\n\r\n")
        sent = 0
        try:
            while sent < 60_000_000:
                sent += s.send(b" " * 65536)
        except OSError:
            pass
        assert sent < 30_000_000


# ---- names ----

def test_a_host_that_is_not_ours_opens_nothing(guarded):
    for path in "/api/v1/status", "/v1/models", "/healthz":
        assert guarded.get(path, Host="evil.example", **guarded.by_scope["admin"])[0] == 403


# ---- prefixes ----

def cached(rack, header, prompt):
    status, body, _ = rack.post(TEXT, {"prompt": prompt, "max_tokens": 1}, **header)
    assert status == 200
    return body["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_prefixes_do_not_cross_keys(guarded):
    prompt = "A prefix that nobody else has sent before, long enough for a block. " * 6
    a, b = guarded.key(), guarded.key()
    assert cached(guarded, a, prompt) == 0
    assert cached(guarded, a, prompt) > 0
    assert cached(guarded, b, prompt) == 0
    assert cached(guarded, b, prompt) > 0
    assert cached(guarded, {}, prompt) == 0


# ---- local users ----

PEER = """
import http.client, json, os, socket, sys
path, uid, groups = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
os.setgroups(groups); os.setgid(60000); os.setuid(uid)
out = []
for method, where in ("GET", "/healthz"), ("GET", "/api/v1/status"), ("POST", "/v1/completions"), \\
        ("POST", "/api/v1/keys"):
    c = http.client.HTTPConnection("localhost", timeout=60)
    c.sock = socket.socket(socket.AF_UNIX); c.sock.settimeout(60); c.sock.connect(path)
    body = {"prompt": "Hello", "max_tokens": 1, "name": "x", "scopes": "infer"}
    if "keys" in where: del body["prompt"], body["max_tokens"]
    c.request(method, where, json.dumps(body) if method == "POST" else None)
    out.append(c.getresponse().status)
    c.close()
print(json.dumps(out))
"""


def private_groups():
    """A mount namespace of our own in which /etc/group can have two more lines."""
    if os.geteuid() != 0:
        return False
    return subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0


def test_local_users_by_group(tmp_path):
    import rack as rack_module
    if not private_groups():
        pytest.skip("needs root and a mount namespace")
    group = tmp_path / "group"
    group.write_text(open("/etc/group").read() + "llmrack-admin:x:64001:\nllmrack:x:64002:\n")
    wrapper = tmp_path / "llmrackd"
    wrapper.write_text(f"#!/bin/sh\nmount --bind {group} /etc/group\n"
                       f"exec {os.path.abspath(rack_module.BIN)}/llmrackd \"$@\"\n")
    wrapper.chmod(0o755)
    r = rack_module.Rack("--engine", os.path.abspath(rack_module.BIN) + "/llmrack-engine",
                         "--kv-mib", "64", program=["unshare", "-m", str(wrapper)])
    try:
        assert os.stat(r.sock).st_mode & 0o777 == 0o666
        os.chmod(r.dir.name, 0o755)

        def asked(uid, groups):
            p = subprocess.run([sys.executable, "-c", PEER, r.sock, str(uid), json.dumps(groups)],
                               capture_output=True, text=True, timeout=90 * SLOW)
            assert p.returncode == 0, p.stderr
            return json.loads(p.stdout)

        assert asked(60001, [64001]) == [200, 200, 200, 201]
        assert asked(60001, [7, 64002]) == [200, 200, 200, 403]
        assert asked(60001, [7]) == [200, 403, 403, 403]
        assert asked(60001, [64001, 64002]) == [200, 200, 200, 201]
        assert asked(0, []) == [200, 200, 200, 201]
        # strangers who stay connected leave room for others
        idle = subprocess.Popen([sys.executable, "-c", "import os, socket, sys\n"
                                 "os.setgroups([]); os.setgid(60000); os.setuid(60001)\n"
                                 "s = [socket.socket(socket.AF_UNIX) for _ in range(60)]\n"
                                 "for x in s: x.connect(sys.argv[1])\n"
                                 "print('there', flush=True); sys.stdin.read()\n", r.sock],
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert idle.stdout.readline() == b"there\n"
        for _ in range(20):
            assert r.local("/api/v1/status")["ready"]
        idle.stdin.close()
        assert idle.wait(30) == 0
    finally:
        r.stop()


# ---- crowds ----

def process(pid):
    """(threads, descriptors, RSS in KiB)"""
    with open(f"/proc/{pid}/status") as f:
        rss = int(re.search(r"VmRSS:\s+(\d+)", f.read())[1])
    return len(os.listdir(f"/proc/{pid}/task")), len(os.listdir(f"/proc/{pid}/fd")), rss


def crowd(r, n_idle, n_streams):
    """All open at once, then all gone. The threads at the height of it, and how many streams
    there were then: a quick daemon may be done with some before the last one is sent."""
    sockets, most = [], 0

    def raw():
        sockets.append(r.raw())
        return sockets[-1]

    def height():
        nonlocal most
        now = r.local("/api/v1/status")["requests"]["open"]
        fell, most = now < most, max(now, most)
        return fell or now == n_streams

    try:
        threads = gather(r, raw, n_idle, n_streams, height)
    finally:
        for s in sockets:
            s.close()
    wait_for(lambda: r.local("/api/v1/status")["requests"]["open"] == 0, 60)
    wait_for(lambda: r.local("/api/v1/status")["connections"] <= 1, 60)
    return threads, most


def gather(r, raw, n_idle, n_streams, height):
    idle = [raw() for _ in range(n_idle)]
    for s in idle:
        s.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    for s in idle:
        assert read_answer(s)[0] == 200
    streams = [raw() for _ in range(n_streams)]
    body = post_bytes(TEXT, dict(LONG, max_tokens=4000))
    for s in streams:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.sendall(body[:-1])
    for s in streams:  # at once
        s.sendall(body[-1:])
    wait_for(height, 60, step=0)
    for s in streams:
        assert b" 200 " in s.recv(256)
    threads, fds, _ = process(r.p.pid)
    assert fds > n_idle + n_streams
    for s in idle[::50]:  # the idle ones are still served
        s.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_answer(s)[0] == 200
    return threads


def test_a_thousand_idle_and_two_hundred_streams(start):
    limit_descriptors(max(4096, len(os.listdir("/proc/self/fd")) + 2048))
    r = start("--executor", "null", "--max-seqs", "256")
    before, fds, _ = process(r.p.pid)
    rss, whole = [], 0
    for _ in range(10):
        threads, most = crowd(r, 1000, 200)
        assert threads == before and most > 1
        whole += most == 200
        rss.append(process(r.p.pid)[2])
    assert whole >= 3
    after = process(r.p.pid)
    assert after[0] == before and after[1] <= fds + 2
    # crowds leave holes in the heap that later ones fill, so it grows in leaps, ever fewer;
    # a connection that left a kilobyte would add 1.2 MiB each time, 4.8 MiB in four
    first, last = (statistics.median(v) for v in (rss[2:6], rss[6:]))
    assert last - first < 4800 and rss[-1] < rss[0] + 16384, rss
