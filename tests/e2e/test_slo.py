"""SLO accounting: what /api/v1/slo and /metrics say of requests is what their client saw."""
import http.client
import json
import os
import signal
import sqlite3
import time

import pytest

from rack import SLOW, Rack, wait_for

CHAT = {"messages": [{"role": "user", "content": "Count from one to ten."}], "max_tokens": 12,
        "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def small():
    """One sequence at a time and one that waits; classes that all and none can meet."""
    r = Rack("--max-seqs", "1", "--max-waiting", "1",
             "--set", "instances.main.slo.ttft_ms=3600000",
             "--set", "instances.main.slo.tpot_ms=3600000",
             "--set", "instances.main.slo.attainment=0.9",
             "--set", "slo_classes.easy.ttft_ms=3600000",
             "--set", "slo_classes.never.ttft_ms=0.001")
    yield r
    r.stop()


def figures(r, slo_class=""):
    rows = r.local("/api/v1/slo?window_s=3600")["slo"]
    return next((x for x in rows if x["class"] == slo_class and x["instance"] == "main"), None)


def counted(r, slo_class, end):
    return r.metrics().get(f'llmrack_slo_requests_total{{instance="main",slo_class="{slo_class}"'
                           f',end="{end}"}}', 0)


def timed_stream(r, **more):
    """(ttft, whole time, tokens) as the client sees them."""
    c = http.client.HTTPConnection("127.0.0.1", r.port, timeout=60 * SLOW)
    body = json.dumps(dict(CHAT, stream=True, stream_options={"include_usage": True}, **more))
    start = time.monotonic()
    c.request("POST", "/v1/chat/completions", body)
    a = c.getresponse()
    assert a.status == 200, a.read()
    first, usage = None, None
    for line in a:
        if not line.startswith(b"data: {"):
            continue
        first = first or time.monotonic() - start
        usage = json.loads(line[6:]).get("usage") or usage
    end = time.monotonic() - start
    c.close()
    return first, end, usage["completion_tokens"]


@pytest.mark.san
def test_figures_are_those_of_the_client(small):
    before = small.metrics()
    seen = [timed_stream(small) for _ in range(4)]
    wait_for(lambda: counted(small, "", "met") == 4)
    f, m = figures(small), small.metrics()
    assert (f["requests"], f["met"], f["missed"], f["canceled"]) == (4, 4, 0, 0)
    assert f["attainment"] == 1 and f["target"] == 0.9
    assert f["tokens"] == f["good_tokens"] == sum(n for _, _, n in seen) == 48
    # the server's part of a time is never more than the client's whole, but for the
    # width of a bucket of the histogram
    assert 0 < f["ttft_ms"]["p99"] / 1e3 <= max(t for t, _, _ in seen) * 1.1
    assert 0 < f["tpot_ms"]["p50"] / 1e3 <= max(e / (n - 1) for _, e, n in seen) * 1.1
    assert f["tpot_ms"]["p99"] <= f["gap_ms"]["p99"] * 1.2
    assert f["good_requests_per_s"] * f["window_s"] == pytest.approx(4)
    assert m['llmrack_slo_tokens_total{instance="main",slo_class="",good="true"}'] == 48
    assert m['llmrack_slo_attainment{instance="main",slo_class="",window="1h"}'] == 1
    for name in ("vllm:time_to_first_token_seconds_count",
                 "vllm:request_time_per_output_token_seconds_count"):
        assert m[name] - before.get(name, 0) == 4


def test_whole_answers_and_one_token_count_too(small):
    for more in ({}, {"max_tokens": 1}, {"n": 2}):
        status, a, _ = small.post("/v1/chat/completions", dict(CHAT, slo_class="easy", **more))
        assert status == 200, a
    f = figures(small, "easy")
    assert (f["requests"], f["met"], f["tokens"]) == (3, 3, 12 + 1 + 24)


def test_a_class_has_its_own_target(small):
    timed_stream(small, slo_class="never")
    wait_for(lambda: counted(small, "never", "late") == 1)
    f = figures(small, "never")
    assert (f["met"], f["late"], f["attainment"], f["good_tokens"]) == (0, 1, 0, 0)
    status, a, _ = small.post("/v1/chat/completions", dict(CHAT, slo_class="slow"))
    assert status == 400 and a["error"]["param"] == "slo_class"
    assert "easy" in a["error"]["message"] and "never" in a["error"]["message"]
    assert small.post("/v1/chat/completions", dict(CHAT, slo_class=7))[0] == 400
    assert figures(small, "slow") is None  # a mistake is nobody's request


def test_refused_ones_are_missed_and_cancels_are_apart(small):
    before = figures(small)
    long = dict(CHAT, max_tokens=2000, stream=True)
    held = []
    for _ in range(2):  # one runs, one waits
        s = small.raw()
        body = json.dumps(long).encode()
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d"
                  b"\r\n\r\n" % len(body) + body)
        held.append(s)
        wait_for(lambda: len(small.local("/api/v1/requests")["requests"]) == len(held))
    status, _, h = small.post("/v1/chat/completions", CHAT)
    assert status == 429 and h["Retry-After"]
    f = figures(small)
    assert f["refused"] == before["refused"] + 1
    assert f["requests"] == before["requests"] + 1 and f["met"] == before["met"]
    for s in held:
        s.close()
    wait_for(lambda: figures(small)["canceled"] == before["canceled"] + 2)
    f = figures(small)
    assert f["requests"] == before["requests"] + 1 and f["aborted"] == before["aborted"]
    assert counted(small, "", "canceled") == f["canceled"]
    assert counted(small, "", "refused") == f["refused"]


def test_an_operators_end_is_the_servers(small):
    before = figures(small)
    s = small.raw()
    body = json.dumps(dict(CHAT, max_tokens=2000, stream=True)).encode()
    s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Request-Id: end-me\r\n"
              b"Content-Length: %d\r\n\r\n" % len(body) + body)
    wait_for(lambda: small.local_request("DELETE", "/api/v1/requests/end-me")[0] == 200)
    wait_for(lambda: figures(small)["aborted"] == before["aborted"] + 1)
    s.close()


def test_minutes_are_kept(small):
    """Last: the daemon stops in here, which writes the minute that runs."""
    rows = {(x["instance"], x["class"]): x for x in small.local("/api/v1/slo?window_s=3600")["slo"]}
    history = small.local("/api/v1/slo/history")
    assert history["next"] is None
    small.p.send_signal(signal.SIGTERM)
    assert small.p.wait(30 * SLOW) == 0
    with sqlite3.connect(os.path.join(small.dir.name, "state.db")) as db:
        stored = {}
        for instance, slo_class, revision, text in db.execute(
                "SELECT instance, class, revision, json FROM slo_minute"):
            assert revision == 1
            n = json.loads(text)
            have = stored.setdefault((instance, slo_class), dict.fromkeys(n, 0))
            for k in ("requests", "met", "refused", "aborted", "canceled", "tokens"):
                have[k] += n[k]
    assert set(stored) == set(rows)
    for key, n in stored.items():
        for k in ("requests", "met", "refused", "aborted", "canceled", "tokens"):
            assert n[k] == rows[key][k], (key, k)
