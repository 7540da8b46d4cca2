/* tests/unit/fake_engine.h - an engine that is the test program itself.
 *
 * Started with --fd=.. by the supervisor it acts as its --fake= option says, or the last
 * word of its --model= path, speaking the real protocol: echo answers with max_tokens
 * tokens of id 7 in all, with those that it was given; hold gives one and waits for a
 * cancel; queue lets all wait until it is to give them back; poison dies of every
 * request; gated is an echo that is not ready before the test lets it; refuse says that
 * its queue is full; mute is an echo that never says that it is alive; stops has stopped
 * after its first word; the others fail in one way each. The test's main calls
 * fake_engine_main first. */
#ifndef TESTS_FAKE_ENGINE_H
#define TESTS_FAKE_ENGINE_H

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cpuset.h"
#include "base/err.h"
#include "base/metric.h"
#include "daemon/serve/metrics.h"
#include "daemon/serve/wire.h"

struct fake {
    struct wire_conn *c;
    struct metric_page *page;
    const char *act;
    uint64_t held[64];
    int n_held;
};

static void fake_send(struct fake *f, enum wire_kind kind, const void *p, size_t n)
{
    struct wire_part part = {p, n};

    if (wire_send(f->c, kind, &part, 1, NULL) < 0)
        _exit(9);
}

static void fake_finish(struct fake *f, uint64_t id, enum finish_reason why, int n_out)
{
    struct wire_finish w = {.id = id, .reason = (int32_t)why, .n_out = n_out};

    if (why == FINISH_ERROR) {
        w.code = ERR_BUSY;
        snprintf(w.msg, sizeof(w.msg), "the queue is full");
    }
    fake_send(f, WIRE_FINISH, &w, sizeof(w));
}

static void fake_hang(void)
{
    for (;;)
        pause();
}

/* What warms an engine is answered by all but one, and counted like the rest. */
static void fake_warm(struct fake *f, const struct wire_add *a)
{
    metric_add(f->page, M_STEPS, 0, 1);
    metric_observe(f->page, M_ITER_TOK, 8);
    fake_finish(f, a->params.id, strcmp(f->act, "cold") ? FINISH_LENGTH : FINISH_ERROR,
                2);
    if (!strcmp(f->act, "garbage"))
        if (write(3, "this is no frame at all", 23) == 23)
            fake_hang();
    if (!strcmp(f->act, "hangup")) {
        close(3);
        fake_hang();
    }
}

static void fake_add(struct fake *f, const struct wire_add *a)
{
    struct step_token tok = {.id = 7};
    int left = a->params.max_tokens - a->params.n_gen;
    int n = !strcmp(f->act, "queue") ? 0 : !strcmp(f->act, "hold") && left ? 1 : left;

    if (!strcmp(f->act, "refuse")) {
        fake_finish(f, a->params.id, FINISH_ERROR, 0);
        return;
    }
    for (int i = 0; i < n; i++)
        wire_send_tokens(f->c, a->params.id, false, &tok, 1, NULL);
    if (!strcmp(f->act, "queue")) {
        metric_set(f->page, M_RUNNING, 0, 6); /* for a test to see */
        f->held[f->n_held++ % 64] = a->params.id;
        return;
    }
    if (!strcmp(f->act, "poison"))
        _exit(4);
    if (!strcmp(f->act, "hold") && left > 1) {
        f->held[f->n_held++ % 64] = a->params.id;
        return;
    }
    metric_add(f->page, M_STEPS, 0, 1);
    metric_observe(f->page, M_ITER_TOK, n);
    fake_finish(f, a->params.id, FINISH_LENGTH, a->params.max_tokens);
}

static void fake_frame(struct fake *f, enum wire_kind kind, const void *p, size_t n)
{
    struct wire_add a;
    uint64_t id;
    uint32_t on;
    cpu_set_t cpus;

    if (kind == WIRE_ADD && wire_parse_add(p, n, &a, NULL) < 0)
        _exit(7);
    if (kind == WIRE_ADD && a.params.id >= (uint64_t)1 << 62)
        fake_warm(f, &a);
    else if (kind == WIRE_ADD)
        fake_add(f, &a);
    else if (kind == WIRE_YIELD && !strcmp(f->act, "queue"))
        for (; f->n_held; f->n_held--)
            fake_finish(f, f->held[f->n_held - 1], FINISH_RETURNED, 1);
    else if (kind == WIRE_CANCEL && wire_parse(WIRE_CANCEL, p, n, &id, NULL) == 0)
        fake_finish(f, id, FINISH_ABORT, 1);
    else if (kind == WIRE_SPIN && wire_parse(WIRE_SPIN, p, n, &on, NULL) == 0)
        metric_set(f->page, M_KV_BLOCKS_FREE, 0, on ? 1 : 2); /* for a test to see */
    else if (kind == WIRE_CPUS && cpuset_parse(p, n - 1, &cpus, NULL) == 0)
        metric_set(f->page, M_KV_BLOCKS_CACHED, 0, CPU_COUNT(&cpus));
    else if (kind == WIRE_PING && strcmp(f->act, "mute"))
        fake_send(f, WIRE_PONG, NULL, 0);
    else if (kind == WIRE_STOP && strcmp(f->act, "deaf"))
        _exit(0);
}

static void fake_run(struct fake *f)
{
    int rc = 0;

    while (rc != 1 && rc != -1) {
        struct pollfd p = {wire_conn_fd(f->c), POLLIN, 0};
        enum wire_kind kind;
        const void *at;
        size_t n;

        if (wire_wants_write(f->c))
            p.events |= POLLOUT;
        poll(&p, 1, -1);
        wire_flush(f->c, NULL);
        rc = wire_fill(f->c, NULL);
        while (wire_next(f->c, &kind, &at, &n, NULL) == 1)
            fake_frame(f, kind, at, n);
    }
    _exit(0);
}

/* Until the test has made the file "<model>.go". */
static void fake_gate(const char *model)
{
    char go[512];

    snprintf(go, sizeof(go), "%s.go", model);
    while (access(go, F_OK) < 0)
        usleep(2000);
}

static void fake_noise(void)
{
    for (int i = 0; i < 30; i++)
        dprintf(STDERR_FILENO, "line %d\n", i);
    dprintf(STDERR_FILENO, "no newline at the end");
}

static void fake_run_as_engine(int argc, char **argv)
{
    struct wire_hello hello = {WIRE_VERSION, (uint32_t)getpid()};
    struct wire_loading loading = {0.5};
    struct wire_ready ready = {.n_ctx = 64, .n_vocab = 8, .load_us = 1000};
    struct wire_fail fail = {ERR_NOFIT, "it needs 9 GiB and there are 8"};
    struct fake f = {.act = "echo"};
    const char *model = "";

    for (int i = 1; i < argc; i++)
        if (!strncmp(argv[i], "--fake=", 7))
            f.act = argv[i] + 7;
        else if (!strncmp(argv[i], "--model=", 8))
            f.act = strrchr(argv[i], '/') + 1, model = argv[i] + 8;
    f.c = wire_conn_new(3, 64 << 20);
    if (metric_page_map(metrics_defs, METRICS_N, 4, &f.page, NULL) < 0)
        _exit(8);
    if (!strcmp(f.act, "noisy"))
        fake_noise();
    if (!strcmp(f.act, "exit") || !strcmp(f.act, "noisy"))
        _exit(3);
    if (!strcmp(f.act, "silent"))
        fake_hang();
    fake_send(&f, WIRE_HELLO, &hello, sizeof(hello));
    if (!strcmp(f.act, "stops"))
        raise(SIGSTOP);
    if (!strcmp(f.act, "fail") || !strcmp(f.act, "fail-stay")) {
        fake_send(&f, WIRE_FAIL, &fail, sizeof(fail));
        if (f.act[4])
            fake_hang();
        _exit(1);
    }
    fake_send(&f, WIRE_LOADING, &loading, sizeof(loading));
    if (!strcmp(f.act, "lame"))
        fake_hang();
    if (!strcmp(f.act, "gated"))
        fake_gate(model);
    metric_set(f.page, M_RUNNING, 0, 5);
    fake_send(&f, WIRE_READY, &ready, sizeof(ready));
    fake_run(&f);
}

/* Does not return in the engine. */
static void fake_engine_main(int argc, char **argv)
{
    if (argc > 1 && !strncmp(argv[1], "--fd=", 5))
        fake_run_as_engine(argc, argv);
}

#endif
