/* daemon/api/gen_int.h - a generation and its choices: what gen.c and gen_text.c share.
 * Not for others.
 *
 * gen_text.c turns tokens into text, and text into frames or the whole answer; gen.c
 * decides when. All with the connection's lock held. */
#ifndef API_GEN_INT_H
#define API_GEN_INT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "daemon/api/logprobs.h"
#include "daemon/api/sse.h"
#include "daemon/serve/tokenizer.h"

struct answer_usage;
struct conn;
struct gen;
struct http;
struct params;
struct served;
struct step_token;
struct textout;
struct thought;

struct choice {
    struct gen *g;
    int index, prompt;
    uint64_t id; /* 0 until the router named it */
    bool begun, ended;
    const char *reason;
    struct textout *out;
    struct thought *thought; /* NULL: all is answer */
    struct buf thoughts;     /* of whole answers; streams: since the last frame */
    struct buf text;         /* whole answers; streams that need offsets */
    size_t echo_bytes, echo_chars, seen_bytes, seen_chars;
    struct logprobs lp;
    int n_scored, n_out, n_prompt, n_cached;
    int64_t first_us, last_us, gap_us; /* gap: the largest between tokens */
};

struct gen {
    atomic_int refs;
    struct conn *c;
    struct http *h;
    struct params *p;
    const struct served *m;
    struct tok_ids *prompts;
    int *max_tokens;
    int n_prompts, n_choices, n_left;
    bool chat, failed, keep_text;
    char id[48], fingerprint[64];
    int64_t created_s;
    struct sse sse;
    struct buf scratch;
    struct choice choices[];
};

/* Prompt tokens that were scored, for log-probabilities of the prompt. */
void gen_add_scored(struct choice *ch, const struct step_token *toks, int n);
/* Once, before the first text: the role, and the prompt where it is to be echoed. */
void gen_begin(struct choice *ch);
/* Tokens into text: into a frame or the whole. True: a stop string was completed. */
bool gen_push(struct choice *ch, const struct step_token *toks, int n);
/* Tokens that count in usage where a stop string ended the text. */
int gen_n_tokens(const struct choice *ch);
/* What g->scratch and textout released: into a frame or the text. */
void gen_emit(struct choice *ch);
/* The rest of a choice's text and, streaming, its last frame. */
void gen_finish_text(struct choice *ch);
/* All choices have ended: the whole answer, or the end of the stream. */
void gen_complete(struct gen *g);
void gen_usage(const struct gen *g, struct answer_usage *u);

#endif
