/* ctl/verb.h - the verbs of llmctl and how words find them.
 *
 * The table (verb.def) feeds the parser, help, completion and `?`. Any unambiguous prefix
 * of each word is accepted. Pure. */
#ifndef CTL_VERB_H
#define CTL_VERB_H

#include <stddef.h>

struct buf;
struct err;

enum verb_id {
#define VERB(id, words, args, help, path, view) VERB_##id,
#include "ctl/verb.def"
#undef VERB
    VERB_COUNT
};

struct verb {
    enum verb_id id;
    const char *words, *args, *help, *path, *view;
};

const struct verb *verb_at(int i); /* 0 .. VERB_COUNT-1 */
/* The verb that line begins with; *ret_rest = what follows its words (borrowed). NULL and
 * a sentence when none or several fit. */
const struct verb *verb_match(const char *line, const char **ret_rest, struct err *e);
/* i-th word (0, 1, ..) that may stand after `before` and begins with `part`, or NULL. */
const char *verb_complete(const char *before, const char *part, int i, char *word,
                          size_t cap);
/* Rows that fit what is typed (all for ""), aligned. */
void verb_help(const char *line, struct buf *out);
/* The verbs as roff for llmctl(1). */
void verb_man(struct buf *out);

#endif
