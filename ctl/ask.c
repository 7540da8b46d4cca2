/* ctl/ask.c - request bodies from words, for the verbs that take more than a path. */
#include "ctl/ask.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"

enum { FILE_MAX = 4 << 20, WORD_MAX = 1024 };

/* Next word of *p into out; false at the end. */
static bool next_word(const char **p, char *out, size_t cap)
{
    size_t n;

    *p += strspn(*p, " \t");
    n = strcspn(*p, " \t");
    snprintf(out, cap, "%.*s", (int)n, *p);
    *p += n;
    return n > 0;
}

/* An object as text, or the sentence that its strings are no UTF-8. */
static char *dump(json_t *o, struct err *e)
{
    char *s = o ? json_dumps(o, JSON_COMPACT) : NULL;

    json_decref(o);
    if (!s)
        err_set(e, ERR_INVALID, "the words or the file are not UTF-8");
    return s;
}

char *ask_words(const char *rest, struct err *e)
{
    json_t *o = json_object(), *args = json_array();
    char word[WORD_MAX];

    while (next_word(&rest, word, sizeof(word)))
        json_array_append_new(args, json_string(word));
    json_object_set_new(o, "args", args);
    return dump(o, e);
}

static bool is_file(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

static int read_file(const char *path, struct buf *out, struct err *e)
{
    char chunk[65536];
    FILE *f = fopen(path, "re");
    size_t n;

    if (!f)
        return err_errno(e, ERR_NOTFOUND, "'%s'", path);
    buf_init(out, FILE_MAX);
    while ((n = fread(chunk, 1, sizeof(chunk), f)) > 0 && !out->over)
        buf_add(out, chunk, n);
    fclose(f);
    if (!out->over)
        return 0;
    buf_done(out);
    return err_set(e, ERR_TOOBIG, "'%s' is over %d MiB", path, FILE_MAX >> 20);
}

/* o[key] := the file's text, or its JSON. */
static int put_file(json_t *o, const char *key, const char *path, bool parse,
                    struct err *e)
{
    static const struct js_limits lim = {FILE_MAX, 32};
    struct buf b;
    json_t *v = NULL;

    if (read_file(path, &b, e) < 0)
        return -1;
    if (!parse)
        v = json_stringn(b.p ? b.p : "", b.len);
    else if (js_parse(b.p ? b.p : "", b.len, &lim, &v, e) < 0)
        err_wrap(e, "'%s'", path);
    else if (!json_is_object(v))
        err_set(e, ERR_INVALID, "'%s' is no config.json: not an object", path);
    buf_done(&b);
    if (!v || (parse && !json_is_object(v))) {
        if (!parse)
            err_set(e, ERR_INVALID, "'%s' is not UTF-8", path);
        json_decref(v);
        return -1;
    }
    return json_object_set_new(o, key, v);
}

/* One "--key value", "--key=value" or "--cp". */
static int put_option(json_t *o, const char *word, const char **rest, struct err *e)
{
    static const char *const known[] = {"rack", "slo",       "workload", "rate",
                                        "why",  "precision", "skew",     NULL};
    char key[32], value[WORD_MAX];
    const char *eq = strchr(word, '=');
    int k = 0;

    snprintf(key, sizeof(key), "%.*s", (int)strcspn(word, "=") - 2, word + 2);
    if (!strcmp(key, "cp"))
        return json_object_set_new(o, "cp", json_true());
    while (known[k] && strcmp(known[k], key))
        k++;
    if (strncmp(word, "--", 2) || !known[k])
        return err_set(e, ERR_INVALID,
                       "'%s' is no option here; --rack --slo --workload --rate "
                       "--precision --skew --cp --why are",
                       word);
    if (eq)
        snprintf(value, sizeof(value), "%s", eq + 1);
    else if (!next_word(rest, value, sizeof(value)))
        return err_set(e, ERR_INVALID, "%s takes a value", word);
    if (!strcmp(key, "rack") && is_file(value)) {
        json_object_set_new(o, "rack", json_string(value));
        return put_file(o, "rack_file", value, false, e);
    }
    return json_object_set_new(o, key, json_string(value));
}

char *ask_plan(const char *rest, struct err *e)
{
    json_t *o = json_object();
    char word[WORD_MAX];

    if (!next_word(&rest, word, sizeof(word)) || word[0] == '-') {
        err_set(e, ERR_INVALID,
                "which model? a name such as kimi-k3, or a config.json here");
        goto fail;
    }
    json_object_set_new(o, "model", json_string(word));
    if (is_file(word) && put_file(o, "config", word, true, e) < 0)
        goto fail;
    while (next_word(&rest, word, sizeof(word)))
        if (put_option(o, word, &rest, e) < 0)
            goto fail;
    return dump(o, e);

fail:
    json_decref(o);
    return NULL;
}

int ask_save(const char *rest, const char *p, size_t n, struct err *e)
{
    char path[WORD_MAX], part[WORD_MAX + 8];
    bool ok;
    FILE *f;

    if (!next_word(&rest, path, sizeof(path)) || rest[strspn(rest, " \t")])
        return err_set(e, ERR_INVALID, "name one FILE to write");
    snprintf(part, sizeof(part), "%s.part", path);
    f = fopen(part, "we");
    if (!f)
        return err_errno(e, ERR_IO, "cannot write '%s'", part);
    ok = fwrite(p, 1, n, f) == n && fflush(f) == 0 && fsync(fileno(f)) == 0;
    ok = fclose(f) == 0 && ok;
    if (ok && rename(part, path) == 0) {
        printf("%zu bytes in %s\n", n, path);
        return 0;
    }
    err_errno(e, ERR_IO, "cannot write '%s'", path);
    unlink(part);
    return -1;
}
