/* daemon/serve/blame.h - sentences about a model's files: which file, what, what instead.
 *
 * Paths are shortened from the left and names out of files lose what a terminal or a JSON
 * answer should not see, so that a hostile file cannot push its fault out of the
 * sentence. Pure; any thread. */
#ifndef SERVE_BLAME_H
#define SERVE_BLAME_H

#include <stddef.h>

#include "base/err.h"

/* "PATH: sentence" into *e; yields -1. */
int blame(struct err *e, enum err_code code, const char *path, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

struct blame_name {
    char s[80];
};
/* p[0..n) in printable ASCII, cut to fit; lives in *b. */
const char *blame_name(struct blame_name *b, const char *p, size_t n);

#endif
