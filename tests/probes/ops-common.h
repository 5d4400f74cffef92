/* ops-common.h: what the probes of operations share: their report, pools, random numbers, and finite differences. */
#ifndef OPS_COMMON_H
#define OPS_COMMON_H

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

enum { POOLS = 3 };

static int failures;
static struct pool *pools[POOLS]; /* of 1, 2 and 3 threads */
static uint64_t seed = 1;

__attribute__((format(printf, 2, 3))) static void say(int ok, const char *format, ...)
{
	va_list ap;
	va_start(ap, format);
	printf("%s ", ok ? "ok" : "FAILED");
	vprintf(format, ap);
	printf("\n");
	va_end(ap);
	failures += !ok;
}

/* From 0 to 1 */
static double uniform(void)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (double)(seed >> 11) * 0x1p-53;
}

/* The derivative of f at *x, in whose ctx *x is: a central difference */
static double difference(double *x, double step, double (*f)(const void *ctx), const void *ctx)
{
	double was = *x, up, down;
	*x = was + step;
	up = f(ctx);
	*x = was - step;
	down = f(ctx);
	*x = was;
	return (up - down) / (2 * step);
}

#endif
