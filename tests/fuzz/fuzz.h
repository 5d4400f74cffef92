/* fuzz.h: one input and how targets read it. A target must return: a crash, a hang or a sanitizer's report is a bug. */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The next n bytes of the input; zeroes once it has ended */
struct bytes {
	const uint8_t *p;
	size_t n;
};
static inline void take(struct bytes *b, void *out, size_t n)
{
	size_t m = n < b->n ? n : b->n;
	memset(out, 0, n);
	if (m) memcpy(out, b->p, m);
	b->p += m;
	b->n -= m;
}
static inline uint32_t take_u32(struct bytes *b)
{
	uint32_t v;
	take(b, &v, sizeof v);
	return v;
}
static inline uint64_t take_u64(struct bytes *b)
{
	uint64_t v;
	take(b, &v, sizeof v);
	return v;
}

/* A copy of the input with a NUL after it; the caller frees it */
static inline char *as_text(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1);
	if (!text) abort();
	if (size) memcpy(text, data, size);
	text[size] = 0;
	return text;
}

#endif
