/* ctl/show.c - views over JSON replies. */
#include "ctl/show.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"

enum {
    COLS_MAX = 24,
    CELL_MAX = 1024,
    ROWS_MAX = 10000,
    TITLE_MAX = 32,
    TWO_COLUMNS = 8,
    FIELD_GAP = 6
};

struct field {
    char title[TITLE_MAX], path[64], fmt[12];
};

struct section {
    char key[32];
    bool optional; /* nothing when it is empty */
    int n;
    struct field f[COLS_MAX];
};

void show_clean(char *s, const char *keep)
{
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s, next = (unsigned char)s[1];

        if ((c < 0x20 && !strchr(keep, c)) || c == 0x7f)
            *s = '?';
        else if (c == 0xc2 && next >= 0x80 && next < 0xa0) /* U+0080 to U+009F */
            s[0] = s[1] = '?';
    }
}

/* "{A=a,..}" or "key?{A=a,..}" of n bytes. */
static void read_section(const char *s, size_t n, struct section *ret)
{
    const char *open = memchr(s, '{', n), *end = s + n - 1;
    size_t k = open ? (size_t)(open - s) : n;

    memset(ret, 0, sizeof(*ret));
    ret->optional = k && s[k - 1] == '?';
    snprintf(ret->key, sizeof(ret->key), "%.*s", (int)(k - ret->optional), s);
    for (s = open ? open + 1 : end; s < end && ret->n < COLS_MAX;) {
        struct field *f = &ret->f[ret->n++];
        size_t len = strcspn(s, ",}"), eq = strcspn(s, "="), colon = eq + 1;

        while (colon < len && s[colon] != ':')
            colon++;
        snprintf(f->title, sizeof(f->title), "%.*s", (int)eq, s);
        snprintf(f->path, sizeof(f->path), "%.*s", (int)(colon - eq - 1), s + eq + 1);
        if (colon < len)
            snprintf(f->fmt, sizeof(f->fmt), "%.*s", (int)(len - colon - 1),
                     s + colon + 1);
        s += len + 1;
    }
}

const json_t *show_member(const json_t *obj, const char *path)
{
    char part[64];

    while (obj && *path) {
        size_t n = strcspn(path, ".");

        snprintf(part, sizeof(part), "%.*s", (int)n, path);
        obj = json_object_get(obj, part);
        path += n + (path[n] == '.');
    }
    return json_is_null(obj) ? NULL : obj;
}

/* 98362432 with steps of 1024 -> "93.8 MiB", with steps of 1000 -> "98.4 M". */
static void scaled(double v, double step, const char *const *units, char *out, size_t cap)
{
    int u = 0;

    while (fabs(v) >= step && units[u + 1]) {
        v /= step;
        u++;
    }
    snprintf(out, cap, u ? "%.1f%s" : "%.0f%s", v, units[u]);
}

/* Unix ms as local time. */
static void format_time(int64_t ms, char *out, size_t cap)
{
    time_t t = (time_t)(ms / 1000);
    struct tm tm;

    out[0] = '\0';
    if (ms > 0 && localtime_r(&t, &tm))
        strftime(out, cap, "%Y-%m-%d %H:%M:%S", &tm);
}

static void format_number(const json_t *v, const char *fmt, char *out, size_t cap)
{
    static const char *const bytes[] = {" B", " KiB", " MiB", " GiB", " TiB", NULL};
    static const char *const counts[] = {"", "k", "M", "B", "T", NULL};
    double d = json_number_value(v);

    if (!strcmp(fmt, "bytes"))
        scaled(d, 1024, bytes, out, cap);
    else if (!strcmp(fmt, "count"))
        scaled(d, 1000, counts, out, cap);
    else if (!strcmp(fmt, "pct"))
        snprintf(out, cap, "%.1f %%", 100 * d);
    else if (!strcmp(fmt, "part")) /* of one */
        snprintf(out, cap, "%.3f", d);
    else if (!strcmp(fmt, "ms") && d >= 10000)
        snprintf(out, cap, "%.1f s", d / 1000);
    else if (!strcmp(fmt, "ms"))
        snprintf(out, cap, d < 10 ? "%.2f ms" : "%.0f ms", d);
    else if (!strcmp(fmt, "us") && fabs(d) >= 1000)
        snprintf(out, cap, "%.2f ms", d / 1000);
    else if (!strcmp(fmt, "us"))
        snprintf(out, cap, "%.0f us", d);
    else if (!strcmp(fmt, "s") && d >= 86400)
        snprintf(out, cap, "%dd %02dh", (int)(d / 86400), (int)(d / 3600) % 24);
    else if (!strcmp(fmt, "s") && d >= 60 && d < 3600)
        snprintf(out, cap, "%dm %02ds", (int)(d / 60), (int)d % 60);
    else if (!strcmp(fmt, "s") && d >= 3600)
        snprintf(out, cap, "%dh %02dm %02ds", (int)(d / 3600), (int)(d / 60) % 60,
                 (int)d % 60);
    else if (!strcmp(fmt, "s"))
        snprintf(out, cap, "%.0f s", d);
    else if (!strcmp(fmt, "minute"))
        format_time((int64_t)d * 60000, out, cap);
    else if (!strcmp(fmt, "time"))
        format_time((int64_t)d, out, cap);
    else if (json_is_integer(v))
        snprintf(out, cap, "%" PRId64, (int64_t)json_integer_value(v));
    else
        snprintf(out, cap, "%.4g", d);
}

/* ["a", "b"] -> "a, b" */
static void join(const json_t *v, char *out, size_t cap)
{
    size_t len = 0;

    for (size_t i = 0; i < json_array_size(v) && len < cap; i++) {
        char one[128];

        show_value(json_array_get(v, i), "", one, sizeof(one));
        len += (size_t)snprintf(out + len, cap - len, "%s%s", i ? ", " : "", one);
    }
}

void show_value(const json_t *v, const char *fmt, char *out, size_t cap)
{
    out[0] = '\0';
    if (json_is_string(v))
        snprintf(out, cap, "%s", json_string_value(v));
    else if (json_is_boolean(v) && (json_is_true(v) || strcmp(fmt, "on") != 0))
        snprintf(out, cap, "%s", json_is_true(v) ? "yes" : "no");
    else if (json_is_number(v) && *fmt && fmt[strlen(fmt) - 1] == '+') {
        char plain[12]; /* shown when it is positive */

        snprintf(plain, sizeof(plain), "%.*s", (int)strlen(fmt) - 1, fmt);
        if (json_number_value(v) > 0)
            format_number(v, plain, out, cap);
    } else if (json_is_number(v) && json_number_value(v) >= 0)
        format_number(v, fmt, out, cap);
    else if (json_is_number(v) && (!fmt[0] || !strcmp(fmt, "us")))
        format_number(v, fmt, out, cap);
    else if (json_is_array(v))
        join(v, out, cap);
    show_clean(out, "");
}

static enum hue hue_of(const struct field *f, const json_t *v, const char *text)
{
    if (!strcmp(f->fmt, "state"))
        return hue_of_state(text);
    if (!strcmp(f->fmt, "on"))
        return HUE_WARN;
    if (!strcmp(f->fmt, "bad") && json_number_value(v) > 0)
        return HUE_BAD;
    return HUE_PLAIN;
}

struct shown {
    const char *title;
    char text[CELL_MAX];
    enum hue hue;
};

/* The fields that have a value. */
static int gather(const json_t *root, const struct section *s, struct shown *ret)
{
    int n = 0;

    for (int i = 0; i < s->n; i++) {
        const json_t *v = show_member(root, s->f[i].path);

        show_value(v, s->f[i].fmt, ret[n].text, sizeof(ret[n].text));
        ret[n].title = s->f[i].title;
        ret[n].hue = hue_of(&s->f[i], v, ret[n].text);
        n += ret[n].text[0] != '\0';
    }
    return n;
}

/* Widest title and text of f[from..to). */
static void widths(const struct shown *f, int from, int to, int *ret_title, int *ret_text)
{
    *ret_title = *ret_text = 0;
    for (int i = from; i < to; i++) {
        int t = text_columns(f[i].title), v = text_columns(f[i].text);

        *ret_title = t > *ret_title ? t : *ret_title;
        *ret_text = v > *ret_text ? v : *ret_text;
    }
}

static void put_field(const struct shown *f, int title, const struct show_style *st,
                      struct buf *out)
{
    buf_printf(out, "%-*s  %s%s%s", title, f->title, hue_begin(st, f->hue), f->text,
               f->hue ? hue_end(st) : "");
}

/* One below the other; many short ones in two columns. */
static void show_fields(const json_t *root, const struct section *s,
                        const struct show_style *st, struct buf *out)
{
    struct shown *f = xcalloc(COLS_MAX, sizeof(*f));
    int n = gather(root, s, f), half = (n + 1) / 2;
    int title[2], text[2];

    widths(f, 0, half, &title[0], &text[0]);
    widths(f, half, n, &title[1], &text[1]);
    if (n < TWO_COLUMNS ||
        title[0] + text[0] + title[1] + text[1] + FIELD_GAP + 4 > st->width) {
        widths(f, 0, n, &title[0], &text[0]);
        half = n;
    }
    for (int i = 0; i < half; i++) {
        put_field(&f[i], title[0], st, out);
        if (half + i < n) {
            buf_printf(out, "%*s", text[0] - text_columns(f[i].text) + FIELD_GAP, "");
            put_field(&f[half + i], title[1], st, out);
        }
        buf_putc(out, '\n');
    }
    free(f);
}

static enum hue hue_of_diff(const char *line)
{
    if (*line == '+' && strncmp(line, "+++", 3) != 0)
        return HUE_GOOD;
    if (*line == '-' && strncmp(line, "---", 3) != 0)
        return HUE_BAD;
    return *line == '@' ? HUE_DIM : HUE_PLAIN;
}

/* Lines that the daemon made, with its tabs. */
static void show_text(const json_t *v, bool diff, const struct show_style *st,
                      struct buf *out)
{
    const char *text = json_string_value(v);
    char *copy = xstrdup(text ? text : "");

    show_clean(copy, "\n\t");
    for (char *p = copy; *p;) {
        size_t n = strcspn(p, "\n");
        enum hue hue = diff ? hue_of_diff(p) : HUE_PLAIN;

        buf_printf(out, "%s%.*s%s\n", hue_begin(st, hue), (int)n, p,
                   hue ? hue_end(st) : "");
        p += n + (p[n] == '\n');
    }
    free(copy);
}

/* A column is of numbers when its first value is one. */
static bool of_numbers(const json_t *rows, const char *path)
{
    for (size_t r = 0; r < json_array_size(rows); r++) {
        const json_t *v = show_member(json_array_get(rows, r), path);

        if (v)
            return json_is_number(v);
    }
    return false;
}

static unsigned flags_of(const struct field *f, const json_t *rows)
{
    if (!strcmp(f->fmt, "time") || !strcmp(f->fmt, "minute"))
        return TABLE_WHOLE;
    if (!strcmp(f->fmt, "state"))
        return TABLE_STATE;
    if (!strcmp(f->fmt, "wrap"))
        return TABLE_WRAP;
    return of_numbers(rows, f->path) ? TABLE_RIGHT : 0;
}

static void show_table(const json_t *rows, const struct section *s,
                       const struct show_style *st, struct buf *out)
{
    size_t n = json_array_size(rows);
    char text[CELL_MAX];
    struct table *t;

    if (n == 0) {
        if (!s->optional)
            buf_printf(out, "no %s\n", s->key);
        return;
    }
    t = table_new(s->n);
    for (int c = 0; c < s->n; c++)
        table_column(t, c, s->f[c].title, flags_of(&s->f[c], rows));
    for (size_t r = 0; r < n && r < ROWS_MAX; r++)
        for (int c = 0; c < s->n; c++) {
            show_value(show_member(json_array_get(rows, r), s->f[c].path), s->f[c].fmt,
                       text, sizeof(text));
            table_cell(t, text);
        }
    table_print(t, st, out);
    table_free(t);
    if (n > ROWS_MAX)
        buf_printf(out, "(%d of %zu)\n", ROWS_MAX, n);
}

/* An array of objects whose members nobody named: a column for each of the first. */
static void rest_table(const char *key, const json_t *rows, const struct show_style *st,
                       struct buf *out)
{
    struct section s = {.n = 0};
    const char *name;
    json_t *v;

    snprintf(s.key, sizeof(s.key), "%s", key);
    json_object_foreach(json_array_get(rows, 0), name, v)
    {
        struct field *f = &s.f[s.n];

        if (s.n == COLS_MAX || json_is_object(v))
            continue;
        s.n++;
        snprintf(f->path, sizeof(f->path), "%s", name);
        for (size_t i = 0; name[i] && i + 1 < sizeof(f->title); i++)
            f->title[i] = (char)(name[i] == '_' ? ' ' : name[i] & ~0x20);
    }
    if (s.n)
        show_table(rows, &s, st, out);
}

/* Scalars first, as lines named by their way; then the tables. */
static void show_rest(const json_t *root, const char *prefix, struct table *fields,
                      const struct show_style *st, struct buf *tables)
{
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)root, key, v)
    {
        char *name = xasprintf("%s%s%s", prefix, *prefix ? "." : "", key);
        char text[CELL_MAX];

        if (json_is_object(v)) {
            show_rest(v, name, fields, st, tables);
        } else if (json_is_array(v) && json_is_object(json_array_get(v, 0))) {
            buf_putc(tables, '\n');
            rest_table(name, v, st, tables);
        } else {
            show_value(v, "", text, sizeof(text));
            show_clean(name, "");
            table_cell(fields, name);
            table_cell(fields, text);
        }
        free(name);
    }
}

static void show_all(const json_t *root, const struct show_style *st, struct buf *out)
{
    struct table *t = table_new(2);
    struct buf tables;

    buf_init(&tables, 0);
    table_column(t, 0, "NAME", TABLE_WHOLE);
    table_column(t, 1, "VALUE", TABLE_WRAP);
    show_rest(root, "", t, st, &tables);
    table_print(t, st, out);
    buf_add(out, tables.p ? tables.p : "", tables.len);
    buf_done(&tables);
    table_free(t);
}

/* "revision {revision} is {state}" */
static void show_words(const json_t *root, const char *s, size_t n, struct buf *out)
{
    char path[64], text[CELL_MAX];

    for (const char *end = s + n; s < end;) {
        size_t k = strcspn(s, "{");

        if (s + k > end)
            k = (size_t)(end - s);
        buf_add(out, s, k);
        s += k;
        if (s >= end)
            break;
        k = strcspn(s, "}");
        snprintf(path, sizeof(path), "%.*s", (int)k - 1, s + 1);
        show_value(show_member(root, path), "", text, sizeof(text));
        buf_puts(out, text[0] ? text : "?");
        s += k + 1;
    }
    buf_putc(out, '\n');
}

static void show_section(const json_t *root, const char *view, size_t n,
                         const struct show_style *st, struct buf *out)
{
    struct section s;

    if (*view == '=') {
        show_words(root, view + 1, n - 1, out);
        return;
    }
    if (n == 5 && !memcmp(view, "@rest", n)) {
        show_all(root, st, out);
        return;
    }
    if (*view == '@') {
        size_t k = strcspn(view, ":;");
        char key[32];

        snprintf(key, sizeof(key), "%.*s", (int)k - 1, view + 1);
        show_text(json_object_get(root, key), k < n, st, out);
        return;
    }
    read_section(view, n, &s);
    if (s.key[0])
        show_table(show_member(root, s.key), &s, st, out);
    else
        show_fields(root, &s, st, out);
}

void show_json(const json_t *root, const char *view, const struct show_style *st,
               struct buf *out)
{
    while (*view) {
        size_t n = strcspn(view, ";"), before = out->len;
        struct buf one;

        buf_init(&one, 0);
        show_section(root, view, n, st, &one);
        if (one.len)
            buf_printf(out, "%s%s", before ? "\n" : "", one.p);
        buf_done(&one);
        view += n + (view[n] == ';');
    }
}

int show_render(const char *json, size_t n, const char *view, const struct show_style *st,
                struct buf *out, struct err *e)
{
    static const struct js_limits lim = {64 << 20, 32};
    json_t *root;

    if (js_parse(json, n, &lim, &root, e) < 0)
        return err_wrap(e, "the daemon's answer");
    show_json(root, view, st, out);
    json_decref(root);
    return 0;
}
