/* tests/unit/step_rig.h - steps for an executor on a tiny model, whose sequences have
 * blocks of their own: STEP_PER_SEQ each, from seq * STEP_PER_SEQ on. The includer says
 * beforehand how many (STEP_SEQS), of how many tokens a step (STEP_ROWS) and a sequence
 * (STEP_CTX). */
#ifndef TESTS_STEP_RIG_H
#define TESTS_STEP_RIG_H

#include "daemon/serve/step.h"
#include "kernels/backend.h"

enum { STEP_PER_SEQ = STEP_CTX / KV_BLOCK_TOK };

static const struct step_caps caps = {.items = STEP_SEQS,
                                      .toks = STEP_ROWS,
                                      .blocks = STEP_SEQS * STEP_PER_SEQ,
                                      .samples = STEP_SEQS,
                                      .hist = 1024,
                                      .biases = 64,
                                      .copies = 4,
                                      .refs = STEP_SEQS,
                                      .outs = STEP_ROWS};

/* n tokens of a sequence at pos; toks NULL = references. Sampled at its last row, as s
 * says. */
static struct step_item *step_rig_add(struct step *st, uint64_t seq, int pos,
                                      const int32_t *toks, int n, struct step_sample s)
{
    struct step_item *it = &step_items(st)[st->n_items++];

    *it = (struct step_item){.seq = seq,
                             .first_pos = pos,
                             .n_tok = n,
                             .tok_off = st->n_toks,
                             .parent_off = -1,
                             .block_off = st->n_blocks,
                             .n_block = (pos + n + KV_BLOCK_TOK - 1) / KV_BLOCK_TOK,
                             .out_from = n - 1,
                             .sample = st->n_samples,
                             .next = -1};
    for (int i = 0; i < n; i++)
        step_toks(st)[st->n_toks++] = toks ? toks[i] : STEP_TOK_REF;
    for (int i = 0; i < it->n_block; i++)
        step_blocks(st)[st->n_blocks++] = (int)seq * STEP_PER_SEQ + i;
    step_samples(st)[st->n_samples++] = s;
    return it;
}

#endif
