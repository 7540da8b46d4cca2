/* tests/fuzz/fuzz_trace.c - traces that llmctl load replays: any bytes are rows in the
 * order of time or are refused with one sentence, and what is accepted makes requests. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/err.h"
/* the library that is fuzzed has nothing of ctl */
#include "ctl/load_trace.c"
#include "ctl/load_work.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { REQS = 8, TOK_MAX = 4096, VOCAB = 1000 };

static void must(int ok)
{
    if (!ok)
        abort();
}

static void replay(const struct load_trace *t, double scale)
{
    struct load_work w = {.arrival = LOAD_TRACE,
                          .trace = t,
                          .length_scale = scale,
                          .max_tok = TOK_MAX,
                          .n_vocab = VOCAB};
    struct load_req r[REQS];
    int32_t prompt[TOK_MAX];

    load_work_make(&w, load_trace_rate(t), REQS, 0, r);
    for (int i = 0; i < REQS; i++) {
        must(r[i].at_us >= 0 && (i == 0 || r[i].at_us >= r[i - 1].at_us));
        must(r[i].n_in >= 1 && r[i].n_out >= 1 && r[i].n_in + r[i].n_out <= TOK_MAX);
        load_prompt(&w, &r[i], prompt);
        for (int k = 0; k < r[i].n_in; k++)
            must(prompt[k] >= 0 && prompt[k] < VOCAB);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct load_trace t;
    struct err e = {0};

    if (size > 1 << 16)
        return 0;
    if (load_trace_parse((const char *)data, size, &t, &e) < 0) {
        must(e.msg[0]);
        return 0;
    }
    must(t.n > 0 && isfinite(load_trace_rate(&t)) && load_trace_rate(&t) > 0);
    for (int i = 0; i < t.n; i++) {
        const struct load_row *row = &t.row[i];
        must(row->n_in >= 0 && row->n_out >= 0 && row->first_id >= 0 && row->n_id >= 0);
        must(row->first_id + row->n_id <= t.n_ids);
        must(i == 0 || row->at_us >= t.row[i - 1].at_us);
    }
    replay(&t, 1);
    replay(&t, 16.5);
    load_trace_done(&t);
    return 0;
}
