/* daemon/serve/handoff_in.c - offers that come, copies that are made of them. */
#include "daemon/serve/handoff.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "daemon/serve/handoff_impl.h"

void handoff_import_free(struct handoff *h, struct kv_import *m)
{
    if (!m->let_go)
        idmap_del(&h->imports, m->id);
    list_del(&m->link);
    free(m->blocks);
    free(m->gen);
    free(m);
}

static void tell_pulled(struct handoff *h, const struct kv_import *m, bool final,
                        uint64_t bytes, int64_t us)
{
    struct handoff_act *a = handoff_act(h, HANDOFF_PULLED, m->id);

    a->peer = m->peer;
    a->pulled = (struct wire_pulled){.id = m->id,
                                     .incarnation = m->peer,
                                     .upto = m->have,
                                     .final = final,
                                     .bytes = bytes,
                                     .us = us};
}

/* Not wanted any more: over, or when its pull is back. */
static void let_go(struct handoff *h, int64_t now, struct kv_import *m)
{
    idmap_del(&h->imports, m->id);
    m->let_go = true;
    if (m->pull) {
        m->state = IMPORT_CLOSING;
        m->until = now + h->cfg.quarantine_us;
        return;
    }
    tell_pulled(h, m, true, 0, 0);
    handoff_import_free(h, m);
}

void handoff_import_lose(struct handoff *h, struct kv_import *m, const struct err *why)
{
    struct handoff_act *a;

    if (m->state == IMPORT_LOST || m->state == IMPORT_CLOSING)
        return;
    m->state = IMPORT_LOST;
    m->stale = true;
    h->st.lost++;
    a = handoff_act(h, HANDOFF_LOST, m->id);
    a->peer = m->peer;
    a->why = *why;
}

static void begin_pull(struct handoff *h, int64_t now, struct kv_import *m)
{
    struct handoff_act *a = handoff_act(h, HANDOFF_PULL, m->id);
    int first = m->have / m->block_tok;

    m->state = IMPORT_PULL;
    m->pull = ++h->pulls;
    m->pull_upto = m->upto;
    m->until = now + h->cfg.pull_us;
    a->peer = m->peer;
    a->pull = m->pull;
    a->upto = m->upto;
    a->first = first;
    a->n = m->n - first;
    a->blocks = xmalloc((size_t)a->n * sizeof(*a->blocks) + 1);
    memcpy(a->blocks, m->blocks + first, (size_t)a->n * sizeof(*a->blocks));
}

static void whole(struct handoff *h, int64_t now, struct kv_import *m)
{
    struct handoff_act *a = handoff_act(h, HANDOFF_DONE, m->id);

    a->peer = m->peer;
    a->bytes = m->bytes;
    a->copy_us = m->copy_us;
    a->wait_us = now - m->last_us;
    h->st.done++;
    handoff_import_free(h, m);
}

/* After anything that may let it go on. */
static void go_on(struct handoff *h, int64_t now, struct kv_import *m)
{
    if (m->state != IMPORT_WAIT || m->upto <= m->have)
        return;
    m->tries = 0;
    begin_pull(h, now, m);
}

void handoff_import(struct handoff *h, int64_t now, uint64_t id, uint64_t peer)
{
    struct kv_import *m;

    (void)now;
    if (idmap_get(&h->imports, id)) {
        h->st.late++;
        return;
    }
    m = xcalloc(1, sizeof(*m));
    m->id = id;
    m->peer = peer;
    list_push(&h->in, &m->link);
    idmap_put(&h->imports, id, m);
}

void handoff_reserved(struct handoff *h, int64_t now, uint64_t id, int have, int n_tok)
{
    struct kv_import *m = idmap_get(&h->imports, id);

    if (!m || m->state != IMPORT_QUEUED)
        return;
    m->state = IMPORT_WAIT;
    m->have = have;
    m->n_tok = n_tok;
    m->until = now + h->cfg.first_us;
}

static bool offer_fits(const struct kv_import *m, const struct wire_offer *o)
{
    const struct wire_export *x = &o->h;

    return (m->state == IMPORT_WAIT || m->state == IMPORT_PULL) && !m->last &&
           x->incarnation == m->peer && x->n_tok == m->n_tok && x->first == m->n &&
           x->upto > m->upto && (!m->offered || x->block_tok == m->block_tok);
}

void handoff_offer(struct handoff *h, int64_t now, const struct wire_offer *o)
{
    struct kv_import *m = idmap_get(&h->imports, o->h.id);
    struct err e;

    if (!m || m->state == IMPORT_LOST) {
        h->st.late++;
        return;
    }
    if (!offer_fits(m, o)) {
        err_set(&e, ERR_CONFLICT,
                "the other engine's offer of blocks from %d does not go on from %d",
                o->h.first, m->n);
        handoff_import_lose(h, m, &e);
        return;
    }
    while (m->n + o->h.n > m->cap) {
        m->cap = m->cap ? m->cap * 2 : 64;
        m->blocks = xrealloc(m->blocks, (size_t)m->cap * sizeof(*m->blocks));
    }
    if (o->h.n)
        memcpy(m->blocks + m->n, o->blocks, (size_t)o->h.n * sizeof(*m->blocks));
    m->n += o->h.n;
    m->block_tok = o->h.block_tok;
    m->upto = o->h.upto;
    m->offered = true;
    m->last = o->h.last;
    m->last_us = now;
    if (m->last) {
        m->n_gen = o->h.n_gen;
        m->gen = xmalloc((size_t)m->n_gen * sizeof(*m->gen));
        memcpy(m->gen, o->gen, (size_t)m->n_gen * sizeof(*m->gen));
    }
    if (m->state == IMPORT_WAIT)
        m->until = now + h->cfg.next_us;
    go_on(h, now, m);
}

static struct kv_import *by_pull(const struct handoff *h, uint64_t pull)
{
    list_for(it, &h->in)
    {
        struct kv_import *m = list_entry(it, struct kv_import, link);
        if (pull && m->pull == pull)
            return m;
    }
    return NULL;
}

const int32_t *handoff_gen(const struct handoff *h, uint64_t pull, int *ret_n)
{
    const struct kv_import *m = by_pull(h, pull);

    if (!m || m->stale || m->state != IMPORT_PULL || !m->last || m->pull_upto != m->n_tok)
        return NULL;
    *ret_n = m->n_gen;
    return m->gen;
}

static void pull_failed(struct handoff *h, int64_t now, struct kv_import *m,
                        const struct err *why)
{
    if (why->code == ERR_CONFLICT || ++m->tries >= h->cfg.tries) {
        handoff_import_lose(h, m, why);
        return;
    }
    h->st.retries++;
    begin_pull(h, now, m);
}

void handoff_pull_end(struct handoff *h, int64_t now, uint64_t pull,
                      const struct err *why, uint64_t bytes, int64_t us)
{
    struct kv_import *m = by_pull(h, pull);

    if (!m) {
        h->st.late++;
        return;
    }
    m->pull = 0;
    h->st.bytes += bytes;
    m->bytes += bytes;
    m->copy_us += us;
    if (m->state == IMPORT_CLOSING || m->stale) {
        h->st.late++;
        if (m->state == IMPORT_CLOSING) {
            tell_pulled(h, m, true, bytes, us);
            handoff_import_free(h, m);
        }
        return;
    }
    if (why) {
        pull_failed(h, now, m, why);
        return;
    }
    m->state = IMPORT_WAIT;
    m->until = now + h->cfg.next_us;
    m->have = m->pull_upto;
    bool all = m->last && m->have == m->n_tok;
    tell_pulled(h, m, all, bytes, us);
    if (all)
        whole(h, now, m);
    else
        go_on(h, now, m);
}

void handoff_recompute(struct handoff *h, int64_t now, uint64_t id)
{
    struct kv_import *m = idmap_get(&h->imports, id);

    if (!m) {
        h->st.late++;
        return;
    }
    h->st.recomputed++;
    let_go(h, now, m);
}

void handoff_import_end(struct handoff *h, int64_t now, uint64_t id)
{
    struct kv_import *m = idmap_get(&h->imports, id);

    if (m)
        let_go(h, now, m);
}

void handoff_fail(struct handoff *h, int64_t now, uint64_t id, const struct err *why)
{
    struct kv_import *m = idmap_get(&h->imports, id);

    (void)now;
    if (m)
        handoff_import_lose(h, m, why);
}

/* Not at once: where all of the engine stood still its copies go on only now. */
static void closing_tick(struct handoff *h, int64_t now, struct kv_import *m)
{
    struct handoff_act *a;

    m->until = now + h->cfg.pull_us;
    if (m->overdue) {
        a = handoff_act(h, HANDOFF_STUCK, m->id);
        a->peer = m->peer;
        err_set(&a->why, ERR_TIMEOUT,
                "a copy of KV that nobody waits for has not ended for %.1f s: its blocks "
                "cannot be used",
                (double)(h->cfg.quarantine_us + h->cfg.pull_us) / 1e6);
    }
    m->overdue = true;
}

/* The request is told lost; a pull that copies goes on in vain. */
void handoff_imports_tick(struct handoff *h, int64_t now)
{
    struct err e;

    list_for_safe(it, tmp, &h->in)
    {
        struct kv_import *m = list_entry(it, struct kv_import, link);
        if (m->state == IMPORT_CLOSING && m->until <= now)
            closing_tick(h, now, m);
        if ((m->state != IMPORT_WAIT && m->state != IMPORT_PULL) || m->until > now)
            continue;
        err_set(&e, ERR_UNAVAIL,
                m->state == IMPORT_PULL ? "a copy of KV has not ended in time"
                                        : "no KV came from the other engine in time");
        handoff_import_lose(h, m, &e);
    }
}
