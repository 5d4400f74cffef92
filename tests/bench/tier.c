/* tier: plays mt-optim beside mt-tier: changes a byte of each page of the tiles that come, and counts them.
 *
 *     tier RUN SECONDS     then prints bytes a second, read and written together */
#include <stdio.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "mt/control.h"
#include "mt/run.h"
#include "mt/tier.h"
#include "mt/wait.h"

/* The tile of q, once it is loaded; its bytes. 0: the time is over */
static uint64_t update(struct mt_run *run, uint64_t q, double until)
{
	struct mt_tile t = mt_tile(run, (uint32_t)(q % mt_control(run)->tier.tiles));
	uint8_t *slot = mt_tile_slot(run, q);
	for (;;) {
		uint32_t seen = mt_event(run);
		if (mt_now() > until) return 0;
		if (mt_tier_at(run, MT_LOADED) > q) break;
		mt_wait_on(run, seen, 100, MT_ON_TIER);
	}
	for (uint64_t at = 0; at < t.seal; at += 4096) slot[at]++;
	if (!mt_tier_count(run, MT_UPDATED, q)) mt_die(70, "another process has updated tiles");
	return t.bytes;
}

int main(int argc, char **argv)
{
	struct mt_run *run;
	if (argc != 3) mt_die(64, "usage: tier RUN SECONDS");
	mt_must(mt_run_open(&run, argv[1], MT_RUN_WEIGHTS));
	uint64_t q = mt_tier_at(run, MT_UPDATED), tiles = mt_control(run)->tier.tiles, end = q + tiles, bytes = 0, n;
	while (q < end && update(run, q, mt_now() + 600)) q++; /* the first pass writes where nothing was written before */
	double began = mt_now(), seconds = atof(argv[2]);
	for (; (n = update(run, q, began + seconds)); q++) bytes += n;
	printf("%.0f\n", 2 * (double)bytes / (mt_now() - began));
	mt_run_close(run);
	return 0;
}
