/* daemon/api/upkeep.c - maintenance, and the level of the log. */
#include "daemon/api/upkeep.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "daemon/api/conn.h"
#include "daemon/api/handler.h"
#include "daemon/api/server.h"
#include "state/setting.h"
#include "state/store.h"

static void set(struct http *h, bool on, const char *reason)
{
    pthread_mutex_lock(&h->upkeep_lock);
    snprintf(h->upkeep_reason, sizeof(h->upkeep_reason), "%s", reason);
    pthread_mutex_unlock(&h->upkeep_lock);
    atomic_store(&h->upkeep, on);
}

int upkeep_load(struct http *h, struct err *e)
{
    char *reason = NULL;
    int rc = h->cfg.store ? setting_get(h->cfg.store, "maintenance", &reason, e) : 0;

    if (rc == 1) {
        set(h, true, reason);
        log_warn("maintenance: no inference until an operator ends it (%s)", reason);
    }
    free(reason);
    return rc < 0 ? -1 : 0;
}

bool upkeep_on(struct http *h, char reason[UPKEEP_REASON])
{
    bool on = atomic_load(&h->upkeep);

    pthread_mutex_lock(&h->upkeep_lock);
    snprintf(reason, UPKEEP_REASON, "%s", on ? h->upkeep_reason : "");
    pthread_mutex_unlock(&h->upkeep_lock);
    return on;
}

int upkeep_check(struct http *h, struct err *e)
{
    char reason[UPKEEP_REASON];

    if (!atomic_load(&h->upkeep) || !upkeep_on(h, reason))
        return 0;
    return err_set(e, ERR_UNAVAIL, "the server is in maintenance%s%s",
                   reason[0] ? ": " : "", reason);
}

void control_maintenance(struct conn *c)
{
    struct store *s = handler_store(c);
    const char *reason = "";
    json_t *root = NULL;
    struct reply r;
    struct err e;
    bool on;
    int rc;

    if (!s)
        return;
    if (body_object(c, "on reason", &root, &e) < 0 ||
        (rc = js_get_bool(root, "on", &on, &e)) < 0 ||
        body_text(root, "reason", UPKEEP_REASON - 1, &reason, &e) < 0)
        goto fail;
    if (rc == 0) {
        err_param(&e, ERR_INVALID, "on", "on is required: true or false");
        goto fail;
    }
    if (handler_note(c, on ? "maintenance.enter" : "maintenance.leave", "", "ok", reason,
                     &e) < 0 ||
        setting_put(s, "maintenance", on ? reason : NULL, &e) < 0)
        goto fail;
    set(c->h, on, reason);
    reply_open(&r);
    jw_kbool(&r.w, "on", on);
    jw_kstr(&r.w, "reason", reason);
    reply_send(c, &r, 200);
    json_decref(root);
    return;

fail:
    conn_answer_err(c, &e);
    json_decref(root);
}

void control_log_set(struct conn *c)
{
    const char *name = NULL;
    json_t *root = NULL;
    struct reply r;
    struct err e;
    int level = -1;

    if (!handler_store(c))
        return;
    if (body_object(c, "level", &root, &e) == 0 &&
        js_get_str(root, "level", &name, NULL, &e) >= 0) {
        level = name ? log_level_parse(name) : -1;
        if (level < 0)
            err_param(&e, ERR_INVALID, "level",
                      "level must be one of error, warn, info, debug");
    }
    if (level < 0 || handler_note(c, "log.level", name, "ok", "", &e) < 0) {
        conn_answer_err(c, &e);
    } else {
        log_level_set((enum log_level)level);
        reply_open(&r);
        jw_kstr(&r.w, "level", log_level_name((enum log_level)level));
        reply_send(c, &r, 200);
    }
    json_decref(root);
}
