/* daemon/ctrl/controller_impl.h - the controller's memory. For daemon/ctrl/controller*.c
 * only. */
#ifndef CTRL_CONTROLLER_IMPL_H
#define CTRL_CONTROLLER_IMPL_H

#include "daemon/ctrl/controller.h"

struct layer_mind {
    double age_us;    /* that the loads have been of this kind */
    double rows;      /* assignments counted, in all */
    int64_t acted_us; /* a plan for it was made or was over; INT64_MIN: never */
    double balance;   /* at the last look */
    bool chosen;      /* for the plan that is being made */
    bool acting;      /* below enter, not yet above leave again */
    bool in_hand;     /* of the plan in hand */
    double predicted; /* of the plan in hand, us of a step */
    /* a plan that is over and whose outcome is not told yet; 0: none */
    uint64_t watch;
    int64_t watch_us; /* since */
    bool whole;       /* it was not called back */
    double foreseen;  /* what it predicted */
    /* moves of the plan in hand, then of the last one; see controller_gain.c */
    struct expert_move *kept;
    int n_kept;
    bool in_parts;
};

struct controller {
    int n_layer, n_expert, n_rank, n_slot;
    /* [n_layer * n_expert]: us of a step that each expert takes; by time scale, and as it
     * was when the regime began */
    double *quick, *regime, *slow, *ref, *sample;
    double *scratch;   /* [n_expert] */
    double *rows;      /* [n_layer]: assignments of the sample */
    double *plan;      /* what was planned by last */
    double seen_us;    /* how long anything was counted for */
    double between_us; /* mean time between changes of the loads; 0: not known */
    double step_us;    /* time from one step to the next */
    struct layer_mind *layer;
    int16_t *map;                 /* as the ranks have it, [n_layer * n_rank * n_slot] */
    int16_t *before;              /* of each layer, as it was before its last plan */
    int64_t looked_us, shared_us; /* INT64_MIN: never */
    uint64_t last_plan, hand;
    int64_t hand_us;
    bool asked;       /* by an operator: whatever the policy */
    bool held;        /* no plan of its own */
    uint8_t *hand_to; /* [n_rank]: the plan in hand writes to it */
    uint8_t *out;     /* [n_rank]: as at the last look */
    /* the answer */
    struct controller_actions act;
    struct expert_moves moves;
    struct controller_share *share;
    float *shares; /* [n_layer * n_rank * n_slot] */
    struct controller_layer *said;
    struct controller_outcome *outcome;
    struct controller_gain *gain;
    int cap_gain;
};

/* controller_loads.c: what was counted, into the means. */
void controller_fold(struct controller *c, const struct controller_series *s,
                     const struct controller_limits *l);
/* Loads to plan a layer by; false: not known long enough. */
bool controller_known(const struct controller *c, int layer,
                      const struct controller_limits *l, const double **ret);
/* How long a layer's loads are expected to stay as they are. */
double controller_horizon_us(const struct controller *c, int layer,
                             const struct controller_limits *l);

/* controller_plan.c: plans and what is said of them. which: the layers to plan [n_layer];
 * must: likewise those that cannot stay as they are. */
struct expert_ask controller_ask(const struct controller *c,
                                 const struct controller_devices *d, const double *load);
int controller_plan(struct controller *c, const struct controller_devices *d,
                    const struct controller_limits *l, const bool *which,
                    const bool *must, struct err *e);
void controller_say(struct controller *c, const struct expert_ask *a,
                    const struct controller_limits *l);
void controller_shares(struct controller *c, const struct routes *r,
                       const struct controller_devices *d,
                       const struct controller_limits *l);
void controller_outcomes(struct controller *c, const struct controller_devices *d,
                         const struct controller_limits *l, int64_t now_us);
void controller_clear(struct controller *c); /* the answer */
/* The heaviest load of a layer with the best shares. */
double controller_heaviest(const struct controller *c, const struct expert_ask *a,
                           int layer, const int16_t *map);

/* controller_gain.c. Of the plan that is being said: the gain of each of a layer's moves,
 * n from first, gain in all. The layer's moves are kept until they are told of: what came
 * of a layer, now. */
void controller_foresee(struct controller *c, const struct expert_ask *a, int first,
                        int n, double gain);
void controller_keep(struct controller *c, int layer);
void controller_told(struct controller *c, const struct expert_ask *a, int layer);

#endif
