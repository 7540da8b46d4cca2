/* daemon/ctrl/linkload.h - what traffic between devices puts on the links of a rack.
 * Pure.
 *
 * Bytes go over the links of the path between the two devices (topo/path.h). A link is
 * taken for bytes / its bandwidth; where the path is emulated, for the time that the
 * emulation took in place of the path's bytes / bandwidth, so that the narrowest link has
 * all of it and a wider one its part. Directions are apart. */
#ifndef CTRL_LINKLOAD_H
#define CTRL_LINKLOAD_H

#include "daemon/serve/rankpage.h"

struct paths;

struct link_load {
    double bytes[2], taken_s[2]; /* from the link's a to its b; back */
    double by_call[COMM_CALL_COUNT];
};

/* Adds what device b read of device a (node ids) to load [links of the graph]. Nothing
 * where there is no way. */
void linkload_add(struct link_load *load, const struct paths *p, int a, int b,
                  const struct rank_read n[COMM_CALL_COUNT]);

#endif
