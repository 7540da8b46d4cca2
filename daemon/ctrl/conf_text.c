/* daemon/ctrl/conf_text.c - set or unset one path in a text; all else keeps its bytes.
 *
 * The tree says where things stand, the edit is one splice of bytes:
 *
 *   set    the value is there: its bytes are replaced (a block list by [a, b])
 *          the key is there without a value: it follows the colon
 *          neither: the missing words go below the last line of the map that is there,
 *          or inside its braces
 *   unset  the lines of the key and its value go; inside braces, one comma with them; and
 *          so do maps within a name's that hold nothing after that
 *
 * What YAML allows is more than this code foresees (`? key`, comments in odd places). So
 * the new text is read again, and unless it says the same as the old one but for the
 * path, the edit is refused: it never damages a text. */
#include "daemon/ctrl/conf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/opt.h"
#include "daemon/ctrl/conf_leaf.h"
#include "daemon/ctrl/conf_set.h"

enum { WORDS = 6 };

struct edit {
    const char *text;
    size_t n;
    struct arena *a;
    struct tree_node *root;
    char word[WORDS][64];
    int n_words;
    size_t from, to; /* what is cut out of the text .. */
    struct buf with; /* .. and what stands there instead */
};

static int cannot(const char *path, struct err *e)
{
    return err_param(e, ERR_UNSUPPORTED, "path",
                     "%s cannot be edited in this text without touching the rest; edit "
                     "the text itself",
                     path);
}

/* The words of a directive's path; the name of a map may hold dots. */
static void split(struct edit *d, const struct conf_row *r, const char *name)
{
    const char *p = r->path;

    for (d->n_words = 0; *p && d->n_words < WORDS; d->n_words++) {
        size_t n = strcspn(p, ".");

        if (*p == '*')
            snprintf(d->word[d->n_words], 64, "%s", name);
        else
            snprintf(d->word[d->n_words], 64, "%.*s", (int)n, p);
        p += n + (p[n] == '.');
    }
}

/* The words of a path by what the text has: the longest key that is there wins. */
static bool split_by_text(struct edit *d, const char *path)
{
    const struct tree_node *v = d->root;

    for (d->n_words = 0; v && *path && d->n_words < WORDS; d->n_words++) {
        size_t n = strlen(path);
        int at;

        while ((at = tree_key(v, path, n)) < 0 && n)
            do
                n--;
            while (n && path[n] != '.');
        if (at < 0 || n > 63)
            return false;
        memcpy(d->word[d->n_words], path, n);
        d->word[d->n_words][n] = '\0';
        v = v->kids[at].value;
        path += n + (path[n] == '.');
    }
    return !*path && d->n_words > 0;
}

/* The pair that the words name; -1 when the text has none. */
static int lookup(struct edit *d, struct tree_node **ret_map)
{
    struct tree_node *map = d->root;
    int at = -1;

    for (int w = 0; map && w < d->n_words; w++) {
        at = tree_key(map, d->word[w], strlen(d->word[w]));
        *ret_map = map;
        if (at < 0)
            return -1;
        map = map->kids[at].value;
    }
    return at;
}

/* ---- places ---- */

static size_t line_start(const struct edit *d, size_t at)
{
    while (at > 0 && d->text[at - 1] != '\n')
        at--;
    return at;
}

/* The start of the line after `at`; `at` itself when it is the end of a block scalar,
 * which is the start of a line. */
static size_t line_after(const struct edit *d, size_t at)
{
    const char *nl;

    if (at > 0 && d->text[at - 1] == '\n')
        return at;
    nl = memchr(d->text + at, '\n', d->n - at);
    return nl ? (size_t)(nl - d->text) + 1 : d->n;
}

static size_t pair_end(const struct tree_pair *p)
{
    return p->value->to.at > p->key->to.at && !tree_empty(p->value) ? p->value->to.at
                                                                    : p->key->to.at;
}

/* Past the colon after a key, 0 when there is none. */
static size_t after_colon(const struct edit *d, const struct tree_node *key)
{
    size_t at = key->to.at;

    while (at < d->n && d->text[at] == ' ')
        at++;
    return at < d->n && d->text[at] == ':' ? at + 1 : 0;
}

/* ---- set ---- */

/* The words from w on and the value: below each other, or inside braces. */
static void put_lines(struct edit *d, int w, int indent, const char *value)
{
    for (; w < d->n_words; w++, indent += 2)
        buf_printf(&d->with, "%*s%s:%s%s\n", indent, "", d->word[w],
                   w + 1 == d->n_words ? " " : "", w + 1 == d->n_words ? value : "");
}

static void put_flow(struct edit *d, int w, const char *value)
{
    int open = d->n_words - 1 - w;

    for (; w < d->n_words; w++)
        buf_printf(&d->with, "%s: %s", d->word[w], w + 1 == d->n_words ? value : "{");
    while (open-- > 0)
        buf_putc(&d->with, '}');
}

static void insert_lines(struct edit *d, size_t at, int w, int indent, const char *value)
{
    d->from = d->to = at;
    if (at > 0 && d->text[at - 1] != '\n')
        buf_putc(&d->with, '\n');
    put_lines(d, w, indent, value);
}

/* The map lacks the word w. */
static void insert_into(struct edit *d, const struct tree_node *map, int w,
                        const char *value)
{
    const struct tree_pair *last = map->n_kids ? &map->kids[map->n_kids - 1] : NULL;

    if (!map->flow) {
        insert_lines(d, line_after(d, map->to.at), w, map->from.column - 1, value);
        return;
    }
    d->from = d->to = last ? pair_end(last) : map->from.at + 1;
    if (last && tree_empty(last->value) && after_colon(d, last->key)) {
        d->from = d->to = after_colon(d, last->key);
        buf_putc(&d->with, ' ');
    }
    buf_puts(&d->with, last ? ", " : "");
    put_flow(d, w, value);
}

/* The key has no value: it gets the words from w on (none: the value itself). */
static void fill(struct edit *d, const struct tree_node *map, const struct tree_pair *p,
                 int w, const char *value)
{
    size_t colon = after_colon(d, p->key);

    if (w < d->n_words && !map->flow) {
        insert_lines(d, line_after(d, p->key->to.at), w, map->from.column + 1, value);
        return;
    }
    d->from = d->to = colon ? colon : p->key->to.at;
    buf_puts(&d->with, colon ? " " : ": ");
    if (w == d->n_words) {
        buf_puts(&d->with, value);
        return;
    }
    buf_putc(&d->with, '{');
    put_flow(d, w, value);
    buf_putc(&d->with, '}');
}

static void replace(struct edit *d, const struct tree_pair *p, const char *value)
{
    const struct tree_node *v = p->value;
    size_t colon = after_colon(d, p->key), eol;

    d->from = v->from.at;
    d->to = v->to.at;
    if (v->kind != TREE_SCALAR && !v->flow && colon) {
        /* below the key: the value goes up to it, before a comment that is there */
        eol = line_after(d, p->key->to.at) - 1;
        d->from = colon;
        buf_printf(&d->with, " %s%.*s", value, (int)(eol - colon), d->text + colon);
    } else {
        buf_puts(&d->with, value);
    }
    if (d->to > 0 && d->text[d->to - 1] == '\n')
        buf_putc(&d->with, '\n');
}

static int plan_set(struct edit *d, const char *path, const char *value, struct err *e)
{
    struct tree_node *map = d->root;

    if (!map || tree_empty(map)) {
        insert_lines(d, d->n, 0, 0, value);
        return 0;
    }
    for (int w = 0; map->kind == TREE_MAP; w++) {
        int at = tree_key(map, d->word[w], strlen(d->word[w]));
        const struct tree_pair *p = at < 0 ? NULL : &map->kids[at];

        if (!p)
            insert_into(d, map, w, value);
        else if (tree_empty(p->value))
            fill(d, map, p, w + 1, value);
        else if (w + 1 == d->n_words)
            replace(d, p, value);
        else {
            map = p->value;
            continue;
        }
        return 0;
    }
    return err_param(e, ERR_INVALID, "path", "line %d has a value where %s needs a map",
                     map->from.line, path);
}

/* ---- unset ---- */

static int plan_unset(struct edit *d, const struct tree_node *map, int at,
                      const char *path, struct err *e)
{
    const struct tree_pair *p = &map->kids[at];

    if (map->flow && at + 1 < map->n_kids) {
        d->from = p->key->from.at;
        d->to = map->kids[at + 1].key->from.at;
    } else if (map->flow && at > 0) {
        d->from = pair_end(p - 1);
        d->to = pair_end(p);
        if (tree_empty((p - 1)->value) && after_colon(d, (p - 1)->key))
            d->from = after_colon(d, (p - 1)->key);
        if (tree_empty(p->value) && after_colon(d, p->key))
            d->to = after_colon(d, p->key);
    } else if (map->flow) {
        d->from = map->from.at + 1;
        d->to = map->to.at - 1;
    } else {
        d->from = line_start(d, p->key->from.at);
        d->to = line_after(d, pair_end(p));
        if (strspn(d->text + d->from, " ") < p->key->from.at - d->from)
            return cannot(path, e);
    }
    return 0;
}

/* ---- the whole ---- */

static char *splice(struct edit *d)
{
    struct buf out;

    buf_init(&out, 0);
    buf_add(&out, d->text, d->from);
    buf_add(&out, d->with.p ? d->with.p : "", d->with.len);
    buf_add(&out, d->text + d->to, d->n - d->to);
    return buf_take(&out);
}

/* Whether a leaf is what the words name, or in it. */
static bool below(const struct edit *d, const struct leaf *l)
{
    const char *p = l->words;

    for (int w = 0; w < d->n_words; w++) {
        size_t n = strlen(d->word[w]);

        if ((w && *p++ != LEAF_SEP) || strncmp(p, d->word[w], n))
            return false;
        p += n;
    }
    return !*p || *p == LEAF_SEP;
}

/* Both texts say the same but for what is at or below the path; there the new one says
 * `value` (NULL: nothing). */
static bool proved(struct edit *d, const char *text, const char *value)
{
    struct leaves a, b;
    struct tree_node *root;
    int i = 0, j = 0, found = 0;

    if (conf_tree_of(text, d->a, &root, NULL) < 0)
        return false;
    conf_leaves(d->root, d->a, &a);
    conf_leaves(root, d->a, &b);
    for (;; i++, j++) {
        while (i < a.n && below(d, &a.v[i]))
            i++;
        for (; j < b.n && below(d, &b.v[j]); j++)
            if (!value || strcmp(b.v[j].value, value) || found++)
                return false;
        if (i == a.n || j == b.n)
            return i == a.n && j == b.n && found == (value != NULL);
        if (strcmp(a.v[i].words, b.v[j].words) || strcmp(a.v[i].value, b.v[j].value))
            return false;
    }
}

/* Plan made: the new text, or NULL. */
static char *finish(struct edit *d, const char *path, const char *value, struct err *e)
{
    char *text = d->from <= d->to ? splice(d) : xstrdup("");

    if (strlen(text) > CONF_MAX_TEXT) {
        err_set(e, ERR_TOOBIG, "the text would have more than %d bytes", CONF_MAX_TEXT);
    } else if (d->from > d->to || !proved(d, text, value)) {
        cannot(path, e);
    } else {
        return text;
    }
    free(text);
    return NULL;
}

/* The value checked against its row: as YAML, and as a leaf of the new text. */
static int read_value(struct edit *d, const struct conf_row *r, const char *path,
                      const char *value, struct buf *yaml, struct buf *leaf,
                      struct err *e)
{
    union {
        struct conf c;
        struct conf_instance i;
    } *base = arena_alloc(d->a, sizeof(*base));
    struct conf_faults *f = xcalloc(1, sizeof(*f));
    struct conf_setter w = {d->a, d->a, f};
    int rc = 0;

    conf_set_text(&w, r, value, path, base);
    if (f->n) {
        rc = err_param(e, ERR_INVALID, "value", "%s: %s", path, f->v[0].msg);
    } else if (r->kind == CONF_STR) {
        const char *s = *(const char **)((char *)base + r->offset);
        conf_yaml_str(yaml, s);
        conf_leaf_str(leaf, s);
    } else {
        conf_value_write(r, base, yaml);
        buf_puts(leaf, yaml->p);
    }
    free(f);
    return rc;
}

/* The row whose path is nearest, with the name that was given. */
static int no_directive(const char *path, struct err *e)
{
    const char *name = strchr(path, '.') ? strchr(path, '.') + 1 : "";
    size_t best = (size_t)-1, n = strlen(path);
    char near[160] = "", at[160];

    for (int i = 0; i < n_conf_rows; i++) {
        const char *p = conf_rows[i].path, *star = strchr(p, '*');
        size_t far;

        if (star)
            snprintf(at, sizeof(at), "%.*s%.*s%s", (int)(star - p), p,
                     (int)strcspn(name, "."), name, star + 1);
        else
            snprintf(at, sizeof(at), "%s", p);
        far = opt_distance(path, n, at, strlen(at));
        if (far < best) {
            best = far;
            memcpy(near, at, sizeof(near));
        }
    }
    if (best == 0) /* all is right but the name */
        return err_param(e, ERR_INVALID, "path", "'%.*s' " CONF_NAME_RULE,
                         (int)(strcspn(name, ".") < 64 ? strcspn(name, ".") : 64), name);
    if (best <= 1 + n / 4)
        return err_param(e, ERR_INVALID, "path",
                         "there is no directive '%.120s'; did you mean %s?", path, near);
    return err_param(e, ERR_INVALID, "path", "there is no directive '%.120s'", path);
}

static int edit_new(struct edit *d, const char *text, struct err *e)
{
    *d = (struct edit){.text = text, .n = strlen(text), .a = arena_new(0)};
    buf_init(&d->with, 0);
    return conf_tree_of(text, d->a, &d->root, e);
}

static void edit_done(struct edit *d)
{
    buf_done(&d->with);
    arena_free(d->a);
}

char *conf_text_set(const char *text, const char *path, const char *value, struct err *e)
{
    char name[64], *out = NULL;
    const struct conf_row *r = conf_row_of_path(path, name);
    struct buf yaml, leaf;
    struct edit d;

    if (!r) {
        no_directive(path, e);
        return NULL;
    }
    buf_init(&yaml, 0);
    buf_init(&leaf, 0);
    if (edit_new(&d, text, e) == 0 &&
        read_value(&d, r, path, value, &yaml, &leaf, e) == 0) {
        split(&d, r, name);
        if (plan_set(&d, path, yaml.p, e) == 0)
            out = finish(&d, path, leaf.p, e);
    }
    edit_done(&d);
    buf_done(&yaml);
    buf_done(&leaf);
    return out;
}

static char *unset(const char *text, const char *path, struct err *e)
{
    struct tree_node *map = NULL;
    const struct conf_row *r;
    char name[64], *out = NULL;
    struct edit d;
    int at = -1;

    if (edit_new(&d, text, e) == 0) {
        r = conf_row_of_path(path, name);
        if (r) {
            split(&d, r, name);
            at = lookup(&d, &map);
        }
        if (at < 0 && split_by_text(&d, path))
            at = lookup(&d, &map);
        if (at < 0)
            err_param(e, ERR_NOTFOUND, "path", "the text does not set '%.120s'", path);
        else if (plan_unset(&d, map, at, path, e) == 0)
            out = finish(&d, path, NULL, e);
    }
    edit_done(&d);
    return out;
}

/* The text without the maps above `path` that hold nothing any more, up to a name; taken,
 * and returned as it is where there is none. */
static char *prune(char *text, const char *path)
{
    char up[160], name[64], *dot, *less = text;

    snprintf(up, sizeof(up), "%s", path);
    while (less && (dot = strrchr(up, '.'))) {
        struct tree_at at;
        struct edit d;
        const struct tree_node *v = NULL;

        *dot = '\0';
        if (!conf_row_of_path(path, name) || !strchr(up, '.') ||
            !strcmp(strchr(up, '.') + 1, name))
            break;
        if (edit_new(&d, text, NULL) < 0)
            break;
        tree_find(d.root, up, &at);
        if (at.at >= 0 && !*at.rest)
            v = at.map->kids[at.at].value;
        less = v && (tree_empty(v) || (v->kind == TREE_MAP && !v->n_kids))
                   ? unset(text, up, NULL)
                   : NULL;
        edit_done(&d);
        if (less) {
            free(text);
            text = less;
        }
    }
    return text;
}

char *conf_text_unset(const char *text, const char *path, struct err *e)
{
    char *out = unset(text, path, e);

    return out ? prune(out, path) : NULL;
}
