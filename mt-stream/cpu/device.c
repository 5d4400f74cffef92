/* device.c: the cpu as a device. A queue is a thread that takes operations in order; the compute queue's thread has
 * a pool beside it, the other two work alone and sleep while there is nothing to move, for compute wants all cores.
 */
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "cli/cli.h"
#include "device.h"
#include "ops.h"
#include "trace.h"

#define DEPTH 256 /* operations launched and not yet done, a queue */

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
	struct work work[DEPTH]; /* number k in k mod DEPTH */
};

struct cpu {
	struct device dev;
	pthread_mutex_t lock;
	pthread_cond_t progress; /* a queue has done something */
	bool closing;
	struct cpu_queue q[QUEUES];
};

static bool over(const struct cpu *c, struct event e) { return c->q[e.queue].done >= e.at; }

static void execute(struct pool *p, const struct work *w)
{
	if (w->span) w->span->from = mt_now();
	cpu_execute(p, &w->op);
	if (w->span) w->span->to = mt_now();
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
		while (!over(c, w->after)) pthread_cond_wait(&c->progress, &c->lock);
		if (w->op.code != OP_NONE) {
			pthread_mutex_unlock(&c->lock);
			execute(q->pool, w);
			pthread_mutex_lock(&c->lock);
		}
		q->done++;
		pthread_cond_broadcast(&c->progress);
	}
	pthread_mutex_unlock(&c->lock);
	return NULL;
}

static void put(struct cpu *c, enum queue queue, const struct work *w)
{
	struct cpu_queue *q = &c->q[queue];

	pthread_mutex_lock(&c->lock);
	while (q->launched - q->done == DEPTH) pthread_cond_wait(&c->progress, &c->lock);
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
	while (!over(c, e)) pthread_cond_wait(&c->progress, &c->lock);
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

static const void *cpu_view(struct device *d, const void *host, enum mt_dtype dtype)
{
	(void)d;
	return dtype == MT_FP32 ? host : NULL;
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
		.name = "cpu",
		.gemm = gemm_words(),
		.attention = "tiled, fp32",
		.machine = kernels_words(),
		.elem = sizeof(float),
		.alloc = cpu_alloc,
		.release = cpu_release,
		.view = cpu_view,
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
		q->pool = pool_create(i == Q_COMPUTE ? threads : 1);
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

/* ---- the table of operations ---- */

static void run_gemm(struct pool *p, const struct op *o)
{
	op_gemm(p,
		&(struct gemm){
			.m = o->gemm.m,
			.n = o->gemm.n,
			.k = o->gemm.k,
			.a = o->gemm.a,
			.lda = o->gemm.lda,
			.trans_a = o->gemm.trans_a,
			.b = o->gemm.b,
			.ldb = o->gemm.ldb,
			.trans_b = o->gemm.trans_b,
			.c = o->gemm.c,
			.ldc = o->gemm.ldc,
			.beta = o->gemm.beta,
			.bias = o->gemm.bias,
			.add = o->gemm.add,
		});
}

static void run_rope(struct pool *p, const struct op *o)
{
	struct rope r = {
		.n = o->rope.n,
		.seq = o->rope.seq,
		.heads = o->rope.heads,
		.kv_heads = o->rope.kv_heads,
		.dim = o->rope.dim,
		.cos = o->rope.cos,
		.sin = o->rope.sin,
		.starts = o->rope.starts,
		.qnorm = o->rope.qnorm,
		.knorm = o->rope.knorm,
		.eps = o->rope.eps,
	};

	if (o->code == OP_ROPE_FORWARD) op_rope_forward(p, &r, o->rope.qkv, o->rope.pre, o->rope.rstd);
	else op_rope_backward(p, &r, o->rope.qkv, o->rope.pre, o->rope.rstd, o->rope.dqnorm, o->rope.dknorm, o->rope.beta);
}

static void run_attention(struct pool *p, const struct op *o)
{
	struct attention a = {
		.n = o->attention.n,
		.seq = o->attention.seq,
		.heads = o->attention.heads,
		.kv_heads = o->attention.kv_heads,
		.dim = o->attention.dim,
		.window = o->attention.window,
		.scale = o->attention.scale,
		.starts = o->attention.starts,
	};

	if (o->code == OP_ATTENTION_FORWARD)
		op_attention_forward(p, &a, o->attention.o, o->attention.lse, o->attention.qkv);
	else
		op_attention_backward(p, &a, o->attention.dqkv, o->attention.d_o, o->attention.o, o->attention.lse,
			o->attention.qkv);
}

static void run_cross_entropy(struct pool *p, const struct op *o)
{
	int64_t targets = 0;
	double sum = op_cross_entropy(p, o->cross_entropy.logits, o->cross_entropy.targets, o->cross_entropy.n,
		o->cross_entropy.vocab, o->cross_entropy.scale, o->cross_entropy.backward, &targets);

	o->cross_entropy.loss->sum += sum;
	o->cross_entropy.loss->targets += targets;
}

static void run_weights_in(struct pool *p, const struct op *o)
{
	if (o->weights_in.from == MT_BF16) op_widen(p, o->weights_in.dst, o->weights_in.src, o->weights_in.n);
	else op_copy(p, o->weights_in.dst, o->weights_in.src, (size_t)o->weights_in.n * sizeof(float));
}

static void run_grads_out(struct pool *p, const struct op *o)
{
	if (o->grads_out.to == MT_BF16) op_narrow(p, o->grads_out.dst, o->grads_out.src, o->grads_out.n);
	else op_copy(p, o->grads_out.dst, o->grads_out.src, (size_t)o->grads_out.n * sizeof(float));
}

void cpu_execute(struct pool *p, const struct op *o)
{
	switch (o->code) {
	case OP_NONE:
	case OP_DISCARD:
	case OP_GRADS_FINAL: break;
	case OP_COPY: op_copy(p, o->copy.dst, o->copy.src, o->copy.bytes); break;
	case OP_ZERO: op_zero(p, o->zero.dst, o->zero.bytes); break;
	case OP_WEIGHTS_IN: run_weights_in(p, o); break;
	case OP_GRADS_OUT: run_grads_out(p, o); break;
	case OP_GEMM: run_gemm(p, o); break;
	case OP_BIAS_BACKWARD:
		op_bias_backward(p, o->bias_backward.db, o->bias_backward.beta, o->bias_backward.dy, o->bias_backward.n,
			o->bias_backward.m, o->bias_backward.n);
		break;
	case OP_EMBED_FORWARD:
		op_embed_forward(p, o->embed_forward.x, o->embed_forward.w, o->embed_forward.tokens, o->embed_forward.n,
			o->embed_forward.h);
		break;
	case OP_EMBED_BACKWARD:
		op_embed_backward(p, o->embed_backward.dw, o->embed_backward.beta, o->embed_backward.dx,
			o->embed_backward.tokens, o->embed_backward.n, o->embed_backward.h, o->embed_backward.vocab,
			o->embed_backward.pad);
		break;
	case OP_RMSNORM_FORWARD:
		op_rmsnorm_forward(p, o->rmsnorm_forward.y, o->rmsnorm_forward.rstd, o->rmsnorm_forward.x, o->rmsnorm_forward.w,
			o->rmsnorm_forward.n, o->rmsnorm_forward.h, o->rmsnorm_forward.eps);
		break;
	case OP_RMSNORM_BACKWARD:
		op_rmsnorm_backward(p, o->rmsnorm_backward.dx, o->rmsnorm_backward.add_dx, o->rmsnorm_backward.dw,
			o->rmsnorm_backward.beta, o->rmsnorm_backward.dy, o->rmsnorm_backward.x, o->rmsnorm_backward.w,
			o->rmsnorm_backward.rstd, o->rmsnorm_backward.n, o->rmsnorm_backward.h);
		break;
	case OP_ROPE_FORWARD:
	case OP_ROPE_BACKWARD: run_rope(p, o); break;
	case OP_ATTENTION_FORWARD:
	case OP_ATTENTION_BACKWARD: run_attention(p, o); break;
	case OP_SWIGLU_FORWARD:
		op_swiglu_forward(p, o->swiglu_forward.y, o->swiglu_forward.gu, o->swiglu_forward.n, o->swiglu_forward.f);
		break;
	case OP_SWIGLU_BACKWARD:
		op_swiglu_backward(p, o->swiglu_backward.dgu, o->swiglu_backward.y, o->swiglu_backward.dy,
			o->swiglu_backward.gu, o->swiglu_backward.n, o->swiglu_backward.f);
		break;
	case OP_CROSS_ENTROPY: run_cross_entropy(p, o); break;
	}
}
