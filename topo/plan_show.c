/* topo/plan_show.c - a plan as a table, as JSON, and the walk behind one layout. */
#include "topo/plan.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "topo/graph.h"
#include "topo/placement.h"
#include "topo/plan_impl.h"
#include "topo/show.h"

#define GB 1e9

static void row_name(const struct plan_row *r, char *out, size_t cap)
{
    char a[96], b[96];

    layout_print(&r->l, a, sizeof(a));
    layout_print(&r->prefill, b, sizeof(b));
    if (r->split)
        snprintf(out, cap, "prefill %s | decode %s", b, a);
    else
        snprintf(out, cap, "%s", a);
}

static void print_reasons(const struct plan *p, struct buf *out)
{
    buf_printf(out, "discarded, of %d layouts tried:\n", p->tried);
    for (int i = 0; i < PLAN_REASONS; i++) {
        const struct plan_reason *r = &p->reason[i];
        if (r->n)
            buf_printf(out, "%6d %s; such as %s: %s\n", r->n, r->why, r->layout, r->say);
    }
}

static void print_links(const struct plan *p, struct buf *out)
{
    const struct cost_cut *c = &p->rack.cut;
    char day[16];

    buf_puts(out, "links: ");
    if (!c->measured && !c->cut_measured) {
        buf_puts(out, "as their type promises\n");
        return;
    }
    buf_puts(out, c->cut_measured ? "measured" : "measured inside the fast domain");
    if (p->rack.measured_ms) {
        topo_day(p->rack.measured_ms, day, sizeof(day));
        buf_printf(out, " %s", day);
    }
    buf_putc(out, '\n');
}

void plan_print(const struct plan *p, struct buf *out)
{
    const struct plan_ask *a = &p->ask;

    buf_printf(out,
               "%s on %d x %s of %.1f GB (%s%s), %.0f/%.0f tokens in/out, KV in %s\n",
               a->s->name, p->rack.n, p->rack.d.name, p->rack.memory / GB,
               graph_source(a->g), graph_emulated(a->g) ? ", emulated" : "", a->isl,
               a->osl, weight_format_name(a->kv));
    buf_printf(out, "speeds: %s\n",
               p->rack.is_cpu           ? "assumed until probed"
               : p->rack.d.extrapolated ? "extrapolated from the nearest measured device"
                                        : "from measured op tables");
    print_links(p, out);
    if (a->n_avoid)
        buf_printf(out, "cordoned: %d devices\n", a->n_avoid);
    if (p->rack.n_apart)
        buf_printf(out, "left out: %d devices that no path leads to\n", p->rack.n_apart);
    if (p->rack.unknown_links)
        buf_puts(out, "links of unknown speed count as PCIe 3 x16\n");
    buf_printf(out, "%-2s %4s %6s %9s %8s %11s %9s %8s  %-22s %-22s %s\n", "", "devs",
               "seqs", "TTFT ms", "TPOT ms", "tokens/s", "tok/s/GPU", "GB used",
               "prefill is bound by", "decode is bound by", "layout");
    for (int i = 0; i < p->n_rows; i++) {
        const struct plan_row *r = &p->row[i];
        char name[256];
        row_name(r, name, sizeof(name));
        buf_printf(out, "%-2d %4d %6.0f %9.1f %8.2f %11.0f %9.1f %8.1f  %-22s %-22s %s\n",
                   i + 1, r->devices, r->concurrency, r->est.ttft_ms, r->est.tpot_ms,
                   r->est.tokens_s, r->est.tokens_s / r->devices, r->ledger.total / GB,
                   cost_part_name(r->est.prefill_bottleneck),
                   cost_part_name(r->est.decode_bottleneck), name);
    }
    buf_puts(out, "\nledger of the first, a device:\n");
    ledger_print(&p->row[0].ledger, out);
    buf_putc(out, '\n');
    print_reasons(p, out);
}

static void raw(struct jw *w, const char *key, const struct ledger *g)
{
    struct buf b;

    buf_init(&b, 0);
    ledger_json(g, &b);
    jw_key(w, key);
    jw_raw(w, b.p);
    buf_done(&b);
}

static void row_json(const struct plan_row *r, struct jw *w)
{
    char text[96];

    jw_obj(w);
    jw_kstr(w, "mode", r->split ? "split" : "colocated");
    layout_print(&r->l, text, sizeof(text));
    jw_kstr(w, r->split ? "decode" : "layout", text);
    if (r->split) {
        layout_print(&r->prefill, text, sizeof(text));
        jw_kstr(w, "prefill", text);
        jw_knum(w, "handoff_ms", r->handoff_ms);
        raw(w, "prefill_ledger", &r->prefill_ledger);
    }
    jw_kint(w, "devices", r->devices);
    jw_knum(w, "concurrency", r->concurrency);
    jw_knum(w, "ttft_ms", r->est.ttft_ms);
    jw_knum(w, "tpot_ms", r->est.tpot_ms);
    jw_knum(w, "tokens_s", r->est.tokens_s);
    jw_knum(w, "tokens_s_gpu", r->est.tokens_s / r->devices);
    jw_knum(w, "requests_s", r->est.requests_s);
    jw_kstr(w, "prefill_bottleneck", cost_part_name(r->est.prefill_bottleneck));
    jw_kstr(w, "decode_bottleneck", cost_part_name(r->est.decode_bottleneck));
    raw(w, "ledger", &r->ledger);
    jw_obj_end(w);
}

void plan_json(const struct plan *p, struct buf *out)
{
    struct jw w;

    jw_init(&w, out);
    jw_obj(&w);
    jw_kstr(&w, "model", p->ask.s->name);
    jw_kstr(&w, "rack", graph_source(p->ask.g));
    jw_kbool(&w, "emulated", graph_emulated(p->ask.g));
    jw_kstr(&w, "device", p->rack.d.name);
    jw_kbool(&w, "extrapolated", p->rack.d.extrapolated);
    jw_kint(&w, "devices_apart", p->rack.n_apart);
    jw_kbool(&w, "unknown_links", p->rack.unknown_links);
    jw_kbool(&w, "measured", p->rack.cut.measured);
    if (p->rack.measured_ms)
        jw_kint(&w, "measured_ms", p->rack.measured_ms);
    jw_kint(&w, "cordoned", p->ask.n_avoid);
    jw_kint(&w, "devices", p->rack.n);
    jw_kint(&w, "tried", p->tried);
    jw_key(&w, "rows");
    jw_arr(&w);
    for (int i = 0; i < p->n_rows; i++)
        row_json(&p->row[i], &w);
    jw_arr_end(&w);
    jw_key(&w, "discarded");
    jw_arr(&w);
    for (int i = 0; i < PLAN_REASONS; i++) {
        if (!p->reason[i].n)
            continue;
        jw_obj(&w);
        jw_kstr(&w, "reason", p->reason[i].why);
        jw_kint(&w, "layouts", p->reason[i].n);
        jw_kstr(&w, "example", p->reason[i].layout);
        jw_kstr(&w, "says", p->reason[i].say);
        jw_obj_end(&w);
    }
    jw_arr_end(&w);
    jw_obj_end(&w);
}

void plan_groups(const struct plan *p, int row, struct buf *out)
{
    const struct plan_row *r = &p->row[row];
    char name[256];

    row_name(r, name, sizeof(name));
    buf_printf(out, "%s on %d devices of %s: %s\n", p->ask.s->name, r->devices,
               graph_source(p->ask.g), name);
    if (r->placed)
        placement_print(r->placed, p->ask.g, p->ask.paths, out);
}

void plan_dot(const struct plan *p, int row, struct buf *out)
{
    if (p->row[row].placed)
        placement_dot(p->row[row].placed, p->ask.g, out);
}

/* ---- why ---- */

struct walk {
    const struct plan_ask *a;
    const struct layout *l; /* the layout asked about */
    struct plan_rack r;
    struct buf *out;
};

/* The layout of one instance with other words, made whole; false where the model or the
 * rack does not have it. */
static bool vary(const struct walk *w, struct layout *l)
{
    struct err e;
    int stage = layout_stage(l);

    l->replicas = 1;
    if (l->ep > stage || stage % l->ep)
        return false;
    l->etp = stage / l->ep;
    return layout_ranks(l) <= w->r.n &&
           layout_check(l, w->a->s, w->a->slots, &e) == LAYOUT_NONE;
}

static double step_ms(const struct walk *w, const struct layout *l, double decode,
                      double prefill)
{
    struct cost_work work = {decode,    w->a->isl + w->a->osl / 2,       prefill,
                             w->a->isl, w->a->skew < 1 ? 1 : w->a->skew, w->a->kv};
    struct cost_links k;
    struct cost_step c;

    cost_links_uniform(l, &w->r.cut, &k);
    cost_step(&w->r.d, w->a->s, l, &k, &work, &c);
    return c.total_us / 1e3;
}

static void count_on(const struct walk *w, const struct layout *l, struct ledger *g)
{
    struct ledger_ask ask;

    plan_ledger_ask(w->a, &w->r, l->adp, &ask);
    ledger_count(w->a->s, l, &ask, g);
}

static void why_capacity(const struct walk *w)
{
    struct ledger g;

    count_on(w, w->l, &g);
    buf_printf(w->out,
               "1 capacity: %.1f of %.1f GB a device with one sequence in each "
               "attention group; ",
               g.total / GB, g.have / GB);
    if (g.limit == LEDGER_FITS)
        buf_printf(w->out, "it fits, and at most %d sequences would\n", g.max_seqs);
    else
        buf_printf(w->out, "it does not fit: %s; %s\n", g.why, g.cure);
}

static void why_tp(const struct walk *w)
{
    double before = INFINITY;
    int best = 1;

    buf_puts(w->out, "2 tp: one sequence's TPOT");
    for (int tp = 1; tp <= w->r.n; tp++) {
        struct layout l = {1, 1, tp, 1, 1, tp, false, CP_NONE, 1, 1};
        double t;
        l.ep = w->a->s->n_expert && w->l->ep > 1 ? tp : 1;
        if (!vary(w, &l)) {
            l.ep = 1;
            if (!vary(w, &l))
                continue;
        }
        t = step_ms(w, &l, 1, 0);
        buf_printf(w->out, ", tp%d %.2f ms", tp, t);
        if (t >= before || (tp > w->r.cut.domain && t > before * 0.95))
            break;
        before = t;
        best = tp;
    }
    buf_printf(w->out, ": it falls until tp%d; the layout has tp%d%s\n", best, w->l->tp,
               w->l->tp > w->r.cut.domain ? ", over the fast domain's edge" : "");
}

static void why_pp(const struct walk *w)
{
    struct ledger g;

    for (int pp = 1; pp <= w->a->s->n_layer; pp++) {
        struct layout l = *w->l;
        l.pp = pp;
        if (!vary(w, &l))
            break;
        count_on(w, &l, &g);
        if (g.limit != LEDGER_FITS)
            continue;
        buf_printf(w->out,
                   "3 pp: the fewest stages that fit are %d (%.1f GB a device); the "
                   "layout has %d\n",
                   pp, g.total / GB, w->l->pp);
        return;
    }
    buf_printf(w->out,
               "3 pp: no number of stages that this rack has fits; the layout has %d\n",
               w->l->pp);
}

static void why_ep(const struct walk *w)
{
    double n = 32.0 * w->l->adp;

    if (!w->a->s->n_expert) {
        buf_puts(w->out, "4 ep: the model has no experts\n");
        return;
    }
    buf_printf(w->out, "4 ep: a step of %.0f sequences", n);
    for (int ep = 1; ep <= layout_stage(w->l); ep++) {
        struct layout l = *w->l;
        l.ep = ep;
        if (vary(w, &l))
            buf_printf(w->out, ", ep%d etp%d %.2f ms", ep, l.etp, step_ms(w, &l, n, 0));
    }
    buf_printf(w->out, "; %.1f experts a rank; the layout has ep%d\n",
               1.0 * (w->a->s->n_expert + w->a->slots) / w->l->ep, w->l->ep);
}

static void why_cp(const struct walk *w)
{
    struct layout one = *w->l, two = *w->l;
    struct ledger g;

    one.cp = one.cp_u = 1;
    one.cp_method = CP_NONE;
    two.cp = 2 * one.cp;
    two.cp_u = 1;
    two.cp_method = CP_RING;
    one.ep = two.ep = w->l->ep;
    if (!vary(w, &one)) {
        buf_printf(w->out,
                   "5 cp: without it the words do not regroup; the layout has %d\n",
                   w->l->cp);
        return;
    }
    count_on(w, &one, &g);
    buf_printf(w->out,
               "5 cp: one sequence of %.0f tokens needs %.3f GB of KV a device, which "
               "%s without it",
               w->a->isl + w->a->osl, g.kv_seq / GB,
               g.limit == LEDGER_CONTEXT ? "does not fit" : "fits");
    if (vary(w, &two))
        buf_printf(w->out, "; a prompt takes %.1f ms, with cp2 %.1f ms",
                   step_ms(w, &one, 0, w->a->isl), step_ms(w, &two, 0, w->a->isl));
    buf_printf(w->out, "; the layout has cp%d\n", w->l->cp);
}

int plan_why(const struct plan_ask *a, const struct layout *l, struct buf *out,
             struct err *e)
{
    struct walk w = {.a = a, .l = l, .out = out};
    int n = layout_ranks(l);

    if (plan_rack_of(a, &w.r, e) < 0)
        return -1;
    plan_rack_done(&w.r); /* its figures stay */
    if (layout_check(l, a->s, a->slots, e) != LAYOUT_NONE)
        return -1;
    if (n > w.r.n)
        return err_set(e, ERR_NOFIT,
                       "the layout has %d ranks, the rack %d usable devices", n, w.r.n);
    why_capacity(&w);
    why_tp(&w);
    why_pp(&w);
    why_ep(&w);
    why_cp(&w);
    buf_printf(out,
               "6 dp: an instance takes %d of %d devices, %d replicas would fit; the "
               "layout has %d\n",
               n, w.r.n, w.r.n / n, l->replicas);
    return 0;
}
