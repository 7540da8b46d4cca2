/* daemon/serve/expertpage.c - cells by layer and slot; those of a model stand together,
 * so that little of the region is ever touched. */
#include "daemon/serve/expertpage.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/err.h"
#include "base/region.h"
#include "kernels/comm.h"

enum { SHARE_ONE = 1 << 30 };

typedef _Atomic int64_t cell;

struct slot_cells {
    cell expert, share;
    cell n[EXPERT_PHASES][EXPERT_COUNT_CELLS];
};
struct layer_cells {
    cell seen[COMM_MAX_RANKS]; /* generation of the table that a rank's slots are of */
    cell traffic[COMM_MAX_RANKS][EXPERT_PHASES][EXPERT_TRAFFIC_CELLS];
    cell left[ROUTES_MAX_EXPERTS][EXPERT_PHASES][EXPERT_LEFT_CELLS];
    struct slot_cells slot[ROUTES_MAX_SLOTS];
};
struct expertpage {
    cell n_layer, n_expert, n_rank, n_slot, epoch;
    cell steps[EXPERT_PHASES];
    struct layer_cells layer[EXPERTPAGE_LAYERS];
    cell paired; /* pairs are counted */
    _Atomic uint32_t pairs[EXPERTPAGE_LAYERS][EXPERTPAGE_PAIRED][EXPERTPAGE_PAIRED];
};

_Static_assert(sizeof(struct expert_count) == EXPERT_COUNT_CELLS * 8, "cells");
_Static_assert(sizeof(struct expert_left) == EXPERT_LEFT_CELLS * 8, "cells");
_Static_assert(sizeof(struct expert_traffic) == EXPERT_TRAFFIC_CELLS * 8, "cells");

static int64_t get(const cell *c)
{
    return atomic_load_explicit((cell *)c, memory_order_relaxed);
}

static void put(cell *c, int64_t v) { atomic_store_explicit(c, v, memory_order_relaxed); }

#define WHAT "the page of the experts"

int expertpage_new(int *ret_fd, struct expertpage **ret, struct err *e)
{
    void *p;

    if (region_new("llmrack-experts", WHAT, sizeof(**ret), ret_fd, &p, e) < 0)
        return -1;
    *ret = p;
    return 0;
}

int expertpage_map(int fd, struct expertpage **ret, struct err *e)
{
    void *p;

    if (region_map(fd, WHAT, sizeof(**ret), &p, e) < 0)
        return -1;
    *ret = p;
    return 0;
}

void expertpage_free(struct expertpage *p) { region_unmap(p, sizeof(*p)); }

static void forget_left(struct expertpage *p, int n_layer, int n_expert)
{
    for (int l = 0; l < n_layer; l++)
        for (int i = 0; i < n_expert * EXPERT_PHASES * EXPERT_LEFT_CELLS; i++)
            put(&p->layer[l].left[0][0][0] + i, 0);
}

/* ---- the engine ---- */

int expertpage_open(struct expertpage *p, const struct routes_dims *d, int n_layer,
                    struct err *e)
{
    if (n_layer < 1 || n_layer > EXPERTPAGE_LAYERS || d->n_rank < 1 ||
        d->n_rank > COMM_MAX_RANKS || d->n_slot < 1 ||
        d->n_slot > ROUTES_MAX_SLOTS / d->n_rank || d->n_expert < 1 ||
        d->n_expert > ROUTES_MAX_EXPERTS)
        return err_set(e, ERR_RANGE,
                       "%d layers of %d experts in %d slots on each of %d ranks are more "
                       "than the page of the experts has room for",
                       n_layer, d->n_expert, d->n_slot, d->n_rank);
    expertpage_clear(p);
    for (int l = 0; l < n_layer; l++) {
        struct layer_cells *c = &p->layer[l];

        for (int r = 0; r < d->n_rank; r++) {
            put(&c->seen[r], 0);
            for (int i = 0; i < EXPERT_PHASES * EXPERT_TRAFFIC_CELLS; i++)
                put(&c->traffic[r][0][0] + i, 0);
        }
        for (int s = 0; s < d->n_rank * d->n_slot; s++) {
            put(&c->slot[s].expert, -1);
            put(&c->slot[s].share, 0);
            for (int i = 0; i < EXPERT_PHASES * EXPERT_COUNT_CELLS; i++)
                put(&c->slot[s].n[0][0] + i, 0);
        }
    }
    forget_left(p, n_layer, d->n_expert);
    for (int i = 0; i < EXPERT_PHASES; i++)
        put(&p->steps[i], 0);
    put(&p->paired, 0);
    put(&p->n_expert, d->n_expert);
    put(&p->n_rank, d->n_rank);
    put(&p->n_slot, d->n_slot);
    atomic_store(&p->n_layer, n_layer);
    return 0;
}

static void forget_pairs(struct expertpage *p, int n_layer, int n)
{
    for (int l = 0; l < n_layer; l++)
        for (int a = 0; a < n; a++)
            for (int b = 0; b < n; b++)
                atomic_store_explicit(&p->pairs[l][a][b], 0, memory_order_relaxed);
}

void expertpage_pairs_begin(struct expertpage *p)
{
    if (get(&p->n_expert) > EXPERTPAGE_PAIRED)
        return;
    forget_pairs(p, (int)get(&p->n_layer), (int)get(&p->n_expert));
    put(&p->paired, 1);
}

_Atomic uint32_t *expertpage_pairs(struct expertpage *p) { return &p->pairs[0][0][0]; }

static void add_left(struct expertpage *p, const struct expert_report *r)
{
    const struct expert_left *n = r->left;

    for (int k = 0; n && k < EXPERT_PHASES; k++)
        for (int i = 0; i < r->n_layer; i++)
            for (int x = 0; x < r->n_expert; x++, n++) {
                cell *c = p->layer[r->first + i].left[x][k];
                const int64_t add[] = {n->n.rows, n->n.over, n->n.service_ns,
                                       n->n.queue_ns, n->replica};

                for (int v = 0; v < EXPERT_LEFT_CELLS; v++)
                    if (add[v])
                        atomic_fetch_add_explicit(&c[v], add[v], memory_order_relaxed);
            }
}

static void put_counts(struct expertpage *p, const struct expert_report *r, int layer,
                       int phase)
{
    struct layer_cells *c = &p->layer[r->first + layer];
    struct slot_cells *s = &c->slot[r->rank * r->n_slot];
    const int64_t *from = r->cells[phase] + layer * expert_report_stride(r->n_slot);

    for (int k = 0; k < r->n_slot; k++, from += EXPERT_COUNT_CELLS)
        for (int n = 0; n < EXPERT_COUNT_CELLS; n++)
            put(&s[k].n[phase][n], from[n]);
    for (int n = 0; n < EXPERT_TRAFFIC_CELLS; n++)
        put(&c->traffic[r->rank][phase][n], from[n]);
}

void expertpage_put(struct expertpage *p, const struct expert_report *r)
{
    add_left(p, r);
    for (int i = 0; i < r->n_layer; i++) {
        struct layer_cells *c = &p->layer[r->first + i];
        struct slot_cells *s = &c->slot[r->rank * r->n_slot];

        for (int k = 0; k < EXPERT_PHASES; k++)
            if (r->cells[k])
                put_counts(p, r, i, k);
        if (get(&c->seen[r->rank]) == (int64_t)r->routes[i].generation)
            continue;
        for (int k = 0; k < r->n_slot; k++) {
            put(&s[k].expert, r->routes[i].expert[k]);
            put(&s[k].share, lrint((double)r->routes[i].share[k] * SHARE_ONE));
        }
        put(&c->seen[r->rank], (int64_t)r->routes[i].generation);
    }
}

void expertpage_step(struct expertpage *p, int phase)
{
    put(&p->steps[phase], get(&p->steps[phase]) + 1);
}

uint64_t expertpage_epoch(const struct expertpage *p) { return (uint64_t)get(&p->epoch); }

/* ---- the daemon ---- */

void expertpage_restart(struct expertpage *p)
{
    struct routes_dims d;
    int n;

    if (expertpage_dims(p, &d, &n)) {
        forget_left(p, n, d.n_expert);
        if (get(&p->paired) && d.n_expert <= EXPERTPAGE_PAIRED)
            forget_pairs(p, n, d.n_expert);
    }
    atomic_fetch_add(&p->epoch, 1);
    for (int i = 0; i < EXPERT_PHASES; i++)
        put(&p->steps[i], 0);
}

void expertpage_clear(struct expertpage *p) { atomic_store(&p->n_layer, 0); }

bool expertpage_dims(const struct expertpage *p, struct routes_dims *ret,
                     int *ret_n_layer)
{
    int64_t layers = get(&p->n_layer), x = get(&p->n_expert), r = get(&p->n_rank);
    int64_t s = get(&p->n_slot);

    if (layers < 1 || layers > EXPERTPAGE_LAYERS || x < 1 || x > ROUTES_MAX_EXPERTS ||
        r < 1 || r > COMM_MAX_RANKS || s < 1 || s > ROUTES_MAX_SLOTS / r)
        return false;
    *ret = (struct routes_dims){(int)x, (int)r, (int)s};
    *ret_n_layer = (int)layers;
    return true;
}

int64_t expertpage_steps(const struct expertpage *p, int phase)
{
    return get(&p->steps[phase]);
}

uint64_t expertpage_generation(const struct expertpage *p, int layer)
{
    int64_t n = get(&p->n_rank), least = INT64_MAX;

    for (int r = 0; r < n && r < COMM_MAX_RANKS; r++)
        least =
            get(&p->layer[layer].seen[r]) < least ? get(&p->layer[layer].seen[r]) : least;
    return least == INT64_MAX ? 0 : (uint64_t)least;
}

void expertpage_slot(const struct expertpage *p, int layer, int rank, int slot,
                     struct expert_slot *ret)
{
    const struct slot_cells *s =
        &p->layer[layer].slot[(rank * (int)get(&p->n_slot) + slot) % ROUTES_MAX_SLOTS];
    int64_t x = get(&s->expert);

    ret->expert = x < -1 || x >= ROUTES_MAX_EXPERTS ? -1 : (int)x;
    ret->share = (float)get(&s->share) / SHARE_ONE;
    for (int i = 0; i < EXPERT_PHASES; i++)
        ret->n[i] = (struct expert_count){get(&s->n[i][0]), get(&s->n[i][1]),
                                          get(&s->n[i][2]), get(&s->n[i][3])};
}

static void add_slot(struct expert_left *to, const struct slot_cells *s, int phase,
                     bool home)
{
    const cell *c = s->n[phase];

    to->n.rows += get(&c[0]);
    to->n.over += get(&c[1]);
    to->n.service_ns += get(&c[2]);
    to->n.queue_ns += get(&c[3]);
    to->replica += home ? 0 : get(&c[0]);
}

void expertpage_experts(const struct expertpage *p, int layer, int phase, int n_expert,
                        struct expert_left *ret)
{
    const struct layer_cells *l = &p->layer[layer];
    struct routes_dims d;
    int n;

    for (int x = 0; x < n_expert; x++) {
        const cell *c = l->left[x][phase];

        ret[x] = (struct expert_left){{get(&c[0]), get(&c[1]), get(&c[2]), get(&c[3])},
                                      get(&c[4])};
    }
    if (!expertpage_dims(p, &d, &n))
        return;
    for (int s = 0; s < d.n_rank * d.n_slot; s++) {
        int64_t x = get(&l->slot[s].expert);

        if (x >= 0 && x < n_expert && x < d.n_expert)
            add_slot(&ret[x], &l->slot[s], phase, s == routes_home(&d, (int)x));
    }
}

bool expertpage_pairs_of(const struct expertpage *p, int layer, int n_expert, double *ret)
{
    if (!get(&p->paired) || n_expert > EXPERTPAGE_PAIRED || layer < 0 ||
        layer >= EXPERTPAGE_LAYERS)
        return false;
    for (int a = 0; a < n_expert; a++)
        for (int b = 0; b < n_expert; b++)
            ret[a * n_expert + b] =
                a == b ? 0
                       : (double)atomic_load_explicit(
                             (_Atomic uint32_t *)&p
                                 ->pairs[layer][a < b ? a : b][a < b ? b : a],
                             memory_order_relaxed);
    return true;
}

void expertpage_traffic(const struct expertpage *p, int layer, int rank, int phase,
                        struct expert_traffic *ret)
{
    const cell *c = p->layer[layer].traffic[rank][phase];

    *ret = (struct expert_traffic){get(&c[0]), get(&c[1]), get(&c[2]), get(&c[3]),
                                   get(&c[4]), get(&c[5]), get(&c[6])};
}
