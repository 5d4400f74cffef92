/* so-late-serve.so, to be preloaded: mt-store serve begins 2 s later, as on a busy machine. */
#include <string.h>
#include <unistd.h>

__attribute__((constructor)) static void begin(int argc, char **argv)
{
	if (argc > 1 && strstr(argv[0], "mt-store") && !strcmp(argv[1], "serve")) sleep(2);
}
