/* daemon/serve/step.h - one step of the engine as plain data of fixed capacity.
 *
 * The scheduler fills it, an executor runs it, a twin prices it, a wire carries it. No
 * pointers: arrays stand at offsets inside one allocation whose size comes from
 * step_caps, so a step can be copied, sent and recorded as bytes. Only *committed* tokens
 * (counted in a result's n_accepted) get block hashes, count in usage, feed stops or are
 * sent. */
#ifndef SERVE_STEP_H
#define SERVE_STEP_H

#include <stddef.h>
#include <stdint.h>

struct buf;
struct err;

enum { STEP_TOP_MAX = 20, STEP_TOK_REF = INT32_MIN };

/* What the arrays can hold. */
struct step_caps {
    int32_t items, toks, blocks, samples, hist, biases, copies, refs;
    int32_t outs; /* output rows of all items together */
    int32_t moves;
};

/* Tokens tok[tok_off .. +n_tok) of one sequence at positions first_pos.. (a chain when
 * parent_off < 0, else parent[] gives each token's parent row within the item and
 * position[] its depth; speculation, later). block[block_off .. +n_block) covers
 * positions 0 .. first_pos + n_tok - 1. Rows out_from .. n_tok-1 produce an output: each
 * scores the token that follows it in the item (prompt logprobs); the last row samples if
 * sample >= 0, else it scores `next`. out_from = n_tok asks for none. */
struct step_item {
    uint64_t seq;     /* scheduler's id, echoed in results */
    uint64_t request; /* the id that it came with, for traces alone */
    int32_t first_pos, n_tok, tok_off, parent_off;
    int32_t block_off, n_block;
    int32_t out_from;
    int32_t sample; /* index in sample[], -1 = none */
    int32_t next;   /* the token after the item, when its last row scores; else -1 */
    int32_t n_top; /* top alternatives wanted with each output, 0..20; -1 = no logprobs */
    int32_t decode; /* 1: its tokens were generated just now; 0: they fill the KV */
    int32_t unused; /* 0 */
};

/* Parameters of one sampled row. hist = the sequence's tokens (prompt then output) when a
 * penalty asks for them: hist[hist_off .. +n_hist), the first n_prompt are the prompt. */
struct step_sample {
    uint64_t seed;
    int32_t choice, out_pos; /* with seed, the whole input of the random numbers */
    float temperature;       /* 0 = greedy */
    int32_t top_k;           /* 0 = off */
    float top_p, min_p;      /* 1 and 0 = off */
    float repetition, presence, frequency; /* 1, 0, 0 = off */
    int32_t hist_off, n_hist, n_prompt;
    int32_t bias_off, n_bias;
};
struct step_bias {
    int32_t id;
    float bias;
};
/* A token of this step that an earlier step still computes: tok[at] = STEP_TOK_REF and
 * the value is accepted token `index` (0 = the first) of sequence seq's result in that
 * ticket. Where it accepted too few, the item does nothing and accepts 0. */
struct step_ref {
    uint64_t ticket, seq;
    int32_t at, index;
};
struct step_copy {
    int32_t src, dst; /* block ids, copied before anything else */
};

/* Before the copies, in this order: a block and a slot of the host tier (kvtier.h). */
struct step_move {
    int32_t block, slot;
    int32_t up; /* 1: into the block */
};

struct step {
    uint32_t bytes; /* of the whole allocation */
    struct step_caps caps;
    int32_t n_items, n_toks, n_blocks, n_samples, n_hist, n_biases, n_copies, n_refs;
    int32_t n_moves;
    uint64_t number; /* 1, 2, .. for watchdogs and recordings */
};

size_t step_bytes(const struct step_caps *c);
struct step *step_new(const struct step_caps *c); /* free() it */
void step_clear(struct step *s);
/* What src holds into dst, made with the same caps; copies only what is used. */
void step_copy_to(struct step *dst, const struct step *src);
struct step_item *step_items(const struct step *s);
int32_t *step_toks(const struct step *s);
int32_t *step_parents(const struct step *s);
int32_t *step_positions(const struct step *s);
int32_t *step_blocks(const struct step *s);
struct step_sample *step_samples(const struct step *s);
int32_t *step_hist(const struct step *s);
struct step_bias *step_biases(const struct step *s);
struct step_copy *step_copies(const struct step *s);
struct step_ref *step_refs(const struct step *s);
struct step_move *step_moves(const struct step *s);
/* Every index and range inside the capacities; for steps that crossed a process. */
int step_check(const struct step *s, size_t bytes, struct err *e);

/* One token with its log-probabilities (natural log, finite). */
struct step_token {
    int32_t id;
    float logprob;
    int32_t n_top;
    int32_t top_id[STEP_TOP_MAX];
    float top_logprob[STEP_TOP_MAX];
};
/* What one item of the step produced, one result an item in item order: tok[tok_off ..
 * +n_scored) score prompt tokens, then n_accepted (0, 1 or several) new ones follow. KV
 * of the item's own positions is written, that of accepted tokens is not. n_accepted = 0
 * of an item that samples means that its last row has to run again. */
struct step_result {
    uint64_t seq;
    int32_t tok_off, n_scored, n_accepted;
    uint32_t altered; /* STEP_ALTERED_* of any of its rows */
};
/* What was done to a row that changes what the model answers: it went to experts in FP8
 * (also those of its own rank: where experts stand changes no bit), to the next best
 * expert, to none. */
enum { STEP_ALTERED_F8 = 1, STEP_ALTERED_NEXT = 2, STEP_ALTERED_DROP = 4 };
struct step_done {
    uint64_t ticket, number;
    int32_t n_results, n_toks;
    int64_t start_us, end_us;    /* when the executor worked on it */
    struct step_result *results; /* owned by the executor until the next poll */
    struct step_token *toks;
    const struct err
        *error; /* NULL, or why the device failed; then there are no results */
};

/* Where block ids are cut into shards of so many: the one that an item is of. The last
 * block of an item is always there; those before may have left a window. */
static inline int step_shard(const struct step *s, const struct step_item *it,
                             int shard_blocks)
{
    return step_blocks(s)[it->block_off + it->n_block - 1] / shard_blocks;
}

#endif
