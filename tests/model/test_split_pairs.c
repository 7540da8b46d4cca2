/* tests/model/test_split_pairs.c - a request has one answer, however the pools that
 * compute it are cut, and whatever happens between them: real engines on tiny models,
 * pairs of layouts crossed with KV tiers, preemption and copies that fail.
 *
 * What "one answer" is depends on where sums are cut. Layouts of one class give the same
 * bits: stages, groups with requests of their own, experts apart and exchanged heads
 * (ulysses) change no sum; tp cuts sums; ring, stripes and gathered KV let attention
 * round at other places. Told to round alike (round_as) they are all of one class, but
 * for stripes and for experts that are cut by tp.
 *
 * A pair of one class: every token, logprob and alternative is that of one engine,
 * whether it runs chunked or colocated (BITS).
 *
 * A pair of two classes: the first token is to the bit that of one engine of the prompt's
 * layout; what follows is to the bit the same for all pairs of these two classes, and, as
 * far as rounding lets it go the same way, that of one engine of the answer's layout
 * (NEAR). Where KV is computed again by the other side it has that side's bits: then only
 * NEAR is left.
 *
 * make check takes every NTH pair and each event with one, fewer under sanitizers;
 * LLMRACK_LONG=1 all with all. */
#include "daemon/serve/kvpull.h"
#include "kernels/kv_block.h"
#include "tests/split_rig.h"

#ifdef __SANITIZE_ADDRESS__
enum { NTH = 47, STEP = 5, ONES = 4 }; /* STEP: of layouts alone, in ONES families */
#else
enum { NTH = 9, STEP = 1, ONES = 100 };
#endif
enum { LAYERS = 8, NEW = 40, SPLITS = 12, REQUESTS = 20, LAYS = 12, TRIES = 4 };

/* Around the borders of blocks and chunks; the last eight are for one side alone in the
 * tests that say so. */
static const int lengths[REQUESTS] = {1,   2,   15,  17,  33,  64,  65,  127, 200, 333,
                                      480, 500, 130, 135, 140, 145, 150, 155, 160, 165};

enum class { WHOLE, GATHERED, TP2, TP4, TP2EP, RING, STRIPED, USP, N_CLASS };
struct lay {
    const char *words; /* NULL: one rank */
    enum class class;
};
struct family {
    const char *name;
    int as_tp, as_cp; /* told to round so; 0 = as they are cut */
    struct lay lay[LAYS];
    int n;
};

static const struct family families[] = {
    {"llama",
     0,
     0,
     {{NULL, WHOLE},
      {"pp2", WHOLE},
      {"cp2 ulysses", WHOLE},
      {"cp2 allgather", GATHERED},
      {"tp2", TP2},
      {"tp2 pp2", TP2},
      {"tp4", TP4},
      {"cp2 ring", RING},
      {"cp2 striped", STRIPED},
      {"cp4 usp cp_u2", USP}},
     10},
    {"qwen3_moe",
     0,
     0,
     {{NULL, WHOLE},
      {"adp2 ep2", WHOLE},
      {"adp2 pp2 ep2", WHOLE},
      {"tp2", TP2},
      {"tp2 ep2", TP2EP},
      {"cp2 ring ep2", RING}},
     6},
    {"deepseek_v3",
     0,
     0,
     {{NULL, WHOLE},
      {"pp2", WHOLE},
      {"adp2 ep2", WHOLE},
      {"tp2", TP2},
      {"cp2 ring ep2", RING}},
     5},
    {"llama",
     4,
     2,
     {{NULL, WHOLE},
      {"pp2", WHOLE},
      {"cp2 ulysses", WHOLE},
      {"cp2 allgather", WHOLE},
      {"tp2 sp", WHOLE},
      {"tp2 pp2", WHOLE},
      {"tp4", WHOLE},
      {"cp2 ring", WHOLE},
      {"tp2 cp2 ring", WHOLE},
      {"cp4 usp cp_u2", WHOLE}},
     10},
    {"qwen3_moe",
     2,
     2,
     {{NULL, WHOLE},
      {"adp2 ep2", WHOLE},
      {"adp2 pp2 ep2", WHOLE},
      {"tp2 ep2", WHOLE},
      {"cp2 ring ep2", WHOLE}},
     5},
    {"deepseek_v3",
     2,
     2,
     {{NULL, WHOLE},
      {"pp2", WHOLE},
      {"adp2 ep2", WHOLE},
      {"tp2 ep2", WHOLE},
      {"cp2 ring ep2", WHOLE}},
     5},
    /* one engine only: norms over all heads, biases, sinks and windows, shared experts
     * with a gate */
    {"olmoe",
     4,
     2,
     {{NULL, WHOLE}, {"tp2 ep2", WHOLE}, {"tp4 ep4", WHOLE}, {"tp2 cp2 ring ep4", WHOLE}},
     4},
    {"gpt_oss", 2, 2, {{NULL, WHOLE}, {"tp2 ep2", WHOLE}, {"cp2 ring ep2", WHOLE}}, 3},
    {"qwen2_moe", 2, 1, {{NULL, WHOLE}, {"tp2 ep2", WHOLE}, {"adp2 ep2", WHOLE}}, 3},
    {"mistral", 2, 2, {{NULL, WHOLE}, {"tp2 sp", WHOLE}, {"cp2 allgather", WHOLE}}, 3},
};
enum { FAMILIES = sizeof(families) / sizeof(families[0]) };

/* ---- what happens ---- */

enum {
    HOST_P = 1,
    DISK_P = 2,
    HOST_D = 4,
    DISK_D = 8,
    SMALL_P = 16, /* and requests of its own, so that it has to preempt */
    SMALL_D = 32,
    FAIL_ONCE = 64, /* each copy, then it is well */
    FAIL_ALWAYS = 128,
    SPOIL_ONCE = 256, /* another byte in the copy: the sums tell */
    SPOIL_ALWAYS = 512,
    NO_OFFER = 1024, /* some do not come */
    TIERS_P = HOST_P | DISK_P,
    TIERS_D = HOST_D | DISK_D,
    COMPUTED_AGAIN = SMALL_P | SMALL_D | FAIL_ALWAYS | SPOIL_ALWAYS | NO_OFFER | TIERS_D
};
static const struct event {
    const char *name;
    unsigned what;
} events[] = {
    {"nothing", 0},
    {"host tier of P", HOST_P},
    {"host and disk of P", TIERS_P},
    {"host tier of D", HOST_D},
    {"host and disk of D", TIERS_D},
    {"tiers of both", TIERS_P | TIERS_D},
    {"P preempts", SMALL_P},
    {"D preempts", SMALL_D},
    {"both, with tiers", SMALL_P | SMALL_D | HOST_P | HOST_D},
    {"each copy fails once", FAIL_ONCE},
    {"no copy succeeds", FAIL_ALWAYS},
    {"each copy is spoilt once", SPOIL_ONCE},
    {"every copy is spoilt", SPOIL_ALWAYS},
    {"offers do not come", NO_OFFER},
    {"copies fail, D preempts", FAIL_ONCE | SMALL_D},
};
enum { EVENTS = sizeof(events) / sizeof(events[0]) };

static unsigned now_is;  /* the event's */
static int as_tp, as_cp; /* the family's */
/* Of the one thread that copies: the first and last piece of its job, and where jobs that
 * failed began: tried again, one begins there once more, but may have grown meanwhile. */
static struct kvpull_piece last;
static const uint8_t *began;
enum { FAILED = 4096 };
static const uint8_t *failed[FAILED];
static int n_failed;

/* The first time that a job begins there. */
static bool is_first(const uint8_t *dst)
{
    for (int i = 0; i < n_failed; i++)
        if (failed[i] == dst)
            return false;
    if (n_failed < FAILED)
        failed[n_failed++] = dst;
    return true;
}

static int64_t copy(const struct kvpull_piece *p, struct err *e)
{
    last = *p;
    began = began ? began : p->dst;
    return kvpull_host.copy(p, e);
}

static int copied(struct err *e)
{
    bool first = began && (now_is & (FAIL_ONCE | SPOIL_ONCE)) && is_first(began);
    size_t at;

    began = NULL;
    if ((now_is & FAIL_ALWAYS) || ((now_is & FAIL_ONCE) && first))
        return err_set(e, ERR_IO, "a copy that a test lets fail");
    if (!last.n || !((now_is & SPOIL_ALWAYS) || ((now_is & SPOIL_ONCE) && first)))
        return 0;
    at = kv_k_index(last.layout->type, last.dst_tok[0], 0) * kvmap_element(last.layout);
    last.dst[at] ^= 0x55;
    return 0;
}

static const struct kvpull_ops copies = {copy, copied};

static char disk[2][128];

static void tune(struct engine_cfg *c, unsigned what, int side)
{
    bool host = what & (side ? HOST_D : HOST_P),
         on_disk = what & (side ? DISK_D : DISK_P);

    c->ctx = 560;
    c->threads = 1; /* their number changes no bit */
    c->max_seqs = REQUESTS;
    c->handoff_ms = what & NO_OFFER ? 300 : 20000;
    c->as_tp = as_tp;
    c->as_cp = as_cp;
    c->kv_mib = 8;
    c->copies = &copies;
    if (host || on_disk || (what & (side ? SMALL_D : SMALL_P)))
        c->kv_mib = c->layout.adp > 1 ? 2 : 1; /* 1024 positions */
    if (host)
        c->kv_host_mib = on_disk ? 1 : 16;
    if (!on_disk)
        return;
    c->kv_disk_mib = 16;
    snprintf(disk[side], sizeof(disk[side]), "/tmp/llmrack-pairs-%d-%d.kv", (int)getpid(),
             side);
    unlink(disk[side]);
    c->kv_file = disk[side];
}

/* ---- requests ---- */

/* Greedy ones and such with a seed, penalties and alternatives. */
static struct gen_params request(int i)
{
    struct gen_params p = params((uint64_t)i + 1, lengths[i], NEW);

    if (i % 3 == 0) {
        p.temperature = 0;
        p.repetition = 1;
    }
    p.n_top = i % 4;
    return p;
}

static double of(const struct side *s, int metric, int i)
{
    return metric_get(s->page, metric, i);
}

/* Those of P alone come first, until it is short of blocks. */
static void ask_round(struct world *w, unsigned what, int round)
{
    bool at_d =
        round > (what & TIERS_P ? 2 : 0) && (what & TIERS_D); /* where their KV is */
    int split = at_d ? 0 : what & SMALL_P ? SPLITS : REQUESTS;

    for (int i = split; i < REQUESTS; i++)
        ask_one(w, request(i), !at_d);
    while (split == SPLITS && w->left && of(w->p, M_PREEMPTIONS, 0) == 0)
        run(w, 1000);
    for (int i = 0; i < split; i++)
        ask(w, request(i));
    run(w, 0);
}

/* By one engine. */
static const struct req *alone(int f, int l, enum sched_mode mode)
{
    static struct req *known[FAMILIES][LAYS][2];
    struct engine_cfg c = base_cfg(ENGINE_BOTH, families[f].lay[l].words);
    struct side s;
    struct world w;

    if (known[f][l][mode])
        return known[f][l][mode];
    tune(&c, 0, 0);
    c.mode = mode;
    c.step_tok = mode == SCHED_COLOCATED ? 640 : 64;
    world_init(&w);
    launch(&s, &c);
    w.p = w.d = &s;
    for (int i = 0; i < REQUESTS; i++)
        ask(&w, request(i));
    run(&w, 0);
    assert_int_equal(stop(&s), 0);
    free(w.buf);
    return known[f][l][mode] = w.req;
}

/* ---- comparing ---- */

enum like { BITS, NEAR };

static int same_upto(const struct req *a, const struct req *b)
{
    int k = 0;

    while (k < NEW && a->toks[k].id == b->toks[k].id &&
           fabsf(a->toks[k].logprob - b->toks[k].logprob) < 0.05f)
        k++;
    return k;
}

static void compare(const struct req *r, const struct req *want, enum like like,
                    const char *say)
{
    int near = 0;

    for (int i = 1; i <= REQUESTS; i++) {
        int k = same_upto(&r[i], &want[i]);
        assert_true(r[i].done);
        assert_int_equal(r[i].f.reason, FINISH_LENGTH);
        assert_int_equal(r[i].f.n_out, NEW);
        assert_int_equal(r[i].n, NEW);
        if (like == BITS && memcmp(r[i].toks, want[i].toks, NEW * sizeof(r->toks[0])))
            fail_msg("%s: request %d has other bits, from token %d on other ids", say, i,
                     k);
        near += k;
    }
    if (near < REQUESTS * NEW / 3)
        fail_msg("%s: only %d tokens of %d as of one engine", say, near, REQUESTS * NEW);
}

/* Less than what is asked at once; not so where there are groups, or a latent for KV, nor
 * surely where blocks are longer. */
static bool short_of_kv(const struct side *s)
{
    return s->cfg.layout.adp <= 1 && s->ready.block_tok == KV_BLOCK_TOK &&
           s->ready.n_blocks * s->ready.block_tok < 1100;
}

/* What the event makes of copies, it does. */
static void copied_so(const struct world *w, unsigned what, const char *say)
{
    bool ok = true;

    if (what & (FAIL_ONCE | SPOIL_ONCE))
        ok = ok && of(w->d, M_HANDOFF_RETRIES, 0) > 0;
    if (what & (FAIL_ALWAYS | SPOIL_ALWAYS))
        ok = ok && of(w->d, M_HANDOFFS, 0) == 0 && of(w->d, M_HANDOFF_RETRIES, 0) > 0;
    if (what & (FAIL_ALWAYS | SPOIL_ALWAYS | NO_OFFER))
        ok = ok && of(w->d, M_HANDOFF_RECOMPUTED, 0) > 0;
    else
        ok = ok && of(w->d, M_HANDOFF_LOST, 0) == 0;
    if (!ok)
        fail_msg(
            "%s: copies went otherwise (%.0f, retries %.0f, lost %.0f, computed again "
            "%.0f)",
            say, of(w->d, M_HANDOFFS, 0), of(w->d, M_HANDOFF_RETRIES, 0),
            of(w->d, M_HANDOFF_LOST, 0), of(w->d, M_HANDOFF_RECOMPUTED, 0));
}

/* Did what memory there is bring about, where it could? That hangs on who comes when. */
static bool happened(const struct world *w, unsigned what)
{
    bool p = short_of_kv(w->p), d = short_of_kv(w->d);

    return (!(p && what & HOST_P) || of(w->p, M_KV_TIER_HITS, 0) > 0) &&
           (!(p && what & DISK_P) || of(w->p, M_KV_TIER_HITS, 1) > 0) &&
           (!(d && what & HOST_D) || of(w->d, M_KV_TIER_HITS, 0) > 0) &&
           (!(d && what & DISK_D) || of(w->d, M_KV_TIER_HITS, 1) > 0) &&
           (!(p && what & SMALL_P) || of(w->p, M_PREEMPTIONS, 0) > 0) &&
           (!(d && what & SMALL_D) || of(w->d, M_PREEMPTIONS, 0) > 0);
}

/* ---- one pair and event ---- */

static struct req *cells[FAMILIES][N_CLASS][N_CLASS];

static void judge(const struct world *w, int f, int p, int d, unsigned what,
                  const char *say)
{
    const struct lay *lp = &families[f].lay[p], *ld = &families[f].lay[d];
    struct req **cell = &cells[f][lp->class][ld->class];

    compare(w->req, alone(f, d, SCHED_CHUNKED), lp->class == ld->class ? BITS : NEAR,
            say);
    if (what & COMPUTED_AGAIN)
        return;
    for (int i = 1; i <= REQUESTS; i++)
        if (memcmp(w->req[i].toks, alone(f, p, SCHED_CHUNKED)[i].toks,
                   sizeof(struct step_token)))
            fail_msg("%s: the first token of request %d is not the prompt's side's", say,
                     i);
    if (*cell) {
        compare(w->req, *cell, BITS, say);
        return;
    }
    *cell = calloc(REQUESTS + 1, sizeof(**cell));
    memcpy(*cell, w->req, (REQUESTS + 1) * sizeof(**cell));
}

/* Did the event happen? */
static bool pair(int f, int p, int d, const struct event *ev)
{
    const char *words[2] = {families[f].lay[p].words, families[f].lay[d].words};
    struct engine_cfg c[2] = {base_cfg(ENGINE_PREFILL, words[0]),
                              base_cfg(ENGINE_DECODE, words[1])};
    struct side s[2];
    struct world w;
    char say[160];
    int n_rounds = 1 + 2 * !!(ev->what & TIERS_P) + 2 * !!(ev->what & TIERS_D);

    snprintf(say, sizeof(say), "%s: %s -> %s, %s", families[f].name,
             words[0] ? words[0] : "one", words[1] ? words[1] : "one", ev->name);
    now_is = ev->what;
    n_failed = 0;
    world_init(&w);
    for (int i = 0; i < 2; i++) {
        tune(&c[i], ev->what, i);
        launch(&s[i], &c[i]);
    }
    introduce(&s[0], &s[1]);
    w.p = &s[0];
    w.d = &s[1];
    for (int round = 0; round < n_rounds; round++) {
        w.drop_exports = ev->what & NO_OFFER ? 5 : 0;
        ask_round(&w, ev->what, round);
        settle(&w);
        if (round == n_rounds - 1)
            copied_so(&w, ev->what, say);
        judge(&w, f, p, d, ev->what, say);
    }
    bool did = happened(&w, ev->what);
    assert_int_equal(stop(w.p), 0);
    assert_int_equal(stop(w.d), 0);
    world_done(&w);
    for (int i = 0; i < 2; i++)
        if (disk[i][0])
            unlink(disk[i]);
    return did;
}

/* ---- tests ---- */

static void take(int f)
{
    family = families[f].name;
    as_tp = families[f].as_tp;
    as_cp = families[f].as_cp;
}

/* All pairs: an event happens in most of them. */
static int all_pairs(int f)
{
    int n = families[f].n, runs = 0, did[EVENTS] = {0};

    for (int k = 0; k < n * n; k++)
        for (int v = 0; v < EVENTS; v++, runs++)
            did[v] += pair(f, k / n, k % n, &events[v]);
    for (int v = 0; v < EVENTS; v++)
        if (2 * did[v] < n * n)
            fail_msg("%s: '%s' happened in %d of %d pairs", family, events[v].name,
                     did[v], n * n);
    return runs;
}

/* Some pairs without an event, and each event with one. */
static int some_pairs(int f)
{
    int n = families[f].n, runs = 0, from = (int)(test_seed() % NTH);
    bool first = f == 0;

    for (int k = 0; k < n * n; k++)
        if (k % NTH == from || (first && STEP == 1 && k % (n + 1) == 0)) {
            pair(f, k / n, k % n, &events[0]);
            runs++;
        }
    for (int v = 1; v < EVENTS; v++) {
        int k = (int)((test_seed() + (uint64_t)(7 * v + f)) % (uint64_t)(n * n)),
            tries = 0;

        if (!first && v % 7 != f)
            continue;
        while (runs++, !pair(f, k / n, k % n, &events[v]))
            if (++tries == TRIES)
                fail_msg("%s: '%s' did not happen in %d runs", family, events[v].name,
                         tries);
    }
    return runs;
}

static void of_family(int f)
{
    take(f);
    int runs = getenv("LLMRACK_LONG") ? all_pairs(f) : some_pairs(f);
    printf("# %s: %d layouts, %d runs\n", family, families[f].n, runs);
}

static void test_dense(void **state)
{
    (void)state;
    of_family(0);
}

static void test_experts(void **state)
{
    (void)state;
    of_family(1);
}

static void test_latent(void **state)
{
    (void)state;
    of_family(2);
}

static void test_dense_alike(void **state)
{
    (void)state;
    of_family(3);
}

static void test_experts_alike(void **state)
{
    (void)state;
    of_family(4);
}

static void test_latent_alike(void **state)
{
    (void)state;
    of_family(5);
}

/* One engine of each layout: colocated is chunked, to the bit, and so are layouts of one
 * class. */
static void test_one_engine(void **state)
{
    (void)state;
    for (int f = 0; f < FAMILIES && f < ONES; f++)
        for (int l = 0; l < families[f].n; l += STEP) {
            const struct lay *lay = families[f].lay;
            int first = 0;

            take(f);
            while (lay[first].class != lay[l].class)
                first++;
            if (getenv("LLMRACK_LONG") || l % NTH == 0)
                compare(alone(f, l, SCHED_COLOCATED), alone(f, l, SCHED_CHUNKED), BITS,
                        "colocated");
            compare(alone(f, l, SCHED_CHUNKED), alone(f, first, SCHED_CHUNKED), BITS,
                    lay[l].words ? lay[l].words : "one");
        }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_one_engine),   cmocka_unit_test(test_dense),
    cmocka_unit_test(test_experts),      cmocka_unit_test(test_latent),
    cmocka_unit_test(test_dense_alike),  cmocka_unit_test(test_experts_alike),
    cmocka_unit_test(test_latent_alike),
};

int main(int argc, char **argv)
{
    tiny_size.layers = LAYERS;
    int rc =
        test_main(argc, argv, "split_pairs", tests, sizeof(tests) / sizeof(tests[0]));

    for (int i = 0; models[i].family; i++)
        tiny_remove(models[i].dir);
    return rc;
}
