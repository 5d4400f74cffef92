/* abi.c: the shared layouts, asserted. Nothing here makes code. */
#include <stddef.h>

#include "abi.h"
#include "mt/control.h"

#define FIELD(s, f, off, size_) \
	_Static_assert(offsetof(struct s, f) == (off), "offset of " #s "." #f); \
	_Static_assert(sizeof(((struct s *)0)->f) == (size_), "size of " #s "." #f);
#define SIZE(s, n) _Static_assert(sizeof(struct s) == (n), "size of " #s);
#define RESERVED(s, f, n) _Static_assert(sizeof(((struct s *)0)->f) == (n), "size of " #s "." #f);
MT_ABI_FIELDS(FIELD)
MT_ABI_SIZES(SIZE)
MT_ABI_RESERVED(RESERVED)

/* Listed and reserved fields fill each struct. (clang-format takes the macros for functions.) */
/* clang-format off */
#define ID(s, n) id_##s,
enum { MT_ABI_SIZES(ID) };
#define ADD(s, f, off, n) + ((int)id_##s == id ? (int)(n) : 0)
#define ADD_RESERVED(s, f, n) ADD(s, f, 0, n)
#define FILLED(s, n) \
	{ \
		enum { id = (int)id_##s, bytes = MT_ABI_FIELDS(ADD) MT_ABI_RESERVED(ADD_RESERVED) }; \
		_Static_assert(id == (int)id_mt_msg || bytes == (n), #s ": shm/abi.h does not list all of its bytes"); \
	}
__attribute__((unused)) static void filled(void) { MT_ABI_SIZES(FILLED) }
/* The kinds of messages share their last 40 bytes, and each fills them */
#define FILLS(kind) _Static_assert(sizeof(((struct mt_msg *)0)->kind) == 40, "mt_msg." #kind " does not fill 40 bytes");
FILLS(batch) FILLS(loss) FILLS(grad) FILLS(score) FILLS(figures)
