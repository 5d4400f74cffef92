/* calls.h: how many rows or heads one call of an attention library computes, by the work memory that its backward
 * pass needs. This decides bits: so it may depend on shapes and on the library, never on how much memory there is.
 */
#ifndef MT_STREAM_PLAN_CALLS_H
#define MT_STREAM_PLAN_CALLS_H

#include <stdint.h>

#ifndef ROWS_BYTES               /* smaller for the emulated GPU */
#define ROWS_BYTES (1ull << 30)  /* most work memory for several rows in one call */
#define HEADS_BYTES (4ull << 30) /* most work memory for all heads of a row in one call; above it: groups of heads */
#endif

/* Rows of a call, if one row needs `row` bytes (not 0) */
static inline uint32_t rows_of_call(uint64_t row)
{
	uint64_t n = row < ROWS_BYTES ? ROWS_BYTES / row : 1;
	return n < INT32_MAX ? (uint32_t)n : INT32_MAX;
}

/* Key-value heads (with their query heads) of a call, if a row needs `row` bytes for all of them: the most for which
 * HEADS_BYTES are enough, in equal shares; at least one */
static inline uint32_t kv_heads_of_call(uint64_t row, uint32_t kv_heads)
{
	uint32_t n = kv_heads;
	while (n > 1 && (kv_heads % n || row / kv_heads * n > HEADS_BYTES)) n--;
	return n;
}

#endif
