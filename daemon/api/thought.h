/* daemon/api/thought.h - the answer and the thoughts before it, apart. Pure.
 *
 * Of templates whose model writes on several channels (harmony): what goes to everybody
 * on `final`, on `commentary` or on none is the answer; the rest (analysis, calls of
 * tools) are its thoughts; headers are neither. One owner thread. */
#ifndef API_THOUGHT_H
#define API_THOUGHT_H

#include <stdbool.h>

#include "daemon/serve/step.h"
#include "daemon/serve/template.h"

struct buf;
struct thought;
struct tokenizer;

/* NULL where all that such a model writes is its answer. open: it goes on with an answer
 * that was begun. */
struct thought *thought_new(enum template_family f, const struct tokenizer *t, bool open);
void thought_free(struct thought *h); /* NULL allowed */
/* The tokens of the answer among toks[0..*n), borrowed until the next call; the text of
 * thoughts is appended to said. */
const struct step_token *thought_split(struct thought *h, const struct step_token *toks,
                                       int *n, struct buf *said);
/* What is held of a character that is not whole. */
void thought_end(struct thought *h, struct buf *said);
/* Tokens so far that were no part of the answer. */
int thought_n_tokens(const struct thought *h);

#endif
