/* daemon/ctrl/experts.h - the experts of all instances: watched, planned for, moved.
 *
 * For each engine whose experts can move: counts are sampled, controller.h decides, its
 * plans go to the engine as moves (wire_experts.h) and its news come back; what was
 * decided and what became of it goes to the journal and the metrics. The engine's table
 * is mirrored here, a new engine has it as loaded. A plan of which one move fails is
 * called back: what has flipped stays, what has not is given up.
 *
 * A plan that an operator orders is made on another thread from a copy of what is known,
 * since one from nothing may take long; meanwhile no other is begun.
 *
 * Control thread, but for experts_propose, experts_view and experts_list (any). */
#ifndef CTRL_EXPERTS_H
#define CTRL_EXPERTS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/ctrl/controller.h"
#include "daemon/serve/moves.h"

struct conf_instance;
struct err;
struct experts;
struct loop;
struct metric_page;
struct store;
struct wire_expert_orders;
struct wire_moved;
struct wire_ready;

/* Of one layer: pairs (row, expert) in all, in copies elsewhere than where the expert was
 * loaded, over a copy's capacity, and of these what another copy took, the next best
 * expert, or none; time; bytes read from other ranks. */
struct experts_sums {
    double rows, replica, over, moved, next, dropped;
    double queue_us, service_us;
    double dispatch_bytes, dispatch_us, combine_bytes, combine_us;
};
/* Of an expert, as in the sums. */
struct experts_more {
    double queue_us, over, replica;
};
/* Counts since an engine began. Arrays are the caller's, [n_layer * n_expert]. */
struct experts_counts {
    double steps[CONTROLLER_PHASES];
    double all_steps, step_us; /* of whatever kind, and what they took in all */
    double *tokens[CONTROLLER_PHASES], *service_us[CONTROLLER_PHASES];
    struct experts_more *more[CONTROLLER_PHASES];
    struct experts_sums *layer[CONTROLLER_PHASES]; /* [n_layer], zeros at first */
};

/* How an engine is reached. send: false when it did not go out. read: false when nothing
 * is counted. */
struct experts_engine {
    const char *instance;
    bool (*send)(void *arg, const struct wire_expert_orders *o);
    bool (*read)(void *arg, int n_layer, int n_expert, struct experts_counts *ret);
    /* How often two experts of a layer were chosen for one row, [n_expert * n_expert];
     * false: not counted. NULL allowed. Any thread, until experts_gone. */
    bool (*pairs)(void *arg, int layer, int n_expert, double *ret);
    /* Ranks of the expert group whose devices are cordoned or lost, as 1. NULL: none. */
    void (*out)(void *arg, int n_rank, uint8_t *ret);
    void *arg;
};

int experts_new(struct loop *loop, struct store *store, struct metric_page *page,
                struct experts **ret, struct err *e);
void experts_free(struct experts *x); /* NULL allowed */

/* An engine is ready; arg of e names it from now on. Nothing when none of its experts can
 * move. */
void experts_ready(struct experts *x, const struct experts_engine *e,
                   const struct conf_instance *i, const struct wire_ready *r);
void experts_gone(struct experts *x, const void *arg);
void experts_conf(struct experts *x, const void *arg, const struct conf_instance *i);
void experts_moved(struct experts *x, const void *arg, const struct wire_moved *m,
                   int64_t now_us);
/* Once a second or more often; returns when the next sample is due, -1: of none. */
int64_t experts_tick(struct experts *x, int64_t now_us);

/* ---- by an operator; NOTFOUND: no such instance, or its experts stay ---- */
struct experts_who {
    const char *actor, *origin;
};
/* A plan by the loads as known is made beside the control thread and then carried out.
 * *ret_order: its number, for experts_progress. CONFLICT while frozen, with a plan in
 * hand, or while one is being made. */
int experts_apply(struct experts *x, const char *instance, enum controller_method m,
                  const struct experts_who *who, uint64_t *ret_order, struct err *e);
/* What that would do: nothing is done. On the thread that asks; it may take long. */
struct experts_proposal {
    char why[200];
    int n_layer, n_move;
    int64_t bytes;
    double apart_before, apart_after; /* see controller_actions */
    struct controller_layer *layer;   /* [n_layer] */
    struct expert_move *move;         /* [n_move] */
};
int experts_propose(struct experts *x, const char *instance, enum controller_method m,
                    struct experts_proposal *ret, struct err *e);
void experts_proposal_done(struct experts_proposal *p);
/* How far an order is: plan 0 while it is being made, or nothing is to be moved; moves
 * done of all; over: it has ended, whole or not. NOTFOUND when its engine has ended or
 * another one was given since. */
struct experts_progress {
    uint64_t plan;
    int n_move, n_done;
    bool over, whole;
    char why[200];
};
int experts_progress(struct experts *x, const char *instance, uint64_t order,
                     struct experts_progress *ret, struct err *e);
/* Frozen: nothing changes, until thawed; kept in the store. A plan in hand is called
 * back. */
int experts_freeze(struct experts *x, const char *instance, bool on,
                   const struct experts_who *who, const char *reason, struct err *e);

/* ---- to be shown ---- */
enum { EXPERTS_HISTORY = 64 };
struct experts_event {
    int64_t at_ms;
    uint64_t plan, move; /* 0 = none */
    int layer;           /* -1 = of all */
    char what[24];       /* plan, advice, move, call-back, outcome, shares, freeze */
    char text[232];
    /* of a step, us: foreseen and then measured (of a move: some time after its plan is
     * over, NAN until then; see controller_gain.c); of a move: step time during it less
     * before, mean and longest. NAN = not of this event */
    double predicted_us, realised_us, added_us, added_max_us;
    int64_t bytes; /* of a plan or a move */
};
struct experts_move {
    struct move move;
    enum move_state state;
    double gain_us; /* of a step, foreseen */
    char why[128];
};
/* A copy that the caller frees by experts_view_done. Arrays [n_layer][..]. */
struct experts_view {
    char instance[64];
    int n_layer, n_expert, n_rank, n_slot;
    int policy; /* enum controller_policy */
    bool frozen;
    int64_t expert_bytes;
    double *load; /* [n_expert]: us of a step, as planned by */
    /* [n_expert]: assignments since the engine began, and what is known of them */
    double *tokens[CONTROLLER_PHASES], *service_us[CONTROLLER_PHASES];
    struct experts_more *more[CONTROLLER_PHASES];
    double steps[CONTROLLER_PHASES];
    struct experts_sums *sums[CONTROLLER_PHASES]; /* [1] */
    int16_t *map;                                 /* [n_rank * n_slot]: -1 = empty */
    float *share;                                 /* likewise */
    double *device;                               /* [n_rank]: load of each device */
    double *imbalance;         /* R: largest over mean load of the experts */
    double *balanced;          /* balancedness of the devices now .. */
    double *unbalanced;        /* .. and with the experts as they were loaded */
    struct experts_move *move; /* of the plan in hand */
    int n_move;
    uint64_t plan;
    char why[200];                                 /* of the last decision */
    struct experts_event history[EXPERTS_HISTORY]; /* newest first */
    int n_history;
    uint64_t n_done, n_aborted, n_stalled, bytes;
    int64_t added_mean_us, added_max_us; /* step time during the last move, less before */
    /* What the TPOT objective leaves of a step, < 0 where it is missed; NAN: there is no
     * objective. And the most that may be copied beside a step, by that. */
    double slack_us;
    int64_t step_bytes;
    /* moves of which it is known what they brought; us of a step, of them all */
    uint64_t n_measured;
    double predicted_us, realised_us;
};
int experts_view(struct experts *x, const char *instance, struct experts_view *ret,
                 struct err *e);
void experts_view_done(struct experts_view *v);
/* Names of the instances whose experts can move; returns the count. */
int experts_list(struct experts *x, char (*ret)[64], int max);

#endif
