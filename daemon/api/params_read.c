/* daemon/api/params_read.c - the fields that are more than a number.
 *
 * Each reader gets its member, present and not null, and fills in its part of struct
 * params or names the fault. Memory whose size the body drives comes from grab() and is
 * bounded by the body's own limit. */
#include "daemon/api/params_read.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/api/params.h"

struct params_block {
    struct params_block *next;
    max_align_t data[];
};

static void *grab(struct params_block **blocks, size_t count, size_t size, struct err *e)
{
    size_t bytes;
    struct params_block *b = NULL;

    if (size_mul(count, size, &bytes) == 0 && size_add(bytes, sizeof(*b), &bytes) == 0)
        b = try_calloc(1, bytes);
    if (!b) {
        err_set(e, ERR_NOMEM, "no memory for the request");
        return NULL;
    }
    b->next = *blocks;
    *blocks = b;
    return b->data;
}

void params_blocks_free(struct params_block *b)
{
    while (b) {
        struct params_block *next = b->next;
        free(b);
        b = next;
    }
}

int params_read_model(struct params *p, const json_t *v, struct err *e)
{
    if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v))
        return err_param(e, ERR_INVALID, "model", "model must be a string");
    p->model = json_string_value(v);
    return 0;
}

int params_read_slo_class(struct params *p, const json_t *v, struct err *e)
{
    size_t n = json_is_string(v) ? json_string_length(v) : 0;

    if (n < 1 || n > PARAMS_MAX_CLASS || strlen(json_string_value(v)) != n)
        return err_param(e, ERR_INVALID, "slo_class",
                         "slo_class must be the name of a class, of 1 to %d characters",
                         PARAMS_MAX_CLASS);
    p->slo_class = json_string_value(v);
    return 0;
}

/* What models know are three; the others that the API has are the nearest of them. */
int params_read_effort(struct params *p, const json_t *v, struct err *e)
{
    static const struct {
        const char *said, *means;
    } rows[] = {{"none", "low"},      {"minimal", "low"}, {"low", "low"},
                {"medium", "medium"}, {"high", "high"},   {"xhigh", "high"}};
    const char *said = json_string_value(v);

    for (size_t i = 0; said && i < sizeof(rows) / sizeof(rows[0]); i++)
        if (!strcmp(said, rows[i].said)) {
            p->effort = rows[i].means;
            return 0;
        }
    return err_param(e, ERR_INVALID, "reasoning_effort",
                     "reasoning_effort must be one of none, minimal, low, medium, high, "
                     "xhigh");
}

bool params_is_open(const struct params *p)
{
    return p->n_msgs && !strcmp(p->msgs[p->n_msgs - 1].role, "assistant");
}

/* ---- messages ---- */

/* A list of text parts is one text: the parts in order. */
static int join_parts(struct params *p, const json_t *parts, size_t at,
                      struct chat_msg *m, struct err *e)
{
    size_t n = json_array_size(parts), bytes = 0;
    char name[64];
    char *to;

    for (size_t i = 0; i < n; i++) {
        const json_t *part = json_array_get(parts, i);
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *text = json_object_get(part, "text");

        snprintf(name, sizeof(name), "messages[%zu].content[%zu].type", at, i);
        if (!type || strcmp(type, "text"))
            return err_param(
                e, type ? ERR_UNSUPPORTED : ERR_INVALID, name,
                "only text parts are supported in messages[%zu].content[%zu]", at, i);
        snprintf(name, sizeof(name), "messages[%zu].content[%zu].text", at, i);
        if (!json_is_string(text))
            return err_param(e, ERR_INVALID, name, "%s must be a string", name);
        bytes += json_string_length(text);
    }
    to = grab(&p->blocks, bytes + 1, 1, e);
    if (!to)
        return -1;
    m->content = to;
    m->n = bytes;
    for (size_t i = 0; i < n; i++) {
        const json_t *text = json_object_get(json_array_get(parts, i), "text");
        memcpy(to, json_string_value(text), json_string_length(text));
        to += json_string_length(text);
    }
    return 0;
}

bool params_filled(const json_t *v)
{
    return v && !json_is_null(v) && !json_is_false(v) &&
           !(json_is_array(v) && json_array_size(v) == 0) &&
           !(json_is_object(v) && json_object_size(v) == 0) &&
           !(json_is_string(v) && json_string_length(v) == 0);
}

static int read_message(struct params *p, const json_t *v, size_t i, struct err *e)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant"};
    static const char *const refused[] = {"tool_calls", "function_call"};
    struct chat_msg *m = &p->msgs[i];
    const json_t *content = json_object_get(v, "content");
    char name[64];

    snprintf(name, sizeof(name), "messages[%zu]", i);
    if (!json_is_object(v))
        return err_param(e, ERR_INVALID, name, "%s must be an object", name);

    m->role = json_string_value(json_object_get(v, "role"));
    snprintf(name, sizeof(name), "messages[%zu].role", i);
    for (size_t r = 0; m->role && r < sizeof(roles) / sizeof(roles[0]); r++)
        if (!strcmp(m->role, roles[r]))
            goto role_ok;
    return err_param(e, ERR_INVALID, name,
                     "%s must be one of system, developer, user, assistant", name);

role_ok:
    for (size_t r = 0; r < sizeof(refused) / sizeof(refused[0]); r++) {
        if (!params_filled(json_object_get(v, refused[r])))
            continue;
        snprintf(name, sizeof(name), "messages[%zu].%s", i, refused[r]);
        return err_param(e, ERR_UNSUPPORTED, name, "%s is not supported", name);
    }
    if (json_is_array(content))
        return join_parts(p, content, i, m, e);
    if (!json_is_string(content)) {
        snprintf(name, sizeof(name), "messages[%zu].content", i);
        return err_param(e, ERR_INVALID, name, "%s must be a string or a list of parts",
                         name);
    }
    m->content = json_string_value(content);
    m->n = json_string_length(content);
    return 0;
}

int params_read_messages(struct params *p, const json_t *v, struct err *e)
{
    size_t n = json_array_size(v);

    if (!json_is_array(v))
        return err_param(e, ERR_INVALID, "messages", "messages must be a list");
    if (n < 1 || n > PARAMS_MAX_MSGS)
        return err_param(e, ERR_RANGE, "messages",
                         "messages must hold 1 to %d messages, not %zu", PARAMS_MAX_MSGS,
                         n);
    p->msgs = grab(&p->blocks, n, sizeof(*p->msgs), e);
    if (!p->msgs)
        return -1;
    p->n_msgs = n;
    for (size_t i = 0; i < n; i++)
        if (read_message(p, json_array_get(v, i), i, e) < 0)
            return -1;
    return 0;
}

/* ---- prompt ---- */

int params_ids(struct params_block **blocks, const json_t *list, const char *name,
               int32_t **ret, size_t *ret_n, struct err *e)
{
    size_t n = json_array_size(list);
    int32_t *ids;

    if (!json_is_array(list))
        return err_param(e, ERR_INVALID, name, "%s must be a list of token ids", name);
    ids = grab(blocks, n ? n : 1, sizeof(*ids), e);
    if (!ids)
        return -1;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        json_int_t id = json_integer_value(v);

        if (!json_is_integer(v) || id < 0 || id > INT32_MAX)
            return err_param(e, ERR_INVALID, name, "%s[%zu] is not a token id", name, i);
        ids[i] = (int32_t)id;
    }
    *ret = ids;
    *ret_n = n;
    return 0;
}

static int read_one_prompt(struct params *p, const json_t *v, const char *name,
                           struct params_prompt *to, struct err *e)
{
    int32_t *ids;

    if (json_is_string(v)) {
        to->text = json_string_value(v);
        to->n = json_string_length(v);
        return 0;
    }
    if (!json_is_array(v))
        return err_param(e, ERR_INVALID, name, "%s must be text or a list of token ids",
                         name);
    if (params_ids(&p->blocks, v, name, &ids, &to->n, e) < 0)
        return -1;
    if (!to->n)
        return err_param(e, ERR_INVALID, name, "%s is empty", name);
    to->ids = ids;
    return 0;
}

int params_read_prompt(struct params *p, const json_t *v, struct err *e)
{
    bool many = json_is_array(v) && (json_is_string(json_array_get(v, 0)) ||
                                     json_is_array(json_array_get(v, 0)));
    size_t n = many ? json_array_size(v) : 1;
    char name[32];

    if (!json_is_string(v) && !json_is_array(v))
        return err_param(e, ERR_INVALID, "prompt",
                         "prompt must be text, token ids, or a list of either");
    if (n > PARAMS_MAX_PROMPTS)
        return err_param(e, ERR_RANGE, "prompt", "at most %d prompts a request, not %zu",
                         PARAMS_MAX_PROMPTS, n);
    p->prompts = grab(&p->blocks, n, sizeof(*p->prompts), e);
    if (!p->prompts)
        return -1;
    p->n_prompts = (int)n;
    if (!many)
        return read_one_prompt(p, v, "prompt", &p->prompts[0], e);
    for (size_t i = 0; i < n; i++) {
        snprintf(name, sizeof(name), "prompt[%zu]", i);
        if (read_one_prompt(p, json_array_get(v, i), name, &p->prompts[i], e) < 0)
            return -1;
    }
    return 0;
}

/* ---- sampling ---- */

int params_read_top_k(struct params *p, const json_t *v, struct err *e)
{
    json_int_t k = json_integer_value(v);

    if (!json_is_integer(v) || k < -1 || k > INT32_MAX)
        return err_param(e, ERR_RANGE, "top_k",
                         "top_k must be a whole number, -1 or 0 for no limit");
    p->gen.top_k = k < 0 ? 0 : (int32_t)k;
    return 0;
}

int params_read_seed(struct params *p, const json_t *v, struct err *e)
{
    if (!json_is_integer(v))
        return err_param(e, ERR_INVALID, "seed", "seed must be a whole number");
    p->seed = json_integer_value(v);
    p->has_seed = true;
    return 0;
}

static int add_stop(struct params *p, const json_t *v, struct err *e)
{
    if (!json_is_string(v))
        return err_param(e, ERR_INVALID, "stop",
                         "stop must be a string or a list of them");
    if (!json_string_length(v) || json_string_length(v) > PARAMS_MAX_STOP_BYTES)
        return err_param(e, ERR_RANGE, "stop", "a stop string must be 1 to %d bytes",
                         PARAMS_MAX_STOP_BYTES);
    p->stop[p->n_stop] = json_string_value(v);
    p->stop_len[p->n_stop++] = json_string_length(v);
    return 0;
}

int params_read_stop(struct params *p, const json_t *v, struct err *e)
{
    if (!json_is_array(v))
        return add_stop(p, v, e);
    if (json_array_size(v) > PARAMS_MAX_STOP)
        return err_param(e, ERR_RANGE, "stop", "at most %d stop strings, not %zu",
                         PARAMS_MAX_STOP, json_array_size(v));
    for (size_t i = 0; i < json_array_size(v); i++)
        if (add_stop(p, json_array_get(v, i), e) < 0)
            return -1;
    return 0;
}

int params_read_stop_ids(struct params *p, const json_t *v, struct err *e)
{
    int32_t *ids;
    size_t n;

    if (json_array_size(v) > PARAMS_MAX_STOP_IDS)
        return err_param(e, ERR_RANGE, "stop_token_ids", "at most %d stop token ids",
                         PARAMS_MAX_STOP_IDS);
    if (params_ids(&p->blocks, v, "stop_token_ids", &ids, &n, e) < 0)
        return -1;
    memcpy(p->stop_ids, ids, n * sizeof(*ids));
    p->gen.n_stop = (int32_t)n;
    return 0;
}

int params_read_bias(struct params *p, const json_t *v, struct err *e)
{
    size_t n = json_object_size(v);
    const char *key;
    json_t *value;

    if (!json_is_object(v))
        return err_param(e, ERR_INVALID, "logit_bias",
                         "logit_bias must be an object of token id to bias");
    if (n > PARAMS_MAX_BIAS)
        return err_param(e, ERR_RANGE, "logit_bias", "at most %d biases, not %zu",
                         PARAMS_MAX_BIAS, n);
    p->biases = grab(&p->blocks, n ? n : 1, sizeof(*p->biases), e);
    if (!p->biases)
        return -1;
    json_object_foreach((json_t *)v, key, value)
    {
        char *end;
        double bias = json_number_value(value);
        long id;

        errno = 0;
        id = strtol(key, &end, 10);
        if (errno || end == key || *end || id < 0 || id > INT32_MAX)
            return err_param(e, ERR_INVALID, "logit_bias",
                             "a key of logit_bias is not a token id");
        if (!json_is_number(value) || !(bias >= -100 && bias <= 100))
            return err_param(e, ERR_RANGE, "logit_bias",
                             "the bias of token %ld must be a number from -100 to 100",
                             id);
        p->biases[p->gen.n_bias++] = (struct step_bias){(int32_t)id, (float)bias};
    }
    return 0;
}

/* ---- what is sent back ---- */

int params_read_stream_options(struct params *p, const json_t *v, struct err *e)
{
    struct err inner = {0};

    if (!json_is_object(v))
        return err_param(e, ERR_INVALID, "stream_options",
                         "stream_options must be an object");
    if (!p->stream)
        return err_param(e, ERR_INVALID, "stream_options",
                         "stream_options goes with stream: true only");
    if (js_get_bool(v, "include_usage", &p->include_usage, &inner) < 0)
        return err_param(e, inner.code, "stream_options.include_usage",
                         "stream_options.include_usage must be true or false");
    return 0;
}

int params_read_text_logprobs(struct params *p, const json_t *v, struct err *e)
{
    json_int_t k = json_integer_value(v);

    if (json_is_false(v))
        return 0;
    if (!json_is_integer(v) || k < 0 || k > STEP_TOP_MAX)
        return err_param(e, ERR_RANGE, "logprobs",
                         "logprobs must be a whole number from 0 to %d", STEP_TOP_MAX);
    p->logprobs = true;
    p->top_logprobs = k;
    return 0;
}

int params_read_best_of(struct params *p, const json_t *v, struct err *e)
{
    if (!json_is_integer(v) || json_integer_value(v) != p->n)
        return err_param(e, ERR_UNSUPPORTED, "best_of",
                         "best_of other than n is not supported");
    return 0;
}

int params_read_response_format(struct params *p, const json_t *v, struct err *e)
{
    const char *type = json_string_value(json_object_get(v, "type"));

    (void)p;
    if (type && !strcmp(type, "text"))
        return 0;
    return err_param(e, type ? ERR_UNSUPPORTED : ERR_INVALID, "response_format.type",
                     "response_format.type must be text; other kinds are not supported");
}

int params_read_modalities(struct params *p, const json_t *v, struct err *e)
{
    const char *only = json_string_value(json_array_get(v, 0));

    (void)p;
    if (json_array_size(v) == 1 && only && !strcmp(only, "text"))
        return 0;
    return err_param(e, ERR_UNSUPPORTED, "modalities",
                     "modalities must be [\"text\"]; others are not supported");
}
