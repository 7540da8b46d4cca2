/* base/json.c - strict, bounded reading over jansson and a writer into a struct buf.
 *
 * jansson has a fixed depth limit of its own that is far over ours, so depth is checked
 * by a scan before it parses; that scan knows strings and escapes and nothing else. */
#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"

static int check_depth(const char *text, size_t n, int max, struct err *e)
{
    bool in_str = false;
    int depth = 0;

    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (in_str) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_str = false;
        } else if (c == '"') {
            in_str = true;
        } else if (c == '[' || c == '{') {
            if (++depth > max)
                return err_set(e, ERR_SYNTAX,
                               "JSON is nested deeper than %d levels at byte %zu", max,
                               i);
        } else if (c == ']' || c == '}') {
            depth--;
        }
    }
    return 0;
}

int js_parse(const char *text, size_t n, const struct js_limits *lim, json_t **ret,
             struct err *e)
{
    json_error_t je;
    json_t *v;

    if (n == 0)
        return err_set(e, ERR_SYNTAX, "it is empty and must be JSON");
    if (lim && lim->max_bytes && n > lim->max_bytes)
        return err_set(e, ERR_TOOBIG, "JSON of %zu bytes is over the limit of %zu bytes",
                       n, lim->max_bytes);
    if (lim && lim->max_depth && check_depth(text, n, lim->max_depth, e) < 0)
        return -1;
    v = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY,
                   &je);
    if (!v)
        return err_set(e, ERR_SYNTAX, "JSON is not well-formed at line %d, column %d: %s",
                       je.line, je.column, je.text);
    *ret = v;
    return 0;
}

static json_t *member(const json_t *obj, const char *key)
{
    json_t *v = json_object_get(obj, key);
    return v && !json_is_null(v) ? v : NULL;
}

int js_get_int(const json_t *obj, const char *key, int64_t min, int64_t max, int64_t *ret,
               struct err *e)
{
    json_t *v = member(obj, key);

    if (!v)
        return 0;
    if (!json_is_integer(v))
        return err_param(e, ERR_INVALID, key, "%s must be an integer", key);
    if (json_integer_value(v) < min || json_integer_value(v) > max)
        return err_param(e, ERR_RANGE, key, "%s is %lld and must be from %lld to %lld",
                         key, (long long)json_integer_value(v), (long long)min,
                         (long long)max);
    *ret = json_integer_value(v);
    return 1;
}

int js_get_num(const json_t *obj, const char *key, double min, double max, double *ret,
               struct err *e)
{
    json_t *v = member(obj, key);
    double d;

    if (!v)
        return 0;
    if (!json_is_number(v))
        return err_param(e, ERR_INVALID, key, "%s must be a number", key);
    d = json_number_value(v);
    if (!(d >= min && d <= max))
        return err_param(e, ERR_RANGE, key, "%s is %g and must be from %g to %g", key, d,
                         min, max);
    *ret = d;
    return 1;
}

int js_get_bool(const json_t *obj, const char *key, bool *ret, struct err *e)
{
    json_t *v = member(obj, key);

    if (!v)
        return 0;
    if (!json_is_boolean(v))
        return err_param(e, ERR_INVALID, key, "%s must be true or false", key);
    *ret = json_is_true(v);
    return 1;
}

int js_get_str(const json_t *obj, const char *key, const char **ret, size_t *ret_n,
               struct err *e)
{
    json_t *v = member(obj, key);

    if (!v)
        return 0;
    if (!json_is_string(v))
        return err_param(e, ERR_INVALID, key, "%s must be a string", key);
    if (!ret_n && strlen(json_string_value(v)) != json_string_length(v))
        return err_param(e, ERR_INVALID, key, "%s must not contain a NUL character", key);
    *ret = json_string_value(v);
    if (ret_n)
        *ret_n = json_string_length(v);
    return 1;
}

/* ---- writer ---- */

void jw_init(struct jw *w, struct buf *b)
{
    w->b = b;
    w->need_comma = 0;
    w->depth = 0;
}

/* Before each value or key: the comma that parts it from the one before. */
static void part(struct jw *w)
{
    unsigned bit = 1u << (w->depth & 31);

    if (w->need_comma & bit)
        buf_putc(w->b, ',');
    w->need_comma |= bit;
}

static void open_with(struct jw *w, char c)
{
    part(w);
    buf_putc(w->b, c);
    w->depth++;
    w->need_comma &= ~(1u << (w->depth & 31));
}

static void close_with(struct jw *w, char c)
{
    w->depth--;
    buf_putc(w->b, c);
}

void jw_obj(struct jw *w) { open_with(w, '{'); }
void jw_obj_end(struct jw *w) { close_with(w, '}'); }
void jw_arr(struct jw *w) { open_with(w, '['); }
void jw_arr_end(struct jw *w) { close_with(w, ']'); }

/* Length of the valid UTF-8 character at p[0..n), 0 when there is none. */
static size_t utf8_len(const unsigned char *p, size_t n)
{
    size_t len = p[0] < 0x80   ? 1
                 : p[0] < 0xC2 ? 0
                 : p[0] < 0xE0 ? 2
                 : p[0] < 0xF0 ? 3
                               : 4;

    if (len == 0 || p[0] > 0xF4 || len > n)
        return 0;
    for (size_t i = 1; i < len; i++)
        if ((p[i] & 0xC0) != 0x80)
            return 0;
    if ((p[0] == 0xE0 && p[1] < 0xA0) || (p[0] == 0xED && p[1] > 0x9F) ||
        (p[0] == 0xF0 && p[1] < 0x90) || (p[0] == 0xF4 && p[1] > 0x8F))
        return 0;
    return len;
}

static void put_escaped(struct buf *b, unsigned char c)
{
    static const char names[] = "\bb\ff\nn\rr\tt\"\"\\\\";

    for (size_t i = 0; i + 1 < sizeof(names); i += 2)
        if ((unsigned char)names[i] == c) {
            buf_putc(b, '\\');
            buf_putc(b, names[i + 1]);
            return;
        }
    buf_printf(b, "\\u%04x", c);
}

static void put_string(struct buf *b, const char *s, size_t n)
{
    const unsigned char *p = (const unsigned char *)s;
    size_t from = 0, i = 0;

    buf_putc(b, '"');
    while (i < n) {
        bool plain = p[i] >= 0x20 && p[i] < 0x7F && p[i] != '"' && p[i] != '\\';
        size_t len = plain ? 1 : p[i] < 0x80 ? 0 : utf8_len(p + i, n - i);
        if (len) {
            i += len;
            continue;
        }
        buf_add(b, s + from, i - from);
        if (p[i] < 0x80)
            put_escaped(b, p[i]);
        else
            buf_puts(b, "\xEF\xBF\xBD");
        from = ++i;
    }
    buf_add(b, s + from, n - from);
    buf_putc(b, '"');
}

void jw_key(struct jw *w, const char *key)
{
    part(w);
    put_string(w->b, key, strlen(key));
    buf_putc(w->b, ':');
    w->need_comma &= ~(1u << (w->depth & 31));
}

void jw_strn(struct jw *w, const char *s, size_t n)
{
    part(w);
    put_string(w->b, s, n);
}

void jw_str(struct jw *w, const char *s)
{
    if (s)
        jw_strn(w, s, strlen(s));
    else
        jw_null(w);
}

void jw_raw(struct jw *w, const char *json)
{
    part(w);
    buf_puts(w->b, json);
}

void jw_int(struct jw *w, int64_t v)
{
    part(w);
    buf_printf(w->b, "%lld", (long long)v);
}

void jw_num(struct jw *w, double v)
{
    char text[40];
    char *comma;

    if (!isfinite(v)) {
        jw_null(w);
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, v);
        if (strtod(text, NULL) == v)
            break;
    }
    comma = strchr(text, ','); /* a program may have set a locale */
    if (comma)
        *comma = '.';
    jw_raw(w, text);
}

void jw_bool(struct jw *w, bool v) { jw_raw(w, v ? "true" : "false"); }
void jw_null(struct jw *w) { jw_raw(w, "null"); }

void jw_kstr(struct jw *w, const char *key, const char *s)
{
    jw_key(w, key);
    jw_str(w, s);
}

void jw_kint(struct jw *w, const char *key, int64_t v)
{
    jw_key(w, key);
    jw_int(w, v);
}

void jw_knum(struct jw *w, const char *key, double v)
{
    jw_key(w, key);
    jw_num(w, v);
}

void jw_kbool(struct jw *w, const char *key, bool v)
{
    jw_key(w, key);
    jw_bool(w, v);
}

void jw_knull(struct jw *w, const char *key)
{
    jw_key(w, key);
    jw_null(w);
}
