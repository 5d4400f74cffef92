/* part.c: rows of the input, as a source of micro-batches. */
#include <stdlib.h>

#include "mt/error.h"
#include "score.h"

static int rewind_rows(struct row_source *s)
{
	(void)s;
	return 0;
}

static int fill_rows(struct row_source *s, uint64_t first, uint32_t n, uint32_t *block)
{
	const struct part *p = (const struct part *)s;
	uint64_t at = first * p->seq, count = n * p->seq;
	memcpy(block, p->tokens + at, count * 4);
	memcpy(block + count, p->targets + at, count * 4);
	memcpy(block + 2 * count, p->starts + at, count * 4);
	return 0;
}

int part_open(struct part *p, uint64_t rows, uint64_t seq)
{
	uint64_t n = rows * seq;
	*p = (struct part){.source = {.fill = fill_rows, .rewind = rewind_rows}, .seq = seq, .most = rows};
	p->tokens = malloc(n * 3 * sizeof *p->tokens);
	p->places = malloc(n * sizeof *p->places);
	p->logp = malloc(n * sizeof *p->logp);
	if (!p->tokens || !p->places || !p->logp)
		return mt_fail(MT_EX_NOMEM, "no memory for %llu rows of %llu tokens", (unsigned long long)rows,
			(unsigned long long)seq);
	p->targets = p->tokens + n;
	p->starts = p->targets + n;
	return 0;
}

int64_t part_read(struct part *p, struct packer *packer)
{
	uint64_t before = packer->tokens;
	for (p->rows = 0; p->rows < p->most; p->rows++) {
		uint64_t at = p->rows * p->seq;
		packer->places = p->places + at;
		int rc = packer_row(packer, p->tokens + at, p->targets + at, p->starts + at);
		if (rc < 0) return rc;
		if (rc == 0) break;
	}
	p->source.rows = p->rows;
	p->source.targets = targets_count(p->targets, p->rows * p->seq);
	p->source.processed = packer->tokens - before;
	return (int64_t)p->rows;
}
