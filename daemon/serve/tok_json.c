/* A tokenizer from tokenizer.json (byte-level BPE) and tokenizer_config.json.
 *
 * What would change the ids and is not known here is refused with a sentence: another
 * model type, an unknown pre-tokeniser pattern or normaliser, affixes, added tokens that
 * swallow white space. Decoder and padding sections do not bear on ids and are not read.
 */
#include "daemon/serve/tok_int.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "daemon/serve/pretok.h"

enum { FILE_MAX = 256 << 20, PATTERNS_MAX = 16 };

static const struct js_limits limits = {.max_bytes = FILE_MAX, .max_depth = 32};

static const char *type_of(const json_t *obj)
{
    const char *s = json_string_value(json_object_get(obj, "type"));
    return s ? s : "";
}

static bool is_true(const json_t *obj, const char *key)
{
    return json_is_true(json_object_get(obj, key));
}

static bool is_nonempty(const json_t *obj, const char *key)
{
    return json_string_length(json_object_get(obj, key)) > 0;
}

/* ---- model: vocab and merges ---- */

static int set_piece(struct tok_spec *s, size_t cap, int64_t id, const char *p, size_t n,
                     uint8_t type, struct err *e)
{
    if (id < 0 || (size_t)id >= cap)
        return err_set(e, ERR_CORRUPT, "token '%.40s' has id %lld, 0 to %zu are possible",
                       p, (long long)id, cap - 1);
    s->pieces[id] = (struct tok_src_piece){.p = p, .n = n, .type = type};
    if ((size_t)id >= s->n_pieces)
        s->n_pieces = (size_t)id + 1;
    return 0;
}

static int read_vocab(json_t *vocab, struct tok_spec *s, size_t cap, struct err *e)
{
    const char *key;
    json_t *v;

    json_object_foreach(vocab, key, v)
    {
        if (!json_is_integer(v))
            return err_set(e, ERR_CORRUPT, "token '%.40s' has no integer id", key);
        if (set_piece(s, cap, json_integer_value(v), key, strlen(key), TOK_NORMAL, e) < 0)
            return -1;
    }
    return 0;
}

static int read_added(const json_t *added, struct tok_spec *s, size_t cap, struct err *e)
{
    const json_t *a;
    size_t i;

    json_array_foreach(added, i, a)
    {
        const json_t *id = json_object_get(a, "id");
        const json_t *text = json_object_get(a, "content");
        bool special = is_true(a, "special");

        if (!json_is_integer(id) || !json_is_string(text))
            return err_set(e, ERR_CORRUPT, "added_tokens[%zu] has no id or content", i);
        if (is_true(a, "lstrip") || is_true(a, "rstrip") || is_true(a, "single_word"))
            return err_set(
                e, ERR_UNSUPPORTED,
                "added token '%.40s' with lstrip, rstrip or single_word is not "
                "supported",
                json_string_value(text));
        if (set_piece(s, cap, json_integer_value(id), json_string_value(text),
                      json_string_length(text), special ? TOK_CONTROL : TOK_USER, e) < 0)
            return -1;
    }
    return 0;
}

static int read_merge(const json_t *m, struct tok_src_merge *out)
{
    const json_t *l = json_array_get(m, 0), *r = json_array_get(m, 1);

    if (json_is_string(m))
        return tok_split_merge(json_string_value(m), json_string_length(m), out);
    if (json_array_size(m) != 2 || !json_is_string(l) || !json_is_string(r))
        return -1;
    *out = (struct tok_src_merge){json_string_value(l), json_string_value(r),
                                  json_string_length(l), json_string_length(r)};
    return 0;
}

static int read_model(const json_t *model, struct tok_spec *s, struct err *e)
{
    const json_t *merges = json_object_get(model, "merges"), *m;
    size_t i, n = json_array_size(merges);

    if (*type_of(model) && strcmp(type_of(model), "BPE") != 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "model type '%.40s' in tokenizer.json is not supported, BPE is",
                       type_of(model));
    if (is_true(model, "byte_fallback"))
        return err_set(e, ERR_UNSUPPORTED,
                       "a SentencePiece-style tokenizer.json (byte_fallback) is not "
                       "supported, byte-level BPE is; a GGUF of this model would be");
    if (is_nonempty(model, "continuing_subword_prefix") ||
        is_nonempty(model, "end_of_word_suffix"))
        return err_set(e, ERR_UNSUPPORTED,
                       "a BPE with subword prefix or word suffix is not supported");
    if (!json_is_array(merges) || n > TOK_MERGES_MAX)
        return err_set(e, ERR_CORRUPT, "model.merges is no array of up to %d",
                       TOK_MERGES_MAX);
    s->ignore_merges = is_true(model, "ignore_merges");
    s->merges = try_calloc(n + 1, sizeof(*s->merges));
    if (!s->merges)
        return err_set(e, ERR_NOMEM, "no memory for %zu merges", n);
    json_array_foreach(merges, i, m)
    {
        if (read_merge(m, &s->merges[i]) < 0)
            return err_set(e, ERR_CORRUPT, "model.merges[%zu] is not two pieces", i);
    }
    s->n_merges = n;
    return 0;
}

static int read_pieces(const json_t *root, struct tok_spec *s, struct err *e)
{
    json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab");
    const json_t *added = json_object_get(root, "added_tokens");
    size_t cap = json_object_size(vocab) + json_array_size(added);

    if (!json_is_object(vocab))
        return err_set(e, ERR_CORRUPT, "model.vocab is no object");
    /* ids may leave gaps, as many as there are tokens */
    cap = 2 * cap + 1024;
    if (cap > TOK_VOCAB_MAX)
        cap = TOK_VOCAB_MAX;
    s->pieces = try_calloc(cap, sizeof(*s->pieces));
    if (!s->pieces)
        return err_set(e, ERR_NOMEM, "no memory for %zu tokens", cap);
    for (size_t i = 0; i < cap; i++)
        s->pieces[i].p = "";
    if (read_vocab(vocab, s, cap, e) < 0)
        return -1;
    return read_added(added, s, cap, e);
}

/* ---- normaliser and pre-tokeniser ---- */

static int read_normalizer(const json_t *n, struct tok_spec *s, struct err *e)
{
    const json_t *parts = json_object_get(n, "normalizers"), *part;
    size_t i;

    if (!n || json_is_null(n))
        return 0;
    if (!strcmp(type_of(n), "NFC")) {
        s->nfc = true;
        return 0;
    }
    if (strcmp(type_of(n), "Sequence") != 0)
        return err_set(e, ERR_UNSUPPORTED, "normalizer '%.40s' is not supported, NFC is",
                       type_of(n));
    json_array_foreach(parts, i, part)
    {
        if (strcmp(type_of(part), "NFC") != 0)
            return err_set(e, ERR_UNSUPPORTED,
                           "normalizer '%.40s' is not supported, NFC is", type_of(part));
        s->nfc = true;
    }
    return 0;
}

struct patterns {
    const char *v[PATTERNS_MAX];
    size_t n;
    bool byte_level;
};

/* GPT-2's own pattern, which ByteLevel applies when use_regex is set. */
#define BYTE_LEVEL_REGEX                                                                 \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

static int read_split(const json_t *p, struct patterns *out, struct err *e)
{
    const char *how = json_string_value(json_object_get(p, "behavior"));
    const char *re =
        json_string_value(json_object_get(json_object_get(p, "pattern"), "Regex"));
    bool isolated = how && !strcmp(how, "Isolated") && !is_true(p, "invert");
    /* with a pattern that matches everywhere this is the same */
    bool only_matches = how && !strcmp(how, "Removed") && is_true(p, "invert");

    if (!re || (!isolated && !only_matches))
        return err_set(
            e, ERR_UNSUPPORTED,
            "pre_tokenizer Split without Regex, or with behavior '%.40s', is not "
            "supported, Isolated is",
            how ? how : "");
    out->v[out->n++] = re;
    return 0;
}

static int read_pre_part(const json_t *p, struct patterns *out, struct err *e)
{
    const json_t *use_regex = json_object_get(p, "use_regex");
    const char *type = type_of(p);

    if (out->n == PATTERNS_MAX)
        return err_set(e, ERR_UNSUPPORTED, "pre_tokenizer has more than %d patterns",
                       PATTERNS_MAX);
    if (!strcmp(type, "Split"))
        return read_split(p, out, e);
    if (!strcmp(type, "Digits")) {
        out->v[out->n++] = is_true(p, "individual_digits") ? "\\p{N}" : "\\p{N}+";
        return 0;
    }
    if (strcmp(type, "ByteLevel") != 0)
        return err_set(
            e, ERR_UNSUPPORTED,
            "pre_tokenizer '%.40s' is not supported, Split, Digits and ByteLevel "
            "are",
            type);
    if (is_true(p, "add_prefix_space"))
        return err_set(e, ERR_UNSUPPORTED,
                       "pre_tokenizer ByteLevel with add_prefix_space is not supported");
    out->byte_level = true;
    if (!use_regex || json_is_true(use_regex))
        out->v[out->n++] = BYTE_LEVEL_REGEX;
    return 0;
}

static int read_pre(const json_t *pre, struct tok_spec *s, struct err *e)
{
    const json_t *parts = json_object_get(pre, "pretokenizers"), *part;
    struct patterns pat = {.n = 0};
    size_t i;

    if (strcmp(type_of(pre), "Sequence") != 0) {
        if (read_pre_part(pre, &pat, e) < 0)
            return -1;
    }
    json_array_foreach(parts, i, part)
    {
        if (read_pre_part(part, &pat, e) < 0)
            return -1;
    }
    if (!pat.byte_level)
        return err_set(e, ERR_UNSUPPORTED,
                       "a pre_tokenizer without ByteLevel is not supported");
    s->pre = pretok_recognise(pat.v, pat.n);
    if (!s->pre)
        return err_set(e, ERR_UNSUPPORTED,
                       "the pre_tokenizer's patterns ('%.60s' ..) are not known, these "
                       "are: %s",
                       pat.n ? pat.v[0] : "", pretok_names());
    return 0;
}

/* ---- bos, eos, template ---- */

static int64_t find_id(const struct tok_spec *s, const char *text, size_t n)
{
    for (size_t i = s->n_pieces; text && i-- > 0;)
        if (s->pieces[i].type && s->pieces[i].n == n && !memcmp(s->pieces[i].p, text, n))
            return (int64_t)i;
    return -1;
}

/* A token named in tokenizer_config.json: a string, or an object with `content`. */
static int64_t config_token(const struct tok_spec *s, const json_t *config,
                            const char *key)
{
    const json_t *v = json_object_get(config, key);

    if (json_is_object(v))
        v = json_object_get(v, "content");
    return find_id(s, json_string_value(v), json_string_length(v));
}

/* The token that a TemplateProcessing puts before the text, or -1. */
static int64_t post_bos(const struct tok_spec *s, const json_t *post)
{
    const json_t *parts = json_object_get(post, "processors"), *part;
    const json_t *name;
    size_t i;

    json_array_foreach(parts, i, part)
    {
        /* one level: a Sequence inside a Sequence does not occur */
        int64_t id =
            !strcmp(type_of(part), "TemplateProcessing") ? post_bos(s, part) : -1;
        if (id >= 0)
            return id;
    }
    name = json_object_get(
        json_object_get(json_array_get(json_object_get(post, "single"), 0),
                        "SpecialToken"),
        "id");
    return find_id(s, json_string_value(name), json_string_length(name));
}

static void read_template(const json_t *config, struct tok_spec *s)
{
    const json_t *t = json_object_get(config, "chat_template"), *item;
    size_t i;

    json_array_foreach(t, i, item)
    {
        const char *name = json_string_value(json_object_get(item, "name"));
        if (name && !strcmp(name, "default")) {
            t = json_object_get(item, "template");
            break;
        }
    }
    if (json_is_string(t)) {
        s->template_text = json_string_value(t);
        s->template_n = json_string_length(t);
    }
}

static void read_config(const json_t *root, const json_t *config, struct tok_spec *s)
{
    const json_t *unk = json_object_get(json_object_get(root, "model"), "unk_token");
    int64_t first = post_bos(s, json_object_get(root, "post_processor"));
    const json_t *add = json_object_get(config, "add_bos_token");

    s->bos = config_token(s, config, "bos_token");
    s->eos = config_token(s, config, "eos_token");
    s->unk = find_id(s, json_string_value(unk), json_string_length(unk));
    if (first >= 0) {
        s->bos = first;
        s->add_bos = true;
    }
    if (json_is_boolean(add))
        s->add_bos = json_is_true(add) && s->bos >= 0;
    read_template(config, s);
}

static int read_all(const json_t *root, const json_t *config, struct tok_spec *s,
                    struct err *e)
{
    if (read_model(json_object_get(root, "model"), s, e) < 0 ||
        read_normalizer(json_object_get(root, "normalizer"), s, e) < 0 ||
        read_pre(json_object_get(root, "pre_tokenizer"), s, e) < 0 ||
        read_pieces(root, s, e) < 0)
        return -1;
    read_config(root, config, s);
    return 0;
}

struct text {
    char *p;
    size_t n;
};

static int open_texts(const char *path, const struct text *json,
                      const struct text *config_text, const struct text *template_text,
                      struct tokenizer **ret, struct err *e)
{
    struct tok_spec s = {.bos = -1, .eos = -1, .unk = -1};
    json_t *root = NULL, *config = NULL;
    int rc = -1;

    if (js_parse(json->p, json->n, &limits, &root, e) < 0) {
        err_wrap(e, "tokenizer of '%s'", path);
        goto out;
    }
    if (config_text->p &&
        js_parse(config_text->p, config_text->n, &limits, &config, e) < 0) {
        err_wrap(e, "tokenizer_config.json of '%s'", path);
        goto out;
    }
    if (read_all(root, config, &s, e) < 0) {
        err_wrap(e, "tokenizer of '%s'", path);
        goto out;
    }
    if (template_text->p) {
        s.template_text = template_text->p;
        s.template_n = template_text->n;
    }
    rc = tok_build(&s, path, ret, e);

out:
    free(s.pieces);
    free(s.merges);
    json_decref(config);
    json_decref(root);
    return rc;
}

int tokenizer_open_json(const char *path, const char *json, size_t n, const char *config,
                        size_t config_n, struct tokenizer **ret, struct err *e)
{
    struct text j = {(char *)json, n}, c = {(char *)config, config_n}, none = {0};

    return open_texts(path, &j, &c, &none, ret, e);
}

/* ---- the folder ---- */

/* 0; 1 when there is no such file; -1. */
static int read_file(const char *dir, const char *name, struct text *ret, struct err *e)
{
    char *path = xasprintf("%s/%s", dir, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC), rc = -1;
    struct stat st;
    struct text t = {0};
    ssize_t k = 1;

    if (fd < 0 && errno == ENOENT) {
        free(path);
        return 1;
    }
    if (fd < 0 || fstat(fd, &st) < 0) {
        err_errno(e, ERR_IO, "'%s'", path);
    } else if (!S_ISREG(st.st_mode) || st.st_size > FILE_MAX) {
        err_set(e, ERR_TOOBIG, "'%s' is no file of up to %d bytes", path, FILE_MAX);
    } else if (!(t.p = try_malloc((size_t)st.st_size + 1))) {
        err_set(e, ERR_NOMEM, "no memory to read '%s'", path);
    } else {
        while (k > 0 && t.n < (size_t)st.st_size) {
            k = read(fd, t.p + t.n, (size_t)st.st_size - t.n);
            t.n += k > 0 ? (size_t)k : 0;
        }
        if (k < 0)
            err_errno(e, ERR_IO, "read '%s'", path);
        else
            rc = 0;
    }
    if (fd >= 0)
        close(fd);
    free(path);
    if (rc < 0)
        free(t.p);
    else
        *ret = t;
    return rc;
}

int tok_open_dir(const char *dir, struct tokenizer **ret, struct err *e)
{
    struct text json = {0}, config = {0}, template = {0};
    int rc = read_file(dir, "tokenizer.json", &json, e);

    bool ranks = rc > 0;

    if (ranks)
        rc = read_file(dir, "tiktoken.model", &json, e);
    if (rc > 0)
        rc =
            err_set(e, ERR_NOTFOUND, "'%s' has no tokenizer.json or tiktoken.model", dir);
    if (rc == 0 && read_file(dir, "tokenizer_config.json", &config, e) < 0)
        rc = -1;
    if (rc == 0 && read_file(dir, "chat_template.jinja", &template, e) < 0)
        rc = -1;
    if (rc == 0 && ranks)
        rc = tok_open_tiktoken(dir, json.p, json.n, config.p, config.n, template.p,
                               template.n, ret, e);
    else if (rc == 0)
        rc = open_texts(dir, &json, &config, &template, ret, e);
    free(template.p);
    free(config.p);
    free(json.p);
    return rc;
}
