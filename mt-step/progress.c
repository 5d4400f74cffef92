/* progress.c: step, loss, speed and the time that is left. */
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include "progress.h"

#define SMOOTH 0.1 /* weight of the newest step in the running mean of step times */

static bool shown;
static double mean_s;

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

void progress_show(uint64_t step, uint64_t until, double loss, double tokens_per_s, double time_s)
{
	if (!isatty(STDERR_FILENO)) return;
	char speed[32], left[32];
	mean_s = mean_s ? (1 - SMOOTH) * mean_s + SMOOTH * time_s : time_s;
	number_text(speed, sizeof speed, tokens_per_s);
	time_text(left, sizeof left, mean_s * (double)(until - step));
	dprintf(STDERR_FILENO, "\r\033[Kstep %llu/%llu  loss %.4f  %s tokens/s  %s left", (unsigned long long)step,
		(unsigned long long)until, loss, speed, left);
	shown = true;
}

void progress_count(uint64_t documents, uint64_t tokens)
{
	if (!isatty(STDERR_FILENO)) return;
	char n[32];
	number_text(n, sizeof n, (double)tokens);
	dprintf(STDERR_FILENO, "\r\033[Kcounted %llu documents  %s tokens", (unsigned long long)documents, n);
	shown = true;
}

void progress_clear(void)
{
	if (shown) dprintf(STDERR_FILENO, "\r\033[K");
	shown = false;
}

void progress_end(void)
{
	if (shown) dprintf(STDERR_FILENO, "\n");
	shown = false;
}
