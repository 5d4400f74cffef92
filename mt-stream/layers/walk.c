/* walk.c: goes through a list: forward; backward, from its end on, where what a node reads and is not there is made
 * again; and launches what each node does.
 */
#include "list.h"

#include <string.h>

/* ---- the walk ---- */

static int maker(const struct list *t, int v)
{
	while (t->v[v].made == VIEW) v = t->v[v].of;
	return t->v[v].made;
}

static bool is_there(const struct walk_state *k, int v)
{
	while (k->t->v[v].made == VIEW) v = k->t->v[v].of;
	return k->have[v];
}

static void made(struct walk_state *k, const struct node *n)
{
	if (n->in_place) k->have[n->in[0]] = false;
	k->have[n->out] = true;
	for (int i = 0; i < NODE_SIDES; i++)
		if (n->side[i]) k->have[n->side[i]] = true;
}

static void step_forward(struct walk_state *k, const struct node *n)
{
	k->step(k, n, FORWARD);
	made(k, n);
}

void walk_begin(struct walk_state *k, const struct list *t, int level)
{
	k->t = t;
	memset(k->begun, 0, sizeof k->begun);
	for (int v = 0; v < t->values; v++) k->have[v] = v == 0 || t->v[v].keep <= level;
	for (const struct node *n = t->node; n < t->node + t->nodes; n++)
		if (n->in_place) k->have[n->in[0]] = false;
}

void walk_forward(struct walk_state *k, int from, int to)
{
	for (int i = from; i < to; i++) step_forward(k, &k->t->node[i]);
}

void walk_again(struct walk_state *k)
{
	const struct list *t = k->t;
	struct walk_state all;
	bool need[NODES] = {0};
	walk_begin(&all, t, KEEP_ALL_BUT_GATE_UP);
	for (int v = 1; v < t->values; v++)
		if (t->v[v].made >= 0 && all.have[v] && !k->have[v]) need[t->v[v].made] = true;
	for (int i = t->mlp; i-- > 0;)
		for (int j = 0; need[i] && j < NODE_INPUTS; j++) {
			int in = t->node[i].in[j];
			if (in != NONE && !is_there(k, in)) need[maker(t, in)] = true;
		}
	for (int i = 0; i < t->mlp; i++)
		if (need[i]) step_forward(k, &t->node[i]);
}

static void ensure(struct walk_state *k, int v)
{
	const struct node *n;
	if (v == NONE || is_there(k, v)) return;
	n = &k->t->node[maker(k->t, v)];
	for (int i = 0; i < NODE_INPUTS; i++) ensure(k, n->in[i]);
	step_forward(k, n);
}

static void step_backward(struct walk_state *k, const struct node *n)
{
	for (int j = 0; j < NODE_INPUTS; j++)
		if (n->kind->reads & 1u << j) ensure(k, n->in[j]);
	if (n->kind->reads & READS_OUT) ensure(k, n->out);
	for (int j = 0; j < NODE_SIDES; j++)
		if (n->kind->reads & READS_SIDES && n->side[j]) ensure(k, n->side[j]);
	k->step(k, n, BACKWARD);
	for (int j = 0; j < NODE_INPUTS; j++)
		if (n->in[j] != NONE && n->kind->grad[j] == GRAD_OVER_INPUT) k->have[n->in[j]] = false;
}

void walk_backward(struct walk_state *k, int from, int to)
{
	const struct node *all = k->t->node;
	for (int i = to; i-- > from;) {
		step_backward(k, &all[i]);
		if (!all[i].kind->gives) continue;
		k->have[all[i].out] = true;
		for (int j = i + 1; j < to; j++)
			if (all[j].kind->late && all[j].in[0] == all[i].out) k->step(k, &all[j], LATE);
	}
}

/* ---- a chunk ---- */

static void launch_step(struct walk_state *k, const struct node *n, enum step step)
{
	struct run *r = (struct run *)k; /* its first member */
	(step == FORWARD ? n->kind->forward : step == BACKWARD ? n->kind->backward : n->kind->late)(r, n);
}

static int64_t columns_before(const struct list *t, int v)
{
	int64_t at = 0;
	for (; t->v[v].of != NONE; v = t->v[v].of) at += t->v[v].at;
	return at;
}

static void *array_at(const struct run *r, int root)
{
	const struct list *t = r->k.t;
	if (root == 0) return (void *)(uintptr_t)r->x;
	if (root == t->y) return r->y;
	if (root == t->x2) return r->s->x2;
	return r->s->v[root] ? r->s->v[root] : r->arena + place_of(&r->at->value[root], r->c->n);
}

void *value_at(const struct run *r, int v)
{
	const struct list *t = r->k.t;
	return elements_after(r->c->dev, array_at(r, root_of(t, v)), columns_before(t, v));
}

void *grad_at(const struct run *r, int v)
{
	const struct list *t = r->k.t;
	int own = grad_root_of(t, v), root = t->grad_of[own];
	void *d = root == 0      ? r->dx
		: t->grad_over[root] ? array_at(r, root)
							 : r->arena + place_of(&r->at->grad[root], r->c->n);
	return elements_after(r->c->dev, d, columns_before(t, v) - columns_before(t, own));
}

int64_t row_of(const struct run *r, int v) { return r->k.t->v[root_of(r->k.t, v)].width; }

/* Of the residual stream, a gradient is there from the beginning */
int again(struct run *r, int v)
{
	int was = r->k.begun[v] || r->k.t->grad_of[grad_root_of(r->k.t, v)] == 0;
	r->k.begun[v] = true;
	return was;
}

static const struct list *list_of(const struct chunk *c, uint32_t layer) { return &c->lists[c->geo->kind_of[layer]]; }

static struct run run_of(const struct chunk *c, uint32_t layer, const struct weights *w, const void *x,
	const struct saved *s, enum half half, int level, bool backward)
{
	const struct list *t = list_of(c, layer);
	struct run r = {.c = c, .layer = layer, .l = t->l, .w = w, .x = x, .s = s, .arena = c->s.arena[half]};
	r.at = &t->at[half][level == KEEP_ALL][backward];
	r.k.step = launch_step;
	walk_begin(&r.k, t, level);
	/* what other calls have left there is read by none */
	LAUNCH(c, OP_DISCARD, discard, .dst = r.arena, .bytes = places_bytes(r.at, c->n));
	return r;
}

void mixer_forward(const struct chunk *c, uint32_t layer, const struct weights *w, const void *x, const struct saved *s,
	void *y)
{
	struct run r = run_of(c, layer, w, x, s, MIXER, KEEP_INPUT, false);
	r.y = y;
	walk_forward(&r.k, 0, r.k.t->mlp);
}

void mixer_again(const struct chunk *c, uint32_t layer, const struct weights *w, const void *x, const struct saved *s,
	enum checkpoint level)
{
	struct run r = run_of(c, layer, w, x, s, MIXER, level, false);
	walk_again(&r.k);
}

struct run mixers_backward_begin(const struct chunk *c, uint32_t layer, const struct weights *w, const struct grads *g,
	float beta, const void *x, const struct saved *s, void *dx)
{
	struct run r = run_of(c, layer, w, x, s, MIXER, KEEP_ALL_BUT_GATE_UP, true);
	r.g = g;
	r.beta = beta;
	r.dx = dx;
	r.normed[MT_T_NORM1] = c->geo->flags & MT_ONE_NORM; /* the MLP has read it, too */
	return r;
}

void outputs_backward(struct run *r) { walk_backward(&r->k, r->k.t->outs, r->k.t->mlp); }

void mixers_backward(struct run *r) { walk_backward(&r->k, 0, r->k.t->outs); }

/* ---- a slice ---- */

/* The tokens from `from` on of a chunk, as one */
static struct chunk slice_at(const struct chunk *c, int64_t from)
{
	struct chunk slice = *c;
	slice.n = c->n - from < c->slice ? c->n - from : c->slice;
	slice.ple = elements_after(c->dev, c->ple, from * ple_width(c->geo));
	return slice;
}

static void *rows_after(const struct chunk *c, const void *x, int64_t from)
{
	return elements_after(c->dev, x, from * c->geo->hidden);
}

/* Has the block kept gate and up? */
static int level_of(const struct list *t, const struct saved *s)
{
	for (int v = 1; v < t->values; v++)
		if (t->v[v].keep == KEEP_ALL && s->v[v]) return KEEP_ALL;
	return KEEP_ALL_BUT_GATE_UP;
}

void mlp_list_forward(const struct chunk *c, uint32_t layer, const struct weights *w, const void *x,
	const struct saved *s, void *y)
{
	for (int64_t from = 0; from < c->n; from += c->slice) {
		struct chunk slice = slice_at(c, from);
		struct saved saved = saved_after(s, c->lists, c->geo->kind_of[layer], from, c->dev->elem);
		struct run r = run_of(&slice, layer, w, rows_after(c, x, from), &saved, MLP, level_of(list_of(c, layer), s),
			false);
		r.y = rows_after(c, y, from);
		walk_forward(&r.k, r.k.t->mlp, r.k.t->nodes);
	}
}

void mlp_list_backward(const struct chunk *c, uint32_t layer, const struct weights *w, const struct grads *g,
	float beta, const void *x, const struct saved *s, void *dx)
{
	for (int64_t from = 0; from < c->n; from += c->slice, beta = 1) {
		struct chunk slice = slice_at(c, from);
		struct saved saved = saved_after(s, c->lists, c->geo->kind_of[layer], from, c->dev->elem);
		struct run r = run_of(&slice, layer, w, rows_after(c, x, from), &saved, MLP, level_of(list_of(c, layer), s),
			true);
		r.g = g;
		r.beta = beta;
		r.dx = rows_after(c, dx, from);
		walk_backward(&r.k, r.k.t->mlp, r.k.t->nodes);
	}
}
