/* daemon/serve/textout.h - generated tokens to text that may be sent. Pure.
 *
 * Joins token bytes, holds back incomplete characters and any suffix that could still
 * become a stop string, ends at the earliest stop (the answer holds no part of it), and
 * keeps token log-probabilities beside the text they belong to. The result is the same
 * however the tokens are grouped into pushes. One owner thread. */
#ifndef SERVE_TEXTOUT_H
#define SERVE_TEXTOUT_H

#include <stdbool.h>
#include <stddef.h>

#include "daemon/serve/step.h"

struct buf;
struct textout;
struct tokenizer;

/* stops: n strings with lengths, copied. first_text: nothing precedes (SPM space rule).
 */
struct textout *textout_new(const struct tokenizer *t, const char *const *stops,
                            const size_t *stop_lens, int n_stops, bool first_text);
void textout_free(struct textout *o);

/* One released token: its bytes (raw) and where its text begins in the whole text. */
struct textout_tok {
    struct step_token tok;
    size_t text_off;         /* bytes before it in the text of this choice */
    size_t raw_off, raw_len; /* its bytes in *ret_raw of textout_take */
};

/* Take tokens; text that may be sent is appended to out. True when a stop string was
 * completed: later pushes are ignored and the request can be cancelled. */
bool textout_push(struct textout *o, const struct step_token *toks, int n,
                  struct buf *out);
/* The generation ended: flush what is held (invalid bytes become U+FFFD). */
void textout_end(struct textout *o, struct buf *out);
bool textout_stopped(const struct textout *o);
/* Tokens that count in usage: all up to the one that completed the stop. */
int textout_n_tokens(const struct textout *o);
/* Tokens whose text was released and not yet taken: borrowed until the next push or end,
 * which drops them. Tokens that a stop cut off wholly are never among them. */
size_t textout_take(struct textout *o, const struct textout_tok **ret,
                    const char **ret_raw);

#endif
