/* tests/unit/test_openapi.c - the document: whole, every route in it, nothing dangling.
 */
#include "tests/test.h"

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "daemon/api/openapi.h"
#include "daemon/api/query.h"
#include "daemon/api/route.h"
#include "daemon/api/schema.h"

static json_t *document(void)
{
    static const struct js_limits lim = {4 << 20, 32};
    struct buf b;
    struct err e;
    json_t *doc;

    buf_init(&b, 0);
    if (openapi_write("1.2.3", &b, &e) < 0)
        fail_msg("%s", e.msg);
    if (js_parse(b.p, b.len, &lim, &doc, &e) < 0)
        fail_msg("%s", e.msg);
    buf_done(&b);
    return doc;
}

/* Every $ref names something of the document. */
static int check_refs(const json_t *doc, json_t *v)
{
    const char *ref = json_string_value(json_object_get(v, "$ref"));
    int n = 0;

    if (ref) {
        const char *prefix = "#/components/schemas/";

        assert_int_equal(strncmp(ref, prefix, strlen(prefix)), 0);
        if (!json_object_get(
                json_object_get(json_object_get(doc, "components"), "schemas"),
                ref + strlen(prefix)))
            fail_msg("%s leads nowhere", ref);
        n++;
    }
    if (json_is_object(v)) {
        const char *key;
        json_t *m;

        json_object_foreach(v, key, m) n += check_refs(doc, m);
    } else if (json_is_array(v)) {
        for (size_t i = 0; i < json_array_size(v); i++)
            n += check_refs(doc, json_array_get(v, i));
    }
    return n;
}

static void test_whole(void **state)
{
    json_t *doc = document();
    int n = 0;

    (void)state;
    while (schema_name(n))
        n++;
    assert_int_equal(
        json_object_size(json_object_get(json_object_get(doc, "components"), "schemas")),
        n);
    assert_true(check_refs(doc, doc) > n);
    json_decref(doc);
}

/* One operation a row, its path parameters named, its codes known. */
static void test_routes(void **state)
{
    json_t *doc = document(), *paths = json_object_get(doc, "paths"), *op;
    const struct route *r;

    (void)state;
    for (int i = 0; (r = route_row(i)); i++) {
        char path[128], method[8];
        int n = 0, names = 0, given = 0;

        for (const char *p = r->path; *p; p++) {
            names += *p == '{';
            if (*p != '*')
                path[n++] = *p;
        }
        path[n] = '\0';
        for (n = 0; r->method[n]; n++)
            method[n] = (char)(r->method[n] | 0x20);
        method[n] = '\0';
        op = json_object_get(json_object_get(paths, path), method);
        if (!op)
            fail_msg("%s %s is not in the document", r->method, r->path);
        assert_string_equal(json_string_value(json_object_get(op, "operationId")),
                            r->name);
        for (int q = 0; q < QUERY_COUNT; q++)
            given += query_allowed(r, q);
        assert_int_equal(json_array_size(json_object_get(op, "parameters")),
                         names + given);
        if (r->query[0]) {
            int words = 1;

            for (const char *p = r->query; *p; p++)
                words += *p == ' ';
            assert_int_equal(words, given);
        }
        op = json_object_get(op, "responses");
        assert_true(json_object_size(op) >= 6);
        assert_null(json_object_get(op, "500"));
        assert_true(!json_object_get(op, "503") == !strstr(r->codes, "503"));
        assert_true(!json_object_get(op, "401") == (r->access == ACCESS_NONE));
    }
    json_decref(doc);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_whole),
    cmocka_unit_test(test_routes),
};
TEST_MAIN("openapi", tests)
