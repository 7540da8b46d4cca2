/* tests/unit/lands.h - random worlds for the scheduler (slackworld.h): a land is a
 * machine, a configuration and a mix of requests, drawn from a seed; a world is what
 * comes of it with another seed. Of lands there are chunked and colocated ones, by age
 * and by slack, engines for whole requests, of a prefill pool and of a decode pool, few
 * and many places and blocks; of requests up to three kinds, each with targets that are
 * tight, or wide, or missing. Header only. */
#ifndef TESTS_LANDS_H
#define TESTS_LANDS_H

#include <math.h>

#include "tests/unit/slackworld.h"

enum { KINDS_MAX = 3, LAND_REQS = 150 };
enum land_role { LAND_BOTH, LAND_PREFILL, LAND_DECODE };

struct land_kind {
    double part; /* of the requests, by weight */
    int prompt[2], out[2];
    int64_t ttft_us, tpot_us;
};

struct land {
    uint64_t rng;
    struct sched_cfg cfg;
    enum land_role role;
    double base, tok, seq; /* the law of its steps */
    int n_kinds, burst;
    struct land_kind kind[KINDS_MAX];
    double gap_us; /* mean time between two */
    double held;   /* load by those that nobody refuses; 1 = all it can serve */
};

static inline int land_int(struct land *l, int n)
{
    return (int)(test_rand(&l->rng) % (uint64_t)n);
}

/* Even in the logarithm. */
static inline double land_log(struct land *l, double a, double b)
{
    return a * exp(log(b / a) * land_int(l, 10001) / 10000);
}

static inline double land_alone_us(const struct land *l, int prompt)
{
    int steps = (prompt + l->cfg.step_tok - 1) / l->cfg.step_tok;

    return steps * l->base + prompt * l->tok;
}

static inline void land_kind_draw(struct land *l, struct land_kind *k)
{
    int most = PROMPT_MAX, seqs = l->cfg.max_seqs;

    k->part = 0.2 + 0.8 * land_int(l, 1000) / 1000;
    k->prompt[0] = (int)land_log(l, 10, 900);
    k->prompt[1] = 1 + (int)(k->prompt[0] * land_log(l, 1, 4));
    k->prompt[1] = k->prompt[1] < most ? k->prompt[1] : most;
    k->out[0] = 1 + land_int(l, 20);
    k->out[1] = k->out[0] + 1 + land_int(l, OUT_MAX - k->out[0]);
    double alone = land_alone_us(l, k->prompt[1]);
    double step = l->base + l->seq * (1 + land_int(l, seqs));
    double full = step + l->tok * l->cfg.step_tok;
    k->ttft_us = land_int(l, 5) ? (int64_t)(alone * land_log(l, 1.3, 15)) : 0;
    if (land_int(l, 4))
        k->tpot_us = (int64_t)(land_int(l, 2) ? step * land_log(l, 1.05, 3)
                                              : full * land_log(l, 0.9, 3));
    if (l->role == LAND_PREFILL)
        k->tpot_us = 0; /* its answers come from elsewhere */
}

static inline void land_draw(struct land *l, uint64_t seed)
{
    static const int budget[] = {32, 64, 128, 256, 512}, seqs[] = {2, 4, 8, 16, 32};
    static struct world w;
    double busy = 0, held = 0, parts = 0;

    *l = (struct land){.rng = seed * 7919 + 13};
    for (int i = 0; i < 5; i++)
        (void)land_int(l, 2);
    init(&w, land_int(l, 2) ? SCHED_BY_SLACK : SCHED_BY_AGE, false, 1);
    l->cfg = w.cfg;
    l->role = land_int(l, 5) ? LAND_BOTH : land_int(l, 2) ? LAND_PREFILL : LAND_DECODE;
    l->cfg.mode = land_int(l, 2) ? SCHED_COLOCATED : SCHED_CHUNKED;
    l->cfg.step_tok = budget[land_int(l, 5)];
    l->cfg.max_seqs = seqs[land_int(l, 5)];
    l->cfg.prefill_run = 1 + land_int(l, 4);
    l->cfg.kv.group[0].n_blocks = land_int(l, 4)   ? 135 + land_int(l, 200)
                                  : land_int(l, 2) ? 135 + land_int(l, 1000)
                                                   : 4000;
    l->base = land_log(l, 500, 6000);
    l->tok = land_log(l, 15, 200);
    l->seq = land_log(l, 15, 500);
    l->burst = land_int(l, 2) ? 1 : 1 + land_int(l, 12);
    l->n_kinds = 1 + land_int(l, KINDS_MAX);
    int together = l->cfg.max_seqs < 8 ? l->cfg.max_seqs : 8;
    for (int i = 0; i < l->n_kinds; i++) {
        struct land_kind *k = &l->kind[i];
        land_kind_draw(l, k);
        double prompt = land_alone_us(l, (k->prompt[0] + k->prompt[1]) / 2);
        double out = (k->out[0] + k->out[1]) / 2.0 * (l->seq + l->base / together);
        if (l->role == LAND_DECODE)
            prompt /= 4; /* of so many it computes the prompt */
        if (l->role == LAND_PREFILL)
            out = 0;
        parts += k->part;
        busy += k->part * (prompt + out);
        held += k->part * (!k->ttft_us              ? prompt + out
                           : l->role == LAND_DECODE ? 0.75 * out
                                                    : 0);
    }
    if (land_int(l, 3) == 0) { /* room for the longest and not much more: they preempt */
        int most = 0;
        for (int i = 0; i < l->n_kinds; i++)
            most = l->kind[i].prompt[1] > most ? l->kind[i].prompt[1] : most;
        l->cfg.kv.block_tok = 4;
        l->cfg.kv.group[0].n_blocks = (most + OUT_MAX) / 4 + 2 + land_int(l, 60);
    }
    l->gap_us = busy / parts / land_log(l, 0.5, 2.2);
    l->held = held / parts / l->gap_us;
}

/* A world of it. */
static inline void land_fill(const struct land *l, struct world *w, bool refuse,
                             uint64_t seed)
{
    double parts = 0;
    int64_t at = 0;
    int more = 0;

    init(w, l->cfg.order, refuse, seed);
    w->cfg = l->cfg;
    w->cfg.refuse_late = refuse;
    w->base = l->base, w->tok = l->tok, w->seq = l->seq;
    w->light = true;
    for (int i = 0; i < l->n_kinds; i++)
        parts += l->kind[i].part;
    for (int i = 0; i < LAND_REQS; i++) {
        if (--more <= 0) {
            more = 1 + rnd(w, 2 * l->burst - 1);
            at += (int64_t)(2 * l->gap_us * more * rnd(w, 10001) / 10000);
        }
        double x = parts * rnd(w, 10000) / 10000;
        int k = 0;
        while (k < l->n_kinds - 1 && (x -= l->kind[k].part) > 0)
            k++;
        const struct land_kind *kind = &l->kind[k];
        int prompt = kind->prompt[0] + rnd(w, kind->prompt[1] - kind->prompt[0]);
        int out = kind->out[0] + rnd(w, kind->out[1] - kind->out[0]);
        struct r *r = want(w, at, prompt, out, kind->ttft_us, kind->tpot_us);
        if (l->role == LAND_PREFILL)
            r->p.handoff = GEN_EXPORT;
        else if (l->role == LAND_DECODE && rnd(w, 4))
            r->p.handoff = GEN_IMPORT;
    }
}

#endif
