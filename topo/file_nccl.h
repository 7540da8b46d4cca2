/* topo/file_nccl.h - what the parts of the NCCL topology XML reader and writer share:
 * file_nccl.c (hosts, CPUs, NVLinks), nccl_tree.c (the PCI tree), nccl_out.c (writing).
 */
#ifndef TOPO_FILE_NCCL_H
#define TOPO_FILE_NCCL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "topo/graph.h"

struct err;
struct gpu_facts;
struct xml_node;

enum { HOSTS_MAX = 1024, NUMAS_MAX = 64 };

struct host_at {
    char hash[40];
    int node, numas[NUMAS_MAX], n_numas;
    int hidden; /* NVSwitch node behind which all switches hide, -1 */
};

/* One GPU or NVSwitch with its address, and where its <gpu> stands. */
struct part {
    int host, node, numa_node; /* host: place in hosts[] */
    uint64_t pci;
    const struct xml_node *gpu; /* NULL: injected, or an NVSwitch */
    int nvlinks;                /* that its model has, 0 unknown */
    double nvlink_bps;          /* of one link */
    bool nvswitch;
};

struct nic_at {
    int host;
    const char *name; /* of the document */
};

struct nccl {
    struct graph_builder *b;
    struct err *e;
    const struct gpu_facts *stated; /* the model that the operator named, or NULL */
    const struct xml_node *root;
    struct host_at *hosts;
    int n_hosts, network, rack_fabric, n_gpu_elements;
    struct part *parts;
    int n_parts, cap_parts;
    struct nic_at *virtual_nics;
    int n_virtual;
};

/* Where the walk stands. */
struct place {
    int host, numa_node, numa, under; /* under: node that children hang on */
};

/* All that hangs under a <cpu> or <pci>. */
int nccl_walk(struct nccl *c, struct place at, const struct xml_node *x);
void nccl_add_part(struct nccl *c, const struct part *p);
/* A node with the defaults that mean unknown. */
struct node nccl_blank(enum node_kind kind, int parent, int host);
int nccl_set_text(char *dst, size_t n, const char *src, const struct xml_node *x,
                  struct err *e);
void nccl_pci_text(uint64_t v, char *ret, size_t n);

/* CPU list "0-3,8" <-> hex mask "0000000f,00000100" (32-bit words, most significant
 * first; a word may be short). False where it does not fit or is malformed. */
bool cpus_from_mask(const char *mask, char *ret, size_t n);
bool cpus_to_mask(const char *cpus, char *ret, size_t n);

#endif
