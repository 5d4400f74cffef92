/* metrics.c: one JSON object a line. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "best.h"
#include "cli/cli.h"
#include "metrics.h"
#include "mt/model.h"
#include "options.h"
#include "progress.h"

static bool closed, failed;

bool metrics_failed(void) { return failed; }

void metrics_number(char *buf, unsigned n, double x)
{
	if (!isfinite(x)) {
		snprintf(buf, n, "null");
		return;
	}
	for (int digits = 15; digits <= 17; digits++) {
		snprintf(buf, n, "%.*g", digits, x);
		if (strtod(buf, NULL) == x) return;
	}
}

/* ---- figures of losses: what their sums stand for */

static double of_chosen(const double *s) { return s[MT_SUM_CHOSEN] / s[MT_SUM_OF_CHOSEN]; }
static double of_rejected(const double *s) { return s[MT_SUM_REJECTED] / s[MT_SUM_OF_REJECTED]; }
static double margin(const double *s) { return of_chosen(s) - of_rejected(s); }
static double accuracy(const double *s) { return s[MT_SUM_RIGHT] / (s[MT_SUM_OF_CHOSEN] + s[MT_SUM_OF_REJECTED]); }
static double clip_fraction(const double *s) { return s[MT_SUM_CLIPPED] / s[MT_SUM_TARGETS]; }
static double kl(const double *s) { return s[MT_SUM_KL] / s[MT_SUM_TARGETS]; }

static const struct figure {
	const char *key;
	double (*of)(const double *sums);
} of_sides[] = {{"reward_chosen", of_chosen}, {"reward_rejected", of_rejected}, {"margin", margin},
	{"accuracy", accuracy}, {0}},
  of_targets[] = {{"clip_fraction", clip_fraction}, {"kl", kl}, {0}}, none[] = {{0}};

static const struct figure *figures_of(enum mt_objective_kind loss)
{
	if (mt_losses[loss].unit != MT_TARGETS) return of_sides;
	return mt_losses[loss].needs & MT_PART_OLD ? of_targets : none;
}

double metrics_figure(enum mt_objective_kind loss, const double *sums, const char *key)
{
	for (const struct figure *f = figures_of(loss); f->key; f++)
		if (!strcmp(f->key, key)) return f->of(sums);
	return NAN;
}

/* ---- a line */

struct line {
	char text[1024 + MT_STREAMS * 512];
	size_t n;
};

/* , "key": value */
static void put(struct line *l, const char *key, const char *format, ...)
{
	va_list ap;
	va_start(ap, format);
	l->n += (size_t)snprintf(l->text + l->n, sizeof l->text - l->n, "%s\"%s\": ", l->n ? ", " : "{", key);
	l->n += (size_t)vsnprintf(l->text + l->n, sizeof l->text - l->n, format, ap);
	va_end(ap);
	MT_ASSERT(l->n < sizeof l->text - sizeof "}\n");
}

static void put_NUMBER(struct line *l, const char *key, double x)
{
	char number[40];
	metrics_number(number, sizeof number, x);
	put(l, key, "%s", number);
}

static void put_NUMBER_OR_NONE(struct line *l, const char *key, double x) { put_NUMBER(l, key, x); }

static void put_COUNT(struct line *l, const char *key, uint64_t x) { put(l, key, "%llu", (unsigned long long)x); }

static void put_BOOL(struct line *l, const char *key, bool x) { put(l, key, x ? "true" : "false"); }

static void put_pace(struct line *l, const struct mt_pace *p)
{
#define PUT_PACE(field, key, format, always, ...) \
	if (always || !isnan(p->field)) put(l, key, isnan(p->field) ? "null" : format, p->field);
	MT_PACE(PUT_PACE)
}

/* , "gpuN_key": value */
static void put_gpu(struct line *l, int i, const char *key, const char *format, double x)
{
	char name[32];
	snprintf(name, sizeof name, "gpu%d_%s", i, key);
	put(l, name, format, x);
}

static void put_gpus(struct line *l, const struct metrics *m)
{
	char name[32], held[MT_GPU_HELD];
	for (int i = 0; i < MT_STREAMS && m->work; i++) {
		const struct stream_work *w = &m->work[i];
		if (!w->on_gpu) continue;
		put_gpu(l, i, "tokens", "%.0f", (double)w->tokens);
		put_gpu(l, i, "wait", "%.4g", fmin(1e-9 * (double)(w->wait_ns + w->update_wait_ns) / m->pace.step_s, 1));
#define PUT_GPU(field, scale, key, changes, ...) \
	if (changes && w->gpu[MT_GPU_##field]) put_gpu(l, i, key, "%.12g", (double)w->gpu[MT_GPU_##field] * (scale));
		MT_GPU(PUT_GPU)
		mt_gpu_held(w->gpu[MT_GPU_reasons], held);
		snprintf(name, sizeof name, "gpu%d_clock_held_by", i);
		put(l, name, "\"%s\"", held);
	}
}

static void put_evaluation(struct line *l, enum mt_objective_kind loss, const struct evaluation *e)
{
	put_NUMBER(l, "eval_loss", e->loss);
	if (mt_losses[loss].unit == MT_TARGETS) return;
	put_NUMBER(l, "eval_accuracy", accuracy(e->sums));
	put_NUMBER(l, "eval_margin", margin(e->sums));
}

static void write_line(const char *line, size_t n)
{
	if (isatty(STDOUT_FILENO)) progress_clear();
	for (size_t at = 0; at < n;) {
		ssize_t w = write(STDOUT_FILENO, line + at, n - at);
		if (w < 0 && errno == EINTR) continue;
		if (w < 0) {
			closed = true;
			failed = errno != EPIPE && errno != EBADF;
			mt_say("stdout: %s: no more metrics, training goes on", strerror(errno));
			return;
		}
		at += (size_t)w;
	}
}

void metrics_write(const struct metrics *m)
{
	struct line l = {.n = 0};
	const struct mt_geometry *g = m->geo;
	put_COUNT(&l, "step", m->figures.step);
#define PUT(x, field, kind, from, key, has, ...) \
	if (has) put_##kind(&l, key, m->figures.field);
	if (m->trained) {
		MT_FIGURES(PUT, put_pace(&l, &m->pace);)
		for (const struct figure *f = figures_of(m->loss); f->key; f++) put_NUMBER(&l, f->key, f->of(m->sums));
		put_gpus(&l, m);
	}
	if (m->evaluated) put_evaluation(&l, m->loss, &m->evaluation);
	l.text[l.n++] = '}';
	l.text[l.n++] = '\n';
	metrics_file_write(m, l.text, l.n); /* first: it asks whether the evaluation is a new one */
	if (m->evaluated) best_note(m->figures.step, m->evaluation.loss);
	if (!closed) write_line(l.text, l.n);
}
