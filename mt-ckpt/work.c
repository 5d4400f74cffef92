/* work.c: shares the tasks of loading, saving and verifying among threads. */
#include <pthread.h>
#include <stdlib.h>
#include "ckpt.h"
#include "pool.h"
#include "os.h"

uint64_t work_threads;

enum { THREAD_BYTES = WORK_BYTES + STAGE_BYTES };

struct job {
	struct work *work;
	int (*fn)(void *arg, int64_t task, void *buf);
	void *arg;
	pthread_mutex_t lock;   /* for the three below */
	_Atomic int64_t failed; /* the lowest task that failed */
	int rc;
	char message[1024];
};

int work_begin(struct work *w, uint64_t most)
{
	uint64_t cores = (uint64_t)mt_cores(), n = work_threads ? work_threads : cores < most ? cores : most;
	if (n > WORK_THREADS) n = WORK_THREADS;
	*w = (struct work){.pool = n > 1 ? pool_create((int)n, 0, NULL) : NULL}; /* NULL: this thread alone */
	w->buf = aligned_alloc(4096, (size_t)work_size(w) * THREAD_BYTES);
	if (w->buf) return 0;
	work_end(w);
	return mt_fail(MT_EX_NOMEM, "no memory for buffers");
}

int work_size(const struct work *w) { return w->pool ? pool_threads(w->pool) : 1; }

/* Tasks are begun in ascending order. Those before a failed one go on: one of them may fail as well, and its error is
 * the one that a single thread would have met. */
static void run_task(void *arg, int64_t task, int thread)
{
	struct job *j = arg;
	if (task > j->failed) return;
	int rc = j->fn(j->arg, task, (uint8_t *)j->work->buf + (size_t)thread * THREAD_BYTES);
	if (rc >= 0) return;
	pthread_mutex_lock(&j->lock);
	if (task < j->failed) {
		j->failed = task;
		j->rc = rc;
		snprintf(j->message, sizeof j->message, "%s", mt_errmsg());
	}
	pthread_mutex_unlock(&j->lock);
}

int work_run(struct work *w, int64_t tasks, int (*fn)(void *arg, int64_t task, void *buf), void *arg)
{
	struct job j = {.work = w, .fn = fn, .arg = arg, .lock = PTHREAD_MUTEX_INITIALIZER, .failed = INT64_MAX};
	pool_run(w->pool, tasks, run_task, &j);
	return j.rc < 0 ? mt_fail(-j.rc, "%s", j.message) : 0;
}

void work_end(struct work *w)
{
	pool_free(w->pool);
	free(w->buf);
	*w = (struct work){0};
}
