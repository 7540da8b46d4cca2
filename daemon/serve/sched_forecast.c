/* daemon/serve/sched_forecast.c - early refusal: when a request that comes now would have
 * its first token, and so whether it is taken.
 *
 * The scheduler's own rules are played forward over what is known (what runs and waits,
 * places, blocks, the measured step times) until the request's prompt is computed; as
 * long as a step is like the one before it, all of them are taken at once.
 *
 * Whom taking would help nobody, and delay the others, is refused, and nobody else, so
 * that refusal costs no goodput. A request with a TTFT target
 *   - when it comes, if its first token cannot come in time: order `age`, in its turn;
 *     order `slack`, not even as the next of all, for who is given up there is looked at
 *     anew in each step;
 *   - while it waits, once it could not even if all of the steps were its own.
 * Nobody knows how long answers will be (as long as those that ended of late, one ending
 * after the other) nor who comes next (nobody): so the forecast errs towards taking. The
 * time after which a request like it can be met errs to the other side: answers twice as
 * long, all as if they had just begun, and a part of the target to spare.
 *
 * Not refused: one that is alone too long for its target (no time is better), one that
 * another engine has begun, one that was preempted, and any before STEPTIME_MIN steps
 * were measured. */
#include "daemon/serve/sched_impl.h"

enum {
    EVENTS = 4096,   /* of a forecast: then the rest is reckoned in one go */
    MARGIN_PART = 5, /* 1 / so much of the target is added to the time that is told */
};

static int min_int(int a, int b) { return a < b ? a : b; }
static int max_int(int a, int b) { return a > b ? a : b; }
static int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }

struct ahead {
    struct sched *s;
    struct sched_guess *v; /* prompts, in the order of being served */
    int n;
    struct sched_guess *dec; /* decoding: out tokens to go */
    int n_dec;
    int n_run, free; /* places taken; blocks */
    int row;         /* colocated: prefill steps since a decode step */
    int out;         /* tokens of an answer */
    int64_t tpot;    /* least target of what decodes, INT64_MAX = none */
    double us;       /* from now */
};

/* ---- what is there ---- */

static int blocks_of(const struct sched *s, int n)
{
    return (n + s->cfg.kv.block_tok - 1) / s->cfg.kv.block_tok;
}

static struct sched_guess guess_of(const struct ahead *a, const struct sched_seq *q)
{
    return (struct sched_guess){.rest = sched_rest(q),
                                .out = min_int(a->out, max_int(1, q->limit - q->n_toks)),
                                .blocks = blocks_of(a->s, q->n_toks),
                                .runs = q->state == SEQ_RUNNING,
                                .tpot_us = q->p.tpot_us};
}

static void decodes(struct ahead *a, const struct sched_guess *g)
{
    a->dec[a->n_dec++] = *g;
    if (g->tpot_us && g->tpot_us < a->tpot)
        a->tpot = g->tpot_us;
}

static void take(struct ahead *a, const struct sched_seq *q)
{
    struct sched_guess g = guess_of(a, q);

    if (g.rest > 0)
        a->v[a->n++] = g;
    else if (g.runs)
        decodes(a, &g);
}

/* By age: as they stand. Of those that wait beyond SCHED_LOOK one lump. */
static void take_by_age(struct ahead *a)
{
    struct sched *s = a->s;
    struct sched_guess lump = {.out = a->out};
    int seen = 0;

    list_for(it, &s->waiting)
    {
        const struct sched_seq *q = list_entry(it, struct sched_seq, link);
        if (seen++ < SCHED_LOOK)
            take(a, q);
        else
            lump.rest = min_int(lump.rest + sched_rest(q), 1 << 28);
    }
    if (lump.rest)
        a->v[a->n++] = lump;
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
            take(a, s->rank[i].q);
    }
}

/* Answers that run end one after the other, the oldest first. */
static void spread_ends(struct ahead *a)
{
    for (int i = 0; i < a->n_dec; i++) {
        int out = max_int(1, (int)((int64_t)a->out * (i + 1) / (a->n_dec + 1)));

        a->dec[i].out = min_int(a->dec[i].out, out);
    }
}

static void begin(struct ahead *a, struct sched *s, int64_t now, struct sched_seq *own,
                  const struct sched_guess *g, bool safe)
{
    *a = (struct ahead){.s = s,
                        .v = s->guess,
                        .dec = s->guess + s->max_run + SCHED_LOOK + 2,
                        .n_run = s->n_running,
                        .row = s->prefill_row,
                        .tpot = INT64_MAX,
                        .out = max_int(1, (int)(safe ? 2 * s->mean_out : s->mean_out)),
                        .us = sched_in_flight(s, now)};
    for (int i = 0; i < s->shards; i++)
        a->free += kvcache_available(s->kv, i);
    list_for(it, &s->running)
    {
        const struct sched_seq *q = list_entry(it, struct sched_seq, link);
        if (s->cfg.order == SCHED_BY_AGE || sched_rest(q) <= 0)
            take(a, q);
    }
    if (!safe)
        spread_ends(a);
    if (s->cfg.order == SCHED_BY_SLACK) {
        take_by_slack(a, now, own, g, safe);
        return;
    }
    take_by_age(a);
    a->v[a->n++] = *g;
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

static int rest_class(int n) { return 31 - __builtin_clz((unsigned)n | 1); }

/* Order age: those of a lower class than the oldest share half of it, shortest first. */
static int give_short(struct ahead *a, int left)
{
    int i = 0, c, given = 0;

    while (i < a->n && !(a->v[i].rest > 0 && may_run(a, &a->v[i])))
        i++;
    if (i == a->n ||
        (a->s->cfg.mode == SCHED_COLOCATED && a->v[i].rest <= a->s->cfg.step_tok))
        return 0;
    c = rest_class(a->v[i].rest);
    while (given < left) {
        struct sched_guess *best = NULL;

        for (int k = 0; k < a->n; k++) {
            struct sched_guess *g = &a->v[k];
            if (g->rest > 0 && !g->grant && rest_class(g->rest) < c &&
                (!best || g->rest < best->rest) && may_run(a, g))
                best = g;
        }
        int n = best ? give(a, best, left - given, false) : 0;
        if (!n)
            break;
        given += n;
    }
    return given;
}

/* Grants of a step with prompts; how many tokens. */
static int grant(struct ahead *a, int budget)
{
    int given = 0;

    for (int i = 0; i < a->n; i++)
        a->v[i].grant = 0;
    if (a->s->cfg.order == SCHED_BY_AGE)
        given = give_short(a, budget / 2);
    bool first = true;
    for (int i = 0; i < a->n && given < budget; i++) {
        struct sched_guess *g = &a->v[i];
        if (g->rest <= 0 || !may_run(a, g))
            continue;
        int n = give(a, g, budget - given, first);
        first = first && !n;
        given += n;
    }
    return given;
}

/* Prompt tokens that a step may have beside what decodes. */
static int budget(const struct ahead *a)
{
    const struct sched *s = a->s;
    int left = max_int(1, s->cfg.step_tok - a->n_dec), fit;

    if (s->cfg.mode == SCHED_COLOCATED)
        return s->cfg.step_tok;
    if (s->cfg.order != SCHED_BY_SLACK || a->tpot == INT64_MAX)
        return left;
    fit = steptime_fit(&s->time, a->n_dec, (double)a->tpot * SCHED_TPOT_PART / 100);
    return min_int(left, max_int(fit, max_int(1, left / SCHED_MIN_SHARE)));
}

/* k tokens more of all that decode; those that end give back what they have. */
static void decode(struct ahead *a, int k)
{
    int n = 0;

    a->tpot = INT64_MAX;
    for (int i = 0; i < a->n_dec; i++) {
        struct sched_guess g = a->dec[i];

        g.out -= k;
        if (g.out <= 0) {
            a->n_run--;
            a->free += g.blocks;
            continue;
        }
        a->dec[n++] = g;
        if (g.tpot_us && g.tpot_us < a->tpot)
            a->tpot = g.tpot_us;
    }
    a->n_dec = n;
}

/* So many steps until one that decodes ends. */
static int until_end(const struct ahead *a)
{
    int k = 1 << 20;

    for (int i = 0; i < a->n_dec; i++)
        k = min_int(k, a->dec[i].out);
    return max_int(k, 1);
}

/* k steps of the grants. True: the own prompt is computed. */
static bool advance(struct ahead *a, int k)
{
    int n = 0;
    bool own = false;

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
    k = !n_dec ? 1 << 20 : apart ? run - a->row : until_end(a);
    for (int i = 0; i < a->n; i++)
        if (a->v[i].grant)
            k = min_int(k, max_int(1, a->v[i].rest / a->v[i].grant));
    a->us += k * steptime_us(&s->time, tok, apart ? 0 : n_dec);
    if (!apart && n_dec)
        decode(a, k);
    a->row += k;
    return advance(a, k);
}

/* From now to the first token of own, which is g; us. safe: rather late than early. */
static double forecast(struct sched *s, int64_t now, struct sched_seq *own,
                       const struct sched_guess *g, bool safe)
{
    struct ahead a;
    double tok = 0;
    int rc = 0;

    begin(&a, s, now, own, g, safe);
    for (int i = 0; i < EVENTS && rc == 0; i++)
        rc = turn(&a);
    if (rc == 1)
        return a.us;
    for (int i = 0; i < a.n; i++)
        tok += a.v[i].rest;
    return a.us + tok / s->cfg.step_tok * steptime_us(&s->time, s->cfg.step_tok, a.n_dec);
}

/* ---- the verdict ---- */

/* So many prompt tokens, if all that is left of each step were theirs; us. */
static double soonest_us(const struct sched *s, int tok)
{
    bool apart = s->cfg.mode == SCHED_COLOCATED;
    int seqs = apart ? 0 : s->n_running - 1, budget;

    seqs = max_int(0, min_int(seqs, s->cfg.step_tok - 1));
    budget = s->cfg.step_tok - seqs;
    return tok / budget * steptime_us(&s->time, budget, seqs) +
           (tok % budget ? steptime_us(&s->time, tok % budget, seqs) : 0);
}

/* How late a request of these parameters, not in the queue, would be. */
static double late_by(struct sched *s, int64_t now, const struct gen_params *p, int rest,
                      int64_t due, bool safe)
{
    struct sched_seq own = {
        .p = *p, .state = SEQ_WAITING, .num = UINT64_MAX, .due_us = due, .n_toks = rest};
    struct sched_guess g = {.rest = rest,
                            .out = 1,
                            .blocks = blocks_of(s, rest),
                            .tpot_us = p->tpot_us,
                            .own = true};

    sched_slack_begin(s);
    return (double)(now - due) + forecast(s, now, &own, &g, safe);
}

static bool has_target(const struct sched *s, const struct gen_params *p)
{
    return s->cfg.refuse_late && p->ttft_us > 0 && !p->n_gen &&
           p->handoff != GEN_IMPORT && steptime_known(&s->time);
}

/* After so long a request like it can be met. */
static int64_t told(struct sched *s, int64_t now, const struct gen_params *p, int rest)
{
    double late = late_by(s, now, p, rest, now + p->ttft_us, true);

    return max_i64((int64_t)late, 0) + p->ttft_us / MARGIN_PART;
}

int64_t sched_too_late(struct sched *s, int64_t now, const struct sched_event *ev,
                       int *ret_rest)
{
    const struct gen_params *p = ev->params;
    int cached = 0;

    *ret_rest = 0;
    if (!has_target(s, p))
        return 0;
    if (p->group && p->group == s->judged)
        return s->verdict; /* choices of one prompt: all or none */
    if (!p->no_cache && !p->prompt_logprobs)
        for (int i = 0; i < s->shards; i++)
            cached =
                max_int(cached, kvcache_peek(s->kv, i, p->salt, ev->prompt, p->n_prompt));
    int rest = max_int(1, p->n_prompt - cached);

    s->judged = p->group;
    s->verdict = 0;
    if (soonest_us(s, rest) > (double)p->ttft_us)
        return 0;
    *ret_rest = rest;
    if (late_by(s, now, p, rest, now - p->age_us + p->ttft_us, false) > 0)
        s->verdict = told(s, now, p, rest);
    return s->verdict;
}

void sched_drop_late(struct sched *s, int64_t now)
{
    double flight = sched_in_flight(s, now);
    int seen = 0;

    if (!s->cfg.refuse_late || !steptime_known(&s->time))
        return;
    list_for_safe(it, tmp, &s->waiting)
    {
        struct sched_seq *q = list_entry(it, struct sched_seq, link);
        const struct gen_params p = q->p;
        int rest = q->rest_judged;

        if (seen++ == SCHED_LOOK)
            return;
        if (!rest || q->started ||
            (double)now + flight + soonest_us(s, rest) <= (double)q->due_us)
            continue;
        sched_drop(s, q);
        sched_refuse_late(s, &p, told(s, now, &p, rest));
    }
}
