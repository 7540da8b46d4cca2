/* tiktoken.model, then (after a NUL) tokenizer_config.json; without one, that of Kimi.
 * What opens must also encode and decode any bytes. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "daemon/serve/harmony.h"
#include "daemon/serve/tok_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char kimi[] =
    "{\"auto_map\":{\"AutoTokenizer\":[\"tokenization_kimi.T\",null]}}";

static void use(const struct tokenizer *t, const char *text, size_t n)
{
    struct harmony_reader r;
    struct tok_ids ids = {0};
    struct buf b;

    buf_init(&b, 0);
    harmony_reader_init(&r, t, false);
    tokenizer_encode(t, text, n, TOK_PARSE_SPECIAL | TOK_ADD_BOS, 0, NULL, &ids, NULL);
    tokenizer_decode(t, ids.v, ids.n, true, &b);
    for (size_t i = 0; i < ids.n; i++)
        harmony_read(&r, ids.v[i]);
    tok_ids_done(&ids);
    buf_done(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *p = (const char *)data, *nul = size ? memchr(p, 0, size) : NULL;
    size_t n = nul ? (size_t)(nul - p) : size;
    const char *config = nul ? nul + 1 : kimi;
    size_t config_n = nul ? size - n - 1 : sizeof(kimi) - 1;
    char *text = malloc(n + 1); /* it is changed, and has a byte behind its end */
    struct tokenizer *t = NULL;
    struct err e;

    if (n)
        memcpy(text, p, n);
    text[n] = '\0';
    if (tok_open_tiktoken("fuzz", text, n, config, config_n, NULL, 0, &t, &e) == 0)
        use(t, p, size);
    tokenizer_free(t);
    free(text);
    return 0;
}
