/* daemon/ctrl/lines.h - the last lines of a stream, bounded.
 *
 * Bytes go in as they come; whole lines come out by the callback and the last ones are
 * kept. A line longer than LINES_BYTES is cut there and goes on as the next. One owner
 * thread. */
#ifndef CTRL_LINES_H
#define CTRL_LINES_H

#include <stddef.h>

enum { LINES_KEPT = 20, LINES_BYTES = 400 };

struct lines {
    char kept[LINES_KEPT][LINES_BYTES + 1], part[LINES_BYTES + 1];
    int n, next; /* kept so far; where the next one goes */
    size_t n_part;
    void (*line)(void *arg, const char *text); /* without its newline; NULL = none */
    void *arg;
};

void lines_put(struct lines *l, const char *p, size_t n);
/* The stream has ended: what has no newline is a line too. */
void lines_end(struct lines *l);
/* The newest that fit into cap, oldest first, joined by newlines. */
void lines_text(const struct lines *l, char *out, size_t cap);

#endif
