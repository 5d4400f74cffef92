/* place.c: where the arrays of a list lie that a block does not keep: values, from the node that makes one to its last
 * reader, and gradients, from the first node that writes one to the node that made the value. Those that are not there
 * at the same time may have the same memory: in the arena, or where a value is that the block keeps, before it is made
 * again or after it was read for the last time.
 */
#include "list.h"

#include <string.h>

enum { ARRAYS = 2 * LIST_VALUES }; /* values, then their gradients */
#define ALIGN 256
#define TOKEN_ALIGN 128 /* bytes: a kept value whose tokens are not multiples of it has no other array in its place */

struct survey {
	struct walk_state k; /* first */
	struct list *t;
	int level;                         /* what a block keeps at it lies elsewhere */
	bool by_heads;                     /* attention goes by groups of heads */
	int now, from[ARRAYS], to[ARRAYS]; /* steps; from 0: not needed */
};

/* Does the call need a place for it? */
static bool is_own(const struct survey *s, int array)
{
	return s->from[array] && (array >= LIST_VALUES || s->t->v[array].keep > s->level);
}

static void touch(struct survey *s, int array)
{
	if (!s->from[array]) s->from[array] = s->now;
	s->to[array] = s->now;
}

/* What a norm behind the experts reads, and its gradient */
static bool kept_by_windows(const struct survey *s, int root)
{
	return s->k.call >= ROUTE_FORWARD && is_sum(s->t, root);
}

static void touch_value(struct survey *s, int v)
{
	const struct list *t = s->t;
	if (v == NONE) return;
	v = root_of(t, v);
	if (v != 0 && v != t->y && !kept_by_windows(s, v)) touch(s, v);
}

static void touch_grad(struct survey *s, int v)
{
	int root = s->t->grad_of[grad_root_of(s->t, v)];
	if (root == 0 || kept_by_windows(s, root)) return;
	if (s->t->grad_over[root]) touch_value(s, root);
	else touch(s, LIST_VALUES + root);
}

static void touch_sides(struct survey *s, const struct node *n)
{
	for (int i = 0; i < NODE_SIDES; i++)
		if (n->side[i]) touch_value(s, n->side[i]);
}

/* Where the gradient of an input lies, if this node is the first to write it. Windows of experts change no place. */
static void grad_place(struct survey *s, const struct node *n, int i)
{
	struct list *t = s->t;
	int root = grad_root_of(t, n->in[i]), out = grad_root_of(t, n->out);
	if (s->k.begun[root]) return;
	s->k.begun[root] = true;
	if (root == out || s->k.call >= ROUTE_FORWARD) return;
	if (n->kind->grad[i] == GRAD_OF_OUT) t->grad_of[root] = t->grad_of[out];
	t->grad_over[root] = n->kind->grad[i] == GRAD_OVER_INPUT;
}

static void survey_step(struct walk_state *k, const struct node *n, enum step step)
{
	struct survey *s = (struct survey *)k;
	s->now++;
	if (step == LATE) {
		touch_value(s, n->in[0]);
		touch_grad(s, n->in[0]);
		touch_grad(s, n->out);
		return;
	}
	for (int i = 0; i < NODE_INPUTS; i++)
		if (step == FORWARD || n->kind->reads & 1u << i) touch_value(s, n->in[i]);
	if (n->kind->by_heads && s->by_heads) s->now++;
	for (int i = 0; i < NODE_INPUTS; i++) {
		if (step == FORWARD || n->in[i] == NONE) continue;
		grad_place(s, n, i);
		touch_grad(s, n->in[i]);
	}
	if (step == FORWARD || n->kind->reads & READS_OUT) touch_value(s, n->out);
	if (step == FORWARD || n->kind->reads & READS_SIDES) touch_sides(s, n);
	if (step == BACKWARD) touch_grad(s, n->out);
	if (step == BACKWARD && n->kind->gives) touch_value(s, n->out);
}

static int64_t bytes_of(const struct list *t, int array)
{
	const struct value *v = &t->v[array % LIST_VALUES];
	return array < LIST_VALUES ? token_width(v) * (int64_t)(v->fp32 ? sizeof(float) : t->elem)
							   : v->grad_width * token_rows(v) * (int64_t)t->elem;
}

static bool meet(const struct survey *s, int a, int b) { return s->from[a] <= s->to[b] && s->from[b] <= s->to[a]; }

/* May the array lie where a value is that the block keeps? The mixers' backward pass is the last reader of all; what
 * their forward pass writes at any checkpoint level is free until then. An MLP beside them reads x2 in between. */
static bool lends(const struct survey *s, int v, int a)
{
	const struct value *by = &s->t->v[v];
	bool forward = s->k.call == MIXER_FORWARD, parallel = s->t->g->flags & MT_PARALLEL;
	bool others = by->past && s->t->l->kv_kind; /* to mt-sample, it has another layer's k and v from the beginning */
	if (s->k.call > MIXER_BACKWARD || by->of != NONE || by->keep > s->level || bytes_of(s->t, v) % TOKEN_ALIGN ||
		bytes_of(s->t, a) > bytes_of(s->t, v) || (parallel && v == s->t->x2) || others)
		return false;
	return forward ? by->keep == KEEP_ALL_BUT_GATE_UP && s->to[a] < s->from[v] : s->from[a] > s->to[v];
}

/* The smallest kept value that lends the array its place; 0: none. over: whose place each array has so far */
static int lender(const struct survey *s, int a, const int over[ARRAYS])
{
	int best = 0;
	for (int v = 1; v < s->t->values; v++) {
		bool free = lends(s, v, a);
		for (int b = 0; free && b < ARRAYS; b++) free = over[b] != v || !meet(s, a, b);
		if (free && (!best || bytes_of(s->t, v) < bytes_of(s->t, best))) best = v;
	}
	return best;
}

static struct place *place_for(struct places *p, int array)
{
	return array < LIST_VALUES ? &p->value[array] : &p->grad[array - LIST_VALUES];
}

/* The arrays for which the arena needs room, the largest first. How many */
static int arrays_of(const struct survey *s, struct places *p, int order[ARRAYS])
{
	int over[ARRAYS] = {0}, n = 0, left = 0;
	for (int a = 0; a < ARRAYS; a++) {
		if (!is_own(s, a)) continue;
		int i = n++;
		for (; i > 0 && bytes_of(s->t, order[i - 1]) < bytes_of(s->t, a); i--) order[i] = order[i - 1];
		order[i] = a;
	}
	for (int i = 0; i < n; i++) {
		int a = order[i];
		place_for(p, a)->over = over[a] = lender(s, a, over);
		if (!over[a]) order[left++] = a;
	}
	return left;
}

/* Each at the first place where those of its time leave room */
static void places_make(const struct survey *s, struct places *p)
{
	int64_t at[ARRAYS], end;
	int order[ARRAYS], n;
	memset(p, 0, sizeof *p);
	p->arrays = n = arrays_of(s, p, order);
	for (int i = 0; i < n; i++) {
		int a = order[i];
		at[i] = 0;
		for (int j = 0; j < i; j++) {
			int b = order[j];
			end = at[j] + bytes_of(s->t, b);
			if (!meet(s, a, b) || at[i] >= end || at[i] + bytes_of(s->t, a) <= at[j]) continue;
			at[i] = end;
			j = -1;
		}
		p->bytes = (int64_t)larger((uint64_t)p->bytes, (uint64_t)(at[i] + bytes_of(s->t, a)));
	}
	for (int i = 0; i < n; i++) {
		struct place *to = place_for(p, order[i]);
		to->before = at[i];
		for (int j = 0; j < n; j++) to->rank += at[j] < at[i];
	}
}

void list_place(struct list *t)
{
	for (int v = 0; v < LIST_VALUES; v++) t->grad_of[v] = v;
	if (t->y != NONE) t->grad_of[t->y] = 0;
	if (t->x2 != NONE) t->grad_of[t->x2] = 0;
	for (int call = 0; call < (t->routing == NONE ? ROUTE_FORWARD : CALLS); call++)
		for (int i = 0; i < 2; i++) {
			bool mixers = call < MLP_FORWARD, kept = i && !mixers;
			struct survey s = {.t = t, .level = kept ? KEEP_ALL : KEEP_ALL_BUT_GATE_UP, .by_heads = i && mixers};
			s.k.step = survey_step;
			walk_begin(&s.k, t, (enum call)call, s.level);
			walk_call(&s.k);
			places_make(&s, &t->at[call][i]);
		}
}

static uint64_t aligned(int64_t bytes) { return ((uint64_t)bytes + ALIGN - 1) / ALIGN * ALIGN; }

/* A gap before each array, so that aligning one does not move it into the next */
uint64_t place_of(const struct place *p, int64_t n) { return aligned(p->before * n) + (uint64_t)p->rank * ALIGN; }

uint64_t places_bytes(const struct places *p, int64_t n) { return aligned(p->bytes * n) + (uint64_t)p->arrays * ALIGN; }
