/* daemon/serve/kvhash.c - SipHash-2-4-128, from its definition (Aumasson, Bernstein).
 *
 * A link of a chain hashes the 16 bytes of the link before it, then the tokens of one
 * block, so a link stands for the whole prefix. */
#include "daemon/serve/kvhash.h"

#include <endian.h>
#include <string.h>

struct sip {
    uint64_t v[4];
};

static inline uint64_t rotl(uint64_t x, int b) { return x << b | x >> (64 - b); }

static inline void sip_round(struct sip *s)
{
    uint64_t *v = s->v;

    v[0] += v[1], v[1] = rotl(v[1], 13) ^ v[0], v[0] = rotl(v[0], 32);
    v[2] += v[3], v[3] = rotl(v[3], 16) ^ v[2];
    v[0] += v[3], v[3] = rotl(v[3], 21) ^ v[0];
    v[2] += v[1], v[1] = rotl(v[1], 17) ^ v[2], v[2] = rotl(v[2], 32);
}

static inline void sip_word(struct sip *s, uint64_t m)
{
    s->v[3] ^= m;
    sip_round(s);
    sip_round(s);
    s->v[0] ^= m;
}

static inline uint64_t load64(const uint8_t *p)
{
    uint64_t x;

    memcpy(&x, p, sizeof(x));
    return le64toh(x);
}

static struct sip sip_start(const uint8_t key[16])
{
    uint64_t k0 = load64(key), k1 = load64(key + 8);

    return (struct sip){{k0 ^ 0x736f6d6570736575u, k1 ^ 0x646f72616e646f6du ^ 0xee,
                         k0 ^ 0x6c7967656e657261u, k1 ^ 0x7465646279746573u}};
}

static struct kvhash sip_end(struct sip *s, const uint8_t *p, size_t n, size_t total)
{
    uint64_t last = (uint64_t)total << 56;
    struct kvhash h;

    for (; n >= 8; n -= 8, p += 8)
        sip_word(s, load64(p));
    for (size_t i = 0; i < n; i++)
        last |= (uint64_t)p[i] << (8 * i);
    sip_word(s, last);
    for (int half = 0; half < 2; half++) {
        s->v[half ? 1 : 2] ^= half ? 0xdd : 0xee;
        for (int r = 0; r < 4; r++)
            sip_round(s);
        h.w[half] = s->v[0] ^ s->v[1] ^ s->v[2] ^ s->v[3];
    }
    return h;
}

struct kvhash kvhash_bytes(const uint8_t key[16], const void *p, size_t n)
{
    struct sip s = sip_start(key);
    return sip_end(&s, p, n, n);
}

struct kvhash kvhash_next(const uint8_t key[16], struct kvhash chain, const void *p,
                          size_t n)
{
    struct sip s = sip_start(key);

    sip_word(&s, chain.w[0]);
    sip_word(&s, chain.w[1]);
    return sip_end(&s, p, n, n + sizeof(chain));
}
