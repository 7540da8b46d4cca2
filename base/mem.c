/* base/mem.c - allocation helpers. The x* family aborts: what our own code sizes is
 * small, and no caller could do better. The try_* family can be made to fail by tests. */
#include "base/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local long fail_at, fail_count;

static void *must(void *p, size_t n)
{
    if (p || n == 0)
        return p;
    fprintf(stderr, "out of memory for %zu bytes\n", n);
    abort();
}

void *xmalloc(size_t n) { return must(malloc(n ? n : 1), n ? n : 1); }

void *xcalloc(size_t count, size_t size)
{
    void *p = calloc(count ? count : 1, size ? size : 1);
    return must(p, 1);
}

void *xrealloc(void *p, size_t n) { return must(realloc(p, n ? n : 1), n ? n : 1); }

char *xstrdup(const char *s) { return must(strdup(s), 1); }
char *xstrndup(const char *s, size_t n) { return must(strndup(s, n), 1); }

char *xasprintf(const char *fmt, ...)
{
    char *s = NULL;
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vasprintf(&s, fmt, ap);
    va_end(ap);
    return must(n < 0 ? NULL : s, 1);
}

static int must_fail(void)
{
    fail_count++;
    return fail_at && fail_count == fail_at;
}

void *try_malloc(size_t n) { return must_fail() ? NULL : malloc(n ? n : 1); }

void *try_calloc(size_t count, size_t size)
{
    size_t n;

    if (must_fail() || size_mul(count, size, &n) < 0)
        return NULL;
    return calloc(count ? count : 1, size ? size : 1);
}

void *try_realloc(void *p, size_t n)
{
    return must_fail() ? NULL : realloc(p, n ? n : 1);
}

void mem_fail_at(long n)
{
    fail_at = n;
    fail_count = 0;
}

long mem_fail_count(void) { return fail_count; }

int size_mul(size_t a, size_t b, size_t *ret)
{
    size_t r;

    if (__builtin_mul_overflow(a, b, &r))
        return -1;
    *ret = r;
    return 0;
}

int size_add(size_t a, size_t b, size_t *ret)
{
    size_t r;

    if (__builtin_add_overflow(a, b, &r))
        return -1;
    *ret = r;
    return 0;
}

/* An arena is a list of chunks; the newest one is filled. */
struct chunk {
    struct chunk *next;
    size_t used, cap;
    _Alignas(16) char data[];
};
struct arena {
    struct chunk *top;
    size_t chunk_bytes;
};

struct arena *arena_new(size_t chunk_bytes)
{
    struct arena *a = xcalloc(1, sizeof(*a));
    a->chunk_bytes = chunk_bytes ? chunk_bytes : 4096;
    return a;
}

void arena_free(struct arena *a)
{
    if (!a)
        return;
    for (struct chunk *c = a->top, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(a);
}

void *arena_alloc(struct arena *a, size_t n)
{
    struct chunk *c = a->top;
    size_t need = (n + 15) & ~(size_t)15;
    void *p;

    if (!c || c->cap - c->used < need) {
        size_t cap = need > a->chunk_bytes ? need : a->chunk_bytes;
        c = xcalloc(1, sizeof(*c) + cap);
        c->cap = cap;
        c->next = a->top;
        a->top = c;
    }
    p = c->data + c->used;
    c->used += need;
    return p;
}

char *arena_strndup(struct arena *a, const char *s, size_t n)
{
    char *p = arena_alloc(a, n + 1);
    memcpy(p, s, n);
    return p;
}
