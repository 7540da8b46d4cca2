/* tests/unit/simworld.h - a world for the scheduler: a device that remembers what was
 * written in which KV slot, and a model whose next token is a hash of the whole history.
 *
 * A slot holds the hash of all tokens up to its position, made from the slot before it as
 * the block table names it. So a wrong block, a stale copy, a position that was skipped
 * or a block that changed hands too early changes the text, and the text is compared with
 * what the history alone gives. Header only: two test files use it. */
#ifndef TESTS_SIMWORLD_H
#define TESTS_SIMWORLD_H

#include "base/err.h"
#include "base/mem.h"
#include "daemon/serve/sched.h"
#include "tests/test.h"

enum { SIM_VOCAB = 50, SIM_EOS = 49, SIM_DEPTH = 4, SIM_MAX_ACCEPT = 4 };

static inline uint64_t sim_mix(uint64_t h, uint64_t x)
{
    h ^= x + 0x9E3779B97F4A7C15u + (h << 6) + (h >> 2);
    h *= 0xBF58476D1CE4E5B9u;
    return h ^ h >> 29;
}

static inline int32_t sim_token(uint64_t h, uint64_t seed, int choice, int out_pos)
{
    uint64_t x = sim_mix(sim_mix(sim_mix(h, seed), (uint64_t)choice), (uint64_t)out_pos);
    return (int32_t)((x >> 20) % SIM_VOCAB);
}

struct sim_slot {
    uint64_t h, before;
    int32_t pos;
};

struct sim_done {
    uint64_t ticket;
    bool failed;
    int n_results, n_toks;
    struct step_result *results;
    struct step_token *toks;
};

/* The device. */
struct sim_exec {
    struct step_caps caps;
    int block_tok, n_blocks, max_outs;
    struct sim_slot *slot;
    struct sim_slot *host, *disk;   /* of the tiers below; NULL */
    struct kv_job job[KVTIER_JOBS]; /* under way */
    int n_jobs;
    int *writer; /* per block: item of this step + 1 */
    uint64_t ticket;
    struct step *flight[SIM_DEPTH];
    uint64_t flight_ticket[SIM_DEPTH];
    int n_flight;
    struct sim_done past[SIM_DEPTH + 1]; /* results that a later step may refer to */
    uint64_t rng;
    int odd_accept; /* of 100 items: how many accept 0 or several */
    struct err error;
};

static inline void sim_exec_init(struct sim_exec *x, const struct sched_cfg *cfg,
                                 uint64_t rng)
{
    *x = (struct sim_exec){.rng = rng};
    sched_step_caps(cfg, &x->caps);
    x->block_tok = cfg->kv.block_tok;
    x->n_blocks = cfg->kv.group[0].n_blocks;
    x->max_outs = cfg->max_outs;
    x->slot = xcalloc((size_t)x->n_blocks * (size_t)x->block_tok, sizeof(*x->slot));
    x->host =
        xcalloc((size_t)cfg->kv.n_host * (size_t)x->block_tok + 1, sizeof(*x->slot));
    x->disk =
        xcalloc((size_t)cfg->kv.n_disk * (size_t)x->block_tok + 1, sizeof(*x->slot));
    x->writer = xcalloc((size_t)x->n_blocks, sizeof(*x->writer));
    for (int i = 0; i < SIM_DEPTH; i++)
        x->flight[i] = step_new(&x->caps);
    for (int i = 0; i <= SIM_DEPTH; i++) {
        x->past[i].results = xcalloc((size_t)x->caps.items, sizeof(struct step_result));
        x->past[i].toks =
            xcalloc((size_t)x->caps.outs + (size_t)x->caps.items * SIM_MAX_ACCEPT,
                    sizeof(struct step_token));
    }
}

static inline void sim_exec_done(struct sim_exec *x)
{
    free(x->slot);
    free(x->host);
    free(x->disk);
    free(x->writer);
    for (int i = 0; i < SIM_DEPTH; i++)
        free(x->flight[i]);
    for (int i = 0; i <= SIM_DEPTH; i++) {
        free(x->past[i].results);
        free(x->past[i].toks);
    }
}

static inline uint64_t sim_submit(struct sim_exec *x, const struct step *st)
{
    struct err e;

    if (step_check(st, st->bytes, &e) < 0)
        fail_msg("%s", e.msg);
    assert_true(x->n_flight < SIM_DEPTH);
    step_copy_to(x->flight[x->n_flight], st);
    x->flight_ticket[x->n_flight++] = ++x->ticket;
    return x->ticket;
}

static inline struct sim_slot *sim_slot_at(struct sim_exec *x, const struct step *st,
                                           const struct step_item *it, int pos)
{
    int b = pos / x->block_tok;

    assert_true(b < it->n_block);
    int32_t id = step_blocks(st)[it->block_off + b];
    assert_true(id >= 0 && id < x->n_blocks);
    return &x->slot[id * x->block_tok + pos % x->block_tok];
}

static inline void sim_block_copy(struct sim_exec *x, struct sim_slot *to, int at,
                                  const struct sim_slot *from, int of)
{
    memcpy(to + at * x->block_tok, from + of * x->block_tok,
           (size_t)x->block_tok * sizeof(*to));
}

/* What a step begins with. */
static inline void sim_moves(struct sim_exec *x, const struct step *st)
{
    for (int i = 0; i < st->n_moves; i++) {
        const struct step_move *m = &step_moves(st)[i];
        if (m->up)
            sim_block_copy(x, x->slot, m->block, x->host, m->slot);
        else
            sim_block_copy(x, x->host, m->slot, x->slot, m->block);
    }
}

/* A job for the disk begins, and one ends: copied when it ends, or not at all. */
static inline bool sim_disk(struct sim_exec *x, struct sched *s, bool begin, bool ok)
{
    struct kvtier *t = sched_tier(s);

    if (begin && x->n_jobs < KVTIER_JOBS && kvtier_job(t, &x->job[x->n_jobs])) {
        x->n_jobs++;
        return true;
    }
    if (begin || !x->n_jobs)
        return false;
    struct kv_job j = x->job[0];
    memmove(x->job, x->job + 1, (size_t)--x->n_jobs * sizeof(j));
    if (ok && j.write)
        sim_block_copy(x, x->disk, j.disk, x->host, j.host);
    else if (ok)
        sim_block_copy(x, x->host, j.host, x->disk, j.disk);
    kvtier_job_done(t, j.id, ok);
    return true;
}

/* No item writes a block that another one of the step reads or writes. */
static inline void sim_check_writers(struct sim_exec *x, const struct step *st)
{
    memset(x->writer, 0, (size_t)x->n_blocks * sizeof(*x->writer));
    for (int i = 0; i < st->n_items; i++) {
        const struct step_item *it = &step_items(st)[i];
        int from = it->first_pos / x->block_tok;
        for (int b = from; b < it->n_block; b++) {
            int32_t id = step_blocks(st)[it->block_off + b];
            assert_int_equal(x->writer[id], 0);
            x->writer[id] = i + 1;
        }
    }
    for (int i = 0; i < st->n_items; i++) {
        const struct step_item *it = &step_items(st)[i];
        for (int b = 0; b < it->n_block; b++) {
            int w = x->writer[step_blocks(st)[it->block_off + b]];
            assert_true(w == 0 || w == i + 1);
        }
    }
}

/* The token that a reference stands for, or -1. */
static inline int32_t sim_resolve(struct sim_exec *x, const struct step *st, int at)
{
    for (int i = 0; i < st->n_refs; i++) {
        const struct step_ref *r = &step_refs(st)[i];
        if (r->at != at)
            continue;
        struct sim_done *d = &x->past[r->ticket % (SIM_DEPTH + 1)];
        assert_int_equal(d->ticket, r->ticket);
        if (d->failed)
            return -1;
        for (int j = 0; j < d->n_results; j++)
            if (d->results[j].seq == r->seq)
                return r->index < d->results[j].n_accepted
                           ? d->toks[d->results[j].tok_off + d->results[j].n_scored +
                                     r->index]
                                 .id
                           : -1;
    }
    fail_msg("a reference to nothing");
    return -1;
}

static inline void sim_out(struct sim_done *d, int32_t id, uint64_t h)
{
    d->toks[d->n_toks++] =
        (struct step_token){.id = id, .logprob = -(float)(h % 1000) / 1000};
}

static inline int sim_accept_count(struct sim_exec *x)
{
    if ((int)(test_rand(&x->rng) % 100) >= x->odd_accept)
        return 1;
    return (int)(test_rand(&x->rng) % (SIM_MAX_ACCEPT + 1));
}

static inline void sim_sample(struct sim_exec *x, const struct step *st,
                              const struct step_item *it, uint64_t h, struct sim_done *d,
                              struct step_result *r)
{
    const struct step_sample *sp = &step_samples(st)[it->sample];

    if (sp->n_hist) {
        uint64_t hh = 1;
        for (int i = 0; i < sp->n_hist; i++)
            hh = sim_mix(hh, (uint64_t)step_hist(st)[sp->hist_off + i]);
        assert_true(hh == h); /* the history is the whole history */
        assert_int_equal(sp->n_hist - sp->n_prompt, sp->out_pos);
    }
    for (int i = 0; i < sp->n_bias; i++)
        assert_int_equal(step_biases(st)[sp->bias_off + i].id, i);
    r->n_accepted = sim_accept_count(x);
    for (int i = 0; i < r->n_accepted; i++) {
        int32_t id = sim_token(h, sp->seed, sp->choice, sp->out_pos + i);
        sim_out(d, id, h);
        h = sim_mix(h, (uint64_t)id);
    }
}

static inline void sim_item(struct sim_exec *x, const struct step *st,
                            const struct step_item *it, struct sim_done *d)
{
    struct step_result *r = &d->results[d->n_results++];
    const int32_t *tok = step_toks(st) + it->tok_off;
    uint64_t h = 1;

    *r = (struct step_result){.seq = it->seq, .tok_off = d->n_toks};
    if (it->first_pos > 0) {
        struct sim_slot *p = sim_slot_at(x, st, it, it->first_pos - 1);
        h = p->h;
        if (p->pos != it->first_pos - 1)
            h = 0; /* seen in the text, unless the item is void */
    }
    for (int i = 1; i < it->first_pos; i++) /* likewise a gap anywhere in its context */
        if (sim_slot_at(x, st, it, i)->before != sim_slot_at(x, st, it, i - 1)->h)
            h = 0;

    for (int i = 0; i < it->n_tok; i++) {
        int32_t id = tok[i];
        if (id == STEP_TOK_REF && (id = sim_resolve(x, st, it->tok_off + i)) < 0)
            return; /* built on a token that was not accepted */
        uint64_t before = h;
        h = sim_mix(h, (uint64_t)id);
        *sim_slot_at(x, st, it, it->first_pos + i) =
            (struct sim_slot){h, before, it->first_pos + i};
        if (i < it->out_from || (i == it->n_tok - 1 && it->sample >= 0))
            continue;
        r->n_scored++;
        sim_out(d, i + 1 < it->n_tok ? tok[i + 1] : it->next, h);
    }
    if (it->sample >= 0)
        sim_sample(x, st, it, h, d, r);
}

/* Run the oldest step in flight. */
static inline void sim_run(struct sim_exec *x, struct step_done *ret)
{
    struct step *st = x->flight[0];
    uint64_t ticket = x->flight_ticket[0];
    struct sim_done *d = &x->past[ticket % (SIM_DEPTH + 1)];

    *d = (struct sim_done){.ticket = ticket, .results = d->results, .toks = d->toks};
    sim_check_writers(x, st);
    sim_moves(x, st);
    for (int i = 0; i < st->n_items; i++)
        sim_item(x, st, &step_items(st)[i], d);
    *ret = (struct step_done){.ticket = ticket,
                              .number = st->number,
                              .n_results = d->n_results,
                              .n_toks = d->n_toks,
                              .results = d->results,
                              .toks = d->toks};
    x->n_flight--;
    for (int i = 0; i < x->n_flight; i++) {
        x->flight[i] = x->flight[i + 1];
        x->flight_ticket[i] = x->flight_ticket[i + 1];
    }
    x->flight[x->n_flight] = st;
}

/* Parameters as a client sends them when it says nothing. */
static inline struct gen_params sim_params(uint64_t id, int n_prompt, int max_tokens)
{
    return (struct gen_params){.id = id,
                               .seed = id,
                               .max_tokens = max_tokens,
                               .temperature = 1,
                               .top_p = 1,
                               .repetition = 1,
                               .n_top = -1,
                               .n_prompt = n_prompt};
}

static inline struct sched_cfg sim_cfg(int block_tok, int n_blocks)
{
    struct sched_cfg c = {.mode = SCHED_CHUNKED,
                          .step_tok = 64,
                          .max_seqs = 8,
                          .max_outs = 16,
                          .max_waiting = 1000,
                          .max_ctx = 1024,
                          .depth = 1,
                          .prefill_run = 2};

    c.kv = (struct kvcache_cfg){.block_tok = block_tok, .n_groups = 1, .reuse = true};
    c.kv.group[0] = (struct kv_group){KV_FULL, n_blocks, 0};
    memset(c.kv.secret, 3, sizeof(c.kv.secret));
    return c;
}

#endif
