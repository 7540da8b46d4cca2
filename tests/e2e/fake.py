"""A daemon of a few lines, for what a real one shows too seldom or too late: answers are
set by the test, requests are recorded, events are pushed."""
import http.server
import json
import queue
import socketserver
import threading


class FakeDaemon:
    """On a UNIX socket, or on TCP when path is None (with TLS when context is given)."""

    def __init__(self, path=None, context=None):
        self.answers = {}   # "GET /path" -> (status, value) or a function of (body) -> that
        self.requests = []  # (method, path with query, body, headers)
        self.streams = {"/api/v1/events": [], "/api/v1/log/stream": []}
        self.lock = threading.Lock()
        self.set("GET /api/v1/status", {"version": "9.9", "ready": True, "instances": []})
        handler = type("Handler", (_Handler,), {"daemon": self})
        if path:
            self.server = _UnixServer(path, handler)
        else:
            self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler)
            self.port = self.server.server_address[1]
        if context:
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def set(self, route, value, status=200):
        self.answers[route] = value if callable(value) else (status, value)

    def made(self, method, path):
        """Bodies of the requests to path (its query apart), oldest first."""
        with self.lock:
            return [r[2] for r in self.requests
                    if r[0] == method and r[1].split("?")[0] == path]

    def push(self, kind, data, path="/api/v1/events"):
        for q in list(self.streams[path]):
            q.put(f"event: {kind}\ndata: {json.dumps(data)}\n\n")

    def stop(self):
        for qs in self.streams.values():
            for q in list(qs):
                q.put(None)
        self.server.shutdown()
        self.server.server_close()


class _UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    request_queue_size = 16

    def get_request(self):
        return self.socket.accept()[0], ("unix", 0)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self):
        n = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(n)
        if self.headers.get("Content-Type") == "application/json" and body:
            body = json.loads(body)
        path = self.path.split("?")[0]
        with self.daemon.lock:
            self.daemon.requests.append((self.command, self.path, body, dict(self.headers)))
        if self.command == "GET" and path in self.daemon.streams:
            return self.follow(path)
        value = self.daemon.answers.get(f"{self.command} {path}")
        if value is None:
            value = 404, {"error": {"message": "there is nothing at this path"}}
        status, value = value(body) if callable(value) else value
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def follow(self, path):
        q = queue.Queue()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.flush()
        self.daemon.streams[path].append(q)
        try:
            while (text := q.get()) is not None:
                self.wfile.write(text.encode())
                self.wfile.flush()
        except OSError:
            pass
        self.daemon.streams[path].remove(q)
        self.close_connection = True

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer
