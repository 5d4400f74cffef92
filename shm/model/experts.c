/* experts.c: config.json's keys of MLPs that are mixtures of experts */
#include "config.h"
#include "hfjson.h"
#include "mt/error.h"

/* In place of a default: the class has none, and the key must be there */
#define REQUIRED UINT32_MAX

/* Keys and defaults of families whose MLPs are mixtures of experts: configuration_*.py; and what their routers
 * compute */
static const struct experts_family {
	const char *family;
	const char *experts_key, *per_token_key;
	uint32_t experts, per_token; /* defaults, or REQUIRED */
	const char *ffn_key;         /* an expert's inner size; NULL: intermediate_size */
	uint32_t ffn;
	const char *shared_key; /* NULL: no shared expert */
	uint32_t shared;
	bool shared_counts; /* shared_key is a number of experts, not an inner size */
	enum mt_score score;
	uint32_t flags;              /* expert_flags; */
	const char *renormalise_key; /* and MT_RENORMALISE by this key, */
	bool renormalise;            /* whose default is this */
	const char *floor_key;
	float floor, eps;      /* weight_floor, weight_eps */
	const char *scale_key; /* NULL: 1 */
	float scale;           /* its default; 0: 1 */
	const char *alias;     /* of experts_key (attribute_map); NULL: none */
	const char *per_token_alias;
	uint32_t groups, groups_used; /* defaults of n_group and topk_group; 0: no such keys; 1 */
	float aux;                    /* default of router_aux_loss_coef; 0: the loss never has that term */
	/* which layers are dense: those of mlp_only_layers and decoder_sparse_step; the first first_k_dense_replace; those
	 * of mlp_layer_types, or if it is missing the first ones; those beside moe_layer_start_index ..
	 * moe_layer_end_index, and by moe_layer_interval; the first num_dense_layers; those that are not in moe_layers, by
	 * default all but each interleave_moe_layer_step-th */
	enum { DENSE_NEVER, DENSE_LISTED, DENSE_FIRST, DENSE_TYPES, DENSE_RANGE, DENSE_NUMBER, DENSE_BY_STEP } dense;
	uint32_t first; /* the default of first_k_dense_replace or num_dense_layers */
} experts_families[] = {
	{"mixtral", "num_local_experts", "num_experts_per_tok", 8, 2, .flags = MT_RENORMALISE, .alias = "num_experts",
		.aux = 0.001f},
	{"qwen2_moe", "num_experts", "num_experts_per_tok", 60, 4, "moe_intermediate_size", 1408,
		"shared_expert_intermediate_size", 5632, .flags = MT_SHARED_GATE, .renormalise_key = "norm_topk_prob",
		.aux = 0.001f, .dense = DENSE_LISTED},
	{"qwen3_moe", "num_experts", "num_experts_per_tok", 128, 8, "moe_intermediate_size", 768,
		.renormalise_key = "norm_topk_prob", .alias = "num_local_experts", .aux = 0.001f, .dense = DENSE_LISTED},
	{"qwen3_vl_moe_text", "num_experts", "num_experts_per_tok", 60, 4, "moe_intermediate_size", 1408,
		.flags = MT_RENORMALISE, .alias = "num_local_experts", .aux = 0.001f, .dense = DENSE_LISTED},
	{"qwen3_next", "num_experts", "num_experts_per_tok", 512, 10, "moe_intermediate_size", 512,
		"shared_expert_intermediate_size", 512, .flags = MT_SHARED_GATE, .renormalise_key = "norm_topk_prob",
		.renormalise = true, .aux = 0.001f, .dense = DENSE_LISTED},
	{"qwen3_5_moe_text", "num_experts", "num_experts_per_tok", 256, 8, "moe_intermediate_size", 512,
		"shared_expert_intermediate_size", 512, .flags = MT_SHARED_GATE | MT_RENORMALISE, .aux = 0.001f},
	{"olmoe", "num_experts", "num_experts_per_tok", 64, 8, .renormalise_key = "norm_topk_prob",
		.alias = "num_local_experts", .aux = 0.01f},
	{"granitemoe", "num_local_experts", "num_experts_per_tok", 8, 2, .score = MT_TOP_SOFTMAX, .flags = MT_PACKED,
		.aux = 0.001f},
	{"granitemoehybrid", "num_local_experts", "num_experts_per_tok", 8, 2, .shared_key = "shared_intermediate_size",
		.shared = 1024, .score = MT_TOP_SOFTMAX, .flags = MT_PACKED, .aux = 0.001f},
	{"nemotron_h", "n_routed_experts", "num_experts_per_tok", 8, 2, "moe_intermediate_size", 7688,
		"moe_shared_expert_intermediate_size", 7688, false, MT_SIGMOID, MT_CORRECTION, "norm_topk_prob", true,
		.floor = 1e-20f, .scale_key = "routed_scaling_factor", .alias = "num_local_experts", .groups = 1},
	{"glm4_moe", "n_routed_experts", "num_experts_per_tok", 128, 8, "moe_intermediate_size", 1408, "n_shared_experts",
		1, true, MT_SIGMOID, MT_CORRECTION, "norm_topk_prob", true, .floor = 1e-20f,
		.scale_key = "routed_scaling_factor", .alias = "num_local_experts", .groups = 1, .dense = DENSE_FIRST,
		.first = 1},
	{"glm4v_moe_text", "n_routed_experts", "num_experts_per_tok", 128, 8, "moe_intermediate_size", 1408,
		"n_shared_experts", 1, true, MT_SIGMOID, MT_CORRECTION, "norm_topk_prob", true, .floor = 1e-20f,
		.scale_key = "routed_scaling_factor", .alias = "num_local_experts", .groups = 1, .aux = 0.0001f,
		.dense = DENSE_FIRST, .first = 1},
	{"glm4_moe_lite", "n_routed_experts", "num_experts_per_tok", 64, 4, "moe_intermediate_size", 1536,
		"n_shared_experts", 1, true, MT_SIGMOID, MT_CORRECTION, "norm_topk_prob", true, .floor = 1e-20f,
		.scale_key = "routed_scaling_factor", .scale = 1.8f, .alias = "num_local_experts", .groups = 1,
		.dense = DENSE_TYPES, .first = 1},
	{"deepseek_v3", "n_routed_experts", "num_experts_per_tok", 256, 8, "moe_intermediate_size", 2048,
		"n_shared_experts", 1, true, MT_SIGMOID, MT_CORRECTION, "norm_topk_prob", true, .floor = 1e-20f,
		.scale_key = "routed_scaling_factor", .scale = 2.5f, .alias = "num_local_experts", .groups = 8,
		.groups_used = 4, .dense = DENSE_FIRST, .first = 3},
	{"deepseek_v2", "n_routed_experts", "num_experts_per_tok", 64, REQUIRED, "moe_intermediate_size", 1407,
		"n_shared_experts", 2, true, .flags = MT_EXACT_ROUTER, .scale_key = "routed_scaling_factor",
		.alias = "num_experts", .dense = DENSE_FIRST},
	{"mistral4", "n_routed_experts", "num_experts_per_tok", 128, 4, "moe_intermediate_size", 2048, "n_shared_experts",
		1, true, .renormalise_key = "norm_topk_prob", .renormalise = true, .floor = 1e-20f,
		.scale_key = "routed_scaling_factor", .alias = "num_local_experts", .groups = 1, .dense = DENSE_FIRST},
	{"dots1", "n_routed_experts", "num_experts_per_tok", REQUIRED, REQUIRED, "moe_intermediate_size", 1408,
		"n_shared_experts", REQUIRED, true, MT_SIGMOID, MT_CORRECTION, "norm_topk_prob", false, .floor = 1e-20f,
		.scale_key = "routed_scaling_factor", .alias = "num_local_experts", .groups = 1, .dense = DENSE_FIRST},
	{"solar_open", "n_routed_experts", "num_experts_per_tok", 128, 8, "moe_intermediate_size", 1280, "n_shared_experts",
		1, true, MT_SIGMOID, MT_CORRECTION, "norm_topk_prob", true, .floor = 1e-20f,
		.scale_key = "routed_scaling_factor", .alias = "num_local_experts", .groups = 1},
	{"exaone_moe", "num_experts", "num_experts_per_tok", 64, 8, "moe_intermediate_size", 1024, "num_shared_experts", 1,
		true, MT_SIGMOID, MT_CORRECTION, "norm_topk_prob", true, .floor = 1e-20f, .scale_key = "routed_scaling_factor",
		.scale = 2.5f, .groups = 1, .dense = DENSE_TYPES, .first = 1},
	{"sarvam_moe", "n_routed_experts", "num_experts_per_tok", 128, 6, "moe_intermediate_size", 1024, "n_shared_experts",
		1, true, MT_SIGMOID, MT_CORRECTION, "norm_topk_prob", true, .floor = 1e-20f,
		.scale_key = "routed_scaling_factor", .scale = 2.5f, .alias = "num_local_experts", .groups = 1,
		.dense = DENSE_FIRST, .first = 1},
	{"kimi_linear", "num_experts", "num_experts_per_tok", 256, 8, "moe_intermediate_size", 1024, "n_shared_experts", 1,
		true, MT_SIGMOID, MT_CORRECTION, "norm_topk_prob", true, .floor = 1e-20f, .scale_key = "routed_scaling_factor",
		.scale = 2.446f, .alias = "num_local_experts", .groups = 1, .dense = DENSE_TYPES, .first = 1},
	{"ernie4_5_moe", "moe_num_experts", "moe_k", 64, 6, "moe_intermediate_size", 1536, "moe_num_shared_experts", 2,
		true, .flags = MT_RENORMALISE | MT_CORRECTION, .floor_key = "moe_norm_min", .floor = 1e-12f, .aux = 0.001f,
		.alias = "num_experts", .per_token_alias = "num_experts_per_tok", .dense = DENSE_RANGE},
	{"minimax_m2", "num_local_experts", "num_experts_per_tok", 256, 8, .score = MT_SIGMOID,
		.flags = MT_RENORMALISE | MT_CORRECTION, .alias = "num_experts", .aux = 0.001f},
	{"lfm2_moe", "num_experts", "num_experts_per_tok", 32, 4, "moe_intermediate_size", 1792, .score = MT_SIGMOID,
		.renormalise_key = "norm_topk_prob", .renormalise = true, .eps = 1e-6f, .scale_key = "routed_scaling_factor",
		.dense = DENSE_NUMBER, .first = 2},
	{"afmoe", "num_experts", "num_experts_per_tok", 64, 6, "moe_intermediate_size", 1408, "num_shared_experts", 2, true,
		MT_SIGMOID, MT_RENORMALISE | MT_CORRECTION, .floor = 1e-20f, .scale_key = "route_scale", .dense = DENSE_NUMBER,
		.first = 1},
	{"gemma4_text", "num_experts", "top_k_experts", REQUIRED, REQUIRED, "moe_intermediate_size", REQUIRED,
		.flags = MT_RENORMALISE | MT_PACKED | MT_OWN_NORMS},
	{"llama4_text", "num_local_experts", "num_experts_per_tok", 16, 1, "intermediate_size", 8192,
		.score = MT_TOP_SIGMOID, .flags = MT_PACKED | MT_TRANSPOSED | MT_GATE_FIRST | MT_WEIGH_INPUT,
		.dense = DENSE_BY_STEP},
	{"gpt_oss", "num_local_experts", "num_experts_per_tok", 128, 4, .score = MT_TOP_SOFTMAX,
		.flags = MT_ROUTER_BIAS | MT_EXPERT_BIAS | MT_PACKED | MT_TRANSPOSED, .alias = "num_experts", .aux = 0.001f},
};

/* A positive number, which may be missing or null */
static float positive(struct reader *r, const char *key, float missing)
{
	double v = key ? key_number(r, r->root, key) : NAN;
	if (isnan(v)) return missing;
	if (!(v > 0 && v < 1e6)) REFUSE(r, MT_EX_CONFIG, "%s %g is out of range", key, v);
	return (float)v;
}

static void read_groups(struct reader *r, const struct experts_family *x, struct mt_layer *k)
{
	k->groups = key_u32(r, "n_group", x->groups, 1, MT_EXPERTS);
	k->groups_per_token = key_u32(r, "topk_group", x->groups_used ? x->groups_used : 1, 1, MT_EXPERTS);
	if (k->experts % k->groups)
		REFUSE(r, MT_EX_CONFIG, "%u experts are not a multiple of n_group %u", k->experts, k->groups);
	else if (k->groups_per_token > k->groups)
		REFUSE(r, MT_EX_CONFIG, "topk_group %u is more than n_group %u", k->groups_per_token, k->groups);
	else if (k->experts / k->groups * k->groups_per_token < k->experts_per_token)
		REFUSE(r, MT_EX_CONFIG, "topk_group %u has fewer experts than num_experts_per_tok %u", k->groups_per_token,
			k->experts_per_token);
}

/* mlp_layer_types, which has precedence over what sparse says */
static void read_mlp_types(struct reader *r, uint32_t layers, bool *sparse)
{
	const json_t *list = json_object_get(r->root, "mlp_layer_types");
	if (!is_given(list)) return;
	if (!json_is_array(list) || json_array_size(list) < layers)
		return REFUSE(r, MT_EX_CONFIG, "mlp_layer_types is not a list of %u names", layers);
	for (uint32_t i = 0; i < layers; i++) {
		const char *type = json_string_value(json_array_get(list, i));
		if (!type) return REFUSE(r, MT_EX_DATA, "mlp_layer_types has an entry that is not a string");
		sparse[i] = strcmp(type, "sparse") == 0;
		if (!sparse[i] && strcmp(type, "dense") != 0)
			REFUSE(r, MT_EX_CONFIG, "mlp_layer_types '%.40s' is not supported", type);
	}
}

/* -1: the last layer */
static uint32_t last_sparse(struct reader *r, uint32_t layers)
{
	const json_t *v = json_object_get(r->root, "moe_layer_end_index");
	if (!v || (json_is_integer(v) && json_integer_value(v) == -1)) return layers - 1;
	return key_u32(r, "moe_layer_end_index", layers - 1, 0, INT32_MAX);
}

/* sparse[i]: is layer i's MLP a mixture of experts? */
static void read_sparse(struct reader *r, const struct experts_family *x, uint32_t layers, bool *sparse)
{
	uint32_t first = 0, last = layers, step = 1;
	bool listed[1024];
	if (x->dense == DENSE_LISTED) step = key_u32(r, "decoder_sparse_step", 1, 1, INT32_MAX);
	if (x->dense == DENSE_BY_STEP) step = key_u32(r, "interleave_moe_layer_step", 1, 1, INT32_MAX);
	if (x->dense == DENSE_FIRST || x->dense == DENSE_TYPES)
		first = key_u32(r, "first_k_dense_replace", x->first, 0, INT32_MAX);
	if (x->dense == DENSE_NUMBER) first = key_u32(r, "num_dense_layers", x->first, 0, INT32_MAX);
	if (x->dense == DENSE_RANGE) {
		first = key_u32(r, "moe_layer_start_index", 1, 0, INT32_MAX);
		last = last_sparse(r, layers);
		step = key_u32(r, "moe_layer_interval", 1, 1, INT32_MAX);
	}
	for (uint32_t i = 0; i < layers; i++) sparse[i] = i >= first && i <= last && (i + 1) % step == 0;
	if (x->dense == DENSE_LISTED && key_layers(r, "mlp_only_layers", layers, listed))
		for (uint32_t i = 0; i < layers; i++) sparse[i] &= !listed[i];
	if (x->dense == DENSE_BY_STEP) key_layers(r, "moe_layers", layers, sparse);
	if (x->dense == DENSE_TYPES) read_mlp_types(r, layers, sparse);
}

static uint32_t read_aliased(struct reader *r, const char *key, const char *alias, uint32_t missing, uint32_t most)
{
	uint32_t n = key_u32(r, key, missing, 1, most);
	if (!alias || !json_object_get(r->root, alias)) return n;
	uint32_t other = key_u32(r, alias, n, 1, most);
	if (json_object_get(r->root, key) && other != n)
		REFUSE(r, MT_EX_CONFIG, "%s %u and %s %u disagree", key, n, alias, other);
	return other;
}

static void read_expert_sizes(struct reader *r, const struct experts_family *x, struct mt_layer *k)
{
	k->experts = read_aliased(r, x->experts_key, x->alias, x->experts, MT_EXPERTS);
	k->experts_per_token = read_aliased(r, x->per_token_key, x->per_token_alias, x->per_token, MT_EXPERTS_PER_TOKEN);
	k->expert_ffn = x->ffn_key ? key_u32(r, x->ffn_key, x->ffn, 1, 1 << 22) : k->ffn;
	k->shared_ffn = x->shared_key ? key_u32(r, x->shared_key, x->shared, 0, 1 << 22) : 0;
	if (k->expert_ffn == REQUIRED) REFUSE(r, MT_EX_CONFIG, "%s is missing", x->ffn_key);
	if (k->experts == REQUIRED) REFUSE(r, MT_EX_CONFIG, "%s is missing", x->experts_key);
	if (k->experts_per_token == REQUIRED) REFUSE(r, MT_EX_CONFIG, "%s is missing", x->per_token_key);
	if (k->shared_ffn == REQUIRED) REFUSE(r, MT_EX_CONFIG, "%s is missing", x->shared_key);
	if (k->experts_per_token > k->experts)
		REFUSE(r, MT_EX_CONFIG, "%s %u is more than %s %u", x->per_token_key, k->experts_per_token, x->experts_key,
			k->experts);
	if (!x->shared_counts) return;
	if (k->shared_ffn > 64) REFUSE(r, MT_EX_CONFIG, "%s %u is more than 64", x->shared_key, k->shared_ffn);
	else k->shared_ffn *= k->expert_ffn;
}

/* A number that is not negative, which may be missing or null */
static float coefficient(struct reader *r, const char *key, float missing)
{
	double v = key_number(r, r->root, key);
	if (isnan(v)) return missing;
	if (!(v >= 0 && v < 1e6)) REFUSE(r, MT_EX_CONFIG, "%s %g is out of range", key, v);
	return (float)v;
}

/* Terms of the loss. transformers adds the first one only if it returns the routers' logits (modeling_*.py), for all
 * families by the same function but for those without `aux`, which have none. The second one is in no family of
 * transformers. */
static void read_losses(struct reader *r, const struct experts_family *x, struct model *m)
{
	bool balances = key_bool(r, r->root, "output_router_logits", false);
	float aux = x->aux > 0 ? coefficient(r, "router_aux_loss_coef", x->aux) : 0;
	float z = coefficient(r, "router_z_loss_coef", 0);
	if (!memchr(m->sparse, true, m->geo.layers)) return; /* there is no router */
	m->geo.aux_coef = balances ? aux : 0;
	m->geo.z_coef = z;
}

static const struct experts_family *find_experts(const char *family)
{
	for (size_t i = 0; i < sizeof experts_families / sizeof *experts_families; i++)
		if (strcmp(family, experts_families[i].family) == 0) return &experts_families[i];
	return NULL;
}

const char *experts_key(const char *model_type)
{
	const struct experts_family *x = find_experts(model_type);
	return x ? x->experts_key : NULL;
}

void read_experts(struct reader *r, struct model *m)
{
	const struct experts_family *x = find_experts(m->geo.family);
	struct mt_layer *k = &m->experts;
	double noise = key_number(r, r->root, "router_jitter_noise"); /* training would multiply inputs at random */
	if (!x) return REFUSE(r, MT_EX_BUG, "model_type %s has no experts", m->geo.family);
	if (noise > 0) REFUSE(r, MT_EX_CONFIG, "router_jitter_noise %g is not supported, only 0", noise);
	*k = m->base;
	read_expert_sizes(r, x, k);
	k->ffn = 0;
	k->score = x->score;
	k->expert_flags = x->flags;
	if (x->renormalise_key && key_bool(r, r->root, x->renormalise_key, x->renormalise))
		k->expert_flags |= MT_RENORMALISE;
	k->weight_floor = positive(r, x->floor_key, x->floor);
	k->weight_eps = x->eps;
	k->expert_scale = positive(r, x->scale_key, x->scale > 0 ? x->scale : 1);
	k->groups = k->groups_per_token = 1;
	if (x->groups) read_groups(r, x, k);
	read_sparse(r, x, m->geo.layers, m->sparse);
	read_losses(r, x, m);
}

void read_olmoe(struct reader *r, struct model *m)
{
	read_experts(r, m);
	if (is_given(json_object_get(r->root, "clip_qkv"))) REFUSE(r, MT_EX_CONFIG, "clip_qkv is not supported");
}

void read_mla(struct reader *r, struct model *m)
{
	read_latents(r, m);
	read_experts(r, m);
}

void read_kimi(struct reader *r, struct model *m)
{
	const char *function = key_string(r, r->root, "moe_router_activation_func");
	read_kimi_delta(r, m);
	read_experts(r, m);
	if (function && strcmp(function, "sigmoid") != 0)
		REFUSE(r, MT_EX_CONFIG, "moe_router_activation_func '%.40s' is not supported, only sigmoid", function);
	if (key_u32(r, "moe_layer_freq", 1, 1, INT32_MAX) != 1)
		REFUSE(r, MT_EX_CONFIG, "moe_layer_freq is not supported, only 1");
}

/* Groups count by topk_method alone */
void read_deepseek_v2(struct reader *r, struct model *m)
{
	const char *method = key_string(r, r->root, "topk_method");
	read_mla(r, m);
	if (!method || !strcmp(method, "greedy")) return;
	if (strcmp(method, "group_limited_greedy") != 0)
		return REFUSE(r, MT_EX_CONFIG, "topk_method '%.40s' is not supported, only greedy and group_limited_greedy",
			method);
	if (!is_given(json_object_get(r->root, "n_group")) || !is_given(json_object_get(r->root, "topk_group")))
		return REFUSE(r, MT_EX_CONFIG, "topk_method group_limited_greedy without n_group and topk_group");
	read_groups(r, find_experts(m->geo.family), &m->experts);
	m->experts.expert_flags |= MT_GROUPS_BY_BEST;
}

void read_delta_experts(struct reader *r, struct model *m)
{
	read_delta(r, m);
	read_experts(r, m);
}

/* Released files have the number of a head's elements that turn instead of their part */
void read_minimax(struct reader *r, struct model *m)
{
	read_experts(r, m);
	if (!is_given(json_object_get(r->root, "rotary_dim"))) return;
	m->rotary_dim = key_u32(r, "rotary_dim", 0, 2, m->base.head_dim);
}

void read_lfm2_experts(struct reader *r, struct model *m)
{
	read_conv(r, m);
	read_experts(r, m);
	if (key_bool(r, r->root, "use_expert_bias", true)) m->experts.expert_flags |= MT_CORRECTION;
	if (!is_given(json_object_get(r->root, "layer_types"))) REFUSE(r, MT_EX_CONFIG, "layer_types is missing");
}

/* Queries of layers without rope grow with the position. The shared expert is as large as the others. */
void read_llama4(struct reader *r, struct model *m)
{
	double scale = key_number(r, r->root, "attn_scale");
	const json_t *tuned = json_object_get(r->root, "attn_temperature_tuning"); /* in older files a number */
	bool grows = json_is_integer(tuned) ? json_integer_value(tuned) != 0
										: key_bool(r, r->root, "attn_temperature_tuning", true);
	read_experts(r, m);
	m->experts.shared_ffn = m->experts.expert_ffn;
	m->geo.flags |= MT_NOPE_TEMPERATURE;
	m->geo.temperature_positions = key_u32(r, "floor_scale", 8192, 1, INT32_MAX);
	if (isnan(scale)) scale = 0.1;
	if (!(scale >= 0 && scale < 1e6)) REFUSE(r, MT_EX_CONFIG, "attn_scale %g is out of range", scale);
	if (grows) m->geo.temperature = (float)scale;
}

/* Its function is not what hidden_act says */
void read_gpt_oss(struct reader *r, struct model *m)
{
	double alpha = key_number(r, r->root, "swiglu_alpha"), limit = key_number(r, r->root, "swiglu_limit");
	if (!isnan(alpha) && alpha != 1.702) REFUSE(r, MT_EX_CONFIG, "swiglu_alpha %g is not supported, only 1.702", alpha);
	if (!isnan(limit) && limit != 7) REFUSE(r, MT_EX_CONFIG, "swiglu_limit %g is not supported, only 7", limit);
	m->base.form = MT_SWIGLU_CLAMPED;
	read_experts(r, m);
}

void set_experts(const struct model *m, uint32_t i, struct mt_layer *k)
{
	if (!m->sparse[i]) return;
	k->ffn = 0;
	k->experts = m->experts.experts;
	k->experts_per_token = m->experts.experts_per_token;
	k->expert_ffn = m->experts.expert_ffn;
	k->shared_ffn = m->experts.shared_ffn;
	k->score = m->experts.score;
	k->expert_flags = m->experts.expert_flags;
	k->groups = m->experts.groups;
	k->groups_per_token = m->experts.groups_per_token;
	k->expert_scale = m->experts.expert_scale;
	k->weight_floor = m->experts.weight_floor;
	k->weight_eps = m->experts.weight_eps;
}
