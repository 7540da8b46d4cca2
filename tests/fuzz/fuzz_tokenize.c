/* Text through every pre-tokeniser and SPM: what was encoded must come back byte for
 * byte, and generated text must not depend on how its tokens are grouped. The first byte
 * picks the vocabulary and the grouping. */
#include "daemon/serve/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "daemon/serve/textout.h"
#include "daemon/serve/tok_int.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_VOCABS = 8 };

static const char *const pres[N_VOCABS] = {
    "gpt2", "smollm", "llama3", "qwen2", "deepseek-llm", "deepseek-v3", "o200k", NULL};
static struct tokenizer *vocabs[N_VOCABS];

static void die(const char *what)
{
    fprintf(stderr, "%s\n", what);
    abort();
}

/* All bytes, some letters joined, one user-defined token. pres[i] = NULL is SPM. */
static struct tokenizer *make(const char *pre)
{
    static char byte[256][8];
    struct tok_src_piece pieces[264] = {{0}};
    struct tok_src_merge merges[] = {
        {"a", "b", 1, 1}, {"ab", "a", 2, 1}, {"1", "1", 1, 1}};
    static const char *const more[] = {"ab", "aba", "11", "<u>", "a", "b", "1", "\u2581"};
    struct tok_spec s = {.spm = !pre, .pre = pre, .bos = -1, .eos = -1, .unk = -1};
    struct tokenizer *t = NULL;
    struct err e;
    size_t n = 0;

    for (int b = 0, high = 256; b < 256; b++, n++) {
        bool prints = (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        unsigned cp = prints ? (unsigned)b : (unsigned)high++;
        if (!pre)
            snprintf(byte[b], sizeof(byte[b]), "<0x%02X>", b);
        else if (cp < 0x80)
            snprintf(byte[b], sizeof(byte[b]), "%c", (char)cp);
        else
            snprintf(byte[b], sizeof(byte[b]), "%c%c", (char)(0xc0 | cp >> 6),
                     (char)(0x80 | (cp & 0x3f)));
        pieces[n] = (struct tok_src_piece){byte[b], strlen(byte[b]), 0,
                                           pre ? TOK_NORMAL : TOK_BYTE};
    }
    for (int i = 0; i < (pre ? 4 : 8); i++, n++)
        pieces[n] = (struct tok_src_piece){more[i], strlen(more[i]), (float)-i,
                                           i == 3 ? TOK_USER : TOK_NORMAL};
    s.pieces = pieces;
    s.n_pieces = n;
    s.merges = merges;
    s.n_merges = pre ? 3 : 0;
    if (tok_build(&s, "made", &t, &e) < 0)
        die(e.msg);
    return t;
}

static void generate(const struct tokenizer *t, const struct tok_ids *ids, size_t chunk,
                     struct buf *out)
{
    const char *stops[] = {"ba", "1a1"};
    const size_t lens[] = {2, 3};
    struct textout *o = textout_new(t, stops, lens, 2, true);
    struct step_token toks[8] = {{0}};

    for (size_t i = 0; i < ids->n;) {
        int k = 0;
        while (k < (int)chunk && i < ids->n)
            toks[k++].id = ids->v[i++];
        if (textout_push(o, toks, k, out))
            break;
    }
    textout_end(o, out);
    textout_free(o);
}

static void same(const struct buf *a, const char *p, size_t n, const char *what)
{
    if (a->len != n || (n && memcmp(a->p, p, n) != 0))
        die(what);
}

/* SPM has one character for a space and cannot tell them apart afterwards. */
static bool has_low_bar(const char *p, size_t n)
{
    return memmem(p, n, "\xe2\x96\x81", 3) != NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data + 1;
    size_t n = size - 1;
    struct tok_ids ids = {0};
    const struct tokenizer *t;
    struct buf a, b;
    struct err e;
    int i;

    if (!size)
        return 0;
    i = data[0] % N_VOCABS;
    if (!vocabs[i])
        vocabs[i] = make(pres[i]);
    t = vocabs[i];
    if (tokenizer_encode(t, text, n, 0, 0, NULL, &ids, &e) < 0)
        die(e.msg);
    buf_init(&a, 0);
    buf_init(&b, 0);
    tokenizer_decode(t, ids.v, ids.n, false, &a);
    if (pres[i] || !has_low_bar(text, n))
        same(&a, text, n, "text does not come back");
    buf_clear(&a);
    generate(t, &ids, 1, &a);
    generate(t, &ids, 2 + data[0] / N_VOCABS % 7, &b);
    same(&a, b.p, b.len, "grouping changes the text");
    buf_done(&a);
    buf_done(&b);
    tok_ids_done(&ids);
    return 0;
}
