/* daemon/ctrl/conf.c - text -> struct conf: the tree held against the rows.
 *
 *   tree_parse   YAML with its places; what we refuse of it
 *   walk_map     keys against patterns, values against rows, names collected
 *   overrides    of this run, laid over
 *   conf_check   what no single row can see (conf_check.c)
 *
 * Everything lives in the arena of a box around struct conf. */
#include "daemon/ctrl/conf.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "daemon/ctrl/conf_check.h"
#include "daemon/ctrl/conf_rows.h"
#include "daemon/ctrl/conf_set.h"
#include "daemon/ctrl/conf_tree.h"
#include "daemon/ctrl/conf_round.h"

struct box {
    struct conf c; /* first */
    struct arena *a;
    atomic_int refs;
};

struct walk {
    struct box *box;
    struct conf_faults *faults;
    struct conf_setter set;
};

struct conf *conf_ref(const struct conf *c)
{
    struct box *b = (struct box *)c;
    atomic_fetch_add(&b->refs, 1);
    return &b->c;
}

void conf_unref(const struct conf *c)
{
    struct box *b = (struct box *)c;

    if (b && atomic_fetch_sub(&b->refs, 1) == 1) {
        arena_free(b->a);
        free(b);
    }
}

const struct conf_instance *conf_instance(const struct conf *c, const char *name)
{
    for (int i = 0; i < c->n_instances; i++)
        if (!strcmp(c->instances[i].name, name))
            return &c->instances[i];
    return NULL;
}

const struct conf_model *conf_model(const struct conf *c, const char *name)
{
    for (int i = 0; i < c->n_models; i++)
        if (!strcmp(c->models[i].name, name))
            return &c->models[i];
    return NULL;
}

/* ---- names ---- */

static void set_defaults(struct walk *w, enum conf_group g, void *base)
{
    for (int i = 0; i < n_conf_rows; i++)
        if (conf_row_group(&conf_rows[i]) == g && conf_rows[i].def)
            conf_set_text(&w->set, &conf_rows[i], conf_rows[i].def, conf_rows[i].path,
                          base);
}

/* The entry of a name, made with its defaults when it is new; NULL: there are too many.
 */
static void *name_entry(struct walk *w, enum conf_group g, const char *name, size_t n)
{
    const struct conf_names *x = &conf_names[g];
    char **list = (char **)((char *)&w->box->c + x->at);
    int *count = (int *)((char *)&w->box->c + x->n_at);
    char *entry;

    for (int i = 0; i < *count; i++) {
        entry = *list + (size_t)i * x->size;
        if (strlen(*(char **)entry) == n && !memcmp(*(char **)entry, name, n))
            return entry;
    }
    if (*count == CONF_MAX_NAMES)
        return NULL;
    if (!*list)
        *list = arena_alloc(w->box->a, CONF_MAX_NAMES * x->size);
    entry = *list + (size_t)(*count)++ * x->size;
    *(char **)entry = arena_strndup(w->box->a, name, n);
    set_defaults(w, g, entry);
    return entry;
}

static void *name_of_key(struct walk *w, enum conf_group g, const struct tree_node *key,
                         const char *path)
{
    void *entry;

    if (!conf_name_ok(key->s, key->n)) {
        conf_fault(w->faults, key->from, path, "'%.64s' " CONF_NAME_RULE, key->s);
        return NULL;
    }
    entry = name_entry(w, g, key->s, key->n);
    if (!entry)
        conf_fault(w->faults, key->from, path, "more than %d names", CONF_MAX_NAMES);
    return entry;
}

/* ---- walking ---- */

static void walk_map(struct walk *w, const struct tree_node *map, const char *pattern,
                     const char *path, void *base);

static void unknown_key(struct walk *w, const struct tree_node *key, const char *pattern,
                        const char *path)
{
    char near[64];

    if (conf_row_nearest(pattern, key->s, near))
        conf_fault(w->faults, key->from, path,
                   "'%.64s' is no directive here; did you mean %s?", key->s, near);
    else
        conf_fault(w->faults, key->from, path, "'%.64s' is no directive here", key->s);
}

/* A map, or nothing at all, which is an empty one. */
static void walk_section(struct walk *w, const struct tree_node *v, const char *pattern,
                         const char *path, void *base)
{
    if (v->kind == TREE_MAP)
        walk_map(w, v, pattern, path, base);
    else if (!v->bad && !tree_empty(v))
        conf_fault(w->faults, v->from, path,
                   "a %s where a map of directives would be right",
                   v->kind == TREE_LIST ? "list" : "value");
}

static bool doubled(struct walk *w, const struct tree_node *map, int i, const char *path)
{
    const struct tree_node *key = map->kids[i].key;
    int first = tree_key(map, key->s, key->n);

    if (first == i)
        return false;
    conf_fault(w->faults, key->from, path, "'%.64s' stands here twice; first in line %d",
               key->s, map->kids[first].key->from.line);
    return true;
}

static void walk_map(struct walk *w, const struct tree_node *map, const char *pattern,
                     const char *path, void *base)
{
    enum conf_group g = conf_group_of(pattern);

    for (int i = 0; i < map->n_kids; i++) {
        const struct tree_node *key = map->kids[i].key, *v = map->kids[i].value;
        char here[160], next[160];
        const struct conf_row *r;

        if (key->kind != TREE_SCALAR || key->bad)
            continue;
        snprintf(here, sizeof(here), "%s%s%s", path, *path ? "." : "", key->s);
        if (doubled(w, map, i, here))
            continue;
        if (g) {
            void *entry = name_of_key(w, g, key, here);
            snprintf(next, sizeof(next), "%s.*", pattern);
            if (entry)
                walk_section(w, v, next, here, entry);
            continue;
        }
        snprintf(next, sizeof(next), "%s%s%s", pattern, *pattern ? "." : "", key->s);
        r = strchr(key->s, '.') ? NULL : conf_row_find(next);
        if (r)
            conf_set_node(&w->set, r, v, here, base);
        else if (conf_row_section(next) && !strchr(key->s, '.'))
            walk_section(w, v, next, here, base);
        else
            unknown_key(w, key, pattern, here);
    }
}

/* ---- overrides ---- */

static void lay_over(struct walk *w, const struct conf_override *o)
{
    const struct conf_row *r;
    void *base = &w->box->c;
    char name[64];

    r = conf_row_of_path(o->path, name);
    if (!r) {
        conf_fault(w->faults, (struct conf_pos){0}, o->path,
                   "there is no directive of this path");
        return;
    }
    if (name[0])
        base = name_entry(w, conf_row_group(r), name, strlen(name));
    if (!base)
        conf_fault(w->faults, (struct conf_pos){0}, o->path, "more than %d names",
                   CONF_MAX_NAMES);
    else
        conf_set_text(&w->set, r, o->value, o->path, base);
}

/* ---- the whole ---- */

static int by_place(const void *a, const void *b)
{
    const struct conf_fault *x = a, *y = b;

    if (x->line != y->line)
        return x->line < y->line ? -1 : 1;
    return (x->column > y->column) - (x->column < y->column);
}

/* Insertion: stable, and there are few. */
static void sort_faults(struct conf_faults *f)
{
    int n = f->n < CONF_MAX_FAULTS ? f->n : CONF_MAX_FAULTS;

    for (int i = 1; i < n; i++) {
        struct conf_fault x = f->v[i];
        int j = i;

        for (; j > 0 && by_place(&f->v[j - 1], &x) > 0; j--)
            f->v[j] = f->v[j - 1];
        f->v[j] = x;
    }
}

/* ---- copies ---- */

/* Engines of a written instance. */
static size_t engines_of(const struct conf_instance *x)
{
    return (size_t)(x->mode == CONF_SPLIT ? x->prefill.engines + x->decode.engines
                                          : x->replicas);
}

/* Entries of the list that it takes: a split one stands beside its engines. */
static size_t entries_of(const struct conf_instance *x)
{
    return engines_of(x) + (x->mode == CONF_SPLIT);
}

static struct conf_instance *add_copy(struct walk *w, const struct conf_instance *of,
                                      const char *pool, int64_t k)
{
    struct conf *c = &w->box->c;
    struct conf_instance *v = &c->instances[c->n_instances++];
    char name[96];
    int n =
        snprintf(name, sizeof(name), k > 1 ? "%s%s:%d" : "%s%s", of->name, pool, (int)k);

    *v = *of;
    v->name = arena_strndup(w->box->a, name, (size_t)n);
    return v;
}

static void take(int64_t *to, int64_t own) { *to = own ? own : *to; }

static void lay_pool(struct conf_instance *i, const struct conf_pool *p)
{
    take(&i->threads, p->threads);
    take(&i->step_tok, p->step_tok);
    take(&i->max_seqs, p->max_seqs);
    take(&i->kv.mib, p->kv_mib);
    take(&i->layout.pp, p->layout.pp);
    take(&i->layout.tp, p->layout.tp);
    take(&i->layout.ep, p->layout.ep);
    take(&i->layout.adp, p->layout.adp);
    take(&i->layout.cp, p->layout.cp);
    take(&i->layout.cp_u, p->layout.cp_u);
    if (p->layout.automatic)
        i->layout.automatic = p->layout.automatic == 2;
    if (p->layout.sp)
        i->layout.sp = p->layout.sp == 2;
    if (p->layout.cp_method)
        i->layout.cp_method = p->layout.cp_method - 1;
}

/* At most 64 entries come from these loops: add_copies has counted. */
static void add_copies_of(struct walk *w, const struct conf_instance *x)
{
    struct conf_instance pools[2] = {*x, *x};

    lay_pool(&pools[0], &x->prefill);
    lay_pool(&pools[1], &x->decode);
    if (x->mode == CONF_SPLIT)
        conf_round_pools(&pools[0], &pools[1]);
    for (int64_t k = 2; x->mode != CONF_SPLIT && k <= x->replicas; k++)
        add_copy(w, x, "", k);
    for (int role = CONF_ROLE_PREFILL; x->mode == CONF_SPLIT && role <= CONF_ROLE_DECODE;
         role++) {
        bool prefill = role == CONF_ROLE_PREFILL;
        const struct conf_pool *p = prefill ? &x->prefill : &x->decode;

        for (int64_t k = 1; k <= p->engines; k++) {
            struct conf_instance *v = add_copy(w, x, prefill ? "/prefill" : "/decode", k);

            v->role = role;
            lay_pool(v, p);
            v->round_as = pools[0].round_as;
        }
    }
}

/* Replicas beyond the first, and engines of pools, as copies. */
static void add_copies(struct walk *w)
{
    struct conf *c = &w->box->c;
    size_t written = c->n_instances > 0 ? (size_t)c->n_instances : 0, all = 0,
           engines = 0;
    struct conf_instance *v;

    for (size_t i = 0; i < written; i++) {
        const struct conf_instance *x = &c->instances[i];
        size_t most = x->mode == CONF_SPLIT ? 52 : x->replicas > 1 ? 60 : 63;

        all += entries_of(x);
        engines += engines_of(x);
        if (strlen(x->name) > most)
            conf_fault(w->faults, (struct conf_pos){0}, "instances",
                       "the name '%s' is too long for an instance with %s; at most "
                       "%zu characters would be right",
                       x->name, x->mode == CONF_SPLIT ? "two pools" : "replicas", most);
    }
    if (all <= written || w->faults->n)
        return;
    if (all > CONF_MAX_NAMES) {
        conf_fault(w->faults, (struct conf_pos){0}, "instances",
                   "%zu engines with all replicas and pools; at most %zu", engines,
                   CONF_MAX_NAMES - (all - engines));
        return;
    }
    v = arena_alloc(w->box->a, all * sizeof(*v));
    memcpy(v, c->instances, written * sizeof(*v));
    c->instances = v;
    for (size_t i = 0; i < written; i++)
        add_copies_of(w, &v[i]);
}

int conf_parse(const char *text, size_t n, const struct conf_override *over, int n_over,
               struct conf **ret, struct conf_faults *faults)
{
    struct box *b = xcalloc(1, sizeof(*b));
    struct arena *scratch = arena_new(0);
    struct walk w = {.box = b, .faults = faults};
    struct tree_node *root;
    int rc;

    *ret = NULL;
    faults->n = 0;
    b->a = arena_new(0);
    atomic_init(&b->refs, 1);
    w.set = (struct conf_setter){b->a, scratch, faults};
    rc = tree_parse(text, n, scratch, &root, faults);
    set_defaults(&w, CONF_TOP, &b->c);
    if (root)
        walk_section(&w, root, "", "", &b->c);
    for (int i = 0; i < n_over; i++)
        lay_over(&w, &over[i]);
    if (rc == 0)
        conf_check(&b->c, root, over, n_over, faults);
    if (faults->n == 0)
        add_copies(&w);
    arena_free(scratch);
    sort_faults(faults);
    if (faults->n == 0) {
        *ret = &b->c;
        return 0;
    }
    conf_unref(&b->c);
    return -1;
}
