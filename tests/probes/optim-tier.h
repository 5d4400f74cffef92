/* optim-tier.h: a mt-tier within a probe of mt-optim: tiles between slots and their files, which mt_tier_map maps */
#ifndef PROBES_OPTIM_TIER_H
#define PROBES_OPTIM_TIER_H

#include <string.h>

#include "mt/run.h"
#include "mt/tier.h"
#include "model/int8.h"

static void move_array(bool in, uint8_t *slot, uint64_t off, void *array, uint64_t from, uint64_t bytes)
{
	if (off == MT_NO_ARRAY) return;
	uint8_t *file = (uint8_t *)array + from;
	memcpy(in ? slot + off : file, in ? file : slot + off, bytes);
}

/* Between the slot of q and its tile's file */
static void move_tile(struct mt_run *run, uint64_t q, bool in)
{
	struct mt_tile t = mt_tile(run, (uint32_t)(q % mt_control(run)->tier.tiles));
	const struct mt_unit *mu = mt_unit(run, t.unit);
	uint8_t *slot = mt_tile_slot(run, q);
	uint64_t n = t.end - t.first, width = mt_dtype_bytes(mt_control(run)->state), scale = t.first / MT_GROUP * 4;
	if (in) memset(slot, 0xa5, t.bytes);
	move_array(in, slot, t.lo, mt_at(run, mu->lo), t.first * 2, n * 2);
	move_array(in, slot, t.m, mt_at(run, mu->m), t.first * width, n * width);
	move_array(in, slot, t.v, mt_at(run, mu->v), t.first * width, n * width);
	move_array(in, slot, t.m_scale, int8_scales(mt_at(run, mu->m), mu->elems), scale, n / MT_GROUP * 4);
	move_array(in, slot, t.v_scale, int8_scales(mt_at(run, mu->v), mu->elems), scale, n / MT_GROUP * 4);
}

#endif
