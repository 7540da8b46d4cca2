/* daemon/serve/sched_refuse.c - early refusal: whether a request is taken, and when it
 * could be.
 *
 * Whom taking would help nobody, and delay the others, is refused, and nobody else, so
 * that refusal costs no goodput. A request with a TTFT target
 *   - when it comes, if its first token cannot come in time by the forecast
 *     (sched_forecast.c), less what estimates of steps were off of late: order `age`, in
 *     its turn; order `slack`, not even as the next of all, for who is given up there is
 *     looked at anew in each step;
 *   - while it waits, once it could not even if all of the steps were its own.
 * The time after which a request like it can be met is that of a forecast that errs
 * towards late, and a part of the target to spare.
 *
 * Not refused: one that is alone too long for its target (no time is better), one that
 * another engine has begun, one that was preempted, and any before STEPTIME_MIN steps
 * were measured. TPOT targets refuse nobody: they count only in what order `slack` leaves
 * to prompts. What refusal frees goes to all that are taken, those without a TTFT target
 * and those whose TPOT will be missed as well; where these alone fill the engine the rest
 * can be better off behind requests that are late.
 *
 * Cost. Between two steps a verdict holds for those that are like it: a longer prompt
 * that is due earlier than one that was refused is refused, and one that is in time, even
 * if all that was taken since runs before it, is taken. There is one to remember for each
 * size of prompts, so a burst of requests costs some forecasts for each size and not one
 * for each request. */
#include "daemon/serve/sched_impl.h"

enum {
    MARGIN_PART = 5 /* 1 / so much of the target is added to the time that is told */
};

static double least(double a, double b) { return a < b ? a : b; }

/* Answers that get a token in each step. */
static int n_decoding(const struct sched *s)
{
    int n = 0;

    list_for(it, &s->running)
    {
        const struct sched_seq *q = list_entry(it, struct sched_seq, link);
        n += sched_rest(q) <= 0 && !q->importing;
    }
    return n;
}

/* So many prompt tokens, if all that seqs answers leave of the first step, and all of
 * those after it, were theirs; us. */
static double soonest_us(const struct sched *s, int tok, int seqs)
{
    int most = s->cfg.step_tok;

    if (s->cfg.mode == SCHED_COLOCATED)
        seqs = 0;
    int n = min_int(tok, max_int(1, most - seqs)), rest = tok - n;
    double us = steptime_us(&s->time, n, seqs);

    us += rest / most * steptime_us(&s->time, most, 0);
    return us + (rest % most ? steptime_us(&s->time, rest % most, 0) : 0);
}

static bool has_target(const struct sched *s, const struct gen_params *p)
{
    return s->cfg.refuse_late && p->ttft_us > 0 && !p->n_gen &&
           p->handoff != GEN_IMPORT && steptime_known(&s->time);
}

/* Twice what an estimate was off in the mean, as a part of it. */
static double doubt(const struct sched *s)
{
    double off = s->st.est_us ? 2 * (double)s->st.est_off_us / (double)s->st.est_us : 0;

    return off < 0.5 ? off : 0.5;
}

static double first_us(struct sched *s, int64_t now, const struct gen_params *p, int rest,
                       int64_t due, enum sched_guess_as as)
{
    struct sched_seq own = {.p = *p,
                            .state = SEQ_WAITING,
                            .num = UINT64_MAX,
                            .due_us = due,
                            .n_toks = p->n_prompt,
                            .n_found = p->n_prompt - rest};

    return (double)now + sched_forecast(s, now, &own, as);
}

/* ---- what is remembered ---- */

static struct sched_verdict *verdict_of(struct sched *s, int rest)
{
    struct sched_verdict *v = &s->verdicts[31 - __builtin_clz((unsigned)rest | 1)];

    if (v->news != s->news)
        *v = (struct sched_verdict){.news = s->news};
    return v;
}

/* No more time than this does one that was taken cost those behind it: its prompt, and
 * its part of a place. */
static double cost_us(const struct sched *s, int tok)
{
    int bt = s->cfg.kv.block_tok, places;
    int blocks = (int)(((double)tok + s->mean_out) / bt) + 1;

    places = max_int(1, min_int(s->max_run, s->cfg.kv.group[0].n_blocks / blocks));
    return soonest_us(s, tok, 0) +
           s->mean_out / places * steptime_us(&s->time, s->cfg.step_tok, places);
}

void sched_took(struct sched *s, int rest)
{
    if (s->cfg.refuse_late && steptime_known(&s->time))
        s->took_us += cost_us(s, rest);
}

/* Its first token by that forecast, and due then: too late whatever it was off. */
static bool misses(const struct sched *s, int64_t now, double first, int64_t due)
{
    return (double)now + (first - (double)now) * (1 - doubt(s)) > (double)due;
}

/* Due then, it would be late. */
static bool is_late(struct sched *s, int64_t now, const struct gen_params *p, int rest,
                    int64_t due)
{
    struct sched_verdict *v = verdict_of(s, rest);
    double more = rest > v->rest ? soonest_us(s, rest - v->rest, 0) : 0, first;

    for (int i = 0; i < 2; i++)
        if (v->late[i].rest && rest >= v->late[i].rest &&
            misses(s, now, v->late[i].first_us, due))
            return true;
    if (v->rest && v->first_us + more + s->took_us - v->took_us <= (double)due)
        return false;
    first = first_us(s, now, p, rest, due, SCHED_EVEN);
    if (misses(s, now, first, due))
        first = least(first, first_us(s, now, p, rest, due, SCHED_SOON));
    if (misses(s, now, first, due)) { /* the shortest one, and the last one */
        int i = v->late[0].rest && rest > v->late[0].rest;
        v->late[i].rest = rest;
        v->late[i].first_us = first;
        return true;
    }
    v->rest = rest;
    v->first_us = first;
    v->took_us = s->took_us;
    return false;
}

/* After so long a request like it can be met. */
static int64_t told(struct sched *s, int64_t now, const struct gen_params *p, int rest)
{
    struct sched_verdict *v = verdict_of(s, rest);

    if (!v->told) {
        v->told = rest;
        v->told_us = first_us(s, now, p, rest, now + p->ttft_us, SCHED_SAFE);
        v->told_took_us = s->took_us;
    }
    double first = v->told_us + s->took_us - v->told_took_us;
    if (rest > v->told)
        first += soonest_us(s, rest - v->told, 0);
    return max_i64((int64_t)first - now - p->ttft_us, 0) + p->ttft_us / MARGIN_PART;
}

/* ---- the verdict ---- */

int64_t sched_too_late(struct sched *s, int64_t now, const struct gen_params *p, int rest)
{
    if (p->group && p->group == s->judged)
        return s->verdict; /* choices of one prompt: all or none */
    s->judged = p->group;
    s->verdict = 0;
    if (is_late(s, now, p, rest, now - p->age_us + p->ttft_us))
        s->verdict = told(s, now, p, rest);
    return s->verdict;
}

bool sched_judged(const struct sched *s, const struct gen_params *p, int rest)
{
    return has_target(s, p) && soonest_us(s, rest, 0) <= (double)p->ttft_us;
}

void sched_drop_late(struct sched *s, int64_t now)
{
    double flight = sched_in_flight(s, now);
    int seen = 0, seqs;
    bool dropped = false;

    if (!s->cfg.refuse_late || !steptime_known(&s->time))
        return;
    seqs = n_decoding(s);
    list_for_safe(it, tmp, &s->waiting)
    {
        struct sched_seq *q = list_entry(it, struct sched_seq, link);
        const struct gen_params p = q->p;
        int rest = sched_rest(q);

        if (seen++ == SCHED_LOOK)
            break;
        if (!q->judged || q->started ||
            !misses(s, now, (double)now + flight + soonest_us(s, rest, seqs), q->due_us))
            continue;
        sched_drop(s, q);
        sched_refuse_late(s, &p, told(s, now, &p, rest));
        dropped = true;
    }
    s->news += dropped;
}
