/* tests/unit/fake_router.h - a router whose engine is the test itself.
 *
 * One model "fake" whose tokens are bytes (id = byte value), with a ChatML template whose
 * two marks are the ids 256 and 257; 257 ends a text. Nothing moves until the test calls
 * fake_step(): each running request then gets its next byte of FAKE_TEXT (again and again
 * with ignore_eos), and its finish at the end or at max_tokens. So tests are exact about
 * who has got what, without sleeping. Also stands in for the tokenizer and the template,
 * that a test of HTTP may not need a vocabulary. Thread-safe where the router is. */
#ifndef TESTS_FAKE_ROUTER_H
#define TESTS_FAKE_ROUTER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/metric.h"
#include "daemon/ctrl/fleet.h"
#include "daemon/ctrl/router.h"
#include "daemon/serve/metrics.h"
#include "daemon/serve/tokenizer.h"

#define FAKE_TEXT "Zw\xc3\xb6lf Boxk\xc3\xa4mpfer \xf0\x9f\xa6\x8a jagen Viktor."
enum { FAKE_MAX = 256, FAKE_CTX = 4096, FAKE_EOS = 257 };

struct fake_req {
    uint64_t id;
    struct gen_params params;
    struct gen_sink sink;
    int32_t *prompt;
    int n_out;
    bool scored, canceled;
    char label[72];
};

struct router {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* submitted or canceled */
    struct served model;
    struct metric_page *page;
    struct fake_req req[FAKE_MAX];
    int n, max_waiting;
    uint64_t next_id;
    enum err_code not_ready; /* OK, or what readyz and submit say */
    int n_canceled, n_submitted;
    struct gen_params last; /* of the last request */
};

/* GPT-2's spelling of a byte: printable ones are themselves, others follow 255. */
static inline int fake_spelling(int byte)
{
    int n = 256;

    for (int b = 0; b < 256; b++) {
        bool plain = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        if (b == byte)
            return plain ? b : n;
        n += !plain;
    }
    return -1;
}

static inline struct tokenizer *fake_tokenizer(void)
{
    static const char config[] = "{\"eos_token\":\"<|im_end|>\"}";
    struct tokenizer *t = NULL;
    struct buf b;
    struct err e;

    buf_init(&b, 0);
    buf_puts(&b, "{\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (int i = 0; i < 256; i++)
        buf_printf(&b, "%s\"\\u%04x\":%d", i ? "," : "", fake_spelling(i), i);
    buf_puts(&b,
             "}},\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
             "\"added_tokens\":["
             "{\"id\":256,\"content\":\"<|im_start|>\",\"special\":true},"
             "{\"id\":257,\"content\":\"<|im_end|>\",\"special\":true}]}");
    if (tokenizer_open_json("fake", b.p, b.len, config, strlen(config), &t, &e) < 0) {
        fprintf(stderr, "%s\n", e.msg);
        abort();
    }
    buf_done(&b);
    return t;
}

static inline void fake_init(struct router *r)
{
    struct err e;

    memset(r, 0, sizeof(*r));
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    snprintf(r->model.name, sizeof(r->model.name), "fake");
    snprintf(r->model.family, sizeof(r->model.family), "none");
    r->model.chat = TEMPLATE_CHATML;
    r->model.n_ctx = FAKE_CTX;
    r->model.n_vocab = 258;
    r->model.tok = fake_tokenizer();
    r->max_waiting = FAKE_MAX;
    if (metric_page_new(metrics_defs, METRICS_N, NULL, &r->page, &e) < 0)
        abort();
}

static inline void fake_finish(struct router *r, int i, enum finish_reason reason,
                               const struct err *e)
{
    struct fake_req q;
    struct gen_finish f = {
        .reason = reason, .stop_id = -1, .error = e, .instance = "main"};

    pthread_mutex_lock(&r->lock);
    q = r->req[i];
    r->req[i] = r->req[--r->n];
    pthread_mutex_unlock(&r->lock);
    f.n_prompt = q.params.n_prompt;
    f.n_out = q.n_out;
    f.stop_id = reason == FINISH_STOP ? FAKE_EOS : -1;
    q.sink.finish(q.sink.arg, &f);
    free(q.prompt);
}

static inline struct step_token fake_token(int32_t id, int n_top)
{
    struct step_token t = {.id = id, .logprob = -0.5f, .n_top = n_top > 0 ? n_top : 0};

    for (int i = 0; i < t.n_top; i++) {
        t.top_id[i] = (id + i) % 256;
        t.top_logprob[i] = -0.5f - (float)i;
    }
    return t;
}

static inline void fake_advance(struct router *r, int i)
{
    struct fake_req *q = &r->req[i];
    struct step_token t;
    bool canceled;

    pthread_mutex_lock(&r->lock);
    canceled = q->canceled;
    pthread_mutex_unlock(&r->lock);
    if (canceled) {
        fake_finish(r, i, FINISH_ABORT, NULL);
        return;
    }
    if (!q->scored && q->params.prompt_logprobs) {
        for (int k = 1; k < q->params.n_prompt; k++) {
            t = fake_token(q->prompt[k], q->params.n_top);
            q->sink.tokens(q->sink.arg, &t, 1, true);
        }
        q->scored = true;
    }
    if (q->n_out == (int)strlen(FAKE_TEXT) && !q->params.ignore_eos) {
        fake_finish(r, i, FINISH_STOP, NULL);
        return;
    }
    t = fake_token((unsigned char)FAKE_TEXT[q->n_out++ % (int)strlen(FAKE_TEXT)],
                   q->params.n_top);
    q->sink.tokens(q->sink.arg, &t, 1, false);
    if (q->n_out >= q->params.max_tokens)
        fake_finish(r, i, FINISH_LENGTH, NULL);
}

/* The control thread's part; only one thread calls it. Returns requests still running. */
static inline int fake_step(struct router *r)
{
    pthread_mutex_lock(&r->lock);
    int n = r->n;
    pthread_mutex_unlock(&r->lock);
    for (int i = n - 1; i >= 0; i--)
        fake_advance(r, i);
    pthread_mutex_lock(&r->lock);
    n = r->n;
    pthread_mutex_unlock(&r->lock);
    return n;
}

static inline int fake_read(struct router *r, const int *count)
{
    int n;

    pthread_mutex_lock(&r->lock);
    n = *count;
    pthread_mutex_unlock(&r->lock);
    return n;
}

/* Until as many requests were submitted, or canceled, in all. */
static inline void fake_wait(struct router *r, const int *count, int want)
{
    pthread_mutex_lock(&r->lock);
    while (*count < want)
        pthread_cond_wait(&r->changed, &r->lock);
    pthread_mutex_unlock(&r->lock);
}

/* The engine died: every request ends with UNAVAIL. */
static inline void fake_crash(struct router *r)
{
    struct err e;

    err_set(&e, ERR_UNAVAIL, "the engine ended unexpectedly and is being restarted");
    while (r->n > 0)
        fake_finish(r, 0, FINISH_ERROR, &e);
}

static inline void fake_done(struct router *r)
{
    while (r->n > 0)
        fake_finish(r, 0, FINISH_ABORT, NULL);
    metric_page_free(r->page);
    tokenizer_free((struct tokenizer *)r->model.tok);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
}

/* ---- daemon/ctrl/router.h ---- */

const struct served *router_model(struct router *r, const char *name, struct err *e)
{
    if (!name || !*name || !strcmp(name, r->model.name))
        return &r->model;
    err_param(e, ERR_NOTFOUND, "model", "there is no such model; there is 'fake'");
    return NULL;
}

void router_unref(struct router *r, const struct served *m) { (void)r, (void)m; }

void router_hot(struct router *r, const struct served *m, struct served_hot *ret)
{
    (void)r, (void)m;
    *ret = (struct served_hot){.temperature = 0.6f, .top_p = 0.9f};
}

int router_models(struct router *r, const struct served **ret, int max)
{
    (void)max;
    ret[0] = &r->model;
    return 1;
}

int router_submit(struct router *r, const struct served *m, struct gen_submit *subs,
                  int n, uint64_t *ret_ids, struct err *e)
{
    int rc = 0;

    (void)m;
    pthread_mutex_lock(&r->lock);
    if (r->not_ready != ERR_OK)
        rc = err_set(e, r->not_ready, "the model is loading");
    else if (r->n + n > r->max_waiting)
        rc = err_set(e, ERR_BUSY, "the queue is full");
    for (int i = 0; rc == 0 && i < n; i++) {
        struct fake_req *q = &r->req[r->n++];
        size_t bytes = (size_t)subs[i].params.n_prompt * sizeof(int32_t);

        memset(q, 0, sizeof(*q));
        ret_ids[i] = subs[i].params.id = q->id = ++r->next_id;
        q->params = r->last = subs[i].params;
        q->sink = subs[i].sink;
        q->prompt = xmalloc(bytes);
        memcpy(q->prompt, subs[i].prompt, bytes);
        snprintf(q->label, sizeof(q->label), "%s", subs[i].label);
        r->n_submitted++;
    }
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
    return rc;
}

void router_cancel(struct router *r, uint64_t id)
{
    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < r->n; i++)
        if (r->req[i].id == id && !r->req[i].canceled) {
            r->req[i].canceled = true;
            r->n_canceled++;
        }
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

int router_ready(struct router *r, struct err *e)
{
    return r->not_ready == ERR_OK ? 0 : err_set(e, r->not_ready, "the model is loading");
}

bool router_ended(struct router *r, const char *name)
{
    (void)r, (void)name;
    return false;
}

int router_degraded(struct router *r, struct err *ret, int max)
{
    return max > 0 && router_ready(r, ret) < 0;
}

int router_retry_after(struct router *r)
{
    (void)r;
    return 3;
}

const char *instance_state_name(enum instance_state s)
{
    return s == INSTANCE_READY ? "ready" : "loading";
}

int router_instances(struct router *r, struct instance_status *ret, int max)
{
    (void)max;
    memset(ret, 0, sizeof(*ret));
    snprintf(ret->name, sizeof(ret->name), "main");
    ret->state = r->not_ready == ERR_OK ? INSTANCE_READY : INSTANCE_LOADING;
    ret->running = r->n;
    return 1;
}

int router_pools(struct router *r, struct pool_status *ret, int max)
{
    (void)r, (void)ret, (void)max;
    return 0;
}

int router_pool_windows(struct router *r, struct pool_window *ret, int max)
{
    (void)r, (void)ret, (void)max;
    return 0;
}

int router_requests(struct router *r, struct request_status *ret, int max)
{
    int n;

    pthread_mutex_lock(&r->lock);
    for (n = 0; n < r->n && n < max; n++) {
        memset(&ret[n], 0, sizeof(ret[n]));
        ret[n].id = r->req[n].id;
        snprintf(ret[n].label, sizeof(ret[n].label), "%s", r->req[n].label);
        ret[n].n_out = r->req[n].n_out;
        ret[n].ttft_us = -1;
    }
    pthread_mutex_unlock(&r->lock);
    return n;
}

int router_pages_get(struct router *r, struct metric_page **ret, int max)
{
    (void)max;
    ret[0] = r->page;
    return 1;
}

int router_groups_get(struct router *r, struct page_group *ret, int max)
{
    (void)max;
    ret[0] = (struct page_group){.pages = {r->page}, .n = 1};
    return 1;
}

struct metric_page *router_model_page(struct router *r, const char *model)
{
    (void)model;
    return r->page;
}

void router_pages_put(struct router *r) { (void)r; }

/* ---- daemon/ctrl/fleet.h: the real one would bring the real router along ---- */

int fleet_order(struct fleet *f, const char *instance, enum fleet_order o,
                const char *actor, const char *origin, const char *reason, struct err *e)
{
    (void)f, (void)o, (void)actor, (void)origin, (void)reason;
    return err_set(e, ERR_NOTFOUND, "there is no instance '%s'", instance);
}

#endif
