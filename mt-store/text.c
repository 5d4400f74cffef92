/* text.c: numbers in units that people read. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "look.h"

/* Three digits: 1.23, 12.3, 123 */
static void three_digits(struct text *t, double x, const char *unit)
{
	snprintf(t->s, sizeof t->s, "%.*f%s", x < 9.995 ? 2 : x < 99.95 ? 1 : 0, x, unit);
}

struct text text_bytes(uint64_t bytes)
{
	static const char *const units[] = {" KiB", " MiB", " GiB", " TiB", " PiB"};
	struct text t;
	if (bytes < 1024) {
		snprintf(t.s, sizeof t.s, "%u B", (unsigned)bytes);
		return t;
	}
	double x = (double)bytes / 1024;
	size_t i = 0;
	for (; x >= 999.5 && i + 1 < sizeof units / sizeof *units; i++) x /= 1024;
	three_digits(&t, x, units[i]);
	return t;
}

struct text text_count(double x)
{
	static const char *const units[] = {" k", " M", " B", " T"};
	struct text t;
	if (!isfinite(x)) return text_number(x, "%f");
	if (x < 999.5) {
		if (x == floor(x)) snprintf(t.s, sizeof t.s, "%.0f", x);
		else three_digits(&t, x, "");
		return t;
	}
	size_t i = 0;
	for (x /= 1000; x >= 999.5 && i + 1 < sizeof units / sizeof *units; i++) x /= 1000;
	three_digits(&t, x, units[i]);
	return t;
}

struct text text_duration(double seconds)
{
	struct text t;
	if (!(seconds >= 0)) return text_number(NAN, "%f");
	three_digits(&t, seconds < 1 ? 1e3 * seconds : seconds, seconds < 1 ? " ms" : " s");
	return t;
}

struct text text_time(double seconds)
{
	struct text t;
	if (!(seconds >= 0 && seconds < 1e11)) return text_number(NAN, "%f");
	unsigned long long s = (unsigned long long)(seconds + 0.5), days = s / 86400;
	unsigned hours = (unsigned)(s / 3600 % 24), minutes = (unsigned)(s / 60 % 60), rest = (unsigned)(s % 60);
	if (days) snprintf(t.s, sizeof t.s, "%llu d %u:%02u:%02u", days, hours, minutes, rest);
	else if (hours) snprintf(t.s, sizeof t.s, "%u:%02u:%02u", hours, minutes, rest);
	else snprintf(t.s, sizeof t.s, "%u:%02u", minutes, rest);
	return t;
}

struct text text_number(double x, const char *format)
{
	struct text t = {"-"};
	if (isfinite(x)) snprintf(t.s, sizeof t.s, format, x);
	return t;
}

struct text text_percent(double x) { return text_number(100 * x, "%.1f %%"); }

static bool is_time(const char *name)
{
	size_t n = strlen(name);
	return n > 3 && strcmp(name + n - 3, "_ns") == 0;
}

struct text text_counter(const char *name, uint64_t value)
{
	struct text t;
	if (strstr(name, "bytes")) return text_bytes(value);
	if (!is_time(name)) return text_count((double)value);
	snprintf(t.s, sizeof t.s, "%.1f s", 1e-9 * (double)value);
	return t;
}

int text_counter_name(const char *name) { return (int)strlen(name) - (is_time(name) ? 3 : 0); }

/* x of a limit, if that is known */
static int put_of(struct gpu_text *t, const char *name, struct text x, struct text limit, const char *unit)
{
	t->name = name;
	if (!strcmp(x.s, "-")) return 0;
	bool whole = strcmp(limit.s, "-");
	snprintf(t->value, sizeof t->value, "%s%s%s%s", x.s, whole ? " of " : "", whole ? limit.s : "", unit);
	return 1;
}

int text_gpu(const uint64_t gpu[MT_GPU_WORDS], struct gpu_text out[TEXT_GPU])
{
	static const struct text none = {"-"};
	int n = 0;
#define WHOLE(field, scale) (gpu[MT_GPU_##field] ? text_number((double)gpu[MT_GPU_##field] * scale, "%.0f") : none)
#define BYTES(field) (gpu[MT_GPU_##field] ? text_bytes(gpu[MT_GPU_##field]) : none)
	n += put_of(&out[n], "power", WHOLE(power, 1e-3), WHOLE(power_limit, 1e-3), " W");
	n += put_of(&out[n], "clock", WHOLE(clock, 1), WHOLE(clock_limit, 1), " MHz");
	mt_gpu_held(gpu[MT_GPU_reasons], out[n].value);
	out[n].name = "held down by";
	n += *out[n].value != 0;
	n += put_of(&out[n], "temperature", WHOLE(temperature, 1), none, " C");
	n += put_of(&out[n], "memory", BYTES(memory_used), BYTES(memory), "");
	return n;
}

void text_clean(char *out, size_t n, const char *in, size_t max)
{
	size_t i = 0;
	for (; i + 1 < n && i < max && in[i]; i++) out[i] = in[i] >= 0x20 && in[i] < 0x7f ? in[i] : '?';
	out[i] = 0;
}
