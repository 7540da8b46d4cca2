/* daemon/api/answer.c - JSON pieces that several answers share. */
#include "daemon/api/answer.h"

#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"

const char *answer_code(const struct err *e)
{
    switch (e->code) {
    case ERR_SYNTAX:
        return "invalid_json";
    case ERR_INVALID:
    case ERR_RANGE:
        return "invalid_value";
    case ERR_CONTEXT:
        return "context_length_exceeded";
    case ERR_UNSUPPORTED:
        return "unsupported_value";
    case ERR_UNAUTHORIZED:
        return "invalid_api_key";
    case ERR_DENIED:
        return "forbidden";
    case ERR_NOTFOUND:
        return strcmp(e->param, "model") ? "not_found" : "model_not_found";
    case ERR_METHOD:
        return "method_not_allowed";
    case ERR_TIMEOUT:
        return "request_timeout";
    case ERR_CONFLICT:
        return "conflict";
    case ERR_CHANGED:
        return "changed";
    case ERR_TOOBIG:
        return "request_too_large";
    case ERR_BUSY:
        return "queue_full";
    case ERR_LIMITED:
        return "rate_limit_exceeded";
    case ERR_UNAVAIL:
        return "unavailable";
    default:
        return NULL;
    }
}

void answer_error(struct buf *b, const struct err *e)
{
    struct jw w;

    jw_init(&w, b);
    jw_obj(&w);
    jw_key(&w, "error");
    jw_obj(&w);
    jw_kstr(&w, "message", e->msg);
    jw_kstr(&w, "type", err_type(e->code));
    jw_kstr(&w, "param", e->param[0] ? e->param : NULL);
    jw_kstr(&w, "code", answer_code(e));
    jw_obj_end(&w);
    jw_obj_end(&w);
}

void answer_usage(struct jw *w, const struct answer_usage *u)
{
    jw_key(w, "usage");
    jw_obj(w);
    jw_kint(w, "prompt_tokens", u->prompt);
    jw_kint(w, "completion_tokens", u->completion);
    jw_kint(w, "total_tokens", u->prompt + u->completion);
    jw_key(w, "prompt_tokens_details");
    jw_obj(w);
    jw_kint(w, "cached_tokens", u->cached);
    jw_obj_end(w);
    jw_obj_end(w);
}
