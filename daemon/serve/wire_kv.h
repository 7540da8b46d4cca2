/* daemon/serve/wire_kv.h - what two engines say to each other, through the daemon, when
 * one computes a prompt (P) and the other the answer (D).
 *
 * Acquaintance. An engine of role prefill follows READY with n_arenas ARENA messages, one
 * descriptor each: its page (incarnation and block generations) and the KV of each rank.
 * The daemon gives them unchanged, as PEER, to each engine of role decode, before any ADD
 * that names that incarnation. When an engine ends, PEER_GONE to all that may know it.
 *
 * A request. The daemon's number (gen_params.id) is the same on P and on D.
 *
 *   daemon -> D  ADD, handoff GEN_IMPORT, peer = P      D queues it as any other
 *   D -> daemon  RESERVED                               its KV is there; only now
 *   daemon -> P  ADD, handoff GEN_EXPORT, peer = D      so a full D holds P back
 *   P -> D       EXPORT .. EXPORT(last)                 relayed; as chunks are computed
 *   D -> P       PULLED .. PULLED(final)                relayed; D has copied so far
 *   P -> daemon  TOKENS (the first), FINISH HANDOFF     the client gets the tokens only
 *   D -> daemon  TOKENS (from the second on), FINISH    n_out counts P's tokens too
 *
 * EXPORT and PULLED are relayed byte for byte by their id, also after the FINISH of the
 * engine that sends them. P may end the request itself (STOP, LENGTH: the first token was
 * the last): that is the client's finish, and D gets CANCEL. D never writes to P's memory
 * and P never to D's: D maps P's arenas read-only, copies, then looks whether incarnation
 * and generations are still those of the EXPORT.
 *
 * When it goes wrong. D says LOST (P late, its blocks reused, a copy that failed as often
 * as it may), or P ends (ERROR, a dead process) or ends no step for too long: the daemon
 * sends CANCEL to P, listens to it no more, and sends D a RECOMPUTE with the ids that the
 * client has got of P (none or one): D computes what is missing and goes on. RECOMPUTE
 * for a request that D has all of is ignored. When D ends, the request begins anew with
 * another pair, or on one engine (GEN_HERE), with those ids as n_gen. A client that goes:
 * CANCEL to both.
 *
 * P holds what it offered until PULLED(final), PEER_GONE of the reader, or the end of its
 * lease; then the blocks are in quarantine for a time and up to a number of blocks, after
 * which they are taken back (their generation then tells the reader). */
#ifndef SERVE_WIRE_KV_H
#define SERVE_WIRE_KV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct wire_conn;

enum engine_role { ENGINE_BOTH, ENGINE_PREFILL, ENGINE_DECODE };

enum {
    WIRE_ARENAS_MAX = 257,  /* of one engine: 256 ranks and the page */
    WIRE_EXPORT_MAX = 65536 /* blocks of one EXPORT */
};

/* One exported region. rank -1: the page (struct kvpage), of which only incarnation,
 * n_arenas, n_blocks and bytes count. */
struct wire_arena {
    uint64_t incarnation, bytes;      /* of the mapping */
    int32_t rank, n_arenas, n_blocks; /* n_blocks: in this region */
    /* what stands in it: layers and KV heads of the model's, elements */
    int32_t first_layer, n_layer, all_layers;
    int32_t head_from, n_head, all_heads;
    int32_t head_dim, v_dim, type; /* type: enum dtype */
    int32_t cp, cp_at, striped;    /* positions: kv_share of backend.h */
    int32_t shard, block_tok;      /* of adp; positions of a block of the engine */
    int32_t pad;
};

/* D has blocks for all of request id, of which it needs nothing before n_have. */
struct wire_reserved {
    uint64_t id;
    int32_t n_have, pad;
};

/* Blocks first .. first+n-1 of request id, in order; with them positions 0..upto-1 of
 * n_tok are there. The last one (upto == n_tok, last) carries the n_gen ids sampled. */
struct wire_export {
    uint64_t id, incarnation; /* of P */
    int32_t first, n, upto, n_tok;
    int32_t block_tok, n_gen, last, pad;
};
struct wire_block {
    int32_t id;
    uint32_t gen;
    uint64_t sum; /* of its positions, whatever the layout (kvpull.h); 0 = not made */
};

/* D has positions 0..upto-1. final: it will not read again, however it ended. */
struct wire_pulled {
    uint64_t id, incarnation; /* of P */
    uint64_t reader;          /* D's: P hears only whom it pinned the blocks for */
    int32_t upto, final;
    uint64_t bytes; /* copied for this */
    int64_t us;
};

/* D asks for a RECOMPUTE and says why. */
struct wire_lost {
    uint64_t id;
    uint32_t code; /* enum err_code */
    char msg[252];
};

struct wire_recompute {
    uint64_t id;
    int32_t n_gen, pad;
};

/* Whole messages, checked; arrays are borrowed from the payload. */
int wire_send_arena(struct wire_conn *c, bool peer, const struct wire_arena *a, int fd,
                    struct err *e);
struct wire_offer {
    struct wire_export h;
    const struct wire_block *blocks;
    const int32_t *gen;
};
int wire_send_export(struct wire_conn *c, const struct wire_offer *o, struct err *e);
int wire_parse_export(const void *p, size_t n, struct wire_offer *ret, struct err *e);
int wire_send_recompute(struct wire_conn *c, uint64_t id, const int32_t *ids, int n,
                        struct err *e);
int wire_parse_recompute(const void *p, size_t n, struct wire_recompute *ret,
                         const int32_t **ret_ids, struct err *e);
/* A payload that is one struct: ARENA PEER PEER_GONE RESERVED PULLED LOST (wire_parse
 * takes them too). */
size_t wire_kv_bytes(int kind);
int wire_kv_check(int kind, const void *p, struct err *e);

#endif
