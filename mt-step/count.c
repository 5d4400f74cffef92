/* count.c: packs the input without a run: what mt-step would train on.
 *
 * The rows are made by the packer that training uses, and dropped. So the number of steps is that of the training.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "count.h"
#include "progress.h"

#define ANY_TOKEN (1u << 31) /* vocabulary that takes every id: the model is not known here */
#define SHOW_EVERY 0.2       /* seconds between updates of the progress line */

static void show(const struct packer *p, double *shown)
{
	double now = mt_now();
	if (now - *shown < SHOW_EVERY) return;
	*shown = now;
	progress_count(p->documents, p->tokens);
}

static int print(const struct packer *p, uint64_t targets, uint64_t batch)
{
	printf("{\"documents\": %llu, \"tokens\": %llu, \"targets\": %llu, \"longest\": %u, \"longer\": %llu, "
		   "\"rows\": %llu, \"padding\": %llu, \"steps\": %llu}\n",
		(unsigned long long)p->documents, (unsigned long long)p->tokens, (unsigned long long)targets, p->longest,
		(unsigned long long)p->longer, (unsigned long long)p->rows, (unsigned long long)p->padding,
		(unsigned long long)((p->rows + batch - 1) / batch));
	return fflush(stdout) ? mt_fail(MT_EX_IO, "stdout: %s", strerror(errno)) : 0;
}

int count_input(const struct options *o, int fd)
{
	struct record_reader in = {0};
	struct packer packer = {0};
	uint64_t seq = o->seq, targets = 0;
	double shown = mt_now();
	uint32_t *row = malloc(3 * seq * sizeof *row);
	int rc = row ? record_open(&in, fd, "stdin")
				 : mt_fail(MT_EX_NOMEM, "no memory for a row of %u tokens", (uint32_t)seq);
	if (!rc) rc = packer_open(&packer, &in, o->pack, (uint32_t)seq, ANY_TOKEN);
	while (!rc && (rc = packer_row(&packer, row, row + seq, row + 2 * seq)) > 0) {
		targets += targets_count(row + seq, seq);
		show(&packer, &shown);
		rc = 0;
	}
	progress_clear();
	if (!rc) rc = packer_check_any(&packer);
	if (!rc) rc = print(&packer, targets, o->batch);
	packer_close(&packer);
	record_close(&in);
	free(row);
	return rc;
}
