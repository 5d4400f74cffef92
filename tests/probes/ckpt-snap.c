/* ckpt-snap: plays mt-optim's side of a snapshot.
 *
 *     ckpt-snap RUN STEP              pin every unit at STEP and request a save; overwrite each unit as soon as its pin
 *                                     is cleared; print "saved" or "failed" when the word has that state
 *     ckpt-snap RUN STEP pin          pin, request a save and exit
 *     ckpt-snap RUN STEP unpin UNIT   as after a saver that died: the unit's pin is cleared, its content changes
 *     ckpt-snap RUN STEP seal         set the word to sealed and exit
 *     ckpt-snap RUN STEP give-up UNIT pin, and fail the save as mt-optim does when UNIT's pin is cleared
 *     ckpt-snap RUN word              print the word as STEP STATE, then the numbers of saved and failed ones
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "ckpt-common.h"
#include "cli/cli.h"
#include "mt/ring.h"
#include "mt/snapshot.h"
#include "mt/tier.h"
#include "mt/wait.h"

static struct mt_run *run;

static void pin_all(uint64_t step)
{
	struct mt_snapshot *s = &mt_control(run)->snap;
	struct mt_ring *ring;
	struct mt_msg msg = {.kind = MT_MSG_SAVE, .step = step};
	s->t = step - 1;
	s->position = some_position(step);
	for (uint32_t u = 0; u < mt_control(run)->n_units; u++) atomic_store(&mt_unit(run, u)->pin, step);
	atomic_store(&s->word, mt_snap_word(step, MT_PINNED));
	mt_must(mt_ring_open(run, "save", &ring));
	if (mt_ring_reserve(ring)) mt_ring_push(ring, &msg);
	mt_ring_close(ring);
	mt_wake(run);
}

/* As mt-tier does: a file that a checkpoint has linked is not written, a new one takes its name. w alone changes in
 * memory */
static void overwrite_tiles(const struct mt_unit *unit)
{
	for (uint32_t i = unit->first_tensor; i < unit->first_tensor + unit->tensors; i++)
		memset((uint8_t *)mt_at(run, unit->w) + mt_tensor(run, i)->off * 2, 0x11, mt_tensor(run, i)->n * 2);
	for (uint32_t i = unit->first_tile; i < unit->first_tile + unit->tiles; i++) {
		char name[MT_TILE_NAME], new[MT_TILE_NAME + 4];
		int dir, fd;
		mt_tile_name(run, i, name);
		snprintf(new, sizeof new, "%s.new", name);
		mt_must(mt_tier_open(run, mt_tile(run, i).dir, &dir));
		mt_must(mt_tile_create(run, i, dir, new, &fd));
		if (renameat(dir, new, dir, name)) abort();
		close(fd);
		close(dir);
	}
}

static void overwrite_unpinned(uint64_t step, bool *done)
{
	for (uint32_t u = 0; u < mt_control(run)->n_units; u++)
		if (!done[u] && !atomic_load(&mt_unit(run, u)->pin)) {
			if (mt_unit(run, u)->tiles) overwrite_tiles(mt_unit(run, u));
			else scribble(run, u, step + 77);
			done[u] = true;
		}
}

static int watch(uint64_t step, int give_up)
{
	struct mt_snapshot *s = &mt_control(run)->snap;
	bool *done = calloc(mt_control(run)->n_units, sizeof *done);
	double start = mt_now();
	while (mt_now() - start < 30) {
		uint32_t seen = mt_event(run);
		uint64_t word = atomic_load(&s->word);
		overwrite_unpinned(step, done);
		if (give_up >= 0 && done[give_up]) {
			uint64_t expect = mt_snap_word(step, MT_PINNED);
			atomic_compare_exchange_strong(&s->word, &expect, mt_snap_word(step, MT_FAILED));
			give_up = -1;
		}
		if (word == mt_snap_word(step, MT_SAVED) || word == mt_snap_word(step, MT_FAILED)) {
			printf("%s\n", word == mt_snap_word(step, MT_SAVED) ? "saved" : "failed");
			free(done);
			return 0;
		}
		mt_wait(run, seen, 50);
	}
	mt_die(MT_EX_PEER, "nobody saved step %" PRIu64, step);
}

int main(int argc, char **argv)
{
	static const char *const states[] = {"none", "pinned", "sealed", "saved", "failed"};
	if (argc < 3) mt_die(MT_EX_USAGE, "usage: ckpt-snap RUN STEP|word [pin | unpin UNIT | seal | give-up UNIT]");
	mt_must(mt_run_open(&run, argv[1], MT_RUN_RINGS | MT_RUN_WEIGHTS));
	struct mt_snapshot *s = &mt_control(run)->snap;
	uint64_t step = strtoull(argv[2], NULL, 10);
	const char *what = argc > 3 ? argv[3] : "";
	int rc = 0;

	if (!strcmp(argv[2], "word"))
		printf("%" PRIu64 " %s %" PRIu64 " %" PRIu64 "\n", s->word >> 8, states[s->word & 7], s->saved,
			mt_snap_failures(run));
	else if (argc == 3 || !strcmp(what, "give-up")) {
		pin_all(step);
		rc = watch(step, argc > 4 ? atoi(argv[4]) : -1);
	} else if (!strcmp(what, "pin")) pin_all(step);
	else if (!strcmp(what, "unpin") && argc == 5) {
		atomic_store(&mt_unit(run, (uint32_t)atoi(argv[4]))->pin, 0);
		scribble(run, (uint32_t)atoi(argv[4]), step + 77);
	} else if (!strcmp(what, "seal")) atomic_store(&s->word, mt_snap_word(step, MT_SEALED));
	else mt_die(MT_EX_USAGE, "unknown command '%s'", what);
	mt_run_close(run);
	return rc;
}
