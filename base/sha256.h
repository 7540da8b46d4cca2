/* base/sha256.h - SHA-256 of bytes: hashes of texts, chains, keys. Any thread; the only
 * file that knows the library (nettle, which comes with the HTTP library's TLS). */
#ifndef BASE_SHA256_H
#define BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { SHA256_BYTES = 32, SHA256_CHARS = 64 };

void sha256(const void *p, size_t n, uint8_t ret[SHA256_BYTES]);
/* The same as 64 lower-case hex digits and a NUL. */
void sha256_hex(const void *p, size_t n, char ret[SHA256_CHARS + 1]);

#endif
