/* Two schedulers, each over a simulated device, and the KV of one going to the other, on
 * virtual time: messages that come late or not at all, copies that fail or hang, engines
 * that stop for a while or die, clients that leave in every state. After each event the
 * invariants of both schedulers, of their KV pools and of both ends of all handoffs hold;
 * every request ends once, with the text that its history gives; and in the end both
 * pools are as they were. A copy is made in two halves, at its begin and at its end, so
 * that a block that changed hands meanwhile would be seen in the text. */
#include "daemon/serve/handoff.h"

#include "base/list.h"
#include "tests/unit/simworld.h"

enum { REQS = 60, PROMPT = 160, OUT = 12, IDS = 1 << 16, BODIES = 64 };

struct half {
    struct sched *s;
    struct sim_exec x;
    struct step *st;
    struct handoff *h;
    struct sched_cfg cfg;
    _Atomic uint32_t *gens;
    uint64_t incarnation;
    int64_t stopped_until;
    bool dead;
};

struct pull {
    struct list link;
    struct half *src, *dst;
    uint64_t number, id;
    struct wire_block *blocks;
    int first, n, from, half, upto;
    int32_t *table;
    int64_t at;
    bool fails;
};

enum msg_kind {
    TO_P_ADD,
    TO_P_CANCEL,
    TO_D_ADD,
    TO_D_CANCEL,
    EXPORTED,
    PULLED,
    RESERVED,
    LOST,
    TOKENS,
    FINISHED,
    TO_D_RECOMPUTE,
    GONE
};
struct msg {
    struct list link;
    enum msg_kind kind;
    struct half *from, *to; /* NULL: the daemon */
    int64_t at;
    uint64_t id;
    struct gen_params p;
    int32_t *ids; /* tokens, generated ids, blocks: n */
    int n;
    struct wire_export h;
    struct wire_block *blocks;
    struct wire_pulled pulled;
    enum finish_reason reason;
};

/* One request as the daemon sees it; its number changes when it begins anew. */
struct req {
    uint64_t id;
    struct gen_params p;
    int32_t prompt[PROMPT], got[OUT + 2];
    int n_got;
    bool active, on_p, p_ignored, handed;
    bool solo; /* all of it on P, so that P's blocks change hands whatever D does */
    struct half *p_half, *d_half;
};

struct world {
    struct half *p, *d, *body[BODIES];
    int n_bodies;
    struct req req[REQS];
    int16_t of_id[IDS];
    uint64_t ids, rng, incarnations;
    struct list msgs, pulls;
    int64_t now;
    int faults; /* of 1000 */
    long events, cancels, done, kills;
};

static uint64_t rnd(struct world *w, uint64_t n) { return test_rand(&w->rng) % n; }

static const struct handoff_cfg times = {.lease_us = 4000,
                                         .quarantine_us = 8000,
                                         .quarantine_blocks = 40,
                                         .first_us = 30000,
                                         .next_us = 5000,
                                         .pull_us = 2000,
                                         .tries = 3};

static struct half *half_new(struct world *w, int block_tok, int n_blocks)
{
    struct half *f = xcalloc(1, sizeof(*f));

    f->cfg = sim_cfg(block_tok, n_blocks);
    f->gens = xcalloc((size_t)n_blocks, sizeof(*f->gens));
    f->cfg.kv.gens = f->gens;
    f->cfg.max_waiting = 4 * REQS;
    f->s = sched_new(&f->cfg);
    sim_exec_init(&f->x, &f->cfg, rnd(w, 1 << 30));
    f->st = step_new(&f->x.caps);
    f->h = handoff_new(&times);
    f->incarnation = ++w->incarnations;
    assert_true(w->n_bodies < BODIES);
    w->body[w->n_bodies++] = f;
    return f;
}

static void half_free(struct half *f)
{
    handoff_free(f->h);
    sched_free(f->s);
    sim_exec_done(&f->x);
    free(f->st);
    free((void *)f->gens);
    free(f);
}

static void check(struct world *w)
{
    struct half *both[] = {w->p, w->d};
    struct err e;

    for (int i = 0; i < 2; i++)
        if (sched_check(both[i]->s, &e) < 0 || handoff_check(both[i]->h, &e) < 0)
            fail_msg("%s after %ld events: %s", i ? "D" : "P", w->events, e.msg);
    w->events++;
}

/* ---- messages ---- */

/* In order between any two; late. */
static struct msg *post(struct world *w, enum msg_kind kind, struct half *from,
                        struct half *to, uint64_t id)
{
    struct msg *m = xcalloc(1, sizeof(*m));

    *m = (struct msg){.kind = kind, .from = from, .to = to, .id = id};
    m->at = w->now + (int64_t)rnd(w, 300);
    list_for(it, &w->msgs)
    {
        const struct msg *o = list_entry(it, struct msg, link);
        if (o->from == from && o->to == to && o->at > m->at)
            m->at = o->at;
    }
    list_push(&w->msgs, &m->link);
    return m;
}

static void msg_free(struct msg *m)
{
    list_del(&m->link);
    free(m->ids);
    free(m->blocks);
    free(m);
}

static int32_t *dup_ids(const int32_t *ids, int n)
{
    int32_t *d = xmalloc((size_t)n * sizeof(*d) + 1);

    if (n)
        memcpy(d, ids, (size_t)n * sizeof(*d));
    return d;
}

/* ---- an engine ---- */

static void tell(struct world *w, struct half *f, const struct sched_out *o)
{
    struct msg *m;

    switch (o->kind) {
    case SCHED_OUT_TOKENS:
        m = post(w, TOKENS, f, NULL, o->id);
        m->n = o->n_toks;
        m->ids = xmalloc((size_t)m->n * sizeof(*m->ids));
        for (int i = 0; i < m->n; i++)
            m->ids[i] = o->toks[i].id;
        return;
    case SCHED_OUT_EXPORT:
        handoff_export(f->h, w->now, o->id, o->peer, o->block, o->n_blocks);
        m = post(w, EXPORTED, f, NULL, o->id);
        m->h = (struct wire_export){
            o->id,    f->incarnation,      o->first, o->n_blocks, o->upto,
            o->n_tok, f->cfg.kv.block_tok, o->n_gen, o->last,     0};
        m->blocks = xcalloc((size_t)o->n_blocks + 1, sizeof(*m->blocks));
        for (int i = 0; i < o->n_blocks; i++)
            m->blocks[i] =
                (struct wire_block){o->block[i], sched_block_gen(f->s, o->block[i]), 0};
        m->ids = dup_ids(o->gen, o->n_gen);
        m->n = o->n_gen;
        return;
    case SCHED_OUT_RESERVED:
        handoff_reserved(f->h, w->now, o->id, o->upto, o->n_tok);
        post(w, RESERVED, f, NULL, o->id);
        return;
    default:
        handoff_export_end(f->h, w->now, o->id);
        handoff_import_end(f->h, w->now, o->id);
        m = post(w, FINISHED, f, NULL, o->id);
        m->reason = o->kind == SCHED_OUT_REFUSE ? FINISH_ERROR : o->reason;
    }
}

static void copy_slots(struct pull *u, int from, int upto)
{
    int sb = u->src->cfg.kv.block_tok, db = u->dst->cfg.kv.block_tok;

    for (int p = from; p < upto; p++)
        u->dst->x.slot[u->table[p / db] * db + p % db] =
            u->src->x.slot[u->blocks[p / sb - u->first].id * sb + p % sb];
}

static void begin_pull(struct world *w, struct half *f, const struct handoff_act *a)
{
    struct pull *u = xcalloc(1, sizeof(*u));
    struct err e;
    int n;
    const int32_t *table;

    for (int i = 0; i < w->n_bodies; i++)
        if (w->body[i]->incarnation == a->peer)
            u->src = w->body[i];
    table = sched_pull(f->s, a->id, a->pull, &n, &u->from);
    if (!table) {
        free(u);
        err_set(&e, ERR_CONFLICT, "it does not wait");
        handoff_pull_end(f->h, w->now, a->pull, &e, 0, 0);
        return;
    }
    u->dst = f;
    u->number = a->pull;
    u->id = a->id;
    u->first = a->first;
    u->n = a->n;
    u->upto = a->upto;
    u->blocks = xmalloc((size_t)a->n * sizeof(*u->blocks));
    memcpy(u->blocks, a->blocks, (size_t)a->n * sizeof(*u->blocks));
    u->table = dup_ids(table, n);
    u->half = u->from + (u->upto - u->from) / 2;
    u->at = w->now + (int64_t)rnd(w, 400);
    if ((int)rnd(w, 1000) < w->faults)
        u->at += (int64_t)rnd(w, 20000); /* hangs */
    u->fails = (int)rnd(w, 1000) < 2 * w->faults;
    copy_slots(u, u->from, u->half);
    list_push(&w->pulls, &u->link);
}

static void pull_free(struct pull *u)
{
    list_del(&u->link);
    free(u->blocks);
    free(u->table);
    free(u);
}

static void end_pull(struct world *w, struct pull *u)
{
    struct sched_event ev = {.kind = SCHED_PULLED, .pull = u->number};
    struct half *f = u->dst;
    bool still = true;
    struct err e;

    copy_slots(u, u->half, u->upto);
    for (int i = 0; i < u->n; i++)
        still &= u->src->gens[u->blocks[i].id] == u->blocks[i].gen;
    if (!still)
        err_set(&e, ERR_CONFLICT, "the blocks are others now");
    else if (u->fails)
        err_set(&e, ERR_CORRUPT, "the sums differ");
    if (still && !u->fails) {
        ev.upto = u->upto;
        ev.gen = handoff_gen(f->h, u->number, &ev.n_gen);
    }
    sched_event(f->s, w->now, &ev);
    handoff_pull_end(f->h, w->now, u->number, still && !u->fails ? NULL : &e, 1, 1);
    pull_free(u);
}

/* Blocks are given back while they are read only when the reader's lease is over. */
static void check_unpin(struct world *w, struct half *f, const struct handoff_act *a)
{
    list_for(it, &w->pulls)
    {
        const struct pull *u = list_entry(it, struct pull, link);
        if (u->src == f && u->id == a->id && a->n)
            assert_true(a->forced);
    }
}

static void act(struct world *w, struct half *f, const struct handoff_act *a)
{
    struct msg *m;

    switch (a->kind) {
    case HANDOFF_UNPIN:
        check_unpin(w, f, a);
        sched_unpin(f->s, a->ids, a->n);
        return;
    case HANDOFF_PULL:
        begin_pull(w, f, a);
        return;
    case HANDOFF_PULLED:
        m = post(w, PULLED, f, NULL, a->id);
        m->pulled = a->pulled;
        m->pulled.reader = f->incarnation;
        return;
    case HANDOFF_LOST:
        post(w, LOST, f, NULL, a->id);
        return;
    case HANDOFF_DONE:
        return;
    case HANDOFF_STUCK: /* here every copy comes back one day */
        return;
    }
}

/* What follows every event of an engine. */
static void settle(struct world *w, struct half *f)
{
    const struct sched_out *o;
    const struct handoff_act *a;
    size_t n, m;

    do {
        if (sched_next(f->s, w->now, f->st))
            sched_submitted(f->s, w->now, sim_submit(&f->x, f->st));
        n = sched_out(f->s, &o);
        for (size_t i = 0; i < n; i++)
            tell(w, f, &o[i]);
        m = handoff_acts(f->h, &a);
        for (size_t i = 0; i < m; i++)
            act(w, f, &a[i]);
    } while (n || m);
    check(w);
}

/* ---- the daemon ---- */

static struct req *req_of(struct world *w, uint64_t id)
{
    struct req *r = w->of_id[id % IDS] >= 0 ? &w->req[w->of_id[id % IDS]] : NULL;

    return r && r->active && r->id == id ? r : NULL;
}

static void to_p(struct world *w, struct req *r, bool whole)
{
    struct msg *m = post(w, TO_P_ADD, NULL, r->p_half, r->id);

    m->p = r->p;
    m->p.handoff = whole ? GEN_HERE : GEN_EXPORT;
    m->p.peer = r->d_half->incarnation;
    m->n = r->p.n_prompt + r->p.n_gen;
    m->ids = dup_ids(r->prompt, m->n); /* prompt has room behind it */
    memcpy(m->ids + r->p.n_prompt, r->got, (size_t)r->p.n_gen * 4);
    r->on_p = true;
}

static void to_d(struct world *w, struct req *r)
{
    struct msg *m;

    w->of_id[r->id % IDS] = -1;
    r->id = ++w->ids;
    w->of_id[r->id % IDS] = (int16_t)(r - w->req);
    r->on_p = r->p_ignored = r->handed = false;
    r->p_half = w->p;
    r->d_half = w->d;
    r->p.id = r->id;
    r->p.n_gen = r->n_got;
    if (r->solo) {
        to_p(w, r, true);
        return;
    }
    m = post(w, TO_D_ADD, NULL, w->d, r->id);
    m->p = r->p;
    m->p.handoff = GEN_IMPORT;
    m->p.peer = w->p->incarnation;
    m->n = r->p.n_prompt + r->n_got;
    m->ids = dup_ids(r->prompt, m->n);
    memcpy(m->ids + r->p.n_prompt, r->got, (size_t)r->n_got * 4);
}

static void recompute(struct world *w, struct req *r)
{
    struct msg *m = post(w, TO_D_RECOMPUTE, NULL, r->d_half, r->id);

    if (r->on_p && !r->p_half->dead)
        post(w, TO_P_CANCEL, NULL, r->p_half, r->id);
    r->p_ignored = true;
    m->n = r->n_got - r->p.n_gen;
    m->ids = dup_ids(r->got + r->p.n_gen, m->n);
}

static void new_request(struct world *w)
{
    for (int i = 0; i < REQS; i++) {
        struct req *r = &w->req[i];
        if (r->active)
            continue;
        memset(r, 0, sizeof(*r));
        r->active = true;
        r->solo = w->faults && rnd(w, 4) == 0;
        r->p = sim_params(0, 1 + (int)rnd(w, PROMPT - OUT - 4), 1 + (int)rnd(w, OUT));
        r->p.seed = rnd(w, 1000);
        r->p.ignore_eos = true;
        int base = (int)rnd(w, 4); /* some begin alike */
        for (int k = 0; k < r->p.n_prompt; k++)
            r->prompt[k] = (base + k * (1 + base)) % SIM_VOCAB;
        to_d(w, r);
        return;
    }
}

static void check_text(const struct req *r, bool whole)
{
    uint64_t h = 1;

    for (int i = 0; i < r->p.n_prompt; i++)
        h = sim_mix(h, (uint64_t)r->prompt[i]);
    for (int i = 0; i < r->n_got; i++) {
        assert_int_equal(r->got[i], sim_token(h, r->p.seed, 0, i));
        h = sim_mix(h, (uint64_t)r->got[i]);
    }
    if (whole)
        assert_int_equal(r->n_got, r->p.max_tokens);
}

static void over(struct world *w, struct req *r, bool whole)
{
    check_text(r, whole);
    r->active = false;
    w->of_id[r->id % IDS] = -1;
    w->done++;
}

static void cancel(struct world *w, struct req *r)
{
    w->cancels++;
    if (r->on_p && !r->p_half->dead)
        post(w, TO_P_CANCEL, NULL, r->p_half, r->id);
    post(w, TO_D_CANCEL, NULL, r->d_half, r->id);
    over(w, r, false);
}

static void on_finish(struct world *w, struct req *r, bool from_p, enum finish_reason why)
{
    if (!from_p) {
        assert_int_equal(why, FINISH_LENGTH);
        over(w, r, true);
        return;
    }
    r->on_p = false;
    if (r->p_ignored)
        return;
    if (why == FINISH_HANDOFF) {
        r->handed = true;
    } else if (why == FINISH_LENGTH) {
        post(w, TO_D_CANCEL, NULL, r->d_half, r->id);
        over(w, r, true);
    } else {
        recompute(w, r);
    }
}

static void daemon_hears(struct world *w, struct msg *m)
{
    struct req *r = req_of(w, m->id);
    bool from_p = r && m->from == r->p_half;
    struct msg *n;

    if (m->from->dead)
        return;
    if (m->kind == PULLED) { /* also for requests that are over */
        if (m->pulled.incarnation == w->p->incarnation &&
            (int)rnd(w, 1000) >= w->faults) {
            n = post(w, PULLED, NULL, w->p, m->id);
            n->pulled = m->pulled;
        }
        return;
    }
    if (m->kind == EXPORTED) { /* likewise */
        if ((int)rnd(w, 1000) < w->faults || !r || r->d_half->dead)
            return;
        n = post(w, EXPORTED, NULL, r->d_half, m->id);
        n->h = m->h;
        n->n = m->n;
        n->blocks = m->blocks;
        n->ids = m->ids;
        m->blocks = NULL;
        m->ids = NULL;
        return;
    }
    if (!r || (m->from != r->p_half && m->from != r->d_half))
        return;
    switch (m->kind) {
    case RESERVED:
        if (r->p_half->dead) {
            recompute(w, r);
            return;
        }
        to_p(w, r, false);
        return;
    case LOST:
        if (!r->p_ignored)
            recompute(w, r);
        return;
    case TOKENS:
        if (from_p && r->p_ignored)
            return;
        assert_true(r->n_got + m->n <= OUT);
        memcpy(r->got + r->n_got, m->ids, (size_t)m->n * 4);
        r->n_got += m->n;
        return;
    case FINISHED:
        on_finish(w, r, from_p, m->reason);
        return;
    default:
        fail_msg("a message of kind %d", m->kind);
    }
}

/* ---- an engine hears ---- */

static void engine_hears(struct world *w, struct half *f, struct msg *m)
{
    struct sched_event ev = {.id = m->id, .params = &m->p, .prompt = m->ids};

    if (f->dead)
        return;
    switch (m->kind) {
    case TO_D_ADD:
        handoff_import(f->h, w->now, m->id, m->p.peer);
        /* fall through */
    case TO_P_ADD:
        ev.kind = SCHED_ADD;
        sched_event(f->s, w->now, &ev);
        break;
    case TO_P_CANCEL:
    case TO_D_CANCEL:
        ev.kind = SCHED_CANCEL;
        sched_event(f->s, w->now, &ev);
        break;
    case TO_D_RECOMPUTE:
        ev.kind = SCHED_RECOMPUTE;
        ev.gen = m->ids;
        ev.n_gen = m->n;
        sched_event(f->s, w->now, &ev);
        handoff_recompute(f->h, w->now, m->id);
        break;
    case EXPORTED:
        handoff_offer(f->h, w->now, &(struct wire_offer){m->h, m->blocks, m->ids});
        break;
    case PULLED:
        handoff_acked(f->h, w->now, &m->pulled);
        break;
    case GONE:
        handoff_peer_gone(f->h, w->now, m->id);
        break;
    default:
        fail_msg("a message of kind %d", m->kind);
    }
    settle(w, f);
}

static void deliver(struct world *w)
{
    list_for_safe(it, tmp, &w->msgs)
    {
        struct msg *m = list_entry(it, struct msg, link);
        if (m->at > w->now || (m->to && m->to->stopped_until > w->now))
            continue;
        list_del(&m->link);
        list_init(&m->link);
        if (m->to)
            engine_hears(w, m->to, m);
        else
            daemon_hears(w, m);
        msg_free(m);
    }
}

/* ---- faults ---- */

static void kill_p(struct world *w)
{
    struct half *old = w->p;

    w->kills++;
    old->dead = true;
    w->p = half_new(w, 4, 120);
    post(w, GONE, NULL, w->d, old->incarnation);
    for (int i = 0; i < REQS; i++) {
        struct req *r = &w->req[i];
        if (r->active && r->p_half == old && r->solo)
            to_d(w, r);
        else if (r->active && r->p_half == old && r->on_p && !r->handed &&
                 !r->p_ignored) {
            r->on_p = false;
            recompute(w, r);
        }
    }
}

static void kill_d(struct world *w)
{
    struct half *old = w->d;

    w->kills++;
    old->dead = true;
    list_for_safe(it, tmp, &w->pulls)
    {
        struct pull *u = list_entry(it, struct pull, link);
        if (u->dst == old)
            pull_free(u);
    }
    w->d = half_new(w, 8, 100);
    post(w, GONE, NULL, w->p, old->incarnation);
    for (int i = 0; i < REQS; i++) {
        struct req *r = &w->req[i];
        if (!r->active || r->d_half != old || r->solo)
            continue;
        if (r->on_p && !r->p_half->dead)
            post(w, TO_P_CANCEL, NULL, r->p_half, r->id);
        if (r->n_got >= r->p.max_tokens)
            over(w, r, true);
        else
            to_d(w, r);
    }
}

static void step_back(struct world *w, struct half *f)
{
    struct step_done d;

    if (!f->x.n_flight || f->stopped_until > w->now)
        return;
    sim_run(&f->x, &d);
    sched_event(f->s, w->now, &(struct sched_event){.kind = SCHED_DONE, .done = &d});
    settle(w, f);
}

static void pulls_end(struct world *w)
{
    list_for_safe(it, tmp, &w->pulls)
    {
        struct pull *u = list_entry(it, struct pull, link);
        if (u->at > w->now || u->dst->stopped_until > w->now)
            continue;
        struct half *f = u->dst;
        end_pull(w, u);
        settle(w, f);
    }
}

static void tick(struct world *w, struct half *f)
{
    int64_t at = handoff_deadline(f->h);

    if (at < 0 || at > w->now || f->stopped_until > w->now)
        return;
    handoff_tick(f->h, w->now);
    settle(w, f);
    at = handoff_deadline(f->h);
    assert_true(at < 0 || at > w->now);
}

static void turn(struct world *w)
{
    w->now += 1 + (int64_t)rnd(w, 200);
    deliver(w);
    pulls_end(w);
    step_back(w, w->p);
    step_back(w, w->d);
    tick(w, w->p);
    tick(w, w->d);
}

static void fault(struct world *w)
{
    switch (rnd(w, 40)) {
    case 0:
        w->p->stopped_until = w->now + (int64_t)rnd(w, 20000);
        return;
    case 1:
        w->d->stopped_until = w->now + (int64_t)rnd(w, 20000);
        return;
    case 2:
        if (rnd(w, 8) == 0 && w->n_bodies < BODIES - 4)
            kill_p(w);
        return;
    case 3:
        if (rnd(w, 8) == 0 && w->n_bodies < BODIES - 4)
            kill_d(w);
        return;
    default:
        return;
    }
}

static void world_init(struct world *w, uint64_t seed, int faults)
{
    memset(w, 0, sizeof(*w));
    memset(w->of_id, 0xff, sizeof(w->of_id));
    w->rng = seed * 7919 + 1;
    w->faults = faults;
    list_init(&w->msgs);
    list_init(&w->pulls);
    w->p = half_new(w, 4, 120);
    w->d = half_new(w, 8, 100);
}

static bool any_active(const struct world *w)
{
    for (int i = 0; i < REQS; i++)
        if (w->req[i].active)
            return true;
    return false;
}

static int pinned(struct half *f)
{
    struct sched_stats st;

    sched_stats(f->s, &st);
    return st.kv.n_used;
}

/* No more faults: everything ends, and then both pools are free. */
static void world_end(struct world *w)
{
    struct half *both[] = {w->p, w->d};

    w->faults = 0;
    for (int i = 0; i < 200000 && any_active(w); i++)
        turn(w);
    assert_false(any_active(w));
    for (int i = 0; i < 2000; i++)
        turn(w);
    for (int i = 0; i < 2; i++) {
        struct handoff_stats st;
        handoff_stats(both[i]->h, &st);
        assert_int_equal(pinned(both[i]), 0);
        assert_true(sched_idle(both[i]->s));
        assert_int_equal(st.exports + st.queued + st.waiting + st.pulling + st.closing,
                         0);
        assert_int_equal(handoff_deadline(both[i]->h), -1);
    }
    list_for_safe(it, tmp, &w->msgs) { msg_free(list_entry(it, struct msg, link)); }
    for (int i = 0; i < w->n_bodies; i++)
        half_free(w->body[i]);
}

static void play(struct world *w, long turns, int arrivals, int cancels,
                 bool break_things)
{
    for (long i = 0; i < turns; i++) {
        turn(w);
        if ((int)rnd(w, 100) < arrivals)
            new_request(w);
        struct req *r = &w->req[rnd(w, REQS)];
        if (r->active && (int)rnd(w, 100) < cancels)
            cancel(w, r);
        if (break_things)
            fault(w);
    }
}

static void test_calm(void **state)
{
    (void)state;
    static struct world w;
    struct handoff_stats st;

    world_init(&w, test_seed(), 0);
    play(&w, 6000, 5, 0, false);
    handoff_stats(w.d->h, &st);
    assert_true(st.done > 100);
    assert_int_equal(st.lost + st.recomputed + st.retries, 0);
    world_end(&w);
    assert_true(w.done > 200);
}

static void test_10000_cancels(void **state)
{
    (void)state;
    static struct world w;
    long n = 0;

    for (uint64_t seed = 0; n < 10000; seed++) {
        world_init(&w, test_seed() + seed, 10);
        play(&w, 4000, 60, 80, true);
        world_end(&w);
        n += w.cancels;
    }
}

static void test_everything_breaks(void **state)
{
    (void)state;
    static struct world w;
    struct handoff_stats st;
    uint64_t lost = 0, retries = 0;
    long kills = 0;

    for (uint64_t seed = 0; seed < 6; seed++) {
        world_init(&w, test_seed() + 100 + seed, 60);
        play(&w, 3000, 30, 3, true);
        for (int i = 0; i < w.n_bodies; i++) {
            handoff_stats(w.body[i]->h, &st);
            lost += st.lost;
            retries += st.retries;
        }
        kills += w.kills;
        world_end(&w);
    }
    assert_true(lost > 0 && retries > 0 && kills > 6);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_calm),
    cmocka_unit_test(test_10000_cancels),
    cmocka_unit_test(test_everything_breaks),
};

TEST_MAIN("handoff_sim", tests)
