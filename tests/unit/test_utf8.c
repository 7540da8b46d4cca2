/* UTF-8 steps, the streaming hold-back and NFC. */
#include "tests/tok_help.h"

#include <utf8proc.h>

struct step {
    const char *bytes;
    size_t n;
    int want; /* of utf8_next */
};

TEST(steps)
{
    static const struct step steps[] = {
        {"a", 1, 1},
        {"\0", 1, 1},
        {"\x7f", 1, 1},
        {"\xc2\x80", 2, 2},
        {"\xdf\xbf", 2, 2},
        {"\xe0\xa0\x80", 3, 3},
        {"\xed\x9f\xbf", 3, 3},
        {"\xef\xbf\xbf", 3, 3},
        {"\xf0\x90\x80\x80", 4, 4},
        {"\xf4\x8f\xbf\xbf", 4, 4},
        /* cut off */
        {"\xc3", 1, 0},
        {"\xe2\x82", 2, 0},
        {"\xf0\x9f", 2, 0},
        {"\xf0\x9f\x98", 3, 0},
        /* never a character: stray, overlong, surrogate, too high */
        {"\x80", 1, -1},
        {"\xbf", 1, -1},
        {"\xc0\x80", 2, -1},
        {"\xc1\xbf", 2, -1},
        {"\xe0\x9f\xbf", 3, -1},
        {"\xed\xa0\x80", 3, -1},
        {"\xf0\x8f\xbf\xbf", 4, -1},
        {"\xf4\x90\x80\x80", 4, -1},
        {"\xf5\x80\x80\x80", 4, -1},
        {"\xff", 1, -1},
        /* maximal subparts */
        {"\xc3(", 2, -1},
        {"\xe2\x82(", 3, -2},
        {"\xf0\x9f\x98(", 4, -3},
    };

    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++)
        assert_int_equal(utf8_next(steps[i].bytes, steps[i].n, NULL), steps[i].want);
}

TEST(every_code_point)
{
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        uint32_t back = 0;
        char c[4];
        int n = utf8_put(cp, c), k = utf8_next(c, (size_t)n, &back);

        if (cp >= 0xd800 && cp <= 0xdfff) {
            assert_int_equal(k, -1);
            continue;
        }
        assert_int_equal(k, n);
        assert_int_equal(back, cp);
        for (int cut = 1; cut < n; cut++)
            assert_int_equal(utf8_next(c, (size_t)cut, NULL), 0);
    }
}

/* Byte by byte and in random pieces, the same text comes out, always whole characters. */
TEST(hold_is_invariant)
{
    uint64_t seed = test_seed();

    for (int round = 0; round < 2000; round++) {
        struct utf8_hold all = {.n = 0}, parts = {.n = 0};
        struct buf text = random_text(&seed, 12), a, b;

        for (int k = 0; k < 3 && text.len; k++) /* damage it */
            text.p[test_rand(&seed) % text.len] = (char)test_rand(&seed);
        buf_init(&a, 0);
        buf_init(&b, 0);
        utf8_hold_push(&all, text.p, text.len, true, &a);
        for (size_t at = 0; at < text.len;) {
            size_t n = 1 + test_rand(&seed) % 4;
            n = n > text.len - at ? text.len - at : n;
            utf8_hold_push(&parts, text.p + at, n, false, &b);
            assert_int_equal(utf8_span(b.p ? b.p : "", b.len), b.len);
            assert_true(parts.n < 4);
            at += n;
        }
        utf8_hold_push(&parts, NULL, 0, true, &b);
        assert_int_equal(parts.n, 0);
        assert_int_equal(a.len, b.len);
        assert_memory_equal(a.p ? a.p : "", b.p ? b.p : "", a.len);
        buf_done(&a);
        buf_done(&b);
        buf_done(&text);
    }
}

TEST(hold_replaces)
{
    struct utf8_hold h = {.n = 0};
    struct buf b;

    buf_init(&b, 0);
    utf8_hold_push(&h, "\xe2\x82", 2, false, &b);
    assert_int_equal(b.len, 0);
    utf8_hold_push(&h, "\xac", 1, false, &b);
    assert_string_equal(b.p, "\u20ac");
    utf8_hold_push(&h, "a\xf0\x9f\x98z\xff\xe2", 7, false, &b);
    assert_string_equal(b.p, "\u20aca\ufffdz\ufffd");
    utf8_hold_push(&h, NULL, 0, true, &b);
    assert_string_equal(b.p, "\u20aca\ufffdz\ufffd\ufffd");
    buf_done(&b);
}

static void assert_nfc(const char *p, size_t n)
{
    utf8proc_uint8_t *want = NULL;
    utf8proc_ssize_t k = utf8proc_map((const utf8proc_uint8_t *)p, (utf8proc_ssize_t)n,
                                      &want, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    struct err e = {0};
    struct buf b;

    buf_init(&b, 0);
    assert_true(k >= 0);
    assert_int_equal(unicode_nfc(p, n, &b, &e), 0);
    assert_int_equal(b.len, k);
    assert_memory_equal(b.p ? b.p : "", want, b.len);
    free(want);
    buf_done(&b);
}

TEST(nfc_as_utf8proc)
{
    static const uint32_t marks[] = {0x301, 0x316, 0x327, 0x338, 0x5b0, 0x93c, 0x3099};
    uint64_t seed = test_seed();

    assert_nfc("e\u0301", 3);
    assert_nfc("\u1e9b\u0323", 5);
    for (int round = 0; round < 1000; round++) {
        struct buf b = random_text(&seed, 6);
        for (int i = 0; i < 8; i++) {
            char c[4];
            buf_add(&b, c, (size_t)utf8_put(marks[test_rand(&seed) % 7], c));
            if (test_rand(&seed) % 4 == 0)
                buf_putc(&b, "aeoAn"[test_rand(&seed) % 5]);
        }
        assert_nfc(b.p, b.len);
        buf_done(&b);
    }
}

/* A million marks in falling order of class: quadratic reordering would not end here. */
TEST(nfc_is_linear)
{
    enum { N = 500000 };
    struct err e = {0};
    struct buf in, out;

    buf_init(&in, 0);
    buf_init(&out, 0);
    for (int i = 0; i < N; i++)
        buf_add(&in, i % 2 ? "\u0316" : "\u0301", 2);
    assert_int_equal(unicode_nfc(in.p, in.len, &out, &e), 0);
    assert_int_equal(out.len, in.len);
    assert_memory_equal(out.p, "\u0316", 2);
    assert_memory_equal(out.p + out.len - 2, "\u0301", 2);
    buf_done(&in);
    buf_done(&out);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(steps),
    cmocka_unit_test(every_code_point),
    cmocka_unit_test(hold_is_invariant),
    cmocka_unit_test(hold_replaces),
    cmocka_unit_test(nfc_as_utf8proc),
    cmocka_unit_test(nfc_is_linear),
};

TEST_MAIN("utf8", tests)
