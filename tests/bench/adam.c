/* adam.c: bytes a second of the update, and of a loop that only reads and writes the same arrays, as JSON lines.
 * usage: adam [MILLIONS OF PARAMETERS [THREADS]] (default 32)
 * The loops take turns, and the best of their rounds counts: others may be using the machine. A parameter of a bf16 run
 * reads 16 bytes and writes 12, with Lion and SGD 12 and 8; with bf16 gradients 2 less are read. Without THREADS, all
 * loops run on one thread. With THREADS, only those of the update that mt-optim would choose for AdamW run, to be
 * compared with other optimizers. One thread is measured in CPU time, several in wall time. */
#include <pthread.h>
#include <stdio.h>

#include "../../mt-optim/update.h"
#include "common.h"

enum { ROUNDS = 9, STATES = 3, RULES = 3, TILES = (RULES + 1) * STATES, THREADS_MOST = 1024 };

/* Reads and writes the update's arrays, with almost no computation. */
static void touch(const struct scalars *a, const struct tile *t, struct mt_partition *partition, uint64_t tag,
	uint64_t first, uint64_t end, float decay)
{
	(void)a, (void)partition, (void)tag;
	uint16_t *w = t->w;
	int16_t *lo = t->lo;
	const float *g = t->g[0];
	float *m = t->m, *v = t->v;
	for (uint64_t k = first; k < end; k++)
		for (uint64_t i = k * MT_GROUP; i < (k + 1) * MT_GROUP; i++) {
			w[i] = (uint16_t)(w[i] + 1);
			lo[i] = (int16_t)(lo[i] + 1);
			m[i] = m[i] * decay + g[i];
			v[i] = v[i] * decay + g[i];
		}
}

struct loop {
	const char *name;
	update_fn *fn;
	const struct tile *t;
	double best;
};

struct share { /* one thread's groups of an update */
	const struct loop *loop;
	uint64_t first, end;
	pthread_barrier_t *start; /* NULL: the only thread */
	pthread_t thread;
	struct mt_partition partition;
};

static void *work(void *arg)
{
	struct share *s = arg;
	struct scalars a = update_scalars(s->loop->t->optim, 10, &(struct mt_hyperparams){1e-3, 0.9, 0.999, 1e-8, 0.1, 0},
		1);
	flush_denormals();
	if (s->start) pthread_barrier_wait(s->start);
	s->loop->fn(&a, s->loop->t, &s->partition, partition_tag(1, 0), s->first, s->end, a.decay);
	return NULL;
}

/* Seconds from the moment when all threads are ready; this one is the first of them */
static double run(struct share *share, int threads)
{
	pthread_barrier_t start;
	if (threads > 1) pthread_barrier_init(&start, NULL, (unsigned)threads);
	for (int i = 0; i < threads; i++) share[i].start = threads > 1 ? &start : NULL;
	for (int i = 1; i < threads; i++)
		if (pthread_create(&share[i].thread, NULL, work, &share[i])) exit(71);
	clockid_t clock = threads > 1 ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID;
	double from = now(clock);
	work(&share[0]);
	for (int i = 1; i < threads; i++) pthread_join(share[i].thread, NULL);
	double took = now(clock) - from;
	if (threads > 1) pthread_barrier_destroy(&start);
	return took;
}

static void measure(struct loop *l, uint64_t n, int threads)
{
	static struct share share[THREADS_MOST];
	uint64_t groups = n / MT_GROUP;
	for (int i = 0; i < threads; i++) {
		share[i].loop = l;
		share[i].first = groups * (uint64_t)i / (uint64_t)threads;
		share[i].end = groups * (uint64_t)(i + 1) / (uint64_t)threads;
	}
	double took = run(share, threads);
	if (l->best == 0 || took < l->best) l->best = took;
}

static void print(const struct loop *l, uint64_t n, int threads)
{
	double bytes = (l->t->g_bf16 ? 10 : 12) +
		2.0 * mt_state_arrays(l->t->optim) * (double)mt_state_bytes(l->t->state, MT_GROUP) / MT_GROUP;
	printf("{\"bench\":\"adam\",\"loop\":\"%s\",\"params\":%llu,\"threads\":%d,\"gb_per_s\":%.2f,"
		   "\"gparams_per_s\":%.3f}\n",
		l->name, (unsigned long long)n, threads, (double)n * bytes * 1e-9 / l->best, (double)n * 1e-9 / l->best);
}

/* "avx512, lion, state bf16"; adamw and fp32 are not named */
static void name_loop(char name[48], const char *isa, const struct tile *t)
{
	bool adamw = t->optim == MT_ADAMW;
	snprintf(name, 48, "%s%s%s%s%s", isa, adamw ? "" : ", ", adamw ? "" : mt_optim_name(t->optim),
		t->state == MT_INT8       ? ", state int8"
			: t->state == MT_BF16 ? ", state bf16"
								  : "",
		t->g_bf16 ? ", gradients bf16" : "");
}

/* Every loop on one thread; scalar ones once, because they are slow */
static void all_loops(const struct tile *t, uint64_t n)
{
	static char names[TILES * UPDATE_ISAS][48];
	struct update_isa isas[UPDATE_ISAS];
	int n_isas = update_isas(isas), n_loops = 1 + TILES * n_isas;
	struct loop loops[1 + TILES * UPDATE_ISAS] = {{"reads and writes alone", touch, &t[0], 0}};
	for (int i = 0; i < TILES * n_isas; i++) {
		name_loop(names[i], isas[i % n_isas].name, &t[i / n_isas]);
		loops[1 + i] = (struct loop){names[i], isas[i % n_isas].update, &t[i / n_isas], 0};
	}
	for (int r = 0; r < ROUNDS; r++)
		for (int i = 0; i < n_loops; i++)
			if (r == 0 || loops[i].fn != update_scalar) measure(&loops[i], n, 1);
	for (int i = 0; i < n_loops; i++) print(&loops[i], n, 1);
}

/* AdamW's update that mt-optim would choose on this CPU, with each type of state */
static void chosen_loops(const struct tile *t, uint64_t n, int threads)
{
	update_fn *fn = update_choose();
	if (!fn) exit(69);
	struct loop loops[STATES] = {{"state fp32", fn, &t[0], 0}, {"state bf16", fn, &t[1], 0},
		{"state int8", fn, &t[2], 0}};
	for (int r = 0; r < ROUNDS; r++)
		for (int i = 0; i < STATES; i++) measure(&loops[i], n, threads);
	for (int i = 0; i < STATES; i++) print(&loops[i], n, threads);
}

int main(int argc, char **argv)
{
	static const enum mt_dtype types[STATES] = {MT_FP32, MT_BF16, MT_INT8};
	uint64_t n = (argc > 1 ? strtoull(argv[1], NULL, 10) : 32) << 20;
	int threads = argc > 2 ? atoi(argv[2]) : 0;
	if (!n || threads < 0 || threads > THREADS_MOST || (argc > 2 && !threads)) return 64;
	uint16_t *w = array(n * 2), *lo = array(n * 2);
	float *g = array(n * 4);
	uint16_t *g_bf16 = array(n * 2);
	for (uint64_t i = 0; i < n; i++) {
		g[i] = (float)(i * 2654435761u % 1000) * 1e-5f;
		g_bf16[i] = mt_hi(mt_bits(g[i]));
		w[i] = mt_hi(mt_bits(0.01f));
	}
	struct tile t[TILES]; /* adamw's first; last adamw's with bf16 gradients */
	for (int s = 0; s < STATES; s++) {
		t[s] = (struct tile){.w = w, .lo = (int16_t *)lo, .optim = MT_ADAMW, .state = types[s], .g = {g, NULL}};
		t[s].m = array(mt_moment_bytes(types[s], n));
		t[s].v = array(mt_moment_bytes(types[s], n));
		t[s].m_scale = int8_scales(t[s].m, n);
		t[s].v_scale = int8_scales(t[s].v, n);
		for (enum mt_optim optim = MT_LION; optim <= MT_SGD; optim++) {
			struct tile *other = &t[(optim - MT_ADAMW) * STATES + s];
			*other = t[s];
			other->optim = optim;
			other->v = other->v_scale = NULL;
		}
		struct tile *short_g = &t[RULES * STATES + s];
		*short_g = t[s];
		short_g->g[0] = g_bf16;
		short_g->g_bf16 = true;
	}
	if (threads) chosen_loops(t, n, threads);
	else all_loops(t, n);
	return 0;
}
