/* daemon/api/logprobs.c - token log-probabilities as the two API shapes want them. */
#include "daemon/api/logprobs.h"

#include <math.h>

#include "base/json.h"
#include "daemon/serve/tokenizer.h"

enum { TOKENS, PROBS, TOPS, OFFSETS };

void logprobs_init(struct logprobs *l, const struct tokenizer *tok, bool chat)
{
    *l = (struct logprobs){.tok = tok, .chat = chat};
    for (int i = 0; i < 4; i++)
        buf_init(&l->list[i], 0);
    buf_init(&l->scratch, 0);
}

void logprobs_done(struct logprobs *l)
{
    for (int i = 0; i < 4; i++)
        buf_done(&l->list[i]);
    buf_done(&l->scratch);
}

/* A client's parser may choke on an infinity, and null is outside the type. */
static double plain_number(float v) { return isfinite(v) ? (double)v : -9999.0; }

static bool whole_utf8(const char *p, size_t n, struct buf *tmp)
{
    struct utf8_hold h = {.n = 0};

    buf_clear(tmp);
    utf8_hold_push(&h, p, n, true, tmp);
    return tmp->len == n;
}

/* Text of a token as an object key or list entry. Parts of characters would all become
 * the same replacement character, so completions spell their bytes. */
static void token_name(struct logprobs *l, struct jw *w, int32_t id, const char *p,
                       size_t n)
{
    if (l->ids) {
        buf_clear(&l->scratch);
        buf_printf(&l->scratch, "token_id:%d", (int)id);
        jw_strn(w, l->scratch.p, l->scratch.len);
        return;
    }
    if (l->chat || whole_utf8(p, n, &l->scratch)) {
        jw_strn(w, p, n);
        return;
    }
    buf_clear(&l->scratch);
    buf_puts(&l->scratch, "bytes:");
    for (size_t i = 0; i < n; i++)
        buf_printf(&l->scratch, "\\x%02x", (unsigned char)p[i]);
    jw_strn(w, l->scratch.p, l->scratch.len);
}

static void chat_token(struct jw *w, const char *p, size_t n, float logprob)
{
    jw_key(w, "token");
    jw_strn(w, p, n);
    jw_knum(w, "logprob", plain_number(logprob));
    jw_key(w, "bytes");
    jw_arr(w);
    for (size_t i = 0; i < n; i++)
        jw_int(w, (unsigned char)p[i]);
    jw_arr_end(w);
}

static void add_chat(struct logprobs *l, const struct step_token *t, const char *raw,
                     size_t n)
{
    struct buf piece;
    struct jw w;

    buf_init(&piece, 0);
    jw_init(&w, &l->list[TOKENS]);
    jw_obj(&w);
    chat_token(&w, raw, n, t->logprob);
    jw_key(&w, "top_logprobs");
    jw_arr(&w);
    for (int i = 0; i < t->n_top; i++) {
        buf_clear(&piece);
        tokenizer_piece(l->tok, t->top_id[i], false, true, &piece);
        jw_obj(&w);
        chat_token(&w, piece.len ? piece.p : "", piece.len, t->top_logprob[i]);
        jw_obj_end(&w);
    }
    jw_arr_end(&w);
    jw_obj_end(&w);
    buf_done(&piece);
}

static void add_text(struct logprobs *l, const struct step_token *t, const char *raw,
                     size_t n, size_t text_off, bool scored)
{
    struct buf piece;
    struct jw w;

    jw_init(&w, &l->list[TOKENS]);
    token_name(l, &w, t->id, raw, n);
    buf_printf(&l->list[OFFSETS], "%zu", text_off);
    jw_init(&w, &l->list[PROBS]);
    if (scored)
        jw_num(&w, plain_number(t->logprob));
    else
        jw_null(&w);
    jw_init(&w, &l->list[TOPS]);
    if (!scored || t->n_top <= 0) {
        jw_null(&w);
        return;
    }
    buf_init(&piece, 0);
    jw_obj(&w);
    for (int i = 0; i < t->n_top; i++) {
        struct buf key;
        struct jw kw;

        buf_clear(&piece);
        tokenizer_piece(l->tok, t->top_id[i], false, true, &piece);
        buf_init(&key, 0);
        jw_init(&kw, &key);
        token_name(l, &kw, t->top_id[i], piece.len ? piece.p : "", piece.len);
        if (i)
            buf_putc(&l->list[TOPS], ',');
        buf_add(&l->list[TOPS], key.p, key.len);
        buf_printf(&l->list[TOPS], ":%.9g", plain_number(t->top_logprob[i]));
        buf_done(&key);
    }
    jw_obj_end(&w);
    buf_done(&piece);
}

void logprobs_add(struct logprobs *l, const struct step_token *t, const char *raw,
                  size_t n, size_t text_off, bool scored)
{
    for (int i = 0; l->n && i < (l->chat ? 1 : 4); i++)
        buf_putc(&l->list[i], ',');
    l->n++;
    if (l->chat)
        add_chat(l, t, raw, n);
    else
        add_text(l, t, raw, n, text_off, scored);
}

static void put_list(struct buf *out, const char *key, struct buf *list)
{
    buf_puts(out, key);
    buf_add(out, list->len ? list->p : "", list->len);
    buf_putc(out, ']');
    buf_clear(list);
}

void logprobs_write(struct logprobs *l, struct buf *out)
{
    if (l->chat) {
        put_list(out, "{\"content\":[", &l->list[TOKENS]);
        buf_puts(out, ",\"refusal\":null}");
    } else {
        put_list(out, "{\"tokens\":[", &l->list[TOKENS]);
        put_list(out, ",\"token_logprobs\":[", &l->list[PROBS]);
        put_list(out, ",\"top_logprobs\":[", &l->list[TOPS]);
        put_list(out, ",\"text_offset\":[", &l->list[OFFSETS]);
        buf_putc(out, '}');
    }
    l->n = 0;
}
