/* daemon/options.c - the option tables of llmrackd and llmrack-engine.
 *
 * The engine's rows say what each option of conf_engine_args means there; the daemon's
 * say which path of the configuration an option stands for. */
#include "daemon/options.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/ctrl/conf.h"

#define ROW(T, m, name, kind, min, max, choices, def, arg, help)                         \
    {                                                                                    \
        name, kind, offsetof(struct T, m), min, max, choices, def, arg, help             \
    }
#define STR(T, m, name, def, arg, help)                                                  \
    ROW(T, m, name, OPT_STR, 0, 0, NULL, def, arg, help)
#define INT(T, m, name, min, max, def, arg, help)                                        \
    ROW(T, m, name, OPT_INT, min, max, NULL, def, arg, help)
#define ENUM(T, m, name, choices, def, help)                                             \
    ROW(T, m, name, OPT_ENUM, 0, 0, choices, def, NULL, help)
#define BOOL(T, m, name, def, help) ROW(T, m, name, OPT_BOOL, 0, 0, NULL, def, NULL, help)

/* T: the struct; P: what leads to the instance's options in it */
#define INSTANCE_ROWS(T, P)                                                              \
    STR(T, P model, "model", NULL, "PATH", "model: a .gguf file or a folder"),           \
        ENUM(T, P mode, "mode", "chunked|colocated", "chunked",                          \
             "prefill in chunks beside decode, or whole prompts before it"),             \
        INT(T, P step_tok, "step-tok", 16, 65536, "512", "N",                            \
            "token budget of one step"),                                                 \
        INT(T, P max_seqs, "max-seqs", 1, 1024, "64", "N", "sequences in one step"),     \
        INT(T, P max_waiting, "max-waiting", 1, 65536, "256", "N",                       \
            "requests that may wait; more are refused"),                                 \
        INT(T, P prefill_run, "prefill-run", 1, 1024, "4", "N",                          \
            "colocated: steps of prompts in a row beside answers that wait"),            \
        ENUM(T, P order, "order", "age|slack", "age",                                    \
             "which prompt is next: the oldest, or by time to spare for its target"),    \
        BOOL(T, P refuse_late, "refuse-late", NULL,                                      \
             "refuse what cannot meet its target of the first token"),                   \
        INT(T, P kv_mib, "kv-mib", 0, 1 << 24, "0", "MIB",                               \
            "size of the KV pool; 0 = from max-seqs and the context"),                   \
        INT(T, P kv_host_mib, "kv-host-mib", 0, 1 << 24, "0", "MIB",                     \
            "KV in host memory that left the pool; 0 = none"),                           \
        INT(T, P kv_disk_mib, "kv-disk-mib", 0, 1 << 24, "0", "MIB",                     \
            "KV on disk that left host memory; 0 = none"),                               \
        INT(T, P ctx, "ctx", 0, 1 << 24, "0", "N", "context length; 0 = the model's"),   \
        ENUM(T, P kv_type, "kv-type", "auto|f16|bf16", "auto",                           \
             "number format of the KV"),                                                 \
        INT(T, P threads, "threads", 0, 1024, "0", "N",                                  \
            "kernel threads; 0 = one for each CPU of its share"),                        \
        ENUM(T, P isa, "isa", "auto|portable|avx2|avx512", "auto",                       \
             "instruction set of the kernels"),                                          \
        ENUM(T, P backend, "backend", "cpu", "cpu", "where the kernels run"),            \
        ENUM(T, P executor, "executor", "ranks|null", "ranks",                           \
             "null answers at once with made-up tokens, to measure the rest"),           \
        BOOL(T, P reuse, "reuse", "yes",                                                 \
             "keep prefixes in the KV cache for later requests"),                        \
        INT(T, P pp, "pp", 1, 128, "1", "N", "pipeline stages"),                         \
        INT(T, P tp, "tp", 1, 128, "1", "N", "tensor parallel ranks"),                   \
        INT(T, P ep, "ep", 1, 128, "1", "N",                                             \
            "expert parallel ranks: tp x cp x adp, or cp x adp"),                        \
        BOOL(T, P sp, "sp", NULL, "norms and residuals on each tp rank's own rows"),     \
        INT(T, P adp, "adp", 1, 128, "1", "N",                                           \
            "groups of tp ranks with requests of their own"),                            \
        INT(T, P cp, "cp", 1, 32, "1", "N", "context parallel ranks"),                   \
        ENUM(T, P cp_method, "cp-method", "allgather|ring|striped|ulysses|usp", "ring",  \
             "how attention meets over cp"),                                             \
        INT(T, P cp_u, "cp-u", 1, 32, "1", "N", "cp ranks that share heads, of usp"),    \
        INT(T, P chunks, "chunks", 1, 16, "1", "N",                                      \
            "parts in which rows go to experts of other ranks"),                         \
        INT(T, P as_tp, "round-as-tp", 0, 128, "0", "N",                                 \
            "round as so many tp ranks do; 0 = as it is cut"),                           \
        INT(T, P as_cp, "round-as-cp", 0, 32, "0", "N",                                  \
            "round as so many cp ranks that share positions; 0 = as it is cut"),         \
        INT(T, P spare, "spare", 0, 256, "0", "N",                                       \
            "slots of a rank and layer for copies of experts"),                          \
        ENUM(T, P routing, "routing", "static|least-loaded|probabilities", "static",     \
             "how one of an expert's copies is chosen"),                                 \
        STR(T, P capacity, "capacity", "0", "C",                                         \
            "rows that an expert takes, times the mean; 0 = any number"),                \
        ENUM(T, P overflow, "overflow", "replica|second-pass|next-best|drop", "replica", \
             "what becomes of rows over it"),                                            \
        ENUM(T, P transfer, "transfer", "f32|f8", "f32",                                 \
             "how rows travel to experts of other ranks"),                               \
        STR(T, P affinity, "affinity", "0", "A",                                         \
            "over 0: count which experts are chosen together"),                          \
        STR(T, P emulate, "emulate", "", "RACK",                                         \
            "rack whose links are emulated between the ranks; empty = none")

const struct opt_def daemon_opt_defs[] = {
#define X(id, name, kind, arg, path, help)                                               \
    ROW(daemon_opts, id, name, OPT_##kind, 0, 0, NULL, NULL, arg, help),
    OVERRIDE_MAP(X)
#undef X
        ROW(daemon_opts, set, "set", OPT_LIST, 0, 0, NULL, NULL, "PATH=VALUE",
            "a value laid over the configuration for this run, e.g. "
            "instances.main.slo.ttft_ms=200; may be given often"),
    STR(daemon_opts, config, "config", "", "FILE",
        "configuration of a state folder that has none yet; later it is not read"),
    STR(daemon_opts, state_dir, "state-dir", "./var", "DIR",
        "folder of the state database, the lock and the control socket"),
    STR(daemon_opts, socket, "socket", "", "PATH",
        "control socket; empty = llmrackd.sock in the state folder"),
    STR(daemon_opts, models_dir, "models-dir", "", "DIR",
        "published model shapes, for plan; empty = beside the program"),
    STR(daemon_opts, engine, "engine", "", "PATH",
        "engine program; empty = llmrack-engine beside llmrackd"),
    ENUM(daemon_opts, probe, "probe", "none|nvml", "none",
         "be the helper that asks NVML: a JSON line at once and for each byte of input"),
    BOOL(daemon_opts, recover, "recover", NULL,
         "where the state is damaged: put its newest good backup in its place and end"),
    BOOL(daemon_opts, support, "support", NULL,
         "print what the state tells those who help, as JSON without secrets, and end"),
    BOOL(daemon_opts, help, "help", NULL, "print this and end"),
    BOOL(daemon_opts, version, "version", NULL, "print the version and end"),
    BOOL(daemon_opts, man, "man", NULL, "print the options as roff and end"),
    BOOL(daemon_opts, man_config, "man-config", NULL,
         "print the directives of the configuration as roff and end"),
    BOOL(daemon_opts, sample_config, "sample-config", NULL,
         "print a configuration with every directive and its default and end"),
};
const int n_daemon_opt_defs = sizeof(daemon_opt_defs) / sizeof(daemon_opt_defs[0]);

const struct opt_def engine_opt_defs[] = {
    INSTANCE_ROWS(engine_opts, inst.),
    INT(engine_opts, fd, "fd", 0, 1 << 20, "3", "FD", "socket to the daemon"),
    INT(engine_opts, page_fd, "page-fd", 0, 1 << 20, "4", "FD", "metric page"),
    INT(engine_opts, ranks_fd, "ranks-fd", 0, 1 << 20, "5", "FD", "page of the ranks"),
    INT(engine_opts, experts_fd, "experts-fd", 0, 1 << 20, "6", "FD",
        "page of the experts"),
    INT(engine_opts, trace_fd, "trace-fd", 0, 1 << 20, "7", "FD", "page of traces"),
    STR(engine_opts, secret, "secret", "", "HEX",
        "key of the prefix hash, 32 hex digits"),
    STR(engine_opts, cpus, "cpus", "", "LIST",
        "CPUs of the ranks: 0-3 for all together, 0-1;2-3 a list for each"),
    STR(engine_opts, kv_file, "kv-file", "", "FILE", "of KV on disk, an absolute path"),
    STR(engine_opts, log_level, "log-level", "info", "error|warn|info|debug",
        "how much is logged"),
    ENUM(engine_opts, role, "role", "both|prefill|decode", "both",
         "half of a split instance: computes prompts, or answers to them"),
    INT(engine_opts, handoff_ms, "handoff-ms", 0, 3600000, "0", "MS",
        "lease of KV that goes from one engine to another; 0 = the usual"),
    BOOL(engine_opts, kv_sums, "kv-sums", NULL,
         "sum the KV that goes from one engine to another and compare"),
    BOOL(engine_opts, help, "help", NULL, "print this and end"),
    BOOL(engine_opts, version, "version", NULL, "print the version and end"),
};
const int n_engine_opt_defs = sizeof(engine_opt_defs) / sizeof(engine_opt_defs[0]);

static const struct {
    const char *path;
    size_t offset;
} paths[] = {
#define X(id, name, kind, arg, path, help) {path, offsetof(struct daemon_opts, id)},
    OVERRIDE_MAP(X)
#undef X
};
enum { N_PATHS = sizeof(paths) / sizeof(paths[0]) };

static int add(struct conf_override *ret, int *n, int max, char *path, const char *value,
               struct err *e)
{
    if (*n == max) {
        free(path);
        return err_set(e, ERR_RANGE, "more than %d values on the command line", max);
    }
    ret[(*n)++] = (struct conf_override){path, value};
    return 0;
}

static int add_set(struct conf_override *ret, int *n, int max, const char *text,
                   struct err *e)
{
    const char *eq = strchr(text, '=');

    if (!eq || eq == text)
        return err_param(e, ERR_INVALID, "set",
                         "--set '%.100s': PATH=VALUE would be right", text);
    return add(ret, n, max, xstrndup(text, (size_t)(eq - text)), eq + 1, e);
}

int options_overrides(const struct daemon_opts *o, struct conf_override *ret, int max,
                      struct err *e)
{
    int n = 0, rc = 0;

    for (int i = 0; i < N_PATHS && rc == 0; i++) {
        const char *v = *(const char *const *)((const char *)o + paths[i].offset);
        if (v)
            rc = add(ret, &n, max, xstrdup(paths[i].path), v, e);
    }
    if (rc == 0 && o->model)
        rc = add(ret, &n, max, xstrdup("instances.main.model"), "main", e);
    for (int i = 0; i < o->set.n && rc == 0; i++)
        rc = add_set(ret, &n, max, o->set.v[i], e);
    if (rc == 0)
        return n;
    options_overrides_free(ret, n);
    return -1;
}

void options_overrides_free(struct conf_override *v, int n)
{
    for (int i = 0; i < n; i++)
        free((char *)v[i].path);
}
