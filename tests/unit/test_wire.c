/* Framing, limits and checks of the messages between daemon and engine, over a real
 * socketpair, incl. every cut and many flips of well-formed messages. */
#include "daemon/serve/wire.h"
#include "daemon/serve/wire_kv.h"

#include <fcntl.h>
#include <math.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "base/err.h"
#include "daemon/serve/wire_experts.h"
#include "tests/test.h"

struct pair {
    struct wire_conn *a, *b;
    int raw; /* a's descriptor */
};

static void pair_open(struct pair *p, size_t max_out)
{
    int fd[2];

    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
    p->raw = fd[0];
    p->a = wire_conn_new(fd[0], max_out);
    p->b = wire_conn_new(fd[1], max_out);
}

static void pair_close(struct pair *p)
{
    wire_conn_free(p->a);
    wire_conn_free(p->b);
}

/* Move bytes until a frame stands at b; 1, or -1 when either side failed. */
static int pair_recv(struct pair *p, enum wire_kind *kind, const void **ret, size_t *n)
{
    struct err e;

    for (int i = 0; i < 100000; i++) {
        int r = wire_next(p->b, kind, ret, n, &e);
        if (r != 0)
            return r;
        if (wire_flush(p->a, &e) < 0 || wire_fill(p->b, &e) != 0)
            return -1;
    }
    return 0;
}

static void test_round_trips(void **state)
{
    (void)state;
    struct pair p;
    struct err e;
    enum wire_kind k;
    const void *pl;
    size_t n;

    pair_open(&p, 1 << 20);
    struct wire_ready r = {.n_ctx = 2048, .name = "a model"};
    for (int i = 0; i < 5; i++) {
        uint64_t id = 77 + (uint64_t)i;
        assert_int_equal(
            wire_send(p.a, WIRE_READY, &(struct wire_part){&r, sizeof(r)}, 1, &e), 0);
        assert_int_equal(wire_send(p.a, WIRE_DRAIN, NULL, 0, &e), 0);
        assert_int_equal(
            wire_send(p.a, WIRE_CANCEL, &(struct wire_part){&id, sizeof(id)}, 1, &e), 0);
    }
    for (int i = 0; i < 5; i++) {
        struct wire_ready got;
        uint64_t id;
        assert_int_equal(pair_recv(&p, &k, &pl, &n), 1);
        assert_int_equal(k, WIRE_READY);
        assert_int_equal(wire_parse(k, pl, n, &got, &e), 0);
        assert_memory_equal(&got, &r, sizeof(r));
        assert_int_equal(pair_recv(&p, &k, &pl, &n), 1);
        assert_int_equal(k, WIRE_DRAIN);
        assert_int_equal(n, 0);
        assert_int_equal(pair_recv(&p, &k, &pl, &n), 1);
        assert_int_equal(wire_parse(k, pl, n, &id, &e), 0);
        assert_int_equal(id, 77 + i);
    }
    pair_close(&p);
}

static void fill_add(struct wire_add *a, int32_t *prompt, int np, int32_t *stops, int ns,
                     struct step_bias *bias, int nb)
{
    *a = (struct wire_add){.params = {.id = 5,
                                      .seed = 9,
                                      .max_tokens = 16,
                                      .temperature = 0.5f,
                                      .top_p = 1,
                                      .repetition = 1,
                                      .n_top = -1,
                                      .n_prompt = np,
                                      .n_stop = ns,
                                      .n_bias = nb},
                           .prompt = prompt,
                           .stops = stops,
                           .biases = bias};
}

static void test_add(void **state)
{
    (void)state;
    struct pair p;
    struct err e;
    enum wire_kind k;
    const void *pl;
    size_t n;
    static int32_t prompt[300001];
    int32_t stops[3] = {4, 5, 6};
    struct step_bias bias[2] = {{7, -1.5f}, {8, 2}};
    struct wire_add a, got;

    pair_open(&p, WIRE_MAX);
    for (int i = 0; i < 300001; i++)
        prompt[i] = i * 3;
    static const int sizes[] = {1, 2, 3, 1000, 300001, 1};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        fill_add(&a, prompt, sizes[i], stops, 3, bias, 2);
        assert_int_equal(wire_send_add(p.a, &a, &e), 0);
        assert_int_equal(pair_recv(&p, &k, &pl, &n), 1);
        assert_int_equal(k, WIRE_ADD);
        assert_int_equal((uintptr_t)pl % 8, 0);
        assert_int_equal(wire_parse_add(pl, n, &got, &e), 0);
        assert_memory_equal(&got.params, &a.params, sizeof(a.params));
        assert_memory_equal(got.prompt, prompt, sizeof(int32_t) * (size_t)sizes[i]);
        assert_memory_equal(got.stops, stops, sizeof(stops));
        assert_memory_equal(got.biases, bias, sizeof(bias));
    }
    pair_close(&p);
}

/* The payload of one ADD or TOKENS message, to be damaged. */
static size_t capture(struct pair *p, uint8_t *out, size_t cap)
{
    enum wire_kind k;
    const void *pl;
    size_t n;

    assert_int_equal(pair_recv(p, &k, &pl, &n), 1);
    assert_true(n <= cap);
    memcpy(out, pl, n);
    return n;
}

static void test_add_damaged(void **state)
{
    (void)state;
    struct pair p;
    struct err e;
    int32_t prompt[4] = {1, 2, 3, 4}, stops[1] = {2};
    struct step_bias bias[1] = {{3, 1}};
    struct wire_add a, got;
    uint8_t *msg = malloc(4096), *bad;

    pair_open(&p, 1 << 20);
    fill_add(&a, prompt, 4, stops, 1, bias, 1);
    assert_int_equal(wire_send_add(p.a, &a, &e), 0);
    size_t n = capture(&p, msg, 4096);
    for (size_t cut = 0; cut < n; cut++) { /* exact allocation: over-reads are seen */
        bad = malloc(cut ? cut : 1);
        memcpy(bad, msg, cut);
        assert_int_equal(wire_parse_add(bad, cut, &got, &e), -1);
        free(bad);
    }
    assert_int_equal(wire_parse_add(msg, n, &got, &e), 0);
    msg[offsetof(struct gen_params, no_cache)] = 2;
    assert_int_equal(wire_parse_add(msg, n, &got, &e), -1);
    free(msg);

    struct wire_add b = a;
    b.params.temperature = NAN;
    assert_int_equal(wire_send_add(p.a, &b, &e), 0);
    b = a;
    b.params.n_top = 21;
    assert_int_equal(wire_send_add(p.a, &b, &e), 0);
    bias[0].bias = INFINITY;
    assert_int_equal(wire_send_add(p.a, &a, &e), 0);
    for (int i = 0; i < 3; i++) {
        enum wire_kind k;
        const void *pl;
        size_t m;
        assert_int_equal(pair_recv(&p, &k, &pl, &m), 1);
        assert_int_equal(wire_parse_add(pl, m, &got, &e), -1);
        assert_int_equal(e.code, ERR_RANGE);
        assert_true(e.param[0] != 0);
    }
    pair_close(&p);
}

/* A seed of the fuzzer that this build no longer takes finds nothing: after a change of
 * such a struct run this test with WRITE_SEEDS=1 and commit what it wrote. */
static void seed(const char *name, enum wire_kind kind, const void *p, size_t n,
                 uint8_t *ret)
{
    char path[128];
    FILE *f;

    snprintf(path, sizeof(path), "tests/fuzz/seeds/wire/%s", name);
    if (getenv("WRITE_SEEDS")) {
        assert_non_null(f = fopen(path, "wb"));
        fputc((int)kind, f);
        assert_int_equal(fwrite(p, 1, n, f), n);
        fclose(f);
    }
    assert_non_null(f = fopen(path, "rb"));
    assert_int_equal(fgetc(f), kind);
    assert_int_equal(fread(ret, 1, n + 1, f), n);
    fclose(f);
}

static void test_seeds(void **state)
{
    (void)state;
    int32_t ids[3] = {1, 2, 3};
    struct step_bias bias = {3, 1};
    uint8_t msg[1024], got[1024];
    struct wire_finish fin = {.id = 7,
                              .reason = FINISH_ERROR,
                              .stop_id = -1,
                              .retry_us = 1500000,
                              .code = ERR_BUSY,
                              .msg = "late"};
    struct wire_add a;
    struct pair p;
    struct err e;

    pair_open(&p, 1 << 20);
    fill_add(&a, ids, 2, ids + 2, 1, &bias, 1);
    a.params.ttft_us = 200000;
    a.params.tpot_us = 50000;
    a.params.age_us = 1000;
    assert_int_equal(wire_send_add(p.a, &a, &e), 0);
    size_t n = capture(&p, msg, sizeof(msg));
    seed("add", WIRE_ADD, msg, n, got);
    assert_int_equal(wire_parse_add(got, n, &a, &e), 0);
    assert_true(a.params.ttft_us == 200000 && a.params.age_us == 1000);
    const int64_t bad[] = {-1, GEN_MAX_US + 1, INT64_MIN, INT64_MAX};
    static const size_t at[] = {offsetof(struct gen_params, ttft_us),
                                offsetof(struct gen_params, tpot_us),
                                offsetof(struct gen_params, age_us)};
    for (int i = 0; i < 12; i++) {
        memcpy(got, msg, n);
        memcpy(got + at[i % 3], &bad[i / 3], sizeof(*bad));
        assert_int_equal(wire_parse_add(got, n, &a, &e), -1);
    }
    seed("finish", WIRE_FINISH, &fin, sizeof(fin), got);
    assert_int_equal(wire_parse(WIRE_FINISH, got, sizeof(fin), &fin, &e), 0);
    assert_int_equal(fin.retry_us, 1500000);
    pair_close(&p);
}

static void fill_tokens(struct step_token *t, int n)
{
    uint64_t r = test_seed();

    for (int i = 0; i < n; i++) {
        t[i] = (struct step_token){.id = i, .logprob = -0.5f, .n_top = i % 21};
        for (int j = 0; j < t[i].n_top; j++) {
            t[i].top_id[j] = (int32_t)(test_rand(&r) & 0xffff);
            t[i].top_logprob[j] = -(float)j;
        }
    }
}

static void test_tokens(void **state)
{
    (void)state;
    struct pair p;
    struct err e;
    enum wire_kind k;
    const void *pl;
    size_t n, cap = 0;
    enum { N = WIRE_TOK_MAX * 2 + 5 };
    struct step_token *t = calloc(N, sizeof(*t)), *buf = NULL;
    struct wire_tokens h;
    int got = 0;

    pair_open(&p, WIRE_MAX);
    fill_tokens(t, N);
    assert_int_equal(wire_send_tokens(p.a, 42, true, t, N, &e), 0);
    while (got < N) {
        assert_int_equal(pair_recv(&p, &k, &pl, &n), 1);
        assert_int_equal(k, WIRE_TOKENS);
        assert_int_equal(wire_parse_tokens(pl, n, &h, &buf, &cap, &e), 0);
        assert_int_equal(h.id, 42);
        assert_int_equal(h.scored, 1);
        assert_memory_equal(buf, t + got, sizeof(*t) * (size_t)h.n);
        got += h.n;
    }
    assert_int_equal(got, N);
    free(buf);
    free(t);
    pair_close(&p);
}

static void test_tokens_damaged(void **state)
{
    (void)state;
    struct pair p;
    struct err e;
    struct step_token t[3], *buf = NULL;
    struct wire_tokens h;
    size_t cap = 0;
    uint8_t *msg = malloc(4096);

    pair_open(&p, 1 << 20);
    fill_tokens(t, 3);
    assert_int_equal(wire_send_tokens(p.a, 42, false, t, 3, &e), 0);
    size_t n = capture(&p, msg, 4096);
    for (size_t cut = 0; cut < n; cut++) {
        uint8_t *bad = malloc(cut ? cut : 1);
        memcpy(bad, msg, cut);
        assert_int_equal(wire_parse_tokens(bad, cut, &h, &buf, &cap, &e), -1);
        free(bad);
    }
    int32_t lies[] = {-1, 4, WIRE_TOK_MAX + 1, INT32_MAX};
    for (size_t i = 0; i < 4; i++) {
        memcpy(msg + offsetof(struct wire_tokens, n), &lies[i], 4);
        assert_int_equal(wire_parse_tokens(msg, n, &h, &buf, &cap, &e), -1);
    }
    free(buf);
    free(msg);
    pair_close(&p);
}

/* Orders for experts and their news: there and back, cut short, and with fields that are
 * not possible. */
static void test_experts(void **state)
{
    (void)state;
    const struct move moves[] = {{7, 1, 1, {{1, 4, 0}}},
                                 {8, 0, 2, {{0, 1, 4}, {1, 0, -1}}}};
    const int32_t layers[] = {0, 1};
    const float shares[] = {0.5f, 0.5f, 1, 1, 0.25f, 0.75f};
    struct {
        struct wire_experts h;
        struct move moves[2];
        int32_t layers[2];
        float shares[6];
    } m = {{2, 2, 3, 1, 1 << 20, 0.06}, {{0}}, {0}, {0}}, bad;
    struct wire_expert_orders o;
    struct err e;

    memcpy(m.moves, moves, sizeof(moves));
    memcpy(m.layers, layers, sizeof(layers));
    memcpy(m.shares, shares, sizeof(shares));
    assert_int_equal(wire_parse_experts(&m, sizeof(m), &o, &e), 0);
    assert_int_equal(o.h.cancel, 1);
    assert_memory_equal(o.moves, moves, sizeof(moves));
    assert_memory_equal(o.layers, layers, sizeof(layers));
    assert_memory_equal(o.shares, shares, sizeof(shares));
    for (size_t n = 0; n < sizeof(m); n++)
        assert_int_equal(wire_parse_experts(&m, n, &o, &e), -1);
    const struct {
        size_t at;
        int32_t value;
    } wrong[] = {
        {offsetof(struct wire_experts, n_moves), -1},
        {offsetof(struct wire_experts, n_moves), INT32_MAX},
        {offsetof(struct wire_experts, n_layers), WIRE_EXPERT_LAYERS + 1},
        {offsetof(struct wire_experts, n_slots), INT32_MAX},
        {offsetof(struct wire_experts, cancel), 2},
        {offsetof(struct wire_experts, step_bytes) + 4, -1},
        {offsetof(struct wire_experts, copy_share) + 4, 0x40000000 /* 2.0 */},
        {offsetof(struct wire_experts, copy_share) + 4, 0x7ff80000 /* no number */},
        {sizeof(m.h) + offsetof(struct move, n), 0},
        {sizeof(m.h) + offsetof(struct move, n), MOVE_PUTS + 1},
        {sizeof(m) - 4, -1082130432 /* -1.0 */},
        {sizeof(m) - 8, 0x7fc00000 /* no number */},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        bad = m;
        memcpy((char *)&bad + wrong[i].at, &wrong[i].value, 4);
        assert_int_equal(wire_parse_experts(&bad, sizeof(bad), &o, &e), -1);
        assert_int_equal(e.code, ERR_SYNTAX);
    }
    struct wire_moved v = {.id = 7, .state = MOVE_DONE}, got;
    assert_int_equal(wire_parse(WIRE_MOVED, &v, sizeof(v), &got, &e), 0);
    assert_int_equal(wire_parse(WIRE_MOVED, &v, sizeof(v) - 1, &got, &e), -1);
    v.state = MOVE_STATE_COUNT;
    assert_int_equal(wire_parse(WIRE_MOVED, &v, sizeof(v), &got, &e), -1);
    v.state = MOVE_DONE;
    memset(v.why, 'x', sizeof(v.why));
    assert_int_equal(wire_parse(WIRE_MOVED, &v, sizeof(v), &got, &e), -1);
}

static void test_bad_heads(void **state)
{
    (void)state;
    static const struct wire_head bad[] = {
        {WIRE_MAX + 1u, WIRE_ADD, WIRE_VERSION},
        {8, WIRE_COUNT, WIRE_VERSION},
        {8, WIRE_CANCEL, WIRE_VERSION + 1},
        {UINT32_MAX, WIRE_ADD, WIRE_VERSION},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct pair p;
        struct err e;
        enum wire_kind k;
        const void *pl;
        size_t n;
        pair_open(&p, 1 << 20);
        assert_int_equal(write(p.raw, &bad[i], sizeof(bad[i])), sizeof(bad[i]));
        assert_int_equal(pair_recv(&p, &k, &pl, &n), -1);
        /* dead for good, with a sentence */
        assert_int_equal(wire_fill(p.b, &e), -1);
        assert_true(e.msg[0] != 0);
        assert_int_equal(wire_send(p.b, WIRE_STOP, NULL, 0, &e), -1);
        pair_close(&p);
    }
}

static void test_struct_checks(void **state)
{
    (void)state;
    struct err e;
    struct wire_ready r, got;
    struct wire_loading l = {NAN}, lg;

    memset(&r, 'x', sizeof(r));
    assert_int_equal(wire_parse(WIRE_READY, &r, sizeof(r), &got, &e), -1);
    memset(&r, 0, sizeof(r));
    assert_int_equal(wire_parse(WIRE_READY, &r, sizeof(r), &got, &e), 0);
    assert_int_equal(wire_parse(WIRE_READY, &r, sizeof(r) - 1, &got, &e), -1);
    assert_int_equal(wire_parse(WIRE_LOADING, &l, sizeof(l), &lg, &e), -1);
    l.done = 0.5;
    assert_int_equal(wire_parse(WIRE_LOADING, &l, sizeof(l), &lg, &e), 0);
    assert_int_equal(wire_parse(WIRE_DRAIN, NULL, 0, NULL, &e), 0);
    assert_int_equal(wire_parse(WIRE_DRAIN, &l, 1, &lg, &e), -1);
}

static void test_deaf_peer_is_cut(void **state)
{
    (void)state;
    struct pair p;
    struct err e;
    static uint8_t block[64 << 10];
    struct wire_part part = {block, sizeof(block)};
    int sent = 0;

    pair_open(&p, 1 << 20);
    while (sent < 1000 && wire_send(p.a, WIRE_TOKENS, &part, 1, &e) == 0)
        sent++;
    assert_true(sent > 10 && sent < 1000);
    assert_int_equal(e.code, ERR_TOOBIG);
    assert_false(wire_wants_write(p.a));
    pair_close(&p);
}

static void test_close_after_data(void **state)
{
    (void)state;
    struct pair p;
    struct err e;
    enum wire_kind k;
    const void *pl;
    size_t n;

    pair_open(&p, 1 << 20);
    assert_int_equal(wire_send(p.a, WIRE_STOP, NULL, 0, &e), 0);
    wire_conn_free(p.a);
    p.a = NULL;
    assert_int_equal(wire_fill(p.b, &e), 0);
    assert_int_equal(wire_next(p.b, &k, &pl, &n, &e), 1);
    assert_int_equal(k, WIRE_STOP);
    assert_int_equal(wire_fill(p.b, &e), 1);
    pair_close(&p);
}

static void test_cork(void **state)
{
    (void)state;
    struct pair p;
    struct err e;
    enum wire_kind k;
    const void *pl;
    size_t n;

    pair_open(&p, 1 << 20);
    wire_cork(p.a);
    for (int i = 0; i < 3; i++)
        assert_int_equal(wire_send(p.a, WIRE_DRAIN, NULL, 0, &e), 0);
    assert_true(wire_wants_write(p.a));
    assert_int_equal(wire_fill(p.b, &e), 0);
    assert_int_equal(wire_next(p.b, &k, &pl, &n, &e), 0);
    assert_int_equal(wire_uncork(p.a, &e), 0);
    assert_false(wire_wants_write(p.a));
    for (int i = 0; i < 3; i++)
        assert_int_equal(pair_recv(&p, &k, &pl, &n), 1);
    pair_close(&p);
}

/* What a signal handler sends by itself is a frame like any other, however long. */
static void test_fail_frame(void **state)
{
    (void)state;
    static char path[2000];

    memset(path, 'p', sizeof(path) - 1);
    for (int i = 0; i < 2; i++) {
        struct pair p;
        struct err e;
        enum wire_kind k;
        const void *pl;
        size_t n;
        struct wire_fail f;
        uint8_t frame[WIRE_FAIL_BYTES];
        pair_open(&p, 1 << 20);
        n = wire_fail_frame(frame, ERR_CORRUPT, "cut short: ", i ? path : "m.gguf");
        assert_true(n <= sizeof(frame));
        assert_int_equal(write(p.raw, frame, n), n);
        assert_int_equal(pair_recv(&p, &k, &pl, &n), 1);
        assert_int_equal(k, WIRE_FAIL);
        assert_int_equal(wire_parse(k, pl, n, &f, &e), 0);
        assert_int_equal(f.code, ERR_CORRUPT);
        assert_int_equal(strlen(f.msg),
                         i ? sizeof(f.msg) - 1 : strlen("cut short: m.gguf"));
        pair_close(&p);
    }
}

/* ---- descriptors and what two engines say to each other ---- */

static const struct wire_arena arena = {.incarnation = 7,
                                        .bytes = 4096,
                                        .rank = 1,
                                        .n_arenas = 3,
                                        .n_blocks = 5,
                                        .n_layer = 2,
                                        .all_layers = 2,
                                        .head_from = 1,
                                        .n_head = 1,
                                        .all_heads = 2,
                                        .head_dim = 64,
                                        .type = 1,
                                        .cp = 1,
                                        .block_tok = 16};

/* Many at once, with other messages between and a socket that is full: each comes with
 * its own. */
static void test_descriptors(void **state)
{
    (void)state;
    struct pair p;
    struct err e;
    enum wire_kind k;
    const void *pl;
    size_t n;
    static uint8_t bulk[100000];
    char name[16];

    pair_open(&p, 64 << 20);
    for (int i = 0; i < 40; i++) {
        struct wire_arena a = arena;
        snprintf(name, sizeof(name), "fd%d", i);
        int fd = memfd_create(name, MFD_CLOEXEC);
        assert_int_equal(write(fd, name, sizeof(name)), sizeof(name));
        a.n_blocks = i + 1;
        assert_int_equal(wire_send_arena(p.a, i % 2, &a, fd, &e), 0);
        close(fd);
        if (i % 3 == 0)
            assert_int_equal(wire_send(p.a, WIRE_EXPORT,
                                       &(struct wire_part){bulk, sizeof(bulk)}, 1, &e),
                             0);
    }
    for (int i = 0; i < 40; i++) {
        struct wire_arena a;
        char got[16];
        assert_int_equal(pair_recv(&p, &k, &pl, &n), 1);
        assert_int_equal(k, i % 2 ? WIRE_PEER : WIRE_ARENA);
        assert_int_equal(wire_parse(k, pl, n, &a, &e), 0);
        assert_int_equal(a.n_blocks, i + 1);
        int fd = i % 5 ? wire_take_fd(p.b) : -1; /* one that is not taken is closed */
        snprintf(name, sizeof(name), "fd%d", i);
        if (i % 5) {
            assert_true(fd >= 0 && wire_take_fd(p.b) == -1);
            assert_int_equal(pread(fd, got, sizeof(got), 0), sizeof(got));
            assert_string_equal(got, name);
            close(fd);
        }
        if (i % 3 == 0) {
            assert_int_equal(pair_recv(&p, &k, &pl, &n), 1);
            assert_true(k == WIRE_EXPORT && n == sizeof(bulk) && wire_take_fd(p.b) == -1);
        }
    }
    pair_close(&p);
}

static void test_arena_checked(void **state)
{
    (void)state;
    struct err e;
    struct wire_arena a, got;

#define BAD(f, v)                                                                        \
    a = arena;                                                                           \
    a.f = (v);                                                                           \
    assert_int_equal(wire_parse(WIRE_ARENA, &a, sizeof(a), &got, &e), -1)
    assert_int_equal(wire_parse(WIRE_ARENA, &arena, sizeof(arena), &got, &e), 0);
    BAD(incarnation, 0);
    BAD(bytes, 0);
    BAD(rank, 2);
    BAD(rank, -2);
    BAD(n_arenas, 1);
    BAD(n_arenas, 1 << 20);
    BAD(n_blocks, 0);
    BAD(n_layer, 3);
    BAD(first_layer, 1);
    BAD(first_layer, -1);
    BAD(head_from, 2);
    BAD(all_heads, INT32_MAX);
    BAD(head_dim, 0);
    BAD(v_dim, 65);
    BAD(type, 1000);
    BAD(cp, 0);
    BAD(cp_at, 1);
    BAD(striped, 2);
    BAD(shard, -1);
    BAD(block_tok, 17);
#undef BAD
}

static void test_offers(void **state)
{
    (void)state;
    struct pair p;
    struct err e;
    enum wire_kind k;
    const void *pl;
    size_t n;
    struct wire_block blocks[3] = {{4, 1, 0}, {5, 2, 9}, {6, 3, 0}};
    static const int32_t gen[] = {11, 12};
    struct wire_offer got;
    struct wire_offer o = {.h = {.id = 9,
                                 .incarnation = 7,
                                 .first = 2,
                                 .n = 3,
                                 .upto = 70,
                                 .n_tok = 70,
                                 .block_tok = 16,
                                 .n_gen = 2,
                                 .last = 1},
                           .blocks = blocks,
                           .gen = gen};

    pair_open(&p, WIRE_MAX);
    assert_int_equal(wire_send_export(p.a, &o, &e), 0);
    assert_int_equal(pair_recv(&p, &k, &pl, &n), 1);
    assert_int_equal(wire_parse_export(pl, n, &got, &e), 0);
    assert_memory_equal(&got.h, &o.h, sizeof(o.h));
    assert_memory_equal(got.blocks, blocks, sizeof(blocks));
    assert_memory_equal(got.gen, gen, sizeof(gen));
    uint8_t damaged[256];
    assert_true(n < sizeof(damaged));
    memcpy(damaged, pl, n);
    for (size_t cut = 0; cut < n; cut++)
        assert_int_equal(wire_parse_export(damaged, cut, &got, &e), -1);
    const struct wire_export bad[] = {
        {9, 0, 2, 3, 70, 70, 16, 2, 1, 0}, /* no incarnation */
        {9, 7, 2, 3, 64, 70, 16, 2, 1, 0}, /* the last, and not all */
        {9, 7, 2, 3, 70, 70, 16, 0, 1, 0}, /* the last without ids */
        {9, 7, 2, 3, 70, 70, 16, 2, 0, 0}, /* ids before the last */
        {9, 7, 2, 3, 81, 90, 16, 0, 0, 0}, /* more positions than blocks */
        {9, 7, 2, 3, 64, 90, 16, 0, 0, 0}, /* fewer */
        {9, 7, -1, 3, 32, 90, 16, 0, 0, 0},
        {9, 7, 2, 3, 70, 70, 0, 2, 1, 0},
        {9, 7, INT32_MAX, 3, 70, 70, INT32_MAX, 2, 1, 0},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        memcpy(damaged, &bad[i], sizeof(bad[i]));
        assert_int_equal(wire_parse_export(damaged, n, &got, &e), -1);
    }
    struct wire_recompute r;
    const int32_t *ids;
    assert_int_equal(wire_send_recompute(p.a, 9, gen, 2, &e), 0);
    assert_int_equal(pair_recv(&p, &k, &pl, &n), 1);
    assert_int_equal(wire_parse_recompute(pl, n, &r, &ids, &e), 0);
    assert_true(r.id == 9 && r.n_gen == 2 && ids[1] == 12);
    assert_int_equal(wire_parse_recompute(pl, n - 4, &r, &ids, &e), -1);
    pair_close(&p);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_round_trips),
    cmocka_unit_test(test_add),
    cmocka_unit_test(test_add_damaged),
    cmocka_unit_test(test_tokens),
    cmocka_unit_test(test_tokens_damaged),
    cmocka_unit_test(test_experts),
    cmocka_unit_test(test_seeds),
    cmocka_unit_test(test_bad_heads),
    cmocka_unit_test(test_struct_checks),
    cmocka_unit_test(test_deaf_peer_is_cut),
    cmocka_unit_test(test_close_after_data),
    cmocka_unit_test(test_cork),
    cmocka_unit_test(test_fail_frame),
    cmocka_unit_test(test_descriptors),
    cmocka_unit_test(test_arena_checked),
    cmocka_unit_test(test_offers),
};

TEST_MAIN("wire", tests)
