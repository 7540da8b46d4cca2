/* daemon/ctrl/split.c - relays between an engine that computes prompts and one that
 * answers, and what follows when either fails. See split.h; the messages are those of
 * daemon/serve/wire_kv.h.
 *
 *   target_take   split_begin: a helper is found       ADD(IMPORT) to the target
 *   RESERVED      its KV is there                      ADD(EXPORT) to the helper
 *   EXPORT        relayed; the last one only when the client has the tokens in it, so
 *                 that no later token overtakes them
 *   PULLED        relayed, by the incarnation in it
 *   FINISH        of the helper: HANDOFF, and it has no part in it any more; or it was
 *                 the whole answer; or it failed
 *   LOST, gone    RECOMPUTE with what the client has
 *
 * What names a request or an incarnation that is not there (any more) is counted and goes
 * no further. */
#include "daemon/ctrl/split.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/metric.h"
#include "daemon/ctrl/affinity.h"
#include "daemon/ctrl/child.h"
#include "daemon/ctrl/conf.h"
#include "daemon/ctrl/router_int.h"
#include "daemon/ctrl/target.h"
#include "daemon/serve/metrics.h"
#include "daemon/serve/wire_kv.h"

enum { STALL_STEPS = 8 };

struct split_region {
    struct wire_arena a;
    int fd;
};

static int64_t now_us(void) { return clock_now_us(clock_real()); }

static void lock(struct target *t) { pthread_mutex_lock(&t->r->lock); }

static void unlock(struct target *t) { pthread_mutex_unlock(&t->r->lock); }

/* ---- the last minute ---- */

void split_window_add(struct split_window *w, int64_t now, enum split_sum k, double s)
{
    int64_t slot = now / SPLIT_SLOT_US;
    int i = (int)(slot % SPLIT_SLOTS);

    if (w->at[i].slot != slot) {
        memset(&w->at[i], 0, sizeof(w->at[i]));
        w->at[i].slot = slot;
    }
    w->at[i].v[k] += s;
}

void split_window_sum(const struct split_window *w, int64_t now, double ret[SPLIT_SUMS])
{
    memset(ret, 0, SPLIT_SUMS * sizeof(*ret));
    for (int i = 0; i < SPLIT_SLOTS; i++)
        for (int k = 0; k < SPLIT_SUMS; k++)
            if (w->at[i].slot > now / SPLIT_SLOT_US - SPLIT_WINDOW)
                ret[k] += w->at[i].v[k];
}

/* Into the window and the counter of the same name. */
static void note(struct target *t, enum split_sum k, double s)
{
    lock(t);
    split_window_add(&t->window, now_us(), k, s);
    unlock(t);
    if (k < SPLIT_COUNT)
        metric_add(t->page->page, M_SPLIT_SECONDS, k, s);
}

/* ---- who knows whom ---- */

static bool same_pools(const struct target *a, const struct target *b)
{
    size_t n = conf_name_len(a->st.name);

    return n == conf_name_len(b->st.name) && !strncmp(a->st.name, b->st.name, n);
}

static bool introduced(const struct split_end *p)
{
    return p->line && p->n_regions && p->n_regions == p->want;
}

/* The regions of p are given to d. */
static void introduce(const struct target *p, struct target *d)
{
    if (!d->end.line || d->end.role != CONF_ROLE_DECODE || !same_pools(p, d))
        return;
    for (int i = 0; i < p->end.n_regions; i++)
        child_peer(d->end.line, &p->end.regions[i].a, p->end.regions[i].fd);
}

static void drop_regions(struct split_end *x)
{
    for (int i = 0; i < x->n_regions; i++)
        close(x->regions[i].fd);
    free(x->regions);
    x->regions = NULL;
    x->n_regions = x->want = 0;
}

void split_ready(struct target *t, struct child *line, const struct wire_ready *r)
{
    drop_regions(&t->end);
    t->end.line = line;
    t->end.incarnation = r->incarnation;
    t->end.moved_us = now_us();
    t->end.want = r->n_arenas > WIRE_ARENAS_MAX ? WIRE_ARENAS_MAX : r->n_arenas;
    list_for(it, &t->r->targets)
    {
        const struct target *o = list_entry(it, struct target, link);
        if (introduced(&o->end))
            introduce(o, t);
    }
}

void split_arena(struct target *t, const struct wire_arena *a, int fd)
{
    struct split_end *x = &t->end;

    if (!x->line || x->n_regions >= x->want || a->incarnation != x->incarnation) {
        close(fd);
        return;
    }
    x->regions = xrealloc(x->regions, (size_t)(x->n_regions + 1) * sizeof(*x->regions));
    x->regions[x->n_regions++] = (struct split_region){*a, fd};
    if (!introduced(x))
        return;
    list_for(it, &t->r->targets) introduce(t, list_entry(it, struct target, link));
}

/* ---- helpers ---- */

static bool can_help(const struct target *p, const struct target *t)
{
    return p->end.role == CONF_ROLE_PREFILL && introduced(&p->end) && p->model &&
           !p->end.stalled && same_pools(p, t) &&
           router_same_model(&p->model->pub, &t->model->pub) &&
           router_not_answering(p, NULL) == 0 && p->n_live + p->end.n_help < p->max_live;
}

/* The one that has computed the prompt first. Under the lock. */
static struct target *find_helper(struct target *t, const struct req *q)
{
    struct target *all[ROUTER_CHOICES];
    int n = 0;

    list_for(it, &t->r->targets)
    {
        struct target *p = list_entry(it, struct target, link);
        if (n < ROUTER_CHOICES && can_help(p, t))
            all[n++] = p;
    }
    return n ? router_nearest(all, n, &q->add) : NULL;
}

/* Is it worth to ask another one at all? */
static bool wants_help(const struct req *q)
{
    const struct gen_params *p = &q->add.params;

    return !q->at_home && !p->n_gen && !p->prompt_logprobs && p->max_tokens != 0 &&
           p->max_tokens != 1;
}

/* The prompt's cost goes from the target to the helper. */
static void attach(struct req *q, struct target *p)
{
    int64_t prompt = q->n_prompt < q->left ? q->n_prompt : q->left;

    q->leg = (struct split_leg){.helper = p, .from = p->end.incarnation};
    q->leg.sent_us = now_us();
    p->end.n_help++;
    p->end.help_load += q->n_prompt;
    q->n_computed = (int)prompt;
    q->left -= prompt;
    q->target->load -= prompt;
}

static void detach(struct req *q)
{
    struct target *p = q->leg.helper;

    if (!p)
        return;
    p->end.n_help--;
    p->end.help_load -= q->n_prompt;
    if (q->leg.asked)
        q->target->end.n_away--;
    q->leg.helper = NULL;
    q->leg.asked = false;
}

static void drop_held(struct req *q)
{
    free(q->leg.held);
    q->leg.held = NULL;
}

void split_begin(struct target *t, struct req *q, struct wire_add *add)
{
    struct target *p;

    if (t->end.role != CONF_ROLE_DECODE || !wants_help(q))
        return;
    lock(t);
    p = find_helper(t, q);
    if (p)
        attach(q, p);
    unlock(t);
    if (!p)
        return;
    add->params.handoff = GEN_IMPORT;
    add->params.peer = p->end.incarnation;
    add->params.group = 0; /* each choice takes its own KV */
}

void split_cancel(struct req *q)
{
    if (q->leg.asked && q->leg.helper->end.line)
        child_cancel(q->leg.helper->end.line, q->add.params.id);
}

void split_release(struct req *q)
{
    split_cancel(q);
    detach(q);
    drop_held(q);
    q->leg.from = 0;
}

/* No more comes of a helper: the target computes what it lacks. */
static void fall_back(struct req *q)
{
    struct target *t = q->target;

    if (!q->leg.from || !t->end.line)
        return;
    lock(t);
    split_release(q);
    if (q->n_out == 0) { /* the prompt is its own again */
        q->left += q->n_computed;
        t->load += q->n_computed;
        q->n_computed = 0;
    }
    unlock(t);
    if (q->forgot) /* what the client has is not known: it cannot go on */
        child_cancel(t->end.line, q->add.params.id);
    else
        child_recompute(t->end.line, q->add.params.id, q->ids + q->n_prompt, q->n_out);
}

/* ---- what engines say ---- */

/* Its client goes at any time; the order that tells the engines of it is yet to come. */
static bool is_cancelled(const struct req *q)
{
    bool is;

    lock(q->target);
    is = q->cancelled;
    unlock(q->target);
    return is;
}

static void late(struct target *t) { metric_add(t->page->page, M_RELAY_LATE, 0, 1); }

static void on_reserved(struct target *t, struct req *q)
{
    struct target *p = q->leg.helper;
    struct wire_add add = q->add;

    if (!p || q->leg.asked || is_cancelled(q)) { /* then its FINISH comes */
        late(t);
        return;
    }
    if (p->end.stalled || p->silent_us) {
        fall_back(q);
        return;
    }
    lock(t);
    q->leg.asked = true;
    q->leg.asked_us = now_us();
    p->end.n_owed++;
    t->end.n_away++;
    unlock(t);
    metric_observe(t->page->page, M_HANDOFF_RESERVE,
                   (double)(q->leg.asked_us - q->leg.sent_us) / 1e6);
    note(t, SPLIT_SCHEDULE, (double)(q->leg.asked_us - q->leg.sent_us) / 1e6);
    add.params.age_us = gen_time(add.params.age_us + now_us() - q->start_us);
    add.params.handoff = GEN_EXPORT;
    add.params.peer = t->end.incarnation;
    add.params.group = 0;
    child_add(p->end.line, &add);
}

static void pass_last(struct req *q, const void *p, size_t n)
{
    q->leg.last_us = now_us();
    child_relay(q->target->end.line, WIRE_EXPORT, p, n);
}

static void on_export(struct target *p, const void *msg, size_t n)
{
    struct wire_offer o;
    struct req *q;

    if (wire_parse_export(msg, n, &o, NULL) < 0)
        return;
    q = router_heard(p->r, o.h.id);
    if (!q || !q->leg.from || q->leg.from != o.h.incarnation ||
        o.h.incarnation != p->end.incarnation || q->leg.held) {
        late(p); /* or of what another engine has, which this one cannot offer */
    } else if (!o.h.last) {
        child_relay(q->target->end.line, WIRE_EXPORT, msg, n);
    } else if (q->n_out >= o.h.n_gen) {
        pass_last(q, msg, n);
    } else {
        q->leg.held = xmalloc(n);
        memcpy(q->leg.held, msg, n);
        q->leg.n_held = n;
    }
}

void split_told(struct req *q)
{
    struct wire_offer o;

    if (!q->leg.held || wire_parse_export(q->leg.held, q->leg.n_held, &o, NULL) < 0 ||
        q->n_out < o.h.n_gen)
        return;
    pass_last(q, q->leg.held, q->leg.n_held);
    drop_held(q);
}

static void on_pulled(struct target *t, const void *msg, size_t n)
{
    struct wire_pulled m;
    struct req *q;

    memcpy(&m, msg, sizeof(m));
    if (m.reader != t->end.incarnation) {
        late(t);
        return;
    }
    list_for(it, &t->r->targets)
    {
        struct target *p = list_entry(it, struct target, link);
        if (p->end.line && p->end.incarnation == m.incarnation)
            child_relay(p->end.line, WIRE_PULLED, msg, n);
    }
    q = router_heard(t->r, m.id);
    if (!m.final || !q || q->target != t || !q->leg.last_us)
        return;
    metric_observe(t->page->page, M_HANDOFF_TIME,
                   (double)(now_us() - q->leg.last_us) / 1e6);
    note(t, SPLIT_HANDOFF, (double)(now_us() - q->leg.last_us) / 1e6);
    note(t, SPLIT_COUNT, 1);
    q->leg.last_us = 0;
}

void split_heard(struct target *t, enum wire_kind kind, const void *p, size_t n)
{
    uint64_t id;
    struct req *q;

    if (kind == WIRE_EXPORT) {
        on_export(t, p, n);
        return;
    }
    if (kind == WIRE_PULLED) {
        on_pulled(t, p, n);
        return;
    }
    memcpy(&id, p, sizeof(id)); /* RESERVED and LOST begin with it */
    q = router_heard(t->r, id);
    if (!q || q->target != t || !q->sent)
        late(t);
    else if (kind == WIRE_RESERVED)
        on_reserved(t, q);
    else if (kind == WIRE_LOST)
        fall_back(q);
}

/* ---- how a part ends ---- */

/* Answers that ran beside would have waited while the prompt was computed. */
static void on_handed(struct req *q, const struct gen_finish *f)
{
    struct target *t = q->target;
    double running = metric_get(t->page->page, M_RUNNING, 0);
    int own = t->n_sent - t->end.n_away; /* q itself is away */

    running = running < own ? running : own;
    q->leg.n_cached = f->n_cached;
    q->leg.queue_us = f->queue_us;
    q->leg.prefill_us = f->prefill_us;
    note(t, SPLIT_REMOVED, running * (double)f->prefill_us / 1e6);
    note(t, SPLIT_QUEUE, (double)f->queue_us / 1e6);
    lock(t);
    detach(q);
    unlock(t);
}

bool split_finish(struct target *helper, uint64_t id, const struct gen_finish *f)
{
    struct req *q = router_heard(helper->r, id);
    struct target *t;

    if (helper->end.n_owed && !(q && q->target == helper)) {
        lock(helper);
        helper->end.n_owed--;
        unlock(helper);
    }
    if (!q || q->leg.helper != helper || !q->leg.asked)
        return false;
    t = q->target;
    if (f->reason == FINISH_HANDOFF) {
        on_handed(q, f);
    } else if (f->reason == FINISH_STOP || f->reason == FINISH_LENGTH || f->retry_us) {
        lock(t);
        detach(q);
        split_release(q);
        unlock(t);
        child_cancel(t->end.line, id);
        target_finish(t, id, f);
    } else if (is_cancelled(q)) {
        lock(t);
        detach(q);
        unlock(t);
    } else {
        fall_back(q);
    }
    return true;
}

void split_times(const struct req *q, struct gen_finish *f)
{
    int64_t now = now_us();

    f->n_prompt = q->n_prompt;
    f->n_cached = q->leg.n_cached;
    f->queue_us = q->leg.asked_us - q->start_us + q->leg.queue_us;
    f->prefill_us = q->first_us < 0 ? 0 : q->first_us - q->start_us - f->queue_us;
    f->decode_us = q->first_us < 0 ? 0 : now - q->first_us;
}

/* ---- an engine is gone ---- */

/* Any request that it helps; control thread, which alone changes that. */
static struct req *any_helped(struct target *p)
{
    for (int i = 0; i < ROUTER_BUCKETS && p->end.n_help; i++)
        list_for(it, &p->r->bucket[i])
        {
            struct req *q = list_entry(it, struct req, link);
            if (q->leg.helper == p)
                return q;
        }
    return NULL;
}

/* All that it helps go on without it; how many. */
static int leave(struct target *p)
{
    struct req *q;

    for (int n = 0;; n++) {
        lock(p);
        q = any_helped(p);
        unlock(p);
        if (!q)
            return n;
        if (is_cancelled(q)) {
            lock(p);
            split_cancel(q);
            detach(q);
            unlock(p);
        } else {
            fall_back(q);
        }
    }
}

int split_pass_on(struct target *p) { return leave(p); }

int64_t split_patience(const struct target *p)
{
    return p->end.role == CONF_ROLE_PREFILL ? p->hot.stall_us : 0;
}

/* A model whose steps are long is not taken for one that stands still. */
static int64_t patience(const struct target *p)
{
    double n = metric_get(p->page->page, M_STEPS, 0);
    double s = metric_get(p->page->page, M_STEP_SECONDS, 0);
    int64_t own = n > 0 ? (int64_t)(STALL_STEPS * s / n * 1e6) : 0;

    return own > p->hot.stall_us ? own : p->hot.stall_us;
}

bool split_watch(struct target *p, int64_t now, int *ret_n)
{
    struct split_end *x = &p->end;
    double steps = metric_get(p->page->page, M_STEPS, 0);

    if (!split_patience(p) || !x->n_owed || steps != x->steps) {
        lock(p);
        x->moved_us = now;
        x->steps = steps;
        x->stalled = false;
        unlock(p);
        return false;
    }
    if (x->stalled || now - x->moved_us < patience(p))
        return false;
    lock(p);
    x->stalled = true;
    unlock(p);
    *ret_n = leave(p);
    return true;
}

int split_exports(const struct target *t)
{
    return t->end.line ? (int)metric_get(t->page->page, M_HANDOFF_EXPORTS, 0) : 0;
}

void split_done(struct target *t) { drop_regions(&t->end); }

void split_gone(struct target *t)
{
    uint64_t gone = t->end.incarnation;

    t->end.line = NULL;
    drop_regions(&t->end);
    list_for(it, &t->r->targets)
    {
        struct target *o = list_entry(it, struct target, link);
        if (gone && o->end.line && o->end.role != CONF_ROLE_BOTH && same_pools(o, t))
            child_relay(o->end.line, WIRE_PEER_GONE, &gone, sizeof(gone));
    }
    t->end.incarnation = 0;
    lock(t);
    t->end.n_owed = 0;
    t->end.stalled = false;
    unlock(t);
    leave(t);
}
