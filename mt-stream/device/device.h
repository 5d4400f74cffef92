/* device.h: the interface of a device, modelled on CUDA.
 *
 * A device has memory and three queues. A queue runs its operations in the order of their launches. Queues run
 * concurrently; only events order one against another:
 *
 *     host ──launch──▶ Q_WEIGHTS   store → weight slots          ──event──▶ ┐
 *                      Q_COMPUTE   the layer templates           ◀──────────┘ ──event──▶ ┐
 *                      Q_GRADS     gradient slots → ring blocks  ◀───────────────────────┘ ──event──▶ host pushes
 *
 * An event is a place in a queue: "everything launched on it so far". The host launches, records events and waits for
 * them; it never touches device memory. Device `cpu` maps queues to threads. Device `chaos` is a cpu
 * device that delays and reorders operations wherever synchronization allows.
 *
 * Element types. Activations on the device are of the device's own element type (dev->elem bytes each: fp32 on cpu).
 * Operands are weights, and the matrices that GEMMs multiply: of the same type, or, on a cpu that computes in bf16, of
 * bf16 (dev->operand bytes each), to which OP_NARROW rounds activations. Statistics, gradients of weights and losses
 * are fp32 or wider on every device. ops/ explains the operations and the letters of shapes. Pointers are device
 * memory unless they say host.
 */
#ifndef MT_STREAM_DEVICE_H
#define MT_STREAM_DEVICE_H

#include <stdbool.h>
#include <stddef.h>

#include "mt/model.h"
#include "ops/ops.h"

struct mt_run;

enum queue { Q_COMPUTE, Q_WEIGHTS, Q_GRADS, QUEUES };

struct event {
	enum queue queue;
	uint64_t at;
}; /* {0}: has always completed */

const char *op_name(enum op_code);

#define FP8_WORDS ", fp8" /* end of a GEMM library's description, where operands are rounded to FP8 */

/* An operation and its arguments, copied at launch. ops/ says what each computes. */
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
		/* One piece of a gradient array of `elems` final elements. Pieces are copied out in order, the first has off
		 * 0. */
		struct {
			void *dst;        /* host: (n) of type `to` */
			const float *src; /* (n): elements off .. off + n - 1 of the array */
			int64_t n;
			enum mt_dtype to;
			int64_t off, elems;
		} grads_out;
		/* Launched on the compute queue when a gradient array is final: the device may convert it in place. Until the
		 * last grads_out of the array nothing else reads it. */
		struct {
			float *src; /* (n) */
			int64_t n;
			enum mt_dtype to;
		} grads_final;
		/* Activations to operands, rounded to nearest even */
		struct {
			void *dst;       /* (n) */
			const void *src; /* (n) */
			int64_t n;
		} narrow;
		struct gemm_args gemm;
#define MEMBER(args) struct args##_args args;
		OP_ARGS(MEMBER)
#undef MEMBER
	};
};

/* Work memory of the device's attention backend, which computes attention faster than the device's own kernels: `fixed`
 * bytes, `table` more for each row of a chunk, and what the calls need, by kind of layers */
struct attention_need {
	uint64_t fixed, table;
	struct attention_call {
		uint64_t row; /* bytes for each row that is computed at once: */
		uint32_t rows,
			kv_heads; /* `rows` at most, kv_heads key-value heads at a time. rows 0: it takes no such layer */
		bool packs;   /* and rows of several documents, if those were asked for */
	} kind[MT_KINDS];
	bool there;    /* it takes layers of some kind; */
	bool selected; /* and the run computes such rows this way */
};

struct gpu {         /* a GPU's properties */
	char model[256]; /* "NVIDIA H100 80GB HBM3" */
	int capability;  /* 90: sm_90 */
	int multiprocessors, clock_khz, memory_khz, bus_bits;
	bool unified;          /* its memory is the host's */
	bool host_tables;      /* it reads and writes all host memory, by the host's page tables */
	bool reads_registered; /* kernels read registered host memory by the host's pointers */
};

struct device {
	const char *name; /* in the reproducibility record: devices of one name give the same bits */
	/* for the record, known after attach: the libraries with their versions, and what else of the machine decides
	 * bits. A device with other descriptions gives other bits. Less than 64 bytes each */
	const char *gemm, *attention, *machine;
	size_t elem, operand;  /* bytes of an activation's, and of an operand's element; known after attach */
	size_t fp8;            /* bytes of one that GEMMs round to e4m3; 0: they round none. Set before attach */
	bool attention_bf16;   /* cpu: attention rounds its operands to bf16 */
	const struct gpu *gpu; /* NULL: not a GPU, its memory is the host's */
	uint64_t own;          /* bytes of device memory that the device itself uses, known after attach */
	struct trace *trace;   /* gets the times of all operations; NULL: no trace (trace.h) */

	/* Called first: the run whose weights and gradients are copied, and this stage's slot in it. NULL: not needed. 0 or
	 * -ex */
	int (*attach)(struct device *, struct mt_run *, int slot);
	/* Bytes of device memory that alloc could give now; NULL: its memory is the host's */
	uint64_t (*room)(struct device *);
	/* Device memory, aligned to 2 MiB; NULL: no memory. Not during a micro-batch. */
	void *(*alloc)(struct device *, size_t bytes);
	void (*release)(struct device *, void *, size_t bytes);
	/* Pinned host memory, for fast copies from and to the device; NULL: use malloc and free. */
	void *(*host_alloc)(struct device *, size_t bytes);
	void (*host_release)(struct device *, void *);
	/* The host memory that gradients are copied to, once, before the first copy; NULL: not needed. */
	void (*host_register)(struct device *, const void *, size_t bytes);
	/* Select the type of operands, for weights of that type: bf16 or fp32. Before the device is used. attention: as the
	 * run's record has it, followed if this CPU can; NULL: the fastest of the type. 0, or -78: it cannot compute in
	 * bf16. NULL: the run's type is that of operands. */
	int (*compute)(struct device *, enum mt_dtype, const char *attention);
	/* A pointer with which operations read this host memory in place; NULL, or no such function: weights must be copied
	 * in. */
	const void *(*zero_copy)(struct device *, const void *host, enum mt_dtype);
	/* Likewise, of a device for which reading is slow: OP_EMBED_FORWARD reads few rows of this table */
	const void *(*read_rows)(struct device *, const void *host, size_t bytes, enum mt_dtype);

	/* Autotune pass: while on, launched operations do not run. The device selects how to compute each one: as the
	 * reproducibility record's table says (mt_choice_find), else it selects one and enters it (mt_choice_enter). It
	 * may overwrite the memory that the operations name. Events have completed at once. Only while all queues are at
	 * rest. NULL: nothing to select. 0 or -ex */
	int (*autotune)(struct device *, bool on);
	/* Work memory of the attention backend for rows of seq tokens, packed with documents or not. attention_select
	 * selects the backend for them, or the device's own kernels: *with is the wish, then what the record says. A
	 * backend that computes a wrong result on a row of that length is not selected; this check takes memory beside what
	 * alloc gave out: less than a plan for such rows. 0 or -ex. Both NULL: there is no backend. */
	struct attention_need (*attention_need)(struct device *, uint32_t seq, bool packed, bool train);
	int (*attention_select)(struct device *, uint32_t seq, bool *with);

	void (*launch)(struct device *, enum queue, const struct op *);
	struct event (*record)(struct device *, enum queue);
	void (*wait)(struct device *, enum queue, struct event); /* later launches run after the event */
	bool (*query)(struct device *, struct event);
	int (*sync)(struct device *, struct event); /* the host waits; 0, or -ex: the device failed */
	/* Enter the times of operations in the trace, when all queues are at rest. NULL: entered as they run. */
	void (*times)(struct device *);
	void (*close)(struct device *);
};

/* threads: of the compute queue. NULL: no memory or threads. */
struct device *device_cpu(int threads);
struct device *device_chaos(int threads, uint64_t seed);
/* GPU `ordinal`. NULL: mt_errmsg() says why, *ex how to exit (78: no such GPU, or what it needs is not installed) */
struct device *device_cuda(int ordinal, int *ex);

/* What a planner needs to know of GPU `ordinal`, which is not opened: *room: bytes of its memory that are free. 0; -78:
 * there is no such GPU, or what it needs is not installed */
int gpu_find(int ordinal, struct gpu *, uint64_t *room);
/* Print the GPUs, a line each: cuda:N NAME, sm_XY, GiB. 0, -74 or -78 */
int gpu_list(void);

/* Wait until every queue is at rest. 0 or -ex. */
int device_sync(struct device *);

/* compute() and zero_copy() of devices whose memory is the host's */
int cpu_compute(struct device *, enum mt_dtype, const char *attention);
const void *cpu_zero_copy(struct device *, const void *host, enum mt_dtype);
/* Run one operation of the device now */
void cpu_execute(struct pool *, const struct op *, const struct device *);
/* If `next` only rounds what the operation writes, let the operation do so, row by row, while that is in a cache: it
 * then does both. The same bits, a pass over memory less. */
bool cpu_fuse(struct op *, const struct op *next);

#endif
