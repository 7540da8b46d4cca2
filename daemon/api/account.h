/* daemon/api/account.h - what one inference request saw, told to SLO accounting once.
 *
 * Lives in its connection, under the connection's lock. Counted are requests whose sender
 * may infer and who was not told a mistake of his own (4xx but 429). Of a stream the time
 * of the first token is when its bytes are taken for the socket, which may come after the
 * generation's end: the sample waits for the later of the two. */
#ifndef API_ACCOUNT_H
#define API_ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/ctrl/slo.h"

struct conn;
struct err;

struct account {
    bool on;    /* counts, unless it ends by a mistake of the sender's */
    bool ended; /* x is whole but for the time of the first token */
    bool told;
    char instance[64], slo_class[SLO_CLASS];
    int64_t first_us; /* first token bytes taken, 0 not yet */
    struct slo_sample x;
};

/* Who serves it under which class (NULL: the instance's own); INVALID lists the classes
 * that there are. Lock not held. */
int account_name(struct conn *c, const char *instance, const char *slo_class,
                 struct err *e);

/* Its targets and how old it is, for the engine. Lock not held. */
struct gen_params;
void account_targets(struct conn *c, struct gen_params *ret);

/* Lock held, all below; the first that tells wins. */
void account_first(struct conn *c, int64_t now_us);
/* The generation is over: latencies and tokens; first_us of a whole answer, 0 of a
 * stream. */
void account_done(struct conn *c, const struct slo_sample *x, int64_t first_us);
/* It ends by this error; accepted: an engine had it already. */
void account_error(struct conn *c, const struct err *e, bool accepted);
/* The client left, or the server stops. */
void account_left(struct conn *c);
/* The connection is done with this request. */
void account_close(struct conn *c);

#endif
