/* tests/unit/test_kvcache.c - who owns which KV block. The random test holds a model of
 * the contents (which token is written in which slot) against what the cache hands out.
 */
#include "tests/test.h"

#include "base/err.h"
#include "daemon/serve/kvcache.h"
#include "daemon/serve/kvhash.h"
#include "daemon/serve/kvpool.h"

enum { BT = 4 };

static struct kvcache *cache(int n_blocks)
{
    struct kvcache_cfg c = {.block_tok = BT, .n_groups = 1, .reuse = true};

    c.group[0] = (struct kv_group){KV_FULL, n_blocks, 0};
    memset(c.secret, 7, sizeof(c.secret));
    return kvcache_new(&c);
}

static void check(const struct kvcache *kv)
{
    struct err e;

    if (kvcache_check(kv, &e) < 0)
        fail_msg("%s", e.msg);
}

static int available(const struct kvcache *kv) { return kvcache_available(kv, 0); }

static void iota(int32_t *t, int n, int base)
{
    for (int i = 0; i < n; i++)
        t[i] = base + i;
}

/* A sequence with n committed tokens base, base + 1, .. */
static struct kvseq *filled(struct kvcache *kv, int n, int base)
{
    struct kvseq *s = kvseq_new(kv, 0, 0, true);
    int32_t t[256];
    int copies = 0;

    iota(t, n, base);
    int have = kvseq_attach(s, t, n);
    assert_int_equal(kvseq_reserve(s, have, n, NULL, &copies, 0), 0);
    kvseq_commit(s, t + have, n - have);
    return s;
}

static void test_hash_vectors(void **st)
{
    (void)st;
    /* the published output of SipHash-2-4-128 for key 00..0f and 0, 1 and 2 bytes */
    static const char *want[] = {"a3817f04ba25a8e66df67214c7550293",
                                 "da87c1d86b99af44347659119b22fc45",
                                 "8177228da4a45dc7fca38bdef60affe4"};
    uint8_t key[16], msg[2] = {0, 1};

    for (int i = 0; i < 16; i++)
        key[i] = (uint8_t)i;
    for (int n = 0; n < 3; n++) {
        struct kvhash h = kvhash_bytes(key, msg, (size_t)n);
        char hex[33];
        for (int i = 0; i < 16; i++)
            snprintf(hex + 2 * i, 3, "%02x",
                     (unsigned)(h.w[i / 8] >> (8 * (i % 8)) & 0xff));
        assert_string_equal(hex, want[n]);
    }
}

static void test_attach_whole_blocks(void **st)
{
    (void)st;
    struct kvcache *kv = cache(16);
    int32_t t[32];

    iota(t, 32, 100);
    kvseq_free(filled(kv, 10, 100));
    check(kv);
    assert_int_equal(kvcache_peek(kv, 0, 0, t, 32), 8);
    assert_int_equal(kvcache_peek(kv, 0, 0, t, 9), 8);
    assert_int_equal(kvcache_peek(kv, 0, 0, t, 8), 4);  /* one token is left to compute */
    assert_int_equal(kvcache_peek(kv, 0, 1, t, 32), 0); /* another tenant */
    t[5] = 1;
    assert_int_equal(kvcache_peek(kv, 0, 0, t, 32), 4);
    kvcache_free(kv);
}

static void test_stats_and_levels(void **st)
{
    (void)st;
    struct kvcache *kv = cache(16);
    struct kvcache_stats v;
    struct kvseq *a = filled(kv, 12, 0), *b = filled(kv, 12, 0);

    check(kv);
    kvcache_stats(kv, &v);
    assert_int_equal(v.n_used, 3); /* the third block too: equal, so stored once */
    assert_int_equal(v.query_tok, 24);
    assert_int_equal(v.hit_tok, 8);
    kvseq_free(a);
    check(kv);
    kvseq_free(b);
    check(kv);
    kvcache_stats(kv, &v);
    assert_int_equal(v.n_free, 13);
    assert_int_equal(v.n_cached, 3);
    assert_int_equal(available(kv), 16);
    kvcache_free(kv);
}

static void test_without_reuse(void **st)
{
    (void)st;
    struct kvcache *kv = cache(16);
    struct kvseq *a = filled(kv, 12, 0), *s = kvseq_new(kv, 0, 0, false);
    int32_t t[12];
    int n = 0;

    iota(t, 12, 0);
    assert_int_equal(kvseq_attach(s, t, 12), 0);
    assert_int_equal(kvseq_reserve(s, 0, 12, NULL, &n, 0), 0);
    kvseq_commit(s, t, 12);
    check(kv);
    assert_int_equal(available(kv), 10); /* nothing shared */
    kvseq_free(s);
    kvseq_free(a);
    check(kv);
    kvcache_free(kv);
}

static void test_copy_on_write(void **st)
{
    (void)st;
    struct kvcache *kv = cache(16);
    struct kvseq *a = filled(kv, 9, 0), *b = filled(kv, 9, 0);
    struct kv_copy cp[4];
    int n = 0, na, nb;
    int32_t t[4] = {70, 71, 72, 73};

    kvseq_truncate(b, 6);
    check(kv);
    assert_int_equal(kvseq_need(b, 6, 9), 2);                /* block 1 anew, block 2 */
    assert_int_equal(kvseq_reserve(b, 6, 9, cp, &n, 0), -1); /* no room for the pair */
    assert_int_equal(kvseq_reserve(b, 6, 9, cp, &n, 4), 0);
    assert_int_equal(n, 1);
    const int32_t *ba = kvseq_blocks(a, 0, &na), *bb = kvseq_blocks(b, 0, &nb);
    assert_int_equal(nb, 3);
    assert_int_equal(ba[0], bb[0]);
    assert_int_equal(cp[0].src, ba[1]);
    assert_int_equal(cp[0].dst, bb[1]);
    kvseq_commit(b, t, 3);
    check(kv);
    assert_int_equal(kvseq_len(b), 9);
    int32_t want[12] = {0, 1, 2, 3, 4, 5, 70, 71, 72};
    assert_int_equal(kvcache_peek(kv, 0, 0, want, 9), 8);
    kvseq_free(a);
    kvseq_free(b);
    check(kv);
    assert_int_equal(available(kv), 16);
    kvcache_free(kv);
}

/* Alone in the cache, but findable: a write must not change what others would find. */
static void test_write_into_findable(void **st)
{
    (void)st;
    struct kvcache *kv = cache(16);
    struct kvseq *a = filled(kv, 8, 0);
    struct kv_copy cp[4];
    int32_t t[9], x[2] = {90, 91};
    int n = 0;

    iota(t, 9, 0);
    kvseq_truncate(a, 6);
    assert_int_equal(kvseq_reserve(a, 6, 8, cp, &n, 4), 0);
    assert_int_equal(n, 1);
    kvseq_commit(a, x, 2);
    check(kv);
    assert_int_equal(kvcache_peek(kv, 0, 0, t, 9), 8);
    kvseq_free(a);
    kvcache_free(kv);
}

static void test_truncate_reserved(void **st)
{
    (void)st;
    struct kvcache *kv = cache(8);
    struct kvseq *a = filled(kv, 4, 0);
    int n = 0;

    assert_int_equal(kvseq_reserve(a, 4, 20, NULL, &n, 0), 0);
    assert_int_equal(available(kv), 3);
    assert_int_equal(kvseq_reserve(a, 4, 33, NULL, &n, 0), -1);
    assert_int_equal(available(kv), 3);
    kvseq_truncate(a, 5);
    assert_int_equal(available(kv), 6);
    assert_int_equal(kvseq_len(a), 4);
    check(kv);
    kvseq_truncate(a, 0);
    assert_int_equal(available(kv), 8);
    check(kv);
    kvseq_free(a);
    kvcache_free(kv);
}

static void test_evict_from_tail(void **st)
{
    (void)st;
    struct kvcache *kv = cache(8);
    int32_t a[17], b[17];

    iota(a, 17, 0);
    iota(b, 17, 500);
    kvseq_free(filled(kv, 16, 0));
    kvseq_free(filled(kv, 16, 500));
    assert_int_equal(kvcache_peek(kv, 0, 0, a, 17), 16);
    struct kvseq *c = filled(kv, 8, 900); /* takes the two last blocks of a */
    check(kv);
    assert_int_equal(kvcache_peek(kv, 0, 0, a, 17), 8);
    assert_int_equal(kvcache_peek(kv, 0, 0, b, 17), 16);
    kvseq_free(c);
    struct kvcache_stats v;
    kvcache_stats(kv, &v);
    assert_int_equal(v.evicted, 2);
    kvcache_free(kv);
}

/* Pinned blocks stay as they are, whoever had them; then they are as any others, and a
 * block's generation tells that it is another one. */
static void test_pins(void **st)
{
    (void)st;
    static _Atomic uint32_t gens[8];
    struct kvcache_cfg c = {.block_tok = BT, .n_groups = 1, .reuse = true, .gens = gens};
    struct kvcache_stats v;
    int32_t a[17], ids[5];
    uint32_t gen[4];
    int n, copies = 0;

    memset((void *)gens, 0, sizeof(gens));
    c.group[0] = (struct kv_group){KV_FULL, 8, 0};
    struct kvcache *kv = kvcache_new(&c);
    iota(a, 17, 0);
    struct kvseq *s = filled(kv, 17, 0); /* the last block is not full */
    memcpy(ids, kvseq_blocks(s, 0, &n), sizeof(ids));
    assert_int_equal(n, 5);
    for (int i = 0; i < 4; i++)
        assert_int_equal(gen[i] = kvcache_gen(kv, ids[i]), 1);
    kvcache_pin(kv, ids, 3);
    kvcache_pin(kv, ids, 2); /* for another reader */
    check(kv);
    kvcache_pin(kv, ids + 3, 2);
    kvseq_free(s);
    check(kv);
    assert_int_equal(available(kv), 3);
    kvcache_stats(kv, &v);
    assert_true(v.n_pinned == 5 && v.n_used == 5);
    s = filled(kv, 8, 900);
    struct kvseq *t = kvseq_new(kv, 0, 0, true);
    assert_int_equal(kvseq_reserve(t, 0, 12, NULL, &copies, 0), -1);
    assert_int_equal(kvcache_peek(kv, 0, 0, a, 17), 16); /* found all the same */
    for (int i = 0; i < 4; i++)
        assert_int_equal(kvcache_gen(kv, ids[i]), gen[i]);
    kvseq_free(t);
    kvseq_free(s);
    kvcache_unpin(kv, ids, 5);
    check(kv);
    kvcache_stats(kv, &v);
    assert_true(v.n_pinned == 2 && v.n_used == 2);
    kvcache_unpin(kv, ids, 2);
    check(kv);
    assert_int_equal(available(kv), 8);
    assert_int_equal(kvcache_peek(kv, 0, 0, a, 17), 16);
    s = filled(kv, 32, 2000); /* takes all */
    for (int i = 0; i < 4; i++)
        assert_true(kvcache_gen(kv, ids[i]) > gen[i]);
    kvseq_free(s);
    check(kv);
    kvcache_free(kv);
}

static void test_tokens_are_compared(void **st)
{
    (void)st;
    struct kv_pool p;
    struct kvhash h = {{1, 2}}, before = {{3, 4}}, other = {{5, 6}};
    int32_t t[BT] = {1, 2, 3, 4}, u[BT] = {1, 2, 3, 5};

    kvpool_init(&p, 4, BT, 1);
    int32_t id = kvpool_take(&p, 0), id2 = kvpool_take(&p, 0);
    kvpool_index(&p, id, 0, h, before, t);
    assert_int_equal(kvpool_find(&p, h, before, t), id);
    assert_int_equal(kvpool_find(&p, h, before, u), -1);
    assert_int_equal(kvpool_find(&p, h, other, t), -1);
    kvpool_index(&p, id2, 0, h, before, u); /* both live under one hash */
    assert_int_equal(kvpool_find(&p, h, before, t), id);
    assert_int_equal(kvpool_find(&p, h, before, u), id2);
    kvpool_done(&p);
}

static void test_window_group(void **st)
{
    (void)st;
    struct kvcache_cfg c = {.block_tok = BT, .n_groups = 2, .reuse = true};
    c.group[0] = (struct kv_group){KV_FULL, 16, 0};
    c.group[1] = (struct kv_group){KV_WINDOW, 16, 6};
    struct kvcache *kv = kvcache_new(&c);
    int32_t t[41];
    int n;

    iota(t, 41, 0);
    struct kvseq *a = filled(kv, 20, 0);
    check(kv);
    const int32_t *b = kvseq_blocks(a, 1, &n);
    assert_int_equal(n, 5);
    for (int i = 0; i < 3; i++) /* positions 0..11 lie before 20 - 6 */
        assert_int_equal(b[i], -1);
    assert_true(b[3] >= 0 && b[4] >= 0);
    kvseq_free(a);
    check(kv);
    assert_int_equal(kvcache_peek(kv, 0, 0, t, 21), 20);

    /* use up the window group's cached blocks: the prefix gets shorter, not wrong */
    struct kvseq *x = filled(kv, 24, 1000);
    struct kvseq *s = kvseq_new(kv, 0, 0, true);
    int got = kvseq_attach(s, t, 21);
    b = kvseq_blocks(s, 1, &n);
    for (int i = 0; i < n; i++)
        assert_true((b[i] >= 0) == ((i + 1) * BT > got - 6));
    check(kv);
    kvseq_free(s);
    kvseq_free(x);
    check(kv);
    kvcache_free(kv);
}

/* A hole in the window group shortens the match to the last length that needs none. */
static void test_window_hole(void **st)
{
    (void)st;
    struct kvcache_cfg c = {.block_tok = BT, .n_groups = 2, .reuse = true};
    c.group[0] = (struct kv_group){KV_FULL, 32, 0};
    c.group[1] = (struct kv_group){KV_WINDOW, 6, 4};
    struct kvcache *kv = kvcache_new(&c);
    int32_t t[60];

    iota(t, 60, 0);
    kvseq_free(filled(kv, 20, 0));
    struct kvseq *touch = kvseq_new(kv, 0, 0, true);
    assert_int_equal(kvseq_attach(touch, t, 9), 8);
    kvseq_free(touch); /* so that block 1 is the one used last */
    kvseq_free(filled(kv, 20, 700));
    int got = kvcache_peek(kv, 0, 0, t, 21);
    assert_int_equal(got, 8);
    struct kvseq *s = kvseq_new(kv, 0, 0, true);
    assert_int_equal(kvseq_attach(s, t, 21), got);
    check(kv);
    kvseq_free(s);
    kvcache_free(kv);
}

/* ---- random operations against a model of the contents ---- */

enum { N_BLOCKS = 40, N_SEQ = 8, MAX_LEN = 60 };

/* The same slots in both groups; the second one keeps WINDOW positions. */
enum { WINDOW = 10 };
static bool windowed;

struct slot_seq {
    struct kvseq *s;
    int32_t toks[MAX_LEN];
    int len;
};

static int32_t written[2][N_BLOCKS][BT];

static void fuzz_verify(const struct slot_seq *q)
{
    assert_int_equal(kvseq_len(q->s), q->len);
    for (int g = 0; g <= windowed; g++) {
        int n, from = g && q->len > WINDOW ? q->len - WINDOW : 0;
        const int32_t *b = kvseq_blocks(q->s, g, &n);
        for (int i = from; i < q->len; i++)
            assert_int_equal(written[g][b[i / BT]][i % BT], q->toks[i]);
        for (int i = 0; i < n; i++) /* none is held for longer */
            assert_true((b[i] >= 0) == ((i + 1) * BT > from));
    }
}

static void fuzz_write(const struct slot_seq *q, int add)
{
    for (int g = 0; g <= windowed; g++) {
        int n;
        const int32_t *b = kvseq_blocks(q->s, g, &n);
        for (int i = q->len; i < q->len + add; i++)
            written[g][b[i / BT]][i % BT] = q->toks[i];
    }
}

static void fuzz_extend(struct kvcache *kv, struct slot_seq *q, uint64_t *rng)
{
    struct kv_copy cp[4];
    int n_copies = 0, add = 1 + (int)(test_rand(rng) % 9);

    if (q->len + add > MAX_LEN)
        return;
    int need = kvseq_need(q->s, q->len, q->len + add), had = available(kv);
    if (kvseq_reserve(q->s, q->len, q->len + add, cp, &n_copies, 4) < 0) {
        assert_true(need > had || windowed);
        assert_int_equal(available(kv), had);
        return;
    }
    for (int i = 0; i < n_copies; i++)
        memcpy(written[cp[i].group][cp[i].dst], written[cp[i].group][cp[i].src],
               sizeof(written[0][0]));
    for (int i = 0; i < add; i++)
        q->toks[q->len + i] = (int32_t)(test_rand(rng) % 2); /* many equal prefixes */
    fuzz_write(q, add);
    kvseq_commit(q->s, q->toks + q->len, add);
    q->len += add;
}

static void fuzz_start(struct kvcache *kv, struct slot_seq *q, uint64_t *rng)
{
    int n = 1 + (int)(test_rand(rng) % (MAX_LEN - 10));

    for (int i = 0; i < n; i++)
        q->toks[i] = (int32_t)(test_rand(rng) % 16 == 0);
    q->s = kvseq_new(kv, 0, test_rand(rng) % 2, test_rand(rng) % 8 != 0);
    q->len = kvseq_attach(q->s, q->toks, n);
}

static void fuzz_op(struct kvcache *kv, struct slot_seq *q, uint64_t *rng)
{
    switch (test_rand(rng) % 8) {
    case 0:
        kvseq_free(q->s);
        q->s = NULL;
        return;
    case 1:
        if (windowed)
            break; /* what fell out of the window does not come back */
        q->len = q->len ? (int)(test_rand(rng) % (uint64_t)q->len) : 0;
        kvseq_truncate(q->s, q->len);
        break;
    case 2:
        kvseq_truncate(q->s, q->len + 1);
        break;
    default:
        fuzz_extend(kv, q, rng);
    }
    fuzz_verify(q);
}

/* Each shard has its own blocks and finds its own prefixes only. */
static void test_shards(void **st)
{
    (void)st;
    struct kvcache_cfg c = {.block_tok = BT, .n_groups = 1, .shards = 3, .reuse = true};
    struct kvcache_stats v;
    struct kvseq *s[3];
    int32_t t[32];
    int n, copies = 0;

    c.group[0] = (struct kv_group){KV_FULL, 24, 0};
    struct kvcache *kv = kvcache_new(&c);
    iota(t, 32, 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(kvcache_available(kv, i), 8);
        s[i] = kvseq_new(kv, i, 0, true);
        assert_int_equal(kvseq_shard(s[i]), i);
        assert_int_equal(kvseq_attach(s[i], t, 16),
                         0); /* the same tokens as the others */
        assert_int_equal(kvseq_reserve(s[i], 0, 16, NULL, &copies, 0), 0);
        kvseq_commit(s[i], t, 16);
        const int32_t *b = kvseq_blocks(s[i], 0, &n);
        assert_int_equal(n, 4);
        for (int k = 0; k < n; k++)
            assert_int_equal(b[k] / 8, i);
        check(kv);
    }
    /* one shard is full: the others have room that is not its */
    assert_int_equal(kvseq_reserve(s[1], 16, 32, NULL, &copies, 0), 0);
    assert_int_equal(kvcache_available(kv, 1), 0);
    assert_int_equal(kvcache_available(kv, 2), 4);
    assert_int_equal(kvseq_reserve(s[1], 32, 33, NULL, &copies, 0), -1);
    kvcache_stats(kv, &v);
    assert_int_equal(v.n_used, 16);
    assert_int_equal(v.n_free, 8);
    kvseq_free(s[0]);
    assert_int_equal(kvcache_peek(kv, 0, 0, t, 32), 16);
    assert_int_equal(kvcache_available(kv, 0), 8);
    kvseq_free(s[2]);
    /* what is evicted is of the shard that needs it */
    s[0] = kvseq_new(kv, 0, 0, true);
    iota(t, 32, 1000);
    assert_int_equal(kvseq_attach(s[0], t, 32), 0);
    assert_int_equal(kvseq_reserve(s[0], 0, 32, NULL, &copies, 0), 0);
    iota(t, 32, 0);
    assert_int_equal(kvcache_peek(kv, 0, 0, t, 32), 0);
    assert_int_equal(kvcache_peek(kv, 2, 0, t, 32), 16);
    check(kv);
    kvseq_free(s[0]);
    kvseq_free(s[1]);
    check(kv);
    kvcache_free(kv);
}

static void random_ops(struct kvcache *kv)
{
    struct slot_seq q[N_SEQ] = {0};
    struct kvcache_stats v;
    uint64_t rng = test_seed();

    for (int i = 0; i < 60000; i++) {
        struct slot_seq *x = &q[test_rand(&rng) % N_SEQ];
        if (x->s)
            fuzz_op(kv, x, &rng);
        else
            fuzz_start(kv, x, &rng);
        check(kv);
    }
    for (int i = 0; i < N_SEQ; i++) {
        if (q[i].s)
            fuzz_verify(&q[i]);
        kvseq_free(q[i].s);
    }
    check(kv);
    kvcache_stats(kv, &v);
    assert_int_equal(v.n_used, 0);
    assert_true(v.evicted > 0 && v.hit_tok > 0);
    kvcache_free(kv);
}

static void test_random_ops(void **st)
{
    (void)st;
    windowed = false;
    random_ops(cache(N_BLOCKS));
}

static void test_random_windows(void **st)
{
    (void)st;
    struct kvcache_cfg c = {.block_tok = BT, .n_groups = 2, .reuse = true};

    c.group[0] = (struct kv_group){KV_FULL, N_BLOCKS, 0};
    c.group[1] = (struct kv_group){KV_WINDOW, 24, WINDOW};
    windowed = true;
    random_ops(kvcache_new(&c));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hash_vectors),
        cmocka_unit_test(test_attach_whole_blocks),
        cmocka_unit_test(test_stats_and_levels),
        cmocka_unit_test(test_without_reuse),
        cmocka_unit_test(test_copy_on_write),
        cmocka_unit_test(test_write_into_findable),
        cmocka_unit_test(test_truncate_reserved),
        cmocka_unit_test(test_evict_from_tail),
        cmocka_unit_test(test_pins),
        cmocka_unit_test(test_tokens_are_compared),
        cmocka_unit_test(test_window_group),
        cmocka_unit_test(test_window_hole),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_random_ops),
        cmocka_unit_test(test_random_windows),
    };
    return test_main(argc, argv, "kvcache", tests, sizeof(tests) / sizeof(tests[0]));
}
