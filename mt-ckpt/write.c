/* write.c: writes a run's arrays into a directory, unit by unit, and the small files beside them. */
#include <stdlib.h>
#include "ckpt.h"
#include "cli/cli.h"
#include "model/bf16.h"
#include "model/int8.h"

int writer_begin(struct writer *w, struct mt_run *run, struct out_dir *dir, enum mt_dtype dtype, bool full,
	uint64_t limit)
{
	bool bf16 = mt_control(run)->dtype == MT_BF16, state_bf16 = mt_control(run)->state == MT_BF16;
	int rc;

	*w = (struct writer){.run = run, .dir = dir, .dtype = dtype};
	w->has[ARRAY_W] = true;
	w->has[ARRAY_LO] = full && bf16;
	w->has[ARRAY_M] = w->has[ARRAY_V] = full;
	w->buf = malloc(IO_BYTES);
	rc = w->buf ? 0 : mt_fail(MT_EX_NOMEM, "no memory for a buffer");
	for (enum array a = 0; a < ARRAYS && rc == 0; a++)
		if (w->has[a])
			rc = shards_begin(&w->set[a], dir, a,
				(a == ARRAY_W && dtype == MT_BF16) || (a >= ARRAY_M && state_bf16) ? ST_BF16 : st_sets[a].dtype,
				mt_tensor(run, 0), mt_control(run)->n_tensors, limit);
	if (rc < 0) writer_drop(w);
	return rc;
}

static int write_weights(struct writer *w, const char *tensor, const void *data, uint64_t n)
{
	nonfinite_count(&w->seen, tensor, w->dtype, data, n);
	return shards_write(&w->set[ARRAY_W], data, n * w->set[ARRAY_W].elem);
}

/* Write n elements from `at` of the unit's weights, in a dtype that is not the run's */
static int write_converted(struct writer *w, const struct mt_unit *unit, const struct mt_tensor *t, uint64_t at,
	uint64_t n)
{
	bool bf16 = mt_control(w->run)->dtype == MT_BF16;
	const uint16_t *hi = (const uint16_t *)mt_at(w->run, unit->w) + at; /* (n) */
	const int16_t *lo = bf16 ? (const int16_t *)mt_at(w->run, unit->lo) + at : NULL;
	const uint32_t *full = (const uint32_t *)mt_at(w->run, unit->w) + at;
	uint32_t elem = bf16 ? 4 : 2;
	int rc = 0;

	for (uint64_t done = 0; done < n && rc == 0;) {
		uint64_t len = n - done < IO_BYTES / elem ? n - done : IO_BYTES / elem;
		if (bf16)
			for (uint64_t i = 0; i < len; i++) ((uint32_t *)w->buf)[i] = mt_join(hi[done + i], lo[done + i]);
		else
			for (uint64_t i = 0; i < len; i++) ((uint16_t *)w->buf)[i] = bf16_round(full[done + i]);
		rc = write_weights(w, t->name, w->buf, len);
		done += len;
	}
	return rc;
}

/* Write n elements from `at` of the unit's m or v, which the run has in int8, as fp32: a group may hold elements of two
 * tensors, so codes and scales are no tensors of their own. */
static int write_decoded(struct writer *w, enum array a, const struct mt_unit *unit, uint64_t off, uint64_t at,
	uint64_t n)
{
	const uint8_t *code = mt_at(w->run, off); /* (elems) */
	const float *scale = int8_scales(code, unit->elems);
	float *out = w->buf;
	int rc = 0;

	for (uint64_t end = at + n; at < end && rc == 0;) {
		uint64_t len = end - at < IO_BYTES / sizeof *out ? end - at : IO_BYTES / sizeof *out;
		for (uint64_t i = 0; i < len; i++, at++)
			out[i] = a == ARRAY_M ? int8_m(code[int8_at(at)], scale[at / MT_GROUP])
								  : int8_v(code[int8_at(at)], scale[at / MT_GROUP]);
		rc = shards_write(&w->set[a], out, len * sizeof *out);
	}
	return rc;
}

/* One array of a tensor, in the file's order. off: of the unit's array in the run */
static int write_array(struct writer *w, enum array a, const struct mt_unit *unit, const struct mt_tensor *t,
	uint64_t off)
{
	bool convert = a == ARRAY_W && mt_control(w->run)->dtype != w->dtype;
	bool decode = a >= ARRAY_M && mt_control(w->run)->state == MT_INT8;
	uint32_t elem = w->set[a].elem;
	const uint8_t *data = mt_at(w->run, off);
	int rc = 0;

	for (uint64_t from = 0, at, n; from < t->n && rc == 0; from += n) {
		mt_tensor_piece(mt_geometry(w->run), t, from, &at, &n);
		at += t->off;
		if (convert) rc = write_converted(w, unit, t, at, n);
		else if (decode) rc = write_decoded(w, a, unit, off, at, n);
		else if (a == ARRAY_W) rc = write_weights(w, t->name, data + at * elem, n);
		else rc = shards_write(&w->set[a], data + at * elem, n * elem);
	}
	return rc;
}

int writer_unit(struct writer *w, uint32_t u)
{
	const struct mt_unit *unit = mt_unit(w->run, u);
	const uint64_t off[ARRAYS] = {unit->w, unit->lo, unit->m, unit->v};
	int rc = 0;

	for (uint32_t i = unit->first_tensor; i < unit->first_tensor + unit->tensors; i++) {
		const struct mt_tensor *t = mt_tensor(w->run, i);
		if (w->stoppable && mt_stopping) return mt_fail(MT_EX_BUSY, "stopped");
		for (enum array a = 0; a < ARRAYS && rc == 0; a++)
			if (w->has[a]) rc = write_array(w, a, unit, t, off[a]);
		if (rc < 0) return rc;
	}
	return 0;
}

/* mt_files_each */
static int write_kept(const char *name, const void *data, size_t bytes, void *arg)
{
	struct out_dir *dir = arg;

	if (!file_name_plain(name)) return mt_fail(MT_EX_DATA, "kept file '%s' is not a valid file name", shown(name));
	return out_text(dir, name, data, bytes);
}

int writer_end(struct writer *w)
{
	char *config = NULL;
	int rc = 0;

	for (int a = 0; a < ARRAYS && rc == 0; a++)
		if (w->has[a]) rc = shards_end(&w->set[a]);
	if (rc == 0) rc = config_export(w->run, w->dtype, &config);
	if (rc == 0) rc = out_text(w->dir, "config.json", config, strlen(config));
	if (rc == 0) rc = mt_files_each(w->run, write_kept, w->dir);
	/* The kept files' region may have been replaced by another user's file: that must not prevent a save. */
	if (rc == 1) {
		mt_say("warning: written without the tokenizer's files: %s", mt_errmsg());
		rc = 0;
	}
	free(config);
	return rc;
}

void writer_drop(struct writer *w)
{
	for (int a = 0; a < ARRAYS; a++) shards_drop(&w->set[a]);
	free(w->buf);
	w->buf = NULL;
}
