/* topo/show.h - a rack, its distances and its findings as text for people.
 *
 * Appends to a struct buf; the caller checks b->over. Pure. */
#ifndef TOPO_SHOW_H
#define TOPO_SHOW_H

struct buf;
struct findings;
struct graph;
struct paths;

/* Hosts, NUMA nodes, switches, devices and NICs, indented as they hang on each other. */
void topo_show_tree(const struct graph *g, struct buf *b);
/* As `nvidia-smi topo -m`, with its legend. More than SHOW_ENDS_MAX devices and NICs:
 * devices only. */
void topo_show_matrix(const struct graph *g, const struct paths *p, struct buf *b);
void topo_show_findings(const struct findings *f, struct buf *b);

enum { SHOW_ENDS_MAX = 40 };

#endif
