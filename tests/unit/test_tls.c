/* tests/unit/test_tls.c - the server within TLS: versions, a certificate that is replaced
 * under running streams, bad files, handshakes that do not end. */
#include "tests/test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "daemon/api/access.h"
#include "daemon/api/http.h"
#include "daemon/ctrl/conf.h"
#include "tests/unit/fake_router.h"

static struct router fake;
static struct http *http;
static struct access *users;
static char dir[64], sock_path[96], cert_path[96], key_path[96];
static struct conf conf;

/* ---- certificates ---- */

static void put_file(const char *path, const void *p, size_t n)
{
    FILE *f = fopen(path, "w");

    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* A self-signed certificate named cn and its key, into the files that are given. */
static void make_cert(const char *cn, const char *cert_file, const char *key_file)
{
    gnutls_x509_privkey_t key;
    gnutls_x509_crt_t crt;
    gnutls_datum_t pem;
    time_t now = (time_t)(clock_wall_ms() / 1000);

    gnutls_x509_privkey_init(&key);
    assert_int_equal(
        gnutls_x509_privkey_generate(key, GNUTLS_PK_ECDSA,
                                     GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1), 0),
        0);
    gnutls_x509_crt_init(&crt);
    gnutls_x509_crt_set_version(crt, 3);
    gnutls_x509_crt_set_serial(crt, "\x01", 1);
    gnutls_x509_crt_set_activation_time(crt, now - 3600);
    gnutls_x509_crt_set_expiration_time(crt, now + 86400);
    gnutls_x509_crt_set_dn_by_oid(crt, GNUTLS_OID_X520_COMMON_NAME, 0, cn,
                                  (unsigned)strlen(cn));
    gnutls_x509_crt_set_key(crt, key);
    assert_int_equal(gnutls_x509_crt_sign2(crt, crt, key, GNUTLS_DIG_SHA256, 0), 0);
    assert_int_equal(gnutls_x509_crt_export2(crt, GNUTLS_X509_FMT_PEM, &pem), 0);
    if (cert_file)
        put_file(cert_file, pem.data, pem.size);
    gnutls_free(pem.data);
    assert_int_equal(gnutls_x509_privkey_export2(key, GNUTLS_X509_FMT_PEM, &pem), 0);
    if (key_file)
        put_file(key_file, pem.data, pem.size);
    gnutls_free(pem.data);
    gnutls_x509_crt_deinit(crt);
    gnutls_x509_privkey_deinit(key);
}

static int try_start(struct err *e)
{
    const struct http_cfg cfg = {
        .conf = &conf,
        .socket_path = sock_path,
        .n_threads = 2,
        .n_workers = 2,
        .version = "test",
        .access = users,
        .start_us = clock_now_us(clock_real()),
    };

    return http_start(&cfg, &fake, fake.page, &http, e);
}

static int setup(void **state)
{
    struct err e;

    (void)state;
    strcpy(dir, "/tmp/test_tls.XXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(sock_path, sizeof(sock_path), "%s/sock", dir);
    snprintf(cert_path, sizeof(cert_path), "%s/cert.pem", dir);
    snprintf(key_path, sizeof(key_path), "%s/key.pem", dir);
    make_cert("first", cert_path, key_path);
    conf = (struct conf){
        .listen = {"127.0.0.1:0", cert_path, key_path},
        .access = {.anonymous = 1, .failures_per_min = 5},
        .limits = {.max_body_mib = 1,
                   .max_connections = 64,
                   .header_s = 20,
                   .body_s = 20,
                   .idle_s = 30},
    };
    fake_init(&fake);
    if (access_new(NULL, &users, &e) < 0 || try_start(&e) < 0)
        fail_msg("%s", e.msg);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    http_stop(http);
    http = NULL;
    access_free(users);
    fake_done(&fake);
    unlink(cert_path);
    unlink(key_path);
    assert_int_equal(rmdir(dir), 0);
    return 0;
}

/* ---- a client ---- */

struct client {
    int fd;
    gnutls_session_t s;
    gnutls_certificate_credentials_t cred;
    struct buf in;
};

static int dial(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_port = htons((uint16_t)http_port(http))};
    struct timeval limit = {.tv_sec = 20};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    return fd;
}

static int handshake(struct client *c, const char *priorities)
{
    int rc;

    c->fd = dial();
    buf_init(&c->in, 0);
    gnutls_certificate_allocate_credentials(&c->cred);
    gnutls_init(&c->s, GNUTLS_CLIENT);
    gnutls_priority_set_direct(c->s, priorities, NULL);
    gnutls_credentials_set(c->s, GNUTLS_CRD_CERTIFICATE, c->cred);
    gnutls_transport_set_int(c->s, c->fd);
    do
        rc = gnutls_handshake(c->s);
    while (rc < 0 && !gnutls_error_is_fatal(rc) && rc != GNUTLS_E_AGAIN);
    return rc;
}

static void hang_up(struct client *c)
{
    gnutls_deinit(c->s);
    gnutls_certificate_free_credentials(c->cred);
    close(c->fd);
    buf_done(&c->in);
}

static bool more(struct client *c)
{
    char p[16384];
    ssize_t n;

    do
        n = gnutls_record_recv(c->s, p, sizeof(p));
    while (n == GNUTLS_E_INTERRUPTED);
    if (n == GNUTLS_E_AGAIN)
        fail_msg("nothing came: %s", c->in.p ? c->in.p : "");
    if (n > 0)
        buf_add(&c->in, p, (size_t)n);
    return n > 0;
}

static void read_until(struct client *c, const char *text)
{
    while (!c->in.p || !strstr(c->in.p, text))
        if (!more(c))
            fail_msg("closed without '%s': %s", text, c->in.p ? c->in.p : "");
}

static void say(struct client *c, const char *text)
{
    assert_int_equal(gnutls_record_send(c->s, text, strlen(text)), (ssize_t)strlen(text));
}

static void get(struct client *c, const char *path)
{
    char line[128];

    buf_clear(&c->in);
    snprintf(line, sizeof(line), "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path);
    say(c, line);
}

static void connect_to(struct client *c, const char *cn)
{
    const gnutls_datum_t *der;
    gnutls_x509_crt_t crt;
    char name[64];
    size_t size = sizeof(name);
    unsigned n;
    int rc = handshake(c, "NORMAL");

    if (rc < 0)
        fail_msg("handshake: %s", gnutls_strerror(rc));
    der = gnutls_certificate_get_peers(c->s, &n);
    assert_non_null(der);
    gnutls_x509_crt_init(&crt);
    assert_int_equal(gnutls_x509_crt_import(crt, der, GNUTLS_X509_FMT_DER), 0);
    assert_int_equal(gnutls_x509_crt_get_dn_by_oid(crt, GNUTLS_OID_X520_COMMON_NAME, 0, 0,
                                                   name, &size),
                     0);
    gnutls_x509_crt_deinit(crt);
    assert_string_equal(name, cn);
}

/* ---- tests ---- */

static void test_versions(void **state)
{
    struct client c;

    (void)state;
    connect_to(&c, "first");
    get(&c, "/healthz");
    read_until(&c, "\"status\":\"ok\"");
    get(&c, "/healthz"); /* kept alive */
    read_until(&c, "\"status\":\"ok\"");
    hang_up(&c);
    assert_int_equal(handshake(&c, "NORMAL:-VERS-ALL:+VERS-TLS1.2"), 0);
    get(&c, "/v1/models");
    read_until(&c, "\"fake\"");
    hang_up(&c);
    assert_true(handshake(&c, "NORMAL:-VERS-ALL:+VERS-TLS1.1:%COMPAT") < 0);
    hang_up(&c);
}

static void test_a_new_certificate_under_a_stream(void **state)
{
    static const char body[] =
        "{\"prompt\":\"ab\",\"stream\":true,\"ignore_eos\":true,\"max_tokens\":4000}";
    char head[256];
    struct client old, c;
    struct err e;

    (void)state;
    connect_to(&old, "first");
    snprintf(head, sizeof(head),
             "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
             "%zu\r\n\r\n%s",
             strlen(body), body);
    say(&old, head);
    fake_wait(&fake, &fake.n_submitted, 1);
    fake_step(&fake);
    read_until(&old, "\"text\":\"Z\"");
    make_cert("second", cert_path, key_path);
    connect_to(&c, "first"); /* not before we say so */
    hang_up(&c);
    if (http_reload_tls(http, &e) < 0)
        fail_msg("%s", e.msg);
    for (int i = 0; i < 3; i++) {
        connect_to(&c, "second");
        get(&c, "/healthz");
        read_until(&c, "\"status\":\"ok\"");
        hang_up(&c);
    }
    fake_step(&fake); /* the old stream lives on */
    read_until(&old, "\"text\":\"w\"");
    hang_up(&old);
    fake_wait(&fake, &fake.n_canceled, 1);
}

static void expect_bad_reload(const char *text)
{
    struct client c;
    struct err e;

    assert_int_equal(http_reload_tls(http, &e), -1);
    assert_int_equal(e.code, ERR_INVALID);
    assert_non_null(strstr(e.msg, cert_path));
    if (text && !strstr(e.msg, text))
        fail_msg("%s", e.msg);
    connect_to(&c, "first");
    get(&c, "/healthz");
    read_until(&c, "\"status\":\"ok\"");
    hang_up(&c);
}

static void test_a_bad_file_changes_nothing(void **state)
{
    struct err e;

    (void)state;
    make_cert("other", NULL, key_path); /* the key of another certificate */
    expect_bad_reload(NULL);
    put_file(key_path, "nonsense", 8);
    expect_bad_reload(NULL);
    unlink(cert_path);
    expect_bad_reload(NULL);
    make_cert("good", cert_path, key_path);
    assert_int_equal(http_reload_tls(http, &e), 0);
}

static void test_a_start_with_a_bad_file(void **state)
{
    struct err e;

    (void)state;
    http_stop(http);
    http = NULL;
    put_file(cert_path, "nonsense", 8);
    assert_int_equal(try_start(&e), -1);
    assert_int_equal(e.code, ERR_INVALID);
    assert_null(http);
}

/* Waits for the end of a plain socket; false when it is left open. */
static bool ends(int fd)
{
    char p[4096];
    ssize_t n;

    do
        n = recv(fd, p, sizeof(p), 0);
    while (n > 0);
    close(fd);
    return n == 0 || errno == ECONNRESET;
}

static void test_handshakes_that_do_not_end(void **state)
{
    static const unsigned char hello[] = {22, 3, 1, 2, 0, 1}; /* of 512 bytes */
    int silent, half, plain;
    struct client c;

    (void)state;
    conf.limits.header_s = conf.limits.body_s = 1;
    http_set_conf(http, &conf); /* without a restart */
    silent = dial();
    half = dial();
    plain = dial();
    assert_true(send(half, hello, sizeof(hello), MSG_NOSIGNAL) > 0);
    assert_true(
        send(plain, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 35, MSG_NOSIGNAL) > 0);
    assert_true(ends(silent));
    assert_true(ends(half));
    assert_true(ends(plain));
    connect_to(&c, "first"); /* a body that does not come: no answer fits into TLS */
    say(&c,
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{");
    while (more(&c))
        continue;
    assert_int_equal(c.in.len, 0);
    hang_up(&c);
}

static void test_the_world_needs_keys_too(void **state)
{
    struct err e;

    (void)state;
    http_stop(http);
    http = NULL;
    conf.listen.address = "0.0.0.0:0";
    assert_int_equal(try_start(&e), -1);
    assert_int_equal(e.code, ERR_DENIED);
    conf.listen.address = "127.0.0.1:0";
    if (try_start(&e) < 0 || http_check_conf(http, &conf, &e) < 0)
        fail_msg("%s", e.msg);
    conf.listen.address = "0.0.0.0:0"; /* the same, asked of one that runs */
    assert_int_equal(http_check_conf(http, &conf, &e), -1);
    assert_int_equal(e.code, ERR_DENIED);
    conf.access.insecure = true;
    assert_int_equal(http_check_conf(http, &conf, &e), 0);
    conf.listen.tls_key = cert_path;
    assert_int_equal(http_check_conf(http, &conf, &e), -1);
    assert_int_equal(e.code, ERR_INVALID);
    http_stop(http);
    http = NULL;
    conf.access.insecure = true;
    conf.listen.tls_cert = conf.listen.tls_key = "";
    if (try_start(&e) < 0)
        fail_msg("%s", e.msg);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
static const struct CMUnitTest tests[] = {
    T(test_versions),
    T(test_a_new_certificate_under_a_stream),
    T(test_a_bad_file_changes_nothing),
    T(test_a_start_with_a_bad_file),
    T(test_handshakes_that_do_not_end),
    T(test_the_world_needs_keys_too),
};
TEST_MAIN("tls", tests)
