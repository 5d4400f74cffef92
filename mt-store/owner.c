/* owner.c: the end of a run whose owner has died. serve --until-eof reads its stdin, a pipe whose write end its owner
 * alone keeps: the kernel closes that end however the owner dies, so that the end of file needs nobody to send it.
 *
 *     mt-step     gets a signal to stop (USR1: scripts let their stages ignore the others): it finishes the open step,
 *                 and requests a checkpoint of it
 *     the others  are left to it until no step is open, no checkpoint is being written, and a tier's files have what
 *                 was updated
 *     the state   is saved by mt-ckpt save, if DIR has no checkpoint of its step
 *     the run     is removed, which ends the stages; if it could not be saved it stays, and they get a signal to stop
 *
 * TERM, INT or HUP give up the open step; a second one gives up the update or the checkpoint under way.
 *
 * One of several nodes has a part of the state. Its run stays if the owner writes "unsaved" and the save of its newest
 * step has failed.
 *
 * An owner that ends in order writes the line "over" before it closes the pipe: then only errors are reported, and
 * signals stay as they were. Its mt-step has ended, so the first USR1 gives up the update or the checkpoint. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "mt/control.h"
#include "mt/error.h"
#include "mt/run.h"
#include "mt/snapshot.h"
#include "mt/stage.h"
#include "mt/tier.h"
#include "mt/txn.h"
#include "store.h"

enum { SAVE_TRIES = 5, SAVE_PAUSE_MS = 500, LEAVE_MS = 10000, TICK_MS = 50 };

extern char **environ;
static bool counts_signals; /* since owner_signals */

int owner_check(const struct store_options *o)
{
	struct stat st;
	if (!o->until_eof) return 0;
	if (!o->dir) return mt_fail(MT_EX_USAGE, "--until-eof needs --dir DIR");
	/* /dev/null, the stdin of a script's background processes, ends at once */
	if (fstat(STDIN_FILENO, &st) || !(S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode) || isatty(STDIN_FILENO)))
		return mt_fail(MT_EX_USAGE,
			"--until-eof: stdin is not a pipe; its end is the signal that the run's owner is gone");
	/* a warning only: it may be created before the end; if not, the run is kept, as whenever saving fails */
	if (access(o->dir, W_OK)) mt_say("%s: %s: nothing can be saved there", o->dir, strerror(errno));
	return 0;
}

bool owner_gone(struct owner_end *e)
{
	char drop[256];
	struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
	if (poll(&in, 1, 0) <= 0) return false;
	ssize_t n = read(STDIN_FILENO, drop, sizeof drop);
	if (n > 0 && memmem(drop, (size_t)n, "failed\n", 7)) e->failed = true;
	if (n > 0 && memmem(drop, (size_t)n, "unsaved\n", 8)) e->unsaved = true;
	if (n > 0 && memmem(drop, (size_t)n, "over\n", 5)) {
		e->in_order = true;
		e->insisted = 1; /* the step is over: a signal refers to the update or checkpoint */
	}
	return n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN);
}

/* ---- waiting */

static void send(struct mt_run *run, int slot, int sig)
{
	int pid = mt_stage_pid(run, slot);
	if (pid && mt_stage_alive(run, slot) && mt_stage_pid_here(run, slot)) kill(pid, sig);
}

/* Each holder of mt-step's slot gets one request to stop, and is killed when the user does not want to wait: it owns
 * no state. */
static void tell_step(struct mt_run *run, uint64_t *requested, bool insist)
{
	uint64_t word = mt_stage_word(run, MT_STEP);
	if (insist) send(run, MT_STEP, SIGKILL);
	else if (word != *requested) send(run, MT_STEP, SIGUSR1);
	*requested = word;
}

static bool saver_at_work(struct mt_run *run) { return mt_snap_busy(mt_snap(run)) && mt_stage_alive(run, MT_CKPT); }

/* A program of mt's, where PATH has it, or else beside this one. Signals to a process group are ours to judge. */
static int start(char *const argv[], pid_t *pid)
{
	char program[4200];
	ssize_t n = readlink("/proc/self/exe", program, sizeof program - 16);
	if (n < 0) n = 0;
	program[n] = 0;
	char *slash = strrchr(program, '/');
	strcpy(slash ? slash + 1 : program, argv[0]);
	static const int sigs[] = {SIGHUP, SIGINT, SIGTERM};
	for (int i = 0; i < 3 && counts_signals; i++) signal(sigs[i], SIG_IGN);
	int rc = posix_spawnp(pid, argv[0], NULL, NULL, argv, environ);
	if (rc) rc = posix_spawn(pid, program, NULL, NULL, argv, environ);
	if (counts_signals) owner_signals();
	return rc ? mt_fail(MT_EX_IO, "%s cannot be started: %s", argv[0], strerror(rc)) : 0;
}

/* Is a program, started once, still there? pid 0: it is to be started; -1: it cannot be */
static bool replaced(char *const argv[], pid_t *pid)
{
	if (!*pid && start(argv, pid)) *pid = -1;
	return *pid > 0 && waitpid(*pid, NULL, WNOHANG) == 0;
}

/* Tiles of a tier are read for an update that has begun, and then written, by mt-tier. If that has died, and nobody has
 * started it again by now, another one is started, once. Is there none, although tiles wait for it? */
static bool tier_missing(struct mt_run *run, const char *name, struct owner_end *e)
{
	if (!mt_tier_any(run) || (mt_run_quiet(run) && mt_tier_settled(run) == 0) || mt_stage_alive(run, MT_TIER))
		return false;
	char *argv[] = {"mt-tier", (char *)name, NULL};
	return !(e->replaceable[MT_TIER] && mt_run_state(run) == MT_FILLED && replaced(argv, &e->tier));
}

/* An update that has begun is finished by mt-optim. Of that, too, another one is started. */
static bool update_at_work(struct mt_run *run, const char *name, struct owner_end *e)
{
	if (mt_run_quiet(run)) return false;
	if (mt_stage_alive(run, MT_OPTIM)) return true;
	if (!e->replaceable[MT_OPTIM] || mt_run_state(run) != MT_FILLED || mt_nodes(run) > 1 ||
		mt_stage_alive(run, MT_STEP))
		return false;
	char *argv[] = {"mt-optim", (char *)name, NULL};
	return replaced(argv, &e->optim);
}

/* A snapshot that is whole is saved by a mt-ckpt alone, and an update may wait for that. */
static void replace_saver(struct mt_run *run, const char *name, struct owner_end *e)
{
	char *argv[] = {"mt-ckpt", "serve", (char *)name, "--dir", (char *)e->dir, NULL};
	if (mt_snap_busy(mt_snap(run)) && !mt_stage_alive(run, MT_CKPT) && !mt_run_quiet(run) && e->replaceable[MT_CKPT] &&
		mt_nodes(run) == 1)
		replaced(argv, &e->saver);
}

/* What has begun is finished. Without mt-tier, mt-optim and mt-ckpt would wait for ever. */
static bool state_at_work(struct mt_run *run, const char *name, struct owner_end *e)
{
	if (tier_missing(run, name, e)) return false;
	replace_saver(run, name, e);
	return update_at_work(run, name, e) || saver_at_work(run) || (mt_tier_any(run) && mt_tier_settled(run));
}

bool owner_end_turn(struct mt_run *run, const char *name, struct owner_end *e)
{
	bool insist = mt_stopping;
	mt_stopping = 0;
	e->insisted += insist;
	tell_step(run, &e->requested, insist);
	send(run, MT_FILL, SIGKILL); /* a half-filled run has no training to save */
	if (e->insisted > 1) return true;
	return !(mt_stage_alive(run, MT_STEP) || mt_stage_alive(run, MT_FILL) || state_at_work(run, name, e));
}

/* ---- saving */

static void step_dir(char *path, size_t n, const char *dir, uint64_t step)
{
	snprintf(path, n, "%s/step-%08llu", dir, (unsigned long long)step);
}

/* Was no step trained since the run was filled? Then the state is still where it was loaded from. */
static bool is_as_filled(struct mt_run *run)
{
	uint32_t k = mt_txn_newest(run);
	return k == 0 || mt_control(run)->state == MT_NONE ||
		(k == 1 && (mt_word_phase(mt_txn_word(run, k)) == MT_ACCUMULATE || mt_txn(run, k)->kind == MT_EVAL));
}

/* As a shell reads it, to be freed; NULL: no memory */
static char *quoted(const char *s)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:=,@%+-";
	char *text = malloc(4 * strlen(s) + 3), *at = text;
	if (!text) return NULL;
	if (*s && !s[strspn(s, plain)]) return strcpy(text, s);
	*at++ = '\'';
	for (; *s; s++)
		if (*s == '\'') at = stpcpy(at, "'\\''");
		else *at++ = *s;
	strcpy(at, "'");
	return text;
}

/* By this run's saver, or by mt-ckpt save: then run.json names this run. */
static bool is_saved(struct mt_run *run, const char *path, uint64_t step)
{
	char json[4300], id[33];
	if (mt_snap(run) == mt_snap_word(step, MT_SAVED)) return true;
	run_id_text(run, id);
	snprintf(json, sizeof json, "%s/run.json", path);
	int fd = mt_open_own(json, O_RDONLY);
	if (fd < 0) return false;
	json_t *root = json_loadfd(fd, 0, NULL);
	close(fd);
	const char *of = json_string_value(json_object_get(root, "run_id"));
	bool ours = of && strcmp(of, id) == 0;
	json_decref(root);
	return ours;
}

/* A directory that has the name, and is not this run's checkpoint, is damaged or of another run: it is kept aside. */
static void set_aside(const char *path, const char *dir, uint64_t step)
{
	char aside[4300];
	int n = snprintf(aside, sizeof aside, "%s/replaced.step-%08llu", dir, (unsigned long long)step);
	if (access(path, F_OK)) return;
	for (int i = 2; access(aside, F_OK) == 0 && i < 1000; i++) snprintf(aside + n, sizeof aside - (size_t)n, ".%d", i);
	if (rename(path, aside) == 0) mt_say("%s is not of this run: it is renamed to %s", path, aside);
}

static int save_once(const char *name, const char *path)
{
	char *argv[] = {"mt-ckpt", "save", (char *)name, (char *)path, NULL};
	pid_t pid;
	int status, rc = start(argv, &pid);
	if (rc) return rc;
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		if (mt_stopping) kill(pid, SIGKILL); /* what it wrote so far is deleted by the next mt-ckpt there */
	if (WIFEXITED(status)) return -WEXITSTATUS(status);
	return mt_fail(MT_EX_IO, "mt-ckpt was killed by signal %d", WTERMSIG(status));
}

/* Has the disk no room for what a checkpoint has of all units? */
static bool is_full(const struct mt_run *run, const char *dir)
{
	const struct mt_control *c = mt_control(run);
	struct statvfs fs;
	uint64_t bytes = 0;
	for (uint32_t u = 0; u < c->n_units; u++) {
		uint64_t elems = mt_unit(run, u)->params;
		bytes += mt_dtype_bytes(c->dtype) * elems;
		if (!mt_trained(mt_unit(run, u))) continue;
		bytes += (4 - mt_dtype_bytes(c->dtype)) * elems +
			(uint64_t)mt_state_arrays(c->optim) * mt_state_bytes(c->state, elems - elems % MT_GROUP);
	}
	return !statvfs(dir, &fs) && (uint64_t)fs.f_bavail * fs.f_frsize < bytes;
}

/* 0: DIR has the newest step, or there is nothing to keep */
static int save(struct mt_run *run, const char *name, const char *dir, uint64_t step)
{
	char path[4200];
	int rc = -MT_EX_BUSY;
	step_dir(path, sizeof path, dir, step);
	if (!step || is_saved(run, path, step)) return 0;
	set_aside(path, dir, step);
	for (int i = 0; i < SAVE_TRIES && rc == -MT_EX_BUSY && !mt_stopping; i++) {
		if (i) poll(NULL, 0, SAVE_PAUSE_MS);
		rc = save_once(name, path);
	}
	return rc;
}

/* ---- leaving */

void owner_signals(void)
{
	static const int sigs[] = {SIGHUP, SIGINT, SIGTERM};
	for (int i = 0; i < 3; i++) signal(sigs[i], SIG_DFL);
	mt_signals(false);
	counts_signals = true;
}

/* Wait until every stage has left the run, so that DIR is no longer in use when we end */
static void wait_left(struct mt_run *run, bool tell)
{
	for (int ms = 0; ms < LEAVE_MS && !mt_stopping; ms += TICK_MS) {
		bool live = false;
		for (int slot = 0; slot < MT_SLOTS; slot++) {
			if (slot == MT_STORE || !mt_stage_alive(run, slot)) continue;
			live = true;
			if (tell && ms == 0) send(run, slot, SIGUSR1);
		}
		if (!live) return;
		poll(NULL, 0, TICK_MS);
	}
}

int owner_end_run(struct mt_run *run, const char *name, const char *dir, const struct owner_end *e)
{
	enum mt_state state = mt_run_state(run);
	/* half-filled and dirty weights are no state, nor is half a step, and one of several nodes has a part of it */
	bool parted = mt_nodes(run) > 1;
	uint64_t half = state == MT_FILLED ? mt_run_half(run) : 0;
	uint64_t step = state == MT_FILLED && !half && !is_as_filled(run) && !parted ? mt_run_step(run) : 0;
	int rc = save(run, name, dir, step);
	mt_stopping = 0;
	/* its part is saved by hand, when all nodes' are: the owner says how */
	if (parted && e->unsaved && state == MT_FILLED && mt_snap(run) == mt_snap_word(mt_run_step(run), MT_FAILED)) {
		wait_left(run, true);
		return mt_fail(MT_EX_IO, "run '%s' stays: its step %llu is not saved", name,
			(unsigned long long)mt_run_step(run));
	}
	if (rc) {
		char path[4200], *words;
		bool full = is_full(run, dir);
		step_dir(path, sizeof path, full ? "DIRECTORY-ON-ANOTHER-DISK" : dir, step);
		wait_left(run, true);
		words = quoted(path);
		mt_fail(-rc, "run '%s' stays%s; save and remove it: mt-ckpt save %s %s && mt-store rm %s --force", name,
			full ? ", since the disk is full" : "", name, words ? words : path, name);
		free(words);
		return rc;
	}
	rc = mt_run_remove(name, true);
	if (rc) return rc;
	wait_left(run, false);
	if (half)
		mt_say("run '%s' is removed; step %llu was half done (--update early), so only older checkpoints remain", name,
			(unsigned long long)half);
	if (e->in_order || half || state == MT_GONE) return 0;
	if (step) mt_say("run '%s' is removed; it goes on from %s/step-%08llu", name, dir, (unsigned long long)step);
	else if (parted) mt_say("run '%s' is removed; only checkpoints that all nodes have made remain", name);
	else if (state == MT_DIRTY)
		mt_say("run '%s' is removed; an update was interrupted, so only older checkpoints remain", name);
	else mt_say("run '%s' is removed; it had trained nothing", name);
	return 0;
}
