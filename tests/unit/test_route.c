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
    struct err e = {0};

    if (guard_check("rack.lan", "10.0.0.5", host, origin, true, &e) < 0)
        assert_int_equal(e.code, want);
    else if (want != ERR_OK)
        fail_msg("accepted Host '%s', Origin '%s'", host ? host : "(none)",
                 origin ? origin : "(none)");
}

static void test_names(void **state)
{
    static const char *const good[] = {"localhost", "LocalHost:80", "127.0.0.1:1",
                                       "[::1]",     "[::1]:8080",   "rack.lan",
                                       "rack.lan:", "10.0.0.5:8080"};
    static const char *const bad[] = {"",         "evil",        "localhost.evil",
                                      "rack.la",  "rack.lan.",   "[::1",
                                      "[::1]x",   "localhost:x", "localhost:80:80",
                                      "10.0.0.6", ":80",         "a@localhost"};
    char origin[128];

    (void)state;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        snprintf(origin, sizeof(origin), "https://%s", good[i]);
        check(good[i], NULL, ERR_OK);
        check("localhost", origin, ERR_OK);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        snprintf(origin, sizeof(origin), "http://%s", bad[i]);
        check(bad[i], NULL, ERR_DENIED);
        check("localhost", origin, ERR_DENIED);
    }
    check("localhost", "null", ERR_DENIED);
    check("localhost", "ftp://localhost", ERR_DENIED);
    check("localhost", "", ERR_DENIED);
    check(NULL, NULL, ERR_INVALID);
    assert_int_equal(guard_check("", "", NULL, NULL, false, NULL), 0);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_paths),
    cmocka_unit_test(test_what_is_not_there),
    cmocka_unit_test(test_rows),
    cmocka_unit_test(test_names),
};
TEST_MAIN("route", tests)
