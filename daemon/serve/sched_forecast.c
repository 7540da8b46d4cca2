/* daemon/serve/sched_forecast.c - when a request that comes now would have its first
 * token.
 *
 * The scheduler's own rules are played forward over what is known (what runs and waits,
 * places, blocks, the measured step times) until the request's prompt is computed; as
 * long as a step is like the one before it, all of them are taken at once. Prompts are
 * taken to need what was not in the cache when they came, KV that another engine computes
 * to cost nothing here but a place and blocks.
 *
 * Nobody knows how long answers will be (as long as those that ended of late, one ending
 * after the other) nor who comes next (nobody): so a forecast errs towards early. `safe`
 * errs to the other side: answers twice as long, all as if they had just begun.
 *
 * Cost, counted in s->work: with n prompts and answers looked at (what runs, and
 * SCHED_LOOK that wait) at most FLOOR + PER * n log n; what is not played by then is
 * reckoned in one go. */
#include "daemon/serve/sched_impl.h"

#include <stdlib.h>
#include <string.h>

enum { FLOOR = 16384, PER = 16 };

static int rest_class(int n) { return 31 - __builtin_clz((unsigned)n | 1); }

struct ahead {
    struct sched *s;
    struct sched_guess *v; /* prompts, in the order of being served */
    int n;
    struct sched_guess *dec; /* decoding: out tokens to go */
    int n_dec;
    int n_run, free; /* places taken; blocks */
    int row;         /* colocated: prefill steps since a decode step */
    int out;         /* tokens of an answer */
    double tpot;     /* the part that is spent of the least target of what decodes, */
    double due;      /* and when the next of their tokens is due first; 0 = no target */
    bool by_due;     /* these matter */
    double us;       /* from now */
};

/* ---- what is there ---- */

static int blocks_of(const struct sched *s, int n)
{
    return (n + s->cfg.kv.block_tok - 1) / s->cfg.kv.block_tok;
}

static struct sched_guess guess_of(const struct ahead *a, int64_t now,
                                   const struct sched_seq *q)
{
    struct sched_guess g = {.rest = sched_rest(q),
                            .out = min_int(a->out, max_int(1, q->limit - q->n_toks)),
                            .blocks = blocks_of(a->s, q->n_toks),
                            .runs = q->state == SEQ_RUNNING,
                            .tpot_us = sched_tpot(q)};

    if (!g.runs)
        g.rest = max_int(1, g.rest); /* it has to start */
    if (g.tpot_us && q->n_toks > q->given)
        g.due_us = (double)(sched_token_due(q) - now);
    return g;
}

static void decodes(struct ahead *a, const struct sched_guess *g)
{
    struct sched_guess *d = &a->dec[a->n_dec++];

    *d = *g;
    if (d->tpot_us && !d->due_us)
        d->due_us = a->us + (double)d->tpot_us;
}

static void take(struct ahead *a, int64_t now, const struct sched_seq *q)
{
    struct sched_guess g = guess_of(a, now, q);

    a->s->work++;
    if (g.rest > 0)
        a->v[a->n++] = g;
    else
        decodes(a, &g);
}

/* By age: as they stand. Of those that wait beyond SCHED_LOOK one lump for each class of
 * length, safe: of any, else of those that are not longer than own. */
static void take_by_age(struct ahead *a, int64_t now, int own, bool safe)
{
    struct sched *s = a->s;
    int64_t rest[SCHED_CLASSES];
    int seen = 0, last = safe ? SCHED_CLASSES - 1 : rest_class(own);

    memcpy(rest, s->wait_tok, sizeof(rest));
    list_for(it, &s->waiting)
    {
        const struct sched_seq *q = list_entry(it, struct sched_seq, link);
        if (seen++ == SCHED_LOOK)
            break;
        rest[rest_class(q->wait_tok)] -= q->wait_tok;
        take(a, now, q);
    }
    for (int i = 0; i <= last; i++)
        if (rest[i] > 0)
            a->v[a->n++] = (struct sched_guess){
                .rest = (int)min_i64(rest[i], 1 << 28), .each = 1 << i, .out = a->out};
}

/* By slack, own among them. safe: one that is given up behind those that are in time;
 * else first of all, for it is looked at anew in each step. */
static void take_by_slack(struct ahead *a, int64_t now, struct sched_seq *own,
                          const struct sched_guess *g, bool safe)
{
    struct sched *s = a->s;
    int n = 0;
    bool in = !safe;

    list_for(it, &s->running)
    {
        struct sched_seq *q = list_entry(it, struct sched_seq, link);
        if (sched_rest(q) > 0)
            s->order[n++] = q;
    }
    n = sched_by_slack(s, now, n, true, own);
    if (!safe)
        a->v[a->n++] = *g;
    for (int i = 0; i < n; i++) {
        if (!in && (s->rank[i].q == own || s->rank[i].rank == 2)) {
            a->v[a->n++] = *g;
            in = true;
        }
        if (s->rank[i].q != own)
            take(a, now, s->rank[i].q);
    }
}

/* Answers that run end one after the other, the oldest first, at even distances: the
 * first one after one of these, or, soon, with the next step. */
static void spread_ends(struct ahead *a, bool soon)
{
    for (int i = 0; i < a->n_dec; i++) {
        int out = soon ? max_int(i, a->out * i / a->n_dec) + 1
                       : max_int(1, a->out * (i + 1) / (a->n_dec + 1));

        a->dec[i].out = min_int(a->dec[i].out, out);
    }
}

/* When the first token is due of all that decode, and at what pace. */
static void look_due(struct ahead *a)
{
    a->due = a->tpot = 0;
    for (int i = 0; a->by_due && i < a->n_dec; i++) {
        const struct sched_guess *d = &a->dec[i];
        if (!d->tpot_us)
            continue;
        if (a->tpot == 0 || d->due_us < a->due)
            a->due = d->due_us;
        if (a->tpot == 0 || (double)d->tpot_us < a->tpot)
            a->tpot = (double)d->tpot_us;
    }
    a->s->work += (uint64_t)a->n_dec;
}

static void begin(struct ahead *a, struct sched *s, int64_t now, struct sched_seq *own,
                  enum sched_guess_as as)
{
    struct sched_guess g = {.rest = max_int(1, sched_rest(own)),
                            .out = 1,
                            .blocks = blocks_of(s, own->n_toks),
                            .tpot_us = sched_tpot(own),
                            .own = true};

    *a = (struct ahead){
        .s = s,
        .v = s->guess,
        .dec = s->guess + s->max_run + SCHED_GUESSES,
        .n_run = s->n_running,
        .row = s->prefill_row,
        .by_due = s->cfg.mode == SCHED_CHUNKED && s->cfg.order == SCHED_BY_SLACK,
        .out = max_int(1, (int)(as == SCHED_SAFE ? 2 * s->mean_out : s->mean_out)),
        .us = sched_in_flight(s, now)};
    for (int i = 0; i < s->shards; i++)
        a->free += kvcache_available(s->kv, i);
    list_for(it, &s->running)
    {
        const struct sched_seq *q = list_entry(it, struct sched_seq, link);
        if (s->cfg.order == SCHED_BY_AGE || sched_rest(q) <= 0)
            take(a, now, q);
    }
    if (as != SCHED_SAFE)
        spread_ends(a, as == SCHED_SOON);
    if (s->cfg.order == SCHED_BY_SLACK) {
        take_by_slack(a, now, own, &g, as == SCHED_SAFE);
        return;
    }
    take_by_age(a, now, g.rest, as == SCHED_SAFE);
    a->v[a->n++] = g;
}

/* ---- one step ---- */

static bool may_run(const struct ahead *a, const struct sched_guess *g)
{
    return g->runs ||
           (a->n_run < a->s->max_run && g->blocks <= max_int(a->free - a->n_run, 0)) ||
           !a->n_run;
}

static int give(struct ahead *a, struct sched_guess *g, int left, bool first)
{
    int n = g->rest - g->grant;

    if (n > left && a->s->cfg.mode == SCHED_COLOCATED)
        n = first && g->rest > a->s->cfg.step_tok ? left : 0;
    n = min_int(n, left);
    if (n <= 0)
        return 0;
    if (!g->runs) {
        g->runs = true;
        a->n_run++;
        a->free -= g->blocks;
    }
    g->grant += n;
    return n;
}

/* Of a lump each is so long. */
static int length(const struct sched_guess *g) { return g->each ? g->each : g->rest; }

static int by_length(const void *x, const void *y)
{
    const struct sched_guess *const *p = x, *const *q = y;

    if (length(*p) != length(*q))
        return length(*p) < length(*q) ? -1 : 1;
    return *p < *q ? -1 : *p > *q;
}

/* Order age: those of a lower class than the oldest share half of it, shortest first. */
static int give_short(struct ahead *a, int left)
{
    struct sched *s = a->s;
    int i = 0, c, given = 0, n = 0;

    while (i < a->n && !(a->v[i].rest > 0 && may_run(a, &a->v[i])))
        i++;
    s->work += (uint64_t)i;
    if (i == a->n || (s->cfg.mode == SCHED_COLOCATED && a->v[i].rest <= s->cfg.step_tok))
        return 0;
    c = rest_class(length(&a->v[i]));
    for (int k = 0; k < a->n; k++)
        if (a->v[k].rest > 0 && rest_class(length(&a->v[k])) < c && may_run(a, &a->v[k]))
            s->guess_short[n++] = &a->v[k];
    s->work += (uint64_t)a->n + sched_sort_work(n);
    qsort(s->guess_short, (size_t)n, sizeof(struct sched_guess *), by_length);
    for (int k = 0; k < n && given < left; k++)
        if (may_run(a, s->guess_short[k])) {
            int got = give(a, s->guess_short[k], left - given, false);
            if (!got)
                break;
            given += got;
        }
    return given;
}

/* Grants of a step with prompts; how many tokens. */
static int grant(struct ahead *a, int budget)
{
    int given = 0, i;

    for (i = 0; i < a->n; i++)
        a->v[i].grant = 0;
    if (a->s->cfg.order == SCHED_BY_AGE)
        given = give_short(a, budget / 2);
    bool first = true, kept = false; /* what is free, for own */
    for (i = 0; i < a->n && given < budget; i++) {
        struct sched_guess *g = &a->v[i];
        if (g->rest <= 0 || (kept && !g->runs))
            continue;
        if (!may_run(a, g)) {
            kept = g->own && a->s->cfg.order == SCHED_BY_SLACK;
            continue;
        }
        int n = give(a, g, budget - given, first);
        first = first && !n;
        given += n;
    }
    a->s->work += (uint64_t)(a->n + i);
    return given;
}

/* Prompt tokens that a step may have beside what decodes. */
static int budget(const struct ahead *a)
{
    const struct sched *s = a->s;
    int left = max_int(1, s->cfg.step_tok - a->n_dec);

    if (s->cfg.mode == SCHED_COLOCATED)
        return s->cfg.step_tok;
    if (!a->by_due || a->tpot == 0)
        return left;
    int fit = steptime_fit(&s->time, a->n_dec, a->due - a->us);
    return min_int(left, max_int(fit, max_int(1, left / SCHED_MIN_SHARE)));
}

/* So many steps of that time go by until answers allow more or less of one: until what
 * they have got ahead is spent, or until they have caught up. */
static int until_due(const struct ahead *a, double step_us)
{
    double ahead = a->due - a->us - a->tpot, lost = step_us - a->tpot, k;

    if (!a->by_due || a->tpot == 0 || ahead * lost <= 0)
        return 1 << 20;
    k = ahead / lost;
    return k < 1 ? 1 : k < 1 << 20 ? (int)k : 1 << 20;
}

/* k tokens more of all that decode; those that end give back what they have. */
static void decode(struct ahead *a, int k)
{
    int n = 0;

    for (int i = 0; i < a->n_dec; i++) {
        struct sched_guess g = a->dec[i];

        g.out -= k;
        g.due_us += k * (double)g.tpot_us;
        if (g.out <= 0) {
            a->n_run--;
            a->free += g.blocks;
            continue;
        }
        a->dec[n++] = g;
    }
    a->s->work += (uint64_t)a->n_dec;
    a->n_dec = n;
}

/* So many steps until one that decodes ends. */
static int until_end(const struct ahead *a)
{
    int k = 1 << 20;

    for (int i = 0; i < a->n_dec; i++)
        k = min_int(k, a->dec[i].out);
    a->s->work += (uint64_t)a->n_dec;
    return max_int(k, 1);
}

/* k steps of the grants. True: the own prompt is computed. */
static bool advance(struct ahead *a, int k)
{
    int n = 0;
    bool own = false;

    a->s->work += (uint64_t)a->n;
    for (int i = 0; i < a->n; i++) {
        struct sched_guess g = a->v[i];

        g.rest -= k * g.grant;
        if (g.rest > 0) {
            a->v[n++] = g;
            continue;
        }
        own |= g.own;
        if (a->n_dec < a->s->max_run)
            decodes(a, &g);
    }
    a->n = n;
    return own;
}

/* Like steps until something changes. 1: the own prompt is computed; -1: nothing runs. */
static int turn(struct ahead *a)
{
    const struct sched *s = a->s;
    bool apart = s->cfg.mode == SCHED_COLOCATED;
    int run = max_int(1, s->cfg.prefill_run), n_dec = a->n_dec, tok = 0, k;
    double us;

    a->s->work++;
    look_due(a);
    if (!apart || !n_dec || a->row < run)
        tok = grant(a, budget(a));
    if (!tok && !n_dec)
        return -1;
    if (!tok) { /* decode alone */
        k = apart && a->row >= run ? 1 : until_end(a);
        a->row = 0;
        a->us += k * steptime_us(&s->time, 0, n_dec);
        decode(a, k);
        return 0;
    }
    us = steptime_us(&s->time, tok, apart ? 0 : n_dec);
    k = !n_dec ? 1 << 20 : apart ? run - a->row : min_int(until_end(a), until_due(a, us));
    for (int i = 0; i < a->n; i++)
        if (a->v[i].grant)
            k = min_int(k, max_int(1, a->v[i].rest / a->v[i].grant));
    a->us += k * us;
    if (!apart && n_dec)
        decode(a, k);
    a->row += k;
    return advance(a, k);
}

/* What is left in one go: all of it, or, early, only what is not longer than own. */
static double in_one_go(const struct ahead *a, bool safe)
{
    const struct sched *s = a->s;
    double tok = 0;
    int own = 0;

    for (int i = 0; i < a->n; i++)
        own = a->v[i].own ? a->v[i].rest : own;
    for (int i = 0; i < a->n; i++)
        if (safe || a->v[i].own ||
            (s->cfg.order == SCHED_BY_AGE &&
             rest_class(length(&a->v[i])) <= rest_class(own)))
            tok += a->v[i].rest;
    return a->us +
           tok / s->cfg.step_tok * steptime_us(&s->time, s->cfg.step_tok, a->n_dec);
}

double sched_forecast(struct sched *s, int64_t now, struct sched_seq *own,
                      enum sched_guess_as as)
{
    struct ahead a;
    uint64_t limit;
    int rc = 0;

    sched_slack_begin(s);
    begin(&a, s, now, own, as);
    limit = s->work + FLOOR + PER * sched_sort_work(a.n + a.n_dec);
    while (rc == 0 && s->work < limit)
        rc = turn(&a);
    return rc == 1 ? a.us : in_one_go(&a, as == SCHED_SAFE);
}
