/* tests/unit/fake_graph.h - a recorded graph as the input of tests/tools/fake_nvml.c, so
 * that the driver of any recorded machine can be asked again. */
#ifndef TESTS_UNIT_FAKE_GRAPH_H
#define TESTS_UNIT_FAKE_GRAPH_H

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "topo/graph.h"

/* An address as NVML writes it: eight digits of domain, capitals. */
static inline void fake_address(const char *pci, char ret[32])
{
    unsigned domain, bus, dev, fn;

    snprintf(ret, 32, "FFFFFFFF:FF:FF.0");
    if (sscanf(pci, "%x:%x:%x.%x", &domain, &bus, &dev, &fn) == 4)
        snprintf(ret, 32, "%08X:%02X:%02X.%X", domain, bus, dev, fn);
}

/* One line for each link that the GPU has, in the order of the graph. */
static inline int fake_links(const struct graph *g, int gpu, int at, struct buf *out)
{
    const int *links;
    int n = graph_links_at(g, gpu, &links), k = 0;

    for (int i = 0; i < n; i++) {
        const struct link *l = graph_link(g, links[i]);
        const struct node *peer = graph_node(g, l->a == gpu ? l->b : l->a);
        char addr[32];
        if (l->kind != LINK_NVLINK)
            continue;
        fake_address(peer->pci, addr);
        for (int w = 0; w < l->width; w++, k++) {
            buf_printf(out, "gpu%d.nvlink%d.to=", at, k);
            if (peer->kind == NODE_NVSWITCH && !peer->pci[0])
                buf_puts(out, "hidden\n");
            else
                buf_printf(out, "%s%s\n", peer->kind == NODE_NVSWITCH ? "s" : "", addr);
        }
    }
    return k;
}

/* The driver of one host. Returns its GPUs. */
static inline int fake_from_graph(const struct graph *g, int host, struct buf *out)
{
    const int *dev;
    int n = graph_devices(g, &dev), k = 0;

    for (int i = 0; i < n; i++) {
        const struct node *d = graph_node(g, dev[i]);
        char addr[32];
        if (d->host != host || d->is_cpu || d->mig)
            continue;
        fake_address(d->pci[0] ? d->pci : d->name, addr);
        buf_printf(out,
                   "gpu%d.uuid=GPU-%s\ngpu%d.pci=%s\ngpu%d.name=%s\ngpu%d.sm=%d\n"
                   "gpu%d.memory=%.0f\ngpu%d.numa=0\ngpu%d.mig.current=0\n",
                   k, addr, k, addr, k, d->model, k, d->sm, k, d->memory_bytes.v, k, k);
        /* a fabric that spans hosts has a name; its bytes are all 0x11 in the fake */
        buf_printf(out, "gpu%d.fabric=3 0 %lld 170 1 %d\n", k,
                   (long long)(d->clique < 0 ? 0 : d->clique),
                   d->fabric_uuid[0] ? 17 : 0);
        buf_printf(out, "gpu%d.nvlinks=%d\n", k, fake_links(g, dev[i], k, out));
        k++;
    }
    buf_printf(out, "driver=570.1\ncount=%d\n", k);
    return k;
}

#endif
