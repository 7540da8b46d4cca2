/* kernels/cpu_pool.c - slabs of huge pages, cut in order.
 *
 * A slab is an address range of SLAB_BYTES; its pages come to exist as matrices are put
 * there, so what a slab has not been asked for costs nothing but the rest of its last
 * huge page. What does not fit the open slab opens the next one; what is large gets a
 * slab to measure. */
#include "kernels/cpu_pool.h"

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/mem.h"

enum { HUGE_PAGE = 2 << 20, LINE = 64, SLAB_BYTES = 64 << 20, LARGE = SLAB_BYTES / 4 };

struct cpu_slab {
    void *mem; /* as allocated */
    uint8_t *start;
    size_t size, used;
    int refs; /* pieces, and the pool while it is open */
};

struct cpu_pool {
    struct cpu_slab *open;
};

struct cpu_pool *cpu_pool_new(void) { return xcalloc(1, sizeof(struct cpu_pool)); }

void cpu_slab_unref(struct cpu_slab *s)
{
    if (!s || --s->refs > 0)
        return;
    free(s->mem);
    free(s);
}

void cpu_pool_free(struct cpu_pool *p)
{
    if (!p)
        return;
    cpu_slab_unref(p->open);
    free(p);
}

/* A slab with one reference, or NULL. */
static struct cpu_slab *slab_new(size_t size)
{
    size_t align = size >= HUGE_PAGE ? HUGE_PAGE : LINE, n;
    struct cpu_slab *s;
    void *mem;

    if (size_add(size, align, &n) < 0 || !(mem = try_malloc(n)))
        return NULL;
    s = xcalloc(1, sizeof(*s));
    s->mem = mem;
    s->start = (uint8_t *)(((uintptr_t)mem + align - 1) / align * align);
    s->size = size;
    s->refs = 1;
    if (align == HUGE_PAGE) /* a wish: small pages work as well */
        (void)madvise(s->start, size / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
    return s;
}

static void *take(struct cpu_slab *s, size_t n)
{
    void *p = s->start + s->used;
    s->used += n;
    return p;
}

void *cpu_pool_alloc(struct cpu_pool *p, size_t n, struct cpu_slab **ret_slab)
{
    struct cpu_slab *s;

    if (size_add(n, LINE - 1, &n) < 0)
        return NULL;
    n = n / LINE * LINE;
    if (!p || n > LARGE) {
        s = slab_new(n);
        if (!s)
            return NULL;
        *ret_slab = s;
        return take(s, n);
    }
    if (!p->open || p->open->size - p->open->used < n) {
        s = slab_new(SLAB_BYTES);
        if (!s)
            return NULL;
        cpu_slab_unref(p->open);
        p->open = s;
    }
    p->open->refs++;
    *ret_slab = p->open;
    return take(p->open, n);
}
