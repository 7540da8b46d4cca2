/* daemon/api/sse.h - frames of one streamed answer. Pure.
 *
 * What is constant in a frame is formatted once per request (sse_init), so a token costs
 * one escape and three copies. Order of a stream, for each choice: role (chat only), text
 * frames, finish; then once usage if asked for, then [DONE]. An error frame ends a stream
 * in place of [DONE]. One owner thread. */
#ifndef API_SSE_H
#define API_SSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

struct answer_usage;
struct err;
struct logprobs;

struct sse_cfg {
    const char *id, *model, *fingerprint;
    int64_t created_s;
    bool chat, include_usage;
};
struct sse {
    bool chat, include_usage;
    struct buf head; /* data: {..."choices":[ */
};

void sse_init(struct sse *s, const struct sse_cfg *cfg);
void sse_done(struct sse *s);

/* Each appends one whole frame to out. */
void sse_role(struct sse *s, int index, struct buf *out);
/* lp NULL: no log-probabilities asked for; it is emptied. */
void sse_text(struct sse *s, int index, const char *text, size_t n, struct logprobs *lp,
              struct buf *out);
/* What the model thought before it answers. */
void sse_thought(struct sse *s, int index, const char *text, size_t n, struct buf *out);
void sse_finish(struct sse *s, int index, const char *reason, struct buf *out);
void sse_usage(struct sse *s, const struct answer_usage *u, struct buf *out);
void sse_end(struct buf *out); /* data: [DONE] */
void sse_error(const struct err *e, struct buf *out);

#endif
