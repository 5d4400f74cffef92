/* serve.c: own and supervise a run: watch the process behind every slot and wake whoever waits when one dies. */
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "store.h"

enum {
	TICK_MS = 100,              /* how soon a newly claimed slot is watched, and that the run is gone is seen */
};

/* Who holds a slot, as last looked at */
struct watched {
	uint64_t word;
	int fd;                     /* pidfd; -1: nobody, told dead, or a kernel without pidfds */
	bool told;
};

static uint64_t slot_word(struct mt_run *run, int slot)
{
	return atomic_load_explicit(&mt_control(run)->slots[slot].word, memory_order_acquire);
}

static void forget(struct watched *w)
{
	if (w->fd >= 0) close(w->fd);
	w->fd = -1;
}

/* A stage died: its gather starts over, waiters look again. Once for each holder of the slot. */
static void tell(struct mt_run *run, int slot, struct watched *w)
{
	forget(w);
	w->told = true;
	mt_say("%s (pid %d) has died", mt_stage_name(slot), mt_stage_pid(run, slot));
	mt_abort_dead(run);
	mt_wake(run);
}

/* Take note of who holds the slots now, and tell of those that are dead. */
static void look(struct mt_run *run, struct watched watched[MT_SLOTS])
{
	for (int slot = 0; slot < MT_SLOTS; slot++) {
		struct watched *w = &watched[slot];
		uint64_t word = slot_word(run, slot);
		if (slot == MT_STORE) continue;
		if (word != w->word) {
			forget(w);
			*w = (struct watched){ .word = word, .fd = -1 };
			int pid = mt_stage_pid(run, slot);
			if (pid) w->fd = (int)syscall(SYS_pidfd_open, pid, 0);
		}
		/* mt_stage_dead compares the start time as well: pids come back */
		if (!w->told && mt_stage_dead(run, slot)) tell(run, slot, w);
	}
}

static void sleep_until_death(const struct watched watched[MT_SLOTS])
{
	struct pollfd fds[MT_SLOTS];
	for (int slot = 0; slot < MT_SLOTS; slot++) fds[slot] = (struct pollfd){ .fd = watched[slot].fd, .events = POLLIN };
	poll(fds, MT_SLOTS, TICK_MS);
}

/* Its regions may have been deleted by hand, and made again: then this one is gone. */
static bool is_gone(struct mt_run *run, const char *name)
{
	struct mt_run *now;
	if (mt_run_state(run) == MT_GONE) return true;
	if (mt_run_open(&now, name, MT_RUN_CONTROL | MT_RUN_READONLY)) return true;
	bool same = memcmp(mt_control(now)->h.run_id, mt_control(run)->h.run_id, sizeof mt_control(run)->h.run_id) == 0;
	mt_run_close(now);
	return !same;
}

int store_serve(const char *name, const struct store_options *o)
{
	(void)o;
	struct mt_run *run = NULL;
	struct watched watched[MT_SLOTS];
	for (int slot = 0; slot < MT_SLOTS; slot++) watched[slot] = (struct watched){ .fd = -1 };
	mt_signals(false);
	int rc = mt_run_await(&run, name, MT_RUN_CONTROL, -1, &mt_stopping);     /* it may be made later than its server */
	if (rc == 0 && !mt_stopping) rc = mt_stage_claim(run, MT_STORE, NULL);
	if (rc || mt_stopping) {
		mt_run_close(run);
		return mt_stopping ? 0 : rc;
	}
	mt_stage_doing(run, MT_D_WATCH, 0);
	puts("ready");
	fflush(stdout);
	while (!mt_stopping && !is_gone(run, name)) {
		look(run, watched);
		sleep_until_death(watched);
	}
	for (int slot = 0; slot < MT_SLOTS; slot++) forget(&watched[slot]);
	mt_run_close(run);
	return 0;
}
