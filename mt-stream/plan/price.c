/* price.c: what the operations of blocks and head are made of: FLOPs, bytes, kernels.
 *
 * A device that computes nothing gets all that the calls of a block's list launch (layers/list.h). So a mixer is priced
 * as it is computed. GEMMs, attention and the delta rule count by their FLOPs, all others by the bytes of their arrays
 * (ops/).
 */
#include "layers/layers.h"
#include "layers/list.h"
#include "mt/layout.h"
#include "ops/fp8.h"
#include "plan.h"

enum { TOKENS = 4096 };        /* of a call */
enum { READ_AND_WRITTEN = 8 }; /* bytes of a weight's gradient that are */

struct counter {
	struct device dev; /* first */
	struct work *work;
	double times;  /* count it as often */
	int64_t rows;  /* of experts */
	bool slice;    /* the call is one of each slice, not of each chunk */
	uint32_t kind; /* of layers */
};

/* Operations whose arrays count more than once: because they are read and written, or read twice; on a GPU also because
 * their kernels do not reach device memory's bandwidth (README.md). kernels: with one for sums of parts */
static const struct {
	double cores, gpu;
	int kernels;
} prices[OP_GRADS_FINAL + 1] = {
	[OP_BIAS_BACKWARD] = {1, 1, 2},
	[OP_NORM_BACKWARD] = {4.0 / 3, 2.17, 2},
	[OP_ROPE_FORWARD] = {1.5, 3, 1}, /* with norms */
	[OP_ROPE_BACKWARD] = {1.5, 4.2, 2},
	[OP_ATTENTION_BACKWARD] = {1, 1, 3},
	[OP_CROSS_ENTROPY] = {3, 3.3, 2},
	[OP_ROUTE_FORWARD] = {1, 1, 4},
	[OP_DISPATCH] = {1, 1.65, 1},
	[OP_COMBINE] = {1, 1.65, 1},
	[OP_COMBINE_BACKWARD] = {1.75, 2.1, 1},
	[OP_CONV_FORWARD] = {1, 3.2, 1},
	[OP_CONV_BACKWARD] = {1, 5.9, 2},
	[OP_SCAN_FORWARD] = {2.4, 13, 1}, /* arithmetic bounds it; of GPUs by its instructions, none has run it */
	[OP_SCAN_BACKWARD] = {5, 38, 4},
	[OP_GATED_NORM_FORWARD] = {1, 1.6, 1},
	[OP_GATED_NORM_BACKWARD] = {1, 2.3, 2},
	[OP_GATE_FORWARD] = {1, 3.4, 1},
	[OP_GATE_BACKWARD] = {1, 3, 1},
};

/* Of a token: k k', q k', k S, q S, P d, and (1 + A)^-1 r and k' d, by chunks; of Mamba 2 only q k', q S, P d and k' d;
 * with gates of channels k S, q S and k' d, token by token. Backward has three times as many. */
static double delta_flops(const struct delta_args *a)
{
	double dk = (double)a->key_dim, dv = (double)a->value_dim, heads = (double)a->value_heads;
	double one = 2 * DELTA_CHUNK * dk + 3 * dk * dv + 1.5 * DELTA_CHUNK * dv;
	if (!a->correct) one = DELTA_CHUNK * dk + 2 * dk * dv + DELTA_CHUNK * dv;
	if (a->channels) one = 3 * dk * dv;
	return 2 * heads * one * (a->dq ? 3 : 1);
}

/* Of a query and a key: scores and output; backward scores, dK, dQ; the gradient of scores, dV */
static double attention_flops(const struct attention_args *a)
{
	double keys = (double)(a->heads * a->dim), values = (double)(a->heads * attention_dim_v(a));
	return 2 * (a->dqkv ? 3 * keys + 2 * values : keys + values);
}

/* Bytes of its arrays. Rows that stand apart count as if they did not. */
static double bytes_of(struct op o, size_t elem, size_t operand)
{
	const enum op_code code = o.code;
	const size_t weight = operand;
	double sum = 0;
	switch ((int)code) {
	case OP_BIAS_BACKWARD: o.bias_backward.ld = o.bias_backward.n; break;
	case OP_COLUMNS: o.columns.dst_ld = o.columns.src_ld = o.columns.width; break;
	case OP_MLA_FORWARD:
	case OP_MLA_BACKWARD: o.mla.ld = o.mla.rope_dim; break;
	case OP_NORM_FORWARD: o.norm_forward.ld = 0; break;
	case OP_NORM_BACKWARD: o.norm_backward.ld = 0; break;
	case OP_SCALED_ADD: o.scaled_add.width = 0; break;
	case OP_MAGNITUDE_FORWARD:
	case OP_MAGNITUDE_BACKWARD: o.magnitude.x_ld = o.magnitude.p_ld = o.magnitude.dy_ld = o.magnitude.h; break;
	case OP_COMBINE_BACKWARD:
		if (!o.combine_backward.bias) o.combine_backward.d_o = NULL;
		break;
	case OP_COMBINE: /* the sums alone: a window's rows are counted without windows */
		if (o.combine.from) o.combine.per_token = 0;
		break;
	case OP_CONV_FORWARD:
	case OP_CONV_BACKWARD: o.conv.ld = o.conv.dx_ld = o.conv.channels; break;
	case OP_GATED_NORM_FORWARD:
	case OP_GATED_NORM_BACKWARD: o.gated_norm.ld = o.gated_norm.dz_ld = o.gated_norm.heads * o.gated_norm.dim; break;
	case OP_ROPE_FORWARD:
	case OP_ROPE_BACKWARD: /* of v only what is normed or made */
		if (!o.rope.v_norm && !o.rope.k_is_v) o.rope.ld = (o.rope.heads + o.rope.kv_heads) * o.rope.dim;
		break;
	}
#define ADD(bytes, field, elements, written) \
	if (a->field) sum += (double)(elements) * (double)(bytes);
#define ADD_OF(op_code, op, args, name) \
	case OP_##op_code: { \
		const struct args##_args *a = &o.args; \
		args##_arrays(ADD) break; \
	}
	switch ((int)code) {
		OPS(ADD_OF)
	case OP_NARROW: return (double)o.narrow.n * (double)(elem + operand);
	}
	return sum;
}

/* Bytes that rounding an operand (rows, k) of a GEMM to FP8 loads and stores. A row is in a cache when it is read for
 * the second time, a column is not. */
static double rounding(double rows, double k, int columns, const struct device *d)
{
	return rows * k * ((double)d->operand * (1 + columns) + (double)d->fp8);
}

/* ... and how often they count */
static double times_of(const struct op *op, bool gpu)
{
	bool rope = op->code == OP_ROPE_FORWARD || op->code == OP_ROPE_BACKWARD;
	if ((rope && !rope_norms(&op->rope)) || (op->code == OP_CROSS_ENTROPY && !op->cross_entropy.backward)) return 2;
	return !prices[op->code].kernels ? 1 : gpu ? prices[op->code].gpu : prices[op->code].cores;
}

static void count(struct device *dev, enum queue queue, const struct op *op)
{
	const struct counter *c = (struct counter *)dev; /* its first member */
	const struct gemm_args *a = &op->gemm;
	const struct grouped_gemm_args *g = &op->grouped_gemm;
	struct work *w = c->work;
	double token = c->times / TOKENS, operand = (double)dev->operand, bytes = 0, weights = 0;
	(void)queue;
	if (op->code == OP_DISCARD) return;
	switch ((int)op->code) {
	case OP_GEMM:
		*(fp8_takes(a) ? &w->fp8 : &w->gemms) += token * 2 * (double)(a->m * a->n) * (double)a->k;
		weights = (double)a->n * (a->trans_a ? READ_AND_WRITTEN * (double)a->m : operand * (double)a->k);
		bytes = a->add ? (double)(a->m * a->n) * (double)dev->elem : 0;
		if (fp8_takes(a)) {
			double b = rounding((double)a->n, (double)a->k, !a->trans_b, dev);
			bytes += rounding((double)a->m, (double)a->k, a->trans_a, dev) + (a->trans_a ? b : 0);
			w->rounded[c->slice] += c->times * (a->trans_a ? 0 : b);
			w->kernels[c->slice] += c->times * (2 + a->trans_a + !a->trans_b);
		}
		break;
	case OP_GROUPED_GEMM:
		w->grouped += token * 2 * (double)g->rows * (double)(g->n * g->k);
		weights = (double)(g->experts * g->n * g->k) * (g->sum ? READ_AND_WRITTEN : operand);
		break;
	case OP_ATTENTION_FORWARD:
	case OP_ATTENTION_BACKWARD: w->attention[c->kind] += c->times * attention_flops(&op->attention); break;
	case OP_DELTA_FORWARD:
	case OP_DELTA_BACKWARD: w->delta[op->delta.channels] += c->times * delta_flops(&op->delta); break;
	case OP_GROUPED_BIAS_BACKWARD: /* the device alone has how many rows these are */
		bytes = (double)(c->rows * op->grouped_bias_backward.n) * (double)dev->elem;
		break;
	default: bytes = bytes_of(*op, dev->elem, dev->operand);
	}
	for (int gpu = 0; gpu < 2; gpu++) w->bytes[gpu] += token * bytes * times_of(op, gpu);
	w->weights[c->slice] += c->times * weights;
	w->kernels[c->slice] += c->times * (prices[op->code].kernels ? prices[op->code].kernels : 1);
}

/* ---- blocks and head ---- */

/* Count what a call does, or what it makes again of the mixers, of a block that keeps a level */
static void count_call(struct counter *c, struct work *to, double times, const struct run *of,
	void (*walk)(struct walk_state *), enum call call, int level)
{
	struct run r = run_of(of, call, level);
	c->work = to;
	c->times = times / of->c->geo->layers;
	c->slice = call >= MLP_FORWARD;
	c->kind = of->c->geo->kind_of[of->layer];
	walk(&r.k);
}

/* back: how often the backward pass counts, of which the mean is of blocks that have one */
static void count_block(struct counter *c, struct counts *to, struct run *r, double back)
{
	const struct mt_layer *l = mt_layer_of(r->c->geo, r->layer);
	r->to = l->experts;
	c->rows = r->rows = TOKENS * (int64_t)l->experts_per_token;
	count_call(c, &to->forward, 1, r, walk_call, MIXER_FORWARD, KEEP_INPUT);
	count_call(c, &to->forward, 1, r, walk_call, MLP_FORWARD, KEEP_ALL_BUT_GATE_UP);
	count_call(c, &to->backward, back, r, walk_call, MIXER_BACKWARD, KEEP_ALL_BUT_GATE_UP);
	count_call(c, &to->backward, back, r, walk_call, MLP_BACKWARD, KEEP_ALL);
	for (int level = KEEP_INPUT; level < KEEP_ALL; level++) {
		count_call(c, &to->again[level], back, r, walk_again, MIXER_FORWARD, level);
		count_call(c, &to->again[level], back, r, walk_call, MLP_BACKWARD, KEEP_ALL_BUT_GATE_UP);
		count_call(c, &to->again[level], -back, r, walk_call, MLP_BACKWARD, KEEP_ALL);
	}
	if (!l->experts) return;
	r->from = r->to; /* of no experts: what a window does beside what its experts do without windows */
	c->rows = r->rows = 1;
	count_call(c, &to->window[0], 1, r, walk_call, WINDOW_FORWARD, KEEP_ALL_BUT_GATE_UP);
	count_call(c, &to->window[1], back, r, walk_call, WINDOW_BACKWARD, KEEP_ALL);
}

static void count_head(struct counter *c, struct counts *to, struct chunk *chunk, const struct run *r, bool train)
{
	void *at = r->dx;
	c->times = 1;
	c->slice = false;
	c->work = &to->head;
	for (int mtp = 0; train && mtp <= (chunk->geo->mtp != 0); mtp++) {
		chunk->mtp = mtp;
		head_loss_backward(chunk, r->w, r->g, 1, 1, NULL, at, at);
	}
	if (!train) head_loss(chunk, r->w, NULL, at);
	c->work = &to->losses;
	chunk->s.losses = at;
	head_loss(chunk, r->w, NULL, at);
}

struct counts price_lists(const struct plan_request *req, const struct mt_unit *units, const struct mt_tensor *tensors)
{
	const struct mt_geometry *g = req->geo;
	void *at = (void *)4096; /* where all arrays are: there are none */
	struct counts counts = {0};
	struct counter c = {.dev = {.elem = req->elem, .operand = req->operand, .fp8 = req->fp8, .launch = count}};
	struct chunk chunk = {.dev = &c.dev,
		.geo = g,
		.n = TOKENS,
		.seq = TOKENS,
		.slice = TOKENS,
		.lists = req->lists,
		.span_starts = at,
		.ple = at,
		.s = {.arena = {at, at},
			.operand = {at, at},
			.fp8 = req->fp8 ? at : NULL,
			.routing = {.first = at, .sum = at},
			.h = at,
			.dh = at,
			.altup = {at, at},
			.logits = at},
		.balance.sums = has_balance(g) ? at : NULL};
	for (uint32_t k = 0; k < g->n_kinds; k++) chunk.kv[k] = chunk.dkv[k] = at;
	for (uint32_t i = 0; i <= g->layers; i++) {
		const struct mt_unit *u = &units[1 + i];
		const struct saved saved = {.x2 = at};
		struct weights w = {0};
		struct grads grads = {0};
		struct run r =
			{.c = &chunk, .layer = i, .w = &w, .g = &grads, .beta = 1, .x = at, .y = at, .dx = at, .s = &saved};
		weights_enter(&w, &c.dev, tensors + u->first_tensor, u->tensors, at, req->dtype == MT_BF16 ? at : NULL);
		grads_enter(&grads, tensors + u->first_tensor, u->tensors, at);
		if (g->flags & MT_TIED && !tensors[0].frozen) grads.t[MT_T_HEAD] = at;
		double back = i < req->still ? 0 : (double)g->layers / (g->layers - req->still);
		if (i < g->layers) count_block(&c, &counts, &r, back);
		else count_head(&c, &counts, &chunk, &r, req->train);
	}
	return counts;
}
