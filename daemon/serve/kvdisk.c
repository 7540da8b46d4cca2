/* daemon/serve/kvdisk.c - the file of the disk tier.
 *
 * Page 0 is the head, then n_slots records of rec_bytes, a multiple of the page:
 * rec_head, the block's tokens, its data. Sums are SipHash-128 under the store's secret:
 * `head` over the head (without the sums) and the tokens, `data` over that sum and the
 * data, so that a head never passes with another one's data. */
#include "daemon/serve/kvdisk.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/queue.h"

enum { PAGE = 4096, CLOSE_S = 2, IDLE_US = 3600 * 1000 * 1000u };
#define MAGIC 0x31564b4b43415252ull

struct file_head {
    uint64_t magic;
    uint64_t rec_bytes, data_bytes;
    int32_t block_tok, version;
    struct kvhash whose;
};
struct rec_head {
    uint64_t magic;
    struct kvhash hash, before;
    int32_t depth, n_tok;
    uint64_t n_data;
    struct kvhash head, data; /* the sums */
};

enum work_kind { WORK_JOB, WORK_WIPE, WORK_END };
struct work {
    enum work_kind kind;
    bool busy;
    struct kv_job j;
    struct iovec part[KVDISK_PIECES];
    int n_part;
    struct kvdisk_done done;
};

struct kvdisk {
    int fd;
    struct kvdisk_cfg cfg; /* path: not kept */
    struct file_head head;
    char note[256];
    struct queue *todo, *done;
    struct work work[KVTIER_JOBS + 2];
    struct work end;
    pthread_t thread;
    bool started;
    uint8_t *rec; /* the thread's: a record's head and tokens */
};

/* ---- records ---- */

static size_t head_bytes(const struct kvdisk *d)
{
    return sizeof(struct rec_head) + (size_t)d->cfg.block_tok * sizeof(int32_t);
}

static off_t rec_at(const struct kvdisk *d, int32_t slot)
{
    return PAGE + (off_t)slot * (off_t)d->head.rec_bytes;
}

static struct kvhash head_sum(const struct kvdisk *d, const uint8_t *rec)
{
    struct kvhash h = kvhash_bytes(d->cfg.secret, rec, offsetof(struct rec_head, head));

    return kvhash_next(d->cfg.secret, h, rec + sizeof(struct rec_head),
                       (size_t)d->cfg.block_tok * sizeof(int32_t));
}

static struct kvhash data_sum(const struct kvdisk *d, struct kvhash h,
                              const struct work *w)
{
    for (int i = 0; i < w->n_part; i++)
        h = kvhash_next(d->cfg.secret, h, w->part[i].iov_base, w->part[i].iov_len);
    return h;
}

static bool same(struct kvhash a, struct kvhash b)
{
    return a.w[0] == b.w[0] && a.w[1] == b.w[1];
}

static uint64_t part_bytes(const struct work *w)
{
    uint64_t n = 0;

    for (int i = 0; i < w->n_part; i++)
        n += w->part[i].iov_len;
    return n;
}

/* ---- whole transfers ---- */

/* errno is 0 where the file ends before that. */
static bool read_all(int fd, void *p, size_t n, off_t at)
{
    for (size_t got = 0; got < n;) {
        ssize_t k = pread(fd, (char *)p + got, n - got, at + (off_t)got);
        if (k < 0 && errno == EINTR)
            continue;
        errno = k == 0 ? 0 : errno;
        if (k <= 0)
            return false;
        got += (size_t)k;
    }
    return true;
}

static bool write_all(int fd, const void *p, size_t n, off_t at)
{
    for (size_t put = 0; put < n;) {
        ssize_t k = pwrite(fd, (const char *)p + put, n - put, at + (off_t)put);
        if (k < 0 && errno == EINTR)
            continue;
        errno = k == 0 ? ENOSPC : errno;
        if (k <= 0)
            return false;
        put += (size_t)k;
    }
    return true;
}

/* ---- the thread ---- */

static bool do_write(struct kvdisk *d, struct work *w)
{
    struct rec_head *h = (struct rec_head *)d->rec;
    const struct kv_key *k = &w->j.key;
    off_t at = rec_at(d, w->j.disk);

    *h = (struct rec_head){.magic = MAGIC,
                           .hash = k->hash,
                           .before = k->before,
                           .depth = k->depth,
                           .n_tok = d->cfg.block_tok,
                           .n_data = part_bytes(w)};
    memcpy(d->rec + sizeof(*h), k->toks, (size_t)d->cfg.block_tok * sizeof(int32_t));
    h->head = head_sum(d, d->rec);
    h->data = data_sum(d, h->head, w);
    if (!write_all(d->fd, d->rec, head_bytes(d), at))
        return false;
    at += (off_t)head_bytes(d);
    for (int i = 0; i < w->n_part; i++) {
        if (!write_all(d->fd, w->part[i].iov_base, w->part[i].iov_len, at))
            return false;
        at += (off_t)w->part[i].iov_len;
    }
    return true;
}

static bool do_read(struct kvdisk *d, struct work *w)
{
    const struct rec_head *h = (const struct rec_head *)d->rec;
    const struct kv_key *k = &w->j.key;
    off_t at = rec_at(d, w->j.disk);

    if (!read_all(d->fd, d->rec, head_bytes(d), at))
        return false;
    at += (off_t)head_bytes(d);
    for (int i = 0; i < w->n_part; i++) {
        if (!read_all(d->fd, w->part[i].iov_base, w->part[i].iov_len, at))
            return false;
        at += (off_t)w->part[i].iov_len;
    }
    w->done.torn = h->magic != MAGIC || !same(h->hash, k->hash) ||
                   !same(h->before, k->before) || h->n_data != part_bytes(w) ||
                   memcmp(d->rec + sizeof(*h), k->toks,
                          (size_t)d->cfg.block_tok * sizeof(int32_t)) ||
                   !same(h->head, head_sum(d, d->rec)) ||
                   !same(h->data, data_sum(d, h->head, w));
    return !w->done.torn;
}

static bool write_head(struct kvdisk *d)
{
    uint8_t page[PAGE] = {0};

    memcpy(page, &d->head, sizeof(d->head));
    return write_all(d->fd, page, sizeof(page), 0);
}

/* Of a file without a name the space is lost when it is closed: ENOENT. 0: it has one. */
static int name_fault(const struct kvdisk *d)
{
    struct stat st;

    if (fstat(d->fd, &st) < 0)
        return errno;
    return st.st_nlink > 0 ? 0 : ENOENT;
}

static void do_job(struct kvdisk *d, struct work *w)
{
    int fault = name_fault(d);

    errno = 0;
    w->done.ok = !fault && (w->j.write ? do_write : do_read)(d, w);
    w->done.why = fault ? fault : w->done.ok || w->done.torn ? 0 : errno;
    w->done.torn = w->done.torn || (!w->done.ok && !w->done.why);
}

static void *disk_main(void *arg)
{
    struct kvdisk *d = arg;

    for (;;) {
        struct work *w = queue_pop_wait(d->todo, IDLE_US);
        if (!w)
            continue;
        if (w->kind == WORK_END)
            return NULL;
        if (w->kind == WORK_WIPE)
            w->done.ok = ftruncate(d->fd, 0) == 0 && write_head(d);
        else
            do_job(d, w);
        queue_push(d->done, w);
    }
}

/* ---- opening ---- */

static void make_head(struct kvdisk *d)
{
    size_t bytes = head_bytes(d) + d->cfg.data_bytes;

    d->head = (struct file_head){
        .magic = MAGIC,
        .rec_bytes = (bytes + PAGE - 1) / PAGE * PAGE,
        .data_bytes = d->cfg.data_bytes,
        .block_tok = d->cfg.block_tok,
        .version = 1,
        .whose = kvhash_bytes(d->cfg.secret, d->cfg.whose, strlen(d->cfg.whose))};
}

static int lock(struct kvdisk *d, const char *path, struct err *e)
{
    struct stat st;

    /* not to wait for whoever reads a pipe */
    d->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (d->fd < 0)
        return err_errno(e, ERR_IO, "cannot open '%s' for KV", path);
    if (fstat(d->fd, &st) < 0)
        return err_errno(e, ERR_IO, "cannot look at '%s'", path);
    if (!S_ISREG(st.st_mode))
        return err_set(e, ERR_IO, "'%s' is no plain file", path);
    if (st.st_uid != geteuid() || st.st_nlink > 1)
        return err_set(e, ERR_IO, "'%s' is another user's, or has a second name", path);
    if (flock(d->fd, LOCK_EX | LOCK_NB) < 0)
        return err_set(e, ERR_BUSY, "'%s' is in use by another engine", path);
    if (fchmod(d->fd, 0600) < 0)
        return err_errno(e, ERR_IO, "cannot close '%s' to others", path);
    return 0;
}

/* A record of ours: is its head whole? */
static bool whole_head(struct kvdisk *d, int32_t slot)
{
    const struct rec_head *h = (const struct rec_head *)d->rec;

    return read_all(d->fd, d->rec, head_bytes(d), rec_at(d, slot)) && h->magic == MAGIC &&
           h->n_tok == d->cfg.block_tok && h->depth >= 0 &&
           same(h->head, head_sum(d, d->rec));
}

static void scan(struct kvdisk *d, const char *path, kvdisk_found_fn found, void *arg)
{
    const struct rec_head *h = (const struct rec_head *)d->rec;
    struct stat st;
    int torn = 0;

    if (fstat(d->fd, &st) < 0)
        return;
    for (int32_t i = 0; i < d->cfg.n_slots && rec_at(d, i) < st.st_size; i++) {
        if (whole_head(d, i))
            found(arg, i,
                  &(struct kv_key){h->hash, h->before, h->depth,
                                   (const int32_t *)(d->rec + sizeof(*h))});
        else
            torn += h->magic != 0;
    }
    if (torn)
        snprintf(d->note, sizeof(d->note),
                 "%d records of '%.120s' are not whole and were passed over", torn, path);
}

static int read_file(struct kvdisk *d, const char *path, kvdisk_found_fn found, void *arg,
                     struct err *e)
{
    struct file_head has;
    struct stat st;

    if (fstat(d->fd, &st) < 0)
        return err_errno(e, ERR_IO, "cannot look at '%s'", path);
    if (st.st_size > 0 && read_all(d->fd, &has, sizeof(has), 0) &&
        !memcmp(&has, &d->head, sizeof(has))) {
        scan(d, path, found, arg);
        return 0;
    }
    if (st.st_size > 0)
        snprintf(d->note, sizeof(d->note),
                 "'%.120s' holds no KV of this model and layout: it was begun anew",
                 path);
    if (ftruncate(d->fd, 0) < 0 || !write_head(d))
        return err_errno(e, ERR_IO, "cannot write '%s'", path);
    return 0;
}

static int start(struct kvdisk *d, struct err *e)
{
    size_t n = KVTIER_JOBS + 3;
    int rc;

    if (queue_new(n, &d->todo, e) < 0 || queue_new(n, &d->done, e) < 0)
        return -1;
    rc = pthread_create(&d->thread, NULL, disk_main, d);
    if (rc != 0) {
        errno = rc;
        return err_errno(e, ERR_NOMEM, "cannot start the thread of the KV file");
    }
    d->started = true;
    pthread_setname_np(d->thread, "kvdisk");
    return 0;
}

int kvdisk_open(const struct kvdisk_cfg *cfg, kvdisk_found_fn found, void *arg,
                struct kvdisk **ret, struct err *e)
{
    struct kvdisk *d = xcalloc(1, sizeof(*d));

    d->fd = -1;
    d->cfg = *cfg;
    d->rec = xcalloc(1, head_bytes(d));
    make_head(d);
    if (lock(d, cfg->path, e) < 0 || read_file(d, cfg->path, found, arg, e) < 0 ||
        start(d, e) < 0) {
        kvdisk_close(d);
        return -1;
    }
    *ret = d;
    return 0;
}

void kvdisk_close(struct kvdisk *d)
{
    struct timespec until;

    if (!d)
        return;
    if (d->started) {
        d->end.kind = WORK_END;
        queue_push(d->todo, &d->end);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += CLOSE_S;
        if (pthread_timedjoin_np(d->thread, NULL, &until) != 0)
            return; /* the disk hangs: what the thread may still touch stays */
    }
    if (d->fd >= 0)
        close(d->fd);
    queue_free(d->todo);
    queue_free(d->done);
    free(d->rec);
    free(d);
}

const char *kvdisk_note(const struct kvdisk *d) { return d->note; }

/* ---- the scheduler's side ---- */

static struct work *take_work(struct kvdisk *d, enum work_kind kind)
{
    for (size_t i = 0; i < sizeof(d->work) / sizeof(d->work[0]); i++) {
        struct work *w = &d->work[i];

        if (w->busy)
            continue;
        w->busy = true;
        w->kind = kind;
        w->n_part = 0;
        w->done = (struct kvdisk_done){0};
        return w;
    }
    return NULL;
}

void kvdisk_submit(struct kvdisk *d, const struct kv_job *j, const struct iovec *part,
                   int n_part)
{
    struct work *w = take_work(d, WORK_JOB); /* there are no more jobs than these */

    w->j = *j;
    w->done.id = j->id;
    w->done.write = j->write;
    w->n_part = n_part;
    memcpy(w->part, part, (size_t)n_part * sizeof(*part));
    queue_push(d->todo, w);
}

void kvdisk_wipe(struct kvdisk *d)
{
    struct work *w = take_work(d, WORK_WIPE);

    if (w) /* else one is waiting already */
        queue_push(d->todo, w);
}

static bool is_job(struct work *w, struct kvdisk_done *ret)
{
    *ret = w->done;
    w->busy = false;
    return w->kind == WORK_JOB;
}

bool kvdisk_poll(struct kvdisk *d, struct kvdisk_done *ret)
{
    struct work *w;

    while ((w = queue_pop(d->done)))
        if (is_job(w, ret))
            return true;
    return false;
}

bool kvdisk_wait(struct kvdisk *d, int64_t us, struct kvdisk_done *ret)
{
    struct work *w = queue_pop_wait(d->done, us);

    return w && is_job(w, ret);
}

int kvdisk_fd(const struct kvdisk *d) { return queue_fd(d->done); }
