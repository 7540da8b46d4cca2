/* base/mem.h - allocation: small ones abort, sized-by-the-outside ones report.
 *
 * x* for what our own code sizes; try_* (NULL when there is no memory) for whatever an
 * input can drive. mem_fail_at(n) makes the n-th try_* call of this thread fail, so that
 * tests can fail every one in turn. Arenas hold things that die together. Any thread;
 * an arena belongs to one. */
#ifndef BASE_MEM_H
#define BASE_MEM_H

#include <stddef.h>
#include <stdint.h>

void *xmalloc(size_t n);
void *xcalloc(size_t count, size_t size);
void *xrealloc(void *p, size_t n);
char *xstrdup(const char *s);
char *xstrndup(const char *s, size_t n);
char *xasprintf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

void *try_malloc(size_t n);
void *try_calloc(size_t count, size_t size); /* checks the product */
void *try_realloc(void *p, size_t n);
/* The n-th try_* call from now on this thread fails (1 = the next); 0 = never. */
void mem_fail_at(long n);
/* try_* calls on this thread since the last mem_fail_at. */
long mem_fail_count(void);

/* a * b or a + b into *ret; -1 on overflow. */
int size_mul(size_t a, size_t b, size_t *ret);
int size_add(size_t a, size_t b, size_t *ret);

struct arena;
struct arena *arena_new(size_t chunk_bytes);
void arena_free(struct arena *a);
void *arena_alloc(struct arena *a, size_t n); /* zeroed, aligned to 16, never NULL */
char *arena_strndup(struct arena *a, const char *s, size_t n);

#endif
