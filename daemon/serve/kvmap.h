/* daemon/serve/kvmap.h - where the KV of an engine stands: the regions of its ranks.
 *
 * An engine's KV is cut by layer (pp), by head (tp, cp_u), by position (cp) and by shard
 * (adp); each rank's arena holds one such part for all blocks. A kvmap has all regions of
 * one engine, mapped, and finds the region of any (layer, head, position). With it the
 * page, whose generations tell whether a block is still what it was. Plain memory here;
 * what maps and copies stands behind kvpull_ops. One owner thread; a map that is complete
 * is only read. */
#ifndef SERVE_KVMAP_H
#define SERVE_KVMAP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/serve/wire_kv.h"
#include "kernels/backend.h"

struct err;
struct kvmap;

/* In a memory file of its own, written by the exporter only. */
struct kvpage {
    uint64_t magic;
    _Atomic uint64_t incarnation; /* 0 = has ended */
    uint32_t n_blocks, pad;
    _Atomic uint32_t gen[]; /* n_blocks: see kvcache_cfg.gens */
};
/* A new page and its file, both the caller's (kvpage_free, close). */
int kvpage_new(int n_blocks, uint64_t incarnation, struct kvpage **ret, int *ret_fd,
               struct err *e);
void kvpage_free(struct kvpage *p);
size_t kvpage_bytes(int n_blocks);

struct kvregion {
    struct wire_arena at;
    struct kv_layout layout;
    uint8_t *mem; /* read-only for another's */
};

struct kvmap *kvmap_new(bool writable);
void kvmap_free(struct kvmap *m);
/* Takes fd. 1: all regions are there; 0: more are to come; -1: it does not belong here.
 */
int kvmap_add(struct kvmap *m, const struct wire_arena *a, int fd, struct err *e);
bool kvmap_whole(const struct kvmap *m);
/* Could there be a map of an engine with so many ranks, of these groups (adp) and cp, for
 * a model of these layers and KV heads? */
int kvmap_possible(int ranks, int shards, int cp, int n_layer, int n_head, struct err *e);
/* The engine's KV can become the other's: the same model and number format. */
int kvmap_fits(const struct kvmap *from, const struct kvmap *to, struct err *e);

/* Positions of a block of the engine; regions. */
int kvmap_block_tok(const struct kvmap *m);
int kvmap_n_blocks(const struct kvmap *m);
int kvmap_regions(const struct kvmap *m);
const struct kvregion *kvmap_region(const struct kvmap *m, int i);
/* Which blocks a sequence has: table[i] holds positions from (first + i) * block_tok on.
 */
struct kvtable {
    const int32_t *id;
    int first, n;
};
/* Where head `head` of layer `layer` has position pos: region, byte offset of the head's
 * block (K, then V) in it, place inside. Never NULL in a whole map and a table that has
 * the position. */
struct kvspot {
    const struct kvregion *in;
    size_t off;
    int tok;
};
struct kvspot kvmap_find(const struct kvmap *m, const struct kvtable *t, int layer,
                         int head, int pos);
/* Are these blocks of this incarnation and still of these generations? Call after the
 * copy: then what was copied was them. */
bool kvmap_still(const struct kvmap *m, uint64_t incarnation,
                 const struct wire_block *blocks, int n);
/* Bytes of an element. */
static inline size_t kvmap_element(const struct kv_layout *l)
{
    return l->type == DT_F32 ? 4 : 2;
}
/* Ranks that have the same head of the same positions, at most. */
int kvmap_copies(const struct kvmap *m);
/* Of the KV of positions from .. upto-1, the same in any layout; never 0. Of heads that
 * stand on several ranks the copy'th is taken, or the last. */
uint64_t kvmap_sum(const struct kvmap *m, const struct kvtable *t, int from, int upto,
                   int copy);

#endif
