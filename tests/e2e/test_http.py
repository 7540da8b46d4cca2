"""HTTP itself, over raw sockets: framing, limits, slow and leaving clients, names."""
import grp
import json
import os
import random
import select
import signal
import socket
import stat
import struct
import threading
import time

import pytest

from rack import SLOW, UnixConnection, parse_sse, post_bytes, read_answer, wait_for

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
LONG = {"prompt": "Once upon a time", "max_tokens": 4000, "ignore_eos": True, "stream": True}
SHORT = {"prompt": "Hello", "max_tokens": 2}

pytestmark = pytest.mark.san


def error_of(body):
    e = json.loads(body)["error"]
    assert set(e) == {"message", "type", "param", "code"}
    assert e["message"] and isinstance(e["type"], str)
    assert e["code"] is None or isinstance(e["code"], str)
    return e


def running(rack):
    return rack.local("/api/v1/status")["requests"]["open"]


def idle(rack):
    wait_for(lambda: running(rack) == 0 and not rack.local("/api/v1/requests")["requests"])


# ---- paths and methods ----

def test_unknown_path_is_json_404(rack):
    for method in "GET", "POST", "PUT":
        status, h, body = rack.request(method, "/v1/nothing", "{}" if method != "GET" else None)
        assert status == 404 and h["Content-Type"] == "application/json"
        assert error_of(body)["code"] == "not_found"


def test_a_path_does_not_end_at_a_nul(rack):
    for path in "/v1/models%00", "/v1/models/%00/x", "/v1%00/models":
        status, _, body = rack.get(path)
        assert status == 404, path
    status, _, body = rack.local_request("GET", "/api/v1/journal?limit=-5")
    assert status == 400
    assert "must be a whole number from 1 to " in error_of(body)["message"]


def test_wrong_method_names_the_right_one(rack):
    status, h, body = rack.get(CHAT)
    assert status == 405 and h["Allow"] == "POST"
    error_of(body)
    status, h, body = rack.request("POST", "/v1/models", "{}")
    assert status == 405 and "GET" in h["Allow"]


def test_slash_at_the_end_is_fine(rack):
    assert rack.get("/v1/models/")[0] == 200
    assert rack.post(TEXT + "/", SHORT)[0] == 200


def test_head_has_length_and_no_body(rack):
    status, h, body = rack.request("HEAD", "/v1/models")
    assert status == 200 and body == b"" and int(h["Content-Length"]) > 0


def test_request_id_is_echoed_when_sane(rack):
    assert rack.get("/healthz", **{"X-Request-Id": "abc-1.Z_9"})[1]["X-Request-Id"] == "abc-1.Z_9"
    for bad in "a b", "x" * 65, "<script>", "":
        made = rack.get("/healthz", **{"X-Request-Id": bad})[1]["X-Request-Id"]
        assert made != bad and made.startswith("req-")


# ---- names: DNS rebinding ----

@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "LOCALHOST:1", "[::1]", "[::1]:80"])
def test_our_hosts(rack, host):
    assert rack.get("/healthz", Host=host)[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil",
                                  "evil.example:8080", "127.0.0.1:80:80", "", "user@localhost"])
def test_foreign_hosts(rack, host):
    status, _, body = rack.get("/healthz", Host=host)
    assert status == 403
    error_of(body)


@pytest.mark.parametrize("origin", ["http://localhost:3000", "https://127.0.0.1",
                                    "http://evil.example", "null", "file://"])
def test_web_pages_are_refused(rack, origin):
    """None is allowed unless the configuration names it."""
    for method, path in ("GET", "/healthz"), ("POST", TEXT), ("OPTIONS", TEXT):
        status, h, body = rack.request(method, path, SHORT if method == "POST" else None,
                                       {"Origin": origin, "Access-Control-Request-Method": "POST"})
        assert status == 403 and not [x for x in h if x.lower().startswith("access-control")]
        error_of(body)


def test_no_host_at_all(rack):
    with rack.raw() as s:
        s.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert read_answer(s)[0] == 400
    with rack.raw() as s:
        s.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert read_answer(s)[0] == 200


def test_control_needs_no_key_on_the_unix_socket_only(rack):
    for path in "status", "models", "requests", "metrics", "topology", "version":
        assert isinstance(rack.local("/api/v1/" + path), dict)
        status, h, body = rack.get("/api/v1/" + path)
        assert status == 401 and h["WWW-Authenticate"].startswith("Bearer")
        error_of(body)
    if not {"llmrack", "llmrack-admin"} & {g.gr_name for g in grp.getgrall()}:
        assert stat.S_IMODE(os.stat(rack.sock).st_mode) == 0o600
    c = UnixConnection(rack.sock)
    c.request("POST", TEXT, json.dumps(SHORT), {"Host": "anything"})
    assert c.getresponse().status == 200


# ---- bodies ----

def test_any_content_type_and_chunked_bodies(rack):
    body = json.dumps(SHORT).encode()
    assert rack.request("POST", TEXT, SHORT, {"Content-Type": "text/plain"})[0] == 200
    with rack.raw() as s:
        s.sendall(f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\n"
                  "Transfer-Encoding: chunked\r\n\r\n".encode())
        for i in range(0, len(body), 7):
            piece = body[i:i + 7]
            s.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        s.sendall(b"0\r\n\r\n")
        assert read_answer(s)[0] == 200


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"prompt":"a","prompt":"b"}',
                                  b'{"prompt":"\xff"}', b'{"prompt":"\\ud800"}',
                                  b'{"prompt":' + b"[" * 100 + b"]" * 100 + b"}",
                                  b'{"prompt":"a"} x'])
def test_bad_json_is_400(rack, body):
    status, _, data = rack.request("POST", TEXT, body)
    assert status == 400
    said = error_of(data)["message"]
    assert body or said == "body: it is empty and must be JSON"


def test_long_bodies_are_worked_on_elsewhere(rack):
    """More of them than there are HTTP threads, and these still answer others first."""
    body = post_bytes("/tokenize", {"prompt": "Some words, 12 numbers; and lines.\n" * 80_000})
    socks = [rack.raw() for _ in range(4)]
    for s in socks:
        s.sendall(body)
    assert rack.get("/healthz")[0] == 200
    answered = select.select(socks, [], [], 0)[0]
    assert len(answered) < len(socks)
    for s in socks:
        assert read_answer(s)[0] == 200
        s.close()


def test_two_requests_on_one_connection(rack):
    with rack.raw() as s:
        for _ in range(2):
            s.sendall(post_bytes(TEXT, SHORT))
            assert read_answer(s)[0] == 200
        s.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2)  # pipelined
        assert read_answer(s)[0] == 200


def test_too_large_is_413_after_reading(strict):
    big = b'{"prompt":"' + b"a" * (3 << 20) + b'"}'
    status, h, body = strict.request("POST", TEXT, big)
    assert status == 413 and h["Content-Type"] == "application/json"
    assert error_of(body)["code"] == "request_too_large"


def test_too_large_is_413_when_chunked(strict):
    with strict.raw() as s:
        s.sendall(f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\n"
                  "Transfer-Encoding: chunked\r\n\r\n".encode())
        for _ in range(40):
            s.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
        s.sendall(b"0\r\n\r\n")
        status, _, body = read_answer(s)
        assert status == 413
        error_of(body)


def test_expect_continue_over_the_limit_is_413_at_once(strict):
    with strict.raw() as s:
        s.sendall(f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {64 << 20}\r\n"
                  "Expect: 100-continue\r\n\r\n".encode())
        status, _, body = read_answer(s)
        assert status == 413
        error_of(body)
        assert s.recv(1) == b""


def test_expect_continue_is_honoured(rack):
    body = json.dumps(SHORT).encode()
    with rack.raw() as s:
        s.sendall(f"POST {TEXT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
                  "Expect: 100-continue\r\n\r\n".encode())
        assert read_answer(s)[0] == 100
        s.sendall(body)
        assert read_answer(s)[0] == 200


# ---- slow clients ----

def closed_within(s, seconds):
    s.settimeout(seconds * SLOW)
    data = b""
    while True:
        try:
            got = s.recv(65536)
        except ConnectionResetError:
            return data
        if not got:
            return data
        data += got


def test_silent_and_slow_headers_are_cut(strict):
    with strict.raw() as silent, strict.raw() as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: local")
        assert closed_within(silent, 5) == b""
        closed_within(slow, 5)


def test_slow_body_is_408(strict):
    with strict.raw() as s:
        s.sendall(post_bytes(TEXT, {"prompt": "x" * 100})[:-50])
        start = time.monotonic()
        while time.monotonic() < start + 10 * SLOW:
            try:
                s.sendall(b"x")
            except OSError:
                break
            s.settimeout(0.3)
            try:
                data = s.recv(65536)
                break
            except socket.timeout:
                continue
        assert data.startswith(b"HTTP/1.1 408 ")
        data += closed_within(s, 5)
        assert error_of(data.split(b"\r\n\r\n", 1)[1])["type"] == "timeout_error"


def test_clients_that_close_early_leave_no_connection(rack):
    whole = post_bytes(TEXT, SHORT)
    for cut_at in 1, 30, len(whole) - 5, len(whole):
        for _ in range(30):
            with rack.raw() as s:
                s.sendall(whole[:cut_at])
    wait_for(lambda: rack.metric("llmrack_http_connections") <= 3, 10)
    idle(rack)


# ---- streams ----

def test_framing(rack):
    with rack.raw() as s:
        s.sendall(post_bytes(CHAT, {"messages": [{"role": "user", "content": "Hi"}],
                                    "max_tokens": 8, "stream": True}, "Connection: close"))
        data = closed_within(s, 30)
    head, body = data.split(b"\r\n\r\n", 1)
    head = head.decode().lower()
    assert head.startswith("http/1.1 200")
    for line in ("content-type: text/event-stream", "cache-control: no-cache",
                 "x-accel-buffering: no", "transfer-encoding: chunked"):
        assert line in head
    text = b""
    while True:
        size, body = body.split(b"\r\n", 1)
        if int(size, 16) == 0:
            break
        text, body = text + body[:int(size, 16)], body[int(size, 16) + 2:]
    frames = parse_sse(text)
    assert frames[-1] == "[DONE]"


def test_each_frame_is_flushed(rack):
    with rack.raw() as s:
        s.sendall(post_bytes(TEXT, dict(LONG, max_tokens=16)))
        pieces = 0
        data = b""
        while b"[DONE]" not in data:
            got = s.recv(1 << 20)
            assert got
            data += got
            pieces += 1
        assert pieces >= 8, "tokens came in lumps"


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_is_cancelled(rack, stream):
    idle(rack)
    before = rack.metrics()
    s = rack.raw()
    s.sendall(post_bytes(TEXT, dict(LONG, stream=stream, max_tokens=3500)))
    wait_for(lambda: rack.local("/api/v1/requests")["requests"], step=0.005)
    if stream:
        s.recv(100)
    s.close()
    idle(rack)
    after = rack.metrics()
    assert after["llmrack_requests_canceled_total"] == before["llmrack_requests_canceled_total"] + 1
    wait_for(lambda: rack.metric("llmrack_kv_blocks_used") == 0)
    name = "vllm:request_success_total"
    for reason in "stop", "length":
        key = f'{name}{{finished_reason="{reason}"}}'
        assert after[key] == before[key]


def test_a_client_that_leaves_costs_no_more_than_the_step_that_runs(rack):
    """Counted in steps. The least of a few tries, since this client may itself be late."""
    late = []
    for _ in range(6):
        idle(rack)
        wait_for(lambda: rack.metric("llmrack_kv_blocks_used") == 0)
        before = rack.metric("llmrack_steps_total")
        with rack.raw() as s:
            s.sendall(post_bytes(TEXT, LONG))
            data = b""
            while data.count(b"data: ") < 20:
                data += s.recv(65536)
        wait_for(lambda: rack.metric("llmrack_kv_blocks_used") == 0)
        late.append(rack.metric("llmrack_steps_total") - before - data.count(b"data: "))
    assert min(late) <= 1, late


def test_a_slow_reader_holds_up_nobody(rack):
    with rack.raw() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.sendall(post_bytes(TEXT, dict(LONG, max_tokens=200)))
        assert s.recv(10)
        for _ in range(3):
            assert rack.post(TEXT, SHORT)[0] == 200
    idle(rack)


def test_a_short_request_overtakes_a_long_prompt(rack):
    """It is answered while the long one, which came first, still reads its prompt."""
    idle(rack)
    with rack.raw() as s:
        s.sendall(post_bytes(TEXT, {"prompt": [i % 40000 + 300 for i in range(8000)],
                                    "max_tokens": 1, "cache_prompt": False}))
        wait_for(lambda: rack.metric("vllm:num_requests_running") == 1)
        assert rack.post(TEXT, dict(SHORT, prompt="A short one"))[0] == 200
        long, = rack.local("/api/v1/requests")["requests"]
        assert long["prompt_tokens"] == 8000 and long["output_tokens"] == 0
    idle(rack)


def test_many_idle_connections_do_not_block(rack):
    socks = [rack.raw() for _ in range(200)]
    assert rack.get("/healthz")[0] == 200
    assert rack.post(TEXT, SHORT)[0] == 200
    for s in socks:
        s.close()


def test_parallel_streams(rack):
    out = [None] * 12

    def one(i):
        out[i] = rack.stream(TEXT, dict(LONG, max_tokens=10, seed=i % 2))

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(out))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for frames in out:
        assert frames[-1] == "[DONE]"
        assert frames[-2]["choices"][0]["finish_reason"] == "length"


def test_no_text_is_kept(start):
    """Neither of prompts nor of answers: not in the log at its most talkative, nor in the
    state, nor in what the control routes show."""
    r = start("--kv-mib", "64", "--log-level", "debug")
    body = {"prompt": "zanzibar-secret zanzibar-secret zanzibar-secret", "max_tokens": 40,
            "temperature": 0, "ignore_eos": True, "user": "zanzibar-user", "stop": "zanzibar-stop"}
    said = r.post(TEXT, body)[1]["choices"][0]["text"].strip()
    assert len(said) > 20
    r.post(TEXT, dict(body, zanzibar=1))
    r.post(TEXT, b'{"prompt":"zanzibar-secret')
    r.post(TEXT, {"prompt": ["zanzibar-secret", 1]})
    r.post(TEXT, {"prompt": "zanzibar-secret " * 9000})
    r.post(CHAT, {"messages": [{"role": "zanzibar-secret", "content": "zanzibar-secret"}]})
    with r.raw() as s:
        s.sendall(post_bytes(TEXT, dict(LONG, prompt="zanzibar-secret", max_tokens=1500)))
        wait_for(lambda: r.local("/api/v1/requests")["requests"])
        shown = json.dumps([r.local("/api/v1/" + p) for p in ("requests", "status", "metrics")])
        os.kill(r.children()[0], signal.SIGKILL)
        wait_for(lambda: "signal 9" in r.logged())
    kept = r.logged() + shown
    for name in "state.db", "state.db-wal":
        with open(os.path.join(r.dir.name, name), "rb") as f:
            kept += f.read().decode("latin-1")
    assert " 200 " in kept and "engine.run" in kept
    for text in "zanzibar-secret", "zanzibar-user", "zanzibar-stop", said[:12], said[-12:]:
        assert text not in kept, text


def misbehave(rack, rng):
    """One client that does one of the things that clients do."""
    body = {"prompt": "x " * rng.randrange(1, 60), "max_tokens": rng.randrange(1, 24),
            "n": rng.randrange(1, 3), "stream": rng.random() < .5, "ignore_eos": True,
            "logprobs": rng.choice([None, 2]), "stop": rng.choice([None, ["e"], "the"])}
    whole = post_bytes(TEXT, body, *rng.choice([[], ["Connection: close"]]))
    with rack.raw() as s:
        how = rng.randrange(6)
        if how == 0:
            s.sendall(whole[:rng.randrange(len(whole))])
        elif how == 1:
            s.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3)
            s.recv(10)
        else:
            s.sendall(whole)
        if how == 2:
            s.recv(20)
        elif how == 3:
            s.shutdown(socket.SHUT_WR)
        elif how >= 4:
            data = b""
            while not any(x in data for x in (b"[DONE]", b'"usage":{', b'{"error"')):
                got = s.recv(65536)
                assert got, data
                data += got
        if rng.random() < .5:  # a reset in place of an orderly close
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_a_storm_leaves_nothing_behind(rack):
    faults = []

    def client(seed):
        rng = random.Random(seed)
        try:
            for _ in range(12):
                misbehave(rack, rng)
        except Exception as e:  # an assertion in a thread is lost otherwise
            faults.append(e)

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not faults, faults
    idle(rack)
    wait_for(lambda: rack.metric("llmrack_kv_blocks_used") == 0)
    wait_for(lambda: rack.metric("llmrack_http_connections") <= 3)
    assert rack.get("/healthz")[0] == 200
