/* store-hold RUN SLOT [accumulate|MIB]: claim a slot as a stage would, print "held", and hold it until a signal. With
 * "accumulate" open transaction 1 as mt-step would, which this stage's death must abort. MIB: so much memory it uses,
 * and the kernel has to take back when it dies. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "mt/error.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "mt/step.h"
#include "mt/txn.h"
#include "mt/wait.h"

int main(int argc, char **argv)
{
	struct mt_run *run;
	if (argc < 3) mt_die(MT_EX_USAGE, "usage: store-hold RUN SLOT [accumulate|MIB]");
	mt_signals(false);
	mt_must(mt_run_open(&run, argv[1], MT_RUN_RINGS));
	mt_must(mt_stage_claim(run, atoi(argv[2]), NULL));
	mt_stage_activity(run, MT_ACT_WAIT_WEIGHTS, 7);
	if (argc > 3 && !strcmp(argv[3], "accumulate")) {
		mt_txn(run, 1)->step = 1;
		mt_txn(run, 1)->kind = MT_TRAIN;
		mt_txn(run, 1)->micros = 1;
		MT_ASSERT(mt_txn_cas(run, 1, mt_txn_word(run, 1), mt_word(1, mt_attempt_next(run), MT_ACCUMULATE)));
	} else if (argc > 3) {
		size_t bytes = strtoull(argv[3], NULL, 10) << 20;
		char *p = malloc(bytes);
		MT_ASSERT(p);
		memset(p, 1, bytes);
	}
	puts("held");
	fflush(stdout);
	while (!mt_stopping) mt_wait(run, mt_event(run), 100);
	mt_run_close(run);
	return 0;
}
