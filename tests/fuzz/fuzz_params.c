/* tests/fuzz/fuzz_params.c - HTTP bodies: the first byte picks the endpoint. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/err.h"
#include "daemon/api/params.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct params *p = NULL;
    struct err e = {0};

    if (size < 1)
        return 0;
    if (params_parse((const char *)data + 1, size - 1,
                     data[0] & 1 ? PARAMS_CHAT : PARAMS_TEXT, &p, &e) < 0) {
        if (p || !e.msg[0])
            abort();
        return 0;
    }
    params_check_model(p, 1000, &e);
    if (p->n < 1 || p->n > PARAMS_MAX_N || p->n_stop > PARAMS_MAX_STOP ||
        p->gen.n_bias > PARAMS_MAX_BIAS || p->gen.n_top > STEP_TOP_MAX)
        abort();
    for (int i = 0; i < p->n_unknown; i++)
        if (!params_unknown(p, i))
            abort();
    params_free(p);
    return 0;
}
