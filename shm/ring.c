/* ring.c: single producer, single consumer. Message k stands in messages[k mod S] and owns block k mod S.
 *
 *     producer owns tail                          consumer owns head
 *     k = tail; k - head < S ?  (acquire head)    k = head; k < tail ?  (acquire tail)
 *     write block k mod S, message k mod S        read message k mod S, block k mod S
 *     tail = k + 1              (release)         head = k + 1              (release)
 *
 * The consumer moves head only when it has finished with the block, and the producer writes block k only while
 * k - head < S: so nothing is handed back, freed or leaked when either side dies, and a successor goes on from the
 * words in shared memory. Each side caches the other's word and reads it again only when the cached one says stop.
 * A producer may be writing several blocks, tail and those behind it, and a consumer reading several. A reservation
 * leaves no trace in shared memory: the successor of a dead producer writes again what was not published.
 *
 * arm64 lets loads and stores pass each other where nothing forbids it: tests/model/litmus/ring.litmus shows which
 * message a consumer would read without each release and acquire.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "batch.h"
#include "lib.h"
#include "mt/control.h"
#include "mt/error.h"
#include "mt/ring.h"
#include "mt/run.h"
#include "mt/stage.h"
#include "mt/txn.h"
#include "mt/wait.h"

enum { GRAD_SLOTS = 8, BATCH_SLOTS = 2, SAVE_SLOTS = 1024 }; /* twice as many of gradients in larger pieces */

struct mt_ring {
	struct mt_run *run;
	struct map own; /* mapping of a ring that mt_ring_make made */
	struct mt_ringbuf *shared;
	struct mt_msg *messages;
	uint8_t *blocks;
	void *zeros;                   /* read instead of a block that was not written; NULL: no blocks */
	uint64_t slots, block_bytes;   /* copies, checked once */
	uint64_t other;                /* cached: producer: head; consumer: tail */
	uint64_t broken;               /* messages that its words said it held, when that was more than it has room for */
	uint32_t on_messages, on_room; /* bits of the doorbell */
};

/* ---- layout */

/* The rings region has batch rings, then gradient rings, then "save" */
enum kind { BATCH, GRAD, SAVE };

static uint32_t all_streams(const struct mt_control *c) { return c->nodes.streams * c->nodes.nodes; }

/* Of node 0 for all mt-streams, as it sends what other nodes compute; else for the node's own */
static uint32_t batch_rings(const struct mt_control *c) { return c->nodes.node ? c->nodes.streams : all_streams(c); }

static uint32_t first_batch(const struct mt_control *c) { return c->nodes.node * c->nodes.streams; }

static uint32_t all_rings(const struct mt_control *c) { return batch_rings(c) + all_streams(c) + 1; }

/* Ring i of the region: what it is, and of which mt-stream */
static enum kind ring_kind(const struct mt_control *c, uint32_t i, uint32_t *stream)
{
	bool batch = i < batch_rings(c);
	*stream = batch ? first_batch(c) + i : i - batch_rings(c);
	return batch ? BATCH : *stream < all_streams(c) ? GRAD : SAVE;
}

static void ring_spec(const struct mt_control *c, uint32_t i, char *name, uint32_t *slots, uint64_t *block)
{
	uint32_t stream;
	enum kind kind = ring_kind(c, i, &stream);
	if (kind == BATCH) {
		snprintf(name, 32, "batch.%u", stream);
		*slots = BATCH_SLOTS;
		*block = c->step_tokens * (MT_BATCH_TOKEN + 4 * MT_TEACHER_WORDS(c->top)) + MT_BATCH_ROOM;
	} else if (kind == GRAD) {
		snprintf(name, 32, "grad.%u", stream);
		*slots = c->piece_elems > PIECE_ELEMS ? 2 * GRAD_SLOTS : GRAD_SLOTS;
		*block = c->piece_elems * mt_dtype_bytes(c->grad);
	} else {
		snprintf(name, 32, "save");
		*slots = SAVE_SLOTS;
		*block = 0;
	}
	*block = round_up(*block, 4096);
}

static uint64_t ring_place(struct mt_ringbuf *r, uint64_t at)
{
	r->off_messages = at;
	at = round_up(at + r->slots * sizeof(struct mt_msg), 4096);
	r->off_blocks = r->block_bytes ? at : 0;
	return at + r->slots * r->block_bytes;
}

uint64_t rings_lay(const struct mt_control *c, struct mt_rings *rings)
{
	uint32_t n = all_rings(c);
	uint64_t at = round_up(sizeof(struct mt_rings) + n * sizeof(struct mt_ringbuf), 4096);
	for (uint32_t i = 0; i < n; i++) {
		struct mt_ringbuf only = {0}, *r = rings ? &rings->ring[i] : &only;
		ring_spec(c, i, r->name, &r->slots, &r->block_bytes);
		at = ring_place(r, at);
	}
	if (rings) rings->n = n;
	return at;
}

void rings_clear(struct mt_rings *rings, uint64_t size)
{
	uint64_t most = (size - sizeof *rings) / sizeof(struct mt_ringbuf);
	for (uint32_t i = 0; i < rings->n && i < most; i++) {
		atomic_store_explicit(&rings->ring[i].head, 0, memory_order_release);
		atomic_store_explicit(&rings->ring[i].tail, 0, memory_order_release);
	}
}

/* Of a ring in a separate region */
static uint64_t ring_alone(struct mt_ringbuf *r)
{
	return ring_place(r, round_up(sizeof(struct mt_rings) + sizeof *r, 4096));
}

static uint64_t ring_like(const struct mt_control *c, uint32_t i)
{
	struct mt_ringbuf r = {0};
	ring_spec(c, i, r.name, &r.slots, &r.block_bytes);
	return ring_alone(&r);
}

uint64_t ring_like_grad(const struct mt_control *c) { return ring_like(c, batch_rings(c)); }

uint64_t ring_like_batch(const struct mt_control *c) { return ring_like(c, 0); }

/* ---- open */

static struct mt_ringbuf *find(struct mt_rings *rings, uint64_t size, const char *name)
{
	uint64_t most = (size - sizeof *rings) / sizeof(struct mt_ringbuf);
	for (uint32_t i = 0; i < rings->n && i < most; i++)
		if (!strncmp(rings->ring[i].name, name, sizeof rings->ring[i].name)) return &rings->ring[i];
	return NULL;
}

/* Copy the ring's shape and check that it lies in its region. */
static int adopt(struct mt_ring *r, struct mt_ringbuf *b, uint8_t *base, uint64_t size)
{
	uint64_t s = b->slots, m = b->off_messages, o = b->off_blocks, n = b->block_bytes;
	bool ok = s && s <= 1 << 20 && (s & (s - 1)) == 0 && m % 64 == 0 && m <= size &&
		s * sizeof(struct mt_msg) <= size - m && o <= size && (n == 0 || (size - o) / s >= n);
	if (!ok) return mt_fail(MT_EX_DATA, "ring '%.31s' is damaged", b->name);
	r->shared = b;
	r->messages = (struct mt_msg *)(base + m);
	r->blocks = n ? base + o : NULL;
	r->slots = s;
	r->block_bytes = n;
	return 0;
}

/* Who waits for whom: each mt-stream for its own batches and for room in its own gradient ring, mt-optim for the pieces
 * of all, mt-step for room in all batch rings, mt-ckpt for "save". Every eighth mt-stream has the same bits: it wakes
 * for the others, and sleeps again. Rings of one's own share a bit. */
enum { ON_BATCHES = 8, ON_GRAD_ROOM = 16, ON_BATCH_ROOM = 24, ON_GRADS, ON_SAVE, ON_OWN, STREAM_BITS = 8 };

static void choose_bits(struct mt_ring *r)
{
	uint32_t messages = ON_OWN, room = ON_OWN, stream;
	if (!r->own.p) switch (ring_kind(r->run->control, (uint32_t)(r->shared - r->run->rings->ring), &stream)) {
		case BATCH: messages = ON_BATCHES + stream % STREAM_BITS, room = ON_BATCH_ROOM; break;
		case GRAD: messages = ON_GRADS, room = ON_GRAD_ROOM + stream % STREAM_BITS; break;
		default: messages = room = ON_SAVE;
		}
	r->on_messages = 1u << messages;
	r->on_room = 1u << room;
}

/* Pages that are only read all are the kernel's one page of zeros: they take no memory */
static int zeros_map(struct mt_ring *r)
{
	if (!r->block_bytes) return 0;
	r->zeros = mmap(NULL, r->block_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (r->zeros != MAP_FAILED) return 0;
	r->zeros = NULL;
	return mt_fail(MT_EX_NOMEM, "ring '%.31s': no address space for a block", r->shared->name);
}

/* A run that was removed has none. A ring of an mt-stream that the run, or this node, does not have is missing for a
 * reason */
static int no_ring(const struct mt_run *run, const char *name)
{
	uint32_t node = mt_node(run), n = mt_node_streams(run), all = mt_streams(run), first = node * n, i;
	char kind[8];
	int end = 0;
	if (mt_run_state(run) == MT_GONE) return mt_fail(MT_EX_NOINPUT, "run '%s' was removed", run->name);
	if (sscanf(name, "%7[a-z].%9u%n", kind, &i, &end) == 2 && !name[end] &&
		(!strcmp(kind, "batch") || !strcmp(kind, "grad") || !strcmp(kind, "link"))) {
		if (i >= all)
			return mt_fail(MT_EX_NOINPUT,
				"no ring '%s' in run '%s', which has %u mt-streams at most: mt-store create --streams", name, run->name,
				all);
		if (strcmp(kind, "grad") && mt_nodes(run) > 1 && i - first >= n)
			return mt_fail(MT_EX_NOINPUT, "no ring '%s' in run '%s': this is node %u, with mt-streams %u to %u", name,
				run->name, node, first, first + n - 1);
	}
	return mt_fail(MT_EX_NOINPUT, "no ring '%s' in run '%s'", name, run->name);
}

int mt_ring_open(struct mt_run *run, const char *name, struct mt_ring **out)
{
	for (int i = 0; i < run->ring_maps; i++)
		if (!strcmp(run->ring_from[i], name)) {
			name = run->ring_to[i];
			break;
		}
	struct mt_ring *r = calloc(1, sizeof *r);
	if (!r) return mt_fail(MT_EX_NOMEM, "no memory for a ring's handle");
	r->run = run;
	int rc = 0;
	struct mt_ringbuf *b = run->rings ? find(run->rings, run->rings_map.size, name) : NULL;
	if (b) rc = adopt(r, b, run->rings_map.p, run->rings_map.size);
	else {
		rc = region_open(region_name(run->name, REGION_RING, name).text, REGION_RING, false, run->control->h.run_id,
			&r->own);
		if (rc == -MT_EX_NOINPUT) rc = no_ring(run, name);
		if (!rc) {
			b = find(r->own.p, r->own.size, name);
			rc = b ? adopt(r, b, r->own.p, r->own.size) : mt_fail(MT_EX_DATA, "ring '%s' is damaged", name);
		}
	}
	if (!rc) rc = zeros_map(r);
	if (rc) {
		mt_ring_close(r);
		return rc;
	}
	choose_bits(r);
	*out = r;
	return 0;
}

void mt_ring_close(struct mt_ring *r)
{
	if (!r) return;
	if (r->zeros) munmap(r->zeros, r->block_bytes);
	region_unmap(&r->own);
	free(r);
}

int mt_ring_make(struct mt_run *run, const char *name, const char *like)
{
	struct mt_ring *model;
	if (strlen(name) > 31 ||
		strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") != strlen(name))
		return mt_fail(MT_EX_USAGE, "ring name '%s': 1 to 31 letters, digits, '_', '-' and '.'", name);
	int rc = mt_ring_open(run, like, &model);
	if (rc) return rc;
	struct mt_ringbuf shape = {.slots = (uint32_t)model->slots, .block_bytes = model->block_bytes};
	mt_ring_close(model);
	snprintf(shape.name, sizeof shape.name, "%s", name);
	uint64_t size = ring_alone(&shape);
	struct region_name region = region_name(run->name, REGION_RING, name);
	struct map map = {0};
	rc = region_room(size, NULL, NULL);
	if (!rc)
		rc = region_create(region.text, REGION_RING, size, NULL, 0, run->control->h.run_id, NULL, &map, NULL, NULL);
	if (rc) return rc;
	struct mt_rings *rings = map.p;
	rings->n = 1;
	rings->ring[0] = shape;
	rc = region_join(run, region.text, &map);
	if (!rc) mt_wake(run);
	return rc;
}

int mt_ring_map(struct mt_run *run, const char *spec)
{
	const char *eq = strchr(spec, '=');
	if (!eq || eq == spec || !eq[1] || eq - spec > 31 || strlen(eq + 1) > 31 || run->ring_maps == RING_MAPS)
		return mt_fail(MT_EX_USAGE, "--ring '%s': wants RING=OTHER", spec);
	snprintf(run->ring_from[run->ring_maps], 32, "%.*s", (int)(eq - spec), spec);
	snprintf(run->ring_to[run->ring_maps++], 32, "%s", eq + 1);
	return 0;
}

/* ---- use */

size_t mt_ring_block(const struct mt_ring *r) { return r->block_bytes; }

uint64_t mt_ring_slots(const struct mt_ring *r) { return r->slots; }

uint64_t mt_ring_used(const struct mt_ring *r)
{
	uint64_t head = atomic_load_explicit(&r->shared->head, memory_order_acquire);
	return atomic_load_explicit(&r->shared->tail, memory_order_acquire) - head;
}

static void *block_of(const struct mt_ring *r, uint64_t k)
{
	uint64_t i = k & (r->slots - 1);
	return r->blocks ? r->blocks + i * r->block_bytes : (void *)&r->messages[i];
}

void *mt_ring_blocks(const struct mt_ring *r, size_t *bytes)
{
	*bytes = r->slots * r->block_bytes;
	return r->blocks;
}

/* Neither end ever sees more messages than the ring has room for: then one of its words is damaged, and nothing that is
 * read or written by them would be right. Both ends see nothing any more, and mt_ring_check says why. */
static bool holds(struct mt_ring *r, uint64_t used)
{
	if (used <= r->slots && !r->broken) return true;
	if (!r->broken) r->broken = used;
	return false;
}

int mt_ring_check(const struct mt_ring *r)
{
	if (!r->broken) return 0;
	return mt_fail(MT_EX_DATA, "ring '%.31s' is damaged: head and tail give %lld messages, it has room for %llu",
		r->shared->name, (long long)r->broken, (unsigned long long)r->slots);
}

void *mt_ring_reserve_ahead(struct mt_ring *r, uint64_t ahead)
{
	uint64_t tail = atomic_load_explicit(&r->shared->tail, memory_order_relaxed); /* ours alone */
	if (ahead >= r->slots || r->broken) return NULL;
	if (tail - r->other >= r->slots - ahead) {
		/* acquire: the consumer's reads of the block come before our writes to it */
		r->other = atomic_load_explicit(&r->shared->head, memory_order_acquire);
		if (!holds(r, tail - r->other) || tail - r->other >= r->slots - ahead) return NULL;
	}
	return block_of(r, tail + ahead);
}

void *mt_ring_reserve(struct mt_ring *r) { return mt_ring_reserve_ahead(r, 0); }

void mt_ring_put(struct mt_ring *r, uint64_t ahead, const struct mt_msg *m)
{
	uint64_t k = atomic_load_explicit(&r->shared->tail, memory_order_relaxed) + ahead;
	if (mt_stage_mine(r->run)) r->messages[k & (r->slots - 1)] = *m;
}

void mt_ring_publish(struct mt_ring *r, uint64_t n)
{
	uint64_t k = atomic_load_explicit(&r->shared->tail, memory_order_relaxed);
	if (!mt_stage_mine(r->run)) return;
	/* release: messages and blocks are whole before the consumer can see them. From k alone: a producer that has lost
	 * its place must not take the tail back from its successor. */
	atomic_compare_exchange_strong_explicit(&r->shared->tail, &k, k + n, memory_order_release, memory_order_relaxed);
	mt_wake_on(r->run, r->on_messages);
}

void mt_ring_push(struct mt_ring *r, const struct mt_msg *m)
{
	mt_ring_put(r, 0, m);
	mt_ring_publish(r, 1);
}

bool mt_ring_peek(struct mt_ring *r, uint64_t ahead, struct mt_msg *m, const void **block)
{
	uint64_t head = atomic_load_explicit(&r->shared->head, memory_order_relaxed); /* ours alone */
	if (ahead >= r->slots || r->broken) return false;
	if (r->other - head > r->slots || r->other - head <= ahead) {
		/* acquire: what the producer wrote before it published is there to be read */
		r->other = atomic_load_explicit(&r->shared->tail, memory_order_acquire);
		if (!holds(r, r->other - head) || r->other - head <= ahead) return false;
	}
	*m = r->messages[(head + ahead) & (r->slots - 1)];
	if (block) *block = m->kind == MT_MSG_GRAD && m->grad.zero && r->zeros ? r->zeros : block_of(r, head + ahead);
	return true;
}

void mt_ring_pop_many(struct mt_ring *r, uint64_t n)
{
	uint64_t k = atomic_load_explicit(&r->shared->head, memory_order_relaxed);
	if (!n || !mt_stage_mine(r->run)) return;
	/* release: our reads of the blocks are done before the producer may write them again. From k alone: as for the
	 * tail. */
	atomic_compare_exchange_strong_explicit(&r->shared->head, &k, k + n, memory_order_release, memory_order_relaxed);
	mt_wake_on(r->run, r->on_room);
}

void mt_ring_pop(struct mt_ring *r) { mt_ring_pop_many(r, 1); }

uint32_t mt_ring_on_messages(const struct mt_ring *r) { return r->on_messages; }

uint32_t mt_ring_on_room(const struct mt_ring *r) { return r->on_room; }

/* ---- gradients */

/* An mt-stream's answer to a micro of t: its figures, loss, log-probabilities, or a piece that lies in a block, and in
 * what this node has of its unit */
static bool answers(const struct mt_ring *r, const struct mt_txn *t, const struct mt_msg *m)
{
	const struct mt_control *c = r->run->control;
	if (m->micro >= t->micros || m->txn_kind != t->kind || m->step != t->step) return false;
	if (m->kind == MT_MSG_LOSS || m->kind == MT_MSG_FIGURES) return true;
	if (m->kind == MT_MSG_SCORE ||
		m->kind == MT_MSG_TOP) /* whoever asked for top tokens knows how many words they are */
		return m->txn_kind == MT_EVAL && m->score.n && m->score.n <= r->block_bytes / sizeof(double);
	if (m->kind != MT_MSG_GRAD || m->txn_kind != MT_TRAIN || m->grad.unit >= c->n_units) return false;
	return piece_fits(m, mt_unit(r->run, m->grad.unit), mt_part(r->run, m->grad.unit),
		r->block_bytes / mt_dtype_bytes(c->grad));
}

int mt_grad_peek(struct mt_ring *r, uint64_t word, struct mt_msg *m, const void **block)
{
	return mt_grad_peek_ahead(r, 0, word, m, block);
}

int mt_grad_peek_ahead(struct mt_ring *r, uint64_t ahead, uint64_t word, struct mt_msg *m, const void **block)
{
	while (mt_ring_peek(r, ahead, m, block)) {
		int order = mt_attempt_order(m->attempt, mt_word_attempt(word));
		if (order > 0 || (order < 0 && ahead)) return 0;
		if (order == 0 && m->k == mt_word_k(word) && answers(r, mt_txn(r->run, m->k), m)) return 1;
		/* acquire: mt-step may have opened another txn in this entry, against which m was held */
		atomic_thread_fence(memory_order_acquire);
		if (mt_txn_word(r->run, mt_word_k(word)) != word) return 0;
		if (order == 0)
			return mt_fail(MT_EX_BUG, "ring '%.31s': message of txn %u, micro-batch %u, kind %u: not what is due",
				r->shared->name, m->k, m->micro, m->kind);
		mt_ring_pop(r);
	}
	return mt_ring_check(r);
}
