/* daemon/api/audit.c - what happened and what is wrong: the journal and the alarms.
 */
#include <stdlib.h>

#include "base/mem.h"
#include "daemon/api/conn.h"
#include "daemon/api/handler.h"
#include "daemon/api/rows.h"
#include "daemon/api/server.h"
#include "daemon/ctrl/alarm.h"
#include "state/store.h"

enum { JOURNAL_PAGE = 100, ALARMS_MAX = 512 };

void control_journal(struct conn *c)
{
    struct store *s = handler_store(c);
    int max = (int)query_num(&c->query, QUERY_limit, JOURNAL_PAGE);
    struct journal_row *rows;
    struct reply r;
    struct err e;
    int n;

    if (!s)
        return;
    rows = xcalloc((size_t)max, sizeof(*rows));
    n = journal_list(s, query_num(&c->query, QUERY_before, 0), rows, max, &e);
    if (n < 0) {
        conn_answer_err(c, &e);
    } else {
        reply_open(&r);
        jw_key(&r.w, "journal");
        jw_arr(&r.w);
        for (int i = 0; i < n; i++)
            rows_journal(&r.w, &rows[i]);
        jw_arr_end(&r.w);
        reply_send(c, &r, 200);
    }
    free(rows);
}

void control_alarms(struct conn *c)
{
    struct alarm_status *a = xcalloc(ALARMS_MAX, sizeof(*a));
    int n = c->h->cfg.alarms ? alarms_list(c->h->cfg.alarms, a, ALARMS_MAX) : 0;
    struct reply r;

    reply_open(&r);
    jw_key(&r.w, "alarms");
    jw_arr(&r.w);
    for (int i = 0; i < n; i++)
        rows_alarm(&r.w, &a[i]);
    jw_arr_end(&r.w);
    reply_send(c, &r, 200);
    free(a);
}
