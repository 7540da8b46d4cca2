"""Order of prompts by slack and early refusal, over HTTP with a real engine that has one
place: who comes next, and who is told to come later. Both are set while it runs."""
import json
import math
import re
import selectors

import pytest

from rack import Rack, post_bytes, wait_for

CLASSES = {"tight": 300_000, "loose": 3_000_000, "now": 1_000}


@pytest.fixture(scope="module")
def rack():
    r = Rack("--set", "instances.main.max_seqs=1", "--set", "instances.main.step_tok=64",
             "--set", "instances.main.kv.mib=64",
             *(x for name, ms in CLASSES.items()
               for x in ("--set", f"slo_classes.{name}.ttft_ms={ms}")))
    for seed in range(20):  # steps by which it learns how long they take
        assert r.post("/v1/completions", {"prompt": [2000 + seed] * 9, "max_tokens": 1})[0] == 200
    yield r
    assert r.p.poll() is None, "the daemon ended during the tests: " + r.logged()
    r.stop()


def settle(rack, **values):
    """The running instance takes them; its engine stays."""
    before = rack.children()
    rack.commit("instances.main.", **values)
    assert rack.children() == before


class Ask:
    """A streamed answer; the prompt is its own."""

    def __init__(self, rack, seed, n_prompt, n_out, slo_class=None):
        body = {"prompt": [1000 + (seed * 7919 + i * 31) % 30000 for i in range(n_prompt)],
                "max_tokens": n_out, "ignore_eos": True, "temperature": 0, "stream": True}
        self.slo_class = slo_class
        self.sock = rack.raw()
        self.sock.sendall(post_bytes("/v1/completions",
                                     dict(body, slo_class=slo_class) if slo_class else body,
                                     "Connection: close"))

    def close(self):
        self.sock.close()


def waiting(rack):
    return rack.metric("vllm:num_requests_waiting")


@pytest.fixture
def plug(rack):
    """Has the only place until it is closed."""
    p = Ask(rack, 1, 8, 1900)
    wait_for(lambda: rack.metric("vllm:num_requests_running") == 1)
    yield p
    p.close()
    wait_for(lambda: rack.metric("vllm:num_requests_running") == 0 and waiting(rack) == 0)


def order_of_first_tokens(rack, plug):
    asks = []
    for i in range(6):
        asks.append(Ask(rack, 10 + i, 40, 30, "loose" if i < 3 else "tight"))
        wait_for(lambda: waiting(rack) == i + 1)
    plug.close()
    seen = []
    with selectors.DefaultSelector() as sel:
        for a in asks:
            sel.register(a.sock, selectors.EVENT_READ, a)
        while len(seen) < len(asks):
            ready = sel.select(60)
            assert ready, f"only {seen} came"
            for key, _ in ready:
                seen.append(key.data.slo_class)
                sel.unregister(key.fileobj)
    for a in asks:
        while a.sock.recv(65536):
            pass
        a.close()
    return seen


@pytest.mark.parametrize("order,first", [("age", "loose"), ("slack", "tight")])
def test_the_order_is_taken_while_it_runs(rack, plug, order, first):
    if order == "slack":
        settle(rack, order="slack")
    seen = order_of_first_tokens(rack, plug)
    assert seen[:3] == [first] * 3, seen


def refused(rack, stream):
    body = {"prompt": list(range(2000, 2040)), "max_tokens": 4, "slo_class": "now",
            "stream": stream}
    return rack.request("POST", "/v1/completions", body)


def test_who_cannot_be_in_time_is_told_when_to_come(rack, plug):
    settle(rack, refuse_late=True)
    before = rack.metrics()
    for stream in (False, True):
        status, h, data = refused(rack, stream)
        assert status == 429, data
        e = json.loads(data)["error"]
        said = re.fullmatch(r"the queue is too long for a first token within 1\.0 s; a request "
                            r"that comes in (\d+\.\d) s can have it", e["message"])
        assert said, e
        assert isinstance(e["code"], str) and e["type"]
        # the time in the sentence is rounded to a tenth, the header's up to whole seconds
        told = float(said[1])
        assert math.ceil(told - 0.05) <= int(h["Retry-After"]) <= math.ceil(told + 0.05)
    late = "llmrack_requests_refused_late_total"
    assert rack.metric(late) == before.get(late, 0) + 2
    # one without a target waits, and so does one with it once that is not asked for any more
    settle(rack, refuse_late=False)
    a = Ask(rack, 77, 40, 2, "now")
    wait_for(lambda: waiting(rack) == 1)
    plug.close()
    assert a.sock.recv(65536).startswith(b"HTTP/1.1 200")
    a.close()


def test_a_retry_when_told_is_in_time(rack):
    settle(rack, refuse_late=True)
    status, _, data = refused(rack, False)
    assert status == 200, data
