/* serve.c: own and supervise a run: watch the process behind every slot and wake its peers when one dies. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "look.h"
#include "mt/control.h"
#include "mt/error.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "mt/wait.h"
#include "store.h"

enum {
	TICK_MS = 100, /* until a newly claimed slot is watched, or the end of the run is noticed */
};

/* Who holds a slot, as last looked at */
struct watched {
	uint64_t word;
	int fd; /* pidfd; -1: nobody, reported dead, or a kernel without pidfds */
	bool reported;
};

static void forget(struct watched *w)
{
	if (w->fd >= 0) close(w->fd);
	w->fd = -1;
}

/* A node whose mt-link has died is cut off from the others, which end the run; nothing but a checkpoint goes on from
 * here. Once for each holder of the slot, by any server. */
static void cut_off(struct mt_run *run)
{
	struct mt_slot *s = &mt_control(run)->slots[MT_LINK];
	uint32_t noted = mt_slot_generation(mt_stage_word(run, MT_LINK)) + 1;
	if (atomic_exchange(&s->aborted, noted) == noted || mt_run_state(run) != MT_FILLED) return;
	mt_run_set_state(run, MT_DIRTY);
}

/* A stage died: its accumulation starts over, waiters look again. Once for each holder of the slot. An owner that ends
 * the run because a stage has failed kills mt-step: that is not reported, since it would hide the reason. */
static void tell(struct mt_run *run, int slot, struct watched *w, struct owner_end *end)
{
	forget(w);
	w->reported = true;
	if (slot == MT_STEP && end->owned) owner_gone(end);
	if (slot != MT_STEP || !end->failed) mt_say("%s (pid %d) has died", mt_stage_name(slot), mt_stage_pid(run, slot));
	mt_abort_dead(run);
	if (slot == MT_LINK) cut_off(run);
	mt_wake(run);
}

static bool is_program(int pid, const char *program)
{
	char path[32], name[16] = "";
	snprintf(path, sizeof path, "/proc/%d/comm", pid);
	FILE *f = fopen(path, "re");
	if (!f) return false;
	bool same = fgets(name, sizeof name, f) && !strncmp(name, program, strlen(program)) &&
		name[strlen(program)] == '\n';
	fclose(f);
	return same;
}

/* Take note of who holds the slots now, and tell of those that are dead. */
static void look(struct mt_run *run, struct watched watched[MT_SLOTS], struct owner_end *end)
{
	for (int slot = 0; slot < MT_SLOTS; slot++) {
		struct watched *w = &watched[slot];
		uint64_t word = mt_stage_word(run, slot);
		if (slot == MT_STORE) continue;
		if (word != w->word) {
			forget(w);
			*w = (struct watched){.word = word, .fd = -1};
			int pid = mt_stage_pid(run, slot);
			if ((slot == MT_OPTIM || slot == MT_TIER || slot == MT_CKPT) && pid)
				/* of one that died before this mt-store began, nobody knows what it was */
				end->replaceable[slot] = mt_stage_dead(run, slot) ||
					(mt_stage_pid_here(run, slot) && is_program(pid, mt_stage_name(slot)));
			/* of another PID namespace: its death is seen at the next tick */
			if (pid && mt_stage_pid_here(run, slot)) w->fd = (int)syscall(SYS_pidfd_open, pid, 0);
		}
		/* a pidfd only wakes us: the slot's lock says who is dead */
		if (!w->reported && mt_stage_dead(run, slot)) tell(run, slot, w, end);
	}
}

/* A pidfd that has reported a death is not polled again, whatever its slot's lock says: it would end every sleep
 * at once. */
static void sleep_until_death(struct watched watched[MT_SLOTS], int owner)
{
	struct pollfd fds[MT_SLOTS + 1];
	struct watched *of[MT_SLOTS + 1];
	nfds_t n = 0; /* no empty places: poll takes no more than `ulimit -n` */
	for (int slot = 0; slot < MT_SLOTS; slot++) {
		if (watched[slot].fd < 0) continue;
		of[n] = &watched[slot];
		fds[n++] = (struct pollfd){.fd = watched[slot].fd, .events = POLLIN};
	}
	nfds_t stages = n;
	if (owner >= 0) fds[n++] = (struct pollfd){.fd = owner, .events = POLLIN};
	int ready = poll(fds, n, TICK_MS);
	if (ready < 0 && errno != EINTR) mt_nap(TICK_MS);
	if (ready <= 0) return;
	for (nfds_t i = 0; i < stages; i++)
		if (fds[i].revents) forget(of[i]);
}

/* The stages have the deleted files mapped, and would work on in them: end them as `mt-store rm` does. */
static void tell_gone(struct mt_run *run, const char *name)
{
	if (mt_run_state(run) == MT_GONE) return;
	mt_say("run '%s': its files were deleted: its stages end", name);
	mt_run_set_state(run, MT_GONE);
}

static bool begin_end(struct mt_run *run, const char *name, const char *dir, const struct owner_end *e)
{
	if (e->in_order) return true;
	owner_signals();
	if (mt_stage_alive(run, MT_STEP))
		mt_say("run '%s': its owner is gone: finishing the open step and saving it in %s (TERM to pid %d gives it up)",
			name, dir, (int)getpid());
	else mt_say("run '%s': its owner is gone", name);
	return true;
}

int store_serve(const char *name, const struct store_options *o)
{
	struct mt_run *run = NULL;
	struct owner_end end = {.owned = o->until_eof, .dir = o->dir};
	bool ending = false, ended = false;
	struct watched watched[MT_SLOTS];
	for (int slot = 0; slot < MT_SLOTS; slot++) watched[slot] = (struct watched){.fd = -1};
	int rc = owner_check(o);
	if (rc) return rc;
	mt_signals(false);
	/* the run may be created after its server has started */
	rc = mt_run_await(&run, name, MT_RUN_CONTROL, -1, &mt_stopping);
	if (rc == 0 && !mt_stopping) rc = mt_stage_claim(run, MT_STORE, NULL);
	if (rc || mt_stopping) {
		mt_run_close(run);
		return mt_stopping ? 0 : rc;
	}
	mt_stage_activity(run, MT_ACT_WATCH, 0);
	/* the server before was killed while it removed the run: remove the rest */
	ended = o->until_eof && mt_run_state(run) == MT_GONE;
	/* a closed stdout: nobody waits for this line */
	if (puts("ready") < 0 || fflush(stdout)) clearerr(stdout);
	while (!ended && !look_run_gone(run, name)) {
		bool stop = mt_stopping; /* before the look at stdin: the sender of the signal may have written "over" first */
		if (!ending && o->until_eof && owner_gone(&end)) ending = begin_end(run, name, o->dir, &end);
		if (stop && !ending && !end.in_order) break;
		if ((rc = mt_stage_check(run))) break;
		look(run, watched, &end);
		if (ending && (ended = owner_end_turn(run, name, &end))) break;
		sleep_until_death(watched, o->until_eof && !ending ? STDIN_FILENO : -1);
	}
	if (ended) rc = owner_end_run(run, name, o->dir, &end);
	else if (!rc && !mt_stopping) tell_gone(run, name);
	for (int slot = 0; slot < MT_SLOTS; slot++) forget(&watched[slot]);
	mt_run_close(run);
	return rc;
}
