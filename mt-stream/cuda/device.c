/* device.c: a GPU as a device. Queues are streams, events are CUDA events of a ring; nothing waits for the whole
 * device and nothing is allocated within a step.
 *
 * Copies from and to host memory go straight where that memory is registered with the driver: the gradient ring's
 * blocks before the first step, and the store's weights by a thread, unit by unit in forward order, while the first
 * step is already under way. What is not registered, or cannot be, goes through bounce buffers (host.h).
 *
 * Gradients that leave as bf16 are narrowed in their place, on the compute stream behind the unit's own work: beside it
 * a kernel would have to wait until a matrix product gives up a place for it, which takes longer than a piece's copy.
 *
 * The first error stands: from then on nothing is launched, and whoever waits is told the call, the error and the unit.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "device.h"
#include "engine.h"
#include "gemm.h"
#include "host.h"
#include "kernels.h"
#include "ops.h"
#include "trace.h"

#ifndef EVENTS                     /* smaller for the emulated GPU */
#define EVENTS 1024                /* of a queue, used in turn */
#define REGISTER_MOST (1ull << 30) /* bytes a call of cudaHostRegister, which may hold up other threads' calls */
#endif
#define GEMM_BYTES (64u << 20)     /* cuBLASLt's workspace */
#define BLOCKS 1024                /* registrations of the gradient ring at most */
#define SPARE_LEAST (256ull << 20) /* device memory left to the driver: kernels as they are first used, page tables; */
#define SPARE_PART 32              /* at least this part of what is free */
#define PAGE_TABLE 512             /* registered host memory takes this part of itself: 8 bytes a page */
#define ARENAS 8
#define HAULERS 4 /* threads that copy from and to bounce buffers at most */
#define OWN_WORDS "own tiles, ordered sums"

struct line { /* a queue */
	cudaStream_t stream;
	cudaEvent_t events[EVENTS]; /* record k in k mod EVENTS */
	uint64_t recorded, over;    /* records made; known to be over */
	struct bounce bounce;
};

struct extent {
	const char *base;
	size_t bytes;
};

struct stamp {
	cudaEvent_t event;
	double *at;
};

struct cuda {
	struct device dev;
	struct gpu gpu;
	int ordinal;
	uint64_t spare; /* device memory that is left to the driver */
	struct line q[QUEUES];
	struct cuda_queue compute; /* as the kernels see it */
	struct gemms *gemms;
	struct engine *engine; /* of attention; NULL: our own kernels */
	struct {
		uint32_t seq;
		bool selected, with;
	} rows; /* the last that the run record was asked for */
	char attention[64];
	int sm, sms;     /* compute capability, 90 is 9.0; multiprocessors */
	bool autotuning; /* what is launched is only looked at */
	char machine[64];
	void *gemm_workspace;
	struct extent arenas[ARENAS], pinned[ARENAS]; /* device memory, host memory given out */
	struct pool *haulers;                         /* NULL: copies from and to bounce buffers have one thread */

	struct mt_run *run;
	int slot;
	pthread_t registrar;
	bool registering;
	atomic_bool stop;
	struct ranges weights; /* registered by the thread */
	struct ranges blocks;  /* of the gradient ring */
	atomic_flag refused;   /* a registration, which was said */
	bool unpinned;         /* host memory was refused to be pinned, which was said */

	struct stamp *stamps; /* of the micro-batch at work, where there is a trace; */
	size_t stamps_n, stamps_room;
	double stamps_from; /* when the first one was */

	int ex;        /* 0, or the exit code of the first error; */
	char why[512]; /* its message */
};

/* ---- errors ---- */

static void failed(struct cuda *c, int ex, const char *why)
{
	char activity[128] = "";

	if (c->ex) return;
	c->ex = ex;
	if (c->run) mt_stage_describe(c->run, c->slot, activity, sizeof activity);
	snprintf(c->why, sizeof c->why, "%s%s%s", why, *activity ? "; mt-stream " : "", activity);
}

static bool good(struct cuda *c, cudaError_t e, const char *call)
{
	char why[256];

	if (e == cudaSuccess) return true;
	snprintf(why, sizeof why, "cuda: %s: %s (%s)", call, cudaGetErrorName(e), cudaGetErrorString(e));
	failed(c, e == cudaErrorMemoryAllocation ? MT_EX_NOMEM : MT_EX_IO, why);
	return false;
}

/* ---- events ---- */

static struct line *line(struct cuda *c, enum queue q) { return &c->q[q]; }

static void reach(struct cuda *c, struct line *l, uint64_t at)
{
	if (l->over >= at) return;
	if (good(c, cudaEventSynchronize(l->events[at % EVENTS]), "cudaEventSynchronize")) l->over = at;
}

static bool reached(struct cuda *c, struct line *l, uint64_t at)
{
	if (l->over >= at) return true;
	cudaError_t e = cudaEventQuery(l->events[at % EVENTS]);
	if (e == cudaErrorNotReady) {
		cudaGetLastError(); /* it is noted like an error, and is none */
		return false;
	}
	if (good(c, e, "cudaEventQuery")) l->over = at;
	return true;
}

static uint64_t mark(struct cuda *c, struct line *l)
{
	uint64_t at = ++l->recorded;

	if (at > EVENTS) reach(c, l, at - EVENTS);
	good(c, cudaEventRecord(l->events[at % EVENTS], l->stream), "cudaEventRecord");
	return at;
}

static struct event cuda_record(struct device *d, enum queue queue)
{
	struct cuda *c = (struct cuda *)d;

	return (struct event){queue, c->ex || c->autotuning ? 0 : mark(c, line(c, queue))};
}

static void cuda_wait(struct device *d, enum queue queue, struct event e)
{
	struct cuda *c = (struct cuda *)d;
	struct line *from = line(c, e.queue);

	/* an event whose place in the ring was taken is over */
	if (c->ex || c->autotuning || e.queue == queue || from->over >= e.at) return;
	good(c, cudaStreamWaitEvent(line(c, queue)->stream, from->events[e.at % EVENTS], 0), "cudaStreamWaitEvent");
}

static bool cuda_query(struct device *d, struct event e)
{
	struct cuda *c = (struct cuda *)d;

	return c->ex || reached(c, line(c, e.queue), e.at);
}

static int cuda_sync(struct device *d, struct event e)
{
	struct cuda *c = (struct cuda *)d;

	if (!c->ex) reach(c, line(c, e.queue), e.at);
	return c->ex ? mt_fail(c->ex, "%s", c->why) : 0;
}

/* ---- copies ---- */

static bool within(const struct extent *e, const void *p, size_t bytes)
{
	return (const char *)p >= e->base && (size_t)((const char *)p - e->base) <= e->bytes &&
		bytes <= e->bytes - (size_t)((const char *)p - e->base);
}

static bool on_device(const struct cuda *c, const void *p)
{
	for (int i = 0; i < ARENAS; i++)
		if (c->arenas[i].bytes && within(&c->arenas[i], p, 1)) return true;
	return false;
}

/* How many bytes from p on go the same way, straight or bounced: a copy may not cross from one registration into
 * another */
static size_t alike(struct cuda *c, const void *p, size_t bytes, bool *straight)
{
	const struct ranges *const known[] = {&c->weights, &c->blocks};

	*straight = false;
	for (int i = 0; i < ARENAS; i++)
		if (c->pinned[i].bytes && within(&c->pinned[i], p, bytes)) return *straight = true, bytes;
	for (size_t i = 0; !*straight && i < sizeof known / sizeof *known; i++)
		bytes = ranges_alike(known[i], p, bytes, straight);
	return bytes;
}

static void copy_in(struct cuda *c, struct line *l, void *dst, const void *src, size_t bytes)
{
	bool straight;

	for (size_t at = 0, n; at < bytes && !c->ex; at += n) {
		const char *from = (const char *)src + at;
		void *to = (char *)dst + at;

		n = alike(c, from, bytes - at, &straight);
		good(c,
			straight ? cudaMemcpyAsync(to, from, n, cudaMemcpyHostToDevice, l->stream)
					 : bounce_in(&l->bounce, to, from, n),
			"copy to the device");
	}
}

static void copy_out(struct cuda *c, struct line *l, void *dst, const void *src, size_t bytes)
{
	bool straight;

	for (size_t at = 0, n; at < bytes && !c->ex; at += n) {
		const char *from = (const char *)src + at;
		void *to = (char *)dst + at;

		n = alike(c, to, bytes - at, &straight);
		good(c,
			straight ? cudaMemcpyAsync(to, from, n, cudaMemcpyDeviceToHost, l->stream)
					 : bounce_out(&l->bounce, to, from, n),
			"copy to the host");
	}
}

static void copy(struct cuda *c, struct line *l, void *dst, const void *src, size_t bytes)
{
	if (on_device(c, dst) && on_device(c, src))
		good(c, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, l->stream), "cudaMemcpyAsync on the device");
	else if (on_device(c, dst)) copy_in(c, l, dst, src, bytes);
	else copy_out(c, l, dst, src, bytes);
}

/* ---- registering host memory ---- */

/* Calls of cudaHostRegister that the run's weights take at most */
static unsigned weights_ranges(struct mt_run *r, size_t size)
{
	uint64_t n = 0;

	for (uint32_t u = 0; u < mt_control(r)->n_units; u++) n += mt_unit(r, u)->elems * size / REGISTER_MOST + 1;
	return (unsigned)n;
}

/* Said once: what cannot be had for one piece of shared memory cannot for the others */
static void refused(struct cuda *c, const char *what, cudaError_t e)
{
	if (!atomic_flag_test_and_set(&c->refused))
		mt_say("cuda: cudaHostRegister of %s: %s; copies go through bounce buffers", what, cudaGetErrorName(e));
}

/* Weights, unit by unit in forward order */
static void *registrar_main(void *arg)
{
	struct cuda *c = arg;
	struct mt_control *control = mt_control(c->run);
	size_t size = control->dtype == MT_BF16 ? 2 : 4;

	cudaSetDevice(c->ordinal);
	for (uint32_t u = 0; u < control->n_units; u++) {
		const struct mt_unit *unit = mt_unit(c->run, u);
		const char *w = mt_at(c->run, unit->w);
		size_t bytes = unit->elems * size;

		for (size_t at = 0, piece; at < bytes; at += piece) {
			piece = bytes - at < REGISTER_MOST ? bytes - at : REGISTER_MOST;
			if (atomic_load(&c->stop)) return NULL;
			cudaError_t e = ranges_add(&c->weights, w + at, piece);
			if (e != cudaSuccess) {
				refused(c, "weights", e);
				return NULL;
			}
		}
	}
	return NULL;
}

static void cuda_host_register(struct device *d, const void *p, size_t bytes)
{
	struct cuda *c = (struct cuda *)d;
	cudaError_t e = cudaSuccess;

	for (size_t at = 0; at < bytes && e == cudaSuccess; at += REGISTER_MOST)
		e = ranges_add(&c->blocks, (const char *)p + at, bytes - at < REGISTER_MOST ? bytes - at : REGISTER_MOST);
	if (e != cudaSuccess) refused(c, "the gradient ring", e);
}

/* ---- operations ---- */

struct key {
	char text[MT_CHOICE_KEY];
};

static struct key rows_key(uint32_t seq)
{
	struct key k;

	snprintf(k.text, sizeof k.text, "attention of rows of %u", seq);
	return k;
}

/* What the run record says of rows of seq tokens */
static void rows_find(struct cuda *c, uint32_t seq)
{
	uint8_t with = 0;

	if (c->rows.selected && c->rows.seq == seq) return;
	c->rows.seq = seq;
	c->rows.selected = mt_choice_find(c->run, rows_key(seq).text, &with, sizeof with);
	c->rows.with = with;
}

static struct attention_need cuda_attention_need(struct device *d, uint32_t seq, bool packed, bool train)
{
	struct cuda *c = (struct cuda *)d;
	struct attention_need need = {0};

	if (!c->engine) return need;
	rows_find(c, seq);
	if (c->rows.selected && !c->rows.with) return need;
	need = engine_need(c->engine, seq, packed, train);
	need.selected = c->rows.selected;
	return need;
}

/* Does the engine compute a row of so many tokens as our own kernels do? */
static bool row_tried(struct cuda *c, uint32_t seq)
{
	int rc = engine_trial_row(c->engine, &c->compute, mt_geometry(c->run), seq);

	if (rc)
		mt_say("cuda: attention of rows of %u tokens by our own kernels: %s: %s", seq, engine_name(c->engine),
			mt_errmsg());
	return !rc;
}

static int cuda_attention_select(struct device *d, uint32_t seq, bool *with)
{
	struct cuda *c = (struct cuda *)d;
	uint8_t stands = *with && row_tried(c, seq);
	bool broken = *with && cudaDeviceSynchronize() != cudaSuccess;
	int rc = mt_choice_enter(c->run, rows_key(seq).text, &stands, sizeof stands);

	if (rc) return rc;
	if (broken) /* a successor finds the choice, and does not try */
		return mt_fail(MT_EX_IO,
			"cuda: attention of a row of %u tokens by %s broke the device: start mt-stream again; "
			"its own kernels will compute it",
			seq, engine_name(c->engine));
	*with = stands;
	rows_find(c, seq);
	return 0;
}

static void run_attention(struct cuda *c, const struct op *o)
{
	const struct attention_args *a = &o->attention;

	rows_find(c, (uint32_t)a->seq);
	if (c->engine && c->rows.with) {
		int rc = 0;

		MT_ASSERT(a->work && !a->dqkv == (o->code == OP_ATTENTION_FORWARD));
		if (c->autotuning) engine_rehearse(c->engine, a);
		else rc = engine_run(c->engine, &c->compute, a);
		if (rc) failed(c, -rc, mt_errmsg());
	} else if (c->autotuning) return;
	else if (o->code == OP_ATTENTION_FORWARD) cuda_attention_forward(&c->compute, a);
	else cuda_attention_backward(&c->compute, a);
}

/* Of an array that was made what leaves when it was final */
static void run_grads_out(struct cuda *c, struct line *l, const struct op *o)
{
	const float *base = o->grads_out.src - o->grads_out.off;
	size_t size = o->grads_out.to == MT_BF16 ? 2 : 4;

	copy_out(c, l, o->grads_out.dst, (const char *)base + (size_t)o->grads_out.off * size,
		(size_t)o->grads_out.n * size);
}

/* copies run on any queue, the rest on the compute queue, whose work memory it shares */
static void run(struct cuda *c, struct line *l, const struct op *o)
{
	const struct cuda_queue *q = &c->compute;
	int rc = 0;

	switch (o->code) {
	case OP_NONE:
	case OP_DISCARD: break;
	case OP_COPY: copy(c, l, o->copy.dst, o->copy.src, o->copy.bytes); break;
	case OP_ZERO: good(c, cudaMemsetAsync(o->zero.dst, 0, o->zero.bytes, l->stream), "cudaMemsetAsync"); break;
	case OP_WEIGHTS_IN:
		copy_in(c, l, o->weights_in.dst, o->weights_in.src, (size_t)o->weights_in.n * c->dev.elem);
		break;
	case OP_GRADS_OUT: run_grads_out(c, l, o); break;
	case OP_GRADS_FINAL:
		if (o->grads_final.to == MT_BF16) cuda_narrow_in_place(q, o->grads_final.src, o->grads_final.n);
		break;
	case OP_GEMM: rc = gemms_run(c->gemms, q, &o->gemm); break;
	case OP_BIAS_BACKWARD: cuda_bias_backward(q, &o->bias_backward); break;
	case OP_EMBED_FORWARD: cuda_embed_forward(q, &o->embed_forward); break;
	case OP_EMBED_BACKWARD: cuda_embed_backward(q, &o->embed_backward); break;
	case OP_RMSNORM_FORWARD: cuda_rmsnorm_forward(q, &o->rmsnorm_forward); break;
	case OP_RMSNORM_BACKWARD: cuda_rmsnorm_backward(q, &o->rmsnorm_backward); break;
	case OP_ROPE_FORWARD: cuda_rope_forward(q, &o->rope); break;
	case OP_ROPE_BACKWARD: cuda_rope_backward(q, &o->rope); break;
	case OP_ATTENTION_FORWARD:
	case OP_ATTENTION_BACKWARD: run_attention(c, o); break;
	case OP_SWIGLU_FORWARD: cuda_swiglu_forward(q, &o->swiglu_forward); break;
	case OP_SWIGLU_BACKWARD: cuda_swiglu_backward(q, &o->swiglu_backward); break;
	case OP_CROSS_ENTROPY: cuda_cross_entropy(q, &o->cross_entropy); break;
	}
	if (rc) failed(c, -rc, mt_errmsg());
}

/* ---- times, for a trace ---- */

/* The time at which the stream gets here goes to *at */
static void stamp(struct cuda *c, struct line *l, double *at)
{
	if (c->stamps_n == c->stamps_room) {
		size_t more = c->stamps_room ? 2 * c->stamps_room : 1024;
		struct stamp *s = realloc(c->stamps, more * sizeof *s);

		if (!s) return;
		memset(s + c->stamps_room, 0, (more - c->stamps_room) * sizeof *s);
		c->stamps = s;
		c->stamps_room = more;
	}
	struct stamp *s = &c->stamps[c->stamps_n];
	if (!s->event && !good(c, cudaEventCreateWithFlags(&s->event, 0), "cudaEventCreate")) return;
	if (!c->stamps_n++) /* nothing is under way: the stream gets here now */
		c->stamps_from = mt_now();
	s->at = at;
	good(c, cudaEventRecord(s->event, l->stream), "cudaEventRecord");
}

static void cuda_times(struct device *d)
{
	struct cuda *c = (struct cuda *)d;
	float ms;

	for (size_t i = 0; i < c->stamps_n && !c->ex; i++)
		if (good(c, cudaEventElapsedTime(&ms, c->stamps[0].event, c->stamps[i].event), "cudaEventElapsedTime"))
			*c->stamps[i].at = c->stamps_from + (double)ms / 1e3;
	c->stamps_n = 0;
}

/* How an operation will be computed, where there is a choice */
static void settle(struct cuda *c, const struct op *o)
{
	int rc = 0;

	if (o->code == OP_GEMM) {
		rc = gemms_settle(c->gemms, &c->compute, &o->gemm);
	} else if (o->code == OP_ATTENTION_FORWARD || o->code == OP_ATTENTION_BACKWARD) {
		run_attention(c, o);
	}
	if (rc) failed(c, -rc, mt_errmsg());
}

static int cuda_autotune(struct device *d, bool on)
{
	struct cuda *c = (struct cuda *)d;

	c->autotuning = on;
	return c->ex ? mt_fail(c->ex, "%s", c->why) : 0;
}

static void cuda_launch(struct device *d, enum queue queue, const struct op *op)
{
	struct cuda *c = (struct cuda *)d;

	if (c->ex || op->code == OP_NONE || op->code == OP_DISCARD) return;
	if (c->autotuning) {
		settle(c, op);
		return;
	}
	MT_ASSERT(queue == Q_COMPUTE || op->code <= OP_GRADS_OUT);
	struct span *span = trace_span(d->trace, queue, op);
	if (span) stamp(c, line(c, queue), &span->from);
	run(c, line(c, queue), op);
	good(c, cudaGetLastError(), op_name(op->code));
	if (span) stamp(c, line(c, queue), &span->to);
}

/* ---- memory ---- */

static void *cuda_alloc(struct device *d, size_t bytes)
{
	struct cuda *c = (struct cuda *)d;
	void *p = NULL;

	for (int i = 0; i < ARENAS; i++)
		if (!c->arenas[i].bytes) {
			if (cudaMalloc(&p, bytes) != cudaSuccess) {
				cudaGetLastError();
				return NULL;
			}
			c->arenas[i] = (struct extent){p, bytes};
			return p;
		}
	return NULL;
}

static void cuda_release(struct device *d, void *p, size_t bytes)
{
	struct cuda *c = (struct cuda *)d;

	(void)bytes;
	for (int i = 0; p && i < ARENAS; i++)
		if (c->arenas[i].base == p) {
			cudaFree(p);
			c->arenas[i] = (struct extent){0};
		}
}

/* Pinned; where that is refused, any, which is copied through bounce buffers: said once */
static void *cuda_host_alloc(struct device *d, size_t bytes)
{
	struct cuda *c = (struct cuda *)d;
	cudaError_t e = cudaErrorMemoryAllocation;
	void *p = NULL;
	int i = 0;

	while (i < ARENAS && c->pinned[i].bytes) i++;
	if (i < ARENAS && (e = cudaHostAlloc(&p, bytes, cudaHostAllocDefault)) == cudaSuccess) {
		c->pinned[i] = (struct extent){p, bytes};
		return p;
	}
	cudaGetLastError();
	if (!c->unpinned)
		mt_say("cuda: cudaHostAlloc of %.2f MiB for offloaded activations: %s; they are copied through bounce buffers, "
			   "which costs the host one more copy of each",
			(double)bytes / 0x1p20, cudaGetErrorName(e));
	c->unpinned = true;
	return malloc(bytes);
}

/* After an error copies may still be under way, which nobody has waited for */
static void cuda_host_release(struct device *d, void *p)
{
	struct cuda *c = (struct cuda *)d;

	if (c->ex) cudaDeviceSynchronize();
	for (int i = 0; p && i < ARENAS; i++)
		if (c->pinned[i].base == p) {
			c->pinned[i] = (struct extent){0};
			cudaFreeHost(p);
			return;
		}
	free(p);
}

/* What the device holds for itself, and is counted in what mt-stream takes */
static bool own_alloc(struct cuda *c, void **p, size_t bytes, const char *call)
{
	if (!good(c, cudaMalloc(p, bytes), call)) return false;
	c->dev.own += bytes;
	return true;
}

/* What the driver will want of what is free now, before anything was registered */
static uint64_t spare_of(const struct cuda *c, const struct mt_control *control)
{
	size_t available = 0, total = 0;
	uint64_t weights = 0;

	if (cudaMemGetInfo(&available, &total) != cudaSuccess) cudaGetLastError();
	for (uint32_t u = 0; u < control->n_units; u++) weights += mt_unit(c->run, u)->elems * c->dev.elem;
	uint64_t part = available / SPARE_PART;
	return (part > SPARE_LEAST ? part : SPARE_LEAST) + weights / PAGE_TABLE;
}

static uint64_t cuda_room(struct device *d)
{
	struct cuda *c = (struct cuda *)d;
	size_t available = 0, total = 0;

	if (cudaMemGetInfo(&available, &total) != cudaSuccess) cudaGetLastError();
	return available > c->spare ? available - c->spare : 0;
}

static const void *cuda_zero_copy(struct device *d, const void *host, enum mt_dtype dtype)
{
	(void)d, (void)host, (void)dtype;
	return NULL;
}

/* ---- opening and closing ---- */

/* NULL: *why, or nothing to say */
static struct sdpa *library_open(const struct cuda *c, char *why)
{
#if defined(MT_EMU) || defined(HAVE_CUDNN)
	const char *path = getenv("MT_CUDNN");

	return path && !strcmp(path, "none") ? NULL : cudnn_open(c->ordinal, c->sm, c->sms, why);
#else
	(void)c, (void)why; /* said when it was built */
	return NULL;
#endif
}

/* Another way is there, gives what ours gives, and is what the run was begun with if it was begun: it is taken. */
static void engine_find(struct cuda *c, const struct mt_geometry *geo)
{
	const struct mt_record *r = &mt_control(c->run)->record;
	bool set = atomic_load_explicit(&r->set, memory_order_acquire);
	char why[256] = "";

	snprintf(c->attention, sizeof c->attention, OWN_WORDS);
	if (c->dev.elem != 2 || (set && !strncmp(r->attention, OWN_WORDS, sizeof r->attention))) return;
	struct sdpa *sdpa = library_open(c, why);
	if (sdpa) c->engine = engine_open(sdpa, geo);
	if (!c->engine) {
		if (*why && !set) /* else other words than the record's say it */
			mt_say("cuda: attention by our own kernels: %s", why);
		return;
	}
	if (!set && engine_trial(c->engine, &c->compute, geo)) {
		mt_say("cuda: attention by our own kernels: %s: %s", engine_name(c->engine), mt_errmsg());
		engine_close(c->engine);
		c->engine = NULL;
		return;
	}
	snprintf(c->attention, sizeof c->attention, "%s", engine_name(c->engine));
}

/* What is as large as the run says, and what is registered */
static int cuda_attach(struct device *d, struct mt_run *r, int slot)
{
	struct cuda *c = (struct cuda *)d;
	const struct mt_control *control = mt_control(r);
	const struct mt_geometry *geo = mt_geometry(r);

	if (geo->head_dim > 256) return mt_fail(MT_EX_CONFIG, "device cuda: heads of %u: at most 256", geo->head_dim);
	c->run = r;
	c->slot = slot;
	gemms_attach(c->gemms, r);
	c->dev.elem = control->dtype == MT_BF16 ? 2 : 4;
	c->compute = (struct cuda_queue){.stream = c->q[Q_COMPUTE].stream, .elem = (int)c->dev.elem};
	c->compute.work_bytes = cuda_work_bytes((int64_t)control->step_tokens, geo->heads);
	if (!ranges_open(&c->weights, weights_ranges(r, c->dev.elem)) || !ranges_open(&c->blocks, BLOCKS))
		return mt_fail(MT_EX_NOMEM, "no memory for %u units", control->n_units);
	c->spare = spare_of(c, control);
	if (!own_alloc(c, (void **)&c->compute.work, c->compute.work_bytes, "cudaMalloc of work memory"))
		return mt_fail(c->ex, "%s", c->why);
	engine_find(c, geo);
	if (c->ex) return mt_fail(c->ex, "%s", c->why);
	atomic_init(&c->stop, false);
	c->registering = !pthread_create(&c->registrar, NULL, registrar_main, c);
	return 0;
}

static void line_close(struct line *l)
{
	for (int i = 0; i < EVENTS; i++)
		if (l->events[i]) cudaEventDestroy(l->events[i]);
	bounce_close(&l->bounce);
	if (l->stream) cudaStreamDestroy(l->stream);
}

static void cuda_close(struct device *d)
{
	struct cuda *c = (struct cuda *)d;

	atomic_store(&c->stop, true);
	if (c->registering) pthread_join(c->registrar, NULL);
	cudaDeviceSynchronize(); /* after an error, too, nothing may go on in what is given back now */
	ranges_close(&c->weights);
	ranges_close(&c->blocks);
	engine_close(c->engine);
	gemms_close(c->gemms);
	for (size_t i = 0; i < c->stamps_room && c->stamps[i].event; i++) cudaEventDestroy(c->stamps[i].event);
	free(c->stamps);
	for (enum queue q = 0; q < QUEUES; q++) line_close(line(c, q));
	pool_free(c->haulers);
	cudaFree(c->compute.work);
	cudaFree(c->gemm_workspace);
	free(c);
}

static bool line_open(struct cuda *c, struct line *l)
{
	if (!good(c, cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking), "cudaStreamCreate")) return false;
	for (int i = 0; i < EVENTS; i++)
		if (!good(c, cudaEventCreateWithFlags(&l->events[i], cudaEventDisableTiming | cudaEventBlockingSync),
				"cudaEventCreate"))
			return false;
	return good(c, bounce_open(&l->bounce, l->stream, c->haulers), "bounce buffers");
}

static int attribute(const struct cuda *c, enum cudaDeviceAttr a)
{
	int n = 0;

	if (cudaDeviceGetAttribute(&n, a, c->ordinal) != cudaSuccess) cudaGetLastError();
	return n;
}

/* What it says of itself, for predictions */
static void gpu_describe(struct cuda *c, const struct cudaDeviceProp *p)
{
	c->gpu = (struct gpu){
		.capability = 10 * p->major + p->minor,
		.multiprocessors = attribute(c, cudaDevAttrMultiProcessorCount),
		.clock_khz = attribute(c, cudaDevAttrClockRate),
		.memory_khz = attribute(c, cudaDevAttrMemoryClockRate),
		.bus_bits = attribute(c, cudaDevAttrGlobalMemoryBusWidth),
	};
	snprintf(c->gpu.model, sizeof c->gpu.model, "%s", p->name);
	c->dev.gpu = &c->gpu;
}

/* Is GPU `ordinal` there, and one that the kernels were compiled for? 0 or -78 */
static int gpu_find(struct cuda *c, struct cudaDeviceProp *p)
{
	int n = 0;
	cudaError_t e = cudaGetDeviceCount(&n);

	if (e != cudaSuccess || n == 0)
		return mt_fail(MT_EX_CONFIG, "device cuda: no GPU: %s",
			e != cudaSuccess ? cudaGetErrorString(e) : "none found");
	if (c->ordinal >= n) return mt_fail(MT_EX_CONFIG, "device cuda:%d: there are %d GPUs, from 0", c->ordinal, n);
	if (!good(c, cudaSetDevice(c->ordinal), "cudaSetDevice") ||
		!good(c, cudaGetDeviceProperties(p, c->ordinal), "cudaGetDeviceProperties"))
		return mt_fail(c->ex, "%s", c->why);
	if (p->major < 8)
		return mt_fail(MT_EX_CONFIG, "device cuda:%d: '%s' is of compute capability %d.%d: 8.0 or later is needed",
			c->ordinal, p->name, p->major, p->minor);
	return 0;
}

static int cuda_open(struct cuda *c)
{
	struct cudaDeviceProp p;
	int rc = gpu_find(c, &p), ex = MT_EX_CONFIG;

	if (!rc) {
		gpu_describe(c, &p);
		c->haulers = pool_create(mt_cores() < HAULERS ? mt_cores() : HAULERS);
	}
	for (enum queue q = 0; !rc && q < QUEUES; q++)
		if (!line_open(c, line(c, q))) rc = -c->ex;
	if (!rc &&
		(!good(c, cuda_kernels_prepare(), "cudaFuncSetAttribute") ||
			!own_alloc(c, &c->gemm_workspace, GEMM_BYTES, "cudaMalloc of cuBLASLt's workspace")))
		rc = -c->ex;
	if (!rc && !(c->gemms = gemms_open(c->gemm_workspace, GEMM_BYTES, &ex))) return -ex;
	if (rc) return c->ex ? mt_fail(c->ex, "%s", c->why) : rc;
	c->dev.gemm = gemms_name(c->gemms);
	snprintf(c->machine, sizeof c->machine, "%.36s, sm_%d%d, %d SMs", p.name, p.major, p.minor, p.multiProcessorCount);
	c->dev.machine = c->machine;
	c->sm = p.major * 10 + p.minor;
	c->sms = p.multiProcessorCount;
	return 0;
}

struct device *device_cuda(int ordinal, int *ex)
{
	struct cuda *c = calloc(1, sizeof *c);

	if (!c) {
		*ex = -mt_fail(MT_EX_NOMEM, "device cuda: no memory");
		return NULL;
	}
	c->dev = (struct device){
		.name = "cuda",
		.attention = c->attention,
		.elem = sizeof(float),
		.room = cuda_room,
		.alloc = cuda_alloc,
		.release = cuda_release,
		.zero_copy = cuda_zero_copy,
		.launch = cuda_launch,
		.record = cuda_record,
		.wait = cuda_wait,
		.query = cuda_query,
		.sync = cuda_sync,
		.close = cuda_close,
		.times = cuda_times,
		.attach = cuda_attach,
		.autotune = cuda_autotune,
		.attention_need = cuda_attention_need,
		.attention_select = cuda_attention_select,
		.host_alloc = cuda_host_alloc,
		.host_release = cuda_host_release,
		.host_register = cuda_host_register,
	};
	c->ordinal = ordinal;
	atomic_flag_clear(&c->refused);
	int rc = cuda_open(c);
	if (rc) {
		free(c);
		*ex = -rc;
		return NULL;
	}
	return &c->dev;
}
