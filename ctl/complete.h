/* ctl/complete.h - what may come next on a line: words of verbs, names that the daemon
 * knows, words of arguments; for Tab, `?` and bash.
 *
 * The names come from noun_fn (ctl/nouns.h in llmctl, a fixed list in tests). */
#ifndef CTL_COMPLETE_H
#define CTL_COMPLETE_H

#include "ctl/args.h"

struct buf;
struct line_words;

/* Adds the names of a type (instances, revisions, ..) to ret. */
typedef void (*noun_fn)(void *arg, enum arg_type type, struct line_words *ret);

/* Completions of `part` after `before`; ret->files when files of this side are meant. */
void complete_line(const char *before, const char *part, noun_fn nouns, void *arg,
                   struct line_words *ret);
/* What `?` shows after `line`: verbs that fit, then values of the argument that comes.
 * "" = nothing fits, `?` is an ordinary character there. */
void complete_help(const char *line, int width, noun_fn nouns, void *arg,
                   struct buf *out);
/* A script for bash, which asks `llmctl --complete LINE`. */
const char *complete_bash(void);

#endif
