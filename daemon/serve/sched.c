/* daemon/serve/sched.c - events in, outcomes out.
 *
 * A request is a struct sched_seq from ADD until its last step has come back:
 *
 *      ADD -> (parked) -> waiting <-> running -> finished
 *                                        \-> zombie -> gone
 *
 * Its finish is told at once, wherever it is; when a step in flight still names its
 * blocks it lives on as a zombie until that step returns. So each id gets exactly one
 * FINISH or REFUSE, and no block changes hands under a running step.
 *
 * Outcomes collect in one of two boxes; sched_out hands out the full one and the other is
 * filled meanwhile. Tokens and errors are copied: the executor's memory lives only until
 * its next poll. */
#include "daemon/serve/sched.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "daemon/serve/sched_impl.h"

void sched_step_caps(const struct sched_cfg *cfg, struct step_caps *ret)
{
    int per_seq = cfg->max_ctx / cfg->kv.block_tok + 1;
    /* Histories (penalties) and biases are large and rare: room for one sequence of full
     * length or several shorter ones; who does not fit goes first in the next step. */
    *ret = (struct step_caps){.items = cfg->max_seqs,
                              .toks = cfg->step_tok,
                              .blocks = cfg->max_seqs * per_seq,
                              .samples = cfg->max_seqs,
                              .hist = cfg->max_ctx + 16 * cfg->max_seqs + 4096,
                              .biases = 1024 + 64 * cfg->max_seqs,
                              .copies = cfg->max_seqs,
                              .refs = cfg->max_seqs,
                              .moves = cfg->kv.n_host ? cfg->kv.max_moves : 0,
                              .outs = cfg->max_outs};
}

enum { MEAN_OUT = 16 }; /* answers that the mean of lengths looks back at */

struct sched *sched_new(const struct sched_cfg *cfg)
{
    struct sched *s = xcalloc(1, sizeof(*s));
    int shards = cfg->kv.shards ? cfg->kv.shards : 1;
    int64_t pool = (int64_t)cfg->kv.group[0].n_blocks / shards * cfg->kv.block_tok;

    /* a step carries one block table per item */
    assert(cfg->kv.n_groups == 1 && cfg->kv.group[0].kind == KV_FULL);
    assert(cfg->step_tok > 0 && cfg->max_seqs > 0 && cfg->max_outs > 0);
    assert(cfg->max_ctx > 0 && cfg->depth > 0 && pool > 0);
    s->cfg = *cfg;
    sched_step_caps(cfg, &s->caps);
    s->shards = shards;
    s->ctx = pool < cfg->max_ctx ? (int)pool : cfg->max_ctx;
    /* each running sequence can have at least one token and one output in every step */
    s->max_run = min_int(cfg->max_seqs, min_int(cfg->step_tok, cfg->max_outs));
    s->kv = kvcache_new(&cfg->kv);
    s->pool_state = 1;
    list_init(&s->waiting);
    list_init(&s->running);
    list_init(&s->zombies);
    list_init(&s->holds);
    for (int i = 0; i < SCHED_CLASSES; i++)
        list_init(&s->wclass[i]);
    s->order = xcalloc((size_t)s->max_run, sizeof(struct sched_seq *));
    s->rank = xcalloc((size_t)s->max_run + SCHED_LOOK + 1, sizeof(*s->rank));
    s->guess = xcalloc(2 * (size_t)s->max_run + SCHED_GUESSES, sizeof(*s->guess));
    s->guess_short = xcalloc((size_t)s->max_run + SCHED_GUESSES, sizeof(*s->guess_short));
    s->heap = xcalloc((size_t)s->max_run + SCHED_LOOK + 1, sizeof(*s->heap));
    s->news = 1;
    s->moves = xcalloc((size_t)cfg->kv.max_moves + 1, sizeof(*s->moves));
    s->flights = xcalloc((size_t)cfg->depth, sizeof(*s->flights));
    for (int i = 0; i < cfg->depth; i++)
        s->flights[i].items =
            xcalloc((size_t)cfg->max_seqs, sizeof(*s->flights[i].items));
    return s;
}

static void box_done(struct outbox *b)
{
    free(b->out);
    free(b->tok_off);
    free(b->err_at);
    free(b->toks);
    free(b->errs);
    free(b->ids);
}

static void release_list(struct sched *s, struct list *head)
{
    list_for_safe(it, tmp, head)
    {
        sched_release(s, list_entry(it, struct sched_seq, link));
    }
}

static void release_parked(struct sched *s)
{
    for (size_t i = 0; i < s->groups.cap; i++) {
        /* the last to leave deletes its group, which may move others up to this slot */
        while (s->groups.slot[i].p) {
            struct seq_group *g = s->groups.slot[i].p;
            if (list_empty(&g->parked))
                break;
            sched_release(s, list_entry(g->parked.next, struct sched_seq, link));
        }
    }
}

void sched_free(struct sched *s)
{
    if (!s)
        return;
    release_parked(s);
    release_list(s, &s->waiting);
    release_list(s, &s->running);
    release_list(s, &s->zombies);
    sched_kv_free(s);
    for (int i = 0; i < s->cfg.depth; i++)
        free(s->flights[i].items);
    free(s->flights);
    free(s->order);
    free(s->rank);
    free(s->guess);
    free(s->guess_short);
    free(s->heap);
    free(s->moves);
    idmap_done(&s->by_id);
    idmap_done(&s->groups);
    box_done(&s->box[0]);
    box_done(&s->box[1]);
    kvcache_free(s->kv);
    free(s);
}

/* ---- outcomes ---- */

static struct sched_out *emit(struct sched *s, enum sched_out_kind kind, uint64_t id)
{
    struct outbox *b = &s->box[s->box_now];

    if (b->n == b->cap) {
        b->cap = b->cap ? b->cap * 2 : 64;
        b->out = xrealloc(b->out, b->cap * sizeof(*b->out));
        b->tok_off = xrealloc(b->tok_off, b->cap * sizeof(*b->tok_off));
        b->err_at = xrealloc(b->err_at, b->cap * sizeof(*b->err_at));
    }
    b->tok_off[b->n] = b->n_toks;
    b->err_at[b->n] = -1;
    struct sched_out *o = &b->out[b->n++];
    *o = (struct sched_out){.kind = kind, .id = id, .stop_id = -1};
    return o;
}

static void attach_error(struct sched *s, const struct err *e)
{
    struct outbox *b = &s->box[s->box_now];

    if (b->n_errs == b->errs_cap) {
        b->errs_cap = b->errs_cap ? b->errs_cap * 2 : 8;
        b->errs = xrealloc(b->errs, b->errs_cap * sizeof(*b->errs));
    }
    b->err_at[b->n - 1] = (int)b->n_errs;
    b->errs[b->n_errs++] = *e;
}

void sched_emit_toks(struct sched *s, struct sched_seq *q, bool scored,
                     const struct step_token *toks, int n)
{
    struct outbox *b = &s->box[s->box_now];
    struct sched_out *o = emit(s, SCHED_OUT_TOKENS, q->p.id);

    o->n_toks = n;
    o->scored = scored;
    if (b->n_toks + (size_t)n > b->toks_cap) {
        while (b->n_toks + (size_t)n > b->toks_cap)
            b->toks_cap = b->toks_cap ? b->toks_cap * 2 : 256;
        b->toks = xrealloc(b->toks, b->toks_cap * sizeof(*b->toks));
    }
    memcpy(b->toks + b->n_toks, toks, (size_t)n * sizeof(*toks));
    b->n_toks += (size_t)n;
}

static void push_ids(struct outbox *b, const int32_t *ids, int n)
{
    while (b->n_ids + (size_t)n > b->ids_cap) {
        b->ids_cap = b->ids_cap ? b->ids_cap * 2 : 256;
        b->ids = xrealloc(b->ids, b->ids_cap * sizeof(*b->ids));
    }
    if (n)
        memcpy(b->ids + b->n_ids, ids, (size_t)n * sizeof(*ids));
    b->n_ids += (size_t)n;
}

void sched_emit_export(struct sched *s, const struct sched_seq *q, const int32_t *blocks,
                       int n_blocks, int n_gen)
{
    struct outbox *b = &s->box[s->box_now];
    struct sched_out *o = emit(s, SCHED_OUT_EXPORT, q->p.id);

    o->peer = q->p.peer;
    o->n_tok = q->given;
    o->first = q->exported;
    o->n_blocks = n_blocks;
    o->n_gen = n_gen;
    o->last = n_gen > 0;
    o->upto = o->last ? q->given : (q->exported + n_blocks) * s->cfg.kv.block_tok;
    b->tok_off[b->n - 1] = b->n_ids;
    push_ids(b, blocks, n_blocks);
    push_ids(b, q->toks + q->given, n_gen);
}

void sched_emit_reserved(struct sched *s, const struct sched_seq *q)
{
    struct sched_out *o = emit(s, SCHED_OUT_RESERVED, q->p.id);

    o->peer = q->p.peer;
    o->upto = kvseq_len(q->kv);
    o->n_tok = q->given;
}

size_t sched_out(struct sched *s, const struct sched_out **ret)
{
    struct outbox *b = &s->box[s->box_now];

    for (size_t i = 0; i < b->n; i++) {
        if (b->out[i].n_toks)
            b->out[i].toks = b->toks + b->tok_off[i];
        if (b->out[i].kind == SCHED_OUT_EXPORT) {
            b->out[i].block = b->ids + b->tok_off[i];
            b->out[i].gen = b->out[i].block + b->out[i].n_blocks;
        }
        if (b->err_at[i] >= 0)
            b->out[i].error = &b->errs[b->err_at[i]];
    }
    s->box_now = !s->box_now;
    s->box[s->box_now].n = 0;
    s->box[s->box_now].n_toks = 0;
    s->box[s->box_now].n_errs = 0;
    s->box[s->box_now].n_ids = 0;
    *ret = b->out;
    return b->n;
}

static void refuse(struct sched *s, uint64_t id, const struct err *e)
{
    emit(s, SCHED_OUT_REFUSE, id);
    attach_error(s, e);
}

void sched_finish(struct sched *s, int64_t now, struct sched_seq *q,
                  enum finish_reason reason, int32_t stop_id, const struct err *error)
{
    struct sched_out *o = emit(s, SCHED_OUT_FINISH, q->p.id);

    o->reason = reason;
    o->stop_id = stop_id;
    o->n_prompt = q->p.n_prompt;
    o->n_cached = q->n_cached;
    o->n_out = q->n_toks - q->p.n_prompt;
    o->n_preempted = q->n_preempted;
    o->altered = q->altered;
    o->queue_us = (q->started ? q->start_us : now) - q->add_us;
    if (q->n_toks > q->given) {
        o->prefill_us = q->first_us - q->start_us;
        o->decode_us = q->last_us - q->first_us;
    }
    o->has_slack = q->has_slack;
    o->slack_us = q->slack_us;
    if (error)
        attach_error(s, error);

    if (reason == FINISH_STOP || reason == FINISH_LENGTH)
        s->mean_out += (q->n_toks - q->given - s->mean_out) / MEAN_OUT;
    idmap_del(&s->by_id, q->p.id);
    if (!q->n_flight) {
        sched_release(s, q);
        return;
    }
    sched_unlink(s, q);
    sched_leave_group(s, q);
    q->state = SEQ_ZOMBIE;
    s->n_zombie++;
    list_push(&s->zombies, &q->link);
}

/* ---- events ---- */

static int check_add(const struct sched *s, const struct sched_event *ev, struct err *e)
{
    const struct gen_params *p = ev->params;
    int64_t given = (int64_t)p->n_prompt + p->n_gen;
    int room = s->cfg.max_waiting + s->max_run - s->n_running;

    if (s->draining)
        return err_set(e, ERR_UNAVAIL,
                       "the engine is stopping and takes no new requests");
    if (p->n_prompt < 1)
        return err_set(e, ERR_INVALID, "the prompt has no tokens");
    if (idmap_get(&s->by_id, p->id))
        return err_set(e, ERR_CONFLICT, "request %llu is there already",
                       (unsigned long long)p->id);
    if (p->handoff && (p->prompt_logprobs || !p->max_tokens))
        return err_set(e, ERR_UNSUPPORTED,
                       "a request without an answer or with the prompt's log-"
                       "probabilities is for one engine");
    if (given > s->ctx || (given == s->ctx && p->max_tokens != 0))
        return err_set(e, ERR_CONTEXT,
                       "the prompt has %d tokens and the %s holds %d, of which at least "
                       "one is for the answer",
                       (int)given,
                       s->ctx < s->cfg.max_ctx ? "KV cache" : "context of this model",
                       s->ctx);
    if (p->n_bias > s->caps.biases)
        return err_param(e, ERR_TOOBIG, "logit_bias", "%d logit biases, at most %d",
                         p->n_bias, s->caps.biases);
    if (s->n_waiting >= room)
        return err_set(e, ERR_BUSY, "%d requests are waiting, no more are taken",
                       s->n_waiting);
    return 0;
}

static void *dup_bytes(const void *p, size_t n, bool *failed)
{
    void *d = n ? try_malloc(n) : NULL;

    if (d)
        memcpy(d, p, n);
    *failed |= n && !d;
    return d;
}

static struct sched_seq *seq_new(const struct sched *s, const struct sched_event *ev,
                                 struct err *e)
{
    const struct gen_params *p = ev->params;
    int n_eog = p->ignore_eos ? 0 : ev->n_eog;
    struct sched_seq *q = xcalloc(1, sizeof(*q));
    bool failed = false;

    q->p = *p;
    q->given = q->n_toks = q->toks_cap = p->n_prompt + p->n_gen;
    q->n_scored = q->scored_next = p->n_scored;
    q->had = p->n_gen ? q->n_toks : 0;
    q->limit = s->ctx;
    if (p->max_tokens >= 0 && p->max_tokens < s->ctx - p->n_prompt)
        q->limit = p->n_prompt + p->max_tokens;
    q->toks = dup_bytes(ev->prompt, (size_t)q->n_toks * 4, &failed);
    q->bias = dup_bytes(ev->biases, (size_t)p->n_bias * sizeof(*q->bias), &failed);
    q->n_ends = p->n_stop + n_eog;
    q->ends = try_malloc(((size_t)q->n_ends + 1) * sizeof(*q->ends));
    if (failed || !q->ends) {
        free(q->toks);
        free(q->bias);
        free(q->ends);
        free(q);
        err_set(e, ERR_NOMEM, "no memory for a request of %d tokens", p->n_prompt);
        return NULL;
    }
    if (p->n_stop)
        memcpy(q->ends, ev->stops, (size_t)p->n_stop * sizeof(*q->ends));
    if (n_eog)
        memcpy(q->ends + p->n_stop, ev->eog, (size_t)n_eog * sizeof(*q->ends));
    list_init(&q->link);
    list_init(&q->clink);
    return q;
}

void sched_refuse_late(struct sched *s, const struct gen_params *p, int64_t retry_us)
{
    struct err e;

    err_set(&e, ERR_BUSY,
            "the queue is too long for a first token within %.1f s; a request that comes "
            "in %.1f s can have it",
            (double)p->ttft_us / 1e6, (double)retry_us / 1e6);
    refuse(s, p->id, &e);
    struct outbox *b = &s->box[s->box_now];
    b->out[b->n - 1].retry_us = retry_us;
    s->st.refused_late++;
}

void sched_drop(struct sched *s, struct sched_seq *q)
{
    idmap_del(&s->by_id, q->p.id);
    sched_release(s, q);
}

static void on_add(struct sched *s, int64_t now, const struct sched_event *ev)
{
    struct sched_seq *q;
    struct err e;
    int64_t late;

    if (check_add(s, ev, &e) < 0) {
        refuse(s, ev->params->id, &e);
        return;
    }
    int found = sched_found(s, ev->params, ev->prompt);
    int rest = ev->params->n_prompt + ev->params->n_gen - found;
    bool judged = sched_judged(s, ev->params, rest);
    late = judged ? sched_too_late(s, now, ev->params, rest) : 0;
    if (late) {
        sched_refuse_late(s, ev->params, late);
        return;
    }
    if (!(q = seq_new(s, ev, &e))) {
        refuse(s, ev->params->id, &e);
        return;
    }
    q->num = ++s->arrivals;
    q->add_us = now;
    q->due_us = now - q->p.age_us + q->p.ttft_us;
    q->judged = judged;
    q->n_found = found;
    idmap_put(&s->by_id, q->p.id, q);
    /* no output wanted, or all of it there, and nothing to score */
    if (q->n_toks >= q->limit &&
        (!q->p.prompt_logprobs || q->n_scored >= q->p.n_prompt - 1)) {
        sched_finish(s, now, q, FINISH_LENGTH, -1, NULL); /* it is gone */
        return;
    }
    sched_enqueue(s, q);
    sched_took(s, sched_rest(q));
    sched_tier_want(s, now, q);
}

static void on_cancel(struct sched *s, int64_t now, uint64_t id)
{
    struct sched_seq *q = idmap_get(&s->by_id, id);

    if (q)
        sched_finish(s, now, q, FINISH_ABORT, -1, NULL);
    else
        s->st.late++;
}

/* All that have no place: listed ones first, as each may unpark another of its group. */
static void on_yield(struct sched *s, int64_t now)
{
    while (!list_empty(&s->waiting))
        sched_finish(s, now, list_entry(s->waiting.next, struct sched_seq, link),
                     FINISH_RETURNED, -1, NULL);
    for (size_t i = 0; i < s->groups.cap; i++) {
        /* the group stays: its first member runs */
        struct seq_group *g = s->groups.slot[i].p;
        while (g && !list_empty(&g->parked))
            sched_finish(s, now, list_entry(g->parked.next, struct sched_seq, link),
                         FINISH_RETURNED, -1, NULL);
    }
}

/* Nothing stands in the queues that another order would not find there. */
static void on_policy(struct sched *s, const struct sched_event *ev)
{
    s->cfg.order = ev->order;
    s->cfg.refuse_late = ev->refuse_late;
    s->cfg.prefill_run = ev->prefill_run;
    list_for(it, &s->running) list_entry(it, struct sched_seq, link)->skipped = 0;
}

void sched_event(struct sched *s, int64_t now_us, const struct sched_event *ev)
{
    s->news += ev->kind != SCHED_ADD;
    switch (ev->kind) {
    case SCHED_ADD:
        on_add(s, now_us, ev);
        break;
    case SCHED_CANCEL:
        on_cancel(s, now_us, ev->id);
        break;
    case SCHED_DONE:
        sched_done(s, now_us, ev->done);
        break;
    case SCHED_DRAIN:
        s->draining = true;
        break;
    case SCHED_YIELD:
        on_yield(s, now_us);
        break;
    case SCHED_PULLED:
        sched_pulled(s, now_us, ev);
        break;
    case SCHED_RECOMPUTE:
        sched_recompute(s, now_us, ev);
        break;
    case SCHED_POLICY:
        on_policy(s, ev);
        break;
    }
}

void sched_stats(const struct sched *s, struct sched_stats *ret)
{
    *ret = s->st;
    ret->running = s->n_running;
    ret->waiting = s->n_waiting;
    ret->steps = s->steps;
    ret->importing = s->n_importing;
    ret->held = s->n_held;
    list_for(it, &s->holds) ret->pulls++;
    kvcache_stats(s->kv, &ret->kv);
    if (kvcache_tier(s->kv))
        kvtier_stats(kvcache_tier(s->kv), &ret->tier);
}

bool sched_idle(const struct sched *s)
{
    return !s->n_waiting && !s->n_running && !s->n_flights;
}
