/* show.c: mt-stream --plan: what a run would do, without a run and without a device. */
#include <stdlib.h>

#include "cli/cli.h"
#include "cuda/calls.h"
#include "show.h"

#define LIBRARY_BYTES (64u << 20) /* a GEMM library's workspace */
#define ENGINE_BYTES (1u << 20)   /* of cuDNN's attention, beside what a row takes */
#define KERNEL_BYTES (64u << 20)  /* the kernels' own scratch, at least */

static double gb(uint64_t bytes) { return (double)bytes / 1e9; }

static double mib(uint64_t bytes) { return (double)bytes / (1 << 20); }

void plan_say(const struct ask *q, const struct planned *p, uint32_t micros)
{
	const struct choice *c = &p->c;
	const struct prediction *t = &p->p;
	uint32_t input = q->geo->layers - c->full - c->block - c->attention;

	mt_say(
		"%s: %u rows of %u tokens: %s of %u rows, chunks of %u; %u weight and %u gradient slots; blocks keep: %u all, "
		"%u all but gate and up, %u attention's output, %u their input%s%s",
		q->train ? "train" : "eval", q->rows, q->seq, c->pass_rows ? "passes" : "one pass", rows_of_pass(q, c),
		rows_of_chunk(q, c), c->weight_slots, c->grad_slots, c->full, c->block, c->attention, input,
		c->x_host ? "; inputs to host" : "", c->o_host ? "; attention to host" : "");
	mt_say(
		"predicted by the rates of %s: %.2f of %.2f MiB of device memory, %.2f of them the device's own, %.2f MiB of "
		"host memory; a step of %u such micro-batches %.3g s: forward %.3g, backward %.3g, stall for the "
		"optimizer %.3g, tail %.3g",
		q->profile.name, mib(p->bytes), mib(q->memory), mib(q->work), mib(p->host_bytes), micros,
		micros * (t->forward + t->backward) + t->stall + t->tail, micros * t->forward, micros * t->backward, t->stall,
		t->tail);
}

static void show_times(const struct ask *q, const struct planned *p)
{
	const struct prediction *t = &p->p;

	printf("step      %.3f s: forward %.3f, backward %.3f, stall for the optimizer %.3f, tail %.3f\n", t->step,
		t->forward, t->backward, t->stall, t->tail);
	printf("made of   products %.3f, attention %.3f, computed again %.3f, all else that computes %.3f, "
		   "waits for the bus %.3f\n",
		t->products, t->attention, t->again, t->around, t->bus);
	if (q->grad == MT_NONE) printf("optimizer %.3f s, behind the backward pass of %.3f s\n", t->adam, t->last_backward);
	else printf("optimizer %.3f s, behind the first forward pass of %.3f s\n", t->adam, t->first_forward);
	printf("bus       %.2f GB in, %.2f GB out\n", gb(t->in), gb(t->out));
}

/* State, what else the run takes, activations; and all of it */
static void show_host(const struct ask *q, const struct planned *p, const struct mt_layout *l)
{
	printf("host      %.2f GB of state, %.2f GB of activations, %.2f GB beside them: %.2f GB", gb(l->store_bytes),
		gb(p->host_bytes), gb(q->host_beside - l->store_bytes), gb(q->host_beside + p->host_bytes));
	if (q->host != UINT64_MAX) printf(" of %.2f GB", gb(q->host));
	putchar('\n');
}

static void show_people(const struct ask *q, const struct planned *p, const struct mt_layout *l)
{
	const struct choice *c = &p->c;
	uint32_t layers = q->geo->layers, slots = c->weight_slots < layers ? c->weight_slots : layers;
	double tokens = (double)q->rows * q->seq;

	printf("model     %s, %.2f G parameters, %u blocks; %s, gradients %s\n", q->geo->family, (double)q->params / 1e9,
		layers, q->dtype == MT_BF16 ? "bf16" : "fp32",
		q->grad == MT_BF16       ? "bf16"
			: q->grad == MT_FP32 ? "fp32"
								 : "none");
	printf("batch     %u rows of %u tokens\n", q->rows, q->seq);
	if (c->pass_rows)
		printf("order     pass-major: %u rows a pass, %u passes\n", c->pass_rows,
			(q->rows + c->pass_rows - 1) / c->pass_rows);
	else
		printf("order     layer-major, chunks of %u rows, MLP in pieces of %llu tokens\n", rows_of_chunk(q, c),
			(unsigned long long)tokens_of_piece(q, c));
	if (c->engine)
		printf("attention by cuDNN, %u of %u key-value heads a call backward, in %.2f GB of work memory\n",
			q->attention.kv_heads, q->geo->kv_heads, gb(memory_attention(q, c)));
	else puts("attention by our own kernels");
	printf("LM head   %llu tokens at once\n", (unsigned long long)tokens_of_head(q, c));
	printf("weights   %u blocks' slots, %u resident from forward to backward; gradients: %u slots\n", slots, slots,
		c->grad_slots);
	printf("keeps     %u blocks all, %u all but gate and up, %u attention's output, %u their input\n", c->full,
		c->block, c->attention, layers - c->full - c->block - c->attention);
	printf("to host   %s%s%s\n",
		c->x_host       ? "block inputs"
			: c->o_host ? ""
						: "nothing",
		c->x_host && c->o_host ? ", " : "", c->o_host ? "attention's outputs" : "");
	printf("device    %.2f GB of %.2f GB (at least %.2f GB)\n", gb(p->bytes), gb(q->memory), gb(p->least));
	show_host(q, p, l);
	show_times(q, p);
	printf("speed     %.0f tokens/s, %.1f model TFLOP/s, by the rates of %s\n", tokens / p->p.step, p->p.tflops,
		q->profile.name);
}

static void show_json(const struct ask *q, const struct planned *p, const struct mt_layout *l)
{
	const struct choice *c = &p->c;
	uint32_t layers = q->geo->layers;

	printf("{\"params\": %llu, \"rows\": %u, \"seq\": %u, \"memory\": %llu, \"profile\": \"%s\", ",
		(unsigned long long)q->params, q->rows, q->seq, (unsigned long long)q->memory, q->profile.name);
	printf("\"order\": \"%s\", \"pass_rows\": %u, \"passes\": %u, ", c->pass_rows ? "pass-major" : "layer-major",
		c->pass_rows, c->pass_rows ? (q->rows + c->pass_rows - 1) / c->pass_rows : 1);
	printf("\"chunk_tokens\": %u, \"chunk_rows\": %u, \"mlp_tokens\": %llu, \"head_tokens\": %u, ", c->chunk_tokens,
		rows_of_chunk(q, c), (unsigned long long)tokens_of_piece(q, c), c->head_tokens);
	printf("\"attention\": \"%s\", \"attention_kv_heads\": %u, \"attention_work_bytes\": %llu, ",
		c->engine ? "cudnn" : "own", c->engine ? q->attention.kv_heads : q->geo->kv_heads,
		(unsigned long long)memory_attention(q, c));
	printf("\"weight_slots\": %u, \"resident_units\": %u, \"grad_slots\": %u, ", c->weight_slots, c->weight_slots,
		c->grad_slots);
	printf("\"keep_all\": %u, \"keep_but_gate_up\": %u, \"keep_attention\": %u, \"keep_input\": %u, ", c->full,
		c->block, c->attention, layers - c->full - c->block - c->attention);
	printf("\"inputs_to_host\": %s, \"attention_to_host\": %s, ", c->x_host ? "true" : "false",
		c->o_host ? "true" : "false");
	printf("\"peak_bytes\": %llu, \"least_bytes\": %llu, \"store_bytes\": %llu, \"host_activation_bytes\": %llu, "
		   "\"host_bytes\": %llu, ",
		(unsigned long long)p->bytes, (unsigned long long)p->least, (unsigned long long)l->store_bytes,
		(unsigned long long)p->host_bytes, (unsigned long long)(q->host_beside + p->host_bytes));
	printf("\"bytes_in\": %llu, \"bytes_out\": %llu, ", (unsigned long long)p->p.in, (unsigned long long)p->p.out);
	printf("\"products_s\": %.9g, \"attention_s\": %.9g, \"again_s\": %.9g, \"around_s\": %.9g, \"bus_s\": %.9g, ",
		p->p.products, p->p.attention, p->p.again, p->p.around, p->p.bus);
	printf("\"step_s\": %.9g, \"forward_s\": %.9g, \"backward_s\": %.9g, \"first_forward_s\": %.9g, \"adam_s\": %.9g, "
		   "\"stall_s\": %.9g, \"tail_s\": %.9g, \"tokens_per_s\": %.6g, \"model_tflops\": %.6g}\n",
		p->p.step, p->p.forward, p->p.backward, p->p.first_forward, p->p.adam, p->p.stall, p->p.tail,
		(double)q->rows * q->seq / p->p.step, p->p.tflops);
}

/* What a GPU takes for itself */
static uint64_t work_of(const struct ask *q)
{
	uint64_t lse = (uint64_t)q->rows * q->seq * q->geo->heads * sizeof(float);

	return LIBRARY_BYTES + (lse > KERNEL_BYTES ? lse : KERNEL_BYTES);
}

/* Work memory of cuDNN's attention where its deterministic backward pass keeps the gradient of all scores (sm_90 before
 * 9.25):
 * heads T^2 in bf16, and dQ, dK and dV in fp32, of the heads of a call. A run asks the library that is there. */
static struct attention_need engine_of(const struct ask *q)
{
	uint64_t t = q->seq, heads = q->geo->heads, kv_heads = q->geo->kv_heads, row;

	if (q->dtype != MT_BF16 || q->geo->head_dim > 128 || q->seq < 64 ||
		__builtin_mul_overflow(t * heads, 2 * t + 12ull * q->geo->head_dim, &row))
		return (struct attention_need){0};
	uint32_t of_call = kv_heads_of_call(row, q->geo->kv_heads);
	row = row / kv_heads * of_call;
	return (struct attention_need){.fixed = ENGINE_BYTES,
		.row = row,
		.rows = of_call < kv_heads ? 1 : rows_of_call(row),
		.kv_heads = of_call};
}

/* What the host has, and what the run takes of it beside activations: its regions, the rows and rotary tables that
 * mt-stream holds */
static int host_of(const struct plan_options *o, const struct mt_layout *l, size_t config_bytes, struct ask *q)
{
	uint64_t tokens = (uint64_t)q->rows * q->seq, tables = (uint64_t)q->seq * q->geo->head_dim * sizeof(float);
	uint64_t regions = mt_run_need(l, config_bytes, tokens < 2 ? 2 : tokens);

	if (!regions) return mt_fail(MT_EX_NOMEM, "no memory for a plan");
	q->host_beside = regions + tokens * 3 * sizeof(uint32_t) + tables;
	q->host = o->host ? o->host : UINT64_MAX;
	if (q->host_beside > q->host)
		return mt_fail(MT_EX_NOMEM,
			"a run of this model needs %llu MiB of host memory, have %llu MiB: "
			"--grad bf16 or none, or a larger --host-memory",
			(unsigned long long)((q->host_beside + (1 << 20) - 1) >> 20), (unsigned long long)(q->host >> 20));
	return 0;
}

static int show(const struct plan_options *o, const struct mt_layout *l, size_t config_bytes, struct ask *q)
{
	struct planned p;
	int rc;

	ask_sizes(q, l->units, l->n_units);
	q->work = work_of(q);
	if (!o->own_attention) q->attention = engine_of(q);
	if ((rc = host_of(o, l, config_bytes, q)) || (rc = planner_make(q, &p))) return rc;
	if (o->json) show_json(q, &p, l);
	else show_people(q, &p, l);
	return 0;
}

int plan_show(const struct plan_options *o)
{
	struct mt_geometry geo;
	struct mt_layout l;
	char *text = NULL;
	struct ask q = {.geo = &geo,
		.dtype = o->dtype,
		.grad = o->grad,
		.train = true,
		.elem = o->dtype == MT_BF16 ? 2 : 4,
		.rows = (uint32_t)o->micro,
		.seq = (uint32_t)o->seq,
		.recompute = o->recompute,
		.chunk_tokens = (uint32_t)o->chunk_tokens,
		.head_tokens = (uint32_t)o->head_tokens,
		.pass_rows = (uint32_t)o->pass_rows,
		.settled = o->pass_rows || o->chunk_tokens};
	int rc = mt_config_read(o->config, &geo, &text);

	if (rc || (rc = profile_parse(o->profile, o->dtype, NULL, &q.profile)) ||
		(rc = mt_layout_make(&l, &geo, o->dtype, o->grad))) {
		free(text);
		return rc;
	}
	q.memory = o->memory ? o->memory : (uint64_t)q.profile.memory;
	rc = show(o, &l, strlen(text), &q);
	mt_layout_release(&l);
	free(text);
	return rc;
}
