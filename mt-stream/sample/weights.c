/* weights.c: weights of one committed step, out of a run that may be training.
 *
 * mt-optim commits step s, then writes unit after unit and raises each one's version to s. It writes none of them again
 * before it has committed s + 1. So what is read of a unit is of step s, and whole, if the version was s before, and s
 * was still the newest committed step after. No stage waits for a reader, and a reader takes no slot: the run is mapped
 * read-only. That is also why it polls: to sleep on the doorbell it would have to write.
 */
#include "cli/cli.h"
#include "mt/control.h"
#include "mt/error.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "mt/txn.h"
#include "sample.h"

/* The committed step and the fillings, as mt_sample_take reads them, although a step may be open. A run that is being
 * filled makes it wait as long as the filler lives. */
int weights_begin(struct weights_reader *r)
{
	double since = mt_now();
	for (;;) {
		struct mt_sample s = {.at.step = UINT64_MAX};
		int rc = mt_sample_take(r->run, &s);
		if (rc && rc != -MT_EX_BUSY) return rc;
		if (s.at.step != UINT64_MAX && s.fills % 2 == 0) {
			r->fills = s.fills;
			r->step = s.at.step;
			return 0;
		}
		if (mt_stage_alive(r->run, MT_FILL)) since = mt_now();
		if (mt_now() - since > r->wait_s)
			return mt_fail(MT_EX_PEER, "the run is half filled, and nobody fills it: mt-ckpt load");
		mt_nap(1);
	}
}

int weights_check(const struct weights_reader *r)
{
	/* acquire: the weights were read before the words that tell whether they have changed */
	atomic_thread_fence(memory_order_acquire);
	return mt_run_state(r->run) == MT_FILLED && mt_fills(r->run) == r->fills && mt_run_step(r->run) == r->step
		? 0
		: CHANGED;
}

int weights_wait(const struct weights_reader *r, uint32_t unit)
{
	double since = mt_now();
	while (mt_version(r->run, unit) != r->step) {
		if (weights_check(r)) return CHANGED;
		if (mt_stage_alive(r->run, MT_OPTIM)) since = mt_now();
		if (mt_now() - since > r->wait_s)
			return mt_fail(MT_EX_PEER, "step %llu is half applied, and mt-optim is gone: start it again",
				(unsigned long long)r->step);
		mt_nap(1);
	}
	return 0;
}

const void *weights_launch(const struct weights_reader *r, uint32_t unit, uint64_t off, uint64_t n, void *dst)
{
	enum mt_dtype dtype = (enum mt_dtype)mt_control(r->run)->dtype;
	const char *src = (const char *)mt_at(r->run, mt_unit(r->run, unit)->w) + off * mt_dtype_bytes(dtype);
	if (r->in_place) return r->dev->zero_copy(r->dev, src, dtype);
	r->dev->launch(r->dev, Q_COMPUTE, &(struct op){OP_WEIGHTS_IN, .weights_in = {dst, src, (int64_t)n, dtype}});
	return dst;
}
