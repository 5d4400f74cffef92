/* stream-plan: what must hold of every plan, over random geometries, shapes and budgets.
 *
 * stream-plan FROM SEEDS seeds FROM .. FROM + SEEDS - 1; a line for each thing that does not hold, then a summary
 *     stream-plan gpu MODEL CAPABILITY MULTIPROCESSORS KHZ MEMORY-KHZ BUS-BITS
 *                                 what such a GPU is taken for: GB/s of bus and memory, TFLOP/s in bf16 and fp32
 *
 * More memory, of the device or of the host, never gives a slower plan; a plan never takes more than there is; the
 * least that is named works and a page less does not; times are finite and positive and add up.
 */
#include <math.h>
#include <stdlib.h>

#include "../../mt-stream/plan/plan.h"
#include "cli/cli.h"

static uint64_t state;
static uint64_t now_seed;
static int wrong, plans, kinds[8];

static uint32_t draw(uint32_t below)
{
	uint64_t z = state += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return (uint32_t)((z ^ z >> 31) % below);
}
static uint32_t between(uint32_t low, uint32_t high) { return low + draw(high - low + 1); }

static void expect(bool holds, const char *what)
{
	if (holds) return;
	wrong++;
	printf("seed %llu: %s\n", (unsigned long long)now_seed, what);
}

static struct mt_geometry geometry(void)
{
	static const uint32_t dims[] = {16, 64, 128};
	struct mt_geometry g = {.family = "llama", .layers = draw(4) ? between(1, 12) : between(13, 80), .pad_token = -1};

	g.head_dim = dims[draw(3)];
	g.kv_heads = between(1, 8);
	g.heads = g.kv_heads * between(1, 8);
	g.hidden = g.heads * g.head_dim;
	g.ffn = g.hidden * between(1, 8) / 2;
	g.vocab = 256 << draw(10);
	g.flags = draw(64) & (MT_TIED | MT_QKV_BIAS | MT_MLP_BIAS | MT_QK_NORM);
	if (draw(4) == 0) {
		g.window = between(1, 4096);
		for (uint32_t l = draw(g.layers); l < g.layers; l++) g.window_layer[l] = 1;
	}
	return g;
}

static struct ask ask_of(const struct mt_geometry *g, const struct mt_layout *l)
{
	struct ask q = {
		.geo = g,
		.dtype = l->dtype,
		.grad = l->grad,
		.rows = between(1, 12),
		.seq = 8u << draw(draw(4) ? 10 : 16),
		.train = draw(8) != 0,
		.elem = l->dtype == MT_BF16 ? 2 : 4,
		.view = draw(8) == 0,
		.work = draw(1 << 20),
		.host = UINT64_MAX,
		.host_beside = draw(1 << 30),
		.recompute = draw(4) ? RECOMPUTE_AUTO : (enum recompute)draw(3),
	};
	int gpus = 0;

	while (profile_name(gpus)) gpus++;
	ask_sizes(&q, l->units, l->n_units);
	if (draw(4) == 0) {
		q.settled = true;
		q.chunk_tokens = between(1, 2 * q.seq);
		q.head_tokens = between(1, 8192);
		q.pass_rows = draw(2) ? between(1, q.rows) : 0;
	}
	mt_must(profile_parse(profile_name((int)draw((uint32_t)gpus)), q.dtype, NULL, &q.profile));
	/* every other one: another way of attention, which takes work memory */
	if (now_seed % 2)
		q.attention = (struct attention_need){.fixed = 1 << 20,
			.row = (now_seed * 2654435761u) % (1 << 28),
			.table = now_seed / 4 % 2 << 20,
			.rows = 1 + now_seed / 2 % 8,
			.selected = now_seed / 16 % 4 == 0};
	if (draw(4) == 0) q.profile.h2d = q.profile.d2h = q.profile.h2d * between(1, 100);
	return q;
}

static void check_plan(const struct ask *q, const struct planned *p)
{
	const double parts[] = {p->p.products, p->p.attention, p->p.again, p->p.around, p->p.bus, p->p.stall, p->p.tail};
	double sum = 0;

	plans++;
	kinds[p->c.pass_rows                  ? 0
			: p->c.x_host && p->c.o_host  ? 1
			: p->c.x_host                 ? 2
			: p->c.o_host                 ? 3
			: p->c.full == q->geo->layers ? 4
			: p->c.block                  ? 5
			: p->c.attention              ? 6
										  : 7]++;
	expect(memory_lay(q, &p->c, NULL, NULL) == p->bytes, "the layout takes other bytes than the plan says");
	expect(p->c.engine ? q->attention.rows : !q->attention.selected || !q->attention.rows,
		"attention in a way that is not there");
	expect(p->bytes <= q->memory, "over the budget");
	expect(p->least <= p->bytes, "least is more than a plan takes");
	expect(p->host_bytes == memory_host(q, &p->c), "the host's bytes are not the plan's");
	expect(!p->host_bytes || p->host_bytes + q->host_beside <= q->host, "over the host's budget");
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		expect(isfinite(parts[i]) && parts[i] >= 0, "a part of the step is not a time");
		sum += parts[i];
	}
	expect(isfinite(p->p.step) && p->p.step > 0, "the step is not a time");
	expect(fabs(sum - p->p.step) <= 1e-6 * p->p.step, "the parts are not the step");
	expect(isfinite(p->p.tflops) && p->p.tflops > 0 && p->p.tflops * 1e12 <= q->profile.flops * 1.0001,
		"faster than the machine");
	expect(p->c.full + p->c.block + p->c.attention <= q->geo->layers, "more blocks kept than there are");
}

/* Plans for budgets from `from` to `to`, of what *budget is (q->memory or q->host): once one works all do, none is
 * slower */
static void climb(struct ask *q, uint64_t *budget, double from, double to, double factor, double more)
{
	double last = INFINITY;
	struct planned p;

	for (double at = from; at < to; at = at * factor + more) {
		*budget = (uint64_t)at;
		if (planner_make(q, &p)) {
			expect(isinf(last), "fitted with less");
			continue;
		}
		check_plan(q, &p);
		expect(p.p.step <= last * (1 + 1e-8),
			budget == &q->host ? "slower with more host memory" : "slower with more device memory");
		last = p.p.step;
	}
	expect(!isinf(last), "nothing fits");
}

/* The least that is named works, a page less does not; returns it */
static uint64_t least_of(struct ask *q)
{
	struct planned p;

	q->memory = 4096;
	expect(planner_make(q, &p) == -MT_EX_NOMEM && p.least != UINT64_MAX, "nothing fits, and nothing is named");
	uint64_t least = q->memory = p.least;
	expect(planner_make(q, &p) == 0 && p.bytes == least, "the least does not work");
	q->memory = least - 4096;
	expect(planner_make(q, &p) == -MT_EX_NOMEM && p.least == least, "less than the least works");
	return least;
}

/* Likewise of the host's memory, where the device has `least` and would need more without it */
static void least_of_host(struct ask *q, uint64_t least)
{
	struct planned p;

	q->memory = least;
	q->host = 0;
	if (planner_make(q, &p) == 0) return;
	expect(p.least > least, "the least without the host's memory is not more");
	expect(p.least_host != UINT64_MAX, "no host memory is named that would do");
	q->host = p.least_host;
	expect(planner_make(q, &p) == 0, "the host's least does not work");
	q->host--;
	expect(planner_make(q, &p) == -MT_EX_NOMEM, "less than the host's least works");
}

/* From somewhere, in steps smaller than what any block keeps */
static void climb_slowly(struct ask *q, uint64_t least)
{
	double from = (double)least * (1 + draw(400) / 100.0),
		   o = (double)q->rows * q->seq * q->geo->heads * q->geo->head_dim * (double)q->elem;

	climb(q, &q->memory, from, from + 12 * o, 1, fmax(o / (1 + draw(3)), 4096));
}

static void try(uint64_t seed)
{
	static const enum mt_dtype grads[] = {MT_FP32, MT_BF16, MT_NONE};
	struct mt_layout l;

	now_seed = state = seed;
	struct mt_geometry g = geometry();
	enum mt_dtype dtype = draw(2) ? MT_BF16 : MT_FP32;
	mt_must(mt_layout_make(&l, &g, dtype, dtype == MT_FP32 ? MT_FP32 : grads[draw(3)]));
	struct ask q = ask_of(&g, &l);

	uint64_t least = least_of(&q);
	climb(&q, &q.memory, (double)least, fmin(60 * (double)least, 4e12), 1.1 + draw(100) / 300.0, 4096);
	climb_slowly(&q, least);
	least_of_host(&q, least);
	q.memory = least + least / 2;
	climb(&q, &q.host, (double)q.host_beside, 1e15, 1.5, 4096);
	mt_layout_release(&l);
}

static int gpu(char **a)
{
	struct gpu g = {.capability = atoi(a[1]),
		.multiprocessors = atoi(a[2]),
		.clock_khz = atoi(a[3]),
		.memory_khz = atoi(a[4]),
		.bus_bits = atoi(a[5])};
	struct profile p[2];

	snprintf(g.model, sizeof g.model, "%s", a[0]);
	mt_must(profile_parse("", MT_BF16, &g, &p[0]));
	mt_must(profile_parse("", MT_FP32, &g, &p[1]));
	printf("%.0f %.0f %.0f %.0f\n", p[0].h2d / 1e9, p[0].hbm / 1e9, p[0].flops / 1e12, p[1].flops / 1e12);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 8 && !strcmp(argv[1], "gpu")) return gpu(argv + 2);
	uint64_t from = argc > 1 ? strtoull(argv[1], NULL, 10) : 1, seeds = argc > 2 ? strtoull(argv[2], NULL, 10) : 100;

	for (uint64_t seed = from; seed < from + seeds; seed++) try(seed);
	printf("%d plans: %d pass-major; to host %d inputs and outputs, %d inputs, %d outputs; on the device %d all, "
		   "%d but gate and "
		   "up, %d attention, %d inputs; %d wrong\n",
		plans, kinds[0], kinds[1], kinds[2], kinds[3], kinds[4], kinds[5], kinds[6], kinds[7], wrong);
	return wrong != 0;
}
