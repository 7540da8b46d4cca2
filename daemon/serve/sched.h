/* daemon/serve/sched.h - which requests run in the next step. Pure.
 *
 * An event handler: sched_event(now, event) updates the queue and KV state; sched_next
 * forms the next step when one can be formed; what happened to requests comes out of
 * sched_out as a list. No I/O, no device, no clock: the caller passes `now`. Given the
 * same events in the same order the decisions are the same.
 *
 * Policy `chunked`: decode tokens first, the rest of the step token budget goes to
 * prefill chunks (several prompts may share it; short ones are not starved by a long
 * one). `colocated`: whole prompts, prefill steps before decode, bounded in a row. Oldest
 * request first; the rule and its bounds stand in sched_form.c. Out of KV the youngest
 * running one is preempted and recomputed later with its seniority kept. Where the KV has
 * shards a prompt goes to the one with the fewest tokens running, less what is cached of
 * it there, and stays; what is preempted for it is of its shard. A prompt that
 * cannot get KV does not block smaller ones behind it for longer than the aging bound. */
#ifndef SERVE_SCHED_H
#define SERVE_SCHED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/serve/kvcache.h"
#include "daemon/serve/kvtier.h"
#include "daemon/serve/step.h"

struct err;
struct sched;

enum sched_mode { SCHED_CHUNKED, SCHED_COLOCATED };
enum sched_order { SCHED_BY_AGE, SCHED_BY_SLACK };

struct sched_cfg {
    enum sched_mode mode;
    int step_tok;    /* token budget of one step */
    int max_seqs;    /* sequences in one step */
    int max_outs;    /* logit rows of one step */
    int max_waiting; /* requests queued; more are refused */
    int max_ctx;     /* positions of one sequence */
    int depth;       /* steps in flight, from the executor */
    int prefill_run; /* colocated: prefill-only steps in a row before a decode step */
    enum sched_order order; /* of prompts: see sched_slack.c */
    bool refuse_late;       /* who would miss his TTFT target: see sched_refuse.c */
    struct kvcache_cfg kv;
};

/* What a request asks of generation; plain data, also what crosses the wire. */
struct gen_params {
    uint64_t id;    /* unique for the life of the engine; the caller's number */
    uint64_t group; /* choices of one prompt share it: they wait for its first prefill;
                       0 = none */
    uint64_t seed, salt;
    int32_t choice, max_tokens; /* max_tokens < 0: up to the context */
    float temperature, top_p, min_p, repetition, presence, frequency;
    int32_t top_k, n_top; /* n_top: -1 no logprobs, 0..20 alternatives */
    int32_t n_prompt, n_bias;
    int32_t n_stop; /* token ids that end it, beside the model's own */
    bool ignore_eos, prompt_logprobs, no_cache;
    uint8_t handoff; /* enum gen_handoff */
    int32_t n_gen; /* ids after the prompt's that another engine generated and told: they
                      count in n_out and max_tokens and are not told again */
    int32_t n_scored; /* scores of the prompt that were told elsewhere, likewise */
    uint64_t peer;    /* handoff: incarnation of the other engine */
    int64_t ttft_us, tpot_us; /* targets of first and further tokens, 0 = none, GEN_MAX_US
                                 at most */
    int64_t age_us;           /* so long ago the first one's time began; likewise */
};

#define GEN_MAX_US ((int64_t)1 << 36) /* 19 hours */
static inline int64_t gen_time(int64_t us)
{
    return us < 0 ? 0 : us < GEN_MAX_US ? us : GEN_MAX_US;
}

/* A request whose prompt is computed by one engine and whose answer by another, which
 * takes the KV over (wire_kv.h). Not with prompt_logprobs, and not without an answer. */
enum gen_handoff {
    GEN_HERE,   /* all of it here */
    GEN_EXPORT, /* up to the first token, whose finish is FINISH_HANDOFF */
    GEN_IMPORT, /* begins with the other's KV */
    GEN_HANDOFF_COUNT
};

enum finish_reason {
    FINISH_STOP,
    FINISH_LENGTH,
    FINISH_ABORT,
    FINISH_ERROR,
    FINISH_HANDOFF, /* goes on elsewhere: to nobody's client */
    FINISH_RETURNED /* given back before it ended, to go on elsewhere: likewise */
};

enum sched_event_kind {
    SCHED_ADD,
    SCHED_CANCEL,
    SCHED_DONE,
    SCHED_DRAIN,
    SCHED_YIELD,     /* whatever waits (for a place, or again after a preemption) is given
                        back */
    SCHED_PULLED,    /* a pull ended */
    SCHED_RECOMPUTE, /* the rest of an import is computed here */
    SCHED_POLICY,    /* order, refuse_late and prefill_run are others from now on */
};
struct sched_event {
    enum sched_event_kind kind;
    /* ADD */
    const struct gen_params *params;
    const int32_t *prompt, *stops; /* n_prompt + n_gen, n_stop; copied */
    const struct step_bias *biases;
    const int32_t *eog;
    int n_eog; /* the model's end-of-generation ids */
    /* CANCEL, RECOMPUTE (unknown ids are normal: counted, ignored) */
    uint64_t id;
    /* PULLED, by its number: positions 0..upto-1 are there now, or, with upto 0, no more
     * than before. The last one has the ids that the other engine generated; RECOMPUTE
     * those that are told already */
    uint64_t pull;
    int upto;
    const int32_t *gen; /* n_gen */
    int n_gen;
    /* DONE */
    const struct step_done *done;
    /* POLICY */
    enum sched_order order;
    bool refuse_late;
    int prefill_run;
};

/* What happened, in order; borrowed until the next sched_out call. */
enum sched_out_kind {
    SCHED_OUT_TOKENS,
    SCHED_OUT_FINISH,
    SCHED_OUT_REFUSE,
    SCHED_OUT_EXPORT,   /* committed blocks, pinned: sched_unpin gives them back */
    SCHED_OUT_RESERVED, /* an import has its blocks */
};
struct sched_out {
    enum sched_out_kind kind;
    uint64_t id;
    /* TOKENS: committed; scored ones (prompt logprobs) come first and are flagged */
    const struct step_token *toks;
    int n_toks;
    bool scored;
    /* FINISH */
    enum finish_reason reason;
    int32_t stop_id; /* the token that ended it (not among TOKENS), -1 none */
    int32_t n_prompt, n_cached, n_out, n_preempted; /* n_out: without stop_id */
    uint32_t altered;                               /* STEP_ALTERED_* of its rows */
    int64_t queue_us, prefill_us, decode_us; /* waiting; start to first; first to last */
    bool has_slack; /* it had a TTFT target: what was left of it when it started */
    int64_t slack_us;
    /* REFUSE, when it comes or while it waits: it cannot meet its target; sent after so
     * long it would; 0: not why */
    int64_t retry_us;
    /* FINISH with ERROR, REFUSE */
    const struct err *error;
    /* EXPORT: n_blocks blocks from number `first` of the sequence on, which make upto
     * positions of n_tok; the last one comes with the ids generated.
     * RESERVED: upto positions were found in the cache, of n_tok */
    const int32_t *block, *gen;
    int32_t first, n_blocks, upto, n_tok, n_gen;
    bool last;
    uint64_t peer; /* EXPORT: the reader; RESERVED: the exporter */
};

struct sched_stats {
    int running, waiting;
    uint64_t preemptions, late, steps, step_toks; /* late: events for unknown ids */
    uint64_t prompt_tok, gen_tok, cached_tok, recomputed_tok;
    uint64_t refused_late;                  /* too late for their targets */
    uint64_t est_steps, est_us, est_off_us; /* steps whose time was estimated before: how
                                               long they took, how far off it was */
    struct sched_shape {
        uint64_t steps, us, seqs; /* seqs: that decode in them */
    } answers, prompts;           /* without and with prompt tokens */
    uint64_t shape_tok;           /* prompt tokens in the latter */
    int importing;                /* of running: wait for KV of another engine */
    int held;              /* blocks that a pull may write into, their request gone */
    int pulls;             /* that may write into blocks */
    uint64_t imported_tok; /* positions whose KV came from another engine */
    struct kvcache_stats kv;
    struct kvtier_stats tier; /* zero without tiers */
};

struct sched *sched_new(const struct sched_cfg *cfg);
void sched_free(struct sched *s);
void sched_event(struct sched *s, int64_t now_us, const struct sched_event *ev);
/* The next step into *st (cleared first); false when there is nothing to run now. The
 * caller submits it and reports with sched_submitted, then asks again until false. When
 * the executor does not take it: report a ticket all the same, then DONE with an error.
 */
bool sched_next(struct sched *s, int64_t now_us, struct step *st);
void sched_submitted(struct sched *s, int64_t now_us, uint64_t ticket);
/* Blocks of EXPORTs: the whole chain, from its first on. */
void sched_unpin(struct sched *s, const int32_t *blocks, int n);
uint32_t sched_block_gen(const struct sched *s, int32_t block);
/* Pull `pull` (a number of its own) writes into request id from now until SCHED_PULLED:
 * its blocks, borrowed, and how many positions are there. NULL: it does not import, or is
 * being written into already. */
const int32_t *sched_pull(struct sched *s, uint64_t id, uint64_t pull, int *ret_n,
                          int *ret_have);
/* Outcomes since the last call: *ret of n entries. */
size_t sched_out(struct sched *s, const struct sched_out **ret);
void sched_stats(const struct sched *s, struct sched_stats *ret);
/* The tiers below the device, for who works on the disk: same thread. After a job that is
 * done ask for steps again. NULL without tiers. */
struct kvtier *sched_tier(struct sched *s);
/* Capacity of a step under this configuration. */
void sched_step_caps(const struct sched_cfg *cfg, struct step_caps *ret);
bool sched_idle(const struct sched *s); /* no request, nothing in flight */
/* Invariants, for tests; sentence in e. */
int sched_check(const struct sched *s, struct err *e);

#endif
