/* The doorbell under adversarial schedules: pairs of processes pass a turn back and forth, each by its own bits,
 * while another rings for nobody. Then pairs one of which, or both, sleep and ring without bits, as a stage in another
 * language does: each alone, as such a ring wakes everybody. A lost wake-up would stop its pair: waits here have no
 * useful time-out. usage: shm-wake turns|bits [SEED [COUNT]] */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "child.h"
#include "shm-common.h"

enum { PAIRS = 6, LOST_S = 60 };

struct turns {
	_Alignas(64) _Atomic uint64_t at; /* even: the first of the pair is next */
};

static struct turns *turns;
static uint64_t count;

/* shm/PROTOCOL.md, "Waiting", in full */
static void plain_wait(struct mt_run *run, uint32_t seen)
{
	struct mt_control *c = mt_control(run);
	struct timespec t = {LOST_S, 0};
	atomic_fetch_add(&c->waiters, 1);
	syscall(SYS_futex, &c->event, FUTEX_WAIT, seen, &t, NULL, 0);
	atomic_fetch_sub(&c->waiters, 1);
}

static void plain_wake(struct mt_run *run)
{
	struct mt_control *c = mt_control(run);
	atomic_fetch_add(&c->event, 1);
	if (atomic_load(&c->waiters)) syscall(SYS_futex, &c->event, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* In a child: it does not inherit the mappings */
static struct mt_run *opened(void)
{
	struct mt_run *run;
	mt_must(mt_run_open(&run, run_name, MT_RUN_CONTROL));
	return run;
}

/* Member `side` of a pair. Its pair's number says who of the two is plain: 0, 1, 2: neither; 3, 4: one; 5: both */
static void member(int pair, uint64_t side, uint64_t seed)
{
	bool plain = pair == 5 || (pair == 3 && side) || (pair == 4 && !side);
	uint32_t own = 1u << (2 * pair + (int)side), other = 1u << (2 * pair + 1 - (int)side);
	_Atomic uint64_t *at = &turns[pair].at;
	struct mt_run *run = opened();
	for (;;) {
		uint32_t seen = mt_event(run);
		uint64_t now = atomic_load_explicit(at, memory_order_acquire);
		if (now >= count) return;
		stumble(&seed);
		if (now % 2 == side) {
			atomic_store_explicit(at, now + 1, memory_order_release);
			if (plain) plain_wake(run);
			else mt_wake_on(run, other);
			continue;
		}
		double from = mt_now();
		if (plain) plain_wait(run, seen);
		else mt_wait_on(run, seen, LOST_S * 1000, own);
		CHECK(mt_now() - from < LOST_S, "pair %d, member %d: a wake-up was lost at turn %llu", pair, (int)side,
			(unsigned long long)now);
	}
}

/* Rings for bits that nobody waits for, until it is killed */
static void noise(uint64_t seed)
{
	struct mt_run *run = opened();
	for (;;) {
		mt_wake_on(run, 1u << (2 * PAIRS + splitmix_next(&seed) % 8));
		usleep((useconds_t)(splitmix_next(&seed) % 50));
	}
}

/* Until the process sleeps on the doorbell: it adds 1 to waiters before, and is in state S then. Woken, it is not. */
static void until_asleep(struct mt_run *run, pid_t pid)
{
	char path[64], state;
	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	do {
		FILE *f = fopen(path, "r");
		CHECK(f && fscanf(f, "%*d (%*[^)]) %c", &state) == 1, "%s: %s", path, strerror(errno));
		fclose(f);
		CHECK(state != 'Z', "the sleeper is dead");
		usleep(200);
	} while (state != 'S' || atomic_load(&mt_control(run)->waiters) != 1);
}

/* A waiter for bit 0 sleeps through other bits, and wakes for its own and for all */
static void sleeps_through(struct mt_run *run)
{
	_Atomic uint64_t *woken = &turns[0].at;
	pid_t pid = fork_child();
	if (!pid)
		for (run = opened();; atomic_fetch_add(woken, 1)) mt_wait_on(run, mt_event(run), LOST_S * 1000, 1);
	for (uint32_t bit = 1; bit < 32; bit++) {
		until_asleep(run, pid);
		mt_wake_on(run, 1u << bit);
		until_asleep(run, pid);
		CHECK(atomic_load(woken) == 0, "a wait for bit 0 ended by bit %u", bit);
	}
	mt_wake_on(run, 3);
	while (atomic_load(woken) != 1) usleep(200);
	until_asleep(run, pid);
	mt_wake(run);
	while (atomic_load(woken) != 2) usleep(200);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

/* Is woken by every ring, for nothing: a ring that wakes one sleeper may find this one */
static void look_on(void)
{
	struct mt_run *run = opened();
	for (;;) plain_wait(run, mt_event(run));
}

/* Pairs `first` to end - 1 at once */
static int pass_turns(int first, int end, uint64_t seed)
{
	pid_t noisy = fork_child(), onlooker = 0;
	if (!noisy) noise(seed * 2654435761u + 1);
	if (seed % 2 == 0 && !(onlooker = fork_child())) look_on(); /* without it, waiters is 0 at times */
	for (int i = 2 * first; i < 2 * end; i++)
		if (!fork_child()) {
			member(i / 2, (uint64_t)i % 2, seed * 40503u + (uint64_t)i + 1);
			_exit(0);
		}
	int failed = 0;
	for (int i = 2 * first, status; i < 2 * end; i++) {
		CHECK(waitpid(-1, &status, 0) > 0, "waitpid: %s", strerror(errno));
		failed |= status;
	}
	for (int i = 0; i < 2; i++) {
		pid_t pid = i ? onlooker : noisy;
		if (!pid) continue;
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
	return failed != 0;
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "turns";
	uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
	count = argc > 3 ? strtoull(argv[3], NULL, 10) : 2000;
	struct mt_run *run = tiny_run("wake");
	int failed = 0;
	turns = mmap(NULL, sizeof *turns * PAIRS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(turns != MAP_FAILED, "no memory");
	if (!strcmp(what, "bits")) sleeps_through(run);
	else failed = pass_turns(0, 3, seed) || pass_turns(3, 4, seed) || pass_turns(4, 5, seed) || pass_turns(5, 6, seed);
	mt_run_close(run);
	return failed;
}
