/* scan.c: Mamba 1 (arXiv 2312.00752), as Falcon Mamba and Jamba have it, too.
 *
 *     x | z = W norm(x)      x = silu(a short convolution of x)      dt' | B | C = W x, in some models normed, each
 *     o = scan(x, W dt', B, C)                                       out projection of o silu(z)
 *
 * State and convolution begin at zero with each document.
 */
#include "list.h"

static struct op scan_op(const struct run *r, enum op_code code, const struct node *n)
{
	const struct chunk *c = r->c;
	const struct mt_layer *l = r->l;
	return (struct op){code,
		.scan = {.n = c->n,
			.seq = c->seq,
			.channels = l->conv_dim,
			.size = l->key_dim,
			.x = value_at(r, n->in[0]),
			.step = value_at(r, n->in[1]),
			.b = value_at(r, n->in[2]),
			.c = value_at(r, n->in[3]),
			.ld = row_of(r, n->in[2]),
			.a_log = r->w->t[MT_T_A_LOG],
			.dt_bias = r->w->t[MT_T_DT_BIAS],
			.skip = r->w->t[MT_T_SKIP],
			.starts = c->starts}};
}

static void scan_forward(struct run *r, const struct node *n)
{
	struct op op = scan_op(r, OP_SCAN_FORWARD, n);
	op.scan.y = value_at(r, n->out);
	op.scan.past = r->c->past;
	op.scan.state = r->s->state;
	launch(r->c, &op);
}

static void scan_backward(struct run *r, const struct node *n)
{
	struct op op = scan_op(r, OP_SCAN_BACKWARD, n);
	struct scan_args *a = &op.scan;
	(void)again(r, n->in[0]); /* the first one to write it: its linear layers add to it */
	a->dy = grad_at(r, n->out);
	a->dx = grad_at(r, n->in[0]);
	a->dstep = grad_at(r, n->in[1]);
	a->db = grad_at(r, n->in[2]);
	a->dc = grad_at(r, n->in[3]);
	a->d_ld = a->ld;
	a->da_log = r->g->t[MT_T_A_LOG];
	a->ddt_bias = r->g->t[MT_T_DT_BIAS];
	a->dskip = r->g->t[MT_T_SKIP];
	a->beta = r->beta;
	a->work = r->c->s.delta;
	launch(r->c, &op);
}

static const struct node_kind scan_kind = {.forward = scan_forward,
	.backward = scan_backward,
	.reads = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 3,
	.grad = {GRAD_OWN, GRAD_OWN, GRAD_OWN, GRAD_OWN}};

int scan_nodes(struct list *t, int x)
{
	const struct mt_layer *l = t->l;
	int64_t d = l->conv_dim, size = l->key_dim, rank = l->q_rank;
	int xz = linear(t, mixer_input(t, x, 1), MT_T_DQKV, MT_T_DQKVB, 0, 2 * d, 2 * d, KEEP_ALL_BUT_GATE_UP);
	t->v[xz].past = PAST_SOME;
	int u = conv_node(t, columns(t, xz, 0, d), AGAIN);
	int latent = linear(t, u, MT_T_DA, 0, 0, rank, rank, KEEP_ALL_BUT_GATE_UP);
	int bc = linear(t, u, MT_T_DA, 0, rank, 2 * size, 2 * size, KEEP_ALL_BUT_GATE_UP);
	int b = columns(t, bc, 0, size), c = columns(t, bc, size, size);
	if (l->part_eps > 0) {
		latent = own_norm(t, latent, MT_T_DNORM, l->part_eps);
		b = own_norm(t, b, MT_T_KNORM, l->part_eps);
		c = own_norm(t, c, MT_T_QNORM, l->part_eps);
	}
	int step = linear(t, latent, MT_T_QUP, 0, 0, d, d, AGAIN);
	int o = node(t, (struct node){.kind = &scan_kind, .in = {u, step, b, c}}, d, KEEP_ATTENTION);
	return gated_norm_node(t, o, columns(t, xz, d, d));
}
