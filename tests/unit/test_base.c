/* tests/unit/test_base.c - the small modules of floor 0: err, mem, buf, clock, list, log.
 */
#include "tests/test.h"

#include <errno.h>
#include <fcntl.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/list.h"
#include "base/log.h"
#include "base/mem.h"

static void err_sentences(void **state)
{
    struct err e;

    (void)state;
    assert_int_equal(err_param(&e, ERR_RANGE, "top_p", "top_p is %d", 7), -1);
    assert_string_equal(e.msg, "top_p is 7");
    assert_string_equal(e.param, "top_p");
    err_wrap(&e, "request %d", 3);
    assert_string_equal(e.msg, "request 3: top_p is 7");
    assert_int_equal(e.code, ERR_RANGE);
    assert_string_equal(e.param, "top_p");
    err_set(&e, ERR_IO, "again: %s", e.msg); /* its own text as an argument */
    assert_string_equal(e.msg, "again: request 3: top_p is 7");
    assert_string_equal(e.param, "");
    errno = ENOENT;
    err_errno(&e, ERR_IO, "open '%s'", "a\nb");
    assert_string_equal(e.msg, "open 'a b': No such file or directory");
    assert_int_equal(err_set(NULL, ERR_IO, "x"), -1);
    assert_int_equal(err_wrap(NULL, "x"), -1);
    err_clear(&e);
    assert_int_equal(e.code, ERR_OK);
    assert_string_equal(e.msg, "");
}

static void err_cuts_whole_characters(void **state)
{
    char text[700];
    struct err e;

    (void)state;
    for (int shift = 0; shift < 3; shift++) {
        memset(text, 'a', (size_t)shift);
        for (size_t i = (size_t)shift; i + 3 < sizeof(text); i += 3)
            memcpy(text + i, "\xE2\x82\xAC", 4);
        err_set(&e, ERR_IO, "%s", text);
        assert_int_equal((strlen(e.msg) - (size_t)shift) % 3, 0);
        err_wrap(&e, "xy");
        assert_int_equal((strlen(e.msg) - 4 - (size_t)shift) % 3, 0);
        assert_true(strlen(e.msg) > sizeof(e.msg) - 5);
    }
}

static void err_table(void **state)
{
    (void)state;
    assert_int_equal(err_status(ERR_BUSY), 429);
    assert_int_equal(err_exit(ERR_UNAVAIL), 6);
    assert_int_equal(err_reply(ERR_NOTFOUND), 1200);
    assert_string_equal(err_name(ERR_TOOBIG), "TOOBIG");
    assert_string_equal(err_type(ERR_RANGE), "invalid_request_error");
    assert_string_equal(err_name((enum err_code)999), "INTERNAL");
    for (int i = 1; i < ERR_COUNT; i++)
        for (int k = 0; k < i; k++)
            assert_int_not_equal(err_reply((enum err_code)i),
                                 err_reply((enum err_code)k));
}

static void mem_limits(void **state)
{
    size_t n = 7;
    void *p;

    (void)state;
    assert_int_equal(size_mul(SIZE_MAX / 2, 3, &n), -1);
    assert_int_equal(size_add(SIZE_MAX, 1, &n), -1);
    assert_int_equal(n, 7);
    assert_int_equal(size_mul(6, 7, &n), 0);
    assert_int_equal(n, 42);
    assert_null(try_calloc(SIZE_MAX / 2, 4));
    mem_fail_at(2);
    p = try_malloc(1);
    assert_non_null(p);
    assert_null(try_realloc(p, 10));
    assert_int_equal(mem_fail_count(), 2);
    p = try_realloc(p, 10);
    assert_non_null(p);
    mem_fail_at(0);
    free(p);
}

static void arena_keeps(void **state)
{
    struct arena *a = arena_new(64);
    char *s[100];

    (void)state;
    for (int i = 0; i < 100; i++) {
        char *big = arena_alloc(a, (size_t)(i * 7));
        assert_int_equal((uintptr_t)big % 16, 0);
        for (int k = 0; k < i * 7; k++)
            assert_int_equal(big[k], 0);
        memset(big, 'z', (size_t)(i * 7));
        s[i] = arena_strndup(a, "abcdef", (size_t)(i % 7));
    }
    for (int i = 0; i < 100; i++)
        assert_int_equal(strlen(s[i]), i % 7);
    arena_free(a);
    arena_free(NULL);
}

static void buf_grows(void **state)
{
    struct buf b;
    char *p;

    (void)state;
    buf_init(&b, 0);
    for (int i = 0; i < 10000; i++)
        buf_putc(&b, (char)('a' + i % 26));
    buf_printf(&b, "%0300d", 5);
    assert_int_equal(b.len, 10300);
    assert_int_equal(b.p[b.len], 0);
    buf_shift(&b, 10299);
    assert_string_equal(b.p, "5");
    buf_shift(&b, 9);
    assert_int_equal(b.len, 0);
    buf_puts(&b, "left");
    p = buf_take(&b);
    assert_string_equal(p, "left");
    free(p);
    p = buf_take(&b);
    assert_string_equal(p, "");
    free(p);
    buf_done(&b);
}

static void buf_limit(void **state)
{
    struct buf b;

    (void)state;
    buf_init(&b, 5);
    buf_puts(&b, "abc");
    buf_puts(&b, "def");
    assert_true(b.over);
    assert_string_equal(b.p, "abc");
    buf_puts(&b, "x"); /* nothing follows a gap */
    assert_string_equal(b.p, "abc");
    buf_clear(&b);
    buf_puts(&b, "abcde");
    assert_false(b.over);
    buf_putc(&b, 'f');
    assert_true(b.over);
    buf_done(&b);
    mem_fail_at(1);
    buf_puts(&b, "x");
    assert_true(b.over);
    mem_fail_at(0);
    buf_done(&b);
}

static void clock_moves(void **state)
{
    struct clock c;
    int64_t a = clock_now_us(clock_real());

    (void)state;
    assert_true(clock_now_us(clock_real()) >= a);
    assert_true(clock_wall_ms() > 1500000000000);
    clock_fake_init(&c, 100);
    clock_fake_advance(&c, 50);
    assert_int_equal(clock_now_us(&c), 150);
}

struct item {
    int v;
    struct list link;
};

static void list_orders(void **state)
{
    struct list head;
    struct item it[4];
    int seen = 0;

    (void)state;
    list_init(&head);
    assert_true(list_empty(&head));
    for (int i = 0; i < 4; i++) {
        it[i].v = i;
        if (i % 2)
            list_push(&head, &it[i].link);
        else
            list_push_front(&head, &it[i].link);
    } /* 2 0 1 3 */
    list_for_safe(l, next, &head)
    {
        struct item *x = list_entry(l, struct item, link);
        seen = seen * 10 + x->v;
        list_del(l);
    }
    assert_int_equal(seen, 2013);
    assert_true(list_empty(&head));
}

/* A line is one line, whatever is printed into it. */
static void log_one_line(void **state)
{
    char text[4096], long_text[3000];
    int fd[2], saved = dup(STDERR_FILENO);
    ssize_t n;

    (void)state;
    assert_int_equal(pipe(fd), 0);
    dup2(fd[1], STDERR_FILENO);
    memset(long_text, 'y', sizeof(long_text) - 1);
    long_text[sizeof(long_text) - 1] = '\0';
    log_open("prog", LOG_LV_WARN);
    log_info("not shown");
    log_error("a\nb\x1b[31m");
    log_warn("%s", long_text);
    dup2(saved, STDERR_FILENO);
    n = read(fd[0], text, sizeof(text) - 1);
    assert_true(n > 0);
    text[n] = '\0';
    assert_non_null(strstr(text, "prog: a b [31m\n"));
    assert_null(strstr(text, "not shown"));
    assert_int_equal(text[n - 1], '\n');
    assert_ptr_equal(strchr(strchr(text, '\n') + 1, '\n'), text + n - 1);
    close(fd[0]);
    close(fd[1]);
    close(saved);
    assert_int_equal(log_level_parse("debug"), LOG_LV_DEBUG);
    assert_int_equal(log_level_parse("loud"), -1);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(err_sentences), cmocka_unit_test(err_cuts_whole_characters),
    cmocka_unit_test(err_table),     cmocka_unit_test(mem_limits),
    cmocka_unit_test(arena_keeps),   cmocka_unit_test(buf_grows),
    cmocka_unit_test(buf_limit),     cmocka_unit_test(clock_moves),
    cmocka_unit_test(list_orders),   cmocka_unit_test(log_one_line),
};

TEST_MAIN("base", tests)
