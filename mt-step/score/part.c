/* part.c: the rows of an evaluation, packed from the input. */
#include <stdlib.h>

#include "mt/error.h"
#include "score.h"

int part_open(struct part *p, uint64_t rows, uint64_t seq, uint32_t top, uint32_t vocabulary)
{
	uint64_t n = rows * seq;
	uint32_t *tokens = malloc(n * 3 * sizeof *tokens);
	*p = (struct part){.in = {.source = {.fill = rows_fill, .rewind = rows_rewind}, .seq = seq, .tokens = tokens},
		.most = rows,
		.top = top,
		.vocabulary = vocabulary};
	p->places = malloc(n * sizeof *p->places);
	p->logp = malloc(n * sizeof *p->logp);
	p->teacher = malloc(n * MT_TEACHER_WORDS(top) * sizeof *p->teacher + 1);
	if (!tokens || !p->places || !p->logp || !p->teacher)
		return mt_fail(MT_EX_NOMEM, "no memory for %llu rows of %llu tokens", (unsigned long long)rows,
			(unsigned long long)seq);
	p->in.targets = tokens + n;
	p->in.starts = p->in.targets + n;
	return 0;
}

int64_t part_read(struct part *p, struct packer *packer)
{
	struct rows_source *in = &p->in;
	uint64_t before = packer->tokens, rows = 0;
	for (; rows < p->most; rows++) {
		uint64_t at = rows * in->seq;
		packer->places = p->places + at;
		int rc = packer_row(packer, in->tokens + at, in->targets + at, in->starts + at);
		if (rc < 0) return rc;
		if (rc == 0) break;
	}
	in->source.rows = rows;
	in->source.targets = targets_count(in->targets, rows * in->seq);
	in->source.processed = packer->tokens - before;
	return (int64_t)rows;
}
