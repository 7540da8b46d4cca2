/* daemon/ctrl/slo_minute.c - rows of minutes joined with what the store has of them. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "daemon/ctrl/slo_int.h"
#include "state/series.h"

enum { ROW_BYTES = 1 << 16, ROW_DEPTH = 8, DIGITS = 9 };

static json_t *figures(const char *text)
{
    static const struct js_limits lim = {ROW_BYTES, ROW_DEPTH};
    json_t *o = NULL;

    if (js_parse(text, strlen(text), &lim, &o, NULL) < 0)
        return NULL;
    if (json_is_object(o))
        return o;
    json_decref(o);
    return NULL;
}

static bool adds_up(const char *key)
{
    static const char *const names[] = {
        "requests",
        "met",
        "missed",
        "late",
        "refused",
        "aborted",
        "canceled",
        "prompt_tokens",
        "tokens",
        "good_tokens",
        "good_requests_per_s",
        "good_tokens_per_s",
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (!strcmp(names[i], key))
            return true;
    return false;
}

static void add_up(json_t *into, const char *key, const json_t *a, const json_t *b)
{
    if (json_is_integer(a) && json_is_integer(b))
        json_object_set_new(into, key,
                            json_integer(json_integer_value(a) + json_integer_value(b)));
    else
        json_object_set_new(into, key,
                            json_real(json_number_value(a) + json_number_value(b)));
}

/* The greater of two percentiles; null is none. */
static void keep_greater(json_t *into, json_t *other)
{
    const char *key;
    json_t *v;

    json_object_foreach(other, key, v)
    {
        const json_t *mine = json_object_get(into, key);

        if (json_is_number(v) &&
            (!json_is_number(mine) || json_number_value(v) > json_number_value(mine)))
            json_object_set(into, key, v);
    }
}

char *slo_join(const char *older, const char *newer)
{
    json_t *a = figures(older), *b = figures(newer), *v;
    double requests, met;
    const char *key;
    char *text;

    if (!a || !b) {
        json_decref(a);
        json_decref(b);
        return xstrdup(b ? newer : older);
    }
    json_object_foreach(a, key, v)
    {
        json_t *mine = json_object_get(b, key);

        if (json_is_object(mine) && json_is_object(v))
            keep_greater(mine, v);
        else if (adds_up(key))
            add_up(b, key, v, mine);
    }
    requests = json_number_value(json_object_get(b, "requests"));
    met = json_number_value(json_object_get(b, "met"));
    json_object_set_new(b, "attainment",
                        requests > 0 ? json_real(met / requests) : json_null());
    text = json_dumps(b, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS));
    json_decref(a);
    json_decref(b);
    return text ? text : xstrdup(newer);
}

/* ---- into the store ---- */

struct joining {
    struct series_row *rows; /* with json of their own */
    int n;
};

static int join_row(void *arg, const struct series_row *old)
{
    struct joining *j = arg;

    for (int i = 0; i < j->n; i++) {
        struct series_row *r = &j->rows[i];
        char *both;

        if (r->minute != old->minute || strcmp(r->instance, old->instance) ||
            strcmp(r->slo_class, old->slo_class))
            continue;
        both = slo_join(old->json, r->json);
        free(r->json);
        r->json = both;
        break;
    }
    return 1;
}

int slo_put(struct store *st, const struct series_row *rows, int n, struct err *e)
{
    struct joining j = {xcalloc((size_t)n, sizeof(*rows)), n};
    int64_t from = rows[0].minute, to = from;
    int rc;

    for (int i = 0; i < n; i++) {
        j.rows[i] = rows[i];
        j.rows[i].json = xstrdup(rows[i].json);
        from = rows[i].minute < from ? rows[i].minute : from;
        to = rows[i].minute > to ? rows[i].minute : to;
    }
    rc = series_read(st, from, to + 1, join_row, &j, e);
    if (rc == 0)
        rc = series_put(st, j.rows, n, e);
    for (int i = 0; i < n; i++)
        free(j.rows[i].json);
    free(j.rows);
    return rc;
}
