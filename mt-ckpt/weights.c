/* weights.c: loads w and lo, from weights in bf16, fp16, fp32, FP8 or MXFP4. lo of a checkpoint comes when all w are
 * there: its files have the run's tensors, the model's may have others. */
#include <math.h>
#include "load.h"
#include "cli/cli.h"
#include "mt/control.h"
#include "mt/run.h"

/* The same of lo, which of exact tensors is on all nodes */
static struct piece owned_lo(const struct loader *l, bool exact, struct piece p)
{
	return exact ? p : load_owned(l, p);
}

/* fp32 to w and lo */
static void split(const struct loader *l, const struct piece *p, const uint32_t *bits, int16_t *scratch)
{
	const struct mt_unit *unit = mt_unit(l->run, p->unit);
	uint16_t *hi = (uint16_t *)mt_at(l->run, unit->w) + p->at; /* (n) */
	const struct piece own = owned_lo(l, l->s->as_read.tensors[p->index].exact, *p);
	int16_t *lo = (int16_t *)mt_at(l->run, unit->lo) + own.at; /* (own.n) */
	convert_split(hi, own.n == p->n ? lo : scratch, bits, p->n);
	if (own.n && own.n < p->n) memcpy(lo, scratch + (own.at - p->at), own.n * 2);
}

static int read_weights(const struct loader *l, const struct piece *p, void *buf)
{
	bool bf16 = mt_control(l->run)->dtype == MT_BF16;
	const struct st_entry *w = l->s->found[ARRAY_W][p->index];
	const struct mt_unit *unit = mt_unit(l->run, p->unit);
	void *here = mt_at(l->run, unit->w), *raw = (uint8_t *)buf + BLOCK_BYTES;
	uint32_t *bits = bf16 ? buf : (uint32_t *)here + p->at;
	if (bf16 && w->tensor->dtype == ST_BF16) {
		const struct piece own = owned_lo(l, l->s->as_read.tensors[p->index].exact, *p);
		bool low = l->s->found[ARRAY_LO] && mt_trained(&l->s->layout.units[p->unit]);
		if (!l->zero && !low) memset((int16_t *)mt_at(l->run, unit->lo) + own.at, 0, own.n * 2);
		return st_read(w, p->from, p->n, (uint16_t *)here + p->at);
	}
	int rc = model_read(w, p->from, p->n, raw, bits);
	if (rc == 0 && bf16) split(l, p, bits, raw);
	return rc;
}

/* The same of a piece of lo in the run's order; of a run in fp32, it is added to w */
static int read_low(const struct loader *l, struct piece p, int16_t *lo)
{
	const struct mt_tensor *t = mt_tensor(l->run, p.index);
	const struct mt_unit *unit = mt_unit(l->run, p.unit);
	bool bf16 = mt_control(l->run)->dtype == MT_BF16;
	if (bf16) {
		p = owned_lo(l, t->exact, p);
		lo = (int16_t *)mt_at(l->run, unit->lo) + p.at; /* (n) */
	}
	int rc = p.n ? source_state(l->s, ARRAY_LO, p.index, p.from, p.at, p.n, NULL, lo) : 0;
	uint32_t *bits = (uint32_t *)mt_at(l->run, unit->w) + p.at;
	for (uint64_t i = 0; i < p.n && !bf16 && rc == 0; i++) bits[i] += (uint32_t)(int32_t)lo[i];
	return rc;
}

int load_low(const struct loader *l, const struct part *p, void *buf)
{
	const struct mt_tensor *t = mt_tensor(l->run, p->index);
	struct piece piece;
	int rc = 0;
	for (uint64_t from = p->from, end = p->from + p->n; from < end && rc == 0; from += piece.n)
		if ((rc = load_piece(&l->s->geo, t, p->index, from, end, &piece)) == 0) rc = read_low(l, piece, buf);
	return rc;
}

/* xIELU is computed with these values (activations.py, XIELUActivation); files may have them rounded to bf16. */
static int check_constant(struct mt_run *run, const struct mt_tensor *t)
{
	double want = t->role == MT_T_XIELU_BETA ? 0.5 : t->role == MT_T_XIELU_EPS ? -1e-6 : 0;
	const void *w = (const uint8_t *)mt_at(run, mt_unit(run, t->unit)->w);
	bool bf16 = mt_control(run)->dtype == MT_BF16;
	float has;
	if (want == 0) return 0;
	has = bf16 ? mt_float((uint32_t)((const uint16_t *)w)[t->off] << 16) : ((const float *)w)[t->off];
	if (fabs(has - want) <= 0.01 * fabs(want)) return 0;
	return mt_fail(MT_EX_CONFIG, "tensor '%s': %g is not supported, only %g", t->name, (double)has, want);
}

/* w holds the n elements of tensor `index` from `from` on */
static int check_finite(struct loader *l, uint32_t index, uint64_t from, const void *w, uint64_t n)
{
	enum mt_dtype dtype = (enum mt_dtype)mt_control(l->run)->dtype;
	const char *name = l->s->as_read.tensors[index].name;
	uint64_t bad = nonfinite_count(&l->seen, index, name, dtype, w, n);
	/* Only a checkpoint may have such weights: it stores the run as it was. */
	if (bad == n || l->s->full) return 0;
	return mt_fail(MT_EX_DATA, "%s: tensor '%s': element %llu is not a finite %s",
		l->s->found[ARRAY_W][index]->file->name, name, (unsigned long long)(from + bad), mt_dtype_name(dtype));
}

/* Read n rows of `cols` numbers of a tensor in the file as columns: bits has (cols, n) */
static int read_rows(const struct st_entry *e, uint64_t row, uint64_t n, uint64_t cols, void *raw, uint32_t *bits)
{
	if (e->scales) return mxfp4_read(e, row, n, cols, raw, bits);
	uint32_t *numbers = bits + BLOCK_ELEMS / 2; /* (n, cols) */
	int rc = model_read(e, row * cols, n * cols, raw, numbers);
	for (uint64_t c = 0; c < cols && rc == 0; c++)
		for (uint64_t i = 0; i < n; i++) bits[c * n + i] = numbers[i * cols + c];
	return rc;
}

/* The same of a tensor in MXFP4, or of transposed matrices. The file has the columns of each expert's matrix as rows:
 * the part is whole rows. */
static int load_transposed(struct loader *l, const struct part *p, void *buf)
{
	const struct mt_tensor *t = &l->s->as_read.tensors[p->index];
	const struct st_entry *e = l->s->found[ARRAY_W][p->index];
	uint64_t cols = t->shape[!e->scales], rows = t->shape[!!e->scales], end = (p->from + p->n) / cols; /* in the file */
	uint64_t elem = mt_dtype_bytes((enum mt_dtype)mt_control(l->run)->dtype),
			 most = e->scales ? BLOCK_ELEMS : TRANSPOSED_COLS;
	uint8_t *w = (uint8_t *)mt_at(l->run, mt_unit(l->run, t->unit)->w) + t->off * elem;
	uint32_t *bits = buf; /* (cols, n) */
	void *raw = (uint8_t *)buf + BLOCK_BYTES;
	int rc = 0;
	for (uint64_t row = p->from / cols, n, first, some; row < end && rc == 0; row += n) {
		uint64_t from = e->scales ? row / rows * rows * cols + row % rows : row * cols;
		mt_tensor_piece(&l->s->geo, t, from, &first, &some);
		n = most / cols;
		if (n > end - row) n = end - row;
		if (n > rows - row % rows) n = rows - row % rows;
		if (mt_stopping) return mt_fail(MT_EX_BUSY, "stopped");
		rc = read_rows(e, row, n, cols, raw, bits);
		for (uint64_t c = 0, at; c < cols && rc == 0; c++) {
			at = first + c * rows;
			if (elem == 2) split(l, &(struct piece){p->index, t->unit, at, t->off + at, n}, bits + c * n, raw);
			else memcpy(w + at * elem, bits + c * n, n * elem);
			rc = check_finite(l, p->index, at, w + at * elem, n);
		}
	}
	return rc;
}

int load_weights(struct loader *l, const struct part *p, void *buf)
{
	const struct mt_tensor *t = &l->s->as_read.tensors[p->index];
	if (t->transposed || l->s->found[ARRAY_W][p->index]->scales) return load_transposed(l, p, buf);

	const struct mt_unit *unit = mt_unit(l->run, t->unit);
	enum mt_dtype dtype = (enum mt_dtype)mt_control(l->run)->dtype;
	uint64_t end = p->from + p->n, elem = mt_dtype_bytes(dtype);
	struct piece piece;
	for (uint64_t from = p->from; from < end; from += piece.n) {
		int rc = load_piece(&l->s->geo, t, p->index, from, end, &piece);
		if (rc < 0) return rc;
		uint8_t *w = (uint8_t *)mt_at(l->run, unit->w) + piece.at * elem;
		load_populate(w, piece.n * elem);
		if ((rc = read_weights(l, &piece, buf)) < 0) return rc;
		if ((rc = check_finite(l, p->index, from, w, piece.n)) < 0) return rc;
	}
	return check_constant(l->run, t);
}
