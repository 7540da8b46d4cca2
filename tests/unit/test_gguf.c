/* The GGUF parser: every value kind, every fault with its sentence, hostile files. */
#include "daemon/serve/gguf.h"

#include "base/err.h"
#include "daemon/serve/model.h"
#include "daemon/serve/modelinfo.h"
#include "tests/files.h"

static struct buf file;
static struct gb g;

static int set_up(void **state)
{
    (void)state;
    buf_init(&file, 0);
    gb_init(&g);
    return 0;
}
static int tear_down(void **state)
{
    (void)state;
    buf_done(&file);
    gb_done(&g);
    return 0;
}

/* A sentence: the path, something after it, one line. */
static void check_sentence(const struct err *e)
{
    assert_int_not_equal(e->code, ERR_OK);
    assert_memory_equal(e->msg, "f.gguf: ", 8);
    assert_true(strlen(e->msg) > 20 && strlen(e->msg) < sizeof(e->msg));
    for (const char *p = e->msg; *p; p++)
        assert_true(*p >= ' ' && *p < 0x7f);
}

/* Parse an exact copy on the heap, so that a sanitizer sees the first byte too many. */
static int parse_copy(const void *p, size_t n, struct gguf **ret, void **ret_copy,
                      struct err *e)
{
    void *copy = malloc(n ? n : 1);

    assert_non_null(copy);
    memcpy(copy, p, n);
    *ret_copy = copy;
    return gguf_parse("f.gguf", copy, n, ret, e);
}

static void expect_fault(const struct buf *b, const char *part)
{
    struct gguf *out = NULL;
    struct err e = {0};
    void *copy;

    assert_int_equal(parse_copy(b->p, b->len, &out, &copy, &e), -1);
    assert_null(out);
    check_sentence(&e);
    if (!strstr(e.msg, part))
        fail_msg("expected '%s' in: %s", part, e.msg);
    free(copy);
}
static void expect_fault_g(const char *part)
{
    buf_clear(&file);
    gb_finish(&g, &file);
    expect_fault(&file, part);
    gb_done(&g);
    gb_init(&g);
}

/* One key of every kind. */
static struct gguf *every_kind(void)
{
    static const uint8_t sizes[] = {1, 1, 2, 2, 4, 4};
    const double d = -2.25;
    struct gguf *out;
    struct err e;

    for (uint32_t t = 0; t <= 5; t++) {
        char key[8] = {'k', (char)('0' + t), 0};
        uint64_t v = 100 + t;

        gb_key(&g, key, t);
        buf_add(&g.kv, &v, sizes[t]);
    }
    gb_f32(&g, "f32", 1.5f);
    gb_key(&g, "bool", 7);
    buf_add(&g.kv, "\1", 1);
    gb_str(&g, "str", "text");
    gb_key(&g, "u64", 10);
    put_u64(&g.kv, 1ull << 40);
    gb_key(&g, "i64", 11);
    put_u64(&g.kv, (uint64_t)-5);
    gb_key(&g, "f64", 12);
    buf_add(&g.kv, &d, 8);
    gb_strs(&g, "strs", 3);
    gb_key(&g, "ints", 9);
    put_u32(&g.kv, 3);
    put_u64(&g.kv, 2);
    buf_add(&g.kv, (int16_t[]){-7, 8}, 4);
    gb_key(&g, "nested", 9); /* [[u8: 1, 2], [u8]] */
    put_u32(&g.kv, 9);
    put_u64(&g.kv, 2);
    put_u32(&g.kv, 0);
    put_u64(&g.kv, 2);
    buf_add(&g.kv, "\1\2", 2);
    put_u32(&g.kv, 0);
    put_u64(&g.kv, 0);
    gb_finish(&g, &file);
    assert_int_equal(gguf_parse("f.gguf", file.p, file.len, &out, &e), 0);
    return out;
}

static void reads_every_scalar(void **state)
{
    struct gguf *out = every_kind();
    struct gguf_str s;
    struct err e;
    uint64_t u;
    double d;
    bool b;

    (void)state;
    assert_int_equal(gguf_u64(out, "k0", &u, &e), 0);
    assert_int_equal(u, 100);
    assert_int_equal(gguf_u64(out, "k3", &u, &e), 0);
    assert_int_equal(u, 103);
    assert_int_equal(gguf_u64(out, "u64", &u, &e), 0);
    assert_int_equal(u, 1ull << 40);
    assert_int_equal(gguf_u64(out, "absent", &u, &e), 1);
    assert_int_equal(gguf_u64(out, "i64", &u, &e), -1); /* negative */
    check_sentence(&e);
    assert_int_equal(gguf_u64(out, "str", &u, &e), -1);
    assert_non_null(strstr(e.msg, "key 'str' is STRING"));
    assert_int_equal(gguf_f64(out, "i64", &d, &e), 0);
    assert_true(d == -5);
    assert_int_equal(gguf_f64(out, "f64", &d, &e), 0);
    assert_true(d == -2.25);
    assert_int_equal(gguf_f64(out, "f32", &d, &e), 0);
    assert_true(d == 1.5);
    assert_int_equal(gguf_f64(out, "strs", &d, &e), -1);
    assert_int_equal(gguf_bool(out, "bool", &b, &e), 0);
    assert_true(b);
    assert_int_equal(gguf_bool(out, "k0", &b, &e), -1);
    assert_int_equal(gguf_string(out, "str", &s, &e), 0);
    assert_int_equal(s.n, 4);
    assert_memory_equal(s.p, "text", 4);
    assert_int_equal(gguf_string(out, "k0", &s, &e), -1);
    gguf_free(out);
}

static void reads_arrays(void **state)
{
    struct gguf *out = every_kind();
    struct gguf_str strs[4];
    struct err e;
    int32_t ints[2];
    float floats[2];
    size_t n;

    (void)state;
    assert_int_equal(gguf_arr_len(out, "strs", &n, &e), 0);
    assert_int_equal(n, 3);
    assert_int_equal(gguf_arr_len(out, "str", &n, &e), -1);
    assert_int_equal(gguf_arr_strings(out, "strs", strs, 3, &e), 0);
    assert_memory_equal(strs[2].p, "c", 1);
    assert_int_equal(gguf_arr_strings(out, "strs", strs, 4, &e), -1);
    assert_int_equal(gguf_arr_strings(out, "ints", strs, 2, &e), -1);
    assert_int_equal(gguf_arr_i32(out, "ints", ints, 2, &e), 0);
    assert_int_equal(ints[0], -7);
    assert_int_equal(gguf_arr_i32(out, "strs", ints, 2, &e), -1);
    assert_int_equal(gguf_arr_f32(out, "ints", floats, 2, &e), 0);
    assert_true(floats[1] == 8.0f);
    assert_int_equal(gguf_arr_f32(out, "absent", floats, 2, &e), 1);
    assert_int_equal(gguf_arr_i32(out, "nested", ints, 2, &e), -1);
    assert_true(gguf_has(out, "nested") && !gguf_has(out, "nest"));
    gguf_free(out);
}

/* Somebody writes into the file after it was opened. */
static void survives_a_change_after_parsing(void **state)
{
    const uint64_t huge = UINT64_MAX;
    struct gguf_str s, strs[3];
    struct gguf *out;
    struct err e;
    char *at;

    (void)state;
    gb_str(&g, "str", "text");
    gb_strs(&g, "strs", 3);
    gb_finish(&g, &file);
    assert_int_equal(gguf_parse("f.gguf", file.p, file.len, &out, &e), 0);
    at = memmem(file.p, file.len, "text", 4);
    assert_non_null(at);
    memcpy(at - 8, &huge, 8);
    memcpy(file.p + file.len - 9, &huge, 8); /* the last string's length */
    assert_int_equal(gguf_string(out, "str", &s, &e), -1);
    assert_non_null(strstr(e.msg, "key 'str' has changed"));
    assert_int_equal(gguf_arr_strings(out, "strs", strs, 3, &e), -1);
    assert_non_null(strstr(e.msg, "key 'strs' has changed"));
    gguf_free(out);
}

static void finds_tensors(void **state)
{
    const struct gguf_tensor *t;
    struct gguf *out;
    struct err e;

    (void)state;
    tiny_gguf(&file, "llama", "Q4_0", NULL);
    assert_int_equal(gguf_parse("f.gguf", file.p, file.len, &out, &e), 0);
    assert_int_equal(gguf_n_tensors(out), 3 + 9 * T_LAYER);
    t = gguf_find(out, "blk.1.ffn_down.weight");
    assert_non_null(t);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->dims[0], T_FF);
    assert_int_equal(t->dims[1], T_EMBD);
    assert_int_equal(t->bytes, T_FF / 32 * 18 * T_EMBD);
    assert_true((const char *)t->data + t->bytes <= file.p + file.len);
    assert_null(gguf_find(out, "blk.2.ffn_down.weight"));
    assert_null(gguf_tensor(out, 3 + 9 * T_LAYER));
    gguf_free(out);
}

static void names_faults_of_the_header(void **state)
{
    (void)state;
    buf_puts(&file, "GGU");
    expect_fault(&file, "not a GGUF file");
    buf_clear(&file);
    buf_puts(&file, "GGML................................");
    expect_fault(&file, "not a GGUF file");
    buf_clear(&file);
    buf_add(&file, "GGUF\3\0\0\0\0", 9);
    expect_fault(&file, "ends inside the header");
    g.version = 1;
    expect_fault_g("GGUF version 1; served: version 3");
    g.version = 0x03000000;
    expect_fault_g("big-endian");
    g.n_kv = UINT64_MAX;
    expect_fault_g("counts 18446744073709551615 keys");
    g.n_tensors = 1ull << 61;
    expect_fault_g("counts 2305843009213693952 tensors");
    g.n_kv = 70000;
    put_zeros(&g.kv, 70000 * 14);
    expect_fault_g("at most 65536");
}

static void takes_version_2(void **state)
{
    struct gguf *out;
    struct err e;

    (void)state;
    g.version = 2;
    gb_u32(&g, "a", 1);
    gb_finish(&g, &file);
    assert_int_equal(gguf_parse("f.gguf", file.p, file.len, &out, &e), 0);
    gguf_free(out);
}

static void names_faults_of_keys(void **state)
{
    (void)state;
    gb_u32(&g, "same", 1);
    gb_u32(&g, "same", 2);
    expect_fault_g("key 'same' is there twice");
    gb_u32(&g, "", 1);
    expect_fault_g("is no name");
    gb_key(&g, "k", 13);
    put_u64(&g.kv, 0);
    expect_fault_g("value of type 13");
    gb_key(&g, "k\x1b[2J\n", 99); /* nothing of it reaches a terminal */
    put_u64(&g.kv, 0);
    expect_fault_g("key 'k?[2J?'");
    gb_key(&g, "b", 7);
    buf_add(&g.kv, "\2", 1);
    expect_fault_g("BOOL of value 2");
    gb_key(&g, "s", 8);
    put_u64(&g.kv, 1ull << 63);
    expect_fault_g("reaches beyond the end");
    gb_key(&g, "a", 9);
    put_u32(&g.kv, 10);
    put_u64(&g.kv, 1ull << 61); /* x 8 bytes overflows to 0 */
    expect_fault_g("reaches beyond the end");
    gb_key(&g, "a", 9);
    put_u32(&g.kv, 8);
    put_u64(&g.kv, 1000000);
    put_zeros(&g.kv, 800);
    expect_fault_g("reaches beyond the end");
    gb_key(&g, "deep", 9);
    for (int i = 0; i < 9; i++) {
        put_u32(&g.kv, 9);
        put_u64(&g.kv, 1);
    }
    expect_fault_g("at most 4 deep");
    gb_u32(&g, "general.alignment", 24);
    expect_fault_g("general.alignment is 24");
    gb_u32(&g, "general.alignment", 0);
    expect_fault_g("general.alignment is 0");
    gb_str(&g, "general.alignment", "32");
    expect_fault_g("right is an integer");
}

static void names_faults_of_tensors(void **state)
{
    const uint64_t one[4] = {8, 1, 1, 1}, zero[2] = {8, 0}, part[2] = {33, 2};
    const uint64_t wide[4] = {1u << 31, 1u << 31, 1u << 31, 8}, huge[2] = {1ull << 62, 1};

    (void)state;
    gb_entry(&g, "a", 0, one, 0, 0);
    put_zeros(&g.table, 64);
    expect_fault_g("tensor 'a' has 0 dimensions");
    gb_entry(&g, "a", 5, (uint64_t[]){1, 1, 1, 1, 1}, 0, 0);
    expect_fault_g("tensor 'a' has 5 dimensions");
    gb_entry(&g, "a", 2, zero, 0, 0);
    expect_fault_g("dimension 1 of tensor 'a' is 0");
    gb_entry(&g, "a", 4, wide, 0, 0);
    expect_fault_g("no 63-bit number");
    gb_entry(&g, "a", 1, huge, 0, 0);
    expect_fault_g("tensor 'a'");
    gb_entry(&g, "a", 2, part, gguf_number("Q4_0"), 0);
    expect_fault_g("no whole number of Q4_0 blocks of 32");
    gb_entry(&g, "a", 1, one, 0, 4);
    put_zeros(&g.data, 64);
    expect_fault_g("no multiple of the alignment 32");
    gb_entry(&g, "a", 1, one, 0, 64);
    put_zeros(&g.data, 64);
    expect_fault_g("needs 32 bytes at 64 but the file has 64 bytes");
    gb_entry(&g, "a", 1, one, 0, UINT64_MAX - 31);
    put_zeros(&g.data, 64);
    expect_fault_g("needs 32 bytes");
    gb_entry(&g, "a", 1, one, 10, 96); /* also of a type that is not served */
    put_zeros(&g.data, 64);
    expect_fault_g("needs 0 bytes at 96");
    gb_tensor(&g, "a", 0, 8, 0, NULL, 32);
    gb_tensor(&g, "a", 0, 8, 0, NULL, 32);
    expect_fault_g("tensor 'a' is there twice");
    gb_tensor(&g, "", 0, 8, 0, NULL, 32);
    expect_fault_g("no good name");
    gb_tensor(&g,
              "0123456789012345678901234567890123456789012345678901234567890123456789"
              "0123456789012345678901234567890123456789012345678901234567890123456789",
              0, 8, 0, NULL, 32);
    expect_fault_g("no good name: right are 1 to 127 bytes");
}

static void keeps_tensors_of_unknown_type(void **state)
{
    struct gguf *out;
    struct err e;

    (void)state;
    gb_u32(&g, "general.alignment", 64);
    g.align = 64;
    gb_tensor(&g, "q2", 10, 256, 2, NULL, 168);
    gb_finish(&g, &file);
    assert_int_equal(gguf_parse("f.gguf", file.p, file.len, &out, &e), 0);
    assert_int_equal(gguf_tensor(out, 0)->bytes, 0);
    assert_int_equal(gguf_tensor(out, 0)->type, 10);
    gguf_free(out);
}

/* ---- hostile files ---- */

/* Parse a mutation; whatever comes back must hold. */
static void survive(const void *p, size_t n)
{
    struct gguf *out = NULL;
    struct model_info info;
    struct err e = {0};
    void *copy;

    if (parse_copy(p, n, &out, &copy, &e) < 0) {
        check_sentence(&e);
        free(copy);
        return;
    }
    for (size_t i = 0; i < gguf_n_tensors(out); i++) {
        const struct gguf_tensor *t = gguf_tensor(out, i);
        const char *from = t->data;

        assert_true(from >= (char *)copy && from + t->bytes <= (char *)copy + n);
    }
    if (modelinfo_from_gguf(out, "f.gguf", &info, &e) < 0)
        check_sentence(&e);
    gguf_free(out);
    free(copy);
}

/* Bytes before the data. */
static size_t head_len(void)
{
    struct gguf *out;
    size_t n;

    assert_int_equal(gguf_parse("f.gguf", file.p, file.len, &out, NULL), 0);
    n = (size_t)((const char *)gguf_tensor(out, 0)->data - file.p);
    gguf_free(out);
    return n;
}

static void survives_any_cut(void **state)
{
    struct rlimit old;

    (void)state;
    tiny_gguf(&file, "llama", "Q8_0", NULL);
    files_limit_memory(16 << 20, &old);
    for (size_t n = 0; n < file.len; n += n < 8192 ? 1 : 61)
        survive(file.p, n);
    files_unlimit_memory(&old);
}

static void survives_any_number(void **state)
{
    static const uint64_t evil[] = {
        0,          1,         0x7fffffff, 0x80000000,          0xffffffff, 1ull << 32,
        1ull << 61, INT64_MAX, 1ull << 63, UINT64_MAX - 0xffff, UINT64_MAX,
    };
    struct rlimit old;
    uint64_t was;
    size_t head;

    (void)state;
    tiny_gguf(&file, "llama", "Q4_0", NULL);
    head = head_len();
    files_limit_memory(16 << 20, &old);
    for (size_t at = 0; at + 8 <= head; at++) {
        memcpy(&was, file.p + at, 8);
        for (size_t i = 0; i < sizeof(evil) / sizeof(evil[0]); i++) {
            memcpy(file.p + at, &evil[i], 8);
            survive(file.p, file.len);
            memcpy(file.p + at, &evil[i], 4);
            memcpy(file.p + at + 4, (const char *)&was + 4, 4);
            survive(file.p, file.len);
        }
        memcpy(file.p + at, &was, 8);
    }
    files_unlimit_memory(&old);
}

static void survives_cuts_of_a_real_file(void **state)
{
    const char *path = test_demo_model();
    size_t n = 1800000; /* the header and a little data */
    struct rlimit old;
    FILE *f = fopen(path, "rb");
    char *p = malloc(n);

    (void)state;
    assert_non_null(f);
    assert_non_null(p);
    assert_int_equal(fread(p, 1, n, f), n);
    fclose(f);
    files_limit_memory(64 << 20, &old);
    for (size_t cut = 0; cut <= n; cut += 17977)
        survive(p, cut);
    files_unlimit_memory(&old);
    free(p);
}

static void survives_random_bytes(void **state)
{
    uint64_t seed = test_seed();
    struct rlimit old;
    size_t head;

    (void)state;
    tiny_gguf(&file, "qwen3", "Q5_1", NULL);
    head = head_len();
    files_limit_memory(16 << 20, &old);
    for (int round = 0; round < 20000; round++) {
        size_t at = test_rand(&seed) % head;
        char was = file.p[at];

        file.p[at] = (char)test_rand(&seed);
        survive(file.p, file.len);
        if (round % 7)
            file.p[at] = was; /* some faults stay and add up */
        if (round % 1000 == 0) {
            buf_clear(&file);
            tiny_gguf(&file, "qwen3", "Q5_1", NULL);
        }
    }
    files_unlimit_memory(&old);
}

#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        T(reads_every_scalar),
        T(reads_arrays),
        T(survives_a_change_after_parsing),
        T(finds_tensors),
        T(names_faults_of_the_header),
        T(takes_version_2),
        T(names_faults_of_keys),
        T(names_faults_of_tensors),
        T(keeps_tensors_of_unknown_type),
        T(survives_any_cut),
        T(survives_any_number),
        T(survives_cuts_of_a_real_file),
        T(survives_random_bytes),
    };

    return test_main(argc, argv, "gguf", tests, sizeof(tests) / sizeof(tests[0]));
}
