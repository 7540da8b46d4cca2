/* topo/plan_split.c - prefill and decode pools: which layouts, how many workers of each.
 *
 * For every size the prefill layout with most prompts/s a device and the decode layout
 * with most requests/s a device are kept; then all pairs of sizes are filled up with
 * workers so that neither pool waits for the other, and for each decode size the best
 * pair is offered. Requests/s is what the slower pool gives. The handoff is part of TTFT:
 * one prompt's KV over the links that the workers' ranks have in parallel, as in `explain
 * handoff`. */
#include "topo/plan_impl.h"

#include <math.h>
#include <stdlib.h>

#include "base/mem.h"
#include "topo/formula.h"

struct best {
    struct plan_try *prefill, *decode; /* by size; concurrency 0 = none */
    struct plan *p;
    int size;
};

static void keep(struct plan_try *best, const struct plan_try *t)
{
    if (best->concurrency == 0 || t->est.requests_s > best->est.requests_s * (1 + 1e-12))
        *best = *t;
}

static bool on_layout(void *arg, const struct layout *l, enum layout_fault f)
{
    struct best *b = arg;
    struct plan_try t;
    struct err *none = NULL;

    if (b->p->ask.slots)
        f = layout_check(l, b->p->ask.s, b->p->ask.slots, none);
    if (f != LAYOUT_NONE)
        return true;
    if (plan_try_layout(b->p, l, PLAN_PREFILL, &t))
        keep(&b->prefill[b->size], &t);
    if (plan_try_layout(b->p, l, PLAN_DECODE, &t))
        keep(&b->decode[b->size], &t);
    return true;
}

static double handoff_ms(const struct plan *p, const struct layout *a,
                         const struct layout *b, double bps)
{
    int ranks = layout_ranks(a) < layout_ranks(b) ? layout_ranks(a) : layout_ranks(b);
    bool measured = p->rack.cut.measured && p->rack.cut.cut_measured;
    double bytes = 0;

    for (int i = 0; i < p->ask.s->n_layer; i++)
        bytes += shapes_kv_token(p->ask.s, i, p->ask.kv, 1) * p->ask.isl +
                 shapes_state(p->ask.s, i, 1) + shapes_conv_state(p->ask.s, i, 1);
    ranks = ranks / a->adp > 0 ? ranks / a->adp : 1; /* those that hold this prompt */
    return 1e3 * formula_transfer(0, bytes,
                                  bps * ranks * (measured ? 1 : p->rack.d.link_share));
}

void plan_split_sum(const struct plan *p, const struct estimate *prefill,
                    const struct estimate *decode, double bps, struct plan_row *r)
{
    double rate = fmin(prefill->requests_s * r->prefill.replicas,
                       decode->requests_s * r->l.replicas);

    r->handoff_ms = handoff_ms(p, &r->prefill, &r->l, bps);
    r->est = *decode;
    r->est.ttft_ms = prefill->ttft_ms + r->handoff_ms;
    r->est.prefill_bottleneck = prefill->prefill_bottleneck;
    r->est.requests_s = rate;
    r->est.tokens_s = rate * p->ask.osl;
    r->est.tokens_s_gpu = r->est.tokens_s / r->devices;
}

/* The row of n_a prefill and n_b decode workers; keeps the better one in *best. */
static void weigh(const struct plan *p, const struct plan_try *a, int n_a,
                  const struct plan_try *b, int n_b, struct plan_row *best)
{
    struct plan_row r = {.split = true, .l = b->l, .prefill = a->l, .ledger = b->ledger};
    const struct cost_cut *c = &p->rack.cut;

    r.prefill_ledger = a->ledger;
    r.l.replicas = n_b;
    r.prefill.replicas = n_a;
    r.devices = n_a * layout_ranks(&a->l) + n_b * layout_ranks(&b->l);
    r.concurrency = b->concurrency;
    plan_split_sum(p, &a->est, &b->est, c->domain >= p->rack.n ? c->bps : c->cut_bps, &r);
    if (r.est.requests_s < p->ask.rate ||
        (p->ask.ttft_ms > 0 && r.est.ttft_ms > p->ask.ttft_ms))
        return;
    r.sort = p->ask.rate > 0 ? r.devices - 1e-9 * r.est.tokens_s : 1 / r.est.tokens_s;
    if (best->devices == 0 || r.sort < best->sort * (1 - 1e-12))
        *best = r;
}

/* Workers of both kinds: the most requests/s, or the fewest devices for the rate. */
static void fill_pools(const struct plan *p, const struct plan_try *a,
                       const struct plan_try *b, struct plan_row *row)
{
    int size_a = layout_ranks(&a->l), size_b = layout_ranks(&b->l), best_a = 0,
        best_b = 0;
    double best = -INFINITY;

    for (int n_a = 1; n_a * size_a + size_b <= p->rack.n; n_a++) {
        double in = n_a * a->est.requests_s, worth;
        double need = p->ask.rate > 0 ? p->ask.rate : in;
        int most = (p->rack.n - n_a * size_a) / size_b;
        int n_b = (int)fmin(fmax(ceil(need / b->est.requests_s), 1), most);
        worth = p->ask.rate > 0 ? -(n_a * size_a + n_b * size_b)
                                : fmin(in, n_b * b->est.requests_s);
        if (p->ask.rate > 0 && fmin(in, n_b * b->est.requests_s) < p->ask.rate)
            continue;
        if (worth > best) {
            best = worth;
            best_a = n_a;
            best_b = n_b;
        }
    }
    if (best_a)
        weigh(p, a, best_a, b, best_b, row);
}

void plan_split(struct plan *p)
{
    size_t n = (size_t)p->rack.n + 1;
    struct best b = {.p = p};

    b.prefill = xcalloc(n, sizeof(*b.prefill));
    b.decode = xcalloc(n, sizeof(*b.decode));
    for (b.size = 1; b.size < p->rack.n; b.size++)
        layout_enumerate(p->ask.s, b.size, p->ask.with_cp, on_layout, &b);
    for (int y = 1; y < p->rack.n; y++) {
        struct plan_row row = {.devices = 0};
        for (int x = 1; x < p->rack.n && b.decode[y].concurrency > 0; x++)
            if (b.prefill[x].concurrency > 0)
                fill_pools(p, &b.prefill[x], &b.decode[y], &row);
        if (row.devices)
            plan_offer(p, &row);
    }
    free(b.prefill);
    free(b.decode);
}
