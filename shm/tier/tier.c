/* mt-tier: tiles of lo, m and v between the run's slots and their files, while the run is trained. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "mt/control.h"
#include "mt/error.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "mt/txn.h"
#include "mt/wait.h"
#include "tier.h"

/* ---- options */

enum { THREADS = 16, THREADS_MAX = 256 };
static uint64_t threads = THREADS, bench_bytes;
static double seconds = 60;
static const char *io = "threads", *move, *bench_dir;

static const struct mt_opt options[] = {
	{"threads", OPT_U64, &threads, "N", "readers of each directory, and as many writers", .least = 1,
		.most = THREADS_MAX},
	{"engine", OPT_CHOICE, &io, "threads", "how files are read and written: by threads with direct I/O"},
	{"dir", OPT_STR, &move, "OLD=NEW", "first move the tiles that are in directory OLD to NEW, another drive"},
	{"bench", OPT_STR, &bench_dir, "DIR",
		"measure DIR's drive as a training would use it; prints JSON, and writes it to DIR/mt-tier-bench.json"},
	{"seconds", OPT_DOUBLE, &seconds, "S", "at least so long", .with = "--bench"},
	{"bytes", OPT_SIZE, &bench_bytes, "BYTES", "in files of this size (default: half of the room, at most 64G)",
		.with = "--bench"},
	{0},
};

static const struct mt_program program = {
	.name = "mt-tier",
	.usage = "mt-tier [RUN] [options]\n"
			 "mt-tier --bench DIR [options]",
	.about = "Brings the tiles of a run that mt-store create --tier made from their files into memory for mt-optim,\n"
			 "and what it has updated back. Runs until SIGTERM or SIGINT, or until the run is gone.",
	.opts = options,
};

/* ---- start */

/* What a predecessor was writing when it died: its slot has the tile still */
static void delete_new(const struct tier *t)
{
	for (uint32_t i = 0; i < t->control->tier.tiles; i++) {
		char name[MT_TILE_NAME + 4];
		mt_tile_name(t->run, i, name);
		strcat(name, ".new");
		(void)unlinkat(t->fds[i % t->control->tier.dirs], name, 0);
	}
}

static int make_jobs(struct tier *t)
{
	struct mt_tile tile = mt_tile(t->run, 0);
	uint32_t most = mt_tile_chunks(&tile);
	for (uint32_t i = 1; i < t->control->tier.tiles; i++) {
		tile = mt_tile(t->run, i);
		if (mt_tile_chunks(&tile) > most) most = mt_tile_chunks(&tile);
	}
	uint64_t *sums = calloc((size_t)t->control->tier.slots * most, sizeof *sums);
	t->jobs = calloc(t->control->tier.slots, sizeof *t->jobs);
	if (!t->jobs || !sums) return mt_fail(MT_EX_NOMEM, "no memory for %u slots", t->control->tier.slots);
	for (uint32_t i = 0; i < t->control->tier.slots; i++) t->jobs[i].sum = sums + (size_t)i * most;
	return 0;
}

static void start(struct tier *t, const char *name)
{
	int rc = mt_run_attach(&t->run, name, MT_RUN_WEIGHTS, -1, &mt_stopping);
	if (rc < 0 && mt_stopping) exit(0);
	mt_must(rc);
	t->control = mt_control(t->run);
	if (!mt_tier_any(t->run)) mt_die(MT_EX_CONFIG, "run '%s' has no tier: mt-store create --tier", name);
	rc = mt_stage_claim(t->run, MT_TIER, NULL);
	if (rc < 0 && mt_stopping) exit(0);
	mt_must(rc);
	if (mt_run_state(t->run) == MT_GONE) return;
	mt_stage_activity(t->run, MT_ACT_STARTING, 0);
	mt_must(mt_tier_check(t->run));
	if (move) mt_must(move_dir(t, move));
	for (uint32_t i = 0; i < t->control->tier.dirs; i++) mt_must(mt_tier_open(t->run, i, &t->fds[i]));
	delete_new(t);
	mt_must(make_jobs(t));
	t->reading = mt_tier_at(t->run, MT_LOADED);
	t->writing = mt_tier_at(t->run, MT_WRITTEN);
	t->drive = drive_start(t, (uint32_t)threads);
	if (!t->drive) mt_die(MT_EX_NOMEM, "%llu threads cannot be started: --threads", (unsigned long long)threads);
}

/* ---- end */

/* The slot is left when no transfer is under way: a successor may begin at once. */
static _Noreturn void leave(struct tier *t, int ex, const char *why)
{
	if (t->drive) drive_stop(t->drive);
	mt_run_close(t->run);
	if (why) mt_die(ex, "%s", why);
	exit(ex);
}

static void leave_with(struct tier *t, int rc)
{
	char why[1024];
	if (!rc) return;
	snprintf(why, sizeof why, "%s", mt_errmsg());
	leave(t, -rc, why);
}

static void leave_if_over(struct tier *t)
{
	int over = mt_stage_over(t->run);
	if (over > 0) leave(t, 0, NULL);
	leave_with(t, over);
	leave_with(t, mt_tier_check(t->run));
}

static void leave_if_failed(struct tier *t)
{
	const struct job *j = drive_failed(t->drive);
	if (!j) return;
	leave_if_over(t); /* the fence */
	if (j->lost) mt_run_set_state(t->run, MT_DIRTY);
	leave(t, j->ex, j->why);
}

static enum mt_phase phase_of(const struct tier *t, uint32_t k)
{
	uint64_t word = mt_txn_word(t->run, k);
	return mt_word_k(word) == k ? mt_word_phase(word) : MT_CLOSED;
}

/* Asked to stop: go on until the steps that are open now are applied, which mt-optim does when it is asked to stop. */
static bool awaited(struct tier *t)
{
	if (!t->stop_requested) t->leave_after = mt_txn_newest(t->run);
	t->stop_requested = true;
	if (!mt_stage_alive(t->run, MT_OPTIM)) return false;
	uint32_t k = t->leave_after;
	return (k && phase_of(t, k - 1) == MT_APPLY) || phase_of(t, k) == MT_APPLY ||
		(phase_of(t, k) == MT_ACCUMULATE && mt_stage_alive(t->run, MT_STEP));
}

/* ---- serve */

static void counted(struct tier *t, enum mt_tier_word w, uint64_t q)
{
	if (mt_tier_count(t->run, w, q)) return;
	leave_if_over(t);
	leave(t, MT_EX_DATA, "the tier's counters were changed by another process");
}

/* Count what is done, in the order of q; true if anything was */
static bool count_done(struct tier *t)
{
	bool any = false;
	for (uint64_t q; drive_done(t->drive, q = mt_tier_at(t->run, MT_LOADED), false); any = true) {
		counted(t, MT_LOADED, q);
		mt_count(t->run, MT_TIER_tiles_read, 1);
	}
	for (uint64_t q; drive_done(t->drive, q = mt_tier_at(t->run, MT_WRITTEN), true); any = true) {
		counted(t, MT_WRITTEN, q);
		mt_count(t->run, MT_TIER_tiles_written, 1);
	}
	return any;
}

/* Give the drive what it may do now; true if there was anything */
static bool give(struct tier *t, bool read)
{
	uint64_t updated = mt_tier_at(t->run, MT_UPDATED), end = mt_tier_at(t->run, MT_WRITTEN) + t->control->tier.slots;
	bool any = false;
	for (; t->writing < updated; any = true) drive_give(t->drive, t->writing++, true);
	for (; read && t->reading < end; any = true) drive_give(t->drive, t->reading++, false);
	return any;
}

static void say_activity(struct tier *t)
{
	uint64_t written = mt_tier_at(t->run, MT_WRITTEN), loaded = mt_tier_at(t->run, MT_LOADED);
	if (written < t->writing) mt_stage_activity(t->run, MT_ACT_WRITE_TILE, written % t->control->tier.tiles);
	else if (loaded < t->reading) mt_stage_activity(t->run, MT_ACT_READ_TILE, loaded % t->control->tier.tiles);
	else mt_stage_activity(t->run, MT_ACT_IDLE, 0);
}

static void say_if_hangs(struct tier *t)
{
	const double every = 10;
	static double reported;
	char name[MT_TILE_NAME];
	double since;
	if (!drive_hangs(t->drive, every, name, &since)) reported = 0;
	else if (mt_now() - reported >= every) {
		mt_say("the drive does not answer: %s for %.0f s", name, since);
		reported = mt_now();
	}
}

static bool idle(const struct tier *t)
{
	return mt_tier_at(t->run, MT_LOADED) == t->reading && mt_tier_at(t->run, MT_WRITTEN) == t->writing &&
		mt_tier_at(t->run, MT_UPDATED) == t->writing;
}

static void serve(struct tier *t)
{
	double looked = mt_now();
	for (;;) {
		uint32_t seen = mt_event(t->run);
		leave_if_over(t);
		leave_if_failed(t);
		bool stop = mt_stopping && !awaited(t);
		bool done = count_done(t), given = give(t, !stop);
		if (stop && idle(t)) return;
		if (stop && drive_has_no_room(t->drive))
			leave(t, MT_EX_IO, "stopped while there was no room for a tile: it stays in memory; start mt-tier again");
		if (done || given) continue;
		say_activity(t);
		mt_wait_on(t->run, seen, 100, MT_ON_TIER | MT_ON_STAGE);
		if (mt_now() - looked < 0.1) continue;
		looked = mt_now();
		mt_count(t->run, MT_TIER_transfer_ns, drive_busy_ns(t->drive));
		drive_poke(t->drive);
		say_if_hangs(t);
	}
}

int main(int argc, char **argv)
{
	static struct tier tier;
	struct tier *t = &tier;
	const char *run = NULL;
	int n = mt_cli(&program, argc, argv, &run, 1);
	if (bench_dir && (n || move)) mt_die(MT_EX_USAGE, "--bench takes no RUN and no --dir");
	if (bench_dir) return bench(bench_dir, (uint32_t)threads, seconds, bench_bytes);
	mt_signals(true);
	start(t, mt_cli_run(run));
	if (t->drive) serve(t);
	mt_count(t->run, MT_TIER_transfer_ns, t->drive ? drive_busy_ns(t->drive) : 0);
	leave(t, 0, NULL);
}
