/* daemon/serve/outs.c - what becomes of the logits of a step: scores and sampled tokens.
 *
 * A plan before the step says for each output row which item it is of; the sink takes the
 * logits. Rows are listed group by group, so that a group's own stand together. Sampling
 * many rows is spread over a team that sleeps between steps: rows are
 * independent, so the split changes no choice. */
#include "daemon/serve/outs.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/team.h"
#include "daemon/serve/exec_slot.h"
#include "daemon/serve/sampler.h"

/* Work of one row in units of a greedy choice; below TEAM_WORK one thread does it. */
enum { WORK_GREEDY = 1, WORK_FULL = 8, TEAM_WORK = 16 };

/* What is to become of one output row. */
struct out_row {
    const struct step_item *item;
    int32_t score; /* the token to score, or -1: sample */
    int32_t tok;   /* index in the slot's tokens */
};

struct outs {
    const struct exec_slot *slots; /* borrowed: where references point */
    int n_slots, n_vocab;
    struct team *team;
    struct sampler **samplers; /* one a member */
    int n_samplers;
    struct exec_slot *now; /* being run */
    struct out_row *rows;  /* [caps.outs] of it */
    int n_rows;
    int n_groups, group_blocks;
    bool *kept;           /* [caps.items]: which items of the step were whole */
    int *group_row;       /* [n_groups]: the first row of each */
    pthread_mutex_t turn; /* of the groups, to sample */
    _Atomic bool failed;
};

static void free_threads(struct outs *o)
{
    for (int i = 0; i < o->n_samplers; i++)
        sampler_free(o->samplers[i]);
    free(o->samplers);
    team_free(o->team);
}

int outs_set_threads(struct outs *o, int n, const int *cpus, struct err *e)
{
    struct team *team = NULL;

    if (n > 1 && team_new(n, cpus, false, &team, e) < 0)
        return -1;
    free_threads(o);
    o->team = team;
    o->n_samplers = team ? n : 1;
    o->samplers = xcalloc((size_t)o->n_samplers, sizeof(*o->samplers));
    for (int i = 0; i < o->n_samplers; i++)
        o->samplers[i] = sampler_new(o->n_vocab);
    return 0;
}

int outs_new(const struct outs_cfg *cfg, struct outs **ret, struct err *e)
{
    struct outs *o = xcalloc(1, sizeof(*o));

    o->n_vocab = cfg->n_vocab;
    if (outs_set_threads(o, 1, NULL, e) < 0) {
        free(o);
        return -1;
    }
    o->slots = cfg->slots;
    o->n_slots = cfg->n_slots;
    o->n_groups = cfg->n_groups > 1 ? cfg->n_groups : 1;
    o->group_blocks = cfg->group_blocks;
    o->group_row = xcalloc((size_t)o->n_groups, sizeof(*o->group_row));
    o->kept = xcalloc((size_t)cfg->max_items, sizeof(*o->kept));
    pthread_mutex_init(&o->turn, NULL);
    o->rows = xcalloc((size_t)cfg->max_rows, sizeof(*o->rows));
    *ret = o;
    return 0;
}

void outs_free(struct outs *o)
{
    if (!o)
        return;
    free_threads(o);
    free(o->rows);
    free(o->group_row);
    free(o->kept);
    pthread_mutex_destroy(&o->turn);
    free(o);
}

/* ---- references ---- */

/* Token `index` that sequence seq accepted in a ticket before this one; -1 when it
 * accepted fewer. */
static int32_t resolve(const struct outs *o, const struct step_ref *ref)
{
    const struct exec_slot *s = &o->slots[ref->ticket % (uint64_t)o->n_slots];

    if (s->done.ticket != ref->ticket || s == o->now)
        return -1;
    for (int32_t i = 0; i < s->done.n_results; i++) {
        const struct step_result *res = &s->results[i];
        if (res->seq == ref->seq && ref->index < res->n_accepted)
            return s->toks[res->tok_off + res->n_scored + ref->index].id;
    }
    return -1;
}

static void resolve_all(const struct outs *o, struct step *st)
{
    const struct step_ref *refs = step_refs(st);

    for (int32_t i = 0; i < st->n_refs; i++)
        step_toks(st)[refs[i].at] = resolve(o, &refs[i]);
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

static void add_rows(struct outs *o, const struct step_item *it,
                     const struct step_result *res)
{
    const int32_t *toks = step_toks(o->now->st) + it->tok_off;

    for (int32_t row = it->out_from; row < it->n_tok; row++) {
        bool last = row == it->n_tok - 1;
        struct out_row *to = &o->rows[o->n_rows++];
        to->item = it;
        to->score = !last ? toks[row + 1] : it->sample >= 0 ? -1 : it->next;
        to->tok = res->tok_off + row - it->out_from;
    }
}

static int group_of(const struct outs *o, const struct step *st,
                    const struct step_item *it)
{
    return o->n_groups > 1 ? step_shard(st, it, o->group_blocks) : 0;
}

/* The outputs of the items that are left; results of others have nothing to take. */
static void list_rows(struct outs *o, const struct exec_slot *s)
{
    const struct step_item *items = step_items(s->st);

    o->n_rows = 0;
    for (int g = 0; g < o->n_groups; g++) {
        o->group_row[g] = o->n_rows;
        for (int32_t i = 0, r = 0; i < s->st->n_items; i++, r++) {
            while (!o->kept[r])
                r++;
            if (group_of(o, s->st, &items[i]) == g)
                add_rows(o, &items[i], &s->results[r]);
        }
    }
}

/* Keep in the step only items whose tokens are all known; those that wait for a token
 * that was never accepted get an empty result. Lists the outputs of the rest. */
void outs_plan(struct outs *o, struct exec_slot *s)
{
    struct step_item *items = step_items(s->st);
    int32_t kept = 0;

    o->now = s;
    atomic_store(&o->failed, false);
    resolve_all(o, s->st);
    exec_slot_lay_out(s);
    for (int32_t i = 0; i < s->st->n_items; i++) {
        o->kept[i] = item_is_whole(s->st, &items[i]);
        if (o->kept[i])
            items[kept++] = items[i];
        else
            s->results[i].n_scored = s->results[i].n_accepted = 0;
    }
    s->st->n_items = kept;
    list_rows(o, s);
}

struct sampling {
    struct outs *o;
    int first, n;
    const float *logits;
};

static int sample_row(struct outs *o, struct sampler *sm, const struct out_row *row,
                      const float *logits)
{
    const struct step *st = o->now->st;
    struct step_token *t = &o->now->toks[row->tok];

    if (row->score >= 0)
        return sampler_score(sm, logits, row->score, row->item->n_top, t);
    const struct step_sample *sp = &step_samples(st)[row->item->sample];
    return sampler_pick(sm, logits, sp, step_hist(st) + sp->hist_off,
                        step_biases(st) + sp->bias_off, row->item->n_top, t);
}

static void sample_member(void *arg, int member, int n_members)
{
    const struct sampling *p = arg;
    struct outs *o = p->o;

    for (int i = member; i < p->n; i += n_members) {
        const float *logits = p->logits + (size_t)i * (size_t)o->n_vocab;
        if (sample_row(o, o->samplers[member], &o->rows[p->first + i], logits) < 0)
            atomic_store(&o->failed, true);
    }
}

static int work_of(const struct outs *o, int first, int n)
{
    const struct step_sample *samples = step_samples(o->now->st);
    int work = 0;

    for (int i = first; i < first + n; i++) {
        const struct out_row *row = &o->rows[i];
        bool greedy = row->score < 0 && row->item->n_top < 0 &&
                      samples[row->item->sample].temperature == 0;
        work += greedy ? WORK_GREEDY : WORK_FULL;
    }
    return work;
}

void outs_sink(void *arg, int first, int n, const float *logits)
{
    const struct outs_from *from = arg;
    struct outs *o = from->outs;
    struct sampling p = {o, o->group_row[from->group] + first, n, logits};

    pthread_mutex_lock(&o->turn);
    if (o->team && n > 1 && work_of(o, p.first, n) >= TEAM_WORK)
        team_run(o->team, sample_member, &p);
    else
        sample_member(&p, 0, 1);
    pthread_mutex_unlock(&o->turn);
}

void outs_altered(struct outs *o, const int32_t *how)
{
    struct exec_slot *s = o->now;

    for (int32_t i = 0, r = 0; how && i < s->st->n_items; i++, r++) {
        while (!o->kept[r])
            r++;
        s->results[r].altered |= (uint32_t)how[i];
    }
}

bool outs_failed(const struct outs *o) { return atomic_load(&o->failed); }
