/* names.h: which names a block's tensors have in files: mt_geometry.names. */
#ifndef MT_MODEL_NAMES_H
#define MT_MODEL_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NAMES(name, ...) MT_NAMES_##name,
enum mt_names {
#include "names-table.h"
	MT_NAMES, /* how many */
};
#undef NAMES

struct mt_geometry;
/* mtp.c: the name of a tensor of multi-token prediction, and what is before those of its block. False: it has none */
bool mtp_name(const struct mt_geometry *, uint32_t role, char name[120]);
bool mtp_prefix(const struct mt_geometry *, uint32_t layer, char *prefix, size_t);
/* Of the embedding or the LM head: files have them again in the layer of multi-token prediction. Where it is trained,
 * they would go stale, and are left out. */
bool mtp_is_copy(const struct mt_geometry *, const char *name);
int geometry_mtp(struct mt_geometry *, double weight);

#endif
