/* ops.h: all operations of a layer, and what each writes. A file that needs few of them includes their headers instead:
 * an edit of the others then does not rebuild it. */
#ifndef MT_STREAM_OPS_H
#define MT_STREAM_OPS_H

#include "activation.h"
#include "attention.h"
#include "balance.h"
#include "combine.h"
#include "common.h"
#include "conv.h"
#include "delta.h"
#include "embed.h"
#include "gate.h"
#include "gemm.h"
#include "grouped.h"
#include "head.h"
#include "mla.h"
#include "norm.h"
#include "rope.h"
#include "route.h"
#include "rows.h"

/* What an operation writes and does not read: its code, its arguments `a`, when it does so, where, how many elements of
 * how many bytes: elem of the device's, operand of operands, 4 of fp32. Device chaos overwrites all of it before. What
 * is not here is partly kept, or read too. */
/* clang-format off */
#define WRITTEN(W) \
	W(COPY, copy, 1, a->dst, a->bytes, 1) \
	W(WEIGHTS_IN, weights_in, 1, a->dst, a->n, operand) \
	W(GRADS_OUT, grads_out, 1, a->dst, a->n, mt_dtype_bytes(a->to)) \
	W(NARROW, narrow, 1, a->dst, a->n, operand) \
	W(GEMM, gemm, a->beta == 0 && a->ldc == a->n && a->add != a->c, a->c, a->m * a->n, elem) \
	W(BIAS_BACKWARD, bias_backward, a->beta == 0, a->db, a->n, 4) \
	W(EMBED_FORWARD, embed_forward, 1, a->x, a->n * a->h, elem) \
	W(EMBED_BACKWARD, embed_backward, a->beta == 0, a->dw, a->vocab * a->h, 4) \
	W(EMBED_BACKWARD, embed_backward, a->beta == 0, a->dtable, a->at.rows * a->h, 4) \
	W(NORM_FORWARD, norm_forward, 1, a->y, a->n * a->h, elem) \
	W(NORM_FORWARD, norm_forward, 1, a->rstd, a->n, 4) \
	W(NORM_FORWARD, norm_forward, 1, a->mean, a->n, 4) \
	W(NORM_BACKWARD, norm_backward, !a->add_dx && !a->ld && a->dx != a->dy, a->dx, a->n * a->h, elem) \
	W(NORM_BACKWARD, norm_backward, a->beta == 0 && a->w, a->dw, a->h, 4) \
	W(NORM_BACKWARD, norm_backward, a->beta == 0 && a->mean, a->db, a->h, 4) \
	W(ROPE_FORWARD, rope, rope_norms(a), a->pre, a->n * rope_normed(a) * a->dim, elem) \
	W(ROPE_FORWARD, rope, rope_norms(a), a->rstd, a->n * (a->row_norm ? 2 : rope_normed(a)), 4) \
	W(ROPE_BACKWARD, rope, a->qnorm && a->beta == 0, a->dqnorm, rope_q_weights(a), 4) \
	W(ROPE_BACKWARD, rope, a->qnorm && a->beta == 0, a->dknorm, rope_k_weights(a), 4) \
	W(ATTENTION_FORWARD, attention, 1, a->o, a->n * a->heads * attention_dim_v(a), elem) \
	W(ATTENTION_FORWARD, attention, 1, a->lse, a->n * a->heads, 4) \
	W(ATTENTION_BACKWARD, attention, 1, a->dqkv, a->n * attention_row(a), elem) \
	W(ACTIVATION_FORWARD, activation, 1, a->y, a->n * a->f, elem) \
	W(ACTIVATION_BACKWARD, activation, a->dgu != a->gu, a->dgu, a->n * activation_width(a), elem) \
	W(ACTIVATION_BACKWARD, activation, a->y != a->dy, a->y, a->n * a->f, elem) \
	W(ACTIVATION_BACKWARD, activation, a->form == MT_XIELU && a->beta == 0, a->dslope[0], 1, 4) \
	W(ACTIVATION_BACKWARD, activation, a->form == MT_XIELU && a->beta == 0, a->dslope[1], 1, 4) \
	W(SINKS_BACKWARD, sinks_backward, a->beta == 0, a->dsinks, a->heads, 4) \
	W(SCALED_ADD, scaled_add, !a->width && a->y != a->x && a->y != a->add, a->y, a->n, elem) \
	W(COLUMNS, columns, !a->add && a->dst_ld == a->width, a->dst, a->n * a->width, elem) \
	W(JOIN, join, 1, a->dst, a->n, 4) \
	W(ROUTE_FORWARD, route, 1, a->weight, a->n * a->per_token, 4) \
	W(ROUTE_FORWARD, route, 1, a->expert, a->n * a->per_token, 4) \
	W(ROUTE_FORWARD, route, a->slot, a->row, a->n * a->per_token, 4) \
	W(ROUTE_FORWARD, route, a->slot, a->slot, a->n * a->per_token, 4) \
	W(ROUTE_FORWARD, route, a->slot, a->first, a->experts + 1, 4) \
	W(ROUTE_BACKWARD, route, 1, a->dlogits, a->n * a->experts, a->exact ? 4 : elem) \
	W(ROUTE_BACKWARD, route, a->beta == 0, a->dfactor, a->experts, 4) \
	W(DISPATCH, dispatch, 1, a->y, a->rows * a->h, elem) \
	/* sum: between experts' gradients are others' */ \
	W(GROUPED_GEMM, grouped_gemm, !a->sum, (char *)a->c + (size_t)(a->begin * a->n) * elem, a->rows * a->n, elem) \
	W(GROUPED_GEMM, grouped_gemm, a->sum && a->beta == 0, a->c, a->k * a->n, 4) \
	W(GROUPED_BIAS_BACKWARD, grouped_bias_backward, a->beta == 0, a->db, a->n, 4) \
	W(COMBINE, combine, a->y != a->add && a->y != a->sum, a->y, a->n * a->h, elem) \
	/* with slots, the rows may be a window's, whose slots are anywhere */ \
	W(COMBINE_BACKWARD, combine_backward, !a->slot, a->dweight, a->rows, 4) \
	W(CROSS_ENTROPY, cross_entropy, 1, a->losses, a->n, 8) \
	W(CONV_FORWARD, conv, !a->past, a->y, a->n * a->channels, elem) \
	W(CONV_BACKWARD, conv, a->dx_ld == a->channels, a->dx, a->n * a->channels, elem) \
	W(CONV_BACKWARD, conv, a->beta == 0, a->dw, a->channels * a->width, 4) \
	W(CONV_BACKWARD, conv, a->beta == 0 && a->dbias, a->dbias, a->channels, 4) \
	W(DELTA_FORWARD, delta, 1, a->o, a->n * a->value_heads * a->value_dim, elem) \
	W(DELTA_BACKWARD, delta, 1, a->dq, a->n * a->value_heads * a->key_dim, elem) \
	W(DELTA_BACKWARD, delta, 1, a->dk, a->n * a->value_heads * a->key_dim, elem) \
	W(DELTA_BACKWARD, delta, 1, a->dv, a->n * a->value_heads * a->value_dim, elem) \
	W(DELTA_BACKWARD, delta, a->beta == 0, a->da_log, a->value_heads, 4) \
	W(DELTA_BACKWARD, delta, a->beta == 0, a->ddt_bias, a->value_heads, 4) \
	W(DELTA_BACKWARD, delta, a->beta == 0 && !a->correct, a->dskip, a->value_heads, 4) \
	W(DELTA_BACKWARD, delta, 1, a->work, delta_work_elems(a, 0), 4) \
	W(GATED_NORM_FORWARD, gated_norm, 1, a->y, a->n * a->heads * a->dim, elem) \
	W(GATED_NORM_BACKWARD, gated_norm, a->d_o != a->dy, a->d_o, a->n * a->heads * a->dim, elem) \
	W(GATED_NORM_BACKWARD, gated_norm, a->y && a->y != a->dy, a->y, a->n * a->heads * a->dim, elem) \
	W(GATED_NORM_BACKWARD, gated_norm, a->dz_ld == a->heads * a->dim, a->dz, a->n * a->heads * a->dim, elem) \
	W(GATED_NORM_BACKWARD, gated_norm, a->beta == 0, a->dw, gated_norm_weights(a), 4) \
	W(MLA_BACKWARD, mla, 1, a->kv, a->n * a->heads * (a->dim - a->rope_dim + a->dim_v), elem) \
	W(GATE_FORWARD, gate, a->y != a->o, a->y, a->n * a->width, elem) \
	W(GATE_BACKWARD, gate, a->d_o != a->dy, a->d_o, a->n * a->width, elem) \
	W(GATE_BACKWARD, gate, a->y && a->y != a->dy, a->y, a->n * a->width, elem) \
	W(GATE_BACKWARD, gate, a->dgate != a->gate && a->dgate_ld == a->width, a->dgate, a->n * a->width, elem)
/* clang-format on */

#endif
