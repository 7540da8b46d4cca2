/* Any words for any topic: figures that print as JSON, or one sentence. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "topo/explain.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* The first byte chooses the topic, newlines part the words. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const char *words[16];
    char text[2048];
    struct explain *x = NULL;
    struct err e = {0};
    struct buf b;
    json_t *js = NULL;
    int count = 0;

    if (n < 1 || n >= sizeof(text))
        return 0;
    memcpy(text, data + 1, n - 1);
    text[n - 1] = '\0';
    for (char *w = strtok(text, "\n"); w && count < 16; w = strtok(NULL, "\n"))
        words[count++] = w;
    if (explain_run(explain_topic_at(*data % explain_n_topics())->name, words, count, &x,
                    &e) < 0) {
        if (!*e.msg)
            abort();
        return 0;
    }
    buf_init(&b, 0);
    explain_print(x, &b);
    buf_clear(&b);
    explain_json(x, &b);
    if (js_parse(b.p, b.len, NULL, &js, &e) < 0)
        abort();
    json_decref(js);
    buf_done(&b);
    explain_free(x);
    return 0;
}
