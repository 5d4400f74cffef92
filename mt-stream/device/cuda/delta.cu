/* delta.cu: the kernels of delta.h for the gated delta rule, and what Mamba 2 shares with it as it is */
#include "delta.h"

static struct room room_of(const struct delta_args *a)
{
	int64_t heads = a->value_heads, state = heads * a->key_dim * a->value_dim;
	struct room r = {};
	r.groups = delta_groups_of(a);
	r.wave = delta_wave(&r.groups);
	int64_t tokens = r.groups.groups * r.wave;
	r.kept = a->work;
	r.T = r.kept + r.groups.groups * (r.groups.waves - 1) * state;
	r.P = r.T + (a->correct ? tokens * heads * TILE : 0);
	r.factors = r.P + tokens * heads * TILE;
	r.d = r.factors + tokens * heads * FACTORS;
	r.r = r.d + tokens * heads * a->value_dim;
	r.states = r.r + tokens * heads * a->value_dim;
	r.dstates = r.states + tokens / TILE * state;
	r.dg = r.dstates + tokens / TILE * state;
	r.dd = r.dg + a->n * heads;
	r.dskip = r.dd + a->n * heads;
	r.chunk = (uint32_t *)(r.dg + delta_token(a) * a->n * heads);
	r.piece = r.chunk + r.groups.groups * r.groups.waves * (r.wave + 2);
	r.wide = wide_rows(a->key_dim | a->value_dim, a->qkv, a->d_o, a->work, NULL);
	return r;
}

/* The tables, a block for each wave and group */
static __global__ void __launch_bounds__(THREADS) delta_table_kernel(struct delta_args a, struct room r)
{
	DYNAMIC_SHARED(uint32_t, counts); /* (2, warps) */
	int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	int64_t group = blockIdx.x % r.groups.groups, number = blockIdx.x / r.groups.groups;
	uint32_t chunks = 0, pieces = 0;
	uint32_t *chunk = r.chunk + blockIdx.x * (r.wave + 2) + 1, *piece = r.piece + blockIdx.x * (r.wave + 2) + 1;
	int64_t first = wave_first(&a, &r.groups, a.starts, group, number);
	int64_t end = wave_first(&a, &r.groups, a.starts, group, number + 1);
	for (int64_t from = first; from < end; from += THREADS) {
		int64_t t = from + threadIdx.x, before = t < end ? tokens_before(&a, a.starts, t) : 1;
		int is_chunk = before % TILE == 0, is_piece = is_chunk && (before == 0 || t == first);
		uint32_t chunk_lanes = __ballot_sync(FULL, is_chunk), piece_lanes = __ballot_sync(FULL, is_piece);
		uint32_t lower = (1u << lane) - 1, my_chunk = chunks, my_piece = pieces;
		if (lane == 0) {
			counts[warp] = __popc(chunk_lanes);
			counts[THREADS / 32 + warp] = __popc(piece_lanes);
		}
		__syncthreads();
		for (int i = 0; i < THREADS / 32; i++) {
			if (i < warp) {
				my_chunk += counts[i];
				my_piece += counts[THREADS / 32 + i];
			}
			chunks += counts[i];
			pieces += counts[THREADS / 32 + i];
		}
		my_chunk += __popc(chunk_lanes & lower);
		if (is_chunk) chunk[my_chunk] = (uint32_t)t;
		if (is_piece) piece[my_piece + __popc(piece_lanes & lower)] = my_chunk;
		__syncthreads();
	}
	if (threadIdx.x > 0) return;
	chunk[-1] = chunks;
	piece[-1] = pieces;
	chunk[chunks] = (uint32_t)end;
	piece[pieces] = chunks;
}

struct room delta_tables(const struct cuda_queue *q, const struct delta_args *a)
{
	const struct room r = room_of(a);
	LAUNCH(delta_table_kernel, r.groups.waves * r.groups.groups, THREADS, 2 * (THREADS / 32) * sizeof(uint32_t),
		q->stream, *a, r);
	return r;
}

/* Arrays of sums over tokens: da_log, ddt_bias; Mamba 2: dskip */
static __host__ __device__ __forceinline__ int64_t gate_sums(const struct delta_args *a) { return a->correct ? 2 : 3; }

/* da; a block's partial: the sums over `rows` tokens */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
	delta_gates_kernel(struct delta_args a, struct room r, float *partial, int64_t rows)
{
	int64_t first = blockIdx.x * rows, end = first + rows < a.n ? first + rows : a.n;
	partial += blockIdx.x * gate_sums(&a) * a.value_heads;
	for (int64_t h = threadIdx.x; h < a.value_heads; h += THREADS) {
		float rate = -expf(get(((const T *)a.a_log)[h])), bias = get(((const T *)a.dt_bias)[h]), sums[3] = {0, 0, 0};
		for (int64_t t = first; t < end; t++) {
			int64_t at = t * a.value_heads + h;
			float x = get(((const T *)a.a)[t * a.ld + h]) + bias, d = r.dg[at] * rate, soft = softplus(x);
			float step = a.correct ? soft : step_of(&a, soft);
			float da = (a.correct ? d : step == soft ? d + r.dd[at] : 0) / (1.0f + expf(-x));
			put((T *)a.da + t * a.d_ld + h, da);
			sums[0] += d * step;
			sums[1] += da;
			if (!a.correct) sums[2] += r.dskip[at];
		}
		partial[h] = sums[0];
		partial[a.value_heads + h] = sums[1];
		if (!a.correct) partial[2 * a.value_heads + h] = sums[2];
	}
}

void delta_gates(const struct cuda_queue *q, const struct delta_args *a, const struct room *r)
{
	int64_t heads = a->value_heads, width = gate_sums(a) * heads;
	int64_t rows = div_up(a->n, partial_blocks(div_up(a->n, 32), width)), parts = div_up(a->n, rows);
	BY_ELEMENT(q, LAUNCH(delta_gates_kernel<T>, parts, THREADS, 0, q->stream, *a, *r, q->work, rows));
	cuda_sum_partials(q, a->da_log, a->beta, q->work, parts, width, heads);
	cuda_sum_partials(q, a->ddt_bias, a->beta, q->work + heads, parts, width, heads);
	if (!a->correct) cuda_sum_partials(q, a->dskip, a->beta, q->work + 2 * heads, parts, width, heads);
}

void cuda_delta_forward(const struct cuda_queue *q, const struct delta_args *a)
{
	if (a->channels) kda_forward(q, a);
	else if (a->correct) BY_KEYS(q, a, forward, 1);
	else mamba_forward(q, a);
}
void cuda_delta_backward(const struct cuda_queue *q, const struct delta_args *a)
{
	if (a->channels) kda_backward(q, a);
	else if (a->correct) BY_KEYS(q, a, backward, 1);
	else mamba_backward(q, a);
}

/* More than 48 KiB of shared memory a block must be requested before the launch */
cudaError_t delta_prepare(void)
{
	const void *kernels[] = {KERNELS(float, 1), KERNELS(struct bf16, 1)};
	cudaError_t e = kernels_prepare(kernels, sizeof kernels / sizeof *kernels);
	if (!e) e = mamba_prepare();
	return e ? e : kda_prepare();
}
