/* daemon/api/gen_text.c - the text of a generation: frames of a stream, the whole answer.
 *
 * Offsets of log-probabilities count characters of the whole text, which begins with the
 * prompt where that is echoed. */
#include "base/json.h"
#include "daemon/api/answer.h"
#include "daemon/api/conn.h"
#include "daemon/api/gen_int.h"
#include "daemon/api/params.h"
#include "daemon/api/thought.h"
#include "daemon/ctrl/router.h"
#include "daemon/serve/textout.h"

/* ---- text of a choice ---- */

static size_t count_chars(const char *p, size_t n)
{
    size_t chars = 0;

    for (size_t i = 0; i < n; i++)
        chars += ((unsigned char)p[i] & 0xc0) != 0x80;
    return chars;
}

/* Where byte `off` of the generated text is, in characters of the whole text. */
static size_t char_offset(struct choice *ch, size_t off)
{
    size_t at = ch->echo_bytes + off;

    if (at > ch->text.len)
        at = ch->text.len;
    if (at > ch->seen_bytes) {
        ch->seen_chars += count_chars(ch->text.p + ch->seen_bytes, at - ch->seen_bytes);
        ch->seen_bytes = at;
    }
    return ch->seen_chars;
}

/* Take what textout released into the log-probabilities, then into a frame or the text.
 */
void gen_emit(struct choice *ch)
{
    struct gen *g = ch->g;
    const struct textout_tok *toks;
    const char *raw;
    size_t n = textout_take(ch->out, &toks, &raw);

    if (g->keep_text && g->scratch.len)
        buf_add(&ch->text, g->scratch.p, g->scratch.len);
    for (size_t i = 0; g->p->logprobs && i < n; i++)
        logprobs_add(&ch->lp, &toks[i].tok, raw + toks[i].raw_off, toks[i].raw_len,
                     g->chat ? 0 : char_offset(ch, toks[i].text_off), true);
    if (!g->p->stream || !(g->scratch.len || ch->lp.n))
        return;
    sse_text(&g->sse, ch->index, g->scratch.len ? g->scratch.p : "", g->scratch.len,
             g->p->logprobs ? &ch->lp : NULL, &g->c->out);
}

static void emit_thoughts(struct choice *ch)
{
    struct gen *g = ch->g;

    if (!g->p->stream || !ch->thoughts.len)
        return;
    sse_thought(&g->sse, ch->index, ch->thoughts.p, ch->thoughts.len, &g->c->out);
    buf_clear(&ch->thoughts);
}

bool gen_push(struct choice *ch, const struct step_token *toks, int n)
{
    bool stopped;

    if (ch->thought) {
        toks = thought_split(ch->thought, toks, &n, &ch->thoughts);
        emit_thoughts(ch);
    }
    buf_clear(&ch->g->scratch);
    stopped = textout_push(ch->out, toks, n, &ch->g->scratch);
    gen_emit(ch);
    return stopped;
}

int gen_n_tokens(const struct choice *ch)
{
    return textout_n_tokens(ch->out) + (ch->thought ? thought_n_tokens(ch->thought) : 0);
}

/* ---- the prompt, when it is to be part of the answer ---- */

static void add_prompt_token(struct choice *ch, const struct step_token *t, int at,
                             bool scored)
{
    struct gen *g = ch->g;
    struct buf piece, text;

    buf_init(&piece, 0);
    buf_init(&text, 0);
    tokenizer_piece(g->m->tok, t->id, at == 0, true, &piece);
    tokenizer_piece(g->m->tok, t->id, at == 0, false, &text);
    logprobs_add(&ch->lp, t, piece.len ? piece.p : "", piece.len, ch->echo_chars, scored);
    ch->echo_chars += count_chars(text.p, text.len);
    buf_done(&piece);
    buf_done(&text);
}

void gen_add_scored(struct choice *ch, const struct step_token *toks, int n)
{
    struct step_token first = {.id = ch->g->prompts[ch->prompt].v[0]};

    if (ch->n_scored == 0)
        add_prompt_token(ch, &first, ch->n_scored++, false);
    for (int i = 0; i < n; i++)
        add_prompt_token(ch, &toks[i], ch->n_scored++, true);
}

static void echo(struct choice *ch)
{
    struct gen *g = ch->g;
    const struct params_prompt *p = &g->p->prompts[ch->prompt];
    const struct tok_ids *ids = &g->prompts[ch->prompt];
    struct buf text;

    if (g->p->logprobs && ch->n_scored == 0)
        gen_add_scored(ch, NULL, 0);
    buf_init(&text, 0);
    if (p->text)
        buf_add(&text, p->text, p->n);
    else
        tokenizer_decode(g->m->tok, ids->v, ids->n, false, &text);
    ch->echo_bytes = ch->seen_bytes = text.len;
    ch->seen_chars = count_chars(text.p, text.len);
    if (g->keep_text && text.len)
        buf_add(&ch->text, text.p, text.len);
    if (g->p->stream) {
        g->c->out_cap += text.len * 8; /* its own size is no sign of a slow reader */
        sse_text(&g->sse, ch->index, text.len ? text.p : "", text.len,
                 g->p->logprobs ? &ch->lp : NULL, &g->c->out);
    }
    buf_done(&text);
}

void gen_begin(struct choice *ch)
{
    struct gen *g = ch->g;

    if (ch->begun)
        return;
    ch->begun = true;
    if (g->chat && g->p->stream)
        sse_role(&g->sse, ch->index, &g->c->out);
    if (g->p->echo)
        echo(ch);
}

/* ---- whole answers and ends ---- */

void gen_usage(const struct gen *g, struct answer_usage *u)
{
    *u = (struct answer_usage){0};
    for (int i = 0; i < g->n_choices; i++) {
        const struct choice *ch = &g->choices[i];

        u->completion += ch->n_out;
        if (i % (int)g->p->n)
            continue;
        u->prompt += ch->n_prompt;
        u->cached += ch->n_cached;
    }
}

static void whole_choice(struct choice *ch, struct jw *w)
{
    const struct gen *g = ch->g;
    const char *text = ch->text.len ? ch->text.p : "";
    struct buf lp;

    jw_obj(w);
    jw_kint(w, "index", ch->index);
    if (g->chat) {
        jw_key(w, "message");
        jw_obj(w);
        jw_kstr(w, "role", "assistant");
        jw_key(w, "content");
        jw_strn(w, text, ch->text.len);
        if (ch->thoughts.len) {
            jw_key(w, "reasoning_content");
            jw_strn(w, ch->thoughts.p, ch->thoughts.len);
        }
        jw_knull(w, "refusal");
        jw_obj_end(w);
    } else {
        jw_key(w, "text");
        jw_strn(w, text, ch->text.len);
    }
    jw_key(w, "logprobs");
    if (g->p->logprobs) {
        buf_init(&lp, 0);
        logprobs_write(&ch->lp, &lp);
        jw_raw(w, lp.p);
        buf_done(&lp);
    } else {
        jw_null(w);
    }
    jw_kstr(w, "finish_reason", ch->reason);
    jw_obj_end(w);
}

static void whole(struct gen *g)
{
    struct answer_usage u;
    struct buf b;
    struct jw w;

    buf_init(&b, 0);
    jw_init(&w, &b);
    jw_obj(&w);
    jw_kstr(&w, "id", g->id);
    jw_kstr(&w, "object", g->chat ? "chat.completion" : "text_completion");
    jw_kint(&w, "created", g->created_s);
    jw_kstr(&w, "model", g->m->name);
    jw_key(&w, "choices");
    jw_arr(&w);
    for (int i = 0; i < g->n_choices; i++)
        whole_choice(&g->choices[i], &w);
    jw_arr_end(&w);
    gen_usage(g, &u);
    answer_usage(&w, &u);
    jw_kstr(&w, "system_fingerprint", g->fingerprint);
    jw_obj_end(&w);
    conn_answer_locked(g->c, 200, "application/json", &b);
    buf_done(&b);
}

void gen_complete(struct gen *g)
{
    struct answer_usage u;

    if (!g->p->stream) {
        whole(g);
        return;
    }
    if (g->p->include_usage) {
        gen_usage(g, &u);
        sse_usage(&g->sse, &u, &g->c->out);
    }
    sse_end(&g->c->out);
    conn_flush(g->c);
    conn_end_locked(g->c);
}

void gen_finish_text(struct choice *ch)
{
    struct gen *g = ch->g;

    gen_begin(ch);
    if (ch->thought) {
        thought_end(ch->thought, &ch->thoughts);
        emit_thoughts(ch);
    }
    buf_clear(&g->scratch);
    if (!textout_stopped(ch->out))
        textout_end(ch->out, &g->scratch);
    gen_emit(ch);
    if (!g->p->stream)
        return;
    sse_finish(&g->sse, ch->index, ch->reason, &g->c->out);
    conn_flush(g->c);
}
