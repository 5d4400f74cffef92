/* so-long-sleep.so, to be preloaded: who sleeps shortly between two looks sleeps for 0.3 s, or until a signal. What
 * happens meanwhile is then found in one look, or not at all by one that ends with that signal. */
#include <stddef.h>
#include <time.h>

#include "so.h"

int nanosleep(const struct timespec *how_long, struct timespec *left)
{
	const struct timespec long_time = {.tv_nsec = 300000000};
	return REAL(nanosleep)(how_long->tv_sec || how_long->tv_nsec > long_time.tv_nsec ? how_long : &long_time, left);
}
