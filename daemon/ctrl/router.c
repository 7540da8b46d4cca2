/* daemon/ctrl/router.c - the table of requests between HTTP threads and the engines.
 *
 *   HTTP thread                 under the lock              control thread
 *   router_submit  ---->  request in table, order in outbox  ----> target_take -> engine
 *   router_cancel  ---->  mark, order in outbox              ----> target_take -> engine
 *   sink.tokens    <------------------------------------------- target_tokens <- engine
 *   sink.finish    <--- removed from the table --------------- target_finish <- engine
 *
 * A request is in the table from submit to finish and holds its target as long. Only the
 * control thread removes one, and it calls the sink without the lock, so a sink may
 * submit and cancel. What a target has in the table when its engine dies fails or goes on
 * (target_lost.c); what arrives late about a failed request finds no entry. The
 * doorbell is a queue of one token: full means that it has been rung. */
#include "daemon/ctrl/router.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/metric.h"
#include "base/queue.h"
#include "daemon/ctrl/router_ctl.h"
#include "daemon/ctrl/affinity.h"
#include "daemon/ctrl/router_int.h"
#include "daemon/ctrl/target.h"
#include "daemon/serve/metrics.h"
#include "daemon/serve/tokenizer.h"

int router_new(struct metric_page *page, struct router **ret, struct err *e)
{
    struct router *r = xcalloc(1, sizeof(*r));

    r->accounts[0] = xcalloc(1, sizeof(struct account));
    r->n_accounts = 1;
    if (metric_page_new(metrics_defs, METRICS_N, NULL, &r->accounts[0]->page, e) < 0) {
        free(r->accounts[0]);
        free(r);
        return -1;
    }
    pthread_mutex_init(&r->lock, NULL);
    for (int i = 0; i < ROUTER_BUCKETS; i++)
        list_init(&r->bucket[i]);
    list_init(&r->targets);
    list_init(&r->pages);
    r->next_id = 1;
    r->page = page;
    *ret = r;
    return 0;
}

void router_free(struct router *r)
{
    if (!r)
        return;
    router_sweep(r);
    for (int i = 0; i < r->n_accounts; i++) {
        metric_page_free(r->accounts[i]->page);
        free(r->accounts[i]);
    }
    pthread_mutex_destroy(&r->lock);
    free(r);
}

void router_drain(struct router *r)
{
    pthread_mutex_lock(&r->lock);
    r->draining = true;
    pthread_mutex_unlock(&r->lock);
    metric_set(r->page, M_READY, 0, 0);
}

int router_live(struct router *r)
{
    int n = 0;

    pthread_mutex_lock(&r->lock);
    list_for(it, &r->targets) n += list_entry(it, struct target, link)->n_live;
    pthread_mutex_unlock(&r->lock);
    return n;
}

/* ---- models ---- */

static const char *name_of(const struct target *t)
{
    return t->model ? t->model->pub.name : t->st.model;
}

/* An engine that is still to be loaded beside one of its instance that was: the name of
 * the latter counts. */
static bool shadowed(const struct router *r, const struct target *t)
{
    list_for(it, &r->targets)
    {
        const struct target *o = list_entry(it, struct target, link);
        if (!t->model && o->model && !strcmp(o->st.name, t->st.name))
            return true;
    }
    return false;
}

/* The more, the sooner it is asked: ready and alive, not draining, ever loaded. */
static int rank(const struct target *t)
{
    if (!t->model)
        return 0;
    if (t->draining)
        return 1;
    return t->st.state == INSTANCE_READY && !t->silent_us ? 3 : 2;
}

static bool better(const struct target *a, const struct target *b)
{
    if (!b || rank(a) != rank(b))
        return !b || rank(a) > rank(b);
    return a->load < b->load;
}

struct target *router_named(struct router *r, const char *name)
{
    struct target *best = NULL;

    list_for(it, &r->targets)
    {
        struct target *t = list_entry(it, struct target, link);
        if ((!name || !strcmp(name_of(t), name)) && !shadowed(r, t) && better(t, best))
            best = t;
    }
    return best;
}

/* Different names, as "'a', 'b'"; returns their count. Under the lock. */
static int list_names(struct router *r, struct buf *out)
{
    int n = 0;

    list_for(it, &r->targets)
    {
        struct target *t = list_entry(it, struct target, link);
        bool seen = shadowed(r, t);

        for (struct list *b = r->targets.next; b != it && !seen; b = b->next) {
            struct target *o = list_entry(b, struct target, link);
            seen = !shadowed(r, o) && !strcmp(name_of(o), name_of(t));
        }
        if (!seen)
            buf_printf(out, "%s'%.128s'", n++ ? ", " : "", name_of(t));
    }
    return n;
}

/* The target that a request without or with a name means; NULL and why. */
static struct target *resolve(struct router *r, const char *name, struct err *e)
{
    struct target *t = router_named(r, name);
    struct buf names;
    int n;

    if (list_empty(&r->targets)) {
        err_set(e, ERR_UNAVAIL, "no model is configured");
        return NULL;
    }
    if (!router_named(r, NULL)->model) {
        err_set(e, ERR_UNAVAIL, "no model is loaded yet");
        return NULL;
    }
    buf_init(&names, 0);
    n = list_names(r, &names);
    if (!t)
        err_param(e, ERR_NOTFOUND, "model",
                  "there is no model '%.128s'; this server has %s", name, names.p);
    else if (!name && n > 1)
        err_param(e, ERR_INVALID, "model", "which model? this server has %s", names.p);
    else if (!t->model)
        router_not_ready(t, e);
    buf_done(&names);
    return t && t->model && (name || n == 1) ? t : NULL;
}

const struct served *router_model(struct router *r, const char *name, struct err *e)
{
    const struct served *m = NULL;
    struct target *t;

    pthread_mutex_lock(&r->lock);
    t = resolve(r, name && name[0] ? name : NULL, e);
    if (t) {
        atomic_fetch_add(&t->model->refs, 1);
        m = &t->model->pub;
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

void router_hot(struct router *r, const struct served *m, struct served_hot *ret)
{
    struct target *t;

    pthread_mutex_lock(&r->lock);
    t = router_named(r, m->name);
    list_for(it, &r->targets)
    {
        struct target *o = list_entry(it, struct target, link);
        if (o->model && &o->model->pub == m)
            t = o;
    }
    *ret = t ? t->hot : (struct served_hot){.temperature = 1, .top_p = 1};
    pthread_mutex_unlock(&r->lock);
}

int router_models(struct router *r, const struct served **ret, int max)
{
    int n = 0;

    pthread_mutex_lock(&r->lock);
    list_for(it, &r->targets)
    {
        struct target *t = list_entry(it, struct target, link);
        /* of several engines with one name: the one that is asked */
        if (n < max && t->model && router_named(r, t->model->pub.name) == t) {
            atomic_fetch_add(&t->model->refs, 1);
            ret[n++] = &t->model->pub;
        }
    }
    pthread_mutex_unlock(&r->lock);
    return n;
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
    if (copy_array((const void **)&q->ids, g->prompt, p->n_prompt, sizeof(int32_t)) < 0 ||
        copy_array((const void **)&q->add.stops, g->stops, p->n_stop, sizeof(int32_t)) <
            0 ||
        copy_array((const void **)&q->add.biases, g->biases, p->n_bias,
                   sizeof(struct step_bias)) < 0) {
        router_req_free(q);
        return NULL;
    }
    q->add.prompt = q->ids;
    q->cap = p->n_prompt;
    return q;
}

/* Only engines of the file that the prompt was encoded for. */
bool router_same_model(const struct served *a, const struct served *b)
{
    return a == b || (!strcmp(a->name, b->name) && !strcmp(a->path, b->path) &&
                      a->created_s == b->created_s && a->file_bytes == b->file_bytes &&
                      a->n_vocab == b->n_vocab);
}

int router_not_ready(const struct target *t, struct err *e)
{
    const struct instance_status *s = &t->st;
    int64_t left = (s->retry_at_us - clock_now_us(clock_real()) + 999999) / 1000000;
    const char *why = s->error[0] ? s->error : "it has not been started";

    if (t->r->draining)
        return err_set(e, ERR_UNAVAIL,
                       "the server is stopping and takes no new requests");
    switch (s->state) {
    case INSTANCE_READY:
        if (!t->draining)
            return 0;
        return err_set(e, ERR_UNAVAIL, "'%s' is not served: the instance is draining",
                       s->model);
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
        return err_set(e, ERR_UNAVAIL, "'%s' is not served: the instance is %s%s%s",
                       s->model, instance_state_name(s->state), s->error[0] ? ": " : "",
                       s->error);
    }
}

int router_not_answering(const struct target *t, struct err *e)
{
    if (router_not_ready(t, e) < 0)
        return -1;
    if (!t->silent_us)
        return 0;
    return err_set(
        e, ERR_UNAVAIL,
        "'%s' does not answer: its engine has given no sign of life for %.1f s",
        t->st.model, (double)(clock_now_us(clock_real()) - t->silent_us) / 1e6);
}

/* All of q[0..n) into table and outbox, or none. */
static struct target *admit(struct router *r, const struct served *m,
                            const struct gen_submit *g, struct req **q, int n,
                            uint64_t *ret_ids, struct err *e)
{
    struct router_prefix p = router_prefix_of(g); /* all are choices of one prompt */
    struct target *t;
    bool here;

    pthread_mutex_lock(&r->lock);
    t = router_choose(r, m, g, n, &p, e);
    here = t && t->sent && p.n && affinity_match(t->sent, p.hash, p.n) == p.n;
    if (t && t->sent && p.n)
        affinity_add(t->sent, p.hash, p.n);
    for (int i = 0; t && i < n; i++) {
        q[i]->id = q[i]->add.params.id = ret_ids[i] = r->next_id++;
        q[i]->add.params.group = n > 1 ? ret_ids[0] : 0;
        q[i]->target = t;
        q[i]->at_home = here;
        q[i]->left = q[i]->n_prompt + router_max_answer(m, &q[i]->add.params);
        list_push(&r->bucket[q[i]->id % ROUTER_BUCKETS], &q[i]->link);
        list_push(&t->outbox, &q[i]->outbox);
        t->n_live++;
        t->load += q[i]->left;
    }
    if (t) /* under the lock: the target may be freed once its requests have ended */
        (void)queue_push(t->bell, t);
    pthread_mutex_unlock(&r->lock);
    free(p.hash);
    return t;
}

/* ---- off a target that drains ---- */

/* The orders from `it` on that are choices of one request, none of which was sent. */
static int group_of(const struct target *t, const struct list *it)
{
    const struct req *first = list_entry(it, struct req, outbox);
    int n = 0;

    for (; it != &t->outbox; it = it->next) {
        const struct req *q = list_entry(it, struct req, outbox);
        if (q->sent || q->cancelled ||
            (n && (!first->add.params.group ||
                   q->add.params.group != first->add.params.group)))
            break;
        n++;
    }
    return n;
}

static void move(struct target *from, struct target *to, struct req *q)
{
    list_del(&q->outbox);
    from->n_live--;
    from->load -= q->left;
    q->target = to;
    to->n_live++;
    to->load += q->left;
    list_push(&to->outbox, &q->outbox);
}

void router_move(struct router *r, struct target *from)
{
    struct list *it = from->outbox.next;

    while (from->model && it != &from->outbox) {
        struct req *q = list_entry(it, struct req, outbox);
        const struct gen_submit g = {.params = q->add.params, .prompt = q->add.prompt};
        int n = group_of(from, it);
        struct router_prefix p =
            n ? router_prefix_of(&g) : (struct router_prefix){NULL, 0};
        struct target *to =
            n ? router_choose(r, &from->model->pub, &g, n, &p, NULL) : NULL;

        if (to == from)
            to = NULL;
        if (to && to->sent && p.n)
            affinity_add(to->sent, p.hash, p.n);
        free(p.hash);
        for (int i = 0; i < (n ? n : 1); i++) {
            struct list *next = it->next;
            if (to)
                move(from, to, list_entry(it, struct req, outbox));
            it = next;
        }
        if (to)
            (void)queue_push(to->bell, to);
    }
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
    if (rc == 0 && !admit(r, m, subs, q, n, ret_ids, e))
        rc = -1;
    for (int i = 0; i < n; i++) {
        if (rc < 0)
            router_req_free(q[i]);
        else
            subs[i].params.id = ret_ids[i];
    }
    free(q);
    return rc;
}

struct req *router_find(struct router *r, uint64_t id)
{
    list_for(it, &r->bucket[id % ROUTER_BUCKETS])
    {
        struct req *q = list_entry(it, struct req, link);
        if (q->id == id)
            return q;
    }
    return NULL;
}

struct req *router_heard(struct router *r, uint64_t wire_id)
{
    struct req *q = router_find(r, wire_id & (((uint64_t)1 << ROUTER_ID_BITS) - 1));

    return q && q->add.params.id == wire_id ? q : NULL;
}

void router_cancel(struct router *r, uint64_t id)
{
    struct req *q;

    pthread_mutex_lock(&r->lock);
    q = router_find(r, id);
    if (q && !q->cancelled) {
        q->cancelled = true;
        if (q->sent) /* else its order is still in the outbox */
            list_push(&q->target->outbox, &q->outbox);
    }
    if (q)
        (void)queue_push(q->target->bell, q->target);
    pthread_mutex_unlock(&r->lock);
}

void router_leave(struct router *r, struct req *q)
{
    struct target *t = q->target;

    memcpy(r->ended[r->n_ended++ % ROUTER_ENDED], q->label, sizeof(q->label));
    split_release(q);
    list_del(&q->link);
    if (q->outbox.next)
        list_del(&q->outbox);
    t->n_live--;
    t->n_sent -= q->sent;
    t->load -= q->left;
}

void router_req_free(struct req *q)
{
    if (!q)
        return;
    free(q->leg.held);
    free(q->ids);
    free((void *)q->add.stops);
    free((void *)q->add.biases);
    free(q);
}
