/* names-table.h: a row for each enum mt_names: what files call their tensors, where it is not what llama's do. layout.c
 * has struct names, its fields. Runs hold a row's number, so new ones come last. */
/* clang-format off */
NAMES(LLAMA)
NAMES(GEMMA, .other = {{MT_T_NORM2, "pre_feedforward_layernorm.weight"}})
NAMES(GLM, .other = {{MT_T_POST1, "post_self_attn_layernorm.weight"}, {MT_T_POST2, "post_mlp_layernorm.weight"},
	{MT_T_GATE, "mlp.gate_up_proj.weight"}, {MT_T_UP, NULL}})
NAMES(PHI, .other = {{MT_T_Q, "self_attn.qkv_proj.weight"}, {MT_T_K, NULL}, {MT_T_V, NULL},
	{MT_T_GATE, "mlp.gate_up_proj.weight"}, {MT_T_UP, NULL}})
NAMES(STARCODER, .other = {{MT_T_UP, "mlp.c_fc.weight"}, {MT_T_UPB, "mlp.c_fc.bias"}, {MT_T_DOWN, "mlp.c_proj.weight"},
	{MT_T_DOWNB, "mlp.c_proj.bias"}})
NAMES(HUNYUAN, .other = {{MT_T_QNORM, "self_attn.query_layernorm.weight"},
	{MT_T_KNORM, "self_attn.key_layernorm.weight"}})
NAMES(APERTUS, .other = {{MT_T_NORM1, "attention_layernorm.weight"}, {MT_T_NORM2, "feedforward_layernorm.weight"}})
NAMES(FALCON, .blocks = "transformer.h", .by_group = true, .other = {{MT_T_Q, "self_attention.query_key_value.weight"},
	{MT_T_K, NULL}, {MT_T_V, NULL}, {MT_T_QB, "self_attention.query_key_value.bias"}, {MT_T_KB, NULL}, {MT_T_VB, NULL},
	{MT_T_O, "self_attention.dense.weight"}, {MT_T_OB, "self_attention.dense.bias"},
	{MT_T_UP, "mlp.dense_h_to_4h.weight"}, {MT_T_UPB, "mlp.dense_h_to_4h.bias"},
	{MT_T_DOWN, "mlp.dense_4h_to_h.weight"}, {MT_T_DOWNB, "mlp.dense_4h_to_h.bias"},
	{MT_T_EMBED, "transformer.word_embeddings.weight"}, {MT_T_FNORM, "transformer.ln_f.weight"},
	{MT_T_FNORMB, "transformer.ln_f.bias"}})
NAMES(FALCON_40B, .blocks = "transformer.h", .base = MT_NAMES_FALCON, .by_group = true,
	.other = {{MT_T_NORM1, "ln_attn.weight"}, {MT_T_NORM1B, "ln_attn.bias"}, {MT_T_NORM2, "ln_mlp.weight"},
	{MT_T_NORM2B, "ln_mlp.bias"}})
NAMES(MIXTRAL, .renamed = true, .other = {{MT_T_ROUTER, "block_sparse_moe.gate.weight"},
	{MT_T_XGATE, "block_sparse_moe.experts.*.w1.weight"}, {MT_T_XUP, "block_sparse_moe.experts.*.w3.weight"},
	{MT_T_XDOWN, "block_sparse_moe.experts.*.w2.weight"}})
NAMES(QWEN_MOE, .other = {{MT_T_SGATE, "mlp.shared_expert.gate_proj.weight"},
	{MT_T_SUP, "mlp.shared_expert.up_proj.weight"}, {MT_T_SDOWN, "mlp.shared_expert.down_proj.weight"}})
NAMES(GRANITE_MOE, .renamed = true, .now = MT_NAMES_GRANITE_MOE_5, .experts = "block_sparse_moe.experts.",
	.other = {{MT_T_ROUTER, "block_sparse_moe.router.layer.weight"},
	{MT_T_XGATE, "block_sparse_moe.input_linear.weight"}, {MT_T_XUP, NULL},
	{MT_T_XDOWN, "block_sparse_moe.output_linear.weight"}, {MT_T_SGATE, "shared_mlp.input_linear.weight"},
	{MT_T_SUP, NULL}, {MT_T_SDOWN, "shared_mlp.output_linear.weight"}, {MT_T_GATE, "shared_mlp.input_linear.weight"},
	{MT_T_UP, NULL}, {MT_T_DOWN, "shared_mlp.output_linear.weight"}})
NAMES(ERNIE_MOE, .renamed = true, .now = MT_NAMES_ERNIE_MOE_5, .matrix = true,
	.other = {{MT_T_CORRECTION, "mlp.moe_statics.e_score_correction_bias"}})
NAMES(GPT_OSS, .other = {{MT_T_ROUTER, "mlp.router.weight"}, {MT_T_ROUTERB, "mlp.router.bias"},
	{MT_T_XGATE, "mlp.experts.gate_up_proj"}, {MT_T_XUP, NULL}, {MT_T_XGATEB, "mlp.experts.gate_up_proj_bias"},
	{MT_T_XUPB, NULL}, {MT_T_XDOWN, "mlp.experts.down_proj"}, {MT_T_XDOWNB, "mlp.experts.down_proj_bias"}})
NAMES(NEOX, .blocks = "gpt_neox.layers", .base = MT_NAMES_FALCON, .by_group = true,
	.other = {{MT_T_Q, "attention.query_key_value.weight"}, {MT_T_QB, "attention.query_key_value.bias"},
	{MT_T_O, "attention.dense.weight"}, {MT_T_OB, "attention.dense.bias"}, {MT_T_EMBED, "gpt_neox.embed_in.weight"},
	{MT_T_FNORM, "gpt_neox.final_layer_norm.weight"}, {MT_T_FNORMB, "gpt_neox.final_layer_norm.bias"},
	{MT_T_HEAD, "embed_out.weight"}})
NAMES(PHI_1, .other = {{MT_T_O, "self_attn.dense.weight"}, {MT_T_OB, "self_attn.dense.bias"},
	{MT_T_UP, "mlp.fc1.weight"}, {MT_T_UPB, "mlp.fc1.bias"}, {MT_T_DOWN, "mlp.fc2.weight"},
	{MT_T_DOWNB, "mlp.fc2.bias"}, {MT_T_FNORM, "model.final_layernorm.weight"},
	{MT_T_FNORMB, "model.final_layernorm.bias"}})
NAMES(MINIMAX, .renamed = true, .now = MT_NAMES_EXAONE_MOE, .base = MT_NAMES_MIXTRAL,
	.other = {{MT_T_CORRECTION, "block_sparse_moe.e_score_correction_bias"}})
NAMES(EXAONE_MOE, .renamed = true, .other = {{MT_T_CORRECTION, "mlp.e_score_correction_bias"}})
NAMES(SARVAM, .renamed = true, .other = {{MT_T_EMBED, "model.word_embeddings.weight"},
	{MT_T_Q, "attention.query_key_value.weight"}, {MT_T_K, NULL}, {MT_T_V, NULL},
	{MT_T_QB, "attention.query_key_value.bias"}, {MT_T_KB, NULL}, {MT_T_VB, NULL},
	{MT_T_QNORM, "attention.query_layernorm.weight"}, {MT_T_KNORM, "attention.key_layernorm.weight"},
	{MT_T_O, "attention.dense.weight"}, {MT_T_CORRECTION, "mlp.gate.expert_bias"}})
NAMES(EXAONE, .blocks = "transformer.h", .other = {{MT_T_EMBED, "transformer.wte.weight"}, {MT_T_NORM1, "ln_1.weight"},
	{MT_T_Q, "attn.attention.q_proj.weight"}, {MT_T_K, "attn.attention.k_proj.weight"},
	{MT_T_V, "attn.attention.v_proj.weight"}, {MT_T_QB, "attn.attention.q_proj.bias"},
	{MT_T_KB, "attn.attention.k_proj.bias"}, {MT_T_VB, "attn.attention.v_proj.bias"},
	{MT_T_O, "attn.attention.out_proj.weight"}, {MT_T_OB, "attn.attention.out_proj.bias"}, {MT_T_NORM2, "ln_2.weight"},
	{MT_T_GATE, "mlp.c_fc_0.weight"}, {MT_T_UP, "mlp.c_fc_1.weight"}, {MT_T_GATEB, "mlp.c_fc_0.bias"},
	{MT_T_UPB, "mlp.c_fc_1.bias"}, {MT_T_DOWN, "mlp.c_proj.weight"}, {MT_T_DOWNB, "mlp.c_proj.bias"},
	{MT_T_FNORM, "transformer.ln_f.weight"}})
NAMES(GPT2, .blocks = "transformer.h", .base = MT_NAMES_STARCODER, .other = {{MT_T_EMBED, "transformer.wte.weight"},
	{MT_T_POSITIONS, "transformer.wpe.weight"}, {MT_T_NORM1, "ln_1.weight"}, {MT_T_NORM1B, "ln_1.bias"},
	{MT_T_Q, "attn.c_attn.weight"}, {MT_T_K, NULL}, {MT_T_V, NULL}, {MT_T_QB, "attn.c_attn.bias"}, {MT_T_KB, NULL},
	{MT_T_VB, NULL}, {MT_T_O, "attn.c_proj.weight"}, {MT_T_OB, "attn.c_proj.bias"}, {MT_T_NORM2, "ln_2.weight"},
	{MT_T_NORM2B, "ln_2.bias"}, {MT_T_FNORM, "transformer.ln_f.weight"}, {MT_T_FNORMB, "transformer.ln_f.bias"}})
NAMES(OPT, .blocks = "model.decoder.layers", .other = {{MT_T_EMBED, "model.decoder.embed_tokens.weight"},
	{MT_T_POSITIONS, "model.decoder.embed_positions.weight"}, {MT_T_NORM1, "self_attn_layer_norm.weight"},
	{MT_T_NORM1B, "self_attn_layer_norm.bias"}, {MT_T_O, "self_attn.out_proj.weight"},
	{MT_T_OB, "self_attn.out_proj.bias"}, {MT_T_NORM2, "final_layer_norm.weight"},
	{MT_T_NORM2B, "final_layer_norm.bias"}, {MT_T_UP, "fc1.weight"}, {MT_T_UPB, "fc1.bias"}, {MT_T_DOWN, "fc2.weight"},
	{MT_T_DOWNB, "fc2.bias"}, {MT_T_FNORM, "model.decoder.final_layer_norm.weight"},
	{MT_T_FNORMB, "model.decoder.final_layer_norm.bias"}})
NAMES(BIGCODE, .blocks = "transformer.h", .base = MT_NAMES_GPT2, .by_group = true)
NAMES(ERNIE_MOE_5, .matrix = true, .other = {{MT_T_CORRECTION, "mlp.gate.moe_statics.e_score_correction_bias"}})
NAMES(GRANITE_MOE_5, .base = MT_NAMES_GRANITE_MOE, .experts = "block_sparse_moe.experts.",
	.other = {{MT_T_ROUTER, "block_sparse_moe.router.weight"}, {MT_T_XGATE, "block_sparse_moe.experts.gate_up_proj"},
	{MT_T_XDOWN, "block_sparse_moe.experts.down_proj"}})
NAMES(QWEN_NEXT, .base = MT_NAMES_QWEN_MOE, .other = {{MT_T_DQKV, "linear_attn.in_proj_qkvz.weight"}, {MT_T_DZ, NULL},
	{MT_T_DB, "linear_attn.in_proj_ba.weight"}, {MT_T_DA, NULL}})
NAMES(LFM2, .experts = "feed_forward.experts.", .other = {{MT_T_NORM1, "operator_norm.weight"},
	{MT_T_QNORM, "self_attn.q_layernorm.weight"}, {MT_T_KNORM, "self_attn.k_layernorm.weight"},
	{MT_T_O, "self_attn.out_proj.weight"}, {MT_T_NORM2, "ffn_norm.weight"}, {MT_T_GATE, "feed_forward.w1.weight"},
	{MT_T_UP, "feed_forward.w3.weight"}, {MT_T_DOWN, "feed_forward.w2.weight"},
	{MT_T_ROUTER, "feed_forward.gate.weight"}, {MT_T_CORRECTION, "feed_forward.expert_bias"},
	{MT_T_XGATE, "feed_forward.experts.*.w1.weight"}, {MT_T_XUP, "feed_forward.experts.*.w3.weight"},
	{MT_T_XDOWN, "feed_forward.experts.*.w2.weight"}, {MT_T_FNORM, "model.embedding_norm.weight"}})
NAMES(NEMOTRON_H, .blocks = "backbone.layers", .experts = "mixer.experts.", .module = "mixer.",
	.other = {{MT_T_EMBED, "backbone.embeddings.weight"}, {MT_T_NORM1, "norm.weight"}, {MT_T_NORM2, "norm.weight"},
	{MT_T_FNORM, "backbone.norm_f.weight"}})
NAMES(AFMOE, .other = {{MT_T_NORM2, "pre_mlp_layernorm.weight"}, {MT_T_POST2, "post_mlp_layernorm.weight"},
	{MT_T_ROUTER, "mlp.router.gate.weight"}, {MT_T_CORRECTION, "mlp.expert_bias"}})
NAMES(GEMMA_MOE, .base = MT_NAMES_GEMMA, .experts = "experts.", .other = {{MT_T_SGATE, "mlp.gate_proj.weight"},
	{MT_T_SUP, "mlp.up_proj.weight"}, {MT_T_SDOWN, "mlp.down_proj.weight"}, {MT_T_ROUTER, "router.proj.weight"},
	{MT_T_XGATE, "experts.gate_up_proj"}, {MT_T_XUP, NULL}, {MT_T_XDOWN, "experts.down_proj"}})
NAMES(FALCON_H1, .other = {{MT_T_NORM2, "pre_ff_layernorm.weight"}, {MT_T_GATE, "feed_forward.gate_proj.weight"},
	{MT_T_UP, "feed_forward.up_proj.weight"}, {MT_T_GATEB, "feed_forward.gate_proj.bias"},
	{MT_T_UPB, "feed_forward.up_proj.bias"}, {MT_T_DOWN, "feed_forward.down_proj.weight"},
	{MT_T_DOWNB, "feed_forward.down_proj.bias"}, {MT_T_FNORM, "model.final_layernorm.weight"}})
NAMES(LLAMA_4, .other = {{MT_T_GATE, "feed_forward.gate_proj.weight"}, {MT_T_UP, "feed_forward.up_proj.weight"},
	{MT_T_DOWN, "feed_forward.down_proj.weight"}, {MT_T_ROUTER, "feed_forward.router.weight"},
	{MT_T_SGATE, "feed_forward.shared_expert.gate_proj.weight"},
	{MT_T_SUP, "feed_forward.shared_expert.up_proj.weight"},
	{MT_T_SDOWN, "feed_forward.shared_expert.down_proj.weight"}, {MT_T_XGATE, "feed_forward.experts.gate_up_proj"},
	{MT_T_XUP, NULL}, {MT_T_XDOWN, "feed_forward.experts.down_proj"}})
NAMES(KIMI, .renamed = true, .now = MT_NAMES_KIMI_5, .base = MT_NAMES_MIXTRAL, .experts = "block_sparse_moe.experts.",
	.other = {{MT_T_CORRECTION, "block_sparse_moe.gate.e_score_correction_bias"},
	{MT_T_SGATE, "block_sparse_moe.shared_experts.gate_proj.weight"},
	{MT_T_SUP, "block_sparse_moe.shared_experts.up_proj.weight"},
	{MT_T_SDOWN, "block_sparse_moe.shared_experts.down_proj.weight"}})
/* transformers 5.24 writes the MLP of dense layers with the module of those with experts */
NAMES(KIMI_5, .base = MT_NAMES_KIMI, .experts = "block_sparse_moe.experts.",
	.other = {{MT_T_GATE, "block_sparse_moe.gate_proj.weight"}, {MT_T_UP, "block_sparse_moe.up_proj.weight"},
	{MT_T_DOWN, "block_sparse_moe.down_proj.weight"}})
NAMES(HYPERCLOVAX, .other = {{MT_T_POST1, "post_norm1.weight"}, {MT_T_POST2, "post_norm2.weight"}})
NAMES(GPTJ, .blocks = "transformer.h", .base = MT_NAMES_GPT2, .other = {{MT_T_Q, "attn.q_proj.weight"},
	{MT_T_K, "attn.k_proj.weight"}, {MT_T_V, "attn.v_proj.weight"}, {MT_T_O, "attn.out_proj.weight"},
	{MT_T_UP, "mlp.fc_in.weight"}, {MT_T_UPB, "mlp.fc_in.bias"}, {MT_T_DOWN, "mlp.fc_out.weight"},
	{MT_T_DOWNB, "mlp.fc_out.bias"}})
NAMES(CODEGEN, .blocks = "transformer.h", .base = MT_NAMES_GPTJ, .shards = 4,
	.other = {{MT_T_Q, "attn.qkv_proj.weight"}, {MT_T_K, NULL}, {MT_T_V, NULL}})
NAMES(GPT_NEO, .blocks = "transformer.h", .base = MT_NAMES_GPT2, .other = {{MT_T_Q, "attn.attention.q_proj.weight"},
	{MT_T_K, "attn.attention.k_proj.weight"}, {MT_T_V, "attn.attention.v_proj.weight"},
	{MT_T_O, "attn.attention.out_proj.weight"}, {MT_T_OB, "attn.attention.out_proj.bias"}})
NAMES(BIOGPT, .blocks = "biogpt.layers", .base = MT_NAMES_OPT, .other = {{MT_T_EMBED, "biogpt.embed_tokens.weight"},
	{MT_T_POSITIONS, "biogpt.embed_positions.weight"}, {MT_T_FNORM, "biogpt.layer_norm.weight"},
	{MT_T_FNORMB, "biogpt.layer_norm.bias"}, {MT_T_HEAD, "output_projection.weight"}})
NAMES(HY_V3, .renamed = true, .now = MT_NAMES_EXAONE_MOE, .other = {{MT_T_ROUTER, "mlp.router.gate.weight"},
	{MT_T_CORRECTION, "mlp.expert_bias"}, {MT_T_SGATE, "mlp.shared_mlp.gate_proj.weight"},
	{MT_T_SUP, "mlp.shared_mlp.up_proj.weight"}, {MT_T_SDOWN, "mlp.shared_mlp.down_proj.weight"}})
NAMES(HUNYUAN_MOE, .base = MT_NAMES_HUNYUAN, .other = {{MT_T_ROUTER, "mlp.gate.wg.weight"},
	{MT_T_SGATE, "mlp.shared_mlp.gate_proj.weight"}, {MT_T_SUP, "mlp.shared_mlp.up_proj.weight"},
	{MT_T_SDOWN, "mlp.shared_mlp.down_proj.weight"}})
NAMES(MPT, .blocks = "transformer.blocks", .other = {{MT_T_EMBED, "transformer.wte.weight"},
	{MT_T_NORM1, "norm_1.weight"}, {MT_T_Q, "attn.Wqkv.weight"}, {MT_T_K, NULL}, {MT_T_V, NULL},
	{MT_T_O, "attn.out_proj.weight"}, {MT_T_NORM2, "norm_2.weight"}, {MT_T_UP, "ffn.up_proj.weight"},
	{MT_T_DOWN, "ffn.down_proj.weight"}, {MT_T_FNORM, "transformer.norm_f.weight"}})
NAMES(NANOCHAT, .other = {{MT_T_UP, "mlp.fc1.weight"}, {MT_T_DOWN, "mlp.fc2.weight"}})
NAMES(BLOOM, .blocks = "transformer.h", .base = MT_NAMES_FALCON, .by_group = true,
	.other = {{MT_T_IN_NORM, "/transformer.word_embeddings_layernorm.weight"},
	{MT_T_IN_NORMB, "/transformer.word_embeddings_layernorm.bias"}})
NAMES(NEOX_JAPANESE, .blocks = "gpt_neox_japanese.layers", .base = MT_NAMES_NEOX, .by_group = true,
	.other = {{MT_T_OB, "attention.dense_bias"}, {MT_T_EMBED, "gpt_neox_japanese.embed_in.weight"},
	{MT_T_FNORM, "gpt_neox_japanese.final_layer_norm.weight"},
	{MT_T_FNORMB, "gpt_neox_japanese.final_layer_norm.bias"}})
NAMES(OPENAI, .blocks = "transformer.h", .base = MT_NAMES_GPT2,
	.other = {{MT_T_EMBED, "transformer.tokens_embed.weight"}, {MT_T_POSITIONS, "transformer.positions_embed.weight"},
	{MT_T_IN_NORM, "<ln_2.weight"}, {MT_T_IN_NORMB, "<ln_2.bias"}, {MT_T_NORM2, "ln_1.weight"},
	{MT_T_NORM2B, "ln_1.bias"}, {MT_T_FNORM, "<ln_2.weight"}, {MT_T_FNORMB, "<ln_2.bias"}})
NAMES(XGLM, .base = MT_NAMES_OPT, .other = {{MT_T_EMBED, "model.embed_tokens.weight"},
	{MT_T_FNORM, "model.layer_norm.weight"}, {MT_T_FNORMB, "model.layer_norm.bias"}})
NAMES(CTRL, .blocks = "transformer.h", .other = {{MT_T_EMBED, "transformer.w.weight"},
	{MT_T_NORM1, "layernorm1.weight"}, {MT_T_NORM1B, "layernorm1.bias"}, {MT_T_Q, "multi_head_attention.Wq.weight"},
	{MT_T_K, "multi_head_attention.Wk.weight"}, {MT_T_V, "multi_head_attention.Wv.weight"},
	{MT_T_QB, "multi_head_attention.Wq.bias"}, {MT_T_KB, "multi_head_attention.Wk.bias"},
	{MT_T_VB, "multi_head_attention.Wv.bias"}, {MT_T_O, "multi_head_attention.dense.weight"},
	{MT_T_OB, "multi_head_attention.dense.bias"}, {MT_T_NORM2, "layernorm2.weight"}, {MT_T_NORM2B, "layernorm2.bias"},
	{MT_T_UP, "ffn.0.weight"}, {MT_T_UPB, "ffn.0.bias"}, {MT_T_DOWN, "ffn.2.weight"}, {MT_T_DOWNB, "ffn.2.bias"},
	{MT_T_FNORM, "transformer.layernorm.weight"}, {MT_T_FNORMB, "transformer.layernorm.bias"}})
/* transformers 5.24 cuts the convolutions of q, k and v into thirds of all channels. */
NAMES(OLMO_HYBRID_5, .base = MT_NAMES_OLMO_HYBRID, .thirds = true,
	.other = {{MT_T_POST1, "feedforward_layer_norm.weight"}})
NAMES(OLMO_HYBRID, .renamed = true, .now = MT_NAMES_OLMO_HYBRID_5,
	.other = {{MT_T_NORM1, "attention_layer_norm.weight"}, {MT_T_NORM2, "feedforward_layer_norm.weight"},
	{MT_T_DQKV, "linear_attn.q_proj.weight"}, {MT_T_K, "linear_attn.k_proj.weight"},
	{MT_T_V, "linear_attn.v_proj.weight"}, {MT_T_DZ, "linear_attn.g_proj.weight"},
	{MT_T_DB, "linear_attn.b_proj.weight"}, {MT_T_DA, "linear_attn.a_proj.weight"},
	{MT_T_CONV, "linear_attn.q_conv1d.weight"}, {MT_T_CONVK, "linear_attn.k_conv1d.weight"},
	{MT_T_CONVV, "linear_attn.v_conv1d.weight"}, {MT_T_DNORM, "linear_attn.o_norm.weight"},
	{MT_T_O, "linear_attn.o_proj.weight"}})
NAMES(JAMBA, .base = MT_NAMES_FALCON_H1, .experts = "feed_forward.experts.",
	.other = {{MT_T_ROUTER, "feed_forward.router.weight"}, {MT_T_XGATE, "feed_forward.experts.*.gate_proj.weight"},
	{MT_T_XUP, "feed_forward.experts.*.up_proj.weight"}, {MT_T_XDOWN, "feed_forward.experts.*.down_proj.weight"}})
NAMES(LARA, .renamed = true, .now = MT_NAMES_LARA_5, .base = MT_NAMES_LARA_5,
	.other = {{MT_T_DQKV, "linear_attn.in_proj.weight"}, {MT_T_DZ, NULL}, {MT_T_DB, NULL}, {MT_T_DA, NULL},
	{MT_T_DNORM, "linear_attn.out_norm.weight"}})
NAMES(LARA_5, .base = MT_NAMES_QWEN_MOE, .other = {{MT_T_XGATE, "mlp.experts.gate_up_proj"}, {MT_T_XUP, NULL},
	{MT_T_XDOWN, "mlp.experts.down_proj"}})
NAMES(FLINT, .renamed = true, .now = MT_NAMES_QWEN_MOE, .base = MT_NAMES_QWEN_MOE,
	.other = {{MT_T_SINKS, "self_attn.softmax_offset"}})
NAMES(ARIA, .renamed = true, .now = MT_NAMES_ARIA_5, .experts = "mlp.experts.",
	.other = {{MT_T_ROUTER, "mlp.router.weight"}, {MT_T_XGATE, "mlp.experts.fc1.weight"}, {MT_T_XUP, NULL},
	{MT_T_XDOWN, "mlp.experts.fc2.weight"}})
NAMES(ARIA_5, .base = MT_NAMES_ARIA, .experts = "mlp.experts.", .other = {{MT_T_XGATE, "mlp.experts.gate_up_proj"},
	{MT_T_XDOWN, "mlp.experts.down_proj"}})
