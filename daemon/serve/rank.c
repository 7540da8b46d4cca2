/* daemon/serve/rank.c - open a rank's part, run its share of a step. */
#include "daemon/serve/rank.h"

#include "base/clock.h"
#include "base/fault.h"
#include "daemon/serve/links.h"
#include "daemon/serve/model.h"
#include "daemon/serve/step.h"

static int join(struct rank *r, enum mesh_dim d)
{
    int group = r->mesh->ranks[r->index].group[d];
    struct comm_link in[COMM_MAX_RANKS];
    struct comm_cfg c = {.rank = r->index,
                         .timeout_us = r->cfg.comm_timeout_us,
                         .spin = r->cfg.backend.spin};

    if (group >= 0 && r->links) {
        const struct comm_group *g = &r->mesh->groups[group];
        for (int i = 0; i < g->n; i++)
            in[i] = r->links->path[g->ranks[i] * r->links->n + r->index];
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
        .micro = r->cfg.forward.part.micro,
        .spare = r->cfg.forward.part.spare,
        .routing = r->cfg.forward.part.routing,
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

static int open_parts(struct rank *r, struct model *m, forward_progress_fn progress,
                      void *arg)
{
    struct forward_cfg *f = &r->cfg.forward;

    for (int d = 0; d < MESH_DIM_COUNT; d++)
        if (join(r, (enum mesh_dim)d) < 0)
            return -1;
    f->part = part_of(r);
    forward_caps(model_info(m), f, &r->cfg.backend.caps);
    if (backend_open(&r->cfg.backend, &r->b, &r->why) < 0)
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

int rank_open(struct rank *r, struct model *m, forward_progress_fn progress, void *arg)
{
    if (open_parts(r, m, progress, arg) < 0)
        return fail(r);
    r->kv_type = r->cfg.forward.kv_type;
    backend_mem_used(r->b, &r->mem);
    return 0;
}

int rank_run(struct rank *r, const struct step *st, forward_sink_fn sink, void *arg)
{
    int64_t began = clock_now_us(clock_real());
    int rc;

    for (int d = 0; d < MESH_DIM_COUNT; d++)
        if (r->comm[d])
            comm_step(r->comm[d], st->number);
    fault_hold("rank", r->index);
    rc = forward_run(r->f, st, sink, arg, &r->why);
    atomic_fetch_add(&r->busy_us, clock_now_us(clock_real()) - began);
    return rc < 0 ? fail(r) : 0;
}

void rank_close(struct rank *r)
{
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
