/* daemon/serve/ranks.c - the rank thread: load, then steps from a queue until it ends.
 *
 * The scheduler thread copies a step into a slot and pushes the slot; the rank thread
 * resolves references to tokens of the steps before it, runs forward, samples, and pushes
 * the slot on the queue of completions, whose descriptor the scheduler polls. Slots are
 * used in turn; there are enough of them that the results a step may refer to are still
 * there while it runs: a step refers to tickets that were in flight when it was
 * submitted, itself in flight at most depth - 1 steps behind the newest.
 *
 * Sampling many rows is spread over a team of its own that sleeps between steps: rows are
 * independent, so the split changes no choice.
 *
 * Lifecycle: ranks_new starts the thread and waits for its first word on the completion
 * queue (loaded, or why not); free pushes the end marker and joins. */
#include "daemon/serve/ranks.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/queue.h"
#include "base/team.h"
#include "daemon/serve/exec_slot.h"
#include "daemon/serve/executor.h"
#include "daemon/serve/model.h"
#include "daemon/serve/sampler.h"

static const int64_t IDLE_WAIT_US = 3600ll * 1000 * 1000;

/* Work of one row in units of a greedy choice; below TEAM_WORK one thread does it. */
enum { WORK_GREEDY = 1, WORK_FULL = 8, TEAM_WORK = 16 };

/* What is to become of one output row. */
struct out_row {
    const struct step_item *item;
    int32_t score; /* the token to score, or -1: sample */
    int32_t tok;   /* index in the slot's tokens */
};

struct ranks {
    struct executor x;
    struct ranks_cfg cfg;
    int *cpus; /* owned copy of cfg.backend.cpus */
    int n_vocab;
    struct queue *todo, *done;
    struct exec_slot *slots;
    int n_slots, in_flight; /* in_flight: scheduler thread */
    uint64_t tickets;
    pthread_t thread;
    bool started;
    struct exec_slot end; /* its address on todo ends the thread */

    /* during ranks_new */
    struct model *m;
    forward_progress_fn progress;
    void *arg;
    struct err load_err;
    bool loaded;

    /* the rank thread's */
    struct backend *b;
    struct forward *f;
    struct team *team;
    struct sampler **samplers; /* one a member */
    int n_samplers;
    struct exec_slot *now; /* being run */
    struct out_row *outs;  /* [caps.outs] of it */
    int n_outs;
    _Atomic bool sample_failed;

    /* fixed once loaded */
    struct backend_mem mem;
    char isa[16];
};

/* ---- references ---- */

static struct exec_slot *ranks_slot(struct ranks *r, uint64_t ticket)
{
    return &r->slots[ticket % (uint64_t)r->n_slots];
}

/* Token `index` that sequence seq accepted in a ticket before this one; -1 when it
 * accepted fewer. */
static int32_t ranks_resolve(struct ranks *r, const struct step_ref *ref)
{
    const struct exec_slot *s = ranks_slot(r, ref->ticket);

    if (s->done.ticket != ref->ticket || s == r->now)
        return -1;
    for (int32_t i = 0; i < s->done.n_results; i++) {
        const struct step_result *res = &s->results[i];
        if (res->seq == ref->seq && ref->index < res->n_accepted)
            return s->toks[res->tok_off + res->n_scored + ref->index].id;
    }
    return -1;
}

static void ranks_resolve_all(struct ranks *r, struct step *st)
{
    const struct step_ref *refs = step_refs(st);

    for (int32_t i = 0; i < st->n_refs; i++)
        step_toks(st)[refs[i].at] = ranks_resolve(r, &refs[i]);
}

static bool item_is_whole(const struct step *st, const struct step_item *it)
{
    const int32_t *toks = step_toks(st) + it->tok_off;

    for (int32_t t = 0; t < it->n_tok; t++)
        if (toks[t] < 0)
            return false;
    return true;
}

/* ---- one step ---- */

static void ranks_add_outs(struct ranks *r, const struct step_item *it,
                           const struct step_result *res)
{
    const int32_t *toks = step_toks(r->now->st) + it->tok_off;

    for (int32_t row = it->out_from; row < it->n_tok; row++) {
        bool last = row == it->n_tok - 1;
        struct out_row *o = &r->outs[r->n_outs++];
        o->item = it;
        o->score = !last ? toks[row + 1] : it->sample >= 0 ? -1 : it->next;
        o->tok = res->tok_off + row - it->out_from;
    }
}

/* Keep in the step only items whose tokens are all known; those that wait for a token
 * that was never accepted get an empty result. Lists the outputs of the rest. */
static void ranks_plan(struct ranks *r)
{
    struct exec_slot *s = r->now;
    struct step_item *items = step_items(s->st);
    int32_t kept = 0;

    ranks_resolve_all(r, s->st);
    exec_slot_lay_out(s);
    r->n_outs = 0;
    for (int32_t i = 0; i < s->st->n_items; i++) {
        if (!item_is_whole(s->st, &items[i])) {
            s->results[i].n_scored = s->results[i].n_accepted = 0;
            continue;
        }
        items[kept] = items[i];
        ranks_add_outs(r, &items[kept], &s->results[i]);
        kept++;
    }
    s->st->n_items = kept;
}

struct sampling {
    struct ranks *r;
    int first, n;
    const float *logits;
};

static int ranks_sample_row(struct ranks *r, struct sampler *sm, const struct out_row *o,
                            const float *logits)
{
    const struct step *st = r->now->st;
    struct step_token *t = &r->now->toks[o->tok];

    if (o->score >= 0)
        return sampler_score(sm, logits, o->score, o->item->n_top, t);
    const struct step_sample *sp = &step_samples(st)[o->item->sample];
    return sampler_pick(sm, logits, sp, step_hist(st) + sp->hist_off,
                        step_biases(st) + sp->bias_off, o->item->n_top, t);
}

static void ranks_sample_member(void *arg, int member, int n_members)
{
    const struct sampling *p = arg;
    struct ranks *r = p->r;

    for (int i = member; i < p->n; i += n_members) {
        const float *row = p->logits + (size_t)i * (size_t)r->n_vocab;
        const struct out_row *o = &r->outs[p->first + i];
        if (ranks_sample_row(r, r->samplers[member], o, row) < 0)
            r->sample_failed = true;
    }
}

static int ranks_work(const struct ranks *r, int first, int n)
{
    const struct step_sample *samples = step_samples(r->now->st);
    int work = 0;

    for (int i = first; i < first + n; i++) {
        const struct out_row *o = &r->outs[i];
        bool greedy = o->score < 0 && o->item->n_top < 0 &&
                      samples[o->item->sample].temperature == 0;
        work += greedy ? WORK_GREEDY : WORK_FULL;
    }
    return work;
}

static void ranks_sink(void *arg, int first, int n, const float *logits)
{
    struct ranks *r = arg;
    struct sampling p = {r, first, n, logits};

    if (r->team && n > 1 && ranks_work(r, first, n) >= TEAM_WORK)
        team_run(r->team, ranks_sample_member, &p);
    else
        ranks_sample_member(&p, 0, 1);
}

static void ranks_run(struct ranks *r, struct exec_slot *s)
{
    s->done.start_us = clock_now_us(clock_real());
    r->now = s;
    r->sample_failed = false;
    ranks_plan(r);
    if (forward_run(r->f, s->st, ranks_sink, r, &s->why) < 0)
        exec_slot_fail(s);
    else if (r->sample_failed) {
        err_set(&s->why, ERR_INTERNAL, "the model gave no usable logits");
        exec_slot_fail(s);
    }
    s->done.end_us = clock_now_us(clock_real());
}

/* ---- the thread ---- */

static int ranks_load(struct ranks *r, struct err *e)
{
    const struct backend_cfg *c = &r->cfg.backend;

    if (backend_open(c, &r->b, e) < 0)
        return -1;
    if (r->cfg.forward.kv_type == DT_COUNT)
        r->cfg.forward.kv_type = backend_kv_dtype(r->b);
    if (forward_new(r->b, r->m, &r->cfg.forward, r->progress, r->arg, &r->f, e) < 0)
        return -1;
    if (c->n_threads > 1 && team_new(c->n_threads, c->cpus, false, &r->team, e) < 0)
        return -1;
    r->n_samplers = r->team ? team_size(r->team) : 1;
    r->samplers = xcalloc((size_t)r->n_samplers, sizeof(*r->samplers));
    for (int i = 0; i < r->n_samplers; i++)
        r->samplers[i] = sampler_new(r->n_vocab);
    r->outs = xcalloc((size_t)r->cfg.caps.outs, sizeof(*r->outs));
    backend_mem_used(r->b, &r->mem);
    strncpy(r->isa, backend_isa(r->b), sizeof(r->isa) - 1);
    return 0;
}

static void ranks_unload(struct ranks *r)
{
    for (int i = 0; i < r->n_samplers; i++)
        sampler_free(r->samplers[i]);
    free(r->samplers);
    free(r->outs);
    team_free(r->team);
    forward_free(r->f);
    backend_close(r->b);
}

static void *ranks_main(void *arg)
{
    struct ranks *r = arg;

    r->loaded = ranks_load(r, &r->load_err) == 0;
    queue_push(r->done, &r->end);
    while (r->loaded) {
        struct exec_slot *s = queue_pop_wait(r->todo, IDLE_WAIT_US);
        if (s == &r->end)
            break;
        if (!s)
            continue;
        ranks_run(r, s);
        queue_push(r->done, s);
    }
    ranks_unload(r);
    return NULL;
}

/* ---- the scheduler's side ---- */

static int ranks_submit(struct executor *x, const struct step *st, uint64_t *ret_ticket,
                        struct err *e)
{
    struct ranks *r = (struct ranks *)x;

    if (r->in_flight == r->x.depth)
        return err_set(e, ERR_INTERNAL, "%d steps are in flight already", r->in_flight);
    uint64_t ticket = ++r->tickets;
    struct exec_slot *s = ranks_slot(r, ticket);
    exec_slot_fill(s, st, ticket);
    r->in_flight++;
    queue_push(r->todo, s);
    *ret_ticket = ticket;
    return 0;
}

static bool ranks_poll(struct executor *x, struct step_done *ret)
{
    struct ranks *r = (struct ranks *)x;
    struct exec_slot *s = queue_pop(r->done);

    if (!s)
        return false;
    r->in_flight--;
    *ret = s->done;
    return true;
}

static void ranks_free(struct executor *x)
{
    struct ranks *r = (struct ranks *)x;

    if (r->started) {
        queue_push(r->todo, &r->end);
        pthread_join(r->thread, NULL);
    }
    for (int i = 0; r->slots && i < r->n_slots; i++)
        exec_slot_done(&r->slots[i]);
    free(r->slots);
    queue_free(r->todo);
    queue_free(r->done);
    free(r->cpus);
    free(r);
}

static const struct executor_ops ranks_ops = {ranks_submit, ranks_poll, ranks_free};

static int ranks_start(struct ranks *r, struct err *e)
{
    if (pthread_create(&r->thread, NULL, ranks_main, r) != 0)
        return err_errno(e, ERR_NOMEM, "cannot start the rank thread");
    r->started = true;
    pthread_setname_np(r->thread, "rank0");
    while (!queue_pop_wait(r->done, IDLE_WAIT_US))
        continue;
    if (r->loaded)
        return 0;
    *e = r->load_err;
    return -1;
}

int ranks_new(struct model *m, const struct ranks_cfg *cfg, forward_progress_fn progress,
              void *arg, struct executor **ret, struct err *e)
{
    struct ranks *r = xcalloc(1, sizeof(*r));
    size_t n_cpus = cfg->backend.cpus ? (size_t)cfg->backend.n_threads : 0;

    assert(cfg->depth >= 1 && cfg->backend.n_threads >= 1);
    r->x.ops = &ranks_ops;
    r->x.depth = cfg->depth;
    r->cfg = *cfg;
    r->n_vocab = model_info(m)->n_vocab;
    r->m = m;
    r->progress = progress;
    r->arg = arg;
    if (n_cpus) {
        r->cpus = xcalloc(n_cpus, sizeof(int));
        memcpy(r->cpus, cfg->backend.cpus, n_cpus * sizeof(int));
        r->cfg.backend.cpus = r->cpus;
    }
    r->cfg.forward.max_copies = cfg->caps.copies;
    forward_caps(model_info(m), &r->cfg.forward, &r->cfg.backend.caps);
    r->n_slots = 2 * cfg->depth + 2;
    r->slots = xcalloc((size_t)r->n_slots, sizeof(*r->slots));
    for (int i = 0; i < r->n_slots; i++)
        if (exec_slot_init(&r->slots[i], &cfg->caps, e) < 0)
            goto fail;
    if (queue_new((size_t)r->n_slots + 1, &r->todo, e) < 0 ||
        queue_new((size_t)r->n_slots + 1, &r->done, e) < 0)
        goto fail;
    r->x.fd = queue_fd(r->done);
    if (ranks_start(r, e) < 0)
        goto fail;
    *ret = &r->x;
    return 0;

fail:
    ranks_free(&r->x);
    return -1;
}

void ranks_mem(const struct executor *x, struct backend_mem *ret)
{
    *ret = ((const struct ranks *)x)->mem;
}

const char *ranks_isa(const struct executor *x) { return ((const struct ranks *)x)->isa; }

enum dtype ranks_kv_type(const struct executor *x)
{
    return ((const struct ranks *)x)->cfg.forward.kv_type;
}
