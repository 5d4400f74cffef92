/* A process that begins and ends fills is killed at COUNT random moments. usage: store-filldeath RUN COUNT
 *
 * Prints how often the run was filled, and being filled. A filled run with an odd fill counter fails the probe: savers
 * would wait for its end, and with its filler dead it never ends. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "child.h"
#include "mt/run.h"

/* A child does not inherit the regions: it opens them itself. */
static _Noreturn void fill_for_ever(const char *name)
{
	struct mt_run *run;
	if (mt_run_open(&run, name, MT_RUN_RINGS | MT_RUN_WEIGHTS)) _exit(2);
	for (;;) {
		mt_fill_begin(run);
		mt_fill_end(run, MT_FILLED);
	}
}

int main(int argc, char **argv)
{
	struct mt_run *run;
	int filled = 0, filling = 0;
	if (argc != 3 || mt_run_open(&run, argv[1], 0)) return 2;
	srandom(1);
	for (int i = 0; i < atoi(argv[2]); i++) {
		pid_t filler = fork_child();
		if (filler == 0) fill_for_ever(argv[1]);
		for (uint64_t from = mt_fills(run); mt_fills(run) < from + 100;) /* it is working */
			if (waitpid(filler, NULL, WNOHANG)) return 2;
		nanosleep(&(struct timespec){.tv_nsec = random() % 300000}, NULL);
		kill(filler, SIGKILL);
		waitpid(filler, NULL, 0);
		if (mt_run_state(run) != MT_FILLED) filling++;
		else if (mt_fills(run) % 2 == 0) filled++;
		else return fprintf(stderr, "instant %d: the run is filled, and its count of fillings is odd\n", i), 1;
	}
	printf("%d filled, %d being filled\n", filled, filling);
	return 0;
}
