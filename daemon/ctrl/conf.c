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
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "daemon/ctrl/conf_check.h"
#include "daemon/ctrl/conf_rows.h"
#include "daemon/ctrl/conf_tree.h"

struct box {
    struct conf c; /* first */
    struct arena *a;
    atomic_int refs;
};

struct walk {
    struct box *box;
    struct arena *scratch;
    struct conf_faults *faults;
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

/* ---- values ---- */

/* A list of strings; faults with their places. */
static void set_list(struct walk *w, const struct conf_row *r, const struct tree_node *v,
                     const char *path, void *base)
{
    const char **list = arena_alloc(w->box->a, (size_t)(v->n_kids + 1) * sizeof(*list));
    char msg[256];
    int n = 0;

    for (int i = 0; i < v->n_kids; i++) {
        const struct tree_node *x = v->kids[i].value;

        if (x->bad)
            continue;
        if (x->kind != TREE_SCALAR)
            conf_fault(w->faults, x->from, path, "a text would be right in this list");
        else if (conf_value_item(r, x->s, x->n, msg) < 0)
            conf_fault(w->faults, x->from, path, "%s", msg);
        else
            list[n++] = arena_strndup(w->box->a, x->s, x->n);
    }
    *(const char ***)((char *)base + r->offset) = list;
    *(int *)((char *)base + r->n_offset) = n;
}

static void set_value(struct walk *w, const struct conf_row *r, const struct tree_node *v,
                      const char *path, void *base)
{
    char msg[256];

    if (!r->def) /* given, so it is not missing, right or wrong */
        *(const char **)((char *)base + r->offset) = "";
    if (v->bad)
        return;
    if (tree_empty(v))
        conf_fault(w->faults, v->from, path,
                   r->kind == CONF_STR && r->def
                       ? "no value; \"\" would be right for an empty text"
                       : "no value");
    else if (r->kind == CONF_LIST && v->kind == TREE_LIST)
        set_list(w, r, v, path, base);
    else if (v->kind != TREE_SCALAR)
        conf_fault(w->faults, v->from, path, "a %s where a %s would be right",
                   v->kind == TREE_MAP ? "map" : "list",
                   r->kind == CONF_LIST ? "list of texts, e.g. [a, b]," : "single value");
    else if (conf_value_read(r, v->s, v->n, v->quoted, base, w->box->a, msg) < 0)
        conf_fault(w->faults, v->from, path, "%s", msg);
}

/* A value that stands alone: an override or a default. A list, or what is in quotes, is
 * YAML; else it is taken as it is. */
static void set_text(struct walk *w, const struct conf_row *r, const char *text,
                     const char *path, void *base)
{
    struct tree_node plain = {.kind = TREE_SCALAR, .s = (char *)text}, *v = &plain;

    plain.n = strlen(text);
    if (r->kind == CONF_LIST || *text == '"' || *text == '\'') {
        struct conf_faults *own = xcalloc(1, sizeof(*own));

        if (tree_parse(text, plain.n, w->scratch, &v, own) < 0 || own->n || !v) {
            conf_fault(w->faults, (struct conf_pos){0}, path, "%s",
                       own->n ? own->v[0].msg : "no value");
            free(own);
            return;
        }
        free(own);
        v->from = (struct conf_pos){0};
        for (int i = 0; i < v->n_kids; i++)
            v->kids[i].value->from = v->from;
    }
    plain.quoted = plain.n == 0; /* an empty text that was meant */
    set_value(w, r, v, path, base);
}

static void set_defaults(struct walk *w, enum conf_group g, void *base)
{
    for (int i = 0; i < n_conf_rows; i++)
        if (conf_row_group(&conf_rows[i]) == g && conf_rows[i].def)
            set_text(w, &conf_rows[i], conf_rows[i].def, conf_rows[i].path, base);
}

/* ---- names ---- */

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
        conf_fault(w->faults, key->from, path,
                   "'%.64s' is no name; lower-case letters, digits, - _ and . would be "
                   "right, at most 63, a letter or digit first",
                   key->s);
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
            set_value(w, r, v, here, base);
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
        set_text(w, r, o->value, o->path, base);
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

int conf_parse(const char *text, size_t n, const struct conf_override *over, int n_over,
               struct conf **ret, struct conf_faults *faults)
{
    struct box *b = xcalloc(1, sizeof(*b));
    struct walk w = {.box = b, .scratch = arena_new(0), .faults = faults};
    struct tree_node *root;
    int rc;

    *ret = NULL;
    faults->n = 0;
    b->a = arena_new(0);
    atomic_init(&b->refs, 1);
    rc = tree_parse(text, n, w.scratch, &root, faults);
    set_defaults(&w, CONF_TOP, &b->c);
    if (root)
        walk_section(&w, root, "", "", &b->c);
    for (int i = 0; i < n_over; i++)
        lay_over(&w, &over[i]);
    if (rc == 0)
        conf_check(&b->c, root, over, n_over, faults);
    arena_free(w.scratch);
    sort_faults(faults);
    if (faults->n == 0) {
        *ret = &b->c;
        return 0;
    }
    conf_unref(&b->c);
    return -1;
}
