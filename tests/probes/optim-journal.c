/* optim-journal.c: tests that the update can be resumed from every instruction.
 *
 * A child runs one step's update on a small run, one instruction at a time. After each instruction its shared memory is
 * what a kill would leave. It is copied to a second run, where another process finishes the update with another
 * instruction set; every bit must be that of an undisturbed update. From some of these points the second process is
 * single-stepped too, and a third one finishes. Then rules are broken on purpose: each breakage must be detected.
 * The scalar update, which takes most instructions, runs as a whole for some groups of a unit with many.
 *
 *     optim-journal RUN [none|early|early16] [bf16|int8] [lion|sgd] [tier=DIR]
 *
 * none: --grad none, pieces from a ring; early: all units but the first are updated before the commit, early16: with
 * gradients in bf16; bf16, int8: m and v in it; lion, sgd: the rule; tier: units but the first are on a tier of two
 * slots. As soon as a tile is counted, its slot has another one.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../mt-optim/optim.h"
#include "child.h"
#include "cli/cli.h"
#include "mt/create.h"
#include "mt/ring.h"
#include "mt/run.h"
#include "mt/tier.h"
#include "mt/txn.h"
#include "optim-tier.h"
#include "tiny.h"

/* the last two with a tier: what was counted is restored; --grad none: what the units' words say is not counted */
enum breakage { NOTHING, NO_RESTORE, OTHER_SLOT, STALE_STEP, RESTORE_COUNTED, UNCOUNTED };
enum { STEP = 7, K = 1, WORLDS = 5, NESTED_STEPS = 1500 };
/* Points from which a successor finishes: odd, so that loops are met at every place */
enum { EVERY = 5, EVERY_OF_SCALAR = 13, BROKEN_EVERY = EVERY * EVERY_OF_SCALAR * 3, NESTED_EVERY = BROKEN_EVERY * 56 };

static const char *base;
static enum mt_dtype grad = MT_FP32, state = MT_FP32;
static enum mt_optim optim = MT_ADAMW;
static bool early;
static const char *dir; /* of the tier; NULL: none */
static update_fn *isas[UPDATE_ISAS];
static int n_isas;

struct world { /* one run, and this process's handles on it */
	char name[MT_RUN_NAME];
	struct optim o;
};

static _Noreturn void finish(int rc)
{
	char name[MT_RUN_NAME];
	for (int i = 0; i < WORLDS; i++) {
		snprintf(name, sizeof name, "%s-%d", base, i);
		mt_run_remove(name, true);
	}
	exit(rc);
}

/* ---- stepping by instructions */

static bool stepped; /* this process is */

static void single_step(bool on)
{
#if defined __x86_64__
	const uint64_t tf = 0x100, flags = __builtin_ia32_readeflags_u64();
	__builtin_ia32_writeeflags_u64(on ? flags | tf : flags & ~tf);
#else
	(void)on;
	printf("single steps are for x86-64\n"), finish(77);
#endif
}

/* ---- the tier: all that it may do is done at once, and between two instructions of mt-optim */

static void move_tiles(struct mt_run *run)
{
	struct mt_tier *t = &mt_control(run)->tier;
	for (; t->written < t->updated; t->written++) move_tile(run, t->written, false);
	for (; t->tiles && t->loaded < t->written + t->slots; t->loaded++) move_tile(run, t->loaded, true);
}

static bool uncounted; /* the next count is left out */

/* In place of libmt's, by the linker's --wrap */
bool __wrap_mt_tier_count(struct mt_run *run, enum mt_tier_word w, uint64_t q);
bool __wrap_mt_tier_count(struct mt_run *run, enum mt_tier_word w, uint64_t q)
{
	struct mt_tier *t = &mt_control(run)->tier;
	CHECK(w == MT_UPDATED, "mt-optim counts what is not its own");
	if (uncounted) return !(uncounted = false);
	if (!atomic_compare_exchange_strong(&t->updated, &q, q + 1)) return false;
	if (stepped) single_step(false);
	move_tiles(run);
	if (stepped) single_step(true);
	return true;
}

/* ---- worlds */

/* Units' arrays as they are in the files: for this probe alone, mt-optim has slots */
static void map_units(struct optim *o)
{
	mt_must(mt_tier_map(o->run, false));
	for (uint32_t u = 0; u < o->n_units; u++) {
		const struct mt_unit *mu = mt_unit(o->run, u);
		struct tile *t = &o->units[u].tile;
		t->lo = mt_at(o->run, mu->lo);
		t->m = mt_at(o->run, mu->m);
		t->m_scale = int8_scales(t->m, mu->elems);
		if (!t->v) continue;
		t->v = mt_at(o->run, mu->v);
		t->v_scale = int8_scales(t->v, mu->elems);
	}
}

static void attach(struct world *w, int i)
{
	memset(w, 0, sizeof *w);
	snprintf(w->name, sizeof w->name, "%s-%d", base, i);
	mt_must(mt_run_open(&w->o.run, w->name, MT_RUN_RINGS | MT_RUN_WEIGHTS));
	w->o.control = mt_control(w->o.run);
	w->o.partitions = mt_partitions(w->o.run);
	w->o.direct = grad == MT_NONE;
	w->o.g_bf16 = grad == MT_BF16;
	w->o.update = isas[0];
	w->o.threads = 1; /* only the thread that is stepped may store anything */
	w->o.pool = pool_create(1, 0, flush_denormals);
	w->o.driver.run = w->o.run;
	mt_must(mt_ring_open(w->o.run, "grad.0", &w->o.driver.grad[0]));
	w->o.driver.streams = 1;
	mt_must(units_make(&w->o));
	if (dir) map_units(&w->o);
	early_open(&w->o, early);
	w->o.early.slice_groups = 20;
	for (uint32_t u = 0; u < w->o.n_units && early; u++)
		w->o.accumulation.squares[u] = calloc(w->o.units[u].blocks, sizeof(double));
}

static void create(int i)
{
	struct mt_geometry geo = tiny_llama(dir ? 3 : 1, 8, 528,
		(struct mt_layer){.heads = 1, .kv_heads = 1, .head_dim = 8, .ffn = 8, .rope_scaling = 1});
	geo.flags = MT_TIED;
	char name[MT_RUN_NAME];
	snprintf(name, sizeof name, "%s-%d", base, i);
	struct mt_create c = {.name = name,
		.config_text = "{}",
		.config_bytes = 2,
		.dtype = MT_BF16,
		.grad = grad,
		.state = state,
		.optim = optim,
		.step_tokens = 16,
		.tier = &dir,
		.tiers = dir ? 1 : 0,
		.tile_elems = MT_TILE_ALIGN,
		.slots = 2,
		.order = early ? MT_BACKWARD_ORDER : MT_FORWARD_ORDER};
	mt_must(mt_run_create(&c, &geo));
}

static uint32_t noise;

static size_t moment_bytes(size_t n) { return mt_moment_bytes(state, n); }

static void set_moment(void *array, float *scale, uint64_t i, float x)
{
	if (state == MT_INT8) ((uint8_t *)array)[i] = (uint8_t)(noise >> 8), scale[i / MT_GROUP] = int8_scale(mt_bits(x));
	else if (state == MT_BF16) ((uint16_t *)array)[i] = bf16_round(mt_bits(x));
	else ((float *)array)[i] = x;
}

static float uniform(void)
{
	noise = noise * 1664525 + 1013904223;
	return (float)(noise >> 8) / 8388608.0f - 1;
}

/* The moment after the commit of step 7: state and gradients are complete, nothing is applied. The partitions are as
 * step 6 left them, in either slot. */
static void set_up(struct optim *o)
{
	noise = 1;
	mt_run_reset(o->run, STEP - 1, STEP - 1, NULL);
	for (uint32_t u = 0; u < o->n_units; u++) {
		struct tile *t = &o->units[u].tile;
		for (uint64_t i = 0; i < o->units[u].groups * MT_GROUP; i++) {
			uint32_t bits = mt_bits(uniform());
			((uint16_t *)t->w)[i] = mt_hi(bits);
			t->lo[i] = mt_lo(bits);
			float m = uniform() * 0.1f, v = uniform() * uniform();
			set_moment(t->m, t->m_scale, i, m);
			if (t->v) set_moment(t->v, t->v_scale, i, v * v);
			for (int end = 0; end < 2; end++)
				if (t->g[end] && grad == MT_BF16) ((uint16_t *)(uintptr_t)t->g[end])[i] = mt_hi(mt_bits(uniform()));
				else if (t->g[end]) ((float *)(uintptr_t)t->g[end])[i] = uniform();
		}
	}
	for (uint32_t l = 0; l < MT_PARTITIONS; l++) {
		memset(o->partitions[l].slot, 0xaa, sizeof o->partitions[l].slot);
		atomic_store(&o->partitions[l].index, partition_tag(STEP - 1, 2) | (uint64_t)(l & 1) << PARTITION_SLOT);
	}
	struct mt_txn *t = mt_txn(o->run, K);
	*t = (struct mt_txn){.step = STEP,
		.kind = MT_TRAIN,
		.micros = 1,
		.targets = 1,
		.lr = 1e-2,
		.beta1 = 0.9,
		.beta2 = 0.999,
		.eps = 1e-8,
		.decay = 0.1,
		.t = STEP,
		.clip_factor = 1};
	atomic_store(&t->word, mt_word(K, 3, MT_APPLY));
	move_tiles(o->run);
	if (!o->direct) return;
	for (uint32_t u = o->n_units; u-- > 0;)
		for (uint64_t elems = o->units[u].groups * MT_GROUP, off = 0; off < elems; off += MT_BLOCK) {
			struct mt_msg m = {.k = K, .attempt = 3, .kind = MT_MSG_GRAD, .txn_kind = MT_TRAIN, .step = STEP};
			m.grad.unit = u, m.grad.off = off, m.grad.n = elems - off < MT_BLOCK ? elems - off : MT_BLOCK;
			float *g = mt_ring_reserve(o->driver.grad[0]);
			CHECK(g, "more pieces than the ring holds");
			for (uint64_t i = 0; i < m.grad.n; i++) g[i] = uniform();
			mt_ring_push(o->driver.grad[0], &m);
		}
}

/* As if all gradients but the first unit's were there, and the step not yet committed */
static void update_early(struct optim *o)
{
	o->accumulation.pieces_left = o->accumulation.left[0] = 1;
	early_attempt(o);
	while (early_round(o)) continue;
}

static void update(struct optim *o)
{
	const struct mt_attempt *at = &o->driver.attempt;
	CHECK(mt_attempt_read(o->run, mt_txn_word(o->run, K), &o->driver.attempt) > 0, "the word stands");
	struct scalars a = update_scalars(optim, STEP, &at->hyperparams, 1);
	if (early && mt_version(o->run, 0) != STEP) update_early(o);
	if (o->direct) apply_direct(o, at, &a);
	else apply(o, at, &a);
}

/* Copy what a kill leaves: tables, journal, transactions, ring words, state, the tier's counters and slots. (Gradients
 * change only where new weights go over them.) */
static void copy_world(struct optim *to, const struct optim *from)
{
	memcpy(to->partitions, from->partitions, MT_PARTITIONS * sizeof *to->partitions);
	for (uint32_t u = 0; u < to->n_units; u++) {
		const struct tile *f = &from->units[u].tile, *t = &to->units[u].tile;
		struct mt_unit *fu = mt_unit(from->run, u), *tu = mt_unit(to->run, u);
		size_t n = from->units[u].groups * MT_GROUP;
		atomic_store(&tu->version, atomic_load(&fu->version));
		atomic_store(&tu->applied, atomic_load(&fu->applied));
		memcpy(t->w, f->w, n * 2);
		memcpy(t->lo, f->lo, n * 2);
		memcpy(t->m, f->m, moment_bytes(n));
		if (t->v) memcpy(t->v, f->v, moment_bytes(n));
		tu->squares = fu->squares;
		tu->opened = fu->opened;
		if (early) memcpy(to->units[u].early.out, from->units[u].early.out, n * (grad == MT_BF16 ? 2 : 4));
	}
	const struct mt_tier *f = &from->control->tier;
	struct mt_tier *t = &to->control->tier;
	if (f->tiles) memcpy(mt_tile_slot(to->run, 0), mt_tile_slot(from->run, 0), f->slots * f->slot_bytes);
	atomic_store(&t->loaded, f->loaded);
	atomic_store(&t->updated, f->updated);
	atomic_store(&t->written, f->written);
}

static uint64_t pieces_left(const struct optim *o) { return o->direct ? mt_ring_used(o->driver.grad[0]) : 0; }

/* Advance `o`'s ring to where `from`'s is: both were set up equally, so only heads differ. */
static void match_ring(struct optim *o, uint64_t left)
{
	if (!o->direct) return;
	if (mt_ring_used(o->driver.grad[0]) < left) set_up(o); /* a head only moves forward, so start over */
	while (mt_ring_used(o->driver.grad[0]) > left) mt_ring_pop(o->driver.grad[0]);
}

static bool same_state(const struct optim *a, const struct optim *b)
{
	for (uint32_t u = 0; u < a->n_units; u++) {
		const struct tile *x = &a->units[u].tile, *y = &b->units[u].tile;
		size_t n = a->units[u].groups * MT_GROUP;
		if (mt_version(a->run, u) != STEP || mt_version(b->run, u) != STEP) return false;
		if (memcmp(x->w, y->w, n * 2) || memcmp(x->lo, y->lo, n * 2) || memcmp(x->m, y->m, moment_bytes(n)) ||
			(x->v && memcmp(x->v, y->v, moment_bytes(n))))
			return false;
	}
	return true;
}

/* ---- stepping */

/* A child traps after each instruction, by the flag TF, and stops at every `stop_every`th for this process. (With
 * ptrace, each instruction would take two switches between processes.) */
static uint64_t traps, stop_every;

static void trapped(int sig)
{
	(void)sig;
	if (traps++ % stop_every == 0) raise(SIGSTOP);
}

/* Stepped are: a unit's first four groups, every eighth of the others, and partitions of several groups */
static void scalar_in_part(const struct scalars *a, const struct tile *t, struct mt_partition *p, uint64_t tag,
	uint64_t first, uint64_t end, float decay)
{
	single_step(first < 4 || first % 8 == 0 || end - first > 1);
	update_scalar(a, t, p, tag, first, end, decay);
	single_step(true);
}

static pid_t stepped_child(int world, int isa, uint64_t every)
{
	pid_t pid = fork_child();
	CHECK(pid >= 0, "fork: %s", strerror(errno));
	if (pid == 0) {
		struct world w; /* regions are not inherited: the child maps its own */
		attach(&w, world);
		w.o.update = isas[isa] == update_scalar ? scalar_in_part : isas[isa];
		stop_every = every;
		stepped = true;
		signal(SIGTRAP, trapped);
		single_step(true);
		update(&w.o);
		single_step(false);
		_exit(0);
	}
	return pid;
}

/* This process and its child on one core: else each stop wakes up another core, and takes three times as long. They
 * move now and then, since another process may need that core. */
static void share_core(pid_t pid)
{
	static cpu_set_t all;
	static unsigned stops;
	if (stops++ % 1024) return;
	if (!CPU_COUNT(&all)) sched_getaffinity(0, sizeof all, &all);
	sched_setaffinity(0, sizeof all, &all);
	sched_yield();
	int core = sched_getcpu();
	cpu_set_t here;
	CPU_ZERO(&here);
	CPU_SET(core < 0 ? 0 : core, &here);
	sched_setaffinity(0, sizeof here, &here);
	sched_setaffinity(pid, sizeof here, &here);
}

/* Go on to the child's next stop. False: the update has ended. */
static bool step(pid_t pid)
{
	share_core(pid);
	int status;
	kill(pid, SIGCONT);
	CHECK(waitpid(pid, &status, WUNTRACED) == pid, "waitpid: %s", strerror(errno));
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77) finish(77);
	CHECK(WIFSTOPPED(status) || (WIFEXITED(status) && !WEXITSTATUS(status)), "the child ended early");
	return WIFSTOPPED(status);
}

static void end_child(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

/* The tile of the unit, which has one: as it is in its slot if it is on the tier */
static struct tile tile_of(const struct optim *o, uint32_t u)
{
	const struct tile *t = early && u ? &o->units[u].early : &o->units[u].tile;
	const struct mt_unit *mu = mt_unit(o->run, u);
	return mu->tiles ? tier_tile(o, t, mu->first_tile, mu->first_tile) : *t;
}

static bool counted(const struct optim *o, uint32_t u)
{
	const struct mt_unit *mu = mt_unit(o->run, u);
	return mu->tiles && mu->first_tile < o->control->tier.updated;
}

/* The journal's slot gets the current values */
static void no_restore(struct optim *o, uint32_t l, uint64_t index)
{
	struct tile t = tile_of(o, partition_unit(index));
	uint64_t at = partition_group(index) * MT_GROUP;
	uint8_t *slot = o->partitions[l].slot[partition_slot(index)];
	memcpy(slot + SLOT_W, tile_out(&t, partition_group(index)), MT_GROUP * 2);
	memcpy(slot + SLOT_LO, t.lo + at, MT_GROUP * 2);
	size_t bytes = state == MT_INT8 ? MT_GROUP : moment_bytes(MT_GROUP);
	memcpy(slot + SLOT_M, (uint8_t *)t.m + at / MT_GROUP * bytes, bytes);
	if (t.v) memcpy(slot + SLOT_V, (uint8_t *)t.v + at / MT_GROUP * bytes, bytes);
	if (state != MT_INT8) return;
	memcpy(slot + SLOT_M + SLOT_SCALE, &t.m_scale[at / MT_GROUP], sizeof(float));
	if (t.v) memcpy(slot + SLOT_V + SLOT_SCALE, &t.v_scale[at / MT_GROUP], sizeof(float));
}

/* lo, m and v of the group are restored in the slot, where another tile is now. (w, which lies elsewhere, would come
 * out right: the group is updated again.) */
static void restore_counted(struct optim *o, uint32_t l, uint64_t index)
{
	struct tile t = tile_of(o, partition_unit(index));
	uint8_t w[MT_GROUP * 2];
	memcpy(w, tile_out(&t, partition_group(index)), sizeof w);
	update_restore(&t, &o->partitions[l]);
	memcpy(tile_out(&t, partition_group(index)), w, sizeof w);
}

/* A second process that breaks one rule. */
static void break_rule(struct optim *o, enum breakage b)
{
	uncounted = b == UNCOUNTED;
	for (uint32_t l = 0; l < MT_PARTITIONS && b != NOTHING; l++) {
		uint64_t i = atomic_load(&o->partitions[l].index);
		if (!partition_in_step(i, STEP)) continue;
		bool past = counted(o, partition_unit(i));
		if (b == OTHER_SLOT) atomic_store(&o->partitions[l].index, i ^ (uint64_t)1 << PARTITION_SLOT);
		if (b == NO_RESTORE && !past && mt_version(o->run, partition_unit(i)) != STEP) no_restore(o, l, i);
		if (b == STALE_STEP) atomic_store(&o->partitions[l].index, i - ((uint64_t)1 << 40));
		if (b == RESTORE_COUNTED && past) restore_counted(o, l, i);
	}
}

static bool finishes_right(struct optim *scratch, const struct optim *left, const struct optim *want, uint64_t n,
	enum breakage b)
{
	match_ring(scratch, pieces_left(left));
	copy_world(scratch, left);
	move_tiles(scratch->run);
	break_rule(scratch, b);
	scratch->update = isas[n % (uint64_t)n_isas];
	update(scratch);
	/* killed between the last publication and its pop, that piece stays; the next accumulation drops it as a dead
	 * attempt's */
	return same_state(scratch, want) && pieces_left(scratch) <= 1;
}

/* --grad none: the due tile is done by its unit's word, and not counted yet */
static bool is_uncounted(const struct optim *o)
{
	uint64_t due = o->control->tier.updated;
	if (!dir || !o->direct || due >= o->control->tier.tiles) return false;
	uint32_t u = mt_tile(o->run, (uint32_t)due).unit;
	return (atomic_load(&mt_unit(o->run, u)->applied) & UINT32_MAX) == o->units[u].blocks;
}

/* A successor that ends the program is wrong, too */
static bool ends_right(const struct world *w, uint64_t n, enum breakage b)
{
	int status;
	pid_t pid = fork_child();
	CHECK(pid >= 0, "fork: %s", strerror(errno));
	if (pid == 0) {
		struct world scratch, left, wanted;
		attach(&scratch, 1);
		attach(&left, 0);
		attach(&wanted, 4);
		if (!freopen("/dev/null", "w", stderr)) _exit(1);
		_exit(!finishes_right(&scratch.o, &left.o, &wanted.o, n, b));
	}
	CHECK(waitpid(pid, &status, 0) == pid, "waitpid: %s", strerror(errno));
	mt_run_set_state(w[1].o.run, MT_FILLED);
	return WIFEXITED(status) && !WEXITSTATUS(status);
}

static uint64_t points, nested_points, wrong[UNCOUNTED + 1];

static enum breakage last_rule(void) { return !dir ? STALE_STEP : grad == MT_NONE ? UNCOUNTED : RESTORE_COUNTED; }

/* Step a child through the update of world `at`; a successor in world at + 1 from every `every`th point, and from some
 * of them successors with a rule broken, and one that is stepped through itself. */
static void step_through(struct world *w, int at, int isa, uint64_t most, uint64_t every)
{
	const struct optim *want = &w[4].o;
	pid_t pid = stepped_child(at, isa, every);
	bool more = true;
	for (uint64_t n = 0; more && n < most; n += every) {
		more = step(pid);
		CHECK(finishes_right(&w[at + 1].o, &w[at].o, want, n, NOTHING),
			"after instruction %llu the successor's bits are wrong", (unsigned long long)n);
		*(at ? &nested_points : &points) += 1;
		if (!at && is_uncounted(&w[0].o)) wrong[UNCOUNTED] += !ends_right(w, n, UNCOUNTED);
		if (at || n % BROKEN_EVERY) continue;
		for (enum breakage b = NO_RESTORE; b <= last_rule() && b < UNCOUNTED; b++)
			wrong[b] += !finishes_right(&w[1].o, &w[0].o, want, n, b);
		if (n % NESTED_EVERY) continue;
		match_ring(&w[2].o, pieces_left(&w[0].o));
		copy_world(&w[2].o, &w[0].o);
		step_through(w, 2, (isa + 1) % n_isas, NESTED_STEPS, 7);
	}
	if (more) end_child(pid);
}

int main(int argc, char **argv)
{
	static struct world w[WORLDS];
	if (argc < 2) mt_die(64, "usage: optim-journal RUN [none|early|early16] [bf16|int8] [lion|sgd] [tier=DIR]");
	base = argv[1];
	for (int i = 2; i < argc; i++)
		if (!strcmp(argv[i], "none")) grad = MT_NONE;
		else if (!strncmp(argv[i], "early", 5)) early = true, grad = argv[i][5] ? MT_BF16 : MT_FP32;
		else if (!strncmp(argv[i], "tier=", 5)) dir = argv[i] + 5;
		else if (mt_optim_named(argv[i])) optim = mt_optim_named(argv[i]);
		else state = !strcmp(argv[i], "int8") ? MT_INT8 : MT_BF16;
	flush_denormals();
	/* Other processes go first, but not always: with SCHED_IDLE, a machine that is never idle took an hour */
	CHECK(nice(10) >= 0, "nice: %s", strerror(errno));
	struct update_isa all[UPDATE_ISAS];
	n_isas = update_isas(all);
	for (int i = 0; i < n_isas; i++) isas[i] = all[i].update;
	for (int i = 0; i < WORLDS; i++) {
		create(i);
		attach(&w[i], i);
		set_up(&w[i].o);
	}
	update(&w[4].o);
	for (int isa = 0; isa < n_isas; isa++) {
		set_up(&w[0].o);
		step_through(w, 0, isa, UINT64_MAX, isas[isa] == update_scalar ? EVERY_OF_SCALAR : EVERY);
	}
	printf("%llu kill points, and %llu in recoveries: same bits\n", (unsigned long long)points,
		(unsigned long long)nested_points);
	for (enum breakage b = NO_RESTORE; b <= last_rule(); b++) {
		CHECK(wrong[b], "rule %d was broken and nothing differed", b);
		printf("rule %d broken: %llu points differ\n", b, (unsigned long long)wrong[b]);
	}
	finish(0);
}
