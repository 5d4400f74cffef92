/* left-out.h: calls that stream-chaos leaves out, or makes too early, in turn. A source compiled with this header has
 * each of them in a list; mt-stream's own objects are compiled without it.
 */
#ifndef LEFT_OUT_H
#define LEFT_OUT_H

#include <stdbool.h>

enum how { LEFT_OUT, TOO_EARLY, OVERLAP };

struct site {
	const char *call, *file, *function;
	int line;
};
extern const struct site *__start_sites[], *__stop_sites[];
#define SITE(name) \
	({ \
		static const struct site here = {name, __FILE__, __func__, __LINE__}; \
		static const struct site *listed __attribute__((section("sites"), used)) = &here; \
		listed; \
	})

bool site_is(const struct site *, enum how); /* now */

#ifdef MT_EMU
#include "emu.h"
#define maybe(call) (site_is(SITE(#call), LEFT_OUT) ? cudaSuccess : (call)
#define cudaEventRecord(event, stream)            maybe(cudaEventRecord)(event, stream))
#define cudaEventSynchronize(event)               maybe(cudaEventSynchronize)(event))
#define cudaStreamWaitEvent(stream, event, flags) maybe(cudaStreamWaitEvent)(stream, event, flags))
#endif
#endif
