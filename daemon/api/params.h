/* daemon/api/params.h - the JSON body of a completion or chat request, checked.
 *
 * Pure: bytes in, plain values out; every field has a row in params.def with its range,
 * and every fault names its field the way the client wrote it (messages[3].role). What
 * needs the model (ids in range, lengths) is checked by params_check_model. Strings are
 * borrowed from the parsed JSON that the object owns. One owner thread. */
#ifndef API_PARAMS_H
#define API_PARAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "daemon/serve/sched.h"
#include "daemon/serve/template.h"

struct err;

enum params_kind { PARAMS_CHAT = 1, PARAMS_TEXT = 2 };

enum {
    PARAMS_MAX_N = 8,
    PARAMS_MAX_STOP = 4,
    PARAMS_MAX_STOP_BYTES = 4096,
    PARAMS_MAX_STOP_IDS = 64,
    PARAMS_MAX_BIAS = 1024,
    PARAMS_MAX_PROMPTS = 64,
    PARAMS_MAX_MSGS = 10000,
    PARAMS_MAX_DEPTH = 64,
    PARAMS_MAX_CLASS = 63,
};

/* One prompt of a completion: text, or ids when text is NULL. */
struct params_prompt {
    const char *text;
    size_t n; /* bytes of text, or ids */
    const int32_t *ids;
};

struct params_block;

struct params {
    enum params_kind kind;
    json_t *root;
    struct params_block *blocks; /* memory sized by the input */

    const char *model;     /* NULL: not named */
    const char *effort;    /* low, medium, high; NULL: not named */
    const char *slo_class; /* NULL: the instance's own target */
    struct gen_params gen; /* choice and n_prompt are the caller's to fill */
    int64_t n, max_tokens; /* max_tokens -1: as much as fits */
    int64_t max_completion_tokens;
    int64_t seed, top_logprobs;
    bool has_seed, stream, include_usage, echo, token_ids, logprobs, cache_prompt;

    const char *stop[PARAMS_MAX_STOP];
    size_t stop_len[PARAMS_MAX_STOP];
    int n_stop;
    int32_t stop_ids[PARAMS_MAX_STOP_IDS];
    struct step_bias *biases; /* gen.n_bias of them */

    struct chat_msg *msgs; /* chat */
    size_t n_msgs;
    struct params_prompt *prompts; /* text */
    int n_prompts;
    int n_unknown; /* members that no row knows: ignored */
};

/* Check body[0..n). On failure *ret is untouched; e->param names the field. */
int params_parse(const char *body, size_t n, enum params_kind kind, struct params **ret,
                 struct err *e);
/* The instance's values for a request that says nothing of sampling, since small models
 * ramble at temperature 1 over the whole vocabulary; one that names any of temperature,
 * top_p, top_k and min_p gets what it names and the API's own defaults for the rest. */
void params_sampling(struct params *p, float temperature, float top_p);
/* Token ids of prompts, biases and stops against the vocabulary. */
int params_check_model(const struct params *p, int n_vocab, struct err *e);
/* Does the last message go on, as an answer that was begun? */
bool params_is_open(const struct params *p);
void params_free(struct params *p);
/* The i-th member name that no row knows, NULL past the end (for a note in the log). */
const char *params_unknown(const struct params *p, int i);

/* A list of token ids under obj.key into *ret (owned by p's blocks); shared with
 * /detokenize. Ids must be 0..INT32_MAX; at most max of them. */
int params_ids(struct params_block **blocks, const json_t *list, const char *name,
               int32_t **ret, size_t *ret_n, struct err *e);
void params_blocks_free(struct params_block *b);

#endif
