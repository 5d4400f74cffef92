/* device.h: what mt-stream asks of a device, in the CUDA manner.
 *
 * A device has memory and three queues. A queue runs what is launched on it one after another; queues run beside each
 * other, and nothing orders one against another but events:
 *
 *     host ──launch──▶ Q_WEIGHTS   store → weight slots          ──event──▶ ┐
 *                      Q_COMPUTE   the layer templates           ◀──────────┘ ──event──▶ ┐
 *                      Q_GRADS     gradient slots → ring blocks  ◀───────────────────────┘ ──event──▶ host pushes
 *
 * An event is a place in a queue: "all that was launched on it so far". The host only ever launches, records and waits
 * for events; it never touches device memory. `cpu` maps queues to threads, `chaos` is cpu with every freedom that
 * queues and events leave used against us.
 *
 * Element types. Activations and weights on the device are of the device's own element type (dev->elem bytes each: fp32
 * on cpu); statistics, gradients of weights and losses are fp32 or wider on every device. In argument comments N is
 * tokens, H hidden size, V vocabulary; pointers are device memory unless they say host.
 */
#ifndef MT_STREAM_DEVICE_H
#define MT_STREAM_DEVICE_H

#include "mt.h"
#include "ops.h"

enum queue { Q_COMPUTE, Q_WEIGHTS, Q_GRADS, QUEUES };

struct event {
	enum queue queue;
	uint64_t at;
}; /* {0}: always over */

enum op_code {
	OP_NONE,
	OP_COPY,
	OP_ZERO,
	OP_DISCARD,
	OP_WEIGHTS_IN,
	OP_GRADS_OUT,
	OP_GEMM,
	OP_BIAS_BACKWARD,
	OP_EMBED_FORWARD,
	OP_EMBED_BACKWARD,
	OP_RMSNORM_FORWARD,
	OP_RMSNORM_BACKWARD,
	OP_ROPE_FORWARD,
	OP_ROPE_BACKWARD,
	OP_ATTENTION_FORWARD,
	OP_ATTENTION_BACKWARD,
	OP_SWIGLU_FORWARD,
	OP_SWIGLU_BACKWARD,
	OP_CROSS_ENTROPY,
	OP_GRADS_FINAL,
};

const char *op_name(enum op_code);

/* An operation and its arguments, copied at launch. ops.h says what each computes. */
struct op {
	enum op_code code;
	union {
		struct {
			void *dst;       /* (bytes), device or host */
			const void *src; /* (bytes), device or host */
			size_t bytes;
		} copy;
		struct {
			void *dst; /* (bytes) */
			size_t bytes;
		} zero, discard; /* discard: the contents are not needed any more */
		struct {
			void *dst;       /* (n) */
			const void *src; /* host: (n) of type `from` */
			int64_t n;
			enum mt_dtype from;
		} weights_in;
		/* A gradient array of `elems` elements, all of them final, leaves in pieces, in order, the first with off 0 */
		struct {
			void *dst;        /* host: (n) of type `to` */
			const float *src; /* (n): elements off .. off + n - 1 of the array */
			int64_t n;
			enum mt_dtype to;
			int64_t off, elems;
		} grads_out;
		/* A gradient array is final now, on the compute queue: a device may convert it in place. From here to the last
		 * grads_out nobody else reads it. */
		struct {
			float *src; /* (n) */
			int64_t n;
			enum mt_dtype to;
		} grads_final;
		struct gemm_args gemm;
		struct bias_backward_args bias_backward;
		struct embed_forward_args embed_forward;
		struct embed_backward_args embed_backward;
		struct rmsnorm_forward_args rmsnorm_forward;
		struct rmsnorm_backward_args rmsnorm_backward;
		struct rope_args rope;
		struct attention_args attention;
		struct swiglu_forward_args swiglu_forward;
		struct swiglu_backward_args swiglu_backward;
		struct cross_entropy_args cross_entropy;
	};
};

/* Work memory with which attention is computed in another, faster way: `fixed` bytes, `table` more for each row of a
 * chunk, and `row` more for each of those, of `rows` at most, that are computed at once, kv_heads key-value heads at a
 * time. rows 0: there is no such way. */
struct attention_need {
	uint64_t fixed, table, row;
	uint32_t rows, kv_heads;
	bool selected; /* the run computes such rows this way */
};

struct gpu {         /* what a GPU says of itself */
	char model[256]; /* "NVIDIA H100 80GB HBM3" */
	int capability;  /* 90: sm_90 */
	int multiprocessors, clock_khz, memory_khz, bus_bits;
};

struct device {
	const char *name; /* as the run record has it: devices of one name give the same bits */
	/* for the run record, settled when it is attached: engines with their versions, and what else of the machine
	 * decides bits. A device whose words are others gives other bits. Less than 64 bytes each */
	const char *gemm, *attention, *machine;
	size_t elem;           /* bytes of an activation's or weight's element; settled when it is attached */
	const struct gpu *gpu; /* NULL: it is none, and its memory is the host's */
	uint64_t own;          /* bytes of device memory that it holds for itself, from when it was attached on */
	struct trace *trace;   /* wants the times of all operations; NULL: nobody does (trace.h) */

	/* Before anything else: the run whose weights and gradients will move, and this stage's slot in it. NULL: the
	 * device has no need to know. 0 or -ex */
	int (*attach)(struct device *, struct mt_run *, int slot);
	/* Bytes of device memory that alloc could give now; NULL: its memory is the host's */
	uint64_t (*room)(struct device *);
	/* Device memory, aligned to 2 MiB; NULL: not there. Not to be called while a micro-batch is under way. */
	void *(*alloc)(struct device *, size_t bytes);
	void (*release)(struct device *, void *, size_t bytes);
	/* Host memory that copies from and to the device are fast with; NULL: malloc and free do. */
	void *(*host_alloc)(struct device *, size_t bytes);
	void (*host_release)(struct device *, void *);
	/* The host memory that gradients will leave into, said once, before the first do; NULL: the device has no need to
	 * know. */
	void (*host_register)(struct device *, const void *, size_t bytes);
	/* Host memory of that type as the device's operations can read it in place; NULL: weights must be copied in. */
	const void *(*zero_copy)(struct device *, const void *host, enum mt_dtype);

	/* While on, what is launched is only shown: the device settles how it will compute it, by what the run record's
	 * table says of it (mt_choice_find), and enters there what it chose itself (mt_choice_enter). It may use the memory
	 * that the operations name; it runs none of them, and events are over. Nothing is under way. NULL: nothing to
	 * settle. 0 or
	 * -ex */
	int (*autotune)(struct device *, bool on);
	/* What rows of seq tokens, packed with documents or not, would need for that other way of attention; settled: the
	 * run computes them so. Else settle with it or without: *with becomes what stands in the run record. It is without
	 * where the way proves wrong on a row of that length, which takes memory beside what alloc gave out: less than a
	 * plan for such rows. 0 or -ex. Both NULL: there is one way only. */
	struct attention_need (*attention_need)(struct device *, uint32_t seq, bool packed, bool train);
	int (*attention_select)(struct device *, uint32_t seq, bool *with);

	void (*launch)(struct device *, enum queue, const struct op *);
	struct event (*record)(struct device *, enum queue);
	void (*wait)(struct device *, enum queue, struct event); /* what is launched after it runs after the event */
	bool (*query)(struct device *, struct event);
	int (*sync)(struct device *, struct event); /* the host waits; 0, or -ex: the device failed */
	/* All queues are at rest: enter the times of operations in the trace. NULL: it does so as they run. */
	void (*times)(struct device *);
	void (*close)(struct device *);
};

/* threads: of the compute queue. NULL: no memory or threads. */
struct device *device_cpu(int threads);
struct device *device_chaos(int threads, uint64_t seed);
/* GPU `ordinal`. NULL: mt_errmsg() says why, *ex how to exit (78: no such GPU, or what it needs is not installed) */
struct device *device_cuda(int ordinal, int *ex);

/* Every queue is at rest. 0 or -ex. */
int device_sync(struct device *);

/* Run one operation now, for devices whose memory is the host's. */
void cpu_execute(struct pool *, const struct op *);

#endif
