/* daemon/api/gen.c - the generations of one request: their life; their text is
 * gen_text.c.
 *
 * Life: gen_start makes the object with one reference for the connection, one for itself
 * and one for each choice that the router accepted; a choice's finish drops its own. So
 * sinks outlive a client that leaves, and the connection outlives nothing it does not
 * need. Cancelling is asked for by id and confirmed by the finish, which always comes. */
#include "daemon/api/gen.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "daemon/api/answer.h"
#include "daemon/api/conn.h"
#include "daemon/api/gen_int.h"
#include "daemon/api/rules.h"
#include "daemon/api/params.h"
#include "daemon/api/server.h"
#include "daemon/api/sse.h"
#include "daemon/api/thought.h"
#include "daemon/ctrl/router.h"
#include "daemon/serve/metrics.h"
#include "daemon/serve/textout.h"

static void gen_unref(struct gen *g)
{
    if (atomic_fetch_sub(&g->refs, 1) != 1)
        return;
    for (int i = 0; i < g->n_choices; i++) {
        textout_free(g->choices[i].out);
        thought_free(g->choices[i].thought);
        buf_done(&g->choices[i].thoughts);
        buf_done(&g->choices[i].text);
        logprobs_done(&g->choices[i].lp);
    }
    for (int i = 0; i < g->n_prompts; i++)
        tok_ids_done(&g->prompts[i]);
    free(g->prompts);
    free(g->max_tokens);
    buf_done(&g->scratch);
    sse_done(&g->sse);
    router_unref(g->h->router, g->m);
    params_free(g->p);
    conn_unref(g->c);
    http_unref(g->h);
    free(g);
}

/* ---- cancelling ---- */

static void cancel_choice(struct choice *ch)
{
    uint64_t id;

    pthread_mutex_lock(&ch->g->c->lock);
    id = ch->ended ? 0 : ch->id;
    pthread_mutex_unlock(&ch->g->c->lock);
    if (id)
        router_cancel(ch->g->h->router, id);
}

static void cancel_all(struct gen *g)
{
    for (int i = 0; i < g->n_choices; i++)
        cancel_choice(&g->choices[i]);
}

static void on_gone(void *arg)
{
    struct gen *g = arg;
    bool counts;

    pthread_mutex_lock(&g->c->lock);
    counts = g->n_left > 0 && !g->failed;
    g->failed = true;
    if (counts)
        account_left(g->c);
    pthread_mutex_unlock(&g->c->lock);
    if (counts)
        metric_add(g->c->page, M_CANCELED, 0, 1);
    cancel_all(g);
}

static void on_hold(void *arg)
{
    struct gen *g = arg;

    atomic_fetch_add(&g->refs, 1);
}

static void on_release(void *arg) { gen_unref(arg); }

/* Lock held. The first failure is what the client learns. accepted: by an engine. */
static void fail(struct gen *g, const struct err *e, bool accepted)
{
    if (g->failed)
        return;
    g->failed = true;
    account_error(g->c, e, accepted);
    if (!g->c->streaming) {
        conn_answer_err_locked(g->c, e);
        return;
    }
    sse_error(e, &g->c->out);
    conn_flush(g->c);
    conn_end_locked(g->c);
}

/* ---- sinks: control thread ---- */

static void time_tokens(struct choice *ch, int n)
{
    struct gen *g = ch->g;
    int64_t now = clock_now_us(clock_real());

    if (ch->first_us) {
        metric_observe(g->c->page, M_ITL, (double)(now - ch->last_us) / 1e6);
        if (now - ch->last_us > ch->gap_us)
            ch->gap_us = now - ch->last_us;
    } else {
        ch->first_us = now;
        if (g->p->stream)
            g->c->firsts++;
        else
            metric_observe(g->c->page, M_TTFT, (double)(now - g->c->start_us) / 1e6);
    }
    ch->last_us = now;
    ch->n_out += n;
}

static void on_tokens(void *arg, const struct step_token *toks, int n, bool scored)
{
    struct choice *ch = arg;
    struct gen *g = ch->g;
    bool stopped = false;

    pthread_mutex_lock(&g->c->lock);
    if (g->failed || g->c->gone || g->c->finished || textout_stopped(ch->out)) {
        pthread_mutex_unlock(&g->c->lock);
        return;
    }
    if (scored) {
        gen_add_scored(ch, toks, n);
    } else {
        time_tokens(ch, n);
        gen_begin(ch);
        if (g->max_tokens[ch->prompt] > 0)
            stopped = gen_push(ch, toks, n);
        if (g->p->stream)
            conn_flush(g->c);
    }
    pthread_mutex_unlock(&g->c->lock);
    if (stopped)
        cancel_choice(ch);
}

static void count_finish(struct choice *ch, enum finish_reason reason)
{
    struct gen *g = ch->g;

    metric_add(g->c->page, M_SUCCESS, (int)reason, 1);
    if (reason != FINISH_STOP && reason != FINISH_LENGTH)
        return;
    metric_observe(g->c->page, M_E2E,
                   (double)(clock_now_us(clock_real()) - g->c->start_us) / 1e6);
    if (ch->n_out > 1)
        metric_observe(g->c->page, M_TPOT,
                       (double)(ch->last_us - ch->first_us) / 1e6 / (ch->n_out - 1));
}

/* All choices have ended: the request's latencies are those of its worst choice, but for
 * the first token, which is the first of all. */
static void account(struct gen *g)
{
    struct slo_sample x = {.tpot_us = -1, .gap_us = -1};
    int64_t first_us = 0;
    struct answer_usage u;

    for (int i = 0; i < g->n_choices; i++) {
        const struct choice *ch = &g->choices[i];
        int64_t span = ch->last_us - ch->first_us, n = ch->n_out - 1;

        if (ch->first_us && (!first_us || ch->first_us < first_us))
            first_us = ch->first_us;
        if (n > 0 && (span + n - 1) / n > x.tpot_us)
            x.tpot_us = (span + n - 1) / n;
        if (n > 0 && ch->gap_us > x.gap_us)
            x.gap_us = ch->gap_us;
    }
    gen_usage(g, &u);
    x.n_prompt = (int32_t)u.prompt;
    x.n_out = (int32_t)u.completion;
    account_done(g->c, &x, g->p->stream ? 0 : first_us);
}

static void on_finish(void *arg, const struct gen_finish *f)
{
    struct choice *ch = arg;
    struct gen *g = ch->g;
    enum finish_reason reason = f->reason;
    struct answer_usage u;
    struct err e;
    bool failed;

    pthread_mutex_lock(&g->c->lock);
    ch->ended = true;
    g->n_left--;
    if (reason == FINISH_ABORT && textout_stopped(ch->out))
        reason = FINISH_STOP;
    ch->n_out = g->max_tokens[ch->prompt] == 0 ? 0
                : textout_stopped(ch->out)     ? gen_n_tokens(ch)
                                               : f->n_out;
    ch->n_prompt = f->n_prompt;
    ch->n_cached = f->n_cached;
    ch->reason = reason == FINISH_STOP ? "stop" : "length";
    count_finish(ch, reason);
    if (g->n_left == 0) { /* before the client knows: its next request may come at once */
        gen_usage(g, &u);
        conn_account(g->c, u.prompt + u.completion);
    }
    if (f->retry_us && !g->failed)
        g->c->retry_after_s = (int)((f->retry_us + 999999) / 1000000);
    if (reason == FINISH_ERROR && f->error)
        fail(g, f->error, true);
    else if (reason == FINISH_ERROR || reason == FINISH_ABORT) {
        err_set(&e, ERR_UNAVAIL, "the request was ended by the server");
        fail(g, &e, true);
    } else if (!g->failed) {
        gen_finish_text(ch);
        if (g->n_left == 0) {
            account(g);
            gen_complete(g);
        }
    }
    http_log_content(g->c, "answer", ch->text.len ? ch->text.p : "", ch->text.len);
    failed = g->failed && g->n_left > 0;
    pthread_mutex_unlock(&g->c->lock);
    if (failed)
        cancel_all(g);
    gen_unref(g);
}

/* ---- start ---- */

static void init_choice(struct gen *g, int i)
{
    struct choice *ch = &g->choices[i];
    const struct params *p = g->p;

    ch->g = g;
    ch->index = i;
    ch->prompt = i / (int)p->n;
    ch->out = textout_new(g->m->tok, p->stop, p->stop_len, p->n_stop, g->chat);
    if (g->chat)
        ch->thought = thought_new(g->m->chat, g->m->tok, params_is_open(p));
    buf_init(&ch->thoughts, 0);
    buf_init(&ch->text, 0);
    logprobs_init(&ch->lp, g->m->tok, g->chat);
    ch->lp.ids = g->p->token_ids;
}

static uint64_t random64(void)
{
    uint64_t r = 0;

    if (getrandom(&r, sizeof(r), 0) != (ssize_t)sizeof(r))
        r = (uint64_t)clock_now_us(clock_real());
    return r;
}

static void name_gen(struct gen *g)
{
    uint64_t h = 14695981039346656037ull;
    const char *parts[] = {g->m->name, g->m->main_type, g->m->format, g->h->version};

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        for (const char *s = parts[i]; *s; s++)
            h = (h ^ (unsigned char)*s) * 1099511628211ull;
    h = (h ^ g->m->file_bytes) * 1099511628211ull;
    snprintf(g->fingerprint, sizeof(g->fingerprint), "fp_%010llx",
             (unsigned long long)(h >> 24));
    snprintf(g->id, sizeof(g->id), "%s-%016llx%08llx", g->chat ? "chatcmpl" : "cmpl",
             (unsigned long long)random64(),
             (unsigned long long)(random64() & 0xffffffff));
    g->created_s = clock_wall_ms() / 1000;
}

static struct gen *gen_new(const struct gen_cfg *cfg)
{
    int n = cfg->n_prompts * (int)cfg->p->n;
    struct gen *g = xcalloc(1, sizeof(*g) + (size_t)n * sizeof(struct choice));

    atomic_init(&g->refs, 2); /* the connection's and gen_start's */
    g->c = conn_ref(cfg->c);
    g->h = cfg->c->h;
    http_ref(g->h);
    g->p = cfg->p;
    g->m = cfg->m;
    g->prompts = cfg->prompts;
    g->max_tokens = cfg->max_tokens;
    g->n_prompts = cfg->n_prompts;
    g->n_choices = g->n_left = n;
    g->chat = cfg->p->kind == PARAMS_CHAT;
    g->keep_text =
        cfg->c->rules->log_content || !cfg->p->stream || (cfg->p->logprobs && !g->chat);
    if (!cfg->p->has_seed)
        cfg->p->gen.seed = random64();
    name_gen(g);
    buf_init(&g->scratch, 0);
    sse_init(&g->sse, &(struct sse_cfg){.id = g->id,
                                        .model = g->m->name,
                                        .fingerprint = g->fingerprint,
                                        .created_s = g->created_s,
                                        .chat = g->chat,
                                        .include_usage = g->p->include_usage});
    for (int i = 0; i < n; i++)
        init_choice(g, i);
    return g;
}

static int submit_prompt(struct gen *g, int prompt, struct err *e)
{
    struct gen_submit subs[PARAMS_MAX_N] = {0};
    uint64_t ids[PARAMS_MAX_N];
    int n = (int)g->p->n, max = g->max_tokens[prompt];
    struct choice *first = &g->choices[prompt * n];
    bool cancel[PARAMS_MAX_N];

    account_targets(g->c, &g->p->gen);
    for (int k = 0; k < n; k++) {
        struct gen_submit *s = &subs[k];

        s->params = g->p->gen;
        s->params.choice = k;
        s->params.max_tokens = max > 0 ? max : 1;
        s->params.n_prompt = (int32_t)g->prompts[prompt].n;
        s->prompt = g->prompts[prompt].v;
        s->stops = g->p->stop_ids;
        s->biases = g->p->biases;
        s->sink = (struct gen_sink){on_tokens, on_finish, &first[k]};
        s->label = g->c->req_id;
    }
    atomic_fetch_add(&g->refs, n);
    if (router_submit(g->h->router, g->m, subs, n, ids, e) < 0) {
        atomic_fetch_sub(&g->refs, n);
        return -1;
    }
    metric_observe(g->c->page, M_REQ_N, n);
    metric_observe(g->c->page, M_REQ_MAX_TOKENS, max);
    pthread_mutex_lock(&g->c->lock);
    for (int k = 0; k < n; k++) {
        first[k].id = ids[k];
        /* sinks may have run before the ids were known */
        cancel[k] = g->failed || textout_stopped(first[k].out);
    }
    pthread_mutex_unlock(&g->c->lock);
    for (int k = 0; k < n; k++)
        if (cancel[k])
            cancel_choice(&first[k]);
    return 0;
}

void gen_start(const struct gen_cfg *cfg)
{
    struct gen *g = gen_new(cfg);
    const struct conn_owner owner = {on_gone, on_hold, on_release, g};
    struct err e;

    if (!conn_set_owner(g->c, &owner)) {
        gen_unref(g);
        gen_unref(g);
        return;
    }
    for (int i = 0; i < g->n_prompts; i++) {
        if (submit_prompt(g, i, &e) == 0)
            continue;
        pthread_mutex_lock(&g->c->lock);
        fail(g, &e, false);
        pthread_mutex_unlock(&g->c->lock);
        cancel_all(g);
        break;
    }
    gen_unref(g);
}
