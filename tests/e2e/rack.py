"""A real llmrackd under test, and raw HTTP to it. Used by every file here."""
import http.client
import json
import os
import re
import resource
import signal
import socket
import subprocess
import tempfile
import threading
import time

BIN = os.environ.get("LLMRACK_BIN", "build")
MODEL = os.environ.get("DEMO_MODEL", "var/models/SmolLM2-135M-Instruct.Q4_1.gguf")
SLOW = 5 if "san" in BIN else 1  # a sanitizer build takes its time


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout=30):
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def wait_for(what, seconds=20, step=0.02):
    """Until what() is true (returned), or an assertion."""
    end = time.monotonic() + seconds * SLOW
    while True:
        value = what()
        if value:
            return value
        assert time.monotonic() < end, f"not within {seconds} s: {what.__name__}"
        time.sleep(step)


def limit_descriptors(n):
    resource.setrlimit(resource.RLIMIT_NOFILE, (n, n))


def cpu_ticks(pid):
    """What the process has used, all its threads, in hundredths of a second."""
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


class Rack:
    """Start llmrackd on a free port with a state folder of its own."""

    def __init__(self, *options, model=MODEL, ready=True, descriptors=None, program=None):
        self.dir = tempfile.TemporaryDirectory(prefix="llmrack-")
        self.sock = os.path.join(self.dir.name, "llmrackd.sock")
        self.log = open(os.path.join(self.dir.name, "log"), "wb+")
        self.command = [
            *(program or [os.path.join(BIN, "llmrackd")]), "--state-dir", self.dir.name,
            "--listen", "127.0.0.1:0", *(["--model", model] if model else []), *options]
        self.descriptors = descriptors
        self.spawn()
        if ready:
            wait_for(self.is_ready, 60)

    def spawn(self):
        n = self.descriptors
        self.p = subprocess.Popen(self.command, stderr=self.log,
                                  preexec_fn=n and (lambda: limit_descriptors(n)))
        self.port = wait_for(self.listening)["port"]
        self.url = f"http://127.0.0.1:{self.port}"

    def restart(self, seconds=30):
        """End it in order and start it again on the same state; it may not be ready yet."""
        self.p.send_signal(signal.SIGTERM)
        assert self.p.wait(seconds * SLOW) == 0, self.logged()
        self.spawn()

    def listening(self):
        assert self.p.poll() is None, self.logged()
        try:
            return self.local("/api/v1/status")
        except OSError:
            return None

    def is_ready(self):
        assert self.p.poll() is None, self.logged()
        return self.get("/readyz")[0] == 200

    def logged(self):
        with open(self.log.name, "rb") as f:
            return f.read().decode("utf-8", "replace")

    def local_request(self, method, path, body=None):
        """(status, headers, body bytes) over the UNIX socket."""
        c = UnixConnection(self.sock)
        try:
            c.request(method, path, None if body is None else json.dumps(body))
            r = c.getresponse()
            return r.status, r.headers, r.read()
        finally:
            c.close()

    def instance(self):
        """The first instance as status shows it; {} before the first one is there."""
        return next(iter(self.local("/api/v1/status")["instances"]), {})

    def local(self, path):
        """A control route over the UNIX socket, parsed."""
        status, _, body = self.local_request("GET", path)
        assert status == 200, body
        return json.loads(body)

    def commit(self, prefix="", seconds=60, **values):
        """A revision with these values (a__b for a.b below the prefix) that fits, carried
        out; what the check said of it."""
        status, _, said = self.local_request("PATCH", "/api/v1/config/draft", {
            "set": [{"path": prefix + k.replace("__", "."), "value": v}
                    for k, v in values.items()]})
        check = json.loads(said)
        assert status == 200 and check["ok"] and check["fits"], check
        before = self.local("/api/v1/config")["revision"]
        status, _, said = self.local_request("POST", "/api/v1/config/commit", {})
        assert status == 202, said

        def carried_out():
            now = self.local("/api/v1/config")
            return now["revision"] > before and not now["busy"]
        wait_for(carried_out, seconds)
        return check

    def key(self, scopes="infer", **limits):
        """A new API key, as the header that carries it."""
        status, _, body = self.local_request("POST", "/api/v1/keys",
                                             {"name": "test", "scopes": scopes, **limits})
        assert status == 201, body
        return {"Authorization": "Bearer " + json.loads(body)["key"]}

    def request(self, method, path, body=None, headers=None):
        """(status, headers, body bytes) over TCP."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60 * SLOW)
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
        try:
            c.request(method, path, body, headers or {})
            r = c.getresponse()
            return r.status, r.headers, r.read()
        finally:
            c.close()

    def get(self, path, **headers):
        return self.request("GET", path, headers=headers)

    def post(self, path, body, **headers):
        """(status, parsed JSON, headers)."""
        status, h, data = self.request("POST", path, body, headers)
        return status, json.loads(data), h

    def stream(self, path, body):
        """Every data: payload of a streamed answer; all but [DONE] parsed."""
        status, h, data = self.request("POST", path, dict(body, stream=True))
        assert status == 200, data
        assert h["Content-Type"] == "text/event-stream"
        return parse_sse(data)

    def raw(self):
        """A plain TCP connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=30 * SLOW)

    def metrics(self):
        """{name or name{labels without model, engine and instance}: value}, of one instance."""
        status, _, data = self.local_request("GET", "/metrics")
        assert status == 200
        return parse_metrics(data.decode())

    def metric(self, name):
        return self.metrics()[name]

    def children(self):
        with open(f"/proc/{self.p.pid}/task/{self.p.pid}/children") as f:
            return [int(pid) for pid in f.read().split()]

    def stop(self, seconds=30):
        if self.p.poll() is None:
            self.p.send_signal(signal.SIGTERM)
        try:
            return self.p.wait(seconds * SLOW)
        finally:
            if self.p.poll() is None:
                self.p.kill()
                self.p.wait()
            self.log.close()
            self.dir.cleanup()


def parse_sse(data):
    """Payloads of a whole SSE body, with its framing checked."""
    text = data.decode("utf-8")
    assert text.endswith("\n\n")
    out = []
    for frame in text[:-2].split("\n\n"):
        assert frame.startswith("data: ") and "\n" not in frame, frame
        out.append(frame[6:] if frame == "data: [DONE]" else json.loads(frame[6:]))
    return out


def parse_metrics(text):
    out = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        m = re.fullmatch(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)", line)
        assert m, line
        labels = re.findall(r'[a-z_]+="(?:[^"\\]|\\.)*"', m[2] or "")
        if any(x.startswith("model_name=") for x in labels):
            labels = [x for x in labels
                      if not x.startswith(("model_name=", "engine=", "instance="))]
        out[m[1] + ("{" + ",".join(labels) + "}" if labels else "")] = float(m[3])
    return out


def read_answer(sock):
    """One HTTP answer from a raw socket: (status, {header: value}, body)."""
    data = b""
    while b"\r\n\r\n" not in data:
        got = sock.recv(65536)
        assert got, f"closed after {data!r}"
        data += got
    head, body = data.split(b"\r\n\r\n", 1)
    lines = head.decode().split("\r\n")
    headers = {k.lower(): v.strip() for k, v in (x.split(":", 1) for x in lines[1:])}
    status = int(lines[0].split()[1])
    if status == 100:
        return status, headers, body
    want = int(headers.get("content-length", 0))
    while len(body) < want:
        got = sock.recv(65536)
        assert got, "closed inside a body"
        body += got
    return status, headers, body


def post_bytes(path, body, *headers, host="127.0.0.1"):
    if isinstance(body, (dict, list)):
        body = json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}", f"Content-Length: {len(body)}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


class Stream:
    """A streamed answer that a thread reads to its end."""

    def __init__(self, rack, body, path="/v1/completions"):
        self.sock = rack.raw()
        self.sock.sendall(post_bytes(path, dict(body, stream=True), "Connection: close"))
        self.data = b""
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self):
        while True:
            got = self.sock.recv(65536)
            if not got:
                return
            self.data += got

    def begun(self):
        return self.data.count(b"data: ") >= 3

    def frames(self):
        """Of the whole answer: every payload, the connection being closed."""
        self.thread.join(60 * SLOW)
        assert not self.thread.is_alive(), "the stream was not closed"
        self.sock.close()
        head, body = self.data.split(b"\r\n\r\n", 1)
        assert b" 200 " in head.split(b"\r\n")[0]
        if b"chunked" in head.lower():
            body = unchunk(body)
        return parse_sse(body)


def unchunk(body):
    out = b""
    while body:
        size, rest = body.split(b"\r\n", 1)
        n = int(size, 16)
        if n == 0:
            return out
        out += rest[:n]
        body = rest[n + 2:]
    return out
