/* daemon/ctrl/target.c - between the table of requests and one engine. See router.c. */
#include "daemon/ctrl/target.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/metric.h"
#include "base/queue.h"
#include "daemon/ctrl/affinity.h"
#include "daemon/ctrl/router_int.h"
#include "daemon/serve/metrics.h"
#include "daemon/serve/expertpage.h"
#include "daemon/serve/rankpage.h"
#include "daemon/serve/tracepage.h"

int target_new(struct router *r, const struct target_cfg *cfg, struct target **ret,
               struct err *e)
{
    struct target *t = xcalloc(1, sizeof(*t));

    if (queue_new(1, &t->bell, e) < 0) {
        free(t);
        return -1;
    }
    t->r = r;
    list_init(&t->outbox);
    t->max_live = cfg->max_live;
    t->end.role = cfg->role;
    t->hot = (struct served_hot){.temperature = 1, .top_p = 1};
    snprintf(t->st.name, sizeof(t->st.name), "%s", cfg->instance);
    t->st.generation = cfg->generation;
    t->st.since_us = clock_now_us(clock_real());
    t->page = xcalloc(1, sizeof(*t->page));
    t->page->page = cfg->page;
    t->ranks = cfg->ranks;
    t->experts = cfg->experts;
    t->trace = cfg->trace;
    snprintf(t->emulate, sizeof(t->emulate), "%s", cfg->emulate ? cfg->emulate : "");
    pthread_mutex_lock(&r->lock);
    list_push(&r->targets, &t->link);
    list_push(&r->pages, &t->page->link);
    pthread_mutex_unlock(&r->lock);
    *ret = t;
    return 0;
}

void target_free(struct target *t)
{
    struct router *r;

    if (!t)
        return;
    r = t->r;
    pthread_mutex_lock(&r->lock);
    list_del(&t->link);
    t->page->dead = true;
    router_sweep(r);
    router_tell_ready(r);
    pthread_mutex_unlock(&r->lock);
    router_unref(r, t->model ? &t->model->pub : NULL);
    affinity_free(t->sent);
    split_done(t);
    rankpage_free(t->ranks);
    expertpage_free(t->experts);
    tracepage_free(t->trace);
    free(t->seats);
    while (queue_pop(t->bell))
        continue;
    queue_free(t->bell);
    free(t);
}

struct metric_page *target_page(const struct target *t) { return t->page->page; }

struct rankpage *target_ranks(const struct target *t) { return t->ranks; }

struct expertpage *target_experts(const struct target *t) { return t->experts; }

int target_fd(const struct target *t) { return queue_fd(t->bell); }

/* Next request with an order, off the outbox. */
static struct req *next_order(struct target *t, bool *ret_was_sent)
{
    struct req *q = NULL;

    pthread_mutex_lock(&t->r->lock);
    if (!list_empty(&t->outbox)) {
        q = list_entry(t->outbox.next, struct req, outbox);
        list_del(&q->outbox);
        *ret_was_sent = q->sent;
        if (!q->sent && q->cancelled) {
            router_leave(t->r, q);
        } else if (!q->sent) {
            q->sent = true;
            q->lost_us = 0;
            q->n_computed = 0;
            t->n_sent++;
        }
    }
    pthread_mutex_unlock(&t->r->lock);
    return q;
}

/* The engine that ends it knows only its own part of one that went on. */
static void whole(const struct req *q, struct gen_finish *f)
{
    int64_t now = clock_now_us(clock_real());

    f->n_prompt = q->n_prompt;
    f->queue_us = 0;
    f->prefill_us = (q->first_us < 0 ? now : q->first_us) - q->start_us;
    f->decode_us = q->first_us < 0 ? 0 : now - q->first_us;
}

void target_end(struct target *t, struct req *q, const struct gen_finish *how)
{
    struct gen_finish f = *how;

    if (q->add.params.n_gen)
        whole(q, &f);
    else if (q->leg.asked_us)
        split_times(q, &f);
    f.instance = t->st.name; /* written by this thread only */
    q->sink.finish(q->sink.arg, &f);
    router_req_free(q);
}

/* Cancelled before the engine heard of it. */
static void abort_unsent(struct target *t, struct req *q)
{
    struct gen_finish f = {.reason = FINISH_ABORT, .stop_id = -1};

    f.n_prompt = q->n_prompt;
    f.n_out = q->n_out;
    f.queue_us = clock_now_us(clock_real()) - q->start_us;
    target_end(t, q, &f);
}

enum target_order target_take(struct target *t, struct wire_add *ret_add,
                              uint64_t *ret_id)
{
    bool was_sent = false;
    struct req *q;

    while (queue_pop(t->bell))
        continue;
    while ((q = next_order(t, &was_sent)) && !was_sent && !q->sent)
        abort_unsent(t, q);
    if (!q)
        return TARGET_NOTHING;
    *ret_id = q->add.params.id;
    if (was_sent) {
        split_cancel(q);
        return TARGET_CANCEL;
    }
    *ret_add = q->add;
    ret_add->params.age_us =
        gen_time(q->add.params.age_us + clock_now_us(clock_real()) - q->start_us);
    split_begin(t, q, ret_add);
    return TARGET_ADD;
}

static struct req *find_own(struct target *t, uint64_t id)
{
    struct req *q = router_heard(t->r, id);

    return q && q->target == t ? q : NULL;
}

/* The answer so far, should it have to go on elsewhere. */
static void keep(struct req *q, const struct step_token *toks, int n)
{
    int have = q->n_prompt + q->n_out;

    if (have + n > q->cap && !q->forgot) {
        int cap = 2 * q->cap > have + n ? 2 * q->cap : have + n;
        int32_t *p = try_realloc(q->ids, (size_t)cap * sizeof(*p));
        q->forgot = !p;
        q->ids = p ? p : q->ids;
        q->cap = p ? cap : q->cap;
        q->add.prompt = q->ids;
    }
    for (int i = 0; i < n && !q->forgot; i++)
        q->ids[have + i] = toks[i].id;
}

/* n tokens of the answer came. */
static void count(struct target *t, struct req *q, int n)
{
    int64_t done = q->n_computed ? n : n + q->n_prompt + q->add.params.n_gen;

    done = done < q->left ? done : q->left;
    q->n_computed += (int)done;
    q->left -= done;
    t->load -= done;
    q->n_out += n;
    if (q->first_us < 0)
        q->first_us = clock_now_us(clock_real());
}

void target_tokens(struct target *t, uint64_t id, const struct step_token *toks, int n,
                   bool scored)
{
    struct gen_sink sink = {0};
    struct req *q;

    pthread_mutex_lock(&t->r->lock);
    q = router_heard(t->r, id);
    if (q && q->target != t && (q->leg.helper != t || !q->leg.asked))
        q = NULL;
    if (q) {
        sink = q->sink;
        if (scored) {
            q->n_scored += n;
        } else {
            keep(q, toks, n);
            count(q->target, q, n);
        }
    }
    pthread_mutex_unlock(&t->r->lock);
    if (!q)
        return;
    sink.tokens(sink.arg, toks, n, scored);
    split_told(q);
}

void target_finish(struct target *t, uint64_t id, const struct gen_finish *f)
{
    struct req *q;

    if (split_finish(t, id, f) || f->reason == FINISH_HANDOFF)
        return;
    pthread_mutex_lock(&t->r->lock);
    q = find_own(t, id);
    if (q)
        router_leave(t->r, q);
    pthread_mutex_unlock(&t->r->lock);
    if (q)
        target_end(t, q, f);
}

/* Any request of the target, out of the table. */
static struct req *leave_any(struct target *t)
{
    struct req *q = NULL;

    pthread_mutex_lock(&t->r->lock);
    for (int i = 0; i < ROUTER_BUCKETS && !q && t->n_live; i++)
        list_for(it, &t->r->bucket[i])
        {
            q = list_entry(it, struct req, link);
            if (q->target == t)
                break;
            q = NULL;
        }
    if (q)
        router_leave(t->r, q);
    pthread_mutex_unlock(&t->r->lock);
    return q;
}

void target_fail_all(struct target *t, const struct err *why)
{
    struct gen_finish f = {.reason = FINISH_ERROR, .stop_id = -1, .error = why};
    struct req *q;

    while ((q = leave_any(t))) {
        f.n_prompt = q->n_prompt;
        f.n_out = q->n_out;
        target_end(t, q, &f);
    }
}

int target_live(struct target *t, int *ret_sent)
{
    int n;

    pthread_mutex_lock(&t->r->lock);
    n = t->n_live + t->end.n_help;
    if (ret_sent)
        *ret_sent = t->n_sent - t->end.n_away + t->end.n_owed;
    pthread_mutex_unlock(&t->r->lock);
    return n;
}

void target_set_model(struct target *t, const struct served *m, struct tokenizer *tok)
{
    struct model_box *b = xcalloc(1, sizeof(*b)), *old;
    bool other;

    b->pub = *m;
    memcpy(b->pub.instance, t->st.name, sizeof(b->pub.instance));
    b->pub.tok = tok;
    b->tok = tok;
    atomic_init(&b->refs, 1);
    pthread_mutex_lock(&t->r->lock);
    old = t->model;
    other = old && !router_same_model(&old->pub, &b->pub);
    t->model = b;
    router_account(t->r, m->name, ""); /* its rows are there before its first request */
    t->page->account = router_account(t->r, m->name, t->st.name);
    pthread_mutex_unlock(&t->r->lock);
    router_unref(t->r, old ? &old->pub : NULL);
    if (other) {
        struct err e;
        err_set(&e, ERR_UNAVAIL, "the file of '%s' was replaced just now: try again",
                b->pub.name);
        target_fail_all(t, &e);
    }
}

/* A cache that is new remembers nothing. Without memory the load alone decides. */
static void renew_sent(struct target *t)
{
    bool fresh = t->st.state != INSTANCE_READY && t->st.state != INSTANCE_DRAINING;

    if (!fresh && t->sent && t->sent_blocks == t->st.n_blocks)
        return;
    affinity_free(t->sent);
    t->sent = fresh ? NULL : affinity_new(t->st.n_blocks);
    t->sent_blocks = t->st.n_blocks;
}

/* What waits at one of which nothing is to be expected may go to one that does by now. */
static void offer(struct target *t)
{
    if (!list_empty(&t->outbox) && router_not_answering(t, NULL) < 0)
        router_move(t->r, t);
}

void target_set_status(struct target *t, const struct instance_status *s)
{
    struct instance_status st = *s;
    enum instance_state was;

    memcpy(st.name, t->st.name, sizeof(st.name));
    st.generation = t->st.generation;
    pthread_mutex_lock(&t->r->lock);
    was = t->st.state;
    t->st = st;
    renew_sent(t);
    if (st.state == INSTANCE_READY && was != INSTANCE_READY)
        list_for(it, &t->r->targets) offer(list_entry(it, struct target, link));
    router_tell_ready(t->r);
    pthread_mutex_unlock(&t->r->lock);
}

void target_set_hot(struct target *t, const struct served_hot *hot)
{
    pthread_mutex_lock(&t->r->lock);
    t->hot = *hot;
    pthread_mutex_unlock(&t->r->lock);
}

void target_set_silent(struct target *t, int64_t since_us)
{
    pthread_mutex_lock(&t->r->lock);
    t->silent_us = since_us;
    if (since_us) {
        router_move(t->r, t);
    } else {
        list_for(it, &t->r->targets) offer(list_entry(it, struct target, link));
        if (!list_empty(&t->outbox)) /* what was taken back, and nobody else had room */
            (void)queue_push(t->bell, t);
    }
    router_tell_ready(t->r);
    pthread_mutex_unlock(&t->r->lock);
}

void target_drain(struct target *t, bool on)
{
    pthread_mutex_lock(&t->r->lock);
    t->draining = on;
    if (on)
        router_move(t->r, t);
    router_tell_ready(t->r);
    pthread_mutex_unlock(&t->r->lock);
}
