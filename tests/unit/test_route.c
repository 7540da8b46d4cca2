/* tests/unit/test_route.c - paths to handlers, and names that are ours. */
#include "tests/test.h"

#include "base/err.h"
#include "daemon/api/guard.h"
#include "daemon/api/route.h"

static void test_paths(void **state)
{
    const char *tail = NULL, *allow = NULL;
    const struct route *r;
    struct err e;

    (void)state;
    r = route_find("POST", "/v1/chat/completions", false, &tail, &allow, &e);
    assert_non_null(r);
    assert_true(r->inference && r->run == ROUTE_WORKER);
    assert_ptr_equal(
        route_find("POST", "/v1/chat/completions/", false, &tail, &allow, &e), r);
    assert_ptr_equal(route_find("HEAD", "/healthz", false, &tail, &allow, &e),
                     route_find("GET", "/healthz", false, &tail, &allow, &e));
    assert_non_null(route_find("GET", "/v1/models/a/b", false, &tail, &allow, &e));
    assert_string_equal(tail, "a/b");
}

static void test_what_is_not_there(void **state)
{
    static const char *const paths[] = {"/",
                                        "",
                                        "/v1",
                                        "/v1/models/x",
                                        "/V1/models",
                                        "/v1/chat/completionsx",
                                        "/api/v1/status",
                                        "//"};
    const char *tail = NULL, *allow = NULL;
    struct err e;

    (void)state;
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        if (!strcmp(paths[i], "/v1/models/x"))
            continue;
        assert_null(route_find("GET", paths[i], false, &tail, &allow, &e));
        assert_int_equal(e.code, ERR_NOTFOUND);
        assert_null(allow);
    }
    assert_null(route_find("DELETE", "/v1/models/x", false, &tail, &allow, &e));
    assert_int_equal(e.code, ERR_METHOD);
    assert_string_equal(allow, "GET, HEAD");
    assert_null(route_find("GET", "/tokenize", false, &tail, &allow, &e));
    assert_string_equal(allow, "POST");
    assert_non_null(route_find("GET", "/api/v1/status", true, &tail, &allow, &e));
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
    cmocka_unit_test(test_names),
};
TEST_MAIN("route", tests)
