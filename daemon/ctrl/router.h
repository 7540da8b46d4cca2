/* daemon/ctrl/router.h - which engine serves a request; the API's only door downward.
 *
 * HTTP threads submit and cancel; the control thread owns the engines and calls the
 * sinks. Several engines may serve one name (a new one beside the old one that drains):
 * a request goes to the ready one with the fewest tokens outstanding and stays with it.
 * It goes on with another one, from the token where it was, when its engine dies or gives
 * no sign of life (if the instance is configured so) or when it waits in one that drains.
 * Every submitted id gets exactly one finish, whatever happens (also when no engine is
 * left or the daemon drains); the sink must live until then. Snapshots are copies, taken
 * under a short lock, so that a scrape never waits for an engine. */
#ifndef CTRL_ROUTER_H
#define CTRL_ROUTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/serve/sched.h"
#include "daemon/serve/template.h"

struct err;
struct metric_page;
struct router;
struct tokenizer;

/* A model as served: immutable, reference counted. */
struct served {
    char name[128];    /* id in the API */
    char instance[64]; /* whose engine it is */
    char path[4096];   /* as configured; only operators see it */
    const struct tokenizer *tok;
    enum template_family chat;
    int n_ctx, n_vocab;
    int64_t created_s; /* Unix time of the file */
    char family[16], main_type[8], format[16];
    uint64_t n_params, file_bytes;
};

/* Values of an instance that change while its requests run. */
struct served_hot {
    float temperature, top_p; /* of requests that name neither */
    int isolate;              /* enum conf_isolate: who shares prefixes */
    bool recompute;           /* requests outlive their engine; else they fail with it */
    int64_t restart_wait_us;  /* so long they wait for another, or for its restart */
    int64_t
        stall_us; /* of one that computes prompts for others: split_watch; 0 = never */
    bool trial;   /* its output differs from the model's: for administrators */
};

struct gen_finish {
    enum finish_reason reason;
    int32_t stop_id, n_prompt, n_cached, n_out, n_preempted;
    int64_t queue_us, prefill_us, decode_us;
    int64_t retry_us; /* refused as too late for its target: after so long it is not; 0 */
    const struct err *error; /* with FINISH_ERROR: why; code UNAVAIL asks for a retry */
    const char *instance;    /* that had it, borrowed */
};

/* Called on the control thread; must not block. */
struct gen_sink {
    void (*tokens)(void *arg, const struct step_token *toks, int n, bool scored);
    void (*finish)(void *arg, const struct gen_finish *f);
    void *arg;
};

struct gen_submit {
    struct gen_params params; /* id is filled in by router_submit; age_us: until then */
    const int32_t *prompt, *stops;
    const struct step_bias *biases;
    struct gen_sink sink;
    const char *label; /* request id for show requests, copied */
};

/* Borrow the model named (NULL or "" = the only one); router_unref when done. NULL and a
 * sentence (NOTFOUND names what is there, so does INVALID when none is named and there
 * are several; UNAVAIL while it is not known yet). Any thread. */
const struct served *router_model(struct router *r, const char *name, struct err *e);
void router_unref(struct router *r, const struct served *m);
/* The present values of the instance that serves it. Any thread. */
void router_hot(struct router *r, const struct served *m, struct served_hot *ret);
/* Names of all models, borrowed references; returns the count (at most max). */
int router_models(struct router *r, const struct served **ret, int max);

/* n choices of one prompt at once: all or none. BUSY when the queue is full, UNAVAIL when
 * no engine of that model is ready, or another file is served under its name by now. ids
 * out. Any thread. */
int router_submit(struct router *r, const struct served *m, struct gen_submit *subs,
                  int n, uint64_t *ret_ids, struct err *e);
/* Unknown or finished ids are normal. The finish (ABORT) still comes. Any thread. */
void router_cancel(struct router *r, uint64_t id);

/* 0 when a model answers; else -1 and why (loading 40 %, restarting in 2 s, no sign of
 * life ...). An instance in two pools counts once both had an engine that was ready. */
int router_ready(struct router *r, struct err *e);
/* What of the configuration does not answer now, though nobody has put it aside: a
 * sentence for each instance, or pool of one; returns the count (at most max). */
int router_degraded(struct router *r, struct err *ret, int max);
/* Seconds that a refused client should wait. */
int router_retry_after(struct router *r);

#define INSTANCE_STATE_MAP(X)                                                            \
    X(STARTING, "starting")                                                              \
    X(LOADING, "loading")                                                                \
    X(READY, "ready")                                                                    \
    X(SILENT, "not answering") /* shown of one that is ready or draining */              \
    X(DRAINING, "draining")                                                              \
    X(BACKOFF, "waiting to restart")                                                     \
    X(FAILED, "failed")                                                                  \
    X(STOPPED, "stopped")
enum instance_state {
#define X(id, text) INSTANCE_##id,
    INSTANCE_STATE_MAP(X)
#undef X
        INSTANCE_STATE_COUNT
};
const char *instance_state_name(enum instance_state s);

struct instance_status {
    char name[64], model[128], error[512]; /* error: last failure, "" */
    enum instance_state state;
    int generation; /* of its engine: one more with each that the fleet starts */
    int live;       /* requests without a finish */
    int64_t load;   /* tokens that these may still cost */
    double load_done;
    int pid, restarts, n_ctx, n_blocks, block_tok, n_threads, n_ranks;
    uint64_t weight_bytes, kv_bytes, scratch_bytes;
    int64_t since_us, load_us, retry_at_us; /* monotonic */
    char isa[16], kv_type[8], mode[16], layout[64];
    char cpus[64];                            /* that its engine runs on: "0-3,8" */
    char layout_why[160];                     /* of one that the planner chose, else "" */
    int running, waiting, kv_used, kv_cached; /* from the engine's page */
    double kv_queries, kv_hits;               /* tokens looked up and found, likewise */
    struct {
        int blocks, size;
        double hits; /* tokens */
    } kv_tier[2];    /* host memory, disk */
};
/* One a target: an instance whose engine is being replaced has two. */
int router_instances(struct router *r, struct instance_status *ret, int max);

/* One an engine of a pool. */
struct pool_status {
    char name[64], role[16]; /* prefill, decode */
    int generation;
    bool ready;
    int running, waiting;
    int helping, away; /* prompts of others' requests; own ones that are computed there */
    /* KV that waits for the other pool: requests and blocks; of these in quarantine */
    int exports, export_blocks, quarantined;
    int imports;  /* requests whose KV is to come, or whose copy is not back */
    bool stalled; /* it ends no step though it has prompts of others: they are not its own
                   */
    int64_t handoffs, lost, recomputed, retries; /* since it started */
    double bytes;
    double p50_s, p95_s, p99_s; /* of handoffs; NaN without any */
};
int router_pools(struct router *r, struct pool_status *ret, int max);
/* What the pools of an instance brought and cost within the last minute, in seconds of
 * requests: split.h. */
struct pool_window {
    char instance[64];
    int64_t handoffs;
    double removed_s, handoff_s, scheduling_s, queueing_s;
};
int router_pool_windows(struct router *r, struct pool_window *ret, int max);

struct request_status {
    uint64_t id;
    char label[72], model[128], instance[64];
    int n_prompt, n_out, max_tokens;
    int64_t age_us, ttft_us; /* ttft -1 = no token yet */
};
int router_requests(struct router *r, struct request_status *ret, int max);
/* Has a request of this number, or of this id of its client's, been and ended? Of ids the
 * last 256 are known. */
bool router_ended(struct router *r, const char *name);

/* All pages, for sums: the daemon's, those kept by model and instance, and each engine's.
 * Borrowed while the call that got them holds them; router_pages_put gives them back. */
int router_pages_get(struct router *r, struct metric_page **ret, int max);
/* The same by whom they tell of, also given back by router_pages_put. The first is the
 * daemon itself (both names ""), then the models (instance "": what the daemon counts for
 * them), then the instances with what their engines count and those before them counted.
 */
enum { ROUTER_GROUPS = 130, ROUTER_GROUP_PAGES = 16 };
struct page_group {
    char model[128], instance[64];
    struct metric_page *pages[ROUTER_GROUP_PAGES];
    int n;
};
int router_groups_get(struct router *r, struct page_group *ret, int max);
/* Where the daemon counts for a model; as long as the router. Any thread. */
struct metric_page *router_model_page(struct router *r, const char *model);
void router_pages_put(struct router *r);

#endif
