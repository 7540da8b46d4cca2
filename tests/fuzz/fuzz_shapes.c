/* A config.json of any bytes: shapes or one sentence, and finite sizes of what it took.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/err.h"
#include "topo/shapes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static struct shapes s;
    struct err e = {0};

    if (shapes_from_config("fuzz", (const char *)data, n, &s, &e) < 0)
        return *e.msg ? 0 : (abort(), 0);
    for (int l = 0; l < s.n_layer; l++)
        if (!(shapes_kv_token(&s, l, FORMAT_BF16, 8) + shapes_state(&s, l, 8) >= 0))
            abort();
    if (!isfinite(shapes_total(&s)) || shapes_active(&s) > shapes_total(&s))
        abort();
    return 0;
}
