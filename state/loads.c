/* state/loads.c - the table load_run. */
#include "state/loads.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "state/store_impl.h"

enum { RUNS_KEPT = 1000 };

static int put_body(struct store *s, void *arg, struct err *e)
{
    struct stored_load *r = arg;

    if (stmt_run(s, e,
                 "INSERT INTO load_run(at_ms, instance, model, actor, contract, result)"
                 " VALUES(?, ?, ?, ?, ?, ?)",
                 "ittttt", r->at_ms, r->instance, r->model, r->actor, r->contract,
                 r->result) < 0)
        return -1;
    r->id = store_last_id(s);
    return stmt_run(s, e, "DELETE FROM load_run WHERE id <= ?", "i", r->id - RUNS_KEPT) <
                   0
               ? -1
               : 0;
}

int loads_put(struct store *s, struct stored_load *r, struct err *e)
{
    if (strlen(r->contract) > LOAD_JSON_MAX || strlen(r->result) > LOAD_JSON_MAX)
        return err_set(e, ERR_TOOBIG, "a load run of more than %d KiB is not kept",
                       LOAD_JSON_MAX >> 10);
    return store_write(s, false, put_body, r, e);
}

static void take_row(struct stmt *st, struct stored_load *r)
{
    memset(r, 0, sizeof(*r));
    r->id = stmt_int(st, 0);
    r->at_ms = stmt_int(st, 1);
    STMT_COPY(st, 2, r->instance);
    STMT_COPY(st, 3, r->model);
    STMT_COPY(st, 4, r->actor);
    r->contract = stmt_dup(st, 5);
    r->result = stmt_dup(st, 6);
}

#define COLUMNS "SELECT id, at_ms, instance, model, actor, contract, result FROM load_run"

int loads_get(struct store *s, int64_t id, struct stored_load *ret, struct err *e)
{
    struct stored_load r = {0};
    struct stmt *st = stmt_open(s, e, COLUMNS " WHERE id = ?", "i", id);
    int rc = st ? stmt_step(s, st, e) : -1, found = rc == 1;

    if (found)
        take_row(st, &r);
    if (stmt_end(s, st, rc, 0, e) < 0) {
        loads_row_done(&r);
        return -1;
    }
    if (!found)
        return err_set(e, ERR_NOTFOUND, "there is no load run %lld; the last %d are kept",
                       (long long)id, RUNS_KEPT);
    *ret = r;
    return 0;
}

int loads_list(struct store *s, const char *instance, int64_t before,
               struct stored_load *ret, int max, struct err *e)
{
    struct stmt *st =
        stmt_open(s, e,
                  COLUMNS " WHERE (? = '' OR instance = ?) AND (? = 0 OR id < ?)"
                          " ORDER BY id DESC LIMIT ?",
                  "ttiii", instance, instance, before, before, (int64_t)max);
    int n = 0, rc = st ? 0 : -1;

    while (st && n < max && (rc = stmt_step(s, st, e)) == 1)
        take_row(st, &ret[n++]);
    if (stmt_end(s, st, rc, n, e) >= 0)
        return n;
    while (n > 0)
        loads_row_done(&ret[--n]);
    return -1;
}

void loads_row_done(struct stored_load *r)
{
    free(r->contract);
    free(r->result);
    r->contract = r->result = NULL;
}
