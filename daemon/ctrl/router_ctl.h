/* daemon/ctrl/router_ctl.h - the control thread's side of the router.
 *
 * HTTP threads leave orders (add, cancel) under the router's lock and ring; the control
 * thread takes them in order, hands them to the engine and brings back what the engine
 * says. Everything here is called by the control thread only; sinks are called from here
 * without the lock, so they may call the router. */
#ifndef CTRL_ROUTER_CTL_H
#define CTRL_ROUTER_CTL_H

#include "daemon/ctrl/router.h"

struct wire_add;

struct router_cfg {
    struct metric_page *page;        /* the daemon's, borrowed */
    struct metric_page *engine_page; /* the engine's, borrowed */
    const char *instance;            /* its name */
    int max_live;                    /* requests at once; more are BUSY */
};

int router_new(const struct router_cfg *cfg, struct router **ret, struct err *e);
/* Every request must have had its finish. */
void router_free(struct router *r);

/* Readable when there are orders. */
int router_fd(const struct router *r);
enum router_order { ROUTER_NOTHING, ROUTER_ADD, ROUTER_CANCEL };
/* The next order; *add lives until the next call. */
enum router_order router_take(struct router *r, struct wire_add *ret_add,
                              uint64_t *ret_id);
/* Unknown ids are normal (a late word about a request that was failed). */
void router_tokens(struct router *r, uint64_t id, const struct step_token *toks, int n,
                   bool scored);
void router_finish(struct router *r, uint64_t id, const struct gen_finish *f);
/* Every request gets FINISH_ERROR with this error. */
void router_fail_all(struct router *r, const struct err *why);
/* Requests without a finish, and how many of them the engine knows. */
int router_live(struct router *r, int *ret_sent);

/* The model as served from now on; takes tok (NULL in tests). m->tok is ignored. */
void router_set_model(struct router *r, const struct served *m, struct tokenizer *tok);
/* State, figures and last error of the instance; read by all snapshots. */
void router_set_instance(struct router *r, const struct instance_status *s);
/* From now on requests are refused; does not end those that run. */
void router_drain(struct router *r);

#endif
