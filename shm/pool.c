/* pool.c: threads that take the tasks of one operation after another
 *
 * A job is published in the ticket, one word of 64 bits: the job's number above, the next task to take below. A thread
 * takes a task by adding one to the ticket with a compare-and-swap, which fails if meanwhile another job has come; so
 * what it read of the job (fn, arg, tasks) before the swap belongs to the task that it took. While the caller rewrites
 * these, the ticket holds CLOSED, of which nobody takes anything. A thread that sleeps or was preempted between two
 * jobs holds up nobody: the job ends when its tasks are done, not when every thread has seen it.
 */
#include "pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "os.h"

enum {
	CLOSED = 0xffffffff, /* also the limit on tasks */
	LINE = 64,
};

struct scratch {
	void *p;
	size_t size;
};

struct worker {
	struct pool *pool;
	int thread;
	pthread_t id;
	struct scratch scratch;
};

struct pool {
	_Alignas(LINE) _Atomic uint64_t ticket;
	_Alignas(LINE) _Atomic uint32_t done; /* tasks of this job that have run; the caller's futex */
	_Atomic uint32_t caller_sleeps;
	_Alignas(LINE) _Atomic uint32_t bell; /* rings with every job; the workers' futex */
	_Atomic uint32_t sleepers;
	_Atomic int stop;
	_Alignas(LINE) _Atomic(void *) arg;
	void (*_Atomic fn)(void *, int64_t, int);
	_Atomic uint32_t tasks;
	int threads, spins;
	void (*start)(void);
	struct worker *workers; /* (threads + 2); the last but two is the caller, the last two have only its scratch */
};

static void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* Take and run tasks until none is left to take. */
static void work(struct pool *p, int thread)
{
	uint64_t ticket = atomic_load_explicit(&p->ticket, memory_order_acquire);
	for (;;) {
		uint32_t task = (uint32_t)ticket;
		void (*fn)(void *, int64_t, int) = atomic_load_explicit(&p->fn, memory_order_acquire);
		void *arg = atomic_load_explicit(&p->arg, memory_order_acquire);
		uint32_t tasks = atomic_load_explicit(&p->tasks, memory_order_acquire);
		if (task == CLOSED || task >= tasks) return;
		if (!atomic_compare_exchange_weak_explicit(&p->ticket, &ticket, ticket + 1, memory_order_acquire,
				memory_order_acquire))
			continue;
		fn(arg, task, thread);
		/* release: what the task wrote is seen by the caller who reads done; seq_cst against caller_sleeps */
		if (atomic_fetch_add(&p->done, 1) + 1 == tasks && atomic_load(&p->caller_sleeps)) futex_wake_all(&p->done);
		ticket = atomic_load_explicit(&p->ticket, memory_order_acquire);
	}
}

static void *worker_main(void *arg)
{
	struct worker *w = arg;
	struct pool *p = w->pool;
	uint32_t heard = 0;
	if (p->start) p->start();
	while (!atomic_load(&p->stop)) {
		work(p, w->thread);
		for (int i = 0; i < p->spins && atomic_load_explicit(&p->bell, memory_order_relaxed) == heard; i++) cpu_relax();
		if (atomic_load(&p->bell) == heard) {
			/* seq_cst on both sides: either the ringer sees a sleeper, or the futex sees the bell has rung */
			atomic_fetch_add(&p->sleepers, 1);
			futex_wait(&p->bell, heard);
			atomic_fetch_sub(&p->sleepers, 1);
		}
		heard = atomic_load(&p->bell);
	}
	return NULL;
}

static void ring(struct pool *p)
{
	atomic_fetch_add(&p->bell, 1);
	if (atomic_load(&p->sleepers)) futex_wake_all(&p->bell);
}

static void publish(struct pool *p, uint32_t tasks, void (*fn)(void *, int64_t, int), void *arg)
{
	uint64_t number = (atomic_load_explicit(&p->ticket, memory_order_relaxed) >> 32) + 1;
	atomic_store_explicit(&p->ticket, number << 32 | CLOSED, memory_order_relaxed);
	/* release: a thread that sees one of these sees the ticket closed, and fails to swap an older one */
	atomic_store_explicit(&p->fn, fn, memory_order_release);
	atomic_store_explicit(&p->arg, arg, memory_order_release);
	atomic_store_explicit(&p->tasks, tasks, memory_order_release);
	atomic_store_explicit(&p->done, 0, memory_order_relaxed);
	/* release: a thread that sees the ticket open sees all of them */
	atomic_store_explicit(&p->ticket, number << 32, memory_order_release);
	ring(p);
}

static void wait_done(struct pool *p, uint32_t tasks)
{
	for (int i = 0; i < p->spins; i++) {
		if (atomic_load_explicit(&p->done, memory_order_acquire) == tasks) return;
		cpu_relax();
	}
	atomic_store(&p->caller_sleeps, 1);
	for (uint32_t done; (done = atomic_load(&p->done)) != tasks;) futex_wait(&p->done, done);
	atomic_store(&p->caller_sleeps, 0);
}

void pool_run(struct pool *p, int64_t tasks, void (*fn)(void *arg, int64_t task, int thread), void *arg)
{
	if (!p || p->threads == 1 || tasks == 1) {
		for (int64_t i = 0; i < tasks; i++) fn(arg, i, p ? p->threads - 1 : 0);
		return;
	}
	if (tasks < 1) return;
	if (tasks >= CLOSED) abort();
	publish(p, (uint32_t)tasks, fn, arg);
	work(p, p->threads - 1);
	wait_done(p, (uint32_t)tasks);
}

/* Requests to stop are left to the caller's threads. A fault is the business of the thread that it happens in. */
static void block_requests(sigset_t *before)
{
	sigset_t requests;
	sigfillset(&requests);
	sigdelset(&requests, SIGSEGV);
	sigdelset(&requests, SIGBUS);
	pthread_sigmask(SIG_SETMASK, &requests, before);
}

struct pool *pool_create(int threads, int spins, void (*start)(void))
{
	struct pool *p = aligned_alloc(LINE, sizeof *p);
	if (!p) return NULL;
	*p = (struct pool){.threads = 1, .spins = spins, .start = start, .ticket = CLOSED};
	p->workers = calloc((size_t)threads + 2, sizeof *p->workers);
	if (!p->workers) {
		free(p);
		return NULL;
	}
	if (start) start();
	for (int i = 0; i < threads; i++) p->workers[i] = (struct worker){.pool = p, .thread = i};
	sigset_t before;
	block_requests(&before);
	int rc = 0;
	for (int i = 0; i < threads - 1 && !rc; i++)
		if (!(rc = pthread_create(&p->workers[i].id, NULL, worker_main, &p->workers[i]))) p->threads++;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!rc) return p;
	pool_free(p);
	return NULL;
}

void pool_free(struct pool *p)
{
	if (!p) return;
	atomic_store(&p->stop, 1);
	ring(p);
	for (int i = 0; i < p->threads - 1; i++) pthread_join(p->workers[i].id, NULL);
	for (int i = 0; i < p->threads + 2; i++) free(p->workers[i].scratch.p);
	free(p->workers);
	free(p);
}

int pool_threads(const struct pool *p) { return p->threads; }

void *pool_scratch(struct pool *p, int thread, size_t bytes)
{
	struct scratch *s = &p->workers[thread].scratch;
	if (bytes > s->size) {
		free(s->p);
		s->size = (bytes + 4095) / 4096 * 4096;
		s->p = aligned_alloc(LINE, s->size);
		if (!s->p) s->size = 0;
	}
	return s->p;
}
