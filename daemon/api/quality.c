/* daemon/api/quality.c - quality runs: the daemon's part of their contract, and what must
 * still hold when one is kept.
 *
 * As with load runs, what answered is not the sender's to say; here the settings that
 * change output belong to it, since a kept run is what permits them. */
#include <string.h>

#include "daemon/api/conn.h"
#include "daemon/api/ctlqueue.h"
#include "daemon/api/handler.h"
#include "daemon/api/query.h"
#include "daemon/api/runs.h"
#include "daemon/api/server.h"
#include "daemon/api/subject.h"
#include "daemon/ctrl/conf.h"
#include "daemon/ctrl/confmgr.h"
#include "daemon/ctrl/quality.h"
#include "daemon/ctrl/router.h"

/* ---- the daemon's part ---- */

/* What the running configuration says of the instance. */
static int facts(struct conn *c, const char *instance, char settings[QUALITY_SETTINGS],
                 char file[QUALITY_FILE], struct err *e)
{
    struct conf *conf = c->h->cfg.confmgr ? confmgr_conf(c->h->cfg.confmgr) : NULL;
    const struct conf_instance *i = conf ? conf_instance(conf, instance) : NULL;
    const struct conf_model *m = i ? conf_model(conf, i->model) : NULL;
    int rc = m ? quality_file(m->path, file, e)
               : err_param(e, ERR_NOTFOUND, "instance",
                           "there is no instance '%.63s' in the configuration", instance);

    if (rc == 0)
        quality_settings(i, settings);
    conf_unref(conf);
    return rc;
}

static void answer_contract(struct conn *c)
{
    char name[SUBJECT_NAME], settings[QUALITY_SETTINGS], file[QUALITY_FILE];
    const struct subject *s = c->carry;
    struct err e = {0};
    struct reply r;

    subject_instance(s->m, name);
    reply_open(&r);
    if (facts(c, name, settings, file, &e) < 0 || subject_put(c, s, &r.w, &e) < 0) {
        buf_done(&r.b);
        conn_answer_err(c, &e);
        return;
    }
    jw_kstr(&r.w, "settings", settings);
    jw_kbool(&r.w, "exact", !settings[0]);
    jw_kstr(&r.w, "file", file);
    reply_send(c, &r, 200);
}

void control_quality_contract(struct conn *c)
{
    struct subject *s;
    struct err e = {0};

    if (subject_new(c, query_text(&c->query, QUERY_instance, ""), &s) < 0)
        return;
    c->carry = s;
    c->carry_free = subject_free;
    if (ctlqueue_push(c->h->control, c, answer_contract, &e) < 0)
        conn_answer_err(c, &e);
}

/* ---- kept ---- */

/* Does what the run says of us still hold? */
static int still(struct conn *c, const json_t *contract, struct stored_run *r,
                 struct err *e)
{
    const json_t *served = json_object_get(contract, "served");
    char settings[QUALITY_SETTINGS], file[QUALITY_FILE];

    if (subject_still(c, served, e) < 0 ||
        facts(c, run_text(served, "instance"), settings, file, e) < 0)
        return -1;
    if (strcmp(settings, run_text(contract, "settings")) ||
        strcmp(file, run_text(contract, "file")))
        return err_param(e, ERR_CONFLICT, "contract",
                         "instance %s changed while it was measured: its settings that "
                         "change output, or its model file, are others now",
                         run_text(served, "instance"));
    r->exact = !settings[0];
    return 0;
}

void control_quality_put(struct conn *c)
{
    runs_keep(c, RUN_QUALITY, "contract result reference", "quality.kept", still);
}
