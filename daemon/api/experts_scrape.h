/* daemon/api/experts_scrape.h - balance of the experts as series of /metrics. */
#ifndef API_EXPERTS_SCRAPE_H
#define API_EXPERTS_SCRAPE_H

struct buf;
struct experts;

/* By instance and layer; nothing where no experts can move. Any thread. */
void experts_metrics(struct experts *x, struct buf *out);

#endif
