/* daemon/api/ratelimit.h - token buckets, and a bounded table of addresses that fail.
 * Pure: time comes in, decisions go out. Its owner locks. */
#ifndef API_RATELIMIT_H
#define API_RATELIMIT_H

#include <stdbool.h>
#include <stdint.h>

/* `per_min` tokens at most, as many come back in a minute; level may go below 0. */
struct bucket {
    double level;
    int64_t at_us; /* of level */
};
void bucket_fill(struct bucket *b, int64_t per_min, int64_t now_us); /* full */
/* What is in it now. */
double bucket_level(struct bucket *b, int64_t per_min, int64_t now_us);
void bucket_take(struct bucket *b, int64_t per_min, int64_t now_us, double n);
/* Whole seconds, at least 1, until there are `want`. */
int bucket_wait_s(struct bucket *b, int64_t per_min, int64_t now_us, double want);

/* Failures by address: IPv4 as a whole, IPv6 by its first 64 bits, which one client has.
 * A full neighbourhood forgets the address that failed least. */
enum { FAILS_MAX = 1024, FAILS_PROBE = 16 };
struct fails {
    struct fail {
        uint64_t who; /* 0 = free */
        struct bucket left;
    } v[FAILS_MAX];
    uint64_t secret; /* so that nobody can choose who shares a neighbourhood */
};
/* One more failure of addr (numeric text). False when it has had per_min of them: then
 * *ret_wait_s. per_min 0 = unlimited. */
bool fails_add(struct fails *f, const char *addr, int64_t per_min, int64_t now_us,
               int *ret_wait_s);

#endif
