/* daemon/api/access.c - keys in memory, their scopes and limits; peers by their groups.
 *
 * The list of keys only grows, so that an index stays what it was: a revoked or expired
 * key remains as a row that opens nothing. Names of groups are looked up when asked for
 * (start, new configuration, SIGHUP) and not for each connection, since that may ask a
 * directory server; the groups of a peer are asked from the kernel each time. */
#include "daemon/api/access.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/sha256.h"
#include "daemon/api/peer.h"
#include "daemon/api/ratelimit.h"
#include "daemon/ctrl/conf.h"
#include "state/apikey.h"

enum {
    SECRET_CHARS = 2 * APIKEY_SECRET_BYTES,
    FAILURES_PER_MIN = 30, /* before a configuration is known */
};

static const char *const scope_names[] = {"none", "infer", "read", "admin"};

/* What each scope includes, by enum access_scope. */
#define BIT(s) (1u << (s))
static const unsigned scope_bits[] = {
    BIT(ACCESS_NONE),
    BIT(ACCESS_NONE) | BIT(ACCESS_INFER),
    BIT(ACCESS_NONE) | BIT(ACCESS_INFER) | BIT(ACCESS_READ),
    BIT(ACCESS_NONE) | BIT(ACCESS_INFER) | BIT(ACCESS_READ) | BIT(ACCESS_ADMIN),
};

struct key {
    struct apikey_row row;
    unsigned scopes;
    struct bucket req, tok;
    int streams;
    int64_t used_ms; /* last time, this run */
};

struct access {
    struct store *store;
    pthread_mutex_t lock; /* all below */
    struct key *keys;
    int n_keys, cap_keys;
    bool keyless_conf, insecure, remote;
    int64_t failures_per_min;
    struct peer_groups groups;
    struct fails fails;
};

/* ---- scopes ---- */

/* "infer,read" -> bits; 0 and a sentence when a word is none of them. */
static unsigned parse_scopes(const char *s, struct err *e)
{
    unsigned bits = 0;
    const char *at = s;

    while (*at) {
        size_t n = strcspn(at, ",");
        int found = 0;

        for (int i = ACCESS_INFER; i <= ACCESS_ADMIN; i++)
            if (strlen(scope_names[i]) == n && !strncmp(at, scope_names[i], n))
                found = i;
        if (!found)
            break;
        bits |= scope_bits[found];
        at += n;
        if (*at == ',' && at[1])
            at++;
    }
    if (*at || !bits) {
        err_param(e, ERR_INVALID, "scopes",
                  "scopes is '%s' and must be of infer, read and admin, with commas", s);
        return 0;
    }
    return bits;
}

int access_may(const struct access_who *w, enum access_scope need, struct err *e)
{
    if (need == ACCESS_NONE || w->scopes & BIT(need))
        return 0;
    if (w->key == 0 && strcmp(w->origin, "unix") != 0)
        return err_set(e, ERR_UNAUTHORIZED,
                       "this needs an API key with the scope '%s': send it as "
                       "'Authorization: Bearer ID.SECRET'",
                       scope_names[need]);
    return err_set(e, ERR_DENIED, "%s lacks the scope '%s'", w->actor, scope_names[need]);
}

/* ---- peers of the UNIX socket ---- */

bool access_find_groups(struct access *a)
{
    struct peer_groups g;

    peer_groups_find(&g);
    pthread_mutex_lock(&a->lock);
    a->groups = g;
    pthread_mutex_unlock(&a->lock);
    return g.admin != (gid_t)-1 || g.reader != (gid_t)-1;
}

int access_peer(struct access *a, int fd, struct access_who *ret, struct err *e)
{
    enum access_scope s = ACCESS_NONE;
    struct peer_groups g;
    uid_t uid = 0;

    memset(ret, 0, sizeof(*ret));
    snprintf(ret->origin, sizeof(ret->origin), "unix");
    snprintf(ret->actor, sizeof(ret->actor), "unknown");
    pthread_mutex_lock(&a->lock);
    g = a->groups;
    pthread_mutex_unlock(&a->lock);
    if (peer_scope(fd, &g, &uid, &s, e) < 0)
        return -1;
    snprintf(ret->actor, sizeof(ret->actor), "uid %u", (unsigned)uid);
    ret->scopes = scope_bits[s];
    if (s == ACCESS_NONE)
        return err_set(e, ERR_DENIED,
                       "uid %u is in neither of the groups llmrack and llmrack-admin",
                       (unsigned)uid);
    return 0;
}

/* ---- keys of TCP clients ---- */

/* No early end: the time tells nothing of where two hashes differ. */
static bool same_hash(const uint8_t *a, const uint8_t *b)
{
    volatile uint8_t diff = 0;

    for (size_t i = 0; i < SHA256_BYTES; i++)
        diff |= a[i] ^ b[i];
    return diff == 0;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* "id.secret" with both of the right length. */
static bool split_key(const char *s, char id[APIKEY_ID + 1],
                      uint8_t secret[APIKEY_SECRET_BYTES])
{
    if (strlen(s) != APIKEY_ID + 1 + SECRET_CHARS || s[APIKEY_ID] != '.')
        return false;
    memcpy(id, s, APIKEY_ID);
    id[APIKEY_ID] = '\0';
    s += APIKEY_ID + 1;
    for (int i = 0; i < APIKEY_SECRET_BYTES; i++) {
        int hi = hex_digit(s[2 * i]), lo = hex_digit(s[2 * i + 1]);

        if (hi < 0 || lo < 0)
            return false;
        secret[i] = (uint8_t)(hi << 4 | lo);
    }
    return true;
}

static struct key *find_key(struct access *a, const char *id)
{
    for (int i = 0; i < a->n_keys; i++)
        if (!memcmp(a->keys[i].row.id, id, APIKEY_ID))
            return &a->keys[i];
    return NULL;
}

static bool is_live(const struct key *k, int64_t wall_ms)
{
    return !k->row.revoked_ms && (!k->row.expires_ms || k->row.expires_ms > wall_ms);
}

/* The key that was sent, or NULL and why not. Lock held. */
static struct key *right_key(struct access *a, const char *sent, struct err *e)
{
    static const uint8_t nothing[SHA256_BYTES];
    uint8_t secret[APIKEY_SECRET_BYTES] = {0}, hash[SHA256_BYTES];
    char id[APIKEY_ID + 1] = "";
    bool form = split_key(sent, id, secret);
    struct key *k = form ? find_key(a, id) : NULL;

    sha256(secret, sizeof(secret), hash);
    explicit_bzero(secret, sizeof(secret));
    if (!same_hash(hash, k ? k->row.hash : nothing) || !k)
        err_set(e, ERR_UNAUTHORIZED, "the API key is not valid");
    else if (k->row.revoked_ms)
        err_set(e, ERR_UNAUTHORIZED, "the API key '%s' was revoked", id);
    else if (!is_live(k, clock_wall_ms()))
        err_set(e, ERR_UNAUTHORIZED, "the API key '%s' has expired", id);
    else
        return k;
    return NULL;
}

/* What stands in the two headers, NULL when there is nothing that looks like a key. */
static const char *sent_key(const char *authorization, const char *x_api_key)
{
    if (authorization && !strncasecmp(authorization, "Bearer ", 7)) {
        authorization += 7;
        authorization += strspn(authorization, " ");
        if (*authorization)
            return authorization;
    } else if (authorization) {
        return authorization; /* of another kind: never right */
    }
    return x_api_key && *x_api_key ? x_api_key : NULL;
}

static void be_anonymous(const struct access *a, struct access_who *who)
{
    bool may = a->keyless_conf && (!a->remote || a->insecure);

    snprintf(who->actor, sizeof(who->actor), "anonymous");
    who->scopes = scope_bits[may ? ACCESS_INFER : ACCESS_NONE];
    who->key = 0;
}

int access_key(struct access *a, const char *authorization, const char *x_api_key,
               int64_t now_us, struct access_who *who, int *ret_retry_s, struct err *e)
{
    const char *sent = sent_key(authorization, x_api_key);
    struct key *k;
    int rc = 0;

    pthread_mutex_lock(&a->lock);
    be_anonymous(a, who);
    if (!sent || a->n_keys == 0)
        goto out;
    k = right_key(a, sent, e);
    if (k) {
        snprintf(who->actor, sizeof(who->actor), "key %s", k->row.id);
        who->scopes = k->scopes;
        who->key = k - a->keys + 1;
        k->used_ms = clock_wall_ms();
        goto out;
    }
    who->scopes = scope_bits[ACCESS_NONE];
    rc = -1;
    if (!fails_add(&a->fails, who->origin, a->failures_per_min, now_us, ret_retry_s))
        err_set(e, ERR_LIMITED, "too many wrong API keys came from %s", who->origin);
out:
    pthread_mutex_unlock(&a->lock);
    return rc;
}

/* ---- limits of a key ---- */

static int check_limits(struct key *k, bool inference, int64_t now, int *ret_s,
                        struct err *e)
{
    const struct apikey_row *r = &k->row;

    if (r->req_per_min && bucket_level(&k->req, r->req_per_min, now) < 1) {
        *ret_s = bucket_wait_s(&k->req, r->req_per_min, now, 1);
        return err_set(e, ERR_LIMITED, "the key '%s' may make %lld requests a minute",
                       r->id, (long long)r->req_per_min);
    }
    if (!inference)
        return 0;
    if (r->streams && k->streams >= r->streams) {
        *ret_s = 1;
        return err_set(e, ERR_LIMITED, "the key '%s' may have %lld requests at a time",
                       r->id, (long long)r->streams);
    }
    if (r->tok_per_min && bucket_level(&k->tok, r->tok_per_min, now) <= 0) {
        *ret_s = bucket_wait_s(&k->tok, r->tok_per_min, now, 1);
        return err_set(e, ERR_LIMITED, "the key '%s' may use %lld tokens a minute", r->id,
                       (long long)r->tok_per_min);
    }
    return 0;
}

int access_begin(struct access *a, const struct access_who *w, bool inference,
                 int64_t now_us, int *ret_retry_s, struct err *e)
{
    struct key *k;
    int rc;

    if (!w->key)
        return 0;
    pthread_mutex_lock(&a->lock);
    k = &a->keys[w->key - 1];
    rc = check_limits(k, inference, now_us, ret_retry_s, e);
    if (rc == 0 && k->row.req_per_min)
        bucket_take(&k->req, k->row.req_per_min, now_us, 1);
    if (rc == 0 && inference)
        k->streams++;
    pthread_mutex_unlock(&a->lock);
    return rc;
}

void access_end(struct access *a, const struct access_who *w, int64_t now_us,
                int64_t tokens)
{
    struct key *k;

    if (!w->key)
        return;
    pthread_mutex_lock(&a->lock);
    k = &a->keys[w->key - 1];
    k->streams--;
    if (k->row.tok_per_min)
        bucket_take(&k->tok, k->row.tok_per_min, now_us, (double)tokens);
    pthread_mutex_unlock(&a->lock);
}

uint64_t access_salt(struct access *a, const struct access_who *w, int isolate)
{
    uint64_t salt = 14695981039346656037ull;

    if (!w->key || isolate == CONF_ISOLATE_NONE)
        return 0;
    pthread_mutex_lock(&a->lock);
    for (const char *p = a->keys[w->key - 1].row.id; *p; p++)
        salt = (salt ^ (unsigned char)*p) * 1099511628211ull;
    pthread_mutex_unlock(&a->lock);
    return salt | 1;
}

/* ---- making and revoking keys: control thread ---- */

/* Lock held, or before anybody else knows a. */
static void append(struct access *a, const struct apikey_row *r, int64_t now_us)
{
    struct key *k;

    if (a->n_keys == a->cap_keys) {
        a->cap_keys = a->cap_keys ? 2 * a->cap_keys : 16;
        a->keys = xrealloc(a->keys, (size_t)a->cap_keys * sizeof(*a->keys));
    }
    k = &a->keys[a->n_keys++];
    memset(k, 0, sizeof(*k));
    k->row = *r;
    k->scopes = parse_scopes(r->scopes, NULL);
    bucket_fill(&k->req, r->req_per_min, now_us);
    bucket_fill(&k->tok, r->tok_per_min, now_us);
}

static int random_bytes(void *to, size_t n, struct err *e)
{
    if (getrandom(to, n, 0) != (ssize_t)n)
        return err_errno(e, ERR_IO, "getrandom");
    return 0;
}

static int make_id(char id[APIKEY_ID + 1], struct err *e)
{
    static const char chars[] = "abcdefghijklmnopqrstuvwxyz0123456789";
    uint8_t r[8 * APIKEY_ID];
    int n = 0;

    if (random_bytes(r, sizeof(r), e) < 0)
        return -1;
    for (size_t i = 0; i < sizeof(r) && n < APIKEY_ID; i++)
        if (r[i] < 252) /* 7 * 36: each as likely as the next */
            id[n++] = chars[r[i] % 36];
    id[n] = '\0';
    return n == APIKEY_ID ? 0 : err_set(e, ERR_INTERNAL, "no random id");
}

static int check_new(const struct access_new_key *k, struct err *e)
{
    size_t n = strlen(k->name);

    if (n < 1 || n > 63)
        return err_param(e, ERR_INVALID, "name", "a key's name has 1 to 63 bytes");
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)k->name[i] < ' ' || k->name[i] == 127)
            return err_param(e, ERR_INVALID, "name",
                             "a key's name has no control characters");
    if (strlen(k->scopes) > 63 || !parse_scopes(k->scopes, e))
        return err_param(e, ERR_INVALID, "scopes",
                         "scopes is '%.63s' and must be of infer, read and admin, with "
                         "commas",
                         k->scopes);
    if (k->expires_ms && k->expires_ms <= clock_wall_ms())
        return err_param(e, ERR_RANGE, "expires_s", "the key would have expired already");
    if (k->req_per_min < 0 || k->tok_per_min < 0 || k->streams < 0)
        return err_param(e, ERR_RANGE, "req_per_min", "a limit is 0 (none) or more");
    return 0;
}

int access_key_create(struct access *a, const struct access_new_key *k, struct buf *shown,
                      struct err *e)
{
    uint8_t secret[APIKEY_SECRET_BYTES];
    struct apikey_row r = {
        .made_ms = clock_wall_ms(),
        .expires_ms = k->expires_ms,
        .req_per_min = k->req_per_min,
        .tok_per_min = k->tok_per_min,
        .streams = k->streams,
    };

    if (check_new(k, e) < 0 || make_id(r.id, e) < 0 ||
        random_bytes(secret, sizeof(secret), e) < 0)
        return -1;
    if (!a->store)
        return err_set(e, ERR_UNAVAIL, "there is no store to keep keys in");
    snprintf(r.name, sizeof(r.name), "%s", k->name);
    snprintf(r.scopes, sizeof(r.scopes), "%s", k->scopes);
    sha256(secret, sizeof(secret), r.hash);
    if (apikey_put(a->store, &r, e) < 0)
        return -1;
    pthread_mutex_lock(&a->lock);
    append(a, &r, clock_now_us(clock_real()));
    pthread_mutex_unlock(&a->lock);
    buf_printf(shown, "%s.", r.id);
    for (size_t i = 0; i < sizeof(secret); i++)
        buf_printf(shown, "%02x", secret[i]);
    explicit_bzero(secret, sizeof(secret));
    return 0;
}

int access_key_revoke(struct access *a, const char *id, int64_t *ret_key, struct err *e)
{
    int64_t now = clock_wall_ms();
    struct key *k;

    pthread_mutex_lock(&a->lock);
    k = strlen(id) == APIKEY_ID ? find_key(a, id) : NULL;
    pthread_mutex_unlock(&a->lock);
    if (!k)
        return err_set(e, ERR_NOTFOUND, "there is no key '%.32s'", id);
    if (k->row.revoked_ms)
        return err_set(e, ERR_CONFLICT, "the key '%s' is revoked already", id);
    if (apikey_revoke(a->store, id, now, e) < 0)
        return -1;
    pthread_mutex_lock(&a->lock);
    k->row.revoked_ms = now;
    *ret_key = k - a->keys + 1;
    pthread_mutex_unlock(&a->lock);
    return 0;
}

static void put_time(struct jw *w, const char *name, int64_t ms)
{
    if (ms)
        jw_kint(w, name, ms);
    else
        jw_knull(w, name);
}

void access_keys_json(struct access *a, struct buf *out)
{
    int64_t now = clock_wall_ms();
    struct jw w;

    jw_init(&w, out);
    jw_arr(&w);
    pthread_mutex_lock(&a->lock);
    for (int i = 0; i < a->n_keys; i++) {
        const struct key *k = &a->keys[i];
        const struct apikey_row *r = &k->row;

        jw_obj(&w);
        jw_kstr(&w, "id", r->id);
        jw_kstr(&w, "name", r->name);
        jw_kstr(&w, "scopes", r->scopes);
        jw_kstr(&w, "state",
                r->revoked_ms     ? "revoked"
                : is_live(k, now) ? "valid"
                                  : "expired");
        jw_kint(&w, "made_ms", r->made_ms);
        put_time(&w, "expires_ms", r->expires_ms);
        put_time(&w, "revoked_ms", r->revoked_ms);
        put_time(&w, "used_ms", k->used_ms);
        jw_kint(&w, "req_per_min", r->req_per_min);
        jw_kint(&w, "tok_per_min", r->tok_per_min);
        jw_kint(&w, "streams", r->streams);
        jw_kint(&w, "open", k->streams);
        jw_obj_end(&w);
    }
    pthread_mutex_unlock(&a->lock);
    jw_arr_end(&w);
}

bool access_has_keys(struct access *a)
{
    bool any;

    pthread_mutex_lock(&a->lock);
    any = a->n_keys > 0;
    pthread_mutex_unlock(&a->lock);
    return any;
}

/* ---- life ---- */

static int load_keys(struct access *a, struct err *e)
{
    struct apikey_row *rows = xcalloc(APIKEY_MAX, sizeof(*rows));
    int n = apikey_list(a->store, rows, APIKEY_MAX, e);

    for (int i = 0; i < n; i++)
        append(a, &rows[i], clock_now_us(clock_real()));
    free(rows);
    return n < 0 ? -1 : 0;
}

int access_new(struct store *s, struct access **ret, struct err *e)
{
    struct access *a = xcalloc(1, sizeof(*a));

    a->store = s;
    a->keyless_conf = true;
    a->failures_per_min = FAILURES_PER_MIN;
    pthread_mutex_init(&a->lock, NULL);
    access_find_groups(a);
    if ((s && load_keys(a, e) < 0) ||
        random_bytes(&a->fails.secret, sizeof(a->fails.secret), e) < 0) {
        access_free(a);
        return -1;
    }
    *ret = a;
    return 0;
}

void access_free(struct access *a)
{
    if (!a)
        return;
    pthread_mutex_destroy(&a->lock);
    free(a->keys);
    free(a);
}

void access_set_conf(struct access *a, const struct conf *c)
{
    access_find_groups(a);
    pthread_mutex_lock(&a->lock);
    a->keyless_conf = c->access.anonymous != 0;
    a->insecure = c->access.insecure;
    a->failures_per_min = c->access.failures_per_min;
    pthread_mutex_unlock(&a->lock);
}

void access_set_remote(struct access *a, bool remote)
{
    pthread_mutex_lock(&a->lock);
    a->remote = remote;
    pthread_mutex_unlock(&a->lock);
}
