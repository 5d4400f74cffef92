/* abi.c: the shared layouts, asserted. Nothing here makes code. */
#include "abi.h"
#include "mt.h"

#define FIELD(s, f, off, size_) \
	_Static_assert(offsetof(struct s, f) == (off), "offset of " #s "." #f); \
	_Static_assert(sizeof(((struct s *)0)->f) == (size_), "size of " #s "." #f);
#define SIZE(s, n) _Static_assert(sizeof(struct s) == (n), "size of " #s);
MT_ABI_FIELDS(FIELD)
MT_ABI_SIZES(SIZE)
