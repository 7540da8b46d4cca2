/* topo/nvml_abi.h - NVML as far as we call it: our own declarations of its binary shape.
 *
 * The maker's header is not needed to build. Layouts hold for x86-64 and aarch64 and are
 * checked at compile time. NVML_MAP is the one list of functions: the loader fills a
 * pointer per row, NULL where the library has none. Only probe_nvml.c (and the fake
 * library of the tests) includes this. */
#ifndef TOPO_NVML_ABI_H
#define TOPO_NVML_ABI_H

#include <assert.h>
#include <stdint.h>

typedef void *nvml_dev;

struct nvml_pci {
    char legacy[16]; /* cut: never used */
    uint32_t domain, bus, device, device_id, subsystem;
    char busid[32]; /* "%08X:%02X:%02X.0" */
};
struct nvml_memory {
    uint64_t total, free, used; /* used holds the reserved part too */
};
struct nvml_memory_v2 {
    uint32_t version, pad;
    uint64_t total, reserved, free, used;
};
struct nvml_field {
    uint32_t id, scope;
    int64_t time, latency_us;
    uint32_t type, rc;
    union {
        double d;
        uint32_t ui;
        uint64_t ull;
        int64_t sll;
    } v;
};
struct nvml_fabric_v1 {
    uint8_t uuid[16];
    uint32_t status, clique;
    uint8_t state;
};
struct nvml_fabric { /* v2 is this without the summary */
    uint32_t version;
    uint8_t uuid[16];
    uint32_t status, clique;
    uint8_t state;
    uint32_t health;
    uint8_t summary;
};
struct nvml_use {
    uint32_t gpu, memory;
};
struct nvml_event {
    nvml_dev dev;
    uint64_t type, data;
    uint32_t gi, ci;
};
static_assert(sizeof(struct nvml_pci) == 68, "nvmlPciInfo_t");
static_assert(sizeof(struct nvml_memory_v2) == 40, "nvmlMemory_v2_t");
static_assert(sizeof(struct nvml_field) == 40, "nvmlFieldValue_t");
static_assert(sizeof(struct nvml_fabric_v1) == 28, "nvmlGpuFabricInfo_t");
static_assert(sizeof(struct nvml_fabric) == 40, "nvmlGpuFabricInfo_v3_t");
static_assert(sizeof(struct nvml_event) == 32, "nvmlEventData_t");

#define NVML_MEMORY_V2 0x2000028u
#define NVML_FABRIC_V2 0x2000024u
#define NVML_FABRIC_V3 0x3000028u

enum { NVML_LINKS_MAX = 36, NVML_EVENT_XID = 8 };
enum nvml_field_id {
    NVML_FI_LINK_COUNT = 91,
    NVML_FI_LINK_TX = 138, /* data in KiB since the driver was loaded, scope = link */
    NVML_FI_LINK_RX = 139,
    NVML_FI_C2C_COUNT = 170,
    NVML_FI_C2C_STATUS = 171,
    NVML_FI_C2C_BW = 172, /* MB/s, scope = link */
    NVML_FI_RECOVERY = 230
};
enum nvml_value_type {
    NVML_V_DOUBLE,
    NVML_V_UINT,
    NVML_V_ULONG,
    NVML_V_ULL,
    NVML_V_SLL,
    NVML_V_INT
};

#define NVML_RC_MAP(X)                                                                   \
    X(OK, 0, "success")                                                                  \
    X(UNINITIALIZED, 1, "not initialised")                                               \
    X(INVALID, 2, "invalid argument")                                                    \
    X(UNSUPPORTED, 3, "not supported")                                                   \
    X(DENIED, 4, "no permission")                                                        \
    X(NOTFOUND, 6, "not found")                                                          \
    X(SIZE, 7, "buffer too small")                                                       \
    X(POWER, 8, "external power cable missing")                                          \
    X(NODRIVER, 9, "driver not loaded")                                                  \
    X(TIMEOUT, 10, "time-out")                                                           \
    X(IRQ, 11, "interrupt problem")                                                      \
    X(NOLIBRARY, 12, "library not found")                                                \
    X(NOFUNCTION, 13, "function not found")                                              \
    X(INFOROM, 14, "infoROM is damaged")                                                 \
    X(LOST, 15, "GPU is lost")                                                           \
    X(RESET, 16, "GPU needs a reset")                                                    \
    X(BLOCKED, 17, "blocked by the operating system")                                    \
    X(MISMATCH, 18, "library and driver differ in version")                              \
    X(INUSE, 19, "in use")                                                               \
    X(MEMORY, 20, "out of memory")                                                       \
    X(NODATA, 21, "no data")                                                             \
    X(ECC, 22, "ECC state does not allow it")                                            \
    X(RESOURCES, 23, "insufficient resources")                                           \
    X(VERSION, 25, "argument version mismatch")                                          \
    X(UNKNOWN, 999, "unknown error")
enum nvml_rc {
#define X(id, n, text) NVML_##id = n,
    NVML_RC_MAP(X)
#undef X
};

/* name, arguments; all return enum nvml_rc */
#define NVML_MAP(X)                                                                      \
    X(nvmlInit_v2, (void))                                                               \
    X(nvmlShutdown, (void))                                                              \
    X(nvmlSystemGetDriverVersion, (char *, unsigned))                                    \
    X(nvmlDeviceGetCount_v2, (unsigned *))                                               \
    X(nvmlDeviceGetHandleByIndex_v2, (unsigned, nvml_dev *))                             \
    X(nvmlDeviceGetUUID, (nvml_dev, char *, unsigned))                                   \
    X(nvmlDeviceGetName, (nvml_dev, char *, unsigned))                                   \
    X(nvmlDeviceGetPciInfo_v3, (nvml_dev, struct nvml_pci *))                            \
    X(nvmlDeviceGetCudaComputeCapability, (nvml_dev, int *, int *))                      \
    X(nvmlDeviceGetMemoryInfo_v2, (nvml_dev, struct nvml_memory_v2 *))                   \
    X(nvmlDeviceGetMemoryInfo, (nvml_dev, struct nvml_memory *))                         \
    X(nvmlDeviceGetMemoryAffinity, (nvml_dev, unsigned, unsigned long *, unsigned))      \
    X(nvmlDeviceGetMaxPcieLinkGeneration, (nvml_dev, unsigned *))                        \
    X(nvmlDeviceGetMaxPcieLinkWidth, (nvml_dev, unsigned *))                             \
    X(nvmlDeviceGetCurrPcieLinkGeneration, (nvml_dev, unsigned *))                       \
    X(nvmlDeviceGetCurrPcieLinkWidth, (nvml_dev, unsigned *))                            \
    X(nvmlDeviceGetMigMode, (nvml_dev, unsigned *, unsigned *))                          \
    X(nvmlDeviceGetMaxMigDeviceCount, (nvml_dev, unsigned *))                            \
    X(nvmlDeviceGetMigDeviceHandleByIndex, (nvml_dev, unsigned, nvml_dev *))             \
    X(nvmlDeviceGetGpuInstanceId, (nvml_dev, unsigned *))                                \
    X(nvmlDeviceGetComputeInstanceId, (nvml_dev, unsigned *))                            \
    X(nvmlDeviceGetNvLinkState, (nvml_dev, unsigned, int *))                             \
    X(nvmlDeviceGetNvLinkRemoteDeviceType, (nvml_dev, unsigned, int *))                  \
    X(nvmlDeviceGetNvLinkRemotePciInfo_v2, (nvml_dev, unsigned, struct nvml_pci *))      \
    X(nvmlDeviceGetFieldValues, (nvml_dev, int, struct nvml_field *))                    \
    X(nvmlDeviceGetGpuFabricInfoV, (nvml_dev, struct nvml_fabric *))                     \
    X(nvmlDeviceGetGpuFabricInfo, (nvml_dev, struct nvml_fabric_v1 *))                   \
    X(nvmlDeviceGetP2PStatus, (nvml_dev, nvml_dev, int, int *))                          \
    X(nvmlDeviceGetClockInfo, (nvml_dev, int, unsigned *))                               \
    X(nvmlDeviceGetPowerUsage, (nvml_dev, unsigned *))                                   \
    X(nvmlDeviceGetEnforcedPowerLimit, (nvml_dev, unsigned *))                           \
    X(nvmlDeviceGetTemperature, (nvml_dev, int, unsigned *))                             \
    X(nvmlDeviceGetUtilizationRates, (nvml_dev, struct nvml_use *))                      \
    X(nvmlDeviceGetTotalEccErrors, (nvml_dev, int, int, unsigned long long *))           \
    X(nvmlDeviceGetRemappedRows,                                                         \
      (nvml_dev, unsigned *, unsigned *, unsigned *, unsigned *))                        \
    X(nvmlEventSetCreate, (void **))                                                     \
    X(nvmlDeviceRegisterEvents, (nvml_dev, unsigned long long, void *))                  \
    X(nvmlEventSetWait_v2, (void *, struct nvml_event *, unsigned))

#endif
