/* The expert planner: plans from nothing, moves, shares. */
#include "tests/test.h"

#include <math.h>

#include "base/err.h"
#include "topo/eplb.h"
#include "topo/expertplan.h"

enum { MOST = 4096 };

static double uniform(uint64_t *s)
{
    return ((double)(test_rand(s) >> 11) + 0.5) / 9007199254740992.0;
}

static void pareto(double *v, int n, uint64_t *s)
{
    for (int i = 0; i < n; i++)
        v[i] = pow(uniform(s), -1 / 1.2);
}

static void drift(double *v, int n, uint64_t *s)
{
    for (int i = 0; i < n; i++)
        v[i] *= exp(0.5 * sqrt(-2 * log(uniform(s))) * cos(2 * M_PI * uniform(s)));
}

static void sound(const struct expert_ask *a, const int16_t *map)
{
    struct err e = {0};

    if (expertplan_check(a, map, &e) < 0)
        fail_msg("%s", e.msg);
    for (int i = 0; a->out && i < a->n_device * a->n_slot; i++)
        if (a->out[i / a->n_slot])
            assert_int_equal(map[i], -1);
}

static void offline(const struct expert_ask *a, int16_t *map)
{
    struct err e = {0};

    if (expertplan_offline(a, map, &e) < 0)
        fail_msg("%s", e.msg);
    sound(a, map);
}

/* Does the moves one group after the other, and looks at the map after each. */
static void carry_out(const struct expert_ask *a, const int16_t *now,
                      const struct expert_moves *m)
{
    static int16_t map[MOST * 4];
    size_t slots = (size_t)a->n_device * a->n_slot;
    int64_t bytes = 0;
    struct expert_ask any = *a;

    any.out = NULL; /* a device that is out may still hold the last copy until then */
    memcpy(map, now, (size_t)a->n_layer * slots * sizeof(*map));
    for (int i = 0; i < m->n; i++) {
        const struct expert_move *v = &m->move[i];
        int16_t *at = map + v->layer * slots + v->device * a->n_slot + v->slot;
        assert_int_equal(*at, v->was);
        *at = (int16_t)(v->kind == EXPERT_RETIRE ? -1 : v->expert);
        bytes += v->bytes;
        if (v->kind == EXPERT_MOVE)
            assert_int_equal(now[v->layer * slots + v->from * a->n_slot + v->from_slot],
                             v->expert);
        if (i + 1 < m->n)
            assert_true(m->move[i + 1].group == v->group ||
                        m->move[i + 1].group == v->group + 1);
        if (i + 1 == m->n || m->move[i + 1].group != v->group)
            sound(&any, map);
    }
    assert_true(m->n == 0 || m->n_group == m->move[m->n - 1].group + 1);
    assert_int_equal(bytes, m->bytes);
    assert_memory_equal(map, m->map, (size_t)a->n_layer * slots * sizeof(*map));
    sound(a, m->map);
}

static int written(const struct expert_moves *m)
{
    int n = 0;

    for (int i = 0; i < m->n; i++)
        n += m->move[i].kind != EXPERT_RETIRE;
    return n;
}

static void step(const struct expert_ask *a, const int16_t *now,
                 const struct expert_budget *b, struct expert_moves *m)
{
    struct err e = {0};

    if (expertplan_step(a, now, b, m, &e) < 0)
        fail_msg("%s", e.msg);
    carry_out(a, now, m);
}

static void vector(void **st)
{
    static const double load[] = {600, 560, 120, 120, 20, 10, 10, 10};
    struct expert_ask a = {
        .n_layer = 1, .n_expert = 8, .n_device = 8, .n_slot = 2, .load = load};
    int16_t map[16];
    double per[8], high = 0;
    float share[16];
    (void)st;

    offline(&a, map);
    expertplan_balance(&a, 0, map, NULL, per);
    for (int g = 0; g < 8; g++)
        high = fmax(high, per[g]);
    assert_true(high <= 197);
    assert_true(expertplan_shares(&a, 0, map, share) <= high + 1e-9);
}

/* Any number of devices: better than EPLB at once; near it by few moves after a drift. */
static void beside_eplb(void **st)
{
    static const int devices[] = {7, 8, 16, 32, 72};
    static double load[256];
    static int16_t map[512], eplb[512];
    uint64_t seed = test_seed();
    (void)st;

    for (int d = 0; d < 5; d++) {
        int n = devices[d], slots = n == 7 ? 294 : 288;
        struct expert_ask a = {.n_layer = 1,
                               .n_expert = 256,
                               .n_device = n,
                               .n_slot = slots / n,
                               .load = load,
                               .expert_bytes = 10};
        struct eplb_ask q = {.n_layer = 1,
                             .n_expert = 256,
                             .n_device = n,
                             .n_slot = slots,
                             .n_node = 1,
                             .n_group = 1,
                             .load = load};
        struct expert_budget b = {
            .us_per_load = 1, .steps = 1, .max_moves = slots * 15 / 100};
        struct expert_moves m;
        double fresh;
        pareto(load, 256, &seed);
        offline(&a, map);
        assert_int_equal(eplb_plan(&q, eplb, NULL), 0);
        assert_true(expertplan_balance(&a, 0, map, NULL, NULL) >=
                    expertplan_balance(&a, 0, eplb, NULL, NULL) - 1e-9);
        drift(load, 256, &seed);
        assert_int_equal(eplb_plan(&q, eplb, NULL), 0);
        fresh = expertplan_balance(&a, 0, eplb, NULL, NULL);
        step(&a, map, &b, &m);
        assert_true(written(&m) <= b.max_moves);
        assert_true(expertplan_balance(&a, 0, m.map, NULL, NULL) >=
                    (n == 72 ? 0.90 : 0.97) * fresh);
        expertplan_moves_done(&m);
    }
}

/* With hardly a slot to spare: by a fifth of the writes that EPLB makes, shared out over
 * the layers, better than it once shares have followed, and near it before. */
static void few_slots(void **st)
{
    enum { L = 24, X = 8, D = 8, N = 2, MAP = L * D * N };
    static double load[L * X];
    static int16_t map[MAP], was[MAP], eplb[MAP];
    uint64_t seed = test_seed() + 77;
    struct expert_ask a = {.n_layer = L,
                           .n_expert = X,
                           .n_device = D,
                           .n_slot = N,
                           .load = load,
                           .expert_bytes = 10};
    struct eplb_ask q = {L, X, D * N, D, 1, 1, load};
    struct expert_budget b = {.us_per_load = 1, .steps = 1};
    struct expert_moves m;
    double fresh = 0, ours = 0, ours_equal = 0;
    (void)st;

    for (int i = 0; i < L * X; i++) /* as even as the mixtures of eight are */
        load[i] = 1 + uniform(&seed);
    offline(&a, map);
    assert_int_equal(eplb_plan(&q, was, NULL), 0);
    drift(load, L * X, &seed);
    assert_int_equal(eplb_plan(&q, eplb, NULL), 0);
    for (int i = 0; i < MAP; i++) { /* slots moved, by device */
        int g = i / N * N;
        bool had = false;
        for (int s = 0; s < N; s++)
            had |= was[g + s] == eplb[i];
        b.max_moves += !had;
    }
    b.max_moves /= 5;
    step(&a, map, &b, &m);
    assert_true(written(&m) <= b.max_moves);
    for (int l = 0; l < L; l++) {
        float share[D * N];
        const int16_t *at = m.map + l * D * N;
        expertplan_shares(&a, l, at, share);
        ours += expertplan_balance(&a, l, at, share, NULL);
        ours_equal += expertplan_balance(&a, l, at, NULL, NULL);
        fresh += expertplan_balance(&a, l, eplb + l * D * N, NULL, NULL);
    }
    expertplan_moves_done(&m);
    if (ours < 1.02 * fresh || ours_equal < 0.93 * fresh)
        fail_msg("%.3f (%.3f with equal shares) of EPLB's %.3f", ours / L, ours_equal / L,
                 fresh / L);
}

/* The only slot to spare is where the heavy expert does not need it: another has to move
 * there for the heavy one to have its place. And of two layers the one that gains more by
 * the few writes that there are has them. */
static void chain(void **st)
{
    static const int16_t now[2][6] = {{0, 4, 1, 4, 2, 3}, {0, 4, 1, 4, 2, 3}};
    static const double load[2][5] = {{9, 8, 0.5, 0.5, 0.4}, {10, 7, 0.5, 0.5, 0.4}};
    struct expert_ask a = {.n_layer = 2,
                           .n_expert = 5,
                           .n_device = 3,
                           .n_slot = 2,
                           .load = load[0],
                           .expert_bytes = 10};
    struct expert_budget b = {.us_per_load = 1, .steps = 1, .max_moves = 2};
    struct expert_moves m;
    float share[6];
    (void)st;

    step(&a, now[0], &b, &m);
    assert_int_equal(written(&m), 2);
    assert_memory_equal(m.map, now[0], sizeof(now[0]));
    assert_true(expertplan_shares(&a, 1, m.map + 6, share) < 7.41);
    expertplan_moves_done(&m);
    b.max_moves = 1; /* by one: as good as a copy of it beside the second heaviest */
    step(&a, now[0], &b, &m);
    assert_int_equal(written(&m), 1);
    assert_true(expertplan_shares(&a, 1, m.map + 6, share) < 8.71);
    expertplan_moves_done(&m);
}

/* Maps are sound whatever the sizes, limits and loads. */
static void any_size(void **st)
{
    uint64_t seed = test_seed() + 5;
    (void)st;

    for (int round = 0; round < 300; round++) {
        static double load[3 * 40];
        static int16_t map[MOST];
        uint8_t out[12] = {0};
        int slots[12], room = 0;
        struct expert_ask a = {.n_layer = 1 + (int)(test_rand(&seed) >> 33) % 3,
                               .n_expert = 1 + (int)(test_rand(&seed) >> 33) % 40,
                               .n_device = 1 + (int)(test_rand(&seed) >> 33) % 12,
                               .load = load,
                               .slots = slots,
                               .out = out,
                               .expert_bytes = 3};
        struct expert_budget b = {
            .us_per_load = 1, .steps = 1, .risk_us = 0.01, .copy_Bps = 1e9};
        struct expert_moves m;
        struct err e = {0};
        a.n_slot = 1 + (int)(test_rand(&seed) >> 33) % 12;
        for (int g = 0; g < a.n_device; g++) {
            slots[g] = (int)(test_rand(&seed) >> 33) % (a.n_slot + 1);
            out[g] = (test_rand(&seed) >> 33) % 5 == 0;
            room += out[g] ? 0 : slots[g];
        }
        pareto(load, a.n_layer * a.n_expert, &seed);
        for (int i = 0; i < a.n_layer * a.n_expert; i++)
            load[i] = (test_rand(&seed) >> 33) % 3 ? load[i] : 0;
        if (room < a.n_expert) {
            assert_int_equal(expertplan_offline(&a, map, &e), -1);
            assert_int_equal(e.code, ERR_NOFIT);
            continue;
        }
        offline(&a, map);
        drift(load, a.n_layer * a.n_expert, &seed);
        b.per_device = (int)(test_rand(&seed) >> 33) % 3;
        step(&a, map, &b, &m);
        for (int l = 0; l < a.n_layer && b.per_device; l++)
            for (int g = 0; g < a.n_device; g++) {
                int n = 0;
                for (int i = 0; i < m.n; i++)
                    n += m.move[i].layer == l && m.move[i].device == g &&
                         m.move[i].kind != EXPERT_RETIRE;
                assert_true(n <= b.per_device);
            }
        expertplan_moves_done(&m);
        /* and when a device goes, if there is room: all that it had stands elsewhere */
        int g = (int)(test_rand(&seed) >> 33) % a.n_device;
        if (out[g] || room - slots[g] < a.n_expert)
            continue;
        out[g] = 1;
        step(&a, map, &b, &m);
        expertplan_moves_done(&m);
    }
}

/* No load at all, or in one layer: an offline plan spreads evenly, a step moves nothing
 * there. */
static void no_load(void **st)
{
    double load[16] = {0};
    int16_t map[24];
    struct expert_ask a = {.n_layer = 2,
                           .n_expert = 8,
                           .n_device = 4,
                           .n_slot = 3,
                           .load = load,
                           .expert_bytes = 1};
    struct expert_budget b = {.us_per_load = 1, .steps = 1e9};
    struct expert_moves m;
    int copies[8] = {0};
    (void)st;

    for (int i = 0; i < 8; i++)
        load[8 + i] = i == 3 ? 100 : 10;
    offline(&a, map);
    for (int i = 0; i < 12; i++)
        copies[map[i]]++;
    for (int x = 0; x < 8; x++)
        assert_true(copies[x] == 1 || copies[x] == 2);
    for (int i = 12; i < 24; i++)
        map[i] = map[i - 12];
    step(&a, map, &b, &m);
    assert_true(m.n > 0);
    for (int i = 0; i < m.n; i++)
        assert_int_equal(m.move[i].layer, 1);
    expertplan_moves_done(&m);
}

/* More slots than experts times devices: the rest stays empty. */
static void more_copies_than_devices(void **st)
{
    double load[2] = {3, 1};
    int16_t map[12];
    int n = 0;
    struct expert_ask a = {
        .n_layer = 1, .n_expert = 2, .n_device = 3, .n_slot = 4, .load = load};
    (void)st;

    offline(&a, map);
    for (int i = 0; i < 12; i++)
        n += map[i] >= 0;
    assert_int_equal(n, 6);
    assert_true(expertplan_balance(&a, 0, map, NULL, NULL) > 0.999);
}

/* What does not repay its bytes is not moved. */
static void benefit(void **st)
{
    double load[4] = {10, 10, 1, 1};
    static const int16_t now[] = {0, 1, 2, 3};
    struct expert_ask a = {.n_layer = 1,
                           .n_expert = 4,
                           .n_device = 2,
                           .n_slot = 2,
                           .load = load,
                           .expert_bytes = 1000};
    /* a swap saves 9 us of 20 each step, and writes 2 x 1000 bytes */
    struct expert_budget b = {.us_per_load = 1, .copy_Bps = 1e6, .risk_us = 100};
    struct expert_moves m;
    (void)st;

    b.steps = 2210 / 9.;
    step(&a, now, &b, &m);
    assert_int_equal(m.n, 2); /* 2 x (1000 + 100) us for 2210 */
    assert_int_equal(m.n_group, 1);
    assert_true(fabs(m.move[0].gain + m.move[1].gain - 9) < 1e-9);
    assert_int_equal(m.move[0].kind, EXPERT_MOVE);
    expertplan_moves_done(&m);
    b.steps = 2190 / 9.;
    step(&a, now, &b, &m);
    assert_int_equal(m.n, 0);
    expertplan_moves_done(&m);
    b.steps = 1e6;
    b.min_gain = 0.46;
    step(&a, now, &b, &m);
    assert_int_equal(m.n, 0);
    expertplan_moves_done(&m);
    b.min_gain = 0;
    b.max_bytes = 1999;
    step(&a, now, &b, &m);
    assert_int_equal(m.n, 0);
    expertplan_moves_done(&m);
}

/* Measured time goes before tokens; what was not measured counts at the mean time. */
static void weights(void **st)
{
    static const double tokens[] = {100, 50, 10, 0}, us[] = {200, 400, 0, 0};
    double w[4];
    (void)st;

    expertplan_weights(tokens, us, 4, w);
    assert_true(w[0] == 200 && w[1] == 400 && w[2] == 40 && w[3] == 0);
    expertplan_weights(tokens, NULL, 4, w);
    assert_true(w[0] == 100 && w[1] == 50 && w[2] == 10 && w[3] == 0);
}

/* The least heaviest load there can be: over sets of devices, what can go nowhere else.
 */
static double bound(const struct expert_ask *a, const int16_t *map)
{
    double best = 0;

    for (int set = 1; set < 1 << a->n_device; set++) {
        double sum = 0;
        for (int x = 0; x < a->n_expert; x++) {
            bool inside = true;
            for (int i = 0; i < a->n_device * a->n_slot; i++)
                inside &= map[i] != x || set >> i / a->n_slot & 1;
            sum += inside ? a->load[x] : 0;
        }
        best = fmax(best, sum / __builtin_popcount((unsigned)set));
    }
    return best;
}

static void shares_are_best(void **st)
{
    uint64_t seed = test_seed() + 9;
    (void)st;

    for (int round = 0; round < 60; round++) {
        double load[20], per[8], high = 0, want;
        int16_t map[32];
        float share[32];
        double of[20] = {0};
        struct expert_ask a = {
            .n_layer = 1, .n_expert = 20, .n_device = 8, .n_slot = 4, .load = load};
        pareto(load, 20, &seed);
        offline(&a, map);
        drift(load, 20, &seed);
        drift(load, 20, &seed);
        want = bound(&a, map);
        double got = expertplan_shares(&a, 0, map, share);
        assert_true(got < want * 1.001 && got > want * 0.999999);
        expertplan_balance(&a, 0, map, share, per);
        for (int g = 0; g < 8; g++)
            high = fmax(high, per[g]);
        assert_true(fabs(high - got) < 1e-4 * got);
        for (int i = 0; i < 32; i++) {
            assert_true(share[i] >= 0);
            if (map[i] >= 0)
                of[map[i]] += (double)share[i];
            else
                assert_true(share[i] == 0);
        }
        for (int x = 0; x < 20; x++)
            assert_true(fabs(of[x] - 1) < 1e-5);
    }
}

/* Two families of experts, each chosen together: hosts gather them, in balance. With one
 * copy of nearly each, the rows of the other host go there all the same: of four ways two
 * become one and a half. */
static void affinity(void **st)
{
    static double with[32 * 32];
    double load[32];
    int host[8] = {0, 0, 0, 0, 1, 1, 1, 1};
    int16_t apart[40], near[40];
    struct expert_ask a = {.n_layer = 1,
                           .n_expert = 32,
                           .n_device = 8,
                           .n_slot = 5,
                           .load = load,
                           .host = host,
                           .with = with};
    uint64_t seed = test_seed() + 3;
    (void)st;

    for (int i = 0; i < 32; i++) {
        load[i] = 1 + uniform(&seed);
        for (int j = 0; j < 32; j++)
            with[i * 32 + j] = i == j ? 0 : i % 2 == j % 2 ? 10 : 1;
    }
    offline(&a, apart);
    a.affinity = 0.1;
    offline(&a, near);
    assert_true(expertplan_apart(&a, near) < 0.9 * expertplan_apart(&a, apart));
    assert_true(expertplan_balance(&a, 0, near, NULL, NULL) > 0.85);
}

/* What one layer of the upcycled demo model was seen to choose together, of two topics.
 */
static const double seen_load[8] = {38, 76, 82, 126, 238, 103, 44, 93};
static const double seen_with[64] = {
    0,  1,   0,   17,  6,   103, 21,  7,   1,   0,   47,  31,  237, 0,   4,  111,
    0,  47,  0,   287, 201, 0,   0,   0,   17,  31,  287, 0,   101, 474, 0,  0,
    6,  237, 201, 101, 0,   213, 166, 475, 103, 0,   0,   474, 213, 0,   1,  0,
    21, 4,   0,   0,   166, 1,   0,   26,  7,   111, 0,   0,   475, 0,   26, 0};

/* Least ways to another host of any placing of 8 experts on two hosts of six slots each:
 * each expert on the one, the other or both. */
static double least_apart(const struct expert_ask *a)
{
    double best = 1;

    for (int code = 0; code < 6561; code++) {
        int16_t map[12];
        int n[2] = {0, 0}, c = code;

        for (int i = 0; i < 12; i++)
            map[i] = -1;
        for (int x = 0; x < 8; x++, c /= 3)
            for (int h = 0; h < 2; h++)
                if (c % 3 == h || c % 3 == 2) {
                    if (n[h] < 6)
                        map[h * 6 + n[h]] = (int16_t)x;
                    n[h]++;
                }
        if (n[0] <= 6 && n[1] <= 6)
            best = fmin(best, expertplan_apart(a, map));
    }
    return best;
}

static void affinity_is_near_the_least(void **st)
{
    int host[4] = {0, 0, 1, 1};
    int16_t level[12], near[12];
    struct expert_ask a = {.n_layer = 1,
                           .n_expert = 8,
                           .n_device = 4,
                           .n_slot = 3,
                           .load = seen_load,
                           .host = host,
                           .with = seen_with};
    (void)st;

    double least = least_apart(&a), before;
    offline(&a, level);
    before = expertplan_apart(&a, level);
    a.affinity = 1; /* as if load were nothing */
    offline(&a, near);
    assert_true(expertplan_apart(&a, near) <= 1.1 * least);
    a.affinity = 0.2; /* the same slots and no device a fifth over the mean */
    offline(&a, near);
    assert_true(expertplan_apart(&a, near) < 0.8 * before);
    assert_true(expertplan_balance(&a, 0, near, NULL, NULL) > 1 / 1.2 - 1e-6);
}

static void refuses(void **st)
{
    double load[4] = {1, 1, 1, 1};
    int slots[2] = {2, 9};
    int16_t map[4] = {0, 1, 2, 2};
    struct expert_ask a = {
        .n_layer = 1, .n_expert = 4, .n_device = 2, .n_slot = 2, .load = load};
    struct err e = {0};
    (void)st;

    assert_int_equal(expertplan_check(&a, map, &e), -1); /* twice on device 1 */
    map[3] = 4;
    assert_int_equal(expertplan_check(&a, map, &e), -1); /* no such expert */
    map[3] = -1;
    assert_int_equal(expertplan_check(&a, map, &e), -1); /* expert 3 stands nowhere */
    map[3] = 3;
    assert_int_equal(expertplan_check(&a, map, &e), 0);
    a.slots = slots;
    assert_int_equal(expertplan_offline(&a, map, &e), -1);
    assert_int_equal(e.code, ERR_RANGE);
    a.slots = NULL;
    int host[65]; /* affinity is for so many hosts */
    struct expert_ask wide = {.n_layer = 1, .n_expert = 8, .n_device = 65, .n_slot = 1};
    for (int i = 0; i < 65; i++)
        host[i] = i;
    wide.load = seen_load;
    wide.with = seen_with;
    wide.host = host;
    int16_t many[65];
    assert_int_equal(expertplan_offline(&wide, many, &e), -1);
    assert_int_equal(e.code, ERR_RANGE);
    host[64] = 0;
    assert_int_equal(expertplan_offline(&wide, many, &e), 0);
    load[1] = 0.0 / 0.0;
    assert_int_equal(expertplan_offline(&a, map, &e), -1);
    load[1] = 1;
    a.n_slot = 5000;
    assert_int_equal(expertplan_offline(&a, map, &e), -1);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(vector),
    cmocka_unit_test(beside_eplb),
    cmocka_unit_test(few_slots),
    cmocka_unit_test(chain),
    cmocka_unit_test(any_size),
    cmocka_unit_test(no_load),
    cmocka_unit_test(more_copies_than_devices),
    cmocka_unit_test(benefit),
    cmocka_unit_test(weights),
    cmocka_unit_test(shares_are_best),
    cmocka_unit_test(affinity),
    cmocka_unit_test(affinity_is_near_the_least),
    cmocka_unit_test(refuses),
};
TEST_MAIN("expertplan", tests)
