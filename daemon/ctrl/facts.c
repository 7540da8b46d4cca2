/* daemon/ctrl/facts.c - figures of an engine, as the rest of the daemon has them. */
#include "daemon/ctrl/facts.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/metric.h"
#include "daemon/ctrl/router.h"
#include "daemon/serve/metrics.h"
#include "daemon/serve/wire.h"
#include "state/store.h"

void facts_take(const struct wire_ready *r, struct instance_status *st)
{
    st->n_ctx = r->n_ctx;
    st->n_blocks = r->n_blocks;
    st->block_tok = r->block_tok;
    st->n_threads = r->n_threads;
    st->weight_bytes = r->weight_bytes;
    st->kv_bytes = r->kv_bytes;
    st->scratch_bytes = r->scratch_bytes;
    st->load_us = r->load_us;
    st->n_ranks = r->n_ranks;
    memcpy(st->layout, r->layout, sizeof(st->layout));
    memcpy(st->isa, r->isa, sizeof(st->isa));
    memcpy(st->kv_type, r->kv_type, sizeof(st->kv_type));
    st->error[0] = '\0';
    st->retry_at_us = 0;
}

void facts_finish(const struct wire_finish *w, struct gen_finish *ret, struct err *e)
{
    bool known = w->code > ERR_OK && w->code < ERR_COUNT;

    *ret = (struct gen_finish){
        .reason = FINISH_ERROR,
        .stop_id = w->stop_id,
        .n_prompt = w->n_prompt,
        .n_cached = w->n_cached,
        .n_out = w->n_out,
        .n_preempted = w->n_preempted,
        .queue_us = w->queue_us,
        .prefill_us = w->prefill_us,
        .decode_us = w->decode_us,
        .retry_us = w->retry_us > 0 ? w->retry_us : 0,
    };
    if (w->reason >= 0 && w->reason <= FINISH_RETURNED && w->reason != FINISH_ERROR) {
        ret->reason = (enum finish_reason)w->reason;
        return;
    }
    err_set(e, known ? (enum err_code)w->code : ERR_INTERNAL, "%s",
            w->msg[0] ? w->msg : "the engine gave no reason");
    ret->error = e;
}

void facts_clear(struct metric_page *p)
{
    static const int rows[] = {M_RUNNING,         M_WAITING,
                               M_WAITING_BY,      M_KV_USAGE,
                               M_KV_BLOCKS_FREE,  M_KV_BLOCKS_CACHED,
                               M_KV_BLOCKS_USED,  M_HANDOFF_EXPORTS,
                               M_HANDOFF_HELD,    M_HANDOFF_EXPORT_BLOCKS,
                               M_HANDOFF_IMPORTS, M_HANDOFF_QUARANTINED};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        metric_set(p, rows[i], 0, 0);
    metric_set(p, M_WAITING_BY, 1, 0);
    for (int state = 1; state < 4; state++)
        metric_set(p, M_HANDOFF_IMPORTS, state, 0);
}

int facts_store(struct store *s, const struct served *f, const char *instance,
                const char *mode, const char *options, struct err *e)
{
    struct model_row m = {.n_params = f->n_params, .file_bytes = f->file_bytes};
    struct instance_row i = {.applied_ms = clock_wall_ms()};

    m.added_ms = i.applied_ms;
    memcpy(m.name, f->name, sizeof(m.name));
    memcpy(m.path, f->path, sizeof(m.path));
    memcpy(m.family, f->family, sizeof(m.family));
    memcpy(m.main_type, f->main_type, sizeof(m.main_type));
    memcpy(m.format, f->format, sizeof(m.format));
    snprintf(i.name, sizeof(i.name), "%s", instance);
    memcpy(i.model, f->name, sizeof(i.model));
    snprintf(i.mode, sizeof(i.mode), "%s", mode);
    snprintf(i.options, sizeof(i.options), "%s", options);
    return inventory_put_model(s, &m, e) < 0 ? -1 : inventory_put_instance(s, &i, e);
}
