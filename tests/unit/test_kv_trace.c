/* tests/unit/test_kv_trace.c - a recorded trace through the KV cache: it finds as many
 * prefix blocks as an exact LRU of the same size would.
 *
 * The simulator beside it knows nothing of the cache: it has entries named by the chain
 * of the trace's block ids, each with the request that used it last, and drops the one
 * used longest ago, of one request the deepest first. Lengths are divided so that an id
 * of the trace, 512 tokens, becomes one block of 16. */
#include "tests/test.h"

#include "base/err.h"
#include "base/mem.h"
#include "ctl/load_trace.c"
#include "ctl/load_work.c"
#include "daemon/serve/kvcache.h"

enum { BLOCK = 16, DIVIDE = LOAD_TRACE_BLOCK / BLOCK, MAX_TOK = 1 << 16 };

/* ---- the exact LRU ---- */

struct entry {
    uint64_t name; /* of the chain up to it; 0 = free */
    int64_t used;  /* number of the request */
    int depth;
    bool held;
};
struct lru {
    struct entry *v;
    int n, n_used;
    int32_t *slot; /* hash table of names: index + 1 */
    uint32_t mask;
};

static void lru_init(struct lru *l, int n)
{
    *l = (struct lru){.n = n, .v = xcalloc((size_t)n, sizeof(*l->v))};
    for (l->mask = 1; l->mask < 4u * (uint32_t)n; l->mask *= 2)
        ;
    l->slot = xcalloc(l->mask, sizeof(*l->slot));
    l->mask--;
}

static void lru_done(struct lru *l)
{
    free(l->v);
    free(l->slot);
}

static uint64_t chain(uint64_t before, uint64_t id)
{
    uint64_t s = before * 0x9E3779B97F4A7C15u + id + 1;

    return load_rand(&s) | 1;
}

static int lru_find(const struct lru *l, uint64_t name)
{
    for (uint32_t i = (uint32_t)(name >> 20) & l->mask; l->slot[i]; i = (i + 1) & l->mask)
        if (l->slot[i] > 0 && l->v[l->slot[i] - 1].name == name)
            return l->slot[i] - 1;
    return -1;
}

/* The table anew, without what was dropped. */
static void lru_index(struct lru *l)
{
    memset(l->slot, 0, ((size_t)l->mask + 1) * sizeof(*l->slot));
    for (int k = 0; k < l->n; k++) {
        uint32_t i = (uint32_t)(l->v[k].name >> 20) & l->mask;

        if (!l->v[k].name)
            continue;
        while (l->slot[i])
            i = (i + 1) & l->mask;
        l->slot[i] = k + 1;
    }
}

/* An entry for a new block: a free one, or the one used longest ago. */
static int lru_take(struct lru *l)
{
    int best = -1;

    for (int k = 0; k < l->n; k++) {
        const struct entry *x = &l->v[k], *b = best < 0 ? NULL : &l->v[best];

        if (x->held)
            continue;
        if (!x->name)
            return k;
        if (!b || x->used < b->used || (x->used == b->used && x->depth > b->depth))
            best = k;
    }
    assert_true(best >= 0);
    return best;
}

/* A request of these blocks, of which the first n_look may be found; returns how many
 * were. n_held: blocks that it holds while it runs, the last one perhaps not full. */
static int lru_request(struct lru *l, int64_t now, const uint64_t *name, int n_full,
                       int n_look, int n_held)
{
    int found = 0, *at = xcalloc((size_t)n_held + 1, sizeof(*at));

    while (found < n_look && (at[found] = lru_find(l, name[found])) >= 0)
        l->v[at[found++]].held = true;
    for (int i = found; i < n_held; i++) {
        at[i] = lru_take(l);
        l->v[at[i]] = (struct entry){.held = true, .depth = i};
    }
    for (int i = found; i < n_full; i++)
        l->v[at[i]].name = name[i];
    for (int i = 0; i < n_held; i++) {
        l->v[at[i]].held = false;
        l->v[at[i]].used = now;
        l->v[at[i]].depth = i;
    }
    /* a block that became full and was there already is there once */
    for (int i = found; i < n_full; i++)
        for (int k = 0; k < l->n; k++)
            if (k != at[i] && l->v[k].name == name[i])
                l->v[k].name = 0;
    lru_index(l);
    free(at);
    return found;
}

/* ---- both ---- */

static struct kvcache *cache_of(int n_blocks)
{
    struct kvcache_cfg cfg = {.block_tok = BLOCK, .n_groups = 1, .reuse = true};

    cfg.group[0] = (struct kv_group){KV_FULL, n_blocks, 0};
    memset(cfg.secret, 7, sizeof(cfg.secret));
    return kvcache_new(&cfg);
}

/* Returns the tokens found, or -1 when it does not fit at all. */
static int cache_request(struct kvcache *kv, const int32_t *toks, int n_in, int n_all)
{
    struct kv_copy copy[4];
    struct kvseq *s = kvseq_new(kv, 0, 0, true);
    int n_copies = 0, found = kvseq_attach(s, toks, n_in);

    assert_int_equal(kvseq_reserve(s, found, n_all, copy, &n_copies, 4), 0);
    kvseq_commit(s, toks + found, n_all - found);
    kvseq_free(s);
    return found;
}

/* Names of the full blocks of a request: those of the prompt that an id covers wholly by
 * the ids, all others are its own. */
static void names_of(const struct load_req *r, int n_full, uint64_t own, uint64_t *ret)
{
    uint64_t at = 0;

    for (int i = 0; i < n_full; i++) {
        bool shared = i < r->n_id && (i + 1) * BLOCK <= r->n_in;

        at = chain(at,
                   shared ? (uint64_t)r->id[i] << 1 : (own << 20 | (uint64_t)i) << 1 | 1);
        ret[i] = at;
    }
}

static void replay(const struct load_trace *t, int n_blocks, double *ret_cache,
                   double *ret_lru)
{
    struct load_work w = {.arrival = LOAD_TRACE,
                          .max_tok = n_blocks * BLOCK / 2,
                          .n_vocab = 32000,
                          .seed = test_seed(),
                          .trace = t,
                          .length_scale = DIVIDE};
    struct load_req *req = xcalloc((size_t)t->n, sizeof(*req));
    int32_t *toks = xcalloc(MAX_TOK, sizeof(*toks));
    uint64_t *name = xcalloc(MAX_TOK / BLOCK, sizeof(*name)), out = 1;
    struct kvcache *kv = cache_of(n_blocks);
    struct lru l;
    double asked = 0, cache = 0, lru = 0;
    struct err e;

    lru_init(&l, n_blocks);
    load_work_make(&w, 1, t->n, 0, req);
    for (int i = 0; i < t->n; i++) {
        const struct load_req *r = &req[i];
        int n_all = r->n_in + r->n_out, n_full = n_all / BLOCK;

        assert_true(n_all < MAX_TOK);
        load_prompt(&w, r, toks);
        for (int k = r->n_in; k < n_all; k++)
            toks[k] = (int32_t)(load_rand(&out) % 32000);
        cache += cache_request(kv, toks, r->n_in, n_all);
        names_of(r, n_full, (uint64_t)i + 1, name);
        lru += BLOCK * lru_request(&l, i, name, n_full, (r->n_in - 1) / BLOCK,
                                   (n_all + BLOCK - 1) / BLOCK);
        asked += r->n_in;
    }
    if (kvcache_check(kv, &e) < 0)
        fail_msg("%s", e.msg);
    *ret_cache = cache / asked;
    *ret_lru = lru / asked;
    kvcache_free(kv);
    lru_done(&l);
    free(req);
    free(toks);
    free(name);
}

static void test_hit_rate_is_an_lru(void **state)
{
    static const char *const files[] = {"traces/mooncake_fast25_conversation.first.jsonl",
                                        "traces/mooncake_fast25_synthetic.jsonl"};
    static const int blocks[] = {600, 1500, 4000};

    (void)state;
    for (size_t f = 0; f < 2; f++) {
        FILE *in = fopen(test_shared(files[f]), "rb");
        char *text = xmalloc(3 << 20);
        size_t n = fread(text, 1, 3 << 20, in);
        struct load_trace t;
        struct err e;
        double before = 0;

        fclose(in);
        if (load_trace_parse(text, n, &t, &e) < 0)
            fail_msg("%s", e.msg);
        t.n = t.n > 1500 ? 1500 : t.n;
        for (size_t b = 0; b < 3; b++) {
            double cache, lru;

            replay(&t, blocks[b], &cache, &lru);
            printf("# %s, %d blocks: hit rate %.4f, exact LRU %.4f\n", files[f],
                   blocks[b], cache, lru);
            assert_true(lru > 0.01 && lru >= before); /* there is something to find */
            assert_true(cache > lru * 0.99 && cache < lru * 1.01);
            before = lru;
        }
        load_trace_done(&t);
        free(text);
    }
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(test_hit_rate_is_an_lru)};
TEST_MAIN("kv_trace", tests)
