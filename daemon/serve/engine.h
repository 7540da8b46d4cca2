/* daemon/serve/engine.h - the engine process between its socket and its executor.
 *
 * engine_run is the whole life: HELLO, load (LOADING ..), READY, then requests from the
 * wire through the scheduler to the executor and tokens back, until STOP, the end of the
 * socket, or a fault (FAIL, -1). Its thread is the scheduler thread; it sleeps in epoll
 * when there is nothing to do. */
#ifndef SERVE_ENGINE_H
#define SERVE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/serve/forward.h"
#include "daemon/serve/sched.h"
#include "daemon/serve/wire_kv.h"
#include "topo/layout.h"

struct err;
struct metric_page;
struct expertpage;
struct kvpull_ops;
struct rankpage;
struct tracepage;
struct wire_conn;

enum engine_kv { ENGINE_KV_AUTO, ENGINE_KV_F16, ENGINE_KV_BF16 };

struct engine_cfg {
    const char *model; /* file or folder */
    enum sched_mode mode;
    int step_tok, max_seqs, max_waiting;
    int prefill_run; /* as in sched.h, and so the next two */
    enum sched_order order;
    bool refuse_late;
    int64_t kv_mib;                   /* 0 = derived */
    int64_t kv_host_mib, kv_disk_mib; /* tiers below it, 0 = none */
    const char *kv_file;              /* of the disk tier, absolute */
    int ctx;                          /* 0 = the model's */
    enum engine_kv kv_type;
    int threads;               /* 0 = one per CPU */
    const char *cpus;          /* of the ranks: cpuplan.h */
    const char *backend, *isa; /* names as backend_open takes them */
    bool null_exec, reuse;
    struct layout layout; /* zeroed = one rank */
    int chunks;           /* in which rows go to experts; 0 = 1 */
    int as_tp, as_cp;     /* of forward_part */
    struct forward_experts moe;
    const char *emulate;        /* rack whose links are emulated; "" = none */
    uint8_t secret[16];         /* of the prefix hash */
    struct rankpage *ranks;     /* what each rank does is told there; NULL, borrowed */
    struct expertpage *experts; /* likewise its experts */
    struct tracepage *trace;    /* what it does while somebody asks; likewise */
    enum engine_role role;
    bool kv_sums; /* self-test: what goes to another engine is summed and compared */
    int64_t handoff_ms;              /* a lease of a handoff; 0 = the usual */
    const struct kvpull_ops *copies; /* how KV is copied; NULL = memory of this host */
};

/* The connection and the page stay the caller's. */
int engine_run(const struct engine_cfg *cfg, struct wire_conn *conn,
               struct metric_page *page, struct err *e);

#endif
