/* list.h: a block as a list of nodes over values. Who builds one says what goes forward. The backward pass, what is
 * made again for it, and where arrays lie follow from the list: walk.c, place.c.
 *
 *     value   a matrix (N, width), or columns of another value
 *     node    makes a value of others, with weights of some roles
 *
 * A list depends on the geometry and the kind of layer alone, and is never changed. Value 0 is the block's input x. Its
 * first half are the mixers, which a chunk goes through at once, and which end in x2; its second half is the MLP, which
 * reads x2 or x and goes slice by slice. A mixture of experts is an MLP some of whose values have several rows a token,
 * and whose experts may come by windows: then its nodes are done in several calls.
 *
 * Two rules decide bits. Of several readers of a value, the last one in the list is the first to write its gradient,
 * and the others add to it. Output projections are behind all else, since a residual's gradient lies where its sum's
 * does and is read there before others add to it.
 */
#ifndef MT_STREAM_LAYERS_LIST_H
#define MT_STREAM_LAYERS_LIST_H

#include "layers.h"

enum { NODES = 40, NODE_INPUTS = 4, NODE_SIDES = 2, NONE = -1 };
enum half { MIXER, MLP, HALVES };
/* What a list is gone through for. The last six: where experts come by windows (block.h) */
enum call {
	MIXER_FORWARD,
	MIXER_BACKWARD,
	MLP_FORWARD,
	MLP_BACKWARD,
	ROUTE_FORWARD,
	WINDOW_FORWARD,
	END_FORWARD,
	ROUTE_BACKWARD,
	WINDOW_BACKWARD,
	END_BACKWARD,
	CALLS
};
/* value.made, beside the number of a node */
enum { INPUT = -1, VIEW = -2 };
/* value.keep, beside a checkpoint level: kept by none, made again where it is needed */
enum { AGAIN = KEEP_ALL + 1 };
/* Which rows before its own a value's reader reads of the same document (mt-sample): all; some; a chunk of the delta
 * rule, which is made again */
enum past { PAST_NONE, PAST_ALL, PAST_SOME, PAST_CHUNK };

struct value {
	int64_t width, grad_width; /* elements of a row; of its gradient, where that is not the same */
	int slots;                 /* rows a token, expert by expert; 0: one, and they stand token by token */
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
	/* NULL: there is nothing to do */
	void (*forward)(struct run *, const struct node *);
	void (*backward)(struct run *, const struct node *);
	/* of a node whose first input's maker gives that again: what is done then, with the input */
	void (*late)(struct run *, const struct node *);
	bool gives;      /* backward gives the node's value again */
	bool multiplies; /* GEMMs read its first input, and the gradient of its value */
	bool by_heads;   /* it may go by groups of heads: a group's gradients are written when nobody reads its input */
	bool once;       /* backward changes dx itself: with windows in the first call alone */
	unsigned reads;  /* values that backward reads: 1 << input; READS_OUT, READS_SIDES */
	enum grad_place grad[NODE_INPUTS];
};
enum { READS_OUT = 1 << NODE_INPUTS, READS_SIDES = 2 << NODE_INPUTS };

struct node {
	const struct node_kind *kind;
	int in[NODE_INPUTS], out;
	int side[NODE_SIDES]; /* what it leaves for its backward pass, beside `out` */
	bool in_place;        /* out is where its first input was */
	enum mt_role_tensor w, b;
	int64_t row, cols; /* of w, of each expert's: from this row on, so many */
	float scale, eps;
	bool adds; /* another node behind it has begun the gradients of w and b */
	struct inner {
		enum mt_ffn form;
		enum mt_role_tensor slope, negative; /* of MT_XIELU */
		int sparse;                          /* as of activation_args, as deviations */
		float deviations;
	} inner;
};

/* Where an array lies: over a value that the block keeps; or in the chunk's arena: bytes of a token that lie before it,
 * and its number in their order */
struct place {
	int over; /* 0: in the arena */
	int rank;
	int64_t before;
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
	size_t elem;   /* bytes of the device's elements */
	int outs, mlp; /* the first node of the mixers' output projections; of the MLP */
	int x2, y;     /* what the halves give; NONE */
	/* With experts: the value that says where tokens go; the node that gives experts their rows, and the one that sums
	 * what they give; the value that a norm behind them reads, which windows keep. NONE: there is none */
	int routing, dispatch, combine, sum;
	int next; /* mtp.c: the value of the next tokens' embeddings, which the schedule has. NONE: there is none */
	/* place.c: whose gradient's memory a value's gradient has: its own, another value's, or 0: dx; and whether its own
	 * is the value's memory */
	int grad_of[LIST_VALUES];
	bool grad_over[LIST_VALUES];
	struct places at[CALLS][2]; /* 1: gate and up are kept elsewhere; of mixers: attention goes by groups of heads */
};

/* ---- list.c: to build one ---- */

void list_make(struct list *, const struct mt_geometry *, const struct mt_layer *, size_t elem);

int value(struct list *, int64_t width, int keep);
int columns(struct list *, int of, int64_t at, int64_t width);
/* A node's value; its fourth input, if it has none, may be left out: no node reads x there */
int node(struct list *, struct node, int64_t width, int keep);
int node_into(struct list *, int v, struct node);
/* A node whose value is in the place of its first input */
int node_over(struct list *, struct node);
/* Statistics in fp32, which a node leaves beside its value, or room for its backward pass */
int side(struct list *, int64_t width, int keep);
int norm(struct list *, int x, struct norm);
/* norm(x), or x itself in models without norms before */
int pre_norm(struct list *, int x, struct norm);
/* x times a factor, in its place; norm1(x) times one */
int scaled(struct list *, int x, float by);
int mixer_input(struct list *, int x, float scale);
/* x (N, in) w' + b: `cols` columns of `width`, of w the rows from `row` on */
int linear(struct list *, int x, enum mt_role_tensor w, enum mt_role_tensor b, int64_t row, int64_t cols, int64_t width,
	int keep);
void linear_into(struct list *, int v, int x, enum mt_role_tensor w, int64_t cols);
int latent_norm(struct list *, int x, enum mt_role_tensor w),
	own_norm(struct list *, int x, enum mt_role_tensor w, float eps);
/* residual + scale norm(o w' + b) */
int output_projection(struct list *, int residual, int o, enum mt_role_tensor w, enum mt_role_tensor b,
	struct norm post, float scale);
int attend(struct list *, int qkv);

/* Rows of a token, and its elements */
static inline int64_t token_rows(const struct value *v) { return v->slots ? v->slots : 1; }
static inline int64_t token_width(const struct value *v) { return v->width * token_rows(v); }
/* What a value is made from in the end: it, or the value whose columns it is */
int root_of(const struct list *, int v), grad_root_of(const struct list *, int v);
/* Is it what a norm behind experts reads? */
bool is_sum(const struct list *, int root);

/* What the block of multi-token prediction has before its mixer */
int mtp_nodes(struct list *, int x);
/* The mixers' own nodes: what each output projection reads */
int attention_nodes(struct list *, int x), attention_of(struct list *, int normed), mla_nodes(struct list *, int x),
	conv_nodes(struct list *, int x), delta_nodes(struct list *, int x), scan_nodes(struct list *, int x);
/* o's norm, by the gate z; of Mamba 1 o silu(z) */
int gated_norm_node(struct list *, int o, int z);
/* The convolution of columns x or, of MT_CONV, of B | C | x */
int conv_node(struct list *, int x, int keep);
/* The MLP's, or the experts', from what it reads; then what the block's own input adds to y */
int mlp_nodes(struct list *, int in, int residual), experts_nodes(struct list *, int in, int residual),
	own_input_nodes(struct list *, int y);
/* What it adds, made of y, before the norm */
int own_input(struct list *, int y);
/* A block with several streams */
int altup_nodes(struct list *, int x);
/* The function of gu, of an MLP with that inner size */
int inner(struct list *, int gu, int64_t width, struct inner);
/* The routing of h's tokens; the shared expert's score and weight, of which that and its gradient are (N) each */
int routing_node(struct list *, int h), shared_weight_node(struct list *, int h);
struct shared_weight {
	float *weight, *dweight;
};
struct shared_weight shared_weight_at(const struct run *, int v);
/* x + scale z; residual + scale norm(z) */
int sum_node(struct list *, int x, int z, float scale),
	residual_sum(struct list *, int residual, int z, struct norm post, float scale);
/* What a linear layer's node does */
void linear_node_forward(struct run *, const struct node *), linear_input_backward(struct run *, const struct node *),
	linear_weights_backward(struct run *, const struct node *);

/* ---- walk.c ---- */

enum step { FORWARD, BACKWARD, LATE };
/* Which values and gradients are there */
struct walk_state {
	const struct list *t;
	enum call call;
	bool have[LIST_VALUES], begun[LIST_VALUES];
	void (*step)(struct walk_state *, const struct node *, enum step);
};
/* What a call finds: x, x2 and what a block keeps at a level; of the routing, what earlier calls have left */
void walk_begin(struct walk_state *, const struct list *, enum call, int level);
/* All that a call does */
void walk_call(struct walk_state *);
/* Of the mixers' values, what is not there of what a block keeps at KEEP_ALL_BUT_GATE_UP */
void walk_again(struct walk_state *);

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
	/* experts [from, to), whose roles w and g have the first one's tensors, and their rows */
	uint32_t from, to;
	int64_t begin, rows;
};
/* That chunk, or slice of one, for a call */
struct run run_of(const struct run *, enum call, int level);
void *value_at(const struct run *, int v);
void *grad_at(const struct run *, int v);
/* From a row of it to the next one's */
int64_t row_of(const struct run *, int v);
/* Of a value with rows of experts, those of this call: its first row, and how many; else all */
void *rows_at(const struct run *, const void *, int v);
int64_t rows_in(const struct run *, int v);
/* Is the value's gradient there already, so that one adds to it? From now on it is */
int again(struct run *, int v);

/* ---- place.c ---- */

void list_place(struct list *);
/* Of n tokens */
uint64_t places_bytes(const struct places *, int64_t n);
uint64_t place_of(const struct place *, int64_t n);

#endif
