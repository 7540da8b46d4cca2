/* tests/unit/expert_rig.h - ranks of a tiny model whose experts move, step by step. */
#ifndef TESTS_EXPERT_RIG_H
#define TESTS_EXPERT_RIG_H

#include "daemon/serve/engine_experts.h"

#include <poll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "daemon/serve/executor.h"
#include "daemon/serve/expertpage.h"
#include "daemon/serve/model.h"
#include "daemon/serve/ranks.h"
#include "daemon/serve/routes.h"
#include "tests/tiny.h"

/* With two ranks: experts of each, the first slot to spare, slots when there is one. */
enum { HOME = TINY_EXPERTS / 2, SPARE = HOME, SLOTS = HOME + 1 };
enum { SEQS = 8, ROWS = 64, CTX = 2048 };
#define STEP_SEQS SEQS
#define STEP_ROWS ROWS
#define STEP_CTX CTX
#include "tests/unit/step_rig.h"

struct rig {
    char dir[256];
    struct model *m;
    struct executor *x;
    struct step *st;
    struct engine_experts *g;
    struct expertpage *page;
    int page_fd;
    int n_done, n_aborted;
    char why[256];
    bool broken;
    int64_t bytes, step_us; /* step_us: of the last one */
    enum move_state last;
    int at; /* of the sequences */
    int32_t tok[SEQS];
};

static int64_t now(void) { return clock_now_us(clock_real()); }

/* Told of all news too; NULL: nobody is. */
static void (*rig_news)(const struct moves_news *n);

static void on_news(void *arg, const struct moves_news *n)
{
    struct rig *r = arg;

    if (rig_news)
        rig_news(n);

    r->last = n->state;
    r->n_done += n->state == MOVE_DONE;
    r->n_aborted += n->state == MOVE_ABORTED;
    if (n->why[0] && !r->why[0])
        snprintf(r->why, sizeof(r->why), "%s", n->why);
    r->bytes += n->state == MOVE_DONE ? n->bytes : 0;
}

static void on_broken(void *arg, const struct err *why)
{
    struct rig *r = arg;

    r->broken = true;
    snprintf(r->why, sizeof(r->why), "%.250s", why->msg);
}

/* Of each state of a move; of a collective; of a step. */
static int64_t rig_state_us, rig_comm_us = 5000000, rig_step_us = 20000000;
/* A model in place of a tiny one; the loader's share of a CPU and its slice, 0 = as
 * documented. */
static const char *rig_model;
static double rig_share = 1;
static size_t rig_slice = 2048;

static void open_rig(struct rig *r, const char *family, const char *layout, int spare,
                     enum spread routing)
{
    struct ranks_cfg c = {
        .backend = {.name = "cpu", .n_threads = 2, .isa = "auto"},
        .forward = {.max_rows = ROWS,
                    .max_items = SEQS,
                    .max_ctx = CTX,
                    .max_outs = 8,
                    .kv_type = DT_F16,
                    .n_blocks = SEQS * STEP_PER_SEQ,
                    .part = {.experts = {.spare = spare, .routing = routing}}},
        .caps = caps,
        .depth = 1,
        .comm_timeout_us = rig_comm_us,
    };
    struct engine_experts_cfg gc = {.share = rig_share,
                                    .slice_bytes = rig_slice,
                                    .state_us = rig_state_us,
                                    .tell = on_news,
                                    .broken = on_broken,
                                    .arg = r};
    struct err e = {0};

    memset(r, 0, sizeof(*r));
    assert_int_equal(layout_parse(layout, &c.layout, &e), 0);
    if (!rig_model)
        snprintf(r->dir, sizeof(r->dir), "%s", tiny_model(family, test_seed()));
    if (expertpage_new(&r->page_fd, &r->page, &e) < 0)
        fail_msg("%s", e.msg);
    c.experts = r->page;
    if (model_open(rig_model ? rig_model : r->dir, &r->m, &e) < 0 ||
        ranks_new(r->m, &c, NULL, NULL, &r->x, &e) < 0)
        fail_msg("%s", e.msg);
    r->st = step_new(&caps);
    gc.x = r->x;
    gc.model = r->m;
    if (spare && engine_experts_new(&gc, &r->g, &e) < 0)
        fail_msg("%s", e.msg);
}

static void close_rig(struct rig *r)
{
    if (r->g)
        engine_experts_free(r->g);
    else
        model_free(r->m);
    executor_free(r->x);
    expertpage_free(r->page);
    close(r->page_fd);
    free(r->st);
    if (r->dir[0])
        tiny_remove(r->dir);
}

/* ---- steps ---- */

static void add(struct rig *r, uint64_t seq, int pos, const int32_t *toks, int n)
{
    static const struct step_sample greedy = {.top_p = 1, .repetition = 1};

    step_rig_add(r->st, seq, pos, toks, n, greedy)->decode = pos > 0;
}

/* One step of all sequences; their tokens and log-probabilities come to out. */
static void step(struct rig *r, struct step_token *out)
{
    static const int32_t prompt[] = {5, 77, 130, 9, 201, 44, 3, 250};
    int64_t until = now() + rig_step_us;
    struct step_done d;
    struct err e = {0};
    uint64_t ticket;

    step_clear(r->st);
    for (int q = 0; q < SEQS; q++)
        if (r->at == 0)
            add(r, (uint64_t)q, 0, prompt + q % 4, 4);
        else
            add(r, (uint64_t)q, 3 + r->at, &r->tok[q], 1);
    if (executor_submit(r->x, r->st, &ticket, &e) < 0)
        fail_msg("%s", e.msg);
    if (r->g)
        engine_experts_submitted(r->g, ticket);
    while (!executor_poll(r->x, &d)) {
        struct pollfd p[3] = {{r->x->fd, POLLIN, 0}};
        for (int i = 0; r->g && i < 2; i++)
            p[1 + i] = (struct pollfd){engine_experts_fd(r->g, i), POLLIN, 0};
        assert_true(now() < until);
        poll(p, r->g ? 3 : 1, 20);
        if (r->g)
            engine_experts_poll(r->g, now());
    }
    if (d.error)
        fail_msg("%s", d.error->msg);
    if (r->g)
        engine_experts_step(r->g, now(), ticket, d.end_us - d.start_us);
    r->step_us = d.end_us - d.start_us;
    for (int q = 0; q < SEQS; q++) {
        out[q] = d.toks[d.results[q].tok_off];
        r->tok[q] = out[q].id;
    }
    r->at++;
}

/* Without a step: until nothing is under way. */
static void idle(struct rig *r)
{
    int64_t until = now() + 20000000;

    while (engine_experts_waiting(r->g)) {
        struct pollfd p[2];
        for (int i = 0; i < 2; i++)
            p[i] = (struct pollfd){engine_experts_fd(r->g, i), POLLIN, 0};
        assert_true(now() < until);
        poll(p, 2, 20);
        engine_experts_poll(r->g, now());
    }
}

/* ---- moves ---- */

/* One that the rules allow: a copy more, one less, one that goes elsewhere, or two that
 * change places. */
static inline bool random_move(const struct routes *t, uint64_t *rng, uint64_t id,
                               struct move *ret)
{
    int n = t->d.n_rank * t->d.n_slot,
        layer = (int)(test_rand(rng) % (uint64_t)t->n_layer);
    int a = (int)(test_rand(rng) % (uint64_t)n), b = (int)(test_rand(rng) % (uint64_t)n);
    const int16_t *x = t->layer[layer].expert;
    int ra = a / t->d.n_slot, rb = b / t->d.n_slot;

    *ret = (struct move){.id = id, .layer = layer};
    if (x[a] < 0)
        return false;
    if (x[b] < 0 && routes_find(t, layer, x[a], rb) < 0) { /* a copy more, or a move */
        ret->put[ret->n++] =
            (struct move_put){(int16_t)rb, (int16_t)(b % t->d.n_slot), x[a]};
        if (test_rand(rng) % 2)
            ret->put[ret->n++] =
                (struct move_put){(int16_t)ra, (int16_t)(a % t->d.n_slot), -1};
        return true;
    }
    if (a == b && routes_copies(t, layer, x[a]) > 1) {
        ret->put[ret->n++] =
            (struct move_put){(int16_t)ra, (int16_t)(a % t->d.n_slot), -1};
        return true;
    }
    if (x[b] >= 0 && ra != rb && routes_find(t, layer, x[a], rb) < 0 &&
        routes_find(t, layer, x[b], ra) < 0) {
        ret->put[ret->n++] =
            (struct move_put){(int16_t)rb, (int16_t)(b % t->d.n_slot), x[a]};
        ret->put[ret->n++] =
            (struct move_put){(int16_t)ra, (int16_t)(a % t->d.n_slot), x[b]};
        return true;
    }
    return false;
}

#endif
