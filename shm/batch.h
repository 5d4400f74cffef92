/* batch.h: what a message may say. Not public. */
#ifndef MT_BATCH_H
#define MT_BATCH_H

#include <stddef.h>
#include <stdint.h>

#include "mt/layout.h"

struct mt_msg;

/* Does a batch message fit a block of this many bytes? 0 or -69 */
int batch_fits(const struct mt_msg *, size_t block);
/* Tokens that fit a block of this many bytes, each with so many of a teacher */
uint64_t batch_tokens(size_t block, uint32_t top);
/* What the message has of its block: three arrays; four with weights; with documents five, a teacher's, an objective
 * and these */
size_t batch_bytes(const struct mt_msg *);
/* Where the objective of a block of n = rows x seq positions stands, in bytes; its documents follow */
size_t batch_objective_at(uint64_t n, uint32_t top);

/* The parts of a message's block; NULL: it has none. Of arrays (rows, seq) */
struct batch_parts {
	const uint32_t *tokens, *targets, *starts;
	const float *weights, *old;
	const uint32_t *teacher; /* (rows, seq, MT_TEACHER_WORDS) */
	const struct mt_objective *objective;
	const struct mt_document *documents; /* (documents of the message) */
};
struct batch_parts batch_parts(const struct mt_msg *, const void *block);

/* Are the block's tokens, targets and starts those of documents of that vocabulary, its numbers finite, and its
 * documents those of the objective? Each target is then of one of them; of pairs each has one, and the two of a pair
 * are in one row. */
int batch_check(const struct mt_msg *, const void *block, uint32_t vocab);
/* Does a gradient message name a piece of what this node has of the unit, of at most this many elements? */
bool piece_fits(const struct mt_msg *, const struct mt_unit *, struct mt_part own, uint64_t most);

#endif
