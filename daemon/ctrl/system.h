/* daemon/ctrl/system.h - CPUs and limits of the process.
 *
 * Asked for at start, unless a line says otherwise: main thread, before others run. */
#ifndef CTRL_SYSTEM_H
#define CTRL_SYSTEM_H

struct err;

/* CPUs that this process may run on. */
int system_cpus(void);
/* Raises the soft descriptor limit as far as `want` needs and is allowed; returns what is
 * had, -1 with a sentence. */
long system_descriptors(long want, struct err *e);

/* Of this boot of the machine: a deadline counts on within one boot only. Where it cannot
 * be read, one that never comes again. */
void system_boot_id(char ret[40]);

#endif
