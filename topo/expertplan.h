/* topo/expertplan.h - where the copies of experts stand, and what each copy takes.
 *
 * Pure: loads, a map and limits in; a map, moves or shares out. A map of a layer is the
 * expert of each slot, device by device (-1 = empty), of int16_t as in a route table, so
 * that a layer of one is a layer of the other. Each expert has at least one copy on a
 * usable device and never two on one device.
 *
 * Loads are what each expert takes in a window: tokens, or better the measured time
 * (expertplan_weights). Only their proportions count, but for the benefit test, which
 * has the unit in its budget. A layer without load counts all its experts alike in an
 * offline plan and is left as it is by an incremental one.
 *
 * Offline: copies and places together, from nothing. Each layer is first filled greedily
 * and then improved by swaps of two slots and by giving a slot of one expert to another,
 * as long as sum (L_g / mean)^8 of the device loads L_g falls. Incremental: the same
 * moves from the map as it is, in small layers also several together, the best for its
 * bytes first, within a budget, and only such as repay their cost. Layers of few slots
 * are judged as they will be once shares have followed. Any thread. */
#ifndef TOPO_EXPERTPLAN_H
#define TOPO_EXPERTPLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

enum {
    EXPERTPLAN_MAX_EXPERTS = 1024,
    EXPERTPLAN_MAX_DEVICES = 1024,
    EXPERTPLAN_MAX_SLOTS = 4096, /* of a layer, all devices */
    EXPERTPLAN_MAX_LAYERS = 1024,
    EXPERTPLAN_MAX_HOSTS = 64 /* where there is affinity */
};

/* The question. Plain data, borrowed. */
struct expert_ask {
    int n_layer, n_expert, n_device;
    int n_slot;           /* of each device in a map; slots[] may allow fewer */
    const double *load;   /* [n_layer * n_expert], >= 0 */
    const int *slots;     /* [n_device]: most copies a layer; NULL: n_slot each */
    const uint8_t *out;   /* [n_device]: 1 = cordoned or lost; NULL: none */
    const int *host;      /* [n_device]; NULL: one host */
    const double *with;   /* [n_layer * n_expert * n_expert]: how often both were chosen
                           * for one token, either way round; NULL: no affinity */
    double affinity;      /* how far above the mean a device may be loaded for its sake,
                           * 0.1 = 10 %; 0 = no affinity */
    int64_t expert_bytes; /* of one expert of one layer */
};

/* How far an incremental plan may go and what a move must repay. */
struct expert_budget {
    int max_moves;      /* slots written, all layers; 0 = any number */
    int64_t max_bytes;  /* likewise; 0 = any */
    int per_device;     /* slots written on one device in one layer; 0 = any */
    double min_gain;    /* of the heaviest device's load in a layer, 0.02 = 2 % */
    double us_per_load; /* step time, us, that one unit of load takes on a device */
    double steps;       /* expected until the loads change again */
    double copy_Bps;    /* of moving weights; 0: a move costs nothing */
    double risk_us;     /* what else a written slot is taken to cost */
};

enum expert_kind {
    EXPERT_ADD,   /* a copy more; what stood in the slot, if anything, has others */
    EXPERT_MOVE,  /* a copy leaves its device for this one */
    EXPERT_RETIRE /* the slot is emptied */
};

/* One slot that changes. Moves of one group hold together only all at once; groups may
 * be done one by one, in order, and the map is sound after each. */
struct expert_move {
    int layer, group; /* groups are numbered through the plan, from 0 */
    enum expert_kind kind;
    int expert;          /* what the move is about */
    int device, slot;    /* the slot that changes */
    int was;             /* its expert until now, -1 = empty */
    int from, from_slot; /* EXPERT_MOVE: where the copy leaves; else -1 */
    int64_t bytes;       /* to be loaded; 0 for EXPERT_RETIRE */
    double gain; /* of the heaviest device's load, by this move's share of its layer's */
};

struct expert_moves {
    struct expert_move *move; /* layer by layer */
    int n, n_group;
    int64_t bytes;
    int16_t *map; /* [n_layer * n_device * n_slot]: as it is afterwards */
};

/* Weights by measured time: us[e] where it was measured, else tokens[e] at the mean time
 * of a token; us NULL: the tokens themselves. */
void expertplan_weights(const double *tokens, const double *us, int n, double *ret);

/* Offline: ret is [n_layer * n_device * n_slot]. ERR_RANGE for sizes beyond the bounds or
 * loads that are no numbers, ERR_NOFIT where the usable slots are fewer than experts. */
int expertplan_offline(const struct expert_ask *a, int16_t *ret, struct err *e);
/* Incremental, from map now. What must be (an expert without a usable copy) is planned
 * first and whatever the budget; copies on devices that are out are retired. n = 0:
 * nothing pays. The caller frees by expertplan_moves_done(). */
int expertplan_step(const struct expert_ask *a, const int16_t *now,
                    const struct expert_budget *b, struct expert_moves *ret,
                    struct err *e);
/* The moves from one map to another, all of them, with no test and no budget. */
int expertplan_diff(const struct expert_ask *a, const int16_t *now, const int16_t *then,
                    struct expert_moves *ret, struct err *e);
void expertplan_moves_done(struct expert_moves *m);

/* Shares of one layer's copies that make the heaviest device lightest: ret is
 * [n_device * n_slot], of each expert they sum to 1 (0 in empty slots and on devices that
 * are out). Returns the heaviest device's load. A layer without load: equal shares. */
double expertplan_shares(const struct expert_ask *a, int layer, const int16_t *map,
                         float *ret);
/* Loads of the devices of one layer by these shares (NULL: equal ones) into ret
 * [n_device] (NULL allowed); returns balancedness, mean / max over the devices that are
 * not out; 1 without load. */
double expertplan_balance(const struct expert_ask *a, int layer, const int16_t *map,
                          const float *share, double *ret);
/* Of the ways of rows to the pairs of experts that they chose and back, the share that
 * leads to another host, where rows are of all hosts alike and take near copies; 0
 * without affinity data. An estimate of the traffic between hosts. */
double expertplan_apart(const struct expert_ask *a, const int16_t *map);
/* The rules for maps above, for what came from outside, and tests. */
int expertplan_check(const struct expert_ask *a, const int16_t *map, struct err *e);

#endif
