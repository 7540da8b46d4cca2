/* daemon/ctrl/linkwatch.h - which links between ranks are taken most of the time.
 *
 * Of each group of an instance's mesh (tp, ep, ..) every rank has a link, over which it
 * reads what others have. Between two looks it was taken for a share of the time: what
 * the emulated link was, or, where none is emulated, the time in collectives less that in
 * which it waited for others. Where the worst link of a group is over LINK_ENTER for
 * LINK_LOOKS looks in a row, there is an alarm "link.congested INSTANCE GROUP", until it
 * is under LINK_LEAVE. Pure but for the alarms; control thread. */
#ifndef CTRL_LINKWATCH_H
#define CTRL_LINKWATCH_H

#include <stdint.h>

struct alarms;
struct comm_count;
struct linkwatch;
struct rank_view;

#define LINK_ENTER 0.8
#define LINK_LEAVE 0.6
enum { LINK_LOOKS = 3, LINK_LOOK_US = 10000000 };

struct linkwatch *linkwatch_new(struct alarms *a); /* borrowed */
void linkwatch_free(struct linkwatch *w);          /* NULL allowed */
/* Every LINK_LOOK_US or so: all ranks there are. An engine that is new, or gone, begins
 * again. */
void linkwatch_look(struct linkwatch *w, const struct rank_view *v, int n);
/* Time that a link was taken by these calls. */
int64_t link_taken_us(const struct comm_count *c);

#endif
