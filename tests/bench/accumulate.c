/* accumulate.c: GB/s of gradient pieces that one thread of mt-optim accumulates, and of copying them, as JSON lines.
 * usage: accumulate [MiB OF GRADIENTS] (default 512)
 * Pieces are in a ring of 16 blocks and are processed in blocks of 4096 elements: the first micro-batch of a step is
 * stored, later ones are added, and the squares of the last one's sums are added up.
 */
#include <stdio.h>

#include "../../mt-optim/sum.h"
#include "common.h"

enum { ROUNDS = 5, ELEMS = 4096, BLOCK = 2 << 20, BLOCKS = 16 };

enum what { COPY, ONLY, FIRST, MIDDLE, LAST, WHATS };
static const char *const words[WHATS] = {"copied", "of the only micro-batch", "of the first", "of one between",
	"of the last"};

static double piece(enum what what, char *g, const char *from, bool bf16)
{
	size_t bytes = ELEMS * (bf16 ? 2 : 4);
	if (what == LAST) return grad_add_take(g, from, ELEMS, bf16);
	if (what == MIDDLE) grad_add(g, from, ELEMS, bf16);
	else if (what == COPY) memcpy(g, from, bytes);
	else if (what == FIRST) grad_copy(g, from, ELEMS, bf16);
	else return grad_take(g, from, ELEMS, bf16);
	return 0;
}

static void measure(enum what what, bool bf16, char *g, const char *ring, size_t bytes)
{
	double best = 1e9;
	volatile double sum = 0;
	for (int r = 0; r < ROUNDS; r++) {
		double start = now(CLOCK_THREAD_CPUTIME_ID);
		for (size_t at = 0; at < bytes; at += ELEMS * (bf16 ? 2 : 4))
			sum = sum + piece(what, g + at, ring + at % ((size_t)BLOCK * BLOCKS), bf16);
		double took = now(CLOCK_THREAD_CPUTIME_ID) - start;
		if (took < best) best = took;
	}
	printf("{\"bench\":\"accumulate\",\"loop\":\"%s pieces %s\",\"gb_per_s\":%.2f}\n", bf16 ? "bf16" : "fp32",
		words[what], (double)bytes * 1e-9 / best);
}

int main(int argc, char **argv)
{
	size_t bytes = (argc > 1 ? strtoull(argv[1], NULL, 10) : 512) << 20;
	if (!bytes) return 64;
	char *g = array(bytes), *ring = array((size_t)BLOCK * BLOCKS);
	for (int bf16 = 0; bf16 < 2; bf16++)
		for (enum what what = COPY; what < WHATS; what++) measure(what, bf16, g, ring, bytes);
	return 0;
}
