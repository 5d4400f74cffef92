/* wgmma.cc: mbarriers, copies of boxes to shared memory, and wgmma, as PTX ISA 9.0 defines them
 *
 * A copy leaves garbage, or by chance what it copies, until it arrives: when every thread waits, or by chance when one
 * does; in any order. A wgmma adds to its sums when it is waited for, or by chance at once. A tile's address, its map
 * and a barrier's bytes must be as the hardware wants them.
 */
#include "threads.h"

#include <map>
#include <stdlib.h>
#include <string.h>
#include <vector>

#define BASE 16u /* shared memory's first address: all that must be aligned has to be aligned by the kernel */
#define ROW 128u /* bytes of a tile's row */
#define TILE_ALIGN 1024u
#define BOX_MOST 256

static char *window; /* where address 0 would be */

uint32_t emu_shared_address(const void *p) { return (uint32_t)((const char *)p - emu_shared) + BASE; }

/* The 16 bytes that the hardware finds in the place of those at `address` */
static char *swizzled(uint32_t address) { return window + (address ^ (address >> 7 & 7) << 4); }

/* ---- barriers ---- */

struct barrier {
	unsigned arrivals, left; /* of a phase, and until its end */
	int64_t bytes;           /* that are expected and have not arrived */
	unsigned phase;
	unsigned by; /* the thread that made it and has not executed a fence since, or NOBODY */
};
#define NOBODY MOST_THREADS
static std::map<uint64_t *, struct barrier> barriers;

static struct barrier *barrier_of(uint64_t *at)
{
	auto found = barriers.find(at);
	if (found == barriers.end()) emu_die("an mbarrier that was not initialized");
	return &found->second;
}

static void phase_try(struct barrier *b)
{
	if (b->left || b->bytes) return;
	b->left = b->arrivals;
	b->phase++;
	emu_resume();
}

void emu_barrier_init(uint64_t *at, unsigned arrivals)
{
	if (!arrivals || (uintptr_t)at % 8) emu_die("an mbarrier that cannot be");
	barriers[at] = {arrivals, arrivals, 0, 0, threadIdx.x};
}

void emu_barrier_arrive(uint64_t *at, unsigned bytes)
{
	struct barrier *b = barrier_of(at);
	saw(EMU_ARRIVES, at, NULL);
	if (!b->left) emu_die("more arrivals at an mbarrier than its phase has");
	b->left--;
	b->bytes += bytes;
	phase_try(b);
}

void emu_barrier_wait(uint64_t *at, unsigned parity)
{
	struct barrier *b = barrier_of(at);
	if (parity > 1) emu_die("the parity of a phase is 0 or 1");
	if (emu_draw(8) == 0) emu_tiles_arrive();
	while ((b->phase & 1) == parity) emu_pause();
	saw(EMU_PASSES, at, NULL);
}

/* ---- copies ---- */

bool emu_map_make(struct emu_map *map, const void *of, const int64_t n[3], int64_t ld, int64_t stride, int rows)
{
	*map = {(const char *)of, {n[0], n[1], n[2]}, {ld * 2, stride * 2}, rows};
	if ((uintptr_t)of % 16 || map->apart[0] % 16 || map->apart[1] % 16 || map->apart[1] >> 40 || rows > BOX_MOST)
		return false;
	for (int i = 0; i < 3; i++)
		if (n[i] < 1 || n[i] >> 32) return false;
	return true;
}

struct copy {
	char *to;
	struct emu_map map;
	int64_t x, y, z;
	uint64_t *barrier;
};
static std::vector<copy> under_way;

/* call(to, from) for each 16 bytes; from NULL: beyond the map's edges */
template <typename F>
static void each_piece(const struct copy &c, F call)
{
	uint32_t address = emu_shared_address(c.to);
	for (int64_t row = 0; row < c.map.rows; row++)
		for (int64_t piece = 0; piece < 8; piece++) {
			int64_t x = c.x + piece * 8, y = c.y + row;
			/* (edges are at multiples of 8 elements) */
			bool there = x >= 0 && x < c.map.n[0] && y >= 0 && y < c.map.n[1] && c.z >= 0 && c.z < c.map.n[2];
			call(swizzled(address + (uint32_t)(row * ROW + piece * 16)),
				there ? c.map.base + c.z * c.map.apart[1] + y * c.map.apart[0] + x * 2 : NULL);
		}
}

static void copy_now(const struct copy &c)
{
	each_piece(c, [](char *to, const char *from) {
		if (from) memcpy(to, from, 16);
		else memset(to, 0, 16);
	});
}

void emu_copy_box(void *to, const struct emu_map *map, int x, int y, int z, uint64_t *barrier)
{
	struct copy c = {(char *)to, *map, x, y, z, barrier};
	if (emu_shared_address(to) % TILE_ALIGN) emu_die("a tile that does not start at a multiple of 1024 bytes");
	if (c.map.n[0] % 8) emu_die("a map whose edge is not at 16 bytes");
	if (barrier_of(barrier)->by != NOBODY) emu_die("a copy for an mbarrier that was made without a fence");
	saw(EMU_WIDE, to, __builtin_return_address(0));
	each_piece(c, [](char *p, const char *from) { saw(EMU_COPY, p, from); });
	saw(EMU_SENDS, barrier, NULL);
	if (emu_draw(4) == 0) copy_now(c);
	else each_piece(c, [](char *p, const char *) { memset(p, POISON, 16); });
	under_way.push_back(c);
}

bool emu_tiles_arrive(void)
{
	if (under_way.empty()) return false;
	size_t i = emu_draw(under_way.size());
	struct copy c = under_way[i];
	under_way[i] = under_way.back();
	under_way.pop_back();
	copy_now(c);
	each_piece(c, [](char *p, const char *from) { saw(EMU_LANDED, p, from); });
	struct barrier *b = barrier_of(c.barrier);
	b->bytes -= c.map.rows * (int64_t)ROW;
	if (b->bytes < 0) emu_die("a copy of more bytes than its mbarrier expects");
	phase_try(b);
	return true;
}

void emu_fence_async(void)
{
	for (auto &b : barriers)
		if (b.second.by == threadIdx.x) b.second.by = NOBODY;
	saw(EMU_FENCE, NULL, NULL);
}

/* ---- products ---- */

struct product {
	float *c;
	uint64_t a, b;
	int a_by_terms, b_by_terms;
	unsigned group;
	const void *site;
};
static struct tensor {
	std::vector<product> pending;
	unsigned group; /* the one that is open */
	bool fenced;
} tensors[MOST_THREADS];

/* The 16 bytes with element (line, term) of a tile. line: a row of a, a column of b */
static const char *piece_of(uint64_t d, int by_terms, unsigned line, unsigned term)
{
	uint32_t address = (uint32_t)(d & 0x3fff) << 4, stride = (uint32_t)(d >> 32 & 0x3fff) << 4;
	uint32_t leading = (uint32_t)(d >> 16 & 0x3fff) << 4;
	if (d >> 62 != 1) emu_die("a descriptor of another swizzle than 128 bytes");
	if (by_terms)
		return swizzled(address + line / 64 * leading + term / 8 * stride + term % 8 * ROW + line % 64 / 8 * 16);
	return swizzled(address + line / 8 * stride + line % 8 * ROW + term / 8 * 16);
}

static float element(uint64_t d, int by_terms, unsigned line, unsigned term)
{
	uint16_t half;
	float f;
	memcpy(&half, piece_of(d, by_terms, line, term) + (by_terms ? line : term) % 8 * 2, sizeof half);
	uint32_t bits = (uint32_t)half << 16;
	memcpy(&f, &bits, sizeof f);
	return f;
}

/* What the lane loads for its warp: 16 bytes of every 16 lines and 16 terms, eight lanes at a time 8 lines or terms */
static void each_load(const struct product &p, enum emu_news news)
{
	unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, right = lane / 8 % 2 * 8, down = lane % 8;
	auto load = [&](uint64_t d, int by_terms, unsigned line) {
		unsigned term = lane / 16 * 8;
		const char *at = by_terms ? piece_of(d, 1, line + right, term + down)
								  : piece_of(d, 0, line + right + down, term);
		saw(news, at, p.site);
	};
	load(p.a, p.a_by_terms, warp * 16);
	for (unsigned column = 0; column < 256; column += 16) load(p.b, p.b_by_terms, column);
}

static void multiply(const struct product &p)
{
	static const char *fault = getenv("MT_EMU_WGMMA");
	unsigned lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane / 4, t = lane % 4;
	float a[2][16];
	for (unsigned k = 0; k < 16; k++)
		for (unsigned i = 0; i < 2; i++) a[i][k] = element(p.a, p.a_by_terms, row + 8 * i, k);
	for (unsigned j = 0; j < 32; j++)
		for (unsigned right = 0; right < 2; right++)
			for (unsigned k = 0; k < 16; k++) {
				float b = element(p.b, p.b_by_terms, 8 * j + 2 * t + right, k);
				for (unsigned i = 0; i < 2; i++) p.c[4 * j + 2 * i + right] += a[i][k] * b;
			}
	if (fault && !strcmp(fault, "wrong")) p.c[0] += 1;
	each_load(p, EMU_LOADED);
}

void emu_wgmma(float *c, uint64_t a, uint64_t b, int a_by_terms, int b_by_terms)
{
	struct tensor *t = &tensors[threadIdx.x];
	struct product p = {c, a, b, a_by_terms, b_by_terms, t->group, __builtin_return_address(0)};
	if (!t->fenced) emu_die("a wgmma without a wgmma.fence before");
	each_load(p, EMU_WIDE);
	each_load(p, EMU_LOADS);
	/* sums are one sequence: nothing is done before what is older */
	if (t->pending.empty() && emu_draw(4) == 0) multiply(p);
	else t->pending.push_back(p);
}

void emu_wgmma_fence(void) { tensors[threadIdx.x].fenced = true; }

void emu_wgmma_commit(void)
{
	tensors[threadIdx.x].group++;
	tensors[threadIdx.x].fenced = false;
}

/* A warp's threads wait as one */
void emu_wgmma_wait(unsigned groups)
{
	struct tensor *t = &tensors[threadIdx.x];
	struct emu_word mine = {{0}};
	const struct emu_word *all;
	size_t kept = 0;
	for (const struct product &p : t->pending)
		if (p.group + groups < t->group) multiply(p);
		else t->pending[kept++] = p;
	t->pending.resize(kept);
	emu_exchange(&mine, &all);
}

/* ---- blocks ---- */

void emu_tiles_begin(void)
{
	window = emu_shared - BASE;
	barriers.clear();
	for (struct tensor &t : tensors) {
		t.group = 0;
		t.fenced = false;
	}
}

void emu_tiles_end(void)
{
	if (!under_way.empty()) emu_die("a block ends before its copies arrive");
	for (struct tensor &t : tensors)
		if (!t.pending.empty()) emu_die("a block ends before its products are waited for");
}
