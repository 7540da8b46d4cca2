"""KV tiers: prefixes that the device's pool cannot hold come back from host memory and disk,
also after a restart; the text is the same with and without; a torn file is passed over."""
import os
import random
import resource
import signal
import stat
import threading

import pytest

import rack as rack_module
from rack import MODEL, SLOW, wait_for

TEXT = "/v1/completions"
CONFIG = f"""
model_roots: [{os.path.dirname(os.path.realpath(MODEL))}]
models: {{small: {{path: {os.path.realpath(MODEL)}}}}}
instances:
  main: {{model: small, ctx: 512, max_seqs: 2, kv: {{mib: 16, host_mib: 16, disk_mib: 128}}}}
"""
RNG = random.Random(5)
PROMPTS = [[RNG.randrange(1000, 40000) for _ in range(250)] for _ in range(8)]


@pytest.fixture(scope="module")
def tiers(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiers") / "llmrackd.yaml"
    path.write_text(CONFIG)
    r = rack_module.Rack("--config", str(path), model=None)
    yield r
    assert r.p.poll() is None, "the daemon ended during the tests: " + r.logged()
    r.stop()


def ask(rack, ids):
    status, body, _ = rack.post(TEXT, {"prompt": ids, "max_tokens": 6, "temperature": 0,
                                       "ignore_eos": True})
    assert status == 200, body
    return body["choices"][0]["text"], body["usage"]["prompt_tokens_details"]["cached_tokens"]


def kv(rack):
    return rack.local("/api/v1/kv")["kv"][0]


@pytest.fixture(scope="module")
def first(tiers):
    """The prompts once: more than pool and host memory hold."""
    return [ask(tiers, p) for p in PROMPTS]


def test_cold_prefixes_come_back(tiers, first):
    assert all(cached == 0 for _, cached in first)
    again = [ask(tiers, p) for p in PROMPTS]
    assert [t for t, _ in again] == [t for t, _ in first]
    # what fell out of host memory before it was written is computed again
    assert sum(cached for _, cached in again) > 4 * 240, again
    assert kv(tiers)["host_hits"] > 0 and kv(tiers)["disk_hits"] > 0
    m = tiers.metrics()
    assert m['llmrack_kv_tier_bytes_total{move="up"}'] > 0
    assert m['llmrack_kv_tier_bytes_total{move="read"}'] > 0


def test_the_file_is_its_owners_alone(tiers, first):
    path = os.path.join(tiers.dir.name, "kv", "main.kv")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700


def test_blocks_outlive_the_daemon_and_torn_ones_are_told(tiers, first):
    path = os.path.join(tiers.dir.name, "kv", "main.kv")
    before = kv(tiers)
    tiers.p.send_signal(signal.SIGTERM)
    assert tiers.p.wait(30 * SLOW) == 0
    with open(path, "r+b") as f:  # the head of the first record
        f.seek(4096 + 16)
        f.write(b"torn")
    tiers.spawn()
    wait_for(tiers.is_ready, 60)
    rows = tiers.local("/api/v1/journal")["journal"]
    assert any("kv.disk" in str(r) and "not whole" in str(r) for r in rows), rows
    assert kv(tiers)["disk_blocks"] >= max(before["host_blocks"], before["disk_blocks"]) - 1
    again = [ask(tiers, p) for p in PROMPTS]
    assert [t for t, _ in again] == [t for t, _ in first]
    assert sum(cached for _, cached in again) > 4 * 240


def test_wiped_is_gone(tiers, first):
    path = os.path.join(tiers.dir.name, "kv", "main.kv")
    assert tiers.local_request("POST", "/api/v1/instances/main/wipe", {})[0] == 202
    wait_for(lambda: kv(tiers)["host_blocks"] == 0 and os.stat(path).st_size <= 4096, 10)
    again = [ask(tiers, p) for p in PROMPTS[:4]]
    assert [t for t, _ in again] == [t for t, _ in first[:4]]


def test_a_full_disk_is_an_alarm(tiers, first):
    """As long as it is one; requests are answered all the while."""
    def raised():
        ask(tiers, [RNG.randrange(1000, 40000) for _ in range(250)])  # pushes others out
        return any(a["id"] == "kv.disk main" and a["active"]
                   for a in tiers.local("/api/v1/alarms")["alarms"])

    assert not raised()
    pid = tiers.instance()["pid"]
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    wait_for(raised, 30)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    wait_for(lambda: not raised(), 30)


POOLS = ["main/decode", "main/prefill"]


def engines_ready(rack, names):
    return sorted((i["name"], i["state"]) for i in rack.local("/api/v1/instances")["instances"]) \
        == [(n, "ready") for n in names]


def rows(rack):
    return {r["instance"]: r for r in rack.local("/api/v1/kv")["kv"]}


def asked_without_pause(rack, over, out, faults):
    """Until told that it is over: number of the prompt and the text that came."""
    n = 0
    while not over.is_set():
        try:
            out.append((n % 8, ask(rack, PROMPTS[n % 8])[0]))
        except Exception as e:
            faults.append(repr(e))
            return
        n += 3


def test_pools_with_tiers(tiers, first):
    """The prompts of a prefill pool come back from its tiers, the text is that of one engine
    without; tiers go and come as revisions that lose no request; blocks on disk survive."""
    tiers.commit("instances.main.", 90, mode="split")
    wait_for(lambda: engines_ready(tiers, POOLS), 90)
    for _ in range(2):
        assert [ask(tiers, p)[0] for p in PROMPTS] == [t for t, _ in first]
    at = rows(tiers)
    assert sorted(at) == POOLS
    assert at["main/prefill"]["host_hits"] > 0 and at["main/prefill"]["disk_hits"] > 0
    assert at["main/decode"]["host_size"] > 0 and at["main/decode"]["disk_size"] > 0

    over, out, faults = threading.Event(), [], []
    client = threading.Thread(target=asked_without_pause, args=(tiers, over, out, faults))
    client.start()
    try:
        for host, disk in ((0, 0), (16, 128)):
            tiers.commit("instances.main.", 120, kv__host_mib=host, kv__disk_mib=disk)
            wait_for(lambda: engines_ready(tiers, POOLS), 90)
            assert all((r["host_size"] > 0) == (host > 0) for r in rows(tiers).values())
            seen = len(out)
            wait_for(lambda: len(out) > seen + 1 or faults, 60)
    finally:
        over.set()
        client.join(120 * SLOW)
    assert not client.is_alive() and faults == []
    assert out and all(text == first[n][0] for n, text in out)
    wait_for(lambda: all(r["used"] == 0 for r in rows(tiers).values()), 30)

    tiers.p.send_signal(signal.SIGTERM)
    assert tiers.p.wait(30 * SLOW) == 0
    tiers.spawn()
    wait_for(lambda: tiers.is_ready() and engines_ready(tiers, POOLS), 90)
    assert rows(tiers)["main/prefill"]["disk_blocks"] > 0
    assert [ask(tiers, p)[0] for p in PROMPTS] == [t for t, _ in first]
    assert rows(tiers)["main/prefill"]["disk_hits"] > 0
    folder = os.path.join(tiers.dir.name, "kv")
    assert all(stat.S_IMODE(os.stat(os.path.join(folder, f)).st_mode) == 0o600
               for f in os.listdir(folder))
    assert tiers.local_request("POST", "/api/v1/instances/main/wipe", {})[0] == 202
    wait_for(lambda: all(r["host_blocks"] + r["disk_blocks"] == 0
                         for r in rows(tiers).values()), 30)
    assert ask(tiers, PROMPTS[0])[0] == first[0][0]
