/* daemon/ctrl/experts_int.h - what experts.c, experts_plan.c, experts_order.c and
 * experts_view.c share.
 * Not for others. */
#ifndef CTRL_EXPERTS_INT_H
#define CTRL_EXPERTS_INT_H

#include <pthread.h>

#include "base/list.h"
#include "daemon/ctrl/conf.h"
#include "daemon/ctrl/experts.h"
#include "daemon/serve/routes.h"

enum {
    EXPERTS_PLAN_MOVES = 1 << 16,
    EXPERTS_AT_ONCE = MOVES_QUEUED / 2,
    EXPERTS_PLANS = 64
};

/* One engine. */
struct expert_set {
    struct list link;
    struct experts *x;
    uint64_t born; /* the how manieth engine this is */
    struct experts_engine e;
    char instance[64];
    struct controller *c;
    struct controller_limits l;
    int64_t sample_us, sampled_us;
    int64_t tpot_us; /* objective; 0 = none */
    struct routes *now, *loaded;
    int64_t expert_bytes;
    struct controller_devices devices;
    double affinity;
    int *host;                         /* [n_rank], or NULL: one */
    uint8_t *out;                      /* [n_rank] */
    struct experts_counts seen, fresh; /* of the last sample; and since */
    bool any_seen;

    uint64_t plan;             /* in hand; 0 = none */
    struct experts_move *move; /* of it */
    int n_move, n_sent;        /* sent some at a time */
    bool failed;
    uint64_t order; /* an operator's, that is planned or carried out; 0 = none */
    struct {
        uint64_t order; /* 0 = none yet */
        struct experts_progress p;
    } last; /* order that ended */
    char why[200], said[200];
    char lost[200]; /* why the plan in hand fails, the first cause */

    struct experts_event history[EXPERTS_HISTORY];
    int n_history, at_history;
    uint64_t n_done, n_aborted, n_stalled, bytes;
    int64_t added_mean_us, added_max_us;
    uint64_t n_measured;
    double predicted_us, realised_us;
    struct {
        uint64_t plan, move; /* the number of its first */
        int n;
    } plans[EXPERTS_PLANS]; /* the last ones, by number */
    double step_us;         /* mean of the last sample's; 0 = none yet */
    double copy_Bps, copy_share;
    int64_t paced; /* bytes a step that the engine was told */
};

struct experts {
    pthread_mutex_t lock; /* of what is shown: all that is written in the sets */
    struct list sets;
    struct store *store;      /* NULL: no journal */
    struct metric_page *page; /* the daemon's */
    struct side *side;        /* makes the plans that operators order */
    uint64_t ids, engines, orders;
    int64_t now_us; /* of the last tick */
    char frozen[CONF_MAX_NAMES][64];
    int n_frozen;
};

struct expert_set *experts_find(struct experts *x, const char *instance);
bool experts_frozen(const struct experts *x, const char *instance);
/* An event of nothing yet. */
struct experts_event experts_event(const char *what, uint64_t plan);
/* Into the history, and, where result is given, into the journal: by who, NULL = the
 * daemon. */
void experts_note(struct expert_set *s, const struct experts_event *ev,
                  const char *result, const struct experts_who *who);
/* Into the journal alone. */
void experts_journal(const struct expert_set *s, const struct experts_event *ev,
                     const char *result, const struct experts_who *who);
/* Carry out, or only tell, what was decided. */
void experts_act(struct expert_set *s, const struct controller_actions *a, bool own,
                 int64_t now_us);
/* The devices as plans see them, as they are now; the set's, until the next call. */
const struct controller_devices *experts_devices(struct expert_set *s);
/* The operator's order in hand is over. */
void experts_order_over(struct expert_set *s, const struct experts_progress *p);
/* Give up what can be. */
void experts_call_back(struct expert_set *s, const char *why);

#endif
