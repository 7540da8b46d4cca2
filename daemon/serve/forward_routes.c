/* daemon/serve/forward_routes.c - where the experts of a rank's layers stand.
 *
 * Each layer has a table on the device, made for all slots of all ranks at once, so that
 * it is replaced in place between two steps. Every rank holds the whole of it; a row's
 * copy is chosen where the row is at home. */
#include <assert.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/serve/forward_moe.h"
#include "daemon/serve/routes.h"

/* A layer of experts of this stage, counted over the model's. */
static struct forward_layer *moe_layer(const struct forward *f, int layer)
{
    return &f->w.layers[layer + f->w.info.moe.n_dense - f->w.d.first_layer];
}

bool forward_rows_known(const struct forward *f)
{
    const struct forward_part *p = &f->cfg.part;

    return p->ep > 1 && p->adp == 1 && !p->sp && p->cp * p->cp_u == 1;
}

bool forward_route_dims(const struct forward *f, struct routes_dims *ret, int *ret_first,
                        int *ret_n)
{
    if (!f->moe)
        return false;
    *ret = (struct routes_dims){f->w.info.moe.n_expert, f->cfg.part.ep, f->w.d.n_slot};
    *ret_first = f->moe->first_layer;
    *ret_n = f->moe->n_layer;
    return true;
}

/* The copies of a layer's experts, in order of their ranks, as op_spread takes them. */
static void fill_table(const struct routes *r, const struct route_layer *l, int32_t *t)
{
    int n = r->d.n_rank * r->d.n_slot, at = 0;
    int32_t *rank = t + r->d.n_expert + 1, *slot = rank + n, *upto = slot + n;

    for (int x = 0; x < r->d.n_expert; x++) {
        double sum = 0;

        t[x] = at;
        for (int s = 0; s < n; s++) {
            if (l->expert[s] != x)
                continue;
            sum += (double)l->share[s];
            rank[at] = s / r->d.n_slot;
            slot[at] = s % r->d.n_slot;
            upto[at++] = (int32_t)(sum >= 1 ? SPREAD_ONE : sum * SPREAD_ONE);
        }
        if (at > t[x])
            upto[at - 1] = SPREAD_ONE;
    }
    t[r->d.n_expert] = at;
}

/* Is every slot of mine that the table names filled? */
static int check_slots(const struct forward *f, int layer, const struct routes *r,
                       struct err *e)
{
    int me = f->cfg.part.ep_at;
    struct weight *const *gate = moe_layer(f, layer)->experts[0];

    for (int s = 0; s < r->d.n_slot; s++)
        if (r->layer[layer].expert[me * r->d.n_slot + s] >= 0 && !gate[s])
            return err_set(e, ERR_CONFLICT,
                           "layer of experts %d: slot %d of rank %d is to hold expert %d "
                           "and is empty",
                           layer, s, me, r->layer[layer].expert[me * r->d.n_slot + s]);
    return 0;
}

int forward_route_set(struct forward *f, int layer, const struct routes *r, struct err *e)
{
    struct forward_moe *m = f->moe;
    struct routes_dims d;
    int first, n;

    if (!forward_route_dims(f, &d, &first, &n) || d.n_expert != r->d.n_expert ||
        d.n_rank != r->d.n_rank || d.n_slot != r->d.n_slot || layer < 0 ||
        layer >= r->n_layer)
        return err_set(e, ERR_INVALID,
                       "layer %d of a route table of %d experts over %d ranks with %d "
                       "slots each: not of this model's sizes",
                       layer, r->d.n_expert, r->d.n_rank, r->d.n_slot);
    if (layer < first || layer >= first + n)
        return 0;
    if (routes_check(r, e) < 0 || check_slots(f, layer, r, e) < 0)
        return -1;
    if (forward_tally_route(f, layer - first, &r->layer[layer],
                            f->cfg.part.ep_at * f->w.d.n_slot, e) < 0)
        return -1;
    fill_table(r, &r->layer[layer], m->table);
    if (stream_upload(f->s, m->ints,
                      (size_t)(m->at.table + (layer - first) * m->table_len) * 4,
                      m->table, (size_t)m->table_len * 4, e) < 0)
        return -1;
    return stream_sync(f->s, e);
}

void forward_slot_swap(struct forward *f, int layer, int slot, struct weight **w)
{
    assert(f->moe && layer >= f->moe->first_layer &&
           layer < f->moe->first_layer + f->moe->n_layer && slot >= 0 &&
           slot < f->w.d.n_slot);
    for (int k = 0; k < MODEL_EXPERT_ROLES; k++) {
        struct weight **here = moe_layer(f, layer)->experts[k], *old;

        if (!here)
            continue;
        old = here[slot];
        here[slot] = w[k];
        w[k] = old;
    }
}

int forward_routes_new(struct forward *f, struct err *e)
{
    struct forward_moe *m = f->moe;
    int32_t host[COMM_MAX_RANKS] = {0};
    int ep = f->cfg.part.ep, first = 0, n = 0, rc = 0;
    struct routes_dims d;
    struct routes *r;

    for (int i = 0; ep > 1 && i < ep; i++)
        host[i] = comm_host(f->cfg.part.ep_comm, i);
    if (stream_upload(f->s, m->ints, (size_t)m->at.host * 4, host, (size_t)ep * 4, e) < 0)
        return -1;
    forward_route_dims(f, &d, &first, &n);
    if (n == 0)
        return stream_sync(f->s, e);
    if (routes_new(&d, first + n, &r, e) < 0)
        return -1;
    for (int i = 0; i < n && rc == 0; i++)
        rc = forward_route_set(f, first + i, r, e);
    routes_free(r);
    return rc;
}

int forward_spread(struct forward *f, const struct forward_layer *l, int n, struct err *e)
{
    const struct model_moe *x = &f->w.info.moe;
    struct forward_moe *m = f->moe;
    int ep = f->cfg.part.ep, me = f->cfg.part.ep_at, c = m->n_copies;
    int table = m->at.table + moe_index(f, l) * m->table_len;
    bool all = moe_routes_all(m);
    const struct op_spread o = {
        .policy = f->cfg.part.experts.routing,
        .rows = n,
        .top_k = x->top_k,
        .n_rank = ep,
        .n_src = all ? ep : 0,
        .src = me,
        .cap = f->cfg.part.experts.overflow == OVERFLOW_REPLICA ? m->cap_known : 0,
        .who = moe_who(f, 0, n),
        .moved = {forward_tally_lost(f, l, 0), forward_tally_lost(f, l, 1)},
        .phase = m->phase + (all ? 0 : (uint32_t)me * 0xc2b2ae35u),
        .ids = moe_ints_of(f, m->at.ids, n * x->top_k),
        .first = moe_ints_of(f, table, x->n_expert + 1),
        .rank = moe_ints_of(f, table + x->n_expert + 1, c),
        .slot = moe_ints_of(f, table + x->n_expert + 1 + c, c),
        .upto = moe_ints_of(f, table + x->n_expert + 1 + 2 * c, c),
        .host = moe_ints_of(f, m->at.host, ep),
        .to = moe_ints_of(f, m->at.to, n * x->top_k),
        .to_slot = moe_ints_of(f, m->at.to_slot, n * x->top_k),
        .scratch = moe_ints_of(f, m->at.spread, op_spread_scratch(x->n_expert, ep, c)),
    };

    return op_spread(f->s, &o, e);
}
