/* base/err.h - one error: a code and one sentence that travels up to the edge.
 *
 * Library code never logs; it fills a struct err and returns -1. Only main, API
 * handlers and worker loops print what arrived. ERR_MAP is the one table of codes:
 * id, stable reply code, HTTP status, process exit code, OpenAI error type, text.
 * Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 refused, 5 conflict,
 * 6 unavailable. Any thread; a struct err belongs to its caller. */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <stdarg.h>
#include <stdbool.h>

/*    id        reply status exit OpenAI type               text */
#define ERR_MAP(X)                                                                       \
    X(OK, 0, 200, 0, "none", "ok")                                                       \
    X(INVALID, 1000, 400, 2, "invalid_request_error", "invalid value")                   \
    X(SYNTAX, 1001, 400, 2, "invalid_request_error", "not well-formed")                  \
    X(RANGE, 1002, 400, 2, "invalid_request_error", "out of range")                      \
    X(CONTEXT, 1003, 400, 2, "invalid_request_error", "longer than the context")         \
    X(UNSUPPORTED, 1004, 400, 2, "invalid_request_error", "not supported")               \
    X(UNAUTHORIZED, 1101, 401, 4, "authentication_error", "no valid key")                \
    X(DENIED, 1100, 403, 4, "permission_error", "not allowed")                           \
    X(NOTFOUND, 1200, 404, 3, "invalid_request_error", "not found")                      \
    X(METHOD, 1201, 405, 2, "invalid_request_error", "method not allowed")               \
    X(TIMEOUT, 1300, 408, 6, "timeout_error", "took too long")                           \
    X(CONFLICT, 1400, 409, 5, "conflict_error", "conflicts with the present state")      \
    X(CHANGED, 1401, 412, 5, "conflict_error", "changed in the meantime")                \
    X(TOOBIG, 1500, 413, 2, "invalid_request_error", "too large")                        \
    X(BUSY, 1600, 429, 6, "rate_limit_error", "queue is full")                           \
    X(LIMITED, 1601, 429, 6, "rate_limit_error", "over a limit of this client")          \
    X(UNAVAIL, 1700, 503, 6, "service_unavailable_error", "not available now")           \
    X(NOFIT, 1701, 503, 6, "service_unavailable_error", "does not fit")                  \
    X(NOMEM, 1702, 503, 6, "service_unavailable_error", "out of memory")                 \
    X(CORRUPT, 1800, 500, 1, "server_error", "damaged file")                             \
    X(IO, 1801, 500, 1, "server_error", "input or output failed")                        \
    X(DEVICE, 1802, 500, 1, "server_error", "device failed")                             \
    X(CANCELED, 1803, 500, 1, "server_error", "canceled")                                \
    X(INTERNAL, 1900, 500, 1, "server_error", "internal error")

enum err_code {
#define X(id, reply, status, ex, type, text) ERR_##id,
    ERR_MAP(X)
#undef X
        ERR_COUNT
};

struct err {
    enum err_code code;
    char param[64]; /* request field or file part at fault, "" when none */
    char msg[512];  /* one sentence, UTF-8, no newline, no final stop */
};

/* Each sets *e (NULL allowed) and yields -1, so that `return err_set(...)` works. */
int err_set(struct err *e, enum err_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* As err_set, with the name of the parameter at fault. */
int err_param(struct err *e, enum err_code code, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Same with errno's text appended. */
int err_errno(struct err *e, enum err_code code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Put "fmt: " before the sentence that is there; code and param stay. */
int err_wrap(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void err_clear(struct err *e);

const char *err_name(enum err_code code); /* "NOTFOUND" */
const char *err_text(enum err_code code);
const char *err_type(enum err_code code); /* the OpenAI `error.type` */
int err_reply(enum err_code code);
int err_status(enum err_code code); /* HTTP status */
int err_exit(enum err_code code);   /* process exit code */

#endif
