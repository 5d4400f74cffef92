/* trace.c: --trace: a file for chrome://tracing and Perfetto, valid JSON after every micro-batch; and for each
 * micro-batch a line on stderr: how long each queue was busy, how much of the copies overlapped with compute, what
 * compute waited for.
 */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "mt/error.h"
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

#define NAME(code, op, args, name) [OP_##code] = name,
static const char *const op_names[] = {
	[OP_NONE] = "nothing",
	[OP_DISCARD] = "discard",
	[OP_COPY] = "copy",
	[OP_ZERO] = "zero",
	[OP_WEIGHTS_IN] = "weights in",
	[OP_GRADS_OUT] = "gradients out",
	[OP_NARROW] = "narrow",
	[OP_GEMM] = "GEMM",
	OPS(NAME)[OP_GRADS_FINAL] = "gradients final",
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

enum { WAITED = QUEUES, WHOLE = QUEUES + 2, KINDS }; /* busy queues; waits for weights, for room; the micro-batch */

struct change { /* something of that kind begins (by 1) or ends (by -1) */
	double at;
	int kind, by;
};

struct account {
	double all, busy[QUEUES], copies, beside, idle;
	double for_optimizer, for_room, for_weights, for_grads, for_host;
};

static int change_order(const void *a, const void *b)
{
	double x = ((const struct change *)a)->at, y = ((const struct change *)b)->at;
	return (x > y) - (x < y);
}

static void changes_add(struct change *v, size_t *n, int kind, double from, double to)
{
	v[(*n)++] = (struct change){from, kind, 1};
	v[(*n)++] = (struct change){to, kind, -1};
}

/* Time s in which on[kind] things of each kind were under way. Time in which compute was idle is counted under the
 * first reason that holds: the optimizer had not published weights; it had not taken gradients; weights were being
 * copied; gradients were being copied; the host had launched nothing. */
static void account_add(struct account *a, const int on[KINDS], double s)
{
	bool copies = on[Q_WEIGHTS] || on[Q_GRADS];
	double *reason = on[WAITED] ? &a->for_optimizer
		: on[WAITED + 1]        ? &a->for_room
		: on[Q_WEIGHTS]         ? &a->for_weights
		: on[Q_GRADS]           ? &a->for_grads
								: &a->for_host;
	for (int q = 0; q < QUEUES; q++) a->busy[q] += on[q] ? s : 0;
	a->copies += copies ? s : 0;
	a->beside += copies && on[Q_COMPUTE] ? s : 0;
	if (on[Q_COMPUTE] || !on[WHOLE]) return;
	a->idle += s;
	*reason += s;
}

static bool account_make(struct trace *t, double ended, struct account *a)
{
	size_t room = t->waits_n + 1, n = 0;
	int on[KINDS] = {0};
	for (const struct block *b = t->first; b; b = b->next) room += (size_t)b->n;
	struct change *v = malloc(2 * room * sizeof *v);
	if (!v) return false;
	for (const struct block *b = t->first; b; b = b->next)
		for (int i = 0; i < b->n; i++)
			if (b->span[i].to > 0) changes_add(v, &n, (int)b->span[i].queue, b->span[i].from, b->span[i].to);
	for (size_t i = 0; i < t->waits_n; i++)
		changes_add(v, &n, WAITED + t->waits[i].room, t->waits[i].from, t->waits[i].to);
	changes_add(v, &n, WHOLE, t->began, ended);
	qsort(v, n, sizeof *v, change_order);
	for (size_t i = 0; i < n; i++) {
		if (i) account_add(a, on, v[i].at - v[i - 1].at);
		on[v[i].kind] += v[i].by;
	}
	a->all = ended - t->began;
	free(v);
	return true;
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
