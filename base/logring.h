/* base/logring.h - the last lines that were logged, for operators who ask later.
 *
 * A ring of LOGRING_LINES copies; each has a number that never comes twice, so that a
 * follower asks for those after the last that it saw. Any thread, one short lock. */
#ifndef BASE_LOGRING_H
#define BASE_LOGRING_H

#include <stddef.h>
#include <stdint.h>

#include "base/log.h"

enum { LOGRING_LINES = 500 };

struct logring_line {
    uint64_t seq; /* 1, 2, .. */
    int64_t at_ms;
    enum log_level level;
    char *text; /* malloc'd */
};

void logring_add(enum log_level level, const char *text, size_t n);
/* The lines after `after` that are still there, oldest first, at most max (the newest of
 * them); returns the count. The caller frees each text. */
int logring_get(uint64_t after, struct logring_line *ret, int max);
uint64_t logring_last(void); /* the number of the newest line, 0 none */

#endif
