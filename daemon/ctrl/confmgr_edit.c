/* daemon/ctrl/confmgr_edit.c - drafts, checks and differences, and what of them becomes a
 * revision.
 *
 * There is one draft, with the revision it began from. A commit is refused when another
 * revision runs by then, with what the draft misses; rebase lays its changes upon that.
 */
#include "daemon/ctrl/confmgr_int.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/mem.h"
#include "state/store.h"

enum { CONFIRM_MAX_S = 30 * 24 * 3600, LIST = 32 };

/* ---- texts ---- */

int confmgr_text(struct confmgr *m, int64_t ref, char **ret, int64_t *ret_id,
                 struct err *e)
{
    int64_t id = ref == CONFMGR_RUNNING ? confmgr_current(m) : ref, base;
    struct revision r = {0};
    char author[64];
    int rc;

    if (ret_id)
        *ret_id = ref == CONFMGR_DRAFT ? 0 : id;
    if (ref == CONFMGR_DRAFT) {
        rc = rev_draft_get(m->cfg.store, ret, &base, author, e);
        return rc > 0 ? 0
               : rc   ? -1
                      : err_set(e, ERR_NOTFOUND,
                                "there is no draft: set, load or edit makes one");
    }
    if (revision_get(m->cfg.store, id, &r, e) < 0)
        return -1;
    *ret = r.text;
    r.text = NULL;
    revision_done(&r);
    if (*ret)
        return 0;
    return err_set(e, ERR_NOTFOUND, "the text of revision %lld was removed for its age",
                   (long long)id);
}

/* NULL when the text has faults. */
static struct conf *parse(struct confmgr *m, const char *text, struct conf_faults *f)
{
    struct conf *c = NULL;

    conf_parse(text, strlen(text), m->cfg.over, m->cfg.n_over, &c, f);
    return c;
}

static void put_change(void *arg, const struct conf_change *c)
{
    struct jw *w = arg;

    jw_obj(w);
    jw_kstr(w, "path", c->path);
    jw_kstr(w, "from", c->from);
    jw_kstr(w, "to", c->to);
    jw_kstr(w, "class", conf_class_name(c->class));
    jw_obj_end(w);
}

static void put_changes(struct jw *w, const struct conf *a, const struct conf *b)
{
    jw_key(w, "changes");
    jw_arr(w);
    if (a && b)
        conf_diff(a, b, put_change, w);
    jw_arr_end(w);
}

static void name_ref(int64_t ref, int64_t id, char *ret, size_t cap)
{
    if (ref == CONFMGR_DRAFT)
        snprintf(ret, cap, "draft");
    else
        snprintf(ret, cap, "revision %lld%s", (long long)id,
                 ref == CONFMGR_RUNNING ? " (running)" : "");
}

static void put_diff(struct confmgr *m, const char *a, const char *b, const char *name_a,
                     const char *name_b, struct buf *json)
{
    struct conf_faults *f = xcalloc(1, sizeof(*f));
    struct conf *ca = parse(m, a, f), *cb = parse(m, b, f);
    struct buf text;
    struct jw w;

    buf_init(&text, 0);
    conf_text_diff(a, b, name_a, name_b, &text);
    jw_init(&w, json);
    jw_obj(&w);
    jw_kstr(&w, "from", name_a);
    jw_kstr(&w, "to", name_b);
    jw_kstr(&w, "text", text.p ? text.p : "");
    put_changes(&w, ca, cb);
    jw_obj_end(&w);
    buf_done(&text);
    conf_unref(ca);
    conf_unref(cb);
    free(f);
}

int confmgr_diff(struct confmgr *m, int64_t from, int64_t to, struct buf *json,
                 struct err *e)
{
    char *a = NULL, *b = NULL, name_a[48], name_b[48];
    int64_t ia, ib;
    int rc = -1;

    if (confmgr_text(m, from, &a, &ia, e) == 0 && confmgr_text(m, to, &b, &ib, e) == 0) {
        name_ref(from, ia, name_a, sizeof(name_a));
        name_ref(to, ib, name_b, sizeof(name_b));
        put_diff(m, a, b, name_a, name_b, json);
        rc = 0;
    }
    free(a);
    free(b);
    return rc;
}

/* ---- drafts ---- */

int confmgr_draft(struct confmgr *m, const struct confmgr_who *who, const char *text,
                  int64_t base, struct err *e)
{
    struct revision r = {0};

    if (text && strlen(text) > CONF_MAX_TEXT)
        return err_set(e, ERR_TOOBIG, "a configuration has at most %d bytes",
                       CONF_MAX_TEXT);
    if (text && base) {
        if (revision_get(m->cfg.store, base, &r, e) < 0)
            return -1;
        revision_done(&r);
    }
    base = base ? base : confmgr_current(m);
    if (rev_draft_set(m->cfg.store, text, text ? base : 0, who->actor, e) < 0)
        return -1;
    confmgr_note(m, who, text ? "config.draft" : "config.discard", base, "ok", "");
    return 0;
}

/* ---- check ---- */

static void put_faults(struct jw *w, const struct conf_faults *f)
{
    int n = f->n < CONF_MAX_FAULTS ? f->n : CONF_MAX_FAULTS;

    jw_key(w, "faults");
    jw_arr(w);
    for (int i = 0; i < n; i++) {
        jw_obj(w);
        jw_kint(w, "line", f->v[i].line);
        jw_kint(w, "column", f->v[i].column);
        jw_kstr(w, "path", f->v[i].path);
        jw_kstr(w, "message", f->v[i].msg);
        jw_obj_end(w);
    }
    jw_arr_end(w);
    jw_kint(w, "fault_count", f->n);
}

/* "ok" comes last: what is described decides it too. */
static int put_check(struct confmgr *m, const struct conf *c, const struct conf_faults *f,
                     struct buf *json, struct err *e)
{
    struct conf *running = NULL;
    struct buf more;
    struct jw w;
    int rc = c ? 0 : confmgr_fault_err(f, e);

    buf_init(&more, 0);
    jw_init(&w, json);
    jw_obj(&w);
    put_faults(&w, f);
    if (c) {
        confmgr_load(m, confmgr_current(m), &running, NULL, NULL);
        if (m->cfg.ops.describe)
            rc = m->cfg.ops.describe(m->cfg.ops.arg, c, &more, e);
    }
    put_changes(&w, running, c);
    jw_kbool(&w, "fits", rc == 0 || !c);
    jw_kbool(&w, "ok", rc == 0);
    if (rc < 0)
        jw_kstr(&w, "reason", e->msg);
    if (more.len)
        buf_printf(json, ",%s", more.p);
    jw_obj_end(&w);
    buf_done(&more);
    conf_unref(running);
    return rc;
}

int confmgr_check(struct confmgr *m, const char *text, struct buf *json, struct err *e)
{
    struct conf_faults *f = xcalloc(1, sizeof(*f));
    struct conf *c = NULL;
    char *draft = NULL;
    struct err why;
    int rc = text ? 0 : confmgr_text(m, CONFMGR_DRAFT, &draft, NULL, &why);

    if (rc == 0) {
        c = parse(m, text ? text : draft, f);
        rc = put_check(m, c, f, json, &why);
    }
    if (rc < 0 && e)
        *e = why;
    conf_unref(c);
    free(draft);
    free(f);
    return rc;
}

/* ---- what becomes a revision ---- */

struct restart_list {
    char *p;
    size_t cap;
};

static void note_restart(void *arg, const struct conf_change *c)
{
    struct restart_list *l = arg;
    size_t n = strlen(l->p);

    if (c->class == CONF_RESTART)
        snprintf(l->p + n, l->cap - n, "%s%s", n ? ", " : "", c->path);
}

static int check_commit(struct confmgr *m, const struct confmgr_commit *c, struct err *e)
{
    if (c->confirm_s < 0 || c->confirm_s > CONFIRM_MAX_S)
        return err_param(e, ERR_RANGE, "confirm_s", "confirm_s must be 1 to %d",
                         CONFIRM_MAX_S);
    if (c->guard != REV_GUARD_OFF && !m->cfg.ops.window)
        return err_param(e, ERR_UNSUPPORTED, "guard",
                         "there are no SLO figures that a guard could watch");
    return confmgr_free_to_commit(m, e);
}

static int put_revision(struct confmgr *m, const char *text,
                        const struct confmgr_commit *c, const char *comment,
                        int64_t *ret_id, struct err *e)
{
    struct revision r = {.base = confmgr_current(m), .state = REV_CHECKED};
    int rc;

    snprintf(r.author, sizeof(r.author), "%s", c->who.actor);
    snprintf(r.comment, sizeof(r.comment), "%s", comment ? comment : "");
    snprintf(r.hypothesis, sizeof(r.hypothesis), "%s",
             c->hypothesis ? c->hypothesis : "");
    r.at_ms = clock_wall_ms();
    r.text = xstrdup(text);
    rc = revision_put(m->cfg.store, &r, e);
    *ret_id = r.id;
    revision_done(&r);
    return rc;
}

/* Text into a revision that is being applied. */
static int commit_text(struct confmgr *m, const char *text,
                       const struct confmgr_commit *c, const char *what,
                       const char *comment, int64_t *ret_id, struct err *e)
{
    struct conf_faults *f = xcalloc(1, sizeof(*f));
    struct conf *conf = parse(m, text, f);
    struct restart_list restart = {m->restart, sizeof(m->restart)};
    struct buf unused;
    char *now = NULL;
    int rc = conf ? 0 : confmgr_fault_err(f, e);

    free(f);
    buf_init(&unused, 0);
    if (rc == 0 && m->cfg.ops.describe)
        rc = m->cfg.ops.describe(m->cfg.ops.arg, conf, &unused, e);
    buf_done(&unused);
    if (rc == 0)
        rc = confmgr_text(m, CONFMGR_RUNNING, &now, NULL, e);
    if (rc == 0 && m->point.running && !strcmp(now, text))
        rc = err_set(e, ERR_CONFLICT, "nothing would change: revision %lld runs",
                     (long long)m->point.running);
    free(now);
    if (rc == 0)
        rc = put_revision(m, text, c, comment, ret_id, e);
    if (rc < 0) {
        conf_unref(conf);
        return -1;
    }
    STEP(COMMIT_STORED);
    m->restart[0] = '\0';
    conf_diff(m->conf, conf, note_restart, &restart);
    return confmgr_apply(m, *ret_id, conf, c, what, comment ? comment : "", e);
}

/* ---- two editors ---- */

struct missed {
    char text[300];
    int n;
};

static void note_missed(void *arg, const struct conf_change *c)
{
    struct missed *x = arg;
    size_t n = strlen(x->text);

    x->n++;
    snprintf(x->text + n, sizeof(x->text) - n, "%s%s: %.40s -> %.40s", n ? ", " : "",
             c->path, c->from ? c->from : "(none)", c->to ? c->to : "(none)");
}

/* CONFLICT, by a sentence that names the changes between base and what runs. */
static int stale(struct confmgr *m, int64_t base, struct err *e)
{
    struct missed x = {"", 0};
    struct conf *a = NULL, *b = NULL;
    int64_t now = confmgr_current(m);

    if (confmgr_load(m, base, &a, NULL, NULL) == 0 &&
        confmgr_load(m, now, &b, NULL, NULL) == 0)
        conf_diff(a, b, note_missed, &x);
    conf_unref(a);
    conf_unref(b);
    return err_param(e, ERR_CONFLICT, "base",
                     "it began from revision %lld and misses what revision %lld changed "
                     "(%s); look at the difference, then say rebase",
                     (long long)base, (long long)now, x.n ? x.text : "comments only");
}

static int rebase(struct confmgr *m, int64_t base, char **text, struct err *e)
{
    char *old = NULL, *now = NULL, *merged = NULL;

    if (confmgr_text(m, base, &old, NULL, e) == 0 &&
        confmgr_text(m, CONFMGR_RUNNING, &now, NULL, e) == 0)
        merged = conf_text_rebase(old, *text, now, e);
    free(old);
    free(now);
    if (!merged)
        return -1;
    free(*text);
    *text = merged;
    return 0;
}

static int commit_draft(struct confmgr *m, const struct confmgr_commit *c,
                        int64_t *ret_id, struct err *e)
{
    int64_t base = 0;
    char *text = NULL, author[64];
    int rc;

    if (check_commit(m, c, e) < 0)
        return -1;
    rc = rev_draft_get(m->cfg.store, &text, &base, author, e);
    if (rc == 0)
        return err_set(e, ERR_NOTFOUND, "there is no draft: set, load or edit makes one");
    if (rc < 0)
        return -1;
    rev_hash(text, m->draft_hash);
    if (c->if_base && !c->rebase)
        base = c->if_base;
    rc = 0;
    if (base != confmgr_current(m))
        rc = c->rebase ? rebase(m, base, &text, e) : stale(m, base, e);
    if (rc == 0)
        rc = commit_text(m, text, c, "config.commit", c->comment, ret_id, e);
    free(text);
    return rc;
}

int confmgr_commit(struct confmgr *m, const struct confmgr_commit *c, int64_t *ret_id,
                   struct err *e)
{
    struct err why;

    if (commit_draft(m, c, ret_id, &why) == 0)
        return 0;
    if (e)
        *e = why;
    return confmgr_refused(m, &c->who, "config.commit", 0, &why);
}

/* The last one that ran before the running one. */
static int former(struct confmgr *m, int64_t *ret, struct err *e)
{
    struct revision *r = xcalloc(LIST, sizeof(*r));
    int64_t before = confmgr_current(m);
    int n = LIST;

    *ret = 0;
    while (!*ret && n == LIST) {
        n = revision_list(m->cfg.store, before, r, LIST, e);
        for (int i = 0; i < n; i++) {
            if (!*ret && r[i].state == REV_SUPERSEDED)
                *ret = r[i].id;
            before = r[i].id;
            revision_done(&r[i]);
        }
    }
    free(r);
    if (n < 0)
        return -1;
    return *ret ? 0
                : err_set(e, ERR_NOTFOUND, "no revision ran before %lld",
                          (long long)confmgr_current(m));
}

static int roll_back(struct confmgr *m, int64_t id, const struct confmgr_commit *c,
                     int64_t *ret_id, struct err *e)
{
    char *text = NULL, comment[256];
    int rc;

    if (check_commit(m, c, e) < 0 || (!id && former(m, &id, e) < 0) ||
        confmgr_text(m, id, &text, NULL, e) < 0)
        return -1;
    m->draft_hash[0] = '\0';
    snprintf(comment, sizeof(comment), "as revision %lld%s%s", (long long)id,
             c->comment && c->comment[0] ? ": " : "", c->comment ? c->comment : "");
    rc = commit_text(m, text, c, "config.rollback", comment, ret_id, e);
    free(text);
    return rc;
}

int confmgr_rollback(struct confmgr *m, int64_t id, const struct confmgr_commit *c,
                     int64_t *ret_id, struct err *e)
{
    struct err why;

    if (roll_back(m, id, c, ret_id, &why) == 0)
        return 0;
    if (e)
        *e = why;
    return confmgr_refused(m, &c->who, "config.rollback", id, &why);
}
