/* load.c: loads a directory's weights, or its full state, into a run.
 *
 * Everything that can be checked is checked before the run is changed. Then the run's state is `filling` until every
 * byte is in place. A load that is killed leaves this state, and a load that fails leaves the run empty: no program
 * uses such a run. */
#include <stdlib.h>
#include <sys/mman.h>
#include "cli/cli.h"
#include "load.h"
#include "model/hfjson.h"
#include "mt/control.h"
#include "os.h"
#include "say.h"
#include "mt/choices.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "mt/tier.h"

/* ---- all arrays */

void load_populate(void *p, uint64_t bytes)
{
	uintptr_t page = mt_page(), from = (uintptr_t)p & ~(page - 1), to = ((uintptr_t)p + bytes + page - 1) & ~(page - 1);
	(void)madvise((void *)from, to - from, MADV_POPULATE_WRITE); /* kernels before 5.14 do not have it */
}

struct piece load_owned(const struct loader *l, struct piece p)
{
	struct mt_part own = mt_part(l->run, p.unit);
	uint64_t end = p.at + p.n < own.end ? p.at + p.n : own.end, before = p.at < own.first ? own.first - p.at : 0;
	p.n = p.at + before < end ? end - p.at - before : 0;
	p.from += before;
	p.at += before;
	return p;
}

int load_piece(const struct mt_geometry *geo, const struct mt_tensor *t, uint32_t index, uint64_t from, uint64_t end,
	struct piece *p)
{
	uint64_t at, n;
	mt_tensor_piece(geo, t, from, &at, &n);
	if (n > end - from) n = end - from;
	if (n > BLOCK_ELEMS) n = BLOCK_ELEMS;
	*p = (struct piece){index, t->unit, from, t->off + at, n};
	return mt_stopping ? mt_fail(MT_EX_BUSY, "stopped") : 0;
}

static int load_part(void *arg, int64_t task, void *buf)
{
	struct loader *l = arg;
	const struct part *p = &l->parts[task];
	if (p->what != ZERO)
		mt_stage_activity(l->run, MT_ACT_FILL,
			p->what == COPY || p->what == CODES ? p->index
				: p->what == WEIGHTS            ? l->s->as_read.tensors[p->index].unit
												: mt_tensor(l->run, p->index)->unit);
	switch (p->what) {
	case WEIGHTS: return load_weights(l, p, buf);
	case LOW: return load_low(l, p, buf);
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
		rc = add_parts(l,
			(struct part){ZERO, 0, 0, array + mt_scales_at(elems) + own.first / MT_GROUP * 4, n / MT_GROUP * 4},
			PART_ELEMS * 4);
	return rc;
}

/* m, and v if the optimizer has it, of a unit: of a checkpoint, or zero */
static int add_moments(struct loader *l, uint32_t u)
{
	const struct mt_unit *unit = mt_unit(l->run, u);
	uint32_t state = mt_control(l->run)->state;
	int rc = 0;
	if (!mt_trained(unit) || (l->linked && mt_on_tier(l->run, unit->m))) return 0;
	for (enum array a = ARRAY_M; a <= (unit->v ? ARRAY_V : ARRAY_M) && rc == 0; a++) {
		struct mt_part own = mt_part(l->run, u);
		if (l->s->json.state == MT_INT8 && state == MT_INT8)
			rc = add_parts(l, (struct part){COPY, a, u, own.first, own.end - own.first}, PART_ELEMS);
		else if (l->s->full && state == MT_INT8) rc = add_part(l, (struct part){.what = CODES, .array = a, .index = u});
		else if (l->s->full)
			for (uint32_t i = unit->first_tensor; i < unit->first_tensor + unit->tensors && rc == 0; i++)
				rc = add_parts(l, (struct part){MOMENTS, a, i, 0, mt_tensor(l->run, i)->n}, PART_ELEMS);
		else if (!l->zero && !mt_on_tier(l->run, unit->m))
			rc = add_zero(l, a == ARRAY_M ? unit->m : unit->v, unit->elems, own);
	}
	return rc;
}

/* Elements of the files' tensor i that one thread reads at once: whole rows of the file, if they are columns here */
static uint64_t part_elems(const struct loader *l, uint32_t i)
{
	const struct mt_tensor *t = &l->s->as_read.tensors[i];
	uint64_t cols = l->s->found[ARRAY_W][i]->scales ? t->shape[0] : t->transposed ? t->shape[1] : 1;
	return PART_ELEMS / cols * cols;
}

static int add_all(struct loader *l)
{
	int rc = 0;
	for (uint32_t u = 0; u < mt_control(l->run)->n_units && rc == 0; u++) {
		const struct mt_unit *unit = &l->s->as_read.units[u];
		for (uint32_t i = unit->first_tensor; i < unit->first_tensor + unit->tensors && rc == 0; i++)
			rc = add_parts(l, (struct part){WEIGHTS, ARRAY_W, i, 0, l->s->as_read.tensors[i].n}, part_elems(l, i));
		if (rc == 0) rc = add_moments(l, u);
	}
	return rc;
}

/* Has the checkpoint this tensor's exact master weights in its model files? */
static bool has_exact(const struct source *s, const struct mt_tensor *t)
{
	for (uint32_t i = 0; i < s->as_read.n_tensors && t->exact; i++)
		if (s->as_read.tensors[i].unit == t->unit && s->as_read.tensors[i].off == t->off)
			return s->found[ARRAY_W][i]->tensor->dtype == ST_F32;
	return false;
}

static int add_low(struct loader *l)
{
	int rc = 0;
	l->n = 0;
	for (uint32_t i = 0; i < mt_control(l->run)->n_tensors && l->s->found[ARRAY_LO] && rc == 0; i++)
		if (mt_trained(&l->s->layout.units[l->s->layout.tensors[i].unit]) && !has_exact(l->s, mt_tensor(l->run, i)) &&
			!(l->linked && mt_on_tier(l->run, mt_unit(l->run, mt_tensor(l->run, i)->unit)->lo)))
			rc = add_parts(l, (struct part){LOW, ARRAY_LO, i, 0, mt_tensor(l->run, i)->n}, PART_ELEMS);
	return rc;
}

/* Of exact routers in the files: fp32, unless all are bf16 */
static enum mt_dtype router_dtype(const struct source *s)
{
	bool bf16 = true;
	for (uint32_t i = 0; i < s->as_read.n_tensors; i++)
		if (s->as_read.tensors[i].exact && s->as_read.tensors[i].role == MT_T_ROUTER)
			bf16 = bf16 && s->found[ARRAY_W][i]->tensor->dtype == ST_BF16;
	return bf16 ? MT_BF16 : MT_FP32;
}

static int load_arrays(struct mt_run *run, const struct source *s, bool linked)
{
	/* The first filling makes the count 1. A new run's store is zero, and only a filling may change that. */
	struct loader l = {.run = run, .s = s, .linked = linked, .zero = mt_fills(run) == 1};
	struct work work = {0};
	int rc = add_all(&l);
	if (rc == 0) rc = work_begin(&work, WORK_THREADS);
	if (rc == 0) rc = work_run(&work, l.n, load_part, &l);
	if (rc == 0) rc = add_low(&l);
	if (rc == 0) rc = work_run(&work, l.n, load_part, &l);
	if (rc == 0) nonfinite_warn(&l.seen);
	work_end(&work);
	free(l.parts);
	return rc;
}

/* ---- the run */

/* Enter the saved choices. run_json_read has checked that they fit. */
static int set_choices(struct mt_run *run, json_t *choices)
{
	const char *key;
	json_t *value;
	int rc = 0;
	json_object_foreach(choices, key, value)
	{
		uint8_t bytes[MT_CHOICE_VALUE] = {0};
		size_t n = json_string_length(value) / 2;
		if (rc == 0) rc = mt_parse_hex(json_string_value(value), bytes, n);
		if (rc == 0) rc = mt_choice_enter(run, key, bytes, n);
	}
	return rc;
}

/* All arrays. Tiles are linked, or come through a map of new files. */
static int fill_arrays(struct mt_run *run, const struct source *s, bool linked)
{
	int rc = linked ? tiles_link(run, s) : mt_tier_map(run, true);
	if (rc == 0) rc = load_arrays(run, s, linked);
	return rc == 0 && !linked ? mt_tier_seal(run, s->full ? s->json.t : 0) : rc;
}

/* Change the run: its state is `filling` until every byte is in place. */
static int fill(struct mt_run *run, const struct source *s, const struct kept *kept, bool linked)
{
	static const struct mt_position none = {.carry = MT_NO_TARGET};
	int rc = mt_fill_claim(run);
	if (rc < 0) return rc;
	rc = mt_files_put(run, kept->file, (const void *const *)kept->data, kept->n);
	if (rc == 0) rc = fill_arrays(run, s, linked);
	if (rc == 0) {
		mt_run_reset(run, s->full ? s->json.step : 0, s->full ? s->json.t : 0, s->full ? &s->json.position : &none);
		if (linked) memcpy(mt_control(run)->tier.from, s->json.tier.run, sizeof s->json.tier.run);
		memcpy(mt_control(run)->unlogged, s->json.unlogged, sizeof s->json.unlogged);
		mt_control(run)->hyper[s->json.step & 1] = s->json.hyper;
		mt_control(run)->router_dtype = router_dtype(s);
		mt_control(run)->form = s->as_read.form;
		if (s->json.has_record && (rc = set_choices(run, s->json.choices)) == 0) mt_record_set(run, &s->json.record);
	}
	mt_fill_end(run, rc < 0 ? MT_EMPTY : MT_FILLED);
	return rc;
}

/* m of one optimizer means something else to another, and v may be missing. */
static int check_optim(struct mt_run *run, const struct source *s)
{
	uint32_t ours = mt_control(run)->optim;
	if (!s->full || s->json.optim == ours || mt_control(run)->state == MT_NONE) return 0;
	return mt_fail(MT_EX_CONFIG,
		"%s: a checkpoint of %s, and the run is of %s: create the run with --optim %s, or load --weights alone",
		shown(s->path), mt_optim_name(s->json.optim), mt_optim_name(ours), mt_optim_name(s->json.optim));
}

/* What was frozen has no m and v in the checkpoint. */
static int check_frozen(struct mt_run *run, const struct source *s)
{
	for (uint32_t i = 0; s->full && mt_control(run)->state != MT_NONE && i < s->layout.n_tensors; i++)
		if (s->layout.tensors[i].frozen != mt_tensor(run, i)->frozen)
			return mt_fail(MT_EX_CONFIG,
				"%s: '%s' is %s in the checkpoint, and %s in the run: create it with --train '%s' --freeze '%s', as "
				"the checkpoint's was, or load --weights alone",
				shown(s->path), s->layout.tensors[i].name, s->layout.tensors[i].frozen ? "frozen" : "trained",
				mt_tensor(run, i)->frozen ? "frozen" : "trained", s->json.train, s->json.freeze);
	return 0;
}

/* *linked: links to the checkpoint's tiles become the run's. Then mt-tier looks at their seals when it reads them. */
static int check_source(struct mt_run *run, struct source *s, struct kept *kept, const struct how_load *how,
	bool *linked)
{
	int rc;
	if ((rc = source_config(s, (double)mt_geometry(run)->mtp)) < 0 ||
		(rc = config_same(mt_geometry(run), &s->geo)) < 0 || (rc = check_optim(run, s)) < 0 ||
		(rc = check_frozen(run, s)) < 0 || (rc = carried_find(s, how->drop)) < 0 || (rc = source_checksums(s)) < 0 ||
		(rc = source_models(s)) < 0)
		return rc;
	*linked = tiles_fit(run, s);
	if (!*linked && mt_control(run)->state != MT_NONE && (rc = tiles_verify(s)) < 0) return rc;
	if ((rc = kept_read(kept, s)) < 0) return rc;
	if ((rc = kept_turn_end(kept, s, how->turn_end)) < 0) return rc;
	return carried_note(kept, s, how->drop);
}

/* The optimizer's state is loaded into a run that has it in another type */
static void warn_of_state(struct mt_run *run, const struct source *s)
{
	static const char *const arrays[] = {[MT_ADAMW] = "AdamW's m and v", [MT_LION] = "Lion's m", [MT_SGD] = "SGD's m"};
	uint32_t ours = mt_control(run)->state;
	bool one = mt_state_arrays(s->json.optim) == 1;
	if (!s->full || s->json.state == ours || ours == MT_NONE) return;
	mt_say("warning: the checkpoint has %s in %s, the run in %s: %s", arrays[s->json.optim],
		mt_dtype_name(s->json.state), mt_dtype_name(ours),
		ours == MT_FP32 ? "no bit is lost"
			: one       ? "it is rounded once, to nearest"
						: "they are rounded once, to nearest");
}

int ckpt_load(const char *name, const char *dir, bool weights, bool new_record, const struct how_load *how)
{
	struct mt_run *run;
	struct source s = {.dirfd = -1};
	struct kept kept = {.n = 0};
	bool linked = false;
	int rc = mt_run_open(&run, name, MT_RUN_RINGS | MT_RUN_WEIGHTS);
	if (rc < 0) return rc;
	rc = mt_run_idle(run);
	if (rc == 0) rc = source_open(&s, dir, weights);
	if (rc == 0) rc = check_source(run, &s, &kept, how, &linked);
	if (new_record) s.json.has_record = false;
	if (rc == 0) {
		warn_of_state(run, &s);
		rc = fill(run, &s, &kept, linked);
	}
	if (rc == 0) quantized_say(&s.model[ARRAY_W], &s.as_read, (enum mt_dtype)mt_control(run)->dtype);
	kept_release(&kept);
	source_close(&s);
	mt_run_close(run);
	return rc;
}
