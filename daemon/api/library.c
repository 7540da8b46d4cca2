/* daemon/api/library.c - models of the configuration: add, remove, verify.
 *
 * To add or remove one is a revision like any other. It is refused while somebody has a
 * draft, which a commit would take along or lose. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "daemon/api/config.h"
#include "daemon/api/conn.h"
#include "daemon/api/handler.h"
#include "daemon/api/news.h"
#include "daemon/api/operation.h"
#include "daemon/api/server.h"
#include "daemon/ctrl/conf.h"
#include "daemon/ctrl/loader.h"
#include "daemon/ctrl/modelpath.h"
#include "daemon/serve/tokenizer.h"
#include "state/revision.h"

enum { NAME_MAX_BYTES = 63, PATH_MAX_BYTES = 4000, VERIFY_S = 1800 };

/* ---- revisions ---- */

static int check_no_draft(struct conn *c, struct err *e)
{
    char *text = NULL, author[64];
    int64_t base;
    int rc = rev_draft_get(c->h->cfg.store, &text, &base, author, e);

    free(text);
    if (rc > 0)
        return err_set(e, ERR_CONFLICT,
                       "%s has a draft of the configuration: commit or discard it first",
                       author);
    return rc;
}

/* text, an edit of what runs, becomes a revision; the request is answered. Takes text. */
static void commit(struct conn *c, char *text, int64_t base, const char *kind,
                   const char *name)
{
    struct confmgr *m = c->h->cfg.confmgr;
    struct confmgr_who who = {c->who.actor, c->who.origin};
    char comment[128];
    struct confmgr_commit r = {.who = who, .comment = comment, .hypothesis = ""};
    struct err e, e2;
    int64_t id = 0;

    snprintf(comment, sizeof(comment), "%s %.64s", kind, name);
    if (operation_room(news_operations(c->h->news), &e) < 0 ||
        confmgr_draft(m, &who, text, base, &e) < 0) {
        conn_answer_err(c, &e);
    } else if (confmgr_commit(m, &r, &id, &e) < 0) {
        confmgr_draft(m, &who, NULL, 0, &e2);
        conn_answer_err(c, &e);
    } else {
        config_answer_started(c, kind, id, false);
    }
    free(text);
}

/* A name that can stand in a path of the configuration. */
static int check_name(const char *name, struct err *e)
{
    size_t n = strlen(name);

    if (n < 1 || n > NAME_MAX_BYTES ||
        strspn(name,
               "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != n)
        return err_param(e, ERR_INVALID, "name",
                         "a model's name has 1 to %d letters, digits, _ and -",
                         NAME_MAX_BYTES);
    return 0;
}

/* The text that runs with models.NAME set (path) or taken out (NULL). */
static char *edited(struct conn *c, const char *name, const char *path, int64_t *ret_base,
                    struct err *e)
{
    char *text = NULL, *next, *where;

    if (confmgr_text(c->h->cfg.confmgr, CONFMGR_RUNNING, &text, ret_base, e) < 0)
        return NULL;
    where = xasprintf(path ? "models.%s.path" : "models.%s", name);
    next = path ? conf_text_set(text, where, path, e) : conf_text_unset(text, where, e);
    free(where);
    free(text);
    return next;
}

void control_model_add(struct conn *c)
{
    const char *name = "", *path = "";
    struct conf *conf = NULL;
    json_t *root = NULL;
    char *text = NULL;
    int64_t base = 0;
    struct err e;

    if (!config_manager(c))
        return;
    conf = confmgr_conf(c->h->cfg.confmgr);
    if (body_object(c, "name path", &root, &e) < 0 ||
        body_text(root, "name", NAME_MAX_BYTES, &name, &e) < 0 ||
        body_text(root, "path", PATH_MAX_BYTES, &path, &e) < 0 ||
        check_name(name, &e) < 0)
        goto fail;
    if (!path[0]) {
        err_param(&e, ERR_INVALID, "path", "path is required: a file or folder");
        goto fail;
    }
    if (conf_model(conf, name)) {
        err_param(&e, ERR_CONFLICT, "name", "there is a model '%s' already", name);
        goto fail;
    }
    if (modelpath_check(conf, path, &e) < 0 || check_no_draft(c, &e) < 0 ||
        !(text = edited(c, name, path, &base, &e)))
        goto fail;
    commit(c, text, base, "model.add", name);
    goto done;

fail:
    conn_answer_err(c, &e);
done:
    conf_unref(conf);
    json_decref(root);
}

/* The model of the running configuration that the path names. */
static int find(struct conn *c, const struct conf *conf, const struct conf_model **ret,
                struct err *e)
{
    const char *name = c->match.arg[0];
    struct buf have;

    *ret = conf_model(conf, name);
    if (*ret)
        return 0;
    buf_init(&have, 0);
    for (int i = 0; i < conf->n_models; i++)
        buf_printf(&have, "%s'%s'", i ? ", " : "", conf->models[i].name);
    err_set(e, ERR_NOTFOUND, "there is no model '%.64s'; there is %s", name,
            have.len ? have.p : "none");
    buf_done(&have);
    return -1;
}

/* Instances that serve it stand in the way. */
static int check_unused(const struct conf *conf, const struct conf_model *m,
                        struct err *e)
{
    for (int i = 0; i < conf->n_instances; i++)
        if (!strcmp(conf->instances[i].model, m->name))
            return err_set(e, ERR_CONFLICT, "instance '%s' serves the model '%s'",
                           conf->instances[i].name, m->name);
    return 0;
}

void control_model_remove(struct conn *c)
{
    const struct conf_model *m;
    struct conf *conf;
    char *text;
    int64_t base = 0;
    struct err e;

    if (!config_manager(c))
        return;
    conf = confmgr_conf(c->h->cfg.confmgr);
    if (find(c, conf, &m, &e) < 0 || check_unused(conf, m, &e) < 0 ||
        check_no_draft(c, &e) < 0 || !(text = edited(c, m->name, NULL, &base, &e)))
        conn_answer_err(c, &e);
    else
        commit(c, text, base, "model.remove", m->name);
    conf_unref(conf);
}

/* ---- verify ---- */

struct verify {
    struct loader *loader;
    enum operation_state state;
    char message[512];
};

static void on_opened(void *arg, struct loaded *m, const struct err *why)
{
    struct verify *v = arg;

    v->state = m ? OPERATION_DONE : OPERATION_FAILED;
    if (m) {
        snprintf(v->message, sizeof(v->message),
                 "%s %s, %s, %.1f billion weights, %.1f GiB, context %d, vocabulary %d",
                 m->facts.family, m->facts.format, m->facts.main_type,
                 (double)m->facts.n_params / 1e9, (double)m->facts.file_bytes / (1 << 30),
                 m->facts.n_ctx, m->facts.n_vocab);
        tokenizer_free(m->tok);
    } else {
        snprintf(v->message, sizeof(v->message), "%s", why->msg);
    }
}

static enum operation_state poll_verify(void *arg, char message[512])
{
    const struct verify *v = arg;

    memcpy(message, v->message, sizeof(v->message));
    return v->state;
}

static void free_verify(void *arg)
{
    struct verify *v = arg;

    loader_free(v->loader);
    free(v);
}

void control_model_verify(struct conn *c)
{
    struct operation_watch w = {poll_verify, free_verify, NULL,
                                VERIFY_S * (int64_t)1000000};
    const struct conf_model *m;
    struct verify *v = NULL;
    struct conf *conf;
    json_t *root = NULL;
    struct err e;

    if (!config_manager(c))
        return;
    conf = confmgr_conf(c->h->cfg.confmgr);
    if (body_object(c, "", &root, &e) < 0 || find(c, conf, &m, &e) < 0)
        goto fail;
    w.arg = v = xcalloc(1, sizeof(*v));
    if (handler_note(c, "model.verify", m->name, "ok", m->path, &e) < 0 ||
        loader_start(c->h->cfg.loop, loader_open_model, m->path, m->name, on_opened, v,
                     &v->loader, &e) < 0)
        goto fail;
    news_start(c->h->news, c, "model.verify", m->name, &w, "");
    goto done;

fail:
    free(v);
    conn_answer_err(c, &e);
done:
    json_decref(root);
    conf_unref(conf);
}
