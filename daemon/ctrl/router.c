/* daemon/ctrl/router.c - the table of requests between HTTP threads and the engine.
 *
 *   HTTP thread                 under the lock              control thread
 *   router_submit  ---->  request in table, order in outbox  ----> router_take -> engine
 *   router_cancel  ---->  mark, order in outbox              ----> router_take -> engine
 *   sink.tokens    <------------------------------------------- router_tokens <- engine
 *   sink.finish    <--- removed from the table --------------- router_finish <- engine
 *
 * A request is in the table from submit to finish. Only the control thread removes one,
 * and it calls the sink without the lock, so a sink may submit and cancel. An engine that
 * dies fails whatever is in the table, also what it never heard of; what arrives late
 * about a failed request finds no entry. The doorbell is a queue of one token: full means
 * that it has been rung. */
#include "daemon/ctrl/router.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/list.h"
#include "base/mem.h"
#include "base/queue.h"
#include "daemon/ctrl/router_ctl.h"
#include "daemon/serve/metrics.h"
#include "daemon/serve/tokenizer.h"
#include "daemon/serve/wire.h"

enum { BUCKETS = 1024, RETRY_MAX_S = 30 };

struct model_box {
    struct served pub; /* first: what callers hold */
    struct tokenizer *tok;
    atomic_int refs;
};

struct req {
    struct list link;   /* in its bucket */
    struct list outbox; /* in router.outbox while an order waits */
    uint64_t id;
    struct gen_sink sink;
    struct wire_add add; /* its arrays are freed once they were taken */
    char label[72], model[128];
    int n_prompt, n_out, max_tokens;
    int64_t start_us, first_us; /* first_us: -1 before the first token */
    bool sent, cancelled;
};

struct router {
    pthread_mutex_t lock; /* all below, except the last group */
    struct list bucket[BUCKETS], outbox;
    uint64_t next_id;
    int n_live, n_sent, max_live;
    bool draining;
    struct model_box *model;
    struct instance_status inst;

    struct queue *bell;
    struct metric_page *page, *engine_page;
    struct req *taken; /* of the last router_take */
};

const char *instance_state_name(enum instance_state s)
{
    static const char *const names[] = {
#define X(id, text) text,
        INSTANCE_STATE_MAP(X)
#undef X
    };
    return (unsigned)s < INSTANCE_STATE_COUNT ? names[s] : "unknown";
}

int router_new(const struct router_cfg *cfg, struct router **ret, struct err *e)
{
    struct router *r = xcalloc(1, sizeof(*r));

    if (queue_new(1, &r->bell, e) < 0) {
        free(r);
        return -1;
    }
    pthread_mutex_init(&r->lock, NULL);
    for (int i = 0; i < BUCKETS; i++)
        list_init(&r->bucket[i]);
    list_init(&r->outbox);
    r->next_id = 1;
    r->max_live = cfg->max_live;
    r->page = cfg->page;
    r->engine_page = cfg->engine_page;
    snprintf(r->inst.name, sizeof(r->inst.name), "%s", cfg->instance);
    r->inst.since_us = clock_now_us(clock_real());
    *ret = r;
    return 0;
}

static void req_free(struct req *q)
{
    if (!q)
        return;
    free((void *)q->add.prompt);
    free((void *)q->add.stops);
    free((void *)q->add.biases);
    free(q);
}

void router_free(struct router *r)
{
    if (!r)
        return;
    router_unref(r, r->model ? &r->model->pub : NULL);
    while (queue_pop(r->bell))
        continue;
    queue_free(r->bell);
    req_free(r->taken);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

/* ---- models ---- */

const struct served *router_model(struct router *r, const char *name, struct err *e)
{
    const struct served *m = NULL;

    pthread_mutex_lock(&r->lock);
    if (!r->model) {
        err_set(e, ERR_UNAVAIL, "no model is loaded yet");
    } else if (name && name[0] && strcmp(name, r->model->pub.name)) {
        err_param(e, ERR_NOTFOUND, "model",
                  "there is no model '%.128s'; this server has '%s'", name,
                  r->model->pub.name);
    } else {
        atomic_fetch_add(&r->model->refs, 1);
        m = &r->model->pub;
    }
    pthread_mutex_unlock(&r->lock);
    return m;
}

void router_unref(struct router *r, const struct served *m)
{
    struct model_box *b = (struct model_box *)m;

    (void)r;
    if (!b || atomic_fetch_sub(&b->refs, 1) > 1)
        return;
    tokenizer_free(b->tok);
    free(b);
}

int router_models(struct router *r, const struct served **ret, int max)
{
    if (max < 1)
        return 0;
    ret[0] = router_model(r, NULL, NULL);
    return ret[0] != NULL;
}

void router_set_model(struct router *r, const struct served *m, struct tokenizer *tok)
{
    struct model_box *b = xcalloc(1, sizeof(*b)), *old;

    b->pub = *m;
    b->pub.tok = tok;
    b->tok = tok;
    atomic_init(&b->refs, 1);
    pthread_mutex_lock(&r->lock);
    old = r->model;
    r->model = b;
    pthread_mutex_unlock(&r->lock);
    router_unref(r, old ? &old->pub : NULL);
}

/* ---- requests: HTTP threads ---- */

/* NULL, 0 stay NULL; -1 when there is no memory. */
static int copy_array(const void **to, const void *from, int32_t n, size_t size)
{
    void *p;

    *to = NULL;
    if (n <= 0)
        return 0;
    p = try_calloc((size_t)n, size);
    if (!p)
        return -1;
    memcpy(p, from, (size_t)n * size);
    *to = p;
    return 0;
}

static struct req *req_new(const struct gen_submit *g, const struct served *m)
{
    struct req *q = try_calloc(1, sizeof(*q));
    const struct gen_params *p = &g->params;

    if (!q)
        return NULL;
    q->sink = g->sink;
    q->add.params = *p;
    snprintf(q->label, sizeof(q->label), "%s", g->label ? g->label : "");
    snprintf(q->model, sizeof(q->model), "%s", m->name);
    q->n_prompt = p->n_prompt;
    q->max_tokens = p->max_tokens;
    q->start_us = clock_now_us(clock_real());
    q->first_us = -1;
    if (copy_array((const void **)&q->add.prompt, g->prompt, p->n_prompt,
                   sizeof(int32_t)) < 0 ||
        copy_array((const void **)&q->add.stops, g->stops, p->n_stop, sizeof(int32_t)) <
            0 ||
        copy_array((const void **)&q->add.biases, g->biases, p->n_bias,
                   sizeof(struct step_bias)) < 0) {
        req_free(q);
        return NULL;
    }
    return q;
}

/* Why the instance takes no request now; 0 when it does. Under the lock. */
static int not_ready(const struct router *r, struct err *e)
{
    const struct instance_status *s = &r->inst;
    int64_t left = (s->retry_at_us - clock_now_us(clock_real()) + 999999) / 1000000;
    const char *why = s->error[0] ? s->error : "it has not been started";

    if (r->draining)
        return err_set(e, ERR_UNAVAIL,
                       "the server is stopping and takes no new requests");
    switch (s->state) {
    case INSTANCE_READY:
        return 0;
    case INSTANCE_STARTING:
        return err_set(e, ERR_UNAVAIL, "the engine of '%s' is starting", s->model);
    case INSTANCE_LOADING:
        return err_set(e, ERR_UNAVAIL, "'%s' is loading, %d %% done", s->model,
                       (int)(s->load_done * 100));
    case INSTANCE_BACKOFF:
    case INSTANCE_FAILED:
        return err_set(e, ERR_UNAVAIL, "'%s' is not served: %s; next try in %lld s",
                       s->model, why, (long long)(left > 0 ? left : 0));
    default:
        return err_set(e, ERR_UNAVAIL, "'%s' is not served: the instance is %s", s->model,
                       instance_state_name(s->state));
    }
}

static void ring(struct router *r) { (void)queue_push(r->bell, r); }

/* All of q[0..n) into table and outbox, or none. */
static int enter(struct router *r, struct req **q, int n, uint64_t *ret_ids,
                 struct err *e)
{
    int rc;

    pthread_mutex_lock(&r->lock);
    rc = not_ready(r, e);
    if (rc == 0 && r->n_live + n > r->max_live)
        rc = err_set(e, ERR_BUSY, "the queue is full: %d requests are running or waiting",
                     r->n_live);
    for (int i = 0; rc == 0 && i < n; i++) {
        q[i]->id = q[i]->add.params.id = ret_ids[i] = r->next_id++;
        q[i]->add.params.group = n > 1 ? ret_ids[0] : 0;
        list_push(&r->bucket[q[i]->id % BUCKETS], &q[i]->link);
        list_push(&r->outbox, &q[i]->outbox);
        r->n_live++;
    }
    pthread_mutex_unlock(&r->lock);
    return rc;
}

int router_submit(struct router *r, const struct served *m, struct gen_submit *subs,
                  int n, uint64_t *ret_ids, struct err *e)
{
    struct req **q = xcalloc((size_t)n, sizeof(struct req *));
    int rc = 0;

    for (int i = 0; rc == 0 && i < n; i++) {
        q[i] = req_new(&subs[i], m);
        if (!q[i])
            rc = err_set(e, ERR_NOMEM, "no memory for the request");
    }
    if (rc == 0)
        rc = enter(r, q, n, ret_ids, e);
    for (int i = 0; i < n; i++) {
        if (rc < 0)
            req_free(q[i]);
        else
            subs[i].params.id = ret_ids[i];
    }
    free(q);
    if (rc == 0)
        ring(r);
    return rc;
}

static struct req *find(struct router *r, uint64_t id)
{
    list_for(it, &r->bucket[id % BUCKETS])
    {
        struct req *q = list_entry(it, struct req, link);
        if (q->id == id)
            return q;
    }
    return NULL;
}

void router_cancel(struct router *r, uint64_t id)
{
    struct req *q;

    pthread_mutex_lock(&r->lock);
    q = find(r, id);
    if (q && !q->cancelled) {
        q->cancelled = true;
        if (q->sent) /* else its order is still in the outbox */
            list_push(&r->outbox, &q->outbox);
    }
    pthread_mutex_unlock(&r->lock);
    if (q)
        ring(r);
}

/* ---- requests: control thread ---- */

int router_fd(const struct router *r) { return queue_fd(r->bell); }

/* Out of the table; the caller owns it. Under the lock. */
static void leave(struct router *r, struct req *q)
{
    list_del(&q->link);
    if (q->outbox.next)
        list_del(&q->outbox);
    r->n_live--;
    r->n_sent -= q->sent;
}

/* Next request with an order, off the outbox. */
static struct req *next_order(struct router *r, bool *ret_was_sent)
{
    struct req *q = NULL;

    pthread_mutex_lock(&r->lock);
    if (!list_empty(&r->outbox)) {
        q = list_entry(r->outbox.next, struct req, outbox);
        list_del(&q->outbox);
        *ret_was_sent = q->sent;
        if (!q->sent && q->cancelled) {
            leave(r, q);
        } else if (!q->sent) {
            q->sent = true;
            r->n_sent++;
        }
    }
    pthread_mutex_unlock(&r->lock);
    return q;
}

/* Cancelled before the engine heard of it. */
static void abort_unsent(struct req *q)
{
    struct gen_finish f = {.reason = FINISH_ABORT, .stop_id = -1};

    f.n_prompt = q->n_prompt;
    f.queue_us = clock_now_us(clock_real()) - q->start_us;
    q->sink.finish(q->sink.arg, &f);
    req_free(q);
}

enum router_order router_take(struct router *r, struct wire_add *ret_add,
                              uint64_t *ret_id)
{
    bool was_sent = false;
    struct req *q;

    while (queue_pop(r->bell))
        continue;
    req_free(r->taken);
    r->taken = NULL;
    while ((q = next_order(r, &was_sent)) && !was_sent && !q->sent)
        abort_unsent(q);
    if (!q)
        return ROUTER_NOTHING;
    *ret_id = q->id;
    if (was_sent)
        return ROUTER_CANCEL;
    /* the arrays go to a holder of their own: the request may end before the next call */
    r->taken = xcalloc(1, sizeof(*r->taken));
    r->taken->add = q->add;
    q->add.prompt = q->add.stops = NULL;
    q->add.biases = NULL;
    *ret_add = r->taken->add;
    return ROUTER_ADD;
}

void router_tokens(struct router *r, uint64_t id, const struct step_token *toks, int n,
                   bool scored)
{
    struct gen_sink sink = {0};
    struct req *q;

    pthread_mutex_lock(&r->lock);
    q = find(r, id);
    if (q) {
        sink = q->sink;
        if (!scored) {
            q->n_out += n;
            if (q->first_us < 0)
                q->first_us = clock_now_us(clock_real());
        }
    }
    pthread_mutex_unlock(&r->lock);
    if (q)
        sink.tokens(sink.arg, toks, n, scored);
}

void router_finish(struct router *r, uint64_t id, const struct gen_finish *f)
{
    struct req *q;

    pthread_mutex_lock(&r->lock);
    q = find(r, id);
    if (q)
        leave(r, q);
    pthread_mutex_unlock(&r->lock);
    if (!q)
        return;
    q->sink.finish(q->sink.arg, f);
    req_free(q);
}

/* Any request of the table, out of it. */
static struct req *leave_any(struct router *r)
{
    struct req *q = NULL;

    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < BUCKETS && !q && r->n_live; i++) {
        if (list_empty(&r->bucket[i]))
            continue;
        q = list_entry(r->bucket[i].next, struct req, link);
        leave(r, q);
    }
    pthread_mutex_unlock(&r->lock);
    return q;
}

void router_fail_all(struct router *r, const struct err *why)
{
    struct gen_finish f = {.reason = FINISH_ERROR, .stop_id = -1, .error = why};
    struct req *q;

    while ((q = leave_any(r))) {
        f.n_prompt = q->n_prompt;
        f.n_out = q->n_out;
        q->sink.finish(q->sink.arg, &f);
        req_free(q);
    }
}

int router_live(struct router *r, int *ret_sent)
{
    int n;

    pthread_mutex_lock(&r->lock);
    n = r->n_live;
    if (ret_sent)
        *ret_sent = r->n_sent;
    pthread_mutex_unlock(&r->lock);
    return n;
}

void router_set_instance(struct router *r, const struct instance_status *s)
{
    pthread_mutex_lock(&r->lock);
    r->inst = *s;
    pthread_mutex_unlock(&r->lock);
    metric_set(r->page, M_READY, 0, s->state == INSTANCE_READY);
}

void router_drain(struct router *r)
{
    pthread_mutex_lock(&r->lock);
    r->draining = true;
    pthread_mutex_unlock(&r->lock);
    metric_set(r->page, M_READY, 0, 0);
}

/* ---- snapshots ---- */

int router_ready(struct router *r, struct err *e)
{
    int rc;

    pthread_mutex_lock(&r->lock);
    rc = not_ready(r, e);
    pthread_mutex_unlock(&r->lock);
    return rc;
}

int router_retry_after(struct router *r)
{
    int64_t left;
    int s = 1;

    pthread_mutex_lock(&r->lock);
    left = r->inst.retry_at_us - clock_now_us(clock_real());
    if (r->draining)
        s = RETRY_MAX_S;
    else if (r->inst.state == INSTANCE_BACKOFF || r->inst.state == INSTANCE_FAILED)
        s = left > 0 ? (int)(left / 1000000) + 2 : 2; /* and the time to load */
    else if (r->inst.state == INSTANCE_LOADING)
        s = 2;
    pthread_mutex_unlock(&r->lock);
    return s < RETRY_MAX_S ? s : RETRY_MAX_S;
}

int router_instances(struct router *r, struct instance_status *ret, int max)
{
    const struct metric_page *p = r->engine_page;

    if (max < 1)
        return 0;
    pthread_mutex_lock(&r->lock);
    ret[0] = r->inst;
    if (r->draining && ret[0].state == INSTANCE_READY)
        ret[0].state = INSTANCE_DRAINING;
    pthread_mutex_unlock(&r->lock);
    ret[0].running = (int)metric_get(p, M_RUNNING, 0);
    ret[0].waiting = (int)metric_get(p, M_WAITING, 0);
    ret[0].kv_used = (int)metric_get(p, M_KV_BLOCKS_USED, 0);
    ret[0].kv_cached = (int)metric_get(p, M_KV_BLOCKS_CACHED, 0);
    return 1;
}

static void describe(const struct req *q, int64_t now, struct request_status *out)
{
    memset(out, 0, sizeof(*out));
    out->id = q->id;
    memcpy(out->label, q->label, sizeof(out->label));
    memcpy(out->model, q->model, sizeof(out->model));
    out->n_prompt = q->n_prompt;
    out->n_out = q->n_out;
    out->max_tokens = q->max_tokens;
    out->age_us = now - q->start_us;
    out->ttft_us = q->first_us < 0 ? -1 : q->first_us - q->start_us;
}

static int by_id(const void *a, const void *b)
{
    const struct request_status *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

int router_requests(struct router *r, struct request_status *ret, int max)
{
    int64_t now = clock_now_us(clock_real());
    int n = 0;

    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < BUCKETS && r->n_live; i++)
        list_for(it, &r->bucket[i])
        {
            if (n < max)
                describe(list_entry(it, struct req, link), now, &ret[n++]);
        }
    pthread_mutex_unlock(&r->lock);
    qsort(ret, (size_t)n, sizeof(*ret), by_id);
    return n;
}

/* Both pages live as long as the router, so there is nothing to hold. */
int router_pages_get(struct router *r, struct metric_page **ret, int max)
{
    int n = 0;

    if (n < max)
        ret[n++] = r->page;
    if (n < max)
        ret[n++] = r->engine_page;
    return n;
}

void router_pages_put(struct router *r) { (void)r; }
