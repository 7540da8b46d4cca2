/* daemon/ctrl/facts.h - what is known of an engine once it is ready: into its published
 * status, and into the inventory. Control thread. */
#ifndef CTRL_FACTS_H
#define CTRL_FACTS_H

struct err;
struct instance_status;
struct served;
struct store;
struct wire_ready;

/* The figures that the engine told; the last error is over. */
void facts_take(const struct wire_ready *r, struct instance_status *st);
/* Model and instance as they now run; options is JSON. */
int facts_store(struct store *s, const struct served *m, const char *instance,
                const char *mode, const char *options, struct err *e);

#endif
