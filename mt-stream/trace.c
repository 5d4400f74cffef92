/* trace.c: --trace: a file for chrome://tracing and Perfetto, valid JSON after every micro-batch; and for each
 * micro-batch a line on stderr: how long each queue was busy, how much of the copies overlapped with compute, what
 * compute waited for.
 */
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "trace.h"

#define BLOCK 4096    /* spans; they never move, because devices hold pointers to them */
#define TAIL "\n]}\n" /* what ends the file, until more is written over it */

enum { TRACK_MICRO = QUEUES, TRACK_WAIT };

struct block {
	struct block *next;
	int n;
	struct span span[BLOCK];
};
struct wait {
	double from, to;
	uint32_t unit;
	bool room;
};

struct trace {
	FILE *file;
	bool failed, on; /* on: this micro-batch is traced */
	uint64_t only;   /* step, or 0 */
	struct block *first, *last;
	struct wait *waits;
	size_t waits_n, waits_room;
	const char *what[QUEUES];
	uint32_t unit[QUEUES];
	double opened, began; /* the file, the micro-batch */
	uint64_t step, tokens;
	uint32_t micro;
};

static const char *const queue_names[] =
	{[Q_COMPUTE] = "compute", [Q_WEIGHTS] = "weights in", [Q_GRADS] = "gradients out"};

static const char *const op_names[] = {
	[OP_NONE] = "nothing",
	[OP_DISCARD] = "discard",
	[OP_COPY] = "copy",
	[OP_ZERO] = "zero",
	[OP_WEIGHTS_IN] = "weights in",
	[OP_GRADS_OUT] = "gradients out",
	[OP_GEMM] = "GEMM",
	[OP_BIAS_BACKWARD] = "bias backward",
	[OP_EMBED_FORWARD] = "embedding forward",
	[OP_EMBED_BACKWARD] = "embedding backward",
	[OP_RMSNORM_FORWARD] = "rmsnorm forward",
	[OP_RMSNORM_BACKWARD] = "rmsnorm backward",
	[OP_ROPE_FORWARD] = "rope forward",
	[OP_ROPE_BACKWARD] = "rope backward",
	[OP_ATTENTION_FORWARD] = "attention forward",
	[OP_ATTENTION_BACKWARD] = "attention backward",
	[OP_SWIGLU_FORWARD] = "swiglu forward",
	[OP_SWIGLU_BACKWARD] = "swiglu backward",
	[OP_CROSS_ENTROPY] = "cross-entropy",
	[OP_GRADS_FINAL] = "gradients final",
};

const char *op_name(enum op_code code) { return op_names[code]; }

/* ---- spans ---- */

void trace_at(struct trace *t, enum queue queue, uint32_t unit, const char *what)
{
	if (!t) return;
	t->unit[queue] = unit;
	t->what[queue] = what;
}

static void sizes(const struct op *op, int64_t size[3])
{
	size[0] = size[1] = size[2] = 0;
	if (op->code == OP_GEMM) {
		size[0] = op->gemm.m;
		size[1] = op->gemm.n;
		size[2] = op->gemm.k;
	} else if (op->code == OP_COPY) {
		size[0] = (int64_t)op->copy.bytes;
	} else if (op->code == OP_WEIGHTS_IN) {
		size[0] = op->weights_in.n;
	} else if (op->code == OP_GRADS_OUT) {
		size[0] = op->grads_out.n;
	}
}

struct span *trace_span(struct trace *t, enum queue queue, const struct op *op)
{
	if (!t || !t->on || op->code == OP_NONE || op->code == OP_DISCARD) return NULL;
	if (!t->last || t->last->n == BLOCK) {
		struct block *b = t->last && t->last->next ? t->last->next : malloc(sizeof *b);

		if (!b) return NULL;
		if (!t->last || t->last->next != b) b->next = NULL;
		b->n = 0;
		if (t->last) t->last->next = b;
		else t->first = b;
		t->last = b;
	}
	struct span *s = &t->last->span[t->last->n++];
	*s = (struct span){.queue = queue,
		.op = op->code,
		.unit = t->unit[queue],
		.what = t->what[queue] ? t->what[queue] : "batch"};
	sizes(op, s->size);
	return s;
}

void trace_wait(struct trace *t, bool room, uint32_t unit, double from, double to)
{
	if (!t || !t->on) return;
	if (t->waits_n == t->waits_room) {
		size_t more = t->waits_room ? 2 * t->waits_room : 64;
		struct wait *w = realloc(t->waits, more * sizeof *w);

		if (!w) return;
		t->waits = w;
		t->waits_room = more;
	}
	t->waits[t->waits_n++] = (struct wait){from, to, unit, room};
}

/* ---- the file ---- */

static void __attribute__((format(printf, 2, 3))) event(struct trace *t, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fputs(",\n", t->file);
	vfprintf(t->file, fmt, ap);
	va_end(ap);
}

static double us(const struct trace *t, double at) { return (at - t->opened) * 1e6; }

static void event_span(struct trace *t, const struct span *s)
{
	char size[96] = "";

	if (s->op == OP_GEMM)
		snprintf(size, sizeof size, ", \"m\": %lld, \"n\": %lld, \"k\": %lld", (long long)s->size[0],
			(long long)s->size[1], (long long)s->size[2]);
	else if (s->size[0])
		snprintf(size, sizeof size, ", \"%s\": %lld", s->op == OP_COPY ? "bytes" : "elements", (long long)s->size[0]);
	event(t,
		"{\"name\": \"%s\", \"cat\": \"%s\", \"ph\": \"X\", \"pid\": 1, \"tid\": %d, \"ts\": %.3f, \"dur\": %.3f, "
		"\"args\": {\"unit\": %u%s}}",
		op_names[s->op], s->what, s->queue, us(t, s->from), (s->to - s->from) * 1e6, s->unit, size);
}

static void event_wait(struct trace *t, const struct wait *w)
{
	event(t,
		"{\"name\": \"%s\", \"cat\": \"wait\", \"ph\": \"X\", \"pid\": 1, \"tid\": %d, \"ts\": %.3f, \"dur\": %.3f, "
		"\"args\": {\"unit\": %u}}",
		w->room ? "room for gradients" : "the optimizer's weights", TRACK_WAIT, us(t, w->from), (w->to - w->from) * 1e6,
		w->unit);
}

static void track_name(FILE *f, const char *before, int track, const char *name)
{
	fprintf(f, "%s{\"name\": \"thread_name\", \"ph\": \"M\", \"pid\": 1, \"tid\": %d, \"args\": {\"name\": \"%s\"}}",
		before, track, name);
}

struct trace *trace_open(const char *path, uint64_t only)
{
	struct trace *t = calloc(1, sizeof *t);

	/* O_NONBLOCK: a FIFO without a reader is an error, rather than a wait */
	int fd = t ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0666) : -1;
	if (fd >= 0) (void)fcntl(fd, F_SETFL, O_WRONLY);
	if (fd < 0 || !(t->file = fdopen(fd, "w"))) {
		mt_fail(t ? MT_EX_IO : MT_EX_NOMEM, "--trace %s: %m", path);
		free(t);
		return NULL;
	}
	t->opened = mt_now();
	t->only = only;
	fputs("{\"traceEvents\": [\n", t->file);
	for (int q = 0; q < QUEUES; q++) track_name(t->file, q ? ",\n" : "", q, queue_names[q]);
	track_name(t->file, ",\n", TRACK_MICRO, "micro-batches");
	track_name(t->file, ",\n", TRACK_WAIT, "mt-stream waits for");
	fputs(TAIL, t->file);
	fflush(t->file);
	return t;
}

void trace_close(struct trace *t)
{
	if (!t) return;
	for (struct block *b = t->first, *next; b; b = next) {
		next = b->next;
		free(b);
	}
	free(t->waits);
	fclose(t->file);
	free(t);
}

/* ---- the summary of a micro-batch ---- */

struct stretch {
	double from, to;
};
struct stretches {
	struct stretch *v;
	size_t n;
};

static int stretch_order(const void *a, const void *b)
{
	double x = ((const struct stretch *)a)->from, y = ((const struct stretch *)b)->from;

	return (x > y) - (x < y);
}

/* Sort, and join those that touch */
static void unite(struct stretches *s)
{
	size_t n = 0;

	qsort(s->v, s->n, sizeof *s->v, stretch_order);
	for (size_t i = 0; i < s->n; i++)
		if (n && s->v[i].from <= s->v[n - 1].to)
			s->v[n - 1].to = s->v[i].to > s->v[n - 1].to ? s->v[i].to : s->v[n - 1].to;
		else s->v[n++] = s->v[i];
	s->n = n;
}

static double length(const struct stretches *s)
{
	double sum = 0;

	for (size_t i = 0; i < s->n; i++) sum += s->v[i].to - s->v[i].from;
	return sum;
}

/* *rest: what of `a` lies outside `b`. Both are united; rest has room for a->n + b->n. */
static void outside(const struct stretches *a, const struct stretches *b, struct stretches *rest)
{
	size_t k = 0;

	rest->n = 0;
	for (size_t i = 0; i < a->n; i++) {
		double from = a->v[i].from, to = a->v[i].to;

		while (k < b->n && b->v[k].to <= from) k++;
		for (size_t j = k; j < b->n && b->v[j].from < to && from < to; j++) {
			if (b->v[j].from > from) rest->v[rest->n++] = (struct stretch){from, b->v[j].from};
			from = b->v[j].to;
		}
		if (from < to) rest->v[rest->n++] = (struct stretch){from, to};
	}
}

enum { BUSY = 0, WAITED = QUEUES, KINDS = QUEUES + 2 }; /* busy queues; waits for weights, for room */

struct account {
	double all, busy[QUEUES], copies, beside, idle;
	double for_optimizer, for_room, for_weights, for_grads, for_host;
};

static bool stretches_make(struct trace *t, struct stretches kinds[KINDS])
{
	size_t spans = 0;

	for (const struct block *b = t->first; b; b = b->next) spans += (size_t)b->n;
	for (int i = 0; i < KINDS; i++)
		if (!(kinds[i].v = malloc((spans + t->waits_n + 1) * sizeof *kinds[i].v))) return false;
	for (const struct block *b = t->first; b; b = b->next)
		for (int i = 0; i < b->n; i++) {
			struct stretches *k = &kinds[BUSY + b->span[i].queue];

			if (b->span[i].to > 0) k->v[k->n++] = (struct stretch){b->span[i].from, b->span[i].to};
		}
	for (size_t i = 0; i < t->waits_n; i++) {
		struct stretches *k = &kinds[WAITED + t->waits[i].room];
		k->v[k->n++] = (struct stretch){t->waits[i].from, t->waits[i].to};
	}
	for (int i = 0; i < KINDS; i++) unite(&kinds[i]);
	return true;
}

/* Seconds of *idle that fall into `reason`, which are taken from *idle */
static double because(struct stretches *idle, const struct stretches *reason, struct stretches *scratch)
{
	double before = length(idle);
	struct stretches was = *idle;

	outside(idle, reason, scratch);
	*idle = *scratch;
	*scratch = was;
	return before - length(idle);
}

/* Time in which compute was idle is counted under the first reason that holds: the optimizer had not published weights;
 * it had not taken gradients; weights were being copied; gradients were being copied; the host had launched nothing. */
static bool account_make(struct trace *t, double ended, struct account *a)
{
	struct stretches kinds[KINDS] = {{0}}, idle = {0}, scratch = {0}, copies = {0};
	struct stretch all = {t->began, ended};
	bool ok = stretches_make(t, kinds);
	size_t most = 1;

	for (int i = 0; i < KINDS; i++) most += kinds[i].n;
	idle.v = malloc(most * sizeof *idle.v);
	scratch.v = malloc(most * sizeof *scratch.v);
	copies.v = malloc(most * sizeof *copies.v);
	ok = ok && idle.v && scratch.v && copies.v;
	if (ok) {
		for (int q = 0; q < QUEUES; q++) a->busy[q] = length(&kinds[BUSY + q]);
		for (int q = Q_WEIGHTS; q <= Q_GRADS; q++)
			for (size_t i = 0; i < kinds[BUSY + q].n; i++) copies.v[copies.n++] = kinds[BUSY + q].v[i];
		unite(&copies);
		a->copies = length(&copies);
		outside(&copies, &kinds[BUSY + Q_COMPUTE], &scratch);
		a->beside = a->copies - length(&scratch);
		outside(&(struct stretches){&all, 1}, &kinds[BUSY + Q_COMPUTE], &idle);
		a->all = ended - t->began;
		a->idle = length(&idle);
		a->for_optimizer = because(&idle, &kinds[WAITED], &scratch);
		a->for_room = because(&idle, &kinds[WAITED + 1], &scratch);
		a->for_weights = because(&idle, &kinds[BUSY + Q_WEIGHTS], &scratch);
		a->for_grads = because(&idle, &kinds[BUSY + Q_GRADS], &scratch);
		a->for_host = length(&idle);
	}
	for (int i = 0; i < KINDS; i++) free(kinds[i].v);
	free(idle.v);
	free(scratch.v);
	free(copies.v);
	return ok;
}

static void account_report(const struct trace *t, const struct account *a)
{
	mt_say("step %llu, micro-batch %u: %.3f s: compute %.3f, weights in %.3f, gradients out %.3f; of %.3f s of copies "
		   "%.3f beside compute; compute idle %.3f: %.3f for the optimizer, %.3f for room for gradients, "
		   "%.3f for weights, %.3f for gradients, %.3f for the host",
		(unsigned long long)t->step, t->micro, a->all, a->busy[Q_COMPUTE], a->busy[Q_WEIGHTS], a->busy[Q_GRADS],
		a->copies, a->beside, a->idle, a->for_optimizer, a->for_room, a->for_weights, a->for_grads, a->for_host);
}

static void event_micro(struct trace *t, const struct account *a)
{
	event(t,
		"{\"name\": \"step %llu, micro-batch %u\", \"cat\": \"micro-batch\", \"ph\": \"X\", \"pid\": 1, \"tid\": %d, "
		"\"ts\": %.3f, \"dur\": %.3f, \"args\": {\"step\": %llu, \"micro\": %u, \"tokens\": %llu, \"compute_s\": %.6f, "
		"\"weights_in_s\": %.6f, \"gradients_out_s\": %.6f, \"copies_s\": %.6f, \"copies_beside_compute_s\": %.6f, "
		"\"idle_s\": %.6f, \"idle_for_optimizer_s\": %.6f, \"idle_for_room_s\": %.6f, \"idle_for_weights_s\": %.6f, "
		"\"idle_for_gradients_s\": %.6f, \"idle_for_host_s\": %.6f}}",
		(unsigned long long)t->step, t->micro, TRACK_MICRO, us(t, t->began), a->all * 1e6, (unsigned long long)t->step,
		t->micro, (unsigned long long)t->tokens, a->busy[Q_COMPUTE], a->busy[Q_WEIGHTS], a->busy[Q_GRADS], a->copies,
		a->beside, a->idle, a->for_optimizer, a->for_room, a->for_weights, a->for_grads, a->for_host);
}

/* ---- a micro-batch ---- */

void trace_begin(struct trace *t, uint64_t step, uint32_t micro, uint64_t tokens)
{
	if (!t) return;
	for (struct block *b = t->first; b; b = b->next) b->n = 0;
	t->last = t->first;
	t->waits_n = 0;
	t->on = !t->failed && (!t->only || t->only == step);
	t->step = step;
	t->micro = micro;
	t->tokens = tokens;
	for (int q = 0; q < QUEUES; q++) t->what[q] = NULL;
	t->began = mt_now();
}

void trace_end(struct trace *t, bool whole)
{
	double ended = mt_now();
	struct account a = {0};

	if (!t || !t->on) return;
	fseek(t->file, -(long)strlen(TAIL), SEEK_END);
	for (const struct block *b = t->first; b; b = b->next)
		for (int i = 0; i < b->n; i++)
			if (b->span[i].to > 0) /* it ran */
				event_span(t, &b->span[i]);
	for (size_t i = 0; i < t->waits_n; i++) event_wait(t, &t->waits[i]);
	if (whole && account_make(t, ended, &a)) {
		event_micro(t, &a);
		account_report(t, &a);
	}
	fputs(TAIL, t->file);
	if (fflush(t->file) || ferror(t->file)) {
		mt_say("--trace: %m; no more is written to it");
		t->failed = true;
	}
}
