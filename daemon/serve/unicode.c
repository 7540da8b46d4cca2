/* UTF-8 steps and NFC.
 *
 * utf8_next is the one place that knows which byte sequences are characters; encoding,
 * streaming and pre-tokenising all stand on it. The second byte has a narrower range
 * after E0, ED, F0 and F4 (no overlong forms, no surrogates, nothing over U+10FFFF).
 *
 * NFC takes tables from utf8proc but sorts combining marks itself: utf8proc's own
 * reordering swaps neighbours, which is quadratic in a long run of marks, and the text
 * comes from outside. Decompose, sort each run of marks by class (stable, by counting
 * over the at most 256 classes), then let utf8proc compose, which is linear. */
#include "daemon/serve/unicode.h"

#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"

int utf8_next(const char *text, size_t n, uint32_t *ret_cp)
{
    const unsigned char *p = (const unsigned char *)text;
    unsigned lo = 0x80, hi = 0xbf;
    uint32_t cp;
    int need;

    if (p[0] < 0x80) {
        if (ret_cp)
            *ret_cp = p[0];
        return 1;
    }
    if (p[0] < 0xc2 || p[0] > 0xf4)
        return -1;
    need = p[0] < 0xe0 ? 1 : p[0] < 0xf0 ? 2 : 3;
    cp = p[0] & (0x3fu >> need);
    if (p[0] == 0xe0)
        lo = 0xa0;
    else if (p[0] == 0xed)
        hi = 0x9f;
    else if (p[0] == 0xf0)
        lo = 0x90;
    else if (p[0] == 0xf4)
        hi = 0x8f;
    for (int i = 1; i <= need; i++) {
        if ((size_t)i >= n)
            return 0;
        if (p[i] < lo || p[i] > hi)
            return -i;
        cp = cp << 6 | (p[i] & 0x3f);
        lo = 0x80;
        hi = 0xbf;
    }
    if (ret_cp)
        *ret_cp = cp;
    return need + 1;
}

int utf8_put(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xc0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xe0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (char)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (char)(0x80 | (cp & 0x3f));
    return 4;
}

size_t utf8_span(const char *p, size_t n)
{
    size_t i = 0;

    while (i < n) {
        uint64_t w;
        int len;

        if (n - i >= sizeof(w)) {
            memcpy(&w, p + i, sizeof(w));
            if (!(w & 0x8080808080808080ull)) {
                i += sizeof(w);
                continue;
            }
        }
        len = utf8_next(p + i, n - i, NULL);
        if (len <= 0)
            break;
        i += (size_t)len;
    }
    return i;
}

bool unicode_is_space(uint32_t cp)
{
    if (cp < 0x80)
        return cp == ' ' || (cp >= 9 && cp <= 13);
    return cp == 0x85 || cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) ||
           cp == 0x2028 || cp == 0x2029 || cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

static unsigned mark_class(int32_t cp)
{
    return (unsigned)utf8proc_get_property(cp)->combining_class & 0xff;
}

/* Stable sort of one run of marks by combining class. */
static void sort_run(int32_t *cps, size_t n, int32_t *tmp)
{
    size_t at[257] = {0};
    bool sorted = true;

    for (size_t i = 1; i < n && sorted; i++)
        sorted = mark_class(cps[i - 1]) <= mark_class(cps[i]);
    if (sorted)
        return;
    for (size_t i = 0; i < n; i++)
        at[mark_class(cps[i]) + 1]++;
    for (int c = 0; c < 256; c++)
        at[c + 1] += at[c];
    for (size_t i = 0; i < n; i++)
        tmp[at[mark_class(cps[i])]++] = cps[i];
    memcpy(cps, tmp, n * sizeof(*cps));
}

static void sort_marks(int32_t *cps, size_t n, int32_t *tmp)
{
    size_t i = 0;

    while (i < n) {
        size_t j = i;
        while (j < n && mark_class(cps[j]) != 0)
            j++;
        sort_run(cps + i, j - i, tmp);
        i = j + 1;
    }
}

/* Canonical decomposition into cps (room for cap); yields the count, or -1 if full. */
static ptrdiff_t decompose(const char *p, size_t n, int32_t *cps, size_t cap)
{
    size_t out = 0;

    for (size_t i = 0; i < n;) {
        uint32_t cp = 0;
        int boundary = 0;
        utf8proc_ssize_t k;
        int len = utf8_next(p + i, n - i, &cp);

        if (len <= 0)
            return -1;
        k = utf8proc_decompose_char((int32_t)cp, cps + out, (utf8proc_ssize_t)(cap - out),
                                    UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &boundary);
        if (k < 0 || (size_t)k > cap - out)
            return -1;
        out += (size_t)k;
        i += (size_t)len;
    }
    return (ptrdiff_t)out;
}

/* Text wholly below U+0300 is in NFC already. */
static bool below_300(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)p[i] >= 0xcc)
            return false;
    return true;
}

int unicode_nfc(const char *p, size_t n, struct buf *out, struct err *e)
{
    size_t cap = 0, room;
    int32_t *cps;
    ptrdiff_t k;

    if (below_300(p, n)) {
        buf_add(out, p, n);
        return out->over ? err_set(e, ERR_NOMEM, "no memory to normalise text") : 0;
    }
    /* a character of two bytes or more decomposes into at most four */
    if (size_mul(n, 2, &cap) < 0 || size_add(cap, 8, &cap) < 0 ||
        size_mul(cap, 2 * sizeof(*cps), &room) < 0)
        return err_set(e, ERR_TOOBIG, "text of %zu bytes is too long to normalise", n);
    cps = try_malloc(room);
    if (!cps)
        return err_set(e, ERR_NOMEM, "no memory to normalise %zu bytes of text", n);
    k = decompose(p, n, cps, cap);
    if (k < 0) {
        free(cps);
        return err_set(e, ERR_INTERNAL, "text to normalise is not UTF-8");
    }
    sort_marks(cps, (size_t)k, cps + cap);
    k = utf8proc_normalize_utf32(cps, k, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    for (ptrdiff_t i = 0; i < k; i++) {
        char c[4];
        buf_add(out, c, (size_t)utf8_put((uint32_t)cps[i], c));
    }
    free(cps);
    return out->over ? err_set(e, ERR_NOMEM, "no memory to normalise text") : 0;
}
