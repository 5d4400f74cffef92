/* threads.h: what the emulator's files share: chance, its end, and threads that wait */
#ifndef EMU_THREADS_H
#define EMU_THREADS_H

#include "emu.h"

#define MOST_THREADS 1024
#define POISON 0xff /* NaN as fp32 and bf16 */

/* below `below` */
uint64_t emu_draw(uint64_t below);
[[noreturn]] void emu_die(const char *what);

static inline void saw(enum emu_news news, const void *p, const void *q)
{
	if (emu_saw) emu_saw(news, p, q);
}

/* The running thread waits until emu_resume, which lets all go on that wait so */
void emu_pause(void);
void emu_resume(void);

/* wgmma.cc: a block begins; no thread of it can go on: let a copy arrive, false: none is on its way; a block ends */
void emu_tiles_begin(void);
bool emu_tiles_arrive(void);
void emu_tiles_end(void);

#endif
