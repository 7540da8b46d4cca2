/* daemon/ctrl/confmgr.c - revisions in the store: what is written when, and the start.
 *
 * One commit is in progress at a time and the fleet does one thing at a time (enum work).
 * A transition is: write the point, the state of the revision and the journal row in one
 * transaction; then act. When the act ends (confmgr_run.c), the next transition follows.
 * So the store always says what was meant, and confmgr_start needs no more than the
 * store.
 *
 * A store that cannot be written (full, read-only) stops a commit before it begins; a
 * roll-back goes on without it, for the service comes first: the store then still says
 * "applying" or "pending", which the next start would roll back too, and the row is
 * written as soon as that is possible (unsaved). */
#include "daemon/ctrl/confmgr_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "state/store.h"

enum { ORPHANS = 16, OVERRIDES_MAX = 64 };

const struct confmgr_who confmgr_daemon = {"daemon", ""}, confmgr_guard = {"guard", ""};

int64_t confmgr_now(const struct confmgr *m) { return clock_now_us(m->cfg.clock); }

int64_t confmgr_current(const struct confmgr *m)
{
    return m->point.running ? m->point.running : m->point.good;
}

/* ---- journal and store ---- */

static struct journal_note note_of(const struct confmgr_who *who, const char *what,
                                   char subject[24], int64_t id, const char *result,
                                   const char *detail)
{
    snprintf(subject, 24, "%lld", (long long)id);
    return (struct journal_note){who->actor, who->origin, what, subject, result, detail};
}

void confmgr_note(struct confmgr *m, const struct confmgr_who *who, const char *what,
                  int64_t id, const char *result, const char *detail)
{
    char subject[24];
    struct journal_note n = note_of(who, what, subject, id, result, detail);
    struct err e;

    if (journal_note(m->cfg.store, &n, &e) < 0)
        log_error("%s", e.msg);
}

int confmgr_refused(struct confmgr *m, const struct confmgr_who *who, const char *what,
                    int64_t id, const struct err *e)
{
    confmgr_note(m, who, what, id, "refused", e->msg);
    return -1;
}

int confmgr_point(struct confmgr *m, const struct rev_point *p,
                  const struct rev_change *c, int n, const struct confmgr_who *who,
                  const char *what, int64_t id, const char *result, const char *detail,
                  struct err *e)
{
    char subject[24];
    struct journal_note note = note_of(who, what, subject, id, result, detail);

    if (rev_point_set(m->cfg.store, p, c, n, &note, e) < 0)
        return -1;
    m->point = *p;
    return 0;
}

int confmgr_fault_err(const struct conf_faults *f, struct err *e)
{
    const struct conf_fault *x = &f->v[0];
    bool named = !x->path[0] || strstr(x->msg, x->path);
    char where[64] = "", more[48] = "";

    if (x->line)
        snprintf(where, sizeof(where), "line %d, column %d: ", x->line, x->column);
    if (f->n > 1)
        snprintf(more, sizeof(more), " (and %d more)", f->n - 1);
    return err_param(e, ERR_INVALID, x->path[0] ? x->path : "text", "%s%s%s%s%s", where,
                     named ? "" : x->path, named ? "" : ": ", x->msg, more);
}

int confmgr_load(struct confmgr *m, int64_t id, struct conf **ret, bool *ret_own,
                 struct err *e)
{
    struct conf_faults *f = xcalloc(1, sizeof(*f));
    struct conf *plain = NULL;
    char *text = NULL;
    int rc = confmgr_text(m, id, &text, NULL, e);

    if (rc == 0)
        rc = conf_parse(text, strlen(text), m->cfg.over, m->cfg.n_over, ret, f);
    if (rc < 0 && f->n)
        confmgr_fault_err(f, e);
    if (ret_own)
        *ret_own =
            rc < 0 && text && conf_parse(text, strlen(text), NULL, 0, &plain, f) == 0;
    conf_unref(plain);
    free(text);
    free(f);
    return rc;
}

/* No models; what the command line says of listeners and log stays. */
struct conf *confmgr_rescue_conf(struct confmgr *m)
{
    struct conf_override keep[OVERRIDES_MAX];
    struct conf_faults *f = xcalloc(1, sizeof(*f));
    struct conf *c = NULL;
    int n = 0;

    for (int i = 0; i < m->cfg.n_over && n < OVERRIDES_MAX; i++)
        if (strncmp(m->cfg.over[i].path, "instances.", 10) &&
            strncmp(m->cfg.over[i].path, "models.", 7))
            keep[n++] = m->cfg.over[i];
    if (conf_parse("", 0, keep, n, &c, f) < 0)
        conf_parse("", 0, NULL, 0, &c, f);
    free(f);
    return c;
}

void confmgr_set_conf(struct confmgr *m, struct conf *c, int64_t id)
{
    if (m->conf != c)
        conf_unref(m->conf);
    m->conf = c;
    m->since_us = confmgr_now(m);
    if (m->cfg.ops.runs)
        m->cfg.ops.runs(m->cfg.ops.arg, c, id);
}

void confmgr_prune(struct confmgr *m)
{
    struct err e;

    if (revision_prune(m->cfg.store, CONFMGR_TEXTS, &e) < 0)
        log_warn("old revisions: %s", e.msg);
}

void confmgr_tell(struct confmgr *m, int64_t id, const char *message)
{
    m->last_id = id;
    snprintf(m->last, sizeof(m->last), "%s", message);
    log_about(LOG_LV_INFO, &(struct log_about){.revision = id ? id : m->point.good},
              "revision %lld: %s", (long long)(id ? id : m->point.good), message);
}

bool confmgr_settled(struct confmgr *m, int64_t id, enum rev_state *ret,
                     char message[512])
{
    struct revision r = {0};
    struct err e;

    if ((m->id == id && (m->work != WORK_NONE || m->unsaved)) ||
        revision_get(m->cfg.store, id, &r, &e) < 0)
        return false;
    *ret = r.state;
    if (m->last_id == id)
        snprintf(message, 512, "%s", m->last);
    else
        snprintf(message, 512, "%s%s%.490s", rev_state_name(r.state),
                 r.why[0] ? ": " : "", r.why);
    revision_done(&r);
    return true;
}

/* ---- start ---- */

/* A crash between the two steps of a commit, or of the seed, left it without a point. */
static int settle_orphans(struct confmgr *m, struct err *e)
{
    struct revision *r = xcalloc(ORPHANS, sizeof(*r));
    struct rev_change c[ORPHANS];
    int n = revision_list(m->cfg.store, 0, r, ORPHANS, e), k = 0, rc = 0;

    for (int i = 0; i < n; i++) {
        if (r[i].id != m->point.pending && r[i].state <= REV_PENDING)
            c[k++] = (struct rev_change){r[i].id, REV_DISCARDED,
                                         "the daemon ended before it was applied"};
        revision_done(&r[i]);
    }
    free(r);
    if (n < 0)
        return -1;
    if (k)
        rc = confmgr_point(m, &m->point, c, k, &confmgr_daemon, "config.discard", c[0].id,
                           "ok", c[0].why, e);
    return rc;
}

/* Revision 1. It is there already when the last start was cut off after the first step.
 */
static int seed(struct confmgr *m, struct err *e)
{
    struct conf_faults *f = xcalloc(1, sizeof(*f));
    struct revision r = {0};
    struct rev_point p = {0};
    struct rev_change c = {0, REV_CONFIRMED, ""};
    struct conf *conf = NULL;
    int rc = conf_parse(m->seed, strlen(m->seed), NULL, 0, &conf, f);

    if (rc < 0)
        confmgr_fault_err(f, e);
    conf_unref(conf);
    free(f);
    if (rc < 0 || revision_list(m->cfg.store, 0, &r, 1, e) < 0)
        return -1;
    if (!r.id) {
        r = (struct revision){.state = REV_CHECKED, .at_ms = clock_wall_ms()};
        snprintf(r.author, sizeof(r.author), "daemon");
        snprintf(r.comment, sizeof(r.comment), "seed");
        r.text = xstrdup(m->seed);
        rc = revision_put(m->cfg.store, &r, e);
    }
    p.running = p.good = c.id = r.id;
    snprintf(p.boot_id, sizeof(p.boot_id), "%s", m->boot_id);
    if (rc == 0)
        rc = confmgr_point(m, &p, &c, 1, &confmgr_daemon, "config.seed", c.id, "ok",
                           r.hash, e);
    revision_done(&r);
    return rc;
}

static bool resumes(const struct confmgr *m)
{
    return m->point.phase == REV_PHASE_PENDING && !strcmp(m->point.boot_id, m->boot_id);
}

int confmgr_new(const struct confmgr_cfg *cfg, struct confmgr **ret, struct err *e)
{
    struct confmgr *m = xcalloc(1, sizeof(*m));
    bool own = false;

    m->cfg = *cfg;
    m->boot_id = xstrdup(cfg->boot_id);
    m->seed = xstrdup(cfg->seed ? cfg->seed : "");
    m->since_us = confmgr_now(m);
    if (rev_point_get(cfg->store, &m->point, e) < 0 || (!m->point.good && seed(m, e) < 0))
        goto fail;
    if (resumes(m))
        m->unreadable = confmgr_load(m, m->point.pending, &m->conf, &own, e) < 0;
    if (own)
        goto fail;
    if (!m->conf && confmgr_load(m, m->point.good, &m->conf, &own, e) < 0) {
        if (own)
            goto fail;
        m->conf = confmgr_rescue_conf(m);
        m->rescue = true;
        snprintf(m->rescue_why, sizeof(m->rescue_why), "%s", e->msg);
    }
    *ret = m;
    return 0;

fail:
    confmgr_free(m);
    return err_wrap(e, "configuration");
}

void confmgr_free(struct confmgr *m)
{
    if (!m)
        return;
    conf_unref(m->conf);
    conf_unref(m->target);
    free(m->boot_id);
    free(m->seed);
    free(m);
}

/* The first restart inside a window gives some grace; more of them would put the deadline
 * off for ever. The revision remembers it. */
static int resume(struct confmgr *m, struct err *e)
{
    struct revision r = {0};
    struct rev_point p = m->point;
    struct rev_change c = {p.pending, REV_PENDING,
                           "the daemon was started again inside the window"};
    int64_t least = confmgr_now(m) + (int64_t)CONFMGR_GRACE_S * CONFMGR_SECOND_US, left;
    char detail[64];
    bool first;

    if (revision_get(m->cfg.store, p.pending, &r, e) < 0)
        return -1;
    first = !r.why[0];
    confmgr_read_before(m, r.before);
    revision_done(&r);
    m->confirm = true;
    m->guard = p.guard;
    if (first && p.deadline_us < least) {
        p.deadline_ms += (least - p.deadline_us) / 1000;
        p.deadline_us = least;
    }
    left = p.deadline_us - confmgr_now(m);
    snprintf(detail, sizeof(detail), "%lld s are left",
             (long long)(left > 0 ? left / CONFMGR_SECOND_US : 0));
    if (confmgr_point(m, &p, &c, 1, &confmgr_daemon, "config.resume", m->id, "ok", detail,
                      e) < 0)
        return -1;
    if (m->unreadable)
        confmgr_revert(m, REV_ROLLED_BACK, &confmgr_daemon, "it cannot be read any more");
    else if (left <= 0)
        confmgr_revert(m, REV_ROLLED_BACK, &confmgr_daemon, "not confirmed in time");
    else {
        confmgr_set_conf(m, m->conf, m->id);
        if (confmgr_work(m, WORK_RESUME, m->conf, e) < 0)
            confmgr_revert(m, REV_ROLLED_BACK, &confmgr_daemon, e->msg);
    }
    return 0;
}

static int start_good(struct confmgr *m, struct err *e)
{
    struct rev_point p = m->point;

    if (m->rescue) {
        char why[sizeof(m->rescue_why)];

        memcpy(why, m->rescue_why, sizeof(why));
        confmgr_rescue(m, why);
        return 0;
    }
    p.running = p.good;
    if (m->point.running != p.running &&
        confmgr_point(m, &p, NULL, 0, &confmgr_daemon, "config.apply", p.good, "ok",
                      "tried again after a rescue", e) < 0)
        return -1;
    confmgr_set_conf(m, m->conf, p.good);
    if (confmgr_work(m, WORK_START, m->conf, e) < 0)
        confmgr_rescue(m, e->msg);
    return 0;
}

/* A roll-back that was cut off. */
static int revert_on(struct confmgr *m, struct err *e)
{
    struct revision r = {0};

    if (revision_get(m->cfg.store, m->id, &r, e) < 0)
        return -1;
    m->side = r.state;
    snprintf(m->why, sizeof(m->why), "%s", r.why);
    revision_done(&r);
    confmgr_revert_apply(m);
    return 0;
}

int confmgr_start(struct confmgr *m, struct err *e)
{
    if (settle_orphans(m, e) < 0)
        return -1;
    m->id = m->point.pending;
    switch (m->point.phase) {
    case REV_IDLE:
        return start_good(m, e);
    case REV_PHASE_PENDING:
        if (resumes(m))
            return resume(m, e);
        confmgr_revert(m, REV_ROLLED_BACK, &confmgr_daemon,
                       "the machine was started again before it was confirmed");
        return 0;
    case REV_PHASE_APPLYING:
        confmgr_revert(m, REV_ROLLED_BACK, &confmgr_daemon,
                       "the daemon ended while it was applied");
        return 0;
    default: /* REVERTING */
        return revert_on(m, e);
    }
}

/* ---- state ---- */

void confmgr_status(const struct confmgr *m, struct confmgr_status *ret)
{
    int64_t left = m->point.deadline_us - confmgr_now(m);

    memset(ret, 0, sizeof(*ret));
    ret->point = m->point;
    ret->left_us = m->point.phase != REV_PHASE_PENDING ? -1 : left > 0 ? left : 0;
    ret->applying =
        m->work == WORK_START || m->work == WORK_RESUME || m->work == WORK_COMMIT;
    ret->reverting = m->work == WORK_REVERT || m->work == WORK_RESCUE;
    ret->rescue = m->rescue;
    snprintf(ret->verdict, sizeof(ret->verdict), "%s", m->verdict);
    snprintf(ret->last, sizeof(ret->last), "%.255s", m->last);
}

struct conf *confmgr_conf(struct confmgr *m) { return conf_ref(m->conf); }
