/* tests/ops/test_moe_ops.c - ops of experts beside their products: capacity, pairs in
 * groups, rows packed for their way. Each against a plain statement of what it is to do,
 * and the far backend against the cpu to the bit. */
#include "tests/ops/rig.h"

#include "kernels/dtype.h"

enum { ROWS = 24, N = 8, TOP = 3, PAIRS = ROWS * TOP, ITEMS = 6, OWN = 3 };

/* Rows are of items in runs; of the odd ones, phase 1. The first OWN are of another rank.
 */
static int item_of(int row) { return row * ITEMS / ROWS; }

/* ---- capacity ---- */

struct cap_case {
    enum route_score score;
    bool normalise, bias, drop;
    int cap, n_group;
    float scale;
};

struct cap_result {
    int32_t ids[PAIRS], pos[PAIRS];
    float weights[PAIRS];
    int64_t lost[OP_PHASES][2];
    int32_t noted[ITEMS];
};

static const float choice_bias[N] = {0.3f, 0, -0.2f, 0.1f, 0, 0.4f, 0, -0.1f};

/* capacity (0: none) on logits; `lost` is added to */
static void run_capacity(const char *backend, const struct cap_case *c, const float *x,
                         int cap, struct cap_result *ret)
{
    static const int64_t had[OP_PHASES][2] = {{100, 1000}, {200, 2000}};
    static const int32_t none[ITEMS];
    int32_t marks[ROWS];
    struct rig r;

    for (int i = 0; i < ROWS; i++)
        marks[i] = op_mark(item_of(i), item_of(i) % 2);

    rig_open(&r, backend, "portable", 2, 64);
    struct dbuf *logits = rig_put(&r, x, (size_t)ROWS * N * 4);
    struct dbuf *ids = rig_put(&r, NULL, PAIRS * 4), *pos = rig_put(&r, NULL, PAIRS * 4);
    struct dbuf *w = rig_put(&r, NULL, PAIRS * 4), *count = rig_put(&r, NULL, N * 4);
    struct dbuf *lost = rig_put(&r, had, sizeof(had));
    struct dbuf *mark = rig_put(&r, marks, sizeof(marks));
    struct dbuf *noted = rig_put(&r, none, sizeof(none));
    struct weight *bias = rig_weight(&r, choice_bias, 1, N, WEIGHT_VECTOR);
    const struct op_capacity o = {.route = {.logits = {logits, 0, ROWS, N, N},
                                            .bias = c->bias ? bias : NULL,
                                            .score = c->score,
                                            .normalise = c->normalise,
                                            .scale = c->scale,
                                            .top_k = TOP,
                                            .n_group = c->n_group,
                                            .top_group = c->n_group > 1 ? 2 : 1,
                                            .ids = {ids, 0, PAIRS},
                                            .weights = {w, 0, ROWS, TOP, TOP}},
                                  .cap = cap,
                                  .drop = c->drop,
                                  .count = {count, 0, N},
                                  .pos = {pos, 0, PAIRS},
                                  .who = {.mark = {mark, 0, ROWS},
                                          .item = {noted, 0, ITEMS},
                                          .first = OWN,
                                          .n = ROWS - OWN},
                                  .note = {4, 8},
                                  .lost = {{lost, 0, 2}, {lost, 16, 2}}};

    rig_must(op_route(r.s, &o.route, &r.e), &r.e);
    if (cap)
        rig_must(op_capacity(r.s, &o, &r.e), &r.e);
    rig_get(&r, ret->ids, ids, PAIRS * 4);
    rig_get(&r, ret->pos, pos, PAIRS * 4);
    rig_get(&r, ret->weights, w, PAIRS * 4);
    rig_get(&r, ret->lost, lost, sizeof(had));
    rig_get(&r, ret->noted, noted, sizeof(ret->noted));
    for (int p = 0; p < OP_PHASES; p++)
        for (int i = 0; i < 2; i++)
            ret->lost[p][i] -= had[p][i];
    dbuf_free(mark), dbuf_free(noted);
    dbuf_free(logits), dbuf_free(ids), dbuf_free(pos), dbuf_free(w), dbuf_free(count);
    dbuf_free(lost), weight_free(bias);
    rig_close(&r);
}

/* What an expert is chosen by and weighs, in float64. */
static double score_of(const struct cap_case *c, const float *x, int i)
{
    double sum = 0;

    if (c->score == ROUTE_SIGMOID)
        return 1 / (1 + exp(-(double)x[i]));
    if (c->score == ROUTE_CHOSEN)
        return (double)x[i];
    for (int j = 0; j < N; j++)
        sum += exp((double)x[j]);
    return exp((double)x[i]) / sum;
}

static bool allowed(const struct cap_case *c, const float *x, int i)
{
    double best[N] = {0};
    int better = 0, size = N / c->n_group;

    if (c->n_group == 1)
        return true;
    for (int g = 0; g < c->n_group; g++) {
        best[g] = -1;
        for (int j = g * size; j < (g + 1) * size; j++)
            best[g] = fmax(best[g], score_of(c, x, j));
    }
    for (int g = 0; g < c->n_group; g++)
        better += best[g] > best[i / size];
    return better < 2;
}

static bool has(const int32_t *ids, int x)
{
    return ids[0] == x || ids[1] == x || ids[2] == x;
}

/* The next best expert with room, -1: none. What is not allowed counts as 0. */
static int next_best(const struct cap_case *c, const float *x, const int32_t *ids,
                     const int *n)
{
    double best = -INFINITY;
    int at = -1;

    for (int i = 0; i < N; i++) {
        double by = score_of(c, x, i) + (c->bias ? (double)choice_bias[i] : 0);
        by = allowed(c, x, i) ? by : 0;
        if (n[i] < c->cap && !has(ids, i) && by > best) {
            best = by;
            at = i;
        }
    }
    return at;
}

static void check_weights(const struct cap_case *c, const float *x, const int32_t *ids,
                          const float *w)
{
    double sum = 0, v[TOP];

    for (int k = 0; k < TOP; k++) {
        double s = ids[k] < 0 ? 0 : score_of(c, x, ids[k]);
        v[k] = ids[k] < 0 ? 0 : c->score == ROUTE_CHOSEN ? exp(s) : s;
        sum += v[k];
    }
    for (int k = 0; k < TOP; k++) {
        bool shared = c->normalise || c->score == ROUTE_CHOSEN;
        double is = v[k] * (shared && sum > 0 ? 1 / sum : 1) * (double)c->scale;
        assert_true(fabs((double)w[k] - is) <= 1e-5 * (1 + fabs(is)));
    }
}

static void check_capacity(const struct cap_case *c, const float *x)
{
    struct cap_result was, is, far;
    int n[N] = {0}, lost[OP_PHASES][2] = {{0}}, noted[ITEMS] = {0}, all = 0;

    run_capacity("cpu", c, x, 0, &was);
    run_capacity("cpu", c, x, c->cap, &is);
    run_capacity("far", c, x, c->cap, &far);
    assert_memory_equal(&is, &far, sizeof(is));
    for (int p = 0; p < PAIRS; p++) { /* the first pairs stay */
        bool room = n[was.ids[p]] < c->cap;
        n[was.ids[p]] += room;
        was.ids[p] = room ? was.ids[p] : -1;
    }
    for (int r = 0; r < ROWS; r++) {
        int32_t *ids = was.ids + r * TOP;
        int item = item_of(r), gone = 0, next = 0;
        bool changed = false;
        for (int k = 0; k < TOP; k++) {
            int to = ids[k] < 0 && !c->drop ? next_best(c, x + r * N, ids, n) : -1;
            changed = changed || (ids[k] < 0 && !c->drop);
            if (to >= 0) {
                ids[k] = to;
                n[to]++;
                next++;
            }
            gone += ids[k] < 0;
        }
        all += gone + next;
        if (r >= OWN) {
            lost[item % 2][0] += next;
            lost[item % 2][1] += gone;
            noted[item] |= (next ? 4 : 0) | (gone ? 8 : 0);
        }
        if (changed)
            check_weights(c, x + r * N, ids, is.weights + r * TOP);
        for (int k = 0; k < TOP; k++) {
            int p = r * TOP + k;
            assert_int_equal(is.ids[p], ids[k]);
            assert_int_equal(is.pos[p], ids[k] < 0 ? -1 : p);
            if (ids[k] < 0)
                assert_true(is.weights[p] == 0);
            else if (!changed)
                assert_memory_equal(&is.weights[p], &was.weights[p], sizeof(float));
        }
    }
    for (int p = 0; p < OP_PHASES; p++)
        for (int i = 0; i < 2; i++)
            assert_int_equal(is.lost[p][i], lost[p][i]);
    for (int i = 0; i < ITEMS; i++)
        assert_int_equal(is.noted[i], noted[i]);
    assert_true(all > 0 || c->cap >= ROWS);
}

static void test_capacity(void **state)
{
    static const struct cap_case cases[] = {
        {ROUTE_SOFTMAX, true, false, false, 10, 1, 1},
        {ROUTE_SOFTMAX, false, false, false, 9, 1, 1},
        {ROUTE_SIGMOID, true, true, false, 10, 1, 2.5f},
        {ROUTE_SOFTMAX, false, false, false, 11, 4, 16},
        {ROUTE_CHOSEN, false, false, false, 10, 1, 1},
        {ROUTE_SOFTMAX, true, false, false, 1, 1, 1}, /* most find none */
        {ROUTE_SOFTMAX, true, false, true, 9, 1, 1},
        {ROUTE_CHOSEN, false, false, true, 5, 1, 1},
        {ROUTE_SIGMOID, true, true, true, 1, 1, 2.5f},
        {ROUTE_SOFTMAX, true, false, false, ROWS, 1, 1}, /* room for all */
    };
    float x[ROWS * N];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (uint64_t seed = 1; seed < 6; seed++) {
            rig_fill(x, ROWS * N, test_seed() + seed);
            for (int r = 0; r < ROWS; r++) /* one that nearly all want */
                x[r * N + 2] += 1.5f;
            check_capacity(&cases[i], x);
        }
}

/* ---- logits that are no numbers ---- */

/* Row r of logits out of ordinary ones: all NaN, some NaN, infinities of both signs. */
static void spoil(float *x, int r)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY};

    for (int i = 0; i < N; i++) {
        bool hit = r < 3 ? true : r < 12 ? i % (r / 3 + 1) == r % 2 : i < r - 11;
        if (hit && r < ROWS - 4)
            x[r * N + i] = r < 3 ? bad[r] : bad[(r + (r & 1 ? i : 0)) % 3];
    }
}

/* Experts of a row that are all there and none twice; less: some may be none. */
static void check_total(const int32_t *ids, bool less)
{
    for (int k = 0; k < TOP; k++) {
        assert_true(ids[k] >= (less ? -1 : 0) && ids[k] < N);
        for (int j = 0; j < k; j++)
            assert_true(ids[k] < 0 || ids[k] != ids[j]);
    }
}

static void test_no_numbers(void **state)
{
    static const struct cap_case cases[] = {
        {ROUTE_SOFTMAX, true, false, false, 10, 1, 1},
        {ROUTE_SOFTMAX, false, false, true, 4, 4, 16},
        {ROUTE_SOFTMAX, false, true, false, 4, 2, 1},
        {ROUTE_SIGMOID, true, true, false, 10, 1, 2.5f},
        {ROUTE_SIGMOID, true, true, true, 3, 4, 2.5f},
        {ROUTE_SIGMOID, false, false, false, 1, 2, 1},
        {ROUTE_CHOSEN, false, false, false, 10, 1, 1},
        {ROUTE_CHOSEN, false, true, true, 5, 1, 1},
    };
    struct cap_result a, b;
    float x[ROWS * N], plain[ROWS * N];

    (void)state;
    rig_fill(plain, ROWS * N, test_seed());
    memcpy(x, plain, sizeof(x));
    for (int r = 0; r < ROWS; r++)
        spoil(x, r);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (int cap = 0; cap <= cases[i].cap; cap += cases[i].cap) {
            run_capacity("cpu", &cases[i], x, cap, &a);
            run_capacity("far", &cases[i], x, cap, &b);
            assert_memory_equal(a.ids, b.ids, sizeof(a.ids));
            for (int r = 0; r < ROWS; r++)
                check_total(a.ids + r * TOP, cap > 0);
            if (cap)
                continue;
            for (int k = 0; k < TOP; k++) /* all NaN: the lowest */
                assert_true(cases[i].n_group > 1 || a.ids[k] == k);
            run_capacity("cpu", &cases[i], plain, 0, &b); /* others are as they were */
            assert_memory_equal(a.ids + (ROWS - 4) * TOP, b.ids + (ROWS - 4) * TOP,
                                4 * TOP * sizeof(int32_t));
        }
}

/* A row of numbers and NaN has the numbers first, then the lowest of the others. */
static void test_numbers_first(void **state)
{
    static const struct cap_case chosen = {ROUTE_CHOSEN, false, false, false, 1, 1, 1},
                                 apart = {ROUTE_SIGMOID, true, true, false, 1, 1, 1};
    static const int32_t want[] = {2, 0, 1, 1, 5, 0, 3, 6, 0};
    struct cap_result a;
    float x[ROWS * N];

    (void)state;
    rig_fill(x, ROWS * N, test_seed());
    for (int i = 0; i < 3 * N; i++)
        x[i] = NAN;
    x[2] = -INFINITY;
    x[N + 1] = 3;
    x[N + 5] = -3;
    x[2 * N + 3] = INFINITY;
    x[2 * N + 6] = -INFINITY;
    for (int k = 0; k < 2; k++) {
        run_capacity("cpu", k ? &apart : &chosen, x, 0, &a);
        assert_memory_equal(a.ids, want, sizeof(want));
    }
}

/* ---- pairs in groups ---- */

enum { SLOTS = 5, MOST = 64, GROUPS = 2 * SLOTS };

struct groups {
    int32_t order[MOST], start[GROUPS + 1], later[GROUPS];
    int64_t tally[OP_PHASES][SLOTS * OP_TALLY];
};

/* Of pair p; two pairs a row where rows are marked. */
static int phase_of_pair(int p) { return p / 2 % 3 == 1; }

/* counted: how many pairs there are is on the device, and slots are tagged. */
static void run_groups(const char *backend, const int32_t *slot, int n, int cap,
                       bool second, bool counted, struct groups *ret)
{
    int32_t counts[3] = {n / 3, 0, n - n / 3}, tags[MOST], marks[MOST / 2];
    struct rig r;

    memset(ret, 0xff, sizeof(*ret));
    rig_open(&r, backend, "portable", 1, 64);
    for (int i = 0; i < SLOTS * OP_TALLY; i++)
        ret->tally[0][i] = ret->tally[1][i] = 7;
    for (int p = 0; p < MOST; p++) {
        tags[p] = slot[p];
        tags[p] += counted && slot[p] >= 0 ? OP_TAG_PHASE * phase_of_pair(p) : 0;
        marks[p / 2] = op_mark(p, phase_of_pair(p));
    }
    struct dbuf *later = rig_put(&r, ret->later, sizeof(ret->later));
    struct dbuf *mark = rig_put(&r, marks, sizeof(marks));
    struct dbuf *s = rig_put(&r, tags, MOST * 4), *c = rig_put(&r, counts, 12);
    struct dbuf *order = rig_put(&r, ret->order, MOST * 4);
    struct dbuf *start = rig_put(&r, ret->start, sizeof(ret->start));
    struct dbuf *tally = rig_put(&r, ret->tally, sizeof(ret->tally));
    const struct op_group o = {
        .n_slot = SLOTS,
        .n_pair = counted ? -1 : n,
        .cap = cap,
        .second = second,
        .slot = {s, 0, MOST},
        .count = {c, 0, 3},
        .order = {order, 0, MOST},
        .start = {start, 0, GROUPS + 1},
        .later = {later, 0, GROUPS},
        .mark = {counted ? NULL : mark, 0, MOST / 2},
        .per_row = 2,
        .tally = {{tally, 0, SLOTS * OP_TALLY},
                  {tally, sizeof(ret->tally[0]), SLOTS * OP_TALLY}}};
    rig_must(op_group(r.s, &o, &r.e), &r.e);
    rig_get(&r, ret->order, order, MOST * 4);
    rig_get(&r, ret->start, start, sizeof(ret->start));
    rig_get(&r, ret->tally, tally, sizeof(ret->tally));
    rig_get(&r, ret->later, later, sizeof(ret->later));
    dbuf_free(later), dbuf_free(mark);
    dbuf_free(s), dbuf_free(c), dbuf_free(order), dbuf_free(start), dbuf_free(tally);
    rig_close(&r);
}

static void check_groups(const int32_t *slot, int n, int cap, bool second)
{
    struct groups is, other;
    int at = 0, rows[OP_PHASES][SLOTS] = {{0}}, over[OP_PHASES][SLOTS] = {{0}};

    run_groups("cpu", slot, n, cap, second, false, &is);
    run_groups("far", slot, n, cap, second, true, &other);
    assert_memory_equal(&is, &other, sizeof(is));
    for (int p = 0; p < n; p++) {
        int phase = phase_of_pair(p);
        if (slot[p] < 0)
            continue;
        over[phase][slot[p]] += cap && rows[0][slot[p]] + rows[1][slot[p]] >= cap;
        rows[phase][slot[p]]++;
    }
    for (int g = 0; g < (second ? GROUPS : SLOTS); g++) {
        int of = 0, later = 0; /* pairs of the slot so far; of phase 1 of the group */
        assert_int_equal(is.start[g], at);
        for (int p = 0; p < n; p++) {
            if (slot[p] != g % SLOTS)
                continue;
            bool late = second && cap && of >= cap;
            of++;
            if (late == (g >= SLOTS)) {
                assert_int_equal(is.order[at++], p);
                later += phase_of_pair(p);
            }
        }
        assert_int_equal(is.later[g], later);
    }
    assert_int_equal(is.start[second ? GROUPS : SLOTS], at);
    for (int i = 0; i < OP_PHASES * SLOTS; i++) {
        int phase = i / SLOTS, s = i % SLOTS;
        const int64_t *t = is.tally[phase] + s * OP_TALLY;
        assert_int_equal(t[TALLY_ROWS], 7 + rows[phase][s]);
        assert_int_equal(t[TALLY_OVER], 7 + over[phase][s]);
        assert_int_equal(t[TALLY_SERVICE_NS], 7);
        assert_int_equal(t[TALLY_QUEUE_NS], 7);
    }
}

static void test_groups(void **state)
{
    static const int caps[] = {0, 1, 3, 100};
    uint64_t rng = test_seed();
    int32_t slot[MOST];

    (void)state;
    for (int i = 0; i < 4; i++)
        for (int n = 0; n <= MOST; n += 16) {
            for (int p = 0; p < MOST; p++) /* slot 3 stays empty, some go nowhere */
                slot[p] = (int32_t)(test_rand(&rng) % (SLOTS + 1)) - 1;
            for (int p = 0; p < MOST; p++)
                slot[p] = slot[p] == 3 ? 0 : slot[p];
            check_groups(slot, n, caps[i], false);
            check_groups(slot, n, caps[i], true);
        }
}

static void test_group_faults(void **state)
{
    static const int32_t slot[4] = {0, 1, SLOTS, 0}, many = 5;
    struct rig r;

    (void)state;
    rig_open(&r, "cpu", "portable", 1, 64);
    struct dbuf *s = rig_put(&r, slot, 16), *out = rig_put(&r, NULL, 256);
    struct dbuf *c = rig_put(&r, &many, 4);
    struct op_group o = {.n_slot = SLOTS,
                         .n_pair = 4,
                         .slot = {s, 0, 4},
                         .count = {c, 0, 1},
                         .order = {out, 0, 4},
                         .start = {out, 64, SLOTS + 1}};
    rig_must(op_group(r.s, &o, &r.e), &r.e);
    assert_int_equal(stream_sync(r.s, &r.e), -1);
    assert_non_null(strstr(r.e.msg, "slot 5 of 5"));
    o.n_pair = -1;
    rig_must(op_group(r.s, &o, &r.e), &r.e);
    assert_int_equal(stream_sync(r.s, &r.e), -1);
    assert_non_null(strstr(r.e.msg, "5 pairs of at most 4"));
    o.second = true; /* no room for as many groups */
    assert_int_equal(op_group(r.s, &o, &r.e), -1);
    dbuf_free(s), dbuf_free(out), dbuf_free(c);
    rig_close(&r);
}

/* ---- packed rows ---- */

enum { P_ROWS = 9, COLS = 37 };

struct packed {
    uint8_t bytes[P_ROWS * (4 + (COLS + 3) / 4 * 4)];
    float y[P_ROWS * COLS];
};

/* x packed and unpacked as many rows as `count` sums up to; the rest stays as it is. */
static void run_packed(const char *backend, const float *x, const int32_t *count,
                       struct packed *ret)
{
    struct rig r;

    memset(ret, 0x55, sizeof(*ret));
    rig_open(&r, backend, "portable", 1, 64);
    struct dbuf *from = rig_put(&r, x, (size_t)P_ROWS * COLS * 4);
    struct dbuf *wire = rig_put(&r, ret->bytes, sizeof(ret->bytes));
    struct dbuf *y = rig_put(&r, ret->y, sizeof(ret->y)), *n = rig_put(&r, count, 8);
    const struct op_pack8 p = {{from, 0, P_ROWS, COLS, COLS}, wire, 0, {n, 0, 2}};
    const struct op_unpack8 u = {{y, 0, P_ROWS, COLS, COLS}, wire, 0, {n, 0, 2}};

    assert_int_equal(op_pack8_bytes(COLS) * P_ROWS, sizeof(ret->bytes));
    rig_must(op_pack8(r.s, &p, &r.e), &r.e);
    rig_must(op_unpack8(r.s, &u, &r.e), &r.e);
    rig_get(&r, ret->bytes, wire, sizeof(ret->bytes));
    rig_get(&r, ret->y, y, sizeof(ret->y));
    dbuf_free(from), dbuf_free(wire), dbuf_free(y), dbuf_free(n);
    rig_close(&r);
}

/* No code is nearer to any value than the one that it got. */
static void check_row(const float *x, const float *y)
{
    double max = 0, scale;

    for (int c = 0; c < COLS; c++)
        max = fmax(max, fabs((double)x[c]));
    scale = max / (double)F8_E4M3_MAX;
    for (int c = 0; c < COLS; c++) {
        double least = INFINITY;
        for (int v = 0; v < 256; v++) {
            double d = fabs(scale * (double)f8_e4m3_to_f32((uint8_t)v) - (double)x[c]);
            least = d < least ? d : least;
        }
        assert_true(fabs((double)y[c] - (double)x[c]) <= least + 1e-6 * max);
    }
}

static void test_packed(void **state)
{
    static const int32_t count[2] = {3, 4};
    float x[P_ROWS * COLS];
    struct packed cpu, far, untouched;

    (void)state;
    memset(&untouched, 0x55, sizeof(untouched));
    rig_fill(x, P_ROWS * COLS, test_seed());
    for (int c = 0; c < COLS; c++) {
        x[1 * COLS + c] *= 1e30f;
        x[2 * COLS + c] *= 1e-30f;
        x[3 * COLS + c] = 0;
        x[4 * COLS + c] = c == 5 ? 1e-40f : c == 6 ? -1e-37f : 0; /* as good as 0 */
    }
    x[5 * COLS + 7] = NAN;
    run_packed("cpu", x, count, &cpu);
    run_packed("far", x, count, &far);
    assert_memory_equal(&cpu, &far, sizeof(cpu));
    for (int r = 0; r < 7; r++)
        if (r < 3 || r > 5)
            check_row(x + (size_t)r * COLS, cpu.y + (size_t)r * COLS);
    for (int c = 0; c < COLS; c++) {
        assert_true(cpu.y[3 * COLS + c] == 0);
        assert_true(fabsf(cpu.y[4 * COLS + c]) <= 1e-35f);
        assert_true(isnan(cpu.y[5 * COLS + c])); /* a fault is not hidden */
    }
    assert_memory_equal(cpu.y + 7 * COLS, untouched.y, 2 * COLS * 4);
    assert_memory_equal(cpu.bytes + 7 * op_pack8_bytes(COLS), untouched.bytes,
                        2 * op_pack8_bytes(COLS));
}

static void test_packed_faults(void **state)
{
    static const int32_t count[2] = {3, 2};
    static const float x[4 * COLS];
    struct rig r;

    (void)state;
    rig_open(&r, "cpu", "portable", 1, 64);
    struct dbuf *from = rig_put(&r, x, sizeof(x)), *n = rig_put(&r, count, 8);
    struct dbuf *wire = rig_put(&r, NULL, 4 * op_pack8_bytes(COLS));
    struct op_pack8 p = {{from, 0, 4, COLS, COLS}, wire, 0, {n, 0, 2}};

    rig_must(op_pack8(r.s, &p, &r.e), &r.e);
    assert_int_equal(stream_sync(r.s, &r.e), -1);
    assert_non_null(strstr(r.e.msg, "5 rows of at most 4"));
    p.off = 4;
    assert_int_equal(op_pack8(r.s, &p, &r.e), -1);
    assert_non_null(strstr(r.e.msg, "no room for 4 packed rows"));
    dbuf_free(from), dbuf_free(n), dbuf_free(wire);
    rig_close(&r);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_capacity),      cmocka_unit_test(test_no_numbers),
        cmocka_unit_test(test_numbers_first), cmocka_unit_test(test_groups),
        cmocka_unit_test(test_group_faults),  cmocka_unit_test(test_packed),
        cmocka_unit_test(test_packed_faults),
    };
    return test_main(argc, argv, "moe_ops", tests, sizeof(tests) / sizeof(tests[0]));
}
