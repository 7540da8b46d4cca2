/* The controller of the experts, on virtual time. */
#include "tests/test.h"

#include <math.h>

#include "base/err.h"
#include "daemon/ctrl/controller.h"
#include "daemon/serve/routes.h"

enum { L = 2, X = 64, D = 8, S = 10, MAP = L * D * S };
#define SECOND 1000000ll
#define EVERY (5 * SECOND)
#define DWELL (300 * SECOND)

/* A world of one instance: its loads, its routes, and a mover that takes 20 s a plan. */
struct world {
    struct controller *c;
    struct controller_limits lim;
    struct controller_devices dev;
    struct routes r;
    struct route_layer layer[L];
    int16_t expert[MAP];
    float share[MAP];
    uint8_t out[D];
    double load[L * X]; /* tokens of a step */
    double noise;       /* 0.05: each count differs by so much, evenly */
    int drawn; /* assignments of a layer in a round, drawn by its loads; 0: all */
    bool timed;
    double us[L * X]; /* of a token */
    uint64_t seed;
    int64_t now;
    struct expert_move move[MAP];
    int n_move;
    int64_t done_at;
    bool stuck; /* the mover never ends */
    const struct controller_actions *act;
    int plans, moves, shares, outcomes;
    double realised, predicted, gained, foreseen; /* by layers; by moves */
};

static double uniform(struct world *w)
{
    return ((double)(test_rand(&w->seed) >> 11) + 0.5) / 9007199254740992.0;
}

/* Loads by a Zipf law over experts in an order of topic's own. */
static void topic(struct world *w, int which)
{
    for (int l = 0; l < L; l++)
        for (int i = 0; i < X; i++)
            w->load[l * X + (i * 37 + which * 11 + l) % X] = 400 / pow(i + 1, 0.9);
}

static void by_plan(struct world *w)
{
    struct expert_ask a = {
        .n_layer = L, .n_expert = X, .n_device = D, .n_slot = S, .load = w->load};
    struct err e = {0};

    if (expertplan_offline(&a, w->expert, &e) < 0)
        fail_msg("%s", e.msg);
    for (int l = 0; l < L; l++)
        expertplan_shares(&a, l, w->expert + l * D * S, w->share + l * D * S);
}

static void equal_shares(struct world *w, int l)
{
    for (int i = 0; i < D * S; i++) {
        int n = 0;
        for (int k = 0; k < D * S; k++)
            n += w->expert[l * D * S + k] == w->expert[l * D * S + i];
        w->share[l * D * S + i] = w->expert[l * D * S + i] < 0 ? 0 : 1.0f / (float)n;
    }
}

static struct world *begin(void)
{
    static struct world w;

    memset(&w, 0, sizeof(w));
    w.c = controller_new(L, X, D, S);
    w.seed = test_seed();
    w.now = 1000 * SECOND;
    w.lim = (struct controller_limits){.policy = CONTROLLER_AUTO,
                                       .share_every_us = 5 * SECOND,
                                       .share_gain = 0.03,
                                       .dwell_us = DWELL,
                                       .enter = 0.9,
                                       .leave = 0.96,
                                       .min_gain = 0.03,
                                       .horizon_us = 12 * DWELL,
                                       .deadline_us = 120 * SECOND,
                                       .copy_Bps = 1e9,
                                       .risk_us = 100,
                                       .slack_us = 10000,
                                       .slack_share = 0.1,
                                       .prefill_share = 0.5};
    w.dev = (struct controller_devices){.out = w.out, .expert_bytes = 10000000};
    w.r = (struct routes){.d = {X, D, S}, .n_layer = L, .layer = w.layer};
    for (int l = 0; l < L; l++)
        w.layer[l] = (struct route_layer){1, w.expert + l * D * S, w.share + l * D * S};
    topic(&w, 0);
    by_plan(&w);
    return &w;
}

static void end(struct world *w) { controller_free(w->c); }

static void obey(struct world *w)
{
    for (int i = 0; i < w->act->n_share && !w->act->advice; i++, w->shares++)
        memcpy(w->layer[w->act->share[i].layer].share, w->act->share[i].share,
               D * S * sizeof(float));
    w->moves += w->act->n_move;
    w->plans += w->act->n_move > 0;
    for (int i = 0; i < w->act->n_outcome; i++, w->outcomes++) {
        w->realised += w->act->outcome[i].realised_us;
        w->predicted += w->act->outcome[i].predicted_us;
    }
    for (int i = 0; i < w->act->n_gain; i++) {
        w->gained += w->act->gain[i].realised_us;
        w->foreseen += w->act->gain[i].predicted_us;
    }
    if (w->act->call_back) {
        assert_true(w->act->call_back == controller_in_hand(w->c));
        controller_over(w->c, w->act->call_back, false, w->now);
        w->n_move = 0;
    }
    if (w->act->n_move && !w->act->advice) {
        assert_true(w->act->bytes_per_step > 0);
        memcpy(w->move, w->act->move, (size_t)w->act->n_move * sizeof(*w->move));
        w->n_move = w->act->n_move;
        w->done_at = w->now + 20 * SECOND;
    }
}

static void finish_moves(struct world *w)
{
    struct expert_ask a = {.n_layer = L,
                           .n_expert = X,
                           .n_device = D,
                           .n_slot = S,
                           .load = w->load,
                           .out = w->out};
    struct err e = {0};

    for (int i = 0; i < w->n_move; i++) {
        struct expert_move *m = &w->move[i];
        int16_t *at = w->layer[m->layer].expert + m->device * S + m->slot;
        assert_int_equal(*at, m->was);
        *at = (int16_t)(m->kind == EXPERT_RETIRE ? -1 : m->expert);
    }
    if (expertplan_check(&a, w->expert, &e) < 0)
        fail_msg("%s", e.msg);
    for (int l = 0; l < L; l++)
        equal_shares(w, l);
    w->n_move = 0;
    controller_over(w->c, controller_in_hand(w->c), true, w->now);
}

/* Few rows: what was counted of each layer is drawn by its loads. */
static void draw(struct world *w, double *tokens)
{
    for (int l = 0; l < L; l++) {
        double sum = 0, *t = tokens + l * X;

        for (int i = 0; i < X; i++)
            t[i] = 0, sum += w->load[l * X + i];
        for (int k = 0; k < w->drawn; k++) {
            double at = uniform(w) * sum;
            int i = 0;
            while (i < X - 1 && at >= w->load[l * X + i])
                at -= w->load[l * X + i++];
            t[i]++;
        }
    }
}

/* One round: count, decide, obey. */
static void round_of(struct world *w)
{
    static double tokens[L * X], us[L * X];
    struct controller_series s = {.span_us = EVERY};
    struct err e = {0};

    w->now += EVERY;
    if (w->n_move && !w->stuck && w->now >= w->done_at)
        finish_moves(w);
    s.steps[CONTROLLER_DECODE] = EVERY / 50000.0;
    for (int i = 0; i < L * X; i++) {
        tokens[i] = w->load[i] * s.steps[CONTROLLER_DECODE] *
                    (1 + w->noise * (2 * uniform(w) - 1));
        us[i] = tokens[i] * w->us[i];
    }
    if (w->drawn)
        draw(w, tokens);
    s.tokens[CONTROLLER_DECODE] = tokens;
    s.service_us[CONTROLLER_DECODE] = w->timed ? us : NULL;
    if (controller_decide(w->c, &s, &w->r, &w->dev, &w->lim, w->now, &w->act, &e) < 0)
        fail_msg("%s", e.msg);
    obey(w);
}

static void pass(struct world *w, int64_t time)
{
    for (int64_t t = 0; t < time; t += EVERY)
        round_of(w);
}

static double balanced(struct world *w)
{
    struct expert_ask a = {.n_layer = L,
                           .n_expert = X,
                           .n_device = D,
                           .n_slot = S,
                           .load = w->load,
                           .out = w->out};
    double low = 1;

    for (int l = 0; l < L; l++)
        low = fmin(
            low, expertplan_balance(&a, l, w->layer[l].expert, w->layer[l].share, NULL));
    return low;
}

static void flat_noise(void **st)
{
    struct world *w = begin();
    (void)st;

    w->noise = 0.05;
    pass(w, 24 * 3600 * SECOND);
    assert_int_equal(w->moves, 0);
    assert_int_equal(w->shares, 0);
    end(w);
}

static void hot_topic(void **st)
{
    struct world *w = begin();
    (void)st;

    w->noise = 0.05;
    pass(w, 20 * DWELL);
    assert_int_equal(w->moves, 0);
    topic(w, 1);
    double before = balanced(w);
    pass(w, DWELL / 2);
    assert_true(w->shares > 0); /* seconds: shares first */
    assert_int_equal(w->moves, 0);
    pass(w, 2 * DWELL - DWELL / 2 - EVERY);
    assert_true(w->moves > 0);
    pass(w, DWELL);
    assert_true(before < 0.8 && balanced(w) > 0.93);
    int moves = w->moves;
    pass(w, 50 * DWELL);
    assert_int_equal(w->moves, moves); /* and that is that */
    assert_true(w->outcomes >= 2);
    assert_true(w->predicted > 0);
    assert_true(fabs(w->realised - w->predicted) < 0.5 * w->predicted);
    assert_true(fabs(w->gained - w->realised) < 1e-6 * w->predicted);
    assert_true(fabs(w->foreseen - w->predicted) < 1e-6 * w->predicted);
    end(w);
}

/* After a plan the copies share equally, until shares follow: at once, however seldom
 * they are looked at otherwise. */
static void shares_follow(void **st)
{
    struct world *w = begin();
    (void)st;

    w->lim.share_every_us = DWELL;
    w->lim.share_gain = 0.001;
    topic(w, 1);
    while (!w->plans && w->now < 8000 * SECOND)
        round_of(w);
    assert_int_equal(w->plans, 1);
    int before = w->shares;
    while (w->n_move)
        round_of(w);
    assert_true(w->shares > before); /* in the round in which it was over */
    assert_true(balanced(w) > 0.9);
    end(w);
}

/* So few rows that two rounds hardly look alike: that is no change of the loads, and a
 * topic that stays is planned for as it is, not as its mixture with the one before. */
static void few_rows(void **st)
{
    struct world *w = begin();
    (void)st;

    w->drawn = 2 * X;
    w->lim.dwell_us = 8 * EVERY;
    w->lim.copy_Bps = 0;
    w->lim.risk_us = 0;
    pass(w, 40 * w->lim.dwell_us);
    topic(w, 1);
    pass(w, 6 * w->lim.dwell_us);
    double x = 0, xx = 0, yy = 0;
    for (int i = 0; i < X; i++) {
        double planned = controller_loads(w->c, 0)[i], is = w->load[i];
        x += planned * is, xx += planned * planned, yy += is * is;
    }
    assert_true(x / sqrt(xx * yy) > 0.97);
    w->drawn = 0;
    assert_true(balanced(w) > 0.85);
    end(w);
}

static void alternating(void **st)
{
    static const double parts[] = {0.1, 0.3, 0.6, 0.9};
    (void)st;

    for (int i = 0; i < 4; i++) {
        struct world *w = begin();
        int late = 0;
        w->noise = 0.05;
        for (int k = 0; k < (int)(120 / parts[i]); k++) {
            int before = w->moves;
            topic(w, k % 2);
            pass(w, (int64_t)(parts[i] * DWELL));
            if (k * parts[i] > 30)
                late += w->moves - before;
        }
        assert_int_equal(late, 0);
        assert_true(w->plans <= 12); /* towards the mixture, then none */
        assert_true(w->moves < L * D * S);
        end(w);
    }
}

/* A device goes while a plan writes to it: called back, then all that it had is planned
 * elsewhere, at once and never onto it. */
static void lost_in_a_move(void **st)
{
    struct world *w = begin();
    int lost = -1;
    (void)st;

    pass(w, 2 * DWELL);
    topic(w, 1);
    w->stuck = true;
    while (!w->n_move && w->now < 4000 * SECOND)
        round_of(w);
    assert_true(w->n_move > 0);
    uint64_t plan = controller_in_hand(w->c);
    for (int i = 0; i < w->n_move; i++)
        if (w->move[i].kind != EXPERT_RETIRE)
            lost = w->move[i].device;
    assert_true(lost >= 0);
    w->out[lost] = 1;
    int moves = w->moves;
    round_of(w);
    assert_true(w->act->call_back == plan && controller_in_hand(w->c) == 0);
    assert_int_equal(w->moves, moves);
    w->stuck = false;
    round_of(w);
    assert_true(w->n_move > 0 && controller_in_hand(w->c) == plan + 1);
    for (int i = 0; i < w->n_move; i++)
        assert_true(w->move[i].device != lost || w->move[i].kind == EXPERT_RETIRE);
    pass(w, 3 * DWELL); /* finish_moves looks that all stand on devices in use */
    assert_true(balanced(w) > 0.85);
    end(w);
}

static void cordoned(void **st)
{
    struct world *w = begin();
    (void)st;

    w->out[3] = 1;
    round_of(w);
    assert_true(w->n_move > 0);
    pass(w, 60 * SECOND);
    for (int l = 0; l < L; l++)
        for (int s = 0; s < S; s++)
            assert_int_equal(w->layer[l].expert[3 * S + s], -1);
    end(w);
}

static void policies(void **st)
{
    struct world *w = begin();
    (void)st;

    w->lim.policy = CONTROLLER_OFF;
    topic(w, 1);
    pass(w, 3 * DWELL);
    assert_int_equal(w->moves + w->shares, 0);
    w->lim.policy = CONTROLLER_AUTO;
    w->lim.frozen = true;
    pass(w, 3 * DWELL);
    assert_int_equal(w->moves + w->shares, 0);
    w->lim.frozen = false;
    w->lim.policy = CONTROLLER_ADVISE;
    pass(w, 6 * DWELL); /* said once a dwell time, carried out never */
    assert_true(w->plans >= 4 && w->plans <= 7);
    assert_int_equal(controller_in_hand(w->c), 0);
    assert_true(w->act->advice);
    w->lim.policy = CONTROLLER_AUTO;
    w->lim.slack_us = 0; /* no room in a step */
    int moves = w->moves;
    pass(w, 3 * DWELL);
    assert_int_equal(w->moves, moves);
    w->lim.slack_us = 10000;
    w->lim.horizon_us = 1; /* nothing repays that soon */
    pass(w, 3 * DWELL);
    assert_int_equal(w->moves, moves);
    w->lim.horizon_us = DWELL;
    pass(w, 2 * DWELL);
    assert_true(w->moves > moves);
    end(w);
}

/* Between enter and leave nothing begins, though there would be something to gain. */
static void hysteresis(void **st)
{
    struct world *w = begin();
    const struct controller_actions *act;
    struct expert_ask a = {
        .n_layer = L, .n_expert = X, .n_device = D, .n_slot = S, .load = w->load};
    struct err e = {0};
    double b = 1;
    int x = 0;
    (void)st;

    while (w->expert[x] < 0 || b > 0.95) { /* a copy alone on its device grows */
        int n = 0;
        for (int i = 0; i < D * S; i++)
            n += w->expert[i] == w->expert[x];
        if (n > 1) {
            x++;
            continue;
        }
        w->load[w->expert[x]] *= 1.02;
        expertplan_shares(&a, 0, w->expert, w->share);
        b = expertplan_balance(&a, 0, w->expert, w->share, NULL);
    }
    assert_true(b > 0.91);
    w->lim.min_gain = 0.01;
    pass(w, 5 * DWELL);
    assert_int_equal(w->moves, 0);
    assert_int_equal(
        controller_preview(w->c, &w->r, &w->dev, &w->lim, CONTROLLER_INCREMENT, &act, &e),
        0);
    assert_true(act->n_move > 0);
    w->lim.enter = 0.955;
    w->lim.min_gain = 0.2; /* as much is not to be had */
    pass(w, 2 * DWELL);
    assert_int_equal(w->moves, 0);
    w->lim.min_gain = 0.01;
    pass(w, DWELL);
    assert_true(w->moves > 0);
    end(w);
}

static void called_back(void **st)
{
    struct world *w = begin();
    (void)st;

    topic(w, 1); /* the mover never ends: the deadline does */
    w->stuck = true;
    while (!w->n_move && w->now < 4000 * SECOND)
        round_of(w);
    assert_int_equal(controller_in_hand(w->c), 1);
    pass(w, w->lim.deadline_us - EVERY);
    assert_int_equal(controller_in_hand(w->c), 1);
    round_of(w);
    assert_true(w->act->call_back == 1 && strstr(w->act->why, "deadline"));
    pass(w, DWELL - EVERY); /* looked at anew after a dwell time, not before */
    assert_int_equal(w->plans, 1);
    pass(w, DWELL / 4);
    assert_int_equal(w->plans, 2);
    end(w);

    w = begin(); /* frozen while in hand */
    topic(w, 1);
    w->stuck = true;
    while (!w->n_move && w->now < 4000 * SECOND)
        round_of(w);
    w->lim.frozen = true;
    round_of(w);
    assert_true(w->act->call_back == 1 && strstr(w->act->why, "frozen"));
    end(w);
}

static void idle(void **st)
{
    struct world *w = begin();
    (void)st;

    memset(w->load, 0, sizeof(w->load));
    pass(w, 3 * DWELL);
    assert_int_equal(w->moves, 0);
    topic(w, 1);
    memset(w->load, 0, X * sizeof(double)); /* layer 0 idle */
    while (!w->n_move && w->now < 8000 * SECOND)
        round_of(w);
    assert_true(w->n_move > 0);
    for (int i = 0; i < w->n_move; i++)
        assert_int_equal(w->move[i].layer, 1);
    end(w);
}

/* Tokens alike, but one expert takes six times as long: it gets copies. */
static void by_time(void **st)
{
    struct world *w = begin();
    int n = 0;
    (void)st;

    for (int i = 0; i < L * X; i++)
        w->load[i] = 100, w->us[i] = i == 5 ? 60 : 10;
    by_plan(w);
    w->timed = true;
    pass(w, 3 * DWELL);
    for (int i = 0; i < D * S; i++)
        n += w->expert[i] == 5;
    assert_true(n >= 3);
    assert_true(controller_loads(w->c, 0)[5] > 5.9 * controller_loads(w->c, 0)[6]);
    end(w);
}

/* While an operator's plan is being made it begins none. */
static void held(void **st)
{
    struct world *w = begin();
    (void)st;

    controller_hold(w->c, true);
    pass(w, DWELL);
    topic(w, 1);
    pass(w, 4 * DWELL);
    assert_int_equal(w->moves, 0);
    controller_hold(w->c, false);
    pass(w, DWELL);
    assert_true(w->moves > 0);
    end(w);
}

/* As an operator's order is: made on a copy, then taken over. */
static int order(struct world *w, enum controller_method m,
                 const struct controller_actions **ret, struct err *e)
{
    struct controller *copy = controller_copy(w->c);
    int rc = controller_preview(copy, &w->r, &w->dev, &w->lim, m, ret, e);

    if (rc == 0)
        rc = controller_adopt(w->c, copy, &w->lim, w->now, ret, e);
    controller_free(copy);
    return rc;
}

static void on_request(void **st)
{
    struct world *w = begin();
    const struct controller_actions *act;
    struct err e = {0};
    (void)st;

    w->lim.policy = CONTROLLER_OFF;
    topic(w, 1);
    pass(w, 2 * DWELL);
    assert_int_equal(
        controller_preview(w->c, &w->r, &w->dev, &w->lim, CONTROLLER_INCREMENT, &act, &e),
        0);
    assert_true(act->advice && act->n_move > 0 && act->layer[0].gain_us > 0);
    assert_true(act->layer[0].after > act->layer[0].before);
    assert_int_equal(controller_in_hand(w->c), 0);
    for (enum controller_method m = CONTROLLER_PLANNER; m <= CONTROLLER_EPLB; m++) {
        assert_int_equal(order(w, m, &act, &e), 0);
        assert_true(act->plan == m + 1u && act->n_move > 0);
        w->act = act;
        obey(w);
        assert_int_equal(order(w, m, &act, &e), -1);
        assert_int_equal(e.code, ERR_CONFLICT);
        finish_moves(w);
        assert_true(balanced(w) > 0.9);
    }
    static double with[L * X * X]; /* experts of one parity are chosen together */
    int host[D] = {0, 0, 0, 0, 1, 1, 1, 1};
    for (int i = 0; i < L * X * X; i++)
        with[i] = (i % X + i / X) % 2 ? 1 : 9;
    w->dev.host = host;
    w->dev.with = with;
    w->dev.affinity = 0.1;
    w->lim.frozen = true;
    assert_int_equal(order(w, CONTROLLER_PLANNER, &act, &e), -1);
    w->lim.frozen = false;
    assert_int_equal(order(w, CONTROLLER_PLANNER, &act, &e), 0);
    assert_true(act->apart_before > 0 && act->apart_after < 0.8 * act->apart_before);
    w->act = act;
    obey(w);
    finish_moves(w);
    assert_true(balanced(w) > 0.85);
    w->r.d.n_slot = S + 1;
    assert_int_equal(
        controller_preview(w->c, &w->r, &w->dev, &w->lim, CONTROLLER_INCREMENT, &act, &e),
        -1);
    end(w);
}

/* The largest mixtures: a plan has only so many layers, the least balanced first, so that
 * a decision does not hold up its thread; once it is over the next ones have their turn.
 */
static void few_layers_at_once(void **st)
{
    enum { LAYERS = 61, EXPERTS = 256, DEVICES = 72, SLOTS = 4, MOST = 2048 / EXPERTS };
    const struct routes_dims dims = {EXPERTS, DEVICES, SLOTS};
    struct controller *c = controller_new(LAYERS, EXPERTS, DEVICES, SLOTS);
    const struct controller_devices dev = {.expert_bytes = 1000000};
    struct world *w = begin();
    struct controller_limits lim = w->lim;
    double *tokens = calloc(LAYERS * EXPERTS, sizeof(*tokens));
    const struct controller_actions *act = NULL;
    struct controller_series s = {.steps = {0, 100}, .span_us = (double)EVERY};
    bool done[LAYERS] = {0};
    struct routes *r;
    struct err e = {0};
    int64_t now = 1000 * SECOND;
    (void)st;

    lim.horizon_us = 100 * DWELL;
    assert_int_equal(routes_new(&dims, LAYERS, &r, &e), 0);
    for (int l = 0; l < LAYERS; l++) /* the later the layer, the worse */
        for (int i = 0; i < EXPERTS; i++)
            tokens[l * EXPERTS + i] = 100 * (i % 50 ? 1 : 10 + l);
    s.tokens[CONTROLLER_DECODE] = tokens;
    for (int plans = 0; plans < 2 && now < 4000 * SECOND; now += EVERY) {
        if (controller_decide(c, &s, r, &dev, &lim, now, &act, &e) < 0)
            fail_msg("%s", e.msg);
        if (!act->plan)
            continue;
        assert_true(act->n_layer > 0 && act->n_layer <= MOST);
        for (int i = 0; i < act->n_layer; i++) {
            assert_false(done[act->layer[i].layer]);
            done[act->layer[i].layer] = true;
            assert_true(act->layer[i].layer >= LAYERS - (plans + 1) * MOST);
        }
        plans++;
        controller_over(c, act->plan, true, now);
    }
    int n = 0;
    for (int l = 0; l < LAYERS; l++)
        n += done[l];
    assert_true(n > MOST);
    routes_free(r);
    controller_free(c);
    free(tokens);
    end(w);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(flat_noise),
    cmocka_unit_test(hot_topic),
    cmocka_unit_test(alternating),
    cmocka_unit_test(lost_in_a_move),
    cmocka_unit_test(cordoned),
    cmocka_unit_test(policies),
    cmocka_unit_test(hysteresis),
    cmocka_unit_test(called_back),
    cmocka_unit_test(idle),
    cmocka_unit_test(by_time),
    cmocka_unit_test(on_request),
    cmocka_unit_test(held),
    cmocka_unit_test(few_layers_at_once),
    cmocka_unit_test(shares_follow),
    cmocka_unit_test(few_rows),
};
TEST_MAIN("controller", tests)
