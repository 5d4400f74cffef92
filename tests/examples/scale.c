/* scale: a filter of gradients between mt-stream and mt-optim, by mt.h alone. It copies every message from ring FROM to
 * ring TO, and multiplies gradients by FACTOR. usage: scale RUN FROM TO FACTOR
 *     mt-store ring RUN raw.0 --like grad.0
 *     mt-stream RUN --ring grad.0=raw.0 &
 *     scale RUN raw.0 grad.0 0.5 &
 * A message leaves FROM only after it is in TO, so a scale that is killed loses nothing. It may send its last message
 * twice; mt-optim exits (70) on a second piece of one attempt, so start the step's mt-stream again too, which begins a
 * new attempt. */
#include <signal.h>
#include <stdlib.h>

#include "mt.h"

static volatile int stop;
static void on_signal(int sig) { stop = sig; }

static int must(int rc)
{
	if (rc >= 0) return rc;
	fprintf(stderr, "scale: %s\n", mt_errmsg());
	exit(-rc);
}

static void scale(float *to, const float *from, uint64_t n, float factor)
{
	for (uint64_t i = 0; i < n; i++) to[i] = from[i] * factor;
}

int main(int argc, char **argv)
{
	struct mt_run *run;
	struct mt_ring *from, *to;
	struct mt_msg m;
	const void *in;
	void *out;
	signal(SIGTERM, on_signal);
	if (argc != 5) must(mt_fail(MT_EX_USAGE, "usage: scale RUN FROM TO FACTOR"));
	float factor = strtof(argv[4], NULL);
	must(mt_run_attach(&run, argv[1], MT_RUN_RINGS, 10, &stop));
	if (mt_control(run)->grad == MT_BF16) must(mt_fail(MT_EX_CONFIG, "run '%s' has bf16 gradients", argv[1]));
	must(mt_stage_claim(run, 5, NULL)); /* 5 and 6 are free for stages like this one; so only one scale runs */
	must(mt_ring_open(run, argv[2], &from));
	must(mt_ring_open(run, argv[3], &to));
	while (!stop && !must(mt_stage_over(run))) {
		uint32_t seen = mt_event(run);
		if (!mt_ring_peek(from, 0, &m, &in) || !(out = mt_ring_reserve(to))) {
			must(mt_ring_check(from));
			must(mt_ring_check(to));
			mt_wait(run, seen, 100);
			continue;
		}
		if (m.kind == MT_MSG_GRAD) {
			if (m.grad.n > mt_control(run)->piece_elems) must(mt_fail(MT_EX_DATA, "a piece is longer than a block"));
			scale(out, in, m.grad.n, factor);
		}
		mt_ring_push(to, &m);
		mt_ring_pop(from);
	}
	mt_run_close(run);
	return 0;
}
