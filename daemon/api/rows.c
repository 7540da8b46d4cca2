/* daemon/api/rows.c - one row of each kind as a JSON object. Names here are what `llmctl
 * -j` prints, so they are kept: members are added, not renamed. */
#include "daemon/api/rows.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/logring.h"
#include "daemon/api/operation.h"
#include "daemon/ctrl/alarm.h"
#include "daemon/ctrl/router.h"
#include "state/store.h"

/* A time that may not have come: 0 is null. */
static void put_time(struct jw *w, const char *key, int64_t ms)
{
    if (ms)
        jw_kint(w, key, ms);
    else
        jw_knull(w, key);
}

void rows_operation(struct jw *w, const void *row)
{
    const struct operation *op = row;

    jw_obj(w);
    jw_kstr(w, "id", op->id);
    jw_kstr(w, "kind", op->kind);
    jw_kstr(w, "subject", op->subject);
    jw_kstr(w, "state", operation_state_name(op->state));
    jw_kstr(w, "message", op->message);
    jw_kstr(w, "actor", op->actor);
    jw_kint(w, "started_ms", op->started_ms);
    put_time(w, "ended_ms", op->ended_ms);
    jw_obj_end(w);
}

void rows_journal(struct jw *w, const void *row)
{
    const struct journal_row *r = row;

    jw_obj(w);
    jw_kint(w, "id", r->id);
    jw_kint(w, "at_ms", r->at_ms);
    jw_kstr(w, "actor", r->actor);
    jw_kstr(w, "origin", r->origin);
    jw_kstr(w, "what", r->what);
    jw_kstr(w, "subject", r->subject);
    jw_kstr(w, "result", r->result);
    jw_kstr(w, "detail", r->detail);
    jw_kint(w, "revision", r->revision);
    jw_kstr(w, "hash", r->hash);
    jw_obj_end(w);
}

void rows_alarm(struct jw *w, const void *row)
{
    const struct alarm_status *a = row;

    jw_obj(w);
    jw_kstr(w, "id", a->id);
    jw_kstr(w, "severity", alarm_severity_name(a->severity));
    jw_kstr(w, "text", a->text);
    jw_kbool(w, "active", !a->ended_ms);
    jw_kint(w, "since_ms", a->since_ms);
    put_time(w, "ended_ms", a->ended_ms);
    jw_obj_end(w);
}

void rows_log(struct jw *w, const void *row)
{
    const struct logring_line *l = row;

    jw_obj(w);
    jw_kint(w, "seq", (int64_t)l->seq);
    jw_kint(w, "at_ms", l->at_ms);
    jw_kstr(w, "level", log_level_name(l->level));
    jw_kstr(w, "text", l->text);
    jw_obj_end(w);
}

static double since_s(int64_t us)
{
    return (double)(clock_now_us(clock_real()) - us) / 1e6;
}

void rows_instance(struct jw *w, const void *row)
{
    const struct instance_status *s = row;

    jw_obj(w);
    jw_kstr(w, "name", s->name);
    jw_kstr(w, "model", s->model);
    jw_kstr(w, "state", instance_state_name(s->state));
    jw_kint(w, "generation", s->generation);
    jw_kint(w, "live", s->live);
    jw_kint(w, "outstanding_tokens", s->load);
    jw_knum(w, "state_s", since_s(s->since_us));
    jw_knum(w, "loaded", s->load_done);
    jw_kstr(w, "error", s->error[0] ? s->error : NULL);
    if (s->state == INSTANCE_BACKOFF)
        jw_knum(w, "retry_in_s", -since_s(s->retry_at_us));
    jw_kint(w, "pid", s->pid);
    jw_kint(w, "restarts", s->restarts);
    jw_kstr(w, "mode", s->mode);
    jw_kstr(w, "isa", s->isa);
    jw_kint(w, "threads", s->n_threads);
    jw_kstr(w, "cpus", s->cpus);
    jw_kstr(w, "layout", s->layout);
    jw_kstr(w, "layout_why", s->layout_why[0] ? s->layout_why : NULL);
    jw_kint(w, "ranks", s->n_ranks);
    jw_kint(w, "ctx", s->n_ctx);
    jw_knum(w, "load_ms", (double)s->load_us / 1e3);
    jw_kint(w, "running", s->running);
    jw_kint(w, "waiting", s->waiting);
    jw_kstr(w, "kv_type", s->kv_type);
    jw_kint(w, "kv_block_tokens", s->block_tok);
    jw_kint(w, "kv_total", s->n_blocks);
    jw_kint(w, "kv_used", s->kv_used);
    jw_kint(w, "kv_cached", s->kv_cached);
    jw_kint(w, "kv_bytes", (int64_t)s->kv_bytes);
    jw_kint(w, "weight_bytes", (int64_t)s->weight_bytes);
    jw_kint(w, "scratch_bytes", (int64_t)s->scratch_bytes);
    jw_obj_end(w);
}
