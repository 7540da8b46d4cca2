/* Generated tokens to text that may be sent.
 *
 * Bytes pass three gates in order: utf8_hold (whole characters only), the stop matchers
 * (one KMP automaton per stop string, so that no text is ever read twice) and release:
 * everything but the longest suffix that begins some stop string. Each gate is a function
 * of the byte stream alone, so the grouping of tokens into pushes cannot matter. The stop
 * that is complete first wins; of several that end at one byte, the longest, so that the
 * answer holds no part of it.
 *
 * A token's record waits until the text of its last byte was released. */
#include "daemon/serve/textout.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"
#include "daemon/serve/tokenizer.h"

struct stop {
    char *p;
    size_t n;
    size_t *back; /* KMP failure function */
    size_t state; /* bytes of p that the text ends with */
};

/* What is known of toks[i] beside its public record. */
struct extent {
    size_t raw_end;  /* in the whole byte stream */
    size_t text_end; /* in the whole text, SIZE_MAX while a character is incomplete */
};

struct textout {
    const struct tokenizer *t;
    struct stop *stops;
    int n_stops;
    bool first, stopped;
    int n_tokens;
    struct utf8_hold hold;
    struct buf pend; /* text that was not released */
    size_t released; /* bytes of text before pend */
    size_t raw_seen; /* bytes of all tokens */
    struct buf raw;  /* bytes of toks[] */
    struct textout_tok *toks;
    struct extent *ext;
    size_t n_toks, n_ready, n_taken, cap;
};

static void stop_init(struct stop *s, const char *p, size_t n)
{
    size_t k = 0;

    s->p = xmalloc(n);
    memcpy(s->p, p, n);
    s->n = n;
    s->back = xcalloc(n, sizeof(*s->back));
    for (size_t i = 1; i < n; i++) {
        while (k && p[i] != p[k])
            k = s->back[k - 1];
        if (p[i] == p[k])
            k++;
        s->back[i] = k;
    }
}

struct textout *textout_new(const struct tokenizer *t, const char *const *stops,
                            const size_t *stop_lens, int n_stops, bool first_text)
{
    struct textout *o = xcalloc(1, sizeof(*o));

    o->t = t;
    o->first = first_text;
    buf_init(&o->pend, 0);
    buf_init(&o->raw, 0);
    o->stops = xcalloc((size_t)n_stops + 1, sizeof(*o->stops));
    for (int i = 0; i < n_stops; i++)
        if (stop_lens[i])
            stop_init(&o->stops[o->n_stops++], stops[i], stop_lens[i]);
    return o;
}

void textout_free(struct textout *o)
{
    if (!o)
        return;
    for (int i = 0; i < o->n_stops; i++) {
        free(o->stops[i].p);
        free(o->stops[i].back);
    }
    free(o->stops);
    buf_done(&o->pend);
    buf_done(&o->raw);
    free(o->toks);
    free(o->ext);
    free(o);
}

/* Forget the tokens that were taken. */
static void drop_taken(struct textout *o)
{
    size_t n = o->n_taken, raw;

    if (!n)
        return;
    raw = n < o->n_toks ? o->toks[n].raw_off : o->raw.len;
    o->n_toks -= n;
    o->n_ready -= n;
    o->n_taken = 0;
    memmove(o->toks, o->toks + n, o->n_toks * sizeof(*o->toks));
    memmove(o->ext, o->ext + n, o->n_toks * sizeof(*o->ext));
    for (size_t i = 0; i < o->n_toks; i++)
        o->toks[i].raw_off -= raw;
    buf_shift(&o->raw, raw);
}

/* Feed one byte; yields the length of the longest stop that it completes, or 0. */
static size_t stops_feed(struct textout *o, char c)
{
    size_t longest = 0;

    for (int i = 0; i < o->n_stops; i++) {
        struct stop *s = &o->stops[i];
        while (s->state && s->p[s->state] != c)
            s->state = s->back[s->state - 1];
        if (s->p[s->state] == c)
            s->state++;
        if (s->state < s->n)
            continue;
        if (s->n > longest)
            longest = s->n;
        s->state = s->back[s->n - 1];
    }
    return longest;
}

/* The text ends at byte `cut` of pend. */
static void stop_at(struct textout *o, size_t cut)
{
    size_t end = o->released + cut;

    o->stopped = true;
    o->hold.n = 0;
    o->pend.len = cut;
    while (o->n_toks > o->n_ready && o->toks[o->n_toks - 1].text_off >= end)
        o->n_toks--;
    for (size_t i = o->n_ready; i < o->n_toks; i++)
        o->ext[i].text_end = end;
}

/* Look at text that was added to pend from `from` on. */
static void match(struct textout *o, size_t from)
{
    for (size_t i = from; i < o->pend.len; i++) {
        size_t n = stops_feed(o, o->pend.p[i]);
        if (n) {
            stop_at(o, i + 1 - n);
            return;
        }
    }
}

static void resolve(struct textout *o)
{
    size_t whole = o->raw_seen - (size_t)o->hold.n, text = o->released + o->pend.len;

    for (size_t i = o->n_toks; i-- > o->n_ready && o->ext[i].text_end == SIZE_MAX;)
        if (o->ext[i].raw_end <= whole)
            o->ext[i].text_end = text;
}

static void add_record(struct textout *o, const struct step_token *tok, size_t raw_off)
{
    size_t i = o->n_toks++;

    if (i == o->cap) {
        o->cap = o->cap ? 2 * o->cap : 16;
        o->toks = xrealloc(o->toks, o->cap * sizeof(*o->toks));
        o->ext = xrealloc(o->ext, o->cap * sizeof(*o->ext));
    }
    o->toks[i] = (struct textout_tok){.tok = *tok,
                                      .text_off = o->released + o->pend.len,
                                      .raw_off = raw_off,
                                      .raw_len = o->raw.len - raw_off};
    o->ext[i] = (struct extent){.raw_end = o->raw_seen, .text_end = SIZE_MAX};
}

static void take_token(struct textout *o, const struct step_token *tok)
{
    size_t raw_off = o->raw.len, text = o->pend.len;

    tokenizer_piece(o->t, tok->id, o->first, false, &o->raw);
    if (!tokenizer_is_control(o->t, tok->id))
        o->first = false;
    o->n_tokens++;
    o->raw_seen += o->raw.len - raw_off;
    add_record(o, tok, raw_off);
    if (o->raw.len > raw_off)
        utf8_hold_push(&o->hold, o->raw.p + raw_off, o->raw.len - raw_off, false,
                       &o->pend);
    match(o, text);
    if (!o->stopped)
        resolve(o);
}

static void release(struct textout *o, bool all, struct buf *out)
{
    size_t held = 0, n;

    for (int i = 0; i < o->n_stops && !all; i++)
        if (o->stops[i].state > held)
            held = o->stops[i].state;
    n = o->pend.len - held;
    if (n) {
        buf_add(out, o->pend.p, n);
        o->released += n;
        buf_shift(&o->pend, n);
    }
    while (o->n_ready < o->n_toks && o->ext[o->n_ready].text_end <= o->released)
        o->n_ready++;
}

bool textout_push(struct textout *o, const struct step_token *toks, int n,
                  struct buf *out)
{
    drop_taken(o);
    if (o->stopped)
        return true;
    for (int i = 0; i < n && !o->stopped; i++)
        take_token(o, &toks[i]);
    release(o, o->stopped, out);
    return o->stopped;
}

void textout_end(struct textout *o, struct buf *out)
{
    size_t text = o->pend.len;

    drop_taken(o);
    if (o->stopped)
        return;
    utf8_hold_push(&o->hold, NULL, 0, true, &o->pend);
    match(o, text);
    if (!o->stopped)
        resolve(o);
    release(o, true, out);
}

bool textout_stopped(const struct textout *o) { return o->stopped; }
int textout_n_tokens(const struct textout *o) { return o->n_tokens; }

size_t textout_take(struct textout *o, const struct textout_tok **ret,
                    const char **ret_raw)
{
    size_t from = o->n_taken;

    *ret = o->toks + from;
    *ret_raw = o->raw.p ? o->raw.p : "";
    o->n_taken = o->n_ready;
    return o->n_ready - from;
}
