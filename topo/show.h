/* topo/show.h - a rack, its distances and its findings as text for people.
 *
 * Appends to a struct buf; the caller checks b->over. Pure. */
#ifndef TOPO_SHOW_H
#define TOPO_SHOW_H

#include <stddef.h>
#include <stdint.h>

struct buf;
struct findings;
struct graph;
struct paths;

/* Hosts, NUMA nodes, switches, devices and NICs, indented as they hang on each other. */
void topo_show_tree(const struct graph *g, struct buf *b);
/* As `nvidia-smi topo -m`, with its legend and what was measured. More than SHOW_ENDS_MAX
 * devices and NICs: devices only. */
void topo_show_matrix(const struct graph *g, const struct paths *p, struct buf *b);
void topo_show_findings(const struct findings *f, struct buf *b);
/* "2026-11-29" of Unix ms, in UTC. */
void topo_day(int64_t ms, char *ret, size_t n);

enum { SHOW_ENDS_MAX = 40 };

#endif
