/* daemon/ctrl/conf_set.h - a value where it belongs, checked against its row.
 *
 * Internal to conf*.c. Faults go to faults with the place of the node. Pure. */
#ifndef CTRL_CONF_SET_H
#define CTRL_CONF_SET_H

#include "daemon/ctrl/conf_tree.h"

struct conf_setter {
    struct arena *a;       /* strings and lists live here */
    struct arena *scratch; /* trees */
    struct conf_faults *faults;
};

/* base: the struct of the row's group. path: with real names, for faults. */
void conf_set_node(const struct conf_setter *w, const struct conf_row *r,
                   const struct tree_node *v, const char *path, void *base);
/* A value that stands alone (an override, a default, config set): a list, and what begins
 * with a quote, is YAML; else it is taken as it is. Faults have no place. */
void conf_set_text(const struct conf_setter *w, const struct conf_row *r,
                   const char *text, const char *path, void *base);

#endif
