/* daemon/serve/rankpage.c - rows of 64-bit cells, one value after the other. */
#include "daemon/serve/rankpage.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "daemon/serve/ranks.h"

enum {
    COUNTS = 6, /* of a comm_count */
    CELLS = 2 * MESH_DIM_COUNT + 4 + 2 + COUNTS * MESH_DIM_COUNT * COMM_CALL_COUNT
};

struct rankpage {
    _Atomic int64_t n, since_us, now_us;
    _Atomic int64_t cell[COMM_MAX_RANKS][CELLS];
};

static int map(int fd, struct rankpage **ret, struct err *e)
{
    void *p = mmap(NULL, sizeof(**ret), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (p == MAP_FAILED)
        return err_errno(e, ERR_NOMEM, "the page of the ranks");
    *ret = p;
    return 0;
}

int rankpage_new(int *ret_fd, struct rankpage **ret, struct err *e)
{
    int fd = memfd_create("llmrack-ranks", MFD_CLOEXEC);

    if (fd < 0 || ftruncate(fd, (off_t)sizeof(**ret)) < 0) {
        err_errno(e, ERR_NOMEM, "the page of the ranks");
        if (fd >= 0)
            close(fd);
        return -1;
    }
    if (map(fd, ret, e) < 0) {
        close(fd);
        return -1;
    }
    *ret_fd = fd;
    return 0;
}

int rankpage_map(int fd, struct rankpage **ret, struct err *e)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return err_errno(e, ERR_IO, "the page of the ranks");
    if (st.st_size != (off_t)sizeof(**ret))
        return err_set(e, ERR_INVALID,
                       "the page of the ranks has %lld bytes, %zu would be right",
                       (long long)st.st_size, sizeof(**ret));
    return map(fd, ret, e);
}

void rankpage_free(struct rankpage *p)
{
    if (p)
        munmap(p, sizeof(*p));
}

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
