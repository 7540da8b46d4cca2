/* Vocabulary: from a reader's spec to tables that encoding and decoding use.
 *
 * Byte-level vocabularies write each byte as a printable character (bytes that print
 * stand for themselves, the other 68 follow from U+0100). Pieces of normal tokens are
 * turned back into bytes here, once. Added tokens (control, user-defined) are plain text
 * and may hold characters of that alphabet, so their type decides, never their look.
 *
 * Normal pieces are found by a hash of their bytes, merges by a hash of the two ids,
 * added tokens by a trie over bytes that is searched for the longest match. */
#include "daemon/serve/tok_int.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/serve/pretok.h"
#include "daemon/serve/unicode.h"

static uint64_t mix(uint64_t h)
{
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93ull;
    return h ^ h >> 32;
}

static uint64_t hash_bytes(const char *p, size_t n)
{
    uint64_t h = 0xcbf29ce484222325ull ^ n, w = 0;

    for (; n >= sizeof(w); n -= sizeof(w), p += sizeof(w)) {
        memcpy(&w, p, sizeof(w));
        h = mix(h ^ w) * 0x9e3779b97f4a7c15ull;
    }
    w = 0;
    memcpy(&w, p, n);
    return mix(h ^ w);
}

int32_t tok_map_find(const struct tokenizer *t, const char *p, size_t n)
{
    if (n > t->max_piece)
        return -1;
    for (uint32_t i = (uint32_t)hash_bytes(p, n);; i++) {
        int32_t id = t->map[i & t->map_mask];
        size_t len;
        const char *q;

        if (id < 0)
            return -1;
        q = tok_piece(t, id, &len);
        if (len == n && !memcmp(q, p, n))
            return id;
    }
}

static void map_add(struct tokenizer *t, int32_t id)
{
    size_t n;
    const char *p = tok_piece(t, id, &n);
    uint32_t i = (uint32_t)hash_bytes(p, n);

    while (t->map[i & t->map_mask] >= 0)
        i++;
    t->map[i & t->map_mask] = id;
}

const struct merge *tok_merge_find(const struct tokenizer *t, int32_t l, int32_t r)
{
    uint64_t pair = (uint64_t)(uint32_t)l << 32 | (uint32_t)r;

    for (uint32_t i = (uint32_t)mix(pair);; i++) {
        const struct merge *m = &t->merges[i & t->merge_mask];
        if (m->pair == pair)
            return m;
        if (m->pair == MERGE_FREE)
            return NULL;
    }
}

size_t tok_added_at(const struct tokenizer *t, const char *p, size_t n, bool special,
                    int32_t *ret_id)
{
    uint32_t node = n ? t->first[(unsigned char)p[0]] : 0;
    size_t best = 0, i = 1;

    while (node) {
        int32_t id = t->trie[node].id;

        if (id >= 0 && (special || t->type[id] == TOK_USER)) {
            best = i;
            *ret_id = id;
        }
        if (i == n)
            break;
        node = t->trie[node].child;
        while (node && t->trie[node].byte != (unsigned char)p[i])
            node = t->trie[node].sibling;
        i++;
    }
    return best;
}

/* ---- building ---- */

static uint32_t table_size(size_t n)
{
    uint32_t cap = 16;

    while (cap < n + n / 2 + 1)
        cap *= 2;
    return cap;
}

/* Byte that a character of the byte alphabet stands for, or -1. */
static int alphabet_byte(uint32_t cp)
{
    if ((cp >= 0x21 && cp <= 0x7e) || (cp >= 0xa1 && cp <= 0xac) ||
        (cp >= 0xae && cp <= 0xff))
        return (int)cp;
    if (cp < 256 || cp > 256 + 67)
        return -1;
    cp -= 256;
    return cp <= 32 ? (int)cp : cp <= 66 ? (int)(127 + cp - 33) : 0xad;
}

/* Bytes of a normal piece; what is not of the alphabet stands for itself. out may be as
 * long as the piece. */
static size_t alphabet_decode(const char *p, size_t n, char *out)
{
    size_t w = 0;

    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        int len = utf8_next(p + i, n - i, &cp);
        int byte = len > 0 ? alphabet_byte(cp) : -1;

        if (len <= 0)
            len = 1;
        if (byte >= 0) {
            out[w++] = (char)byte;
        } else {
            memcpy(out + w, p + i, (size_t)len);
            w += (size_t)len;
        }
        i += (size_t)len;
    }
    return w;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* "<0xAB>" to its byte, or -1. */
static int byte_piece(const char *p, size_t n)
{
    if (n != 6 || memcmp(p, "<0x", 3) || p[5] != '>' || hex_digit(p[3]) < 0 ||
        hex_digit(p[4]) < 0)
        return -1;
    return hex_digit(p[3]) << 4 | hex_digit(p[4]);
}

static int check_id(int64_t id, size_t n, const char *what, struct err *e)
{
    if (id < -1 || id >= (int64_t)n)
        return err_set(e, ERR_CORRUPT, "%s id %lld is outside the vocabulary of %zu",
                       what, (long long)id, n);
    return 0;
}

static int check_spec(const struct tok_spec *s, size_t *ret_bytes, struct err *e)
{
    size_t bytes = 0;

    if (s->n_pieces == 0 || s->n_pieces > TOK_VOCAB_MAX)
        return err_set(e, ERR_CORRUPT, "vocabulary of %zu tokens, 1 to %d are possible",
                       s->n_pieces, TOK_VOCAB_MAX);
    if (s->n_merges > TOK_MERGES_MAX)
        return err_set(e, ERR_CORRUPT, "%zu merges, up to %d are possible", s->n_merges,
                       TOK_MERGES_MAX);
    if (s->template_n > TOK_TEMPLATE_MAX)
        return err_set(e, ERR_CORRUPT,
                       "chat template of %zu bytes, up to %d are possible", s->template_n,
                       TOK_TEMPLATE_MAX);
    for (size_t i = 0; i < s->n_pieces; i++) {
        const struct tok_src_piece *p = &s->pieces[i];
        if (p->n > TOK_PIECE_MAX)
            return err_set(e, ERR_CORRUPT,
                           "token %zu has %zu bytes, up to %d are possible", i, p->n,
                           TOK_PIECE_MAX);
        if (p->type > TOK_BYTE)
            return err_set(e, ERR_CORRUPT, "token %zu has type %u, 1 to 6 are possible",
                           i, p->type);
        bytes += p->n;
    }
    for (int i = 0; i < s->n_ends; i++)
        if (check_id(s->ends[i], s->n_pieces, "end token", e) < 0)
            return -1;
    if (check_id(s->bos, s->n_pieces, "bos token", e) < 0 ||
        check_id(s->eos, s->n_pieces, "eos token", e) < 0 ||
        check_id(s->unk, s->n_pieces, "unknown token", e) < 0)
        return -1;
    if (s->add_bos && s->bos < 0)
        return err_set(e, ERR_CORRUPT, "a bos token is to be added and none is given");
    *ret_bytes = bytes;
    return 0;
}

static void load_pieces(struct tokenizer *t, const struct tok_spec *s)
{
    uint32_t at = 0;

    for (int b = 0; b < 256; b++)
        t->byte_id[b] = -1;
    for (int32_t id = 0; id < t->n_vocab; id++) {
        const struct tok_src_piece *p = &s->pieces[id];
        int byte = -1;
        size_t n = p->n;

        t->off[id] = at;
        t->type[id] = p->type ? p->type : TOK_UNUSED;
        if (p->type == TOK_BYTE && (byte = byte_piece(p->p, p->n)) >= 0) {
            t->blob[at] = (char)byte;
            n = 1;
        } else if (p->type == TOK_NORMAL && !s->spm) {
            if (s->ranked)
                memcpy(t->blob + at, p->p, n);
            else
                n = alphabet_decode(p->p, p->n, t->blob + at);
            byte = n == 1 ? (unsigned char)t->blob[at] : -1;
        } else if (n) {
            memcpy(t->blob + at, p->p, n);
        }
        if (byte >= 0 && t->byte_id[byte] < 0)
            t->byte_id[byte] = id;
        if (n > t->max_piece)
            t->max_piece = (uint32_t)n;
        at += (uint32_t)n;
    }
    t->off[t->n_vocab] = at;
}

/* Ids that the file names as bos or an end are control, whatever their recorded type. */
static void mark_control(struct tokenizer *t, int64_t id)
{
    if (id >= 0 && t->type[id] == TOK_NORMAL)
        t->type[id] = TOK_CONTROL;
}

static bool add_end(struct tokenizer *t, int64_t id)
{
    if (id < 0)
        return false;
    for (size_t i = 0; i < t->n_eog; i++)
        if (t->eog[i] == id)
            return false;
    t->eog[t->n_eog++] = (int32_t)id;
    return true;
}

static void load_ends(struct tokenizer *t, const struct tok_spec *s)
{
    static const char *const known[] = {"<|im_end|>",    "<|eot_id|>",      "<|eom_id|>",
                                        "<|endoftext|>", "<|end_of_text|>", "</s>",
                                        "<|return|>",    "<|call|>"};
    enum { N_KNOWN = sizeof(known) / sizeof(known[0]) };

    t->eog = xcalloc((size_t)s->n_ends + 1 + N_KNOWN, sizeof(*t->eog));
    add_end(t, s->eos);
    for (int i = 0; i < s->n_ends; i++)
        add_end(t, s->ends[i]);
    for (int i = 0; i < N_KNOWN; i++) {
        int32_t id = tokenizer_find(t, known[i]);
        if (id >= 0 && t->type[id] == TOK_CONTROL)
            add_end(t, id);
    }
}

static int load_map(struct tokenizer *t, struct err *e)
{
    uint32_t cap = table_size((size_t)t->n_vocab);

    t->map = try_malloc(cap * sizeof(*t->map));
    if (!t->map)
        return err_set(e, ERR_NOMEM, "no memory for a vocabulary of %d", t->n_vocab);
    memset(t->map, 0xff, cap * sizeof(*t->map));
    t->map_mask = cap - 1;
    for (int32_t id = 0; id < t->n_vocab; id++) {
        size_t n;
        const char *p = tok_piece(t, id, &n);
        if (t->type[id] == TOK_NORMAL && n && tok_map_find(t, p, n) < 0)
            map_add(t, id);
    }
    return 0;
}

int tok_split_merge(const char *p, size_t n, struct tok_src_merge *ret)
{
    const char *sp = n > 2 ? memchr(p + 1, ' ', n - 2) : NULL;

    if (!sp)
        return -1;
    *ret = (struct tok_src_merge){p, sp + 1, (size_t)(sp - p), n - (size_t)(sp - p) - 1};
    return 0;
}

static int32_t merge_half(const struct tokenizer *t, const char *p, size_t n, char *tmp,
                          size_t *ret_n)
{
    if (n == 0 || n > TOK_PIECE_MAX)
        return -1;
    *ret_n = alphabet_decode(p, n, tmp);
    return tok_map_find(t, tmp, *ret_n);
}

static int load_merges(struct tokenizer *t, const struct tok_spec *s, struct err *e)
{
    uint32_t cap = table_size(s->n_merges);
    char tmp[2 * TOK_PIECE_MAX];

    t->merges = try_malloc(cap * sizeof(*t->merges));
    if (!t->merges)
        return err_set(e, ERR_NOMEM, "no memory for %zu merges", s->n_merges);
    memset(t->merges, 0xff, cap * sizeof(*t->merges));
    t->merge_mask = cap - 1;
    for (size_t i = 0; i < s->n_merges; i++) {
        const struct tok_src_merge *m = &s->merges[i];
        size_t ln = 0, rn = 0;
        int32_t l = merge_half(t, m->l, m->ln, tmp, &ln);
        int32_t r = l < 0 ? -1 : merge_half(t, m->r, m->rn, tmp + ln, &rn);
        int32_t id = r < 0 ? -1 : tok_map_find(t, tmp, ln + rn);
        uint64_t pair = (uint64_t)(uint32_t)l << 32 | (uint32_t)r;
        uint32_t at = (uint32_t)mix(pair);

        if (id < 0)
            return err_set(e, ERR_CORRUPT,
                           "merge %zu ('%.*s' with '%.*s') is not of the vocabulary", i,
                           (int)(m->ln < 40 ? m->ln : 40), m->l,
                           (int)(m->rn < 40 ? m->rn : 40), m->r);
        if (tok_merge_find(t, l, r))
            continue; /* the first rank holds */
        while (t->merges[at & t->merge_mask].pair != MERGE_FREE)
            at++;
        t->merges[at & t->merge_mask] = (struct merge){pair, (uint32_t)i, id};
    }
    return 0;
}

/* Every cut of a piece into two pieces is a merge, of the rank that the piece has: what
 * tiktoken does by looking up joined neighbours. fill false: only count. */
static size_t ranked_merges(struct tokenizer *t, bool fill)
{
    size_t count = 0, n;

    for (int32_t id = 0; id < t->n_vocab; id++) {
        const char *p = tok_piece(t, id, &n);
        for (size_t k = 1; t->type[id] == TOK_NORMAL && k < n; k++) {
            int32_t l = tok_map_find(t, p, k);
            int32_t r = l < 0 ? -1 : tok_map_find(t, p + k, n - k);
            uint64_t pair = (uint64_t)(uint32_t)l << 32 | (uint32_t)r;
            uint32_t at = (uint32_t)mix(pair);

            if (r < 0)
                continue;
            count++;
            if (!fill || tok_merge_find(t, l, r))
                continue;
            while (t->merges[at & t->merge_mask].pair != MERGE_FREE)
                at++;
            t->merges[at & t->merge_mask] = (struct merge){pair, (uint32_t)id, id};
        }
    }
    return count;
}

static int load_ranked(struct tokenizer *t, struct err *e)
{
    size_t n = ranked_merges(t, false);
    uint32_t cap;

    if (n > TOK_MERGES_MAX)
        return err_set(e, ERR_CORRUPT, "%zu merges, up to %d are possible", n,
                       TOK_MERGES_MAX);
    cap = table_size(n);
    t->merges = try_malloc(cap * sizeof(*t->merges));
    if (!t->merges)
        return err_set(e, ERR_NOMEM, "no memory for %zu merges", n);
    memset(t->merges, 0xff, cap * sizeof(*t->merges));
    t->merge_mask = cap - 1;
    ranked_merges(t, true);
    return 0;
}

struct scored {
    float score;
    int32_t id;
};

static int by_score(const void *a, const void *b)
{
    const struct scored *x = a, *y = b;

    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Does U+2581 follow another character in a normal piece? */
static bool space_inside(const char *p, size_t n)
{
    bool other = false;

    for (size_t i = 0; i < n; i++) {
        if (n - i >= 3 && !memcmp(p + i, "\xe2\x96\x81", 3)) {
            if (other)
                return true;
            i += 2;
        } else {
            other = true;
        }
    }
    return false;
}

static int load_scores(struct tokenizer *t, const struct tok_spec *s, struct err *e)
{
    struct scored *v = try_calloc((size_t)t->n_vocab, sizeof(*v));
    uint32_t rank = 0;

    t->rank = try_calloc((size_t)t->n_vocab, sizeof(*t->rank));
    if (!v || !t->rank) {
        free(v);
        return err_set(e, ERR_NOMEM, "no memory for %d scores", t->n_vocab);
    }
    t->split_at_space = true;
    for (int32_t id = 0; id < t->n_vocab; id++) {
        size_t n;
        const char *p = tok_piece(t, id, &n);
        float f = s->pieces[id].score;

        v[id] = (struct scored){f == f ? f : 0.0f, id};
        if (t->type[id] == TOK_NORMAL && space_inside(p, n))
            t->split_at_space = false;
    }
    qsort(v, (size_t)t->n_vocab, sizeof(*v), by_score);
    for (int32_t i = 0; i < t->n_vocab; i++) {
        if (i && v[i].score != v[i - 1].score)
            rank++;
        t->rank[v[i].id] = rank;
    }
    free(v);
    return 0;
}

static void trie_add(struct tokenizer *t, int32_t id)
{
    size_t n;
    const char *p = tok_piece(t, id, &n);
    uint32_t *link = &t->first[(unsigned char)p[0]];
    struct trie_node *node = NULL;

    for (size_t i = 0; i < n; i++) {
        unsigned char b = (unsigned char)p[i];
        while (*link && t->trie[*link].byte != b)
            link = &t->trie[*link].sibling;
        if (!*link) {
            *link = t->n_trie;
            t->trie[t->n_trie++] = (struct trie_node){.id = -1, .byte = b};
        }
        node = &t->trie[*link];
        link = &node->child;
    }
    if (node && node->id < 0)
        node->id = id;
}

static bool is_added(uint8_t type)
{
    return type == TOK_CONTROL || type == TOK_USER || type == TOK_UNKNOWN;
}

static int load_trie(struct tokenizer *t, struct err *e)
{
    size_t nodes = 1;

    for (int32_t id = 0; id < t->n_vocab; id++)
        if (is_added(t->type[id]))
            nodes += t->off[id + 1] - t->off[id];
    t->trie = try_calloc(nodes, sizeof(*t->trie));
    if (!t->trie)
        return err_set(e, ERR_NOMEM, "no memory for added tokens of %zu bytes", nodes);
    t->n_trie = 1; /* node 0 stands for none */
    for (int32_t id = 0; id < t->n_vocab; id++)
        if (is_added(t->type[id]) && t->off[id + 1] > t->off[id])
            trie_add(t, id);
    return 0;
}

static int build_tables(struct tokenizer *t, const struct tok_spec *s, size_t bytes,
                        struct err *e)
{
    t->off = try_malloc(((size_t)t->n_vocab + 1) * sizeof(*t->off));
    t->type = try_malloc((size_t)t->n_vocab);
    t->blob = try_malloc(bytes + 1);
    if (!t->off || !t->type || !t->blob)
        return err_set(e, ERR_NOMEM, "no memory for a vocabulary of %zu bytes", bytes);
    load_pieces(t, s);
    /* merges first: what a file calls bos may be one of their pieces all the same */
    if (!s->spm && (load_map(t, e) < 0 ||
                    (s->ranked ? load_ranked(t, e) : load_merges(t, s, e)) < 0))
        return -1;
    mark_control(t, s->bos);
    mark_control(t, s->eos);
    for (int i = 0; i < s->n_ends; i++)
        mark_control(t, s->ends[i]);
    /* SPM makes any piece that the map has, so that must hold no control token */
    if (s->spm && (load_map(t, e) < 0 || load_scores(t, s, e) < 0))
        return -1;
    if (load_trie(t, e) < 0)
        return -1;
    load_ends(t, s);
    return 0;
}

int tok_build(const struct tok_spec *s, const char *path, struct tokenizer **ret,
              struct err *e)
{
    struct tokenizer *t = xcalloc(1, sizeof(*t));
    size_t bytes = 0;

    if (check_spec(s, &bytes, e) < 0)
        goto fail;
    t->spm = s->spm;
    t->ignore_merges = s->ignore_merges;
    t->nfc = s->nfc;
    t->add_bos = s->add_bos;
    t->add_space_prefix = s->add_space_prefix;
    t->n_vocab = (int32_t)s->n_pieces;
    t->bos = (int32_t)s->bos;
    t->unk = (int32_t)s->unk;
    t->chat_template =
        s->template_n ? xstrndup(s->template_text, s->template_n) : xstrdup("");
    if (!s->spm && pretok_new(s->pre, &t->pretok, e) < 0)
        goto fail;
    if (build_tables(t, s, bytes, e) < 0)
        goto fail;
    if (s->spm)
        strcpy(t->kind, "spm");
    else
        strcat(strcpy(t->kind, "bpe:"), pretok_name(t->pretok));
    *ret = t;
    return 0;

fail:
    tokenizer_free(t);
    return err_wrap(e, "tokenizer of '%s'", path);
}
