/* update-neon.c: update_scalar four at a time, by update-narrow.h. Every arm64 CPU has NEON. SVE's registers are no
 * wider on Neoverse V2 and N2. */
#if defined __aarch64__
#include <arm_neon.h>

#define ISA
#define vec float32x4_t
#define vec_all vdupq_n_f32
#define vec_sqrt vsqrtq_f32
#define vec_fma(x, y, z) vfmaq_f32(z, x, y)
#include "update-simd.h"

INLINE vec32 widen(const uint16_t *from) { return (vec32)vmovl_u16(vld1_u16(from)); }
INLINE vec32 widen_signed(const int16_t *from) { return (vec32)vmovl_s16(vld1_s16(from)); }
INLINE void narrow(void *to, vec32 x) { vst1_u16(to, vmovn_u32((uint32x4_t)x)); }

INLINE vec32 upper(vec32 x, vec32 y) { return (vec32)vtrn2q_u16((uint16x8_t)x, (uint16x8_t)y); }
INLINE vec32 lower(vec32 x, vec32 y) { return (vec32)vtrn1q_u16((uint16x8_t)x, (uint16x8_t)y); }

INLINE void apart(vec a, vec b, vec x[2])
{
	x[0] = vuzp1q_f32(a, b);
	x[1] = vuzp2q_f32(a, b);
}

INLINE void together(const vec x[2], vec to[2])
{
	to[0] = vzip1q_f32(x[0], x[1]);
	to[1] = vzip2q_f32(x[0], x[1]);
}

INLINE vec16 larger(vec16 x, vec16 y) { return (vec16)vmaxq_u16((uint16x8_t)x, (uint16x8_t)y); }
INLINE vec16 smaller(vec16 x, vec16 y) { return (vec16)vminq_u16((uint16x8_t)x, (uint16x8_t)y); }
INLINE vec16 above(vec16 x, vec16 y) { return (vec16)vqsubq_u16((uint16x8_t)x, (uint16x8_t)y); }
INLINE vec16 mux(vec16 mask, vec16 x, vec16 y)
{
	return (vec16)vbslq_u16((uint16x8_t)mask, (uint16x8_t)x, (uint16x8_t)y);
}

INLINE void all_largest(vec16 *m, vec16 *v)
{
	*m = (vec16)vdupq_n_u16(vmaxvq_u16((uint16x8_t)*m));
	*v = (vec16)vdupq_n_u16(vmaxvq_u16((uint16x8_t)*v));
}

/* The table is four registers: a word's bytes are number 4 i .. 4 i + 3 of it */
INLINE vec root_of(vec32 rounded)
{
	vec32 x = rounded >> INT8_CUT, i = (x & 15) * 0x04040404 + 0x03020100;
	vec32 root = (vec32)vqtbl4q_u8(vld1q_u8_x4((const uint8_t *)int8_roots), (uint8x16_t)i);
	return (vec)(root + (x << (INT8_CUT - 1)));
}

#include "update-narrow.h"

void update_neon(const struct scalars *a, const struct tile *t, struct mt_partition *partition, uint64_t tag,
	uint64_t first, uint64_t end, float decay)
{
	UPDATE_SPECIALISE();
}
#else
typedef int update_neon_is_for_arm64;
#endif
