/* Tokenizer: text to ids and back.
 *
 * Encoding cuts text three times: at added tokens (control ones only in text that the
 * template wrote), then into words by the pre-tokeniser's pattern (SPM: before each run
 * of U+2581, where no piece can reach across), then each word is merged (tok_merge.c).
 * Bytes that are no UTF-8 go round the pattern and become byte tokens. Nothing here
 * recurses, memory is for one word at a time, and a cancel flag is read every few
 * thousand steps.
 *
 * Lifecycle: opened from a GGUF's metadata (tok_gguf.c) or tokenizer.json (tok_json.c),
 * built in tok_vocab.c, then immutable and independent of the file. */
#include "daemon/serve/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "daemon/serve/model.h"
#include "daemon/serve/pretok.h"
#include "daemon/serve/tok_int.h"
#include "daemon/serve/unicode.h"

enum { CANCEL_STEPS = 2048, TEXT_MAX = 1 << 30 };

int tokenizer_open(const struct model *m, struct tokenizer **ret, struct err *e)
{
    const struct gguf *g = model_gguf(m);
    const struct model_info *info = model_info(m);
    struct tokenizer *t = NULL;
    int rc =
        g ? tokenizer_open_gguf(g, info->name, &t, e) : tok_open_dir(model_dir(m), &t, e);

    if (rc < 0)
        return -1;
    if (t->n_vocab > info->n_vocab) {
        err_set(e, ERR_CORRUPT, "'%s' has %d tokens and embeddings for only %d",
                info->name, t->n_vocab, info->n_vocab);
        tokenizer_free(t);
        return -1;
    }
    *ret = t;
    return 0;
}

void tokenizer_free(struct tokenizer *t)
{
    if (!t)
        return;
    pretok_free(t->pretok);
    free(t->chat_template);
    free(t->trie);
    free(t->rank);
    free(t->merges);
    free(t->map);
    free(t->type);
    free(t->off);
    free(t->blob);
    free(t->eog);
    free(t);
}

void tok_ids_done(struct tok_ids *ids)
{
    free(ids->v);
    *ids = (struct tok_ids){0};
}

void tok_ids_add(struct tok_ids *ids, int32_t id)
{
    if (ids->n == ids->cap) {
        ids->cap = ids->cap ? 2 * ids->cap : 64;
        ids->v = xrealloc(ids->v, ids->cap * sizeof(*ids->v));
    }
    ids->v[ids->n++] = id;
}

/* ---- encoding ---- */

int enc_push(struct enc *c, int32_t id)
{
    struct tok_ids *o = c->out;

    if (c->max_ids && o->n >= c->max_ids)
        return err_set(c->e, ERR_CONTEXT, "text has more than %zu tokens", c->max_ids);
    if (o->n == o->cap) {
        size_t cap = o->cap ? 2 * o->cap : 64;
        int32_t *v = try_realloc(o->v, cap * sizeof(*v));
        if (!v)
            return err_set(c->e, ERR_NOMEM, "no memory for %zu token ids", cap);
        o->v = v;
        o->cap = cap;
    }
    o->v[o->n++] = id;
    return 0;
}

int enc_tick(struct enc *c)
{
    if (++c->steps < CANCEL_STEPS)
        return 0;
    c->steps = 0;
    if (c->cancel && atomic_load_explicit(c->cancel, memory_order_relaxed))
        return err_set(c->e, ERR_CANCELED, "tokenising was cancelled");
    return 0;
}

static int encode_words(struct enc *c, const char *p, size_t n)
{
    size_t off, len;
    int rc;

    pretok_it_start(c->it, p, n);
    while ((rc = pretok_it_next(c->it, &off, &len, c->e)) > 0)
        if (tok_merge_word(c, p + off, len) < 0 || enc_tick(c) < 0)
            return -1;
    return rc;
}

static int encode_valid(struct enc *c, const char *p, size_t n)
{
    struct buf nfc;
    int rc;

    if (!c->t->nfc)
        return encode_words(c, p, n);
    buf_init(&nfc, 0);
    rc = unicode_nfc(p, n, &nfc, c->e);
    if (rc == 0)
        rc = encode_words(c, nfc.p, nfc.len);
    buf_done(&nfc);
    return rc;
}

static int encode_bpe(struct enc *c, const char *p, size_t n)
{
    while (n) {
        size_t k = utf8_span(p, n);
        int32_t id;

        if (k && encode_valid(c, p, k) < 0)
            return -1;
        p += k;
        n -= k;
        if (!n)
            break;
        id = c->t->byte_id[(unsigned char)*p++];
        n--;
        if ((id >= 0 && enc_push(c, id) < 0) || enc_tick(c) < 0)
            return -1;
    }
    return 0;
}

static const char spm_space[] = "\xe2\x96\x81";

static bool is_spm_space(const char *p, size_t n)
{
    return n >= 3 && !memcmp(p, spm_space, 3);
}

/* Length of the chunk at p: up to a space that begins a run of them. */
static size_t spm_chunk(const struct tokenizer *t, const char *p, size_t n)
{
    bool in_spaces = true;
    size_t i = 0;

    if (!t->split_at_space)
        return n;
    while (i < n) {
        bool space = is_spm_space(p + i, n - i);
        if (space && !in_spaces)
            break;
        in_spaces = space;
        i += space ? 3 : 1;
    }
    return i;
}

static int encode_spm(struct enc *c, const char *p, size_t n)
{
    char *text = try_malloc(3 * n + 3);
    size_t w = 0, at = 0;
    int rc = 0;

    if (!text)
        return err_set(c->e, ERR_NOMEM, "no memory to tokenise %zu bytes", n);
    if (c->t->add_space_prefix) {
        memcpy(text, spm_space, 3);
        w = 3;
    }
    for (size_t i = 0; i < n; i++) {
        if (p[i] == ' ') {
            memcpy(text + w, spm_space, 3);
            w += 3;
        } else {
            text[w++] = p[i];
        }
    }
    while (at < w && rc == 0) {
        size_t k = spm_chunk(c->t, text + at, w - at);
        rc = tok_merge_word(c, text + at, k);
        if (rc == 0)
            rc = enc_tick(c);
        at += k;
    }
    free(text);
    return rc;
}

/* Where the next added token begins, or n. */
static size_t next_added(const struct tokenizer *t, const char *p, size_t from, size_t n,
                         bool special, size_t *ret_len, int32_t *ret_id)
{
    for (size_t i = from; i < n; i++) {
        if (!t->first[(unsigned char)p[i]])
            continue;
        *ret_len = tok_added_at(t, p + i, n - i, special, ret_id);
        if (*ret_len)
            return i;
    }
    return n;
}

static int encode_all(struct enc *c, const char *p, size_t n, int flags)
{
    const struct tokenizer *t = c->t;
    size_t at = 0;

    if ((flags & TOK_ADD_BOS) && t->add_bos && enc_push(c, t->bos) < 0)
        return -1;
    while (at < n) {
        size_t len = 0;
        int32_t id = -1;
        size_t next = next_added(t, p, at, n, flags & TOK_PARSE_SPECIAL, &len, &id);
        int rc = 0;

        if (next > at)
            rc = t->spm ? encode_spm(c, p + at, next - at)
                        : encode_bpe(c, p + at, next - at);
        if (rc == 0 && next < n)
            rc = enc_push(c, id);
        if (rc < 0 || enc_tick(c) < 0)
            return -1;
        at = next + len;
    }
    return 0;
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, int flags,
                     size_t max_ids, const atomic_bool *cancel, struct tok_ids *out,
                     struct err *e)
{
    struct enc c = {.t = t, .out = out, .max_ids = max_ids, .cancel = cancel, .e = e};
    size_t before = out->n;
    int rc;

    if (n > TEXT_MAX)
        return err_set(e, ERR_TOOBIG, "text of %zu bytes, up to %d can be tokenised", n,
                       TEXT_MAX);
    /* no token stands for more than max_piece bytes: spares the work of a hopeless text
     */
    if (max_ids && t->max_piece && n / t->max_piece > max_ids)
        return err_set(e, ERR_CONTEXT, "text has more than %zu tokens", max_ids);
    if (!t->spm && pretok_it_new(t->pretok, &c.it, e) < 0)
        return -1;
    rc = encode_all(&c, text, n, flags);
    if (rc < 0)
        out->n = before;
    pretok_it_free(c.it);
    free(c.work);
    return rc;
}

/* ---- decoding ---- */

static void put_spm(const char *p, size_t n, bool drop_space, struct buf *out)
{
    for (size_t i = 0; i < n;) {
        bool space = is_spm_space(p + i, n - i);
        if (space && !(drop_space && i == 0))
            buf_putc(out, ' ');
        else if (!space)
            buf_putc(out, p[i]);
        i += space ? 3 : 1;
    }
}

void tokenizer_piece(const struct tokenizer *t, int32_t id, bool first, bool special,
                     struct buf *out)
{
    const char *p;
    size_t n;

    if (id < 0 || id >= t->n_vocab || t->type[id] == TOK_UNUSED)
        return;
    p = tok_piece(t, id, &n);
    if (tokenizer_is_control(t, id) && !special)
        return;
    if (t->spm && t->type[id] == TOK_NORMAL)
        put_spm(p, n, first && t->add_space_prefix, out);
    else
        buf_add(out, p, n);
}

void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n,
                      bool special, struct buf *out)
{
    bool first = true;

    for (size_t i = 0; i < n; i++) {
        tokenizer_piece(t, ids[i], first, special, out);
        if (!tokenizer_is_control(t, ids[i]))
            first = false;
    }
}

int tokenizer_n_vocab(const struct tokenizer *t) { return t->n_vocab; }
int32_t tokenizer_bos(const struct tokenizer *t) { return t->bos; }
bool tokenizer_add_bos(const struct tokenizer *t) { return t->add_bos; }
const char *tokenizer_kind(const struct tokenizer *t) { return t->kind; }

const char *tokenizer_chat_template(const struct tokenizer *t)
{
    return t->chat_template;
}

const int32_t *tokenizer_eog(const struct tokenizer *t, size_t *ret_n)
{
    *ret_n = t->n_eog;
    return t->eog;
}

bool tokenizer_is_control(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_vocab &&
           (t->type[id] == TOK_CONTROL || t->type[id] == TOK_UNKNOWN);
}

int32_t tokenizer_find(const struct tokenizer *t, const char *piece)
{
    size_t n = strlen(piece);
    int32_t id = -1;

    if (tok_added_at(t, piece, n, true, &id) == n && n)
        return id;
    return tok_map_find(t, piece, n);
}

/* ---- streaming ---- */

void utf8_hold_push(struct utf8_hold *h, const char *p, size_t n, bool last,
                    struct buf *out)
{
    static const char replacement[] = "\xef\xbf\xbd";

    while (n || h->n) {
        int len;

        if (n && !h->n) {
            size_t k = utf8_span(p, n);
            buf_add(out, p, k);
            p += k;
            n -= k;
        }
        if (n && h->n < 4) {
            h->b[h->n++] = (unsigned char)*p++;
            n--;
        }
        if (!h->n)
            break;
        len = utf8_next((char *)h->b, (size_t)h->n, NULL);
        if (len == 0 && n)
            continue;
        if (len == 0 && !last)
            break;
        if (len > 0) {
            buf_add(out, h->b, (size_t)len);
        } else {
            buf_add(out, replacement, 3);
            len = len ? -len : h->n;
        }
        h->n -= len;
        memmove(h->b, h->b + len, (size_t)h->n);
    }
}
