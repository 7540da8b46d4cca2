/* kernels/backend.h - the device seam: memory, streams and the table of ops.
 *
 * Three implementations: "cpu" (one rank, a team of kernel threads), "far" (tests: memory
 * that the host cannot touch, ops that run later on a stream thread, copies explicit) and
 * later "cuda" as a plugin. What holds on all of them:
 *
 *  - Every op takes a stream and may return before the work is done; order within one
 *    stream is kept; bs->sync() waits. Launch faults return from the call (-1 and e);
 *    device faults return from sync.
 *  - A caller never touches device memory: it uploads and downloads. Host memory given to
 *    upload must stay valid until the stream was synced past it.
 *  - Ops never allocate; scratch is sized at open from backend_caps.
 *  - Row-invariant: a row's result depends only on that row, the weights and its context,
 *    never on M, the tile, the thread count or neighbours. One K-order and one activation
 *    quantisation for every M; attention splits the context at multiples of ATTN_SPLIT
 *    counted from position 0 and merges the parts in order.
 *  - Activations are f32, row-major, ld = cols unless said. Index arrays are int32.
 *
 * One thread drives a stream (the rank thread). cpu_ops.c is the portable reference of
 * every op; faster ones are tested against it by normalised error, not bit equality. */
#ifndef KERNELS_BACKEND_H
#define KERNELS_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/dtype.h"

struct err;
struct backend; /* one device of one rank */
struct dbuf;    /* device memory */
struct stream;  /* ordered work of a device */
struct weight;  /* a matrix in the device's own layout */
struct kv_arena;

enum { KV_BLOCK_TOK = 16, ATTN_SPLIT = 256 };

/* Sizes that scratch is made for. */
struct backend_caps {
    int max_rows;    /* rows of one step (step token budget) */
    int max_cols;    /* widest activation row, e.g. the FFN width */
    int max_items;   /* sequences in one step */
    int max_context; /* positions of one sequence */
    int max_heads;   /* query heads */
    int max_head_dim;
};

struct backend_cfg {
    const char *name; /* "cpu" | "far" */
    int n_threads;    /* kernel threads, the rank thread included; 0 = one per CPU */
    const int *cpus;  /* n_threads CPU numbers to pin to, or NULL */
    bool spin;        /* false when threads outnumber cores */
    const char *isa;  /* "auto" | "portable" | "avx2" | "avx512" */
    struct backend_caps caps;
};

int backend_open(const struct backend_cfg *cfg, struct backend **ret, struct err *e);
void backend_close(struct backend *b);
const char *backend_isa(const struct backend *b); /* what was chosen, e.g. "avx512" */
/* The KV type this device is fastest with (DT_BF16 or DT_F16). */
enum dtype backend_kv_dtype(const struct backend *b);
/* Other kernel threads, between two ops, by the backend's own thread: as n_threads (1 or
 * more) and cpus of the configuration. On failure it goes on with those that it had. */
int backend_set_threads(struct backend *b, int n, const int *cpus, struct err *e);
/* Bytes held: weights in device layout, scratch, KV arenas. */
struct backend_mem {
    size_t weight_bytes, scratch_bytes, kv_bytes, other_bytes;
};
void backend_mem_used(const struct backend *b, struct backend_mem *ret);

/* ---- memory ---- */
int dbuf_new(struct backend *b, size_t bytes, struct dbuf **ret, struct err *e);
void dbuf_free(struct dbuf *d);
size_t dbuf_bytes(const struct dbuf *d);

int stream_new(struct backend *b, struct stream **ret, struct err *e);
void stream_free(struct stream *s);
int stream_upload(struct stream *s, struct dbuf *dst, size_t off, const void *src,
                  size_t n, struct err *e);
int stream_download(struct stream *s, void *dst, const struct dbuf *src, size_t off,
                    size_t n, struct err *e);
int stream_sync(struct stream *s, struct err *e);

/* A matrix [rows, cols] of a file, copied or repacked; src is not needed afterwards. The
 * size of src is dtype_row_bytes(type, cols) * rows. A vector is rows = 1. */
struct weight_src {
    const char *name; /* for error sentences */
    enum dtype type;
    int rows, cols;
    const void *data;
    int flags; /* WEIGHT_* */
};
enum { WEIGHT_MATMUL = 1, WEIGHT_LOOKUP = 2, WEIGHT_VECTOR = 4 }; /* how it is used */
int weight_new(struct backend *b, const struct weight_src *src, struct weight **ret,
               struct err *e);
void weight_free(struct weight *w);
/* Beside the backend's own thread: WEIGHT_APART with WEIGHT_VECTOR makes one at once,
 * with WEIGHT_MATMUL one without values (data is looked at for MXFP4 only, and may be
 * NULL else): weight_part puts the rows of part at row.. (multiples of WEIGHT_PART_ROWS,
 * but the last). weight_read gives one row's values as they are kept. Any one thread,
 * until weight_join hands it over to the backend's; freed before that by its maker. */
enum { WEIGHT_APART = 8, WEIGHT_PART_ROWS = 16 };
int weight_part(struct weight *w, const struct weight_src *part, int row, struct err *e);
int weight_read(const struct weight *w, int row, float *out, struct err *e);
void weight_join(struct weight *w);
int weight_cols(const struct weight *w);

/* ---- KV ---- */
/* One block of one group holds KV_BLOCK_TOK positions of all its layers, contiguous:
 * [layer][head][K|V][...]; the order inside a head's block is the device's own. */
struct kv_layout {
    int n_layer, n_kv_head, head_dim, block_tok;
    enum dtype type; /* DT_F16 | DT_BF16, or DT_F32, which the portable kernel serves */
    int v_dim; /* 0: a head has K and V, both of head_dim; else V is K's first v_dim and
                  is not stored (a latent) */
    size_t head_bytes, layer_bytes, block_bytes; /* filled in by kv_layout_fill */
};
int kv_layout_fill(struct kv_layout *l, struct err *e);
/* One exportable region of n_blocks blocks (a memfd on the cpu). */
int kv_arena_new(struct backend *b, const struct kv_layout *l, int n_blocks,
                 struct kv_arena **ret, struct err *e);
void kv_arena_free(struct kv_arena *a);
int kv_arena_fd(const struct kv_arena *a); /* -1 where there is none; borrowed */

/* ---- ops ---- */
/* A device matrix: f32 [rows, cols] at byte offset off, rows ld elements apart. */
struct view {
    struct dbuf *buf;
    size_t off;
    int rows, cols, ld;
};
/* A device int32 array at byte offset off. */
struct iview {
    struct dbuf *buf;
    size_t off;
    int n;
};

/* A device int64 array at byte offset off; buf NULL where it may be left out. */
struct lview {
    struct dbuf *buf;
    size_t off;
    int n;
};

/* Where the rows of a step stand: item i owns rows row[i]..row[i+1]-1, at positions
 * pos[i], pos[i]+1, ..; its context is positions 0..own position (causal), found in
 * blocks table[i*max_blocks ..]. All arrays are on the device; the counts are host values
 * that come from the step's bucket. */
struct op_span {
    int n_items, n_rows, max_blocks;
    int max_ctx;        /* host upper bound of any position + 1 */
    struct iview row;   /* n_items + 1 */
    struct iview pos;   /* n_items */
    struct iview table; /* n_items * max_blocks */
};

/* y[r,:] = w[ids[r] - first,:], the exact values of the table. part: w is a part of the
 * vocabulary, ids outside it give zeros; else they are a fault. */
struct op_embed {
    struct view y;
    const struct weight *w; /* WEIGHT_LOOKUP */
    struct iview ids;
    int first;
    bool part;
};
/* y += x */
struct op_add {
    struct view y, x;
};
/* y = x / sqrt(mean(x^2) + eps) * w, sums in f32 in a fixed order */
struct op_norm {
    struct view y, x;
    const struct weight *w; /* WEIGHT_VECTOR */
    float eps;
};
/* A row whose columns stand on several ranks is normed in two halves, between which the
 * sums are added up over these.
 * y[r,0] = weigh * (sum of x[r,:]^2), in f32 in a fixed order */
struct op_squares {
    struct view y, x; /* [rows, 1], [rows, cols] */
    float weigh;
};
/* y = x / sqrt(sums[r,0] / n + eps) * w */
struct op_norm_by {
    struct view y, x, sums; /* sums: [rows, 1] */
    const struct weight *w; /* WEIGHT_VECTOR */
    int n;                  /* columns that were summed */
    float eps;
};
/* y[r,:] = x[idx[r],:] */
struct op_gather {
    struct view y, x;
    struct iview idx;
};
/* Up to three products of one input: y[j] = x * w[j]^T (+ bias[j]) (+ y[j] if add). */
struct op_matmul {
    struct view x;
    int n_out;
    const struct weight *w[3];
    const struct weight *bias[3]; /* WEIGHT_VECTOR or NULL */
    struct view y[3];
    bool add;
};
/* y = silu(x * gate^T) * (x * up^T) */
struct op_glu {
    struct view y, x;
    const struct weight *gate, *up;
};
/* y[r, h * y_step + i] = sum over j of x[r, h * x_step + j] * w[h][i, j] for each head h;
 * then the `tail` elements of x that follow come after it in y unchanged. */
struct op_heads {
    struct view x, y;
    int n_head, x_step, y_step, tail;
    struct weight *const *w; /* [n_head], all of one shape, WEIGHT_MATMUL */
};
/* Rotary embedding of q and k (in place for q) and store of k, v in the arena.
 * RoPE angle of pair j at position p: p * inv_freq[j]; pair (j, j + rot/2) when neox,
 * (2j, 2j+1) otherwise. q_norm/k_norm: RMS norm per head before it, or NULL. */
struct op_rope_store {
    struct op_span span;
    struct view q;    /* [rows, n_head * head_dim], rotated in place */
    struct view k, v; /* [rows, n_kv_head * head_dim]; k is not changed. A latent arena
                         stores no v */
    int n_head, n_kv_head, head_dim, rot_dim;
    int rot_from; /* first dimension of a head that rotates */
    bool neox;
    const struct weight *inv_freq; /* WEIGHT_VECTOR, rot_dim / 2, F32 */
    float attn_scale;              /* cos and sin are multiplied by this (YaRN); 1 */
    const struct weight *q_norm, *k_norm; /* WEIGHT_VECTOR of head_dim or NULL */
    float eps;
    struct kv_arena *kv;
    int layer; /* within the arena's layout */
    /* Each of span.n_rows rows at a position and in a slot (block * KV_BLOCK_TOK + place)
     * of its own, instead of span's; buf NULL: span's. */
    struct iview row_pos, row_slot;
};
/* y[r, h*dv..] = softmax(q.K^T * scale) V over positions 0..pos(r); dv is the arena's
 * v_dim, or head_dim. sinks: a logit a head
 * that the softmax's sum counts and that has no value. */
struct op_attn {
    struct op_span span;
    struct view y, q;
    int n_head, n_kv_head, head_dim;
    float scale;
    int window;                 /* 0 = full; else only the last `window` positions */
    const struct weight *sinks; /* WEIGHT_VECTOR of n_head or NULL */
    struct kv_arena *kv;
    int layer;
};
/* Positions that a member of n holds when they share a sequence, block by block of n *
 * KV_BLOCK_TOK positions: a run of KV_BLOCK_TOK each, or, striped, every n-th. They stand
 * in the member's own blocks in order. */
struct kv_share {
    int n, at;
    bool striped;
};
/* Attention over a member's positions only, not divided by the sum: row r, at position
 * pos[r] of sequence seq[r], gives for its heads the values, then the maxima (log2), then
 * the sums: y[r, 0 .. n_head * (dv + 2)), dv as in op_attn. A maximum of -inf: it sees
 * none of them. K and V stand in the arena, at blocks table[seq * max_blocks ..], which
 * are the member's or (whole; not striped) those of all members in turn; or, packed by
 * op_kv_pack, at n_blocks layer blocks from `off` of `blocks`, where block j of a
 * sequence is first[seq] + j. */
struct op_attn_part {
    struct view y, q;
    int n_head, n_kv_head, head_dim;
    float scale;
    int window; /* as in op_attn */
    struct kv_share share;
    struct iview pos, seq; /* of each row */
    struct kv_arena *kv;
    int layer;
    int n_seq, max_blocks;
    struct iview table;  /* n_seq * max_blocks */
    bool whole;          /* it lists the blocks of all members */
    struct dbuf *blocks; /* NULL: the arena */
    size_t off;
    int n_blocks;
    struct iview first; /* n_seq */
};
/* y[r,:] := the parts of row r together: rows r, y.rows + r, 2 * y.rows + r, .. of x, in
 * this order; sinks as in op_attn. head_dim: of the values. */
struct op_attn_merge {
    struct view y, x;
    int n_part, n_head, head_dim;
    const struct weight *sinks;
};
/* One layer of blocks idx[0..n), one after the other from `off` of `to`. */
struct op_kv_pack {
    struct kv_arena *kv;
    int layer;
    struct iview idx;
    struct dbuf *to;
    size_t off;
};
/* Whole blocks, for copy on write: dst[i] := src[i], all layers. */
struct op_kv_copy {
    struct kv_arena *kv;
    struct iview src, dst;
};

/* Whole blocks between the arena and host memory, one after the other in this order:
 * block at[i].block and the block_bytes from at[i].slot * block_bytes on, of n_slots.
 * Host values; at and what host points to must stay until the stream was synced past it.
 */
struct kv_moved {
    int32_t block, slot;
    bool up; /* into the arena */
};
struct op_kv_move {
    struct kv_arena *kv;
    void *host;
    int n_slots;
    const struct kv_moved *at;
    int n;
};

/* ---- mixtures of experts ---- */
/* Scores of n experts a row -> the top_k of each, best first (ties: the lower number; NaN
 * after all else), no expert twice, and what each weighs, in f32. SOFTMAX: over all of
 * them. SIGMOID: of each, chosen with `bias` added and weighed without. CHOSEN: the
 * logits choose, then softmax over the chosen. normalise: the weights of a row sum to 1;
 * then * scale. n_group over 1: experts stand in as many equal groups in order, and only
 * the best top_group of them may be chosen from (what the others are chosen by is 0). A
 * group is as good as its best (SOFTMAX) or its best two together (SIGMOID). */
enum route_score { ROUTE_SOFTMAX, ROUTE_SIGMOID, ROUTE_CHOSEN };
struct op_route {
    struct view logits;        /* [rows, n_expert] */
    const struct weight *bias; /* WEIGHT_VECTOR or NULL */
    enum route_score score;
    bool normalise;
    float scale;
    int top_k, n_group, top_group;
    struct iview ids;    /* rows * top_k out */
    struct view weights; /* [rows, top_k] out */
};
/* What rows are of: mark[r] = op_mark of the item that row r belongs to and its phase.
 * Counts go by the phase of the rows that they are of; what is done to a row is noted by
 * a bit of its item, or'ed. Both are of rows first..first+n-1 alone, where other ranks
 * see to the others. mark.buf NULL: all are of phase 0, and nothing is noted; item.buf
 * NULL: nothing is noted. */
enum { OP_PHASES = 2 };
struct op_rows {
    struct iview mark, item;
    int first, n;
};
static inline int32_t op_mark(int item, int phase) { return item * OP_PHASES + phase; }
/* Pairs over an expert's capacity, those of the last rows, go away (drop: id -1, weight
 * 0) or to the row's next best expert that it has not and that has room, where there is
 * one; then the row's weights are those of its new choices. route: what chose; ids and
 * weights are changed. pos[p] = p, or -1 of a pair that went away. */
struct op_capacity {
    struct op_route route;
    int cap;
    bool drop;
    struct iview count, pos; /* scratch: n_expert; rows * top_k out */
    struct op_rows who;
    int32_t note[2]; /* of an item with a pair that was sent to another expert, is gone */
    struct lview lost[OP_PHASES]; /* 2: of these pairs, added to; or NULL */
};
/* Which copy of its expert each pair (row, choice) goes to: to[p] is its rank, to_slot[p]
 * its slot there, both -1 for a pair whose id is below 0. Copies of expert x are
 * first[x]..first[x+1]-1, in order of their ranks, two never on one; upto[c] is the sum
 * of the shares of x up to copy c, of SPREAD_ONE (that of the last). Shares are never
 * looked at by LEAST_LOADED. STATIC:        each copy its share of this batch's pairs, to
 * within one LEAST_LOADED:  so that the ranks have as equal numbers of pairs as can be;
 * where that leaves a choice, the pair's own rank, then its own host PROBABILITIES: by
 * the pair's number and the share alone, whatever else is in the batch Rows are shared
 * out over ranks 0..n_src-1 in equal runs (comm_shard), or (n_src 0) all of them come
 * from rank src. phase: any number, another for every step, the same on ranks that shall
 * come to the same answer. cap (0 = none): a copy's pairs over it go to another copy of
 * the same expert while one has room. */
enum spread { SPREAD_STATIC, SPREAD_LEAST_LOADED, SPREAD_PROBABILITIES, SPREAD_COUNT };
enum { SPREAD_ONE = 1 << 30 };
struct op_spread {
    enum spread policy;
    int rows, top_k, n_rank, n_src, src, cap;
    uint32_t phase;
    struct iview ids;                     /* rows * top_k */
    struct iview first, rank, slot, upto; /* n_expert + 1; of each copy */
    struct iview host;                    /* of each rank */
    struct iview to, to_slot;             /* rows * top_k out */
    struct op_rows who;
    struct lview moved[OP_PHASES]; /* 1: pairs that cap moved are added; or NULL */
    struct iview scratch;          /* op_spread_scratch of them */
};
static inline int op_spread_scratch(int n_expert, int n_rank, int n_copies)
{
    return 2 * n_expert + n_rank + 2 * n_copies;
}
/* Pairs (row, choice) in order of the ranks that they go to, for an all-to-all:
 * out[pos[p],:] = x[p / top_k,:] and slot[pos[p]] = to_slot[p] + OP_TAG_PHASE * the
 * row's phase for pair p; send[m] of them go to rank m = to[p]. A pair with to[p] = -1
 * goes nowhere: pos[p] = -1. from[pos[p]] = p / top_k, where from is given: which of out
 * are one row of x. note: of an item with a pair that goes anywhere. */
enum { OP_TAG_PHASE = 1 << 29 };
struct op_dispatch {
    struct view x, out; /* [rows, cols], [rows * top_k, cols] */
    int top_k, n_rank;
    struct iview to, to_slot;     /* rows * top_k */
    struct iview slot, pos, send; /* rows * top_k, rows * top_k, n_rank */
    struct iview from;            /* rows * top_k; buf NULL = not wanted */
    struct op_rows who;
    int32_t note;
};
/* What is counted of each slot, by the phase of its pairs, added to by op_group (rows,
 * over) and op_experts (the times): pairs, pairs over the capacity, time in its products
 * (of all threads over their number), and the time that its pairs waited in op_experts
 * before them, summed. Pairs of both phases go through a product together: its time is
 * divided by how many there were of each. */
enum { TALLY_ROWS, TALLY_OVER, TALLY_SERVICE_NS, TALLY_QUEUE_NS, OP_TALLY };
/* Pairs by slot: order[start[s] .. start[s+1]) are the pairs p with slot[p] == s, rising.
 * A pair with slot -1 is in no group; below that or from n_slot on is a device fault. A
 * slot may be tagged (OP_TAG_PHASE); where mark is given, pair p is of row p / per_row.
 * n_pair: pairs that there are, or (n_pair -1) as many as the values of count sum up to,
 * at most slot.n. cap (0 = none): a slot's capacity; second: its pairs beyond the first
 * cap are in a group n_slot + s of their own, of 2 * n_slot groups. */
enum { OP_GROUP_MAX_SLOTS = 4096 };
struct op_group {
    int n_slot, n_pair, cap;
    bool second;
    struct iview slot, count;  /* count: one value, where n_pair is 0 */
    struct iview order, start; /* slot.n; groups + 1 */
    struct iview later;        /* groups: pairs of phase 1 out; buf NULL: not wanted */
    struct iview mark;         /* of op_rows; buf NULL: by the tags */
    int per_row;
    struct lview tally[OP_PHASES]; /* [n_slot, OP_TALLY] or NULL */
};
/* y[p,:] = expert(x[p / per_row,:]) for the pairs that op_group ordered: down of
 * act(gate, up) of the pair's slot. Rows are taken act.rows at a time, first those of all
 * slots, then (second) those of the groups beyond them.
 *   limit 0: silu(gate) * up
 *   else:    g = min(gate, limit), u = up within +-limit: g * sigmoid(1.702 g) * (u + 1)
 */
struct op_experts {
    struct view y, x; /* [pairs, cols], [pairs / per_row, cols] */
    int per_row, n_slot;
    bool second;
    struct iview order, start, later; /* later: with tally, of op_group */
    struct lview tally[OP_PHASES];    /* [n_slot, OP_TALLY] or NULL */
    struct weight *const *gate, *const *up, *const *down; /* [n_slot], WEIGHT_MATMUL */
    /* a slot with NULL in gate is empty: a pair there is a device fault */
    struct weight *const
        *bias[3]; /* of gate, up, down: [n_slot] or NULL, WEIGHT_VECTOR */
    float limit;
    struct view act; /* scratch: [t, ff] */
};
/* y[r,:] = sum over j of weights[r,j] * x[from[r * top_k + j],:], in order of j, in
 * f32; from.buf NULL: row r * top_k + j itself. A `from` of -1 adds nothing. */
struct op_combine {
    struct view y, x, weights;
    int top_k;
    struct iview from;
};
/* Rows of x as e4m3 with a scale (f32, the largest over 448) each, op_pack8_bytes a row,
 * at byte `off` of `to`; and back. As many rows as the values of count sum up to, at most
 * x.rows. */
struct op_pack8 {
    struct view x;
    struct dbuf *to;
    size_t off;
    struct iview count;
};
struct op_unpack8 {
    struct view y;
    struct dbuf *from;
    size_t off;
    struct iview count;
};
static inline size_t op_pack8_bytes(int cols)
{
    return sizeof(float) + ((size_t)cols + 3) / 4 * 4;
}
/* y[r,:] *= sigmoid(gate[r,0]) */
struct op_scale_rows {
    struct view y, gate;
};

int op_route(struct stream *s, const struct op_route *o, struct err *e);
int op_capacity(struct stream *s, const struct op_capacity *o, struct err *e);
int op_pack8(struct stream *s, const struct op_pack8 *o, struct err *e);
int op_unpack8(struct stream *s, const struct op_unpack8 *o, struct err *e);
int op_spread(struct stream *s, const struct op_spread *o, struct err *e);
int op_dispatch(struct stream *s, const struct op_dispatch *o, struct err *e);
int op_group(struct stream *s, const struct op_group *o, struct err *e);
int op_experts(struct stream *s, const struct op_experts *o, struct err *e);
int op_combine(struct stream *s, const struct op_combine *o, struct err *e);
int op_scale_rows(struct stream *s, const struct op_scale_rows *o, struct err *e);

/* Host code in stream order over device memory that the host can reach: what the local
 * collectives are made of. mem[i] is buf[i] + off[i], of which bytes[i] are there. What
 * arg points to must stay valid until the stream was synced past it. -1 is a device
 * fault. A backend whose memory the host cannot reach refuses (UNSUPPORTED). */
enum { OP_HOST_ARGS = 8, OP_HOST_BUFS = 8 };
struct op_host {
    int (*fn)(const struct op_host *o, void *const *mem, struct err *e);
    uint64_t arg[OP_HOST_ARGS];
    int n_buf;
    struct dbuf *buf[OP_HOST_BUFS];
    size_t off[OP_HOST_BUFS], bytes[OP_HOST_BUFS];
};

int op_host(struct stream *s, const struct op_host *o, struct err *e);
int op_embed(struct stream *s, const struct op_embed *o, struct err *e);
int op_add(struct stream *s, const struct op_add *o, struct err *e);
int op_norm(struct stream *s, const struct op_norm *o, struct err *e);
int op_squares(struct stream *s, const struct op_squares *o, struct err *e);
int op_norm_by(struct stream *s, const struct op_norm_by *o, struct err *e);
int op_gather(struct stream *s, const struct op_gather *o, struct err *e);
int op_matmul(struct stream *s, const struct op_matmul *o, struct err *e);
int op_glu(struct stream *s, const struct op_glu *o, struct err *e);
int op_heads(struct stream *s, const struct op_heads *o, struct err *e);
int op_rope_store(struct stream *s, const struct op_rope_store *o, struct err *e);
int op_attn(struct stream *s, const struct op_attn *o, struct err *e);
int op_attn_part(struct stream *s, const struct op_attn_part *o, struct err *e);
int op_attn_merge(struct stream *s, const struct op_attn_merge *o, struct err *e);
int op_kv_pack(struct stream *s, const struct op_kv_pack *o, struct err *e);
int op_kv_copy(struct stream *s, const struct op_kv_copy *o, struct err *e);
int op_kv_move(struct stream *s, const struct op_kv_move *o, struct err *e);

#endif
