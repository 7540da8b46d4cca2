/* daemon/ctrl/confmgr_window.c - the window between applied and confirmed: figures before
 * and after, confirmation, abort, deadline, guard. */
#include "daemon/ctrl/confmgr_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"

enum { LOOK_US = 2 * CONFMGR_SECOND_US };

/* ---- figures before and after ---- */

static void put_figures(struct confmgr *m, int64_t from_us, struct buf *b,
                        struct guard_window *ret)
{
    struct buf more;
    struct jw w;

    m->cfg.ops.window(m->cfg.ops.arg, from_us, ret);
    jw_init(&w, b);
    jw_obj(&w);
    jw_kint(&w, "requests", ret->n);
    jw_kint(&w, "met", ret->met);
    jw_kint(&w, "errors", ret->errors);
    jw_kbool(&w, "ready", ret->ready);
    jw_knum(&w, "window_s", (double)(confmgr_now(m) - from_us) / CONFMGR_SECOND_US);
    buf_init(&more, CONFMGR_FIGURES_MAX);
    if (m->cfg.ops.figures)
        m->cfg.ops.figures(m->cfg.ops.arg, from_us, &more);
    if (more.len && !more.over) {
        jw_key(&w, "slo");
        jw_raw(&w, more.p);
    }
    buf_done(&more);
    jw_obj_end(&w);
}

void confmgr_figures(struct confmgr *m, int64_t id, bool after, int64_t from_us,
                     struct guard_window *ret)
{
    struct buf b;
    struct err e;

    if (!m->cfg.ops.window || !id)
        return;
    buf_init(&b, 0);
    put_figures(m, from_us, &b, ret);
    if (revision_set_metrics(m->cfg.store, id, after ? NULL : b.p, after ? b.p : NULL,
                             &e) < 0)
        log_about(LOG_LV_WARN, &(struct log_about){.revision = id},
                  "figures of revision %lld: %s", (long long)id, e.msg);
    buf_done(&b);
}

/* The window before, from the store: the commit was made by a daemon before this one. */
void confmgr_read_before(struct confmgr *m, const char *json)
{
    static const struct js_limits lim = {CONFMGR_FIGURES_MAX + 4096, 16};
    json_t *root = NULL;
    struct err e;

    memset(&m->before, 0, sizeof(m->before));
    if (!json || !json[0] || js_parse(json, strlen(json), &lim, &root, &e) < 0)
        return;
    if (js_get_int(root, "requests", 0, INT64_MAX, &m->before.n, &e) < 0 ||
        js_get_int(root, "met", 0, INT64_MAX, &m->before.met, &e) < 0 ||
        js_get_int(root, "errors", 0, INT64_MAX, &m->before.errors, &e) < 0 ||
        js_get_bool(root, "ready", &m->before.ready, &e) < 0)
        memset(&m->before, 0, sizeof(m->before));
    json_decref(root);
}

/* ---- confirm, abort, deadline, guard ---- */

/* Nothing is pending: was the last one confirmed, or what became of it? */
static int confirm_late(struct confmgr *m, int64_t *ret_id, struct err *e)
{
    struct revision r = {0};
    int n = revision_list(m->cfg.store, 0, &r, 1, e);

    if (n < 0)
        return -1;
    if (n == 0)
        return err_set(e, ERR_CONFLICT, "no revision waits for a confirmation");
    if (r.state != REV_CONFIRMED) {
        err_set(e, ERR_CONFLICT,
                "nothing waits for a confirmation: revision %lld is %s%s%s",
                (long long)r.id, rev_state_name(r.state), r.why[0] ? ": " : "", r.why);
        revision_done(&r);
        return -1;
    }
    err_set(e, ERR_OK, "revision %lld was already confirmed %s", (long long)r.id, r.why);
    *ret_id = r.id;
    revision_done(&r);
    return 1;
}

static int confirm(struct confmgr *m, const struct confmgr_who *who, const char *detail,
                   struct err *e)
{
    struct guard_window w;
    int64_t id = m->id;

    STEP(CONFIRM_BEFORE);
    if (confmgr_store_confirmed(m, who, detail, e) < 0)
        return -1;
    STEP(CONFIRM_STORED);
    confmgr_figures(m, id, true, m->since_us, &w);
    m->live = false;
    m->id = 0;
    confmgr_tell(m, id, "confirmed");
    return 0;
}

int confmgr_confirm(struct confmgr *m, const struct confmgr_who *who, int64_t *ret_id,
                    struct err *e)
{
    int rc;

    if (m->point.phase == REV_IDLE) {
        rc = confirm_late(m, ret_id, e);
    } else if (m->point.phase != REV_PHASE_PENDING || m->want_revert) {
        rc = err_set(e, ERR_CONFLICT, "revision %lld %s", (long long)m->point.pending,
                     m->point.phase == REV_PHASE_APPLYING ? "is still being applied"
                                                          : "is being rolled back");
    } else {
        *ret_id = m->id;
        rc = confirm(m, who, "", e);
    }
    return rc < 0 ? confmgr_refused(m, who, "config.confirm", m->point.pending, e) : rc;
}

int confmgr_abort(struct confmgr *m, const struct confmgr_who *who, const char *why,
                  int64_t *ret_id, struct err *e)
{
    char text[256];

    if (m->point.phase != REV_PHASE_APPLYING && m->point.phase != REV_PHASE_PENDING) {
        err_set(e, ERR_CONFLICT, "nothing is pending that could be aborted");
        return confmgr_refused(m, who, "config.abort", 0, e);
    }
    *ret_id = m->id;
    snprintf(text, sizeof(text), "aborted by %s%s%.150s", who->actor, why[0] ? ": " : "",
             why);
    if (m->work == WORK_NONE) {
        confmgr_revert(m, REV_ROLLED_BACK, who, text);
        return 0;
    }
    confmgr_note(m, who, "config.abort", m->id, "ok", text);
    m->want_revert = true;
    snprintf(m->why, sizeof(m->why), "%s", text);
    return 0;
}

/* A share is held against the revision only with a quarter more requests than at the last
 * look: many looks at the same ones would make noise break the bound sooner or later.
 * Readiness and the last look count at once. */
static enum guard_verdict judge(struct confmgr *m, bool last)
{
    char sentence[sizeof(m->verdict)];
    struct guard_window now;
    enum guard_verdict v;
    bool lost;

    m->cfg.ops.window(m->cfg.ops.arg, m->since_us, &now);
    lost = m->before.ready && !now.ready;
    if (!last && !lost && now.n < m->look_n)
        return GUARD_GOOD;
    v = guard_judge(&m->before, &now, m->conf->guard.min_requests,
                    m->conf->guard.confidence, sentence);
    memcpy(m->verdict, sentence, sizeof(sentence));
    if (v != GUARD_INSUFFICIENT)
        m->look_n = now.n + (now.n + 3) / 4;
    return v;
}

static void expire(struct confmgr *m)
{
    char why[sizeof(m->why)];
    struct err e;

    if (m->live && m->guard != REV_GUARD_OFF && m->cfg.ops.window) {
        enum guard_verdict v = judge(m, true);

        if (v == GUARD_GOOD && m->guard == REV_GUARD_AUTO) {
            if (confirm(m, &confmgr_guard, m->verdict, &e) == 0)
                return;
            log_error("%s", e.msg);
        }
        if (v == GUARD_WORSE) {
            snprintf(why, sizeof(why), "%s", m->verdict);
            confmgr_revert(m, REV_ROLLED_BACK, &confmgr_guard, why);
            return;
        }
    }
    snprintf(why, sizeof(why), "not confirmed in time%s%s", m->verdict[0] ? "; " : "",
             m->verdict);
    if (m->work == WORK_NONE) {
        confmgr_revert(m, REV_ROLLED_BACK, &confmgr_daemon, why);
    } else if (!m->want_revert) {
        m->want_revert = true;
        snprintf(m->why, sizeof(m->why), "%s", why);
    }
}

void confmgr_look_from(struct confmgr *m)
{
    m->look_us = confmgr_now(m) + LOOK_US;
    m->look_n = 0;
}

static void look(struct confmgr *m)
{
    m->look_us = confmgr_now(m) + LOOK_US;
    if (judge(m, false) == GUARD_WORSE) {
        char why[sizeof(m->verdict)];

        memcpy(why, m->verdict, sizeof(why));
        confmgr_revert(m, REV_ROLLED_BACK, &confmgr_guard, why);
    }
}

int64_t confmgr_tick(struct confmgr *m, int64_t now)
{
    struct err e;
    bool guarded;

    if (m->unsaved && m->work == WORK_NONE) {
        m->unsaved = confmgr_store_reverted(m, &e) < 0;
        if (!m->unsaved)
            m->id = 0;
    }
    if (m->point.phase == REV_PHASE_PENDING && now >= m->point.deadline_us)
        expire(m);
    guarded = m->live && m->guard != REV_GUARD_OFF && m->cfg.ops.window;
    if (guarded && now >= m->look_us) {
        look(m);
        guarded = m->live;
    }
    if (m->unsaved)
        return now + CONFMGR_SECOND_US;
    if (m->point.phase != REV_PHASE_PENDING || m->want_revert)
        return -1;
    return guarded && m->look_us < m->point.deadline_us ? m->look_us
                                                        : m->point.deadline_us;
}
