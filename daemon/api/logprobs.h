/* daemon/api/logprobs.h - token log-probabilities as the two API shapes want them. Pure.
 *
 * Chat: content[] of {token, logprob, bytes, top_logprobs[]}. Completions: four parallel
 * lists (tokens, token_logprobs, top_logprobs, text_offset). Tokens gather here until a
 * frame or the whole answer takes them. Numbers are finite. One owner thread. */
#ifndef API_LOGPROBS_H
#define API_LOGPROBS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "daemon/serve/step.h"

struct jw;
struct tokenizer;

struct logprobs {
    const struct tokenizer *tok;
    bool chat;
    bool ids; /* completions: "token_id:7" in place of the text, which two may share */
    int n;
    struct buf list[4]; /* chat uses the first */
    struct buf scratch;
};

void logprobs_init(struct logprobs *l, const struct tokenizer *tok, bool chat);
void logprobs_done(struct logprobs *l);
/* One token with its bytes; text_off counts characters (completions only). scored =
 * false writes nulls: the first token of a prompt has no probability. */
void logprobs_add(struct logprobs *l, const struct step_token *t, const char *raw,
                  size_t n, size_t text_off, bool scored);
/* The value after the key "logprobs"; empties l. */
void logprobs_write(struct logprobs *l, struct buf *out);

#endif
