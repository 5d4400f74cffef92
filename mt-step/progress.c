/* progress.c: step, losses, speed and the time that is left, in one row of the terminal.
 *
 * A text that is as long as the row would make the terminal wrap it, and the next one would erase only its last part.
 * So fields are left out, the least important first, until the row holds them.
 *
 * Other programs write messages on the same terminal. The line and each message are one write that erases the row, so
 * no row has two of them (shm/say.c, and say in bin/run/mt-run, mt-tokens, mt-log and mt-plot). */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "best.h"
#include "loss.h"
#include "metrics.h"
#include "os.h"
#include "progress.h"
#include "say.h"

#define SMOOTH 0.1     /* weight of the newest step in the running mean of step times */
#define LOOK_EVERY 0.1 /* seconds between looks at the terminal's width */

enum { STEP, LOSS, PAIRS, EVAL, SPEED, LEFT, FIELDS }; /* in the order in which they are shown */
static const int dispensable[] = {SPEED, EVAL, PAIRS, LEFT, LOSS};

static char fields[FIELDS][48]; /* "": not known */
static bool shown;
static unsigned drawn, width; /* columns of the text on the terminal, and of the terminal then */
static double mean_s, looked;

static void number_text(char *buf, size_t n, double x)
{
	if (x >= 1e6) snprintf(buf, n, "%.2fM", x / 1e6);
	else if (x >= 1e4) snprintf(buf, n, "%.1fk", x / 1e3);
	else snprintf(buf, n, "%.0f", x);
}

static void time_text(char *buf, size_t n, double s)
{
	uint64_t t = (uint64_t)(s + 0.5);
	if (t >= 3600)
		snprintf(buf, n, "%llu:%02u:%02u", (unsigned long long)(t / 3600), (unsigned)(t / 60 % 60), (unsigned)(t % 60));
	else snprintf(buf, n, "%u:%02u", (unsigned)(t / 60), (unsigned)(t % 60));
}

static unsigned columns(void)
{
	struct winsize w;
	return ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col ? w.ws_col : 80;
}

/* Join the fields that are in keep; returns the length. */
static size_t join(char *line, size_t n, unsigned keep)
{
	size_t at = 0;
	line[0] = 0;
	for (int i = 0; i < FIELDS; i++)
		if (keep & 1u << i && fields[i][0])
			at += (size_t)snprintf(line + at, n - at, "%s%s", at ? "  " : "", fields[i]);
	return at;
}

/* If the terminal has become narrower, it has wrapped the text: erase all rows of it. */
static void erase(void)
{
	unsigned rows = drawn ? (drawn - 1) / columns() : 0;
	if (rows) dprintf(STDERR_FILENO, "\r\033[%uA\033[J", rows);
	else dprintf(STDERR_FILENO, "\r\033[K");
}

static void draw(const char *end)
{
	char line[FIELDS * 52];
	unsigned keep = (1u << FIELDS) - 1, left_out = 0;
	width = columns();
	size_t n = join(line, sizeof line, keep);
	while (n >= width && left_out < sizeof dispensable / sizeof *dispensable) {
		keep &= ~(1u << dispensable[left_out++]);
		n = join(line, sizeof line, keep);
	}
	if (n >= width) line[n = width - 1] = 0;
	if (shown) erase();
	dprintf(STDERR_FILENO, "\r\033[K%s%s", line, end);
	drawn = (unsigned)n;
	shown = true;
}

void progress_show(const struct metrics *m, uint64_t until)
{
	uint64_t step = m->figures.step;
	double margin = metrics_figure(m->loss, m->sums, "margin");
	double accuracy = metrics_figure(m->loss, m->sums, "accuracy");
	if (!isatty(STDERR_FILENO)) return;
	char speed[32], left[32];
	mean_s = mean_s ? (1 - SMOOTH) * mean_s + SMOOTH * m->pace.step_s : m->pace.step_s;
	number_text(speed, sizeof speed, m->pace.tokens_per_s);
	time_text(left, sizeof left, mean_s * (double)(until - step));
	snprintf(fields[STEP], sizeof *fields, "step %llu/%llu", (unsigned long long)step, (unsigned long long)until);
	snprintf(fields[LOSS], sizeof *fields, "loss %.4f", m->figures.loss);
	if (!isnan(accuracy)) snprintf(fields[PAIRS], sizeof *fields, "margin %.4f  accuracy %.2f", margin, accuracy);
	if (best_known()->evaluations) snprintf(fields[EVAL], sizeof *fields, "eval loss %.4f", best_known()->loss);
	snprintf(fields[SPEED], sizeof *fields, "%s tokens/s", speed);
	snprintf(fields[LEFT], sizeof *fields, "%s left", left);
	draw("");
}

void progress_count(uint64_t documents, uint64_t tokens)
{
	if (!isatty(STDERR_FILENO)) return;
	char n[32];
	number_text(n, sizeof n, (double)tokens);
	snprintf(fields[STEP], sizeof *fields, "counted %llu document%s", (unsigned long long)documents, mt_s(documents));
	snprintf(fields[SPEED], sizeof *fields, "%s tokens", n);
	draw("");
}

void progress_score(uint64_t records, double tokens_per_s, double left_s)
{
	if (!isatty(STDERR_FILENO)) return;
	char speed[32], left[32];
	number_text(speed, sizeof speed, tokens_per_s);
	snprintf(fields[STEP], sizeof *fields, "scored %llu record%s", (unsigned long long)records, mt_s(records));
	snprintf(fields[SPEED], sizeof *fields, "%s tokens/s", speed);
	if (!(tokens_per_s > 0)) fields[SPEED][0] = 0;
	fields[LEFT][0] = 0;
	if (!isnan(left_s)) {
		time_text(left, sizeof left, left_s);
		snprintf(fields[LEFT], sizeof *fields, "%s left", left);
	}
	draw("");
}

void progress_look(void)
{
	if (!shown || mt_now() - looked < LOOK_EVERY) return;
	looked = mt_now();
	if (columns() != width) draw("");
}

void progress_clear(void)
{
	if (shown) erase();
	shown = false;
}

void progress_end(void)
{
	if (shown) draw("\n"); /* again: another program's message may have erased it */
	shown = false;
}
