/* so-late.so, to be preloaded: mt-store serve begins 2 s later, and mt-store create ends 2 s after its run is whole, as
 * on a busy machine. */
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

static bool creates;

__attribute__((constructor)) static void begin(int argc, char **argv)
{
	bool store = argc > 1 && strstr(argv[0], "mt-store");
	creates = store && !strcmp(argv[1], "create");
	if (store && !strcmp(argv[1], "serve")) sleep(2);
}

__attribute__((destructor)) static void end(void)
{
	if (creates) sleep(2);
}
