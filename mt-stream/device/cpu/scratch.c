/* scratch.c: memory of operations, or the end of the program */
#include "cpu.h"
#include "say.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

void op_no_memory(const char *fmt, ...)
{
	static atomic_flag once = ATOMIC_FLAG_INIT;
	char what[200];
	va_list ap;

	while (atomic_flag_test_and_set(&once)) pause(); /* another thread says it, and ends us */
	va_start(ap, fmt);
	vsnprintf(what, sizeof what, fmt, ap);
	va_end(ap);
	mt_say("out of memory: %s", what);
	_exit(71);
}

void *op_scratch(struct pool *p, int thread, size_t bytes)
{
	void *scratch = pool_scratch(p, thread, bytes);
	if (!scratch && bytes) op_no_memory("%zu bytes of scratch", bytes);
	return scratch;
}

void *op_shared(struct pool *p, size_t bytes) { return op_scratch(p, pool_threads(p), bytes); }
