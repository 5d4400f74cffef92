/* kernel-head.h: cross-entropy of one row of logits; a row of some 100k floats stays in the second-level cache
 * between its three passes */

INLINE float row_max(const float *x, int64_t n)
{
	vf m[4];
	for (int j = 0; j < 4; j++) m[j] = v_set(-INFINITY);
	int64_t i = 0;
	for (; i + 4 * VW <= n; i += 4 * VW)
		for (int j = 0; j < 4; j++) m[j] = v_max(v_load(x + i + j * VW), m[j]);
	float high = v_highest(v_max(v_max(m[0], m[1]), v_max(m[2], m[3])));
	for (; i < n; i++) high = x[i] > high ? x[i] : high;
	return high;
}

/* row_max ignores a NaN among the logits, but the sum does not: so the result is NaN, as it must be. */
static double cross_entropy(float *row, int64_t target, int64_t vocab, float scale, int backward)
{
	vf high = v_set(row_max(row, vocab)), sum[2] = {{0}};
	double x = (double)row[target];
	int64_t i = 0;
	for (; i + 2 * VW <= vocab; i += 2 * VW)
		for (int j = 0; j < 2; j++) {
			vf e = v_exp(v_load(row + i + j * VW) - high);
			sum[j] += e;
			if (backward) v_store(row + i + j * VW, e);
		}
	for (; i < vocab; i += VW) {
		float lanes[VW] = {0};
		vf e = v_exp(v_get(row + i, vocab - i) - high);
		v_put(lanes, vocab - i, e);
		sum[0] += v_load(lanes);
		if (backward) v_put(row + i, vocab - i, e);
	}
	double total = (double)v_sum(sum[0] + sum[1]);
	if (backward) {
		vf factor = v_set((float)((double)scale / total));
		for (i = 0; i < vocab; i += VW) v_put(row + i, vocab - i, v_get(row + i, vocab - i) * factor);
		row[target] -= scale;
	}
	return log(total) + (double)high[0] - x;
}
