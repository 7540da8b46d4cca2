/* daemon/serve/engine_metrics.c - what happened in the engine, onto the shared page.
 *
 * The scheduler counts since its birth while the page outlives an engine, so counters
 * get the difference since the last time. */
#include "daemon/serve/engine_metrics.h"

#include "daemon/serve/metrics.h"

enum { WAIT_CAPACITY, WAIT_DEFERRED }; /* labels of WAITING_BY */
enum { TIER_HOST, TIER_DISK };         /* of KV_TIER_.. */
enum { MOVE_DOWN, MOVE_UP, MOVE_WRITE, MOVE_READ };
enum { SOURCE_COMPUTE, SOURCE_CACHE_HIT }; /* of PROMPT_SOURCE */
enum { SHAPE_ANSWERS, SHAPE_PROMPTS };     /* of SHAPE_.. */

void engine_metrics_add(struct engine_metrics *m, const struct gen_params *p, int n_ctx)
{
    int room = n_ctx - p->n_prompt;
    bool set = p->max_tokens >= 0 && p->max_tokens < room;

    if (!p->n_gen) /* else it was counted where it began */
        metric_observe(m->page, M_REQ_MAX_GEN, set ? p->max_tokens : room);
}

void engine_metrics_step(struct engine_metrics *m, const struct step_done *d, int n_toks)
{
    double s = (double)(d->end_us - d->start_us) / 1e6;

    metric_add(m->page, M_STEPS, 0, 1);
    metric_add(m->page, M_STEP_SECONDS, 0, s);
    metric_observe(m->page, M_STEP_TIME, s);
    metric_observe(m->page, M_ITER_TOK, n_toks);
}

void engine_metrics_out(struct engine_metrics *m, const struct sched_out *o)
{
    if (o->kind != SCHED_OUT_FINISH || o->reason >= FINISH_ERROR)
        return;
    metric_observe(m->page, M_QUEUE_TIME, (double)o->queue_us / 1e6);
    metric_observe(m->page, M_PREFILL_TIME, (double)o->prefill_us / 1e6);
    metric_observe(m->page, M_DECODE_TIME, (double)o->decode_us / 1e6);
    metric_observe(m->page, M_INFER_TIME, (double)(o->prefill_us + o->decode_us) / 1e6);
    metric_observe(m->page, M_REQ_PROMPT, o->n_prompt);
    metric_observe(m->page, M_REQ_GEN, o->n_out);
    metric_observe(m->page, M_REQ_PREFILL_KV, o->n_prompt - o->n_cached);
    metric_observe(m->page, M_REQ_PREEMPTIONS, o->n_preempted);
    for (int i = 0; i < 3; i++) /* bits in order of the labels */
        if (o->altered >> i & 1)
            metric_add(m->page, M_REQ_ALTERED, i, 1);
    if (o->has_slack)
        metric_observe(m->page, M_START_SLACK, (double)o->slack_us / 1e6);
}

void engine_metrics_handoff(struct metric_page *page, int64_t copy_us, int64_t wait_us)
{
    metric_add(page, M_HANDOFFS, 0, 1);
    metric_observe(page, M_HANDOFF_COPY, (double)copy_us / 1e6);
    metric_observe(page, M_HANDOFF_WAIT, (double)wait_us / 1e6);
}

void engine_metrics_handoffs(struct metric_page *page, const struct handoff_stats *now,
                             const struct handoff_stats *was, int held)
{
    const struct {
        int id;
        uint64_t now, was;
    } counters[] = {
        {M_HANDOFF_BYTES, now->bytes, was->bytes},
        {M_HANDOFF_RETRIES, now->retries, was->retries},
        {M_HANDOFF_LOST, now->lost, was->lost},
        {M_HANDOFF_RECOMPUTED, now->recomputed, was->recomputed},
        {M_HANDOFF_LATE, now->late, was->late},
        {M_HANDOFF_QUARANTINES, now->quarantines, was->quarantines},
        {M_HANDOFF_TAKEN_BACK, now->taken_back, was->taken_back},
    };
    const int imports[] = {now->queued, now->waiting, now->pulling, now->closing};

    for (size_t i = 0; i < sizeof(counters) / sizeof(counters[0]); i++)
        if (counters[i].now != counters[i].was)
            metric_add(page, counters[i].id, 0,
                       (double)(counters[i].now - counters[i].was));
    for (int i = 0; i < 4; i++)
        metric_set(page, M_HANDOFF_IMPORTS, i, imports[i]);
    metric_set(page, M_HANDOFF_EXPORTS, 0, now->exports);
    metric_set(page, M_HANDOFF_EXPORT_BLOCKS, 0, now->export_blocks);
    metric_set(page, M_HANDOFF_QUARANTINED, 0, now->quarantined_blocks);
    metric_set(page, M_HANDOFF_HELD, 0, held);
}

static void put_gauges(struct metric_page *page, const struct sched_stats *now)
{
    const struct {
        int id, label;
        double v;
    } gauges[] = {
        {M_RUNNING, 0, now->running},
        {M_WAITING, 0, now->waiting},
        {M_WAITING_BY, WAIT_CAPACITY, now->waiting},
        {M_WAITING_BY, WAIT_DEFERRED, 0},
        {M_KV_USAGE, 0,
         (double)now->kv.n_used / (now->kv.n_blocks ? now->kv.n_blocks : 1)},
        {M_KV_BLOCKS_FREE, 0, now->kv.n_free},
        {M_KV_BLOCKS_CACHED, 0, now->kv.n_cached},
        {M_KV_BLOCKS_USED, 0, now->kv.n_used},
        {M_KV_TIER_BLOCKS, TIER_HOST, now->tier.host_used},
        {M_KV_TIER_BLOCKS, TIER_DISK, now->tier.disk_used},
        {M_KV_TIER_SIZE, TIER_HOST, now->tier.n_host},
        {M_KV_TIER_SIZE, TIER_DISK, now->tier.n_disk},
    };

    for (size_t i = 0; i < sizeof(gauges) / sizeof(gauges[0]); i++)
        metric_set(page, gauges[i].id, gauges[i].label, gauges[i].v);
}

void engine_metrics_sched(struct engine_metrics *m, const struct sched *s)
{
    struct sched_stats now;
    const struct sched_stats *was = &m->last;

    sched_stats(s, &now);
    const struct {
        int id, label;
        uint64_t now, was;
    } counters[] = {
        {M_PROMPT_TOK, 0, now.prompt_tok, was->prompt_tok},
        {M_PROMPT_CACHED, 0, now.cached_tok, was->cached_tok},
        {M_PROMPT_RECOMPUTED, 0, now.recomputed_tok, was->recomputed_tok},
        {M_PROMPT_SOURCE, SOURCE_COMPUTE, now.prompt_tok - now.cached_tok,
         was->prompt_tok - was->cached_tok},
        {M_PROMPT_SOURCE, SOURCE_CACHE_HIT, now.cached_tok, was->cached_tok},
        {M_GEN_TOK, 0, now.gen_tok, was->gen_tok},
        {M_PREEMPTIONS, 0, now.preemptions, was->preemptions},
        {M_PREFIX_QUERIES, 0, now.kv.query_tok, was->kv.query_tok},
        {M_PREFIX_HITS, 0, now.kv.hit_tok, was->kv.hit_tok},
        {M_LATE, 0, now.late, was->late},
        {M_HANDOFF_TOK, 0, now.imported_tok, was->imported_tok},
        {M_KV_TIER_HITS, TIER_HOST, now.tier.host_hit_tok, was->tier.host_hit_tok},
        {M_KV_TIER_HITS, TIER_DISK, now.tier.disk_hit_tok, was->tier.disk_hit_tok},
        {M_KV_TIER_BYTES, MOVE_DOWN, now.tier.down * m->block_bytes,
         was->tier.down * m->block_bytes},
        {M_KV_TIER_BYTES, MOVE_UP, now.tier.up * m->block_bytes,
         was->tier.up * m->block_bytes},
        {M_KV_TIER_BYTES, MOVE_WRITE, now.tier.written * m->block_bytes,
         was->tier.written * m->block_bytes},
        {M_KV_TIER_BYTES, MOVE_READ, now.tier.read * m->block_bytes,
         was->tier.read * m->block_bytes},
        {M_KV_TIER_LOST, 0, now.tier.lost, was->tier.lost},
        {M_KV_TIER_FAILED, 0, now.tier.failed, was->tier.failed},
        {M_REFUSED_LATE, 0, now.refused_late, was->refused_late},
        {M_STEPS_EST, 0, now.est_steps, was->est_steps},
        {M_SHAPE_STEPS, SHAPE_ANSWERS, now.answers.steps, was->answers.steps},
        {M_SHAPE_STEPS, SHAPE_PROMPTS, now.prompts.steps, was->prompts.steps},
        {M_SHAPE_SEQS, SHAPE_ANSWERS, now.answers.seqs, was->answers.seqs},
        {M_SHAPE_SEQS, SHAPE_PROMPTS, now.prompts.seqs, was->prompts.seqs},
        {M_SHAPE_TOK, 0, now.shape_tok, was->shape_tok},
    };
    for (size_t i = 0; i < sizeof(counters) / sizeof(counters[0]); i++)
        if (counters[i].now != counters[i].was)
            metric_add(m->page, counters[i].id, counters[i].label,
                       (double)(counters[i].now - counters[i].was));
    if (now.est_steps != was->est_steps) {
        metric_add(m->page, M_STEPS_EST_SECONDS, 0,
                   (double)(now.est_us - was->est_us) / 1e6);
        metric_add(m->page, M_STEPS_EST_OFF, 0,
                   (double)(now.est_off_us - was->est_off_us) / 1e6);
    }
    metric_add(m->page, M_SHAPE_SECONDS, SHAPE_ANSWERS,
               (double)(now.answers.us - was->answers.us) / 1e6);
    metric_add(m->page, M_SHAPE_SECONDS, SHAPE_PROMPTS,
               (double)(now.prompts.us - was->prompts.us) / 1e6);
    put_gauges(m->page, &now);
    m->last = now;
}
