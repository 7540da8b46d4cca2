/* daemon/ctrl/confmgr_run.c - the fleet made to follow: apply, roll back, rescue.
 *
 *   confmgr_apply --> on_applied --> commit_applied: confirmed, or pending with a
 * deadline | fails confmgr_revert <-----+            why is stored, then the good one is
 * applied
 *        `--> on_applied --> settle_reverted
 *                 | fails
 *   confmgr_rescue           no models; the alarm stays until something can be applied */
#include "daemon/ctrl/confmgr_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "state/store.h"

static void on_applied(void *arg, const struct err *why);

/* ---- the fleet ---- */

int confmgr_work(struct confmgr *m, enum work work, const struct conf *to, struct err *e)
{
    m->work = work;
    if (m->cfg.ops.apply(m->cfg.ops.arg, to, on_applied, m, e) == 0)
        return 0;
    m->work = WORK_NONE;
    return -1;
}

/* ---- back to the good one ---- */

void confmgr_revert_apply(struct confmgr *m)
{
    struct conf *good = NULL;
    struct err e = {0};

    if (confmgr_load(m, m->point.good, &good, NULL, &e) < 0) {
        confmgr_rescue(m, e.msg);
        return;
    }
    confmgr_set_conf(m, good, m->point.good);
    if (confmgr_work(m, WORK_REVERT, good, &e) < 0)
        confmgr_rescue(m, e.msg);
}

void confmgr_revert(struct confmgr *m, enum rev_state side, const struct confmgr_who *who,
                    const char *why)
{
    struct rev_point p = m->point;
    struct rev_change c = {m->id, side, m->why};
    struct guard_window w;
    struct err e;

    if (m->live)
        confmgr_figures(m, m->id, true, m->since_us, &w);
    m->live = false;
    snprintf(m->why, sizeof(m->why), "%s", why);
    m->side = side;
    m->want_revert = false;
    p.phase = REV_PHASE_REVERTING;
    p.deadline_us = p.deadline_ms = 0;
    log_about(LOG_LV_WARN, &(struct log_about){.revision = m->id},
              "revision %lld goes back to %lld: %s", (long long)m->id, (long long)p.good,
              m->why);
    if (confmgr_point(m, &p, &c, 1, who,
                      side == REV_FAILED ? "config.apply" : "config.rollback", m->id,
                      side == REV_FAILED ? "failed" : "ok", m->why, &e) < 0) {
        log_error("%s; the roll-back goes on", e.msg);
        m->point = p;
    }
    STEP(REVERT_STORED);
    confmgr_revert_apply(m);
}

int confmgr_store_reverted(struct confmgr *m, struct err *e)
{
    struct rev_point p = m->point;
    struct rev_change c = {m->id, m->side, m->why};

    p.phase = REV_IDLE;
    p.pending = 0;
    p.running = m->rescue ? 0 : p.good;
    p.deadline_us = p.deadline_ms = 0;
    p.guard = REV_GUARD_OFF;
    return confmgr_point(m, &p, &c, m->id ? 1 : 0, &confmgr_daemon,
                         m->rescue ? "config.rescue" : "config.restored", p.good,
                         m->rescue ? "failed" : "ok", m->rescue ? m->rescue_why : m->why,
                         e);
}

static void settle_reverted(struct confmgr *m)
{
    char message[sizeof(m->last)];
    struct err e;

    m->unsaved = confmgr_store_reverted(m, &e) < 0;
    if (m->unsaved)
        log_error("%s; it is tried again", e.msg);
    if (m->rescue)
        snprintf(message, sizeof(message), "rescue, no models are served: %.400s",
                 m->rescue_why);
    else
        snprintf(message, sizeof(message), "%s, revision %lld runs again: %.400s",
                 rev_state_name(m->side), (long long)m->point.good, m->why);
    confmgr_tell(m, m->id, message);
    if (!m->unsaved)
        m->id = 0;
}

static void reverted(struct confmgr *m)
{
    STEP(REVERT_APPLIED);
    settle_reverted(m);
    STEP(REVERT_DONE);
}

void confmgr_rescue(struct confmgr *m, const char *why)
{
    struct conf *c = confmgr_rescue_conf(m);
    struct err e;

    snprintf(m->rescue_why, sizeof(m->rescue_why),
             "revision %lld cannot be applied: %.450s", (long long)m->point.good, why);
    log_error("rescue: %s", m->rescue_why);
    m->rescue = true;
    if (m->cfg.ops.alarm)
        m->cfg.ops.alarm(m->cfg.ops.arg, "config.rescue", true, m->rescue_why);
    confmgr_set_conf(m, c, 0);
    if (confmgr_work(m, WORK_RESCUE, c, &e) < 0) {
        log_error("%s", e.msg);
        settle_reverted(m);
    }
}

static void left_rescue(struct confmgr *m)
{
    if (m->rescue && m->cfg.ops.alarm)
        m->cfg.ops.alarm(m->cfg.ops.arg, "config.rescue", false, "");
    m->rescue = false;
}

/* ---- forward ---- */

int confmgr_free_to_commit(const struct confmgr *m, struct err *e)
{
    if (m->unsaved)
        return err_set(e, ERR_UNAVAIL,
                       "the last roll-back could not be stored yet; see the log");
    if (m->point.phase == REV_PHASE_PENDING && m->work == WORK_NONE)
        return err_set(
            e, ERR_CONFLICT,
            "revision %lld waits for its confirmation, %lld s are left: "
            "confirm or abort it first",
            (long long)m->point.pending,
            (long long)((m->point.deadline_us - confmgr_now(m)) / CONFMGR_SECOND_US));
    if (m->work == WORK_REVERT || m->work == WORK_RESCUE)
        return err_set(e, ERR_CONFLICT, "revision %lld is being restored",
                       (long long)m->point.good);
    if (m->work != WORK_NONE)
        return err_set(e, ERR_CONFLICT, "revision %lld is being applied",
                       (long long)(m->point.pending ? m->point.pending : m->point.good));
    return 0;
}

int confmgr_apply(struct confmgr *m, int64_t id, struct conf *conf,
                  const struct confmgr_commit *c, const char *what, const char *comment,
                  struct err *e)
{
    int64_t now = confmgr_now(m), span, from, was = confmgr_current(m);
    struct rev_point p = m->point;
    struct rev_change change = {id, REV_APPLYING, ""};
    struct guard_window after;
    struct err why;
    char window[96] = "without a window", detail[400];

    m->confirm = c->confirm || c->guard != REV_GUARD_OFF;
    m->confirm_s = c->confirm_s ? c->confirm_s : CONFMGR_CONFIRM_S;
    m->guard = c->guard;
    if (m->confirm)
        snprintf(window, sizeof(window), "to be confirmed within %lld s%s%s",
                 (long long)m->confirm_s, m->guard ? ", guarded" : "",
                 m->guard == REV_GUARD_AUTO ? ", confirms by itself" : "");
    snprintf(detail, sizeof(detail), "%s%s%s", window, comment[0] ? "; " : "", comment);
    p.phase = REV_PHASE_APPLYING;
    p.pending = id;
    p.guard = m->guard;
    p.deadline_us = p.deadline_ms = 0;
    snprintf(p.boot_id, sizeof(p.boot_id), "%s", m->boot_id);
    if (confmgr_point(m, &p, &change, 1, &c->who, what, id, "ok", detail, e) < 0) {
        conf_unref(conf);
        return -1;
    }
    STEP(INTENT_STORED);
    m->id = id;
    snprintf(m->actor, sizeof(m->actor), "%s", c->who.actor);
    snprintf(m->origin, sizeof(m->origin), "%s", c->who.origin);
    m->want_revert = false;
    m->why[0] = m->verdict[0] = m->last[0] = '\0';
    span = (m->confirm_s > CONFMGR_CONFIRM_S ? m->confirm_s : CONFMGR_CONFIRM_S) *
           CONFMGR_SECOND_US;
    from = now - span > m->since_us ? now - span : m->since_us;
    confmgr_figures(m, was, true, from, &after);
    confmgr_figures(m, id, false, from, &m->before);
    m->target = conf;
    if (confmgr_work(m, WORK_COMMIT, conf, &why) < 0) {
        m->work = WORK_COMMIT;
        on_applied(m, &why);
    }
    return 0;
}

/* Unless somebody has edited it since. */
static void drop_applied_draft(struct confmgr *m)
{
    char *draft = NULL, author[64], hash[REV_HASH_CHARS + 1];
    int64_t base;
    struct err e = {0};

    if (rev_draft_get(m->cfg.store, &draft, &base, author, &e) <= 0)
        return;
    rev_hash(draft, hash);
    if (!strcmp(hash, m->draft_hash) && rev_draft_set(m->cfg.store, NULL, 0, "", &e) < 0)
        log_warn("%s", e.msg);
    free(draft);
}

/* One transaction makes it good. */
int confmgr_store_confirmed(struct confmgr *m, const struct confmgr_who *who,
                            const char *detail, struct err *e)
{
    struct rev_point p = m->point;
    char when[32], why[128];
    struct rev_change c[2] = {{m->id, REV_CONFIRMED, why}, {p.good, REV_SUPERSEDED, ""}};
    time_t now = (time_t)(clock_wall_ms() / 1000);
    struct tm tm;

    strftime(when, sizeof(when), "%Y-%m-%d %H:%M:%S UTC", gmtime_r(&now, &tm));
    snprintf(why, sizeof(why), "by %s at %s", who->actor, when);

    p.phase = REV_IDLE;
    p.running = p.good = m->id;
    p.pending = 0;
    p.deadline_us = p.deadline_ms = 0;
    p.guard = REV_GUARD_OFF;
    return confmgr_point(m, &p, c, c[1].id && c[1].id != m->id ? 2 : 1, who,
                         "config.confirm", m->id, "ok", detail, e);
}

static int store_pending(struct confmgr *m, struct err *e)
{
    struct rev_point p = m->point;
    struct rev_change c = {m->id, REV_PENDING, ""};
    char detail[96];

    p.phase = REV_PHASE_PENDING;
    p.running = m->id;
    p.deadline_us = confmgr_now(m) + m->confirm_s * CONFMGR_SECOND_US;
    p.deadline_ms = clock_wall_ms() + m->confirm_s * 1000;
    snprintf(detail, sizeof(detail), "applied; %lld s to confirm it",
             (long long)m->confirm_s);
    return confmgr_point(m, &p, &c, 1, &confmgr_daemon, "config.apply", m->id, "ok",
                         detail, e);
}

/* The new one runs. */
static void commit_applied(struct confmgr *m)
{
    const struct confmgr_who who = {m->actor, m->origin};
    char message[256];
    int64_t id = m->id;
    struct err e;
    int rc;

    STEP(APPLIED);
    rc = m->want_revert ? 0
         : m->confirm   ? store_pending(m, &e)
                        : confmgr_store_confirmed(m, &who, "", &e);
    confmgr_set_conf(m, m->target, m->id);
    m->target = NULL;
    if (m->want_revert || rc < 0) {
        char why[sizeof(m->why)];

        snprintf(why, sizeof(why), "%s", m->want_revert ? m->why : e.msg);
        confmgr_revert(m, rc < 0 ? REV_FAILED : REV_ROLLED_BACK, &who, why);
        return;
    }
    if (m->confirm)
        STEP(PENDING_STORED);
    else
        STEP(CONFIRM_STORED);
    left_rescue(m);
    confmgr_look_from(m);
    drop_applied_draft(m);
    confmgr_prune(m);
    snprintf(message, sizeof(message), "%s%s%s",
             m->confirm ? "runs, waits for its confirmation" : "runs",
             m->restart[0] ? "; with the next start of the daemon: " : "", m->restart);
    m->live = m->confirm;
    if (!m->confirm)
        m->id = 0;
    confmgr_tell(m, id, message);
}

/* The good one, at the start. Its engines are the supervisors' affair. */
static void started(struct confmgr *m, const struct err *why)
{
    if (!why) {
        left_rescue(m);
        return;
    }
    confmgr_tell(m, 0, why->msg);
    confmgr_note(m, &confmgr_daemon, "config.apply", m->point.running, "failed",
                 why->msg);
}

static void resumed(struct confmgr *m, const struct err *why)
{
    char text[sizeof(m->why)];

    if (m->point.phase != REV_PHASE_PENDING) { /* confirmed meanwhile */
        started(m, why);
        return;
    }
    confmgr_look_from(m);
    m->since_us = confmgr_now(m);
    m->live = !why;
    if (why)
        snprintf(text, sizeof(text), "after a restart: %.480s", why->msg);
    else
        snprintf(text, sizeof(text), "%s", m->why);
    if (why || m->want_revert)
        confmgr_revert(m, REV_ROLLED_BACK, &confmgr_daemon, text);
}

static void on_applied(void *arg, const struct err *why)
{
    struct confmgr *m = arg;
    enum work work = m->work;

    m->work = WORK_NONE;
    if (work == WORK_START) {
        started(m, why);
    } else if (work == WORK_RESUME) {
        resumed(m, why);
    } else if (work == WORK_COMMIT && why) {
        conf_unref(m->target);
        m->target = NULL;
        confmgr_revert(m, REV_FAILED, &confmgr_daemon, why->msg);
    } else if (work == WORK_COMMIT) {
        commit_applied(m);
    } else if (work == WORK_REVERT && why) {
        confmgr_rescue(m, why->msg);
    } else if (work == WORK_REVERT) {
        left_rescue(m);
        reverted(m);
    } else if (work == WORK_RESCUE) {
        if (why)
            log_error("%s", why->msg);
        settle_reverted(m);
    }
}
