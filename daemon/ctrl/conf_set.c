/* daemon/ctrl/conf_set.c - a node of the tree, or a text alone, into the member of a row.
 */
#include "daemon/ctrl/conf_set.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

/* A list of strings; faults with their places. */
static void set_list(const struct conf_setter *w, const struct conf_row *r,
                     const struct tree_node *v, const char *path, void *base)
{
    const char **list = arena_alloc(w->a, (size_t)(v->n_kids + 1) * sizeof(*list));
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
            list[n++] = arena_strndup(w->a, x->s, x->n);
    }
    *(const char ***)((char *)base + r->offset) = list;
    *(int *)((char *)base + r->n_offset) = n;
}

void conf_set_node(const struct conf_setter *w, const struct conf_row *r,
                   const struct tree_node *v, const char *path, void *base)
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
    else if (conf_value_read(r, v->s, v->n, v->quoted, base, w->a, msg) < 0)
        conf_fault(w->faults, v->from, path, "%s", msg);
}

void conf_set_text(const struct conf_setter *w, const struct conf_row *r,
                   const char *text, const char *path, void *base)
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
    conf_set_node(w, r, v, path, base);
}
