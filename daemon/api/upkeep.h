/* daemon/api/upkeep.h - maintenance: no inference, while operators work.
 *
 * Stored, so that a restart does not end it. Requests that run go on; new ones are
 * answered with 503 and Retry-After. */
#ifndef API_UPKEEP_H
#define API_UPKEEP_H

#include <stdbool.h>

struct err;
struct http;

enum { UPKEEP_REASON = 256 };

/* Read what was stored. Control thread, at the start. */
int upkeep_load(struct http *h, struct err *e);
/* Is it on? Then reason says why. Any thread. */
bool upkeep_on(struct http *h, char reason[UPKEEP_REASON]);
/* UNAVAIL while it is on. */
int upkeep_check(struct http *h, struct err *e);

#endif
