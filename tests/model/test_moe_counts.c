/* tests/model/test_moe_counts.c - what layers of experts count, held against the routers'
 * choices and against plain sums: by expert and phase, over meshes; and which items are
 * told that something was done to their rows that changes the answer. */
#include "tests/model/mesh_rig.h"

#include "daemon/serve/expertpage.h"
#include "daemon/serve/routes.h"

enum { LEN = 40, SEQS = 3, STEPS = 128, LAYERS = TINY_LAYERS, X = TINY_EXPERTS };

static int32_t toks[SEQS * LEN];

/* What a rank counted. Its own and sums of them. */
struct counted {
    int64_t rows[EXPERT_PHASES][LAYERS][X]; /* by expert */
    struct expert_count n[EXPERT_PHASES];   /* of layer 0 */
    struct expert_traffic t[EXPERT_PHASES]; /* of layer 0 */
    int64_t lost[STEPS][EXPERT_PHASES][2];  /* next, dropped: of all layers, so far */
    int altered[STEPS][SEQS];
    int steps;
};

static void add_count(struct expert_count *to, const struct expert_count *n)
{
    to->rows += n->rows;
    to->over += n->over;
    to->service_ns += n->service_ns;
    to->queue_ns += n->queue_ns;
}

static void add_traffic(struct expert_traffic *to, const struct expert_traffic *t)
{
    to->dispatch_bytes += t->dispatch_bytes;
    to->combine_bytes += t->combine_bytes;
    to->dispatch_us += t->dispatch_us;
    to->combine_us += t->combine_us;
    to->moved += t->moved;
    to->next += t->next;
    to->dropped += t->dropped;
}

static void take_layer(struct counted *c, const struct expert_report *told, int phase,
                       int l)
{
    const struct expert_count *s =
        (const void *)(told->cells[phase] + l * expert_report_stride(told->n_slot));
    const struct expert_traffic *t = (const void *)(s + told->n_slot);
    int layer = told->first + l;

    memset(c->rows[phase][layer], 0, sizeof(c->rows[phase][layer]));
    if (layer == 0) {
        c->n[phase] = (struct expert_count){0};
        c->t[phase] = *t;
    }
    for (int i = 0; i < told->n_slot; i++) {
        int x = told->routes[l].expert[i];
        if (x >= 0)
            c->rows[phase][layer][x] += s[i].rows;
        if (layer == 0)
            add_count(&c->n[phase], &s[i]);
    }
    c->lost[c->steps][phase][0] += t->next;
    c->lost[c->steps][phase][1] += t->dropped;
}

static void count(struct mesh_run *r, struct forward *f, int step)
{
    struct counted *c = r->own ? r->own : (r->own = xcalloc(1, sizeof(*c)));
    const struct step_item *it = step_items(r->st);
    struct expert_report told;
    const int32_t *how;
    struct err e;

    assert_true(step < STEPS);
    c->steps = step;
    rig_ok(forward_altered(f, &how, &e), &e);
    for (int i = 0; how && i < r->st->n_items; i++)
        c->altered[step][it[i].seq] |= how[i];
    rig_ok(forward_report(f, &told, &e), &e);
    for (int p = 0; p < EXPERT_PHASES; p++) {
        if (step && !told.cells[p])
            memcpy(c->lost[step][p], c->lost[step - 1][p], sizeof(c->lost[step][p]));
        for (int l = 0; told.cells[p] && l < told.n_layer; l++)
            take_layer(c, &told, p, l);
    }
    c->steps = step + 1;
}

static void sum_up(struct counted *all, const struct counted *c)
{
    for (int p = 0; p < EXPERT_PHASES; p++) {
        for (int i = 0; i < LAYERS * X; i++)
            all->rows[p][i / X][i % X] += c->rows[p][i / X][i % X];
        add_count(&all->n[p], &c->n[p]);
        add_traffic(&all->t[p], &c->t[p]);
        for (int s = 0; s < c->steps; s++)
            for (int i = 0; i < 2; i++)
                all->lost[s][p][i] += c->lost[s][p][i];
    }
    for (int s = 0; s < c->steps; s++)
        for (int q = 0; q < SEQS; q++)
            all->altered[s][q] |= c->altered[s][q];
    all->steps = c->steps > all->steps ? c->steps : all->steps;
}

/* decodes: a bit for each sequence. */
static struct counted counts_of(const char *layout, int budget, unsigned decodes,
                                const struct forward_experts *x, forward_watch_fn watch,
                                void *arg)
{
    struct mesh_run *r, *head;
    struct counted all = {0};
    struct layout l;
    char dir[256];
    struct err e;

    mesh_tokens(toks, SEQS * LEN, test_seed() + 5);
    snprintf(dir, sizeof(dir), "%s", tiny_model("qwen3_moe", test_seed()));
    const struct mesh_job job = {.model = dir,
                                 .backend = "cpu",
                                 .isa = "portable",
                                 .kv = DT_F16,
                                 .toks = toks,
                                 .n_seq = SEQS,
                                 .len = LEN,
                                 .budget = budget,
                                 .seed = test_seed(),
                                 .decodes = decodes,
                                 .experts = *x,
                                 .watch = watch,
                                 .watch_arg = arg,
                                 .after = count};
    r = mesh_run_all(layout, &job, &head);
    rig_ok(layout_parse(layout, &l, &e), &e);
    for (int i = 0; i < layout_ranks(&l); i++) {
        if (r[i].rc < 0)
            fail_msg("%s: rank %d: %s", layout, i, r[i].e.msg);
        sum_up(&all, r[i].own);
        free(r[i].own);
    }
    free(head->logits);
    free(r);
    tiny_remove(dir);
    return all;
}

static struct counted counts(const char *layout, int budget,
                             const struct forward_experts *x)
{
    return counts_of(layout, budget, budget == 1 ? 7 : 0, x, NULL, NULL);
}

static int64_t rows_of(const struct counted *c, int phase, int layer)
{
    int64_t n = 0;

    for (int x = 0; x < X; x++)
        n += c->rows[phase][layer][x];
    return n;
}

static int altered(const struct counted *c)
{
    int how = 0;

    for (int s = 0; s < c->steps; s++)
        for (int q = 0; q < SEQS; q++)
            how |= c->altered[s][q];
    return how;
}

/* ---- sums ---- */

static void test_counts(void **state)
{
    static const char *const layouts[] = {"tp1", "tp2", "tp2 ep2", "adp4 ep4",
                                          "tp2 ep2 sp"};
    const int all = SEQS * LEN * TINY_TOP_K;
    struct forward_experts x = {0};

    (void)state;
    for (int i = 0; i < 5; i++) {
        struct counted c = counts(layouts[i], 20, &x);
        const struct expert_count *n = &c.n[EXPERT_PREFILL];
        const struct expert_traffic *t = &c.t[EXPERT_PREFILL];
        for (int l = 0; l < LAYERS; l++) {
            assert_int_equal(rows_of(&c, EXPERT_PREFILL, l), all);
            assert_int_equal(rows_of(&c, EXPERT_DECODE, l), 0);
        }
        assert_true(n->service_ns > 0 && n->queue_ns >= 0 && n->over == 0 &&
                    !altered(&c));
        assert_true(i < 2 ? !t->dispatch_bytes && !t->combine_bytes
                          : t->dispatch_bytes > 0 && t->combine_bytes > 0);
        c = counts(layouts[i], 1, &x);
        assert_int_equal(rows_of(&c, EXPERT_DECODE, 0), all);
        assert_int_equal(rows_of(&c, EXPERT_PREFILL, 0), 0);
        assert_true(c.n[EXPERT_DECODE].service_ns > 0 &&
                    c.n[EXPERT_PREFILL].service_ns == 0);
    }
}

static void test_capacity(void **state)
{
    const int all = SEQS * LEN * TINY_TOP_K;
    struct forward_experts x = {.capacity = 0.5, .overflow = OVERFLOW_SECOND_PASS};

    (void)state;
    struct counted c = counts("adp4 ep4", 40, &x);
    const struct expert_traffic *t = &c.t[EXPERT_PREFILL];
    assert_true(c.n[0].over > 0 && !t->next && !t->dropped && !altered(&c));
    x.overflow = OVERFLOW_DROP;
    c = counts("tp1", 40, &x);
    assert_true(t->dropped > 0 && c.n[0].over == 0 && !t->next);
    assert_int_equal(altered(&c), STEP_ALTERED_DROP);
    assert_int_equal(rows_of(&c, EXPERT_PREFILL, 0) + t->dropped, all);
    /* where every rank routes all rows, each counts its own */
    x.routing = SPREAD_LEAST_LOADED;
    c = counts("tp4 ep4", 40, &x);
    assert_true(t->dropped > 0);
    assert_int_equal(rows_of(&c, EXPERT_PREFILL, 0) + t->dropped, all);
    x = (struct forward_experts){.capacity = 1, /* room, not where they want to go */
                                 .overflow = OVERFLOW_NEXT_BEST};
    c = counts("tp1", 40, &x);
    assert_true(t->next > 0 && c.n[0].over == 0 && t->dropped < t->next);
    assert_int_equal(altered(&c) & ~STEP_ALTERED_DROP, STEP_ALTERED_NEXT);
    assert_int_equal(rows_of(&c, EXPERT_PREFILL, 0) + t->dropped, all);
}

static void test_packed(void **state)
{
    const struct forward_experts x = {.transfer = TRANSFER_F8}, plain = {0};
    struct counted f8 = counts("adp4 ep4", 40, &x), f32 = counts("adp4 ep4", 40, &plain);

    (void)state;
    /* a byte an element and a scale a row */
    assert_true(f8.t[0].combine_bytes * 3 < f32.t[0].combine_bytes);
    for (int s = 0; s < f8.steps; s++) /* one sequence a step */
        for (int q = 0; q < SEQS; q++)
            assert_int_equal(f8.altered[s][q], s == q ? STEP_ALTERED_F8 : 0);
    f8 = counts("tp1", 40, &x);
    assert_int_equal(altered(&f8), 0); /* no row travels */
}

/* ---- rows of both phases in a step ---- */

/* The choices of a rank that has all rows, in their order: sequence by sequence, with a
 * budget of 60 in two steps. */
struct chosen {
    int64_t rows[EXPERT_PHASES][LAYERS][X];
    int at[LAYERS]; /* rows so far */
    unsigned decodes;
    int altered[STEPS][SEQS];
};

/* The k best of a row, NULL-free: logits order. */
static bool among_best(const float *logits, int x)
{
    int better = 0;

    for (int i = 0; i < X; i++)
        better += logits[i] > logits[x] || (logits[i] == logits[x] && i < x);
    return better < TINY_TOP_K;
}

static void choose(void *arg, const struct forward_choice *c)
{
    struct chosen *to = arg;

    for (int r = 0; r < c->n_row; r++) {
        int row = to->at[c->layer]++, seq = row / LEN, step = row / 60;
        int phase = to->decodes >> seq & 1 ? EXPERT_DECODE : EXPERT_PREFILL;
        for (int k = 0; k < TINY_TOP_K; k++) {
            int x = c->ids[r * TINY_TOP_K + k];
            if (x < 0)
                to->altered[step][seq] |= STEP_ALTERED_DROP;
            else if (!among_best(c->logits + (size_t)r * X, x))
                to->altered[step][seq] |= STEP_ALTERED_NEXT;
            if (x >= 0)
                to->rows[phase][c->layer][x]++;
        }
    }
}

/* Each row counts by its own phase, on whatever mesh. */
static void test_phases(void **state)
{
    static const char *const layouts[] = {
        "tp1",          "tp2",         "adp4 ep4",     "tp2 ep2",        "tp2 ep2 sp",
        "adp2 tp2 ep2", "tp2 pp2 ep2", "cp2 ep2 ring", "cp2 ep2 ulysses"};
    const struct forward_experts x = {0};
    struct chosen want = {.decodes = 5};
    struct counted c = counts_of("tp1", 60, want.decodes, &x, choose, &want);

    (void)state;
    assert_int_equal(c.steps, 2);
    assert_memory_equal(c.rows, want.rows, sizeof(c.rows));
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
        c = counts_of(layouts[i], 60, want.decodes, &x, NULL, NULL);
        for (int l = 0; l < LAYERS; l++)
            if (rows_of(&c, EXPERT_DECODE, l) != 2 * LEN * TINY_TOP_K ||
                rows_of(&c, EXPERT_PREFILL, l) != LEN * TINY_TOP_K)
                fail_msg("%s, layer %d: %lld pairs of decode, %lld of prefill",
                         layouts[i], l, (long long)rows_of(&c, EXPERT_DECODE, l),
                         (long long)rows_of(&c, EXPERT_PREFILL, l));
        if (!strncmp(layouts[i], "adp4", 4)) /* to the bit as one rank alone */
            assert_memory_equal(c.rows, want.rows, sizeof(c.rows));
        for (int p = 0; p < EXPERT_PHASES; p++)
            assert_true(c.n[p].service_ns > 0);
    }
}

/* Bytes go by the rows of a run: here two of decode to one of prefill, always. */
static void test_traffic(void **state)
{
    static const char *const layouts[] = {"tp2 ep2", "adp2 ep2", "cp2 ep2 ring"};
    const struct forward_experts x = {0};

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct counted c = counts_of(layouts[i], 60, 5, &x, NULL, NULL);
        int64_t decode = c.t[EXPERT_DECODE].dispatch_bytes;
        int64_t prefill = c.t[EXPERT_PREFILL].dispatch_bytes;
        assert_true(prefill > 0 && llabs(decode - 2 * prefill) < 100);
        decode = c.t[EXPERT_DECODE].combine_bytes;
        prefill = c.t[EXPERT_PREFILL].combine_bytes;
        assert_true(prefill > 0 && llabs(decode - 2 * prefill) < 100);
    }
}

/* ---- what is told of items ---- */

/* Items are told of what was done to their own rows: as the choices say. */
static void test_altered(void **state)
{
    static const struct {
        enum moe_overflow how;
        double capacity;
    } cases[] = {{OVERFLOW_DROP, 3},
                 {OVERFLOW_DROP, 2.2},
                 {OVERFLOW_NEXT_BEST, 2.6},
                 {OVERFLOW_NEXT_BEST, 0.9}};
    int some = 0, none = 0;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct forward_experts x = {.capacity = cases[i].capacity,
                                          .overflow = cases[i].how};
        struct chosen want = {.decodes = 1};
        struct counted c = counts_of("tp1", 60, want.decodes, &x, choose, &want);
        for (int s = 0; s < c.steps; s++)
            for (int q = 0; q < SEQS; q++) {
                assert_int_equal(c.altered[s][q], want.altered[s][q]);
                some += c.altered[s][q] != 0;
                none += !c.altered[s][q] && (s == 0 ? q < 2 : q > 0);
            }
    }
    assert_true(some > 0 && none > 0);
}

/* In a step with one item of each phase: each is told exactly when pairs of its phase
 * were lost, and how. */
static void test_altered_apart(void **state)
{
    static const char *const layouts[] = {"adp4 ep4",     "tp4 ep4",     "tp2 ep2 sp",
                                          "adp2 tp2 ep2", "tp2 pp2 ep2", "cp2 ep2 ring"};
    int told = 0, not_told = 0;

    (void)state;
    for (size_t i = 0; i < 4 * sizeof(layouts) / sizeof(layouts[0]); i++) {
        const struct forward_experts x = {
            .capacity = i & 1 ? 1.5 : 3,
            .overflow = i & 2 ? OVERFLOW_NEXT_BEST : OVERFLOW_DROP,
            .routing = i & 1 ? SPREAD_LEAST_LOADED : SPREAD_STATIC};
        struct counted c = counts_of(layouts[i / 4], 44, 1, &x, NULL, NULL);
        for (int q = 0; q < 2; q++) { /* step 0: 40 rows of 0, which decodes, 4 of 1 */
            const int64_t *lost = c.lost[0][q ? EXPERT_PREFILL : EXPERT_DECODE];
            int want =
                (lost[0] ? STEP_ALTERED_NEXT : 0) | (lost[1] ? STEP_ALTERED_DROP : 0);
            if (c.altered[0][q] != want)
                fail_msg("%s, sequence %d: %d, and %lld went to others, %lld to none",
                         layouts[i / 4], q, c.altered[0][q], (long long)lost[0],
                         (long long)lost[1]);
            told += want != 0;
            not_told += !want;
        }
        assert_int_equal(c.altered[0][2], 0);
    }
    assert_true(told > 0 && not_told > 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts),        cmocka_unit_test(test_capacity),
        cmocka_unit_test(test_packed),        cmocka_unit_test(test_phases),
        cmocka_unit_test(test_traffic),       cmocka_unit_test(test_altered),
        cmocka_unit_test(test_altered_apart),
    };
    return test_main(argc, argv, "moe_counts", tests, sizeof(tests) / sizeof(tests[0]));
}
