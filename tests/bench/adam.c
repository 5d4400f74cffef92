/* adam.c: bytes a second of the update, and of a loop that only reads and writes the same arrays, as JSON lines.
 * usage: adam [MILLIONS OF PARAMETERS [THREADS]] (default 32)
 * The loops take turns, and the best of their rounds counts: others may be using the machine. A parameter of a bf16 run
 * reads 16 bytes and writes 12. Without THREADS, all loops run on one thread. With THREADS, only those of the update
 * that mt-optim would choose run, to be compared with other optimizers. One thread is measured in CPU time, several in
 * wall time. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../../mt-optim/adamw.h"

enum { ROUNDS = 9, STATES = 3, ISAS = 3, THREADS_MOST = 1024 };

static double now(int threads)
{
	struct timespec t;
	clock_gettime(threads > 1 ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *array(uint64_t bytes)
{
	void *p = aligned_alloc(1 << 21, (bytes + (1 << 21) - 1) >> 21 << 21);
	if (!p) exit(71);
	memset(p, 0, bytes);
	return p;
}

/* Reads and writes the update's arrays, with almost no computation. */
static void touch(const struct adamw *a, const struct tile *t, struct mt_partition *partition, uint64_t tag,
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
	adamw_fn *fn; /* NULL: not on this CPU */
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
	struct adamw a = adamw_scalars(MT_ADAMW, 10, 1e-3, 0.9, 0.999, 1e-8, 0.1, 1);
	flush_denormals();
	if (s->start) pthread_barrier_wait(s->start);
	s->loop->fn(&a, s->loop->t, &s->partition, partition_tag(1, 0), s->first, s->end, 0.999f);
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
	double from = now(threads);
	work(&share[0]);
	for (int i = 1; i < threads; i++) pthread_join(share[i].thread, NULL);
	double took = now(threads) - from;
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
	double bytes = 12 + 4.0 * (double)mt_state_bytes(l->t->state, MT_GROUP) / MT_GROUP;
	printf("{\"bench\":\"adam\",\"loop\":\"%s\",\"params\":%llu,\"threads\":%d,\"gb_per_s\":%.2f,"
		   "\"gparams_per_s\":%.3f}\n",
		l->name, (unsigned long long)n, threads, (double)n * bytes * 1e-9 / l->best, (double)n * 1e-9 / l->best);
}

/* Every loop on one thread; scalar ones once, because they are slow */
static void all_loops(const struct tile *t, uint64_t n)
{
	__builtin_cpu_init();
	adamw_fn *avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? adamw_avx2 : NULL;
	adamw_fn *avx512 = __builtin_cpu_supports("avx512bw") ? adamw_avx512 : NULL;
	struct loop loops[1 + STATES * ISAS] = {{"reads and writes alone", touch, &t[0], 0},
		{"scalar", adamw_scalar, &t[0], 0}, {"avx2", avx2, &t[0], 0}, {"avx512", avx512, &t[0], 0},
		{"scalar, state bf16", adamw_scalar, &t[1], 0}, {"avx2, state bf16", avx2, &t[1], 0},
		{"avx512, state bf16", avx512, &t[1], 0}, {"scalar, state int8", adamw_scalar, &t[2], 0},
		{"avx2, state int8", avx2, &t[2], 0}, {"avx512, state int8", avx512, &t[2], 0}};
	for (int r = 0; r < ROUNDS; r++)
		for (int i = 0; i < 1 + STATES * ISAS; i++)
			if (loops[i].fn && (r == 0 || loops[i].fn != adamw_scalar)) measure(&loops[i], n, 1);
	for (int i = 0; i < 1 + STATES * ISAS; i++)
		if (loops[i].fn) print(&loops[i], n, 1);
}

/* The update that mt-optim would choose on this CPU, with each type of state */
static void chosen_loops(const struct tile *t, uint64_t n, int threads)
{
	adamw_fn *fn = adamw_choose();
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
	for (uint64_t i = 0; i < n; i++) {
		g[i] = (float)(i * 2654435761u % 1000) * 1e-5f;
		w[i] = mt_hi(mt_bits(0.01f));
	}
	struct tile t[STATES];
	for (int s = 0; s < STATES; s++) {
		t[s] = (struct tile){.w = w, .lo = (int16_t *)lo, .state = types[s], .g = {g, NULL}};
		t[s].m = array(mt_state_bytes(types[s], n));
		t[s].v = array(mt_state_bytes(types[s], n));
		t[s].m_scale = int8_scales(t[s].m, n);
		t[s].v_scale = int8_scales(t[s].v, n);
	}
	if (threads) chosen_loops(t, n, threads);
	else all_loops(t, n);
	return 0;
}
