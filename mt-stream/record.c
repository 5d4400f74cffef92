/* record.c: the reproducibility record: the sizes and the device with which a run is computed. They decide bits, so
 * every stream of a run, now or later, must use the same ones. The run's first stream writes them.
 */
#include <stdio.h>

#include "cli/cli.h"
#include "mt/choices.h"
#include "mt/control.h"
#include "mt/error.h"
#include "mt/stage.h"
#include "mt/wait.h"
#include "stream.h"

/* A requested size must be the one that the run was computed with */
static int size_agrees(const char *what, uint64_t requested, uint32_t is)
{
	if (requested && requested != is)
		return mt_fail(MT_EX_CONFIG, "the run was computed with %s %u, not %llu: other bits", what, is,
			(unsigned long long)requested);
	return 0;
}

static bool says(const struct mt_record *r, const char *words)
{
	size_t n = strnlen(r->gemm, sizeof r->gemm), end = strlen(words);
	return n > end && !memcmp(r->gemm + n - end, words, end);
}

static enum mt_dtype run_type(const struct stream *s) { return s->control->dtype == MT_BF16 ? MT_BF16 : MT_FP32; }

void compute_fp8(const struct stream *s)
{
	const struct mt_record *r = mt_record(s->run);
	bool fp8 = s->requested.compute ? s->requested.fp8 : r && says(r, FP8_WORDS);
	s->dev->fp8 = fp8 && run_type(s) == MT_BF16 ? s->dev->room ? 1 : 2 : 0;
}

/* Can the requested type of operands be had with the run's weights on this device? */
static int compute_check(const struct stream *s)
{
	if (!s->requested.compute || s->requested.compute == run_type(s) ||
		(s->dev->compute && s->requested.compute == MT_FP32))
		return 0;
	return mt_fail(MT_EX_CONFIG, "--compute %s: device %s computes in fp32 where weights are fp32%s",
		s->requested.compute_words, s->dev->name, s->dev->compute ? "" : ", and in bf16 where they are bf16");
}

/* Select the type of operands, where the device leaves a choice: as requested, else as the record has it if the CPU
 * can, else bf16 where weights are bf16 and the CPU multiplies them faster than fp32. Attention's are as the record has
 * them: records of an mt whose attention was fp32 alone say so. */
static int compute_select(const struct stream *s, const struct mt_record *r)
{
	enum mt_dtype type = s->requested.compute;
	if (!s->dev->compute) return 0;
	compute_fp8(s);
	bool of_bf16 = !r ? gemm_bf16_is_fast() : (says(r, ", bf16") || says(r, FP8_WORDS)) && !gemm_lacks_bf16();
	if (!type) type = run_type(s) == MT_BF16 && of_bf16 ? MT_BF16 : MT_FP32;
	char attention[sizeof r->attention + 1] = "";
	if (r) memcpy(attention, r->attention, sizeof r->attention);
	return s->dev->compute(s->dev, type, r ? attention : NULL);
}

/* The record as this stream has it; r: as the run has it already, or NULL */
static int record_make(const struct stream *s, const struct mt_record *r, const struct chunk_sizes *first,
	struct mt_record *mine)
{
	int rc = compute_select(s, r);
	*mine = (struct mt_record){
		.chunk_tokens = first->chunk_tokens ? (uint32_t)first->chunk_tokens : default_chunk_tokens(),
		.head_tokens = first->head_tokens ? (uint32_t)first->head_tokens : default_head_tokens(s->geo),
		.pass_rows = (uint32_t)first->pass_rows,
	};
	snprintf(mine->device, sizeof mine->device, "%s", s->dev->name);
	snprintf(mine->gemm, sizeof mine->gemm, "%s", s->dev->gemm);
	snprintf(mine->attention, sizeof mine->attention, "%s", s->dev->attention);
	snprintf(mine->machine, sizeof mine->machine, "%s", s->dev->machine);
	return rc;
}

int record_take(struct stream *s, const struct chunk_sizes *first)
{
	const struct mt_record *r;
	struct mt_record mine;
	char shares[MT_CHOICE_VALUE];
	bool differ = mt_shares(s->run, shares);
	int rc;
	while (!(r = mt_record(s->run))) {
		uint32_t seen = mt_event(s->run);
		/* of streams that differ, always the same one */
		if ((!differ || s->index == 0) && mt_record_claim(s->run)) {
			if ((rc = record_make(s, NULL, first, &mine))) return rc;
			mt_record_set(s->run, &mine);
		} else if ((rc = record_wait(s, seen))) {
			return rc;
		}
	}
	rc = record_make(s, r, first, &mine);
	if (differ) memcpy(mine.machine, r->machine, sizeof mine.machine); /* each one's own is in the table */
	if (rc || (rc = mt_record_agrees(s->run, &mine))) return rc;
	s->sizes = (struct chunk_sizes){r->chunk_tokens, r->head_tokens, r->pass_rows};
	if (!r->chunk_tokens || !r->head_tokens || r->chunk_tokens > INT32_MAX || r->head_tokens > INT32_MAX)
		return mt_fail(MT_EX_DATA, "reproducibility record: chunks of %u and %u tokens", r->chunk_tokens,
			r->head_tokens);
	return 0;
}

int record_select(struct stream *s, const struct chunk_sizes *requested)
{
	bool open = !mt_record(s->run);
	int rc = compute_check(s);
	if (rc) return rc;
	/* on a device with its own memory the planner selects them for the first micro-batch */
	if (open && s->dev->room && !requested->chunk_tokens && !requested->head_tokens && !requested->pass_rows) return 0;
	if ((rc = record_take(s, requested))) return rc;
	rc = size_agrees("chunk-tokens", requested->chunk_tokens, s->sizes.chunk_tokens);
	if (rc == 0) rc = size_agrees("head-tokens", requested->head_tokens, s->sizes.head_tokens);
	return rc ? rc : size_agrees("pass-rows", requested->pass_rows, s->sizes.pass_rows);
}
