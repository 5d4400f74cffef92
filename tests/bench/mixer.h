/* mixer.h: the operations of a layer of gated DeltaNet, for the programs that measure them on a CPU or a GPU */
#ifndef BENCH_MIXER_H
#define BENCH_MIXER_H

#include "../../mt-stream/ops/ops.h"

struct mixer {
	void *(*elements)(int64_t n), *(*sums)(int64_t n); /* device memory with numbers: elements, fp32 */
	struct conv_args conv;
	struct delta_args delta;
	struct gated_norm_args norm;
};

/* Forward's arguments; host_starts: starts in host memory */
static inline void mixer_forward(struct mixer *m, int64_t n, int64_t seq, int64_t key_heads, int64_t heads, int64_t dim,
	const uint32_t *starts, const uint32_t *host_starts)
{
	int64_t values = heads * dim, channels = 2 * key_heads * dim + values;
	struct conv_args *c = &m->conv;
	struct delta_args *d = &m->delta;
	struct gated_norm_args *g = &m->norm;
	*c =
		(struct conv_args){.n = n, .seq = seq, .channels = channels, .width = 4, .dim = dim, .silu = 1, .ld = channels};
	c->q_heads = c->k_heads = key_heads;
	c->x = m->elements(n * channels);
	c->w = m->elements(channels * c->width);
	c->starts = starts;
	c->y = m->elements(n * channels);
	*d = (struct delta_args){.n = n, .seq = seq, .key_heads = key_heads, .value_heads = heads, .correct = 1};
	d->key_dim = d->value_dim = dim;
	d->qkv = c->y; /* q and k of length 1, so that states stay numbers */
	d->a = m->elements(n * heads);
	d->b = m->elements(n * heads);
	d->ld = d->b_ld = d->d_ld = d->db_ld = heads;
	d->a_log = m->elements(heads);
	d->dt_bias = m->elements(heads);
	d->starts = starts;
	d->host_starts = host_starts;
	d->o = m->elements(n * values);
	*g = (struct gated_norm_args){.n = n, .heads = heads, .dim = dim, .eps = 1e-6f, .ld = values, .dz_ld = values};
	g->o = d->o;
	g->z = m->elements(n * values);
	g->w = m->elements(dim);
	g->y = m->elements(n * values);
}

/* What backward needs more */
static inline void mixer_backward(struct mixer *m)
{
	struct conv_args *c = &m->conv;
	struct delta_args *d = &m->delta;
	int64_t values = d->n * d->value_heads * d->value_dim;
	c->value_heads = d->value_heads;
	c->dq = d->dq = m->elements(values);
	c->dk = d->dk = m->elements(values);
	c->dv = d->dv = m->elements(values);
	c->dx = m->elements(c->n * c->channels);
	c->dx_ld = c->channels;
	c->dw = m->sums(c->channels * c->width);
	m->norm.dy = d->d_o = m->elements(values);
	d->da = m->elements(d->n * d->value_heads);
	d->db = m->elements(d->n * d->value_heads);
	d->da_log = m->sums(d->value_heads);
	d->ddt_bias = m->sums(d->value_heads);
	m->norm.d_o = m->elements(values);
	m->norm.dz = m->elements(values);
	m->norm.dw = m->sums(d->value_dim);
}

#endif
