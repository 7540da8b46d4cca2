/* state/series.c - the table slo_minute. */
#include "state/series.h"

#include <stdlib.h>
#include <string.h>

#include "state/store_impl.h"

struct batch {
    const struct series_row *rows;
    int n;
};

static int put_body(struct store *s, void *arg, struct err *e)
{
    const struct batch *b = arg;

    for (int i = 0; i < b->n; i++) {
        const struct series_row *r = &b->rows[i];
        if (stmt_run(s, e,
                     "INSERT OR REPLACE INTO slo_minute(minute, instance, class,"
                     " revision, json) VALUES(?, ?, ?, ?, ?)",
                     "ittit", r->minute, r->instance, r->slo_class, r->revision,
                     r->json) < 0)
            return -1;
    }
    return 0;
}

int series_put(struct store *s, const struct series_row *rows, int n, struct err *e)
{
    struct batch b = {rows, n};
    return n ? store_write(s, false, put_body, &b, e) : 0;
}

int series_read(struct store *s, int64_t from, int64_t to, series_fn fn, void *arg,
                struct err *e)
{
    struct stmt *st = stmt_open(s, e,
                                "SELECT minute, instance, class, revision, json"
                                " FROM slo_minute WHERE minute >= ? AND minute < ?"
                                " ORDER BY minute, instance, class",
                                "ii", from, to);
    int rc = st ? 0 : -1, more = 1;

    while (st && more && (rc = stmt_step(s, st, e)) == 1) {
        struct series_row r = {.minute = stmt_int(st, 0), .revision = stmt_int(st, 3)};

        STMT_COPY(st, 1, r.instance);
        STMT_COPY(st, 2, r.slo_class);
        r.json = stmt_dup(st, 4);
        more = fn(arg, &r);
        free(r.json);
    }
    return stmt_end(s, st, rc, 0, e);
}

int series_prune(struct store *s, int64_t before_minute, struct err *e)
{
    return stmt_run(s, e, "DELETE FROM slo_minute WHERE minute < ?", "i", before_minute) <
                   0
               ? -1
               : 0;
}
