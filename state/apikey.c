/* state/apikey.c - the table api_key. Revoked keys stay for the record until their room
 * is needed. */
#include "state/apikey.h"

#include <string.h>

#include "base/err.h"
#include "state/store_impl.h"

static int put_body(struct store *s, void *arg, struct err *e)
{
    const struct apikey_row *k = arg;
    struct stmt *st = stmt_open(s, e, "SELECT 1 FROM api_key WHERE id = ?", "t", k->id);
    int64_t n;
    int had = stmt_step(s, st, e);

    stmt_close(st);
    if (had < 0)
        return -1;
    if (had)
        return err_set(e, ERR_CONFLICT, "there is a key '%s' already", k->id);
    if (stmt_run(s, e,
                 "DELETE FROM api_key WHERE id IN (SELECT id FROM api_key WHERE"
                 " revoked_ms > 0 ORDER BY revoked_ms LIMIT"
                 " max(0, (SELECT count(*) FROM api_key) - ?))",
                 "i", (int64_t)APIKEY_MAX - 1) < 0 ||
        stmt_number(s, "SELECT count(*) FROM api_key", &n, e) < 0)
        return -1;
    if (n >= APIKEY_MAX)
        return err_set(e, ERR_CONFLICT,
                       "there are %d keys, which is the most; revoke one first",
                       APIKEY_MAX);
    return stmt_run(s, e,
                    "INSERT INTO api_key(id, hash, name, scopes, made_ms, expires_ms,"
                    " revoked_ms, req_per_min, tok_per_min, streams)"
                    " VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    "tbttiiiiii", k->id, (const void *)k->hash, (int)sizeof(k->hash),
                    k->name, k->scopes, k->made_ms, k->expires_ms, k->revoked_ms,
                    k->req_per_min, k->tok_per_min, k->streams) < 0
               ? -1
               : 0;
}

int apikey_put(struct store *s, const struct apikey_row *k, struct err *e)
{
    struct apikey_row copy = *k;
    return store_write(s, false, put_body, &copy, e);
}

int apikey_revoke(struct store *s, const char *id, int64_t at_ms, struct err *e)
{
    int n = stmt_run(s, e,
                     "UPDATE api_key SET revoked_ms ="
                     " CASE revoked_ms WHEN 0 THEN ? ELSE revoked_ms END WHERE id = ?",
                     "it", at_ms, id);

    if (n == 0)
        return err_set(e, ERR_NOTFOUND, "there is no key '%s'", id);
    return n < 0 ? -1 : 0;
}

int apikey_list(struct store *s, struct apikey_row *ret, int max, struct err *e)
{
    struct stmt *st = stmt_open(s, e,
                                "SELECT id, hash, name, scopes, made_ms, expires_ms,"
                                " revoked_ms, req_per_min, tok_per_min, streams"
                                " FROM api_key ORDER BY made_ms, id LIMIT ?",
                                "i", (int64_t)max);
    int n = 0, rc = st ? 0 : -1;

    while (st && n < max && (rc = stmt_step(s, st, e)) == 1) {
        struct apikey_row *r = &ret[n++];
        const char *h;
        size_t len;

        memset(r, 0, sizeof(*r));
        STMT_COPY(st, 0, r->id);
        h = stmt_bytes(st, 1, &len);
        if (len != sizeof(r->hash)) {
            rc = err_set(e, ERR_CORRUPT, "the hash of key '%s' is damaged", r->id);
            break;
        }
        memcpy(r->hash, h, len);
        STMT_COPY(st, 2, r->name);
        STMT_COPY(st, 3, r->scopes);
        r->made_ms = stmt_int(st, 4);
        r->expires_ms = stmt_int(st, 5);
        r->revoked_ms = stmt_int(st, 6);
        r->req_per_min = stmt_int(st, 7);
        r->tok_per_min = stmt_int(st, 8);
        r->streams = stmt_int(st, 9);
    }
    return stmt_end(s, st, rc, n, e);
}
