/* daemon/api/operation.h - long work that was answered with 202: what it is, how far.
 *
 * An operation is started by a handler on the control thread and watched from there: its
 * poll is called a few times a second until it says done or failed, or its time is over.
 * Of those that ended the last ones are kept (OPERATIONS_MAX in all); when that many run,
 * a further one is refused. Ids never come twice, also not after a restart. */
#ifndef API_OPERATION_H
#define API_OPERATION_H

#include <stdbool.h>
#include <stdint.h>

struct err;
struct operations;

enum { OPERATIONS_MAX = 256, OPERATION_ID = 32 };
enum operation_state { OPERATION_RUNNING, OPERATION_DONE, OPERATION_FAILED };
const char *operation_state_name(enum operation_state s);

struct operation {
    int64_t seq; /* 1, 2, .. in the order of the starts */
    char id[OPERATION_ID], kind[32], subject[128], actor[64];
    char message[512]; /* how far, or how it ended */
    enum operation_state state;
    int64_t started_ms, ended_ms; /* Unix ms; 0 = runs */
};

struct operation_watch {
    /* Control thread; may replace message. Not called again after it said the end. */
    enum operation_state (*poll)(void *arg, char message[512]);
    void (*free)(void *arg); /* once, NULL allowed */
    void *arg;
    int64_t limit_us; /* failed when it takes longer; the work itself is not ended */
};

/* changed: each start and each change of state or message, on the control thread. */
typedef void (*operation_fn)(void *arg, const struct operation *op);
struct operations *operations_new(operation_fn changed, void *arg);
void operations_free(struct operations *o);

/* Takes w->arg (also when it fails). UNAVAIL when too many run. Control thread. */
int operation_start(struct operations *o, const char *kind, const char *subject,
                    const char *actor, const struct operation_watch *w,
                    char ret_id[OPERATION_ID], struct err *e);
/* UNAVAIL when a further one would be refused: to ask before its work begins. */
int operation_room(struct operations *o, struct err *e);
/* Polls; returns how many still run. Control thread. */
int operations_tick(struct operations *o, int64_t now_us);

/* Newest first; returns the count. Any thread. */
int operations_list(struct operations *o, struct operation *ret, int max);
int operation_get(struct operations *o, const char *id, struct operation *ret,
                  struct err *e);

#endif
