/* topo/probe_nvml.c - see probe_nvml.h.
 *
 * Every symbol is resolved alone and every call may fail alone: what could not be read is
 * absent from the object, or null, and never a guess. "error" of a GPU holds what the
 * driver said when it gave no handle (lost, no permission); the other GPUs go on. Meaning
 * is the reader's business: this side reports numbers as NVML gives them.
 *
 *   {"driver", "missing": [symbols], "gpus": [{"index", "error" | "uuid", "pci", "name",
 *    "sm", "memory": {..}, "numa", "pcie": {..}, "mig": {..}, "nvlinks": [..], "fabric",
 *    "c2c", "recovery", "ecc", "use": {..}}], "p2p_bad": [[from, to]], "xids": [..]}
 *   or {"error"} */
#include "topo/probe_nvml.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/mem.h"
#include "topo/nvml_abi.h"
#include "topo/sysfs.h"

enum { GPUS_MAX = 256, MIGS_MAX = 16, XIDS_MAX = 64, NODES_MAX = 1024 };

struct lib {
    void *so;
#define X(name, args) int(*name) args;
    NVML_MAP(X)
#undef X
    void *events;
    nvml_dev gpu[GPUS_MAX]; /* NULL: no handle */
    int n;
};

/* A call, or the answer of a library that lacks it. */
#define CALL(l, f, ...) ((l)->f ? (l)->f(__VA_ARGS__) : NVML_NOFUNCTION)

static const char *rc_text(int rc)
{
    switch (rc) {
#define X(id, n, text)                                                                   \
    case n:                                                                              \
        return text;
        NVML_RC_MAP(X)
#undef X
    }
    return "an error that is not known";
}

/* ---- one GPU ---- */

static void put_text(struct jw *w, const char *key, int rc, const char *text, size_t n)
{
    if (rc == NVML_OK && memchr(text, '\0', n))
        jw_kstr(w, key, text);
}

static void put_pci(struct jw *w, const char *key, const struct nvml_pci *p)
{
    char name[24];

    if (memchr(p->busid, '\0', sizeof(p->busid)) &&
        sysfs_pci_name(p->busid, name, sizeof(name)))
        jw_kstr(w, key, name);
}

static void put_identity(struct lib *l, struct jw *w, nvml_dev d)
{
    char text[96] = "";
    struct nvml_pci pci = {0};
    int rc, major = 0, minor = 0;

    rc = CALL(l, nvmlDeviceGetUUID, d, text, sizeof(text));
    put_text(w, "uuid", rc, text, sizeof(text));
    rc = CALL(l, nvmlDeviceGetName, d, text, sizeof(text));
    put_text(w, "name", rc, text, sizeof(text));
    if (CALL(l, nvmlDeviceGetPciInfo_v3, d, &pci) == NVML_OK)
        put_pci(w, "pci", &pci);
    if (CALL(l, nvmlDeviceGetCudaComputeCapability, d, &major, &minor) == NVML_OK)
        jw_kint(w, "sm", 10 * major + minor);
}

static void put_memory(struct lib *l, struct jw *w, nvml_dev d)
{
    struct nvml_memory_v2 v2 = {.version = NVML_MEMORY_V2};
    struct nvml_memory v1 = {0};

    if (CALL(l, nvmlDeviceGetMemoryInfo_v2, d, &v2) == NVML_OK) {
        jw_key(w, "memory");
        jw_obj(w);
        jw_knum(w, "total", (double)v2.total);
        jw_knum(w, "reserved", (double)v2.reserved);
        jw_knum(w, "used", (double)v2.used);
        jw_obj_end(w);
    } else if (CALL(l, nvmlDeviceGetMemoryInfo, d, &v1) == NVML_OK) {
        jw_key(w, "memory");
        jw_obj(w);
        jw_knum(w, "total", (double)v1.total);
        jw_knum(w, "used", (double)v1.used);
        jw_obj_end(w);
    }
}

/* The one NUMA node of its memory traffic; several or none say nothing. */
static void put_numa(struct lib *l, struct jw *w, nvml_dev d)
{
    unsigned long set[NODES_MAX / 64] = {0};
    int found = -1, n = 0;

    if (CALL(l, nvmlDeviceGetMemoryAffinity, d, NODES_MAX / 64, set, 0) != NVML_OK)
        return;
    for (int i = 0; i < NODES_MAX; i++)
        if (set[i / 64] >> (i % 64) & 1) {
            found = i;
            n++;
        }
    if (n == 1)
        jw_kint(w, "numa", found);
}

static void put_unsigned(struct jw *w, const char *key, int rc, unsigned v)
{
    if (rc == NVML_OK)
        jw_kint(w, key, v);
}

static void put_pcie(struct lib *l, struct jw *w, nvml_dev d)
{
    unsigned v = 0;
    int rc;

    jw_key(w, "pcie");
    jw_obj(w);
    rc = CALL(l, nvmlDeviceGetMaxPcieLinkGeneration, d, &v);
    put_unsigned(w, "max_gen", rc, v);
    rc = CALL(l, nvmlDeviceGetMaxPcieLinkWidth, d, &v);
    put_unsigned(w, "max_width", rc, v);
    rc = CALL(l, nvmlDeviceGetCurrPcieLinkGeneration, d, &v);
    put_unsigned(w, "gen", rc, v);
    rc = CALL(l, nvmlDeviceGetCurrPcieLinkWidth, d, &v);
    put_unsigned(w, "width", rc, v);
    jw_obj_end(w);
}

/* Indices have holes where an instance was destroyed: all are asked. */
static void put_migs(struct lib *l, struct jw *w, nvml_dev d)
{
    unsigned max = 0, v = 0;
    nvml_dev m;

    if (CALL(l, nvmlDeviceGetMaxMigDeviceCount, d, &max) != NVML_OK || max > MIGS_MAX)
        max = MIGS_MAX;
    jw_key(w, "instances");
    jw_arr(w);
    for (unsigned i = 0; i < max; i++) {
        if (CALL(l, nvmlDeviceGetMigDeviceHandleByIndex, d, i, &m) != NVML_OK)
            continue;
        jw_obj(w);
        put_identity(l, w, m);
        put_memory(l, w, m);
        int rc = CALL(l, nvmlDeviceGetGpuInstanceId, m, &v);
        put_unsigned(w, "gi", rc, v);
        rc = CALL(l, nvmlDeviceGetComputeInstanceId, m, &v);
        put_unsigned(w, "ci", rc, v);
        jw_obj_end(w);
    }
    jw_arr_end(w);
}

static void put_mig(struct lib *l, struct jw *w, nvml_dev d)
{
    unsigned current = 0, pending = 0;

    if (CALL(l, nvmlDeviceGetMigMode, d, &current, &pending) != NVML_OK)
        return;
    jw_key(w, "mig");
    jw_obj(w);
    jw_kint(w, "current", current);
    jw_kint(w, "pending", pending);
    if (current)
        put_migs(l, w, d);
    jw_obj_end(w);
}

static bool value_of(const struct nvml_field *f, int64_t *ret)
{
    if (f->rc != NVML_OK)
        return false;
    switch (f->type) {
    case NVML_V_DOUBLE:
        *ret = (int64_t)f->v.d;
        return true;
    case NVML_V_UINT:
    case NVML_V_INT:
        *ret = (int64_t)f->v.ui;
        return true;
    default:
        *ret = f->v.sll;
        return true;
    }
}

static bool field(struct lib *l, nvml_dev d, unsigned id, unsigned scope, int64_t *ret)
{
    struct nvml_field f = {.id = id, .scope = scope};

    return CALL(l, nvmlDeviceGetFieldValues, d, 1, &f) == NVML_OK && value_of(&f, ret);
}

static int link_count(struct lib *l, nvml_dev d)
{
    int64_t n;
    int state, i = 0;

    if (field(l, d, NVML_FI_LINK_COUNT, 0, &n))
        return n < 0 ? 0 : n > NVML_LINKS_MAX ? NVML_LINKS_MAX : (int)n;
    /* older drivers: ask until there is no such link */
    while (i < NVML_LINKS_MAX) {
        int rc = CALL(l, nvmlDeviceGetNvLinkState, d, (unsigned)i, &state);
        if (rc == NVML_INVALID || rc == NVML_UNSUPPORTED || rc == NVML_NOFUNCTION)
            break;
        i++;
    }
    return i;
}

/* Of all links in one call: sent, received. A driver that has no such counters says so of
 * each, or of the call. */
static void ask_traffic(struct lib *l, nvml_dev d, int n, struct nvml_field *f)
{
    for (int i = 0; i < 2 * n; i++)
        f[i] = (struct nvml_field){.id = i % 2 ? NVML_FI_LINK_RX : NVML_FI_LINK_TX,
                                   .scope = (uint32_t)(i / 2),
                                   .rc = NVML_UNSUPPORTED};
    if (n && CALL(l, nvmlDeviceGetFieldValues, d, 2 * n, f) != NVML_OK)
        for (int i = 0; i < 2 * n; i++)
            f[i].rc = NVML_UNSUPPORTED;
}

static void put_traffic(struct jw *w, const struct nvml_field f[2])
{
    int64_t v;

    if (value_of(&f[0], &v) && v >= 0)
        jw_kint(w, "tx_kib", v);
    if (value_of(&f[1], &v) && v >= 0)
        jw_kint(w, "rx_kib", v);
}

static void put_nvlinks(struct lib *l, struct jw *w, nvml_dev d)
{
    struct nvml_field traffic[2 * NVML_LINKS_MAX];
    int n = link_count(l, d);

    ask_traffic(l, d, n, traffic);

    jw_key(w, "nvlinks");
    jw_arr(w);
    for (unsigned i = 0; i < (unsigned)n; i++) {
        struct nvml_pci pci = {0};
        int state = 0, type = 0;

        jw_obj(w);
        int rc = CALL(l, nvmlDeviceGetNvLinkState, d, i, &state);
        if (rc == NVML_OK)
            jw_kbool(w, "active", state == 1);
        else
            jw_kstr(w, "error", rc_text(rc));
        if (rc == NVML_OK && state == 1) {
            if (CALL(l, nvmlDeviceGetNvLinkRemoteDeviceType, d, i, &type) == NVML_OK)
                jw_kint(w, "remote", type);
            if (CALL(l, nvmlDeviceGetNvLinkRemotePciInfo_v2, d, i, &pci) == NVML_OK)
                put_pci(w, "pci", &pci);
            put_traffic(w, &traffic[2 * i]);
        }
        jw_obj_end(w);
    }
    jw_arr_end(w);
}

static void put_fabric_fields(struct jw *w, const struct nvml_fabric *f, int version)
{
    char uuid[37] = "";
    const uint8_t *u = f->uuid;
    bool set = false;

    for (int i = 0; i < 16; i++)
        set |= u[i] != 0;
    for (int i = 0, k = 0; i < 16 && set; i++)
        k += snprintf(uuid + k, sizeof(uuid) - (size_t)k, "%s%02x",
                      i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", u[i]);
    jw_key(w, "fabric");
    jw_obj(w);
    jw_kint(w, "state", f->state);
    jw_kint(w, "status", f->status);
    jw_kstr(w, "status_text", rc_text((int)f->status));
    jw_kstr(w, "uuid", uuid);
    jw_kint(w, "clique", f->clique);
    if (version >= 2)
        jw_kint(w, "health", f->health);
    if (version >= 3)
        jw_kint(w, "summary", f->summary);
    jw_obj_end(w);
}

/* Newest first; each older driver refuses what it does not know. */
static void put_fabric(struct lib *l, struct jw *w, nvml_dev d)
{
    struct nvml_fabric f = {.version = NVML_FABRIC_V3};
    struct nvml_fabric_v1 v1 = {0};
    int version = 3;

    int rc = CALL(l, nvmlDeviceGetGpuFabricInfoV, d, &f);
    if (rc == NVML_VERSION || rc == NVML_INVALID) {
        f = (struct nvml_fabric){.version = NVML_FABRIC_V2};
        version = 2;
        rc = CALL(l, nvmlDeviceGetGpuFabricInfoV, d, &f);
    }
    if (rc == NVML_VERSION || rc == NVML_NOFUNCTION) {
        version = 1;
        rc = CALL(l, nvmlDeviceGetGpuFabricInfo, d, &v1);
        memcpy(f.uuid, v1.uuid, sizeof(f.uuid));
        f.status = v1.status;
        f.clique = v1.clique;
        f.state = v1.state;
    }
    if (rc == NVML_OK)
        put_fabric_fields(w, &f, version);
}

static void put_c2c(struct lib *l, struct jw *w, nvml_dev d)
{
    int64_t n, mbps, sum = 0, up = 0;

    if (!field(l, d, NVML_FI_C2C_COUNT, 0, &n) || n <= 0 || n > NVML_LINKS_MAX)
        return;
    for (unsigned i = 0; i < (unsigned)n; i++)
        if (field(l, d, NVML_FI_C2C_BW, i, &mbps) && mbps > 0) {
            sum += mbps;
            up++;
        }
    jw_key(w, "c2c");
    jw_obj(w);
    jw_kint(w, "count", n);
    jw_kint(w, "active", up);
    jw_kint(w, "mbps", sum);
    jw_obj_end(w);
}

static void put_health(struct lib *l, struct jw *w, nvml_dev d)
{
    unsigned long long n = 0;
    unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
    int64_t v;

    if (field(l, d, NVML_FI_RECOVERY, 0, &v))
        jw_kint(w, "recovery", v);
    jw_key(w, "ecc");
    jw_obj(w);
    /* since the driver was loaded */
    if (CALL(l, nvmlDeviceGetTotalEccErrors, d, 0, 0, &n) == NVML_OK)
        jw_knum(w, "corrected", (double)n);
    if (CALL(l, nvmlDeviceGetTotalEccErrors, d, 1, 0, &n) == NVML_OK)
        jw_knum(w, "uncorrected", (double)n);
    if (CALL(l, nvmlDeviceGetRemappedRows, d, &corrected, &uncorrected, &pending,
             &failed) == NVML_OK) {
        jw_kint(w, "remapped", (int64_t)corrected + uncorrected);
        jw_kbool(w, "remap_pending", pending != 0);
        jw_kbool(w, "remap_failed", failed != 0);
    }
    jw_obj_end(w);
}

static void put_use(struct lib *l, struct jw *w, nvml_dev d)
{
    struct nvml_use use = {0};
    unsigned v = 0;
    int rc;

    jw_key(w, "use");
    jw_obj(w);
    rc = CALL(l, nvmlDeviceGetClockInfo, d, 1, &v);
    put_unsigned(w, "sm_mhz", rc, v);
    rc = CALL(l, nvmlDeviceGetClockInfo, d, 2, &v);
    put_unsigned(w, "memory_mhz", rc, v);
    rc = CALL(l, nvmlDeviceGetPowerUsage, d, &v);
    put_unsigned(w, "power_mw", rc, v);
    rc = CALL(l, nvmlDeviceGetEnforcedPowerLimit, d, &v);
    put_unsigned(w, "power_limit_mw", rc, v);
    rc = CALL(l, nvmlDeviceGetTemperature, d, 0, &v);
    put_unsigned(w, "celsius", rc, v);
    rc = CALL(l, nvmlDeviceGetUtilizationRates, d, &use);
    put_unsigned(w, "gpu_percent", rc, use.gpu);
    put_unsigned(w, "memory_percent", rc, use.memory);
    jw_obj_end(w);
}

static void put_gpu(struct lib *l, struct jw *w, int i)
{
    nvml_dev d = NULL;
    int rc = CALL(l, nvmlDeviceGetHandleByIndex_v2, (unsigned)i, &d);

    l->gpu[i] = rc == NVML_OK ? d : NULL;
    jw_obj(w);
    jw_kint(w, "index", i);
    if (rc != NVML_OK) {
        jw_kstr(w, "error", rc_text(rc));
    } else {
        put_identity(l, w, d);
        put_memory(l, w, d);
        put_numa(l, w, d);
        put_pcie(l, w, d);
        put_mig(l, w, d);
        put_nvlinks(l, w, d);
        put_fabric(l, w, d);
        put_c2c(l, w, d);
        put_health(l, w, d);
        put_use(l, w, d);
    }
    jw_obj_end(w);
}

/* ---- all of them ---- */

/* Pairs that may not read or write each other's memory; direction matters. */
static void put_p2p(struct lib *l, struct jw *w)
{
    jw_key(w, "p2p_bad");
    jw_arr(w);
    for (int i = 0; i < l->n && l->nvmlDeviceGetP2PStatus; i++)
        for (int k = 0; k < l->n; k++) {
            int read = 0, write = 0;
            if (i == k || !l->gpu[i] || !l->gpu[k] ||
                l->nvmlDeviceGetP2PStatus(l->gpu[i], l->gpu[k], 0, &read) != NVML_OK ||
                l->nvmlDeviceGetP2PStatus(l->gpu[i], l->gpu[k], 1, &write) != NVML_OK ||
                (!read && !write))
                continue;
            jw_arr(w);
            jw_int(w, i);
            jw_int(w, k);
            jw_arr_end(w);
        }
    jw_arr_end(w);
}

/* What the driver reported since the last line; registered for at the first. */
static void put_xids(struct lib *l, struct jw *w)
{
    struct nvml_event ev = {0};

    jw_key(w, "xids");
    jw_arr(w);
    for (int i = 0; i < XIDS_MAX && l->events &&
                    CALL(l, nvmlEventSetWait_v2, l->events, &ev, 0) == NVML_OK;
         i++)
        for (int k = 0; k < l->n && ev.type == NVML_EVENT_XID; k++)
            if (l->gpu[k] == ev.dev) {
                jw_obj(w);
                jw_kint(w, "index", k);
                jw_kint(w, "xid", (int64_t)ev.data);
                jw_obj_end(w);
            }
    jw_arr_end(w);
}

static void register_events(struct lib *l)
{
    if (l->events || CALL(l, nvmlEventSetCreate, &l->events) != NVML_OK)
        return;
    for (int i = 0; i < l->n; i++)
        if (l->gpu[i])
            CALL(l, nvmlDeviceRegisterEvents, l->gpu[i], NVML_EVENT_XID, l->events);
}

static void put_missing(struct lib *l, struct jw *w)
{
    jw_key(w, "missing");
    jw_arr(w);
#define X(name, args)                                                                    \
    if (!l->name)                                                                        \
        jw_str(w, #name);
    NVML_MAP(X)
#undef X
    jw_arr_end(w);
}

static void report(struct lib *l, struct buf *out)
{
    char driver[96] = "";
    unsigned n = 0;
    struct jw w;

    jw_init(&w, out);
    jw_obj(&w);
    int rc = CALL(l, nvmlDeviceGetCount_v2, &n);
    if (rc != NVML_OK) {
        char text[128];
        snprintf(text, sizeof(text), "NVML cannot count GPUs: %s", rc_text(rc));
        jw_kstr(&w, "error", text);
        jw_obj_end(&w);
        return;
    }
    l->n = n > GPUS_MAX ? GPUS_MAX : (int)n;
    rc = CALL(l, nvmlSystemGetDriverVersion, driver, sizeof(driver));
    put_text(&w, "driver", rc, driver, sizeof(driver));
    put_missing(l, &w);
    jw_key(&w, "gpus");
    jw_arr(&w);
    for (int i = 0; i < l->n; i++)
        put_gpu(l, &w, i);
    jw_arr_end(&w);
    put_p2p(l, &w);
    register_events(l);
    put_xids(l, &w);
    jw_obj_end(&w);
}

/* ---- the process ---- */

static bool load(const char *library, struct lib *l, struct buf *why)
{
    l->so = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!l->so) {
        buf_printf(why, "no NVIDIA driver library: %s", dlerror());
        return false;
    }
#define X(name, args) *(void **)&l->name = dlsym(l->so, #name);
    NVML_MAP(X)
#undef X
    int rc = CALL(l, nvmlInit_v2);
    if (rc == NVML_OK)
        return true;
    buf_printf(why, "NVML does not start: %s", rc_text(rc));
    return false;
}

static bool write_line(int fd, struct buf *b)
{
    size_t done = 0;

    buf_putc(b, '\n');
    while (done < b->len) {
        ssize_t n = write(fd, b->p + done, b->len - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        done += (size_t)n;
    }
    buf_clear(b);
    return true;
}

static bool asked_again(int fd)
{
    char c;
    ssize_t n;

    if (fd < 0)
        return false;
    while ((n = read(fd, &c, 1)) < 0 && errno == EINTR)
        continue;
    return n == 1;
}

int probe_nvml_run(const char *library, int in_fd, int out_fd)
{
    struct lib *l = xcalloc(1, sizeof(*l));
    struct buf out, why;
    bool ok, written;

    buf_init(&out, 0);
    buf_init(&why, 0);
    ok = load(library, l, &why);
    do {
        if (ok) {
            report(l, &out);
        } else {
            struct jw w;
            jw_init(&w, &out);
            jw_obj(&w);
            jw_kstr(&w, "error", why.p);
            jw_obj_end(&w);
        }
        written = write_line(out_fd, &out);
    } while (written && ok && asked_again(in_fd));
    if (ok)
        CALL(l, nvmlShutdown);
    buf_done(&out);
    buf_done(&why);
    free(l); /* the library stays: its own threads may still run */
    return written ? 0 : 1;
}
