/* daemon/api/loads.c - load runs: what a sender needs of us, and what must still hold
 * when its run is kept. */
#include <stdlib.h>

#include "base/mem.h"
#include "base/metric.h"
#include "daemon/api/conn.h"
#include "daemon/api/ctlqueue.h"
#include "daemon/api/handler.h"
#include "daemon/api/query.h"
#include "daemon/api/runs.h"
#include "daemon/api/server.h"
#include "daemon/api/subject.h"
#include "daemon/ctrl/conf.h"
#include "daemon/ctrl/confmgr.h"
#include "daemon/ctrl/router.h"
#include "daemon/serve/metrics.h"

/* Steps of the instance's engines since they began, by their shape. */
static void put_steps(struct conn *c, const char *instance, struct jw *w)
{
    static const struct {
        const char *key;
        int id, label;
    } rows[] = {{"answer_steps", M_SHAPE_STEPS, 0}, {"answer_seqs", M_SHAPE_SEQS, 0},
                {"answer_s", M_SHAPE_SECONDS, 0},   {"prompt_steps", M_SHAPE_STEPS, 1},
                {"prompt_seqs", M_SHAPE_SEQS, 1},   {"prompt_tok", M_SHAPE_TOK, 0},
                {"prompt_s", M_SHAPE_SECONDS, 1}};
    struct page_group *g = xcalloc(ROUTER_GROUPS, sizeof(*g));
    int n = router_groups_get(c->h->router, g, ROUTER_GROUPS);

    jw_key(w, "steps");
    jw_obj(w);
    for (size_t k = 0; k < sizeof(rows) / sizeof(rows[0]); k++) {
        double sum = 0;

        for (int i = 0; i < n; i++)
            if (subject_belongs(g[i].instance, instance))
                sum += metric_total(g[i].pages, g[i].n, rows[k].id, rows[k].label);
        jw_knum(w, rows[k].key, sum);
    }
    jw_obj_end(w);
    router_pages_put(c->h->router);
    free(g);
}

/* What the sender wants to know beside the contract. */
static void put_hints(struct conn *c, const struct subject *s, struct jw *w)
{
    struct conf *conf = c->h->cfg.confmgr ? confmgr_conf(c->h->cfg.confmgr) : NULL;
    const struct conf_instance *i;
    char name[SUBJECT_NAME];
    int prefill, decode;

    subject_instance(s->m, name);
    subject_parts(c, name, &prefill, &decode);
    i = conf ? conf_instance(conf, name) : NULL;
    jw_kint(w, "vocab", s->m->n_vocab);
    jw_kint(w, "max_seqs", i ? i->max_seqs : 64);
    jw_kint(w, "step_tok", i ? i->step_tok : 512);
    jw_kint(w, "prefill_step_tok",
            i && i->mode == CONF_SPLIT && i->prefill.step_tok ? i->prefill.step_tok
            : i                                               ? i->step_tok
                                                              : 512);
    jw_kint(w, "prefill_parts", prefill);
    jw_kint(w, "decode_parts", decode);
    put_steps(c, name, w);
    jw_knum(w, "price", conf ? conf->cost.device_hour : 0);
    jw_knum(w, "ttft_ms", i ? i->slo.ttft_ms : 0);
    jw_knum(w, "tpot_ms", i ? i->slo.tpot_ms : 0);
    jw_knum(w, "attainment", i ? i->slo.attainment : 0.9);
    conf_unref(conf);
}

static void answer_contract(struct conn *c)
{
    struct err e = {0};
    struct reply r;

    reply_open(&r);
    if (subject_put(c, c->carry, &r.w, &e) < 0) {
        buf_done(&r.b);
        conn_answer_err(c, &e);
        return;
    }
    put_hints(c, c->carry, &r.w);
    reply_send(c, &r, 200);
}

void control_load_contract(struct conn *c)
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

static int still(struct conn *c, const json_t *contract, struct stored_run *r,
                 struct err *e)
{
    (void)r;
    return subject_still(c, json_object_get(contract, "served"), e);
}

void control_load_put(struct conn *c)
{
    runs_keep(c, RUN_LOAD, "contract result", "load.kept", still);
}
