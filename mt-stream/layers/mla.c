/* mla.c: multi-head latent attention (arXiv 2405.04434), as DeepSeek V3 has it.
 *
 *     q_latent | kv_latent | kr = W norm(x)        q = W norm(q_latent)        kv = W norm(kv_latent), by head
 *     k = kv's first part | turned kr, which all heads share        v = kv's second part        q's last part turns
 *
 * Without a latent of q, q = W norm(x).
 */
#include "list.h"

/* q | k | v from q and kv, or their gradients */
static void latents(const struct run *r, enum op_code code, const struct node *n,
	void *(*at)(const struct run *, int value))
{
	const struct chunk *c = r->c;
	const struct mt_geometry *g = c->geo;
	const struct mt_layer *l = r->l;
	LAUNCH(c, code, mla, .n = c->n, .seq = c->seq, .heads = l->heads, .dim = l->head_dim, .rope_dim = l->rope_dim,
		.dim_v = l->v_dim, .neighbours = (int)l->neighbours, .cos = c->cos[g->kind_of[r->layer]],
		.sin = c->sin[g->kind_of[r->layer]], .starts = c->starts, .temperature = g->temperature,
		.temperature_positions = g->temperature_positions, .past = c->past, .qkv = at(r, n->out), .kv = at(r, n->in[1]),
		.kr = at(r, n->in[2]), .ld = row_of(r, n->in[2]));
}

static void latents_forward(struct run *r, const struct node *n) { latents(r, OP_MLA_FORWARD, n, value_at); }
static void latents_backward(struct run *r, const struct node *n) { latents(r, OP_MLA_BACKWARD, n, grad_at); }

static const struct node_kind latents_kind = {.forward = latents_forward,
	.backward = latents_backward,
	.grad = {GRAD_OF_OUT}};

int mla_nodes(struct list *t, int x)
{
	const struct mt_layer *l = t->l;
	int64_t q = (int64_t)l->heads * l->head_dim, wide = latent_width(l);
	int qkv = value(t, proj_width(l), KEEP_ALL_BUT_GATE_UP), own_q = columns(t, qkv, 0, q), in = mixer_input(t, x, 1);
	int all = linear(t, in, l->q_rank ? MT_T_Q : MT_T_K, l->q_rank ? MT_T_QB : MT_T_KB, 0, wide, wide,
		KEEP_ALL_BUT_GATE_UP);
	if (l->q_rank) linear_into(t, own_q, latent_norm(t, columns(t, all, 0, l->q_rank), MT_T_QNORM), MT_T_QUP, q);
	else linear_into(t, own_q, in, MT_T_Q, q);
	int kv = linear(t, latent_norm(t, columns(t, all, l->q_rank, l->kv_rank), MT_T_KNORM), MT_T_KVUP, 0, 0,
		pair_width(l), pair_width(l), AGAIN);
	int kr = columns(t, all, wide - l->rope_dim, l->rope_dim);
	return attend(t, node_into(t, qkv, (struct node){.kind = &latents_kind, .in = {own_q, kv, kr}, .in_place = true}));
}
