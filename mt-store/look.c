/* look.c: one look at a run. Words are read while others change them: what belongs together is read again, until two
 * readings agree. */
#include <math.h>
#include <stdio.h>

#include "look.h"
#include "mt/control.h"
#include "mt/documents.h"
#include "mt/error.h"
#include "mt/ring.h"
#include "mt/run.h"
#include "mt/snapshot.h"
#include "mt/stage.h"
#include "mt/txn.h"
#include "os.h"
#include "store.h"

const char *array_word(enum look_array a)
{
	static const char *const words[] = {"w", "lo", "m", "v", "slots", "g", "rings", "control"};
	return a < ARRAY_COUNT ? words[a] : "?";
}

const char *phase_word(enum mt_phase phase)
{
	static const char *const words[] = {"closed", "accumulate", "apply", "skip", "done", "logged"};
	return phase <= MT_LOGGED ? words[phase] : "?";
}

const char *snap_word(enum mt_snap snap)
{
	static const char *const words[] = {"none", "pinned", "sealed", "saved", "failed"};
	return snap <= MT_FAILED ? words[snap] : "?";
}

#define NAME(stage, counter) #counter,
const struct counting counting[] = {
	{"step", MT_STEP, MT_STEP, {MT_COUNTERS_STEP(NAME)}},
	{"optim", MT_OPTIM, MT_OPTIM, {MT_COUNTERS_OPTIM(NAME)}},
	{"ckpt", MT_CKPT, MT_CKPT, {MT_COUNTERS_CKPT(NAME)}},
	{"tier", MT_TIER, MT_TIER, {MT_COUNTERS_TIER(NAME)}},
	{"stream", MT_STREAM, MT_SLOTS - 1, {MT_COUNTERS_STREAM(NAME)}},
	{NULL, 0, MT_SLOTS - 1, {NULL}},
};

const char *const *counter_words(int slot)
{
	const struct counting *c = counting;
	while (slot < c->from || slot > c->to) c++;
	return c->counters;
}

/* ---- the last step */

static bool committed(enum mt_phase p) { return p == MT_APPLY || p == MT_SKIP || p == MT_DONE || p == MT_LOGGED; }

/* The sums of a step's objective (mt/documents.h). pg has no answers */
static void look_answers(struct look *l, const double *sums)
{
	double chosen = sums[MT_SUM_OF_CHOSEN], rejected = sums[MT_SUM_OF_REJECTED];
	bool any = chosen + rejected > 0;
	l->margin = any ? sums[MT_SUM_CHOSEN] / chosen - sums[MT_SUM_REJECTED] / rejected : NAN;
	l->accuracy = any ? sums[MT_SUM_RIGHT] / (chosen + rejected) : NAN;
}

/* The metrics of the step from the entry that transaction k uses. The next transaction of this parity is written
 * before the word changes, from its step on and up to its losses; so these are read again. */
static bool figures_in(struct look *l, const struct mt_run *run, uint32_t k, uint64_t step, struct mt_figures *out)
{
	uint64_t word = mt_txn_word(run, k);
	const struct mt_txn *t = mt_txn(run, k);
	if (!committed(mt_word_phase(word)) || t->kind != MT_TRAIN || t->step != step || !step) return false;
	mt_txn_figures(t, out);
	look_answers(l, t->figures);
	bool whole = t->micros > 0 && t->micros <= MT_MICROS;
	for (uint32_t i = 0; whole && i < t->micros; i++) whole = t->losses[i].entered == 1;
	atomic_thread_fence(memory_order_acquire); /* the fields were read before they are looked at again */
	return whole && out->step == step && t->step == step && t->kind == MT_TRAIN &&
		mt_word_k(mt_txn_word(run, k)) == mt_word_k(word);
}

/* ... or from where mt-step keeps those of a step under long evaluation, or a load those of the checkpoint's step */
static bool figures_kept(const struct mt_figures *f, uint64_t step, struct mt_figures *out)
{
	if (!step || __atomic_load_n(&f->step, __ATOMIC_ACQUIRE) != step) return false;
	*out = *f;
	atomic_thread_fence(memory_order_acquire);
	return __atomic_load_n(&f->step, __ATOMIC_RELAXED) == step;
}

void look_step(struct look *l, const struct mt_run *run)
{
	const struct mt_control *c = mt_control(run);
	struct mt_committed at, again;
	struct mt_figures f;
	do {
		mt_run_committed(run, &at);
		uint32_t k = mt_txn_newest(run);
		l->margin = l->accuracy = NAN;
		l->known = figures_in(l, run, k, at.step, &f) || (k && figures_in(l, run, k - 1, at.step, &f)) ||
			figures_kept(&c->unlogged[0], at.step, &f) || figures_kept(&c->unlogged[1], at.step, &f);
		mt_run_committed(run, &again);
	} while (again.step != at.step);
	l->step = at.step;
	l->trained_tokens = at.position.tokens;
	l->processed_tokens = at.position.processed;
	l->work = (struct mt_work){at.step, at.position.processed, c->slots[MT_STEP].counters[MT_STEP_update_wait_ns]};
	l->rows = at.position.batch;
	/* of a step whose entry an evaluation has taken, its hyperparameters stand for checkpoints */
	const struct mt_hyper *h = &c->hyper[at.step & 1];
	bool hyper = !l->known && at.step && h->step == at.step;
#define NUMBER NAN
#define NUMBER_OR_NONE NAN
#define COUNT 0
#define BOOL 0
#define UNKNOWN(x, field, kind, ...) .field = kind,
	l->figures = (struct mt_figures){MT_FIGURES(UNKNOWN, )};
	if (hyper) l->figures.lr = h->lr, l->figures.tokens = h->targets;
	if (!l->known) return;
	l->figures = f;
	if (!isfinite(f.loss)) l->figures.loss = NAN;
	if (!isfinite(f.norm)) l->figures.norm = NAN;
}

static void look_at_txn(struct look *l, struct mt_run *run)
{
	uint64_t word, snap;
	do {
		l->k = mt_txn_newest(run);
		word = mt_txn_word(run, l->k);
		const struct mt_txn *t = mt_txn(run, l->k);
		l->attempt = mt_word_attempt(word);
		l->phase = mt_word_phase(word);
		l->eval = t->kind == MT_EVAL;
		l->txn_step = t->step;
		l->micros = t->micros;
		atomic_thread_fence(memory_order_acquire); /* the fields were read before the word is looked at again */
	} while (mt_txn_newest(run) != l->k || mt_txn_word(run, l->k) != word);
	snap = mt_snap(run);
	l->snap = mt_snap_state(snap);
	l->snap_step = mt_snap_step(snap);
	l->saved = atomic_load(&mt_control(run)->snap.saved);
	l->failed = mt_snap_failures(run);
}

/* ---- the parts */

static void look_at_units(struct look *l, const struct mt_run *run)
{
	uint64_t weight = mt_dtype_bytes(l->dtype), gradient = mt_dtype_bytes(l->grad);
	l->n_units = mt_control(run)->n_units < LOOK_UNITS ? mt_control(run)->n_units : LOOK_UNITS;
	for (uint32_t i = 0; i < l->n_units; i++) {
		const struct mt_unit *u = mt_unit(run, i);
		uint64_t version = mt_version(run, i);
		bool pinned = atomic_load_explicit(&u->pin, memory_order_relaxed) != 0;
		enum unit_version at = version == l->step ? UNIT_AT_STEP : version + 1 == l->step ? UNIT_BEFORE : UNIT_OTHER;
		l->unit[i] = (struct look_unit){at, pinned};
		l->at_step += at == UNIT_AT_STEP;
		l->before += at == UNIT_BEFORE;
		l->other += at == UNIT_OTHER;
		l->pinned += pinned;
		l->array[ARRAY_W] += u->elems * weight;
		struct mt_part part = mt_part(run, i), low = part;
		uint64_t owned = part.end - part.first;
		if (!owned && u->lo) low = mt_exact(u, mt_tensor(run, u->first_tensor));
		l->array[ARRAY_LO] += u->lo && !mt_on_tier(run, u->lo) ? (low.end - low.first) * 2 : 0;
		l->array[ARRAY_M] += u->tiles ? 0 : mt_state_bytes(l->moments, owned);
		l->array[ARRAY_V] += u->v && !u->tiles ? mt_state_bytes(l->moments, owned) : 0;
		l->array[ARRAY_G] += owned * gradient * ((u->g[0] != 0) + (u->g[1] != 0));
	}
}

static void look_at_tier(struct look *l, const struct mt_run *run)
{
	const struct mt_tier *t = &mt_control(run)->tier;
	const uint64_t *moved = l->stage[MT_TIER].counters;
	if (!mt_tier_any(run)) return;
	/* in this order: none is more than the next one */
	l->tier.written = mt_tier_at(run, MT_WRITTEN);
	l->tier.updated = mt_tier_at(run, MT_UPDATED);
	l->tier.loaded = mt_tier_at(run, MT_LOADED);
	l->tier.tiles = t->tiles;
	l->tier.slots = t->slots;
	l->tier.dirs = t->dirs < MT_TIER_DIRS ? t->dirs : MT_TIER_DIRS;
	l->tier.bytes = t->bytes;
	l->tier.params = t->params;
	l->tier.rate = moved[MT_TIER_transfer_ns]
		? 1e9 * (double)(moved[MT_TIER_bytes_read] + moved[MT_TIER_bytes_written]) / (double)moved[MT_TIER_transfer_ns]
		: NAN;
	for (uint32_t i = 0; i < l->tier.dirs; i++)
		text_clean(l->tier.dir[i], sizeof l->tier.dir[i], mt_tier_dir(run, i), MT_TIER_PATH);
	l->array[ARRAY_SLOTS] = t->slots * t->slot_bytes;
}

static void look_at_rings(struct look *l, struct mt_run *run)
{
	static const char *const kinds[] = {"batch", "grad"};
	int streams = (int)mt_streams(run), first = (int)mt_node(run) * (int)mt_node_streams(run);
	for (int i = 0; i <= 2 * streams; i++) {
		struct look_ring *r = &l->ring[i];
		struct mt_ring *ring;
		bool save = i == 2 * streams, own = i / 2 - first >= 0 && i / 2 - first < (int)mt_node_streams(run);
		if (!save && i % 2 == 0 && first && !own) continue; /* other nodes' batches are node 0's alone */
		if (save) snprintf(r->name, sizeof r->name, "save");
		else snprintf(r->name, sizeof r->name, "%s.%d", kinds[i % 2], i / 2);
		if (mt_ring_open(run, r->name, &ring)) continue;
		r->used = mt_ring_used(ring);
		r->slots = mt_ring_slots(ring);
		r->shown = save || r->used || mt_stage_pid(run, MT_STREAM + i / 2);
		l->array[ARRAY_RINGS] += r->slots * (sizeof(struct mt_msg) + mt_ring_block(ring));
		mt_ring_close(ring);
	}
}

static void look_at_stages(struct look *l, struct mt_run *run)
{
	for (int slot = 0; slot < MT_SLOTS; slot++) {
		struct look_stage *s = &l->stage[slot];
		const struct mt_slot *shared = &mt_control(run)->slots[slot];
		uint64_t word = mt_stage_word(run, slot);
		s->process = (struct process){-1, -1};
		if (!(s->pid = mt_slot_pid(word))) continue;
		s->dead = mt_stage_dead(run, slot);
		s->stopped = !s->dead && mt_stage_stopped(run, slot);
		mt_stage_describe(run, slot, s->activity, sizeof s->activity);
		for (int i = 0; i < LOOK_COUNTERS; i++)
			s->counters[i] = atomic_load_explicit(&shared->counters[i], memory_order_relaxed);
		for (int i = 0; i < MT_GPU_WORDS && !s->dead; i++) {
			s->gpu[i] = atomic_load_explicit(&shared->gpu[i], memory_order_relaxed);
			s->gpu_known |= s->gpu[i] != 0;
		}
		if (!s->dead && mt_stage_pid_here(run, slot)) process_look(s->pid, word, &s->process);
	}
}

/* --steps and the time since the start are not in the run's memory: they come from mt-step's process. */
static void look_at_pace(struct look *l, struct mt_run *run)
{
	const struct look_stage *s = &l->stage[MT_STEP];
	struct mt_work work = {s->counters[MT_STEP_steps], s->counters[MT_STEP_processed],
		s->counters[MT_STEP_update_wait_ns]};
	l->pace = mt_pace(run, s->process.age_s, (struct mt_work){0}, work, l->rows);
	if (s->process.age_s < 0) return;
	if (process_option(s->pid, "mt-step", "steps", &l->steps) && !process_option(s->pid, "mt-step", "until", &l->until))
		l->until = l->steps;
}

double look_eta(const struct look *l, double step_s)
{
	if (!l->until) return NAN;
	return l->step >= l->until ? 0 : step_s * (double)(l->until - l->step);
}

bool look_run_gone(struct mt_run *run, const char *name)
{
	struct mt_run *now;
	if (mt_run_state(run) == MT_GONE) return true;
	int rc = mt_run_open(&now, name, MT_RUN_CONTROL | MT_RUN_READONLY);
	if (rc) return rc == -MT_EX_NOINPUT; /* any other reason says nothing about the run */
	bool same = memcmp(mt_control(now)->h.run_id, mt_control(run)->h.run_id, sizeof mt_control(run)->h.run_id) == 0;
	mt_run_close(now);
	return !same;
}

void look_take(struct look *l, struct mt_run *run, const char *name)
{
	const struct mt_control *c = mt_control(run);
	*l = (struct look){.when = mt_now(), .name = name};
	text_clean(l->family, sizeof l->family, c->geo.family, sizeof c->geo.family);
	text_clean(l->numa, sizeof l->numa, c->numa, sizeof c->numa);
	l->state = mt_run_state(run);
	l->dtype = c->dtype;
	l->grad = c->grad;
	l->moments = c->state;
	l->node = mt_node(run);
	l->nodes = mt_nodes(run);
	run_id_text(run, l->run_id);
	l->optim = c->optim;
	l->params = c->params;
	l->trained = mt_run_trained(run);
	l->with_state = 0;
	for (uint32_t u = 0; u < c->n_units; u++)
		if (mt_trained(mt_unit(run, u))) l->with_state += mt_unit(run, u)->params;
	l->carried_bytes = c->geo.carried_bytes;
	l->step_tokens = c->step_tokens;
	l->bytes = mt_run_bytes(run);
	l->state_bytes = store_bytes(run);
	look_at_stages(l,
		run); /* before the step: a stage that died after its last step is not shown beside an older one */
	look_step(l, run);
	look_at_txn(l, run);
	look_at_units(l, run);
	look_at_tier(l, run);
	look_at_rings(l, run);
	look_at_pace(l, run);
	l->array[ARRAY_CONTROL] = c->h.size;
}
