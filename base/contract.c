/* base/contract.c - leaf by leaf. */
#include "base/contract.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

enum { PATH_CHARS = 160, VALUE_CHARS = 120 };

/* What may differ. A leaf that is not here must be equal, also one that a later build
 * adds. */
static const char *const compared[] = {
    "served.instance", "served.mode",     "served.layout",
    "served.replicas", "served.devices",  "served.threads",
    "served.build",    "served.revision", "served.generation",
};

static bool may_differ(const char *path)
{
    for (size_t i = 0; i < sizeof(compared) / sizeof(compared[0]); i++)
        if (!strcmp(compared[i], path))
            return true;
    return false;
}

static void value_text(const json_t *v, char ret[VALUE_CHARS])
{
    char *s = v ? json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;

    snprintf(ret, VALUE_CHARS, "%s",
             json_is_string(v) ? json_string_value(v)
             : json_is_null(v) ? "none"
             : s               ? s
                               : "not said");
    free(s);
}

static bool same(const json_t *a, const json_t *b)
{
    if (json_is_number(a) && json_is_number(b))
        return json_number_value(a) == json_number_value(b);
    if ((!a || json_is_null(a)) && (!b || json_is_null(b)))
        return true;
    return a && b && json_equal(a, b);
}

static int leaf(const char *path, const json_t *a, const json_t *b, json_t *shown,
                struct err *e)
{
    char x[VALUE_CHARS], y[VALUE_CHARS];

    if (same(a, b))
        return 0;
    value_text(a, x);
    value_text(b, y);
    if (!may_differ(path))
        return err_param(
            e, ERR_CONFLICT, path,
            "the runs cannot be compared: %s is %s in one and %s in the other", path, x,
            y);
    json_array_append_new(shown,
                          json_pack("{s:s, s:s, s:s}", "field", path, "a", x, "b", y));
    return 0;
}

/* The members of a, each with its fellow of b; with `only_b` those that a lacks. */
static int walk(const char *prefix, const json_t *a, const json_t *b, bool only_b,
                json_t *shown, struct err *e)
{
    const json_t *of = only_b ? b : a;
    const char *key;
    json_t *v;
    int rc = 0;

    json_object_foreach((json_t *)of, key, v)
    {
        const json_t *va = json_object_get(a, key), *vb = json_object_get(b, key);
        char path[PATH_CHARS];

        if (only_b && va && !json_is_object(va))
            continue;
        snprintf(path, sizeof(path), "%s%s%s", prefix, *prefix ? "." : "", key);
        if (json_is_object(v))
            rc = walk(path, va, vb, only_b, shown, e);
        else if (!only_b || !va)
            rc = leaf(path, va, vb, shown, e);
        if (rc < 0)
            break;
    }
    return rc;
}

int contract_compare(const json_t *a, const json_t *b, json_t **ret_shown, struct err *e)
{
    json_t *shown = json_array();

    if (walk("", a, b, false, shown, e) < 0 || walk("", a, b, true, shown, e) < 0) {
        json_decref(shown);
        return -1;
    }
    *ret_shown = shown;
    return 0;
}
