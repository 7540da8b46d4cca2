/* state/inventory.c - the tables model, instance, admin_state and rack. */
#include "state/inventory.h"

#include <stdlib.h>

#include "base/clock.h"
#include "state/store_impl.h"

int inventory_put_model(struct store *s, const struct model_row *m, struct err *e)
{
    return stmt_run(s, e,
                    "INSERT INTO model(name, path, family, main_type, format, n_params,"
                    " file_bytes, added_ms) VALUES(?, ?, ?, ?, ?, ?, ?, ?)"
                    " ON CONFLICT(name) DO UPDATE SET path = excluded.path,"
                    " family = excluded.family, main_type = excluded.main_type,"
                    " format = excluded.format, n_params = excluded.n_params,"
                    " file_bytes = excluded.file_bytes",
                    "tttttiii", m->name, m->path, m->family, m->main_type, m->format,
                    (int64_t)m->n_params, (int64_t)m->file_bytes, m->added_ms) < 0
               ? -1
               : 0;
}

int inventory_models(struct store *s, struct model_row *ret, int max, struct err *e)
{
    struct stmt *st = stmt_open(s, e,
                                "SELECT name, path, family, main_type, format, n_params, "
                                "file_bytes, added_ms FROM model ORDER BY name LIMIT ?",
                                "i", (int64_t)max);
    int n = 0, rc = st ? 0 : -1;

    while (st && n < max && (rc = stmt_step(s, st, e)) == 1) {
        struct model_row *r = &ret[n++];
        STMT_COPY(st, 0, r->name);
        STMT_COPY(st, 1, r->path);
        STMT_COPY(st, 2, r->family);
        STMT_COPY(st, 3, r->main_type);
        STMT_COPY(st, 4, r->format);
        r->n_params = (uint64_t)stmt_int(st, 5);
        r->file_bytes = (uint64_t)stmt_int(st, 6);
        r->added_ms = stmt_int(st, 7);
    }
    return stmt_end(s, st, rc, n, e);
}

int inventory_put_instance(struct store *s, const struct instance_row *i, struct err *e)
{
    return stmt_run(s, e,
                    "INSERT INTO instance(name, model, mode, options, applied_ms)"
                    " VALUES(?, ?, ?, ?, ?)"
                    " ON CONFLICT(name) DO UPDATE SET model = excluded.model,"
                    " mode = excluded.mode, options = excluded.options,"
                    " applied_ms = excluded.applied_ms",
                    "tttti", i->name, i->model, i->mode, i->options, i->applied_ms) < 0
               ? -1
               : 0;
}

int inventory_instances(struct store *s, struct instance_row *ret, int max, struct err *e)
{
    struct stmt *st = stmt_open(s, e,
                                "SELECT name, model, mode, options, applied_ms "
                                "FROM instance ORDER BY name LIMIT ?",
                                "i", (int64_t)max);
    int n = 0, rc = st ? 0 : -1;

    while (st && n < max && (rc = stmt_step(s, st, e)) == 1) {
        struct instance_row *r = &ret[n++];
        STMT_COPY(st, 0, r->name);
        STMT_COPY(st, 1, r->model);
        STMT_COPY(st, 2, r->mode);
        STMT_COPY(st, 3, r->options);
        r->applied_ms = stmt_int(st, 4);
    }
    return stmt_end(s, st, rc, n, e);
}

int admin_put(struct store *s, const struct admin_row *a, struct err *e)
{
    if (!a->state[0])
        return stmt_run(s, e, "DELETE FROM admin_state WHERE instance = ?", "t",
                        a->instance) < 0
                   ? -1
                   : 0;
    return stmt_run(s, e,
                    "INSERT INTO admin_state(instance, state, reason, actor, at_ms)"
                    " VALUES(?, ?, ?, ?, ?)"
                    " ON CONFLICT(instance) DO UPDATE SET state = excluded.state,"
                    " reason = excluded.reason, actor = excluded.actor,"
                    " at_ms = excluded.at_ms",
                    "tttti", a->instance, a->state, a->reason, a->actor, a->at_ms) < 0
               ? -1
               : 0;
}

int freeze_put(struct store *s, const char *instance, bool on, const char *actor,
               const char *reason, int64_t at_ms, struct err *e)
{
    int rc = on ? stmt_run(s, e,
                           "INSERT OR REPLACE INTO expert_freeze(instance, reason, actor,"
                           " at_ms) VALUES(?, ?, ?, ?)",
                           "ttti", instance, reason, actor, at_ms)
                : stmt_run(s, e, "DELETE FROM expert_freeze WHERE instance = ?", "t",
                           instance);

    return rc < 0 ? -1 : 0;
}

int freeze_list(struct store *s, char (*ret)[64], int max, struct err *e)
{
    struct stmt *st =
        stmt_open(s, e, "SELECT instance FROM expert_freeze ORDER BY instance LIMIT ?",
                  "i", (int64_t)max);
    int n = 0, rc = st ? 0 : -1;

    while (st && n < max && (rc = stmt_step(s, st, e)) == 1) {
        STMT_COPY(st, 0, ret[n]);
        n++;
    }
    return stmt_end(s, st, rc, n, e);
}

int admin_list(struct store *s, struct admin_row *ret, int max, struct err *e)
{
    struct stmt *st = stmt_open(s, e,
                                "SELECT instance, state, reason, actor, at_ms"
                                " FROM admin_state ORDER BY instance LIMIT ?",
                                "i", (int64_t)max);
    int n = 0, rc = st ? 0 : -1;

    while (st && n < max && (rc = stmt_step(s, st, e)) == 1) {
        struct admin_row *r = &ret[n++];
        STMT_COPY(st, 0, r->instance);
        STMT_COPY(st, 1, r->state);
        STMT_COPY(st, 2, r->reason);
        STMT_COPY(st, 3, r->actor);
        r->at_ms = stmt_int(st, 4);
    }
    return stmt_end(s, st, rc, n, e);
}

int inventory_put_rack(struct store *s, const char *name, const char *json, struct err *e)
{
    return stmt_run(s, e,
                    "INSERT INTO rack(one, name, json, at_ms) VALUES(1, ?, ?, ?)"
                    " ON CONFLICT(one) DO UPDATE SET name = excluded.name,"
                    " json = excluded.json, at_ms = excluded.at_ms",
                    "tti", name, json, clock_wall_ms()) < 0
               ? -1
               : 0;
}

int inventory_rack(struct store *s, char **ret_name, char **ret_json, struct err *e)
{
    struct stmt *st = stmt_open(s, e, "SELECT name, json FROM rack", "");
    int n = 0, rc = st ? 0 : -1;

    if (st && (rc = stmt_step(s, st, e)) == 1) {
        *ret_name = stmt_dup(st, 0);
        *ret_json = stmt_dup(st, 1);
        n = 1;
    }
    return stmt_end(s, st, rc, n, e);
}
