/* daemon/serve/rankpage.c - rows of 64-bit cells, one value after the other. */
#include "daemon/serve/rankpage.h"

#include <stdatomic.h>

#include "base/err.h"
#include "base/region.h"
#include "daemon/serve/ranks.h"

enum {
    COUNTS = 6, /* of a comm_count */
    CELLS = 2 * MESH_DIM_COUNT + 4 + 2 + COUNTS * MESH_DIM_COUNT * COMM_CALL_COUNT
};

struct rankpage {
    _Atomic int64_t n, since_us, now_us;
    _Atomic int64_t cell[COMM_MAX_RANKS][CELLS];
    struct comm_pair pair[COMM_MAX_RANKS][COMM_MAX_RANKS][COMM_CALL_COUNT]; /* [reader] */
};

#define WHAT "the page of the ranks"

int rankpage_new(int *ret_fd, struct rankpage **ret, struct err *e)
{
    void *p;

    if (region_new("llmrack-ranks", WHAT, sizeof(**ret), ret_fd, &p, e) < 0)
        return -1;
    *ret = p;
    return 0;
}

int rankpage_map(int fd, struct rankpage **ret, struct err *e)
{
    void *p;

    if (region_map(fd, WHAT, sizeof(**ret), &p, e) < 0)
        return -1;
    *ret = p;
    return 0;
}

void rankpage_free(struct rankpage *p) { region_unmap(p, sizeof(*p)); }

/* ---- a row, written and read in one order ---- */

/* Puts or gets the next cell. */
struct cursor {
    _Atomic int64_t *at;
    bool put;
};

static void cell(struct cursor *c, int64_t *v)
{
    if (c->put)
        atomic_store_explicit(c->at++, *v, memory_order_relaxed);
    else
        *v = atomic_load_explicit(c->at++, memory_order_relaxed);
}

static void cell_int(struct cursor *c, int *v)
{
    int64_t w = *v;

    cell(c, &w);
    *v = (int)w;
}

static void cell_size(struct cursor *c, size_t *v)
{
    int64_t w = (int64_t)*v;

    cell(c, &w);
    *v = (size_t)w;
}

static void cell_u64(struct cursor *c, uint64_t *v)
{
    int64_t w = (int64_t)*v;

    cell(c, &w);
    *v = (uint64_t)w;
}

static void row(struct cursor *c, struct rank_status *s)
{
    for (int d = 0; d < MESH_DIM_COUNT; d++) {
        cell_int(c, &s->at.at[d]);
        cell_int(c, &s->at.group[d]);
    }
    cell_size(c, &s->mem.weight_bytes);
    cell_size(c, &s->mem.scratch_bytes);
    cell_size(c, &s->mem.kv_bytes);
    cell_size(c, &s->mem.other_bytes);
    cell(c, &s->busy_us);
    cell(c, &s->wait_us);
    for (int d = 0; d < MESH_DIM_COUNT; d++)
        for (int k = 0; k < COMM_CALL_COUNT; k++) {
            struct comm_count *n = &s->counts[d][k];

            cell_u64(c, &n->calls);
            cell_u64(c, &n->bytes);
            cell_u64(c, &n->cut_bytes);
            cell(c, &n->us);
            cell(c, &n->wait_us);
            cell(c, &n->link_us);
        }
}

void rankpage_set(struct rankpage *p, int rank, const struct rank_status *s)
{
    struct rank_status copy = *s;
    struct cursor c = {p->cell[rank], true};

    row(&c, &copy);
}

void rankpage_get(const struct rankpage *p, int rank, struct rank_status *ret)
{
    struct cursor c = {((struct rankpage *)p)->cell[rank], false};

    row(&c, ret);
}

void rankpage_tell(struct rankpage *p, int n_ranks, int64_t since_us, int64_t now_us)
{
    atomic_store(&p->since_us, since_us);
    atomic_store(&p->now_us, now_us);
    atomic_store(&p->n, n_ranks);
}

struct comm_pair (*rankpage_pairs(struct rankpage *p, int rank))[COMM_CALL_COUNT]
{
    for (int i = 0; i < COMM_MAX_RANKS; i++)
        for (int k = 0; k < COMM_CALL_COUNT; k++) {
            atomic_store_explicit(&p->pair[rank][i][k].bytes, 0, memory_order_relaxed);
            atomic_store_explicit(&p->pair[rank][i][k].link_us, 0, memory_order_relaxed);
        }
    return p->pair[rank];
}

bool rankpage_read_of(const struct rankpage *p, int rank, int from,
                      struct rank_read ret[COMM_CALL_COUNT])
{
    bool any = false;

    for (int k = 0; k < COMM_CALL_COUNT; k++) {
        const struct comm_pair *c = &p->pair[rank][from][k];

        ret[k].bytes = atomic_load_explicit(&c->bytes, memory_order_relaxed);
        ret[k].link_us = atomic_load_explicit(&c->link_us, memory_order_relaxed);
        any |= ret[k].bytes != 0;
    }
    return any;
}

void rankpage_clear(struct rankpage *p) { atomic_store(&p->n, 0); }

/* The engine is another process: its word is bounded here. */
int rankpage_count(const struct rankpage *p)
{
    int64_t n = atomic_load(&p->n);

    return n < 0 ? 0 : n > COMM_MAX_RANKS ? COMM_MAX_RANKS : (int)n;
}

int64_t rankpage_span_us(const struct rankpage *p)
{
    return atomic_load(&p->now_us) - atomic_load(&p->since_us);
}
