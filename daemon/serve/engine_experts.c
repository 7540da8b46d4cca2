/* daemon/serve/engine_experts.c - does what moves.h asks for. See engine_experts.h.
 *
 * One job of the loader and one change of the ranks at a time, both in here, both kept
 * while others have them. `next` is `now` with the move under way; the ranks read it
 * between VOTE and the end of FLIP. What was loaded is handed from the job to the change
 * when it is warmed, and is freed by the ranks from then on; a move that is dropped waits
 * for whoever has it. New shares of a layer travel as a move of no slots, of which the
 * daemon hears nothing. */
#include "daemon/serve/engine_experts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/serve/executor.h"
#include "daemon/serve/expertload.h"
#include "daemon/serve/model.h"
#include "daemon/serve/ranks.h"
#include "daemon/serve/routes.h"

static const int64_t END_WAIT_US = 5ll * 1000 * 1000;
static const uint64_t OWN_ID = UINT64_C(1) << 63; /* of shares */

struct engine_experts {
    struct engine_experts_cfg cfg;
    struct routes *now, *next;
    int n_dense; /* layers before the first with experts */
    struct moves *moves;
    struct expertload *loader;
    struct expertload_job job;
    struct ranks_change change;
    bool job_busy, change_busy; /* others have them */
    bool joined;                /* the change has the weights */
    uint64_t dropping;          /* a move to be dropped when both are back */
    uint64_t doing;             /* the move that they are for */
    uint64_t submitted, own_ids;
    float *shares; /* [layer][slots]: wanted; below 0 in the first slot: none */
};

static int slots_of(const struct routes *r) { return r->d.n_rank * r->d.n_slot; }

/* ---- tables ---- */

static void copy_layer(struct routes *to, const struct routes *from, int layer)
{
    size_t n = (size_t)slots_of(from);
    struct route_layer *t = &to->layer[layer];
    const struct route_layer *f = &from->layer[layer];

    t->generation = f->generation;
    memcpy(t->expert, f->expert, n * sizeof(*t->expert));
    memcpy(t->share, f->share, n * sizeof(*t->share));
}

static void share_equally(struct routes *r, int layer, int expert)
{
    struct route_layer *l = &r->layer[layer];
    int n = expert < 0 ? 0 : routes_copies(r, layer, expert);

    for (int i = 0; n && i < slots_of(r); i++)
        if (l->expert[i] == expert)
            l->share[i] = 1.0f / (float)n;
}

static float *wanted(const struct engine_experts *g, int layer)
{
    return g->shares + (size_t)layer * (size_t)slots_of(g->now);
}

/* Shares that were sent hold where they are of the experts as they will stand. */
static void take_shares(struct engine_experts *g, int layer)
{
    struct route_layer *l = &g->next->layer[layer];
    const float *w = wanted(g, layer);
    size_t bytes = (size_t)slots_of(g->now) * sizeof(float);
    float *before;

    if (w[0] < 0)
        return;
    before = xmalloc(bytes);
    memcpy(before, l->share, bytes);
    memcpy(l->share, w, bytes);
    if (routes_check(g->next, NULL) < 0)
        memcpy(l->share, before, bytes);
    free(before);
}

/* next := now with the move. */
static int plan(struct engine_experts *g, const struct move *v, struct err *e)
{
    struct route_layer *l = &g->next->layer[v->layer];
    int16_t was[MOVE_PUTS];

    copy_layer(g->next, g->now, v->layer);
    l->generation++;
    for (int i = 0; i < v->n; i++) {
        int at = v->put[i].rank * g->now->d.n_slot + v->put[i].slot;

        was[i] = l->expert[at];
        l->expert[at] = v->put[i].expert;
        l->share[at] = 0;
    }
    for (int i = 0; i < v->n; i++) {
        share_equally(g->next, v->layer, was[i]);
        share_equally(g->next, v->layer, v->put[i].expert);
    }
    take_shares(g, v->layer);
    return routes_check(g->next, e);
}

/* ---- answers ---- */

static void answer(struct engine_experts *g, int64_t now, enum moves_event_kind kind,
                   const struct err *why)
{
    const struct moves_event ev = {.kind = why ? MOVES_FAILED : kind,
                                   .id = g->doing,
                                   .last_ticket = g->submitted,
                                   .bytes = (int64_t)g->job.bytes,
                                   .work_us = g->job.work_us,
                                   .why = why ? why->msg : NULL};

    moves_event(g->moves, now, &ev);
}

/* ---- what is asked for ---- */

static void load(struct engine_experts *g, int64_t now, const struct move *v)
{
    struct err e;

    if (plan(g, v, &e) < 0) {
        answer(g, now, MOVES_FAILED, &e);
        return;
    }
    g->job = (struct expertload_job){.id = v->id, .layer = v->layer + g->n_dense};
    g->job.n = v->n;
    for (int i = 0; i < v->n; i++) {
        g->job.put[i].expert = v->put[i].expert;
        g->job.put[i].b = ranks_backend(g->cfg.x, v->layer, v->put[i].rank);
    }
    g->job_busy = true;
    expertload_ask(g->loader, &g->job, EXPERTLOAD_LOAD);
}

static void fill_change(struct engine_experts *g, const struct move *v)
{
    if (g->joined)
        return;
    g->change = (struct ranks_change){.layer = v->layer, .routes = g->next, .n = v->n};
    for (int i = 0; i < v->n; i++) {
        g->change.put[i].rank = v->put[i].rank;
        g->change.put[i].slot = v->put[i].slot;
        if (v->put[i].expert < 0)
            continue;
        memcpy(g->change.put[i].w, g->job.put[i].w, sizeof(g->change.put[i].w));
        memset(g->job.put[i].w, 0, sizeof(g->job.put[i].w));
    }
    g->joined = true;
}

static void change(struct engine_experts *g, enum ranks_change_kind kind)
{
    g->change.kind = kind;
    g->change_busy = true;
    ranks_change(g->cfg.x, &g->change);
}

static void ask_ranks(struct engine_experts *g, int64_t now, const struct move *v,
                      enum ranks_change_kind kind)
{
    struct err e;

    fill_change(g, v);
    if (kind == RANKS_VOTE && plan(g, v, &e) < 0) {
        answer(g, now, MOVES_FAILED, &e);
        return;
    }
    change(g, kind);
}

/* When nobody has anything of it any more. */
static void drop(struct engine_experts *g, int64_t now)
{
    const struct moves_event freed = {.kind = MOVES_FREED, .id = g->dropping};

    if (!g->dropping || g->job_busy || g->change_busy)
        return;
    if (g->joined && g->change.n && g->change.kind != RANKS_FREE) {
        change(g, RANKS_FREE);
        return;
    }
    expertload_job_done(&g->job);
    g->job.n = 0;
    g->joined = false;
    g->dropping = 0;
    moves_event(g->moves, now, &freed);
}

static void tell(struct engine_experts *g, const struct moves_news *n)
{
    if (!(n->move.id & OWN_ID))
        g->cfg.tell(g->cfg.arg, n);
}

static void act(struct engine_experts *g, int64_t now, const struct moves_act *a)
{
    struct err e;

    if (a->kind != MOVES_TELL && a->kind != MOVES_DROP)
        g->doing = a->move.id;
    switch (a->kind) {
    case MOVES_LOAD:
        load(g, now, &a->move);
        break;
    case MOVES_VERIFY:
        g->job_busy = true;
        expertload_ask(g->loader, &g->job, EXPERTLOAD_CHECK);
        break;
    case MOVES_WARM:
        ask_ranks(g, now, &a->move, RANKS_WARM);
        break;
    case MOVES_VOTE:
        ask_ranks(g, now, &a->move, RANKS_VOTE);
        break;
    case MOVES_DO_FLIP:
        change(g, RANKS_FLIP);
        break;
    case MOVES_FREE:
        change(g, RANKS_FREE);
        break;
    case MOVES_DROP:
        g->dropping = a->move.id;
        if (g->job_busy)
            expertload_stop(&g->job);
        drop(g, now);
        break;
    case MOVES_TELL:
        tell(g, &a->news);
        break;
    case MOVES_BROKEN:
        err_set(&e, ERR_DEVICE, "a move of experts: %s", a->news.why);
        g->cfg.broken(g->cfg.arg, &e);
        break;
    }
}

static void settle(struct engine_experts *g, int64_t now)
{
    struct moves_act a;

    while (moves_next(g->moves, now, &a))
        act(g, now, &a);
}

/* ---- what comes back ---- */

static void on_job(struct engine_experts *g, int64_t now)
{
    struct expertload_job *j = expertload_poll(g->loader);

    if (!j)
        return;
    g->job_busy = false;
    if (g->dropping)
        drop(g, now);
    else
        answer(g, now, j->kind == EXPERTLOAD_LOAD ? MOVES_LOADED : MOVES_VERIFIED,
               j->failed ? &j->why : NULL);
}

static void flipped(struct engine_experts *g)
{
    copy_layer(g->now, g->next, g->change.layer);
    wanted(g, g->change.layer)[0] = -1;
}

static void on_change(struct engine_experts *g, int64_t now)
{
    static const enum moves_event_kind kinds[] = {[RANKS_WARM] = MOVES_WARMED,
                                                  [RANKS_VOTE] = MOVES_VOTED,
                                                  [RANKS_FLIP] = MOVES_FLIPPED,
                                                  [RANKS_FREE] = MOVES_FREED};
    struct ranks_change *c = ranks_changed(g->cfg.x);

    if (!c)
        return;
    g->change_busy = false;
    if (g->dropping) {
        drop(g, now);
        return;
    }
    if (c->kind == RANKS_FLIP && !c->failed)
        flipped(g);
    if (c->kind == RANKS_FREE)
        g->joined = false;
    answer(g, now, kinds[c->kind], c->failed ? &c->why : NULL);
}

/* ---- from outside ---- */

void engine_experts_order(struct engine_experts *g, int64_t now, const struct move *v)
{
    struct moves_news n = {.move = *v, .state = MOVE_ABORTED};
    struct err e;

    if (v->id & OWN_ID || v->n < 1)
        err_set(&e, ERR_RANGE, "not the number of a move, or no slots");
    else if (moves_order(g->moves, now, v, &e) == 0) {
        settle(g, now);
        return;
    }
    snprintf(n.why, sizeof(n.why), "queued: %.240s", e.msg);
    g->cfg.tell(g->cfg.arg, &n);
}

int engine_experts_shares(struct engine_experts *g, int64_t now, int layer,
                          const float *share, int n, struct err *e)
{
    const struct move v = {.id = OWN_ID | ++g->own_ids, .layer = layer};
    bool waits;

    if (layer < 0 || layer >= g->now->n_layer || n != slots_of(g->now))
        return err_param(e, ERR_RANGE, "layer", "layer %d of %d, %d slots of %d", layer,
                         g->now->n_layer, n, slots_of(g->now));
    waits = wanted(g, layer)[0] >= 0; /* then the newer ones go with them */
    memcpy(wanted(g, layer), share, (size_t)slots_of(g->now) * sizeof(float));
    if (!waits && moves_order(g->moves, now, &v, e) < 0)
        return -1;
    settle(g, now);
    return 0;
}

void engine_experts_cancel(struct engine_experts *g, int64_t now, const char *why)
{
    moves_cancel(g->moves, now, why);
    settle(g, now);
}

void engine_experts_submitted(struct engine_experts *g, uint64_t ticket)
{
    g->submitted = ticket;
}

void engine_experts_step(struct engine_experts *g, int64_t now, uint64_t ticket,
                         int64_t step_us)
{
    const struct moves_event ev = {
        .kind = MOVES_STEP, .last_ticket = ticket, .step_us = step_us};

    expertload_step(g->loader, step_us);
    moves_event(g->moves, now, &ev);
    settle(g, now);
}

void engine_experts_pace(struct engine_experts *g, int64_t step_bytes, double share)
{
    expertload_pace(g->loader, step_bytes, share);
}

void engine_experts_poll(struct engine_experts *g, int64_t now)
{
    on_job(g, now);
    on_change(g, now);
    moves_tick(g->moves, now);
    settle(g, now);
}

int64_t engine_experts_deadline(const struct engine_experts *g)
{
    return moves_deadline(g->moves);
}

int engine_experts_fd(const struct engine_experts *g, int which)
{
    return which ? ranks_changed_fd(g->cfg.x) : expertload_fd(g->loader);
}

const struct routes *engine_experts_routes(const struct engine_experts *g)
{
    return g->now;
}

int engine_experts_waiting(const struct engine_experts *g)
{
    return moves_waiting(g->moves) + (g->dropping != 0);
}

/* ---- life ---- */

static uint64_t expert_bytes(const struct model *m)
{
    const struct model_info *i = model_info(m);
    uint64_t n = 0;

    for (int k = 0; k < MODEL_EXPERT_ROLES; k++) {
        const struct model_tensor *t =
            model_expert(m, (enum model_role)(ROLE_EXP_GATE + k), i->moe.n_dense, 0);
        int64_t row = t ? dtype_row_bytes(t->type, t->cols) : 0;
        n += row > 0 ? (uint64_t)row * (uint64_t)t->rows : 0;
    }
    return n;
}

void engine_experts_facts(const struct executor *x, const struct model *m,
                          struct engine_experts_facts *ret)
{
    const struct model_info *i = model_info(m);
    struct routes_dims d;

    *ret = (struct engine_experts_facts){0};
    if (!i->moe.n_expert || !ranks_routes(x, &d))
        return;
    ret->n_layer = i->n_layer - i->moe.n_dense;
    ret->n_expert = d.n_expert;
    ret->n_rank = d.n_rank;
    ret->n_slot = d.n_slot;
    ret->expert_bytes = expert_bytes(m);
}

static void fill_limits(const struct engine_experts *g, struct moves_limits *l)
{
    moves_limits_init(l);
    l->n_layer = g->now->n_layer;
    l->n_expert = g->now->d.n_expert;
    l->n_rank = g->now->d.n_rank;
    l->n_slot = g->now->d.n_slot;
    for (int s = MOVE_LOADING; g->cfg.state_us && s < MOVE_STATE_COUNT; s++)
        l->state_us[s] = g->cfg.state_us;
}

int engine_experts_new(const struct engine_experts_cfg *cfg, struct engine_experts **ret,
                       struct err *e)
{
    struct expertload_cfg lc = {cfg->model, cfg->slice_bytes, cfg->share, 0};
    const struct model_info *i = model_info(cfg->model);
    struct engine_experts *g = xcalloc(1, sizeof(*g));
    struct moves_limits limits;
    struct routes_dims d;

    g->cfg = *cfg;
    g->cfg.model = NULL; /* the caller's until this has succeeded */
    g->n_dense = i->moe.n_dense;
    if (!ranks_routes(cfg->x, &d)) {
        err_set(e, ERR_INTERNAL, "experts do not stand apart here");
        goto fail;
    }
    if (routes_new(&d, i->n_layer - i->moe.n_dense, &g->now, e) < 0 ||
        routes_new(&d, i->n_layer - i->moe.n_dense, &g->next, e) < 0)
        goto fail;
    g->shares =
        xcalloc((size_t)g->now->n_layer * (size_t)slots_of(g->now), sizeof(float));
    for (int l = 0; l < g->now->n_layer; l++)
        wanted(g, l)[0] = -1;
    fill_limits(g, &limits);
    g->moves = moves_new(&limits);
    lc.longest_us = limits.state_us[MOVE_LOADING] / 2;
    if (expertload_new(&lc, &g->loader, e) < 0)
        goto fail;
    g->cfg.model = cfg->model;
    *ret = g;
    return 0;

fail:
    engine_experts_free(g);
    return -1;
}

/* The change comes back, or a rank hangs. */
static bool change_back(struct engine_experts *g)
{
    if (g->change_busy && !ranks_changed_wait(g->cfg.x, END_WAIT_US))
        return false;
    g->change_busy = false;
    return true;
}

void engine_experts_free(struct engine_experts *g)
{
    if (!g)
        return;
    if (!expertload_free(g->loader) || !change_back(g))
        return; /* what hangs may still touch the rest: it stays */
    if (g->joined)
        change(g, RANKS_FREE);
    if (!change_back(g))
        return;
    expertload_job_done(&g->job);
    model_free(g->cfg.model);
    moves_free(g->moves);
    routes_free(g->now);
    routes_free(g->next);
    free(g->shares);
    free(g);
}
