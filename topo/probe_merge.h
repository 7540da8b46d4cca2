/* topo/probe_merge.h - what the two files of the merging share: the graph under
 * construction. */
#ifndef TOPO_PROBE_MERGE_H
#define TOPO_PROBE_MERGE_H

#include "topo/graph.h"

struct nvml_report;
struct pci_item;
struct pci_report;

enum { MERGE_SWITCHES_MAX = 64 };

struct merge {
    struct graph_builder *b;
    const struct pci_report *pci;
    const struct nvml_report *nvml; /* NULL none */
    int host, network;
    int *numa; /* node of pci->numas[i], -1 none */
    int *node; /* node of pci->items[i], -1 none (yet) */
    int *gpu;  /* node of nvml->gpus[i], -1 none */
    int n_gpus;
    int fabric; /* the one switch that stands for those nobody can see, -1 none */
    struct {
        char pci[24];
        int node;
    } switches[MERGE_SWITCHES_MAX];
    int n_switches;
};

struct node merge_blank(const struct merge *m, enum node_kind kind, int parent);
int merge_join(struct merge *m, int a, int b, enum link_kind kind, int width,
               struct fact nominal, struct err *e);
int merge_numa(const struct merge *m, int number); /* node, -1 */
/* it NULL or without a speed: 16 lanes of generation 3, assumed. */
int merge_pci_link(struct merge *m, int node, int parent, const struct pci_item *it,
                   struct err *e);
/* GPUs, MIG instances, NVSwitches, NVLinks, C2C; probe_gpu.c. Sets n_gpus. */
int merge_gpus(struct merge *m, struct err *e);
/* Of GPUs that are there; probe_nvlink.c. */
int merge_nvlinks(struct merge *m, struct err *e);

#endif
