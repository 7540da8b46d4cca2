/* daemon/serve/moves.c - the state machine of moves. See moves.h.
 *
 * `now` is the move under way. An action is put on a short list and taken off it by
 * moves_next; entering a state puts what the state asks for there. A move that was
 * aborted while something was loaded or loading leaves `dropping` behind: the next one
 * begins when that is gone, so that a loader which hangs holds up moves and nothing else.
 *
 * Steps: the durations of the last ones are kept in a ring while no move runs; what ends
 * during a move is summed apart. The two are compared in the news. */
#include "daemon/serve/moves.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

enum { ACTS = 2 * MOVES_QUEUED, BEFORE = 256 };

static const int64_t S = 1000000;

struct running {
    bool on;
    struct moves_news n;
    int64_t began, entered;
    uint64_t drain_to; /* the last ticket that may name the old copy */
    bool late;         /* said so already */
    int64_t sum_us;
};

struct waiting {
    struct move v;
    int64_t since;
};

struct moves {
    struct moves_limits l;
    struct waiting queue[MOVES_QUEUED];
    int first, n;
    struct running now;
    uint64_t dropping; /* id; 0 = none */
    uint64_t done_ticket, late;
    int64_t before[BEFORE];
    int n_before, at_before;
    struct moves_act act[ACTS];
    int act_first, n_act;
};

const char *move_state_name(enum move_state s)
{
    static const char *const names[] = {
#define X(id, word) word,
        MOVE_STATE_MAP(X)
#undef X
    };
    return (unsigned)s < MOVE_STATE_COUNT ? names[s] : "unknown";
}

void moves_limits_init(struct moves_limits *l)
{
    *l = (struct moves_limits){0};
    for (int i = 0; i < MOVE_STATE_COUNT; i++)
        l->state_us[i] = 5 * S;
    l->state_us[MOVE_QUEUED] = 600 * S;
    l->state_us[MOVE_LOADING] = 30 * S;
    l->state_us[MOVE_VERIFYING] = 30 * S;
}

struct moves *moves_new(const struct moves_limits *l)
{
    struct moves *m = xcalloc(1, sizeof(*m));

    m->l = *l;
    return m;
}

void moves_free(struct moves *m) { free(m); }

int moves_waiting(const struct moves *m) { return m->n + m->now.on; }

uint64_t moves_late(const struct moves *m) { return m->late; }

/* ---- actions ---- */

static void put(struct moves *m, enum moves_act_kind kind, const struct moves_news *n)
{
    /* fewer than 16 of a move, one of each in the queue; the owner takes all of them
     * after each event */
    assert(m->n_act < ACTS);
    m->act[(m->act_first + m->n_act++) % ACTS] =
        (struct moves_act){.kind = kind, .move = n->move, .news = *n};
}

static void tell(struct moves *m) { put(m, MOVES_TELL, &m->now.n); }

/* ---- steps ---- */

static void before_of(const struct moves *m, struct moves_news *n)
{
    int64_t sum = 0;

    n->before_max_us = 0;
    for (int i = 0; i < m->n_before; i++) {
        sum += m->before[i];
        if (m->before[i] > n->before_max_us)
            n->before_max_us = m->before[i];
    }
    n->before_mean_us = m->n_before ? sum / m->n_before : 0;
}

static void count_step(struct moves *m, int64_t us)
{
    struct running *r = &m->now;

    if (!r->on || !r->n.move.n) { /* new shares copy nothing */
        m->before[m->at_before] = us;
        m->at_before = (m->at_before + 1) % BEFORE;
        m->n_before += m->n_before < BEFORE;
        return;
    }
    r->sum_us += us;
    r->n.n_steps++;
    r->n.during_mean_us = r->sum_us / r->n.n_steps;
    if (us > r->n.during_max_us)
        r->n.during_max_us = us;
}

/* ---- states ---- */

static void end(struct moves *m)
{
    tell(m);
    m->now = (struct running){0};
}

static void enter(struct moves *m, int64_t now, enum move_state s)
{
    static const struct {
        bool asks;
        enum moves_act_kind kind;
    } asks[MOVE_STATE_COUNT] = {
        [MOVE_LOADING] = {true, MOVES_LOAD}, [MOVE_VERIFYING] = {true, MOVES_VERIFY},
        [MOVE_WARMING] = {true, MOVES_WARM}, [MOVE_READY] = {true, MOVES_VOTE},
        [MOVE_FLIP] = {true, MOVES_DO_FLIP}, [MOVE_FREED] = {true, MOVES_FREE},
    };
    struct running *r = &m->now;

    r->n.state = s;
    r->n.all_us = now - r->began;
    r->entered = now;
    r->late = false;
    if (s == MOVE_DONE || s == MOVE_ABORTED) {
        end(m);
        return;
    }
    tell(m);
    if (asks[s].asks)
        put(m, asks[s].kind, &r->n);
}

static void drained(struct moves *m, int64_t now)
{
    if (m->now.on && m->now.n.state == MOVE_DRAINING && m->done_ticket >= m->now.drain_to)
        enter(m, now, MOVE_FREED);
}

static void abort_move(struct moves *m, int64_t now, const char *why)
{
    struct running *r = &m->now;

    snprintf(r->n.why, sizeof(r->n.why), "%s: %s", move_state_name(r->n.state), why);
    m->dropping = r->n.move.id;
    put(m, MOVES_DROP, &r->n);
    enter(m, now, MOVE_ABORTED);
}

static bool may_abort(const struct moves *m)
{
    return m->now.on && m->now.n.state < MOVE_FLIP;
}

/* ---- the queue ---- */

static int check_put(const struct moves_limits *l, const struct move *v, int i,
                     struct err *e)
{
    const struct move_put *p = &v->put[i];

    if (p->expert < -1 || p->expert >= l->n_expert)
        return err_param(e, ERR_RANGE, "expert", "expert %d is outside 0..%d", p->expert,
                         l->n_expert - 1);
    if (p->rank < 0 || p->rank >= l->n_rank || p->slot < 0 || p->slot >= l->n_slot)
        return err_param(e, ERR_RANGE, "slot",
                         "slot %d of rank %d: there are %d on each of %d ranks", p->slot,
                         p->rank, l->n_slot, l->n_rank);
    for (int j = 0; j < i; j++)
        if (v->put[j].rank == p->rank && v->put[j].slot == p->slot)
            return err_param(e, ERR_RANGE, "slot", "slot %d of rank %d is named twice",
                             p->slot, p->rank);
    return 0;
}

static int check(const struct moves *m, const struct move *v, struct err *e)
{
    const struct moves_limits *l = &m->l;

    if (v->layer < 0 || v->layer >= l->n_layer)
        return err_param(e, ERR_RANGE, "layer", "layer %d is outside 0..%d", v->layer,
                         l->n_layer - 1);
    if (v->n < 0 || v->n > MOVE_PUTS)
        return err_param(e, ERR_RANGE, "put", "%d slots in one move; at most %d", v->n,
                         (int)MOVE_PUTS);
    for (int i = 0; i < v->n; i++)
        if (check_put(l, v, i, e) < 0)
            return -1;
    return 0;
}

static struct waiting *queued(struct moves *m, int i)
{
    return &m->queue[(m->first + i) % MOVES_QUEUED];
}

static bool known(const struct moves *m, uint64_t id)
{
    if (m->dropping == id || (m->now.on && m->now.n.move.id == id))
        return true;
    for (int i = 0; i < m->n; i++)
        if (m->queue[(m->first + i) % MOVES_QUEUED].v.id == id)
            return true;
    return false;
}

int moves_order(struct moves *m, int64_t now, const struct move *v, struct err *e)
{
    if (check(m, v, e) < 0)
        return -1;
    if (!v->id || known(m, v->id))
        return err_set(e, ERR_CONFLICT, "there is a move %llu already",
                       (unsigned long long)v->id);
    if (m->n == MOVES_QUEUED)
        return err_set(e, ERR_BUSY, "%d moves wait already", m->n);
    int at = m->n++; /* of no slots (shares): behind all; others before those */
    while (v->n && at > 0 && !queued(m, at - 1)->v.n) {
        *queued(m, at) = *queued(m, at - 1);
        at--;
    }
    queued(m, at)->v = *v;
    queued(m, at)->since = now;
    return 0;
}

static struct move take(struct moves *m)
{
    struct move v = m->queue[m->first].v;

    m->first = (m->first + 1) % MOVES_QUEUED;
    m->n--;
    return v;
}

/* A move that never begins is told so. */
static void refuse_first(struct moves *m, int64_t now, const char *why)
{
    struct moves_news n = {.state = MOVE_ABORTED};

    n.all_us = now - m->queue[m->first].since;
    n.move = take(m);
    snprintf(n.why, sizeof(n.why), "queued: %s", why);
    put(m, MOVES_TELL, &n);
}

static bool loads(const struct move *v)
{
    for (int i = 0; i < v->n; i++)
        if (v->put[i].expert >= 0)
            return true;
    return false;
}

static void begin(struct moves *m, int64_t now)
{
    struct running *r = &m->now;

    if (r->on || !m->n || m->dropping)
        return;
    *r = (struct running){.on = true, .began = now};
    r->n.move = take(m);
    before_of(m, &r->n);
    enter(m, now, loads(&r->n.move) ? MOVE_LOADING : MOVE_READY);
}

void moves_cancel(struct moves *m, int64_t now, const char *why)
{
    while (m->n)
        refuse_first(m, now, why);
    if (may_abort(m))
        abort_move(m, now, why);
}

/* ---- events ---- */

/* The state in which each answer is waited for, and the one that follows. */
static const struct {
    bool answers;
    enum move_state in, next;
} answers[] = {
    [MOVES_LOADED] = {true, MOVE_LOADING, MOVE_VERIFYING},
    [MOVES_VERIFIED] = {true, MOVE_VERIFYING, MOVE_WARMING},
    [MOVES_WARMED] = {true, MOVE_WARMING, MOVE_READY},
    [MOVES_VOTED] = {true, MOVE_READY, MOVE_FLIP},
    [MOVES_FLIPPED] = {true, MOVE_FLIP, MOVE_DRAINING},
    [MOVES_STEP] = {false, 0, 0},
    [MOVES_FREED] = {true, MOVE_FREED, MOVE_DONE},
    [MOVES_FAILED] = {false, 0, 0},
};

static void on_failed(struct moves *m, int64_t now, const struct moves_event *ev)
{
    struct running *r = &m->now;
    const char *why = ev->why ? ev->why : "no reason was given";

    if (may_abort(m)) {
        abort_move(m, now, why);
        return;
    }
    snprintf(r->n.why, sizeof(r->n.why), "%s: %s", move_state_name(r->n.state), why);
    put(m, MOVES_BROKEN, &r->n);
}

void moves_event(struct moves *m, int64_t now, const struct moves_event *ev)
{
    struct running *r = &m->now;

    if (ev->kind == MOVES_STEP) {
        count_step(m, ev->step_us);
        m->done_ticket = ev->last_ticket;
        drained(m, now);
        return;
    }
    if (ev->kind == MOVES_FREED && m->dropping && ev->id == m->dropping) {
        m->dropping = 0;
        return;
    }
    if (!r->on || ev->id != r->n.move.id ||
        (answers[ev->kind].answers && answers[ev->kind].in != r->n.state)) {
        m->late++;
        return;
    }
    if (ev->kind == MOVES_FAILED) {
        on_failed(m, now, ev);
        return;
    }
    if (ev->kind == MOVES_LOADED)
        r->n.bytes = ev->bytes;
    if (ev->kind == MOVES_VERIFIED) {
        r->n.load_us = now - r->began;
        r->n.work_us = ev->work_us;
    }
    r->drain_to = ev->last_ticket;
    enter(m, now, answers[ev->kind].next);
    if (ev->kind == MOVES_FLIPPED)
        drained(m, now);
}

/* Past the flip nothing is given up: it is said that the move is late, once. */
static void overdue(struct moves *m, int64_t now)
{
    struct running *r = &m->now;
    char why[128];

    snprintf(why, sizeof(why), "not done within %.1f s",
             (double)m->l.state_us[r->n.state] / 1e6);
    if (may_abort(m)) {
        abort_move(m, now, why);
        return;
    }
    r->late = true;
    snprintf(r->n.why, sizeof(r->n.why), "%s: %s", move_state_name(r->n.state), why);
    r->n.all_us = now - r->began;
    tell(m);
}

static int64_t state_deadline(const struct moves *m)
{
    const struct running *r = &m->now;

    return r->on && !r->late ? r->entered + m->l.state_us[r->n.state] : -1;
}

void moves_tick(struct moves *m, int64_t now)
{
    int64_t at = state_deadline(m);

    if (at >= 0 && now >= at)
        overdue(m, now);
    while (m->n && now - m->queue[m->first].since >= m->l.state_us[MOVE_QUEUED])
        refuse_first(m, now, "its turn has not come in time");
}

int64_t moves_deadline(const struct moves *m)
{
    int64_t at = state_deadline(m);
    int64_t q = m->n ? m->queue[m->first].since + m->l.state_us[MOVE_QUEUED] : -1;

    return at < 0 || (q >= 0 && q < at) ? q : at;
}

bool moves_next(struct moves *m, int64_t now, struct moves_act *ret)
{
    if (!m->n_act)
        begin(m, now);
    if (!m->n_act)
        return false;
    *ret = m->act[m->act_first];
    m->act_first = (m->act_first + 1) % ACTS;
    m->n_act--;
    return true;
}
