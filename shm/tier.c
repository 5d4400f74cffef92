/* tier.c: tiles, their slots, counters and seals. What they are is in mt/tier.h; drive.c has their files. */
#include <stddef.h>
#define XXH_STATIC_LINKING_ONLY /* a state on the stack: a sum never fails */
#include <xxhash.h>

#include "lib.h"
#include "mt/control.h"
#include "mt/error.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "mt/tier.h"
#include "mt/wait.h"

bool mt_tier_any(const struct mt_run *run) { return run->control->tier.tiles != 0; }

bool mt_on_tier(const struct mt_run *run, uint64_t off) { return off >= run->state_bytes; }

/* ---- tiles */

static uint64_t place(uint64_t *at, uint64_t bytes)
{
	uint64_t off = *at;
	*at += round_up(bytes, MT_TILE_PAGE);
	return off;
}

static uint32_t chunks_of(uint64_t seal)
{
	return (uint32_t)((MT_TILE_HEADER + seal + MT_TILE_CHUNK - 1) / MT_TILE_CHUNK);
}

struct mt_tile tile_shape(bool lo, uint32_t state, uint32_t moments, uint64_t n)
{
	struct mt_tile t = {.lo = MT_NO_ARRAY, .m_scale = MT_NO_ARRAY, .v = MT_NO_ARRAY, .v_scale = MT_NO_ARRAY};
	uint64_t at = 0, each = n * mt_dtype_bytes(state), scales = n / MT_GROUP * 4;
	if (lo) t.lo = place(&at, n * 2);
	t.m = place(&at, each);
	if (state == MT_INT8) t.m_scale = place(&at, scales);
	if (moments == 2) t.v = place(&at, each);
	if (moments == 2 && state == MT_INT8) t.v_scale = place(&at, scales);
	t.seal = at;
	t.bytes = at + round_up(sizeof(struct mt_seal) + chunks_of(t.seal) * 8, 4096);
	return t;
}

struct mt_tile mt_tile(const struct mt_run *run, uint32_t i)
{
	const struct mt_control *c = run->control;
	uint32_t unit = 0;
	while (unit + 1 < c->n_units && i - mt_unit(run, unit)->first_tile >= mt_unit(run, unit)->tiles) unit++;
	const struct mt_unit *u = mt_unit(run, unit);
	uint32_t number = i - u->first_tile;
	uint64_t first = number * c->tier.tile_elems, rest = u->elems - first;
	uint64_t n = rest < c->tier.tile_elems ? rest : c->tier.tile_elems;
	struct mt_tile t = tile_shape(u->lo && mt_on_tier(run, u->lo), c->state, mt_state_arrays(c->optim), n);
	t.unit = unit;
	t.number = number;
	t.dir = c->tier.dirs ? i % c->tier.dirs : 0;
	t.first = first;
	t.end = first + n;
	return t;
}

uint32_t mt_tile_at(const struct mt_run *run, uint32_t unit, uint64_t elem)
{
	return mt_unit(run, unit)->first_tile + (uint32_t)(elem / run->control->tier.tile_elems);
}

void *mt_tile_slot(const struct mt_run *run, uint64_t q)
{
	const struct mt_tier *t = &run->control->tier;
	return (uint8_t *)run->store_map.p + t->off_slots + q % t->slots * t->slot_bytes;
}

uint32_t mt_tile_chunks(const struct mt_tile *t) { return chunks_of(t->seal); }

void mt_tile_chunk(const struct mt_tile *t, uint32_t i, uint64_t *from, uint64_t *bytes)
{
	uint64_t end = (uint64_t)(i + 1) * MT_TILE_CHUNK - MT_TILE_HEADER;
	*from = i ? (uint64_t)i * MT_TILE_CHUNK - MT_TILE_HEADER : 0;
	*bytes = (end < t->seal ? end : t->seal) - *from;
}

/* ---- counters */

static _Atomic uint64_t *word_of(const struct mt_run *run, enum mt_tier_word w)
{
	struct mt_tier *t = &run->control->tier;
	return w == MT_LOADED ? &t->loaded : w == MT_UPDATED ? &t->updated : &t->written;
}

uint64_t mt_tier_at(const struct mt_run *run, enum mt_tier_word w)
{
	/* acquire: what was done to the tiles below it can be seen */
	return atomic_load_explicit(word_of(run, w), memory_order_acquire);
}

bool mt_tier_count(struct mt_run *run, enum mt_tier_word w, uint64_t q)
{
	if (!mt_stage_mine(run)) return false;
	/* release: the tile is read, updated or written before it counts */
	if (!atomic_compare_exchange_strong_explicit(word_of(run, w), &q, q + 1, memory_order_release,
			memory_order_relaxed))
		return false;
	mt_wake_on(run, MT_ON_TIER);
	return true;
}

int mt_tier_check(const struct mt_run *run)
{
	/* what is read first may be too small, never too large */
	uint64_t written = mt_tier_at(run, MT_WRITTEN), updated = mt_tier_at(run, MT_UPDATED);
	uint64_t loaded = mt_tier_at(run, MT_LOADED), now = mt_tier_at(run, MT_WRITTEN);
	if (written <= updated && updated <= loaded && loaded <= now + run->control->tier.slots) return 0;
	return mt_fail(MT_EX_DATA, "run '%s': the tier's counters are damaged", run->name);
}

int mt_tier_settled(const struct mt_run *run)
{
	uint64_t written = mt_tier_at(run, MT_WRITTEN), updated = mt_tier_at(run, MT_UPDATED);
	if (written == updated) return 0;
	return mt_fail(MT_EX_BUSY, "run '%s': %llu tile%s not in %s yet: start mt-tier", run->name,
		(unsigned long long)(updated - written), updated - written == 1 ? " is" : "s are",
		updated - written == 1 ? "its file" : "their files");
}

uint64_t mt_tier_q(const struct mt_run *run, uint64_t t, uint32_t tile)
{
	return (t - 1 - run->control->tier.t0) * run->control->tier.tiles + tile;
}

/* ---- seals */

static const char *const magic = "mtSEAL 1";

static uint64_t sum_of(const struct mt_seal *s)
{
	struct mt_seal head = *s;
	head.sum = 0;
	XXH3_state_t h;
	XXH3_INITSTATE(&h);
	XXH3_64bits_reset(&h);
	XXH3_64bits_update(&h, &head, sizeof head);
	XXH3_64bits_update(&h, s->chunk, s->chunks * sizeof *s->chunk);
	return XXH3_64bits_digest(&h);
}

void mt_seal_make(struct mt_seal *s, const uint8_t run_id[16], uint32_t tile, uint32_t chunks, uint64_t t)
{
	memcpy(s->magic, magic, sizeof s->magic);
	memcpy(s->run_id, run_id, sizeof s->run_id);
	s->tile = tile;
	s->chunks = chunks;
	s->t = t;
	s->sum = sum_of(s);
}

const char *mt_seal_wrong(const struct mt_seal *s, const uint8_t run_id[16], uint32_t tile, uint32_t chunks, uint64_t t)
{
	if (memcmp(s->magic, magic, sizeof s->magic)) return "has no seal";
	if (s->chunks != chunks || s->sum != sum_of(s)) return "has a damaged seal";
	if (memcmp(s->run_id, run_id, sizeof s->run_id)) return "is of another run";
	if (s->tile != tile) return "is another tile";
	if (s->t < t) return "is of an earlier step: a write was lost";
	return s->t > t ? "is of a later step" : NULL;
}

uint64_t mt_seal_expected(const struct mt_run *run, uint64_t q, const uint8_t **run_id)
{
	const struct mt_tier *t = &run->control->tier;
	*run_id = q < t->tiles ? t->from : run->control->h.run_id;
	return t->t0 + q / t->tiles;
}
