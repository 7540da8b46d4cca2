/* daemon/serve/idmap.c - open addressing with linear probing, at most half full. A
 * deletion moves the entries behind it up, so there are no tombstones and a long-lived
 * map does not wear out. */
#include "daemon/serve/idmap.h"

#include <stdlib.h>

#include "base/mem.h"

void idmap_done(struct idmap *m)
{
    free(m->slot);
    *m = (struct idmap){0};
}

static size_t home(const struct idmap *m, uint64_t id)
{
    id ^= id >> 32;
    id *= 0x9E3779B97F4A7C15u;
    return (size_t)(id >> 20) & (m->cap - 1);
}

static size_t find(const struct idmap *m, uint64_t id)
{
    size_t i = home(m, id);

    while (m->slot[i].p && m->slot[i].id != id)
        i = (i + 1) & (m->cap - 1);
    return i;
}

void *idmap_get(const struct idmap *m, uint64_t id)
{
    return m->cap ? m->slot[find(m, id)].p : NULL;
}

static void grow(struct idmap *m)
{
    struct idmap old = *m;

    m->cap = old.cap ? old.cap * 2 : 64;
    m->slot = xcalloc(m->cap, sizeof(*m->slot));
    for (size_t i = 0; i < old.cap; i++)
        if (old.slot[i].p)
            m->slot[find(m, old.slot[i].id)] = old.slot[i];
    free(old.slot);
}

void idmap_put(struct idmap *m, uint64_t id, void *p)
{
    if ((m->n + 1) * 2 > m->cap)
        grow(m);
    m->slot[find(m, id)] = (struct idmap_slot){id, p};
    m->n++;
}

void idmap_del(struct idmap *m, uint64_t id)
{
    size_t hole = m->cap ? find(m, id) : 0, mask = m->cap - 1;

    if (!m->cap || !m->slot[hole].p)
        return;
    m->n--;
    for (size_t i = (hole + 1) & mask; m->slot[i].p; i = (i + 1) & mask) {
        /* may it move up to the hole: is its home not after the hole? */
        size_t from_home = (i - home(m, m->slot[i].id)) & mask;
        if (from_home < ((i - hole) & mask))
            continue;
        m->slot[hole] = m->slot[i];
        hole = i;
    }
    m->slot[hole].p = NULL;
}
