/* daemon/serve/kvtier.c - KV blocks that left the device.
 *
 * A host slot is free, cached (on its shard's LRU list, findable) or held by a job: by a
 * write while it is copied to disk, by a read until it is there. `step` of a slot is the
 * last step that copies to or from it: a job waits until that one is done, since it works
 * beside the steps; before the step is formed it is PENDING. Disk slots likewise, without
 * steps.
 *
 * Each tier holds what those above it do not, so that all of them together find what one
 * LRU of their sum would. What moves up leaves a copy behind, at the cold end of its
 * list: it costs room only until that is wanted, and if it is still there when the block
 * comes down again, nothing is copied. Blocks go to disk when they are among the coldest
 * of the host tier (kvtier_disk.c, margin()), so that what falls out of it is on disk by
 * then; there it is the hottest. A slot that can be given up without loss (`above`, or on
 * disk) goes before a colder one that cannot. */
#include "daemon/serve/kvtier.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/serve/kvtier_impl.h"

#define PENDING UINT64_MAX

enum { LOOK_TAKE = 64 }; /* cold slots looked at for one that is no loss */

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
    t->above = xcalloc((size_t)t->cfg.n_host + 1, sizeof(*t->above));
    t->disk_of = xmalloc(((size_t)t->cfg.n_host + 1) * sizeof(*t->disk_of));
    t->host_of = xmalloc(((size_t)t->cfg.n_disk + 1) * sizeof(*t->host_of));
    memset(t->disk_of, 0xff, ((size_t)t->cfg.n_host + 1) * sizeof(*t->disk_of));
    memset(t->host_of, 0xff, ((size_t)t->cfg.n_disk + 1) * sizeof(*t->host_of));
    t->moves = xcalloc((size_t)cfg->max_moves + 1, sizeof(*t->moves));
    t->want = xcalloc(KVTIER_WANTS, sizeof(*t->want));
    for (int i = 0; i < KVTIER_WANTS; i++)
        t->want[i].key.toks = xcalloc((size_t)cfg->block_tok, sizeof(int32_t));
    for (int i = 0; i < KVTIER_JOBS; i++)
        t->job[i].toks = xcalloc((size_t)cfg->block_tok, sizeof(int32_t));
    return t;
}

void kvtier_free(struct kvtier *t)
{
    if (!t)
        return;
    for (int i = 0; i < KVTIER_WANTS; i++)
        free((int32_t *)t->want[i].key.toks);
    for (int i = 0; i < KVTIER_JOBS; i++)
        free(t->job[i].toks);
    free(t->want);
    kvpool_done(&t->host);
    kvpool_done(&t->disk);
    free(t->step);
    free(t->above);
    free(t->disk_of);
    free(t->host_of);
    free(t->moves);
    free(t);
}

/* ---- who holds what ---- */

void kvtier_link(struct kvtier *t, int32_t host, int32_t disk)
{
    t->disk_of[host] = disk;
    t->host_of[disk] = host;
}

void kvtier_unlink(struct kvtier *t, int32_t host)
{
    int32_t disk = t->disk_of[host];

    if (disk >= 0)
        t->host_of[disk] = -1;
    t->disk_of[host] = -1;
}

/* On disk it is a copy that the room is worth more than. */
void kvtier_spare_disk(struct kvtier *t, int32_t disk)
{
    if (disk >= 0 && t->disk.block[disk].indexed && !t->disk.block[disk].ref)
        kvpool_place(&t->disk, disk, -1);
}

/* Whoever asks next finds it here, not above: the hottest of the tier. */
void kvtier_use(struct kvtier *t, int32_t slot)
{
    t->above[slot] = false;
    if (!t->host.block[slot].ref)
        kvtier_to_end(&t->host, slot);
    for (int i = 0; i < KVTIER_JOBS; i++)
        t->job[i].used |= t->job[i].out && t->job[i].j.host == slot;
    kvtier_spare_disk(t, t->disk_of[slot]);
}

/* What it holds is on the device from now on. */
static void left_host(struct kvtier *t, int32_t slot)
{
    t->above[slot] = true;
    if (!t->host.block[slot].ref)
        kvpool_place(&t->host, slot, -1);
    kvtier_spare_disk(t, t->disk_of[slot]);
}

/* A cached host slot is given up: on disk it is the hottest. */
static void drop_host(struct kvtier *t, int32_t slot)
{
    int32_t disk = t->disk_of[slot];

    t->st.lost += !kvtier_no_loss(t, slot);
    if (disk >= 0 && !t->above[slot] && !t->disk.block[disk].ref)
        kvtier_to_end(&t->disk, disk);
    kvtier_unlink(t, slot);
    t->above[slot] = false;
    kvpool_forget(&t->host, slot); /* the next one to be taken */
}

/* The one to give up: the coldest that is no loss, or -1; quiet: none that steps use. */
static int32_t spare_host(const struct kvtier *t, int shard, bool quiet)
{
    int32_t slot = kvpool_coldest_cached(&t->host, shard);
    int look = t->cfg.n_disk ? LOOK_TAKE : 1; /* those above are the coldest */

    for (int i = 0; i < look && slot >= 0; i++, slot = t->host.block[slot].next)
        if (kvtier_no_loss(t, slot) && (!quiet || kvtier_settled(t, slot)))
            return slot;
    return -1;
}

/* A slot for a copy of the next step. */
static int32_t take_host(struct kvtier *t, int shard)
{
    int32_t cold = kvpool_coldest(&t->host, shard), spare;

    if (cold >= 0) {
        spare = spare_host(t, shard, false);
        drop_host(t, spare >= 0 ? spare : cold);
    }
    return kvpool_take(&t->host, shard);
}

/* One for a read, that no step is using; -1: later. While writes are possible what is on
 * its way to disk is not given up for it. */
int32_t kvtier_take_quiet(struct kvtier *t, int shard)
{
    int32_t cold = kvpool_coldest(&t->host, shard), slot;

    if (cold >= 0) {
        slot = spare_host(t, shard, true);
        if (slot < 0 && (!t->hold_writes || !kvtier_settled(t, cold)))
            return -1;
        drop_host(t, slot >= 0 ? slot : cold);
    }
    slot = kvpool_take(&t->host, shard);
    if (slot < 0 || kvtier_settled(t, slot))
        return slot;
    kvpool_unref(&t->host, slot); /* a free one that a wipe left */
    return -1;
}

void kvtier_fill(struct kv_pool *p, int32_t slot, const struct kv_key *k)
{
    kvpool_index(p, slot, k->depth, k->hash, k->before, k->toks);
    kvpool_unref(p, slot);
}

void kvtier_fill_host(struct kvtier *t, int32_t slot, const struct kv_key *k)
{
    int32_t disk = kvtier_at(&t->disk, k);

    kvtier_fill(&t->host, slot, k);
    t->above[slot] = false;
    if (disk >= 0) {
        kvtier_link(t, slot, disk);
        kvtier_spare_disk(t, disk);
    }
}

/* ---- copies of the next step ---- */

static void add_move(struct kvtier *t, int32_t block, int32_t slot, bool up)
{
    t->moves[t->n_moves++] = (struct kv_move){block, slot, up};
    t->step[slot] = PENDING;
}

void kvtier_down(struct kvtier *t, int shard, int32_t block, const struct kv_key *k)
{
    int32_t slot = kvtier_at(&t->host, k);

    if (slot >= 0) {
        kvtier_use(t, slot);
        return;
    }
    if (t->n_moves == t->cfg.max_moves || (slot = take_host(t, shard)) < 0) {
        t->st.lost += kvtier_at(&t->disk, k) < 0;
        return;
    }
    kvtier_fill_host(t, slot, k);
    add_move(t, block, slot, false);
    t->st.down++;
}

bool kvtier_up(struct kvtier *t, const struct kv_key *k, int32_t block)
{
    int32_t slot = kvtier_at(&t->host, k);

    if (slot < 0 || t->n_moves == t->cfg.max_moves)
        return false;
    left_host(t, slot);
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

/* ---- looks ---- */

enum kvtier_where kvtier_find(const struct kvtier *t, const struct kv_key *k)
{
    if (kvtier_at(&t->host, k) >= 0)
        return KVTIER_HOST;
    if (kvtier_at(&t->disk, k) < 0)
        return KVTIER_NOWHERE;
    return kvtier_coming(t, k) ? KVTIER_COMING : KVTIER_DISK;
}

void kvtier_touch(struct kvtier *t, const struct kv_key *k)
{
    int32_t slot = kvtier_at(&t->host, k);

    if (slot >= 0)
        kvtier_use(t, slot);
}

void kvtier_forget_all(struct kv_pool *p)
{
    for (int i = 0; i < p->n_blocks; i++)
        if (p->block[i].indexed)
            kvpool_forget(p, i);
}

void kvtier_wipe(struct kvtier *t)
{
    t->served += (uint64_t)t->n_want;
    t->n_want = 0;
    kvtier_forget_disk(t);
    memset(t->above, 0, (size_t)t->cfg.n_host * sizeof(*t->above));
    kvtier_forget_all(&t->host);
    for (int i = 0; i < KVTIER_JOBS; i++)
        t->job[i].wiped = true;
}

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

static int check_links(const struct kvtier *t, struct err *e)
{
    for (int i = 0; i < t->cfg.n_host; i++) {
        int32_t disk = t->disk_of[i];
        const struct kv_block *h = &t->host.block[i];

        if ((disk >= 0 || t->above[i]) && !h->indexed)
            return err_set(e, ERR_INTERNAL,
                           "host slot %d is on disk too, or moved up, "
                           "and holds nothing",
                           i);
        if (disk >= 0 && (t->host_of[disk] != i || !t->disk.block[disk].indexed ||
                          memcmp(&t->disk.block[disk].hash, &h->hash, sizeof(h->hash))))
            return err_set(e, ERR_INTERNAL, "host slot %d is not what is in disk slot %d",
                           i, disk);
    }
    for (int i = 0; i < t->cfg.n_disk; i++)
        if (t->host_of[i] >= 0 && t->disk_of[t->host_of[i]] != i)
            return err_set(e, ERR_INTERNAL, "disk slot %d is not in host slot %d", i,
                           t->host_of[i]);
    return 0;
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
    else
        rc = check_links(t, e);
    free(host);
    free(disk);
    return rc;
}
