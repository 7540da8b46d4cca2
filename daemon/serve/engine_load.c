/* daemon/serve/engine_load.c - opens the model, sizes everything, starts the executor.
 *
 * Order: model (facts), vocabulary (end-of-generation ids only), sizes, executor. Model
 * and vocabulary are closed again: what the engine needs later is copied. Where experts
 * may move the model stays open: what moves is read from its files. */
#include "daemon/serve/engine_load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/mem.h"
#include "base/spin.h"
#include "daemon/serve/cpuplan.h"
#include "daemon/serve/engine_experts.h"
#include "daemon/serve/engine_fit.h"
#include "daemon/serve/engine_tiers.h"
#include "daemon/serve/executor.h"
#include "daemon/serve/model.h"
#include "daemon/serve/ranks.h"
#include "daemon/serve/tokenizer.h"
#include "topo/layout.h"

enum {
    /* A second step in flight would hide the scheduler's work (13 % at batch 8 with the
     * demo model), but a client that leaves would cost one more step. */
    EXEC_DEPTH = 1
};

/* ---- progress ---- */

struct progress {
    struct wire_conn *conn;
    double told;
};

static bool on_progress(void *arg, double done)
{
    struct progress *p = arg;
    struct wire_loading l = {done};
    enum wire_kind kind;
    const void *payload;
    size_t n;

    if (done < p->told + 0.02 && done < 1)
        return true;
    p->told = done;
    if (wire_send(p->conn, WIRE_LOADING, &(struct wire_part){&l, sizeof(l)}, 1, NULL) < 0)
        return false;
    return wire_fill(p->conn, NULL) == 0 &&
           wire_next(p->conn, &kind, &payload, &n, NULL) == 0;
}

/* ---- parts ---- */

static int load_eog(const struct model *m, struct engine_loaded *l, struct err *e)
{
    struct tokenizer *t;
    size_t n;

    if (tokenizer_open(m, &t, e) < 0)
        return -1;
    const int32_t *eog = tokenizer_eog(t, &n);
    l->eog = xcalloc(n + 1, sizeof(*l->eog));
    l->n_eog = (int)n;
    if (n)
        memcpy(l->eog, eog, n * sizeof(*eog));
    tokenizer_free(t);
    return 0;
}

static int max_rows(const struct engine_cfg *cfg)
{
    return cfg->step_tok > cfg->max_seqs ? cfg->step_tok : cfg->max_seqs;
}

/* Positions of a KV block; more than one rank's where cp ranks share them. */
static int block_tok(const struct engine_cfg *cfg)
{
    struct forward_part p = {0};

    if (cfg->layout.tp)
        forward_part_of(&cfg->layout, &p);
    return forward_block_tok(&p);
}

static void fill_sched(const struct engine_cfg *cfg, const struct engine_fit *fit,
                       struct engine_loaded *l)
{
    l->sched = (struct sched_cfg){
        .mode = cfg->mode,
        .step_tok = cfg->step_tok,
        .max_seqs = cfg->max_seqs,
        .max_outs = max_rows(cfg),
        .max_waiting = cfg->max_waiting,
        .max_ctx = fit->n_ctx,
        .depth = EXEC_DEPTH,
        .prefill_run = cfg->prefill_run,
        .order = cfg->order,
        .refuse_late = cfg->refuse_late,
        .kv = {.block_tok = block_tok(cfg),
               .n_groups = 1,
               .shards = cfg->layout.adp,
               .group = {{KV_FULL, fit->n_blocks, 0}},
               .reuse = cfg->reuse},
    };
    memcpy(l->sched.kv.secret, cfg->secret, sizeof(cfg->secret));
    sched_step_caps(&l->sched, &l->caps);
}

static void fill_ready(const struct model_info *i, struct engine_loaded *l)
{
    static const char *const families[] = {
#define X(id, hf, gguf) hf,
        MODEL_FAMILY_MAP(X)
#undef X
    };
    struct wire_ready *r = &l->ready;

    r->n_ctx = l->sched.max_ctx;
    r->n_vocab = i->n_vocab;
    r->n_blocks = l->sched.kv.group[0].n_blocks;
    r->block_tok = l->sched.kv.block_tok;
    r->n_params = i->n_params;
    r->file_bytes = i->file_bytes;
    snprintf(r->main_type, sizeof(r->main_type), "%s", i->main_type);
    snprintf(r->format, sizeof(r->format), "%s", i->format);
    snprintf(r->name, sizeof(r->name), "%s", i->name);
    snprintf(r->family, sizeof(r->family), "%s", families[i->family]);
}

/* Of a collective; 0 = as documented. A test does not wait so long. */
static int64_t comm_timeout_us(void)
{
    const char *ms = fault_setting("LLMRACK_COMM_TIMEOUT_MS");

    return ms ? 1000 * atoll(ms) : 0;
}

static int start_ranks(const struct engine_cfg *cfg, struct model *m,
                       struct wire_conn *conn, struct engine_loaded *l, struct err *e)
{
    static const enum dtype kv_types[] = {DT_COUNT, DT_F16, DT_BF16};
    struct progress p = {conn, 0};
    int n_ranks = cfg->layout.tp ? layout_ranks(&cfg->layout) : 1, rc;
    struct cpuplan cpus;
    struct backend_mem mem;

    if (cpuplan_make(cfg->cpus ? cfg->cpus : "", cfg->threads, n_ranks, &cpus, e) < 0)
        return -1;
    spin_allow(cpus.fits); /* until the daemon says who else is there */
    const struct ranks_cfg x = {
        .backend = {.name = cfg->backend, .spin = true, .isa = cfg->isa},
        .cpus = &cpus,
        .forward = {.max_rows =
                        cfg->step_tok > cfg->max_seqs ? cfg->step_tok : cfg->max_seqs,
                    .max_items = cfg->max_seqs,
                    .max_ctx = l->sched.max_ctx,
                    .max_outs = cfg->max_seqs < ENGINE_HEAD_ROWS ? cfg->max_seqs
                                                                 : ENGINE_HEAD_ROWS,
                    .kv_type = kv_types[cfg->kv_type],
                    .n_blocks = l->sched.kv.group[0].n_blocks,
                    .n_host = l->sched.kv.n_host,
                    .max_moves = l->sched.kv.max_moves,
                    .part = {.chunks = cfg->chunks,
                             .as_tp = cfg->as_tp,
                             .as_cp = cfg->as_cp,
                             .experts = cfg->moe}},
        .caps = l->caps,
        .depth = EXEC_DEPTH,
        .layout = cfg->layout,
        .comm_timeout_us = comm_timeout_us(),
        .emulate = cfg->emulate,
        .experts = cfg->experts,
        .trace = cfg->trace,
        .pairs = cfg->ranks,
    };
    l->ready.n_threads = cpus.n_threads;
    rc = ranks_new(m, &x, on_progress, &p, &l->x, e);
    cpuplan_done(&cpus);
    if (rc < 0)
        return -1;
    ranks_mem(l->x, &mem);
    l->ready.n_ranks = ranks_count(l->x);
    if (cfg->layout.tp)
        layout_print(&cfg->layout, l->ready.layout, sizeof(l->ready.layout));
    l->ready.weight_bytes = mem.weight_bytes;
    l->ready.kv_bytes = mem.kv_bytes;
    l->ready.scratch_bytes = mem.scratch_bytes + mem.other_bytes;
    snprintf(l->ready.isa, sizeof(l->ready.isa), "%s", ranks_isa(l->x));
    snprintf(l->ready.kv_type, sizeof(l->ready.kv_type), "%s",
             dtype_name(ranks_kv_type(l->x)));
    return 0;
}

static int start_executor(const struct engine_cfg *cfg, struct model *m,
                          struct wire_conn *conn, struct engine_loaded *l, struct err *e)
{
    if (!cfg->null_exec)
        return start_ranks(cfg, m, conn, l, e);
    snprintf(l->ready.isa, sizeof(l->ready.isa), "none");
    snprintf(l->ready.kv_type, sizeof(l->ready.kv_type), "none");
    return nullexec_new(&l->caps, model_info(m)->n_vocab, &l->x, e);
}

static int load_model(const struct engine_cfg *cfg, struct model *m,
                      struct wire_conn *conn, struct engine_loaded *l, struct err *e)
{
    const struct model_info *i = model_info(m);
    struct engine_fit fit;
    const struct engine_fit_ask ask = {
        .ctx = cfg->ctx,
        .model_ctx = i->n_ctx,
        .kv_mib = cfg->kv_mib,
        .max_seqs = cfg->max_seqs,
        .block_tok = block_tok(cfg),
        .shards = cfg->layout.adp,
        .block_bytes =
            forward_kv_block_bytes(i, DT_F16) * (size_t)(block_tok(cfg) / KV_BLOCK_TOK),
        .ram_bytes = engine_ram_bytes(),
    };

    if (!ask.block_bytes)
        return err_set(e, ERR_UNSUPPORTED, "no KV layout for heads of %d", i->head_dim);
    if (load_eog(m, l, e) < 0 || engine_fit(&ask, &fit, e) < 0)
        return -1;
    fill_sched(cfg, &fit, l);
    if (engine_tiers_fit(cfg, ask.block_bytes, ask.ram_bytes, &l->sched, e) < 0)
        return -1;
    sched_step_caps(&l->sched, &l->caps);
    fill_ready(i, l);
    return start_executor(cfg, m, conn, l, e);
}

/* Experts are loaded from it later. */
static void keep_model(struct engine_loaded *l, struct model *m)
{
    struct wire_ready *r = &l->ready;
    struct engine_experts_facts f;

    engine_experts_facts(l->x, m, &f);
    r->expert_layers = f.n_layer;
    r->experts = f.n_expert;
    r->expert_ranks = f.n_rank;
    r->expert_slots = f.n_slot;
    r->expert_bytes = f.expert_bytes;
    l->model = f.n_layer ? m : NULL;
}

int engine_load(const struct engine_cfg *cfg, struct wire_conn *conn,
                struct engine_loaded *ret, struct err *e)
{
    struct engine_loaded l = {0};
    struct model *m = NULL;
    int64_t began = clock_now_us(clock_real());

    if (!cfg->model || !cfg->model[0])
        return err_set(e, ERR_INVALID, "no model was named");
    if (model_open(cfg->model, &m, e) < 0)
        return -1;
    int rc = load_model(cfg, m, conn, &l, e);
    if (rc == 0 && cfg->moe.spare && !cfg->null_exec)
        keep_model(&l, m);
    if (!l.model)
        model_free(m);
    if (rc < 0) {
        engine_loaded_done(&l);
        return -1;
    }
    l.ready.load_us = clock_now_us(clock_real()) - began;
    *ret = l;
    return 0;
}

void engine_loaded_done(struct engine_loaded *l)
{
    executor_free(l->x);
    model_free(l->model);
    free(l->eog);
    *l = (struct engine_loaded){0};
}
