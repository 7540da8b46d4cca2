/* daemon/api/access.h - who may do what: peers of the UNIX socket, keys, limits.
 *
 * UNIX socket: root, the user that the daemon runs as and the group llmrack-admin
 * administer, the group llmrack reads (and infers), others get nothing; groups by
 * SO_PEERGROUPS, asked for each connection. TCP: an API key `id.secret` with scopes
 * (admin > read > infer); without one at most `infer`. Keys are looked up by id, what is
 * kept of a secret is its SHA-256, compared in constant time. The limits of a key and
 * that of wrong keys per address are token buckets. A right key is never refused for the
 * wrong ones that came from its address. Keys change on the control thread; the rest from
 * any thread, under one short lock. */
#ifndef API_ACCESS_H
#define API_ACCESS_H

#include <stdbool.h>
#include <stdint.h>

struct access;
struct buf;
struct conf;
struct err;
struct store;

enum access_scope { ACCESS_NONE, ACCESS_INFER, ACCESS_READ, ACCESS_ADMIN };

/* Who a request comes from, for limits and the journal. */
struct access_who {
    char actor[64];  /* "uid 0", "key ab12cd34ef56", "anonymous" */
    char origin[64]; /* "unix", "127.0.0.1" */
    unsigned scopes; /* bits 1 << enum access_scope */
    int64_t key;     /* index + 1 of the key, 0 none: prefix isolation and limits */
};

/* Borrows the store; NULL = none, then no key can be made. */
int access_new(struct store *s, struct access **ret, struct err *e);
void access_free(struct access *a);
/* Hot values of the configuration; nothing of it is kept. */
void access_set_conf(struct access *a, const struct conf *c);
/* The TCP listener is reachable from other machines: no key, no inference, unless the
 * configuration says insecure. */
void access_set_remote(struct access *a, bool remote);
/* Look the two groups up again; true when either is there. Control thread. */
bool access_find_groups(struct access *a);

/* The peer of a UNIX socket; DENIED with what would be right. */
int access_peer(struct access *a, int fd, struct access_who *ret, struct err *e);
/* A TCP client at who->origin with the headers Authorization and X-Api-Key (NULL: none);
 * fills the rest of who. UNAUTHORIZED, or LIMITED with *ret_retry_s after too many
 * failures of that address. While no key was ever made, what a client sends as one is not
 * looked at: client libraries always send something. */
int access_key(struct access *a, const char *authorization, const char *x_api_key,
               int64_t now_us, struct access_who *who, int *ret_retry_s, struct err *e);
/* May it? DENIED names the scope that is missing; UNAUTHORIZED when a key might do. */
int access_may(const struct access_who *w, enum access_scope need, struct err *e);

/* A request begins: requests/min and, for inference, streams and the tokens left; LIMITED
 * and *ret_retry_s. access_end gives the stream back and takes the tokens. */
int access_begin(struct access *a, const struct access_who *w, bool inference,
                 int64_t now_us, int *ret_retry_s, struct err *e);
void access_end(struct access *a, const struct access_who *w, int64_t now_us,
                int64_t tokens);
/* What a prefix in the KV cache is bound to: 0 for all that came without a key, or by
 * key. */
uint64_t access_salt(struct access *a, const struct access_who *w, int isolate);

/* Control thread. The whole key `id.secret` is in *shown once. */
struct access_new_key {
    const char *name, *scopes; /* "infer", "read", "admin" with commas */
    int64_t expires_ms, req_per_min, tok_per_min, streams; /* 0 = never, unlimited */
};
int access_key_create(struct access *a, const struct access_new_key *k, struct buf *shown,
                      struct err *e);
/* *ret_key is what access_who.key holds for it. */
int access_key_revoke(struct access *a, const char *id, int64_t *ret_key, struct err *e);
void access_keys_json(struct access *a, struct buf *out); /* an array */
/* One was ever made. Whether it still opens anything does not matter: where the world can
 * knock, nobody comes in without a valid one. */
bool access_has_keys(struct access *a);

#endif
