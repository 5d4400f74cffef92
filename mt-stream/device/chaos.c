/* chaos.c: a cpu device that delays and reorders operations wherever synchronization allows. A seed decides the order.
 *
 * A launch only queues the operation. Operations run one at a time, on the host's thread: when the host waits for an
 * event, and at random between two launches. Each time, one of the queues is drawn whose next operation need not wait
 * for an event. The odds change after some draws, so a queue may lag or lead by as much as the events allow.
 *
 * An operation runs in steps, and operations of other queues may run in between. First, outputs that it does not read
 * are filled with NaN; then it runs. A copy runs in two parts. A copy from host memory reads it either when it is
 * launched or when it runs. Memory that the device allocates is filled with NaN when it is allocated, discarded and
 * released.
 *
 * The same seed gives the same order. A schedule that lacks an event, or that uses memory too early or too late, gives
 * other bits here than on device cpu. A cycle of events ends the process.
 */
#include <stdlib.h>

#include "cli/cli.h"
#include "device.h"
#include "mt/layout.h"
#include "ops/ops.h"
#include "pool.h"
#include "splitmix.h"

#define POISON 0xff /* bytes: NaN as fp32 and bf16, no token, no document */
#define ROOM 2048   /* operations launched and not yet done, a queue */
#define ARENAS 8

struct work {
	struct event after;
	struct op op; /* OP_NONE: a wait for `after`; OP_DISCARD: poison */
	void *held;   /* a copy of its input, made at launch; freed after it has run */
};

struct chaos_queue {
	struct work *work;
	uint64_t launched, done;
};

struct chaos {
	struct device dev;
	struct pool *pool;
	uint64_t random;
	unsigned odds[QUEUES + 1]; /* that each queue is drawn; the last: that something runs at a launch, in 100 */
	unsigned draws;            /* until the odds change */
	bool zero_copy;            /* weights are read in place; */
	bool read_rows;            /* or few rows of the embedding */
	struct chaos_queue q[QUEUES];
	struct allocation {
		char *base;
		size_t bytes;
	} given[ARENAS]; /* allocated memory, device's and host's */
};

static uint64_t draw(struct chaos *c, uint64_t below) { return splitmix_next(&c->random) % below; }

/* ---- queues ---- */

static bool over(const struct chaos *c, struct event e) { return c->q[e.queue].done >= e.at; }

static bool runnable(const struct chaos *c, enum queue queue)
{
	const struct chaos_queue *q = &c->q[queue];
	return q->done < q->launched && over(c, q->work[q->done % ROOM].after);
}

static bool any_runnable(const struct chaos *c)
{
	return runnable(c, Q_COMPUTE) || runnable(c, Q_WEIGHTS) || runnable(c, Q_GRADS);
}

/* Odds of 0: the queue runs only if no other queue can */
static void change_odds(struct chaos *c)
{
	static const unsigned odds[] = {0, 1, 20, 400}, eager[] = {0, 0, 30, 90}, draws[] = {1, 8, 30, 100};
	for (int i = 0; i < QUEUES; i++) c->odds[i] = odds[draw(c, 4)];
	c->odds[QUEUES] = eager[draw(c, 4)];
	c->draws = draws[draw(c, 4)];
}

static enum queue draw_queue(struct chaos *c)
{
	unsigned odds[QUEUES], sum = 0, queue = 0;
	for (enum queue i = 0; i < QUEUES; i++) sum += odds[i] = runnable(c, i) ? c->odds[i] : 0;
	if (sum == 0)
		for (enum queue i = 0; i < QUEUES; i++) sum += odds[i] = runnable(c, i);
	MT_ASSERT(sum > 0);
	for (uint64_t r = draw(c, sum); r >= odds[queue]; queue++) r -= odds[queue];
	return queue;
}

static void invert(uint32_t *words, int64_t n)
{
	for (int64_t i = 0; i < n; i++) words[i] = ~words[i];
}

/* A device may convert final gradients in place before they are copied out. Here grads_final inverts their bits, and
 * grads_out inverts them back: reading them in between shows. */
static void execute(struct chaos *c, const struct op *op)
{
	struct op out = *op;
	if (op->code == OP_DISCARD) {
		memset(op->discard.dst, POISON, op->discard.bytes);
	} else if (op->code == OP_GRADS_FINAL) {
		invert((uint32_t *)op->grads_final.src, op->grads_final.n);
	} else if (op->code == OP_GRADS_OUT) {
		size_t bytes = (size_t)op->grads_out.n * sizeof(float);
		float *inverted = malloc(bytes + 1);
		MT_ASSERT(inverted);
		memcpy(inverted, op->grads_out.src, bytes);
		invert((uint32_t *)inverted, op->grads_out.n);
		out.grads_out.src = inverted;
		cpu_execute(c->pool, &out, &c->dev);
		free(inverted);
	} else {
		cpu_execute(c->pool, op, &c->dev);
	}
}

/* Run one operation of some queue that has a runnable one */
static void run_one(struct chaos *c)
{
	if (c->draws-- == 0) change_odds(c);

	struct chaos_queue *q = &c->q[draw_queue(c)];
	struct work *w = &q->work[q->done % ROOM];
	execute(c, &w->op);
	free(w->held);
	q->done++;
}

static void put(struct chaos *c, enum queue queue, const struct work *w)
{
	struct chaos_queue *q = &c->q[queue];
	while (q->launched - q->done == ROOM) run_one(c);
	q->work[q->launched++ % ROOM] = *w;
	while (draw(c, 100) < c->odds[QUEUES] && any_runnable(c)) run_one(c);
}

/* ---- outputs that an operation does not read ---- */

enum { MOST_WRITTEN = 8 };

struct written {
	struct {
		void *p;
		size_t bytes;
	} v[MOST_WRITTEN];
};

/* n elements at p; p NULL: none */
static void writes(struct written *w, void *p, int64_t n, size_t size)
{
	int i = 0;
	for (; w->v[i].p; i++) MT_ASSERT(i + 1 < MOST_WRITTEN);
	w->v[i].p = p;
	w->v[i].bytes = (size_t)n * size;
}

static struct written written_by(const struct op *o, size_t elem, size_t operand)
{
	struct written w = {0};
	const enum op_code code = o->code;
	const size_t weight = operand;
#define WRITES(bytes, field, elements, when) \
	if (when) writes(&w, (void *)(uintptr_t)a->field, elements, bytes);
#define WRITES_OF(op_code, op, args, name) \
	case OP_##op_code: { \
		const struct args##_args *a = &o->args; \
		args##_arrays(WRITES) break; \
	}
	switch (code) {
	case OP_NONE:
	case OP_ZERO:
	case OP_DISCARD:
	case OP_GRADS_FINAL: break;
	case OP_COPY: writes(&w, o->copy.dst, (int64_t)o->copy.bytes, 1); break;
	case OP_WEIGHTS_IN: writes(&w, o->weights_in.dst, o->weights_in.n, operand); break;
	case OP_GRADS_OUT: writes(&w, o->grads_out.dst, o->grads_out.n, mt_dtype_bytes(o->grads_out.to)); break;
	case OP_NARROW: writes(&w, o->narrow.dst, o->narrow.n, operand); break;
	case OP_GEMM: {
		const struct gemm_args *a = &o->gemm;
		if (a->beta == 0 && a->ldc == a->n && a->add != a->c) writes(&w, a->c, a->m * a->n, elem);
		break;
	}
		OPS(WRITES_OF)
	}
	if (code == OP_GROUPED_GEMM && !o->grouped_gemm.sum) { /* rows from `begin` on; between gradients are others' */
		const struct grouped_gemm_args *a = &o->grouped_gemm;
		writes(&w, (char *)a->c + (size_t)(a->begin * a->n) * elem, a->rows * a->n, elem);
	}
	return w;
}

/* ---- launching ---- */

static bool given(const struct chaos *c, const void *p)
{
	for (int i = 0; i < ARENAS; i++)
		if ((const char *)p >= c->given[i].base && (const char *)p < c->given[i].base + c->given[i].bytes) return true;
	return false;
}

/* A copy from memory that this device did not allocate may read it at launch */
static void read_early(struct chaos *c, struct work *w, const void **src, size_t bytes)
{
	if (given(c, *src) || draw(c, 3) || !(w->held = malloc(bytes))) return;
	*src = memcpy(w->held, *src, bytes);
}

/* The copy in two parts: the second is left in *w, the first goes into the queue. */
static void put_first_part(struct chaos *c, enum queue queue, struct work *w)
{
	struct work first = *w;
	struct op *a = &first.op, *b = &w->op;
	first.held = NULL;
	if (b->code == OP_COPY) {
		size_t n = a->copy.bytes = draw(c, b->copy.bytes);
		b->copy.bytes -= n;
		b->copy.dst = (char *)b->copy.dst + n;
		b->copy.src = (const char *)b->copy.src + n;
	} else if (b->code == OP_WEIGHTS_IN) {
		int64_t n = a->weights_in.n = (int64_t)draw(c, (uint64_t)b->weights_in.n);
		b->weights_in.n -= n;
		b->weights_in.dst = (char *)b->weights_in.dst + (size_t)n * c->dev.operand;
		b->weights_in.src = (const char *)b->weights_in.src + (size_t)n * mt_dtype_bytes(b->weights_in.from);
	} else {
		int64_t n = a->grads_out.n = (int64_t)draw(c, (uint64_t)b->grads_out.n);
		b->grads_out.n -= n;
		b->grads_out.dst = (char *)b->grads_out.dst + (size_t)n * mt_dtype_bytes(b->grads_out.to);
		b->grads_out.src += n;
	}
	put(c, queue, &first);
}

static void chaos_launch(struct device *d, enum queue queue, const struct op *op)
{
	struct chaos *c = (struct chaos *)d;
	struct written dst = written_by(op, c->dev.elem, c->dev.operand);
	struct work w = {.op = *op};
	if (op->code == OP_COPY) read_early(c, &w, &w.op.copy.src, op->copy.bytes);
	else if (op->code == OP_WEIGHTS_IN)
		read_early(c, &w, &w.op.weights_in.src, (size_t)op->weights_in.n * mt_dtype_bytes(op->weights_in.from));
	for (int i = 0; i < MOST_WRITTEN; i++)
		if (dst.v[i].p) put(c, queue, &(struct work){.op = {OP_DISCARD, .discard = {dst.v[i].p, dst.v[i].bytes}}});
	if (op->code == OP_COPY || op->code == OP_WEIGHTS_IN || op->code == OP_GRADS_OUT) put_first_part(c, queue, &w);
	put(c, queue, &w);
}

static void chaos_wait(struct device *d, enum queue queue, struct event e)
{
	put((struct chaos *)d, queue, &(struct work){.after = e});
}

static struct event chaos_record(struct device *d, enum queue queue)
{
	return (struct event){queue, ((struct chaos *)d)->q[queue].launched};
}

/* Reports the state before this call, so the answer stays "no" for as long as possible. Each call may run an operation:
 * a caller that polls gets a "yes" in the end. */
static bool chaos_query(struct device *d, struct event e)
{
	struct chaos *c = (struct chaos *)d;
	bool yes = over(c, e);
	if (any_runnable(c) && draw(c, 2)) run_one(c);
	return yes;
}

static int chaos_sync(struct device *d, struct event e)
{
	struct chaos *c = (struct chaos *)d;
	while (!over(c, e)) run_one(c);
	return 0;
}

/* ---- memory ---- */

static void *give(struct chaos *c, size_t bytes)
{
	size_t huge = 2u << 20;
	for (int i = 0; i < ARENAS; i++) {
		struct allocation *e = &c->given[i];
		if (e->base) continue;
		if (!(e->base = aligned_alloc(huge, (bytes + huge - 1) / huge * huge))) return NULL;
		e->bytes = bytes;
		return memset(e->base, POISON, bytes);
	}
	return NULL;
}

static void take_back(struct chaos *c, void *p)
{
	for (int i = 0; p && i < ARENAS; i++)
		if (c->given[i].base == p) {
			memset(p, POISON, c->given[i].bytes);
			c->given[i] = (struct allocation){0};
			free(p);
			return;
		}
}

static void *chaos_alloc(struct device *d, size_t bytes) { return give((struct chaos *)d, bytes); }

static void chaos_release(struct device *d, void *p, size_t bytes)
{
	(void)bytes;
	take_back((struct chaos *)d, p);
}

static void chaos_host_release(struct device *d, void *p) { take_back((struct chaos *)d, p); }

static const void *chaos_zero_copy(struct device *d, const void *host, enum mt_dtype dtype)
{
	return ((struct chaos *)d)->zero_copy ? cpu_zero_copy(d, host, dtype) : NULL;
}

static const void *chaos_read_rows(struct device *d, const void *host, size_t bytes, enum mt_dtype dtype)
{
	(void)bytes;
	return ((struct chaos *)d)->read_rows ? cpu_zero_copy(d, host, dtype) : NULL;
}

static void chaos_close(struct device *d)
{
	struct chaos *c = (struct chaos *)d;
	for (int i = 0; i < QUEUES; i++) {
		for (uint64_t k = c->q[i].done; k < c->q[i].launched; k++) free(c->q[i].work[k % ROOM].held);
		free(c->q[i].work);
	}
	for (int i = 0; i < ARENAS; i++) take_back(c, c->given[i].base);
	pool_free(c->pool);
	free(c);
}

struct device *device_chaos(int threads, uint64_t seed)
{
	struct chaos *c = calloc(1, sizeof *c);
	if (!c || !gemm_ready()) {
		free(c);
		return NULL;
	}
	c->dev = (struct device){
		CPU_IDENTITY,
		.alloc = chaos_alloc,
		.release = chaos_release,
		.compute = cpu_compute,
		.zero_copy = chaos_zero_copy,
		.read_rows = chaos_read_rows,
		.launch = chaos_launch,
		.record = chaos_record,
		.wait = chaos_wait,
		.query = chaos_query,
		.sync = chaos_sync,
		.close = chaos_close,
		.host_alloc = chaos_alloc,
		.host_release = chaos_host_release,
	};
	c->random = seed;
	c->zero_copy = draw(c, 4) == 0;
	c->read_rows = draw(c, 2) == 0;
	change_odds(c);
	c->pool = pool_create(threads, POOL_SPINS, NULL);
	bool ok = c->pool != NULL;
	for (int i = 0; i < QUEUES; i++) {
		c->q[i].work = calloc(ROOM, sizeof *c->q[i].work);
		ok = ok && c->q[i].work;
	}
	if (!ok) {
		chaos_close(&c->dev);
		return NULL;
	}
	return &c->dev;
}
