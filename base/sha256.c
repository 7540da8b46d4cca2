/* base/sha256.c - SHA-256 by nettle. */
#include "base/sha256.h"

#include <nettle/sha2.h>

void sha256(const void *p, size_t n, uint8_t ret[SHA256_BYTES])
{
    struct sha256_ctx c;

    sha256_init(&c);
    sha256_update(&c, n, p);
    sha256_digest(&c, SHA256_BYTES, ret);
}

void sha256_hex(const void *p, size_t n, char ret[SHA256_CHARS + 1])
{
    static const char digits[] = "0123456789abcdef";
    uint8_t h[SHA256_BYTES];

    sha256(p, n, h);
    for (int i = 0; i < SHA256_BYTES; i++) {
        ret[2 * i] = digits[h[i] >> 4];
        ret[2 * i + 1] = digits[h[i] & 15];
    }
    ret[SHA256_CHARS] = '\0';
}
