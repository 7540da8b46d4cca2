/* daemon/options.h - command-line options of llmrackd and llmrack-engine, as rows.
 *
 * What the configuration says too has a path there: such an option is a value laid over
 * the stored revision for this run. The engine's options are those that conf_engine_args
 * writes. Floor 5: only the two mains see it. */
#ifndef DAEMON_OPTIONS_H
#define DAEMON_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/opt.h"

struct conf_override;
struct err;

/* How the engine runs its instance. */
struct instance_opts {
    const char *model;   /* file or folder */
    int mode;            /* enum sched_mode: chunked | colocated */
    int64_t step_tok;    /* step token budget */
    int64_t max_seqs;    /* sequences in one step */
    int64_t max_waiting; /* queue bound */
    int64_t prefill_run; /* colocated: prefill steps in a row */
    int order;           /* enum sched_order: age | slack */
    bool refuse_late;    /* by TTFT targets */
    int64_t kv_mib;      /* KV pool; 0 = sized for max_seqs at a quarter of the context,
                            bounded by a quarter of RAM */
    int64_t kv_host_mib, kv_disk_mib; /* tiers below it; 0 = none */
    int64_t ctx;                      /* context; 0 = the model's */
    int kv_type;                      /* auto | f16 | bf16 */
    int64_t threads;                  /* kernel threads; 0 = one per CPU of the process */
    int isa;                          /* auto | portable | avx2 | avx512 */
    int backend;                      /* cpu (| far in test builds) */
    int executor;                     /* ranks | null */
    bool reuse;                       /* prefix cache */
    int64_t pp, tp, ep;               /* layout over ranks */
    bool sp;
    int64_t cp, cp_u, adp;
    int cp_method;                   /* allgather | ring | striped | ulysses | usp */
    int64_t chunks;                  /* in which rows go to experts of other ranks */
    int64_t as_tp, as_cp;            /* ranks as which it rounds */
    int64_t spare;                   /* slots for experts that move */
    int routing, overflow, transfer; /* enums spread, moe_overflow, moe_transfer */
    const char *capacity;            /* a factor, a number; 0 = none */
    const char *affinity;            /* likewise */
    const char *emulate;             /* rack whose links are emulated; "" = none */
};

/* Options with a path: id, option, kind (STR or SWITCH), what stands for the value, path,
 * help. The value is checked by the rows of the configuration. --model names the instance
 * `main` and its model `main`. */
#define OVERRIDE_MAP(X)                                                                  \
    X(model, "model", STR, "PATH", "models.main.path",                                   \
      "model: a .gguf file or a folder, served by the instance main")                    \
    X(name, "name", STR, "NAME", "instances.main.served_as",                             \
      "the model's id in the API; empty = the file's or folder's name")                  \
    X(mode, "mode", STR, "chunked|colocated", "instances.main.mode",                     \
      "prefill in chunks beside decode, or whole prompts before it")                     \
    X(step_tok, "step-tok", STR, "N", "instances.main.step_tok",                         \
      "token budget of one step")                                                        \
    X(max_seqs, "max-seqs", STR, "N", "instances.main.max_seqs",                         \
      "sequences in one step")                                                           \
    X(max_waiting, "max-waiting", STR, "N", "instances.main.max_waiting",                \
      "requests that may wait; more are refused")                                        \
    X(kv_mib, "kv-mib", STR, "MIB", "instances.main.kv.mib",                             \
      "size of the KV pool; 0 = from max-seqs and the context")                          \
    X(ctx, "ctx", STR, "N", "instances.main.ctx", "context length; 0 = the model's")     \
    X(kv_type, "kv-type", STR, "auto|f16|bf16", "instances.main.kv.type",                \
      "number format of the KV")                                                         \
    X(threads, "threads", STR, "N", "instances.main.threads",                            \
      "kernel threads; 0 = one for each CPU of its share")                               \
    X(isa, "isa", STR, "auto|portable|avx2|avx512", "instances.main.isa",                \
      "instruction set of the kernels")                                                  \
    X(backend, "backend", STR, "cpu", "instances.main.backend", "where the kernels run") \
    X(executor, "executor", STR, "ranks|null", "instances.main.executor",                \
      "null answers at once with made-up tokens, to measure the rest")                   \
    X(reuse, "reuse", SWITCH, NULL, "instances.main.kv.reuse",                           \
      "keep prefixes in the KV cache for later requests")                                \
    X(stuck_s, "stuck-s", STR, "S", "instances.main.stuck_s",                            \
      "an engine is restarted when a step takes longer (30 times that in colocated "     \
      "mode) or it gives no sign of life for so long; 0 = never")                        \
    X(on_engine_loss, "on-engine-loss", STR, "recompute|fail",                           \
      "instances.main.on_engine_loss", "what becomes of requests whose engine ends")     \
    X(listen, "listen", STR, "HOST:PORT", "listen.address",                              \
      "where the API listens; port 0 = any, empty = nowhere")                            \
    X(rack, "rack", STR, "auto|cpu:N|cpu:HxN|NAME|FILE", "rack",                         \
      "the rack: this machine, or one that is emulated (a built-in name or a recorded "  \
      "file)")                                                                           \
    X(rack_gpu, "rack-gpu", STR, "MODEL", "rack_gpu",                                    \
      "the GPU model of a rack file that does not say, e.g. H200")                       \
    X(log_level, "log-level", STR, "error|warn|info|debug", "log_level",                 \
      "how much is logged")                                                              \
    X(max_body_mib, "max-body-mib", STR, "MIB", "limits.max_body_mib",                   \
      "largest request body")                                                            \
    X(max_connections, "max-connections", STR, "N", "limits.max_connections",            \
      "open connections")                                                                \
    X(drain_s, "drain-s", STR, "S", "limits.drain_s",                                    \
      "on SIGTERM, how long running requests may go on")                                 \
    X(header_s, "header-s", STR, "S", "limits.header_s",                                 \
      "how long a request's header may take")                                            \
    X(body_s, "body-s", STR, "S", "limits.body_s", "how long a request's body may take")

struct daemon_opts {
#define X(id, name, kind, arg, path, help) const char *id; /* NULL = not given */
    OVERRIDE_MAP(X)
#undef X
    struct opt_list set; /* PATH=VALUE */
    const char *config;  /* text for an empty store; "" = none */
    const char *state_dir, *socket, *engine;
    const char *models_dir; /* published shapes; "" = beside the program */
    int probe;              /* none | nvml: be that helper and nothing else */
    bool help, version, man, man_config, sample_config;
    bool support; /* print what is stored and end */
    bool recover; /* put a good state in the place of a damaged one and end */
};

struct engine_opts {
    struct instance_opts inst;
    int64_t fd, page_fd,
        ranks_fd,        /* the wire socket, the metric page, that of the ranks */
        experts_fd,      /* and that of the experts */
        trace_fd;        /* and that of traces */
    const char *kv_file; /* of KV on disk */
    const char *cpus;    /* of its ranks */
    const char *secret;  /* 32 hex digits: prefix hash key */
    const char *log_level;
    int role;           /* enum engine_role */
    int64_t handoff_ms; /* lease of a handoff */
    bool kv_sums;       /* sums beside the KV that goes to another engine */
    bool help, version;
};

extern const struct opt_def daemon_opt_defs[];
extern const int n_daemon_opt_defs;
extern const struct opt_def engine_opt_defs[];
extern const int n_engine_opt_defs;

/* What was given, as values laid over the configuration, at most max; the count or -1.
 * Values borrow from o, paths are malloc'd: options_overrides_free. */
int options_overrides(const struct daemon_opts *o, struct conf_override *ret, int max,
                      struct err *e);
void options_overrides_free(struct conf_override *v, int n);

#endif
