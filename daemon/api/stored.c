/* daemon/api/stored.c - members of the support object that stand in the store. */
#include "daemon/api/stored.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/redact.h"
#include "daemon/api/rows.h"
#include "daemon/ctrl/slo.h"
#include "state/revision.h"
#include "state/store.h"

enum { JOURNAL_ROWS = 200, SLO_MINUTES = 6 * 60 };

static void put_text(struct jw *w, const char *key, const char *text)
{
    struct buf b;

    buf_init(&b, 0);
    redact(text, strlen(text), &b);
    jw_key(w, key);
    jw_strn(w, b.len ? b.p : "", b.len);
    buf_done(&b);
}

static int put_config(struct store *s, int64_t id, struct jw *w, struct err *e)
{
    struct revision r = {0};

    jw_key(w, "config");
    if (!id || revision_get(s, id, &r, e) < 0) {
        jw_null(w);
        return id ? -1 : 0;
    }
    jw_obj(w);
    jw_kint(w, "revision", id);
    put_text(w, "text", r.text ? r.text : "");
    jw_obj_end(w);
    revision_done(&r);
    return 0;
}

static void clean(char *field, size_t cap)
{
    struct buf b;

    buf_init(&b, 0);
    redact(field, strlen(field), &b);
    snprintf(field, cap, "%.*s", (int)b.len, b.len ? b.p : "");
    buf_done(&b);
}

static int put_journal(struct store *s, struct jw *w, struct err *e)
{
    struct journal_row *rows = xcalloc(JOURNAL_ROWS, sizeof(*rows));
    int n = journal_list(s, 0, rows, JOURNAL_ROWS, e);

    jw_key(w, "journal");
    if (n < 0) {
        jw_null(w);
        free(rows);
        return -1;
    }
    jw_arr(w);
    for (int i = 0; i < n; i++) {
        clean(rows[i].subject, sizeof(rows[i].subject));
        clean(rows[i].detail, sizeof(rows[i].detail));
        rows_journal(w, &rows[i]);
    }
    jw_arr_end(w);
    free(rows);
    return 0;
}

static int put_slo(struct store *s, struct jw *w, struct err *e)
{
    int64_t now = clock_wall_ms() / 60000, next;
    struct buf b;
    int rc;

    buf_init(&b, 0);
    rc = slo_history(s, now - SLO_MINUTES, now + 1, &b, &next, e);
    jw_key(w, "slo");
    jw_raw(w, rc < 0 ? "null" : b.p);
    buf_done(&b);
    return rc < 0 ? -1 : 0;
}

int stored_put(struct store *s, int64_t revision, struct jw *w, struct err *e)
{
    int faults = 0;

    faults += put_config(s, revision, w, e) < 0;
    faults += put_journal(s, w, e) < 0;
    faults += put_slo(s, w, e) < 0;
    return faults;
}

int stored_support(const char *dir, struct buf *json, struct err *e)
{
    static const char *const members[] = {"config", "journal", "slo",     "status",
                                          "alarms", "log",     "metrics", "limits",
                                          "rack",   "findings"};
    enum { STORED = 3 };
    struct rev_point p = {0};
    struct store *s = NULL;
    int rc = store_open_read(dir, &s, e);
    bool whole = rc == 0 && rev_point_get(s, &p, e) == 0;
    struct jw w;

    jw_init(&w, json);
    jw_obj(&w);
    jw_kint(&w, "at_ms", clock_wall_ms());
    if (rc == 0 && stored_put(s, p.running ? p.running : p.good, &w, e))
        whole = false;
    for (size_t i = rc == 0 ? STORED : 0; i < sizeof(members) / sizeof(members[0]); i++)
        jw_knull(&w, members[i]);
    jw_key(&w, "faults");
    jw_arr(&w);
    if (!whole)
        jw_str(&w, e->msg);
    jw_arr_end(&w);
    jw_obj_end(&w);
    store_close(s);
    return rc;
}
