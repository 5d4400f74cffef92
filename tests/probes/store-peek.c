/* store-peek RUN: print a store's content, a line a tensor: name, XXH64 of its fp32 bits, mean, standard deviation,
 * minimum, maximum; then "state HASH" over all arrays of all units (w, lo, m, v; gaps too), "moments zero|nonzero",
 * "gaps zero|nonzero". */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

#include "cli/cli.h"
#include "mt/control.h"
#include "mt/error.h"
#include "mt/run.h"

static float weight(struct mt_run *run, const struct mt_unit *u, uint64_t i)
{
	if (mt_control(run)->dtype == MT_FP32) return ((const float *)mt_at(run, u->w))[i];
	return mt_float(mt_join(((const uint16_t *)mt_at(run, u->w))[i], ((const int16_t *)mt_at(run, u->lo))[i]));
}

static void print_tensor(struct mt_run *run, const struct mt_tensor *t)
{
	const struct mt_unit *u = mt_unit(run, t->unit);
	XXH64_state_t *hash = XXH64_createState();
	double sum = 0, squares = 0, least = INFINITY, most = -INFINITY;
	XXH64_reset(hash, 0);
	for (uint64_t i = 0; i < t->n; i++) {
		float x = weight(run, u, t->off + i);
		XXH64_update(hash, &x, sizeof x);
		sum += (double)x;
		squares += (double)x * (double)x;
		least = fmin(least, (double)x);
		most = fmax(most, (double)x);
	}
	double mean = sum / (double)t->n;
	printf("%s %016llx %.6g %.6g %.6g %.6g\n", t->name, (unsigned long long)XXH64_digest(hash), mean,
		sqrt(fmax(0, squares / (double)t->n - mean * mean)), least, most);
	XXH64_freeState(hash);
}

static bool gaps_zero(struct mt_run *run, const struct mt_unit *u)
{
	uint64_t at = 0;
	for (uint32_t i = 0; i <= u->tensors; i++) {
		const struct mt_tensor *t = mt_tensor(run, u->first_tensor + i);
		uint64_t to = i < u->tensors ? t->off : u->elems;
		for (; at < to; at++)
			if (mt_bits(weight(run, u, at))) return false;
		if (i < u->tensors) at = t->off + t->n;
	}
	return true;
}

int main(int argc, char **argv)
{
	struct mt_run *run;
	if (argc != 2) mt_die(MT_EX_USAGE, "usage: store-peek RUN");
	mt_must(mt_run_open(&run, argv[1], MT_RUN_WEIGHTS | MT_RUN_READONLY));
	const struct mt_control *c = mt_control(run);
	for (uint32_t i = 0; i < c->n_tensors; i++) print_tensor(run, mt_tensor(run, i));
	XXH64_state_t *hash = XXH64_createState();
	XXH64_reset(hash, 0);
	bool zero = true, gaps = true;
	for (uint32_t i = 0; i < c->n_units; i++) {
		const struct mt_unit *u = mt_unit(run, i);
		XXH64_update(hash, mt_at(run, u->w), u->elems * (c->dtype == MT_FP32 ? 4 : 2));
		if (u->lo) XXH64_update(hash, mt_at(run, u->lo), u->elems * 2);
		XXH64_update(hash, mt_at(run, u->m), u->elems * 4);
		XXH64_update(hash, mt_at(run, u->v), u->elems * 4);
		const uint32_t *m = mt_at(run, u->m), *v = mt_at(run, u->v);
		for (uint64_t j = 0; j < u->elems; j++) zero &= !m[j] && !v[j];
		gaps &= gaps_zero(run, u);
	}
	printf("state %016llx\nmoments %s\ngaps %s\n", (unsigned long long)XXH64_digest(hash), zero ? "zero" : "nonzero",
		gaps ? "zero" : "nonzero");
	XXH64_freeState(hash);
	mt_run_close(run);
	return 0;
}
