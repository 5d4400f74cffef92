/* store-late RUN SLOT FILE: attach to a filled run, report it, wait until FILE exists, then claim SLOT, like a stage
 * that is slow between the two. Prints "claimed" and the run's state; holds the slot until a signal. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/cli.h"
#include "mt/error.h"
#include "mt/run.h"
#include "mt/stage.h"

static const struct mt_program program = {.name = "store-late"};

int main(int argc, char **argv)
{
	struct mt_run *run;
	mt_cli(&program, 1, argv, NULL, 0);
	if (argc != 4) mt_die(MT_EX_USAGE, "wants RUN SLOT FILE");
	mt_signals(true);
	mt_must(mt_run_attach(&run, argv[1], MT_RUN_RINGS | MT_RUN_WEIGHTS, -1, &mt_stopping));
	puts("attached");
	fflush(stdout);
	while (access(argv[3], F_OK)) usleep(10000);
	mt_must(mt_stage_claim(run, atoi(argv[2]), NULL));
	printf("claimed %d\n", (int)mt_run_state(run));
	fflush(stdout);
	while (!mt_stopping) pause();
	mt_run_close(run);
	return 0;
}
