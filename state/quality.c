/* state/quality.c - the table quality_run. */
#include "state/quality.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "state/store_impl.h"

enum { RUNS_KEPT = 100 };

static int put_body(struct store *s, void *arg, struct err *e)
{
    struct stored_quality *q = arg;

    if (stmt_run(s, e,
                 "INSERT INTO quality_run(at_ms, instance, model, actor, model_hash,"
                 " exact, contract, result, reference) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?)",
                 "itttti"
                 "ttt",
                 q->at_ms, q->instance, q->model, q->actor, q->model_hash,
                 (int64_t)q->exact, q->contract, q->result,
                 q->reference ? q->reference : "") < 0)
        return -1;
    q->id = store_last_id(s);
    return stmt_run(s, e,
                    "DELETE FROM quality_run WHERE model_hash = ?1 AND id NOT IN"
                    " (SELECT id FROM quality_run WHERE model_hash = ?1"
                    " ORDER BY id DESC LIMIT ?2)",
                    "ti", q->model_hash, (int64_t)RUNS_KEPT) < 0
               ? -1
               : 0;
}

int quality_put(struct store *s, struct stored_quality *q, struct err *e)
{
    if (strlen(q->contract) > QUALITY_JSON_MAX || strlen(q->result) > QUALITY_JSON_MAX ||
        (q->reference && strlen(q->reference) > QUALITY_JSON_MAX))
        return err_set(e, ERR_TOOBIG, "a quality run of more than %d KiB is not kept",
                       QUALITY_JSON_MAX >> 10);
    return store_write(s, false, put_body, q, e);
}

static void take_row(struct stmt *st, struct stored_quality *q)
{
    memset(q, 0, sizeof(*q));
    q->id = stmt_int(st, 0);
    q->at_ms = stmt_int(st, 1);
    STMT_COPY(st, 2, q->instance);
    STMT_COPY(st, 3, q->model);
    STMT_COPY(st, 4, q->actor);
    STMT_COPY(st, 5, q->model_hash);
    q->exact = stmt_int(st, 6) != 0;
    q->contract = stmt_dup(st, 7);
    q->result = stmt_dup(st, 8);
    q->reference = stmt_dup(st, 9);
    if (q->reference && !*q->reference) {
        free(q->reference);
        q->reference = NULL;
    }
}

#define COLUMNS                                                                          \
    "SELECT id, at_ms, instance, model, actor, model_hash, exact, contract, result, "

int quality_get(struct store *s, int64_t id, struct stored_quality *ret, struct err *e)
{
    struct stored_quality q = {0};
    struct stmt *st =
        stmt_open(s, e, COLUMNS "reference FROM quality_run WHERE id = ?", "i", id);
    int rc = st ? stmt_step(s, st, e) : -1, found = rc == 1;

    if (found)
        take_row(st, &q);
    if (stmt_end(s, st, rc, 0, e) < 0) {
        quality_row_done(&q);
        return -1;
    }
    if (!found)
        return err_set(e, ERR_NOTFOUND,
                       "there is no quality run %lld; the last %d of a model are kept",
                       (long long)id, RUNS_KEPT);
    *ret = q;
    return 0;
}

int quality_list(struct store *s, const char *instance, int64_t before,
                 struct stored_quality *ret, int max, struct err *e)
{
    struct stmt *st =
        stmt_open(s, e,
                  COLUMNS "'' FROM quality_run WHERE (? = '' OR instance = ?)"
                          " AND (? = 0 OR id < ?) ORDER BY id DESC LIMIT ?",
                  "ttiii", instance, instance, before, before, (int64_t)max);
    int n = 0, rc = st ? 0 : -1;

    while (st && n < max && (rc = stmt_step(s, st, e)) == 1)
        take_row(st, &ret[n++]);
    if (stmt_end(s, st, rc, n, e) >= 0)
        return n;
    while (n > 0)
        quality_row_done(&ret[--n]);
    return -1;
}

void quality_row_done(struct stored_quality *q)
{
    free(q->contract);
    free(q->result);
    free(q->reference);
    q->contract = q->result = q->reference = NULL;
}
