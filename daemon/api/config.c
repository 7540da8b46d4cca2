/* daemon/api/config.c - revisions over REST: the draft, checks, commits.
 *
 * A commit that began from an older revision is refused (409) with `missed`, the
 * difference to what it did not know. All on the control thread. */
#include "daemon/api/config.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "daemon/api/answer.h"
#include "daemon/api/conn.h"
#include "daemon/api/handler.h"
#include "daemon/api/news.h"
#include "daemon/api/operation.h"
#include "daemon/api/route.h"
#include "daemon/api/server.h"

enum { EDITS_MAX = 256 };
enum { APPLY_LIMIT_S = 2 * 3600, COMMENT_MAX = 255, CONFIRM_MAX_S = 30 * 24 * 3600 };
#define ID_MAX ((int64_t)1 << 53)

static struct confmgr_who who_of(const struct conn *c)
{
    return (struct confmgr_who){c->who.actor, c->who.origin};
}

static void fail(struct conn *c, json_t *body, const struct err *e)
{
    json_decref(body);
    conn_answer_err(c, e);
}

/* Is tag one of the header's? */
static bool names(const char *if_match, const char *tag)
{
    return !strcmp(if_match, "*") || strstr(if_match, tag);
}

static int check_match(struct conn *c, struct err *e)
{
    struct revision r = {0};
    char tag[CONFIG_TAG], *draft = NULL, author[64];
    int64_t base, now;
    bool ok;

    if (!c->if_match)
        return 0;
    now = config_running(c->h->cfg.confmgr);
    if (revision_get(c->h->cfg.store, now, &r, e) < 0)
        return -1;
    config_running_tag(now, r.hash, tag);
    revision_done(&r);
    ok = names(c->if_match, tag);
    if (!ok && rev_draft_get(c->h->cfg.store, &draft, &base, author, e) > 0) {
        char of_draft[CONFIG_TAG];

        config_draft_tag(draft, of_draft);
        ok = names(c->if_match, of_draft);
    }
    free(draft);
    return ok ? 0
              : err_param(e, ERR_CHANGED, "If-Match",
                          "the configuration is %s by now, not %.60s", tag, c->if_match);
}

/* ---- edits ---- */

/* The draft as it is now, checked: that it has faults is an answer, no error. */
static void answer_check(struct conn *c, const char *text)
{
    struct buf b;
    struct err e = {0};

    buf_init(&b, 0);
    if (confmgr_check(c->h->cfg.confmgr, text, &b, &e) < 0 && !b.len)
        conn_answer_err(c, &e);
    else
        conn_answer(c, 200, "application/json", &b);
    buf_done(&b);
}

static int get_text(const json_t *body, bool need, const char **ret, struct err *e)
{
    int rc = js_get_str(body, "text", ret, NULL, e);

    if (rc == 0 && need)
        return err_param(e, ERR_INVALID, "text", "text must be there: the whole YAML");
    return rc < 0 ? -1 : 0;
}

void config_draft_put(struct conn *c)
{
    struct confmgr *m = config_manager(c);
    struct confmgr_who who = who_of(c);
    const char *text = NULL;
    int64_t base = 0;
    json_t *body = NULL;
    struct err e;

    if (!m)
        return;
    if (body_object(c, "text base", &body, &e) < 0 ||
        get_text(body, true, &text, &e) < 0 ||
        js_get_int(body, "base", 0, ID_MAX, &base, &e) < 0 || check_match(c, &e) < 0 ||
        confmgr_draft(m, &who, text, base, &e) < 0) {
        fail(c, body, &e);
        return;
    }
    json_decref(body);
    answer_check(c, NULL);
}

/* A value of a directive as YAML writes it on one line. */
static int value_text(const json_t *v, struct buf *out, struct err *e)
{
    if (json_is_string(v) && strlen(json_string_value(v)) == json_string_length(v)) {
        buf_puts(out, json_string_value(v));
    } else if (json_is_boolean(v)) {
        buf_puts(out, json_is_true(v) ? "true" : "false");
    } else if (json_is_integer(v)) {
        buf_printf(out, "%lld", (long long)json_integer_value(v));
    } else if (json_is_real(v)) {
        buf_printf(out, "%.17g", json_real_value(v));
    } else if (json_is_array(v) && json_array_size(v) <= EDITS_MAX) {
        buf_putc(out, '[');
        for (size_t i = 0; i < json_array_size(v); i++) {
            const json_t *x = json_array_get(v, i);

            if (json_is_array(x))
                return err_param(e, ERR_INVALID, "set", "a list holds no lists");
            buf_puts(out, i ? ", " : "");
            if (value_text(x, out, e) < 0)
                return -1;
        }
        buf_putc(out, ']');
    } else {
        return err_param(e, ERR_INVALID, "set",
                         "value must be a string, a number, true, false or a list");
    }
    return 0;
}

static int edited(char **text, char *next)
{
    if (!next)
        return -1;
    free(*text);
    *text = next;
    return 0;
}

static int set_one(const json_t *row, char **text, struct err *e)
{
    const char *path = NULL;
    struct buf value;
    int rc = js_get_str(row, "path", &path, NULL, e);

    if (rc < 0 || !path)
        return rc < 0 ? -1
                      : err_param(e, ERR_INVALID, "set",
                                  "set is a list of {\"path\": .., \"value\": ..}");
    buf_init(&value, 0);
    rc = value_text(json_object_get(row, "value"), &value, e);
    if (rc == 0)
        rc = edited(text, conf_text_set(*text, path, value.p ? value.p : "", e));
    buf_done(&value);
    return rc;
}

/* {"set": [{path, value}], "unset": [path]} upon text. */
static int edit(const json_t *body, char **text, struct err *e)
{
    const json_t *set = json_object_get(body, "set");
    const json_t *unset = json_object_get(body, "unset");
    size_t n = json_array_size(set) + json_array_size(unset);

    if ((set && !json_is_array(set)) || (unset && !json_is_array(unset)) || n < 1 ||
        n > EDITS_MAX)
        return err_param(e, ERR_INVALID, "set",
                         "set and unset are lists with 1 to %d entries together",
                         EDITS_MAX);
    for (size_t i = 0; i < json_array_size(set); i++)
        if (set_one(json_array_get(set, i), text, e) < 0)
            return -1;
    for (size_t i = 0; i < json_array_size(unset); i++) {
        const char *path = json_string_value(json_array_get(unset, i));

        if (!path)
            return err_param(e, ERR_INVALID, "unset", "unset is a list of paths");
        if (edited(text, conf_text_unset(*text, path, e)) < 0)
            return -1;
    }
    return 0;
}

void config_draft_patch(struct conn *c)
{
    struct confmgr *m = config_manager(c);
    struct confmgr_who who = who_of(c);
    char *text = NULL, author[64];
    int64_t base = 0;
    json_t *body = NULL;
    struct err e;
    int rc;

    if (!m)
        return;
    rc = body_object(c, "set unset", &body, &e);
    if (rc == 0)
        rc = check_match(c, &e);
    if (rc == 0) {
        rc = rev_draft_get(c->h->cfg.store, &text, &base, author, &e);
        if (rc == 0)
            rc = confmgr_text(m, CONFMGR_RUNNING, &text, &base, &e);
    }
    if (rc < 0 || edit(body, &text, &e) < 0 ||
        confmgr_draft(m, &who, text, base, &e) < 0) {
        free(text);
        fail(c, body, &e);
        return;
    }
    free(text);
    json_decref(body);
    answer_check(c, NULL);
}

void config_draft_delete(struct conn *c)
{
    struct confmgr *m = config_manager(c);
    struct confmgr_who who = who_of(c);
    struct reply a;
    struct err e;

    if (!m)
        return;
    if (check_match(c, &e) < 0 || confmgr_draft(m, &who, NULL, 0, &e) < 0) {
        conn_answer_err(c, &e);
        return;
    }
    reply_open(&a);
    jw_knull(&a.w, "draft");
    reply_send(c, &a, 200);
}

void config_check(struct conn *c)
{
    const char *text = NULL;
    json_t *body = NULL;
    struct err e;

    if (!config_manager(c))
        return;
    if (body_object(c, "text", &body, &e) < 0 || get_text(body, false, &text, &e) < 0) {
        fail(c, body, &e);
        return;
    }
    answer_check(c, text);
    json_decref(body);
}

/* ---- commits ---- */

/* An operation that waits until a revision has settled. */
struct wait {
    struct confmgr *m;
    int64_t id;
    bool back; /* it is over when it no longer runs */
};

static enum operation_state poll_wait(void *arg, char message[512])
{
    struct wait *w = arg;
    enum rev_state s;
    bool runs;

    if (!confmgr_settled(w->m, w->id, &s, message))
        return OPERATION_RUNNING;
    runs = s == REV_PENDING || s == REV_CONFIRMED || s == REV_SUPERSEDED;
    return runs != w->back ? OPERATION_DONE : OPERATION_FAILED;
}

void config_answer_started(struct conn *c, const char *kind, int64_t id, bool back)
{
    struct wait *w = xcalloc(1, sizeof(*w));
    struct operation_watch watch = {poll_wait, free, w, (int64_t)APPLY_LIMIT_S * 1000000};
    char subject[24], members[48];

    w->m = c->h->cfg.confmgr;
    w->id = id;
    w->back = back;
    snprintf(subject, sizeof(subject), "%lld", (long long)id);
    snprintf(members, sizeof(members), "\"revision\":%lld", (long long)id);
    news_start(c->h->news, c, kind, subject, &watch, members);
}

/* 409 with what the commit missed. */
static void answer_stale(struct conn *c, int64_t base, const struct err *why)
{
    struct buf missed, b;
    struct err e;

    buf_init(&missed, 0);
    buf_init(&b, 0);
    answer_error(&b, why);
    if (confmgr_diff(c->h->cfg.confmgr, base, CONFMGR_RUNNING, &missed, &e) == 0) {
        b.len--; /* the last brace */
        buf_printf(&b, ",\"missed\":%s}", missed.p);
    }
    conn_answer(c, err_status(why->code), "application/json", &b);
    buf_done(&missed);
    buf_done(&b);
}

static int read_commit(const json_t *body, struct confmgr_commit *r, struct err *e)
{
    const char *guard = NULL;

    if (js_get_bool(body, "confirm", &r->confirm, e) < 0 ||
        js_get_int(body, "confirm_s", 1, CONFIRM_MAX_S, &r->confirm_s, e) < 0 ||
        js_get_bool(body, "rebase", &r->rebase, e) < 0 ||
        js_get_int(body, "base", 1, ID_MAX, &r->if_base, e) < 0 ||
        body_text(body, "comment", COMMENT_MAX, &r->comment, e) < 0 ||
        body_text(body, "hypothesis", COMMENT_MAX, &r->hypothesis, e) < 0 ||
        js_get_str(body, "guard", &guard, NULL, e) < 0)
        return -1;
    if (r->confirm_s)
        r->confirm = true;
    for (int i = 0; guard && i < 3; i++)
        if (!strcmp(guard, config_guards[i])) {
            r->guard = (enum rev_guard)i;
            guard = NULL;
        }
    return guard ? err_param(e, ERR_INVALID, "guard", "guard is off, on or auto") : 0;
}

static int64_t draft_base(struct conn *c)
{
    char *text = NULL, author[64];
    int64_t base = 0;
    struct err e;

    rev_draft_get(c->h->cfg.store, &text, &base, author, &e);
    free(text);
    return base;
}

void config_commit(struct conn *c)
{
    struct confmgr *m = config_manager(c);
    struct confmgr_commit r = {.who = who_of(c), .comment = "", .hypothesis = ""};
    json_t *body = NULL;
    int64_t id = 0;
    struct err e;

    if (!m)
        return;
    if (body_object(c, "confirm confirm_s guard rebase comment hypothesis base", &body,
                    &e) < 0 ||
        read_commit(body, &r, &e) < 0 || check_match(c, &e) < 0) {
        fail(c, body, &e);
        return;
    }
    if (confmgr_commit(m, &r, &id, &e) == 0)
        config_answer_started(c, "config.commit", id, false);
    else if (e.code == ERR_CONFLICT && !strcmp(e.param, "base"))
        answer_stale(c, r.if_base ? r.if_base : draft_base(c), &e);
    else
        conn_answer_err(c, &e);
    json_decref(body);
}

void config_rollback(struct conn *c)
{
    struct confmgr *m = config_manager(c);
    struct confmgr_commit r = {.who = who_of(c), .comment = "", .hypothesis = ""};
    json_t *body = NULL;
    int64_t to = 0, id = 0;
    struct err e;

    if (!m)
        return;
    if (body_object(c, "revision confirm confirm_s guard comment", &body, &e) < 0 ||
        js_get_int(body, "revision", 1, ID_MAX, &to, &e) < 0 ||
        read_commit(body, &r, &e) < 0 || check_match(c, &e) < 0 ||
        confmgr_rollback(m, to, &r, &id, &e) < 0) {
        fail(c, body, &e);
        return;
    }
    json_decref(body);
    config_answer_started(c, "config.rollback", id, false);
}

/* Whoever names a revision does not confirm another one. */
static int confirm(struct conn *c, struct confmgr *m, int64_t only, int64_t *ret_id,
                   struct err *e)
{
    struct confmgr_who who = who_of(c);
    struct confmgr_status s;

    confmgr_status(m, &s);
    if (only && s.point.phase != REV_IDLE && s.point.pending != only)
        return err_param(e, ERR_CONFLICT, "revision",
                         "revision %lld waits for a confirmation, not %lld",
                         (long long)s.point.pending, (long long)only);
    return confmgr_confirm(m, &who, ret_id, e);
}

void config_confirm(struct conn *c)
{
    struct confmgr *m = config_manager(c);
    struct reply a;
    json_t *body = NULL;
    int64_t id = 0, only = 0;
    struct err e = {0};
    int rc = -1;

    if (!m)
        return;
    if (body_object(c, "revision", &body, &e) == 0 &&
        js_get_int(body, "revision", 1, ID_MAX, &only, &e) >= 0)
        rc = confirm(c, m, only, &id, &e);
    json_decref(body);
    if (rc < 0) {
        conn_answer_err(c, &e);
        return;
    }
    reply_open(&a);
    jw_kint(&a.w, "revision", id);
    jw_kstr(&a.w, "state", rev_state_name(REV_CONFIRMED));
    jw_kstr(&a.w, "message", rc ? e.msg : "confirmed");
    reply_send(c, &a, 200);
}

void config_abort(struct conn *c)
{
    struct confmgr *m = config_manager(c);
    struct confmgr_who who = who_of(c);
    const char *reason = "";
    json_t *body = NULL;
    int64_t id = 0;
    struct err e;

    if (!m)
        return;
    if (body_object(c, "reason", &body, &e) < 0 ||
        body_text(body, "reason", COMMENT_MAX, &reason, &e) < 0 ||
        confmgr_abort(m, &who, reason, &id, &e) < 0) {
        fail(c, body, &e);
        return;
    }
    json_decref(body);
    config_answer_started(c, "config.abort", id, true);
}
