/* daemon/ctrl/conf_merge.c - texts beside each other: unified difference, rebase.
 *
 * The difference is a longest common subsequence of lines by table, after equal lines at
 * both ends are set aside. A table that would be too large is not made: then the whole
 * middle counts as changed, which is right, only longer. */
#include "daemon/ctrl/conf.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "daemon/ctrl/conf_leaf.h"

enum { AROUND = 3, TABLE_MAX = 4 << 20, CONFLICTS_SHOWN = 8 };

/* ---- lines ---- */

struct lines {
    const char **at; /* n + 1 of them; the last is the end */
    int n;
};

static void lines_of(const char *text, struct lines *ret)
{
    int n = 0;

    for (const char *p = text; *p; p++)
        n += *p == '\n' || !p[1];
    ret->at = xmalloc((size_t)(n + 1) * sizeof(*ret->at));
    ret->n = n;
    n = 0;
    ret->at[0] = text;
    for (const char *p = text; *p; p++)
        if (*p == '\n' || !p[1])
            ret->at[++n] = p + 1;
}

static bool same(const struct lines *a, int i, const struct lines *b, int j)
{
    size_t n = (size_t)(a->at[i + 1] - a->at[i]);
    return n == (size_t)(b->at[j + 1] - b->at[j]) && !memcmp(a->at[i], b->at[j], n);
}

/* ---- edit script: ' ', '-' or '+' a line ---- */

/* Lines a[i..na) and b[j..nb) by the table of common lengths from each place on. */
static void script_table(const struct lines *a, int i, int na, const struct lines *b,
                         int j, int nb, struct buf *ops)
{
    int w = nb - j + 1, i0 = i, j0 = j;
    uint16_t *t = xcalloc((size_t)(na - i + 1) * (size_t)w, sizeof(*t));

#define T(x, y) t[(size_t)((x)-i0) * (size_t)w + (size_t)((y)-j0)]
    for (int x = na - 1; x >= i0; x--)
        for (int y = nb - 1; y >= j0; y--)
            T(x, y) = same(a, x, b, y)            ? (uint16_t)(T(x + 1, y + 1) + 1)
                      : T(x + 1, y) > T(x, y + 1) ? T(x + 1, y)
                                                  : T(x, y + 1);
    while (i < na || j < nb) {
        if (i < na && j < nb && same(a, i, b, j)) {
            buf_putc(ops, ' ');
            i++, j++;
        } else if (i < na && (j == nb || T(i + 1, j) >= T(i, j + 1))) {
            buf_putc(ops, '-');
            i++;
        } else {
            buf_putc(ops, '+');
            j++;
        }
    }
#undef T
    free(t);
}

static void script(const struct lines *a, const struct lines *b, struct buf *ops)
{
    int head = 0, na = a->n, nb = b->n;

    while (head < na && head < nb && same(a, head, b, head)) {
        buf_putc(ops, ' ');
        head++;
    }
    while (na > head && nb > head && same(a, na - 1, b, nb - 1))
        na--, nb--;
    if ((int64_t)(na - head + 1) * (nb - head + 1) <= TABLE_MAX) {
        script_table(a, head, na, b, head, nb, ops);
    } else {
        for (int i = head; i < na; i++)
            buf_putc(ops, '-');
        for (int j = head; j < nb; j++)
            buf_putc(ops, '+');
    }
    for (int i = na; i < a->n; i++)
        buf_putc(ops, ' ');
}

/* ---- unified form ---- */

static void put_range(struct buf *out, int first, int n)
{
    buf_printf(out, n == 1 ? "%d" : "%d,%d", n ? first + 1 : first, n);
}

static void put_line(struct buf *out, char op, const struct lines *l, int i)
{
    size_t n = (size_t)(l->at[i + 1] - l->at[i]);

    buf_putc(out, op);
    buf_add(out, l->at[i], n);
    if (n == 0 || l->at[i][n - 1] != '\n')
        buf_puts(out, "\n\\ No newline at end of file\n");
}

/* Operations [from, to) as one hunk; a and b lines before it are ai and bi. */
static void put_hunk(struct buf *out, const char *ops, size_t from, size_t to,
                     const struct lines *a, int ai, const struct lines *b, int bi)
{
    int na = 0, nb = 0;

    for (size_t k = from; k < to; k++) {
        na += ops[k] != '+';
        nb += ops[k] != '-';
    }
    buf_puts(out, "@@ -");
    put_range(out, ai, na);
    buf_puts(out, " +");
    put_range(out, bi, nb);
    buf_puts(out, " @@\n");
    for (size_t k = from; k < to; k++) {
        if (ops[k] == '+')
            put_line(out, '+', b, bi);
        else
            put_line(out, ops[k], a, ai);
        ai += ops[k] != '+';
        bi += ops[k] != '-';
    }
}

/* Past the last change that belongs to the hunk which begins with the change at k. */
static size_t hunk_end(const char *ops, size_t n, size_t k)
{
    size_t end = k;

    for (size_t quiet = 0; k < n && quiet <= 2 * AROUND; k++) {
        quiet = ops[k] == ' ' ? quiet + 1 : 0;
        if (ops[k] != ' ')
            end = k + 1;
    }
    return end;
}

void conf_text_diff(const char *a, const char *b, const char *name_a, const char *name_b,
                    struct buf *out)
{
    struct lines la, lb;
    struct buf ops;
    size_t done = 0; /* operations counted into ai and bi */
    int ai = 0, bi = 0;

    if (!strcmp(a, b))
        return;
    lines_of(a, &la);
    lines_of(b, &lb);
    buf_init(&ops, 0);
    script(&la, &lb, &ops);
    buf_printf(out, "--- %s\n+++ %s\n", name_a, name_b);
    for (size_t k = 0; k < ops.len; k++) {
        size_t from = k > done + AROUND ? k - AROUND : done, end;

        if (ops.p[k] == ' ')
            continue;
        end = hunk_end(ops.p, ops.len, k) + AROUND;
        end = end < ops.len ? end : ops.len;
        ai += (int)(from - done); /* between hunks nothing changes */
        bi += (int)(from - done);
        put_hunk(out, ops.p, from, end, &la, ai, &lb, bi);
        for (; from < end; from++) {
            ai += ops.p[from] != '+';
            bi += ops.p[from] != '-';
        }
        done = end;
        k = end - 1;
    }
    buf_done(&ops);
    free(la.at);
    free(lb.at);
}

/* ---- rebase ---- */

struct rebase {
    struct arena *a;
    struct leaves base, mine, theirs;
    char *text; /* theirs with what was laid on so far */
    struct buf clash;
    int n_clash;
};

static void clash(struct rebase *r, const char *path)
{
    if (r->n_clash++ < CONFLICTS_SHOWN)
        buf_printf(&r->clash, "%s%s", r->n_clash > 1 ? ", " : "", path);
}

/* set (or with NULL unset) in the text so far. */
static int lay(struct rebase *r, const char *path, const char *value, struct err *e)
{
    char *next = value ? conf_text_set(r->text, path, value, e)
                       : conf_text_unset(r->text, path, e);

    if (!next)
        return -1;
    free(r->text);
    r->text = next;
    return 0;
}

static const char *value_in(const struct leaves *l, const char *words)
{
    const struct leaf *x = conf_leaf(l, words);
    return x ? x->value : NULL;
}

static bool equal(const char *a, const char *b)
{
    return a && b ? !strcmp(a, b) : a == b;
}

/* One path that mine changed. */
static int lay_leaf(struct rebase *r, const struct leaf *x, const char *mine,
                    struct err *e)
{
    const char *base = value_in(&r->base, x->words);
    const char *theirs = value_in(&r->theirs, x->words);

    if (equal(base, mine) || equal(theirs, mine))
        return 0;
    if (!equal(theirs, base)) {
        clash(r, x->path);
        return 0;
    }
    return lay(r, x->path, mine, e);
}

/* "instances SEP main" of a leaf below a map of names, else "". In the arena. */
static char *name_part(struct rebase *r, const struct leaf *x)
{
    const char *sep = strchr(x->words, LEAF_SEP), *end;
    char *s;

    if (!sep)
        return "";
    s = arena_strndup(r->a, x->words, (size_t)(sep - x->words));
    if (conf_group_of(s) == CONF_TOP)
        return "";
    end = strchr(sep + 1, LEAF_SEP);
    return arena_strndup(r->a, x->words,
                         end ? (size_t)(end - x->words) : strlen(x->words));
}

static bool has_name(const struct leaves *l, const char *name)
{
    size_t n = strlen(name);

    for (int i = 0; i < l->n; i++)
        if (!strncmp(l->v[i].words, name, n) && l->v[i].words[n] == LEAF_SEP)
            return true;
    return false;
}

/* Mine dropped the whole name: it goes, unless theirs changed something in it. */
static int drop_name(struct rebase *r, const char *name, struct err *e)
{
    size_t n = strlen(name);
    char *path = arena_strndup(r->a, name, n);

    *strchr(path, LEAF_SEP) = '.';
    if (!has_name(&r->theirs, name))
        return 0;
    for (int i = 0; i < r->theirs.n; i++) {
        const struct leaf *x = &r->theirs.v[i];

        if (!strncmp(x->words, name, n) && x->words[n] == LEAF_SEP &&
            !equal(value_in(&r->base, x->words), x->value)) {
            clash(r, x->path);
            return 0;
        }
    }
    return lay(r, path, NULL, e);
}

/* What base says and mine does not. */
static int drop_leaf(struct rebase *r, int at, struct err *e)
{
    const struct leaf *x = &r->base.v[at];
    const char *name = name_part(r, x);
    size_t n = strlen(name);

    if (value_in(&r->mine, x->words))
        return 0;
    if (!*name || has_name(&r->mine, name))
        return lay_leaf(r, x, NULL, e);
    for (int i = 0; i < at; i++) /* once a name */
        if (!strncmp(r->base.v[i].words, name, n) && r->base.v[i].words[n] == LEAF_SEP)
            return 0;
    return drop_name(r, name, e);
}

static int read_three(struct rebase *r, const char *base, const char *mine,
                      const char *theirs, struct err *e)
{
    const char *text[] = {base, mine, theirs};
    struct leaves *to[] = {&r->base, &r->mine, &r->theirs};
    struct tree_node *root;

    for (int i = 0; i < 3; i++) {
        if (conf_tree_of(text[i], r->a, &root, e) < 0)
            return -1;
        conf_leaves(root, r->a, to[i]);
    }
    return 0;
}

char *conf_text_rebase(const char *base, const char *mine, const char *theirs,
                       struct err *e)
{
    struct rebase r = {.a = arena_new(0), .text = xstrdup(theirs)};
    int rc;

    buf_init(&r.clash, 0);
    rc = read_three(&r, base, mine, theirs, e);
    for (int i = 0; rc == 0 && i < r.base.n; i++)
        rc = drop_leaf(&r, i, e);
    for (int i = 0; rc == 0 && i < r.mine.n; i++)
        rc = lay_leaf(&r, &r.mine.v[i], r.mine.v[i].value, e);
    if (rc == 0 && r.n_clash)
        rc = err_set(e, ERR_CONFLICT, "both changed %s%s", r.clash.p,
                     r.n_clash > CONFLICTS_SHOWN ? " and more" : "");
    buf_done(&r.clash);
    arena_free(r.a);
    if (rc == 0)
        return r.text;
    free(r.text);
    return NULL;
}
