/* daemon/api/admit.h - everything that the headers of a request decide: names, route, who
 * asks and whether they may, limits, sizes. Polling threads only. */
#ifndef API_ADMIT_H
#define API_ADMIT_H

struct conn;
struct err;

/* Fills route, match, query, who and the like of c. -1 with what the client is told. */
int admit(struct conn *c, const char *method, const char *url, const char *version,
          struct err *e);
int admit_too_big(const struct conn *c, struct err *e);

#endif
