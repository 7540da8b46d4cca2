/* See engine_check.h. */
#include "daemon/serve/engine_check.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/fault.h"
#include "daemon/serve/handoff.h"
#include "daemon/serve/sched.h"
#include "daemon/serve/wire.h"

int engine_check_handoff(const struct handoff *h, const struct sched *s, struct err *e)
{
    struct handoff_stats st;
    struct sched_stats ss;

    if (handoff_check(h, e) < 0)
        return -1;
    handoff_stats(h, &st);
    sched_stats(s, &ss);
    if (ss.kv.n_pins != st.export_blocks)
        return err_set(e, ERR_INTERNAL,
                       "KV blocks are pinned %d times, exported %d times", ss.kv.n_pins,
                       st.export_blocks);
    if (ss.pulls != st.copies)
        return err_set(e, ERR_INTERNAL, "%d pulls write into blocks, %d copy", ss.pulls,
                       st.copies);
    return 0;
}

void engine_check_failed(struct wire_conn *conn, const struct err *why)
{
    struct wire_fail f = {.code = ERR_INTERNAL};

    snprintf(f.msg, sizeof(f.msg), "an invariant does not hold: %.*s",
             (int)sizeof(f.msg) - 32, why->msg);
    wire_send(conn, WIRE_FAIL, &(struct wire_part){&f, sizeof(f)}, 1, NULL);
    abort();
}

void engine_check_points(const struct handoff_stats *st)
{
    const struct {
        const char *name;
        int n;
    } at[] = {
        {"export_open", st->open},
        {"export_sent", st->exports - st->open - st->quarantined},
        {"export_quarantine", st->quarantined},
        {"import_queued", st->queued},
        {"import_wait", st->waiting - st->losing},
        {"import_pull", st->pulling},
        {"import_lost", st->losing},
        {"import_closing", st->closing},
    };

    for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++)
        if (at[i].n)
            fault_hold(at[i].name, 0);
}
