/* experts.c: config.json's keys of MLPs that are mixtures of experts */
#include "config.h"
#include "hfjson.h"
#include "mt/error.h"

/* A positive number, which may be missing or null */
static float positive(struct reader *r, const char *key, float missing)
{
	double v = key ? key_number(r, r->root, key) : NAN;
	if (isnan(v)) return missing;
	if (!(v > 0 && v < 1e6)) REFUSE(r, MT_EX_CONFIG, "%s %g is out of range", key, v);
	return (float)v;
}

static void read_groups(struct reader *r, const struct experts *x, struct mt_layer *k)
{
	k->groups = key_u32(r, "n_group", x->groups ? x->groups : 1, 1, MT_EXPERTS);
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
static void read_sparse(struct reader *r, const struct experts *x, uint32_t layers, bool *sparse)
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

static void read_expert_sizes(struct reader *r, const struct experts *x, uint32_t ffn, struct mt_layer *k)
{
	const char *per_token_key = x->per_token_key ? x->per_token_key : "num_experts_per_tok";
	k->experts = read_aliased(r, x->key, x->alias, x->experts, MT_EXPERTS);
	k->experts_per_token = read_aliased(r, per_token_key, x->per_token_alias, x->per_token, MT_EXPERTS_PER_TOKEN);
	k->expert_ffn = x->ffn_key ? key_u32(r, x->ffn_key, x->ffn, 1, 1 << 22) : ffn;
	k->shared_ffn = x->shared_key ? key_u32(r, x->shared_key, x->shared, 0, 1 << 22) : 0;
	if (k->expert_ffn == REQUIRED) REFUSE(r, MT_EX_CONFIG, "%s is missing", x->ffn_key);
	if (k->experts == REQUIRED) REFUSE(r, MT_EX_CONFIG, "%s is missing", x->key);
	if (k->experts_per_token == REQUIRED) REFUSE(r, MT_EX_CONFIG, "%s is missing", per_token_key);
	if (k->shared_ffn == REQUIRED) REFUSE(r, MT_EX_CONFIG, "%s is missing", x->shared_key);
	if (k->experts_per_token > k->experts)
		REFUSE(r, MT_EX_CONFIG, "%s %u is more than %s %u", per_token_key, k->experts_per_token, x->key, k->experts);
	if (!x->shared_counts) return;
	if (k->shared_ffn > 64) REFUSE(r, MT_EX_CONFIG, "%s %u is more than 64", x->shared_key, k->shared_ffn);
	else k->shared_ffn *= k->expert_ffn;
}

/* Terms of the loss. transformers adds the first one only if it returns the routers' logits (modeling_*.py), for all
 * families by the same function but for those without `aux`, which have none. The second one is in no family of
 * transformers. */
static void read_losses(struct reader *r, const struct experts *x, struct model *m)
{
	bool balances = key_bool(r, r->root, "output_router_logits", false);
	float aux = x->aux > 0 ? key_coefficient(r, "router_aux_loss_coef", x->aux) : 0;
	float z = key_coefficient(r, "router_z_loss_coef", 0);
	if (!memchr(m->sparse, true, m->geo.layers)) return; /* there is no router */
	m->geo.aux_coef = balances ? aux : 0;
	m->geo.z_coef = z;
}

void read_experts(struct reader *r, struct model *m)
{
	const struct experts *x = &m->family->experts;
	struct mt_layer *k = &m->experts;
	double noise = key_number(r, r->root, "router_jitter_noise"); /* training would multiply inputs at random */
	if (noise > 0) REFUSE(r, MT_EX_CONFIG, "router_jitter_noise %g is not supported, only 0", noise);
	read_expert_sizes(r, x, m->base.ffn, k);
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

/* Groups count by topk_method alone */
void read_deepseek_v2(struct reader *r, struct model *m)
{
	const char *method = key_string(r, r->root, "topk_method");
	if (!method || !strcmp(method, "greedy")) return;
	if (strcmp(method, "group_limited_greedy") != 0)
		return REFUSE(r, MT_EX_CONFIG, "topk_method '%.40s' is not supported, only greedy and group_limited_greedy",
			method);
	if (!is_given(json_object_get(r->root, "n_group")) || !is_given(json_object_get(r->root, "topk_group")))
		return REFUSE(r, MT_EX_CONFIG, "topk_method group_limited_greedy without n_group and topk_group");
	read_groups(r, &m->family->experts, &m->experts);
	m->experts.expert_flags |= MT_GROUPS_BY_BEST;
}

/* A key that may be a list, with the same number for each layer */
static void read_uniform(struct reader *r, const char *key)
{
	json_t *list = json_object_get(r->root, key), *first = json_array_get(list, 0);
	for (size_t i = 0; i < json_array_size(list); i++)
		if (!json_equal(json_array_get(list, i), first))
			return REFUSE(r, MT_EX_CONFIG, "%s with different numbers is not supported", key);
	if (first) json_object_set((json_t *)r->root, key, first);
}

/* The shared expert is as large as the others. */
void read_hunyuan_experts(struct reader *r, struct model *m)
{
	read_uniform(r, "num_experts");
	read_uniform(r, "moe_topk");
	read_experts(r, m);
	m->experts.shared_ffn = m->experts.expert_ffn;
}

/* By default the first two layers are dense, and full are they, each fourth and the last. */
void read_flint(struct reader *r, struct model *m)
{
	static const char types[] = "layer_types", dense[] = "mlp_only_layers";
	json_t *root = (json_t *)r->root, *names = json_array(), *first = json_array();
	for (uint32_t i = 0; i < m->geo.layers; i++) {
		bool full = i < 2 || i % 4 == 1 || i + 1 == m->geo.layers;
		json_array_append_new(names, json_string(full ? "full_attention" : "sliding_attention"));
		if (i < 2) json_array_append_new(first, json_integer(i));
	}
	if (!is_given(json_object_get(root, types))) json_object_set(root, types, names);
	if (!is_given(json_object_get(root, dense))) json_object_set(root, dense, first);
	json_decref(names);
	json_decref(first);
	read_experts(r, m);
}

/* Released files have the number of a head's elements that turn instead of their part */
void read_minimax(struct reader *r, struct model *m)
{
	if (!is_given(json_object_get(r->root, "rotary_dim"))) return;
	m->rotary_dim = key_u32(r, "rotary_dim", 0, 2, m->base.head_dim);
}

void read_lfm2_experts(struct reader *r, struct model *m)
{
	read_conv(r, m);
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
}
