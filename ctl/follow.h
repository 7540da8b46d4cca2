/* ctl/follow.h - events and log lines as one line of text each. */
#ifndef CTL_FOLLOW_H
#define CTL_FOLLOW_H

#include <stdbool.h>

struct show_style;

/* A line for one event of /api/v1/events, malloc'd; NULL for what no operator wants to
 * read (and when it is no JSON). shell: only what is worth a line between those that the
 * operator types: not his own deeds (`self`, as the journal names him), no operations. */
char *follow_event(const char *kind, const char *json, bool shell, const char *self,
                   const struct show_style *st);
/* A line for one log line {at_ms, level, text}, malloc'd. */
char *follow_log(const char *json, const struct show_style *st);

#endif
