/* sdpa.h: attention as a library computes it: one call for sequences of one length, or for documents of many lengths.
 * cudnn.cc is cuDNN; the emulated GPU has its own attention backend (tests/gpu/emu/sdpa.cc).
 *
 * bf16, causal, deterministic. Tensors lie as everywhere here: qkv and dqkv (N, (NH + NKV) D + NKV DV), o and d_o
 * (N, NH DV), N the tokens of all sequences in their order.
 * Statistics (lse) are the library's own: (batch, NH, seq), or where ragged (N, NH).
 */
#ifndef MT_STREAM_CUDA_SDPA_H
#define MT_STREAM_CUDA_SDPA_H

#include <stddef.h>
#include <stdint.h>
#ifdef MT_EMU
#include "emu.h"
#else
#include <cuda_runtime_api.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* What a plan is made for; compared as bytes, so it is cleared before it is filled */
struct sdpa_shape {
	int64_t batch, seq;      /* sequences, and tokens of each; ragged: the most of each, some may have none */
	int64_t heads, kv_heads; /* NH, NKV */
	int64_t dim, dim_v;      /* of a head of q and k; of v and o */
	int64_t window;          /* 0: none, else a token sees itself and window - 1 before it */
	float scale;
	int ragged, backward;
};

/* Elements of a token in qkv, and in o */
static inline int64_t sdpa_row(const struct sdpa_shape *s)
{
	return (s->heads + s->kv_heads) * s->dim + s->kv_heads * s->dim_v;
}
static inline int64_t sdpa_out(const struct sdpa_shape *s) { return s->heads * s->dim_v; }

struct sdpa_args { /* device memory */
	const void *qkv;
	void *o;
	float *lse; /* forward writes it and o, backward reads them */
	const void *d_o;
	void *dqkv;
	/* ragged: (batch + 1) where each sequence starts in each tensor, in elements, ascending; lengths (batch): its
	 * tokens. Tokens of other sequences may lie between two of them. */
	const int64_t *qkv_at, *o_at, *lse_at;
	const int32_t *lengths;
	void *work; /* of the plan's *bytes */
};

struct sdpa {
	char name[48]; /* with its version, for the reproducibility record */
	char why[256]; /* the last failure, one line */
	/* A plan; *bytes: of work memory that it needs. NULL: the library does not take the shape. May take seconds. */
	void *(*plan)(struct sdpa *, const struct sdpa_shape *, size_t *bytes);
	void (*plan_release)(struct sdpa *, void *plan);
	int (*run)(struct sdpa *, void *plan, cudaStream_t, const struct sdpa_args *); /* 0, or -1 */
	void (*close)(struct sdpa *);
};

/* cuDNN for the GPU that is current, of compute capability sm (90: 9.0) with `sms` multiprocessors. NULL: not there,
 * *why (256 bytes) says so. */
struct sdpa *cudnn_open(int ordinal, int sm, int sms, char *why);
/* cuDNN for a GPU that is not there but described: it makes plans and cannot run them. shared: bytes of shared memory
 * that a block may use */
struct sdpa *cudnn_describe(int sm, int sms, int shared, char *why);

#ifdef __cplusplus
}
#endif
#endif
