/* pool.c: workers sleep on a condition between jobs: the cores belong to mt-stream then. A job that is done before a
 * worker has woken up for it does not wait for that worker. */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>

#include "adamw.h"
#include "pool.h"

struct pool {
	pthread_mutex_t lock;
	pthread_cond_t start, end;
	uint64_t job; /* counts jobs: a worker runs each one once */
	bool open;    /* it may be joined */
	int workers, running;
	void (*fn)(void *arg);
	void *arg;
};

static void *worker(void *arg)
{
	struct pool *p = arg;
	uint64_t seen = 0;
	flush_denormals();
	pthread_mutex_lock(&p->lock);
	for (;;) {
		while (p->job == seen || !p->open) pthread_cond_wait(&p->start, &p->lock);
		seen = p->job;
		p->running++;
		void (*fn)(void *) = p->fn;
		void *fn_arg = p->arg;
		pthread_mutex_unlock(&p->lock);
		fn(fn_arg);
		pthread_mutex_lock(&p->lock);
		if (--p->running == 0) pthread_cond_signal(&p->end);
	}
	return NULL;
}

struct pool *pool_make(int threads)
{
	struct pool *p = calloc(1, sizeof *p);
	if (!p) return NULL;
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->start, NULL);
	pthread_cond_init(&p->end, NULL);
	flush_denormals();
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	for (; p->workers < threads - 1; p->workers++) {
		pthread_t t;
		if (pthread_create(&t, NULL, worker, p)) return NULL;
		pthread_detach(t);
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return p;
}

void pool_run(struct pool *p, void (*fn)(void *arg), void *arg)
{
	pthread_mutex_lock(&p->lock);
	p->fn = fn;
	p->arg = arg;
	p->open = true;
	p->job++;
	if (p->workers) pthread_cond_broadcast(&p->start);
	pthread_mutex_unlock(&p->lock);
	fn(arg);
	pthread_mutex_lock(&p->lock);
	p->open = false;
	while (p->running) pthread_cond_wait(&p->end, &p->lock);
	pthread_mutex_unlock(&p->lock);
}
