/* stage.c: who is at work, and who is dead.
 *
 * A slot's word is (pid, start time, generation). Its holder lives while its pidfd is not ready; opening a pidfd is
 * followed by a look at start time and slot, because pids come back. Where a kernel has no pidfds: while /proc/PID has
 * that start time and is no zombie. A pidfd becomes ready only when every thread of the process is gone, so what a
 * killed process stored is all there by then. Not thread-safe within a process: one thread looks after the peers.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib.h"

/* pid 22 bits | locked 1 bit | start time 25 bits | generation 16 bits */
static uint64_t make_word(int pid, uint64_t start, uint64_t gen)
{
	return (uint64_t)pid << 42 | (start & 0x1ffffff) << 16 | (gen & 0xffff);
}
static int word_pid(uint64_t w) { return (int)(w >> 42); }
static uint64_t word_start(uint64_t w) { return w >> 16 & 0x1ffffff; }
static uint32_t word_gen(uint64_t w) { return (uint32_t)(w & 0xffff); }

/* ------------------------------------------------------------------------------------------------ processes */

/* State letter and start time (clock ticks since boot) of a process; false: there is none. */
static bool process(int pid, char *state, uint64_t *start)
{
	char path[64], line[1024];
	snprintf(path, sizeof path, "/proc/%d/stat", pid);
	FILE *f = fopen(path, "re");
	if (!f) return false;
	size_t n = fread(line, 1, sizeof line - 1, f);
	fclose(f);
	line[n] = 0;
	char *p = strrchr(line, ')');       /* the name may hold anything, ')' too */
	if (!p || sscanf(p + 1, " %c", state) != 1) return false;
	unsigned long long t;
	/* the state is field 3, the start time field 22 */
	if (sscanf(p + 1, " %*c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu", &t) != 1)
		return false;
	*start = t;
	return true;
}

static bool holder_runs(uint64_t word, bool zombie_too)
{
	char state;
	uint64_t start;
	if (!process(word_pid(word), &state, &start)) return false;
	if ((start & 0x1ffffff) != word_start(word)) return false;
	return zombie_too || (state != 'Z' && state != 'X');
}

bool mt_stage_alive(struct mt_run *run, int slot)
{
	struct watch *w = &run->watch[slot];
	uint64_t word = atomic_load_explicit(&run->control->slots[slot].word, memory_order_acquire);
	if (!word_pid(word)) return false;
	if (slot == run->slot && word == run->slot_word) return true;
	if (run->other_boot) return false;  /* whoever it was ended with its boot */
	if (w->fd < 0 || w->word != word) {
		if (w->fd >= 0) close(w->fd);
		w->word = word;
		w->fd = (int)syscall(SYS_pidfd_open, word_pid(word), 0);
		if (w->fd < 0 && errno == ESRCH) return false;
		if (w->fd >= 0 && !holder_runs(word, true)) {   /* the pid is somebody else's by now */
			close(w->fd);
			w->fd = -1;
			return false;
		}
		if (atomic_load_explicit(&run->control->slots[slot].word, memory_order_acquire) != word)
			return mt_stage_alive(run, slot);
	}
	if (w->fd < 0) return holder_runs(word, false);
	struct pollfd p = { .fd = w->fd, .events = POLLIN };
	return poll(&p, 1, 0) <= 0;
}

bool mt_stage_dead(struct mt_run *run, int slot)
{
	uint64_t word = atomic_load_explicit(&run->control->slots[slot].word, memory_order_acquire);
	return word_pid(word) && !mt_stage_alive(run, slot);
}

int mt_stage_pid(struct mt_run *run, int slot)
{
	return word_pid(atomic_load_explicit(&run->control->slots[slot].word, memory_order_acquire));
}

bool mt_stage_stopped(struct mt_run *run, int slot)
{
	char state;
	uint64_t start;
	int pid = mt_stage_pid(run, slot);
	return pid && process(pid, &state, &start) && (state == 'T' || state == 't');
}

/* ------------------------------------------------------------------------------------------------ aborting */

static bool matters(int slot) { return slot == MT_STEP || slot == MT_OPTIM || slot >= MT_STREAM; }

/* The stage that held `slot` in generation gen is gone: what is in gather has lost its part and starts over under a
 * new try. Once per slot and generation: a death is old news for txns that were opened after it. */
static bool abort_gather(struct mt_run *run, int slot, uint32_t gen)
{
	struct mt_slot *s = &run->control->slots[slot];
	if (atomic_load_explicit(&s->aborted, memory_order_acquire) == gen + 1) return false;
	bool did = false;
	for (;;) {
		uint32_t k = mt_txn_newest(run);
		uint64_t w = mt_txn_word(run, k);
		if (mt_word_k(w) != k) continue;
		if (mt_word_phase(w) != MT_GATHER) break;
		if (mt_txn_cas(run, k, w, mt_word(k, mt_try_next(run), MT_GATHER))) {
			did = true;
			break;
		}
	}
	atomic_store_explicit(&s->aborted, gen + 1, memory_order_release);
	return did;
}

bool mt_abort_dead(struct mt_run *run)
{
	bool did = false;
	for (int slot = 0; slot < MT_SLOTS; slot++) {
		if (!matters(slot)) continue;
		uint64_t word = atomic_load_explicit(&run->control->slots[slot].word, memory_order_acquire);
		if (word_pid(word) && !mt_stage_alive(run, slot)) did |= abort_gather(run, slot, word_gen(word));
	}
	return did;
}

/* ------------------------------------------------------------------------------------------------ slots */

static int claim_slot(struct mt_run *run, int slot)
{
	struct mt_slot *s = &run->control->slots[slot];
	char state;
	uint64_t start = 0, word = atomic_load_explicit(&s->word, memory_order_acquire);
	if (!process(getpid(), &state, &start)) return mt_fail(MT_EX_BUG, "/proc/self/stat cannot be read");
	for (;;) {
		if (mt_stage_alive(run, slot))
			return mt_fail(MT_EX_BUSY, "run '%s': %s is at work already (pid %d)", run->name, mt_stage_name(slot),
				word_pid(word));
		/* Before the slot has a new holder: a commit must not take the dead one's part for the new one's. What was
		 * released in peace has aborted by itself. */
		if (matters(slot) && word_pid(word)) abort_gather(run, slot, word_gen(word));
		uint64_t mine = make_word(getpid(), start, word_gen(word) + 1);
		if (atomic_compare_exchange_strong_explicit(&s->word, &word, mine, memory_order_acq_rel, memory_order_acquire)) {
			run->slot = slot;
			run->slot_word = mine;
			break;
		}
	}
	mt_stage_doing(run, MT_D_STARTING, 0);
	for (int i = 0; i < 8; i++) atomic_store_explicit(&s->counters[i], 0, memory_order_relaxed);
	mt_wake(run);
	return 0;
}

/* A stage that has just claimed a run which somebody began to fill after it was attached: it leaves, so that the filler
 * finds nobody at work (it looks after it has said that it fills, as we look after we have said that we work), and waits
 * until the run is filled: a filler that fails or dies leaves weights that nobody may train. 1: claim again; 0; an error */
static int yield_to_filler(struct mt_run *run, int slot)
{
	if (slot == MT_STORE || slot == MT_FILL) return 0;
	enum mt_state s = mt_run_state(run);
	bool fit = run->attached ? s == MT_FILLED : s != MT_FILLING || !mt_stage_alive(run, MT_FILL);
	if (fit) return 0;
	mt_stage_release(run);
	int rc = run_wait_filled(run);
	return rc ? rc : 1;
}

int mt_stage_claim(struct mt_run *run, int slot, int *claimed)
{
	if (run->slot >= 0) return mt_fail(MT_EX_BUG, "this process holds a slot already");
	int rc = 0, from = slot, to = slot;
	if (slot == MT_STREAM) to = MT_STREAM + MT_STREAMS - 1;
	for (int i = from; i <= to; i++) {
		do rc = claim_slot(run, i);
		while (!rc && (rc = yield_to_filler(run, i)) > 0);
		if (!rc && claimed) *claimed = i;
		if (rc != -MT_EX_BUSY) return rc;
	}
	return rc;
}

void mt_stage_release(struct mt_run *run)
{
	if (run->slot < 0) return;
	struct mt_slot *s = &run->control->slots[run->slot];
	uint64_t mine = run->slot_word;
	if (matters(run->slot) && mt_run_state(run) != MT_GONE) abort_gather(run, run->slot, word_gen(mine));
	atomic_store_explicit(&s->doing, MT_D_NONE, memory_order_relaxed);
	/* The generation stays: a successor's is another one. Only our own word is taken back. */
	atomic_compare_exchange_strong_explicit(&s->word, &mine, make_word(0, 0, word_gen(mine)), memory_order_acq_rel,
		memory_order_acquire);
	run->slot = -1;
	mt_wake(run);
}

const char *mt_stage_name(int slot)
{
	static const char *const names[MT_SLOTS] = {
		"mt-store", "mt-step", "mt-optim", "mt-ckpt", "a load or init", "stage 5", "stage 6", "stage 7",
		"mt-stream 0", "mt-stream 1", "mt-stream 2", "mt-stream 3", "mt-stream 4", "mt-stream 5", "mt-stream 6", "mt-stream 7",
	};
	return slot >= 0 && slot < MT_SLOTS ? names[slot] : "?";
}

/* ------------------------------------------------------------------------------------------------ words */

static const struct { const char *words; bool arg; } doings[] = {
	[MT_D_NONE] = { "nothing", false },
	[MT_D_STARTING] = { "starting", false },
	[MT_D_IDLE] = { "idle", false },
	[MT_D_READ_INPUT] = { "waits for input", false },
	[MT_D_WAIT_STREAM] = { "waits for an mt-stream", false },
	[MT_D_WAIT_OPTIM] = { "waits for mt-optim", false },
	[MT_D_WAIT_COMMIT] = { "waits for the commit of step", true },
	[MT_D_WAIT_SAVE] = { "waits for the save of step", true },
	[MT_D_WAIT_BATCH] = { "waits for a batch", false },
	[MT_D_WAIT_WEIGHTS] = { "waits for weights of unit", true },
	[MT_D_FORWARD] = { "forward pass of unit", true },
	[MT_D_BACKWARD] = { "backward pass of unit", true },
	[MT_D_WAIT_GRAD_ROOM] = { "waits for room in its gradient ring, unit", true },
	[MT_D_WAIT_GRADS] = { "waits for gradients of step", true },
	[MT_D_GATHER] = { "adds gradients of unit", true },
	[MT_D_APPLY] = { "updates unit", true },
	[MT_D_WAIT_PIN] = { "waits for the snapshot to let go of unit", true },
	[MT_D_SAVE] = { "saves unit", true },
	[MT_D_FILL] = { "fills unit", true },
	[MT_D_WATCH] = { "watches the stages", false },
};

void mt_stage_doing(struct mt_run *run, enum mt_doing d, uint64_t arg)
{
	if (run->slot < 0) return;
	struct mt_slot *s = &run->control->slots[run->slot];
	atomic_store_explicit(&s->doing_arg, arg, memory_order_relaxed);
	atomic_store_explicit(&s->doing, (uint32_t)d, memory_order_relaxed);
}

void mt_stage_words(struct mt_run *run, int slot, char *buf, size_t n)
{
	struct mt_slot *s = &run->control->slots[slot];
	uint32_t d = atomic_load_explicit(&s->doing, memory_order_relaxed);
	unsigned long long arg = atomic_load_explicit(&s->doing_arg, memory_order_relaxed);
	if (d >= sizeof doings / sizeof *doings) d = MT_D_NONE;
	if (doings[d].arg) snprintf(buf, n, "%s %llu", doings[d].words, arg);
	else snprintf(buf, n, "%s", doings[d].words);
}

_Atomic uint64_t *mt_counter(struct mt_run *run, int i)
{
	static _Atomic uint64_t nowhere;    /* a process without a slot counts for nobody */
	return run->slot < 0 ? &nowhere : &run->control->slots[run->slot].counters[i];
}
