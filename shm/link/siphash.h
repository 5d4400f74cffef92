/* siphash.h: SipHash-2-4 (Aumasson, Bernstein: SipHash: a fast short-input PRF, 2012) of whole words. Who does not know
 * the key cannot tell the hash of words whose hash was not seen. */
#ifndef MT_LINK_SIPHASH_H
#define MT_LINK_SIPHASH_H

#include <endian.h>
#include <stddef.h>
#include <stdint.h>

static inline uint64_t sip_turned(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }

static inline void sip_rounds(uint64_t v[4], int rounds)
{
	while (rounds--) {
		v[0] += v[1], v[2] += v[3];
		v[1] = sip_turned(v[1], 13) ^ v[0], v[3] = sip_turned(v[3], 16) ^ v[2];
		v[0] = sip_turned(v[0], 32);
		v[2] += v[1], v[0] += v[3];
		v[1] = sip_turned(v[1], 17) ^ v[2], v[3] = sip_turned(v[3], 21) ^ v[0];
		v[2] = sip_turned(v[2], 32);
	}
}

static inline uint64_t siphash(const uint64_t key[2], const uint64_t *words, size_t n)
{
	uint64_t v[4] = {key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d, key[0] ^ 0x6c7967656e657261,
		key[1] ^ 0x7465646279746573};
	for (size_t i = 0; i <= n; i++) {
		uint64_t word = i < n ? htole64(words[i]) : (uint64_t)n * 8 << 56;
		v[3] ^= word;
		sip_rounds(v, 2);
		v[0] ^= word;
	}
	v[2] ^= 0xff;
	sip_rounds(v, 4);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

#endif
