/* link-choice: a stage whose device makes another choice on each node.
 *
 *     link-choice RUN N    enter N choices, of which all nodes have some in common, with values that name this node;
 *                          print what stands, a line for each */
#include <stdio.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "mt/choices.h"
#include "mt/error.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "mt/wait.h"

int main(int argc, char **argv)
{
	struct mt_run *run;
	if (argc != 3) mt_die(MT_EX_USAGE, "link-choice RUN N");
	mt_must(mt_run_attach(&run, argv[1], MT_RUN_CONTROL, -1, NULL));
	mt_must(mt_stage_claim(run, 5, NULL));
	uint32_t first[4];
	/* node 0 would be the fastest: it lets node 1 make its first choice */
	while (!mt_node(run) && !mt_choice_find(run, "choice 7", first, sizeof first)) mt_wait(run, mt_event(run), 10);
	for (uint32_t i = 0, n = (uint32_t)atoi(argv[2]); i < n; i++) {
		/* each node begins with another one, so that each is the first somewhere */
		uint32_t number = (i + mt_node(run) * 7) % n, value[4] = {number, mt_node(run), number, mt_node(run)};
		char key[32];
		snprintf(key, sizeof key, "choice %u", number);
		mt_must(mt_choice_enter(run, key, value, sizeof value));
		if (value[0] != number || value[2] != number || value[1] != value[3]) mt_die(1, "%s: a torn value", key);
		printf("%u: node %u's\n", number, value[1]);
	}
	mt_run_close(run);
	return 0;
}
