/* The file of the disk tier: what was written comes back after a restart, what is torn or
 * foreign does not, and nobody else can read it. */
#include "tests/test.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>

#include "base/err.h"
#include "daemon/serve/kvdisk.h"

#define TEST(name) static void name(void **state __attribute__((unused)))

enum { BT = 16, DATA = 10000, SLOTS = 8 };

static char path[256];
static int32_t toks[SLOTS][BT];
static uint8_t mem[SLOTS][DATA];

static struct kvdisk_cfg config(const char *whose)
{
    return (struct kvdisk_cfg){.path = path,
                               .whose = whose,
                               .n_slots = SLOTS,
                               .block_tok = BT,
                               .data_bytes = DATA,
                               .secret = "0123456789abcde"};
}

static int setup(void **state)
{
    (void)state;
    snprintf(path, sizeof(path), "/tmp/llmrack-kvdisk-%d", (int)getpid());
    unlink(path);
    for (int i = 0; i < SLOTS; i++) {
        for (int k = 0; k < BT; k++)
            toks[i][k] = i * 100 + k;
        for (int k = 0; k < DATA; k++)
            mem[i][k] = (uint8_t)(i * 31 + k * 7);
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(path);
    return 0;
}

static struct kv_key key(int i)
{
    return (struct kv_key){.hash = {{(uint64_t)i + 1, 5}},
                           .before = {{(uint64_t)i, 5}},
                           .depth = i,
                           .toks = toks[i]};
}

struct seen {
    int n, slot[SLOTS], depth[SLOTS];
};

static void found(void *arg, int32_t slot, const struct kv_key *k)
{
    struct seen *s = arg;

    assert_true(s->n < SLOTS);
    assert_memory_equal(k->toks, toks[k->depth], sizeof(toks[0]));
    s->slot[s->n] = slot;
    s->depth[s->n++] = k->depth;
}

static struct kvdisk *opened(const char *whose, struct seen *s)
{
    const struct kvdisk_cfg c = config(whose);
    struct kvdisk *d = NULL;
    struct err e;

    *s = (struct seen){0};
    if (kvdisk_open(&c, found, s, &d, &e) < 0)
        fail_msg("%s", e.msg);
    return d;
}

static struct kvdisk_done run(struct kvdisk *d, uint64_t id, bool write, int slot, int i,
                              uint8_t *at)
{
    const struct kv_job j = {.id = id, .write = write, .disk = slot, .key = key(i)};
    const struct iovec part[2] = {{at, 3000}, {at + 3000, DATA - 3000}};
    struct kvdisk_done done;
    struct pollfd p = {kvdisk_fd(d), POLLIN, 0};

    kvdisk_submit(d, &j, part, 2);
    while (!kvdisk_poll(d, &done))
        assert_int_equal(poll(&p, 1, 10000), 1);
    assert_int_equal(done.id, id);
    return done;
}

static void fill_file(void)
{
    struct seen s;
    struct kvdisk *d;

    unlink(path);
    d = opened("model a", &s);

    assert_int_equal(s.n, 0);
    assert_string_equal(kvdisk_note(d), "");
    for (int i = 0; i < SLOTS; i++)
        assert_true(run(d, (uint64_t)i, true, SLOTS - 1 - i, i, mem[i]).ok);
    kvdisk_close(d);
}

TEST(it_comes_back_after_a_restart)
{
    uint8_t got[DATA];
    struct seen s;
    struct stat st;

    fill_file();
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    struct kvdisk *d = opened("model a", &s);
    assert_int_equal(s.n, SLOTS);
    for (int i = 0; i < SLOTS; i++) {
        assert_int_equal(s.depth[i], SLOTS - 1 - s.slot[i]);
        memset(got, 0, sizeof(got));
        assert_true(run(d, 100 + (uint64_t)i, false, s.slot[i], s.depth[i], got).ok);
        assert_memory_equal(got, mem[s.depth[i]], DATA);
    }
    kvdisk_close(d);
}

static void spoil(off_t at)
{
    int fd = open(path, O_RDWR);
    char c;

    assert_true(fd >= 0 && pread(fd, &c, 1, at) == 1);
    c = (char)~c;
    assert_int_equal(pwrite(fd, &c, 1, at), 1);
    close(fd);
}

/* Any byte of a record that is another one: it is not taken, the others are. */
TEST(torn_records_are_passed_over)
{
    enum { REC = 12288 };
    static const off_t at[] = {0, 8, 30, 40, 48, 56, 64, 90, 100, 200, 5000, 10100};
    uint8_t got[DATA];
    struct seen s;

    for (size_t n = 0; n < sizeof(at) / sizeof(at[0]); n++) {
        unlink(path);
        fill_file();
        spoil(4096 + 2 * REC + at[n]);
        struct kvdisk *d = opened("model a", &s);
        bool there = false;
        for (int i = 0; i < s.n; i++)
            there |= s.slot[i] == 2;
        assert_int_equal(s.n, there ? SLOTS : SLOTS - 1);
        assert_int_equal(strstr(kvdisk_note(d), "not whole") != NULL, !there);
        struct kvdisk_done r = run(d, 7, false, 2, SLOTS - 3, got);
        assert_true(!r.ok && r.torn);
        assert_true(run(d, 8, false, 1, SLOTS - 2, got).ok);
        kvdisk_close(d);
    }
}

/* Cut short, as a full disk or a crash leaves it. */
TEST(a_file_that_was_cut)
{
    uint8_t got[DATA];
    struct seen s;

    fill_file();
    assert_int_equal(truncate(path, 4096 + 5 * 12288 + 700), 0);
    struct kvdisk *d = opened("model a", &s);
    assert_int_equal(s.n, 6); /* the head of number 5 is whole, its data not */
    assert_false(run(d, 7, false, 5, SLOTS - 6, got).ok);
    assert_true(run(d, 8, false, 4, SLOTS - 5, got).ok);
    kvdisk_close(d);
}

TEST(of_another_model_or_hand)
{
    struct kvdisk_cfg c = config("model a");
    struct kvdisk *d;
    struct seen s;
    struct err e;

    fill_file();
    d = opened("model b", &s);
    assert_int_equal(s.n, 0);
    assert_non_null(strstr(kvdisk_note(d), "begun anew"));
    kvdisk_close(d);
    fill_file();
    c.secret[0] ^= 1;
    s = (struct seen){0};
    assert_int_equal(kvdisk_open(&c, found, &s, &d, &e), 0);
    assert_int_equal(s.n, 0);
    kvdisk_close(d);
    unlink(path); /* not ours at all */
    FILE *f = fopen(path, "w");
    fputs("not KV", f);
    fclose(f);
    d = opened("model a", &s);
    assert_non_null(strstr(kvdisk_note(d), "begun anew"));
    kvdisk_close(d);
}

TEST(one_engine_at_a_time_and_no_link)
{
    const struct kvdisk_cfg c = config("model a");
    struct kvdisk *d, *other = NULL;
    char link[300];
    struct seen s;
    struct err e;

    d = opened("model a", &s);
    assert_int_equal(kvdisk_open(&c, found, &s, &other, &e), -1);
    assert_int_equal(e.code, ERR_BUSY);
    kvdisk_close(d);
    snprintf(link, sizeof(link), "%s-link", path);
    unlink(link);
    assert_int_equal(symlink(path, link), 0);
    struct kvdisk_cfg l = c;
    l.path = link;
    assert_int_equal(kvdisk_open(&l, found, &s, &other, &e), -1);
    unlink(link);
}

static void refused(const char *at, const char *words)
{
    struct kvdisk_cfg c = config("model a");
    struct kvdisk *d = NULL;
    struct seen s = {0};
    struct err e;

    c.path = at;
    assert_int_equal(kvdisk_open(&c, found, &s, &d, &e), -1);
    assert_null(d);
    if (!strstr(e.msg, words) || !strstr(e.msg, at))
        fail_msg("'%s' says nothing of '%s' and the path", e.msg, words);
}

static void holds(const char *at, const char *text)
{
    char got[64] = "";
    FILE *f = fopen(at, "r");

    assert_non_null(f);
    assert_true(fread(got, 1, sizeof(got) - 1, f) > 0);
    fclose(f);
    assert_string_equal(got, text);
}

/* What stands in the place of the file and is none of ours is said, and left alone. */
TEST(what_is_no_file_of_ours)
{
    char other[300], under[300];
    struct stat st;
    FILE *f;

    snprintf(other, sizeof(other), "%s-other", path);
    snprintf(under, sizeof(under), "%s/main.kv", path);
    f = fopen(other, "w");
    assert_non_null(f);
    fputs("of somebody else", f);
    fclose(f);
    assert_int_equal(chmod(other, 0644), 0);

    assert_int_equal(symlink(other, path), 0);
    refused(path, "cannot open");
    holds(other, "of somebody else");
    unlink(path);
    assert_int_equal(symlink("/tmp/llmrack-not-there/a", path), 0);
    refused(path, "cannot open");
    assert_int_equal(lstat(path, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    unlink(path);
    assert_int_equal(link(other, path), 0);
    refused(path, "second name");
    unlink(path);
    holds(other, "of somebody else");
    assert_int_equal(stat(other, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0644);

    assert_int_equal(mkfifo(path, 0600), 0);
    refused(path, "no plain file");
    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
    refused(path, "cannot open");
    assert_int_equal(rmdir(path), 0);
    refused("/dev/full", "no plain file");
    refused(under, "cannot open"); /* there is no such folder */
    f = fopen(path, "w");
    assert_non_null(f);
    fclose(f);
    refused(under, "cannot open"); /* it is a file */
    unlink(path);
    unlink(other);
}

/* A file that others could read is closed to them before anything is written. */
TEST(a_file_that_was_open_to_others)
{
    struct seen s;
    struct stat st;

    fill_file();
    assert_int_equal(chmod(path, 0644), 0);
    struct kvdisk *d = opened("model a", &s);
    assert_int_equal(s.n, SLOTS);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    kvdisk_close(d);
}

TEST(wiped_is_gone)
{
    uint8_t got[DATA];
    struct seen s;
    struct stat st;

    fill_file();
    struct kvdisk *d = opened("model a", &s);
    kvdisk_wipe(d);
    assert_false(run(d, 9, false, 3, SLOTS - 4, got).ok);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 4096);
    assert_true(run(d, 10, true, 3, 1, mem[1]).ok);
    kvdisk_close(d);
    d = opened("model a", &s);
    assert_int_equal(s.n, 1);
    kvdisk_close(d);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(it_comes_back_after_a_restart, setup, teardown),
    cmocka_unit_test_setup_teardown(torn_records_are_passed_over, setup, teardown),
    cmocka_unit_test_setup_teardown(a_file_that_was_cut, setup, teardown),
    cmocka_unit_test_setup_teardown(of_another_model_or_hand, setup, teardown),
    cmocka_unit_test_setup_teardown(one_engine_at_a_time_and_no_link, setup, teardown),
    cmocka_unit_test_setup_teardown(what_is_no_file_of_ours, setup, teardown),
    cmocka_unit_test_setup_teardown(a_file_that_was_open_to_others, setup, teardown),
    cmocka_unit_test_setup_teardown(wiped_is_gone, setup, teardown),
};

TEST_MAIN("kvdisk", tests)
