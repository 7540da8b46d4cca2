/* tests/split_rig.h - two engines that hand KV over, for tests: real executors on tiny
 * models in this process, the daemon's part (relaying, and what it does when something
 * goes wrong) played by the test. */
#ifndef TESTS_SPLIT_RIG_H
#define TESTS_SPLIT_RIG_H

#include "daemon/serve/engine.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/metric.h"
#include "daemon/serve/metrics.h"
#include "daemon/serve/wire.h"
#include "tests/tiny.h"

enum { REQS = 4096, TOKS = 64, PROMPT = 600 };

struct side {
    pthread_t thread;
    pid_t pid; /* a process of its own, which can be stopped; 0 = a thread */
    struct engine_cfg cfg;
    struct wire_conn *engine, *daemon;
    struct metric_page *page;
    int rc;
    struct err e;
    struct wire_ready ready;
    struct wire_arena arena[8];
    int fd[8], n_arenas;
    bool gone;
    char notes[1024]; /* of its tiers, one after the other */
    bool alarm;       /* as they told last */
};

/* What the daemon knows of a request. */
struct req {
    struct gen_params p;
    struct step_token toks[TOKS]; /* that the client got */
    int n;
    int from_p; /* of them */
    bool on_p, told_d, handed, p_ignored, canceled;
    bool all_p, all_d; /* the whole of it there, without a handoff */
    int exports, pulled, lost;
    bool done;
    struct wire_finish f;
};

struct world {
    struct side *p, *d; /* p == d: one engine */
    struct req *req;
    const int32_t *prompt;
    int left, on_p, most_on_p;
    struct step_token *buf;
    size_t cap;
    /* faults */
    int drop_exports; /* of the next requests: how many EXPORTs do not arrive */
    int drop_pulled;  /* PULLED that do not arrive */
    bool spoil_gen;   /* EXPORTs name generations that are none */
    int twice;        /* EXPORTs that arrive twice */
};

static void *engine_thread(void *arg)
{
    struct side *s = arg;

    s->rc = engine_run(&s->cfg, s->engine, s->page, &s->e);
    shutdown(wire_conn_fd(s->engine), SHUT_WR);
    return NULL;
}

static const char *family = "llama";
static enum engine_kv kv_type = ENGINE_KV_AUTO;

static struct {
    const char *family;
    char dir[256];
} models[12];

static const char *model_dir(void)
{
    int i = 0;

    while (models[i].family && strcmp(models[i].family, family) != 0)
        assert_in_range(++i, 0, sizeof(models) / sizeof(models[0]) - 1);
    if (!models[i].family)
        snprintf(models[i].dir, sizeof(models[i].dir), "%s",
                 tiny_model(family, test_seed()));
    models[i].family = family;
    return models[i].dir;
}

static struct engine_cfg base_cfg(enum engine_role role, const char *layout)
{
    struct err e;
    struct engine_cfg c = {.model = model_dir(),
                           .step_tok = 64,
                           .max_seqs = 8,
                           .max_waiting = REQS,
                           .kv_mib = 2,
                           .kv_type = kv_type,
                           .ctx = 1024,
                           .threads = 2,
                           .backend = "cpu",
                           .isa = "auto",
                           .reuse = true,
                           .role = role,
                           .kv_sums = true};

    if (layout && layout_parse(layout, &c.layout, &e) < 0)
        fail_msg("%s", e.msg);
    return c;
}

/* One message, or false at time at_us (-1: it must come). */
static bool next(struct side *s, enum wire_kind *kind, const void **p, size_t *n)
{
    struct err e = {0};

    for (;;) {
        int r = wire_next(s->daemon, kind, p, n, &e);
        if (r > 0)
            return true;
        struct pollfd fd = {wire_conn_fd(s->daemon), POLLIN, 0};
        assert_true(r == 0);
        if (poll(&fd, 1, 60000) != 1)
            fail_msg("nothing came from the engine for a minute");
        r = wire_fill(s->daemon, &e);
        if (r < 0)
            fail_msg("%s", e.msg);
        if (r > 0)
            return false;
    }
}

static void keep_note(struct side *s, enum wire_kind kind, const void *p)
{
    size_t n = strlen(s->notes);

    const struct wire_note *note = p;

    if (kind != WIRE_NOTE)
        return;
    snprintf(s->notes + n, sizeof(s->notes) - n, "%s\n", note->text);
    s->alarm = note->alarm ? note->alarm == WIRE_ALARM_RAISE : s->alarm;
}

/* What it says until all of it is told that there is to know. */
static void wait_ready(struct side *s)
{
    enum wire_kind kind;
    const void *p;
    size_t n;

    for (;;) {
        assert_true(next(s, &kind, &p, &n));
        if (kind == WIRE_FAIL)
            fail_msg("%s", ((const struct wire_fail *)p)->msg);
        if (kind == WIRE_READY)
            break;
        keep_note(s, kind, p);
    }
    assert_int_equal(wire_parse(kind, p, n, &s->ready, &s->e), 0);
    assert_int_equal(s->ready.role, s->cfg.role);
    assert_true(s->ready.incarnation != 0);
    for (; s->n_arenas < s->ready.n_arenas; s->n_arenas++) {
        assert_true(next(s, &kind, &p, &n));
        assert_int_equal(kind, WIRE_ARENA);
        assert_int_equal(wire_parse(kind, p, n, &s->arena[s->n_arenas], &s->e), 0);
        s->fd[s->n_arenas] = wire_take_fd(s->daemon);
        assert_true(s->fd[s->n_arenas] >= 0);
    }
}

/* Before any that is a thread. */
static inline void launch_process(struct side *s, const struct engine_cfg *cfg)
{
    int fd[2], page;

    memset(s, 0, sizeof(*s));
    s->cfg = *cfg;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
    assert_int_equal(metric_page_new(metrics_defs, METRICS_N, &page, &s->page, &s->e), 0);
    close(page);
    s->pid = fork();
    assert_true(s->pid >= 0);
    if (s->pid == 0) {
        close(fd[1]);
        _exit(engine_run(&s->cfg, wire_conn_new(fd[0], WIRE_MAX), s->page, &s->e) < 0);
    }
    close(fd[0]);
    s->daemon = wire_conn_new(fd[1], WIRE_MAX);
    wait_ready(s);
}

static void launch(struct side *s, const struct engine_cfg *cfg)
{
    int fd[2];

    memset(s, 0, sizeof(*s));
    s->cfg = *cfg;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd), 0);
    s->engine = wire_conn_new(fd[0], WIRE_MAX);
    s->daemon = wire_conn_new(fd[1], WIRE_MAX);
    assert_int_equal(metric_page_new(metrics_defs, METRICS_N, NULL, &s->page, &s->e), 0);
    assert_int_equal(pthread_create(&s->thread, NULL, engine_thread, s), 0);
    wait_ready(s);
}

static int join(struct side *s)
{
    if (s->pid)
        assert_true(waitpid(s->pid, &s->rc, 0) == s->pid);
    else
        pthread_join(s->thread, NULL);
    wire_conn_free(s->engine);
    wire_conn_free(s->daemon);
    metric_page_free(s->page);
    for (int i = 0; i < s->n_arenas; i++)
        close(s->fd[i]);
    return s->rc;
}

static int stop(struct side *s)
{
    assert_int_equal(wire_send(s->daemon, WIRE_STOP, NULL, 0, NULL), 0);
    return join(s);
}

static inline void introduce(struct side *p, struct side *d)
{
    for (int i = 0; i < p->n_arenas; i++)
        assert_int_equal(wire_send_arena(d->daemon, true, &p->arena[i], p->fd[i], NULL),
                         0);
}

static inline void launch_pair(struct world *w, struct side *p, struct side *d,
                               const char *layout_p, const char *layout_d,
                               int64_t lease_ms)
{
    struct engine_cfg c = base_cfg(ENGINE_PREFILL, layout_p);

    c.handoff_ms = lease_ms;
    launch(p, &c);
    c = base_cfg(ENGINE_DECODE, layout_d);
    c.handoff_ms = lease_ms;
    launch(d, &c);
    introduce(p, d);
    w->p = p;
    w->d = d;
}

static void world_init(struct world *w)
{
    static int32_t prompt[PROMPT];

    *w = (struct world){.req = calloc(REQS, sizeof(struct req)), .prompt = prompt};
    for (int i = 0; i < PROMPT; i++)
        prompt[i] = 1 + (int32_t)((unsigned)i * 7919u % 250u);
}

static void world_done(struct world *w)
{
    free(w->req);
    free(w->buf);
}

/* ---- the daemon's part ---- */

static struct side *side_of(struct world *w, int i) { return i ? w->d : w->p; }

static void to(struct side *s, const struct wire_add *a)
{
    assert_int_equal(wire_send_add(s->daemon, a, NULL), 0);
}

static struct gen_params params(uint64_t id, int n_prompt, int n_new)
{
    return (struct gen_params){.id = id,
                               .seed = 1000 + id,
                               .max_tokens = n_new,
                               .temperature = 0.8f,
                               .top_p = 1,
                               .repetition = 1.1f,
                               .n_top = 2,
                               .n_prompt = n_prompt,
                               .ignore_eos = true};
}

/* Of one of the two alone. */
static inline void ask_one(struct world *w, struct gen_params p, bool of_p)
{
    struct wire_add a = {.params = p, .prompt = w->prompt + p.id % 37};

    w->req[p.id] = (struct req){.p = p, .all_p = of_p, .all_d = !of_p};
    w->left++;
    to(of_p ? w->p : w->d, &a);
}

static void ask(struct world *w, struct gen_params p)
{
    struct wire_add a = {.params = p, .prompt = w->prompt + p.id % 37};

    w->req[p.id] = (struct req){.p = p};
    w->left++;
    if (w->p != w->d) {
        a.params.handoff = GEN_IMPORT;
        a.params.peer = w->p->ready.incarnation;
    }
    to(w->d, &a);
}

static void say_id(struct side *s, enum wire_kind kind, uint64_t id)
{
    if (!s->gone)
        assert_int_equal(
            wire_send(s->daemon, kind, &(struct wire_part){&id, sizeof(id)}, 1, NULL), 0);
}

static void relay(struct side *s, enum wire_kind kind, const void *p, size_t n)
{
    if (!s->gone)
        assert_int_equal(wire_send(s->daemon, kind, &(struct wire_part){p, n}, 1, NULL),
                         0);
}

static void recompute(struct world *w, struct req *r)
{
    int32_t ids[TOKS];

    r->p_ignored = true;
    if (r->on_p && !r->handed)
        say_id(w->p, WIRE_CANCEL, r->p.id);
    for (int i = 0; i < r->n; i++)
        ids[i] = r->toks[i].id;
    assert_int_equal(wire_send_recompute(w->d->daemon, r->p.id, ids, r->n, NULL), 0);
}

static inline void cancel(struct world *w, uint64_t id)
{
    struct req *r = &w->req[id];

    r->canceled = true;
    if (r->on_p)
        say_id(w->p, WIRE_CANCEL, id);
    say_id(w->d, WIRE_CANCEL, id);
}

static void on_reserved(struct world *w, const void *p, size_t n)
{
    struct wire_reserved m;
    struct err e;

    assert_int_equal(wire_parse(WIRE_RESERVED, p, n, &m, &e), 0);
    struct req *r = &w->req[m.id];
    struct wire_add a = {.params = r->p, .prompt = w->prompt + m.id % 37};
    if (r->done || r->canceled)
        return;
    if (w->p->gone) {
        recompute(w, r);
        return;
    }
    a.params.handoff = GEN_EXPORT;
    a.params.peer = w->d->ready.incarnation;
    r->on_p = true;
    if (++w->on_p > w->most_on_p)
        w->most_on_p = w->on_p;
    to(w->p, &a);
}

static void on_tokens(struct world *w, bool from_p, const void *p, size_t n)
{
    struct wire_tokens t;
    struct err e;

    assert_int_equal(wire_parse_tokens(p, n, &t, &w->buf, &w->cap, &e), 0);
    struct req *r = &w->req[t.id];
    if (from_p && (r->p_ignored || r->done))
        return;
    assert_true(r->n + t.n <= TOKS && !r->done);
    memcpy(r->toks + r->n, w->buf, sizeof(*w->buf) * (size_t)t.n);
    r->n += t.n;
    r->from_p += from_p ? t.n : 0;
}

static void on_finish(struct world *w, bool from_p, const void *p, size_t n)
{
    struct wire_finish f;
    struct err e;

    assert_int_equal(wire_parse(WIRE_FINISH, p, n, &f, &e), 0);
    struct req *r = &w->req[f.id];
    if (from_p && !r->all_p) {
        r->on_p = false;
        w->on_p--;
        r->handed |= f.reason == FINISH_HANDOFF;
        if (r->handed || r->p_ignored || r->canceled || f.reason == FINISH_ABORT)
            return;
        if (f.reason == FINISH_ERROR) {
            recompute(w, r);
            return;
        }
        say_id(w->d, WIRE_CANCEL, f.id); /* the first token ended it */
        r->f = f;
        r->handed = true;
        r->canceled = true;
        return;
    }
    assert_false(r->done);
    r->done = true;
    w->left--;
    if (!(r->handed && r->canceled && r->f.id))
        r->f = f;
}

static void on_export(struct world *w, const void *p, size_t n)
{
    struct wire_offer o;
    struct err e;

    assert_int_equal(wire_parse_export(p, n, &o, &e), 0);
    w->req[o.h.id].exports++;
    if (w->drop_exports > 0) {
        w->drop_exports--;
        return;
    }
    if (w->spoil_gen)
        for (int i = 0; i < o.h.n; i++)
            ((struct wire_block *)(uintptr_t)o.blocks)[i].gen += 1;
    relay(w->d, WIRE_EXPORT, p, n);
    if (w->twice > 0) {
        w->twice--;
        relay(w->d, WIRE_EXPORT, p, n);
    }
}

static void hear(struct world *w, bool from_p, enum wire_kind kind, const void *p,
                 size_t n)
{
    struct wire_pulled pulled;
    struct wire_lost lost;
    struct err e;

    switch (kind) {
    case WIRE_RESERVED:
        on_reserved(w, p, n);
        return;
    case WIRE_TOKENS:
        on_tokens(w, from_p, p, n);
        return;
    case WIRE_FINISH:
        on_finish(w, from_p, p, n);
        return;
    case WIRE_EXPORT:
        on_export(w, p, n);
        return;
    case WIRE_PULLED:
        assert_int_equal(wire_parse(kind, p, n, &pulled, &e), 0);
        w->req[pulled.id].pulled++;
        if (w->drop_pulled-- <= 0)
            relay(w->p, kind, p, n);
        return;
    case WIRE_LOST:
        assert_int_equal(wire_parse(kind, p, n, &lost, &e), 0);
        w->req[lost.id].lost++;
        if (!w->req[lost.id].canceled)
            recompute(w, &w->req[lost.id]);
        return;
    case WIRE_NOTE:
        keep_note(from_p ? w->p : w->d, kind, p);
        return;
    default:
        if (kind == WIRE_FAIL)
            fail_msg("%s", ((const struct wire_fail *)p)->msg);
        fail_msg("a %s message came", wire_kind_name(kind));
    }
}

/* Take what comes from both until nothing is left, or for wait_us when it is not 0. */
static void run(struct world *w, int64_t wait_us)
{
    int64_t end = clock_now_us(clock_real()) + wait_us;

    while (wait_us ? clock_now_us(clock_real()) < end : w->left > 0) {
        struct pollfd fd[2];
        int n_fd = w->p == w->d || w->p->gone ? 1 : 2;

        for (int i = 0; i < n_fd; i++)
            fd[i] = (struct pollfd){wire_conn_fd(side_of(w, 1 - i)->daemon), POLLIN, 0};
        int got = poll(fd, (nfds_t)n_fd, wait_us ? (int)(wait_us / 1000) + 1 : 60000);
        if (got == 0 && !wait_us)
            fail_msg("%d requests hang", w->left);
        for (int i = 0; i < n_fd; i++) {
            struct side *s = side_of(w, 1 - i);
            enum wire_kind kind;
            const void *p;
            size_t n;
            struct err e;

            if (!fd[i].revents)
                continue;
            if (wire_fill(s->daemon, &e) != 0)
                fail_msg("an engine has gone: %s", s->e.msg);
            while (wire_next(s->daemon, &kind, &p, &n, &e) == 1)
                hear(w, s == w->p && w->p != w->d, kind, p, n);
        }
    }
}

static void check_no_blocks(struct side *s)
{
    static const int gauges[] = {M_KV_BLOCKS_USED, M_HANDOFF_EXPORT_BLOCKS,
                                 M_HANDOFF_QUARANTINED, M_HANDOFF_HELD};

    for (size_t i = 0; i < sizeof(gauges) / sizeof(gauges[0]); i++)
        for (int n = 0; metric_get(s->page, gauges[i], 0) > 0; n++) {
            clock_sleep_us(1000);
            if (n > 30000)
                fail_msg("%.0f of gauge %d are left", metric_get(s->page, gauges[i], 0),
                         gauges[i]);
        }
}

/* PULLED that are on their way reach the exporter. */
static inline void settle(struct world *w)
{
    for (int n = 0; n < 3000 && (metric_get(w->p->page, M_HANDOFF_EXPORTS, 0) > 0 ||
                                 metric_get(w->d->page, M_HANDOFF_HELD, 0) > 0);
         n++)
        run(w, 1000);
    check_no_blocks(w->p);
    check_no_blocks(w->d);
}

#endif
