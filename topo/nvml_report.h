/* topo/nvml_report.h - reads what the NVML helper wrote.
 *
 * Checked like any bytes from outside: a helper that dies in the middle of a line, or a
 * driver that says odd things, gives an error or an unknown value. Pure, any thread. */
#ifndef TOPO_NVML_REPORT_H
#define TOPO_NVML_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

enum { NVML_REPORT_BYTES_MAX = 4 << 20, NVML_NVLINKS_MAX = 36, NVML_MIGS_MAX = 16 };
enum nvml_remote { REMOTE_GPU = 0, REMOTE_SWITCH = 2, REMOTE_UNKNOWN = 255 };
enum nvml_fabric_state {
    FABRIC_ABSENT = -1, /* the driver has no such call */
    FABRIC_NONE = 0,
    FABRIC_NOT_STARTED = 1,
    FABRIC_IN_PROGRESS = 2,
    FABRIC_COMPLETED = 3
};

struct nvml_nvlink {
    bool known, active;
    int remote;             /* enum nvml_remote */
    char pci[24];           /* of the other end, "" unknown or hidden */
    int64_t tx_kib, rx_kib; /* data since the driver was loaded; -1 not told */
};

struct nvml_mig {
    char uuid[48], name[64];
    int gi, ci;
    double memory; /* 0 unknown */
};

struct nvml_gpu {
    int index;
    char error[128]; /* "" = it answers */
    char uuid[48], pci[24], name[64];
    int sm, numa; /* 0, -1 unknown */
    double memory;
    int pcie_gen, pcie_width;     /* at best; 0 unknown */
    int mig_current, mig_pending; /* 0 also where there is no MIG */
    struct nvml_mig *migs;
    int n_migs;
    struct nvml_nvlink links[NVML_NVLINKS_MAX];
    int n_links;
    int fabric_state; /* enum nvml_fabric_state */
    int fabric_status, fabric_summary;
    int64_t fabric_clique, fabric_health;
    char fabric_uuid[48], fabric_status_text[64];
    int c2c_count, c2c_active;
    double c2c_mbps;
    int recovery; /* 0 none, 1 reset, 2 reboot, 3 drain, 4 drain and reset, 5 domain */
    double ecc_uncorrected;
    bool remap_pending, remap_failed;
    int xid; /* last one, 0 none */
};

struct nvml_report {
    char driver[64], error[256]; /* error: NVML as a whole is not there */
    struct nvml_gpu *gpus;
    int n_gpus;
    int (*p2p_bad)[2]; /* indices: from, to */
    int n_p2p_bad, n_missing;
    char missing[96]; /* the first symbol that the library lacks */
};

int nvml_report_read(const char *json, size_t n, struct nvml_report **ret, struct err *e);
void nvml_report_free(struct nvml_report *r);

#endif
