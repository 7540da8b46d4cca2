/* tests/bench/bench_hierarchy.h - all-to-alls of 8 ranks on 2 hosts, cut ten times
 * slower: flat and in two levels, measured over emulated links and foreseen by alpha and
 * beta. */
#ifndef TESTS_BENCH_HIERARCHY_H
#define TESTS_BENCH_HIERARCHY_H

#include <pthread.h>

#include "kernels/backend.h"
#include "kernels/comm.h"
#include "tests/bench/bench_parallel.h"

enum { H_RANKS = 8, H_HOST = 4, H_ROW = 4096, H_ROUNDS = 3 };

/* Slow enough that the emulated time is most of it on any machine. */
static const struct comm_link h_inside = {50e-6, 100e6}, h_cut = {500e-6, 10e6};

struct h_rank {
    int me, tokens, k;
    struct comm_fabric *f;
    double seconds; /* there and back, the least disturbed */
    uint64_t cut;   /* bytes */
    pthread_t thread;
};

static inline struct dbuf *h_buf(struct backend *b, size_t n)
{
    struct dbuf *d;
    struct err e;

    if (dbuf_new(b, n, &d, &e) < 0)
        die(&e);
    return d;
}

/* Choice j of token t goes to rank (t + me + j * 8 / k) % 8: even, half of it across. */
static inline int h_to(const struct h_rank *r, int t, int j)
{
    return (t + r->me + j * H_RANKS / r->k) % H_RANKS;
}

static inline void h_marks(const struct h_rank *r, int32_t *send, int32_t *same)
{
    int at = 0;

    for (int d = 0; d < H_RANKS; d++) {
        int first = at;
        for (int t = 0; t < r->tokens; t++)
            for (int j = 0; j < r->k; j++)
                if (h_to(r, t, j) == d)
                    same[at++] = t;
        send[d] = at - first;
    }
}

static inline void h_trips(struct h_rank *r, struct backend *b, struct comm *c)
{
    int pairs = r->tokens * r->k;
    size_t rows = (size_t)pairs * H_ROW;
    int32_t send[H_RANKS], *same = xcalloc((size_t)pairs, sizeof(*same));
    struct comm_count n[COMM_CALL_COUNT];
    struct stream *s;
    struct err e;

    if (stream_new(b, &s, &e) < 0)
        die(&e);
    struct comm_a2a go = {.x = {h_buf(b, rows), 0},
                          .y = {h_buf(b, rows * 2), 0},
                          .send = {h_buf(b, sizeof(send)), 0},
                          .recv = {h_buf(b, sizeof(send)), 0},
                          .row_bytes = H_ROW,
                          .max_recv = 2 * pairs,
                          .same = {h_buf(b, (size_t)pairs * 4), 0}};
    struct comm_a2a home = go;
    home.x = go.y;
    home.y = go.x;
    home.send = go.recv;
    home.recv = (struct comm_at){h_buf(b, sizeof(send)), 0};
    home.max_recv = pairs;
    home.same.buf = NULL;
    h_marks(r, send, same);
    if (stream_upload(s, go.send.buf, 0, send, sizeof(send), &e) < 0 ||
        stream_upload(s, go.same.buf, 0, same, (size_t)pairs * 4, &e) < 0)
        die(&e);
    for (int i = 0; i <= H_ROUNDS; i++) { /* the first warms up */
        if (comm_barrier(c, s, &e) < 0)
            die(&e);
        double t = now_s();
        if (comm_all_to_all(c, s, &go, &e) < 0 || comm_all_to_all(c, s, &home, &e) < 0 ||
            stream_sync(s, &e) < 0)
            die(&e);
        t = now_s() - t;
        r->seconds = i < 2 ? t : fmin(r->seconds, t);
    }
    comm_counts(c, n);
    r->cut = n[COMM_ALL_TO_ALL].cut_bytes / (H_ROUNDS + 1);
    struct dbuf *all[] = {go.x.buf,    go.y.buf,    go.send.buf,
                          go.recv.buf, go.same.buf, home.recv.buf};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        dbuf_free(all[i]);
    stream_free(s);
    free(same);
}

static inline void *h_main(void *arg)
{
    struct h_rank *r = arg;
    struct comm_link links[H_RANKS];
    struct comm_cfg cfg = {.rank = r->me, .links = links};
    struct backend_cfg bc = {
        .name = "cpu", .n_threads = 1, .caps = {16, 64, 4, 64, 4, 16}};
    struct backend *b;
    struct comm *c;
    struct err e;

    for (int i = 0; i < H_RANKS; i++)
        links[i] = i / H_HOST == r->me / H_HOST ? h_inside : h_cut;
    if (backend_open(&bc, &b, &e) < 0 || comm_join(r->f, 0, &cfg, &c, &e) < 0)
        die(&e);
    h_trips(r, b, c);
    comm_leave(c);
    backend_close(b);
    return NULL;
}

/* Seconds there and back, and bytes of one rank that crossed. */
static inline double h_measure(int tokens, int k, bool two_level, double *ret_cut)
{
    struct comm_group g = {.name = "ep", .n = H_RANKS, .two_level = two_level};
    struct h_rank r[H_RANKS];
    struct err e;
    double max = 0, cut = 0;

    for (int i = 0; i < H_RANKS; i++) {
        g.ranks[i] = i;
        g.host[i] = (uint8_t)(i / H_HOST);
    }
    struct comm_fabric *f;
    if (comm_fabric_new(&g, 1, H_RANKS, 0, &f, &e) < 0)
        die(&e);
    for (int i = 0; i < H_RANKS; i++) {
        r[i] = (struct h_rank){.me = i, .tokens = tokens, .k = k, .f = f};
        pthread_create(&r[i].thread, NULL, h_main, &r[i]);
    }
    for (int i = 0; i < H_RANKS; i++) {
        pthread_join(r[i].thread, NULL);
        max = fmax(max, r[i].seconds);
        cut += (double)r[i].cut / H_RANKS;
    }
    comm_fabric_free(f);
    *ret_cut = cut;
    return max;
}

static inline double h_way(const struct comm_link *l, double messages, double rows)
{
    return rows > 0 ? messages * l->alpha_s + rows * H_ROW / l->bytes_per_s : 0;
}

/* The same by alpha + bytes/B of what each rank reads, one after the other: pairs go to 8
 * ranks alike. Flat: of 3 inside and 4 across, both ways. In two levels there: of 3
 * inside and 1 across, where a token crosses once, then of 3 inside; home: of 3 inside, 1
 * across. */
static inline double h_foresee(int tokens, int k, bool two_level)
{
    double pairs = (double)tokens * k, each = pairs / H_RANKS;
    double across = each * H_HOST, inside = each * (H_HOST - 1);
    double once = k == 1 ? across : tokens; /* k > 1: some choice of each is across */
    double passed = across * (H_HOST - 1) / H_HOST;

    if (!two_level)
        return 2 * (h_way(&h_inside, H_HOST - 1, inside) + h_way(&h_cut, H_HOST, across));
    return h_way(&h_inside, H_HOST - 1, inside) + h_way(&h_cut, 1, once) +
           h_way(&h_inside, H_HOST - 1, passed) +
           h_way(&h_inside, H_HOST - 1, inside + passed) + h_way(&h_cut, 1, across);
}

static inline void hierarchy(struct out *o)
{
    static const struct {
        int tokens, k;
    } sizes[] = {{8, 1}, {8, 8}, {64, 1}, {64, 8}, {256, 1}, {256, 4}};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        int t = sizes[i].tokens, k = sizes[i].k;
        double cut[2];
        double flat = h_measure(t, k, false, &cut[0]);
        double two = h_measure(t, k, true, &cut[1]);
        double foreseen = h_foresee(t, k, true) / h_foresee(t, k, false);
        bool near = fabs(foreseen - 1) < 0.1; /* either may be first */
        char key[64], goal[64];

        snprintf(key, sizeof(key), "hierarchy_time_t%d_k%d", t, k);
        snprintf(goal, sizeof(goal), "two levels over flat; foreseen %.2f", foreseen);
        put(o, key, two / flat, near || foreseen > 1 ? near ? 0 : 1 : 0,
            near || foreseen > 1 ? 1e9 : 1, goal);
        snprintf(key, sizeof(key), "hierarchy_cut_bytes_t%d_k%d", t, k);
        double pairs = (double)t * k;
        double want = (k == 1 ? pairs / 2 : t) * H_ROW + pairs / 2 * (4 + H_ROW);
        put(o, key, cut[1] / want, 0.999, 1.001,
            "1.0: once a host there, all of it back");
    }
}

#endif
