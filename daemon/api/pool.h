/* daemon/api/pool.h - worker threads for what is too long for a polling thread.
 *
 * A job is a request and the function that serves it; the pool holds a reference to the
 * request until the function returns. Each worker has its own bounded queue and a job
 * goes to the shortest, so one long text does not hold up the short ones behind it. */
#ifndef API_POOL_H
#define API_POOL_H

#include <stdbool.h>
#include <stdint.h>

struct conn;
struct err;
struct pool;

typedef void (*pool_fn)(struct conn *c);

int pool_new(int n_workers, int capacity, struct pool **ret, struct err *e);
void pool_free(struct pool *p); /* finishes what is queued; NULL allowed */
/* BUSY when every queue is full. Any thread. */
int pool_push(struct pool *p, struct conn *c, pool_fn fn, struct err *e);
/* No worker has been at one job for longer than limit_us. */
bool pool_alive(const struct pool *p, int64_t now_us, int64_t limit_us);

#endif
