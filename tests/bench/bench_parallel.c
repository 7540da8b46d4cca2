/* bench_parallel MODEL FILE [PART]: what parallel layouts cost and carry; one JSON
 * object.
 *
 * MODEL is the mixture of experts of moe_shape.py. Over its layouts of 1 to 8 ranks on
 * this machine's cores: bytes against the formulas, the collectives' share of a step, the
 * bubble of a pipeline, tokens a second where ranks have cores; transfers that overlap
 * with experts, and all-to-alls in two levels, over emulated links; the shape's speed
 * beside the peer's figures. Every key has value, goal and ok. Exits 1 where one is
 * missed. Times mean something on a quiet machine only. */
#include <poll.h>
#include <sched.h>

#include "daemon/serve/executor.h"
#include "daemon/serve/links.h"
#include "daemon/serve/model.h"
#include "daemon/serve/ranks.h"
#include "daemon/serve/step.h"
#include "tests/bench/bench_hierarchy.h"
#include "topo/formula.h"

enum { ROWS = 512, SEQS = 32, CTX = 1024, PER_SEQ = CTX / KV_BLOCK_TOK, CORES = 2 };

static const struct step_caps caps = {.items = SEQS,
                                      .toks = ROWS,
                                      .blocks = SEQS * PER_SEQ,
                                      .samples = SEQS,
                                      .hist = 1,
                                      .biases = 1,
                                      .copies = 1,
                                      .refs = 1,
                                      .outs = SEQS};

struct run {
    struct executor *x;
    struct step *st;
    int n_ranks, n_seqs;
};

struct setup {
    const char *layout;
    int threads, micro, chunks;
    const struct rank_links *links;
    bool even; /* pairs go to all experts alike, whatever the router says */
};

/* ---- the engine's executor ---- */

static int cpus[CORES];
static const char *model_path;
static struct model_info shape;

/* What random weights choose differs from layer to layer, so that now one rank has more
 * to fetch and now another: the sum of the longer ones is in no rank's count. */
static void spread_evenly(void *arg, const struct forward_choice *c)
{
    (void)arg;
    for (int i = 0; i < c->n_row * c->top_k; i++)
        c->ids[i] = i % c->n_expert;
}

static void open_run(struct run *r, const struct setup *s)
{
    struct ranks_cfg c = {
        .backend = {.name = "cpu",
                    .n_threads = s->threads,
                    .cpus = s->threads <= CORES ? cpus : NULL,
                    .spin = s->threads <= CORES},
        .forward = {.max_rows = ROWS,
                    .max_items = SEQS,
                    .max_ctx = CTX,
                    .max_outs = SEQS,
                    .kv_type = DT_COUNT,
                    .n_blocks = SEQS * PER_SEQ,
                    .part = {.micro = s->micro, .chunks = s->chunks},
                    .watch = s->even ? spread_evenly : NULL},
        .caps = caps,
        .depth = 1,
        .links = s->links,
    };
    struct model *m;
    struct err e;

    if (layout_parse(s->layout, &c.layout, &e) < 0 || model_open(model_path, &m, &e) < 0)
        die(&e);
    shape = *model_info(m);
    if (ranks_new(m, &c, NULL, NULL, &r->x, &e) < 0)
        die(&e);
    model_free(m);
    r->st = step_new(&caps);
    r->n_ranks = ranks_count(r->x);
}

static void close_run(struct run *r)
{
    executor_free(r->x);
    free(r->st);
}

static void add(struct run *r, int seq, int pos, int n, bool out)
{
    struct step *st = r->st;
    int blocks = (pos + n + KV_BLOCK_TOK - 1) / KV_BLOCK_TOK;

    step_items(st)[st->n_items++] = (struct step_item){.seq = (uint64_t)seq + 1,
                                                       .first_pos = pos,
                                                       .n_tok = n,
                                                       .tok_off = st->n_toks,
                                                       .parent_off = -1,
                                                       .block_off = st->n_blocks,
                                                       .n_block = blocks,
                                                       .out_from = out ? n - 1 : n,
                                                       .sample = out ? st->n_samples : -1,
                                                       .next = -1,
                                                       .n_top = -1};
    for (int i = 0; i < n; i++)
        step_toks(st)[st->n_toks++] =
            300 + (int)(((long)pos + i + 31L * seq) * 7919 % 20000);
    for (int i = 0; i < blocks; i++)
        step_blocks(st)[st->n_blocks++] = seq * PER_SEQ + i;
    if (out)
        step_samples(st)[st->n_samples++] =
            (struct step_sample){.top_p = 1, .repetition = 1};
}

static double step(struct run *r)
{
    struct step_done d;
    struct err e;
    uint64_t ticket;
    double t = now_s();

    if (executor_submit(r->x, r->st, &ticket, &e) < 0)
        die(&e);
    while (!executor_poll(r->x, &d)) {
        struct pollfd p = {r->x->fd, POLLIN, 0};
        poll(&p, 1, -1);
    }
    if (d.error)
        die(d.error);
    step_clear(r->st);
    return now_s() - t;
}

static double prefill(struct run *r, int n, bool out)
{
    add(r, 0, 0, n, out);
    return step(r);
}

/* Seconds of n steps of one token for each sequence. */
static double decode(struct run *r, int seqs, int n)
{
    double t = 0;

    for (int i = 0; i < n; i++) {
        for (int s = 0; s < seqs; s++)
            add(r, s, 16 + i, 1, true);
        t += step(r);
    }
    return t;
}

/* ---- counters ---- */

struct sums {
    double us, wait_us, busy_us, link_us; /* of all ranks; link: the most of one */
    double other_link_us;                 /* of calls that are no all-to-all */
    double bytes[MESH_DIM_COUNT][COMM_CALL_COUNT];
};

static void count(const struct run *r, struct sums *ret)
{
    struct rank_status s;

    memset(ret, 0, sizeof(*ret));
    for (int i = 0; i < r->n_ranks; i++) {
        double link = 0, other = 0;

        ranks_status(r->x, i, &s);
        ret->busy_us += (double)s.busy_us;
        ret->wait_us += (double)s.wait_us;
        for (int d = 0; d < MESH_DIM_COUNT; d++)
            for (int c = 0; c < COMM_CALL_COUNT; c++) {
                ret->us += (double)s.counts[d][c].us;
                ret->bytes[d][c] += (double)s.counts[d][c].bytes;
                *(c == COMM_ALL_TO_ALL ? &link : &other) +=
                    (double)s.counts[d][c].link_us;
            }
        ret->link_us = fmax(ret->link_us, link);
        ret->other_link_us = fmax(ret->other_link_us, other);
    }
}

/* ---- layouts ---- */

enum { PROMPT = 256 };

static double row_bytes(double rows) { return rows * shape.n_embd * 4; }

/* A prompt with one output row; after the last layer's attention only that row goes on.
 */
static void bytes_tp(struct out *o, const struct sums *n, int p)
{
    double want =
        (1 + 2 * (shape.n_layer - 1)) * formula_all_reduce(p, row_bytes(PROMPT)) +
        2 * formula_all_reduce(p, row_bytes(1));
    char key[64];

    snprintf(key, sizeof(key), "bytes_tp%d", p);
    put(o, key, n->bytes[MESH_TP][COMM_ALL_REDUCE] / p / want, 0.999, 1.001,
        "all-reduces over 2(p-1)/p S: 1.0");
}

static void bytes_ep(struct out *o, const struct sums *n, int p)
{
    double pairs =
        (double)PROMPT * shape.moe.top_k * (shape.n_layer - 1) + shape.moe.top_k;
    double want = formula_ep_remote(row_bytes(pairs) * 2 + pairs * 4, p);
    char key[64];

    snprintf(key, sizeof(key), "bytes_ep%d", p);
    put(o, key, n->bytes[MESH_EP][COMM_ALL_TO_ALL] / want, 0.9, 1.1,
        "there and back over an even spread: 0.9 to 1.1");
}

static void layouts(struct out *o)
{
    static const struct {
        const char *layout;
        int tp, ep, pp;
    } all[] = {{"tp2", 2, 1, 1},     {"tp4", 4, 1, 1},     {"tp8", 8, 1, 1},
               {"tp2 ep2", 2, 2, 1}, {"tp4 ep4", 4, 4, 1}, {"tp8 ep8", 8, 8, 1},
               {"pp2", 1, 1, 2},     {"pp4", 1, 1, 4},     {"pp8", 1, 1, 8}};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        int p = all[i].tp * all[i].pp;
        const struct setup s = {all[i].layout, p, 0, 0, NULL, false};
        struct sums n;
        struct run r;
        char key[64];

        open_run(&r, &s);
        prefill(&r, PROMPT, true);
        count(&r, &n);
        close_run(&r);
        if (all[i].ep > 1)
            bytes_ep(o, &n, p);
        else if (all[i].tp > 1)
            bytes_tp(o, &n, p);
        snprintf(key, sizeof(key), "bytes_pp%d", p);
        if (all[i].pp > 1)
            put(o, key, n.bytes[MESH_PP][COMM_RECV] / (row_bytes(PROMPT) * (p - 1)),
                0.999, 1.001, "stage to stage over S a border: 1.0");
        snprintf(key, sizeof(key), "collective_share_%s%d",
                 all[i].ep > 1   ? "ep"
                 : all[i].tp > 1 ? "tp"
                                 : "pp",
                 p);
        put(o, key, n.us / n.busy_us, 0, 1,
            p <= CORES ? "reported" : "reported; ranks share cores");
    }
}

static void speeds(struct out *o)
{
    static const char *const all[] = {"tp1", "tp2", "tp2 ep2", "pp2"};

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        const struct setup s = {all[i], CORES, 0, 0, NULL, false};
        double t[2][5];
        struct run r;
        char key[64];

        open_run(&r, &s);
        prefill(&r, PROMPT, true);
        for (int k = 0; k < 5; k++) {
            t[0][k] = ROWS / prefill(&r, ROWS, true);
            t[1][k] = 16 / decode(&r, 1, 16);
        }
        close_run(&r);
        for (int k = 0; k < 2; k++) {
            snprintf(key, sizeof(key), "%s_tok_s_%s", k ? "decode" : "prefill", all[i]);
            for (char *c = key; *c; c++)
                *c = *c == ' ' ? '_' : *c;
            put(o, key, median(t[k], 5), 0, 1e9, "reported");
        }
    }
}

/* Two stages on two cores: what of both is not work, beside (p-1)/(m+p-1). */
static void bubble(struct out *o)
{
    static const int micros[] = {1, 2, 4, 8};

    for (size_t i = 0; i < sizeof(micros) / sizeof(micros[0]); i++) {
        const struct setup s = {"pp2", CORES, micros[i], 0, NULL, false};
        double share[5], want = 1.0 / (micros[i] + 1);
        char key[64], goal[64];
        struct run r;

        open_run(&r, &s);
        prefill(&r, ROWS, false);
        for (int k = 0; k < 5; k++) {
            struct sums a, b;
            count(&r, &a);
            double wall = prefill(&r, ROWS, false) * 1e6;
            count(&r, &b);
            share[k] = 1 - (b.busy_us - a.busy_us - b.wait_us + a.wait_us) / (2 * wall);
        }
        close_run(&r);
        snprintf(key, sizeof(key), "bubble_pp2_m%d", micros[i]);
        snprintf(goal, sizeof(goal), "(p-1)/(m+p-1) = %.3f, within 0.1", want);
        put(o, key, median(share, 5), want - 0.1, want + 0.1, goal);
    }
}

/* Links between all of n ranks that carry so many bytes in so many seconds. */
static struct rank_links even_links(int n, double seconds, double bytes)
{
    struct rank_links l = {.n = n};

    l.path = xcalloc((size_t)n * (size_t)n, sizeof(*l.path));
    for (int i = 0; i < n * n; i++)
        if (i / n != i % n)
            l.path[i] = (struct comm_link){1e-6, bytes / seconds};
    return l;
}

enum { BUBBLE_ROWS = 128, BUBBLE_TRIES = 3 };

/* More stages than cores cannot work at once, but their links can: with slow ones the
 * time of a stage is that of its link, and p stages are a pipeline of p - 1 links. What
 * of the step's time a link has nothing to carry, beside (p-2)/(m+p-2). */
static void bubble_of_links(struct out *o, int p, int m)
{
    const double carry = 0.5, want = (p - 2.0) / (m + p - 2);
    struct rank_links l = even_links(p, carry, row_bytes(BUBBLE_ROWS));
    char layout[16], key[64], goal[64];
    const struct setup s = {layout, p, m, 0, &l, false};
    double share[BUBBLE_TRIES];
    struct run r;

    snprintf(layout, sizeof(layout), "pp%d", p);
    open_run(&r, &s);
    prefill(&r, BUBBLE_ROWS, false);
    for (int k = 0; k < BUBBLE_TRIES; k++)
        share[k] = 1 - carry / prefill(&r, BUBBLE_ROWS, false);
    close_run(&r);
    rank_links_done(&l);
    snprintf(key, sizeof(key), "bubble_pp%d_m%d_links", p, m);
    snprintf(goal, sizeof(goal), "(p-2)/(m+p-2) = %.3f, within 0.1", want);
    put(o, key, median(share, BUBBLE_TRIES), want - 0.1, want + 0.1, goal);
}

static void bubbles(struct out *o)
{
    bubble(o);
    for (int p = 4; p <= 8; p *= 2)
        for (int m = 4; m <= 8; m *= 2)
            bubble_of_links(o, p, m);
}

/* ---- transfers beside experts ---- */

enum { TRIES = 9 };

static void one_overlap(struct out *o, int chunks, const struct rank_links *links)
{
    const struct setup with = {"tp2 ep2", CORES, 0, chunks, links, true};
    const struct setup without = {"tp2 ep2", CORES, 0, chunks, NULL, true};
    double transfer[TRIES], other[TRIES], best[2] = {1e9, 1e9}; /* least disturbed */
    struct run a, b;
    char key[64];

    open_run(&a, &with);
    open_run(&b, &without);
    for (int i = -1; i < TRIES; i++) {
        struct sums s0, s1;
        count(&a, &s0);
        double wall = prefill(&a, ROWS, false), plain = prefill(&b, ROWS, false);
        count(&a, &s1);
        if (i < 0)
            continue;
        transfer[i] = (s1.link_us - s0.link_us) / 1e6;
        other[i] = (s1.other_link_us - s0.other_link_us) / 1e6;
        best[0] = fmin(best[0], wall);
        best[1] = fmin(best[1], plain);
    }
    close_run(&a);
    close_run(&b);
    double t = median(transfer, TRIES);
    double work = best[1] + median(other, TRIES); /* what is not meant to overlap too */
    snprintf(key, sizeof(key), "overlap_chunks%d", chunks);
    put(o, key, (t + work - best[0]) / fmin(t, work), chunks > 1 ? 0.7 : -0.15,
        chunks > 1 ? 1.3 : 0.15, chunks > 1 ? "of the shorter, at least 0.7" : "about 0");
    snprintf(key, sizeof(key), "overlap_chunks%d_transfer_s", chunks);
    put(o, key, t, 0, 1e9, "reported");
    snprintf(key, sizeof(key), "overlap_chunks%d_compute_s", chunks);
    put(o, key, work, 0, 1e9, "reported");
}

static void overlap(struct out *o)
{
    const struct setup s = {"tp2 ep2", CORES, 0, 1, NULL, true};
    struct sums n;
    struct run r;

    open_run(&r, &s);
    prefill(&r, ROWS, false);
    double t = prefill(&r, ROWS, false);
    count(&r, &n);
    close_run(&r);
    /* half of the step's time, for the bytes of one rank and one of the two steps */
    struct rank_links l = even_links(2, t / 2, n.bytes[MESH_EP][COMM_ALL_TO_ALL] / 4);
    one_overlap(o, 1, &l);
    one_overlap(o, 4, &l);
    rank_links_done(&l);
}

/* ---- beside the peer ---- */

/* Its figures for this shape in Q4_1 on the machine that the goals were set on. */
static void peer(struct out *o)
{
    const struct setup s = {"tp1", CORES, 0, 0, NULL, false};
    double t[3][7];
    struct run r;

    open_run(&r, &s);
    for (int q = 0; q < SEQS; q++) {
        add(&r, q, 0, 16, true);
        step(&r);
    }
    prefill(&r, ROWS, true);
    for (int k = 0; k < 7; k++) {
        t[0][k] = ROWS / prefill(&r, ROWS, true) / 1070;
        t[1][k] = 64 / decode(&r, 1, 64) / 376;
        t[2][k] = 12 * SEQS / decode(&r, SEQS, 12) / 461;
    }
    close_run(&r);
    put(o, "moe_prefill_over_peer", median(t[0], 7), 1.5, 1e9,
        "at least 1.5 of 1070 tok/s");
    put(o, "moe_decode_over_peer", median(t[1], 7), 1.2, 1e9,
        "at least 1.2 of 376 tok/s");
    put(o, "moe_batch32_over_peer", median(t[2], 7), 2, 1e9, "at least 2 of 461 tok/s");
}

static void first_cpus(void)
{
    cpu_set_t set;
    int n = 0;

    if (sched_getaffinity(0, sizeof(set), &set) < 0)
        CPU_ZERO(&set);
    for (int i = 0; i < CPU_SETSIZE && n < CORES; i++)
        if (CPU_ISSET(i, &set))
            cpus[n++] = i;
    if (n < CORES) {
        fprintf(stderr, "bench_parallel: %d CPUs are needed\n", CORES);
        exit(2);
    }
}

static const struct part {
    const char *name;
    void (*run)(struct out *o);
} parts[] = {{"layouts", layouts}, {"hierarchy", hierarchy}, {"overlap", overlap},
             {"bubble", bubbles},  {"speeds", speeds},       {"peer", peer}};

int main(int argc, char **argv)
{
    struct out o;

    if (argc < 3 || argc > 4) {
        fprintf(stderr, "usage: bench_parallel MODEL FILE [PART]\n");
        return 2;
    }
    model_path = argv[1];
    first_cpus();
    out_begin(&o);
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        if (argc == 3 || !strcmp(argv[3], parts[i].name))
            parts[i].run(&o);
    return out_end(&o, argv[2]);
}
