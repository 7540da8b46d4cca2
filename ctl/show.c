/* ctl/show.c - views of verb.def over JSON replies.
 *
 * A view is a list of sections: "{A=a,B=b.c:fmt}" prints fields of the root as lines,
 * "key{A=a,..}" prints the array at key as a table. Absent and null values print as "-"
 * in tables and are left out among fields. */
#include "ctl/show.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"

enum { COLS_MAX = 24, CELL_MAX = 256, ROWS_MAX = 10000 };

struct column {
    char title[32], path[64], fmt[12];
};

struct section {
    char key[32];
    int n;
    struct column col[COLS_MAX];
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

/* One section from *p on; false at the end of the view. */
static bool next_section(const char **p, struct section *ret)
{
    const char *s = *p, *open = strchr(s, '{'), *close = open ? strchr(open, '}') : NULL;

    memset(ret, 0, sizeof(*ret));
    if (*s == '@') {
        size_t n = strcspn(s, ";");

        snprintf(ret->key, sizeof(ret->key), "%.*s", (int)n, s);
        *p = s + n + (s[n] == ';');
        return true;
    }
    if (!close)
        return false;
    snprintf(ret->key, sizeof(ret->key), "%.*s", (int)(open - s), s);
    for (s = open + 1; s < close && ret->n < COLS_MAX;) {
        struct column *c = &ret->col[ret->n++];
        size_t n = strcspn(s, ",}"), eq = strcspn(s, "="), colon = eq + 1;

        while (colon < n && s[colon] != ':')
            colon++;
        snprintf(c->title, sizeof(c->title), "%.*s", (int)eq, s);
        snprintf(c->path, sizeof(c->path), "%.*s", (int)(colon - eq - 1), s + eq + 1);
        if (colon < n)
            snprintf(c->fmt, sizeof(c->fmt), "%.*s", (int)(n - colon - 1), s + colon + 1);
        s += n + 1;
    }
    *p = close[1] == ';' ? close + 2 : close + 1;
    return true;
}

static const json_t *look_up(const json_t *obj, const char *path)
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
    else if (!strcmp(fmt, "ms") && d >= 10000)
        snprintf(out, cap, "%.1f s", d / 1000);
    else if (!strcmp(fmt, "ms"))
        snprintf(out, cap, d < 10 ? "%.2f ms" : "%.0f ms", d);
    else if (!strcmp(fmt, "s") && d >= 86400)
        snprintf(out, cap, "%dd %02dh", (int)(d / 86400), (int)(d / 3600) % 24);
    else if (!strcmp(fmt, "s") && d >= 60)
        snprintf(out, cap, "%dh %02dm %02ds", (int)(d / 3600), (int)(d / 60) % 60,
                 (int)d % 60);
    else if (!strcmp(fmt, "s"))
        snprintf(out, cap, "%.0f s", d);
    else if (json_is_integer(v))
        snprintf(out, cap, "%" PRId64, (int64_t)json_integer_value(v));
    else
        snprintf(out, cap, "%.4g", d);
}

/* The text of a value; returns false when there is none. */
static bool cell(const json_t *obj, const struct column *c, char *out, size_t cap)
{
    const json_t *v = look_up(obj, c->path);

    out[0] = '\0';
    if (json_is_string(v))
        snprintf(out, cap, "%s", json_string_value(v));
    else if (json_is_boolean(v))
        snprintf(out, cap, "%s", json_is_true(v) ? "yes" : "no");
    else if (json_is_number(v) && json_number_value(v) >= 0)
        format_number(v, c->fmt, out, cap);
    else if (json_is_number(v) && !c->fmt[0])
        format_number(v, "", out, cap);
    show_clean(out, "");
    return out[0] != '\0';
}

static void show_fields(const json_t *root, const struct section *s, struct buf *out)
{
    char text[CELL_MAX];
    int wide = 0;

    for (int i = 0; i < s->n; i++)
        if (cell(root, &s->col[i], text, sizeof(text)) &&
            (int)strlen(s->col[i].title) > wide)
            wide = (int)strlen(s->col[i].title);
    for (int i = 0; i < s->n; i++)
        if (cell(root, &s->col[i], text, sizeof(text)))
            buf_printf(out, "%-*s  %s\n", wide, s->col[i].title, text);
}

/* Lines that the daemon made, with its tabs. */
static void show_text(const json_t *v, struct buf *out)
{
    const char *p = json_string_value(v);
    char *copy = xstrdup(p ? p : "");

    show_clean(copy, "\n\t");
    buf_puts(out, copy);
    if (out->len && out->p[out->len - 1] != '\n')
        buf_putc(out, '\n');
    free(copy);
}

/* Columns that show when printing: those with a value in some row. */
static void measure(const json_t *rows, const struct section *s, int *width)
{
    char text[CELL_MAX];

    for (int c = 0; c < s->n; c++)
        width[c] = 0;
    for (size_t r = 0; r < json_array_size(rows); r++)
        for (int c = 0; c < s->n; c++)
            if (cell(json_array_get(rows, r), &s->col[c], text, sizeof(text)) &&
                (int)strlen(text) > width[c])
                width[c] = (int)strlen(text);
    for (int c = 0; c < s->n; c++)
        if (width[c] && (int)strlen(s->col[c].title) > width[c])
            width[c] = (int)strlen(s->col[c].title);
}

/* Narrow the widest column until the row fits. */
static void fit(int *width, int n, int total)
{
    for (;;) {
        int sum = 0, widest = 0;

        for (int c = 0; c < n; c++) {
            sum += width[c] ? width[c] + 2 : 0;
            if (width[c] > width[widest])
                widest = c;
        }
        if (!total || sum - 2 <= total || width[widest] <= 8)
            return;
        width[widest]--;
    }
}

/* One line; a text cut short ends in '~', numbers stand to the right. */
static void put_row(struct buf *out, char (*text)[CELL_MAX], const bool *right,
                    const int *width, int n)
{
    size_t start = out->len;

    for (int c = 0; c < n; c++) {
        if (!width[c])
            continue;
        if ((int)strlen(text[c]) > width[c]) {
            text[c][width[c] - 1] = '~';
            text[c][width[c]] = '\0';
        }
        buf_printf(out, right[c] ? "%*s  " : "%-*s  ", width[c], text[c]);
    }
    while (out->len > start && out->p[out->len - 1] == ' ')
        out->len--;
    buf_putc(out, '\n');
}

static void show_table(const json_t *rows, const struct section *s, int total,
                       struct buf *out)
{
    char(*text)[CELL_MAX] = xcalloc(COLS_MAX, sizeof(*text));
    bool right[COLS_MAX] = {false};
    int width[COLS_MAX];
    size_t n = json_array_size(rows);

    if (n == 0) {
        buf_printf(out, "no %s\n", s->key);
        free(text);
        return;
    }
    measure(rows, s, width);
    fit(width, s->n, total);
    for (int c = 0; c < s->n; c++) {
        right[c] = json_is_number(look_up(json_array_get(rows, 0), s->col[c].path));
        snprintf(text[c], CELL_MAX, "%s", s->col[c].title);
    }
    put_row(out, text, right, width, s->n);
    for (size_t r = 0; r < n && r < ROWS_MAX; r++) {
        for (int c = 0; c < s->n; c++)
            if (!cell(json_array_get(rows, r), &s->col[c], text[c], CELL_MAX))
                strcpy(text[c], "-");
        put_row(out, text, right, width, s->n);
    }
    free(text);
}

int show_render(const char *json, size_t n, const char *view, int width, struct buf *out,
                struct err *e)
{
    static const struct js_limits lim = {64 << 20, 32};
    struct section s;
    json_t *root;
    bool first = true;

    if (js_parse(json, n, &lim, &root, e) < 0)
        return err_wrap(e, "the daemon's answer");
    while (next_section(&view, &s)) {
        if (!first)
            buf_putc(out, '\n');
        first = false;
        if (s.key[0] == '@')
            show_text(json_object_get(root, s.key + 1), out);
        else if (s.key[0])
            show_table(json_object_get(root, s.key), &s, width, out);
        else
            show_fields(root, &s, out);
    }
    json_decref(root);
    return 0;
}
