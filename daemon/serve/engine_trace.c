/* daemon/serve/engine_trace.c - steps, their items, requests. */
#include "daemon/serve/engine_trace.h"

#include "daemon/serve/sched.h"
#include "daemon/serve/step.h"
#include "daemon/serve/tracepage.h"

static void put(struct engine_trace *t, enum trace_kind kind, int64_t start_us,
                int64_t us, uint64_t request, uint64_t ref, int a, int b)
{
    tracepage_put(t->page,
                  &(struct trace_event){kind, -1, start_us, us, request, ref, a, b});
}

void engine_trace_submitted(struct engine_trace *t, const struct sched *s,
                            const struct step *st, uint64_t ticket, int64_t now_us)
{
    const struct step_item *it = step_items(st);
    struct sched_stats n;

    t->wanted[ticket % ENGINE_TRACE_STEPS] = tracepage_wants(t->page, st);
    if (!t->wanted[ticket % ENGINE_TRACE_STEPS])
        return;
    for (int i = 0; i < st->n_items; i++)
        if (tracepage_wants_request(t->page, it[i].request))
            put(t, TRACE_ITEM, now_us, 0, it[i].request, st->number, it[i].first_pos,
                it[i].n_tok);
    sched_stats(s, &n);
    put(t, TRACE_LOAD, now_us, 0, 0, st->number, n.running, n.waiting);
}

void engine_trace_done(struct engine_trace *t, const struct step_done *d, int n_toks)
{
    if (t->wanted[d->ticket % ENGINE_TRACE_STEPS])
        put(t, TRACE_STEP, d->start_us, d->end_us - d->start_us, 0, d->number,
            d->n_results, n_toks);
    t->wanted[d->ticket % ENGINE_TRACE_STEPS] = false;
}

void engine_trace_out(struct engine_trace *t, const struct sched_out *o, int64_t now_us)
{
    int64_t at;

    if (o->kind != SCHED_OUT_FINISH || !tracepage_wants_request(t->page, o->id))
        return;
    at = now_us - o->decode_us - o->prefill_us - o->queue_us;
    put(t, TRACE_QUEUE, at, o->queue_us, o->id, 0, (int)o->reason, 0);
    at += o->queue_us;
    put(t, TRACE_PREFILL, at, o->prefill_us, o->id, 0, (int)o->reason, o->n_prompt);
    put(t, TRACE_DECODE, at + o->prefill_us, o->decode_us, o->id, 0, (int)o->reason,
        o->n_out);
}
