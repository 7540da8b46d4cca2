/* daemon/ctrl/conf_value.c - one value of a directive: read, checked, written. */
#include "daemon/ctrl/conf_rows.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/mem.h"

enum { STRING_MAX = 4096, SHOWN = 60 };

static int fault(char msg[256], const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
static int fault(char msg[256], const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(msg, 256, fmt, ap);
    va_end(ap);
    return -1;
}

int conf_char(const unsigned char *s, size_t n)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    uint32_t c = s[0];
    int k = c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;

    if (k == 0 || (size_t)k > n)
        return -1;
    if (k > 1)
        c &= 0x7fu >> k;
    for (int i = 1; i < k; i++) {
        if ((s[i] & 0xc0) != 0x80)
            return -1;
        c = c << 6 | (s[i] & 0x3f);
    }
    if (c < least[k] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
        return -1;
    /* what YAML forbids, and its other line ends */
    if (c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0x2028 || c == 0x2029 ||
        c == 0xfeff || c == 0xfffe || c == 0xffff)
        return 0;
    return k;
}

/* ---- strings ---- */

static bool port_ok(const char *s)
{
    return *s && strspn(s, "0123456789") == strlen(s) && strlen(s) <= 5 &&
           atoi(s) <= 65535;
}

static bool host_ok(const char *s, size_t n)
{
    static const char ok[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                             "0123456789-._";
    size_t i = 0;

    if (n > 2 && s[0] == '[' && s[n - 1] == ']') {
        for (i = 1; i < n - 1 && strchr("0123456789abcdefABCDEF:.", s[i]); i++)
            continue;
        return i == n - 1;
    }
    while (i < n && strchr(ok, s[i]))
        i++;
    return n > 0 && n <= 255 && i == n;
}

static bool address_ok(const char *s)
{
    const char *colon = strrchr(s, ':');
    return !*s || (colon && host_ok(s, (size_t)(colon - s)) && port_ok(colon + 1));
}

static bool origin_ok(const char *s)
{
    const char *host = !strncmp(s, "https://", 8)  ? s + 8
                       : !strncmp(s, "http://", 7) ? s + 7
                                                   : "";
    const char *end = strchr(host, ']'), *colon = strchr(end ? end : host, ':');

    return host_ok(host, colon ? (size_t)(colon - host) : strlen(host)) &&
           (!colon || port_ok(colon + 1));
}

static int check_form(const struct conf_row *r, const char *s, char msg[256])
{
    switch (r->form) {
    case FORM_ADDRESS:
        return address_ok(s) ? 0
                             : fault(msg,
                                     "'%.*s' is no address; HOST:PORT would be right, "
                                     "with a port from 0 to 65535",
                                     SHOWN, s);
    case FORM_HOST:
        return host_ok(s, strlen(s)) ? 0
                                     : fault(msg,
                                             "'%.*s' is no host; a name or an address "
                                             "without a port would be right",
                                             SHOWN, s);
    case FORM_ORIGIN:
        return origin_ok(s) ? 0
                            : fault(msg,
                                    "'%.*s' is no origin; https://HOST or "
                                    "https://HOST:PORT would be right",
                                    SHOWN, s);
    case FORM_FILE:
        return !*s || *s == '/' ? 0
                                : fault(msg,
                                        "'%.*s' is a relative path; one that begins "
                                        "with / would be right",
                                        SHOWN, s);
    case FORM_ANY:
    case FORM_MODEL:
        break;
    }
    return 0;
}

int conf_value_item(const struct conf_row *r, const char *s, size_t n, char msg[256])
{
    char copy[STRING_MAX + 1];

    if (n > STRING_MAX)
        return fault(msg, "%zu bytes are more than the %d that a text may have", n,
                     STRING_MAX);
    for (size_t i = 0; i < n;) {
        int k = conf_char((const unsigned char *)s + i, n - i);
        if (k <= 0)
            return fault(msg, "a text of one line without control characters would be "
                              "right");
        i += (size_t)k;
    }
    if (n == 0 && (!r->def || r->kind == CONF_LIST))
        return fault(msg, "an empty text is of no use here");
    memcpy(copy, s, n);
    copy[n] = '\0';
    return check_form(r, copy, msg);
}

/* ---- reading ---- */

/* Index in "a|b|c", -1. */
static int choice(const char *choices, const char *s, size_t n)
{
    int i = 0;

    for (const char *c = choices; c; i++) {
        const char *end = strchr(c, '|');
        size_t len = end ? (size_t)(end - c) : strlen(c);
        if (len == n && !memcmp(c, s, n))
            return i;
        c = end ? end + 1 : NULL;
    }
    return -1;
}

static void commas(const char *choices, char *ret, size_t cap)
{
    struct buf b;

    buf_init(&b, 0);
    for (const char *c = choices; *c; c++)
        if (*c != '|')
            buf_putc(&b, *c);
        else
            buf_puts(&b, strchr(c + 1, '|') ? ", " : " or ");
    snprintf(ret, cap, "%s", b.p ? b.p : "");
    buf_done(&b);
}

static int read_choice(const struct conf_row *r, const char *s, size_t n, int *ret,
                       char msg[256])
{
    char list[96];

    *ret = choice(r->choices, s, n);
    if (*ret >= 0)
        return 0;
    commas(r->choices, list, sizeof(list));
    return fault(msg, "'%.*s' is not known here; %s would be right",
                 (int)(n > SHOWN ? SHOWN : n), s, list);
}

/* A whole or broken number in decimal, nothing else. */
static bool number(const char *s, bool whole, double *ret)
{
    const char *p = s + (*s == '-');
    size_t digits = strspn(p, "0123456789");
    char *end;

    if (digits == 0 || (whole && p[digits]) || (digits > 1 && p[0] == '0') ||
        strspn(p, whole ? "0123456789" : "0123456789.eE+-") != strlen(p))
        return false;
    errno = 0;
    *ret = strtod(s, &end);
    return !*end && isfinite(*ret);
}

static int read_number(const struct conf_row *r, const char *s, size_t n, bool quoted,
                       double *ret, char msg[256])
{
    char copy[64], range[80];
    bool whole = r->kind == CONF_INT;

    snprintf(copy, sizeof(copy), "%.*s", (int)(n < sizeof(copy) ? n : 0), s);
    snprintf(range, sizeof(range), "from %.10g to %.10g%s%s", r->min, r->max,
             *r->unit ? " " : "", r->unit);
    if (quoted || strlen(copy) != n || !number(copy, whole, ret))
        return fault(msg, "%s'%.*s' is no %snumber; one %s would be right",
                     quoted ? "the text " : "", (int)(n > SHOWN ? SHOWN : n), s,
                     whole ? "whole " : "", range);
    if (*ret < r->min || *ret > r->max)
        return fault(msg, "%s is out of range; %s would be right", copy, range);
    return 0;
}

int conf_value_read(const struct conf_row *r, const char *s, size_t n, bool quoted,
                    void *base, struct arena *a, char msg[256])
{
    void *to = (char *)base + r->offset;
    double v = 0;
    int at = 0;

    switch (r->kind) {
    case CONF_STR:
        /* also a wrong one: else cross-checks would find it missing */
        *(const char **)to = arena_strndup(a, s, n);
        return conf_value_item(r, s, n, msg);
    case CONF_WORD:
        if (read_choice(r, s, n, &at, msg) < 0)
            return -1;
        *(const char **)to = arena_strndup(a, s, n);
        return 0;
    case CONF_ENUM:
        return read_choice(r, s, n, to, msg);
    case CONF_BOOL:
        if (quoted || read_choice(r, s, n, &at, msg) < 0)
            return fault(msg, "'%.*s' is no switch; true or false would be right",
                         (int)(n > SHOWN ? SHOWN : n), s);
        *(bool *)to = at == 0;
        return 0;
    case CONF_INT:
        if (read_number(r, s, n, quoted, &v, msg) < 0)
            return -1;
        *(int64_t *)to = (int64_t)v;
        return 0;
    case CONF_NUM:
        *(double *)to = r->max; /* a wrong one is given all the same */
        return read_number(r, s, n, quoted, to, msg);
    case CONF_LIST:
        break;
    }
    return fault(msg, "one value where a list would be right, e.g. [a, b]");
}

/* ---- writing ---- */

void conf_yaml_str(struct buf *out, const char *s)
{
    static const char ok[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                             "0123456789/._-+=@%:~";
    size_t n = strlen(s);

    if (n && strspn(s, ok) == n && !strchr("-=@%:~", s[0]) && s[n - 1] != ':' &&
        strcmp(s, "...")) {
        buf_puts(out, s);
        return;
    }
    buf_putc(out, '"');
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            buf_putc(out, '\\');
        buf_putc(out, *s);
    }
    buf_putc(out, '"');
}

/* The shortest decimal that reads back the same. */
static void write_num(struct buf *out, double v)
{
    char s[40];

    for (int digits = 1; digits <= 17; digits++) {
        snprintf(s, sizeof(s), "%.*g", digits, v);
        if (strtod(s, NULL) == v)
            break;
    }
    if (fabs(v) >= 1 && fabs(v) < 1e15 && strchr(s, 'e'))
        snprintf(s, sizeof(s), "%.0f", v);
    buf_puts(out, s);
}

void conf_value_write(const struct conf_row *r, const void *base, struct buf *out)
{
    const void *v = (const char *)base + r->offset;
    const char *const *list;
    const char *c;
    int n;

    switch (r->kind) {
    case CONF_STR:
    case CONF_WORD:
        c = *(const char *const *)v;
        buf_puts(out, c ? c : "");
        return;
    case CONF_ENUM:
        c = r->choices;
        for (int i = 0; i < *(const int *)v; i++)
            c = strchr(c, '|') + 1;
        buf_add(out, c, strcspn(c, "|"));
        return;
    case CONF_BOOL:
        buf_puts(out, *(const bool *)v ? "true" : "false");
        return;
    case CONF_INT:
        buf_printf(out, "%lld", (long long)*(const int64_t *)v);
        return;
    case CONF_NUM:
        write_num(out, *(const double *)v);
        return;
    case CONF_LIST:
        list = *(const char *const *const *)v;
        n = *(const int *)((const char *)base + r->n_offset);
        buf_putc(out, '[');
        for (int i = 0; i < n; i++) {
            buf_puts(out, i ? ", " : "");
            conf_yaml_str(out, list[i]);
        }
        buf_putc(out, ']');
        return;
    }
}

void conf_row_type(const struct conf_row *r, struct conf_row_doc *ret)
{
    static const char *const types[] = {
        "text", "one of", "one of", "whole number", "number", "switch", "list of texts"};

    ret->path = r->path;
    ret->type = types[r->kind];
    ret->def = r->def;
    ret->unit = r->kind == CONF_STR ? "" : r->unit;
    ret->help = r->help;
    ret->class = r->class;
    if (r->kind == CONF_INT || r->kind == CONF_NUM)
        snprintf(ret->range, sizeof(ret->range), "%.10g..%.10g", r->min, r->max);
    else if (r->choices)
        snprintf(ret->range, sizeof(ret->range), "%s", r->choices);
    else
        snprintf(ret->range, sizeof(ret->range), "%s", r->unit);
}
