/* watch.h: a program sees every load and store of the emulator's kernels
 *
 * g++ compiles the kernels with calls of __tsan_* before their loads and stores (-fsanitize=thread). The functions
 * below take the place of its library, and call access(), which the program defines after it has included this.
 */
#ifndef EMU_WATCH_H
#define EMU_WATCH_H

#include "emu.h"

/* `size` bytes at p, by the running thread's instruction */
static void access(const void *p, size_t size, bool writes, const void *instruction);

#define SITE __builtin_return_address(0)
extern "C" {
#define BOTH(size) \
	void __tsan_read##size(void *p) { access(p, size, false, SITE); } \
	void __tsan_write##size(void *p) { access(p, size, true, SITE); }
#define UNALIGNED(size) \
	void __tsan_unaligned_read##size(void *p) { access(p, size, false, SITE); } \
	void __tsan_unaligned_write##size(void *p) { access(p, size, true, SITE); }
#define ALL(size) BOTH(size) UNALIGNED(size)
BOTH(1)
ALL(2)
ALL(4)
ALL(8)
ALL(16)
void __tsan_read_range(void *p, size_t size) { access(p, size, false, SITE); }
void __tsan_write_range(void *p, size_t size) { access(p, size, true, SITE); }
void __tsan_init(void) {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit(void) {}
void __tsan_vptr_update(void **, void *) {}
}

#endif
