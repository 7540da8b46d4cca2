/* ctl/ask.c - request paths and bodies from words. */
#include "ctl/ask.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "ctl/args.h"
#include "ctl/file.h"

enum { FILE_MAX = 4 << 20, TOKEN_MAX = 1024 };

/* ---- paths ---- */

static void put_encoded(struct buf *out, const char *s)
{
    for (; *s; s++)
        if (isalnum((unsigned char)*s) || strchr("-._~", *s))
            buf_putc(out, *s);
        else
            buf_printf(out, "%%%02X", (unsigned char)*s);
}

/* "{NAME}" at p: its value or NULL; *ret_n = bytes of it. */
static const char *slot(const char *p, const struct args *a, size_t *ret_n)
{
    char name[ARG_NAME];
    size_t n = strcspn(p, "}");

    snprintf(name, sizeof(name), "%.*s", (int)strcspn(p + 1, "|}"), p + 1);
    *ret_n = n + 1;
    return args_get(a, name);
}

char *ask_path(const char *template, const struct args *a)
{
    const char *query = strchr(template, '?'), *p;
    struct buf b;
    size_t n;

    buf_init(&b, 0);
    buf_puts(&b, "/api/v1/");
    for (p = template; *p && p != query;) {
        if (*p != '{') {
            buf_putc(&b, *p++);
            continue;
        }
        put_encoded(&b, slot(p, a, &n) ? slot(p, a, &n) : "");
        p += n;
    }
    for (char sep = '?'; *p;) { /* name={ARG} or name=word, after each other */
        size_t name = strcspn(++p, "=");
        const char *from = p + name + 1, *value;
        char word[16] = "";

        n = strcspn(from, "&");
        if (*from == '{') {
            value = slot(from, a, &n);
        } else {
            snprintf(word, sizeof(word), "%.*s", (int)n, from);
            value = word;
        }
        if (value) {
            buf_printf(&b, "%c%.*s=", sep, (int)name, p);
            put_encoded(&b, value);
            sep = '&';
        }
        p = from + n;
    }
    return buf_take(&b);
}

void ask_words(const char *template, const struct args *a, struct buf *out)
{
    for (const char *p = template; *p;) {
        const char *value, *bar;
        size_t n;

        if (*p != '{') {
            buf_putc(out, *p++);
            continue;
        }
        value = slot(p, a, &n);
        bar = memchr(p, '|', n);
        if (value)
            buf_puts(out, value);
        else if (bar)
            buf_printf(out, "%.*s", (int)(p + n - 2 - bar), bar + 1);
        else
            buf_printf(out, "%.*s", (int)n, p);
        p += n;
    }
}

/* ---- bodies ---- */

/* An object as text, or the sentence that its strings are no UTF-8. */
static char *dump(json_t *o, struct err *e)
{
    char *s = o ? json_dumps(o, JSON_COMPACT) : NULL;

    json_decref(o);
    if (!s)
        err_set(e, ERR_INVALID, "the words or the file are not UTF-8");
    return s;
}

static json_t *list_of(const char *text)
{
    json_t *list = json_array();

    while (*text) {
        size_t n = strcspn(text, ",");

        if (n)
            json_array_append_new(list, json_stringn(text, n));
        text += n + (text[n] == ',');
    }
    return list;
}

struct item {
    char member[32], arg[ARG_NAME], kind[8], alone[16], absent[16];
};

/* "member=ARG:kind/alone?absent" of n bytes. */
static void read_item(const char *p, size_t n, struct item *ret)
{
    char text[128];

    memset(ret, 0, sizeof(*ret));
    snprintf(text, sizeof(text), "%.*s", (int)n, p);
    sscanf(text, "%31[^=]=%23[^:]:%7[a-z]", ret->member, ret->arg, ret->kind);
    if (strstr(text, "=:"))
        sscanf(text, "%31[^=]=:%7[a-z]", ret->member, ret->kind);
    if (strchr(text, '/'))
        sscanf(strchr(text, '/') + 1, "%15[^?]", ret->alone);
    if (strchr(text, '?'))
        sscanf(strchr(text, '?') + 1, "%15s", ret->absent);
}

/* NULL: the member is left out. *ret_bad when the value is no UTF-8. */
static json_t *item_value(const struct item *i, const struct args *a, bool *ret_bad)
{
    const char *v = i->arg[0] ? args_get(a, i->arg) : "";
    json_t *s;

    if (!i->arg[0])
        return json_boolean(!strcmp(i->kind, "true"));
    if (!v && i->absent[0])
        v = i->absent;
    if (!v)
        return NULL;
    if (!strcmp(i->kind, "flag"))
        return json_true();
    if (!*v && i->alone[0])
        v = i->alone;
    if (!strcmp(i->kind, "int"))
        return *v ? json_integer(strtoll(v, NULL, 10)) : NULL;
    s = !strcmp(i->kind, "list") ? list_of(v) : json_string(v);
    *ret_bad |= !s;
    return s;
}

char *ask_body(const char *template, const struct args *a, struct err *e)
{
    json_t *o = json_object();
    bool bad = false;

    while (*template) {
        size_t n = strcspn(template, " ");
        struct item i;
        json_t *v;

        read_item(template, n, &i);
        v = item_value(&i, a, &bad);
        if (v)
            json_object_set_new(o, i.member, v);
        template += n;
        template += strspn(template, " ");
    }
    if (bad) {
        json_decref(o);
        o = NULL;
    }
    return dump(o, e);
}

/* ---- explain, plan ---- */

/* Next word of *p into out; false at the end. */
static bool next_token(const char **p, char *out, size_t cap)
{
    size_t n;

    *p += strspn(*p, " \t");
    n = strcspn(*p, " \t");
    snprintf(out, cap, "%.*s", (int)n, *p);
    *p += n;
    return n > 0;
}

char *ask_explain(const char *text, struct err *e)
{
    json_t *o = json_object(), *args = json_array();
    char word[TOKEN_MAX];

    while (next_token(&text, word, sizeof(word)))
        json_array_append_new(args, json_string(word));
    json_object_set_new(o, "args", args);
    return dump(o, e);
}

/* o[key] := the file's text, or its JSON. */
static int put_file(json_t *o, const char *key, const char *path, bool parse,
                    struct err *e)
{
    static const struct js_limits lim = {FILE_MAX, 32};
    struct buf b;
    json_t *v = NULL;

    if (file_read(path, FILE_MAX, &b, e) < 0)
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
    static const char *const known[] = {"rack",      "slo", "workload", "rate", "why",
                                        "precision", "kv",  "skew",     NULL};
    char key[32], value[TOKEN_MAX];
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
                       "--precision --kv --skew --cp --why are",
                       word);
    if (eq)
        snprintf(value, sizeof(value), "%s", eq + 1);
    else if (!next_token(rest, value, sizeof(value)))
        return err_set(e, ERR_INVALID, "%s takes a value", word);
    if (!strcmp(key, "rack") && file_is(value)) {
        json_object_set_new(o, "rack", json_string(value));
        return put_file(o, "rack_file", value, false, e);
    }
    return json_object_set_new(o, key, json_string(value));
}

char *ask_plan(const char *model, const char *options, struct err *e)
{
    json_t *o = json_object();
    char word[TOKEN_MAX];

    if (model[0] == '-') {
        err_set(e, ERR_INVALID,
                "which model? a name such as kimi-k3, or a config.json here");
        goto fail;
    }
    json_object_set_new(o, "model", json_string(model));
    if (file_is(model) && put_file(o, "config", model, true, e) < 0)
        goto fail;
    while (next_token(&options, word, sizeof(word)))
        if (put_option(o, word, &options, e) < 0)
            goto fail;
    return dump(o, e);

fail:
    json_decref(o);
    return NULL;
}
