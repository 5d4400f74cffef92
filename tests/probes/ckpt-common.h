/* ckpt-common.h: pseudo-random state of a run, for tests of saving and loading. */
#include "cli/cli.h"
#include "model/int8.h"
#include "mt/control.h"
#include "mt/error.h"
#include "mt/run.h"
#include "splitmix.h"

/* A finite fp32 pattern of any magnitude, denormals included, that stays finite in bf16. In every seventh the low half
 * is 0x8000, a tie in rounding. */
static uint32_t noise_bits(uint64_t *noise)
{
	uint64_t r = splitmix_next(noise);
	uint32_t bits = ((uint32_t)r & 0x807fffffu) | (uint32_t)((r >> 32) % 250) << 23;
	return r % 7 ? bits : (bits & 0xffff0000u) | 0x8000u;
}

/* A code and its group's scale, any of those that there are */
static void some_code(uint64_t *noise, uint8_t *array, uint64_t elems, uint64_t e)
{
	uint32_t binades = (INT8_MOST - INT8_LEAST) >> 23, r = (uint32_t)splitmix_next(noise);
	array[int8_at(e)] = (uint8_t)r;
	if (e % MT_GROUP == 0)
		int8_scales(array, elems)[e / MT_GROUP] = mt_float(INT8_LEAST + ((r >> 8) % (binades + 1) << 23));
}

/* Fill w, lo, m and v of a unit's tensors. The gaps between them stay zero. Only for AdamW with fp32 or int8 state. */
static void scribble(struct mt_run *run, uint32_t u, uint64_t seed)
{
	if (mt_control(run)->state == MT_BF16 || mt_control(run)->optim != MT_ADAMW)
		mt_die(MT_EX_USAGE, "only AdamW's state in fp32 or int8 can be filled");
	const struct mt_unit *unit = mt_unit(run, u);
	bool bf16 = mt_control(run)->dtype == MT_BF16, int8 = mt_control(run)->state == MT_INT8;
	uint64_t noise = seed * 1000003 + u;
	uint32_t *m = mt_at(run, unit->m), *v = mt_at(run, unit->v), *full = mt_at(run, unit->w);
	uint16_t *w = mt_at(run, unit->w);
	int16_t *lo = mt_at(run, unit->lo);

	for (uint32_t i = unit->first_tensor; i < unit->first_tensor + unit->tensors; i++) {
		const struct mt_tensor *t = mt_tensor(run, i);
		for (uint64_t e = t->off; e < t->off + t->n; e++) {
			uint32_t bits = noise_bits(&noise);
			if (bf16) {
				w[e] = mt_hi(bits);
				lo[e] = mt_lo(bits);
			} else full[e] = bits;
			if (int8) {
				some_code(&noise, (uint8_t *)m, unit->elems, e);
				some_code(&noise, (uint8_t *)v, unit->elems, e);
				continue;
			}
			m[e] = noise_bits(&noise);
			v[e] = noise_bits(&noise) & 0x7fffffffu;
		}
	}
}

static struct mt_position some_position(uint64_t seed)
{
	return (struct mt_position){.records = seed + 1,
		.offset = seed + 2,
		.hash = seed * 0x9e3779b97f4a7c15u,
		.hash_cut = ~seed,
		.carry = seed % 2 ? (uint32_t)seed + 3 : MT_NO_TARGET,
		.seq = 24,
		.batch = 4,
		.pack = 1,
		.tokens = seed + 5};
}
