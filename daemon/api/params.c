/* daemon/api/params.c - request bodies to checked parameters.
 *
 * One pass over the rows of params.def: each present, non-null member is read by its row.
 * Then the rules that tie fields together. Members that no row knows are counted, not
 * refused: clients send more every month, and what they send is harmless unless it would
 * change the answer; those have REFUSE rows. */
#include "daemon/api/params.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/api/params_read.h"

/* ---- the table ---- */

enum field_how {
    FIELD_NUM,
    FIELD_NUM_OPEN,
    FIELD_INT,
    FIELD_BOOL,
    FIELD_OWN,
    FIELD_REFUSE,
    FIELD_IGNORE
};
enum { CHAT = PARAMS_CHAT, TEXT = PARAMS_TEXT, BOTH = PARAMS_CHAT | PARAMS_TEXT };

struct field {
    const char *name;
    int where;
    enum field_how how;
    size_t offset;
    double min, max;
    const char *why;
    int (*own)(struct params *p, const json_t *v, struct err *e);
};

static const struct field fields[] = {
#define AT(member) offsetof(struct params, member)
#define NUM(name, where, member, min, max)                                               \
    {name, where, FIELD_NUM, AT(member), min, max, NULL, NULL},
#define NUM_OPEN(name, where, member, min, max)                                          \
    {name, where, FIELD_NUM_OPEN, AT(member), min, max, NULL, NULL},
#define INT(name, where, member, min, max)                                               \
    {name, where, FIELD_INT, AT(member), min, max, NULL, NULL},
#define BOOL(name, where, member) {name, where, FIELD_BOOL, AT(member), 0, 0, NULL, NULL},
#define OWN(name, where, fn) {name, where, FIELD_OWN, 0, 0, 0, NULL, fn},
#define REFUSE(name, where, why) {name, where, FIELD_REFUSE, 0, 0, 0, why, NULL},
#define IGNORE(name, where) {name, where, FIELD_IGNORE, 0, 0, 0, NULL, NULL},
#include "daemon/api/params.def"
};
enum { N_FIELDS = sizeof(fields) / sizeof(fields[0]) };

static int read_num(struct params *p, const struct field *f, const json_t *v,
                    struct err *e)
{
    double x = json_number_value(v);
    bool low = f->how == FIELD_NUM_OPEN ? !(x > f->min) : !(x >= f->min);

    if (!json_is_number(v) || !isfinite(x) || low || x > f->max)
        return err_param(
            e, ERR_RANGE, f->name, "%s must be a number %s %g and at most %g", f->name,
            f->how == FIELD_NUM_OPEN ? "above" : "of at least", f->min, f->max);
    *(float *)((char *)p + f->offset) = (float)x;
    return 0;
}

static int refuse(const struct field *f, const json_t *v, struct err *e)
{
    const char *s = json_string_value(v);

    if (!params_filled(v) || (s && (!strcmp(s, "none") || !strcmp(s, "auto"))))
        return 0;
    return err_param(e, ERR_UNSUPPORTED, f->name, "%s: %s", f->name, f->why);
}

static int read_field(struct params *p, const struct field *f, const json_t *v,
                      struct err *e)
{
    void *to = (char *)p + f->offset;

    switch (f->how) {
    case FIELD_NUM:
    case FIELD_NUM_OPEN:
        return read_num(p, f, v, e);
    case FIELD_INT:
        return js_get_int(p->root, f->name, (int64_t)f->min, (int64_t)f->max, to, e);
    case FIELD_BOOL:
        return js_get_bool(p->root, f->name, to, e);
    case FIELD_OWN:
        return f->own(p, v, e);
    case FIELD_REFUSE:
        return refuse(f, v, e);
    case FIELD_IGNORE:
        break;
    }
    return 0;
}

static bool known(const char *name, enum params_kind kind)
{
    for (int i = 0; i < N_FIELDS; i++)
        if ((fields[i].where & (int)kind) && !strcmp(fields[i].name, name))
            return true;
    return false;
}

const char *params_unknown(const struct params *p, int i)
{
    const char *key;
    json_t *value;

    json_object_foreach(p->root, key, value)
    {
        if (!known(key, p->kind) && i-- == 0)
            return key;
    }
    return NULL;
}

/* ---- the whole ---- */

void params_sampling(struct params *p, float temperature, float top_p)
{
    static const char *const names[] = {"temperature", "top_p", "top_k", "min_p"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const json_t *v = json_object_get(p->root, names[i]);

        if (v && !json_is_null(v))
            return;
    }
    p->gen.temperature = temperature;
    p->gen.top_p = top_p;
}

static int reconcile(struct params *p, struct err *e)
{
    const char *name =
        p->max_completion_tokens >= 0 ? "max_completion_tokens" : "max_tokens";

    if (p->kind == PARAMS_CHAT && !p->msgs)
        return err_param(e, ERR_INVALID, "messages", "messages is required");
    if (p->kind == PARAMS_TEXT && !p->prompts)
        return err_param(e, ERR_INVALID, "prompt", "prompt is required");
    if (p->max_completion_tokens >= 0) {
        if (p->max_tokens >= 0 && p->max_tokens != p->max_completion_tokens)
            return err_param(e, ERR_INVALID, "max_tokens",
                             "max_tokens and max_completion_tokens differ");
        p->max_tokens = p->max_completion_tokens;
    }
    if (p->max_tokens == 0 && !p->echo)
        return err_param(e, ERR_RANGE, name, "%s must be at least 1", name);
    if (p->kind == PARAMS_CHAT && p->top_logprobs >= 0 && !p->logprobs)
        return err_param(e, ERR_INVALID, "top_logprobs",
                         "top_logprobs goes with logprobs: true only");
    p->gen.n_top = !p->logprobs ? -1 : p->top_logprobs < 0 ? 0 : (int32_t)p->top_logprobs;
    p->gen.prompt_logprobs = p->echo && p->logprobs;
    p->gen.no_cache = !p->cache_prompt;
    p->gen.seed = (uint64_t)p->seed;
    return 0;
}

static int read_all(struct params *p, struct err *e)
{
    const char *key;
    json_t *value;

    if (!json_is_object(p->root))
        return err_set(e, ERR_INVALID, "the body must be a JSON object");
    for (int i = 0; i < N_FIELDS; i++) {
        const struct field *f = &fields[i];
        const json_t *v = json_object_get(p->root, f->name);

        if (!v || json_is_null(v) || !(f->where & (int)p->kind))
            continue;
        if (read_field(p, f, v, e) < 0)
            return -1;
    }
    json_object_foreach(p->root, key, value)
    {
        if (!known(key, p->kind))
            p->n_unknown++;
    }
    return reconcile(p, e);
}

int params_parse(const char *body, size_t n, enum params_kind kind, struct params **ret,
                 struct err *e)
{
    const struct js_limits lim = {0, PARAMS_MAX_DEPTH};
    struct params *p = xcalloc(1, sizeof(*p));

    p->kind = kind;
    p->n = 1;
    p->max_tokens = p->max_completion_tokens = p->top_logprobs = -1;
    p->cache_prompt = true;
    p->gen.temperature = p->gen.top_p = p->gen.repetition = 1;

    if (js_parse(body, n, &lim, &p->root, e) < 0) {
        err_wrap(e, "body");
        goto fail;
    }
    if (read_all(p, e) < 0)
        goto fail;
    *ret = p;
    return 0;

fail:
    params_free(p);
    return -1;
}

int params_check_model(const struct params *p, int n_vocab, struct err *e)
{
    for (int i = 0; i < p->gen.n_bias; i++)
        if (p->biases[i].id >= n_vocab)
            return err_param(e, ERR_RANGE, "logit_bias",
                             "token id %d is not in the vocabulary of %d tokens",
                             (int)p->biases[i].id, n_vocab);
    for (int i = 0; i < p->gen.n_stop; i++)
        if (p->stop_ids[i] >= n_vocab)
            return err_param(e, ERR_RANGE, "stop_token_ids",
                             "token id %d is not in the vocabulary of %d tokens",
                             (int)p->stop_ids[i], n_vocab);
    for (int i = 0; i < p->n_prompts; i++)
        for (size_t k = 0; p->prompts[i].ids && k < p->prompts[i].n; k++)
            if (p->prompts[i].ids[k] >= n_vocab)
                return err_param(e, ERR_RANGE, "prompt",
                                 "token id %d is not in the vocabulary of %d tokens",
                                 (int)p->prompts[i].ids[k], n_vocab);
    return 0;
}

void params_free(struct params *p)
{
    if (!p)
        return;
    json_decref(p->root);
    params_blocks_free(p->blocks);
    free(p);
}
