/* daemon/serve/wire.h - messages between llmrackd and one engine process.
 *
 * A socketpair (SOCK_STREAM) carries frames: struct wire_head, then `bytes` of payload of
 * the kind below, host byte order (one host, one build; the HELLO checks the version).
 * Each side checks every count before use; a frame over WIRE_MAX or of an unknown kind
 * ends the connection. wire_conn buffers both ways and never blocks: the owner polls the
 * fd. A peer that does not read is cut when its output passes the limit. One owner thread
 * a connection. */
#ifndef SERVE_WIRE_H
#define SERVE_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/serve/sched.h"

struct err;
struct wire_conn;

enum { WIRE_VERSION = 11, WIRE_MAX = 64 << 20, WIRE_TOK_MAX = 4096 /* a TOKENS frame */ };

/* to the engine: ADD CANCEL DRAIN STOP SPIN CPUS YIELD PEER PEER_GONE RECOMPUTE EXPERTS
 * KV_WIPE POLICY PING; both ways: EXPORT PULLED; from it: the rest. From ARENA on:
 * wire_kv.h. */
#define WIRE_MAP(X)                                                                      \
    X(HELLO)     /* struct wire_hello */                                                 \
    X(LOADING)   /* struct wire_loading */                                               \
    X(READY)     /* struct wire_ready */                                                 \
    X(FAIL)      /* struct wire_fail: cannot start or go on, with the sentence */        \
    X(ADD)       /* struct gen_params, known ids, stop ids, struct step_bias[] */        \
    X(CANCEL)    /* uint64_t id */                                                       \
    X(DRAIN)     /* refuse new ones, finish running ones */                              \
    X(STOP)      /* end now */                                                           \
    X(TOKENS)    /* struct wire_tokens, tokens without their unused alternatives */      \
    X(FINISH)    /* struct wire_finish */                                                \
    X(SPIN)      /* uint32_t: 1 = nobody else wants its CPUs, 0 = sleep at once */       \
    X(CPUS)      /* text with its NUL: the CPUs of its ranks, cpuplan.h */               \
    X(YIELD)     /* give back what waits: FINISH with RETURNED for each */               \
    X(ARENA)     /* struct wire_arena and a descriptor */                                \
    X(PEER)      /* an ARENA of another engine, relayed with its descriptor */           \
    X(PEER_GONE) /* uint64_t incarnation: that engine is no more */                      \
    X(RESERVED)  /* struct wire_reserved */                                              \
    X(EXPORT)    /* struct wire_export, struct wire_block[], ids */                      \
    X(PULLED)    /* struct wire_pulled */                                                \
    X(LOST)      /* struct wire_lost */                                                  \
    X(RECOMPUTE) /* struct wire_recompute, ids */                                        \
    X(EXPERTS)   /* struct wire_experts, moves, shares: wire_experts.h */                \
    X(MOVED)     /* struct wire_moved */                                                 \
    X(NOTE)      /* struct wire_note: for the journal */                                 \
    X(KV_WIPE)   /* forget what is in the tiers below the device's KV */                 \
    X(POLICY)    /* struct wire_policy: from the next step on */                         \
    X(PING)      /* is it alive? */                                                      \
    X(PONG)      /* at once: it is */

enum wire_kind {
#define X(id) WIRE_##id,
    WIRE_MAP(X)
#undef X
        WIRE_COUNT
};

struct wire_head {
    uint32_t bytes; /* of the payload */
    uint16_t kind, version;
};
struct wire_hello {
    uint32_t version, pid;
};
struct wire_loading {
    double done; /* 0..1 */
};
struct wire_ready {
    int64_t load_us;
    int32_t n_ctx, n_vocab, n_blocks, block_tok, n_threads, n_ranks;
    uint64_t weight_bytes, kv_bytes, scratch_bytes, n_params, file_bytes;
    char isa[16], kv_type[8], main_type[8], family[16], format[16], name[128];
    char layout[64];
    uint64_t incarnation;   /* random for each engine process, never 0 */
    int32_t role, n_arenas; /* enum engine_role; ARENA messages that follow */
    /* experts that move (wire_experts.h): zeros where they do not; bytes of one of one
     * layer */
    int32_t expert_layers, experts, expert_ranks, expert_slots;
    uint64_t expert_bytes;
};
/* What a note says of an alarm that is called as its action. */
enum wire_alarm { WIRE_ALARM_NONE, WIRE_ALARM_RAISE, WIRE_ALARM_CLEAR, WIRE_ALARM_COUNT };
struct wire_note {
    char action[32], text[256];
    int32_t alarm; /* enum wire_alarm */
};
struct wire_policy {
    int32_t order, refuse_late, prefill_run; /* as in sched.h */
};
struct wire_fail {
    uint32_t code; /* enum err_code */
    char msg[512];
};
struct wire_tokens {
    uint64_t id;
    int32_t n, scored;
};
struct wire_finish {
    uint64_t id;
    int32_t reason, stop_id, n_prompt, n_cached, n_out, n_preempted;
    int64_t queue_us, prefill_us, decode_us;
    int64_t retry_us; /* refused as late: sent after so long it is not; else 0 */
    uint32_t code;    /* enum err_code, with ERROR or a refusal */
    char msg[256];
};

struct wire_conn *wire_conn_new(int fd, size_t max_out_bytes); /* takes fd */
void wire_conn_free(struct wire_conn *c);
int wire_conn_fd(const struct wire_conn *c);
/* Queue one frame of up to three parts and try to write. -1 when the connection is dead
 * or its output is over the limit. */
struct wire_part {
    const void *p;
    size_t n;
};
int wire_send(struct wire_conn *c, enum wire_kind kind, const struct wire_part *parts,
              int n_parts, struct err *e);
/* Between the two, frames are only queued, so that the news of one step is one write. */
void wire_cork(struct wire_conn *c);
int wire_uncork(struct wire_conn *c, struct err *e);
bool wire_wants_write(const struct wire_conn *c);
int wire_flush(struct wire_conn *c, struct err *e);
/* The next frame carries fd too: a duplicate of it waits with the frame. For ARENA and
 * PEER, each of which has exactly one. */
int wire_attach_fd(struct wire_conn *c, int fd, struct err *e);
/* The descriptor of the ARENA or PEER that wire_next gave last, in order; the caller's.
 * -1 when none came. */
int wire_take_fd(struct wire_conn *c);
/* Read what is there. 0 = look with wire_next, 1 = peer closed and all was read, -1
 * fault.
 */
int wire_fill(struct wire_conn *c, struct err *e);
/* Next whole frame: 1 and *kind, *payload (borrowed until the next call), 0 none, -1. */
int wire_next(struct wire_conn *c, enum wire_kind *kind, const void **payload, size_t *n,
              struct err *e);

/* A payload that is one struct of the list above (HELLO LOADING READY FAIL CANCEL
 * FINISH): size, strings and numbers checked, copied to ret. */
int wire_parse(enum wire_kind kind, const void *p, size_t n, void *ret, struct err *e);
const char *wire_kind_name(enum wire_kind kind);

/* A whole FAIL frame into out (WIRE_FAIL_BYTES), of two strings; async-signal-safe. */
enum { WIRE_FAIL_BYTES = sizeof(struct wire_head) + sizeof(struct wire_fail) + 8 };
size_t wire_fail_frame(uint8_t *out, uint32_t code, const char *a, const char *b);

/* Whole messages, checked. ADD's arrays are borrowed from the payload; after the
 * prompt's ids stand n_gen more. */
struct wire_add {
    struct gen_params params;
    const int32_t *prompt, *stops;
    const struct step_bias *biases;
};
int wire_send_add(struct wire_conn *c, const struct wire_add *a, struct err *e);
/* ERR_SYNTAX: not such a message. ERR_RANGE: a parameter is out of range; then *ret is
 * filled in all the same, so that the request can be answered. */
int wire_parse_add(const void *p, size_t n, struct wire_add *ret, struct err *e);
/* More than WIRE_TOK_MAX tokens become several frames. */
int wire_send_tokens(struct wire_conn *c, uint64_t id, bool scored,
                     const struct step_token *toks, int n, struct err *e);
/* Unpacks into buf (grown as needed, owned by the caller, free() it). */
int wire_parse_tokens(const void *p, size_t n, struct wire_tokens *ret,
                      struct step_token **buf, size_t *buf_cap, struct err *e);

#endif
