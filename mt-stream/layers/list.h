/* list.h: a block as a list of nodes over values. Who builds one says what goes forward. The backward pass, what is
 * made again for it, and where arrays lie follow from the list: walk.c, place.c.
 *
 *     value   a matrix (N, width), or columns of another value
 *     node    makes a value of others, with weights of some roles
 *
 * A list depends on the geometry and the kind of layer alone, and is never changed. Value 0 is the block's input x. Its
 * first half are the mixers, which a chunk goes through at once, and which end in x2; its second half is the MLP, which
 * reads x2 or x and goes slice by slice. Mixtures of experts are in no list yet (experts.c).
 *
 * Two rules decide bits. Of several readers of a value, the last one in the list is the first to write its gradient,
 * and the others add to it. Output projections are behind all else, since a residual's gradient lies where its sum's
 * does and is read there before others add to it.
 */
#ifndef MT_STREAM_LAYERS_LIST_H
#define MT_STREAM_LAYERS_LIST_H

#include "layers.h"

enum { NODES = 36, NODE_INPUTS = 3, NODE_SIDES = 2, NONE = -1 };
enum half { MIXER, MLP, HALVES };
/* value.made, beside the number of a node */
enum { INPUT = -1, VIEW = -2 };
/* value.keep, beside a checkpoint level: kept by none, made again where it is needed */
enum { AGAIN = KEEP_ALL + 1 };
/* Which rows before its own a value's reader reads of the same document (mt-sample): all; some; a chunk of the delta
 * rule, which is made again */
enum past { PAST_NONE, PAST_ALL, PAST_SOME, PAST_CHUNK };

struct value {
	int64_t width, grad_width; /* elements of a token; of its gradient, where that is not the same */
	bool fp32;                 /* else of the device's elements */
	int keep;                  /* from which checkpoint level on */
	int of;                    /* columns of this value, from `at` on; NONE: memory of its own */
	bool apart;                /* its gradient is not in columns of that value's */
	int64_t at;
	int made; /* by which node; VIEW: it is there with `of` */
	enum past past;
};

struct run;
struct node;

/* Where an input's gradient lies: in memory of its own; where that of the node's value does, in whose place it comes;
 * over the input itself, which nobody reads afterwards */
enum grad_place { GRAD_OWN, GRAD_OF_OUT, GRAD_OVER_INPUT };

struct node_kind {
	void (*forward)(struct run *, const struct node *);
	void (*backward)(struct run *, const struct node *);
	/* of a node whose first input's maker gives that again: what is done then, with the input */
	void (*late)(struct run *, const struct node *);
	bool gives;     /* backward gives the node's value again, where its gradient was */
	unsigned reads; /* values that backward reads: 1 << input; READS_OUT, READS_SIDES */
	enum grad_place grad[NODE_INPUTS];
};
enum { READS_OUT = 1 << NODE_INPUTS, READS_SIDES = 2 << NODE_INPUTS };

struct node {
	const struct node_kind *kind;
	int in[NODE_INPUTS], out;
	int side[NODE_SIDES]; /* what it leaves for its backward pass, beside `out` */
	bool in_place;        /* out is where its first input was */
	enum mt_role_tensor w, b;
	int64_t row, cols; /* of w: from this row on, so many */
	float scale, eps;
};

/* An array in the chunk's arena: bytes of a token that lie before it, and its number in their order */
struct place {
	int64_t before;
	int rank;
};
struct places {
	struct place value[LIST_VALUES], grad[LIST_VALUES];
	int64_t bytes; /* of a token, of all */
	int arrays;
};

struct list {
	const struct mt_geometry *g;
	const struct mt_layer *l;
	struct value v[LIST_VALUES];
	struct node node[NODES];
	int values, nodes;
	int outs, mlp; /* the first node of the mixers' output projections; of the MLP */
	int x2, y;     /* what the halves give; NONE */
	/* place.c: whose gradient's memory a value's gradient has: its own, another value's, or 0: dx; and whether its own
	 * is the value's memory */
	int grad_of[LIST_VALUES];
	bool grad_over[LIST_VALUES];
	/* by half; whether gate and up are kept elsewhere; whether to go backward */
	struct places at[HALVES][2][2];
};

/* ---- list.c: to build one ---- */

void list_make(struct list *, const struct mt_geometry *, const struct mt_layer *, size_t elem);

int value(struct list *, int64_t width, int keep);
int columns(struct list *, int of, int64_t at, int64_t width);
/* A node's value */
int node(struct list *, struct node, int64_t width, int keep);
int node_into(struct list *, int v, struct node);
/* A node whose value is in the place of its first input */
int node_over(struct list *, struct node);
/* Statistics in fp32, which a node leaves beside its value */
int side(struct list *, int64_t width, int keep);
int norm(struct list *, int x, struct norm);
/* norm(x), or x itself in models without norms before */
int pre_norm(struct list *, int x, struct norm);
/* norm1(x) times a factor */
int mixer_input(struct list *, int x, float scale);
/* x (N, in) w' + b: `cols` columns of `width`, of w the rows from `row` on */
int linear(struct list *, int x, enum mt_role_tensor w, enum mt_role_tensor b, int64_t row, int64_t cols, int64_t width,
	int keep);
void linear_into(struct list *, int v, int x, enum mt_role_tensor w, int64_t cols);
int latent_norm(struct list *, int x, enum mt_role_tensor w);
/* residual + scale norm(o w' + b) */
int output_projection(struct list *, int residual, int o, enum mt_role_tensor w, enum mt_role_tensor b,
	struct norm post, float scale);
int attend(struct list *, int qkv);

/* What a value is made from in the end: it, or the value whose columns it is */
int root_of(const struct list *, int v), grad_root_of(const struct list *, int v);

/* The mixers' own nodes: what each output projection reads */
int attention_nodes(struct list *, int x), mla_nodes(struct list *, int x), conv_nodes(struct list *, int x),
	delta_nodes(struct list *, int x);
/* The MLP's, from what it reads; then what the block's own input adds to y */
int mlp_nodes(struct list *, int in, int residual), own_input_nodes(struct list *, int y);

/* ---- walk.c ---- */

enum step { FORWARD, BACKWARD, LATE };
/* Which values and gradients are there */
struct walk_state {
	const struct list *t;
	bool have[LIST_VALUES], begun[LIST_VALUES];
	void (*step)(struct walk_state *, const struct node *, enum step);
};
/* Nothing is there but x, x2 and what a block keeps at a level */
void walk_begin(struct walk_state *, const struct list *, int level);
/* Of the mixers' values, what is not there of what a block keeps at KEEP_ALL_BUT_GATE_UP */
void walk_again(struct walk_state *);
/* Nodes from, ..., to - 1 forward; to - 1, ..., from backward */
void walk_forward(struct walk_state *, int from, int to);
void walk_backward(struct walk_state *, int from, int to);

/* One chunk through a list */
struct run {
	struct walk_state k;
	const struct chunk *c;
	uint32_t layer;
	const struct mt_layer *l;
	const struct weights *w;
	const struct grads *g;
	float beta;
	const void *x;
	void *y, *dx; /* the block's output; its gradient, which becomes that of x */
	const struct saved *s;
	char *arena;
	const struct places *at;
	struct operand dy;  /* of a linear layer, for its late step */
	bool normed[ROLES]; /* the gradient of a norm's weight is begun */
};
void *value_at(const struct run *, int v);
void *grad_at(const struct run *, int v);
/* From a token's row of it to the next one's */
int64_t row_of(const struct run *, int v);
/* Is the value's gradient there already, so that one adds to it? From now on it is */
int again(struct run *, int v);

/* The mixers backward: their output projections, then all else */
struct run mixers_backward_begin(const struct chunk *, uint32_t layer, const struct weights *, const struct grads *,
	float beta, const void *x, const struct saved *, void *dx);
void outputs_backward(struct run *);
void mixers_backward(struct run *);

/* The MLP of a block without experts, slice by slice */
void mlp_list_forward(const struct chunk *, uint32_t layer, const struct weights *, const void *x, const struct saved *,
	void *y);
void mlp_list_backward(const struct chunk *, uint32_t layer, const struct weights *, const struct grads *, float beta,
	const void *x, const struct saved *, void *dx);

/* ---- place.c ---- */

void list_place(struct list *, size_t elem);
/* Of n tokens */
uint64_t places_bytes(const struct places *, int64_t n);
uint64_t place_of(const struct place *, int64_t n);

#endif
