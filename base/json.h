/* base/json.h - bounded, strict JSON reading (over jansson) and a streaming writer.
 *
 * Reading: duplicate keys, lone surrogates, trailing bytes, depth or size over the limit
 * are errors with position. The js_get_* helpers read one member with type and range
 * check; on a fault e->param names the member and -1 comes back; an absent or null
 * member leaves *ret untouched and yields 0; a present one yields 1.
 * Writing: jw_* appends one-line JSON to a struct buf; strings are escaped, invalid UTF-8
 * becomes U+FFFD, non-finite numbers become null. One owner thread. */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

struct buf;
struct err;

struct js_limits {
    size_t max_bytes; /* 0 = none */
    int max_depth;    /* nested arrays and objects */
};

/* Parse text[0..n). allow \u0000 in strings. The caller json_decref()s *ret. */
int js_parse(const char *text, size_t n, const struct js_limits *lim, json_t **ret,
             struct err *e);

int js_get_int(const json_t *obj, const char *key, int64_t min, int64_t max, int64_t *ret,
               struct err *e);
int js_get_num(const json_t *obj, const char *key, double min, double max, double *ret,
               struct err *e);
int js_get_bool(const json_t *obj, const char *key, bool *ret, struct err *e);
/* *ret is borrowed from obj; *ret_n may be NULL (then an embedded NUL is an error). */
int js_get_str(const json_t *obj, const char *key, const char **ret, size_t *ret_n,
               struct err *e);

struct jw {
    struct buf *b;
    unsigned need_comma; /* bit per depth */
    int depth;
};

void jw_init(struct jw *w, struct buf *b);
void jw_obj(struct jw *w);
void jw_obj_end(struct jw *w);
void jw_arr(struct jw *w);
void jw_arr_end(struct jw *w);
void jw_key(struct jw *w, const char *key);
void jw_str(struct jw *w, const char *s); /* NULL writes null */
void jw_strn(struct jw *w, const char *s, size_t n);
void jw_int(struct jw *w, int64_t v);
void jw_num(struct jw *w, double v);
void jw_bool(struct jw *w, bool v);
void jw_null(struct jw *w);
void jw_raw(struct jw *w, const char *json); /* already JSON */
/* key and value in one call */
void jw_kstr(struct jw *w, const char *key, const char *s);
void jw_kint(struct jw *w, const char *key, int64_t v);
void jw_knum(struct jw *w, const char *key, double v);
void jw_kbool(struct jw *w, const char *key, bool v);
void jw_knull(struct jw *w, const char *key);

#endif
