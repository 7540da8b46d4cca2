/* daemon/api/handler.h - what the handlers of /api/v1 share: a body read, a reply sent.
 *
 * Bodies are objects whose members are all known: a mistyped word is an error, not
 * something that is quietly left out. Any thread that runs a handler. */
#ifndef API_HANDLER_H
#define API_HANDLER_H

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"

struct conn;
struct store;

/* The store, or NULL and the answer that there is none (a server without one). Control
 * thread. */
struct store *handler_store(struct conn *c);
/* A journal row about what this request does; -1 when it could not be kept: then it must
 * not be done. detail is cut where it is too long. Control thread. */
int handler_note(struct conn *c, const char *what, const char *subject,
                 const char *result, const char *detail, struct err *e);

/* One JSON object as the answer: reply_open, jw_k*(&r.w, ..), reply_send. */
struct reply {
    struct buf b;
    struct jw w;
};
void reply_open(struct reply *r);
void reply_send(struct conn *c, struct reply *r, int status);
/* 202 with Location and {"operation": ID}; further members may stand in r already. */
void reply_operation(struct conn *c, struct reply *r, const char *id);

/* The body as an object whose members are among `members` ("reason confirm_s"); no body
 * is {}. The caller json_decref()s *ret. */
int body_object(struct conn *c, const char *members, json_t **ret, struct err *e);
/* A string member of 1..max bytes without control bytes. 1 = there, 0 = absent (*ret
 * stays), -1. */
int body_text(const json_t *root, const char *key, size_t max, const char **ret,
              struct err *e);

#endif
