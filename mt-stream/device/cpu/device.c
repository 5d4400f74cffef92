/* device.c: device cpu. A queue is a thread that runs operations in order. The compute queue's thread also has a pool
 * of threads; the other two run alone and sleep when there is nothing to copy, as compute needs all cores.
 */
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "cli/cli.h"
#include "device/device.h"
#include "ops/ops.h"
#include "pool.h"
#include "trace.h"

#define DEPTH 256 /* operations of a queue that are launched and not yet done */

struct work {
	struct event after;
	struct op op;
	struct span *span;
}; /* op OP_NONE: a wait for `after` */

struct cpu_queue {
	struct cpu *cpu;
	pthread_t thread;
	struct pool *pool;
	pthread_cond_t some; /* there is work, or the device closes */
	uint64_t launched, done;
	uint64_t wanted;         /* the first place that somebody waits for; UINT64_MAX: nobody does */
	struct work work[DEPTH]; /* number k in k mod DEPTH */
};

struct cpu {
	struct device dev;
	pthread_mutex_t lock;
	pthread_cond_t progress; /* a queue has done what is wanted */
	bool closing;
	struct cpu_queue q[QUEUES];
};

static bool over(const struct cpu *c, struct event e) { return c->q[e.queue].done >= e.at; }

/* With the lock held. Operations that nobody waits for wake nobody: on few cores, waking takes them from compute. */
static void await(struct cpu *c, struct event e)
{
	struct cpu_queue *q = &c->q[e.queue];
	while (!over(c, e)) {
		if (e.at < q->wanted) q->wanted = e.at;
		pthread_cond_wait(&c->progress, &c->lock);
	}
}

/* Run w, and with it next (or NULL) if that can be fused; returns how many have run */
static unsigned execute(struct pool *p, struct work *w, const struct work *next, const struct device *d)
{
	bool both = next && cpu_fuse(&w->op, &next->op);
	if (w->span) w->span->from = mt_now();
	cpu_execute(p, &w->op, d);
	if (w->span) w->span->to = mt_now();
	if (both && next->span) next->span->from = next->span->to = w->span->to;
	return both ? 2 : 1;
}

static void *queue_main(void *arg)
{
	struct cpu_queue *q = arg;
	struct cpu *c = q->cpu;
	pthread_mutex_lock(&c->lock);
	for (;;) {
		while (q->done == q->launched && !c->closing) pthread_cond_wait(&q->some, &c->lock);
		if (q->done == q->launched) break;
		struct work *w = &q->work[q->done % DEPTH];
		await(c, w->after);
		unsigned ran = 1;
		if (w->op.code != OP_NONE) {
			const struct work *next = q->done + 1 < q->launched ? &q->work[(q->done + 1) % DEPTH] : NULL;
			pthread_mutex_unlock(&c->lock);
			ran = execute(q->pool, w, next, &c->dev);
			pthread_mutex_lock(&c->lock);
		}
		q->done += ran;
		if (q->done < q->wanted) continue;
		q->wanted = UINT64_MAX;
		pthread_cond_broadcast(&c->progress);
	}
	pthread_mutex_unlock(&c->lock);
	return NULL;
}

static void put(struct cpu *c, enum queue queue, const struct work *w)
{
	struct cpu_queue *q = &c->q[queue];
	pthread_mutex_lock(&c->lock);
	if (q->launched - q->done == DEPTH) await(c, (struct event){queue, q->done + 1});
	q->work[q->launched++ % DEPTH] = *w;
	pthread_cond_signal(&q->some);
	pthread_mutex_unlock(&c->lock);
}

static void cpu_launch(struct device *d, enum queue queue, const struct op *op)
{
	put((struct cpu *)d, queue, &(struct work){.op = *op, .span = trace_span(d->trace, queue, op)});
}

static void cpu_wait(struct device *d, enum queue queue, struct event e)
{
	put((struct cpu *)d, queue, &(struct work){.after = e});
}

static struct event cpu_record(struct device *d, enum queue queue)
{
	return (struct event){queue, ((struct cpu *)d)->q[queue].launched};
}

static bool cpu_query(struct device *d, struct event e)
{
	struct cpu *c = (struct cpu *)d;
	pthread_mutex_lock(&c->lock);
	bool yes = over(c, e);
	pthread_mutex_unlock(&c->lock);
	return yes;
}

static int cpu_sync(struct device *d, struct event e)
{
	struct cpu *c = (struct cpu *)d;
	pthread_mutex_lock(&c->lock);
	await(c, e);
	pthread_mutex_unlock(&c->lock);
	return 0;
}

static void *cpu_alloc(struct device *d, size_t bytes)
{
	size_t huge = 2u << 20;
	(void)d;
	bytes = (bytes + huge - 1) & ~(huge - 1);
	char *p = mmap(NULL, bytes + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (p == MAP_FAILED) return NULL;
	char *a = (char *)(((uintptr_t)p + huge - 1) & ~(uintptr_t)(huge - 1));
	if (a > p) munmap(p, (size_t)(a - p));
	if (a < p + huge) munmap(a + bytes, (size_t)(p + huge - a));
	madvise(a, bytes, MADV_HUGEPAGE);
	return a;
}

static void cpu_release(struct device *d, void *p, size_t bytes)
{
	size_t huge = 2u << 20;
	(void)d;
	if (p) munmap(p, (bytes + huge - 1) & ~(huge - 1));
}

static void cpu_close(struct device *d)
{
	struct cpu *c = (struct cpu *)d;
	pthread_mutex_lock(&c->lock);
	c->closing = true;
	for (int i = 0; i < QUEUES; i++) pthread_cond_signal(&c->q[i].some);
	pthread_mutex_unlock(&c->lock);
	for (int i = 0; i < QUEUES; i++) {
		if (c->q[i].cpu) pthread_join(c->q[i].thread, NULL);
		pool_free(c->q[i].pool);
	}
	free(c);
}

struct device *device_cpu(int threads)
{
	struct cpu *c = calloc(1, sizeof *c);
	if (!c || !gemm_ready()) {
		free(c);
		return NULL;
	}
	c->dev = (struct device){
		CPU_IDENTITY,
		.alloc = cpu_alloc,
		.release = cpu_release,
		.compute = cpu_compute,
		.zero_copy = cpu_zero_copy,
		.launch = cpu_launch,
		.record = cpu_record,
		.wait = cpu_wait,
		.query = cpu_query,
		.sync = cpu_sync,
		.close = cpu_close,
	};
	pthread_mutex_init(&c->lock, NULL);
	pthread_cond_init(&c->progress, NULL);
	for (int i = 0; i < QUEUES; i++) {
		struct cpu_queue *q = &c->q[i];
		pthread_cond_init(&q->some, NULL);
		q->pool = pool_create(i == Q_COMPUTE ? threads : 1, POOL_SPINS, NULL);
		q->wanted = UINT64_MAX;
		q->cpu = c;
		if (!q->pool || pthread_create(&q->thread, NULL, queue_main, q)) {
			q->cpu = NULL;
			cpu_close(&c->dev);
			return NULL;
		}
	}
	return &c->dev;
}

int device_sync(struct device *d)
{
	for (enum queue q = 0; q < QUEUES; q++) {
		int rc = d->sync(d, d->record(d, q));
		if (rc) return rc;
	}
	return 0;
}
