/* The disk of the KV tiers fails by each of its calls in turn, or only some, or is slow:
 * what is read is what was written or is told to have failed, never other bytes; the file
 * stays its owner's; the next life of it has what is whole. And of an engine: requests
 * that do not wait for the disk go on while it hangs, with the same text. */
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the calls of kvdisk.c ---- */

enum call { OPEN, FSTAT, FLOCK, FCHMOD, PREAD, PWRITE, FTRUNCATE, CALLS };
static _Atomic int n_calls, fail_at, fail_for,
    n_of[CALLS];                       /* fail_for calls from fail_at on */
static _Atomic int short_at, n_failed; /* of a transfer: half of it */
static _Atomic int held, n_held;       /* reads wait */
static int why = EIO;

static int fails(enum call c)
{
    int n = ++n_calls;

    n_of[c]++;
    if (!fail_at || n < fail_at || n >= fail_at + fail_for)
        return 0;
    n_failed++;
    errno = why;
    return 1;
}

static size_t part_of(size_t n)
{
    return short_at && n_calls == short_at ? n / 2 + 1 : n;
}

static int io_open(const char *path, int flags, mode_t mode)
{
    return fails(OPEN) ? -1 : open(path, flags, mode);
}
static int io_fstat(int fd, struct stat *st) { return fails(FSTAT) ? -1 : fstat(fd, st); }
static int io_flock(int fd, int op) { return fails(FLOCK) ? -1 : flock(fd, op); }
static int io_fchmod(int fd, mode_t mode)
{
    return fails(FCHMOD) ? -1 : fchmod(fd, mode);
}
static ssize_t io_pread(int fd, void *p, size_t n, off_t at)
{
    while (held) {
        n_held = 1;
        usleep(1000);
    }
    return fails(PREAD) ? -1 : pread(fd, p, part_of(n), at);
}
static ssize_t io_pwrite(int fd, const void *p, size_t n, off_t at)
{
    return fails(PWRITE) ? -1 : pwrite(fd, p, part_of(n), at);
}
static int io_ftruncate(int fd, off_t n)
{
    return fails(FTRUNCATE) ? -1 : ftruncate(fd, n);
}

#define open io_open
#define fstat(fd, st) io_fstat(fd, st)
#define flock(fd, op) io_flock(fd, op)
#define fchmod io_fchmod
#define pread io_pread
#define pwrite io_pwrite
#define ftruncate io_ftruncate
#include "daemon/serve/kvdisk.c"
#undef open
#undef fstat
#undef flock
#undef fchmod
#undef pread
#undef pwrite
#undef ftruncate
#undef PAGE

#include <poll.h>

#include "tests/split_rig.h"

static void set_faults(int at, int count, int error)
{
    n_calls = n_failed = short_at = 0;
    memset(n_of, 0, sizeof(n_of));
    why = error;
    fail_for = count;
    fail_at = at;
}

/* ---- the file ---- */

enum { BT = 16, DATA = 9000, SLOTS = 5 };
static char folder[128], path[160];
static int32_t toks[SLOTS][BT];
static uint8_t mem[SLOTS][DATA];

static struct kv_key key(int i)
{
    return (struct kv_key){.hash = {{(uint64_t)i + 1, 5}},
                           .before = {{(uint64_t)i, 5}},
                           .depth = i,
                           .toks = toks[i]};
}

static void found(void *arg, int32_t slot, const struct kv_key *k)
{
    int *at = arg;

    assert_true(slot >= 0 && slot < SLOTS && k->depth >= 0 && k->depth < SLOTS);
    assert_memory_equal(k->toks, toks[k->depth], sizeof(toks[0]));
    at[slot] = k->depth;
}

static struct kvdisk *open_file(int at[SLOTS], struct err *e)
{
    const struct kvdisk_cfg c = {.path = path,
                                 .whose = "model a",
                                 .n_slots = SLOTS,
                                 .block_tok = BT,
                                 .data_bytes = DATA,
                                 .secret = "0123456789abcde"};
    struct kvdisk *d = NULL;

    memset(at, 0xff, SLOTS * sizeof(*at));
    return kvdisk_open(&c, found, at, &d, e) < 0 ? NULL : d;
}

static struct kvdisk_done transfer(struct kvdisk *d, bool write, int slot, int i,
                                   uint8_t *p)
{
    const struct kv_job j = {.id = 1, .write = write, .disk = slot, .key = key(i)};
    const struct iovec part[2] = {{p, 3000}, {p + 3000, DATA - 3000}};
    struct kvdisk_done done;
    int64_t end = clock_now_us(clock_real()) + 30 * 1000000ll;

    kvdisk_submit(d, &j, part, 2);
    while (!kvdisk_wait(d, 1000000, &done)) /* a wipe comes back as nothing */
        assert_true(clock_now_us(clock_real()) < end);
    return done;
}

/* All that was ever written is read as it was, or not at all. */
static int read_what_is(struct kvdisk *d, const int at[SLOTS])
{
    static uint8_t got[DATA];
    int n = 0;

    for (int i = 0; i < SLOTS; i++) {
        if (at[i] < 0)
            continue;
        struct kvdisk_done r = transfer(d, false, i, at[i], got);
        if (r.ok)
            assert_memory_equal(got, mem[at[i]], DATA);
        else
            assert_true(r.torn || r.why == why);
        n += r.ok;
    }
    return n;
}

/* One life: what is there is read, all is written anew, one is wiped. */
static int life(struct err *e, int *ret_written)
{
    int at[SLOTS], n = 0;
    struct kvdisk *d = open_file(at, e);

    *ret_written = 0;
    if (!d)
        return -1;
    read_what_is(d, at);
    kvdisk_wipe(d);
    for (int i = 0; i < SLOTS; i++) {
        struct kvdisk_done r = transfer(d, true, i, i, mem[i]);
        assert_true(r.ok || r.why == why);
        *ret_written += r.ok;
        at[i] = r.ok ? i : -1;
    }
    n = read_what_is(d, at);
    kvdisk_close(d);
    return n;
}

static void begin_file(void)
{
    uint64_t r = test_seed();

    for (int i = 0; i < SLOTS; i++) {
        for (int k = 0; k < BT; k++)
            toks[i][k] = i * 100 + k;
        for (int k = 0; k < DATA; k++)
            mem[i][k] = (uint8_t)test_rand(&r);
    }
    unlink(path);
    rmdir(folder);
    assert_int_equal(mkdir(folder, 0700), 0);
}

static void owners_alone(void)
{
    struct stat st;

    if (stat(path, &st) == 0)
        assert_int_equal(st.st_mode & 0777, 0600);
}

/* Each call fails, alone or with all that follow; then the disk is well again. */
static void test_each_call(void **state)
{
    static const int errors[] = {EIO, EACCES, ENOSPC, EROFS};
    int all, written, refused = 0, lost = 0;
    struct err e;

    (void)state;
    begin_file();
    set_faults(0, 0, EIO);
    assert_int_equal(life(&e, &written), SLOTS);
    all = n_calls;
    for (int c = 0; c < CALLS; c++)
        assert_true(n_of[c] > 0);
    for (int k = 0; k < 8; k++)
        for (int n = 1; n <= all; n++) {
            set_faults(n, k % 2 ? INT32_MAX / 2 : 1, errors[k / 2]);
            int got = life(&e, &written);
            assert_true(n_failed > 0 || n > n_calls);
            refused += got < 0;
            if (got < 0)
                assert_non_null(strstr(e.msg, path));
            else
                assert_true(got <= written);
            lost += got >= 0 && got < SLOTS;
            owners_alone();
            set_faults(0, 0, EIO);
            assert_int_equal(life(&e, &written), SLOTS);
        }
    assert_true(refused > 20 && lost > 100);
    unlink(path);
    rmdir(folder);
}

/* A transfer that brings only a part is gone on with. */
static void test_short_transfers(void **state)
{
    int all, written;
    struct err e;

    (void)state;
    begin_file();
    set_faults(0, 0, EIO);
    assert_int_equal(life(&e, &written), SLOTS);
    all = n_calls;
    for (int n = 1; n <= all; n++) {
        set_faults(0, 0, EIO);
        short_at = n;
        assert_int_equal(life(&e, &written), SLOTS);
    }
    unlink(path);
    rmdir(folder);
}

/* ---- an engine ---- */

enum { LAYERS = 8, NEW = 6, N = 16, OTHER = 100 };

static void hold(bool on)
{
    n_held = 0;
    held = on;
}

/* The reads of one request hang: another one, that came after it, is answered meanwhile;
 * so is the first when the disk is well again, with the same text. */
static void test_slow_disk(void **state)
{
    static struct step_token first[N + 1][NEW];
    struct engine_cfg c = base_cfg(ENGINE_BOTH, NULL);
    struct side s;
    struct world w;
    int64_t end = clock_now_us(clock_real()) + 60 * 1000000ll;
    int struck = 0;

    (void)state;
    set_faults(0, 0, EIO);
    c.ctx = 200;
    c.threads = 1;
    c.max_seqs = 4;
    c.kv_mib = 1;
    c.kv_host_mib = 1;
    c.kv_disk_mib = 8;
    c.kv_file = path;
    world_init(&w);
    launch(&s, &c);
    w.p = w.d = &s;
    for (int round = 0; struck < 3; round++) {
        assert_true(clock_now_us(clock_real()) < end);
        for (int i = 1; i <= N; i++) {
            hold(round > 1);
            ask(&w, params((uint64_t)i, 150 + i, NEW));
            while (round > 1 && !n_held && !w.req[i].done) /* if it is on disk at all */
                run(&w, 1000);
            if (n_held) {
                ask(&w, params(OTHER, 20, NEW));
                while (!w.req[OTHER].done) {
                    assert_true(clock_now_us(clock_real()) < end);
                    run(&w, 1000);
                }
                struck++;
            }
            hold(false);
            run(&w, 0);
            assert_int_equal(w.req[i].f.reason, FINISH_LENGTH);
            if (!round)
                memcpy(first[i], w.req[i].toks, sizeof(first[i]));
            assert_memory_equal(first[i], w.req[i].toks, sizeof(first[i]));
        }
    }
    check_no_blocks(&s);
    assert_string_equal(s.notes, "");
    assert_int_equal(stop(&s), 0);
    world_done(&w);
    unlink(path);
    rmdir(folder);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_each_call),
    cmocka_unit_test(test_short_transfers),
    cmocka_unit_test(test_slow_disk),
};

int main(int argc, char **argv)
{
    snprintf(folder, sizeof(folder), "/tmp/llmrack-tier-io-%d", (int)getpid());
    snprintf(path, sizeof(path), "%s/main.kv", folder);
    tiny_size.layers = LAYERS;
    int rc = test_main(argc, argv, "tier_io", tests, sizeof(tests) / sizeof(tests[0]));

    for (int i = 0; models[i].family; i++)
        tiny_remove(models[i].dir);
    return rc;
}
