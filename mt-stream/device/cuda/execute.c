/* execute.c: launch operations on their queue's stream; attention by the backend or by our own kernels.
 *
 * Gradients that leave as bf16 are narrowed in place, on the compute stream behind the unit's own work: on another
 * stream a kernel would have to wait until a GEMM frees a multiprocessor, which takes longer than copying a piece.
 */
#include <signal.h>
#include <stdio.h>

#include "cli/cli.h"
#include "cuda.h"
#include "mt/choices.h"
#include "mt/error.h"
#include "mt/run.h"
#include "trace.h"

/* ---- operations ---- */

struct key {
	char text[MT_CHOICE_KEY];
};

static struct key rows_key(uint32_t seq)
{
	struct key k;
	snprintf(k.text, sizeof k.text, "attention of rows of %u", seq);
	return k;
}

bool tested_before(struct cuda *c, const char *key, bool *with)
{
	uint8_t stands = 0;
	bool found = mt_choice_find(c->run, key, &stands, sizeof stands);
	*with = stands;
	return found;
}

/* What the reproducibility record's table says of rows of seq tokens */
static void rows_find(struct cuda *c, uint32_t seq)
{
	if (c->rows.selected && c->rows.seq == seq) return;
	c->rows.seq = seq;
	c->rows.selected = tested_before(c, rows_key(seq).text, &c->rows.with);
}

struct attention_need cuda_attention_need(struct device *d, uint32_t seq, bool packed, bool train)
{
	struct cuda *c = (struct cuda *)d;
	struct attention_need need = {0};
	if (!c->backend) return need;
	rows_find(c, seq);
	if (c->rows.selected && !c->rows.with) return need;
	need = backend_need(c->backend, seq, packed, train);
	need.selected = c->rows.selected;
	return need;
}

/* ---- tests of the attention backend ---- */

static const int crashes[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT};
#define CRASHES (sizeof crashes / sizeof *crashes)

static struct {
	struct mt_run *run;
	const char *key;
	struct sigaction before[CRASHES];
} on_test; /* for the signal handler */

static void test_close(void)
{
	for (size_t i = 0; i < CRASHES; i++) sigaction(crashes[i], &on_test.before[i], NULL);
}

/* The library crashed: note it in the record's table, then die of that signal */
static void test_crashed(int number)
{
	uint8_t with = 0;
	test_close();
	mt_choice_enter(on_test.run, on_test.key, &with, sizeof with);
	raise(number);
}

static void test_open(struct cuda *c, const char *key)
{
	struct sigaction a = {.sa_handler = test_crashed, .sa_flags = SA_NODEFER};
	on_test.run = c->run;
	on_test.key = key;
	for (size_t i = 0; i < CRASHES; i++) sigaction(crashes[i], &a, &on_test.before[i]);
}

static int selection_enter(struct cuda *c, const char *key, bool *with)
{
	uint8_t stands = *with;
	int rc = mt_choice_enter(c->run, key, &stands, sizeof stands);
	*with = stands;
	return rc;
}

int test_once(struct cuda *c, const char *key, test_fn *fn, uint32_t seq, bool *with)
{
	test_open(c, key);
	enum tested got = fn(c, seq);
	bool broken = got != TEST_NONE && cudaDeviceSynchronize() != cudaSuccess;
	test_close();
	*with = got == TEST_PASSED && !broken;
	if (got == TEST_NONE) return 0;
	int rc = selection_enter(c, key, with);
	if (rc) return rc;
	if (broken) /* a successor finds the entry and skips the test */
		return mt_fail(MT_EX_IO,
			"cuda: a test of %s broke the device: start mt-stream again; other kernels will compute it", key);
	return 0;
}

/* Does the backend compute a row of seq tokens as our own kernels do? */
static enum tested row_try(struct cuda *c, uint32_t seq)
{
	if (!backend_check_row(c->backend, &c->compute, mt_geometry(c->run), seq)) return TEST_PASSED;
	mt_say("cuda: attention of rows of %u tokens by our own kernels: %s: %s", seq, backend_name(c->backend),
		mt_errmsg());
	return TEST_FAILED;
}

int cuda_attention_select(struct device *d, uint32_t seq, bool *with)
{
	struct cuda *c = (struct cuda *)d;
	struct key key = rows_key(seq);
	int rc = *with ? test_once(c, key.text, row_try, seq, with) : selection_enter(c, key.text, with);
	if (!rc) rows_find(c, seq);
	return rc;
}

/* Run attention by the backend, if it computes such rows. false: it does not, or the operation is another */
static bool run_by_backend(struct cuda *c, const struct op *o)
{
	const struct attention_args *a = &o->attention;
	int rc = 0;
	if (o->code != OP_ATTENTION_FORWARD && o->code != OP_ATTENTION_BACKWARD) return false;
	MT_ASSERT(!a->past);
	rows_find(c, (uint32_t)a->seq);
	if (!c->backend || !c->rows.with) return false;
	MT_ASSERT(a->cap == 0 && !a->sinks && a->alibi.max == 0);
	MT_ASSERT(a->work && !a->dqkv == (o->code == OP_ATTENTION_FORWARD));
	if (c->autotuning) backend_autotune(c->backend, a);
	else rc = backend_run(c->backend, &c->compute, a);
	if (rc) error_keep(c, -rc, mt_errmsg());
	return true;
}

/* Gradients to a block of the ring. bf16: cuda_narrow_in_place left them at the start of the array */
static void run_grads_out(struct cuda *c, struct cuda_stream *s, const struct op *o)
{
	const float *base = o->grads_out.src - o->grads_out.off;
	size_t size = mt_dtype_bytes(o->grads_out.to);
	copy_host(c, s, o->grads_out.dst, (const char *)base + (size_t)o->grads_out.off * size,
		(size_t)o->grads_out.n * size, false);
}

#define RUN(code, op, args, name) \
	case OP_##code: cuda_##op(q, &o->args); break;

/* Copies run on any queue. Everything else runs on the compute queue, as it shares that queue's work memory */
static void op_run(struct cuda *c, struct cuda_stream *s, const struct op *o)
{
	const struct cuda_queue *q = &c->compute;
	int rc = 0;
	/* what the cpu alone computes */
	MT_ASSERT(!(o->code == OP_CONV_FORWARD && o->conv.past) && !(o->code == OP_DELTA_FORWARD && o->delta.past));
	MT_ASSERT(!(o->code == OP_MLA_FORWARD && o->mla.past) && !(o->code == OP_SCAN_FORWARD && o->scan.past));
	if (run_by_backend(c, o)) return;
	switch (o->code) {
	case OP_NONE:
	case OP_NARROW: /* activations are operands */
	case OP_DISCARD: break;
	case OP_COPY: copy_any(c, s, o->copy.dst, o->copy.src, o->copy.bytes); break;
	case OP_ZERO: cuda_ok(c, cudaMemsetAsync(o->zero.dst, 0, o->zero.bytes, s->stream), "cudaMemsetAsync"); break;
	case OP_WEIGHTS_IN:
		copy_host(c, s, o->weights_in.dst, o->weights_in.src, (size_t)o->weights_in.n * c->dev.elem, true);
		break;
	case OP_GRADS_OUT: run_grads_out(c, s, o); break;
	case OP_GRADS_FINAL:
		if (o->grads_final.to == MT_BF16) cuda_narrow_in_place(q, o->grads_final.src, o->grads_final.n);
		break;
	case OP_GEMM:
		rc = gemms_run(c->gemms, q, &o->gemm);
		break;
		OPS(RUN)
	}
	if (rc) error_keep(c, -rc, mt_errmsg());
}

/* Select how an operation will be computed, if there is a choice; it does not run */
static void op_autotune(struct cuda *c, const struct op *o)
{
	int rc = 0;
	if (o->code == OP_GEMM) rc = gemms_select(c->gemms, &c->compute, &o->gemm);
	else run_by_backend(c, o);
	if (rc) error_keep(c, -rc, mt_errmsg());
}

int cuda_autotune(struct device *d, bool on)
{
	struct cuda *c = (struct cuda *)d;
	c->autotuning = on;
	return c->ex ? mt_fail(c->ex, "%s", c->why) : 0;
}

void cuda_launch(struct device *d, enum queue queue, const struct op *op)
{
	struct cuda *c = (struct cuda *)d;
	if (c->ex || op->code == OP_NONE || op->code == OP_DISCARD) return;
	if (c->autotuning) {
		op_autotune(c, op);
		return;
	}
	MT_ASSERT(queue == Q_COMPUTE || op->code <= OP_GRADS_OUT);
	struct span *span = trace_span(d->trace, queue, op);
	if (span) timestamp_record(c, &c->q[queue], &span->from);
	op_run(c, &c->q[queue], op);
	cuda_ok(c, cudaGetLastError(), op_name(op->code));
	if (span) timestamp_record(c, &c->q[queue], &span->to);
}
