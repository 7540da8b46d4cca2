/* topo/explain.c - reads a topic's arguments, keeps its figures, prints them.
 *
 * The topics themselves stand in explain_topics.c as rows; nothing here knows a formula.
 * Life of a calculation: explain_run fills defaults, then the words given, calls the
 * topic's function, which reads arguments by name and adds figures and sentences. */
#include "topo/explain.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"

enum { LINE_MAX = 512 };

struct value {
    double *v;
    int n;
    const char *text; /* borrowed: the default or the caller's word */
};

struct line {
    char name[64]; /* "" for a sentence without a figure */
    double v;
    char *text;
};

struct explain {
    const struct explain_topic *topic;
    struct value arg[EXPLAIN_ARGS_MAX];
    char *given; /* the arguments as used, "T=4096 k=2" */
    struct line *line;
    int n_line, cap_line;
};

static const struct {
    const char *name;
    double scale;
} suffixes[] = {
    {"", 1},      {"K", 1e3},      {"M", 1e6},        {"G", 1e9},        {"T", 1e12},
    {"Ki", 1024}, {"Mi", 1 << 20}, {"Gi", 1ll << 30}, {"Ti", 1ll << 40},
};

const struct explain_topic *explain_find(const char *name)
{
    for (int i = 0; i < explain_n_topics(); i++)
        if (!strcmp(explain_topic_at(i)->name, name))
            return explain_topic_at(i);
    return NULL;
}

static int parse_one(const struct explain_arg *a, const char *s, size_t n, double *ret,
                     struct err *e)
{
    char word[64], *end;
    double v;

    if (n == 0 || n >= sizeof(word))
        return err_param(e, ERR_INVALID, a->name, "%s takes a number such as %s", a->name,
                         a->def);
    memcpy(word, s, n);
    word[n] = '\0';
    v = strtod(word, &end);
    for (size_t i = 0; end != word && i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
        if (strcmp(end, suffixes[i].name))
            continue;
        v *= suffixes[i].scale;
        if (!isfinite(v) || v < a->min || v > a->max)
            return err_param(e, ERR_RANGE, a->name, "%s=%s is outside %g to %g", a->name,
                             word, a->min, a->max);
        if (a->whole && v != floor(v))
            return err_param(e, ERR_INVALID, a->name, "%s=%s must be a whole number",
                             a->name, word);
        *ret = v;
        return 0;
    }
    return err_param(e, ERR_INVALID, a->name,
                     "%s=%s is not a number (K M G T, or Ki Mi Gi Ti, may follow)",
                     a->name, word);
}

static int parse_value(const struct explain_arg *a, const char *text, struct value *v,
                       struct err *e)
{
    const char *p = text;

    v->n = 0;
    v->text = text;
    if (!v->v)
        v->v = xcalloc(a->list ? EXPLAIN_LIST_MAX : 1, sizeof(*v->v));
    for (;;) {
        size_t len = a->list ? strcspn(p, ",") : strlen(p);
        if (v->n == EXPLAIN_LIST_MAX)
            return err_param(e, ERR_TOOBIG, a->name, "%s takes at most %d values",
                             a->name, EXPLAIN_LIST_MAX);
        if (parse_one(a, p, len, &v->v[v->n], e) < 0)
            return -1;
        v->n++;
        if (!p[len])
            return 0;
        p += len + 1;
    }
}

static int find_arg(const struct explain_topic *t, const char *word, size_t n)
{
    for (int i = 0; i < EXPLAIN_ARGS_MAX && t->arg[i].name; i++)
        if (strlen(t->arg[i].name) == n && !memcmp(t->arg[i].name, word, n))
            return i;
    return -1;
}

static int take_word(struct explain *x, const char *word, struct err *e)
{
    size_t n = strcspn(word, "=");
    int i = find_arg(x->topic, word, n);
    struct buf names;

    if (i >= 0 && word[n] == '=')
        return parse_value(&x->topic->arg[i], word + n + 1, &x->arg[i], e);
    buf_init(&names, 0);
    buf_puts(&names, x->topic->arg[0].name ? "" : "no arguments");
    for (i = 0; i < EXPLAIN_ARGS_MAX && x->topic->arg[i].name; i++)
        buf_printf(&names, "%s%s=", i ? " " : "", x->topic->arg[i].name);
    err_set(e, ERR_INVALID, "explain %s does not know '%s': it takes %s", x->topic->name,
            word, names.p);
    buf_done(&names);
    return -1;
}

static char *given_text(const struct explain *x)
{
    struct buf b;

    buf_init(&b, 0);
    for (int i = 0; i < EXPLAIN_ARGS_MAX && x->topic->arg[i].name; i++)
        buf_printf(&b, "%s%s=%s", i ? " " : "", x->topic->arg[i].name, x->arg[i].text);
    return b.len ? buf_take(&b) : xstrdup("");
}

int explain_run(const char *topic, const char *const *words, int n, struct explain **ret,
                struct err *e)
{
    const struct explain_topic *t = explain_find(topic);
    struct explain *x;

    if (!t)
        return err_set(e, ERR_NOTFOUND, "there is no explain topic '%s'", topic);
    x = xcalloc(1, sizeof(*x));
    x->topic = t;
    for (int i = 0; i < EXPLAIN_ARGS_MAX && t->arg[i].name; i++)
        if (parse_value(&t->arg[i], t->arg[i].def, &x->arg[i], e) < 0)
            goto fail;
    for (int i = 0; i < n; i++)
        if (take_word(x, words[i], e) < 0)
            goto fail;
    x->given = given_text(x);
    if (t->run(x, e) < 0)
        goto fail;
    *ret = x;
    return 0;
fail:
    explain_free(x);
    return -1;
}

void explain_free(struct explain *x)
{
    if (!x)
        return;
    for (int i = 0; i < EXPLAIN_ARGS_MAX; i++)
        free(x->arg[i].v);
    for (int i = 0; i < x->n_line; i++)
        free(x->line[i].text);
    free(x->line);
    free(x->given);
    free(x);
}

bool explain_get(const struct explain *x, const char *figure, double *ret)
{
    for (int i = 0; i < x->n_line; i++) {
        if (strcmp(x->line[i].name, figure) || !*figure)
            continue;
        *ret = x->line[i].v;
        return true;
    }
    return false;
}

double explain_num(const struct explain *x, const char *arg)
{
    return explain_list(x, arg, NULL)[0];
}

const double *explain_list(const struct explain *x, const char *arg, int *ret_n)
{
    const struct value *v = &x->arg[find_arg(x->topic, arg, strlen(arg))];

    if (ret_n)
        *ret_n = v->n;
    return v->v;
}

static void add_line(struct explain *x, const char *name, double v, const char *fmt,
                     va_list ap)
{
    char text[LINE_MAX];
    struct line *l;

    if (x->n_line == x->cap_line) {
        x->cap_line = x->cap_line ? 2 * x->cap_line : 16;
        x->line = xrealloc(x->line, (size_t)x->cap_line * sizeof(*x->line));
    }
    l = &x->line[x->n_line++];
    vsnprintf(text, sizeof(text), fmt, ap);
    snprintf(l->name, sizeof(l->name), "%s", name);
    l->v = v;
    l->text = xstrdup(text);
}

void explain_figure(struct explain *x, const char *name, double v, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    add_line(x, name, v, fmt, ap);
    va_end(ap);
}

void explain_say(struct explain *x, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    add_line(x, "", 0, fmt, ap);
    va_end(ap);
}

void explain_print(const struct explain *x, struct buf *out)
{
    if (*x->given)
        buf_printf(out, "given   %s\n", x->given);
    for (int i = 0; i < x->n_line; i++)
        if (*x->line[i].text)
            buf_printf(out, "%s\n", x->line[i].text);
    buf_printf(out, "assumes %s\n", x->topic->assumes);
}

void explain_json(const struct explain *x, struct buf *out)
{
    struct jw w;

    jw_init(&w, out);
    jw_obj(&w);
    jw_kstr(&w, "topic", x->topic->name);
    jw_kstr(&w, "given", x->given);
    jw_kstr(&w, "assumes", x->topic->assumes);
    jw_key(&w, "figures");
    jw_obj(&w);
    for (int i = 0; i < x->n_line; i++)
        if (*x->line[i].name)
            jw_knum(&w, x->line[i].name, x->line[i].v);
    jw_obj_end(&w);
    jw_key(&w, "text");
    jw_arr(&w);
    for (int i = 0; i < x->n_line; i++)
        if (*x->line[i].text)
            jw_str(&w, x->line[i].text);
    jw_arr_end(&w);
    jw_obj_end(&w);
}
