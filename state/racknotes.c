/* state/racknotes.c - the tables cordon, measurement and plan. */
#include "state/racknotes.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "state/store_impl.h"

enum { PLANS_KEPT = 256, PLAN_JSON_MAX = 4 << 20 };

int cordon_put(struct store *s, const struct cordon_row *c, struct err *e)
{
    return stmt_run(s, e,
                    "INSERT INTO cordon(device, reason, actor, at_ms) VALUES(?, ?, ?, ?)"
                    " ON CONFLICT(device) DO UPDATE SET reason = excluded.reason,"
                    " actor = excluded.actor, at_ms = excluded.at_ms",
                    "ttti", c->device, c->reason, c->actor, c->at_ms) < 0
               ? -1
               : 0;
}

int cordon_remove(struct store *s, const char *device, struct err *e)
{
    return stmt_run(s, e, "DELETE FROM cordon WHERE device = ?", "t", device);
}

int cordon_list(struct store *s, struct cordon_row *ret, int max, struct err *e)
{
    struct stmt *st = stmt_open(s, e,
                                "SELECT device, reason, actor, at_ms FROM cordon"
                                " ORDER BY device LIMIT ?",
                                "i", (int64_t)max);
    int n = 0, rc = st ? 0 : -1;

    while (st && n < max && (rc = stmt_step(s, st, e)) == 1) {
        struct cordon_row *r = &ret[n++];
        STMT_COPY(st, 0, r->device);
        STMT_COPY(st, 1, r->reason);
        STMT_COPY(st, 2, r->actor);
        r->at_ms = stmt_int(st, 3);
    }
    return stmt_end(s, st, rc, n, e);
}

/* ---- measured links ---- */

struct batch {
    const char *rack;
    const struct measurement_row *m;
    int n;
};

static int measurement_body(struct store *s, void *arg, struct err *e)
{
    const struct batch *b = arg;

    for (int i = 0; i < b->n; i++) {
        const struct measurement_row *m = &b->m[i];
        if (stmt_run(s, e,
                     "INSERT OR REPLACE INTO measurement(rack, a, b, at_ms, bytes_per_s,"
                     " spread, latency_s) VALUES(?, ?, ?, ?, ?, ?, ?)",
                     "tttirrr", b->rack, m->a, m->b, m->at_ms, m->bytes_per_s, m->spread,
                     m->latency_s) < 0)
            return -1;
    }
    return 0;
}

int measurement_put(struct store *s, const char *rack, const struct measurement_row *m,
                    int n, struct err *e)
{
    struct batch b = {rack, m, n};
    return store_write(s, false, measurement_body, &b, e);
}

int measurement_list(struct store *s, const char *rack, struct measurement_row *ret,
                     int max, struct err *e)
{
    struct stmt *st = stmt_open(s, e,
                                "SELECT a, b, at_ms, bytes_per_s, spread, latency_s"
                                " FROM measurement WHERE rack = ? ORDER BY a, b LIMIT ?",
                                "ti", rack, (int64_t)max);
    int n = 0, rc = st ? 0 : -1;

    while (st && n < max && (rc = stmt_step(s, st, e)) == 1) {
        struct measurement_row *r = &ret[n++];
        STMT_COPY(st, 0, r->a);
        STMT_COPY(st, 1, r->b);
        r->at_ms = stmt_int(st, 2);
        r->bytes_per_s = stmt_real(st, 3);
        r->spread = stmt_real(st, 4);
        r->latency_s = stmt_real(st, 5);
    }
    return stmt_end(s, st, rc, n, e);
}

/* ---- plans: the last PLANS_KEPT ---- */

static int plan_body(struct store *s, void *arg, struct err *e)
{
    struct plan_row *p = arg;

    if (stmt_run(s, e,
                 "INSERT INTO plan(at_ms, model, rack, request, result)"
                 " VALUES(?, ?, ?, ?, ?)",
                 "itttt", p->at_ms, p->model, p->rack, p->request ? p->request : "",
                 p->result ? p->result : "") < 0)
        return -1;
    p->id = store_last_id(s);
    return stmt_run(s, e, "DELETE FROM plan WHERE id <= ?", "i", p->id - PLANS_KEPT) < 0
               ? -1
               : 0;
}

int plan_put(struct store *s, struct plan_row *p, struct err *e)
{
    if ((p->request && strlen(p->request) > PLAN_JSON_MAX) ||
        (p->result && strlen(p->result) > PLAN_JSON_MAX))
        return err_set(e, ERR_TOOBIG, "a plan of more than %d MiB is not kept",
                       PLAN_JSON_MAX >> 20);
    return store_write(s, false, plan_body, p, e);
}

int plan_get(struct store *s, int64_t id, struct plan_row *ret, struct err *e)
{
    struct plan_row r = {.id = id};
    struct stmt *st = stmt_open(
        s, e, "SELECT at_ms, model, rack, request, result FROM plan WHERE id = ?", "i",
        id);
    int rc = stmt_step(s, st, e), found = rc;

    if (rc == 1) {
        r.at_ms = stmt_int(st, 0);
        STMT_COPY(st, 1, r.model);
        STMT_COPY(st, 2, r.rack);
        r.request = stmt_dup(st, 3);
        r.result = stmt_dup(st, 4);
    }
    if (stmt_end(s, st, rc, 0, e) < 0) {
        plan_row_done(&r);
        return -1;
    }
    if (!found)
        return err_set(e, ERR_NOTFOUND, "there is no plan %lld; the last %d are kept",
                       (long long)id, PLANS_KEPT);
    *ret = r;
    return 0;
}

int plan_list(struct store *s, struct plan_row *ret, int max, struct err *e)
{
    struct stmt *st = stmt_open(
        s, e, "SELECT id, at_ms, model, rack FROM plan ORDER BY id DESC LIMIT ?", "i",
        (int64_t)max);
    int n = 0, rc = st ? 0 : -1;

    while (st && n < max && (rc = stmt_step(s, st, e)) == 1) {
        struct plan_row *r = &ret[n++];
        memset(r, 0, sizeof(*r));
        r->id = stmt_int(st, 0);
        r->at_ms = stmt_int(st, 1);
        STMT_COPY(st, 2, r->model);
        STMT_COPY(st, 3, r->rack);
    }
    return stmt_end(s, st, rc, n, e);
}

void plan_row_done(struct plan_row *p)
{
    free(p->request);
    free(p->result);
    p->request = p->result = NULL;
}
