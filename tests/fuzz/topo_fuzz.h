/* tests/fuzz/topo_fuzz.h - what holds of any bytes that load as a rack. */
#ifndef TESTS_FUZZ_TOPO_FUZZ_H
#define TESTS_FUZZ_TOPO_FUZZ_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "topo/file.h"
#include "topo/finding.h"
#include "topo/graph.h"
#include "topo/path.h"
#include "topo/show.h"

enum { FUZZ_ENDS_MAX = 64 };

static void topo_fuzz_must(int ok)
{
    if (!ok)
        abort();
}

/* JSON loses nothing; paths, findings and text of it end. */
static void topo_fuzz_graph(const struct graph *g)
{
    struct buf a, b;
    struct graph *back = NULL;
    struct err e = {0};
    struct paths *p;
    const int *dev;

    buf_init(&a, 0);
    buf_init(&b, 0);
    topo_to_json(g, NULL, &a);
    if (a.len <= TOPO_BYTES_MAX) {
        topo_fuzz_must(topo_from_json(a.p, a.len, &back, &e) == 0);
        topo_to_json(back, NULL, &b);
        /* emulated, as every rack from bytes */
        topo_fuzz_must(a.len == b.len && !memcmp(a.p, b.p, a.len));
        topo_fuzz_must(graph_diff(g, back, NULL, NULL) == 0);
        graph_free(back);
    }
    if (graph_devices(g, &dev) + graph_count(g, NODE_NIC) <= FUZZ_ENDS_MAX) {
        struct findings *f = findings_new(g, NULL, "host0");
        topo_fuzz_must(paths_new(g, &p, &e) == 0);
        topo_show_tree(g, &b);
        topo_show_matrix(g, p, &b);
        topo_show_findings(f, &b);
        paths_free(p);
        findings_free(f);
    }
    buf_clear(&a);
    if (topo_to_nccl(g, &a, &e) == 0) {
        back = NULL;
        if (topo_from_nccl(a.p, a.len, "again", NULL, &back, &e) < 0)
            topo_fuzz_must(e.msg[0] != 0);
        graph_free(back);
    }
    buf_done(&a);
    buf_done(&b);
}

#endif
