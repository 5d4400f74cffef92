/* batch.h: what a message may say. Not public. */
#ifndef MT_BATCH_H
#define MT_BATCH_H

#include <stddef.h>
#include <stdint.h>

#include "mt/layout.h"

struct mt_msg;

/* Does a batch message fit a block of this many bytes? 0 or -69 */
int batch_fits(const struct mt_msg *, size_t block);
/* What the message has of its block: three arrays, or four with weights */
size_t batch_bytes(const struct mt_msg *);
/* Are its tokens, targets and starts (rows x seq each, one after the other) those of documents of that vocabulary, and
 * its weights, if it has any, finite? */
int batch_check(const struct mt_msg *, const uint32_t *tokens, uint32_t vocab);
/* Does a gradient message name a piece of what this node has of the unit, of at most this many elements? */
bool piece_fits(const struct mt_msg *, const struct mt_unit *, struct mt_part own, uint64_t most);

#endif
