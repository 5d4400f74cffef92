/* families.c: the table of model families; what a table cannot say is in the functions of config.c that a row has in
 * `read`. No other C file knows families by name. */
#include <ctype.h>

#include "config.h"
#include "hfjson.h"

/* clang-format off */

#define ALL_BIASES (MT_QKV_BIAS | MT_O_BIAS | MT_MLP_BIAS)
#define ATTENTION_BIAS {"attention_bias", MT_QKV_BIAS | MT_O_BIAS, false} /* of q, k, v and o */
#define SLIDING_PATTERN "sliding_window_pattern"
#define NO_LAYER UINT32_MAX /* as a pattern: all layers have windows */
#define MLP_BIAS {"mlp_bias", MT_MLP_BIAS, false}

/* Gemma: files with tied embeddings, norms before and after, 1 + w */
#define GEMMA_NAMES .tied = true, .names = MT_NAMES_GEMMA, .act_key = "hidden_activation", .act = "gelu_pytorch_tanh", \
	.pad = 1 + 0
#define GEMMA GEMMA_NAMES, .refused = {"use_bidirectional_attention"}
#define GEMMA_FLAGS (MT_NORM_ONE | MT_POST_NORM)
#define Q_SCALE {"query_pre_attn_scalar", OF_MODEL(attention_scale), RECIPROCAL_ROOT, 256}
#define GEMMA_2_NUMBERS Q_SCALE, {"attn_logit_softcapping", OF_MODEL(attention_cap), AS_IS, 50}, \
	{"final_logit_softcapping", OF_MODEL(logit_cap), AS_IS, 30}
#define GEMMA_4 GEMMA_NAMES, .flags = MT_POST_NORM | MT_QK_NORM | MT_V_NORM | MT_LAYER_SCALAR, \
	.flag_key = {ATTENTION_BIAS}, .number = {{"final_logit_softcapping", OF_MODEL(logit_cap), AS_IS, NAN}}, \
	.theta = 1e6, .local_theta = 1e4, .window = WINDOW_PATTERN, .pattern = 6, .last_full = true, .per_layer = true, \
	.rope = "{\"full_attention\": {\"rope_type\": \"proportional\", \"rope_theta\": 1000000.0, " \
			"\"partial_rotary_factor\": 0.25}, " \
			"\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0}}"

/* GPT-2's keys; GPT-2: learned positions, LayerNorm with bias, all biases, tied */
#define GPT_SIZES(ffn) {[S_LAYERS] = "n_layer", [S_HIDDEN] = "n_embd", [S_FFN] = ffn, \
		[S_POSITIONS] = "n_positions", [S_HEADS] = "n_head", [S_KV_HEADS] = "", [S_HEAD_DIM] = ""}
#define GPT_ALIAS .alias = {{"num_hidden_layers", "n_layer"}, {"hidden_size", "n_embd"}, \
	{"max_position_embeddings", "n_positions"}, {"num_attention_heads", "n_head"}}
#define GPT_DROPOUT .dropout = 0.1, .dropout_key = {"attn_pdrop", "resid_pdrop", "embd_pdrop"}, .dropout_released = true
#define GPT_KEYS .size_name = GPT_SIZES("n_inner"), GPT_ALIAS, \
	.act_key = "activation_function", .ungated = true, .eps_key = "layer_norm_epsilon", .eps = 1e-5, .no_pad = true
#define GPT2 .size = {12, 768, DERIVED, 50257, 1024, 12, DERIVED, DERIVED}, GPT_KEYS, .tied = true, GPT_DROPOUT, \
	.nope = NOPE_FULL
#define GPT_J .size = {28, 4096, DERIVED, 50400, 2048, 16, DERIVED, DERIVED}, GPT_KEYS, .act = "gelu_new", \
	.flags = MT_LAYERNORM | MT_NORM_BIAS | PARALLEL_ONE_NORM | MT_MLP_BIAS | MT_HEAD_BIAS, .partial = 1, \
	.neighbours = true, .dropout_key = {"attn_pdrop"}, .read = read_gptj
#define GPT2_FLAGS (MT_LAYERNORM | MT_NORM_BIAS | ALL_BIASES | MT_POSITIONS | MT_INIT_BY_DEPTH)
#define FACTORS(attention, as) .number = {{"embedding_multiplier", OF_MODEL(embed_scale), AS_IS, 1}, \
	{"residual_multiplier", OF_MODEL(residual_scale), AS_IS, 1}, \
	{"residual_multiplier", OF_MODEL(mlp_scale), AS_IS, 1}, \
	{"attention_multiplier", OF_MODEL(attention_scale), AS_IS, attention}, \
	{"logits_scaling", OF_MODEL(logit_scale), as, 1}}
#define GRANITE_FACTORS FACTORS(1, RECIPROCAL)
#define GRANITE_SWA .flags = MT_SINKS, .window = WINDOW_PATTERN, .tokens = 128, .pattern = 4, .first_full = true, \
	.nope = NOPE_LIST, .read = read_granite_swa
#define GRANITE_EXPERTS(ffn) "num_local_experts", 8, 2, .shared_key = "shared_intermediate_size", .shared = ffn, \
	.score = MT_TOP_SOFTMAX, .flags = MT_PACKED, .aux = 0.001f
#define DEEPSEEK_V2_EXPERTS "n_routed_experts", 64, REQUIRED, "moe_intermediate_size", 1407, "n_shared_experts", 2, \
	true, .alias = "num_experts", .flags = MT_EXACT_ROUTER, .scale_key = "routed_scaling_factor"
#define APERTUS .flags = MT_QK_NORM, .flag_key = {ATTENTION_BIAS}, .act = "xielu", .ungated = true, \
	.names = MT_NAMES_APERTUS, .eps = 1e-5, .pad = 1 + 3, .theta = 12e6, \
	.rope = "{\"rope_type\": \"llama3\", \"rope_theta\": 12000000.0, \"factor\": 8.0, " \
			"\"original_max_position_embeddings\": 8192, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0}"
#define PHI_3 .names = MT_NAMES_PHI, .eps = 1e-5, .partial = 1, .original = 4096, .longrope = true, .type_only = true, \
	.window = WINDOW_ALL, .window_missing_none = true
#define OLMO_FLAGS (MT_NO_PRE_NORM | MT_POST_NORM | MT_QK_NORM | MT_QK_NORM_ROW)

/* Mamba 1 in blocks of one half, of which heads are nothing, and any number of positions */
#define MAMBA_1 .size = {32, 768, DERIVED, 50280, INT32_MAX, 1, 1, 2}, \
	.size_name = {[S_HEADS] = "", [S_KV_HEADS] = "", [S_HEAD_DIM] = ""}, .tied = true, .only_act = true, \
	.names = MT_NAMES_NEMOTRON_H, .eps_key = "layer_norm_epsilon", .eps = 1e-5, .init_range = 0.1, \
	.no_pad = true

/* Mixtures of experts as DeepSeek V3's: scores by sigmoid, a correction that is not trained, shared experts */
#define SIGMOID_EXPERTS .score = MT_SIGMOID, .flags = MT_CORRECTION, .renormalise_key = "norm_topk_prob", \
	.floor = 1e-20f, .scale_key = "routed_scaling_factor"
#define DEEPSEEK_EXPERTS(experts, per_token, ffn, shared) "n_routed_experts", experts, per_token, \
	"moe_intermediate_size", ffn, "n_shared_experts", shared, true, .alias = "num_local_experts", SIGMOID_EXPERTS

static const struct family families[] = {
	{"llama", "LlamaForCausalLM", .size = {32, 4096, 11008, 32000, 2048, 32, DERIVED, DERIVED},
		.heads_divide_hidden = true, .flag_key = {ATTENTION_BIAS, MLP_BIAS}, .only_act = true},
	{"emu3_text_model", "Emu3TextModel", .size = {32, 4096, 14336, 184622, 9216, 32, 8, DERIVED}, .inner = true,
		.flag_key = {ATTENTION_BIAS, MLP_BIAS}, .eps = 1e-5, .pad = 1 + 151643, .theta = 1e6, .dropout = 0.1,
		.dropout_key = {"attention_dropout"}, .dropout_released = true},
	{"exaone", "ExaoneForCausalLM", .shares = "llama",
		.alias = {{"num_layers", "num_hidden_layers"}, {"layer_norm_epsilon", "rms_norm_eps"},
			{"activation_function", "hidden_act"}},
		.size = {32, 4096, 14336, 102400, 4096, 32, 8, DERIVED}, .heads_divide_hidden = true,
		.flag_key = {ATTENTION_BIAS, MLP_BIAS}, .only_act = true, .names = MT_NAMES_EXAONE, .eps = 1e-5, .pad = 1 + 0,
		.theta = 5e5},
	{"internlm3", "InternLM3ForCausalLM", .shares = "llama",
		.alias = {{"qkv_bias", "attention_bias"}, {"bias", "mlp_bias"}},
		.size = {48, 4096, 10240, 128512, 32768, 32, 2, 128}, .heads_divide_hidden = true,
		.flag_key = {ATTENTION_BIAS, MLP_BIAS}, .only_act = true, .eps = 1e-5, .pad = 1 + 2, .read = read_internlm3},
	{"iquestcoder", "IQuestCoderForCausalLM", .shares = "llama",
		.size = {80, 5120, 27648, 76800, 131072, 40, 8, 128}, .heads_divide_hidden = true,
		.flag_key = {ATTENTION_BIAS, MLP_BIAS}, .only_act = true, .eps = 1e-5, .refused = {"use_sliding_window"},
		.read = read_olmo},
	{"cwm", "CwmForCausalLM", .size = {64, 6144, 21504, 128256, 131072, 48, 8, 128}, .heads_divide_hidden = true,
		.flag_key = {MLP_BIAS}, .only_act = true, .eps = 1e-5, .theta = 1e6,
		.rope = "{\"rope_type\": \"llama3\", \"rope_theta\": 1000000.0, \"factor\": 16.0, "
				"\"original_max_position_embeddings\": 8192, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0}",
		.window = WINDOW_PATTERN, .tokens = 8192, .window_null_none = true, .pattern = 4, .first_full = true},
	{"mistral", "MistralForCausalLM", .size = {32, 4096, 14336, 32000, 131072, 32, 8, DERIVED}, .only_act = true,
		.window = WINDOW_ALL},
	{"ministral", "MinistralForCausalLM", .size = {32, 4096, 14336, 32000, 131072, 32, 8, DERIVED}, .only_act = true,
		.window = WINDOW_PATTERN, .window_null_none = true, .pattern = NO_LAYER},
	{"qwen2", "Qwen2ForCausalLM", .size = {32, 4096, 22016, 151936, 32768, 32, 32, DERIVED}, .flags = MT_QKV_BIAS,
		.only_act = true, .window = WINDOW_QWEN},
	{"qwen3", "Qwen3ForCausalLM", .size = {32, 4096, 22016, 151936, 32768, 32, 32, 128}, .flags = MT_QK_NORM,
		.flag_key = {ATTENTION_BIAS}, .only_act = true, .window = WINDOW_QWEN},
	{"qwen3_5_text", "Qwen3_5ForCausalLM", .size = {32, 4096, 12288, 248320, 32768, 16, 4, 256}, .mrope = true,
		.flags = MT_NORM_ONE | MT_QK_NORM, .flag_key = {ATTENTION_BIAS}, .only_act = true, .partial = 0.25,
		.delta = true, .read = read_delta},
	{"lfm2", "Lfm2ForCausalLM",
		.alias = {{"block_ff_dim", "intermediate_size"}, {"tie_embedding", "tie_word_embeddings"}},
		.size = {32, 2560, 12288, 65536, 128000, 32, 8, DERIVED}, .tied = true, .flags = MT_QK_NORM, .act_key = "",
		.names = MT_NAMES_LFM2, .eps_key = "norm_eps", .eps = 1e-5, .pad = 1 + 0,
		.theta = 1e6, .conv = true, .read = read_lfm2},
	{"qwen2_5_vl_text", "Qwen2_5_VLTextModel", .size = {80, 8192, 29568, 152064, 32768, 64, 8, DERIVED},
		.size_name = {[S_HEAD_DIM] = ""}, .inner = true, .mrope = true, .flags = MT_QKV_BIAS, .only_act = true,
		.eps = 1e-5, .theta = 1e6, .window = WINDOW_QWEN},
	{"qwen2_vl_text", "Qwen2VLTextModel", .size = {80, 8192, 29568, 152064, 32768, 64, 8, DERIVED},
		.size_name = {[S_HEAD_DIM] = ""}, .inner = true, .mrope = true, .flags = MT_QKV_BIAS, .only_act = true,
		.eps = 1e-5, .theta = 1e6, .window = WINDOW_QWEN},
	{"qwen2_5_omni_text", "Qwen2_5OmniThinkerTextModel", .size = {28, 3584, 18944, 152064, 32768, 28, 4, DERIVED},
		.inner = true, .mrope = true, .flags = MT_QKV_BIAS, .only_act = true, .theta = 1e6, .window = WINDOW_QWEN},
	{"qwen3_vl_text", "Qwen3VLTextModel", .size = {32, 4096, 22016, 151936, 128000, 32, 32, 128}, .inner = true,
		.mrope = true, .flags = MT_QK_NORM, .flag_key = {ATTENTION_BIAS}, .only_act = true, .theta = 500000},
	{"qwen3_vl_moe_text", "Qwen3VLMoeTextModel", .size = {24, 2048, 5632, 151936, 128000, 16, 16, DERIVED},
		.inner = true, .mrope = true, .flags = MT_QK_NORM, .flag_key = {ATTENTION_BIAS}, .theta = 500000,
		.experts = {"num_experts", 60, 4, "moe_intermediate_size", 1408, .alias = "num_local_experts",
			.flags = MT_RENORMALISE, .aux = 0.001f, .dense = DENSE_LISTED}},
	{"qwen3_omni_moe_text", "Qwen3OmniMoeThinkerTextModel",
		.size = {28, 2048, 18944, 3584, 32768, 28, 4, DERIVED}, .inner = true, .mrope = true, .flags = MT_QK_NORM,
		.flag_key = {ATTENTION_BIAS}, .theta = 1e6,
		.experts = {"num_experts", 128, 8, "moe_intermediate_size", 768, .alias = "num_local_experts",
			.renormalise_key = "norm_topk_prob", .renormalise = true, .aux = 0.001f, .dense = DENSE_LISTED}},
	{"granite", "GraniteForCausalLM", .size = {32, 4096, 11008, 32000, 2048, 32, DERIVED, DERIVED},
		.flag_key = {ATTENTION_BIAS, MLP_BIAS},
		GRANITE_FACTORS},
	{"granite_docling_text", "GraniteDoclingTextModel", .size = {28, 1024, 2048, 133800, 32768, 16, 4, DERIVED},
		.inner = true, .tied = true, .flag_key = {ATTENTION_BIAS, MLP_BIAS}, .eps = 1e-5, .pad = 1 + 100256,
		.number = {{"embedding_multiplier", OF_MODEL(embed_scale), AS_IS, 12},
			{"logits_scaling", OF_MODEL(logit_scale), RECIPROCAL, 4},
			{"residual_multiplier", OF_MODEL(residual_scale), AS_IS, 0.263},
			{"residual_multiplier", OF_MODEL(mlp_scale), AS_IS, 0.263},
			{"attention_multiplier", OF_MODEL(attention_scale), AS_IS, 0.015625}}},
	{"granite_swa", "GraniteSWAForCausalLM", .size = {24, 2560, 8192, 100352, 8192, 20, 4, DERIVED}, .tied = true,
		.flag_key = {ATTENTION_BIAS, MLP_BIAS}, .eps = 1e-5,
		GRANITE_FACTORS, GRANITE_SWA},
	{"hyperclovax", "HyperCLOVAXForCausalLM", .size = {32, 4096, 11008, 32000, 2048, 32, DERIVED, DERIVED},
		.heads_divide_hidden = true,
		.flag_key = {ATTENTION_BIAS, MLP_BIAS, {"use_post_norm", MT_POST_NORM, true}},
		FACTORS(NAN, AS_IS),
		.names = MT_NAMES_HYPERCLOVAX},
	{"cohere2", "Cohere2ForCausalLM", .size = {40, 8192, 22528, 256000, 8192, 64, DERIVED, DERIVED}, .tied = true,
		.flags = MT_LAYERNORM | PARALLEL_ONE_NORM, .flag_key = {ATTENTION_BIAS},
		.number = {{"logit_scale", OF_MODEL(logit_scale), AS_IS, 0.0625}}, .eps_key = "layer_norm_eps", .eps = 1e-5,
		.pad = 1 + 0, .neighbours = true, .window = WINDOW_PATTERN, .pattern = 4, .pattern_key = SLIDING_PATTERN,
		.nope = NOPE_FULL},
	{"cohere", "CohereForCausalLM", .size = {40, 8192, 22528, 256000, 8192, 64, DERIVED, DERIVED}, .tied = true,
		.flags = MT_LAYERNORM | PARALLEL_ONE_NORM, .flag_key = {ATTENTION_BIAS},
		.number = {{"logit_scale", OF_MODEL(logit_scale), AS_IS, 0.0625}}, .eps_key = "layer_norm_eps", .eps = 1e-5,
		.pad = 1 + 0, .refused = {"use_qk_norm"}, .theta = 500000, .neighbours = true},
	{"starcoder2", "Starcoder2ForCausalLM", .size = {30, 3072, 12288, 49152, 4096, 24, 2, DERIVED}, .tied = true,
		.flags = MT_LAYERNORM | MT_NORM_BIAS, .flag_key = {{"use_bias", ALL_BIASES, true}},
		.act = "gelu_pytorch_tanh", .ungated = true, .names = MT_NAMES_STARCODER, .eps_key = "norm_epsilon",
		.eps = 1e-5, .init_range = 0.018042, .dropout_released = true, .window = WINDOW_ALL,
		.window_missing_none = true},
	{"stablelm", "StableLmForCausalLM", .size = {32, 2560, 6912, 50304, 4096, 32, 32, DERIVED},
		.size_name = {[S_HEAD_DIM] = ""}, .flags = MT_LAYERNORM | MT_NORM_BIAS,
		.flag_key = {{"use_qkv_bias", MT_QKV_BIAS, false}, {"use_parallel_residual", PARALLEL_ONE_NORM, false}},
		.eps_key = "layer_norm_eps", .eps = 1e-5, .refused = {"qk_layernorm"}, .partial = 0.25},
	{"nemotron", "NemotronForCausalLM", .size = {32, 6144, 24576, 256000, 4096, 48, DERIVED, DERIVED},
		.flags = MT_LAYERNORM | MT_NORM_BIAS | MT_NORM_ONE, .flag_key = {ATTENTION_BIAS, MLP_BIAS}, .act = "relu2",
		.ungated = true, .eps_key = "norm_eps", .eps = 1e-5, .init_range = 0.0134, .partial = 0.5},
	{"jais2", "Jais2ForCausalLM", .size = {32, 3328, 26624, 150272, 8192, 26, DERIVED, DERIVED},
		.heads_divide_hidden = true, .flags = MT_LAYERNORM | MT_NORM_BIAS,
		.flag_key = {{"attention_bias", MT_QKV_BIAS | MT_O_BIAS, true}, {"mlp_bias", MT_MLP_BIAS, true}},
		.act = "relu2", .ungated = true, .eps_key = "layer_norm_eps", .eps = 1e-5},
	{"nanochat", "NanoChatForCausalLM", .size = {12, 768, 8192, 50304, 2048, 6, DERIVED, DERIVED},
		.flags = MT_NORM_PLAIN | MT_QK_NORM | MT_QK_NORM_AFTER | MT_QK_NORM_PLAIN | MT_INIT_BY_DEPTH | MT_INIT_O,
		.flag_key = {ATTENTION_BIAS}, .number = {{"final_logit_softcapping", OF_MODEL(logit_cap), AS_IS, 15}},
		.act = "relu2", .ungated = true, .names = MT_NAMES_NANOCHAT, .pad = 1 + 1, .backwards = true,
		.read = read_nanochat},
	{"bitnet", "BitNetForCausalLM", .size = {30, 2560, 6912, 128256, 2048, 20, 5, DERIVED}, .heads_fill_hidden = true,
		.flags = MT_SUB_NORM, .flag_key = {ATTENTION_BIAS}, .act = "relu2", .eps = 1e-5, .theta = 500000},
	{"arcee", "ArceeForCausalLM", .size = {32, 2560, 18432, 32000, 4096, 32, DERIVED, DERIVED},
		.heads_divide_hidden = true, .flag_key = {ATTENTION_BIAS, MLP_BIAS}, .act = "relu2", .ungated = true,
		.eps = 1e-5},
	{"apertus", "ApertusForCausalLM", .size = {32, 4096, 14336, 131072, 65536, 32, DERIVED, DERIVED}, APERTUS},
	{"apertus1p5_text", "Apertus1p5TextForCausalLM", .size = {32, 4096, 14336, 266752, 65536, 32, DERIVED, DERIVED},
		APERTUS, .read = read_apertus},
	{"ernie4_5", "Ernie4_5ForCausalLM", .size = {18, 1024, 3072, 103424, 131072, 16, 2, 128}, .tied = true,
		.flag_key = {{"use_bias", ALL_BIASES, false}}, .eps = 1e-5, .pad = 1 + 0, .theta = 500000,
		.neighbours = true},
	{"paddleocr_vl_text", "PaddleOCRTextModel", .size = {18, 1024, 3072, 103424, 131072, 16, 2, 128}, .inner = true,
		.mrope = true, .tied = true, .flag_key = {{"use_bias", ALL_BIASES, false}}, .eps = 1e-5, .pad = 1 + 0,
		.theta = 500000},
	{"helium", "HeliumForCausalLM", .size = {24, 2560, 7040, 48000, 4096, 20, 20, 128}, .heads_fill_hidden = true,
		.flag_key = {{"attention_bias", MT_QKV_BIAS, false}, MLP_BIAS}, .eps = 1e-8, .pad = 1 + 3, .theta = 100000,
		.neighbours = true},
	{"hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", .size = {32, 4096, 11008, 290943, 2048, 32, DERIVED, DERIVED},
		.flags = MT_QK_NORM | MT_QK_NORM_AFTER, .flag_key = {ATTENTION_BIAS}, .names = MT_NAMES_HUNYUAN,
		.eps = 1e-5, .pad = 1 + 0, .alpha = true},
	{"hunyuan_vl_text", "HunYuanVLTextModel", .alias = {{"attention_head_dim", "head_dim"},
			{"org_vocab_size", "vocab_size"}, {"pad_id", "pad_token_id"}},
		.size = {32, 4096, 11008, 290943, 2048, 32, DERIVED, DERIVED}, .inner = true, .mrope = true, .tied = true,
		.flags = MT_QK_NORM | MT_QK_NORM_AFTER, .flag_key = {ATTENTION_BIAS}, .names = MT_NAMES_HUNYUAN,
		.eps = 1e-5, .pad = 1 + 0, .alpha = true},
	{"falcon", "FalconForCausalLM", .size = {32, 4544, DERIVED, 65024, 2048, 71, DERIVED, DERIVED},
		.size_name = {[S_FFN] = "ffn_hidden_size", [S_KV_HEADS] = "num_kv_heads", [S_HEAD_DIM] = ""}, .tied = true,
		.flags = MT_LAYERNORM | MT_NORM_BIAS, .flag_key = {{"bias", ALL_BIASES, false}}, .act_key = "activation",
		.act = "gelu", .ungated = true, .names = MT_NAMES_FALCON, .eps_key = "layer_norm_epsilon", .eps = 1e-5,
		.no_pad = true, .read = read_falcon},
	{"bloom", "BloomForCausalLM", .size = {2, 64, DERIVED, 250880, 2048, 8, DERIVED, DERIVED},
		.size_name = {[S_LAYERS] = "n_layer", [S_FFN] = "", [S_POSITIONS] = "seq_length", [S_HEADS] = "n_head",
			[S_KV_HEADS] = "", [S_HEAD_DIM] = ""},
		.alias = {{"num_hidden_layers", "n_layer"}, {"num_attention_heads", "n_head"}, {"n_embed", "hidden_size"}},
		.tied = true, .flags = MT_LAYERNORM | MT_NORM_BIAS | ALL_BIASES, .act_key = "", .act = "gelu_pytorch_tanh",
		.ungated = true, .names = MT_NAMES_BLOOM, .eps_key = "layer_norm_epsilon", .eps = 1e-5, .no_pad = true,
		.refused = {"apply_residual_connection_post_layernorm"}, .read = read_bloom},
	{"mpt", "MptForCausalLM", .size = {24, 2048, DERIVED, 50368, 2048, 16, DERIVED, DERIVED},
		.size_name = {[S_LAYERS] = "n_layers", [S_HIDDEN] = "d_model", [S_FFN] = "", [S_POSITIONS] = "max_seq_len",
			[S_HEADS] = "n_heads", [S_KV_HEADS] = "", [S_HEAD_DIM] = ""},
		.alias = {{"num_hidden_layers", "n_layers"}, {"hidden_size", "d_model"}, {"num_attention_heads", "n_heads"}},
		.tied = true, .flags = MT_LAYERNORM, .act_key = "", .act = "gelu", .ungated = true, .names = MT_NAMES_MPT,
		.eps_key = "layer_norm_epsilon", .eps = 1e-5, .no_pad = true, .dropout_key = {"emb_pdrop"}, .read = read_mpt},
	{"gpt_neox", "GPTNeoXForCausalLM", .size = {44, 6144, 24576, 50432, 2048, 64, DERIVED, DERIVED},
		.size_name = {[S_KV_HEADS] = ""}, .heads_fill_hidden = true,
		.flags = MT_LAYERNORM | MT_NORM_BIAS | MT_MLP_BIAS,
		.flag_key = {{"attention_bias", MT_QKV_BIAS | MT_O_BIAS, true}, {"use_parallel_residual", MT_PARALLEL, true}},
		.act = "gelu", .ungated = true, .names = MT_NAMES_NEOX, .eps_key = "layer_norm_eps", .eps = 1e-5,
		.no_pad = true, .theta_key = "rotary_emb_base", .partial = 0.25, .partial_key = "rotary_pct"},
	{"gpt_neox_japanese", "GPTNeoXJapaneseForCausalLM",
		.size = {32, 2560, DERIVED, 32000, 2048, 32, DERIVED, DERIVED}, .size_name = {[S_FFN] = "", [S_KV_HEADS] = ""},
		.heads_fill_hidden = true, .tied = true, .flags = MT_LAYERNORM | MT_NORM_BIAS, .act = "gelu", .ungated = true,
		.names = MT_NAMES_NEOX_JAPANESE, .eps_key = "layer_norm_eps", .eps = 1e-5, .no_pad = true,
		.dropout_key = {"attention_dropout"}, .dropout = 0.1, .dropout_released = true,
		.theta_key = "rotary_emb_base", .partial = 1, .partial_key = "rotary_pct", .read = read_neox_japanese},
	{"gpt2", "GPT2LMHeadModel", GPT2, .flags = GPT2_FLAGS | MT_IN_OUT, .act = "gelu_new", .names = MT_NAMES_GPT2,
		.refused = {"add_cross_attention", "scale_attn_by_inverse_layer_idx"}, .read = read_gpt2},
	{"gpt_bigcode", "GPTBigCodeForCausalLM", GPT2, .flags = GPT2_FLAGS, .act = "gelu_pytorch_tanh",
		.names = MT_NAMES_BIGCODE, .refused = {"add_cross_attention"}, .read = read_bigcode},
	{"openai-gpt", "OpenAIGPTLMHeadModel", .size = {12, 768, DERIVED, 40478, 512, 12, DERIVED, DERIVED},
		.size_name = GPT_SIZES(""), GPT_ALIAS, .tied = true,
		.flags = MT_LAYERNORM | MT_NORM_BIAS | ALL_BIASES | MT_POSITIONS | MT_IN_OUT | MT_SUM_NORM, .act_key = "afn",
		.act = "gelu", .ungated = true, .names = MT_NAMES_OPENAI, .eps_key = "layer_norm_epsilon", .eps = 1e-5,
		.no_pad = true, GPT_DROPOUT, .read = read_openai},
	{"ctrl", "CTRLLMHeadModel", .size = {48, 1280, 8192, 246534, 256, 16, DERIVED, DERIVED},
		.size_name = GPT_SIZES("dff"), GPT_ALIAS, .tied = true,
		.flags = MT_LAYERNORM | MT_NORM_BIAS | ALL_BIASES | MT_HEAD_BIAS, .act_key = "", .act = "relu", .ungated = true,
		.names = MT_NAMES_CTRL, .eps_key = "layer_norm_epsilon", .no_pad = true, GPT_DROPOUT, .read = read_ctrl},
	{"gptj", "GPTJForCausalLM", GPT_J, .names = MT_NAMES_GPTJ},
	{"codegen", "CodeGenForCausalLM", GPT_J, .names = MT_NAMES_CODEGEN},
	{"gpt_neo", "GPTNeoForCausalLM", .size = {24, 2048, DERIVED, 50257, 2048, 16, DERIVED, DERIVED},
		.size_name = {[S_LAYERS] = "num_layers", [S_HEADS] = "num_heads", [S_KV_HEADS] = "", [S_HEAD_DIM] = ""},
		.alias = {{"num_hidden_layers", "num_layers"}, {"num_attention_heads", "num_heads"},
			{"window_size", "sliding_window"}},
		.tied = true, .flags = MT_LAYERNORM | MT_NORM_BIAS | MT_POSITIONS | MT_O_BIAS | MT_MLP_BIAS,
		.act_key = "activation_function", .act = "gelu_new", .ungated = true, .names = MT_NAMES_GPT_NEO,
		.eps_key = "layer_norm_epsilon", .eps = 1e-5, .no_pad = true, .dropout_key = {"resid_dropout", "embed_dropout"},
		.window = WINDOW_PATTERN, .tokens = 256, .pattern = 2, .first_full = true, .read = read_gpt_neo},
	{"xglm", "XGLMForCausalLM", .size = {24, 1024, 4096, 256008, 2048, 16, DERIVED, DERIVED},
		.size_name = {[S_LAYERS] = "num_layers", [S_HIDDEN] = "d_model", [S_FFN] = "ffn_dim",
			[S_HEADS] = "attention_heads", [S_KV_HEADS] = "", [S_HEAD_DIM] = ""},
		.alias = {{"num_hidden_layers", "num_layers"}, {"hidden_size", "d_model"},
			{"num_attention_heads", "attention_heads"}, {"init_std", "initializer_range"}},
		.tied = true, .flags = MT_LAYERNORM | MT_NORM_BIAS | ALL_BIASES, .act_key = "activation_function",
		.act = "gelu", .ungated = true, .names = MT_NAMES_XGLM, .eps_key = "", .eps = 1e-5, .pad = 1 + 1,
		.refused = {"add_cross_attention"}, .dropout_key = {"dropout", "activation_dropout"}, .dropout = 0.1,
		.dropout_released = true, .read = read_xglm},
	{"opt", "OPTForCausalLM", .size = {12, 768, 3072, 50272, 2048, 12, DERIVED, DERIVED},
		.size_name = {[S_FFN] = "ffn_dim", [S_KV_HEADS] = "", [S_HEAD_DIM] = ""},
		.alias = {{"init_std", "initializer_range"}}, .tied = true, .flags = MT_LAYERNORM | MT_POSITIONS,
		.flag_key = {{"enable_bias", ALL_BIASES, true}, {"layer_norm_elementwise_affine", MT_NORM_BIAS, true}},
		.act_key = "activation_function", .act = "relu", .ungated = true, .names = MT_NAMES_OPT, .eps_key = "",
		.eps = 1e-5, .pad = 1 + 1, .refused = {"_remove_final_layer_norm"}, .read = read_opt, .dropout = 0.1,
		.dropout_key = {"dropout"}, .dropout_released = true, .nope = NOPE_FULL},
	{"biogpt", "BioGptForCausalLM", .size = {24, 1024, 4096, 42384, 1024, 16, DERIVED, DERIVED},
		.size_name = {[S_KV_HEADS] = "", [S_HEAD_DIM] = ""}, .tied = true,
		.flags = MT_LAYERNORM | MT_NORM_BIAS | MT_POSITIONS | ALL_BIASES, .act = "gelu", .ungated = true,
		.names = MT_NAMES_BIOGPT, .eps_key = "", .eps = 1e-5, .pad = 1 + 1, .read = read_biogpt, .dropout = 0.1,
		.dropout_key = {"hidden_dropout_prob", "attention_probs_dropout_prob", "activation_dropout"},
		.dropout_released = true, .nope = NOPE_FULL},
	{"phi", "PhiForCausalLM", .size = {24, 2048, 8192, 51200, 2048, 32, DERIVED, DERIVED},
		.flags = MT_LAYERNORM | MT_NORM_BIAS | PARALLEL_ONE_NORM | ALL_BIASES | MT_HEAD_BIAS, .act = "gelu_new",
		.ungated = true, .names = MT_NAMES_PHI_1, .eps_key = "layer_norm_eps", .eps = 1e-5,
		.refused = {"qk_layernorm"}, .dropout_released = true, .partial = 0.5},
	{"gemma", "GemmaForCausalLM", .size = {28, 3072, 24576, 256000, 8192, 16, 16, 256}, .tied = true,
		.flags = MT_NORM_ONE, .flag_key = {ATTENTION_BIAS}, .act = "gelu_pytorch_tanh", .pad = 1 + 0,
		.refused = {"use_bidirectional_attention"}, .read = read_gemma_1},
	{"gemma2", "Gemma2ForCausalLM", .size = {26, 2304, 9216, 256000, 8192, 8, 4, 256}, GEMMA, .flags = GEMMA_FLAGS,
		.flag_key = {ATTENTION_BIAS}, .read = read_gemma,
		.number = {GEMMA_2_NUMBERS}, .window = WINDOW_PATTERN, .pattern = 2},
	{"vaultgemma", "VaultGemmaForCausalLM", .size = {26, 2304, 9216, 256000, 8192, 8, 4, 256}, GEMMA,
		.flags = MT_NORM_ONE, .flag_key = {ATTENTION_BIAS}, .read = read_gemma, .number = {GEMMA_2_NUMBERS},
		.window = WINDOW_PATTERN, .pattern = 2},
	{"gemma3_text", "Gemma3ForCausalLM", .size = {26, 2304, 9216, 262208, 131072, 8, 4, 256}, GEMMA,
		.flags = GEMMA_FLAGS | MT_QK_NORM, .flag_key = {ATTENTION_BIAS}, .read = read_gemma,
		.number = {Q_SCALE, {"final_logit_softcapping", OF_MODEL(logit_cap), AS_IS, NAN}}, .theta = 1e6,
		.local_theta = 1e4, .local_theta_key = "rope_local_base_freq", .window = WINDOW_PATTERN, .pattern = 6,
		.pattern_key = SLIDING_PATTERN},
	{"gemma3n_text", "Gemma3nForCausalLM", .size = {35, 2048, DERIVED, 262400, 32768, 8, 2, 256},
		.size_name = {[S_FFN] = ""}, GEMMA_NAMES, .flags = MT_POST_NORM | MT_QK_NORM | MT_V_NORM,
		.flag_key = {ATTENTION_BIAS}, .number = {{"final_logit_softcapping", OF_MODEL(logit_cap), AS_IS, 30}},
		.theta = 1e6, .local_theta = 1e4, .local_theta_key = "rope_local_base_freq", .window = WINDOW_PATTERN,
		.tokens = 512, .pattern = 5, .short_inputs = true, .read = read_gemma3n},
	{"gemma4_text", "Gemma4ForCausalLM", .size = {30, 2304, 9216, 262144, 131072, 8, 4, 256}, GEMMA_4,
		.read = read_gemma4, .tokens = 512,
		.experts = {"num_experts", REQUIRED, REQUIRED, "moe_intermediate_size", REQUIRED,
			.per_token_key = "top_k_experts", .flags = MT_RENORMALISE | MT_PACKED | MT_OWN_NORMS, .by_read = true}},
	{"gemma4_unified_text", "Gemma4UnifiedForCausalLM", .size = {30, 2304, 9216, 262144, 262144, 8, 4, 256}, GEMMA_4,
		.read = read_gemma4_unified, .tokens = 1024},
	{"glm4", "Glm4ForCausalLM", .size = {40, 4096, 13696, 151552, 131072, 32, 2, 128}, .flags = MT_POST_NORM,
		.flag_key = {{"attention_bias", MT_QKV_BIAS, true}}, .names = MT_NAMES_GLM, .eps = 1.5625e-7,
		.pad = 1 + 151329, .partial = 0.5, .neighbours = true},
	{"glm4v_text", "Glm4vTextModel", .size = {40, 4096, 13696, 151552, 32768, 32, 2, DERIVED},
		.size_name = {[S_HEAD_DIM] = ""}, .inner = true, .flags = MT_POST_NORM | MT_QKV_BIAS, .names = MT_NAMES_GLM,
		.eps = 1e-5, .partial = 1, .neighbours = true},
	{"glm_ocr_text", "GlmOcrTextModel", .size = {16, 1024, 4096, 59392, 131072, 16, 8, DERIVED}, .inner = true,
		.flags = MT_POST_NORM, .names = MT_NAMES_GLM, .eps = 1e-5, .partial = 1, .neighbours = true},
	{"glm", "GlmForCausalLM", .size = {40, 4096, 13696, 151552, 131072, 32, 2, 128},
		.flag_key = {{"attention_bias", MT_QKV_BIAS, true}}, .names = MT_NAMES_GLM, .eps = 1.5625e-7,
		.pad = 1 + 151329, .partial = 0.5, .neighbours = true},
	{"olmo", "OlmoForCausalLM", .size = {32, 4096, 11008, 50304, 2048, 32, DERIVED, DERIVED},
		.flags = MT_LAYERNORM | MT_NORM_PLAIN, .flag_key = {ATTENTION_BIAS}, .eps_key = "", .eps = 1e-5, .pad = 1 + 1,
		.type_only = true, .read = read_olmo},
	{"olmo2", "Olmo2ForCausalLM", .size = {32, 4096, 11008, 50304, 2048, 32, DERIVED, DERIVED}, .flags = OLMO_FLAGS,
		.flag_key = {ATTENTION_BIAS}, .eps = 1e-5, .pad = 1 + 1, .type_only = true},
	{"olmo3", "Olmo3ForCausalLM", .size = {32, 4096, 11008, 50304, 2048, 32, DERIVED, DERIVED}, .flags = OLMO_FLAGS,
		.flag_key = {ATTENTION_BIAS}, .eps = 1e-5, .pad = 1 + 1, .theta = 5e5, .local_theta = 5e5,
		.window = WINDOW_PATTERN, .pattern = 4},
	{"olmo_hybrid", "OlmoHybridForCausalLM", .size = {32, 3840, 11008, 100352, 65536, 30, DERIVED, DERIVED},
		.flags = OLMO_FLAGS, .flag_key = {ATTENTION_BIAS}, .only_act = true, .names = MT_NAMES_OLMO_HYBRID,
		.pad = 1 + 100277, .delta = true, .read = read_olmo_hybrid},
	{"exaone4", "Exaone4ForCausalLM", .size = {32, 4096, 16384, 102400, 2048, 32, 32, DERIVED},
		.flags = MT_NO_PRE_NORM | MT_POST_NORM | MT_QK_NORM, .eps = 1e-5, .window = WINDOW_PATTERN,
		.window_null_none = true, .pattern = 4, .pattern_key = SLIDING_PATTERN, .nope = NOPE_BESIDE_WINDOWS},
	{"phi3", "Phi3ForCausalLM", .size = {32, 3072, 8192, 32064, 4096, 32, DERIVED, DERIVED}, .pad = 1 + 32000, PHI_3},
	{"phi4_multimodal", "Phi4MultimodalForCausalLM", .size = {32, 3072, 8192, 200064, 131072, 32, 8, DERIVED},
		.pad = 1 + 199999, PHI_3},
	{"smollm3", "SmolLM3ForCausalLM", .size = {36, 2048, 11008, 128256, 32768, 16, 4, DERIVED}, .tied = true,
		.flag_key = {ATTENTION_BIAS, MLP_BIAS}, .pad = 1 + 128004, .theta = 2e6, .window = WINDOW_NOPE,
		.nope = NOPE_LIST},
	{"seed_oss", "SeedOssForCausalLM", .size = {64, 4096, 27648, 155136, 524288, 80, 8, 128},
		.flag_key = {{"attention_bias", MT_QKV_BIAS, true}, {"attention_out_bias", MT_O_BIAS, false}, MLP_BIAS},
		.pad = 1 + 1, .dropout = 0.1, .dropout_key = {"attention_dropout", "residual_dropout"},
		.dropout_released = true},
	{"ministral3", "Ministral3ForCausalLM", .size = {34, 4096, 14336, 131072, 262144, 32, 8, 128}, .eps = 1e-5,
		.pad = 1 + 11,
		.rope = "{\"rope_type\": \"yarn\", \"rope_theta\": 1000000.0, \"factor\": 16.0, "
				"\"original_max_position_embeddings\": 16384, \"beta_fast\": 32.0, \"beta_slow\": 1.0, "
				"\"mscale_all_dim\": 1.0, \"mscale\": 1.0, \"llama_4_scaling_beta\": 0.1}",
		.temperature = true, .window = WINDOW_ALL, .window_missing_none = true},
	{"mixtral", "MixtralForCausalLM", .size = {32, 4096, 14336, 32000, 131072, 32, 8, DERIVED},
		.names = MT_NAMES_MIXTRAL, .eps = 1e-5, .theta = 1e6, .window = WINDOW_ALL, .window_missing_none = true,
		.experts = {"num_local_experts", 8, 2, .alias = "num_experts", .flags = MT_RENORMALISE, .aux = 0.001f}},
	{"qwen2_moe", "Qwen2MoeForCausalLM", .size = {24, 2048, 5632, 151936, 32768, 16, 16, DERIVED},
		.flag_key = {{"qkv_bias", MT_QKV_BIAS, true}}, .names = MT_NAMES_QWEN_MOE, .refused = {"use_sliding_window"},
		.experts = {"num_experts", 60, 4, "moe_intermediate_size", 1408, "shared_expert_intermediate_size", 5632,
			.flags = MT_SHARED_GATE, .renormalise_key = "norm_topk_prob", .aux = 0.001f, .dense = DENSE_LISTED}},
	{"qwen3_moe", "Qwen3MoeForCausalLM", .size = {24, 2048, 6144, 151936, 32768, 32, 4, DERIVED}, .flags = MT_QK_NORM,
		.flag_key = {ATTENTION_BIAS}, .refused = {"use_sliding_window"},
		.experts = {"num_experts", 128, 8, "moe_intermediate_size", 768, .alias = "num_local_experts",
			.renormalise_key = "norm_topk_prob", .aux = 0.001f, .dense = DENSE_LISTED}},
	{"flint", "FlintForCausalLM", .size = {49, 2048, 6144, 150144, 262144, 32, 4, 128}, .flags = MT_QK_NORM | MT_SINKS,
		.flag_key = {ATTENTION_BIAS}, .names = MT_NAMES_FLINT, .window = WINDOW_PATTERN, .tokens = 513, .pattern = 4,
		.nope = NOPE_FULL, .read = read_flint,
		.experts = {"num_experts", 256, 6, "moe_intermediate_size", 512, "shared_expert_intermediate_size", 1024,
			.score = MT_SIGMOID, .flags = MT_EXACT_ROUTER, .renormalise_key = "norm_topk_prob", .renormalise = true,
			.aux = 0.0005f, .dense = DENSE_LISTED, .by_read = true}},
	{"mellum", "MellumForCausalLM", .size = {28, 2304, 7168, 98304, 131072, 32, 4, 128}, .flags = MT_QK_NORM,
		.flag_key = {ATTENTION_BIAS}, .theta = 5e5, .local_theta = 1e4,
		.rope = "{\"full_attention\": {\"rope_type\": \"default\", \"rope_theta\": 500000.0}, "
				"\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0}}",
		.window = WINDOW_PATTERN, .tokens = 1024, .window_null_none = true, .pattern = 1,
		.experts = {"num_experts", 64, 8, "moe_intermediate_size", 896, .alias = "num_local_experts",
			.renormalise_key = "norm_topk_prob", .renormalise = true, .aux = 0.001f, .dense = DENSE_TYPES}},
	{"qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", .size = {40, 2048, DERIVED, 248320, 32768, 16, 2, 256},
		.size_name = {[S_FFN] = ""}, .mrope = true, .flags = MT_NORM_ONE | MT_QK_NORM, .flag_key = {ATTENTION_BIAS},
		.only_act = true, .names = MT_NAMES_QWEN_MOE, .partial = 0.25, .delta = true, .read = read_delta,
		.experts = {"num_experts", 256, 8, "moe_intermediate_size", 512, "shared_expert_intermediate_size", 512,
			.flags = MT_SHARED_GATE | MT_RENORMALISE, .aux = 0.001f}},
	{"qwen3_next", "Qwen3NextForCausalLM", .size = {48, 2048, 5632, 151936, 32768, 16, 2, 256},
		.flags = MT_NORM_ONE | MT_QK_NORM, .flag_key = {ATTENTION_BIAS}, .only_act = true,
		.names = MT_NAMES_QWEN_NEXT, .partial = 0.25, .delta = true, .read = read_delta,
		.experts = {"num_experts", 512, 10, "moe_intermediate_size", 512, "shared_expert_intermediate_size", 512,
			.flags = MT_SHARED_GATE, .renormalise_key = "norm_topk_prob", .renormalise = true, .aux = 0.001f,
			.dense = DENSE_LISTED}},
	{"lara_mini", "LaraMiniForCausalLM", .size = {34, 1024, DERIVED, 151936, 131072, 16, 4, 128},
		.size_name = {[S_FFN] = ""}, .tied = true, .flags = MT_QK_NORM, .flag_key = {ATTENTION_BIAS}, .only_act = true,
		.names = MT_NAMES_LARA, .window = WINDOW_PATTERN, .tokens = 512, .delta = true, .nope = NOPE_FULL,
		.read = read_lara,
		.experts = {"num_experts", 128, 4, "moe_intermediate_size", 512, "shared_expert_intermediate_size", 512,
			.flags = MT_PACKED | MT_EXACT_ROUTER, .renormalise_key = "norm_topk_prob", .renormalise = true,
			.aux = 0.001f}},
	{"olmoe", "OlmoeForCausalLM", .size = {16, 2048, 2048, 50304, 4096, 16, DERIVED, DERIVED},
		.flags = MT_QK_NORM | MT_QK_NORM_ROW, .flag_key = {ATTENTION_BIAS}, .eps = 1e-5, .pad = 1 + 1,
		.read = read_olmo,
		.experts = {"num_experts", 64, 8, .alias = "num_local_experts", .renormalise_key = "norm_topk_prob",
			.aux = 0.01f}},
	{"flex_olmo", "FlexOlmoForCausalLM", .size = {32, 4096, 11008, 100352, 4096, 32, DERIVED, DERIVED},
		.flags = OLMO_FLAGS, .flag_key = {ATTENTION_BIAS}, .pad = 1 + 100277, .theta = 5e5,
		.experts = {"num_experts", 7, 5, .alias = "num_local_experts", .renormalise_key = "norm_topk_prob",
			.aux = 0.01f}},
	{"aria_text", "AriaTextForCausalLM", .size = {32, 4096, 4096, 32000, 2048, 32, DERIVED, DERIVED},
		.flag_key = {ATTENTION_BIAS}, .names = MT_NAMES_ARIA, .pad = 1 + 2, .refused = {"mlp_bias"},
		.experts = {"moe_num_experts", 8, 2, .shared_key = "moe_num_shared_experts", .shared = 2, .shared_counts = true,
			.per_token_key = "moe_topk", .score = MT_TOP_SOFTMAX,
			.flags = MT_PACKED | MT_TRANSPOSED | MT_GATE_FIRST}},
	{"granitemoe", "GraniteMoeForCausalLM", .size = {32, 4096, 11008, 32000, 2048, 32, DERIVED, DERIVED},
		.flag_key = {ATTENTION_BIAS},
		GRANITE_FACTORS,
		.names = MT_NAMES_GRANITE_MOE,
		.experts = {"num_local_experts", 8, 2, .score = MT_TOP_SOFTMAX, .flags = MT_PACKED, .aux = 0.001f}},
	{"granitemoeshared", "GraniteMoeSharedForCausalLM", .size = {32, 4096, 11008, 32000, 2048, 32, DERIVED, DERIVED},
		.flag_key = {ATTENTION_BIAS},
		GRANITE_FACTORS,
		.names = MT_NAMES_GRANITE_MOE, .experts = {GRANITE_EXPERTS(0)}},
	{"granitemoe_swa", "GraniteMoeSWAForCausalLM", .size = {32, 4096, 11008, 32000, 2048, 32, DERIVED, DERIVED},
		.flag_key = {ATTENTION_BIAS},
		GRANITE_FACTORS, GRANITE_SWA,
		.names = MT_NAMES_GRANITE_MOE_5, .experts = {GRANITE_EXPERTS(0)}},
	{"mamba", "MambaForCausalLM", MAMBA_1, .read = read_mamba_1},
	{"falcon_mamba", "FalconMambaForCausalLM", MAMBA_1, .read = read_falcon_mamba},
	{"jamba", "JambaForCausalLM", .alias = {{"num_local_experts", "num_experts"}},
		.size = {32, 4096, 14336, 65536, 262144, 32, 8, DERIVED}, .only_act = true, .names = MT_NAMES_JAMBA,
		.pad = 1 + 0, .read = read_jamba, .experts = {"num_experts", 16, 2, .aux = 0.001f, .by_read = true}},
	{"granitemoehybrid", "GraniteMoeHybridForCausalLM", .alias = {{"layers_block_type", "layer_types"}},
		.size = {32, 4096, 11008, 32000, 2048, 32, DERIVED, DERIVED}, .flag_key = {ATTENTION_BIAS}, .only_act = true,
		GRANITE_FACTORS,
		.names = MT_NAMES_GRANITE_MOE, .mamba = true, .read = read_granite_hybrid,
		.experts = {GRANITE_EXPERTS(1024), .by_read = true}},
	{"bamba", "BambaForCausalLM", .size = {32, 4096, 14336, 128000, 262144, 32, 8, DERIVED},
		.flag_key = {ATTENTION_BIAS, MLP_BIAS}, .only_act = true, .names = MT_NAMES_FALCON_H1, .eps = 1e-5,
		.pad = 1 + 0, .partial = 0.5, .partial_key = "", .read = read_bamba},
	{"mamba2", "Mamba2ForCausalLM", .size = {64, 4096, DERIVED, 32768, 1000000000, 1, 1, 2},
		.size_name = {[S_FFN] = "", [S_POSITIONS] = "", [S_HEADS] = "", [S_KV_HEADS] = "", [S_HEAD_DIM] = ""},
		.only_act = true, .names = MT_NAMES_NEMOTRON_H, .eps_key = "layer_norm_epsilon", .eps = 1e-5,
		.init_range = 0.1, .no_pad = true, .read = read_mamba2},
	{"falcon_h1", "FalconH1ForCausalLM", .alias = {{"layers_block_type", "layer_types"}},
		.size = {32, 4096, 14336, 128000, 8192, 32, 8, DERIVED}, .flag_key = {ATTENTION_BIAS, MLP_BIAS},
		.only_act = true,
		.number = {{"embedding_multiplier", OF_MODEL(embed_scale), AS_IS, 1},
			{"attention_out_multiplier", OF_MODEL(residual_scale), AS_IS, 1},
			{"attention_in_multiplier", OF_MODEL(attention_in_scale), AS_IS, 1},
			{"ssm_out_multiplier", OF_MODEL(mamba_out_scale), AS_IS, 1},
			{"lm_head_multiplier", OF_MODEL(logit_scale), AS_IS, 1}},
		.names = MT_NAMES_FALCON_H1, .eps = 1e-5, .pad = 1 + 0, .beside = true, .read = read_falcon_h1},
	{"nemotron_h", "NemotronHForCausalLM",
		.alias = {{"layer_types", "layers_block_type"}, {"mamba_n_groups", "n_groups"}, {"mamba_d_conv", "conv_kernel"},
			{"mamba_dt_min", "time_step_min"}, {"mamba_conv_bias", "use_conv_bias"}},
		.size = {DERIVED, 4096, 21504, 131072, 4096, 32, 8, 128}, .size_name = {[S_LAYERS] = ""},
		.act_key = "mlp_hidden_act", .act = "relu2", .ungated = true, .names = MT_NAMES_NEMOTRON_H,
		.eps_key = "layer_norm_epsilon", .eps = 1e-5, .no_pad = true, .refused = {"mlp_bias"},
		.nope = NOPE_FULL, .read = read_nemotron_h,
		.experts = {"n_routed_experts", 8, 2, "moe_intermediate_size", 7688, "moe_shared_expert_intermediate_size",
			7688, SIGMOID_EXPERTS, .renormalise = true, .alias = "num_local_experts", .groups = 1, .by_read = true}},
	{"glm4_moe", "Glm4MoeForCausalLM", .size = {46, 4096, 10944, 151552, 131072, 96, 8, DERIVED},
		.flag_key = {{"attention_bias", MT_QKV_BIAS, false}, {"use_qk_norm", MT_QK_NORM, false}}, .eps = 1e-5,
		.partial = 0.5,
		.experts = {DEEPSEEK_EXPERTS(128, 8, 1408, 1), .renormalise = true, .groups = 1, .dense = DENSE_FIRST,
			.first = 1}},
	{"glm4v_moe_text", "Glm4vMoeTextModel", .size = {46, 4096, 10944, 151424, 65536, 96, 8, DERIVED}, .inner = true,
		.flag_key = {{"attention_bias", MT_QKV_BIAS, true}}, .eps = 1e-5, .partial = 0.5,
		.experts = {DEEPSEEK_EXPERTS(128, 8, 1408, 1), .renormalise = true, .groups = 1, .aux = 0.0001f,
			.dense = DENSE_FIRST, .first = 1}},
	{"glm4_moe_lite", "Glm4MoeLiteForCausalLM", .alias = {{"head_dim", "qk_rope_head_dim"}},
		.size = {47, 2048, 10240, 154880, 202752, 20, 20, 64}, .size_name = {[S_HEAD_DIM] = "qk_rope_head_dim"},
		.flag_key = {ATTENTION_BIAS}, .eps = 1e-5, .latent = {768, 512, 192, 256},
		.experts = {DEEPSEEK_EXPERTS(64, 4, 1536, 1), .renormalise = true, .scale = 1.8f, .groups = 1,
			.dense = DENSE_TYPES, .first = 1}},
	{"deepseek_v2", "DeepseekV2ForCausalLM", .size = {32, 4096, 11008, 102400, 2048, 32, DERIVED, 64},
		.size_name = {[S_HEAD_DIM] = "qk_rope_head_dim"}, .flag_key = {ATTENTION_BIAS},
		.refused = {"mlp_bias", "norm_topk_prob"}, .neighbours = true, .latent = {1536, 512, 128, 128},
		.read = read_deepseek_v2,
		.experts = {DEEPSEEK_V2_EXPERTS, .dense = DENSE_FIRST}},
	{"deepseek_ocr2_text", "DeepseekOcr2TextModel", .size = {32, 4096, 11008, 102400, 2048, 32, DERIVED, DERIVED},
		.size_name = {[S_HEAD_DIM] = ""}, .inner = true, .flag_key = {ATTENTION_BIAS}, .refused = {"mlp_bias"},
		.read = read_deepseek_v2,
		.experts = {DEEPSEEK_V2_EXPERTS, .dense = DENSE_TYPES}},
	{"deepseek_v3", "DeepseekV3ForCausalLM", .size = {61, 7168, 18432, 129280, 4096, 128, 128, 64},
		.size_name = {[S_HEAD_DIM] = "qk_rope_head_dim"}, .flag_key = {ATTENTION_BIAS},
		.latent = {1536, 512, 128, 128},
		.experts = {DEEPSEEK_EXPERTS(256, 8, 2048, 1), .renormalise = true, .scale = 2.5f, .groups = 8,
			.groups_used = 4, .dense = DENSE_FIRST, .first = 3}},
	{"deepseek_v32", "DeepseekV32ForCausalLM", .size = {61, 7168, 18432, 129280, 163840, 128, 128, 64},
		.size_name = {[S_HEAD_DIM] = "qk_rope_head_dim"}, .flag_key = {ATTENTION_BIAS}, .neighbours = true,
		.latent = {1536, 512, 128, 128}, .any_head_dim = true, .read = read_indexed,
		.experts = {DEEPSEEK_EXPERTS(256, 8, 2048, 1), .renormalise = true, .scale = 2.5f, .groups = 8,
			.groups_used = 4, .dense = DENSE_TYPES, .first = 3}},
	{"glm_moe_dsa", "GlmMoeDsaForCausalLM", .size = {78, 6144, 12288, 154880, 202752, 64, 64, 64},
		.size_name = {[S_HEAD_DIM] = "qk_rope_head_dim"}, .flag_key = {ATTENTION_BIAS}, .eps = 1e-5,
		.neighbours = true, .latent = {2048, 512, 192, 256}, .any_head_dim = true, .read = read_indexed,
		.experts = {DEEPSEEK_EXPERTS(256, 8, 2048, 1), .renormalise = true, .scale = 2.5f, .groups = 1,
			.dense = DENSE_TYPES, .first = 3}},
	{"sarvam_mla", "SarvamMLAForCausalLM", .shares = "deepseek_v3",
		.alias = {{"num_experts", "n_routed_experts"}, {"num_shared_experts", "n_shared_experts"}},
		.size = {32, 4096, 16384, 262144, 4096, 64, DERIVED, 64}, .size_name = {[S_HEAD_DIM] = "qk_rope_head_dim"},
		.flag_key = {ATTENTION_BIAS}, .init_range = 0.006, .latent = {0, 512, 128, 128}, .any_head_dim = true,
		.experts = {DEEPSEEK_EXPERTS(128, 8, 2048, 1), .renormalise = true, .scale = 2.5f, .groups = 1,
			.dense = DENSE_FIRST, .first = 1}},
	{"youtu", "YoutuForCausalLM", .size = {32, 2048, 6144, 128256, 131072, 16, 16, 64},
		.size_name = {[S_HEAD_DIM] = "qk_rope_head_dim"}, .tied = true, .flags = MT_INIT_EMBED,
		.flag_key = {ATTENTION_BIAS}, .latent = {1536, 512, 128, 128}, .read = read_youtu},
	{"minicpm3", "MiniCPM3ForCausalLM", .size = {62, 2560, 6400, 73448, 32768, 40, 40, 32},
		.size_name = {[S_HEAD_DIM] = "qk_rope_head_dim"}, .heads_divide_hidden = true, .tied = true,
		.flag_key = {ATTENTION_BIAS, MLP_BIAS},
		.number = {{"scale_emb", OF_MODEL(embed_scale), AS_IS, 12},
			{"scale_depth", OF_MODEL(residual_scale), AS_IS, 1.4},
			{"dim_model_base", OF_MODEL(logit_scale), AS_IS, 256}},
		.eps = 1e-5, .init_range = 0.1, .latent = {768, 256, 64, 64}, .any_head_dim = true, .read = read_minicpm3},
	{"kimi_linear", "KimiLinearForCausalLM",
		.alias = {{"model_max_length", "max_position_embeddings"}, {"num_experts_per_token", "num_experts_per_tok"},
			{"num_shared_experts", "n_shared_experts"}, {"num_expert_group", "n_group"},
			{"moe_renormalize", "norm_topk_prob"}},
		.size = {27, 2304, 9216, 163840, 1048576, 32, 32, 64}, .size_name = {[S_HEAD_DIM] = "qk_rope_head_dim"},
		.flag_key = {ATTENTION_BIAS}, .names = MT_NAMES_KIMI, .eps = 1e-5, .pad = 1 + 163839,
		.refused = {"tie_word_embeddings"}, .delta = true,
		.latent = {0, 512, 128, 128}, .any_head_dim = true, .read = read_kimi,
		.experts = {"num_experts", 256, 8, "moe_intermediate_size", 1024, "n_shared_experts", 1, true,
			SIGMOID_EXPERTS, .renormalise = true, .scale = 2.446f, .alias = "num_local_experts", .groups = 1,
			.dense = DENSE_TYPES, .first = 1}},
	{"mistral4", "Mistral4ForCausalLM", .size = {36, 4096, 12288, 131072, 1048576, 32, 32, 64},
		.size_name = {[S_HEAD_DIM] = "qk_rope_head_dim"}, .flag_key = {ATTENTION_BIAS}, .pad = 1 + 11,
		.rope = "{\"type\": \"yarn\", \"rope_theta\": 10000.0, \"factor\": 128.0, "
				"\"original_max_position_embeddings\": 8192, \"beta_fast\": 32.0, \"beta_slow\": 1.0, "
				"\"mscale_all_dim\": 1.0, \"mscale\": 1.0, \"llama_4_scaling_beta\": 0.1}",
		.temperature = true, .latent = {1024, 256, 64, 128},
		.experts = {"n_routed_experts", 128, 4, "moe_intermediate_size", 2048, "n_shared_experts", 1, true,
			.alias = "num_local_experts", .renormalise_key = "norm_topk_prob", .renormalise = true, .floor = 1e-20f,
			.scale_key = "routed_scaling_factor", .groups = 1, .dense = DENSE_FIRST}},
	{"dots1", "Dots1ForCausalLM", .size = {62, 4608, 10944, 152064, 2048, 32, 32, DERIVED}, .flags = MT_QK_NORM,
		.flag_key = {ATTENTION_BIAS}, .window = WINDOW_FROM, .from = 62,
		.experts = {DEEPSEEK_EXPERTS(REQUIRED, REQUIRED, 1408, REQUIRED), .groups = 1, .dense = DENSE_FIRST}},
	{"solar_open", "SolarOpenForCausalLM", .size = {48, 4096, DERIVED, 196608, 131072, 64, 8, 128},
		.size_name = {[S_FFN] = ""}, .flag_key = {{"attention_bias", MT_QKV_BIAS, false}}, .eps = 1e-5, .theta = 1e6,
		.partial = 1,
		.experts = {DEEPSEEK_EXPERTS(128, 8, 1280, 1), .renormalise = true, .groups = 1}},
	{"exaone_moe", "ExaoneMoeForCausalLM", .size = {32, 4096, 16384, 102400, 2048, 32, 32, DERIVED},
		.flags = MT_QK_NORM, .names = MT_NAMES_EXAONE_MOE, .eps = 1e-5, .pad = 1 + 0, .window = WINDOW_PATTERN,
		.window_null_none = true, .pattern = 4, .pattern_key = SLIDING_PATTERN, .nope = NOPE_BESIDE_WINDOWS,
		.experts = {"num_experts", 64, 8, "moe_intermediate_size", 1024, "num_shared_experts", 1, true,
			SIGMOID_EXPERTS, .renormalise = true, .scale = 2.5f, .groups = 1, .dense = DENSE_TYPES, .first = 1}},
	{"hy_v3", "HYV3ForCausalLM", .size = {80, 4096, 13312, 120832, 131072, 64, 8, 128}, .flags = MT_QK_NORM,
		.flag_key = {ATTENTION_BIAS}, .names = MT_NAMES_HY_V3, .eps = 1e-5, .init_range = 0.006,
		.refused = {"mlp_bias"}, .theta = 11158840,
		.experts = {"num_experts", 192, 8, "moe_intermediate_size", 1536, "num_shared_experts", 1, true,
			.alias = "num_local_experts", .score = MT_SIGMOID, .flags = MT_CORRECTION | MT_RENORMALISE, .floor = 1e-20f,
			.scale_key = "router_scaling_factor", .scale = 2.826f, .dense = DENSE_TYPES, .first = 1}},
	{"hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", .size = {32, 4096, 11008, 290943, 2048, 32, DERIVED, DERIVED},
		.flags = MT_QK_NORM | MT_QK_NORM_AFTER, .flag_key = {ATTENTION_BIAS}, .names = MT_NAMES_HUNYUAN_MOE,
		.eps = 1e-5, .pad = 1 + 0, .alpha = true, .read = read_hunyuan_experts,
		.experts = {"num_experts", 1, 1, .per_token_key = "moe_topk", .flags = MT_RENORMALISE | MT_EXACT_ROUTER,
			.by_read = true}},
	{"sarvam_moe", "SarvamMoEForCausalLM", .shares = "glm4_moe",
		.alias = {{"num_experts", "n_routed_experts"}, {"num_shared_experts", "n_shared_experts"},
			{"use_qkv_bias", "attention_bias"}},
		.size = {19, 4096, 8192, 262144, 131072, 64, 4, 64},
		.flag_key = {{"attention_bias", MT_QKV_BIAS, false}, {"use_qk_norm", MT_QK_NORM, true}},
		.names = MT_NAMES_SARVAM, .init_range = 0.006, .pad = 1 + 0, .theta = 8e6, .partial = 1,
		.experts = {DEEPSEEK_EXPERTS(128, 6, 1024, 1), .renormalise = true, .scale = 2.5f, .groups = 1,
			.dense = DENSE_FIRST, .first = 1}},
	{"ernie4_5_moe", "Ernie4_5_MoeForCausalLM", .size = {28, 2560, 12288, 103424, 131072, 20, 4, DERIVED}, .tied = true,
		.names = MT_NAMES_ERNIE_MOE, .eps = 1e-5, .pad = 1 + 0, .refused = {"use_bias"}, .theta = 500000,
		.neighbours = true,
		.experts = {"moe_num_experts", 64, 6, "moe_intermediate_size", 1536, "moe_num_shared_experts", 2, true,
			"num_experts", "moe_k", "num_experts_per_tok", .flags = MT_RENORMALISE | MT_CORRECTION,
			.floor_key = "moe_norm_min", .floor = 1e-12f, .aux = 0.001f, .dense = DENSE_RANGE}},
	{"minimax_m2", "MiniMaxM2ForCausalLM", .size = {62, 3072, 1536, 200064, 196608, 48, 8, 128},
		.flags = MT_QK_NORM | MT_QK_NORM_ROW, .names = MT_NAMES_MINIMAX, .theta = 5e6, .partial = 1,
		.read = read_minimax,
		.experts = {"num_local_experts", 256, 8, .alias = "num_experts", .score = MT_SIGMOID,
			.flags = MT_RENORMALISE | MT_CORRECTION, .aux = 0.001f}},
	{"lfm2_moe", "Lfm2MoeForCausalLM", .alias = {{"tie_embedding", "tie_word_embeddings"}},
		.size = {32, 2048, 7168, 65536, 128000, 32, 8, DERIVED}, .tied = true, .flags = MT_QK_NORM, .act_key = "",
		.names = MT_NAMES_LFM2, .eps_key = "norm_eps", .eps = 1e-5, .pad = 1 + 0,
		.theta = 1e6, .conv = true, .read = read_lfm2_experts,
		.experts = {"num_experts", 32, 4, "moe_intermediate_size", 1792, .score = MT_SIGMOID,
			.renormalise_key = "norm_topk_prob", .renormalise = true, .eps = 1e-6f,
			.scale_key = "routed_scaling_factor", .dense = DENSE_NUMBER, .first = 2}},
	{"afmoe", "AfmoeForCausalLM", .size = {32, 2048, 6144, 200192, 16384, 16, DERIVED, 128},
		.flags = MT_POST_NORM | MT_QK_NORM, .flag_key = {ATTENTION_BIAS}, .names = MT_NAMES_AFMOE, .eps = 1e-5,
		.window = WINDOW_PATTERN, .tokens = 1024, .pattern = 4, .pattern_key = "global_attn_every_n_layers",
		.types_win = true, .nope = NOPE_FULL, .read = read_afmoe,
		.experts = {"num_experts", 64, 6, "moe_intermediate_size", 1408, "num_shared_experts", 2, true,
			.score = MT_SIGMOID, .flags = MT_RENORMALISE | MT_CORRECTION, .floor = 1e-20f,
			.scale_key = "route_scale", .dense = DENSE_NUMBER, .first = 1}},
	{"llama4_text", "Llama4ForCausalLM", .size = {48, 5120, 16384, 202048, 131072, 40, 8, 128},
		.size_name = {[S_FFN] = "intermediate_size_mlp"},
		.flag_key = {ATTENTION_BIAS, {"use_qk_norm", MT_QK_NORM | MT_QK_NORM_AFTER | MT_QK_NORM_PLAIN, true}},
		.names = MT_NAMES_LLAMA_4, .eps = 1e-5, .theta = 5e5, .neighbours = true, .spans = true, .nope = NOPE_LIST,
		.read = read_llama4,
		.experts = {"num_local_experts", 16, 1, "intermediate_size", 8192, .score = MT_TOP_SIGMOID,
			.flags = MT_PACKED | MT_TRANSPOSED | MT_GATE_FIRST | MT_WEIGH_INPUT, .dense = DENSE_BY_STEP}},
	{"gpt_oss", "GptOssForCausalLM", .size = {36, 2880, 2880, 201088, 131072, 64, 8, 64}, .flags = MT_SINKS,
		.flag_key = {{"attention_bias", MT_QKV_BIAS | MT_O_BIAS, true}}, .names = MT_NAMES_GPT_OSS, .eps = 1e-5,
		.theta = 150000,
		.rope = "{\"rope_type\": \"yarn\", \"factor\": 32, \"beta_fast\": 32, \"beta_slow\": 1, "
				"\"truncate\": false, \"original_max_position_embeddings\": 4096}",
		.window = WINDOW_PATTERN, .tokens = 128, .pattern = 2, .read = read_gpt_oss,
		.experts = {"num_local_experts", 128, 4, .alias = "num_experts", .score = MT_TOP_SOFTMAX,
			.flags = MT_ROUTER_BIAS | MT_EXPERT_BIAS | MT_PACKED | MT_TRANSPOSED, .aux = 0.001f}},
};

#define GEMMA_WRAPPER(name, class) {name, class "ForConditionalGeneration", name "_text", .tied = true}

static const struct wrapper wrappers[] = {
	GEMMA_WRAPPER("gemma3", "Gemma3"),
	GEMMA_WRAPPER("gemma3n", "Gemma3n"),
	GEMMA_WRAPPER("gemma4", "Gemma4"),
	GEMMA_WRAPPER("gemma4_unified", "Gemma4Unified"),
	{"mistral3", "Mistral3ForConditionalGeneration", "mistral", .any = true, .tied = true},
	{"llava", "LlavaForConditionalGeneration", "llama", .any = true, .text_ties = true},
	{"llava_next", "LlavaNextForConditionalGeneration", "llama", .any = true},
	{"llava_next_video", "LlavaNextVideoForConditionalGeneration", "llama", .any = true, .text_ties = true},
	{"llava_onevision", "LlavaOnevisionForConditionalGeneration", "qwen2", .any = true, .text_ties = true},
	{"video_llava", "VideoLlavaForConditionalGeneration", "llama", .any = true},
	{"vipllava", "VipLlavaForConditionalGeneration", "llama", .any = true},
	{"video_llama_3", "VideoLlama3ForConditionalGeneration", "qwen2", .any = true, .text_ties = true},
	{"fast_vlm", "FastVlmForConditionalGeneration", "qwen2", .any = true, .text_ties = true},
	{"perception_lm", "PerceptionLMForConditionalGeneration", "llama", .any = true, .text_ties_missing = true},
	{"internvl", "InternVLForConditionalGeneration", "qwen2", .any = true, .tied = true},
	{"qianfan_ocr", "QianfanOCRForConditionalGeneration", "qwen3", .any = true},
	{"idefics2", "Idefics2ForConditionalGeneration", "mistral", .any = true},
	{"idefics3", "Idefics3ForConditionalGeneration", "llama", .any = true},
	{"smolvlm", "SmolVLMForConditionalGeneration", "llama", .any = true},
	{"ovis2", "Ovis2ForConditionalGeneration", "qwen2", .any = true, .tied = true},
	{"got_ocr2", "GotOcr2ForConditionalGeneration", "qwen2", .any = true, .tied = true},
	{"pp_chart2table", "GotOcr2ForConditionalGeneration", "qwen2", .any = true, .tied = true},
	{"lighton_ocr", "LightOnOcrForConditionalGeneration", "qwen3", .any = true, .tied = true},
	{"aya_vision", "AyaVisionForConditionalGeneration", "cohere2", .any = true, .tied = true},
	{"cohere2_vision", "Cohere2VisionForConditionalGeneration", "cohere2", .any = true, .tied = true},
	{"apertus1p5", "Apertus1p5ForConditionalGeneration", "apertus1p5_text", .any = false},
	{"aria", "AriaForConditionalGeneration", "aria_text", .any = false},
	{"emu3", "Emu3ForConditionalGeneration", "emu3_text_model", .any = false},
	{"deepseek_ocr2", "DeepseekOcr2ForConditionalGeneration", "deepseek_ocr2_text", .any = false},
	{"deepseek_vl", "DeepseekVLForConditionalGeneration", "llama", .any = true, .tied = true},
	{"deepseek_vl_hybrid", "DeepseekVLHybridForConditionalGeneration", "llama", .any = true, .tied = true},
	{"janus", "JanusForConditionalGeneration", "llama", .any = true, .tied = true},
	{"kimi_k25", "Kimi_K25ForConditionalGeneration", "deepseek_v3", .any = true, .tied = true},
	{"lfm2_vl", "Lfm2VlForConditionalGeneration", "lfm2", .any = true, .tied = true},
	{"exaone4_5", "Exaone4_5_ForConditionalGeneration", "exaone4", .any = true},
	{"hyperclovax_vision_v2", "HyperCLOVAXVisionV2ForConditionalGeneration", "hyperclovax", .any = true, .tied = true},
	{"minicpm_ocr", "MiniCPMOcrForConditionalGeneration", "qwen3_5_text", .any = true, .tied = true},
	{"minicpmv4_6", "MiniCPMV4_6ForConditionalGeneration", "qwen3_5_text", .any = true},
	{"minicpmv4_7", "MiniCPMV4_7ForConditionalGeneration", "qwen3_5_text", .any = true},
	{"nemotron_h_omni", "NemotronH_Omni_Reasoning_V3", "nemotron_h", .any = true, .text_alone = true},
	{"fun_asr_nano", "FunAsrNanoForConditionalGeneration", "qwen3", .any = true, .tied = true},
	{"glmasr", "GlmAsrForConditionalGeneration", "llama", .any = true, .tied = true,
		.text_keys = "{\"vocab_size\": 59264, \"hidden_size\": 2048, \"intermediate_size\": 6144, "
			"\"num_hidden_layers\": 28, \"num_attention_heads\": 16, \"num_key_value_heads\": 4, "
			"\"max_position_embeddings\": 8192, \"rms_norm_eps\": 1e-5, "
			"\"rope_parameters\": {\"rope_theta\": 1e4, \"rope_type\": \"default\"}}"},
	{"granite_speech", "GraniteSpeechForConditionalGeneration", "granite", .any = true, .tied = true},
	{"granite_speech_plus", "GraniteSpeechPlusForConditionalGeneration", "granite", .any = true, .tied = true},
	{"moss_transcribe_diarize", "MossTranscribeDiarizeForConditionalGeneration", "qwen3", .any = true, .tied = true},
	{"omniasr", "OmniASRForConditionalGeneration", "llama", .any = true},
	{"qwen2_audio", "Qwen2AudioForConditionalGeneration", "qwen2", .any = true},
	{"qwen3_asr", "Qwen3ASRForConditionalGeneration", "qwen3", .any = true, .tied = true},
	{"vibevoice_asr", "VibeVoiceAsrForConditionalGeneration", "qwen2", .any = true},
	{"voxtral", "VoxtralForConditionalGeneration", "llama", .any = true,
		.text_keys = "{\"vocab_size\": 131072, \"hidden_size\": 3072, \"intermediate_size\": 8192, "
			"\"num_hidden_layers\": 30, \"num_key_value_heads\": 8, \"head_dim\": 128, "
			"\"max_position_embeddings\": 131072, \"rms_norm_eps\": 1e-5, \"rope_theta\": 1e8}"},
	{"glm4v", "Glm4vForConditionalGeneration", "glm4v_text", .text_ties = true},
	{"glm46v", "Glm46VForConditionalGeneration", "glm4v_text", .any = false},
	{"glmga", "Glm46VForConditionalGeneration", "glm4v_text", .any = false},
	{"glm4v_moe", "Glm4vMoeForConditionalGeneration", "glm4v_moe_text", .text_ties = true},
	{"qwen3_vl", "Qwen3VLForConditionalGeneration", "qwen3_vl_text", .any = false},
	{"qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", "qwen3_vl_moe_text", .any = false},
	{"qwen2_5_omni_thinker", "Qwen2_5OmniThinkerForConditionalGeneration", "qwen2_5_omni_text", .any = false},
	{"qwen3_omni_moe_thinker", "Qwen3OmniMoeThinkerForConditionalGeneration", "qwen3_omni_moe_text", .any = false},
	{"granite4_vision", "Granite4VisionForConditionalGeneration", "granite", .any = false},
	{"granite_docling", "GraniteDoclingForConditionalGeneration", "granite_docling_text", .tied = true},
	{"glm_ocr", "GlmOcrForConditionalGeneration", "glm_ocr_text", .text_ties = true},
	{"paddleocr_vl", "PaddleOCRVLForConditionalGeneration", "paddleocr_vl_text", .at_root = true, .tied = true,
		.text_ties = true},
	{"hunyuan_vl", "HunYuanVLForConditionalGeneration", "hunyuan_vl_text", .at_root = true, .tied = true,
		.text_ties = true},
	{"qwen3_5", "Qwen3_5ForConditionalGeneration", "qwen3_5_text", .any = false},
	{"qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text", .any = false},
	{"llama4", "Llama4ForConditionalGeneration", "llama4_text", .text_alone = true},
	{"qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl_text", .at_root = true, .text_ties = true},
	{"qwen2_vl", "Qwen2VLForConditionalGeneration", "qwen2_vl_text", .at_root = true, .text_ties = true},
};

/* What else transformers has for causal language models (MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) and for images or sound too
 * (MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES): why mt does not train it.
 * tests/bench/figures reads this table, too. */
static const struct {
	const char *why, *names; /* of model_type, with blanks between them */
} untrained[] = {
	{"an encoder, whose tokens see those behind them", "bert bert-generation big_bird camembert data2vec-text "
		"electra ernie megatron-bert rembert roberta roberta-prelayernorm roc_bert roformer xlm xlm-roberta "
		"xlm-roberta-xl xmod"},
	{"the decoder of an encoder, whose output it reads", "bart bigbird_pegasus blenderbot blenderbot-small marian "
		"mbart mllama musicgen musicgen_melody mvp pegasus plbart prophetnet trocr whisper florence2 pix2struct "
		"pp_formulanet t5gemma2 udop vision-encoder-decoder"},
	{"an assistant, which reads another model's keys and values", "gemma4_assistant gemma4_unified_assistant"},
	{"tokens are seen in a random order", "xlnet"},
	{"bytes are grouped to tokens by a second model", "blt"},
	{"a second decoder predicts codes of sound", "moshi"},
	{"attention needs a learned bias by distance", "cpmant inkling2_loop_text inkling2_text inkling_text inkling2 "
		"inkling2_loop inkling_mm_model"},
	{"attention needs an indexer that chooses keys", "axk2 deepseek_v4 dots3_note dots3_note_text hy_v4 "
		"minimax_m3_vl_text qwen4_exp qwen4_exp_text glm5_next hy_v4_vl minimax_m3_vl mistral_large4"},
	{"attention needs other scores (hashed, masked by values, differential)", "diffllama doge reformer"},
	{"attention needs experts, convolutions or another gate", "beam jetmoe laguna lfm3 zaya lfm3_vl step3p7"},
	{"attention needs values of another size than keys", "mimo_v2_flash"},
	{"norms of q and k need biases", "fuyu persimmon"},
	{"a norm behind the embedding is needed", "modernbert-decoder muse_glimmer muse_spark"},
	{"positions need sines, which no file holds", "kosmos-2 kosmos-2.5"},
	{"layers that run several times are needed", "dory hrm_text"},
	{"blocks with two attentions are needed", "longcat_flash"},
	{"another recurrent mixer is needed", "recurrent_gemma rwkv xlstm zamba"},
	{"lightning attention and residuals of normed inputs are needed", "minimax"},
	{"delta attention needs bounded gates, and MLA a gate of each head", "bailing_hybrid"},
	{"a block that several layers share is needed, with adapters of each", "zamba2"},
	{"experts need another router", "kolibri1"},
	{"the router draws experts by chance in training", "phimoe"},
	{"released files clip q, k and v", "dbrx"},
	{"mt has no row for it yet", "git axk1 cohere2_moe cohere_compass_text cohere_compass cosmos3_edge "
		"kyutai_speech_to_text molmo2 unlimited_ocr"},
	{"it reads no text without an image, a protein or a robot's state", "blip blip-2 evolla idefics instructblip "
		"instructblipvideo pi0"},
	{"tokens of a prompt see those behind them", "paligemma"},
	{"blocks of tokens are denoised together", "diffusion_gemma"},
	{"it says of an image whether it is harmful", "shieldgemma2"},
	{"its files have other names of tensors", "cosmos3_omni nemo_speechlm"},
	{"the class of its part qwen2_5_omni_thinker or qwen3_omni_moe_thinker is trained", "qwen2_5_omni "
		"qwen3_omni_moe"},
	{"norms need a weight by time, or for each head", "chameleon voxtral_realtime"},
	{"images and texts have experts of their own", "ernie4_5_vl_moe"},
};
/* clang-format on */

const char *family_untrained(const char *model_type)
{
	size_t n = strlen(model_type);
	for (size_t i = 0; i < sizeof untrained / sizeof *untrained; i++)
		for (const char *name = untrained[i].names; *name; name += strspn(name, " ")) {
			size_t length = strcspn(name, " ");
			if (length == n && !memcmp(name, model_type, n)) return untrained[i].why;
			name += length;
		}
	return NULL;
}

const struct wrapper *wrapper_find(const char *model_type)
{
	for (size_t i = 0; i < sizeof wrappers / sizeof *wrappers; i++)
		if (strcmp(model_type, wrappers[i].name) == 0) return &wrappers[i];
	return NULL;
}

const struct family *family_find(const char *model_type)
{
	/* gpt-sw3 is a tokenizer's name; the others stand in text_config */
	static const char *const other[][2] = {
		{"gpt-sw3", "gpt2"},
		{"kimi_k2", "deepseek_v3"},
		{"exaone4_5_text", "exaone4"},
		{"granite4_vision_text", "granite"},
	};
	for (size_t i = 0; i < sizeof other / sizeof *other; i++)
		if (strcmp(model_type, other[i][0]) == 0) model_type = other[i][1];
	for (size_t i = 0; i < sizeof families / sizeof *families; i++)
		if (strcmp(model_type, families[i].name) == 0) return &families[i];
	return NULL;
}

/* The name of a class without For..., LMHead... or Model, in small letters, without underscores */
static void stem_of(const char *architecture, char stem[64])
{
	size_t n = 0, model = strlen("Model"), all = strlen(architecture);
	const char *end = strstr(architecture, "For");
	if (!end) end = strstr(architecture, "LMHead");
	if (!end && all > model && !strcmp(architecture + all - model, "Model")) end = architecture + all - model;
	for (const char *p = architecture; *p && p != end && n < 63; p++)
		if (*p != '_') stem[n++] = (char)tolower((unsigned char)*p);
	stem[n] = 0;
}

const struct family *family_of_class(const char *architecture)
{
	char stem[64], other[64];
	stem_of(architecture, stem);
	for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
		stem_of(families[i].architecture, other);
		if (strcmp(stem, other) == 0) return &families[i];
	}
	return NULL;
}

bool wrapper_is_class(const struct wrapper *w, const char *architecture)
{
	char stem[64], other[64];
	stem_of(w->architecture, stem);
	stem_of(architecture, other);
	return strcmp(stem, other) == 0;
}

const char *family_class(const char *model_type)
{
	const struct family *family = family_find(model_type);
	const struct wrapper *wrapper = wrapper_find(model_type);
	return wrapper ? wrapper->architecture : family ? family->architecture : NULL;
}

const char *experts_key(const char *model_type)
{
	const struct family *family = family_find(model_type);
	return family ? family->experts.key : NULL;
}
