#!/usr/bin/env python3
"""The peer's side of `make bench-peer`: llama.cpp through llama-cpp-python's low-level API.

usage: peer.py MODEL THREADS     then one command a line on standard input:
  prefill N           a prompt of N tokens in batches of 512; answers seconds
  decode B DEPTH N    B sequences at DEPTH, N steps of one token each; answers seconds
Forward passes only (no sampling), as in tests/bench/bench_engine.c, so that both sides
time the same work."""
import ctypes
import sys
import time

import llama_cpp as L


class Peer:
    def __init__(self, path, threads):
        self.quiet = L.llama_log_callback(lambda *_: None)  # must outlive the library
        L.llama_log_set(self.quiet, ctypes.c_void_p(0))
        L.llama_backend_init()
        self.model = L.llama_model_load_from_file(path.encode(), L.llama_model_default_params())
        p = L.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch, p.n_seq_max = 32 * 256 + 4096, 2048, 512, 32
        p.n_threads = p.n_threads_batch = threads
        if hasattr(p, "kv_unified"):
            p.kv_unified = True
        self.ctx = L.llama_init_from_model(self.model, p)
        self.mem = L.llama_get_memory(self.ctx)
        self.batch = L.llama_batch_init(2048, 0, 1)
        self.filled = None

    def decode(self, items):
        b = self.batch
        b.n_tokens = len(items)
        for i, (tok, pos, seq, out) in enumerate(items):
            b.token[i], b.pos[i], b.logits[i] = tok, pos, out
            b.n_seq_id[i] = 1
            b.seq_id[i][0] = seq
        if L.llama_decode(self.ctx, b) != 0:
            raise RuntimeError("llama_decode failed")

    def fill(self, seq, n):
        for at in range(0, n, 512):
            m = min(512, n - at)
            self.decode([(300 + (at + i) * 7919 % 20000, at + i, seq, at + i == n - 1)
                         for i in range(m)])

    def prefill(self, n):
        L.llama_memory_clear(self.mem, True)
        self.filled = None
        t = time.perf_counter()
        self.fill(0, n)
        L.llama_get_logits(self.ctx)
        return time.perf_counter() - t

    def steps(self, seqs, depth, n):
        if self.filled != (seqs, depth):
            L.llama_memory_clear(self.mem, True)
            for s in range(seqs):
                self.fill(s, depth)
            self.filled = (seqs, depth)
        t = time.perf_counter()
        for k in range(n):
            self.decode([(300 + (s * 131 + k) % 20000, depth + k, s, True) for s in range(seqs)])
            L.llama_get_logits(self.ctx)
        t = time.perf_counter() - t
        for s in range(seqs):
            L.llama_memory_seq_rm(self.mem, s, depth, -1)
        return t


def main():
    peer = Peer(sys.argv[1], int(sys.argv[2]))
    print("ready", flush=True)
    for line in sys.stdin:
        w = line.split()
        a = [int(x) for x in w[1:]]
        print(peer.prefill(*a) if w[0] == "prefill" else peer.steps(*a), flush=True)


if __name__ == "__main__":
    main()
