/* tests/ops/test_far.c - the test backend: same bits as the CPU, later, and out of reach.
 */
#include "tests/ops/rig.h"

#include <signal.h>
#include <sys/wait.h>

#include "kernels/cpu.h"

static const struct shape shape = {4, 2, 32, 32, true, true, 0, DT_BF16};

static void same_bits(const char *isa)
{
    static const int len[] = {70, 16, 33};
    struct rig near, far;
    struct feed f, g;

    rig_open(&near, "cpu", isa, 2, 256);
    rig_open(&far, "far", isa, 2, 256);
    feed_open(&f, &near, shape, 3, 3, len);
    feed_open(&g, &far, shape, 3, 3, len);
    feed_all(&f, 20, true);
    feed_all(&g, 20, true);
    for (int s = 0; s < 3; s++)
        assert_memory_equal(f.y[s], g.y[s], sizeof(float) * (size_t)(len[s] * 4 * 32));
    feed_close(&f);
    feed_close(&g);
    rig_close(&near);
    rig_close(&far);
}

static void test_same_bits(void **state)
{
    (void)state;
    same_bits("portable");
    same_bits("auto");
}

/* Nothing arrives before sync, and then all of it, in order. */
static void test_late(void **state)
{
    float a[16], b[16], out[16];
    struct dbuf *d;
    struct rig r;

    (void)state;
    rig_fill(a, 16, 1);
    rig_fill(b, 16, 2);
    rig_open(&r, "far", "portable", 1, 64);
    rig_must(dbuf_new(r.b, sizeof(a), &d, &r.e), &r.e);
    rig_must(stream_upload(r.s, d, 0, a, sizeof(a), &r.e), &r.e);
    rig_must(stream_upload(r.s, d, 0, b, sizeof(b), &r.e), &r.e);
    memcpy(out, a, sizeof(a));
    rig_must(stream_download(r.s, out, d, 0, sizeof(out), &r.e), &r.e);
    assert_memory_not_equal(out, a, sizeof(a));
    assert_memory_not_equal(out, b, sizeof(b));
    rig_sync(&r);
    assert_memory_equal(out, b, sizeof(b));
    dbuf_free(d);
    rig_close(&r);
}

static void test_host_changes_upload(void **state)
{
    float a[16] = {0};
    struct dbuf *d;
    struct rig r;

    (void)state;
    rig_open(&r, "far", "portable", 1, 64);
    rig_must(dbuf_new(r.b, sizeof(a), &d, &r.e), &r.e);
    rig_must(stream_upload(r.s, d, 0, a, sizeof(a), &r.e), &r.e);
    a[3] = 1;
    assert_int_equal(stream_sync(r.s, &r.e), -1);
    assert_int_equal(r.e.code, ERR_DEVICE);
    rig_must(stream_download(r.s, a, d, 0, sizeof(a), &r.e), &r.e);
    a[5] = 2;
    assert_int_equal(stream_sync(r.s, &r.e), -1);
    assert_int_equal(r.e.code, ERR_DEVICE);
    rig_sync(&r);
    dbuf_free(d);
    rig_close(&r);
}

static bool touch_dies(const volatile char *mem)
{
    int status;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL);
        _exit(mem[0] == 1 ? 1 : 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ||
           WEXITSTATUS(status) > 1; /* sanitizers exit themselves */
}

static void test_host_touch(void **state)
{
    struct kv_layout l = {1, 1, 64, KV_BLOCK_TOK, DT_BF16, 0, 0, 0, 0};
    static const float one[4] = {1, 2, 3, 4};
    struct kv_arena *kv;
    struct dbuf *d;
    struct rig r;

    (void)state;
    rig_open(&r, "far", "portable", 1, 64);
    rig_must(kv_arena_new(r.b, &l, 2, &kv, &r.e), &r.e);
    rig_must(dbuf_new(r.b, sizeof(one), &d, &r.e), &r.e);
    assert_true(touch_dies(((struct cpu_dbuf *)d)->mem));
    assert_true(touch_dies(((struct cpu_arena *)kv)->mem));
    rig_must(stream_upload(r.s, d, 0, one, sizeof(one), &r.e), &r.e);
    rig_sync(&r);
    assert_true(touch_dies(((struct cpu_dbuf *)d)->mem)); /* shut again after a run */
    dbuf_free(d);
    kv_arena_free(kv);
    rig_close(&r);
}

/* Who frees a stream without a sync gets nothing run. */
static void test_drop(void **state)
{
    float a[16] = {0};
    struct dbuf *d;
    struct rig r;

    (void)state;
    rig_open(&r, "far", "portable", 1, 64);
    rig_must(dbuf_new(r.b, sizeof(a), &d, &r.e), &r.e);
    rig_must(stream_upload(r.s, d, 0, a, sizeof(a), &r.e), &r.e);
    dbuf_free(d);
    rig_close(&r);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_late),
        cmocka_unit_test(test_host_changes_upload),
        cmocka_unit_test(test_host_touch),
        cmocka_unit_test(test_drop),
    };

    return test_main(argc, argv, "far", tests, sizeof(tests) / sizeof(tests[0]));
}
