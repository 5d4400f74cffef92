/* stat.c: what a run holds, where its step stands, and what each stage does or waits for: for people, and as JSON. */
#include <jansson.h>
#include <math.h>

#include "look.h"
#include "mt/error.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "store.h"

static json_int_t number(uint64_t x) { return (json_int_t)(x > INT64_MAX ? INT64_MAX : x); }
static json_t *real_or_null(double x) { return isfinite(x) ? json_real(x) : json_null(); }
static json_t *count_or_null(uint64_t x) { return x ? json_integer(number(x)) : json_null(); }

/* ---- JSON */

static json_t *gpu_object(const uint64_t gpu[MT_GPU_WORDS])
{
	char held[MT_GPU_HELD];
	json_t *o = json_object();
#define ADD_GPU(field, scale, key, ...) \
	json_object_set_new(o, key, gpu[MT_GPU_##field] ? json_real((double)gpu[MT_GPU_##field] * (scale)) : json_null());
	MT_GPU(ADD_GPU)
	mt_gpu_held(gpu[MT_GPU_reasons], held);
	json_object_set_new(o, "clock_held_by", json_string(held));
	return o;
}

static json_t *stage_object(const struct look_stage *s, int slot)
{
	json_t *counters = json_object();
	const char *const *names = counter_words(slot);
	for (int i = 0; names[i]; i++) json_object_set_new(counters, names[i], json_integer(number(s->counters[i])));
	json_t *o = json_pack("{s:s, s:i, s:b, s:b, s:s, s:o, s:o, s:o}", "stage", mt_stage_name(slot), "pid", s->pid,
		"alive", !s->dead, "stopped", s->stopped, "activity", s->activity, "counters", counters, "cpu_s",
		real_or_null(s->process.cpu_s < 0 ? NAN : s->process.cpu_s), "age_s",
		real_or_null(s->process.age_s < 0 ? NAN : s->process.age_s));
	if (s->gpu_known) json_object_set_new(o, "gpu", gpu_object(s->gpu));
	return o;
}

static json_t *stages_array(const struct look *l)
{
	json_t *stages = json_array();
	for (int slot = 0; slot < MT_SLOTS; slot++)
		if (l->stage[slot].pid) json_array_append_new(stages, stage_object(&l->stage[slot], slot));
	return stages;
}

/* Messages that wait in each ring, or how many it holds: those of streams that are there, and any that is not empty */
static json_t *rings_object(const struct look *l, bool slots)
{
	json_t *rings = json_object();
	for (int i = 0; i < MT_RINGS; i++) {
		const struct look_ring *r = &l->ring[i];
		if (r->shown) json_object_set_new(rings, r->name, json_integer(number(slots ? r->slots : r->used)));
	}
	return rings;
}

static json_t *txn_object(const struct look *l)
{
	return json_pack("{s:I, s:I, s:s, s:s, s:I, s:I}", "k", (json_int_t)l->k, "attempt", (json_int_t)l->attempt,
		"phase", phase_word(l->phase), "kind", l->eval ? "eval" : "train", "step", number(l->txn_step), "micros",
		(json_int_t)l->micros);
}

static json_t *snapshot_object(const struct look *l)
{
	return json_pack("{s:s, s:I, s:I, s:I}", "state", snap_word(l->snap), "step", number(l->snap_step), "saved",
		number(l->saved), "failed", number(l->failed));
}

static json_t *units_object(const struct look *l)
{
	return json_pack("{s:I, s:I, s:I, s:I, s:I}", "count", (json_int_t)l->n_units, "at_step", (json_int_t)l->at_step,
		"before", (json_int_t)l->before, "other", (json_int_t)l->other, "pinned", (json_int_t)l->pinned);
}

static json_t *memory_object(const struct look *l)
{
	json_t *memory = json_object();
	for (enum look_array a = 0; a < ARRAY_COUNT; a++)
		json_object_set_new(memory, array_word(a), json_integer(number(l->array[a])));
	return memory;
}

static json_t *tier_object(const struct look *l)
{
	const struct look_tier *t = &l->tier;
	json_t *dirs = json_array();
	for (uint32_t i = 0; i < t->dirs; i++) json_array_append_new(dirs, json_string(t->dir[i]));
	return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "tiles", (json_int_t)t->tiles, "slots",
		(json_int_t)t->slots, "file_bytes", number(t->bytes), "parameters", number(t->params), "loaded",
		number(t->loaded), "updated", number(t->updated), "written", number(t->written), "bytes_per_s",
		real_or_null(t->rate), "directories", dirs);
}

/* The last committed step, and how fast steps come */
static void add_training(json_t *o, const struct look *l)
{
	json_object_set_new(o, "steps", count_or_null(l->steps));
	json_object_set_new(o, "until", count_or_null(l->until));
/* (nothing is added where the value is NULL) */
#define NUMBER(x) real_or_null(x)
#define NUMBER_OR_NONE(x) (isnan(x) ? NULL : json_real(x))
#define COUNT(x) count_or_null(x)
#define BOOL(x) (l->known ? json_boolean(x) : json_null())
#define ADD(x, field, kind, from, key, ...) json_object_set_new(o, key, kind(l->figures.field));
	MT_FIGURES(ADD, )
	json_object_set_new(o, "trained_tokens", json_integer(number(l->trained_tokens)));
	json_object_set_new(o, "processed_tokens", json_integer(number(l->processed_tokens)));
#define ADD_PACE(field, ...) json_object_set_new(o, #field, real_or_null(l->pace.field));
	MT_PACE(ADD_PACE)
	json_object_set_new(o, "eta_s", real_or_null(look_eta(l, l->pace.step_s)));
}

static json_t *run_object(const struct look *l, double huge)
{
	json_t *o = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:f, s:I, s:I, s:s}", "run", l->name,
		"state", state_word(l->state), "family", l->family, "dtype", mt_dtype_name(l->dtype), "grad",
		mt_dtype_name(l->grad), "optimizer", mt_optim_name(l->optim), "optimizer_state", mt_dtype_name(l->moments),
		"params", number(l->params), "bytes", number(l->bytes), "state_bytes", number(l->state_bytes),
		"bytes_per_param", (double)l->state_bytes / (double)l->params, "step", number(l->step), "step_tokens",
		number(l->step_tokens), "numa", l->numa);
	json_object_set_new(o, "trained_params", json_integer(number(l->trained)));
	json_object_set_new(o, "state_params", json_integer(number(l->with_state)));
	json_object_set_new(o, "carried_bytes", json_integer(number(l->carried_bytes)));
	json_object_set_new(o, "node", json_integer(number(l->node)));
	json_object_set_new(o, "nodes", json_integer(number(l->nodes)));
	json_object_set_new(o, "huge_pages", huge < 0 ? json_null() : json_real(huge));
	json_object_set_new(o, "txn", txn_object(l));
	json_object_set_new(o, "snapshot", snapshot_object(l));
	json_object_set_new(o, "rings", rings_object(l, false));
	json_object_set_new(o, "stages", stages_array(l));
	add_training(o, l);
	json_object_set_new(o, "ring_slots", rings_object(l, true));
	json_object_set_new(o, "units", units_object(l));
	json_object_set_new(o, "memory", memory_object(l));
	if (l->tier.tiles) json_object_set_new(o, "tier", tier_object(l));
	json_object_set_new(o, "run_id", json_string(l->run_id));
	return o;
}

static int print_json(const struct look *l, double huge)
{
	int rc = 0;
	json_t *o = run_object(l, huge);
	if (!o) rc = mt_fail(MT_EX_NOMEM, "no memory for a report");
	else if (json_dumpf(o, stdout, JSON_COMPACT)) rc = mt_fail(MT_EX_IO, "stdout: cannot be written");
	else putchar('\n');
	json_decref(o);
	return rc;
}

/* ---- for people */

static void print_step(const struct look *l)
{
	printf("run %s: %s, step %llu", l->name, state_word(l->state), (unsigned long long)l->step);
	if (l->until) printf(" of %llu", (unsigned long long)l->until);
	if (l->steps != l->until) printf(" (the schedule has %llu)", (unsigned long long)l->steps);
	putchar('\n');
}

static void print_training(const struct look *l)
{
	if (!l->known && isnan(l->pace.tokens_per_s)) return;
	printf("training: loss %s, grad norm %s, lr %s, %s tokens/s, ETA %s%s\n", text_number(l->figures.loss, "%.4f").s,
		text_number(l->figures.norm, "%.4g").s, text_number(l->figures.lr, "%.4g").s,
		text_count(l->pace.tokens_per_s).s, text_time(look_eta(l, l->pace.step_s)).s,
		l->figures.skipped ? "; the step was skipped" : "");
}

static void print_memory(const struct look *l, double huge)
{
	printf("memory: %s of state, %.2f bytes a parameter; %s in all; numa %s\n", text_bytes(l->state_bytes).s,
		(double)l->state_bytes / (double)l->params, text_bytes(l->bytes).s, l->numa);
	printf("arrays:");
	const char *separator = " ";
	for (enum look_array a = 0; a < ARRAY_COUNT; a++)
		if (l->array[a]) {
			printf("%s%s %s", separator, array_word(a), text_bytes(l->array[a]).s);
			separator = ", ";
		}
	putchar('\n');
	if (huge >= 0) printf("pages: %.0f %% of the store on huge ones\n", 100 * huge);
}

static void print_tier(const struct look_tier *t)
{
	if (!t->tiles) return;
	printf(
		"tier: %s of lo, m and v in %u tiles, %s parameters; slots %u, tiles loaded %llu, updated %llu, written %llu; "
		"%s GB/s; in",
		text_bytes(t->bytes).s, t->tiles, text_count((double)t->params).s, t->slots, (unsigned long long)t->loaded,
		(unsigned long long)t->updated, (unsigned long long)t->written, text_number(t->rate / 1e9, "%.2f").s);
	for (uint32_t i = 0; i < t->dirs; i++) printf(" %s", t->dir[i]);
	putchar('\n');
}

static void print_stage(const struct look_stage *s, int slot)
{
	const char *condition = s->dead ? "dead, was: " : s->stopped ? "stopped (state T), was: " : "";
	const char *const *names = counter_words(slot), *separator = "; ";
	printf("%-12s pid %-7d %s%s", mt_stage_name(slot), s->pid, condition, s->activity);
	for (int i = 0; names[i]; i++) {
		/* nothing was predicted; there is no tier */
		if (!s->counters[i] && (!strcmp(names[i], "predicted_ns") || !strcmp(names[i], "tier_wait_ns"))) continue;
		printf("%s%.*s %s", separator, text_counter_name(names[i]), names[i], text_counter(names[i], s->counters[i]).s);
		separator = ", ";
	}
	struct gpu_text gpu[TEXT_GPU];
	int known = text_gpu(s->gpu, gpu);
	for (int i = 0; i < known; i++) printf("%s%s %s", i ? ", " : "; GPU: ", gpu[i].name, gpu[i].value);
	putchar('\n');
}

static void print_stages(const struct look *l)
{
	int n = 0;
	for (int slot = 0; slot < MT_SLOTS; slot++)
		if (l->stage[slot].pid) {
			print_stage(&l->stage[slot], slot);
			n++;
		}
	if (!n) puts("no stages");
}

static void print_run(const struct look *l, double huge)
{
	char some[64] = "";
	print_step(l);
	if (l->trained < l->params) snprintf(some, sizeof some, " %s of them trained,", text_count((double)l->trained).s);
	printf("model: %s, %s parameters,%s %s, gradients %s%s%s\n", l->family, text_count((double)l->params).s, some,
		mt_dtype_name(l->dtype), mt_dtype_name(l->grad), optim_words(l->optim), moments_words(l->moments));
	if (l->nodes > 1) printf("node %u of %u\n", l->node, l->nodes);
	print_training(l);
	print_memory(l, huge);
	print_tier(&l->tier);
	printf("transaction %u, attempt %u: %s, %s step %llu, micro-batches %u\n", l->k, l->attempt, phase_word(l->phase),
		l->eval ? "eval" : "train", (unsigned long long)l->txn_step, l->micros);
	printf("snapshot: %s, step %llu; saved %llu, failed %llu\n", snap_word(l->snap), (unsigned long long)l->snap_step,
		(unsigned long long)l->saved, (unsigned long long)l->failed);
	printf("rings:");
	for (int i = 0; i < MT_RINGS; i++)
		if (l->ring[i].shown) printf(" %s %llu", l->ring[i].name, (unsigned long long)l->ring[i].used);
	putchar('\n');
	print_stages(l);
}

/* ---- the verb */

static int stat_check(const char *name, const struct store_options *o)
{
	if (o->prometheus && o->json) return mt_fail(MT_EX_USAGE, "--prometheus and --json: take one of them");
	if (o->prometheus + o->abi + o->memory > 1)
		return mt_fail(MT_EX_USAGE, "--prometheus, --abi and --memory: take one of them");
	if ((o->abi || o->memory) && name)
		return mt_fail(MT_EX_USAGE, "stat --%s takes no RUN: it is the same for all", o->abi ? "abi" : "memory");
	return 0;
}

int store_stat(const char *name, const struct store_options *o)
{
	static struct look l;
	struct mt_run *run;
	int rc = stat_check(name, o);
	if (rc) return rc;
	if (o->abi) return o->json ? abi_json() : abi_text();
	if (o->memory) {
		memory_print(o->json);
		return 0;
	}
	name = mt_cli_run(name);
	rc = mt_run_open(&run, name, MT_RUN_RINGS | MT_RUN_WEIGHTS | MT_RUN_READONLY);
	if (rc) return rc;
	look_take(&l, run, name);
	double huge = store_on_huge_pages(run);
	if (o->prometheus) print_prometheus(&l);
	else if (o->json) rc = print_json(&l, huge);
	else print_run(&l, huge);
	mt_run_close(run);
	return rc;
}
