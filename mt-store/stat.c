/* stat.c: what a run holds, where its step stands, and what each stage does or waits for. */
#include <jansson.h>

#include "store.h"

static const char *phase_word(enum mt_phase phase)
{
	static const char *const words[] = {"closed", "accumulate", "apply", "skip", "done", "logged"};
	return phase <= MT_LOGGED ? words[phase] : "?";
}

static const char *snap_word(enum mt_snap snap)
{
	static const char *const words[] = {"none", "pinned", "sealed", "saved", "failed"};
	return snap <= MT_FAILED ? words[snap] : "?";
}

/* Names of a stage's own counters, in the order of mt.h; NULL ends them */
static const char *const *counter_names(int slot)
{
	static const char *const stream[] = {"micros", "tokens", "bytes_in", "bytes_out", "wait_ns", "busy_ns",
		"predicted_ns", NULL};
	static const char *const optim[] = {"pieces", "gradient_bytes", "updates", "update_ns", "wait_ns", NULL};
	static const char *const step[] = {"steps", "tokens", NULL};
	static const char *const ckpt[] = {"saves", "bytes", NULL};
	static const char *const none[] = {NULL};
	return slot >= MT_STREAM ? stream
		: slot == MT_OPTIM   ? optim
		: slot == MT_STEP    ? step
		: slot == MT_CKPT    ? ckpt
							 : none;
}

static json_int_t number(uint64_t x) { return (json_int_t)(x > INT64_MAX ? INT64_MAX : x); }

/* ------------------------------------------------------------------------------------------------ collecting */

static json_t *stage_object(struct mt_run *run, int slot)
{
	char activity[128];
	bool dead = mt_stage_dead(run, slot), stopped = !dead && mt_stage_stopped(run, slot);
	mt_stage_describe(run, slot, activity, sizeof activity);
	json_t *counters = json_object();
	const char *const *names = counter_names(slot);
	for (int i = 0; names[i]; i++)
		json_object_set_new(counters, names[i],
			json_integer(
				number(atomic_load_explicit(&mt_control(run)->slots[slot].counters[i], memory_order_relaxed))));
	return json_pack("{s:s, s:i, s:b, s:b, s:s, s:s, s:o}", "stage", mt_stage_name(slot), "pid",
		mt_stage_pid(run, slot), "alive", !dead, "stopped", stopped, "activity", activity, "doing",
		activity /* its older name */, "counters", counters);
}

static json_t *stages_array(struct mt_run *run)
{
	json_t *stages = json_array();
	for (int slot = 0; slot < MT_SLOTS; slot++)
		if (mt_stage_pid(run, slot)) json_array_append_new(stages, stage_object(run, slot));
	return stages;
}

static void add_ring(struct mt_run *run, json_t *rings, const char *name)
{
	struct mt_ring *ring;
	if (mt_ring_open(run, name, &ring)) return;
	json_object_set_new(rings, name, json_integer(number(mt_ring_used(ring))));
	mt_ring_close(ring);
}

/* Messages that wait in each ring: those of streams that are there, and any that is not empty */
static json_t *rings_object(struct mt_run *run)
{
	static const char *const kinds[] = {"batch", "grad"};
	json_t *rings = json_object();
	for (int i = 0; i < 2 * MT_STREAMS; i++) {
		char name[24];
		snprintf(name, sizeof name, "%s.%d", kinds[i % 2], i / 2);
		add_ring(run, rings, name);
		if (!mt_stage_pid(run, MT_STREAM + i / 2) && json_integer_value(json_object_get(rings, name)) == 0)
			json_object_del(rings, name);
	}
	add_ring(run, rings, "save");
	return rings;
}

static json_t *txn_object(struct mt_run *run)
{
	uint32_t k = mt_txn_newest(run);
	uint64_t word = mt_txn_word(run, k);
	const struct mt_txn *t = mt_txn(run, k);
	return json_pack("{s:I, s:I, s:I, s:s, s:s, s:I, s:I}", "k", (json_int_t)k, "attempt",
		(json_int_t)mt_word_attempt(word), "try", (json_int_t)mt_word_attempt(word), /* its older name */
		"phase", phase_word(mt_word_phase(word)), "kind", t->kind == MT_EVAL ? "eval" : "train", "step",
		number(t->step), "micros", (json_int_t)t->micros);
}

static json_t *snapshot_object(struct mt_run *run)
{
	uint64_t word = mt_snap(run);
	return json_pack("{s:s, s:I, s:I, s:I}", "state", snap_word(mt_snap_state(word)), "step",
		number(mt_snap_step(word)), "saved", number(atomic_load(&mt_control(run)->snap.saved)), "failed",
		number(mt_snap_failures(run)));
}

static json_t *run_object(struct mt_run *run, const char *name)
{
	const struct mt_control *c = mt_control(run);
	uint64_t state = store_bytes(run);
	json_t *o = json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:f, s:I, s:I, s:s}", "run", name, "state",
		state_word(mt_run_state(run)), "family", c->geo.family, "dtype", dtype_word(c->dtype), "grad",
		dtype_word(c->grad), "params", number(c->params), "bytes", number(mt_run_bytes(run)), "state_bytes",
		number(state), "bytes_per_param", (double)state / (double)c->params, "step", number(mt_run_step(run)),
		"step_tokens", number(c->step_tokens), "numa", c->numa);
	double huge = store_on_huge_pages(run);
	json_object_set_new(o, "huge_pages", huge < 0 ? json_null() : json_real(huge));
	json_object_set_new(o, "txn", txn_object(run));
	json_object_set_new(o, "snapshot", snapshot_object(run));
	json_object_set_new(o, "rings", rings_object(run));
	json_object_set_new(o, "stages", stages_array(run));
	return o;
}

/* ------------------------------------------------------------------------------------------------ for people */

static const char *str(const json_t *o, const char *key) { return json_string_value(json_object_get(o, key)); }
static long long num(const json_t *o, const char *key) { return json_integer_value(json_object_get(o, key)); }

static void print_stage(json_t *s)
{
	const char *key,
		*condition = !json_is_true(json_object_get(s, "alive")) ? "dead, was: "
		: json_is_true(json_object_get(s, "stopped"))           ? "stopped (state T), was: "
																: "";
	json_t *value;
	printf("%-12s pid %-7lld %s%s", str(s, "stage"), num(s, "pid"), condition, str(s, "activity"));
	const char *separator = "; ";
	json_object_foreach(json_object_get(s, "counters"), key, value)
	{
		printf("%s%s %lld", separator, key, (long long)json_integer_value(value));
		separator = ", ";
	}
	putchar('\n');
}

static void print_run(json_t *o)
{
	json_t *txn = json_object_get(o, "txn"), *snap = json_object_get(o, "snapshot"), *value;
	printf("run %s: %s, step %lld\n", str(o, "run"), str(o, "state"), num(o, "step"));
	printf("model: %s, %lld parameters, %s, gradients %s\n", str(o, "family"), num(o, "params"), str(o, "dtype"),
		str(o, "grad"));
	printf("memory: %lld bytes of state, %.2f a parameter; %lld bytes in all; numa %s\n", num(o, "state_bytes"),
		json_real_value(json_object_get(o, "bytes_per_param")), num(o, "bytes"), str(o, "numa"));
	const json_t *huge = json_object_get(o, "huge_pages");
	if (json_is_real(huge)) printf("pages: %.0f %% of the store on huge ones\n", 100 * json_real_value(huge));
	printf("transaction %lld, attempt %lld: %s, %s step %lld, micro-batches %lld\n", num(txn, "k"), num(txn, "attempt"),
		str(txn, "phase"), str(txn, "kind"), num(txn, "step"), num(txn, "micros"));
	printf("snapshot: %s, step %lld; saved %lld, failed %lld\n", str(snap, "state"), num(snap, "step"),
		num(snap, "saved"), num(snap, "failed"));
	printf("rings:");
	const char *key;
	json_object_foreach(json_object_get(o, "rings"), key, value)
		printf(" %s %lld", key, (long long)json_integer_value(value));
	putchar('\n');
	json_t *stages = json_object_get(o, "stages");
	if (json_array_size(stages) == 0) puts("no stages");
	for (size_t i = 0; i < json_array_size(stages); i++) print_stage(json_array_get(stages, i));
}

int store_stat(const char *name, const struct store_options *options)
{
	struct mt_run *run;
	int rc = mt_run_open(&run, name, MT_RUN_RINGS | MT_RUN_WEIGHTS | MT_RUN_READONLY);
	if (rc) return rc;
	json_t *o = run_object(run, name);
	if (!o) rc = mt_fail(MT_EX_NOMEM, "no memory for a report");
	else if (!options->json) print_run(o);
	else if (json_dumpf(o, stdout, JSON_COMPACT)) rc = mt_fail(MT_EX_IO, "stdout: cannot be written");
	else putchar('\n');
	json_decref(o);
	mt_run_close(run);
	return rc;
}
