/* balance.c: the auxiliary loss and the z-loss of a micro-batch: which tokens count, their weight, and the values from
 * the sums of all routers. The layers launch the operations.
 *
 * Two keys of config.json add terms of the routers' logits to the loss, as in transformers (the first) and ST-MoE
 * (arXiv 2202.08906, the second). Both are of one micro-batch, over all its tokens in all layers with experts together,
 * M logit vectors in all:
 *
 *     auxiliary loss   E sum over experts e of f_e P_e. f_e: how many of the M vectors have e among the K largest of
 *                      their softmax, divided by M. P_e: the mean of softmax(logits)_e. In the loss
 *                      router_aux_loss_coef times, if output_router_logits is true; not for glm4_moe and
 *                      families like it
 *     z-loss           the mean of logsumexp(logits)^2. In the loss router_z_loss_coef times, without the key not
 *
 * - E is the number of experts and K that of a token. The K largest are of the softmax also where a router selects
 *   otherwise (correction biases). f_e is a constant for the gradient.
 * - Padding does not count: the last document of a row, if all its tokens are 0 and none has a target. Tokens without a
 *   target count, and so do documents without any.
 * - Of a step of several micro-batches, each one's terms are weighted by its share of the step's targets. So a step of
 *   one micro-batch has the loss of transformers. Other micro-batches give other bits and another loss, since f and P
 *   are of a micro-batch.
 * - What mt reports as loss and eval_loss is the cross-entropy alone. aux_loss and z_loss in the metrics are the terms
 *   without their coefficients, weighted in the same way. transformers' loss is loss + router_aux_loss_coef times
 *   aux_loss. An evaluation does not compute them.
 * - In the forward pass each router adds to sums on the device, in the order of layers, chunks and slices. In the
 *   backward pass the router's logits are computed once more, since the scores have taken their place.
 * - f is known when all tokens have gone forward. So the planner selects no passes for a model with an auxiliary loss;
 *   a run whose record has smaller passes than its micro-batches (--pass-rows) ends with 78.
 */
#include <stdlib.h>

#include "cli/cli.h"
#include "mt/error.h"
#include "stream.h"

static uint64_t tokens_of(const struct stream *s) { return (uint64_t)s->taken.msg.batch.rows * s->taken.msg.batch.seq; }

static bool has_terms(const struct stream *s) { return s->micro->layout.sums != NULL; }

/* ---- which tokens count ---- */

/* Where a row's padding begins; seq: there is none */
static uint32_t padding_of(const uint32_t *tokens, const uint32_t *targets, const uint32_t *starts, uint32_t seq)
{
	uint32_t first = starts[seq - 1];
	for (uint32_t t = first; t < seq; t++)
		if (tokens[t] || targets[t] != MT_NO_TARGET) return seq;
	return first;
}

/* How many routers the model has */
static uint32_t routers_of(const struct mt_geometry *g)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < g->layers; i++) n += mt_layer_of(g, i)->experts != 0;
	return n;
}

/* ---- memory ---- */

static int room_for(struct terms *t, uint64_t tokens, uint64_t sums)
{
	if (!t->sums) t->sums = calloc(sums, sizeof *t->sums);
	if (tokens > t->room) {
		free(t->counted);
		t->counted = malloc(tokens * sizeof *t->counted);
		t->room = t->counted ? tokens : 0;
	}
	return t->sums && t->counted ? 0 : mt_fail(MT_EX_NOMEM, "no memory for %llu tokens", (unsigned long long)tokens);
}

void balance_release(struct stream *s)
{
	free(s->terms.counted);
	free(s->terms.sums);
}

static uint64_t sums_of(const struct stream *s) { return 2ull * s->micro->request.most.experts + 1; }

/* ---- a micro-batch ---- */

int balance_begin(struct stream *s)
{
	struct terms *t = &s->terms;
	uint64_t n = tokens_of(s), counted = 0, targets = 0;
	uint32_t seq = s->taken.msg.batch.seq;
	int rc = has_terms(s) ? room_for(t, n, sums_of(s)) : 0;
	if (rc || !has_terms(s)) return rc;
	for (uint64_t row = 0; row < n; row += seq) {
		uint32_t end = padding_of(s->taken.host + row, s->taken.host + n + row, s->taken.host + 2 * n + row, seq);
		for (uint32_t i = 0; i < seq; i++) t->counted[row + i] = i < end;
		counted += end;
	}
	for (uint64_t i = 0; i < n; i++) targets += s->taken.host[n + i] != MT_NO_TARGET;
	t->logits = (double)(counted * routers_of(s->geo));
	t->weight = (double)targets * s->taken.msg.batch.loss_scale;
	return 0;
}

void balance_in(struct stream *s)
{
	const struct memory_layout *at = &s->micro->layout;
	if (!has_terms(s)) return;
	launch(s, Q_COMPUTE, &(struct op){OP_COPY, .copy = {at->counted, s->terms.counted, tokens_of(s) * 4}});
	launch(s, Q_COMPUTE, &(struct op){OP_ZERO, .zero = {at->sums, sums_of(s) * sizeof *at->sums}});
}

void balance_out(struct stream *s)
{
	const struct memory_layout *at = &s->micro->layout;
	if (!has_terms(s)) return;
	launch(s, Q_COMPUTE, &(struct op){OP_COPY, .copy = {s->terms.sums, at->sums, sums_of(s) * sizeof *at->sums}});
}

struct balance balance_of(const struct stream *s, int64_t first)
{
	const struct memory_layout *at = &s->micro->layout;
	double n = s->terms.logits, weight = n > 0 ? s->terms.weight / n : 0;
	if (!has_terms(s)) return (struct balance){0};
	return (struct balance){.sums = at->sums,
		.backward = s->now.backward,
		.counted = at->counted + first,
		.aux = n > 0 ? weight * s->geo->aux_coef * s->micro->request.most.experts / n : 0,
		.z = weight * s->geo->z_coef};
}

struct balance_loss balance_loss(const struct stream *s)
{
	const double *sums = s->terms.sums, n = s->terms.logits;
	uint32_t experts = s->micro->request.most.experts;
	struct balance_loss l = {0};
	if (!has_terms(s) || n == 0) return l;
	for (uint32_t e = 0; e < experts; e++) l.aux += sums[e] / n * (sums[experts + e] / n);
	l.aux = s->geo->aux_coef != 0 ? l.aux * experts : 0;
	l.z = s->geo->z_coef != 0 ? sums[2 * experts] / n : 0;
	return l;
}
