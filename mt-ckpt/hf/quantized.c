/* quantized.c: weights in FP8 and MXFP4 as fp32 numbers.
 *
 * FP8: bytes of X.weight (R, C) are numbers of 8 bits, F8_E4M3 of the Open Compute Project's OFP8, and each block of
 * them has a scale, by which they are multiplied:
 *
 *     X.weight_scale_inv (ceil(R / r), ceil(C / c))    quant_method fp8: blocks of r x c, weight_block_size of
 *                                                      config.json; where that is null, one number for all
 *     X.weight_scale (R, 1), one number, or blocks     compressed-tensors: block_structure of config.json
 *     X.scale, X.qscale_weight                         as weight_scale_inv; as weight_scale
 *
 * Of packed experts X (E, R, C), X_scale_inv has the experts as first dimension, too.
 *
 * The last blocks of a row and of a column may be partial. transformers 5.24 divides the weight evenly by the scales'
 * shape instead, which is wrong for these.
 *
 * MXFP4 (gpt-oss; OCP Microscaling Formats 1.0): a weight X of E experts is (E, C, R), and the file has its transpose:
 *
 *     X_blocks (E, R, C / 32, 16)   bytes of two codes, the low 4 bits first: sign, and one of 0, 0.5, ... 6
 *     X_scales (E, R, C / 32)       of 32 codes: a power of two */
#include <math.h>
#include <stdlib.h>
#include "hf.h"
#include "say.h"
#include "model/bf16.h"

enum { MXFP4_GROUP = 32 };
#define NO_BLOCKS UINT64_MAX /* rows or columns of a block: all */

static int bad(const struct st_entry *e, const char *what)
{
	return mt_fail(MT_EX_DATA, "%s: tensor '%s': %s", e->file->name, shown(e->tensor->name), what);
}

/* The tensor with another ending; NULL: none */
static struct st_entry *find_beside(const struct model *m, const char *name, const char *end, const char *other)
{
	char beside[512];
	int n = snprintf(beside, sizeof beside, "%.*s%s", (int)(strlen(name) - strlen(end)), name, other);
	return n < (int)sizeof beside ? model_find(m, beside) : NULL;
}

/* weight_block_size, which compressed-tensors has in a group as block_structure; NULL: neither */
static const json_t *block_size(const json_t *q)
{
	json_t *size = json_object_get(q, "weight_block_size"), *group;
	const char *key;
	json_object_foreach(json_object_get(q, "config_groups"), key, group)
	{
		json_t *structure = json_object_get(json_object_get(group, "weights"), "block_structure");
		if (!size && json_is_array(structure)) size = structure;
	}
	return size;
}

int quantized_config(struct model *m, int dirfd)
{
	static const char key[] = "quantization_config";
	json_t *root;
	int rc = file_read_json(dirfd, "config.json", &root);
	if (rc < 0) return rc;
	const json_t *q = json_object_get(root, key);
	if (!json_is_object(q)) q = json_object_get(json_object_get(root, "text_config"), key);
	const json_t *size = block_size(q);
	for (size_t i = 0; i < 2; i++) {
		json_int_t n = size ? json_integer_value(json_array_get(size, i)) : 128;
		m->block[i] = json_is_null(size) ? NO_BLOCKS : (uint64_t)n;
		if (!json_is_null(size) && (n < 1 || (size && json_array_size(size) != 2)))
			rc = mt_fail(MT_EX_DATA, "config.json: weight_block_size is not two whole numbers above 0");
	}
	json_decref(root);
	return rc;
}

/* ---- FP8 */

/* E8M0: 2^(code - 127); 255 is NaN. */
static float power(uint8_t code) { return code == 255 ? NAN : mt_float(code ? (uint32_t)code << 23 : 1u << 22); }

/* E4M3: no infinity; 7 bits of ones are NaN. */
static float fp8(uint8_t code)
{
	uint32_t sign = (uint32_t)(code & 0x80) << 24, exp = code >> 3 & 15, frac = code & 7;
	if ((code & 0x7f) == 0x7f) return NAN;
	if (exp) return mt_float(sign | (exp + 120) << 23 | frac << 20);
	return mt_float(sign | mt_bits((float)frac * 0x1p-9f));
}

static int read_scales(struct st_entry *e, const struct st_entry *scales, uint64_t n)
{
	enum st_dtype dtype = scales->tensor->dtype;
	bool powers = dtype == ST_E8M0 || dtype == ST_U8;
	if (!powers && dtype != ST_F32 && dtype != ST_BF16) return bad(scales, "a scale is F32, BF16, F8_E8M0 or U8");
	uint8_t *raw = malloc(n * 2);
	float *v = malloc(n * sizeof *v);
	e->scale = v;
	int rc = raw && v ? 0 : mt_fail(MT_EX_NOMEM, "no memory for scales");
	if (rc == 0) rc = powers ? st_read(scales, 0, n, raw) : model_read(scales, 0, n, raw, (uint32_t *)v);
	for (uint64_t i = 0; i < n && rc == 0; i++) {
		if (powers) v[i] = power(raw[i]);
		if (!isfinite(v[i])) rc = bad(scales, "a scale is not finite");
	}
	free(raw);
	return rc;
}

/* The scales of an FP8 weight; `row`: of each row or of all, else of blocks */
static struct st_entry *find_scales(const struct model *m, const char *name, bool *row)
{
	static const struct {
		const char *weight, *scale;
	} names[] = {{"", "_scale_inv"}, {"", "_scale"}, {".weight", ".scale"}, {".weight", ".qscale_weight"}};
	struct st_entry *e = NULL;
	for (size_t i = 0; i < sizeof names / sizeof *names && !e; i++) {
		if (ends_with(name, names[i].weight)) e = find_beside(m, name, names[i].weight, names[i].scale);
		*row = i % 2;
	}
	return e;
}

static uint64_t blocks_of(uint64_t n, uint64_t block) { return (n - 1) / block + 1; }

/* How the scales s divide the weight: e->rows, e->block. A third dimension, of experts, is in both. */
static void divide(const struct model *m, struct st_entry *e, const struct st_tensor *s, uint64_t scales, bool row)
{
	const uint64_t *dims = e->tensor->shape + (e->tensor->ndim - 2), *grid = s->shape + (s->ndim > 2);
	bool by_row = row && (scales == 1 || (s->ndim == e->tensor->ndim && grid[0] == dims[0] && grid[1] == 1));
	bool same = s->ndim == 3 && e->tensor->ndim == 3;
	for (size_t i = 0; i < 2; i++) e->block[i] = by_row ? NO_BLOCKS : m->block[i];
	if (by_row && scales > 1) e->block[0] = 1;
	e->rows = dims[0];
	/* gate and up may have been divided before they became one: then each has blocks of its own */
	if (same && ends_with(e->tensor->name, ".gate_up_proj") && dims[0] % 2 == 0 &&
		grid[0] != blocks_of(dims[0], e->block[0]) && grid[0] == 2 * blocks_of(dims[0] / 2, e->block[0]))
		e->rows = dims[0] / 2;
}

bool fp8_has_scales(const struct model *m, const struct st_entry *e)
{
	bool row;
	return e->tensor->dtype == ST_F8 && find_scales(m, e->tensor->name, &row);
}

int fp8_match(const struct model *m, struct st_entry *e)
{
	static const char *const inputs[] = {"activation_scale", "input_scale"}; /* of W8A8, which mt does not compute */
	const struct st_tensor *w = e->tensor;
	bool row, weight = ends_with(w->name, ".weight");
	struct st_entry *s = find_scales(m, w->name, &row);
	if (!s) return bad(e, "is FP8, and its weight_scale_inv or weight_scale is missing");
	if (w->ndim != 2 && w->ndim != 3) return bad(e, "FP8 weights have two dimensions, or three");
	const struct st_tensor *t = s->tensor;
	uint64_t n = 1, experts = w->ndim == 3 ? w->shape[0] : 1, rows = w->shape[w->ndim - 2];
	for (uint32_t d = 0; d < t->ndim; d++) n *= t->shape[d]; /* safetensors.c has checked that it is in the file */
	s->used = true;
	for (size_t i = 0; i < 2; i++) {
		char name[32];
		snprintf(name, sizeof name, "%s%s", weight ? "." : "_", inputs[i]);
		struct st_entry *input = find_beside(m, w->name, weight ? ".weight" : "", name);
		if (input) input->used = true;
	}
	if (w->begin == w->end) { /* it has no elements: a dimension is 0 */
		e->scale = calloc(1, sizeof *e->scale);
		return e->scale ? 0 : mt_fail(MT_EX_NOMEM, "no memory for scales");
	}
	divide(m, e, t, n, row);
	e->scale_rows = blocks_of(e->rows, e->block[0]);
	e->scale_cols = blocks_of(w->shape[w->ndim - 1], e->block[1]);
	const uint64_t needed[3] = {experts, rows / e->rows * e->scale_rows, e->scale_cols};
	bool one = needed[1] * needed[2] == 1 && n == experts;
	if (!one && (t->ndim != w->ndim || memcmp(t->shape, needed + 3 - w->ndim, w->ndim * sizeof *needed) != 0)) {
		char first[24] = "";
		if (w->ndim == 3) snprintf(first, sizeof first, "%llu, ", (unsigned long long)experts);
		return mt_fail(MT_EX_DATA, "%s: tensor '%s': its shape is not (%s%llu, %llu), the scales of '%s'",
			s->file->name, shown(t->name), first, (unsigned long long)needed[1], (unsigned long long)needed[2],
			shown(w->name));
	}
	return read_scales(e, s, n);
}

void fp8_decode(const struct st_entry *e, uint64_t from, uint64_t n, const uint8_t *codes, uint32_t *bits)
{
	uint64_t cols = e->tensor->shape[e->tensor->ndim - 1], row = from / cols, col = from % cols;
	float value[256];
	for (unsigned i = 0; i < 256; i++) value[i] = fp8((uint8_t)i);
	for (uint64_t i = 0, end; i < n; i = end) { /* a row of a block at a time */
		uint64_t in = col % e->block[1], left = cols - col;
		if (left > e->block[1] - in) left = e->block[1] - in;
		uint64_t above = row / e->rows * e->scale_rows + row % e->rows / e->block[0];
		float scale = e->scale[above * e->scale_cols + col / e->block[1]];
		end = n - i < left ? n : i + left;
		for (uint64_t j = i; j < end; j++) bits[j] = mt_bits(value[codes[j]] * scale);
		col += left;
		if (col == cols) col = 0, row++;
	}
}

/* ---- MXFP4 */

bool is_mxfp4(const struct st_entry *e) { return ends_with(e->tensor->name, "_blocks"); }

int mxfp4_match(const struct model *m, struct st_entry *e, const struct mt_tensor *want)
{
	const struct st_tensor *t = e->tensor, *s;
	struct st_entry *scales = find_beside(m, t->name, "_blocks", "_scales");
	const uint64_t shape[4] = {want->experts, want->shape[1], want->shape[0] / MXFP4_GROUP, MXFP4_GROUP / 2};
	if (!scales) return bad(e, "its _scales are missing");
	s = scales->tensor;
	if (want->ndim != 3 || want->shape[0] % MXFP4_GROUP || want->shape[0] > MXFP4_COLS || t->dtype != ST_U8 ||
		t->ndim != 4 || memcmp(t->shape, shape, sizeof shape) != 0)
		return mt_fail(MT_EX_DATA, "%s: tensor '%s': it is not U8 (%llu, %llu, %llu, 16), as config.json says",
			e->file->name, shown(t->name), (unsigned long long)shape[0], (unsigned long long)shape[1],
			(unsigned long long)shape[2]);
	if (s->dtype != ST_U8 || s->ndim != 3 || memcmp(s->shape, shape, 3 * sizeof *shape) != 0)
		return mt_fail(MT_EX_DATA, "%s: tensor '%s': it is not U8 (%llu, %llu, %llu), the scales of '%s'",
			scales->file->name, shown(s->name), (unsigned long long)shape[0], (unsigned long long)shape[1],
			(unsigned long long)shape[2], shown(t->name));
	scales->used = true;
	e->scales = scales;
	return 0;
}

int mxfp4_read(const struct st_entry *e, uint64_t row, uint64_t rows, uint64_t cols, void *raw, uint32_t *bits)
{
	static const float value[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
	uint64_t groups = cols / MXFP4_GROUP;
	uint8_t *codes = raw, *scale = codes + rows * cols / 2;
	int rc = st_read(e, row * cols / 2, rows * cols / 2, codes);
	if (rc == 0) rc = st_read(e->scales, row * groups, rows * groups, scale);
	for (uint64_t i = 0; i < rows * groups && rc == 0; i++, codes += MXFP4_GROUP / 2) {
		float by = power(scale[i]);
		uint32_t *out = bits + i % groups * MXFP4_GROUP * rows + i / groups;
		if (scale[i] == 255) rc = bad(e->scales, "a scale is 255, which is NaN");
		for (size_t k = 0; k < MXFP4_GROUP; k++) out[k * rows] = mt_bits(value[codes[k / 2] >> k % 2 * 4 & 15] * by);
	}
	return rc;
}

/* ---- both */

int quantized_check(const struct model *m)
{
	static const struct {
		const char *scale, *weight;
		enum st_dtype dtype;
	} pairs[] = {
		{".weight_scale_inv", ".weight", ST_F8},
		{".weight_scale", ".weight", ST_F8},
		{"_proj_scale_inv", "_proj", ST_F8},
		{"_proj_scales", "_proj_blocks", ST_U8},
	};
	for (size_t i = 0; i < m->n; i++)
		for (size_t j = 0; j < sizeof pairs / sizeof *pairs; j++) {
			const char *name = m->entries[i].tensor->name;
			if (!ends_with(name, pairs[j].scale)) continue;
			const struct st_entry *w = find_beside(m, name, pairs[j].scale, pairs[j].weight);
			if (!w || w->tensor->dtype != pairs[j].dtype)
				return bad(&m->entries[i], "a scale without its quantized weight");
		}
	return 0;
}

void quantized_say(const struct model *m, const struct mt_layout *l, enum mt_dtype dtype)
{
	const char *from = NULL;
	double is = 0, will = 0;
	for (size_t i = 0; i < m->n; i++) {
		const struct st_entry *e = &m->entries[i];
		if (e->scale || e->scales) from = e->scale ? "FP8" : "MXFP4";
		if (e->used) is += (double)(e->tensor->end - e->tensor->begin);
	}
	for (uint32_t i = 0; i < l->n_tensors; i++)
		will += (double)(l->tensors[i].n * (l->tensors[i].exact ? 4 : mt_dtype_bytes(dtype)));
	const char *to = mt_dtype_name(dtype);
	if (from)
		mt_say("%s read as %s; the export will be %s, %.1f GB instead of %.1f", from, to, to, will / 1e9, is / 1e9);
}
