/* daemon/ctrl/conf_check.h - impossible combinations: what no single directive can see.
 *
 * Internal to conf*.c. Pure: the values, the tree for places, the overrides of this run.
 */
#ifndef CTRL_CONF_CHECK_H
#define CTRL_CONF_CHECK_H

struct conf;
struct conf_faults;
struct conf_override;
struct tree_node;

/* root may be NULL (an empty text). Adds to faults. */
void conf_check(const struct conf *c, struct tree_node *root,
                const struct conf_override *over, int n_over, struct conf_faults *faults);

#endif
