/* walk.c: goes through a list: forward; backward, from its end on, where what a node reads and is not there is made
 * again; and launches what each node does. Where experts come by windows, several calls share the nodes:
 *
 *     ROUTE     forward    what the routing needs, and it
 *               backward   the same; from the gradient of y to that of what a norm behind the experts read
 *     WINDOW    forward    from the rows of the window's experts to their part of the sum
 *               backward   the same nodes
 *     END       forward    all else, from the sum on
 *               backward   all else
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

void walk_begin(struct walk_state *k, const struct list *t, enum call call, int level)
{
	k->t = t;
	k->call = call;
	memset(k->begun, 0, sizeof k->begun);
	if (call == END_FORWARD && level == KEEP_ALL) level = KEEP_ALL_BUT_GATE_UP; /* it makes the shared expert's */
	for (int v = 0; v < t->values; v++) k->have[v] = v == 0 || t->v[v].keep <= level;
	for (const struct node *n = t->node; n < t->node + t->nodes; n++)
		if (n->in_place) k->have[n->in[0]] = false;
	if (call <= ROUTE_FORWARD) return;
	if (call != ROUTE_BACKWARD) made(k, &t->node[t->v[t->routing].made]);
	if (call == END_FORWARD) k->have[t->node[t->combine].in[1]] = true;
	else if (call > END_FORWARD && t->sum != NONE) made(k, &t->node[t->v[t->sum].made]);
}

static void walk_forward(struct walk_state *k, int from, int to)
{
	for (int i = from; i < to; i++) step_forward(k, &k->t->node[i]);
}

void walk_again(struct walk_state *k)
{
	const struct list *t = k->t;
	struct walk_state all;
	bool need[NODES] = {0};
	walk_begin(&all, t, k->call, KEEP_ALL_BUT_GATE_UP);
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

/* Nodes to - 1, ..., from */
static void walk_backward(struct walk_state *k, int from, int to)
{
	const struct node *all = k->t->node;
	for (int i = to; i-- > from;) {
		if (all[i].kind->once && k->call > ROUTE_BACKWARD) continue;
		step_backward(k, &all[i]);
		if (!all[i].kind->gives) continue;
		k->have[all[i].out] = true;
		for (int j = i + 1; j < k->t->nodes; j++)
			if (all[j].kind->late && all[j].in[0] == all[i].out) k->step(k, &all[j], LATE);
	}
}

/* Is the value made from the experts' sum? */
static bool is_of_sum(const struct list *t, int v)
{
	int by = v == NONE ? NONE : maker(t, v);
	if (by <= t->combine) return by == t->combine;
	for (int j = 0; j < NODE_INPUTS; j++)
		if (is_of_sum(t, t->node[by].in[j])) return true;
	return false;
}

/* From the gradient of y to that of the experts' sum. A norm's, and a change of dx itself, are made by the first call
 * alone; what is not kept, by each window's */
static void sum_backward(struct walk_state *k)
{
	const struct list *t = k->t;
	bool first = k->call == ROUTE_BACKWARD;
	for (int i = t->nodes; i-- > t->combine + 1;) {
		const struct node *n = &t->node[i];
		if (is_of_sum(t, n->out) && (n->kind->once ? first : first == (t->sum != NONE))) step_backward(k, n);
	}
}

static void window_forward(struct walk_state *k)
{
	ensure(k, k->t->node[k->t->dispatch].in[0]);
	walk_forward(k, k->t->dispatch, k->t->combine + 1);
}

/* All but the windows' nodes, of which the first one's input gets the sums */
static void end_backward(struct walk_state *k)
{
	const struct list *t = k->t;
	walk_backward(k, t->combine + 1, t->nodes);
	k->step(k, &t->node[t->dispatch], BACKWARD);
	walk_backward(k, t->mlp, t->dispatch);
}

void walk_call(struct walk_state *k)
{
	const struct list *t = k->t;
	switch (k->call) {
	case MIXER_FORWARD: walk_forward(k, 0, t->mlp); break;
	case MIXER_BACKWARD: walk_backward(k, 0, t->mlp); break;
	case MLP_FORWARD: walk_forward(k, t->mlp, t->nodes); break;
	case MLP_BACKWARD: walk_backward(k, t->mlp, t->nodes); break;
	case ROUTE_FORWARD: ensure(k, t->routing); break;
	case WINDOW_FORWARD: window_forward(k); break;
	case END_FORWARD: ensure(k, t->node[t->nodes - 1].out); break;
	case ROUTE_BACKWARD:
		ensure(k, t->routing);
		sum_backward(k);
		break;
	case WINDOW_BACKWARD:
		sum_backward(k);
		walk_backward(k, t->dispatch, t->combine + 1);
		break;
	case END_BACKWARD: end_backward(k); break;
	case CALLS: break;
	}
}

/* ---- a chunk ---- */

static void launch_step(struct walk_state *k, const struct node *n, enum step step)
{
	struct run *r = (struct run *)k; /* its first member */
	void (*run)(struct run *, const struct node *) = step == FORWARD ? n->kind->forward
		: step == BACKWARD                                           ? n->kind->backward
																	 : n->kind->late;
	if (run) run(r, n);
}

static int64_t columns_before(const struct list *t, int v)
{
	int64_t at = 0;
	for (; t->v[v].of != NONE; v = t->v[v].of) at += t->v[v].at;
	return at;
}

static void *array_at(const struct run *r, int root);

static void *placed_at(const struct run *r, const struct place *p)
{
	return p->over ? array_at(r, p->over) : r->arena + place_of(p, r->c->n);
}

static void *array_at(const struct run *r, int root)
{
	const struct list *t = r->k.t;
	if (root == 0) return (void *)(uintptr_t)r->x;
	if (root == t->y) return r->y;
	if (root == t->x2) return r->s->x2;
	return r->s->v[root] ? r->s->v[root] : placed_at(r, &r->at->value[root]);
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
	bool kept = r->s->dsum && is_sum(t, root);
	void *d = root == 0      ? r->dx
		: kept               ? r->s->dsum
		: t->grad_over[root] ? array_at(r, root)
							 : placed_at(r, &r->at->grad[root]);
	return elements_after(r->c->dev, d, columns_before(t, v) - columns_before(t, own));
}

int64_t row_of(const struct run *r, int v) { return r->k.t->v[root_of(r->k.t, v)].width; }

void *rows_at(const struct run *r, const void *x, int v)
{
	return elements_after(r->c->dev, x, r->k.t->v[v].slots ? r->begin * row_of(r, v) : 0);
}

int64_t rows_in(const struct run *r, int v) { return r->k.t->v[v].slots ? r->rows : r->c->n; }

/* Of the residual stream, a gradient is there from the beginning */
int again(struct run *r, int v)
{
	int was = r->k.begun[v] || r->k.t->grad_of[grad_root_of(r->k.t, v)] == 0;
	r->k.begun[v] = true;
	return was;
}

struct run run_of(const struct run *of, enum call call, int level)
{
	struct run r = *of;
	const struct chunk *c = r.c;
	const struct list *t = &c->lists[c->geo->kind_of[r.layer]];
	r.l = t->l;
	r.arena = c->s.arena[call >= MLP_FORWARD];
	r.at = &t->at[call][call < MLP_FORWARD ? c->group[c->geo->kind_of[r.layer]] != 0 : level == KEEP_ALL];
	r.k.step = launch_step;
	walk_begin(&r.k, t, call, level);
	/* what other calls have left there is read by none */
	LAUNCH(c, OP_DISCARD, discard, .dst = r.arena, .bytes = places_bytes(r.at, c->n));
	return r;
}

void mixer_forward(const struct chunk *c, uint32_t layer, const struct weights *w, const void *x, const struct saved *s,
	void *y)
{
	struct run r = run_of(&(struct run){.c = c, .layer = layer, .w = w, .x = x, .s = s, .y = y}, MIXER_FORWARD,
		KEEP_INPUT);
	walk_call(&r.k);
}

void mixer_again(const struct chunk *c, uint32_t layer, const struct weights *w, const void *x, const struct saved *s,
	enum checkpoint level)
{
	struct run r = run_of(&(struct run){.c = c, .layer = layer, .w = w, .x = x, .s = s}, MIXER_FORWARD, level);
	walk_again(&r.k);
}

/* ---- the MLP, slice by slice ---- */

/* The tokens from `from` on of a chunk, as one */
static struct chunk slice_at(const struct chunk *c, int64_t from)
{
	struct chunk slice = *c;
	slice.n = c->n - from < c->slice ? c->n - from : c->slice;
	slice.ple = elements_after(c->dev, c->ple, from * ple_width(c->geo));
	if (c->balance.sums) slice.balance.counted += from;
	return slice;
}

/* Where the slice's routing and sums are, of all slices of a pass: by tokens and slices before it */
static void routing_of_pass(struct routing *x, const struct mt_layer *l, int64_t hidden, int64_t tokens, int64_t slices)
{
	int64_t slots = tokens * l->experts_per_token;
	x->scores += tokens * l->experts;
	x->weight += slots;
	x->expert += slots;
	x->row += slots;
	x->slot += slots;
	if (x->dweight) x->dweight += slots;
	x->first += slices * (l->experts + 1);
	x->sum += tokens * hidden;
}

/* Has the block kept gate and up? */
static int level_of(const struct list *t, const struct saved *s)
{
	for (int v = 1; v < t->values; v++)
		if (t->v[v].keep == KEEP_ALL && s->v[v]) return KEEP_ALL;
	return KEEP_ALL_BUT_GATE_UP;
}

static void slices_call(const struct run *all, enum call call, const struct window *win)
{
	const struct chunk *c = all->c;
	uint32_t kind = c->geo->kind_of[all->layer];
	const struct mt_layer *l = &c->geo->kind[kind];
	int64_t h = c->geo->hidden; /* no list with streams has slices */
	for (int64_t from = 0; from < c->n; from += c->slice) {
		struct chunk slice = slice_at(c, from);
		struct saved s = saved_after(all->s, c->lists, kind, from, c->dev->elem);
		struct run of = *all, r;
		if (slice.s.routing.sum)
			routing_of_pass(&slice.s.routing, l, h, c->before + from, c->slices_before + from / c->slice);
		of.c = &slice;
		of.s = &s;
		of.x = elements_after(c->dev, all->x, from * h);
		of.y = elements_after(c->dev, all->y, from * h);
		of.dx = elements_after(c->dev, all->dx, from * h);
		of.to = win ? win->to : l->experts;
		of.rows = slice.n * l->experts_per_token;
		if (win) {
			const uint32_t *rows = win->rows + from / c->slice * (l->experts + 1);
			of.from = win->from;
			of.begin = rows[win->from];
			of.rows = (int64_t)rows[win->to] - of.begin;
		}
		if (from) of.beta = 1;
		/* the first one begins the sums, and gradients begin also for experts without rows */
		if (win && !of.rows && of.from && (call == WINDOW_FORWARD || of.beta != 0)) continue;
		r = run_of(&of, call, level_of(&c->lists[kind], all->s));
		walk_call(&r.k);
	}
}

/* Do the block's experts come by windows? */
static bool by_windows(const struct chunk *c, uint32_t layer)
{
	return c->s.routing.sum && mt_layer_of(c->geo, layer)->experts;
}

void mlp_forward(const struct chunk *c, uint32_t layer, const struct weights *w, const void *x, const struct saved *s,
	void *y)
{
	slices_call(&(struct run){.c = c, .layer = layer, .w = w, .x = x, .s = s, .y = y},
		by_windows(c, layer) ? END_FORWARD : MLP_FORWARD, NULL);
}

void block_route(const struct chunk *c, uint32_t layer, const struct weights *w, const void *x, const struct saved *s)
{
	slices_call(&(struct run){.c = c, .layer = layer, .w = w, .x = x, .s = s}, ROUTE_FORWARD, NULL);
}

void block_window_forward(const struct chunk *c, uint32_t layer, const struct weights *w, const struct window *win,
	const void *x, const struct saved *s)
{
	slices_call(&(struct run){.c = c, .layer = layer, .w = w, .x = x, .s = s}, WINDOW_FORWARD, win);
}

void block_backward_route(const struct chunk *c, uint32_t layer, const struct weights *w, const void *x,
	const struct saved *s, void *dx)
{
	static const struct grads none;
	slices_call(&(struct run){.c = c, .layer = layer, .w = w, .g = &none, .x = x, .s = s, .dx = dx}, ROUTE_BACKWARD,
		NULL);
}

void block_window_backward(const struct chunk *c, uint32_t layer, const struct weights *w, const struct grads *g,
	float beta, const struct window *win, const void *x, const struct saved *s, void *dx)
{
	slices_call(&(struct run){.c = c, .layer = layer, .w = w, .g = g, .beta = beta, .x = x, .s = s, .dx = dx},
		WINDOW_BACKWARD, win);
}

/* ---- a block backward ---- */

/* Numbers that are not trained */
static void no_gradient(const struct chunk *c, const struct grads *g, enum mt_role_tensor role)
{
	if (g->t[role]) launch(c, &(struct op){OP_ZERO, .zero = {g->t[role], sizeof(float)}});
}

void block_backward(const struct chunk *c, uint32_t layer, const struct weights *w, const struct grads *g, float beta,
	const void *x, const struct saved *s, void *dx)
{
	const struct run all = {.c = c, .layer = layer, .w = w, .g = g, .beta = beta, .x = x, .s = s, .dx = dx};
	struct run mixers = run_of(&all, MIXER_BACKWARD, KEEP_ALL_BUT_GATE_UP);
	const struct list *t = mixers.k.t;
	bool parallel = c->geo->flags & MT_PARALLEL;
	mixers.normed[MT_T_NORM1] = c->geo->flags & MT_ONE_NORM; /* the MLP has read it, too */
	no_gradient(c, g, MT_T_SCALAR);
	no_gradient(c, g, MT_T_XIELU_BETA);
	no_gradient(c, g, MT_T_XIELU_EPS);
	/* parallel: the mixer's gradients are taken from dx before the MLP adds to it */
	if (parallel) walk_backward(&mixers.k, t->outs, t->mlp);
	if (t->mlp < t->nodes) slices_call(&all, by_windows(c, layer) ? END_BACKWARD : MLP_BACKWARD, NULL);
	walk_backward(&mixers.k, 0, parallel ? t->outs : t->mlp);
}
