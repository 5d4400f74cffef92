/* races.cc: finds accesses of a kernel that no barrier orders, on the emulator
 *
 * Linked with tests/probes/cuda-kernels.c and with kernels that report their loads and stores (watch.h). Two accesses
 * of the same bytes by two threads of a launch, one of them a store, are a race unless
 *     - both threads are in one block, and a __syncthreads is between; or
 *     - both are in one warp, and a __syncwarp is between. Shuffles, votes and tensor cores' operations order nothing.
 *     - the first one's warp has arrived at an mbarrier since, for which the second one's has waited.
 * A copy to shared memory (cp.async) may store at any time until its thread has waited, whatever barriers come before;
 * and until then it may load from its source. So does a copy of a box, until it has arrived. Tensor cores load from
 * shared memory (wgmma) until their warp has waited; what a thread has stored they may load only after its proxy fence.
 * Blocks run one after another here, so every pair is seen, whichever order the seed draws.
 *
 * For every 2 bytes it keeps the last store, and of the loads since then as many as a later store can race with. Prints
 * "FAILED race:" and both places once for each pair of places; the exit code is then 1.
 */
#include "watch.h"

#include <array>
#include <map>
#include <set>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <unistd.h>
#include <unordered_map>

#define MOST_THREADS 1024
#define STACK (128u << 10) /* of an emulated thread */
#define PAGE 4096u

enum readers { ONE, LANES, WARPS }; /* that have read in the same time */

struct seen {
	uint32_t time;  /* when, in blocks and barriers; 0: never */
	uint32_t syncs; /* the thread's calls of __syncwarp before */
	uint32_t site;  /* the instruction: the program is linked at low addresses */
	uint32_t clock; /* of the thread's warp */
	uint16_t thread, readers;
};

struct cell {                       /* of 2 bytes */
	struct seen store, load, other; /* other: a load by an earlier block */
	uint16_t copies_to, copies_from;
	uint32_t copies_time; /* when the last one began or ended */
};

struct page {
	struct cell cells[PAGE / 2];
};

static std::unordered_map<uintptr_t, struct page *> pages;
static uint32_t now = 1, launch_began, block_began;
static uintptr_t shared_from, shared_to;
static uint32_t syncs[MOST_THREADS];
static long copies;
static bool running;
static int races;
static uint32_t wide_site; /* of the last access of 16 bytes */

/* Of mbarriers' order, by warps: a warp's clock counts what it has let others know. How much it knows of others' */
typedef std::array<uint32_t, MOST_THREADS / 32> clocks;
static clocks known[MOST_THREADS / 32];
static std::map<const void *, clocks> mbarriers;           /* what all know that have arrived */
static std::unordered_map<uintptr_t, clocks> tensor_loads; /* of 16 bytes: each warp's clock, from 1 on */
static uint32_t tensor_site;                               /* of the last one */
struct plain_store {
	unsigned thread, fences; /* that it had executed before */
	uint32_t site;
};
static std::unordered_map<uintptr_t, struct plain_store> unfenced_stores; /* the last one to 16 bytes */
static unsigned fences[MOST_THREADS];
extern char _end; /* of the program's variables, which are the emulator's */

static struct cell *cell_of(uintptr_t at)
{
	static struct {
		uintptr_t number;
		struct page *page;
	} recent[64];
	uintptr_t number = at / PAGE;
	auto *r = &recent[number % 64];
	if (r->number != number || !r->page) {
		struct page *&page = pages[number];
		if (!page) page = (struct page *)calloc(1, sizeof *page);
		if (!page) abort();
		*r = {number, page};
	}
	return &r->page->cells[at % PAGE / 2];
}

/* Source lines of an instruction, the innermost function's first */
static const std::string &place(uint32_t site)
{
	static std::map<uint32_t, std::string> places;
	std::string &lines = places[site];
	char command[100], line[300];
	if (!lines.empty()) return lines;
	snprintf(command, sizeof command, "addr2line -i -e /proc/%d/exe %#x", (int)getpid(), site - 1);
	FILE *f = popen(command, "r");
	while (f && fgets(line, sizeof line, f)) {
		const char *name = strrchr(line, '/');
		name = name ? name + 1 : line;
		lines += (lines.empty() ? "" : " of ") + std::string(name, strcspn(name, " \n"));
	}
	if (f) pclose(f);
	return lines;
}

static void tell(const char *what, const struct seen *before, uint32_t site)
{
	static std::set<std::string> told;
	std::string line = std::string(what) + ": " + place(site) + ", " + place(before->site);
	races++;
	if (!told.insert(line).second) return;
	printf("FAILED race: %s (thread %u of block %u)\n", line.c_str(), threadIdx.x, blockIdx.x);
	fflush(stdout);
}

static unsigned warp_now(void) { return threadIdx.x / 32; }

/* Was it unordered with what the running thread does now? */
static bool is_race(const struct seen *s, bool in_shared)
{
	unsigned t = threadIdx.x;
	if (s->time >= block_began && s->readers != WARPS && known[t / 32][s->thread / 32] > s->clock) return false;
	if (s->time < block_began) return !in_shared && s->time >= launch_began;
	if (s->time < now || (s->readers == ONE && s->thread == t)) return false;
	return s->readers == WARPS || s->thread / 32u != t / 32 || s->syncs == syncs[t];
}

static void add_load(struct cell *c, const struct seen *mine)
{
	struct seen *s = &c->load;
	if (s->time < block_began && s->time >= launch_began) c->other = *s;
	if (s->time < now) *s = *mine;
	else if (s->thread / 32 != mine->thread / 32) s->readers = WARPS;
	else if (s->readers == WARPS) return;
	else if (s->syncs < mine->syncs) *s = *mine;
	else if (s->thread != mine->thread) s->readers = LANES;
}

/* A store where tensor cores have loaded, and the warp need not have waited for it */
static void tensor_race(uintptr_t at, const struct seen *mine)
{
	auto found = tensor_loads.find(at / 16);
	if (found == tensor_loads.end()) return;
	for (unsigned w = 0; w < found->second.size(); w++)
		if (w != warp_now() && found->second[w] && found->second[w] >= known[warp_now()][w]) {
			struct seen load = *mine;
			load.site = tensor_site;
			tell("store after a tensor core's load", &load, mine->site);
		}
}

static void touch(uintptr_t at, bool writes, uint32_t site)
{
	struct cell *c = cell_of(at);
	bool in_shared = at >= shared_from && at < shared_to, copying = c->copies_time >= block_began;
	struct seen mine = {now, syncs[threadIdx.x], site, known[warp_now()][warp_now()], (uint16_t)threadIdx.x, ONE};
	if (is_race(&c->store, in_shared)) tell(writes ? "store after store" : "load after store", &c->store, site);
	if (copying && c->copies_to) tell("access while a copy stores", &c->store, site);
	if (writes) {
		if (is_race(&c->load, in_shared)) tell("store after load", &c->load, site);
		if (!in_shared && c->other.time >= launch_began) tell("store after another block's load", &c->other, site);
		if (copying && c->copies_from) tell("store while a copy loads", &c->load, site);
		if (in_shared && at % 16 == 0) tensor_race(at, &mine);
		c->store = mine;
		c->load.time = c->other.time = 0;
	} else add_load(c, &mine);
}

static void access(const void *p, size_t size, bool writes, const void *instruction)
{
	uintptr_t at = (uintptr_t)p, here = (uintptr_t)__builtin_frame_address(0);
	if (!running || at < (uintptr_t)&_end || (at > here && at - here < STACK)) return;
	for (uintptr_t a = at & ~(uintptr_t)1; a < at + size; a += 2) touch(a, writes, (uint32_t)(uintptr_t)instruction);
	if (writes && !mbarriers.empty() && at >= shared_from && at < shared_to)
		unfenced_stores[at / 16] = {threadIdx.x, fences[threadIdx.x], (uint32_t)(uintptr_t)instruction};
}

/* A copy begins or has arrived: an access by its thread at either time; all others between are races */
static void copy(const void *p, bool writes, int begins)
{
	for (uintptr_t at = (uintptr_t)p; at < (uintptr_t)p + 16; at += 2) {
		struct cell *c = cell_of(at);
		uint16_t *n = writes ? &c->copies_to : &c->copies_from;
		if (c->copies_time < block_began) c->copies_to = c->copies_from = 0;
		c->copies_time = now;
		*n -= begins < 0;
		touch(at, writes, begins > 0 ? wide_site : (writes ? &c->store : &c->load)->site);
		*n += begins > 0;
	}
	if (writes) copies += begins;
}

/* A piece of a box has arrived: what was stored is its thread's since it sent the box */
static void landed(const void *p, bool writes)
{
	for (uintptr_t at = (uintptr_t)p; at < (uintptr_t)p + 16; at += 2) {
		struct cell *c = cell_of(at);
		uint16_t *n = writes ? &c->copies_to : &c->copies_from;
		*n -= 1;
	}
	copies -= writes;
}

static void tensor_load(const void *p, bool begins)
{
	for (uintptr_t at = (uintptr_t)p; at < (uintptr_t)p + 16; at += 2) {
		struct cell *c = cell_of(at);
		bool copying = c->copies_time >= block_began;
		if (begins && is_race(&c->store, true)) tell("tensor core's load after store", &c->store, tensor_site);
		if (begins && copying && c->copies_to) tell("tensor core's load while a copy stores", &c->store, tensor_site);
		if (!copying) c->copies_to = c->copies_from = 0;
		c->copies_time = now;
		c->copies_from += begins ? 1 : -1;
		c->load.site = tensor_site;
	}
	auto plain = unfenced_stores.find((uintptr_t)p / 16);
	if (begins && plain != unfenced_stores.end() && fences[plain->second.thread] == plain->second.fences) {
		struct seen store = {};
		store.site = plain->second.site;
		tell("tensor core's load of a store without fence", &store, tensor_site);
	}
	tensor_loads[(uintptr_t)p / 16][warp_now()] = known[warp_now()][warp_now()];
}

/* `to` knows what `from` does */
static void learn(clocks *to, const clocks &from)
{
	for (size_t w = 0; w < from.size(); w++)
		if ((*to)[w] < from[w]) (*to)[w] = from[w];
}

/* What the warp has done until now, all will know that wait at the mbarrier */
static void release(const void *mbarrier)
{
	clocks *mine = &known[warp_now()];
	(*mine)[warp_now()]++;
	learn(&mbarriers[mbarrier], *mine);
}

/* A block begins, or all its threads have reached a barrier: all that they have done is known */
static void clocks_join(void)
{
	clocks all = {};
	for (size_t w = 0; w < all.size(); w++) all[w] = ++known[w][w];
	for (clocks &k : known) k = all;
}

void emu_saw(enum emu_news news, const void *p, const void *q)
{
	switch (news) {
	case EMU_LAUNCH:
		running = true;
		launch_began = now + 1;
		shared_from = (uintptr_t)p;
		shared_to = (uintptr_t)q;
		break;
	case EMU_END: running = false; /* fall through */
	case EMU_BLOCK:
		if (copies) printf("FAILED race: a block ends before %ld of its copies arrive\n", copies);
		races += copies != 0;
		copies = 0;
		block_began = ++now;
		mbarriers.clear();
		tensor_loads.clear();
		unfenced_stores.clear();
		clocks_join();
		break;
	case EMU_BARRIER:
		now++;
		clocks_join();
		break;
	case EMU_WIDE: wide_site = (uint32_t)(uintptr_t)q; break;
	case EMU_SYNCWARP: syncs[threadIdx.x]++; break;
	case EMU_COPY:
	case EMU_ARRIVED:
		copy(p, true, news == EMU_COPY ? 1 : -1);
		if (q) copy(q, false, news == EMU_COPY ? 1 : -1);
		break;
	case EMU_SENDS:
	case EMU_ARRIVES: release(p); break;
	case EMU_PASSES: learn(&known[warp_now()], mbarriers[p]); break;
	case EMU_LANDED:
		landed(p, true);
		if (q) landed(q, false);
		break;
	case EMU_LOADS:
	case EMU_LOADED:
		tensor_site = (uint32_t)(uintptr_t)q;
		tensor_load(p, news == EMU_LOADS);
		break;
	case EMU_FENCE: fences[threadIdx.x]++; break;
	default: break;
	}
}

/* The probe's own exit code does not know of races */
__attribute__((destructor)) static void ends(void)
{
	fflush(stdout);
	if (races) _exit(1);
}
