/* ctl/table.c - measure, fit, print. */
#include "ctl/table.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"

enum { CUT_MIN = 8, WRAP_MIN = 20, GAP = 2 };

struct column {
    char title[32];
    unsigned flags;
    int width; /* 0 = not shown */
};

struct table {
    int n_cols, n_cells, cap;
    struct column *col;
    char **cell; /* row by row */
};

const char *hue_begin(const struct show_style *st, enum hue h)
{
    static const char *const codes[] = {"",         "\x1b[32m", "\x1b[31m",
                                        "\x1b[33m", "\x1b[2m",  "\x1b[1m"};

    return st->colour ? codes[h] : "";
}

const char *hue_end(const struct show_style *st) { return st->colour ? "\x1b[0m" : ""; }

enum hue hue_of_state(const char *word)
{
    static const struct {
        enum hue hue;
        const char *words;
    } hues[] = {
        {HUE_GOOD,
         " ready ok yes running confirmed done in service serving active hot up valid "},
        {HUE_BAD, " failed critical no refused rolled back down error bad corrupt dead "
                  "denied revoked missing not answering "},
        {HUE_WARN,
         " loading pending applying draining starting warning warn major cordoned "
         "backoff stopped drained drain restart warming stopping reverting on "},
        {HUE_DIM, " superseded discarded ended info expired "},
    };
    char padded[64];

    snprintf(padded, sizeof(padded), " %s ", word);
    for (size_t i = 0; *word && i < sizeof(hues) / sizeof(hues[0]); i++)
        if (strstr(hues[i].words, padded))
            return hues[i].hue;
    return HUE_PLAIN;
}

int text_columns(const char *s)
{
    int n = 0;

    for (; *s; s++)
        n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

/* Bytes of the first n columns of s. */
static size_t bytes_of(const char *s, int n)
{
    const char *p = s;

    for (; *p; p++)
        if (((unsigned char)*p & 0xc0) != 0x80 && n-- == 0)
            break;
    return (size_t)(p - s);
}

char *text_cut(const char *s, int n)
{
    if (n < 1 || text_columns(s) <= n)
        return n < 1 ? xstrdup("") : xstrdup(s);
    return xasprintf("%.*s~", (int)bytes_of(s, n - 1), s);
}

struct table *table_new(int columns)
{
    struct table *t = xcalloc(1, sizeof(*t));

    t->n_cols = columns;
    t->col = xcalloc((size_t)columns, sizeof(*t->col));
    return t;
}

void table_free(struct table *t)
{
    if (!t)
        return;
    for (int i = 0; i < t->n_cells; i++)
        free(t->cell[i]);
    free(t->cell);
    free(t->col);
    free(t);
}

void table_column(struct table *t, int c, const char *title, unsigned flags)
{
    assert(c < t->n_cols);
    snprintf(t->col[c].title, sizeof(t->col[c].title), "%s", title);
    t->col[c].flags = flags;
}

void table_cell(struct table *t, const char *text)
{
    if (t->n_cells == t->cap) {
        t->cap = t->cap ? 2 * t->cap : 64;
        t->cell = xrealloc(t->cell, (size_t)t->cap * sizeof(*t->cell));
    }
    t->cell[t->n_cells++] = xstrdup(text ? text : "");
}

/* ---- widths ---- */

/* As wide as their widest cell; a column without any value does not show. */
static void measure(const struct table *t, struct column *col)
{
    for (int i = 0; i < t->n_cells; i++) {
        int n = text_columns(t->cell[i]);

        if (n > col[i % t->n_cols].width)
            col[i % t->n_cols].width = n;
    }
    for (int c = 0; c < t->n_cols; c++)
        if (col[c].width && text_columns(col[c].title) > col[c].width)
            col[c].width = text_columns(col[c].title);
}

static int total(const struct column *col, int n)
{
    int sum = 0;

    for (int c = 0; c < n; c++)
        sum += col[c].width ? col[c].width + GAP : 0;
    return sum ? sum - GAP : 0;
}

/* Takes columns from the widest of those with a flag that is (or is not) set. */
static bool narrow(struct column *col, int n, bool wrap, int least)
{
    int widest = -1;

    for (int c = 0; c < n; c++)
        if (!(col[c].flags & (TABLE_RIGHT | TABLE_WHOLE)) &&
            !!(col[c].flags & TABLE_WRAP) == wrap && col[c].width > least &&
            (widest < 0 || col[c].width > col[widest].width))
            widest = c;
    if (widest < 0)
        return false;
    col[widest].width--;
    return true;
}

/* Leaves out the last column that is neither the first nor the wrapping one. */
static bool leave_out(struct column *col, int n, struct buf *names)
{
    for (int pass = 0; pass < 2; pass++)
        for (int c = n - 1; c > 0; c--)
            if (col[c].width && (pass || !(col[c].flags & TABLE_WRAP))) {
                char *before = xstrdup(names->len ? names->p : "");

                buf_clear(names);
                buf_printf(names, "%s%s%s", col[c].title, *before ? ", " : "", before);
                free(before);
                col[c].width = 0;
                return true;
            }
    return false;
}

static void fit(struct column *col, int n, int width, struct buf *left_out)
{
    while (total(col, n) > width)
        if (!narrow(col, n, true, WRAP_MIN) && !narrow(col, n, false, CUT_MIN) &&
            !leave_out(col, n, left_out))
            break;
    while (total(col, n) > width && narrow(col, n, false, 1))
        ;
}

/* ---- printing ---- */

static void put_cell(const struct column *c, const char *text,
                     const struct show_style *st, enum hue hue, struct buf *out)
{
    char *cut = text_cut(text, c->width);
    int pad = c->width - text_columns(cut);

    if (c->flags & TABLE_RIGHT)
        buf_printf(out, "%*s", pad, "");
    if (hue == HUE_PLAIN)
        buf_puts(out, cut);
    else
        buf_printf(out, "%s%s%s", hue_begin(st, hue), cut, hue_end(st));
    if (!(c->flags & TABLE_RIGHT))
        buf_printf(out, "%*s", pad, "");
    free(cut);
}

static void end_line(struct buf *out)
{
    while (out->len && out->p[out->len - 1] == ' ')
        out->len--;
    buf_putc(out, '\n');
}

/* How many bytes of text go on one line of `width` columns: up to a space. */
static size_t fold(const char *text, int width)
{
    size_t n = bytes_of(text, width), k = n;

    if (!text[n])
        return n;
    while (k > 0 && text[k] != ' ')
        k--;
    return k ? k : n;
}

/* The rest of a folded cell, under its column. */
static void put_folded(const struct column *c, const char *text, int at, struct buf *out)
{
    while (*text) {
        size_t n;

        text += strspn(text, " ");
        n = fold(text, c->width);
        if (!n)
            return;
        buf_printf(out, "%*s%.*s", at, "", (int)n, text);
        end_line(out);
        text += n;
    }
}

static void put_row(const struct table *t, const struct column *col, char *const *cell,
                    const struct show_style *st, struct buf *out)
{
    const char *folded = NULL;
    int at = 0, fold_at = 0, fold_c = 0;

    for (int c = 0; c < t->n_cols; c++) {
        const char *text = cell[c][0] ? cell[c] : "-";

        if (!col[c].width)
            continue;
        if ((col[c].flags & TABLE_WRAP) && text_columns(text) > col[c].width) {
            size_t n = fold(text, col[c].width);

            buf_printf(out, "%.*s", (int)n, text);
            folded = text + n;
            fold_at = at;
            fold_c = c;
        } else {
            put_cell(&col[c], text, st,
                     col[c].flags & TABLE_STATE ? hue_of_state(text) : HUE_PLAIN, out);
        }
        at += col[c].width + GAP;
        buf_puts(out, "  ");
    }
    end_line(out);
    if (folded)
        put_folded(&col[fold_c], folded, fold_at, out);
}

void table_print(const struct table *t, const struct show_style *st, struct buf *out)
{
    struct column *col = xcalloc((size_t)t->n_cols, sizeof(*col));
    struct buf left_out;

    buf_init(&left_out, 0);
    memcpy(col, t->col, (size_t)t->n_cols * sizeof(*col));
    measure(t, col);
    if (st->width)
        fit(col, t->n_cols, st->width, &left_out);
    for (int c = 0; c < t->n_cols; c++)
        if (col[c].width) {
            put_cell(&col[c], col[c].title, st, HUE_BOLD, out);
            buf_puts(out, "  ");
        }
    end_line(out);
    for (int i = 0; i + t->n_cols <= t->n_cells; i += t->n_cols)
        put_row(t, col, &t->cell[i], st, out);
    if (left_out.len) {
        char *note = xasprintf("(no room for %s)", left_out.p);
        char *cut = text_cut(note, st->width);

        buf_printf(out, "%s%s%s\n", hue_begin(st, HUE_DIM), cut, hue_end(st));
        free(cut);
        free(note);
    }
    buf_done(&left_out);
    free(col);
}
