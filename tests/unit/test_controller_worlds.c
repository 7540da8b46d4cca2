/* The controller of the experts in worlds made by chance: sizes, limits, loads that
 * drift, change in kind or cease, devices that go and come, a mover that is slow or gives
 * up half way. Whatever happens, the rules for maps hold after every group, a plan keeps
 * to its budget, and under mere noise moves come to an end. */
#include "tests/test.h"

#include <math.h>

#include "base/err.h"
#include "daemon/ctrl/controller.h"
#include "daemon/serve/routes.h"

enum { LAYERS = 3, MOST_X = 64, MOST_D = 72, MOST_MAP = LAYERS * 640 };
#define SECOND 1000000ll
#define EVERY (10 * SECOND)
#define DWELL (120 * SECOND)

struct world {
    int n_layer, x, d, s;
    struct controller *c;
    struct controller_limits lim;
    struct controller_devices dev;
    struct routes *r;
    uint8_t out[MOST_D];
    double load[LAYERS * MOST_X];
    uint64_t seed;
    int64_t now;
    /* the plan in hand */
    struct expert_move move[MOST_MAP];
    int n_move, n_done;
    int64_t next_at;
    bool gives_up; /* after some groups */
    bool calm;     /* the mover is quick, and makes every plan */
    uint64_t plan;
    int writes, plans; /* slots written, plans begun */
};

static double uniform(struct world *w)
{
    return ((double)(test_rand(&w->seed) >> 11) + 0.5) / 9007199254740992.0;
}

static int below(struct world *w, int n) { return (int)(uniform(w) * n); }

static int16_t *map_of(struct world *w, int l) { return w->r->layer[l].expert; }

static struct expert_ask ask_of(struct world *w, const uint8_t *out)
{
    return (struct expert_ask){.n_layer = 1,
                               .n_expert = w->x,
                               .n_device = w->d,
                               .n_slot = w->s,
                               .load = w->load,
                               .out = out};
}

/* Never twice on a device, never none; devices that are out may still hold the last. */
static void sound(struct world *w, int l)
{
    struct expert_ask a = ask_of(w, NULL);
    struct err e = {0};

    if (expertplan_check(&a, map_of(w, l), &e) < 0)
        fail_msg("%s", e.msg);
}

static void equal_shares(struct world *w, int l)
{
    struct route_layer *y = &w->r->layer[l];

    for (int i = 0; i < w->d * w->s; i++)
        y->share[i] =
            y->expert[i] < 0 ? 0 : 1.0f / (float)routes_copies(w->r, l, y->expert[i]);
}

static void topic(struct world *w, int l)
{
    double skew = 1.2 * uniform(w);
    int at = below(w, w->x);

    for (int i = 0; i < w->x; i++)
        w->load[l * w->x + (i + at) % w->x] = 300 / pow(i + 1, skew);
}

static void make(struct world *w, uint64_t seed)
{
    static const int devices[] = {2, 3, 7, 8, 16, 72};
    struct routes_dims dims;
    struct err e = {0};

    memset(w, 0, sizeof(*w));
    w->seed = seed * 7919 + 3;
    w->now = 1000 * SECOND;
    w->n_layer = 1 + below(w, LAYERS);
    w->d = devices[below(w, 6)];
    w->x = 2 + below(w, w->d == 72 ? 30 : MOST_X - 2);
    w->s = (w->x + w->d - 1) / w->d + 1 + below(w, 2); /* also more slots than experts */
    dims = (struct routes_dims){w->x, w->d, w->s};
    assert_true(w->n_layer * w->d * w->s <= MOST_MAP);
    if (routes_new(&dims, w->n_layer, &w->r, &e) < 0)
        fail_msg("%s", e.msg);
    w->c = controller_new(w->n_layer, w->x, w->d, w->s);
    w->dev = (struct controller_devices){.out = w->out, .expert_bytes = 1000000};
    w->lim =
        (struct controller_limits){.policy = CONTROLLER_AUTO,
                                   .share_every_us = 10 * SECOND,
                                   .share_gain = 0.03,
                                   .dwell_us = DWELL,
                                   .enter = 0.9,
                                   .leave = 0.96,
                                   .min_gain = 0.03,
                                   .horizon_us = 20 * DWELL,
                                   .deadline_us = 100 * SECOND,
                                   .max_moves = below(w, 2) * (1 + below(w, 12)),
                                   .max_bytes = below(w, 2) * (1 + below(w, 9)) * 1000000,
                                   .per_device = below(w, 3),
                                   .copy_Bps = 1e9,
                                   .risk_us = 100,
                                   .slack_us = 10000,
                                   .slack_share = 0.1,
                                   .prefill_share = 0.5};
    for (int l = 0; l < w->n_layer; l++)
        topic(w, l);
}

static void end(struct world *w)
{
    controller_free(w->c);
    routes_free(w->r);
}

/* ---- what a plan may be ---- */

static void check_plan(struct world *w, const struct controller_actions *a)
{
    bool must = false; /* a copy stands on a device that is out */
    int writes = 0, here[LAYERS][MOST_D] = {{0}};
    int64_t bytes = 0;

    for (int l = 0; l < w->n_layer; l++)
        for (int i = 0; i < w->d * w->s; i++)
            must |= map_of(w, l)[i] >= 0 && w->out[i / w->s];
    assert_true(a->plan == w->plan + 1 && w->n_move == 0);
    assert_true(a->bytes_per_step > 0);
    assert_true(a->n_layer > 0);
    for (int i = 0; i < a->n_move; i++) {
        const struct expert_move *m = &a->move[i];
        if (m->kind == EXPERT_RETIRE) {
            assert_int_equal(m->bytes, 0);
            continue;
        }
        assert_false(w->out[m->device]);
        assert_int_equal(m->bytes, w->dev.expert_bytes);
        bytes += m->bytes;
        writes++;
        here[m->layer][m->device]++;
    }
    assert_int_equal(bytes, a->bytes);
    if (must) /* what has to be is planned whatever the budget */
        return;
    assert_true(!w->lim.max_moves || writes <= w->lim.max_moves);
    assert_true(!w->lim.max_bytes || bytes <= w->lim.max_bytes);
    for (int l = 0; l < w->n_layer; l++)
        for (int g = 0; g < w->d; g++)
            assert_true(!w->lim.per_device || here[l][g] <= w->lim.per_device);
    for (int i = 0; i < a->n_layer; i++) { /* it repays */
        const struct controller_layer *y = &a->layer[i];
        assert_true(y->after > y->before);
        assert_true(y->gain_us * (double)w->lim.horizon_us / 50000 > y->cost_us);
    }
}

static void check_share(struct world *w, const struct controller_share *s)
{
    double sum[MOST_X] = {0};

    for (int i = 0; i < w->d * w->s; i++) {
        int e = map_of(w, s->layer)[i];
        assert_true(s->share[i] >= 0 && s->share[i] <= 1.0001f);
        if (e < 0)
            assert_true(s->share[i] == 0);
        else
            sum[e] += (double)s->share[i];
        if (w->out[i / w->s])
            assert_true(s->share[i] == 0);
    }
    for (int e = 0; e < w->x; e++) {
        bool use = false; /* a copy on a device that is not out */
        for (int i = 0; i < w->d * w->s; i++)
            use |= map_of(w, s->layer)[i] == e && !w->out[i / w->s];
        assert_true(!use || fabs(sum[e] - 1) < 1e-3);
    }
}

/* ---- what happens ---- */

static void over(struct world *w, bool whole)
{
    for (int l = 0; l < w->n_layer; l++)
        equal_shares(w, l);
    w->n_move = 0;
    controller_over(w->c, w->plan, whole, w->now);
    assert_int_equal(controller_in_hand(w->c), 0);
}

/* The next group of the plan is made, all at once. */
static void make_group(struct world *w)
{
    int group = w->move[w->n_done].group, l = w->move[w->n_done].layer;

    for (; w->n_done < w->n_move && w->move[w->n_done].group == group; w->n_done++) {
        const struct expert_move *m = &w->move[w->n_done];
        int16_t *at = map_of(w, m->layer) + m->device * w->s + m->slot;
        assert_int_equal(m->layer, l);
        assert_int_equal(*at, m->was);
        *at = (int16_t)(m->kind == EXPERT_RETIRE ? -1 : m->expert);
        w->writes += m->kind != EXPERT_RETIRE;
    }
    sound(w, l);
    equal_shares(w, l);
    w->next_at = w->now + (w->calm ? 0 : below(w, 30) * SECOND);
}

static void obey(struct world *w, const struct controller_actions *a)
{
    for (int i = 0; i < a->n_share; i++) {
        check_share(w, &a->share[i]);
        memcpy(w->r->layer[a->share[i].layer].share, a->share[i].share,
               (size_t)(w->d * w->s) * sizeof(float));
    }
    if (a->call_back) {
        assert_true(a->call_back == w->plan && w->n_move > 0);
        over(w, false);
    }
    if (!a->n_move)
        return;
    check_plan(w, a);
    memcpy(w->move, a->move, (size_t)a->n_move * sizeof(*w->move));
    w->n_move = a->n_move;
    w->n_done = 0;
    w->plan = a->plan;
    w->plans++;
    w->next_at = w->now + below(w, 60) * SECOND;
    w->gives_up = !w->calm && below(w, 4) == 0;
}

static void round_of(struct world *w, double noise)
{
    static double tokens[LAYERS * MOST_X];
    struct controller_series s = {.span_us = EVERY};
    const struct controller_actions *a;
    struct err e = {0};

    w->now += EVERY;
    while (w->n_move && w->n_done < w->n_move && w->now >= w->next_at) {
        make_group(w);
        if (w->n_done == w->n_move)
            over(w, true);
        else if (w->gives_up && below(w, 3) == 0)
            over(w, false);
    }
    s.steps[CONTROLLER_DECODE] = EVERY / 50000.0;
    for (int i = 0; i < w->n_layer * w->x; i++)
        tokens[i] =
            w->load[i] * s.steps[CONTROLLER_DECODE] * (1 + noise * (2 * uniform(w) - 1));
    s.tokens[CONTROLLER_DECODE] = tokens;
    if (controller_decide(w->c, &s, w->r, &w->dev, &w->lim, w->now, &a, &e) < 0)
        fail_msg("%s", e.msg);
    obey(w, a);
}

/* Something happens now and then. */
static void befall(struct world *w)
{
    int l = below(w, w->n_layer), g = below(w, w->d), use = 0;

    for (int i = 0; i < w->d; i++)
        use += !w->out[i];
    switch (below(w, 40)) {
    case 0:
    case 1:
        topic(w, l);
        break;
    case 2: /* a layer idles */
        memset(w->load + l * w->x, 0, (size_t)w->x * sizeof(*w->load));
        break;
    case 3: /* all do */
        memset(w->load, 0, sizeof(w->load));
        break;
    case 4: /* a device goes, if the others can hold all */
        if (w->out[g] || (use - 1) * w->s < w->x)
            break;
        w->out[g] = 1;
        break;
    case 5:
        w->out[g] = 0;
        break;
    case 6:
        for (int i = 0; i < w->n_layer * w->x; i++)
            w->load[i] *= exp(0.5 * (uniform(w) - 0.5));
        break;
    default:
        break;
    }
}

static void test_worlds(void **state)
{
    int plans = 0;
    (void)state;

    for (uint64_t k = 0; k < 40; k++) {
        static struct world w;

        make(&w, test_seed() * 100 + k);
        for (int i = 0; i < 400; i++) {
            befall(&w);
            round_of(&w, 0.05);
        }
        plans += w.plans;
        end(&w);
    }
    assert_true(plans > 100); /* there was something to look at */
}

/* From wherever a world has come to, with loads that only are noisy: a few plans, then
 * none. */
static void test_noise_ends(void **state)
{
    (void)state;
    for (uint64_t k = 0; k < 25; k++) {
        static struct world w;
        int writes, slots;

        make(&w, test_seed() * 1000 + k);
        for (int i = 0; i < 100; i++) {
            befall(&w);
            round_of(&w, 0.05);
        }
        slots = w.n_layer * w.d * w.s;
        writes = w.writes;
        w.calm = true;
        for (int64_t until = w.now + 80 * DWELL; w.now < until;)
            round_of(&w, 0.05);
        if (w.writes - writes > slots)
            fail_msg("world %d: %d slots written of %d under noise", (int)k,
                     w.writes - writes, slots);
        writes = w.writes;
        for (int64_t until = w.now + 40 * DWELL; w.now < until;)
            round_of(&w, 0.05);
        if (w.writes > writes + 2) /* what lies just at a bound may cross it once */
            fail_msg("world %d: still %d slots written", (int)k, w.writes - writes);
        end(&w);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_worlds),
    cmocka_unit_test(test_noise_ends),
};
TEST_MAIN("controller_worlds", tests)
