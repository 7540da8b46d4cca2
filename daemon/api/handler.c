/* daemon/api/handler.c - what the handlers of /api/v1 share. */
#include "daemon/api/handler.h"

#include <string.h>

#include "daemon/api/conn.h"
#include "daemon/api/server.h"
#include "state/store.h"

enum { BODY_DEPTH = 16 };

void reply_open(struct reply *r)
{
    buf_init(&r->b, 0);
    jw_init(&r->w, &r->b);
    jw_obj(&r->w);
}

void reply_send(struct conn *c, struct reply *r, int status)
{
    jw_obj_end(&r->w);
    conn_answer(c, status, "application/json", &r->b);
    buf_done(&r->b);
}

void reply_operation(struct conn *c, struct reply *r, const char *id)
{
    jw_kstr(&r->w, "operation", id);
    conn_header(c, "Location", "/api/v1/operations/%s", id);
    reply_send(c, r, 202);
}

struct store *handler_store(struct conn *c)
{
    struct err e;

    if (c->h->cfg.store)
        return c->h->cfg.store;
    err_set(&e, ERR_UNAVAIL, "this server keeps no state");
    conn_answer_err(c, &e);
    return NULL;
}

int handler_note(struct conn *c, const char *what, const char *subject,
                 const char *result, const char *detail, struct err *e)
{
    const struct journal_note n = {c->who.actor, c->who.origin, what,
                                   subject,      result,        detail};

    return journal_note(c->h->cfg.store, &n, e);
}

/* Is word one of the words? */
static bool among(const char *words, const char *word)
{
    size_t n = strlen(word);

    for (const char *p = words; n && (p = strstr(p, word)); p += n)
        if ((p == words || p[-1] == ' ') && (p[n] == ' ' || p[n] == '\0'))
            return true;
    return false;
}

int body_object(struct conn *c, const char *members, json_t **ret, struct err *e)
{
    const struct js_limits lim = {0, BODY_DEPTH}; /* the size was checked on the way in */
    json_t *root = NULL, *value;
    const char *key;

    if (c->body.len == 0) {
        *ret = json_object();
        return 0;
    }
    if (js_parse(c->body.p, c->body.len, &lim, &root, e) < 0)
        return -1;
    if (!json_is_object(root)) {
        json_decref(root);
        return err_set(e, ERR_INVALID, "the body must be a JSON object");
    }
    json_object_foreach(root, key, value)
    {
        if (among(members, key))
            continue;
        err_param(e, ERR_INVALID, key, "there is no member '%.64s' here%s%s", key,
                  members[0] ? "; there is " : "", members);
        json_decref(root);
        return -1;
    }
    *ret = root;
    return 0;
}

int body_text(const json_t *root, const char *key, size_t max, const char **ret,
              struct err *e)
{
    const char *s = NULL;
    int rc = js_get_str(root, key, &s, NULL, e);

    if (rc <= 0)
        return rc;
    if (!s[0] || strlen(s) > max)
        return err_param(e, ERR_RANGE, key, "%s must have 1 to %zu bytes, has %zu", key,
                         max, strlen(s));
    for (const char *p = s; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7F)
            return err_param(e, ERR_INVALID, key, "%s has a control byte in it", key);
    *ret = s;
    return 1;
}
