/* The safetensors parser and the index of shards: what is right, each fault, hostile
 * text. */
#include "daemon/serve/safetensors.h"

#include "base/err.h"
#include "tests/files.h"

static void check_sentence(const struct err *e)
{
    assert_int_not_equal(e->code, ERR_OK);
    assert_memory_equal(e->msg, "f.st: ", 6);
    assert_true(strlen(e->msg) > 20 && strlen(e->msg) < sizeof(e->msg));
    for (const char *p = e->msg; *p; p++)
        assert_true(*p >= ' ');
}

static int parse_copy(const void *p, size_t n, struct safetensors **ret, void **ret_copy,
                      struct err *e)
{
    *ret_copy = malloc(n ? n : 1);
    assert_non_null(*ret_copy);
    memcpy(*ret_copy, p, n);
    return safetensors_parse("f.st", *ret_copy, n, ret, e);
}

/* A file with this header and n bytes of data. */
static void make(struct buf *b, const char *head, size_t n)
{
    buf_clear(b);
    put_u64(b, strlen(head));
    buf_puts(b, head);
    put_zeros(b, n);
}

static void expect_fault(const char *head, size_t n, const char *part)
{
    struct safetensors *out = NULL;
    struct err e = {0};
    struct buf b;
    void *copy;

    buf_init(&b, 0);
    make(&b, head, n);
    assert_int_equal(parse_copy(b.p, b.len, &out, &copy, &e), -1);
    assert_null(out);
    check_sentence(&e);
    if (!strstr(e.msg, part))
        fail_msg("expected '%s' in: %s", part, e.msg);
    free(copy);
    buf_done(&b);
}

static void reads_a_header(void **state)
{
    const struct safetensors_tensor *t;
    struct safetensors *out;
    struct buf b;
    struct err e;

    (void)state;
    buf_init(&b, 0);
    make(&b,
         "{\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
         "\"__metadata__\":{\"format\":\"pt\"},"
         "\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
         "\"c\":{\"dtype\":\"NEW\",\"shape\":[7,0],\"data_offsets\":[3,5]}}   ",
         16);
    assert_int_equal(safetensors_parse("f.st", b.p, b.len, &out, &e), 0);
    assert_int_equal(safetensors_count(out), 3);
    assert_string_equal(safetensors_at(out, 0)->name, "a");
    assert_int_equal(safetensors_at(out, 0)->n_dims, 0);
    t = safetensors_find(out, "b");
    assert_non_null(t);
    assert_string_equal(t->type, "BF16");
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->dims[1], 3);
    assert_int_equal(t->bytes, 12);
    assert_ptr_equal(t->data, b.p + b.len - 12);
    assert_null(safetensors_find(out, "d"));
    assert_null(safetensors_find(out, "__metadata__"));
    assert_null(safetensors_at(out, 3));
    safetensors_free(out);
    buf_done(&b);
}

#define TENSOR(type, shape, offs)                                                        \
    "{\"t\":{\"dtype\":" type ",\"shape\":" shape ",\"data_offsets\":" offs "}}"

static void names_faults(void **state)
{
    struct safetensors *out;
    struct err e;

    (void)state;
    assert_int_equal(safetensors_parse("f.st", "\1\0\0\0", 4, &out, &e), -1);
    check_sentence(&e);
    assert_int_equal(
        safetensors_parse("f.st", "\377\377\377\377\377\377\377\377{}", 10, &out, &e),
        -1);
    assert_non_null(strstr(e.msg, "18446744073709551615 bytes"));
    expect_fault("", 8, "not a safetensors file");
    expect_fault("PK", 8, "not a safetensors file");
    expect_fault("{\"a\":", 0, "its header is broken");
    expect_fault("{\"a\":1,\"a\":1}", 0, "broken");
    expect_fault("{\"a\":[[[[[[1]]]]]]}", 0, "deeper");
    expect_fault("{\"t\":1}", 0, "tensor 't' has no \"dtype\"");
    expect_fault(TENSOR("\"\"", "[1]", "[0,4]"), 4, "no \"dtype\"");
    expect_fault(TENSOR("\"F32F32F32F32\"", "[1]", "[0,4]"), 4, "no \"dtype\"");
    expect_fault(TENSOR("\"F32\"", "1", "[0,4]"), 4, "\"shape\"");
    expect_fault(TENSOR("\"F32\"", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4, "\"shape\"");
    expect_fault(TENSOR("\"F32\"", "[-1]", "[0,4]"), 4, "dimension 0 of tensor 't'");
    expect_fault(TENSOR("\"F32\"", "[1.5]", "[0,4]"), 4, "dimension 0 of tensor 't'");
    expect_fault(TENSOR("\"F32\"", "[4294967296,4294967296]", "[0,4]"), 4, "too large");
    expect_fault(TENSOR("\"F32\"", "[9223372036854775807]", "[0,4]"), 4, "too large");
    expect_fault(TENSOR("\"F32\"", "[1]", "[0]"), 4, "\"data_offsets\"");
    expect_fault(TENSOR("\"F32\"", "[1]", "[4,0]"), 4, "\"data_offsets\"");
    expect_fault(TENSOR("\"F32\"", "[1]", "[-4,0]"), 4, "\"data_offsets\"");
    expect_fault(TENSOR("\"F32\"", "[1]", "[0,5]"), 4, "reaches to 5");
    expect_fault(TENSOR("\"F32\"", "[2]", "[0,4]"), 4, "2 elements of F32 take 8");
    expect_fault("{\"\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
                 "no good name");
}

static void refuses_headers_that_would_grow(void **state)
{
    struct rlimit old;
    struct buf b;

    (void)state;
    buf_init(&b, 0);
    buf_puts(&b, "{\"t\":[");
    for (int i = 0; i < 1100000; i++)
        buf_puts(&b, "0,");
    buf_puts(&b, "0]}");
    files_limit_memory(16 << 20, &old);
    expect_fault(b.p, 0, "larger than");
    files_unlimit_memory(&old);
    buf_done(&b);
}

static void survive(const void *p, size_t n)
{
    struct safetensors *out = NULL;
    struct err e = {0};
    void *copy;

    if (parse_copy(p, n, &out, &copy, &e) < 0)
        check_sentence(&e);
    for (size_t i = 0; out && i < safetensors_count(out); i++) {
        const struct safetensors_tensor *t = safetensors_at(out, i);

        assert_true((const char *)t->data >= (char *)copy + 8);
        assert_true((const char *)t->data + t->bytes <= (char *)copy + n);
    }
    safetensors_free(out);
    free(copy);
}

static void survives_cuts_and_changes(void **state)
{
    uint64_t seed = test_seed(), len;
    struct rlimit old;
    struct buf b;

    (void)state;
    buf_init(&b, 0);
    tiny_shard(&b, "BF16", "model.", 0, 4, 0, NULL);
    memcpy(&len, b.p, 8);
    files_limit_memory(16 << 20, &old);
    for (size_t n = 0; n < b.len; n += n < 8 + len ? 1 : 97)
        survive(b.p, n);
    for (int round = 0; round < 10000; round++) {
        size_t at = test_rand(&seed) % (8 + len);
        char was = b.p[at];

        b.p[at] = round % 2 ? "0123456789[]{},:\"-"[test_rand(&seed) % 18]
                            : (char)test_rand(&seed);
        survive(b.p, b.len);
        b.p[at] = was;
    }
    files_unlimit_memory(&old);
    buf_done(&b);
}

static void reads_an_index(void **state)
{
    static const char text[] =
        "{\"metadata\":{\"total_size\":8},\"weight_map\":{\"z\":\"b.safetensors\","
        "\"y\":\"a.safetensors\",\"x\":\"b.safetensors\"}}";
    struct safetensors_index x;
    struct err e;

    (void)state;
    assert_int_equal(safetensors_index_parse("f.st", text, sizeof(text) - 1, &x, &e), 0);
    assert_int_equal(x.n_files, 2);
    assert_string_equal(x.files[0], "a.safetensors");
    assert_int_equal(x.n_names, 3);
    assert_string_equal(x.names[0], "x");
    assert_int_equal(x.file_of[0], 1);
    assert_int_equal(x.file_of[1], 0);
    assert_int_equal(x.file_of[2], 1);
    safetensors_index_done(&x);
}

static void refuses_bad_indexes(void **state)
{
    static const struct {
        const char *text, *part;
    } bad[] = {
        {"[]", "no JSON object"},
        {"{\"weight_map\":", "broken"},
        {"{}", "\"weight_map\" is missing"},
        {"{\"weight_map\":{}}", "\"weight_map\" is missing"},
        {"{\"weight_map\":[1]}", "\"weight_map\" is missing"},
        {"{\"weight_map\":{\"a\":1}}", "tensor 'a' is said to be in ''"},
        {"{\"weight_map\":{\"a\":\"../b.safetensors\"}}", "same folder"},
        {"{\"weight_map\":{\"a\":\"/b.safetensors\"}}", "same folder"},
        {"{\"weight_map\":{\"a\":\".safetensors\"}}", "same folder"},
        {"{\"weight_map\":{\"a\":\"b.bin\"}}", "same folder"},
    };
    struct safetensors_index x;
    struct err e;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        err_clear(&e);
        assert_int_equal(
            safetensors_index_parse("f.st", bad[i].text, strlen(bad[i].text), &x, &e),
            -1);
        check_sentence(&e);
        if (!strstr(e.msg, bad[i].part))
            fail_msg("expected '%s' in: %s", bad[i].part, e.msg);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_a_header),
        cmocka_unit_test(names_faults),
        cmocka_unit_test(refuses_headers_that_would_grow),
        cmocka_unit_test(survives_cuts_and_changes),
        cmocka_unit_test(reads_an_index),
        cmocka_unit_test(refuses_bad_indexes),
    };

    return test_main(argc, argv, "safetensors", tests, sizeof(tests) / sizeof(tests[0]));
}
