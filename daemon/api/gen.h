/* daemon/api/gen.h - the generations of one request: n choices of one or more prompts.
 *
 * Sits between router and connection. Sinks are called on the control thread: they turn
 * tokens into text (textout), and text into frames in the connection's buffer or into the
 * whole answer. Everything here is guarded by the connection's lock. A failure before the
 * first byte becomes a JSON error, later one error frame; either ends the rest. */
#ifndef API_GEN_H
#define API_GEN_H

#include <stdbool.h>

#include "daemon/serve/tokenizer.h"

struct conn;
struct params;
struct served;

struct gen_cfg {
    struct conn *c;          /* referenced */
    struct params *p;        /* taken */
    const struct served *m;  /* taken: router_unref when done */
    struct tok_ids *prompts; /* taken: n_prompts of them, malloc'd */
    int n_prompts;
    int *max_tokens; /* by prompt, taken */
};

/* Submit all; answers the connection itself, also when that fails. Worker thread. */
void gen_start(const struct gen_cfg *cfg);

#endif
