/* daemon/serve/sched_impl.h - what the files of the scheduler share; nobody else
 * includes it. sched.c events and outcomes, sched_queue.c who waits and who runs,
 * sched_tier.c what is in tiers below the device, sched_slack.c targets,
 * sched_forecast.c when a first token would come, sched_refuse.c early refusal,
 * sched_form.c the next step, sched_done.c what came back, sched_kv.c KV that goes to or
 * comes from another engine, sched_check.c invariants. */
#ifndef SERVE_SCHED_IMPL_H
#define SERVE_SCHED_IMPL_H

#include "base/err.h"
#include "base/list.h"
#include "daemon/serve/idmap.h"
#include "daemon/serve/sched.h"
#include "daemon/serve/steptime.h"

enum {
    SCHED_CLASSES = 32, /* waiting requests by log2 of their length */
    SCHED_AGE = 16,     /* admissions that may pass the oldest waiting request */
    SCHED_TIER_WAIT_US = 1000000, /* for reads from disk, at most */
    SCHED_TRIES = 16,             /* waiting requests looked at in one step */
    SCHED_LOOK = 256,             /* likewise, by slack: those that are compared */
    SCHED_GUESSES = SCHED_LOOK + SCHED_CLASSES + 1, /* prompts beside what runs, ahead */
    SCHED_MIN_SHARE = 8,  /* 1 / so much of a step is for prompts, if there are any */
    SCHED_TPOT_PART = 90, /* % of a TPOT that is spent; the rest is for errors */
};

static inline int min_int(int a, int b) { return a < b ? a : b; }
static inline int max_int(int a, int b) { return a > b ? a : b; }
static inline int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }

enum seq_state {
    SEQ_NEW,
    SEQ_PARKED,  /* waits for the first of its group */
    SEQ_WAITING, /* for a place and blocks */
    SEQ_RUNNING, /* has blocks */
    SEQ_ZOMBIE   /* told finished; a step in flight still uses its blocks */
};

/* Choices of one prompt. */
struct seq_group {
    uint64_t id;
    int members;
    bool ready;             /* the prompt is in the cache */
    struct sched_seq *lead; /* the one that computes it */
    struct list parked;
};

struct sched_seq {
    struct list link;  /* parked, waiting, running or zombies */
    struct list clink; /* waiting: its size class */
    struct gen_params p;
    uint64_t num; /* order of arrival = seniority; names it in steps */
    enum seq_state state;
    struct seq_group *group;
    int32_t *toks; /* prompt, then committed output */
    int n_toks, toks_cap;
    int limit; /* of n_toks */
    int32_t *ends;
    int n_ends;
    struct step_bias *bias;
    struct kvseq *kv;

    int next_pos;      /* the first position that no step computes yet */
    int prefill_end;   /* before it we prefill, from it on we decode */
    int n_flight;      /* steps in flight with an item of ours */
    uint32_t epoch;    /* items of an older one are void */
    bool tail_samples; /* the last item sampled: its token stands at next_pos */
    uint64_t tail_ticket;
    int n_scored, scored_next; /* prompt tokens scored: delivered, asked for */
    bool evict;                /* preempt when nothing is in flight */
    bool deferred;             /* did not fit the last step's arrays: goes first */
    int grant;                 /* tokens in the step being formed */
    int passed;                /* admissions of younger ones while it was the oldest */
    uint64_t tried;            /* state of the pool when it last did not fit */

    int given;            /* tokens that came with it: prompt, and those told before */
    bool importing;       /* runs, but waits for KV of another engine */
    struct kv_hold *hold; /* a pull that writes into our blocks; NULL */
    int exported;         /* blocks that were offered and pinned */

    int n_cached, n_preempted;
    uint32_t altered;      /* STEP_ALTERED_* of its rows */
    int had;               /* positions computed before a preemption, or elsewhere */
    uint64_t want;         /* number of its last read from disk; 0 = none */
    int64_t want_until_us; /* no longer does it wait for that */
    bool started;
    int64_t add_us, start_us, first_us, last_us;

    int64_t due_us; /* its first token, with a TTFT target */
    bool judged;    /* it could meet its target when it came: dropped once it cannot */
    int n_found;    /* prompt tokens that were in the cache then, or will be */
    int wait_tok;   /* waiting: what it counts in the scheduler's wait_tok */
    int skipped;    /* order slack: steps of other prompts while its prompt ran */
    bool has_slack; /* when it started */
    int64_t slack_us;
};

/* A pull that writes into blocks, which outlive the request. */
struct kv_hold {
    struct list link;
    uint64_t pull;
    struct sched_seq *q; /* NULL: gone, kv is ours */
    struct kvseq *kv;
};

struct flight_item {
    struct sched_seq *q;
    uint32_t epoch;
    int first_pos, n_tok, n_scored;
    bool samples;
};
struct flight {
    uint64_t ticket;
    bool submitted;
    int n_prompt_tok, n_decode;
    double est_us; /* its time, 0 = not known before */
    int64_t begin_us;
    int n_items;
    struct flight_item *items;
};

/* Order slack: a prompt and its place. */
struct sched_rank {
    struct sched_seq *q;
    int rank;    /* 0 first */
    int64_t key; /* within it, then by age */
    int64_t us;  /* what is left of it */
};

/* Early refusal: a prompt or an answer, played forward. */
struct sched_guess {
    int rest, out, blocks; /* prompt tokens, answer tokens to go */
    int grant;             /* of the step in question */
    int each;              /* a lump of prompts: how long each is; 0 = it is one */
    bool runs, own;
    int64_t tpot_us; /* the part of its target that is spent, and when, from now, its */
    double due_us;   /* next token is due by that */
};

/* Early refusal: what was found between two steps of prompts of one size. */
struct sched_verdict {
    uint64_t news; /* of the scheduler then */
    struct {
        int rest;
        double first_us;
    } late[2];      /* refused: the shortest one and the last one; rest 0 = none */
    int rest, told; /* of the last one that was in time, and that told the time; 0 */
    double first_us, took_us, told_us, told_took_us; /* their first tokens, and took_us */
};

struct outbox {
    struct sched_out *out;
    size_t *tok_off; /* of out[i]; of an EXPORT in ids */
    int *err_at;     /* -1 = none */
    size_t n, cap;
    struct step_token *toks;
    size_t n_toks, toks_cap;
    struct err *errs;
    size_t n_errs, errs_cap;
    int32_t *ids; /* of EXPORTs: blocks, then generated ids */
    size_t n_ids, ids_cap;
};

struct sched {
    struct sched_cfg cfg;
    struct step_caps caps;
    int ctx;     /* positions that one sequence can ever have */
    int max_run; /* sequences running */
    int shards;  /* of the KV, 1 or more */
    struct kvcache *kv;
    struct idmap by_id, groups;
    struct list waiting; /* oldest first */
    struct list wclass[SCHED_CLASSES];
    struct list running; /* oldest first */
    struct list zombies;
    struct list holds; /* struct kv_hold */
    int n_importing, n_held;
    int64_t wait_tok[SCHED_CLASSES]; /* prompt tokens to compute of those in the list
                                        `waiting`, by class of how many it has */
    int n_waiting, n_running, n_zombie, n_evict; /* n_waiting: parked ones too */
    uint64_t arrivals, steps;
    uint64_t pool_state;         /* counts returns of blocks */
    int prefill_row, decode_row; /* colocated: steps of prompts, of answers, in a row */
    bool draining;
    struct flight *flights; /* ring of cfg.depth */
    int flight_head, n_flights;
    struct kv_move *moves;     /* scratch: of a step, between tiers */
    struct sched_seq **order;  /* scratch: running, oldest first */
    struct sched_rank *rank;   /* scratch: prompts, least slack first */
    struct steptime time;      /* of steps */
    int pace_answers;          /* sequences that decode */
    int pace_tok, pace_seqs;   /* prompt tokens of a step while this many decode, */
    double pace_us;            /* and its time */
    struct sched_guess *guess; /* scratch: prompts, then answers */
    struct sched_guess **guess_short; /* scratch */
    int *heap;                        /* scratch: of rank */
    double mean_out;                  /* tokens of answers that ended of late */
    uint64_t judged;                  /* last group that was taken or refused, */
    int64_t verdict;                  /* and what sched_too_late said */
    struct sched_verdict verdicts[SCHED_CLASSES];
    uint64_t news;  /* counts what may make a verdict void */
    double took_us; /* what those that were taken cost the ones behind them, in all */
    uint64_t work;  /* of forecasts and of order slack: prompts and answers looked at */
    struct outbox box[2];
    int box_now;
    struct sched_stats st;
};

/* sched.c */
void sched_emit_toks(struct sched *s, struct sched_seq *q, bool scored,
                     const struct step_token *toks, int n);
/* Refused for its target: after retry_us it could meet it. */
void sched_refuse_late(struct sched *s, const struct gen_params *p, int64_t retry_us);
/* Let go of one that waits without telling. */
void sched_drop(struct sched *s, struct sched_seq *q);
/* Tell it finished and let go of it (at once, or when its last step returns). */
void sched_finish(struct sched *s, int64_t now, struct sched_seq *q,
                  enum finish_reason reason, int32_t stop_id, const struct err *error);

void sched_emit_export(struct sched *s, const struct sched_seq *q, const int32_t *blocks,
                       int n_blocks, int n_gen);
void sched_emit_reserved(struct sched *s, const struct sched_seq *q);
void sched_push_tok(struct sched_seq *q, int32_t id);

/* sched_kv.c */
/* What is committed and new goes out, pinned; last: all of it, with the ids generated. */
void sched_export(struct sched *s, struct sched_seq *q, bool last);
/* It has its blocks: say so and wait for KV. */
void sched_import_start(struct sched *s, struct sched_seq *q);
/* It lets go of its blocks, which a pull that still writes keeps. True: it keeps them. */
bool sched_import_leave(struct sched *s, struct sched_seq *q);
void sched_pulled(struct sched *s, int64_t now, const struct sched_event *ev);
void sched_recompute(struct sched *s, int64_t now, const struct sched_event *ev);
void sched_kv_free(struct sched *s);

/* sched_queue.c */
/* Tokens of the prompt of q, which is new, that need not be computed: in the cache, or
 * computed by those before it; 0 when nobody asks. */
int sched_found(struct sched *s, const struct gen_params *p, const int32_t *prompt);
void sched_enqueue(struct sched *s, struct sched_seq *q);
/* Out of its list and group, blocks returned; q is freed. */
void sched_release(struct sched *s, struct sched_seq *q);
void sched_unlink(struct sched *s, struct sched_seq *q);
void sched_leave_group(struct sched *s, struct sched_seq *q);
void sched_group_ready(struct sched *s, struct sched_seq *q);
/* From waiting to running with the blocks of all it knows; false: no room. */
bool sched_start(struct sched *s, int64_t now, struct sched_seq *q);
void sched_preempt(struct sched *s, struct sched_seq *q);
int sched_class(const struct sched_seq *q);

/* sched_tier.c */
/* It arrived: what of it is on disk is read ahead of its turn. */
void sched_tier_want(struct sched *s, int64_t now, struct sched_seq *q);
/* Its turn has not come: it is being read, or moves are under way that it must not meet.
 */
bool sched_tier_waits(const struct sched *s, int64_t now, const struct sched_seq *q);
bool sched_tier_moving(const struct sched *s);
/* Copies that the step begins with. */
void sched_tier_fill(struct sched *s, struct step *st);

/* sched_slack.c */
/* A flight was filled, or is back: the time of its step. */
void sched_time_form(struct sched *s, int64_t now, struct flight *fl);
void sched_time_done(struct sched *s, const struct flight *fl, const struct step_done *d);
/* Before the prompts of a step are planned, and after it. */
void sched_slack_begin(struct sched *s);
void sched_slack_end(struct sched *s, int n_order);
/* Prompts among order[0..n_order) and, if so, the waiting ones, into s->rank; extra: one
 * more that waits, or NULL. */
int sched_by_slack(struct sched *s, int64_t now, int n_order, bool waiting,
                   struct sched_seq *extra);
/* Of `left` tokens how many may be of prompts: decoding is planned. */
int sched_slack_chunk(const struct sched *s, int64_t now, int left);
/* Colocated: an answer would miss its TPOT target if a step of prompts came before the
 * next one of answers. */
bool sched_slack_decode_first(const struct sched *s, int64_t now);
/* q starts for the first time. */
void sched_slack_start(struct sched *s, int64_t now, struct sched_seq *q);
/* Prompt tokens of it to compute. */
int sched_rest(const struct sched_seq *q);
/* The part that is spent of its TPOT target, 0 = none, and when the next token is due by
 * that; it has had the first. */
int64_t sched_tpot(const struct sched_seq *q);
int64_t sched_token_due(const struct sched_seq *q);
/* What sorting n costs, in s->work. */
static inline uint64_t sched_sort_work(int n)
{
    return n < 2 ? 1 : (uint64_t)n * (uint64_t)(32 - __builtin_clz((unsigned)n));
}
/* Until the steps in flight are back, at most, us. */
double sched_in_flight(const struct sched *s, int64_t now);
/* sched_forecast.c */
/* From now to the first token of own, which is not in the queue; us. EVEN, SOON: rather
 * early than late, one that decodes ends after a while, or at once; SAFE: rather late. */
enum sched_guess_as { SCHED_EVEN, SCHED_SOON, SCHED_SAFE };
double sched_forecast(struct sched *s, int64_t now, struct sched_seq *own,
                      enum sched_guess_as as);

/* sched_refuse.c */
/* A request with so many prompt tokens to compute is refused if it is late, now or while
 * it waits. */
bool sched_judged(const struct sched *s, const struct gen_params *p, int rest);
/* Such a one cannot meet its target now: after how many us it could; 0 = take it. */
int64_t sched_too_late(struct sched *s, int64_t now, const struct gen_params *p,
                       int rest);
/* One was taken, with or without a target. */
void sched_took(struct sched *s, int rest);
/* Those that wait and cannot meet their targets any more are refused. */
void sched_drop_late(struct sched *s, int64_t now);

/* sched_form.c */
/* Tokens known or in the making. */
int sched_vlen(const struct sched_seq *q);
/* Positions left to compute before something has to come back. */
int sched_need(const struct sched_seq *q);

/* sched_done.c */
void sched_done(struct sched *s, int64_t now, const struct step_done *done);

#endif
