/* topo/rack.h - racks that are known by name, built from the table of facts.
 *
 * dgx-a100 dgx-h100 hgx-h200 hgx-b200 gb200-nvl72 gb300-nvl72 2x-hgx-h200-ib
 * 2x-hgx-h200-eth, cpu:N (N CPU devices on one host) and cpu:HxN (H hosts with a slower
 * cut between them). Pure; the graphs say that they are emulated. */
#ifndef TOPO_RACK_H
#define TOPO_RACK_H

#include <stdbool.h>

struct err;
struct graph;

/* ram_bytes: what the CPU devices share, 0 = unknown (then their memory is unknown). */
int rack_build(const char *name, double ram_bytes, struct graph **ret, struct err *e);
/* Is it a name of this table (and not a file's)? */
bool rack_is_builtin(const char *name);
/* Row i: name and one line on it; NULL past the end. */
const char *rack_name(int i, const char **ret_about);

#endif
