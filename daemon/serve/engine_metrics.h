/* daemon/serve/engine_metrics.h - the rows of metrics.def that the engine writes.
 *
 * Inside the engine only; its scheduler thread. */
#ifndef SERVE_ENGINE_METRICS_H
#define SERVE_ENGINE_METRICS_H

#include "daemon/serve/handoff.h"
#include "daemon/serve/sched.h"

struct metric_page;

struct engine_metrics {
    struct metric_page *page; /* borrowed */
    uint64_t block_bytes;     /* of a KV block, over all ranks */
    struct sched_stats last;  /* what the counters hold already */
};

/* A request was handed to the scheduler. */
void engine_metrics_add(struct engine_metrics *m, const struct gen_params *p, int n_ctx);
/* A step of n_toks tokens ended. */
void engine_metrics_step(struct engine_metrics *m, const struct step_done *d, int n_toks);
/* Something happened to a request. */
void engine_metrics_out(struct engine_metrics *m, const struct sched_out *o);
/* A handoff is whole. */
void engine_metrics_handoff(struct metric_page *page, int64_t copy_us, int64_t wait_us);
/* Counters and gauges of handoffs; was: at the last call; held: sched_stats. */
void engine_metrics_handoffs(struct metric_page *page, const struct handoff_stats *now,
                             const struct handoff_stats *was, int held);
/* Counters and gauges from the scheduler's figures. */
void engine_metrics_sched(struct engine_metrics *m, const struct sched *s);

#endif
