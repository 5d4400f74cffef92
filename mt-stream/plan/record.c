/* record.c: the reproducibility record: the sizes and the device with which a run is computed. They decide bits, so
 * every stream of a run, now or later, must use the same ones. The run's first stream writes them.
 */
#include "cli/cli.h"
#include "stream.h"

#define CHUNK_TOKENS 4096        /* tokens of a chunk, if nobody requested another size */
#define LOGITS_BYTES (64u << 20) /* a head chunk's logits are about this large, */
#define HEAD_TOKENS_MIN 128      /* but its GEMMs not smaller than this */

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

static void record_write(struct stream *s, const struct chunk_sizes *first)
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

/* A requested size must be the one that the run was computed with */
static int size_agrees(const char *what, uint64_t requested, uint32_t is)
{
	if (requested && requested != is)
		return mt_fail(MT_EX_CONFIG, "the run was computed with %s %u, not %llu: other bits", what, is,
			(unsigned long long)requested);
	return 0;
}

static int description_agrees(const char *what, const char *is, size_t room, const char *mine)
{
	if (!strncmp(is, mine, room)) return 0;
	return mt_fail(MT_EX_CONFIG,
		"the run was computed %s '%.*s', this is '%s': other bits; a checkpoint of it goes on here "
		"after mt-ckpt load --new-record",
		what, (int)room, is, mine);
}

/* The machine, GEMM library and attention backend must be the run's. A record without a machine is an older mt's: it
 * has only the device. */
static int device_agrees(const struct mt_record *r, const struct device *d)
{
	int rc = description_agrees("on device", r->device, sizeof r->device, d->name);

	if (rc || !r->machine[0]) return rc;
	if ((rc = description_agrees("on", r->machine, sizeof r->machine, d->machine)) ||
		(rc = description_agrees("with GEMM by", r->gemm, sizeof r->gemm, d->gemm)))
		return rc;
	return description_agrees("with attention by", r->attention, sizeof r->attention, d->attention);
}

int record_take(struct stream *s, const struct chunk_sizes *first)
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
		else if ((rc = record_wait(s, seen))) return rc;
	}
	int rc = device_agrees(r, s->dev);
	if (rc) return rc;
	s->chunk_tokens = r->chunk_tokens;
	s->head_tokens = r->head_tokens;
	s->pass_rows = r->pass_rows;
	if (!s->chunk_tokens || !s->head_tokens || s->chunk_tokens > INT32_MAX || s->head_tokens > INT32_MAX)
		return mt_fail(MT_EX_DATA, "reproducibility record: chunks of %u and %u tokens", s->chunk_tokens,
			s->head_tokens);
	return 0;
}

int record_select(struct stream *s, const struct chunk_sizes *requested)
{
	bool open = !atomic_load_explicit(&s->control->record.set, memory_order_acquire);
	int rc;

	/* on a device with memory of its own the planner selects them for the first micro-batch */
	if (open && s->dev->room && !requested->chunk_tokens && !requested->head_tokens && !requested->pass_rows) return 0;
	if ((rc = record_take(s, requested))) return rc;
	rc = size_agrees("chunk-tokens", requested->chunk_tokens, s->chunk_tokens);
	if (rc == 0) rc = size_agrees("head-tokens", requested->head_tokens, s->head_tokens);
	return rc ? rc : size_agrees("pass-rows", requested->pass_rows, s->pass_rows);
}
