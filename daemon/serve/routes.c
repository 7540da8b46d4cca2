/* daemon/serve/routes.c - tables of slots: an expert each, or none, and its share. */
#include "daemon/serve/routes.h"

#include <math.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "kernels/comm.h"

static int slots_of(const struct routes_dims *d) { return d->n_rank * d->n_slot; }

static int check_dims(const struct routes_dims *d, int n_layer, struct err *e)
{
    if (n_layer < 1 || d->n_expert < 1 || d->n_expert > ROUTES_MAX_EXPERTS ||
        d->n_rank < 1 || d->n_slot < 1)
        return err_set(e, ERR_RANGE,
                       "%d layers of %d experts over %d ranks with %d slots each: 1 to "
                       "%d experts are right, and one of the others at least",
                       n_layer, d->n_expert, d->n_rank, d->n_slot, ROUTES_MAX_EXPERTS);
    if (d->n_slot > ROUTES_MAX_SLOTS / d->n_rank)
        return err_set(e, ERR_RANGE,
                       "%d ranks with %d slots each are more than %d slots a layer",
                       d->n_rank, d->n_slot, ROUTES_MAX_SLOTS);
    if (d->n_slot < (d->n_expert + d->n_rank - 1) / d->n_rank)
        return err_set(
            e, ERR_RANGE, "%d slots on each of %d ranks do not hold %d experts: %d would",
            d->n_slot, d->n_rank, d->n_expert, (d->n_expert + d->n_rank - 1) / d->n_rank);
    return 0;
}

int routes_home(const struct routes_dims *d, int expert)
{
    int64_t from = 0, to = 0;
    int rank = 0;

    for (; rank < d->n_rank; rank++) {
        comm_shard(d->n_expert, d->n_rank, rank, &from, &to);
        if (expert < to)
            break;
    }
    return rank * d->n_slot + (int)(expert - from);
}

static void fill_layer(const struct routes_dims *d, struct route_layer *l)
{
    l->generation = 1;
    l->expert = xcalloc((size_t)slots_of(d), sizeof(*l->expert));
    l->share = xcalloc((size_t)slots_of(d), sizeof(*l->share));
    for (int r = 0; r < d->n_rank; r++) {
        int64_t from, to;

        comm_shard(d->n_expert, d->n_rank, r, &from, &to);
        for (int s = 0; s < d->n_slot; s++) {
            bool home = s < to - from;

            l->expert[r * d->n_slot + s] = (int16_t)(home ? from + s : -1);
            l->share[r * d->n_slot + s] = home ? 1 : 0;
        }
    }
}

int routes_new(const struct routes_dims *d, int n_layer, struct routes **ret,
               struct err *e)
{
    struct routes *r;

    if (check_dims(d, n_layer, e) < 0)
        return -1;
    r = xcalloc(1, sizeof(*r));
    r->d = *d;
    r->n_layer = n_layer;
    r->layer = xcalloc((size_t)n_layer, sizeof(*r->layer));
    for (int i = 0; i < n_layer; i++)
        fill_layer(d, &r->layer[i]);
    *ret = r;
    return 0;
}

void routes_free(struct routes *r)
{
    if (!r)
        return;
    for (int i = 0; i < r->n_layer; i++) {
        free(r->layer[i].expert);
        free(r->layer[i].share);
    }
    free(r->layer);
    free(r);
}

/* ---- look ---- */

int routes_copies(const struct routes *r, int layer, int expert)
{
    const struct route_layer *l = &r->layer[layer];
    int n = 0;

    for (int i = 0; i < slots_of(&r->d); i++)
        n += l->expert[i] == expert;
    return n;
}

int routes_find(const struct routes *r, int layer, int expert, int rank)
{
    const int16_t *x = r->layer[layer].expert + rank * r->d.n_slot;

    for (int s = 0; s < r->d.n_slot; s++)
        if (x[s] == expert)
            return rank * r->d.n_slot + s;
    return -1;
}

int routes_empty(const struct routes *r, int layer, int rank)
{
    int at = routes_find(r, layer, -1, rank);

    return at < 0 ? -1 : at - rank * r->d.n_slot;
}

/* ---- change ---- */

static void share_equally(struct routes *r, int layer, int expert)
{
    struct route_layer *l = &r->layer[layer];
    int n = expert < 0 ? 0 : routes_copies(r, layer, expert);

    for (int i = 0; n && i < slots_of(&r->d); i++)
        if (l->expert[i] == expert)
            l->share[i] = 1.0f / (float)n;
}

static int check_place(const struct routes *r, int layer, int rank, int slot, int expert,
                       struct err *e)
{
    if (layer < 0 || layer >= r->n_layer || rank < 0 || rank >= r->d.n_rank || slot < 0 ||
        slot >= r->d.n_slot)
        return err_set(e, ERR_RANGE,
                       "layer %d, rank %d, slot %d: there are %d layers, %d ranks, %d "
                       "slots on each",
                       layer, rank, slot, r->n_layer, r->d.n_rank, r->d.n_slot);
    if (expert < -1 || expert >= r->d.n_expert)
        return err_set(e, ERR_RANGE, "expert %d of %d", expert, r->d.n_expert);
    return 0;
}

int routes_put(struct routes *r, int layer, int rank, int slot, int expert, struct err *e)
{
    struct route_layer *l;
    int at, was;

    if (check_place(r, layer, rank, slot, expert, e) < 0)
        return -1;
    l = &r->layer[layer];
    at = rank * r->d.n_slot + slot;
    was = l->expert[at];
    if (was == expert)
        return 0;
    if (expert >= 0 && routes_find(r, layer, expert, rank) >= 0)
        return err_set(e, ERR_CONFLICT,
                       "layer %d: rank %d has a copy of expert %d, a second one there "
                       "would serve nothing",
                       layer, rank, expert);
    if (was >= 0 && routes_copies(r, layer, was) == 1)
        return err_set(e, ERR_CONFLICT,
                       "layer %d: slot %d of rank %d holds the last copy of expert %d",
                       layer, slot, rank, was);
    l->expert[at] = (int16_t)expert;
    l->share[at] = 0;
    share_equally(r, layer, was);
    share_equally(r, layer, expert);
    l->generation++;
    return 0;
}

int routes_share(struct routes *r, int layer, int expert, const float *share, int n,
                 struct err *e)
{
    double sum = 0;
    int k = 0;

    if (layer < 0 || layer >= r->n_layer || expert < 0 || expert >= r->d.n_expert)
        return err_set(e, ERR_RANGE, "layer %d of %d, expert %d of %d", layer, r->n_layer,
                       expert, r->d.n_expert);
    if (n != routes_copies(r, layer, expert))
        return err_set(e, ERR_INVALID, "layer %d: %d shares for %d copies of expert %d",
                       layer, n, routes_copies(r, layer, expert), expert);
    for (int i = 0; i < n; i++) {
        if (!isfinite(share[i]) || share[i] < 0)
            return err_set(e, ERR_INVALID, "layer %d: a share of %g for expert %d", layer,
                           (double)share[i], expert);
        sum += share[i];
    }
    if (!(sum > 0) || !isfinite(sum))
        return err_set(e, ERR_INVALID,
                       "layer %d: the shares of expert %d sum to %g, more than 0 is "
                       "right",
                       layer, expert, sum);
    for (int i = 0; i < slots_of(&r->d); i++)
        if (r->layer[layer].expert[i] == expert)
            r->layer[layer].share[i] = (float)(share[k++] / sum);
    r->layer[layer].generation++;
    return 0;
}

/* ---- check ---- */

static int check_slot(const struct routes *r, int layer, int at, struct err *e)
{
    const struct route_layer *l = &r->layer[layer];
    int x = l->expert[at], rank = at / r->d.n_slot;
    float share = l->share[at];

    if (x < -1 || x >= r->d.n_expert)
        return err_set(e, ERR_INVALID, "layer %d: slot %d holds expert %d of %d", layer,
                       at, x, r->d.n_expert);
    if (!isfinite(share) || share < 0 || (x < 0 && share != 0))
        return err_set(e, ERR_INVALID, "layer %d: slot %d has a share of %g", layer, at,
                       (double)share);
    if (x >= 0 && routes_find(r, layer, x, rank) != at)
        return err_set(e, ERR_INVALID, "layer %d: two copies of expert %d on rank %d",
                       layer, x, rank);
    return 0;
}

int routes_check(const struct routes *r, struct err *e)
{
    if (check_dims(&r->d, r->n_layer, e) < 0)
        return -1;
    for (int i = 0; i < r->n_layer; i++) {
        for (int at = 0; at < slots_of(&r->d); at++)
            if (check_slot(r, i, at, e) < 0)
                return -1;
        for (int x = 0; x < r->d.n_expert; x++) {
            double sum = 0;
            for (int at = 0; at < slots_of(&r->d); at++)
                sum += r->layer[i].expert[at] == x ? (double)r->layer[i].share[at] : 0;
            if (!(fabs(sum - 1) < 1e-3))
                return err_set(e, ERR_INVALID,
                               "layer %d: the shares of expert %d sum to %g, 1 is right",
                               i, x, sum);
        }
    }
    return 0;
}
