/* tokenizer.json, then (after a NUL) tokenizer_config.json. What opens must also encode
 * and decode any bytes. */
#include "daemon/serve/tokenizer.h"

#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "daemon/serve/template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const struct tokenizer *t, const char *text, size_t n)
{
    const struct chat_msg msgs[] = {{"system", "s", 1}, {"user", text, n}};
    struct tok_ids ids = {0};
    struct buf b;

    buf_init(&b, 0);
    tokenizer_encode(t, text, n, TOK_PARSE_SPECIAL | TOK_ADD_BOS, 0, NULL, &ids, NULL);
    tokenizer_decode(t, ids.v, ids.n, true, &b);
    template_render(template_detect(t), t, msgs, 2, NULL, 1000, NULL, &ids, NULL);
    tok_ids_done(&ids);
    buf_done(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *p = (const char *)data, *nul = memchr(p, 0, size);
    size_t n = nul ? (size_t)(nul - p) : size;
    struct tokenizer *t = NULL;
    struct err e;

    if (tokenizer_open_json("fuzz", p, n, nul ? nul + 1 : NULL, nul ? size - n - 1 : 0,
                            &t, &e) == 0)
        use(t, p, size);
    tokenizer_free(t);
    return 0;
}
