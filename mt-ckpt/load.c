/* load.c: loads a directory's weights, or its full state, into a run.
 *
 * Everything that can be checked is checked before the run is changed. Then the run's state is `filling` until every
 * byte is in place. A load that is killed leaves this state, and a load that fails leaves the run empty: no program
 * uses such a run. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include "ckpt.h"
#include "cli/cli.h"
#include "model/int8.h"
#include "mt/choices.h"
#include "mt/run.h"
#include "mt/stage.h"

/* ------------------------------------------------------------------------------------------------ weights */

/* What one thread reads at once: at most PART_ELEMS elements of a tensor; COPY: of m or v of a unit, int8 in the run
 * and in the files; CODES: m or v of a whole unit, int8 in the run alone; ZERO: bytes of an array that become zero */
struct part {
	enum { WEIGHTS, MOMENTS, COPY, CODES, ZERO } what;
	enum array array; /* of MOMENTS, COPY and CODES */
	uint32_t index;   /* of the tensor; of the unit for COPY and CODES */
	uint64_t from, n; /* ZERO: place in the run, and bytes */
};

#define PART_ELEMS (1u << 20)
#define BLOCK_ELEMS (BLOCK_BYTES / 4)

struct loader {
	struct mt_run *run;
	const struct source *s;
	struct part *parts;
	int64_t n, room;
	bool zero; /* nobody has filled the run before: all arrays are zero */
	struct nonfinite seen;
};

/* Map the pages of an array that will be written: one call for many of them costs less than a page fault for each. */
static void populate(void *p, uint64_t bytes)
{
	uintptr_t page = 4096, from = (uintptr_t)p & ~(page - 1), to = ((uintptr_t)p + bytes + page - 1) & ~(page - 1);

	(void)madvise((void *)from, to - from, MADV_POPULATE_WRITE); /* kernels before 5.14 do not have it */
}

/* Add lo to weights that were read as fp32 from bf16 */
static void join_in_place(uint32_t *bits, const int16_t *lo, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++) bits[i] += (uint32_t)(int32_t)lo[i];
}

/* Elements of a tensor, or of a part of it that follow one another both in the file and in the run */
struct piece {
	uint32_t index, unit;
	uint64_t from, at, n; /* the first one in the file, and in the unit's arrays */
};

/* Of m, v and most of lo this node has what it owns: cut the piece to that. Nothing may be left. */
static struct piece owned(const struct loader *l, struct piece p)
{
	struct mt_part own = mt_part(l->run, p.unit);
	uint64_t end = p.at + p.n < own.end ? p.at + p.n : own.end, before = p.at < own.first ? own.first - p.at : 0;

	p.n = p.at + before < end ? end - p.at - before : 0;
	p.from += before;
	p.at += before;
	return p;
}

/* The same of lo, which of exact tensors is on all nodes */
static struct piece owned_lo(const struct loader *l, struct piece p)
{
	return mt_tensor(l->run, p.index)->exact ? p : owned(l, p);
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

static int load_weights(struct loader *l, const struct part *p, void *buf)
{
	const struct mt_tensor *t = mt_tensor(l->run, p->index);
	const struct mt_unit *unit = mt_unit(l->run, t->unit);
	enum mt_dtype dtype = (enum mt_dtype)mt_control(l->run)->dtype;
	uint64_t end = p->from + p->n, elem = mt_dtype_bytes(dtype);
	int rc;

	for (uint64_t from = p->from, at, n, bad; from < end; from += n) {
		mt_tensor_piece(&l->s->geo, t, from, &at, &n);
		if (n > end - from) n = end - from;
		if (n > BLOCK_ELEMS) n = BLOCK_ELEMS;
		if (mt_stopping) return mt_fail(MT_EX_BUSY, "stopped");
		at += t->off;
		uint8_t *w = (uint8_t *)mt_at(l->run, unit->w) + at * elem;
		populate(w, n * elem);
		if ((rc = read_weights(l, &(struct piece){p->index, t->unit, from, at, n}, buf)) < 0) return rc;
		bad = nonfinite_count(&l->seen, p->index, t->name, dtype, w, n);
		/* Only a checkpoint may have such weights: it stores the run as it was. */
		if (bad < n && !l->s->full)
			return mt_fail(MT_EX_DATA, "%s: tensor '%s': element %llu is not a finite %s",
				l->s->found[ARRAY_W][p->index]->file->name, t->name, (unsigned long long)(from + bad),
				mt_dtype_name(dtype));
	}
	return check_constant(l->run, t);
}

/* ------------------------------------------------------------------------------------------------ moments */

/* m or v of what the run has of a unit, and what to do with n fp32 values that belong to its elements from `at` on.
 * What the run has in bf16 or int8 and the file in fp32 is rounded to nearest, once. */
struct moments {
	void *array;
	uint64_t elems;
	struct mt_part own;
	enum array which;
};
typedef void moments_fn(const struct moments *, uint64_t at, const float *x, uint64_t n);

static void moments_bf16(const struct moments *to, uint64_t at, const float *x, uint64_t n)
{
	convert_round((uint16_t *)to->array + at, (const uint32_t *)x, n);
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

	for (uint64_t group = to->own.first / MT_GROUP; group < to->own.end / MT_GROUP; group++)
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

/* Elements [from, end) of a tensor of m or v; take NULL: into the run as they are, in fp32 */
static int read_moments(const struct loader *l, const struct moments *to, uint32_t index, uint64_t from, uint64_t end,
	moments_fn *take, void *buf)
{
	const struct mt_tensor *t = mt_tensor(l->run, index);

	for (uint64_t at, n; from < end; from += n) {
		mt_tensor_piece(mt_geometry(l->run), t, from, &at, &n);
		if (n > end - from) n = end - from;
		if (n > BLOCK_ELEMS) n = BLOCK_ELEMS;
		if (mt_stopping) return mt_fail(MT_EX_BUSY, "stopped");
		const struct piece p = owned(l, (struct piece){index, t->unit, from, at + t->off, n});
		if (!p.n) continue;
		uint32_t *bits = take ? buf : (uint32_t *)to->array + p.at;
		if (!take) populate(bits, p.n * 4);
		int rc = source_state(l->s, to->which, index, p.from, p.at, p.n, (uint8_t *)buf + BLOCK_BYTES, bits);
		if (rc < 0) return rc;
		if (take) take(to, p.at, (const float *)bits, p.n);
	}
	return 0;
}

static struct moments moments_of(const struct loader *l, enum array which, uint32_t u)
{
	const struct mt_unit *unit = mt_unit(l->run, u);

	return (
		struct moments){mt_at(l->run, which == ARRAY_M ? unit->m : unit->v), unit->elems, mt_part(l->run, u), which};
}

static int load_moments(const struct loader *l, const struct part *p, void *buf)
{
	struct moments to = moments_of(l, p->array, mt_tensor(l->run, p->index)->unit);
	bool bf16 = mt_control(l->run)->state == MT_BF16;

	return read_moments(l, &to, p->index, p->from, p->from + p->n, bf16 ? moments_bf16 : NULL, buf);
}

/* A group of int8 may hold elements of two tensors, and its scale is needed before its codes: so the file is read
 * twice. */
static int load_codes(const struct loader *l, const struct part *p, void *buf)
{
	const struct mt_unit *unit = mt_unit(l->run, p->index);
	const struct moments to = moments_of(l, p->array, p->index);
	int rc = 0;

	memset((uint8_t *)to.array + to.own.first, 0, to.own.end - to.own.first);
	memset(int8_scales(to.array, to.elems) + to.own.first / MT_GROUP, 0, (to.own.end - to.own.first) / MT_GROUP * 4);
	for (int pass = 0; pass < 2; pass++) {
		for (uint32_t i = unit->first_tensor; i < unit->first_tensor + unit->tensors && rc == 0; i++)
			rc = read_moments(l, &to, i, 0, mt_tensor(l->run, i)->n, pass ? moments_codes : moments_largest, buf);
		if (pass == 0) largest_to_scales(&to);
	}
	return rc;
}

/* Codes and scales, bit for bit */
static int copy_codes(const struct loader *l, const struct part *p)
{
	const struct moments to = moments_of(l, p->array, p->index);
	uint8_t *codes = (uint8_t *)to.array + p->from;

	if (mt_stopping) return mt_fail(MT_EX_BUSY, "stopped");
	populate(codes, p->n);
	return source_codes(l->s, p->array, p->index, p->from, p->n, codes,
		int8_scales(to.array, to.elems) + p->from / MT_GROUP);
}

/* ------------------------------------------------------------------------------------------------ all arrays */

static int load_part(void *arg, int64_t task, void *buf)
{
	struct loader *l = arg;
	const struct part *p = &l->parts[task];
	int rc = mt_stage_check(l->run);

	if (rc < 0) return rc;
	if (p->what != ZERO)
		mt_stage_activity(l->run, MT_ACT_FILL,
			p->what == COPY || p->what == CODES ? p->index : mt_tensor(l->run, p->index)->unit);
	switch (p->what) {
	case WEIGHTS: return load_weights(l, p, buf);
	case MOMENTS: return load_moments(l, p, buf);
	case COPY: return copy_codes(l, p);
	case CODES: return load_codes(l, p, buf);
	case ZERO: memset(mt_at(l->run, p->from), 0, p->n);
	}
	return 0;
}

static int add_part(struct loader *l, struct part p)
{
	if (l->n == l->room) {
		int64_t room = l->room ? 2 * l->room : 64;
		struct part *more = realloc(l->parts, (size_t)room * sizeof *more);
		if (!more) return mt_fail(MT_EX_NOMEM, "no memory for a table of parts");
		l->parts = more;
		l->room = room;
	}
	l->parts[l->n++] = p;
	return 0;
}

/* Pieces of at most `most` of p.n */
static int add_parts(struct loader *l, struct part p, uint64_t most)
{
	uint64_t end = p.from + p.n;
	int rc = 0;

	for (; p.from < end && rc == 0; p.from += p.n) {
		p.n = end - p.from < most ? end - p.from : most;
		rc = add_part(l, p);
	}
	return rc;
}

/* What the run has of m or v of a unit becomes zero. */
static int add_zero(struct loader *l, uint64_t array, uint64_t elems, struct mt_part own)
{
	uint32_t state = mt_control(l->run)->state;
	uint64_t width = state == MT_INT8 ? 1 : mt_state_bytes(state, 1), n = own.end - own.first;
	int rc = add_parts(l, (struct part){ZERO, 0, 0, array + own.first * width, n * width}, PART_ELEMS * 4);

	if (rc == 0 && state == MT_INT8)
		rc = add_parts(l, (struct part){ZERO, 0, 0, array + elems + own.first / MT_GROUP * 4, n / MT_GROUP * 4},
			PART_ELEMS * 4);
	return rc;
}

/* m, and v if the optimizer has it, of a unit: of a checkpoint, or zero */
static int add_moments(struct loader *l, uint32_t u)
{
	const struct mt_unit *unit = mt_unit(l->run, u);
	uint32_t state = mt_control(l->run)->state;
	int rc = 0;

	for (enum array a = ARRAY_M; a <= (unit->v ? ARRAY_V : ARRAY_M) && rc == 0; a++) {
		struct mt_part own = mt_part(l->run, u);
		if (l->s->json.codes && state == MT_INT8)
			rc = add_parts(l, (struct part){COPY, a, u, own.first, own.end - own.first}, PART_ELEMS);
		else if (l->s->full && state == MT_INT8) rc = add_part(l, (struct part){.what = CODES, .array = a, .index = u});
		else if (l->s->full)
			for (uint32_t i = unit->first_tensor; i < unit->first_tensor + unit->tensors && rc == 0; i++)
				rc = add_parts(l, (struct part){MOMENTS, a, i, 0, mt_tensor(l->run, i)->n}, PART_ELEMS);
		else if (!l->zero) rc = add_zero(l, a == ARRAY_M ? unit->m : unit->v, unit->elems, own);
	}
	return rc;
}

static int add_all(struct loader *l)
{
	int rc = 0;

	for (uint32_t u = 0; u < mt_control(l->run)->n_units && rc == 0; u++) {
		const struct mt_unit *unit = mt_unit(l->run, u);
		for (uint32_t i = unit->first_tensor; i < unit->first_tensor + unit->tensors && rc == 0; i++)
			rc = add_parts(l, (struct part){WEIGHTS, ARRAY_W, i, 0, mt_tensor(l->run, i)->n}, PART_ELEMS);
		if (rc == 0) rc = add_moments(l, u);
	}
	return rc;
}

/* Of exact routers in the files: fp32, unless all are bf16 */
static enum mt_dtype router_dtype(struct mt_run *run, const struct source *s)
{
	bool bf16 = true;

	for (uint32_t i = 0; i < mt_control(run)->n_tensors; i++)
		if (mt_tensor(run, i)->exact && mt_tensor(run, i)->role == MT_T_ROUTER)
			bf16 = bf16 && s->found[ARRAY_W][i]->tensor->dtype == ST_BF16;
	return bf16 ? MT_BF16 : MT_FP32;
}

static int load_arrays(struct mt_run *run, const struct source *s)
{
	/* The first filling makes the count 1. A new run's store is zero, and only a filling may change that. */
	struct loader l = {.run = run, .s = s, .zero = mt_fills(run) == 1};
	struct work work = {0};
	int rc = add_all(&l);

	if (rc == 0) rc = work_begin(&work, WORK_THREADS);
	if (rc == 0) rc = work_run(&work, l.n, load_part, &l);
	if (rc == 0) nonfinite_warn(&l.seen);
	work_end(&work);
	free(l.parts);
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
		mt_control(run)->hyper[s->json.step & 1] = s->json.hyper;
		mt_control(run)->router_dtype = router_dtype(run, s);
		if (s->json.has_record && (rc = set_choices(run, s->json.choices)) == 0) mt_record_set(run, &s->json.record);
	}
	if (mt_stage_mine(run)) /* otherwise another process fills the run now, and sets its state */
		mt_fill_end(run, rc < 0 ? MT_EMPTY : MT_FILLED);
	return mt_stage_mine(run) ? rc : mt_stage_check(run);
}

/* m of one optimizer means something else to another, and v may be missing. */
static int check_optim(struct mt_run *run, const struct source *s)
{
	uint32_t ours = mt_control(run)->optim;

	if (!s->full || s->json.optim == ours) return 0;
	return mt_fail(MT_EX_CONFIG,
		"%s: a checkpoint of %s, and the run is of %s: create the run with --optim %s, or load --weights alone",
		shown(s->path), mt_optim_name(s->json.optim), mt_optim_name(ours), mt_optim_name(s->json.optim));
}

static int check_source(struct mt_run *run, struct source *s, struct kept *kept)
{
	int rc;

	if ((rc = source_config(s)) < 0 || (rc = config_same(mt_geometry(run), &s->geo)) < 0 ||
		(rc = check_optim(run, s)) < 0 || (rc = source_checksums(s)) < 0 || (rc = source_models(s)) < 0)
		return rc;
	return kept_read(kept, s);
}

/* The optimizer's state is loaded into a run that has it in another type */
static void warn_of_state(struct mt_run *run, const struct source *s)
{
	static const char *const arrays[] = {[MT_ADAMW] = "AdamW's m and v", [MT_LION] = "Lion's m", [MT_SGD] = "SGD's m"};
	uint32_t ours = mt_control(run)->state;
	bool one = mt_state_arrays(s->json.optim) == 1;

	if (!s->full || s->json.state == ours) return;
	mt_say("warning: the checkpoint has %s in %s, the run in %s: %s", arrays[s->json.optim],
		mt_dtype_name(s->json.state), mt_dtype_name(ours),
		ours == MT_FP32 ? "no bit is lost"
			: one       ? "it is rounded once, to nearest"
						: "they are rounded once, to nearest");
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
	kept_release(&kept);
	source_close(&s);
	mt_run_close(run);
	return rc;
}
