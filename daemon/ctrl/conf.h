/* daemon/ctrl/conf.h - the wanted state: YAML text -> immutable struct conf. Pure.
 *
 * Every directive is a row of conf.def: path, type, range, default, unit, class of
 * change, help. The rows feed the parser, the checker, config set, completion,
 * etc/llmrackd.yaml and llmrackd.yaml(5). A path is words with dots; `*` in a row stands
 * for a name that the operator chose (instances.*.mode). Types come from the rows, never
 * from YAML's guessing; anchors, aliases, tags and several documents are refused. A conf
 * is reference counted, any thread may hold it; strings live as long as it does. */
#ifndef CTRL_CONF_H
#define CTRL_CONF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct conf;
struct err;

enum { CONF_MAX_TEXT = 1 << 20, CONF_MAX_NAMES = 64, CONF_MAX_FAULTS = 64 };

/* What a change of a directive costs: nothing; its engine is replaced and the old one
 * drained; the daemon must be started again. */
enum conf_class { CONF_HOT, CONF_DRAIN, CONF_RESTART };

struct conf_slo {
    double ttft_ms, tpot_ms; /* 0 = no target */
    double attainment;       /* wanted share of requests, 0..1 */
};

struct conf_model { /* models.NAME */
    const char *name, *path;
};

enum conf_loss { CONF_LOSS_RECOMPUTE, CONF_LOSS_FAIL };
enum conf_isolate { CONF_ISOLATE_KEY, CONF_ISOLATE_NONE };

/* The first two are those of enum sched_mode. */
enum conf_mode { CONF_CHUNKED, CONF_COLOCATED, CONF_SPLIT };
/* What an engine of an instance is for. */
enum conf_role { CONF_ROLE_BOTH, CONF_ROLE_PREFILL, CONF_ROLE_DECODE };

/* Settings that change output: refused, for administrators alone, for all. */
enum conf_output { CONF_OUTPUT_NONE, CONF_OUTPUT_TRIAL, CONF_OUTPUT_ALLOWED };

/* instances.NAME.prefill and .decode: what engines of that pool have in place of the
 * instance's; 0 = as the instance. Enums: 0 = as the instance, else one more. */
struct conf_pool {
    int64_t engines, threads, step_tok, max_seqs, kv_mib;
    struct {
        int64_t pp, tp, ep, adp, cp, cp_u;
        int automatic, sp, cp_method;
    } layout;
};

/* instances.NAME, then, after all of them, their further engines as instances of their
 * own: copies with another name (conf_is_copy). These are the replicas beyond the first,
 * or, with mode split, all engines of both pools; the instance itself has none then
 * (conf_is_engine). */
struct conf_instance {
    const char *name;
    const char *model;     /* a name of models */
    const char *served_as; /* id in the API; "" = the name in the file */
    int mode;              /* enum conf_mode */
    int role;              /* enum conf_role; of a copy of a split instance */
    struct conf_pool prefill, decode;
    int64_t step_tok, max_seqs, max_waiting, ctx, threads;
    int64_t prefill_run;
    int order; /* enum sched_order: age | slack */
    bool refuse_late;
    int64_t replicas;           /* engines of this kind; of a copy too */
    int isa, backend, executor; /* as the engine's options of these names */
    struct {
        bool automatic;               /* the planner's choice, see layouts.h */
        int64_t pp, tp, ep, adp, etp; /* etp 0: what follows from the others */
        bool sp;
        int64_t cp, cp_u;
        int cp_method; /* enum cp_method from CP_GATHER on */
        int64_t chunks;
        const char *emulate;
    } layout;
    struct {
        int64_t tp, cp; /* 0 = not said, see conf_round.h */
        bool unasked;   /* by the other pool's layout, which is checked for itself */
    } round_as;
    struct {
        int64_t spare;
        int policy; /* enum controller_policy: off | advise | auto */
        int64_t sample_ms, share_s, dwell_s, horizon_s, deadline_s;
        double enter, leave, min_gain;
        int64_t max_moves, plan_mib, max_slots;
        double slack_share, copy_share, prefill_share;
        int routing;     /* enum spread */
        double capacity; /* 0 = none */
        double affinity;
        int overflow;            /* enum moe_overflow */
        int transfer;            /* enum moe_transfer */
        int allow_output_change; /* enum conf_output */
    } experts;
    struct {
        double agreement_min, kl_max, perplexity_ratio_max;
    } quality; /* bounds of settings that change output */
    struct {
        int64_t mib, host_mib, disk_mib;
        int type; /* auto | f16 | bf16 */
        bool reuse;
        int isolate; /* enum conf_isolate: prefixes are shared within a key, or by all */
    } kv;
    struct {
        double temperature, top_p; /* of requests that name none */
    } sampling;
    struct conf_slo slo;
    struct {
        int64_t lease_ms, stall_ms;
        bool sums;
    } handoff;
    int64_t stuck_s, answer_ms;
    int on_engine_loss; /* enum conf_loss */
    int64_t restart_wait_s;
};

struct conf_class_slo { /* slo_classes.NAME */
    const char *name;
    struct conf_slo slo;
};

struct conf_listen {     /* listen */
    const char *address; /* "127.0.0.1:8080", "" = none */
    const char *tls_cert, *tls_key;
};

struct conf_access { /* access */
    bool insecure;
    int anonymous;      /* none | infer */
    const char **hosts; /* further names in Host */
    int n_hosts;
    const char **cors_origins;
    int n_cors;
    int64_t failures_per_min; /* wrong keys of one address */
    bool log_content;         /* prompts and answers into the log */
};

struct conf_limits { /* limits */
    int64_t max_body_mib, max_connections, header_s, body_s, idle_s, drain_s;
};

struct conf {
    const char *rack, *rack_gpu, *log_level;
    int64_t rack_check_s; /* 0 = never */
    struct conf_listen listen;
    struct conf_access access;
    struct conf_limits limits;
    const char **model_roots; /* model_roots: folders whose files may be models */
    int n_model_roots;
    struct conf_model *models;
    int n_models;
    struct conf_instance *instances;
    int n_instances;
    struct conf_class_slo *classes;
    int n_classes;
    struct {
        int64_t min_requests; /* N of the guard, each side */
        double confidence;    /* 0.95 */
    } guard;
    struct {
        double device_hour; /* price, 0 = not known */
    } cost;
};

/* A value from the command line, for this run only, laid over the text. */
struct conf_override {
    const char *path, *value;
};

struct conf_fault {
    int line, column; /* 1, 1 ..; 0, 0 = an override or the whole */
    char path[160], msg[256];
};
struct conf_faults {
    int n; /* found; the first CONF_MAX_FAULTS are kept */
    struct conf_fault v[CONF_MAX_FAULTS];
};

/* All faults, not just the first; -1 when there is any and then *ret is NULL. */
int conf_parse(const char *text, size_t n, const struct conf_override *over, int n_over,
               struct conf **ret, struct conf_faults *faults);
struct conf *conf_ref(const struct conf *c);
void conf_unref(const struct conf *c); /* NULL allowed */
/* "main:2", the second replica of main, "main/decode", an engine of its decode pool: the
 * length of the name that the operator chose, which has neither sign. */
static inline size_t conf_name_len(const char *name)
{
    size_t n = 0;

    while (name[n] && name[n] != ':' && name[n] != '/')
        n++;
    return n;
}
static inline bool conf_is_copy(const char *name)
{
    return name[conf_name_len(name)] != '\0';
}
/* Do settings of an instance change what its model answers? */
static inline bool conf_changes_output(const struct conf_instance *i)
{
    return i->experts.transfer == 1 ||
           (i->experts.capacity > 0 && i->experts.overflow >= 2);
}
/* Is there an engine of this name? Not of an instance whose engines are all in pools. */
static inline bool conf_is_engine(const struct conf_instance *i)
{
    return i->mode != CONF_SPLIT || i->role != CONF_ROLE_BOTH;
}
const struct conf_instance *conf_instance(const struct conf *c, const char *name);
const struct conf_model *conf_model(const struct conf *c, const char *name);

/* Differences of two configurations by path, in the order of the rows; returns the count.
 * from or to is NULL where the name does not exist on that side; then what equals the
 * default is left out, and a new name is hot: it touches nothing that runs. */
struct conf_change {
    const char *path, *from, *to;
    enum conf_class class;
};
typedef void (*conf_change_fn)(void *arg, const struct conf_change *c);
/* fn may be NULL. */
int conf_diff(const struct conf *a, const struct conf *b, conf_change_fn fn, void *arg);
const char *conf_class_name(enum conf_class c); /* hot, drain, restart */

/* The engine's options for an instance: "--model=PATH", then "--step-tok=256" for each
 * row that differs from the default, then "--role=decode" in a pool, malloc'd; returns
 * the count (at most max). The same list = the same engine, but for what is hot. */
int conf_engine_args(const struct conf *c, const struct conf_instance *i, char **out,
                     int max);
bool conf_arg_hot(const char *arg); /* one of these: a running engine can take it */

/* ---- text ---- */
/* Set or unset one path in a text; comments, order and all other bytes stay. value is a
 * scalar, or [a, b] for a list. The new text is malloc'd; NULL and a sentence. */
char *conf_text_set(const char *text, const char *path, const char *value, struct err *e);
char *conf_text_unset(const char *text, const char *path, struct err *e);
/* Unified difference of two texts, three lines around each change; "" when equal. */
void conf_text_diff(const char *a, const char *b, const char *name_a, const char *name_b,
                    struct buf *out);
/* Three-way: the changes base -> mine laid upon theirs. NULL and CONFLICT with the paths
 * that both changed. */
char *conf_text_rebase(const char *base, const char *mine, const char *theirs,
                       struct err *e);

/* ---- the rows as documentation ---- */
/* i-th path pattern with its help, for completion and tests; false past the last. def is
 * NULL where a value must be given. */
struct conf_row_doc {
    const char *path, *type, *def, *unit, *help;
    char range[80]; /* "1..1024", "a|b|c" or what the value is */
    enum conf_class class;
};
bool conf_row(int i, struct conf_row_doc *ret);
void conf_sample(struct buf *out); /* etc/llmrackd.yaml */
void conf_man(struct buf *out);    /* the rows as roff */

#endif
