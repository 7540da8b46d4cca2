/* daemon/ctrl/target.h - one engine as the router sees it; the control thread's side.
 *
 * HTTP threads leave orders (add, cancel) under the router's lock and ring the target's
 * bell; the control thread takes them in order, hands them to the engine and brings back
 * what the engine says. A request holds its target from submit to finish. Everything here
 * is called by the control thread only; sinks are called from here without the lock, so
 * they may call the router. */
#ifndef CTRL_TARGET_H
#define CTRL_TARGET_H

#include "daemon/ctrl/router.h"

struct expertpage;
struct rankpage;
struct tracepage;
struct target;
struct wire_add;

struct target_cfg {
    const char *instance; /* its name */
    int generation;
    int max_live;               /* requests at once; more are BUSY */
    struct metric_page *page;   /* the engine's; taken when target_new succeeds */
    struct rankpage *ranks;     /* likewise; NULL: none is shown */
    struct expertpage *experts; /* likewise */
    struct tracepage *trace;    /* likewise */
    int role;                   /* enum conf_role */
    const char *emulate;        /* rack whose links its ranks emulate; NULL or "": none */
};

int target_new(struct router *r, const struct target_cfg *cfg, struct target **ret,
               struct err *e);
/* Every request must have had its finish. What the engine counted stays in the sums. */
void target_free(struct target *t);
struct metric_page *target_page(const struct target *t);
struct rankpage *target_ranks(const struct target *t);     /* or NULL */
struct expertpage *target_experts(const struct target *t); /* or NULL */

/* Readable when there are orders. */
int target_fd(const struct target *t);
enum target_order { TARGET_NOTHING, TARGET_ADD, TARGET_CANCEL };
/* The next order; *add's arrays live until the next call of this target. */
enum target_order target_take(struct target *t, struct wire_add *ret_add,
                              uint64_t *ret_id);
/* Unknown ids, and those of another target, are normal (a late word about a request that
 * was failed) and do nothing. */
void target_tokens(struct target *t, uint64_t id, const struct step_token *toks, int n,
                   bool scored);
void target_finish(struct target *t, uint64_t id, const struct gen_finish *f);
/* Every request of this target gets FINISH_ERROR with this error. */
void target_fail_all(struct target *t, const struct err *why);
/* Its engine is gone (its state says so already). As served_hot says each request fails
 * with `why`, or waits as an order again: to be taken by another engine of the model, at
 * once where one is ready, or by this one's next. One that had two engines go under it
 * fails. Returns how many wait or went on. target_lost.c, as the next three. */
int target_lose(struct target *t, const struct err *why);
/* The engine gave it back: an order again, for another engine where one is ready. */
void target_return(struct target *t, uint64_t id);
/* Is there another engine that would take what waits here? */
bool target_has_other(struct target *t);
/* For one without an engine that is ready: ends what was cancelled or, with the sentence
 * of the last failure, has waited for too long. */
void target_sweep(struct target *t);
/* Requests without a finish and those that it helps, and for how many of them its engine
 * is to do something now. */
int target_live(struct target *t, int *ret_sent);

/* The model as served from now on; takes tok (NULL in tests). m->tok and m->instance are
 * ignored. */
void target_set_model(struct target *t, const struct served *m, struct tokenizer *tok);
/* State, figures and last error; read by all snapshots. Name and generation stay. */
void target_set_status(struct target *t, const struct instance_status *s);
void target_set_hot(struct target *t, const struct served_hot *hot);
/* Its engine gives no sign of life since then (monotonic us), 0: it does. Its state is
 * shown so, and what it has not heard of goes to another engine, where one answers. */
void target_set_silent(struct target *t, int64_t since_us);
/* One that is silent, by a timer: while another engine answers, requests that it was
 * given go on there, as served_hot says, and it is told that nobody wants them of it any
 * more. One that an engine was lost or silent under before stays. How many went.
 * target_lost.c
 */
int target_pass_on(struct target *t);
/* While on, it gets no new requests; does not end those that run. Those that its engine
 * has not heard of go to another engine of the model, where one is ready. */
void target_drain(struct target *t, bool on);

#endif
