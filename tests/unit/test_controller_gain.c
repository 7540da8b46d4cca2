/* tests/unit/test_controller_gain.c - what each move was to bring and what it brought, on
 * loads so small that both are computed by hand. */
#include "daemon/ctrl/controller.h"

#include <math.h>

#include "base/err.h"
#include "daemon/serve/routes.h"
#include "tests/test.h"

enum { X = 3, D = 3, S = 2, SLOTS = D * S, MOST = 32 };
static const int64_t SEC = 1000000;

struct world {
    struct controller *c;
    struct routes *r;
    struct controller_limits l;
    double us[X]; /* of a step */
    int64_t now;
    struct expert_move move[MOST];
    int n_move, n_group;
    uint64_t plan;
    struct controller_gain gain[MOST];
    int n_gain, n_outcome;
    double outcome; /* realised, of the last */
};

static void begin(struct world *w, double a, double b, double c)
{
    const struct routes_dims d = {X, D, S};
    struct err e;

    *w = (struct world){.now = 1000 * SEC, .us = {a, b, c}};
    w->c = controller_new(1, X, D, S);
    assert_int_equal(routes_new(&d, 1, &w->r, &e), 0);
    w->l = (struct controller_limits){.policy = CONTROLLER_AUTO,
                                      .dwell_us = 60 * SEC,
                                      .enter = 0.9,
                                      .leave = 0.96,
                                      .min_gain = 0.03,
                                      .horizon_us = 3600 * SEC,
                                      .deadline_us = 600 * SEC,
                                      .copy_Bps = 1e9,
                                      .risk_us = 100,
                                      .slack_us = 10000,
                                      .slack_share = 0.1,
                                      .prefill_share = 0.5};
}

static void end(struct world *w)
{
    controller_free(w->c);
    routes_free(w->r);
}

/* A second of 20 steps. */
static void second(struct world *w)
{
    const struct controller_devices d = {.expert_bytes = 1000000};
    struct controller_series s = {.steps = {[CONTROLLER_DECODE] = 20}, .span_us = 1e6};
    const struct controller_actions *a;
    double tokens[X], us[X];
    struct err e = {0};

    for (int i = 0; i < X; i++)
        tokens[i] = us[i] = 20 * w->us[i];
    s.tokens[CONTROLLER_DECODE] = tokens;
    s.service_us[CONTROLLER_DECODE] = us;
    w->now += SEC;
    if (controller_decide(w->c, &s, w->r, &d, &w->l, w->now, &a, &e) < 0)
        fail_msg("%s", e.msg);
    if (a->plan && !a->advice) {
        assert_true(a->n_move <= MOST);
        memcpy(w->move, a->move, (size_t)a->n_move * sizeof(*w->move));
        w->n_move = a->n_move;
        w->n_group = a->n_group;
        w->plan = a->plan;
    }
    for (int i = 0; i < a->n_gain; i++)
        w->gain[w->n_gain++] = a->gain[i];
    for (int i = 0; i < a->n_outcome; i++, w->n_outcome++)
        w->outcome = a->outcome[i].realised_us;
}

static void until_plan(struct world *w)
{
    for (int i = 0; i < 300 && !w->n_move; i++)
        second(w);
    assert_true(w->n_move > 0);
}

/* The moves of the first so many groups. */
static void make(struct world *w, int groups)
{
    struct route_layer *l = &w->r->layer[0];

    for (int i = 0; i < w->n_move; i++)
        if (w->move[i].group < groups)
            l->expert[w->move[i].device * S + w->move[i].slot] =
                (int16_t)(w->move[i].kind == EXPERT_RETIRE ? -1 : w->move[i].expert);
    for (int i = 0; i < SLOTS; i++)
        l->share[i] =
            l->expert[i] < 0 ? 0 : 1.0f / (float)routes_copies(w->r, 0, l->expert[i]);
}

static double heaviest(const struct world *w, const double *us)
{
    const struct expert_ask a = {
        .n_layer = 1, .n_expert = X, .n_device = D, .n_slot = S, .load = us};
    float share[SLOTS];

    return expertplan_shares(&a, 0, w->r->layer[0].expert, share);
}

static double predicted_of(const struct world *w, int group)
{
    double sum = 0;

    for (int i = 0; i < w->n_move; i++)
        sum += w->move[i].group == group ? w->move[i].gain : 0;
    return sum;
}

static void about(double is, double want, double by)
{
    if (!(fabs(is - want) <= by))
        fail_msg("%g is not %g", is, want);
}

/* One expert of 90 us, two of 20. Alone it makes its device take 90; with a copy beside
 * one of 20 both take 55; when that one has gone to the third device, 45 and 40. */
static void test_by_hand(void **state)
{
    struct world w;
    double sum = 0, told = 0;

    (void)state;
    begin(&w, 90, 20, 20);
    until_plan(&w);
    for (int g = 0; g < w.n_group; g++)
        sum += predicted_of(&w, g);
    about(predicted_of(&w, 0), 90 - 55, 0.1);
    about(sum, 90 - 45, 0.1);
    make(&w, w.n_group);
    controller_over(w.c, w.plan, true, w.now);
    w.us[0] = 80; /* they have become others meanwhile */
    w.us[2] = 10;
    for (int i = 0; i < 31; i++)
        second(&w);
    assert_int_equal(w.n_gain, w.n_group);
    assert_int_equal(w.n_outcome, 1);
    for (int g = 0; g < w.n_gain; g++) {
        assert_true(w.gain[g].plan == w.plan && w.gain[g].layer == 0 &&
                    w.gain[g].group == g);
        about(w.gain[g].predicted_us, predicted_of(&w, g), 1e-9);
        told += w.gain[g].realised_us;
    }
    about(told, 80 - 40, 0.2);
    about(w.gain[0].realised_us, 80 - 50, 0.2);
    about(told, w.outcome, 1e-9);
    for (int i = 0; i < 100; i++)
        second(&w);
    assert_int_equal(w.n_gain, w.n_group); /* once */
    end(&w);
}

/* Of a plan that was called back, those that were done are told of, and no outcome. */
static void test_called_back(void **state)
{
    struct world w;
    double before, us[X];

    (void)state;
    begin(&w, 90, 20, 20);
    until_plan(&w);
    assert_true(w.n_group > 1);
    memcpy(us, w.us, sizeof(us));
    before = heaviest(&w, us);
    make(&w, 1);
    controller_over(w.c, w.plan, false, w.now);
    w.l.policy = CONTROLLER_OFF; /* no other plan */
    for (int i = 0; i < 31; i++)
        second(&w);
    assert_int_equal(w.n_gain, 1);
    assert_int_equal(w.n_outcome, 0);
    assert_int_equal(w.gain[0].group, 0);
    about(w.gain[0].realised_us, before - heaviest(&w, us), 0.1);
    about(w.gain[0].realised_us, 35, 0.1);
    end(&w);
}

/* Another plan for the layer before that is due: it is told then, by what was counted. */
static void test_overtaken(void **state)
{
    struct world w;
    const struct controller_devices d = {.expert_bytes = 1000000};
    const struct controller_actions *a;
    struct err e = {0};

    (void)state;
    begin(&w, 90, 20, 20);
    until_plan(&w);
    make(&w, w.n_group);
    controller_over(w.c, w.plan, true, w.now);
    w.us[0] = 20;
    w.us[2] = 90;
    for (int i = 0; i < 10; i++)
        second(&w);
    assert_int_equal(w.n_gain, 0);
    struct controller *copy = controller_copy(w.c);
    assert_int_equal(controller_preview(copy, w.r, &d, &w.l, CONTROLLER_PLANNER, &a, &e),
                     0);
    assert_true(a->n_move > 0 && a->n_gain == 0);
    assert_int_equal(controller_adopt(w.c, copy, &w.l, w.now, &a, &e), 0);
    assert_int_equal(a->n_gain, w.n_group);
    assert_true(a->gain[0].plan == w.plan && a->gain[0].plan != a->plan);
    controller_free(copy);
    end(&w);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_called_back),
        cmocka_unit_test(test_overtaken),
    };
    return test_main(argc, argv, "controller_gain", tests,
                     sizeof(tests) / sizeof(tests[0]));
}
