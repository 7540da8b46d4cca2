/* See handoff.h. */
#include "daemon/serve/handoff.h"

#include <stdlib.h>
#include <string.h>

#include "base/list.h"
#include "base/mem.h"
#include "daemon/serve/idmap.h"

const struct handoff_cfg handoff_defaults = {
    .lease_us = 10 * 1000 * 1000,
    .quarantine_us = 60 * 1000 * 1000,
    .quarantine_blocks = 4096,
    .first_us = 60 * 1000 * 1000,
    .next_us = 10 * 1000 * 1000,
    .pull_us = 5 * 1000 * 1000,
    .tries = 3,
};

enum export_state { EXPORT_OPEN, EXPORT_SENT, EXPORT_QUARANTINE };
struct kv_export {
    struct list link; /* by age in its state */
    uint64_t id, reader;
    enum export_state state;
    bool read; /* the reader has said its last word */
    int32_t *blocks;
    int n, cap;
    int64_t until;
};

enum import_state {
    IMPORT_QUEUED,
    IMPORT_WAIT,
    IMPORT_PULL,
    IMPORT_LOST,
    IMPORT_CLOSING
};
struct kv_import {
    struct list link;
    uint64_t id, peer;
    enum import_state state;
    bool let_go;   /* not in by_id any more */
    uint64_t pull; /* that copies; 0 = none */
    bool stale;    /* its result is of no use */
    int pull_upto, tries, block_tok;
    int have, n_tok, upto; /* upto: offered */
    struct wire_block *blocks;
    int n, cap;
    int32_t *gen;
    int n_gen;
    bool offered, last;
    int64_t until, last_us, copy_us;
    uint64_t bytes;
};

struct handoff {
    struct handoff_cfg cfg;
    struct idmap exports, imports;
    struct list open, quarantine; /* OPEN and SENT; QUARANTINE, oldest first */
    struct list in;
    uint64_t pulls;
    struct handoff_act *acts[2];
    size_t n_acts[2], cap_acts[2];
    int box;
    struct handoff_stats st;
};

struct handoff *handoff_new(const struct handoff_cfg *cfg)
{
    struct handoff *h = xcalloc(1, sizeof(*h));

    h->cfg = *cfg;
    list_init(&h->open);
    list_init(&h->quarantine);
    list_init(&h->in);
    return h;
}

static void acts_clear(struct handoff *h, int box)
{
    for (size_t i = 0; i < h->n_acts[box]; i++) {
        free(h->acts[box][i].ids);
        free(h->acts[box][i].blocks);
    }
    h->n_acts[box] = 0;
}

static void export_free(struct handoff *h, struct kv_export *x)
{
    idmap_del(&h->exports, x->id);
    list_del(&x->link);
    free(x->blocks);
    free(x);
}

static void import_free(struct handoff *h, struct kv_import *m)
{
    if (!m->let_go)
        idmap_del(&h->imports, m->id);
    list_del(&m->link);
    free(m->blocks);
    free(m->gen);
    free(m);
}

static void free_exports(struct handoff *h, struct list *head)
{
    list_for_safe(it, tmp, head)
    {
        export_free(h, list_entry(it, struct kv_export, link));
    }
}

void handoff_free(struct handoff *h)
{
    if (!h)
        return;
    free_exports(h, &h->open);
    free_exports(h, &h->quarantine);
    list_for_safe(it, tmp, &h->in)
    {
        import_free(h, list_entry(it, struct kv_import, link));
    }
    for (int i = 0; i < 2; i++) {
        acts_clear(h, i);
        free(h->acts[i]);
    }
    idmap_done(&h->exports);
    idmap_done(&h->imports);
    free(h);
}

/* ---- actions ---- */

static struct handoff_act *act(struct handoff *h, enum handoff_kind kind, uint64_t id)
{
    int b = h->box;

    if (h->n_acts[b] == h->cap_acts[b]) {
        h->cap_acts[b] = h->cap_acts[b] ? h->cap_acts[b] * 2 : 32;
        h->acts[b] = xrealloc(h->acts[b], h->cap_acts[b] * sizeof(*h->acts[b]));
    }
    struct handoff_act *a = &h->acts[b][h->n_acts[b]++];
    *a = (struct handoff_act){.kind = kind, .id = id};
    return a;
}

size_t handoff_acts(struct handoff *h, const struct handoff_act **ret)
{
    int b = h->box;

    h->box = !b;
    acts_clear(h, h->box);
    *ret = h->acts[b];
    return h->n_acts[b];
}

/* ---- exports ---- */

/* Nobody reads them any more. */
static void export_end(struct handoff *h, struct kv_export *x, bool forced)
{
    struct handoff_act *a = act(h, HANDOFF_UNPIN, x->id);

    a->forced = forced;
    a->ids = x->blocks;
    a->n = x->n;
    h->st.export_blocks -= x->n;
    if (x->state == EXPORT_QUARANTINE)
        h->st.quarantined_blocks -= x->n;
    x->blocks = NULL;
    export_free(h, x);
}

static void take_back(struct handoff *h, struct kv_export *x)
{
    h->st.taken_back += (uint64_t)x->n;
    export_end(h, x, true);
}

void handoff_export(struct handoff *h, int64_t now, uint64_t id, uint64_t reader,
                    const int32_t *blocks, int n)
{
    struct kv_export *x = idmap_get(&h->exports, id);

    (void)now;
    if (!x) {
        x = xcalloc(1, sizeof(*x));
        x->id = id;
        x->reader = reader;
        list_push(&h->open, &x->link);
        idmap_put(&h->exports, id, x);
    }
    while (x->n + n > x->cap) {
        x->cap = x->cap ? x->cap * 2 : 64;
        x->blocks = xrealloc(x->blocks, (size_t)x->cap * sizeof(*x->blocks));
    }
    if (n)
        memcpy(x->blocks + x->n, blocks, (size_t)n * sizeof(*blocks));
    x->n += n;
    h->st.export_blocks += n;
}

void handoff_export_end(struct handoff *h, int64_t now, uint64_t id)
{
    struct kv_export *x = idmap_get(&h->exports, id);

    if (!x || x->state != EXPORT_OPEN)
        return;
    x->state = EXPORT_SENT;
    x->until = now + h->cfg.lease_us;
    if (x->read)
        export_end(h, x, false);
}

/* A chain is unpinned as a whole, so not before the last of it is known. */
static void read_by(struct handoff *h, struct kv_export *x)
{
    x->read = true;
    if (x->state != EXPORT_OPEN)
        export_end(h, x, false);
}

void handoff_acked(struct handoff *h, int64_t now, const struct wire_pulled *p)
{
    struct kv_export *x = idmap_get(&h->exports, p->id);

    if (!x || x->read) {
        h->st.late++;
        return;
    }
    if (p->final) {
        read_by(h, x);
    } else if (x->state == EXPORT_SENT) {
        x->until = now + h->cfg.lease_us;
    }
}

static void to_quarantine(struct handoff *h, int64_t now, struct kv_export *x)
{
    x->state = EXPORT_QUARANTINE;
    x->until = now + h->cfg.quarantine_us;
    list_del(&x->link);
    list_push(&h->quarantine, &x->link);
    h->st.quarantines++;
    h->st.quarantined_blocks += x->n;
}

static void tick_exports(struct handoff *h, int64_t now)
{
    list_for_safe(it, tmp, &h->open)
    {
        struct kv_export *x = list_entry(it, struct kv_export, link);
        if (x->state == EXPORT_SENT && x->until <= now)
            to_quarantine(h, now, x);
    }
    list_for_safe(it, tmp, &h->quarantine)
    {
        struct kv_export *x = list_entry(it, struct kv_export, link);
        if (x->until > now && h->st.quarantined_blocks <= h->cfg.quarantine_blocks)
            break;
        take_back(h, x);
    }
}

/* ---- imports ---- */

static void tell_pulled(struct handoff *h, const struct kv_import *m, bool final,
                        uint64_t bytes, int64_t us)
{
    struct handoff_act *a = act(h, HANDOFF_PULLED, m->id);

    a->peer = m->peer;
    a->pulled = (struct wire_pulled){.id = m->id,
                                     .incarnation = m->peer,
                                     .upto = m->have,
                                     .final = final,
                                     .bytes = bytes,
                                     .us = us};
}

/* Not wanted any more: over, or when its pull is back. */
static void let_go(struct handoff *h, struct kv_import *m)
{
    idmap_del(&h->imports, m->id);
    m->let_go = true;
    if (m->pull) {
        m->state = IMPORT_CLOSING;
        return;
    }
    tell_pulled(h, m, true, 0, 0);
    import_free(h, m);
}

static void lose(struct handoff *h, struct kv_import *m, const struct err *why)
{
    struct handoff_act *a;

    if (m->state == IMPORT_LOST || m->state == IMPORT_CLOSING)
        return;
    m->state = IMPORT_LOST;
    m->stale = true;
    h->st.lost++;
    a = act(h, HANDOFF_LOST, m->id);
    a->peer = m->peer;
    a->why = *why;
}

static void begin_pull(struct handoff *h, int64_t now, struct kv_import *m)
{
    struct handoff_act *a = act(h, HANDOFF_PULL, m->id);
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
    struct handoff_act *a = act(h, HANDOFF_DONE, m->id);

    a->peer = m->peer;
    a->bytes = m->bytes;
    a->copy_us = m->copy_us;
    a->wait_us = now - m->last_us;
    h->st.done++;
    import_free(h, m);
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
        lose(h, m, &e);
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
        lose(h, m, why);
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
            import_free(h, m);
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

    (void)now;
    if (!m) {
        h->st.late++;
        return;
    }
    h->st.recomputed++;
    let_go(h, m);
}

void handoff_import_end(struct handoff *h, int64_t now, uint64_t id)
{
    struct kv_import *m = idmap_get(&h->imports, id);

    (void)now;
    if (m)
        let_go(h, m);
}

void handoff_fail(struct handoff *h, int64_t now, uint64_t id, const struct err *why)
{
    struct kv_import *m = idmap_get(&h->imports, id);

    (void)now;
    if (m)
        lose(h, m, why);
}

/* The request is told lost; a pull that copies goes on in vain. */
static void tick_imports(struct handoff *h, int64_t now)
{
    struct err e;

    list_for_safe(it, tmp, &h->in)
    {
        struct kv_import *m = list_entry(it, struct kv_import, link);
        if ((m->state != IMPORT_WAIT && m->state != IMPORT_PULL) || m->until > now)
            continue;
        err_set(&e, ERR_UNAVAIL,
                m->state == IMPORT_PULL ? "a copy of KV has not ended in time"
                                        : "no KV came from the other engine in time");
        lose(h, m, &e);
    }
}

/* ---- both ---- */

void handoff_peer_gone(struct handoff *h, int64_t now, uint64_t incarnation)
{
    struct list *heads[] = {&h->open, &h->quarantine};
    struct err e;

    (void)now;
    for (int i = 0; i < 2; i++)
        list_for_safe(it, tmp, heads[i])
        {
            struct kv_export *x = list_entry(it, struct kv_export, link);
            if (x->reader == incarnation && !x->read)
                read_by(h, x);
        }
    err_set(&e, ERR_UNAVAIL, "the engine that computes the prompt has gone");
    list_for_safe(it, tmp, &h->in)
    {
        struct kv_import *m = list_entry(it, struct kv_import, link);
        if (m->peer == incarnation && !m->last)
            lose(h, m, &e);
    }
}

void handoff_tick(struct handoff *h, int64_t now)
{
    tick_exports(h, now);
    tick_imports(h, now);
}

static void earlier(int64_t *at, int64_t t)
{
    if (*at < 0 || t < *at)
        *at = t;
}

int64_t handoff_deadline(const struct handoff *h)
{
    int64_t at = -1;

    list_for(it, &h->open)
    {
        const struct kv_export *x = list_entry(it, struct kv_export, link);
        if (x->state == EXPORT_SENT)
            earlier(&at, x->until);
    }
    list_for(it, &h->quarantine)
    {
        earlier(&at, list_entry(it, struct kv_export, link)->until);
    }
    list_for(it, &h->in)
    {
        const struct kv_import *m = list_entry(it, struct kv_import, link);
        if (m->state == IMPORT_WAIT || m->state == IMPORT_PULL)
            earlier(&at, m->until);
    }
    return at;
}

bool handoff_reads(const struct handoff *h, uint64_t incarnation)
{
    list_for(it, &h->in)
    {
        if (list_entry(it, struct kv_import, link)->peer == incarnation)
            return true;
    }
    return false;
}

void handoff_stats(const struct handoff *h, struct handoff_stats *ret)
{
    *ret = h->st;
    list_for(it, &h->open) ret->exports++;
    list_for(it, &h->quarantine)
    {
        ret->exports++;
        ret->quarantined++;
    }
    list_for(it, &h->in)
    {
        const struct kv_import *m = list_entry(it, struct kv_import, link);
        ret->queued += m->state == IMPORT_QUEUED;
        ret->waiting += m->state == IMPORT_WAIT || m->state == IMPORT_LOST;
        ret->pulling += m->state == IMPORT_PULL;
        ret->closing += m->state == IMPORT_CLOSING;
    }
}

int handoff_check(const struct handoff *h, struct err *e)
{
    const struct list *heads[] = {&h->open, &h->quarantine};
    int n_blocks = 0, n_quarantined = 0, n_named = 0;
    size_t n = 0;

    for (int i = 0; i < 2; i++)
        list_for(it, heads[i])
        {
            const struct kv_export *x = list_entry(it, struct kv_export, link);
            n++;
            n_blocks += x->n;
            n_quarantined += i ? x->n : 0;
            if ((x->state == EXPORT_QUARANTINE) != (i == 1) ||
                (x->read && x->state != EXPORT_OPEN) ||
                idmap_get(&h->exports, x->id) != x)
                return err_set(e, ERR_INTERNAL, "an export is in the wrong place");
        }
    list_for(it, &h->in)
    {
        const struct kv_import *m = list_entry(it, struct kv_import, link);
        n_named += !m->let_go;
        if (m->let_go != (m->state == IMPORT_CLOSING) ||
            (m->state == IMPORT_PULL) != (m->pull && !m->stale && !m->let_go) ||
            m->have > m->n_tok || m->upto > m->n_tok ||
            (!m->let_go && idmap_get(&h->imports, m->id) != m))
            return err_set(e, ERR_INTERNAL, "an import is in the wrong state");
    }
    if (n != h->exports.n || (size_t)n_named != h->imports.n ||
        n_blocks != h->st.export_blocks || n_quarantined != h->st.quarantined_blocks)
        return err_set(e, ERR_INTERNAL,
                       "%d blocks are exported and %d in quarantine, counted as %d and "
                       "%d",
                       n_blocks, n_quarantined, h->st.export_blocks,
                       h->st.quarantined_blocks);
    return 0;
}
