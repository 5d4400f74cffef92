/* optim-fake.c: acts as an mt-step and up to eight mt-streams, using only libmt. It drives an mt-optim and compares its
 * results with a plain computation bit for bit: g, norm, outcome, versions, w, lo, m, v.
 *
 *     optim-fake train RUN [key=value ...]     dtype=bf16|fp32 grad=fp32|bf16|none state=fp32|bf16|int8
 *                                              optim=adamw|lion|sgd tied=0|1 ple=0|1 streams=1..8 micros=1..
 *                                              threads=N steps=N seed=S aborts=0|1
 *                                              kill=SECONDS twice=0|1 clips=0|1 early=0|1 backward=0|1
 *                                              tier=DIR memory=BYTES slots=N
 *     optim-fake bad | save | hole | dead-stream | nan-gradient RUN
 *     optim-fake early-nan | early-other RUN
 *     optim-fake tier-stop RUN tier=DIR [key=value ...]
 *
 * Pieces are cut at random multiples of MT_BLOCK and sent in random order over the rings. With kill=S mt-optim is
 * killed at random moments for S seconds and restarted with other threads and another instruction set. The last line of
 * stdout is a hash of the final state and of every norm: it must depend only on dtype, grad, state, optim, tied, ple,
 * micros, steps and clips (0: no step clips, or has gradients that are not finite). early: mt-optim --update early;
 * backward: pieces come from the last unit to the first.
 *
 * tier: lo, m and v of the last units are in files in DIR, which a process of the probe moves into slots and back, in
 * any order that the protocol allows. It fills a slot with other bytes first. With kill=S it is killed, too.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../mt-optim/update.h"
#include "child.h"
#include "cli/cli.h"
#include "mt/create.h"
#include "mt/error.h"
#include "mt/ring.h"
#include "mt/run.h"
#include "mt/snapshot.h"
#include "mt/stage.h"
#include "mt/tier.h"
#include "mt/txn.h"
#include "mt/wait.h"
#include "optim-tier.h"
#include "splitmix.h"
#include "tiny.h"

struct sender {
	struct mt_ring *ring;
	struct mt_msg *msgs;
	uint32_t n, room, at;
};

struct expected { /* of one unit */
	uint64_t elems;
	uint8_t *w, *g[2], *real; /* real: 1 where a tensor is, 0 in gaps */
	int16_t *lo;
	float *m, *v;
};

static struct {
	const char *name;
	enum mt_dtype dtype, grad, state;
	enum mt_optim rule;
	uint64_t tied, ple, streams, micros, threads, steps, seed, aborts, kill, twice, clips, early, backward;
	uint64_t memory, slots;
	const char *dir; /* of the tier; NULL: none */
	struct mt_run *run;
	struct mt_control *control;
	struct sender sender[MT_STREAMS];
	struct expected *unit;
	pid_t optim, tier;
	uint32_t k, attempt; /* the senders' lists are for these */
	uint64_t step, t, hash, plain;
	uint32_t kills, kills_in_apply, kills_early, tier_kills,
		begun; /* begun: units that were seen updated before a commit */
	double next_kill, kill_until;
	bool kill_in_apply, kill_early; /* the next kill waits for an apply; for a unit that is updated before */
} f = {.dtype = MT_BF16,
	.state = MT_FP32,
	.rule = MT_ADAMW,
	.grad = MT_FP32,
	.streams = 2,
	.micros = 3,
	.threads = 2,
	.steps = 12,
	.seed = 1,
	.clips = 1,
	.hash = 14695981039346656037u};

static void end_process(pid_t *pid)
{
	if (*pid <= 0) return;
	kill(*pid, SIGKILL);
	waitpid(*pid, NULL, 0);
	*pid = 0;
}

static _Noreturn void finish(int rc)
{
	end_process(&f.optim);
	end_process(&f.tier);
	mt_run_remove(f.name, true);
	if (rc) fprintf(stderr, "optim-fake: at step %llu\n", (unsigned long long)f.step);
	exit(rc);
}

/* ---- numbers */

static uint64_t mix(uint64_t z) { return splitmix_mix(z + SPLITMIX_STEP); }
static uint64_t rnd_state;
static uint64_t rnd(void) { return rnd_state = mix(rnd_state); }

static float gradient(uint64_t step, uint32_t micro, uint32_t unit, uint32_t end, uint64_t i)
{
	uint64_t h = mix(mix(step << 32 | micro << 16 | unit << 1 | end) + i);
	return h % 64 == 0 ? 0 : ((float)(uint32_t)h / 4294967296.0f - 0.5f) * 0.01f;
}

enum what { NORMAL, INF_GRADIENT, NAN_LOSS, NO_TARGETS };
static enum what what_of(uint64_t step) /* some of the run's steps must be skipped */
{
	if (f.plain) return NORMAL;
	if (step % 7 == 3) return NO_TARGETS;
	if (step % 5 == 4) return NAN_LOSS;
	return step % 5 == 2 && f.grad != MT_NONE && f.clips ? INF_GRADIENT : NORMAL;
}

static uint32_t grad_bytes(void) { return f.grad == MT_BF16 ? 2 : 4; }
static uint64_t moment_bytes(uint64_t elems) { return mt_moment_bytes(f.state, elems); }
static uint64_t min64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint32_t ends(uint32_t u) { return f.grad != MT_NONE && mt_unit(f.run, u)->g[1] ? 2 : 1; }

static void make_gradient(void *out, uint64_t step, uint32_t micro, uint32_t u, uint32_t end, uint64_t off, uint64_t n)
{
	bool inf = what_of(step) == INF_GRADIENT && micro == 0 && u == 1 && off == 0;
	for (uint64_t i = 0; i < n; i++) {
		float x = f.unit[u].real[off + i] ? gradient(step, micro, u, end, off + i) : 0;
		if (inf && i == 5) x = INFINITY;
		if (f.grad == MT_BF16) ((uint16_t *)out)[i] = mt_hi(mt_bits(x));
		else ((float *)out)[i] = x;
	}
}

/* ---- the plain computation */

static void *zeros(size_t n)
{
	void *p = calloc(1, n);
	if (!p) mt_die(71, "no memory");
	return p;
}

static void expect_init(void)
{
	uint32_t n = f.control->n_units;
	f.unit = zeros(n * sizeof *f.unit);
	for (uint32_t u = 0; u < n; u++) {
		const struct mt_unit *mu = mt_unit(f.run, u);
		struct expected *e = &f.unit[u];
		e->elems = mu->elems;
		uint64_t room = e->elems + MT_GROUP;
		e->w = zeros(room * 4), e->lo = zeros(room * 2);
		e->m = zeros(room * 4 + 4096), e->v = zeros(room * 4 + 4096); /* int8: scales begin at a page */
		e->g[0] = zeros(room * 4), e->g[1] = zeros(room * 4), e->real = zeros(room);
		for (uint32_t i = 0; i < mu->tensors; i++) {
			const struct mt_tensor *t = mt_tensor(f.run, mu->first_tensor + i);
			memset(e->real + t->off, 1, t->n);
		}
		for (uint64_t i = 0; i < e->elems; i++) {
			uint32_t bits = e->real[i] ? mt_bits(gradient(0, 0, u, 0, i) * 20) : 0;
			if (f.dtype == MT_BF16) {
				((uint16_t *)e->w)[i] = mt_hi(bits);
				e->lo[i] = mt_lo(bits);
			} else ((uint32_t *)e->w)[i] = bits;
		}
		memcpy(mt_at(f.run, mu->w), e->w, e->elems * (f.dtype == MT_BF16 ? 2 : 4));
		if (mu->lo) memcpy(mt_at(f.run, mu->lo), e->lo, e->elems * 2);
	}
}

static float g_at(uint32_t u, uint32_t end, uint64_t i)
{
	return f.grad == MT_BF16 ? bf16_float(((uint16_t *)f.unit[u].g[end])[i]) : ((float *)f.unit[u].g[end])[i];
}

static void expect_gather(uint64_t step, uint32_t micros, double *norm)
{
	double sum = 0;
	for (uint32_t u = 0; u < f.control->n_units; u++) {
		struct expected *e = &f.unit[u];
		for (uint32_t end = 0; end < ends(u); end++) {
			make_gradient(e->g[end], step, 0, u, end, 0, e->elems);
			uint8_t *more = zeros(e->elems * 4);
			for (uint32_t micro = 1; micro < micros; micro++) {
				make_gradient(more, step, micro, u, end, 0, e->elems);
				for (uint64_t i = 0; i < e->elems; i++)
					if (f.grad == MT_BF16) {
						uint32_t bits = mt_bits(g_at(u, end, i) + bf16_float(((uint16_t *)more)[i]));
						((uint16_t *)e->g[end])[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
					} else ((float *)e->g[end])[i] += ((float *)more)[i];
			}
			free(more);
		}
		for (uint64_t i = 0; i < e->elems; i++) {
			float x = g_at(u, 0, i);
			if (ends(u) == 2) x += g_at(u, 1, i);
			sum += (double)x * x;
		}
	}
	*norm = sqrt(sum);
}

static void expect_update(const struct mt_txn *t, double factor)
{
	static struct mt_partition partition;
	struct scalars a = update_scalars(f.rule, f.t, &t->hyperparams, factor);
	for (uint32_t u = 0; u < f.control->n_units; u++) {
		struct expected *e = &f.unit[u];
		const struct mt_unit *mu = mt_unit(f.run, u);
		struct tile tile = {.w = e->w,
			.lo = f.dtype == MT_BF16 ? e->lo : NULL,
			.m = e->m,
			.v = mu->v ? e->v : NULL,
			.optim = f.rule,
			.state = f.state,
			.m_scale = int8_scales(e->m, e->elems),
			.v_scale = int8_scales(e->v, e->elems),
			.g = {e->g[0], ends(u) == 2 ? e->g[1] : NULL},
			.g_bf16 = f.grad == MT_BF16};
		for (uint32_t i = 0; i < mu->tensors; i++) {
			const struct mt_tensor *x = mt_tensor(f.run, mu->first_tensor + i);
			uint64_t next = i + 1 < mu->tensors ? mt_tensor(f.run, mu->first_tensor + i + 1)->off : e->elems;
			CHECK(x->off % MT_GROUP == 0 || x->decay == mt_tensor(f.run, mu->first_tensor + i - 1)->decay,
				"decay in a group");
			/* a group that a slab's next tensor begins in belongs to the tensor before */
			update_scalar(&a, &tile, &partition, partition_tag(t->step, u), (x->off + MT_GROUP - 1) / MT_GROUP,
				(next + MT_GROUP - 1) / MT_GROUP, x->decay ? a.decay : a.no_decay);
		}
	}
}

static void fold(const void *p, size_t n) /* FNV-1a by 8 bytes */
{
	for (size_t i = 0; i + 8 <= n; i += 8) {
		uint64_t x;
		memcpy(&x, (const uint8_t *)p + i, 8);
		f.hash = (f.hash ^ x) * 1099511628211u;
	}
}

/* The update of a step that is done is in the files, too */
static void wait_written(void)
{
	for (double start = mt_now(); f.dir && mt_tier_settled(f.run); usleep(200))
		CHECK(mt_now() - start < 60, "%s", mt_errmsg());
}

static void compare_state(bool with_g)
{
	wait_written();
	for (uint32_t u = 0; u < f.control->n_units; u++) {
		const struct mt_unit *mu = mt_unit(f.run, u);
		struct expected *e = &f.unit[u];
		CHECK(mt_version(f.run, u) == f.step, "unit %u is at version %llu", u,
			(unsigned long long)mt_version(f.run, u));
		CHECK(!memcmp(mt_at(f.run, mu->w), e->w, e->elems * (f.dtype == MT_BF16 ? 2 : 4)), "unit %u: w differs", u);
		if (mu->lo) CHECK(!memcmp(mt_at(f.run, mu->lo), e->lo, e->elems * 2), "unit %u: lo differs", u);
		CHECK(!memcmp(mt_at(f.run, mu->m), e->m, moment_bytes(e->elems)), "unit %u: m differs", u);
		if (mu->v) CHECK(!memcmp(mt_at(f.run, mu->v), e->v, moment_bytes(e->elems)), "unit %u: v differs", u);
		for (uint32_t end = 0; with_g && end < ends(u); end++)
			CHECK(!memcmp(mt_at(f.run, mu->g[end]), e->g[end], e->elems * grad_bytes()), "unit %u: g differs", u);
	}
}

/* ---- mt-tier */

static _Noreturn void be_tier(void)
{
	struct mt_run *run;
	if (mt_run_open(&run, f.name, MT_RUN_WEIGHTS) || mt_tier_map(run, false) || mt_stage_claim(run, MT_TIER, NULL))
		_exit(1);
	f.control = mt_control(run);
	for (;;) {
		uint32_t seen = mt_event(run);
		uint64_t loaded = mt_tier_at(run, MT_LOADED), updated = mt_tier_at(run, MT_UPDATED);
		uint64_t written = mt_tier_at(run, MT_WRITTEN);
		bool reads = loaded < written + f.control->tier.slots, writes = written < updated;
		if (mt_tier_check(run)) _exit(1);
		if (!reads && !writes) mt_wait(run, seen, 20);
		else if (reads && (!writes || rnd() % 2)) move_tile(run, loaded, true), mt_tier_count(run, MT_LOADED, loaded);
		else move_tile(run, written, false), mt_tier_count(run, MT_WRITTEN, written);
		if (rnd() % 4 == 0) usleep((useconds_t)(rnd() % 500));
	}
}

/* For kill=S seconds, and on a slow machine until each was killed once */
static bool killing(void) { return f.kill && (mt_now() < f.kill_until || !f.kills || (f.dir && !f.tier_kills)); }

static void spawn_tier(void)
{
	uint64_t seed = rnd();
	if (!f.dir || (f.tier = fork_child())) return;
	rnd_state = seed;
	be_tier();
}

static void look_after_tier(void)
{
	int status;
	if (f.tier <= 0) return;
	if (waitpid(f.tier, &status, WNOHANG) == f.tier) {
		f.tier = 0;
		CHECK(false, "the tier ended by itself (status %x)", status);
	}
	if (!killing() || rnd() % 64 || !mt_stage_alive(f.run, MT_TIER)) return;
	end_process(&f.tier);
	f.tier_kills++;
	spawn_tier();
}

/* ---- mt-optim */

/* Units that are updated before the commit of the open step, wholly or in part */
static uint32_t early_units(void)
{
	uint32_t n = 0;
	for (uint32_t u = 0; u < f.control->n_units && f.grad != MT_NONE; u++)
		n += atomic_load(&mt_unit(f.run, u)->applied) >> 2 == mt_version(f.run, u) + 1;
	return n;
}

static void spawn(int errors)
{
	struct update_isa isas[UPDATE_ISAS];
	char threads[16];
	uint64_t n = f.kill ? 1 + rnd() % 4 : f.threads, n_isas = (uint64_t)update_isas(isas);
	const char *isa = f.kill ? isas[rnd() % n_isas].name : "";
	snprintf(threads, sizeof threads, "%d", (int)n);
	f.optim = fork_child();
	if (f.optim) return;
	if (errors >= 0) dup2(errors, 2);
	setenv("MT_ISA", isa, 1);
	execlp("mt-optim", "mt-optim", f.name, "--threads", threads, "--update", f.early ? "early" : "late", (char *)NULL);
	_exit(127);
}

static void look_after_optim(void)
{
	int status;
	if (waitpid(f.optim, &status, WNOHANG) == f.optim) {
		f.optim = 0;
		CHECK(false, "mt-optim ended by itself (status %x)", status);
	}
	if (!killing() || mt_now() < f.next_kill) return;
	if (!mt_stage_alive(f.run, MT_OPTIM)) return; /* it has not started yet */
	enum mt_phase p = mt_word_phase(mt_txn_word(f.run, f.k));
	if (f.kill_in_apply && p != MT_APPLY) return;
	if (f.kill_early && !early_units()) return;
	if (f.kill_in_apply || f.kill_early) usleep((useconds_t)(rnd() % 300));
	p = mt_word_phase(mt_txn_word(f.run, f.k));
	kill(f.optim, SIGKILL);
	waitpid(f.optim, NULL, 0);
	f.kills++;
	f.kills_early += p == MT_ACCUMULATE && early_units() > 0;
	f.kills_in_apply += p == MT_APPLY;
	spawn(-1);
	f.kill_early = f.early && rnd() % 2;
	f.kill_in_apply = !f.kill_early && rnd() % 4;
	f.next_kill = mt_now() + (f.kill_in_apply || f.kill_early ? 0 : 0.0005 * (double)(rnd() % 100));
}

/* ---- mt-step and mt-streams */

static struct mt_txn *open_txn(uint32_t k, enum mt_kind kind, uint64_t step)
{
	struct mt_txn *t = mt_txn(f.run, k);
	uint64_t old = atomic_load(&t->word);
	t->step = step;
	t->kind = kind;
	t->micros = kind == MT_TRAIN && f.grad == MT_NONE ? 1 : (uint32_t)f.micros;
	t->targets = kind == MT_TRAIN && what_of(step) == NO_TARGETS ? 0 : 100 * t->micros;
	t->lr = 1e-3 / (double)step, t->beta1 = 0.9, t->beta2 = 0.999, t->eps = 1e-8, t->decay = 0.1;
	t->clip = f.grad == MT_NONE || !f.clips ? 0 : step % 2 ? 1 : 100;
	t->save = kind == MT_TRAIN && !f.plain && step % 3 == 0;
	t->position = (struct mt_position){.records = 10 * step, .seq = 7};
	CHECK(mt_txn_cas(f.run, k, old, mt_word(k, mt_attempt_next(f.run), MT_ACCUMULATE)), "txn %u could not be opened",
		k);
	return t;
}

static void add_message(struct sender *s, const struct mt_msg *m)
{
	if (s->n == s->room) s->msgs = realloc(s->msgs, (s->room = s->room * 2 + 64) * sizeof *s->msgs);
	s->msgs[s->n++] = *m;
}

/* --grad none: units in any order, the pieces of each from 0 upward */
static void in_order(struct sender *s, uint32_t first)
{
	uint64_t next[MT_SLOTS] = {0};
	for (uint32_t i = first; i < s->n; i++)
		for (uint32_t j = i; j < s->n; j++) {
			struct mt_msg x = s->msgs[j];
			if (x.grad.unit != s->msgs[i].grad.unit || x.grad.off != next[x.grad.unit]) continue;
			s->msgs[j] = s->msgs[i];
			s->msgs[i] = x;
			next[x.grad.unit] += x.grad.n;
			break;
		}
}

/* Every other piece is followed by one that was sent before */
static void send_twice(struct sender *s, uint32_t first)
{
	uint32_t n = s->n - first;
	struct mt_msg *all = zeros(n * sizeof *all);
	memcpy(all, s->msgs + first, n * sizeof *all);
	s->n = first;
	for (uint32_t i = 0; i < n; i++) {
		add_message(s, &all[i]);
		if (rnd() % 2) add_message(s, &all[rnd() % (i + 1)]);
	}
	free(all);
}

/* Figures of every other step, and of evaluations; a sum in another order has other bits */
static double figure_of(uint64_t step, uint32_t micro, int i)
{
	return step % 2 ? 0 : 0.1 * (double)step + pow(0.3, micro) * (i - 2.7);
}

static void verify_figures(const struct mt_txn *t)
{
	for (int i = 0; i < MT_STEP_FIGURES; i++) {
		double sum = 0;
		for (uint32_t micro = 0; micro < t->micros; micro++) sum += figure_of(t->step, micro, i);
		CHECK(t->figures[i] == sum, "figure %d: %.17g, not %.17g", i, t->figures[i], sum);
	}
}

/* All messages of one micro-batch: its figures, its loss, then its pieces in random order (--grad none: of units), cut
 * at random. */
static void list_micro(struct sender *s, uint32_t k, uint32_t attempt, const struct mt_txn *t, uint32_t micro)
{
	enum what what = t->kind == MT_TRAIN ? what_of(t->step) : NORMAL;
	struct mt_msg m = {.k = k,
		.attempt = attempt,
		.kind = MT_MSG_LOSS,
		.txn_kind = (uint16_t)t->kind,
		.micro = micro,
		.step = t->step};
	if (t->step % 2 == 0) {
		struct mt_msg figures = m;
		figures.kind = MT_MSG_FIGURES;
		for (int i = 0; i < MT_STEP_FIGURES; i++) figures.figures.figures[i] = figure_of(t->step, micro, i);
		add_message(s, &figures);
	}
	m.loss.sum = what == NAN_LOSS && micro == t->micros - 1 ? NAN : (double)(t->step * 10 + micro);
	m.loss.targets = t->targets / t->micros;
	add_message(s, &m);
	if (t->kind == MT_EVAL) return;
	m.kind = MT_MSG_GRAD;
	uint32_t first = s->n;
	for (uint32_t i = 0; i < f.control->n_units; i++) {
		uint32_t u = f.backward ? f.control->n_units - 1 - i : i;
		for (uint32_t end = 0; end < ends(u); end++)
			for (uint64_t off = 0, n; off < f.unit[u].elems; off += n) {
				uint64_t most = f.control->piece_elems / MT_BLOCK;
				n = min64(f.unit[u].elems - off, MT_BLOCK * (1 + rnd() % most));
				m.grad.unit = u, m.grad.end = end, m.grad.off = off, m.grad.n = n;
				add_message(s, &m);
			}
	}
	for (uint32_t i = s->n - 1; i > first && !f.backward; i--) {
		uint32_t j = first + (uint32_t)(rnd() % (i - first + 1));
		struct mt_msg x = s->msgs[i];
		s->msgs[i] = s->msgs[j];
		s->msgs[j] = x;
	}
	if (f.grad == MT_NONE) in_order(s, first);
	if (f.grad == MT_NONE && f.twice) send_twice(s, first);
}

static void list_try(uint32_t k, uint32_t attempt)
{
	const struct mt_txn *t = mt_txn(f.run, k);
	f.k = k;
	f.attempt = attempt;
	for (uint32_t s = 0; s < f.streams; s++) f.sender[s].n = f.sender[s].at = 0;
	uint64_t deal = f.grad == MT_NONE ? t->step : 0;
	for (uint32_t micro = 0; micro < t->micros; micro++)
		list_micro(&f.sender[(micro + deal) % f.streams], k, attempt, t, micro);
}

static bool push_one(struct sender *s)
{
	void *block;
	if (s->at == s->n || !(block = mt_ring_reserve(s->ring))) return false;
	const struct mt_msg *m = &s->msgs[s->at++];
	if (m->kind == MT_MSG_GRAD)
		make_gradient(block, m->step, m->micro, m->grad.unit, m->grad.end, m->grad.off, m->grad.n);
	mt_ring_push(s->ring, m);
	return true;
}

/* The unit of a turn is not published before those of earlier turns. (--grad none: as pieces come; tiles may
 * be in the order of the backward pass) */
static void check_turns(void)
{
	uint64_t later = 0;
	for (uint32_t turn = f.control->n_units; turn-- > 0;) {
		uint64_t at = mt_version(f.run, mt_unit_of_turn(&f.control->geo, turn));
		CHECK(at >= later || f.grad == MT_NONE || (f.dir && f.early), "turn %u came too late", turn);
		later = at;
	}
}

/* Send, abort and kill until txn k is past accumulate (until == APPLY) or done (DONE). */
static void drive(uint32_t k, enum mt_phase until)
{
	int aborts = f.aborts ? (int)(rnd() % 3) : 0;
	double start = mt_now();
	for (;;) {
		uint32_t seen = mt_event(f.run);
		uint64_t w = mt_txn_word(f.run, k);
		enum mt_phase p = mt_word_phase(w);
		CHECK(mt_word_k(w) == k, "txn %u is gone", k);
		check_turns();
		if (p == MT_ACCUMULATE && f.begun < early_units()) f.begun = early_units();
		if (p >= until) return;
		if (p == MT_ACCUMULATE && (f.k != k || f.attempt != mt_word_attempt(w))) list_try(k, mt_word_attempt(w));
		bool sends = p == MT_ACCUMULATE || (p == MT_APPLY && f.grad == MT_NONE);
		bool sent = sends && push_one(&f.sender[rnd() % f.streams]);
		for (uint32_t s = 0; sends && !sent && s < f.streams; s++) sent = push_one(&f.sender[s]);
		if (p == MT_ACCUMULATE && aborts && rnd() % 20 == 0) {
			aborts--;
			mt_txn_cas(f.run, k, w, mt_word(k, mt_attempt_next(f.run), MT_ACCUMULATE));
		}
		look_after_optim();
		look_after_tier();
		CHECK(mt_now() - start < 60, "nothing moves: phase %d", p);
		if (!sent && !f.kill_in_apply) mt_wait(f.run, seen, f.kill ? 1 : 20);
	}
}

static void verify_outcome(const struct mt_txn *t)
{
	enum what what = what_of(t->step);
	double norm = NAN, factor = 1;
	for (uint32_t i = 0; i < t->micros; i++) {
		bool bad = what == NAN_LOSS && i == t->micros - 1;
		CHECK(t->losses[i].entered && t->losses[i].nonfinite == bad, "micro %u's loss flags", i);
		CHECK(bad || t->losses[i].sum == (double)(t->step * 10 + i), "micro %u's loss", i);
	}
	verify_figures(t);
	expect_gather(t->step, t->micros, &norm);
	CHECK(t->skipped == (what != NORMAL), "skipped is %u", t->skipped);
	f.t += what == NORMAL;
	CHECK(t->t == f.t, "t is %llu, not %llu", (unsigned long long)t->t, (unsigned long long)f.t);
	if (f.grad == MT_NONE) CHECK(isnan(t->norm), "a norm");
	else if (isfinite(norm)) {
		CHECK(fabs(t->norm - norm) <= 1e-10 * norm, "norm %.17g, not %.17g", t->norm, norm);
		fold(&t->norm, 8);
	} else CHECK(!isfinite(t->norm), "norm %g", t->norm);
	if (what != NORMAL) return;
	if (t->clip > 0 && t->clip / (t->norm + 1e-6) < 1) factor = t->clip / (t->norm + 1e-6);
	CHECK(t->clip_factor == factor, "clip factor %.17g, not %.17g", t->clip_factor, factor);
	expect_update(t, factor);
}

static void log_txn(uint32_t k)
{
	uint64_t w = mt_txn_word(f.run, k);
	CHECK(mt_txn_cas(f.run, k, w, mt_word(k, mt_word_attempt(w), MT_LOGGED)), "txn %u could not be logged", k);
}

static void train(void)
{
	uint32_t k = 1;
	open_txn(k, MT_TRAIN, 1);
	for (uint64_t step = 1; step <= f.steps; step++) {
		drive(k, MT_APPLY);
		bool eval = step % 4 == 0;
		/* the next one is open while this one is applied */
		if (eval || step < f.steps) open_txn(k + 1, eval ? MT_EVAL : MT_TRAIN, step + !eval);
		drive(k, MT_DONE);
		f.step = step;
		verify_outcome(mt_txn(f.run, k));
		compare_state(f.grad != MT_NONE && !f.early);
		if (step % 3 == 0)
			CHECK(atomic_load(&f.control->snap.word) == mt_snap_word(step, MT_FAILED),
				"the save without a saver did not fail");
		log_txn(k++);
		if (!eval) continue;
		drive(k, MT_DONE);
		const struct mt_txn *t = mt_txn(f.run, k);
		CHECK(t->t == f.t && !t->skipped && t->losses[t->micros - 1].entered, "the evaluation's record");
		verify_figures(t);
		if (step < f.steps) open_txn(k + 1, MT_TRAIN, step + 1);
		log_txn(k++);
	}
	wait_written();
	for (uint32_t u = 0; u < f.control->n_units; u++) {
		const struct mt_unit *mu = mt_unit(f.run, u);
		fold(mt_at(f.run, mu->w), mu->elems * (f.dtype == MT_BF16 ? 2 : 4));
		if (mu->lo) fold(mt_at(f.run, mu->lo), mu->elems * 2);
		fold(mt_at(f.run, mu->m), moment_bytes(mu->elems));
		if (mu->v) fold(mt_at(f.run, mu->v), moment_bytes(mu->elems));
	}
}

/* SIGTERM with nothing open: exit 0, slot given back. */
static void stop_optim(void)
{
	int status;
	while (!mt_stage_alive(f.run, MT_OPTIM)) usleep(1000);
	kill(f.optim, SIGTERM);
	waitpid(f.optim, &status, 0);
	f.optim = 0;
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "mt-optim's exit status is %x", status);
	CHECK(mt_stage_pid(f.run, MT_OPTIM) == 0, "mt-optim's slot is still taken");
}

/* ---- other tests */

/* Messages that mt-optim drops, because its replacement aborted their attempt, are sent again under the new one. */
static void push_bad(const struct mt_msg *bad)
{
	struct mt_msg m = *bad;
	m.k += 1;
	m.attempt = mt_word_attempt(mt_txn_word(f.run, 1));
	void *block = mt_ring_reserve(f.sender[0].ring);
	CHECK(block, "no room in the ring");
	memset(block, 0, MT_BLOCK * 4);
	mt_ring_push(f.sender[0].ring, &m);
}

/* mt-optim must exit with this code and one line, which is printed. */
static void ends_with(int code, int errors, const struct mt_msg *again)
{
	int status;
	char line[2048];
	double start = mt_now();
	while (waitpid(f.optim, &status, WNOHANG) != f.optim) {
		CHECK(mt_now() - start < 60, "mt-optim goes on");
		if (again && mt_stage_alive(f.run, MT_OPTIM) && !mt_ring_used(f.sender[0].ring)) push_bad(again);
		usleep(1000);
	}
	f.optim = 0;
	ssize_t n = read(errors, line, sizeof line - 1);
	line[n < 0 ? 0 : n] = 0;
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == code, "mt-optim's status is %x, not exit %d; it says: %s", status,
		code, line);
	CHECK(n > 0 && strchr(line, '\n') == line + n - 1, "not one line: %s", line);
	printf("%s", line);
}

/* Each message with a wrong field ends mt-optim with 70 before a byte of the store changes. */
static void bad_scene(void)
{
	struct mt_msg bad[16];
	int n = 0;
	for (int i = 0; i < 16; i++) {
		bad[i] = (struct mt_msg){.kind = MT_MSG_GRAD, .txn_kind = MT_TRAIN, .step = 1};
		bad[i].grad.n = MT_BLOCK;
	}
	bad[n++].grad.unit = f.control->n_units;
	bad[n++].grad.unit = UINT32_MAX;
	bad[n++].grad.end = 2;
	bad[n].grad.unit = 1, bad[n++].grad.end = 1;
	bad[n++].grad.off = 64;
	bad[n++].grad.off = (uint64_t)1 << 40;
	bad[n++].grad.off = -(uint64_t)MT_BLOCK;
	bad[n++].grad.n = 0;
	bad[n++].grad.n = MT_BLOCK + 64;
	bad[n++].grad.n = -(uint64_t)MT_BLOCK;
	bad[n++].grad.n = f.control->piece_elems + MT_BLOCK;
	bad[n++].micro = (uint32_t)f.micros;
	bad[n++].kind = 77;
	bad[n++].txn_kind = MT_EVAL;
	bad[n++].step = 2;
	bad[n++].k = 2;
	open_txn(1, MT_TRAIN, 1);
	for (int i = 0; i < n; i++) {
		int p[2];
		if (pipe(p)) finish(1);
		spawn(p[1]);
		close(p[1]);
		ends_with(MT_EX_BUG, p[0], &bad[i]);
		close(p[0]);
	}
	compare_state(true);
}

/* A process that only holds the slot until it is killed. */
static pid_t hold_slot(int slot)
{
	struct mt_run *run;
	pid_t pid = fork_child();
	if (pid == 0) {
		if (mt_run_open(&run, f.name, MT_RUN_CONTROL) || mt_stage_claim(run, slot, NULL)) _exit(1);
		for (;;) pause();
	}
	while (!mt_stage_alive(f.run, slot)) usleep(500);
	return pid;
}

static void wait_activity(enum mt_activity d)
{
	double start = mt_now();
	while (atomic_load(&f.control->slots[MT_OPTIM].activity) != (uint32_t)d) {
		CHECK(mt_now() - start < 60, "mt-optim does not come to %d", d);
		usleep(500);
	}
}

static void end_step(uint32_t k)
{
	drive(k, MT_DONE);
	f.step = mt_txn(f.run, k)->step;
	verify_outcome(mt_txn(f.run, k));
	compare_state(true);
	log_txn(k);
}

/* Pins delay the update unit by unit; a saver's death clears them; an unfinished save delays the next one. */
static void save_scene(void)
{
	struct mt_snapshot *snap = &f.control->snap;
	struct mt_ring *save;
	struct mt_msg m;
	f.plain = 1;
	pid_t saver = hold_slot(MT_CKPT);
	CHECK(!mt_ring_open(f.run, "save", &save), "%s", mt_errmsg());
	spawn(-1);
	open_txn(1, MT_TRAIN, 1)->save = 1;
	end_step(1);
	CHECK(atomic_load(&snap->word) == mt_snap_word(1, MT_PINNED), "not pinned");
	CHECK(snap->t == 1 && snap->position.records == 10, "the snapshot's record");
	CHECK(mt_ring_peek(save, 0, &m, NULL) && m.kind == MT_MSG_SAVE && m.step == 1, "no wake-up");
	mt_ring_pop(save);

	open_txn(2, MT_TRAIN, 2)->save = 1;
	for (uint32_t turn = 0, before = 0; turn < f.control->n_units;
		 turn++) { /* the saver clears one pin after the other */
		uint32_t u = mt_unit_of_turn(&f.control->geo, turn);
		CHECK(atomic_load(&mt_unit(f.run, u)->pin) == 1, "unit %u is not pinned", u);
		drive(2, MT_APPLY);
		wait_activity(MT_ACT_WAIT_PIN);
		CHECK(mt_version(f.run, u) == 1 && (!turn || mt_version(f.run, before) == 2), "unit %u's version", u);
		const struct mt_unit *mu = mt_unit(f.run, u);
		CHECK(!memcmp(mt_at(f.run, mu->m), f.unit[u].m, moment_bytes(f.unit[u].elems)), "unit %u was touched", u);
		atomic_store(&mt_unit(f.run, u)->pin, 0);
		mt_wake(f.run);
		for (double start = mt_now(); mt_version(f.run, u) == 1; usleep(500))
			CHECK(mt_now() - start < 60, "unit %u is not updated", u);
		before = u;
	}
	wait_activity(MT_ACT_WAIT_SAVE); /* the word is (1, pinned): step 2 cannot be pinned yet */
	CHECK(atomic_load(&snap->word) == mt_snap_word(1, MT_PINNED), "the snapshot's word");
	atomic_store(&snap->word, mt_snap_word(1, MT_SEALED));
	mt_wake(f.run);
	usleep(1000);
	CHECK(atomic_load(&snap->word) == mt_snap_word(1, MT_SEALED), "a sealed save was overtaken");
	atomic_store(&snap->word, mt_snap_word(1, MT_SAVED));
	mt_wake(f.run);
	end_step(2);
	CHECK(atomic_load(&snap->word) == mt_snap_word(2, MT_PINNED), "step 2 is not pinned");

	open_txn(3, MT_TRAIN, 3);
	drive(3, MT_APPLY);
	wait_activity(MT_ACT_WAIT_PIN);
	kill(saver, SIGKILL);
	waitpid(saver, NULL, 0);
	end_step(3);
	CHECK(atomic_load(&snap->word) == mt_snap_word(2, MT_FAILED), "a dead saver's save did not fail");
	CHECK(mt_snap_failures(f.run) == 1, "failed saves: %d", (int)mt_snap_failures(f.run));
	stop_optim();
}

/* --grad none: a first piece from the middle of a unit is refused before the commit, a later one after it; both are
 * reported. */
static void hole_scene(void)
{
	int p[2];
	struct mt_msg bad = {.kind = MT_MSG_GRAD, .txn_kind = MT_TRAIN, .step = 1};
	f.plain = 1;
	for (int after = 0; after < 2; after++) {
		if (pipe(p)) finish(1);
		spawn(p[1]);
		close(p[1]);
		if (!after) open_txn(1, MT_TRAIN, 1);
		while (!mt_stage_alive(f.run, MT_OPTIM)) usleep(500);
		uint32_t attempt = mt_word_attempt(mt_txn_word(f.run, 1));
		list_try(1, attempt);
		struct sender *s = &f.sender[0];
		push_one(s); /* the loss */
		if (after) push_one(s);
		void *block;
		while (!(block = mt_ring_reserve(s->ring))) usleep(500);
		memset(block, 0, MT_BLOCK * 4);
		bad.k = 1, bad.attempt = attempt;
		/* the middle of a unit without earlier pieces */
		bad.grad.unit = (s->msgs[1].grad.unit + 1) % f.control->n_units;
		bad.grad.off = MT_BLOCK, bad.grad.n = MT_BLOCK;
		if (f.unit[bad.grad.unit].elems < 2 * MT_BLOCK) bad.grad.unit = 1;
		mt_ring_push(s->ring, &bad);
		ends_with(MT_EX_BUG, p[0], NULL);
		CHECK((mt_run_state(f.run) == MT_DIRTY) == after, "dirty before the commit, or not after it");
		if (!after) compare_state(false);
		close(p[0]);
		while (mt_ring_used(s->ring)) mt_ring_pop(s->ring);
	}
}

/* --grad none: after the commit, an unusable piece or a dead stream leaves a dirty store, which is reported. */
static void direct_scene(bool nan)
{
	int p[2];
	pid_t stream = hold_slot(MT_STREAM);
	if (pipe(p)) finish(1);
	spawn(p[1]);
	close(p[1]);
	open_txn(1, MT_TRAIN, 1);
	drive(1, MT_APPLY);
	if (nan) {
		struct mt_msg m;
		void *block;
		while (!(block = mt_ring_reserve(f.sender[0].ring))) usleep(500);
		m = f.sender[0].msgs[f.sender[0].at];
		make_gradient(block, 1, 0, m.grad.unit, 0, m.grad.off, m.grad.n);
		((float *)block)[m.grad.n - 1] = NAN;
		mt_ring_push(f.sender[0].ring, &m);
	}
	kill(stream, SIGKILL);
	waitpid(stream, NULL, 0);
	ends_with(nan ? MT_EX_DATA : MT_EX_PEER, p[0], NULL);
	CHECK(mt_run_state(f.run) == MT_DIRTY, "the store is not dirty");
}

/* Wait until units are updated before the commit of txn k, with all but the last piece sent. */
static void until_begun(uint32_t k)
{
	double start = mt_now();
	struct sender *s = &f.sender[0];
	list_try(k, mt_word_attempt(mt_txn_word(f.run, k)));
	while (s->at + 1 < s->n || early_units() + 1 < f.control->n_units) {
		if (s->at + 1 < s->n && push_one(s)) continue;
		CHECK(mt_now() - start < 60, "%u units are updated before the commit", early_units());
		usleep(500);
	}
}

static void push_nan(void)
{
	void *block;
	struct sender *s = &f.sender[0];
	const struct mt_msg *m = &s->msgs[s->at++];
	while (!(block = mt_ring_reserve(s->ring))) usleep(500);
	make_gradient(block, m->step, 0, m->grad.unit, m->grad.end, m->grad.off, m->grad.n);
	((float *)block)[0] = NAN;
	mt_ring_push(s->ring, m);
}

/* --update early: the first gradient is not finite: the step is skipped. In the next step it is the last one, when
 * other units are updated: the store is dirty, although all w are those of the step before. */
static void early_nan_scene(void)
{
	int p[2];
	f.plain = 1;
	if (pipe(p)) finish(1);
	spawn(p[1]);
	close(p[1]);
	open_txn(1, MT_TRAIN, 1);
	list_try(1, mt_word_attempt(mt_txn_word(f.run, 1)));
	CHECK(push_one(&f.sender[0]), "no room for the loss");
	push_nan();
	drive(1, MT_DONE);
	CHECK(mt_txn(f.run, 1)->skipped && !f.begun, "the step was not skipped");
	f.step = 1;
	compare_state(false);
	log_txn(1);
	open_txn(2, MT_TRAIN, 2);
	until_begun(2);
	push_nan();
	ends_with(MT_EX_DATA, p[0], NULL);
	CHECK(mt_run_state(f.run) == MT_DIRTY, "the store is not dirty");
	for (uint32_t u = 0; u < f.control->n_units; u++)
		CHECK(!memcmp(mt_at(f.run, mt_unit(f.run, u)->w), f.unit[u].w, f.unit[u].elems * 2), "unit %u: w", u);
}

/* --update early: a step of which units are updated is finished with the same bits after mt-optim was killed and
 * mt-step has opened it again, not with other options, and nothing is copied from the run before. */
static void early_other_scene(void)
{
	int p[2];
	struct mt_sample sample;
	f.plain = 1;
	CHECK(!mt_sample_take(f.run, &sample), "%s", mt_errmsg());
	spawn(-1);
	struct mt_txn *t = open_txn(1, MT_TRAIN, 1);
	until_begun(1);
	kill(f.optim, SIGKILL);
	waitpid(f.optim, NULL, 0);
	uint64_t w = mt_txn_word(f.run, 1);
	CHECK(mt_txn_cas(f.run, 1, w, mt_word(1, mt_word_attempt(w), MT_CLOSED)), "not withdrawn");
	CHECK(mt_sample_holds(f.run, &sample) == -MT_EX_BUSY, "a copy holds");
	CHECK(mt_sample_take(f.run, &sample) == -MT_EX_BUSY, "half a step may be copied");
	printf("%s\n", mt_errmsg());
	if (pipe(p)) finish(1);
	spawn(p[1]);
	close(p[1]);
	open_txn(1, MT_TRAIN, 1);
	w = mt_txn_word(f.run, 1);
	t->lr *= 2;
	mt_txn_cas(f.run, 1, w, mt_word(1, mt_attempt_next(f.run), MT_ACCUMULATE));
	ends_with(MT_EX_CONFIG, p[0], NULL);
	CHECK(mt_run_state(f.run) == MT_FILLED, "the store is dirty");
	w = mt_txn_word(f.run, 1);
	CHECK(mt_txn_cas(f.run, 1, w, mt_word(1, mt_word_attempt(w), MT_CLOSED)), "not withdrawn");
	open_txn(1, MT_TRAIN, 1);
	f.early = 0; /* whoever comes then */
	spawn(-1);
	drive(1, MT_DONE);
	f.step = 1;
	verify_outcome(mt_txn(f.run, 1));
	compare_state(false);
	log_txn(1);
	CHECK(!mt_sample_take(f.run, &sample), "%s", mt_errmsg());
	stop_optim();
}

/* Asked to stop while mt-tier is dead, mt-optim ends in the middle of the step, even if an mt-step drives it; the next
 * one goes on there. */
static void tier_stop_scene(void)
{
	int p[2], status;
	f.plain = 1;
	if (pipe(p)) finish(1);
	pid_t step = hold_slot(MT_STEP);
	spawn(p[1]);
	close(p[1]);
	open_txn(1, MT_TRAIN, 1);
	list_try(1, mt_word_attempt(mt_txn_word(f.run, 1)));
	for (double start = mt_now(); atomic_load(&f.control->slots[MT_OPTIM].activity) != MT_ACT_WAIT_TIER; usleep(200)) {
		for (uint32_t s = 0; s < f.streams; s++) push_one(&f.sender[s]);
		CHECK(mt_now() - start < 60, "mt-optim does not wait for the tier");
	}
	if (f.early) CHECK(f.sender[0].at == f.sender[0].n, "it waits before all pieces are in");
	kill(f.optim, SIGTERM);
	if (!f.early) ends_with(0, p[0], NULL);
	else waitpid(f.optim, &status, 0), f.optim = 0;
	if (f.early) CHECK(WIFEXITED(status) && !WEXITSTATUS(status), "mt-optim's exit status is %x", status);
	CHECK(atomic_load(&f.control->slots[MT_OPTIM].counters[MT_OPTIM_tier_wait_ns]) > 0, "no time waiting for mt-tier");
	spawn_tier();
	spawn(-1);
	if (f.early) open_txn(1, MT_TRAIN, 1);
	drive(1, MT_DONE);
	f.step = 1;
	verify_outcome(mt_txn(f.run, 1));
	compare_state(f.grad != MT_NONE && !f.early);
	log_txn(1);
	end_process(&step);
	stop_optim();
}

/* ---- main */

static void create(void)
{
	struct mt_geometry geo = tiny_llama(2, 128, 1100,
		(struct mt_layer){.heads = 4, .kv_heads = 2, .head_dim = 32, .ffn = 500, .rope_scaling = 1});
	geo.flags = MT_MLP_BIAS | (f.tied ? MT_TIED : 0);
	if (f.ple) geo.ple_dim = 16, geo.ple_vocab = geo.vocab;
	struct mt_create c = {.name = f.name,
		.config_text = "{}",
		.config_bytes = 2,
		.dtype = f.dtype,
		.grad = f.grad,
		.state = f.state,
		.optim = f.rule,
		.step_tokens = 64,
		.tier = &f.dir,
		.tiers = f.dir ? 1 : 0,
		.tier_memory = f.memory,
		.tile_elems = MT_TILE_ALIGN,
		.slots = (uint32_t)f.slots,
		.order = f.early ? MT_BACKWARD_ORDER : MT_FORWARD_ORDER};
	mt_must(mt_run_create(&c, &geo));
	mt_must(mt_run_open(&f.run, f.name, MT_RUN_RINGS | MT_RUN_WEIGHTS));
	f.control = mt_control(f.run);
	for (uint32_t s = 0; s < f.streams; s++) {
		char name[16];
		snprintf(name, sizeof name, "grad.%u", s);
		mt_must(mt_ring_open(f.run, name, &f.sender[s].ring));
	}
	if (f.dir) mt_must(mt_tier_map(f.run, true));
	expect_init();
	mt_run_reset(f.run, 0, 0, NULL);
	mt_run_set_state(f.run, MT_FILLED);
}

static void option(const char *arg)
{
	static const struct {
		const char *key;
		uint64_t *value;
	} numbers[] = {
		{"tied", &f.tied},
		{"ple", &f.ple},
		{"streams", &f.streams},
		{"micros", &f.micros},
		{"threads", &f.threads},
		{"steps", &f.steps},
		{"seed", &f.seed},
		{"aborts", &f.aborts},
		{"kill", &f.kill},
		{"twice", &f.twice},
		{"clips", &f.clips},
		{"early", &f.early},
		{"backward", &f.backward},
		{"memory", &f.memory},
		{"slots", &f.slots},
	};
	static const char *const dtypes[] = {"", "bf16", "fp32", "none", "int8"};
	const char *value = strchr(arg, '=');
	if (!value++) mt_die(64, "%s: wants key=value", arg);
	if (!strncmp(arg, "tier=", 5)) {
		f.dir = value;
		return;
	}
	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
		if (!strncmp(arg, numbers[i].key, strlen(numbers[i].key)) && arg[strlen(numbers[i].key)] == '=')
			*numbers[i].value = strtoull(value, NULL, 10);
	if (mt_optim_named(value)) f.rule = mt_optim_named(value);
	for (int d = 1; d < 5; d++)
		if (!strcmp(value, dtypes[d]))
			*(arg[0] == 'd' ? &f.dtype : arg[0] == 'g' ? &f.grad : &f.state) = (enum mt_dtype)d;
}

int main(int argc, char **argv)
{
	if (argc < 3)
		mt_die(64,
			"usage: optim-fake train|bad|save|hole|dead-stream|nan-gradient|early-nan|early-other|tier-stop "
			"RUN [key=value ...]");
	f.name = argv[2];
	for (int i = 3; i < argc; i++) option(argv[i]);
	bool direct = !strcmp(argv[1], "dead-stream") || !strcmp(argv[1], "nan-gradient");
	bool early = !strncmp(argv[1], "early-", 6);
	if (direct || !strcmp(argv[1], "hole")) f.grad = MT_NONE, f.streams = 1;
	if (early) f.early = f.backward = f.micros = f.streams = 1, f.clips = 0;
	rnd_state = f.seed;
	flush_denormals();
	create();
	if (!strcmp(argv[1], "bad")) bad_scene();
	else if (!strcmp(argv[1], "save")) save_scene();
	else if (!strcmp(argv[1], "tier-stop")) tier_stop_scene();
	else if (!strcmp(argv[1], "hole")) hole_scene();
	else if (early) argv[1][6] == 'n' ? early_nan_scene() : early_other_scene();
	else if (direct) direct_scene(argv[1][0] == 'n');
	else {
		f.next_kill = mt_now();
		f.kill_until = f.next_kill + (double)f.kill;
		spawn_tier();
		spawn(-1);
		train();
		f.kill = 0;
		stop_optim();
		CHECK(!f.early || !f.backward || f.begun, "no unit was updated before a commit");
		if (f.kills)
			printf("%u kills, %u of them in apply, %u when units were updated early\n", f.kills, f.kills_in_apply,
				f.kills_early);
		if (f.tier_kills) printf("%u kills of the tier\n", f.tier_kills);
		printf("%016llx\n", (unsigned long long)f.hash);
	}
	finish(0);
}
