/* daemon/serve/kvtier.c - KV blocks that left the device.
 *
 * A host slot is free, cached (on its shard's LRU list, findable) or held by a job: by a
 * write while it is copied to disk, by a read until it is there. `step` of a slot is the
 * last step that copies to or from it: a job waits until that one is done, since it works
 * beside the steps; before the step is formed it is PENDING. Disk slots likewise, without
 * steps. Writes go from the coldest host slot on, so that what falls out of the host tier
 * is on disk by then. */
#include "daemon/serve/kvtier.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/serve/kvpool.h"

#define PENDING UINT64_MAX

enum { LOOK = 1024, WANTS = 4096 }; /* cold slots looked at for a write; reads wanted */

struct want {
    int shard;
    struct kv_key key; /* toks: a copy of its own */
};

struct job {
    struct kv_job j;
    bool out, wiped; /* wiped: what it brings is of no use any more */
    int32_t *toks;
};

struct kvtier {
    bool hold_writes;
    struct kvtier_cfg cfg;
    struct kv_pool host, disk;
    uint64_t *step;       /* of each host slot */
    bool *saved;          /* likewise: on disk too */
    int n_unsaved;        /* of those that are findable */
    uint64_t done, moved; /* steps; moved: the last one with copies */
    struct kv_move *moves;
    int n_moves;
    struct want *want;
    int want_head, n_want;
    struct job job[KVTIER_JOBS];
    uint64_t jobs, wanted, served;
    struct kvtier_stats st;
};

struct kvtier *kvtier_new(const struct kvtier_cfg *cfg)
{
    struct kvtier *t = xcalloc(1, sizeof(*t));
    int shards = cfg->shards ? cfg->shards : 1;

    t->cfg = *cfg;
    t->cfg.shards = shards;
    t->cfg.n_host -= cfg->n_host % shards;
    t->cfg.n_disk -= cfg->n_disk % shards;
    kvpool_init(&t->host, t->cfg.n_host, cfg->block_tok, shards);
    kvpool_init(&t->disk, t->cfg.n_disk, cfg->block_tok, shards);
    t->step = xcalloc((size_t)t->cfg.n_host + 1, sizeof(*t->step));
    t->saved = xcalloc((size_t)t->cfg.n_host + 1, sizeof(*t->saved));
    t->moves = xcalloc((size_t)cfg->max_moves + 1, sizeof(*t->moves));
    t->want = xcalloc(WANTS, sizeof(*t->want));
    for (int i = 0; i < WANTS; i++)
        t->want[i].key.toks = xcalloc((size_t)cfg->block_tok, sizeof(int32_t));
    for (int i = 0; i < KVTIER_JOBS; i++)
        t->job[i].toks = xcalloc((size_t)cfg->block_tok, sizeof(int32_t));
    return t;
}

void kvtier_free(struct kvtier *t)
{
    if (!t)
        return;
    for (int i = 0; i < WANTS; i++)
        free((int32_t *)t->want[i].key.toks);
    for (int i = 0; i < KVTIER_JOBS; i++)
        free(t->job[i].toks);
    free(t->want);
    kvpool_done(&t->host);
    kvpool_done(&t->disk);
    free(t->step);
    free(t->saved);
    free(t->moves);
    free(t);
}

static int32_t find(const struct kv_pool *p, const struct kv_key *k)
{
    return p->n_blocks ? kvpool_find(p, k->hash, k->before, k->toks) : -1;
}

/* Used now: to the end of its list. */
static void touch(struct kv_pool *p, int32_t slot)
{
    kvpool_ref(p, slot);
    kvpool_unref(p, slot);
}

static struct kv_key key_of(const struct kv_pool *p, int32_t slot)
{
    const struct kv_block *b = &p->block[slot];

    return (struct kv_key){b->hash, b->before, b->depth, kvpool_toks(p, slot)};
}

/* A slot for a copy of the next step. */
static int32_t take_host(struct kvtier *t, int shard)
{
    int32_t cold = kvpool_coldest(&t->host, shard);

    if (cold >= 0 && !t->saved[cold]) {
        t->st.lost++;
        t->n_unsaved--;
    }
    return kvpool_take(&t->host, shard);
}

/* What a disk slot held is on disk no more. */
static int32_t take_disk(struct kvtier *t, int shard)
{
    int32_t cold = kvpool_coldest(&t->disk, shard), host;

    if (cold >= 0) {
        struct kv_key k = key_of(&t->disk, cold);
        host = find(&t->host, &k);
        if (host >= 0 && t->saved[host]) {
            t->saved[host] = false;
            t->n_unsaved++;
        }
    }
    return kvpool_take(&t->disk, shard);
}

static void fill(struct kv_pool *p, int32_t slot, const struct kv_key *k)
{
    kvpool_index(p, slot, k->depth, k->hash, k->before, k->toks);
    kvpool_unref(p, slot);
}

static void fill_host(struct kvtier *t, int32_t slot, const struct kv_key *k)
{
    fill(&t->host, slot, k);
    t->saved[slot] = find(&t->disk, k) >= 0;
    t->n_unsaved += !t->saved[slot];
}

/* ---- copies of the next step ---- */

static void add_move(struct kvtier *t, int32_t block, int32_t slot, bool up)
{
    t->moves[t->n_moves++] = (struct kv_move){block, slot, up};
    t->step[slot] = PENDING;
}

void kvtier_down(struct kvtier *t, int shard, int32_t block, const struct kv_key *k)
{
    int32_t slot = find(&t->host, k);

    if (slot >= 0) {
        if (!t->host.block[slot].ref)
            touch(&t->host, slot);
        return;
    }
    if (t->n_moves == t->cfg.max_moves || (slot = take_host(t, shard)) < 0) {
        t->st.lost += find(&t->disk, k) < 0;
        return;
    }
    fill_host(t, slot, k);
    add_move(t, block, slot, false);
    t->st.down++;
}

bool kvtier_up(struct kvtier *t, const struct kv_key *k, int32_t block)
{
    int32_t slot = find(&t->host, k);

    if (slot < 0 || t->n_moves == t->cfg.max_moves)
        return false;
    if (!t->host.block[slot].ref)
        touch(&t->host, slot);
    add_move(t, block, slot, true);
    t->st.up++;
    t->st.host_hit_tok += (uint64_t)t->cfg.block_tok;
    return true;
}

int kvtier_moves(struct kvtier *t, uint64_t number, struct kv_move *ret)
{
    int n = t->n_moves;

    for (int i = 0; i < n; i++) {
        ret[i] = t->moves[i];
        t->step[ret[i].slot] = number;
    }
    t->n_moves = 0;
    if (n)
        t->moved = number;
    return n;
}

bool kvtier_moving(const struct kvtier *t) { return t->n_moves || t->moved > t->done; }

void kvtier_step_done(struct kvtier *t, uint64_t number)
{
    if (number > t->done)
        t->done = number;
}

static bool settled(const struct kvtier *t, int32_t slot)
{
    return t->step[slot] <= t->done;
}

/* ---- disk ---- */

static bool same(const struct kv_key *a, const struct kv_key *b)
{
    return !memcmp(&a->hash, &b->hash, sizeof(a->hash));
}

static bool coming(const struct kvtier *t, const struct kv_key *k)
{
    for (int i = 0; i < KVTIER_JOBS; i++)
        if (t->job[i].out && !t->job[i].j.write && same(&t->job[i].j.key, k))
            return true;
    for (int i = 0; i < t->n_want; i++)
        if (same(&t->want[(t->want_head + i) % WANTS].key, k))
            return true;
    return false;
}

enum kvtier_where kvtier_find(const struct kvtier *t, const struct kv_key *k)
{
    if (find(&t->host, k) >= 0)
        return KVTIER_HOST;
    if (find(&t->disk, k) < 0)
        return KVTIER_NOWHERE;
    return coming(t, k) ? KVTIER_COMING : KVTIER_DISK;
}

void kvtier_touch(struct kvtier *t, const struct kv_key *k)
{
    int32_t slot = find(&t->host, k);

    if (slot >= 0 && !t->host.block[slot].ref)
        touch(&t->host, slot);
}

uint64_t kvtier_served(const struct kvtier *t) { return t->served; }

uint64_t kvtier_want(struct kvtier *t, int shard, const struct kv_key *k)
{
    struct want *w = &t->want[(t->want_head + t->n_want) % WANTS];
    int32_t *toks = (int32_t *)w->key.toks;

    if (kvtier_find(t, k) == KVTIER_COMING)
        return t->wanted; /* by now, at the latest */
    if (t->n_want == WANTS || kvtier_find(t, k) != KVTIER_DISK)
        return 0;
    memcpy(toks, k->toks, (size_t)t->cfg.block_tok * sizeof(*toks));
    w->shard = shard;
    w->key = *k;
    w->key.toks = toks;
    t->n_want++;
    return ++t->wanted;
}

static struct job *free_job(struct kvtier *t)
{
    for (int i = 0; i < KVTIER_JOBS; i++)
        if (!t->job[i].out)
            return &t->job[i];
    return NULL;
}

static void begin(struct kvtier *t, struct job *j, const struct kv_job *what,
                  struct kv_job *ret)
{
    memcpy(j->toks, what->key.toks, (size_t)t->cfg.block_tok * sizeof(*j->toks));
    j->j = *what;
    j->j.id = ++t->jobs;
    j->j.key.toks = j->toks;
    j->out = true;
    j->wiped = false;
    *ret = j->j;
}

/* The next read that still has a purpose, into a slot that no step is using. */
static bool read_job(struct kvtier *t, struct job *j, struct kv_job *ret)
{
    while (t->n_want) {
        struct want *w = &t->want[t->want_head];
        int32_t disk = find(&t->disk, &w->key), cold, host;

        if (disk >= 0 && find(&t->host, &w->key) < 0) {
            cold = kvpool_coldest(&t->host, w->shard);
            if (cold >= 0 && !settled(t, cold))
                return false; /* later */
            host = take_host(t, w->shard);
            if (host < 0)
                return false;
            if (!settled(t, host)) { /* a free one that a wipe left */
                kvpool_unref(&t->host, host);
                return false;
            }
            kvpool_ref(&t->disk, disk);
            begin(t, j, &(struct kv_job){.host = host, .disk = disk, .key = w->key}, ret);
        }
        t->want_head = (t->want_head + 1) % WANTS;
        t->n_want--;
        if (j->out)
            return true;
        t->served++;
    }
    return false;
}

/* The coldest host slot that is not on disk. */
static bool write_job(struct kvtier *t, struct job *j, struct kv_job *ret)
{
    for (int s = 0; s < t->cfg.shards && t->n_unsaved; s++) {
        int32_t host = kvpool_coldest_cached(&t->host, s);

        for (int i = 0; i < LOOK && host >= 0; i++, host = t->host.block[host].next) {
            int32_t disk;

            if (t->saved[host] || !settled(t, host))
                continue;
            if ((disk = take_disk(t, s)) < 0)
                break;
            kvpool_ref(&t->host, host);
            begin(t, j,
                  &(struct kv_job){.write = true,
                                   .host = host,
                                   .disk = disk,
                                   .key = key_of(&t->host, host)},
                  ret);
            return true;
        }
    }
    return false;
}

bool kvtier_job(struct kvtier *t, struct kv_job *ret)
{
    struct job *j = t->cfg.n_disk ? free_job(t) : NULL;

    return j && (read_job(t, j, ret) || (!t->hold_writes && write_job(t, j, ret)));
}

void kvtier_hold_writes(struct kvtier *t, bool hold) { t->hold_writes = hold; }

static void write_done(struct kvtier *t, const struct kv_job *j, bool ok)
{
    if (ok && find(&t->disk, &j->key) < 0)
        kvpool_index(&t->disk, j->disk, j->key.depth, j->key.hash, j->key.before,
                     j->key.toks);
    kvpool_unref(&t->disk, j->disk);
    kvpool_unref(&t->host, j->host);
    if (ok && t->host.block[j->host].indexed && !t->saved[j->host]) {
        t->saved[j->host] = true;
        t->n_unsaved--;
    }
    if (t->host.block[j->host].indexed && !t->host.block[j->host].ref)
        kvpool_make_coldest(&t->host, j->host); /* it was not used */
    t->st.written += ok;
}

static void read_done(struct kvtier *t, const struct kv_job *j, bool ok)
{
    t->served++;
    kvpool_unref(&t->disk, j->disk);
    if (!ok && t->disk.block[j->disk].indexed)
        kvpool_forget(&t->disk, j->disk); /* what is there cannot be read */
    if (!ok || find(&t->host, &j->key) >= 0) {
        kvpool_unref(&t->host, j->host);
        return;
    }
    fill_host(t, j->host, &j->key);
    t->st.read++;
    t->st.disk_hit_tok += (uint64_t)t->cfg.block_tok;
}

void kvtier_job_done(struct kvtier *t, uint64_t id, bool ok)
{
    for (int i = 0; i < KVTIER_JOBS; i++) {
        struct job *j = &t->job[i];

        if (!j->out || j->j.id != id)
            continue;
        (j->j.write ? write_done : read_done)(t, &j->j, ok && !j->wiped);
        t->st.failed += !ok;
        j->out = false;
        return;
    }
}

bool kvtier_adopt(struct kvtier *t, int32_t disk, const struct kv_key *k)
{
    if (disk < 0 || disk >= t->cfg.n_disk || find(&t->disk, k) >= 0 ||
        !kvpool_take_id(&t->disk, disk))
        return false;
    fill(&t->disk, disk, k);
    return true;
}

static void forget_all(struct kv_pool *p)
{
    for (int i = 0; i < p->n_blocks; i++)
        if (p->block[i].indexed)
            kvpool_forget(p, i);
}

void kvtier_wipe(struct kvtier *t)
{
    t->served += (uint64_t)t->n_want;
    t->n_want = 0;
    t->n_unsaved = 0;
    forget_all(&t->host);
    forget_all(&t->disk);
    for (int i = 0; i < KVTIER_JOBS; i++)
        t->job[i].wiped = true;
}

/* ---- looks ---- */

static int used(const struct kv_pool *p)
{
    int n = p->n_blocks;

    for (int i = 0; i < p->n_shards; i++)
        n -= p->shard[i].n_free;
    return n;
}

void kvtier_stats(const struct kvtier *t, struct kvtier_stats *ret)
{
    *ret = t->st;
    ret->n_host = t->cfg.n_host;
    ret->n_disk = t->cfg.n_disk;
    ret->host_used = used(&t->host);
    ret->disk_used = used(&t->disk);
}

int kvtier_check(const struct kvtier *t, struct err *e)
{
    int32_t *host = xcalloc((size_t)t->cfg.n_host + 1, sizeof(*host));
    int32_t *disk = xcalloc((size_t)t->cfg.n_disk + 1, sizeof(*disk));
    int rc;

    for (int i = 0; i < KVTIER_JOBS; i++)
        if (t->job[i].out) {
            host[t->job[i].j.host]++;
            disk[t->job[i].j.disk]++;
        }
    rc = kvpool_check(&t->host, host, false, e);
    if (rc < 0)
        err_wrap(e, "the host tier");
    else if ((rc = kvpool_check(&t->disk, disk, false, e)) < 0)
        err_wrap(e, "the disk tier");
    free(host);
    free(disk);
    return rc;
}
