/* Merging: the symbols of one word joined, best pair first, until none is left.
 *
 * A symbol is named by the byte where it begins. Symbols form a list (next, prev); each
 * knows its id and the rank of the pair that it makes with its neighbour. The next merge
 * is the lowest (rank, position): for short words by looking at all of them, for long
 * ones from a heap of rank << 32 | position, so a word of n bytes costs O(n log n).
 * Entries that a merge made stale are known by their rank not being the symbol's any
 * more; they are dropped when met. A full heap is filled anew from the list; a merge
 * leaves one symbol less and at most one entry more, so that happens a few times in a
 * word.
 *
 * Byte-level vocabularies find pairs by the two ids in the merge table. SPM ones find
 * them by the bytes of both: any piece of the vocabulary may be made, by falling score;
 * what is no piece in the end is written as bytes. */
#include "daemon/serve/tok_int.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/serve/unicode.h"

enum { SHORT_WORD = 48 };
#define NO_RANK UINT32_MAX

struct pair {
    uint32_t rank;
    int32_t id;
};

struct merger {
    const struct tokenizer *t;
    const char *p;
    uint32_t n;
    uint64_t *heap;
    size_t heap_n, heap_cap;
    struct pair *pair;
    uint32_t *next, *prev; /* next = n at the end; prev = n at the start */
    int32_t *id;
};

static int work_reserve(struct enc *c, size_t n)
{
    void *p;

    if (c->work_cap >= n)
        return 0;
    if (n < 4096)
        n = 4096;
    free(c->work);
    c->work_cap = 0;
    c->work = p = try_malloc(n);
    if (!p)
        return err_set(c->e, ERR_NOMEM, "no memory to tokenise a word (%zu bytes)", n);
    c->work_cap = n;
    return 0;
}

static int merger_init(struct merger *m, struct enc *c, const char *p, size_t n)
{
    size_t heap_cap = n <= SHORT_WORD ? 0 : n + n / 2 + 64;
    char *w;

    if (work_reserve(c, heap_cap * sizeof(*m->heap) +
                            n * (sizeof(*m->pair) + 3 * sizeof(uint32_t))) < 0)
        return -1;
    w = c->work;
    *m = (struct merger){.t = c->t, .p = p, .n = (uint32_t)n, .heap_cap = heap_cap};
    m->heap = (uint64_t *)w;
    m->pair = (struct pair *)(m->heap + heap_cap);
    m->next = (uint32_t *)(m->pair + n);
    m->prev = m->next + n;
    m->id = (int32_t *)(m->prev + n);
    return 0;
}

static void find_pair(struct merger *m, uint32_t a)
{
    const struct tokenizer *t = m->t;
    uint32_t b = m->next[a];
    struct pair *out = &m->pair[a];

    out->rank = NO_RANK;
    if (b == m->n)
        return;
    if (t->spm) {
        out->id = tok_map_find(t, m->p + a, m->next[b] - a);
        if (out->id >= 0)
            out->rank = t->rank[out->id];
    } else if (m->id[a] >= 0 && m->id[b] >= 0) {
        const struct merge *g = tok_merge_find(t, m->id[a], m->id[b]);
        if (g) {
            out->rank = g->rank;
            out->id = g->id;
        }
    }
}

/* ---- heap, four children to a node ---- */

static void heap_down(uint64_t *h, size_t n, size_t i)
{
    uint64_t v = h[i];

    for (;;) {
        size_t k = 4 * i + 1, best = k, end = k + 4 < n ? k + 4 : n;
        if (k >= n)
            break;
        for (size_t j = k + 1; j < end; j++)
            if (h[j] < h[best])
                best = j;
        if (h[best] >= v)
            break;
        h[i] = h[best];
        i = best;
    }
    h[i] = v;
}

static void heap_build(uint64_t *h, size_t n)
{
    for (size_t i = n / 4 + 1; i-- > 0;)
        if (i < n)
            heap_down(h, n, i);
}

static bool is_live(const struct merger *m, uint64_t entry)
{
    uint32_t rank = m->pair[(uint32_t)entry].rank;
    return rank != NO_RANK && rank == (uint32_t)(entry >> 32);
}

/* Start again with one entry for each symbol that has a pair. */
static void heap_fill(struct merger *m)
{
    m->heap_n = 0;
    for (uint32_t a = 0; a < m->n; a = m->next[a])
        if (m->pair[a].rank != NO_RANK)
            m->heap[m->heap_n++] = (uint64_t)m->pair[a].rank << 32 | a;
    heap_build(m->heap, m->heap_n);
}

static void heap_push(struct merger *m, uint32_t a)
{
    uint64_t v = (uint64_t)m->pair[a].rank << 32 | a, *h = m->heap;
    size_t i;

    if (m->pair[a].rank == NO_RANK)
        return;
    if (m->heap_n == m->heap_cap)
        heap_fill(m);
    i = m->heap_n++;
    for (; i && h[(i - 1) / 4] > v; i = (i - 1) / 4)
        h[i] = h[(i - 1) / 4];
    h[i] = v;
}

/* ---- the loop ---- */

static uint32_t best_by_scan(const struct merger *m)
{
    uint32_t best = m->n, rank = NO_RANK;

    for (uint32_t a = 0; a < m->n; a = m->next[a])
        if (m->pair[a].rank < rank) {
            rank = m->pair[a].rank;
            best = a;
        }
    return best;
}

static uint32_t best_by_heap(struct merger *m)
{
    while (m->heap_n) {
        uint64_t v = m->heap[0];

        m->heap[0] = m->heap[--m->heap_n];
        if (m->heap_n)
            heap_down(m->heap, m->heap_n, 0);
        if (is_live(m, v))
            return (uint32_t)v;
    }
    return m->n;
}

static void join(struct merger *m, uint32_t a)
{
    uint32_t b = m->next[a], after = m->next[b];

    m->id[a] = m->pair[a].id;
    m->pair[b].rank = NO_RANK;
    m->next[a] = after;
    if (after < m->n)
        m->prev[after] = a;
    find_pair(m, a);
    if (m->prev[a] < m->n)
        find_pair(m, m->prev[a]);
    if (m->heap_cap) {
        heap_push(m, a);
        if (m->prev[a] < m->n)
            heap_push(m, m->prev[a]);
    }
}

static void init_symbols(struct merger *m)
{
    const struct tokenizer *t = m->t;
    uint32_t prev = m->n;

    for (uint32_t a = 0; a < m->n;) {
        int len = t->spm ? utf8_next(m->p + a, m->n - a, NULL) : 1;

        len = len > 0 ? len : 1;
        m->prev[a] = prev;
        m->next[a] = a + (uint32_t)len;
        m->id[a] = t->spm ? tok_map_find(t, m->p + a, (size_t)len)
                          : t->byte_id[(unsigned char)m->p[a]];
        for (int i = 1; i < len; i++)
            m->pair[a + (uint32_t)i].rank = NO_RANK;
        prev = a;
        a += (uint32_t)len;
    }
    for (uint32_t a = 0; a < m->n; a = m->next[a])
        find_pair(m, a);
    if (m->heap_cap)
        heap_fill(m);
}

static int emit(struct merger *m, struct enc *c)
{
    for (uint32_t a = 0; a < m->n; a = m->next[a]) {
        if (enc_tick(c) < 0)
            return -1;
        if (m->id[a] >= 0) {
            if (enc_push(c, m->id[a]) < 0)
                return -1;
            continue;
        }
        for (uint32_t i = a; m->t->spm && i < m->next[a]; i++) {
            int32_t id = m->t->byte_id[(unsigned char)m->p[i]];
            if ((id >= 0 || m->t->unk >= 0) && enc_push(c, id >= 0 ? id : m->t->unk) < 0)
                return -1;
        }
    }
    return 0;
}

int tok_merge_word(struct enc *c, const char *p, size_t n)
{
    struct merger m;

    if (n == 1 && !c->t->spm) {
        int32_t id = c->t->byte_id[(unsigned char)p[0]];
        return id >= 0 ? enc_push(c, id) : 0;
    }
    if (c->t->ignore_merges) {
        int32_t id = tok_map_find(c->t, p, n);
        if (id >= 0)
            return enc_push(c, id);
    }
    if (merger_init(&m, c, p, n) < 0)
        return -1;
    init_symbols(&m);
    for (;;) {
        uint32_t a = m.heap_cap ? best_by_heap(&m) : best_by_scan(&m);
        if (a == m.n)
            break;
        join(&m, a);
        if (enc_tick(c) < 0)
            return -1;
    }
    return emit(&m, c);
}
