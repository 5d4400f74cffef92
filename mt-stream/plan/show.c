/* show.c: a plan as text, and as JSON */
#include <stdio.h>

#include "cli/cli.h"
#include "dry.h"

static double gb(uint64_t bytes) { return (double)bytes / 1e9; }

static uint64_t tokens_of_step(const struct plan_request *req)
{
	return (uint64_t)req->rows * req->seq * req->micros * req->streams * req->nodes;
}

static uint32_t gpus_of(const struct plan_request *req) { return req->profile.cores ? 0 : req->streams; }

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
		req->streams, req->micros, (double)req->grads * mt_dtype_bytes(req->grad) / 1e9, req->nodes - 1, req->nodes);
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

static void show_tier(const struct plan_request *req, const struct prediction *t)
{
	double written = (double)req->tier_bytes;
	if (!(req->tier > 0)) return;
	printf(
		"tier      %.2f GB on disk, %.2f GB a step: %.3f s at %.4g GB/s, waits %.3f s; %.2f GB written a step: 1 PB in "
		"%.0f steps\n",
		gb(req->tier_disk), 2 * written / 1e9, 2 * written / req->tier, req->tier / 1e9, t->tier_wait, written / 1e9,
		1e15 / written);
}

static void show_offloads(const struct plan *plan, uint32_t layers)
{
	uint32_t away = blocks_offloaded(plan, layers);
	const char *residuals = plan->residual_offloaded ? "residuals" : "", *and = plan->residual_offloaded ? ", " : "";
	if (!away) printf("offloads  %s\n", plan->residual_offloaded ? residuals : "nothing");
	else if (plan->offloaded == KEEP_ATTENTION) printf("offloads  %s%sattention outputs\n", residuals, and);
	else printf("offloads  %s%swhat %u block%s keep%s\n", residuals, and, away, mt_s(away), away == 1 ? "s" : "");
}

/* What of the step is not the model's own arithmetic, and what would help */
static void show_bound(const struct plan_request *req, const struct prediction *t, const struct advice *advice)
{
	printf("waits     for the optimizer %.0f %% of the step, for PCIe %.0f %%", 100 * t->stall / t->step,
		100 * (t->pcie_wait + t->tail) / t->step);
	if (req->nodes > 1) printf(", for the network %.0f %%", 100 * t->network_wait / t->step);
	printf("; recompute takes %.0f %%\n", 100 * t->recompute / t->step);
	printf("bound     by %s, for %.0f %% of the step\n", advice->bound, 100 * advice->share);
	if (advice->options) printf("faster    %.2f times with %s\n", advice->times, advice->options);
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

/* The first kind of layers whose attention a library computes */
static uint32_t kind_by_library(const struct plan_request *req)
{
	uint32_t k = 0;
	while (!req->attention.kind[k].rows) k++;
	return k;
}

static uint32_t kv_heads_in_call(const struct plan_request *req, const struct plan *plan, uint32_t kind)
{
	uint32_t group = group_of(req, plan, kind);
	return group ? group : req->geo->kind[kind].kv_heads;
}

static bool some_by_own(const struct plan_request *req)
{
	for (uint32_t k = 0; k < req->geo->n_kinds; k++)
		if (req->geo->kind[k].heads && !req->attention.kind[k].rows) return true;
	return false;
}

void show_text(const struct plan_request *req, const struct plan_result *p, uint64_t store, const struct advice *advice)
{
	const struct plan *plan = &p->plan;
	uint32_t layers = req->geo->layers, slots = plan->weight_slots < layers ? plan->weight_slots : layers;
	char active[64] = "", carried[64] = "", trained[64] = "";

	if (req->idle_params)
		snprintf(active, sizeof active, " (%.2f G active)", (double)(req->params - req->idle_params) / 1e9);
	if (req->geo->carried)
		snprintf(carried, sizeof carried, "; %.3f GB carried untrained", gb(req->geo->carried_bytes));
	if (req->trained < req->params)
		snprintf(trained, sizeof trained, "; %.3g G trained, backward through %u", (double)req->trained / 1e9,
			layers - req->still);
	printf("model     %s, %.2f G parameters%s, %u block%s%s; %s, gradients %s%s\n", req->geo->family,
		(double)req->params / 1e9, active, layers, mt_s(layers), trained, mt_dtype_name(req->dtype),
		mt_dtype_name(req->grad), carried);
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
	if (plan->library_attention) {
		uint32_t k = kind_by_library(req);
		printf("attention by cuDNN, %u of %u key-value heads a call, in %.2f GB of work memory%s\n",
			kv_heads_in_call(req, plan, k), req->geo->kind[k].kv_heads, gb(memory_attention(req, plan)),
			some_by_own(req) ? "; of some layers by our own kernels" : "");
	} else if (plan->by_heads) {
		printf("attention by our own kernels, %u of %u key-value heads a call\n", kv_heads_in_call(req, plan, 0),
			req->geo->kind[0].kv_heads);
	} else puts("attention by our own kernels");
	printf("LM head   %llu token%s at once\n", (unsigned long long)tokens_of_head(req, plan),
		mt_s(tokens_of_head(req, plan)));
	printf("slots     weights: %u block%s, %u of them resident from forward to backward; gradients: %u block%s\n",
		slots, mt_s(slots), slots, plan->grad_slots, mt_s(plan->grad_slots));
	if (plan->expert_window)
		printf("experts   in windows of %u of %u, two of them on the device\n", plan->expert_window, req->most.experts);
	else if (req->most.experts) printf("experts   all %u of a block with it\n", req->most.experts);
	printf("keeps     %u block%s all, %u all but gate and up, %u attention's output, %u their input\n",
		blocks_at(plan, layers, KEEP_ALL), mt_s(blocks_at(plan, layers, KEEP_ALL)),
		blocks_at(plan, layers, KEEP_ALL_BUT_GATE_UP), blocks_at(plan, layers, KEEP_ATTENTION),
		blocks_at(plan, layers, KEEP_INPUT));
	show_offloads(plan, layers);
	printf("device    %.2f GB of %.2f GB (at least %.2f GB)%s\n", gb(p->bytes), gb(req->memory), gb(p->least),
		req->unified ? ", of the host's memory" : "");
	show_host(req, p, store);
	show_times(req, p);
	show_tier(req, &p->predicted);
	show_bound(req, &p->predicted, advice);
	show_rates(&req->profile);
	printf("speed     %.0f tokens/s, %.1f model TFLOP/s, by the rates of %s\n",
		(double)tokens_of_step(req) / p->predicted.step, p->predicted.tflops, req->profile.name);
}

void show_csv(const struct plan_request *req, const struct plan_result *p, const struct advice *advice)
{
	const struct prediction *t = &p->predicted;
	puts(
		"profile,gpus,nodes,params,seq,rows,micro_batches,step_tokens,step_s,tokens_per_s,bound,bound_share,peak_bytes,"
		"host_bytes");
	printf("\"%s\",%u,%u,%llu,%u,%u,%u,%llu,%.9g,%.6g,%s,%.4g,%llu,%llu\n", req->profile.name, gpus_of(req), req->nodes,
		(unsigned long long)req->params, req->seq, req->rows, req->micros, (unsigned long long)tokens_of_step(req),
		t->step, (double)tokens_of_step(req) / t->step, advice->bound, advice->share, (unsigned long long)p->bytes,
		(unsigned long long)(req->host_beside + p->host_bytes));
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

void show_json(const struct plan_request *req, const struct plan_result *p, uint64_t store, const struct advice *advice)
{
	const struct plan *plan = &p->plan;
	const struct prediction *t = &p->predicted;
	uint32_t layers = req->geo->layers;
	printf("{\"params\": %llu, \"trained_params\": %llu, \"state_params\": %llu, \"active_params\": %llu, "
		   "\"carried_bytes\": %llu, \"rows\": %u, \"seq\": %u, \"memory\": %llu, \"profile\": \"%s\", ",
		(unsigned long long)req->params, (unsigned long long)req->trained, (unsigned long long)req->with_state,
		(unsigned long long)(req->params - req->idle_params), (unsigned long long)req->geo->carried_bytes, req->rows,
		req->seq, (unsigned long long)req->memory, req->profile.name);
	printf("\"gpus\": %u, \"unified\": %s, ", gpus_of(req), req->unified ? "true" : "false");
	printf("\"order\": \"%s\", \"pass_rows\": %u, \"passes\": %u, ", plan->pass_rows ? "pass-major" : "layer-major",
		plan->pass_rows, plan->pass_rows ? (req->rows + plan->pass_rows - 1) / plan->pass_rows : 1);
	printf("\"chunk_tokens\": %u, \"chunk_rows\": %u, \"mlp_tokens\": %llu, \"head_tokens\": %u, ", plan->chunk_tokens,
		rows_of_chunk(req, plan), (unsigned long long)tokens_of_slice(req, plan), plan->head_tokens);
	printf("\"attention\": \"%s\", \"attention_kv_heads\": %u, \"attention_work_bytes\": %llu, ",
		plan->library_attention ? "cudnn" : "own",
		kv_heads_in_call(req, plan, plan->library_attention ? kind_by_library(req) : 0),
		(unsigned long long)memory_attention(req, plan));
	printf("\"weight_slots\": %u, \"resident_units\": %u, \"grad_slots\": %u, \"expert_window\": %u, ",
		plan->weight_slots, plan->weight_slots, plan->grad_slots, plan->expert_window);
	printf("\"keep_all\": %u, \"keep_but_gate_up\": %u, \"keep_attention\": %u, \"keep_input\": %u, ",
		blocks_at(plan, layers, KEEP_ALL), blocks_at(plan, layers, KEEP_ALL_BUT_GATE_UP),
		blocks_at(plan, layers, KEEP_ATTENTION), blocks_at(plan, layers, KEEP_INPUT));
	const char *residual = plan->residual_offloaded ? "true" : "false";
	const char *attention = plan->offloaded == KEEP_ATTENTION ? "true" : "false";
	printf("\"offloaded_blocks\": %u, ", blocks_offloaded(plan, layers));
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
	if (req->tier > 0)
		printf("\"tier_bytes\": %llu, \"tier_written\": %llu, \"tier_s\": %.9g, \"tier_wait_s\": %.9g, ",
			(unsigned long long)req->tier_disk, (unsigned long long)req->tier_bytes,
			2 * (double)req->tier_bytes / req->tier, t->tier_wait);
	printf("\"bound\": \"%s\", \"bound_share\": %.4g, ", advice->bound, advice->share);
	if (advice->options) printf("\"faster_with\": \"%s\", \"faster_times\": %.4g, ", advice->options, advice->times);
	printf("\"step_s\": %.9g, \"forward_s\": %.9g, \"backward_s\": %.9g, \"first_forward_s\": %.9g, \"adam_s\": %.9g, "
		   "\"stall_s\": %.9g, \"tail_s\": %.9g, \"tokens_per_s\": %.6g, \"model_tflops\": %.6g}\n",
		t->step, t->forward, t->backward, t->first_forward, t->adam, t->stall, t->tail,
		(double)tokens_of_step(req) / t->step, t->tflops);
}
