/* daemon/serve/engine_handoff.h - an engine's part in handing KV over.
 *
 * Between wire, scheduler, the states of handoff.h and the copies of kvpull.h: what the
 * scheduler exports is offered, what another engine offers is pulled. An engine of role
 * prefill exports its page and its ranks' arenas after READY; one of role decode maps
 * those of its peers. An engine of role both has none of this: every call does nothing.
 * Inside the engine only; its scheduler thread. */
#ifndef SERVE_ENGINE_HANDOFF_H
#define SERVE_ENGINE_HANDOFF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/serve/engine_load.h"
#include "daemon/serve/handoff.h"

struct engine_handoff;
struct loop;
struct metric_page;

/* *ret NULL where the role is both. Adds to l: READY's fields, the page's generations for
 * the scheduler that is made from it. l and conn are borrowed. */
int engine_handoff_new(const struct engine_cfg *cfg, struct engine_loaded *l,
                       struct wire_conn *conn, struct metric_page *page,
                       struct engine_handoff **ret, struct err *e);
/* `settle` is called when something came that is no message: a copy, a deadline. */
int engine_handoff_start(struct engine_handoff *h, struct sched *s, struct loop *loop,
                         void (*settle)(void *arg), void *arg, struct err *e);
void engine_handoff_free(
    struct engine_handoff *h); /* before the loop and the scheduler */
/* After READY was sent. */
int engine_handoff_arenas(struct engine_handoff *h, struct err *e);

/* A request that is about to be given to the scheduler; -1: it cannot be served. */
int engine_handoff_add(struct engine_handoff *h, const struct gen_params *p,
                       struct err *e);
/* A message of wire_kv.h: 0, or -1 when it is not well-formed or not for us. */
int engine_handoff_message(struct engine_handoff *h, enum wire_kind kind, const void *p,
                           size_t n, struct err *e);
/* An outcome: after the TOKENS and before the FINISH of a request was sent. */
int engine_handoff_out(struct engine_handoff *h, const struct sched_out *o,
                       struct err *e);
/* What must hold after each settle; for tests. */
int engine_handoff_check(const struct engine_handoff *h, struct err *e);
/* Do what is to be done. 1: the scheduler may have something new, 0, -1. */
int engine_handoff_settle(struct engine_handoff *h, struct err *e);

#endif
