/* The real executor on a tiny model: two steps in flight with a token of the first as the
 * input of the second, scored prompt rows, many sampled rows on one thread or three, and
 * what happens when loading or a step fails; and the executor without a device. */
#include "daemon/serve/ranks.h"

#include <dirent.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/err.h"
#include "daemon/serve/executor.h"
#include "daemon/serve/links.h"
#include "daemon/serve/model.h"
#include "tests/tiny.h"

enum { SEQS = 32, ROWS = 64, CTX = 256 };
#define STEP_SEQS SEQS
#define STEP_ROWS ROWS
#define STEP_CTX CTX
#include "tests/unit/step_rig.h"

struct rank {
    char dir[256];
    struct model *m;
    struct executor *x;
    struct step *st;
};

static const char *family = "llama";
static const char *mesh_layout; /* of the next start; NULL = one rank */
static const char *emulated;    /* rack of the next start */
static enum dtype kv_type = DT_COUNT;

static int start(struct rank *r, int threads, forward_progress_fn fn, void *arg,
                 const char *isa, struct err *e)
{
    struct ranks_cfg c = {
        .backend = {.name = "cpu", .n_threads = threads, .isa = isa},
        .forward = {.max_rows = ROWS,
                    .max_items = SEQS,
                    .max_ctx = CTX,
                    .max_outs = 8,
                    .kv_type = kv_type,
                    .n_blocks = SEQS * STEP_PER_SEQ},
        .caps = caps,
        .depth = 2,
        .comm_timeout_us = 1000000,
        .emulate = emulated,
    };

    if (mesh_layout)
        assert_int_equal(layout_parse(mesh_layout, &c.layout, e), 0);
    memset(r, 0, sizeof(*r));
    snprintf(r->dir, sizeof(r->dir), "%s", tiny_model(family, test_seed()));
    assert_int_equal(model_open(r->dir, &r->m, e), 0);
    r->st = step_new(&caps);
    int rc = ranks_new(r->m, &c, fn, arg, &r->x, e);
    model_free(r->m); /* the ranks live on without it */
    tiny_remove(r->dir);
    return rc;
}

static void open_rank(struct rank *r, int threads)
{
    struct err e = {0};

    if (start(r, threads, NULL, NULL, "auto", &e) < 0)
        fail_msg("%s", e.msg);
}

static void close_rank(struct rank *r)
{
    executor_free(r->x);
    free(r->st);
}

/* n tokens of a sequence at pos; toks NULL = one reference. Samples at its last row. */
static struct step_item *add(struct step *st, uint64_t seq, int pos, const int32_t *toks,
                             int n)
{
    const struct step_sample s = {
        .seed = seq, .out_pos = pos, .temperature = 0.9f, .top_p = 1, .repetition = 1};
    struct step_item *it = step_rig_add(st, seq, pos, toks, n, s);

    it->n_top = 3;
    return it;
}

static void add_ref(struct step *st, uint64_t ticket, uint64_t seq, int pos, int index)
{
    step_refs(st)[st->n_refs++] =
        (struct step_ref){ticket, seq, .at = st->n_toks, .index = index};
    add(st, seq, pos, NULL, 1);
}

static uint64_t submit(struct rank *r)
{
    struct err e = {0};
    uint64_t ticket = 0;

    if (executor_submit(r->x, r->st, &ticket, &e) < 0)
        fail_msg("%s", e.msg);
    step_clear(r->st);
    return ticket;
}

static void wait_done(struct executor *x, struct step_done *d)
{
    while (!executor_poll(x, d)) {
        struct pollfd p = {x->fd, POLLIN, 0};
        poll(&p, 1, -1);
    }
}

static const int32_t prompt[] = {5, 77, 130, 9, 201, 44, 3};

/* n tokens generated one step at a time, each known before the next is asked for. */
static void generate(struct rank *r, struct step_token *out, int n)
{
    struct step_done d;

    add(r->st, 1, 0, prompt, 7);
    for (int i = 0; i < n; i++) {
        uint64_t t = submit(r);
        wait_done(r->x, &d);
        assert_null(d.error);
        assert_int_equal(d.ticket, t);
        assert_int_equal(d.n_results, 1);
        assert_int_equal(d.results[0].n_accepted, 1);
        assert_true(d.end_us >= d.start_us && d.start_us > 0);
        out[i] = d.toks[0];
        add(r->st, 1, 7 + i, &out[i].id, 1);
    }
    step_clear(r->st);
}

static void test_two_in_flight(void **state)
{
    (void)state;
    struct rank r;
    struct step_done d;
    struct step_token want[12], got[12];

    open_rank(&r, 2);
    generate(&r, want, 12);
    add(r.st, 1, 0, prompt, 7);
    uint64_t t = submit(&r);
    for (int i = 0; i < 12; i++) {
        if (i < 11) { /* the next step is there before this one's token is known */
            add_ref(r.st, t, 1, 7 + i, 0);
            t = submit(&r);
        }
        wait_done(r.x, &d);
        assert_null(d.error);
        got[i] = d.toks[0];
    }
    assert_memory_equal(want, got, sizeof(want));
    assert_false(executor_poll(r.x, &d));
    close_rank(&r);
}

static void test_depth_is_kept(void **state)
{
    (void)state;
    struct rank r;
    struct err e = {0};
    struct step_done d;
    uint64_t t;

    open_rank(&r, 1);
    add(r.st, 1, 0, prompt, 7);
    assert_int_equal(executor_submit(r.x, r.st, &t, &e), 0);
    assert_int_equal(executor_submit(r.x, r.st, &t, &e), 0);
    assert_int_equal(executor_submit(r.x, r.st, &t, &e), -1);
    wait_done(r.x, &d);
    assert_int_equal(d.ticket, 1);
    assert_int_equal(executor_submit(r.x, r.st, &t, &e), 0);
    close_rank(&r); /* with two in flight */
}

/* A reference to what was never accepted: that item does nothing, the others go on. */
static void test_lost_reference(void **state)
{
    (void)state;
    struct rank r;
    struct step_done d;
    struct step_token want;

    open_rank(&r, 1);
    generate(&r, &want, 1);
    add(r.st, 1, 0, prompt, 7);
    add(r.st, 2, 0, prompt, 7);
    uint64_t t = submit(&r);
    wait_done(r.x, &d);
    int32_t next = d.toks[0].id;
    add_ref(r.st, t, 2, 7, 1); /* it accepted one only */
    add(r.st, 1, 7, &next, 1);
    add_ref(r.st, t, 9, 7, 0);  /* no such sequence */
    add_ref(r.st, 99, 1, 7, 0); /* no such ticket */
    submit(&r);
    wait_done(r.x, &d);
    assert_null(d.error);
    assert_int_equal(d.n_results, 4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(d.results[i].n_accepted, i == 1);
    assert_int_equal(d.results[0].seq, 2);
    assert_int_equal(d.results[1].seq, 1);
    int32_t got = d.toks[d.results[1].tok_off].id;
    generate(&r, (struct step_token[2]){{0}}, 2);
    add(r.st, 1, 0, prompt, 7);
    submit(&r);
    wait_done(r.x, &d);
    add(r.st, 1, 7, &next, 1);
    submit(&r);
    wait_done(r.x, &d);
    assert_int_equal(d.toks[0].id, got);
    close_rank(&r);
}

/* Rows of a prompt score the tokens that follow; in two chunks the same as in one. */
static void test_scores(void **state)
{
    (void)state;
    struct rank r;
    struct step_done d;
    struct step_token want[7], got[7];

    open_rank(&r, 2);
    add(r.st, 1, 0, prompt, 7)->out_from = 0;
    submit(&r);
    wait_done(r.x, &d);
    assert_int_equal(d.results[0].n_scored, 6);
    assert_int_equal(d.results[0].n_accepted, 1);
    memcpy(want, d.toks, sizeof(want));
    for (int i = 0; i < 6; i++) {
        assert_int_equal(want[i].id, prompt[i + 1]);
        assert_true(want[i].logprob < 0 && isfinite(want[i].logprob));
        assert_int_equal(want[i].n_top, 3);
        assert_true(want[i].top_logprob[0] >= want[i].top_logprob[1]);
    }
    struct step_item *it = add(r.st, 1, 0, prompt, 4);
    it->out_from = 0;
    it->sample = -1;
    it->next = prompt[4];
    submit(&r);
    add(r.st, 1, 4, prompt + 4, 3)->out_from = 0;
    submit(&r);
    wait_done(r.x, &d);
    assert_int_equal(d.results[0].n_scored, 4);
    assert_int_equal(d.results[0].n_accepted, 0);
    memcpy(got, d.toks, 4 * sizeof(*got));
    wait_done(r.x, &d);
    memcpy(got + 4, d.toks, 3 * sizeof(*got));
    assert_memory_equal(want, got, sizeof(want));
    close_rank(&r);
}

static void sample_many(int threads, struct step_token *out)
{
    struct rank r;
    struct step_done d;

    open_rank(&r, threads);
    for (uint64_t s = 0; s < SEQS; s++)
        add(r.st, s, 0, prompt, 2);
    submit(&r);
    wait_done(r.x, &d);
    assert_null(d.error);
    assert_int_equal(d.n_toks, SEQS);
    memcpy(out, d.toks, SEQS * sizeof(*out));
    close_rank(&r);
}

static void test_sampling_threads(void **state)
{
    (void)state;
    static struct step_token a[SEQS], b[SEQS];
    int kinds = 0;

    sample_many(1, a);
    sample_many(3, b);
    assert_memory_equal(a, b, sizeof(a));
    for (int i = 1; i < SEQS; i++)
        kinds += a[i].id != a[0].id;
    assert_true(kinds > SEQS / 2); /* the seeds differ */
}

static void test_bad_step_is_an_error(void **state)
{
    (void)state;
    struct rank r;
    struct step_done d;
    int32_t bad = TINY_VOCAB;
    struct step_token want, got;

    open_rank(&r, 1);
    generate(&r, &want, 1);
    add(r.st, 1, 0, &bad, 1);
    submit(&r);
    wait_done(r.x, &d);
    assert_non_null(d.error);
    assert_true(d.error->msg[0] != 0);
    assert_int_equal(d.n_results, 0);
    generate(&r, &got, 1); /* and it goes on */
    assert_memory_equal(&want, &got, sizeof(want));
    close_rank(&r);
}

/* ---- many ranks ---- */

static void test_layouts(void **state)
{
    static const char *const layouts[] = {"tp2",     "tp4 sp",      "pp2",
                                          "tp2 pp2", "cp2 striped", "cp2 ulysses"};
    struct step_token want[12], got[12];
    struct rank_status s;
    struct rank r;

    (void)state;
    kv_type = DT_F16; /* what BF16 rounds in attention depends on how parts are cut */
    open_rank(&r, 1);
    generate(&r, want, 12);
    close_rank(&r);
    for (size_t l = 0; l < sizeof(layouts) / sizeof(layouts[0]); l++) {
        mesh_layout = layouts[l];
        open_rank(&r, 2);
        mesh_layout = NULL;
        generate(&r, got, 12);
        for (int i = 0; i < 12; i++) {
            assert_int_equal(got[i].id, want[i].id);
            assert_true(fabsf(got[i].logprob - want[i].logprob) < 1e-2f);
        }
        for (int i = 0; i < ranks_count(r.x); i++) {
            ranks_status(r.x, i, &s);
            assert_true(s.mem.weight_bytes > 0 && s.mem.kv_bytes > 0 && s.busy_us > 0);
        }
        close_rank(&r);
    }
    kv_type = DT_COUNT;
}

/* Sequences of two groups of ranks (by their blocks) in the same steps: each has the
 * tokens that it has on one rank, also when one comes whose token never does. */
static void many(struct rank *r, int steps, int n_seq, struct step_token *out)
{
    struct step_done d;
    int at[SEQS];

    for (int i = 0; i < steps; i++) {
        for (int q = 0; q < n_seq; q++) {
            /* turn and turn about of both halves of the blocks */
            uint64_t seq = (uint64_t)(q % 2 * (SEQS / 2) + q);
            at[q] = r->st->n_items;
            if (i == 0)
                add(r->st, seq, 0, prompt, 2 + q % 5)->out_from = 0;
            else
                add(r->st, seq, 1 + q % 5 + i, &out[(i - 1) * n_seq + q].id, 1);
            if (q == 2 && i == 1) {
                add_ref(r->st, 99, 7, 4, 0); /* no such ticket */
                step_blocks(r->st)[r->st->n_blocks - 1] = 0;
            }
        }
        submit(r);
        wait_done(r->x, &d);
        assert_null(d.error);
        for (int q = 0; q < n_seq; q++) {
            const struct step_result *res = &d.results[at[q]];
            assert_int_equal(res->n_accepted, 1);
            assert_int_equal(res->n_scored, i ? 0 : 1 + q % 5);
            for (int k = 0; k < res->n_scored; k++)
                assert_int_equal(d.toks[res->tok_off + k].id, prompt[k + 1]);
            out[i * n_seq + q] = d.toks[res->tok_off + res->n_scored];
        }
    }
}

static void test_groups(void **state)
{
    static const char *const layouts[] = {"adp2 ep2",
                                          "adp2 tp2 ep4",
                                          "adp2 pp2 ep2",
                                          "adp2 tp2 pp2 sp ep4",
                                          "adp2 cp2 ep4 ring",
                                          "adp2 tp2 sp ep2",
                                          "adp2 cp2 pp2 ep4 ulysses"};
    static struct step_token want[5 * 12], got[5 * 12];
    struct rank r;

    (void)state;
    family = "qwen3_moe";
    kv_type = DT_F16;
    open_rank(&r, 1);
    many(&r, 5, 12, want);
    close_rank(&r);
    for (size_t l = 0; l < sizeof(layouts) / sizeof(layouts[0]); l++) {
        mesh_layout = layouts[l];
        open_rank(&r, 2);
        mesh_layout = NULL;
        many(&r, 5, 12, got);
        for (int i = 0; i < 5 * 12; i++) {
            assert_int_equal(got[i].id, want[i].id);
            assert_true(fabsf(got[i].logprob - want[i].logprob) < 1e-2f);
        }
        many(&r, 3, 1, got); /* the other group has nothing to do */
        close_rank(&r);
    }
    kv_type = DT_COUNT;
    family = "llama";
}

/* Links of a rack between the ranks change times, no token. */
static void test_emulated(void **state)
{
    struct step_token want[6], got[6];
    struct rank_status s;
    struct rank_links l;
    struct rank r;
    struct err e = {0};

    (void)state;
    assert_int_equal(rank_links_named("cpu:2x2", 4, &l, &e), 0);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(l.host[i], i / 2);
        for (int k = 0; k < 4; k++)
            if (i != k) {
                assert_true((l.path[i * 4 + k].bytes_per_s > 5e9) == (i / 2 == k / 2));
                assert_true(l.path[i * 4 + k].alpha_s > 0);
            }
    }
    rank_links_done(&l);
    mesh_layout = "tp4";
    open_rank(&r, 2);
    generate(&r, want, 6);
    close_rank(&r);
    emulated = "cpu:2x2";
    open_rank(&r, 2);
    generate(&r, got, 6);
    for (int i = 0; i < 6; i++)
        assert_int_equal(got[i].id, want[i].id);
    for (int i = 0; i < 4; i++) {
        ranks_status(r.x, i, &s);
        const struct comm_count *c = &s.counts[MESH_TP][COMM_ALL_REDUCE];
        assert_int_equal(c->cut_bytes * 3, c->bytes * 2); /* 2 of 3 others are there */
        assert_true(c->link_us > 0 && c->link_us <= c->us);
    }
    close_rank(&r);
    emulated = "cpu:3";
    assert_int_equal(start(&r, 1, NULL, NULL, "auto", &e), -1);
    assert_non_null(strstr(e.msg, "rack 'cpu:3' has 3 devices for 4 ranks"));
    free(r.st);
    emulated = mesh_layout = NULL;
}

static void test_layout_refused(void **state)
{
    static const struct {
        const char *layout, *says;
    } cases[] = {{"tp3", "tp 3 does not divide the model's 4 attention heads"},
                 {"pp4", "pp 4 is more than the 2 layers"},
                 {"cp4 usp cp_u3", "cp_u 3 does not divide cp 4"},
                 {"cp8 ulysses", "over 8 cp ranks does not divide a rank's 4 attention"}};
    struct rank r;
    struct err e = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        mesh_layout = cases[i].layout;
        assert_int_equal(start(&r, 1, NULL, NULL, "auto", &e), -1);
        mesh_layout = NULL;
        assert_non_null(strstr(e.msg, cases[i].says));
        free(r.st);
    }
}

static atomic_bool held;

static void hold(int signo)
{
    (void)signo;
    while (atomic_load(&held))
        sched_yield();
}

/* The thread of a rank, by its name. */
static pid_t thread_of(const char *name)
{
    DIR *d = opendir("/proc/self/task");
    struct dirent *t;
    pid_t found = 0;

    while ((t = readdir(d))) {
        char path[300], comm[32] = "";
        snprintf(path, sizeof(path), "/proc/self/task/%s/comm", t->d_name);
        FILE *f = fopen(path, "r");
        if (f && fgets(comm, sizeof(comm), f) && !strncmp(comm, name, strlen(name)))
            found = atoi(t->d_name);
        if (f)
            fclose(f);
    }
    closedir(d);
    return found;
}

/* A rank that is stopped: the step ends on all with its name, and so do later ones. */
static void test_stopped_rank(void **state)
{
    struct step_done d;
    struct rank r;
    pid_t tid;

    (void)state;
    mesh_layout = "tp4";
    open_rank(&r, 1);
    mesh_layout = NULL;
    tid = thread_of("rank2");
    assert_true(tid > 0);
    atomic_store(&held, true);
    signal(SIGUSR1, hold);
    assert_int_equal(syscall(SYS_tgkill, getpid(), tid, SIGUSR1), 0);
    add(r.st, 1, 0, prompt, 7);
    submit(&r);
    wait_done(r.x, &d);
    assert_non_null(d.error);
    assert_int_equal(d.error->code, ERR_DEVICE);
    assert_non_null(strstr(d.error->msg, "rank 2 "));
    add(r.st, 1, 0, prompt, 7);
    submit(&r);
    wait_done(r.x, &d);
    assert_non_null(strstr(d.error->msg, "rank 2 "));
    atomic_store(&held, false);
    close_rank(&r);
}

static bool count_and_stop(void *arg, double done)
{
    (void)done;
    return ++*(int *)arg < 3;
}

static void test_failed_start(void **state)
{
    (void)state;
    struct rank r;
    struct err e = {0};
    int calls = 0;

    assert_int_equal(start(&r, 1, NULL, NULL, "no-such-isa", &e), -1);
    assert_true(e.msg[0] != 0);
    free(r.st);
    assert_int_equal(start(&r, 2, count_and_stop, &calls, "auto", &e), -1);
    assert_int_equal(e.code, ERR_CANCELED);
    assert_int_equal(calls, 3);
    free(r.st);
}

static void test_null(void **state)
{
    (void)state;
    struct executor *x;
    struct err e = {0};
    struct step *st = step_new(&caps);
    struct step_done d;
    struct pollfd p;
    uint64_t t;
    int32_t id = 0;

    assert_int_equal(nullexec_new(&caps, 5, &x, &e), 0);
    p = (struct pollfd){x->fd, POLLIN, 0};
    assert_int_equal(poll(&p, 1, 0), 0);
    for (int round = 0; round < 7; round++) {
        step_clear(st);
        add(st, 1, 0, prompt, 7)->out_from = 5;
        assert_int_equal(executor_submit(x, st, &t, &e), 0);
        assert_int_equal(executor_submit(x, st, &t, &e), 0);
        assert_int_equal(executor_submit(x, st, &t, &e), -1);
        assert_int_equal(poll(&p, 1, 0), 1);
        for (int i = 0; i < 2; i++) {
            assert_true(executor_poll(x, &d));
            assert_int_equal(d.ticket, 2 * round + i + 1);
            assert_int_equal(d.results[0].n_scored, 1);
            assert_int_equal(d.results[0].n_accepted, 1);
            for (int k = 0; k < 2; k++, id = (id + 1) % 5)
                assert_int_equal(d.toks[k].id, id);
        }
        assert_false(executor_poll(x, &d));
        assert_int_equal(poll(&p, 1, 0), 0);
    }
    executor_free(x);
    free(st);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_two_in_flight),
    cmocka_unit_test(test_depth_is_kept),
    cmocka_unit_test(test_lost_reference),
    cmocka_unit_test(test_scores),
    cmocka_unit_test(test_sampling_threads),
    cmocka_unit_test(test_bad_step_is_an_error),
    cmocka_unit_test(test_failed_start),
    cmocka_unit_test(test_layouts),
    cmocka_unit_test(test_groups),
    cmocka_unit_test(test_layout_refused),
    cmocka_unit_test(test_emulated),
    cmocka_unit_test(test_stopped_rank),
    cmocka_unit_test(test_null),
};

TEST_MAIN("ranks", tests)
