/* The engine's whole life over a socketpair: a tiny model or the null executor in a
 * thread of this process, the daemon's side played by the test. */
#include "daemon/serve/engine.h"

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/cpuset.h"
#include "base/err.h"
#include "base/metric.h"
#include "daemon/serve/engine_fit.h"
#include "daemon/serve/metrics.h"
#include "daemon/serve/wire.h"
#include "daemon/serve/wire_experts.h"
#include "tests/tiny.h"

struct side {
    pthread_t thread;
    struct engine_cfg cfg;
    struct wire_conn *engine, *daemon;
    struct metric_page *page;
    int rc;
    struct err e;
    char dir[256];
    struct step_token *buf;
    size_t buf_cap;
};

/* What came for one request. */
struct answer {
    struct step_token toks[600];
    int n, n_scored;
    struct wire_finish f;
    bool finished;
};

static void *engine_thread(void *arg)
{
    struct side *s = arg;

    s->rc = engine_run(&s->cfg, s->engine, s->page, &s->e);
    shutdown(wire_conn_fd(s->engine), SHUT_WR);
    return NULL;
}

static struct engine_cfg base_cfg(void)
{
    return (struct engine_cfg){.step_tok = 64,
                               .max_seqs = 8,
                               .max_waiting = 16,
                               .kv_mib = 1,
                               .ctx = 1024,
                               .threads = 2,
                               .backend = "cpu",
                               .isa = "auto",
                               .reuse = true};
}

static void launch(struct side *s, const struct engine_cfg *cfg, size_t out_max)
{
    int fd[2];

    memset(s, 0, sizeof(*s));
    s->cfg = *cfg;
    if (!cfg->model) {
        snprintf(s->dir, sizeof(s->dir), "%s", tiny_model("llama", test_seed()));
        s->cfg.model = s->dir;
    }
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
    s->engine = wire_conn_new(fd[0], out_max);
    s->daemon = wire_conn_new(fd[1], WIRE_MAX);
    assert_int_equal(metric_page_new(metrics_defs, METRICS_N, NULL, &s->page, &s->e), 0);
    assert_int_equal(pthread_create(&s->thread, NULL, engine_thread, s), 0);
}

/* The next message; false at the end of the connection. */
static bool next(struct side *s, enum wire_kind *kind, const void **p, size_t *n)
{
    struct err e = {0};

    for (;;) {
        int r = wire_next(s->daemon, kind, p, n, &e);
        if (r > 0)
            return true;
        struct pollfd fd = {wire_conn_fd(s->daemon), POLLIN, 0};
        assert_true(r == 0 && poll(&fd, 1, -1) == 1);
        r = wire_fill(s->daemon, &e);
        if (r < 0)
            fail_msg("%s", e.msg);
        if (r > 0)
            return false;
    }
}

static void send_bare(struct side *s, enum wire_kind kind)
{
    assert_int_equal(wire_send(s->daemon, kind, NULL, 0, NULL), 0);
}

/* HELLO, some LOADING that rise, READY. */
static void wait_ready(struct side *s, struct wire_ready *ret)
{
    enum wire_kind kind;
    const void *p;
    size_t n;
    struct wire_hello h;
    double done = 0;
    struct err e = {0};

    assert_true(next(s, &kind, &p, &n));
    assert_int_equal(wire_parse(kind, p, n, &h, &e), 0);
    assert_int_equal(kind, WIRE_HELLO);
    assert_int_equal(h.version, WIRE_VERSION);
    assert_int_equal(h.pid, getpid());
    while (next(s, &kind, &p, &n) && kind == WIRE_LOADING) {
        struct wire_loading l;
        assert_int_equal(wire_parse(kind, p, n, &l, &e), 0);
        assert_true(l.done >= done && l.done <= 1);
        done = l.done;
    }
    if (kind == WIRE_FAIL)
        fail_msg("%s", ((const struct wire_fail *)p)->msg);
    assert_int_equal(kind, WIRE_READY);
    assert_int_equal(wire_parse(kind, p, n, ret, &e), 0);
}

static void open_side(struct side *s, const struct engine_cfg *cfg)
{
    struct wire_ready r;

    launch(s, cfg, WIRE_MAX);
    wait_ready(s, &r);
}

static int join(struct side *s)
{
    pthread_join(s->thread, NULL);
    wire_conn_free(s->engine);
    wire_conn_free(s->daemon);
    metric_page_free(s->page);
    if (s->dir[0])
        tiny_remove(s->dir);
    free(s->buf);
    return s->rc;
}

static int stop(struct side *s)
{
    send_bare(s, WIRE_STOP);
    return join(s);
}

static const int32_t prompt[] = {72, 101, 108, 108, 111, 32, 119, 111, 114, 108};

static struct wire_add request(uint64_t id, int n_prompt, int n_new)
{
    return (struct wire_add){.params = {.id = id,
                                        .seed = id,
                                        .max_tokens = n_new,
                                        .temperature = 0.8f,
                                        .top_p = 1,
                                        .repetition = 1,
                                        .n_top = 5,
                                        .n_prompt = n_prompt,
                                        .ignore_eos = true},
                             .prompt = prompt};
}

static void ask(struct side *s, const struct wire_add *a)
{
    assert_int_equal(wire_send_add(s->daemon, a, NULL), 0);
}

/* Take messages until n requests, ids first.., are finished. */
static void collect(struct side *s, struct answer *a, uint64_t first, int n)
{
    enum wire_kind kind;
    const void *p;
    size_t len;
    struct err e = {0};

    for (int left = n; left;) {
        assert_true(next(s, &kind, &p, &len));
        if (kind == WIRE_FINISH) {
            struct wire_finish f;
            assert_int_equal(wire_parse(kind, p, len, &f, &e), 0);
            assert_true(f.id >= first && f.id < first + (uint64_t)n);
            assert_false(a[f.id - first].finished);
            a[f.id - first].f = f;
            a[f.id - first].finished = true;
            left--;
            continue;
        }
        assert_int_equal(kind, WIRE_TOKENS);
        struct wire_tokens h;
        assert_int_equal(wire_parse_tokens(p, len, &h, &s->buf, &s->buf_cap, &e), 0);
        struct answer *to = &a[h.id - first];
        assert_false(to->finished);
        assert_true(to->n + h.n <= 600);
        memcpy(to->toks + to->n, s->buf, sizeof(*s->buf) * (size_t)h.n);
        to->n += h.n;
        to->n_scored += h.scored ? h.n : 0;
    }
}

/* A step that was in flight at the last FINISH holds blocks until it is back. */
static void wait_no_blocks(struct side *s)
{
    while (metric_get(s->page, M_KV_BLOCKS_USED, 0) > 0)
        clock_sleep_us(1000);
}

/* ---- tests ---- */

static void test_ready(void **state)
{
    (void)state;
    struct side s;
    struct wire_ready r;
    struct engine_cfg cfg = base_cfg();

    launch(&s, &cfg, WIRE_MAX);
    wait_ready(&s, &r);
    assert_int_equal(r.n_ctx, 1024);
    assert_int_equal(r.n_vocab, TINY_VOCAB);
    assert_int_equal(r.block_tok, 16);
    assert_int_equal(r.n_threads, 2);
    assert_true(r.n_blocks >= 1024 / 16);
    assert_true(r.weight_bytes > 0 && r.kv_bytes > 0 && r.n_params > 0 && r.load_us > 0);
    assert_string_equal(r.family, "llama");
    assert_string_equal(r.format, "safetensors");
    assert_string_equal(r.main_type, "F32");
    assert_true(r.isa[0] && r.kv_type[0] && r.name[0]);
    assert_int_equal(stop(&s), 0);
}

/* Asked whether it is alive it says so at once, idle or not, and nothing else. */
static void test_alive(void **state)
{
    (void)state;
    struct side s;
    static struct answer a[1];
    struct engine_cfg cfg = base_cfg();
    struct wire_add long_one = request(1, 10, 200);
    enum wire_kind kind;
    const void *p;
    size_t n;
    int pongs = 0;

    memset(a, 0, sizeof(a));
    open_side(&s, &cfg);
    for (int i = 0; i < 3; i++) {
        send_bare(&s, WIRE_PING);
        assert_true(next(&s, &kind, &p, &n));
        assert_int_equal(kind, WIRE_PONG);
        assert_int_equal(n, 0);
    }
    ask(&s, &long_one);
    send_bare(&s, WIRE_PING);
    for (bool finished = false; !finished;) {
        assert_true(next(&s, &kind, &p, &n));
        finished = kind == WIRE_FINISH;
        pongs += kind == WIRE_PONG;
    }
    assert_int_equal(pongs, 1);
    assert_int_equal(stop(&s), 0);
}

/* The same seed gives the same tokens, whatever else is there. */
static void test_same_seed_same_tokens(void **state)
{
    (void)state;
    struct side s;
    static struct answer alone[1], many[12];
    struct engine_cfg cfg = base_cfg();
    struct wire_add a = request(5, 10, 40);

    memset(alone, 0, sizeof(alone));
    memset(many, 0, sizeof(many));
    open_side(&s, &cfg);
    ask(&s, &a);
    collect(&s, alone, 5, 1);
    assert_int_equal(alone[0].f.reason, FINISH_LENGTH);
    assert_int_equal(alone[0].f.n_out, 40);
    assert_int_equal(alone[0].f.n_prompt, 10);
    assert_int_equal(alone[0].n, 40);
    for (int i = 0; i < 12; i++) { /* more than run at once */
        a = request(100 + (uint64_t)i, 1 + i % 10, 40);
        if (i == 7) {
            a.params.n_prompt = 10;
            a.params.seed = 5;
        }
        ask(&s, &a);
    }
    collect(&s, many, 100, 12);
    assert_int_equal(many[7].n, 40);
    assert_memory_equal(many[7].toks, alone[0].toks, 40 * sizeof(struct step_token));
    assert_int_equal(metric_get(s.page, M_GEN_TOK, 0), 13 * 40);
    assert_int_equal(metric_get(s.page, M_RUNNING, 0), 0);
    wait_no_blocks(&s);
    assert_int_equal(metric_get(s.page, M_REQ_GEN, 0), 13);
    assert_true(metric_get(s.page, M_STEPS, 0) >= 40);
    assert_int_equal(stop(&s), 0);
}

static void tell_cpus(struct side *s, const char *text)
{
    struct wire_part part = {text, strlen(text) + 1};

    assert_int_equal(wire_send(s->daemon, WIRE_CPUS, &part, 1, NULL), 0);
}

/* Threads come and go while it answers, of one rank and of two: the tokens are the same.
 * A text that is none ends it. */
static void test_other_cpus_same_tokens(void **state)
{
    static const char *const layouts[] = {"tp1", "tp2"};
    static struct answer a[2];
    cpu_set_t mine, part;
    char all[CPUSET_TEXT_MAX], one[CPUSET_TEXT_MAX], each[2 * CPUSET_TEXT_MAX];

    (void)state;
    cpuset_mine(&mine);
    cpuset_print(&mine, all, sizeof(all));
    cpuset_share(&mine, 0, CPU_COUNT(&mine), &part);
    cpuset_print(&part, one, sizeof(one));
    for (int k = 0; k < 2; k++) {
        struct engine_cfg cfg = base_cfg();
        struct wire_add r = request(5, 10, 300);
        struct side s;

        memset(a, 0, sizeof(a));
        cfg.threads = 0;
        assert_int_equal(layout_parse(layouts[k], &cfg.layout, &s.e), 0);
        snprintf(each, sizeof(each), k ? "%s;%s" : "%s", one, all);
        open_side(&s, &cfg);
        ask(&s, &r);
        collect(&s, &a[0], 5, 1);
        r.params.id = 6; /* of the same seed */
        ask(&s, &r);
        for (int i = 0; i < 30; i++) {
            tell_cpus(&s, i % 3 == 0 ? one : i % 3 == 1 ? each : all);
            clock_sleep_us(2000);
        }
        collect(&s, &a[1], 6, 1);
        assert_int_equal(a[1].n, 300);
        assert_memory_equal(a[0].toks, a[1].toks, 300 * sizeof(struct step_token));
        if (k)
            tell_cpus(&s, "0;1;2");
        assert_int_equal(k ? join(&s) : stop(&s), k ? -1 : 0);
    }
    assert_int_equal(sched_setaffinity(0, sizeof(mine), &mine), 0);
}

/* Out of KV and computed again, or with a cached prefix, it is still the same. */
static void test_preempted_same_tokens(void **state)
{
    (void)state;
    struct side s;
    static struct answer alone[1], again[1], many[16];
    struct engine_cfg cfg = base_cfg();

    memset(alone, 0, sizeof(alone));
    memset(again, 0, sizeof(again));
    memset(many, 0, sizeof(many));
    cfg.max_seqs = 16; /* the pool of 1 MiB holds half of what they need */
    open_side(&s, &cfg);
    struct wire_add r = request(3, 10, 500);
    ask(&s, &r);
    collect(&s, alone, 3, 1);
    for (uint64_t i = 0; i < 16; i++) {
        r = request(100 + i, 10, 500);
        r.params.seed = i == 15 ? 3 : 50 + i; /* the youngest goes first when KV is out */
        ask(&s, &r);
    }
    collect(&s, many, 100, 16);
    assert_true(metric_get(s.page, M_PREEMPTIONS, 0) > 0);
    assert_true(many[15].f.n_preempted > 0);
    assert_int_equal(many[15].n, 500);
    assert_memory_equal(many[15].toks, alone[0].toks, 500 * sizeof(struct step_token));
    static int32_t longer[300];
    for (int i = 0; i < 300; i++)
        longer[i] = i < 10 ? prompt[i] : alone[0].toks[i - 10].id;
    for (uint64_t i = 0; i < 2; i++) {
        r = request(200 + i, 300, 20);
        r.params.seed = 3;
        r.prompt = longer;
        r.params.no_cache = i == 0;
        ask(&s, &r);
        memset(again, 0, sizeof(again));
        collect(&s, again, 200 + i, 1);
        if (i == 0)
            memcpy(alone, again, sizeof(alone));
    }
    assert_int_equal(alone[0].f.n_cached, 0);
    assert_true(again[0].f.n_cached > 0);
    assert_memory_equal(again[0].toks, alone[0].toks, 20 * sizeof(struct step_token));
    assert_int_equal(stop(&s), 0);
}

/* Two groups of ranks, each with half of the KV: the pool holds half of what is asked, a
 * preempted one has the tokens that it has alone, and later ones find prefixes of both.
 */
static void test_groups_same_tokens(void **state)
{
    (void)state;
    struct side s;
    static struct answer alone[1], again[16], many[16];
    struct engine_cfg cfg = base_cfg();
    char dir[256];

    memset(alone, 0, sizeof(alone));
    memset(again, 0, sizeof(again));
    memset(many, 0, sizeof(many));
    snprintf(dir, sizeof(dir), "%s", tiny_model("qwen3_moe", test_seed()));
    cfg.model = dir;
    cfg.max_seqs = 16;
    cfg.ctx = 512;
    assert_int_equal(layout_parse("adp2 ep2", &cfg.layout, &s.e), 0);
    open_side(&s, &cfg);
    struct wire_add r = request(3, 10, 200);
    ask(&s, &r);
    collect(&s, alone, 3, 1);
    for (int turn = 0; turn < 2; turn++) {
        for (uint64_t i = 0; i < 16; i++) {
            r = request(100 + 100 * (uint64_t)turn + i, 10, 450);
            r.params.seed = i == 15 ? 3 : 50 + i;
            ask(&s, &r);
        }
        collect(&s, turn ? again : many, 100 + 100 * (uint64_t)turn, 16);
    }
    assert_true(metric_get(s.page, M_PREEMPTIONS, 0) > 0);
    assert_memory_equal(many[15].toks, alone[0].toks, 200 * sizeof(struct step_token));
    for (int i = 0; i < 16; i++) {
        assert_int_equal(many[i].n, 450);
        assert_memory_equal(many[i].toks, again[i].toks, 450 * sizeof(struct step_token));
    }
    assert_int_equal(stop(&s), 0);
    tiny_remove(dir);
}

/* Experts that move by orders of the daemon while a request runs: news of every state in
 * order, the same tokens; then an engine that is idle, one that is told to stop with
 * moves under way, and orders where nothing can move. */
static void hear_moves(struct side *s, struct answer *a, int moves, int requests)
{
    int state[8] = {0};
    enum wire_kind kind;
    const void *p;
    size_t len;

    while (moves || requests) {
        struct wire_moved m;
        struct wire_finish f;
        struct wire_tokens h;

        assert_true(next(s, &kind, &p, &len));
        if (kind == WIRE_MOVED) {
            assert_int_equal(wire_parse(kind, p, len, &m, &s->e), 0);
            assert_true(m.id < 8 && m.state > state[m.id]);
            if (m.state == MOVE_ABORTED)
                fail_msg("%s", m.why);
            state[m.id] = m.state;
            moves -= m.state == MOVE_DONE;
        } else if (kind == WIRE_TOKENS) {
            assert_int_equal(wire_parse_tokens(p, len, &h, &s->buf, &s->buf_cap, &s->e),
                             0);
            memcpy(a->toks + a->n, s->buf, sizeof(*s->buf) * (size_t)h.n);
            a->n += h.n;
        } else {
            assert_int_equal(wire_parse(kind, p, len, &f, &s->e), 0);
            requests--;
        }
    }
}

static void test_experts_move(void **state)
{
    (void)state;
    enum { SPARE = TINY_EXPERTS / 2, SLOTS = SPARE + 1 };
    static const struct move moves[] = {{1, 0, 1, {{1, SPARE, 0}}},
                                        {2, 1, 1, {{0, SPARE, TINY_EXPERTS - 1}}},
                                        {3, 0, 1, {{0, 0, -1}}},
                                        {4, 0, 2, {{0, 1, SPARE}, {1, 0, 1}}}};
    const struct wire_expert_orders o = {.h = {.n_moves = 4}, .moves = moves};
    static struct answer want[1], got[1];
    struct engine_cfg cfg = base_cfg();
    struct wire_ready r;
    struct side s;
    char dir[256];

    memset(want, 0, sizeof(want));
    memset(got, 0, sizeof(got));
    snprintf(dir, sizeof(dir), "%s", tiny_model("qwen3_moe", test_seed()));
    cfg.model = dir;
    assert_int_equal(layout_parse("tp2 ep2", &cfg.layout, &s.e), 0);
    struct wire_add a = request(3, 10, 500);
    launch(&s, &cfg, WIRE_MAX);
    wait_ready(&s, &r);
    assert_int_equal(r.expert_layers, 0); /* none to spare: none can move */
    ask(&s, &a);
    collect(&s, want, 3, 1);
    assert_int_equal(wire_send_experts(s.daemon, &o, &s.e), 0);
    assert_int_equal(join(&s), -1);
    assert_non_null(strstr(s.e.msg, "no expert can move here"));

    cfg.moe.spare = 1;
    launch(&s, &cfg, WIRE_MAX);
    wait_ready(&s, &r);
    assert_int_equal(r.expert_layers, TINY_LAYERS);
    assert_int_equal(r.experts, TINY_EXPERTS);
    assert_int_equal(r.expert_ranks, 2);
    assert_int_equal(r.expert_slots, SLOTS);
    assert_int_equal(r.expert_bytes, 3 * TINY_FF_EXPERT * TINY_EMBD * sizeof(float));
    ask(&s, &a);
    assert_int_equal(wire_send_experts(s.daemon, &o, &s.e), 0);
    hear_moves(&s, got, 4, 1);
    assert_int_equal(got[0].n, 500);
    assert_memory_equal(got[0].toks, want[0].toks, 500 * sizeof(struct step_token));
    const struct move back = {5, 0, 1, {{0, 0, 0}}}; /* with nothing else to do */
    const struct wire_expert_orders one = {.h = {.n_moves = 1}, .moves = &back};
    assert_int_equal(wire_send_experts(s.daemon, &one, &s.e), 0);
    hear_moves(&s, got, 1, 0);
    for (int i = 0; i < 2; i++) /* the end with one under way */
        assert_int_equal(wire_send_experts(s.daemon, &o, &s.e), 0);
    assert_int_equal(stop(&s), 0);
    tiny_remove(dir);
}

static void test_scored_prompt(void **state)
{
    (void)state;
    struct side s;
    static struct answer a[1];
    struct engine_cfg cfg = base_cfg();
    struct wire_add r = request(1, 10, 3);

    memset(a, 0, sizeof(a));
    open_side(&s, &cfg);
    r.params.prompt_logprobs = true;
    ask(&s, &r);
    collect(&s, a, 1, 1);
    assert_int_equal(a[0].n_scored, 9);
    assert_int_equal(a[0].n, 12);
    for (int i = 0; i < 9; i++)
        assert_int_equal(a[0].toks[i].id, prompt[i + 1]);
    assert_int_equal(stop(&s), 0);
}

/* A request that began in another engine: all that this one says is what the first one
 * would have said from there on. */
static void test_goes_on_same_tokens(void **state)
{
    (void)state;
    static const int cut[] = {0, 1, 17, 59, 60};
    static struct answer whole[1], rest[5];
    static int32_t ids[70];
    struct engine_cfg cfg = base_cfg();
    struct wire_add r = request(1, 10, 60);
    struct side a, b;

    memset(whole, 0, sizeof(whole));
    memset(rest, 0, sizeof(rest));
    r.params.prompt_logprobs = true;
    r.params.repetition = 1.2f;
    r.params.presence = 0.3f;
    r.params.frequency = 0.2f;
    open_side(&a, &cfg);
    ask(&a, &r);
    collect(&a, whole, 1, 1);
    assert_int_equal(whole[0].n, 9 + 60);
    assert_int_equal(stop(&a), 0);
    open_side(&b, &cfg);
    for (int i = 0; i < 70; i++)
        ids[i] = i < 10 ? prompt[i] : whole[0].toks[i - 1].id;
    r.prompt = ids;
    for (int i = 0; i < 5; i++) {
        r.params.id = 1 + (uint64_t)i;
        r.params.n_gen = cut[i];
        r.params.n_scored = cut[i] ? 9 : 4;
        ask(&b, &r);
    }
    collect(&b, rest, 1, 5);
    for (int i = 0; i < 5; i++) {
        int told = (cut[i] ? 9 : 4) + cut[i];
        assert_int_equal(rest[i].n, 69 - told);
        assert_int_equal(rest[i].n_scored, cut[i] ? 0 : 5);
        assert_memory_equal(rest[i].toks, whole[0].toks + told,
                            (size_t)(69 - told) * sizeof(struct step_token));
        assert_int_equal(rest[i].f.reason, FINISH_LENGTH);
        assert_int_equal(rest[i].f.n_prompt, 10);
        assert_int_equal(rest[i].f.n_out, 60);
        assert_true(rest[i].f.n_cached <= 10);
    }
    /* counted here: what was computed here; prompts, where they began */
    assert_int_equal(metric_get(b.page, M_GEN_TOK, 0), 60 + 59 + 43 + 1);
    assert_int_equal(metric_get(b.page, M_PROMPT_TOK, 0), 10);
    assert_int_equal(stop(&b), 0);
}

static void test_cancel(void **state)
{
    (void)state;
    struct side s;
    static struct answer a[1];
    struct engine_cfg cfg = base_cfg();
    struct wire_add r = request(9, 10, 500);
    uint64_t id = 9;

    memset(a, 0, sizeof(a));
    open_side(&s, &cfg);
    double free_before = metric_get(s.page, M_KV_BLOCKS_FREE, 0) +
                         metric_get(s.page, M_KV_BLOCKS_CACHED, 0);
    ask(&s, &r);
    assert_int_equal(
        wire_send(s.daemon, WIRE_CANCEL, &(struct wire_part){&id, sizeof(id)}, 1, NULL),
        0);
    collect(&s, a, 9, 1);
    assert_int_equal(a[0].f.reason, FINISH_ABORT);
    assert_true(a[0].n < 500);
    /* one more request goes through after it; then the level is what it was */
    memset(a, 0, sizeof(a));
    r = request(10, 10, 4);
    ask(&s, &r);
    collect(&s, a, 10, 1);
    wait_no_blocks(&s);
    assert_int_equal(metric_get(s.page, M_KV_BLOCKS_FREE, 0) +
                         metric_get(s.page, M_KV_BLOCKS_CACHED, 0),
                     free_before);
    assert_int_equal(stop(&s), 0);
}

static void refused(struct side *s, struct wire_add r, enum err_code code)
{
    static struct answer a[1];

    memset(a, 0, sizeof(a));
    ask(s, &r);
    collect(s, a, r.params.id, 1);
    assert_int_equal(a[0].f.reason, FINISH_ERROR);
    assert_int_equal(a[0].f.code, code);
    assert_true(a[0].f.msg[0] != 0);
    assert_int_equal(a[0].n, 0);
}

static void test_refusals(void **state)
{
    (void)state;
    struct side s;
    static struct answer a[1];
    static int32_t many[1100];
    int32_t bad = TINY_VOCAB;
    struct step_bias bias = {-1, 1};
    struct engine_cfg cfg = base_cfg();

    open_side(&s, &cfg);
    struct wire_add r = request(1, 1, 4);
    r.prompt = &bad;
    refused(&s, r, ERR_RANGE);
    r = request(2, 4, 4);
    r.stops = &bad;
    r.params.n_stop = 1;
    refused(&s, r, ERR_RANGE);
    r = request(3, 4, 4);
    r.biases = &bias;
    r.params.n_bias = 1;
    refused(&s, r, ERR_RANGE);
    r = request(4, 4, 4);
    r.params.temperature = -1;
    refused(&s, r, ERR_RANGE);
    r = request(5, 1100, 4);
    r.prompt = many;
    refused(&s, r, ERR_CONTEXT);
    memset(a, 0, sizeof(a));
    r = request(6, 4, 4); /* and it still serves */
    ask(&s, &r);
    collect(&s, a, 6, 1);
    assert_int_equal(a[0].n, 4);
    assert_int_equal(stop(&s), 0);
}

static void test_drain(void **state)
{
    (void)state;
    struct side s;
    static struct answer a[2];
    struct engine_cfg cfg = base_cfg();
    struct wire_add r = request(1, 10, 200);

    memset(a, 0, sizeof(a));
    open_side(&s, &cfg);
    ask(&s, &r);
    send_bare(&s, WIRE_DRAIN);
    r = request(2, 10, 5);
    ask(&s, &r);
    collect(&s, a, 1, 2);
    assert_int_equal(a[0].f.reason, FINISH_LENGTH);
    assert_int_equal(a[0].n, 200);
    assert_int_equal(a[1].f.reason, FINISH_ERROR);
    assert_int_equal(a[1].f.code, ERR_UNAVAIL);
    assert_int_equal(stop(&s), 0);
}

/* The daemon dies: the engine ends at once, whatever runs. */
static void test_end_of_socket(void **state)
{
    (void)state;
    struct side s;
    struct engine_cfg cfg = base_cfg();
    struct wire_add r = request(1, 10, 1000);

    open_side(&s, &cfg);
    ask(&s, &r);
    wire_conn_free(s.daemon);
    s.daemon = NULL;
    join(&s); /* 0, or -1 where a write met the closed end first */
}

static void expect_fail(struct side *s, enum err_code code)
{
    enum wire_kind kind;
    const void *p;
    size_t n;
    struct wire_fail f;

    while (next(s, &kind, &p, &n) && kind != WIRE_FAIL)
        continue;
    assert_int_equal(kind, WIRE_FAIL);
    assert_int_equal(wire_parse(kind, p, n, &f, &s->e), 0);
    assert_int_equal(f.code, code);
    assert_true(f.msg[0] != 0);
    assert_int_equal(join(s), -1);
}

static void test_malformed_message_ends_it(void **state)
{
    (void)state;
    struct engine_cfg cfg = base_cfg();
    uint8_t junk[100] = {0};

    for (int kind = WIRE_HELLO; kind < WIRE_COUNT; kind++) {
        struct side s;
        if (kind == WIRE_DRAIN || kind == WIRE_STOP || kind == WIRE_YIELD ||
            kind == WIRE_KV_WIPE || kind == WIRE_PING)
            continue; /* have no payload to be wrong */
        open_side(&s, &cfg);
        wire_send(s.daemon, (enum wire_kind)kind, &(struct wire_part){junk, 100}, 1,
                  NULL);
        expect_fail(&s, ERR_SYNTAX);
    }
}

static void test_failed_load(void **state)
{
    (void)state;
    struct side s;
    struct engine_cfg cfg = base_cfg();

    cfg.model = "/nowhere/at/all.gguf";
    launch(&s, &cfg, WIRE_MAX);
    expect_fail(&s, ERR_NOTFOUND);
    cfg = base_cfg();
    cfg.ctx = TINY_CTX + 1;
    launch(&s, &cfg, WIRE_MAX);
    expect_fail(&s, ERR_RANGE);
    cfg = base_cfg();
    cfg.isa = "no-such-isa";
    launch(&s, &cfg, WIRE_MAX);
    expect_fail(&s, ERR_INVALID);
}

static void test_stop_while_loading(void **state)
{
    (void)state;
    struct side s;
    struct engine_cfg cfg = base_cfg();

    launch(&s, &cfg, WIRE_MAX);
    stop(&s); /* seen while loading or after it: ends either way */
}

/* A daemon that does not read is cut, and its requests end with it. */
static void test_deaf_daemon(void **state)
{
    (void)state;
    struct side s;
    struct wire_ready ready;
    struct engine_cfg cfg = base_cfg();

    cfg.null_exec = true;
    cfg.ctx = 4096;
    launch(&s, &cfg, 64 << 10);
    wait_ready(&s, &ready);
    for (uint64_t i = 1; i <= 16; i++) {
        struct wire_add r = request(i, 1, 4000);
        if (wire_send_add(s.daemon, &r, NULL) < 0)
            break;
    }
    assert_int_equal(join(&s), -1);
    assert_int_equal(s.e.code, ERR_TOOBIG);
}

static void test_null_executor(void **state)
{
    (void)state;
    struct side s;
    static struct answer a[8];
    struct engine_cfg cfg = base_cfg();

    memset(a, 0, sizeof(a));
    cfg.null_exec = true;
    open_side(&s, &cfg);
    for (uint64_t i = 0; i < 8; i++) {
        struct wire_add r = request(1 + i, 10, 64);
        ask(&s, &r);
    }
    collect(&s, a, 1, 8);
    for (int i = 0; i < 8; i++)
        assert_int_equal(a[i].n, 64);
    assert_int_equal(stop(&s), 0);
}

static void test_fit(void **state)
{
    (void)state;
    struct engine_fit f;
    struct err e = {0};
    struct engine_fit_ask a = {.model_ctx = 8192,
                               .max_seqs = 64,
                               .block_tok = 16,
                               .block_bytes = 1 << 20,
                               .ram_bytes = (uint64_t)64 << 30};

    /* 64 sequences of a quarter: 64 * 129 blocks fit in 16 GiB */
    assert_int_equal(engine_fit(&a, &f, &e), 0);
    assert_int_equal(f.n_ctx, 8192);
    assert_int_equal(f.n_blocks, 64 * 129);
    a.max_seqs = 1; /* never less than one whole sequence */
    assert_int_equal(engine_fit(&a, &f, &e), 0);
    assert_int_equal(f.n_blocks, 512);
    a.kv_mib = 1000;
    assert_int_equal(engine_fit(&a, &f, &e), 0);
    assert_int_equal(f.n_blocks, 1000);
    a.kv_mib = 100; /* an unset context gives way */
    assert_int_equal(engine_fit(&a, &f, &e), 0);
    assert_int_equal(f.n_ctx, 1600);
    assert_int_equal(f.n_blocks, 100);
    a.ctx = 4096; /* a set one does not */
    assert_int_equal(engine_fit(&a, &f, &e), -1);
    assert_int_equal(e.code, ERR_NOFIT);
    a.ctx = 9000;
    assert_int_equal(engine_fit(&a, &f, &e), -1);
    assert_int_equal(e.code, ERR_RANGE);
    a.ctx = 63;
    assert_int_equal(engine_fit(&a, &f, &e), -1);
    assert_non_null(strstr(e.msg, "too short"));
    a.ctx = 64;
    assert_int_equal(engine_fit(&a, &f, &e), 0);
    a.ctx = 0;
    a.kv_mib = 1;
    assert_int_equal(engine_fit(&a, &f, &e), -1);
    assert_non_null(strstr(e.msg, "raise kv.mib"));
    a.shards = 4; /* each part holds a sequence, and as many blocks as the others */
    a.kv_mib = 401;
    assert_int_equal(engine_fit(&a, &f, &e), 0);
    assert_int_equal(f.n_ctx, 1600);
    assert_int_equal(f.n_blocks, 400);
    a.kv_mib = 0;
    a.max_seqs = 6; /* 2 in a part */
    assert_int_equal(engine_fit(&a, &f, &e), 0);
    assert_int_equal(f.n_blocks, 4 * 512);
    a.ctx = 2048;
    a.kv_mib = 511;
    assert_int_equal(engine_fit(&a, &f, &e), -1);
    assert_non_null(strstr(e.msg, "the part of a group may be 127 MiB"));
    a.kv_mib = 512;
    assert_int_equal(engine_fit(&a, &f, &e), 0);
    assert_int_equal(f.n_blocks, 512);
    a.ctx = a.shards = 0;
    a.kv_mib = 65 << 10;
    assert_int_equal(engine_fit(&a, &f, &e), -1);
    assert_non_null(strstr(e.msg, "lower kv.mib"));
    assert_true(engine_ram_bytes() > 64 << 20);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_ready),
    cmocka_unit_test(test_alive),
    cmocka_unit_test(test_same_seed_same_tokens),
    cmocka_unit_test(test_other_cpus_same_tokens),
    cmocka_unit_test(test_preempted_same_tokens),
    cmocka_unit_test(test_groups_same_tokens),
    cmocka_unit_test(test_experts_move),
    cmocka_unit_test(test_scored_prompt),
    cmocka_unit_test(test_goes_on_same_tokens),
    cmocka_unit_test(test_cancel),
    cmocka_unit_test(test_refusals),
    cmocka_unit_test(test_drain),
    cmocka_unit_test(test_end_of_socket),
    cmocka_unit_test(test_malformed_message_ends_it),
    cmocka_unit_test(test_failed_load),
    cmocka_unit_test(test_stop_while_loading),
    cmocka_unit_test(test_deaf_daemon),
    cmocka_unit_test(test_null_executor),
    cmocka_unit_test(test_fit),
};

TEST_MAIN("engine", tests)
