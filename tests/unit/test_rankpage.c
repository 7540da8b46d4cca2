/* tests/unit/test_rankpage.c - what the engine writes of a rank is what the daemon reads,
 * in every cell; a page of another size is refused. */
#include "tests/test.h"

#include <sys/mman.h>
#include <unistd.h>

#include "base/err.h"
#include "daemon/serve/rankpage.h"
#include "daemon/serve/ranks.h"

/* Every cell with a value of its own. */
static struct rank_status full(int salt)
{
    struct rank_status s = {0};
    int n = salt;

    for (int d = 0; d < MESH_DIM_COUNT; d++) {
        s.at.at[d] = n++;
        s.at.group[d] = n++;
        for (int k = 0; k < COMM_CALL_COUNT; k++)
            s.counts[d][k] = (struct comm_count){.calls = (uint64_t)n++,
                                                 .bytes = (uint64_t)n++,
                                                 .cut_bytes = (uint64_t)n++,
                                                 .us = n++,
                                                 .wait_us = n++,
                                                 .link_us = n++};
    }
    s.mem = (struct backend_mem){(size_t)n++, (size_t)n++, (size_t)n++, (size_t)n++};
    s.busy_us = n++;
    s.wait_us = n++;
    return s;
}

static void same(const struct rank_status *a, const struct rank_status *b)
{
    assert_memory_equal(&a->at, &b->at, sizeof(a->at));
    assert_memory_equal(&a->mem, &b->mem, sizeof(a->mem));
    assert_memory_equal(a->counts, b->counts, sizeof(a->counts));
    assert_int_equal(a->busy_us, b->busy_us);
    assert_int_equal(a->wait_us, b->wait_us);
}

static void test_two_maps(void **state)
{
    struct rankpage *mine, *theirs;
    struct rank_status a = full(1), b = full(1000), got;
    struct err e = {0};
    int fd = -1;

    (void)state;
    assert_int_equal(rankpage_new(&fd, &mine, &e), 0);
    assert_int_equal(rankpage_map(fd, &theirs, &e), 0);
    assert_int_equal(ftruncate(fd, 100), -1); /* nobody cuts it short for the other */
    close(fd);
    assert_int_equal(rankpage_count(mine), 0);
    rankpage_set(theirs, 0, &a);
    rankpage_set(theirs, COMM_MAX_RANKS - 1, &b);
    rankpage_tell(theirs, COMM_MAX_RANKS, 5, 12);
    assert_int_equal(rankpage_count(mine), COMM_MAX_RANKS);
    assert_int_equal(rankpage_span_us(mine), 7);
    rankpage_get(mine, 0, &got);
    same(&got, &a);
    rankpage_get(mine, COMM_MAX_RANKS - 1, &got);
    same(&got, &b);
    rankpage_tell(theirs, COMM_MAX_RANKS + 1, 0, 0); /* a foreign process's word */
    assert_int_equal(rankpage_count(mine), COMM_MAX_RANKS);
    rankpage_clear(mine);
    assert_int_equal(rankpage_count(theirs), 0);
    rankpage_free(mine);
    rankpage_free(theirs);
    rankpage_free(NULL);
}

static void test_other_size(void **state)
{
    struct rankpage *p;
    struct err e = {0};
    int fd = memfd_create("test", MFD_CLOEXEC);

    (void)state;
    assert_int_equal(ftruncate(fd, 4096), 0);
    assert_int_equal(rankpage_map(fd, &p, &e), -1);
    assert_non_null(strstr(e.msg, "4096 bytes"));
    close(fd);
    assert_int_equal(rankpage_map(-1, &p, &e), -1);
}

/* Collectives add where the daemon reads; a new engine begins again from zero. */
static void test_pairs(void **state)
{
    struct comm_pair(*pairs)[COMM_CALL_COUNT];
    struct rankpage *mine, *theirs;
    struct rank_read got[COMM_CALL_COUNT];
    struct err e = {0};
    int fd = -1, last = COMM_MAX_RANKS - 1;

    (void)state;
    assert_int_equal(rankpage_new(&fd, &mine, &e), 0);
    assert_int_equal(rankpage_map(fd, &theirs, &e), 0);
    close(fd);
    pairs = rankpage_pairs(theirs, last);
    pairs[3][COMM_SEND].bytes += 40;
    pairs[last - 1][COMM_BARRIER].bytes += 7;
    pairs[last - 1][COMM_BARRIER].link_us += 9;
    assert_true(rankpage_read_of(mine, last, 3, got));
    assert_int_equal(got[COMM_SEND].bytes, 40);
    assert_int_equal(got[COMM_RECV].bytes, 0);
    assert_true(rankpage_read_of(mine, last, last - 1, got));
    assert_true(got[COMM_BARRIER].bytes == 7 && got[COMM_BARRIER].link_us == 9);
    assert_false(rankpage_read_of(mine, 3, last, got));
    rankpage_pairs(theirs, last);
    assert_false(rankpage_read_of(mine, last, 3, got));
    assert_false(rankpage_read_of(mine, last, last - 1, got));
    rankpage_free(mine);
    rankpage_free(theirs);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_maps),
        cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_other_size),
    };

    return test_main(argc, argv, "rankpage", tests, sizeof(tests) / sizeof(tests[0]));
}
