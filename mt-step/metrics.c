/* metrics.c: one JSON object a line. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "best.h"
#include "cli/cli.h"
#include "metrics.h"
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

double metrics_tokens_per_s(const struct metrics *m) { return m->time_s > 0 ? (double)m->processed / m->time_s : 0; }

static size_t add(char *line, size_t at, size_t size, const char *key, double x)
{
	char number[40];
	metrics_number(number, sizeof number, x);
	return at + (size_t)snprintf(line + at, size - at, ", \"%s\": %s", key, number);
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
			progress_clear();
			mt_say("stdout: %s: no more metrics, training goes on", strerror(errno));
			return;
		}
		at += (size_t)w;
	}
}

void metrics_write(const struct metrics *m)
{
	char line[512];
	size_t n = (size_t)snprintf(line, sizeof line, "{\"step\": %llu", (unsigned long long)m->step);
	if (m->trained) {
		n = add(line, n, sizeof line, "loss", m->loss);
		n = add(line, n, sizeof line, "grad_norm", m->grad_norm);
		n = add(line, n, sizeof line, "lr", m->lr);
		n += (size_t)snprintf(line + n, sizeof line - n, ", \"tokens\": %llu", (unsigned long long)m->tokens);
		if (m->processed)
			n += (size_t)snprintf(line + n, sizeof line - n, ", \"processed\": %llu", (unsigned long long)m->processed);
		if (isfinite(m->time_s))
			n += (size_t)snprintf(line + n, sizeof line - n, ", \"tokens_per_s\": %.1f, \"time_s\": %.6f",
				metrics_tokens_per_s(m), m->time_s);
		else n += (size_t)snprintf(line + n, sizeof line - n, ", \"tokens_per_s\": null, \"time_s\": null");
		n += (size_t)snprintf(line + n, sizeof line - n, ", \"skipped\": %s", m->skipped ? "true" : "false");
	}
	if (m->trained && m->has_aux) n = add(line, n, sizeof line, "aux_loss", m->aux_loss);
	if (m->trained && m->has_z) n = add(line, n, sizeof line, "z_loss", m->z_loss);
	if (m->evaluated) n = add(line, n, sizeof line, "eval_loss", m->eval_loss);
	n += (size_t)snprintf(line + n, sizeof line - n, "}\n");
	MT_ASSERT(n < sizeof line);
	metrics_file_write(m, line, n); /* first: it asks whether the evaluation is a new one */
	if (m->evaluated) best_note(m->step, m->eval_loss);
	if (!closed) write_line(line, n);
}
