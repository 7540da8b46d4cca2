/* daemon/serve/engine_trace.h - what the scheduler's thread tells the page of traces.
 *
 * Inside the engine only; its scheduler thread. Nothing is done while no trace is on. */
#ifndef SERVE_ENGINE_TRACE_H
#define SERVE_ENGINE_TRACE_H

#include <stdbool.h>
#include <stdint.h>

struct sched;
struct sched_out;
struct step;
struct step_done;
struct tracepage;

enum { ENGINE_TRACE_STEPS = 8 }; /* over any depth */

struct engine_trace {
    struct tracepage *page;          /* borrowed; NULL */
    bool wanted[ENGINE_TRACE_STEPS]; /* of the last steps, by ticket */
};

/* A step was handed over: its items, and what waits. */
void engine_trace_submitted(struct engine_trace *t, const struct sched *s,
                            const struct step *st, uint64_t ticket, int64_t now_us);
/* It has ended; n_toks: its tokens. */
void engine_trace_done(struct engine_trace *t, const struct step_done *d, int n_toks);
/* A request has ended: where its time went. */
void engine_trace_out(struct engine_trace *t, const struct sched_out *o, int64_t now_us);

#endif
