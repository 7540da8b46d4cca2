/* daemon/ctrl/affinity.h - which prompts an engine has probably still in its prefix
 * cache, and which of several engines a request should go to. Pure.
 *
 * A guess that costs no question: the chain hashes of the blocks of prompts that were
 * sent there, as many as its KV pool has blocks, the oldest leave first. Wrong guesses
 * cost time, never a result. The caller locks. */
#ifndef CTRL_AFFINITY_H
#define CTRL_AFFINITY_H

#include <stdint.h>

struct affinity;

enum { AFFINITY_BLOCK = 16, AFFINITY_MAX = 1 << 18 /* blocks remembered */ };

/* blocks: of the engine's KV pool (bounded by AFFINITY_MAX). NULL without memory. */
struct affinity *affinity_new(int64_t blocks);
void affinity_free(struct affinity *a); /* NULL allowed */

/* Hashes of the whole blocks of a prompt into ret[n / AFFINITY_BLOCK]; salt separates
 * those who do not share prefixes. Returns their count. */
int affinity_hash(uint64_t salt, const int32_t *toks, int n, uint64_t *ret);
/* How many of them, from the first on, are remembered. */
int affinity_match(const struct affinity *a, const uint64_t *hash, int n);
/* They were sent there now. */
void affinity_add(struct affinity *a, const uint64_t *hash, int n);

/* One engine that could serve a request. */
struct affinity_choice {
    int64_t load;    /* tokens outstanding there */
    int64_t cached;  /* of the prompt, by affinity_match, in tokens */
    int64_t kv_free; /* positions that its KV pool has left, -1 not known */
};
/* The one where the request is done first: the least of what is outstanding, what of the
 * prompt is to be computed, and what does not fit its KV now; the first of equals. */
int affinity_pick(const struct affinity_choice *c, int n, int64_t prompt, int64_t answer);

#endif
