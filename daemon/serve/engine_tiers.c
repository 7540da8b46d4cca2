/* daemon/serve/engine_tiers.c - an engine's disk tier. */
#include "daemon/serve/engine_tiers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/loop.h"
#include "base/mem.h"
#include "daemon/serve/kvdisk.h"
#include "daemon/serve/modelhash.h"
#include "daemon/serve/ranks.h"

enum {
    AGAIN_US = 2000000, /* the file is another engine's, or fails: look again */
    FLUSH_US = 2000000, /* at the end; the daemon waits longer */
    TICK_US = 100000,   /* while something is read: its wait may be over */
    MOVES_MIN = 256
};

struct engine_tiers {
    const struct engine_cfg *cfg;
    const struct engine_loaded *l;
    struct wire_conn *conn;
    struct sched *sched;
    struct kvtier *tier;
    struct kvdisk *disk; /* NULL: not open (yet) */
    struct loop *loop;
    struct loop_fd *fd;
    struct loop_timer *timer;
    void (*settle)(void *arg);
    void *arg;
    int n_out;      /* jobs at the disk */
    bool told_busy; /* that the file is in use, or cannot be had */
    bool alarm;     /* the daemon was told to raise one */
    bool failing;   /* told; no writes until again_us */
    bool by_write;  /* what failed */
    bool gone;      /* the file has no name any more: it is opened anew */
    int64_t again_us;
    uint64_t torn;
};

/* ---- sizes ---- */

int engine_tiers_fit(const struct engine_cfg *cfg, size_t block_bytes, uint64_t ram_bytes,
                     struct sched_cfg *ret, struct err *e)
{
    uint64_t host = (uint64_t)cfg->kv_host_mib << 20,
             disk = (uint64_t)cfg->kv_disk_mib << 20;
    uint64_t n_host = host / block_bytes, n_disk = disk / block_bytes;
    int per_ctx = ret->max_ctx / ret->kv.block_tok + 1;

    if (disk && !host)
        return err_set(e, ERR_INVALID,
                       "a KV tier on disk (%lld MiB) needs one in host memory: set "
                       "kv.host_mib",
                       (long long)cfg->kv_disk_mib);
    if (!cfg->reuse || !host)
        return 0;
    if (host + ((uint64_t)cfg->kv_mib << 20) > ram_bytes)
        return err_set(e, ERR_NOFIT,
                       "%lld MiB of KV in host memory do not fit into %llu MiB: lower "
                       "kv.host_mib",
                       (long long)cfg->kv_host_mib, (unsigned long long)ram_bytes >> 20);
    if (n_host < (uint64_t)(cfg->layout.adp > 1 ? cfg->layout.adp : 1))
        return err_set(e, ERR_INVALID,
                       "%lld MiB of KV in host memory hold no block of %zu bytes",
                       (long long)cfg->kv_host_mib, block_bytes);
    ret->kv.n_host = n_host > INT32_MAX / 2 ? INT32_MAX / 2 : (int)n_host;
    ret->kv.n_disk = n_disk > INT32_MAX / 2 ? INT32_MAX / 2 : (int)n_disk;
    ret->kv.max_moves = 2 * per_ctx > MOVES_MIN ? 2 * per_ctx : MOVES_MIN;
    return 0;
}

/* ---- telling ---- */

static void tell(struct engine_tiers *t, enum wire_alarm alarm, const char *text)
{
    struct wire_note n = {.alarm = alarm};

    if (alarm)
        t->alarm = alarm == WIRE_ALARM_RAISE;
    snprintf(n.action, sizeof(n.action), "kv.disk");
    snprintf(n.text, sizeof(n.text), "%s", text);
    wire_send(t->conn, WIRE_NOTE, &(struct wire_part){&n, sizeof(n)}, 1, NULL);
}

/* A disk that is full, broken or gone is no reason to end: requests go on with what there
 * is in host memory. Said once, until it is well again. */
static void on_fault(struct engine_tiers *t, int why, bool write)
{
    char text[200];

    t->gone = t->gone || why == ENOENT;
    t->again_us = clock_now_us(clock_real()) + AGAIN_US;
    kvtier_hold_writes(t->tier, true);
    if (t->failing)
        return;
    t->failing = true;
    t->by_write = write;
    snprintf(text, sizeof(text), "KV on disk fails ('%.80s': %.40s): it stays in memory",
             t->cfg->kv_file,
             why == ENOENT ? "the file was removed" : strerrordesc_np(why));
    tell(t, WIRE_ALARM_RAISE, text);
}

static void on_well(struct engine_tiers *t)
{
    if (!t->failing)
        return;
    t->failing = false;
    kvtier_hold_writes(t->tier, false);
    tell(t, WIRE_ALARM_CLEAR, "KV goes to disk again");
}

/* ---- jobs ---- */

static int64_t next_look(const struct engine_tiers *t)
{
    if (t->n_out)
        return clock_now_us(clock_real()) + TICK_US;
    return t->failing ? t->again_us : -1;
}

static void drop_file(struct engine_tiers *t)
{
    loop_fd_del(t->fd);
    t->fd = NULL;
    kvdisk_close(t->disk);
    kvtier_forget_disk(t->tier);
    t->disk = NULL;
    t->gone = false;
    loop_timer_set(t->timer, t->again_us);
}

static void give_jobs(struct engine_tiers *t)
{
    struct iovec part[KVDISK_PIECES];
    struct kv_job j;

    while (kvtier_job(t->tier, &j)) {
        int n = ranks_host(t->l->x, j.host, part, KVDISK_PIECES);
        kvdisk_submit(t->disk, &j, part, n);
        t->n_out++;
    }
}

void engine_tiers_settle(struct engine_tiers *t)
{
    if (!t || !t->disk)
        return;
    if (t->gone) {
        if (t->n_out == 0)
            drop_file(t);
        return;
    }
    give_jobs(t);
    loop_timer_set(t->timer, next_look(t));
}

static void take_done(struct engine_tiers *t, const struct kvdisk_done *d)
{
    t->n_out--;
    t->torn += d->torn;
    if (d->torn && t->torn == 1)
        tell(t, WIRE_ALARM_NONE,
             "a block on disk is not as it was written: it is computed again");
    if (d->why)
        on_fault(t, d->why, d->write);
    else if (d->ok && d->write == t->by_write)
        on_well(t);
    kvtier_job_done(t->tier, d->id, d->ok);
}

static void on_disk(void *arg, int fd, uint32_t events)
{
    struct engine_tiers *t = arg;
    struct kvdisk_done d;

    (void)fd, (void)events;
    while (kvdisk_poll(t->disk, &d))
        take_done(t, &d);
    t->settle(t->arg);
}

void engine_tiers_flush(struct engine_tiers *t)
{
    int64_t until = clock_now_us(clock_real()) + FLUSH_US, left = FLUSH_US;
    struct kvdisk_done d;

    if (!t || !t->disk)
        return;
    kvtier_flush(t->tier);
    while (!t->failing && left > 0) {
        give_jobs(t);
        if (!t->n_out)
            return;
        if (kvdisk_wait(t->disk, left, &d))
            take_done(t, &d);
        left = until - clock_now_us(clock_real());
    }
}

/* ---- the file ---- */

static void found(void *arg, int32_t slot, const struct kv_key *k)
{
    struct engine_tiers *t = arg;

    kvtier_adopt(t->tier, slot, k);
}

/* The folder of the file, for its owner only. */
static int make_folder(const char *path, struct err *e)
{
    char *dir = xstrdup(path), *slash = strrchr(dir, '/');
    int rc = 0;

    if (slash && slash != dir) {
        *slash = '\0';
        if (mkdir(dir, 0700) < 0 && errno != EEXIST)
            rc = err_errno(e, ERR_IO, "cannot make the folder '%s' for KV", dir);
    }
    free(dir);
    return rc;
}

static int open_file(struct engine_tiers *t, struct err *e)
{
    struct iovec part[KVDISK_PIECES];
    struct kvdisk_cfg c = {.path = t->cfg->kv_file,
                           .n_slots = t->l->sched.kv.n_disk,
                           .block_tok = t->l->sched.kv.block_tok};
    char whose[256], hash[SHA256_CHARS + 1];
    int shards = t->cfg->layout.adp > 1 ? t->cfg->layout.adp : 1;

    if (modelhash(t->cfg->model, hash, e) < 0)
        return -1;
    snprintf(whose, sizeof(whose), "%s %s %s %s", hash, t->l->ready.layout,
             t->l->ready.kv_type, t->l->ready.isa);
    c.whose = whose;
    memcpy(c.secret, t->cfg->secret, sizeof(c.secret));
    for (int s = 0; s < shards; s++) { /* the largest of what shards hold */
        int n = ranks_host(t->l->x, c.n_slots ? t->l->sched.kv.n_host / shards * s : 0,
                           part, KVDISK_PIECES);
        size_t bytes = 0;
        for (int i = 0; i < n; i++)
            bytes += part[i].iov_len;
        c.data_bytes = bytes > c.data_bytes ? bytes : c.data_bytes;
    }
    if (make_folder(c.path, e) < 0 || kvdisk_open(&c, found, t, &t->disk, e) < 0)
        return -1;
    if (kvdisk_note(t->disk)[0])
        tell(t, WIRE_ALARM_NONE, kvdisk_note(t->disk));
    return loop_fd_add(t->loop, kvdisk_fd(t->disk), EPOLLIN, on_disk, t, &t->fd, e);
}

/* A file that cannot be had is no reason not to serve: it is said once, and tried again.
 */
static void try_file(struct engine_tiers *t)
{
    struct err e;

    if (open_file(t, &e) == 0) {
        t->told_busy = false;
        kvtier_hold_writes(t->tier, false);
        if (t->alarm && !t->failing)
            tell(t, WIRE_ALARM_CLEAR, "the file of KV on disk is there again");
        return;
    }
    loop_timer_set(t->timer, clock_now_us(clock_real()) + AGAIN_US);
    if (!t->told_busy)
        tell(t, e.code == ERR_BUSY ? WIRE_ALARM_NONE : WIRE_ALARM_RAISE, e.msg);
    t->told_busy = true;
}

static void on_timer(void *arg)
{
    struct engine_tiers *t = arg;

    if (!t->disk) {
        try_file(t);
    } else if (t->failing && clock_now_us(clock_real()) >= t->again_us) {
        t->again_us += AGAIN_US;
        kvtier_hold_writes(t->tier, false); /* the next write tells */
    }
    t->settle(t->arg);
}

int engine_tiers_new(const struct engine_cfg *cfg, const struct engine_loaded *l,
                     struct wire_conn *conn, struct sched *s, struct loop *loop,
                     void (*settle)(void *arg), void *arg, struct engine_tiers **ret,
                     struct err *e)
{
    struct engine_tiers *t;

    *ret = NULL;
    if (!sched_tier(s) || !l->sched.kv.n_disk || cfg->null_exec)
        return 0;
    if (!cfg->kv_file || cfg->kv_file[0] != '/')
        return err_set(e, ERR_INVALID, "kv-file must be an absolute path");
    t = *ret = xcalloc(1, sizeof(*t));
    *t = (struct engine_tiers){.cfg = cfg,
                               .l = l,
                               .conn = conn,
                               .sched = s,
                               .tier = sched_tier(s),
                               .loop = loop,
                               .settle = settle,
                               .arg = arg};
    t->timer = loop_timer_new(loop, on_timer, t);
    try_file(t);
    return 0;
}

void engine_tiers_free(struct engine_tiers *t)
{
    if (!t)
        return;
    loop_fd_del(t->fd);
    loop_timer_free(t->timer);
    kvdisk_close(t->disk);
    free(t);
}

void engine_tiers_wipe(struct engine_tiers *t, struct sched *s)
{
    if (sched_tier(s))
        kvtier_wipe(sched_tier(s));
    if (t && t->disk)
        kvdisk_wipe(t->disk);
}
