/* Any text as config.json: understood within the limits, or refused in one sentence. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "daemon/serve/model.h"
#include "daemon/serve/modelinfo.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct model_info info;
    struct err e = {0};

    if (modelinfo_from_config("f", (const char *)data, n, &info, &e) < 0) {
        if (e.code == ERR_OK || strncmp(e.msg, "f: ", 3) != 0 || strchr(e.msg, '\n'))
            abort();
    } else if (modelinfo_check(&info, "f", &e) < 0) {
        abort();
    }
    return 0;
}
