/* tests/unit/test_access.c - keys, their limits and what they open; wrong ones; peers of
 * the UNIX socket as real processes with real groups. */
#include "tests/test.h"

#include <ftw.h>
#include <grp.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "daemon/api/access.h"
#include "daemon/api/listen.h"
#include "daemon/api/peer.h"
#include "daemon/api/ratelimit.h"
#include "daemon/api/rules.h"
#include "daemon/ctrl/conf.h"
#include "state/apikey.h"
#include "state/store.h"

/* Seconds after the keys were made; a moment of the clock that access.c reads itself. */
#define S(n) (made_us + (int64_t)(n)*1000000)

static char dir[64];
static int64_t made_us;
static struct store *store;
static struct access *acc;
static struct conf conf;

static void reopen(void)
{
    struct err e;

    access_free(acc);
    if (access_new(store, &acc, &e) < 0)
        fail_msg("%s", e.msg);
}

static int setup(void **state)
{
    struct err e;

    (void)state;
    strcpy(dir, "/tmp/test_access.XXXXXX");
    assert_non_null(mkdtemp(dir));
    if (store_open(dir, &store, &e) < 0)
        fail_msg("%s", e.msg);
    acc = NULL;
    made_us = clock_now_us(clock_real()) + 1000000000;
    conf = (struct conf){.access = {.anonymous = 1, .failures_per_min = 6}};
    reopen();
    return 0;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *f)
{
    (void)st, (void)type, (void)f;
    return remove(path);
}

static int teardown(void **state)
{
    (void)state;
    access_free(acc);
    store_close(store);
    return nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* "Bearer id.secret", valid until the next call. */
static const char *make_key(struct access_new_key k)
{
    static char header[128];
    struct buf b;
    struct err e;

    k.name = k.name ? k.name : "test";
    k.scopes = k.scopes ? k.scopes : "infer";
    buf_init(&b, 0);
    if (access_key_create(acc, &k, &b, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(b.len, APIKEY_ID + 1 + 2 * APIKEY_SECRET_BYTES);
    snprintf(header, sizeof(header), "Bearer %s", b.p);
    buf_done(&b);
    return header;
}

static struct access_who ask(const char *authorization, const char *x, int64_t now,
                             int *ret_rc, struct err *e)
{
    struct access_who w = {.origin = "192.0.2.7"};
    int wait = 0;

    e->code = ERR_OK;
    *ret_rc = access_key(acc, authorization, x, now, &w, &wait, e);
    if (e->code == ERR_LIMITED)
        assert_true(wait >= 1);
    return w;
}

static void expect_refused(const char *authorization, const char *text)
{
    struct err e;
    int rc;
    struct access_who w = ask(authorization, NULL, S(1), &rc, &e);

    assert_int_equal(rc, -1);
    assert_int_equal(e.code, ERR_UNAUTHORIZED);
    if (!strstr(e.msg, text))
        fail_msg("'%s' says not '%s'", e.msg, text);
    assert_int_equal(access_may(&w, ACCESS_INFER, &e), -1);
}

static int level(const struct access_who *w)
{
    int n = 0;

    for (int s = ACCESS_INFER; s <= ACCESS_ADMIN; s++)
        n += access_may(w, s, NULL) == 0;
    return n;
}

/* ---- keys ---- */

static void test_a_key_opens_its_scopes(void **state)
{
    static const struct {
        const char *scopes;
        int level;
    } row[] = {
        {"infer", 1}, {"read", 2}, {"admin", 3}, {"infer,read", 2}, {"read,admin", 3}};
    struct access_who w;
    struct err e;
    int rc;

    (void)state;
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        const char *h = make_key((struct access_new_key){.scopes = row[i].scopes});
        char actor[64];

        w = ask(h, NULL, S(1), &rc, &e);
        assert_int_equal(rc, 0);
        assert_int_equal(level(&w), row[i].level);
        assert_int_equal(w.key, i + 1);
        snprintf(actor, sizeof(actor), "key %.12s", h + 7);
        assert_string_equal(w.actor, actor);
        assert_string_equal(w.origin, "192.0.2.7");
        w = ask(NULL, h + 7, S(1), &rc, &e); /* X-Api-Key */
        assert_int_equal(level(&w), row[i].level);
        w = ask("bearer", h + 7, S(1), &rc, &e);
        assert_int_equal(rc, -1);
    }
    w = ask(make_key((struct access_new_key){0}), NULL, S(1), &rc, &e);
    assert_int_equal(access_may(&w, ACCESS_ADMIN, &e), -1);
    assert_int_equal(e.code, ERR_DENIED); /* another key would help, but this is known */
    assert_non_null(strstr(e.msg, "'admin'"));
}

static void test_bad_new_keys(void **state)
{
    static const struct access_new_key bad[] = {
        {"", "infer", 0, 0, 0, 0},       {"a\nb", "infer", 0, 0, 0, 0},
        {"a", "", 0, 0, 0, 0},           {"a", "root", 0, 0, 0, 0},
        {"a", "infer,", 0, 0, 0, 0},     {"a", "infer,,read", 0, 0, 0, 0},
        {"a", "infer read", 0, 0, 0, 0}, {"a", "none", 0, 0, 0, 0},
        {"a", "infer", 1, 0, 0, 0},      {"a", "infer", 0, -1, 0, 0},
        {"a", "INFER", 0, 0, 0, 0},
    };
    struct buf b;
    struct err e;

    (void)state;
    buf_init(&b, 0);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (access_key_create(acc, &bad[i], &b, &e) == 0)
            fail_msg("key %zu was made", i);
    assert_int_equal(b.len, 0);
    assert_false(access_has_keys(acc));
}

static void test_wrong_keys(void **state)
{
    const char *h = make_key((struct access_new_key){.scopes = "admin"});
    char wrong[128];

    (void)state;
    conf.access.failures_per_min = 1000;
    access_set_conf(acc, &conf);
    for (size_t i = 7; h[i]; i++) { /* each character counts */
        snprintf(wrong, sizeof(wrong), "%s", h);
        wrong[i] = wrong[i] == 'a' ? 'b' : 'a';
        if (i != 7 + APIKEY_ID || wrong[i] != '.')
            expect_refused(wrong, "not valid");
    }
    snprintf(wrong, sizeof(wrong), "%.*s", (int)strlen(h) - 1, h);
    expect_refused(wrong, "not valid");
    snprintf(wrong, sizeof(wrong), "%s0", h);
    expect_refused(wrong, "not valid");
    expect_refused("Basic dXNlcjpwYXNz", "not valid");
    expect_refused("Bearer .", "not valid");
    snprintf(wrong, sizeof(wrong), "Bearer %.12s.", h + 7);
    expect_refused(wrong, "not valid");
}

static void test_only_a_hash_is_kept(void **state)
{
    const char *h = make_key((struct access_new_key){.scopes = "read"});
    struct apikey_row rows[4];
    struct access_who w;
    struct buf b;
    struct err e;
    int rc;

    (void)state;
    assert_int_equal(apikey_list(store, rows, 4, &e), 1);
    assert_memory_equal(rows[0].id, h + 7, APIKEY_ID);
    buf_init(&b, 0);
    access_keys_json(acc, &b);
    assert_null(strstr(b.p, h + 7 + APIKEY_ID + 1));
    assert_non_null(strstr(b.p, "\"state\":\"valid\""));
    buf_done(&b);
    reopen(); /* the hash is all that the next start has */
    w = ask(h, NULL, S(1), &rc, &e);
    assert_int_equal(rc, 0);
    assert_int_equal(level(&w), 2);
}

static void test_revoked_at_once(void **state)
{
    const char *h = make_key((struct access_new_key){.scopes = "admin"});
    char id[APIKEY_ID + 1];
    int64_t index;
    struct err e;
    int rc;

    (void)state;
    snprintf(id, sizeof(id), "%.12s", h + 7);
    assert_true(access_has_keys(acc));
    ask(h, NULL, S(1), &rc, &e);
    assert_int_equal(rc, 0);
    assert_int_equal(access_key_revoke(acc, id, &index, &e), 0);
    assert_int_equal(index, 1);
    expect_refused(h, "was revoked");
    assert_true(access_has_keys(acc)); /* the rules for wrong keys go on */
    assert_int_equal(access_key_revoke(acc, id, &index, &e), -1);
    assert_int_equal(e.code, ERR_CONFLICT);
    assert_int_equal(access_key_revoke(acc, "nobody", &index, &e), -1);
    assert_int_equal(e.code, ERR_NOTFOUND);
    reopen();
    expect_refused(h, "was revoked"); /* also to a client that sends nothing better */
}

static void test_expired(void **state)
{
    const char *h =
        make_key((struct access_new_key){.expires_ms = clock_wall_ms() + 3600000});
    struct apikey_row rows[2];
    struct err e;
    int rc;

    (void)state;
    ask(h, NULL, S(1), &rc, &e);
    assert_int_equal(rc, 0);
    assert_int_equal(apikey_list(store, rows, 2, &e), 1);
    memset(rows[0].id, 'z', APIKEY_ID); /* the same secret, of a key that has expired */
    rows[0].expires_ms = clock_wall_ms() - 1;
    assert_int_equal(apikey_put(store, &rows[0], &e), 0);
    reopen();
    ask(h, NULL, S(1), &rc, &e);
    assert_int_equal(rc, 0);
    memset((char *)h + 7, 'z', APIKEY_ID);
    expect_refused(h, "has expired");
}

/* ---- without a key ---- */

static int anonymous_level(const char *sent)
{
    struct err e;
    int rc;
    struct access_who w = ask(sent, NULL, S(1), &rc, &e);

    assert_int_equal(w.key, 0);
    assert_string_equal(w.actor, "anonymous");
    if (access_may(&w, ACCESS_READ, &e) == 0)
        fail_msg("read without a key");
    assert_int_equal(e.code, ERR_UNAUTHORIZED);
    return level(&w);
}

static void test_without_a_key(void **state)
{
    (void)state;
    assert_int_equal(anonymous_level(NULL), 1);
    assert_int_equal(anonymous_level("Bearer whatever"), 1); /* no key was ever made */
    assert_int_equal(anonymous_level(""), 1);
    access_set_remote(acc, true);
    assert_int_equal(anonymous_level(NULL), 0);
    conf.access.insecure = true;
    access_set_conf(acc, &conf);
    assert_int_equal(anonymous_level(NULL), 1);
    conf.access.anonymous = 0;
    access_set_conf(acc, &conf);
    assert_int_equal(anonymous_level(NULL), 0);
    access_set_remote(acc, false);
    assert_int_equal(anonymous_level(NULL), 0);
    conf.access.anonymous = 1;
    access_set_conf(acc, &conf);
    make_key((struct access_new_key){0});
    assert_int_equal(anonymous_level(NULL), 1);
    expect_refused("Bearer whatever", "not valid"); /* now a wrong key is one */
}

/* ---- limits ---- */

static void test_wrong_keys_cost_their_sender(void **state)
{
    char good[128];
    struct access_who w;
    struct err e;
    int rc;

    (void)state;
    snprintf(good, sizeof(good), "%s", make_key((struct access_new_key){0}));
    access_set_conf(acc, &conf);
    for (int i = 0; i < 6; i++)
        expect_refused("Bearer x", "not valid");
    ask("Bearer x", NULL, S(1), &rc, &e);
    assert_int_equal(e.code, ERR_LIMITED);
    ask(good, NULL, S(1), &rc, &e); /* the right one still opens */
    assert_int_equal(rc, 0);
    w = (struct access_who){.origin = "192.0.2.8"};
    assert_int_equal(access_key(acc, "Bearer x", NULL, S(1), &w, &rc, &e), -1);
    assert_int_equal(e.code, ERR_UNAUTHORIZED); /* another address has its own count */
    ask("Bearer x", NULL, S(11), &rc, &e); /* six a minute: one more after ten seconds */
    assert_int_equal(e.code, ERR_UNAUTHORIZED);
    ask("Bearer x", NULL, S(11), &rc, &e);
    assert_int_equal(e.code, ERR_LIMITED);
}

static void test_failures_of_many_addresses(void **state)
{
    struct fails *f = calloc(1, sizeof(*f));
    char addr[64];
    int wait = 0, blocked = 0;

    (void)state;
    for (int i = 0; i < 4; i++)
        assert_true(fails_add(f, "198.51.100.1", 4, S(1), &wait));
    assert_false(fails_add(f, "198.51.100.1", 4, S(1), &wait));
    assert_int_equal(wait, 15);
    for (int i = 0; i < 100000; i++) { /* the table stays what it is */
        snprintf(addr, sizeof(addr), "10.%d.%d.%d", i >> 16, i >> 8 & 255, i & 255);
        blocked += !fails_add(f, addr, 4, S(1), &wait);
    }
    assert_int_equal(blocked, 0);
    assert_false(
        fails_add(f, "198.51.100.1", 4, S(1), &wait)); /* not forgotten for them */
    for (int i = 0; i < 4; i++) {                      /* one host has a whole /64 */
        snprintf(addr, sizeof(addr), "2001:db8:1:2::%d", i);
        assert_true(fails_add(f, addr, 4, S(1), &wait));
    }
    assert_false(fails_add(f, "2001:db8:1:2:ffff::1", 4, S(1), &wait));
    assert_true(fails_add(f, "2001:db8:1:3::1", 4, S(1), &wait));
    assert_true(fails_add(f, "198.51.100.1", 0, S(1), &wait)); /* 0 = no limit */
    free(f);
}

static int begin(const struct access_who *w, bool inference, int64_t now)
{
    struct err e;
    int wait = 0;

    if (access_begin(acc, w, inference, now, &wait, &e) == 0)
        return 0;
    assert_int_equal(e.code, ERR_LIMITED);
    assert_true(wait >= 1);
    return wait;
}

static void test_requests_per_minute(void **state)
{
    struct access_who w;
    struct err e;
    int rc;

    (void)state;
    w = ask(make_key((struct access_new_key){.req_per_min = 3}), NULL, S(1), &rc, &e);
    for (int i = 0; i < 3; i++)
        assert_int_equal(begin(&w, false, S(1000)), 0);
    assert_int_equal(begin(&w, true, S(1000)), 20);
    assert_int_equal(begin(&w, true, S(1019)), 1);
    assert_int_equal(begin(&w, true, S(1020)), 0);
    assert_int_equal(begin(&w, true, S(1020)), 20);
    access_end(acc, &w, S(1020), 1000000);
    assert_int_equal(begin(&w, true, S(1040)), 0); /* tokens have no limit here */
}

static void test_streams_at_a_time(void **state)
{
    struct access_who w;
    struct err e;
    int rc;

    (void)state;
    w = ask(make_key((struct access_new_key){.streams = 2}), NULL, S(1), &rc, &e);
    assert_int_equal(begin(&w, true, S(1)), 0);
    assert_int_equal(begin(&w, true, S(1)), 0);
    assert_int_equal(begin(&w, true, S(1)), 1);
    assert_int_equal(begin(&w, false, S(1)), 0); /* no generation */
    access_end(acc, &w, S(1), 10);
    assert_int_equal(begin(&w, true, S(1)), 0);
    assert_int_equal(begin(&w, true, S(1)), 1);
}

static void test_tokens_per_minute(void **state)
{
    struct access_who w;
    struct err e;
    int rc;

    (void)state;
    w = ask(make_key((struct access_new_key){.tok_per_min = 600}), NULL, S(1), &rc, &e);
    assert_int_equal(begin(&w, true, S(1000)), 0);
    access_end(acc, &w, S(1000),
               700); /* what it took is known afterwards: 100 too many */
    assert_int_equal(begin(&w, true, S(1000)), 11);
    assert_int_equal(begin(&w, true, S(1009)), 2);
    assert_int_equal(begin(&w, true, S(1011)), 0);
    access_end(acc, &w, S(1011), 0);
}

static void test_prefixes_are_bound_to_a_key(void **state)
{
    struct access_who none = {.origin = "127.0.0.1"}, a, b;
    char first[128];
    uint64_t salt;
    struct err e;
    int rc;

    (void)state;
    snprintf(first, sizeof(first), "%s", make_key((struct access_new_key){0}));
    a = ask(first, NULL, S(1), &rc, &e);
    b = ask(make_key((struct access_new_key){0}), NULL, S(1), &rc, &e);
    salt = access_salt(acc, &a, CONF_ISOLATE_KEY);
    assert_int_not_equal(salt, 0);
    assert_int_not_equal(salt, access_salt(acc, &b, CONF_ISOLATE_KEY));
    assert_int_equal(access_salt(acc, &none, CONF_ISOLATE_KEY), 0);
    assert_int_equal(access_salt(acc, &a, CONF_ISOLATE_NONE), 0);
    reopen(); /* what is cached by an engine that lives on stays the key's */
    a = ask(first, NULL, S(1), &rc, &e);
    assert_int_equal(salt, access_salt(acc, &a, CONF_ISOLATE_KEY));
}

static void test_isolation_by_instance(void **state)
{
    struct conf_instance v[3] = {
        {.name = "a", .served_as = "shared", .kv.isolate = CONF_ISOLATE_NONE},
        {.name = "b", .served_as = "apart", .kv.isolate = CONF_ISOLATE_KEY},
        {.name = "c", .served_as = "", .kv.isolate = CONF_ISOLATE_NONE},
    };
    struct rules *r;

    (void)state;
    r = rules_new(&conf);
    assert_int_equal(rules_isolate(r, "shared"), CONF_ISOLATE_KEY);
    rules_unref(r);
    conf.instances = v;
    conf.n_instances = 2;
    r = rules_new(&conf);
    assert_int_equal(rules_isolate(r, "shared"), CONF_ISOLATE_NONE);
    assert_int_equal(rules_isolate(r, "apart"), CONF_ISOLATE_KEY);
    assert_int_equal(rules_isolate(r, "else"), CONF_ISOLATE_KEY);
    rules_unref(r);
    conf.n_instances = 3;
    r = rules_new(&conf);
    assert_int_equal(rules_isolate(r, "else"), CONF_ISOLATE_NONE);
    assert_int_equal(rules_isolate(r, "apart"), CONF_ISOLATE_KEY);
    rules_unref(r);
}

/* ---- where it may listen ---- */

static void test_listening_to_the_world(void **state)
{
    static const struct {
        const char *where;
        bool remote;
    } row[] = {{"0.0.0.0:0", true},         {"[::]:0", true},
               {"127.0.0.1:0", false},      {"127.8.9.1:0", false},
               {"localhost:0", false},      {"[::1]:0", false},
               {"[::ffff:0.0.0.0]:0", true}};
    char host[64];
    struct err e;

    (void)state;
    for (size_t i = 0; i < sizeof(row) / sizeof(row[0]); i++) {
        bool remote = !row[i].remote;
        int fd = -1, port = 0;

        if (listen_tcp(row[i].where, false, host, sizeof(host), &fd, &port, &remote, &e) <
            0) {
            if (e.code != ERR_DENIED && row[i].where[0] == '[')
                continue; /* no IPv6 here */
            assert_int_equal(e.code, ERR_DENIED);
            assert_true(row[i].remote);
            assert_non_null(strstr(e.msg, "insecure"));
            assert_int_equal(fd, -1);
            continue;
        }
        assert_false(row[i].remote || remote);
        close(fd);
    }
}

/* ---- peers ---- */

/* What a process of that user and those groups may do on a socket of ours; -1 when it
 * could not be made. */
static int scope_of(uid_t uid, gid_t gid, int n, const gid_t *v,
                    const struct peer_groups *g)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    enum access_scope s = ACCESS_NONE;
    int fd, peer, status;
    uid_t seen = 0;
    struct err e;
    pid_t pid;

    snprintf(a.sun_path, sizeof(a.sun_path), "%s/peer", dir);
    assert_int_equal(chmod(dir, 0755), 0);
    if (listen_unix(a.sun_path, 0666, &fd, &e) < 0)
        fail_msg("%s", e.msg);
    pid = fork();
    if (pid == 0) {
        int c = socket(AF_UNIX, SOCK_STREAM, 0);
        char end;

        if (setgroups((size_t)n, v) < 0 || setresgid(gid, gid, gid) < 0 ||
            setresuid(uid, uid, uid) < 0 ||
            connect(c, (struct sockaddr *)&a, sizeof(a)) < 0)
            _exit(1);
        _exit(read(c, &end, 1) == 0 ? 0 : 2);
    }
    peer = -1;
    for (int i = 0; i < 1000 && peer < 0; i++) {
        peer = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
        if (peer < 0)
            clock_sleep_us(10000);
    }
    assert_true(peer >= 0);
    if (peer_scope(peer, g, &seen, &s, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(seen, uid);
    close(peer);
    close(fd);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return s;
}

static void test_groups_of_peers(void **state)
{
    const struct peer_groups g = {.admin = 4711, .reader = 4712};
    const struct peer_groups none = {(gid_t)-1, (gid_t)-1};
    gid_t many[400], both[] = {4712, 4711}, reader[] = {10, 4712}, other[] = {4710, 4713};

    (void)state;
    if (geteuid() != 0)
        skip(); /* other users are made by root only */
    for (int i = 0; i < 400; i++)
        many[i] = (gid_t)(5000 + i);
    assert_int_equal(scope_of(0, 0, 0, NULL, &g), ACCESS_ADMIN);
    assert_int_equal(scope_of(1234, 4711, 0, NULL, &g), ACCESS_ADMIN);
    assert_int_equal(scope_of(1234, 99, 2, both, &g), ACCESS_ADMIN);
    assert_int_equal(scope_of(1234, 4712, 0, NULL, &g), ACCESS_READ);
    assert_int_equal(scope_of(1234, 99, 2, reader, &g), ACCESS_READ);
    assert_int_equal(scope_of(1234, 99, 2, other, &g), ACCESS_NONE);
    assert_int_equal(scope_of(1234, 0, 0, NULL, &g), ACCESS_NONE);
    assert_int_equal(scope_of(1234, 99, 400, many, &g), ACCESS_NONE);
    many[399] = 4711;
    assert_int_equal(scope_of(1234, 99, 400, many, &g), ACCESS_ADMIN);
    assert_int_equal(scope_of(1234, 4711, 2, both, &none), ACCESS_NONE);
}

static void test_our_own_user_administers(void **state)
{
    struct access_who w;
    struct err e;
    int fd[2];

    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
    assert_int_equal(access_peer(acc, fd[0], &w, &e), 0);
    assert_int_equal(level(&w), 3);
    assert_string_equal(w.origin, "unix");
    assert_int_equal(strncmp(w.actor, "uid ", 4), 0);
    assert_int_equal(w.key, 0);
    close(fd[0]);
    close(fd[1]);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
static const struct CMUnitTest tests[] = {
    T(test_a_key_opens_its_scopes),
    T(test_bad_new_keys),
    T(test_wrong_keys),
    T(test_only_a_hash_is_kept),
    T(test_revoked_at_once),
    T(test_expired),
    T(test_without_a_key),
    T(test_wrong_keys_cost_their_sender),
    T(test_failures_of_many_addresses),
    T(test_requests_per_minute),
    T(test_streams_at_a_time),
    T(test_tokens_per_minute),
    T(test_prefixes_are_bound_to_a_key),
    T(test_isolation_by_instance),
    T(test_listening_to_the_world),
    T(test_groups_of_peers),
    T(test_our_own_user_administers),
};
TEST_MAIN("access", tests)
