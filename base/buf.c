/* base/buf.c - growable bytes. Growth doubles, so adding is O(1) a byte; a limit or a
 * refused allocation sets `over` and the buffer keeps what it has. */
#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

void buf_init(struct buf *b, size_t limit)
{
    memset(b, 0, sizeof(*b));
    b->limit = limit;
}

void buf_done(struct buf *b)
{
    free(b->p);
    buf_init(b, b->limit);
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    b->over = false;
    if (b->p)
        b->p[0] = '\0';
}

/* Room for n more bytes and the NUL; false (and over) when that may not be. */
static bool grow(struct buf *b, size_t n)
{
    size_t need, cap;
    char *p;

    if (b->over)
        return false;
    if (size_add(b->len, n, &need) < 0 || (b->limit && need > b->limit) ||
        size_add(need, 1, &need) < 0)
        goto over;
    if (need <= b->cap)
        return true;
    cap = b->cap ? b->cap : 64;
    while (cap < need)
        cap = cap > need / 2 ? need : cap * 2;
    if (cap < b->cap + b->cap / 2)
        cap = b->cap + b->cap / 2;
    p = try_realloc(b->p, cap);
    if (!p)
        goto over;
    b->p = p;
    b->cap = cap;
    return true;
over:
    b->over = true;
    return false;
}

void buf_add(struct buf *b, const void *p, size_t n)
{
    if (!grow(b, n))
        return;
    if (n)
        memcpy(b->p + b->len, p, n);
    b->len += n;
    b->p[b->len] = '\0';
}

void buf_puts(struct buf *b, const char *s) { buf_add(b, s, strlen(s)); }

void buf_putc(struct buf *b, char c)
{
    if (b->len + 1 < b->cap && !b->limit && !b->over) {
        b->p[b->len++] = c;
        b->p[b->len] = '\0';
        return;
    }
    buf_add(b, &c, 1);
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    char small[256];
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(small, sizeof(small), fmt, ap);
    va_end(ap);
    if (n < 0)
        return;
    if ((size_t)n < sizeof(small)) {
        buf_add(b, small, (size_t)n);
        return;
    }
    if (!grow(b, (size_t)n))
        return;
    va_start(ap, fmt);
    vsnprintf(b->p + b->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
}

void buf_shift(struct buf *b, size_t n)
{
    if (n >= b->len) {
        b->len = 0;
    } else {
        memmove(b->p, b->p + n, b->len - n);
        b->len -= n;
    }
    if (b->p)
        b->p[b->len] = '\0';
}

char *buf_take(struct buf *b)
{
    char *p = b->p ? b->p : xstrdup("");
    size_t limit = b->limit;

    buf_init(b, limit);
    return p;
}
