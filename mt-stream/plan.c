/* plan.c: what is settled before anything runs: the jobs, the run record, and which memory each thing has. */
#include <math.h>
#include <stdlib.h>

#include "cli.h"
#include "stream.h"

#define CHUNK_TOKENS 4096               /* tokens of a chunk unless the run record says otherwise */
#define LOGITS_BYTES (64u << 20)        /* a head chunk's logits are about this large, */
#define HEAD_TOKENS_MIN 128             /* but its GEMMs not smaller than this */

/* ---- jobs ---- */

static void job_part(const struct stream *s, struct job *j, uint32_t unit, uint32_t end)
{
	uint64_t elems = mt_unit(s->run, unit)->elems;

	j->part[j->parts++] = (struct part){unit, end, j->elems, elems};
	j->elems += elems;
}

/* The run's tables must be those that its geometry gives: templates count on every shape */
static int layout_check(const struct stream *s)
{
	struct mt_layout l;
	int rc = mt_layout_make(&l, s->geo, s->control->dtype, s->control->grad);

	if (rc)
		return rc;
	bool same = l.n_units == s->control->n_units && l.n_tensors == s->control->n_tensors;
	for (uint32_t u = 0; same && u < l.n_units; u++) {
		const struct mt_unit *a = &l.units[u], *b = mt_unit(s->run, u);
		same = a->elems == b->elems && a->first_tensor == b->first_tensor && a->tensors == b->tensors;
	}
	for (uint32_t i = 0; same && i < l.n_tensors; i++) {
		const struct mt_tensor *a = &l.tensors[i], *b = mt_tensor(s->run, i);
		same = a->role == b->role && a->off == b->off && a->n == b->n;
	}
	mt_layout_release(&l);
	return same ? 0 : mt_fail(MT_EX_DATA, "the run's units or tensors are not those of its geometry");
}

int jobs_make(struct stream *s)
{
	int rc = layout_check(s);

	if (rc)
		return rc;
	s->units = s->control->n_units;
	s->jobs = calloc(s->units, sizeof *s->jobs);
	if (!s->jobs)
		return mt_fail(MT_EX_NOMEM, "no memory for %u jobs", s->units);
	for (uint32_t u = 0; u < s->units; u++)
		job_part(s, &s->jobs[u], u, 0);
	if (s->geo->flags & MT_TIED)
		job_part(s, &s->jobs[s->units - 1], 0, 1);
	return 0;
}

/* ---- the run record ---- */

static bool owner_lives(struct stream *s, uint64_t owner)
{
	for (int i = 0; i < MT_SLOTS; i++)
		if (atomic_load(&s->control->slots[i].word) == owner)
			return mt_stage_alive(s->run, i);
	return false;
}

static uint32_t head_tokens_for(const struct mt_geometry *geo)
{
	uint64_t n = LOGITS_BYTES / (sizeof(float) * (uint64_t)geo->vocab) / 64 * 64;

	return n < HEAD_TOKENS_MIN ? HEAD_TOKENS_MIN : n > CHUNK_TOKENS ? CHUNK_TOKENS : (uint32_t)n;
}

static void record_write(struct stream *s, uint64_t chunk_tokens, uint64_t head_tokens)
{
	struct mt_record *r = &s->control->record;

	r->chunk_tokens = chunk_tokens ? (uint32_t)chunk_tokens : CHUNK_TOKENS;
	r->head_tokens = head_tokens ? (uint32_t)head_tokens : head_tokens_for(s->geo);
	r->pass_rows = 0;
	snprintf(r->device, sizeof r->device, "%s", s->dev->name);
	snprintf(r->gemm, sizeof r->gemm, "%s", s->dev->gemm);
	snprintf(r->attention, sizeof r->attention, "%s", s->dev->attention);
	atomic_store_explicit(&r->set, 1, memory_order_release);
	mt_wake(s->run);
}

int record_settle(struct stream *s, uint64_t chunk_tokens, uint64_t head_tokens)
{
	struct mt_record *r = &s->control->record;
	uint64_t me = atomic_load(&s->control->slots[MT_STREAM + s->index].word);

	while (!atomic_load_explicit(&r->set, memory_order_acquire)) {
		uint32_t seen = mt_event(s->run);
		uint64_t owner = atomic_load(&r->owner);

		if (owner == me || ((!owner || !owner_lives(s, owner)) && atomic_compare_exchange_strong(&r->owner, &owner, me)))
			record_write(s, chunk_tokens, head_tokens);
		else
			mt_wait(s->run, seen, 100);
		if (mt_stopping || mt_run_state(s->run) == MT_GONE)
			return GONE;
	}
	char device[sizeof r->device];
	memcpy(device, r->device, sizeof device);
	device[sizeof device - 1] = 0;
	if (strcmp(device, s->dev->name))
		return mt_fail(MT_EX_CONFIG, "the run was computed on device '%s', this is '%s': other bits", device,
			s->dev->name);
	s->chunk_tokens = r->chunk_tokens;
	s->head_tokens = r->head_tokens;
	if (!s->chunk_tokens || !s->head_tokens)
		return mt_fail(MT_EX_DATA, "run record: chunks of %u and %u tokens", s->chunk_tokens, s->head_tokens);
	if (chunk_tokens && chunk_tokens != s->chunk_tokens)
		return mt_fail(MT_EX_CONFIG, "the run was computed in chunks of %u tokens, not %llu: other bits",
			s->chunk_tokens, (unsigned long long)chunk_tokens);
	if (head_tokens && head_tokens != s->head_tokens)
		return mt_fail(MT_EX_CONFIG, "the run was computed in head chunks of %u tokens, not %llu: other bits",
			s->head_tokens, (unsigned long long)head_tokens);
	return 0;
}

/* ---- memory ---- */

uint64_t budget_default(void)
{
	unsigned long long kb = 0;
	char line[128];
	FILE *f = fopen("/proc/meminfo", "re");

	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "MemAvailable: %llu kB", &kb) == 1)
			break;
	if (f)
		fclose(f);
	return kb * 1024 / 2;
}

struct walk { char *base; uint64_t used; bool over; };  /* base NULL: only the need is wanted */

/* a * b elements of `size` bytes, on pages of their own */
static void *take(struct walk *w, uint64_t a, uint64_t b, uint64_t size)
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

static void take_saved(struct walk *w, const struct stream *s, struct saved *v, uint64_t n)
{
	const struct mt_geometry *g = s->geo;
	uint64_t a = (uint64_t)g->heads * g->head_dim, k = (uint64_t)g->kv_heads * g->head_dim, elem = s->dev->elem;

	*v = (struct saved){0};
	v->qkv = take(w, n, a + 2 * k, elem);
	if (g->flags & MT_QK_NORM) {
		v->pre = take(w, n, a + k, elem);
		v->qk_rstd = take(w, n, g->heads + g->kv_heads, sizeof(float));
	}
	v->o = take(w, n, a, elem);
	v->lse = take(w, n, g->heads, sizeof(float));
	v->x2 = take(w, n, g->hidden, elem);
	v->gu = take(w, n, 2ull * g->ffn, elem);
}

static void take_scratch(struct walk *w, const struct stream *s, const struct plan *p, struct scratch *t)
{
	const struct mt_geometry *g = s->geo;
	uint64_t a = (uint64_t)g->heads * g->head_dim, k = (uint64_t)g->kv_heads * g->head_dim, elem = s->dev->elem;
	uint64_t n = (uint64_t)p->chunk_rows * p->seq, either = n > (uint64_t)p->head_n ? n : (uint64_t)p->head_n;

	*t = (struct scratch){0};
	t->h = take(w, either, g->hidden, elem);
	t->rstd = take(w, either, 1, sizeof(float));
	t->act = take(w, n, g->ffn, elem);
	t->logits = take(w, (uint64_t)p->head_n, g->vocab, elem);
	if (!p->train)
		return;
	t->dh = take(w, either, g->hidden, elem);
	t->dact = take(w, n, g->ffn, elem);
	t->d_o = take(w, n, a, elem);
	t->dqkv = take(w, n, a + 2 * k, elem);
}

static void take_slots(struct walk *w, const struct stream *s, struct plan *p)
{
	uint64_t most = 0;

	for (uint32_t u = 0; u < s->units; u++)
		most = s->jobs[u].elems > most ? s->jobs[u].elems : most;
	for (int i = 0; i < 2; i++) {
		p->weights[i] = (struct slot){.job = -1};
		if (!s->view)
			p->weights[i].mem = take(w, most, 1, s->dev->elem);
		if (p->train)
			p->grads[i] = take(w, most, 1, sizeof(float));
	}
	p->tied = NULL;
	if (p->train && s->control->grad == MT_NONE && s->geo->flags & MT_TIED)
		p->tied = take(w, s->jobs[0].elems, 1, sizeof(float));
}

static void plan_walk(struct walk *w, const struct stream *s, struct plan *p)
{
	uint64_t n = (uint64_t)p->n, half = s->geo->head_dim / 2;

	p->tokens = take(w, n, 1, 4);
	p->targets = take(w, n, 1, 4);
	p->starts = take(w, n, 1, 4);
	p->loss = take(w, 1, 1, sizeof *p->loss);
	p->cos = take(w, p->seq, half, sizeof(float));
	p->sin = take(w, p->seq, half, sizeof(float));
	take_slots(w, s, p);
	p->x = take(w, p->train ? s->units - 1 : 2, n * s->geo->hidden, s->dev->elem);
	p->dx = p->train ? take(w, n, s->geo->hidden, s->dev->elem) : NULL;
	take_scratch(w, s, p, &p->scratch);
	for (uint32_t l = 0; l < (p->keep ? s->geo->layers : 1); l++)
		take_saved(w, s, &p->saved[l], p->keep ? n : (uint64_t)p->chunk_rows * p->seq);
	p->bytes = w->over ? UINT64_MAX : w->used;
}

static uint64_t need(const struct stream *s, struct plan *p, bool keep)
{
	struct walk w = {0};

	p->keep = keep;
	plan_walk(&w, s, p);
	return p->bytes;
}

static int arena_grow(struct stream *s, uint64_t bytes)
{
	if (bytes <= s->arena_bytes)
		return 0;
	s->dev->release(s->dev, s->arena, s->arena_bytes);
	s->arena_bytes = 0;
	s->arena = s->dev->alloc(s->dev, bytes);
	if (!s->arena)
		return mt_fail(MT_EX_NOMEM, "no %llu MiB of device memory", (unsigned long long)(bytes >> 20));
	s->arena_bytes = bytes;
	return 0;
}

int plan_make(struct stream *s, uint32_t rows, uint32_t seq, bool train)
{
	struct plan *p = &s->plan;
	int rc;

	p->rows = rows;
	p->seq = seq;
	p->train = train;
	p->n = (int64_t)rows * seq;
	p->chunk_rows = s->chunk_tokens / seq ? s->chunk_tokens / seq : 1;
	p->chunk_rows = p->chunk_rows < rows ? p->chunk_rows : rows;
	p->head_n = p->n < s->head_tokens ? p->n : s->head_tokens;
	if (!p->saved && !(p->saved = calloc(s->geo->layers, sizeof *p->saved)))
		return mt_fail(MT_EX_NOMEM, "no memory for %u layers' plan", s->geo->layers);

	/* an evaluation never looks back */
	bool fits = train && s->recompute != RECOMPUTE_FULL && need(s, p, true) <= s->budget;
	if (!fits && train && s->recompute == RECOMPUTE_NONE)
		need(s, p, true);
	else if (!fits)
		fits = need(s, p, false) <= s->budget;
	if (!fits)
		return mt_fail(MT_EX_NOMEM, "a micro-batch of %u rows of %u tokens needs %llu MiB of device memory, have "
			"%llu MiB: a smaller --micro or --seq, or a larger --device-memory", rows, seq,
			(unsigned long long)((p->bytes + (1 << 20) - 1) >> 20), (unsigned long long)(s->budget >> 20));
	if ((rc = arena_grow(s, p->bytes)) || (rc = rope_grow(s, seq)))
		return rc;
	plan_walk(&(struct walk){.base = s->arena}, s, p);
	return 0;
}

/* cos and sin of position * inv_freq as transformers' rotary embedding has them: all in fp32 */
int rope_grow(struct stream *s, uint32_t positions)
{
	uint32_t half = s->geo->head_dim / 2;

	if (positions <= s->positions)
		return 0;
	float *cosines = realloc(s->cos, (size_t)positions * half * sizeof(float));
	if (cosines)
		s->cos = cosines;
	float *sines = realloc(s->sin, (size_t)positions * half * sizeof(float));
	if (sines)
		s->sin = sines;
	if (!cosines || !sines)
		return mt_fail(MT_EX_NOMEM, "no memory for the rotary table of %u positions", positions);
	for (uint32_t p = s->positions; p < positions; p++)
		for (uint32_t i = 0; i < half; i++) {
			float angle = (float)p * s->geo->rope_inv_freq[i];

			s->cos[(size_t)p * half + i] = cosf(angle) * s->geo->rope_scaling;
			s->sin[(size_t)p * half + i] = sinf(angle) * s->geo->rope_scaling;
		}
	s->positions = positions;
	return 0;
}
