/* daemon/serve/sched_slack.c - targets of requests: who is how late, and what fits.
 *
 * A request may have a target for its first token (TTFT) and for those that follow
 * (TPOT). Its slack is what is left until the first one is due, less the time that the
 * rest of its prompt needs by the steps that were measured (steptime.h).
 *
 * Order `slack`. Prompts, running and waiting ones (of these the SCHED_LOOK oldest), go
 * in three ranks:
 *   0. those passed over too long: the oldest waiting one after SCHED_AGE admissions of
 *      others, a running one after SCHED_AGE steps of other prompts; by age;
 *   1. those that can still meet their target, by when they are due: whose slack is less
 *      than what those before it take is late, so the longest of them and it is given up,
 *      until as many as possible are in time;
 *   2. those given up, those without slack, and those without a target; by age.
 * While one of rank 1 waits for blocks none of rank 2 takes those that are free.
 * So the bounds of order `age` hold for places: with k older ones waiting a prompt starts
 * after at most (k + 1) (SCHED_AGE + 1) admissions; and of those that run the oldest one
 * gets tokens in each (SCHED_AGE + 1)th step of prompts at least.
 *
 * Decoding, policy `chunked`: a step takes as many prompt tokens as let it end before the
 * next token of each running answer is due: the k-th after the first is due k times
 * (SCHED_TPOT_PART % of) its TPOT after it. What an answer has got ahead is spent on
 * prompts. But prompts get 1 / SCHED_MIN_SHARE of what is left of the budget in each step
 * whatever is due, so they cannot starve.
 *
 * Policy `colocated`, likewise: a step of prompts has to wait for one of answers when
 * both would end after the next token of one of them is due, but not when
 * SCHED_MIN_SHARE steps of answers came in a row.
 *
 * sched_refuse.c refuses who comes too late. */
#include "daemon/serve/sched_impl.h"

#include <stdlib.h>

/* ---- estimates ---- */

static bool decodes(const struct sched_seq *q)
{
    return q->next_pos >= q->prefill_end && !q->importing;
}

/* Prompt tokens that one step takes beside what decodes now, and its time. */
static void pace(struct sched *s)
{
    int64_t tpot = INT64_MAX;
    int n = 0;

    list_for(it, &s->running)
    {
        const struct sched_seq *q = list_entry(it, struct sched_seq, link);
        n += decodes(q);
        if (decodes(q) && q->p.tpot_us)
            tpot = min_i64(tpot, sched_tpot(q));
    }
    s->pace_seqs = s->pace_answers = n;
    s->pace_tok = max_int(1, s->cfg.step_tok - n);
    s->pace_us = 0;
    if (!steptime_known(&s->time))
        return;
    if (s->cfg.mode == SCHED_COLOCATED) {
        s->pace_tok = s->cfg.step_tok;
        s->pace_seqs = 0;
        s->pace_us = n ? steptime_us(&s->time, 0, n) / max_int(1, s->cfg.prefill_run) : 0;
    } else if (s->cfg.order == SCHED_BY_SLACK && tpot < INT64_MAX) {
        int fit = steptime_fit(&s->time, n, (double)tpot);
        s->pace_tok = min_int(s->pace_tok, max_int(fit, s->pace_tok / SCHED_MIN_SHARE));
        s->pace_tok = max_int(1, s->pace_tok);
    }
    s->pace_us += steptime_us(&s->time, s->pace_tok, s->pace_seqs);
}

/* To compute so many prompt tokens, by the last pace(). */
static int64_t time_of(const struct sched *s, int64_t tok)
{
    int64_t steps = tok / s->pace_tok, rest = tok % s->pace_tok;
    double us = (double)steps * s->pace_us;

    if (rest)
        us += s->pace_us - steptime_us(&s->time, s->pace_tok, s->pace_seqs) +
              steptime_us(&s->time, (double)rest, s->pace_seqs);
    return (int64_t)us;
}

int sched_rest(const struct sched_seq *q)
{
    if (q->state == SEQ_RUNNING)
        return q->importing ? 0 : q->prefill_end - q->next_pos;
    if (q->p.handoff == GEN_IMPORT)
        return 0; /* another engine computes it */
    return max_int(1, q->n_toks - q->n_found);
}

int64_t sched_tpot(const struct sched_seq *q)
{
    return q->p.tpot_us * SCHED_TPOT_PART / 100;
}

int64_t sched_token_due(const struct sched_seq *q)
{
    return q->first_us + (q->n_toks - q->given + q->n_flight) * sched_tpot(q);
}

/* Until the steps in flight are back, at most. */
double sched_in_flight(const struct sched *s, int64_t now)
{
    double us = 0;

    for (int i = 0; i < s->n_flights; i++) {
        const struct flight *fl = &s->flights[(s->flight_head + i) % s->cfg.depth];
        double gone = i || !fl->submitted ? 0 : (double)(now - fl->begin_us);
        us += fl->est_us > gone ? fl->est_us - gone : 0;
    }
    return us;
}

void sched_time_form(struct sched *s, int64_t now, struct flight *fl)
{
    fl->begin_us = now;
    fl->n_prompt_tok = fl->n_decode = 0;
    for (int i = 0; i < fl->n_items; i++) {
        const struct flight_item *fi = &fl->items[i];
        if (fi->first_pos < fi->q->prefill_end)
            fl->n_prompt_tok += fi->n_tok;
        else
            fl->n_decode++;
    }
    fl->est_us = steptime_us(&s->time, fl->n_prompt_tok, fl->n_decode);
}

void sched_time_done(struct sched *s, const struct flight *fl, const struct step_done *d)
{
    int64_t us = d->end_us - d->start_us;

    struct sched_shape *shape = fl->n_prompt_tok ? &s->st.prompts : &s->st.answers;

    if (d->error || us <= 0 || !fl->n_items)
        return;
    shape->steps++;
    shape->us += (uint64_t)us;
    shape->seqs += (uint64_t)fl->n_decode;
    s->st.shape_tok += (uint64_t)fl->n_prompt_tok;
    if (fl->est_us > 0) {
        double off = fl->est_us - (double)us;
        s->st.est_steps++;
        s->st.est_us += (uint64_t)us;
        s->st.est_off_us += (uint64_t)(off < 0 ? -off : off);
    }
    steptime_add(&s->time, fl->n_prompt_tok, fl->n_decode, us);
}

/* ---- slack ---- */

static int64_t slack_of(const struct sched *s, int64_t now, const struct sched_seq *q)
{
    return q->due_us - now - time_of(s, sched_rest(q));
}

void sched_slack_start(struct sched *s, int64_t now, struct sched_seq *q)
{
    if (!q->p.ttft_us)
        return;
    pace(s);
    q->slack_us = slack_of(s, now, q);
    q->has_slack = true;
}

static int by_rank(const void *a, const void *b)
{
    const struct sched_rank *p = a, *q = b;

    if (p->rank != q->rank)
        return p->rank < q->rank ? -1 : 1;
    if (p->key != q->key)
        return p->key < q->key ? -1 : 1;
    return p->q->num < q->q->num ? -1 : p->q->num > q->q->num;
}

static void put_rank(struct sched *s, int64_t now, struct sched_seq *q, bool aged, int at)
{
    struct sched_rank *r = &s->rank[at];

    *r = (struct sched_rank){.q = q, .rank = 2, .us = time_of(s, sched_rest(q))};
    if (aged)
        r->rank = 0;
    else if (q->p.ttft_us && q->due_us - now >= r->us)
        r->rank = 1, r->key = q->due_us;
}

/* The longest of rank 1 on top of the heap, of equal ones the last. */
static bool longer(const struct sched *s, int a, int b)
{
    int64_t x = s->rank[s->heap[a]].us, y = s->rank[s->heap[b]].us;

    return x != y ? x > y : s->heap[a] > s->heap[b];
}

static void swap(struct sched *s, int a, int b)
{
    int t = s->heap[a];

    s->heap[a] = s->heap[b];
    s->heap[b] = t;
}

static void heap_push(struct sched *s, int n, int i)
{
    s->heap[n] = i;
    for (int up; n > 0 && longer(s, n, up = (n - 1) / 2); n = up)
        swap(s, n, up);
}

/* Of n, n > 0. */
static int heap_pop(struct sched *s, int n)
{
    int top = s->heap[0];

    s->heap[0] = s->heap[--n];
    for (int i = 0, k; (k = 2 * i + 1) < n; i = k) {
        k += k + 1 < n && longer(s, k + 1, k);
        if (!longer(s, k, i))
            break;
        swap(s, i, k);
    }
    return top;
}

/* Of rank 1, in order: where one would be late behind those before it, the longest of
 * them and it is given up, so that as many as can be are in time. */
static void give_up_late(struct sched *s, int64_t now, int n)
{
    int64_t at = now + (int64_t)sched_in_flight(s, now);
    int n_heap = 0;

    for (int i = 0; i < n && s->rank[i].rank < 2; i++) {
        at += s->rank[i].us;
        if (s->rank[i].rank != 1)
            continue;
        heap_push(s, n_heap++, i);
        if (at <= s->rank[i].key)
            continue;
        int longest = heap_pop(s, n_heap--);
        at -= s->rank[longest].us;
        s->rank[longest].rank = 3;
    }
    for (int i = 0; i < n; i++)
        if (s->rank[i].rank == 3)
            s->rank[i].rank = 2, s->rank[i].key = 0;
}

int sched_by_slack(struct sched *s, int64_t now, int n_order, bool waiting,
                   struct sched_seq *extra)
{
    int n = 0, seen = 0;

    for (int i = 0; i < n_order; i++) {
        struct sched_seq *q = s->order[i];
        if (q->state == SEQ_RUNNING && q->next_pos < q->prefill_end && sched_need(q) > 0)
            put_rank(s, now, q, q->skipped >= SCHED_AGE, n++);
    }
    if (waiting)
        list_for(it, &s->waiting)
        {
            struct sched_seq *q = list_entry(it, struct sched_seq, link);
            if (seen++ == SCHED_LOOK)
                break;
            put_rank(s, now, q, q->passed >= SCHED_AGE, n++);
        }
    if (extra)
        put_rank(s, now, extra, false, n++);
    s->work += 3 * sched_sort_work(n);
    qsort(s->rank, (size_t)n, sizeof(*s->rank), by_rank);
    give_up_late(s, now, n);
    qsort(s->rank, (size_t)n, sizeof(*s->rank), by_rank);
    return n;
}

void sched_slack_begin(struct sched *s) { pace(s); }

void sched_slack_end(struct sched *s, int n_order)
{
    bool any = false;

    for (int i = 0; i < n_order; i++) {
        const struct sched_seq *q = s->order[i];
        any |= q->state == SEQ_RUNNING && q->next_pos < q->prefill_end && q->grant;
    }
    for (int i = 0; i < n_order; i++) {
        struct sched_seq *q = s->order[i];
        if (q->state != SEQ_RUNNING || q->next_pos >= q->prefill_end ||
            sched_need(q) <= 0 || q->grant)
            q->skipped = 0;
        else
            q->skipped += any;
    }
}

/* Until the next token of an answer is due, INT64_MAX = none is. planned: of those that
 * the step has. */
static int64_t slack_of_answers(const struct sched *s, int64_t now, bool planned)
{
    int64_t slack = INT64_MAX;

    list_for(it, &s->running)
    {
        const struct sched_seq *q = list_entry(it, struct sched_seq, link);
        if (!decodes(q) || q->n_toks <= q->given || (planned && !q->grant) ||
            !q->p.tpot_us)
            continue;
        slack = min_i64(slack, sched_token_due(q) - now);
    }
    return slack;
}

int sched_slack_chunk(const struct sched *s, int64_t now, int left)
{
    int n = 0;

    if (!steptime_known(&s->time) || left <= 0)
        return left;
    list_for(it, &s->running)
    {
        const struct sched_seq *q = list_entry(it, struct sched_seq, link);
        n += decodes(q) && q->grant > 0;
    }
    int64_t slack = slack_of_answers(s, now, true);
    if (slack == INT64_MAX)
        return left;
    int fit = steptime_fit(&s->time, n, (double)slack - sched_in_flight(s, now));
    return min_int(left, max_int(fit, max_int(1, left / SCHED_MIN_SHARE)));
}

bool sched_slack_decode_first(const struct sched *s, int64_t now)
{
    int64_t tok = 0, slack;

    if (!steptime_known(&s->time) || s->decode_row >= SCHED_MIN_SHARE)
        return false;
    slack = slack_of_answers(s, now, false);
    if (slack == INT64_MAX)
        return false;
    for (int i = 0; i < SCHED_CLASSES; i++)
        tok += s->wait_tok[i];
    list_for(it, &s->running)
    {
        const struct sched_seq *q = list_entry(it, struct sched_seq, link);
        tok += max_int(0, sched_rest(q));
    }
    return (double)slack <
           sched_in_flight(s, now) + steptime_us(&s->time, 0, s->pace_answers) +
               steptime_us(&s->time, (double)min_i64(tok, s->cfg.step_tok), 0);
}
