/* base/buf.h - growable bytes with an optional limit.
 *
 * The struct is plain and may live inside another; p is always NUL-terminated once
 * anything was added. Adding past `limit` (0 = none) sets `over` and adds nothing, so a
 * writer checks once at the end. One owner thread. */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>

struct buf {
    char *p;
    size_t len, cap, limit;
    bool over;
};

void buf_init(struct buf *b, size_t limit);
void buf_done(struct buf *b);
void buf_clear(struct buf *b); /* keeps the memory */
void buf_add(struct buf *b, const void *p, size_t n);
void buf_puts(struct buf *b, const char *s);
void buf_putc(struct buf *b, char c);
void buf_printf(struct buf *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void buf_shift(struct buf *b, size_t n); /* drop the first n bytes */
char *buf_take(struct buf *b);           /* caller frees; b is empty again */

#endif
