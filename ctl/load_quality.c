/* ctl/load_quality.c - see load_quality.h. */
#include "ctl/load_quality.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "ctl/run.h"

enum { LOOKED_AT = 100 };

static const char *word(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));

    return s ? s : "";
}

/* What a list says of one run that bears on the answers. */
static json_t *figures(const json_t *row)
{
    static const char *const keys[] = {"agreement", "kl_mean", "perplexity"};
    json_t *o = json_pack("{s:s}", "settings",
                          *word(row, "settings") ? word(row, "settings") : "none");

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        json_t *v = json_object_get(row, keys[i]);

        if (json_is_number(v))
            json_object_set(o, keys[i], v);
    }
    return o;
}

/* Why a run says nothing of what is served; NULL: it does. */
static const char *other(const json_t *row, const json_t *served, const char *settings)
{
    if (strcmp(word(row, "model_hash"), word(served, "model_hash")))
        return "the model's file";
    if (strcmp(word(row, "settings"), settings))
        return "the settings that change output";
    return strcmp(word(row, "build"), word(served, "build")) ? "the build" : NULL;
}

static int choose(const json_t *rows, const json_t *served, const char *settings,
                  const char *id, json_t **ret, struct err *e)
{
    const char *why;
    size_t i;
    json_t *row;

    json_array_foreach((json_t *)rows, i, row)
    {
        if (id && json_integer_value(json_object_get(row, "id")) != strtoll(id, NULL, 10))
            continue;
        why = other(row, served, settings);
        if (why && id)
            return err_param(e, ERR_CONFLICT, "quality",
                             "quality run %s says nothing of instance %s: %s is another",
                             id, word(served, "instance"), why);
        if (!why) {
            *ret = figures(row);
            return 0;
        }
    }
    if (id)
        return err_param(e, ERR_NOTFOUND, "quality",
                         "there is no quality run %s among the last %d; llmctl quality "
                         "list names them",
                         id, LOOKED_AT);
    *ret = json_null();
    return 0;
}

int load_quality(struct session *s, const json_t *served, const char *id, json_t **ret,
                 struct err *e)
{
    char *path = xasprintf("quality/contract?instance=%s", word(served, "instance")),
         *list = xasprintf("quality?limit=%d", LOOKED_AT);
    struct answer facts = {.root = NULL}, rows = {.root = NULL};
    int rc = run_get(s, path, &facts, e);

    if (rc == 0)
        rc = run_get(s, list, &rows, e);
    if (rc == 0)
        rc = choose(json_object_get(rows.root, "runs"), served,
                    word(facts.root, "settings"), id, ret, e);
    answer_done(&facts);
    answer_done(&rows);
    free(path);
    free(list);
    return rc;
}
