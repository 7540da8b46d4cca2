/* state/runs.c - the tables load_run and quality_run. */
#include "state/runs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "state/store_impl.h"

enum { SQL_CHARS = 400 };

/* A kind is a table. Values of an insertion: at_ms, instance, model, actor, contract,
 * result, model_hash, exact, reference; those of a table are the first so many of it. Of
 * a pruning: the newest id, how many are kept, model_hash. */
static const struct {
    const char *name, *table, *own; /* own: model_hash and exact, as columns */
    const char *reference;          /* as a column */
    const char *insert, *insert_types, *prune, *prune_types;
    int kept;
    const char *kept_of;
} kinds[RUN_KINDS] = {
    [RUN_LOAD] = {"load run", "load_run", "'', 0", "''",
                  "INSERT INTO load_run(at_ms, instance, model, actor, contract, result)"
                  " VALUES(?, ?, ?, ?, ?, ?)",
                  "ittttt", "DELETE FROM load_run WHERE id <= ?1 - ?2", "ii", 1000, ""},
    [RUN_QUALITY] =
        {"quality run", "quality_run", "model_hash, exact", "reference",
         "INSERT INTO quality_run(at_ms, instance, model, actor, contract,"
         " result, model_hash, exact, reference)"
         " VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?)",
         "itttttt"
         "it",
         "DELETE FROM quality_run WHERE model_hash = ?3 AND id < ?1 AND id NOT IN"
         " (SELECT id FROM quality_run WHERE model_hash = ?3"
         " ORDER BY id DESC LIMIT ?2)",
         "iit", 100, " of a model"},
};

const char *run_kind_name(enum run_kind k) { return kinds[k].name; }

struct put {
    enum run_kind k;
    struct stored_run *r;
};

static int put_body(struct store *s, void *arg, struct err *e)
{
    const struct put *p = arg;
    struct stored_run *r = p->r;

    if (stmt_run(s, e, kinds[p->k].insert, kinds[p->k].insert_types, r->at_ms,
                 r->instance, r->model, r->actor, r->contract, r->result, r->model_hash,
                 (int64_t)r->exact, r->reference ? r->reference : "") < 0)
        return -1;
    r->id = store_last_id(s);
    return stmt_run(s, e, kinds[p->k].prune, kinds[p->k].prune_types, r->id,
                    (int64_t)kinds[p->k].kept, r->model_hash) < 0
               ? -1
               : 0;
}

int runs_put(struct store *s, enum run_kind k, struct stored_run *r, struct err *e)
{
    if (strlen(r->contract) > RUN_JSON_MAX || strlen(r->result) > RUN_JSON_MAX ||
        (r->reference && strlen(r->reference) > RUN_JSON_MAX))
        return err_set(e, ERR_TOOBIG, "a %s of more than %d KiB is not kept",
                       kinds[k].name, RUN_JSON_MAX >> 10);
    return store_write(s, false, put_body, &(struct put){k, r}, e);
}

static void take_row(struct stmt *st, struct stored_run *r)
{
    memset(r, 0, sizeof(*r));
    r->id = stmt_int(st, 0);
    r->at_ms = stmt_int(st, 1);
    STMT_COPY(st, 2, r->instance);
    STMT_COPY(st, 3, r->model);
    STMT_COPY(st, 4, r->actor);
    STMT_COPY(st, 5, r->model_hash);
    r->exact = stmt_int(st, 6) != 0;
    r->contract = stmt_dup(st, 7);
    r->result = stmt_dup(st, 8);
    r->reference = stmt_dup(st, 9);
    if (r->reference && !*r->reference) {
        free(r->reference);
        r->reference = NULL;
    }
}

static void select_from(enum run_kind k, bool reference, const char *rest,
                        char sql[SQL_CHARS])
{
    snprintf(sql, SQL_CHARS,
             "SELECT id, at_ms, instance, model, actor, %s, contract, result, %s FROM %s"
             " WHERE %s",
             kinds[k].own, reference ? kinds[k].reference : "''", kinds[k].table, rest);
}

int runs_get(struct store *s, enum run_kind k, int64_t id, struct stored_run *ret,
             struct err *e)
{
    struct stored_run r = {0};
    char sql[SQL_CHARS];
    struct stmt *st;
    int rc, found;

    select_from(k, true, "id = ?", sql);
    st = stmt_open(s, e, sql, "i", id);
    rc = st ? stmt_step(s, st, e) : -1;
    found = rc == 1;
    if (found)
        take_row(st, &r);
    if (stmt_end(s, st, rc, 0, e) < 0) {
        run_done(&r);
        return -1;
    }
    if (!found)
        return err_set(e, ERR_NOTFOUND, "there is no %s %lld; the last %d%s are kept",
                       kinds[k].name, (long long)id, kinds[k].kept, kinds[k].kept_of);
    *ret = r;
    return 0;
}

int runs_list(struct store *s, enum run_kind k, const char *instance, int64_t before,
              struct stored_run *ret, int max, struct err *e)
{
    char sql[SQL_CHARS];
    struct stmt *st;
    int n = 0, rc;

    select_from(k, false,
                "(? = '' OR instance = ?) AND (? = 0 OR id < ?) ORDER BY id DESC LIMIT ?",
                sql);
    st = stmt_open(s, e, sql, "ttiii", instance, instance, before, before, (int64_t)max);
    rc = st ? 0 : -1;
    while (st && n < max && (rc = stmt_step(s, st, e)) == 1)
        take_row(st, &ret[n++]);
    if (stmt_end(s, st, rc, n, e) >= 0)
        return n;
    while (n > 0)
        run_done(&ret[--n]);
    return -1;
}

void run_done(struct stored_run *r)
{
    free(r->contract);
    free(r->result);
    free(r->reference);
    r->contract = r->result = r->reference = NULL;
}
