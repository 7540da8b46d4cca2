/* daemon/api/thought.c - the answer and the thoughts before it, apart. */
#include "daemon/api/thought.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "daemon/serve/harmony.h"
#include "daemon/serve/tokenizer.h"

struct thought {
    const struct tokenizer *t;
    struct harmony_reader reader;
    struct utf8_hold hold;
    struct buf piece;
    struct step_token *answer;
    int cap, n_tokens;
};

struct thought *thought_new(enum template_family f, const struct tokenizer *t, bool open)
{
    struct thought *h;

    if (f != TEMPLATE_HARMONY)
        return NULL;
    h = xcalloc(1, sizeof(*h));
    h->t = t;
    harmony_reader_init(&h->reader, t, open);
    buf_init(&h->piece, 0);
    return h;
}

void thought_free(struct thought *h)
{
    if (!h)
        return;
    buf_done(&h->piece);
    free(h->answer);
    free(h);
}

static bool is_answer(const struct harmony_reader *r)
{
    return !r->to[0] &&
           (!r->of[0] || !strcmp(r->of, "final") || !strcmp(r->of, "commentary"));
}

const struct step_token *thought_split(struct thought *h, const struct step_token *toks,
                                       int *n, struct buf *said)
{
    int kept = 0;

    if (*n > h->cap) {
        free(h->answer);
        h->answer = xcalloc((size_t)*n, sizeof(*h->answer));
        h->cap = *n;
    }
    for (int i = 0; i < *n; i++) {
        enum harmony_at at = harmony_read(&h->reader, toks[i].id);

        if (at == HARMONY_TEXT && is_answer(&h->reader)) {
            h->answer[kept++] = toks[i];
            continue;
        }
        h->n_tokens++;
        if (at != HARMONY_TEXT)
            continue;
        buf_clear(&h->piece);
        tokenizer_piece(h->t, toks[i].id, false, false, &h->piece);
        utf8_hold_push(&h->hold, h->piece.p, h->piece.len, false, said);
    }
    *n = kept;
    return h->answer;
}

void thought_end(struct thought *h, struct buf *said)
{
    utf8_hold_push(&h->hold, "", 0, true, said);
}

int thought_n_tokens(const struct thought *h) { return h->n_tokens; }
