/* state/setting.c - small facts, in the table meta beside the store's own. */
#include "state/setting.h"

#include <string.h>

#include "base/err.h"
#include "state/store_impl.h"

int setting_put(struct store *s, const char *name, const char *text, struct err *e)
{
    int rc =
        text ? stmt_run(s, e,
                        "INSERT INTO meta(key, value) VALUES('setting.' || ?, ?)"
                        " ON CONFLICT(key) DO UPDATE SET value = excluded.value",
                        "tb", name, text, (int)strlen(text))
             : stmt_run(s, e, "DELETE FROM meta WHERE key = 'setting.' || ?", "t", name);

    return rc < 0 ? -1 : 0;
}

int setting_get(struct store *s, const char *name, char **ret, struct err *e)
{
    struct stmt *st =
        stmt_open(s, e, "SELECT value FROM meta WHERE key = 'setting.' || ?", "t", name);
    int rc = stmt_step(s, st, e);

    if (rc == 1)
        *ret = stmt_dup(st, 0);
    stmt_close(st);
    return rc;
}
