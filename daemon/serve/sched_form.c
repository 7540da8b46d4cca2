/* daemon/serve/sched_form.c - the next step: who gets how many of its tokens.
 *
 * Decoding. A sequence whose next token is known, or is being computed by a step in
 * flight (then a step_ref stands for it), gets one token; after a step that accepted
 * several, those are fed together. Out of blocks, the youngest running sequence is
 * preempted until the older one fits, so the oldest always gets on. (Youngest, oldest: of
 * one KV shard.)
 *
 * Prefill, policy `chunked`: what decoding leaves of the budget, P tokens. Let O be the
 * oldest prompt being prefilled (or, if there is none, the oldest waiting one).
 *   1. Prompts whose rest is in a lower size class (powers of two) than O's, running or
 *      waiting, share floor(P / 2), shortest first.
 *   2. Then prompts by age, running before waiting, take what is left, O first.
 * Bounds: O gets at least ceil(P / 2) tokens in each step. A prompt that is shorter than
 * O and has a place is done after at most 2 (T / P + 1) steps, T = what is left of those
 * not longer than it. Equal prompts run in order of arrival, one after the other, so the
 * second finds the first one's prefix in the cache. Places: a waiting prompt that gets no
 * blocks is passed over for those behind it, and rule 1 passes over older ones too; but
 * after SCHED_AGE such admissions the oldest waiting prompt is the only one that may
 * start. With k older ones waiting, a prompt thus starts after at most (k + 1) (SCHED_AGE
 * + 1) admissions.
 *
 * Policy `colocated`: a step is prefill only or decode only; at most prefill_run prefill
 * steps in a row while something could decode. P is the whole budget, rules 1 and 2 hold,
 * but a prompt runs whole: it is cut only when it is longer than a step (or by the limit
 * of output rows), and rule 1 applies only while O is such a one.
 *
 * With order `slack` the prompts go by sched_slack.c in place of rules 1 and 2: each
 * takes what the ones before it leave, and decoding may leave less than the budget or,
 * `colocated`, come first.
 *
 * Output rows are bounded as tokens are: each running sequence has one, prompts that are
 * scored share the rest. Cost: O(running) and SCHED_TRIES waiting ones at most. */
#include "daemon/serve/sched_impl.h"

#include <assert.h>
#include <string.h>

struct form {
    struct sched *s;
    int64_t now;
    struct step *st;
    int n;          /* running ones in s->order, oldest first, then those just started */
    int left;       /* tokens */
    int outs;       /* output rows beside the one that each running sequence has */
    int score_rows; /* output rows for each prompt that is scored */
    bool preempted; /* then nobody new starts in this step */
};

int sched_vlen(const struct sched_seq *q)
{
    return q->tail_samples ? max_int(q->n_toks, q->next_pos + 1) : q->n_toks;
}

static bool score_only(const struct sched_seq *q) { return q->p.max_tokens == 0; }

static bool has_penalty(const struct sched_seq *q)
{
    return q->p.repetition != 1 || q->p.presence != 0 || q->p.frequency != 0;
}

int sched_need(const struct sched_seq *q)
{
    int vlen = sched_vlen(q);

    if (q->evict || q->importing)
        return 0;
    if (score_only(q))
        return q->p.n_prompt - 1 - q->next_pos;
    if (q->next_pos >= q->prefill_end && vlen >= q->limit)
        return 0; /* what is in flight will end it */
    if (vlen > q->n_toks && has_penalty(q))
        return 0; /* the history is not complete yet */
    return vlen - q->next_pos;
}

static bool is_prefill(const struct sched_seq *q) { return q->next_pos < q->prefill_end; }

static bool must_score(const struct sched_seq *q)
{
    return q->p.prompt_logprobs && q->scored_next < q->p.n_prompt - 1;
}

/* ---- decoding ---- */

static bool any_of_shard(const struct list *head, int shard, bool evicted)
{
    list_for(it, head)
    {
        const struct sched_seq *q = list_entry(it, struct sched_seq, link);
        if (q->evict >= evicted && kvseq_shard(q->kv) == shard)
            return true;
    }
    return false;
}

/* Not one that waits for KV: another engine works for it, and it ends by a lease. */
static struct sched_seq *youngest_of_shard(const struct sched *s, int shard)
{
    struct list *it = s->running.prev;

    for (;; it = it->prev) {
        struct sched_seq *q = list_entry(it, struct sched_seq, link);
        if (kvseq_shard(q->kv) == shard && !q->importing)
            return q;
    }
}

/* Free blocks for q, which runs, by preempting younger ones. False: it has to wait. */
static bool make_room(struct form *f, struct sched_seq *q)
{
    struct sched *s = f->s;
    int shard = kvseq_shard(q->kv);

    if ((s->n_zombie && any_of_shard(&s->zombies, shard, false)) ||
        (s->n_evict && any_of_shard(&s->running, shard, true)))
        return false; /* their blocks come back with the next result */
    struct sched_seq *victim = youngest_of_shard(s, shard);
    f->preempted = true;
    if (victim->n_flight) {
        victim->evict = true;
        victim->grant = 0;
        s->n_evict++;
        return false;
    }
    sched_preempt(s, victim);
    return victim != q;
}

/* Leaves one token for each of the others. */
static void plan_decode(struct form *f, struct sched_seq *q, int others)
{
    int n = min_int(sched_need(q), f->left - others), copies = 0;

    /* no write into shared blocks: what is committed stays as it is */
    while (kvseq_reserve(q->kv, q->next_pos, q->next_pos + n, NULL, &copies, 0) < 0)
        if (!make_room(f, q))
            return;
    q->grant = n;
    f->left -= n;
}

static void plan_decodes(struct form *f)
{
    int n_planned = 0;

    for (int i = 0; i < f->n; i++) {
        struct sched_seq *q = f->s->order[i];
        if (q->state != SEQ_RUNNING || is_prefill(q) || sched_need(q) <= 0)
            continue;
        plan_decode(f, q, f->n - 1 - n_planned);
        n_planned += q->state == SEQ_RUNNING && q->grant > 0;
    }
}

static bool any_decode(const struct form *f)
{
    for (int i = 0; i < f->n; i++)
        if (!is_prefill(f->s->order[i]) && sched_need(f->s->order[i]) > 0)
            return true;
    return false;
}

/* ---- prefill ---- */

static int rest_class(int n) { return 31 - __builtin_clz((unsigned)n | 1); }

/* Tokens that q may get of `left`. */
static int share(const struct form *f, const struct sched_seq *q, int left, bool first)
{
    int need = sched_need(q) - q->grant;
    int whole = need;

    if (must_score(q))
        need = min_int(need, min_int(f->score_rows - q->grant, f->outs + !q->grant));
    if (need <= left || f->s->cfg.mode == SCHED_CHUNKED)
        return min_int(need, left);
    return first && whole > f->s->cfg.step_tok ? left : 0;
}

static int give(struct form *f, struct sched_seq *q, int left, bool first)
{
    int n = share(f, q, left, first);

    if (n <= 0)
        return 0;
    if (must_score(q))
        f->outs -= n - !q->grant;
    q->grant += n;
    f->left -= n;
    return n;
}

static bool may_start(const struct form *f)
{
    return !f->preempted && f->outs > 0 && f->s->n_running < f->s->max_run &&
           !list_empty(&f->s->waiting);
}

/* Start a waiting one, unless the oldest has been passed over too often. */
static bool start(struct form *f, struct sched_seq *q)
{
    struct sched_seq *oldest = list_entry(f->s->waiting.next, struct sched_seq, link);

    if (q != oldest && oldest->passed >= SCHED_AGE)
        return false;
    if (!sched_start(f->s, f->now, q))
        return false;
    f->outs--;
    f->s->order[f->n++] = q;
    oldest->passed++; /* of no account when it is q */
    return true;
}

/* Shortest rest among running prompts below class c that have no grant yet. */
static struct sched_seq *shortest_running(const struct form *f, int c)
{
    struct sched_seq *best = NULL;

    for (int i = 0; i < f->n; i++) {
        struct sched_seq *q = f->s->order[i];
        if (q->state != SEQ_RUNNING || !is_prefill(q) || q->grant || sched_need(q) <= 0 ||
            rest_class(sched_need(q)) >= c)
            continue;
        if (!best || sched_need(q) < sched_need(best))
            best = q;
    }
    return best;
}

static struct sched_seq *shortest_waiting(const struct sched *s, int c)
{
    for (int i = 0; i < c; i++)
        if (!list_empty(&s->wclass[i]))
            return list_entry(s->wclass[i].next, struct sched_seq, clink);
    return NULL;
}

/* Rule 1: up to `left` tokens to prompts below class c. */
static void plan_short(struct form *f, int c, int left)
{
    while (left > 0) {
        struct sched_seq *r = shortest_running(f, c);
        struct sched_seq *w = may_start(f) ? shortest_waiting(f->s, c) : NULL;
        if (w && f->s->cfg.mode == SCHED_COLOCATED && w->n_toks > left)
            w = NULL;
        if (w && (!r || w->n_toks < sched_need(r))) {
            if (start(f, w)) {
                left -= give(f, w, left, false);
                continue;
            }
            if (!r)
                return;
        }
        if (!r)
            return;
        int n = give(f, r, left, false);
        if (!n)
            return;
        left -= n;
    }
}

/* Rule 2. */
static void plan_by_age(struct form *f)
{
    struct sched *s = f->s;
    bool first = true;
    int tries = 0;

    for (int i = 0; i < f->n && f->left > 0; i++) {
        struct sched_seq *q = s->order[i];
        if (q->state != SEQ_RUNNING || !is_prefill(q) || sched_need(q) <= 0)
            continue;
        give(f, q, f->left, first);
        first = false;
    }
    list_for_safe(it, tmp, &s->waiting)
    {
        struct sched_seq *q = list_entry(it, struct sched_seq, link);
        if (f->left <= 0 || !may_start(f) || tries == SCHED_TRIES)
            return;
        bool fits = s->cfg.mode == SCHED_CHUNKED || first || q->n_toks <= f->left;
        if (fits && start(f, q)) {
            give(f, q, f->left, first);
            first = false;
        } else {
            tries++;
        }
    }
}

static struct sched_seq *oldest_prompt(const struct form *f)
{
    for (int i = 0; i < f->n; i++)
        if (f->s->order[i]->state == SEQ_RUNNING && is_prefill(f->s->order[i]) &&
            sched_need(f->s->order[i]) > 0)
            return f->s->order[i];
    if (!may_start(f))
        return NULL;
    return list_entry(f->s->waiting.next, struct sched_seq, link);
}

/* Output rows that each scored prompt may have, one that may start included. */
static int score_rows(const struct form *f)
{
    int n = may_start(f);

    for (int i = 0; i < f->n; i++)
        n += f->s->order[i]->state == SEQ_RUNNING && must_score(f->s->order[i]);
    return 1 + f->outs / max_int(1, n);
}

/* Order `slack`. */
static void plan_by_slack(struct form *f)
{
    struct sched *s = f->s;
    int tries = 0, before = f->left;
    bool kept = false; /* what is free, for one that can be in time */
    int n = sched_by_slack(s, f->now, f->n, may_start(f), NULL);

    for (int i = 0; i < n && f->left > 0; i++) {
        struct sched_seq *q = s->rank[i].q;
        bool first = f->left == before;
        if (q->state != SEQ_RUNNING) {
            bool fits = s->cfg.mode == SCHED_CHUNKED || first || q->n_toks <= f->left;
            if (!may_start(f) || tries == SCHED_TRIES || (kept && s->rank[i].rank == 2))
                continue;
            if (!fits || !start(f, q)) {
                kept |= fits && s->rank[i].rank == 1 && !sched_tier_waits(s, f->now, q);
                tries++;
                continue;
            }
        }
        give(f, q, f->left, first);
    }
}

static void plan_prefills(struct form *f)
{
    struct sched_seq *o = oldest_prompt(f);

    if (!o || f->left <= 0)
        return;
    f->score_rows = score_rows(f);
    if (f->s->cfg.order == SCHED_BY_SLACK) {
        plan_by_slack(f);
        return;
    }
    int need = o->state == SEQ_RUNNING ? sched_need(o) : o->n_toks;
    if (f->s->cfg.mode == SCHED_CHUNKED || need > f->s->cfg.step_tok)
        plan_short(f, rest_class(need), f->left / 2);
    plan_by_age(f);
}

/* ---- into the step ---- */

static bool fill_sample(struct form *f, const struct sched_seq *q, int at)
{
    struct step *st = f->st;
    int n_hist = has_penalty(q) ? q->n_toks : 0;

    if (st->n_hist + n_hist > st->caps.hist ||
        st->n_biases + q->p.n_bias > st->caps.biases)
        return false;
    step_samples(st)[st->n_samples++] =
        (struct step_sample){.seed = q->p.seed,
                             .choice = q->p.choice,
                             .out_pos = at - q->p.n_prompt,
                             .temperature = q->p.temperature,
                             .top_k = q->p.top_k,
                             .top_p = q->p.top_p,
                             .min_p = q->p.min_p,
                             .repetition = q->p.repetition,
                             .presence = q->p.presence,
                             .frequency = q->p.frequency,
                             .hist_off = st->n_hist,
                             .n_hist = n_hist,
                             .n_prompt = n_hist ? q->p.n_prompt : 0,
                             .bias_off = st->n_biases,
                             .n_bias = q->p.n_bias};
    if (n_hist)
        memcpy(step_hist(st) + st->n_hist, q->toks, (size_t)n_hist * sizeof(*q->toks));
    if (q->p.n_bias)
        memcpy(step_biases(st) + st->n_biases, q->bias,
               (size_t)q->p.n_bias * sizeof(*q->bias));
    st->n_hist += n_hist;
    st->n_biases += q->p.n_bias;
    return true;
}

static void fill_toks(struct form *f, const struct sched_seq *q, int n)
{
    struct step *st = f->st;
    int32_t *tok = step_toks(st) + st->n_toks;
    int known = min_int(n, q->n_toks - q->next_pos);

    if (known > 0)
        memcpy(tok, q->toks + q->next_pos, (size_t)known * sizeof(*tok));
    if (known < n) {
        /* only the last one can be in the making */
        tok[n - 1] = STEP_TOK_REF;
        step_refs(st)[st->n_refs++] = (struct step_ref){
            .ticket = q->tail_ticket, .seq = q->num, .at = st->n_toks + n - 1};
    }
}

/* Item for the n tokens from q->next_pos; n may shrink by one. False: no place now. */
static bool fill_item(struct form *f, struct sched_seq *q, struct flight_item *fi)
{
    struct step *st = f->st;
    struct step_item *it = &step_items(st)[st->n_items];
    int n = q->grant, first = q->next_pos, n_block;
    bool samples = !score_only(q) && first + n == sched_vlen(q);

    q->deferred = samples && !fill_sample(f, q, first + n);
    if (q->deferred) {
        samples = false;
        if (--n == 0)
            return false;
    }
    int out_from = samples ? n - 1 : n, end = first + n;
    if (must_score(q) && q->scored_next < end)
        out_from = q->scored_next - first;
    const int32_t *block = kvseq_blocks(q->kv, 0, &n_block);
    n_block = (end + f->s->cfg.kv.block_tok - 1) / f->s->cfg.kv.block_tok;

    *it = (struct step_item){.seq = q->num,
                             .request = q->p.id,
                             .first_pos = first,
                             .n_tok = n,
                             .tok_off = st->n_toks,
                             .parent_off = -1,
                             .block_off = st->n_blocks,
                             .n_block = n_block,
                             .out_from = out_from,
                             .sample = samples ? st->n_samples - 1 : -1,
                             .next = !samples && out_from < n ? q->toks[end] : -1,
                             .n_top = q->p.n_top,
                             .decode = !is_prefill(q)};
    fill_toks(f, q, n);
    memcpy(step_blocks(st) + st->n_blocks, block, (size_t)n_block * sizeof(*block));
    st->n_items++;
    st->n_toks += n;
    st->n_blocks += n_block;

    *fi = (struct flight_item){.q = q,
                               .epoch = q->epoch,
                               .first_pos = first,
                               .n_tok = n,
                               .n_scored = n - out_from - samples,
                               .samples = samples};
    q->scored_next += fi->n_scored;
    q->next_pos = end;
    q->tail_samples = samples;
    q->n_flight++;
    return true;
}

static void fill_granted(struct form *f, struct flight *fl, bool deferred)
{
    list_for(it, &f->s->running)
    {
        struct sched_seq *q = list_entry(it, struct sched_seq, link);
        if (!q->grant || q->deferred != deferred)
            continue;
        fl->n_items += fill_item(f, q, &fl->items[fl->n_items]);
        q->grant = 0;
    }
}

static bool fill_step(struct form *f)
{
    struct sched *s = f->s;
    struct flight *fl = &s->flights[(s->flight_head + s->n_flights) % s->cfg.depth];

    fl->n_items = 0;
    fl->submitted = false;
    fill_granted(f, fl, true);
    fill_granted(f, fl, false);
    sched_time_form(s, f->now, fl);
    sched_tier_fill(s, f->st);
    if (!fl->n_items && !f->st->n_moves)
        return false;
    f->st->number = ++s->steps;
    s->st.step_toks += (uint64_t)f->st->n_toks;
    s->n_flights++;
    return true;
}

static void form_begin(struct form *f)
{
    struct sched *s = f->s;

    step_clear(f->st);
    f->left = s->cfg.step_tok;
    f->outs = s->cfg.max_outs - s->n_running;
    list_for(it, &s->running)
    {
        struct sched_seq *q = list_entry(it, struct sched_seq, link);
        q->grant = 0;
        s->order[f->n++] = q;
    }
}

/* Colocated: prefill unless that had its run and something could decode. */
static void plan_colocated(struct form *f)
{
    struct sched *s = f->s;
    bool decode = any_decode(f);
    bool first =
        decode && s->cfg.order == SCHED_BY_SLACK && sched_slack_decode_first(s, f->now);

    if (!decode || (!first && s->prefill_row < max_int(1, s->cfg.prefill_run))) {
        plan_prefills(f);
        if (f->left < s->cfg.step_tok) {
            s->prefill_row++;
            s->decode_row = 0;
            return;
        }
    }
    s->prefill_row = 0;
    s->decode_row++;
    plan_decodes(f);
    if (f->left == s->cfg.step_tok)
        plan_prefills(f); /* those that could decode were preempted */
}

bool sched_next(struct sched *s, int64_t now_us, struct step *st)
{
    struct form f = {.s = s, .now = now_us, .st = st};

    if (s->n_flights == s->cfg.depth)
        return false;
    assert(!s->n_flights ||
           s->flights[(s->flight_head + s->n_flights - 1) % s->cfg.depth].submitted);
    sched_drop_late(s, now_us);
    form_begin(&f);
    if (s->cfg.order == SCHED_BY_SLACK)
        sched_slack_begin(s);
    kvcache_form(s->kv, true);
    if (s->cfg.mode == SCHED_COLOCATED) {
        plan_colocated(&f);
    } else {
        plan_decodes(&f);
        if (s->cfg.order == SCHED_BY_SLACK)
            f.left = sched_slack_chunk(s, now_us, f.left);
        plan_prefills(&f);
    }
    if (s->cfg.order == SCHED_BY_SLACK)
        sched_slack_end(s, f.n);
    kvcache_form(s->kv, false);
    return fill_step(&f);
}

void sched_submitted(struct sched *s, int64_t now_us, uint64_t ticket)
{
    struct flight *fl = &s->flights[(s->flight_head + s->n_flights - 1) % s->cfg.depth];

    (void)now_us;
    assert(s->n_flights && !fl->submitted);
    fl->ticket = ticket;
    fl->submitted = true;
    s->news++;
    for (int i = 0; i < fl->n_items; i++)
        fl->items[i].q->tail_ticket = ticket;
}
