/* daemon/api/stored.h - what the store tells those who help: configuration, journal and
 * SLO minutes, as JSON, without secrets.
 *
 * The living daemon puts it into its support answer; `llmrackd --support` makes the same
 * from the store of a dead one. Texts go through redact(). */
#ifndef API_STORED_H
#define API_STORED_H

#include <stdint.h>

struct buf;
struct err;
struct jw;
struct store;

/* The members config, journal and slo; revision 0 = none runs. What cannot be read is
 * null, and the count of such members is returned; *e is the last reason. */
int stored_put(struct store *s, int64_t revision, struct jw *w, struct err *e);
/* The whole support object without a daemon: what only a living one knows is null, and
 * `faults` says what could not be read. 0, or -1 when the store of dir cannot be opened
 * (the JSON then says so too). */
int stored_support(const char *dir, struct buf *json, struct err *e);

#endif
