/* topo/eplb.h - the published expert-parallel load balancer (EPLB): the baseline.
 *
 * Pure, each layer for itself. Packing: items by falling weight, each to the lightest
 * pack that is not full, the first of equals; as many packs as items: item i to pack i.
 * Replication: each slot more goes to the expert with the highest load per copy.
 * Hierarchical (groups divide by nodes): groups are packed to nodes, experts replicated
 * inside each node, slots packed to the devices of the node. Global: the same with one
 * node and one group. It may put two copies of one expert on one device, and knows
 * nothing of the map as it was.
 *
 * Where the published one fails or answers oddly: a layer without load counts its experts
 * alike (there, every spare slot goes to expert 0); groups that do not divide the
 * experts, or nodes that do not divide groups, devices and slots, mean global; devices
 * that do not divide the slots have one slot more each, from the first on. Any thread. */
#ifndef TOPO_EPLB_H
#define TOPO_EPLB_H

#include <stdint.h>

struct err;
struct expert_ask;

struct eplb_ask {
    int n_layer, n_expert, n_slot; /* n_slot: of a layer, all devices */
    int n_device, n_node, n_group; /* 1 node and 1 group: global */
    const double *load;            /* [n_layer * n_expert], >= 0 */
};

/* The expert of each slot, device by device, into ret [n_layer * n_slot]. ERR_RANGE for
 * sizes beyond the bounds of expertplan.h or bad loads, ERR_NOFIT for fewer slots than
 * experts. */
int eplb_plan(const struct eplb_ask *a, int16_t *ret, struct err *e);
/* The first slot of a device; of device n_device: the end. */
int eplb_first(const struct eplb_ask *a, int device);
/* The same as a map for our own use, [n_layer * n_device * n_slot]: on the devices that
 * are not out, each with as many slots as the least of them; the second copy on a device
 * is left out (its slot is empty). Hierarchical where hosts are alike in size and are a
 * divisor of n_group. */
int eplb_map(const struct expert_ask *a, int n_group, int16_t *ret, struct err *e);

#endif
