/* map.c: where a run has each tensor of an export, for readers of its memory in any language. */
#include "ckpt.h"
#include "mt/control.h"
#include "mt/run.h"

/* Ranges of bytes of the store region that are the tensor one after another. Of transposed matrices, which the store
 * has by columns of the files: of each. */
static json_t *pieces(const struct mt_run *run, const struct mt_tensor *t, int *rc)
{
	uint64_t elem = mt_dtype_bytes(mt_control(run)->dtype), at, n;
	json_t *list = json_array();
	for (uint64_t from = 0; from < t->n; from += n) {
		mt_tensor_piece(mt_geometry(run), t, from, &at, &n);
		if (t->transposed) n = t->shape[0] * t->shape[1];
		at = mt_unit(run, t->unit)->w + (t->off + at) * elem;
		json_add(rc, list, json_pack("[I, I]", (json_int_t)at, (json_int_t)(n * elem)));
	}
	return list;
}

static json_t *tensor_object(const struct mt_run *run, const struct shards *set, uint32_t i, int *rc)
{
	const struct mt_tensor *t = &set->table[i];
	const struct mt_unit *u = mt_unit(run, t->unit);
	bool fp32 = shards_elem(set, i) == 4, joined = fp32 && mt_control(run)->dtype == MT_BF16;
	uint64_t dims[4];
	json_t *shape = json_array();
	mt_tensor_dims(t, dims);
	for (uint32_t d = 0; d < t->ndim; d++) json_add(rc, shape, json_integer((json_int_t)dims[d]));
	return json_pack("{s:s, s:s, s:o, s:I, s:b, s:o, s:o}", "name", t->name, "dtype", fp32 ? "F32" : "BF16", "shape",
		shape, "unit", (json_int_t)t->unit, "transposed", t->transposed, "pieces", pieces(run, t, rc), "lo",
		joined ? json_integer((json_int_t)(u->lo - u->w)) : json_null());
}

int ckpt_map(const char *name)
{
	struct mt_run *run;
	struct out_dir none = {.fd = -1};
	struct writer w;
	int rc = mt_run_open(&run, name, MT_RUN_WEIGHTS | MT_RUN_READONLY);
	if (rc < 0) return rc;
	rc = writer_begin(&w, run, &none, (enum mt_dtype)mt_control(run)->dtype, WRITE_MODEL, UINT64_MAX, 1);
	if (rc == 0) {
		json_t *list = json_array();
		for (uint32_t i = 0; i < w.set[ARRAY_W].n; i++)
			json_add(&rc, list, tensor_object(run, &w.set[ARRAY_W], i, &rc));
		if (rc == 0 && json_dumpf(list, stdout, JSON_COMPACT)) rc = mt_fail(MT_EX_IO, "stdout: cannot be written");
		putchar('\n');
		json_decref(list);
		writer_drop(&w);
	}
	mt_run_close(run);
	return rc;
}
