/* daemon/api/experts_scrape.h - what /metrics says of experts. Any thread. */
#ifndef API_EXPERTS_SCRAPE_H
#define API_EXPERTS_SCRAPE_H

struct buf;
struct experts;

/* llmrack_expert_* of every instance whose experts can move, by layer, phase and rank
 * (not by expert: those are in /api/v1/experts), as Prometheus text. */
void experts_metrics(struct experts *x, struct buf *out);

#endif
