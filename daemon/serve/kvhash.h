/* daemon/serve/kvhash.h - SipHash-2-4 with 128 bits of output.
 *
 * Keyed with a secret, so that nobody outside can make two prefixes meet. Pure. */
#ifndef SERVE_KVHASH_H
#define SERVE_KVHASH_H

#include <stddef.h>
#include <stdint.h>

struct kvhash {
    uint64_t w[2];
};

/* Of `chain`, then n bytes at p. */
struct kvhash kvhash_next(const uint8_t key[16], struct kvhash chain, const void *p,
                          size_t n);
/* Of n bytes at p alone. */
struct kvhash kvhash_bytes(const uint8_t key[16], const void *p, size_t n);

#endif
