/* daemon/serve/handoff_impl.h - what the files of the handoff share; nobody else includes
 * it. handoff.c life, actions and what concerns both ends, handoff_out.c exports,
 * handoff_in.c imports. */
#ifndef SERVE_HANDOFF_IMPL_H
#define SERVE_HANDOFF_IMPL_H

#include "base/list.h"
#include "daemon/serve/handoff.h"
#include "daemon/serve/idmap.h"

enum export_state { EXPORT_OPEN, EXPORT_SENT, EXPORT_QUARANTINE };
struct kv_export {
    struct list link; /* by age in its state */
    uint64_t id, reader;
    enum export_state state;
    bool read; /* the reader has said its last word */
    int32_t *blocks;
    int n, cap;
    int64_t until;
};

enum import_state {
    IMPORT_QUEUED,
    IMPORT_WAIT,
    IMPORT_PULL,
    IMPORT_LOST,
    IMPORT_CLOSING
};
struct kv_import {
    struct list link;
    uint64_t id, peer;
    enum import_state state;
    bool let_go;   /* not in by_id any more */
    uint64_t pull; /* that copies; 0 = none */
    bool stale;    /* its result is of no use */
    bool overdue;  /* CLOSING: its time was over once */
    int pull_upto, tries, block_tok;
    int have, n_tok, upto; /* upto: offered */
    struct wire_block *blocks;
    int n, cap;
    int32_t *gen;
    int n_gen;
    bool offered, last;
    int64_t until, last_us, copy_us;
    uint64_t bytes;
};

struct handoff {
    struct handoff_cfg cfg;
    struct idmap exports, imports;
    struct list open, quarantine; /* OPEN and SENT; QUARANTINE, oldest first */
    struct list in;
    uint64_t pulls;
    struct handoff_act *acts[2];
    size_t n_acts[2], cap_acts[2];
    int box;
    struct handoff_stats st;
};

/* handoff.c */
struct handoff_act *handoff_act(struct handoff *h, enum handoff_kind kind, uint64_t id);

/* handoff_out.c */
void handoff_export_free(struct handoff *h, struct kv_export *x);
/* Its reader has said its last word. */
void handoff_export_read(struct handoff *h, struct kv_export *x);
void handoff_exports_tick(struct handoff *h, int64_t now);

/* handoff_in.c */
void handoff_import_free(struct handoff *h, struct kv_import *m);
/* Told, once; a RECOMPUTE will come. */
void handoff_import_lose(struct handoff *h, struct kv_import *m, const struct err *why);
void handoff_imports_tick(struct handoff *h, int64_t now);

#endif
