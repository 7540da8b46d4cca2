/* daemon/api/keys.c - GET, POST and DELETE of /api/v1/keys, on the control thread.
 *
 * Every change is in the journal before it is acknowledged; a key's secret is in the one
 * answer that made it and nowhere else. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "daemon/api/access.h"
#include "daemon/api/conn.h"
#include "daemon/api/handler.h"
#include "daemon/api/route.h"
#include "daemon/api/server.h"
#include "daemon/api/watch.h"
#include "state/apikey.h"
#include "state/store.h"

#define MAX_RATE (INT64_C(1) << 40)
#define MAX_SECONDS (INT64_C(100) * 366 * 86400)

static int note(struct conn *c, const char *what, const char *id, const struct err *fault,
                const char *detail, struct err *e)
{
    const struct journal_note n = {
        .actor = c->who.actor,
        .origin = c->who.origin,
        .what = what,
        .subject = id,
        .result = fault ? "refused" : "ok",
        .detail = fault ? fault->msg : detail,
    };

    return journal_note(c->h->cfg.store, &n, e);
}

void control_keys(struct conn *c)
{
    struct reply r;
    struct buf keys;

    buf_init(&keys, 0);
    access_keys_json(c->h->cfg.access, &keys);
    reply_open(&r);
    jw_key(&r.w, "keys");
    jw_raw(&r.w, keys.p);
    reply_send(c, &r, 200);
    buf_done(&keys);
}

static int read_key(const json_t *root, struct access_new_key *k, struct err *e)
{
    int64_t expires_s = 0;
    int rc = body_text(root, "name", 63, &k->name, e);

    if (rc > 0)
        rc = body_text(root, "scopes", 63, &k->scopes, e);
    if (rc == 0)
        return err_param(e, ERR_INVALID, k->name ? "scopes" : "name",
                         "a key needs a name and scopes");
    if (rc < 0 || js_get_int(root, "expires_s", 1, MAX_SECONDS, &expires_s, e) < 0 ||
        js_get_int(root, "req_per_min", 0, MAX_RATE, &k->req_per_min, e) < 0 ||
        js_get_int(root, "tok_per_min", 0, MAX_RATE, &k->tok_per_min, e) < 0 ||
        js_get_int(root, "streams", 0, MAX_RATE, &k->streams, e) < 0)
        return -1;
    k->expires_ms = expires_s ? clock_wall_ms() + expires_s * 1000 : 0;
    return 0;
}

void control_key_create(struct conn *c)
{
    struct access_new_key k = {0};
    json_t *root = NULL;
    struct buf shown, said;
    struct reply r;
    struct err e, e2;

    buf_init(&shown, 0);
    buf_init(&said, 0);
    if (body_object(c, "name scopes expires_s req_per_min tok_per_min streams", &root,
                    &e) < 0 ||
        read_key(root, &k, &e) < 0 ||
        access_key_create(c->h->cfg.access, &k, &shown, &e) < 0) {
        if (note(c, "key.create", k.name ? k.name : "", &e, NULL, &e2) < 0)
            e = e2;
        goto fail;
    }
    buf_printf(&said, "name %s, scopes %s", k.name, k.scopes);
    shown.p[APIKEY_ID] = '\0'; /* id.secret: only the id goes into the journal */
    if (note(c, "key.create", shown.p, NULL, said.p, &e) < 0) {
        int64_t index;

        access_key_revoke(c->h->cfg.access, shown.p, &index, &e2);
        goto fail;
    }
    reply_open(&r);
    jw_kstr(&r.w, "id", shown.p);
    shown.p[APIKEY_ID] = '.';
    jw_kstr(&r.w, "key", shown.p);
    conn_header(c, "Cache-Control", "no-store");
    reply_send(c, &r, 201);
    goto done;

fail:
    conn_answer_err(c, &e);
done:
    if (shown.p)
        explicit_bzero(shown.p, shown.len);
    buf_done(&shown);
    buf_done(&said);
    json_decref(root);
}

/* What the key is doing ends too, not only what it would do next. */
void control_key_revoke(struct conn *c)
{
    const char *id = c->match.arg[0];
    int64_t index = 0;
    struct reply r;
    struct err e, e2;

    if (access_key_revoke(c->h->cfg.access, id, &index, &e) < 0) {
        if (note(c, "key.revoke", id, &e, NULL, &e2) < 0)
            e = e2;
        conn_answer_err(c, &e);
        return;
    }
    err_set(&e2, ERR_UNAUTHORIZED, "the API key '%s' was revoked", id);
    watch_abort_key(c->h->watch, index, &e2);
    if (note(c, "key.revoke", id, NULL, "", &e) < 0) {
        conn_answer_err(c, &e);
        return;
    }
    reply_open(&r);
    jw_kstr(&r.w, "id", id);
    jw_kstr(&r.w, "state", "revoked");
    reply_send(c, &r, 200);
}
