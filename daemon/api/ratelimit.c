/* daemon/api/ratelimit.c - token buckets, and a bounded table of addresses that fail. */
#include "daemon/api/ratelimit.h"

#include <arpa/inet.h>
#include <math.h>
#include <string.h>

void bucket_fill(struct bucket *b, int64_t per_min, int64_t now_us)
{
    b->level = (double)per_min;
    b->at_us = now_us;
}

double bucket_level(struct bucket *b, int64_t per_min, int64_t now_us)
{
    if (now_us > b->at_us) {
        b->level += (double)(now_us - b->at_us) * (double)per_min / 60e6;
        b->at_us = now_us;
    }
    if (b->level > (double)per_min)
        b->level = (double)per_min;
    return b->level;
}

void bucket_take(struct bucket *b, int64_t per_min, int64_t now_us, double n)
{
    bucket_level(b, per_min, now_us);
    b->level -= n;
}

int bucket_wait_s(struct bucket *b, int64_t per_min, int64_t now_us, double want)
{
    double missing = want - bucket_level(b, per_min, now_us);
    double s = per_min > 0 ? ceil(missing * 60 / (double)per_min - 1e-6) : 3600;

    return s < 1 ? 1 : s > 3600 ? 3600 : (int)s;
}

static uint64_t mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9ull;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

/* Never 0. What is no address is one address. */
static uint64_t address_id(const char *addr)
{
    struct in6_addr a6;
    struct in_addr a4;
    uint64_t id = 1;

    if (inet_pton(AF_INET, addr, &a4) == 1)
        return (uint64_t)a4.s_addr << 16 | 4;
    if (inet_pton(AF_INET6, addr, &a6) == 1)
        memcpy(&id, &a6, sizeof(id));
    return id ? id : 6; /* :: itself, ::1, ::ffff:a.b.c.d */
}

static struct fail *find(struct fails *f, uint64_t who, int64_t per_min, int64_t now_us)
{
    size_t at = (size_t)(mix(who ^ f->secret) % FAILS_MAX);
    struct fail *best = NULL;
    double most = -1;

    for (size_t i = 0; i < FAILS_PROBE; i++) {
        struct fail *x = &f->v[(at + i) % FAILS_MAX];
        double left;

        if (x->who == who)
            return x;
        left = x->who ? bucket_level(&x->left, per_min, now_us) : (double)per_min + 1;
        if (left > most) {
            most = left;
            best = x;
        }
    }
    best->who = who;
    bucket_fill(&best->left, per_min, now_us);
    return best;
}

bool fails_add(struct fails *f, const char *addr, int64_t per_min, int64_t now_us,
               int *ret_wait_s)
{
    struct fail *x;

    if (per_min <= 0)
        return true;
    x = find(f, address_id(addr), per_min, now_us);
    if (bucket_level(&x->left, per_min, now_us) < 1) {
        *ret_wait_s = bucket_wait_s(&x->left, per_min, now_us, 1);
        return false;
    }
    bucket_take(&x->left, per_min, now_us, 1);
    return true;
}
