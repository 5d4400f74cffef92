/* weights.c: loads w and lo, from weights in bf16, fp16 or fp32, with lo or without. */
#include <math.h>
#include "load.h"
#include "cli/cli.h"
#include "mt/run.h"

/* Add lo to weights that were read as fp32 from bf16 */
static void join_in_place(uint32_t *bits, const int16_t *lo, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) bits[i] += (uint32_t)(int32_t)lo[i];
}

/* The same of lo, which of exact tensors is on all nodes */
static struct piece owned_lo(const struct loader *l, struct piece p)
{
	return mt_tensor(l->run, p.index)->exact ? p : load_owned(l, p);
}

/* lo of weights that the file has in bf16 */
static int read_lo(const struct loader *l, struct piece p)
{
	p = owned_lo(l, p);
	int16_t *lo = (int16_t *)mt_at(l->run, mt_unit(l->run, p.unit)->lo) + p.at; /* (n) */

	if (p.n && l->s->found[ARRAY_LO]) return source_state(l->s, ARRAY_LO, p.index, p.from, p.at, p.n, NULL, lo);
	if (!l->zero) memset(lo, 0, p.n * 2);
	return 0;
}

/* fp32 to w and lo */
static void split(const struct loader *l, const struct piece *p, const uint32_t *bits, int16_t *scratch)
{
	const struct mt_unit *unit = mt_unit(l->run, p->unit);
	uint16_t *hi = (uint16_t *)mt_at(l->run, unit->w) + p->at; /* (n) */
	const struct piece own = owned_lo(l, *p);
	int16_t *lo = (int16_t *)mt_at(l->run, unit->lo) + own.at; /* (own.n) */
	convert_split(hi, own.n == p->n ? lo : scratch, bits, p->n);
	if (own.n && own.n < p->n) memcpy(lo, scratch + (own.at - p->at), own.n * 2);
}

static int read_weights(const struct loader *l, const struct piece *p, void *buf)
{
	bool bf16 = mt_control(l->run)->dtype == MT_BF16;
	const struct st_entry *w = l->s->found[ARRAY_W][p->index];
	void *here = mt_at(l->run, mt_unit(l->run, p->unit)->w), *raw = (uint8_t *)buf + BLOCK_BYTES;
	uint32_t *bits = bf16 ? buf : (uint32_t *)here + p->at;
	bool as_is = bf16 && w->tensor->dtype == ST_BF16;
	int rc = as_is ? st_read(w, p->from, p->n, (uint16_t *)here + p->at) : model_read(w, p->from, p->n, raw, bits);
	if (rc < 0) return rc;
	if (as_is) return read_lo(l, *p);
	if (l->s->found[ARRAY_LO] && w->tensor->dtype == ST_BF16) {
		if ((rc = source_state(l->s, ARRAY_LO, p->index, p->from, p->at, p->n, NULL, raw)) < 0) return rc;
		join_in_place(bits, raw, p->n);
	}
	if (bf16) split(l, p, bits, raw);
	return 0;
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
	const char *name = mt_tensor(l->run, index)->name;
	uint64_t bad = nonfinite_count(&l->seen, index, name, dtype, w, n);
	/* Only a checkpoint may have such weights: it stores the run as it was. */
	if (bad == n || l->s->full) return 0;
	return mt_fail(MT_EX_DATA, "%s: tensor '%s': element %llu is not a finite %s",
		l->s->found[ARRAY_W][index]->file->name, name, (unsigned long long)(from + bad), mt_dtype_name(dtype));
}

/* The same of a tensor in MXFP4. The file has the columns of each expert's matrix as rows: the part is whole rows. */
static int load_mxfp4(struct loader *l, const struct part *p, void *buf)
{
	const struct mt_tensor *t = mt_tensor(l->run, p->index);
	uint64_t cols = t->shape[0], rows = t->shape[1], end = (p->from + p->n) / cols;
	uint64_t elem = mt_dtype_bytes((enum mt_dtype)mt_control(l->run)->dtype);
	uint8_t *w = (uint8_t *)mt_at(l->run, mt_unit(l->run, t->unit)->w) + t->off * elem;
	uint32_t *bits = buf; /* (cols, n) */
	void *raw = (uint8_t *)buf + BLOCK_BYTES;
	int rc = 0;
	for (uint64_t row = p->from / cols, n; row < end && rc == 0; row += n) {
		uint64_t first = row / rows * rows * cols + row % rows; /* element of the run's tensor */
		n = BLOCK_ELEMS / cols;
		if (n > end - row) n = end - row;
		if (n > rows - row % rows) n = rows - row % rows;
		if (mt_stopping) return mt_fail(MT_EX_BUSY, "stopped");
		rc = mxfp4_read(l->s->found[ARRAY_W][p->index], row, n, cols, raw, bits);
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
	if (l->s->found[ARRAY_W][p->index]->scales) return load_mxfp4(l, p, buf);

	const struct mt_tensor *t = mt_tensor(l->run, p->index);
	const struct mt_unit *unit = mt_unit(l->run, t->unit);
	enum mt_dtype dtype = (enum mt_dtype)mt_control(l->run)->dtype;
	uint64_t end = p->from + p->n, elem = mt_dtype_bytes(dtype);
	int rc;
	for (uint64_t from = p->from, at, n; from < end; from += n) {
		mt_tensor_piece(&l->s->geo, t, from, &at, &n);
		if (n > end - from) n = end - from;
		if (n > BLOCK_ELEMS) n = BLOCK_ELEMS;
		if (mt_stopping) return mt_fail(MT_EX_BUSY, "stopped");
		at += t->off;
		uint8_t *w = (uint8_t *)mt_at(l->run, unit->w) + at * elem;
		load_populate(w, n * elem);
		if ((rc = read_weights(l, &(struct piece){p->index, t->unit, from, at, n}, buf)) < 0) return rc;
		if ((rc = check_finite(l, p->index, from, w, n)) < 0) return rc;
	}
	return check_constant(l->run, t);
}
