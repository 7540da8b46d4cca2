"""Revisions on a live daemon: commit, confirm, roll back, restart inside the window, what
touches an engine and what does not, failing models, the rescue revision."""
import hashlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time

import pytest
from rack import BIN, MODEL, SLOW, UnixConnection, parse_sse, wait_for


def config_text(path, **instance):
    options = dict({"model": "demo", "ctx": 512, "max_seqs": 4, "threads": 1}, **instance)
    return ("# made by a test\nlog_level: info\nlisten:\n  address: 127.0.0.1:0\n"
            f"model_roots: [{os.path.dirname(os.path.abspath(MODEL))}, FOLDER]\n"
            f"models:\n  demo:\n    path: {path}\n"
            "instances:\n  main:\n"
            + "".join(f"    {k}: {v}\n" for k, v in options.items()))


class Daemon:
    """llmrackd on a state folder that outlives it."""

    def __init__(self, text):
        self.dir = tempfile.TemporaryDirectory(prefix="llmrack-")
        self.seed = os.path.join(self.dir.name, "seed.yaml")
        self.bad = self.file("bad.gguf", b"GGUF, or so it says")
        with open(self.seed, "w") as f:
            f.write(self.here(text))
        self.start()

    def file(self, name, data):
        path = os.path.join(self.dir.name, name)
        with open(path, "wb") as f:
            f.write(data)
        return path

    def here(self, text):
        return text.replace("FOLDER", self.dir.name)

    def start(self):
        self.log = open(os.path.join(self.dir.name, "log"), "ab")
        self.p = subprocess.Popen([os.path.join(BIN, "llmrackd"), "--state-dir",
                                   self.dir.name, "--config", self.seed], stderr=self.log)
        wait_for(self.listens)

    def kill(self):
        self.p.kill()
        self.p.wait()
        self.log.close()

    def stop(self):
        self.p.send_signal(signal.SIGTERM)
        try:
            assert self.p.wait(30 * SLOW) == 0, self.logged()
        finally:
            if self.p.poll() is None:
                self.kill()
            self.dir.cleanup()

    def logged(self):
        with open(os.path.join(self.dir.name, "log"), encoding="utf-8",
                  errors="replace") as f:
            return f.read()

    def ask(self, method, path, body=None, **headers):
        """(status, parsed answer, headers) over the control socket."""
        c = UnixConnection(os.path.join(self.dir.name, "llmrackd.sock"), 30 * SLOW)
        try:
            c.request(method, "/api/v1" + path, body and json.dumps(body),
                      dict({"Content-Type": "application/json"}, **headers))
            r = c.getresponse()
            data = r.read()
        finally:
            c.close()
        return r.status, json.loads(data), r.headers

    def get(self, path):
        status, answer, _ = self.ask("GET", path)
        assert status == 200, answer
        return answer

    def listens(self):
        assert self.p.poll() is None, self.logged()
        try:
            return self.ask("GET", "/config")[0] == 200
        except OSError:
            return False

    def config(self):
        return self.get("/config")

    def revision(self, n):
        return self.get(f"/config/revisions/{n}")

    def wait_idle(self, seconds=60):
        def idle():
            c = self.config()
            ops = self.get("/operations")["operations"]
            return c["phase"] == "idle" and not c["busy"] and all(
                o["state"] != "running" for o in ops) and c
        return wait_for(idle, seconds)

    def main(self):
        rows = [i for i in self.get("/status")["instances"] if i["name"] == "main"]
        return rows[-1] if rows else {"state": "none", "pid": 0}

    def wait_ready(self):
        wait_for(lambda: self.main()["state"] == "ready", 60)

    def draft(self, text, base=0):
        status, answer, _ = self.ask("PUT", "/config/draft", {"text": self.here(text), "base": base})
        assert status == 200, answer
        return answer

    def set(self, **values):
        """log_level="warn", limits__drain_s=3 .."""
        rows = [{"path": k.replace("__", "."), "value": v} for k, v in values.items()]
        status, answer, _ = self.ask("PATCH", "/config/draft", {"set": rows})
        assert status == 200, answer
        return answer

    def started(self, path, body):
        status, answer, headers = self.ask("POST", path, body)
        assert status == 202, answer
        assert headers["Location"] == f"/api/v1/operations/{answer['operation']}"
        return answer

    def ended(self, answer):
        def over():
            o = self.get(f"/operations/{answer['operation']}")
            return o["state"] != "running" and o
        return wait_for(over, 60)

    def commit(self, **how):
        answer = self.started("/config/commit", how)
        return answer["revision"], self.ended(answer)

    def journal(self, what):
        return [r for r in self.get("/journal?limit=200")["journal"] if r["what"] == what]

    def answer(self, **more):
        """One chat answer over the control socket, streamed."""
        c = UnixConnection(os.path.join(self.dir.name, "llmrackd.sock"), 60 * SLOW)
        body = dict({"messages": [{"role": "user", "content": "Count to fifty."}],
                     "stream": True, "temperature": 0, "max_tokens": 8}, **more)
        c.request("POST", "/v1/chat/completions", json.dumps(body),
                  {"Content-Type": "application/json"})
        r = c.getresponse()
        assert r.status == 200, r.read()
        return c, r


@pytest.fixture(scope="module")
def daemon():
    d = Daemon(config_text(os.path.abspath(MODEL)))
    d.wait_idle()
    d.wait_ready()
    yield d
    assert d.p.poll() is None, d.logged()
    d.stop()


@pytest.fixture(scope="module")
def killed():
    """A daemon that was killed inside the window of revision 2 and started again. The
    first test that uses it starts it, the last one waits for its deadline."""
    d = Daemon(config_text(os.path.abspath(MODEL), executor='"null"'))
    d.wait_idle()
    d.set(limits__drain_s=7)
    d.commit(confirm_s=3)
    d.kill()
    os.unlink(d.seed)  # what is stored is the truth: nobody misses the seed
    d.start()
    yield d
    d.stop()


def test_the_seed_is_asked_for_once(tmp_path):
    """By an empty store, which does not start without it."""
    p = subprocess.run([os.path.join(BIN, "llmrackd"), "--state-dir", str(tmp_path),
                        "--config", str(tmp_path / "none.yaml")],
                       capture_output=True, text=True, timeout=30 * SLOW)
    assert p.returncode == 3 and "none.yaml" in p.stderr, p.stderr


def test_killed_in_the_window(killed):
    c = killed.config()
    assert c["phase"] == "pending" and c["revision"] == 2
    assert 3 < c["pending"]["left_s"] <= 30, "a restart leaves some grace"
    assert "drain_s: 7" in c["text"]
    assert killed.journal("config.resume")


def test_shown(daemon):
    status, c, headers = daemon.ask("GET", "/config")
    assert status == 200
    assert c["revision"] == c["good"] == 1 and c["state"] == "confirmed"
    assert c["hash"] == hashlib.sha256(c["text"].encode()).hexdigest()
    assert headers["ETag"] == f'"1-{c["hash"][:8]}"'
    assert c["pending"] is None and c["draft"] is None
    assert daemon.ask("GET", "/config/draft")[0] == 404
    rows = {p["path"]: p for p in daemon.get("/config/paths")["paths"]}
    assert rows["log_level"]["class"] == "hot"
    assert rows["instances.*.mode"]["class"] == "drain"


def test_faults_have_places(daemon):
    text = daemon.config()["text"].replace("info", "loud") + "no_such_key: 1\n"
    answer = daemon.draft(text)
    assert not answer["ok"]
    places = {(f["line"], f["path"]) for f in answer["faults"]}
    assert (2, "log_level") in places
    assert any("no_such_key" in f["message"] and f["line"] == text.count("\n")
               for f in answer["faults"])
    status, refused, _ = daemon.ask("POST", "/config/commit", {})
    assert status == 400 and "line 2" in refused["error"]["message"]
    assert daemon.ask("DELETE", "/config/draft")[0] == 200
    assert daemon.ask("POST", "/config/commit", {})[0] == 404


@pytest.mark.san
def test_hot_change_touches_no_engine(daemon):
    pid = daemon.main()["pid"]
    check = daemon.set(instances__main__sampling__temperature=0.5, log_level="warn")
    assert check["ok"] and {c["class"] for c in check["changes"]} == {"hot"}
    assert all(a["action"] in ("hot", "keep") for a in check["actions"])
    n, op = daemon.commit(comment="cooler", hypothesis="fewer surprises")
    assert op["state"] == "done", op
    r = daemon.revision(n)
    assert r["state"] == "confirmed" and r["author"] == f"uid {os.getuid()}"
    assert r["comment"] == "cooler" and r["hypothesis"] == "fewer surprises"
    assert "# made by a test" in r["text"]
    assert daemon.main()["pid"] == pid
    assert daemon.config()["draft"] is None
    row = daemon.journal("config.commit")[0]
    assert row["subject"] == str(n) and row["origin"] == "unix"


def test_not_confirmed_is_rolled_back(daemon):
    before = daemon.config()
    daemon.set(limits__drain_s=4)
    n, op = daemon.commit(confirm_s=2)
    assert op["state"] == "done"
    c = daemon.config()
    assert c["phase"] == "pending" and c["revision"] == n
    assert 0 < c["pending"]["left_s"] <= 2
    # one at a time
    daemon.set(limits__drain_s=5)
    status, refused, _ = daemon.ask("POST", "/config/commit", {})
    assert status == 409 and f"revision {n} waits" in refused["error"]["message"]
    assert refused["error"]["code"] == "conflict"
    assert daemon.ask("POST", "/config/rollback", {"revision": 1})[0] == 409
    c = daemon.wait_idle(20)
    assert c["revision"] == before["revision"] and c["text"] == before["text"]
    r = daemon.revision(n)
    assert r["state"] == "rolled back" and "not confirmed in time" in r["why"]
    status, late, _ = daemon.ask("POST", "/config/confirm")
    assert status == 409 and "rolled back" in late["error"]["message"]
    daemon.ask("DELETE", "/config/draft")


def test_confirm_and_again(daemon):
    daemon.set(limits__drain_s=6)
    n, _ = daemon.commit(confirm=True)
    assert 590 < daemon.config()["pending"]["left_s"] <= 600
    for message in ("confirmed", "already confirmed"):
        status, answer, _ = daemon.ask("POST", "/config/confirm")
        assert status == 200 and answer["revision"] == n
        assert message in answer["message"]
    assert daemon.config()["good"] == n


def test_abort(daemon):
    before = daemon.config()
    daemon.set(limits__drain_s=9)
    n, _ = daemon.commit(confirm=True)
    op = daemon.ended(daemon.started("/config/abort", {"reason": "a test"}))
    assert op["state"] == "done", op
    assert daemon.config()["text"] == before["text"]
    assert "a test" in daemon.revision(n)["why"]
    assert daemon.ask("POST", "/config/abort", {})[0] == 409


def test_rollback_is_a_new_revision(daemon):
    now = daemon.config()["revision"]
    answer = daemon.started("/config/rollback", {"revision": 1, "comment": "back"})
    assert daemon.ended(answer)["state"] == "done"
    c = daemon.config()
    assert c["revision"] == answer["revision"] > now
    assert c["text"] == daemon.revision(1)["text"]
    assert daemon.revision(answer["revision"])["comment"] == "as revision 1: back"
    d = daemon.get(f"/config/diff?from={now}&to=running")
    assert "drain_s: 6" in d["text"] and d["to"] == f"revision {c['revision']} (running)"
    change = [x for x in d["changes"] if x["path"] == "limits.drain_s"]
    assert change and change[0]["from"] == "6" and change[0]["class"] == "hot"


def test_two_editors(daemon):
    base = daemon.config()
    mine = base["text"] + "limits:\n  drain_s: 11\n"
    daemon.set(log_level="error")  # the other one is faster
    daemon.commit()
    daemon.draft(mine, base["revision"])
    status, refused, _ = daemon.ask("POST", "/config/commit", {})
    assert status == 409 and refused["error"]["param"] == "base"
    assert "log_level: info -> error" in refused["error"]["message"]
    assert "+log_level: error" in refused["missed"]["text"]
    n, op = daemon.commit(rebase=True)
    assert op["state"] == "done"
    text = daemon.revision(n)["text"]
    assert "log_level: error" in text and "drain_s: 11" in text
    # both changed the same
    daemon.draft(base["text"].replace("info", "debug"), base["revision"])
    status, refused, _ = daemon.ask("POST", "/config/commit", {"rebase": True})
    assert status == 409 and "log_level" in refused["error"]["message"]
    # what was read is no longer what runs
    tag = f'"{base["revision"]}-{base["hash"][:8]}"'
    status, refused, _ = daemon.ask("PUT", "/config/draft", {"text": mine},
                                    **{"If-Match": tag})
    assert status == 412 and refused["error"]["code"] == "changed"
    assert daemon.ask("DELETE", "/config/draft", **{"If-Match": "*"})[0] == 200


def test_another_mode_loses_no_stream(daemon):
    pid = daemon.main()["pid"]
    c, r = daemon.answer(max_tokens=200)
    got = []
    reader = threading.Thread(target=lambda: got.append(r.read()))
    reader.start()
    check = daemon.set(instances__main__mode="colocated")
    assert [a["action"] for a in check["actions"]] == ["replace"], check
    n, op = daemon.commit()
    assert op["state"] == "done", op
    assert daemon.main()["pid"] != pid
    reader.join(60 * SLOW)
    c.close()
    frames = parse_sse(got[0])
    assert frames[-1] == "[DONE]" and frames[-2]["choices"][0]["finish_reason"] in (
        "length", "stop")
    assert daemon.revision(n)["state"] == "confirmed"


def test_guard(daemon):
    """What a guarded revision breaks takes it back; what it does not is confirmed."""
    daemon.set(guard__min_requests=8, instances__main__slo__ttft_ms=3600000)
    daemon.commit()
    before = daemon.config()

    def ask(n):
        time.sleep(1.1)  # figures are by whole seconds
        for _ in range(n):
            c, r = daemon.answer(max_tokens=2)
            r.read()
            c.close()

    ask(12)
    daemon.set(limits__drain_s=12)
    n, _ = daemon.commit(guard="auto", confirm_s=8)
    assert daemon.config()["pending"]["guard"] == "auto"
    ask(12)
    assert daemon.wait_idle()["revision"] == n, str(daemon.revision(n))
    assert "by guard" in daemon.revision(n)["why"]
    ask(12)
    daemon.set(instances__main__slo__ttft_ms=0.001)  # nobody meets that
    n, _ = daemon.commit(guard="on")
    wait_for(lambda: "of 8 requests" in daemon.config()["pending"]["verdict"])
    ask(12)
    c = daemon.wait_idle()
    assert c["revision"] == n - 1 and c["revision"] > before["revision"]
    r = daemon.revision(n)
    assert r["state"] == "rolled back" and "SLO attainment fell from 100.00 % to 0.00 %" in r["why"]
    assert r["before"]["met"] >= 10 and r["after"]["met"] == 0 and r["after"]["slo"]
    assert "fell from" in daemon.journal("config.rollback")[0]["detail"]
    assert daemon.journal("config.rollback")[0]["actor"] == "guard"


@pytest.mark.san
def test_failing_model_restores_the_former(daemon):
    before = daemon.config()
    daemon.set(models__demo__path="/nonexistent/model.gguf")
    assert daemon.ask("POST", "/config/commit", {})[0] in (403, 404)
    daemon.set(models__demo__path=daemon.bad)
    n, op = daemon.commit(confirm=True)
    assert op["state"] == "failed" and "bad.gguf" in op["message"]
    c = daemon.wait_idle()
    assert c["text"] == before["text"] and not c["rescue"]
    r = daemon.revision(n)
    assert r["state"] == "failed" and "bad.gguf" in r["why"]
    assert c["draft"], "what was meant can be mended"
    daemon.ask("DELETE", "/config/draft")
    c, r = daemon.answer()
    assert parse_sse(r.read())[-1] == "[DONE]"
    c.close()


@pytest.mark.san
def test_rescue(daemon):
    """What was good cannot be applied any more: nothing runs, but the operator gets in."""
    copy = os.path.join(daemon.dir.name, "copy.gguf")
    shutil.copy(MODEL, copy)
    daemon.set(models__demo__path=copy)
    daemon.commit()
    daemon.set(models__demo__path=os.path.abspath(MODEL))
    daemon.commit(confirm=True)
    os.unlink(copy)
    daemon.ended(daemon.started("/config/abort", {}))
    c = daemon.wait_idle()
    assert c["rescue"], c
    assert not daemon.get("/status")["instances"] or daemon.main()["state"] != "ready"
    assert [a["severity"] for a in daemon.get("/alarms")["alarms"]
            if a["id"] == "config.rescue" and a["active"]] == ["critical"]
    daemon.draft(config_text(os.path.abspath(MODEL)))
    _, op = daemon.commit()
    assert op["state"] == "done", op
    daemon.wait_ready()
    assert not daemon.config()["rescue"]
    assert not [a for a in daemon.get("/alarms")["alarms"]
                if a["id"] == "config.rescue" and a["active"]]


def test_killed_is_rolled_back_in_the_end(killed):
    c = killed.wait_idle(40)
    assert c["revision"] == 1 and "drain_s: 7" not in c["text"]
    r = killed.revision(2)
    assert r["state"] == "rolled back" and "not confirmed in time" in r["why"]
    assert killed.get("/journal/verify")["whole"]
