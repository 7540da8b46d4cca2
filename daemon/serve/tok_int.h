/* daemon/serve/tok_int.h - inside the tokenizer: what tok_*.c and tokenizer.c share.
 *
 * A file's reader (tok_gguf.c, tok_json.c) fills a tok_spec that borrows from the file;
 * tok_build (tok_vocab.c) checks it and makes a tokenizer that owns all it needs. */
#ifndef SERVE_TOK_INT_H
#define SERVE_TOK_INT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/serve/tokenizer.h"

struct pretok;
struct pretok_it;

enum {
    TOK_VOCAB_MAX = 2000000,
    TOK_PIECE_MAX = 4096,
    TOK_MERGES_MAX = 4000000,
    TOK_TEMPLATE_MAX = 1 << 20
};

/* As in GGUF's tokenizer.ggml.token_type. */
enum tok_type {
    TOK_NORMAL = 1,
    TOK_UNKNOWN = 2,
    TOK_CONTROL = 3,
    TOK_USER = 4, /* matched in any text, before merging */
    TOK_UNUSED = 5,
    TOK_BYTE = 6
};

struct tok_src_piece {
    const char *p; /* as in the file: byte alphabet, U+2581 or <0xXX> */
    size_t n;
    float score;
    uint8_t type; /* 0 = no such id in the file */
};

struct tok_src_merge {
    const char *l, *r;
    size_t ln, rn;
};

struct tok_spec {
    bool spm;
    const char *pre; /* pre-tokeniser's name, when not spm */
    struct tok_src_piece *pieces;
    size_t n_pieces;
    struct tok_src_merge *merges;
    size_t n_merges;
    bool ranked; /* pieces are bytes as they are; two that make one merge, lowest id first
                  */
    bool ignore_merges, nfc, add_bos, add_space_prefix;
    int64_t bos, eos, unk; /* -1 = none */
    int64_t ends[8];       /* eot, eom .. */
    int n_ends;
    const char *template_text;
    size_t template_n;
};

struct merge {
    uint64_t pair; /* left id << 32 | right id; MERGE_FREE = empty slot */
    uint32_t rank;
    int32_t id; /* what they become */
};
#define MERGE_FREE UINT64_MAX

struct trie_node {
    int32_t id; /* token that ends here, or -1 */
    uint32_t child, sibling;
    uint8_t byte;
};

struct tokenizer {
    char kind[48];
    bool spm, ignore_merges, nfc, add_bos, add_space_prefix;
    bool split_at_space; /* no piece has U+2581 after another character */
    int32_t n_vocab, bos, unk;
    int32_t *eog;
    size_t n_eog;
    char *blob; /* pieces back to back: bytes (BPE), as in the file (SPM) */
    uint32_t *off;
    uint8_t *type;
    uint32_t max_piece;
    int32_t byte_id[256]; /* -1 = the vocabulary has no such byte */
    int32_t *map;         /* hash of normal pieces */
    uint32_t map_mask;
    struct merge *merges;
    uint32_t merge_mask;
    uint32_t *rank; /* SPM: by falling score, equal scores share one */
    struct trie_node *trie;
    uint32_t n_trie, first[256]; /* first[b]: node for leading byte b, or 0 */
    struct pretok *pretok;
    char *chat_template;
};

static inline const char *tok_piece(const struct tokenizer *t, int32_t id, size_t *ret_n)
{
    *ret_n = t->off[id + 1] - t->off[id];
    return t->blob + t->off[id];
}

/* tok_vocab.c */
int tok_build(const struct tok_spec *s, const char *path, struct tokenizer **ret,
              struct err *e);
/* "left right" to its halves; -1 when there are not two. */
int tok_split_merge(const char *p, size_t n, struct tok_src_merge *ret);
int32_t tok_map_find(const struct tokenizer *t, const char *p, size_t n);
const struct merge *tok_merge_find(const struct tokenizer *t, int32_t l, int32_t r);
/* Longest added token at p; control ones only when special. Length, or 0. */
size_t tok_added_at(const struct tokenizer *t, const char *p, size_t n, bool special,
                    int32_t *ret_id);

/* One call of tokenizer_encode. */
struct enc {
    const struct tokenizer *t;
    struct tok_ids *out;
    size_t max_ids;
    const atomic_bool *cancel;
    unsigned steps; /* since the cancel flag was last read */
    struct pretok_it *it;
    void *work; /* of the merger, kept between words */
    size_t work_cap;
    struct err *e;
};

int enc_push(struct enc *c, int32_t id);
/* Count one unit of work; -1 when the call was cancelled. */
int enc_tick(struct enc *c);

/* tok_merge.c: one word of a BPE vocabulary, or one chunk of SPM text. */
int tok_merge_word(struct enc *c, const char *p, size_t n);

/* tok_tiktoken.c: a tiktoken.model of Kimi (written over in place, must outlive the call)
 * and its tokenizer_config.json. */
int tok_open_tiktoken(const char *path, char *text, size_t n, const char *config,
                      size_t config_n, const char *template_text, size_t template_n,
                      struct tokenizer **ret, struct err *e);

/* tok_gguf.c, tok_json.c: the folder of a Hugging Face model. */
int tok_open_dir(const char *dir, struct tokenizer **ret, struct err *e);

#endif
