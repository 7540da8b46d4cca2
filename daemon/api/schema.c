/* daemon/api/schema.c - rows to JSON schemas.
 *
 * The words of a row are read by a small recursive reader (grammar: top of schema.def).
 * The requests of the two inference routes come from params.def, so that what is
 * documented is what is checked. */
#include "daemon/api/schema.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "daemon/api/params.h"

enum { DEPTH_MAX = 8, WORD_MAX = 64 };

static const struct schema_row {
    const char *name, *summary, *members, *raw; /* one of the two is NULL */
} rows[] = {
    {"ChatRequest", "a conversation; further members are ignored", NULL, NULL},
    {"TextRequest", "a text to continue; further members are ignored", NULL, NULL},
#define SCHEMA(name, summary, members) {#name, summary, members, NULL},
#define RAW(name, summary, raw) {#name, summary, NULL, raw},
#define FIELD(name, where, raw)
#include "daemon/api/schema.def"
#undef SCHEMA
#undef RAW
#undef FIELD
};
enum { N_ROWS = sizeof(rows) / sizeof(rows[0]) };

const char *schema_name(int i) { return i >= 0 && i < N_ROWS ? rows[i].name : NULL; }

bool schema_known(const char *name)
{
    for (int i = 0; i < N_ROWS; i++)
        if (!strcmp(rows[i].name, name))
            return true;
    return false;
}

/* ---- the fields of params.def ---- */

enum field_kind { FIELD_NUM, FIELD_OPEN, FIELD_INT, FIELD_BOOL };

static const struct {
    const char *name, *raw;
    int where; /* bits of enum params_kind */
} own[] = {
#define CHAT PARAMS_CHAT
#define TEXT PARAMS_TEXT
#define BOTH (PARAMS_CHAT | PARAMS_TEXT)
#define SCHEMA(name, summary, members)
#define RAW(name, summary, raw)
#define FIELD(name, where, raw) {name, raw, where},
#include "daemon/api/schema.def"
#undef SCHEMA
#undef RAW
#undef FIELD
};

static const struct {
    const char *name;
    int where;
    enum field_kind kind;
    double min, max;
} plain[] = {
#define NUM(name, where, member, min, max) {name, where, FIELD_NUM, min, max},
#define NUM_OPEN(name, where, member, min, max) {name, where, FIELD_OPEN, min, max},
#define INT(name, where, member, min, max) {name, where, FIELD_INT, min, max},
#define BOOL(name, where, member) {name, where, FIELD_BOOL, 0, 0},
#define OWN(name, where, fn)
#define REFUSE(name, where, why)
#define IGNORE(name, where)
#include "daemon/api/params.def"
#undef NUM
#undef NUM_OPEN
#undef INT
#undef BOOL
#undef OWN
#undef REFUSE
#undef IGNORE
};

static void write_field(struct jw *w, int i)
{
    enum field_kind kind = plain[i].kind;

    jw_key(w, plain[i].name);
    jw_obj(w);
    jw_key(w, "type");
    jw_arr(w);
    jw_str(w, kind == FIELD_BOOL ? "boolean" : kind == FIELD_INT ? "integer" : "number");
    jw_str(w, "null");
    jw_arr_end(w);
    if (kind != FIELD_BOOL) {
        jw_knum(w, kind == FIELD_OPEN ? "exclusiveMinimum" : "minimum", plain[i].min);
        jw_knum(w, "maximum", plain[i].max);
    }
    jw_obj_end(w);
}

static void write_params(struct jw *w, const struct schema_row *row, int where)
{
    jw_obj(w);
    jw_kstr(w, "type", "object");
    jw_kstr(w, "description", row->summary);
    jw_key(w, "required");
    jw_arr(w);
    jw_str(w, where == PARAMS_CHAT ? "messages" : "prompt");
    jw_arr_end(w);
    jw_key(w, "properties");
    jw_obj(w);
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
        if (!(own[i].where & where))
            continue;
        jw_key(w, own[i].name);
        jw_raw(w, own[i].raw);
    }
    for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++)
        if (plain[i].where & where)
            write_field(w, (int)i);
    jw_obj_end(w);
    jw_obj_end(w);
}

/* ---- the words of a row ---- */

struct reader {
    const char *p, *row;
    struct jw *w;
    struct err *e;
    int depth;
};

static int fault(struct reader *r, const char *what)
{
    return err_set(r->e, ERR_INTERNAL, "schema %s: %s at '%.24s'", r->row, what, r->p);
}

static bool take(struct reader *r, char c)
{
    if (*r->p != c)
        return false;
    r->p++;
    return true;
}

/* A name of letters, digits and _ ; in words of =a|b also - and points. */
static int word(struct reader *r, const char *more, char out[WORD_MAX])
{
    size_t n = 0;

    while (r->p[n] && (strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                              "0123456789_",
                              r->p[n]) ||
                       strchr(more, r->p[n])))
        n++;
    if (n == 0 || n >= WORD_MAX)
        return fault(r, "a word is missing");
    memcpy(out, r->p, n);
    out[n] = '\0';
    r->p += n;
    return 0;
}

/* (min..max) as the two keywords; a missing bound is left out. */
static int bounds(struct reader *r, const char *min, const char *max)
{
    char *end;

    if (!take(r, '('))
        return 0;
    if (*r->p != '.') {
        jw_knum(r->w, min, strtod(r->p, &end));
        /* "1..8" is read as 1. by strtod */
        r->p = end[-1] == '.' ? end - 1 : end;
    }
    if (!take(r, '.') || !take(r, '.'))
        return fault(r, "bounds are like (1..8)");
    if (*r->p != ')') {
        jw_knum(r->w, max, strtod(r->p, &end));
        r->p = end;
    }
    return take(r, ')') ? 0 : fault(r, "bounds end with )");
}

static void put_type(struct reader *r, const char *name, bool nullable)
{
    if (!nullable) {
        jw_kstr(r->w, "type", name);
        return;
    }
    jw_key(r->w, "type");
    jw_arr(r->w);
    jw_str(r->w, name);
    jw_str(r->w, "null");
    jw_arr_end(r->w);
}

/* Does a ? follow the type that begins here? Types have no blanks. */
static bool null_follows(const char *p)
{
    size_t n;
    int open = 0;

    for (n = 0; p[n] && p[n] != ' '; n++) {
        open += p[n] == '[' || p[n] == '{';
        open -= p[n] == ']' || p[n] == '}';
        if (open < 0)
            break;
    }
    return n > 0 && p[n - 1] == '?';
}

static int type(struct reader *r);

static int words(struct reader *r, bool nullable)
{
    char name[WORD_MAX];

    jw_key(r->w, "enum");
    jw_arr(r->w);
    do {
        if (word(r, "-.", name) < 0)
            return -1;
        jw_str(r->w, name);
    } while (take(r, '|'));
    if (nullable)
        jw_null(r->w);
    jw_arr_end(r->w);
    return 0;
}

static int group(struct reader *r, bool list, bool nullable)
{
    put_type(r, list ? "array" : "object", nullable);
    jw_key(r->w, list ? "items" : "additionalProperties");
    if (type(r) < 0)
        return -1;
    if (!take(r, list ? ']' : '}'))
        return fault(r, "a list or object does not end");
    return bounds(r, list ? "minItems" : "minProperties",
                  list ? "maxItems" : "maxProperties");
}

static int simple(struct reader *r, bool nullable)
{
    static const struct {
        const char *word, *type, *min, *max;
    } types[] = {{"str", "string", "minLength", "maxLength"},
                 {"int", "integer", "minimum", "maximum"},
                 {"num", "number", "minimum", "maximum"},
                 {"bool", "boolean", "", ""},
                 {"obj", "object", "", ""}};
    char name[WORD_MAX], ref[WORD_MAX + 32];

    if (word(r, "", name) < 0)
        return -1;
    if (!strcmp(name, "any"))
        return 0;
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (strcmp(types[i].word, name))
            continue;
        put_type(r, types[i].type, nullable);
        return bounds(r, types[i].min, types[i].max);
    }
    if (!schema_known(name))
        return fault(r, "there is no such row before");
    snprintf(ref, sizeof(ref), "#/components/schemas/%s", name);
    if (!nullable) {
        jw_kstr(r->w, "$ref", ref);
        return 0;
    }
    jw_key(r->w, "anyOf");
    jw_arr(r->w);
    jw_obj(r->w);
    jw_kstr(r->w, "$ref", ref);
    jw_obj_end(r->w);
    jw_raw(r->w, "{\"type\":\"null\"}");
    jw_arr_end(r->w);
    return 0;
}

static int type(struct reader *r)
{
    bool nullable = null_follows(r->p);
    int rc;

    if (++r->depth > DEPTH_MAX)
        return fault(r, "too deep");
    jw_obj(r->w);
    if (take(r, '='))
        rc = words(r, nullable);
    else if (take(r, '['))
        rc = group(r, true, nullable);
    else if (take(r, '{'))
        rc = group(r, false, nullable);
    else
        rc = simple(r, nullable);
    if (rc == 0 && nullable && !take(r, '?'))
        rc = fault(r, "? stands at the end of a type");
    jw_obj_end(r->w);
    r->depth--;
    return rc;
}

static int members(struct reader *r, bool *ret_open, struct jw *required)
{
    char name[WORD_MAX];

    while (*r->p) {
        if (!strcmp(r->p, "..")) {
            *ret_open = true;
            return 0;
        }
        if (word(r, "", name) < 0)
            return -1;
        if (!take(r, '~'))
            jw_str(required, name);
        if (!take(r, ':'))
            return fault(r, "a member is like name:type");
        jw_key(r->w, name);
        if (type(r) < 0)
            return -1;
        if (*r->p && !take(r, ' '))
            return fault(r, "a blank is missing");
    }
    return 0;
}

int schema_write(int i, struct jw *w, struct err *e)
{
    struct reader r = {rows[i].members, rows[i].name, w, e, 0};
    bool open = false;
    struct buf list;
    struct jw required;
    int rc;

    if (rows[i].raw) {
        jw_raw(w, rows[i].raw);
        return 0;
    }
    if (!rows[i].members) {
        write_params(w, &rows[i], i == 0 ? PARAMS_CHAT : PARAMS_TEXT);
        return 0;
    }
    buf_init(&list, 0);
    jw_init(&required, &list);
    jw_arr(&required);
    jw_obj(w);
    jw_kstr(w, "type", "object");
    jw_kstr(w, "description", rows[i].summary);
    jw_key(w, "properties");
    jw_obj(w);
    rc = members(&r, &open, &required);
    jw_obj_end(w);
    jw_arr_end(&required);
    jw_key(w, "required");
    jw_raw(w, list.p);
    if (!open)
        jw_kbool(w, "additionalProperties", false);
    jw_obj_end(w);
    buf_done(&list);
    return rc;
}
