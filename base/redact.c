/* base/redact.c - line by line. */
#include "base/redact.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

#include "base/buf.h"

#define OUT "(struck out)"

enum { KEY_ID = 12, SECRET_MIN = 32 };

static bool is_id_char(char c)
{
    return islower((unsigned char)c) || isdigit((unsigned char)c);
}

/* Length of an API key at p, 0 = none: twelve of [a-z0-9], a dot, 32 or more hex. */
static size_t key_at(const char *p, const char *end)
{
    size_t n = KEY_ID + 1;

    if (end - p < KEY_ID + 1 + SECRET_MIN || p[KEY_ID] != '.')
        return 0;
    for (int i = 0; i < KEY_ID; i++)
        if (!is_id_char(p[i]))
            return 0;
    while (p + n < end && isxdigit((unsigned char)p[n]))
        n++;
    return n >= KEY_ID + 1 + SECRET_MIN ? n : 0;
}

static bool starts(const char *p, const char *end, const char *word)
{
    size_t n = strlen(word);

    return (size_t)(end - p) >= n && strncasecmp(p, word, n) == 0;
}

/* A name whose value is secret, at p; its length, 0 = none. *ret_count: a number behind
 * it is one of a count. */
static size_t name_at(const char *line, const char *p, const char *end, bool *ret_count)
{
    static const char *const names[] = {"token",  "prompt",  "password", "passwd",
                                        "secret", "api_key", "apikey"};
    enum { COUNTS = 2 };

    if (p > line && (isalnum((unsigned char)p[-1])))
        return 0;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (starts(p, end, names[i])) {
            *ret_count = i < COUNTS;
            return strlen(names[i]);
        }
    return 0;
}

/* Behind a name: quotes, ':' or '=', then a value that is no count. Where the value
 * begins, NULL = this is no such thing. */
static const char *value_after(const char *p, const char *end, bool count)
{
    while (p < end && (*p == '"' || *p == '\'' || *p == ' '))
        p++;
    if (p == end || (*p != ':' && *p != '='))
        return NULL;
    p++;
    while (p < end && *p == ' ')
        p++;
    if (p == end || (count && isdigit((unsigned char)*p)) || strchr("-{[", *p) ||
        starts(p, end, "null") || starts(p, end, OUT)) /* also in a second look */
        return NULL;
    return p;
}

static const char *end_of_value(const char *p, const char *end)
{
    if (*p == '"' || *p == '\'') {
        const char *q = p + 1;

        while (q < end && *q != *p)
            q += *q == '\\' && q + 1 < end ? 2 : 1;
        return q < end ? q + 1 : end;
    }
    while (p < end && !strchr(" ,;}\t", *p))
        p++;
    return p;
}

/* "request ID: answer of 12 bytes: ..": where the text of a user begins, or NULL. */
static const char *content_at(const char *p, const char *end)
{
    static const char mark[] = " bytes: ";
    const char *at = memmem(p, (size_t)(end - p), "request ", 8);
    const char *m = at ? memmem(at, (size_t)(end - at), mark, sizeof(mark) - 1) : NULL;

    return m ? m + sizeof(mark) - 1 : NULL;
}

static void redact_line(const char *p, const char *end, struct buf *out)
{
    const char *line = p, *content = content_at(p, end);

    if (content)
        end = content;
    while (p < end) {
        size_t key = p == line || !is_id_char(p[-1]) ? key_at(p, end) : 0;
        bool count = false;
        size_t name = key ? 0 : name_at(line, p, end, &count);
        const char *value = name ? value_after(p + name, end, count) : NULL;

        if (key) {
            buf_printf(out, "%.*s." OUT, KEY_ID, p);
            p += key;
        } else if (starts(p, end, "bearer ")) {
            buf_printf(out, "%.7s" OUT, p);
            p += 7;
            while (p < end && *p != ' ' && *p != '"')
                p++;
        } else if (value) {
            const char quote = *value == '"' || *value == '\'' ? *value : '\0';

            buf_add(out, p, (size_t)(value - p));
            if (quote)
                buf_putc(out, quote);
            buf_puts(out, OUT);
            if (quote)
                buf_putc(out, quote);
            p = end_of_value(value, end);
        } else {
            buf_putc(out, *p++);
        }
    }
    if (content)
        buf_puts(out, OUT);
}

static bool holds(const char *p, size_t n, const char *word)
{
    return p && memmem(p, n, word, strlen(word));
}

void redact(const char *text, size_t n, struct buf *out)
{
    bool pem = false;

    while (n > 0) {
        const char *nl = memchr(text, '\n', n);
        size_t len = nl ? (size_t)(nl - text) : n;
        bool begin = holds(text, len, "-----BEGIN") && holds(text, len, "PRIVATE KEY");

        if (begin)
            buf_puts(out, OUT);
        pem |= begin;
        if (!pem)
            redact_line(text, text + len, out);
        if (nl && (!pem || begin))
            buf_putc(out, '\n');
        if (pem && holds(text, len, "-----END"))
            pem = false;
        text += len + (nl != NULL);
        n -= len + (nl != NULL);
    }
}
