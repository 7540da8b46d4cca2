/* tests/unit/test_comm.c - collectives of 1 to 8 ranks against plain loops: values to the
 * bit, bytes against the formulas; all-to-all in two levels and in halves; the same
 * between two processes; a rank that is late, stuck or dead ends the call on all with its
 * name; emulated links take their time. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "kernels/backend.h"
#include "kernels/comm.h"
#include "tests/test.h"

enum { MAX_P = 8, SMALL_CHUNK = 4096 };

struct rank;
typedef int (*rank_fn)(struct rank *r, struct err *e);

struct rank {
    int me, p, rc, group; /* group: joined first */
    rank_fn fn;
    struct comm_fabric *f;
    struct comm_cfg cfg;
    const char *backend;
    struct backend *b;
    struct stream *s;
    struct comm *c;
    struct err e;
    pthread_t thread;
    struct comm_count counts[COMM_CALL_COUNT];
    struct comm_pair pairs[MAX_P][COMM_CALL_COUNT];
    int64_t arg;
};

static struct comm_group world(int p)
{
    struct comm_group g = {.name = "world", .n = p};

    for (int i = 0; i < p; i++)
        g.ranks[i] = i;
    return g;
}

static int rank_open(struct rank *r)
{
    struct backend_cfg bc = {.name = r->backend,
                             .n_threads = 1,
                             .isa = "portable",
                             .caps = {16, 64, 4, 64, 4, 16}};

    if (backend_open(&bc, &r->b, &r->e) < 0 || stream_new(r->b, &r->s, &r->e) < 0)
        return -1;
    return comm_join(r->f, r->group, &r->cfg, &r->c, &r->e);
}

/* By pairs it is the same as by calls, and nothing is read of oneself. */
static bool pairs_add_up(const struct rank *r)
{
    for (int k = 0; k < COMM_CALL_COUNT; k++) {
        uint64_t bytes = 0;
        int64_t us = 0;

        for (int i = 0; i < MAX_P; i++) {
            bytes += r->pairs[i][k].bytes;
            us += r->pairs[i][k].link_us;
        }
        if (bytes != r->counts[k].bytes || us != r->counts[k].link_us ||
            r->pairs[r->me][k].bytes)
            return false;
    }
    return true;
}

static void *rank_main(void *arg)
{
    struct rank *r = arg;

    r->cfg.pairs = r->pairs;
    r->rc = rank_open(r);
    if (r->rc == 0)
        r->rc = r->fn(r, &r->e);
    if (r->c)
        comm_counts(r->c, r->counts);
    if (r->rc == 0 && !pairs_add_up(r))
        r->rc = err_set(&r->e, ERR_INTERNAL, "by pairs it is not what was read");
    comm_leave(r->c);
    stream_free(r->s);
    backend_close(r->b);
    return NULL;
}

/* All ranks in threads of this process; the caller looks at rc and counts. */
static void run_group(struct rank *r, const struct comm_group *g, const char *backend,
                      rank_fn fn, size_t chunk, const struct comm_cfg *cfg, int64_t arg)
{
    struct comm_fabric *f;
    struct err e;
    int p = g->n;

    assert_int_equal(comm_fabric_new(g, 1, p, chunk, &f, &e), 0);
    for (int i = 0; i < p; i++) {
        r[i] = (struct rank){.me = i, .p = p, .fn = fn, .f = f, .backend = backend};
        r[i].arg = arg;
        if (cfg)
            r[i].cfg = *cfg;
        r[i].cfg.rank = i;
        assert_int_equal(pthread_create(&r[i].thread, NULL, rank_main, &r[i]), 0);
    }
    for (int i = 0; i < p; i++)
        pthread_join(r[i].thread, NULL);
    comm_fabric_free(f);
}

static void run_ranks(struct rank *r, int p, const char *backend, rank_fn fn,
                      size_t chunk, const struct comm_cfg *cfg, int64_t arg)
{
    struct comm_group g = world(p);

    run_group(r, &g, backend, fn, chunk, cfg, arg);
}

static void all_ok(const struct rank *r, int p)
{
    for (int i = 0; i < p; i++)
        if (r[i].rc < 0)
            fail_msg("rank %d of %d: %s", i, p, r[i].e.msg);
}

/* A value that makes the order of a sum visible. */
static float value(int rank, int64_t i)
{
    uint32_t h = (uint32_t)(i * 2654435761u) ^ (uint32_t)(rank * 40503u + 17);

    h ^= h >> 13;
    h *= 1274126177u;
    return (float)(int32_t)(h & 0xffffff) * (rank % 3 == 1 ? 1e3f : 1e-4f);
}

/* Of p ranks from `from` on, in halves. */
static float sum_of(int from, int p, int64_t i)
{
    float early, late;

    if (p == 1)
        return value(from, i);
    early = sum_of(from, p / 2, i);
    late = sum_of(from + p / 2, p - p / 2, i);
    return early + late;
}

static struct dbuf *buffer(struct rank *r, const void *from, size_t n)
{
    struct dbuf *d;

    if (dbuf_new(r->b, n ? n : 4, &d, &r->e) < 0 ||
        (from && stream_upload(r->s, d, 0, from, n, &r->e) < 0) ||
        stream_sync(r->s, &r->e) < 0)
        abort();
    return d;
}

static void fetch(struct rank *r, void *to, struct dbuf *d, size_t n)
{
    if (stream_download(r->s, to, d, 0, n, &r->e) < 0 || stream_sync(r->s, &r->e) < 0)
        abort();
}

/* ---- values and bytes ---- */

static int do_all_reduce(struct rank *r, struct err *e)
{
    int64_t n = r->arg;
    size_t bytes = (size_t)n * sizeof(float);
    float *x = malloc(bytes), *y = malloc(bytes);
    int rc = 0;

    for (int64_t i = 0; i < n; i++)
        x[i] = value(r->me, i);
    struct dbuf *d = buffer(r, x, bytes);
    if (comm_all_reduce(r->c, r->s, (struct comm_at){d, 0}, n, e) < 0) {
        rc = -1;
    } else {
        fetch(r, y, d, bytes);
        for (int64_t i = 0; i < n && rc == 0; i++)
            if (y[i] != sum_of(0, r->p, i))
                rc = err_set(e, ERR_INTERNAL, "element %lld differs", (long long)i);
    }
    dbuf_free(d);
    free(x);
    free(y);
    return rc;
}

static void test_all_reduce(void **state)
{
    static const int64_t sizes[] = {1, 7, 840, 1024, 5 * 1024 + 3};

    (void)state;
    for (int p = 1; p <= MAX_P; p++)
        for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
            struct rank r[MAX_P];
            int64_t n = sizes[k], sum = 0;

            run_ranks(r, p, "cpu", do_all_reduce, SMALL_CHUNK, NULL, n);
            all_ok(r, p);
            for (int i = 0; i < p; i++) {
                sum += (int64_t)r[i].counts[COMM_ALL_REDUCE].bytes;
                assert_int_equal(r[i].counts[COMM_ALL_REDUCE].calls, 1);
                if (n == 840 && 840 % p == 0) /* 2 (p-1)/p S, each rank */
                    assert_int_equal(r[i].counts[COMM_ALL_REDUCE].bytes,
                                     2 * (p - 1) * (840 / p) * 4);
            }
            assert_int_equal(sum, 2 * (p - 1) * n * 4); /* of all, for any size */
        }
}

static void test_all_reduce_far(void **state)
{
    struct rank r[3];

    (void)state;
    run_ranks(r, 3, "far", do_all_reduce, SMALL_CHUNK, NULL, 3000);
    all_ok(r, 3);
}

/* Uneven parts: rank i has 100 + 700 i elements. */
static void uneven(int p, int64_t *counts)
{
    for (int i = 0; i < p; i++)
        counts[i] = 100 + 700 * i;
}

static int64_t before(const int64_t *v, int n)
{
    int64_t sum = 0;

    for (int i = 0; i < n; i++)
        sum += v[i];
    return sum;
}

/* Reduce-scatter, then gather what came: an all-reduce in two halves. */
static int do_scatter_gather(struct rank *r, struct err *e)
{
    int64_t counts[MAX_P], bytes[MAX_P];
    int rc = 0;

    uneven(r->p, counts);
    int64_t n = before(counts, r->p), at = before(counts, r->me);
    float *x = malloc((size_t)n * 4), *y = malloc((size_t)n * 4);
    for (int64_t i = 0; i < n; i++)
        x[i] = value(r->me, i);
    for (int i = 0; i < r->p; i++)
        bytes[i] = counts[i] * 4;
    struct dbuf *d = buffer(r, x, (size_t)n * 4);
    struct comm_at all = {d, 0}, mine = {d, (size_t)at * 4};
    if (comm_reduce_scatter(r->c, r->s, all, mine, counts, e) < 0 ||
        comm_all_gather(r->c, r->s, mine, all, bytes, e) < 0)
        rc = -1;
    if (rc == 0)
        fetch(r, y, d, (size_t)n * 4);
    for (int64_t i = 0; i < n && rc == 0; i++)
        if (y[i] != sum_of(0, r->p, i))
            rc = err_set(e, ERR_INTERNAL, "element %lld differs", (long long)i);
    dbuf_free(d);
    free(x);
    free(y);
    return rc;
}

static void test_scatter_gather(void **state)
{
    (void)state;
    for (int p = 1; p <= MAX_P; p++) {
        struct rank r[MAX_P];
        int64_t counts[MAX_P];

        uneven(p, counts);
        run_ranks(r, p, "cpu", do_scatter_gather, SMALL_CHUNK, NULL, 0);
        all_ok(r, p);
        for (int i = 0; i < p; i++) {
            assert_int_equal(r[i].counts[COMM_REDUCE_SCATTER].bytes,
                             (p - 1) * counts[i] * 4);
            assert_int_equal(r[i].counts[COMM_ALL_GATHER].bytes,
                             (before(counts, p) - counts[i]) * 4);
        }
    }
}

/* Rank a sends (a + 2 b) % 5 * 9 rows to b; a row holds its sender, receiver, number. */
static int32_t rows_of(int from, int to) { return (from + 2 * to) % 5 * 9; }

enum { ROW = 100 };

static int a2a_look(struct rank *r, const int32_t *y, const int32_t *recv, struct err *e)
{
    int64_t at = 0;

    for (int m = 0; m < r->p; m++) {
        if (recv[m] != rows_of(m, r->me))
            return err_set(e, ERR_INTERNAL, "%d rows of %d", recv[m], m);
        for (int k = 0; k < recv[m]; k++, at++) {
            const int32_t *row = y + at * ROW;
            if (row[0] != m || row[1] != r->me || row[2] != k || row[ROW - 1] != m + k)
                return err_set(e, ERR_INTERNAL, "row %d of %d is wrong", k, m);
        }
    }
    return 0;
}

static int do_all_to_all(struct rank *r, struct err *e)
{
    int32_t send[MAX_P], recv[MAX_P], n = 0, n_recv = 0, at = 0;
    int rc;

    for (int m = 0; m < r->p; m++) {
        send[m] = rows_of(r->me, m);
        n += send[m];
        n_recv += rows_of(m, r->me);
    }
    int32_t *x = calloc((size_t)n + 1, ROW * 4), *y = calloc((size_t)n_recv + 1, ROW * 4);
    for (int m = 0; m < r->p; m++)
        for (int k = 0; k < send[m]; k++, at++) {
            x[at * ROW] = r->me;
            x[at * ROW + 1] = m;
            x[at * ROW + 2] = k;
            x[at * ROW + ROW - 1] = r->me + k;
        }
    struct comm_a2a a = {
        .x = {buffer(r, x, (size_t)n * ROW * 4), 0},
        .y = {buffer(r, NULL, (size_t)n_recv * ROW * 4), 0},
        .send = {buffer(r, send, sizeof(send)), 0},
        .recv = {buffer(r, NULL, sizeof(recv)), 0},
        .row_bytes = ROW * 4,
        .max_recv = r->arg ? n_recv - 1 : n_recv,
    };
    rc = comm_all_to_all(r->c, r->s, &a, e);
    if (rc == 0) {
        fetch(r, y, a.y.buf, (size_t)n_recv * ROW * 4);
        fetch(r, recv, a.recv.buf, sizeof(recv));
        rc = a2a_look(r, y, recv, e);
    }
    dbuf_free(a.x.buf);
    dbuf_free(a.y.buf);
    dbuf_free(a.send.buf);
    dbuf_free(a.recv.buf);
    free(x);
    free(y);
    return rc;
}

static void test_all_to_all(void **state)
{
    (void)state;
    for (int p = 1; p <= MAX_P; p++) {
        struct rank r[MAX_P];

        run_ranks(r, p, "cpu", do_all_to_all, SMALL_CHUNK, NULL, 0);
        all_ok(r, p);
        for (int i = 0; i < p; i++) {
            int64_t rows = 0;
            for (int m = 0; m < p; m++)
                rows += m == i ? 0 : rows_of(m, i);
            assert_int_equal(r[i].counts[COMM_ALL_TO_ALL].bytes, rows * ROW * 4);
        }
    }
}

static void test_all_to_all_bound(void **state)
{
    struct rank r[4];

    (void)state;
    run_ranks(r, 4, "cpu", do_all_to_all, SMALL_CHUNK, NULL, 1);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(r[i].rc, -1);
        assert_int_equal(r[i].e.code, ERR_DEVICE);
        assert_non_null(strstr(r[i].e.msg, "rows and takes"));
    }
}

/* ---- all-to-all in two levels and in halves ---- */

enum { MARKED = 1, HALVES = 2 };

/* Row k from a rank to `to` is this of its n / 2 + 1 different rows. */
static int32_t which(int to, int k, int n) { return (3 * k + 5 * to) % (n / 2 + 1); }

static int32_t rows_from(const struct rank *r, int from)
{
    int32_t n = 0;

    for (int m = 0; m < r->p; m++)
        n += rows_of(from, m);
    return n;
}

static int marked_look(const struct rank *r, const int32_t *y, const int32_t *tags,
                       const int32_t *recv, struct err *e)
{
    int64_t at = 0;

    for (int m = 0; m < r->p; m++) {
        if (recv[m] != rows_of(m, r->me))
            return err_set(e, ERR_INTERNAL, "%d rows of %d", recv[m], m);
        for (int k = 0; k < recv[m]; k++, at++) {
            const int32_t *row = y + at * ROW;
            int32_t what = which(r->me, k, rows_from(r, m));
            if (row[0] != m || row[1] != what || row[ROW - 1] != m + what ||
                tags[at] != 1000 * r->me + k)
                return err_set(e, ERR_INTERNAL, "row %d of %d is wrong", k, m);
        }
    }
    return 0;
}

/* One call, or three in flight at once that are finished in turn. */
static int call_marked(struct rank *r, struct comm_a2a *a, bool halves, struct err *e)
{
    int n = halves ? COMM_IN_FLIGHT : 1;

    if (!halves)
        return comm_all_to_all(r->c, r->s, a, e);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < n; i++)
            if (comm_all_to_all_start(r->c, r->s, a, e) < 0)
                return -1;
        if (comm_all_to_all_start(r->c, r->s, a, e) == 0)
            return err_set(e, ERR_INTERNAL, "one more than may be in flight was taken");
        if (comm_barrier(r->c, r->s, e) < 0) /* other calls may come between */
            return -1;
        for (int i = 0; i < n; i++)
            if (comm_all_to_all_finish(r->c, r->s, a, e) < 0)
                return -1;
    }
    return 0;
}

static int do_marked(struct rank *r, struct err *e)
{
    int32_t send[MAX_P], recv[MAX_P], n = rows_from(r, r->me), n_recv = 0, at = 0;
    int32_t *x = calloc((size_t)n + 1, ROW * 4), *marks = calloc((size_t)n + 1, 4);
    int32_t *tags = calloc((size_t)n + 1, 4), *y, *got;
    int rc;

    for (int m = 0; m < r->p; m++) {
        n_recv += rows_of(m, r->me);
        send[m] = rows_of(r->me, m);
        for (int k = 0; k < send[m]; k++, at++) {
            marks[at] = which(m, k, n);
            tags[at] = 1000 * m + k;
            x[at * ROW] = r->me;
            x[at * ROW + 1] = marks[at];
            x[at * ROW + ROW - 1] = r->me + marks[at];
        }
    }
    y = calloc((size_t)n_recv + 1, ROW * 4);
    got = calloc((size_t)n_recv + 1, 4);
    struct comm_a2a a = {
        .x = {buffer(r, x, (size_t)n * ROW * 4), 0},
        .y = {buffer(r, NULL, (size_t)n_recv * ROW * 4), 0},
        .send = {buffer(r, send, sizeof(send)), 0},
        .recv = {buffer(r, NULL, sizeof(recv)), 0},
        .row_bytes = ROW * 4,
        .max_recv = n_recv,
        .tag = {buffer(r, tags, (size_t)n * 4), 0},
        .tag_y = {buffer(r, NULL, (size_t)n_recv * 4), 0},
    };
    struct dbuf *same = buffer(r, marks, (size_t)n * 4);
    if (r->arg & MARKED)
        a.same.buf = same;
    rc = call_marked(r, &a, r->arg & HALVES, e);
    if (rc == 0) {
        fetch(r, y, a.y.buf, (size_t)n_recv * ROW * 4);
        fetch(r, got, a.tag_y.buf, (size_t)n_recv * 4);
        fetch(r, recv, a.recv.buf, sizeof(recv));
        rc = marked_look(r, y, got, recv, e);
    }
    struct dbuf *all[] = {a.x.buf,   a.y.buf,     a.send.buf, a.recv.buf,
                          a.tag.buf, a.tag_y.buf, same};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        dbuf_free(all[i]);
    free(x);
    free(y);
    free(marks);
    free(tags);
    free(got);
    return rc;
}

/* What may cross: every row, or each different one once a destination host. */
static int64_t cut_of(const struct rank *r, int p, const uint8_t *host, bool marked)
{
    int64_t bytes = 0;

    for (int s = 0; s < p; s++)
        for (int h = 0; h < MAX_P; h++) {
            int n = rows_from(r, s), rows = 0, unlike = 0;
            bool seen[MAX_P * 36] = {false};

            for (int d = 0; h != host[s] && d < p; d++)
                for (int k = 0; host[d] == h && k < rows_of(s, d); k++) {
                    int what = which(d, k, n);
                    rows++;
                    unlike += !seen[what];
                    seen[what] = true;
                }
            bytes += marked ? unlike * ROW * 4 + rows * 8 : rows * (ROW * 4 + 4);
        }
    return bytes;
}

static void check_levels(int p, const uint8_t *host, const char *backend)
{
    static const int64_t ways[] = {0, MARKED, HALVES, MARKED | HALVES};

    for (int i = 0; i < 8; i++) {
        struct comm_group g = world(p);
        int64_t cut = 0, calls = ways[i / 2] & HALVES ? 2 * COMM_IN_FLIGHT : 1;
        struct rank r[MAX_P];

        g.two_level = i % 2;
        memcpy(g.host, host, (size_t)p);
        run_group(r, &g, backend, do_marked, SMALL_CHUNK, NULL, ways[i / 2]);
        all_ok(r, p);
        for (int k = 0; k < p; k++) {
            cut += (int64_t)r[k].counts[COMM_ALL_TO_ALL].cut_bytes;
            assert_int_equal(r[k].counts[COMM_ALL_TO_ALL].calls, calls);
        }
        assert_int_equal(
            cut, calls * cut_of(r, p, host, g.two_level && (ways[i / 2] & MARKED)));
    }
}

static void test_two_levels(void **state)
{
    static const uint8_t halves8[8] = {0, 0, 0, 0, 1, 1, 1, 1};
    static const uint8_t halves6[6] = {0, 0, 0, 1, 1, 1}, halves4[4] = {7, 7, 2, 2};
    static const uint8_t mixed[8] = {0, 1, 0, 1, 0, 1, 0, 1},
                         three[7] = {0, 0, 1, 1, 2, 2, 2};
    static const uint8_t lone[4] = {0, 0, 0, 1}, apart[3] = {0, 1, 2}, one[4] = {0};

    (void)state;
    check_levels(4, halves4, "cpu");
    check_levels(6, halves6, "cpu");
    check_levels(8, halves8, "cpu");
    check_levels(8, mixed, "cpu");
    check_levels(7, three, "cpu");
    check_levels(4, lone, "cpu");
    check_levels(3, apart, "cpu");
    check_levels(4, one, "cpu");
    check_levels(4, halves4, "far");
}

/* A ring of sends, then a broadcast of what rank 1 got, then a barrier. */
static int do_ring(struct rank *r, struct err *e)
{
    enum { N = 3000 };
    int next = (r->me + 1) % r->p, last = (r->me + r->p - 1) % r->p, root = 1 % r->p;
    float x[N], y[N];
    int rc = 0;

    for (int i = 0; i < N; i++)
        x[i] = value(r->me, i);
    struct dbuf *dx = buffer(r, x, sizeof(x)), *dy = buffer(r, x, sizeof(x));
    struct comm_at ax = {dx, 0}, ay = {dy, 0};
    bool first = r->me == 0; /* pieces are more than fit: somebody has to begin reading */
    if (r->p > 1) {
        if (first)
            rc = comm_send(r->c, r->s, ax, sizeof(x), next, e) < 0 ||
                         comm_recv(r->c, r->s, ay, sizeof(y), last, e) < 0
                     ? -1
                     : 0;
        else
            rc = comm_recv(r->c, r->s, ay, sizeof(y), last, e) < 0 ||
                         comm_send(r->c, r->s, ax, sizeof(x), next, e) < 0
                     ? -1
                     : 0;
    }
    if (rc == 0 && (comm_broadcast(r->c, r->s, ay, sizeof(y), root, e) < 0 ||
                    comm_barrier(r->c, r->s, e) < 0))
        rc = -1;
    if (rc == 0)
        fetch(r, y, dy, sizeof(y));
    for (int i = 0; i < N && rc == 0; i++)
        if (y[i] != value(0, i)) /* rank 1 had it of rank 0 */
            rc = err_set(e, ERR_INTERNAL, "element %d differs", i);
    dbuf_free(dx);
    dbuf_free(dy);
    return rc;
}

static void test_send_broadcast(void **state)
{
    (void)state;
    for (int p = 1; p <= MAX_P; p++) {
        struct rank r[MAX_P];

        run_ranks(r, p, "cpu", do_ring, SMALL_CHUNK, NULL, 0);
        all_ok(r, p);
        for (int i = 0; i < p; i++) {
            assert_int_equal(r[i].counts[COMM_RECV].bytes, p > 1 ? 12000 : 0);
            assert_int_equal(r[i].counts[COMM_BROADCAST].bytes, i == 1 % p ? 0 : 12000);
        }
    }
}

/* ---- groups and processes ---- */

/* Rows and columns of a 2 x 2 mesh over one fabric, used by turns. */
static int do_mesh(struct rank *r, struct err *e)
{
    float own[4] = {(float)(1 << r->me)}, x[4] = {0};
    struct dbuf *d = buffer(r, own, sizeof(own));
    struct comm_at at = {d, 0};
    struct comm *col;
    struct comm_cfg cfg = r->cfg;
    cfg.pairs = NULL; /* counts are of the first group */
    int rc = comm_join(r->f, 2 + r->me % 2, &cfg, &col, e);

    for (int k = 0; k < 50 && rc == 0; k++) {
        if (stream_upload(r->s, d, 0, own, sizeof(own), e) < 0 ||
            comm_all_reduce(r->c, r->s, at, 4, e) < 0 ||
            comm_all_reduce(col, r->s, at, 4, e) < 0)
            rc = -1;
        else
            fetch(r, x, d, sizeof(x));
        if (rc == 0 && x[0] != 15)
            rc = err_set(e, ERR_INTERNAL, "round %d: %g", k, (double)x[0]);
    }
    comm_leave(col);
    dbuf_free(d);
    return rc;
}

static void test_mesh(void **state)
{
    static const struct comm_group g[4] = {{.name = "row0", .n = 2, .ranks = {0, 1}},
                                           {.name = "row1", .n = 2, .ranks = {2, 3}},
                                           {.name = "col0", .n = 2, .ranks = {0, 2}},
                                           {.name = "col1", .n = 2, .ranks = {1, 3}}};
    struct comm_fabric *f;
    struct rank r[4];
    struct err e;

    (void)state;
    assert_int_equal(comm_fabric_new(g, 4, 4, SMALL_CHUNK, &f, &e), 0);
    for (int i = 0; i < 4; i++) {
        r[i] = (struct rank){.me = i,
                             .p = 4,
                             .fn = do_mesh,
                             .f = f,
                             .backend = "cpu",
                             .group = i / 2,
                             .cfg = {.rank = i}};
        assert_int_equal(pthread_create(&r[i].thread, NULL, rank_main, &r[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(r[i].thread, NULL);
    all_ok(r, 4);
    comm_fabric_free(f);
}

/* The eight ranks as two processes of four, over the mapped descriptor. */
static void child_ranks(int fd, int from)
{
    struct comm_fabric *f;
    struct rank r[MAX_P];
    struct err e;
    int bad = 0;

    if (comm_fabric_map(fd, &f, &e) < 0)
        _exit(2);
    for (int i = 0; i < 4; i++) {
        r[i] = (struct rank){.me = from + i,
                             .p = 8,
                             .fn = do_all_reduce,
                             .f = f,
                             .backend = "cpu",
                             .cfg = {.rank = from + i},
                             .arg = 5000};
        pthread_create(&r[i].thread, NULL, rank_main, &r[i]);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(r[i].thread, NULL);
        bad += r[i].rc < 0;
    }
    comm_fabric_free(f);
    _exit(bad);
}

static void test_processes(void **state)
{
    struct comm_group g = world(8);
    struct comm_fabric *f;
    struct err e;
    int status;
    pid_t pid[2];

    (void)state;
    assert_int_equal(comm_fabric_new(&g, 1, 8, SMALL_CHUNK, &f, &e), 0);
    for (int i = 0; i < 2; i++) {
        pid[i] = fork();
        assert_true(pid[i] >= 0);
        if (pid[i] == 0)
            child_ranks(comm_fabric_fd(f), 4 * i);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
    comm_fabric_free(f);
}

/* ---- faults ---- */

/* Rank 2 makes one call and then none. */
static int do_missing(struct rank *r, struct err *e)
{
    struct dbuf *d = buffer(r, NULL, 64);
    struct comm_at at = {d, 0};
    int rc;

    comm_step(r->c, 7);
    rc = comm_barrier(r->c, r->s, e);
    if (rc == 0 && r->me != 2)
        rc = comm_all_reduce(r->c, r->s, at, 16, e);
    dbuf_free(d);
    return rc;
}

static void test_missing_rank(void **state)
{
    struct comm_cfg cfg = {.timeout_us = 300000};
    struct rank r[4];

    (void)state;
    run_ranks(r, 4, "cpu", do_missing, SMALL_CHUNK, &cfg, 0);
    for (int i = 0; i < 4; i++) {
        if (i == 2)
            continue;
        assert_int_equal(r[i].rc, -1);
        assert_int_equal(r[i].e.code, ERR_DEVICE);
        assert_non_null(strstr(r[i].e.msg, "rank 2 did not come to all-reduce 2"));
        assert_non_null(strstr(r[i].e.msg, "after barrier 1 of group 'world', step 7"));
    }
}

static int do_abort(struct rank *r, struct err *e)
{
    struct err why;

    if (r->me == 1) {
        err_set(&why, ERR_DEVICE, "rank 1 lost its device");
        comm_abort(r->f, &why);
        return 0;
    }
    return comm_barrier(r->c, r->s, e);
}

static void test_abort(void **state)
{
    struct rank r[3];

    (void)state;
    run_ranks(r, 3, "cpu", do_abort, SMALL_CHUNK, NULL, 0);
    assert_string_equal(r[0].e.msg, "rank 1 lost its device");
    assert_string_equal(r[2].e.msg, "rank 1 lost its device");
}

static void test_bad_groups(void **state)
{
    struct comm_group g = world(4);
    struct comm_fabric *f;
    struct comm_cfg cfg = {.rank = 3};
    struct comm *c;
    struct err e;

    (void)state;
    g.ranks[2] = 9;
    assert_int_equal(comm_fabric_new(&g, 1, 4, 0, &f, &e), -1);
    assert_int_equal(comm_fabric_new(&g, 0, 4, 0, &f, &e), -1);
    assert_int_equal(comm_fabric_map(0, &f, &e), -1);
    g = world(2);
    assert_int_equal(comm_fabric_new(&g, 1, 4, 0, &f, &e), 0);
    assert_int_equal(comm_join(f, 0, &cfg, &c, &e), -1);
    assert_string_equal(e.msg, "rank 3 is not in group 'world'");
    assert_int_equal(comm_join(f, 1, &cfg, &c, &e), -1);
    comm_fabric_free(f);
}

/* ---- emulated links ---- */

static void test_emulation(void **state)
{
    /* 4096 bytes at 1 MB/s and 1 ms each: reading S/2 twice takes 2 (1 + 2.048) ms */
    struct comm_link links[2] = {{1e-3, 1e6}, {1e-3, 1e6}};
    struct comm_cfg cfg = {.links = links};
    struct rank r[2];

    (void)state;
    run_ranks(r, 2, "cpu", do_all_reduce, 1 << 16, &cfg, 1024);
    all_ok(r, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(r[i].counts[COMM_ALL_REDUCE].bytes, 4096);
        assert_true(r[i].counts[COMM_ALL_REDUCE].us >= 2 * (1000 + 2048));
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_all_reduce),
    cmocka_unit_test(test_all_reduce_far),
    cmocka_unit_test(test_scatter_gather),
    cmocka_unit_test(test_all_to_all),
    cmocka_unit_test(test_all_to_all_bound),
    cmocka_unit_test(test_two_levels),
    cmocka_unit_test(test_send_broadcast),
    cmocka_unit_test(test_mesh),
    cmocka_unit_test(test_processes),
    cmocka_unit_test(test_missing_rank),
    cmocka_unit_test(test_abort),
    cmocka_unit_test(test_bad_groups),
    cmocka_unit_test(test_emulation),
};
TEST_MAIN("comm", tests)
