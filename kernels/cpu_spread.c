/* kernels/cpu_spread.c - which copy of its expert each pair goes to.
 *
 * One plain pass over the pairs or three, by one thread: what it costs is small beside
 * one expert's product. Integers only, so that every rank that has the same pairs comes
 * to the same answer.
 *
 * Least loaded: the ranks first take the pairs of experts that have one copy; then, the
 * most wanted expert first, an expert's pairs are filled into the ranks of its copies
 * like water, lowest first; and twice again, each in the place that the others leave,
 * which comes close to the least that the fullest rank can have. Which pair takes which
 * place is settled last: pairs go to a copy on their own rank while it has places, then
 * on their own host, then to any. So nearness never makes a rank busier. */
#include <string.h>

#include "kernels/cpu.h"

enum { MAX_RANKS = 4096, AGAIN = 2 };
static const uint32_t golden = 0x9e3779b9, other = 0x85ebca6b; /* odd, far from periods */

struct job {
    const struct op_spread *o;
    const int32_t *ids, *first, *rank, *slot, *upto, *host;
    int32_t *to, *at; /* at: a pair's copy, then its slot */
    int32_t *count, *seen, *load, *quota, *near;
    int n, n_expert;
};

static bool start(struct job *s, struct stream *st, const struct op_spread *o)
{
    int32_t *at = cpu_ints(&o->scratch);

    *s = (struct job){.o = o, .n = o->rows * o->top_k, .n_expert = o->first.n - 1};
    s->ids = cpu_iview(&o->ids);
    s->first = cpu_iview(&o->first);
    s->rank = cpu_iview(&o->rank);
    s->slot = cpu_iview(&o->slot);
    s->upto = cpu_iview(&o->upto);
    s->host = cpu_iview(&o->host);
    s->to = cpu_ints(&o->to);
    s->at = cpu_ints(&o->to_slot);
    s->count = at;
    s->seen = at + s->n_expert;
    s->load = at + 2 * s->n_expert;
    s->quota = s->load + o->n_rank;
    s->near = s->quota + o->rank.n;
    for (int x = 0; x < s->n_expert; x++)
        if (s->first[x] < 0 || s->first[x + 1] > o->rank.n ||
            s->first[x] > s->first[x + 1]) {
            cpu_stream_fault(st, "spread: expert %d has copies %d to %d of %d", x,
                             s->first[x], s->first[x + 1], o->rank.n);
            return false;
        }
    for (int p = 0; p < s->n; p++)
        if (s->ids[p] >= s->n_expert ||
            (s->ids[p] >= 0 && s->first[s->ids[p]] == s->first[s->ids[p] + 1])) {
            cpu_stream_fault(st, "spread: expert %d of %d stands nowhere", s->ids[p],
                             s->n_expert);
            return false;
        }
    return true;
}

/* The rank that a pair comes from. */
static int source_of(const struct op_spread *o, int p)
{
    int row = p / o->top_k, each, more;

    if (!o->n_src)
        return o->src;
    each = o->rows / o->n_src;
    more = o->rows % o->n_src;
    return row < more * (each + 1) ? row / (each + 1)
                                   : more + (row - more * (each + 1)) / each;
}

static void count_pairs(struct job *s)
{
    memset(s->count, 0, (size_t)s->n_expert * sizeof(*s->count));
    for (int p = 0; p < s->n; p++)
        if (s->ids[p] >= 0)
            s->count[s->ids[p]]++;
}

/* ---- by shares ---- */

static int pick(const struct job *s, int x, int64_t u)
{
    int c = s->first[x];

    while (c < s->first[x + 1] - 1 && u >= s->upto[c])
        c++;
    return c;
}

/* The j-th of an expert's n pairs stands at (j + phase) / n: each copy gets its share of
 * this batch within one pair, and of many batches of one pair exactly. */
static void by_batch(struct job *s)
{
    count_pairs(s);
    memset(s->seen, 0, (size_t)s->n_expert * sizeof(*s->seen));
    for (int p = 0; p < s->n; p++) {
        int x = s->ids[p];
        if (x < 0)
            continue;
        int64_t phase = (s->o->phase + (uint32_t)x * other) >> 2;
        int64_t u = ((int64_t)s->seen[x]++ * SPREAD_ONE + phase) / s->count[x];
        s->at[p] = pick(s, x, u);
    }
}

static void by_number(struct job *s)
{
    for (int p = 0; p < s->n; p++)
        if (s->ids[p] >= 0)
            s->at[p] = pick(s, s->ids[p], ((uint32_t)p * golden + s->o->phase) >> 2);
}

/* ---- by load ---- */

static int copies(const struct job *s, int x) { return s->first[x + 1] - s->first[x]; }

/* Is copy a to be filled before copy b? The lower, then where more of them come from: the
 * same rank, or at least the same host. */
static bool before(const struct job *s, int a, int b)
{
    int la = s->load[s->rank[a]], lb = s->load[s->rank[b]];

    return la != lb                   ? la < lb
           : s->near[a] != s->near[b] ? s->near[a] > s->near[b]
                                      : a < b;
}

/* The pairs of expert x into its copies, lowest rank first. */
static void fill(struct job *s, int x)
{
    int order[MAX_RANKS], m = 0, left = s->count[x], wet = 1;

    for (int c = s->first[x]; c < s->first[x + 1]; c++, m++) {
        int i = m;
        for (; i > 0 && before(s, c, order[i - 1]); i--)
            order[i] = order[i - 1];
        order[i] = c;
        s->quota[c] = 0;
    }
    while (left) {
        int level = s->load[s->rank[order[0]]], step = left / wet;
        while (wet < m && s->load[s->rank[order[wet]]] == level)
            step = left / ++wet;
        if (wet < m && s->load[s->rank[order[wet]]] - level < step)
            step = s->load[s->rank[order[wet]]] - level;
        for (int i = 0; i < wet && left; i++) {
            int n = step ? step : 1;
            s->quota[order[i]] += n;
            s->load[s->rank[order[i]]] += n;
            left -= n;
        }
    }
}

/* The most wanted expert with several copies that was not filled yet; -1. */
static int most_wanted(const struct job *s)
{
    int best = -1;

    for (int x = 0; x < s->n_expert; x++)
        if (!s->seen[x] && s->count[x] && copies(s, x) > 1 &&
            (best < 0 || s->count[x] > s->count[best]))
            best = x;
    return best;
}

/* Take an expert out and fill it in again where the others left room. */
static void refill(struct job *s)
{
    for (int x = 0; x < s->n_expert; x++) {
        if (!s->count[x] || copies(s, x) == 1)
            continue;
        for (int c = s->first[x]; c < s->first[x + 1]; c++)
            s->load[s->rank[c]] -= s->quota[c];
        fill(s, x);
    }
}

/* Pairs that have no place yet to copies with places left, as near as `near` asks: 0 the
 * same rank, 1 the same host, 2 any. */
static void take_places(struct job *s, int near)
{
    for (int p = 0; p < s->n; p++) {
        int x = s->ids[p], src, c;

        if (x < 0 || s->at[p] >= 0)
            continue;
        src = source_of(s->o, p);
        for (c = s->first[x]; c < s->first[x + 1]; c++)
            if (s->quota[c] > 0 &&
                (near == 2 || (near == 1 && s->host[s->rank[c]] == s->host[src]) ||
                 s->rank[c] == src))
                break;
        if (c == s->first[x + 1])
            continue;
        s->at[p] = c;
        s->quota[c]--;
    }
}

static void by_load(struct job *s)
{
    count_pairs(s);
    memset(s->seen, 0, (size_t)s->n_expert * sizeof(*s->seen));
    memset(s->load, 0, (size_t)s->o->n_rank * sizeof(*s->load));
    memset(s->near, 0, (size_t)s->o->rank.n * sizeof(*s->near));
    for (int x = 0; x < s->n_expert; x++)
        if (copies(s, x) == 1)
            s->load[s->rank[s->first[x]]] += s->count[x];
    for (int p = 0; p < s->n; p++) {
        int x = s->ids[p];

        s->at[p] = x >= 0 && copies(s, x) == 1 ? s->first[x] : -1;
        for (int c = x < 0 ? 0 : s->first[x]; x >= 0 && c < s->first[x + 1]; c++) {
            int src = source_of(s->o, p);
            s->near[c] += (s->rank[c] == src) + (s->host[s->rank[c]] == s->host[src]);
        }
    }
    for (int x; (x = most_wanted(s)) >= 0; s->seen[x] = 1)
        fill(s, x);
    for (int again = 0; again < AGAIN; again++)
        refill(s);
    for (int near = 0; near < 3; near++)
        take_places(s, near);
}

/* ---- capacity ---- */

static void count_moved(const struct op_spread *o, int row)
{
    const struct op_rows *w = &o->who;
    bool mine = !w->mark.buf || (row >= w->first && row - w->first < w->n);
    int phase = w->mark.buf ? cpu_iview(&w->mark)[row] % OP_PHASES : 0;
    int64_t *moved = cpu_lview(&o->moved[phase]);

    if (mine && moved)
        ++*moved;
}

/* Pairs over a copy's capacity to the emptiest other copy that has room, where one has.
 */
static void relieve(struct job *s)
{
    int cap = s->o->cap;

    memset(s->quota, 0, (size_t)s->o->rank.n * sizeof(*s->quota));
    for (int p = 0; p < s->n; p++)
        if (s->ids[p] >= 0)
            s->quota[s->at[p]]++;
    for (int p = s->n - 1; p >= 0; p--) {
        int x = s->ids[p], best;

        if (x < 0 || s->quota[s->at[p]] <= cap)
            continue;
        best = s->first[x];
        for (int c = best; c < s->first[x + 1]; c++)
            best = s->quota[c] < s->quota[best] ? c : best;
        if (s->quota[best] >= cap)
            continue;
        s->quota[s->at[p]]--;
        s->quota[best]++;
        s->at[p] = best;
        count_moved(s->o, p / s->o->top_k);
    }
}

int cpu_op_spread(struct stream *st, const struct op_spread *o, struct err *e)
{
    static void (*const policies[])(struct job * s) = {
        [SPREAD_STATIC] = by_batch,
        [SPREAD_LEAST_LOADED] = by_load,
        [SPREAD_PROBABILITIES] = by_number,
    };
    struct job s;

    (void)e;
    if (!start(&s, st, o))
        return 0;
    policies[o->policy](&s);
    if (o->cap)
        relieve(&s);
    for (int p = 0; p < s.n; p++) {
        int c = s.ids[p] < 0 ? -1 : s.at[p];

        s.to[p] = c < 0 ? -1 : s.rank[c];
        s.at[p] = c < 0 ? -1 : s.slot[c];
    }
    return 0;
}
