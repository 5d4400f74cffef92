/* link-siphash: mt-link's keyed hash gives the values of SipHash's authors: key 00 01 .. 0f, messages of 0, 8 and 32
 * bytes 00 01 .. (github.com/veorq/SipHash, vectors.h). */
#include <stdio.h>

#include "../../shm/link/siphash.h"

int main(void)
{
	const uint64_t key[2] = {0x0706050403020100, 0x0f0e0d0c0b0a0908};
	const uint64_t words[4] = {0x0706050403020100, 0x0f0e0d0c0b0a0908, 0x1716151413121110, 0x1f1e1d1c1b1a1918};
	const struct {
		size_t n;
		uint64_t hash;
	} known[] = {{0, 0x726fdb47dd0e0e31}, {1, 0x93f5f5799a932462}, {4, 0x7127512f72f27cce}};
	for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
		uint64_t hash = siphash(key, words, known[i].n);
		if (hash == known[i].hash) continue;
		printf("of %zu words: %016llx, expected %016llx\n", known[i].n, (unsigned long long)hash,
			(unsigned long long)known[i].hash);
		return 1;
	}
	return 0;
}
