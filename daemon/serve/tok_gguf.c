/* A tokenizer from the metadata of a GGUF file (`tokenizer.ggml.*`). */
#include "daemon/serve/tok_int.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/serve/gguf.h"

#define KEY(name) "tokenizer.ggml." name

/* What is read before the spec can point at it. */
struct raw {
    struct gguf_str *str;
    int32_t *type;
    float *score;
};

static void raw_done(struct raw *r)
{
    free(r->str);
    free(r->type);
    free(r->score);
}

static int read_id(const struct gguf *g, const char *key, int64_t *ret, struct err *e)
{
    uint64_t v = 0;
    int rc = gguf_u64(g, key, &v, e);

    if (rc < 0)
        return -1;
    if (rc == 0)
        *ret =
            v > INT32_MAX ? INT32_MAX : (int64_t)v; /* out of range: tok_build says so */
    return 0;
}

static int read_ends(const struct gguf *g, struct tok_spec *s, struct err *e)
{
    static const char *const keys[] = {KEY("eot_token_id"), KEY("eom_token_id")};

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        int64_t id = -1;
        if (read_id(g, keys[i], &id, e) < 0)
            return -1;
        if (id >= 0)
            s->ends[s->n_ends++] = id;
    }
    return 0;
}

static int arr_len(const struct gguf *g, const char *key, size_t max, size_t *ret,
                   struct err *e)
{
    int rc = gguf_arr_len(g, key, ret, e);

    if (rc > 0)
        return err_set(e, ERR_CORRUPT, "'%s' is missing", key);
    if (rc == 0 && *ret > max)
        return err_set(e, ERR_CORRUPT, "'%s' has %zu elements, up to %zu are possible",
                       key, *ret, max);
    return rc;
}

/* An array as long as the vocabulary. 1 when absent. */
static int check_len(const struct gguf *g, const char *key, size_t n, struct err *e)
{
    size_t k = 0;
    int rc = gguf_arr_len(g, key, &k, e);

    if (rc == 0 && k != n)
        return err_set(e, ERR_CORRUPT, "'%s' has %zu elements for %zu tokens", key, k, n);
    return rc;
}

static int read_pieces(const struct gguf *g, struct raw *r, struct tok_spec *s,
                       struct err *e)
{
    size_t n = 0;
    int types, scores;

    if (arr_len(g, KEY("tokens"), TOK_VOCAB_MAX, &n, e) < 0 ||
        (types = check_len(g, KEY("token_type"), n, e)) < 0 ||
        (scores = check_len(g, KEY("scores"), n, e)) < 0)
        return -1;
    if (s->spm && scores > 0)
        return err_set(e, ERR_CORRUPT, "'%s' is missing", KEY("scores"));
    r->str = try_calloc(n + 1, sizeof(*r->str));
    r->type = try_calloc(n + 1, sizeof(*r->type));
    r->score = try_calloc(n + 1, sizeof(*r->score));
    s->pieces = try_calloc(n + 1, sizeof(*s->pieces));
    if (!r->str || !r->type || !r->score || !s->pieces)
        return err_set(e, ERR_NOMEM, "no memory for %zu tokens", n);
    if (gguf_arr_strings(g, KEY("tokens"), r->str, n, e) < 0 ||
        (types == 0 && gguf_arr_i32(g, KEY("token_type"), r->type, n, e) < 0) ||
        (s->spm && gguf_arr_f32(g, KEY("scores"), r->score, n, e) < 0))
        return -1;
    for (size_t i = 0; i < n; i++) {
        int32_t type = types == 0 ? r->type[i] : TOK_NORMAL;
        if (type < 0 || type > TOK_BYTE)
            return err_set(e, ERR_CORRUPT, "token %zu has type %d, 1 to 6 are possible",
                           i, type);
        s->pieces[i] =
            (struct tok_src_piece){r->str[i].p, r->str[i].n, r->score[i], (uint8_t)type};
    }
    s->n_pieces = n;
    return 0;
}

static int read_merges(const struct gguf *g, struct tok_spec *s, struct err *e)
{
    struct gguf_str *v;
    size_t n = 0;
    int rc;

    if (arr_len(g, KEY("merges"), TOK_MERGES_MAX, &n, e) < 0)
        return -1;
    v = try_calloc(n + 1, sizeof(*v));
    s->merges = try_calloc(n + 1, sizeof(*s->merges));
    if (!v || !s->merges) {
        free(v);
        return err_set(e, ERR_NOMEM, "no memory for %zu merges", n);
    }
    rc = gguf_arr_strings(g, KEY("merges"), v, n, e);
    for (size_t i = 0; rc == 0 && i < n; i++)
        if (tok_split_merge(v[i].p, v[i].n, &s->merges[i]) < 0)
            rc = err_set(e, ERR_CORRUPT, "merge %zu ('%.*s') is not two pieces", i,
                         (int)(v[i].n < 40 ? v[i].n : 40), v[i].p);
    s->n_merges = n;
    free(v);
    return rc;
}

/* Which kind of vocabulary, and its pre-tokeniser's name in pre[64]. */
static int read_kind(const struct gguf *g, struct tok_spec *s, char *pre, struct err *e)
{
    struct gguf_str model = {"", 0}, name = {"", 0};

    if (gguf_string(g, KEY("model"), &model, e) < 0 ||
        gguf_string(g, KEY("pre"), &name, e) < 0)
        return -1;
    s->spm = model.n == 5 && !memcmp(model.p, "llama", 5);
    if (!s->spm && (model.n != 4 || memcmp(model.p, "gpt2", 4) != 0))
        return err_set(e, ERR_UNSUPPORTED,
                       "tokenizer model '%.*s' is not supported, these are: gpt2, llama",
                       (int)(model.n < 40 ? model.n : 40), model.p);
    if (name.n > 63)
        name.n = 63;
    memcpy(pre, name.p, name.n);
    pre[name.n] = '\0';
    s->pre = pre;
    return 0;
}

static int read_flags(const struct gguf *g, struct tok_spec *s, struct err *e)
{
    struct gguf_str text = {"", 0};
    bool llama3 = !strcmp(s->pre, "llama3") || !strcmp(s->pre, "llama-v3") ||
                  !strcmp(s->pre, "llama-bpe");

    s->ignore_merges = llama3;
    s->add_bos = s->spm || llama3;
    s->add_space_prefix = s->spm;
    if (gguf_bool(g, KEY("add_bos_token"), &s->add_bos, e) < 0 ||
        gguf_bool(g, KEY("add_space_prefix"), &s->add_space_prefix, e) < 0 ||
        read_id(g, KEY("bos_token_id"), &s->bos, e) < 0 ||
        read_id(g, KEY("eos_token_id"), &s->eos, e) < 0 ||
        read_id(g, KEY("unknown_token_id"), &s->unk, e) < 0 || read_ends(g, s, e) < 0 ||
        gguf_string(g, "tokenizer.chat_template", &text, e) < 0)
        return -1;
    s->template_text = text.p;
    s->template_n = text.n;
    return 0;
}

int tokenizer_open_gguf(const struct gguf *g, const char *path, struct tokenizer **ret,
                        struct err *e)
{
    struct tok_spec s = {.bos = -1, .eos = -1, .unk = -1};
    struct raw r = {0};
    char pre[64];
    int rc;

    if (read_kind(g, &s, pre, e) < 0 || read_flags(g, &s, e) < 0 ||
        read_pieces(g, &r, &s, e) < 0 || (!s.spm && read_merges(g, &s, e) < 0))
        rc = err_wrap(e, "tokenizer of '%s'", path);
    else
        rc = tok_build(&s, path, ret, e);
    raw_done(&r);
    free(s.pieces);
    free(s.merges);
    return rc;
}
