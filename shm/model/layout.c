/* layout.c: geometry -> units, tensors, and the offset of each array of a unit in the store region. */
#include <errno.h>
#include <fnmatch.h>
#include <stdlib.h>

#include "hfjson.h"
#include "lib.h"
#include "mt/error.h"
#include "mt/tier.h"
#include "names.h"

#define BIG_ALIGN (2u << 20)    /* big arrays start on a huge page */
#define BIG (64u << 20)         /* from this size on, the alignment costs less than 3% */
#define SMALL_ALIGN 4096u       /* for smaller arrays: small models would consist mostly of gaps otherwise */
#define UNIT_ELEMS (1ull << 34) /* maximum: the optimizer's journal has 28 bits for a group of MT_GROUP */

/* ---- tensors */

/* What a tensor's presence may depend on: the model's flags, what its layer is made of, the layer's expert_flags */
#define PART(n) ((uint64_t)1 << (32 + (n)))
#define DENSE PART(0)
#define MOE PART(1)
#define SHARED PART(2) /* of a mixture of experts */
#define GATED PART(3)
#define XIELU PART(4)
#define OWN_V PART(5)     /* v is not k */
#define ATTENTION PART(6) /* which mixer the layer has */
#define DELTA PART(7)
#define CONV PART(8)
#define MLA PART(9)
#define SOFTMAX PART(10)  /* attention or MLA */
#define Q_LATENT PART(11) /* of MLA */
#define KIMI PART(12)     /* delta attention with gates of channels */
#define MAMBA PART(13)
#define MIXER PART(14)   /* the layer has one */
#define CHANNEL PART(15) /* it has an MLP or experts */
#define CONV_BIAS PART(16)
#define OWN_GATE PART(17)
#define BESIDE PART(18) /* Mamba 2 is beside attention, or has the layer alone */
#define ALONE PART(19)
#define GATED_NORM PART(20) /* of Mamba 1: the norms of dt, B and C have weights */
#define IN_BIAS PART(21)
#define OUT_BIAS PART(22)
#define MTP ((uint64_t)MT_SHORT_ROWS) /* these in bits of flags that no tensor depends on: multi-token prediction; */
#define IN_NORM ((uint64_t)MT_DROPOUT)
#define SCAN ((uint64_t)MT_INIT_BY_DEPTH) /* Mamba 1 */
#define OWN_KV (1ull << 30)               /* k and v are not another layer's */
#define PLE (1ull << 31)                  /* blocks have inputs of their own */
#define ALTUP ((uint64_t)MT_INIT_EMBED)   /* with PLE */
#define EXPERTS_ARE(flag) ((uint64_t)(flag) << 55)

enum size {
	NONE,
	ONE,
	HIDDEN,
	HIDDEN_2,
	VOCAB,
	POSITIONS,
	HEADS,
	Q_ROWS,
	Q_PROJ_ROWS,
	KV_ROWS,
	Q_NORM,
	K_NORM,
	O_COLS,
	Q_RANK,
	KV_RANK,
	KV_DOWN_ROWS,
	KV_UP_ROWS,
	D_QKV_ROWS,
	D_KEY_ROWS,
	D_VALUE_ROWS,
	D_HEADS,
	D_DIM,
	D_WIDTH,
	GATE_RANK,
	C_DIM,
	C_PROJ_ROWS,
	M_PROJ_ROWS,
	S_DIM,
	S_PROJ_ROWS,
	S_PART_ROWS,
	FFN,
	EXPERTS,
	SHARED_FFN,
	EXPERT_FFN,
	PLE_DIM,
	PLE_ALL,
	PLE_VOCAB,
	ALTUP_COPIES,
	ALTUP_PAIRS,
	LAUREL_RANK
};

/* Tensors of a block and of the other units, in the order of their roles; names are those of most families. `slab`:
 * starts at a multiple of MT_GROUP; without it, a tensor follows the one above it without a gap, so that both are one
 * matrix, if the model has that one. */
static const struct entry {
	enum mt_role_tensor role;
	bool slab;
	/* inside its block, * for an expert's number; the whole name for units 0 and L + 1, or behind "/"; behind "<" that
	 * inside the block before; NULL: it is part of the one before */
	const char *name;
	enum size rows, cols; /* (rows, cols); (rows) if cols is NONE; () if both are */
	uint64_t needs;       /* a model has it that has all of these, */
	uint64_t without;     /* and none of these */
} block_tensors[] = {
	{MT_T_MTP_FINAL, true, "model.norm.weight", HIDDEN, NONE, MTP, 0},
	{MT_T_MTP_NORM, true, "", HIDDEN, NONE, MTP, 0},
	{MT_T_MTP_HNORM, true, "", HIDDEN, NONE, MTP, 0},
	{MT_T_MTP_PROJ, true, "", HIDDEN, HIDDEN_2, MTP, 0},
	{MT_T_IN_NORM, true, "in_norm.weight", HIDDEN, NONE, IN_NORM, MT_NORM_PLAIN},
	{MT_T_IN_NORMB, true, "in_norm.bias", HIDDEN, NONE, IN_NORM | MT_NORM_BIAS, 0},
	{MT_T_ALTUP_NORM, true, "altup.router_norm.weight", HIDDEN, NONE, ALTUP, 0},
	{MT_T_ALTUP_ROUTER, true, "altup.modality_router.weight", ALTUP_COPIES, HIDDEN, ALTUP, 0},
	{MT_T_ALTUP_PREDICT, true, "altup.prediction_coefs.weight", ALTUP_PAIRS, ALTUP_COPIES, ALTUP, 0},
	{MT_T_ALTUP_CORRECT, true, "altup.correction_coefs.weight", ALTUP_COPIES, ALTUP_COPIES, ALTUP, 0},
	{MT_T_ALTUP_SCALE, true, "altup.correct_output_scale", HIDDEN, NONE, ALTUP, 0},
	{MT_T_LAUREL_LEFT, true, "laurel.linear_left.weight", LAUREL_RANK, HIDDEN, ALTUP, 0},
	{MT_T_LAUREL_RIGHT, true, "laurel.linear_right.weight", HIDDEN, LAUREL_RANK, ALTUP, 0},
	{MT_T_LAUREL_POST, true, "laurel.post_laurel_norm.weight", HIDDEN, NONE, ALTUP, 0},
	{MT_T_NORM1, true, "input_layernorm.weight", HIDDEN, NONE, MIXER, MT_NO_PRE_NORM | MT_SUM_NORM | MT_NORM_PLAIN},
	{MT_T_NORM1B, true, "input_layernorm.bias", HIDDEN, NONE, MIXER | MT_NORM_BIAS, MT_NO_PRE_NORM | MT_SUM_NORM},
	{MT_T_Q, true, "self_attn.q_proj.weight", Q_PROJ_ROWS, HIDDEN, ATTENTION, 0},
	{MT_T_K, false, "self_attn.k_proj.weight", KV_ROWS, HIDDEN, ATTENTION | OWN_KV, 0},
	{MT_T_V, false, "self_attn.v_proj.weight", KV_ROWS, HIDDEN, ATTENTION | OWN_V, 0},
	{MT_T_QB, true, "self_attn.q_proj.bias", Q_PROJ_ROWS, NONE, ATTENTION | MT_QKV_BIAS, 0},
	{MT_T_KB, false, "self_attn.k_proj.bias", KV_ROWS, NONE, ATTENTION | OWN_KV | MT_QKV_BIAS, 0},
	{MT_T_VB, false, "self_attn.v_proj.bias", KV_ROWS, NONE, ATTENTION | MT_QKV_BIAS | OWN_V, 0},
	{MT_T_QNORM, true, "self_attn.q_norm.weight", Q_NORM, NONE, ATTENTION | MT_QK_NORM, MT_QK_NORM_PLAIN},
	{MT_T_KNORM, true, "self_attn.k_norm.weight", K_NORM, NONE, ATTENTION | OWN_KV | MT_QK_NORM, MT_QK_NORM_PLAIN},
	/* MLA; two of one role, of which a model has one: the one above it must be there, too */
	{MT_T_Q, true, "self_attn.q_proj.weight", Q_ROWS, HIDDEN, MLA, Q_LATENT},
	{MT_T_K, false, "self_attn.kv_a_proj_with_mqa.weight", KV_DOWN_ROWS, HIDDEN, MLA, Q_LATENT},
	{MT_T_Q, true, "self_attn.q_a_proj.weight", Q_RANK, HIDDEN, MLA | Q_LATENT, 0},
	{MT_T_K, false, "self_attn.kv_a_proj_with_mqa.weight", KV_DOWN_ROWS, HIDDEN, MLA | Q_LATENT, 0},
	{MT_T_QB, true, "self_attn.q_a_proj.bias", Q_RANK, NONE, MLA | Q_LATENT | MT_QKV_BIAS, 0},
	{MT_T_KB, false, "self_attn.kv_a_proj_with_mqa.bias", KV_DOWN_ROWS, NONE, MLA | MT_QKV_BIAS, 0},
	{MT_T_QNORM, true, "self_attn.q_a_layernorm.weight", Q_RANK, NONE, MLA | Q_LATENT, 0},
	{MT_T_KNORM, true, "self_attn.kv_a_layernorm.weight", KV_RANK, NONE, MLA, 0},
	{MT_T_QUP, true, "self_attn.q_b_proj.weight", Q_ROWS, Q_RANK, MLA | Q_LATENT, 0},
	{MT_T_KVUP, true, "self_attn.kv_b_proj.weight", KV_UP_ROWS, KV_RANK, MLA, 0},
	{MT_T_Q, true, "self_attn.q_proj.weight", D_KEY_ROWS, HIDDEN, KIMI, 0},
	{MT_T_K, false, "self_attn.k_proj.weight", D_KEY_ROWS, HIDDEN, KIMI, 0},
	{MT_T_V, false, "self_attn.v_proj.weight", D_VALUE_ROWS, HIDDEN, KIMI, 0},
	{MT_T_QUP, true, "self_attn.f_b_proj.weight", D_KEY_ROWS, GATE_RANK, KIMI, 0},
	{MT_T_KVUP, true, "self_attn.g_b_proj.weight", D_VALUE_ROWS, GATE_RANK, KIMI, 0},
	{MT_T_SINKS, true, "self_attn.sinks", HEADS, NONE, ATTENTION | MT_SINKS, 0},
	{MT_T_OGATE, true, "self_attn.gate_proj.weight", Q_ROWS, HIDDEN, ATTENTION | OWN_GATE, 0},
	{MT_T_DQKV, true, "linear_attn.in_proj_qkv.weight", D_KEY_ROWS, HIDDEN, DELTA, 0},
	{MT_T_K, false, NULL, D_KEY_ROWS, HIDDEN, DELTA, 0},
	{MT_T_V, false, NULL, D_VALUE_ROWS, HIDDEN, DELTA, 0},
	{MT_T_DZ, false, "linear_attn.in_proj_z.weight", D_VALUE_ROWS, HIDDEN, DELTA, 0},
	{MT_T_DB, false, "linear_attn.in_proj_b.weight", D_HEADS, HIDDEN, DELTA, 0},
	{MT_T_DA, false, "linear_attn.in_proj_a.weight", D_HEADS, HIDDEN, DELTA, 0},
	{MT_T_CONV, true, "linear_attn.conv1d.weight", D_KEY_ROWS, D_WIDTH, DELTA, 0},
	{MT_T_CONVK, false, NULL, D_KEY_ROWS, D_WIDTH, DELTA, 0},
	{MT_T_CONVV, false, NULL, D_VALUE_ROWS, D_WIDTH, DELTA, 0},
	{MT_T_DT_BIAS, true, "linear_attn.dt_bias", D_HEADS, NONE, DELTA, 0},
	{MT_T_A_LOG, true, "linear_attn.A_log", D_HEADS, NONE, DELTA, 0},
	{MT_T_DNORM, true, "linear_attn.norm.weight", D_DIM, NONE, DELTA, 0},
	{MT_T_DZ, true, "self_attn.g_a_proj.weight", GATE_RANK, HIDDEN, KIMI, 0},
	{MT_T_DB, true, "self_attn.b_proj.weight", D_HEADS, HIDDEN, KIMI, 0},
	{MT_T_DA, true, "self_attn.f_a_proj.weight", GATE_RANK, HIDDEN, KIMI, 0},
	{MT_T_CONV, true, "self_attn.q_conv1d.weight", D_KEY_ROWS, D_WIDTH, KIMI, 0},
	{MT_T_CONVK, false, "self_attn.k_conv1d.weight", D_KEY_ROWS, D_WIDTH, KIMI, 0},
	{MT_T_CONVV, false, "self_attn.v_conv1d.weight", D_VALUE_ROWS, D_WIDTH, KIMI, 0},
	{MT_T_DT_BIAS, true, "self_attn.dt_bias", D_KEY_ROWS, NONE, KIMI, 0},
	{MT_T_A_LOG, true, "self_attn.A_log", D_HEADS, NONE, KIMI, 0},
	{MT_T_DNORM, true, "self_attn.o_norm.weight", D_DIM, NONE, KIMI, 0},
	{MT_T_DQKV, true, "mamba.in_proj.weight", M_PROJ_ROWS, HIDDEN, MAMBA, 0},
	{MT_T_DQKVB, true, "mamba.in_proj.bias", M_PROJ_ROWS, NONE, MAMBA | IN_BIAS, 0},
	{MT_T_CONV, true, "mamba.conv1d.weight", D_QKV_ROWS, D_WIDTH, MAMBA, 0},
	{MT_T_CONVB, true, "mamba.conv1d.bias", D_QKV_ROWS, NONE, MAMBA | CONV_BIAS, 0},
	{MT_T_DT_BIAS, true, "mamba.dt_bias", D_HEADS, NONE, MAMBA, 0},
	{MT_T_A_LOG, true, "mamba.A_log", D_HEADS, NONE, MAMBA, 0},
	{MT_T_SKIP, true, "mamba.D", D_HEADS, NONE, MAMBA, 0},
	{MT_T_DNORM, true, "mamba.norm.weight", D_VALUE_ROWS, NONE, MAMBA | GATED_NORM, 0},
	{MT_T_QNORM, true, "mamba.c_layernorm.weight", S_DIM, NONE, SCAN | GATED_NORM, 0},
	{MT_T_KNORM, true, "mamba.b_layernorm.weight", S_DIM, NONE, SCAN | GATED_NORM, 0},
	{MT_T_QUP, true, "mamba.dt_proj.weight", C_DIM, Q_RANK, SCAN, 0},
	{MT_T_DQKV, true, "mamba.in_proj.weight", S_PROJ_ROWS, HIDDEN, SCAN, 0},
	{MT_T_DQKVB, true, "mamba.in_proj.bias", S_PROJ_ROWS, NONE, SCAN | IN_BIAS, 0},
	{MT_T_DA, true, "mamba.x_proj.weight", S_PART_ROWS, C_DIM, SCAN, 0},
	{MT_T_CONV, true, "mamba.conv1d.weight", C_DIM, D_WIDTH, SCAN, 0},
	{MT_T_CONVB, true, "mamba.conv1d.bias", C_DIM, NONE, SCAN | CONV_BIAS, 0},
	{MT_T_DT_BIAS, true, "mamba.dt_proj.bias", C_DIM, NONE, SCAN, 0},
	{MT_T_A_LOG, true, "mamba.A_log", C_DIM, S_DIM, SCAN, 0},
	{MT_T_SKIP, true, "mamba.D", C_DIM, NONE, SCAN, 0},
	{MT_T_DNORM, true, "mamba.dt_layernorm.weight", Q_RANK, NONE, SCAN | GATED_NORM, 0},
	{MT_T_DQKV, true, "conv.in_proj.weight", C_PROJ_ROWS, HIDDEN, CONV, 0},
	{MT_T_DQKVB, true, "conv.in_proj.bias", C_PROJ_ROWS, NONE, CONV | IN_BIAS, 0},
	{MT_T_CONV, true, "conv.conv.weight", C_DIM, D_WIDTH, CONV, 0},
	{MT_T_CONVB, true, "conv.conv.bias", C_DIM, NONE, CONV | CONV_BIAS, 0},
	{MT_T_O_NORM, true, "self_attn.attn_sub_norm.weight", O_COLS, NONE, SOFTMAX | MT_SUB_NORM, 0},
	{MT_T_O, true, "self_attn.o_proj.weight", HIDDEN, O_COLS, SOFTMAX, 0},
	{MT_T_O, true, "linear_attn.out_proj.weight", HIDDEN, D_VALUE_ROWS, DELTA, 0},
	{MT_T_O, true, "self_attn.o_proj.weight", HIDDEN, D_VALUE_ROWS, KIMI, 0},
	{MT_T_O, true, "mamba.out_proj.weight", HIDDEN, D_VALUE_ROWS, MAMBA | ALONE, 0},
	{MT_T_O, true, "conv.out_proj.weight", HIDDEN, C_DIM, CONV, 0},
	{MT_T_O, true, "mamba.out_proj.weight", HIDDEN, C_DIM, SCAN, 0},
	{MT_T_OB, true, "self_attn.o_proj.bias", HIDDEN, NONE, SOFTMAX | MT_O_BIAS, 0},
	{MT_T_OB, true, "mamba.out_proj.bias", HIDDEN, NONE, MAMBA | ALONE | OUT_BIAS, 0},
	{MT_T_OB, true, "conv.out_proj.bias", HIDDEN, NONE, CONV | OUT_BIAS, 0},
	{MT_T_OB, true, "mamba.out_proj.bias", HIDDEN, NONE, SCAN | OUT_BIAS, 0},
	{MT_T_MAMBA_O, true, "mamba.out_proj.weight", HIDDEN, D_VALUE_ROWS, MAMBA | BESIDE, 0},
	{MT_T_MAMBA_OB, true, "mamba.out_proj.bias", HIDDEN, NONE, MAMBA | BESIDE | OUT_BIAS, 0},
	{MT_T_POST1, true, "post_attention_layernorm.weight", HIDDEN, NONE, MIXER | MT_POST_NORM, MT_NORM_PLAIN},
	{MT_T_NORM2, true, "post_attention_layernorm.weight", HIDDEN, NONE, CHANNEL,
		MT_NO_PRE_NORM | MT_ONE_NORM | MT_NORM_PLAIN},
	{MT_T_NORM2B, true, "post_attention_layernorm.bias", HIDDEN, NONE, CHANNEL | MT_NORM_BIAS,
		MT_NO_PRE_NORM | MT_ONE_NORM},
	{MT_T_GATE, true, "mlp.gate_proj.weight", FFN, HIDDEN, DENSE | GATED, 0},
	{MT_T_UP, false, "mlp.up_proj.weight", FFN, HIDDEN, DENSE, 0},
	{MT_T_GATEB, true, "mlp.gate_proj.bias", FFN, NONE, DENSE | GATED | MT_MLP_BIAS, 0},
	{MT_T_UPB, false, "mlp.up_proj.bias", FFN, NONE, DENSE | MT_MLP_BIAS, 0},
	{MT_T_SLOPE_P, true, "mlp.act_fn.alpha_p", ONE, NONE, DENSE | XIELU, 0},
	{MT_T_SLOPE_N, true, "mlp.act_fn.alpha_n", ONE, NONE, DENSE | XIELU, 0},
	{MT_T_XIELU_BETA, true, "mlp.act_fn.beta", NONE, NONE, DENSE | XIELU, 0},
	{MT_T_XIELU_EPS, true, "mlp.act_fn.eps", NONE, NONE, DENSE | XIELU, 0},
	{MT_T_DOWN_NORM, true, "mlp.ffn_sub_norm.weight", FFN, NONE, DENSE | MT_SUB_NORM, 0},
	{MT_T_DOWN, true, "mlp.down_proj.weight", HIDDEN, FFN, DENSE, 0},
	{MT_T_DOWNB, true, "mlp.down_proj.bias", HIDDEN, NONE, DENSE | MT_MLP_BIAS, 0},
	{MT_T_ROUTER, true, "mlp.gate.weight", EXPERTS, HIDDEN, MOE, 0},
	{MT_T_ROUTERB, true, "mlp.gate.bias", EXPERTS, NONE, MOE | EXPERTS_ARE(MT_ROUTER_BIAS), 0},
	{MT_T_CORRECTION, true, "mlp.gate.e_score_correction_bias", EXPERTS, NONE, MOE | EXPERTS_ARE(MT_CORRECTION), 0},
	{MT_T_SHARED_GATE, true, "mlp.shared_expert_gate.weight", ONE, HIDDEN, SHARED | EXPERTS_ARE(MT_SHARED_GATE), 0},
	{MT_T_SGATE, true, "mlp.shared_experts.gate_proj.weight", SHARED_FFN, HIDDEN, SHARED | GATED, 0},
	{MT_T_SUP, false, "mlp.shared_experts.up_proj.weight", SHARED_FFN, HIDDEN, SHARED, 0},
	{MT_T_SDOWN, true, "mlp.shared_experts.down_proj.weight", HIDDEN, SHARED_FFN, SHARED, 0},
	{MT_T_ROUTER_NORM, true, "router.scale", HIDDEN, NONE, MOE | EXPERTS_ARE(MT_OWN_NORMS), 0},
	{MT_T_EXPERT_SCALE, true, "router.per_expert_scale", EXPERTS, NONE, MOE | EXPERTS_ARE(MT_OWN_NORMS), 0},
	{MT_T_SHARED_POST, true, "post_feedforward_layernorm_1.weight", HIDDEN, NONE, MOE | EXPERTS_ARE(MT_OWN_NORMS), 0},
	{MT_T_XNORM, true, "pre_feedforward_layernorm_2.weight", HIDDEN, NONE, MOE | EXPERTS_ARE(MT_OWN_NORMS), 0},
	{MT_T_XPOST, true, "post_feedforward_layernorm_2.weight", HIDDEN, NONE, MOE | EXPERTS_ARE(MT_OWN_NORMS), 0},
	{MT_T_POST2, true, "post_feedforward_layernorm.weight", HIDDEN, NONE, CHANNEL | MT_POST_NORM, MT_NORM_PLAIN},
	{MT_T_PLE_GATE, true, "per_layer_input_gate.weight", PLE_DIM, HIDDEN, PLE, 0},
	{MT_T_PLE_OUT, true, "per_layer_projection.weight", HIDDEN, PLE_DIM, PLE, 0},
	{MT_T_PLE_POST, true, "post_per_layer_input_norm.weight", HIDDEN, NONE, PLE, 0},
	{MT_T_SCALAR, true, "layer_scalar", ONE, NONE, MT_LAYER_SCALAR, 0},
};
static const struct entry expert_tensors[] = {
	{MT_T_XGATE, true, "mlp.experts.*.gate_proj.weight", EXPERT_FFN, HIDDEN, MOE | GATED, 0},
	{MT_T_XUP, false, "mlp.experts.*.up_proj.weight", EXPERT_FFN, HIDDEN, MOE, 0},
	{MT_T_XGATEB, true, "mlp.experts.*.gate_proj.bias", EXPERT_FFN, NONE, MOE | GATED | EXPERTS_ARE(MT_EXPERT_BIAS), 0},
	{MT_T_XUPB, false, "mlp.experts.*.up_proj.bias", EXPERT_FFN, NONE, MOE | EXPERTS_ARE(MT_EXPERT_BIAS), 0},
	{MT_T_XDOWN, true, "mlp.experts.*.down_proj.weight", HIDDEN, EXPERT_FFN, MOE, 0},
	{MT_T_XDOWNB, true, "mlp.experts.*.down_proj.bias", HIDDEN, NONE, MOE | EXPERTS_ARE(MT_EXPERT_BIAS), 0},
};
static const struct entry first_tensors[] = {
	{MT_T_EMBED, true, "model.embed_tokens.weight", VOCAB, HIDDEN, 0, 0},
	{MT_T_POSITIONS, true, "model.embed_positions.weight", POSITIONS, HIDDEN, MT_POSITIONS, 0},
};
static const struct entry last_tensors[] = {
	{MT_T_FNORM, true, "model.norm.weight", HIDDEN, NONE, 0, MT_NORM_PLAIN},
	{MT_T_FNORMB, true, "model.norm.bias", HIDDEN, NONE, MT_NORM_BIAS, 0},
	{MT_T_HEAD, true, "lm_head.weight", VOCAB, HIDDEN, 0, MT_TIED},
	{MT_T_HEADB, true, "lm_head.bias", VOCAB, NONE, MT_HEAD_BIAS, 0},
	{MT_T_ALTUP_OUT, true, "model.altup_unembed_projections.*.weight", HIDDEN, HIDDEN, ALTUP, 0},
};
static const struct entry ple_tensors[] = {
	{MT_T_PLE_MODEL, true, "model.per_layer_model_projection.weight", PLE_ALL, HIDDEN, 0, 0},
	{MT_T_PLE_NORM, true, "model.per_layer_projection_norm.weight", PLE_DIM, NONE, 0, 0},
	{MT_T_ALTUP_IN, true, "model.altup_projections.*.weight", HIDDEN, HIDDEN, ALTUP, 0},
	{MT_T_PLE_TABLE, true, "model.embed_tokens_per_layer.weight", PLE_VOCAB, PLE_ALL, 0, 0},
};
enum {
	BLOCK_TENSORS = sizeof block_tensors / sizeof *block_tensors,
	EXPERT_TENSORS = sizeof expert_tensors / sizeof *expert_tensors,
};

/* Where a family's files differ: another name; or no tensor of that role, because the one before it is both */
static const struct names {
	const char *blocks;  /* what a block is called, before its number; NULL: model.layers */
	enum mt_names base;  /* roles that are not below have the names of this row */
	bool renamed;        /* the classes of transformers 5 have other names than released files: */
	enum mt_names now;   /* those of this row */
	bool by_group;       /* in files q | k | v is cut by kv head: its query heads, its k, its v */
	uint32_t shards;     /* in files q | v | k is cut into so many parts */
	bool matrix;         /* files have a row of corrections, not a vector */
	bool thirds;         /* files have thirds of the convolution's channels, not those of q, of k and of v */
	const char *experts; /* the module of all experts in transformers 5; NULL: mlp.experts. */
	const char *module;  /* the one module of each block, instead of self_attn, mamba and mlp; NULL: these */
	struct {
		enum mt_role_tensor role; /* 0: the end */
		const char *name;         /* NULL: none */
	} other[20];
} names[MT_NAMES] = {
#define NAMES(name, ...) [MT_NAMES_##name] = {__VA_ARGS__},
#include "names-table.h"
#undef NAMES
};

/* Of a role that gated DeltaNet and attention both have, the other name may be that of one of them. */
static bool is_meant(const char *other, const struct entry *e)
{
	return !other || !strncmp(other, "linear_attn.", strlen("linear_attn.")) == !!(e->needs & DELTA);
}

static const char *name_of(const struct mt_geometry *geo, const struct entry *e)
{
	if (e->needs & (CONV | MAMBA | SCAN)) return e->name; /* attention's tensors have the same roles */
	for (enum mt_names row = geo->names; row != MT_NAMES_LLAMA; row = names[row].base)
		for (size_t i = 0; i < sizeof names->other / sizeof *names->other && names[row].other[i].role; i++)
			if (names[row].other[i].role == e->role && is_meant(names[row].other[i].name, e))
				return names[row].other[i].name;
	return e->name;
}

const char *head_tensor_name(const struct mt_geometry *geo) { return name_of(geo, &last_tensors[2]); }

static bool gated(const struct mt_layer *k) { return k->form < MT_RELU2; }

static const uint64_t mixers[] = {
	[MT_ATTENTION] = MIXER | SOFTMAX | ATTENTION,
	[MT_MLA] = MIXER | SOFTMAX | MLA,
	[MT_DELTA] = MIXER | DELTA,
	[MT_CONV] = MIXER | CONV,
	[MT_MAMBA] = MIXER | MAMBA,
	[MT_NO_MIXER] = 0,
	[MT_MAMBA_1] = MIXER | SCAN,
};

/* Has a model with this geometry this tensor? k: the block's kind; NULL for the other units */
static bool has(const struct mt_geometry *geo, const struct mt_layer *k, const struct entry *e)
{
	uint64_t is = (geo->flags & ~(MTP | IN_NORM | SCAN | ALTUP)) | (geo->altup ? ALTUP : 0);
	if (k) {
		is |= (k->experts ? MOE | CHANNEL : k->ffn ? DENSE | CHANNEL : 0) | EXPERTS_ARE(k->expert_flags);
		is |= (k->experts && k->shared_ffn ? SHARED : 0) | (gated(k) ? GATED : 0);
		is |= (k->form == MT_XIELU ? XIELU : 0) | (k->k_is_v || k->kv_kind ? 0 : OWN_V) | (k->kv_kind ? 0 : OWN_KV);
		is |= (geo->ple_dim ? PLE : 0) | (k->mtp ? MTP : 0);
		is |= (k->gate_rank ? MIXER | KIMI : mixers[k->mixer]) | (k->mamba_flags & MT_CONV_BIAS ? CONV_BIAS : 0);
		is |= k->mamba_flags & MT_BESIDE_ATTENTION ? mixers[MT_ATTENTION] | BESIDE : ALONE;
		bool normed = k->mixer == MT_MAMBA_1 ? k->mamba_flags & MT_NORM_WEIGHTS : !(k->mamba_flags & MT_GATE_ALONE);
		is |= (normed ? GATED_NORM : 0) | (k->mamba_flags & MT_IN_BIAS ? IN_BIAS : 0);
		is |= k->mamba_flags & MT_OUT_BIAS ? OUT_BIAS : 0;
		is |= k->q_rank ? Q_LATENT : 0;
		is |= (k->parts & MT_IN_NORM ? IN_NORM : 0) | (k->parts & MT_OWN_O_BIAS ? MT_O_BIAS : 0);
		is |= k->output_gate == MT_GATE_APART ? OWN_GATE : 0;
		is &= k->mamba_flags & MT_PRE_NORM ? ~(uint64_t)(MT_NO_PRE_NORM | MT_POST_NORM) : ~(uint64_t)0;
	}
	return (is & e->needs) == e->needs && !(is & e->without);
}

static uint64_t size_of(const struct mt_geometry *geo, const struct mt_layer *k, enum size size)
{
	bool row = geo->flags & MT_QK_NORM_ROW;
	switch (size) {
	case NONE: return 0;
	case ONE: return 1;
	case HIDDEN: return geo->hidden;
	case HIDDEN_2: return 2ull * geo->hidden;
	case VOCAB: return geo->vocab;
	case POSITIONS: return (uint64_t)geo->max_position + geo->position_offset;
	case HEADS: return k->heads;
	case Q_ROWS: return (uint64_t)k->heads * k->head_dim;
	case Q_PROJ_ROWS: return (k->output_gate == MT_GATE_IN_Q ? 2 : 1) * size_of(geo, k, Q_ROWS);
	case KV_ROWS: return (uint64_t)k->kv_heads * k->head_dim;
	case Q_NORM: return row ? size_of(geo, k, Q_ROWS) : k->head_dim;
	case K_NORM: return row ? size_of(geo, k, KV_ROWS) : k->head_dim;
	case O_COLS: return (uint64_t)k->heads * (k->mixer == MT_MLA ? k->v_dim : k->head_dim);
	case Q_RANK: return k->q_rank;
	case KV_RANK: return k->kv_rank;
	case KV_DOWN_ROWS: return (uint64_t)k->kv_rank + k->rope_dim;
	case KV_UP_ROWS: return (uint64_t)k->heads * (k->head_dim - k->rope_dim + k->v_dim);
	case D_QKV_ROWS: return 2ull * k->key_heads * k->key_dim + size_of(geo, k, D_VALUE_ROWS);
	case D_KEY_ROWS: return (uint64_t)k->key_heads * k->key_dim;
	case D_VALUE_ROWS: return (uint64_t)k->value_heads * k->value_dim;
	case D_HEADS: return k->value_heads;
	case D_DIM: return k->value_dim;
	case D_WIDTH: return k->conv_width;
	case GATE_RANK: return k->gate_rank;
	case C_DIM: return k->conv_dim;
	case C_PROJ_ROWS: return 3ull * k->conv_dim;
	case M_PROJ_ROWS: return size_of(geo, k, D_QKV_ROWS) + size_of(geo, k, D_VALUE_ROWS) + k->value_heads;
	case S_DIM: return k->key_dim;
	case S_PROJ_ROWS: return 2ull * k->conv_dim;
	case S_PART_ROWS: return (uint64_t)k->q_rank + 2ull * k->key_dim;
	case FFN: return k->ffn;
	case EXPERTS: return k->experts;
	case SHARED_FFN: return k->shared_ffn;
	case EXPERT_FFN: return k->expert_ffn;
	case PLE_DIM: return geo->ple_dim;
	case PLE_ALL: return (uint64_t)geo->layers * geo->ple_dim;
	case PLE_VOCAB: return geo->ple_vocab;
	case ALTUP_COPIES: return geo->altup;
	case ALTUP_PAIRS: return (uint64_t)geo->altup * geo->altup;
	case LAUREL_RANK: return geo->laurel_rank;
	}
	return 0;
}

struct shape {
	uint64_t rows, cols;
};

/* Is it a matrix that is (in, out)? */
static bool is_transposed(const struct mt_geometry *geo, const struct mt_layer *k, const struct entry *e)
{
	bool experts = e->rows == EXPERT_FFN || e->cols == EXPERT_FFN;
	return k && e->cols != NONE && (experts ? k->expert_flags & MT_TRANSPOSED : geo->flags & MT_IN_OUT);
}

static bool is_conv(uint32_t role) { return role == MT_T_CONV || role == MT_T_CONVK || role == MT_T_CONVV; }

static struct shape shape_of(const struct mt_geometry *geo, const struct mt_layer *k, const struct entry *e)
{
	uint64_t rows = size_of(geo, k, e->rows), cols = size_of(geo, k, e->cols);
	if (e->role == MT_T_CORRECTION && names[geo->names].matrix) return (struct shape){1, rows};
	if (is_conv(e->role) && names[geo->names].thirds) {
		uint64_t all = size_of(geo, k, D_QKV_ROWS), third = (all + 2) / 3;
		rows = e->role == MT_T_CONVV ? all - 2 * third : third;
	}
	return is_transposed(geo, k, e) ? (struct shape){cols, rows} : (struct shape){rows, cols};
}

/* What names in block i begin with */
static void put_prefix(const struct mt_geometry *geo, uint32_t i, char prefix[40])
{
	const char *blocks = names[geo->names].blocks;
	if (!mtp_prefix(geo, i, prefix, 40)) snprintf(prefix, 40, "%s.%u.", blocks ? blocks : "model.layers", i);
}

/* name with the expert's number in place of its *, and with `module` (NULL: its own) before its first point */
static void put_name(struct mt_tensor *t, const char *prefix, const char *module, const char *name, uint32_t expert)
{
	if (module) name = strchr(name, '.') + 1;
	else module = "";
	const char *star = strchr(name, '*');
	if (!star) snprintf(t->name, sizeof t->name, "%s%s%s", prefix, module, name);
	else snprintf(t->name, sizeof t->name, "%s%s%.*s%u%s", prefix, module, (int)(star - name), name, expert, star + 1);
}

/* Add a size to a tensor's shape, which is empty or that of the tensor before. A tensor of all experts has a dimension
 * more: a matrix of their biases, or a third one, before `shape`. */
static void extend(struct mt_tensor *t, struct shape size, uint32_t experts, bool transposed)
{
	t->ndim = (size.cols ? 2 : size.rows ? 1 : 0) + (experts ? 1 : 0);
	t->experts = experts;
	if (experts && !size.cols) {
		t->shape[0] = experts;
		t->shape[1] += size.rows;
	} else if (transposed && t->n) {
		t->shape[1] += size.cols;
	} else {
		t->shape[0] += size.rows ? size.rows : 1;
		t->shape[1] = size.cols ? size.cols : 1;
	}
}

static int count(struct mt_tensor *t)
{
	if (__builtin_mul_overflow(t->shape[0], t->shape[1], &t->n) ||
		(t->ndim == 3 && t->experts && __builtin_mul_overflow(t->n, t->experts, &t->n)) || t->n == 0 ||
		t->n > UNIT_ELEMS)
		return mt_fail(MT_EX_CONFIG, "tensor '%s' of %llu x %llu is out of range", t->name,
			(unsigned long long)t->shape[0], (unsigned long long)t->shape[1]);
	return 0;
}

/* Where the next tensor stands */
struct place {
	uint32_t unit;
	const struct mt_layer *k; /* the block's kind; NULL for the other units */
	const char *prefix;
	uint32_t expert, experts; /* as in struct mt_tensor */
	uint64_t at;
};

/* Append a tensor. A tensor without a name continues the one before: its rows are added there. */
static int add_tensor(struct mt_layout *l, struct place *p, const struct entry *e, bool slab)
{
	struct mt_unit *u = &l->units[p->unit];
	const char *name = name_of(&l->geo, e);
	struct mt_tensor *t = &l->tensors[l->n_tensors - (name ? 0 : 1)];
	uint64_t before = name ? 0 : t->n;
	if (name) {
		if (slab) p->at = round_up(p->at, MT_GROUP);
		l->n_tensors++;
		const char *module = p->k && name == e->name ? names[l->geo.names].module : NULL;
		char other[40] = "";
		if (*name == '<') put_prefix(&l->geo, p->unit - 2, other);
		if (e->role == MT_T_MTP_FINAL || *name == '<' || *name == '/')
			put_name(t, other, NULL, name + (*name == '<' || *name == '/'), 0);
		else if (!mtp_name(&l->geo, e->role, t->name)) put_name(t, p->prefix, module, name, p->expert);
		t->role = e->role;
		t->unit = p->unit;
		t->expert = p->expert;
		t->off = p->at;
	}
	extend(t, shape_of(&l->geo, p->k, e), p->experts, is_transposed(&l->geo, p->k, e));
	if (is_conv(t->role)) t->ndim = 3; /* in files its middle one is 1 */
	if (t->role == MT_T_A_LOG && p->k->gate_rank) t->ndim = 4;
	t->decay = t->ndim >= 2 && t->role != MT_T_CORRECTION;
	bool router = t->role == MT_T_ROUTER || t->role == MT_T_CORRECTION;
	t->exact = p->k &&
		((router && p->k->expert_flags & (MT_CORRECTION | MT_EXACT_ROUTER)) ||
			(t->role == MT_T_DT_BIAS && p->k->gate_rank));
	int rc = count(t);
	if (rc) return rc;
	p->at += t->n - before; /* both at most 2^34 times a few */
	u->params += t->n - before;
	return 0;
}

/* Of what makes streams, and what makes one of them again, there is a tensor for each but the first. */
static uint32_t copies(const struct mt_layout *l, const struct place *p, const struct entry *e)
{
	if (!has(&l->geo, p->k, e)) return 0;
	return !p->k && e->needs & ALTUP ? l->geo.altup - 1 : 1;
}

static int add_tensors(struct mt_layout *l, struct place *p, const struct entry *entry, size_t n)
{
	int rc = 0;
	for (size_t i = 0; i < n && rc == 0; i++)
		for (uint32_t c = 0; c < copies(l, p, &entry[i]) && rc == 0; c++) {
			if (!p->k) p->expert = c;
			rc = add_tensor(l, p, &entry[i], entry[i].slab || !has(&l->geo, p->k, &entry[i - 1]));
		}
	return rc;
}

/* Elements from an expert's gate or down to the next one's */
static uint64_t expert_stride(const struct mt_geometry *geo, const struct mt_layer *k, enum mt_role_tensor role)
{
	uint64_t each = (uint64_t)k->expert_ffn * geo->hidden, wide = gated(k) ? 2 * each : each;
	if (k->expert_flags & MT_PACKED) return role == MT_T_XDOWN ? each : wide;
	return round_up(wide, MT_GROUP) + round_up(each, MT_GROUP);
}

/* The tensor of one expert, or with `experts` of all, in a form of files that is not the family's own */
static int add_form(struct mt_layout *l, const struct place *p, uint32_t form, struct mt_tensor t, const char *leaf)
{
	const char *module = names[l->geo.names].experts ? names[l->geo.names].experts : "mlp.experts.";
	uint64_t rows = t.shape[0];
	if (form == MT_FORM_SINGLE) snprintf(t.name, sizeof t.name, "%s%s%u.%s.weight", p->prefix, module, t.expert, leaf);
	else snprintf(t.name, sizeof t.name, "%s%s%s", p->prefix, module, leaf);
	t.unit = p->unit;
	t.decay = 1;
	t.ndim = t.experts ? 3 : 2;
	if ((t.transposed = form == MT_FORM_TRANSPOSED)) t.shape[0] = t.shape[1], t.shape[1] = rows;
	l->tensors[l->n_tensors++] = t;
	return count(&l->tensors[l->n_tensors - 1]);
}

/* In place of the tensors of experts from `first` on, those of another form */
static int add_forms(struct mt_layout *l, const struct place *p, uint32_t first, uint32_t form)
{
	uint64_t hidden = l->geo.hidden, ffn = p->k->expert_ffn, gate = l->tensors[first].off, down = gate;
	uint32_t all = p->k->experts;
	int rc = 0;
	for (uint32_t i = l->n_tensors; i-- > first;)
		if (l->tensors[i].role == MT_T_XDOWN) down = l->tensors[i].off;
	bool two = gated(p->k);
	struct mt_tensor x = {.role = two ? MT_T_XGATE : MT_T_XUP,
						 .shape = {(two ? 2 : 1) * ffn, hidden},
						 .off = gate,
						 .experts = all},
					 y = {.role = MT_T_XDOWN, .shape = {hidden, ffn}, .off = down, .experts = all};
	memset(&l->tensors[first], 0, (l->n_tensors - first) * sizeof *l->tensors);
	l->n_tensors = first;
	if (form != MT_FORM_SINGLE)
		return (rc = add_form(l, p, form, x, two ? "gate_up_proj" : "up_proj")) ? rc
																				: add_form(l, p, form, y, "down_proj");
	x.experts = y.experts = 0;
	x.shape[0] = ffn;
	for (; x.expert < all && rc == 0; y.expert = ++x.expert) {
		x.off = gate + x.expert * expert_stride(&l->geo, p->k, MT_T_XGATE);
		y.off = down + y.expert * expert_stride(&l->geo, p->k, MT_T_XDOWN);
		x.role = MT_T_XGATE;
		if (two) rc = add_form(l, p, form, x, "gate_proj");
		x.role = MT_T_XUP;
		if (two) x.off += ffn * hidden;
		if (rc == 0) rc = add_form(l, p, form, x, "up_proj");
		if (rc == 0) rc = add_form(l, p, form, y, "down_proj");
	}
	return rc;
}

/* The tensors of all experts, which come last in their unit: each expert's are one range of the store */
static int add_experts(struct mt_layout *l, struct place *p)
{
	uint32_t packed = p->k->expert_flags & MT_PACKED, first = l->n_tensors;
	int rc = 0;
	p->experts = packed ? p->k->experts : 0;
	for (p->expert = 0; p->expert < (packed ? 1 : p->k->experts) && rc == 0; p->expert++)
		rc = add_tensors(l, p, expert_tensors, EXPERT_TENSORS);
	uint32_t form = l->form & ~(uint32_t)MT_FORM_NEW;
	return rc == 0 && form ? add_forms(l, p, first, form) : rc;
}

/* Append a unit's tensors to the tables. k: the block's kind; NULL for the other units */
static int add_unit(struct mt_layout *l, uint32_t unit, const struct mt_layer *k, const struct entry *entry, size_t n,
	const char *prefix)
{
	struct mt_unit *u = &l->units[unit];
	struct place p = {.unit = unit, .k = k, .prefix = prefix};
	u->first_tensor = l->n_tensors;
	int rc = add_tensors(l, &p, entry, n);
	if (rc == 0 && k && k->experts) rc = add_experts(l, &p);
	if (rc) return rc;
	u->tensors = l->n_tensors - u->first_tensor;
	/* a tied model whose norms have no weight has no tensor in its last unit, which is then a gap */
	u->elems = round_up(p.at ? p.at : 1, MT_GROUP);
	if (u->elems > UNIT_ELEMS)
		return mt_fail(MT_EX_CONFIG, "unit %u of %llu elements is larger than 2^34", unit,
			(unsigned long long)u->elems);
	l->params += u->params; /* at most 1027 units of 2^34 */
	return 0;
}

/* Of a tensor of all experts: each expert's matrix is one piece, or if it is transposed each element */
static void expert_piece(const struct mt_geometry *geo, const struct mt_tensor *t, uint64_t from, uint64_t *at,
	uint64_t *n)
{
	uint64_t each = t->shape[0] * t->shape[1], in = from % each;
	uint64_t base = from / each * expert_stride(geo, mt_layer_of(geo, t->unit - 1), t->role);
	*at = base + (t->transposed ? in % t->shape[1] * t->shape[0] + in / t->shape[1] : in);
	*n = t->transposed ? 1 : each - in;
}

/* In some files a matrix's rows are cut by head, of which each has rows of several parts. */
struct cut {
	uint64_t heads, parts, rows[5]; /* of a head */
	uint64_t at[5];                 /* the part's number in the store, where all heads' rows of a part come together */
};

static struct cut cut_of(const struct mt_geometry *geo, const struct mt_tensor *t)
{
	if (t->unit == 0 || t->unit > geo->layers) return (struct cut){0};
	const struct mt_layer *k = mt_layer_of(geo, t->unit - 1);
	bool q = t->role == MT_T_Q || t->role == MT_T_QB;
	/* for each kv head: the rows of its query heads, of its k, of its v */
	if (q && names[geo->names].by_group)
		return (
			struct cut){k->kv_heads, 3, {k->heads / k->kv_heads * k->head_dim, k->head_dim, k->head_dim}, {0, 1, 2}};
	uint64_t shard = names[geo->names].shards ? geo->hidden / names[geo->names].shards : 0;
	if (q && shard) return (struct cut){names[geo->names].shards, 3, {shard, shard, shard}, {0, 2, 1}};
	/* for each head: q, gate */
	if (q && k->output_gate == MT_GATE_IN_Q) return (struct cut){k->heads, 2, {k->head_dim, k->head_dim}, {1, 0}};
	uint64_t keys = (uint64_t)k->key_heads * k->key_dim, all = (uint64_t)k->value_heads * k->value_dim;
	/* z, x, B, C, dt; and x, B, C */
	if (k->mixer == MT_MAMBA && (t->role == MT_T_DQKV || t->role == MT_T_DQKVB))
		return (struct cut){1, 5, {all, all, keys, keys, k->value_heads}, {3, 2, 1, 0, 4}};
	if (k->mixer == MT_MAMBA && (t->role == MT_T_CONV || t->role == MT_T_CONVB))
		return (struct cut){1, 3, {all, keys, keys}, {2, 1, 0}};
	if (geo->names != MT_NAMES_QWEN_NEXT || k->mixer != MT_DELTA) return (struct cut){0};
	/* for each key head: q, k, v, z; and b, a */
	uint64_t heads = k->value_heads / k->key_heads, values = heads * k->value_dim;
	if (t->role == MT_T_DQKV)
		return (struct cut){k->key_heads, 4, {k->key_dim, k->key_dim, values, values}, {0, 1, 2, 3}};
	if (t->role == MT_T_DB) return (struct cut){k->key_heads, 2, {heads, heads}, {0, 1}};
	return (struct cut){0};
}

void mt_tensor_piece(const struct mt_geometry *geo, const struct mt_tensor *t, uint64_t from, uint64_t *at, uint64_t *n)
{
	uint64_t head = 0, before = 0, part = 0;
	*at = from;
	*n = t->n - from;
	/* first: of transposed experts, each element is a piece */
	if (t->ndim == 3 && !is_conv(t->role)) return expert_piece(geo, t, from, at, n);
	const struct cut c = cut_of(geo, t);
	if (!c.heads) return;
	for (uint64_t i = 0; i < c.parts; i++) head += c.rows[i] * t->shape[1];
	uint64_t in = from % head;
	for (; in >= c.rows[part] * t->shape[1]; part++) in -= c.rows[part] * t->shape[1];
	for (uint64_t i = 0; i < c.parts; i++)
		if (c.at[i] < c.at[part]) before += c.rows[i] * t->shape[1];
	uint64_t elems = c.rows[part] * t->shape[1];
	*at = c.heads * before + from / head * elems + in;
	*n = elems - in;
}

/* ---- arrays */

static uint64_t place(uint64_t *at, uint64_t bytes)
{
	uint64_t off = round_up(*at, bytes >= BIG ? BIG_ALIGN : SMALL_ALIGN);
	*at = off + bytes;
	return off;
}

static struct mt_part exact_part(const struct mt_unit *u, const struct mt_tensor *tensor)
{
	struct mt_part p = {0, 0};
	for (const struct mt_tensor *t = tensor; t < tensor + u->tensors; t++)
		if (t->exact) p = (struct mt_part){p.end ? p.first : t->off, t->off + t->n};
	return p;
}

/* Places lo of the exact tensors alone. Returns where element 0 of lo would be: behind the beginning of w */
static uint64_t place_exact(const struct mt_layout *l, const struct mt_unit *u, uint64_t *at)
{
	struct mt_part p = exact_part(u, l->tensors + u->first_tensor);
	return p.first < p.end ? place(at, (p.end - p.first) * 2) - p.first * 2 : 0;
}

static bool has_lo(const struct mt_layout *l) { return l->dtype == MT_BF16 && l->state != MT_NONE; }

/* A unit without tensors is trained: its gap is updated as others are. */
static bool is_trained(const struct mt_layout *l, const struct mt_unit *u)
{
	bool trained = !u->tensors;
	for (uint32_t i = 0; i < u->tensors; i++) trained |= !l->tensors[u->first_tensor + i].frozen;
	return trained && l->state != MT_NONE;
}

static bool on_tier(const struct mt_layout *l, uint32_t unit)
{
	return l->tier.tile_elems && is_trained(l, &l->units[unit]) && l->units[unit].elems &&
		mt_turn_of_unit(&l->geo, unit) >= l->tier.first;
}

/* Compute reads lo of exact tensors, so that it stays in memory. */
static bool lo_on_tier(const struct mt_layout *l, uint32_t unit)
{
	const struct mt_unit *u = &l->units[unit];
	struct mt_part exact = exact_part(u, l->tensors + u->first_tensor);
	return on_tier(l, unit) && exact.first == exact.end;
}

static void place_moments(struct mt_layout *l, struct mt_unit *u, uint64_t *at)
{
	u->m = place(at, mt_moment_bytes(l->state, u->elems));
	u->v = mt_state_arrays(l->optim) == 2 ? place(at, mt_moment_bytes(l->state, u->elems)) : 0;
}

/* Arrays of a unit, in the order w | lo | m | v | g (of tied embeddings: embed gradient, head gradient). At most 1027
 * units of 20 x 2^34 bytes. */
static void place_unit(struct mt_layout *l, uint32_t unit, uint64_t *at)
{
	struct mt_unit *u = &l->units[unit];
	bool trained = is_trained(l, u);
	u->lo = u->m = u->v = u->g[0] = u->g[1] = 0;
	u->first_tile = u->tiles = 0;
	u->w = place(at, u->elems * (l->dtype == MT_BF16 ? 2 : 4));
	if (has_lo(l) && trained && !lo_on_tier(l, unit)) u->lo = place(at, u->elems * 2);
	if (l->dtype == MT_BF16 && !trained) u->lo = place_exact(l, u, at);
	if (!trained) return;
	if (!on_tier(l, unit)) place_moments(l, u, at);
	if (l->grad == MT_NONE) return;
	uint64_t bytes = u->elems * mt_dtype_bytes(l->grad);
	u->g[0] = place(at, bytes);
	if (unit == 0 && l->geo.flags & MT_TIED) u->g[1] = place(at, bytes);
}

/* Tiles of the units on the tier, in the order of a pass */
static void count_tiles(struct mt_layout *l)
{
	struct mt_layout_tier *t = &l->tier;
	for (uint32_t i = 0; i < l->n_units; i++) {
		uint32_t unit = mt_unit_of_turn(&l->geo, t->order == MT_FORWARD_ORDER ? i : l->n_units - 1 - i);
		struct mt_unit *u = &l->units[unit];
		if (!on_tier(l, unit)) continue;
		u->first_tile = t->tiles;
		u->tiles = (uint32_t)((u->elems + t->tile_elems - 1) / t->tile_elems);
		t->tiles += u->tiles;
		t->params += u->params;
		for (uint64_t at = 0; at < u->elems; at += t->tile_elems) {
			uint64_t n = u->elems - at < t->tile_elems ? u->elems - at : t->tile_elems;
			struct mt_tile tile = tile_shape(lo_on_tier(l, unit) && has_lo(l), l->state, mt_state_arrays(l->optim), n);
			t->bytes += MT_TILE_HEADER + tile.bytes;
			if (tile.bytes > t->slot_bytes) t->slot_bytes = tile.bytes;
		}
	}
	if (t->slots > t->tiles) t->slots = t->tiles;
}

/* The store region's arrays and, behind them, slots; what the tier has lies behind the region. */
static void place_all(struct mt_layout *l)
{
	struct mt_layout_tier *t = &l->tier;
	uint64_t at = round_up(sizeof(struct mt_header), SMALL_ALIGN);
	for (uint32_t unit = 0; unit < l->n_units; unit++) place_unit(l, unit, &at);
	if (t->tile_elems) {
		count_tiles(l);
		if (t->slot_bytes >= BIG) t->slot_bytes = round_up(t->slot_bytes, BIG_ALIGN);
		t->off_slots = place(&at, t->slots * t->slot_bytes);
	}
	l->store_bytes = at = round_up(at, SMALL_ALIGN);
	for (uint32_t unit = 0; unit < l->n_units; unit++) {
		if (!on_tier(l, unit)) continue;
		if (has_lo(l) && lo_on_tier(l, unit)) l->units[unit].lo = place(&at, l->units[unit].elems * 2);
		place_moments(l, &l->units[unit], &at);
	}
	t->end = round_up(at, SMALL_ALIGN);
}

static int fill(struct mt_layout *l)
{
	uint32_t layers = l->geo.layers;
	int rc = add_unit(l, 0, NULL, first_tensors, sizeof first_tensors / sizeof *first_tensors, "");
	for (uint32_t i = 0; i < layers && rc == 0; i++) {
		char prefix[40];
		put_prefix(&l->geo, i, prefix);
		rc = add_unit(l, i + 1, mt_layer_of(&l->geo, i), block_tensors, BLOCK_TENSORS, prefix);
	}
	if (rc == 0) rc = add_unit(l, layers + 1, NULL, last_tensors, sizeof last_tensors / sizeof *last_tensors, "");
	if (rc == 0 && l->geo.ple_dim)
		rc = add_unit(l, layers + 2, NULL, ple_tensors, sizeof ple_tensors / sizeof *ple_tensors, "");
	if (rc) return rc;
	place_all(l);
	return 0;
}

static int make(struct mt_layout *l, const struct mt_geometry *geo, uint32_t form, enum mt_dtype dtype,
	enum mt_dtype grad, enum mt_dtype state, enum mt_optim optim)
{
	*l = (struct mt_layout){.form = form};
	if (geo->layers < 1 || geo->layers > 1024) return mt_fail(MT_EX_CONFIG, "%u layers are out of range", geo->layers);
	if (geo->names >= MT_NAMES) return mt_fail(MT_EX_CONFIG, "naming %u is out of range", geo->names);
	size_t tensors = (size_t)geo->layers * BLOCK_TENSORS + 9 + 2 * geo->altup; /* at most */
	for (uint32_t i = 0; i < geo->layers; i++) {
		if (geo->kind_of[i] >= MT_KINDS) return mt_fail(MT_EX_CONFIG, "layer %u is of no kind", i);
		const struct mt_layer *k = mt_layer_of(geo, i);
		if (k->experts > MT_EXPERTS || (k->experts && (!k->experts_per_token || k->experts_per_token > k->experts)))
			return mt_fail(MT_EX_CONFIG, "%u of %u experts are out of range", k->experts_per_token, k->experts);
		tensors += (size_t)k->experts * EXPERT_TENSORS;
	}
	l->geo = *geo;
	l->dtype = dtype;
	l->grad = grad;
	l->state = state;
	l->optim = optim;
	l->n_units = geo->layers + (geo->ple_dim ? 3 : 2);
	/* aligned_alloc: struct mt_unit begins on a cache line */
	size_t unit_bytes = sizeof *l->units * l->n_units;
	l->units = aligned_alloc(_Alignof(struct mt_unit), unit_bytes);
	l->tensors = calloc(tensors, sizeof *l->tensors);
	if (!l->units || !l->tensors) {
		mt_layout_release(l);
		return mt_fail(MT_EX_NOMEM, "no memory for the unit and tensor tables");
	}
	memset(l->units, 0, unit_bytes);
	int rc = fill(l);
	if (rc) mt_layout_release(l);
	return rc;
}

int mt_layout_make(struct mt_layout *l, const struct mt_geometry *geo, enum mt_dtype dtype, enum mt_dtype grad,
	enum mt_dtype state, enum mt_optim optim)
{
	return make(l, geo, 0, dtype, grad, state, optim);
}

/* ---- what is trained */

/* The next pattern of a list; false: its end */
static bool next_pattern(const char **list, char pattern[MT_PATTERNS])
{
	size_t n = strcspn(*list, ",");
	if (!**list) return false;
	snprintf(pattern, MT_PATTERNS, "%.*s", (int)n, *list);
	*list += n + ((*list)[n] == ',');
	return true;
}

static bool is_listed(const char *list, const char *name)
{
	char pattern[MT_PATTERNS];
	while (next_pattern(&list, pattern))
		if (!fnmatch(pattern, name, 0)) return true;
	return false;
}

static int check_patterns(const struct mt_layout *l, const char *option, const char *list)
{
	char pattern[MT_PATTERNS];
	if (strlen(list) >= MT_PATTERNS)
		return mt_fail(MT_EX_USAGE, "%s: longer than %d characters", option, MT_PATTERNS - 1);
	while (next_pattern(&list, pattern)) {
		bool any = false;
		for (uint32_t i = 0; i < l->n_tensors && !any; i++) any = !fnmatch(pattern, l->tensors[i].name, 0);
		if (!any)
			return mt_fail(MT_EX_USAGE, "%s: no tensor of this model has the name '%s'; one has '%s'", option, pattern,
				l->tensors[l->n_tensors / 2].name);
	}
	return 0;
}

int mt_layout_freeze(struct mt_layout *l, const char *train, const char *freeze)
{
	train = train ? train : "";
	freeze = freeze ? freeze : "";
	int rc = check_patterns(l, "--train", train);
	if (rc == 0) rc = check_patterns(l, "--freeze", freeze);
	bool any = false;
	if (rc || (!*train && !*freeze)) return rc;
	for (uint32_t i = 0; i < l->n_tensors; i++) {
		struct mt_tensor *t = &l->tensors[i], *before = i ? t - 1 : t;
		t->frozen = (*train && !is_listed(train, t->name)) || is_listed(freeze, t->name);
		any |= !t->frozen;
		if (t->off % MT_GROUP && t->frozen != before->frozen)
			return mt_fail(MT_EX_CONFIG,
				"'%s' and '%s' are parts of one matrix, and share some of %d elements that are updated at once: train "
				"both, or freeze both",
				before->name, t->name, MT_GROUP);
	}
	if (!any) return mt_fail(MT_EX_USAGE, "--train and --freeze leave nothing to train");
	place_all(l);
	return 0;
}

int mt_layout_tier(struct mt_layout *l, uint32_t first, uint64_t tile_elems, uint32_t slots, enum mt_pass_order order)
{
	if (!tile_elems || tile_elems % MT_TILE_ALIGN || tile_elems > MT_TILE_MOST)
		return mt_fail(MT_EX_USAGE, "a tile has a multiple of %d elements, at most %d", MT_TILE_ALIGN, MT_TILE_MOST);
	if (slots < 2) return mt_fail(MT_EX_USAGE, "a tier has 2 slots or more");
	l->tier =
		(struct mt_layout_tier){.slots = slots, .order = order, .first = first ? first : 1, .tile_elems = tile_elems};
	place_all(l);
	return l->tier.tiles
		? 0
		: mt_fail(MT_EX_CONFIG, "lo, m and v of all units fit into the memory that --tier-memory gives");
}

uint64_t mt_layout_state_bytes(const struct mt_layout *l, uint32_t turn)
{
	const struct mt_unit *u = &l->units[mt_unit_of_turn(&l->geo, turn)];
	uint64_t elems = is_trained(l, u) ? u->elems : 0;
	return mt_state_arrays(l->optim) * mt_moment_bytes(l->state, elems) + (has_lo(l) ? elems * 2 : 0);
}

uint32_t mt_layout_tier_first(const struct mt_layout *l, uint64_t memory)
{
	uint64_t bytes = 0;
	for (uint32_t turn = 0; turn < l->n_units; turn++) {
		bytes += mt_layout_state_bytes(l, turn);
		if (turn && bytes > memory) return turn;
	}
	return l->n_units;
}

uint32_t mt_forms(const struct mt_geometry *geo)
{
	bool experts = false, own = false;
	for (uint32_t i = 0; i < geo->n_kinds; i++) {
		const struct mt_layer *k = &geo->kind[i];
		experts |= k->experts != 0;
		own |= k->experts && k->expert_flags & (MT_EXPERT_BIAS | MT_TRANSPOSED);
	}
	return experts && !own ? MT_FORMS : names[geo->names].renamed ? 2 : 1;
}

int mt_layout_files(struct mt_layout *l, const struct mt_geometry *geo, uint32_t form)
{
	struct mt_geometry as = *geo;
	if (form >= mt_forms(geo)) return mt_fail(MT_EX_DATA, "form %u of files is out of range", form);
	if (form & MT_FORM_NEW && names[geo->names].renamed) as.names = names[geo->names].now;
	return make(l, &as, form, MT_FP32, MT_NONE, MT_FP32, MT_ADAMW);
}

void mt_layout_release(struct mt_layout *l)
{
	free(l->units);
	free(l->tensors);
	memset(l, 0, sizeof *l);
}

struct mt_part mt_exact(const struct mt_unit *u, const struct mt_tensor *tensor)
{
	return u->lo ? exact_part(u, tensor) : (struct mt_part){0, 0};
}

struct mt_layer mt_layer_most(const struct mt_geometry *g)
{
	struct mt_layer most = g->kind[0];
#define MOST(field) \
	if (g->kind[i].field > most.field) most.field = g->kind[i].field
	for (uint32_t i = 1; i < g->n_kinds; i++) {
		MOST(heads);
		MOST(kv_heads);
		MOST(head_dim);
		MOST(ffn);
		MOST(rope_dim);
		MOST(experts);
		MOST(experts_per_token);
		MOST(expert_ffn);
		MOST(shared_ffn);
		MOST(key_heads);
		MOST(value_heads);
		MOST(key_dim);
		MOST(value_dim);
		MOST(conv_width);
		MOST(conv_dim);
		MOST(output_gate);
		MOST(q_rank);
		MOST(kv_rank);
		MOST(v_dim);
		MOST(gate_rank);
		MOST(span);
		most.mamba_flags |= g->kind[i].mamba_flags;
		most.parts |= g->kind[i].parts;
		if (g->kind[i].mixer == MT_MAMBA) most.mixer = MT_MAMBA;
		most.expert_flags |= g->kind[i].expert_flags;
		if (g->kind[i].form < MT_RELU2) most.form = g->kind[i].form;
	}
#undef MOST
	return most;
}
