/* topo/file_json.c - rack graphs as our own JSON, which loses nothing.
 *
 * {"format":"llmrack-rack","version":1,"source":..,"emulated":..,
 *  "nodes":[{"kind":"host","name":"host0"},{"kind":"numa","name":"numa0","parent":0},..],
 *  "links":[{"a":3,"b":5,"kind":"nvlink","width":18,"nominal":{"v":4.5e11,..}},..],
 *  "pairs":[{"a":3,"b":5,"bps":..,"spread":..,"latency_us":..,"at_ms":..},..],
 *  "warnings":[..]}
 *
 * Nodes refer to each other by their place in the list, parents first, so that a cycle
 * cannot be written. Members at their default are left out. A member that is not known is
 * an error: a typing error must not become a silent default. */
#include "topo/file.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "topo/graph.h"
#include "topo/path.h"

#define FORMAT "llmrack-rack"

static const char *const sources[] = {"none", "sysfs", "nvml", "netlink",
                                      "file", "table", "probe"};
static const char *const confs[] = {"unknown", "assumed", "measured"};
static const char *const healths[] = {"unknown", "ok", "degraded", "bad"};
#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))

/* The members of a node that are plain text, and those that are numbers. */
#define TEXT(f)                                                                          \
    {                                                                                    \
#f, offsetof(struct node, f), sizeof(((struct node *)0)->f)                      \
    }
static const struct text_field {
    const char *key;
    size_t at, size;
} texts[] = {TEXT(name),        TEXT(model), TEXT(uuid),     TEXT(pci),
             TEXT(fabric_uuid), TEXT(cpus),  TEXT(port_guid)};

static const struct int_field {
    const char *key;
    size_t at;
    int def, max;
} ints[] = {{"numa", offsetof(struct node, numa), -1, 65535},
            {"index", offsetof(struct node, index), -1, 1000000},
            {"sm", offsetof(struct node, sm), 0, 10000}};

static const struct bool_field {
    const char *key;
    size_t at;
} bools[] = {{"mig", offsetof(struct node, mig)},
             {"is_cpu", offsetof(struct node, is_cpu)},
             {"gdr", offsetof(struct node, gdr)}};

/* ---- writing ---- */

static void put_fact(struct jw *w, const char *key, const struct fact *f)
{
    if (f->v == 0 && f->source == FROM_NONE && f->conf == CONF_UNKNOWN)
        return;
    jw_key(w, key);
    jw_obj(w);
    jw_knum(w, "v", f->v);
    jw_kstr(w, "from", sources[f->source]);
    jw_kstr(w, "conf", confs[f->conf]);
    jw_obj_end(w);
}

static void put_node(struct jw *w, const struct node *n)
{
    const char *p = (const char *)n;

    jw_obj(w);
    jw_kstr(w, "kind", node_kind_name(n->kind));
    if (n->parent >= 0)
        jw_kint(w, "parent", n->parent);
    for (int i = 0; i < COUNT(texts); i++)
        if (p[texts[i].at])
            jw_kstr(w, texts[i].key, p + texts[i].at);
    for (int i = 0; i < COUNT(ints); i++) {
        int v = *(const int *)(p + ints[i].at);
        if (v != ints[i].def)
            jw_kint(w, ints[i].key, v);
    }
    for (int i = 0; i < COUNT(bools); i++)
        if (*(const bool *)(p + bools[i].at))
            jw_kbool(w, bools[i].key, true);
    if (n->clique != -1)
        jw_kint(w, "clique", n->clique);
    if (n->fabric != FABRIC_IS_UNKNOWN)
        jw_kstr(w, "fabric", fabric_is_name(n->fabric));
    if (n->imex != IMEX_IS_UNKNOWN)
        jw_kstr(w, "imex", imex_is_name(n->imex));
    if (n->health != HEALTH_UNKNOWN)
        jw_kstr(w, "health", healths[n->health]);
    put_fact(w, "memory_bytes", &n->memory_bytes);
    put_fact(w, "speed", &n->speed);
    jw_obj_end(w);
}

static void put_link(struct jw *w, const struct link *l)
{
    jw_obj(w);
    jw_kint(w, "a", l->a);
    jw_kint(w, "b", l->b);
    jw_kstr(w, "kind", link_kind_name(l->kind));
    if (l->width)
        jw_kint(w, "width", l->width);
    if (l->expected)
        jw_kint(w, "expected", l->expected);
    if (l->health != HEALTH_UNKNOWN)
        jw_kstr(w, "health", healths[l->health]);
    put_fact(w, "nominal", &l->nominal);
    put_fact(w, "measured", &l->measured);
    put_fact(w, "latency_us", &l->latency_us);
    jw_obj_end(w);
}

static void put_pair(struct jw *w, const struct graph_pair *m)
{
    jw_obj(w);
    jw_kint(w, "a", m->a);
    jw_kint(w, "b", m->b);
    jw_knum(w, "bps", m->bps);
    jw_knum(w, "spread", m->spread);
    jw_knum(w, "latency_us", m->latency_us);
    jw_kint(w, "at_ms", m->at_ms);
    jw_obj_end(w);
}

/* What was measured since the graph was read is newer than what it has. */
static void put_pairs(struct jw *w, const struct graph *g, const struct paths *p)
{
    const struct graph_pair *m;
    const int *dev;
    int n = p ? graph_devices(g, &dev) : graph_pairs(g, &m);

    if (p ? paths_measured(p) == 0 : n == 0)
        return;
    jw_key(w, "pairs");
    jw_arr(w);
    for (int i = 0; !p && i < n; i++)
        put_pair(w, &m[i]);
    for (int i = 0; p && i < n; i++)
        for (int k = i + 1; k < n; k++) {
            const struct path *x = paths_get(p, dev[i], dev[k]);
            if (x && x->measured_ms > 0)
                put_pair(w, &(struct graph_pair){dev[i], dev[k], x->bps, x->spread,
                                                 x->latency_us, x->measured_ms});
        }
    jw_arr_end(w);
}

void topo_to_json(const struct graph *g, const struct paths *p, struct buf *b)
{
    struct jw w;

    jw_init(&w, b);
    jw_obj(&w);
    jw_kstr(&w, "format", FORMAT);
    jw_kint(&w, "version", 1);
    jw_kstr(&w, "source", graph_source(g));
    jw_kbool(&w, "emulated", graph_emulated(g));
    jw_key(&w, "nodes");
    jw_arr(&w);
    for (int i = 0; i < graph_n_nodes(g); i++)
        put_node(&w, graph_node(g, i));
    jw_arr_end(&w);
    jw_key(&w, "links");
    jw_arr(&w);
    for (int i = 0; i < graph_n_links(g); i++)
        put_link(&w, graph_link(g, i));
    jw_arr_end(&w);
    put_pairs(&w, g, p);
    jw_key(&w, "warnings");
    jw_arr(&w);
    for (int i = 0; i < graph_n_warnings(g); i++)
        jw_str(&w, graph_warning(g, i));
    jw_arr_end(&w);
    jw_obj_end(&w);
}

/* ---- reading ---- */

/* One of n words; absent leaves *ret. */
static int get_word(const json_t *o, const char *key, const char *const *words, int n,
                    int *ret, struct err *e)
{
    const char *s;
    int rc = js_get_str(o, key, &s, NULL, e);

    if (rc <= 0)
        return rc;
    for (int i = 0; i < n; i++)
        if (!strcmp(words[i], s)) {
            *ret = i;
            return 1;
        }
    return err_param(e, ERR_INVALID, key, "%s '%.40s' does not exist", key, s);
}

static int known_only(json_t *o, const char *const *keys, struct err *e)
{
    const char *key;
    json_t *v;

    json_object_foreach(o, key, v)
    {
        int i = 0;
        while (keys[i] && strcmp(keys[i], key))
            i++;
        if (!keys[i])
            return err_param(e, ERR_INVALID, key, "member '%.60s' is not known here",
                             key);
    }
    return 0;
}

static int get_fact(const json_t *o, const char *key, struct fact *ret, struct err *e)
{
    static const char *const keys[] = {"v", "from", "conf", NULL};
    json_t *f = json_object_get(o, key);
    struct fact got = {0};
    int source = 0, conf = 0;

    if (!f)
        return 0;
    if (!json_is_object(f))
        return err_param(e, ERR_INVALID, key, "%s must be {v, from, conf}", key);
    if (known_only(f, keys, e) < 0 || js_get_num(f, "v", 0, 1e30, &got.v, e) < 0 ||
        get_word(f, "from", sources, COUNT(sources), &source, e) < 0 ||
        get_word(f, "conf", confs, COUNT(confs), &conf, e) < 0)
        return -1;
    got.source = source;
    got.conf = conf;
    *ret = got;
    return 0;
}

static int get_kind(const json_t *o, bool node, int *ret, struct err *e)
{
    const char *s = NULL;
    int n = node ? NODE_KIND_COUNT : LINK_KIND_COUNT;

    if (js_get_str(o, "kind", &s, NULL, e) < 0)
        return -1;
    for (int i = 0; s && i < n; i++)
        if (!strcmp(node ? node_kind_name(i) : link_kind_name(i), s)) {
            *ret = i;
            return 0;
        }
    return err_param(e, ERR_INVALID, "kind", "kind '%.40s' does not exist",
                     s ? s : "(absent)");
}

static int get_texts(const json_t *o, struct node *n, struct err *e)
{
    for (int i = 0; i < COUNT(texts); i++) {
        const char *s = NULL;
        if (js_get_str(o, texts[i].key, &s, NULL, e) < 0)
            return -1;
        if (!s)
            continue;
        if (strlen(s) >= texts[i].size)
            return err_param(e, ERR_TOOBIG, texts[i].key, "%s has %zu bytes, at most %zu",
                             texts[i].key, strlen(s), texts[i].size - 1);
        strcpy((char *)n + texts[i].at, s);
    }
    return 0;
}

static int get_node(json_t *o, const int *hosts, int count, struct node *n, struct err *e)
{
    static const char *const keys[] = {
        "kind",        "parent", "name",      "model",  "uuid",   "pci",
        "fabric_uuid", "cpus",   "numa",      "sm",     "index",  "mig",
        "is_cpu",      "gdr",    "port_guid", "clique", "health", "memory_bytes",
        "speed",       "fabric", "imex",      NULL};
    const char *fabrics[FABRIC_IS_REFUSED + 1], *imexes[IMEX_IS_READY + 1];
    int64_t v;
    int kind = 0, health = 0;

    if (!json_is_object(o))
        return err_set(e, ERR_INVALID, "not an object");
    if (known_only(o, keys, e) < 0 || get_kind(o, true, &kind, e) < 0 ||
        get_texts(o, n, e) < 0)
        return -1;
    n->kind = kind;
    n->parent = n->host = -1;
    int rc = js_get_int(o, "parent", 0, INT32_MAX, &v, e);
    if (rc < 0)
        return -1;
    if (rc && v >= count)
        return err_param(e, ERR_INVALID, "parent",
                         "parent %lld must come before it (so that there are no cycles)",
                         (long long)v);
    if (rc) {
        n->parent = (int)v;
        n->host = hosts[v];
    }
    for (int i = 0; i < COUNT(ints); i++) {
        v = ints[i].def;
        if (js_get_int(o, ints[i].key, ints[i].def, ints[i].max, &v, e) < 0)
            return -1;
        *(int *)((char *)n + ints[i].at) = (int)v;
    }
    for (int i = 0; i < COUNT(bools); i++)
        if (js_get_bool(o, bools[i].key, (bool *)((char *)n + bools[i].at), e) < 0)
            return -1;
    n->clique = -1;
    if (js_get_int(o, "clique", -1, INT64_MAX, &n->clique, e) < 0 ||
        get_word(o, "health", healths, COUNT(healths), &health, e) < 0)
        return -1;
    n->health = health;
    for (int i = 0; i < COUNT(fabrics); i++)
        fabrics[i] = fabric_is_name(i);
    for (int i = 0; i < COUNT(imexes); i++)
        imexes[i] = imex_is_name(i);
    if (get_word(o, "fabric", fabrics, COUNT(fabrics), &n->fabric, e) < 0 ||
        get_word(o, "imex", imexes, COUNT(imexes), &n->imex, e) < 0)
        return -1;
    if (get_fact(o, "memory_bytes", &n->memory_bytes, e) < 0)
        return -1;
    return get_fact(o, "speed", &n->speed, e);
}

static int get_link(json_t *o, struct link *l, struct err *e)
{
    static const char *const keys[] = {"a",        "b",       "kind",     "width",
                                       "expected", "nominal", "measured", "latency_us",
                                       "health",   NULL};
    int64_t a = -1, b = -1, width = 0, expected = 0;
    int kind = 0, health = 0;

    if (!json_is_object(o))
        return err_set(e, ERR_INVALID, "not an object");
    if (known_only(o, keys, e) < 0 || get_kind(o, false, &kind, e) < 0 ||
        js_get_int(o, "a", 0, INT32_MAX, &a, e) < 0 ||
        js_get_int(o, "b", 0, INT32_MAX, &b, e) < 0 ||
        js_get_int(o, "width", 0, 100000, &width, e) < 0 ||
        js_get_int(o, "expected", 0, 100000, &expected, e) < 0 ||
        get_word(o, "health", healths, COUNT(healths), &health, e) < 0 ||
        get_fact(o, "nominal", &l->nominal, e) < 0 ||
        get_fact(o, "measured", &l->measured, e) < 0 ||
        get_fact(o, "latency_us", &l->latency_us, e) < 0)
        return -1;
    l->a = (int)a;
    l->b = (int)b;
    l->kind = kind;
    l->width = (int)width;
    l->expected = (int)expected;
    l->health = health;
    return 0;
}

static int get_list(json_t *doc, const char *key, json_t **ret, struct err *e)
{
    *ret = json_object_get(doc, key);
    if (!json_is_array(*ret))
        return err_param(e, ERR_INVALID, key, "'%s' must be a list", key);
    return 0;
}

static int get_nodes(json_t *list, struct graph_builder *b, struct err *e)
{
    /* host of each node so far; graph_add_node limits how many there can be */
    static const size_t most = 16384;
    size_t n = json_array_size(list);
    int *hosts, rc = 0;

    if (n > most)
        return err_set(e, ERR_TOOBIG, "%zu nodes, at most %zu", n, most);
    hosts = xcalloc(n + 1, sizeof(int));
    for (size_t i = 0; rc == 0 && i < n; i++) {
        struct node node = {0};
        int id = get_node(json_array_get(list, i), hosts, (int)i, &node, e);
        if (id == 0)
            id = graph_add_node(b, &node, e);
        if (id < 0)
            rc = err_wrap(e, "node %zu", i);
        else
            hosts[i] = node.kind == NODE_HOST ? (int)i : node.host;
    }
    free(hosts);
    return rc;
}

static int get_links(json_t *list, struct graph_builder *b, struct err *e)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        struct link l = {0};
        if (get_link(json_array_get(list, i), &l, e) < 0 || graph_add_link(b, &l, e) < 0)
            return err_wrap(e, "link %zu", i);
    }
    return 0;
}

static int get_pair(json_t *o, struct graph_pair *m, struct err *e)
{
    static const char *const keys[] = {"a",          "b",     "bps", "spread",
                                       "latency_us", "at_ms", NULL};
    int64_t a = -1, b = -1;

    if (!json_is_object(o))
        return err_set(e, ERR_INVALID, "not an object");
    if (known_only(o, keys, e) < 0 || js_get_int(o, "a", 0, INT32_MAX, &a, e) < 0 ||
        js_get_int(o, "b", 0, INT32_MAX, &b, e) < 0 ||
        js_get_num(o, "bps", 0, 1e18, &m->bps, e) < 0 ||
        js_get_num(o, "spread", 0, 1e9, &m->spread, e) < 0 ||
        js_get_num(o, "latency_us", 0, 1e12, &m->latency_us, e) < 0 ||
        js_get_int(o, "at_ms", 1, INT64_MAX, &m->at_ms, e) < 0)
        return -1;
    m->a = (int)a;
    m->b = (int)b;
    return 0;
}

static int get_pairs(json_t *doc, struct graph_builder *b, struct err *e)
{
    json_t *list = json_object_get(doc, "pairs");

    if (list && !json_is_array(list))
        return err_param(e, ERR_INVALID, "pairs", "'pairs' must be a list");
    for (size_t i = 0; list && i < json_array_size(list); i++) {
        struct graph_pair m = {0};
        if (get_pair(json_array_get(list, i), &m, e) < 0 || graph_add_pair(b, &m, e) < 0)
            return err_wrap(e, "pair %zu", i);
    }
    return 0;
}

static int get_warnings(json_t *doc, struct graph_builder *b, struct err *e)
{
    json_t *list = json_object_get(doc, "warnings");

    if (list && !json_is_array(list))
        return err_param(e, ERR_INVALID, "warnings", "'warnings' must be a list");
    for (size_t i = 0; list && i < json_array_size(list); i++) {
        const char *s = json_string_value(json_array_get(list, i));
        if (!s)
            return err_param(e, ERR_INVALID, "warnings", "warning %zu is not text", i);
        graph_warn(b, "%s", s);
    }
    return 0;
}

static int read_doc(json_t *doc, struct graph_builder *b, const char **ret_source,
                    struct err *e)
{
    static const char *const keys[] = {"format",   "version",  "source",
                                       "emulated", "nodes",    "links",
                                       "pairs",    "warnings", NULL};
    const char *format = "";
    int64_t version = 0;
    json_t *nodes, *links;

    if (js_get_str(doc, "format", &format, NULL, e) < 0)
        return -1;
    if (strcmp(format, FORMAT))
        return err_param(e, ERR_INVALID, "format", "JSON of format '%.40s', not '%s'",
                         format, FORMAT);
    if (js_get_int(doc, "version", 1, 1, &version, e) < 0)
        return -1;
    if (version != 1)
        return err_param(e, ERR_INVALID, "version", "version must be given, as 1");
    if (known_only(doc, keys, e) < 0 ||
        js_get_str(doc, "source", ret_source, NULL, e) < 0 ||
        get_list(doc, "nodes", &nodes, e) < 0 || get_list(doc, "links", &links, e) < 0)
        return -1;
    if (get_nodes(nodes, b, e) < 0 || get_links(links, b, e) < 0 ||
        get_pairs(doc, b, e) < 0)
        return -1;
    return get_warnings(doc, b, e);
}

int topo_from_json(const char *bytes, size_t n, struct graph **ret, struct err *e)
{
    struct js_limits lim = {.max_bytes = TOPO_BYTES_MAX, .max_depth = 8};
    struct graph_builder *b;
    const char *source = "json";
    json_t *doc;
    int rc;

    if (js_parse(bytes, n, &lim, &doc, e) < 0)
        return -1;
    b = graph_builder_new();
    if (!json_is_object(doc))
        rc = err_set(e, ERR_INVALID, "the document must be an object");
    else
        rc = read_doc(doc, b, &source, e);
    if (rc == 0)
        rc = graph_build(b, source, true, ret, e);
    else
        graph_builder_free(b);
    json_decref(doc);
    return rc;
}
