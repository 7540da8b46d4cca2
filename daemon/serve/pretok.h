/* daemon/serve/pretok.h - cut text into words before merging, by patterns of known name.
 *
 * A pattern is a list of stages; each cuts the pieces of the one before it into matches
 * and what lies between them. Immutable after pretok_new; any thread; an iterator belongs
 * to one. Time is linear in the text for every pattern of the table. */
#ifndef SERVE_PRETOK_H
#define SERVE_PRETOK_H

#include <stddef.h>

struct err;
struct pretok;

enum { PRETOK_STAGES_MAX = 6 };

/* name: the table's own or an alias ("llama-bpe"); unknown ones are refused with a
 * sentence that lists those served. */
int pretok_new(const char *name, struct pretok **ret, struct err *e);
void pretok_free(struct pretok *p);
const char *pretok_name(const struct pretok *p);
/* The table's name whose stages are these published patterns, or NULL. */
const char *pretok_recognise(const char *const *patterns, size_t n);
/* "gpt2, smollm, ..." */
const char *pretok_names(void);

/* Words of text[0..n), which must be valid UTF-8 and outlive the iterator. */
struct pretok_it;
int pretok_it_new(const struct pretok *p, struct pretok_it **ret, struct err *e);
void pretok_it_start(struct pretok_it *it, const char *text, size_t n);
/* 1 and the next word; 0 at the end; -1 when a match hit its limits. */
int pretok_it_next(struct pretok_it *it, size_t *ret_off, size_t *ret_len, struct err *e);
void pretok_it_free(struct pretok_it *it);

#endif
