/* Pre-tokeniser patterns by known name, over PCRE2.
 *
 * The table holds each pattern as its authors publish it, for two reasons: a
 * tokenizer.json is recognised by comparing its patterns with these, and what is compiled
 * is derived from the same text. The one change made for PCRE2 is \s, whose idea of white
 * space there is one character wider than Unicode's; it becomes the explicit class.
 *
 * Patterns run with JIT where the machine allows it, and under match and heap limits
 * where not. No pattern of the table can look far ahead and then take little, so that
 * every one is linear, but for white space at the end of a piece (a search would start
 * again at each position of a long run): that stage is done by hand, from the end. A
 * match in a piece must not see past it, so each piece is given to PCRE2 as a subject of
 * its own.
 *
 * Stages are walked with one open piece per level, so no list of words is ever stored. */
#include "daemon/serve/pretok.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/err.h"
#include "base/mem.h"
#include "daemon/serve/unicode.h"

#define GPT2_WORDS                                                                       \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define SHORT_FORMS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACE_TAIL "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define NOT_HAN(class) "(?:(?!\\p{Han})" class ")"
#define TRAILING_SPACE "\\s+$"
/* deepseek-llm: cased letters and punctuation as its authors list them */
#define DS_LETTERS                                                                       \
    "\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf"              \
    "\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386"       \
    "\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"            \
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba"                  \
    "\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15"                  \
    "\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"             \
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc"            \
    "\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102"            \
    "\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d"              \
    "\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b"       \
    "\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b"                   \
    "\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"                  \
    "\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f"                       \
    "\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"                    \
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943]+"
#define DS_PUNCT "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
#define DS_CJK "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
#define DS3_CJK "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"

struct row {
    const char *name;
    const char *aliases; /* names of GGUF files, each followed by a space */
    const char *stages[PRETOK_STAGES_MAX];
};

static const struct row table[] = {
    {"gpt2", "gpt-2 ", {GPT2_WORDS}},
    {"smollm", "starcoder refact ", {"\\p{N}", GPT2_WORDS}},
    {"llama3",
     "llama-v3 llama-bpe ",
     {SHORT_FORMS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
                  "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACE_TAIL}},
    {"qwen2",
     "deepseek-r1-qwen ",
     {SHORT_FORMS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
                  "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACE_TAIL}},
    {"deepseek-llm",
     "",
     {"[\r\n]", DS_LETTERS, DS_PUNCT, TRAILING_SPACE, DS_CJK, "\\p{N}+"}},
    /* its tokenizer.json cuts digits apart, which is the same: no piece joins two */
    {"deepseek-llm",
     "",
     {"[\r\n]", DS_LETTERS, DS_PUNCT, TRAILING_SPACE, DS_CJK, "\\p{N}"}},
    {"deepseek-v3",
     "deepseek3 ",
     {"\\p{N}{1,3}", DS3_CJK,
      "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
      "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
      "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"}},
    {"o200k",
     "gpt-4o ",
     {"[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" SHORT_FORMS "?"
      "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" SHORT_FORMS "?"
      "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*" SPACE_TAIL}},
    /* as o200k, but Chinese characters stand apart: its authors write the letters as
     * classes less \p{Han} */
    {"kimi",
     "kimi-k2 ",
     {"\\p{Han}+|[^\\r\\n\\p{L}\\p{N}]?" NOT_HAN(UPPER) "*" NOT_HAN(
         LOWER) "+" SHORT_FORMS "?"
                "|[^\\r\\n\\p{L}\\p{N}]?" NOT_HAN(UPPER) "+" NOT_HAN(
                    LOWER) "*" SHORT_FORMS "?"
                           "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*" SPACE_TAIL}},
};

enum { N_ROWS = sizeof(table) / sizeof(table[0]) };

/* A stage without code is TRAILING_SPACE. */
struct stage {
    pcre2_code *code;
    bool jit;
};

struct pretok {
    const struct row *row;
    int n;
    struct stage stage[PRETOK_STAGES_MAX];
    pcre2_match_context *limits;
};

/* What is left of the piece open at one level, and the next match in it. */
struct level {
    size_t at, end;
    size_t m0, m1;
    bool found;
};

struct pretok_it {
    const struct pretok *p;
    pcre2_match_data *md;
    const char *text;
    int depth;
    struct level lv[PRETOK_STAGES_MAX];
};

enum { MATCH_LIMIT = 100000000, HEAP_LIMIT_KIB = 20000 };

static bool has_alias(const char *aliases, const char *name)
{
    size_t n = strlen(name);

    for (const char *p = aliases; *p; p = strchr(p, ' ') + 1)
        if (!strncmp(p, name, n) && p[n] == ' ')
            return true;
    return false;
}

const char *pretok_names(void)
{
    return "gpt2, smollm, llama3, qwen2, deepseek-llm, deepseek-v3, o200k, kimi";
}

/* The published text with \s and \S spelt out; caller frees. */
static char *spell_out(const char *src)
{
    static const char space[] = "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-"
                                "\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
    char *out = xmalloc(strlen(src) * (sizeof(space) + 3) + 1), *w = out;
    bool in_class = false;

    for (const char *p = src; *p; p++) {
        if (*p == '\\' && (p[1] == 's' || p[1] == 'S')) {
            const char *open = in_class ? "" : p[1] == 's' ? "[" : "[^";
            w = stpcpy(stpcpy(stpcpy(w, open), space), in_class ? "" : "]");
            p++;
        } else if (*p == '\\') {
            *w++ = *p++;
            *w++ = *p;
        } else {
            if (*p == '[')
                in_class = true;
            else if (*p == ']')
                in_class = false;
            *w++ = *p;
        }
    }
    *w = '\0';
    return out;
}

static int compile(const char *published, struct stage *st, struct err *e)
{
    PCRE2_UCHAR msg[128];
    PCRE2_SIZE at;
    int code;
    char *text;

    if (!strcmp(published, TRAILING_SPACE))
        return 0;
    text = spell_out(published);
    st->code = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
                             PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
    free(text);
    if (!st->code) {
        pcre2_get_error_message(code, msg, sizeof(msg));
        return err_set(e, ERR_INTERNAL, "pattern '%.40s' at %zu: %s", published, at, msg);
    }
    st->jit = pcre2_jit_compile(st->code, PCRE2_JIT_COMPLETE) == 0;
    return 0;
}

int pretok_new(const char *name, struct pretok **ret, struct err *e)
{
    const struct row *row = NULL;
    struct pretok *p;

    for (int i = 0; i < N_ROWS && !row; i++)
        if (!strcmp(table[i].name, name) || has_alias(table[i].aliases, name))
            row = &table[i];
    if (!row)
        return err_set(e, ERR_UNSUPPORTED,
                       "pre-tokeniser '%.64s' is not supported, these are: %s", name,
                       pretok_names());
    p = xcalloc(1, sizeof(*p));
    p->row = row;
    p->limits = pcre2_match_context_create(NULL);
    if (!p->limits) {
        pretok_free(p);
        return err_set(e, ERR_NOMEM, "no memory for pre-tokeniser '%s'", name);
    }
    pcre2_set_match_limit(p->limits, MATCH_LIMIT);
    pcre2_set_heap_limit(p->limits, HEAP_LIMIT_KIB);
    for (; p->n < PRETOK_STAGES_MAX && row->stages[p->n]; p->n++)
        if (compile(row->stages[p->n], &p->stage[p->n], e) < 0) {
            pretok_free(p);
            return -1;
        }
    *ret = p;
    return 0;
}

void pretok_free(struct pretok *p)
{
    if (!p)
        return;
    for (int i = 0; i < PRETOK_STAGES_MAX; i++)
        pcre2_code_free(p->stage[i].code);
    pcre2_match_context_free(p->limits);
    free(p);
}

const char *pretok_name(const struct pretok *p) { return p->row->name; }

/* One byte of a pattern; \r and \n count as the characters that they stand for. */
static char pattern_byte(const char **p)
{
    const char *s = *p;

    if (s[0] == '\\' && (s[1] == 'r' || s[1] == 'n')) {
        *p = s + 2;
        return s[1] == 'r' ? '\r' : '\n';
    }
    *p = s + 1;
    return s[0];
}

static bool same_pattern(const char *a, const char *b)
{
    for (;;) {
        char x = pattern_byte(&a), y = pattern_byte(&b);
        if (x != y)
            return false;
        if (!x)
            return true;
    }
}

const char *pretok_recognise(const char *const *patterns, size_t n)
{
    for (int i = 0; i < N_ROWS; i++) {
        const struct row *r = &table[i];
        size_t k = 0;

        while (k < n && k < PRETOK_STAGES_MAX && r->stages[k] &&
               same_pattern(r->stages[k], patterns[k]))
            k++;
        if (k == n && (k == PRETOK_STAGES_MAX || !r->stages[k]))
            return r->name;
    }
    return NULL;
}

int pretok_it_new(const struct pretok *p, struct pretok_it **ret, struct err *e)
{
    struct pretok_it *it = xcalloc(1, sizeof(*it));

    it->p = p;
    it->md = pcre2_match_data_create(1, NULL);
    if (!it->md) {
        free(it);
        return err_set(e, ERR_NOMEM, "no memory for a pattern match");
    }
    *ret = it;
    return 0;
}

void pretok_it_free(struct pretok_it *it)
{
    if (!it)
        return;
    pcre2_match_data_free(it->md);
    free(it);
}

void pretok_it_start(struct pretok_it *it, const char *text, size_t n)
{
    it->text = text;
    it->depth = 0;
    it->lv[0] = (struct level){.at = 0, .end = n};
}

static void find_trailing_space(const char *text, struct level *l)
{
    size_t i = l->end;

    while (i > l->at) {
        size_t k = i - 1;
        uint32_t cp = 0;

        while (k > l->at && ((unsigned char)text[k] & 0xc0) == 0x80)
            k--;
        if (utf8_next(text + k, i - k, &cp) <= 0 || !unicode_is_space(cp))
            break;
        i = k;
    }
    l->m0 = i;
    l->m1 = l->end;
}

/* Next match of the level's stage in what is left of its piece; m0 = end when none. */
static int find(struct pretok_it *it, struct level *l, const struct stage *st,
                struct err *e)
{
    PCRE2_SPTR s = (PCRE2_SPTR)it->text + l->at;
    size_t n = l->end - l->at;
    const PCRE2_SIZE *ov;
    int rc;

    l->found = true;
    if (!st->code) {
        find_trailing_space(it->text, l);
        return 0;
    }
    if (st->jit)
        rc = pcre2_jit_match(st->code, s, n, 0, 0, it->md, it->p->limits);
    else
        rc = pcre2_match(st->code, s, n, 0, PCRE2_NO_UTF_CHECK, it->md, it->p->limits);
    if (rc == PCRE2_ERROR_NOMATCH) {
        l->m0 = l->m1 = l->end;
        return 0;
    }
    if (rc < 0)
        return err_set(e, ERR_TOOBIG,
                       "text of %zu bytes took pattern '%s' over its limits (PCRE2 %d)",
                       n, it->p->row->name, rc);
    ov = pcre2_get_ovector_pointer(it->md);
    l->m0 = l->at + ov[0];
    l->m1 = l->at + ov[1];
    return 0;
}

int pretok_it_next(struct pretok_it *it, size_t *ret_off, size_t *ret_len, struct err *e)
{
    for (;;) {
        struct level *l = &it->lv[it->depth];
        size_t from = l->at;

        if (l->at == l->end) {
            if (it->depth == 0)
                return 0;
            it->depth--;
            continue;
        }
        if (!l->found && find(it, l, &it->p->stage[it->depth], e) < 0)
            return -1;
        if (from < l->m0) {
            l->at = l->m0;
        } else {
            l->at = l->m1;
            l->found = false;
        }
        if (it->depth == it->p->n - 1) {
            *ret_off = from;
            *ret_len = l->at - from;
            return 1;
        }
        it->lv[++it->depth] = (struct level){.at = from, .end = l->at};
    }
}
