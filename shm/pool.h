/* pool.h: threads that take the tasks of one operation after another; for mt's programs, libmt.so does not export it */
#ifndef MT_POOL_H
#define MT_POOL_H

#include <stddef.h>
#include <stdint.h>

struct pool;

/* Pauses before a thread of many short jobs goes to sleep: some 20 to 60 us, longer than most gaps between them. 0: it
 * sleeps at once, and leaves its core to others. */
enum { POOL_SPINS = 4000 };

/* threads - 1 workers; the caller of pool_run is the last one. threads >= 1. start (or NULL) is run once by each of
 * them, and by the caller of pool_create. Signals are left to other threads. NULL: no memory or threads. */
struct pool *pool_create(int threads, int spins, void (*start)(void));
void pool_free(struct pool *);
int pool_threads(const struct pool *);
/* Run fn(arg, task, thread) for every task in 0..tasks-1, and return when all have run. Tasks are taken in ascending
 * order, by any thread. A pool of NULL: the caller runs them alone, as thread 0. */
void pool_run(struct pool *, int64_t tasks, void (*fn)(void *arg, int64_t task, int thread), void *arg);
/* Memory that lives until the thread's next call; 64-byte aligned, contents undefined. thread: pool_run's, for that
 * thread alone; pool_threads() and pool_threads() + 1: the caller's of pool_run, outside of its tasks. NULL: no memory
 */
void *pool_scratch(struct pool *, int thread, size_t bytes);

#endif
