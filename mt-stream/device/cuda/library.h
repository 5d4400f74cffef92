/* library.h: libraries of NVIDIA's are opened at run time, so that programs start without them */
#ifndef MT_STREAM_CUDA_LIBRARY_H
#define MT_STREAM_CUDA_LIBRARY_H

#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Opens library `name`: the file that environment variable `variable` names, else NVIDIA's wheel in the Python
 * environment that this program is installed in, else what the loader finds, else the toolkit's. NULL: none of them. It
 * stays open. */
static inline void *library_find(const char *variable, const char *name)
{
	const char *given = getenv(variable);
	void *library = given ? dlopen(given, RTLD_NOW | RTLD_LOCAL) : NULL;
	char program[PATH_MAX], place[PATH_MAX + 128];
	ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);

	program[n > 0 ? n : 0] = 0;
	if (strrchr(program, '/')) *strrchr(program, '/') = 0;
	snprintf(place, sizeof place, "%s/../lib/python3*/*-packages/nvidia/*/lib/%s", program, name);
	glob_t wheels;
	if (!glob(place, 0, NULL, &wheels)) {
		for (size_t i = 0; !library && i < wheels.gl_pathc; i++)
			library = dlopen(wheels.gl_pathv[i], RTLD_NOW | RTLD_LOCAL);
		globfree(&wheels);
	}
	if (!library) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	snprintf(place, sizeof place, "/usr/local/cuda/lib64/%s", name);
	return library ? library : dlopen(place, RTLD_NOW | RTLD_LOCAL);
}

#endif
