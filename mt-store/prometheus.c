/* prometheus.c: a look at a run in Prometheus's text exposition format 0.0.4
 * (https://prometheus.io/docs/instrumenting/exposition_formats/): base units, a HELP and a TYPE line before each
 * metric's samples, no sample for what is unknown. */
#include <math.h>
#include <stdio.h>

#include "look.h"
#include "mt/stage.h"
#include "store.h"

struct label {
	const char *name, *value;
};

static void head(const char *metric, const char *type, const char *help)
{
	printf("# HELP mt_%s %s\n# TYPE mt_%s %s\n", metric, help, metric, type);
}

/* A label's value may be any text: backslash, quote and newline are escaped. */
static void print_label(struct label l)
{
	printf("%s=\"", l.name);
	for (const char *c = l.value; *c; c++) {
		if (*c == '\n') fputs("\\n", stdout);
		else if (*c == '\\' || *c == '"') printf("\\%c", *c);
		else putchar(*c);
	}
	putchar('"');
}

/* More labels: those that have a name */
static void sample2(const struct look *l, const char *metric, struct label more, struct label last, double x)
{
	printf("mt_%s{", metric);
	print_label((struct label){"run", l->name});
	if (more.name) {
		putchar(',');
		print_label(more);
	}
	if (last.name) {
		putchar(',');
		print_label(last);
	}
	if (isnan(x)) printf("} NaN\n");
	else printf("} %.15g\n", x);
}

static const struct label none = {NULL, NULL};

static void sample(const struct look *l, const char *metric, struct label more, double x)
{
	sample2(l, metric, more, none, x);
}

/* A metric with one sample. NAN: the value is unknown, and the metric is left out. */
static void single(const struct look *l, const char *metric, const char *type, const char *help, double x)
{
	if (isnan(x)) return;
	head(metric, type, help);
	sample(l, metric, none, x);
}

static double or_unknown(uint64_t x) { return x ? (double)x : NAN; }

/* ---- the run */

static void print_model(const struct look *l)
{
	head("run_info", "gauge", "The run's model family and types; always 1.");
	printf("mt_run_info{");
	const struct label labels[] = {{"run", l->name}, {"family", l->family}, {"dtype", mt_dtype_name(l->dtype)},
		{"grad", mt_dtype_name(l->grad)}, {"optimizer", mt_optim_name(l->optim)},
		{"optimizer_state", mt_dtype_name(l->moments)}, {"numa", l->numa}};
	for (size_t i = 0; i < sizeof labels / sizeof *labels; i++) {
		if (i) putchar(',');
		print_label(labels[i]);
	}
	printf("} 1\n");
	head("state", "gauge", "State of the run's weights: 1 for the state that holds, 0 for the others.");
	for (enum mt_state s = MT_EMPTY; s <= MT_GONE; s++)
		sample(l, "state", (struct label){"state", state_word(s)}, s == l->state);
	single(l, "parameters", "gauge", "Parameters of the model.", (double)l->params);
	single(l, "run_bytes", "gauge", "Bytes of shared memory that the run takes.", (double)l->bytes);
	head("memory_bytes", "gauge",
		"Bytes by array: weights w and lo, optimizer state m and v, slots of the tier, gradients g, rings, control "
		"region.");
	for (enum look_array a = 0; a < ARRAY_COUNT; a++)
		sample(l, "memory_bytes", (struct label){"array", array_word(a)}, (double)l->array[a]);
}

static void print_training(const struct look *l)
{
	single(l, "step", "gauge", "The last committed step.", (double)l->step);
	single(l, "steps", "gauge", "Length of the learning rate's schedule (--steps of the live mt-step).",
		or_unknown(l->steps));
	single(l, "until_step", "gauge", "Step at which the live mt-step ends.", or_unknown(l->until));
/* Which are known. A number that is known but not finite is a value */
#define NUMBER(x) (l->known || !isnan(x))
#define NUMBER_OR_NONE(x) !isnan(x)
#define COUNT(x) ((x) != 0)
#define BOOL(x) l->known
#define PRINT(x, field, kind, from, key, has, metric, help) \
	if (kind(l->figures.field)) { \
		head(metric, "gauge", help); \
		sample(l, metric, none, (double)l->figures.field); \
	}
	MT_FIGURES(PRINT, )
	single(l, "trained_tokens_total", "counter", "Targets trained so far over the run's life.",
		(double)l->trained_tokens);
	single(l, "processed_tokens_total", "counter", "Tokens of documents so far over the run's life, without padding.",
		(double)l->processed_tokens);
#define PRINT_PACE(field, key, format, always, before, text, after, metric, help) \
	single(l, metric, "gauge", help, l->pace.field);
	MT_PACE(PRINT_PACE)
	single(l, "eta_seconds", "gauge", "Seconds until mt-step's last step at that speed.", look_eta(l, l->pace.step_s));
}

static void print_transaction(const struct look *l)
{
	single(l, "transaction", "gauge", "Number of the newest transaction.", l->k);
	head("transaction_phase", "gauge",
		"Phase of the newest transaction: 1 for the phase that holds, 0 for the others.");
	for (enum mt_phase p = MT_CLOSED; p <= MT_LOGGED; p++)
		sample(l, "transaction_phase", (struct label){"phase", phase_word(p)}, p == l->phase);
	head("units", "gauge", "Units by version: the last committed step, the step before it, or another.");
	sample(l, "units", (struct label){"version", "step"}, l->at_step);
	sample(l, "units", (struct label){"version", "before"}, l->before);
	sample(l, "units", (struct label){"version", "other"}, l->other);
	single(l, "units_pinned", "gauge", "Units that a snapshot keeps unchanged.", l->pinned);
	single(l, "snapshot_step", "gauge", "Step of the newest snapshot; 0 if there was none.", (double)l->snap_step);
	single(l, "saves_total", "counter", "Checkpoints saved by mt-ckpt serve over the run's life.", (double)l->saved);
	single(l, "failed_saves_total", "counter", "Checkpoints that failed over the run's life.", (double)l->failed);
}

static void print_rings(const struct look *l)
{
	head("ring_messages", "gauge", "Messages that wait in the ring.");
	for (int i = 0; i < MT_RINGS; i++)
		if (l->ring[i].shown)
			sample(l, "ring_messages", (struct label){"ring", l->ring[i].name}, (double)l->ring[i].used);
	head("ring_slots", "gauge", "Messages that the ring holds at most.");
	for (int i = 0; i < MT_RINGS; i++)
		if (l->ring[i].shown)
			sample(l, "ring_slots", (struct label){"ring", l->ring[i].name}, (double)l->ring[i].slots);
}

static void print_tier(const struct look *l)
{
	const struct look_tier *t = &l->tier;
	if (!t->tiles) return;
	single(l, "tier_bytes", "gauge", "Bytes of the files that have lo, m and v.", (double)t->bytes);
	single(l, "tier_tiles", "gauge", "Tiles of a step's update.", t->tiles);
	single(l, "tier_slots", "gauge", "Slots for tiles in memory.", t->slots);
	single(l, "tier_loaded_tiles_total", "counter", "Tiles read for updates.", (double)t->loaded);
	single(l, "tier_updated_tiles_total", "counter", "Tiles updated.", (double)t->updated);
	single(l, "tier_written_tiles_total", "counter", "Updated tiles that are in their files.", (double)t->written);
}

/* ---- stages */

static bool any_stage(const struct look *l, int from, int to)
{
	for (int slot = from; slot <= to; slot++)
		if (l->stage[slot].pid) return true;
	return false;
}

/* Counter i of a program's stages; nanoseconds become seconds. */
static void print_counter(const struct look *l, const struct counting *c, int i)
{
	const char *name = c->counters[i];
	int n = text_counter_name(name);
	bool time = name[n] != 0;
	char metric[64], help[128];
	snprintf(metric, sizeof metric, "%s_%.*s%s_total", c->name, n, name, time ? "_seconds" : "");
	snprintf(help, sizeof help, "Counter %s of mt-%s since it started.", name, c->name);
	head(metric, "counter", help);
	for (int slot = c->from; slot <= c->to; slot++)
		if (l->stage[slot].pid)
			sample(l, metric, (struct label){"stage", mt_stage_name(slot)},
				(double)l->stage[slot].counters[i] * (time ? 1e-9 : 1));
}

static void print_gpus(const struct look *l)
{
#define ROW(field, scale, key, changes, type, metric, help) {"gpu_" metric, type, help, scale},
	static const struct {
		const char *metric, *type, *help;
		double scale;
	} gauges[] = {MT_GPU(ROW)};
#define REASON(bit, words) {bit, {"reason", words}},
	static const struct {
		int bit;
		struct label label;
	} reasons[] = {MT_GPU_REASONS(REASON)};
	bool any = false;
	for (int slot = MT_STREAM; slot < MT_SLOTS; slot++) any |= l->stage[slot].gpu_known;
	if (!any) return;
	for (int i = 0; i < MT_GPU_reasons; i++) {
		head(gauges[i].metric, gauges[i].type, gauges[i].help);
		for (int slot = MT_STREAM; slot < MT_SLOTS; slot++)
			if (l->stage[slot].gpu[i])
				sample(l, gauges[i].metric, (struct label){"stage", mt_stage_name(slot)},
					(double)l->stage[slot].gpu[i] * gauges[i].scale);
	}
	head("gpu_clock_held", "gauge", "1 for each reason for which the GPU's clock is held down, 0 for the others.");
	for (int slot = MT_STREAM; slot < MT_SLOTS; slot++)
		for (size_t i = 0; l->stage[slot].gpu_known && i < sizeof reasons / sizeof *reasons; i++)
			sample2(l, "gpu_clock_held", (struct label){"stage", mt_stage_name(slot)}, reasons[i].label,
				l->stage[slot].gpu[MT_GPU_reasons] >> reasons[i].bit & 1);
}

static void print_stages(const struct look *l)
{
	if (!any_stage(l, 0, MT_SLOTS - 1)) return;
	head("stage_up", "gauge", "1 if the stage's process is alive, 0 if it has died and nobody took its place.");
	for (int slot = 0; slot < MT_SLOTS; slot++)
		if (l->stage[slot].pid)
			sample(l, "stage_up", (struct label){"stage", mt_stage_name(slot)}, !l->stage[slot].dead);
	head("stage_cpu_seconds_total", "counter", "User and system CPU time of the stage's process.");
	for (int slot = 0; slot < MT_SLOTS; slot++)
		if (l->stage[slot].process.cpu_s >= 0)
			sample(l, "stage_cpu_seconds_total", (struct label){"stage", mt_stage_name(slot)},
				l->stage[slot].process.cpu_s);
	for (const struct counting *c = counting; c->name; c++)
		for (int i = 0; any_stage(l, c->from, c->to) && c->counters[i]; i++) print_counter(l, c, i);
	print_gpus(l);
}

void print_prometheus(const struct look *l)
{
	print_model(l);
	print_training(l);
	print_transaction(l);
	print_rings(l);
	print_tier(l);
	print_stages(l);
}
