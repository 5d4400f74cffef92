/* cudnn-plans: cuDNN's attention plans for described GPUs, and the workspace that they need.
 *
 *     cudnn-plans [SM...] [CASE...] [NH/NKV/D[/DV]]  80, 86, 89, 90, 100, 120; row, rows, ...: a line a plan
 *
 * For NH and NKV heads of D (v's of DV), Qwen2.5-7B's if none are given (28/4/128): one row, several rows, with a
 * window, documents in the cuda device's calls (cuda/backend.c), a long row; and one key-value head with its query
 * heads. Needs no GPU, but a libcuda.so.1: tests/gpu/emu/driver.c.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../mt-stream/device/cuda/sdpa.h"

static const struct {
	int sm, sms, shared;
} gpus[] = {
	{80, 108, 166912},
	{86, 84, 101376},
	{89, 128, 101376},
	{90, 132, 232448},
	{100, 148, 232448},
	{120, 188, 101376},
};

static const struct {
	const char *name;
	int64_t batch, seq, window;
	int ragged, group; /* group: one key-value head */
} cases[] = {
	{"row", 1, 4096, 0, 0, 0},
	{"rows", 8, 4096, 0, 0, 0},
	{"window", 1, 4096, 1024, 0, 0},
	{"documents", 1, 4096, 0, 1, 0},
	{"halves", 3, 2048, 0, 1, 0},
	{"quarters", 7, 1024, 0, 1, 0},
	{"quarters-window", 7, 1024, 512, 1, 0},
	{"shortest", 512, 64, 0, 1, 0},
	{"long", 1, 131072, 0, 0, 0},
	{"group", 1, 4096, 0, 0, 1},
	{"group-window", 1, 4096, 1024, 0, 1},
	{"group-documents", 1, 4096, 0, 1, 1},
	{"group-long", 1, 131072, 0, 0, 1},
};

static int heads = 28, kv_heads = 4, dim = 128, dim_v;

static void show(struct sdpa *s, int sm, size_t i, int backward)
{
	struct sdpa_shape shape;
	size_t bytes = 0;
	memset(&shape, 0, sizeof shape);
	shape.batch = cases[i].batch;
	shape.seq = cases[i].seq;
	shape.window = cases[i].window;
	shape.ragged = cases[i].ragged;
	shape.kv_heads = cases[i].group ? 1 : kv_heads;
	shape.heads = heads / kv_heads * shape.kv_heads;
	shape.dim = dim;
	shape.dim_v = dim_v ? dim_v : dim;
	shape.scale = (float)(1 / sqrt(dim));
	shape.backward = backward;
	void *plan = s->plan(s, &shape, &bytes);
	printf("%s sm_%d %s %s ", s->name, sm, cases[i].name, backward ? "backward" : "forward");
	if (plan) printf("%zu\n", bytes);
	else printf("none: %s\n", s->why);
	fflush(stdout);
	if (plan) s->plan_release(s, plan);
}

/* Is this GPU or case among the arguments, or is none of its kind given? */
static int wanted(char **argv, int sm, const char *name)
{
	int of_its_kind = 0;
	for (char **a = argv + 1; *a; a++) {
		if (!atoi(*a) != !sm || strchr(*a, '/')) continue;
		of_its_kind = 1;
		if (sm ? atoi(*a) == sm : !strcmp(*a, name)) return 1;
	}
	return !of_its_kind;
}

int main(int argc, char **argv)
{
	char why[256];

	for (int i = 1; i < argc; i++)
		if (strchr(argv[i], '/') && sscanf(argv[i], "%d/%d/%d/%d", &heads, &kv_heads, &dim, &dim_v) < 3) return 64;
	for (size_t g = 0; g < sizeof gpus / sizeof *gpus; g++) {
		if (!wanted(argv, gpus[g].sm, NULL)) continue;
		struct sdpa *s = cudnn_describe(gpus[g].sm, gpus[g].sms, gpus[g].shared, why);
		if (!s) {
			fprintf(stderr, "cudnn-plans: %s\n", why);
			return 78;
		}
		for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
			for (int backward = 0; backward < 2 && wanted(argv, 0, cases[i].name); backward++)
				show(s, gpus[g].sm, i, backward);
		s->close(s);
	}
	return 0;
}
