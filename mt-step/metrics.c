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

double metrics_tokens_per_s(const struct metrics *m)
{
	return m->time_s > 0 ? (double)m->figures.processed / m->time_s : 0;
}

double metrics_mean(const double *sums, int i) { return sums[i] / sums[MT_STEP_FIGURES - 1]; }

struct line {
	char text[1024];
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

static void put_COUNT_OR_NONE(struct line *l, const char *key, uint64_t x)
{
	if (x) put_COUNT(l, key, x);
}

static void put_BOOL(struct line *l, const char *key, bool x) { put(l, key, x ? "true" : "false"); }

static void put_times(struct line *l, const struct metrics *m)
{
	bool known = isfinite(m->time_s);
	put(l, "tokens_per_s", known ? "%.1f" : "null", metrics_tokens_per_s(m));
	put(l, "time_s", known ? "%.6f" : "null", m->time_s);
	if (known && m->planned.step > 0) put(l, "planned_s", "%.6g", m->planned.step);
	if (known && m->planned.model > 0 && m->time_s > 0) put(l, "mfu", "%.4g", m->planned.model / m->time_s);
}

/* What the sums of an objective are; their last is what they are divided by */
static const char *const pair_keys[] = {"reward_chosen", "reward_rejected", "margin", "accuracy"};
static const char *const pg_keys[] = {"clip_fraction", "kl"};

static void put_means(struct line *l, enum mt_objective_kind loss, const double *sums)
{
	bool pairs = loss_of_pairs(loss);
	int n = pairs ? 4 : loss == MT_PG ? 2 : 0;
	for (int i = 0; i < n; i++) put_NUMBER(l, (pairs ? pair_keys : pg_keys)[i], metrics_mean(sums, i));
}

static void put_evaluation(struct line *l, enum mt_objective_kind loss, const struct evaluation *e)
{
	put_NUMBER(l, "eval_loss", e->loss);
	if (!loss_of_pairs(loss)) return;
	put_NUMBER(l, "eval_accuracy", metrics_mean(e->sums, 3));
	put_NUMBER(l, "eval_margin", metrics_mean(e->sums, 2));
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
		MT_FIGURES(PUT, put_times(&l, m);)
		put_means(&l, m->loss, m->sums);
	}
	if (m->evaluated) put_evaluation(&l, m->loss, &m->evaluation);
	l.text[l.n++] = '}';
	l.text[l.n++] = '\n';
	metrics_file_write(m, l.text, l.n); /* first: it asks whether the evaluation is a new one */
	if (m->evaluated) best_note(m->figures.step, m->evaluation.loss);
	if (!closed) write_line(l.text, l.n);
}
