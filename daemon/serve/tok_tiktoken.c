/* daemon/serve/tok_tiktoken.c - vocabularies as tiktoken.model: a line for each piece,
 * its bytes in base64 and its rank, which is its id.
 *
 * Control tokens are in tokenizer_config.json (added_tokens_decoder); those of the
 * reserved range that it does not name get names of their own. The pattern of words is in
 * neither file but in code beside them: only Kimi's is known here, and by its name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "daemon/serve/tok_int.h"

enum { RESERVED = 256, CONFIG_MAX = 16 << 20, RESERVED_NAME = 32, SPAN_MIN = 1 << 18 };

static int sextet(char c)
{
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

/* In place; the number of bytes, or -1. */
static int decode_base64(char *p, size_t n)
{
    unsigned bits = 0, value = 0;
    int out = 0;

    while (n && p[n - 1] == '=')
        n--;
    for (size_t i = 0; i < n; i++) {
        int s = sextet(p[i]);
        if (s < 0)
            return -1;
        value = value << 6 | (unsigned)s;
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            p[out++] = (char)(value >> bits & 255);
        }
    }
    return out;
}

static int read_lines(char *text, size_t n, struct tok_spec *s, size_t cap, struct err *e)
{
    char *end = text + n, *next;
    size_t line = 0;

    for (char *p = text; p < end; p = next) {
        char *stop = memchr(p, '\n', (size_t)(end - p)), *sp, *last;
        int len;
        long id;

        stop = stop ? stop : end;
        next = stop < end ? stop + 1 : end;
        line++;
        if (stop == p)
            continue;
        sp = memchr(p, ' ', (size_t)(stop - p));
        *stop = '\0'; /* the text has a byte behind its end */
        id = sp ? strtol(sp + 1, &last, 10) : -1;
        len = sp ? decode_base64(p, (size_t)(sp - p)) : -1;
        if (len < 1 || last == sp + 1 || (*last && *last != '\r') || id < 0 ||
            (size_t)id >= cap - RESERVED || s->pieces[id].type)
            return err_set(e, ERR_CORRUPT,
                           "line %zu is no piece in base64 with a rank of its own, 0 to "
                           "%zu",
                           line, cap - RESERVED - 1);
        s->pieces[id] = (struct tok_src_piece){p, (size_t)len, 0, TOK_NORMAL};
        if ((size_t)id >= s->n_pieces)
            s->n_pieces = (size_t)id + 1;
    }
    return 0;
}

/* The reserved range after the pieces; names: RESERVED of RESERVED_NAME bytes. */
static int read_control(const json_t *config, struct tok_spec *s, char *names,
                        struct err *e)
{
    size_t base = s->n_pieces, id;
    const char *key;
    json_t *v;

    for (int i = 0; i < RESERVED; i++) {
        char *name = names + (size_t)i * RESERVED_NAME;
        int n = snprintf(name, RESERVED_NAME, "<|reserved_token_%zu|>", base + (size_t)i);
        s->pieces[base + (size_t)i] =
            (struct tok_src_piece){name, (size_t)n, 0, TOK_CONTROL};
    }
    s->n_pieces = base + RESERVED;
    json_object_foreach(json_object_get(config, "added_tokens_decoder"), key, v)
    {
        const json_t *text = json_object_get(v, "content");
        char *end;

        id = strtoul(key, &end, 10);
        if (*end || end == key || id < base || id >= s->n_pieces || !json_is_string(text))
            return err_set(e, ERR_CORRUPT,
                           "added_tokens_decoder has '%.40s'; right are texts by ids "
                           "from %zu to %zu",
                           key, base, s->n_pieces - 1);
        s->pieces[id] = (struct tok_src_piece){json_string_value(text),
                                               json_string_length(text), 0, TOK_CONTROL};
    }
    return 0;
}

static int64_t control_id(const struct tok_spec *s, const json_t *config, const char *key)
{
    const json_t *v = json_object_get(config, key);
    const char *text =
        json_string_value(json_is_object(v) ? json_object_get(v, "content") : v);

    for (size_t i = s->n_pieces - RESERVED; text && i < s->n_pieces; i++)
        if (s->pieces[i].n == strlen(text) && !memcmp(s->pieces[i].p, text, strlen(text)))
            return (int64_t)i;
    return -1;
}

static bool is_kimi(const json_t *config)
{
    const json_t *map = json_object_get(config, "auto_map");
    const json_t *v = json_array_get(json_object_get(map, "AutoTokenizer"), 0);

    return v && json_is_string(v) && strstr(json_string_value(v), "tokenization_kimi");
}

int tok_open_tiktoken(const char *path, char *text, size_t n, const char *config,
                      size_t config_n, const char *template_text, size_t template_n,
                      struct tokenizer **ret, struct err *e)
{
    const struct js_limits limits = {.max_bytes = CONFIG_MAX, .max_depth = 32};
    struct tok_spec s = {.bos = -1, .eos = -1, .unk = -1};
    const json_t *shipped;
    json_t *root = NULL;
    size_t cap = RESERVED + 1;
    char *names = NULL;
    int rc = -1;

    for (size_t i = 0; i < n; i++)
        cap += text[i] == '\n';
    /* ranks may leave gaps */
    cap = cap < SPAN_MIN ? SPAN_MIN : cap * 2 < TOK_VOCAB_MAX ? cap * 2 : TOK_VOCAB_MAX;
    if (!config || js_parse(config, config_n, &limits, &root, e) < 0) {
        err_set(e, ERR_CORRUPT, "tokenizer_config.json is missing or broken");
        goto out;
    }
    if (!is_kimi(root)) {
        err_set(e, ERR_UNSUPPORTED,
                "a tiktoken.model whose pattern of words is not known here; known is "
                "that of Kimi (tokenization_kimi)");
        goto out;
    }
    s.pieces = try_calloc(cap, sizeof(*s.pieces));
    names = try_calloc(RESERVED, RESERVED_NAME);
    if (!s.pieces || !names) {
        err_set(e, ERR_NOMEM, "no memory for %zu tokens", cap);
        goto out;
    }
    for (size_t i = 0; i < cap; i++)
        s.pieces[i].p = "";
    s.pre = "kimi";
    s.ranked = s.ignore_merges = true;
    if (read_lines(text, n, &s, cap, e) < 0 || read_control(root, &s, names, e) < 0)
        goto out;
    s.bos = control_id(&s, root, "bos_token");
    s.eos = control_id(&s, root, "eos_token");
    shipped = json_object_get(root, "chat_template");
    s.template_text = template_text ? template_text : json_string_value(shipped);
    s.template_n = template_text ? template_n : json_string_length(shipped);
    rc = tok_build(&s, path, ret, e);

out:
    free(names);
    free(s.pieces);
    json_decref(root);
    return rc < 0 ? err_wrap(e, "tiktoken.model of '%s'", path) : 0;
}
