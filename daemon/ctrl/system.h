/* daemon/ctrl/system.h - CPUs and limits of the process.
 *
 * Reads /proc once at start. Main thread, before others run. */
#ifndef CTRL_SYSTEM_H
#define CTRL_SYSTEM_H

struct err;

/* CPUs that this process may run on. */
int system_cpus(void);
/* Raises the soft descriptor limit as far as `want` needs and is allowed; returns what is
 * had, -1 with a sentence. */
long system_descriptors(long want, struct err *e);

#endif
