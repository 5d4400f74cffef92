/* cut.h: how a block with experts is cut: all but the experts (its rest), and windows of experts. Each part has
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
 * elements that several parts share is an edge. Its gradient is assembled in a separate buffer and sent last, with the
 * rest. An edge's number is that of the first part boundary in its block.
 */
#ifndef MT_STREAM_WINDOWS_H
#define MT_STREAM_WINDOWS_H

#include <stdint.h>

struct mt_tensor;
struct mt_unit;

enum { EXPERT_ARRAYS = 6 }; /* as many roles as experts' tensors have */

struct cut {
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

struct cut cut_of(const struct mt_unit *, const struct mt_tensor *first);
static inline uint32_t windows_of(const struct cut *c, uint32_t window) { return (c->experts + window - 1) / window; }
/* Elements of the rest; of the memory of a window of `window` experts; edges at most */
uint64_t cut_rest(const struct cut *);
uint64_t cut_window(const struct cut *, uint32_t window);
uint32_t cut_edges(const struct cut *, uint32_t window);

/* The arrays of window i: as many extents as there are arrays */
void window_extents(const struct cut *, uint32_t window, uint32_t i, struct extent *);

/* The bounds between parts, in ascending order: 0 .. cut_edges() - 1. Window i's part of array a begins at bound a
 * windows_of() + i */
uint64_t cut_bound(const struct cut *, uint32_t window, uint32_t bound);
/* The edge in whose block the bound lies; it is there if the bound does not begin its block */
uint32_t cut_edge(const struct cut *, uint32_t window, uint32_t bound);

#endif
