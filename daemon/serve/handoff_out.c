/* daemon/serve/handoff_out.c - blocks that wait for a reader. A chain is given back as a
 * whole: a block must not go before those that follow it (kvpool.c). */
#include "daemon/serve/handoff.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "daemon/serve/handoff_impl.h"

void handoff_export_free(struct handoff *h, struct kv_export *x)
{
    idmap_del(&h->exports, x->id);
    list_del(&x->link);
    free(x->blocks);
    free(x);
}

/* Nobody reads them any more. */
static void export_end(struct handoff *h, struct kv_export *x, bool forced)
{
    struct handoff_act *a = handoff_act(h, HANDOFF_UNPIN, x->id);

    a->forced = forced;
    a->ids = x->blocks;
    a->n = x->n;
    h->st.export_blocks -= x->n;
    if (x->state == EXPORT_QUARANTINE)
        h->st.quarantined_blocks -= x->n;
    x->blocks = NULL;
    handoff_export_free(h, x);
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
    if (x && x->state != EXPORT_OPEN) { /* the number again, which began anew */
        take_back(h, x);
        x = NULL;
    }
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
void handoff_export_read(struct handoff *h, struct kv_export *x)
{
    x->read = true;
    if (x->state != EXPORT_OPEN)
        export_end(h, x, false);
}

void handoff_acked(struct handoff *h, int64_t now, const struct wire_pulled *p)
{
    struct kv_export *x = idmap_get(&h->exports, p->id);

    if (!x || x->read || x->reader != p->reader) {
        h->st.late++;
        return;
    }
    if (p->final) {
        handoff_export_read(h, x);
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

void handoff_exports_tick(struct handoff *h, int64_t now)
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
