/* daemon/api/news.h - operations and events of one server, and the timer that moves them.
 *
 * The timer runs only while an operation runs or somebody listens. Control thread, except
 * where said. */
#ifndef API_NEWS_H
#define API_NEWS_H

struct alarm_status;
struct conn;
struct err;
struct http;
struct journal_row;
struct news;
struct operation_watch;
struct operations;
struct rev_point;

struct news *news_new(struct http *h); /* h->cfg.loop is there */
void news_free(struct news *n);
struct operations *news_operations(struct news *n); /* to list and get: any thread */

/* The request becomes a stream of these kinds (bits 1 << enum event_kind). */
int news_join(struct news *n, struct conn *c, unsigned kinds, struct err *e);
/* Start an operation for this request and answer it with 202, its Location and members:
 * "\"revision\":7", "" none. */
void news_start(struct news *n, struct conn *c, const char *kind, const char *subject,
                const struct operation_watch *w, const char *members);

/* What runs and what is pending, as last stored; zero without a store. Any thread. */
void news_point(struct news *n, struct rev_point *ret);

/* Each NULL-safe: news of the rest of the daemon. */
void news_journal(struct news *n, const struct journal_row *r);
void news_alarm(struct news *n, const struct alarm_status *a);

#endif
