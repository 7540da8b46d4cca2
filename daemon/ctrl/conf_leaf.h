/* daemon/ctrl/conf_leaf.h - the values that a text writes out, as a flat list.
 *
 * Internal to conf*.c: an edit proves by it that nothing else changed, a rebase compares
 * three of them. A list is one leaf. Pure. */
#ifndef CTRL_CONF_LEAF_H
#define CTRL_CONF_LEAF_H

#include "daemon/ctrl/conf_tree.h"

struct buf;
struct err;

enum { LEAF_SEP = '\x1f' };

struct leaf {
    char *path;  /* words with dots */
    char *words; /* words with LEAF_SEP: a name may hold dots */
    char *value; /* as conf_text_set takes it */
};
struct leaves {
    struct leaf *v;
    int n, cap;
};

/* Read a text that must be whole YAML; SYNTAX with line and column. *ret_root is NULL for
 * an empty text. All in a. */
int conf_tree_of(const char *text, struct arena *a, struct tree_node **ret_root,
                 struct err *e);
void conf_leaves(struct tree_node *root, struct arena *a, struct leaves *ret);
const struct leaf *conf_leaf(const struct leaves *l, const char *words);
/* A string as conf_text_set takes it: in quotes where it would be taken for them. */
void conf_leaf_str(struct buf *b, const char *s);

#endif
