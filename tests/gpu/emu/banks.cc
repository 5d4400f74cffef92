/* banks.cc: bank conflicts of the kernels of attention and of grouped GEMMs in shared memory, counted on the emulator
 *
 * The kernels report their accesses (watch.h). What the lanes of a warp access at the same instruction, as often
 * executed since the last barrier or warp operation, is one access of the warp. 32 banks are 4 bytes wide. An access of
 * 4 bytes a lane takes a cycle for each different word of the bank that has most of them: its ways. One of 16 bytes,
 * ldmatrix and what wgmma loads, is done by 8 lanes at a time (EMU_WIDE).
 *
 * Prints one line for each kernel, type of elements and shape: accesses by warps, the cycles that they take, the
 * cycles without conflicts, the most ways, and a checksum of the results. Exit code 1: conflicts take more than a
 * twentieth of the cycles.
 */
#include "../../../mt-stream/device/cuda/kernels.h"
#include "../../../mt-stream/ops/attention.h"
#include "../../../mt-stream/ops/grouped.h"
#include "watch.h"

#include <map>
#include <set>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tuple>
#include <vector>

#define SHARED_MOST (227u << 10)
#define MOST_THREADS 288

/* ---- accesses ---- */

typedef std::tuple<uint64_t, unsigned, const void *, unsigned, unsigned> key; /* launch's block, warp, instruction, */
static std::map<key, std::map<unsigned, uintptr_t>> accesses;                 /* epoch, how often: by lane, address */
static std::map<const void *, unsigned> executed[MOST_THREADS];               /* since the epoch began */
static unsigned epoch[MOST_THREADS];
static std::map<const void *, unsigned> size_at; /* instructions: bytes of a lane */
/* Pieces of 16 bytes that are accessed at once: the emulator's code does that element by element */
static std::set<uintptr_t> pieces;
static bool tracing;

static void access(const void *p, size_t size, bool, const void *instruction)
{
	unsigned t = threadIdx.x;
	uintptr_t offset = (uintptr_t)p - (uintptr_t)emu_shared;
	/* only elements of pieces have another size than 4 bytes */
	if (!tracing || !emu_shared || offset >= SHARED_MOST || (size != 4 && size != 16)) return;
	if (size == 16) pieces.insert(offset / 16);
	else if (pieces.count(offset / 16)) return;
	size_at[instruction] = (unsigned)size;
	accesses[key(blockIdx.x, t / 32, instruction, epoch[t], executed[t][instruction]++)][t % 32] = offset;
}

static void epoch_ends(unsigned thread)
{
	epoch[thread]++;
	executed[thread].clear();
}

void emu_saw(enum emu_news news, const void *p, const void *q)
{
	if (news == EMU_WIDE) access(p, 16, false, q);
	if (news == EMU_WARP) epoch_ends(threadIdx.x);
	for (unsigned t = 0; news == EMU_BARRIER && t < MOST_THREADS; t++) epoch_ends(t);
}

/* ---- cycles ---- */

struct cycles {
	uint64_t accesses, taken, least;
	unsigned ways;
};

/* of the lanes from `first` on that are served together */
static void add_lanes(struct cycles *c, const std::map<unsigned, uintptr_t> &at, unsigned first, unsigned lanes,
	unsigned size)
{
	std::set<uintptr_t> words;
	unsigned banks[32] = {0}, most = 0;
	for (auto lane : at)
		for (unsigned i = 0; i < size && lane.first >= first && lane.first < first + lanes; i += 4)
			words.insert(lane.second / 4 + i / 4);
	for (uintptr_t word : words) {
		unsigned n = ++banks[word % 32];
		most = n > most ? n : most;
	}
	c->taken += most;
	c->least += (words.size() + 31) / 32;
	c->ways = most > c->ways ? most : c->ways;
}

static struct cycles count(void)
{
	struct cycles c = {0, 0, 0, 0};
	for (auto &access : accesses) {
		unsigned size = size_at[std::get<2>(access.first)], lanes = size == 16 ? 8 : 32;
		for (unsigned first = 0; first < 32; first += lanes) add_lanes(&c, access.second, first, lanes, size);
		c.accesses++;
	}
	accesses.clear();
	pieces.clear();
	return c;
}

/* ---- the kernels ---- */

static int bad;

static void report(const char *kernel, int elem, const char *shape, int64_t n, const std::vector<uint32_t> &result)
{
	struct cycles c = count();
	uint64_t sum = 14695981039346656037u; /* FNV-1a's, by words */
	for (uint32_t word : result) sum = (sum ^ word) * 1099511628211u;
	/* in fp32, two rows of scores that a warp writes, or 16 that it reads, share a few banks */
	bool ok = c.accesses && c.taken <= c.least + c.least / 20;
	bad += !ok;
	printf("%s %s %s, %s %lld: %llu accesses, %llu cycles of %llu, %u ways, results %016llx\n", ok ? "ok" : "FAILED",
		kernel, elem == 4 ? "fp32" : "bf16", shape, (long long)n, (unsigned long long)c.accesses,
		(unsigned long long)c.taken, (unsigned long long)c.least, c.ways, (unsigned long long)sum);
}

static std::vector<uint32_t> numbers(uint64_t n, int elem)
{
	std::vector<uint32_t> v(n * (uint64_t)elem / 4);
	srand(1);
	for (size_t i = 0; i < n; i++) {
		float x = (float)rand() / (float)RAND_MAX - 0.5f;
		memcpy((char *)v.data() + i * (size_t)elem, (char *)&x + 4 - elem, (size_t)elem);
	}
	return v;
}

/* At least two tiles of queries and of keys: tiles have up to 16 tokens in plain kernels, up to 64 on tensor cores */
static void attention(int elem, int64_t dim, int64_t dim_v)
{
	const int64_t n = elem == 2 ? 80 : 32, heads = 1, kv_heads = 1;
	struct cuda_queue q = {};
	struct attention_args a = {};
	std::vector<uint32_t> qkv = numbers((uint64_t)(n * (heads + kv_heads) * dim + n * kv_heads * dim_v), elem);
	std::vector<uint32_t> starts(n, 0), dqkv = qkv;
	std::vector<uint32_t> d_o = numbers((uint64_t)(n * heads * dim_v), elem), o = d_o, lse(n * heads), work(n * heads);

	q.elem = elem;
	q.work = (float *)work.data();
	q.work_bytes = work.size() * 4;
	a.n = a.seq = n;
	a.heads = heads;
	a.kv_heads = kv_heads;
	a.dim = dim;
	a.dim_v = dim_v;
	a.scale = 0.2f;
	a.starts = starts.data();
	a.qkv = qkv.data();
	a.o = o.data();
	a.lse = (float *)lse.data();
	a.d_o = d_o.data();
	a.dqkv = dqkv.data();
	tracing = true;
	cuda_attention_forward(&q, &a);
	report("forward", elem, "heads of", dim, o);
	cuda_attention_backward(&q, &a);
	report("backward", elem, "heads of", dim, dqkv);
	tracing = false;
}

/* A grouped GEMM of one expert, on tensor cores: a whole tile, and edges of others */
static void grouped(const char *form, int trans_b, int sum, int wgmma_blocks)
{
	const int64_t rows = 144, n = 272, k = 144;
	struct cuda_queue q = {};
	struct grouped_gemm_args a = {};
	std::vector<uint32_t> x = numbers((uint64_t)(rows * k), 2), y = numbers((uint64_t)(rows * n), 2),
						  w = numbers((uint64_t)(n * k), 4);
	const uint32_t first[2] = {0, (uint32_t)rows};

	q.elem = 2;
	q.wgmma_blocks = wgmma_blocks;
	a.experts = 1;
	a.rows = rows;
	a.n = a.ldc = n;
	a.k = a.lda = k;
	a.ldb = trans_b ? k : n;
	a.first = first;
	a.a = x.data();
	a.b = sum ? y.data() : w.data();
	a.trans_b = trans_b;
	a.c = sum ? w.data() : y.data();
	a.stride = n * k;
	a.sum = sum;
	tracing = true;
	cuda_grouped_gemm(&q, &a);
	report(form, 2, "columns:", n, sum ? w : y);
	tracing = false;
}

int main(void)
{
	cuda_kernels_prepare();
	for (int64_t dim : {64, 96, 128, 256, 512}) attention(4, dim, dim);
	for (int64_t dim : {40, 64, 80, 128, 192, 256, 512}) attention(2, dim, dim);
	attention(2, 192, 128);
	cuda_wgmma_prepare();
	for (int blocks = 0; blocks < 2; blocks++) { /* by mma, by wgmma */
		grouped("grouped GEMM", 0, 0, blocks);
		grouped("grouped GEMM, b transposed", 1, 0, blocks);
		grouped("grouped GEMM, gradients of weights", 0, 1, blocks);
	}
	return bad != 0;
}
