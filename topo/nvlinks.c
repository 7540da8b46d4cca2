/* topo/nvlinks.c - counters of two readings, matched by GPU and link. */
#include "topo/nvlinks.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "topo/facts.h"
#include "topo/nvml_report.h"

static double link_bps(const struct nvml_gpu *g)
{
    const struct gpu_facts *f = facts_gpu(g->name);

    return f && f->nvlink_bps > 0 ? f->nvlink_bps : facts_nvlink_bps(g->sm);
}

int nvlinks_of(const struct nvml_report *r, struct nvlink_count **ret)
{
    struct nvlink_count *v = NULL;
    int n = 0;

    for (int i = 0; r && i < r->n_gpus; i++)
        for (int k = 0; k < r->gpus[i].n_links; k++) {
            const struct nvml_nvlink *l = &r->gpus[i].links[k];

            if (!l->active || (l->tx_kib < 0 && l->rx_kib < 0))
                continue;
            v = v ? v : xcalloc((size_t)r->n_gpus * NVML_NVLINKS_MAX, sizeof(*v));
            v[n] = (struct nvlink_count){.link = k,
                                         .bps = link_bps(&r->gpus[i]),
                                         .tx_kib = l->tx_kib,
                                         .rx_kib = l->rx_kib,
                                         .tx_bps = -1,
                                         .rx_bps = -1};
            memcpy(v[n].device, r->gpus[i].pci, sizeof(v[n].device));
            memcpy(v[n].to, l->pci, sizeof(v[n].to));
            n++;
        }
    *ret = v;
    return n;
}

static double rate(int64_t now, int64_t was, int64_t us)
{
    return was < 0 || now < was || us <= 0
               ? -1
               : (double)(now - was) * 1024 * 1e6 / (double)us;
}

void nvlinks_rate(struct nvlink_count *now, int n, const struct nvlink_count *was,
                  int n_was, int64_t us)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n_was; k++) {
            if (now[i].link != was[k].link || strcmp(now[i].device, was[k].device))
                continue;
            now[i].tx_bps = rate(now[i].tx_kib, was[k].tx_kib, us);
            now[i].rx_bps = rate(now[i].rx_kib, was[k].rx_kib, us);
        }
}
