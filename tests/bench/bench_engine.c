/* tests/bench/bench_engine.c - our side of `make bench`: forward passes, nothing else.
 *
 *   bench_engine MODEL THREADS [bf16|f16]      then one command a line:
 *     prefill N           a prompt of N tokens in steps of 512; answers seconds
 *     decode B DEPTH N    B sequences at DEPTH, N steps of one token each; answers
 * seconds Answers "ready LOAD_SECONDS WEIGHT_BYTES" first. The peer's side is peer.py. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "daemon/serve/forward.h"
#include "daemon/serve/model.h"
#include "daemon/serve/step.h"
#include "kernels/backend.h"

enum { CHUNK = 512, SEQS = 32, CONTEXT = 4096, BLOCKS = SEQS * 24 + 2 * CONTEXT / 16 };

struct bench {
    struct backend *backend;
    struct forward *forward;
    struct step *step;
    int seqs, depth; /* what the KV arena holds */
};

static void fail(const struct err *e)
{
    fprintf(stderr, "bench_engine: %s\n", e->msg);
    exit(1);
}

/* Blocks of sequence s: its own range of the arena. */
static int block_of(int seqs, int s, int i)
{
    int each = BLOCKS / (seqs > 0 ? seqs : 1);

    return s * each + i;
}

static void add_item(struct bench *b, int seqs, int s, int pos, int n, bool out)
{
    struct step *st = b->step;
    struct step_item *it = &step_items(st)[st->n_items++];
    int blocks = (pos + n + KV_BLOCK_TOK - 1) / KV_BLOCK_TOK;

    *it = (struct step_item){.seq = (uint64_t)s + 1,
                             .first_pos = pos,
                             .n_tok = n,
                             .tok_off = st->n_toks,
                             .parent_off = -1,
                             .block_off = st->n_blocks,
                             .n_block = blocks,
                             .out_from = out ? n - 1 : n,
                             .sample = -1,
                             .next = -1,
                             .n_top = -1};
    for (int i = 0; i < n; i++)
        step_toks(st)[st->n_toks++] = 300 + (int)(((long)pos + i) * 7919 % 20000);
    for (int i = 0; i < blocks; i++)
        step_blocks(st)[st->n_blocks++] = block_of(seqs, s, i);
}

static void drop_logits(void *arg, int first, int n, const float *logits)
{
    (void)arg, (void)first, (void)n, (void)logits;
}

static void run(struct bench *b)
{
    struct err e = {0};

    if (forward_run(b->forward, b->step, drop_logits, NULL, &e) < 0)
        fail(&e);
}

static void fill(struct bench *b, int seqs, int s, int n)
{
    for (int at = 0; at < n; at += CHUNK) {
        int m = n - at < CHUNK ? n - at : CHUNK;

        step_clear(b->step);
        add_item(b, seqs, s, at, m, at + m == n);
        run(b);
    }
}

static double prefill(struct bench *b, int n)
{
    int64_t t = clock_now_us(clock_real());

    fill(b, 1, 0, n);
    b->seqs = 0;
    return (double)(clock_now_us(clock_real()) - t) / 1e6;
}

static double decode(struct bench *b, int seqs, int depth, int n)
{
    int64_t t;

    if (b->seqs != seqs || b->depth != depth)
        for (int s = 0; s < seqs; s++)
            fill(b, seqs, s, depth);
    b->seqs = seqs;
    b->depth = depth;
    t = clock_now_us(clock_real());
    for (int k = 0; k < n; k++) {
        step_clear(b->step);
        for (int s = 0; s < seqs; s++)
            add_item(b, seqs, s, depth + k, 1, true);
        run(b);
    }
    return (double)(clock_now_us(clock_real()) - t) / 1e6;
}

/* The first n CPUs of this process: kernel threads are pinned as the engine pins its own,
 * or two that spin may share a CPU. NULL when there are too few. */
static const int *first_cpus(int n)
{
    static int cpus[CPU_SETSIZE];
    cpu_set_t set;
    int found = 0;

    if (sched_getaffinity(0, sizeof(set), &set) < 0)
        return NULL;
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &set))
            cpus[found++] = i;
    return n <= found ? cpus : NULL;
}

static void open_all(struct bench *b, const char *path, int threads, enum dtype kv)
{
    struct step_caps caps = {.items = SEQS,
                             .toks = CHUNK,
                             .blocks = SEQS * (CONTEXT / KV_BLOCK_TOK),
                             .samples = SEQS,
                             .hist = 1,
                             .biases = 1,
                             .copies = 1,
                             .refs = 1,
                             .outs = SEQS};
    struct backend_cfg bc = {.name = "cpu",
                             .n_threads = threads,
                             .cpus = first_cpus(threads),
                             .spin = true,
                             .isa = "auto"};
    struct forward_cfg fc = {.max_rows = CHUNK,
                             .max_items = SEQS,
                             .max_ctx = CONTEXT,
                             .max_outs = SEQS,
                             .max_copies = 1,
                             .kv_type = kv,
                             .n_blocks = BLOCKS};
    struct model *m;
    struct err e = {0};

    if (model_open(path, &m, &e) < 0)
        fail(&e);
    forward_caps(model_info(m), &fc, &bc.caps);
    if (backend_open(&bc, &b->backend, &e) < 0 ||
        forward_new(b->backend, m, &fc, NULL, NULL, &b->forward, &e) < 0)
        fail(&e);
    model_free(m);
    b->step = step_new(&caps);
}

int main(int argc, char **argv)
{
    struct bench b = {0};
    struct backend_mem mem;
    int64_t t = clock_now_us(clock_real());
    char line[256];
    int x, y, z;

    if (argc < 3) {
        fprintf(stderr, "usage: bench_engine MODEL THREADS [bf16|f16]\n");
        return 2;
    }
    open_all(&b, argv[1], atoi(argv[2]),
             argc > 3 && !strcmp(argv[3], "f16") ? DT_F16 : DT_BF16);
    backend_mem_used(b.backend, &mem);
    printf("ready %.3f %zu\n", (double)(clock_now_us(clock_real()) - t) / 1e6,
           mem.weight_bytes);
    fflush(stdout);
    while (fgets(line, sizeof(line), stdin)) {
        if (sscanf(line, "prefill %d", &x) == 1 && x > 0 && x <= CONTEXT)
            printf("%.6f\n", prefill(&b, x));
        else if (sscanf(line, "decode %d %d %d", &x, &y, &z) == 3 && x > 0 && x <= SEQS &&
                 y > 0 && z > 0 && y + z <= BLOCKS / x * KV_BLOCK_TOK && y + z <= CONTEXT)
            printf("%.6f\n", decode(&b, x, y, z));
        else
            printf("unknown or out of range\n");
        fflush(stdout);
    }
    forward_free(b.forward);
    backend_close(b.backend);
    free(b.step);
    return 0;
}
