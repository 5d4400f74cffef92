/* pool.h: a fixed number of threads that run one function together, the caller among them. */
#ifndef MT_OPTIM_POOL_H
#define MT_OPTIM_POOL_H

struct pool;

/* threads >= 1, the caller counted; NULL: no memory, or no threads to be had. Denormals are flushed in all of them, and
 * signals are left to the caller. */
struct pool *pool_make(int threads);
/* Run fn(arg) once in the caller and in each thread that comes before the caller has returned from it, and return when
 * all have: what one of them wrote, the caller then sees. fn shares the work out by counters of its own, and must do
 * all of it whatever the number of threads. */
void pool_run(struct pool *, void (*fn)(void *arg), void *arg);

#endif
