/* ctl/load_trace.h - recorded arrivals and lengths, read from public formats. Pure.
 *
 *   Azure LLM traces   TIMESTAMP,ContextTokens,GeneratedTokens (a header line)
 *   Mooncake           {"timestamp": ms, "input_length": n, "output_length": n,
 *                       "hash_ids": [..]} a line; an id stands for 512 prompt tokens, and
 *                      prompts that begin with the same ids begin with the same tokens
 * Rows stand in the order of time. */
#ifndef CTL_LOAD_TRACE_H
#define CTL_LOAD_TRACE_H

#include <stddef.h>
#include <stdint.h>

struct err;

enum { LOAD_TRACE_BLOCK = 512, LOAD_TRACE_ROWS = 1 << 20 };

struct load_row {
    int64_t at_us; /* of any epoch; differences count */
    int n_in, n_out;
    int first_id, n_id; /* in the trace's list of ids */
};
struct load_trace {
    struct load_row *row;
    int n;
    int64_t *id;
    int n_ids;
    char hash[17]; /* of the bytes: tells whether two runs used the same trace */
};
/* text[0..n) in either format; the first line tells which. INVALID names the line. */
int load_trace_parse(const char *text, size_t n, struct load_trace *ret, struct err *e);
void load_trace_done(struct load_trace *t);
/* Requests a second over the whole trace; 1 where it has no duration. */
double load_trace_rate(const struct load_trace *t);

#endif
