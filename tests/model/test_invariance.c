/* What a request computes does not depend on how it was scheduled, bit for bit: its
 * logits and its KV are the same alone, in a batch of eight, with step budgets of 16, 64
 * and 512, with whole prompts, preempted and resumed, with its prefix cached, on one
 * thread or two. The real scheduler over the real forward pass, one step at a time. */
#include "daemon/serve/sampler.h"
#include "daemon/serve/sched.h"
#include "tests/model/rig.h"

enum { OURS = 1000, MAX_NEW = 24, MAX_PROMPT = 200, OTHERS = 7 };

struct scene {
    const char *name;
    enum sched_mode mode;
    int budget, threads, others;
    bool reuse, warm;       /* warm: the same prompt was served before */
    bool preempted, cached; /* what must have happened to ours */
};

static const struct scene scenes[] = {
    {"alone", SCHED_CHUNKED, 512, 1, 0, false, false, false, false},
    {"two threads", SCHED_CHUNKED, 512, 2, 0, false, false, false, false},
    {"budget 64", SCHED_CHUNKED, 64, 1, 0, false, false, false, false},
    {"budget 16", SCHED_CHUNKED, 16, 2, 0, false, false, false, false},
    {"batch of 8", SCHED_CHUNKED, 512, 2, OTHERS, false, false, false, false},
    {"batch of 8, budget 64", SCHED_CHUNKED, 64, 1, OTHERS, true, false, false, false},
    {"batch of 8, budget 16", SCHED_CHUNKED, 16, 2, OTHERS, true, false, false, false},
    {"colocated", SCHED_COLOCATED, 512, 2, OTHERS, false, false, false, false},
    {"preempted", SCHED_CHUNKED, 64, 2, OTHERS, false, false, true, false},
    {"preempted, reuse", SCHED_CHUNKED, 64, 1, OTHERS, true, false, true, false},
    {"prefix cached", SCHED_CHUNKED, 512, 1, 0, true, true, false, true},
    {"prefix cached, batch", SCHED_CHUNKED, 64, 2, OTHERS, true, true, false, true},
};

struct shot {
    int n_prompt, n_pos; /* positions that hold KV */
    float *logits; /* [n_prompt + MAX_NEW, n_vocab], zero where nothing was sampled */
    int32_t out[MAX_NEW];
    uint16_t *kv;
    size_t n_kv;
    int n_out, n_preempted, n_cached;
};

struct world {
    struct rig rig;
    struct sched *sched;
    struct step *st;
    struct sampler *sampler;
    struct step_result results[RIG_SEQS];
    struct step_token toks[RIG_SEQS];
    int n_toks;
    struct shot *ours;
    int unfinished;
    int64_t now;
};

/* ---- one step ---- */

/* Does this item sample for our request? Seeds are the requests' ids. */
static bool is_ours(const struct world *w, const struct step_item *it)
{
    return it->sample >= 0 && step_samples(w->st)[it->sample].seed == OURS;
}

static void sink(void *arg, int first, int n, const float *logits)
{
    struct world *w = arg;
    const struct step_item *it = step_items(w->st);

    for (int i = 0; i < n; i++, logits += w->rig.n_vocab) {
        int at = 0; /* the item of output first + i: each has one at most */
        for (int left = first + i; left >= 0; at++)
            left -= it[at].out_from < it[at].n_tok;
        const struct step_item *t = &it[at - 1];
        const struct step_sample *sp = &step_samples(w->st)[t->sample];
        assert_int_equal(sampler_pick(w->sampler, logits, sp,
                                      step_hist(w->st) + sp->hist_off, NULL, -1,
                                      &w->toks[first + i]),
                         0);
        if (!is_ours(w, t))
            continue;
        int pos = t->first_pos + t->n_tok - 1;
        float *row = w->ours->logits + (size_t)pos * (size_t)w->rig.n_vocab;
        memcpy(row, logits, sizeof(float) * (size_t)w->rig.n_vocab);
    }
}

static void keep_kv(struct world *w)
{
    for (int i = 0; i < w->st->n_items; i++) {
        const struct step_item *it = &step_items(w->st)[i];
        if (!is_ours(w, it))
            continue;
        free(w->ours->kv);
        w->ours->n_pos = it->first_pos + it->n_tok;
        w->ours->kv = rig_kv_of(&w->rig, step_blocks(w->st) + it->block_off,
                                w->ours->n_pos, &w->ours->n_kv);
    }
}

static void run_step(struct world *w, uint64_t ticket)
{
    struct err e = {0};
    int at = 0;

    sched_submitted(w->sched, w->now, ticket);
    rig_ok(forward_run(w->rig.f, w->st, sink, w, &e), &e);
    keep_kv(w);
    for (int i = 0; i < w->st->n_items; i++) {
        const struct step_item *it = &step_items(w->st)[i];
        int n = it->out_from < it->n_tok;
        w->results[i] = (struct step_result){it->seq, at, 0, n, 0};
        at += n;
    }
    struct step_done d = {.ticket = ticket,
                          .number = w->st->number,
                          .n_results = w->st->n_items,
                          .n_toks = at,
                          .results = w->results,
                          .toks = w->toks};
    struct sched_event ev = {.kind = SCHED_DONE, .done = &d};
    sched_event(w->sched, w->now += 1000, &ev);
    rig_ok(sched_check(w->sched, &e), &e);
}

static void take_outs(struct world *w)
{
    const struct sched_out *o;
    size_t n = sched_out(w->sched, &o);

    for (size_t i = 0; i < n; i++) {
        assert_int_not_equal(o[i].kind, SCHED_OUT_REFUSE);
        if (o[i].kind == SCHED_OUT_FINISH)
            w->unfinished--;
        if (o[i].id != OURS)
            continue;
        if (o[i].kind == SCHED_OUT_TOKENS) {
            for (int t = 0; t < o[i].n_toks; t++)
                w->ours->out[w->ours->n_out++] = o[i].toks[t].id;
        } else {
            assert_int_equal(o[i].reason, FINISH_LENGTH);
            w->ours->n_preempted = o[i].n_preempted;
            w->ours->n_cached = o[i].n_cached;
        }
    }
}

static void run_all(struct world *w)
{
    for (uint64_t ticket = 1; w->unfinished; ticket++) {
        assert_true(ticket < 5000);
        if (sched_next(w->sched, w->now, w->st))
            run_step(w, ticket);
        take_outs(w);
    }
}

/* ---- requests ---- */

static void add(struct world *w, uint64_t id, const int32_t *prompt, int n, int n_new)
{
    struct gen_params p = {.id = id,
                           .seed = id,
                           .max_tokens = n_new,
                           .temperature = 0.7f,
                           .top_p = 1,
                           .repetition = 1.1f,
                           .n_top = -1,
                           .n_prompt = n,
                           .ignore_eos = true};
    struct sched_event ev = {.kind = SCHED_ADD, .params = &p, .prompt = prompt};

    sched_event(w->sched, w->now += 10, &ev);
    w->unfinished++;
}

static void prompt_of(int32_t *out, int n, int n_vocab, uint64_t seed)
{
    uint64_t rng = seed * 2654435761u + 99;

    for (int i = 0; i < n; i++)
        out[i] = (int32_t)(test_rand(&rng) % (uint64_t)n_vocab);
}

static void play(const char *model, const struct scene *sc, int n_prompt,
                 struct shot *ret)
{
    struct world w = {.ours = ret, .unfinished = 0};
    /* to be preempted: enough for all prompts, too few for all that is generated */
    int n_blocks = sc->preempted ? 48 + n_prompt / KV_BLOCK_TOK : RIG_BLOCKS;
    const struct rig_cfg rc = {model, "cpu", "auto", DT_COUNT, sc->threads};
    const struct sched_cfg cfg = {
        .mode = sc->mode,
        .step_tok = sc->budget,
        .max_seqs = RIG_SEQS,
        .max_outs = RIG_SEQS,
        .max_waiting = 64,
        .max_ctx = 512,
        .depth = 1,
        .prefill_run = 4,
        .kv = {.block_tok = KV_BLOCK_TOK,
               .n_groups = 1,
               .group = {{KV_FULL, n_blocks, 0}},
               .reuse = sc->reuse},
    };
    struct step_caps caps;
    int32_t prompt[MAX_PROMPT], other[MAX_PROMPT];

    assert_true(rig_open(&w.rig, &rc));
    sched_step_caps(&cfg, &caps);
    w.st = step_new(&caps);
    w.sched = sched_new(&cfg);
    w.sampler = sampler_new(w.rig.n_vocab);
    ret->n_prompt = n_prompt;
    ret->logits =
        calloc((size_t)(n_prompt + MAX_NEW) * (size_t)w.rig.n_vocab, sizeof(float));
    prompt_of(prompt, n_prompt, w.rig.n_vocab, test_seed());
    if (sc->warm) {
        add(&w, 1, prompt, n_prompt, 2);
        run_all(&w);
    }
    for (int i = 0; i < sc->others; i++) { /* older than ours: ours is preempted first */
        int n = 40 + 13 * i;
        prompt_of(other, n, w.rig.n_vocab, 500 + (uint64_t)i);
        add(&w, 100 + (uint64_t)i, other, n, MAX_NEW + 20);
    }
    add(&w, OURS, prompt, n_prompt, MAX_NEW);
    run_all(&w);
    sampler_free(w.sampler);
    sched_free(w.sched);
    free(w.st);
    rig_close(&w.rig);
}

static void compare(const struct scene *sc, const struct shot *want,
                    const struct shot *got, int n_vocab)
{
    size_t n = (size_t)(want->n_prompt + MAX_NEW) * (size_t)n_vocab;

    assert_int_equal(got->n_out, MAX_NEW);
    if (memcmp(want->out, got->out, sizeof(want->out)))
        fail_msg("%s: other tokens", sc->name);
    if (memcmp(want->logits, got->logits, n * sizeof(float)))
        fail_msg("%s: logits differ in some bit", sc->name);
    assert_int_equal(got->n_pos, want->n_prompt + MAX_NEW - 1);
    assert_int_equal(got->n_kv, want->n_kv);
    if (memcmp(want->kv, got->kv, want->n_kv * sizeof(uint16_t)))
        fail_msg("%s: KV differs in some bit", sc->name);
    if (sc->preempted && !got->n_preempted)
        fail_msg("%s: was not preempted", sc->name);
    if (sc->cached && !got->n_cached)
        fail_msg("%s: nothing was cached", sc->name);
}

static void all_scenes(const char *model, int n_vocab, int n_prompt)
{
    struct shot want = {0};

    for (size_t i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++) {
        struct shot got = {0};
        play(model, &scenes[i], n_prompt, &got);
        if (i == 0)
            want = got;
        compare(&scenes[i], &want, &got, n_vocab);
        if (i) {
            free(got.logits);
            free(got.kv);
        }
    }
    free(want.logits);
    free(want.kv);
}

static void test_tiny(void **state)
{
    (void)state;
    static const char *const families[] = {"llama", "qwen3", "gpt_oss", "deepseek_v3"};

    for (size_t f = 0; f < sizeof(families) / sizeof(families[0]); f++) {
        char dir[256];
        snprintf(dir, sizeof(dir), "%s", tiny_model(families[f], test_seed()));
        all_scenes(dir, TINY_VOCAB, MAX_PROMPT);
        tiny_remove(dir);
    }
}

static void test_demo(void **state)
{
    (void)state;

    all_scenes(test_demo_model(), 49152, 90);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_tiny),
    cmocka_unit_test(test_demo),
};

TEST_MAIN("invariance", tests)
