/* topo/layout.c - reads, prints, checks and lists layouts.
 *
 * A check names the first rule that is broken, in the order in which an operator would
 * mend it: the words themselves, the regrouping, then the model's own numbers. */
#include "topo/layout.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "topo/shapes.h"

enum { WORD_MAX = 4096 };

static const char *const methods[CP_METHOD_COUNT] = {
#define X(id, name) name,
    CP_METHOD_MAP(X)
#undef X
};

static const struct {
    const char *name;
    size_t at;
} words[] = {
    {"pp", offsetof(struct layout, pp)},
    {"cp", offsetof(struct layout, cp)},
    {"tp", offsetof(struct layout, tp)},
    {"adp", offsetof(struct layout, adp)},
    {"ep", offsetof(struct layout, ep)},
    {"etp", offsetof(struct layout, etp)},
    {"cp_u", offsetof(struct layout, cp_u)},
    {"x", offsetof(struct layout, replicas)},
    {"replicas", offsetof(struct layout, replicas)},
};
#define N_WORDS (sizeof(words) / sizeof(words[0]))

static int *word_of(struct layout *l, size_t i)
{
    return (int *)((char *)l + words[i].at);
}

static int parse_word(const char *w, size_t n, struct layout *l, struct err *e)
{
    size_t name = n;
    char copy[32], *end;

    if (n >= sizeof(copy))
        return err_param(e, ERR_INVALID, "layout", "layout word '%.*s' is too long", 32,
                         w);
    memcpy(copy, w, n);
    copy[n] = '\0';
    while (name > 0 && isdigit((unsigned char)copy[name - 1]))
        name--;
    for (int m = 1; m < CP_METHOD_COUNT && name == n; m++) {
        if (!strcmp(copy, methods[m])) {
            l->cp_method = (enum cp_method)m;
            return 0;
        }
    }
    if (!strcmp(copy, "sp")) {
        l->sp = true;
        return 0;
    }
    for (size_t i = 0; i < N_WORDS && name < n; i++) {
        size_t len = strlen(words[i].name), eq = name && copy[name - 1] == '=';
        long v = strtol(copy + name, &end, 10);
        if (len != name - eq || memcmp(copy, words[i].name, len))
            continue;
        if (v < 1 || v > WORD_MAX)
            return err_param(e, ERR_RANGE, words[i].name, "%s is not within 1 to %d",
                             copy, WORD_MAX);
        *word_of(l, i) = (int)v;
        return 0;
    }
    return err_param(e, ERR_INVALID, "layout",
                     "layout word '%s' is none of ppN cpN tpN adpN epN etpN cp_uN xN sp "
                     "allgather ring striped ulysses usp",
                     copy);
}

int layout_parse(const char *text, struct layout *ret, struct err *e)
{
    struct layout l = {.cp_method = CP_NONE};
    const char *p = text;

    for (;;) {
        size_t n;
        p += strspn(p, " ,");
        n = strcspn(p, " ,");
        if (!n)
            break;
        if (parse_word(p, n, &l, e) < 0)
            return -1;
        p += n;
    }
    for (size_t i = 0; i < N_WORDS; i++)
        if (!*word_of(&l, i) && words[i].at != offsetof(struct layout, etp))
            *word_of(&l, i) = 1;
    if ((double)l.pp * l.cp * l.tp * l.adp * l.replicas > WORD_MAX)
        return err_param(e, ERR_RANGE, "layout", "layout '%s' has more than %d ranks",
                         text, WORD_MAX);
    if (!l.etp)
        l.etp = layout_stage(&l) % l.ep == 0 ? layout_stage(&l) / l.ep : 1;
    if (l.cp > 1 && l.cp_method == CP_NONE)
        l.cp_method = CP_RING;
    *ret = l;
    return 0;
}

void layout_print(const struct layout *l, char *out, size_t cap)
{
    size_t n = 0;
    const char *gap = "";

    out[0] = '\0';
    for (size_t i = 0; i + 1 < N_WORDS && n < cap; i++) {
        int v = *word_of((struct layout *)l, i);
        if (words[i].at == offsetof(struct layout, etp)
                ? l->ep == 1 && v == layout_stage(l)
                : v == 1)
            continue;
        n += (size_t)snprintf(out + n, cap - n, "%s%s%d", gap, words[i].name, v);
        gap = " ";
    }
    if (l->cp_method != CP_NONE && n < cap)
        n += (size_t)snprintf(out + n, cap - n, "%s%s", gap, methods[l->cp_method]);
    if (l->sp && n < cap)
        n += (size_t)snprintf(out + n, cap - n, " sp");
    if (!*out)
        snprintf(out, cap, "tp1");
}

bool layout_same(const struct layout *a, const struct layout *b)
{
    for (size_t i = 0; i < N_WORDS; i++)
        if (*word_of((struct layout *)a, i) != *word_of((struct layout *)b, i))
            return false;
    return a->sp == b->sp && a->cp_method == b->cp_method;
}

int layout_ranks(const struct layout *l) { return l->pp * layout_stage(l); }

int layout_stage(const struct layout *l) { return l->cp * l->tp * l->adp; }

int layout_cp_heads(const struct layout *l)
{
    return l->cp_method == CP_ULYSSES ? l->cp : l->cp_method == CP_USP ? l->cp_u : 1;
}

const char *layout_fault_text(enum layout_fault f)
{
    static const char *const texts[] = {
#define X(id, text) text,
        LAYOUT_FAULT_MAP(X)
#undef X
    };

    return texts[f];
}

static enum layout_fault fault(enum layout_fault f, struct err *e, const char *what,
                               int v, const char *word, int by)
{
    err_param(e, ERR_INVALID, word, "%s: %s %d, %s %d", layout_fault_text(f), what, v,
              word, by);
    return f;
}

static enum layout_fault check_ranks(const struct layout *l, const struct shapes *s,
                                     struct err *e)
{
    for (size_t i = 0; i < N_WORDS; i++) {
        int v = *word_of((struct layout *)l, i);
        if (v < 1 || v > WORD_MAX)
            return fault(LAYOUT_RANGE, e, "limit", WORD_MAX, words[i].name, v);
    }
    if ((double)l->pp * l->cp * l->tp * l->adp * l->replicas > WORD_MAX)
        return fault(LAYOUT_RANGE, e, "limit of ranks", WORD_MAX, "tp", l->tp);
    if (l->pp > s->n_layer)
        return fault(LAYOUT_LAYERS, e, "layers", s->n_layer, "pp", l->pp);
    if (!s->n_expert && l->adp > 1)
        return fault(LAYOUT_DENSE, e, "experts", 0, "adp", l->adp);
    if (!s->n_expert && l->ep > 1)
        return fault(LAYOUT_DENSE, e, "experts", 0, "ep", l->ep);
    if (s->n_expert && l->ep * l->etp != layout_stage(l))
        return fault(LAYOUT_REGROUP, e, "ranks of a stage", layout_stage(l), "ep x etp",
                     l->ep * l->etp);
    return LAYOUT_NONE;
}

static enum layout_fault check_width(const char *what, int width, enum weight_format f,
                                     const char *word, int by, struct err *e)
{
    int group = weight_format_group(f);

    if (width % by)
        return fault(LAYOUT_WIDTH, e, what, width, word, by);
    if (group && width / by % group)
        return fault(LAYOUT_SCALES, e, what, width, word, by);
    return LAYOUT_NONE;
}

static enum layout_fault check_tp(const struct layout *l, const struct shapes *s,
                                  struct err *e)
{
    enum layout_fault f = LAYOUT_NONE;
    bool dense = false, plain = false;

    for (int i = 0; i < s->n_layer; i++) {
        dense |= !s->layer[i].sparse;
        plain |= s->layer[i].attn == ATTN_FULL || s->layer[i].attn == ATTN_WINDOW;
    }
    if (s->n_head % l->tp)
        return fault(LAYOUT_HEADS, e, "heads", s->n_head, "tp", l->tp);
    if (s->kda_heads % l->tp)
        return fault(LAYOUT_HEADS, e, "fixed-state heads", s->kda_heads, "tp", l->tp);
    if (plain && s->n_kv % l->tp && l->tp % s->n_kv)
        return fault(LAYOUT_KV_HEADS, e, "KV heads", s->n_kv, "tp", l->tp);
    if (dense)
        f = check_width("MLP width", s->inter, s->format[PART_MLP], "tp", l->tp, e);
    if (f == LAYOUT_NONE && s->shared_inter)
        f = check_width("shared expert's width", s->shared_inter, s->format[PART_SHARED],
                        "tp", l->tp, e);
    return f;
}

static enum layout_fault check_cp(const struct layout *l, const struct shapes *s,
                                  struct err *e)
{
    int u = layout_cp_heads(l);

    if ((l->cp > 1) != (l->cp_method != CP_NONE) || l->cp % l->cp_u ||
        (l->cp_method != CP_USP && l->cp_u > 1))
        return fault(LAYOUT_CONTEXT, e, "cp", l->cp, "cp_u", l->cp_u);
    if (s->n_head / l->tp % u)
        return fault(LAYOUT_CONTEXT, e, "heads of a rank", s->n_head / l->tp, "ulysses",
                     u);
    if (l->cp > 1 && s->kda_heads) {
        err_param(e, ERR_INVALID, "cp",
                  "%s: layers with a fixed state run through the context in order",
                  layout_fault_text(LAYOUT_CONTEXT));
        return LAYOUT_CONTEXT;
    }
    return LAYOUT_NONE;
}

enum layout_fault layout_check(const struct layout *l, const struct shapes *s, int slots,
                               struct err *e)
{
    enum layout_fault f = check_ranks(l, s, e);

    if (f == LAYOUT_NONE)
        f = check_tp(l, s, e);
    if (f == LAYOUT_NONE && s->n_expert && (s->n_expert + slots) % l->ep)
        f = fault(LAYOUT_EXPERTS, e, "experts and replica slots", s->n_expert + slots,
                  "ep", l->ep);
    if (f == LAYOUT_NONE && s->n_expert)
        f = check_width("expert width", s->moe_inter, s->format[PART_EXPERTS], "etp",
                        l->etp, e);
    return f == LAYOUT_NONE ? check_cp(l, s, e) : f;
}

int layout_layers(const struct layout *l, const struct shapes *s, int stage,
                  int *ret_first)
{
    int base = s->n_layer / l->pp, longer = s->n_layer % l->pp;
    int shorter = l->pp - longer;

    *ret_first = stage * base + (stage > shorter ? stage - shorter : 0);
    return base + (stage >= shorter);
}

/* ---- every combination ---- */

struct listing {
    const struct shapes *s;
    layout_fn fn;
    void *arg;
    bool stop;
};

static void list_one(struct listing *w, const struct layout *l)
{
    struct err e;

    if (!w->stop)
        w->stop = !w->fn(w->arg, l, layout_check(l, w->s, 0, &e));
}

/* Of the methods, ring stands for those that pass K and V on (gather, striped), since
 * they differ in schedule and not in what a device holds. */
static void list_cp(struct listing *w, struct layout l)
{
    static const enum cp_method choice[] = {CP_RING, CP_ULYSSES, CP_USP};

    if (l.cp == 1) {
        list_one(w, &l);
        return;
    }
    for (int m = 0; m < 3; m++) {
        l.cp_method = choice[m];
        l.cp_u = 1;
        if (l.cp_method != CP_USP) {
            list_one(w, &l);
            continue;
        }
        for (l.cp_u = 2; l.cp_u < l.cp; l.cp_u++)
            if (l.cp % l.cp_u == 0)
                list_one(w, &l);
    }
}

static void list_ep(struct listing *w, struct layout l)
{
    int stage = layout_stage(&l);

    if (!w->s->n_expert) {
        l.etp = stage;
        list_cp(w, l);
        return;
    }
    for (l.ep = 1; l.ep <= stage; l.ep++) {
        if (stage % l.ep)
            continue;
        l.etp = stage / l.ep;
        list_cp(w, l);
    }
}

void layout_enumerate(const struct shapes *s, int n, bool with_cp, layout_fn fn,
                      void *arg)
{
    struct listing w = {s, fn, arg, false};

    for (int pp = 1; pp <= n && !w.stop; pp++)
        for (int cp = 1; n % pp == 0 && cp <= n / pp && (with_cp || cp == 1); cp++)
            for (int tp = 1; n / pp % cp == 0 && tp <= n / pp / cp; tp++) {
                struct layout l = {pp, cp, tp, 1, 1, 1, false, CP_NONE, 1, 1};
                if (n / pp / cp % tp)
                    continue;
                l.adp = n / pp / cp / tp;
                if (l.adp == 1 || s->n_expert)
                    list_ep(&w, l);
            }
}
