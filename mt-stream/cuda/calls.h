/* calls.h: how much of a chunk's attention a library's call is for, by the work memory that its backward pass
 * wants. What these say decides bits: it may depend on shapes and on the library, never on how much memory there is.
 */
#ifndef MT_STREAM_CUDA_CALLS_H
#define MT_STREAM_CUDA_CALLS_H

#include <stdint.h>

#ifndef ROWS_BYTES               /* smaller for the emulated GPU */
#define ROWS_BYTES (1ull << 30)  /* of work memory for several rows in one call */
#define HEADS_BYTES (4ull << 30) /* most work memory for all heads of a row in a call; beyond: groups of heads */
#endif

/* Rows of a call for all heads, where one row wants so many bytes (not 0); a call for some heads is for one row: there
 * alone are their statistics one after another, as cuDNN before 9.26 wants them. */
static inline uint32_t rows_of_call(uint64_t row)
{
	uint64_t n = row < ROWS_BYTES ? ROWS_BYTES / row : 1;

	return n < INT32_MAX ? (uint32_t)n : INT32_MAX;
}

/* Key-value heads (with their query heads) of a call where a row wants so many bytes for all of them: the most that
 * HEADS_BYTES are enough for, in equal shares; at least one */
static inline uint32_t kv_heads_of_call(uint64_t row, uint32_t kv_heads)
{
	uint32_t n = kv_heads;

	while (n > 1 && (kv_heads % n || row / kv_heads * n > HEADS_BYTES)) n--;
	return n;
}

#endif
