/* scan.c: the selective scan of Mamba 1; a task computes some channels of a row */
#include "cpu.h"
#include "ops/scan.h"

struct job {
	struct pool *pool;
	const struct scan_args *a;
	size_t scratch; /* bytes of a task's */
};

static void forward_task(void *arg, int64_t task, int thread)
{
	const struct job *w = arg;
	int64_t groups = scan_groups(w->a, 0);
	cpu_kernels()->scan_forward(w->a, task / groups, task % groups, op_scratch(w->pool, thread, w->scratch));
}

static void backward_task(void *arg, int64_t task, int thread)
{
	const struct job *w = arg;
	int64_t groups = scan_groups(w->a, 0);
	cpu_kernels()->scan_backward(w->a, task / groups, task % groups, op_scratch(w->pool, thread, w->scratch));
}

void op_scan_forward(struct pool *pool, const struct scan_args *a)
{
	struct job w = {pool, a, cpu_kernels()->scan_scratch(a)};
	pool_run(pool, scan_rows(a) * scan_groups(a, 0), forward_task, &w);
}

/* Tokens first .. end - 1 of db and dc, from the sums over each group's channels */
static void shared_rows(const void *args, int64_t first, int64_t end)
{
	const struct scan_args *a = args;
	const float *from = a->work + scan_room_of(a, 0).groups;
	int64_t groups = scan_groups(a, 0), wide = 2 * a->size;
	for (int64_t t = first; t < end; t++)
		for (int64_t j = 0; j < wide; j++) {
			float sum = 0, *to = j < a->size ? (float *)a->db + j : (float *)a->dc + j - a->size;
			for (int64_t g = 0; g < groups; g++) sum += from[(g * a->n + t) * wide + j];
			to[t * a->d_ld] = sum;
		}
}

/* Channels first .. end - 1 of da_log, ddt_bias and dskip, from the sums over each row's tokens */
static void own_channels(const void *args, int64_t first, int64_t end)
{
	const struct scan_args *a = args;
	const float *from = a->work + scan_room_of(a, 0).rows;
	for (int64_t c = first; c < end; c++)
		for (int64_t j = 0; j < a->size + 2; j++) {
			float *to = j < a->size ? a->da_log + c * a->size + j : (j == a->size ? a->ddt_bias : a->dskip) + c;
			float sum = a->beta == 0 ? 0 : a->beta * *to;
			for (int64_t r = 0; r < scan_rows(a); r++) sum += from[(r * (a->size + 2) + j) * a->channels + c];
			*to = sum;
		}
}

void op_scan_backward(struct pool *pool, const struct scan_args *a)
{
	struct job w = {pool, a, cpu_kernels()->scan_scratch(a)};
	pool_run(pool, scan_rows(a) * scan_groups(a, 0), backward_task, &w);
	run_rows(pool, a->n, shared_rows, a);
	run_tasks(pool, a->channels, SCAN_CHANNELS, own_channels, a);
}
