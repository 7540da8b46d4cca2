/* daemon/serve/moves.h - moves of experts' copies, one after the other, state by state.
 * Pure.
 *
 *   QUEUED -> LOADING -> VERIFYING -> WARMING -> READY -> FLIP -> DRAINING -> FREED ->
 * DONE
 *                \__________\___________\__________\-> ABORTED
 *
 * Events and a clock in, actions out: who does them (engine_experts.c) answers each with
 * an event. Until the flip is asked for, a failure, an order to give up or the deadline
 * of a state ends the move and leaves the map as it was; from then on there is no way
 * back: the ranks have the new map, or the engine ends (MOVES_BROKEN). A move that only
 * empties slots begins with the votes. What is answered late, for a move that is over,
 * is counted and does nothing else. One owner at a time. */
#ifndef SERVE_MOVES_H
#define SERVE_MOVES_H

#include <stdbool.h>
#include <stdint.h>

struct err;
struct moves;

/* X(id, word) in the order that a move goes through them. */
#define MOVE_STATE_MAP(X)                                                                \
    X(QUEUED, "queued")                                                                  \
    X(LOADING, "loading")                                                                \
    X(VERIFYING, "verifying")                                                            \
    X(WARMING, "warming")                                                                \
    X(READY, "ready")                                                                    \
    X(FLIP, "flip")                                                                      \
    X(DRAINING, "draining")                                                              \
    X(FREED, "freed")                                                                    \
    X(DONE, "done")                                                                      \
    X(ABORTED, "aborted")
enum move_state {
#define X(id, word) MOVE_##id,
    MOVE_STATE_MAP(X)
#undef X
        MOVE_STATE_COUNT
};
const char *move_state_name(enum move_state s);

enum { MOVES_QUEUED = 256 };

/* Slots of one layer that get another expert, or -1 = none; all at once. A copy that
 * only leaves, one that is added and two that change places are all of this kind. None at
 * all: what else the table has to say, its shares, goes the same way. */
enum { MOVE_PUTS = 16 };
struct move_put {
    int16_t rank, slot, expert; /* rank of the expert group, slot of it */
};
struct move {
    uint64_t id;
    int layer; /* among those with experts */
    int n;
    struct move_put put[MOVE_PUTS];
};

struct moves_limits {
    int n_layer, n_expert, n_rank, n_slot; /* n_slot: of each rank */
    int64_t state_us[MOVE_STATE_COUNT];    /* longest stay; of QUEUED: until it begins */
};
/* 30 s to load, 5 s in each of the others, ten minutes in the queue. */
void moves_limits_init(struct moves_limits *l);

struct moves *moves_new(const struct moves_limits *l);
void moves_free(struct moves *m); /* NULL allowed */

/* Put one behind the others, but before those of no slots (new shares, of which a layer
 * each may wait), which change less. ERR_RANGE: no such layer, expert or rank; ERR_BUSY
 * when MOVES_QUEUED wait; ERR_CONFLICT: an id that is there. */
int moves_order(struct moves *m, int64_t now, const struct move *v, struct err *e);
/* Give up all that is not past its flip. */
void moves_cancel(struct moves *m, int64_t now, const char *why);

enum moves_event_kind {
    MOVES_LOADED,   /* the weights stand in the device's memory */
    MOVES_VERIFIED, /* and are those of the checkpoint */
    MOVES_WARMED,
    MOVES_VOTED,   /* all ranks said yes */
    MOVES_FLIPPED, /* all ranks have the new table; last_ticket: submitted before it */
    MOVES_STEP,    /* the step last_ticket has ended, and took step_us */
    MOVES_FREED,   /* what stood there, or (after an abort) what was loaded, is gone */
    MOVES_FAILED   /* what was asked for did not come about: why */
};
struct moves_event {
    enum moves_event_kind kind;
    uint64_t id, last_ticket;        /* id: of the move; MOVES_STEP has none */
    int64_t step_us, bytes, work_us; /* the last two: MOVES_LOADED, MOVES_VERIFIED */
    const char *why;                 /* borrowed during the call */
};
void moves_event(struct moves *m, int64_t now, const struct moves_event *ev);
/* Deadlines that have passed. */
void moves_tick(struct moves *m, int64_t now);
int64_t moves_deadline(const struct moves *m); /* when to tick, -1 = never */

enum moves_act_kind {
    MOVES_LOAD,
    MOVES_VERIFY,
    MOVES_WARM,
    MOVES_VOTE,
    MOVES_DO_FLIP,
    MOVES_FREE,   /* of the retired copy; where there is none, nothing is asked */
    MOVES_DROP,   /* the move was aborted: stop loading, free what was loaded */
    MOVES_BROKEN, /* some ranks may have the new map: end the engine, see why */
    MOVES_TELL    /* news of the move: see moves_news */
};

/* What is known of a move. load_us: from its begin until what was loaded is checked, work
 * of which the loader did not rest; steps: those that ended since it began, and as many
 * before. */
struct moves_news {
    struct move move;
    enum move_state state;
    int64_t bytes, load_us, work_us, all_us; /* all: from begin to now */
    int64_t before_mean_us, before_max_us, during_mean_us, during_max_us;
    int n_steps;
    char why[256]; /* ABORTED, or what is late */
};
struct moves_act {
    enum moves_act_kind kind;
    struct move move;
    struct moves_news news; /* MOVES_TELL, MOVES_BROKEN */
};
/* The next thing to be done; false = nothing. */
bool moves_next(struct moves *m, int64_t now, struct moves_act *ret);

int moves_waiting(const struct moves *m);   /* queued and running */
uint64_t moves_late(const struct moves *m); /* events for moves that were over */

#endif
