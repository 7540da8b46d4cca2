/* daemon/api/rack.c - the rack and the formulas behind llmctl, on the UNIX socket only.
 *
 * Text views come as {"text": ...} so that every answer of /api/v1 is JSON; the record
 * and the NCCL file are bytes as a file has them, which llmctl writes. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "daemon/api/conn.h"
#include "daemon/api/handler.h"
#include "daemon/api/route.h"
#include "daemon/api/server.h"
#include "daemon/ctrl/domain.h"
#include "daemon/ctrl/measure.h"
#include "topo/explain.h"
#include "topo/file.h"
#include "topo/finding.h"
#include "topo/graph.h"
#include "topo/show.h"

enum { TEXT_MAX = 4 << 20, WORDS_MAX = 32 };

/* The present view, or the answer that there is none yet. */
static struct domain_view *view_of(struct conn *c)
{
    struct domain_view *v = c->h->cfg.domain ? domain_get(c->h->cfg.domain) : NULL;
    struct err e;

    if (!v) {
        err_set(&e, ERR_UNAVAIL, "the rack is not known yet");
        conn_answer_err(c, &e);
    }
    return v;
}

static void put_device(struct jw *w, const struct domain_view *v, int id)
{
    const struct graph *g = v->graph;
    const struct node *n = graph_node(g, id);
    const struct domain_cordon *c = domain_cordon_of(v, id);
    char name[160];

    domain_device_id(v, id, name, sizeof(name));
    jw_obj(w);
    jw_kstr(w, "id", name);
    jw_kstr(w, "kind", n->mig ? "mig" : n->is_cpu ? "cpu" : "gpu");
    jw_kstr(w, "host", graph_node(g, n->host)->name);
    jw_kstr(w, "model", n->model[0] ? n->model : NULL);
    jw_kstr(w, "uuid", n->uuid[0] ? n->uuid : NULL);
    jw_kint(w, "numa", n->numa);
    jw_kstr(w, "cpus", n->cpus[0] ? n->cpus : NULL);
    if (n->memory_bytes.conf == CONF_UNKNOWN)
        jw_knull(w, "memory_bytes");
    else
        jw_knum(w, "memory_bytes", n->memory_bytes.v);
    jw_kstr(w, "state", c ? "cordoned" : "in service");
    jw_kstr(w, "reason", c ? c->reason : NULL);
    jw_obj_end(w);
}

void control_topology(struct conn *c)
{
    struct domain_view *v = view_of(c);
    struct buf b, text;
    struct jw w;
    const int *dev;
    int n = 0;

    if (!v)
        return;
    buf_init(&b, 0);
    buf_init(&text, TEXT_MAX);
    topo_show_tree(v->graph, &text);
    jw_init(&w, &b);
    jw_obj(&w);
    jw_kstr(&w, "rack", domain_rack(c->h->cfg.domain));
    jw_kstr(&w, "source", graph_source(v->graph));
    jw_kbool(&w, "emulated", graph_emulated(v->graph));
    jw_kint(&w, "findings", findings_count(v->findings));
    jw_key(&w, "devices");
    jw_arr(&w);
    n = graph_devices(v->graph, &dev);
    for (int i = 0; i < n; i++)
        put_device(&w, v, dev[i]);
    jw_arr_end(&w);
    jw_kstr(&w, "text", text.p ? text.p : "");
    jw_obj_end(&w);
    conn_answer(c, 200, "application/json", &b);
    buf_done(&b);
    buf_done(&text);
    domain_put(v);
}

static void answer_text(struct conn *c, struct buf *text)
{
    struct buf b;
    struct jw w;

    buf_init(&b, 0);
    jw_init(&w, &b);
    jw_obj(&w);
    jw_kstr(&w, "text", text->p ? text->p : "");
    jw_obj_end(&w);
    conn_answer(c, 200, "application/json", &b);
    buf_done(&b);
    buf_done(text);
}

void control_matrix(struct conn *c)
{
    struct domain_view *v = view_of(c);
    struct buf text;

    if (!v)
        return;
    buf_init(&text, TEXT_MAX);
    topo_show_matrix(v->graph, v->paths, &text);
    answer_text(c, &text);
    domain_put(v);
}

void control_findings(struct conn *c)
{
    struct domain_view *v = view_of(c);
    struct buf b;
    struct jw w;

    if (!v)
        return;
    buf_init(&b, 0);
    jw_init(&w, &b);
    jw_obj(&w);
    jw_key(&w, "findings");
    jw_arr(&w);
    for (int i = 0; i < findings_count(v->findings); i++) {
        const struct finding *f = findings_get(v->findings, i);

        jw_obj(&w);
        jw_kstr(&w, "severity", severity_name(f->severity));
        jw_kstr(&w, "kind", finding_kind_name(f->kind));
        jw_kstr(&w, "text", f->text);
        jw_obj_end(&w);
    }
    jw_arr_end(&w);
    jw_obj_end(&w);
    conn_answer(c, 200, "application/json", &b);
    buf_done(&b);
    domain_put(v);
}

void control_record(struct conn *c)
{
    struct domain_view *v = view_of(c);
    struct buf b;

    if (!v)
        return;
    buf_init(&b, 0);
    topo_to_json(v->graph, v->paths, &b);
    conn_answer(c, 200, "application/json", &b);
    buf_done(&b);
    domain_put(v);
}

void control_nccl(struct conn *c)
{
    struct domain_view *v = view_of(c);
    struct buf b;
    struct err e = {0};

    if (!v)
        return;
    buf_init(&b, 0);
    if (topo_to_nccl(v->graph, &b, &e) < 0)
        conn_answer_err(c, &e);
    else
        conn_answer(c, 200, "application/xml", &b);
    buf_done(&b);
    domain_put(v);
}

/* ---- measuring ---- */

static void put_pair(struct jw *w, const struct domain_view *v, const struct measure *m,
                     const struct measure_pair *p)
{
    char a[160], b[160];

    domain_device_id(v, p->a, a, sizeof(a));
    domain_device_id(v, p->b, b, sizeof(b));
    jw_obj(w);
    jw_kstr(w, "a", a);
    jw_kstr(w, "b", b);
    jw_knum(w, "bytes_per_s", measure_bps(p));
    jw_knum(w, "spread", p->spread);
    jw_knum(w, "latency_s", p->latency_us / 1e6);
    jw_key(w, "sizes");
    jw_arr(w);
    for (int i = 0; i < MEASURE_SIZES; i++) {
        jw_obj(w);
        jw_kint(w, "bytes", (int64_t)m->size[i]);
        jw_knum(w, "bytes_per_s", p->bps[i]);
        jw_obj_end(w);
    }
    jw_arr_end(w);
    jw_obj_end(w);
}

static void put_table(const struct domain_view *v, const struct measure *m, struct buf *b)
{
    int late = 0;

    buf_printf(b, "%-16s %-16s %10s %8s %12s\n", "A", "B", "GB/s", "SPREAD",
               "LATENCY us");
    for (int i = 0; i < m->n_pairs; i++) {
        const struct measure_pair *p = &m->pair[i];
        char one[160], two[160];
        late += !p->done;
        if (!p->done)
            continue;
        domain_device_id(v, p->a, one, sizeof(one));
        domain_device_id(v, p->b, two, sizeof(two));
        buf_printf(b, "%-16s %-16s %10.2f %7.0f%% %12.2f\n", one, two,
                   measure_bps(p) / 1e9, 100 * p->spread, p->latency_us);
    }
    if (late)
        buf_printf(b, "%d pairs were not reached in the time given\n", late);
    if (m->n_apart)
        buf_printf(b, "%d pairs between emulated hosts are not measured\n", m->n_apart);
    if (m->own_cores)
        buf_puts(b, "the devices share this machine's cores evenly\n");
}

static void on_measured(void *arg, const struct domain_view *v, const struct measure *m,
                        const struct err *why)
{
    struct conn *c = arg;
    struct reply r;
    struct buf text;
    int late = 0;

    if (why) {
        conn_answer_err(c, why);
        conn_unref(c);
        return;
    }
    reply_open(&r);
    jw_key(&r.w, "pairs");
    jw_arr(&r.w);
    for (int i = 0; i < m->n_pairs; i++) {
        late += !m->pair[i].done;
        if (m->pair[i].done)
            put_pair(&r.w, v, m, &m->pair[i]);
    }
    jw_arr_end(&r.w);
    jw_kint(&r.w, "between_hosts", m->n_apart);
    jw_kint(&r.w, "out_of_time", late);
    jw_kbool(&r.w, "shared_cores", m->own_cores);
    buf_init(&text, TEXT_MAX);
    put_table(v, m, &text);
    jw_kstr(&r.w, "text", text.p);
    buf_done(&text);
    reply_send(c, &r, 200);
    conn_unref(c);
}

/* {"seconds": N} */
void control_probe(struct conn *c)
{
    struct domain *d = c->h->cfg.domain;
    int64_t seconds = DOMAIN_MEASURE_S;
    json_t *root = NULL;
    struct err e = {0};
    int rc = body_object(c, "seconds", &root, &e);

    if (rc == 0 && js_get_int(root, "seconds", 1, DOMAIN_MEASURE_MAX_S, &seconds, &e) < 0)
        rc = -1;
    if (rc == 0 && !d)
        rc = err_set(&e, ERR_UNAVAIL, "there is no rack");
    json_decref(root);
    if (rc == 0 && domain_measure(d, seconds, c->who.actor, c->who.origin, on_measured,
                                  conn_ref(c), &e) == 0)
        return;
    conn_answer_err(c, &e);
    if (rc == 0)
        conn_unref(c); /* the one that the measurement would have had */
}

/* {"args": ["collective", "p=8", ...]}: the words of the command line. */
static int read_words(const json_t *root, const char **words, int *ret_n, struct err *e)
{
    const json_t *args = json_object_get(root, "args");
    size_t n = json_array_size(args);

    if (!json_is_array(args) || n < 1 || n > WORDS_MAX)
        return err_param(e, ERR_INVALID, "args",
                         "args must be a list of 1 to %d words, the topic first",
                         WORDS_MAX);
    for (size_t i = 0; i < n; i++) {
        words[i] = json_string_value(json_array_get(args, i));
        if (!words[i])
            return err_param(e, ERR_INVALID, "args", "args[%zu] must be a string", i);
    }
    *ret_n = (int)n;
    return 0;
}

void control_explain(struct conn *c)
{
    static const struct js_limits lim = {1 << 20, 8};
    const char *words[WORDS_MAX];
    struct explain *x;
    struct err e = {0};
    struct buf b, text;
    json_t *root = NULL;
    struct jw w;
    int n = 0;

    if (js_parse(c->body.p ? c->body.p : "", c->body.len, &lim, &root, &e) < 0 ||
        read_words(root, words, &n, &e) < 0 ||
        explain_run(words[0], words + 1, n - 1, &x, &e) < 0) {
        json_decref(root);
        conn_answer_err(c, &e);
        return;
    }
    buf_init(&b, 0);
    buf_init(&text, TEXT_MAX);
    explain_print(x, &text);
    jw_init(&w, &b);
    jw_obj(&w);
    jw_kstr(&w, "text", text.p);
    buf_clear(&text);
    explain_json(x, &text);
    jw_key(&w, "explain");
    jw_raw(&w, text.p);
    jw_obj_end(&w);
    conn_answer(c, 200, "application/json", &b);
    buf_done(&b);
    buf_done(&text);
    explain_free(x);
    json_decref(root);
}

/* Topics with their arguments, for help and completion. */
void control_topics(struct conn *c)
{
    struct buf b;
    struct jw w;

    buf_init(&b, 0);
    jw_init(&w, &b);
    jw_obj(&w);
    jw_key(&w, "topics");
    jw_arr(&w);
    for (int i = 0; i < explain_n_topics(); i++) {
        const struct explain_topic *t = explain_topic_at(i);
        struct buf args;

        buf_init(&args, 0);
        for (int k = 0; k < EXPLAIN_ARGS_MAX && t->arg[k].name; k++)
            buf_printf(&args, "%s%s=%s", k ? " " : "", t->arg[k].name, t->arg[k].def);
        jw_obj(&w);
        jw_kstr(&w, "topic", t->name);
        jw_kstr(&w, "args", args.p ? args.p : "");
        jw_kstr(&w, "help", t->help);
        jw_obj_end(&w);
        buf_done(&args);
    }
    jw_arr_end(&w);
    jw_obj_end(&w);
    conn_answer(c, 200, "application/json", &b);
    buf_done(&b);
}
