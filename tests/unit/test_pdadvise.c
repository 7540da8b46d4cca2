/* tests/unit/test_pdadvise.c - the advice on colocated, chunked and split against a
 * planted truth: the scheduler itself over a device on virtual time.
 *
 * The device knows more than the advice's model: a prompt's tokens cost more the later
 * they stand, a decoding sequence more the longer it is, and each step is off by up to
 * 5 %. What the advice gets of it is what llmctl load would measure on the idle device.
 * Goodput of the truth is searched with other arrivals than those of the advice. */
#include "tests/test.h"

#include <math.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/ctrl/pdadvise.c"
#include "daemon/ctrl/pdadvise_sim.c"
#include "daemon/serve/sched.h"

enum { TRUE_REQUESTS = 300, MAX_SEQS = 64, STEP_TOK = 512, PREFILL_RUN = 4 };

/* The device: ms of a step on all devices. */
struct device {
    double prefill_ms, prefill_tok_ms, decode_ms, decode_seq_ms;
    double far; /* more per token and 1000 tokens before it, as a share */
    double
        scale; /* 1 / n of the devices take n to the power of this times as long; 0: 1 */
};

struct treq {
    double come_ms, first_ms, last_ms, ready_ms;
    int n_in, n_out, made;
};

/* One engine: the scheduler and its device. */
struct true_engine {
    struct sched *s;
    struct step *st;
    struct step_result *results;
    struct step_token *toks;
    const struct device *d;
    double slow, now_ms;
    uint64_t noise;
};

static void engine_init(struct true_engine *e, enum sched_mode mode,
                        const struct device *d, double slow, uint64_t seed)
{
    struct sched_cfg c = {.mode = mode,
                          .step_tok = STEP_TOK,
                          .max_seqs = MAX_SEQS,
                          .max_outs = MAX_SEQS,
                          .max_waiting = TRUE_REQUESTS,
                          .max_ctx = 8192,
                          .depth = 1,
                          .prefill_run = PREFILL_RUN};
    struct step_caps caps;

    c.kv = (struct kvcache_cfg){.block_tok = 64, .n_groups = 1, .reuse = false};
    c.kv.group[0] = (struct kv_group){KV_FULL, 8192, 0};
    *e = (struct true_engine){.s = sched_new(&c), .d = d, .slow = slow, .noise = seed};
    sched_step_caps(&c, &caps);
    e->st = step_new(&caps);
    e->results = xcalloc((size_t)caps.items, sizeof(*e->results));
    e->toks = xcalloc((size_t)caps.items, sizeof(*e->toks));
}

static void engine_done(struct true_engine *e)
{
    sched_free(e->s);
    free(e->st);
    free(e->results);
    free(e->toks);
}

static void engine_add(struct true_engine *e, int id, int n_in, int n_out)
{
    static const int32_t prompt[8192];
    struct gen_params p = {.id = (uint64_t)id + 1,
                           .max_tokens = n_out,
                           .temperature = 0,
                           .top_p = 1,
                           .repetition = 1,
                           .n_top = -1,
                           .n_prompt = n_in,
                           .ignore_eos = true};

    sched_event(e->s, (int64_t)(e->now_ms * 1e3),
                &(struct sched_event){.kind = SCHED_ADD, .params = &p, .prompt = prompt});
}

/* What the step in e->st costs. */
static double true_cost(struct true_engine *e)
{
    const struct device *d = e->d;
    double ms = 0;
    int prompt = 0, seqs = 0;

    for (int i = 0; i < e->st->n_items; i++) {
        const struct step_item *it = &step_items(e->st)[i];
        double far = 1 + d->far * (it->first_pos + it->n_tok / 2.0) / 1000;

        if (it->n_tok == 1) {
            seqs++;
            ms += d->decode_seq_ms * far;
        } else {
            prompt += it->n_tok;
            ms += d->prefill_tok_ms * it->n_tok * far;
        }
    }
    ms += !prompt ? d->decode_ms
          : !seqs ? d->prefill_ms
                  : fmax(d->prefill_ms, d->decode_ms);
    return ms * e->slow * (0.95 + 0.1 * (double)(test_rand(&e->noise) % 1000) / 1000);
}

/* One step; false when there is none to run. Tokens are told to v by number - 1. */
static bool engine_step(struct true_engine *e, struct treq *v)
{
    struct step_done done = {.results = e->results, .toks = e->toks};
    const struct sched_out *o;
    size_t n;
    static uint64_t ticket;

    if (!sched_next(e->s, (int64_t)(e->now_ms * 1e3), e->st))
        return false;
    sched_submitted(e->s, (int64_t)(e->now_ms * 1e3), ++ticket);
    e->now_ms += true_cost(e);
    done.ticket = ticket;
    done.number = e->st->number;
    for (int i = 0; i < e->st->n_items; i++) {
        const struct step_item *it = &step_items(e->st)[i];

        e->results[done.n_results++] =
            (struct step_result){it->seq, done.n_toks, 0, it->sample >= 0, 0};
        if (it->sample >= 0)
            e->toks[done.n_toks++] = (struct step_token){.id = 1};
    }
    sched_event(e->s, (int64_t)(e->now_ms * 1e3),
                &(struct sched_event){.kind = SCHED_DONE, .done = &done});
    n = sched_out(e->s, &o);
    for (size_t i = 0; i < n; i++) {
        struct treq *r = &v[o[i].id - 1];

        assert_int_not_equal(o[i].kind, SCHED_OUT_REFUSE);
        if (o[i].kind != SCHED_OUT_TOKENS || o[i].n_toks == 0)
            continue;
        r->made += o[i].n_toks;
        r->first_ms = r->first_ms < 0 ? e->now_ms : r->first_ms;
        r->last_ms = e->now_ms;
    }
    return true;
}

/* Requests in the order of order[], by their ready_ms; how: what is added of each. */
static void engine_run(struct true_engine *e, struct treq *v, const int *order, int n,
                       bool only_prefill, bool only_decode)
{
    int next = 0;

    for (;;) {
        while (next < n && v[order[next]].ready_ms <= e->now_ms) {
            const struct treq *r = &v[order[next]];

            engine_add(e, order[next++], only_decode ? 1 : r->n_in,
                       only_prefill  ? 1
                       : only_decode ? r->n_out - 1
                                     : r->n_out);
        }
        if (engine_step(e, v))
            continue;
        if (next == n)
            return;
        e->now_ms = v[order[next]].ready_ms;
    }
}

/* ---- the truth ---- */

struct truth {
    struct device d;
    int devices;
    double handoff_ms, handoff_tok_ms;
    struct pd_work k;
};

static double true_slow(const struct truth *t, double devices)
{
    return pow(t->devices / devices, t->d.scale > 0 ? t->d.scale : 1);
}

static const struct treq *sorted_by;
static int by_true_ready(const void *a, const void *b)
{
    double x = sorted_by[*(const int *)a].ready_ms,
           y = sorted_by[*(const int *)b].ready_ms;

    return (x > y) - (x < y);
}

static void true_split(const struct truth *t, int prefill, struct treq *v, int *order,
                       uint64_t seed)
{
    struct true_engine e;
    int n = 0;

    engine_init(&e, SCHED_CHUNKED, &t->d, true_slow(t, prefill), seed);
    engine_run(&e, v, order, TRUE_REQUESTS, true, false);
    engine_done(&e);
    for (int i = 0; i < TRUE_REQUESTS; i++) {
        int last = v[i].n_in % STEP_TOK ? v[i].n_in % STEP_TOK : STEP_TOK;

        v[i].ready_ms = v[i].last_ms + t->handoff_ms + t->handoff_tok_ms * last;
        if (v[i].n_out > 1)
            order[n++] = i;
    }
    sorted_by = v;
    qsort(order, (size_t)n, sizeof(*order), by_true_ready);
    engine_init(&e, SCHED_CHUNKED, &t->d, true_slow(t, t->devices - prefill), seed + 1);
    engine_run(&e, v, order, n, false, true);
    engine_done(&e);
}

static double true_attainment(const struct truth *t, enum pd_mode m, int prefill,
                              double rate, uint64_t seed)
{
    static struct treq v[TRUE_REQUESTS];
    static int order[TRUE_REQUESTS];
    struct true_engine e;
    uint64_t rng = seed * 77 + 5;
    double at = 0;
    int good = 0;

    for (int i = 0; i < TRUE_REQUESTS; i++) {
        const int *len = t->k.sample[test_rand(&rng) % (uint64_t)t->k.n_sample];

        at -= log(1 - (double)(test_rand(&rng) >> 11) * 0x1p-53) / rate * 1e3;
        v[i] = (struct treq){.come_ms = at,
                             .ready_ms = at,
                             .first_ms = -1,
                             .n_in = len[0],
                             .n_out = len[1]};
        order[i] = i;
    }
    if (m == PD_SPLIT) {
        true_split(t, prefill, v, order, rng);
    } else {
        engine_init(&e, m == PD_CHUNKED ? SCHED_CHUNKED : SCHED_COLOCATED, &t->d, 1, rng);
        engine_run(&e, v, order, TRUE_REQUESTS, false, false);
        engine_done(&e);
    }
    for (int i = 0; i < TRUE_REQUESTS; i++) {
        assert_int_equal(v[i].made, v[i].n_out); /* every request ended */
        good += v[i].first_ms - v[i].come_ms <= t->k.ttft_ms &&
                (v[i].n_out < 2 ||
                 (v[i].last_ms - v[i].first_ms) / (v[i].n_out - 1) <= t->k.tpot_ms);
    }
    return (double)good / TRUE_REQUESTS;
}

/* Mean attainment over three seeds reaches the target. */
static bool true_pass(const struct truth *t, enum pd_mode m, int prefill, double rate)
{
    double sum = 0;

    for (int i = 0; i < 3; i++)
        sum += true_attainment(t, m, prefill, rate, 10 * test_seed() + (uint64_t)i);
    return sum / 3 >= t->k.target;
}

static double true_highest(const struct truth *t, enum pd_mode m, int prefill)
{
    double pass = 0, fail = 0, rate = 1;

    for (int i = 0; i < 24 && !(pass && fail && fail < pass * 1.02); i++) {
        if (true_pass(t, m, prefill, rate))
            pass = rate;
        else
            fail = rate;
        rate = pass && fail ? sqrt(pass * fail) : pass ? 2 * pass : fail / 2;
    }
    return pass;
}

static double true_goodput(const struct truth *t, enum pd_mode m)
{
    double best = 0;

    if (m != PD_SPLIT)
        return true_highest(t, m, 0);
    for (int n = 1; n < t->devices; n++)
        best = fmax(best, true_highest(t, m, n));
    return best;
}

/* ---- what llmctl load would measure on the idle device ---- */

static void idle(const struct truth *t, double slow, int n, int n_in, int n_out,
                 double *ret_ttft, double *ret_tpot)
{
    struct treq v[8];
    int order[8];
    struct true_engine e;

    for (int i = 0; i < n; i++) {
        v[i] = (struct treq){.first_ms = -1, .n_in = n_in, .n_out = n_out};
        order[i] = i;
    }
    engine_init(&e, SCHED_CHUNKED, &t->d, slow, 99);
    engine_run(&e, v, order, n, false, false);
    engine_done(&e);
    *ret_ttft = v[0].first_ms;
    *ret_tpot = n_out > 1 ? (v[0].last_ms - v[0].first_ms) / (n_out - 1) : 0;
}

/* On so many of the devices. */
static struct pd_world measured_on(const struct truth *t, int devices)
{
    struct pd_world w = {.devices = t->devices,
                         .step_tok = STEP_TOK,
                         .max_seqs = MAX_SEQS,
                         .prefill_run = PREFILL_RUN,
                         .handoff_ms = t->handoff_ms,
                         .handoff_tok_ms = t->handoff_tok_ms};
    double slow = true_slow(t, devices), mean = 0, shorter, longer, one, eight, none;

    for (int i = 0; i < t->k.n_sample; i++)
        mean += (double)t->k.sample[i][0] / t->k.n_sample;
    mean = fmax(mean, 64);
    idle(t, slow, 1, (int)mean / 4, 1, &shorter, &none);
    idle(t, slow, 1, (int)mean, 1, &longer, &none);
    idle(t, slow, 1, 8, 24, &none, &one);
    idle(t, slow, 8, 8, 24, &none, &eight);
    w.prefill_tok_ms = fmax(0, (longer - shorter) / ((int)mean - (int)mean / 4));
    w.prefill_ms = fmax(0, shorter - w.prefill_tok_ms * (int)mean / 4);
    w.decode_seq_ms = fmax(0, (eight - one) / 7);
    w.decode_ms = fmax(0, one - w.decode_seq_ms);
    return w;
}

static struct pd_world measured(const struct truth *t)
{
    return measured_on(t, t->devices);
}

/* ---- the planted workloads ---- */

enum { N_SAMPLE = 64 };

static void lengths(int sample[N_SAMPLE][2], int in_lo, int in_hi, int out_lo, int out_hi)
{
    uint64_t rng = 17;

    for (int i = 0; i < N_SAMPLE; i++) {
        sample[i][0] = in_lo + (int)(test_rand(&rng) % (uint64_t)(in_hi - in_lo + 1));
        sample[i][1] = out_lo + (int)(test_rand(&rng) % (uint64_t)(out_hi - out_lo + 1));
    }
}

static const struct planted {
    const char *name;
    struct device d;
    int in[2], out[2], devices;
    double ttft_ms, tpot_ms;
    enum pd_mode best;
} planted[] = {
    {"short prompts, long answers",
     {8, 0.15, 8, 0.12, 0.02, 1},
     {16, 64},
     {80, 160},
     4,
     300,
     16,
     PD_CHUNKED},
    {"long prompts, tight tpot",
     {8, 0.15, 8, 0.12, 0.02, 1},
     {1500, 3000},
     {60, 120},
     4,
     4000,
     17,
     PD_SPLIT},
    {"mixed lengths, slack tpot",
     {4, 0.15, 4, 1.6, 0.02, 1},
     {200, 1000},
     {20, 80},
     2,
     250,
     600,
     PD_COLOCATED},
};

static struct truth truth_of(const struct planted *p, int sample[N_SAMPLE][2])
{
    lengths(sample, p->in[0], p->in[1], p->out[0], p->out[1]);
    return (struct truth){.d = p->d,
                          .devices = p->devices,
                          .handoff_ms = 3,
                          .handoff_tok_ms = 0.004,
                          .k = {.sample = (const int(*)[2])sample,
                                .n_sample = N_SAMPLE,
                                .ttft_ms = p->ttft_ms,
                                .tpot_ms = p->tpot_ms,
                                .target = 0.9,
                                .cv2 = 1,
                                .seed = 4711}};
}

static const struct pd_row *row_of(const struct pd_advice *a, enum pd_mode m)
{
    for (int i = 0; i < PD_MODES; i++)
        if (a->row[i].mode == m)
            return &a->row[i];
    return NULL;
}

/* In the truth the planted mode leads by 10 % at least; the advice, which knows only what
 * an idle device shows, puts it first, and no prediction is off by more than 25 %. */
static void test_names_the_planted_one(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(planted) / sizeof(planted[0]); i++) {
        int sample[N_SAMPLE][2];
        struct truth t = truth_of(&planted[i], sample);
        struct pd_world w = measured(&t);
        struct pd_advice a;
        double g[PD_MODES];

        pd_advise(&w, &t.k, NULL, 0, &a);
        for (int m = 0; m < PD_MODES; m++)
            g[m] = true_goodput(&t, (enum pd_mode)m);
        for (int m = 0; m < PD_MODES; m++) {
            double said = row_of(&a, (enum pd_mode)m)->goodput;

            printf("# %s: %s truth %.3f, predicted %.3f\n", planted[i].name,
                   pd_mode_name((enum pd_mode)m), g[m], said);
            assert_true(m == (int)planted[i].best || g[planted[i].best] > 1.1 * g[m]);
            assert_true(fabs(said - g[m]) <= 0.25 * g[m]);
        }
        assert_int_equal(a.row[0].mode, planted[i].best);
        assert_false(a.row[0].measured);
        assert_false(a.sure); /* nothing was measured */
        assert_non_null(strstr(a.text, "(predicted)"));
        assert_non_null(strstr(a.text, "Not certain"));
    }
}

/* ---- what was measured counts ---- */

static void test_measured_goes_before_predicted(void **state)
{
    int sample[N_SAMPLE][2];
    struct truth t = truth_of(&planted[0], sample);
    struct pd_world w = measured(&t);
    struct pd_advice bare, a;
    struct pd_run runs[3] = {{PD_CHUNKED, 4, 99}, {PD_CHUNKED, 7, 0}, {PD_SPLIT, 9, 0}};
    double chunked, colocated;

    (void)state;
    pd_advise(&w, &t.k, NULL, 0, &bare);
    chunked = row_of(&bare, PD_CHUNKED)->goodput;
    colocated = row_of(&bare, PD_COLOCATED)->goodput;

    /* the newest run of a mode counts; the predicted ones are corrected by its error */
    runs[1].goodput = chunked * 0.8;
    pd_advise(&w, &t.k, runs, 2, &a);
    assert_true(row_of(&a, PD_CHUNKED)->measured);
    assert_int_equal(row_of(&a, PD_CHUNKED)->run, 7);
    assert_true(fabs(row_of(&a, PD_CHUNKED)->error - 0.25) < 1e-9);
    assert_true(fabs(a.spread - 0.25) < 1e-9);
    assert_true(fabs(row_of(&a, PD_COLOCATED)->goodput - 0.8 * colocated) < 1e-9);
    assert_true(row_of(&a, PD_COLOCATED)->predicted == colocated);
    assert_int_equal(a.row[0].mode, PD_CHUNKED);
    assert_true(a.sure); /* it leads by more than the error */
    assert_non_null(strstr(a.text, "(measured)"));

    /* of two alike the measured one is named, and what is to be measured is said */
    t.k.ttft_ms = t.k.tpot_ms = 1e9; /* whatever comes is good in all modes */
    runs[0].goodput = 1e5;
    pd_advise(&w, &t.k, runs, 1, &a);
    assert_int_equal(a.row[0].mode, PD_CHUNKED);
    assert_true(a.row[0].measured && !a.sure);
    assert_non_null(strstr(a.text, "measure colocated with"));
    t = truth_of(&planted[0], sample);

    /* a measured split that is better than all is named, whatever was predicted */
    runs[2].goodput = chunked * 1.5;
    pd_advise(&w, &t.k, runs, 3, &a);
    assert_int_equal(a.row[0].mode, PD_SPLIT);
    assert_true(a.row[0].measured && a.sure);
}

static void test_what_cannot_be(void **state)
{
    int sample[N_SAMPLE][2];
    struct truth t = truth_of(&planted[1], sample);
    struct pd_world w = measured(&t);
    struct pd_advice a;

    (void)state;
    w.devices = 1;
    pd_advise(&w, &t.k, NULL, 0, &a);
    assert_false(row_of(&a, PD_SPLIT)->possible);
    assert_non_null(strstr(row_of(&a, PD_SPLIT)->why, "two devices"));
    assert_int_not_equal(a.row[0].mode, PD_SPLIT);
    t.k.tpot_ms = 1; /* below one decode step */
    pd_advise(&w, &t.k, NULL, 0, &a);
    assert_true(a.row[0].goodput == 0);
    assert_non_null(strstr(a.text, "No mode meets"));
}

/* The mixed step over the pure one, and a handoff that costs more than it saves. */
static void test_handoff_and_interference(void **state)
{
    int sample[N_SAMPLE][2];
    struct truth t = truth_of(&planted[1], sample);
    struct pd_world w = measured(&t);
    struct pd_guess fast, slow, mixed;

    (void)state;
    pd_predict(&w, &t.k, PD_SPLIT, &fast);
    w.handoff_ms = 1500; /* spread over 60 to 120 tokens: more than the target leaves */
    pd_predict(&w, &t.k, PD_SPLIT, &slow);
    assert_true(fast.goodput > 0 && slow.goodput < fast.goodput / 2);
    assert_in_range(fast.prefill_devices, 1, t.devices - 1);
    pd_predict(&w, &t.k, PD_CHUNKED, &mixed);
    assert_true(mixed.step_over_decode > 1.1 && fabs(fast.step_over_decode - 1) < 1e-9);
}

/* Half of the devices take 1.4 times as long, not twice: a run on half of them says so,
 * and split is predicted as it is, not as the poorer thing that it would be else. */
static void test_scaling_is_measured(void **state)
{
    int sample[N_SAMPLE][2];
    struct truth t = truth_of(&planted[1], sample);
    struct pd_world w, half;
    struct pd_guess blind, seeing;
    double truth;

    (void)state;
    t.d.scale = 0.5;
    t.devices = 2;
    t.k.tpot_ms = 25;
    w = measured(&t);
    half = measured_on(&t, 1);
    pd_predict(&w, &t.k, PD_SPLIT, &blind);
    w.prefill_scale = pd_scale(w.prefill_tok_ms, half.prefill_tok_ms, 2);
    w.decode_scale =
        pd_scale(w.decode_ms + w.decode_seq_ms, half.decode_ms + half.decode_seq_ms, 2);
    assert_true(fabs(w.prefill_scale - 0.5) < 0.1 && fabs(w.decode_scale - 0.5) < 0.1);
    pd_predict(&w, &t.k, PD_SPLIT, &seeing);
    truth = true_goodput(&t, PD_SPLIT);
    printf("# split: truth %.3f, predicted %.3f, without the scaling %.3f\n", truth,
           seeing.goodput, blind.goodput);
    assert_true(fabs(seeing.goodput - truth) <= 0.25 * truth);
    assert_true(fabs(seeing.goodput - truth) < 0.5 * fabs(blind.goodput - truth));
    assert_true(pd_scale(0, 1, 2) == 0 && pd_scale(1, 4, 2) == 1 &&
                pd_scale(2, 1, 2) > 0);
}

static double between(uint64_t *rng, double lo, double hi)
{
    return lo + (hi - lo) * (double)(test_rand(rng) % 10000) / 10000;
}

/* Costs, lengths and targets by chance. */
static struct truth random_truth(uint64_t *rng, int sample[N_SAMPLE][2])
{
    double step = between(rng, 2, 15);
    int in = (int)between(rng, 20, 1500), out = (int)between(rng, 10, 100);
    struct planted p = {
        .d = {step, between(rng, 0.03, 0.3), step, between(rng, 0.05, 1), 0.02},
        .in = {in / 2 + 1, in * 3 / 2 + 1},
        .out = {out / 2 + 1, out * 3 / 2 + 1},
        .devices = 2};

    p.d.scale = between(rng, 0.5, 1);
    p.ttft_ms = between(rng, 2, 8) * (step + p.d.prefill_tok_ms * p.in[1]);
    p.tpot_ms = between(rng, 2, 6) * (step + p.d.decode_seq_ms);
    return truth_of(&p, sample);
}

/* Whatever the workload is: who measures what the advice asks for until it is certain
 * gets a mode of 95 % of the best one's goodput; and so does, nearly always, who does
 * not. */
static void test_random_workloads(void **state)
{
    enum { WORKLOADS = 6 };
    uint64_t rng = 2024;
    int bare_good = 0, n_measured = 0;

    (void)state;
    for (int i = 0; i < WORKLOADS; i++) {
        int sample[N_SAMPLE][2], n_runs = 0;
        struct truth t = random_truth(&rng, sample);
        struct pd_world w = measured(&t), half = measured_on(&t, 1);
        struct pd_run runs[PD_MODES];
        struct pd_advice a;
        double g[PD_MODES], best = 0;

        w.prefill_scale = pd_scale(w.prefill_tok_ms, half.prefill_tok_ms, 2);
        w.decode_scale = pd_scale(w.decode_ms + w.decode_seq_ms,
                                  half.decode_ms + half.decode_seq_ms, 2);
        for (int m = 0; m < PD_MODES; m++) {
            g[m] = true_goodput(&t, (enum pd_mode)m);
            best = fmax(best, g[m]);
        }
        pd_advise(&w, &t.k, NULL, 0, &a);
        double bare = g[a.row[0].mode] / best;
        for (; !a.sure && a.row[0].goodput > 0 && n_runs < PD_MODES;
             pd_advise(&w, &t.k, runs, n_runs, &a)) {
            const struct pd_row *r = a.row[0].measured ? &a.row[1] : &a.row[0];
            runs[n_runs] = (struct pd_run){r->mode, n_runs + 1, g[r->mode]};
            n_runs++;
        }
        printf("# truth: colocated %.3f, chunked %.3f, split %.3f; bare pick %.0f %%, "
               "after %d "
               "runs %s, %.0f %%\n",
               g[0], g[1], g[2], 100 * bare, n_runs, pd_mode_name(a.row[0].mode),
               100 * g[a.row[0].mode] / best);
        assert_true(best > 0 && g[a.row[0].mode] >= 0.95 * best);
        bare_good += bare >= 0.95;
        n_measured += n_runs;
    }
    printf("# %d of %d without a run; %d runs in all\n", bare_good, WORKLOADS,
           n_measured);
    assert_true(bare_good >= WORKLOADS * 2 / 3);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_names_the_planted_one),
    cmocka_unit_test(test_scaling_is_measured),
    cmocka_unit_test(test_random_workloads),
    cmocka_unit_test(test_measured_goes_before_predicted),
    cmocka_unit_test(test_what_cannot_be),
    cmocka_unit_test(test_handoff_and_interference),
};
TEST_MAIN("pdadvise", tests)
