/* cpu.h: what the files of the cpu device's operations share; only they include it.
 *
 * A pool (shm/pool.h) runs tasks. Files like gemm.c and norm.c split an operation into tasks. A kernel computes a task.
 * Kernels are compiled three times (avx512.c, avx2.c, plain.c include the same kernel-*.h), attention's also with
 * operands of bf16 (avx512bf16.c); the CPU's features select the set.
 */
#ifndef MT_STREAM_CPU_H
#define MT_STREAM_CPU_H

#include "ops/common.h"
#include "pool.h"

struct op;
struct teacher;

/* pool_scratch of a thread, or of the caller of pool_run. Growing it may end the process with 71. */
void *op_scratch(struct pool *, int thread, size_t bytes);
void *op_shared(struct pool *, size_t bytes);
/* Report in one line what there was no memory for, and end the program with 71: for threads inside an operation */
_Noreturn void op_no_memory(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static inline int64_t operand_bytes(int bf16) { return bf16 ? 2 : 4; }

/* Give the operation fp32 copies of the weights that it reads, which are bf16. They live until the next operation.
 * weights.c */
void weights_widen(struct pool *, struct op *);

/* fn for items 0 .. n - 1, in tasks of `each` items: from `first` to end - 1 */
typedef void task_fn(const void *args, int64_t first, int64_t end);
void run_tasks(struct pool *, int64_t n, int64_t each, task_fn *, const void *args);

/* Rows split for reductions over rows, into row_blocks() blocks of block_rows(), the last one shorter: as many as give
 * each at least 32 rows, at most 64 (they bound the memory of the partial sums). The number of rows alone decides. */
int64_t block_rows(int64_t rows);
int64_t row_blocks(int64_t rows);
/* A block is a task */
void run_rows(struct pool *, int64_t rows, task_fn *, const void *args);
/* Define an operation whose rows are computed one by one, by the kernel of the same name */
#define ROWS_OPERATION(op, args) \
	static void op##_rows(const void *a, int64_t first, int64_t end) { cpu_kernels()->op(a, first, end); } \
	void op_##op(struct pool *pool, const struct args##_args *a) { run_rows(pool, a->n, op##_rows, a); }
/* dst (n) = beta dst + the sums over blocks of rows, in their order; fn adds a block's to sum (n), which is zeros */
typedef void rows_fn(const void *args, int64_t first, int64_t end, float *sum);
void sum_rows(struct pool *, int64_t rows, rows_fn *fn, const void *args, float *dst, float beta, int64_t n);
/* The same with several arrays, which stand one after another in fn's sum; of none, sum is NULL */
struct sums {
	float *dst;
	int64_t n;
};
void sum_rows_each(struct pool *, int64_t rows, rows_fn *fn, const void *args, const struct sums *, int count,
	float beta);

/* Rows first .. end - 1 of y (n, width) rounded to bf16; as NULL: they are not. misc.c */
void narrow_rows(uint16_t *as, const void *y, int64_t width, int64_t first, int64_t end);

/* p (n) = softmax(logit); returns logsumexp(logit). route.c */
double route_softmax(const float *logit, int64_t n, double *p);
/* The best `wanted` of n scores, best first, equal ones by their number; not a number is the worst of all. n is at most
 * MT_EXPERTS. route.c */
void route_best(const float *score, int64_t n, uint32_t *chosen, int64_t wanted);

/* A GEMM split into tiles, by its shape alone; a tile runs on one thread. gemm.c */
struct gemm_tiles {
	const struct gemm_args *g;
	struct tiling {
		int64_t count, each;
	} m, n; /* a length as `count` tiles of `each`, the last shorter */
};
struct gemm_tiles gemm_split(const struct gemm_args *);
/* tile: 0 .. m.count n.count - 1, on this thread of the pool */
void gemm_tile(struct pool *, int thread, const struct gemm_tiles *, int64_t tile);

/* op_gemm with operands of bf16 that are rounded first. fp8.c */
void gemm_fp8(struct pool *, const struct gemm_args *);
enum { FP8_COLUMNS = 64 }; /* of a task */

/* A run of consecutive tokens of one document: queries first .. end - 1 of the document that starts at begin. */
struct queries {
	int64_t begin, first, end;
};
/* Split n tokens, rows of seq, into runs of at most `longest`. A document starts where `starts` says, or with a row;
 * the first one starts `past` tokens before its first token. Returns their number. In the pool's shared scratch.
 * reduce.c */
int64_t documents_split(struct pool *, int64_t n, int64_t seq, const uint32_t *starts, int64_t past, int64_t longest,
	struct queries **);
enum { ATTENTION_GROUP = 256 }; /* queries of a forward task, at most */

struct attention_kernels {
	size_t (*scratch)(int64_t dim); /* bytes, for either direction */
	void (*forward)(const struct attention_args *, const struct queries *, int64_t head, float *scratch);
	/* the whole document: queries->first == queries->begin */
	void (*backward)(const struct attention_args *, const struct queries *, int64_t kv_head, float *scratch);
};

struct kernels {
	const char *name;
	/* rows first .. end - 1; dw, db (h) +=; each NULL where there is none */
	void (*norm_forward)(const struct norm_forward_args *, int64_t first, int64_t end);
	void (*norm_backward)(const struct norm_backward_args *, float *dw, float *db, int64_t first, int64_t end);
	void (*column_sums)(float *sum, const float *x, int64_t rows, int64_t n, int64_t ld);
	/* rows first .. end - 1; alpha: MT_XIELU's slopes of both sides; backward: sums, the gradients of both, += */
	void (
		*activation)(const struct activation_args *, const float alpha[2], double sums[2], int64_t first, int64_t end);
	/* tokens first .. end - 1; dqnorm, dknorm +=, NULL without norms */
	void (*rope_forward)(const struct rope_args *, int64_t first, int64_t end);
	void (*rope_backward)(const struct rope_args *, float *dqnorm, float *dknorm, int64_t first, int64_t end);
	const struct attention_kernels *attention;
	/* tokens first .. end - 1; sum (NH) += */
	void (*sinks_backward)(const struct sinks_backward_args *, int64_t first, int64_t end, float *sum);
	/* -log softmax(row)[target]; backward: row becomes (softmax - onehot) * scale */
	double (*cross_entropy)(float *row, int64_t target, int64_t vocab, float scale, int backward);
	/* the same backward, times 1 - (row / cap)^2 */
	double (*cross_entropy_capped)(float *row, int64_t target, int64_t vocab, float scale, float cap);
	/* the same with a teacher's words of the row; logit_scale is part of scale */
	double (*distill)(float *row, int64_t target, int64_t vocab, const struct teacher *, const uint32_t *words,
		float scale, float cap, int backward);
	void (*cap_logits)(float *x, int64_t n, float scale, float cap);
	/* y = (add + scale * x) * factor; add NULL: zeros; y may be x or add */
	void (*scaled_add)(float *y, const float *x, const float *add, float scale, float factor, int64_t n);
	void (*add)(float *y, const float *x, int64_t n); /* y += x */
	/* y (n) = before + weight[0] x[0] + weight[1] x[1] ... + add, in this order; before, add NULL: zeros; y may
	 * be before or add */
	void (*weighted_sum)(float *y, const float *before, const float *const *x, const float *weight, int64_t rows,
		const float *add, int64_t n);
	double (*dot_fp64)(const float *x, const float *y, int64_t n);
	void (*scale)(float *x, float w, int64_t n); /* x *= w */
	void (*widen)(float *dst, const uint16_t *src, int64_t n);
	void (*narrow)(uint16_t *dst, const float *src, int64_t n);
	/* dst = src rounded as ops/fp8.h says: a row of n; at most FP8_COLUMNS columns, n of them */
	void (*fp8_row)(uint16_t *dst, const uint16_t *src, int64_t n);
	void (*fp8_columns)(uint16_t *dst, int64_t dst_ld, const uint16_t *src, int64_t ld, int64_t rows, int64_t n);
	/* dst (cols, rows) = the transposed src (rows, cols) */
	void (*transpose)(float *dst, int64_t dst_ld, const float *src, int64_t src_ld, int64_t rows, int64_t cols);
	/* tokens first .. end - 1; dw (channels, width), dbias (channels) +=; dbias NULL where there is none */
	void (*conv_forward)(const struct conv_args *, int64_t first, int64_t end);
	void (*conv_backward)(const struct conv_args *, float *dw, float *dbias, int64_t first, int64_t end);
	void (*gated_norm_forward)(const struct gated_norm_args *, int64_t first, int64_t end);
	void (*gated_norm_backward)(const struct gated_norm_args *, float *dw, int64_t first, int64_t end);
	void (*mla_forward)(const struct mla_args *, int64_t first, int64_t end);
	void (*mla_backward)(const struct mla_args *, int64_t first, int64_t end);
	void (*gate_forward)(const struct gate_args *, int64_t first, int64_t end);
	void (*gate_backward)(const struct gate_args *, int64_t first, int64_t end);
	void (*mix_forward)(const struct mix_args *, int64_t first, int64_t end);
	void (*mix_backward)(const struct mix_args *, int64_t first, int64_t end);
	void (*magnitude_forward)(const struct magnitude_args *, int64_t first, int64_t end);
	void (*magnitude_backward)(const struct magnitude_args *, int64_t first, int64_t end);
	/* one value head of a document; bytes of scratch, with room for some states: backward, of a segment's chunks */
	size_t (*delta_scratch)(const struct delta_args *, int64_t states);
	void (*delta_forward)(const struct delta_args *, const struct queries *, int64_t head, float *scratch);
	void (*delta_backward)(const struct delta_args *, const struct queries *, int64_t head, float *scratch);
	/* tokens first .. end - 1, from what delta_backward left in work; the gradients of a_log, dt_bias and skip, one
	 * after another, += */
	void (*delta_gates_backward)(const struct delta_args *, float *sum, int64_t first, int64_t end);
	/* a group of channels of a row; backward: sums over both in work; bytes of scratch */
	size_t (*scan_scratch)(const struct scan_args *);
	void (*scan_forward)(const struct scan_args *, int64_t row, int64_t group, float *scratch);
	void (*scan_backward)(const struct scan_args *, int64_t row, int64_t group, float *scratch);
};
extern const struct kernels cpu_kernels_plain;
#if defined(__x86_64__)
extern const struct kernels cpu_kernels_avx2, cpu_kernels_avx512;
extern const struct attention_kernels attention_avx512_bf16;
#endif

/* Attention with operands of bf16. NULL: this CPU has no AVX512-BF16, or its is slower than fp32 (gemm.c) */
const struct attention_kernels *attention_bf16(void);

/* The best set that this CPU runs. Tests request a smaller set by the environment variable MT_ISA: plain or avx2. */
const struct kernels *cpu_kernels(void);

#endif
