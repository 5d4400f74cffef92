/* memory.c: device memory, pinned and registered host memory, and copies between them.
 *
 * Host memory that is registered with the driver is copied directly. The gradient ring's blocks are registered before
 * the first step; a thread registers the store's weights unit by unit, in forward order, while the first step runs. All
 * other host memory is copied through bounce buffers (host.h).
 *
 * A GPU that uses the host's page tables (GH200, GB200, GB300, GB10) copies all host memory directly. There
 * cudaHostRegister pins nothing, it only populates pages (CUDA driver API, cuMemHostRegister), and mt-store create has
 * done that: so nothing is registered, and no page tables of the GPU's own are needed. Copies of memory that is not
 * pinned may wait until the stream has come to them (CUDA runtime API, "API synchronization behavior"), and then one
 * piece at a time would be on its way. So that is tried once; if they wait, a kernel copies. Not measured yet on such a
 * GPU.
 */
#include <stdlib.h>
#include <time.h>

#include "cli/cli.h"
#include "cuda.h"
#include "gpu.h"
#include "mt/control.h"
#include "mt/run.h"

#ifndef REGISTER_MOST              /* smaller for the emulated GPU */
#define REGISTER_MOST (1ull << 30) /* bytes for each call of cudaHostRegister: a long one delays other threads' calls */
#endif
#define SPARE_LEAST (256ull << 20) /* device memory left to the driver (kernels loaded later, page tables), */
#define SPARE_PART 32              /* at least 1 / SPARE_PART of what is free */
/* Registered host memory needs at most 1 / PAGE_TABLE of its size in the GPU's page tables: 8 bytes for 4 KiB, the
 * smallest page that a GPU has, also where the host's pages have 64 KiB */
#define PAGE_TABLE 512

/* ---- copies ---- */

static bool within(const struct allocation *e, const void *p, size_t bytes)
{
	return (const char *)p >= e->base && (size_t)((const char *)p - e->base) <= e->bytes &&
		bytes <= e->bytes - (size_t)((const char *)p - e->base);
}

static bool on_device(const struct cuda *c, const void *p)
{
	for (int i = 0; i < ARENAS; i++)
		if (c->arenas[i].bytes && within(&c->arenas[i], p, 1)) return true;
	return false;
}

static bool is_pinned(const struct cuda *c, const void *p, size_t bytes)
{
	for (int i = 0; i < ARENAS; i++)
		if (c->pinned[i].bytes && within(&c->pinned[i], p, bytes)) return true;
	return false;
}

/* How many bytes from p on can be copied in one way, directly or through bounce buffers: one copy may not span two
 * registrations */
static size_t direct_bytes(struct cuda *c, const void *p, size_t bytes, bool *direct)
{
	const struct ranges *const known[] = {&c->weights, &c->blocks};
	*direct = c->gpu.host_tables;
	if (*direct || is_pinned(c, p, bytes)) return *direct = true, bytes;
	for (size_t i = 0; !*direct && i < sizeof known / sizeof *known; i++)
		bytes = ranges_alike(known[i], p, bytes, direct);
	return bytes;
}

bool is_direct(struct cuda *c, const void *p, size_t bytes)
{
	bool direct = true;
	for (size_t at = 0; at < bytes && direct;) at += direct_bytes(c, (const char *)p + at, bytes - at, &direct);
	return direct;
}

#define HOLD_S 0.02              /* how long the stream is held up */
#define TRIED_BYTES (256u << 10) /* smaller copies may be staged, and do not wait */

static void hold_up(void *arg)
{
	(void)arg;
	nanosleep(&(struct timespec){.tv_nsec = (long)(HOLD_S * 1e9)}, NULL);
}

/* Does a copy between this host memory and the device return only when the stream has come to it? */
static bool copy_waits(struct cuda *c, cudaStream_t stream, char *host, bool in)
{
	void *device = c->gemm_workspace;
	bool ok = cuda_ok(c, cudaLaunchHostFunc(stream, hold_up, NULL), "cudaLaunchHostFunc");
	double began = mt_now();
	ok = ok &&
		cuda_ok(c,
			in ? cudaMemcpyAsync(device, host, TRIED_BYTES, cudaMemcpyHostToDevice, stream)
			   : cudaMemcpyAsync(host, device, TRIED_BYTES, cudaMemcpyDeviceToHost, stream),
			"cudaMemcpyAsync");
	double took = mt_now() - began;
	return ok && cuda_ok(c, cudaStreamSynchronize(stream), "cudaStreamSynchronize") && took > HOLD_S / 2;
}

/* Twice: another program may have had the core */
void copies_try(struct cuda *c)
{
	cudaStream_t stream = c->q[Q_WEIGHTS].stream;
	char *host = calloc(1, TRIED_BYTES);
	for (int way = 0; host && way < 2 && !c->copies_wait; way++)
		c->copies_wait = copy_waits(c, stream, host, way == 0) && copy_waits(c, stream, host, way == 0);
	free(host);
	if (c->copies_wait) mt_say("cuda: copies of host memory wait for their stream: a kernel copies instead");
}

void copy_host(struct cuda *c, struct cuda_stream *s, void *dst, const void *src, size_t bytes, bool in)
{
	bool direct;
	for (size_t at = 0, n; at < bytes && !c->ex; at += n) {
		const char *from = (const char *)src + at;
		char *to = (char *)dst + at;
		n = direct_bytes(c, in ? from : to, bytes - at, &direct);
		if (c->copies_wait && !is_pinned(c, in ? from : to, n)) {
			cuda_copy(&(struct cuda_queue){.stream = s->stream}, to, from, n);
			cuda_ok(c, cudaGetLastError(), "copy by a kernel");
			continue;
		}
		cudaError_t e = direct
			? cudaMemcpyAsync(to, from, n, in ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, s->stream)
			: (in ? bounce_in : bounce_out)(&s->bounce, to, from, n);
		cuda_ok(c, e, in ? "copy to the device" : "copy to the host");
	}
}

void copy_any(struct cuda *c, struct cuda_stream *s, void *dst, const void *src, size_t bytes)
{
	if (on_device(c, dst) && on_device(c, src))
		cuda_ok(c, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, s->stream),
			"cudaMemcpyAsync on the device");
	else copy_host(c, s, dst, src, bytes, on_device(c, dst));
}

/* ---- registering host memory ---- */

/* The most calls of cudaHostRegister that the run's weights take */
unsigned weights_ranges(struct mt_run *r, size_t size)
{
	uint64_t n = 0;
	for (uint32_t u = 0; u < mt_control(r)->n_units; u++) n += mt_unit(r, u)->elems * size / REGISTER_MOST + 1;
	return (unsigned)n;
}

/* Reported once: if one piece of shared memory cannot be registered, the others cannot either */
static void registration_refused(struct cuda *c, const char *what, cudaError_t e)
{
	if (!atomic_flag_test_and_set(&c->refused))
		mt_say("cuda: cudaHostRegister of %s: %s; copies go through bounce buffers", what, cudaGetErrorName(e));
}

/* Register the weights, unit by unit in forward order */
void *registrar_main(void *arg)
{
	struct cuda *c = arg;
	struct mt_control *control = mt_control(c->run);
	size_t size = mt_dtype_bytes(control->dtype);
	cudaSetDevice(c->ordinal);
	for (uint32_t u = 0; u < control->n_units; u++) {
		const struct mt_unit *unit = mt_unit(c->run, u);
		const char *w = mt_at(c->run, unit->w);
		size_t bytes = unit->elems * size;
		for (size_t at = 0, piece; at < bytes; at += piece) {
			piece = bytes - at < REGISTER_MOST ? bytes - at : REGISTER_MOST;
			if (atomic_load(&c->stop)) return NULL;
			cudaError_t e = ranges_add(&c->weights, w + at, piece);
			if (e != cudaSuccess) {
				registration_refused(c, "weights", e);
				return NULL;
			}
		}
	}
	return NULL;
}

void cuda_host_register(struct device *d, const void *p, size_t bytes)
{
	struct cuda *c = (struct cuda *)d;
	cudaError_t e = cudaSuccess;
	if (c->gpu.host_tables) return;
	for (size_t at = 0; at < bytes && e == cudaSuccess; at += REGISTER_MOST)
		e = ranges_add(&c->blocks, (const char *)p + at, bytes - at < REGISTER_MOST ? bytes - at : REGISTER_MOST);
	if (e != cudaSuccess) registration_refused(c, "the gradient ring", e);
}

/* ---- memory ---- */

void *cuda_alloc(struct device *d, size_t bytes)
{
	struct cuda *c = (struct cuda *)d;
	void *p = NULL;
	for (int i = 0; i < ARENAS; i++)
		if (!c->arenas[i].bytes) {
			if (cudaMalloc(&p, bytes) != cudaSuccess) {
				cudaGetLastError();
				return NULL;
			}
			c->arenas[i] = (struct allocation){p, bytes};
			return p;
		}
	return NULL;
}

void cuda_release(struct device *d, void *p, size_t bytes)
{
	struct cuda *c = (struct cuda *)d;
	(void)bytes;
	for (int i = 0; p && i < ARENAS; i++)
		if (c->arenas[i].base == p) {
			cudaFree(p);
			c->arenas[i] = (struct allocation){0};
		}
}

/* Pinned memory; if the driver refuses, any memory, which is copied through bounce buffers: reported once. (Where the
 * GPU uses the host's page tables, other memory would do, but pages that it touches first lie in its own.) */
void *cuda_host_alloc(struct device *d, size_t bytes)
{
	struct cuda *c = (struct cuda *)d;
	cudaError_t e = cudaErrorMemoryAllocation;
	void *p = NULL;
	int i = 0;
	while (i < ARENAS && c->pinned[i].bytes) i++;
	if (i < ARENAS && (e = cudaHostAlloc(&p, bytes, cudaHostAllocDefault)) == cudaSuccess) {
		c->pinned[i] = (struct allocation){p, bytes};
		return p;
	}
	cudaGetLastError();
	if (!c->unpinned && !c->gpu.host_tables)
		mt_say("cuda: cudaHostAlloc of %.2f MiB for offloaded activations: %s; they are copied through bounce buffers, "
			   "which costs the host one more copy of each",
			(double)bytes / 0x1p20, cudaGetErrorName(e));
	c->unpinned = true;
	return malloc(bytes);
}

/* After an error, copies may still be running, for which nobody has waited */
void cuda_host_release(struct device *d, void *p)
{
	struct cuda *c = (struct cuda *)d;
	if (c->ex) cudaDeviceSynchronize();
	for (int i = 0; p && i < ARENAS; i++)
		if (c->pinned[i].base == p) {
			c->pinned[i] = (struct allocation){0};
			cudaFreeHost(p);
			return;
		}
	free(p);
}

/* Device memory that the device itself needs; it counts in every budget (dev.own) */
bool cuda_own_alloc(struct cuda *c, void **p, size_t bytes, const char *call)
{
	if (!cuda_ok(c, cudaMalloc(p, bytes), call)) return false;
	c->dev.own += bytes;
	return true;
}

/* How much of the free device memory the driver will need; to be called before host memory is registered */
uint64_t spare_of(const struct cuda *c, const struct mt_control *control)
{
	uint64_t weights = 0, part = gpu_available(&c->gpu) / SPARE_PART;
	for (uint32_t u = 0; u < control->n_units && !c->gpu.host_tables; u++)
		weights += mt_unit(c->run, u)->elems * c->dev.elem;
	return (part > SPARE_LEAST ? part : SPARE_LEAST) + weights / PAGE_TABLE;
}

uint64_t cuda_room(struct device *d)
{
	uint64_t available = gpu_available(d->gpu), spare = ((struct cuda *)d)->spare;
	return available > spare ? available - spare : 0;
}
