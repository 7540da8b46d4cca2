/* ctl/verb.c - matching, completion and help over the rows of verb.def.
 *
 * A line is compared word by word; each typed word must be a prefix of the verb's word.
 * An exact word beats a prefix, so that no verb can be hidden by a longer one. */
#include "ctl/verb.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/opt.h"
#include "ctl/args.h"

/* In the order of the file; a row without words is the heading `help`. */
static const struct verb rows[] = {
#define GROUP(text) {.help = text},
#define VERB(id, words, args, scope, ask, run, method, path, body, view, help)           \
    {VERB_##id, words, args, scope, ask, method, path, body, view, help},
#include "ctl/verb.def"
#undef VERB
};
enum {
    N_ROWS = sizeof(rows) / sizeof(rows[0]),
    WORD_MAX = 32,
    HELP_COLUMN = 36,
    GUESSES = 4
};

const struct verb *verb_at(enum verb_id id)
{
    for (int i = 0; i < N_ROWS; i++)
        if (rows[i].words && rows[i].id == id)
            return &rows[i];
    return NULL;
}

/* Next word of *p: its start, with *ret_n its length (0 at the end). */
static const char *next_word(const char **p, size_t *ret_n)
{
    const char *w;

    while (isspace((unsigned char)**p))
        (*p)++;
    w = *p;
    while (**p && !isspace((unsigned char)**p))
        (*p)++;
    *ret_n = (size_t)(*p - w);
    return w;
}

/* How v's words meet w's: *ret_n words of w fit, *ret_exact of them exactly; true when v
 * has no word left. */
static bool meet(const struct verb *v, const struct words *w, int *ret_n, int *ret_exact)
{
    const char *vp = v->words;

    *ret_exact = 0;
    for (*ret_n = 0;; (*ret_n)++) {
        size_t vn, ln;
        const char *vw = next_word(&vp, &vn);

        if (vn == 0)
            return true;
        ln = *ret_n < w->n ? strlen(w->w[*ret_n]) : 0;
        if (ln == 0 || ln > vn || strncmp(vw, w->w[*ret_n], ln) != 0)
            return false;
        *ret_exact += ln == vn;
    }
}

/* The words that may follow those of w: "check, commit, confirm". */
static void followers(const struct words *w, struct buf *out)
{
    char word[WORD_MAX];

    for (int i = 0; verb_complete(w, "", i, word, sizeof(word)); i++)
        buf_printf(out, "%s%s", out->len ? ", " : "", word);
}

/* Is the word one of the verb's: its first, or a later one? */
static bool has_word(const struct verb *v, const char *word, bool first)
{
    const char *p = v->words, *w;
    size_t n, len = strlen(word);

    for (bool at_first = true; w = next_word(&p, &n), n; at_first = false)
        if (at_first == first && n == len && !strncmp(w, word, n))
            return true;
    return false;
}

static void add_guess(struct buf *out, const char *words, int *found)
{
    if ((*found)++ < GUESSES)
        buf_printf(out, "%s%s", out->len ? ", " : "", words);
}

/* The verbs that may have been meant: those that have the first word further on (commit:
 * config commit), else those that are nearest by their letters. */
static void guess(const struct words *w, const char *line, struct buf *out)
{
    size_t n = strlen(line), best = 1 + n / 4, far[N_ROWS];
    bool begins = !w->n;
    int found = 0;

    for (int i = 0; i < N_ROWS; i++) {
        far[i] = rows[i].words
                     ? opt_distance(line, n, rows[i].words, strlen(rows[i].words))
                     : (size_t)-1;
        best = far[i] < best ? far[i] : best;
        begins = begins || (rows[i].words && has_word(&rows[i], w->w[0], true));
    }
    for (int i = 0; i < N_ROWS && !begins; i++)
        if (rows[i].words && has_word(&rows[i], w->w[0], false))
            add_guess(out, rows[i].words, &found);
    for (int i = 0, some = found; i < N_ROWS && !some && w->n; i++)
        if (far[i] == best)
            add_guess(out, rows[i].words, &found);
}

static const struct verb *no_match(const struct words *w, struct err *e)
{
    struct buf next, line;

    buf_init(&next, 400);
    buf_init(&line, 100);
    for (int i = 0; i < w->n; i++)
        buf_printf(&line, "%s%s", i ? " " : "", w->w[i]);
    if (w->n)
        followers(w, &next);
    if (next.len)
        err_set(e, ERR_INVALID, "'%s' goes on with: %s", line.p, next.p);
    else if (guess(w, line.p ? line.p : "", &next), next.len)
        err_set(e, ERR_INVALID, "no verb fits '%s'; did you mean %s?", line.p, next.p);
    else
        err_set(e, ERR_INVALID, "no verb fits '%s'; help lists them",
                line.p ? line.p : "");
    buf_done(&next);
    buf_done(&line);
    return NULL;
}

const struct verb *verb_match(const struct words *w, int *ret_n, struct err *e)
{
    const struct verb *best = NULL;
    int best_n = 0, best_exact = -1, ties = 0;
    struct buf names;

    buf_init(&names, 400);
    for (int i = 0; i < N_ROWS; i++) {
        int n, exact;

        if (!rows[i].words || !meet(&rows[i], w, &n, &exact) || n < best_n ||
            (n == best_n && exact < best_exact))
            continue;
        if (n > best_n || exact > best_exact) {
            ties = 0;
            buf_clear(&names);
        }
        best_n = n;
        best_exact = exact;
        best = &rows[i];
        buf_printf(&names, "%s'%s'", ties++ ? ", " : "", best->words);
    }
    if (!best)
        no_match(w, e);
    else if (ties > 1) {
        err_set(e, ERR_INVALID, "'%s' may mean %s", w->line, names.p);
        best = NULL;
    }
    buf_done(&names);
    *ret_n = best_n;
    return best;
}

/* The word of v that stands after all of w, when they fit; exact: no beginnings before
 * it where an exact word exists. */
static const char *word_after(const struct verb *v, const struct words *w, size_t *ret_n)
{
    const char *vp = v->words;

    for (int k = 0; k <= w->n; k++) {
        const char *vw = next_word(&vp, ret_n);

        if (*ret_n == 0)
            return NULL;
        if (k == w->n)
            return vw;
        if (strlen(w->w[k]) > *ret_n || strncmp(vw, w->w[k], strlen(w->w[k])) != 0)
            return NULL;
    }
    return NULL;
}

const char *verb_complete(const struct words *w, const char *part, int i, char *word,
                          size_t cap)
{
    char seen[N_ROWS][WORD_MAX];
    int n_seen = 0;

    for (int k = 0; k < N_ROWS; k++) {
        size_t vn = 0;
        const char *vw = rows[k].words ? word_after(&rows[k], w, &vn) : NULL;
        bool dup = false;

        if (!vw || vn < strlen(part) || vn >= WORD_MAX ||
            strncmp(vw, part, strlen(part)) != 0)
            continue;
        for (int d = 0; d < n_seen; d++)
            dup |= strlen(seen[d]) == vn && strncmp(seen[d], vw, vn) == 0;
        if (dup)
            continue;
        if (n_seen == i && vn < cap) {
            memcpy(word, vw, vn);
            word[vn] = '\0';
            return word;
        }
        memcpy(seen[n_seen], vw, vn);
        seen[n_seen++][vn] = '\0';
    }
    return NULL;
}

/* Whether what is typed so far may still become v. */
static bool may_become(const struct verb *v, const struct words *w)
{
    const char *vp = v->words;

    for (int k = 0; k < w->n; k++) {
        size_t vn;
        const char *vw = next_word(&vp, &vn);

        if (vn == 0)
            return v->args[0] != '\0';
        if (vn < strlen(w->w[k]) || strncmp(vw, w->w[k], strlen(w->w[k])) != 0)
            return false;
    }
    return true;
}

/* text from column `at` on, broken at spaces so that lines end by `width`; the cursor
 * stands in column `from`. */
static void put_wrapped(struct buf *out, const char *text, int from, int at, int width)
{
    int col = from;

    if (from >= at - 1 && from > 0) {
        buf_putc(out, '\n');
        col = 0;
    }
    buf_printf(out, "%*s", at - col, "");
    col = at;
    while (*text) {
        int n = (int)strcspn(text, " ");

        if (width && col > at && col + n > width) {
            while (out->len && out->p[out->len - 1] == ' ')
                out->len--;
            buf_printf(out, "\n%*s", at, "");
            col = at;
        }
        buf_printf(out, "%.*s", n, text);
        text += n;
        col += n;
        if (*text == ' ') {
            buf_putc(out, ' ');
            text++;
            col++;
        }
    }
    buf_putc(out, '\n');
}

static void put_usage(const struct verb *v, struct buf *out)
{
    buf_puts(out, v->words);
    if (v->args[0]) {
        buf_putc(out, ' ');
        args_usage(v->args, out);
    }
}

void verb_help(const struct words *w, int width, struct buf *out)
{
    const char *heading = NULL;
    struct buf left;

    buf_init(&left, 0);
    for (int i = 0; i < N_ROWS; i++) {
        if (!rows[i].words) {
            heading = rows[i].help;
            continue;
        }
        if (!may_become(&rows[i], w))
            continue;
        if (heading && w->n == 0)
            buf_printf(out, "%s%s\n", out->len ? "\n" : "", heading);
        heading = NULL;
        buf_clear(&left);
        put_usage(&rows[i], &left);
        if (w->n == 0 &&
            left.len > HELP_COLUMN - 3) { /* an overview: the rest by `help` */
            buf_clear(&left);
            buf_printf(&left, "%s ..", rows[i].words);
        }
        buf_printf(out, "  %s", left.p);
        put_wrapped(out, rows[i].help, (int)left.len + 2, HELP_COLUMN, width);
    }
    buf_done(&left);
}

void verb_about(const struct verb *v, int width, struct buf *out)
{
    buf_puts(out, "  ");
    put_usage(v, out);
    buf_putc(out, '\n');
    put_wrapped(out, v->help, 0, 2, width);
    if (v->path[0])
        buf_printf(out, "  REST: %s /api/v1/%s\n", v->method, v->path);
    if (v->scope[0])
        buf_printf(out, "  needs the scope %s%s\n", v->scope,
                   v->ask[0] ? "; asks first, unless -y" : "");
}

/* Roff eats a leading dot and reads a dash as a hyphen. */
static void put_roff(struct buf *out, const char *s)
{
    for (; *s; s++) {
        if (*s == '-' || *s == '\\')
            buf_putc(out, '\\');
        buf_putc(out, *s == '"' ? '\'' : *s);
    }
}

void verb_man(struct buf *out)
{
    struct buf usage;

    buf_init(&usage, 0);
    for (int i = 0; i < N_ROWS; i++) {
        if (!rows[i].words) {
            buf_printf(out, ".SS %s\n", rows[i].help);
            continue;
        }
        buf_clear(&usage);
        args_usage(rows[i].args, &usage);
        buf_puts(out, ".TP\n.B ");
        put_roff(out, rows[i].words);
        if (usage.len) {
            buf_puts(out, " \\fR");
            put_roff(out, usage.p);
            buf_puts(out, "\\fP");
        }
        buf_putc(out, '\n');
        put_roff(out, rows[i].help);
        buf_puts(out, ".\n");
        if (rows[i].scope[0] && strcmp(rows[i].scope, "read") != 0)
            buf_printf(out, "Scope %s%s.\n", rows[i].scope,
                       rows[i].ask[0] ? "; asks first" : "");
    }
    buf_done(&usage);
}
