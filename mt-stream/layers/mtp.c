/* mtp.c: what is before the block of multi-token prediction (DeepSeek V3, arXiv 2412.19437, section 2.2). Of x, the
 * output of the block below, and the embedding of the token behind each:
 *
 *     x' = W [norm(embedding) | norm(h)]    h = the model's final norm of x, of which the LM head makes the main logits
 *
 * The report leaves open whether h is behind the final norm. vLLM (deepseek_mtp, glm4_moe_mtp, qwen3_next_mtp), SGLang
 * (nextn) and Megatron-LM feed what the model returns, which is. llama.cpp measured that for Qwen3.5 (its pull request
 * 24025), and feeds x to GLM's.
 */
#include "list.h"

/* ---- h goes to the head, which puts its gradient there ---- */

static void hidden_forward(struct run *r, const struct node *n)
{
	if (r->c->hidden) scaled_add(r->c, r->c->hidden, value_at(r, n->out), NULL, 1);
}

static void hidden_backward(struct run *r, const struct node *n)
{
	void *d = grad_at(r, n->out);
	scaled_add(r->c, d, r->c->dhidden, d, 1);
}

static const struct node_kind hidden_kind = {.forward = hidden_forward,
	.backward = hidden_backward,
	.grad = {GRAD_OF_OUT}};

/* ---- the embeddings, made by unit 0, which finds their gradient in their place ---- */

static void next_backward(struct run *r, const struct node *n)
{
	scaled_add(r->c, grad_at(r, n->in[0]), grad_at(r, n->out), NULL, 1);
}

static const struct node_kind next_kind = {.backward = next_backward, .grad = {GRAD_OVER_INPUT}};

/* ---- x' ---- */

/* Columns of w, or of its gradient, that one of the two inputs meets: one GEMM each, as the norms lie apart */
static void half(struct run *r, const struct node *n, int i, bool backward)
{
	const struct chunk *c = r->c;
	int64_t h = c->geo->hidden;
	struct operand x = operand_of(c, OPERAND_X, value_at(r, n->in[i]), 0, c->n, h);
	const void *w = operands_after(c->dev, r->w->t[n->w], i * h);
	float *dw = backward ? matrix_grad(r->g, n->w) : NULL;
	if (!backward)
		LAUNCH(c, OP_GEMM, gemm, .m = c->n, .n = h, .k = h, .a = x.as, .lda = h, .b = w, .ldb = 2 * h, .trans_b = 1,
			.c = value_at(r, n->out), .ldc = h, .beta = (float)i);
	else
		LAUNCH(c, OP_GEMM, gemm, .m = c->n, .n = h, .k = h, .a = r->dy.as, .lda = h, .b = w, .ldb = 2 * h,
			.c = grad_at(r, n->in[i]), .ldc = h);
	if (dw)
		LAUNCH(c, OP_GEMM, gemm, .m = h, .n = h, .k = c->n, .a = r->dy.as, .lda = h, .trans_a = 1, .b = x.as, .ldb = h,
			.c = dw + i * h, .ldc = 2 * h, .beta = r->beta, .fp32 = 1);
}

static void joined_forward(struct run *r, const struct node *n)
{
	half(r, n, 0, false);
	half(r, n, 1, false);
}

/* The gradient of x' lies where that of x will, to which the norm of x adds. */
static void joined_backward(struct run *r, const struct node *n)
{
	const struct chunk *c = r->c;
	r->dy = operand_of(c, OPERAND_DY, grad_at(r, n->out), 0, c->n, c->geo->hidden);
	half(r, n, 0, true);
	half(r, n, 1, true);
	launch(c, &(struct op){OP_ZERO, .zero = {r->dx, (size_t)(c->n * c->geo->hidden) * c->dev->elem}});
}

static const struct node_kind joined_kind = {.forward = joined_forward,
	.backward = joined_backward,
	.multiplies = true,
	.reads = 1 << 0 | 1 << 1};

int mtp_nodes(struct list *t, int x)
{
	static const struct norm of_next = {MT_T_MTP_NORM, 0}, of_hidden = {MT_T_MTP_HNORM, 0}, last = {MT_T_MTP_FINAL, 0};
	int next = t->next = value(t, t->g->hidden, KEEP_INPUT); /* kept by none, and always there */
	int embedding = columns(t, next, 0, t->g->hidden);
	t->v[embedding].apart = true;
	node_into(t, embedding, (struct node){.kind = &next_kind, .in = {next, NONE, NONE}});
	int h = node_over(t, (struct node){.kind = &hidden_kind, .in = {norm(t, x, last), NONE, NONE}});
	int in[] = {norm(t, embedding, of_next), norm(t, h, of_hidden)};
	return node(t, (struct node){.kind = &joined_kind, .in = {in[0], in[1], NONE}, .w = MT_T_MTP_PROJ}, t->g->hidden,
		AGAIN);
}
