/* Tokenizer: recorded vectors, damaged vocabularies, hostile texts, SPM against a naive
 * reference, tokenizer.json against the GGUF that it was made from. */
#include "tests/test.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "daemon/serve/gguf.h"
#include "daemon/serve/tokenizer.h"

#define TEST(name) static void name(void **state __attribute__((unused)))

/* ---- helpers ---- */

static struct buf slurp(const char *path)
{
    struct buf b;
    char tmp[65536];
    ssize_t k;
    int fd = open(path, O_RDONLY);

    assert_true(fd >= 0);
    buf_init(&b, 0);
    while ((k = read(fd, tmp, sizeof(tmp))) > 0)
        buf_add(&b, tmp, (size_t)k);
    close(fd);
    return b;
}

/* The map is gone when this returns: a tokenizer must own all that it needs. */
static struct tokenizer *open_gguf(const char *path)
{
    struct tokenizer *t = NULL;
    struct gguf *g = NULL;
    struct err e = {0};
    struct stat st;
    int fd = open(path, O_RDONLY);
    void *p;

    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    assert_true(p != MAP_FAILED);
    if (gguf_parse(path, p, (size_t)st.st_size, &g, &e) < 0 ||
        tokenizer_open_gguf(g, path, &t, &e) < 0)
        fail_msg("%s", e.msg);
    gguf_free(g);
    munmap(p, (size_t)st.st_size);
    close(fd);
    return t;
}

static struct tokenizer *open_demo(void) { return open_gguf(test_demo_model()); }

static struct tok_ids encode(const struct tokenizer *t, const char *p, size_t n,
                             int flags)
{
    struct tok_ids ids = {0};
    struct err e = {0};

    if (tokenizer_encode(t, p, n, flags, 0, NULL, &ids, &e) < 0)
        fail_msg("%s", e.msg);
    return ids;
}

static void assert_decodes(const struct tokenizer *t, const struct tok_ids *ids,
                           const char *p, size_t n)
{
    struct buf b;

    buf_init(&b, 0);
    tokenizer_decode(t, ids->v, ids->n, true, &b);
    assert_int_equal(b.len, n);
    assert_memory_equal(b.p ? b.p : "", p, n);
    buf_done(&b);
}

/* ---- recorded vectors ---- */

static struct buf slurp_vectors(const char *name, const char *ext)
{
    char rel[256];

    snprintf(rel, sizeof(rel), "tokenizer-vectors/ggml-vocab-%s.gguf.%s", name, ext);
    return slurp(test_shared(rel));
}

static int check_vectors(const struct tokenizer *t, const char *name)
{
    static const char sep[] = "\n__ggml_vocab_test__\n";
    struct buf inp = slurp_vectors(name, "inp"), out = slurp_vectors(name, "out");
    char *s = inp.p, *line = out.p, *end;
    int n = 0;

    while ((end = strstr(s, sep))) {
        struct tok_ids ids = encode(t, s, (size_t)(end - s), 0);
        char *eol = strchr(line, '\n');

        assert_non_null(eol);
        *eol = '\0';
        for (size_t i = 0; i < ids.n; i++)
            if (strtol(line, &line, 10) != ids.v[i])
                fail_msg("%s: string %d, token %zu is %d", name, n, i, ids.v[i]);
        if (*line)
            fail_msg("%s: string %d, '%s' is missing", name, n, line);
        assert_decodes(t, &ids, s, (size_t)(end - s));
        tok_ids_done(&ids);
        line = eol + 1;
        s = end + sizeof(sep) - 1;
        n++;
    }
    buf_done(&inp);
    buf_done(&out);
    return n;
}

static void vectors_of(const char *name)
{
    char rel[256];
    struct tokenizer *t;

    snprintf(rel, sizeof(rel), "tokenizer-vectors/vocab-gguf/ggml-vocab-%s.gguf", name);
    t = open_gguf(test_shared(rel));
    assert_int_equal(check_vectors(t, name), 46);
    tokenizer_free(t);
}

TEST(vectors_gpt2) { vectors_of("gpt-2"); }
TEST(vectors_starcoder) { vectors_of("starcoder"); }
TEST(vectors_deepseek_llm) { vectors_of("deepseek-llm"); }

TEST(vectors_smollm)
{
    struct tokenizer *t = open_demo();

    assert_int_equal(check_vectors(t, "smollm"), 46);
    assert_string_equal(tokenizer_kind(t), "bpe:smollm");
    tokenizer_free(t);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(vectors_gpt2),
    cmocka_unit_test(vectors_starcoder),
    cmocka_unit_test(vectors_deepseek_llm),
    cmocka_unit_test(vectors_smollm),
};

TEST_MAIN("tokenizer", tests)
