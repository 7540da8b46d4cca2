/* daemon/serve/exec_slot.c - memory and layout of one step in flight. Results stand in
 * the order of the items, their tokens one after the other. */
#include "daemon/serve/exec_slot.h"

#include <stdlib.h>

#include "base/mem.h"

int exec_slot_init(struct exec_slot *s, const struct step_caps *caps, struct err *e)
{
    *s = (struct exec_slot){0};
    s->st = step_new(caps);
    s->results = try_calloc((size_t)caps->items, sizeof(*s->results));
    s->toks = try_calloc((size_t)caps->outs, sizeof(*s->toks));
    if (s->results && s->toks)
        return 0;
    exec_slot_done(s);
    return err_set(e, ERR_NOMEM, "no memory for the results of %d outputs", caps->outs);
}

void exec_slot_done(struct exec_slot *s)
{
    free(s->st);
    free(s->results);
    free(s->toks);
    *s = (struct exec_slot){0};
}

void exec_slot_fill(struct exec_slot *s, const struct step *st, uint64_t ticket)
{
    step_copy_to(s->st, st);
    s->done = (struct step_done){
        .ticket = ticket, .number = st->number, .results = s->results, .toks = s->toks};
}

void exec_slot_lay_out(struct exec_slot *s)
{
    const struct step_item *items = step_items(s->st);
    int32_t at = 0;

    for (int32_t i = 0; i < s->st->n_items; i++) {
        int32_t outs = items[i].n_tok - items[i].out_from;
        int32_t samples = items[i].sample >= 0;
        s->results[i] = (struct step_result){.seq = items[i].seq,
                                             .tok_off = at,
                                             .n_scored = outs - samples,
                                             .n_accepted = samples};
        at += outs;
    }
    s->done.n_results = s->st->n_items;
    s->done.n_toks = at;
}

void exec_slot_fail(struct exec_slot *s)
{
    s->done.n_results = s->done.n_toks = 0;
    s->done.error = &s->why;
}
