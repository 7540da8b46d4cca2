/* See wire_experts.h. */
#include "daemon/serve/wire_experts.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "daemon/serve/wire.h"

int wire_send_experts(struct wire_conn *c, const struct wire_expert_orders *o,
                      struct err *e)
{
    size_t layers = (size_t)o->h.n_layers, slots = (size_t)o->h.n_slots;
    const struct wire_part parts[] = {
        {&o->h, sizeof(o->h)},
        {o->moves, sizeof(*o->moves) * (size_t)o->h.n_moves},
        {o->layers, sizeof(*o->layers) * layers},
        {o->shares, sizeof(*o->shares) * layers * slots},
    };

    return wire_send(c, WIRE_EXPERTS, parts, 4, e);
}

static bool head_ok(const struct wire_experts *h)
{
    return h->n_moves >= 0 && h->n_moves <= MOVES_QUEUED && h->n_layers >= 0 &&
           h->n_layers <= WIRE_EXPERT_LAYERS && h->n_slots >= 0 &&
           h->n_slots <= WIRE_EXPERT_SLOTS && (h->cancel == 0 || h->cancel == 1) &&
           (!h->n_layers || h->n_slots) && h->step_bytes >= 0 && h->copy_share >= 0 &&
           h->copy_share <= 1;
}

int wire_parse_experts(const void *p, size_t n, struct wire_expert_orders *ret,
                       struct err *e)
{
    struct wire_expert_orders o;
    const uint8_t *b = p;

    if (n < sizeof(o.h))
        return err_set(e, ERR_SYNTAX, "an EXPERTS message has %zu bytes", n);
    memcpy(&o.h, b, sizeof(o.h));
    if (!head_ok(&o.h))
        return err_set(e, ERR_SYNTAX,
                       "an EXPERTS message of %d moves and %d layers of %d slots is not "
                       "possible",
                       o.h.n_moves, o.h.n_layers, o.h.n_slots);
    size_t moves = sizeof(*o.moves) * (size_t)o.h.n_moves;
    size_t layers = sizeof(*o.layers) * (size_t)o.h.n_layers;
    size_t shares = sizeof(*o.shares) * (size_t)o.h.n_layers * (size_t)o.h.n_slots;
    if (n != sizeof(o.h) + moves + layers + shares)
        return err_set(e, ERR_SYNTAX,
                       "an EXPERTS message has %zu bytes, its counts ask for %zu", n,
                       sizeof(o.h) + moves + layers + shares);
    b += sizeof(o.h);
    o.moves = (const struct move *)(const void *)b;
    o.layers = (const int32_t *)(const void *)(b + moves);
    o.shares = (const float *)(const void *)(b + moves + layers);
    for (int32_t i = 0; i < o.h.n_moves; i++)
        if (!o.moves[i].id || o.moves[i].n < 1 || o.moves[i].n > MOVE_PUTS)
            return err_set(e, ERR_SYNTAX, "move %d of an EXPERTS message has %d slots", i,
                           o.moves[i].n);
    for (size_t i = 0; i < shares / sizeof(*o.shares); i++)
        if (!(o.shares[i] >= 0 && o.shares[i] <= 1))
            return err_set(e, ERR_SYNTAX, "share %zu of an EXPERTS message is no share",
                           i);
    *ret = o;
    return 0;
}

int wire_send_moved(struct wire_conn *c, const struct moves_news *n, struct err *e)
{
    struct wire_moved m = {
        .id = n->move.id,
        .layer = n->move.layer,
        .state = (int32_t)n->state,
        .bytes = n->bytes,
        .load_us = n->load_us,
        .work_us = n->work_us,
        .all_us = n->all_us,
        .before_mean_us = n->before_mean_us,
        .before_max_us = n->before_max_us,
        .during_mean_us = n->during_mean_us,
        .during_max_us = n->during_max_us,
        .n_steps = n->n_steps,
    };

    snprintf(m.why, sizeof(m.why), "%s", n->why);
    return wire_send(c, WIRE_MOVED, &(struct wire_part){&m, sizeof(m)}, 1, e);
}

int wire_check_moved(const struct wire_moved *m, struct err *e)
{
    if (m->state < 0 || m->state >= MOVE_STATE_COUNT || m->bytes < 0 || m->load_us < 0 ||
        m->work_us < 0 || m->all_us < 0 || m->n_steps < 0 ||
        !memchr(m->why, 0, sizeof(m->why)))
        return err_set(e, ERR_SYNTAX, "a MOVED message is not well-formed: state %d",
                       m->state);
    return 0;
}
