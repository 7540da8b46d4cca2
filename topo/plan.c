/* topo/plan.c - the search: every layout of every size, the ten best, and the rest by
 * reason.
 *
 * A layout is first checked against the model (layout_check), then against memory
 * (ledger), then estimated at rising concurrency until the SLO or memory ends it. While
 * searching, links are the rack's uniform figures (fast domain and cut); the rows that
 * are left are placed, and estimated again on the links that they got. Rows are sorted by
 * tokens/s of all devices, or with a wanted rate by the devices that it takes. */
#include "topo/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "topo/facts.h"
#include "topo/graph.h"
#include "topo/path.h"
#include "topo/placement.h"
#include "topo/plan_impl.h"

enum { SEQS_MAX = 1 << 16, PREFILL_SEQS = 2 };
enum {
    WHY_FIT = LAYOUT_FAULT_COUNT - 1, /* + enum ledger_limit, which is never 0 here */
    WHY_TTFT = WHY_FIT + LEDGER_FIXED + 1,
    WHY_TPOT,
    WHY_SLOWER
};

void plan_ask_defaults(struct plan_ask *a)
{
    *a = (struct plan_ask){.isl = 1024, .osl = 1024, .skew = 1, .kv = FORMAT_BF16};
}

/* ---- the rack ---- */

static bool is_usable(const struct plan_ask *a, int dev)
{
    for (int i = 0; i < a->n_avoid; i++)
        if (a->avoid[i] == dev)
            return false;
    return graph_node(a->g, dev)->health != HEALTH_BAD;
}

static double memory_of(const struct node *n)
{
    const struct gpu_facts *f = n->is_cpu ? NULL : facts_gpu(n->model);

    return n->memory_bytes.v > 0 ? n->memory_bytes.v : f ? f->memory_bytes : 0;
}

/* A link of unknown speed counts as PCIe 3 x16, and the plan says so. */
static double known_bps(const struct plan_ask *a, int x, int y, struct plan_rack *r)
{
    double bps = paths_get(a->paths, x, y)->bps;

    if (bps > 0)
        return bps;
    r->unknown_links = true;
    return facts_pcie_bps(3, 16);
}

/* What a figure rests on: one that was not measured makes the whole one nominal. */
static void note_measured(const struct path *w, bool *measured, struct plan_rack *r)
{
    *measured = *measured && w->measured;
    if (w->measured_ms && (!r->measured_ms || w->measured_ms < r->measured_ms))
        r->measured_ms = w->measured_ms;
}

/* Devices that the first one reaches over NVLink, or those of its host where it has none:
 * their worst pair is the domain's speed, the worst of all pairs the cut's. */
static void measure_domain(const struct plan_ask *a, const int *dev, struct plan_rack *r)
{
    struct cost_cut *c = &r->cut;

    *c = (struct cost_cut){1, INFINITY, INFINITY, r->n > 1, r->n > 1};
    for (int pass = 0; pass < 2 && c->domain == 1; pass++)
        for (int i = 1; i < r->n; i++) {
            const struct path *w = paths_get(a->paths, dev[0], dev[i]);
            if (pass ? w->cls >= PATH_NET : w->cls > PATH_NVB)
                continue;
            c->domain++;
            c->bps = fmin(c->bps, known_bps(a, dev[0], dev[i], r));
            note_measured(w, &c->measured, r);
        }
    for (int i = 1; i < r->n; i++) {
        c->cut_bps = fmin(c->cut_bps, known_bps(a, dev[0], dev[i], r));
        note_measured(paths_get(a->paths, dev[0], dev[i]), &c->cut_measured, r);
    }
    c->cut_bps = isfinite(c->cut_bps) ? c->cut_bps : 1e9; /* one device: never used */
    if (!isfinite(c->bps)) {
        c->bps = c->cut_bps;
        c->measured = c->cut_measured;
    }
}

static int n_reached(const struct plan_ask *a, const int *dev, int n, int from)
{
    int reached = 0;

    for (int i = 0; i < n; i++)
        reached += paths_get(a->paths, dev[from], dev[i])->cls != PATH_DIS;
    return reached;
}

/* Usable devices that paths lead to and from, as many as there are together; the others
 * go to r->avoid. Their number is r->n, the first is the one that reaches most. */
static void choose_devices(const struct plan_ask *a, int *dev, struct plan_rack *r)
{
    const int *all;
    int n = graph_devices(a->g, &all), best = 0, n_usable = 0, *usable;

    usable = xcalloc((size_t)n + 1, sizeof(*usable));
    r->avoid = xcalloc((size_t)n + 1, sizeof(*r->avoid));
    for (int i = 0; i < n; i++) {
        if (is_usable(a, all[i]))
            usable[n_usable++] = all[i];
        else
            r->avoid[r->n_avoid++] = all[i];
    }
    for (int i = 1; i < n_usable; i++)
        if (n_reached(a, usable, n_usable, i) > n_reached(a, usable, n_usable, best))
            best = i;
    if (n_usable)
        dev[r->n++] = usable[best];
    for (int i = 0; i < n_usable; i++) {
        if (i == best)
            continue;
        if (paths_get(a->paths, usable[best], usable[i])->cls != PATH_DIS)
            dev[r->n++] = usable[i];
        else
            r->avoid[r->n_avoid++] = usable[i];
    }
    r->n_apart = n_usable - r->n;
    free(usable);
}

void plan_rack_done(struct plan_rack *r)
{
    free(r->avoid);
    r->avoid = NULL;
}

int plan_rack_of(const struct plan_ask *a, struct plan_rack *ret, struct err *e)
{
    const int *all;
    int n = graph_devices(a->g, &all), *dev = xcalloc((size_t)n + 1, sizeof(*dev));
    struct plan_rack r = {.memory = INFINITY};
    const struct node *first;

    choose_devices(a, dev, &r);
    for (int i = 0; i < r.n; i++)
        r.memory = fmin(r.memory, memory_of(graph_node(a->g, dev[i])));
    if (r.n == 0) {
        err_set(e, ERR_NOFIT, "no usable device: %d are cordoned or bad", n);
        goto fail;
    }
    if (r.memory <= 0) {
        err_set(e, ERR_UNSUPPORTED, "the memory of a device is unknown");
        goto fail;
    }
    first = graph_node(a->g, dev[0]);
    r.is_cpu = first->is_cpu;
    if (cost_device_open(r.is_cpu ? "cpu" : first->model, &r.d, e) < 0)
        goto fail;
    measure_domain(a, dev, &r);
    free(dev);
    *ret = r;
    return 0;
fail:
    free(dev);
    plan_rack_done(&r);
    return -1;
}

/* ---- reasons ---- */

void plan_note(struct plan *p, int reason, const char *why, const struct layout *l,
               const char *say)
{
    struct plan_reason *r = &p->reason[reason];

    if (r->n++ > 0)
        return;
    r->why = why;
    layout_print(l, r->layout, sizeof(r->layout));
    snprintf(r->say, sizeof(r->say), "%s", say);
}

static const char *limit_text(enum ledger_limit l)
{
    static const char *const texts[] = {"fits",
                                        "one layer is too wide for a device",
                                        "the experts do not fit",
                                        "the layers do not fit",
                                        "one sequence's KV does not fit",
                                        "the sequences' KV does not fit",
                                        "the activations of a step do not fit",
                                        "runtime and margin leave nothing"};

    return texts[l];
}

/* ---- one layout ---- */

void plan_ledger_ask(const struct plan_ask *a, const struct plan_rack *r, int seqs,
                     struct ledger_ask *ret)
{
    ledger_ask_defaults(ret, r->memory, r->is_cpu);
    ret->ctx = (int)fmin(a->isl + a->osl, 1 << 26);
    ret->seqs = seqs;
    ret->kv = a->kv;
    ret->slots = a->slots;
    ret->skew = a->skew;
}

/* Why not even one sequence a group would do, and how close it came. */
struct plan_miss {
    int why;
    double closest;
};

static bool meets(const struct plan_ask *a, enum plan_role role, const struct estimate *r,
                  int *why)
{
    if (role != PLAN_DECODE && a->ttft_ms > 0 && r->ttft_ms > a->ttft_ms)
        *why = WHY_TTFT;
    else if (role != PLAN_PREFILL && a->tpot_ms > 0 && r->tpot_ms > a->tpot_ms)
        *why = WHY_TPOT;
    else
        return true;
    return false;
}

static void estimate_role(const struct estimate_on *o, const struct estimate_load *w,
                          enum plan_role role, struct estimate *r)
{
    if (role == PLAN_BOTH)
        estimate_colocated(o, w, r);
    else if (role == PLAN_PREFILL)
        estimate_prefill(o, w, r);
    else
        estimate_decode(o, w, r);
}

void plan_estimate(const struct plan *p, const struct layout *l,
                   const struct cost_links *k, enum plan_role role, double concurrency,
                   struct estimate *ret)
{
    const struct plan_ask *a = &p->ask;
    struct estimate_load w = {a->isl, a->osl, concurrency, a->skew, a->kv};
    struct estimate_on o = {&p->rack.d, a->s, l, k};

    estimate_role(&o, &w, role, ret);
}

/* One more concurrency: taken where it meets the SLO with more requests/s. */
static bool take_load(const struct plan *p, const struct estimate_on *o,
                      enum plan_role role, double n, struct plan_try *t,
                      struct plan_miss *m)
{
    const struct plan_ask *a = &p->ask;
    struct estimate_load w = {a->isl, a->osl, n, a->skew, a->kv};
    struct estimate r;

    estimate_role(o, &w, role, &r);
    if (!meets(a, role, &r, &m->why)) {
        m->closest = m->why == WHY_TTFT ? r.ttft_ms : r.tpot_ms;
        return false;
    }
    if (t->concurrency > 0 && r.requests_s <= t->est.requests_s)
        return false;
    t->est = r;
    t->concurrency = n;
    return true;
}

/* Doubles the sequences until memory or the SLO ends it, then narrows the end down. */
static bool climb(const struct plan *p, const struct estimate_on *o, enum plan_role role,
                  int max_seqs, struct plan_try *t, struct plan_miss *m)
{
    double n = o->l->adp, step;

    t->concurrency = 0;
    if (!take_load(p, o, role, n, t, m))
        return false;
    if (role == PLAN_PREFILL)
        return true;
    while (2 * n <= max_seqs && n < SEQS_MAX && take_load(p, o, role, 2 * n, t, m))
        n *= 2;
    for (step = n / 2; step >= n / 16 && step >= o->l->adp; step /= 2)
        if (n + step <= max_seqs && take_load(p, o, role, n + step, t, m))
            n += step;
    return true;
}

/* Sequences that fit, with the logits that so many of them need. */
static int most_seqs(const struct plan *p, const struct layout *l, struct ledger_ask ask,
                     int guess)
{
    struct ledger g;

    ask.seqs = guess;
    ledger_count(p->ask.s, l, &ask, &g);
    return g.max_seqs < guess ? g.max_seqs : guess;
}

bool plan_try_layout(struct plan *p, const struct layout *l, enum plan_role role,
                     struct plan_try *t)
{
    const struct plan_ask *a = &p->ask;
    struct estimate_on o = {&p->rack.d, a->s, l, NULL};
    struct ledger_ask ask;
    struct cost_links k;
    char say[200];
    struct plan_miss m = {WHY_TTFT, 0};
    int most;

    t->l = *l;
    plan_ledger_ask(a, &p->rack, l->adp * (role == PLAN_PREFILL ? PREFILL_SEQS : 1),
                    &ask);
    ledger_count(a->s, l, &ask, &t->ledger);
    if (t->ledger.limit != LEDGER_FITS) {
        if (role == a->role)
            plan_note(p, WHY_FIT + (int)t->ledger.limit, limit_text(t->ledger.limit), l,
                      t->ledger.why);
        return false;
    }
    most = most_seqs(p, l, ask, t->ledger.max_seqs);
    cost_links_uniform(l, &p->rack.cut, &k);
    o.k = &k;
    if (!climb(p, &o, role, most, t, &m)) {
        snprintf(say, sizeof(say), "%.1f ms with one sequence in each attention group",
                 m.closest);
        if (role == a->role)
            plan_note(p, m.why,
                      m.why == WHY_TTFT ? "TTFT is over the SLO" : "TPOT is over the SLO",
                      l, say);
        return false;
    }
    ask.seqs = (int)t->concurrency;
    if (role != PLAN_PREFILL)
        ledger_count(a->s, l, &ask, &t->ledger);
    return true;
}

/* ---- the list of the best ---- */

static void drop_row(struct plan *p, const struct plan_row *r)
{
    char say[200];

    if (r->split) /* built of layouts that are counted elsewhere */
        return;
    snprintf(say, sizeof(say), "%.0f tokens/s on %d devices", r->est.tokens_s,
             r->devices);
    plan_note(p, WHY_SLOWER,
              p->ask.rate > 0 ? "reaches the rate, but with more devices or slower"
                              : "feasible, but slower than the rows shown",
              &r->l, say);
}

void plan_offer(struct plan *p, const struct plan_row *r)
{
    int at = p->n_rows;

    while (at > 0 && r->sort < p->row[at - 1].sort * (1 - 1e-12))
        at--;
    if (at == PLAN_ROWS) {
        drop_row(p, r);
        return;
    }
    if (p->n_rows == PLAN_ROWS)
        drop_row(p, &p->row[--p->n_rows]);
    memmove(&p->row[at + 1], &p->row[at], (size_t)(p->n_rows - at) * sizeof(*r));
    p->row[at] = *r;
    p->n_rows++;
}

static void offer_colocated(struct plan *p, const struct plan_try *t)
{
    struct plan_row r = {.l = t->l, .ledger = t->ledger, .est = t->est};
    int ranks = layout_ranks(&t->l), most = p->rack.n / ranks;
    double want = p->ask.replicas   ? p->ask.replicas
                  : p->ask.rate > 0 ? ceil(p->ask.rate / t->est.requests_s)
                                    : most;

    if (want > most) {
        char say[200];
        snprintf(say, sizeof(say), "%.2f requests/s with %d replicas",
                 most * t->est.requests_s, most);
        plan_note(p, WHY_SLOWER + 1,
                  p->ask.replicas ? "the devices are too few for the replicas"
                                  : "the rate is not reached",
                  &t->l, say);
        return;
    }
    r.l.replicas = (int)want;
    r.devices = ranks * r.l.replicas;
    r.concurrency = t->concurrency;
    r.est.tokens_s *= want;
    r.est.requests_s *= want;
    r.sort = p->ask.rate > 0 ? r.devices - 1e-9 * r.est.tokens_s : 1 / r.est.tokens_s;
    plan_offer(p, &r);
}

static bool on_layout(void *arg, const struct layout *l, enum layout_fault f)
{
    struct plan *p = arg;
    struct plan_try t;
    struct err e = {0};

    if (p->ask.allow && !p->ask.allow(p->ask.allow_arg, l))
        return true;
    p->tried++;
    if (p->ask.slots || f != LAYOUT_NONE)
        f = layout_check(l, p->ask.s, p->ask.slots, &e);
    if (f != LAYOUT_NONE)
        plan_note(p, (int)f - 1, layout_fault_text(f), l, e.msg);
    else if (plan_try_layout(p, l, p->ask.role, &t))
        offer_colocated(p, &t);
    return true;
}

/* ---- rows on real links ---- */

static void place_row(struct plan *p, struct plan_row *r)
{
    struct layout pools[2] = {r->l, r->l};
    struct placement_ask ask = {pools, 1, p->rack.avoid, p->rack.n_avoid};
    struct cost_links k[2];
    struct estimate prefill, decode;
    struct err e;
    double n = r->l.replicas;

    if (r->split) {
        pools[0] = r->prefill;
        ask.n_pools = 2;
    }
    if (placement_compute(p->ask.g, p->ask.paths, &ask, &r->placed, &e) < 0 ||
        p->rack.unknown_links)
        return;
    for (int i = 0; i < ask.n_pools; i++)
        placement_links(r->placed, p->ask.g, p->ask.paths, i, &k[i]);
    if (r->split) {
        plan_estimate(p, &r->prefill, &k[0], PLAN_PREFILL, r->prefill.adp, &prefill);
        plan_estimate(p, &r->l, &k[1], PLAN_DECODE, r->concurrency, &decode);
        plan_split_sum(p, &prefill, &decode, k[0].handoff_bps, r);
        return;
    }
    plan_estimate(p, &r->l, &k[0], p->ask.role, r->concurrency, &r->est);
    r->est.tokens_s *= n;
    r->est.requests_s *= n;
}

/* On its real links a row can miss what it met on the rack's usual ones. */
static bool still_meets(struct plan *p, const struct plan_row *r)
{
    char say[200];
    int why = WHY_TTFT;

    if (r->est.requests_s < p->ask.rate * (1 - 1e-9)) {
        snprintf(say, sizeof(say), "%.2f requests/s on the links of its place",
                 r->est.requests_s);
        if (!r->split)
            plan_note(p, WHY_SLOWER + 1, "the rate is not reached", &r->l, say);
        return false;
    }
    if (meets(&p->ask, p->ask.role, &r->est, &why))
        return true;
    snprintf(say, sizeof(say), "TTFT %.1f ms and TPOT %.2f ms on the links of its place",
             r->est.ttft_ms, r->est.tpot_ms);
    if (!r->split)
        plan_note(p, why,
                  why == WHY_TTFT ? "TTFT is over the SLO" : "TPOT is over the SLO",
                  &r->l, say);
    return false;
}

static void place_rows(struct plan *p)
{
    int n = 0;

    for (int i = 0; i < p->n_rows; i++) {
        struct plan_row *r = &p->row[i];
        place_row(p, r);
        if (p->ask.rate <= 0)
            r->sort = 1 / r->est.tokens_s;
        if (still_meets(p, r))
            p->row[n++] = *r;
        else
            placement_free(r->placed);
    }
    p->n_rows = n;
}

static int by_sort(const void *x, const void *y)
{
    const struct plan_row *a = x, *b = y;

    return (a->sort > b->sort) - (a->sort < b->sort);
}

static int most_common(const struct plan *p, struct err *e)
{
    const struct plan_reason *r = &p->reason[0];

    for (int i = 1; i < PLAN_REASONS; i++)
        if (p->reason[i].n > r->n)
            r = &p->reason[i];
    return err_set(e, ERR_NOFIT,
                   "none of %d layouts of %s on %d devices is left: %s (%d of "
                   "them, such as %s: %s)",
                   p->tried, p->ask.s->name, p->rack.n, r->n ? r->why : "none was tried",
                   r->n, r->layout, r->say);
}

int plan_make(const struct plan_ask *a, struct plan **ret, struct err *e)
{
    struct plan *p = xcalloc(1, sizeof(*p));

    p->ask = *a;
    if (a->isl < 1 || a->osl < 1 || a->isl + a->osl > 1 << 26) {
        err_set(e, ERR_RANGE, "%g prompt and %g output tokens are no load to plan for",
                a->isl, a->osl);
        goto fail;
    }
    if (plan_rack_of(a, &p->rack, e) < 0)
        goto fail;
    for (int n = 1; n <= p->rack.n; n++)
        layout_enumerate(a->s, n, a->with_cp, on_layout, p);
    if (!p->ask.replicas)
        plan_split(p);
    if (p->n_rows == 0) {
        most_common(p, e);
        goto fail;
    }
    place_rows(p);
    if (p->n_rows == 0) {
        most_common(p, e);
        goto fail;
    }
    qsort(p->row, (size_t)p->n_rows, sizeof(p->row[0]), by_sort);
    *ret = p;
    return 0;
fail:
    plan_free(p);
    return -1;
}

void plan_free(struct plan *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->n_rows; i++)
        placement_free(p->row[i].placed);
    plan_rack_done(&p->rack);
    free(p);
}

int plan_rows(const struct plan *p, const struct plan_row **ret)
{
    *ret = p->row;
    return p->n_rows;
}

int plan_reasons(const struct plan *p, const struct plan_reason **ret)
{
    *ret = p->reason;
    return PLAN_REASONS;
}

int plan_tried(const struct plan *p) { return p->tried; }
