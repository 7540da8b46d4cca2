/* The heat map: lines that fit, few experts as a matrix, many each for itself; digits
 * where there is nothing better. */
#include "tests/test.h"

#include "base/buf.h"
#include "ctl/heat.h"
#include "ctl/show.c"
#include "ctl/table.c"
#include "ctl/heat.c"

/* n experts of loads 1, 2, 3 .. in d devices of s slots, in order; two layers. */
static json_t *made(int n, int d, int s)
{
    json_t *o =
        json_pack("{s:s,s:i,s:i,s:i,s:i,s:s,s:s,s:[],s:[],s:[]}", "instance", "main\x1b",
                  "n_experts", n, "n_devices", d, "n_slots", s, "n_layers", 2, "policy",
                  "auto", "reason", "", "moves", "layers", "device_ids");

    for (int i = 0; i < d; i++) {
        char id[16];

        snprintf(id, sizeof(id), "cpu%d", i);
        json_array_append_new(json_object_get(o, "device_ids"), json_string(id));
    }
    for (int l = 0; l < 2; l++) {
        json_t *y =
            json_pack("{s:i,s:f,s:f,s:f,s:i,s:[],s:[],s:[],s:[]}", "layer", l,
                      "imbalance", 2.0, "balancedness", 0.9, "balancedness_loaded", 0.5,
                      "copies", n, "load", "devices", "map", "shares");

        for (int e = 0; e < n; e++)
            json_array_append_new(json_object_get(y, "load"), json_real(e + 1));
        for (int i = 0; i < d * s; i++) {
            json_array_append_new(json_object_get(y, "map"),
                                  json_integer(i < n ? i : -1));
            json_array_append_new(json_object_get(y, "shares"), json_real(i < n));
        }
        for (int i = 0; i < d; i++)
            json_array_append_new(json_object_get(y, "devices"), json_real(i + 1));
        json_array_append_new(json_object_get(o, "layers"), y);
    }
    return o;
}

static char *drawn(int n, int d, int s, int layer, int width, enum heat_kind kind)
{
    struct show_style st = {.width = width, .colour = kind == HEAT_COLOURS};
    json_t *o = made(n, d, s);
    struct buf out;

    buf_init(&out, 0);
    if (layer >= 0)
        json_array_remove(json_object_get(o, "layers"), (size_t)!layer);
    heat_instance(o, layer, &st, kind, &out);
    json_decref(o);
    return buf_take(&out);
}

/* The widest line, escapes apart. */
static int widest(const char *p)
{
    int most = 0, n = 0;

    for (; *p; p++) {
        if (*p == '\x1b') {
            p += strcspn(p, "m");
            continue;
        }
        n = *p == '\n' ? 0 : n + (((unsigned char)*p & 0xc0) != 0x80);
        most = n > most ? n : most;
    }
    return most;
}

static void test_fits(void **state)
{
    static const int sizes[][3] = {{8, 8, 2}, {64, 16, 5}, {256, 72, 4}, {4, 2, 3}};
    (void)state;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (int width = 80; width <= 240; width += 53)
            for (int layer = -1; layer < 2; layer++)
                for (enum heat_kind k = HEAT_DIGITS; k <= HEAT_COLOURS; k++) {
                    char *s =
                        drawn(sizes[i][0], sizes[i][1], sizes[i][2], layer, width, k);

                    if (widest(s) > width)
                        fail_msg("%d of %d: %s", widest(s), width, s);
                    assert_null(strstr(s, "main\x1b"));
                    free(s);
                }
}

static void test_matrix(void **state)
{
    char *s = drawn(4, 2, 3, 1, 80, HEAT_DIGITS);

    (void)state;
    assert_non_null(
        strstr(s, "layer 1  R 2.00  balancedness 0.500 as loaded, 0.900 now"));
    assert_non_null(strstr(s, "DEVICE    E0   E1   E2   E3   LOAD\n"));
    /* loads over the mean device load, 1.5 */
    assert_non_null(strstr(s, "cpu0    0.67 1.33 2.00    .   0.67 "));
    assert_non_null(strstr(s, "copies     1    1    1    1\n"));
    free(s);
}

static void test_digits_and_bins(void **state)
{
    char *s = drawn(4, 2, 3, -1, 80, HEAT_DIGITS);

    (void)state;
    /* 1 2 3 4 over 2.5; 1 2 over 1.5; in quarters */
    assert_non_null(strstr(s, "    0   2.00   0.500  0.900        4  1346     25\n"));
    free(s);
    s = drawn(256, 72, 4, -1, 80, HEAT_DIGITS);
    assert_non_null(strstr(s, "several share a cell"));
    free(s);
}

/* Before anything was counted or moved the figures of nothing are not there as figures.
 */
static void test_nothing_yet(void **state)
{
    struct show_style st = {.width = 80};
    json_t *o = made(4, 2, 3), *y;
    struct buf out;
    size_t i;
    (void)state;

    json_array_foreach(json_object_get(o, "layers"), i, y) for (size_t e = 0; e < 4; e++)
        json_array_set_new(json_object_get(y, "load"), e, json_real(0));
    buf_init(&out, 0);
    heat_instance(o, -1, &st, HEAT_DIGITS, &out);
    assert_non_null(strstr(out.p, "moves  none yet\n"));
    assert_non_null(strstr(out.p, "none were counted yet"));
    buf_done(&out);
    json_object_set_new(o, "moves_done", json_integer(3));
    buf_init(&out, 0);
    heat_instance(o, -1, &st, HEAT_DIGITS, &out);
    assert_non_null(strstr(out.p, "moves  3 done, 0 aborted, "));
    assert_null(strstr(out.p, "the last added")); /* no step ran meanwhile */
    buf_done(&out);
    json_decref(o);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_fits),
    cmocka_unit_test(test_matrix),
    cmocka_unit_test(test_digits_and_bins),
    cmocka_unit_test(test_nothing_yet),
};
TEST_MAIN("heat", tests)
