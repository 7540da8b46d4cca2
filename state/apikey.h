/* state/apikey.h - API keys at rest: `id.secret`, of which the SHA-256 of the secret
 * stays.
 *
 * Control thread; daemon/api/access keeps the list in memory for the HTTP threads. */
#ifndef STATE_APIKEY_H
#define STATE_APIKEY_H

#include <stdint.h>

struct err;
struct store;

enum { APIKEY_ID = 12, APIKEY_SECRET_BYTES = 32, APIKEY_MAX = 1024 };

struct apikey_row {
    char id[APIKEY_ID + 1];                    /* lower-case letters and digits */
    uint8_t hash[32];                          /* SHA-256 of the 32 secret bytes */
    char name[64], scopes[64];                 /* scopes: "infer,read,admin" as given */
    int64_t made_ms, expires_ms, revoked_ms;   /* Unix ms; 0 = never */
    int64_t req_per_min, tok_per_min, streams; /* 0 = unlimited */
};
/* CONFLICT when the id is taken or there are APIKEY_MAX. */
int apikey_put(struct store *s, const struct apikey_row *k, struct err *e);
int apikey_revoke(struct store *s, const char *id, int64_t at_ms, struct err *e);
/* Also revoked ones; returns the count or -1. */
int apikey_list(struct store *s, struct apikey_row *ret, int max, struct err *e);

#endif
