/* tests/tools/fake_nvml.c - a libnvidia-ml that says what a text file tells it to.
 *
 * Built by the tests into a shared library; FAKE_NVML names the file. A line is
 * `key=value`. Keys of GPU n stand under "gpun."; those of its MIG instance m under
 * "gpun.migm.". `rc.FUNCTION=15` (or `gpun.rc.FUNCTION`) makes a call fail with that
 * code; `do.FUNCTION=hang|crash|stop` (same) never returns, dies, or stops the process. A
 * function is taken out by compiling with -DFUNCTION=gone_FUNCTION. The file is read at
 * each call, so a test may change the machine while the helper runs. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "topo/nvml_abi.h"

#define X(name, args) int name args;
NVML_MAP(X)
#undef X

static char handle[256][17]; /* [gpu][0] the GPU, [1 + m] an instance */

static int get(const char *key, char *ret, size_t n)
{
    const char *path = getenv("FAKE_NVML");
    FILE *f = path ? fopen(path, "r") : NULL;
    char line[512];
    int found = 0;

    while (f && !found && fgets(line, sizeof(line), f)) {
        char *eq = strchr(line, '=');
        if (!eq)
            continue;
        *eq = '\0';
        if (strcmp(line, key))
            continue;
        eq[1 + strcspn(eq + 1, "\n")] = '\0';
        snprintf(ret, n, "%s", eq + 1);
        found = 1;
    }
    if (f)
        fclose(f);
    return found;
}

static int prefix(nvml_dev d, char *ret, size_t n)
{
    long at = d ? (char *)d - &handle[0][0] : -1;

    ret[0] = '\0';
    if (at < 0 || at >= (long)sizeof(handle))
        return -1;
    if (at % 17)
        snprintf(ret, n, "gpu%ld.mig%ld.", at / 17, at % 17 - 1);
    else
        snprintf(ret, n, "gpu%ld.", at / 17);
    return (int)(at / 17);
}

static int text(nvml_dev d, const char *key, char *ret, size_t n)
{
    char full[128], pre[64];

    prefix(d, pre, sizeof(pre));
    snprintf(full, sizeof(full), "%s%s", pre, key);
    return get(full, ret, n);
}

/* Number of a key; 3 (not supported) where the file has none. */
static int number(nvml_dev d, const char *key, double *ret)
{
    char v[128];

    if (!text(d, key, v, sizeof(v)))
        return NVML_UNSUPPORTED;
    *ret = strtod(v, NULL);
    return NVML_OK;
}

static int told(nvml_dev d, const char *function)
{
    char key[128], v[64];

    snprintf(key, sizeof(key), "do.%s", function);
    if (text(d, key, v, sizeof(v)) || get(key, v, sizeof(v))) {
        if (!strcmp(v, "crash"))
            raise(SIGABRT);
        if (!strcmp(v, "stop"))
            raise(SIGSTOP);
        while (!strcmp(v, "hang"))
            pause();
    }
    snprintf(key, sizeof(key), "rc.%s", function);
    if (text(d, key, v, sizeof(v)) || get(key, v, sizeof(v)))
        return atoi(v);
    return NVML_OK;
}

#define TOLD(d)                                                                          \
    do {                                                                                 \
        int told_rc = told(d, __func__);                                                 \
        if (told_rc)                                                                     \
            return told_rc;                                                              \
    } while (0)

static int put_unsigned(nvml_dev d, const char *key, unsigned *ret)
{
    double v;
    int rc = number(d, key, &v);

    if (rc == NVML_OK)
        *ret = (unsigned)v;
    return rc;
}

static int put_text(nvml_dev d, const char *key, char *ret, unsigned n)
{
    return text(d, key, ret, n) ? NVML_OK : NVML_UNSUPPORTED;
}

int nvmlInit_v2(void)
{
    TOLD(NULL);
    return NVML_OK;
}
int nvmlShutdown(void)
{
    TOLD(NULL);
    return NVML_OK;
}
int nvmlSystemGetDriverVersion(char *s, unsigned n)
{
    TOLD(NULL);
    return put_text(NULL, "driver", s, n);
}
int nvmlDeviceGetCount_v2(unsigned *n)
{
    TOLD(NULL);
    return put_unsigned(NULL, "count", n);
}
int nvmlDeviceGetHandleByIndex_v2(unsigned i, nvml_dev *d)
{
    if (i >= 256)
        return NVML_INVALID;
    TOLD(&handle[i][0]);
    *d = &handle[i][0];
    return NVML_OK;
}
int nvmlDeviceGetUUID(nvml_dev d, char *s, unsigned n)
{
    TOLD(d);
    return put_text(d, "uuid", s, n);
}
int nvmlDeviceGetName(nvml_dev d, char *s, unsigned n)
{
    TOLD(d);
    return put_text(d, "name", s, n);
}
static int put_pci(nvml_dev d, const char *key, struct nvml_pci *p)
{
    return text(d, key, p->busid, sizeof(p->busid)) ? NVML_OK : NVML_UNSUPPORTED;
}
int nvmlDeviceGetPciInfo_v3(nvml_dev d, struct nvml_pci *p)
{
    TOLD(d);
    return put_pci(d, "pci", p);
}
int nvmlDeviceGetCudaComputeCapability(nvml_dev d, int *major, int *minor)
{
    double v;
    TOLD(d);
    if (number(d, "sm", &v))
        return NVML_UNSUPPORTED;
    *major = (int)v / 10;
    *minor = (int)v % 10;
    return NVML_OK;
}
int nvmlDeviceGetMemoryInfo_v2(nvml_dev d, struct nvml_memory_v2 *m)
{
    double v;
    TOLD(d);
    if (m->version != NVML_MEMORY_V2)
        return NVML_VERSION;
    if (number(d, "memory", &v))
        return NVML_UNSUPPORTED;
    m->total = (uint64_t)v;
    m->used = 1 << 20;
    m->reserved = 2 << 20;
    return NVML_OK;
}
int nvmlDeviceGetMemoryInfo(nvml_dev d, struct nvml_memory *m)
{
    double v;
    TOLD(d);
    if (number(d, "memory", &v))
        return NVML_UNSUPPORTED;
    m->total = (uint64_t)v;
    m->used = 3 << 20;
    return NVML_OK;
}
int nvmlDeviceGetMemoryAffinity(nvml_dev d, unsigned n, unsigned long *set,
                                unsigned scope)
{
    unsigned v;
    (void)scope;
    TOLD(d);
    if (put_unsigned(d, "numa", &v) || v / 64 >= n)
        return NVML_UNSUPPORTED;
    set[v / 64] |= 1ul << v % 64;
    return NVML_OK;
}
int nvmlDeviceGetMaxPcieLinkGeneration(nvml_dev d, unsigned *v)
{
    TOLD(d);
    return put_unsigned(d, "max_gen", v);
}
int nvmlDeviceGetMaxPcieLinkWidth(nvml_dev d, unsigned *v)
{
    TOLD(d);
    return put_unsigned(d, "max_width", v);
}
int nvmlDeviceGetCurrPcieLinkGeneration(nvml_dev d, unsigned *v)
{
    TOLD(d);
    return put_unsigned(d, "gen", v);
}
int nvmlDeviceGetCurrPcieLinkWidth(nvml_dev d, unsigned *v)
{
    TOLD(d);
    return put_unsigned(d, "width", v);
}
int nvmlDeviceGetMigMode(nvml_dev d, unsigned *current, unsigned *pending)
{
    TOLD(d);
    if (put_unsigned(d, "mig.current", current))
        return NVML_UNSUPPORTED;
    *pending = *current;
    put_unsigned(d, "mig.pending", pending);
    return NVML_OK;
}
int nvmlDeviceGetMaxMigDeviceCount(nvml_dev d, unsigned *n)
{
    TOLD(d);
    *n = 7;
    return NVML_OK;
}
int nvmlDeviceGetMigDeviceHandleByIndex(nvml_dev d, unsigned i, nvml_dev *m)
{
    char v[64];
    TOLD(d);
    if (i >= 16 || !text((char *)d + 1 + i, "uuid", v, sizeof(v)))
        return NVML_NOTFOUND;
    *m = (char *)d + 1 + i;
    return NVML_OK;
}
int nvmlDeviceGetGpuInstanceId(nvml_dev d, unsigned *v)
{
    TOLD(d);
    return put_unsigned(d, "gi", v);
}
int nvmlDeviceGetComputeInstanceId(nvml_dev d, unsigned *v)
{
    TOLD(d);
    return put_unsigned(d, "ci", v);
}

/* nvlinks=18 ; nvlink3=down | fail ; nvlink.to=switch | hidden | <PCI address> ;
 * nvlink3.to=... for one of them */
static int link_count(nvml_dev d)
{
    unsigned n = 0;
    return put_unsigned(d, "nvlinks", &n) ? 0 : (int)n;
}
int nvmlDeviceGetNvLinkState(nvml_dev d, unsigned link, int *on)
{
    char key[32], v[64];
    TOLD(d);
    if ((int)link >= link_count(d))
        return NVML_INVALID;
    snprintf(key, sizeof(key), "nvlink%u", link);
    *on = 1;
    if (text(d, key, v, sizeof(v))) {
        if (!strcmp(v, "fail"))
            return NVML_UNKNOWN;
        *on = strcmp(v, "down") != 0;
    }
    return NVML_OK;
}
static int link_to(nvml_dev d, unsigned link, char *v, size_t n)
{
    char key[32];
    snprintf(key, sizeof(key), "nvlink%u.to", link);
    return text(d, key, v, n) || text(d, "nvlink.to", v, n);
}
int nvmlDeviceGetNvLinkRemoteDeviceType(nvml_dev d, unsigned link, int *type)
{
    char v[64];
    TOLD(d);
    if (!link_to(d, link, v, sizeof(v)))
        return NVML_UNSUPPORTED;
    *type = !strcmp(v, "hidden") || strchr(v, 's') ? 2 : 0;
    return NVML_OK;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(nvml_dev d, unsigned link, struct nvml_pci *p)
{
    char v[64];
    TOLD(d);
    if (!link_to(d, link, v, sizeof(v)))
        return NVML_UNSUPPORTED;
    if (!strcmp(v, "hidden"))
        snprintf(p->busid, sizeof(p->busid), "FFFFFFFF:FF:FF.0");
    else /* "s" in front marks a switch */
        snprintf(p->busid, sizeof(p->busid), "%.31s", v[0] == 's' ? v + 1 : v);
    return NVML_OK;
}
/* nvlink3.tx=KIB, nvlink3.rx, or for all of a GPU nvlink.tx, nvlink.rx */
static void put_traffic(nvml_dev d, struct nvml_field *f)
{
    const char *way = f->id == NVML_FI_LINK_TX ? "tx" : "rx";
    char key[32], any[32], v[64];

    snprintf(key, sizeof(key), "nvlink%u.%s", f->scope, way);
    snprintf(any, sizeof(any), "nvlink.%s", way);
    if (!text(d, key, v, sizeof(v)) && !text(d, any, v, sizeof(v)))
        return;
    f->type = NVML_V_ULL;
    f->v.ull = strtoull(v, NULL, 10);
    f->rc = NVML_OK;
}
int nvmlDeviceGetFieldValues(nvml_dev d, int n, struct nvml_field *f)
{
    char key[32];
    double v;
    TOLD(d);
    for (int i = 0; i < n; i++) {
        f[i].type = NVML_V_UINT;
        f[i].rc = NVML_UNSUPPORTED;
        if (f[i].id == NVML_FI_LINK_COUNT && link_count(d)) {
            f[i].v.ui = (uint32_t)link_count(d);
            f[i].rc = NVML_OK;
            continue;
        }
        if (f[i].id == NVML_FI_LINK_TX || f[i].id == NVML_FI_LINK_RX) {
            put_traffic(d, &f[i]);
            continue;
        }
        snprintf(key, sizeof(key), "field%u", f[i].id);
        if (number(d, key, &v) == NVML_OK) {
            f[i].v.ui = (uint32_t)v;
            f[i].rc = NVML_OK;
        }
    }
    return NVML_OK;
}

/* fabric=STATE STATUS CLIQUE HEALTH SUMMARY BYTE (repeated in the UUID); fabric.version
 */
static int read_fabric(nvml_dev d, struct nvml_fabric *f)
{
    unsigned s, st, c, h, su, byte;
    char v[128];

    if (!text(d, "fabric", v, sizeof(v)) ||
        sscanf(v, "%u %u %u %u %u %u", &s, &st, &c, &h, &su, &byte) != 6)
        return NVML_UNSUPPORTED;
    f->state = (uint8_t)s;
    f->status = st;
    f->clique = c;
    f->health = h;
    memset(f->uuid, (int)byte, sizeof(f->uuid));
    if (f->version == NVML_FABRIC_V3)
        f->summary = (uint8_t)su;
    return NVML_OK;
}
int nvmlDeviceGetGpuFabricInfoV(nvml_dev d, struct nvml_fabric *f)
{
    double version = 3;
    TOLD(d);
    number(NULL, "fabric.version", &version);
    if (f->version >> 24 > (unsigned)version)
        return NVML_VERSION;
    return read_fabric(d, f);
}
int nvmlDeviceGetGpuFabricInfo(nvml_dev d, struct nvml_fabric_v1 *f)
{
    struct nvml_fabric all = {0};
    TOLD(d);
    int rc = read_fabric(d, &all);
    memcpy(f->uuid, all.uuid, sizeof(f->uuid));
    f->state = all.state;
    f->status = all.status;
    f->clique = all.clique;
    return rc;
}
int nvmlDeviceGetP2PStatus(nvml_dev a, nvml_dev b, int index, int *status)
{
    char pre[64], key[64], v[16];
    TOLD(a);
    (void)index;
    snprintf(key, sizeof(key), "p2p_bad%d", prefix(b, pre, sizeof(pre)));
    *status = text(a, key, v, sizeof(v)) ? 5 : 0;
    return NVML_OK;
}
int nvmlDeviceGetClockInfo(nvml_dev d, int type, unsigned *v)
{
    TOLD(d);
    return put_unsigned(d, type == 1 ? "sm_mhz" : "memory_mhz", v);
}
int nvmlDeviceGetPowerUsage(nvml_dev d, unsigned *v)
{
    TOLD(d);
    return put_unsigned(d, "power", v);
}
int nvmlDeviceGetEnforcedPowerLimit(nvml_dev d, unsigned *v)
{
    TOLD(d);
    return put_unsigned(d, "power_limit", v);
}
int nvmlDeviceGetTemperature(nvml_dev d, int sensor, unsigned *v)
{
    (void)sensor;
    TOLD(d);
    return put_unsigned(d, "celsius", v);
}
int nvmlDeviceGetUtilizationRates(nvml_dev d, struct nvml_use *u)
{
    TOLD(d);
    u->memory = 5;
    return put_unsigned(d, "use", &u->gpu);
}
int nvmlDeviceGetTotalEccErrors(nvml_dev d, int kind, int counter, unsigned long long *n)
{
    double v;
    (void)counter;
    TOLD(d);
    if (number(d, kind ? "ecc.uncorrected" : "ecc.corrected", &v))
        return NVML_UNSUPPORTED;
    *n = (unsigned long long)v;
    return NVML_OK;
}
int nvmlDeviceGetRemappedRows(nvml_dev d, unsigned *c, unsigned *u, unsigned *pending,
                              unsigned *failed)
{
    TOLD(d);
    *c = *u = *pending = *failed = 0;
    put_unsigned(d, "remap.pending", pending);
    return put_unsigned(d, "remap.failed", failed);
}
int nvmlEventSetCreate(void **set)
{
    static char one;
    TOLD(NULL);
    *set = &one;
    return NVML_OK;
}
int nvmlDeviceRegisterEvents(nvml_dev d, unsigned long long types, void *set)
{
    (void)types;
    (void)set;
    TOLD(d);
    return NVML_OK;
}
/* xid=79 on gpu3: reported once by this process */
int nvmlEventSetWait_v2(void *set, struct nvml_event *ev, unsigned ms)
{
    static char done[256];
    double v;

    (void)set;
    (void)ms;
    TOLD(NULL);
    for (int i = 0; i < 256; i++)
        if (!done[i] && number(&handle[i][0], "xid", &v) == NVML_OK) {
            done[i] = 1;
            ev->dev = &handle[i][0];
            ev->type = NVML_EVENT_XID;
            ev->data = (uint64_t)v;
            return NVML_OK;
        }
    return NVML_TIMEOUT;
}
