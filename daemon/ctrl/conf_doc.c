/* daemon/ctrl/conf_doc.c - the rows as documentation: for completion, as
 * etc/llmrackd.yaml, as a man page. */
#include "daemon/ctrl/conf.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "daemon/ctrl/conf_rows.h"

enum { WIDTH = 78 };

bool conf_row(int i, struct conf_row_doc *ret)
{
    if (i < 0 || i >= n_conf_rows)
        return false;
    conf_row_type(&conf_rows[i], ret);
    return true;
}

/* ---- etc/llmrackd.yaml ---- */

/* "whole number, 1..1024 MiB" */
static void put_type(const struct conf_row_doc *d, struct buf *out)
{
    buf_puts(out, d->type);
    if (*d->range)
        buf_printf(out, "%s%s", strcmp(d->type, "one of") ? ", " : " ", d->range);
    if (*d->unit)
        buf_printf(out, " %s", d->unit);
}

/* Words as comment lines: "<lead># ...". */
static void comment(struct buf *out, const char *lead, const char *text)
{
    size_t col = 0;

    while (*text) {
        size_t n = strcspn(text, " ");

        if (col && col + 1 + n > WIDTH) {
            buf_putc(out, '\n');
            col = 0;
        }
        if (col) {
            buf_putc(out, ' ');
            col++;
        } else {
            buf_printf(out, "%s# ", lead);
            col = strlen(lead) + 2;
        }
        buf_add(out, text, n);
        col += n;
        text += n;
        text += *text == ' ';
    }
    buf_putc(out, '\n');
}

/* The section words that the row is in and the one before was not. */
static int open_sections(struct buf *out, const char *lead, const char *path,
                         const char *before, int depth)
{
    for (const char *dot; (dot = strchr(path, '.')); path = dot + 1, depth++) {
        size_t n = (size_t)(dot - path) + 1;

        if (before && !strncmp(before, path, n)) {
            before += n;
            continue;
        }
        before = NULL;
        buf_printf(out, "%s%*s%.*s:\n", lead, depth * 2, "", (int)n - 1, path);
    }
    return depth;
}

static void sample_row(struct buf *out, const char *lead, const struct conf_row *r,
                       const char *before, int depth)
{
    const char *path = conf_row_suffix(r), *key = strrchr(path, '.');
    struct conf_row_doc d;
    char indent[40];
    struct buf text;

    conf_row_type(r, &d);
    if (!*lead && (!before || !key || strncmp(before, path, strcspn(path, ".") + 1)))
        buf_putc(out, '\n');
    depth = open_sections(out, lead, path, before, depth);
    snprintf(indent, sizeof(indent), "%s%*s", lead, depth * 2, "");
    buf_init(&text, 0);
    buf_printf(&text, "%s (", d.help);
    put_type(&d, &text);
    buf_printf(&text, "; %s)", conf_class_name(d.class));
    comment(out, indent, text.p);
    buf_printf(out, "%s%s: ", indent, key ? key + 1 : path);
    if (!d.def)
        buf_puts(out, r->form == FORM_MODEL ? "NAME" : "/var/lib/llmrack/models/FILE");
    else if (r->kind == CONF_STR)
        conf_yaml_str(out, d.def);
    else
        buf_puts(out, d.def);
    buf_putc(out, '\n');
    buf_done(&text);
}

static void sample_rows(struct buf *out, enum conf_group g)
{
    const char *before = NULL;

    for (int i = 0; i < n_conf_rows; i++) {
        if (conf_row_group(&conf_rows[i]) != g)
            continue;
        sample_row(out, g ? "#" : "", &conf_rows[i], before, g ? 2 : 0);
        before = conf_row_suffix(&conf_rows[i]);
    }
}

static const char *const group_help[CONF_GROUPS] = {
    [CONF_MODELS] = "Models that instances can serve, each by a name of your choice.",
    [CONF_INSTANCES] = "Engines that run, each by a name of your choice. The class of a "
                       "directive is what its change costs the instance.",
    [CONF_CLASSES] = "Service levels that a request may name.",
};

void conf_sample(struct buf *out)
{
    comment(out, "",
            "llmrackd.yaml - every directive with its default. It becomes revision 1 of "
            "an empty store; after that the store is the truth and `llmctl config` "
            "changes it.");
    buf_puts(out, "#\n");
    comment(out, "",
            "What a change costs: hot = nothing; drain = the engine is replaced, the old "
            "one finishes its requests; restart = the daemon must be started again. "
            "llmrackd.yaml(5) says the same.");
    sample_rows(out, CONF_TOP);
    for (int g = CONF_TOP + 1; g < CONF_GROUPS; g++) {
        buf_putc(out, '\n');
        comment(out, "", group_help[g]);
        buf_printf(out, "%s:\n#  NAME:\n", conf_names[g].prefix);
        sample_rows(out, (enum conf_group)g);
    }
}

/* ---- man ---- */

static void roff(struct buf *out, const char *s)
{
    for (bool start = true; *s; s++) {
        if (*s == '-' || *s == '\\')
            buf_putc(out, '\\');
        if (start && (*s == '.' || *s == '\''))
            buf_puts(out, "\\&");
        buf_putc(out, *s);
        start = *s == '\n';
    }
}

static void man_row(struct buf *out, const struct conf_row *r)
{
    struct conf_row_doc d;
    struct buf text;

    conf_row_type(r, &d);
    buf_init(&text, 0);
    buf_puts(out, ".TP\n.B ");
    roff(out, d.path);
    buf_puts(out, "\n");
    roff(out, d.help);
    buf_puts(out, "\n.br\n");
    put_type(&d, &text);
    if (d.def)
        buf_printf(&text, "; default %s", *d.def ? d.def : "empty");
    else
        buf_puts(&text, "; must be given");
    buf_printf(&text, "; class %s", conf_class_name(d.class));
    roff(out, text.p);
    buf_putc(out, '\n');
    buf_done(&text);
}

void conf_man(struct buf *out)
{
    for (int g = CONF_TOP; g < CONF_GROUPS; g++) {
        if (g) {
            buf_printf(out, ".SS %s\n", conf_names[g].prefix);
            roff(out, group_help[g]);
            buf_putc(out, '\n');
        }
        for (int i = 0; i < n_conf_rows; i++)
            if (conf_row_group(&conf_rows[i]) == (enum conf_group)g)
                man_row(out, &conf_rows[i]);
    }
}
