/* show.c: mt-stream --plan: how a run would compute, without a run and without a device. */
#include <stdio.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "cuda/calls.h"
#include "mt/create.h"
#include "mt/error.h"
#include "mt/memory.h"
#include "show.h"

#define LIBRARY_BYTES (64u << 20) /* a GEMM library's workspace */
#define CUDNN_BYTES (1u << 20)    /* of cuDNN's attention, beside what a row takes */
#define KERNEL_BYTES (64u << 20)  /* the kernels' own scratch, at least */

static double gb(uint64_t bytes) { return (double)bytes / 1e9; }

static double mib(uint64_t bytes) { return (double)bytes / (1 << 20); }

static uint64_t tokens_of_step(const struct plan_request *req)
{
	return (uint64_t)req->rows * req->seq * req->micros * req->streams * req->nodes;
}

void plan_report(const struct plan_request *req, const struct plan_result *p, uint32_t micros)
{
	const struct plan *plan = &p->plan;
	const struct prediction *t = &p->predicted;
	uint32_t input = req->geo->layers - plan->keep_all - plan->keep_but_gate_up - plan->keep_attention;
	char windows[64] = "";

	if (plan->expert_window)
		snprintf(windows, sizeof windows, ", windows of %u expert%s", plan->expert_window, mt_s(plan->expert_window));
	mt_say(
		"%s: %u row%s of %u token%s: %s of %u row%s, chunks of %u; %u weight and %u gradient slot%s%s; blocks keep: %u "
		"all, %u all but gate and up, %u attention's output, %u their input%s%s",
		req->train ? "train" : "eval", req->rows, mt_s(req->rows), req->seq, mt_s(req->seq),
		plan->pass_rows ? "passes" : "one pass", rows_of_pass(req, plan), mt_s(rows_of_pass(req, plan)),
		rows_of_chunk(req, plan), plan->weight_slots, plan->grad_slots, mt_s(plan->grad_slots), windows, plan->keep_all,
		plan->keep_but_gate_up, plan->keep_attention, input,
		plan->residual_offloaded ? "; residuals offloaded to host memory" : "",
		plan->attention_offloaded ? "; attention outputs offloaded to host memory" : "");
	mt_say(
		"predicted by the rates of %s: %.2f of %.2f MiB of device memory, %.2f of them the device's own, %.2f MiB of "
		"host memory; a step of %u such micro-batch%s %.3g s: forward %.3g, backward %.3g, stall for the "
		"optimizer %.3g, tail %.3g",
		req->profile.name, mib(p->bytes), mib(req->memory), mib(req->work), mib(p->host_bytes), micros,
		micros == 1 ? "" : "es", micros * (t->forward + t->backward) + t->stall + t->tail, micros * t->forward,
		micros * t->backward, t->stall, t->tail);
}

/* Streams, micro-batches and rows of a step, where there are several of the first or the second */
static void show_step(const struct plan_request *req)
{
	if (req->nodes * req->streams * req->micros == 1) return;
	printf("run       nodes: %u; streams of a node: %u; micro-batches of a stream: %u; %llu tokens a step\n",
		req->nodes, req->streams, req->micros, (unsigned long long)tokens_of_step(req));
}

static void show_network(const struct plan_request *req, const struct prediction *t)
{
	if (req->nodes < 2) return;
	printf("network   at %.4g GB/s: %.2f GB of gradients in %.3f s, %.2f GB of weights in %.3f s; %.1f %% of the step "
		   "waits for it\n",
		req->net / 1e9, t->grad_bytes / 1e9, t->grad_time, t->weight_bytes / 1e9, t->weight_time,
		100 * t->network_wait / t->step);
	printf("traffic   streams x micro-batches x bytes of gradients: %u x %u x %.2f GB, %u/%u of it to other nodes; one "
		   "large micro-batch a stream sends least\n",
		req->streams, req->micros, (double)req->grads * (req->grad == MT_BF16 ? 2 : 4) / 1e9, req->nodes - 1,
		req->nodes);
}

static void show_times(const struct plan_request *req, const struct plan_result *p)
{
	const struct prediction *t = &p->predicted;

	printf("step      %.3f s: forward %.3f, backward %.3f, stall for the optimizer %.3f, tail %.3f", t->step,
		t->forward, t->backward, t->stall, t->tail);
	if (req->nodes > 1) printf(", network wait %.3f", t->network_wait);
	putchar('\n');
	show_network(req, t);
	printf("made of   GEMM %.3f, attention %.3f, recompute %.3f, other kernels %.3f, PCIe wait %.3f\n", t->gemm,
		t->attention, t->recompute, t->other_kernels, t->pcie_wait);
	if (req->grad == MT_NONE)
		printf("optimizer %.3f s, overlaps the backward pass of %.3f s\n", t->adam, t->last_backward);
	else printf("optimizer %.3f s, overlaps the first forward pass of %.3f s\n", t->adam, t->first_forward);
	printf("PCIe      %.2f GB in, %.2f GB out\n", gb(t->in), gb(t->out));
}

/* The store, activations, what else the run takes; their sum. Of several nodes: of the one that has most */
static void show_host(const struct plan_request *req, const struct plan_result *p, uint64_t store)
{
	printf("host      %.2f GB of state, %.2f GB of activations, %.2f GB for rings and tables: %.2f GB", gb(store),
		gb(p->host_bytes), gb(req->host_beside - store), gb(req->host_beside + p->host_bytes));
	if (req->host != UINT64_MAX) printf(" of %.2f GB", gb(req->host));
	if (req->nodes > 1) printf(" a node");
	putchar('\n');
}

static void show_rates(const struct profile *p)
{
	printf(
		"rates     of %s: GEMM %.3g TFLOP/s, device memory %.4g GB/s, copies %.3g GB/s in, %.3g out, host memory %.3g "
		"GB/s\n",
		p->name, p->flops / 1e12, p->hbm / 1e9, p->h2d / 1e9, p->d2h / 1e9, p->ram / 1e9);
}

static void show_text(const struct plan_request *req, const struct plan_result *p, uint64_t store)
{
	const struct plan *plan = &p->plan;
	uint32_t layers = req->geo->layers, slots = plan->weight_slots < layers ? plan->weight_slots : layers;

	char active[64] = "";

	if (req->idle_params)
		snprintf(active, sizeof active, " (%.2f G active)", (double)(req->params - req->idle_params) / 1e9);
	printf("model     %s, %.2f G parameters%s, %u block%s; %s, gradients %s\n", req->geo->family,
		(double)req->params / 1e9, active, layers, mt_s(layers), req->dtype == MT_BF16 ? "bf16" : "fp32",
		req->grad == MT_BF16       ? "bf16"
			: req->grad == MT_FP32 ? "fp32"
								   : "none");
	printf("batch     %u row%s of %u token%s\n", req->rows, mt_s(req->rows), req->seq, mt_s(req->seq));
	show_step(req);
	if (plan->pass_rows) {
		uint32_t passes = (req->rows + plan->pass_rows - 1) / plan->pass_rows;
		printf("order     pass-major: %u row%s a pass, %u pass%s\n", plan->pass_rows, mt_s(plan->pass_rows), passes,
			passes == 1 ? "" : "es");
	} else
		printf("order     layer-major, chunks of %u row%s, MLP in slices of %llu token%s\n", rows_of_chunk(req, plan),
			mt_s(rows_of_chunk(req, plan)), (unsigned long long)tokens_of_slice(req, plan),
			mt_s(tokens_of_slice(req, plan)));
	if (plan->library_attention)
		printf("attention by cuDNN, %u of %u key-value heads a call backward, in %.2f GB of work memory\n",
			req->attention.kv_heads, req->geo->kind[0].kv_heads, gb(memory_attention(req, plan)));
	else puts("attention by our own kernels");
	printf("LM head   %llu token%s at once\n", (unsigned long long)tokens_of_head(req, plan),
		mt_s(tokens_of_head(req, plan)));
	printf("slots     weights: %u block%s, %u of them resident from forward to backward; gradients: %u block%s\n",
		slots, mt_s(slots), slots, plan->grad_slots, mt_s(plan->grad_slots));
	if (plan->expert_window)
		printf("experts   in windows of %u of %u, two of them on the device\n", plan->expert_window, req->most.experts);
	else if (req->most.experts) printf("experts   all %u of a block with it\n", req->most.experts);
	printf("keeps     %u block%s all, %u all but gate and up, %u attention's output, %u their input\n", plan->keep_all,
		mt_s(plan->keep_all), plan->keep_but_gate_up, plan->keep_attention,
		layers - plan->keep_all - plan->keep_but_gate_up - plan->keep_attention);
	printf("offloads  %s%s%s\n",
		plan->residual_offloaded        ? "residuals"
			: plan->attention_offloaded ? ""
										: "nothing",
		plan->residual_offloaded && plan->attention_offloaded ? ", " : "",
		plan->attention_offloaded ? "attention outputs" : "");
	printf("device    %.2f GB of %.2f GB (at least %.2f GB)\n", gb(p->bytes), gb(req->memory), gb(p->least));
	show_host(req, p, store);
	show_times(req, p);
	show_rates(&req->profile);
	printf("speed     %.0f tokens/s, %.1f model TFLOP/s, by the rates of %s\n",
		(double)tokens_of_step(req) / p->predicted.step, p->predicted.tflops, req->profile.name);
}

static void json_network(const struct plan_request *req, const struct prediction *t)
{
	char net[32] = "null";

	if (req->nodes > 1) snprintf(net, sizeof net, "%.9g", req->net / 1e9);
	printf("\"nodes\": %u, \"streams\": %u, \"micro_batches\": %u, \"step_tokens\": %llu, \"net_gb_s\": %s, ",
		req->nodes, req->streams, req->micros, (unsigned long long)tokens_of_step(req), net);
	printf("\"network_grad_bytes\": %.0f, \"network_weight_bytes\": %.0f, \"network_grad_s\": %.9g, "
		   "\"network_weight_s\": %.9g, ",
		t->grad_bytes, t->weight_bytes, t->grad_time, t->weight_time);
	printf("\"network_s\": %.9g, \"network_wait_s\": %.9g, \"network_share\": %.9g, ", t->grad_time + t->weight_time,
		t->network_wait, t->network_wait / t->step);
}

static void show_json(const struct plan_request *req, const struct plan_result *p, uint64_t store)
{
	const struct plan *plan = &p->plan;
	const struct prediction *t = &p->predicted;
	uint32_t layers = req->geo->layers;

	printf("{\"params\": %llu, \"active_params\": %llu, \"rows\": %u, \"seq\": %u, \"memory\": %llu, "
		   "\"profile\": \"%s\", ",
		(unsigned long long)req->params, (unsigned long long)(req->params - req->idle_params), req->rows, req->seq,
		(unsigned long long)req->memory, req->profile.name);
	printf("\"order\": \"%s\", \"pass_rows\": %u, \"passes\": %u, ", plan->pass_rows ? "pass-major" : "layer-major",
		plan->pass_rows, plan->pass_rows ? (req->rows + plan->pass_rows - 1) / plan->pass_rows : 1);
	printf("\"chunk_tokens\": %u, \"chunk_rows\": %u, \"mlp_tokens\": %llu, \"head_tokens\": %u, ", plan->chunk_tokens,
		rows_of_chunk(req, plan), (unsigned long long)tokens_of_slice(req, plan), plan->head_tokens);
	printf("\"attention\": \"%s\", \"attention_kv_heads\": %u, \"attention_work_bytes\": %llu, ",
		plan->library_attention ? "cudnn" : "own",
		plan->library_attention ? req->attention.kv_heads : req->geo->kind[0].kv_heads,
		(unsigned long long)memory_attention(req, plan));
	printf("\"weight_slots\": %u, \"resident_units\": %u, \"grad_slots\": %u, \"expert_window\": %u, ",
		plan->weight_slots, plan->weight_slots, plan->grad_slots, plan->expert_window);
	printf("\"keep_all\": %u, \"keep_but_gate_up\": %u, \"keep_attention\": %u, \"keep_input\": %u, ", plan->keep_all,
		plan->keep_but_gate_up, plan->keep_attention,
		layers - plan->keep_all - plan->keep_but_gate_up - plan->keep_attention);
	const char *residual = plan->residual_offloaded ? "true" : "false";
	const char *attention = plan->attention_offloaded ? "true" : "false";
	printf("\"residuals_offloaded\": %s, \"attention_offloaded\": %s, ", residual, attention);
	printf("\"inputs_to_host\": %s, \"attention_to_host\": %s, ", residual, attention); /* older names */
	printf("\"peak_bytes\": %llu, \"least_bytes\": %llu, \"store_bytes\": %llu, \"host_activation_bytes\": %llu, "
		   "\"host_bytes\": %llu, ",
		(unsigned long long)p->bytes, (unsigned long long)p->least, (unsigned long long)store,
		(unsigned long long)p->host_bytes, (unsigned long long)(req->host_beside + p->host_bytes));
	printf("\"bytes_in\": %llu, \"bytes_out\": %llu, ", (unsigned long long)t->in, (unsigned long long)t->out);
	printf("\"gemm_s\": %.9g, \"attention_s\": %.9g, \"recompute_s\": %.9g, \"other_kernels_s\": %.9g, "
		   "\"pcie_wait_s\": %.9g, ",
		t->gemm, t->attention, t->recompute, t->other_kernels, t->pcie_wait);
	/* the same under the names of older versions, which scripts may read */
	printf("\"products_s\": %.9g, \"again_s\": %.9g, \"around_s\": %.9g, \"bus_s\": %.9g, ", t->gemm, t->recompute,
		t->other_kernels, t->pcie_wait);
	json_network(req, t);
	printf("\"step_s\": %.9g, \"forward_s\": %.9g, \"backward_s\": %.9g, \"first_forward_s\": %.9g, \"adam_s\": %.9g, "
		   "\"stall_s\": %.9g, \"tail_s\": %.9g, \"tokens_per_s\": %.6g, \"model_tflops\": %.6g}\n",
		t->step, t->forward, t->backward, t->first_forward, t->adam, t->stall, t->tail,
		(double)tokens_of_step(req) / t->step, t->tflops);
}

/* Bytes that a GPU takes for itself */
static uint64_t work_of(const struct plan_request *req)
{
	uint64_t lse = (uint64_t)req->rows * req->seq * mt_layer_most(req->geo).heads * sizeof(float);

	return LIBRARY_BYTES + (lse > KERNEL_BYTES ? lse : KERNEL_BYTES);
}

/* Work memory of cuDNN's attention, as its deterministic backward pass on sm_90 needs it before 9.25: heads T^2 in bf16
 * for the gradient of all scores, and dQ, dK and dV in fp32, of the heads of a call. A run asks the library itself. */
static struct attention_need cudnn_need(const struct plan_request *req)
{
	const struct mt_layer most = mt_layer_most(req->geo);
	uint64_t t = req->seq, heads = most.heads, kv_heads = most.kv_heads, row;

	if (req->dtype != MT_BF16 || !attention_plain(req->geo) || most.head_dim > 128 || req->seq < 64 ||
		__builtin_mul_overflow(t * heads, 2 * t + 12ull * most.head_dim, &row))
		return (struct attention_need){0};
	uint32_t of_call = kv_heads_of_call(row, most.kv_heads);
	row = row / kv_heads * of_call;
	return (struct attention_need){.fixed = CUDNN_BYTES,
		.row = row,
		.rows = of_call < kv_heads ? 1 : rows_of_call(row),
		.kv_heads = of_call};
}

/* The host memory budget, and what the run takes of it beside activations: the run's regions, and in mt-stream the rows
 * and the rotary tables */
static int host_of(const struct plan_options *o, const struct mt_layout *l, size_t config_bytes,
	struct plan_request *req)
{
	uint64_t tokens = (uint64_t)req->rows * req->seq, tables = 0;
	uint32_t streams = larger(mt_default_streams(req->nodes), req->streams); /* as mt-run has create make rings */
	uint64_t regions = mt_node_need(l, config_bytes, tokens < 2 ? 2 : tokens, req->nodes, streams);

	for (uint32_t k = 0; k < req->geo->n_kinds; k++)
		tables += (uint64_t)req->seq * req->geo->kind[k].rope_dim * sizeof(float);
	if (!regions) return mt_fail(MT_EX_NOMEM, "no memory for a plan");
	req->host_beside = regions + req->streams * (tokens * 3 * sizeof(uint32_t) + tables);
	req->host = o->host ? o->host : UINT64_MAX;
	if (req->host_beside > req->host)
		return mt_fail(MT_EX_NOMEM,
			"a run of this model needs %llu MiB of host memory, have %llu MiB: "
			"a smaller model, or a larger --host-memory",
			(unsigned long long)((req->host_beside + (1 << 20) - 1) >> 20), (unsigned long long)(req->host >> 20));
	return 0;
}

/* A stream plans as if its run had one node and its step one micro-batch. That plan, with the times of a whole step */
static int search(const struct plan_request *req, struct plan_result *p)
{
	struct plan_request alone = *req;
	int rc;

	alone.nodes = alone.micros = 1;
	if ((rc = plan_search(&alone, p))) return rc;
	struct times t = unit_times(req, &p->plan, rows_of_pass(req, &p->plan));
	predict(req, &p->plan, &t, &p->predicted);
	predict_parts(req, &p->plan, &p->predicted);
	return 0;
}

/* A plan with the request's choices. 0; -71: device or host memory is short */
static int plan_of(const struct plan_options *o, size_t config_bytes, struct plan_request *req, struct plan_result *p,
	uint64_t *store)
{
	struct mt_layout l;
	int rc = mt_layout_make(&l, req->geo, req->dtype, req->grad, req->state, req->optim);

	if (rc) return rc;
	request_sizes(req, l.units, l.n_units, l.tensors);
	if (!req->profile.cores) {
		req->work = work_of(req);
		if (!o->own_attention) req->attention = cudnn_need(req);
	}
	rc = host_of(o, &l, config_bytes, req);
	*store = mt_node_store(&l, req->nodes);
	mt_layout_release(&l);
	/* the cores' memory is the host's */
	uint64_t left = req->host - req->host_beside;
	if (rc == 0 && req->profile.cores && o->host && req->memory > left) req->memory = left;
	return rc ? rc : search(req, p);
}

struct other {
	const struct plan_options *o;
	size_t config_bytes;
	struct plan_request req;
};

/* mt_small's need: of the host */
static uint64_t other_need(void *arg, enum mt_dtype grad, enum mt_dtype state, uint32_t rows)
{
	const struct other *other = arg;
	struct plan_request req = other->req;
	struct plan_result p;
	uint64_t store;

	req.grad = grad;
	req.state = state;
	req.rows = rows;
	return plan_of(other->o, other->config_bytes, &req, &p, &store)
		? UINT64_MAX
		: req.host_beside + p.host_bytes + (req.profile.cores ? p.bytes : 0);
}

/* The failure, with what would fit instead */
static int add_remedies(const struct plan_options *o, size_t config_bytes, const struct plan_request *req)
{
	struct other other = {o, config_bytes, *req};
	struct mt_small s = {.grad = req->grad,
		.state = req->state,
		.rows = req->rows,
		.none = req->nodes == 1 && req->micros == 1,
		.have = UINT64_MAX - 1,
		.need = other_need,
		.arg = &other};
	char why[1024], fits[256];

	snprintf(why, sizeof why, "%s", mt_errmsg());
	return mt_remedies(&s, fits, sizeof fits) ? mt_fail(MT_EX_NOMEM, "%s; fits: %s", why, fits)
											  : mt_fail(MT_EX_NOMEM, "%s", why);
}

static int show(const struct plan_options *o, size_t config_bytes, struct plan_request *req)
{
	struct plan_result p;
	uint64_t store;
	int rc = plan_of(o, config_bytes, req, &p, &store);

	if (rc == -MT_EX_NOMEM) return add_remedies(o, config_bytes, req);
	if (rc) return rc;
	if (!profile_named(o->profile))
		mt_say("plans for this machine's %s; --profile NAME plans for another, --profile help lists them",
			req->profile.name);
	if (req->nodes > MT_NODES || req->nodes * req->streams > MT_STREAMS)
		mt_say("plans for %u node%s of %u stream%s; a run has at most %d nodes, and %d streams in all", req->nodes,
			mt_s(req->nodes), req->streams, mt_s(req->streams), MT_NODES, MT_STREAMS);
	if (o->json) show_json(req, &p, store);
	else show_text(req, &p, store);
	return 0;
}

/* Plan for this machine's cores. As in a run, they multiply bf16 weights in bf16 if that is faster, and read weights in
 * place if they are operands. */
static int cores_of(const struct plan_options *o, const char *rates, struct plan_request *req)
{
	const char *lacks = gemm_lacks_bf16();
	bool bf16 = o->dtype == MT_BF16 && (o->compute ? o->compute == MT_BF16 : gemm_bf16_is_fast());

	if (bf16 && lacks) return mt_fail(MT_EX_CONFIG, "--compute bf16: %s", lacks);
	if (o->compute == MT_BF16 && !bf16)
		return mt_fail(MT_EX_CONFIG, "--compute bf16: the cores compute in fp32 where weights are fp32");
	int rc = profile_cores(rates, o->dtype, o->threads, bf16, &req->selects, &req->profile);

	req->elem = sizeof(float);
	req->operand = bf16 ? 2 : 4;
	req->zero_copy = bf16 || o->dtype == MT_FP32;
	req->memory = o->memory ? o->memory : mt_mem_available() / 2;
	if (!req->chunk_tokens) req->chunk_tokens = default_chunk_tokens();
	if (!req->head_tokens) req->head_tokens = default_head_tokens(req->geo);
	req->fixed = true;
	return rc;
}

static int rates_of(const struct plan_options *o, struct plan_request *req)
{
	const char *spec = o->profile, *rates = profile_cores_rates(spec);

	if (rates && (profile_named(spec) || !o->here)) return cores_of(o, rates, req);
	if (o->compute && o->compute != o->dtype)
		return mt_fail(MT_EX_CONFIG, "--compute: a GPU computes in the run's --dtype");
	int rc = profile_parse(spec, o->dtype, o->here, &req->profile);
	req->memory = o->memory ? o->memory : (uint64_t)req->profile.memory;
	return rc;
}

int plan_show(const struct plan_options *o)
{
	struct mt_geometry geo;
	char *text = NULL;
	struct plan_request req = {.geo = &geo,
		.dtype = o->dtype,
		.grad = o->grad,
		.state = o->state,
		.optim = o->optim,
		.train = true,
		.elem = o->dtype == MT_BF16 ? 2 : 4,
		.operand = o->dtype == MT_BF16 ? 2 : 4,
		.rows = (uint32_t)o->micro,
		.seq = (uint32_t)o->seq,
		.micros = (uint32_t)o->micros,
		.streams = (uint32_t)o->streams,
		.nodes = (uint32_t)o->nodes,
		.net = o->net * 1e9,
		.recompute = o->recompute,
		.expert_window = o->expert_window,
		.chunk_tokens = (uint32_t)o->chunk_tokens,
		.head_tokens = (uint32_t)o->head_tokens,
		.pass_rows = (uint32_t)o->pass_rows,
		.fixed = o->pass_rows || o->chunk_tokens};
	int rc = mt_config_read(o->config, &geo, &text);

	if (rc == 0) rc = rates_of(o, &req);
	if (rc == 0) rc = show(o, strlen(text), &req);
	free(text);
	return rc;
}
