/* tests/unit/test_route.c - paths to handlers, and names that are ours. */
#include "tests/test.h"

#include "base/err.h"
#include "daemon/api/guard.h"
#include "daemon/api/route.h"

static const struct route *find(const char *method, const char *path, char arg[64])
{
    struct route_match m;
    struct err e;
    const struct route *r;

    if (route_find(method, path, &m, &e) < 0)
        fail_msg("%s %s: %s", method, path, e.msg);
    r = m.route;
    assert_string_equal(m.allow, "");
    snprintf(arg, 64, "%s", m.arg[0] ? m.arg[0] : "");
    route_match_done(&m);
    return r;
}

static void test_paths(void **state)
{
    const struct route *r;
    char arg[64];

    (void)state;
    r = find("POST", "/v1/chat/completions", arg);
    assert_true(r->inference && r->run == ROUTE_WORKER && r->access == ACCESS_INFER);
    assert_string_equal(arg, "");
    assert_ptr_equal(find("POST", "/v1/chat/completions/", arg), r);
    assert_ptr_equal(find("HEAD", "/healthz", arg), find("GET", "/healthz", arg));
    find("GET", "/v1/models/a/b", arg);
    assert_string_equal(arg, "a/b");
    assert_int_equal(find("GET", "/api/v1/topology/matrix", arg)->access, ACCESS_READ);
}

static void test_what_is_not_there(void **state)
{
    static const char *const paths[] = {
        "/", "", "/v1", "/V1/models", "/v1/chat/completionsx", "/api/v1", "//"};
    struct route_match m;
    struct err e;

    (void)state;
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        assert_int_equal(route_find("GET", paths[i], &m, &e), -1);
        assert_int_equal(e.code, ERR_NOTFOUND);
        assert_string_equal(m.allow, "");
    }
    assert_int_equal(route_find("DELETE", "/v1/models/x", &m, &e), -1);
    assert_int_equal(e.code, ERR_METHOD);
    assert_string_equal(m.allow, "GET, HEAD");
    assert_int_equal(route_find("GET", "/tokenize", &m, &e), -1);
    assert_string_equal(m.allow, "POST");
    assert_int_equal(route_find("PUT", "/api/v1/explain", &m, &e), -1);
    assert_string_equal(m.allow, "GET, HEAD, POST");
}

/* No row hides a later one, and every row is whole. */
static void test_rows(void **state)
{
    const struct route *r, *q;

    (void)state;
    for (int i = 0; (r = route_row(i)); i++) {
        char path[128], arg[64];
        size_t n = 0;
        int names = 0;

        for (const char *p = r->path; *p; p++) {
            if (*p == '{') {
                names++;
                p = strchr(p, '}');
                assert_non_null(p);
                path[n++] = 'x';
            } else {
                path[n++] = *p;
            }
            assert_true(n < sizeof(path) - 1);
        }
        path[n] = '\0';
        assert_in_range(names, 0, ROUTE_ARGS);
        assert_ptr_equal(find(r->method, path, arg), r);
        assert_true(r->summary[0] && r->reply[0] && r->codes[0] == '2');
        assert_int_equal(!r->request[0],
                         !strcmp(r->method, "GET") || !strcmp(r->method, "DELETE"));
        for (int k = 0; k < i; k++) {
            q = route_row(k);
            assert_true(strcmp(q->method, r->method) || strcmp(q->path, r->path));
        }
    }
}

static void check(const char *host, const char *origin, enum err_code want)
{
    char *hosts[] = {"chat.example"}, *origins[] = {"https://chat.example:8443"};
    const struct guard_names n = {"rack.lan", "10.0.0.5", hosts, 1, origins, 1};
    struct err e = {0};

    if (guard_check(&n, host, origin, true, &e) < 0)
        assert_int_equal(e.code, want);
    else if (want != ERR_OK)
        fail_msg("accepted Host '%s', Origin '%s'", host ? host : "(none)",
                 origin ? origin : "(none)");
}

static void test_names(void **state)
{
    static const char *const good[] = {"localhost", "LocalHost:80",  "127.0.0.1:1",
                                       "[::1]",     "[::1]:8080",    "rack.lan",
                                       "rack.lan:", "10.0.0.5:8080", "Chat.Example:1"};
    static const char *const bad[] = {"",         "evil",        "localhost.evil",
                                      "rack.la",  "rack.lan.",   "[::1",
                                      "[::1]x",   "localhost:x", "localhost:80:80",
                                      "10.0.0.6", ":80",         "a@localhost"};
    const struct guard_names none = {"", "", NULL, 0, NULL, 0};

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        check(good[i], NULL, ERR_OK);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        check(bad[i], NULL, ERR_DENIED);
    check(NULL, NULL, ERR_INVALID);
    assert_int_equal(guard_check(&none, NULL, NULL, false, NULL), 0);
}

static void test_origins(void **state)
{
    static const char *const bad[] = {
        "null",
        "",
        "http://localhost",
        "https://chat.example",
        "http://chat.example:8443",
        "https://chat.example:84430",
        "https://chat.example:8443/",
        "https://chat.example:8443.evil",
    };

    (void)state;
    check("localhost", "https://chat.example:8443", ERR_OK);
    check("localhost", "HTTPS://Chat.Example:8443", ERR_OK);
    check("evil", "https://chat.example:8443", ERR_DENIED);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        check("localhost", bad[i], ERR_DENIED);
}

static void test_content_type_of_pages(void **state)
{
    static const char *const bad[] = {"text/plain", "", "application/jsonp",
                                      "multipart/form-data; a=application/json"};
    struct err e;

    (void)state;
    assert_int_equal(guard_content("POST", "application/json", &e), 0);
    assert_int_equal(guard_content("PUT", "Application/JSON; charset=utf-8", &e), 0);
    assert_int_equal(guard_content("GET", NULL, &e), 0);
    assert_int_equal(guard_content("POST", NULL, &e), -1);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(guard_content("PATCH", bad[i], &e), -1);
        assert_int_equal(e.code, ERR_UNSUPPORTED);
    }
}

/* What is changed needs admin; what costs a device needs infer; only health is open. */
static void test_scopes_of_the_rows(void **state)
{
    const struct route *r;

    (void)state;
    for (int i = 0; (r = route_row(i)); i++) {
        bool v1 = !strncmp(r->path, "/v1/", 4), api = !strncmp(r->path, "/api/", 5);

        if (r->access == ACCESS_NONE)
            assert_true(!strcmp(r->path, "/healthz") || !strcmp(r->path, "/readyz"));
        if (v1 || strstr(r->path, "tokenize"))
            assert_int_equal(r->access, ACCESS_INFER);
        if (api)
            assert_true(r->access >= ACCESS_READ);
        if (api && strcmp(r->method, "GET") && r->access != ACCESS_ADMIN)
            assert_true(strstr("/api/v1/explain /api/v1/plan /api/v1/config/check "
                               "/api/v1/selftest /api/v1/experts/plan",
                               r->path) != NULL);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_paths),
    cmocka_unit_test(test_what_is_not_there),
    cmocka_unit_test(test_rows),
    cmocka_unit_test(test_names),
    cmocka_unit_test(test_origins),
    cmocka_unit_test(test_content_type_of_pages),
    cmocka_unit_test(test_scopes_of_the_rows),
};
TEST_MAIN("route", tests)
