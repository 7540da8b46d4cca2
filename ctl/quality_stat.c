/* ctl/quality_stat.c - position by position.
 *
 * The API tells the likeliest tokens, not all of a vocabulary. What the exact model does
 * not tell goes into one rest, and what only it tells has at most the probability of the
 * last one that the other tells: the least divergence that fits what is known. So kl_mean
 * is a lower bound, close where the likeliest tokens hold most of the probability. */
#include "ctl/quality_stat.h"

#include <math.h>
#include <string.h>

#include "base/err.h"

enum { TOLD_MAX = 32 };          /* likely tokens of a position that are looked at */
static const double tiny = 1e-9; /* what a rest has at the least: sums are rounded */

static const json_t *list(const json_t *o, const char *key)
{
    return json_object_get(o, key);
}

/* The least that tokens of p, of which q does not tell, can add with the rest: none of
 * them is likelier in q than the last that q tells of; within that they share what q has
 * left as they do in p. */
static double untold(const double *a, int n, double rest_p, double rest_q, double last)
{
    bool capped[TOLD_MAX] = {false};
    double sum = 0;

    for (int i = 0; i < n; i++)
        rest_p += exp(a[i]);
    for (int i = 0; i < n; i++) {
        if (capped[i] || exp(a[i]) * rest_q <= last * rest_p)
            continue;
        capped[i] = true;
        sum += exp(a[i]) * (a[i] - log(last));
        rest_p = fmax(rest_p - exp(a[i]), tiny);
        rest_q = fmax(rest_q - last, tiny);
        i = -1; /* less is left for the others */
    }
    return sum + rest_p * log(rest_p / rest_q);
}

static double kl(const json_t *p, const json_t *q)
{
    double sum = 0, rest_p = 1, rest_q = 1, last = 1, a[TOLD_MAX];
    const char *token;
    json_t *v;
    int n = 0;

    json_object_foreach((json_t *)q, token, v)
    {
        if (json_is_number(v))
            last = fmin(last, exp(json_number_value(v)));
    }
    json_object_foreach((json_t *)p, token, v)
    {
        const json_t *w = json_object_get(q, token);

        if (!json_is_number(v) || (!json_is_number(w) && n == TOLD_MAX))
            continue;
        a[n] = json_number_value(v);
        rest_p -= exp(a[n]);
        if (!json_is_number(w)) {
            n++;
            continue;
        }
        sum += exp(a[n]) * (a[n] - json_number_value(w));
        rest_q -= exp(json_number_value(w));
    }
    return fmax(
        sum + untold(a, n, fmax(rest_p, tiny), fmax(rest_q, tiny), fmax(last, tiny)), 0);
}

/* The likeliest; NULL of none. */
static const char *best(const json_t *tops, double *ret)
{
    const char *token, *found = NULL;
    json_t *v;

    *ret = -INFINITY;
    json_object_foreach((json_t *)tops, token, v)
    {
        if (json_is_number(v) && json_number_value(v) > *ret) {
            *ret = json_number_value(v);
            found = token;
        }
    }
    return found;
}

/* Two tokens of b may be as likely as each other: either is right. */
static bool agree(const json_t *exact, const json_t *b)
{
    double x, y;
    const char *want = best(exact, &x);
    const json_t *v = want ? json_object_get(b, want) : NULL;

    return best(b, &y) && json_is_number(v) && json_number_value(v) >= y;
}

struct sums {
    double kl, nll_exact, nll;
    int agree, greedy, greedy_same;
};

static int text(const json_t *x, const json_t *y, struct sums *s,
                struct quality_figures *f, struct err *e)
{
    const json_t *tokens = list(x, "tokens"), *px = list(x, "logprobs"),
                 *py = list(y, "logprobs"), *tx = list(x, "tops"), *ty = list(y, "tops");
    size_t n = json_array_size(tokens);

    if (!n || !json_equal(tokens, list(y, "tokens")) || json_array_size(px) != n ||
        json_array_size(py) != n || json_array_size(tx) != n || json_array_size(ty) != n)
        return err_set(e, ERR_INVALID,
                       "text %d has other tokens in one run than in the other",
                       f->texts + 1);
    for (size_t i = 0; i < n; i++) {
        const json_t *a = json_array_get(px, i), *b = json_array_get(py, i);
        double d;

        if (!json_is_number(a) || !json_is_number(b))
            continue;
        f->positions++;
        s->nll_exact -= json_number_value(a);
        s->nll -= json_number_value(b);
        s->agree += agree(json_array_get(tx, i), json_array_get(ty, i));
        d = kl(json_array_get(tx, i), json_array_get(ty, i));
        s->kl += d;
        f->kl_largest = fmax(f->kl_largest, d);
    }
    return 0;
}

static void greedy(const json_t *x, const json_t *y, struct sums *s,
                   struct quality_figures *f)
{
    const json_t *gx = list(x, "greedy"), *gy = list(y, "greedy");
    size_t n = json_array_size(gx), k = 0;

    while (k < n && json_equal(json_array_get(gx, k), json_array_get(gy, k)))
        k++;
    s->greedy += (int)n;
    s->greedy_same += (int)k;
    f->greedy_texts_same += k == n && json_array_size(gy) == n;
}

int quality_compare(const json_t *exact, const json_t *b, struct quality_figures *ret,
                    struct err *e)
{
    const json_t *x = list(exact, "texts"), *y = list(b, "texts");
    struct quality_figures f = {0};
    struct sums s = {0};
    size_t n = json_array_size(x);

    if (!n || n != json_array_size(y))
        return err_set(e, ERR_INVALID, "one run has %zu texts and the other %zu", n,
                       json_array_size(y));
    for (size_t i = 0; i < n; i++) {
        if (text(json_array_get(x, i), json_array_get(y, i), &s, &f, e) < 0)
            return -1;
        greedy(json_array_get(x, i), json_array_get(y, i), &s, &f);
        f.texts++;
    }
    if (!f.positions)
        return err_set(e, ERR_INVALID, "no token of the texts has a probability");
    f.agreement = (double)s.agree / f.positions;
    f.kl_mean = s.kl / f.positions;
    f.perplexity_exact = exp(s.nll_exact / f.positions);
    f.perplexity = exp(s.nll / f.positions);
    f.greedy_same = s.greedy ? (double)s.greedy_same / s.greedy : 1;
    *ret = f;
    return 0;
}

double quality_perplexity(const json_t *said, int *ret_n)
{
    const json_t *texts = list(said, "texts");
    double sum = 0;
    int n = 0;

    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *p = list(json_array_get(texts, i), "logprobs");

        for (size_t k = 0; k < json_array_size(p); k++)
            if (json_is_number(json_array_get(p, k))) {
                sum -= json_number_value(json_array_get(p, k));
                n++;
            }
    }
    if (ret_n)
        *ret_n = n;
    return n ? exp(sum / n) : NAN;
}
