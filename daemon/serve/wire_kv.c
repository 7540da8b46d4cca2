/* See wire_kv.h. */
#include "daemon/serve/wire_kv.h"

#include <string.h>

#include "base/err.h"
#include "daemon/serve/wire.h"
#include "kernels/backend.h"

enum { ARENA_WORD_MAX = 1 << 20 };

size_t wire_kv_bytes(int kind)
{
    switch (kind) {
    case WIRE_ARENA:
    case WIRE_PEER:
        return sizeof(struct wire_arena);
    case WIRE_PEER_GONE:
        return sizeof(uint64_t);
    case WIRE_RESERVED:
        return sizeof(struct wire_reserved);
    case WIRE_PULLED:
        return sizeof(struct wire_pulled);
    case WIRE_LOST:
        return sizeof(struct wire_lost);
    default:
        return 0;
    }
}

static bool in(int32_t v, int32_t least, int32_t most) { return v >= least && v <= most; }

/* A part of n from `from` on, of `all`. */
static bool part(int32_t from, int32_t n, int32_t all)
{
    return in(all, 1, ARENA_WORD_MAX) && in(n, 1, all) && in(from, 0, all - n);
}

static const char *bad_arena(const struct wire_arena *a)
{
    if (!a->incarnation)
        return "incarnation";
    if (!in(a->n_arenas, 2, WIRE_ARENAS_MAX) || !in(a->rank, -1, a->n_arenas - 2))
        return "rank";
    if (a->n_blocks < 1 || a->bytes > INT64_MAX || !a->bytes)
        return "bytes";
    if (a->rank < 0)
        return NULL;
    if (!part(a->first_layer, a->n_layer, a->all_layers))
        return "layers";
    if (!part(a->head_from, a->n_head, a->all_heads))
        return "heads";
    if (!in(a->head_dim, 1, ARENA_WORD_MAX) || !in(a->v_dim, 0, a->head_dim) ||
        !in(a->type, 0, DT_COUNT - 1))
        return "elements";
    if (!in(a->cp, 1, WIRE_ARENAS_MAX) || !in(a->cp_at, 0, a->cp - 1) ||
        !in(a->striped, 0, 1) || a->block_tok != a->cp * KV_BLOCK_TOK)
        return "positions";
    return in(a->shard, 0, WIRE_ARENAS_MAX) ? NULL : "shard";
}

static const char *bad_field(int kind, const void *p)
{
    union {
        struct wire_arena arena;
        struct wire_reserved reserved;
        struct wire_pulled pulled;
        struct wire_lost lost;
    } m;

    memcpy(&m, p, wire_kv_bytes(kind));
    switch (kind) {
    case WIRE_ARENA:
    case WIRE_PEER:
        return bad_arena(&m.arena);
    case WIRE_RESERVED:
        return m.reserved.n_have < 0 ? "n_have" : NULL;
    case WIRE_PULLED:
        if (!m.pulled.reader)
            return "reader";
        if (m.pulled.upto < 0)
            return "upto";
        return !in(m.pulled.final, 0, 1) ? "final" : m.pulled.us < 0 ? "us" : NULL;
    case WIRE_LOST:
        return memchr(m.lost.msg, 0, sizeof(m.lost.msg)) ? NULL : "msg";
    default:
        return NULL;
    }
}

int wire_kv_check(int kind, const void *p, struct err *e)
{
    const char *bad = bad_field(kind, p);

    if (bad)
        return err_set(e, ERR_SYNTAX, "field %s of a %s message is not well-formed", bad,
                       wire_kind_name((enum wire_kind)kind));
    return 0;
}

int wire_send_arena(struct wire_conn *c, bool peer, const struct wire_arena *a, int fd,
                    struct err *e)
{
    if (wire_attach_fd(c, fd, e) < 0)
        return -1;
    return wire_send(c, peer ? WIRE_PEER : WIRE_ARENA, &(struct wire_part){a, sizeof(*a)},
                     1, e);
}

/* ---- EXPORT ---- */

int wire_send_export(struct wire_conn *c, const struct wire_offer *o, struct err *e)
{
    const struct wire_part parts[] = {
        {&o->h, sizeof(o->h)},
        {o->blocks, sizeof(*o->blocks) * (size_t)o->h.n},
        {o->gen, sizeof(*o->gen) * (size_t)o->h.n_gen},
    };
    return wire_send(c, WIRE_EXPORT, parts, 3, e);
}

/* first, n, upto and n_tok tell one story. */
static bool export_ok(const struct wire_export *h)
{
    int64_t end = ((int64_t)h->first + h->n) * h->block_tok;

    if (!h->incarnation || h->block_tok < 1 || !in(h->n, 1, WIRE_EXPORT_MAX) ||
        h->first < 0 || h->n_tok < 1 || !in(h->upto, 1, h->n_tok) || !in(h->last, 0, 1) ||
        !in(h->n_gen, 0, WIRE_TOK_MAX))
        return false;
    if (h->last ? h->upto != h->n_tok || h->n_gen < 1 : h->n_gen != 0)
        return false;
    return h->upto <= end && h->upto > end - h->block_tok;
}

int wire_parse_export(const void *p, size_t n, struct wire_offer *ret, struct err *e)
{
    struct wire_offer o;
    const uint8_t *b = p;

    if (n < sizeof(o.h))
        return err_set(e, ERR_SYNTAX, "an EXPORT message has %zu bytes", n);
    memcpy(&o.h, b, sizeof(o.h));
    if (!export_ok(&o.h))
        return err_set(e, ERR_SYNTAX,
                       "an EXPORT of %d blocks from %d, up to %d of %d, is not possible",
                       o.h.n, o.h.first, o.h.upto, o.h.n_tok);
    size_t blocks = sizeof(*o.blocks) * (size_t)o.h.n;
    size_t gen = sizeof(*o.gen) * (size_t)o.h.n_gen;
    if (n != sizeof(o.h) + blocks + gen)
        return err_set(e, ERR_SYNTAX,
                       "an EXPORT message has %zu bytes, its counts ask for %zu", n,
                       sizeof(o.h) + blocks + gen);
    o.blocks = (const struct wire_block *)(const void *)(b + sizeof(o.h));
    o.gen = (const int32_t *)(const void *)(b + sizeof(o.h) + blocks);
    for (int32_t i = 0; i < o.h.n; i++)
        if (o.blocks[i].id < 0)
            return err_set(e, ERR_SYNTAX, "block %d of an EXPORT has number %d", i,
                           o.blocks[i].id);
    *ret = o;
    return 0;
}

/* ---- RECOMPUTE ---- */

int wire_send_recompute(struct wire_conn *c, uint64_t id, const int32_t *ids, int n,
                        struct err *e)
{
    const struct wire_recompute h = {.id = id, .n_gen = n};
    const struct wire_part parts[] = {{&h, sizeof(h)}, {ids, sizeof(*ids) * (size_t)n}};

    return wire_send(c, WIRE_RECOMPUTE, parts, 2, e);
}

int wire_parse_recompute(const void *p, size_t n, struct wire_recompute *ret,
                         const int32_t **ret_ids, struct err *e)
{
    struct wire_recompute h;
    const uint8_t *b = p;

    if (n < sizeof(h))
        return err_set(e, ERR_SYNTAX, "a RECOMPUTE message has %zu bytes", n);
    memcpy(&h, b, sizeof(h));
    if (!in(h.n_gen, 0, WIRE_TOK_MAX) ||
        n != sizeof(h) + sizeof(int32_t) * (size_t)h.n_gen)
        return err_set(e, ERR_SYNTAX, "a RECOMPUTE of %zu bytes claims %d ids", n,
                       h.n_gen);
    *ret = h;
    *ret_ids = (const int32_t *)(const void *)(b + sizeof(h));
    return 0;
}
