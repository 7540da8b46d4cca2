/* daemon/api/linktable.h - what /metrics says of the rack's links. Any thread. */
#ifndef API_LINKTABLE_H
#define API_LINKTABLE_H

struct buf;
struct domain;
struct linkwatch;

/* llmrack_link_* of each link that carried something, llmrack_nvlink_* of what the driver
 * counts, as Prometheus text. d NULL: no rack. */
void links_metrics(struct linkwatch *w, struct domain *d, struct buf *out);

#endif
