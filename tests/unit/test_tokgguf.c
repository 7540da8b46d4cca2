/* Tokenizers from GGUF metadata: damaged ones, and SPM against its plain definition. */
#include "tests/tok_help.h"

/* ---- a GGUF of metadata only ---- */

struct meta {
    struct buf b;
    uint64_t n;
};

enum { G_U32 = 4, G_I32 = 5, G_F32 = 6, G_BOOL = 7, G_STR = 8, G_ARR = 9 };

static void put_u32(struct buf *b, uint32_t v) { buf_add(b, &v, 4); }
static void put_u64(struct buf *b, uint64_t v) { buf_add(b, &v, 8); }

static void put_str(struct buf *b, const char *s)
{
    put_u64(b, strlen(s));
    buf_puts(b, s);
}

static void key(struct meta *m, const char *name, uint32_t type)
{
    char full[64];

    snprintf(full, sizeof(full), "tokenizer.%s", name);
    put_str(&m->b, full);
    put_u32(&m->b, type);
    m->n++;
}

static void arr(struct meta *m, const char *name, uint32_t type, size_t n)
{
    key(m, name, G_ARR);
    put_u32(&m->b, type);
    put_u64(&m->b, n);
}

static void add_str(struct meta *m, const char *name, const char *s)
{
    key(m, name, G_STR);
    put_str(&m->b, s);
}

static void add_u32(struct meta *m, const char *name, uint32_t v)
{
    key(m, name, G_U32);
    put_u32(&m->b, v);
}

static int meta_open(struct meta *m, struct tokenizer **ret, struct err *e)
{
    struct buf file;
    struct gguf *g = NULL;
    int rc;

    buf_init(&file, 0);
    buf_add(&file, "GGUF", 4);
    put_u32(&file, 3);
    put_u64(&file, 0);
    put_u64(&file, m->n);
    buf_add(&file, m->b.p, m->b.len);
    if (gguf_parse("made", file.p, file.len, &g, e) < 0)
        fail_msg("%s", e->msg);
    rc = tokenizer_open_gguf(g, "made", ret, e);
    gguf_free(g);
    buf_done(&file);
    buf_done(&m->b);
    return rc;
}

/* ---- damaged ---- */

struct damage {
    const char *model, *pre;
    int n_types; /* elements of token_type, -1 = no such key */
    int32_t type;
    const char *merge; /* the only one; NULL = no such key */
    uint32_t bos;
    enum err_code code;
    const char *says;
};

TEST(damaged_gguf)
{
    static const struct damage cases[] = {
        {"gpt2", "gpt2", 3, 1, "a b", 2, ERR_OK, ""},
        {"gpt2", "gpt2", -1, 1, "a b", 0, ERR_OK, ""},
        {"bert", "gpt2", 3, 1, "a b", 0, ERR_UNSUPPORTED, "these are: gpt2, llama"},
        {"gpt2", "viking", 3, 1, "a b", 0, ERR_UNSUPPORTED, "'viking'"},
        {"gpt2", "", 3, 1, "a b", 0, ERR_UNSUPPORTED, "these are: gpt2, smollm"},
        {"gpt2", "gpt2", 2, 1, "a b", 0, ERR_CORRUPT, "2 elements for 3"},
        {"gpt2", "gpt2", 3, 99, "a b", 0, ERR_CORRUPT, "type 99"},
        {"gpt2", "gpt2", 3, -1, "a b", 0, ERR_CORRUPT, "type -1"},
        {"gpt2", "gpt2", 3, 1, NULL, 0, ERR_CORRUPT, "merges' is missing"},
        {"gpt2", "gpt2", 3, 1, "ab", 0, ERR_CORRUPT, "merge 0 ('ab') is not two"},
        {"gpt2", "gpt2", 3, 1, "a ", 0, ERR_CORRUPT, "not two"},
        {"gpt2", "gpt2", 3, 1, "a c", 0, ERR_CORRUPT, "merge 0"},
        {"gpt2", "gpt2", 3, 1, "b a", 0, ERR_CORRUPT, "merge 0"},
        {"gpt2", "gpt2", 3, 1, "a b", 3, ERR_CORRUPT, "bos token id 3"},
        {"gpt2", "gpt2", 3, 1, "a b", UINT32_MAX, ERR_CORRUPT, "bos token id"},
        {"llama", "", 3, 1, NULL, 0, ERR_CORRUPT, "scores' is missing"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct damage *c = &cases[i];
        struct meta m = {.n = 0};
        struct tokenizer *t = NULL;
        struct err e = {0};

        buf_init(&m.b, 0);
        add_str(&m, "ggml.model", c->model);
        if (*c->pre)
            add_str(&m, "ggml.pre", c->pre);
        arr(&m, "ggml.tokens", G_STR, 3);
        put_str(&m.b, "a");
        put_str(&m.b, "b");
        put_str(&m.b, "ab");
        if (c->n_types >= 0)
            arr(&m, "ggml.token_type", G_I32, (size_t)c->n_types);
        for (int k = 0; k < c->n_types; k++)
            put_u32(&m.b, k ? 1 : (uint32_t)c->type);
        if (c->merge) {
            arr(&m, "ggml.merges", G_STR, 1);
            put_str(&m.b, c->merge);
        }
        add_u32(&m, "ggml.bos_token_id", c->bos);
        if (meta_open(&m, &t, &e) == 0)
            e.code = ERR_OK;
        if (e.code != c->code || !strstr(e.msg, c->says))
            fail_msg("case %zu: %s", i, e.msg);
        if (c->code != ERR_OK)
            assert_non_null(strstr(e.msg, "'made'"));
        tokenizer_free(t);
    }
}

/* ---- SPM ---- */

#define LOWBAR "\u2581"

struct spm {
    char piece[64][24];
    float score[64];
    int n;
};

static void spm_make(struct spm *v, uint64_t *seed, bool inner_space)
{
    static const char *const chars[] = {LOWBAR, "a", "b", "\u00e9", "c"};

    v->n = 0;
    for (int i = 0; i < 40; i++) {
        char p[24] = "";
        int len = i < 4 ? 1 : 2 + (int)(test_rand(seed) % 3);
        bool known = false;

        for (int k = 0; k < len; k++) {
            int c = i < 4 ? i : (int)(test_rand(seed) % 5);
            if (c == 0 && k && !inner_space && strcmp(p, LOWBAR) != 0)
                c = 1;
            strcat(p, chars[c]); /* "c" is no piece of its own */
        }
        for (int k = 0; k < v->n; k++)
            known |= !strcmp(v->piece[k], p);
        if (known)
            continue;
        v->score[v->n] = (float)-(int)(test_rand(seed) % 12);
        strcpy(v->piece[v->n++], p);
    }
}

/* Ids: 0 <unk>, 1 <s>, 2 </s>, 3..258 bytes, 259.. pieces. */
static struct tokenizer *spm_open(const struct spm *v, bool prefix)
{
    struct meta m = {.n = 0};
    struct tokenizer *t = NULL;
    struct err e = {0};
    size_t n = 259 + (size_t)v->n;
    char byte[8];

    buf_init(&m.b, 0);
    add_str(&m, "ggml.model", "llama");
    arr(&m, "ggml.tokens", G_STR, n);
    put_str(&m.b, "<unk>");
    put_str(&m.b, "<s>");
    put_str(&m.b, "ab"); /* a control token that merging must never make */
    for (int i = 0; i < 256; i++) {
        snprintf(byte, sizeof(byte), "<0x%02X>", i);
        put_str(&m.b, byte);
    }
    for (int i = 0; i < v->n; i++)
        put_str(&m.b, v->piece[i]);
    arr(&m, "ggml.scores", G_F32, n);
    for (size_t i = 0; i < n; i++) {
        float f = i < 259 ? 0.0f : v->score[i - 259];
        buf_add(&m.b, &f, 4);
    }
    arr(&m, "ggml.token_type", G_I32, n);
    for (size_t i = 0; i < n; i++)
        put_u32(&m.b, i == 0 ? 2 : i < 3 ? 3 : i < 259 ? 6 : 1);
    add_u32(&m, "ggml.bos_token_id", 1);
    add_u32(&m, "ggml.eos_token_id", 2);
    key(&m, "ggml.add_space_prefix", G_BOOL);
    buf_putc(&m.b, prefix);
    if (meta_open(&m, &t, &e) < 0)
        fail_msg("%s", e.msg);
    return t;
}

static int spm_find(const struct spm *v, const char *p)
{
    for (int i = 0; i < v->n; i++)
        if (!strcmp(v->piece[i], p))
            return i;
    return -1;
}

/* By the definition: join the adjacent pair of highest score, the leftmost of equals. */
static size_t spm_naive(const struct spm *v, const char *text, int32_t *out)
{
    char sym[128][256];
    size_t n = 0, k = 0;

    for (const char *p = text; *p; n++) {
        int len = utf8_next(p, strlen(p), NULL);
        memcpy(sym[n], p, (size_t)len);
        sym[n][len] = '\0';
        p += len;
    }
    for (;;) {
        size_t at = n;
        float best = 0;
        char both[512];

        for (size_t i = 0; i + 1 < n; i++) {
            int id;
            strcpy(both, sym[i]);
            strcat(both, sym[i + 1]);
            id = spm_find(v, both);
            if (id >= 0 && (at == n || v->score[id] > best)) {
                at = i;
                best = v->score[id];
            }
        }
        if (at == n)
            break;
        memcpy(sym[at] + strlen(sym[at]), sym[at + 1], strlen(sym[at + 1]) + 1);
        memmove(sym[at + 1], sym[at + 2], (n - at - 2) * sizeof(sym[0]));
        n--;
    }
    for (size_t i = 0; i < n; i++) {
        int id = spm_find(v, sym[i]);
        for (const char *p = sym[i]; id < 0 && *p; p++)
            out[k++] = 3 + (unsigned char)*p;
        if (id >= 0)
            out[k++] = 259 + id;
    }
    return k;
}

TEST(spm_as_defined)
{
    static const char *const chars[] = {" ", "a", "b", "\u00e9", "c", " "};
    uint64_t seed = test_seed();

    for (int round = 0; round < 400; round++) {
        bool prefix = round & 1;
        struct spm v;
        struct tokenizer *t;
        struct buf plain, low;
        struct tok_ids ids;
        int32_t want[512];
        size_t n;

        spm_make(&v, &seed, round & 2);
        t = spm_open(&v, prefix);
        assert_string_equal(tokenizer_kind(t), "spm");
        buf_init(&plain, 0);
        buf_init(&low, 0);
        buf_puts(&low, prefix ? LOWBAR : "");
        for (uint64_t k = 1 + test_rand(&seed) % 90; k; k--) {
            const char *c = chars[test_rand(&seed) % 6];
            buf_puts(&plain, c);
            buf_puts(&low, *c == ' ' ? LOWBAR : c);
        }
        n = spm_naive(&v, low.p, want);
        ids = encode(t, plain.p, plain.len, 0);
        assert_int_equal(ids.n, n);
        assert_memory_equal(ids.v, want, n * sizeof(*want));
        tok_ids_done(&ids);
        ids = encode(t, plain.p, plain.len, TOK_ADD_BOS);
        assert_int_equal(ids.v[0], 1);
        buf_clear(&low);
        tokenizer_decode(t, ids.v, ids.n, false, &low);
        assert_string_equal(low.p, plain.p);
        tok_ids_done(&ids);
        buf_done(&plain);
        buf_done(&low);
        tokenizer_free(t);
    }
}

TEST(spm_takes_hostile_text)
{
    enum { N = 1 << 20 };
    static const char *const units[] = {"a", " ", "ab", "\xff", "\xe2\x96\x81", "\xe2"};
    uint64_t seed = test_seed();
    struct spm v;
    struct tokenizer *t;
    atomic_bool cancel = true;
    struct err e = {0};

    spm_make(&v, &seed, true);
    t = spm_open(&v, true);
    for (size_t u = 0; u < sizeof(units) / sizeof(units[0]); u++) {
        struct tok_ids ids;
        struct buf b;

        buf_init(&b, 0);
        while (b.len < N)
            buf_puts(&b, units[u]);
        ids = encode(t, b.p, b.len, 0);
        assert_true(ids.n > 0);
        ids.n = 0;
        assert_int_equal(tokenizer_encode(t, b.p, b.len, 0, 0, &cancel, &ids, &e), -1);
        assert_int_equal(e.code, ERR_CANCELED);
        tok_ids_done(&ids);
        buf_done(&b);
    }
    tokenizer_free(t);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(damaged_gguf),
    cmocka_unit_test(spm_as_defined),
    cmocka_unit_test(spm_takes_hostile_text),
};

TEST_MAIN("tokgguf", tests)
