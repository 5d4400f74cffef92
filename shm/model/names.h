/* names.h: which names a block's tensors have in files: mt_geometry.names. */
#ifndef MT_MODEL_NAMES_H
#define MT_MODEL_NAMES_H

#define NAMES(name, ...) MT_NAMES_##name,
enum mt_names {
#include "names-table.h"
	MT_NAMES, /* how many */
};
#undef NAMES

#endif
