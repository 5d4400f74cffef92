/* search.c: how long a choice takes, and which choice takes the least.
 *
 * The candidates do not depend on the memory: so more memory never gives a slower plan, and the smallest need of all of
 * them is the smallest budget that works. Times are sums over units of the longest of computing, weights coming in and
 * gradients going out; they rank plans and say what to expect, to some ten per cent.
 */
#include <math.h>

#include "plan.h"

/* Assumed, all of them: nothing here was measured on a GPU with this program. mt-stream/README.md says how they are
 * used. */
#define GEMM_SHAPES 0.96        /* of the measured GEMM rate: the last wave of tiles is only partly filled */
#define ATTENTION_FORWARD 0.60  /* of the measured GEMM rate, by a library: published benchmarks */
#define ATTENTION_BACKWARD 0.40 /* of cuDNN and FlashAttention on H100; deterministic backward a third less */
#define OWN_ATTENTION 0.28      /* of an engine's: our own kernels, synchronous loads and no wgmma */
#define GEMM_HALF 256.0         /* tokens at which a GEMM reaches half its rate */
#define PIECE_MIN 1024u         /* tokens: MLP pieces are not made smaller than this */
#define LAUNCH 5e-6             /* s that a kernel takes at least, and kernels that a chunk or piece launches: */
#define FORWARD_CHUNK 6         /* norm, q k v, rope, attention, output, residual */
#define FORWARD_PIECE 5         /* norm, gate and up, SwiGLU, down, residual */
#define BACKWARD_CHUNK 13
#define BACKWARD_PIECE 10
#define HEAD_CHUNK 7
/* bytes of host memory that the update of a parameter reads and writes: weight and its low bits (together 4), m (4),
 * v (4); the gradient is read besides */
#define STATE_BYTES 24
#define TIE 1e-9 /* steps that differ by less are equally long */

void ask_sizes(struct ask *q, const struct mt_unit *units, uint32_t n)
{
	q->embed = units[0].elems;
	q->block = units[1].elems;
	q->head = units[n - 1].elems + (q->geo->flags & MT_TIED ? units[0].elems : 0);
	q->params = 0;
	for (uint32_t u = 0; u < n; u++) q->params += units[u].params;
}

/* ---- how long ---- */

struct times { /* seconds, of n tokens through one unit, nothing but computing */
	double embed_forward, embed_backward, head;
	double forward, backward, redo[LEVEL_FULL + 1];
	double attention; /* of forward and backward */
};

static double gemm(const struct ask *q, double flops, double tokens)
{
	return flops / (q->profile.flops * GEMM_SHAPES) * (1 + GEMM_HALF / tokens);
}

static double update_bytes(const struct ask *q) { return STATE_BYTES + (q->grad == MT_BF16 ? 2 : 4); }

/* Parameters that the host updates in a second: cores do not scale beyond what their memory gives */
static double update_rate(const struct ask *q)
{
	const struct profile *p = &q->profile;

	return p->adam_measured ? p->adam : fmin(p->adam, p->ram / update_bytes(q));
}

/* Products of a query and a key, of all rows, mean of all layers */
static double pairs(const struct ask *q, double rows)
{
	const struct mt_geometry *g = q->geo;
	double t = q->seq, w = g->window && g->window < q->seq ? g->window : t, windows = 0;

	for (uint32_t l = 0; l < g->layers; l++) windows += g->window_layer[l] != 0;
	windows /= g->layers;
	return rows * (windows * (w * t - w * w / 2) + (1 - windows) * t * t / 2);
}

static struct times times_of(const struct ask *q, const struct choice *c, uint32_t rows)
{
	const struct mt_geometry *g = q->geo;
	const struct profile *p = &q->profile;
	double n = (double)rows * q->seq, h = g->hidden, a = (double)g->heads * g->head_dim;
	double k = (double)g->kv_heads * g->head_dim, f = g->ffn, e = (double)q->elem, block = (double)q->block;
	double per = fmin(n, (double)rows_of_chunk(q, c) * q->seq), piece = fmin(n, (double)tokens_of_piece(q, c));
	double chunks = ceil(n / per), pieces = ceil(n / piece), head_n = fmin(n, c->head_tokens);
	double mlp = 3 * h * f, attention = 4 * a * pairs(q, rows) / p->flops / (c->engine ? 1 : OWN_ATTENTION);
	struct times t;

	/* bytes: weights once a chunk, gradients read and written once a chunk, and what passes through norms, rope,
	 * SwiGLU and residuals */
	double weights = (chunks * (block - mlp) + pieces * mlp) * e / p->hbm, grads = weights / e * 8;
	double around = n * e * (10 * h + 4 * (a + k) + 3 * f) / p->hbm;
	t.forward = gemm(q, 2 * n * block, piece) + attention / ATTENTION_FORWARD + weights + around +
		LAUNCH * (FORWARD_CHUNK * chunks + FORWARD_PIECE * pieces);
	t.backward = gemm(q, 4 * n * block, piece) + 2.5 * attention / ATTENTION_BACKWARD + weights + grads + 2.5 * around +
		LAUNCH * (BACKWARD_CHUNK * chunks + BACKWARD_PIECE * pieces);
	t.attention = attention / ATTENTION_FORWARD + (q->train ? 2.5 * attention / ATTENTION_BACKWARD : 0);
	double gate_up = gemm(q, 4 * n * h * f, piece), down = gate_up / 2;
	t.redo[LEVEL_FULL] = 0;
	t.redo[LEVEL_BLOCK] = gate_up + weights / 2;
	t.redo[LEVEL_ATTENTION] = t.forward - down - attention / ATTENTION_FORWARD;
	t.redo[LEVEL_INPUT] = t.forward - down;

	double head_chunks = ceil(n / head_n), head = (double)q->head, v = g->vocab;
	t.head = gemm(q, (q->train ? 6 : 2) * n * h * v, head_n) +
		(head_chunks * head * (q->train ? 2 * e + 8 : e) + n * e * (3 * v + 10 * h)) / p->hbm +
		LAUNCH * HEAD_CHUNK * head_chunks;
	t.embed_forward = 2 * n * h * e / p->hbm + LAUNCH * chunks;
	t.embed_backward = ((double)q->embed * 4 + n * h * (e + 8)) / p->hbm + LAUNCH * chunks;
	return t;
}

static double most(double a, double b) { return a > b ? a : b; }

/* Seconds on the bus; x_copy, o_copy: what carrying activations takes from compute, in device memory's bandwidth */
struct bus {
	double embed_in, block_in, head_in, embed_out, block_out, x_out, o_out, x_in, o_in, x_copy, o_copy;
};

static struct bus bus_of(const struct ask *q, const struct choice *c)
{
	const struct profile *p = &q->profile;
	double n = (double)rows_of_pass(q, c) * q->seq, in = q->view ? 0 : (q->dtype == MT_BF16 ? 2 : 4) / p->h2d;
	double size = q->grad == MT_BF16 ? 2 : 4;
	double gather = q->grad == MT_NONE ? 0 : 2 * size / (update_bytes(q) * update_rate(q));
	double out = most(size / p->d2h, gather), x = c->x_host ? n * q->geo->hidden * (double)q->elem : 0;
	double a = (double)q->geo->heads * q->geo->head_dim;
	double o = c->o_host ? n * (a * (double)q->elem + q->geo->heads * 4.0) : 0;

	return (struct bus){
		.embed_in = (double)q->embed * in,
		.block_in = (double)q->block * in,
		.head_in = (double)q->head * in,
		.embed_out = (double)q->embed * out,
		.block_out = (double)q->block * out,
		.x_out = x / p->d2h,
		.x_in = x / p->h2d,
		.x_copy = x / p->hbm,
		.o_out = o / p->d2h,
		.o_in = o / p->h2d,
		.o_copy = o / p->hbm,
	};
}

/* Layer-major: blocks of one level, `from` to `to` counted from the last one down */
static double backward_range(const struct ask *q, const struct choice *c, const struct times *t, const struct bus *b,
	enum level level, uint32_t from, uint32_t to)
{
	uint32_t slots = q->view ? q->geo->layers : c->weight_slots, here = to < slots ? to : slots > from ? slots : from;
	double o_in = level == LEVEL_ATTENTION ? b->o_in : 0, o_copy = level == LEVEL_ATTENTION ? b->o_copy : 0;
	double work = t->backward + t->redo[level] + b->x_copy + o_copy, in = b->x_in + o_in;
	double out = b->block_out, away = in + b->block_in;

	if (c->grad_slots < 2) work += out;
	double held = most(most(work, in), out), come = slots < 2 ? work + away : most(most(work, away), out);
	return (here - from) * held + (to - here) * come;
}

static void predict_layers(const struct ask *q, const struct choice *c, const struct times *t, struct prediction *p)
{
	const struct bus b = bus_of(q, c);
	uint32_t layers = q->geo->layers,
			 at[5] = {0, c->full, c->full + c->block, c->full + c->block + c->attention, layers};
	double block = t->forward + b.x_copy, leaves = b.x_out;

	if (!q->view && c->weight_slots < 2) block += b.block_in;
	double stays = most(most(block, b.block_in), leaves),
		   goes = most(most(block + b.o_copy, b.block_in), leaves + b.o_out);
	p->forward = most(t->embed_forward, b.embed_in) + (layers - c->attention) * stays + c->attention * goes;
	p->first_forward = p->forward;
	if (!q->train) {
		p->forward += most(t->head, b.head_in);
		return;
	}
	p->backward = most(t->head, b.head_in);
	for (int i = 0; i < 4; i++)
		p->backward += backward_range(q, c, t, &b, (enum level)(LEVEL_FULL - i), at[i], at[i + 1]);
	p->backward += t->embed_backward;
	p->last_backward = p->backward;
	p->tail = b.embed_out;
}

/* Pass-major: weights come in during the first pass's forward, gradients leave during the last one's backward */
static void predict_passes(const struct ask *q, const struct choice *c, const struct times *t, struct prediction *p)
{
	const struct bus b = bus_of(q, c);
	uint32_t layers = q->geo->layers, full = q->rows / c->pass_rows, rest = q->rows % c->pass_rows;
	struct times r = rest ? times_of(q, c, rest) : *t, z = full ? *t : r;

	p->first_forward = most(z.embed_forward, b.embed_in) + layers * most(z.forward, b.block_in);
	p->forward = p->first_forward + most(z.head, b.head_in) - z.head;
	double pass = z.embed_forward + layers * z.forward;
	const struct times *last = rest ? &r : &z;
	p->forward += pass * (full ? full - 1 : 0) + (full && rest ? r.embed_forward + layers * r.forward : 0);
	p->backward = full * (z.head + layers * z.backward + z.embed_backward) +
		(rest ? r.head + layers * r.backward + r.embed_backward : 0);
	p->backward += layers * (most(last->backward, b.block_out) - last->backward);
	p->last_backward = last->head + layers * most(last->backward, b.block_out) + last->embed_backward;
	p->tail = b.embed_out;
}

/* The update hides behind the next step's first forward pass, which waits for each unit's new weights. Without
 * gradients in the store it hides behind the backward pass instead: a unit is updated as its gradient arrives, and the
 * embedding's, which the next step needs first, arrives last. Behind nothing hides the embedding's own. */
static double stall_of(const struct ask *q, const struct prediction *p)
{
	double behind = q->grad == MT_NONE ? p->last_backward : p->first_forward;

	return most((double)q->embed / update_rate(q), p->adam - behind);
}

static void predict(const struct ask *q, const struct choice *c, const struct times *t, struct prediction *p)
{
	*p = (struct prediction){0};
	if (c->pass_rows) predict_passes(q, c, t, p);
	else predict_layers(q, c, t, p);
	if (q->train) {
		p->adam = (double)q->params / update_rate(q);
		p->stall = stall_of(q, p);
	}
	p->step = p->forward + p->backward + p->stall + p->tail;
}

/* Where the step goes: seconds of computing in one pass of `rows` rows, and how much of it is what */
static void account(const struct ask *q, const struct choice *c, uint32_t rows, double passes, struct prediction *p)
{
	struct times t = times_of(q, c, rows);
	double layers = q->geo->layers, n = (double)rows * q->seq, model = layers * (double)q->block + (double)q->head;
	double products = (q->train ? 6 : 2) * n * model / (q->profile.flops * GEMM_SHAPES);
	double attention = layers * t.attention, again = 0;
	double all = t.embed_forward + layers * t.forward + t.head;

	if (q->train) {
		all += layers * t.backward + t.embed_backward;
		again = c->block * t.redo[LEVEL_BLOCK] + c->attention * t.redo[LEVEL_ATTENTION] +
			(layers - c->full - c->block - c->attention) * t.redo[LEVEL_INPUT];
	}
	p->products += passes * products;
	p->attention += passes * attention;
	p->again += passes * again;
	p->around += passes * (all - products - attention);
}

/* What goes over the bus: weights, gradients, activations that the host keeps */
static void traffic(const struct ask *q, const struct choice *c, struct prediction *p)
{
	uint64_t layers = q->geo->layers, w = q->view ? 0 : q->dtype == MT_BF16 ? 2 : 4, g = q->grad == MT_BF16 ? 2 : 4;
	uint64_t again = q->train && !c->pass_rows && layers > c->weight_slots ? layers - c->weight_slots : 0;
	uint64_t kept = memory_host(q, c);

	p->in = (q->embed + q->head + (layers + again) * q->block) * w + kept;
	p->out = (q->train ? (q->embed + q->head + layers * q->block) * g : 0) + kept;
}

/* What the step is made of, for people */
static void predict_more(const struct ask *q, const struct choice *c, struct prediction *p)
{
	double model = (double)q->geo->layers * (double)q->block + (double)q->head, tokens = (double)q->rows * q->seq;
	double attention = 4.0 * q->geo->heads * q->geo->head_dim * pairs(q, q->rows) * q->geo->layers;
	uint32_t pass = rows_of_pass(q, c);

	traffic(q, c, p);
	account(q, c, pass, q->rows / pass, p);
	if (q->rows % pass) account(q, c, q->rows % pass, 1, p);
	p->bus = most(0, p->forward + p->backward - p->products - p->attention - p->again - p->around);
	p->tflops = (q->train ? 3 : 1) * (2 * model * tokens + attention) / p->step / 1e12;
}

void planner_predict(const struct ask *q, const struct choice *c, struct prediction *p)
{
	struct times t = times_of(q, c, rows_of_pass(q, c));

	predict(q, c, &t, p);
	predict_more(q, c, p);
}

/* ---- which ---- */

struct search {
	const struct ask *q;
	struct planned *best;
	double least_step; /* of all that fit; infinite: none yet */
};

/* Where the optimizer is what a step waits for, many plans take the same time: then the one that computes faster, for
 * the optimizer may prove to be faster than it was said to be; then attention in the faster way, and less memory. */
static bool better(const struct planned *best, const struct choice *c, const struct prediction *p, uint64_t bytes)
{
	double work = p->forward + p->backward, least = best->p.forward + best->p.backward;

	return work < least || (work <= least && (c->engine != best->c.engine ? c->engine : bytes < best->bytes));
}

static void consider(struct search *s, const struct choice *c, const struct times *t, uint64_t bytes)
{
	const struct ask *q = s->q;
	uint64_t host = memory_host(q, c);
	bool fits = bytes <= q->memory, host_fits = !host || (host <= q->host && q->host_beside <= q->host - host);
	struct prediction p;

	if (host_fits && bytes < s->best->least) s->best->least = bytes;
	if (fits && host + q->host_beside < s->best->least_host) s->best->least_host = host + q->host_beside;
	if (!fits || !host_fits) return;
	predict(q, c, t, &p);
	double tie = s->least_step * (1 + TIE);
	if (p.step > tie) return;
	if (p.step < s->least_step) s->least_step = p.step;
	/* what was the best may be none any more */
	if (s->best->p.step <= s->least_step * (1 + TIE) && s->best->bytes && !better(s->best, c, &p, bytes)) return;
	s->best->c = *c;
	s->best->p = p;
	s->best->bytes = bytes;
}

/* 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, ... up to `last`, and it */
static uint32_t next(uint32_t i, uint32_t last)
{
	uint32_t n = i + (i / 4 ? i / 4 : 1);

	return i < last && n > last ? last : n;
}

/* Room for `each` bytes in what is left of the budget beside `used`, `at_most` times */
static uint32_t room(const struct ask *q, uint64_t used, uint64_t each, uint32_t at_most)
{
	uint64_t n = used >= q->memory ? 0 : each ? (q->memory - used) / each : at_most;

	return n < at_most ? (uint32_t)n : at_most;
}

/* With `full` blocks keeping all, as many of the others as there is room for keep all but gate and up, and what is left
 * of the room goes to attention's outputs. All shares of the two are tried: were it only the largest, a little more
 * memory for one would cost more of the other than it gains. */
static void fill_levels(struct search *s, struct choice *c, const struct times *t, const struct increments *inc,
	uint64_t used)
{
	const struct ask *q = s->q;
	uint32_t others = q->geo->layers - c->full;

	c->block = 0;
	c->attention = c->o_host ? others : 0;
	used += c->full * inc->full;
	if (!others) {
		if (!c->o_host) consider(s, c, t, used - inc->no_gu - inc->no_chunk);
		return;
	}
	consider(s, c, t, used);
	if (q->recompute == RECOMPUTE_FULL || !q->train) return;
	c->block = others;
	c->attention = 0;
	if (!c->o_host) consider(s, c, t, used + others * inc->block - inc->no_chunk);
	uint32_t room_for = room(q, used, inc->block, others - 1);
	for (c->block = 0; c->block <= room_for; c->block++) {
		uint64_t now = used + c->block * inc->block;
		c->attention = c->o_host ? others - c->block : room(q, now, inc->attention, others - c->block);
		consider(s, c, t, now + c->attention * inc->attention);
	}
}

/* Can `full` blocks that keep all, or fewer, not be as good as what was found, even if the others compute only gate and
 * up again? */
static bool hopeless(const struct search *s, const struct choice *c, const struct times *t)
{
	struct choice best = *c;
	struct prediction p;

	best.block = s->q->geo->layers - c->full;
	best.attention = 0;
	predict(s->q, &best, t, &p);
	return p.step > s->least_step * (1 + TIE);
}

static void try_slots(struct search *s, struct choice *c, const struct times *t)
{
	const struct ask *q = s->q;
	uint32_t layers = q->geo->layers, from = 0, to = layers;
	struct increments inc;

	c->full = c->block = c->attention = 0;
	if (q->recompute == RECOMPUTE_FULL || !q->train) to = 0;
	if (q->recompute == RECOMPUTE_NONE && q->train) from = to;
	if (c->pass_rows) from = to = layers;
	c->weight_slots = q->view ? 0 : c->pass_rows ? layers : 1;
	memory_increments(q, c, &inc);
	uint64_t base = memory_lay(q, c, NULL, NULL);
	if (base == UINT64_MAX) return;
	for (uint32_t slots = c->weight_slots;; slots = next(slots, layers)) {
		c->weight_slots = slots;
		c->full = from;
		fill_levels(s, c, t, &inc, base);
		for (c->full = to; c->full > from && !hopeless(s, c, t); c->full--) fill_levels(s, c, t, &inc, base);
		if (!slots || slots >= layers) break;
		base += (next(slots, layers) - slots) * inc.slot;
	}
}

static void try_where(struct search *s, struct choice *c)
{
	const struct ask *q = s->q;
	struct times t = times_of(q, c, rows_of_pass(q, c));
	uint32_t layers = q->geo->layers, most_slots = q->train ? (layers < 2 ? layers : 2) : 0;

	for (int host = 0; host < (q->train && !c->pass_rows ? 4 : 1); host++) {
		c->x_host = host & 1;
		c->o_host = host & 2;
		if (c->o_host && q->recompute != RECOMPUTE_AUTO) continue;
		if (c->pass_rows) {
			c->grad_slots = layers;
			try_slots(s, c, &t);
			continue;
		}
		for (c->grad_slots = q->train ? 1 : 0; c->grad_slots <= most_slots; c->grad_slots++) try_slots(s, c, &t);
	}
}

static void try_head(struct search *s, struct choice *c)
{
	static const uint32_t tokens[] = {128, 512, 2048, 8192};

	c->head_tokens = s->q->head_tokens;
	if (c->head_tokens) try_where(s, c);
	else
		for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
			c->head_tokens = tokens[i];
			try_where(s, c);
		}
}

/* Chunks of whole rows; of one row, also its MLP in pieces */
static void try_chunks(struct search *s, struct choice *c)
{
	const struct ask *q = s->q;
	uint64_t most_rows = (uint64_t)INT32_MAX / q->seq;
	uint32_t rows = q->rows < most_rows ? q->rows : (uint32_t)most_rows;

	c->chunk_tokens = q->chunk_tokens;
	if (c->chunk_tokens) {
		try_head(s, c);
		return;
	}
	for (uint32_t n = q->seq / 2; n >= PIECE_MIN; n /= 2) {
		c->chunk_tokens = n;
		try_head(s, c);
	}
	for (uint32_t r = 1; r <= rows; r = next(r, rows)) {
		c->chunk_tokens = r * q->seq;
		try_head(s, c);
	}
}

/* What is short: the device's memory, or the host's too, if with more of that the device's would do */
static int nothing_fits(const struct ask *q, const struct planned *best)
{
	unsigned long long least = (best->least + (1 << 20) - 1) >> 20, have = q->memory >> 20;
	char host[128] = "", remedy[32] = "";

	if (best->least_host != UINT64_MAX) {
		snprintf(host, sizeof host, ", or %llu MiB of the host's, have %llu MiB",
			(unsigned long long)((best->least_host + (1 << 20) - 1) >> 20), (unsigned long long)(q->host >> 20));
		snprintf(remedy, sizeof remedy, " or --host-memory");
	}
	return mt_fail(MT_EX_NOMEM,
		"a micro-batch of %u rows of %u tokens needs %llu MiB of device memory, have %llu MiB%s: "
		"a smaller --micro or --seq, or a larger --device-memory%s",
		q->rows, q->seq, least, have, host, remedy);
}

static void try_orders(struct search *s, bool engine)
{
	const struct ask *q = s->q;
	struct choice c = {.pass_rows = q->pass_rows, .engine = engine};

	if (!c.pass_rows || !q->train) try_chunks(s, &c);
	for (uint32_t r = 1; q->train && !q->settled && r <= q->rows; r = next(r, q->rows)) {
		c = (struct choice){.pass_rows = r, .chunk_tokens = r * q->seq, .engine = engine};
		if ((uint64_t)r * q->seq <= INT32_MAX) try_head(s, &c);
	}
	if (q->pass_rows && q->train) {
		c = (struct choice){.pass_rows = q->pass_rows, .engine = engine};
		try_chunks(s, &c);
	}
}

int planner_make(const struct ask *q, struct planned *best)
{
	struct search s = {q, best, INFINITY};

	*best = (struct planned){.least = UINT64_MAX, .least_host = UINT64_MAX};
	if (q->attention.rows) try_orders(&s, true);
	if (!q->attention.rows || !q->attention.selected) try_orders(&s, false);
	if (isinf(s.least_step)) return nothing_fits(q, best);
	predict_more(q, &best->c, &best->p);
	best->host_bytes = memory_host(q, &best->c);
	return 0;
}
