/* topo/ledger.h - bytes of one device under a layout, and what to do where they do not
 * fit.
 *
 * The device counted is the fullest one: the stage and rank with most. Weights by part
 * and format, scales included; KV by kind for the sequences that shall be resident;
 * activations and workspace at the step budget; the routed rows that the busiest rank
 * takes in; communication buffers, expert-replica slots, the runtime's context and a
 * margin. Pure. Any thread. */
#ifndef TOPO_LEDGER_H
#define TOPO_LEDGER_H

#include <stdbool.h>

#include "topo/layout.h"
#include "topo/shapes.h"

struct buf;
struct err;

/* What is asked of an instance, and what a device costs before any model is on it. */
struct ledger_ask {
    double device_bytes; /* as the device reports */
    int ctx;             /* tokens resident of one sequence */
    int seqs;            /* sequences resident in the instance */
    int budget;          /* tokens of a step in one attention group */
    int outs;            /* rows of logits at once; 0 = one a sequence */
    enum weight_format kv;
    int act_bytes;          /* of an activation element: 4 on the CPU, 2 on a GPU */
    double work_elem_bytes; /* of a row of the widest matrix, kept by the kernels beside
                               it */
    double work_fixed_bytes;
    double page_bytes;       /* to which the kernels' own memory is rounded up; 0 not */
    int slots;               /* expert replica slots of a layer, over all EP ranks */
    int moving;              /* copies of one layer that a rank loads beside its slots */
    double skew;             /* busiest rank's routed tokens over the mean, >= 1 */
    double context_bytes;    /* runtime, driver, kernels, graphs */
    double comm_fixed_bytes; /* communicators, where there is more than one rank */
    double margin;           /* share of device_bytes kept free */
};
/* The defaults of a GPU (is_cpu false) or a CPU device. */
void ledger_ask_defaults(struct ledger_ask *a, double device_bytes, bool is_cpu);

enum ledger_limit {
    LEDGER_FITS,
    LEDGER_LAYER,       /* one layer is wider than a device */
    LEDGER_EXPERTS,     /* the experts in all are too many */
    LEDGER_DEPTH,       /* the layers in all are too many */
    LEDGER_CONTEXT,     /* one sequence's KV is too long */
    LEDGER_SEQUENCES,   /* sequences in all are too many */
    LEDGER_ACTIVATIONS, /* the step is too large */
    LEDGER_FIXED        /* context, buffers and margin alone */
};

struct ledger {
    int stage;                                 /* of the device counted */
    double weights[PART_COUNT], slots, moving; /* moving: while experts move */
    double kv[ATTN_COUNT], kv_seq, kv_token;   /* in all; one sequence; one more token */
    double activations, workspace, routed, comm, context, margin;
    double weights_all, kv_all, total, have;
    int seqs;     /* resident on this device */
    int max_seqs; /* that would fit, 0 when not even one does */
    enum ledger_limit limit;
    char why[256], cure[160]; /* sentences; empty where it fits */
};

/* The layout must have passed layout_check. */
void ledger_count(const struct shapes *s, const struct layout *l,
                  const struct ledger_ask *a, struct ledger *ret);
/* The same of any rank of one stage, without a verdict. */
void ledger_stage(const struct shapes *s, const struct layout *l,
                  const struct ledger_ask *a, int stage, struct ledger *ret);
void ledger_print(const struct ledger *g, struct buf *out); /* a table */
void ledger_json(const struct ledger *g, struct buf *out);  /* one object */

#endif
