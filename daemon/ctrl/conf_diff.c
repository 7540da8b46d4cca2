/* daemon/ctrl/conf_diff.c - two configurations by path; the engine's options of one. */
#include "daemon/ctrl/conf.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "daemon/ctrl/conf_rows.h"

struct diff {
    conf_change_fn fn;
    void *arg;
    int n;
    struct buf from, to;
};

const char *conf_class_name(enum conf_class c)
{
    static const char *const names[] = {"hot", "drain", "restart"};
    return names[c];
}

/* a or b is NULL where the name is not on that side; then what equals the default goes
 * without saying. */
static void diff_row(struct diff *d, const struct conf_row *r, const char *name,
                     const void *a, const void *b)
{
    struct conf_change c = {.class = r->class};
    char path[160];

    buf_clear(&d->from);
    buf_clear(&d->to);
    if (a)
        conf_value_write(r, a, &d->from);
    if (b)
        conf_value_write(r, b, &d->to);
    if (a && b ? d->from.len == d->to.len && !memcmp(d->from.p ? d->from.p : "",
                                                     d->to.p ? d->to.p : "", d->to.len)
               : r->def && !strcmp(r->def, (a ? d->from.p : d->to.p) ?: ""))
        return;
    if (*name)
        snprintf(path, sizeof(path), "%s.%s.%s", conf_names[conf_row_group(r)].prefix,
                 name, conf_row_suffix(r));
    c.path = *name ? path : r->path;
    c.from = a ? d->from.p ?: "" : NULL;
    c.to = b ? d->to.p ?: "" : NULL;
    if (!a)
        c.class = CONF_HOT; /* a new name touches nothing that runs */
    d->n++;
    if (d->fn)
        d->fn(d->arg, &c);
}

static const char *entry(const struct conf *c, const struct conf_names *x, int i)
{
    const char *list = *(const char *const *)((const char *)c + x->at);
    int n = *(const int *)((const char *)c + x->n_at);

    return i < n ? list + (size_t)i * x->size : NULL;
}

static const char *named(const struct conf *c, const struct conf_names *x,
                         const char *name)
{
    const char *e;

    for (int i = 0; (e = entry(c, x, i)); i++)
        if (!strcmp(*(const char *const *)e, name))
            return e;
    return NULL;
}

static void diff_name(struct diff *d, enum conf_group g, const char *a, const char *b)
{
    const char *name = *(const char *const *)(a ? a : b);

    if (conf_is_copy(name)) /* the instance's own rows say it */
        return;
    for (int i = 0; i < n_conf_rows; i++)
        if (conf_row_group(&conf_rows[i]) == g)
            diff_row(d, &conf_rows[i], name, a, b);
}

int conf_diff(const struct conf *a, const struct conf *b, conf_change_fn fn, void *arg)
{
    struct diff d = {.fn = fn, .arg = arg};
    const char *e;

    buf_init(&d.from, 0);
    buf_init(&d.to, 0);
    for (int i = 0; i < n_conf_rows; i++)
        if (conf_row_group(&conf_rows[i]) == CONF_TOP)
            diff_row(&d, &conf_rows[i], "", a, b);
    for (int g = CONF_TOP + 1; g < CONF_GROUPS; g++) {
        const struct conf_names *x = &conf_names[g];

        for (int i = 0; (e = entry(a, x, i)); i++)
            diff_name(&d, (enum conf_group)g, e, named(b, x, *(const char *const *)e));
        for (int i = 0; (e = entry(b, x, i)); i++)
            if (!named(a, x, *(const char *const *)e))
                diff_name(&d, (enum conf_group)g, NULL, e);
    }
    buf_done(&d.from);
    buf_done(&d.to);
    return d.n;
}

static char *engine_arg(const struct conf *c, const struct conf_instance *i,
                        const struct conf_row *r)
{
    struct buf v;
    char *arg = NULL;

    buf_init(&v, 0);
    conf_value_write(r, i, &v);
    if (r->form == FORM_MODEL) {
        const struct conf_model *m = conf_model(c, i->model);
        arg = xasprintf("--%s=%s", r->engine, m ? m->path : i->model);
    } else if (!v.p || strcmp(v.p, r->def)) {
        if (r->kind == CONF_BOOL)
            arg = xasprintf("--%s%s", !strcmp(v.p, "true") ? "" : "no-", r->engine);
        else
            arg = xasprintf("--%s=%s", r->engine, v.p);
    }
    buf_done(&v);
    return arg;
}

bool conf_arg_hot(const char *arg)
{
    const char *name = !strncmp(arg, "--no-", 5) ? arg + 5 : arg + 2;
    size_t n = strcspn(name, "=");

    for (int k = 0; k < n_conf_rows; k++) {
        const struct conf_row *r = &conf_rows[k];
        if (r->engine && strlen(r->engine) == n && !strncmp(r->engine, name, n))
            return r->class == CONF_HOT;
    }
    return false;
}

int conf_engine_args(const struct conf *c, const struct conf_instance *i, char **out,
                     int max)
{
    static const char *const roles[] = {NULL, "prefill", "decode"};
    struct conf_instance x = *i;
    int n = 0;

    if (x.mode == CONF_SPLIT) /* whatever an engine of a pool computes, it does so */
        x.mode = CONF_CHUNKED;
    for (int k = 0; k < n_conf_rows && n < max; k++) {
        char *arg = conf_rows[k].engine ? engine_arg(c, &x, &conf_rows[k]) : NULL;
        if (arg)
            out[n++] = arg;
    }
    if (roles[i->role] && n < max)
        out[n++] = xasprintf("--role=%s", roles[i->role]);
    return n;
}
