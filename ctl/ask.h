/* ctl/ask.h - words of a command line to a request body; bytes of an answer to a file.
 *
 * Files that a verb names belong to llmctl: their bytes travel, the daemon opens none.
 * Pure but for the files. */
#ifndef CTL_ASK_H
#define CTL_ASK_H

#include <stddef.h>

struct err;

/* "collective p=8" -> {"args":["collective","p=8"]}, malloc'd. */
char *ask_words(const char *rest, struct err *e);
/* "MODEL --rack R --cp .." -> {"model":"MODEL","rack":"R","cp":true}, malloc'd. A MODEL
 * or a --rack that is a file here is sent as its text (config, rack_file). */
char *ask_plan(const char *rest, struct err *e);
/* The one FILE in rest := p[0..n), whole or not at all. */
int ask_save(const char *rest, const char *p, size_t n, struct err *e);

#endif
