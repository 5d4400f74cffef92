/* device.c: a GPU as a device: finding, opening, attaching and closing it. Nothing waits for the whole device and
 * nothing is allocated within a step.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cuda.h"
#include "gpu.h"
#include "mt/control.h"
#include "pool.h"
#include "layers/block.h"
#include "mt/choices.h"
#include "mt/error.h"
#include "mt/run.h"

#define GEMM_BYTES (64u << 20) /* cuBLASLt's workspace */
#define BLOCKS 1024            /* registrations of the gradient ring at most */
#define COPIERS 4              /* threads of staged copies at most */
#define OWN_WORDS "own tiles, ordered sums"
#define BACKEND_KEY "attention by a library"
#define WGMMA_KEY "GEMMs of experts by wgmma"

/* ---- opening and closing ---- */

/* NULL: *why says why, or is empty: not wanted */
static struct sdpa *library_open(const struct cuda *c, char *why)
{
#if defined(MT_EMU) || defined(HAVE_CUDNN)
	const char *path = getenv("MT_CUDNN");

	return path && !strcmp(path, "none") ? NULL : cudnn_open(c->ordinal, c->sm, c->sms, why);
#else
	(void)c, (void)why; /* make reported it when mt-stream was built without cuDNN */
	return NULL;
#endif
}

/* Open the attention backend's library. false: it is not there, or the run's record names another one */
static bool backend_load(struct cuda *c, const struct mt_geometry *geo)
{
	char why[256] = "";
	struct sdpa *sdpa = library_open(c, why);
	if (sdpa) c->backend = backend_open(sdpa, geo);
	else if (*why && !mt_record(c->run)) /* if set, the record names another backend: that is reported as an error */
		mt_say("cuda: attention by our own kernels: %s", why);
	return c->backend != NULL;
}

/* Does it compute short rows as our own kernels do? */
static enum tested backend_try(struct cuda *c, uint32_t seq)
{
	const struct mt_geometry *geo = mt_geometry(c->run);
	(void)seq;
	if (!backend_load(c, geo)) return TEST_NONE;
	if (!backend_check(c->backend, &c->compute, geo)) return TEST_PASSED;
	mt_say("cuda: attention by our own kernels: %s: %s", backend_name(c->backend), mt_errmsg());
	return TEST_FAILED;
}

/* Use the attention backend if its library is there, passes the check, and the run was not begun without it */
static int backend_find(struct cuda *c, const struct mt_geometry *geo)
{
	const struct mt_record *set = mt_record(c->run);
	bool with = false;
	int rc = 0;
	snprintf(c->attention, sizeof c->attention, OWN_WORDS);
	if (c->dev.elem != 2 || !attention_plain(geo)) return 0;
	if (set) {
		if (strncmp(set->attention, OWN_WORDS, sizeof set->attention)) backend_load(c, geo);
	} else if (!tested_before(c, BACKEND_KEY, &with)) {
		rc = test_once(c, BACKEND_KEY, backend_try, 0, &with);
	} else if (with) {
		backend_load(c, geo);
	}
	if (!set && !with) {
		backend_close(c->backend);
		c->backend = NULL;
	}
	if (c->backend) snprintf(c->attention, sizeof c->attention, "%s", backend_name(c->backend));
	return rc;
}

/* ---- GEMMs of experts ---- */

static enum tested wgmma_try(struct cuda *c, uint32_t seq)
{
	(void)seq;
	if (!wgmma_check(&c->compute, c->sms)) return TEST_PASSED;
	mt_say("cuda: GEMMs of experts without wgmma: %s", mt_errmsg());
	return TEST_FAILED;
}

/* Use wgmma if the GPU has it, it passes the check, and the run was not begun without it */
static int wgmma_find(struct cuda *c, const struct mt_geometry *geo)
{
	bool with = false;
	int rc = 0;
	if (c->dev.elem != 2 || !mt_layer_most(geo).experts) return 0;
	if (!tested_before(c, WGMMA_KEY, &with) && c->wgmma && !mt_record(c->run))
		rc = test_once(c, WGMMA_KEY, wgmma_try, 0, &with);
	if (with && !c->wgmma)
		return mt_fail(MT_EX_CONFIG, "cuda: the run was begun with wgmma, which this GPU or its driver lacks");
	c->compute.wgmma_blocks = with ? c->sms : 0;
	return rc;
}

/* Everything whose size depends on the run; and start registering its weights */
static int cuda_attach(struct device *d, struct mt_run *r, int slot)
{
	struct cuda *c = (struct cuda *)d;
	const struct mt_control *control = mt_control(r);
	const struct mt_geometry *geo = mt_geometry(r);
	const struct mt_layer most = mt_layer_most(geo);
	int rc;
	c->run = r;
	c->slot = slot;
	gemms_attach(c->gemms, r);
	if (d->fp8 && (rc = gemms_fp8(c->gemms, c->sm))) return rc;
	c->dev.elem = c->dev.operand = mt_dtype_bytes(control->dtype);
	c->compute = (struct cuda_queue){.stream = c->q[Q_COMPUTE].stream, .elem = (int)c->dev.elem};
	c->compute.work_bytes = cuda_work_bytes((int64_t)control->step_tokens, most.heads);
	if (!ranges_open(&c->weights, weights_ranges(r, c->dev.elem)) || !ranges_open(&c->blocks, BLOCKS))
		return mt_fail(MT_EX_NOMEM, "no memory for %u units", control->n_units);
	c->spare = spare_of(c, control);
	if (!cuda_own_alloc(c, (void **)&c->compute.work, c->compute.work_bytes, "cudaMalloc of work memory"))
		return mt_fail(c->ex, "%s", c->why);
	if ((rc = backend_find(c, geo)) != 0 || (rc = wgmma_find(c, geo)) != 0) return rc;
	if (c->ex) return mt_fail(c->ex, "%s", c->why);
	c->sensors = sensors_begin(c->ordinal, mt_control(r)->slots[slot].gpu);
	atomic_init(&c->stop, false);
	if (c->gpu.host_tables) return 0; /* weights need not be registered */
	c->registering = !pthread_create(&c->registrar, NULL, registrar_main, c);
	return 0;
}

static void cuda_close(struct device *d)
{
	struct cuda *c = (struct cuda *)d;
	sensors_end(c->sensors);
	atomic_store(&c->stop, true);
	if (c->registering) pthread_join(c->registrar, NULL);
	cudaDeviceSynchronize(); /* after an error, copies may still use the memory that is released now */
	ranges_close(&c->weights);
	ranges_close(&c->blocks);
	backend_close(c->backend);
	gemms_close(c->gemms);
	for (size_t i = 0; i < c->timestamps_room && c->timestamps[i].event; i++) cudaEventDestroy(c->timestamps[i].event);
	free(c->timestamps);
	for (enum queue q = 0; q < QUEUES; q++) stream_close(&c->q[q]);
	pool_free(c->copiers);
	cudaFree(c->compute.work);
	cudaFree(c->gemm_workspace);
	free(c);
}

/* The first call that needs machine code for this GPU, or PTX of an older one */
static int kernels_open(int ordinal, const struct cudaDeviceProp *p)
{
	cudaError_t e = cuda_kernels_prepare();
	if (e == cudaErrorNoKernelImageForDevice || e == cudaErrorInvalidDeviceFunction)
		return mt_fail(MT_EX_CONFIG,
			"device cuda:%d: mt-stream was built without code for compute capability %d.%d ('%s'): build it on a "
			"machine with such a GPU, or for all of them (make cuda-all)",
			ordinal, p->major, p->minor, p->name);
	return e == cudaSuccess ? 0 : cuda_failed(e, "cudaFuncSetAttribute");
}

static int cuda_open(struct cuda *c)
{
	struct cudaDeviceProp p;
	int rc = gpu_open(c->ordinal, &p, &c->gpu), ex = MT_EX_CONFIG;
	if (!rc) {
		c->dev.gpu = &c->gpu;
		if (!c->gpu.host_tables)
			c->copiers = pool_create(mt_cores() < COPIERS ? mt_cores() : COPIERS, POOL_SPINS, NULL);
	}
	for (enum queue q = 0; !rc && q < QUEUES; q++)
		if (!stream_open(c, &c->q[q])) rc = -c->ex;
	if (!rc) rc = kernels_open(c->ordinal, &p);
	if (!rc && !cuda_own_alloc(c, &c->gemm_workspace, GEMM_BYTES, "cudaMalloc of cuBLASLt's workspace")) rc = -c->ex;
	if (!rc && c->gpu.host_tables) copies_try(c);
	if (!rc && !(c->gemms = gemms_open(c->gemm_workspace, GEMM_BYTES, &ex))) return -ex;
	if (rc) return c->ex ? mt_fail(c->ex, "%s", c->why) : rc;
	c->dev.gemm = gemms_name(c->gemms);
	snprintf(c->machine, sizeof c->machine, "%.36s, sm_%d%d, %d SMs", p.name, p.major, p.minor, p.multiProcessorCount);
	c->dev.machine = c->machine;
	c->wgmma = cuda_wgmma_prepare();
	c->sm = p.major * 10 + p.minor;
	c->sms = p.multiProcessorCount;
	return 0;
}

/* Where the GPU has memory of its own (GH200), GEMMs read weights there: it is some ten times as fast, and a weight is
 * read several times */
static const void *cuda_zero_copy(struct device *d, const void *host, enum mt_dtype dtype)
{
	(void)dtype; /* operands have the run's */
	return d->gpu->unified && d->gpu->host_tables ? host : NULL;
}

/* Host memory that is copied directly is in the device's address space, too. While it is being registered, it is
 * copied. */
static const void *cuda_read_rows(struct device *d, const void *host, size_t bytes, enum mt_dtype dtype)
{
	(void)dtype;
	bool reads = d->gpu->reads_registered || d->gpu->host_tables;
	return reads && is_direct((struct cuda *)d, host, bytes) ? host : NULL;
}

struct device *device_cuda(int ordinal, int *ex)
{
	struct cuda *c = calloc(1, sizeof *c);
	if (!c) {
		*ex = -mt_fail(MT_EX_NOMEM, "device cuda: no memory");
		return NULL;
	}
	c->dev = (struct device){
		.name = "cuda",
		.attention = c->attention,
		.elem = sizeof(float),
		.operand = sizeof(float),
		.room = cuda_room,
		.alloc = cuda_alloc,
		.release = cuda_release,
		.launch = cuda_launch,
		.record = cuda_record,
		.wait = cuda_wait,
		.query = cuda_query,
		.sync = cuda_sync,
		.close = cuda_close,
		.times = cuda_times,
		.attach = cuda_attach,
		.autotune = cuda_autotune,
		.attention_need = cuda_attention_need,
		.attention_select = cuda_attention_select,
		.host_alloc = cuda_host_alloc,
		.host_release = cuda_host_release,
		.host_register = cuda_host_register,
		.zero_copy = cuda_zero_copy,
		.read_rows = cuda_read_rows,
	};
	c->ordinal = ordinal;
	atomic_flag_clear(&c->refused);
	int rc = cuda_open(c);
	if (rc) {
		free(c);
		*ex = -rc;
		return NULL;
	}
	return &c->dev;
}
