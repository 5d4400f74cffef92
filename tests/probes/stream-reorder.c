/* stream-reorder: does the chaos device perform every reordering that queues and events allow, and no other? For each
 * reordering there are a few launches, once synchronized correctly and once without the synchronization. With COUNT
 * seeds, the former must give the right result for every seed, the latter a wrong one for at least one seed.
 *
 *     stream-reorder COUNT        a line for each; 1: an allowed reordering never happened, or a forbidden one did
 */
#include <stdio.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "../../mt-stream/device/device.h"

#define N 64
#define BYTES (N * sizeof(float))

static struct device *d;
static float *a, *b; /* device memory, N each */
static float host[N], out[N];
static bool synchronized; /* with the synchronization that is needed */

static void fill(float *p, float x)
{
	for (int i = 0; i < N; i++) p[i] = x;
}

static bool holds(const float *p, float x)
{
	for (int i = 0; i < N; i++)
		if (p[i] != x) return false;
	return true;
}

static void copy(enum queue q, void *dst, const void *src)
{
	d->launch(d, q, &(struct op){OP_COPY, .copy = {dst, src, BYTES}});
}

/* Compute y from x: look up a row of x */
static void compute(float *y, const float *x)
{
	static const uint32_t first;
	d->launch(d, Q_COMPUTE,
		&(struct op){OP_EMBED_FORWARD,
			.embed_forward = {.x = y, .w = x, .tokens = &first, .n = 1, .h = N, .scale = 1}});
}

static void order(enum queue first, enum queue then)
{
	if (synchronized) d->wait(d, then, d->record(d, first));
}

static void finish(enum queue q) { d->sync(d, d->record(d, q)); }

/* ---- the reorderings ---- */

static bool source_read_late(void)
{
	fill(host, 1);
	copy(Q_WEIGHTS, a, host);
	if (synchronized) finish(Q_WEIGHTS);
	fill(host, 2);
	finish(Q_WEIGHTS);
	return holds(a, 1);
}

static bool source_read_early(void)
{
	fill(host, 1);
	if (synchronized) fill(host, 2);
	copy(Q_WEIGHTS, a, host);
	fill(host, 2);
	finish(Q_WEIGHTS);
	return holds(a, 2);
}

static bool weights_read_late(void)
{
	fill(host, 1);
	d->launch(d, Q_WEIGHTS,
		&(struct op){OP_WEIGHTS_IN, .weights_in = {.dst = a, .src = host, .n = N, .from = MT_FP32}});
	if (synchronized) finish(Q_WEIGHTS);
	fill(host, 2);
	finish(Q_WEIGHTS);
	return holds(a, 1);
}

static bool result_lands_late(void)
{
	fill(host, 1);
	copy(Q_COMPUTE, a, host);
	copy(Q_COMPUTE, out, a);
	if (synchronized) finish(Q_COMPUTE);
	bool right = holds(out, 1);
	finish(Q_COMPUTE);
	return right;
}

static bool gradients_land_late(void)
{
	fill(a, 1);
	d->launch(d, Q_COMPUTE, &(struct op){OP_GRADS_FINAL, .grads_final = {a, N, MT_FP32}});
	finish(Q_COMPUTE);
	d->launch(d, Q_GRADS,
		&(struct op){OP_GRADS_OUT, .grads_out = {.dst = out, .src = a, .n = N, .to = MT_FP32, .elems = N}});
	if (synchronized) finish(Q_GRADS);
	bool right = holds(out, 1);
	finish(Q_GRADS);
	return right;
}

static bool event_is_a_place(void)
{
	struct event e = d->record(d, Q_COMPUTE);
	fill(host, 1);
	copy(Q_COMPUTE, a, host);
	copy(Q_COMPUTE, out, a);
	d->sync(d, synchronized ? d->record(d, Q_COMPUTE) : e);
	bool right = holds(out, 1);
	finish(Q_COMPUTE);
	return right;
}

static bool queues_lag(void)
{
	fill(host, 1);
	copy(Q_WEIGHTS, a, host);
	order(Q_WEIGHTS, Q_COMPUTE);
	compute(b, a);
	finish(Q_COMPUTE);
	bool right = holds(b, 1);
	finish(Q_WEIGHTS);
	return right;
}

/* The kernel reads what a copy of another queue overwrites later, with `later` */
static bool read_before(int later)
{
	fill(a, 1);
	fill(host, later);
	compute(b, a);
	order(Q_COMPUTE, Q_WEIGHTS);
	copy(Q_WEIGHTS, a, host);
	finish(Q_WEIGHTS);
	finish(Q_COMPUTE);
	return holds(b, 1);
}

static bool queues_lead(void) { return read_before(2); }

/* The copy writes what is there already: only the NaNs that chaos writes before it can show */
static bool copies_spoil_first(void) { return read_before(1); }

static bool operations_spoil_first(void)
{
	fill(a, 1);
	fill(b, 1);
	compute(b, a);
	order(Q_COMPUTE, Q_GRADS);
	copy(Q_GRADS, out, b);
	finish(Q_GRADS);
	bool right = holds(out, 1);
	finish(Q_COMPUTE);
	return right;
}

/* Two whole copies in any order leave one of the two values; copies in parts can leave a mixture */
static bool copies_run_in_parts(void)
{
	float other[N];
	fill(host, 1);
	fill(other, 2);
	copy(Q_WEIGHTS, a, host);
	order(Q_WEIGHTS, Q_GRADS);
	copy(Q_GRADS, a, other);
	finish(Q_WEIGHTS);
	finish(Q_GRADS);
	return holds(a, 1) || holds(a, 2);
}

static bool memory_comes_poisoned(void)
{
	float *p = d->alloc(d, BYTES), *h = d->host_alloc(d, BYTES);
	if (synchronized) {
		d->launch(d, Q_COMPUTE, &(struct op){OP_ZERO, .zero = {p, BYTES}});
		copy(Q_COMPUTE, h, p);
		finish(Q_COMPUTE);
	}
	bool right = holds(p, 0) || holds(h, 0);
	d->release(d, p, BYTES);
	d->host_release(d, h);
	return right;
}

static bool dead_memory_is_poisoned(void)
{
	fill(a, 1);
	if (!synchronized) d->launch(d, Q_COMPUTE, &(struct op){OP_DISCARD, .discard = {a, BYTES}});
	copy(Q_COMPUTE, out, a);
	finish(Q_COMPUTE);
	return holds(out, 1);
}

/* Polling ends with a yes; without polling, one no must be believed */
static bool events_are_not_over(void)
{
	fill(a, 1);
	copy(Q_GRADS, out, a);
	struct event e = d->record(d, Q_GRADS);
	while (!d->query(d, e) && synchronized)
		;
	bool right = holds(out, 1);
	finish(Q_GRADS);
	return right;
}

static bool readers_in_place_are_late(void)
{
	const float *w = d->zero_copy(d, host, MT_FP32);
	fill(host, 1);
	if (!w) return true;
	compute(b, w);
	if (synchronized) finish(Q_COMPUTE);
	fill(host, 2);
	finish(Q_COMPUTE);
	return holds(b, 1);
}

/* Q_GRADS waits for Q_COMPUTE only, which must have waited for Q_WEIGHTS */
static bool chains_hold(void)
{
	fill(host, 1);
	copy(Q_WEIGHTS, a, host);
	order(Q_WEIGHTS, Q_COMPUTE);
	compute(b, a);
	d->wait(d, Q_GRADS, d->record(d, Q_COMPUTE));
	copy(Q_GRADS, out, b);
	finish(Q_GRADS);
	bool right = holds(out, 1);
	finish(Q_WEIGHTS);
	return right;
}

static const struct reordering {
	const char *name;
	bool (*fn)(void);
} reorderings[] = {
	{"the source of a copy is read late", source_read_late},
	{"the source of a copy is read early", source_read_early},
	{"weights in the store are read late", weights_read_late},
	{"weights in place are read late", readers_in_place_are_late},
	{"a copy to the host lands late", result_lands_late},
	{"gradients land late", gradients_land_late},
	{"an event covers nothing that was launched after it", event_is_a_place},
	{"a queue lags behind another", queues_lag},
	{"a queue leads another", queues_lead},
	{"waiting for a queue does not include what that queue did not wait for", chains_hold},
	{"a copy spoils what it will write", copies_spoil_first},
	{"an operation spoils what it will write", operations_spoil_first},
	{"copies run in parts", copies_run_in_parts},
	{"memory is handed out poisoned", memory_comes_poisoned},
	{"dead memory is poisoned", dead_memory_is_poisoned},
	{"an event is not over for long", events_are_not_over},
};

static bool right(const struct reordering *r, uint64_t seed)
{
	d = device_chaos(1, seed);
	MT_ASSERT(d);
	a = d->alloc(d, BYTES);
	b = d->alloc(d, BYTES);
	fill(host, 0);
	fill(out, 0);
	bool yes = r->fn();
	d->close(d);
	return yes;
}

int main(int argc, char **argv)
{
	uint64_t count = argc == 2 ? strtoull(argv[1], NULL, 10) : 0;
	int status = 0;
	for (size_t i = 0; i < sizeof reorderings / sizeof *reorderings; i++) {
		uint64_t wrong[2] = {0, 0};
		for (int how = 0; how < 2; how++)
			for (uint64_t seed = 1; seed <= count; seed++) {
				synchronized = how;
				wrong[how] += !right(&reorderings[i], seed);
			}
		bool ok = wrong[0] > 0 && wrong[1] == 0;
		printf("%s: %s: %llu of %llu seeds go wrong, %llu when synchronized\n", ok ? "ok" : "FAILED",
			reorderings[i].name, (unsigned long long)wrong[0], (unsigned long long)count, (unsigned long long)wrong[1]);
		status |= !ok;
	}
	return status;
}
