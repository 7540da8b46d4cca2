/* daemon/api/answer.h - JSON pieces that several answers share. Pure.
 *
 * Errors have the shape that OpenAI clients read: {"error":{message,type,param,code}},
 * where code is a string or null, never a number. */
#ifndef API_ANSWER_H
#define API_ANSWER_H

#include <stdint.h>

struct buf;
struct err;
struct jw;

struct answer_usage {
    int64_t prompt, completion, cached;
};

/* The whole error body, one line. */
void answer_error(struct buf *b, const struct err *e);
/* The `code` string of an error, NULL when it has none. */
const char *answer_code(const struct err *e);
/* Key "usage" and its object. */
void answer_usage(struct jw *w, const struct answer_usage *u);

#endif
