/* daemon/ctrl/conf_leaf.c - tree -> flat list of what it writes out. */
#include "daemon/ctrl/conf_leaf.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"

int conf_tree_of(const char *text, struct arena *a, struct tree_node **ret_root,
                 struct err *e)
{
    struct conf_faults *f = xcalloc(1, sizeof(*f));
    int rc = tree_parse(text, strlen(text), a, ret_root, f);

    if (rc < 0 || f->n)
        rc = err_set(e, ERR_SYNTAX, "line %d, column %d: %s", f->v[0].line,
                     f->v[0].column, f->v[0].msg);
    free(f);
    return rc;
}

void conf_leaf_str(struct buf *b, const char *s)
{
    if (*s && !strchr("\"'", *s))
        buf_puts(b, s);
    else
        conf_yaml_str(b, s);
}

static void put_list(struct buf *b, const struct tree_node *v)
{
    buf_putc(b, '[');
    for (int i = 0; i < v->n_kids; i++) {
        const struct tree_node *x = v->kids[i].value;

        buf_puts(b, i ? ", " : "");
        if (x->kind == TREE_SCALAR)
            conf_yaml_str(b, x->s);
        else
            put_list(b, x);
    }
    buf_putc(b, ']');
}

static void add(struct leaves *l, struct arena *a, const struct buf *path,
                const struct tree_node *v)
{
    char *words, *dots;
    struct buf b;

    if (l->n == l->cap) {
        int cap = l->cap ? l->cap * 2 : 64;
        struct leaf *more = arena_alloc(a, (size_t)cap * sizeof(*more));

        if (l->n)
            memcpy(more, l->v, (size_t)l->n * sizeof(*more));
        l->v = more;
        l->cap = cap;
    }
    buf_init(&b, 0);
    if (v->kind == TREE_LIST)
        put_list(&b, v);
    else
        conf_leaf_str(&b, v->s);
    words = arena_strndup(a, path->p ? path->p : "", path->len);
    dots = arena_strndup(a, words, path->len);
    for (char *p = dots; *p; p++)
        *p = *p == LEAF_SEP ? '.' : *p;
    l->v[l->n++] = (struct leaf){dots, words, arena_strndup(a, b.p ? b.p : "", b.len)};
    buf_done(&b);
}

static void walk(const struct tree_node *v, struct arena *a, struct buf *path,
                 struct leaves *l)
{
    if (v->kind != TREE_MAP) {
        if (!tree_empty(v))
            add(l, a, path, v);
        return;
    }
    for (int i = 0; i < v->n_kids; i++) {
        size_t len = path->len;

        if (len)
            buf_putc(path, LEAF_SEP);
        buf_puts(path, v->kids[i].key->s);
        walk(v->kids[i].value, a, path, l);
        path->len = len;
        path->p[len] = '\0';
    }
}

void conf_leaves(struct tree_node *root, struct arena *a, struct leaves *ret)
{
    struct buf path;

    *ret = (struct leaves){0};
    buf_init(&path, 0);
    if (root)
        walk(root, a, &path, ret);
    buf_done(&path);
}

const struct leaf *conf_leaf(const struct leaves *l, const char *words)
{
    for (int i = 0; i < l->n; i++)
        if (!strcmp(l->v[i].words, words))
            return &l->v[i];
    return NULL;
}
