/* daemon/ctrl/chores.h - what the control thread does now and then for the store: SLO
 * minutes, the reserve, the daily backup; and a look at the links that ranks use. What
 * does not work becomes an alarm, since nobody waits for it. */
#ifndef CTRL_CHORES_H
#define CTRL_CHORES_H

#include <stdint.h>

struct alarms;
struct domain;
struct linkwatch;
struct metric_page;
struct router;
struct slo;
struct store;

enum { CHORES_BACKUPS_KEPT = 14 };

struct chores {
    struct slo *slo;
    struct store *store;
    struct alarms *alarms;
    struct linkwatch *links;
    struct router *router;    /* whose ranks use them */
    struct domain *domain;    /* whose they are; NULL: only emulated ones are looked at */
    struct metric_page *page; /* the daemon's; NULL */
    int64_t look_us;          /* when they are looked at next */
    int64_t minute_us;        /* when the slow ones are due, 0 at first */
};

/* Every second or so. Control thread. */
void chores_tick(struct chores *c, int64_t now_us, int64_t wall_ms);
/* The daemon stops: the minute that runs is written as it is. */
void chores_end(struct chores *c, int64_t now_us, int64_t wall_ms);

#endif
