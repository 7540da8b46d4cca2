/* tests/unit/test_hangup.c - sockets that lose their peer are told of once. */
#include "tests/test.h"

#include <sys/socket.h>

#include "base/err.h"
#include "base/hangup.h"

static void test_close_and_half_close(void **state)
{
    struct hangup *h;
    struct err e;
    int a[2], b[2];
    uint64_t keys[4];

    (void)state;
    assert_int_equal(hangup_new(&h, &e), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, a), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, b), 0);
    assert_true(hangup_arm(h, a[0], 7, false));
    assert_true(hangup_arm(h, b[0], 8, false));
    assert_int_equal(write(a[1], "x", 1), 1); /* data is no hang-up */
    assert_int_equal(hangup_take(h, keys, 4), 0);

    shutdown(a[1], SHUT_WR);
    assert_int_equal(hangup_take(h, keys, 4), 1);
    assert_int_equal(keys[0], 7);
    assert_int_equal(hangup_take(h, keys, 4), 0); /* once */
    assert_true(hangup_arm(h, a[0], 9, true));    /* it still is so */
    assert_int_equal(hangup_take(h, keys, 4), 1);
    assert_int_equal(keys[0], 9);

    hangup_del(h, b[0]);
    close(b[1]);
    assert_int_equal(hangup_take(h, keys, 4), 0);
    assert_false(hangup_arm(h, -1, 1, false));
    close(a[0]);
    close(a[1]);
    close(b[0]);
    hangup_free(h);
    hangup_free(NULL);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_close_and_half_close),
};
TEST_MAIN("hangup", tests)
