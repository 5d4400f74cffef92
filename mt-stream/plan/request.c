/* request.c: what is settled before anything runs: the jobs, the run record, and a micro-batch's plan. */
#include <math.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "show.h"
#include "stream.h"

#define CHUNK_TOKENS 4096        /* tokens of a chunk unless the run record says otherwise */
#define LOGITS_BYTES (64u << 20) /* a head chunk's logits are about this large, */
#define HEAD_TOKENS_MIN 128      /* but its GEMMs not smaller than this */

/* ---- jobs ---- */

static void job_part(const struct stream *s, struct job *j, uint32_t unit, uint32_t end)
{
	uint64_t elems = mt_unit(s->run, unit)->elems;

	j->part[j->parts++] = (struct part){unit, end, j->elems, elems};
	j->elems += elems;
}

int jobs_make(struct stream *s)
{
	s->units = s->control->n_units;
	s->jobs = calloc(s->units, sizeof *s->jobs);
	if (!s->jobs) return mt_fail(MT_EX_NOMEM, "no memory for %u jobs", s->units);
	for (uint32_t u = 0; u < s->units; u++) job_part(s, &s->jobs[u], u, 0);
	if (s->geo->flags & MT_TIED) job_part(s, &s->jobs[s->units - 1], 0, 1);
	return 0;
}

/* ---- the run record ---- */

static bool owner_lives(struct stream *s, uint64_t owner)
{
	for (int i = 0; i < MT_SLOTS; i++)
		if (mt_stage_word(s->run, i) == owner) return mt_stage_alive(s->run, i);
	return false;
}

static uint32_t head_tokens_for(const struct mt_geometry *geo)
{
	uint64_t n = LOGITS_BYTES / (sizeof(float) * (uint64_t)geo->vocab) / 64 * 64;

	return n < HEAD_TOKENS_MIN ? HEAD_TOKENS_MIN : n > CHUNK_TOKENS ? CHUNK_TOKENS : (uint32_t)n;
}

static void record_write(struct stream *s, const struct settle *first)
{
	struct mt_record *r = &s->control->record;

	r->chunk_tokens = first->chunk_tokens ? (uint32_t)first->chunk_tokens : CHUNK_TOKENS;
	r->head_tokens = first->head_tokens ? (uint32_t)first->head_tokens : head_tokens_for(s->geo);
	r->pass_rows = (uint32_t)first->pass_rows;
	snprintf(r->device, sizeof r->device, "%s", s->dev->name);
	snprintf(r->gemm, sizeof r->gemm, "%s", s->dev->gemm);
	snprintf(r->attention, sizeof r->attention, "%s", s->dev->attention);
	snprintf(r->machine, sizeof r->machine, "%s", s->dev->machine);
	atomic_store_explicit(&r->set, 1, memory_order_release);
	mt_wake(s->run);
}

/* What this stream was told must be what the run was computed with */
static int record_agrees(const char *what, uint64_t told, uint32_t is)
{
	if (told && told != is)
		return mt_fail(MT_EX_CONFIG, "the run was computed with %s %u, not %llu: other bits", what, is,
			(unsigned long long)told);
	return 0;
}

static int words_agree(const char *what, const char *is, size_t room, const char *mine)
{
	if (!strncmp(is, mine, room)) return 0;
	return mt_fail(MT_EX_CONFIG,
		"the run was computed %s '%.*s', this is '%s': other bits; a checkpoint of it goes on here "
		"after mt-ckpt load --new-record",
		what, (int)room, is, mine);
}

/* What was written by an mt that did not look at words says nothing but the device */
static int record_words(const struct mt_record *r, const struct device *d)
{
	int rc = words_agree("on device", r->device, sizeof r->device, d->name);

	if (rc || !r->machine[0]) return rc;
	if ((rc = words_agree("on", r->machine, sizeof r->machine, d->machine)) ||
		(rc = words_agree("with matrix products by", r->gemm, sizeof r->gemm, d->gemm)))
		return rc;
	return words_agree("with attention by", r->attention, sizeof r->attention, d->attention);
}

/* Read the record; if nobody has written it, write it as `first` has it */
static int record_take(struct stream *s, const struct settle *first)
{
	struct mt_record *r = &s->control->record;
	uint64_t me = mt_stage_word(s->run, MT_STREAM + s->index);

	while (!atomic_load_explicit(&r->set, memory_order_acquire)) {
		uint32_t seen = mt_event(s->run);
		uint64_t owner = atomic_load(&r->owner);
		int rc = mt_stage_check(s->run);

		if (rc) return rc;
		if (owner == me ||
			((!owner || !owner_lives(s, owner)) && atomic_compare_exchange_strong(&r->owner, &owner, me)))
			record_write(s, first);
		else mt_wait(s->run, seen, 100);
		int over = mt_stopping ? GONE : stream_run_state(s);
		if (over) return over;
	}
	int rc = record_words(r, s->dev);
	if (rc) return rc;
	s->chunk_tokens = r->chunk_tokens;
	s->head_tokens = r->head_tokens;
	s->pass_rows = r->pass_rows;
	if (!s->chunk_tokens || !s->head_tokens || s->chunk_tokens > INT32_MAX || s->head_tokens > INT32_MAX)
		return mt_fail(MT_EX_DATA, "run record: chunks of %u and %u tokens", s->chunk_tokens, s->head_tokens);
	return 0;
}

int record_settle(struct stream *s, const struct settle *told)
{
	bool open = !atomic_load_explicit(&s->control->record.set, memory_order_acquire);
	int rc;

	/* a device with memory of its own: the planner chooses, when it has seen a micro-batch */
	if (open && s->dev->room && !told->chunk_tokens && !told->head_tokens && !told->pass_rows) return 0;
	if ((rc = record_take(s, told))) return rc;
	rc = record_agrees("chunk-tokens", told->chunk_tokens, s->chunk_tokens);
	if (rc == 0) rc = record_agrees("head-tokens", told->head_tokens, s->head_tokens);
	return rc ? rc : record_agrees("pass-rows", told->pass_rows, s->pass_rows);
}

/* ---- memory ---- */

/* Bytes of device memory that this stream may have in all: what is free now and what it has already, unless it was told
 * less. On a device whose memory is the host's: half of what was available, or as told. */
static uint64_t budget_now(struct stream *s)
{
	uint64_t have = mt_mem_available();

	if (!s->dev->room) {
		if (!s->budget) s->budget = have == UINT64_MAX ? 0 : have / 2;
		return s->budget;
	}
	have = s->dev->room(s->dev) + s->dev->own + s->arena_bytes;
	return s->budget && s->budget < have ? s->budget : have;
}

static void arena_release(struct stream *s)
{
	s->dev->release(s->dev, s->arena, s->arena_bytes);
	s->arena = NULL;
	s->arena_bytes = 0;
}

static int arena_grow(struct stream *s, uint64_t bytes)
{
	if (bytes <= s->arena_bytes) return 0;
	arena_release(s);
	s->arena = s->dev->alloc(s->dev, bytes);
	if (!s->arena) return mt_fail(MT_EX_NOMEM, "no %llu MiB of device memory", (unsigned long long)(bytes >> 20));
	s->arena_bytes = bytes;
	return 0;
}

static void spill_release(struct stream *s)
{
	if (s->dev->host_release) s->dev->host_release(s->dev, s->spill);
	else free(s->spill);
	s->spill = NULL;
	s->spill_bytes = 0;
}

static int spill_grow(struct stream *s, uint64_t bytes)
{
	if (bytes <= s->spill_bytes) return 0;
	if (s->spill) spill_release(s);
	s->spill = s->dev->host_alloc ? s->dev->host_alloc(s->dev, bytes) : malloc(bytes);
	if (!s->spill)
		return mt_fail(MT_EX_NOMEM, "no %llu MiB of host memory for activations", (unsigned long long)(bytes >> 20));
	s->spill_bytes = bytes;
	return 0;
}

static int arrays_make(struct stream *s)
{
	struct place *at = &s->plan.at;
	size_t layers = s->geo->layers;

	if (at->saved) return 0;
	at->ends = calloc(2, sizeof *at->ends);
	at->weights = calloc(layers, sizeof *at->weights);
	at->grads = calloc(layers, sizeof *at->grads);
	at->x = calloc(layers + 1, sizeof *at->x);
	at->saved = calloc(layers, sizeof *at->saved);
	if (!at->ends || !at->weights || !at->grads || !at->x || !at->saved)
		return mt_fail(MT_EX_NOMEM, "no memory for %zu layers' plan", layers);
	return 0;
}

void plan_release(struct stream *s)
{
	free(s->plan.at.ends);
	free(s->plan.at.weights);
	free(s->plan.at.grads);
	free(s->plan.at.x);
	free(s->plan.at.saved);
	if (s->spill) spill_release(s);
}

/* Activations may have what is available, but for an eighth that others may want; on a device whose memory is the
 * host's, what that leaves. What this stream holds already is available to it. */
static void host_limit(const struct stream *s, struct ask *q)
{
	uint64_t have = mt_mem_available(), mine = s->spill_bytes + (s->dev->room ? 0 : s->arena_bytes);

	q->host_beside = mt_run_bytes(s->run);
	have = have == UINT64_MAX ? have : have - have / 8 + mine;
	if (!s->dev->room && have != UINT64_MAX) have = have > q->memory ? have - q->memory : 0;
	q->host = have > UINT64_MAX - q->host_beside ? UINT64_MAX : q->host_beside + have;
	if (s->host_told && s->host_told < q->host) q->host = s->host_told;
}

static int ask_make(struct stream *s, uint32_t rows, uint32_t seq, bool train, struct ask *q)
{
	*q = (struct ask){
		.geo = s->geo,
		.dtype = (enum mt_dtype)s->control->dtype,
		.grad = (enum mt_dtype)s->control->grad,
		.rows = rows,
		.seq = seq,
		.train = train,
		.elem = s->dev->elem,
		.view = s->view,
		.memory = budget_now(s),
		.work = s->dev->own,
		.recompute = s->recompute,
		.chunk_tokens = s->chunk_tokens,
		.head_tokens = s->head_tokens,
		.pass_rows = s->pass_rows,
		.settled = true,
		.packed = s->packed,
	};
	if (s->dev->attention_need) q->attention = s->dev->attention_need(s->dev, seq, s->packed, train);
	host_limit(s, q);
	ask_sizes(q, mt_unit(s->run, 0), s->units);
	return profile_parse(s->profile, q->dtype, s->dev->gpu, &q->profile);
}

/* The first micro-batch of a run decides, as if it were to be trained on */
static int record_plan(struct stream *s, uint32_t rows, uint32_t seq)
{
	struct planned planned;
	struct ask q;
	int rc = ask_make(s, rows, seq, true, &q);

	q.settled = false;
	if (rc || (rc = planner_make(&q, &planned))) return rc;
	return record_take(s, &(struct settle){planned.c.chunk_tokens, planned.c.head_tokens, planned.c.pass_rows});
}

/* The best plan that there is memory for. Between asking how much is free and taking it somebody else may have taken
 * some:
 * then the best of what is left. */
static int plan_take(struct stream *s, struct ask *q, struct planned *planned)
{
	for (;;) {
		int rc = planner_make(q, planned);

		if (rc || (rc = arena_grow(s, memory_arena(q, planned->bytes))) == 0) return rc;
		if (!s->dev->room) return rc;
		uint64_t now = budget_now(s);
		q->memory = now < planned->bytes ? now : planned->bytes - 1;
	}
}

/* The micro-batch begins: nothing is where it will be */
static void plan_lay(struct stream *s)
{
	struct plan *p = &s->plan;

	p->x = p->o = (struct carry){.held = {-1, -1}};
	p->done[0] = p->done[1] = (struct event){0};
	p->bytes = memory_arena(&p->ask, memory_lay(&p->ask, &p->c, &p->at, s->arena));
}

/* Is attention over such rows computed by what needs work memory? The run's first who wants to know decides, as if they
 * were to be trained on and held documents. */
static int attention_settle(struct stream *s, uint32_t rows, uint32_t seq)
{
	struct device *d = s->dev;
	struct planned planned;
	struct ask q;
	int rc = ask_make(s, rows, seq, true, &q);

	if (rc || !q.attention.rows || q.attention.settled) return rc;
	q.attention = d->attention_need(d, seq, true, true);
	bool with = !planner_make(&q, &planned) && planned.c.engine;
	if (with) arena_release(s); /* the way is tried in its place */
	return d->attention_settle(d, seq, &with);
}

/* A shape that is not the last one's: plan it, and let the device see what it will compute. On a device with memory of
 * its own the first plan for training is said, for what it predicts of a step. */
static int plan_shape(struct stream *s, uint32_t rows, uint32_t seq, bool train)
{
	struct plan *p = &s->plan;
	struct planned planned;
	int rc;

	if ((rc = attention_settle(s, rows, seq)) || (rc = arrays_make(s)) ||
		(rc = ask_make(s, rows, seq, train, &p->ask)) || (rc = plan_take(s, &p->ask, &planned)) ||
		(rc = spill_grow(s, planned.host_bytes)) || (rc = rope_grow(s, seq)))
		return rc;
	if (s->verbose || (s->dev->room && train && !s->said)) plan_say(&p->ask, &planned, s->msg.batch.micros);
	s->said = s->said || train;
	p->c = planned.c;
	p->predicted = planned.p.forward + planned.p.backward;
	p->x_bytes = (uint64_t)rows_of_pass(&p->ask, &p->c) * seq * s->geo->hidden * s->dev->elem;
	p->o_bytes = (uint64_t)rows_of_pass(&p->ask, &p->c) * seq * s->geo->heads *
		(s->geo->head_dim * s->dev->elem + sizeof(float));
	plan_lay(s);
	mt_stage_activity(s->run, MT_ACT_STARTING, 0);
	if (s->dev->rehearse && (rc = schedule_rehearse(s))) return rc;
	plan_lay(s);
	return 0;
}

static bool rows_packed(const uint32_t *starts, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (starts[i]) return true;
	return false;
}

int plan_make(struct stream *s, uint32_t rows, uint32_t seq, bool train)
{
	struct plan *p = &s->plan;
	size_t n = (size_t)rows * seq;
	int rc;

	s->packed = s->packed || rows_packed(s->host + 2 * n, n);
	if (!s->chunk_tokens && (rc = record_plan(s, rows, seq))) return rc;

	if (p->ask.rows == rows && p->ask.seq == seq && p->ask.train == train && p->ask.packed == s->packed) {
		plan_lay(s);
		return 0;
	}
	if ((rc = plan_shape(s, rows, seq, train))) p->ask.rows = 0;
	return rc;
}

/* cos and sin of position * inv_freq as transformers' rotary embedding has them: all in fp32 */
int rope_grow(struct stream *s, uint32_t positions)
{
	uint32_t half = s->geo->head_dim / 2;

	if (positions <= s->positions) return 0;
	float *cosines = realloc(s->cos, (size_t)positions * half * sizeof(float));
	if (cosines) s->cos = cosines;
	float *sines = realloc(s->sin, (size_t)positions * half * sizeof(float));
	if (sines) s->sin = sines;
	if (!cosines || !sines) return mt_fail(MT_EX_NOMEM, "no memory for the rotary table of %u positions", positions);
	for (uint32_t p = s->positions; p < positions; p++)
		for (uint32_t i = 0; i < half; i++) {
			float angle = (float)p * s->geo->rope_inv_freq[i];

			s->cos[(size_t)p * half + i] = cosf(angle) * s->geo->rope_scaling;
			s->sin[(size_t)p * half + i] = sinf(angle) * s->geo->rope_scaling;
		}
	s->positions = positions;
	return 0;
}
