/* eval.c: evaluation reads its file anew each time, row by row, so that its size does not matter. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "eval.h"
#include "mt/error.h"
#include "mt/txn.h"

static uint64_t part_rows(const struct eval *e) { return (uint64_t)MT_MICROS * e->o->micro; }

static int start_over(struct eval *e)
{
	if (lseek(e->fd, 0, SEEK_SET) < 0) return mt_fail(MT_EX_IO, "%s: seek: %s", e->o->eval, strerror(errno));
	record_close(&e->in);
	packer_close(&e->packer);
	e->at = 0;
	int rc = record_open(&e->in, e->fd, e->o->eval);
	if (!rc) rc = packer_open(&e->packer, &e->in, e->o->pack, (uint32_t)e->o->seq, &e->vocab);
	e->packer.loss = &e->o->objective;
	return rc;
}

/* Pack the next row into the arrays, and those of the packer. 1, 0 at the end of the file, or an error. */
static int next_row(struct eval *e, uint32_t *tokens, uint32_t *targets, uint32_t *starts)
{
	int rc = packer_row(&e->packer, tokens, targets, starts);
	if (rc > 0) e->at++;
	return rc;
}

static int drop_row(struct eval *e)
{
	uint64_t seq = e->o->seq;
	e->packer.weights = e->packer.old = NULL;
	e->packer.teacher = NULL;
	e->packer.in_row = e->documents;
	return next_row(e, e->scratch, e->scratch + seq, e->scratch + 2 * seq);
}

static int rewind_part(struct row_source *s)
{
	struct eval *e = (struct eval *)s;
	if (e->at == e->part_first) return 0;
	int rc = e->at < e->part_first ? 0 : start_over(e);
	while (!rc && e->at < e->part_first)
		if ((rc = drop_row(e)) == 0) return mt_fail(MT_EX_DATA, "%s: has become shorter", e->o->eval);
		else if (rc > 0) rc = 0;
	return rc;
}

static int fill_micro(struct row_source *s, uint64_t first, uint32_t rows, uint32_t *block)
{
	struct eval *e = (struct eval *)s;
	MT_ASSERT(e->at == e->part_first + first);
	uint64_t seq = e->o->seq, n = rows * seq;
	bool objective = s->objective.kind != MT_NLL;
	struct mt_document *documents = objective ? objective_fill(s, n, block) : e->documents;
	s->documents = 0;
	for (uint64_t i = 0; i < n; i += seq) {
		e->packer.weights = s->weighted || objective ? (float *)(block + 3 * n) + i : NULL;
		e->packer.old = objective ? (float *)(block + 4 * n) + i : NULL;
		e->packer.teacher = s->top ? block + 5 * n + i * MT_TEACHER_WORDS(s->top) : NULL;
		e->packer.in_row = documents + s->documents;
		int rc = next_row(e, block + i, block + n + i, block + 2 * n + i);
		if (rc < 0) return rc;
		if (rc == 0) return mt_fail(MT_EX_DATA, "%s: has become shorter", e->o->eval);
		for (uint32_t d = 0; d < e->packer.n_in_row && objective; d++) documents[s->documents++].begin += (uint32_t)i;
	}
	return 0;
}

/* Read the whole file: count rows, and targets of each part. */
static int count(struct eval *e)
{
	for (;;) {
		uint64_t part = e->at / part_rows(e);
		int rc = drop_row(e);
		if (rc <= 0) return rc;
		if (part == e->n_parts) {
			uint64_t *more = realloc(e->part_targets, (e->n_parts + 1) * sizeof *more);
			if (!more) return mt_fail(MT_EX_NOMEM, "no memory");
			e->part_targets = more;
			e->part_targets[e->n_parts++] = 0;
		}
		uint64_t n = targets_count(e->scratch + e->o->seq, e->o->seq);
		e->source.weighted |= e->packer.weighted;
		e->part_targets[part] += n;
		loss_count(&e->counts, e->scratch + e->o->seq, (uint32_t)e->o->seq, e->documents, e->packer.n_in_row);
		e->rows++;
	}
}

int eval_open(struct eval *e, const struct options *o, const struct vocabulary *vocab)
{
	*e = (struct eval){.o = o, .vocab = *vocab, .source = {.fill = fill_micro, .rewind = rewind_part}};
	struct stat st;
	e->fd = open(o->eval, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* opening a FIFO must not wait */
	if (e->fd < 0) return record_unopened(o->eval);
	if (fstat(e->fd, &st) || !S_ISREG(st.st_mode))
		return mt_fail(MT_EX_DATA, "%s: not a regular file; evaluation reads it again and again", o->eval);
	e->scratch = malloc(3 * o->seq * sizeof *e->scratch);
	e->documents = malloc(o->seq * sizeof *e->documents);
	if (!e->scratch || !e->documents) return mt_fail(MT_EX_NOMEM, "no memory for a row");
	int rc = start_over(e);
	if (!rc) rc = count(e);
	if (!rc) rc = packer_check_any(&e->packer);
	if (!rc && !e->counts.targets)
		rc = mt_fail(MT_EX_DATA,
			"%s: has nothing to predict: with --seq %llu and --long %s, every token of its %llu row%s is context only",
			o->eval, (unsigned long long)o->seq, pack_long_name(o->pack), (unsigned long long)e->rows, mt_s(e->rows));
	return rc;
}

/* Add a part of the evaluation, txn k, which is done. */
static void add_part(struct evaluation *sum, struct driver *d, uint32_t k)
{
	const struct mt_txn *t = mt_txn(d->run, k);
	double loss = 0;
	for (uint32_t j = 0; j < t->micros; j++) loss += t->losses[j].nonfinite ? NAN : t->losses[j].sum;
	sum->loss += loss;
	for (int i = 0; i < MT_STEP_FIGURES; i++) sum->sums[i] += t->figures[i];
}

struct evaluation eval_run(struct eval *e, struct driver *d, uint64_t step, const struct mt_position *position)
{
	struct evaluation sum = {0};
	e->source.top = d->top;
	for (uint64_t part = 0; part < e->n_parts; part++) {
		e->part_first = part * part_rows(e);
		uint64_t left = e->rows - e->part_first;
		e->source.rows = left < part_rows(e) ? left : part_rows(e);
		e->source.targets = e->part_targets[part];
		e->source.objective = loss_objective(&e->o->objective, &e->counts, e->source.targets);
		uint32_t newest = mt_txn_newest(d->run);
		/* the next part but one needs this entry; the newest stays unlogged: a successor finds it unfinished */
		if (newest && driver_phase(d, newest - 1) == MT_DONE) driver_logged(d, newest - 1);
		uint32_t k = driver_begin(d, MT_EVAL, step, 0, false, false, position, &e->source);
		driver_wait(d, k, MT_DONE);
		add_part(&sum, d, k);
	}
	sum.loss /= (double)e->counts.targets;
	return sum;
}

bool eval_was(const struct eval *e, struct driver *d, uint32_t k, struct evaluation *result)
{
	const struct mt_txn *t = mt_txn(d->run, k);
	if (t->kind != MT_EVAL || e->n_parts != 1 || t->targets != e->counts.targets ||
		t->micros != (e->rows + e->o->micro - 1) / e->o->micro)
		return false;
	*result = (struct evaluation){0};
	add_part(result, d, k);
	result->loss /= (double)e->counts.targets;
	return true;
}
