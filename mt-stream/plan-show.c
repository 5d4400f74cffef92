/* plan-show.c: mt-stream --plan: what a run would do, without a run and without a device. */
#include <stdlib.h>

#include "cli.h"
#include "plan-show.h"

#define LIBRARY_BYTES (64u << 20)       /* a GEMM library's workspace */
#define PIECE_BYTES   (1u << 20)        /* a gradient piece on its way out */
#define KERNEL_BYTES  (64u << 20)       /* the kernels' own scratch, at least */

static double gb(uint64_t bytes) { return (double)bytes / 1e9; }

void plan_words(const struct ask *q, const struct planned *p, char *buf, size_t n)
{
	const struct choice *c = &p->c;
	uint32_t input = q->geo->layers - c->full - c->block - c->attention;

	snprintf(buf, n, "%u rows of %u tokens: %s of %u rows, chunks of %u; %u weight and %u gradient slots; blocks keep: %u all, "
		"%u all but gate and up, %u attention's output, %u their input%s%s; %.1f of %.1f MiB, host %.1f MiB; %.3g s",
		q->rows, q->seq, c->pass_rows ? "passes" : "one pass", rows_of_pass(q, c), rows_of_chunk(q, c), c->weight_slots,
		c->grad_slots, c->full, c->block, c->attention, input, c->x_host ? "; inputs to host" : "",
		c->o_host ? "; attention to host" : "", (double)p->bytes / (1 << 20), (double)q->memory / (1 << 20),
		(double)p->host_bytes / (1 << 20), p->p.step);
}

static void show_times(const struct planned *p)
{
	printf("step      %.3f s: forward %.3f, backward %.3f, stall for the optimizer %.3f, tail %.3f\n", p->p.step,
		p->p.forward, p->p.backward, p->p.stall, p->p.tail);
	printf("optimizer %.3f s, behind the first forward pass of %.3f s\n", p->p.adam, p->p.first_forward);
	printf("bus       %.2f GB in, %.2f GB out\n", gb(p->p.in), gb(p->p.out));
}

static void show_people(const struct ask *q, const struct planned *p, const struct mt_layout *l)
{
	const struct choice *c = &p->c;
	uint32_t layers = q->geo->layers, slots = c->weight_slots < layers ? c->weight_slots : layers;
	double tokens = (double)q->rows * q->seq;

	printf("model     %s, %.2f G parameters, %u blocks; %s, gradients %s\n", q->geo->family, (double)q->params / 1e9,
		layers, q->dtype == MT_BF16 ? "bf16" : "fp32", q->grad == MT_BF16 ? "bf16" : q->grad == MT_FP32 ? "fp32" : "none");
	printf("batch     %u rows of %u tokens\n", q->rows, q->seq);
	if (c->pass_rows)
		printf("order     pass-major: %u rows a pass, %u passes\n", c->pass_rows,
			(q->rows + c->pass_rows - 1) / c->pass_rows);
	else
		printf("order     layer-major, chunks of %u rows, MLP in pieces of %llu tokens\n", rows_of_chunk(q, c),
			(unsigned long long)tokens_of_piece(q, c));
	printf("LM head   %llu tokens at once\n", (unsigned long long)tokens_of_head(q, c));
	printf("weights   %u blocks' slots, %u resident from forward to backward; gradients: %u slots\n", slots, slots,
		c->grad_slots);
	printf("keeps     %u blocks all, %u all but gate and up, %u attention's output, %u their input\n", c->full, c->block,
		c->attention, layers - c->full - c->block - c->attention);
	printf("to host   %s%s%s\n", c->x_host ? "block inputs" : c->o_host ? "" : "nothing", c->x_host && c->o_host ? ", " : "",
		c->o_host ? "attention's outputs" : "");
	printf("device    %.2f GB of %.2f GB (at least %.2f GB)\n", gb(p->bytes), gb(q->memory), gb(p->least));
	printf("host      %.2f GB of state, %.2f GB of activations\n", gb(l->store_bytes), gb(p->host_bytes));
	show_times(p);
	printf("speed     %.0f tokens/s, %.1f model TFLOP/s, by the rates of %s\n", tokens / p->p.step, p->p.tflops,
		q->profile.name);
}

static void show_json(const struct ask *q, const struct planned *p, const struct mt_layout *l)
{
	const struct choice *c = &p->c;
	uint32_t layers = q->geo->layers;

	printf("{\"params\": %llu, \"rows\": %u, \"seq\": %u, \"memory\": %llu, \"profile\": \"%s\", ",
		(unsigned long long)q->params, q->rows, q->seq, (unsigned long long)q->memory, q->profile.name);
	printf("\"order\": \"%s\", \"pass_rows\": %u, \"passes\": %u, ", c->pass_rows ? "pass-major" : "layer-major", c->pass_rows,
		c->pass_rows ? (q->rows + c->pass_rows - 1) / c->pass_rows : 1);
	printf("\"chunk_tokens\": %u, \"chunk_rows\": %u, \"mlp_tokens\": %llu, \"head_tokens\": %u, ", c->chunk_tokens,
		rows_of_chunk(q, c), (unsigned long long)tokens_of_piece(q, c), c->head_tokens);
	printf("\"weight_slots\": %u, \"resident_units\": %u, \"grad_slots\": %u, ", c->weight_slots, c->weight_slots,
		c->grad_slots);
	printf("\"keep_all\": %u, \"keep_but_gate_up\": %u, \"keep_attention\": %u, \"keep_input\": %u, ", c->full, c->block,
		c->attention, layers - c->full - c->block - c->attention);
	printf("\"inputs_to_host\": %s, \"attention_to_host\": %s, ", c->x_host ? "true" : "false", c->o_host ? "true" : "false");
	printf("\"peak_bytes\": %llu, \"least_bytes\": %llu, \"store_bytes\": %llu, \"host_activation_bytes\": %llu, ",
		(unsigned long long)p->bytes, (unsigned long long)p->least, (unsigned long long)l->store_bytes,
		(unsigned long long)p->host_bytes);
	printf("\"bytes_in\": %llu, \"bytes_out\": %llu, ", (unsigned long long)p->p.in, (unsigned long long)p->p.out);
	printf("\"step_s\": %.9g, \"forward_s\": %.9g, \"backward_s\": %.9g, \"first_forward_s\": %.9g, \"adam_s\": %.9g, "
		"\"stall_s\": %.9g, \"tail_s\": %.9g, \"tokens_per_s\": %.6g, \"model_tflops\": %.6g}\n", p->p.step, p->p.forward,
		p->p.backward, p->p.first_forward, p->p.adam, p->p.stall, p->p.tail, (double)q->rows * q->seq / p->p.step,
		p->p.tflops);
}

static uint64_t work_of(const struct ask *q)
{
	uint64_t lse = (uint64_t)q->rows * q->seq * q->geo->heads * sizeof(float);

	return LIBRARY_BYTES + PIECE_BYTES + (lse > KERNEL_BYTES ? lse : KERNEL_BYTES);
}

int plan_show(const struct plan_options *o)
{
	struct mt_geometry geo;
	struct mt_layout l;
	struct planned p;
	struct ask q = {.geo = &geo, .dtype = o->dtype, .grad = o->grad, .train = true, .elem = o->dtype == MT_BF16 ? 2 : 4,
		.memory = o->memory, .recompute = o->recompute, .chunk_tokens = o->chunk_tokens, .head_tokens = o->head_tokens,
		.pass_rows = o->pass_rows};
	int rc = mt_config_read(o->config, &geo, NULL);

	if (rc || (rc = profile_parse(o->profile, o->dtype, &q.profile)) || (rc = mt_layout_make(&l, &geo, o->dtype, o->grad)))
		return rc;
	if (!q.memory)
		q.memory = (uint64_t)q.profile.memory;
	q.seq = (uint32_t)o->seq;
	q.rows = (uint32_t)o->micro;
	q.settled = q.pass_rows || q.chunk_tokens;
	q.work = work_of(&q);
	ask_sizes(&q, l.units, l.n_units);
	rc = planner_make(&q, &p);
	if (rc == 0 && o->json)
		show_json(&q, &p, &l);
	else if (rc == 0)
		show_people(&q, &p, &l);
	mt_layout_release(&l);
	return rc;
}
