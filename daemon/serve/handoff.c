/* See handoff.h. */
#include "daemon/serve/handoff.h"

#include <stdlib.h>

#include "base/mem.h"
#include "daemon/serve/handoff_impl.h"

const struct handoff_cfg handoff_defaults = {
    .lease_us = 10 * 1000 * 1000,
    .quarantine_us = 60 * 1000 * 1000,
    .quarantine_blocks = 4096,
    .first_us = 60 * 1000 * 1000,
    .next_us = 10 * 1000 * 1000,
    .pull_us = 5 * 1000 * 1000,
    .tries = 3,
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

static void free_exports(struct handoff *h, struct list *head)
{
    list_for_safe(it, tmp, head)
    {
        handoff_export_free(h, list_entry(it, struct kv_export, link));
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
        handoff_import_free(h, list_entry(it, struct kv_import, link));
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

struct handoff_act *handoff_act(struct handoff *h, enum handoff_kind kind, uint64_t id)
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
                handoff_export_read(h, x);
        }
    err_set(&e, ERR_UNAVAIL, "the engine that computes the prompt has gone");
    list_for_safe(it, tmp, &h->in)
    {
        struct kv_import *m = list_entry(it, struct kv_import, link);
        if (m->peer == incarnation && !m->last)
            handoff_import_lose(h, m, &e);
    }
}

void handoff_tick(struct handoff *h, int64_t now)
{
    handoff_exports_tick(h, now);
    handoff_imports_tick(h, now);
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
        if (m->state == IMPORT_WAIT || m->state == IMPORT_PULL ||
            m->state == IMPORT_CLOSING)
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
    list_for(it, &h->open)
    {
        ret->exports++;
        ret->open += list_entry(it, struct kv_export, link)->state == EXPORT_OPEN;
    }
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
        ret->losing += m->state == IMPORT_LOST;
        ret->copies += m->pull != 0;
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
