/* daemon/serve/rank.c - open a rank's part, run its share of a step. */
#include "daemon/serve/rank.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/mem.h"
#include "daemon/serve/expertpage.h"
#include "daemon/serve/forward_expert.h"
#include "daemon/serve/links.h"
#include "daemon/serve/model.h"
#include "daemon/serve/rankpage.h"
#include "daemon/serve/ranks_impl.h"
#include "daemon/serve/routes.h"
#include "daemon/serve/step.h"
#include "daemon/serve/tracepage.h"

/* Tests: "RANK FACTOR" makes all that is read of a rank come so much slower. */
static struct comm_link slowed(const struct comm_link *l, int from)
{
    const char *said = fault_setting("LLMRACK_LINK_SLOW");
    struct comm_link is = *l;
    double factor;
    int rank;

    if (said && sscanf(said, "%d %lf", &rank, &factor) == 2 && rank == from)
        is.bytes_per_s /= factor;
    return is;
}

static int join(struct rank *r, enum mesh_dim d,
                struct comm_pair (*pairs)[COMM_CALL_COUNT])
{
    int group = r->mesh->ranks[r->index].group[d];
    struct comm_link in[COMM_MAX_RANKS];
    struct comm_cfg c = {.rank = r->index,
                         .timeout_us = r->cfg.comm_timeout_us,
                         .spin = r->cfg.backend.spin,
                         .pairs = pairs};

    if (group >= 0 && r->links) {
        const struct comm_group *g = &r->mesh->groups[group];
        for (int i = 0; i < g->n; i++)
            in[i] = slowed(&r->links->path[g->ranks[i] * r->links->n + r->index],
                           g->ranks[i]);
        c.links = in;
    }
    return group < 0 ? 0 : comm_join(r->fabric, group, &c, &r->comm[d], &r->why);
}

static struct forward_part part_of(const struct rank *r)
{
    const struct mesh *m = r->mesh;
    const struct mesh_rank *at = &m->ranks[r->index];

    return (struct forward_part){
        .chunks = r->cfg.forward.part.chunks,
        .as_tp = r->cfg.forward.part.as_tp,
        .as_cp = r->cfg.forward.part.as_cp,
        .micro = r->cfg.forward.part.micro,
        .experts = r->cfg.forward.part.experts,
        .tp = m->size[MESH_TP],
        .tp_at = at->at[MESH_TP],
        .pp = m->size[MESH_PP],
        .pp_at = at->at[MESH_PP],
        .ep = m->size[MESH_EP],
        .ep_at = at->at[MESH_EP],
        .adp = m->size[MESH_ADP],
        .adp_at = at->at[MESH_ADP],
        .cp = m->size[MESH_CP],
        .cp_at = at->at[MESH_CP],
        .cp_u = m->size[MESH_CPU],
        .cp_u_at = at->at[MESH_CPU],
        .cp_method = m->layout.cp_method,
        .sp = m->layout.sp,
        .tp_comm = r->comm[MESH_TP],
        .pp_comm = r->comm[MESH_PP],
        .ep_comm = r->comm[MESH_EP],
        .cp_comm = r->comm[MESH_CP],
        .cp_u_comm = r->comm[MESH_CPU],
    };
}

static int open_backend(struct rank *r)
{
    struct backend_cfg c = r->cfg.backend;
    int *cpus, rc;

    c.n_threads = ranks_stand(r->all, r->index, &cpus);
    c.cpus = cpus;
    rc = backend_open(&c, &r->b, &r->why);
    free(cpus);
    return rc;
}

static int open_parts(struct rank *r, struct model *m, forward_progress_fn progress,
                      void *arg)
{
    struct forward_cfg *f = &r->cfg.forward;
    struct comm_pair(*pairs)[COMM_CALL_COUNT] =
        r->cfg.pairs ? rankpage_pairs(r->cfg.pairs, r->index) : NULL;

    for (int d = 0; d < MESH_DIM_COUNT; d++)
        if (join(r, (enum mesh_dim)d, pairs) < 0)
            return -1;
    f->part = part_of(r);
    if (f->part.experts.count_pairs && r->cfg.experts &&
        model_info(m)->moe.n_expert <= EXPERTPAGE_PAIRED)
        f->part.experts.pairs = expertpage_pairs(r->cfg.experts);
    forward_caps(model_info(m), f, &r->cfg.backend.caps);
    if (open_backend(r) < 0)
        return -1;
    if (f->kv_type == DT_COUNT)
        f->kv_type = backend_kv_dtype(r->b);
    return forward_new(r->b, m, f, progress, arg, &r->f, &r->why);
}

/* What one rank could not do, no rank can go on with. */
static int fail(struct rank *r)
{
    r->failed = true;
    if (r->fabric)
        comm_abort(r->fabric, &r->why);
    return -1;
}

/* What there will be to tell, before anybody tells. */
static int open_page(struct rank *r, const struct model *m)
{
    const struct model_info *i = model_info(m);
    struct routes_dims d;
    int first, n;

    if (!r->cfg.experts || r->index || !forward_route_dims(r->f, &d, &first, &n))
        return 0;
    if (expertpage_open(r->cfg.experts, &d, i->n_layer - i->moe.n_dense, &r->why) < 0)
        return -1;
    if (r->cfg.forward.part.experts.count_pairs)
        expertpage_pairs_begin(r->cfg.experts);
    return 0;
}

static int count_afresh(struct rank *r)
{
    uint64_t epoch = r->cfg.experts ? expertpage_epoch(r->cfg.experts) : r->epoch;

    if (epoch == r->epoch)
        return 0;
    r->epoch = epoch;
    return forward_counts_clear(r->f, &r->why);
}

static int tell_experts(struct rank *r)
{
    struct expert_report told;

    if (forward_altered(r->f, &r->altered, &r->why) < 0)
        return -1;
    if (!r->cfg.experts)
        return 0;
    if (forward_report(r->f, &told, &r->why) < 0)
        return -1;
    if (told.n_layer)
        expertpage_put(r->cfg.experts, &told);
    if (told.n_layer && !r->index && told.phase < EXPERT_PHASES)
        expertpage_step(r->cfg.experts, told.phase);
    return 0;
}

int rank_open(struct rank *r, struct model *m, forward_progress_fn progress, void *arg)
{
    if (open_parts(r, m, progress, arg) < 0 || open_page(r, m) < 0)
        return fail(r);
    r->kv_type = r->cfg.forward.kv_type;
    backend_mem_used(r->b, &r->mem);
    return 0;
}

int rank_run(struct rank *r, const struct step *st, forward_sink_fn sink, void *arg)
{
    int64_t began = clock_now_us(clock_real()), us;
    bool traced = tracepage_wants(r->cfg.trace, st);
    int rc;

    for (int d = 0; d < MESH_DIM_COUNT; d++)
        if (r->comm[d])
            comm_step(r->comm[d], st->number);
    fault_hold("rank", r->index);
    rank_follow(r);
    forward_trace(r->f, traced ? r->cfg.trace : NULL, r->index);
    rc = count_afresh(r);
    if (rc == 0)
        rc = forward_run(r->f, st, sink, arg, &r->why);
    if (rc == 0)
        rc = tell_experts(r);
    us = clock_now_us(clock_real()) - began;
    atomic_fetch_add(&r->busy_us, us);
    if (traced)
        tracepage_put(r->cfg.trace, &(struct trace_event){.kind = TRACE_RANK,
                                                          .rank = r->index,
                                                          .start_us = began,
                                                          .us = us,
                                                          .ref = st->number,
                                                          .a = st->n_items,
                                                          .b = st->n_toks});
    return rc < 0 ? fail(r) : 0;
}

/* ---- experts that move ---- */

bool rank_has_expert_slot(const struct rank *r, int layer, int rank)
{
    struct routes_dims d;
    int first, n;

    return r->mesh->ranks[r->index].at[MESH_EP] == rank &&
           forward_route_dims(r->f, &d, &first, &n) && layer >= first &&
           layer < first + n;
}

static uint64_t *generation(struct rank *r, const struct routes *t, int layer)
{
    if (!r->generation) {
        r->generation = xcalloc((size_t)t->n_layer, sizeof(*r->generation));
        for (int i = 0; i < t->n_layer; i++)
            r->generation[i] = 1; /* as loaded */
    }
    return &r->generation[layer];
}

/* Can this rank take the table, when its own slots are filled as said? */
static int vote(struct rank *r, const struct ranks_change *c)
{
    const struct routes *t = c->routes;
    uint64_t has = *generation(r, t, c->layer), to = t->layer[c->layer].generation;

    if (to != has + 1)
        return err_set(&r->no, ERR_CONFLICT,
                       "its table has generation %llu, the new one %llu",
                       (unsigned long long)has, (unsigned long long)to);
    for (int i = 0; i < c->n; i++) {
        int slot = c->put[i].rank * t->d.n_slot + c->put[i].slot;
        bool filled = t->layer[c->layer].expert[slot] >= 0;

        if (rank_has_expert_slot(r, c->layer, c->put[i].rank) &&
            filled != (c->put[i].w[0] != NULL))
            return err_set(&r->no, ERR_INTERNAL, "slot %d: its weights are %s",
                           c->put[i].slot, filled ? "not there" : "not wanted");
    }
    return routes_check(t, &r->no);
}

static int flip(struct rank *r, struct ranks_change *c)
{
    for (int i = 0; i < c->n; i++)
        if (rank_has_expert_slot(r, c->layer, c->put[i].rank))
            forward_slot_swap(r->f, c->layer, c->put[i].slot, c->put[i].w);
    if (fault_hold("expert_flip", r->index)) {
        err_set(&r->why, ERR_DEVICE, "a test lets it fail");
        return fail(r);
    }
    if (forward_route_set(r->f, c->layer, c->routes, &r->why) < 0)
        return fail(r);
    *generation(r, c->routes, c->layer) = c->routes->layer[c->layer].generation;
    return 0;
}

static int try_or_free(struct rank *r, struct ranks_change *c)
{
    for (int i = 0; i < c->n; i++) {
        if (!rank_has_expert_slot(r, c->layer, c->put[i].rank))
            continue;
        if (c->kind == RANKS_WARM && c->put[i].w[0] &&
            forward_expert_warm(r->f, c->put[i].w, &r->no) < 0)
            return -1;
        for (int k = 0; c->kind == RANKS_FREE && k < MODEL_EXPERT_ROLES; k++) {
            weight_free(c->put[i].w[k]);
            c->put[i].w[k] = NULL;
        }
    }
    return 0;
}

int rank_change(struct rank *r, struct ranks_change *c)
{
    static const char *const points[] = {[RANKS_WARM] = "expert_warm",
                                         [RANKS_VOTE] = "expert_vote",
                                         [RANKS_FLIP] = "expert_turn",
                                         [RANKS_FREE] = "expert_free"};
    bool let = fault_hold(points[c->kind], r->index);
    int rc;

    r->refused = false;
    if (c->kind == RANKS_FLIP)
        return flip(r, c);
    if (let)
        rc = err_set(&r->no, ERR_DEVICE, "a test lets it fail");
    else
        rc = c->kind == RANKS_VOTE ? vote(r, c) : try_or_free(r, c);
    r->refused = rc < 0;
    return rc;
}

void rank_close(struct rank *r)
{
    free(r->generation);
    forward_free(r->f);
    backend_close(r->b);
    for (int d = 0; d < MESH_DIM_COUNT; d++)
        comm_leave(r->comm[d]);
}

void rank_status_of(const struct rank *r, struct rank_status *ret)
{
    *ret = (struct rank_status){.at = r->mesh->ranks[r->index], .mem = r->mem};
    ret->busy_us = atomic_load(&r->busy_us);
    for (int d = 0; d < MESH_DIM_COUNT; d++) {
        if (!r->comm[d])
            continue;
        comm_counts(r->comm[d], ret->counts[d]);
        for (int c = 0; c < COMM_CALL_COUNT; c++)
            ret->wait_us += ret->counts[d][c].wait_us;
    }
}
