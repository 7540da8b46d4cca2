/* daemon/api/tracejson.h - events of engines in the Trace Event Format (JSON), as
 * Perfetto and chrome://tracing read it.
 *
 * A process an engine; threads: the scheduler's steps, each rank, and of each request its
 * phases and its parts of steps. Complete events (X) in the order of their time, counters
 * (C) of what runs and waits, names by metadata (M). Times in us from the first event on.
 * Pure. */
#ifndef API_TRACEJSON_H
#define API_TRACEJSON_H

struct buf;
struct trace_view;

/* Sorts the events of v. */
void tracejson(struct trace_view *v, int n, const char *version, struct buf *out);

#endif
