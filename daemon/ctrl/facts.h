/* daemon/ctrl/facts.h - what an engine tells: into its published status, into the
 * inventory, into the finish of a request. Control thread. */
#ifndef CTRL_FACTS_H
#define CTRL_FACTS_H

struct err;
struct gen_finish;
struct instance_status;
struct metric_page;
struct served;
struct store;
struct wire_finish;
struct wire_ready;

/* The figures that the engine told; the last error is over. */
void facts_take(const struct wire_ready *r, struct instance_status *st);
/* How a request ended; with ERROR, e is why, and ret points to it. */
void facts_finish(const struct wire_finish *w, struct gen_finish *ret, struct err *e);
/* What a dead engine left in its gauges is no longer so. */
void facts_clear(struct metric_page *p);
/* Model and instance as they now run; options is JSON. */
int facts_store(struct store *s, const struct served *m, const char *instance,
                const char *mode, const char *options, struct err *e);

#endif
