/* so.h: for libraries that are preloaded: the function that a call would reach without them. */
#include <dlfcn.h>

#define REAL(f) ((__typeof__(&f))dlsym(RTLD_NEXT, #f))
