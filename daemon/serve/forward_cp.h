/* daemon/serve/forward_cp.h - the rows of a step shared over ranks (context parallel).
 *
 * R ranks (part.cp) share the positions and U ranks (part.cp_u) the heads:
 *
 *   allgather, ring    R = cp, U = 1   runs of KV_BLOCK_TOK positions in turn
 *   striped            R = cp, U = 1   position p on rank p mod cp, then a ring
 *   ulysses            R = 1, U = cp
 *   usp                U = cp_u, R = cp / cp_u, a ring across
 *
 * Which rank has a position depends on the position alone, so KV stays where it is from
 * the first chunk of a prompt to its last decoded token: of every KV block of the step,
 * which stands for R * KV_BLOCK_TOK positions, each rank's arena holds KV_BLOCK_TOK, of
 * the heads of its U share. Memory of KV is divided by R and by U (where there are KV
 * heads enough); the pool's blocks are counted as if they were R times as long.
 *
 * A rank embeds and computes the rows of its own positions; U ranks with the same
 * positions have a share of these rows each. Attention of a layer is then:
 *
 *   U > 1   all-to-all: from my rows and all heads to all our rows and my heads, and back
 *   R > 1   rows of prompts stay and KV comes: each rank packs its blocks of their
 *           contexts, which are gathered (allgather) or go round (ring, striped, usp).
 *           Rows of sequences that have few in the step (decode) go to the KV: q is
 *           gathered, every rank attends over what it has, the parts travel home.
 *   R = 1   plain attention over the rank's heads; or, where it is to round as that of
 *           part.as_cp ranks, the parts that these would have (not of stripes).
 *
 * Latent attention goes the same ways. Its one KV head is on all of the U ranks, which
 * share the heads of q alone, so its memory is divided by R only.
 *
 * Both give the parts (values, maximum, sum) of R ranks, merged in rank order: to the bit
 * the same by any of the ways, by any cutting of the prompt and whatever is beside it.
 * Outputs are gathered to all ranks in the last stage; the first of them goes on.
 *
 * Inside the forward module only. */
#ifndef SERVE_FORWARD_CP_H
#define SERVE_FORWARD_CP_H

#include "daemon/serve/forward_impl.h"

/* A sequence with at most so many rows in a micro-batch sends these and not its KV. */
enum { FORWARD_CP_FEW = 4 };

/* One micro-batch; at_..: in the staging block, as struct staging. */
struct cp_batch {
    int n_seq, n_all, max_blocks, max_ctx; /* of all ranks' rows */
    int at_row, at_pos, at_table;
    int n_ours, n_few; /* rows of my positions; the first of them send q */
    int from, n;       /* my share of these: U */
    int few[FORWARD_CP_MAX], n_few_all;
    int blocks[FORWARD_CP_MAX]; /* that each R rank packs */
    bool packs;                 /* any does */
    int at_our_pos, at_our_seq, at_our_slot, at_few_pos, at_few_seq;
    int at_pack, at_first; /* my blocks; [R][n_seq] */
    int at_few_send, at_heads_send, at_rows_send, at_recv;
    int at_perm;
    int64_t few_bytes[FORWARD_CP_MAX], kv_bytes[FORWARD_CP_MAX];
    int32_t *owner; /* [n_outs] rank r * U + u of each output; host */
};

struct forward_cp {
    int r, u, share_max; /* R, U; rows of a share at most */
    int n_part;          /* that attention is put together from: R, or as_cp */
    bool striped, gather;
    size_t max_pack; /* blocks */
    struct cp_batch batch[FORWARD_MICRO_MAX];
    int32_t *rank_of, *row_of; /* [max_rows]: R rank, row among its */
    int32_t *owners;           /* what batches' owner point into */
    bool *few;                 /* [max_items]: of the batch that is planned */
    int64_t lists[4][FORWARD_CP_MAX];
    struct dbuf *iota;
    struct dbuf *to_heads, *heads, *att, *to_rows;         /* U > 1 */
    struct dbuf *parts, *few_part, *few_q, *all_q, *kv[2]; /* R > 1 */
    struct dbuf *out[2];
    int32_t *iota_host;
};

/* int32 of staging that a micro-batch takes beside the plain one's. */
size_t forward_cp_stage_size(const struct forward_cfg *c, size_t blocks);
int forward_cp_new(struct forward *f, struct err *e);
void forward_cp_free(struct forward *f);
/* Micro-batch k, staged for all rows: plan it, and make *s that of my rows. */
void forward_cp_stage(struct forward *f, struct shape *s, int k);
/* f->q, k, v of my rows -> f->att. */
int forward_cp_attention(struct forward *f, const struct forward_layer *l, int layer,
                         const struct shape *s, struct err *e);
/* Outputs first.. of the micro-batch: rows of x and att of all ranks to out_x and q. */
int forward_cp_outs(struct forward *f, const struct shape *s, int first, int n,
                    struct err *e);

#endif
