/* daemon/api/config_show.c - revisions over REST: what runs, what waits, what ran. */
#include "daemon/api/config.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "daemon/api/conn.h"
#include "daemon/api/handler.h"
#include "daemon/api/route.h"
#include "daemon/api/server.h"

enum { LIST_DEFAULT = 50, LIST_MAX = 500, HASH_SHOWN = 8 };
#define ID_MAX ((int64_t)1 << 53)

static const char *const phases[] = {"idle", "applying", "pending", "reverting"};
const char *const config_guards[3] = {"off", "on", "auto"};

struct confmgr *config_manager(struct conn *c)
{
    struct err e;

    if (c->h->cfg.confmgr && c->h->cfg.store)
        return c->h->cfg.confmgr;
    err_set(&e, ERR_UNAVAIL, "the configuration is not there yet");
    conn_answer_err(c, &e);
    return NULL;
}

int64_t config_running(struct confmgr *m)
{
    struct confmgr_status s;

    confmgr_status(m, &s);
    return s.point.running ? s.point.running : s.point.good;
}

void config_running_tag(int64_t id, const char *hash, char tag[CONFIG_TAG])
{
    snprintf(tag, CONFIG_TAG, "\"%lld-%.*s\"", (long long)id, HASH_SHOWN, hash);
}

void config_draft_tag(const char *text, char tag[CONFIG_TAG])
{
    char hash[REV_HASH_CHARS + 1];

    rev_hash(text, hash);
    snprintf(tag, CONFIG_TAG, "\"draft-%.*s\"", HASH_SHOWN, hash);
}

/* ---- what is there ---- */

static void put_pending(struct jw *w, const struct confmgr_status *s)
{
    jw_key(w, "pending");
    if (s->left_us < 0) {
        jw_null(w);
        return;
    }
    jw_obj(w);
    jw_kint(w, "revision", s->point.pending);
    jw_knum(w, "left_s", (double)s->left_us / 1e6);
    jw_kint(w, "deadline_ms", s->point.deadline_ms);
    jw_kstr(w, "guard", config_guards[s->point.guard]);
    jw_kstr(w, "verdict", s->verdict);
    jw_obj_end(w);
}

static int put_draft(struct conn *c, struct jw *w, struct err *e)
{
    char *text = NULL, author[64];
    int64_t base = 0;
    int rc = rev_draft_get(c->h->cfg.store, &text, &base, author, e);

    jw_key(w, "draft");
    if (rc > 0) {
        jw_obj(w);
        jw_kint(w, "base", base);
        jw_kstr(w, "author", author);
        jw_obj_end(w);
    } else {
        jw_null(w);
    }
    free(text);
    return rc < 0 ? -1 : 0;
}

void config_get(struct conn *c)
{
    struct confmgr *m = config_manager(c);
    struct confmgr_status s;
    struct revision r = {0};
    struct reply a;
    struct err e;
    char tag[CONFIG_TAG];
    int64_t now;

    if (!m)
        return;
    confmgr_status(m, &s);
    now = s.point.running ? s.point.running : s.point.good;
    if (revision_get(c->h->cfg.store, now, &r, &e) < 0) {
        conn_answer_err(c, &e);
        return;
    }
    reply_open(&a);
    jw_kint(&a.w, "revision", now);
    jw_kstr(&a.w, "hash", r.hash);
    jw_kstr(&a.w, "text", r.text);
    jw_kstr(&a.w, "state", rev_state_name(r.state));
    jw_kstr(&a.w, "phase", phases[s.point.phase]);
    jw_kbool(&a.w, "busy", s.applying || s.reverting);
    jw_kbool(&a.w, "rescue", s.rescue);
    jw_kint(&a.w, "good", s.point.good);
    put_pending(&a.w, &s);
    jw_kstr(&a.w, "last", s.last);
    config_running_tag(now, r.hash, tag);
    revision_done(&r);
    if (put_draft(c, &a.w, &e) < 0) {
        buf_done(&a.b);
        conn_answer_err(c, &e);
        return;
    }
    conn_header(c, "ETag", "%s", tag);
    reply_send(c, &a, 200);
}

void config_draft_get(struct conn *c)
{
    char *text = NULL, author[64], tag[CONFIG_TAG];
    int64_t base = 0;
    struct reply a;
    struct err e;
    int rc;

    if (!config_manager(c))
        return;
    rc = rev_draft_get(c->h->cfg.store, &text, &base, author, &e);
    if (rc == 0)
        err_set(&e, ERR_NOTFOUND, "there is no draft: PUT or PATCH makes one");
    if (rc <= 0) {
        conn_answer_err(c, &e);
        return;
    }
    config_draft_tag(text, tag);
    conn_header(c, "ETag", "%s", tag);
    reply_open(&a);
    jw_kstr(&a.w, "text", text);
    jw_kint(&a.w, "base", base);
    jw_kstr(&a.w, "author", author);
    free(text);
    reply_send(c, &a, 200);
}

/* ---- history ---- */

static void put_revision(struct jw *w, const struct revision *r)
{
    jw_kint(w, "revision", r->id);
    jw_kint(w, "base", r->base);
    jw_kstr(w, "state", rev_state_name(r->state));
    jw_kstr(w, "author", r->author);
    jw_kint(w, "at_ms", r->at_ms);
    jw_kint(w, "applied_ms", r->applied_ms);
    jw_kint(w, "ended_ms", r->ended_ms);
    jw_kstr(w, "comment", r->comment);
    jw_kstr(w, "hypothesis", r->hypothesis);
    jw_kstr(w, "why", r->why);
    jw_kstr(w, "hash", r->hash);
    jw_kstr(w, "journal_head", r->journal_head);
}

void config_revisions(struct conn *c)
{
    int max = (int)query_num(&c->query, QUERY_limit, LIST_DEFAULT), n;
    struct revision *v;
    struct reply a;
    struct err e;

    if (!config_manager(c))
        return;
    v = xcalloc(LIST_MAX, sizeof(*v));
    n = revision_list(c->h->cfg.store, query_num(&c->query, QUERY_before, 0), v,
                      max < LIST_MAX ? max : LIST_MAX, &e);
    if (n < 0) {
        free(v);
        conn_answer_err(c, &e);
        return;
    }
    reply_open(&a);
    jw_key(&a.w, "revisions");
    jw_arr(&a.w);
    for (int i = 0; i < n; i++) {
        jw_obj(&a.w);
        put_revision(&a.w, &v[i]);
        jw_obj_end(&a.w);
        revision_done(&v[i]);
    }
    jw_arr_end(&a.w);
    free(v);
    reply_send(c, &a, 200);
}

/* A number, "draft" or "running". */
static int read_ref(const char *s, const char *param, int64_t *ret, struct err *e)
{
    char *end;
    long long v;

    if (!strcmp(s, "draft") || !strcmp(s, "running")) {
        *ret = s[0] == 'd' ? CONFMGR_DRAFT : CONFMGR_RUNNING;
        return 0;
    }
    v = strtoll(s, &end, 10);
    if (*end || end == s || s[0] < '0' || s[0] > '9' || v < 1 || v > ID_MAX)
        return err_param(e, ERR_INVALID, param,
                         "'%.20s' is no revision: a number, draft or running", s);
    *ret = v;
    return 0;
}

static void put_json(struct jw *w, const char *key, const char *json)
{
    jw_key(w, key);
    if (json && json[0])
        jw_raw(w, json);
    else
        jw_null(w);
}

void config_revision(struct conn *c)
{
    struct confmgr *m = config_manager(c);
    struct revision r = {0};
    struct reply a;
    struct err e;
    int64_t id = 0;

    if (!m)
        return;
    if (read_ref(c->match.arg[0], "revision", &id, &e) < 0)
        id = -2;
    else if (id == CONFMGR_RUNNING)
        id = config_running(m);
    else if (id == CONFMGR_DRAFT)
        err_set(&e, ERR_NOTFOUND, "the draft is at /api/v1/config/draft");
    if (id <= 0 || revision_get(c->h->cfg.store, id, &r, &e) < 0) {
        conn_answer_err(c, &e);
        return;
    }
    reply_open(&a);
    put_revision(&a.w, &r);
    jw_kstr(&a.w, "text", r.text);
    put_json(&a.w, "before", r.before);
    put_json(&a.w, "after", r.after);
    revision_done(&r);
    reply_send(c, &a, 200);
}

void config_diff(struct conn *c)
{
    struct confmgr *m = config_manager(c);
    int64_t from = 0, to = 0;
    struct buf b;
    struct err e;

    if (!m)
        return;
    buf_init(&b, 0);
    if (read_ref(query_text(&c->query, QUERY_from_rev, "running"), "from", &from, &e) <
            0 ||
        read_ref(query_text(&c->query, QUERY_to_rev, "draft"), "to", &to, &e) < 0 ||
        confmgr_diff(m, from, to, &b, &e) < 0)
        conn_answer_err(c, &e);
    else
        conn_answer(c, 200, "application/json", &b);
    buf_done(&b);
}

void config_paths(struct conn *c)
{
    struct conf_row_doc d;
    struct reply a;

    reply_open(&a);
    jw_key(&a.w, "paths");
    jw_arr(&a.w);
    for (int i = 0; conf_row(i, &d); i++) {
        jw_obj(&a.w);
        jw_kstr(&a.w, "path", d.path);
        jw_kstr(&a.w, "type", d.type);
        jw_kstr(&a.w, "range", d.range);
        jw_kstr(&a.w, "default", d.def);
        jw_kstr(&a.w, "unit", d.unit);
        jw_kstr(&a.w, "class", conf_class_name(d.class));
        jw_kstr(&a.w, "help", d.help);
        jw_obj_end(&a.w);
    }
    jw_arr_end(&a.w);
    reply_send(c, &a, 200);
}
