/* daemon/options.h - command-line options of llmrackd and llmrack-engine, as rows.
 *
 * The instance rows are in both tables: the daemon passes them on to the engine that it
 * starts. Floor 5: only the two mains and the supervisor's argument list see it. */
#ifndef DAEMON_OPTIONS_H
#define DAEMON_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/opt.h"

/* How one instance runs; passed to the engine unchanged. */
struct instance_opts {
    const char *model;   /* file or folder */
    int mode;            /* enum sched_mode: chunked | colocated */
    int64_t step_tok;    /* step token budget */
    int64_t max_seqs;    /* sequences in one step */
    int64_t max_waiting; /* queue bound */
    int64_t kv_mib;      /* KV pool; 0 = sized for max_seqs at a quarter of the context,
                            bounded by a quarter of RAM */
    int64_t ctx;         /* context; 0 = the model's */
    int kv_type;         /* auto | f16 | bf16 */
    int64_t threads;     /* kernel threads; 0 = one per CPU of the process */
    int isa;             /* auto | portable | avx2 | avx512 */
    int backend;         /* cpu (| far in test builds) */
    int executor;        /* ranks | null */
    bool reuse;          /* prefix cache */
};

struct daemon_opts {
    struct instance_opts inst;
    const char *state_dir, *listen, *socket, *name, *engine, *log_level;
    const char *models_dir;      /* published shapes; "" = beside the program */
    const char *rack, *rack_gpu; /* what is owned; the model that completes a file */
    int64_t max_body_mib, max_connections, drain_s, header_s, body_s, stuck_s;
    int probe; /* none | nvml: be that helper and nothing else */
    bool help, version, man, man_config, sample_config;
};

struct engine_opts {
    struct instance_opts inst;
    int64_t fd, page_fd; /* the wire socket and the metric page */
    const char *secret;  /* 32 hex digits: prefix hash key */
    const char *log_level;
    bool help, version;
};

extern const struct opt_def daemon_opt_defs[];
extern const int n_daemon_opt_defs;
extern const struct opt_def engine_opt_defs[];
extern const int n_engine_opt_defs;

/* The engine's argv for these instance options (rows that differ from the default);
 * returns the count of strings written to out (each malloc'd, at most max). */
int options_instance_argv(const struct instance_opts *o, char **out, int max);

#endif
