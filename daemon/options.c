/* daemon/options.c - the option tables of llmrackd and llmrack-engine.
 *
 * INSTANCE_ROWS stands in both tables, so the daemon can hand its instance options to the
 * engine by walking the rows; options_instance_argv writes what differs from a default.
 */
#include "daemon/options.h"

#include <stddef.h>
#include <string.h>

#include "base/mem.h"

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
        INT(T, P kv_mib, "kv-mib", 0, 1 << 24, "0", "MIB",                               \
            "size of the KV pool; 0 = from max-seqs and the context"),                   \
        INT(T, P ctx, "ctx", 0, 1 << 24, "0", "N", "context length; 0 = the model's"),   \
        ENUM(T, P kv_type, "kv-type", "auto|f16|bf16", "auto",                           \
             "number format of the KV"),                                                 \
        INT(T, P threads, "threads", 0, 1024, "0", "N",                                  \
            "kernel threads; 0 = one for each CPU of the process"),                      \
        ENUM(T, P isa, "isa", "auto|portable|avx2|avx512", "auto",                       \
             "instruction set of the kernels"),                                          \
        ENUM(T, P backend, "backend", "cpu", "cpu", "where the kernels run"),            \
        ENUM(T, P executor, "executor", "ranks|null", "ranks",                           \
             "null answers at once with made-up tokens, to measure the rest"),           \
        BOOL(T, P reuse, "reuse", "yes",                                                 \
             "keep prefixes in the KV cache for later requests")

static const struct opt_def instance_rows[] = {INSTANCE_ROWS(instance_opts, )};

const struct opt_def daemon_opt_defs[] = {
    INSTANCE_ROWS(daemon_opts, inst.),
    STR(daemon_opts, state_dir, "state-dir", "./var", "DIR",
        "folder of the state database, the lock and the control socket"),
    STR(daemon_opts, listen, "listen", "127.0.0.1:8080", "HOST:PORT",
        "where the API listens; port 0 = any, empty = nowhere"),
    STR(daemon_opts, socket, "socket", "", "PATH",
        "control socket; empty = llmrackd.sock in the state folder"),
    STR(daemon_opts, models_dir, "models-dir", "", "DIR",
        "published model shapes, for plan; empty = beside the program"),
    STR(daemon_opts, rack, "rack", "auto", "auto|cpu:N|cpu:HxN|NAME|FILE",
        "the rack: this machine, or one that is emulated (a built-in name or a recorded "
        "file)"),
    STR(daemon_opts, rack_gpu, "rack-gpu", "", "MODEL",
        "the GPU model of a rack file that does not say, e.g. H200"),
    STR(daemon_opts, name, "name", "", "NAME",
        "the model's id in the API; empty = the file's or folder's name"),
    STR(daemon_opts, engine, "engine", "", "PATH",
        "engine program; empty = llmrack-engine beside llmrackd"),
    STR(daemon_opts, log_level, "log-level", "info", "error|warn|info|debug",
        "how much is logged"),
    INT(daemon_opts, max_body_mib, "max-body-mib", 1, 1024, "8", "MIB",
        "largest request body"),
    INT(daemon_opts, max_connections, "max-connections", 16, 1 << 20, "4096", "N",
        "open connections"),
    INT(daemon_opts, drain_s, "drain-s", 0, 86400, "30", "S",
        "on SIGTERM, how long running requests may go on"),
    INT(daemon_opts, header_s, "header-s", 1, 3600, "10", "S",
        "how long a request's header may take"),
    INT(daemon_opts, body_s, "body-s", 1, 3600, "60", "S",
        "how long a request's body may take"),
    INT(daemon_opts, stuck_s, "stuck-s", 0, 86400, "60", "S",
        "an engine is restarted when a step takes longer (30 times that in colocated "
        "mode); 0 = never"),
    ENUM(daemon_opts, probe, "probe", "none|nvml", "none",
         "be the helper that asks NVML: a JSON line at once and for each byte of input"),
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
    STR(engine_opts, secret, "secret", "", "HEX",
        "key of the prefix hash, 32 hex digits"),
    STR(engine_opts, log_level, "log-level", "info", "error|warn|info|debug",
        "how much is logged"),
    BOOL(engine_opts, help, "help", NULL, "print this and end"),
    BOOL(engine_opts, version, "version", NULL, "print the version and end"),
};
const int n_engine_opt_defs = sizeof(engine_opt_defs) / sizeof(engine_opt_defs[0]);

/* The row's value as "--name=value" (malloc'd), or NULL when it is the default. */
static char *row_arg(const struct opt_def *d, const void *opts, const void *defaults)
{
    const void *v = (const char *)opts + d->offset;
    const void *def = (const char *)defaults + d->offset;
    const char *s, *choice;

    switch (d->kind) {
    case OPT_STR:
        s = *(const char *const *)v;
        return s && s[0] ? xasprintf("--%s=%s", d->name, s) : NULL;
    case OPT_INT:
        if (*(const int64_t *)v == *(const int64_t *)def)
            return NULL;
        return xasprintf("--%s=%lld", d->name, (long long)*(const int64_t *)v);
    case OPT_BOOL:
        if (*(const bool *)v == *(const bool *)def)
            return NULL;
        return xasprintf("--%s%s", *(const bool *)v ? "" : "no-", d->name);
    case OPT_ENUM:
        if (*(const int *)v == *(const int *)def)
            return NULL;
        choice = d->choices;
        for (int i = 0; i < *(const int *)v; i++)
            choice = strchr(choice, '|') + 1;
        return xasprintf("--%s=%.*s", d->name, (int)strcspn(choice, "|"), choice);
    }
    return NULL;
}

int options_instance_argv(const struct instance_opts *o, char **out, int max)
{
    struct instance_opts defaults = {0};
    int n_rows = sizeof(instance_rows) / sizeof(instance_rows[0]), n = 0, rest;

    opt_parse(instance_rows, n_rows, 0, NULL, &defaults, &rest, NULL);
    for (int i = 0; i < n_rows && n < max; i++) {
        char *arg = row_arg(&instance_rows[i], o, &defaults);
        if (arg)
            out[n++] = arg;
    }
    return n;
}
