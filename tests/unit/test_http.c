/* tests/unit/test_http.c - the HTTP server over a fake router: what reaches the client at
 * which moment, who is cancelled, what a crash, a drain and a stop look like. */
#include "tests/test.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/clock.h"
#include "base/loop.h"
#include "daemon/api/access.h"
#include "daemon/api/conn.h"
#include "daemon/api/http.h"
#include "daemon/ctrl/conf.h"
#include "tests/unit/fake_router.h"

static struct router fake;
static struct http *http;
static struct access *access_list;
static char dir[64], path[96];

static const struct conf conf = {
    .listen = {"127.0.0.1:0", "", ""},
    .access = {.anonymous = 1, .failures_per_min = 5},
    .limits = {.max_body_mib = 1,
               .max_connections = 64,
               .header_s = 5,
               .body_s = 5,
               .idle_s = 30},
};

static int setup(void **state)
{
    struct http_cfg cfg = {
        .conf = &conf,
        .socket_path = path,
        .n_threads = 2,
        .n_workers = 2,
        .version = "test",
        .start_us = clock_now_us(clock_real()),
    };
    struct err e;

    (void)state;
    strcpy(dir, "/tmp/test_http.XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/sock", dir);
    fake_init(&fake);
    if (access_new(NULL, &access_list, &e) < 0)
        fail_msg("%s", e.msg);
    cfg.access = access_list;
    if (http_start(&cfg, &fake, fake.page, &http, &e) < 0)
        fail_msg("%s", e.msg);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    http_stop(http);
    http = NULL;
    fake_done(&fake);
    access_free(access_list);
    assert_int_equal(access(path, F_OK), -1); /* the socket is gone */
    rmdir(dir);
    return 0;
}

/* ---- a client ---- */

struct client {
    int fd;
    struct buf in;
};

static void dial(struct client *c)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct timeval limit = {.tv_sec = 20};

    snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
    c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    assert_int_equal(connect(c->fd, (struct sockaddr *)&a, sizeof(a)), 0);
    buf_init(&c->in, 0);
}

static void hang_up(struct client *c)
{
    close(c->fd);
    buf_done(&c->in);
}

static void post(struct client *c, const char *where, const char *body)
{
    struct buf b;

    buf_init(&b, 0);
    buf_printf(&b, "POST %s HTTP/1.1\r\nContent-Length: %zu\r\nHost: x\r\n\r\n%s", where,
               strlen(body), body);
    assert_int_equal(send(c->fd, b.p, b.len, MSG_NOSIGNAL), (ssize_t)b.len);
    buf_done(&b);
}

static bool more(struct client *c)
{
    char p[65536];
    ssize_t n = recv(c->fd, p, sizeof(p), 0);

    assert_true(n >= 0);
    buf_add(&c->in, p, (size_t)n);
    return n > 0;
}

static void read_until(struct client *c, const char *text)
{
    while (!c->in.p || !strstr(c->in.p, text))
        if (!more(c))
            fail_msg("closed without '%s': %s", text, c->in.p);
}

static int count(const struct client *c, const char *text)
{
    int n = 0;

    for (const char *p = c->in.p; (p = strstr(p, text)); p += strlen(text))
        n++;
    return n;
}

static void expect_status(struct client *c, int status)
{
    char line[32];

    read_until(c, "\r\n\r\n");
    snprintf(line, sizeof(line), "HTTP/1.1 %d ", status);
    if (strncmp(c->in.p, line, strlen(line)))
        fail_msg("not %d: %s", status, c->in.p);
}

static void get(struct client *c, const char *where)
{
    char line[128];

    snprintf(line, sizeof(line), "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", where);
    assert_true(send(c->fd, line, strlen(line), MSG_NOSIGNAL) > 0);
}

#define STREAM                                                                           \
    "{\"prompt\":\"ab\",\"stream\":true,\"ignore_eos\":true,\"max_tokens\":4000}"
#define WHOLE "{\"prompt\":\"ab\",\"max_tokens\":4}"

/* ---- tests ---- */

static void test_each_token_arrives_before_the_next_is_made(void **state)
{
    struct client c;

    (void)state;
    dial(&c);
    post(&c, "/v1/completions", STREAM);
    fake_wait(&fake, &fake.n_submitted, 1);
    fake_step(&fake);
    read_until(&c, "\"text\":\"Z\"");
    assert_int_equal(count(&c, "data: "), 1);
    fake_step(&fake);
    read_until(&c, "\"text\":\"w\"");
    fake_step(&fake); /* half a character: nothing to see */
    fake_step(&fake);
    read_until(&c, "\"text\":\"\xc3\xb6\"");
    assert_int_equal(count(&c, "data: "), 3);
    hang_up(&c);
    fake_wait(&fake, &fake.n_canceled, 1);
}

static void test_no_byte_before_the_first_token(void **state)
{
    struct client c;

    (void)state;
    dial(&c);
    post(&c, "/v1/completions", STREAM);
    fake_wait(&fake, &fake.n_submitted, 1);
    fake_crash(&fake);
    expect_status(&c, 503);
    assert_non_null(strstr(c.in.p, "Retry-After: 3\r\n"));
    read_until(&c, "\"code\":\"unavailable\"}}");
    hang_up(&c);
}

static void test_crash_in_a_stream(void **state)
{
    struct client c;

    (void)state;
    dial(&c);
    post(
        &c, "/v1/chat/completions",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"stream\":true,\"n\":2}");
    fake_wait(&fake, &fake.n_submitted, 2);
    fake_step(&fake);
    read_until(&c, "\"content\":\"Z\"");
    fake_crash(&fake);
    read_until(&c, "data: {\"error\":{\"message\"");
    read_until(&c, "\r\n0\r\n\r\n"); /* the stream ends */
    assert_int_equal(count(&c, "\"error\""), 1);
    assert_int_equal(count(&c, "[DONE]"), 0);
    hang_up(&c);
}

static void test_one_choice_fails_the_rest_is_cancelled(void **state)
{
    struct err e;
    struct client c;

    (void)state;
    dial(&c);
    post(&c, "/v1/completions", "{\"prompt\":[\"a\",\"b\",\"c\"]}");
    fake_wait(&fake, &fake.n_submitted, 3);
    err_set(&e, ERR_DEVICE, "the device failed");
    fake_finish(&fake, 1, FINISH_ERROR, &e);
    fake_wait(&fake, &fake.n_canceled, 2);
    expect_status(&c, 500);
    fake_step(&fake);
    assert_int_equal(fake.n, 0);
    hang_up(&c);
}

static void test_refusals(void **state)
{
    struct client c;

    (void)state;
    fake.max_waiting = 1;
    dial(&c);
    post(&c, "/v1/completions", "{\"prompt\":\"a\",\"n\":2}");
    expect_status(&c, 429);
    read_until(&c, "\"code\":\"queue_full\"}}");
    assert_non_null(strstr(c.in.p, "Retry-After: 3\r\n"));
    buf_clear(&c.in);
    fake.not_ready = ERR_UNAVAIL;
    post(&c, "/v1/completions", WHOLE);
    expect_status(&c, 503);
    read_until(&c, "}}");
    buf_clear(&c.in);
    get(&c, "/readyz");
    expect_status(&c, 503);
    hang_up(&c);
}

/* Two prompts, room for one: the first is taken back. */
static void test_partly_refused(void **state)
{
    struct client c;

    (void)state;
    fake.max_waiting = 1;
    dial(&c);
    post(&c, "/v1/completions", "{\"prompt\":[\"a\",\"b\"]}");
    expect_status(&c, 429);
    fake_wait(&fake, &fake.n_canceled, 1);
    hang_up(&c);
}

static void test_a_client_that_leaves_while_queued(void **state)
{
    struct client c;

    (void)state;
    dial(&c);
    post(&c, "/v1/completions", WHOLE);
    fake_wait(&fake, &fake.n_submitted, 1);
    hang_up(&c);
    fake_wait(&fake, &fake.n_canceled, 1);
    assert_int_equal((int)metric_get(fake.page, M_CANCELED, 0), 1);
    fake_step(&fake);
    assert_int_equal((int)metric_get(fake.page, M_SUCCESS, FINISH_ABORT), 1);
    assert_int_equal((int)metric_get(fake.page, M_E2E, 0), 0);
}

/* Frames beyond the cap: the stream is dropped; the others go on meanwhile. */
static void test_a_reader_that_never_reads(void **state)
{
    struct client deaf, other;
    int steps = 0;

    (void)state;
    dial(&deaf);
    dial(&other);
    post(&deaf, "/v1/completions",
         "{\"prompt\":\"ab\",\"stream\":true,\"ignore_eos\":true,\"logprobs\":20,"
         "\"max_tokens\":4000}");
    fake_wait(&fake, &fake.n_submitted, 1);
    post(&other, "/v1/completions", STREAM);
    fake_wait(&fake, &fake.n_submitted, 2);
    while (fake_read(&fake, &fake.n_canceled) == 0 && steps++ < 3990) {
        fake_step(&fake);
        if (steps == 1)
            read_until(&other, "\"text\":\"Z\"");
        if (steps % 100 == 0)
            more(&other);
    }
    fake_wait(&fake, &fake.n_canceled, 1);
    assert_true(steps < 3990);
    while (more(&deaf))
        assert_true(deaf.in.len < 4 * CONN_OUT_CAP);
    assert_int_equal(count(&deaf, "[DONE]"), 0);
    assert_int_equal(count(&other, "error"), 0);
    hang_up(&deaf);
    hang_up(&other);
}

static void test_stop_string_cancels(void **state)
{
    struct client c;

    (void)state;
    dial(&c);
    post(&c, "/v1/completions",
         "{\"prompt\":\"ab\",\"stop\":\"lf \",\"ignore_eos\":true}");
    fake_wait(&fake, &fake.n_submitted, 1);
    for (int i = 0; i < 7; i++) /* as many bytes as "Zwolf " with its umlaut has */
        fake_step(&fake);
    fake_wait(&fake, &fake.n_canceled, 1);
    fake_step(&fake);
    expect_status(&c, 200);
    read_until(&c, "\"text\":\"Zw\xc3\xb6\"");
    read_until(&c, "\"finish_reason\":\"stop\"");
    read_until(&c, "\"completion_tokens\":7,"); /* up to the one that completed it */
    hang_up(&c);
}

static void test_parameters_reach_the_router(void **state)
{
    struct client c;

    (void)state;
    dial(&c);
    post(
        &c, "/v1/completions",
        "{\"prompt\":\"abc\",\"seed\":9,\"temperature\":0.5,\"top_k\":3,\"max_tokens\":5,"
        "\"cache_prompt\":false,\"stop_token_ids\":[7],\"logit_bias\":{\"5\":1}}");
    fake_wait(&fake, &fake.n_submitted, 1);
    assert_int_equal(fake.last.seed, 9);
    assert_true(fake.last.temperature == 0.5f && fake.last.no_cache);
    assert_int_equal(fake.last.top_k, 3);
    assert_int_equal(fake.last.max_tokens, 5);
    assert_int_equal(fake.last.n_prompt, 3);
    assert_int_equal(fake.last.n_stop, 1);
    assert_int_equal(fake.last.n_bias, 1);
    hang_up(&c);
}

static void test_drain_and_health(void **state)
{
    struct client c, running;

    (void)state;
    dial(&c);
    dial(&running);
    get(&c, "/healthz");
    expect_status(&c, 200);
    assert_true(http_alive(http));
    post(&running, "/v1/completions", WHOLE);
    fake_wait(&fake, &fake.n_submitted, 1);
    assert_int_equal(http_active(http), 1);
    http_drain(http);
    buf_clear(&c.in);
    post(&c, "/v1/completions", WHOLE);
    expect_status(&c, 503);
    while (more(&c)) /* kept alive no longer */
        continue;
    assert_non_null(strstr(c.in.p, "Connection: close\r\n"));
    hang_up(&c);
    dial(&c);
    get(&c, "/healthz");
    expect_status(&c, 200);
    while (fake_step(&fake))
        continue;
    expect_status(&running, 200);
    hang_up(&c);
    hang_up(&running);
}

/* A stop with a stream, a queued request, a half-sent one and an idle connection. */
static void test_stop_with_everything_open(void **state)
{
    struct client stream, queued, half, idle;

    dial(&stream);
    dial(&queued);
    dial(&half);
    dial(&idle);
    post(&stream, "/v1/completions", STREAM);
    fake_wait(&fake, &fake.n_submitted, 1);
    fake_step(&fake);
    read_until(&stream, "\"text\":\"Z\"");
    post(&queued, "/v1/completions", WHOLE);
    fake_wait(&fake, &fake.n_submitted, 2);
    assert_true(send(half.fd, "POST /v1/comp", 13, MSG_NOSIGNAL) == 13);

    http_stop(http);
    http = NULL;
    read_until(&stream, "data: {\"error\":");
    while (more(&stream))
        continue;
    expect_status(&queued, 503);
    while (more(&half) || more(&idle))
        continue;
    fake_wait(&fake, &fake.n_canceled, 2);
    fake_step(&fake); /* finishes that come after the stop are harmless */
    hang_up(&stream);
    hang_up(&queued);
    hang_up(&half);
    hang_up(&idle);
    teardown(state);
    setup(state);
}

static void test_second_server_on_the_socket(void **state)
{
    struct conf c2 = conf;
    struct http_cfg cfg = {.conf = &c2,
                           .socket_path = path,
                           .access = access_list,
                           .n_threads = 1,
                           .n_workers = 1,
                           .version = ""};
    struct http *second = NULL;
    struct err e = {0};

    (void)state;
    c2.listen.address = "";
    assert_int_equal(http_start(&cfg, &fake, fake.page, &second, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_null(second);
    assert_int_equal(access(path, F_OK), 0);
    c2.listen.address = "nonsense";
    assert_int_equal(http_start(&cfg, &fake, fake.page, &second, &e), -1);
    assert_int_equal(e.code, ERR_INVALID);
}

/* Requests for a control thread that is busy wait up to a bound, the rest is refused;
 * when it is back each has its turn, and who left is passed over. */
static void test_a_busy_control_thread(void **state)
{
    enum { WAITING = 32, CLIENTS = 40 };
    struct http_cfg cfg = {.conf = &conf,
                           .socket_path = path,
                           .access = access_list,
                           .n_threads = 1,
                           .n_workers = 1,
                           .version = ""};
    struct client c[CLIENTS];
    struct pollfd p[CLIENTS];
    int refused = 0, later = 0;
    struct err e;

    (void)state;
    http_stop(http);
    assert_int_equal(loop_new(&cfg.loop, &e), 0);
    assert_int_equal(http_start(&cfg, &fake, fake.page, &http, &e), 0);
    for (int i = 0; i < CLIENTS; i++) {
        dial(&c[i]);
        get(&c[i], "/api/v1/journal?limit=1");
        p[i] = (struct pollfd){c[i].fd, POLLIN, 0};
    }
    while (refused < CLIENTS - WAITING) {
        assert_true(poll(p, CLIENTS, 20000) > 0);
        for (int i = 0; i < CLIENTS; i++) {
            if (!(p[i].revents & POLLIN))
                continue;
            expect_status(&c[i], 503);
            read_until(&c[i], "too many control requests");
            read_until(&c[i], "Retry-After: ");
            p[i].fd = -1;
            refused++;
        }
    }
    assert_int_equal(refused, CLIENTS - WAITING);
    for (int i = 0; i < CLIENTS; i++) {
        if (p[i].fd < 0)
            continue;
        while (poll(&p[i], 1, 0) == 0) /* one pass takes a few of them only */
            assert_int_equal(loop_once(cfg.loop, clock_now_us(clock_real()) + 100000, &e),
                             0);
        read_until(&c[i], "this server keeps no state");
        later++;
    }
    assert_int_equal(later, WAITING);
    for (int i = 0; i < CLIENTS; i++)
        hang_up(&c[i]);
    http_stop(http);
    loop_free(cfg.loop);
    cfg.loop = NULL;
    assert_int_equal(http_start(&cfg, &fake, fake.page, &http, &e), 0);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
static const struct CMUnitTest tests[] = {
    T(test_each_token_arrives_before_the_next_is_made),
    T(test_no_byte_before_the_first_token),
    T(test_crash_in_a_stream),
    T(test_one_choice_fails_the_rest_is_cancelled),
    T(test_refusals),
    T(test_partly_refused),
    T(test_a_client_that_leaves_while_queued),
    T(test_a_reader_that_never_reads),
    T(test_stop_string_cancels),
    T(test_parameters_reach_the_router),
    T(test_drain_and_health),
    T(test_stop_with_everything_open),
    T(test_second_server_on_the_socket),
    T(test_a_busy_control_thread),
};
TEST_MAIN("http", tests)
