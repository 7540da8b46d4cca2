#!/usr/bin/env python3
"""Kills llmrackd with SIGKILL, again and again, and looks whether anything is lost.

    crash.py --bin build/llmrackd-faults --model M [--kills 200] [--seed 1]

Each round makes changes over the control socket until the daemon dies: at a named step of
a commit, a confirmation, a roll-back or a restore (LLMRACK_CRASH_AT, compiled in by
-DLLMRACK_FAULTS), or at a random moment. Then it is started again, perhaps killed once
more on its way back, perhaps "after a reboot" (LLMRACK_BOOT_ID), and must settle:

 - what runs is the text from before the round or the one of the round, whole;
 - what was acknowledged as confirmed runs; what was not confirmed is rolled back, in time;
 - half-applied revisions are never promoted;
 - every journal row that was seen, or that an answer stands for, is there, and the chain
   verifies; every revision's text fits its hash.

The last line is `kills: N, lost: 0`; the exit code 1 when anything was lost."""
import argparse
import hashlib
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

DEADLINE_S = 30   # of everything that is waited for
WINDOW_S = 1      # of commits that wait for a confirmation
GRACE_S = 1       # after a restart inside a window, in a daemon built for this test
SLACK_S = 5       # a deadline was kept when it was kept to within this
COMMIT_STEPS = ["COMMIT_STORED", "INTENT_STORED", "APPLIED"]
REVERT_STEPS = ["REVERT_STORED", "REVERT_APPLIED", "REVERT_DONE"]
RESTORE_STEPS = ["RESTORE_COPIED", "RESTORE_STAGED"]
SWAP_STEPS = ["RESTORE_MOVED", "RESTORE_SWAPPED"]  # at the start after a restore
# What a round does, and the named steps that it passes.
ROUNDS = {
    "plain": COMMIT_STEPS + ["CONFIRM_STORED"],
    "confirm": COMMIT_STEPS + ["PENDING_STORED", "CONFIRM_BEFORE", "CONFIRM_STORED"],
    "expire": ["PENDING_STORED"] + REVERT_STEPS,
    "abort": REVERT_STEPS,
    "fail": ["INTENT_STORED"] + REVERT_STEPS,
    "rollback": COMMIT_STEPS + ["CONFIRM_STORED"],
    "restore": RESTORE_STEPS + SWAP_STEPS,
}
NEVER_NEW = {"expire", "abort", "fail"}


class Dead(Exception):
    """The daemon went away in the middle of a request."""


class Lost(Exception):
    """What must not happen."""


class Unix(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=DEADLINE_S)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Daemon:
    """One state folder and the daemon that runs on it."""

    def __init__(self, binary, model):
        self.tmp = tempfile.TemporaryDirectory(prefix="llmrack-crash-")
        self.dir = self.tmp.name
        self.binary, self.model, self.boot, self.p = binary, model, 1, None
        self.log = open(os.path.join(self.dir, "log"), "wb")
        self.seed = os.path.join(self.dir, "seed.yaml")
        self.bad = os.path.join(self.dir, "bad.gguf")
        for path, text in ((self.seed, self.text(0)), (self.bad, "GGUF, or so it says")):
            with open(path, "w") as f:
                f.write(text)

    def text(self, n, path=None):
        """Differs by a hot value, now and then by one that needs another engine."""
        return (f"# {n}\nlog_level: warn\nlisten:\n  address: \"\"\nlimits:\n"
                f"  drain_s: {n % 50}\n"
                f"model_roots: [{os.path.dirname(self.model)}, {self.dir}]\nmodels:\n  m: {{path: {path or self.model}}}\n"
                f"instances:\n  main: {{model: m, executor: \"null\", threads: 1, ctx: 64, "
                f"max_seqs: {2 + n // 10 % 2}}}\n")

    def start(self, crash_at=None):
        env = dict(os.environ, LLMRACK_BOOT_ID=f"boot-{self.boot}")
        env.pop("LLMRACK_CRASH_AT", None)
        if crash_at:
            env["LLMRACK_CRASH_AT"] = crash_at
        self.p = subprocess.Popen(
            [self.binary, "--state-dir", self.dir, "--config", self.seed], env=env,
            stdout=subprocess.DEVNULL, stderr=self.log)

    def ask(self, method, path, body=None):
        """(status, parsed answer), or Dead."""
        c = Unix(os.path.join(self.dir, "llmrackd.sock"))
        try:
            raw = isinstance(body, bytes)
            c.request(method, "/api/v1" + path,
                      body if raw or body is None else json.dumps(body),
                      {"Content-Type": "application/octet-stream" if raw
                       else "application/json"})
            r = c.getresponse()
            data = r.read()
            kind = r.headers.get("Content-Type", "")
            return r.status, json.loads(data) if "json" in kind else data
        except (OSError, http.client.HTTPException) as e:
            raise Dead(str(e)) from e
        finally:
            c.close()

    def wait(self, what, seconds=DEADLINE_S):
        """Until what() is true; Dead when the daemon ended meanwhile."""
        end = time.monotonic() + seconds
        while True:
            try:
                value = what()
                if value:
                    return value
            except Dead:
                pass
            if self.p.poll() is not None:
                raise Dead("it ended")
            if time.monotonic() > end:
                raise Lost(f"not within {seconds} s: {what.__name__}")
            time.sleep(0.01)

    def up(self):
        return self.ask("GET", "/config")[0] == 200

    def config(self):
        status, answer = self.ask("GET", "/config")
        if status != 200:
            raise Lost(f"the configuration cannot be read: {answer}")
        return answer

    def settled(self):
        c = self.config()
        ops = self.ask("GET", "/operations")[1]["operations"]
        idle = c["phase"] == "idle" and not c["busy"] and not any(o["state"] == "running" for o in ops)
        return c if idle and self.ask("GET", "/config/revisions?limit=1")[0] == 200 else None

    def kill(self):
        self.p.send_signal(signal.SIGKILL)

    def reap(self):
        try:
            code = self.p.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            self.p.wait()
            raise Lost("it did not die")
        if code != -signal.SIGKILL:
            raise Lost(f"it ended by itself with {code}, see {self.log.name}")

    def close(self):
        if self.p and self.p.poll() is None:
            self.kill()
            self.p.wait()
        self.log.close()
        self.tmp.cleanup()


class Journal:
    """Rows that were seen, and what answers stand for."""

    def __init__(self):
        self.rows, self.acked = {}, []

    def look(self, d):
        for r in d.ask("GET", "/journal?limit=100")[1]["journal"]:
            self.rows[r["id"]] = r["hash"]

    def ack(self, what, subject):
        self.acked.append((what, str(subject)))

    def check(self, d):
        status, answer = d.ask("GET", "/journal/verify")
        if status != 200 or not answer["whole"]:
            raise Lost(f"the journal's chain is broken: {answer}")
        there, before = {}, 0
        while True:
            page = d.ask("GET", f"/journal?limit=500&before={before}")[1]["journal"]
            if not page:
                break
            for r in page:
                there[r["id"]] = r
            before = page[-1]["id"]
        for i, h in self.rows.items():
            if i not in there or there[i]["hash"] != h:
                raise Lost(f"journal row {i} was seen and is not there")
        found = {(r["what"], r["subject"]) for r in there.values() if r["result"] == "ok"}
        for a in self.acked:
            if a not in found:
                raise Lost(f"{a} was acknowledged and is not in the journal")

    def restart(self):
        """Another store: what it does not know is no loss."""
        self.__init__()


class Crash:
    def __init__(self, binary, model, seed):
        self.d, self.rng = Daemon(binary, model), random.Random(seed)
        self.kills, self.lost, self.n = 0, 0, 0
        self.journal = Journal()
        self.passed = set()

    # ---- what a round does ----

    def commit(self, text, **how):
        d = self.d
        if d.ask("PUT", "/config/draft", {"text": text})[0] != 200:
            raise Lost("the draft was refused")
        status, answer = d.ask("POST", "/config/commit", how)
        if status != 202:
            raise Lost(f"the commit was refused: {answer}")
        self.journal.ack("config.commit", answer["revision"])
        return answer["operation"]

    def ended(self, operation):
        def over():
            status, o = self.d.ask("GET", f"/operations/{operation}")
            return status == 200 and o["state"] != "running" and o
        return self.d.wait(over)

    def run(self, kind, new):
        """Until it is done or Dead; what was acknowledged stands in self.sure."""
        d = self.d
        if kind == "plain":
            if self.ended(self.commit(new, comment="crash test"))["state"] == "done":
                self.sure = new
        elif kind == "confirm":
            self.ended(self.commit(new, confirm_s=60))
            self.tried = True
            status, answer = d.ask("POST", "/config/confirm")
            if status == 200:
                self.sure = new
                self.journal.ack("config.confirm", answer["revision"])
        elif kind == "expire":
            self.ended(self.commit(new, confirm_s=WINDOW_S))
            d.wait(d.settled)
        elif kind == "abort":
            self.ended(self.commit(new, confirm_s=60))
            status, answer = d.ask("POST", "/config/abort", {"reason": "crash test"})
            if status == 202:
                self.journal.ack("config.rollback", answer["revision"])
                self.ended(answer["operation"])
        elif kind == "fail":
            self.ended(self.commit(new))
        elif kind == "rollback":
            status, answer = d.ask("POST", "/config/rollback", {})
            if status == 202:
                self.journal.ack("config.rollback", answer["revision"])
                if self.ended(answer["operation"])["state"] == "done":
                    self.sure = new
        elif kind == "restore":
            status, answer = d.ask("POST", "/restore", self.backup)
            if status != 202:
                raise Lost(f"the restore was refused: {answer}")
            self.ended(answer["operation"])
            return  # the journal is that of the backup from here
        self.journal.look(d)

    def aim(self, kind, old):
        """The text that the round would bring."""
        if kind == "fail":
            return self.d.text(self.n, self.d.bad)
        if kind == "rollback":
            v = self.d.ask("GET", "/config/revisions?limit=500")[1]["revisions"]
            running = self.d.config()["revision"]
            for r in v:
                if r["state"] == "superseded" and r["revision"] < running:
                    return self.d.ask("GET", f"/config/revisions/{r['revision']}")[1]["text"]
            return old
        if kind == "restore":
            self.backup = self.d.ask("GET", "/backup")[1]
            return old  # the same text, in the store of now
        return self.d.text(self.n)

    # ---- rounds ----

    def round(self, kind, step):
        self.n += 1
        d, self.sure, self.tried = self.d, None, False
        swap = step in SWAP_STEPS
        d.start(None if swap else step)  # a step of the way back may end it at once
        try:
            d.wait(d.up)
            old = d.wait(d.settled)["text"]
            new = self.aim(kind, old)
            self.journal.look(d)
        except Dead:
            d.reap()
            self.kills += 1
            self.recover("start", self.now, self.now)
            return
        timer = None
        if step is None:
            timer = threading.Timer(self.rng.uniform(0, 0.4), d.kill)
            timer.start()
        try:
            self.run(kind, new)
            d.kill()  # the step was not on its way, or the moment came too late
        except Dead:
            self.passed.add(step)
        if timer:
            timer.join()
        d.reap()
        self.kills += 1
        if swap:
            d.start(step)
            d.reap()
            self.passed.add(step)
            self.kills += 1
        self.recover(kind, old, new)

    def recover(self, kind, old, new):
        d = self.d
        rebooted = self.rng.random() < 0.25
        d.boot += rebooted
        if self.rng.random() < 0.2:  # once more, on the way back
            d.start(self.rng.choice(REVERT_STEPS))
            try:
                d.wait(d.up)
                time.sleep(self.rng.uniform(0, 0.3))
                d.kill()
            except Dead:
                pass
            d.reap()
            self.kills += 1
        d.start()
        d.wait(d.up)
        c = d.config()
        if c["phase"] == "pending" and rebooted:
            raise Lost("it is still pending after a reboot")
        left = c["pending"]["left_s"] if c["pending"] else 0
        if kind == "expire" and left > WINDOW_S + GRACE_S:
            raise Lost("its deadline was put off")
        if c["pending"] and kind == "confirm" and not self.sure:
            d.ask("POST", "/config/abort")  # not for a minute
            left = 0
        c = d.wait(d.settled, left + SLACK_S + DEADLINE_S / 2)
        self.check(kind, c, old, new)
        self.now = c["text"]
        d.kill()
        d.reap()
        self.kills += 1

    def check(self, kind, c, old, new):
        text = c["text"]
        if hashlib.sha256(text.encode()).hexdigest() != c["hash"]:
            raise Lost("the running text does not fit its hash")
        if c["rescue"]:
            raise Lost("it went to the rescue revision")
        if text not in (old, new):
            raise Lost("what runs is neither the old nor the new text")
        if self.sure is not None and text != self.sure:
            raise Lost("what was acknowledged does not run")
        if kind in NEVER_NEW and text != old:
            raise Lost("what was never confirmed runs")
        if kind == "confirm" and not self.tried and text != old:
            raise Lost("nobody confirmed it and it runs")
        for r in self.d.ask("GET", "/config/revisions?limit=10")[1]["revisions"]:
            status, whole = self.d.ask("GET", f"/config/revisions/{r['revision']}")
            if status != 200 or hashlib.sha256(
                    whole["text"].encode()).hexdigest() != r["hash"]:
                raise Lost(f"revision {r['revision']} is not whole")
            if r["state"] in ("applying", "pending", "candidate", "checked"):
                raise Lost(f"revision {r['revision']} is left {r['state']}")
        self.journal.check(self.d)
        self.journal.look(self.d)

    def first(self):
        """A store that is killed while it is being made."""
        self.d.start()
        time.sleep(self.rng.uniform(0, 0.1))
        self.d.kill()
        self.d.reap()
        self.kills += 1
        self.d.start()
        self.d.wait(self.d.up)
        c = self.d.wait(self.d.settled)
        if c["revision"] != 1:
            raise Lost("the seed is not revision 1")
        self.now = c["text"]
        served = self.d.ask("GET", "/openapi.json")[1]["paths"]
        self.kinds = [k for k in ROUNDS if k != "restore" or "/api/v1/restore" in served]
        self.d.kill()
        self.d.reap()
        self.kills += 1


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--bin", default="build/llmrackd-faults")
    a.add_argument("--model", required=True)
    a.add_argument("--kills", type=int, default=200)
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("-v", action="store_true")
    a = a.parse_args()
    x = Crash(os.path.abspath(a.bin), os.path.abspath(a.model), a.seed)
    try:
        x.first()
        todo = []
        while x.kills < a.kills:
            if not todo:  # every step of every kind, and as many random moments
                todo = [(k, s) for k in x.kinds for s in ROUNDS[k]]
                todo += [(x.rng.choice(x.kinds), None) for _ in todo]
                x.rng.shuffle(todo)
            kind, step = todo.pop()
            try:
                x.round(kind, step)
            except (Lost, Dead) as e:
                x.lost += 1
                print(f"LOST in round {x.n} ({kind}, {step or 'a random moment'}): {e}",
                      flush=True)
                break
            if a.v:
                print(f"{x.kills} {kind} {step}", flush=True)
    except (Lost, Dead) as e:
        x.lost += 1
        print(f"LOST: {e}")
    finally:
        if x.lost:
            with open(os.path.join(x.d.dir, "log"), "rb") as f:
                sys.stdout.write(f.read()[-4000:].decode("utf-8", "replace"))
        x.d.close()
    missed = {s for v in ROUNDS.values() for s in v} - x.passed
    if missed and a.kills >= 200 and not x.lost:
        print("steps at which it never died:", " ".join(sorted(missed)))
        x.lost += 1
    print(f"kills: {x.kills}, lost: {x.lost}")
    return 1 if x.lost else 0


if __name__ == "__main__":
    sys.exit(main())
