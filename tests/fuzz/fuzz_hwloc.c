/* tests/fuzz/fuzz_hwloc.c - hwloc XML: any bytes load or are refused, with one sentence.
 */
#include "tests/fuzz/topo_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct graph *g = NULL;
    struct err e = {0};

    if (size > 1 << 16)
        return 0;
    if (topo_from_hwloc((const char *)data, size, "fuzz", NULL, &g, &e) < 0) {
        topo_fuzz_must(e.msg[0] && !g);
        return 0;
    }
    topo_fuzz_graph(g);
    graph_free(g);
    return 0;
}
