/* mla.h: q, k and v of multi-head latent attention */
#ifndef MT_STREAM_OPS_MLA_H
#define MT_STREAM_OPS_MLA_H

#include "common.h"

/* Between the projections of multi-head latent attention (arXiv 2405.04434) and attention, whose k has parts that do
 * not turn, and one part of rope_dim elements that does and that all heads share. kv has, head by head, k's first part
 * and v. Forward: q's last rope_dim elements turn, all of q is multiplied by the temperature (rope_args), and k and v
 * are written. Backward: the gradients of q, k and v become those of q before it, of kv and of kr, to which the heads
 * add in their order. */
struct mla_args {
	int64_t n, seq, heads, dim, rope_dim, dim_v; /* of a head of q and k: dim, of which rope_dim turn; of v: dim_v */
	int neighbours;                              /* these, and temperature, and past: as of rope_args */
	const float *cos, *sin;
	const uint32_t *starts;
	float temperature;
	int64_t temperature_positions;
	int64_t past;
	void *qkv; /* (N, heads (2 dim + dim_v)): q | k | v, or their gradients */
	void *kv;  /* (N, heads (dim - rope_dim + dim_v)): forward reads it, backward writes its gradient */
	void *kr;  /* (N, rope_dim), rows ld apart: likewise */
	int64_t ld;
};

/* clang-format off */
#define mla_arrays(A) \
	A(elem, qkv, a->n * a->heads * (2 * a->dim + a->dim_v), 0) \
	A(elem, kv, a->n * a->heads * (a->dim - a->rope_dim + a->dim_v), code == OP_MLA_BACKWARD) \
	A(elem, kr, a->n * a->ld, 0)
/* clang-format on */

#endif
