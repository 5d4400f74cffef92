/* block.c: a decoder block: the order of its norms and residuals. Forward and backward are pairs.
 *
 *     pre-norm (llama)   x2 = x + attention(norm1(x))          y = x2 + mlp(norm2(x2))
 *     post-norm          x2 = x + post1(attention(x))          y = x2 + post2(mlp(x2))
 *     both (sandwich)    x2 = x + post1(attention(norm1(x)))   y = x2 + post2(mlp(norm2(x2)))
 *     parallel           x2 = x + attention(norm1(x))          y = x2 + mlp(norm2(x)), or norm1
 *
 *     norm of sums       x2 = norm2(x + attention(x))          y = x2 + mlp(x2), whose norm is the next block's in_norm
 *
 * In some families what is added is multiplied by a constant, and the whole output by a number of the block's own. In
 * some a block has one half alone: a mixer, or an MLP. In some Mamba 2 is beside attention: both read norm1(x), and x2
 * is the sum of x and both.
 */
#include <stdlib.h>

#include "list.h"
#include "ops/fp8.h"

/* ---- where tensors are ---- */

int64_t expert_stride(const struct mt_tensor *t, const struct mt_tensor *end)
{
	if (t->experts) return (int64_t)(t->n / t->experts);
	for (const struct mt_tensor *next = t + 1; next < end; next++)
		if (next->role == t->role) return (int64_t)(next->off - t->off);
	return 0;
}

void weights_enter(struct weights *w, const struct device *dev, const struct mt_tensor *first, uint32_t n,
	const void *base, const int16_t *lo)
{
	const struct mt_tensor *exact = NULL; /* the first one */
	for (const struct mt_tensor *t = first; t < first + n; t++) {
		if (t->expert) continue;
		if (t->exact && !exact) exact = t;
		if (t->exact && lo) w->lo[t->role] = lo + (t->off - exact->off);
		w->t[t->role] = operands_after(dev, base, (int64_t)t->off);
		if (t->role >= MT_T_XGATE && t->role <= MT_T_XDOWNB) w->stride[t->role] = expert_stride(t, first + n);
	}
}

void grads_enter(struct grads *g, const struct mt_tensor *first, uint32_t n, float *base)
{
	for (const struct mt_tensor *t = first; t < first + n; t++) {
		g->frozen[t->role] = t->frozen && (!t->expert || g->frozen[t->role]);
		if (t->expert) continue;
		g->t[t->role] = base + t->off;
		if (t->role >= MT_T_XGATE && t->role <= MT_T_XDOWNB) g->stride[t->role] = expert_stride(t, first + n);
	}
}

float *matrix_grad(const struct grads *g, enum mt_role_tensor w)
{
	static const enum mt_role_tensor last[ROLES] = {[MT_T_Q] = MT_T_V,
		[MT_T_DQKV] = MT_T_DA,
		[MT_T_GATE] = MT_T_UP,
		[MT_T_SGATE] = MT_T_SUP,
		[MT_T_XGATE] = MT_T_XUP};
	for (enum mt_role_tensor role = w; role <= (last[w] ? last[w] : w); role++)
		if (g->t[role] && !g->frozen[role]) return g->t[w];
	return NULL;
}

/* ---- memory ---- */

void *walk_take(struct walk *w, uint64_t a, uint64_t b, uint64_t size)
{
	uint64_t bytes, end;
	void *p = w->base ? w->base + w->used : NULL;
	if (__builtin_mul_overflow(a, b, &bytes) || __builtin_mul_overflow(bytes, size, &bytes) ||
		__builtin_add_overflow(bytes, 4095, &bytes) || __builtin_add_overflow(w->used, bytes & ~4095ull, &end)) {
		w->over = true;
		return NULL;
	}
	w->used = end;
	return p;
}

void *walk_take_fn(void *where, uint64_t count, uint64_t size) { return walk_take(where, count, 1, size); }

void block_take(struct saved *s, const struct kept *k, take_fn *take, void *where)
{
	const struct list *t = k->list;
	*s = (struct saved){0};
	for (int v = 1; v < t->values; v++) {
		const struct value *x = &t->v[v];
		if (x->of != NONE || x->keep > (int)k->level || x->keep <= (int)k->above) continue;
		void *at = take(where, k->n * (uint64_t)token_width(x), x->fp32 ? sizeof(float) : k->elem);
		*(v == t->x2 ? &s->x2 : &s->v[v]) = at;
	}
}

void blocks_take(struct saved v[MT_KINDS], const struct kept *first, uint32_t kinds, struct walk *w)
{
	struct kept kept = *first;
	struct walk most = *w;
	for (uint32_t k = 0; k < kinds; k++, kept.list++) {
		struct walk one = *w;
		block_take(&v[k], &kept, walk_take_fn, &one);
		if (one.over || one.used > most.used) most = one;
	}
	*w = most;
}

void keep_sum(struct saved *s, const struct list *lists, uint32_t kind, void *sum)
{
	const struct list *t = &lists[kind];
	if (t->sum != NONE) s->v[root_of(t, t->sum)] = sum;
}

void keep_next(struct saved *s, const struct list *lists, uint32_t kind, void *next)
{
	if (lists[kind].next != NONE) s->v[lists[kind].next] = next;
}

static void *after(void *p, int64_t elements, size_t size) { return p ? (char *)p + (size_t)elements * size : NULL; }

struct saved saved_after(const struct saved *s, const struct list *lists, uint32_t kind, int64_t from, size_t elem)
{
	const struct list *t = &lists[kind];
	struct saved to = *s;
	for (int v = 1; v < t->values; v++)
		to.v[v] = after(s->v[v], from * token_width(&t->v[v]), t->v[v].fp32 ? sizeof(float) : elem);
	to.x2 = after(s->x2, from * t->g->hidden, elem);
	to.dsum = after(s->dsum, from * t->g->hidden, elem);
	return to;
}

struct list *lists_make(const struct mt_geometry *g, size_t elem)
{
	struct list *lists = calloc(MT_KINDS, sizeof *lists);
	for (uint32_t k = 0; lists && k < g->n_kinds; k++) list_make(&lists[k], g, &g->kind[k], elem);
	return lists;
}

/* Is the list gone through for this in such a plan? */
static bool is_called(const struct list *t, enum call call, const struct arena_sizes *z)
{
	bool by_windows = z->windows && t->routing != NONE;
	bool backward = call >= ROUTE_BACKWARD || call == MIXER_BACKWARD || call == MLP_BACKWARD;
	if (backward && !z->train) return false;
	return z->half == MIXER ? call < MLP_FORWARD : call >= MLP_FORWARD && (call >= ROUTE_FORWARD) == by_windows;
}

uint64_t lists_arena(const struct list *lists, uint32_t kinds, const struct arena_sizes *z)
{
	uint64_t most = 0;
	for (uint32_t k = 0; k < kinds; k++)
		for (int call = 0; call < CALLS; call++) {
			const struct places *at = lists[k].at[call];
			bool other = z->half == MLP ? !z->gate_up : z->group && z->group[k];
			if (is_called(&lists[k], (enum call)call, z)) most = larger(most, places_bytes(&at[other], z->n));
		}
	return most;
}

void lists_operands(const struct list *lists, uint32_t kinds, int half, uint64_t most[2])
{
	for (const struct list *t = lists; t < lists + kinds; t++)
		for (int i = half == MIXER ? 0 : t->mlp; i < (half == MIXER ? t->mlp : t->nodes); i++) {
			const struct node *n = &t->node[i];
			const struct value *out = &t->v[root_of(t, n->out)];
			if (!n->kind->multiplies) continue;
			most[0] = larger(most[0], (uint64_t)token_width(&t->v[n->in[0]]));
			most[1] = larger(most[1], larger((uint64_t)n->cols, (uint64_t)token_width(out)));
		}
}

uint64_t lists_fp8(const struct list *lists, uint32_t kinds, int half, uint64_t tokens, size_t bytes)
{
	int64_t most = 0, n = (int64_t)(tokens < FP8_TOKENS ? tokens : FP8_TOKENS);
	for (const struct list *t = lists; t < lists + kinds; t++)
		for (int i = half == MIXER ? 0 : t->mlp; i < (half == MIXER ? t->mlp : t->nodes); i++) {
			const struct node *node = &t->node[i];
			if (!node->cols) continue;
			int64_t in = t->v[node->in[0]].width, out = node->cols;
			const int64_t size[3][3] = {{n, out, in}, {n, in, out}, {in, out, n}}; /* forward, and both gradients */
			for (int k = 0; k < 3; k++) {
				int64_t all = fp8_copy_bytes(size[k][0], size[k][2], bytes) +
					fp8_copy_bytes(size[k][1], size[k][2], bytes);
				most = all > most ? all : most;
			}
		}
	return (uint64_t)most;
}

/* ---- a block ---- */

void block_forward(const struct chunk *c, uint32_t layer, const struct weights *w, const void *x, const struct saved *s,
	void *y)
{
	const struct list *t = &c->lists[c->geo->kind_of[layer]];
	bool mlp = t->mlp < t->nodes;
	mixer_forward(c, layer, w, x, s, mlp ? s->x2 : y);
	if (mlp) mlp_forward(c, layer, w, x, s, y);
}
