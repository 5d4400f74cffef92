/* load.c: loads a directory's weights, or its full state, into a run.
 *
 * Everything that can be checked is checked before the run is changed. Then the run's state is `filling` until every
 * byte is in place. A load that is killed leaves this state, and a load that fails leaves the run empty: no program
 * uses such a run. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>
#include "ckpt.h"
#include "cli/cli.h"
#include "model/bf16.h"
#include "model/int8.h"

#define KEPT_FILES 64
#define KEPT_BYTES (1ull << 30) /* of all kept files together */

struct kept {
	struct mt_file file[KEPT_FILES];
	void *data[KEPT_FILES];
	uint32_t n;
	uint64_t bytes;
};

/* ------------------------------------------------------------------------------------------------ kept files */

static bool is_kept(const char *name)
{
	static const char *const begins[] = {
		"tokenizer",
		"special_tokens_map",
		"added_tokens",
		"vocab",
		"merges",
		"chat_template",
		"generation_config",
	};

	for (size_t i = 0; i < sizeof begins / sizeof begins[0]; i++)
		if (!strncmp(name, begins[i], strlen(begins[i])) && strchr(name, '.')) return true;
	return false;
}

static int keep(struct kept *k, int dirfd, const char *name)
{
	char *data;
	size_t n;
	int rc;

	if (k->n == KEPT_FILES || strlen(name) >= sizeof k->file[0].name)
		return mt_fail(MT_EX_DATA, "%s: too many files or too long a name to keep with the run", shown(name));
	if ((rc = file_read_all(dirfd, name, KEPT_BYTES - k->bytes, &data, &n)) < 0) return rc;
	memcpy(k->file[k->n].name, name, strlen(name) + 1);
	k->file[k->n].bytes = n;
	k->data[k->n++] = data;
	k->bytes += n;
	return 0;
}

static int kept_read(struct kept *k, const struct source *s)
{
	struct dirent **list;
	int n = scandirat(s->dirfd, ".", &list, NULL, alphasort), rc = 0;

	if (n < 0) return fail_errno(s->path);
	for (int i = 0; i < n; i++) {
		if (rc == 0 && is_kept(list[i]->d_name) && (!s->full || json_object_get(s->files, list[i]->d_name)))
			rc = keep(k, s->dirfd, list[i]->d_name);
		free(list[i]);
	}
	free(list);
	return rc;
}

/* ------------------------------------------------------------------------------------------------ arrays */

struct buffers {
	void *raw;
	uint32_t *bits;
	int16_t *lo;
}; /* PART elements each */
#define PART (4u << 20)

/* Store n fp32 patterns as the run's weights from element `at` of the unit: as they are, or split into w and lo.
 * Returns the weights in the run. */
static const void *store_weights(struct mt_run *run, const struct mt_unit *unit, uint64_t at, const uint32_t *bits,
	uint64_t n)
{
	uint16_t *w = (uint16_t *)mt_at(run, unit->w) + at; /* (n) */
	int16_t *lo = (int16_t *)mt_at(run, unit->lo) + at; /* (n) */

	if (mt_control(run)->dtype != MT_BF16) return memcpy((uint32_t *)mt_at(run, unit->w) + at, bits, n * 4);
	for (uint64_t i = 0; i < n; i++) {
		w[i] = mt_hi(bits[i]);
		lo[i] = mt_lo(bits[i]);
	}
	return w;
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

static int load_weights(struct mt_run *run, const struct source *s, uint32_t i, const struct mt_tensor *t,
	const struct buffers *b, struct nonfinite *seen)
{
	const struct mt_unit *unit = mt_unit(run, t->unit);
	enum mt_dtype dtype = (enum mt_dtype)mt_control(run)->dtype;
	const struct st_entry *w = s->found[ARRAY_W][i], *lo = s->found[ARRAY_LO] ? s->found[ARRAY_LO][i] : NULL;
	int rc;

	for (uint64_t from = 0, at, n, bad; from < t->n; from += n) {
		mt_tensor_piece(&s->geo, t, from, &at, &n);
		if (n > PART) n = PART;
		if (mt_stopping) return mt_fail(MT_EX_BUSY, "stopped");
		if ((rc = model_read(w, from, n, b->raw, b->bits)) < 0) return rc;
		if (lo) {
			rc = file_read(lo->file->fd, lo->file->name, b->lo, n * 2, lo->tensor->begin + from * 2);
			if (rc < 0) return rc;
			for (uint64_t j = 0; j < n; j++) b->bits[j] = mt_join((uint16_t)(b->bits[j] >> 16), b->lo[j]);
		}
		bad = nonfinite_count(seen, t->name, dtype, store_weights(run, unit, t->off + at, b->bits, n), n);
		/* Only a checkpoint may have such weights: it stores the run as it was. */
		if (bad < n && !s->full)
			return mt_fail(MT_EX_DATA, "%s: tensor '%s': element %llu is not a finite %s", w->file->name, t->name,
				(unsigned long long)(from + bad), dtype == MT_BF16 ? "bf16" : "fp32");
	}
	return check_constant(run, t);
}

/* m or v of a unit of the run, and what to do with n fp32 values that belong to its elements from `at` on. What the run
 * has in bf16 or int8 and the file in fp32 is rounded to nearest, once. */
struct moments {
	void *array;
	uint64_t elems;
	enum array which;
};
typedef void moments_fn(const struct moments *, uint64_t at, const float *x, uint64_t n);

static void moments_fp32(const struct moments *to, uint64_t at, const float *x, uint64_t n)
{
	memcpy((float *)to->array + at, x, n * 4);
}

static void moments_bf16(const struct moments *to, uint64_t at, const float *x, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) ((uint16_t *)to->array)[at + i] = bf16_round(mt_bits(x[i]));
}

/* The largest |x| of each group, to where its scale will be */
static void moments_largest(const struct moments *to, uint64_t at, const float *x, uint64_t n)
{
	float *most = int8_scales(to->array, to->elems);

	for (uint64_t i = 0; i < n; i++)
		if ((mt_bits(x[i]) & 0x7fffffff) > mt_bits(most[(at + i) / MT_GROUP])) most[(at + i) / MT_GROUP] = fabsf(x[i]);
}

static void largest_to_scales(const struct moments *to)
{
	float *scale = int8_scales(to->array, to->elems);

	for (uint64_t group = 0; group < to->elems / MT_GROUP; group++)
		if (scale[group] != 0) scale[group] = int8_scale(int8_round(scale[group], INT8_NEAREST));
}

static void moments_codes(const struct moments *to, uint64_t at, const float *x, uint64_t n)
{
	const float *scale = int8_scales(to->array, to->elems);
	uint8_t *codes = to->array;

	for (uint64_t i = 0; i < n; i++) {
		float of = scale[(at + i) / MT_GROUP];
		uint32_t rounded = int8_round(x[i], INT8_NEAREST);
		if (of != 0)
			codes[int8_at(at + i)] = to->which == ARRAY_M ? int8_m_code(rounded, of) : int8_v_code(rounded, of);
	}
}

static int read_moments(struct mt_run *run, const struct source *s, const struct moments *to, uint32_t u,
	moments_fn *take, const struct buffers *b)
{
	const struct mt_unit *unit = mt_unit(run, u);

	for (uint32_t i = unit->first_tensor; i < unit->first_tensor + unit->tensors; i++) {
		const struct mt_tensor *t = mt_tensor(run, i);
		for (uint64_t from = 0, at, n; from < t->n; from += n) {
			mt_tensor_piece(mt_geometry(run), t, from, &at, &n);
			if (n > PART) n = PART;
			if (mt_stopping) return mt_fail(MT_EX_BUSY, "stopped");
			int rc = model_read(s->found[to->which][i], from, n, b->raw, b->bits);
			if (rc < 0) return rc;
			take(to, t->off + at, (const float *)b->bits, n);
		}
	}
	return 0;
}

/* m or v of a unit. A group of int8 may hold elements of two tensors, and its scale is needed before its codes: so the
 * file is read twice. */
static int load_moments(struct mt_run *run, const struct source *s, enum array which, uint32_t u,
	const struct buffers *b)
{
	const struct mt_unit *unit = mt_unit(run, u);
	const struct moments to = {mt_at(run, which == ARRAY_M ? unit->m : unit->v), unit->elems, which};
	uint32_t state = mt_control(run)->state;

	if (!s->full || state == MT_INT8) memset(to.array, 0, mt_state_bytes(state, unit->elems));
	if (!s->full) return 0;
	if (state == MT_INT8) {
		int rc = read_moments(run, s, &to, u, moments_largest, b);
		if (rc < 0) return rc;
		largest_to_scales(&to);
	}
	return read_moments(run, s, &to, u,
		state == MT_INT8       ? moments_codes
			: state == MT_BF16 ? moments_bf16
							   : moments_fp32,
		b);
}

static int load_arrays(struct mt_run *run, const struct source *s)
{
	struct buffers b = {malloc(PART * 2), malloc(PART * 4), malloc(PART * 2)};
	uint32_t units = mt_control(run)->n_units;
	struct nonfinite seen = {0};
	int rc = b.raw && b.bits && b.lo ? 0 : mt_fail(MT_EX_NOMEM, "no memory for buffers");

	for (uint32_t u = 0; u < units && rc == 0; u++) {
		const struct mt_unit *unit = mt_unit(run, u);
		if ((rc = mt_stage_check(run)) < 0) break;
		mt_stage_activity(run, MT_ACT_FILL, u);
		for (uint32_t i = unit->first_tensor; i < unit->first_tensor + unit->tensors && rc == 0; i++)
			rc = load_weights(run, s, i, mt_tensor(run, i), &b, &seen);
		if (rc == 0) rc = load_moments(run, s, ARRAY_M, u, &b);
		if (rc == 0) rc = load_moments(run, s, ARRAY_V, u, &b);
	}
	if (rc == 0) nonfinite_warn(&seen);
	free(b.raw);
	free(b.bits);
	free(b.lo);
	return rc;
}

/* ------------------------------------------------------------------------------------------------ the run */

/* Enter the saved choices. run_json_read has checked that they fit. */
static int set_choices(struct mt_run *run, json_t *choices)
{
	const char *key;
	json_t *value;
	int rc = 0;

	json_object_foreach(choices, key, value)
	{
		uint8_t bytes[MT_CHOICE_VALUE] = {0};

		hex_decode(json_string_value(value), bytes);
		if (rc == 0) rc = mt_choice_enter(run, key, bytes, json_string_length(value) / 2);
	}
	return rc;
}

/* Change the run: its state is `filling` until every byte is in place. */
static int fill(struct mt_run *run, const struct source *s, const struct kept *kept)
{
	static const struct mt_position none = {.carry = MT_NO_TARGET};
	int rc = mt_fill_claim(run);

	if (rc < 0) return rc;
	rc = mt_files_put(run, kept->file, (const void *const *)kept->data, kept->n);
	if (rc == 0) rc = load_arrays(run, s);
	if (rc == 0) rc = mt_stage_check(run);
	if (rc == 0) {
		mt_run_reset(run, s->full ? s->json.step : 0, s->full ? s->json.t : 0, s->full ? &s->json.position : &none);
		memcpy(mt_control(run)->unlogged, s->json.unlogged, sizeof s->json.unlogged);
		if (s->json.has_record && (rc = set_choices(run, s->json.choices)) == 0) mt_record_set(run, &s->json.record);
	}
	if (mt_stage_mine(run)) /* otherwise another process fills the run now, and sets its state */
		mt_fill_end(run, rc < 0 ? MT_EMPTY : MT_FILLED);
	return mt_stage_mine(run) ? rc : mt_stage_check(run);
}

static int check_source(struct mt_run *run, struct source *s, struct kept *kept)
{
	int rc;

	if ((rc = source_config(s)) < 0 || (rc = config_same(mt_geometry(run), &s->geo)) < 0 ||
		(rc = source_checksums(s)) < 0 || (rc = source_models(s)) < 0)
		return rc;
	return kept_read(kept, s);
}

/* A checkpoint's m and v are loaded into a run that has them in another type */
static void warn_of_state(struct mt_run *run, const struct source *s)
{
	uint32_t ours = mt_control(run)->state;

	if (!s->full || s->json.state == ours) return;
	mt_say("warning: the checkpoint has AdamW's m and v in %s, the run in %s: %s", state_name(s->json.state),
		state_name(ours), ours == MT_FP32 ? "no bit is lost" : "they are rounded once, to nearest");
}

int ckpt_load(const char *name, const char *dir, bool weights, bool new_record)
{
	struct mt_run *run;
	struct source s = {.dirfd = -1};
	struct kept kept = {.n = 0};
	int rc = mt_run_open(&run, name, MT_RUN_RINGS | MT_RUN_WEIGHTS);

	if (rc < 0) return rc;
	rc = mt_run_idle(run);
	if (rc == 0) rc = source_open(&s, dir, weights);
	if (rc == 0) rc = check_source(run, &s, &kept);
	if (new_record) s.json.has_record = false;
	if (rc == 0) {
		model_name_extras(&s.model[ARRAY_W]);
		warn_of_state(run, &s);
		rc = fill(run, &s, &kept);
	}
	for (uint32_t i = 0; i < kept.n; i++) free(kept.data[i]);
	source_close(&s);
	mt_run_close(run);
	return rc;
}
