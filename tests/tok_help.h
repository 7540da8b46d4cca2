/* tests/tok_help.h - what the tokenizer's test binaries share: vocabularies at hand, and
 * small ones of bytes plus added tokens, made as tokenizer.json text. */
#ifndef TESTS_TOK_HELP_H
#define TESTS_TOK_HELP_H

#include "tests/test.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "daemon/serve/gguf.h"
#include "daemon/serve/tokenizer.h"
#include "daemon/serve/unicode.h"

#define TEST(name) static void name(void **state __attribute__((unused)))
#define UNUSED_OK __attribute__((unused))

UNUSED_OK static struct buf slurp(const char *path)
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
UNUSED_OK static struct tokenizer *open_gguf(const char *path)
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

UNUSED_OK static struct tokenizer *open_vector_vocab(const char *name)
{
    char rel[256];

    snprintf(rel, sizeof(rel), "tokenizer-vectors/vocab-gguf/ggml-vocab-%s.gguf", name);
    return open_gguf(test_shared(rel));
}

UNUSED_OK static struct tok_ids encode(const struct tokenizer *t, const char *p, size_t n,
                                       int flags)
{
    struct tok_ids ids = {0};
    struct err e = {0};

    if (tokenizer_encode(t, p, n, flags, 0, NULL, &ids, &e) < 0)
        fail_msg("%s", e.msg);
    return ids;
}

/* Random valid UTF-8 of n characters. */
UNUSED_OK static struct buf random_text(uint64_t *seed, int n)
{
    static const uint32_t top[] = {0x80, 0x80, 0x80, 0x300, 0x800, 0xd800, 0x110000};
    struct buf b;

    buf_init(&b, 0);
    buf_add(&b, "", 0);
    for (int i = 0; i < n; i++) {
        uint32_t cp = (uint32_t)test_rand(seed) % top[test_rand(seed) % 7];
        char c[4];
        if (cp < 0xd800 || cp > 0xdfff)
            buf_add(&b, c, (size_t)utf8_put(cp, c));
    }
    return b;
}

/* The printable character that stands for a byte in byte-level vocabularies. */
UNUSED_OK static int byte_char(int byte, char out[4])
{
    int n = 0;

    if ((byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae)
        return utf8_put((uint32_t)byte, out);
    for (int b = 0; b < byte; b++)
        n += !((b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae);
    return utf8_put(256 + (uint32_t)n, out);
}

/* tokenizer.json: ids 0..255 are the bytes; then `added`, NULL-ended; a leading '+' makes
 * one user-defined, not control. pre and normalizer are JSON. */
UNUSED_OK static struct buf tiny_json(const char *const *added, const char *pre,
                                      const char *normalizer)
{
    struct buf b;
    struct jw w;

    buf_init(&b, 0);
    jw_init(&w, &b);
    jw_obj(&w);
    jw_key(&w, "normalizer");
    jw_raw(&w, normalizer);
    jw_key(&w, "pre_tokenizer");
    jw_raw(&w, pre);
    jw_key(&w, "added_tokens");
    jw_arr(&w);
    for (int i = 0; added[i]; i++) {
        jw_obj(&w);
        jw_kint(&w, "id", 256 + i);
        jw_kstr(&w, "content", added[i] + (added[i][0] == '+'));
        jw_kbool(&w, "special", added[i][0] != '+');
        jw_obj_end(&w);
    }
    jw_arr_end(&w);
    jw_key(&w, "model");
    jw_obj(&w);
    jw_kstr(&w, "type", "BPE");
    jw_key(&w, "merges");
    jw_raw(&w, "[]");
    jw_key(&w, "vocab");
    jw_obj(&w);
    for (int i = 0; i < 256; i++) {
        char c[5] = {0};
        c[byte_char(i, c)] = '\0';
        jw_kint(&w, c, i);
    }
    jw_obj_end(&w);
    jw_obj_end(&w);
    jw_obj_end(&w);
    return b;
}

#define PRE_GPT2 "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}"

UNUSED_OK static struct tokenizer *open_tiny(const char *const *added, const char *config)
{
    struct buf b = tiny_json(added, PRE_GPT2, "null");
    struct tokenizer *t = NULL;
    struct err e = {0};

    if (tokenizer_open_json("tiny", b.p, b.len, config, config ? strlen(config) : 0, &t,
                            &e) < 0)
        fail_msg("%s", e.msg);
    buf_done(&b);
    return t;
}

#endif
