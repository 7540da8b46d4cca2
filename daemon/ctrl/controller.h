/* daemon/ctrl/controller.h - the feedback loop of the experts: which get more copies,
 * fewer, or stand elsewhere, and what each copy takes.
 *
 * Pure: what was counted, the routes, limits and a clock in; actions out. It touches no
 * engine; the caller carries actions out and says what became of them. Of four time
 * scales: the choice per batch is the runtime's, within shares given here; seconds
 * (share_every_us, and at once when a plan is over): shares of the copies there are;
 * minutes (dwell_us): copies added, moved, retired by the incremental planner; on
 * request: a plan from nothing.
 *
 * Loads are kept per layer: a quick mean for shares, a mean since the loads last changed
 * in kind (a regime), and a long mean. Copies are planned by the regime's mean once it
 * has lasted a dwell time, by the long mean until then: topics that alternate faster than
 * that are seen as their mixture. A layer is acted on from balancedness below `enter`
 * until it is above `leave`, at most once a dwell time, and only where the time saved
 * until the loads change again is more than the move costs. A device that goes out is
 * answered at once: a plan that writes to it is called back and copies that are missing
 * are planned elsewhere, whatever the dwell time.
 *
 * What an expert takes is its measured service time where there is one. Prefill and
 * decode come apart and count by the weight that limits give to each. One owner at a
 * time. */
#ifndef CTRL_CONTROLLER_H
#define CTRL_CONTROLLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "topo/expertplan.h"

struct err;
struct routes;

enum controller_policy { CONTROLLER_OFF, CONTROLLER_ADVISE, CONTROLLER_AUTO };
enum controller_phase { CONTROLLER_PREFILL, CONTROLLER_DECODE, CONTROLLER_PHASES };
/* A plan from nothing by the planner or by EPLB; or the moves that pay, from the map as
 * it is. */
enum controller_method { CONTROLLER_PLANNER, CONTROLLER_EPLB, CONTROLLER_INCREMENT };

struct controller_limits {
    enum controller_policy policy; /* advise: actions are only said, never carried out */
    bool frozen;                   /* no change of any kind, shares included */
    int64_t share_every_us;        /* 0: shares are left alone */
    double share_gain;    /* least fall of the heaviest load worth new shares: 0.03 */
    int64_t dwell_us;     /* between two changes of one layer's copies */
    double enter, leave;  /* balancedness, enter < leave */
    double min_gain;      /* least fall of the heaviest load worth a plan: 0.03 */
    int64_t horizon_us;   /* how long loads are taken to last, until it was seen */
    int64_t deadline_us;  /* of a plan in hand; after it, it is called back */
    int max_moves;        /* slots written in one plan; 0 = any */
    int64_t max_bytes;    /* of one plan; 0 = any */
    int per_device;       /* slots written on one device in one layer; 0 = any */
    double copy_Bps;      /* of moving weights */
    double risk_us;       /* that a written slot is taken to cost beside the copy */
    double slack_us;      /* TPOT objective less the step time now; < 0: none */
    double slack_share;   /* how much of it copying may take in a step: 0.1 */
    double prefill_share; /* weight of prefill's time in the load, 0 to 1: 0.5 */
};

/* The devices of the instance's expert group, by rank. Borrowed. */
struct controller_devices {
    const uint8_t *out; /* [n_rank]: 1 = cordoned or lost; NULL: none */
    const int *slots;   /* [n_rank]: most copies a layer; NULL: all */
    const int *host;    /* [n_rank]; NULL: one */
    int64_t expert_bytes;
    int n_group; /* the model's groups of experts, for EPLB; 0: none */
    /* For plans from nothing, see expert_ask; NULL and 0: no affinity. */
    const double *with;
    double affinity;
};

/* What was counted since the last call; without warm-up and idle filling. Borrowed. */
struct controller_series {
    double steps[CONTROLLER_PHASES];
    /* [n_layer * n_expert] assignments, and the time they were in work, us. NULL: none of
     * that phase, or not measured */
    const double *tokens[CONTROLLER_PHASES];
    const double *service_us[CONTROLLER_PHASES];
    const double *busy_us; /* [n_rank]; NULL: not measured */
    double span_us;        /* how long it was counted for */
};

struct controller_share {
    int layer;
    float *share;         /* [n_rank * n_slot], 0 in empty slots */
    double before, after; /* balancedness foreseen */
};

struct controller_outcome { /* of a plan that is over, by loads measured since */
    uint64_t plan;
    int layer;
    double predicted_us, realised_us; /* of a step */
};

struct controller_gain { /* of a group of such a plan that was done, likewise */
    uint64_t plan;
    int group, layer;
    double predicted_us, realised_us;
};

struct controller_layer { /* of a plan */
    int layer;
    double before, after; /* balancedness */
    double gain_us;       /* of a step, foreseen */
    double cost_us;       /* of copying, in all */
};

/* The answer. Everything in it is the controller's, until the next call. */
struct controller_actions {
    bool advice; /* only to be said: policy advise */
    const struct controller_share *share;
    int n_share;
    /* A plan: moves in order, by groups (see expert_move). Devices are ranks. */
    uint64_t plan; /* its number, from 1; 0 = none */
    const struct expert_move *move;
    int n_move, n_group;
    const struct controller_layer *layer;
    int n_layer;
    int64_t bytes, bytes_per_step; /* the second: most that a step may copy, > 0 */
    /* Of a plan from nothing: what of the ways of rows leads to another host, before and
     * after, 0 to 1 (expertplan_apart). NAN without affinity data. */
    double apart_before, apart_after;
    uint64_t call_back; /* a plan in hand to abort to its last whole group; 0 */
    const struct controller_outcome *outcome; /* of whole plans */
    int n_outcome;
    const struct controller_gain *gain; /* of those that were called back too */
    int n_gain;
    char why[200]; /* of the plan, the call back, or why there is none; "" */
};

struct controller *controller_new(int n_layer, int n_expert, int n_rank, int n_slot);
void controller_free(struct controller *c); /* NULL allowed */

/* Some times a second or less often. r: as the ranks have them now. -1 and e: the experts
 * do not fit on what is left, or an argument is not of these dimensions. */
int controller_decide(struct controller *c, const struct controller_series *s,
                      const struct routes *r, const struct controller_devices *d,
                      const struct controller_limits *l, int64_t now_us,
                      const struct controller_actions **ret, struct err *e);
/* A plan by the loads as known, now, whatever the dwell time and hysteresis, and unless
 * it is an increment the benefit and the budget (an operator's wish; auto, advise or
 * off): a dry run, also when frozen or with a plan in hand. One from nothing may take
 * long; it may be made on a copy, by another thread. */
int controller_preview(struct controller *c, const struct routes *r,
                       const struct controller_devices *d,
                       const struct controller_limits *l, enum controller_method m,
                       const struct controller_actions **ret, struct err *e);
/* What a preview goes by. The caller frees it. */
struct controller *controller_copy(const struct controller *c);
/* The plan that was previewed on a copy is to be carried out: it is in hand now, if it
 * has moves. The copy gives it away. CONFLICT when frozen or with another plan in hand.
 * The routes must not have changed since: between the copy and this, hold. */
int controller_adopt(struct controller *c, struct controller *copy,
                     const struct controller_limits *l, int64_t now_us,
                     const struct controller_actions **ret, struct err *e);
/* While it is held it begins no plan of its own. */
void controller_hold(struct controller *c, bool on);
/* The plan is over: whole, or called back or failed (then its layers are looked at anew
 * after a dwell time). Until then no other is made. */
void controller_over(struct controller *c, uint64_t plan, bool whole, int64_t now_us);
/* Bytes that a step may copy now, > 0: what its slack leaves; where there is none, what
 * must be copied goes on slowly. */
int64_t controller_pace(const struct controller_limits *l, int64_t expert_bytes);
/* The plan in hand; 0 = none. */
uint64_t controller_in_hand(const struct controller *c);
/* Loads of a layer as planned by, [n_expert]; for show. */
const double *controller_loads(const struct controller *c, int layer);

#endif
