/* daemon/ctrl/affinity.c - a bounded set of hashes, least recently sent first out.
 *
 * Open addressing over twice the entries; an entry's place in a ring gives its age. The
 * ring's oldest entry goes when a new one comes; one that was sent again moves to the
 * front by a new ring place, its old place is skipped when its turn comes. */
#include "daemon/ctrl/affinity.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

struct entry {
    uint64_t hash; /* 0 = free */
    uint64_t turn; /* when it was sent last */
};

struct affinity {
    size_t cap, mask, n; /* entries allowed; slots - 1; entries */
    struct entry *slots;
    struct entry *ring; /* [ring_cap]: (hash, turn) in the order of turns */
    size_t ring_cap;
    uint64_t turn, tail; /* next turn; oldest place of the ring */
};

struct affinity *affinity_new(int64_t blocks)
{
    size_t cap = blocks < 1 ? 1 : blocks > AFFINITY_MAX ? AFFINITY_MAX : (size_t)blocks;
    struct affinity *a = try_calloc(1, sizeof(*a));
    size_t slots = 4;

    while (slots < 2 * cap)
        slots *= 2;
    if (!a)
        return NULL;
    a->cap = cap;
    a->mask = slots - 1;
    a->ring_cap = 2 * cap;
    a->slots = try_calloc(slots, sizeof(*a->slots));
    a->ring = try_calloc(a->ring_cap, sizeof(*a->ring));
    if (a->slots && a->ring)
        return a;
    affinity_free(a);
    return NULL;
}

void affinity_free(struct affinity *a)
{
    if (!a)
        return;
    free(a->slots);
    free(a->ring);
    free(a);
}

/* A mix that moves every bit of x into every bit of the result (murmur3's finaliser). */
static uint64_t mix(uint64_t x)
{
    x ^= x >> 33;
    x *= 0xff51afd7ed558ccdull;
    x ^= x >> 33;
    x *= 0xc4ceb9fe1a85ec53ull;
    return x ^ x >> 33;
}

int affinity_hash(uint64_t salt, const int32_t *toks, int n, uint64_t *ret)
{
    uint64_t h = mix(salt + 0x9e3779b97f4a7c15ull);
    int blocks = n / AFFINITY_BLOCK;

    for (int b = 0; b < blocks; b++) {
        for (int i = 0; i < AFFINITY_BLOCK; i++)
            h = mix(h ^ (uint64_t)(uint32_t)toks[b * AFFINITY_BLOCK + i]) +
                0x632be59bd9b4e019ull;
        ret[b] = h ? h : 1;
    }
    return blocks;
}

static struct entry *find(const struct affinity *a, uint64_t hash)
{
    size_t i = hash & a->mask;

    while (a->slots[i].hash && a->slots[i].hash != hash)
        i = (i + 1) & a->mask;
    return &a->slots[i];
}

int affinity_match(const struct affinity *a, const uint64_t *hash, int n)
{
    int k = 0;

    while (k < n && find(a, hash[k])->hash)
        k++;
    return k;
}

/* Out of the table, and what stood behind it in the same run moves up. */
static void drop(struct affinity *a, struct entry *e)
{
    size_t hole = (size_t)(e - a->slots), i = hole;

    for (;;) {
        i = (i + 1) & a->mask;
        if (!a->slots[i].hash)
            break;
        size_t home = a->slots[i].hash & a->mask;
        if (((i - home) & a->mask) >= ((i - hole) & a->mask)) {
            a->slots[hole] = a->slots[i];
            hole = i;
        }
    }
    a->slots[hole].hash = 0;
    a->n--;
}

/* The oldest place of the ring; its entry goes, unless it was sent again since. */
static void drop_oldest(struct affinity *a)
{
    const struct entry *old = &a->ring[a->tail++ % a->ring_cap];
    struct entry *e = find(a, old->hash);

    if (e->hash && e->turn == old->turn)
        drop(a, e);
}

static void add_one(struct affinity *a, uint64_t hash)
{
    struct entry *e = find(a, hash);
    bool is_new = !e->hash;

    while ((is_new && a->n == a->cap) || a->turn - a->tail == a->ring_cap)
        drop_oldest(a);
    e = find(a, hash); /* entries may have moved, it may be gone itself */
    a->n += !e->hash;
    *e = (struct entry){hash, a->turn};
    a->ring[a->turn++ % a->ring_cap] = *e;
}

/* Last block first, as the cache's own order of leaving is: a prefix outlives its end. */
void affinity_add(struct affinity *a, const uint64_t *hash, int n)
{
    int most = n < (int)a->cap ? n : (int)a->cap;

    for (int i = most - 1; i >= 0; i--)
        add_one(a, hash[i]);
}

static int64_t cost(const struct affinity_choice *c, int64_t prompt, int64_t answer)
{
    int64_t fresh = prompt - c->cached, need = fresh + answer;
    int64_t over = c->kv_free >= 0 && need > c->kv_free ? need - c->kv_free : 0;

    return c->load + fresh + over;
}

int affinity_pick(const struct affinity_choice *c, int n, int64_t prompt, int64_t answer)
{
    int best = 0;

    for (int i = 1; i < n; i++)
        if (cost(&c[i], prompt, answer) < cost(&c[best], prompt, answer))
            best = i;
    return best;
}
