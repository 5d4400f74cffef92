/* embed.c: the embedding, a gather of rows forward and a scatter backward */
#include "cpu.h"

#include <string.h>

enum { ROWS = 64, COLUMNS = 64 };

struct embed {
	float *out;      /* x (n, h) or dw (vocab, h) */
	const float *in; /* w (vocab, h) or dx (n, h) */
	const uint32_t *tokens;
	int64_t n, h, pad;
};

static void gather_task(void *arg, int64_t task, int thread)
{
	const struct embed *s = arg;
	(void)thread;
	for (int64_t t = task * ROWS; t < least((task + 1) * ROWS, s->n); t++)
		memcpy(s->out + t * s->h, s->in + s->tokens[t] * s->h, (size_t)s->h * sizeof *s->out);
}

void op_embed_forward(struct pool *pool, float *x, const float *w, const uint32_t *tokens, int64_t n, int64_t h)
{
	struct embed s = {.out = x, .in = w, .tokens = tokens, .n = n, .h = h};
	pool_run(pool, div_up(n, ROWS), gather_task, &s);
}

/* A task owns some columns of all rows, so that no two add to one place and each place is added to in token order. */
static void scatter_task(void *arg, int64_t task, int thread)
{
	const struct embed *s = arg;
	int64_t first = task * COLUMNS, columns = least(COLUMNS, s->h - first);
	(void)thread;
	for (int64_t t = 0; t < s->n; t++) {
		if (s->tokens[t] == s->pad) continue;
		float *to = s->out + s->tokens[t] * s->h + first;
		const float *from = s->in + t * s->h + first;
		for (int64_t i = 0; i < columns; i++) to[i] += from[i];
	}
}

void op_embed_backward(struct pool *pool, float *dw, float beta, const float *dx, const uint32_t *tokens, int64_t n,
	int64_t h, int64_t vocab, int64_t pad)
{
	struct embed s = {.out = dw, .in = dx, .tokens = tokens, .n = n, .h = h, .pad = pad};
	if (beta == 0) op_zero(pool, dw, (size_t)(vocab * h) * sizeof *dw);
	pool_run(pool, div_up(h, COLUMNS), scatter_task, &s);
}
