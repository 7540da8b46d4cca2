/* daemon/api/events.h - what happens, to those who listen: streams of events and of log
 * lines.
 *
 * One event is `event: KIND` and one `data:` line of JSON. A reader's unread bytes are
 * bounded: who is too slow is dropped (conn_flush). Control thread only; a reader that
 * left is noticed at the next tick. Streams end with an error frame when the server
 * stops. */
#ifndef API_EVENTS_H
#define API_EVENTS_H

#include <stdbool.h>
#include <stdint.h>

struct conn;
struct err;
struct events;

#define EVENT_MAP(X)                                                                     \
    X(JOURNAL, "journal")                                                                \
    X(ALARM, "alarm")                                                                    \
    X(OPERATION, "operation")                                                            \
    X(INSTANCE, "instance")                                                              \
    X(LOG, "log")
enum event_kind {
#define X(id, text) EVENT_##id,
    EVENT_MAP(X)
#undef X
        EVENT_COUNT
};
enum { EVENTS_READERS = 32, EVENTS_UNREAD = 64 << 10, EVENTS_QUIET_US = 15000000 };

struct events *events_new(void);
void events_free(struct events *ev);
/* c becomes a stream of these kinds (bits 1 << kind). UNAVAIL when there are too many. */
int events_join(struct events *ev, struct conn *c, unsigned kinds, struct err *e);
/* Is anybody listening to it? */
bool events_wanted(const struct events *ev, enum event_kind kind);
/* json: one line. */
void events_tell(struct events *ev, enum event_kind kind, const char *json);
/* Lets go of readers that left; a comment to those that were told nothing for
 * EVENTS_QUIET_US. Returns the count of readers. */
int events_tick(struct events *ev, int64_t now_us);

#endif
