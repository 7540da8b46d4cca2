/* ctl/args.c - words, and the arguments of a verb. */
#include "ctl/args.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"

/* ---- the row's text ---- */

static const struct {
    const char *name;
    enum arg_type type;
} types[] = {
    {"text", ARG_TEXT},       {"instance", ARG_INSTANCE}, {"model", ARG_MODEL},
    {"device", ARG_DEVICE},   {"rev", ARG_REV},           {"revref", ARG_REVREF},
    {"path", ARG_PATH},       {"file", ARG_FILE},         {"seconds", ARG_SECONDS},
    {"int", ARG_INT},         {"key", ARG_KEY},           {"request", ARG_REQUEST},
    {"op", ARG_OP},           {"verb", ARG_VERB},         {"run", ARG_RUN},
    {"quality", ARG_QUALITY},
};

static void copy(char *out, size_t cap, const char *p, size_t n)
{
    assert(n < cap);
    memcpy(out, p, n);
    out[n] = '\0';
}

/* "NAME=type" or "NAME=type..." of n bytes. */
static void spec_value(struct arg_spec *s, const char *p, size_t n)
{
    const char *eq = memchr(p, '=', n);
    size_t tn;

    assert(eq);
    copy(s->name, sizeof(s->name), p, (size_t)(eq - p));
    tn = n - (size_t)(eq + 1 - p);
    if (tn > 3 && !memcmp(eq + 1 + tn - 3, "...", 3)) {
        s->rest = true;
        tn -= 3;
    }
    copy(s->choices, sizeof(s->choices), eq + 1, tn);
    s->type = ARG_CHOICE;
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
        if (!strcmp(types[i].name, s->choices)) {
            s->type = types[i].type;
            s->choices[0] = '\0';
            return;
        }
}

/* What stands between the outer brackets. */
static void spec_optional(struct arg_spec *s, const char *p, size_t n)
{
    const char *space = memchr(p, ' ', n), *value;

    s->optional = true;
    if (!space) {
        if (memchr(p, '=', n))
            spec_value(s, p, n);
        else
            copy(s->key, sizeof(s->key), p, n);
        return;
    }
    copy(s->key, sizeof(s->key), p, (size_t)(space - p));
    value = space + 1;
    n -= (size_t)(value - p);
    if (*value == '[') {
        s->value_optional = true;
        value++;
        n -= 2;
    }
    spec_value(s, value, n);
}

int args_spec(const char *text, struct arg_spec ret[ARGS_MAX])
{
    int n = 0;

    for (const char *p = text; *p;) {
        const char *start = p;
        int depth = 0;

        for (; *p && (depth || *p != ' '); p++)
            depth += *p == '[' ? 1 : *p == ']' ? -1 : 0;
        assert(n < ARGS_MAX && p > start);
        memset(&ret[n], 0, sizeof(ret[n]));
        if (*start == '[')
            spec_optional(&ret[n], start + 1, (size_t)(p - start - 2));
        else
            spec_value(&ret[n], start, (size_t)(p - start));
        n++;
        p += strspn(p, " ");
    }
    return n;
}

void args_usage(const char *text, struct buf *out)
{
    struct arg_spec s[ARGS_MAX];
    int n = args_spec(text, s);

    for (int i = 0; i < n; i++) {
        const char *shown = s[i].type == ARG_CHOICE && s[i].name[0] && s[i].key[0]
                                ? s[i].choices
                                : s[i].name;

        buf_printf(out, "%s%s%s", i ? " " : "", s[i].optional ? "[" : "", s[i].key);
        if (s[i].name[0])
            buf_printf(out, s[i].value_optional ? "%s[%s]" : "%s%s",
                       s[i].key[0] ? " " : "", shown);
        buf_printf(out, "%s%s", s[i].rest ? ".." : "", s[i].optional ? "]" : "");
    }
}

/* ---- words ---- */

/* One word from *pp into out (which has room); false when its quote stays open. */
static bool one_word(const char **pp, char *out)
{
    const char *p = *pp;
    char quote = 0;

    for (; *p && (quote || !isspace((unsigned char)*p)); p++) {
        if (*p == '\\' && quote != '\'' && p[1])
            *out++ = *++p;
        else if (quote ? *p == quote : *p == '\'' || *p == '"')
            quote = quote ? 0 : *p;
        else
            *out++ = *p;
    }
    *out = '\0';
    *pp = p;
    return quote == 0;
}

int words_split(const char *line, struct words *ret, struct err *e)
{
    const char *p;

    memset(ret, 0, sizeof(*ret));
    ret->line = xstrdup(line);
    for (p = ret->line + strspn(ret->line, " \t\r\n"); *p; p += strspn(p, " \t\r\n")) {
        if (ret->n == WORDS_MAX) {
            words_done(ret);
            return err_set(e, ERR_INVALID, "more than %d words", WORDS_MAX);
        }
        ret->raw[ret->n] = p;
        ret->w[ret->n] = xmalloc(strlen(p) + 1);
        ret->open = !one_word(&p, ret->w[ret->n]);
        ret->n++;
    }
    return 0;
}

void words_done(struct words *w)
{
    for (int i = 0; i < w->n; i++)
        free(w->w[i]);
    free(w->line);
    memset(w, 0, sizeof(*w));
}

char *words_join(char **argv, int n)
{
    struct buf b;

    buf_init(&b, 0);
    for (int i = 0; i < n; i++) {
        bool plain = argv[i][0] && !strpbrk(argv[i], " \t\r\n'\"\\");

        buf_puts(&b, i ? " " : "");
        buf_puts(&b, plain ? "" : "'");
        for (const char *p = argv[i]; *p; p++)
            if (*p == '\'')
                buf_puts(&b, "'\\''");
            else
                buf_putc(&b, *p);
        buf_puts(&b, plain ? "" : "'");
    }
    buf_puts(&b, "");
    return buf_take(&b);
}

/* ---- values ---- */

/* "10m" -> 600; -1 when it is no duration or over ten years. */
static int64_t seconds_of(const char *s)
{
    static const struct {
        char unit;
        int64_t s;
    } units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
    char *end;
    long long v;
    int64_t per = 1;

    if (!isdigit((unsigned char)*s))
        return -1;
    errno = 0;
    v = strtoll(s, &end, 10);
    for (size_t i = 0; *end && i < sizeof(units) / sizeof(units[0]); i++)
        if (*end == units[i].unit && !end[1]) {
            per = units[i].s;
            end++;
        }
    return errno || *end || v > 315360000 / per ? -1 : v * per;
}

static bool is_int(const char *s)
{
    size_t n = strspn(s, "0123456789");

    return n > 0 && n < 19 && !s[n];
}

static bool in_choices(const char *choices, const char *s)
{
    size_t n = strlen(s);

    for (const char *p = choices; *p; p += *p == '|') {
        size_t k = strcspn(p, "|");

        if (k == n && !memcmp(p, s, n))
            return true;
        p += k;
    }
    return false;
}

/* The value as it is kept, malloc'd; NULL and what would be right. */
static char *check_value(const struct arg_spec *s, const char *text, struct err *e)
{
    switch (s->type) {
    case ARG_SECONDS:
        if (seconds_of(text) < 0)
            break;
        return xasprintf("%lld", (long long)seconds_of(text));
    case ARG_REVREF:
        if (!strcmp(text, "draft") || !strcmp(text, "running"))
            return xstrdup(text);
        /* fall through */
    case ARG_REV:
    case ARG_RUN:
    case ARG_QUALITY:
    case ARG_INT:
        if (!is_int(text))
            break;
        return xstrdup(text);
    case ARG_CHOICE:
        if (!in_choices(s->choices, text))
            break;
        return xstrdup(text);
    default:
        if (!*text && s->type != ARG_TEXT)
            break;
        return xstrdup(text);
    }
    err_set(e, ERR_INVALID, "%s cannot be '%s': %s", s->name, text,
            s->type == ARG_SECONDS  ? "seconds, or a number with s, m, h or d"
            : s->type == ARG_REVREF ? "a revision's number, draft or running"
            : s->type == ARG_CHOICE ? s->choices
            : *text                 ? "a number"
                                    : "it is empty");
    return NULL;
}

static bool fits(const struct arg_spec *s, const char *text)
{
    char *v = check_value(s, text, NULL);

    free(v);
    return v != NULL;
}

/* ---- which spec takes which word ---- */

struct parse {
    struct arg_spec s[ARGS_MAX];
    bool used[ARGS_MAX];
    int n;
};

/* The spec that takes `word` next; -1 none, -2 several by prefix. Needed values come
 * first, then exact words, then values that may be there, then beginnings of words. */
static int taker(const struct parse *p, const char *word)
{
    int found = -1;

    for (int i = 0; i < p->n; i++)
        if (!p->used[i] && !p->s[i].optional)
            return i;
    for (int i = 0; i < p->n; i++)
        if (!p->used[i] && p->s[i].key[0] && !strcmp(p->s[i].key, word))
            return i;
    for (int i = 0; i < p->n; i++)
        if (!p->used[i] && !p->s[i].key[0] && fits(&p->s[i], word))
            return i;
    for (int i = 0; i < p->n && *word && *word != '-'; i++)
        if (!p->used[i] && p->s[i].key[0] && !strncmp(p->s[i].key, word, strlen(word)))
            found = found == -1 ? i : -2;
    return found;
}

static void put(struct args *a, const char *name, char *value)
{
    snprintf(a->v[a->n].name, ARG_NAME, "%s", name);
    a->v[a->n++].value = value;
}

/* The rest of the line from word i on: as typed, or the word when it is one. */
static char *rest_of(const struct words *w, int i)
{
    const char *p = w->raw[i];
    size_t n = strlen(p);

    if (i == w->n - 1 && !w->open)
        return xstrdup(w->w[i]);
    while (n && isspace((unsigned char)p[n - 1]))
        n--;
    return xstrndup(p, n);
}

/* Why no spec takes the word. */
static int not_taken(const struct parse *p, const char *word, int found, struct err *e)
{
    struct buf b;

    if (found == -2)
        return err_set(e, ERR_INVALID, "'%s' may mean several words here; type more",
                       word);
    for (int i = 0; i < p->n; i++)
        if (p->used[i] && p->s[i].key[0] && !strcmp(p->s[i].key, word))
            return err_set(e, ERR_INVALID, "'%s' stands twice", word);
    buf_init(&b, 200);
    for (int i = 0; i < p->n; i++)
        if (!p->used[i])
            buf_printf(&b, "%s%s", b.len ? ", " : "",
                       p->s[i].key[0] ? p->s[i].key : p->s[i].name);
    if (b.len)
        err_set(e, ERR_INVALID,
                "'%s' is not expected here; %s may follow (quote a text of "
                "several words)",
                word, b.p);
    else if (p->n)
        err_set(e, ERR_INVALID,
                "'%s' is one word too many (quote a text of several words)", word);
    else
        err_set(e, ERR_INVALID, "it takes no argument, found '%s'", word);
    buf_done(&b);
    return -1;
}

/* Spec k takes word *i and, for a worded one, its value. */
static int take(struct parse *p, int k, const struct words *w, int *i, struct args *ret,
                struct err *e)
{
    const struct arg_spec *s = &p->s[k];
    const char *name = s->key[0] ? s->key : s->name;
    char *value;

    p->used[k] = true;
    if (s->key[0]) {
        (*i)++;
        if (!s->name[0] || (s->value_optional && (*i >= w->n || !fits(s, w->w[*i])))) {
            put(ret, name, xstrdup(""));
            return 0;
        }
        if (*i >= w->n)
            return err_set(e, ERR_INVALID, "%s takes a value: %s", s->key,
                           s->type == ARG_CHOICE ? s->choices : s->name);
    }
    if (s->rest) {
        put(ret, name, rest_of(w, *i));
        *i = w->n;
        return 0;
    }
    if (w->open && *i == w->n - 1)
        return err_set(e, ERR_INVALID, "the quote that begins at %s is not closed",
                       w->raw[*i]);
    value = check_value(s, w->w[*i], e);
    if (!value)
        return -1;
    put(ret, name, value);
    (*i)++;
    return 0;
}

/* Of the session, not of the verb: the words that the option takes, 0 none, -1. */
static int option_at(const struct parse *p, int k, const struct words *w, int i,
                     struct options *o, struct err *e)
{
    bool own = k >= 0 && (p->s[k].key[0] || (p->s[k].rest && !p->s[k].optional));

    return own ? 0 : option_take(w, i, o, e);
}

int args_parse(const char *spec, const struct words *w, int i, struct args *ret,
               struct err *e)
{
    struct parse p = {.n = 0};

    memset(ret, 0, sizeof(*ret));
    p.n = args_spec(spec, p.s);
    while (i < w->n) {
        int k = taker(&p, w->w[i]), skip = option_at(&p, k, w, i, &ret->opt, e);

        if (skip < 0)
            goto fail;
        i += skip;
        if (skip)
            continue;
        if (k < 0 ? not_taken(&p, w->w[i], k, e) < 0 : take(&p, k, w, &i, ret, e) < 0)
            goto fail;
    }
    for (int k = 0; k < p.n; k++)
        if (!p.used[k] && !p.s[k].optional) {
            err_set(e, ERR_INVALID, "%s is missing",
                    p.s[k].type == ARG_CHOICE ? p.s[k].choices : p.s[k].name);
            goto fail;
        }
    return 0;

fail:
    args_done(ret);
    return -1;
}

void args_done(struct args *a)
{
    for (int i = 0; i < a->n; i++)
        free(a->v[i].value);
    a->n = 0;
}

const char *args_get(const struct args *a, const char *name)
{
    for (int i = 0; i < a->n; i++)
        if (!strcmp(a->v[i].name, name))
            return a->v[i].value;
    return NULL;
}

int args_next(const char *spec, const struct words *w, int i,
              struct arg_spec ret[ARGS_MAX])
{
    struct parse p = {.n = 0};
    struct args got = {.n = 0};
    int n = 0;

    p.n = args_spec(spec, p.s);
    while (i < w->n) {
        int k = taker(&p, w->w[i]), skip = option_at(&p, k, w, i, &got.opt, NULL);

        if (skip > 0) {
            i += skip;
            continue;
        }
        if (k < 0 || skip < 0)
            goto out;
        if (p.s[k].rest) {
            ret[n++] = p.s[k];
            goto out;
        }
        if (p.s[k].key[0] && p.s[k].name[0] && i == w->n - 1) { /* its value comes */
            ret[n++] = p.s[k];
            ret[0].key[0] = '\0';
            if (!p.s[k].value_optional)
                goto out;
            p.used[k] = true;
            break;
        }
        if (take(&p, k, w, &i, &got, NULL) < 0)
            goto out;
    }
    for (int k = 0; k < p.n; k++) {
        if (p.used[k] || n == ARGS_MAX)
            continue;
        ret[n++] = p.s[k];
        if (!p.s[k].optional) /* nothing else before it */
            break;
    }
out:
    args_done(&got);
    return n;
}
