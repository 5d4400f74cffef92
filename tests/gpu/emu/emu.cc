/* emu.cc: threads of a block as coroutines, streams as queues, both drawn by a seed */
#include "threads.h"
#include "splitmix.h"

#include <deque>
#include <map>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <vector>

#define STACK (128u << 10)

static uint64_t randomness = 1;

extern "C" void emu_seed(uint64_t seed) { randomness = seed; }

uint64_t emu_draw(uint64_t below) { return splitmix_next(&randomness) % below; }
#define draw emu_draw

void emu_die(const char *what)
{
	fprintf(stderr, "emu: %s\n", what);
	abort();
}
#define die emu_die

/* ---- threads ---- */

/* gcc's own setjmp saves three words where libc's saves all registers: threads are switched at every warp operation */
typedef void *jump[5];

struct coroutine {
	jump at;
	bool begun;
};

struct warp {
	struct emu_word words[2][32];
	unsigned arrived, turn;
};

struct emu_index threadIdx, blockIdx, blockDim, gridDim;
char *emu_shared;
static struct coroutine *coroutines;
static ucontext_t *starts; /* of the coroutines */
static struct warp warps[MOST_THREADS / 32];
static unsigned ready[2][MOST_THREADS], ready_n[2]; /* threads; [1]: of lazy warps */
static unsigned at_barrier, finished, current;
static unsigned paused[MOST_THREADS], paused_n;
static uint64_t lazy; /* warps, a bit each */
static jump scheduler;
static const std::function<void()> *thread_main;

static void make_ready(unsigned t)
{
	unsigned is_lazy = lazy >> t / 32 & 1;
	ready[is_lazy][ready_n[is_lazy]++] = t;
}

/* Not inlined: in the function that calls __builtin_setjmp, gcc must see a call that may come back to it */
static __attribute__((noinline, noreturn)) void jump_to(jump to) { __builtin_longjmp(to, 1); }

static __attribute__((noinline)) void leave(void)
{
	if (!__builtin_setjmp(coroutines[current].at)) jump_to(scheduler);
	__asm__ volatile("" ::: "memory"); /* others ran meanwhile, which the compiler cannot see */
}

void emu_pause(void)
{
	paused[paused_n++] = current;
	leave();
}

void emu_resume(void)
{
	while (paused_n) make_ready(paused[--paused_n]);
}

static void coroutine_main(void)
{
	for (;;) {
		(*thread_main)();
		finished++;
		leave();
	}
}

static __attribute__((noinline)) void enter(unsigned t)
{
	struct coroutine *c = &coroutines[t];
	current = t;
	threadIdx.x = t;
	if (__builtin_setjmp(scheduler)) return;
	if (c->begun) jump_to(c->at);
	c->begun = true;
	setcontext(&starts[t]);
}

static void threads_make(void)
{
	char *stacks = (char *)mmap(NULL, (size_t)MOST_THREADS * STACK, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	coroutines = (struct coroutine *)calloc(MOST_THREADS, sizeof *coroutines);
	starts = (ucontext_t *)calloc(MOST_THREADS, sizeof *starts);
	if (stacks == MAP_FAILED || !coroutines || !starts) die("no memory for threads");
	for (unsigned t = 0; t < MOST_THREADS; t++) {
		ucontext_t *u = &starts[t];
		getcontext(u);
		u->uc_stack.ss_sp = stacks + (size_t)t * STACK;
		u->uc_stack.ss_size = STACK;
		u->uc_link = NULL;
		makecontext(u, coroutine_main, 0);
	}
}

/* A ready thread. Some warps, others after each barrier, hang behind: a warp keeps its lanes together, so it is whole
 * warps that overtake each other when a barrier is missing. They are drawn when no other is ready, and now and then. */
static unsigned thread_draw(void)
{
	static uint64_t bits;
	/* PCG's multiplier (O'Neill 2014); its high bits are good enough here, and there is one draw for every switch */
	bits = bits * 6364136223846793005u + randomness;
	unsigned is_lazy = !ready_n[0] || (ready_n[1] && bits >> 60 == 0), n = ready_n[is_lazy];
	unsigned i = (unsigned)((bits >> 28 & UINT32_MAX) * n >> 32), t = ready[is_lazy][i];
	ready[is_lazy][i] = ready[is_lazy][--ready_n[is_lazy]];
	return t;
}

/* ---- asynchronous copies to shared memory ---- */

struct copy16 {
	void *dst;
	const void *src;
	unsigned group;
};
static struct copies {
	std::vector<copy16> pending;
	unsigned group; /* the one that is open */
} copies[MOST_THREADS];

void emu_copy16(void *dst, const void *src)
{
	struct copies *c = &copies[threadIdx.x];
	saw(EMU_COPY, dst, src);
	if (draw(4) == 0) memcpy(dst, src, 16);
	else memset(dst, POISON, 16);
	c->pending.push_back({dst, src, c->group});
}

void emu_copies_commit(void) { copies[threadIdx.x].group++; }

void emu_copies_wait(unsigned groups)
{
	struct copies *c = &copies[threadIdx.x];
	size_t kept = 0;
	for (const struct copy16 &p : c->pending)
		if (p.group + groups < c->group) {
			memcpy(p.dst, p.src, 16);
			saw(EMU_ARRIVED, p.dst, p.src);
		} else c->pending[kept++] = p;
	c->pending.resize(kept);
}

static void copies_forget(unsigned threads)
{
	for (unsigned t = 0; t < threads; t++) {
		copies[t].pending.clear();
		copies[t].group = 0;
	}
}

static void all_ready(unsigned threads)
{
	lazy = draw(UINT32_MAX);
	for (unsigned t = 0; t < threads; t++) make_ready(t);
}

static void block_run(unsigned threads)
{
	ready_n[0] = ready_n[1] = at_barrier = finished = paused_n = 0;
	copies_forget(threads);
	emu_tiles_begin();
	all_ready(threads);
	for (unsigned w = 0; w < threads / 32; w++) warps[w].arrived = warps[w].turn = 0;
	while (finished < threads) {
		while (!ready_n[0] && !ready_n[1]) {
			if (paused_n) {
				if (!emu_tiles_arrive()) die("threads wait at mbarriers for ever");
				continue;
			}
			if (!at_barrier || at_barrier + finished < threads) die("a warp operation that not all lanes reach");
			if (finished) die("a barrier that not all threads reach");
			at_barrier = 0;
			saw(EMU_BARRIER, NULL, NULL);
			all_ready(threads);
		}
		enter(thread_draw());
	}
	emu_tiles_end();
}

static void grid_run(uint64_t blocks, unsigned threads, size_t bytes, const std::function<void()> &thread)
{
	static std::vector<char> shared;

	if (!coroutines) threads_make();
	shared.resize(bytes + 64);
	emu_shared = (char *)(((uintptr_t)shared.data() + 63) & ~(uintptr_t)63);
	thread_main = &thread;
	blockDim = {threads, 1, 1};
	gridDim = {(unsigned)blocks, 1, 1};
	saw(EMU_LAUNCH, emu_shared, emu_shared + bytes);
	for (uint64_t b = 0; b < blocks; b++) {
		blockIdx = {(unsigned)b, 0, 0};
		memset(emu_shared, POISON, bytes);
		saw(EMU_BLOCK, NULL, NULL);
		block_run(threads);
	}
	saw(EMU_END, NULL, NULL);
}

void __syncthreads(void)
{
	at_barrier++;
	leave();
}

void emu_exchange(const struct emu_word *mine, const struct emu_word **all)
{
	struct warp *w = &warps[threadIdx.x / 32];
	unsigned turn = w->turn & 1, first = threadIdx.x & ~31u;
	saw(EMU_WARP, NULL, NULL);
	/* two sets of words: a lane that is one operation ahead does not disturb those that still read */
	w->words[turn][threadIdx.x & 31] = *mine;
	*all = w->words[turn];
	if (++w->arrived < 32) {
		leave();
		return;
	}
	w->arrived = 0;
	w->turn++;
	for (unsigned t = first; t < first + 32; t++)
		if (t != threadIdx.x) make_ready(t);
}

void __syncwarp(unsigned)
{
	struct emu_word mine = {{0}};
	const struct emu_word *all;
	saw(EMU_SYNCWARP, NULL, NULL);
	emu_exchange(&mine, &all);
}

/* ---- streams ---- */

/* What a kernel for 9.0 alone can ask for; what every target from sm_80 on takes: sm_86, sm_89 and sm_120 have 99 KiB
 * of shared memory a block. No target gives more than 48 KiB to a kernel that has not asked for it. */
#define SHARED_MOST (227u << 10)
#define SHARED_OF_ALL (99u << 10)
#define SHARED_GIVEN (48u << 10)

static std::map<const void *, size_t> shared_asked;

const void *emu_aligned(const void *p, size_t bytes)
{
	if ((uintptr_t)p % bytes) die("an access off its alignment");
	saw(EMU_WIDE, p, __builtin_return_address(0));
	return p;
}

/* MT_EMU_DEVICES=N: N devices. Each thread of the host has one, which all that it uses must be of. */
static thread_local int device;
static int devices(void)
{
	const char *n = getenv("MT_EMU_DEVICES");
	return n ? atoi(n) : 1;
}
static void must_be_mine(int of)
{
	if (of != device) die("a thread uses what is of another device than its own");
}

struct emu_stream {
	std::deque<std::function<bool()>> queue; /* false: held back by an event */
	int of;                                  /* the device */
};
struct emu_event {
	int of;
	uint64_t recorded, reached;
	bool timed;
	double at;
};

static std::vector<cudaStream_t> streams;
static std::mutex pinned_lock; /* memory is registered by another thread */
static std::map<char *, size_t> pinned, allocated;
static std::map<const char *, int> device_of; /* that is allocated */

static cudaError_t last_error; /* of the host's thread */
bool emu_broken;

static double taken_ms; /* by what only says so */

extern "C" void emu_takes(double ms) { taken_ms += ms; }

static double now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6 + taken_ms;
}

/* How likely a stream is drawn, and that something runs at a launch, in 100; for some draws */
static unsigned odds[8], eager, draws;

static void change_odds(void)
{
	static const unsigned some[] = {0, 1, 20, 400}, often[] = {0, 20, 40, 70}, many[] = {1, 8, 30, 100};
	for (unsigned i = 0; i < 8; i++) odds[i] = some[draw(4)];
	eager = often[draw(4)];
	draws = many[draw(4)];
}

/* A stream, by the odds; n: any */
static unsigned stream_draw(unsigned n)
{
	unsigned sum = 0, i = 0;
	for (unsigned k = 0; k < n; k++) sum += odds[k % 8];
	if (!sum) return (unsigned)draw(n);
	for (uint64_t r = draw(sum); r >= odds[i % 8]; i++) r -= odds[i % 8];
	return i;
}

/* The one that is drawn, or else, if it is held back, another one: if it can be, not one of those that are to lag */
static bool run_one(void)
{
	unsigned n = (unsigned)streams.size(), from;
	if (!n) return false;
	if (draws-- == 0) change_odds();
	from = stream_draw(n);
	for (unsigned i = 0; i < 2 * n; i++) {
		unsigned k = (from + i) % n;
		cudaStream_t s = streams[k];
		if ((i >= n || odds[k % 8]) && !s->queue.empty() && s->queue.front()()) {
			s->queue.pop_front();
			return true;
		}
	}
	return false;
}

static void enqueue(cudaStream_t s, std::function<bool()> f)
{
	must_be_mine(s->of);
	s->queue.push_back(f);
	while (draw(100) < eager && run_one())
		;
}

void emu_launch(const void *kernel, uint64_t blocks, unsigned threads, size_t bytes, cudaStream_t stream,
	std::function<void()> thread)
{
	auto asked = shared_asked.find(kernel);

	if (!blocks || blocks > INT32_MAX || !threads || threads > MOST_THREADS || threads % 32)
		die("a launch that no GPU takes");
	if (bytes > (asked == shared_asked.end() ? SHARED_GIVEN : asked->second))
		die("more shared memory than the kernel has asked for");
	if (!stream) grid_run(blocks, threads, bytes, thread);
	else
		enqueue(stream, [=] {
			grid_run(blocks, threads, bytes, thread);
			return true;
		});
}

/* Does one range hold all of [p, p + bytes)? */
static bool one_holds(const std::map<char *, size_t> &ranges, const void *p, size_t bytes)
{
	auto after = ranges.upper_bound((char *)p);

	if (after == ranges.begin()) return false;
	--after;
	return (char *)p + bytes <= after->first + after->second;
}

/* Does any range have a byte of it? */
static bool one_meets(const std::map<char *, size_t> &ranges, const void *p, size_t bytes)
{
	auto after = ranges.lower_bound((char *)p + bytes);

	return after != ranges.begin() && (--after, after->first + after->second > (char *)p);
}

extern "C" {

cudaError_t cudaGetDeviceCount(int *n)
{
	const char *seed = getenv("MT_EMU_SEED");
	if (getenv("MT_EMU_NO_DRIVER")) return cudaErrorInsufficientDriver;
	if (seed) emu_seed(strtoull(seed, NULL, 10));
	return *n = devices(), cudaSuccess;
}
cudaError_t cudaSetDevice(int number)
{
	if (number < 0 || number >= devices()) return cudaErrorInvalidValue;
	return device = number, cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *v) { return *v = 13000, cudaSuccess; }
/* (no NVML of a GPU that is here knows them) */
cudaError_t cudaDeviceGetPCIBusId(char *id, int bytes, int number)
{
	return snprintf(id, (size_t)bytes, "emulated:%02x:00.0", number), cudaSuccess;
}
/* MT_EMU_GPU=NAME[,NAME...] of each device, of the last one also of those that follow */
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int number)
{
	*p = (struct cudaDeviceProp){};
	const char *name = getenv("MT_EMU_GPU"), *next;
	for (int i = 0; name && i < number && (next = strchr(name, ',')); i++) name = next + 1;
	if (!name) name = "emulated";
	snprintf(p->name, sizeof p->name, "%.*s", (int)strcspn(name, ","), name);
	const char *capability = getenv("MT_EMU_CAPABILITY"); /* 120: 12.0 */
	p->major = capability ? atoi(capability) / 10 : 9;
	p->minor = capability ? atoi(capability) % 10 : 0;
	p->multiProcessorCount = 2;
	p->totalGlobalMem = 4ull << 30;
	return cudaSuccess;
}
/* MT_EMU_HOST_TABLES: it uses the host's page tables, as GH200; `waits`: a copy of memory that is not pinned waits for
 * its stream, and the fifth ends the program. With MT_EMU_INTEGRATED its memory is the host's, as
 * GB10's */
static bool host_tables(void) { return getenv("MT_EMU_HOST_TABLES"); }
static int waited_for; /* copies that waited */
cudaError_t cudaDeviceGetAttribute(int *n, enum cudaDeviceAttr a, int)
{
	*n = a == cudaDevAttrIntegrated                              ? getenv("MT_EMU_INTEGRATED") != NULL
		: a == cudaDevAttrPageableMemoryAccessUsesHostPageTables ? host_tables()
		: a == cudaDevAttrClockRate                              ? 1000000
		: a == cudaDevAttrMultiProcessorCount                    ? 100
		: a == cudaDevAttrMemoryClockRate                        ? 1000000
																 : 4096;
	return cudaSuccess;
}

/* Device memory: MT_EMU_MEMORY=BYTES[,BYTES...] of each device, of the last one also of those that follow; 4 GiB
 * otherwise */
static size_t memory_total(void)
{
	const char *bytes = getenv("MT_EMU_MEMORY"), *next;
	for (int i = 0; bytes && i < device && (next = strchr(bytes, ',')); i++) bytes = next + 1;
	return bytes ? strtoull(bytes, nullptr, 10) : 4ull << 30;
}
static size_t memory_used(void)
{
	size_t used = 0;
	for (const auto &a : allocated) used += device_of[a.first] == device ? a.second : 0;
	return used;
}
cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
	const char *lies = getenv("MT_EMU_LIES"); /* bytes that are reported as free and are not */
	*total = memory_total();
	*available = *total - memory_used() + (lies ? strtoull(lies, nullptr, 10) : 0);
	return cudaSuccess;
}

static cudaError_t allocate(void **p, size_t n)
{
	*p = aligned_alloc(2u << 20, (n + (2u << 20) - 1) >> 21 << 21);
	if (!*p) return cudaErrorMemoryAllocation;
	memset(*p, POISON, n);
	return cudaSuccess;
}
cudaError_t cudaMalloc(void **p, size_t n)
{
	if (memory_used() > memory_total() || n > memory_total() - memory_used() || allocate(p, n))
		return cudaErrorMemoryAllocation;
	allocated[(char *)*p] = n;
	device_of[(char *)*p] = device;
	return cudaSuccess;
}
cudaError_t cudaFree(void *p)
{
	cudaDeviceSynchronize();
	if (p) must_be_mine(device_of[(char *)p]);
	device_of.erase((char *)p);
	allocated.erase((char *)p);
	free(p);
	return cudaSuccess;
}
/* MT_EMU_HOST_MOST: more bytes at once cannot be pinned */
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned)
{
	const char *most = getenv("MT_EMU_HOST_MOST");
	cudaError_t e = most && n > strtoull(most, NULL, 10) ? cudaErrorMemoryAllocation : allocate(p, n);
	std::lock_guard<std::mutex> held(pinned_lock);

	if (!e) pinned[(char *)*p] = n;
	return e;
}
cudaError_t cudaFreeHost(void *p)
{
	cudaHostUnregister(p);
	free(p);
	return cudaSuccess;
}
cudaError_t cudaHostRegister(void *p, size_t n, unsigned)
{
	std::lock_guard<std::mutex> held(pinned_lock);

	if (host_tables()) die("memory is registered that the GPU reads by the host's page tables");
	if (getenv("MT_EMU_NO_PINNING") || !n) return cudaErrorInvalidValue;
	if (one_meets(pinned, p, n)) return cudaErrorHostMemoryAlreadyRegistered;
	pinned[(char *)p] = n;
	return cudaSuccess;
}
cudaError_t cudaHostUnregister(void *p)
{
	std::lock_guard<std::mutex> held(pinned_lock);

	return pinned.erase((char *)p) ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
	*s = new struct emu_stream;
	(*s)->of = device;
	streams.push_back(*s);
	return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
	for (size_t i = 0; i < streams.size(); i++)
		if (streams[i] == s) streams.erase(streams.begin() + (long)i);
	delete s;
	return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
	*e = new emu_event{device, 0, 0, !(flags & cudaEventDisableTiming), 0};
	return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e) { return delete e, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
	uint64_t mine = ++e->recorded;
	must_be_mine(e->of);
	enqueue(s, [=] {
		e->at = e->timed ? now_ms() : 0;
		e->reached = mine;
		return true;
	});
	return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
	uint64_t wanted = e->recorded;
	must_be_mine(e->of);
	enqueue(s, [=] { return e->reached >= wanted; });
	return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t e)
{
	const char *wgmma = getenv("MT_EMU_WGMMA");
	if (wgmma && !strcmp(wgmma, "hangs")) return last_error = cudaErrorNotReady;
	if (e->reached < e->recorded && draw(2)) run_one();
	return e->reached >= e->recorded ? cudaSuccess : last_error = cudaErrorNotReady;
}
static cudaError_t waited(void) { return emu_broken ? cudaErrorLaunchFailure : cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
	while (e->reached < e->recorded)
		if (!run_one()) die("streams wait for each other");
	return waited();
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
	if (!from->timed || !to->timed || !from->recorded || !to->recorded) return cudaErrorInvalidValue;
	if (from->reached < from->recorded || to->reached < to->recorded) return cudaErrorNotReady;
	*ms = (float)(to->at - from->at);
	return cudaSuccess;
}
/* Device memory that p is in must be the thread's device's */
static void must_own(const void *p)
{
	auto after = device_of.upper_bound((const char *)p);
	if (after == device_of.begin()) return;
	const auto &in = *--after;
	if ((const char *)p < in.first + allocated[(char *)in.first]) must_be_mine(in.second);
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s)
{
	const void *host = kind == cudaMemcpyHostToDevice ? from : kind == cudaMemcpyDeviceToHost ? to : NULL;
	std::unique_lock<std::mutex> held(pinned_lock);

	if (host && !host_tables() && !one_holds(pinned, host, n))
		die("an asynchronous copy of memory that is not pinned, or of two registrations");
	if ((to != host && !one_holds(allocated, to, n)) || (from != host && !one_holds(allocated, from, n)))
		die("a copy beyond an allocation of the device");
	must_own(to);
	must_own(from);
	bool waits = host && host_tables() && !strcmp(getenv("MT_EMU_HOST_TABLES"), "waits") && !one_holds(pinned, host, n);
	if (waits && waited_for++ == 4) die("a copy that waits for its stream");
	held.unlock();
	if (waits) cudaDeviceSynchronize();
	/* what it writes is garbage first, then it runs in parts; anything may come between */
	size_t part = draw(n + 1);
	enqueue(s, [=] {
		memset(to, POISON, n);
		return true;
	});
	enqueue(s, [=] {
		memcpy(to, from, part);
		return true;
	});
	enqueue(s, [=] {
		memcpy((char *)to + part, (const char *)from + part, n - part);
		return true;
	});
	return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void *arg)
{
	enqueue(s, [=] {
		f(arg);
		return true;
	});
	return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void)
{
	while (run_one())
		;
	for (cudaStream_t s : streams)
		if (!s->queue.empty()) die("streams wait for each other");
	return waited();
}
/* MT_EMU_NO_CODE: the kernels were built for other GPUs; MT_EMU_WGMMA=none: those of 9.0 alone */
cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute, int value)
{
	const char *wgmma = getenv("MT_EMU_WGMMA");
	bool lacks = wgmma && !strcmp(wgmma, "none") && (unsigned)value > SHARED_OF_ALL;
	if (getenv("MT_EMU_NO_CODE") || lacks) return cudaErrorNoKernelImageForDevice;
	if (value < 0 || (unsigned)value > SHARED_MOST) return cudaErrorInvalidValue;
	shared_asked[kernel] = (size_t)value;
	return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *to, int byte, size_t n, cudaStream_t s)
{
	must_own(to);
	if (s)
		enqueue(s, [=] {
			memset(to, byte, n);
			return true;
		});
	else memset(to, byte, n);
	return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaDeviceSynchronize(); }
cudaError_t cudaMemset(void *to, int byte, size_t n)
{
	cudaDeviceSynchronize();
	memset(to, byte, n);
	return cudaSuccess;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t n, enum cudaMemcpyKind)
{
	must_own(to);
	must_own(from);
	cudaDeviceSynchronize();
	memcpy(to, from, n);
	return cudaSuccess;
}
/* MT_EMU_FAIL=N: launch N fails, and all later waits, as for a GPU that is lost */
cudaError_t cudaGetLastError(void)
{
	static const char *fail = getenv("MT_EMU_FAIL");
	static long launches;
	cudaError_t e = last_error;

	last_error = cudaSuccess;
	emu_broken |= fail && ++launches == atol(fail);
	return emu_broken ? cudaErrorLaunchFailure : e;
}
const char *cudaGetErrorName(cudaError_t e)
{
	return e == cudaErrorInvalidValue ? "cudaErrorInvalidValue"
		: e == cudaErrorLaunchFailure ? "cudaErrorLaunchFailure"
									  : "cudaError";
}
const char *cudaGetErrorString(cudaError_t) { return "emulated error"; }
}
