/* stage.c: which stages are at work, which are dead, and which have lost their place.
 *
 * A stage that takes a slot first locks the slot's byte of the control region (F_OFD_SETLK), and unlocks it after it
 * has left the slot. The kernel drops the lock when the last reference to the open file is gone: descriptor and
 * mapping, of all threads. So
 *
 *     the byte is locked by another open file     its holder lives
 *     it is free                                  its holder is dead, and nothing of it can store any more
 *
 * To unlock is a release in the kernel, and to lock an acquire: so who takes the byte sees all that its last holder
 * has stored, on arm64, too [tests/model/litmus/journal.litmus].
 *
 * This needs no /proc and no spare descriptor, and holds across PID namespaces that share the file system. A process
 * without the lock is no stage. Whatever cannot be found out is "unknown", a word without the bit "locked" as well:
 * nobody takes its slot, aborts its step or removes its run.
 *
 * So a stage cannot lose its slot while it lives. In case a process takes it without the lock, whatever changes a word
 * that others build on first checks that the slot is still its own (mt_stage_mine): a transaction's and the snapshot's
 * word, versions, the words of rings, attempts. Then nothing that was decided or published is taken back; the stage
 * learns it when it looks at its run next (mt_stage_check), and ends. Other stores need no such check.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib.h"
#include "mt/control.h"
#include "mt/error.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "mt/txn.h"
#include "mt/wait.h"
#include "os.h"

/* Readers of this word are in mt/stage.h */
static uint64_t make_word(int pid, uint64_t start, uint64_t gen)
{
	return (uint64_t)pid << 42 | (uint64_t)(pid != 0) << 41 | (start & 0x1ffffff) << 16 | (gen & 0xffff);
}

uint64_t mt_stage_word(const struct mt_run *run, int slot)
{
	return atomic_load_explicit(&run->control->slots[slot].word, memory_order_acquire);
}

/* ---- locks */

/* 0; 1: another open file has it; -errno */
static int byte_set(const struct mt_run *run, int slot, short type)
{
	struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
	if (!fcntl(run->fd, F_OFD_SETLK, &l)) return 0;
	return errno == EAGAIN || errno == EACCES ? 1 : -errno;
}

int stage_byte_held(const struct mt_run *run, int slot)
{
	struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1};
	if (fcntl(run->fd, F_OFD_GETLK, &l)) return -errno;
	return l.l_type != F_UNLCK;
}

bool stage_in_passing(const struct mt_run *run, int slot)
{
	enum { TRIES = 100, EACH_MS = 10 };
	for (int i = 0; i < TRIES; i++) {
		int held = stage_byte_held(run, slot);
		if (held <= 0 || mt_slot_pid(mt_stage_word(run, slot))) return held != 0;
		mt_nap(EACH_MS);
	}
	return true;
}

/* ---- processes */

/* Inode of this process's PID namespace; 0: unknown */
static uint64_t own_pid_ns(void)
{
	struct stat st;
	return stat("/proc/self/ns/pid", &st) ? 0 : (uint64_t)st.st_ino;
}

bool mt_stage_pid_here(const struct mt_run *run, int slot)
{
	uint64_t ns = atomic_load_explicit(&run->control->slots[slot].pid_ns, memory_order_acquire);
	return ns && ns == own_pid_ns();
}

struct process {
	char state;
	unsigned flags; /* PF_* of the kernel */
	uint64_t start; /* clock ticks since boot */
};

static bool read_proc(int pid, const char *file, char *text, size_t size)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%d/%s", pid, file);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) return false;
	ssize_t n = read(fd, text, size - 1);
	close(fd);
	if (n <= 0) return false;
	text[n] = 0;
	return true;
}

/* false: it cannot be read */
static bool process(int pid, struct process *is)
{
	char line[1024];
	if (!read_proc(pid, "stat", line, sizeof line)) return false;
	char *p = strrchr(line, ')'); /* the name may hold anything, ')' too */
	unsigned long long start;
	/* the state is field 3, the flags are field 9, the start time is field 22 */
	if (!p ||
		sscanf(p + 1, " %c %*s %*s %*s %*s %*s %u %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu", &is->state,
			&is->flags, &start) != 3)
		return false;
	is->start = start;
	return true;
}

enum mt_life mt_stage_life(const struct mt_run *run, int slot)
{
	for (;;) {
		uint64_t word = mt_stage_word(run, slot);
		if (!mt_slot_pid(word)) return MT_NOBODY;
		if (slot == run->slot && word == run->slot_word) return MT_ALIVE;
		if (run->other_boot) return MT_DEAD; /* the holder ended with its boot */
		if (!mt_slot_locked(word)) return MT_UNKNOWN;
		int held = stage_byte_held(run, slot);
		/* who left meanwhile, and was followed, is not what the lock spoke of */
		if (mt_stage_word(run, slot) == word) return held < 0 ? MT_UNKNOWN : held ? MT_ALIVE : MT_DEAD;
	}
}

int stage_unknown(const struct mt_run *run, int slot, const char *remedy)
{
	uint64_t word = mt_stage_word(run, slot);
	int held = mt_slot_locked(word) ? stage_byte_held(run, slot) : 0;
	return mt_fail(MT_EX_BUSY, "run '%s': cannot tell whether %s (pid %d) is alive: %s; %s", run->name,
		mt_stage_name(slot), mt_slot_pid(word), held < 0 ? strerror(-held) : "it holds no lock", remedy);
}

const char *stage_where(const struct mt_run *run, int slot)
{
	return mt_stage_pid_here(run, slot) ? "" : " of another PID namespace";
}

bool mt_stage_alive(const struct mt_run *run, int slot)
{
	enum mt_life is = mt_stage_life(run, slot);
	return is == MT_ALIVE || is == MT_UNKNOWN;
}

bool mt_stage_dead(const struct mt_run *run, int slot) { return mt_stage_life(run, slot) == MT_DEAD; }

int mt_stage_pid(const struct mt_run *run, int slot) { return mt_slot_pid(mt_stage_word(run, slot)); }

bool mt_stage_stopped(const struct mt_run *run, int slot)
{
	struct process is;
	int pid = mt_stage_pid(run, slot);
	return pid && mt_stage_pid_here(run, slot) && process(pid, &is) && (is.state == 'T' || is.state == 't');
}

/* Is SIGKILL among the signals that `name` lists in the text of /proc/PID/status? */
static bool lists_kill(const char *status, const char *name)
{
	const char *line = strstr(status, name);
	return line && strtoull(line + strlen(name), NULL, 16) >> (SIGKILL - 1) & 1;
}

/* SIGKILL was sent to it, or the kernel is taking it apart. A thread's SIGKILL is gone before it has PF_EXITING; that
 * of the process stays. */
static bool is_dying(int pid, const struct process *is)
{
	enum { EXITING = 4 }; /* PF_EXITING */
	char status[4096];
	if (is->flags & EXITING) return true;
	return read_proc(pid, "status", status, sizeof status) &&
		(lists_kill(status, "\nShdPnd:") || lists_kill(status, "\nSigPnd:"));
}

/* How often one looks again whether the slot's byte is free. If the process of its word is gone, the byte is locked by
 * one that has not stored its word yet. */
static int patience(const struct mt_run *run, int slot)
{
	enum { DYING_TRIES = 3000, PASSING_TRIES = 50 };
	struct process is;
	uint64_t word = mt_stage_word(run, slot);
	int pid = mt_slot_pid(word);
	if (!pid || !mt_stage_pid_here(run, slot)) return 0;
	bool seen = process(pid, &is), gone = kill(pid, 0) && errno == ESRCH;
	if (gone || (seen && (is.start & 0x1ffffff) != mt_slot_start(word))) return PASSING_TRIES;
	return seen && is_dying(pid, &is) ? DYING_TRIES : 0;
}

bool stage_outlives(const struct mt_run *run, int slot)
{
	enum { EACH_MS = 20 };
	for (int i = 0; slot != run->slot && mt_stage_alive(run, slot) && i < patience(run, slot); i++) mt_nap(EACH_MS);
	return mt_stage_alive(run, slot);
}

/* ---- the fence */

bool mt_stage_mine(const struct mt_run *run)
{
	/* acquire: what a successor stored before it took the slot is not followed by a store of ours that came before */
	return run->slot < 0 || mt_stage_word(run, run->slot) == run->slot_word;
}

int mt_stage_check(const struct mt_run *run)
{
	if (mt_stage_mine(run)) return 0;
	int pid = mt_stage_pid(run, run->slot);
	char now[64] = "another process has held it since";
	if (pid) snprintf(now, sizeof now, "pid %d%s has it now", pid, stage_where(run, run->slot));
	return mt_fail(MT_EX_BUSY, "run '%s': this process has lost its place as %s: %s", run->name,
		mt_stage_name(run->slot), now);
}

int mt_stage_over(const struct mt_run *run)
{
	if (mt_run_state(run) == MT_GONE) return 1;
	int rc = mt_run_dirty(run);
	return rc ? rc : mt_stage_check(run);
}

/* ---- aborting */

static bool matters(int slot) { return slot == MT_STEP || slot == MT_OPTIM || slot >= MT_STREAM; }

/* The stage that held `slot` in generation gen is gone: what is in accumulate has lost its part and starts over under a
 * new attempt. Once per slot and generation: a death is old news for txns that were opened after it. */
static bool abort_accumulation(struct mt_run *run, int slot, uint32_t gen)
{
	if (mt_node(run)) return false; /* node 0 alone decides */
	struct mt_slot *s = &run->control->slots[slot];
	if (atomic_load_explicit(&s->aborted, memory_order_acquire) == gen + 1) return false;
	bool did = false;
	while (mt_stage_mine(run)) {
		uint32_t k = mt_txn_newest(run);
		uint64_t w = mt_txn_word(run, k);
		/* it moved on between the two looks; or it did not, and the words are damaged */
		if (mt_word_k(w) != k && (mt_txn_newest(run) != k || mt_txn_word(run, k) != w)) continue;
		if (mt_word_k(w) != k || mt_word_phase(w) != MT_ACCUMULATE) break;
		if (mt_txn_cas(run, k, w, mt_word(k, mt_attempt_next(run), MT_ACCUMULATE))) {
			did = true;
			break;
		}
	}
	/* a stage that has lost its slot has aborted nothing: the death stays for others to see */
	if (mt_stage_mine(run)) atomic_store_explicit(&s->aborted, gen + 1, memory_order_release);
	return did;
}

bool mt_abort_dead(struct mt_run *run)
{
	bool did = false;
	for (int slot = 0; slot < MT_SLOTS; slot++) {
		if (!matters(slot)) continue;
		uint64_t word = mt_stage_word(run, slot);
		if (mt_slot_pid(word) && mt_stage_dead(run, slot) && mt_stage_word(run, slot) == word)
			did |= abort_accumulation(run, slot, mt_slot_generation(word));
	}
	return did;
}

/* ---- slots */

static int busy(const struct mt_run *run, int slot)
{
	return mt_fail(MT_EX_BUSY, "run '%s': %s is at work already (pid %d%s)", run->name, mt_stage_name(slot),
		mt_stage_pid(run, slot), stage_where(run, slot));
}

/* Lock the slot's byte. Waits for a holder that is just leaving. */
static int lock_slot(struct mt_run *run, int slot)
{
	for (;;) {
		int rc = byte_set(run, slot, F_WRLCK);
		if (!rc) return 0;
		if (rc < 0)
			return mt_fail(MT_EX_IO, "run '%s': locking the slot of %s: %s", run->name, mt_stage_name(slot),
				strerror(-rc));
		if (mt_stage_pid(run, slot)) {
			if (stage_outlives(run, slot)) return busy(run, slot);
			continue;
		}
		if (stage_in_passing(run, slot))
			return mt_fail(MT_EX_BUSY,
				"run '%s': a process without a pid in the slot of %s has it locked; end that process, or "
				"mt-store rm --force",
				run->name, mt_stage_name(slot));
	}
}

/* Our word for the slot. The start time tells apart two processes of one pid; any number that does so will do. */
static uint64_t own_word(uint32_t gen)
{
	struct process is;
	uint64_t start = process(getpid(), &is) ? is.start : (uint64_t)(mt_now() * 100);
	return make_word(getpid(), start, gen);
}

/* The byte is ours: 0 once the word is, too; 75 */
static int take_slot(struct mt_run *run, int slot)
{
	struct mt_slot *s = &run->control->slots[slot];
	for (;;) {
		uint64_t word = mt_stage_word(run, slot);
		switch (mt_stage_life(run, slot)) {
		case MT_ALIVE: return busy(run, slot);
		case MT_UNKNOWN: return stage_unknown(run, slot, "end it where it runs, or mt-store rm --force");
		default:
			if (mt_stage_word(run, slot) != word) continue;
		}
		/* Before the slot has a new holder: a commit must not take the dead one's part for the new one's. What was
		 * released in peace has aborted by itself. */
		if (matters(slot) && mt_slot_pid(word)) abort_accumulation(run, slot, mt_slot_generation(word));
		uint64_t mine = own_word(mt_slot_generation(word) + 1);
		/* a reader between the two words must not judge our pid by another's namespace */
		atomic_store_explicit(&s->pid_ns, 0, memory_order_release);
		if (!atomic_compare_exchange_strong_explicit(&s->word, &word, mine, memory_order_acq_rel, memory_order_acquire))
			continue;
		atomic_store_explicit(&s->pid_ns, own_pid_ns(), memory_order_release);
		/* generations wrap: what was noted 65536 holders ago is not about this one */
		atomic_store_explicit(&s->aborted, 0, memory_order_release);
		run->slot = slot;
		run->slot_word = mine;
		return 0;
	}
}

static int claim_slot(struct mt_run *run, int slot)
{
	struct mt_slot *s = &run->control->slots[slot];
	int rc = lock_slot(run, slot);
	if (rc) return rc;
	if ((rc = take_slot(run, slot))) {
		byte_set(run, slot, F_UNLCK);
		return rc;
	}
	mt_stage_activity(run, MT_ACT_STARTING, 0);
	for (int i = 0; i < 8; i++) atomic_store_explicit(&s->counters[i], 0, memory_order_relaxed);
	for (int i = 0; i < MT_PLANNED; i++) atomic_store_explicit(&s->planned[i], 0, memory_order_relaxed);
	for (int i = 0; i < MT_GPU_WORDS; i++) atomic_store_explicit(&s->gpu[i], 0, memory_order_relaxed);
	mt_wake(run);
	return 0;
}

/* A stage that has just claimed a run which somebody began to fill after it was attached: it leaves, so that the
 * filler finds nobody at work (it looks after it has said that it fills, as we look after we have said that we work;
 * both change `event` in between, which is what orders it on arm64: mt_fill_begin), and waits until the run is
 * filled: a filler that fails or dies leaves weights that nobody may train. 1: claim again; 0; an error */
static int yield_to_filler(struct mt_run *run, int slot)
{
	if (slot == MT_STORE || slot == MT_FILL) return 0;
	enum mt_state s = mt_run_state(run);
	if (s == MT_GONE) return 0; /* removed since it was attached: a stage handles that wherever it waits */
	bool fit = run->attached ? s == MT_FILLED : s != MT_FILLING || !mt_stage_alive(run, MT_FILL);
	if (fit) return 0;
	mt_stage_release(run);
	int rc = run_wait_filled(run);
	return rc ? rc : 1;
}

/* The lowest of slots from .. to that is free */
static int claim_one(struct mt_run *run, int from, int to, int *claimed)
{
	if (run->slot >= 0) return mt_fail(MT_EX_BUG, "this process holds a slot already");
	if (from >= MT_STREAM + (int)mt_streams(run))
		return mt_fail(MT_EX_NOINPUT, "run '%s' has no %s: it has %u mt-streams at most", run->name,
			mt_stage_name(from), mt_streams(run));
	int rc = 0;
	for (int i = from; i <= to; i++) {
		do rc = claim_slot(run, i);
		while (!rc && (rc = yield_to_filler(run, i)) > 0);
		if (!rc && claimed) *claimed = i;
		if (rc != -MT_EX_BUSY) return rc;
	}
	return from < to ? mt_fail(MT_EX_BUSY, "run '%s': all %d mt-streams%s are taken; the last: %s", run->name,
						   to - from + 1, mt_nodes(run) > 1 ? " of this node" : "", mt_errmsg())
					 : rc;
}

static int first_stream(const struct mt_run *run) { return MT_STREAM + (int)(mt_node_streams(run) * mt_node(run)); }

int mt_stage_claim(struct mt_run *run, int slot, int *claimed)
{
	if (slot != MT_STREAM) return claim_one(run, slot, slot, claimed);
	return claim_one(run, first_stream(run), first_stream(run) + (int)mt_node_streams(run) - 1, claimed);
}

int mt_stream_claim(struct mt_run *run, uint64_t i, int *claimed)
{
	uint32_t streams = mt_node_streams(run);
	if (i >= streams)
		return mt_fail(MT_EX_NOINPUT, "run '%s' has no mt-stream %llu: it has %u at most%s", run->name,
			(unsigned long long)i, streams, mt_nodes(run) > 1 ? " on each node" : "");
	int slot = first_stream(run) + (int)i;
	return claim_one(run, slot, slot, claimed);
}

void mt_stage_release(struct mt_run *run)
{
	if (run->slot < 0) return;
	int slot = run->slot;
	struct mt_slot *s = &run->control->slots[slot];
	uint64_t mine = run->slot_word;
	if (matters(slot) && mt_run_state(run) != MT_GONE) abort_accumulation(run, slot, mt_slot_generation(mine));
	mt_stage_activity(run, MT_ACT_NONE, 0);
	/* The generation stays: a successor's is another one. Only our own word is taken back. */
	atomic_compare_exchange_strong_explicit(&s->word, &mine, make_word(0, 0, mt_slot_generation(mine)),
		memory_order_acq_rel, memory_order_acquire);
	run->slot = -1;
	byte_set(run, slot, F_UNLCK); /* after the word: a free byte with our word in the slot means that we are dead */
	mt_wake(run);
}

const char *mt_stage_name(int slot)
{
#define TEN(t) \
	"mt-stream " #t "0", "mt-stream " #t "1", "mt-stream " #t "2", "mt-stream " #t "3", "mt-stream " #t "4", \
		"mt-stream " #t "5", "mt-stream " #t "6", "mt-stream " #t "7", "mt-stream " #t "8", "mt-stream " #t "9"
	static const char *const names[] = {"mt-store", "mt-step", "mt-optim", "mt-ckpt", "a load or init", "stage 5",
		"mt-tier", "mt-link", TEN(), TEN(1), TEN(2), TEN(3), TEN(4), TEN(5), "mt-stream 60", "mt-stream 61",
		"mt-stream 62", "mt-stream 63"};
#undef TEN
	_Static_assert(sizeof names / sizeof *names == MT_SLOTS, "a slot without a name");
	return slot >= 0 && slot < MT_SLOTS ? names[slot] : "?";
}

/* ---- words */

static const struct {
	const char *words;
	bool arg;
} activities[] = {
	[MT_ACT_NONE] = {"nothing", false},
	[MT_ACT_STARTING] = {"starting", false},
	[MT_ACT_IDLE] = {"idle", false},
	[MT_ACT_READ_INPUT] = {"waits for input", false},
	[MT_ACT_WAIT_STREAM] = {"waits for an mt-stream", false},
	[MT_ACT_WAIT_OPTIM] = {"waits for mt-optim", false},
	[MT_ACT_WAIT_COMMIT] = {"waits for the commit of step", true},
	[MT_ACT_WAIT_SAVE] = {"waits for the save of step", true},
	[MT_ACT_WAIT_BATCH] = {"waits for a batch", false},
	[MT_ACT_WAIT_WEIGHTS] = {"waits for weights of unit", true},
	[MT_ACT_FORWARD] = {"forward pass of unit", true},
	[MT_ACT_BACKWARD] = {"backward pass of unit", true},
	[MT_ACT_WAIT_GRAD_ROOM] = {"waits for room in its gradient ring, unit", true},
	[MT_ACT_WAIT_GRADS] = {"waits for gradients of step", true},
	[MT_ACT_ACCUMULATE] = {"adds gradients of unit", true},
	[MT_ACT_APPLY] = {"updates unit", true},
	[MT_ACT_WAIT_PIN] = {"waits for the snapshot to let go of unit", true},
	[MT_ACT_SAVE] = {"saves unit", true},
	[MT_ACT_FILL] = {"fills unit", true},
	[MT_ACT_WATCH] = {"watches the stages", false},
	[MT_ACT_READ_TILE] = {"reads tile", true},
	[MT_ACT_WRITE_TILE] = {"writes tile", true},
	[MT_ACT_WAIT_TIER] = {"waits for mt-tier, unit", true},
};

void mt_stage_activity(struct mt_run *run, enum mt_activity d, uint64_t arg)
{
	if (run->slot < 0) return;
	struct mt_slot *s = &run->control->slots[run->slot];
	atomic_store_explicit(&s->activity_arg, arg, memory_order_relaxed);
	atomic_store_explicit(&s->activity, (uint32_t)d, memory_order_relaxed);
}

void mt_stage_describe(const struct mt_run *run, int slot, char *buf, size_t n)
{
	struct mt_slot *s = &run->control->slots[slot];
	uint32_t d = atomic_load_explicit(&s->activity, memory_order_relaxed);
	unsigned long long arg = atomic_load_explicit(&s->activity_arg, memory_order_relaxed);
	if (d >= sizeof activities / sizeof *activities) d = MT_ACT_NONE;
	if (activities[d].arg) snprintf(buf, n, "%s %llu", activities[d].words, arg);
	else snprintf(buf, n, "%s", activities[d].words);
}

void mt_gpu_held(uint64_t reasons, char buf[MT_GPU_HELD])
{
	char *end = buf;
	*end = 0;
#define HELD(bit, words) \
	if (reasons >> bit & 1) end = stpcpy(stpcpy(end, end > buf ? ", " : ""), words);
	MT_GPU_REASONS(HELD)
}

static _Atomic uint64_t nowhere; /* a process without a slot counts for nobody */

_Atomic uint64_t *mt_counter(const struct mt_run *run, int i)
{
	return run->slot < 0 ? &nowhere : &run->control->slots[run->slot].counters[i];
}

_Atomic uint64_t *mt_planned(const struct mt_run *run, enum mt_planned i)
{
	return run->slot < 0 ? &nowhere : &run->control->slots[run->slot].planned[i];
}

struct mt_pace mt_pace(struct mt_run *run, double s, struct mt_work from, struct mt_work to, uint64_t rows)
{
	double planned[MT_PLANNED] = {0}, steps = (double)(to.steps - from.steps),
		   tokens = (double)(to.tokens - from.tokens);
	/* an mt-step that was started again counts from 0 */
	double waited = 1e-9 * (double)(to.wait_ns < from.wait_ns ? to.wait_ns : to.wait_ns - from.wait_ns);
	bool measured = s > 0 && steps > 0;
	int n = 0;
	for (int slot = MT_STREAM; slot < MT_SLOTS; slot++) {
		if (!mt_stage_alive(run, slot) || n++) continue;
		for (int i = 0; i < MT_PLANNED; i++)
			planned[i] = 1e-9 *
				(double)atomic_load_explicit(&run->control->slots[slot].planned[i], memory_order_relaxed);
	}
	double row = planned[MT_PLANNED_ROW], model = (double)rows * planned[MT_PLANNED_MODEL];
	return (struct mt_pace){
		.tokens_per_s = measured ? tokens / s : NAN,
		.step_s = measured ? s / steps : NAN,
		.planned_s = n == 1 && row > 0 && rows ? (double)rows * row + planned[MT_PLANNED_REST] : NAN,
		.mfu = measured && row > 0 && model > 0 ? model / n * steps / s : NAN,
		.optim_wait = measured ? (waited < s ? waited / s : 1) : NAN,
	};
}
