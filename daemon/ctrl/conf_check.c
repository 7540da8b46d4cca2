/* daemon/ctrl/conf_check.c - a table of cross-checks, each of which tells all it finds.
 */
#include "daemon/ctrl/conf_check.h"

#include <stdio.h>
#include <string.h>

#include "daemon/ctrl/conf_tree.h"

struct check {
    const struct conf *c;
    struct tree_node *root;
    const struct conf_override *over;
    int n_over;
    struct conf_faults *faults;
};

/* Where the path stands, or what of it there is. */
static struct conf_pos locate(const struct check *k, const char *path)
{
    struct tree_at at;

    for (int i = 0; i < k->n_over; i++)
        if (!strcmp(k->over[i].path, path))
            return (struct conf_pos){0};
    tree_find(k->root, path, &at);
    if (at.at < 0)
        return (struct conf_pos){0};
    return *at.rest || at.node->kind != TREE_SCALAR ? at.map->kids[at.at].key->from
                                                    : at.node->from;
}

static bool given(const struct check *k, const char *path)
{
    struct tree_at at;

    for (int i = 0; i < k->n_over; i++)
        if (!strcmp(k->over[i].path, path))
            return true;
    tree_find(k->root, path, &at);
    return at.at >= 0 && !*at.rest;
}

#define FAULT(k, pathv, ...) conf_fault((k)->faults, locate(k, pathv), pathv, __VA_ARGS__)

/* Settings whose output differs are used on purpose only. What they cost in quality is
 * checked where a revision is applied. */
static void output_changes(const struct check *k)
{
    for (int i = 0; i < k->c->n_instances; i++) {
        const struct conf_instance *x = &k->c->instances[i];
        char path[160];

        if (x->experts.allow_output_change || !conf_changes_output(x))
            continue;
        bool sent = x->experts.transfer != 0;
        snprintf(path, sizeof(path), "instances.%s.experts.%s", x->name,
                 sent ? "transfer" : "overflow");
        FAULT(k, path,
              "this changes what the model answers: set experts.allow_output_change, or "
              "%s",
              sent ? "transfer f32" : "overflow replica or second-pass");
    }
}

static void must_be_given(const struct check *k)
{
    char path[160];

    for (int i = 0; i < k->c->n_models; i++) {
        snprintf(path, sizeof(path), "models.%s.path", k->c->models[i].name);
        if (!k->c->models[i].path)
            FAULT(k, path, "the model has no path");
    }
    for (int i = 0; i < k->c->n_instances; i++) {
        snprintf(path, sizeof(path), "instances.%s.model", k->c->instances[i].name);
        if (!k->c->instances[i].model)
            FAULT(k, path, "the instance has no model");
    }
}

static void model_is_there(const struct check *k)
{
    for (int i = 0; i < k->c->n_instances; i++) {
        const struct conf_instance *x = &k->c->instances[i];
        char path[160];

        if (!x->model || !*x->model || conf_model(k->c, x->model))
            continue;
        snprintf(path, sizeof(path), "instances.%s.model", x->name);
        FAULT(k, path, "models has no '%.63s'", x->model);
    }
}

/* Whether two instances answer to one id: the same word, or the same file's name. */
static bool same_id(const struct conf_instance *a, const struct conf_instance *b)
{
    if (*a->served_as || *b->served_as)
        return !strcmp(a->served_as, b->served_as);
    return a->model && b->model && *a->model && !strcmp(a->model, b->model);
}

static void one_id_each(const struct check *k)
{
    for (int i = 1; i < k->c->n_instances; i++)
        for (int j = 0; j < i; j++) {
            const struct conf_instance *a = &k->c->instances[j], *b = a + (i - j);
            char path[160];

            if (!same_id(a, b))
                continue;
            snprintf(path, sizeof(path), "instances.%s.served_as", b->name);
            FAULT(k, path,
                  "instance '%s' has the same id in the API; another served_as would be "
                  "right",
                  a->name);
            break;
        }
}

static void tls_pair(const struct check *k)
{
    const struct conf_listen *l = &k->c->listen;

    if (*l->tls_cert && !*l->tls_key)
        FAULT(k, "listen.tls_cert", "a certificate needs its key: set listen.tls_key");
    if (*l->tls_key && !*l->tls_cert)
        FAULT(k, "listen.tls_key", "a key needs its certificate: set listen.tls_cert");
    if (*l->tls_cert && !*l->address)
        FAULT(k, "listen.tls_cert", "TLS, but nothing listens: listen.address is empty");
}

static void slo_has_targets(const struct check *k)
{
    char path[160];

    for (int i = 0; i < k->c->n_instances; i++) {
        const struct conf_instance *x = &k->c->instances[i];

        snprintf(path, sizeof(path), "instances.%s.slo.attainment", x->name);
        if (given(k, path) && x->slo.ttft_ms <= 0 && x->slo.tpot_ms <= 0)
            FAULT(k, path, "a share without a target: set slo.ttft_ms or slo.tpot_ms");
    }
    for (int i = 0; i < k->c->n_classes; i++) {
        const struct conf_class_slo *x = &k->c->classes[i];

        snprintf(path, sizeof(path), "slo_classes.%s", x->name);
        if (x->slo.ttft_ms <= 0 && x->slo.tpot_ms <= 0)
            FAULT(k, path, "a class without a target: set ttft_ms or tpot_ms");
    }
}

/* where: "" or "prefill." of an instance; p: that pool, whose words are as those of the
 * instance where they are 0. */
static void auto_alone(const struct check *k, const char *instance, const char *where,
                       const struct conf_pool *p)
{
    const int64_t own[] = {
        p ? p->layout.pp : 1,   p ? p->layout.tp : 1,  p ? p->layout.ep : 1,
        p ? p->layout.sp : 1,   p ? p->layout.cp : 1,  p ? p->layout.cp_method : 1,
        p ? p->layout.cp_u : 1, p ? p->layout.adp : 1, 1};
    static const char *const words[] = {"pp",        "tp",   "ep",  "sp", "cp",
                                        "cp_method", "cp_u", "adp", "etp"};
    char path[160];

    for (size_t w = 0; w < sizeof(words) / sizeof(words[0]); w++) {
        snprintf(path, sizeof(path), "instances.%s.%slayout.%s", instance, where,
                 words[w]);
        if (own[w] && given(k, path))
            FAULT(k, path,
                  "layout.auto is set: the planner chooses; leave %slayout.%s out, or "
                  "%s",
                  where, words[w], *where ? "set auto of this pool false" : "auto");
    }
}

static void auto_or_words(const struct check *k)
{
    for (int i = 0; i < k->c->n_instances; i++) {
        const struct conf_instance *x = &k->c->instances[i];
        int prefill = x->prefill.layout.automatic, decode = x->decode.layout.automatic;

        if (x->layout.automatic)
            auto_alone(k, x->name, "", NULL);
        if (x->mode != CONF_SPLIT)
            continue;
        if (prefill == 2 || (x->layout.automatic && !prefill))
            auto_alone(k, x->name, "prefill.", &x->prefill);
        if (decode == 2 || (x->layout.automatic && !decode))
            auto_alone(k, x->name, "decode.", &x->decode);
    }
}

/* In a layer of experts the ranks of a stage regroup as ep x etp. */
static void experts_regroup(const struct check *k)
{
    char path[160];

    for (int i = 0; i < k->c->n_instances; i++) {
        const struct conf_instance *x = &k->c->instances[i];
        int64_t stage = x->layout.tp * x->layout.cp * x->layout.adp;

        if (!x->layout.etp || x->layout.etp * x->layout.ep == stage)
            continue;
        snprintf(path, sizeof(path), "instances.%s.layout.etp", x->name);
        if (stage % x->layout.ep)
            FAULT(k, path, "tp %lld x cp %lld x adp %lld is no multiple of ep %lld",
                  (long long)x->layout.tp, (long long)x->layout.cp,
                  (long long)x->layout.adp, (long long)x->layout.ep);
        else
            FAULT(k, path,
                  "with tp %lld, cp %lld, adp %lld and ep %lld, etp is %lld: set that, "
                  "or leave it out",
                  (long long)x->layout.tp, (long long)x->layout.cp,
                  (long long)x->layout.adp, (long long)x->layout.ep,
                  (long long)(stage / x->layout.ep));
    }
}

/* What goes by a target needs one: the instance's, or that of some class. */
static void targets_of_order(const struct check *k)
{
    bool ttft = false, tpot = false;
    char path[160];

    for (int i = 0; i < k->c->n_classes; i++) {
        ttft |= k->c->classes[i].slo.ttft_ms > 0;
        tpot |= k->c->classes[i].slo.tpot_ms > 0;
    }
    for (int i = 0; i < k->c->n_instances; i++) {
        const struct conf_instance *x = &k->c->instances[i];

        snprintf(path, sizeof(path), "instances.%s.refuse_late", x->name);
        if (x->refuse_late && !ttft && x->slo.ttft_ms <= 0)
            FAULT(k, path,
                  "nothing can be late without a target: set slo.ttft_ms, here or of a "
                  "class in slo_classes");
        snprintf(path, sizeof(path), "instances.%s.order", x->name);
        if (x->order && !ttft && !tpot && x->slo.ttft_ms <= 0 && x->slo.tpot_ms <= 0)
            FAULT(k, path,
                  "there is no slack without a target: set slo.ttft_ms or slo.tpot_ms, "
                  "here or of a class in slo_classes; or order age");
    }
}

static bool ends_in(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);

    return n > m && !strcmp(s + n - m, end);
}

/* What two pools cannot have. */
static void pools(const struct check *k, const struct conf_instance *x)
{
    static const char none[] = "mode split does not go with";
    char path[160];

    snprintf(path, sizeof(path), "instances.%s.mode", x->name);
    if (x->replicas > 1)
        FAULT(k, path,
              "%s replicas: prefill.engines and decode.engines say how many there are",
              none);
    if (x->executor)
        FAULT(k, path, "%s executor null, which has no KV to hand over", none);
}

static void pool_steps(const struct check *k, const struct conf_instance *x,
                       const char *word, const struct conf_pool *p)
{
    char path[160];

    snprintf(path, sizeof(path), "instances.%s.%s.step_tok", x->name, word);
    if (p->step_tok && p->step_tok < 16)
        FAULT(k, path, "%d tokens; 16 to 65536, or 0 (as the instance), would be right",
              (int)p->step_tok);
}

static void split(const struct check *k)
{
    char path[160];

    for (int i = 0; i < k->c->n_instances; i++) {
        const struct conf_instance *x = &k->c->instances[i];

        snprintf(path, sizeof(path), "instances.%s", x->name);
        if (ends_in(x->name, ".prefill") || ends_in(x->name, ".decode"))
            FAULT(k, path, "no instance can be called so: it would be a pool of '%.*s'",
                  (int)(strrchr(x->name, '.') - x->name), x->name);
        pool_steps(k, x, "prefill", &x->prefill);
        pool_steps(k, x, "decode", &x->decode);
        if (x->mode == CONF_SPLIT)
            pools(k, x);
    }
}

static void tiers(const struct check *k)
{
    char path[160];

    for (int i = 0; i < k->c->n_instances; i++) {
        const struct conf_instance *x = &k->c->instances[i];

        snprintf(path, sizeof(path), "instances.%s.kv.disk_mib", x->name);
        if (x->kv.disk_mib && !x->kv.host_mib)
            FAULT(k, path,
                  "KV on disk needs a tier in host memory above it: set kv.host_mib too");
        snprintf(path, sizeof(path), "instances.%s.kv.host_mib", x->name);
        if (x->kv.host_mib && !x->kv.reuse)
            FAULT(k, path, "without kv.reuse there is nothing to keep in host memory");
    }
}

/* Only whole experts that stand apart move; the pools of a split are seen when they are
 * placed. */
static void spare_moves(const struct check *k)
{
    char path[160];

    for (int i = 0; i < k->c->n_instances; i++) {
        const struct conf_instance *x = &k->c->instances[i];
        int64_t ranks = x->layout.tp * x->layout.cp * x->layout.adp;

        if (!x->experts.spare || x->layout.automatic || x->mode == CONF_SPLIT ||
            (x->layout.ep > 1 && x->layout.ep == ranks))
            continue;
        snprintf(path, sizeof(path), "instances.%s.experts.spare", x->name);
        if (ranks > 1)
            FAULT(k, path,
                  "no expert would move to these slots: layout.ep is %lld and only whole "
                  "experts move; ep %lld (tp x cp x adp) would be right, or spare 0",
                  (long long)x->layout.ep, (long long)ranks);
        else
            FAULT(
                k, path,
                "no expert would move to these slots: there is one rank alone; a layout "
                "with ep = tp x cp x adp over 1 would be right, or spare 0");
    }
}

static void (*const checks[])(const struct check *k) = {
    must_be_given, output_changes,  model_is_there, one_id_each,
    tls_pair,      slo_has_targets, auto_or_words,  split,
    tiers,         experts_regroup, spare_moves,    targets_of_order,
};

void conf_check(const struct conf *c, struct tree_node *root,
                const struct conf_override *over, int n_over, struct conf_faults *faults)
{
    struct check k = {c, root, over, n_over, faults};

    for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++)
        checks[i](&k);
}
