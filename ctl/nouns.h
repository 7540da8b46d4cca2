/* ctl/nouns.h - the names that the daemon knows, for completion: instances, models,
 * devices, revisions, paths of directives, keys, requests, operations.
 *
 * Asked for when Tab is pressed, kept for a few seconds; a daemon that does not answer in
 * a second gives none. One owner thread. */
#ifndef CTL_NOUNS_H
#define CTL_NOUNS_H

#include "ctl/args.h"

struct line_words;
struct nouns;
struct wire;

struct nouns *nouns_new(struct wire *w);
void nouns_free(struct nouns *n);
/* A noun_fn; arg is the struct nouns. */
void nouns_get(void *arg, enum arg_type type, struct line_words *ret);

#endif
