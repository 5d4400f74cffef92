/* load.h: what the files of load share: load.c divides a run into parts, weights.c and moments.c each read one. */
#ifndef MT_CKPT_LOAD_H
#define MT_CKPT_LOAD_H

#include "ckpt.h"

/* What one thread reads at once, at most PART_ELEMS elements: WEIGHTS: of a tensor of the model's files; LOW, MOMENTS:
 * of a tensor of the run; COPY: of m or v of a unit, int8 in the run and in the files; CODES: m or v of a whole unit,
 * int8 in the run alone; ZERO: bytes of an array that become zero */
struct part {
	enum { WEIGHTS, LOW, MOMENTS, COPY, CODES, ZERO } what;
	enum array array; /* of MOMENTS, COPY and CODES */
	uint32_t index;   /* of the tensor; of the unit for COPY and CODES */
	uint64_t from, n; /* ZERO: place in the run, and bytes */
};

#define PART_ELEMS (1u << 20)
#define BLOCK_ELEMS (BLOCK_BYTES / 4)

struct loader {
	struct mt_run *run;
	const struct source *s;
	struct part *parts;
	int64_t n, room;
	bool linked; /* what tiles have comes by links */
	bool zero;   /* nobody has filled the run before: all arrays are zero */
	struct nonfinite seen;
};

/* Elements of a tensor, or of a part of it that follow one another both in the file and in the run */
struct piece {
	uint32_t index, unit; /* index: as of the part */
	uint64_t from, at, n; /* the first one in the file, and in the unit's arrays */
};

/* Map the pages of an array that will be written: one call for many of them costs less than a page fault for each. */
void load_populate(void *p, uint64_t bytes);
/* The next piece of a tensor: its elements from `from` on, at most BLOCK_ELEMS and not beyond `end`. 75: a signal */
int load_piece(const struct mt_geometry *, const struct mt_tensor *, uint32_t index, uint64_t from, uint64_t end,
	struct piece *);
/* Of m, v and most of lo this node has what it owns: cut the piece to that. Nothing may be left. */
struct piece load_owned(const struct loader *, struct piece);

/* weights.c: w, and lo of what no checkpoint has it of; */
int load_weights(struct loader *, const struct part *, void *buf);
int load_low(const struct loader *, const struct part *, void *buf); /* a checkpoint's lo, when all w are there */
/* moments.c: m and v */
int load_moments(const struct loader *, const struct part *, void *buf);
int load_codes(const struct loader *, const struct part *, void *buf); /* int8 in the run, not in the files */
int copy_codes(const struct loader *, const struct part *);            /* int8 in both, bit for bit */

#endif
