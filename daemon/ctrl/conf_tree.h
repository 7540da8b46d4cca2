/* daemon/ctrl/conf_tree.h - a YAML text as a tree that knows where each piece stands.
 *
 * Internal to conf*.c; the only file that knows libyaml is conf_tree.c. What we refuse of
 * YAML is refused here with its place: anchors, aliases, tags, directives, more than one
 * document, tabs, other line ends, other characters. Depth, nodes and size are limited. A
 * tree lives in an arena and borrows nothing from the text. Pure; any thread. */
#ifndef CTRL_CONF_TREE_H
#define CTRL_CONF_TREE_H

#include "daemon/ctrl/conf_rows.h"

enum { TREE_MAX_DEPTH = 8, TREE_MAX_NODES = 16384 };

enum tree_kind { TREE_SCALAR, TREE_MAP, TREE_LIST };

struct tree_node {
    enum tree_kind kind;
    bool flow;                /* [a] or {a: b} */
    bool quoted;              /* a scalar in quotes or a block scalar */
    bool bad;                 /* its fault is told: no value of any type */
    struct conf_pos from, to; /* to: past its last own byte, no comment after it */
    char *s;                  /* scalar */
    size_t n;
    struct tree_pair *kids; /* a list has no keys */
    int n_kids, cap;
};
struct tree_pair {
    struct tree_node *key, *value;
};

/* Every fault goes to faults (as far as libyaml reads on); *ret is what was read, also
 * then, and NULL for an empty text. -1 when the text breaks off at a fault. */
int tree_parse(const char *text, size_t n, struct arena *a, struct tree_node **ret,
               struct conf_faults *faults);
/* Nothing stands there: `key:` alone. */
bool tree_empty(const struct tree_node *v);
/* The pair of that key, NULL; index into kids or -1. */
int tree_key(const struct tree_node *map, const char *key, size_t n);

/* Follow a path as far as the tree has it. Names may hold dots: the longest key that is
 * there wins. rest is what was not found, "" when all was. */
struct tree_at {
    struct tree_node *map;  /* the last container that was entered, NULL: no root */
    int at;                 /* the pair of map that was matched last, -1 */
    struct tree_node *node; /* what the matched path names; the root at first */
    const char *rest;
};
void tree_find(struct tree_node *root, const char *path, struct tree_at *ret);

#endif
