/* daemon/serve/engine_check.h - what an engine of a test looks at after each event.
 *
 * Builds with fault points (base/fault.h) only: no KV block may be lost or owned twice,
 * what is pinned is what is exported, what is written into is what is copied. Walks
 * everything. The scheduler thread. */
#ifndef SERVE_ENGINE_CHECK_H
#define SERVE_ENGINE_CHECK_H

struct err;
struct handoff;
struct handoff_stats;
struct sched;
struct wire_conn;

/* 0, or -1 and which of it does not hold. */
int engine_check_handoff(const struct handoff *h, const struct sched *s, struct err *e);
/* Tells the daemon, whose log has it, and aborts: before anything else happens. */
_Noreturn void engine_check_failed(struct wire_conn *conn, const struct err *why);
/* Where a test holds, stops or ends an engine that has a handoff in that state: points
 * export_open, export_sent, export_quarantine, import_queued, import_wait, import_pull,
 * import_lost, import_closing. */
void engine_check_points(const struct handoff_stats *st);

#endif
