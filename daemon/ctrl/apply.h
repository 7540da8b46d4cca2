/* daemon/ctrl/apply.h - what confmgr's decisions do to the daemon: engines, alarms,
 * values that change in place.
 *
 * The glue between the machine of revisions, which knows none of them, and the parts.
 * Control thread. */
#ifndef CTRL_APPLY_H
#define CTRL_APPLY_H

#include "daemon/ctrl/confmgr.h"

struct alarms;
struct fleet;
struct router;
struct slo;

/* Filled in by its owner; the parts are borrowed. */
struct apply {
    struct fleet *fleet;
    struct router *router;
    struct alarms *alarms;
    struct slo *slo; /* the figures that a guard compares */
    /* Beyond the fleet, and before it opens a file: may this run here (paths of models,
     * listener, certificates)? NULL: yes. */
    int (*check)(void *arg, const struct conf *c, struct err *e);
    /* This is what runs, as revision id; 0 rescue. NULL: nobody else listens. */
    void (*runs)(void *arg, const struct conf *c, int64_t id);
    void *arg;
};
/* a must outlive the manager. */
struct confmgr_ops apply_ops(struct apply *a);

#endif
