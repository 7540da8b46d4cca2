/* base/opt.c - options from a table of rows: parser, help and man page of one source. */
#include "base/opt.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"

static size_t least3(size_t a, size_t b, size_t c)
{
    a = a < b ? a : b;
    return a < c ? a : c;
}

size_t opt_distance(const char *a, size_t na, const char *b, size_t nb)
{
    size_t row[65];

    if (na > 64 || nb > 64)
        return SIZE_MAX;
    for (size_t j = 0; j <= nb; j++)
        row[j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t corner = row[0];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t up = row[j];
            row[j] = least3(up + 1, row[j - 1] + 1, corner + (a[i - 1] != b[j - 1]));
            corner = up;
        }
    }
    return row[nb];
}

static int unknown(const struct opt_def *defs, int n, const char *name, size_t len,
                   struct err *e)
{
    size_t best = SIZE_MAX;
    int at = -1;

    for (int i = 0; i < n; i++) {
        size_t d = opt_distance(name, len, defs[i].name, strlen(defs[i].name));
        if (d < best) {
            best = d;
            at = i;
        }
    }
    if (at >= 0 && best <= 1 + len / 3)
        return err_set(e, ERR_INVALID, "there is no option --%.*s; did you mean --%s?",
                       (int)len, name, defs[at].name);
    return err_set(e, ERR_INVALID, "there is no option --%.*s; --help lists them",
                   (int)len, name);
}

static const struct opt_def *find(const struct opt_def *defs, int n, const char *name,
                                  size_t len)
{
    for (int i = 0; i < n; i++)
        if (strlen(defs[i].name) == len && !memcmp(defs[i].name, name, len))
            return &defs[i];
    return NULL;
}

static int choice_index(const char *choices, const char *value)
{
    size_t n = strlen(value);
    int i = 0;

    for (const char *c = choices; c; i++) {
        const char *end = strchr(c, '|');
        size_t len = end ? (size_t)(end - c) : strlen(c);
        if (len == n && !memcmp(c, value, n))
            return i;
        c = end ? end + 1 : NULL;
    }
    return -1;
}

static int set_int(const struct opt_def *d, int64_t *to, const char *value, struct err *e)
{
    char *end;
    long long v;

    errno = 0;
    v = strtoll(value, &end, 10);
    if (end == value || *end || errno)
        return err_param(e, ERR_INVALID, d->name, "--%s needs a number, not '%s'",
                         d->name, value);
    if (v < d->min || v > d->max)
        return err_param(e, ERR_RANGE, d->name,
                         "--%s is %lld and must be from %lld to %lld", d->name, v,
                         (long long)d->min, (long long)d->max);
    *to = v;
    return 0;
}

static bool is_flag(const struct opt_def *d)
{
    return d->kind == OPT_BOOL || d->kind == OPT_SWITCH;
}

static int add(const struct opt_def *d, struct opt_list *l, const char *value,
               struct err *e)
{
    if (!value) /* the default: none */
        return 0;
    if (l->n == OPT_LIST_MAX)
        return err_param(e, ERR_RANGE, d->name, "--%s was given more than %d times",
                         d->name, OPT_LIST_MAX);
    l->v[l->n++] = value;
    return 0;
}

static int set(const struct opt_def *d, void *target, const char *value, struct err *e)
{
    void *to = (char *)target + d->offset;
    int at;

    switch (d->kind) {
    case OPT_STR:
        *(const char **)to = value;
        return 0;
    case OPT_SWITCH:
        *(const char **)to = !value ? NULL : !strcmp(value, "yes") ? "true" : "false";
        return 0;
    case OPT_LIST:
        return add(d, to, value, e);
    case OPT_INT:
        return set_int(d, to, value, e);
    case OPT_BOOL:
        *(bool *)to = value && !strcmp(value, "yes");
        return 0;
    case OPT_ENUM:
        at = choice_index(d->choices, value);
        if (at < 0)
            return err_param(e, ERR_INVALID, d->name,
                             "--%s is '%s' and must be one of %s", d->name, value,
                             d->choices);
        *(int *)to = at;
        return 0;
    }
    return err_set(e, ERR_INTERNAL, "option --%s is of an unknown kind", d->name);
}

static int set_defaults(const struct opt_def *defs, int n, void *target, struct err *e)
{
    for (int i = 0; i < n; i++) {
        bool plain = defs[i].kind != OPT_INT && defs[i].kind != OPT_ENUM;
        if ((defs[i].def || plain) && set(&defs[i], target, defs[i].def, e) < 0)
            return -1;
    }
    return 0;
}

/* One option at argv[*i]; takes its value from the next word where it needs one. */
static int parse_one(const struct opt_def *defs, int n, int argc, char **argv, int *i,
                     void *target, struct err *e)
{
    const char *name = argv[*i] + 2, *eq = strchr(name, '=');
    size_t len = eq ? (size_t)(eq - name) : strlen(name);
    const struct opt_def *d = find(defs, n, name, len);
    bool no = false;

    if (!d && len > 3 && !strncmp(name, "no-", 3)) {
        d = find(defs, n, name + 3, len - 3);
        no = d && is_flag(d);
        d = no ? d : NULL;
    }
    if (!d)
        return unknown(defs, n, name, len, e);
    if (is_flag(d)) {
        if (eq)
            return err_param(e, ERR_INVALID, d->name, "--%s takes no value", d->name);
        return set(d, target, no ? "no" : "yes", e);
    }
    if (eq)
        return set(d, target, eq + 1, e);
    if (*i + 1 >= argc)
        return err_param(e, ERR_INVALID, d->name, "--%s needs a value", d->name);
    return set(d, target, argv[++*i], e);
}

int opt_parse(const struct opt_def *defs, int n, int argc, char **argv, void *target,
              int *ret_rest, struct err *e)
{
    int i = 1;

    if (set_defaults(defs, n, target, e) < 0)
        return -1;
    for (; i < argc; i++) {
        if (!strcmp(argv[i], "--")) {
            i++;
            break;
        }
        if (argv[i][0] != '-' || argv[i][1] == '\0')
            break;
        if (argv[i][1] != '-')
            return err_set(e, ERR_INVALID,
                           "'%s' is no option; options begin with two dashes", argv[i]);
        if (parse_one(defs, n, argc, argv, &i, target, e) < 0)
            return -1;
    }
    *ret_rest = i;
    return 0;
}

/* "--name ARG", or "--[no-]name" for a flag that is on by default. */
static void put_usage(const struct opt_def *d, struct buf *out)
{
    bool on = d->kind == OPT_SWITCH || (is_flag(d) && d->def && !strcmp(d->def, "yes"));

    buf_printf(out, "--%s%s", on ? "[no-]" : "", d->name);
    if (d->kind == OPT_ENUM)
        buf_printf(out, " %s", d->choices);
    else if (!is_flag(d))
        buf_printf(out, " %s", d->arg ? d->arg : "VALUE");
}

static void put_default(const struct opt_def *d, struct buf *out)
{
    if (d->def && d->def[0] && !is_flag(d))
        buf_printf(out, " (default %s)", d->def);
}

void opt_help(const struct opt_def *defs, int n, struct buf *out)
{
    for (int i = 0; i < n; i++) {
        size_t from = out->len;

        buf_puts(out, "  ");
        put_usage(&defs[i], out);
        if (out->len - from > 26)
            buf_printf(out, "\n%28s", "");
        else
            buf_printf(out, "%*s", (int)(28 - (out->len - from)), "");
        buf_puts(out, defs[i].help);
        put_default(&defs[i], out);
        buf_putc(out, '\n');
    }
}

static void put_roff(struct buf *out, const char *s)
{
    for (; *s; s++) {
        if (*s == '-' || *s == '\\')
            buf_putc(out, '\\');
        buf_putc(out, *s);
    }
}

void opt_man(const struct opt_def *defs, int n, struct buf *out)
{
    for (int i = 0; i < n; i++) {
        struct buf b;

        buf_init(&b, 0);
        buf_puts(out, ".TP\n.B ");
        put_usage(&defs[i], &b);
        put_roff(out, b.p);
        buf_clear(&b);
        buf_puts(&b, defs[i].help);
        put_default(&defs[i], &b);
        buf_putc(out, '\n');
        put_roff(out, b.p);
        buf_putc(out, '\n');
        buf_done(&b);
    }
}
