/* A rings region written by another process, and both ends of a ring in it. Invalid rings are refused; an accepted one
 * gives only blocks that lie in the region, and no more messages than fit. */
#include "fuzz.h"
#include "lib.h"
#include "mt/control.h"
#include "mt/ring.h"

enum { SIZE = 1 << 14 };
static _Alignas(4096) uint8_t region[SIZE];

static void touch(struct mt_ring *r, const void *block)
{
	size_t n = mt_ring_block(r);
	const uint8_t *p = block;
	if (p < region || p + (n ? n : sizeof(struct mt_msg)) > region + SIZE) abort();
	volatile uint8_t byte = p[n ? n - 1 : 0];
	(void)byte;
}

/* Gradients that are declared 0 read as zeros, wherever their block lies */
static void touch_taken(struct mt_ring *r, const struct mt_msg *m, const void *block)
{
	size_t n = mt_ring_block(r);
	const uint8_t *p = block;
	if (m->kind != MT_MSG_GRAD || !m->grad.zero || !n) touch(r, block);
	else if (p[0] || p[n - 1]) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct mt_control control;
	struct mt_run run = {.name = "x",
		.control = &control,
		.rings = (struct mt_rings *)region,
		.rings_map = {region, SIZE}};
	struct mt_ring *ring;
	struct mt_msg m = {0};
	const void *block;
	struct bytes in = {data, size};
	uint8_t ops[16];
	take(&in, ops, sizeof ops);
	memset(region, 0, SIZE);
	memcpy(region, in.p, in.n < SIZE ? in.n : SIZE);
	memcpy(run.rings->ring[0].name, "r", 2);
	run.rings->n = 1;
	if (mt_ring_open(&run, "r", &ring)) return 0;
	for (size_t i = 0; i < sizeof ops; i++) {
		uint64_t ahead = ops[i] >> 3;
		void *room;
		switch (ops[i] & 7) {
		case 0:
			if ((room = mt_ring_reserve_ahead(ring, ahead))) touch(ring, room);
			break;
		case 1:
			if ((room = mt_ring_reserve(ring))) {
				touch(ring, room);
				mt_ring_push(ring, &m);
			}
			break;
		case 2:
			if (mt_ring_peek(ring, 0, &m, &block)) {
				touch_taken(ring, &m, block);
				mt_ring_pop(ring);
			}
			break;
		case 3:
		case 4:
			if (mt_ring_peek(ring, ahead, &m, &block)) touch_taken(ring, &m, block);
			break;
		/* the other end's word, with any value */
		case 5: atomic_store(&run.rings->ring[0].tail, ahead * ahead * ahead); break;
		case 6: atomic_store(&run.rings->ring[0].head, ahead * ahead); break;
		case 7: mt_ring_check(ring); break;
		}
	}
	mt_ring_close(ring);
	return 0;
}
