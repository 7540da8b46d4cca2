/* state/setting.h - small facts that outlive a restart and are no configuration:
 * maintenance. A name and one text. Control thread. */
#ifndef STATE_SETTING_H
#define STATE_SETTING_H

#include <stddef.h>

struct err;
struct store;

/* text NULL forgets it. */
int setting_put(struct store *s, const char *name, const char *text, struct err *e);
/* 1 and *ret malloc'd, 0 when it is not there, -1. */
int setting_get(struct store *s, const char *name, char **ret, struct err *e);

#endif
