/* link-same: does a run on several nodes hold what the same run on one machine holds?
 *
 *     link-same RUN ONE NODE...    ONE, NODE: directories of regions (MT_SHM_DIR), of the machine and of each node
 *
 * All nodes have its step and versions, and all of its weights, and each has the bytes of its part of lo, m, v and g.
 * */
#include <stdlib.h>

#include "cli/cli.h"
#include "mt/control.h"
#include "mt/error.h"
#include "mt/run.h"
#include "mt/txn.h"

static struct mt_run *open_at(const char *run, const char *dir)
{
	struct mt_run *r;
	setenv("MT_SHM_DIR", dir, 1);
	mt_must(mt_run_open(&r, run, MT_RUN_WEIGHTS | MT_RUN_READONLY));
	return r;
}

static void same(const struct mt_run *a, const struct mt_run *b, const char *what, uint32_t unit, uint64_t off,
	uint64_t bytes)
{
	if (off && memcmp(mt_at(a, off), mt_at(b, off), bytes))
		mt_die(1, "node %u, unit %u: %s differs", mt_node(b), unit, what);
}

/* Elements [p.first, p.end) of an array of the state's type */
static void same_moment(const struct mt_run *a, const struct mt_run *b, const char *what, uint32_t unit, uint64_t off,
	struct mt_part p)
{
	uint32_t state = mt_control(a)->state;
	uint64_t n = p.end - p.first;
	if (state != MT_INT8) {
		same(a, b, what, unit, off + mt_state_bytes(state, p.first), mt_state_bytes(state, n));
		return;
	}
	same(a, b, what, unit, off + p.first, n);
	same(a, b, what, unit, off + mt_scales_at(mt_unit(a, unit)->elems) + p.first / MT_GROUP * 4, n / MT_GROUP * 4);
}

static void same_unit(const struct mt_run *a, const struct mt_run *b, uint32_t unit)
{
	const struct mt_unit *u = mt_unit(a, unit);
	struct mt_part p = mt_part(b, unit);
	uint64_t n = p.end - p.first, weight = mt_control(a)->dtype == MT_BF16 ? 2 : 4;
	uint64_t grad = mt_control(a)->grad == MT_BF16 ? 2 : 4;
	if (mt_version(a, unit) != mt_version(b, unit)) mt_die(1, "node %u, unit %u: version", mt_node(b), unit);
	same(a, b, "w", unit, u->w, u->elems * weight);
	if (u->lo) same(a, b, "lo", unit, u->lo + p.first * 2, n * 2);
	struct mt_part exact = mt_exact(u, mt_tensor(a, u->first_tensor));
	same(a, b, "lo of exact tensors", unit, u->lo + exact.first * 2, (exact.end - exact.first) * 2);
	same_moment(a, b, "m", unit, u->m, p);
	if (u->v) same_moment(a, b, "v", unit, u->v, p);
	for (int end = 0; end < 2; end++)
		if (u->g[end]) same(a, b, "g", unit, u->g[end] + p.first * grad, n * grad);
}

int main(int argc, char **argv)
{
	if (argc < 4) mt_die(MT_EX_USAGE, "link-same RUN ONE NODE...");
	struct mt_run *one = open_at(argv[1], argv[2]);
	struct mt_committed is, want;
	mt_run_committed(one, &want);
	for (int i = 3; i < argc; i++) {
		struct mt_run *node = open_at(argv[1], argv[i]);
		mt_run_committed(node, &is);
		if (mt_node(node) != (uint32_t)(i - 3) || mt_nodes(node) != (uint32_t)(argc - 3))
			mt_die(1, "%s is node %u of %u", argv[i], mt_node(node), mt_nodes(node));
		if (is.step != want.step || is.t != want.t || memcmp(&is.position, &want.position, sizeof is.position))
			mt_die(1, "node %u is at step %llu, t %llu", mt_node(node), (unsigned long long)is.step,
				(unsigned long long)is.t);
		for (uint32_t u = 0; u < mt_control(one)->n_units; u++) same_unit(one, node, u);
		mt_run_close(node);
	}
	mt_run_close(one);
	return 0;
}
