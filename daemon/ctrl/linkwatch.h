/* daemon/ctrl/linkwatch.h - the links of the rack that carried traffic, and which of them
 * are taken most of the time.
 *
 * Looked at every LINK_LOOK_US: what ranks read of each other since the last look goes
 * over the links between their devices (linkload.h), of the rack, or of the one that
 * their instance emulates. A link that was taken for more than LINK_ENTER of the time in
 * one direction, at LINK_LOOKS looks in a row, has an alarm "link.congested A B", A and B
 * its ends, until a look finds it under LINK_LEAVE. Emulation gives each reader a path of
 * its own: a link that several share may then be taken for more than the whole time.
 *
 * Looks: control thread. Rows: any. */
#ifndef CTRL_LINKWATCH_H
#define CTRL_LINKWATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/comm.h"

struct alarms;
struct domain_view;
struct linkwatch;
struct pair_view;

#define LINK_ENTER 0.8
#define LINK_LEAVE 0.6
enum { LINK_LOOKS = 3, LINK_LOOK_US = 5000000, LINK_ROWS_MAX = 8192 };

/* A link that has carried something since the daemon began. */
struct link_row {
    char rack[64];     /* the emulated one that it is of, "" the daemon's */
    char a[64], b[64]; /* its ends: "host1/cpu3", "0000:1b:00.0", "nvswitch0" */
    const char *kind;
    double bps;                                /* one way; 0 not known */
    double bytes[2], by_call[COMM_CALL_COUNT]; /* a to b; back */
    /* Of the time between the last two looks; share: of the direction that was taken
     * more, -1 where the bandwidth is not known. */
    double bytes_s[2], share;
    bool back;   /* that direction is b to a */
    char by[64]; /* the instance that sent most then, "" none */
    int over;    /* looks in a row over LINK_ENTER */
    bool congested;
};

struct linkwatch *linkwatch_new(struct alarms *a); /* borrowed */
void linkwatch_free(struct linkwatch *w);          /* NULL allowed */
/* v [n]: taken. own: the daemon's rack; NULL: not known yet. */
void linkwatch_look(struct linkwatch *w, const struct domain_view *own,
                    struct pair_view *v, int n, int64_t now_us);
/* malloc'd, in the order in which they first carried something; returns the count.
 * *ret_span_us: between the last two looks, 0 = there was one only. */
int linkwatch_rows(struct linkwatch *w, struct link_row **ret, int64_t *ret_span_us);

#endif
