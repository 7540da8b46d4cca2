/* daemon/api/access.h - who may do what: peers of the UNIX socket, keys, limits.
 *
 * UNIX socket: root and the group llmrack-admin administer, llmrack reads (and infers),
 * others get nothing; groups from SO_PEERGROUPS, asked for each connection. TCP: an API
 * key `id.secret` with scopes; without one at most `infer`. Looked up by id, compared in
 * constant time. Per-key limits and a limit of wrong keys per address are token buckets.
 * access_check and access_spend from any thread; keys change on the control thread. */
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

int access_new(struct store *s, struct access **ret, struct err *e);
void access_free(struct access *a);
void access_set_conf(struct access *a, const struct conf *c);

/* The peer of a UNIX socket; DENIED with what would be right. */
int access_peer(struct access *a, int fd, struct access_who *ret, struct err *e);
/* The Authorization header (NULL: none) of a TCP client at addr. UNAUTHORIZED, or BUSY
 * with *ret_retry_s after too many failures. */
int access_key(struct access *a, const char *authorization, const char *addr,
               int64_t now_us, struct access_who *ret, int *ret_retry_s, struct err *e);
/* May it? DENIED names the scope that is missing. */
int access_may(const struct access_who *w, enum access_scope need, struct err *e);

/* A request begins: requests/min, streams and the tokens left; BUSY and *ret_retry_s.
 * access_end gives the stream back and takes the tokens. */
int access_begin(struct access *a, const struct access_who *w, int64_t now_us,
                 int *ret_retry_s, struct err *e);
void access_end(struct access *a, const struct access_who *w, int64_t now_us,
                int64_t tokens);
/* What a prefix in the KV cache is bound to: 0 for all, else by key. */
uint64_t access_salt(struct access *a, const struct access_who *w, int isolate);

/* Control thread. The whole key `id.secret` is in *shown once. */
struct access_new_key {
    const char *name, *scopes; /* "infer", "read", "admin" with commas */
    int64_t expires_ms, req_per_min, tok_per_min, streams;
};
int access_key_create(struct access *a, const struct access_new_key *k, struct buf *shown,
                      struct err *e);
int access_key_revoke(struct access *a, const char *id, struct err *e);
void access_keys_json(struct access *a, struct buf *out);
bool access_has_keys(struct access *a);

#endif
