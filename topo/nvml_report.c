/* topo/nvml_report.c - see nvml_report.h. */
#include "topo/nvml_report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "topo/sysfs.h"

enum { GPUS_MAX = 256, PAIRS_MAX = GPUS_MAX * GPUS_MAX, DEPTH = 8 };

static int get_text(const json_t *o, const char *key, char *ret, size_t n, struct err *e)
{
    const char *s;
    int rc = js_get_str(o, key, &s, NULL, e);

    if (rc <= 0)
        return rc;
    snprintf(ret, n, "%.*s", (int)n - 1, s);
    for (char *c = ret; *c; c++) /* names end up in tables and sentences */
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    return 0;
}

static int get_pci(const json_t *o, char ret[24], struct err *e)
{
    char text[64] = "";

    if (get_text(o, "pci", text, sizeof(text), e) < 0)
        return -1;
    /* all f is the driver's word for "hidden" */
    if (!sysfs_pci_name(text, ret, 24) || !strncmp(ret, "ffffffff:", 9))
        ret[0] = '\0';
    return 0;
}

static int get_int(const json_t *o, const char *key, int64_t max, int *ret, struct err *e)
{
    int64_t v = *ret;

    if (js_get_int(o, key, 0, max, &v, e) < 0)
        return -1;
    *ret = (int)v;
    return 0;
}

/* A member that must be an object where it is there. NULL in *ret: absent. */
static int get_obj(const json_t *o, const char *key, const json_t **ret, struct err *e)
{
    *ret = json_object_get(o, key);
    if (*ret && !json_is_object(*ret))
        return err_set(e, ERR_SYNTAX, "'%s' is no object", key);
    return 0;
}

static int get_array(const json_t *o, const char *key, int max, const json_t **ret,
                     struct err *e)
{
    *ret = json_object_get(o, key);
    if (*ret && !json_is_array(*ret))
        return err_set(e, ERR_SYNTAX, "'%s' is no array", key);
    if (*ret && json_array_size(*ret) > (size_t)max)
        return err_set(e, ERR_TOOBIG, "'%s' has %zu entries, at most %d", key,
                       json_array_size(*ret), max);
    return 0;
}

static int read_links(const json_t *o, struct nvml_gpu *g, struct err *e)
{
    const json_t *a;

    if (get_array(o, "nvlinks", NVML_NVLINKS_MAX, &a, e) < 0)
        return -1;
    for (size_t i = 0; i < json_array_size(a); i++) {
        const json_t *l = json_array_get(a, i);
        struct nvml_nvlink *k = &g->links[g->n_links++];
        k->remote = REMOTE_UNKNOWN;
        k->tx_kib = k->rx_kib = -1;
        int rc = js_get_bool(l, "active", &k->active, e);
        k->known = rc == 1;
        if (rc < 0 || get_int(l, "remote", 255, &k->remote, e) < 0 ||
            get_pci(l, k->pci, e) < 0 ||
            js_get_int(l, "tx_kib", 0, INT64_MAX, &k->tx_kib, e) < 0 ||
            js_get_int(l, "rx_kib", 0, INT64_MAX, &k->rx_kib, e) < 0)
            return -1;
    }
    return 0;
}

static int read_migs(const json_t *mig, struct nvml_gpu *g, struct err *e)
{
    const json_t *a, *memory;

    if (get_array(mig, "instances", NVML_MIGS_MAX, &a, e) < 0)
        return -1;
    g->migs = xcalloc(json_array_size(a) + 1, sizeof(*g->migs));
    for (size_t i = 0; i < json_array_size(a); i++) {
        const json_t *o = json_array_get(a, i);
        struct nvml_mig *m = &g->migs[g->n_migs++];
        m->gi = m->ci = -1;
        if (get_text(o, "uuid", m->uuid, sizeof(m->uuid), e) < 0 ||
            get_text(o, "name", m->name, sizeof(m->name), e) < 0 ||
            get_int(o, "gi", 64, &m->gi, e) < 0 || get_int(o, "ci", 64, &m->ci, e) < 0 ||
            get_obj(o, "memory", &memory, e) < 0 ||
            (memory && js_get_num(memory, "total", 0, 1e18, &m->memory, e) < 0))
            return -1;
    }
    return 0;
}

static int read_fabric(const json_t *o, struct nvml_gpu *g, struct err *e)
{
    if (get_int(o, "state", 255, &g->fabric_state, e) < 0 ||
        get_int(o, "status", INT32_MAX, &g->fabric_status, e) < 0 ||
        get_int(o, "summary", 255, &g->fabric_summary, e) < 0 ||
        js_get_int(o, "clique", 0, UINT32_MAX, &g->fabric_clique, e) < 0 ||
        js_get_int(o, "health", 0, UINT32_MAX, &g->fabric_health, e) < 0)
        return -1;
    if (get_text(o, "uuid", g->fabric_uuid, sizeof(g->fabric_uuid), e) < 0)
        return -1;
    return get_text(o, "status_text", g->fabric_status_text,
                    sizeof(g->fabric_status_text), e);
}

static int read_parts(const json_t *o, struct nvml_gpu *g, struct err *e)
{
    const json_t *memory, *pcie, *mig, *fabric, *c2c, *ecc;

    if (get_obj(o, "memory", &memory, e) < 0 || get_obj(o, "pcie", &pcie, e) < 0 ||
        get_obj(o, "mig", &mig, e) < 0 || get_obj(o, "fabric", &fabric, e) < 0 ||
        get_obj(o, "c2c", &c2c, e) < 0 || get_obj(o, "ecc", &ecc, e) < 0)
        return -1;
    if (memory && js_get_num(memory, "total", 0, 1e18, &g->memory, e) < 0)
        return -1;
    if (pcie && (get_int(pcie, "max_gen", 255, &g->pcie_gen, e) < 0 ||
                 get_int(pcie, "max_width", 255, &g->pcie_width, e) < 0))
        return -1;
    if (mig && (get_int(mig, "current", 255, &g->mig_current, e) < 0 ||
                get_int(mig, "pending", 255, &g->mig_pending, e) < 0 ||
                read_migs(mig, g, e) < 0))
        return -1;
    if (fabric && read_fabric(fabric, g, e) < 0)
        return -1;
    if (c2c && (get_int(c2c, "count", 255, &g->c2c_count, e) < 0 ||
                get_int(c2c, "active", 255, &g->c2c_active, e) < 0 ||
                js_get_num(c2c, "mbps", 0, 1e9, &g->c2c_mbps, e) < 0))
        return -1;
    if (ecc && (js_get_num(ecc, "uncorrected", 0, 1e19, &g->ecc_uncorrected, e) < 0 ||
                js_get_bool(ecc, "remap_pending", &g->remap_pending, e) < 0 ||
                js_get_bool(ecc, "remap_failed", &g->remap_failed, e) < 0))
        return -1;
    return read_links(o, g, e);
}

static int read_gpu(const json_t *o, int i, struct nvml_gpu *g, struct err *e)
{
    *g = (struct nvml_gpu){
        .index = i, .numa = -1, .fabric_state = FABRIC_ABSENT, .fabric_clique = -1};
    if (!json_is_object(o))
        return err_set(e, ERR_SYNTAX, "GPU %d is no object", i);
    if (get_int(o, "index", 65535, &g->index, e) < 0 ||
        get_text(o, "error", g->error, sizeof(g->error), e) < 0 ||
        get_text(o, "uuid", g->uuid, sizeof(g->uuid), e) < 0 ||
        get_text(o, "name", g->name, sizeof(g->name), e) < 0 ||
        get_pci(o, g->pci, e) < 0 || get_int(o, "sm", 9999, &g->sm, e) < 0 ||
        get_int(o, "numa", 4095, &g->numa, e) < 0 ||
        get_int(o, "recovery", 255, &g->recovery, e) < 0 || read_parts(o, g, e) < 0)
        return err_wrap(e, "GPU %d", i);
    return 0;
}

static int read_pairs(const json_t *o, struct nvml_report *r, struct err *e)
{
    const json_t *a;

    if (get_array(o, "p2p_bad", PAIRS_MAX, &a, e) < 0)
        return -1;
    r->p2p_bad = xcalloc(json_array_size(a) + 1, sizeof(*r->p2p_bad));
    for (size_t i = 0; i < json_array_size(a); i++) {
        const json_t *p = json_array_get(a, i);
        json_int_t from = json_integer_value(json_array_get(p, 0));
        json_int_t to = json_integer_value(json_array_get(p, 1));
        if (json_array_size(p) != 2 || from < 0 || from >= r->n_gpus || to < 0 ||
            to >= r->n_gpus)
            return err_set(e, ERR_SYNTAX, "'p2p_bad' names GPUs that are not there");
        r->p2p_bad[r->n_p2p_bad][0] = (int)from;
        r->p2p_bad[r->n_p2p_bad++][1] = (int)to;
    }
    return 0;
}

static int read_rest(const json_t *o, struct nvml_report *r, struct err *e)
{
    const json_t *missing, *xids;

    if (read_pairs(o, r, e) < 0 || get_array(o, "missing", 256, &missing, e) < 0 ||
        get_array(o, "xids", 1024, &xids, e) < 0)
        return -1;
    const char *first = json_string_value(json_array_get(missing, 0));
    r->n_missing = (int)json_array_size(missing);
    snprintf(r->missing, sizeof(r->missing), "%.95s", first ? first : "");
    for (size_t i = 0; i < json_array_size(xids); i++) {
        int gpu = -1, xid = 0;
        if (get_int(json_array_get(xids, i), "index", 65535, &gpu, e) < 0 ||
            get_int(json_array_get(xids, i), "xid", 65535, &xid, e) < 0)
            return -1;
        if (gpu >= 0 && gpu < r->n_gpus)
            r->gpus[gpu].xid = xid;
    }
    return 0;
}

static int read_all(const json_t *o, struct nvml_report *r, struct err *e)
{
    const json_t *gpus;

    if (!json_is_object(o))
        return err_set(e, ERR_SYNTAX, "no object");
    if (get_text(o, "error", r->error, sizeof(r->error), e) < 0 ||
        get_text(o, "driver", r->driver, sizeof(r->driver), e) < 0 ||
        get_array(o, "gpus", GPUS_MAX, &gpus, e) < 0)
        return -1;
    if (!gpus && !r->error[0])
        return err_set(e, ERR_SYNTAX, "neither 'gpus' nor 'error'");
    r->gpus = xcalloc(json_array_size(gpus) + 1, sizeof(*r->gpus));
    for (size_t i = 0; i < json_array_size(gpus); i++)
        if (read_gpu(json_array_get(gpus, i), (int)i, &r->gpus[r->n_gpus++], e) < 0)
            return -1;
    return read_rest(o, r, e);
}

int nvml_report_read(const char *json, size_t n, struct nvml_report **ret, struct err *e)
{
    const struct js_limits lim = {.max_bytes = NVML_REPORT_BYTES_MAX, .max_depth = DEPTH};
    struct nvml_report *r;
    json_t *o;

    if (js_parse(json, n, &lim, &o, e) < 0)
        return err_wrap(e, "the NVML helper's answer");
    r = xcalloc(1, sizeof(*r));
    if (read_all(o, r, e) < 0) {
        json_decref(o);
        nvml_report_free(r);
        return err_wrap(e, "the NVML helper's answer");
    }
    json_decref(o);
    *ret = r;
    return 0;
}

void nvml_report_free(struct nvml_report *r)
{
    if (!r)
        return;
    for (int i = 0; i < r->n_gpus; i++)
        free(r->gpus[i].migs);
    free(r->gpus);
    free(r->p2p_bad);
    free(r);
}
