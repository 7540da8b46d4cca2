#!/usr/bin/env python3
"""The peer as a server: llama-cpp-python's completion stream behind HTTP, one request at a
time, which is how its own server runs them; token-id prompts, SSE out.

usage: peer_server.py MODEL THREADS PORT"""
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import llama_cpp


class Handler(BaseHTTPRequestHandler):
    llm = None
    lock = threading.Lock()

    def log_message(self, *args):
        pass

    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.lock:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for chunk in self.llm.create_completion(prompt=body["prompt"], stream=True,
                                                    max_tokens=body["max_tokens"], temperature=0.0):
                self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
            self.wfile.write(b"data: [DONE]\n\n")


def main():
    Handler.llm = llama_cpp.Llama(sys.argv[1], n_ctx=8192, n_threads=int(sys.argv[2]),
                                  n_threads_batch=int(sys.argv[2]), verbose=False)
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[3])), Handler).serve_forever()


if __name__ == "__main__":
    main()
