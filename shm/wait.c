/* wait.c: the run's doorbell. Every publication rings it; every wait sleeps on it. One word for the
 * whole run keeps every wait the same four lines, and lets mt-optim wait for all its rings at once.
 *
 *     waiter                                  publisher
 *     seen = event                            publish (release)
 *     is it there? no                         event + 1            (seq_cst)
 *     waiters + 1            (seq_cst)        waiters > 0 ? futex_wake(bits of what was published)
 *     futex_wait(event == seen, bits of the publications that end the wait)
 *
 * event changes with every publication, so a publication after the waiter's look makes futex_wait return at once;
 * and of "waiters + 1" and "event + 1" one comes first: either the publisher sees the waiter, or the kernel sees the
 * new event. On arm64, too: the load of waiters is an LDAR, which the STLXR of event + 1 precedes (a plain load
 * might come first), and futex_wait has a full barrier before it reads event [tests/model/litmus/doorbell.litmus]. A
 * waiter that is killed leaves waiters one too high for good, which costs later publishers a system call.
 *
 * The bits (MT_ON_*) decide only whom the kernel wakes of those that sleep. They take no part in the argument above:
 * the kernel compares event first, whatever the bits, and a publisher's futex_wake comes after its event + 1. So no
 * wake-up is lost as long as a waiter's bits have each kind of publication that can end its wait. What is published
 * rarely (a run's state, slots, the record) has all bits. Who uses plain FUTEX_WAIT and FUTEX_WAKE has all bits, too.
 *
 * waiters does not count by bits: a futex_wake that finds nobody costs a publisher less than a microsecond, some
 * hundred times a step; a wake-up in vain costs two switches of context.
 */
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "lib.h"
#include "mt/control.h"
#include "mt/wait.h"
#include "os.h"
#include "say.h"

enum { SPINS = 200, BRIEF_MS = 2 };

uint32_t mt_event(const struct mt_run *run) { return atomic_load_explicit(&run->control->event, memory_order_seq_cst); }

void mt_wake_on(struct mt_run *run, uint32_t on)
{
	struct mt_control *c = run->control;
	atomic_fetch_add_explicit(&c->event, 1, memory_order_seq_cst);
	if (atomic_load_explicit(&c->waiters, memory_order_seq_cst))
		syscall(SYS_futex, &c->event, FUTEX_WAKE_BITSET, INT32_MAX, NULL, NULL, on);
}

void mt_wake(struct mt_run *run) { mt_wake_on(run, MT_ON_ALL); }

/* FUTEX_WAIT_BITSET wants the moment, not the time until then */
static struct timespec in_ms(int ms)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	t.tv_sec += ms / 1000;
	t.tv_nsec += (long)(ms % 1000) * 1000000;
	if (t.tv_nsec >= 1000000000) {
		t.tv_nsec -= 1000000000;
		t.tv_sec++;
	}
	return t;
}

void mt_wait_on(struct mt_run *run, uint32_t seen, int ms, uint32_t on)
{
	struct mt_control *c = run->control;
	/* A stage that looks again soon anyway loses little by sleeping: for mt-link, with up to a thousand looks a second,
	 * spinning took one percent of a core, from the processes that compute on it */
	for (int i = 0; ms > BRIEF_MS && i < SPINS; i++) {
		if (atomic_load_explicit(&c->event, memory_order_acquire) != seen) return;
		cpu_relax();
	}
	struct timespec until = in_ms(ms);
	atomic_fetch_add_explicit(&c->waiters, 1, memory_order_seq_cst);
	/* shared futex: no FUTEX_PRIVATE_FLAG; it returns at once when event has changed since `seen` */
	bool in_vain = syscall(SYS_futex, &c->event, FUTEX_WAIT_BITSET, seen, &until, NULL, on) < 0 && errno == ETIMEDOUT;
	atomic_fetch_sub_explicit(&c->waiters, 1, memory_order_seq_cst);
	if (in_vain) mt_waited_in_vain(run, seen);
}

void mt_wait(struct mt_run *run, uint32_t seen, int ms) { mt_wait_on(run, seen, ms, MT_ON_ALL); }
