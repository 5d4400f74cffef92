/* count.c: packs the input without a run: what mt-step would train on.
 *
 * The rows are made by the packer that training uses, and dropped. So the number of steps is that of the training.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "count.h"
#include "mt/error.h"
#include "mt/model.h"
#include "progress.h"

#define ANY_TOKEN (1u << 31) /* vocabulary that takes every id, where the model is not known */
#define SHOW_EVERY 0.2       /* seconds between updates of the progress line */

static void show(const struct packer *p, double *shown)
{
	double now = mt_now();
	if (now - *shown < SHOW_EVERY) return;
	*shown = now;
	progress_count(p->documents, p->tokens);
}

struct counted {
	uint64_t targets, rows, empty_rows;     /* empty: without a target */
	uint64_t skipped, in_row, longest_skip; /* steps without a target, up to --steps or --until */
};

/* With --config, what mt-run --dry-run says of it, too */
static int print(const struct packer *p, const struct counted *c, const struct options *o)
{
	printf("{\"documents\": %llu, \"tokens\": %llu, \"targets\": %llu, \"longest\": %u, \"longer\": %llu, "
		   "\"rows\": %llu, \"padding\": %llu, ",
		(unsigned long long)p->documents, (unsigned long long)p->tokens, (unsigned long long)c->targets, p->longest,
		(unsigned long long)p->longer, (unsigned long long)p->rows, (unsigned long long)p->padding);
	if (o->config)
		printf("\"rows_without_targets\": %llu, \"steps_skipped\": %llu, \"steps_skipped_in_row\": %llu, "
			   "\"answers\": %llu, \"answers_cut\": %llu, ",
			(unsigned long long)c->empty_rows, (unsigned long long)c->skipped, (unsigned long long)c->longest_skip,
			(unsigned long long)p->answers.n, (unsigned long long)p->answers.cut);
	printf("\"steps\": %llu}\n", (unsigned long long)((p->rows + o->batch - 1) / o->batch));
	return fflush(stdout) ? mt_fail(MT_EX_IO, "stdout: %s", strerror(errno)) : 0;
}

static void end_step(struct counted *c, uint64_t targets)
{
	c->in_row = targets ? 0 : c->in_row + 1;
	c->skipped += targets == 0;
	if (c->in_row > c->longest_skip) c->longest_skip = c->in_row;
}

static int count_rows(struct packer *p, const struct options *o, uint32_t *row, struct counted *c)
{
	uint64_t seq = o->seq, last = o->until ? o->until : o->schedule.steps, of_step = 0, steps = 0;
	double shown = mt_now();
	int rc;
	while ((rc = packer_row(p, row, row + seq, row + 2 * seq)) > 0) {
		uint64_t targets = targets_count(row + seq, seq);
		c->targets += targets;
		c->empty_rows += targets == 0;
		of_step += targets;
		c->rows++;
		if (c->rows % o->batch == 0 && (!last || steps < last)) {
			end_step(c, of_step);
			steps++;
			of_step = 0;
		}
		show(p, &shown);
	}
	if (c->rows % o->batch && (!last || steps < last)) end_step(c, of_step);
	return rc;
}

static int vocabulary(const struct options *o, struct vocabulary *vocab)
{
	struct mt_geometry g;
	char *text;
	*vocab = (struct vocabulary){.size = ANY_TOKEN};
	if (!o->config) return 0;
	int rc = mt_config_read(o->config, &g, &text);
	if (rc) return rc;
	*vocab = vocabulary_of(o, &g, text, strlen(text));
	free(text);
	return 0;
}

int count_input(const struct options *o, int fd)
{
	struct record_reader in = {0};
	struct packer packer = {0};
	struct counted counted = {0};
	struct vocabulary vocab;
	uint32_t *row = malloc(3 * o->seq * sizeof *row);
	int rc = row ? vocabulary(o, &vocab)
				 : mt_fail(MT_EX_NOMEM, "no memory for a row of %u token%s", (uint32_t)o->seq, mt_s(o->seq));
	if (!rc) rc = record_open(&in, fd, "stdin");
	if (!rc) rc = packer_open(&packer, &in, o->pack, (uint32_t)o->seq, &vocab);
	packer.loss = &o->objective;
	if (!rc) rc = count_rows(&packer, o, row, &counted);
	progress_clear();
	if (!rc) rc = packer_check_any(&packer);
	if (!rc) rc = print(&packer, &counted, o);
	packer_close(&packer);
	record_close(&in);
	free(row);
	return rc;
}
