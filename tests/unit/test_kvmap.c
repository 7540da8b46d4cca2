/* tests/unit/test_kvmap.c - regions that another engine names: what does not hold what
 * was said of it, or could be pulled away under a reader, is not taken; and a pull takes
 * nothing but what was offered. */
#include "tests/test.h"

#include <sys/mman.h>

#include "daemon/serve/kvpull.h"
#include "tests/unit/kv_rig.h"

enum { A = 501, B = 502, BLOCKS = 4 };

static const struct kv_shape one = {1, 1, 1, false}, pp2 = {2, 1, 1, false},
                             tp2 = {1, 2, 1, false};

/* The last of these is refused, with these words. */
static void refused(const struct wire_arena *a, const int *fd, int n, const char *words)
{
    struct kvmap *m = kvmap_new(false);
    struct err e;

    for (int i = 0; i < n; i++) {
        int own = fd[i] < 0 ? -1 : fcntl(fd[i], F_DUPFD_CLOEXEC, 0);
        int rc = kvmap_add(m, &a[i], own, &e);
        assert_int_equal(rc, i == n - 1 ? -1 : 0);
    }
    if (!strstr(e.msg, words))
        fail_msg("'%s' in place of '%s'", e.msg, words);
    assert_false(kvmap_whole(m));
    kvmap_free(m);
}

static void test_regions_that_are_not_as_told(void **state)
{
    (void)state;
    struct kv_body b;
    int loose = memfd_create("loose", MFD_CLOEXEC), none = -1;
    struct wire_arena a[3];

    kv_body_new(&b, &pp2, BLOCKS, A);
    assert_int_equal(ftruncate(loose, (off_t)b.a[0].bytes), 0);
    refused(b.a, &loose, 1, "cut short");
    assert_int_equal(ftruncate(loose, 4096), 0);
    refused(b.a, &loose, 1, "4096 bytes");
    refused(b.a, &none, 1, "without its descriptor");

    memcpy(a, b.a, sizeof(a));
    a[0].n_blocks++; /* more than the region has */
    refused(a, b.fd, 1, "do not fit");
    a[0] = b.a[0];
    a[1].incarnation = B;
    refused(a, b.fd, 2, "another engine's");
    a[1] = b.a[1];
    a[1].head_dim *= 2;
    a[1].bytes = kv_region_bytes(&a[1]);
    refused(a, b.fd, 2, "layout");
    a[1] = b.a[1];
    a[1].first_layer = 0; /* layer 0 twice, 1 never */
    refused(a, b.fd, 3, "has a hole");
    a[1] = b.a[1];
    a[1].shard = 1; /* two halves, of which each has one layer */
    refused(a, b.fd, 3, "shards");
    close(loose);
    kv_body_done(&b);
}

static void test_pages_that_are_none(void **state)
{
    (void)state;
    struct kv_body b, other;
    struct wire_arena a[3];
    int fd[3];

    kv_body_new(&b, &one, BLOCKS, A);
    kv_body_new(&other, &one, BLOCKS + 1, A);
    memcpy(a, b.a, sizeof(a));
    a[1].n_blocks = BLOCKS + 1;
    refused(a, b.fd, 2, "page");
    memcpy(a, b.a, sizeof(a));
    memcpy(fd, b.fd, sizeof(fd));
    a[1] = other.a[1]; /* of so many blocks, which the regions have not */
    fd[1] = other.fd[1];
    refused(a, fd, 2, "blocks");
    a[0] = a[1] = b.a[1]; /* twice */
    a[0].n_arenas = a[1].n_arenas = 3;
    fd[0] = fd[1] = b.fd[1];
    refused(a, fd, 2, "page");
    b.page->magic++;
    refused(&b.a[1], &b.fd[1], 1, "page");
    kv_body_done(&b);
    kv_body_done(&other);
}

/* What was sealed for readers cannot be mapped to write, by nobody; its owner goes on. */
static void test_readers_only_read(void **state)
{
    (void)state;
    struct kv_body b;
    struct kvmap *own, *reader, *writer = kvmap_new(true);
    int32_t table[1] = {2};
    struct err e;

    kv_body_new(&b, &one, BLOCKS, A);
    own = kv_body_map(&b, true);
    for (int i = 0; i < b.n; i++)
        assert_int_equal(region_seal(b.fd[i], "a test's", &e), 0);
    assert_int_equal(kvmap_add(writer, &b.a[0], fcntl(b.fd[0], F_DUPFD_CLOEXEC, 0), &e),
                     -1);
    assert_int_equal(ftruncate(b.fd[0], 0), -1);
    assert_int_equal(region_seal(b.fd[0], "a test's", &e), -1); /* for ever */
    reader = kv_body_map(&b, false);
    kv_each(own, table, 1, 7, 0, KV_BLOCK_TOK, true);
    assert_true(kv_each(reader, table, 1, 7, 0, KV_BLOCK_TOK, false));
    kvmap_free(own);
    kvmap_free(reader);
    kvmap_free(writer);
    kv_body_done(&b);
}

/* ---- pulls ---- */

struct fix {
    struct kv_body b[2];
    struct kvmap *from, *from_rw, *to;
    struct wire_block blocks[3];
    int32_t src[3], dst[3];
};

/* Sequence 7: 40 positions in blocks 1, 3 and 0; to blocks 2, 0 and 1. */
static void set_up(struct fix *f)
{
    *f = (struct fix){.src = {1, 3, 0}, .dst = {2, 0, 1}};
    kv_body_new(&f->b[0], &pp2, BLOCKS, A);
    kv_body_new(&f->b[1], &tp2, BLOCKS, B);
    f->from = kv_body_map(&f->b[0], false);
    f->from_rw = kv_body_map(&f->b[0], true);
    f->to = kv_body_map(&f->b[1], true);
    kv_each(f->from_rw, f->src, 3, 7, 0, 40, true);
    for (int i = 0; i < 3; i++) {
        struct kvtable t = {f->src, 0, 3};
        int end = (i + 1) * KV_BLOCK_TOK < 40 ? (i + 1) * KV_BLOCK_TOK : 40;
        atomic_store(&f->b[0].page->gen[f->src[i]], 10u + (unsigned)i);
        f->blocks[i] =
            (struct wire_block){f->src[i], 10u + (unsigned)i,
                                kvmap_sum(f->from, &t, i * KV_BLOCK_TOK, end, 0)};
    }
}

static void tear_down(struct fix *f)
{
    kvmap_free(f->from);
    kvmap_free(f->from_rw);
    kvmap_free(f->to);
    kv_body_done(&f->b[0]);
    kv_body_done(&f->b[1]);
}

static struct kvpull_job job_of(struct fix *f)
{
    return (struct kvpull_job){.src = f->from,
                               .dst = f->to,
                               .incarnation = A,
                               .blocks = f->blocks,
                               .n = 3,
                               .table = f->dst,
                               .n_table = 3,
                               .upto = 40,
                               .sums = true};
}

static void fails(const struct kvpull_job *want, enum err_code code)
{
    struct kvpull_job *j = kvpull_job_new(want);

    kvpull_run(j, &kvpull_host);
    assert_int_equal(j->rc, -1);
    if (j->why.code != code)
        fail_msg("%s", j->why.msg);
    kvpull_job_free(j);
}

static void succeeds(struct fix *f, const struct kvpull_job *want)
{
    struct kvpull_job *j = kvpull_job_new(want);

    kvpull_run(j, &kvpull_host);
    if (j->rc < 0)
        fail_msg("%s", j->why.msg);
    assert_true(kv_each(f->to, f->dst, 3, 7, 0, 40, false));
    kvpull_job_free(j);
}

static void test_what_was_offered(void **state)
{
    (void)state;
    struct fix f;
    struct kvpull_job j;

    set_up(&f);
    j = job_of(&f);
    succeeds(&f, &j);
    for (int i = 0; i < 3; i++) { /* any one of them is another by now */
        atomic_fetch_add(&f.b[0].page->gen[f.src[i]], 1);
        fails(&j, ERR_CONFLICT);
        atomic_fetch_sub(&f.b[0].page->gen[f.src[i]], 1);
    }
    succeeds(&f, &j);
    j.incarnation = B;
    fails(&j, ERR_CONFLICT);
    j.incarnation = A;
    f.blocks[1].sum++;
    fails(&j, ERR_CORRUPT);
    f.blocks[1].sum--;
    kv_each(f.from_rw, f.src, 3, 8, 39, 40, true); /* one position */
    fails(&j, ERR_CORRUPT);
    kv_each(f.from_rw, f.src, 3, 7, 39, 40, true);
    succeeds(&f, &j);
    atomic_store(&f.b[0].page->incarnation, 0); /* it has ended */
    fails(&j, ERR_CONFLICT);
    tear_down(&f);
}

/* Numbers that would lead out of either memory. */
static void test_offers_of_what_there_is_not(void **state)
{
    (void)state;
    static const int32_t bad[] = {BLOCKS, -1, INT32_MAX, INT32_MIN};
    struct fix f;

    set_up(&f);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct kvpull_job j = job_of(&f);
        f.blocks[2].id = bad[i];
        fails(&j, ERR_CORRUPT);
        f.blocks[2].id = f.src[2];
        f.dst[1] = bad[i];
        fails(&j, ERR_INTERNAL);
        f.dst[1] = 0;
    }
    for (int how = 0; how < 5; how++) {
        struct kvpull_job j = job_of(&f);
        j.n -= how == 0;
        j.n_table -= how == 1;
        j.upto += how == 2 ? 9 : 0;
        j.first += how == 3; /* the first is not among them */
        j.from = how == 4 ? -1 : j.from;
        fails(&j, ERR_INTERNAL);
    }
    tear_down(&f);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_regions_that_are_not_as_told),
    cmocka_unit_test(test_pages_that_are_none),
    cmocka_unit_test(test_readers_only_read),
    cmocka_unit_test(test_what_was_offered),
    cmocka_unit_test(test_offers_of_what_there_is_not),
};

TEST_MAIN("kvmap", tests)
