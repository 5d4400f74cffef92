/* wait.c: the run's doorbell. Who publishes anything rings it; who waits for anything sleeps on it. One word for the
 * whole run keeps every wait the same four lines, and lets mt-optim wait for all its rings at once; with five
 * processes that publish some hundred times a second the spurious wake-ups do not show.
 *
 *     waiter                                  publisher
 *     seen = event                            publish (release)
 *     is it there? no                         event + 1            (seq_cst)
 *     waiters + 1            (seq_cst)        waiters > 0 ? futex_wake
 *     futex_wait(event == seen)
 *
 * event changes with every publication, so a publication after the waiter's look makes futex_wait return at once; and
 * of "waiters + 1" and "event + 1" one comes first: either the publisher sees the waiter, or the kernel sees the new
 * event. A waiter that is killed leaves waiters one too high for good, which costs later publishers a system call.
 */
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "lib.h"
#include "say.h"

enum { SPINS = 200 };

uint32_t mt_event(const struct mt_run *run) { return atomic_load_explicit(&run->control->event, memory_order_seq_cst); }

void mt_wake(struct mt_run *run)
{
	struct mt_control *c = run->control;
	atomic_fetch_add_explicit(&c->event, 1, memory_order_seq_cst);
	if (atomic_load_explicit(&c->waiters, memory_order_seq_cst))
		syscall(SYS_futex, &c->event, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void mt_wait(struct mt_run *run, uint32_t seen, int ms)
{
	struct mt_control *c = run->control;
	for (int i = 0; i < SPINS; i++) {
		if (atomic_load_explicit(&c->event, memory_order_acquire) != seen) return;
#if defined __x86_64__
		__builtin_ia32_pause();
#endif
	}
	struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};
	atomic_fetch_add_explicit(&c->waiters, 1, memory_order_seq_cst);
	/* shared futex: no FUTEX_PRIVATE_FLAG; it returns at once when event has changed since `seen` */
	bool in_vain = syscall(SYS_futex, &c->event, FUTEX_WAIT, seen, &t, NULL, 0) < 0 && errno == ETIMEDOUT;
	atomic_fetch_sub_explicit(&c->waiters, 1, memory_order_seq_cst);
	if (in_vain) mt_waited_in_vain(run, seen);
}
