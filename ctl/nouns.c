/* ctl/nouns.c - names for completion, with a short memory. */
#include "ctl/nouns.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "ctl/line.h"
#include "ctl/wire.h"

enum { KEEP_US = 5000000, ASK_MS = 1000 };

/* Where the names of a type are: a path, its array, the member; what else is a name. */
static const struct {
    enum arg_type type;
    const char *path, *array, *member, *also;
} sources[] = {
    {ARG_INSTANCE, "status", "instances", "name", ""},
    {ARG_MODEL, "models", "models", "name", ""},
    {ARG_DEVICE, "devices", "devices", "id", ""},
    {ARG_REV, "config/revisions?limit=50", "revisions", "revision", ""},
    {ARG_REVREF, "config/revisions?limit=50", "revisions", "revision", "draft|running"},
    {ARG_PATH, "config/paths", "paths", "path", ""},
    {ARG_KEY, "keys", "keys", "id", ""},
    {ARG_REQUEST, "requests", "requests", "id", ""},
    {ARG_OP, "operations", "operations", "id", ""},
    {ARG_RUN, "loads?limit=50", "loads", "id", ""},
    {ARG_QUALITY, "quality?limit=50", "runs", "id", ""},
};
enum { N_SOURCES = sizeof(sources) / sizeof(sources[0]) };

struct nouns {
    struct wire *wire;
    struct {
        struct line_words words;
        int64_t at_us; /* 0 = never asked */
    } kept[N_SOURCES];
};

struct nouns *nouns_new(struct wire *w)
{
    struct nouns *n = xcalloc(1, sizeof(*n));

    n->wire = w;
    return n;
}

void nouns_free(struct nouns *n)
{
    if (!n)
        return;
    for (int i = 0; i < N_SOURCES; i++)
        line_words_done(&n->kept[i].words);
    free(n);
}

static json_t *ask(struct nouns *n, const char *path)
{
    static const struct js_limits lim = {8 << 20, 32};
    char *full = xasprintf("/api/v1/%s", path);
    struct wire_request r = {.method = "GET", .path = full, .timeout_ms = ASK_MS};
    json_t *root = NULL;
    struct buf b;

    buf_init(&b, 0);
    if (wire_call(n->wire, &r, NULL, &b, NULL, NULL) < 0 || !b.len ||
        js_parse(b.p, b.len, &lim, &root, NULL) < 0)
        root = NULL;
    buf_done(&b);
    free(full);
    return root;
}

/* instances.*.mode -> one for each name of an instance; other `*` stay as they are. */
static void add_path(struct nouns *n, const char *pattern, struct line_words *ret)
{
    static const struct {
        const char *prefix;
        enum arg_type type;
    } owners[] = {{"instances.*", ARG_INSTANCE}, {"models.*", ARG_MODEL}};

    for (size_t i = 0; i < sizeof(owners) / sizeof(owners[0]); i++) {
        size_t len = strlen(owners[i].prefix);
        struct line_words names = {.n = 0};

        if (strncmp(pattern, owners[i].prefix, len) != 0)
            continue;
        nouns_get(n, owners[i].type, &names);
        for (int k = 0; k < names.n; k++) {
            char *path =
                xasprintf("%.*s%s%s", (int)len - 1, pattern, names.w[k], pattern + len);

            line_words_add(ret, path);
            free(path);
        }
        if (!names.n)
            line_words_add(ret, pattern);
        line_words_done(&names);
        return;
    }
    line_words_add(ret, pattern);
}

static void fill(struct nouns *n, int i)
{
    json_t *root = ask(n, sources[i].path);
    const json_t *rows = json_object_get(root, sources[i].array);
    struct line_words *ret = &n->kept[i].words;

    line_words_done(ret);
    for (size_t k = 0; k < json_array_size(rows); k++) {
        const json_t *v = json_object_get(json_array_get(rows, k), sources[i].member);
        char number[24];

        if (sources[i].type == ARG_PATH && json_is_string(v)) {
            add_path(n, json_string_value(v), ret);
        } else if (json_is_string(v)) {
            line_words_add(ret, json_string_value(v));
        } else if (json_is_integer(v)) {
            snprintf(number, sizeof(number), "%" PRId64, (int64_t)json_integer_value(v));
            line_words_add(ret, number);
        }
    }
    json_decref(root);
}

void nouns_get(void *arg, enum arg_type type, struct line_words *ret)
{
    struct nouns *n = arg;
    int64_t now = clock_now_us(clock_real());

    for (int i = 0; i < N_SOURCES; i++) {
        if (sources[i].type != type)
            continue;
        if (!n->kept[i].at_us || now - n->kept[i].at_us > KEEP_US) {
            fill(n, i);
            n->kept[i].at_us = now;
        }
        for (int k = 0; k < n->kept[i].words.n; k++)
            line_words_add(ret, n->kept[i].words.w[k]);
        for (const char *p = sources[i].also; *p;) {
            size_t len = strcspn(p, "|");
            char *word = xstrndup(p, len);

            line_words_add(ret, word);
            free(word);
            p += len + (p[len] == '|');
        }
    }
}
