/* daemon/api/openapi.c - the OpenAPI 3.1 document of all routes.
 *
 * What any route can answer stands here once (common[]); what one route alone can say is
 * in its row. So a client knows each status that it may meet, and 503 only where it is
 * listed. A stream of events is text to OpenAPI 3.1: the shape of one data line stands
 * beside it as x-event. */
#include "daemon/api/openapi.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "daemon/api/conn.h"
#include "daemon/api/handler.h"
#include "daemon/api/query.h"
#include "daemon/api/route.h"
#include "daemon/api/schema.h"
#include "daemon/api/server.h"

enum { CODES_MAX = 16, NAME_CHARS = 40 };

static const struct {
    int code;
    const char *says;
} texts[] = {
    {200, "here it is"},
    {202, "it has begun: see the operation"},
    {204, "done"},
    {400, "a value is not right; param names it"},
    {401, "a key is needed, or this one is not valid"},
    {403, "not allowed: scope, Host or Origin"},
    {404, "there is no such thing"},
    {408, "the body took too long"},
    {409, "it conflicts with the present state"},
    {412, "the state is no longer the one of If-Match"},
    {413, "the body is too large"},
    {415, "the body must be application/json"},
    {429, "a limit is reached; see Retry-After"},
    {503, "not now; see Retry-After"},
};
/* What every route can say; without a scope there is no 401. */
static const int common[] = {400, 401, 403, 408, 413, 429};

static const char *text_of(int code)
{
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        if (texts[i].code == code)
            return texts[i].says;
    return "";
}

static void ref(struct jw *w, const char *where, const char *name, int n)
{
    char path[128];

    snprintf(path, sizeof(path), "#/components/%s/%.*s", where, n, name);
    jw_obj(w);
    jw_kstr(w, "$ref", path);
    jw_obj_end(w);
}

/* "Name sse:Name": each alternative as a media type. */
static void put_content(struct jw *w, const char *kinds)
{
    static const struct {
        const char *prefix, *type;
    } media[] = {{"sse:", "text/event-stream"},
                 {"octets:", "application/octet-stream"},
                 {"text:", "text/plain"},
                 {"xml:", "application/xml"}};

    jw_key(w, "content");
    jw_obj(w);
    while (*kinds) {
        int n = (int)strcspn(kinds, " "), skip = 0;
        const char *type = "application/json";

        for (size_t i = 0; i < sizeof(media) / sizeof(media[0]); i++) {
            if (strncmp(kinds, media[i].prefix, strlen(media[i].prefix)))
                continue;
            type = media[i].type;
            skip = (int)strlen(media[i].prefix);
        }
        jw_key(w, type);
        jw_obj(w);
        jw_key(w, "schema");
        if (skip)
            jw_raw(w, "{\"type\":\"string\"}");
        else
            ref(w, "schemas", kinds, n);
        if (n > skip && skip) {
            jw_key(w, "x-event");
            ref(w, "schemas", kinds + skip, n - skip);
        }
        jw_obj_end(w);
        kinds += n;
        kinds += *kinds == ' ';
    }
    jw_obj_end(w);
}

static void put_header(struct jw *w, const char *name, const char *type, const char *says)
{
    jw_key(w, name);
    jw_obj(w);
    jw_kstr(w, "description", says);
    jw_key(w, "schema");
    jw_obj(w);
    jw_kstr(w, "type", type);
    jw_obj_end(w);
    jw_obj_end(w);
}

static void put_response(struct jw *w, const struct route *r, int code, bool etag)
{
    char key[8];
    bool good = code < 300;

    snprintf(key, sizeof(key), "%d", code);
    jw_key(w, key);
    jw_obj(w);
    jw_kstr(w, "description", text_of(code));
    if (etag || code == 202 || code == 429 || code == 503) {
        jw_key(w, "headers");
        jw_obj(w);
        if (etag)
            put_header(w, "ETag", "string", "for If-Match");
        if (code == 202)
            put_header(w, "Location", "string", "of the operation");
        if (code == 429 || code == 503)
            put_header(w, "Retry-After", "integer", "seconds");
        jw_obj_end(w);
    }
    if (code != 204)
        put_content(w, good ? r->reply : "Error");
    jw_obj_end(w);
}

static void put_responses(struct jw *w, const struct route *r)
{
    char *end;

    jw_key(w, "responses");
    jw_obj(w);
    for (const char *p = r->codes; *p; p = *end ? end + 1 : end) {
        int code = (int)strtol(p, &end, 10);
        bool etag = *end == '+';

        if (etag)
            end += strcspn(end, " ");
        put_response(w, r, code, etag);
    }
    for (size_t i = 0; i < sizeof(common) / sizeof(common[0]); i++) {
        char key[8];

        snprintf(key, sizeof(key), "%d", common[i]);
        if ((common[i] == 401 && r->access == ACCESS_NONE) || strstr(r->codes, key))
            continue;
        put_response(w, r, common[i], false);
    }
    jw_obj_end(w);
}

/* The next {name} of a path as name and its length; NULL past the last. */
static const char *next_name(const char *p, int *ret_n, bool *ret_rest)
{
    const char *open = strchr(p, '{'), *close = open ? strchr(open, '}') : NULL;

    if (!close)
        return NULL;
    *ret_rest = close[-1] == '*';
    *ret_n = (int)(close - open) - 1 - *ret_rest;
    return open + 1;
}

static void put_path_parameter(struct jw *w, const char *name, int n, bool rest)
{
    char text[NAME_CHARS];

    snprintf(text, sizeof(text), "%.*s", n, name);
    jw_obj(w);
    jw_kstr(w, "name", text);
    jw_kstr(w, "in", "path");
    jw_kbool(w, "required", true);
    jw_key(w, "schema");
    jw_raw(w, rest ? "{\"type\":\"string\",\"pattern\":\"^[A-Za-z0-9._/-]+$\"}"
                   : "{\"type\":\"string\",\"pattern\":\"^[A-Za-z0-9._:-]+$\"}");
    jw_obj_end(w);
}

static void put_query_parameter(struct jw *w, const struct query_row *q)
{
    bool num = q->kind == QUERY_NUM;

    jw_obj(w);
    jw_kstr(w, "name", q->name);
    jw_kstr(w, "in", q->kind == QUERY_HEADER ? "header" : "query");
    jw_kstr(w, "description", q->help);
    jw_key(w, "schema");
    jw_obj(w);
    jw_kstr(w, "type", num ? "integer" : "string");
    jw_kint(w, num ? "minimum" : "minLength", q->min);
    jw_kint(w, num ? "maximum" : "maxLength", q->max);
    jw_obj_end(w);
    jw_obj_end(w);
}

static void put_parameters(struct jw *w, const struct route *r)
{
    const char *name = r->path;
    bool rest = false;
    int n = 0;

    jw_key(w, "parameters");
    jw_arr(w);
    while ((name = next_name(name, &n, &rest)))
        put_path_parameter(w, name, n, rest);
    for (int i = 0; i < QUERY_COUNT; i++)
        if (query_allowed(r, i))
            put_query_parameter(w, query_row(i));
    jw_arr_end(w);
}

static void put_access(struct jw *w, const struct route *r)
{
    static const char *const scopes[] = {"none", "infer", "read", "admin"};

    jw_key(w, "security");
    jw_arr(w);
    if (r->access != ACCESS_NONE) {
        jw_obj(w);
        jw_key(w, "key");
        jw_arr(w);
        jw_str(w, scopes[r->access]);
        jw_arr_end(w);
        jw_obj_end(w);
    }
    if (r->access == ACCESS_INFER) /* where access.anonymous allows it */
        jw_raw(w, "{}");
    jw_arr_end(w);
}

static void put_operation(struct jw *w, const struct route *r)
{
    char method[8];
    size_t n = strlen(r->method);
    bool optional = r->request[0] == '?';

    for (size_t i = 0; i <= n; i++)
        method[i] = (char)(r->method[i] | (i < n ? 0x20 : 0));
    jw_key(w, method);
    jw_obj(w);
    jw_kstr(w, "operationId", r->name);
    jw_kstr(w, "summary", r->summary);
    put_parameters(w, r);
    if (r->request[0]) {
        jw_key(w, "requestBody");
        jw_obj(w);
        jw_kbool(w, "required", !optional);
        put_content(w, r->request + optional);
        jw_obj_end(w);
    }
    put_responses(w, r);
    put_access(w, r);
    jw_obj_end(w);
}

/* {model*} is {model} there. */
static void path_key(const char *path, char *out, size_t cap)
{
    size_t n = 0;

    for (; *path && n + 1 < cap; path++)
        if (*path != '*')
            out[n++] = *path;
    out[n] = '\0';
}

static void put_paths(struct jw *w)
{
    const struct route *r, *q;
    char key[128];

    for (int i = 0; (r = route_row(i)); i++) {
        bool seen = false;

        for (int k = 0; k < i; k++)
            seen = seen || !strcmp(route_row(k)->path, r->path);
        if (seen)
            continue;
        path_key(r->path, key, sizeof(key));
        jw_key(w, key);
        jw_obj(w);
        for (int k = i; (q = route_row(k)); k++)
            if (!strcmp(q->path, r->path))
                put_operation(w, q);
        jw_obj_end(w);
    }
}

int openapi_write(const char *version, struct buf *out, struct err *e)
{
    struct jw w;

    jw_init(&w, out);
    jw_obj(&w);
    jw_kstr(&w, "openapi", "3.1.0");
    jw_key(&w, "info");
    jw_obj(&w);
    jw_kstr(&w, "title", "llmrack");
    jw_kstr(&w, "version", version);
    jw_kstr(&w, "description",
            "Inference and control of one rack. On the UNIX socket the caller's groups "
            "decide; on TCP an API key does.");
    jw_obj_end(&w);
    jw_key(&w, "paths");
    jw_obj(&w);
    put_paths(&w);
    jw_obj_end(&w);
    jw_key(&w, "components");
    jw_obj(&w);
    jw_key(&w, "securitySchemes");
    jw_raw(&w, "{\"key\":{\"type\":\"http\",\"scheme\":\"bearer\",\"bearerFormat\":"
               "\"id.secret\"}}");
    jw_key(&w, "schemas");
    jw_obj(&w);
    for (int i = 0; schema_name(i); i++) {
        jw_key(&w, schema_name(i));
        if (schema_write(i, &w, e) < 0)
            return -1;
    }
    jw_obj_end(&w);
    jw_obj_end(&w);
    jw_obj_end(&w);
    return 0;
}

void control_openapi(struct conn *c)
{
    struct buf b;
    struct err e;

    buf_init(&b, 0);
    if (openapi_write(c->h->version, &b, &e) < 0)
        conn_answer_err(c, &e);
    else
        conn_answer(c, 200, "application/json", &b);
    buf_done(&b);
}
