/* Any text as layout words: refused in one sentence, or printed and read back the same.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "topo/layout.h"
#include "topo/shapes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct shapes s = {.n_layer = 4,
                              .hidden = 64,
                              .n_head = 8,
                              .n_kv = 4,
                              .head_dim = 8,
                              .inter = 128,
                              .n_expert = 16,
                              .topk = 2,
                              .moe_inter = 32,
                              .expert_hidden = 64};
    struct layout l, again;
    struct err e = {0};
    char text[512], out[256];

    if (n >= sizeof(text))
        return 0;
    memcpy(text, data, n);
    text[n] = '\0';
    if (layout_parse(text, &l, &e) < 0) {
        if (!*e.msg)
            abort();
        return 0;
    }
    layout_print(&l, out, sizeof(out));
    if (layout_parse(out, &again, &e) < 0 || memcmp(&l, &again, sizeof(l)) != 0)
        abort();
    for (int i = 0; i < 2; i++, s.n_expert = s.n_expert ? 0 : 16)
        if (layout_check(&l, &s, 0, &e) == LAYOUT_NONE)
            for (int stage = 0; stage < l.pp; stage++) {
                int first;
                if (layout_layers(&l, &s, stage, &first) < 1)
                    abort();
            }
    return 0;
}
