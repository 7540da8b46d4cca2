/* ctl/quality_stat.h - how far one model's answers are from another's on the same texts.
 *
 * What a model said of a text ("said"): the tokens of the text, the log-probability of
 * each and the likeliest tokens in its place, with theirs; and the tokens with which it
 * went on, taking the likeliest each time:
 *   {"texts": [{"tokens": [..], "logprobs": [..], "tops": [{token: logprob}, ..],
 *               "greedy": [..]}, ..]}
 * A first token has no probability (null). Pure. */
#ifndef CTL_QUALITY_STAT_H
#define CTL_QUALITY_STAT_H

#include "base/json.h"

struct err;

/* Over all positions of all texts but the first of each. */
struct quality_figures {
    int positions;
    double agreement;  /* share where the exact one's likeliest token is b's too */
    double kl_mean;    /* nats, of exact || b; at the least, see quality_stat.c */
    double kl_largest; /* of one position */
    double perplexity_exact, perplexity;
    double greedy_same; /* share of the exact one's own tokens before b's differ */
    int greedy_texts_same, texts;
};
/* INVALID when the two are not of the same texts and tokens. */
int quality_compare(const json_t *exact, const json_t *b, struct quality_figures *ret,
                    struct err *e);
/* Perplexity of one alone, NaN without a position; *ret_n (may be NULL) positions. */
double quality_perplexity(const json_t *said, int *ret_n);

#endif
