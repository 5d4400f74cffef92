/* cuda.h: what the files of the cuda device share; only they include it */
#ifndef MT_STREAM_CUDA_CUDA_H
#define MT_STREAM_CUDA_CUDA_H

#include <pthread.h>
#include <stdatomic.h>

#include "backend.h"
#include "device/device.h"
#include "gemm.h"
#include "host.h"
#include "kernels.h"

struct mt_control;

#ifndef EVENTS      /* smaller for the emulated GPU */
#define EVENTS 1024 /* of a queue, used in turn */
#endif
#define ARENAS 8

struct cuda_stream { /* a queue */
	cudaStream_t stream;
	cudaEvent_t events[EVENTS]; /* event number k is in k mod EVENTS */
	uint64_t recorded, over;    /* the number of the last event; of the last one known to have completed */
	struct bounce bounce;
};

struct allocation {
	const char *base;
	size_t bytes;
};

struct timestamp {
	cudaEvent_t event;
	double *at;
};

struct cuda {
	struct device dev;
	struct gpu gpu;
	int ordinal;
	uint64_t spare; /* bytes of device memory that are left to the driver */
	struct cuda_stream q[QUEUES];
	struct cuda_queue compute; /* as the kernels see it */
	struct gemms *gemms;
	struct backend *backend; /* attention backend; NULL: our own kernels */
	struct {
		uint32_t seq;
		bool selected, with;
	} rows; /* the row length last looked up in the record's table: is it there, and with the backend? */
	char attention[64];
	int sm, sms;     /* compute capability, 90 is 9.0; multiprocessors */
	bool wgmma;      /* its kernels can run */
	bool autotuning; /* autotune pass: launched operations do not run */
	char machine[64];
	void *gemm_workspace;
	struct allocation arenas[ARENAS], pinned[ARENAS]; /* allocated device memory; allocated pinned host memory */
	struct pool *copiers;                             /* threads of staged copies; NULL: one, or none is needed */

	struct mt_run *run;
	int slot;
	pthread_t registrar;
	bool registering;
	atomic_bool stop;
	struct ranges weights; /* registered by the thread `registrar` */
	struct ranges blocks;  /* of the gradient ring */
	atomic_flag refused;   /* a registration, and that was reported */
	bool unpinned;         /* pinning host memory failed, and that was reported */
	bool copies_wait;      /* of memory that is not pinned: a kernel copies it */
	struct sensors *sensors;

	struct timestamp *timestamps; /* of this micro-batch, if there is a trace */
	size_t timestamps_n, timestamps_room;
	double timestamps_from; /* time of the first one */

	int ex;        /* 0, or the exit code of the first error */
	char why[512]; /* its message */
};

/* events.c */
void error_keep(struct cuda *, int ex, const char *why);    /* the first one; later ones are ignored */
bool cuda_ok(struct cuda *, cudaError_t, const char *call); /* false: the error is kept as the device's */
bool stream_open(struct cuda *, struct cuda_stream *);
void stream_close(struct cuda_stream *);
void timestamp_record(struct cuda *, struct cuda_stream *, double *at);
struct event cuda_record(struct device *, enum queue);
void cuda_wait(struct device *, enum queue, struct event);
bool cuda_query(struct device *, struct event);
int cuda_sync(struct device *, struct event);
void cuda_times(struct device *);

/* memory.c */
/* Find out whether copies of host memory return at once, where the GPU uses the host's page tables */
void copies_try(struct cuda *);
/* Can all of it be copied directly? */
bool is_direct(struct cuda *, const void *p, size_t bytes);
void copy_host(struct cuda *, struct cuda_stream *, void *dst, const void *src, size_t bytes,
	bool in); /* from host memory, or to it */
void copy_any(struct cuda *, struct cuda_stream *, void *dst, const void *src, size_t bytes);
unsigned weights_ranges(struct mt_run *, size_t size);
void *registrar_main(void *cuda);
bool cuda_own_alloc(struct cuda *, void **, size_t bytes, const char *call);
uint64_t spare_of(const struct cuda *, const struct mt_control *);
void *cuda_alloc(struct device *, size_t bytes);
void cuda_release(struct device *, void *, size_t bytes);
uint64_t cuda_room(struct device *);
void *cuda_host_alloc(struct device *, size_t bytes);
void cuda_host_release(struct device *, void *);
void cuda_host_register(struct device *, const void *, size_t bytes);

/* nvml.c: from begin to end, the sensors of GPU `ordinal` are read into slot[MT_GPU_WORDS], if they can be */
struct sensors *sensors_begin(int ordinal, _Atomic uint64_t *slot);
void sensors_end(struct sensors *);

/* wgmma-check.c: do grouped GEMMs by wgmma, in this number of blocks, compute what others do? 0, or -74. If they do not
 * end, SIGABRT ends the program. */
int wgmma_check(const struct cuda_queue *, int blocks);

/* execute.c */
void cuda_launch(struct device *, enum queue, const struct op *);
int cuda_autotune(struct device *, bool on);
struct attention_need cuda_attention_need(struct device *, uint32_t seq, bool packed, bool train);
int cuda_attention_select(struct device *, uint32_t seq, bool *with);
/* Test what key names, and enter into the record's table whether the run uses it (*with). The first entry stands. If
 * the device breaks or a library crashes meanwhile, the entry says no, so that a successor does not try again. 0, or
 * -ex; TEST_NONE: there was no library, nothing is entered. */
enum tested { TEST_NONE, TEST_PASSED, TEST_FAILED };
typedef enum tested test_fn(struct cuda *, uint32_t seq);
int test_once(struct cuda *, const char *key, test_fn *, uint32_t seq, bool *with);
bool tested_before(struct cuda *, const char *key, bool *with); /* false: there is no such entry */

#endif
