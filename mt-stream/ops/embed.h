/* embed.h: the embedding, with or without positions: learned ones, or sines */
#ifndef MT_STREAM_OPS_EMBED_H
#define MT_STREAM_OPS_EMBED_H

#include <math.h>

#include "common.h"

/* Learned positions: the row of a table that a token gets is that of its place in its row - starts, + offset. Both are
 * in bounds, which serve.c has checked, as tokens are < V. */
struct positions {
	int64_t rows, offset, seq; /* of the table; before a document's first token; tokens of a row */
	int64_t past;              /* cpu: the first token's place in its row, if not 0 (mt-sample) */
	const uint32_t *starts;    /* (N): where in its row the token's document starts; NULL: at 0 */
};

static inline ON_DEVICE int64_t position_of(const struct positions *p, int64_t t)
{
	return p->past + t % p->seq - (p->starts ? p->starts[t] : 0) + p->offset;
}

/* A token beyond the rows of a table has the first one's; rows 0: there is no such token */
static inline ON_DEVICE int64_t embed_row(uint32_t token, int64_t rows) { return rows && token >= rows ? 0 : token; }

/* Sines (arXiv 1706.03762): with angle = position exp(-i step), element i is its sine, H / 2 + i its cosine */
struct sines {
	float step;   /* 0: none */
	int64_t zero; /* a position that gets zeros; -1: none */
};

static inline ON_DEVICE float sine_of(const struct sines *s, int64_t position, int64_t h, int64_t i)
{
	int cosine = i >= h / 2;
	float angle = (float)position * expf((float)(cosine ? i - h / 2 : i) * -s->step);
#ifdef __CUDA_ARCH__ /* 2 pi is the sum of these two. sinf and cosf would need local memory for large angles */
	float turns = rintf(angle * 0.15915494f), rest = fmaf(-turns, 1.9353072e-3f, fmaf(-turns, 6.28125f, angle));
	float x = cosine ? cospif(rest * 0.31830989f) : sinpif(rest * 0.31830989f);
#else
	float x = cosine ? cosf(angle) : sinf(angle);
#endif
	return position == s->zero ? 0 : x;
}

/* x = scale w[tokens] + table[positions] + sines of positions */
struct embed_forward_args {
	void *x;                /* (N, H) */
	const void *w;          /* (V, H) */
	const uint32_t *tokens; /* (N) */
	int64_t n, h, vocab;
	float scale;       /* multiplies the rows of w */
	const void *table; /* (at.rows, H), or NULL: zeros */
	struct positions at;
	struct sines sines;
	int bf16; /* cpu: w and table are */
};

/* dw[t] += scale times the sum of dx over the tokens t; dtable[p] += that over the tokens at position p. Both are added
 * in ascending order of tokens */
struct embed_backward_args {
	float *dw;              /* (V, H) */
	float beta;             /* 0: dw and dtable are cleared first */
	const void *dx;         /* (N, H) */
	const uint32_t *tokens; /* (N) */
	int64_t n, h, vocab;
	int64_t pad; /* this row of dw gets no gradient (nn.Embedding's padding_idx); -1: none */
	float scale;
	float *dtable; /* (at.rows, H), or NULL: there is none */
	struct positions at;
};

/* clang-format off */
#define embed_forward_arrays(A) \
	A(elem, x, a->n * a->h, 1) \
	A(operand, table, a->at.rows * a->h, 0)
#define embed_backward_arrays(A) \
	A(4, dw, a->vocab * a->h, a->beta == 0) \
	A(elem, dx, a->n * a->h, 0) \
	A(4, dtable, a->at.rows * a->h, a->beta == 0)
/* clang-format on */

#endif
