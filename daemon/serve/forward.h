/* daemon/serve/forward.h - one step of a model family over a backend.
 *
 * Weights go to the device once; forward_run launches the ops of a step on a stream. It
 * never allocates, reads or branches on a device value. Families are rows of a table that
 * say which optional parts a layer has. One owner thread (the rank's); the ranks of an
 * instance run the same steps, and the last stage gives out the logits. */
#ifndef SERVE_FORWARD_H
#define SERVE_FORWARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"
#include "kernels/dtype.h"
#include "topo/layout.h"

struct backend;
struct backend_caps;
struct comm;
struct err;
struct expert_report;
struct forward;
struct kv_arena;
struct kv_layout;
struct model;
struct model_info;
struct routes;
struct routes_dims;
struct step;
struct tracepage;
struct weight;

enum { FORWARD_CP_MAX = 32 }; /* cp x cp_u */

/* What becomes of pairs (row, expert) over an expert's capacity: to another of its copies
 * while one has room; after the others; to the row's next best expert with room; away.
 * The last two change what comes out. */
enum moe_overflow {
    OVERFLOW_REPLICA,
    OVERFLOW_SECOND_PASS,
    OVERFLOW_NEXT_BEST,
    OVERFLOW_DROP
};
/* How rows travel to experts and back: F8 is e4m3 with a scale a row, for those that stay
 * too, so that it does not matter which do. */
enum moe_transfer { TRANSFER_F32, TRANSFER_F8 };
/* Layers of experts. spare: slots of a rank and layer beyond those that its own experts
 * take, empty at first (forward_route_set); routing: how one of several copies is chosen.
 * capacity c (0 = none): ceil(c T k / E) pairs of an expert among the T rows of a run, as
 * far as a rank knows them: all, or its own. */
struct forward_experts {
    int spare;
    enum spread routing;
    double capacity;
    enum moe_overflow overflow;
    enum moe_transfer transfer;
    /* Pairs of experts chosen for one row are counted (expertpage_pairs), at up to
     * EXPERTPAGE_PAIRED experts. pairs: set by the rank. */
    bool count_pairs;
    _Atomic uint32_t *pairs;
};

/* Which part of a model a rank holds and how it meets the others. Zeroed = all of it.
 *
 * tp: heads, KV heads (repeated where there are fewer than ranks), the FFN's width and
 * the vocabulary are shared; what leaves a pair of column and row cut matrices is summed
 * over the group in halves (kernels/comm.h). sp: between these pairs each rank keeps its
 * rows only. pp: a run of layers; rows go from stage to stage, cut into `micro`
 * micro-batches so that stages work at the same time. In layers of experts all ranks of a
 * stage, tp x cp x adp, stand as ep (each with whole experts of its own, rows come by
 * all-to-all); or, with ep = cp x adp, the tp ranks share the width of theirs.
 *
 * adp: groups of tp ranks, each with items of its own and the KV of these: the step's
 * blocks are cut into adp equal shards, and an item is of the group whose shard its
 * blocks are in. Experts stand apart over the ranks of all groups, so a group that has no
 * rows goes through the layers all the same.
 *
 * cp x cp_u: the rows of a step are shared, each rank takes its own through the layers,
 * and attention brings them together (forward_cp.h). cp ranks share the positions, for
 * good: each has the KV of its own, a KV block of the step stands for cp * KV_BLOCK_TOK
 * positions, of which every rank's arena holds KV_BLOCK_TOK. cp_u ranks share the heads,
 * and the KV with them. */
struct forward_part {
    int tp, tp_at, pp, pp_at, ep, ep_at; /* sizes (0 = 1), coordinates */
    int cp, cp_at, cp_u, cp_u_at, adp, adp_at;
    enum cp_method cp_method; /* how K and V come together where cp > 1 */
    int micro;                /* 0 = as many as stages */
    int chunks; /* parts in which rows go to experts elsewhere, so that they travel while
                   others are computed; 0 = 1 */
    bool sp;
    /* Round as a layout with so many tp and ring cp ranks does (0 = as it is cut): what
     * is here is computed in the pieces that these would have, and put together as
     * theirs. */
    int as_tp, as_cp;
    struct forward_experts experts;
    /* borrowed; NULL where the size is 1 */
    struct comm *tp_comm, *pp_comm, *ep_comm, *cp_comm, *cp_u_comm;
};

/* What the router of a layer chose for some rows, as the experts will take it: a watcher
 * may look, or put another run's choice in its place. For tests: it is called in stream
 * order by the device, whose memory the host must be able to reach. */
struct forward_choice {
    int layer, n_row, n_embd, n_expert, top_k;
    const float *x, *logits; /* what the router was given, and its scores */
    int32_t *ids;            /* [n_row, top_k] */
    float *weights;          /* [n_row, top_k] */
};
typedef void (*forward_watch_fn)(void *arg, const struct forward_choice *c);

/* What buffers are made for. max_outs: logits rows held at once; a step with more of them
 * hands them over in several parts. */
struct forward_cfg {
    int max_rows, max_items, max_ctx, max_outs, max_copies;
    enum dtype kv_type;
    int n_blocks;  /* that steps name; a rank's arena has its adp'th part */
    int n_host;    /* slots of the host tier that steps name; likewise its part */
    int max_moves; /* of a step, to and from them */
    struct forward_part part;
    forward_watch_fn watch; /* NULL outside tests */
    void *watch_arg;
};

/* The sizes of a rank's part in a layout; no coordinates, no groups. */
void forward_part_of(const struct layout *l, struct forward_part *ret);
/* Can this part be cut out of the model? Divisibility only; layouts as a whole are
 * topo/layout's. */
int forward_part_check(const struct model_info *i, const struct forward_part *p,
                       struct err *e);

/* Sizes to open the backend with; the part was checked. */
void forward_caps(const struct model_info *i, const struct forward_cfg *cfg,
                  struct backend_caps *ret);

/* Loading goes on while it returns true (done: 0..1); false ends it with ERR_CANCELED. */
typedef bool (*forward_progress_fn)(void *arg, double done);

/* Borrows m only during the call (pages are dropped as tensors are repacked). progress
 * may be NULL. */
int forward_new(struct backend *b, struct model *m, const struct forward_cfg *cfg,
                forward_progress_fn progress, void *arg, struct forward **ret,
                struct err *e);
void forward_free(struct forward *f);

/* Takes logits of the step's outputs first..first+n-1, counted in item order: f32
 * [n, n_vocab] in host memory of f, valid during the call. */
typedef void (*forward_sink_fn)(void *arg, int first, int n, const float *logits);

/* Run the items of a step whose tokens are all concrete; waits for the stream. Ids,
 * positions and blocks are checked. Outputs are rows out_from.. of each item; sink is not
 * called when there are none, and in the last stage only (by every tp rank of its first
 * cp rank); with adp only those of the group's own items are run, counted and given out.
 * A step without items makes its copies. */
int forward_run(struct forward *f, const struct step *st, forward_sink_fn sink, void *arg,
                struct err *e);
/* ---- experts that move ---- */
/* Slots of the ranks of an expert group (experts apart; n_rank 1 where they are not), and
 * which of the model's layers of experts, counted over these alone from 0, are of this
 * stage. False for a dense model. */
bool forward_route_dims(const struct forward *f, struct routes_dims *ret, int *ret_first,
                        int *ret_n);
/* Between two steps, on the rank's thread: from the next step on rows of a layer of
 * experts go by this table (copied; of forward_route_dims' sizes, as many layers as the
 * model has of experts). Every slot of this rank that the table names must hold its
 * expert. A layer of another stage is none of its business: 0. Refused with the table
 * unchanged. */
int forward_route_set(struct forward *f, int layer, const struct routes *r,
                      struct err *e);
/* Likewise: puts w (by role from ROLE_EXP_GATE on; all NULL = leaves it empty) into a
 * slot of a layer of this stage, and the slot's old ones into w, for the caller to free.
 * No table that is in force may name the slot. Made with forward_backend's device. */
void forward_slot_swap(struct forward *f, int layer, int slot, struct weight **w);
struct backend *forward_backend(struct forward *f);
/* What the layers of experts have done since forward_new or the last clear, of the phases
 * that the last step had rows of (expertpage.h); one download of each. Nothing (n_layer
 * 0) of a dense model and of a rank whose counts another one has too. Valid until the
 * next call. */
int forward_report(struct forward *f, struct expert_report *ret, struct err *e);
/* What this rank did to rows of each item of the last step that changes what the model
 * answers: STEP_ALTERED_* [max_items], valid until the next step; NULL: nothing of the
 * kind can be. */
int forward_altered(struct forward *f, const int32_t **ret, struct err *e);
int forward_counts_clear(struct forward *f, struct err *e);
/* From the next run on layers of experts say when they did what, as rank `rank`, into p;
 * NULL: no longer. */
void forward_trace(struct forward *f, struct tracepage *p, int rank);
/* KV arena and its layout (for tests and hand-off). */
struct kv_arena *forward_kv(struct forward *f);
const struct kv_layout *forward_kv_layout(const struct forward *f);
/* Which part of the model's KV stands there. */
struct forward_kv {
    const struct kv_layout *layout; /* borrowed */
    int fd;                         /* borrowed; -1 = cannot be exported */
    int n_blocks;                   /* of the arena */
    int first_layer, all_layers, head_from, all_heads;
    int cp, cp_at, adp_at;
    bool striped;
};
void forward_kv_part(const struct forward *f, struct forward_kv *ret);
/* Where the bytes of a slot of the host tier are (kv_layout.block_bytes of them); NULL:
 * it is of another group of ranks. Stable as long as f. */
void *forward_host(const struct forward *f, int slot);
/* Positions that a KV block of a step stands for: KV_BLOCK_TOK, or cp times that. */
int forward_block_tok(const struct forward_part *p);
/* Bytes of KV_BLOCK_TOK positions with this model and type; 0 when it has no such layout.
 */
size_t forward_kv_block_bytes(const struct model_info *i, enum dtype kv_type);

#endif
