/* daemon/api/query.c - what stands behind the question mark. */
#include "daemon/api/query.h"

#include <errno.h>
#include <microhttpd.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/api/route.h"

static const struct query_row rows[] = {
#define QUERY(id, name, kind, min, max, help) {#id, name, help, QUERY_##kind, min, max},
#include "daemon/api/query.def"
#undef QUERY
};

const struct query_row *query_row(int id)
{
    return id >= 0 && id < QUERY_COUNT ? &rows[id] : NULL;
}

bool query_allowed(const struct route *r, int id)
{
    size_t n = strlen(rows[id].id);

    for (const char *p = r->query; (p = strstr(p, rows[id].id)); p += n)
        if ((p == r->query || p[-1] == ' ') && (p[n] == ' ' || p[n] == '\0'))
            return true;
    return false;
}

struct reading {
    const struct route *route;
    struct query *q;
    struct err *e;
    int rc;
};

static int read_number(const struct query_row *d, const char *text, int64_t *ret,
                       struct err *e)
{
    char *end;
    size_t n = strlen(text);
    long long v;

    errno = 0;
    v = strtoll(text, &end, 10);
    /* no sign, no space, no zero before: one number has one form */
    if (n == 0 || n > 18 || strspn(text, "0123456789") != n || (n > 1 && text[0] == '0'))
        return err_param(e, ERR_INVALID, d->name,
                         "%s must be a whole number from %lld to %lld, found '%.32s'",
                         d->name, (long long)d->min, (long long)d->max, text);
    if (errno || *end || v < d->min || v > d->max)
        return err_param(e, ERR_RANGE, d->name, "%s must be %lld to %lld, found %.32s",
                         d->name, (long long)d->min, (long long)d->max, text);
    *ret = v;
    return 0;
}

static int read_text(const struct query_row *d, const char *text, size_t n, char **ret,
                     struct err *e)
{
    utf8proc_int32_t cp;
    utf8proc_ssize_t used;

    for (size_t i = 0; i < n; i += (size_t)used) {
        used = utf8proc_iterate((const utf8proc_uint8_t *)text + i,
                                (utf8proc_ssize_t)(n - i), &cp);
        if (used <= 0 || cp < 0x20)
            return err_param(e, ERR_INVALID, d->name,
                             "%s has bytes that are no UTF-8 text", d->name);
    }
    if ((int64_t)n < d->min || (int64_t)n > d->max)
        return err_param(e, ERR_RANGE, d->name,
                         "%s must have %lld to %lld bytes, has %zu", d->name,
                         (long long)d->min, (long long)d->max, n);
    *ret = xasprintf("%.*s", (int)n, text);
    return 0;
}

static int read_one(struct reading *r, const char *key, const char *text, size_t n)
{
    struct query *q = r->q;
    int id = 0;

    while (id < QUERY_COUNT &&
           (strcmp(rows[id].name, key) || rows[id].kind == QUERY_HEADER ||
            !query_allowed(r->route, id)))
        id++;
    if (id == QUERY_COUNT)
        return strncmp(r->route->path, "/api/v1/", 8)
                   ? 0
                   : err_param(r->e, ERR_INVALID, key,
                               "there is no parameter '%.32s' here%s%s", key,
                               r->route->query[0] ? "; there is " : "", r->route->query);
    for (int i = 0; i < q->n; i++)
        if (q->given[i].id == (enum query_id)id)
            return err_param(r->e, ERR_INVALID, key, "%s is given twice", key);
    if (q->n == QUERY_GIVEN)
        return err_set(r->e, ERR_INVALID, "more than %d parameters", QUERY_GIVEN);
    if (text && strlen(text) != n)
        return err_param(r->e, ERR_INVALID, key, "%s has a zero byte", key);
    q->given[q->n].id = (enum query_id)id;
    if ((rows[id].kind == QUERY_NUM
             ? read_number(&rows[id], text ? text : "", &q->given[q->n].num, r->e)
             : read_text(&rows[id], text ? text : "", n, &q->given[q->n].text, r->e)) < 0)
        return -1;
    q->n++;
    return 0;
}

static enum MHD_Result on_value(void *cls, enum MHD_ValueKind kind, const char *key,
                                size_t key_n, const char *value, size_t n)
{
    struct reading *r = cls;

    (void)kind;
    (void)key_n;
    r->rc = read_one(r, key, value, n);
    return r->rc < 0 ? MHD_NO : MHD_YES;
}

int query_read(struct MHD_Connection *mhd, const struct route *r, struct query *ret,
               struct err *e)
{
    struct reading x = {.route = r, .q = ret, .e = e};

    MHD_get_connection_values_n(mhd, MHD_GET_ARGUMENT_KIND, on_value, &x);
    return x.rc;
}

void query_done(struct query *q)
{
    for (int i = 0; i < q->n; i++)
        free(q->given[i].text);
    *q = (struct query){0};
}

int64_t query_num(const struct query *q, enum query_id id, int64_t missing)
{
    for (int i = 0; i < q->n; i++)
        if (q->given[i].id == id)
            return q->given[i].num;
    return missing;
}

const char *query_text(const struct query *q, enum query_id id, const char *missing)
{
    for (int i = 0; i < q->n; i++)
        if (q->given[i].id == id)
            return q->given[i].text;
    return missing;
}
