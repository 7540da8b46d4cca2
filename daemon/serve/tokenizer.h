/* daemon/serve/tokenizer.h - text to token ids and back.
 *
 * Byte-level BPE (GGUF metadata or tokenizer.json) and SentencePiece-style BPE (GGUF).
 * Pre-tokeniser patterns by known name only. Special tokens are recognised only in text
 * that the template wrote (TOK_PARSE_SPECIAL). Immutable after open; any thread may
 * encode and decode at once. */
#ifndef SERVE_TOKENIZER_H
#define SERVE_TOKENIZER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct err;
struct gguf;
struct model;
struct tokenizer;

enum { TOK_PARSE_SPECIAL = 1, TOK_ADD_BOS = 2 };

int tokenizer_open(const struct model *m, struct tokenizer **ret, struct err *e);
int tokenizer_open_gguf(const struct gguf *g, const char *path, struct tokenizer **ret,
                        struct err *e);
/* tokenizer.json (and tokenizer_config.json when given, for bos/eos) as text. */
int tokenizer_open_json(const char *path, const char *json, size_t n, const char *config,
                        size_t config_n, struct tokenizer **ret, struct err *e);
void tokenizer_free(struct tokenizer *t);

/* A growable id list. */
struct tok_ids {
    int32_t *v;
    size_t n, cap;
};
void tok_ids_done(struct tok_ids *ids);
void tok_ids_add(struct tok_ids *ids, int32_t id);

/* Append the ids of text[0..n). Text must be valid UTF-8 or its bad bytes are encoded as
 * bytes; a byte that the vocabulary has no token for is dropped, as its makers' own
 * tokenizer does. TOK_ADD_BOS puts the bos id first if the model asks for one.
 * ERR_CONTEXT as soon as *out would hold more than max_ids (0 = no limit). *cancel (may
 * be NULL) set by another thread ends the call with ERR_CANCELED. On failure *out is as
 * before. */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, int flags,
                     size_t max_ids, const atomic_bool *cancel, struct tok_ids *out,
                     struct err *e);
/* The bytes of one token (may be part of a character). first: begins a text (SPM drops
 * its leading space there). special: also write control tokens' text. */
void tokenizer_piece(const struct tokenizer *t, int32_t id, bool first, bool special,
                     struct buf *out);
/* Whole sequence, invalid UTF-8 left as it is. */
void tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n,
                      bool special, struct buf *out);

int tokenizer_n_vocab(const struct tokenizer *t);
int32_t tokenizer_bos(const struct tokenizer *t); /* -1 when none */
bool tokenizer_add_bos(const struct tokenizer *t);
/* End-of-generation ids (eos, eot, eom ...), eos first when there is one; borrowed. */
const int32_t *tokenizer_eog(const struct tokenizer *t, size_t *ret_n);
bool tokenizer_is_control(const struct tokenizer *t, int32_t id);
int32_t tokenizer_find(const struct tokenizer *t, const char *piece); /* exact, or -1 */
const char *tokenizer_kind(const struct tokenizer *t); /* "bpe:smollm", "spm" */
/* The chat template's source text as shipped ("" when none), to recognise a family. */
const char *tokenizer_chat_template(const struct tokenizer *t);

/* Streaming: holds back an incomplete UTF-8 character between calls. */
struct utf8_hold {
    unsigned char b[4];
    int n;
};
/* Append p[0..n) to out as whole characters only; bytes that can never become one are
 * replaced by U+FFFD. last: also flush what is held (as U+FFFD). */
void utf8_hold_push(struct utf8_hold *h, const char *p, size_t n, bool last,
                    struct buf *out);

#endif
