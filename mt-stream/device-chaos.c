/* device-chaos.c: the cpu device with every freedom that queues and events leave used against the schedule, by a seed.
 *
 * Nothing runs when it is launched. Operations run, one at a time and on the host's thread, when the host waits for an
 * event, or between two launches by chance; each time a queue whose next operation no event holds back is drawn, and
 * the odds change every few draws, so that a queue may lag or lead by as much as the events allow. Copies to and from
 * the host happen in two parts, with anything between. Memory is poisoned when handed out, given back and declared
 * dead. The same seed does the same thing again. A schedule that lacks an event, or uses memory too early or too late,
 * gives other bits here than on the cpu device; a cycle of events ends the process.
 */
#include <stdlib.h>

#include "cli.h"
#include "device.h"
#include "ops.h"

#define POISON 0xff             /* bytes: NaN as fp32 and bf16, no token, no document */
#define DRAWS  8                /* draws between changes of the odds */

struct work { struct event after; struct op op; };      /* op OP_NONE: a wait for `after` */

struct chaos_queue { struct work *work; uint64_t launched, done, room; };

struct chaos {
	struct device dev;
	struct pool *pool;
	uint64_t random;
	unsigned odds[QUEUES + 1];  /* of each queue's being drawn; the last: of running something at a launch, in 100 */
	unsigned draws;
	bool views;                 /* weights may be read in place */
	struct chaos_queue q[QUEUES];
};

static uint64_t draw(struct chaos *c, uint64_t below)   /* splitmix64, Steele et al. 2014 */
{
	uint64_t z = c->random += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return (z ^ z >> 31) % below;
}

static bool over(const struct chaos *c, struct event e) { return c->q[e.queue].done >= e.at; }

static bool runnable(const struct chaos *c, enum queue queue)
{
	const struct chaos_queue *q = &c->q[queue];

	return q->done < q->launched && over(c, q->work[q->done % q->room].after);
}

static void change_odds(struct chaos *c)
{
	static const unsigned odds[] = {1, 1, 20, 400}, eager[] = {0, 0, 30, 90};

	for (int i = 0; i < QUEUES; i++)
		c->odds[i] = odds[draw(c, 4)];
	c->odds[QUEUES] = eager[draw(c, 4)];
}

/* Run one operation of some queue that has a runnable one */
static void run_one(struct chaos *c)
{
	unsigned sum = 0, queue = 0;

	if (c->draws++ % DRAWS == 0)
		change_odds(c);
	for (enum queue i = 0; i < QUEUES; i++)
		sum += runnable(c, i) ? c->odds[i] : 0;
	MT_ASSERT(sum > 0);
	for (uint64_t r = draw(c, sum);; queue++) {
		unsigned odds = runnable(c, queue) ? c->odds[queue] : 0;
		if (r < odds)
			break;
		r -= odds;
	}
	struct chaos_queue *q = &c->q[queue];
	const struct op *op = &q->work[q->done % q->room].op;
	if (op->code == OP_DISCARD)
		memset(op->discard.dst, POISON, op->discard.bytes);
	else
		cpu_execute(c->pool, op);
	q->done++;
}

static bool any_runnable(const struct chaos *c)
{
	return runnable(c, Q_COMPUTE) || runnable(c, Q_WEIGHTS) || runnable(c, Q_GRADS);
}

static void put(struct chaos *c, enum queue queue, const struct work *w)
{
	struct chaos_queue *q = &c->q[queue];

	while (q->launched - q->done == q->room)
		run_one(c);
	q->work[q->launched++ % q->room] = *w;
	while (draw(c, 100) < c->odds[QUEUES] && any_runnable(c))
		run_one(c);
}

static void chaos_launch(struct device *d, enum queue queue, const struct op *op)
{
	struct chaos *c = (struct chaos *)d;
	struct op rest = *op, first = *op;

	if (op->code == OP_WEIGHTS_IN) {
		int64_t n = (int64_t)draw(c, (uint64_t)op->weights_in.n);
		size_t from = op->weights_in.from == MT_BF16 ? 2 : 4;

		first.weights_in.n = n;
		rest.weights_in.n -= n;
		rest.weights_in.dst = (float *)rest.weights_in.dst + n;
		rest.weights_in.src = (const char *)rest.weights_in.src + (size_t)n * from;
		put(c, queue, &(struct work){.op = first});
	} else if (op->code == OP_GRADS_OUT) {
		int64_t n = (int64_t)draw(c, (uint64_t)op->grads_out.n);
		size_t to = op->grads_out.to == MT_BF16 ? 2 : 4;

		first.grads_out.n = n;
		rest.grads_out.n -= n;
		rest.grads_out.dst = (char *)rest.grads_out.dst + (size_t)n * to;
		rest.grads_out.src += n;
		put(c, queue, &(struct work){.op = first});
	}
	put(c, queue, &(struct work){.op = rest});
}

static void chaos_wait(struct device *d, enum queue queue, struct event e)
{
	put((struct chaos *)d, queue, &(struct work){.after = e});
}

static struct event chaos_record(struct device *d, enum queue queue)
{
	return (struct event){queue, ((struct chaos *)d)->q[queue].launched};
}

static bool chaos_query(struct device *d, struct event e)
{
	struct chaos *c = (struct chaos *)d;

	if (any_runnable(c) && draw(c, 2))
		run_one(c);
	return over(c, e);
}

static int chaos_sync(struct device *d, struct event e)
{
	struct chaos *c = (struct chaos *)d;

	while (!over(c, e))
		run_one(c);
	return 0;
}

static void *chaos_alloc(struct device *d, size_t bytes)
{
	size_t huge = 2u << 20;
	void *p = aligned_alloc(huge, (bytes + huge - 1) / huge * huge);

	(void)d;
	if (p)
		memset(p, POISON, bytes);
	return p;
}

static void chaos_release(struct device *d, void *p, size_t bytes)
{
	(void)d;
	if (p)
		memset(p, POISON, bytes);
	free(p);
}

static const void *chaos_view(struct device *d, const void *host, enum mt_dtype dtype)
{
	return ((struct chaos *)d)->views && dtype == MT_FP32 ? host : NULL;
}

static void chaos_close(struct device *d)
{
	struct chaos *c = (struct chaos *)d;

	for (int i = 0; i < QUEUES; i++)
		free(c->q[i].work);
	pool_free(c->pool);
	free(c);
}

struct device *device_chaos(int threads, uint64_t seed)
{
	struct chaos *c = calloc(1, sizeof *c);

	if (!c)
		return NULL;
	c->dev = (struct device){
		.name = "cpu", .gemm = gemm_words(), .attention = "tiled, fp32", .machine = kernels_words(), .elem = sizeof(float),
		.alloc = chaos_alloc, .release = chaos_release, .view = chaos_view, .launch = chaos_launch,
		.record = chaos_record, .wait = chaos_wait, .query = chaos_query, .sync = chaos_sync, .close = chaos_close,
	};
	c->random = seed;
	c->views = draw(c, 4) == 0;
	c->pool = pool_create(threads);
	bool ok = c->pool != NULL;
	for (int i = 0; i < QUEUES; i++) {
		c->q[i].room = 1024;
		c->q[i].work = calloc(c->q[i].room, sizeof *c->q[i].work);
		ok = ok && c->q[i].work;
	}
	if (!ok) {
		chaos_close(&c->dev);
		return NULL;
	}
	return &c->dev;
}
