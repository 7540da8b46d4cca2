/* See engine_handoff.h. */
#include "daemon/serve/engine_handoff.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/loop.h"
#include "base/mem.h"
#include "base/region.h"
#include "daemon/serve/engine_check.h"
#include "daemon/serve/engine_metrics.h"
#include "daemon/serve/kvmap.h"
#include "daemon/serve/kvpull.h"
#include "daemon/serve/ranks.h"
#include "daemon/serve/sched.h"

enum { PEERS_MAX = 64 };

/* An engine whose KV we read. */
struct peer {
    uint64_t incarnation;
    struct kvmap *map;
    bool gone;
    bool bad; /* its KV cannot become ours: why */
    struct err why;
};

struct engine_handoff {
    enum engine_role role;
    bool sums;
    const struct kvpull_ops *copies;
    uint64_t incarnation;
    struct wire_conn *conn;        /* borrowed */
    struct metric_page *page;      /* borrowed */
    const struct engine_loaded *l; /* borrowed */
    struct kvpage *gens;
    int gens_fd;
    struct kvmap *own;
    struct kvpull *pulls;
    struct handoff *h;
    struct peer peer[PEERS_MAX];
    int n_peers;
    struct handoff_stats told; /* what the counters hold already */
    struct sched *sched;       /* borrowed */
    struct loop_fd *pull_fd;
    struct loop_timer *timer;
    void (*settle)(void *arg);
    void *arg;
};

static int64_t now_us(void) { return clock_now_us(clock_real()); }

/* ---- our own KV ---- */

static struct wire_arena arena_of(const struct engine_handoff *h, int rank, int *ret_fd)
{
    struct forward_kv k;

    ranks_kv(h->l->x, rank, &k);
    *ret_fd = k.fd;
    return (struct wire_arena){.incarnation = h->incarnation,
                               .bytes = (uint64_t)k.n_blocks * k.layout->block_bytes,
                               .rank = rank,
                               .n_arenas = ranks_count(h->l->x) + 1,
                               .n_blocks = k.n_blocks,
                               .first_layer = k.first_layer,
                               .n_layer = k.layout->n_layer,
                               .all_layers = k.all_layers,
                               .head_from = k.head_from,
                               .n_head = k.layout->n_kv_head,
                               .all_heads = k.all_heads,
                               .head_dim = k.layout->head_dim,
                               .v_dim = k.layout->v_dim,
                               .type = k.layout->type,
                               .cp = k.cp,
                               .cp_at = k.cp_at,
                               .striped = k.striped,
                               .shard = k.adp_at,
                               .block_tok = k.cp * KV_BLOCK_TOK};
}

static struct wire_arena page_of(const struct engine_handoff *h)
{
    int n = h->l->sched.kv.group[0].n_blocks;

    return (struct wire_arena){.incarnation = h->incarnation,
                               .bytes = kvpage_bytes(n),
                               .rank = -1,
                               .n_arenas = ranks_count(h->l->x) + 1,
                               .n_blocks = n};
}

static int add_own(struct engine_handoff *h, const struct wire_arena *a, int fd,
                   struct err *e)
{
    if (fd < 0)
        return err_set(e, ERR_UNSUPPORTED, "the KV of this backend cannot be exported");
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0)
        return err_errno(e, ERR_IO, "the KV's descriptor");
    return kvmap_add(h->own, a, own, e);
}

static int map_own(struct engine_handoff *h, struct err *e)
{
    struct wire_arena a = page_of(h);
    int rc = add_own(h, &a, h->gens_fd, e), fd;

    for (int i = 0; rc == 0 && i < ranks_count(h->l->x); i++) {
        a = arena_of(h, i, &fd);
        rc = add_own(h, &a, fd, e);
    }
    return rc < 0 ? -1 : 0;
}

/* To be read: whoever is given it cannot write there. */
static int give(struct engine_handoff *h, const struct wire_arena *a, int fd,
                struct err *e)
{
    if (region_seal(fd, "KV that others read", e) < 0)
        return -1;
    return wire_send_arena(h->conn, false, a, fd, e);
}

int engine_handoff_arenas(struct engine_handoff *h, struct err *e)
{
    if (!h || h->role != ENGINE_PREFILL)
        return 0;
    struct wire_arena a = page_of(h);
    int rc = give(h, &a, h->gens_fd, e), fd;

    for (int i = 0; rc == 0 && i < ranks_count(h->l->x); i++) {
        a = arena_of(h, i, &fd);
        rc = give(h, &a, fd, e);
    }
    return rc;
}

/* ---- life ---- */

static struct handoff_cfg times(const struct engine_cfg *cfg)
{
    struct handoff_cfg c = handoff_defaults;
    int64_t us = cfg->handoff_ms * 1000;

    if (!us)
        return c;
    c.lease_us = c.next_us = us;
    c.pull_us = us / 2;
    c.first_us = c.quarantine_us = 6 * us;
    return c;
}

int engine_handoff_new(const struct engine_cfg *cfg, struct engine_loaded *l,
                       struct wire_conn *conn, struct metric_page *page,
                       struct engine_handoff **ret, struct err *e)
{
    struct handoff_cfg c = times(cfg);

    *ret = NULL;
    while (!l->ready.incarnation)
        if (getrandom(&l->ready.incarnation, 8, 0) != 8)
            return err_errno(e, ERR_IO, "no random numbers");
    l->ready.role = cfg->role;
    if (cfg->role == ENGINE_BOTH)
        return 0;
    if (cfg->null_exec)
        return err_set(e, ERR_UNSUPPORTED,
                       "the null executor has no KV to hand over: role both would be "
                       "right");
    struct engine_handoff *h = *ret = xcalloc(1, sizeof(*h));
    h->role = cfg->role;
    h->sums = cfg->kv_sums;
    h->copies = cfg->copies ? cfg->copies : &kvpull_host;
    h->incarnation = l->ready.incarnation;
    h->conn = conn;
    h->page = page;
    h->l = l;
    h->gens_fd = -1;
    h->h = handoff_new(&c);
    h->own = kvmap_new(cfg->role == ENGINE_DECODE);
    if (kvpage_new(l->sched.kv.group[0].n_blocks, h->incarnation, &h->gens, &h->gens_fd,
                   e) < 0 ||
        map_own(h, e) < 0)
        return -1;
    l->sched.kv.gens = h->gens->gen;
    if (cfg->role == ENGINE_PREFILL)
        l->ready.n_arenas = ranks_count(l->x) + 1;
    return 0;
}

void engine_handoff_free(struct engine_handoff *h)
{
    if (!h)
        return;
    kvpull_free(h->pulls); /* waits for the copies */
    loop_fd_del(h->pull_fd);
    loop_timer_free(h->timer);
    for (int i = 0; i < h->n_peers; i++)
        kvmap_free(h->peer[i].map);
    kvmap_free(h->own);
    handoff_free(h->h);
    if (h->gens) {
        atomic_store(&h->gens->incarnation, 0);
        kvpage_free(h->gens);
        close(h->gens_fd);
    }
    free(h);
}

/* ---- peers ---- */

static struct peer *find_peer(struct engine_handoff *h, uint64_t incarnation)
{
    for (int i = 0; i < h->n_peers; i++)
        if (h->peer[i].incarnation == incarnation)
            return &h->peer[i];
    return NULL;
}

static void drop_peers(struct engine_handoff *h)
{
    for (int i = 0; i < h->n_peers; i++) {
        if (!h->peer[i].gone || handoff_reads(h->h, h->peer[i].incarnation))
            continue;
        kvmap_free(h->peer[i].map);
        h->peer[i--] = h->peer[--h->n_peers];
    }
}

static int on_peer(struct engine_handoff *h, const struct wire_arena *a, struct err *e)
{
    int fd = wire_take_fd(h->conn);
    struct peer *p = find_peer(h, a->incarnation);

    if (!p && h->n_peers == PEERS_MAX) {
        if (fd >= 0)
            close(fd);
        return err_set(e, ERR_RANGE, "more than %d engines hand over to one", PEERS_MAX);
    }
    if (!p) {
        p = &h->peer[h->n_peers++];
        *p = (struct peer){.incarnation = a->incarnation, .map = kvmap_new(false)};
    }
    if (p->bad) {
        if (fd >= 0)
            close(fd);
        return 0;
    }
    int rc = kvmap_add(p->map, a, fd, &p->why);
    if (rc == 1)
        rc = kvmap_fits(p->map, h->own, &p->why);
    p->bad = rc < 0; /* its requests are computed here */
    return 0;
}

/* NULL and *e: nothing can be read there. */
static const struct kvmap *map_of(struct engine_handoff *h, uint64_t incarnation,
                                  struct err *e)
{
    const struct peer *p = find_peer(h, incarnation);

    if (p && p->bad)
        *e = p->why;
    else if (!p || !kvmap_whole(p->map))
        err_set(e, ERR_UNAVAIL, "the engine that computes the prompt is not known here");
    else
        return p->map;
    return NULL;
}

/* ---- messages ---- */

static int on_export(struct engine_handoff *h, const void *p, size_t n, struct err *e)
{
    struct wire_offer o;
    struct err why;

    if (wire_parse_export(p, n, &o, e) < 0)
        return -1;
    const struct kvmap *m = map_of(h, o.h.incarnation, &why);
    if (m && kvmap_block_tok(m) != o.h.block_tok) {
        err_set(&why, ERR_CONFLICT, "an offer of blocks of %d positions instead of %d",
                o.h.block_tok, kvmap_block_tok(m));
        m = NULL;
    }
    for (int i = 0; m && i < o.h.n_gen; i++)
        if (o.gen[i] < 0 || o.gen[i] >= h->l->ready.n_vocab) {
            err_set(&why, ERR_CONFLICT, "an offer with a token id that is none");
            m = NULL;
        }
    if (m)
        handoff_offer(h->h, now_us(), &o);
    else
        handoff_fail(h->h, now_us(), o.h.id, &why);
    return 0;
}

static int on_recompute(struct engine_handoff *h, const void *p, size_t n, struct err *e)
{
    struct wire_recompute r;
    const int32_t *ids;

    if (wire_parse_recompute(p, n, &r, &ids, e) < 0)
        return -1;
    for (int i = 0; i < r.n_gen; i++)
        if (ids[i] < 0 || ids[i] >= h->l->ready.n_vocab)
            return err_set(e, ERR_SYNTAX, "a RECOMPUTE with a token id that is none");
    struct sched_event ev = {
        .kind = SCHED_RECOMPUTE, .id = r.id, .gen = ids, .n_gen = r.n_gen};
    sched_event(h->sched, now_us(), &ev);
    handoff_recompute(h->h, now_us(), r.id);
    return 0;
}

int engine_handoff_message(struct engine_handoff *h, enum wire_kind kind, const void *p,
                           size_t n, struct err *e)
{
    union {
        struct wire_arena arena;
        struct wire_pulled pulled;
        uint64_t incarnation;
    } m;

    bool reads = h && h->role == ENGINE_DECODE;
    bool one = kind == WIRE_PULLED || kind == WIRE_PEER || kind == WIRE_PEER_GONE;
    if (!h || !(one || kind == WIRE_EXPORT || kind == WIRE_RECOMPUTE) ||
        (!reads && kind != WIRE_PULLED && kind != WIRE_PEER_GONE))
        return err_set(e, ERR_SYNTAX, "a %s message is not for this engine",
                       wire_kind_name(kind));
    if (one && wire_parse(kind, p, n, &m, e) < 0)
        return -1;
    switch (kind) {
    case WIRE_PEER:
        return on_peer(h, &m.arena, e);
    case WIRE_EXPORT:
        return on_export(h, p, n, e);
    case WIRE_RECOMPUTE:
        return on_recompute(h, p, n, e);
    case WIRE_PULLED:
        handoff_acked(h->h, now_us(), &m.pulled);
        return 0;
    default:
        handoff_peer_gone(h->h, now_us(), m.incarnation);
        struct peer *peer = find_peer(h, m.incarnation);
        if (peer)
            peer->gone = true;
        return 0;
    }
}

int engine_handoff_add(struct engine_handoff *h, const struct gen_params *p,
                       struct err *e)
{
    enum engine_role want = p->handoff == GEN_EXPORT ? ENGINE_PREFILL : ENGINE_DECODE;
    struct err why;

    if (p->handoff == GEN_HERE)
        return 0;
    if (!h || h->role != want)
        return err_set(e, ERR_UNSUPPORTED, "this engine does not %s KV",
                       p->handoff == GEN_EXPORT ? "export" : "import");
    if (p->handoff == GEN_EXPORT)
        return 0;
    handoff_import(h->h, now_us(), p->id, p->peer);
    if (fault_on())
        fault_hold("import_queued", 0);
    if (!map_of(h, p->peer, &why))
        handoff_fail(h->h, now_us(), p->id, &why);
    return 0;
}

/* ---- outcomes ---- */

static int offer(struct engine_handoff *h, const struct sched_out *o, struct err *e)
{
    int bt = h->l->sched.kv.block_tok, rc;
    struct wire_block *b = xcalloc((size_t)o->n_blocks + 1, sizeof(*b));
    struct kvtable t = {o->block, o->first, o->n_blocks};
    struct wire_offer w = {.h = {.id = o->id,
                                 .incarnation = h->incarnation,
                                 .first = o->first,
                                 .n = o->n_blocks,
                                 .upto = o->upto,
                                 .n_tok = o->n_tok,
                                 .block_tok = bt,
                                 .n_gen = o->n_gen,
                                 .last = o->last},
                           .blocks = b,
                           .gen = o->gen};

    handoff_export(h->h, now_us(), o->id, o->peer, o->block, o->n_blocks);
    for (int i = 0; i < o->n_blocks; i++) {
        int from = (o->first + i) * bt, end = from + bt < o->upto ? from + bt : o->upto;
        b[i] = (struct wire_block){.id = o->block[i],
                                   .gen = sched_block_gen(h->sched, o->block[i])};
        if (h->sums)
            b[i].sum = kvmap_sum(h->own, &t, from, end, 0);
    }
    rc = wire_send_export(h->conn, &w, e);
    free(b);
    return rc;
}

int engine_handoff_out(struct engine_handoff *h, const struct sched_out *o, struct err *e)
{
    struct wire_reserved r = {.id = o->id, .n_have = o->upto};

    if (!h)
        return 0;
    switch (o->kind) {
    case SCHED_OUT_EXPORT:
        return offer(h, o, e);
    case SCHED_OUT_RESERVED:
        handoff_reserved(h->h, now_us(), o->id, o->upto, o->n_tok);
        return wire_send(h->conn, WIRE_RESERVED, &(struct wire_part){&r, sizeof(r)}, 1,
                         e);
    case SCHED_OUT_FINISH:
    case SCHED_OUT_REFUSE:
        handoff_export_end(h->h, now_us(), o->id);
        handoff_import_end(h->h, now_us(), o->id);
        return 0;
    default:
        return 0;
    }
}

/* ---- copies ---- */

static void pull_back(struct engine_handoff *h, struct kvpull_job *j)
{
    struct sched_event ev = {.kind = SCHED_PULLED, .pull = j->number};

    if (j->rc == 0) {
        ev.upto = j->upto;
        ev.gen = handoff_gen(h->h, j->number, &ev.n_gen);
    }
    sched_event(h->sched, now_us(), &ev);
    handoff_pull_end(h->h, now_us(), j->number, j->rc < 0 ? &j->why : NULL, j->bytes,
                     j->us);
    kvpull_job_free(j);
}

static void begin_pull(struct engine_handoff *h, const struct handoff_act *a)
{
    struct kvpull_job want = {.number = a->pull,
                              .dst = h->own,
                              .incarnation = a->peer,
                              .blocks = a->blocks,
                              .first = a->first,
                              .n = a->n,
                              .upto = a->upto,
                              .sums = h->sums};
    struct err why;
    const int32_t *table;

    want.src = map_of(h, a->peer, &why);
    table =
        want.src ? sched_pull(h->sched, a->id, a->pull, &want.n_table, &want.from) : NULL;
    if (!table) {
        if (want.src)
            err_set(&why, ERR_CONFLICT, "request %llu does not wait for KV",
                    (unsigned long long)a->id);
        handoff_pull_end(h->h, now_us(), a->pull, &why, 0, 0);
        return;
    }
    want.table = (int32_t *)(uintptr_t)table;
    struct kvpull_job *j = kvpull_job_new(&want);
    if (kvpull_submit(h->pulls, j) == 0)
        return;
    j->rc = err_set(&j->why, ERR_BUSY, "too many copies of KV wait");
    pull_back(h, j);
}

static void take_pulls(struct engine_handoff *h)
{
    for (struct kvpull_job *j; (j = kvpull_poll(h->pulls));)
        pull_back(h, j);
}

static void on_pulls(void *arg, int fd, uint32_t events)
{
    struct engine_handoff *h = arg;

    (void)fd, (void)events;
    take_pulls(h);
    h->settle(h->arg);
}

static void on_timer(void *arg)
{
    struct engine_handoff *h = arg;

    take_pulls(h); /* those that are back are not late */
    handoff_tick(h->h, now_us());
    h->settle(h->arg);
}

int engine_handoff_start(struct engine_handoff *h, struct sched *s, struct loop *loop,
                         void (*settle)(void *arg), void *arg, struct err *e)
{
    if (!h)
        return 0;
    h->sched = s;
    h->settle = settle;
    h->arg = arg;
    h->timer = loop_timer_new(loop, on_timer, h);
    if (kvpull_new(h->copies, &h->pulls, e) < 0)
        return -1;
    return loop_fd_add(loop, kvpull_fd(h->pulls), EPOLLIN, on_pulls, h, &h->pull_fd, e);
}

int engine_handoff_check(const struct engine_handoff *h, struct err *e)
{
    return h ? engine_check_handoff(h->h, h->sched, e) : 0;
}

/* ---- what is to be done ---- */

static int tell_lost(struct engine_handoff *h, const struct handoff_act *a, struct err *e)
{
    struct wire_lost w = {.id = a->id, .code = a->why.code};

    snprintf(w.msg, sizeof(w.msg), "%.*s", (int)sizeof(w.msg) - 1, a->why.msg);
    return wire_send(h->conn, WIRE_LOST, &(struct wire_part){&w, sizeof(w)}, 1, e);
}

static int tell_pulled(struct engine_handoff *h, const struct handoff_act *a,
                       struct err *e)
{
    struct wire_pulled p = a->pulled;

    p.reader = h->incarnation;
    return wire_send(h->conn, WIRE_PULLED, &(struct wire_part){&p, sizeof(p)}, 1, e);
}

static int do_act(struct engine_handoff *h, const struct handoff_act *a, struct err *e)
{
    switch (a->kind) {
    case HANDOFF_UNPIN:
        if (!fault_hold("unpin", 0)) /* a leak that a test plants */
            sched_unpin(h->sched, a->ids, a->n);
        return 0;
    case HANDOFF_PULL:
        begin_pull(h, a);
        return 0;
    case HANDOFF_PULLED:
        return tell_pulled(h, a, e);
    case HANDOFF_LOST:
        return tell_lost(h, a, e);
    case HANDOFF_STUCK:
        *e = a->why;
        return -1;
    case HANDOFF_DONE:
        engine_metrics_handoff(h->page, a->copy_us, a->wait_us);
        return 0;
    }
    return 0;
}

int engine_handoff_settle(struct engine_handoff *h, struct err *e)
{
    const struct handoff_act *a;
    struct handoff_stats st;
    struct sched_stats ss;
    int did = 0;

    if (!h)
        return 0;
    for (size_t n; (n = handoff_acts(h->h, &a)) > 0; did = 1)
        for (size_t i = 0; i < n; i++)
            if (do_act(h, &a[i], e) < 0)
                return -1;
    drop_peers(h);
    handoff_stats(h->h, &st);
    sched_stats(h->sched, &ss);
    engine_metrics_handoffs(h->page, &st, &h->told, ss.held);
    h->told = st;
    loop_timer_set(h->timer, handoff_deadline(h->h));
    if (fault_on() && !did)
        engine_check_points(&st);
    return did;
}
