/* daemon/serve/kvtier_disk.c - what goes between host memory and disk: the reads that are
 * wanted, the writes of what is about to fall out of the host tier, and at an engine's
 * end of all that is in it. */
#include <stdlib.h>

#include "daemon/serve/kvtier_impl.h"

enum { LOOK = 1024 }; /* cold slots looked at for a write */

static struct kv_key key_of(const struct kv_pool *p, int32_t slot)
{
    const struct kv_block *b = &p->block[slot];

    return (struct kv_key){b->hash, b->before, b->depth, kvpool_toks(p, slot)};
}

/* What a disk slot held is on disk no more. */
static int32_t take_disk(struct kvtier *t, int shard)
{
    int32_t cold = kvpool_coldest(&t->disk, shard);

    if (cold >= 0 && t->host_of[cold] >= 0)
        kvtier_unlink(t, t->host_of[cold]);
    else if (cold >= 0)
        t->st.lost++;
    return kvpool_take(&t->disk, shard);
}

/* ---- reads ---- */

static bool same(const struct kv_key *a, const struct kv_key *b)
{
    return !memcmp(&a->hash, &b->hash, sizeof(a->hash));
}

bool kvtier_coming(const struct kvtier *t, const struct kv_key *k)
{
    for (int i = 0; i < KVTIER_JOBS; i++)
        if (t->job[i].out && !t->job[i].j.write && same(&t->job[i].j.key, k))
            return true;
    for (int i = 0; i < t->n_want; i++)
        if (same(&t->want[(t->want_head + i) % KVTIER_WANTS].key, k))
            return true;
    return false;
}

uint64_t kvtier_served(const struct kvtier *t) { return t->served; }

uint64_t kvtier_want(struct kvtier *t, int shard, const struct kv_key *k)
{
    struct kvtier_want *w = &t->want[(t->want_head + t->n_want) % KVTIER_WANTS];
    int32_t *toks = (int32_t *)w->key.toks, disk;

    if (kvtier_find(t, k) == KVTIER_COMING)
        return t->wanted; /* by now, at the latest */
    if (t->n_want == KVTIER_WANTS || kvtier_find(t, k) != KVTIER_DISK)
        return 0;
    disk = kvtier_at(&t->disk, k);
    if (!t->disk.block[disk].ref)
        kvtier_to_end(&t->disk, disk); /* not to go before it is read */
    memcpy(toks, k->toks, (size_t)t->cfg.block_tok * sizeof(*toks));
    w->shard = shard;
    w->key = *k;
    w->key.toks = toks;
    t->n_want++;
    return ++t->wanted;
}

static struct kvtier_job *free_job(struct kvtier *t)
{
    for (int i = 0; i < KVTIER_JOBS; i++)
        if (!t->job[i].out)
            return &t->job[i];
    return NULL;
}

static void begin(struct kvtier *t, struct kvtier_job *j, const struct kv_job *what,
                  struct kv_job *ret)
{
    memcpy(j->toks, what->key.toks, (size_t)t->cfg.block_tok * sizeof(*j->toks));
    j->j = *what;
    j->j.id = ++t->jobs;
    j->j.key.toks = j->toks;
    j->out = true;
    j->wiped = j->used = false;
    *ret = j->j;
}

/* The next read that still has a purpose, into a slot that no step is using. */
static bool read_job(struct kvtier *t, struct kvtier_job *j, struct kv_job *ret)
{
    while (t->n_want) {
        struct kvtier_want *w = &t->want[t->want_head];
        int32_t disk = kvtier_at(&t->disk, &w->key), host;

        if (disk >= 0 && kvtier_at(&t->host, &w->key) < 0) {
            host = kvtier_take_quiet(t, w->shard);
            if (host < 0)
                return false; /* later */
            kvpool_ref(&t->disk, disk);
            begin(t, j, &(struct kv_job){.host = host, .disk = disk, .key = w->key}, ret);
        }
        t->want_head = (t->want_head + 1) % KVTIER_WANTS;
        t->n_want--;
        if (j->out)
            return true;
        t->served++;
    }
    return false;
}

static bool write_of(struct kvtier *t, int shard, int32_t host, struct kvtier_job *j,
                     struct kv_job *ret)
{
    int32_t disk = take_disk(t, shard);

    if (disk < 0)
        return false;
    kvpool_ref(&t->host, host);
    begin(t, j,
          &(struct kv_job){
              .write = true, .host = host, .disk = disk, .key = key_of(&t->host, host)},
          ret);
    return true;
}

/* So many slots of a shard's host tier are to be free, no loss, or on their way. */
static int margin(const struct kvtier *t)
{
    int host = t->cfg.n_host / t->cfg.shards, disk = t->cfg.n_disk / t->cfg.shards;
    int n = host / 8 > 2 * KVTIER_JOBS ? host / 8 : 2 * KVTIER_JOBS;

    n = n > host / 2 ? host / 2 : n;
    n = n > disk / 4 ? disk / 4 : n; /* else copies would push out each other */
    n = n > LOOK ? LOOK : n;
    return n ? n : 1;
}

static int writes(const struct kvtier *t, int shard)
{
    int n = 0;

    for (int i = 0; i < KVTIER_JOBS; i++)
        n += t->job[i].out && t->job[i].j.write &&
             kvpool_shard(&t->host, t->job[i].j.host) == shard;
    return n;
}

/* The coldest host slot of the margin that would be a loss. */
static bool write_job(struct kvtier *t, struct kvtier_job *j, struct kv_job *ret)
{
    for (int s = 0; s < t->cfg.shards; s++) {
        int32_t host = kvpool_coldest_cached(&t->host, s);

        for (int n = t->host.shard[s].n_free + writes(t, s); n < margin(t) && host >= 0;
             n++, host = t->host.block[host].next)
            if (!kvtier_no_loss(t, host) && kvtier_settled(t, host) &&
                write_of(t, s, host, j, ret))
                return true;
    }
    return false;
}

/* The hottest one that is not on disk, as long as what makes room there is colder. */
static bool flush_job(struct kvtier *t, struct kvtier_job *j, struct kv_job *ret)
{
    for (int s = 0; s < t->cfg.shards; s++) {
        int32_t cold = kvpool_coldest(&t->disk, s), host = t->host.shard[s].lru_tail;

        for (; host >= 0 && (cold < 0 || host != t->host_of[cold]);
             host = t->host.block[host].prev)
            if (t->disk_of[host] < 0 && kvtier_settled(t, host) &&
                write_of(t, s, host, j, ret))
                return true;
    }
    return false;
}

bool kvtier_job(struct kvtier *t, struct kv_job *ret)
{
    struct kvtier_job *j = t->cfg.n_disk ? free_job(t) : NULL;

    if (!j)
        return false;
    if (t->flushing)
        return flush_job(t, j, ret);
    return read_job(t, j, ret) || (!t->hold_writes && write_job(t, j, ret));
}

/* What moved up may be lost with the device: it is as hot as what was used last. */
void kvtier_flush(struct kvtier *t)
{
    int32_t slot, next;

    t->flushing = true;
    for (int s = 0; s < t->cfg.shards; s++) {
        for (slot = kvpool_coldest_cached(&t->host, s); slot >= 0; slot = next) {
            next = t->host.block[slot].next;
            if (t->above[slot])
                kvtier_use(t, slot);
        }
        for (slot = kvpool_coldest_cached(&t->host, s); slot >= 0;
             slot = t->host.block[slot].next)
            if (t->disk_of[slot] >= 0 && !t->disk.block[t->disk_of[slot]].ref)
                kvtier_to_end(&t->disk, t->disk_of[slot]);
    }
}

void kvtier_hold_writes(struct kvtier *t, bool hold) { t->hold_writes = hold; }

/* A host slot that a write held is back in its place: writes go from the coldest on, so
 * it is behind those that are no loss already. */
static void back_in_place(struct kvtier *t, int32_t host)
{
    int32_t at = kvpool_coldest_cached(&t->host, kvpool_shard(&t->host, host)),
            after = -1;

    for (int i = 0; i < LOOK && at >= 0 && at != host && kvtier_no_loss(t, at);
         i++, at = t->host.block[at].next)
        after = at;
    kvpool_place(&t->host, host, t->above[host] ? -1 : after);
}

static void write_done(struct kvtier *t, const struct kvtier_job *j, bool ok)
{
    int32_t host = j->j.host, disk = j->j.disk;
    const struct kv_key *k = &j->j.key;

    if (ok && kvtier_at(&t->disk, k) < 0)
        kvpool_index(&t->disk, disk, k->depth, k->hash, k->before, k->toks);
    kvpool_unref(&t->disk, disk);
    kvpool_unref(&t->host, host);
    if (t->host.block[host].indexed && !t->host.block[host].ref && !j->used &&
        !t->flushing)
        back_in_place(t, host);
    if (t->disk.block[disk].indexed && t->host.block[host].indexed) {
        kvtier_link(t, host, disk);
        if (j->used || t->above[host])
            kvtier_spare_disk(t, disk);
    }
    t->st.written += ok;
}

static void read_done(struct kvtier *t, const struct kvtier_job *j, bool ok)
{
    int32_t host = j->j.host, disk = j->j.disk;

    t->served++;
    kvpool_unref(&t->disk, disk);
    if (!ok && t->disk.block[disk].indexed) { /* what is there cannot be read */
        if (t->host_of[disk] >= 0)
            kvtier_unlink(t, t->host_of[disk]);
        kvpool_forget(&t->disk, disk);
    }
    if (!ok || kvtier_at(&t->host, &j->j.key) >= 0) {
        kvpool_unref(&t->host, host);
        kvtier_spare_disk(t, disk);
        return;
    }
    kvtier_fill_host(t, host, &j->j.key);
    t->st.read++;
    t->st.disk_hit_tok += (uint64_t)t->cfg.block_tok;
}

void kvtier_job_done(struct kvtier *t, uint64_t id, bool ok)
{
    for (int i = 0; i < KVTIER_JOBS; i++) {
        struct kvtier_job *j = &t->job[i];

        if (!j->out || j->j.id != id)
            continue;
        (j->j.write ? write_done : read_done)(t, j, ok && !j->wiped);
        t->st.failed += !ok;
        j->out = false;
        return;
    }
}

bool kvtier_adopt(struct kvtier *t, int32_t disk, const struct kv_key *k)
{
    int32_t host;

    if (disk < 0 || disk >= t->cfg.n_disk || kvtier_at(&t->disk, k) >= 0 ||
        !kvpool_take_id(&t->disk, disk))
        return false;
    kvtier_fill(&t->disk, disk, k);
    host = kvtier_at(&t->host, k);
    if (host >= 0) {
        kvtier_link(t, host, disk);
        kvtier_spare_disk(t, disk);
    }
    return true;
}

void kvtier_forget_disk(struct kvtier *t)
{
    for (int i = 0; i < t->cfg.n_host; i++)
        kvtier_unlink(t, i);
    kvtier_forget_all(&t->disk);
}
