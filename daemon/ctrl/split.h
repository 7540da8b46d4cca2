/* daemon/ctrl/split.h - one request on two engines: who computes its prompt, who answers.
 *
 * A request is in the table of its target, an engine of the decode pool, from submit to
 * finish. When it is handed to that engine an engine of the prefill pool may be found
 * that computes its prompt, the helper; wire_kv.h tells what the two say to each other.
 * All of it goes through here: small messages are relayed, KV is not. Whatever becomes of
 * the helper, the target goes on with what there is and computes the rest by itself; what
 * becomes of a request whose target is gone is told in target_lost.c. Control thread, and
 * without the lock where no line says otherwise. */
#ifndef CTRL_SPLIT_H
#define CTRL_SPLIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/serve/wire.h"

struct child;
struct gen_finish;
struct req;
struct target;
struct wire_arena;

/* What a request with a helper remembers. */
struct split_leg {
    struct target *helper; /* NULL: none now */
    uint64_t from;         /* its incarnation; 0: nothing comes from a helper any more */
    bool asked;            /* the helper has the request */
    void *held;            /* its last EXPORT, until the client has what stands in it */
    size_t n_held;
    int64_t sent_us, asked_us,
        last_us;      /* to the target; to the helper; its last EXPORT */
    int32_t n_cached; /* as the helper told at its end */
    int64_t queue_us, prefill_us;
};

/* An engine's region as it was told: what each of the other pool is given. */
struct split_region;
/* Of an engine that is ready. Under the lock where it is read by others. */
struct split_end {
    struct child *line; /* NULL: no engine is ready to be spoken to; control thread */
    uint64_t incarnation;
    struct split_region *regions; /* control thread */
    int n_regions, want;          /* told so far; that there will be */
    int role;                     /* enum conf_role */
    int n_help;                   /* requests of others that it helps */
    int n_owed;                   /* that it was given and has not said the end of */
    int n_away;                   /* of its own: those that a helper has */
    int64_t help_load;            /* tokens of the prompts that it is to compute */
    bool stalled;                 /* it owes ends and no step ends: nobody asks it */
    int64_t moved_us;             /* when it owed nothing or a step ended, last */
    double steps;                 /* that had ended then */
};

/* What handing prompts over brought and cost in the last minute, in seconds of requests;
 * of an engine of a decode pool. Under the lock. */
enum split_sum {
    SPLIT_REMOVED,  /* that running answers would have stood still for the prompts */
    SPLIT_HANDOFF,  /* from a prompt's last chunk to all of its KV taken over */
    SPLIT_SCHEDULE, /* from order to KV reserved at the target */
    SPLIT_QUEUE,    /* waiting for a place at the helper */
    SPLIT_COUNT,    /* handoffs */
    SPLIT_SUMS
};
enum { SPLIT_SLOTS = 16, SPLIT_SLOT_US = 5000000, SPLIT_WINDOW = 12 /* slots */ };
struct split_window {
    struct {
        int64_t slot;
        double v[SPLIT_SUMS];
    } at[SPLIT_SLOTS];
};
void split_window_add(struct split_window *w, int64_t now_us, enum split_sum k, double s);
void split_window_sum(const struct split_window *w, int64_t now_us,
                      double ret[SPLIT_SUMS]);

/* READY came over this line, which lives until split_gone. */
void split_ready(struct target *t, struct child *line, const struct wire_ready *r);
/* Takes fd. */
void split_arena(struct target *t, const struct wire_arena *a, int fd);
/* The engine is gone; its line is not used any more. Before target_lose. */
void split_gone(struct target *t);
void split_done(struct target *t); /* at its end */
/* RESERVED, EXPORT, PULLED and LOST; p is checked. */
void split_heard(struct target *t, enum wire_kind kind, const void *p, size_t n);

/* The request goes to its target now: with a helper, where there is one. */
void split_begin(struct target *t, struct req *q, struct wire_add *add);
/* By a timer of the engine. A prefill engine that ends no step for so long as
 * handoff.stall_ms says, or some steps of its own would take, while it has prompts of
 * others: they are computed by their targets, and no more come until it goes on. True
 * when it is found so, with how many they were. */
bool split_watch(struct target *p, int64_t now_us, int *ret_n);
int64_t split_patience(const struct target *p); /* that limit; 0: none, or no such one */
/* Prompts whose KV the other pool still reads, or may: its engine is not to end before.
 */
int split_exports(const struct target *t);
/* p gives no sign of life: the prompts that it has are computed by their targets; how
 * many they were. */
int split_pass_on(struct target *p);
/* Its client is gone: tell the helper too. */
void split_cancel(struct req *q);
/* Tokens of q were handed on. */
void split_told(struct req *q);
/* How the helper ended its part of request id; false: it is no helper of it. */
bool split_finish(struct target *helper, uint64_t id, const struct gen_finish *f);
/* q needs its helper no more: it is told, where it has the request. Under the lock. */
void split_release(struct req *q);
/* Times of the whole request into the finish of its last engine. */
void split_times(const struct req *q, struct gen_finish *f);

#endif
