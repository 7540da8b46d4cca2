/* ctl/verb.h - the verbs of llmctl and how words find them.
 *
 * The table (verb.def) feeds the parser, help, completion, `?` and llmctl(1). Any
 * unambiguous prefix of each word is accepted; a verb of more words goes before one of
 * fewer, an exact word before a beginning. Pure. */
#ifndef CTL_VERB_H
#define CTL_VERB_H

#include <stddef.h>

struct buf;
struct err;
struct words;

enum verb_id {
#define VERB(id, words, args, scope, ask, run, method, path, body, view, help) VERB_##id,
#include "ctl/verb.def"
#undef VERB
    VERB_COUNT
};

struct verb {
    enum verb_id id;
    const char *words, *args, *scope, *ask, *method, *path, *body, *view, *help;
};

const struct verb *verb_at(enum verb_id id);
/* The verb that w begins with; *ret_n = how many words it took. NULL and a sentence when
 * none or several fit. */
const struct verb *verb_match(const struct words *w, int *ret_n, struct err *e);
/* i-th word (0, 1, ..) that may stand after w and begins with `part`, or NULL. */
const char *verb_complete(const struct words *w, const char *part, int i, char *word,
                          size_t cap);
/* Rows that fit what is typed (all for no words), aligned, in lines of at most `width`
 * bytes (0 = any). Headings only when more than one group shows. */
void verb_help(const struct words *w, int width, struct buf *out);
/* All about one. */
void verb_about(const struct verb *v, int width, struct buf *out);
/* The verbs as roff for llmctl(1). */
void verb_man(struct buf *out);

#endif
