/* serve.c: writes each snapshot that mt-optim pins as a checkpoint, during training. The snapshot's word (step, state):
 *
 *     (n, pinned)   every unit is at version n and has pin n; mt-optim overwrites no pinned unit
 *        │ write each unit into the files, unsynced, then clear its pin by compare-and-swap
 *        │ complete all files, fsync them, read them back
 *     (n, sealed)   by compare-and-swap; from here on mt-optim can no longer fail the save
 *        │ rename, fsync the parent
 *     (n, saved)    then delete older checkpoints
 *
 * A failure before sealed is one compare-and-swap pinned -> failed, which invalidates all pins at once.
 *
 * On several nodes each does so with its part. Another node than 0 has sealed its part when its files are durable; then
 * mt-link ends the save there as node 0's ends (shm/link/saves.c). Node 0 seals when it has taken all parts. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#include "ckpt.h"
#include "cli/cli.h"
#include "mt/control.h"
#include "mt/ring.h"
#include "mt/run.h"
#include "mt/snapshot.h"
#include "mt/stage.h"
#include "mt/txn.h"
#include "mt/wait.h"

struct server {
	struct mt_run *run;
	struct mt_ring *ring;
	const char *path;
	int dirfd;
	bool made;
	uint64_t keep, shard;
	const char *best; /* --keep-best */
	struct shared shared;
	struct links links; /* tiles of a run with a tier */
	bool copy_tier;
	uint64_t step; /* that is saved */
	bool left;     /* another node: its files of a sealed save may still be where it left them */
};

/* ---- directories */

/* Is it a checkpoint of this run? */
static bool is_ours(const struct server *s, uint64_t step)
{
	char name[STEP_NAME];
	struct run_json json;
	json_t *root = NULL, *files;
	bool same;
	step_name(name, step);
	int fd = openat(s->dirfd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0) return false;
	same = run_json_read(fd, &json, &root, &files) == 0 && json.step == step &&
		!memcmp(json.run_id, mt_control(s->run)->h.run_id, sizeof json.run_id);
	json_decref(root);
	close(fd);
	return same;
}

/* A checkpoint of this step that is not of this run is damaged, or of another run: it is kept, as mt-store does it. */
static int set_aside(const struct server *s, uint64_t step)
{
	char name[STEP_NAME], aside[64];
	if (!step_is_in(s->dirfd, step) || is_ours(s, step)) return 0;
	step_name(name, step);
	int n = snprintf(aside, sizeof aside, "replaced.%s", name), rc;
	for (int i = 2; (rc = rename_new(s->dirfd, name, s->dirfd, aside)) < 0 && errno == EEXIST && i < 1000; i++)
		snprintf(aside + n, sizeof aside - (size_t)n, ".%d", i);
	if (rc < 0) return fail_errno(name);
	mt_say("%s/%s is not of this run: it is renamed to %s/%s", s->path, name, s->path, aside);
	return 0;
}

/* Delete all but the newest `keep` of the checkpoints up to `step`, and the best of the others. Later ones, from before
 * the run was loaded with an older checkpoint, stay. */
static void delete_older(const struct server *s, uint64_t step)
{
	uint64_t *all, *steps;
	char name[STEP_NAME];
	size_t n = steps_in(s->dirfd, &all);
	for (steps = all; n && *steps > step; n--) steps++;
	uint64_t best = UINT64_MAX;
	/* The older ones were evaluated before this step began. If the results cannot be read, nothing is lost. */
	if (s->best && n > s->keep && best_checkpoint(s->best, steps + s->keep, n - s->keep, &best) < 0) {
		mt_say("no old checkpoint is deleted: %s", mt_errmsg());
		n = 0;
	}
	for (size_t i = s->keep; i < n; i++) {
		if (steps[i] == best) continue;
		step_name(name, steps[i]);
		if (dir_remove(s->dirfd, name) < 0) mt_say("old checkpoint is not deleted: %s", mt_errmsg());
	}
	free(all);
}

/* ---- a save */

/* A unit is written, and its tiles are linked: mt-optim may overwrite it. */
static int unpin(void *arg, uint32_t unit)
{
	const struct server *s = arg;
	int rc = links_unit(&s->links, unit);
	return rc == 0 ? mt_snap_unpin(s->run, unit, s->step) : rc;
}

/* The next update has begun: it must not wait for the disk. */
static bool awaited(void *arg)
{
	const struct server *s = arg;
	return mt_run_step(s->run) != s->step;
}

/* The arrays, as far as this node writes them, and on node 0 the small files of the model */
static int write_arrays(struct server *s, struct out_dir *dir, enum mt_dtype dtype)
{
	struct writer w;
	int rc = writer_begin(&w, s->run, dir, dtype, WRITE_RESIDENT, s->shard, SERVE_THREADS);
	if (rc < 0) return rc;
	w.copied = unpin;
	w.awaited = awaited;
	w.arg = s;
	rc = writer_units(&w);
	if (rc == 0 && !mt_node(s->run)) rc = writer_end(&w);
	if (rc == 0) nonfinite_warn(&w.seen);
	writer_drop(&w);
	return rc;
}

/* run.json, when the others' files are moved into dir */
static int write_state(const struct server *s, struct out_dir *dir, struct run_json *json)
{
	char name[STEP_NAME];
	int rc = mt_nodes(s->run) > 1 ? out_sync(dir) : 0; /* while the others write */
	step_name(name, s->step);
	if (rc == 0 && mt_nodes(s->run) > 1) rc = parts_collect(s->run, s->dirfd, name, s->step, dir);
	if (rc < 0) return rc;
	state_unlogged(s->run, s->step, json->unlogged);
	return run_json_write(dir, json);
}

static int write_files(struct server *s, struct out_dir *dir)
{
	const struct mt_snapshot *snap = &mt_control(s->run)->snap;
	struct mt_committed at = {s->step, snap->t, snap->position};
	struct run_json json;
	uint32_t node = mt_node(s->run);
	int rc = state_read(s->run, &at, &json);
	if (rc == 0) rc = links_begin(&s->links, dir, s->step, at.t);
	if (rc == 0) rc = write_arrays(s, dir, json.dtype);
	if (rc == 0) rc = links_end(&s->links, &json);
	if (rc == 0) rc = node ? part_json_write(dir, s->step, node) : write_state(s, dir, &json);
	links_drop(&s->links);
	state_release(&json);
	if (rc == 0) rc = out_sync(dir);
	return rc == 0 && !node ? verify_written(dir->fd, mt_geometry(s->run), true) : rc;
}

/* The checkpoint has its name: count it, and delete older ones. */
static void finish(const struct server *s, uint64_t step)
{
	mt_snap_save(s->run, step);
	delete_older(s, step);
}

/* What another node than 0 has left in the directory, except for a save that node 0 may still take it for */
static void clean_part(struct server *s)
{
	s->left = mt_snap_state(mt_snap(s->run)) == MT_SEALED;
	if (!s->left) dir_clean_parts(s->dirfd, mt_node(s->run));
}

/* Everything but the name is durable when it is sealed. Another node's part keeps its name until node 0 takes it. */
static int save_files(struct server *s, const char *name)
{
	struct out_dir dir;
	uint32_t node = mt_node(s->run);
	if (node) clean_part(s);
	int rc = node ? out_begin_part(&dir, s->dirfd, s->path, name, node) : out_begin_at(&dir, s->dirfd, s->path, name);
	if (rc < 0) return rc;
	if ((rc = write_files(s, &dir)) == 0 && !mt_snap_seal(s->run, s->step))
		rc = mt_fail(MT_EX_PEER, "the snapshot was given up");
	bool sealed = rc == 0;
	uint64_t bytes = out_bytes(&dir);
	if (rc == 0 && !node) rc = set_aside(s, s->step);
	if (rc < 0) out_abort(&dir);
	else if (!node) rc = out_rename(&dir);
	else {
		out_leave(&dir);
		s->left = true;
	}
	if (rc < 0 && sealed) mt_snap_fail(s->run, mt_snap_word(s->step, MT_SEALED));
	if (rc < 0) return rc;
	mt_count(s->run, MT_CKPT_saves, 1);
	mt_count(s->run, MT_CKPT_bytes, bytes);
	if (!node) finish(s, s->step);
	return 0;
}

static void save(struct server *s, uint64_t step)
{
	char name[STEP_NAME];
	s->step = step;
	step_name(name, step);
	if (save_files(s, name) < 0 && mt_stage_mine(s->run)) {
		mt_say("step %llu is not saved: %s", (unsigned long long)step, mt_errmsg());
		mt_snap_fail(s->run, mt_snap_word(step, MT_PINNED));
	}
	mt_stage_activity(s->run, MT_ACT_IDLE, 0);
}

/* ---- recovery */

/* Finish or fail a save that the previous saver left behind. */
static void recover(struct server *s)
{
	uint64_t word = mt_snap(s->run), step = mt_snap_step(word);
	if (mt_node(s->run)) clean_part(s);
	else {
		dir_clean(s->dirfd, NULL);
		/* what nodes of a run on more nodes left behind: this run has no node that would delete it */
		for (uint32_t node = mt_nodes(s->run); node < MT_NODES; node++) dir_clean_parts(s->dirfd, node);
	}
	if (mt_snap_state(word) == MT_SEALED) {
		if (mt_node(s->run)) return; /* node 0 judges it */
		if (is_ours(s, step) && fsync(s->dirfd) == 0) finish(s, step);
		else mt_snap_fail(s->run, word);
	} else if (mt_snap_state(word) == MT_PINNED && !mt_snap_intact(s->run, step)) {
		/* a unit whose pin is cleared may have changed since, and the dead saver's copy of it is lost */
		mt_say("step %llu is not saved: its saver died", (unsigned long long)step);
		mt_snap_fail(s->run, mt_snap_word(step, MT_PINNED));
	}
}

/* ---- serving */

#define STOP_S 1.0 /* a request to stop the whole run has reached its other stages after this time */

/* mt-step, which was requested to stop when we were, may still request a save of the step that was open then. */
static bool may_request(const struct server *s, uint32_t open, double stop)
{
	uint64_t word = mt_txn_word(s->run, open);
	bool is_open = mt_word_k(word) == open && mt_word_phase(word) == MT_ACCUMULATE;
	return (is_open || mt_now() - stop < STOP_S) && mt_stage_alive(s->run, MT_STEP);
}

/* A step with a requested save is committed but not yet pinned. Either of the two transactions may be this step's: the
 * next step may be open already. */
static bool save_is_coming(const struct server *s)
{
	for (uint32_t i = 0; i < 2; i++) {
		enum mt_phase p = mt_word_phase(mt_txn_word(s->run, i));
		if ((p == MT_APPLY || p == MT_SKIP) && mt_txn(s->run, i)->save && mt_stage_alive(s->run, MT_OPTIM)) return true;
	}
	return false;
}

static void drain(const struct server *s)
{
	struct mt_msg msg;
	const void *block;
	while (mt_ring_peek(s->ring, 0, &msg, &block))
		mt_ring_pop(s->ring); /* only a wake-up: the snapshot's word holds the request */
}

/* What this node has sealed waits for node 0's word, which mt-link brings. */
static bool is_pending(const struct server *s)
{
	return mt_node(s->run) && mt_snap_state(mt_snap(s->run)) == MT_SEALED && mt_stage_alive(s->run, MT_LINK);
}

static int serve(struct server *s)
{
	uint32_t open = 0; /* the newest transaction when we were requested to stop */
	double stop = 0;   /* time of that request; 0: none */
	int rc = mt_run_check(s->run);
	if (rc < 0) return rc;
	recover(s);
	mt_stage_activity(s->run, MT_ACT_IDLE, 0);
	for (;;) {
		uint32_t seen = mt_event(s->run);
		if ((rc = mt_stage_check(s->run)) < 0) return rc;
		drain(s);
		if ((rc = shared_look(&s->shared)) < 0) return rc;
		if (mt_stopping && !stop) {
			open = mt_txn_newest(s->run);
			stop = mt_now();
		}
		/* The order matters: a step is first open, then committed, and pinned before it is done. A step that one
		 * check just misses is found by the next one, or by reading the word. */
		bool leave = stop && !may_request(s, open, stop) && !save_is_coming(s) && !is_pending(s);
		uint64_t word = mt_snap(s->run);
		if (mt_snap_state(word) == MT_PINNED) {
			save(s, mt_snap_step(word));
			continue;
		}
		if (s->left && mt_snap_state(word) != MT_SEALED) clean_part(s);
		if (mt_run_state(s->run) == MT_GONE || leave) return 0;
		if ((rc = mt_ring_check(s->ring)) < 0) return rc;
		/* only a load repairs it, and load requires that no stage is running */
		if ((rc = mt_run_dirty(s->run)) < 0) return rc;
		/* once requested to stop, it waits for steps, too */
		mt_wait_on(s->run, seen, 500, mt_ring_on_messages(s->ring) | MT_ON_SNAP | (stop ? MT_ON_TXN : 0));
	}
}

/* What would fail when the first checkpoint is due. Another process may just have made the directory: checkpoints in it
 * are only as durable as its name. */
static int check_dir(const struct server *s)
{
	return faccessat(s->dirfd, ".", W_OK | X_OK, AT_EACCESS) < 0 ? fail_errno(s->path) : dir_sync_names(s->dirfd);
}

static int open_dir(struct server *s)
{
	int rc;
	s->made = mkdir(s->path, 0777) == 0;
	if (!s->made && errno != EEXIST) return fail_errno(s->path);
	rc = dir_open(s->path, &s->dirfd);
	if (rc == 0 && (rc = check_dir(s)) < 0) close(s->dirfd);
	if (rc < 0 && s->made) rmdir(s->path);
	return rc;
}

static int serve_run(struct server *s)
{
	int rc = shared_begin(&s->shared, s->run, s->path, s->dirfd);
	if (rc == 0) rc = mt_stage_claim(s->run, MT_CKPT, NULL);
	bool stopped = rc > 0 || (rc == -MT_EX_BUSY && mt_stopping);
	if (rc == 0 && (rc = links_open(&s->links, s->run, s->dirfd, s->path, s->copy_tier)) == 0 &&
		(rc = mt_ring_open(s->run, "save", &s->ring)) == 0) {
		rc = serve(s);
		mt_ring_close(s->ring);
	}
	links_close(&s->links);
	shared_end(&s->shared);
	return stopped ? 0 : rc;
}

int ckpt_serve(const char *name, const char *path, uint64_t keep, const char *best, uint64_t shard, bool copy_tier)
{
	struct server s = {.path = path, .dirfd = -1, .keep = keep, .best = best, .shard = shard, .copy_tier = copy_tier};
	int rc = open_dir(&s);
	if (rc < 0) return rc;
	rc = mt_run_attach(&s.run, name, MT_RUN_RINGS | MT_RUN_WEIGHTS, -1, &mt_stopping);
	if (rc == -MT_EX_BUSY && mt_stopping) rc = 0;
	else if (rc == 0) {
		rc = mt_run_has_state(s.run);
		if (rc == 0) rc = serve_run(&s);
		mt_run_close(s.run);
	}
	close(s.dirfd);
	if (s.made) (void)rmdir(path); /* if it is still empty */
	return rc;
}
