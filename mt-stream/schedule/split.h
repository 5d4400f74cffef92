/* split.h: how a block with experts is split: all but the experts (its rest), and windows of experts. Each part has
 * separate memory, for weights and for gradients, and comes and leaves by itself.
 *
 *     unit      rest │ expert 0 │ expert 1 │ expert 2 │ ...          a tensor for each expert: one array
 *     unit      rest │ gate, up 0 │ gate, up 1 │ ... │ down 0 │ ...  tensors of all experts (MT_PACKED): several arrays
 *
 * The store is laid out for this. Experts are the last tensors of their unit, behind everything that each token needs.
 * Gate, up and down of one expert are consecutive slabs, and the distance from one expert to the next is constant
 * (stride in struct weights): experts e to f are one range of w and of the gradients. Where a family's files pack all
 * experts of a layer into one tensor, they are a range for each tensor.
 *
 * Gradients leave in pieces that begin at multiples of MT_BLOCK elements, and parts end anywhere. A block of MT_BLOCK
 * elements that several parts share is a boundary block. Its gradient is assembled in a separate buffer and sent last,
 * with the rest. A boundary block's number is that of the first boundary between two parts in it.
 */
#ifndef MT_STREAM_WINDOWS_H
#define MT_STREAM_WINDOWS_H

#include <stdint.h>

struct mt_tensor;
struct mt_unit;

enum { EXPERT_ARRAYS = 6 }; /* as many roles as experts' tensors have */

struct split {
	uint64_t elems;           /* of the unit */
	uint32_t experts, arrays; /* experts 0: the unit has none, and all of it is its rest */
	uint32_t first_expert;    /* of the unit's tensors, the first one that is an expert's */
	struct {
		uint64_t off, stride; /* of the first expert; from one to the next, in elements */
	} array[EXPERT_ARRAYS];
};

/* Elements from .. to - 1 of a unit; `at`: where in its part's memory */
struct extent {
	uint64_t from, to, at;
};

struct split split_of(const struct mt_unit *, const struct mt_tensor *first);
static inline uint32_t windows_of(const struct split *c, uint32_t window) { return (c->experts + window - 1) / window; }
/* Elements of the rest; of the memory of a window of `window` experts; how many boundaries there are */
uint64_t split_rest(const struct split *);
uint64_t split_window(const struct split *, uint32_t window);
uint32_t split_boundaries(const struct split *, uint32_t window);

/* The arrays of window i: as many extents as there are arrays */
void window_extents(const struct split *, uint32_t window, uint32_t i, struct extent *);

/* The boundaries between parts, in ascending order: 0 .. split_boundaries() - 1. Window i's part of array a begins at
 * boundary a windows_of() + i */
uint64_t split_boundary(const struct split *, uint32_t window, uint32_t boundary);
/* The boundary block in which the boundary lies; there is none if the boundary begins its block */
uint32_t split_boundary_block(const struct split *, uint32_t window, uint32_t boundary);

#endif
