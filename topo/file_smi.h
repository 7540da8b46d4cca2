/* topo/file_smi.h - what the parts of the nvidia-smi text reader share: file_smi.c (the
 * text: matrix, device lists, links), smi_tree.c (the graph that gives such a matrix). */
#ifndef TOPO_FILE_SMI_H
#define TOPO_FILE_SMI_H

#include <stdbool.h>

struct err;
struct gpu_facts;
struct graph_builder;

enum { SMI_ENDS_MAX = 256, SMI_GPUS_MAX = 256, SMI_MIGS_MAX = 1024 };

/* A cell: the PCI distance, or an NVLink that hides it. */
enum smi_level { LEVEL_PIX, LEVEL_PXB, LEVEL_PHB, LEVEL_NODE, LEVEL_SYS, LEVEL_HIDDEN };

struct smi_cell {
    unsigned char level; /* enum smi_level; of the diagonal: PIX */
    unsigned char nv;    /* NVLinks, 0 none */
    bool set;
};

/* A row of the matrix: a GPU or a NIC. */
struct smi_end {
    char label[32]; /* as in the header: GPU0, NIC3, mlx5_0 */
    char name[64];  /* NIC: from the legend, else the label */
    bool gpu, seen; /* seen: its row was read */
    int number;     /* of GPU<n> */
    char cpus[256];
    int numa; /* -1 unknown */
};

/* "GPU 3: NVIDIA H200 (UUID: GPU-..)" and the lines below it. */
struct smi_gpu {
    int number;
    char model[64], uuid[48];
    int links, active; /* of nvlink -s; links 0 = not in the text */
    bool all_inactive;
};

struct smi_mig {
    int gpu; /* place in gpus[] */
    int number;
    char profile[24], uuid[48];
};

struct smi {
    struct smi_end *ends;   /* SMI_ENDS_MAX */
    struct smi_cell *cells; /* n_ends x n_ends */
    int n_ends;
    struct smi_gpu *gpus; /* SMI_GPUS_MAX */
    int n_gpus;
    struct smi_mig *migs; /* SMI_MIGS_MAX */
    int n_migs;
    const struct gpu_facts *stated;
    struct graph_builder *b;
};

/* What nvidia-smi's list says of GPU n, or NULL. */
const struct smi_gpu *smi_gpu_at(const struct smi *s, int number);
/* Adds all that was read to s->b. */
int smi_build(struct smi *s, struct err *e);

#endif
