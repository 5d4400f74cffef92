/* route.cu: which experts compute a token, with which weights, and in which rows. As on the cpu, scores are computed in
 * fp64 and rounded once, so that equal logits choose equal experts. */
#include "router.h"
#include "ops/route.h"

/* ---- forward: a warp a token ---- */

#define ROUTE_WARPS 4

/* Words of shared memory of a warp, an even number: the softmax in fp64, then scores and groups; the chosen */
static inline int64_t route_words(const struct route_args *a) { return 2 * a->experts + (a->per_token + 1) / 2 * 2; }

/* The sum of a group's two best scores, or the best alone */
static __device__ __forceinline__ float group_score(const float *score, int n, int by_best)
{
	int first = 0, second = -1;
	for (int i = 1; i < n; i++)
		if (better(score[i], i, score[first], first)) {
			second = first;
			first = i;
		} else if (second < 0 || better(score[i], i, score[second], second)) second = i;
	return score[first] + (by_best || second < 0 ? 0 : score[second]);
}

/* Set the scores of all experts that are not of the best groups to -inf; sums: (groups) */
static __device__ __forceinline__ void keep_groups(const struct route_args *a, float *score, float *sums)
{
	int lane = threadIdx.x % 32, groups = (int)a->groups, each = (int)a->experts / groups;
	uint32_t taken = 0;
	/* but for group_score and the last loop, each lane reads only what it wrote */
	for (int g = lane; g < groups; g += 32) sums[g] = group_score(score + g * each, each, a->by_best);
	for (int i = 0; i < a->groups_used; i++) warp_best(sums, groups, &taken);
	for (int j = 0, g = lane; g < groups; g += 32, j++) sums[g] = taken >> j & 1 ? 1.0f : 0.0f;
	__syncwarp();
	for (int e = lane; e < a->experts; e += 32)
		if (sums[e / each] == 0) score[e] = -INFINITY;
}

static __device__ __forceinline__ double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* The weight of the k-th chosen expert from the chosen scores */
static __device__ __forceinline__ float weight_of(const struct route_args *a, const float *score,
	const uint32_t *chosen, int k)
{
	double sum = 0, most = -INFINITY;
	if (a->score == MT_TOP_SOFTMAX) {
		for (int i = 0; i < a->per_token; i++) most = fmax(most, (double)score[chosen[i]]);
		for (int i = 0; i < a->per_token; i++) sum += exp((double)score[chosen[i]] - most);
		return (float)(exp((double)score[chosen[k]] - most) / sum) * a->scale;
	}
	if (a->score == MT_TOP_SIGMOID) return (float)(sigmoid((double)score[chosen[k]]) * (double)a->scale);
	for (int i = 0; i < a->per_token; i++) sum += (double)score[chosen[i]];
	sum = a->renormalise ? fmax(sum, (double)a->floor) + (double)a->eps : 1;
	return (float)((double)score[chosen[k]] / sum * (double)a->scale);
}

/* What an expert's weights are multiplied by */
template <typename T>
static __device__ __forceinline__ float factor_of(const struct route_args *a, uint32_t expert)
{
	return a->factor ? get(((const T *)a->factor)[expert]) : 1.0f;
}

template <typename T>
static __global__ void __launch_bounds__(32 * ROUTE_WARPS) route_forward_kernel(struct route_args a, int words)
{
	DYNAMIC_SHARED(float, shared);
	int lane = threadIdx.x % 32, warp = threadIdx.x / 32, experts = (int)a.experts, wanted = (int)a.per_token;
	int64_t t = (int64_t)blockIdx.x * ROUTE_WARPS + warp;
	float *sum = shared + warp * words, *score = a.scores + t * experts;
	uint32_t *chosen = (uint32_t *)(sum + 2 * experts), taken = 0;

	if (t >= a.n) return;
	if (a.score == MT_SOFTMAX) {
		double *p = (double *)sum;
		softmax(p, score, experts, NULL);
		for (int e = lane; e < experts; e += 32) score[e] = (float)p[e];
		__syncwarp(); /* what others write below takes the place of p */
	}
	for (int e = lane; e < experts; e += 32) {
		if (a.score == MT_SIGMOID) score[e] = (float)sigmoid((double)score[e]);
		sum[e] = score[e] + (a.correction ? get(((const T *)a.correction)[e]) : 0);
	}
	__syncwarp();
	if (a.groups > 1) keep_groups(&a, sum, sum + experts);
	for (int k = 0; k < wanted; k++) {
		int at = warp_best(sum, experts, &taken);
		if (lane == 0) a.expert[t * wanted + k] = chosen[k] = (uint32_t)at;
	}
	__syncwarp();
	for (int k = lane; k < wanted; k += 32)
		a.weight[t * wanted + k] = weight_of(&a, score, chosen, k) * factor_of<T>(&a, chosen[k]);
}

/* ---- slots by expert: a counting sort, which keeps the order of an expert's tokens ---- */

#define CHUNK_LEAST 512 /* slots that a block counts */
#define CHUNKS_MOST 128

/* A thread is one expert's: it goes through a chunk of slots in their order, and counts its own, or gives them rows */
template <int PLACE>
static __global__ void __launch_bounds__(THREADS)
	sort_kernel(struct route_args a, uint32_t *counts, int64_t slots, int64_t each)
{
	DYNAMIC_SHARED(uint32_t, expert); /* of THREADS slots */
	int64_t across = (a.experts + THREADS - 1) / THREADS, chunk = blockIdx.x / across, end = (chunk + 1) * each;
	uint32_t e = (uint32_t)(blockIdx.x % across * THREADS + threadIdx.x), n = 0;
	int mine = e < a.experts;

	end = end < slots ? end : slots;
	if (PLACE && mine) n = a.first[e] + counts[chunk * a.experts + e];
	for (int64_t at = chunk * each; at < end; at += THREADS) {
		expert[threadIdx.x] = at + threadIdx.x < end ? a.expert[at + threadIdx.x] : UINT32_MAX;
		__syncthreads();
#pragma unroll 8
		for (int i = 0; i < THREADS; i++)
			if (expert[i] == e) {
				if (PLACE) {
					a.row[at + i] = n;
					a.slot[n] = (uint32_t)(at + i);
				}
				n++;
			}
		__syncthreads();
	}
	if (!PLACE && mine) counts[chunk * a.experts + e] = n;
}

/* From each chunk's counts (chunks, E): in their place what earlier chunks have of the same expert; and `first` */
static __global__ void __launch_bounds__(THREADS)
	sort_starts_kernel(uint32_t *first, uint32_t *counts, int chunks, int experts)
{
	DYNAMIC_SHARED(uint32_t, total); /* (E) */

	for (int e = threadIdx.x; e < experts; e += THREADS) {
		uint32_t sum = 0;
#pragma unroll 8
		for (int c = 0; c < chunks; c++) {
			uint32_t n = counts[c * experts + e];
			counts[c * experts + e] = sum;
			sum += n;
		}
		total[e] = sum;
	}
	__syncthreads();
	for (int e = threadIdx.x; e <= experts; e += THREADS) {
		uint32_t sum = 0;
		for (int i = 0; i < e; i++) sum += total[i];
		first[e] = sum;
	}
}

static void sort(const struct cuda_queue *q, const struct route_args *route)
{
	const struct route_args a = *route;
	int64_t slots = a.n * a.per_token, each = div_up(slots, CHUNKS_MOST);
	uint32_t *counts = (uint32_t *)q->work;
	each = each > CHUNK_LEAST ? each : CHUNK_LEAST;
	int64_t chunks = div_up(slots, each), blocks = chunks * div_up(a.experts, THREADS);
	LAUNCH(sort_kernel<0>, blocks, THREADS, THREADS * sizeof(uint32_t), q->stream, a, counts, slots, each);
	LAUNCH(sort_starts_kernel, 1, THREADS, (size_t)a.experts * sizeof(uint32_t), q->stream, a.first, counts,
		(int)chunks, (int)a.experts);
	LAUNCH(sort_kernel<1>, blocks, THREADS, THREADS * sizeof(uint32_t), q->stream, a, counts, slots, each);
}

void cuda_route_forward(const struct cuda_queue *q, const struct route_args *a)
{
	int64_t words = route_words(a);
	BY_BYTES(a->exact ? 4 : q->elem,
		LAUNCH(route_forward_kernel<T>, div_up(a->n, ROUTE_WARPS), 32 * ROUTE_WARPS,
			(size_t)(ROUTE_WARPS * words) * sizeof(float), q->stream, *a, (int)words));
	if (a->slot) sort(q, a);
}

/* ---- backward: a warp a token ---- */

/* A token's gradients: of weights dw (K), and what is needed to have those of the chosen scores */
struct token {
	const float *dw, *score, *weight;
	const uint32_t *chosen;
	double factor, dot;
};

/* The gradient of the k-th weight, without its expert's factor */
template <typename T>
static __device__ __forceinline__ double weight_gradient(const struct route_args *a, const struct token *t, int k)
{
	return (double)t->dw[k] * (double)factor_of<T>(a, t->chosen[k]);
}

/* Weights are w = scale p / sum(p), or scale p */
template <typename T>
static __device__ __forceinline__ void token_sums(const struct route_args *a, struct token *t)
{
	double sum = 0, dot = 0;
	t->factor = a->score == MT_TOP_SOFTMAX ? 1 : (double)a->scale;
	t->dot = 0;
	if (a->score == MT_TOP_SOFTMAX || !a->renormalise) return;
	for (int k = 0; k < a->per_token; k++) {
		double p = (double)t->score[t->chosen[k]];
		sum += p;
		dot += weight_gradient<T>(a, t, k) * p;
	}
	if (sum <= (double)a->floor) t->factor /= (double)a->floor + (double)a->eps; /* the sum counts as a constant */
	else {
		t->factor /= sum + (double)a->eps;
		t->dot = dot / (sum + (double)a->eps);
	}
}

/* The gradient of the k-th chosen score; MT_TOP_SOFTMAX: of the weight */
template <typename T>
static __device__ __forceinline__ double score_gradient(const struct route_args *a, const struct token *t, int k)
{
	return (weight_gradient<T>(a, t, k) - t->dot) * t->factor;
}

/* What the softmax takes from the gradient of each of its scores: the mean of all, by score */
template <typename T>
static __device__ __forceinline__ double gradients_dot(const struct route_args *a, const struct token *t)
{
	double dot = 0;
	for (int k = 0; k < a->per_token; k++)
		if (a->score == MT_SOFTMAX) dot += score_gradient<T>(a, t, k) * (double)t->score[t->chosen[k]];
		else if (a->score == MT_TOP_SOFTMAX) dot += weight_gradient<T>(a, t, k) * (double)t->weight[k];
	return a->score == MT_TOP_SOFTMAX ? dot / (double)a->scale : dot;
}

template <typename T>
static __global__ void __launch_bounds__(32 * ROUTE_WARPS) route_backward_kernel(struct route_args a)
{
	int lane = threadIdx.x % 32, experts = (int)a.experts, wanted = (int)a.per_token;
	int64_t n = (int64_t)blockIdx.x * ROUTE_WARPS + threadIdx.x / 32;
	struct token t = {a.dweight + n * wanted, a.scores + n * experts, a.weight + n * wanted, a.expert + n * wanted, 0,
		0};
	T *dlogits = (T *)a.dlogits + n * experts;

	if (n >= a.n) return;
	token_sums<T>(&a, &t);
	double dot = gradients_dot<T>(&a, &t);
	for (int e = lane; e < experts; e += 32)
		put(dlogits + e, a.score == MT_SOFTMAX ? (float)((double)t.score[e] * -dot) : 0.0f);
	__syncwarp(); /* the chosen ones' were written by other lanes */
	for (int k = lane; k < wanted; k += 32) {
		double d = score_gradient<T>(&a, &t, k), p = (double)t.score[t.chosen[k]];
		if (a.score == MT_TOP_SIGMOID) p = sigmoid(p);
		d = a.score == MT_SOFTMAX       ? p * (d - dot)
			: a.score == MT_TOP_SOFTMAX ? (double)t.weight[k] * (d - dot)
										: d * p * (1 - p);
		put(dlogits + t.chosen[k], (float)d);
	}
}

/* A warp is one expert's: over its slots, the gradient of a slot's weight times the weight without the factor */
static __global__ void __launch_bounds__(32) route_factor_kernel(struct route_args a)
{
	int lane = threadIdx.x % 32, wanted = (int)a.per_token;
	double d = 0;
	for (uint32_t r = a.first[blockIdx.x] + lane; r < a.first[blockIdx.x + 1]; r += 32) {
		int64_t slot = a.slot[r], t = slot / wanted;
		float weight = weight_of(&a, a.scores + t * a.experts, a.expert + t * wanted, (int)(slot % wanted));
		d += (double)a.dweight[slot] * (double)weight;
	}
	d = warp_sum_fp64(d);
	if (lane == 0) a.dfactor[blockIdx.x] = (a.beta != 0 ? a.beta * a.dfactor[blockIdx.x] : 0) + (float)d;
}

void cuda_route_backward(const struct cuda_queue *q, const struct route_args *a)
{
	BY_BYTES(a->exact ? 4 : q->elem,
		LAUNCH(route_backward_kernel<T>, div_up(a->n, ROUTE_WARPS), 32 * ROUTE_WARPS, 0, q->stream, *a));
	if (a->dfactor) LAUNCH(route_factor_kernel, a->experts, 32, 0, q->stream, *a);
}
