/* chunks.c: the chunks of a pass, and where the activations of each are. */
#include <string.h>

#include "batch.h"
#include "schedule.h"

int64_t slices_of(const struct stream *s, int64_t n)
{
	const struct plan_request *req = &s->micro->request;
	const struct plan *plan = &s->micro->plan;
	int64_t chunk = (int64_t)rows_of_chunk(req, plan) * req->seq, slice = (int64_t)tokens_of_slice(req, plan);
	return n / chunk * (int64_t)slices_of_chunk(req, plan) + (n % chunk + slice - 1) / slice;
}

static struct teacher teacher_of(const struct stream *s, int64_t first)
{
	const struct mt_msg *m = &s->taken.msg;
	struct teacher t = {.top = m->batch.top};
	if (!m->batch.top || !m->batch.documents) return t;
	const struct mt_objective *how = batch_parts(m, s->taken.host).objective;
	t.words = s->micro->layout.teacher + (uint64_t)first * MT_TEACHER_WORDS(t.top);
	t.temperature = (float)how->temperature;
	t.hard = (float)how->chosen_scale;
	return t;
}

struct chunk chunk_of(struct stream *s, int64_t from, int64_t n)
{
	const struct memory_layout *at = &s->micro->layout;
	int64_t first = s->now.base + from, all = (int64_t)s->micro->request.rows * s->micro->request.seq;
	struct chunk c = {
		.dev = s->dev,
		.geo = s->geo,
		.n = n,
		.seq = s->micro->request.seq,
		.slice = (int64_t)tokens_of_slice(&s->micro->request, &s->micro->plan),
		.in_out = !!(s->geo->flags & MT_IN_OUT),
		.before = from,
		.slices_before = slices_of(s, from),
		.tokens = at->tokens + first,
		.targets = at->targets + first,
		.starts = at->starts + first,
		.row_weights = s->taken.msg.batch.weights ? at->row_weights + first : NULL,
		.teacher = teacher_of(s, first),
		.span_starts = at->span_starts ? at->span_starts + first : NULL,
		.balance = balance_of(s, first),
		.hidden = s->now.backward ? NULL : elements_after(s->dev, at->hidden, from * s->geo->hidden),
		.dhidden = elements_after(s->dev, at->hidden, from * s->geo->hidden),
		.s = at->scratch,
		.lists = s->lists,
		.host_starts = s->taken.host + 2 * all + first,
	};

	c.ple = elements_after(s->dev, at->ple, from * ple_width(s->geo));
	for (uint32_t k = 0; k < s->geo->n_kinds; k++) {
		c.kv[k] = elements_after(s->dev, at->kv[k], from * kv_width(&s->geo->kind[k]));
		c.dkv[k] = elements_after(s->dev, at->dkv[k], from * kv_width(&s->geo->kind[k]));
		c.group[k] = group_of(&s->micro->request, &s->micro->plan, k);
	}
	memcpy(c.cos, at->cos, sizeof c.cos);
	memcpy(c.sin, at->sin, sizeof c.sin);
	return c;
}

void *output(const struct stream *s, uint32_t u, int64_t from)
{
	const struct memory_layout *at = &s->micro->layout;
	uint32_t still = s->micro->request.still, i = u - still;
	if (u < still) i = (still - u) & 1 ? at->outputs - 1 : 0;
	return elements_after(s->dev, at->x[at->outputs == 2 ? u & 1 : i], from * residual_width(s->geo));
}

void *dx_at(const struct stream *s, int64_t from)
{
	return elements_after(s->dev, s->micro->layout.dx, from * residual_width(s->geo));
}

bool is_offloaded(const struct stream *s, uint32_t layer)
{
	return layer >= s->micro->request.still && layer < blocks_offloaded(&s->micro->plan, s->geo->layers);
}

/* A block's activations for the chunk at `from`. Those that the block keeps have separate memory; those that it
 * recomputes share one chunk's memory, or with windows of experts one pass's. */
struct saved saved_at(const struct stream *s, uint32_t layer, int64_t from)
{
	const struct mt_geometry *g = s->geo;
	uint32_t kind = g->kind_of[layer];
	const struct memory_layout *at = &s->micro->layout;
	const struct saved *own = is_offloaded(s, layer) ? &at->away[layer & 1][kind] : &at->saved[layer];
	struct saved v = at->chunk[kind], kept = saved_after(own, s->lists, kind, from, s->dev->elem);
	if (s->micro->plan.expert_window) v = saved_after(&v, s->lists, kind, from, s->dev->elem);
	for (int i = 0; i < LIST_VALUES; i++)
		if (kept.v[i]) v.v[i] = kept.v[i];
	if (kept.x2) v.x2 = kept.x2;
	int64_t pass = (int64_t)rows_of_pass(&s->micro->request, &s->micro->plan) * s->micro->request.seq;
	keep_sum(&v, s->lists, kind, elements_after(s->dev, at->kept, (layer * pass + from) * g->hidden));
	keep_next(&v, s->lists, kind, elements_after(s->dev, at->next, from * g->hidden));
	v.dsum = elements_after(s->dev, at->dsum, from * g->hidden);
	return v;
}

int64_t chunk_tokens(const struct stream *s, int64_t from)
{
	int64_t most = (int64_t)rows_of_chunk(&s->micro->request, &s->micro->plan) * s->micro->request.seq,
			left = s->now.n - from;
	return left < most ? left : most;
}

bool next_chunk(struct stream *s, uint32_t u, struct block_chunk *at)
{
	at->from += at->c.n;
	if (at->from >= s->now.n) return false;
	at->c = chunk_of(s, at->from, chunk_tokens(s, at->from));
	at->v = saved_at(s, u - 1, at->from);
	at->x = output(s, u - 1, at->from);
	return true;
}
