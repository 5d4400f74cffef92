/* sum.h: adding gradients and taking their norm, in an order that neither threads nor pieces nor streams can change. */
#ifndef MT_OPTIM_SUM_H
#define MT_OPTIM_SUM_H

#include <stdbool.h>
#include <stddef.h>

/* g = piece, n elements (a multiple of 64) of fp32 or bf16. g goes past the caches: nobody reads it before the update,
 * and a line that is written whole need not be read first. grad_take also returns grad_sumsq of g. */
void grad_copy(void *g, const void *piece, size_t n, bool bf16);
double grad_take(void *g, const void *piece, size_t n, bool bf16);

/* g += piece, n elements (a multiple of 64) of fp32 or bf16; bf16 is added in fp32 and rounded once, to nearest
 * even. */
void grad_add(void *g, const void *piece, size_t n, bool bf16);
/* The same, and grad_sumsq of the sums */
double grad_add_take(void *g, const void *piece, size_t n, bool bf16);

/* Sum of squares of a + b (b NULL: of a), the sum a + b taken in fp32 as the update takes it. Sixteen doubles, the j-th
 * over elements 16 i + j in ascending i, then added pairwise: j with j + 8, + 4, + 2, + 1. */
double grad_sumsq(const void *a, const void *b, size_t n, bool bf16);

/* The sum of x[0..n) by a fixed tree: the left half is the largest power of two below n. */
double sum_tree(const double *x, size_t n);

#endif
