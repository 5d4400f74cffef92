/* wgmma.h: tensor cores of compute capability 9.0, by the warp group: c += a b in fp32, c (64, 256). a and b are tiles
 * in shared memory: the tensor memory accelerator (TMA) copies them, mbarriers say that they have arrived (PTX ISA
 * 9.0, 9.7.15 "wgmma", 9.7.9.27 "cp.async.bulk.tensor", 9.7.13.15 "mbarrier").
 *
 * All of this is asynchronous. A barrier's phase ends when as many threads have arrived as it was made for, and as many
 * bytes have been copied as they expected; phases are even and odd in turn. A wgmma reads tiles and changes c until
 * wgmma_wait. wgmma and copies see what threads have stored only after fence_async.
 *
 * A tile's rows have 128 bytes, whose pieces of 16 bytes are exchanged within each 8 rows (swizzle of 128 bytes), so
 * that 8 rows share no bank. It starts at a multiple of 1024 bytes. Either its rows are a's rows or b's columns, of 64
 * terms; or they are terms (`by_terms`), of 64 of a's rows or b's columns, and the next 64 are in a tile behind it. Of
 * c, a lane has of its warp's 16 rows and of every 8 columns what mma.h says.
 */
#ifndef MT_STREAM_CUDA_WGMMA_H
#define MT_STREAM_CUDA_WGMMA_H

#include "common.h"

#ifndef MT_EMU
#include <cuda.h>
#endif

#define ROW_BYTES 128   /* of a tile */
#define TILE_ALIGN 1024 /* 8 rows, after which the swizzle repeats */
#define ROW_ELEMS 64    /* of bf16 */
#define STEP_TERMS 16   /* of a wgmma */
#define WGMMA_M 64      /* rows of c */
#define WGMMA_N 256     /* columns of c */

/* ---- shared memory ---- */

static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
#ifdef MT_EMU
	return emu_shared_address(p);
#else
	return (uint32_t)__cvta_generic_to_shared(p);
#endif
}

/* ---- barriers ---- */

static __device__ __forceinline__ void barrier_init(uint64_t *b, int arrivals)
{
#ifdef MT_EMU
	emu_barrier_init(b, (unsigned)arrivals);
#else
	asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
#endif
}

static __device__ __forceinline__ void barrier_arrive(uint64_t *b)
{
#ifdef MT_EMU
	emu_barrier_arrive(b, 0);
#else
	asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
#endif
}

/* Arrive; the phase lasts until `bytes` more have been copied */
static __device__ __forceinline__ void barrier_expect(uint64_t *b, int bytes)
{
#ifdef MT_EMU
	emu_barrier_arrive(b, (unsigned)bytes);
#else
	asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes)
				 : "memory");
#endif
}

/* Wait until the phase of this parity has ended. The one before the first is odd, and over. */
static __device__ __forceinline__ void barrier_wait(uint64_t *b, int parity)
{
#ifdef MT_EMU
	emu_barrier_wait(b, (unsigned)parity);
#else
	asm volatile("{\n"
				 ".reg .pred over;\n"
				 "again:\n"
				 "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
				 "@!over bra again;\n"
				 "}" ::"r"(shared_address(b)),
				 "r"(parity)
				 : "memory");
#endif
}

/* What the thread has stored in shared memory, barriers too, is there for copies and tensor cores */
static __device__ __forceinline__ void fence_async(void)
{
#ifdef MT_EMU
	emu_fence_async();
#else
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* ---- copies ---- */

#ifdef MT_EMU
typedef struct emu_map tensor_map;
#else
typedef CUtensorMap tensor_map;
#endif

/* Begin to copy a box of the map to `shared`, from its element (x, y, z) on: zeros beyond the map's edges. It counts
 * for the barrier's bytes. */
static __device__ __forceinline__ void copy_box(void *shared, const tensor_map *map, int x, int y, int z, uint64_t *b)
{
#ifdef MT_EMU
	emu_copy_box(shared, map, x, y, z, b);
#else
	asm volatile(
		"cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], "
		"[%5];" ::"r"(shared_address(shared)),
		"l"(map), "r"(x), "r"(y), "r"(z), "r"(shared_address(b))
		: "memory");
#endif
}

/* ---- products ---- */

/* A tile from `address` on, as tensor cores find it. apart: bytes from 64 rows or columns of c to the next 64, where
 * rows are terms */
static __device__ __forceinline__ uint64_t tile_descriptor(uint32_t address, int apart)
{
	return (uint64_t)1 << 62 | (uint64_t)(TILE_ALIGN >> 4) << 32 | (uint64_t)(apart >> 4) << 16 |
		(address & 0x3ffff) >> 4;
}

/* From a descriptor to the one of the next 16 terms */
template <int BY_TERMS>
static __device__ __forceinline__ uint64_t next_terms(uint64_t descriptor)
{
	return descriptor + ((BY_TERMS ? STEP_TERMS * ROW_BYTES : STEP_TERMS * 2) >> 4);
}

/* Before the first wgmma that changes c since other instructions did */
static __device__ __forceinline__ void wgmma_fence(void)
{
#ifdef MT_EMU
	emu_wgmma_fence();
#else
	asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}

static __device__ __forceinline__ void wgmma_commit(void)
{
#ifdef MT_EMU
	emu_wgmma_commit();
#else
	asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}

/* All commits but the last N are done */
template <int N>
static __device__ __forceinline__ void wgmma_wait(void)
{
#ifdef MT_EMU
	emu_wgmma_wait(N);
#else
	asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#endif
}

#define C4(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define C32(n) C4(n), C4(n + 1), C4(n + 2), C4(n + 3), C4(n + 4), C4(n + 5), C4(n + 6), C4(n + 7)
#define C_ALL C32(0), C32(8), C32(16), C32(24)

/* All are done: only now may c be read, which the compiler sees by this */
static __device__ __forceinline__ void wgmma_end(float c[WGMMA_N / 8][4])
{
	wgmma_wait<0>();
#ifdef MT_EMU
	(void)c;
#else
	asm volatile("" : C_ALL::"memory");
#endif
}

/* c += a b, 16 terms. OF_A, OF_B: are tiles by terms? */
template <int OF_A, int OF_B>
static __device__ __forceinline__ void wgmma(float c[WGMMA_N / 8][4], uint64_t a, uint64_t b)
{
#ifdef MT_EMU
	emu_wgmma(&c[0][0], a, b, OF_A, OF_B);
#else
	asm volatile(
		"{\n"
		".reg .pred add;\n"
		"setp.eq.u32 add, 0, 0;\n"
		"wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
		"{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,"
		"%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,"
		"%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,"
		"%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,"
		"%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127}, "
		"%128, %129, add, 1, 1, %130, %131;\n"
		"}"
		: C_ALL
		: "l"(a), "l"(b), "n"(OF_A), "n"(OF_B));
#endif
}

/* ---- host ---- */

#ifndef MT_EMU
#if CUDART_VERSION < 12050
#define cudaGetDriverEntryPointByVersion(name, to, version, flags, found) \
	cudaGetDriverEntryPoint(name, to, flags, found)
#endif
typedef CUresult map_encode(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
	const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
	CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
static map_encode *encode; /* the driver's function */
#endif

/* Before the first map_make; false: the driver makes no maps */
static inline bool maps_open(void)
{
#ifndef MT_EMU
	cudaDriverEntryPointQueryResult found;
	if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", (void **)&encode, 12000, cudaEnableDefault, &found))
		return cudaGetLastError(), false;
	return encode;
#else
	return true;
#endif
}

/* A map of bf16 numbers, (n[2], n[1], n[0]), rows `ld` and matrices `stride` elements apart, for copies of boxes of 64
 * columns and `rows` rows; false: there is none */
static inline bool map_make(tensor_map *map, const void *of, const int64_t n[3], int64_t ld, int64_t stride, int rows)
{
#ifdef MT_EMU
	return emu_map_make(map, of, n, ld, stride, rows);
#else
	const cuuint64_t dims[3] = {(cuuint64_t)n[0], (cuuint64_t)n[1], (cuuint64_t)n[2]};
	const cuuint64_t strides[2] = {(cuuint64_t)ld * 2, (cuuint64_t)stride * 2};
	const cuuint32_t box[3] = {ROW_ELEMS, (cuuint32_t)rows, 1}, steps[3] = {1, 1, 1};
	return !encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void *)of, dims, strides, box, steps,
		CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
		CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
#endif
}

#endif
