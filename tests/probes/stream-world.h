/* stream-world.h: a run and the two stages beside mt-stream, played in mt-stream's own process and thread. Whenever
 * mt-stream asks whether its micro-batch is still wanted, or waits, these may take a turn; a draw decides. They do
 * everything that mt-step and mt-optim may do, as early or as late as they may do it:
 *
 *   weights      are garbage until a unit's version says that they are there; with --grad none they are garbage again
 *                as soon as a piece of their gradient was taken, else when all of the micro-batch's has
 *   pieces       are taken from the ring after a while, and their blocks are garbage then
 *   the batch    is garbage once its micro-batch is over
 *   the step     is aborted at some point, and sent again under another attempt
 */
#include <stdlib.h>

#include "cli/cli.h"
#include "batch.h"
#include "mt.h"
#include "splitmix.h"
#include "../../mt-stream/stream.h"

#define RUBBISH 0xff
#define UNITS 16
#define TOKENS 1024 /* of a micro-batch, at most */
#define HOST_BYTES (TOKENS * MT_BATCH_TOKEN + MT_BATCH_ROOM)
#define BLOCKS 64 /* of MT_BLOCK elements, of a unit, at most */

struct seen {                                 /* of a micro-batch; all of it compared */
	uint64_t elems[UNITS][2], hash[UNITS][2]; /* of each unit's gradient, its ends */
	double loss, terms[2], figures[MT_STEP_FIGURES];
	uint64_t targets, losses;
};

static struct {
	struct mt_run *run;
	struct mt_control *control;
	struct mt_ring *taken; /* the gradient ring's other end */
	void *weights[UNITS];  /* as they should be */
	uint64_t random, version;
	uint32_t published; /* units that are at `version` */
	unsigned eager;     /* in 100: a turn when there need not be one */
	int64_t stale_in;   /* calls of micro_wanted until the step is aborted; -1: it is not */
	bool train, stale;
	enum mt_activity activity; /* of the stream */
	struct seen seen;
	bool came[UNITS][2][BLOCKS]; /* blocks of gradients */
} world;

static uint64_t draw(uint64_t below) { return splitmix_next(&world.random) % below; }
static float uniform(void) { return (float)draw(1u << 24) / (float)(1u << 23) - 1.0f; }

/* ---- the run ---- */

static size_t weight_size(void) { return world.control->dtype == MT_BF16 ? 2 : 4; }
static void *weights_of(uint32_t unit) { return mt_at(world.run, mt_unit(world.run, unit)->w); }
static size_t weight_bytes(uint32_t unit) { return mt_unit(world.run, unit)->elems * weight_size(); }

static void weights_draw(void)
{
	for (uint32_t u = 0; u < world.control->n_units; u++) world.weights[u] = calloc(1, weight_bytes(u));
	for (uint32_t i = 0; i < world.control->n_tensors; i++) {
		const struct mt_tensor *t = mt_tensor(world.run, i);
		for (uint64_t j = t->off; j < t->off + t->n; j++) {
			float x = t->ndim == 1 ? 1 + 0.2f * uniform() : 0.1f * uniform();
			if (weight_size() == 4) ((float *)world.weights[t->unit])[j] = x;
			else ((uint16_t *)world.weights[t->unit])[j] = mt_hi(mt_bits(x));
		}
	}
}

/* A golden model, but with another number of layers, and with experts of a multiple of their size */
static void world_open(const char *name, const char *model, uint32_t layers, uint32_t experts, enum mt_dtype dtype,
	enum mt_dtype grad, const char *train)
{
	struct mt_geometry geo;
	char *text;
	mt_must(mt_config_read(model, &geo, &text));
	for (uint32_t l = geo.layers; l < layers; l++) geo.kind_of[l] = geo.kind_of[l % geo.layers];
	geo.layers = layers;
	for (uint32_t k = 0; k < geo.n_kinds; k++) geo.kind[k].expert_ffn *= experts;
	mt_must(mt_run_create(&(struct mt_create){.name = name,
							  .config_text = text,
							  .config_bytes = strlen(text),
							  .dtype = dtype,
							  .grad = grad,
							  .train = train,
							  .step_tokens = TOKENS},
		&geo));
	free(text);
	mt_must(mt_run_open(&world.run, name, MT_RUN_RINGS | MT_RUN_WEIGHTS));
	world.control = mt_control(world.run);
	MT_ASSERT(world.control->n_units <= UNITS);
	for (uint32_t u = 0; u < world.control->n_units; u++)
		MT_ASSERT(mt_unit(world.run, u)->elems <= (uint64_t)BLOCKS * MT_BLOCK);
	mt_run_reset(world.run, 0, 0, &(struct mt_position){0});
	mt_must(mt_ring_open(world.run, "grad.0", &world.taken));
	world.version = 0;
	world.random = 1;
	weights_draw();
}

static void world_close(const char *name)
{
	for (uint32_t u = 0; u < world.control->n_units; u++) free(world.weights[u]);
	mt_ring_close(world.taken);
	mt_run_close(world.run);
	mt_must(mt_run_remove(name, true));
}

/* ---- mt-optim ---- */

static void weights_spoil(uint32_t unit, uint64_t off, uint64_t n)
{
	memset((char *)weights_of(unit) + off * weight_size(), RUBBISH, n * weight_size());
}

static bool publish_next(void)
{
	uint32_t u = world.published;
	if (u == world.control->n_units) return false;
	memcpy(weights_of(u), world.weights[u], weight_bytes(u));
	/* not mt_publish: a micro-batch that was given up leaves units behind the version before */
	atomic_store_explicit(&mt_unit(world.run, u)->version, world.version, memory_order_release);
	mt_wake(world.run);
	world.published++;
	return true;
}

static uint64_t hash_elems(uint64_t h, const void *elems, uint64_t from, uint64_t to)
{
	bool bf16 = world.control->grad == MT_BF16;
	for (uint64_t i = from; i < to; i++)
		h = (h ^ (bf16 ? ((const uint16_t *)elems)[i] : ((const uint32_t *)elems)[i])) * 0x100000001b3u;
	return h;
}

static void piece_seen(const struct mt_msg *m, const void *block)
{
	uint32_t u = m->grad.unit, end = m->grad.end;
	MT_ASSERT(u < world.control->n_units && end < 2 && world.seen.losses == 1 && m->grad.off % MT_BLOCK == 0);
	uint64_t elems = mt_unit(world.run, u)->elems, off = m->grad.off, n = m->grad.n;
	MT_ASSERT(off <= elems && n <= elems - off && (n % MT_BLOCK == 0 || off + n == elems));
	/* without gradients in the store a unit's pieces come in order */
	MT_ASSERT(world.control->grad != MT_NONE || off == world.seen.elems[u][end]);
	for (uint64_t i = 0; i < n; i += MT_BLOCK) {
		bool *came = &world.came[u][end][(off + i) / MT_BLOCK];
		MT_ASSERT(!*came);
		*came = true;
		/* a sum over blocks: whatever their order */
		world.seen.hash[u][end] += hash_elems(off + i + 1, block, i, n - i < MT_BLOCK ? n : i + MT_BLOCK);
	}
	world.seen.elems[u][end] += n;
	if (world.control->grad == MT_NONE) weights_spoil(u, off, n);
}

static bool take(void)
{
	struct mt_msg m;
	const void *block;
	if (!mt_ring_peek(world.taken, 0, &m, &block)) return false;
	MT_ASSERT(m.k == 1 && m.step == world.version && m.txn_kind == (world.train ? MT_TRAIN : MT_EVAL));
	if (m.kind == MT_MSG_LOSS) {
		world.seen.loss = m.loss.sum;
		world.seen.terms[0] = m.loss.aux;
		world.seen.terms[1] = m.loss.z;
		world.seen.targets = m.loss.targets;
		world.seen.losses++;
	} else if (m.kind == MT_MSG_FIGURES) {
		MT_ASSERT(!world.seen.losses);
		memcpy(world.seen.figures, m.figures.figures, sizeof m.figures.figures);
	} else {
		MT_ASSERT(m.kind == MT_MSG_GRAD && world.train);
		piece_seen(&m, block);
	}
	if (m.kind != MT_MSG_GRAD || !m.grad.zero) memset((void *)block, RUBBISH, mt_ring_block(world.taken));
	mt_ring_pop(world.taken);
	return true;
}

/* All that is to come of the micro-batch has */
static bool seen_all(void)
{
	bool both = mt_geometry(world.run)->flags & MT_TIED && world.control->grad != MT_NONE;
	for (uint32_t u = 0; world.train && u < world.control->n_units; u++)
		for (uint32_t end = 0; end < (u == 0 && both ? 2 : 1); end++)
			if (world.seen.elems[u][end] != mt_part(world.run, u).end) return false;
	return world.seen.losses == 1;
}

static void turns(void)
{
	while (draw(100) < world.eager)
		if (draw(2) ? !publish_next() : !take()) break;
	if (seen_all())
		for (uint32_t u = 0; u < world.control->n_units; u++) weights_spoil(u, 0, mt_unit(world.run, u)->elems);
}

/* ---- what wait.c sees ---- */

/* The transaction's word, each time that the stream asks whether its micro-batch is still wanted */
static uint64_t world_txn_word(const struct stream *s)
{
	turns();
	if (world.stale_in >= 0 && world.stale_in-- == 0 && !(s->now.sent && world.control->grad == MT_NONE))
		world.stale = true;
	return mt_word(s->taken.msg.k, s->taken.msg.attempt + world.stale, MT_ACCUMULATE);
}

/* Instead of sleeping: the stage that mt-stream waits for takes a turn */
static void world_wait(void)
{
	if (world.activity == MT_ACT_WAIT_WEIGHTS) MT_ASSERT(publish_next() || world.published == world.control->n_units);
	else take();
}

/* ---- mt-step ---- */

struct shape {
	uint32_t rows, seq;
	bool packed, train;
};

/* Documents of random lengths and the rest padding, or a document a row */
static void rows_make(const struct shape *z, uint32_t *tokens)
{
	uint32_t n = z->rows * z->seq, vocab = mt_geometry(world.run)->vocab, *targets = tokens + n, *starts = targets + n;
	world.random = z->rows * 1000 + z->seq;
	for (uint32_t r = 0; r < z->rows; r++) {
		uint32_t used = r % 3 == 2 ? z->seq - (uint32_t)draw(z->seq / 2) : z->seq;
		for (uint32_t t = 0, start = 0; t < z->seq; t++) {
			uint32_t i = r * z->seq + t;
			if (z->packed && t && t < used && draw(8) == 0) {
				start = t;
				targets[i - 1] = MT_NO_TARGET;
			}
			tokens[i] = t < used ? (uint32_t)draw(vocab) : 0;
			targets[i] = t + 1 >= used || draw(8) == 0 ? MT_NO_TARGET : (uint32_t)draw(vocab);
			starts[i] = t < used ? start : used;
		}
	}
}

/* Of each target, without a draw, so that seeds keep their rows: 0, 1, below 0 and others */
static void row_weights_make(const struct shape *z, uint32_t *block)
{
	size_t n = (size_t)z->rows * z->seq;
	for (size_t i = 0; i < n; i++) {
		float weight = (float)(i % 7) * 0.5f - 1;
		memcpy(block + 3 * n + i, &weight, sizeof weight);
	}
}

/* Likewise of some shapes, and of evaluations in bf16: pairs of each row's documents and dpo, or all documents and pg.
 * The number of documents */
static uint32_t objective_make(const struct shape *z, uint32_t *block)
{
	uint32_t n = z->rows * z->seq, documents = 0;
	const uint32_t *starts = block + 2 * n;
	struct mt_objective *o = (void *)((char *)block + batch_objective_at(n, 0));
	struct mt_document *document = (void *)(o + 1);
	bool pg = z->rows == 2, dpo = z->rows == 5 || (!z->train && world.control->dtype == MT_BF16);
	if (!pg && !dpo) return 0;
	*o = (struct mt_objective){.kind = pg ? MT_PG : MT_DPO, .scale = 1.0 / n, .beta = 0.1, .low = 0.2, .high = 0.3};
	for (uint32_t i = 0; i < n; i++) {
		float old = -4 - 0.01f * (float)(i % 9);
		memcpy(block + 4 * n + i, &old, sizeof old);
		if (starts[i] != i % z->seq || (i && starts[i] == starts[i - 1])) continue;
		bool odd = documents % 2, apart = odd && document[documents - 1].begin / z->seq != i / z->seq;
		if (dpo && apart) documents--, odd = false;
		document[documents++] = (struct mt_document){i,
			pg        ? MT_SIDE_NONE
				: odd ? MT_CHOSEN
					  : MT_REJECTED,
			-4.5 * (i % 5)};
	}
	return dpo ? documents / 2 * 2 : documents;
}

/* The next micro-batch: its weights are yet to come. random, eager, stale_in: how the neighbours are */
static void world_begin(struct stream *s, const struct shape *z, uint64_t random, unsigned eager, int64_t stale_in)
{
	world.version++;
	world.published = 0;
	world.seen = (struct seen){0};
	memset(world.came, 0, sizeof world.came);
	world.stale = false;
	world.train = z->train;
	for (uint32_t u = 0; u < world.control->n_units; u++) weights_spoil(u, 0, mt_unit(world.run, u)->elems);
	rows_make(z, s->taken.host);
	row_weights_make(z, s->taken.host);
	uint32_t documents = mt_geometry(world.run)->mtp != 0 ? 0 : objective_make(z, s->taken.host);
	s->taken.msg = (struct mt_msg){.k = 1,
		.attempt = 1,
		.kind = MT_MSG_BATCH,
		.txn_kind = z->train ? MT_TRAIN : MT_EVAL,
		.step = world.version,
		.batch = {.version = world.version,
			.rows = z->rows,
			.seq = z->seq,
			.micros = 1,
			.weights = z->rows % 2 || documents,
			.documents = documents,
			.loss_scale = 1.0 / (z->rows * z->seq)}};
	world.random = random;
	world.eager = eager;
	world.stale_in = stale_in;
}

/* It is over, by the schedule's word */
static void world_end(struct stream *s)
{
	memset(s->taken.host, RUBBISH, HOST_BYTES);
	while (take())
		;
}
