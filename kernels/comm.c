/* kernels/comm.c - a fabric's memory, who is in it, waiting with a culprit, counting.
 *
 * The region is a memfd, mostly never touched: a stage becomes real memory when it is
 * first used. Every wait looks at the fabric's state, so that all ranks leave with the
 * same sentence once one of them has ended it. */
#include "kernels/comm.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/mem.h"
#include "kernels/comm_impl.h"

enum {
    MAGIC = 0x636f6d31,
    CHUNK = 1 << 20,
    PAGE = 4096,
    PAIR_PART = 4, /* a pair's half is this part of a member's */
    TIMEOUT_US = 30 * 1000 * 1000
};

static int64_t now_us(void) { return clock_now_us(clock_real()); }

const char *comm_call_name(enum comm_call c)
{
    static const char *const names[] = {
#define X(id, name) name,
        COMM_CALL_MAP(X)
#undef X
    };
    return (unsigned)c < COMM_CALL_COUNT ? names[c] : "unknown";
}

/* ---- the region ---- */

static uint64_t page_up(uint64_t n) { return (n + PAGE - 1) / PAGE * PAGE; }

/* Offsets of one group from `at`; returns where the next begins. */
static uint64_t lay_out_group(struct comm_group_head *g, uint64_t at, uint64_t chunk)
{
    uint64_t n = (uint64_t)g->g.n;

    g->members_off = page_up(at + sizeof(*g));
    g->pairs_off =
        page_up(g->members_off + COMM_LANES * n * sizeof(struct comm_member_state));
    g->stage_off = page_up(g->pairs_off + n * n * sizeof(struct comm_pair_state));
    g->pair_stage_off = g->stage_off + COMM_LANES * n * 2 * chunk;
    return page_up(g->pair_stage_off + n * n * 2 * (chunk / PAIR_PART));
}

static int check_groups(const struct comm_group *groups, int n_groups, int n_ranks,
                        struct err *e)
{
    if (n_groups < 1 || n_groups > COMM_MAX_GROUPS || n_ranks < 1 ||
        n_ranks > COMM_MAX_RANKS)
        return err_set(e, ERR_RANGE, "%d groups of %d ranks: at most %d and %d", n_groups,
                       n_ranks, COMM_MAX_GROUPS, COMM_MAX_RANKS);
    for (int i = 0; i < n_groups; i++) {
        if (groups[i].n < 1 || groups[i].n > n_ranks)
            return err_set(e, ERR_RANGE, "group '%s' has %d of %d ranks", groups[i].name,
                           groups[i].n, n_ranks);
        for (int j = 0; j < groups[i].n; j++)
            if (groups[i].ranks[j] < 0 || groups[i].ranks[j] >= n_ranks)
                return err_set(e, ERR_RANGE, "group '%s' names rank %d of %d",
                               groups[i].name, groups[i].ranks[j], n_ranks);
    }
    return 0;
}

static int map_region(int fd, size_t bytes, struct comm_fabric **ret, struct err *e)
{
    char *mem =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    struct comm_fabric *f;

    if (mem == MAP_FAILED)
        return err_errno(e, ERR_NOMEM, "memory that ranks share (%zu bytes)", bytes);
    f = xcalloc(1, sizeof(*f));
    f->fd = fd;
    f->mem = mem;
    f->head = (struct comm_head *)mem;
    *ret = f;
    return 0;
}

int comm_fabric_new(const struct comm_group *groups, int n_groups, int n_ranks,
                    size_t chunk_bytes, struct comm_fabric **ret, struct err *e)
{
    uint64_t chunk = page_up(chunk_bytes ? chunk_bytes : CHUNK);
    uint64_t at = page_up(sizeof(struct comm_head)), ranks_off = at;
    struct comm_group_head *heads;
    struct comm_head h = {.magic = MAGIC, .n_groups = n_groups, .n_ranks = n_ranks};
    int fd, rc;

    if (check_groups(groups, n_groups, n_ranks, e) < 0)
        return -1;
    heads = xcalloc((size_t)n_groups, sizeof(*heads));
    at = page_up(at + (uint64_t)n_ranks * sizeof(struct comm_rank_state));
    for (int i = 0; i < n_groups; i++) {
        heads[i].g = groups[i];
        h.group_off[i] = at;
        at = lay_out_group(&heads[i], at, chunk);
    }
    h.bytes = at;
    h.chunk = chunk;
    h.pair_chunk = chunk / PAIR_PART;
    h.ranks_off = ranks_off;
    fd = memfd_create("llmrack-comm", MFD_CLOEXEC);
    rc = fd < 0 || ftruncate(fd, (off_t)at) < 0
             ? err_errno(e, ERR_NOMEM, "memory that ranks share")
             : map_region(fd, at, ret, e);
    if (rc == 0) {
        *(*ret)->head = h;
        for (int i = 0; i < n_groups; i++)
            memcpy((*ret)->mem + h.group_off[i], &heads[i], sizeof(heads[i]));
    } else if (fd >= 0) {
        close(fd);
    }
    free(heads);
    return rc;
}

int comm_fabric_map(int fd, struct comm_fabric **ret, struct err *e)
{
    struct stat st;
    int own = dup(fd);

    if (own < 0 || fstat(own, &st) < 0 || st.st_size < (off_t)sizeof(struct comm_head)) {
        if (own >= 0)
            close(own);
        return err_set(e, ERR_INVALID, "the descriptor is not that of a fabric");
    }
    if (map_region(own, (size_t)st.st_size, ret, e) < 0) {
        close(own);
        return -1;
    }
    if ((*ret)->head->magic == MAGIC && (*ret)->head->bytes == (uint64_t)st.st_size)
        return 0;
    munmap((*ret)->mem, (size_t)st.st_size);
    close(own);
    free(*ret);
    return err_set(e, ERR_INVALID, "the descriptor is not that of a fabric");
}

int comm_fabric_fd(const struct comm_fabric *f) { return f->fd; }

void comm_fabric_free(struct comm_fabric *f)
{
    if (!f)
        return;
    munmap(f->mem, f->head->bytes);
    close(f->fd);
    free(f);
}

/* ---- the end of a fabric ---- */

void comm_abort(struct comm_fabric *f, const struct err *why)
{
    struct comm_head *h = f->head;
    unsigned alive = 0, slot = atomic_fetch_add(&h->reasons, 1);

    if (slot >= COMM_REASONS) /* it has ended long ago */
        return;
    h->reason[slot].code = (int32_t)why->code;
    snprintf(h->reason[slot].why, sizeof(h->reason[slot].why), "%s", why->msg);
    atomic_compare_exchange_strong(&h->state, &alive, slot + 1);
}

int comm_fabric_error(const struct comm_fabric *f, struct err *e)
{
    unsigned s = atomic_load(&f->head->state);
    const struct comm_reason *r = &f->head->reason[s ? s - 1 : 0];

    return s ? err_set(e, (enum err_code)r->code, "%s", r->why) : 0;
}

/* ---- ranks ---- */

static struct comm_rank_state *rank_state(const struct comm_fabric *f, int rank)
{
    return (struct comm_rank_state *)(f->mem + f->head->ranks_off) + rank;
}

void comm_look(const struct comm_fabric *f, int rank, struct comm_seen *ret)
{
    const struct comm_rank_state *s = rank_state(f, rank);

    *ret = (struct comm_seen){
        .step = atomic_load(&s->step),
        .call = atomic_load(&s->call),
        .group = atomic_load(&s->group),
        .kind = (enum comm_call)atomic_load(&s->kind),
        .inside = atomic_load(&s->inside),
        .at_us = atomic_load(&s->at_us),
    };
}

int comm_join(struct comm_fabric *f, int group, const struct comm_cfg *cfg,
              struct comm **ret, struct err *e)
{
    struct comm *c;
    struct comm_group_head *g;
    int me = -1;

    if (group < 0 || group >= f->head->n_groups)
        return err_set(e, ERR_RANGE, "the fabric has no group %d", group);
    g = (struct comm_group_head *)(f->mem + f->head->group_off[group]);
    for (int i = 0; i < g->g.n; i++)
        if (g->g.ranks[i] == cfg->rank)
            me = i;
    if (me < 0)
        return err_set(e, ERR_INVALID, "rank %d is not in group '%s'", cfg->rank,
                       g->g.name);
    c = xcalloc(1, sizeof(*c));
    c->f = f;
    c->g = g;
    for (int i = 0; i < COMM_LANES; i++) {
        int n = g->g.n;
        c->lanes[i].members =
            (struct comm_member_state *)(f->mem + g->members_off) + i * n;
        c->lanes[i].stage =
            f->mem + g->stage_off + (uint64_t)(i * n) * 2 * f->head->chunk;
    }
    c->lane = c->lanes;
    c->via = comm_via_new(&g->g);
    c->pairs = (struct comm_pair_state *)(f->mem + g->pairs_off);
    c->group = group;
    c->p = g->g.n;
    c->me = me;
    c->cfg = *cfg;
    if (!c->cfg.timeout_us)
        c->cfg.timeout_us = TIMEOUT_US;
    if (cfg->links) {
        c->links = xcalloc((size_t)c->p, sizeof(*c->links));
        memcpy(c->links, cfg->links, (size_t)c->p * sizeof(*c->links));
    }
    *ret = c;
    return 0;
}

void comm_leave(struct comm *c)
{
    if (!c)
        return;
    free(c->links);
    free(c->via);
    free(c->scratch);
    free(c);
}

int comm_size(const struct comm *c) { return c->p; }

int comm_member(const struct comm *c) { return c->me; }

int comm_host(const struct comm *c, int member) { return c->g->g.host[member]; }

void comm_step(struct comm *c, uint64_t step) { c->step = step; }

void comm_shard(int64_t n, int p, int member, int64_t *ret_from, int64_t *ret_to)
{
    int64_t each = n / p, more = n % p;

    *ret_from = each * member + (member < more ? member : more);
    *ret_to = *ret_from + each + (member < more);
}

/* ---- waiting, reading, counting ---- */

static int blame(struct comm *c, int member, struct err *e)
{
    int rank = c->g->g.ranks[member];
    const struct comm_group *his = NULL;
    struct comm_seen s;
    struct err why;
    char doing[128] = "has made no call yet";

    comm_look(c->f, rank, &s);
    if (s.call) {
        his =
            &((struct comm_group_head *)(c->f->mem + c->f->head->group_off[s.group]))->g;
        snprintf(doing, sizeof(doing),
                 "was last seen %s %s %llu of group '%s', step %llu",
                 s.inside ? "inside" : "after", comm_call_name(s.kind),
                 (unsigned long long)s.call, his->name, (unsigned long long)s.step);
    }
    err_set(&why, ERR_DEVICE,
            "rank %d did not come to %s %llu of group '%s' (step %llu) within %.1f s; it "
            "%s",
            rank, comm_call_name(c->kind), (unsigned long long)c->call, c->g->g.name,
            (unsigned long long)c->step, (double)c->cfg.timeout_us / 1e6, doing);
    comm_abort(c->f, &why);
    return comm_fabric_error(c->f, e);
}

int comm_wait(struct comm *c, struct gate *g, uint32_t value, int member, struct err *e)
{
    enum gate_end end;
    int64_t began;

    if (gate_reached(g, value))
        return 0;
    began = now_us();
    end = gate_wait(g, value, c->cfg.spin, began + c->cfg.timeout_us, &c->f->head->state);
    c->wait_us += now_us() - began;
    if (end == GATE_OPEN)
        return 0;
    return end == GATE_STOPPED ? comm_fabric_error(c->f, e) : blame(c, member, e);
}

void comm_count_read(struct comm *c, int member, size_t n, int64_t at_us)
{
    const struct comm_link *l = c->links ? &c->links[member] : NULL;
    struct comm_pair *pair =
        c->cfg.pairs ? &c->cfg.pairs[c->g->g.ranks[member]][c->kind] : NULL;

    if (member == c->me || !n)
        return;
    c->read_bytes += n;
    if (pair)
        atomic_fetch_add_explicit(&pair->bytes, n, memory_order_relaxed);
    if (c->g->g.host[member] != c->g->g.host[c->me])
        c->cut_bytes += n;
    if (!l || l->bytes_per_s <= 0)
        return;
    c->busy_us = c->busy_us > at_us ? c->busy_us : at_us;
    int64_t us = (int64_t)(1e6 * (l->alpha_s + (double)n / l->bytes_per_s));
    c->busy_us += us;
    c->link_us += us;
    if (pair)
        atomic_fetch_add_explicit(&pair->link_us, us, memory_order_relaxed);
}

void comm_read(struct comm *c, int member, void *to, const void *from, size_t n,
               int64_t at_us)
{
    memcpy(to, from, n);
    comm_count_read(c, member, n, at_us);
}

int comm_settle(struct comm *c, struct err *e)
{
    struct gate never = {0};
    int64_t began;

    if (!c->links)
        return 0;
    began = now_us();
    if (c->busy_us > began &&
        gate_wait(&never, 1, false, c->busy_us, &c->f->head->state) == GATE_STOPPED)
        return comm_fabric_error(c->f, e);
    c->wait_us += now_us() - began;
    return 0;
}

static void publish(struct comm *c, bool inside, int64_t at_us)
{
    struct comm_rank_state *s = rank_state(c->f, c->cfg.rank);

    atomic_store(&s->step, c->step);
    atomic_store(&s->group, c->group);
    atomic_store(&s->kind, (int)c->kind);
    atomic_store(&s->inside, inside);
    atomic_store(&s->at_us, at_us);
    atomic_store(&s->call, c->call);
}

void comm_enter(struct comm *c, enum comm_call kind, int64_t *ret_began_us)
{
    fault_hold("collective", c->cfg.rank);
    *ret_began_us = now_us();
    c->call++;
    c->kind = kind;
    c->wait_us = 0;
    c->read_bytes = 0;
    c->cut_bytes = 0;
    c->link_us = 0;
    publish(c, true, *ret_began_us);
}

void comm_exit(struct comm *c, int64_t began_us, bool ended)
{
    int64_t now = now_us();

    atomic_fetch_add(&c->count[c->kind].calls, ended);
    atomic_fetch_add(&c->count[c->kind].bytes, c->read_bytes);
    atomic_fetch_add(&c->count[c->kind].us, now - began_us);
    atomic_fetch_add(&c->count[c->kind].wait_us, c->wait_us);
    atomic_fetch_add(&c->count[c->kind].cut_bytes, c->cut_bytes);
    atomic_fetch_add(&c->count[c->kind].link_us, c->link_us);
    publish(c, false, now);
}

void comm_counts(const struct comm *c, struct comm_count ret[COMM_CALL_COUNT])
{
    for (int i = 0; i < COMM_CALL_COUNT; i++)
        ret[i] = (struct comm_count){
            .calls = atomic_load(&c->count[i].calls),
            .bytes = atomic_load(&c->count[i].bytes),
            .us = atomic_load(&c->count[i].us),
            .wait_us = atomic_load(&c->count[i].wait_us),
            .cut_bytes = atomic_load(&c->count[i].cut_bytes),
            .link_us = atomic_load(&c->count[i].link_us),
        };
}
