/* config.c: Hugging Face's config.json -> struct mt_geometry, by the family's row in families.c.
 *
 * Both dialects are read: transformers 4 wrote rope_theta, rope_scaling and torch_dtype; transformers 5 writes
 * rope_parameters, dtype and layer_types. If a file has both, they must agree.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "config.h"
#include "hfjson.h"
#include "mt/error.h"

#define CONFIG_BYTES (16u << 20)

/* ---- keys of one value */

static const struct size_key {
	const char *name;
	size_t at; /* in struct model */
	uint32_t max;
	bool nullable; /* null: DERIVED */
} size_keys[SIZES] = {
	{"num_hidden_layers", OF_MODEL(layers), 1024, false},
	{"hidden_size", OF_MODEL(hidden), 1 << 20, false},
	{"intermediate_size", OF_KIND(ffn), 1 << 22, false},
	{"vocab_size", OF_MODEL(vocab), 1 << 24, false},
	{"max_position_embeddings", OF_MODEL(max_position), INT32_MAX, false},
	{"num_attention_heads", OF_KIND(heads), 1 << 14, false},
	{"num_key_value_heads", OF_KIND(kv_heads), 1 << 14, true},
	{"head_dim", OF_KIND(head_dim), 512, true},
};

/* The defaults of most classes */
static const double NORM_EPS_DEFAULT = 1e-6, INIT_RANGE_DEFAULT = 0.02;

/* Names of the MLP's function (transformers' ACT2FN), with a gate and without. swish: another name of silu */
enum { NO_FORM = -1 };
static const struct act {
	const char *name;
	int gated, ungated; /* enum mt_ffn */
} acts[] = {
	{"silu", MT_SWIGLU, NO_FORM}, {"swish", MT_SWIGLU, NO_FORM}, {"gelu", MT_GEGLU, MT_GELU},
	{"gelu_pytorch_tanh", MT_GEGLU_TANH, MT_GELU_TANH}, {"gelu_new", MT_GEGLU_TANH, MT_GELU_TANH},
	{"gelu_fast", MT_GEGLU_TANH, MT_GELU_TANH}, {"relu2", MT_RE2GLU, MT_RELU2}, {"relu", NO_FORM, MT_RELU},
	{"xielu", NO_FORM, MT_XIELU}, /* has weights, so that only classes whose default it is have it */
};

/* The first name of architectures, if there is one */
static const char *first_class(struct reader *r)
{
	const json_t *list = json_object_get(r->outer, "architectures");
	if (!is_given(list)) return NULL;
	const char *first = json_string_value(json_array_get(list, 0));
	if (!json_is_array(list) || !first) return REFUSE(r, MT_EX_DATA, "architectures is not a list of names"), NULL;
	return first;
}

/* where: of which config. The reason stands behind it, if transformers' class is known. */
static void refuse_type(struct reader *r, const char *where, const char *type)
{
	const char *why = family_untrained(type);
	REFUSE(r, MT_EX_CONFIG, "%smodel_type '%.40s' is not supported%s%s", where, type, why ? ": " : "", why ? why : "");
}

static void add_text_keys(struct reader *r, const char *text)
{
	json_t *keys = json_loads(text, 0, NULL);
	if (is_given(json_object_get(r->root, "rope_parameters"))) json_object_del(keys, "rope_theta");
	if (json_object_update_missing((json_t *)r->root, keys)) REFUSE(r, MT_EX_NOMEM, "no memory for its JSON");
	json_decref(keys);
}

/* The keys of the text model become those that are read. */
static const struct family *find_text(struct reader *r, const struct wrapper *w)
{
	const json_t *text = key_object(r, "text_config");
	const char *type = text ? key_string(r, text, "model_type") : NULL, *first = first_class(r);
	if (!text && !w->at_root) return REFUSE(r, MT_EX_CONFIG, "text_config is missing"), NULL;
	if (text) r->root = text;
	if (w->text_keys) add_text_keys(r, w->text_keys);
	if (!type) type = w->text;
	const struct family *family = family_find(type);
	if (family && (family->inner || !w->any) && strcmp(family->name, w->text) != 0) family = NULL;
	if (!family) return refuse_type(r, "text_config: ", type), NULL;
	if (!first || wrapper_is_class(w, first)) return family;
	REFUSE(r, MT_EX_CONFIG, "architectures '%.60s' is not supported, only %s", first, w->architecture);
	return NULL;
}

static const struct family *find_family(struct reader *r, const struct wrapper **wrapper)
{
	const char *type = key_string(r, r->root, "model_type");
	if (!type) return REFUSE(r, MT_EX_CONFIG, "model_type is missing"), NULL;
	if ((*wrapper = wrapper_find(type))) return find_text(r, *wrapper);
	const struct family *family = family_find(type);
	if (!family || family->inner) return refuse_type(r, "", type), NULL;
	const char *first = first_class(r);
	if (!first) return family;
	/* As transformers' AutoModelForCausalLM, which goes by model_type alone. But a class of another family is a
	 * mistake, and models that also see have other tensors. */
	const struct family *other = family_of_class(first);
	bool foreign = other && other != family_of_class(family->architecture);
	if (foreign && family->shares) foreign = other != family_find(family->shares);
	if (!foreign && !strstr(first, "ForConditionalGeneration")) return family;
	REFUSE(r, MT_EX_CONFIG, "architectures '%.60s' is not supported, only %s and other classes of %s", first,
		family->architecture, family->name);
	return NULL;
}

/* mt computes without dropout, as transformers evaluates. Families whose released files ask for it are trained without
 * it, and the caller warns; in other files a dropout was somebody's wish. Returns MT_DROPOUT or 0 */
static uint32_t dropout_of(struct reader *r, const struct family *family, const char *key, double missing)
{
	double dropout = json_object_get(r->root, key) ? key_number(r, r->root, key) : missing;
	if (isnan(dropout) || dropout == 0) return 0;
	if (!family->dropout_released) REFUSE(r, MT_EX_CONFIG, "%s %g is not supported", key, dropout);
	return MT_DROPOUT;
}

static uint32_t read_dropout(struct reader *r, const struct family *family)
{
	static const char *const keys[] = {"attention_dropout", "residual_dropout", "embedding_dropout", "hidden_dropout",
		"resid_pdrop", "embd_pdrop"};
	uint32_t flags = 0;
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) flags |= dropout_of(r, family, keys[i], 0);
	for (size_t i = 0; i < sizeof family->dropout_key / sizeof *family->dropout_key && family->dropout_key[i]; i++)
		flags |= dropout_of(r, family, family->dropout_key[i], family->dropout);
	return flags;
}

/* mt-ckpt load dequantizes these forms (mt-ckpt/hf/quantized.c). */
static void refuse_quantized(struct reader *r, const json_t *q)
{
	if (!is_given(q)) return;
	const char *method = json_string_value(json_object_get(q, "quant_method"));
	bool compressed = method && !strcmp(method, "compressed-tensors");
	const char *key = compressed ? "format" : json_object_get(q, "quant_algo") ? "quant_algo" : "quant_method";
	const char *is = json_string_value(json_object_get(q, key));
	if (is && !strcmp(is, compressed ? "float-quantized" : "fp8")) return;
	if (is && !compressed && !strcmp(is, "mxfp4")) return;
	REFUSE(r, MT_EX_CONFIG,
		"quantization_config is not supported: %s '%.40s', only fp8, mxfp4 and compressed-tensors' float-quantized",
		key, is ? is : "");
}

/* Refuse keys that change a model's computation in ways that mt does not support, and dialects that disagree.
 * quantization_config, torch_dtype and dtype are PreTrainedConfig's. */
static void refuse_foreign(struct reader *r, const struct family *family)
{
	const json_t *outer = json_object_get(r->outer, "quantization_config");
	refuse_quantized(r, is_given(outer) ? outer : json_object_get(r->root, "quantization_config"));
	if (is_given(json_object_get(r->root, "compression_config")) ||
		is_given(json_object_get(r->outer, "compression_config")))
		REFUSE(r, MT_EX_CONFIG, "compression_config is not supported");
	if (!family->per_layer && is_given(json_object_get(r->root, "per_layer_config")))
		REFUSE(r, MT_EX_CONFIG, "per_layer_config is not supported");
	for (size_t i = 0; i < sizeof family->refused / sizeof *family->refused && family->refused[i]; i++)
		if (key_bool(r, r->root, family->refused[i], false))
			REFUSE(r, MT_EX_CONFIG, "%s true is not supported", family->refused[i]);
	if (!key_bool(r, r->root, "is_causal", true)) REFUSE(r, MT_EX_CONFIG, "is_causal false is not supported");
	const char *old = key_string(r, r->outer, "torch_dtype"), *now = key_string(r, r->outer, "dtype");
	if (old && now && strcmp(old, now) != 0)
		REFUSE(r, MT_EX_CONFIG, "torch_dtype '%.20s' and dtype '%.20s' disagree", old, now);
}

/* Give keys that the file has under other names their usual ones */
static void read_aliases(struct reader *r, const struct family *family)
{
	json_t *root = (json_t *)r->root; /* read_geometry's */
	for (size_t i = 0; i < sizeof family->alias / sizeof *family->alias && family->alias[i].name; i++) {
		const char *name = family->alias[i].name, *key = family->alias[i].key;
		json_t *v = json_object_get(root, name), *usual = json_object_get(root, key);
		if (v && usual && !json_equal(v, usual)) REFUSE(r, MT_EX_CONFIG, "%s and %s disagree", key, name);
		if (v && !usual && json_object_set(root, key, v)) REFUSE(r, MT_EX_NOMEM, "no memory for its JSON");
	}
}

static void read_sizes(struct reader *r, const struct family *family, struct model *m)
{
	struct mt_layer *base = &m->base;
	for (int i = 0; i < SIZES; i++) {
		const struct size_key *k = &size_keys[i];
		const char *name = family->size_name[i] ? family->size_name[i] : k->name;
		bool nullable = k->nullable || family->size[i] == DERIVED;
		bool none = !*name || (nullable && json_is_null(json_object_get(r->root, name)));
		uint32_t size = !*name ? family->size[i] : none ? DERIVED : key_u32(r, name, family->size[i], 1, k->max);
		memcpy((char *)m + k->at, &size, sizeof size);
	}
	if (base->ffn == DERIVED) base->ffn = 4 * m->geo.hidden;
	if (base->kv_heads == DERIVED) base->kv_heads = base->heads;
	bool derived = base->head_dim == DERIVED;
	if (derived) base->head_dim = m->geo.hidden / base->heads;

	if ((derived || family->heads_divide_hidden) && m->geo.hidden % base->heads)
		REFUSE(r, MT_EX_CONFIG, "hidden_size %u is not a multiple of num_attention_heads %u", m->geo.hidden,
			base->heads);
	if (family->heads_fill_hidden && (uint64_t)base->heads * base->head_dim != m->geo.hidden)
		REFUSE(r, MT_EX_CONFIG, "head_dim %u times num_attention_heads %u is not hidden_size %u", base->head_dim,
			base->heads, m->geo.hidden);
	check_heads(r, base);
}

/* The MLP's function, by the name that transformers has for it */
static void read_form(struct reader *r, const struct family *family, struct mt_layer *base)
{
	const char *key = family->act_key ? family->act_key : "hidden_act", *missing = family->act ? family->act : "silu";
	const char *act = key_string(r, r->root, key);
	if (!act) act = missing;
	int form = NO_FORM;
	for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
		if (strcmp(act, acts[i].name) == 0) form = family->ungated ? acts[i].ungated : acts[i].gated;
	if (strcmp(act, "swish") == 0) act = "silu"; /* another name of it */
	if (form == NO_FORM || ((family->only_act || form == MT_XIELU) && strcmp(act, missing) != 0))
		return REFUSE(r, MT_EX_CONFIG, "%s '%.40s' is not supported", key, act);
	base->form = (uint32_t)form;
}

/* Of a wrapper the root's key counts, and in some classes also text_config's; without text_config, its default. */
static bool is_tied(struct reader *r, const struct family *family, const struct wrapper *w)
{
	static const char key[] = "tie_word_embeddings";
	if (!w || w->text_alone) return key_bool(r, r->root, key, family->tied);
	bool text = r->root == r->outer ? family->tied : key_bool(r, r->root, key, family->tied);
	return key_bool(r, r->outer, key, w->tied || (w->text_ties_missing && text)) || (w->text_ties && text);
}

static void read_flags(struct reader *r, const struct family *family, struct mt_geometry *geo)
{
	geo->flags = family->flags;
	geo->flags |= read_dropout(r, family);
	for (size_t i = 0; i < sizeof family->flag_key / sizeof *family->flag_key && family->flag_key[i].name; i++)
		if (key_bool(r, r->root, family->flag_key[i].name, family->flag_key[i].missing))
			geo->flags |= family->flag_key[i].flags;
}

static void check_factor(struct reader *r, const char *key, double x)
{
	static const double most = 1e6;
	if (!(x > 1 / most && x < most)) REFUSE(r, MT_EX_CONFIG, "%s %g is out of range", key, x);
}

/* A number that must be 0: with others the model has parts that mt does not have */
static void refuse_number(struct reader *r, const char *key, double missing)
{
	const json_t *v = json_object_get(r->root, key);
	double x = v ? key_number(r, r->root, key) : missing;
	if (x != 0 && !isnan(x)) REFUSE(r, MT_EX_CONFIG, "%s %g is not supported", key, x);
}

/* Factors and caps, which are 1, none, and 1 / sqrt(head_dim) where the family has no key for them */
static void read_numbers(struct reader *r, const struct family *family, struct model *m)
{
	m->geo.embed_scale = m->geo.residual_scale = m->geo.logit_scale = 1;
	m->geo.mlp_scale = m->geo.mamba_out_scale = m->geo.gate_scale = 1;
	m->geo.mamba_in_scale = m->geo.attention_in_scale = 1;
	for (size_t i = 0; i < 5; i++) m->geo.mamba_scale[i] = 1;
	m->geo.attention_scale = 1.0f / sqrtf((float)m->base.head_dim);
	for (size_t i = 0; i < sizeof family->number / sizeof *family->number && family->number[i].name; i++) {
		const struct number_key *k = &family->number[i];
		double x = json_object_get(r->root, k->name) ? key_number(r, r->root, k->name) : k->missing;
		if (isnan(x)) continue;
		check_factor(r, k->name, x);
		float f = (float)(k->as == RECIPROCAL ? 1 / x : k->as == RECIPROCAL_ROOT ? 1 / sqrt(x) : x);
		memcpy((char *)m + k->at, &f, sizeof f);
	}
}

/* Embeddings are multiplied by the root of their size. */
void read_gemma(struct reader *r, struct model *m)
{
	(void)r;
	m->geo.embed_scale = (float)sqrt(m->geo.hidden);
}

static void set_alibi(struct model *m)
{
	m->geo.alibi = 8;
	m->geo.alibi_scale = 1;
	m->no_rope = true;
}

/* FalconConfig's keys for the forms of its block: 7B (multi_query, parallel_attn), 40B (new_decoder_architecture) */
void read_falcon(struct reader *r, struct model *m)
{
	bool grouped = key_bool(r, r->root, "new_decoder_architecture", false);
	bool multi_query = key_bool(r, r->root, "multi_query", true);
	bool parallel = key_bool(r, r->root, "parallel_attn", true);
	bool given = is_given(json_object_get(r->root, "num_ln_in_parallel_attn"));
	uint32_t norms = given ? key_u32(r, "num_ln_in_parallel_attn", 1, 1, 2) : grouped ? 2 : 1;
	if (is_given(json_object_get(r->root, "n_embed"))) REFUSE(r, MT_EX_CONFIG, "n_embed is not supported");
	if (grouped && !parallel)
		REFUSE(r, MT_EX_CONFIG, "new_decoder_architecture with parallel_attn false is not supported");
	if (!grouped && parallel && norms == 2)
		REFUSE(r, MT_EX_CONFIG, "num_ln_in_parallel_attn 2 without new_decoder_architecture is not supported");
	if (!grouped && multi_query) m->base.kv_heads = 1;
	else if (!grouped && m->base.kv_heads != m->base.heads)
		REFUSE(r, MT_EX_CONFIG, "num_kv_heads %u is not num_attention_heads %u", m->base.kv_heads, m->base.heads);
	if (parallel) m->geo.flags |= norms == 2 ? MT_PARALLEL : PARALLEL_ONE_NORM;
	if (parallel && norms == 2) m->geo.names = MT_NAMES_FALCON_40B;
	if (!key_bool(r, r->root, "alibi", false)) return;
	set_alibi(m);
	m->geo.alibi_scale = m->geo.attention_scale;
	m->geo.alibi_rounded = 1;
}

/* The first released files say gelu, and mean its approximation */
void read_gemma_1(struct reader *r, struct model *m)
{
	read_gemma(r, m);
	if (m->base.form == MT_GEGLU) m->base.form = MT_GEGLU_TANH;
}

/* OLMo 1.7 clips q, k and v, which mt does not */
void read_olmo(struct reader *r, struct model *m)
{
	(void)m;
	if (is_given(json_object_get(r->root, "clip_qkv"))) REFUSE(r, MT_EX_CONFIG, "clip_qkv is not supported");
}

/* Embeddings have a norm */
void read_nanochat(struct reader *r, struct model *m)
{
	(void)r;
	m->first = MT_IN_NORM;
}

void read_bloom(struct reader *r, struct model *m)
{
	read_nanochat(r, m);
	set_alibi(m);
}

/* Its gelu is the approximation */
void read_openai(struct reader *r, struct model *m)
{
	(void)r;
	if (m->base.form == MT_GELU) m->base.form = MT_GELU_TANH;
	m->no_rope = true;
	m->later = MT_IN_NORM;
}

void read_neox_japanese(struct reader *r, struct model *m)
{
	uint32_t times = key_u32(r, "intermediate_multiple_size", 4, 1, 64);
	m->base.ffn = times * m->geo.hidden;
	m->last = MT_OWN_O_BIAS;
}

/* Sines whose angles fall from 1 at the first element to 1 / 10000 at element n */
static void set_sines(struct reader *r, struct model *m, uint32_t n)
{
	m->geo.sine_step = (float)(log(10000) / n);
	m->no_rope = true;
	if (m->geo.hidden < 4) REFUSE(r, MT_EX_CONFIG, "hidden_size %u is not supported with sines", m->geo.hidden);
}

/* The last element of each half has 1 / 10000. */
void read_xglm(struct reader *r, struct model *m)
{
	if (key_bool(r, r->root, "scale_embedding", true)) read_gemma(r, m);
	refuse_number(r, "layerdrop", 0);
	m->geo.position_offset = 2;
	set_sines(r, m, m->geo.hidden / 2 - 1);
}

/* layer_norm_epsilon is that of the final norm alone. */
void read_ctrl(struct reader *r, struct model *m)
{
	if (m->geo.norm_eps != 1e-6f) REFUSE(r, MT_EX_CONFIG, "layer_norm_epsilon is not supported, only 1e-06");
	read_gemma(r, m);
	set_sines(r, m, m->geo.hidden / 2);
}

/* Of MPT's own code, MptForCausalLM computes one form, whatever the other keys say. */
void read_mpt(struct reader *r, struct model *m)
{
	struct reader own = {.root = key_object(r, "attn_config"), .outer = r->outer, .rc = r->rc};
	double scale = key_number(&own, own.root, "softmax_scale");
	const char *type = key_string(&own, own.root, "attn_type");
	if (!isnan(scale)) {
		check_factor(&own, "softmax_scale", scale);
		m->geo.attention_scale = (float)scale;
	}
	set_alibi(m);
	if (key_u32(&own, "alibi_bias_max", 8, 1, UINT32_MAX) != 8) /* in transformers this key changes nothing */
		REFUSE(&own, MT_EX_CONFIG, "alibi_bias_max is not supported, only 8");
	if (!key_bool(&own, own.root, "alibi", true)) REFUSE(&own, MT_EX_CONFIG, "alibi false is not supported");
	if (key_bool(&own, own.root, "qk_ln", false)) REFUSE(&own, MT_EX_CONFIG, "qk_ln true is not supported");
	if (key_bool(&own, own.root, "prefix_lm", false)) REFUSE(&own, MT_EX_CONFIG, "prefix_lm true is not supported");
	if (type && strcmp(type, "multihead_attention") != 0)
		REFUSE(&own, MT_EX_CONFIG, "attn_type '%.40s' is not supported", type);
	refuse_number(&own, "attn_pdrop", 0);
	read_olmo(&own, m);
	r->rc = own.rc;
	if (!key_bool(r, r->root, "no_bias", true)) REFUSE(r, MT_EX_CONFIG, "no_bias false is not supported");
	if (is_given(json_object_get(r->root, "logit_scale"))) REFUSE(r, MT_EX_CONFIG, "logit_scale is not supported");
	if (key_u32(r, "expansion_ratio", 4, 1, UINT32_MAX) != 4)
		REFUSE(r, MT_EX_CONFIG, "expansion_ratio is not supported, only 4");
}

/* Its own code has o's bias by the same key as the MLP's, Llama's class by that of q, k and v. */
void read_internlm3(struct reader *r, struct model *m)
{
	if (!(m->geo.flags & MT_QKV_BIAS) != !(m->geo.flags & MT_MLP_BIAS))
		REFUSE(r, MT_EX_CONFIG, "qkv_bias different from bias is not supported");
}

/* reorder_and_upcast_attn and the like say in which order and type transformers computes the same */
void read_gpt2(struct reader *r, struct model *m)
{
	if (!key_bool(r, r->root, "scale_attn_weights", true)) m->geo.attention_scale = 1;
}

void read_bigcode(struct reader *r, struct model *m)
{
	read_gpt2(r, m);
	if (key_bool(r, r->root, "multi_query", true)) m->base.kv_heads = 1;
}

/* The number of a head's elements that turn */
void read_gptj(struct reader *r, struct model *m) { m->rotary_dim = key_u32(r, "rotary_dim", 64, 2, m->base.head_dim); }

/* attention_types: lists of local, which has the window, and global, each with the number of times that it comes */
void read_gpt_neo(struct reader *r, struct model *m)
{
	const json_t *pairs = json_object_get(r->root, "attention_types");
	m->geo.attention_scale = 1;
	m->no_rope = true;
	if (r->rc || !is_given(pairs)) return;
	json_t *types = json_array();
	json_object_set_new((json_t *)r->root, "layer_types", types);
	for (size_t i = 0; i < json_array_size(pairs); i++) {
		const json_t *pair = json_array_get(pairs, i), *names = json_array_get(pair, 0);
		size_t each = json_array_size(names), all = each * (size_t)json_integer_value(json_array_get(pair, 1));
		for (size_t k = 0; k < all && json_array_size(types) <= m->geo.layers; k++) {
			const char *name = json_string_value(json_array_get(names, k % each));
			bool local = name && strcmp(name, "local") == 0;
			if (!name || (!local && strcmp(name, "global") != 0))
				return REFUSE(r, MT_EX_CONFIG, "attention_types is not supported, only lists of global and local");
			json_array_append_new(types, json_string(local ? "sliding_attention" : "full_attention"));
		}
	}
}

void read_biogpt(struct reader *r, struct model *m)
{
	if (key_bool(r, r->root, "scale_embedding", true)) read_gemma(r, m);
	refuse_number(r, "layerdrop", 0);
	m->geo.position_offset = 2;
}

/* layer_rope_theta: each layer's base, 0 for none. With one that is not rope_theta, rope.c finds a disagreement. */
void read_granite_swa(struct reader *r, struct model *m)
{
	json_t *root = (json_t *)r->root, *list = json_object_get(root, "layer_rope_theta"), *turns = json_array();
	json_object_set_new(root, "no_rope_layers", turns);
	for (uint32_t i = 0; i < m->geo.layers; i++) {
		json_t *v = json_array_get(list, i), *theta = json_object_get(root, "rope_theta");
		if (is_given(list) && !json_is_number(v))
			return REFUSE(r, MT_EX_CONFIG, "layer_rope_theta is not a list of %u numbers", m->geo.layers);
		bool has = !v || json_number_value(v) != 0;
		json_array_append_new(turns, json_integer(has));
		if (v && has && !theta) json_object_set(root, "rope_theta", v);
		else if (v && has && json_number_value(theta) != json_number_value(v))
			REFUSE(r, MT_EX_CONFIG, "layer_rope_theta with several bases is not supported");
	}
}

/* Released files may have fewer logits than embeddings. */
void read_apertus(struct reader *r, struct model *m)
{
	if (is_given(json_object_get(r->root, "output_vocab_size")) &&
		key_u32(r, "output_vocab_size", m->geo.vocab, 1, INT32_MAX) != m->geo.vocab)
		REFUSE(r, MT_EX_CONFIG, "output_vocab_size is not vocab_size %u, which is not supported", m->geo.vocab);
}

/* Without word_embed_proj_dim and norms after attention and MLP, which OPT 350M has */
void read_opt(struct reader *r, struct model *m)
{
	uint32_t hidden = m->geo.hidden;
	if (is_given(json_object_get(r->root, "word_embed_proj_dim")) &&
		key_u32(r, "word_embed_proj_dim", hidden, 1, UINT32_MAX) != hidden)
		REFUSE(r, MT_EX_CONFIG, "word_embed_proj_dim is not hidden_size %u, which is not supported", hidden);
	if (!key_bool(r, r->root, "do_layer_norm_before", true))
		REFUSE(r, MT_EX_CONFIG, "do_layer_norm_before false is not supported");
	refuse_number(r, "layerdrop", 0);
	if (!(m->geo.flags & MT_NORM_BIAS)) m->geo.flags |= MT_NORM_PLAIN;
	m->geo.position_offset = 2;
}

/* Gemma 4. q and k have norms instead of a scale; v has one too. Full layers have heads of
 * another size, and may have other key-value heads, which are values as well. */
static void read_gemma4_text(struct reader *r, struct model *m)
{
	const char *both = key_string(r, r->root, "use_bidirectional_attention");
	if (both && strcmp(both, "vision") != 0) /* that of images, which a text model has not */
		REFUSE(r, MT_EX_CONFIG, "use_bidirectional_attention '%.40s' is not supported", both);
	read_gemma(r, m);
	m->geo.attention_scale = 1;
	m->full_k_is_v = key_bool(r, r->root, "attention_k_eq_v", false);
	if (is_given(json_object_get(r->root, "per_layer_config"))) return; /* it says the sizes instead */
	m->full_head_dim = key_u32(r, "global_head_dim", 512, 2, 512);
	if (m->full_k_is_v && is_given(json_object_get(r->root, "num_global_key_value_heads")))
		m->full_kv_heads = key_u32(r, "num_global_key_value_heads", 0, 1, 1 << 14);
}

/* The same without shared k and v (12B) */
void read_gemma4_unified(struct reader *r, struct model *m)
{
	refuse_number(r, "num_kv_shared_layers", 0);
	read_gemma4_text(r, m);
}

/* An input of its own for each block (E2B, E4B) */
static void read_layer_inputs(struct reader *r, struct model *m)
{
	static const char dim[] = "hidden_size_per_layer_input", vocab[] = "vocab_size_per_layer_input";
	const json_t *v = json_object_get(r->root, dim);
	if (v && json_is_null(v)) return;
	m->geo.ple_dim = key_u32(r, dim, 256, 0, 1 << 14);
	if (!m->geo.ple_dim) return;
	m->geo.ple_vocab = key_u32(r, vocab, 262144, 1, INT32_MAX);
	if (!r->rc && m->geo.ple_vocab < m->geo.vocab && !m->family->short_inputs)
		REFUSE(r, MT_EX_CONFIG, "%s %u is smaller than vocab_size %u", vocab, m->geo.ple_vocab, m->geo.vocab);
}

/* A number of each layer, at most `most`: a list, or one for all. Where the key is missing or null, at[] stays as it
 * is. */
static void read_each(struct reader *r, const char *key, uint32_t layers, double most, double at[])
{
	const json_t *v = json_object_get(r->root, key);
	if (r->rc || !is_given(v)) return;
	if (json_is_array(v) && json_array_size(v) != layers)
		return REFUSE(r, MT_EX_CONFIG, "%s has %zu entries for %u layers", key, json_array_size(v), layers);
	for (uint32_t i = 0; i < layers; i++) {
		const json_t *x = json_is_array(v) ? json_array_get(v, i) : v;
		at[i] = json_number_value(x);
		if (!json_is_number(x) || !(at[i] >= 0 && at[i] <= most))
			return REFUSE(r, MT_EX_CONFIG, "%s of layer %u is not a number up to %g", key, i, most);
	}
}

/* Gemma 3n. A coefficient of AltUp that reaches altup_coef_clip would be clipped; from weights as they are random or
 * released, none comes near to 100. */
void read_gemma3n(struct reader *r, struct model *m)
{
	uint32_t layers = m->geo.layers;
	double ffn[1024], sparse[1024], clip = key_number(r, r->root, "altup_coef_clip");
	read_gemma(r, m);
	read_layer_inputs(r, m);
	m->geo.attention_scale = 1;
	m->geo.altup = key_u32(r, "altup_num_inputs", 4, 2, MT_ALTUP);
	m->geo.laurel_rank = key_u32(r, "laurel_rank", 64, 1, 1 << 20);
	m->kv_shared = key_u32(r, "num_kv_shared_layers", 15, 0, 1024);
	refuse_number(r, "altup_active_idx", 0);
	if (!m->geo.ple_dim) REFUSE(r, MT_EX_CONFIG, "hidden_size_per_layer_input 0 is not supported");
	if (!key_bool(r, r->root, "altup_correct_scale", true))
		REFUSE(r, MT_EX_CONFIG, "altup_correct_scale false is not supported");
	if (clip < 100) REFUSE(r, MT_EX_CONFIG, "altup_coef_clip %g is not supported, only 100 and more", clip);
	for (uint32_t i = 0; i < layers; i++) {
		ffn[i] = 16384;
		sparse[i] = layers > 10 && i < 10 ? 0.95 : 0;
	}
	read_each(r, "intermediate_size", layers, 1 << 22, ffn);
	read_each(r, "activation_sparsity_pattern", layers, 0.9999, sparse);
	for (uint32_t i = 0; i < layers; i++) {
		m->ffn[i] = (uint32_t)ffn[i];
		m->sparsity[i] = (float)sparse[i];
		if (m->ffn[i] < 1 || m->ffn[i] != ffn[i])
			return REFUSE(r, MT_EX_CONFIG, "intermediate_size %g of layer %u is not a number from 1 on", ffn[i], i);
	}
}

/* With these (E2B, E4B); without (31B); or with experts beside each MLP (26B) */
void read_gemma4(struct reader *r, struct model *m)
{
	read_layer_inputs(r, m);
	m->kv_shared = key_u32(r, "num_kv_shared_layers", 0, 0, 1024);
	m->kv_shared_wide = key_bool(r, r->root, "use_double_wide_mlp", false);
	read_gemma4_text(r, m);
	if (!key_bool(r, r->root, "enable_moe_block", false)) return;
	if (m->geo.ple_dim || m->kv_shared)
		REFUSE(r, MT_EX_CONFIG,
			"enable_moe_block with hidden_size_per_layer_input or num_kv_shared_layers is not supported");
	m->geo.names = MT_NAMES_GEMMA_MOE;
	read_experts(r, m);
	m->experts.shared_ffn = m->base.ffn;
}

/* Trinity */
void read_afmoe(struct reader *r, struct model *m)
{
	if (key_bool(r, r->root, "mup_enabled", false)) read_gemma(r, m);
	m->base.output_gate = MT_GATE_APART;
}

/* A key of one word, which must be one of two */
static void refuse_word(struct reader *r, const char *key, const char *only, const char * or)
{
	const char *is = key_string(r, r->root, key);
	if (is && strcmp(is, only) != 0 && strcmp(is, or) != 0)
		REFUSE(r, MT_EX_CONFIG, "%s '%.40s' is not supported", key, is);
}

/* Gated DeltaNet, with these sizes where the file has no keys for them */
static void read_delta_sizes(struct reader *r, uint32_t key_heads, uint32_t value_heads, uint32_t key_dim,
	uint32_t value_dim, struct mt_layer *d)
{
	d->mixer = MT_DELTA;
	d->key_heads = key_u32(r, "linear_num_key_heads", key_heads, 1, 1 << 14);
	d->value_heads = key_u32(r, "linear_num_value_heads", value_heads, 1, 1 << 14);
	d->key_dim = key_u32(r, "linear_key_head_dim", key_dim, 1, MT_DELTA_DIM);
	d->value_dim = key_u32(r, "linear_value_head_dim", value_dim, 1, MT_DELTA_DIM);
	d->conv_width = key_u32(r, "linear_conv_kernel_dim", 4, 1, MT_CONV_WIDTH);
	if (!r->rc && d->value_heads % d->key_heads)
		REFUSE(r, MT_EX_CONFIG, "linear_num_value_heads %u is not a multiple of linear_num_key_heads %u",
			d->value_heads, d->key_heads);
}

/* Qwen3.5 and Qwen3-Next: gated DeltaNet, and attention whose output has a gate, of which q_proj has the rows too */
void read_delta(struct reader *r, struct model *m)
{
	read_delta_sizes(r, 16, 32, 128, 128, &m->mixer);
	if (!key_bool(r, r->root, "attn_output_gate", true))
		REFUSE(r, MT_EX_CONFIG, "attn_output_gate false is not supported");
	refuse_word(r, "output_gate_type", "swish", "silu");
	refuse_word(r, "mamba_ssm_dtype", "float32", "float32");
	m->base.output_gate = MT_GATE_IN_Q;
}

/* Lara Mini: without layer_types, each five layers are the same. */
void read_lara(struct reader *r, struct model *m)
{
	static const char *const types[] = {"linear_attention", "sliding_attention", "linear_attention", "full_attention",
		"sliding_attention"};
	read_delta_sizes(r, 8, 16, 128, 128, &m->mixer);
	if (is_given(json_object_get(r->root, "layer_types"))) return;
	json_t *list = json_array();
	json_object_set_new((json_t *)r->root, "layer_types", list);
	for (uint32_t i = 0; i < m->geo.layers; i++) json_array_append_new(list, json_string(types[i % 5]));
}

/* OLMo Hybrid: gated DeltaNet in layers whose norms are before it and the MLP. Null counts as no key, but a rope_theta
 * of null means no rope. Without layer_types each fourth layer has attention, or the last of fewer. */
void read_olmo_hybrid(struct reader *r, struct model *m)
{
	static const char *const sizes[] = {"linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
		"linear_value_head_dim"};
	json_t *root = (json_t *)r->root, *theta = json_object_get(json_object_get(root, "rope_parameters"), "rope_theta");
	uint32_t heads = m->base.heads, layers = m->geo.layers;
	for (int i = 0; i < 4; i++)
		if (json_is_null(json_object_get(root, sizes[i]))) json_object_del(root, sizes[i]);
	uint32_t dim = 3 * m->geo.hidden / 4 / key_u32(r, sizes[0], heads, 1, 1 << 14);
	read_delta_sizes(r, heads, heads, dim, 2 * key_u32(r, sizes[2], dim, 1, MT_DELTA_DIM), &m->mixer);
	m->mixer.mixer_eps = 1e-5f;
	m->mixer.mamba_flags = MT_PRE_NORM;
	if (key_bool(r, root, "linear_allow_neg_eigval", true)) m->mixer.mamba_flags |= MT_TWICE_BETA;
	m->no_rope = json_is_null(theta ? theta : json_object_get(root, "rope_theta"));
	m->mixed = true;
	if (is_given(json_object_get(root, "layer_types"))) return;
	for (uint32_t i = 0; i < layers; i++) m->mixes[i] = i % 4 != 3 && (layers > 3 || i + 1 < layers);
}

/* A limit of time_step_limit. Python's JSON has Infinity, and that of transformers 5 an object instead. */
static float time_limit(struct reader *r, const json_t *v)
{
	const char *odd = hfjson_odd_number(v), *object = json_string_value(json_object_get(v, "__float__"));
	if ((odd && strcmp(odd, "Infinity") == 0) || (object && strcmp(object, "Infinity") == 0)) return INFINITY;
	if (!json_is_number(v)) REFUSE(r, MT_EX_DATA, "time_step_limit is not a list of two numbers");
	return (float)json_number_value(v);
}

static void read_time_limits(struct reader *r, struct mt_layer *d)
{
	const json_t *list = json_object_get(r->root, "time_step_limit");
	if (!list) return;
	if (!json_is_array(list) || json_array_size(list) != 2)
		return REFUSE(r, MT_EX_DATA, "time_step_limit is not a list of two numbers");
	d->dt_min = time_limit(r, json_array_get(list, 0));
	d->dt_max = time_limit(r, json_array_get(list, 1));
	if (!(d->dt_min >= 0 && d->dt_min < d->dt_max))
		REFUSE(r, MT_EX_CONFIG, "time_step_limit %g to %g is out of range", d->dt_min, d->dt_max);
}

/* Keys of Mamba 2, in the order of their defaults, which follow */
struct mamba_keys {
	const char *heads, *groups, *head_dim, *state, *width, *bias, *in_bias, *out_bias;
	uint32_t missing[4]; /* of the first four */
};

static void read_mamba(struct reader *r, const struct mamba_keys *k, struct model *m)
{
	struct mt_layer *d = &m->mixer;
	d->mixer = MT_MAMBA;
	d->value_heads = key_u32(r, k->heads, k->missing[0], 1, 1 << 14);
	d->key_heads = key_u32(r, k->groups, k->missing[1], 1, 1 << 14);
	d->value_dim = key_u32(r, k->head_dim, k->missing[2], 1, MT_DELTA_DIM);
	d->key_dim = key_u32(r, k->state, k->missing[3], 1, MT_DELTA_DIM);
	d->conv_width = key_u32(r, k->width, 4, 1, MT_CONV_WIDTH);
	d->mamba_flags = key_bool(r, r->root, k->bias, true) ? MT_CONV_BIAS : 0;
	if (key_bool(r, r->root, k->in_bias, false)) d->mamba_flags |= MT_IN_BIAS;
	if (key_bool(r, r->root, k->out_bias, false)) d->mamba_flags |= MT_OUT_BIAS;
	d->dt_max = INFINITY;
	if (!r->rc && d->value_heads % d->key_heads)
		REFUSE(r, MT_EX_CONFIG, "%s %u is not a multiple of %s %u", k->heads, d->value_heads, k->groups, d->key_heads);
}

/* The same where the size of heads may follow from that of all heads together; inner: that is `what` */
static void read_mamba_inner(struct reader *r, struct mamba_keys keys, uint64_t inner, const char *what,
	struct model *m)
{
	const json_t *dim = json_object_get(r->root, keys.head_dim);
	bool automatic = !dim || (json_is_string(dim) && strcmp(json_string_value(dim), "auto") == 0);
	keys.missing[2] = (uint32_t)inner / key_u32(r, keys.heads, keys.missing[0], 1, 1 << 14);
	if (automatic) keys.head_dim = "";
	read_mamba(r, &keys, m);
	read_time_limits(r, &m->mixer);
	if (!r->rc && (uint64_t)m->mixer.value_heads * m->mixer.value_dim != inner)
		REFUSE(r, MT_EX_CONFIG, "%s %u of %u are not %s", keys.heads, m->mixer.value_heads, m->mixer.value_dim, what);
}

static const struct mamba_keys mamba_n = {"mamba_n_heads", "mamba_n_groups", "mamba_d_head", "mamba_d_state",
	"mamba_d_conv", "mamba_conv_bias", "mamba_proj_bias", "mamba_proj_bias", {128, 1, 0, 256}};

/* The same where all heads together are `key` times hidden_size */
static void read_mamba_expanded(struct reader *r, const struct mamba_keys *keys, const char *key, struct model *m)
{
	char what[64];
	snprintf(what, sizeof what, "%s times hidden_size %u", key, m->geo.hidden);
	read_mamba_inner(r, *keys, (uint64_t)key_u32(r, key, 2, 1, 1 << 10) * m->geo.hidden, what, m);
}

/* Granite 4: with position_embedding_type "rope" attention has rope; without experts, the MLP is the shared one */
void read_granite_hybrid(struct reader *r, struct model *m)
{
	const json_t *experts = json_object_get(r->root, "num_local_experts");
	const char *type = key_string(r, r->root, "position_embedding_type");
	read_mamba_expanded(r, &mamba_n, "mamba_expand", m);
	m->no_rope = !type || strcmp(type, "rope") != 0;
	if (json_is_integer(experts) && json_integer_value(experts) == 0)
		m->base.ffn = key_u32(r, "shared_intermediate_size", 1024, 1, 1 << 22);
	else read_experts(r, m);
}

/* Attention has the layers of attn_layer_indices. */
void read_bamba(struct reader *r, struct model *m)
{
	bool full[1024] = {0};
	read_mamba_expanded(r, &mamba_n, "mamba_expand", m);
	refuse_number(r, "z_loss_coefficient", 0);
	key_layers(r, "attn_layer_indices", m->geo.layers, full);
	m->mixed = true;
	for (uint32_t i = 0; i < m->geo.layers; i++) m->mixes[i] = !full[i];
}

/* All layers are Mamba 2 alone. */
void read_mamba2(struct reader *r, struct model *m)
{
	static const struct mamba_keys keys = {"num_heads", "n_groups", "head_dim", "state_size", "conv_kernel",
		"use_conv_bias", "use_bias", "use_bias", {128, 8, 64, 128}};
	read_mamba_expanded(r, &keys, "expand", m);
	memset(m->halves, 'M', m->geo.layers);
}

/* Mamba 1: keys of its state, convolution, rank of dt, and biases; channels */
struct scan_keys {
	const char *state, *width, *rank, *conv_bias, *bias;
};

static void read_scan(struct reader *r, const struct scan_keys *k, uint64_t channels, struct model *m)
{
	struct mt_layer *d = &m->mixer;
	const json_t *rank = json_object_get(r->root, k->rank);
	bool automatic = !rank || (json_is_string(rank) && strcmp(json_string_value(rank), "auto") == 0);
	d->mixer = MT_MAMBA_1;
	d->conv_dim = (uint32_t)channels;
	d->key_dim = key_u32(r, k->state, 16, 1, MT_SCAN_DIM);
	d->conv_width = key_u32(r, k->width, 4, 1, MT_CONV_WIDTH);
	d->q_rank = automatic ? (m->geo.hidden + 15) / 16 : key_u32(r, k->rank, 1, 1, 1 << 20);
	d->mamba_flags = key_bool(r, r->root, k->conv_bias, true) ? MT_CONV_BIAS : 0;
	if (key_bool(r, r->root, k->bias, false)) d->mamba_flags |= MT_IN_BIAS | MT_OUT_BIAS;
	if (channels > 1 << 22) REFUSE(r, MT_EX_CONFIG, "%llu channels are out of range", (unsigned long long)channels);
}

/* Blocks without an MLP. The number of channels may be given. */
void read_mamba_1(struct reader *r, struct model *m)
{
	static const struct scan_keys keys = {"state_size", "conv_kernel", "time_step_rank", "use_conv_bias", "use_bias"};
	bool given = is_given(json_object_get(r->root, "intermediate_size"));
	uint64_t expand = key_u32(r, "expand", 2, 1, 1 << 10);
	read_scan(r, &keys, given ? m->base.ffn : expand * m->geo.hidden, m);
	memset(m->halves, 'M', m->geo.layers);
}

/* The same with norms of dt, B and C, which have no weights */
void read_falcon_mamba(struct reader *r, struct model *m)
{
	read_mamba_1(r, m);
	double eps = key_number(r, r->root, "mixer_rms_eps");
	m->mixer.part_eps = isnan(eps) ? 1e-6f : (float)eps;
	if (!(m->mixer.part_eps > 0 && m->mixer.part_eps < 1))
		REFUSE(r, MT_EX_CONFIG, "mixer_rms_eps %g is out of range", eps);
}

/* i % period == offset, of two keys */
static void read_period(struct reader *r, const char *period, uint32_t each, const char *offset, uint32_t first,
	uint32_t layers, bool *is)
{
	each = key_u32(r, period, each, 1, INT32_MAX);
	first = key_u32(r, offset, first, 0, INT32_MAX);
	if (first >= each) REFUSE(r, MT_EX_CONFIG, "%s %u is not below %s %u", offset, first, period, each);
	for (uint32_t i = 0; i < layers && each; i++) is[i] = i % each == first;
}

/* Jamba: Mamba with norms of dt, B and C, attention without positions at each attn_layer_period-th layer, and experts
 * at each expert_layer_period-th one */
void read_jamba(struct reader *r, struct model *m)
{
	static const struct scan_keys keys = {"mamba_d_state", "mamba_d_conv", "mamba_dt_rank", "mamba_conv_bias",
		"mamba_proj_bias"};
	uint64_t expand = key_u32(r, "mamba_expand", 2, 1, 1 << 10);
	read_scan(r, &keys, expand * m->geo.hidden, m);
	m->mixer.mamba_flags |= MT_NORM_WEIGHTS;
	m->mixer.part_eps = m->geo.norm_eps;
	m->mixed = m->no_rope = true;
	read_period(r, "attn_layer_period", 8, "attn_layer_offset", 4, m->geo.layers, m->mixes);
	for (uint32_t i = 0; i < m->geo.layers; i++) m->mixes[i] = !m->mixes[i];
	if (key_u32(r, "num_experts", 16, 1, MT_EXPERTS) == 1) return; /* they are MLPs */
	read_experts(r, m);
	read_period(r, "expert_layer_period", 2, "expert_layer_offset", 1, m->geo.layers, m->sparse);
	if (!memchr(m->sparse, true, m->geo.layers)) m->geo.aux_coef = m->geo.z_coef = 0;
}

/* A list of n factors, which are 1 without it */
static void read_factors(struct reader *r, const char *key, size_t n, double *factor)
{
	const json_t *list = json_object_get(r->root, key);
	for (size_t i = 0; i < n; i++) factor[i] = 1;
	if (!is_given(list)) return;
	bool right = json_is_array(list) && json_array_size(list) == n;
	for (size_t i = 0; right && i < n; i++) {
		right = json_is_number(json_array_get(list, i));
		factor[i] = json_number_value(json_array_get(list, i));
		if (right) check_factor(r, key, factor[i]);
	}
	if (!right) REFUSE(r, MT_EX_DATA, "%s is not a list of %zu numbers", key, n);
}

static double read_factor(struct reader *r, const char *key)
{
	double x = key_number(r, r->root, key);
	if (isnan(x)) return 1;
	check_factor(r, key, x);
	return x;
}

/* Falcon-H1: attention and Mamba 2 beside it. A factor of k is one of scores, and without a bias a factor on what a
 * projection reads is one on what it gives. */
void read_falcon_h1(struct reader *r, struct model *m)
{
	bool derived = json_is_null(json_object_get(r->root, "mamba_d_ssm"));
	uint64_t inner = derived ? (uint64_t)key_u32(r, "mamba_expand", 2, 1, 1 << 10) * m->geo.hidden
							 : key_u32(r, "mamba_d_ssm", 1024, 1, 1 << 22);
	double column[5], mlp[2], ssm = read_factor(r, "ssm_in_multiplier");
	static const int at[5] = {3, 2, 1, 0, 4}; /* of z, x, B, C, dt */
	struct mamba_keys keys = mamba_n;
	char what[64];
	keys.out_bias = "projectors_bias";
	snprintf(what, sizeof what, derived ? "mamba_expand times hidden_size %u" : "mamba_d_ssm %u",
		derived ? m->geo.hidden : (uint32_t)inner);
	read_mamba_inner(r, keys, inner, what, m);
	uint32_t *flags = &m->mixer.mamba_flags;
	*flags |= MT_BESIDE_ATTENTION;
	if (!key_bool(r, r->root, "mamba_rms_norm", false)) *flags |= MT_GATE_ALONE;
	else if (key_bool(r, r->root, "mamba_norm_before_gate", true)) *flags |= MT_NORM_FIRST;
	m->geo.attention_scale *= (float)read_factor(r, "key_multiplier");
	if (*flags & MT_IN_BIAS) {
		m->geo.mamba_in_scale = (float)ssm;
		ssm = 1;
	}
	read_factors(r, "ssm_multipliers", 5, column);
	for (int i = 0; i < 5; i++) m->geo.mamba_scale[at[i]] = (float)(column[i] * ssm);
	read_factors(r, "mlp_multipliers", 2, mlp);
	m->geo.gate_scale = (float)mlp[0];
	m->geo.mlp_scale = (float)mlp[1];
}

/* layers_block_type, or hybrid_override_pattern, which has a letter for each layer */
static void read_halves(struct reader *r, struct model *m)
{
	static const struct {
		char half;
		const char *name, *old;
	} types[] = {{'M', "linear_attention", "mamba"}, {'*', "full_attention", "attention"}, {'E', "moe", "moe"},
		{'-', "mlp", "mlp"}};
	const json_t *list = json_object_get(r->root, "layers_block_type");
	const char *pattern = key_string(r, r->root, "hybrid_override_pattern");
	size_t n = json_array_size(list);
	if (!is_given(list) && !pattern) pattern = "ME*-";
	if (is_given(list) && !json_is_array(list)) return REFUSE(r, MT_EX_DATA, "layers_block_type is not a list");
	if (!is_given(list)) n = strlen(pattern);
	if (n < 1 || n > 1024) return REFUSE(r, MT_EX_CONFIG, "%zu layers are not between 1 and 1024", n);
	for (size_t i = 0; i < n; i++) {
		const char *type = json_string_value(json_array_get(list, i));
		if (is_given(list) && !type) return REFUSE(r, MT_EX_DATA, "layers_block_type has an entry that is no string");
		for (size_t t = 0; t < sizeof types / sizeof *types; t++)
			if (type ? !strcmp(type, types[t].name) || !strcmp(type, types[t].old) : pattern[i] == types[t].half)
				m->halves[i] = types[t].half;
		if (!m->halves[i] && type) REFUSE(r, MT_EX_CONFIG, "layers_block_type '%.40s' is not supported", type);
		if (!m->halves[i]) REFUSE(r, MT_EX_CONFIG, "hybrid_override_pattern '%c' is not supported", pattern[i]);
		m->sparse[i] = m->halves[i] == 'E';
	}
	if (pattern && strcmp(pattern, m->halves) != 0)
		REFUSE(r, MT_EX_CONFIG, "layers_block_type and hybrid_override_pattern disagree");
	m->geo.layers = (uint32_t)n;
}

void read_nemotron_h(struct reader *r, struct model *m)
{
	static const struct mamba_keys keys = {"mamba_num_heads", "n_groups", "mamba_head_dim", "ssm_state_size",
		"conv_kernel", "use_conv_bias", "use_bias", "use_bias", {128, 8, 64, 128}};
	double least = key_number(r, r->root, "time_step_min");
	read_halves(r, m);
	read_mamba(r, &keys, m);
	m->mixer.dt_min = isnan(least) ? 0.001f : (float)least; /* time_step_limit and time_step_max limit nothing */
	if (!(m->mixer.dt_min >= 0 && m->mixer.dt_min < 1e6f))
		REFUSE(r, MT_EX_CONFIG, "time_step_min %g is out of range", least);
	refuse_word(r, "mamba_hidden_act", "silu", "swish");
	if (is_given(json_object_get(r->root, "moe_latent_size")))
		REFUSE(r, MT_EX_CONFIG, "moe_latent_size is not supported");
	if (m->geo.flags & MT_TIED) REFUSE(r, MT_EX_CONFIG, "tie_word_embeddings true is not supported");
	if (strchr(m->halves, 'E')) read_experts(r, m);
	for (uint32_t i = 0; i < m->geo.layers; i++) m->sparse[i] = m->halves[i] == 'E';
}

/* LFM2: a short convolution, whose channels are those of the residual stream */
void read_conv(struct reader *r, struct model *m)
{
	m->mixer.mixer = MT_CONV;
	m->mixer.conv_dim = m->geo.hidden;
	m->mixer.conv_width = key_u32(r, "conv_L_cache", 3, 1, MT_CONV_WIDTH);
	if (key_bool(r, r->root, "conv_bias", false)) m->mixer.mamba_flags = MT_IN_BIAS | MT_CONV_BIAS | MT_OUT_BIAS;
}

/* The MLP's inner size is two thirds of intermediate_size, rounded up */
void read_lfm2(struct reader *r, struct model *m)
{
	uint32_t multiple = key_u32(r, "block_multiple_of", 256, 1, 1 << 22), most = 1 << 22;
	double factor = key_number(r, r->root, "block_ffn_dim_multiplier");
	read_conv(r, m);
	if (r->rc || !key_bool(r, r->root, "block_auto_adjust_ff_dim", true)) return;
	double ffn = floor((isnan(factor) ? 1 : factor) * (2 * m->base.ffn / 3));
	if (!(ffn >= 1 && ffn <= most))
		return REFUSE(r, MT_EX_CONFIG, "block_ffn_dim_multiplier %g is out of range", factor);
	m->base.ffn = ((uint32_t)ffn + multiple - 1) / multiple * multiple;
}

/* Multi-head latent attention. base's head_dim is that of the part that turns, until here. */
static void read_latents(struct reader *r, struct model *m)
{
	const struct family *family = m->family;
	struct mt_layer *k = &m->base;
	const json_t *rank = json_object_get(r->root, "q_lora_rank");
	bool direct = rank ? json_is_null(rank) : !family->latent[0];
	uint32_t nope = key_u32(r, "qk_nope_head_dim", family->latent[2], 1, 512);
	k->mixer = MT_MLA;
	k->q_rank = direct ? 0 : key_u32(r, "q_lora_rank", family->latent[0], 1, 1 << 20);
	k->kv_rank = key_u32(r, "kv_lora_rank", family->latent[1], 1, 1 << 20);
	k->v_dim = key_u32(r, "v_head_dim", family->latent[3], 1, 512);
	k->rope_dim = k->head_dim;
	k->head_dim += nope;
	if (!family->any_head_dim && is_given(json_object_get(r->root, "head_dim"))) {
		uint32_t dim = key_u32(r, "head_dim", 0, 1, INT32_MAX);
		if (dim != k->rope_dim && dim != k->head_dim)
			REFUSE(r, MT_EX_CONFIG, "head_dim %u is not qk_rope_head_dim %u or, with qk_nope_head_dim, %u", dim,
				k->rope_dim, k->head_dim);
	}
	k->neighbours = family->neighbours || key_bool(r, r->root, "rope_interleave", true);
	if (k->kv_heads != k->heads)
		REFUSE(r, MT_EX_CONFIG, "num_key_value_heads %u is not num_attention_heads %u", k->kv_heads, k->heads);
	check_heads(r, k);
	m->geo.attention_scale = (float)(1 / sqrt(k->head_dim));
}

void read_youtu(struct reader *r, struct model *m)
{
	if (!is_given(json_object_get(r->root, "initializer_range"))) m->geo.init_range = 2 / sqrtf(5.0f * m->geo.hidden);
}

/* Attention is to the index_topk tokens that an indexer chooses. In rows that are no longer these are all before a
 * token; the indexer has no gradient, and its tensors are carried along. */
void read_indexed(struct reader *r, struct model *m) { m->longest_row = key_u32(r, "index_topk", 2048, 1, INT32_MAX); }

/* Its rope is llama's. Null means no factor. */
void read_minicpm3(struct reader *r, struct model *m)
{
	m->base.neighbours = 0;
	if (!json_object_get(r->root, "v_head_dim")) m->base.v_dim = m->geo.hidden / m->base.heads;
	if (m->base.v_dim > 512) REFUSE(r, MT_EX_CONFIG, "v_head_dim %u is not between 1 and 512", m->base.v_dim);
	if (!json_is_null(json_object_get(r->root, "scale_depth"))) m->geo.residual_scale /= sqrtf(m->geo.layers);
	if (!json_is_null(json_object_get(r->root, "dim_model_base"))) m->geo.logit_scale /= m->geo.hidden;
	m->geo.mlp_scale = m->geo.residual_scale;
}

/* Which layers have delta attention, where layer_types does not say it: those that linear_attn_config lists, from 1 on,
 * or all but each fourth one and the first */
static void read_kimi_layers(struct reader *r, const json_t *linear, struct model *m)
{
	static const char *const lists[] = {"full_attn_layers", "kda_layers"};
	const json_t *list[2] = {json_object_get(linear, lists[0]), json_object_get(linear, lists[1])};
	uint32_t layers = m->geo.layers;
	bool known[1024] = {0};
	m->mixed = true;
	if (is_given(json_object_get(r->root, "layer_types"))) return;
	for (uint32_t i = 0; i < layers; i++) m->mixes[i] = i == 0 || i % 4;
	if (!list[0] || !list[1]) return;
	for (int k = 0; k < 2; k++)
		for (size_t i = 0; i < json_array_size(list[k]); i++) {
			json_int_t layer = json_integer_value(json_array_get(list[k], i));
			if (layer < 1 || layer > (json_int_t)layers || known[layer - 1])
				return REFUSE(r, MT_EX_CONFIG, "%s names layer %lld, of %u, or twice", lists[k], (long long)layer,
					layers);
			known[layer - 1] = true;
			m->mixes[layer - 1] = k;
		}
	for (uint32_t i = 0; i < layers; i++)
		if (!known[i]) return REFUSE(r, MT_EX_CONFIG, "linear_attn_config does not say what layer %u is", i + 1);
}

/* Kimi Linear: MLA without rope, and delta attention with a gate for each channel */
void read_kimi(struct reader *r, struct model *m)
{
	const json_t *linear = key_object(r, "linear_attn_config");
	const char *function = key_string(r, r->root, "moe_router_activation_func");
	struct reader own = {.root = linear ? linear : r->root, .outer = r->outer, .rc = r->rc};
	struct mt_layer *d = &m->mixer;
	d->mixer = MT_DELTA;
	d->key_heads = d->value_heads = key_u32(&own, linear ? "num_heads" : "linear_num_heads", 32, 1, 1 << 14);
	d->key_dim = d->value_dim = key_u32(&own, linear ? "head_dim" : "linear_head_dim", 128, 1, MT_DELTA_DIM);
	d->conv_width = key_u32(&own, linear ? "short_conv_kernel_size" : "linear_conv_kernel_dim", 4, 1, MT_CONV_WIDTH);
	d->gate_rank = d->key_dim;
	r->rc = own.rc;
	if (!key_bool(r, r->root, "mla_use_nope", true)) REFUSE(r, MT_EX_CONFIG, "mla_use_nope false is not supported");
	read_kimi_layers(r, linear, m);
	m->no_rope = true;
	if (function && strcmp(function, "sigmoid") != 0)
		REFUSE(r, MT_EX_CONFIG, "moe_router_activation_func '%.40s' is not supported, only sigmoid", function);
	if (key_u32(r, "moe_layer_freq", 1, 1, INT32_MAX) != 1)
		REFUSE(r, MT_EX_CONFIG, "moe_layer_freq is not supported, only 1");
}

/* As nn.Embedding: a negative padding_idx counts from the vocabulary's end. -1: none */
static int32_t read_pad_token(struct reader *r, const struct family *family, uint32_t vocab)
{
	const json_t *v = json_object_get(r->root, "pad_token_id");
	bool missing = !v && family->pad;
	if (r->rc || (!is_given(v) && !missing) || key_is_odd(r, "pad_token_id", v) || family->no_pad) return -1;
	if (!missing && !json_is_integer(v)) return REFUSE(r, MT_EX_DATA, "pad_token_id is not an integer"), -1;
	json_int_t id = missing ? (json_int_t)family->pad - 1 : json_integer_value(v);
	if (id >= (json_int_t)vocab || id < -(json_int_t)vocab)
		REFUSE(r, MT_EX_CONFIG, "pad_token_id %lld is not in a vocabulary of %u", (long long)id, vocab);
	return (int32_t)(id < 0 ? id + (json_int_t)vocab : id);
}

static void read_norms(struct reader *r, const struct family *family, struct mt_geometry *geo)
{
	const char *key = family->eps_key ? family->eps_key : "rms_norm_eps";
	double eps = *key ? key_number(r, r->root, key) : NAN, range = key_number(r, r->root, "initializer_range");
	if (isnan(eps)) eps = family->eps ? family->eps : NORM_EPS_DEFAULT;
	if (isnan(range) && family->init_range) range = family->init_range;
	if (isnan(range) || range == 0) range = INIT_RANGE_DEFAULT; /* as PreTrainedModel._init_weights */
	if (!(eps >= 0 && eps < 1)) REFUSE(r, MT_EX_CONFIG, "%s %g is out of range", key, eps);
	if (!(range > 0 && range <= 1)) REFUSE(r, MT_EX_CONFIG, "initializer_range %g is out of range", range);
	geo->norm_eps = (float)eps;
	geo->init_range = (float)range;
}

static int read_geometry(json_t *root, struct mt_geometry *geo)
{
	struct reader reader = {.root = root, .outer = root}, *r = &reader;
	const struct wrapper *wrapper;
	struct model m;
	memset(&m, 0, sizeof m); /* padding too: kinds are compared as bytes */
	memset(geo, 0, sizeof *geo);
	const struct family *family = find_family(r, &wrapper);
	if (!family) return r->rc;
	snprintf(m.geo.family, sizeof m.geo.family, "%s", family->name);
	if (wrapper) snprintf(m.geo.wrapper, sizeof m.geo.wrapper, "%s", wrapper->name);
	m.family = family;
	m.geo.names = family->names;
	read_aliases(r, family);
	refuse_foreign(r, family);
	read_sizes(r, family, &m);
	if (r->rc) return r->rc; /* the code below divides by the sizes and uses them as indices */

	read_form(r, family, &m.base);
	read_flags(r, family, &m.geo);
	if (is_tied(r, family, wrapper)) m.geo.flags |= MT_TIED;
	read_numbers(r, family, &m);
	m.geo.pad_token = read_pad_token(r, family, m.geo.vocab);
	read_norms(r, family, &m.geo);
	if (family->latent[1]) read_latents(r, &m);
	if (family->experts.key && !family->experts.by_read) read_experts(r, &m);
	if (family->read) family->read(r, &m);
	read_ropes(r, family, &m);
	if (!r->rc) read_layers(r, family, &m);
	float mtp = key_coefficient(r, "mtp_loss_coef", 0); /* mt's own, as router_z_loss_coef */
	*geo = m.geo;
	if (mtp != 0 && !r->rc) r->rc = geometry_mtp(geo, (double)mtp);
	return r->rc;
}

/* ---- the file */

#define GGUF_HINT \
	"in Python (transformers and gguf), AutoModelForCausalLM.from_pretrained(DIR, gguf_file=FILE)" \
	".save_pretrained(NEW), and the same with AutoTokenizer, write a directory that mt reads"

bool hf_is_lfs_pointer(const char *text, size_t bytes)
{
	static const char begin[] = "version https://git-lfs.github.com/spec/";
	return bytes >= sizeof begin - 1 && !memcmp(text, begin, sizeof begin - 1);
}

/* What is often given in place of a config.json, by its first bytes */
static int check_start(int fd)
{
	char text[64];
	ssize_t got = pread(fd, text, sizeof text, 0);
	size_t bytes = got < 0 ? 0 : (size_t)got;
	if (hf_is_lfs_pointer(text, bytes)) return mt_fail(MT_EX_DATA, HF_LFS_POINTER);
	if (bytes >= 4 && !memcmp(text, "GGUF", 4))
		return mt_fail(MT_EX_DATA, "is a GGUF file, which mt does not read: " GGUF_HINT);
	bool zip = bytes >= 4 && !memcmp(text, "PK\3\4", 4), safetensors = bytes >= 9 && text[8] == '{' && !text[7];
	bool pickle = bytes && text[0] == '\200';
	if (zip || pickle || safetensors)
		return mt_fail(MT_EX_DATA, "is a file of weights: give the model's directory, or a config.json");
	return 0;
}

/* Read the whole file, NUL-terminated, to be freed. */
static int read_text(int fd, char **text, size_t *bytes)
{
	struct stat st;
	if (fstat(fd, &st) < 0) return mt_fail(MT_EX_IO, "%s", strerror(errno));
	if (!S_ISREG(st.st_mode)) return mt_fail(MT_EX_DATA, "not a regular file");
	int rc = check_start(fd);
	if (rc) return rc;
	if (st.st_size > CONFIG_BYTES) return mt_fail(MT_EX_DATA, "larger than 16 MiB");
	size_t room = (size_t)st.st_size, have = 0;
	char *buf = malloc(room + 1);
	if (!buf) return mt_fail(MT_EX_NOMEM, "no memory for %zu bytes", room + 1);
	while (have < room) {
		ssize_t got = read(fd, buf + have, room - have);
		if (got < 0 && errno == EINTR) continue;
		if (got < 0) {
			int e = errno;
			free(buf);
			return mt_fail(MT_EX_IO, "%s", strerror(e));
		}
		if (got == 0) break;
		have += (size_t)got;
	}
	buf[have] = 0;
	*text = buf;
	*bytes = have;
	return 0;
}

static int open_config(const char *path, int *fd, char *shown, size_t n)
{
	struct stat st;
	const char *slash = strrchr(path, '/');
	snprintf(shown, n, "%s", slash && slash[1] ? slash + 1 : path);
	bool dir = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
	char file[4096];
	if (snprintf(file, sizeof file, dir ? "%s/config.json" : "%s", path) >= (int)sizeof file)
		return mt_fail(MT_EX_NOINPUT, "path too long");
	if (dir) snprintf(shown, n, "config.json");
	*fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY); /* O_NONBLOCK: a FIFO must not block */
	if (*fd >= 0) return 0;
	int ex = errno == ENOENT || errno == ENOTDIR ? MT_EX_NOINPUT : errno == EACCES ? MT_EX_NOTYOURS : MT_EX_IO;
	return mt_fail(ex, "%s", strerror(errno));
}

int config_parse(const char *text, size_t bytes, struct mt_geometry *geo)
{
	json_error_t error;
	json_t *root = hfjson_parse(text, bytes, &error);
	if (!root && json_error_code(&error) == json_error_out_of_memory)
		return mt_fail(MT_EX_NOMEM, "no memory for its JSON");
	if (!root) return mt_fail(MT_EX_DATA, "line %d: not JSON: %s", error.line, error.text);
	int rc = json_is_object(root) ? read_geometry(root, geo) : mt_fail(MT_EX_DATA, "not a JSON object");
	json_decref(root);
	return rc;
}

/* After "no such file": how to get a model whose directory, or name on the hub, the path may be, or "" */
static const char *hub_hint(const char *path)
{
	static char hint[512];
	const char *slash = strchr(path, '/');
	size_t n = strlen(path);
	bool file = n >= 5 && !strcmp(path + n - 5, ".json");
	bool hub = slash && slash != path && slash[1] && !strchr(slash + 1, '/') && path[0] != '.' &&
		strspn(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/") == n;
	if (file || n > 256 || access(path, F_OK) == 0) return "";
	snprintf(hint, sizeof hint, "; %smt does not download: hf download %s --local-dir %s",
		hub ? "if a Hugging Face name is meant: " : "", hub ? path : "ORG/NAME", hub ? "DIR" : path);
	return hint;
}

const char *hf_other_format(const char *dir)
{
	static const struct {
		const char *name, *hint; /* of a file, or how its name ends: the first one in the table counts */
	} others[] = {
		{"adapter_config.json",
			"in Python, peft.AutoPeftModelForCausalLM.from_pretrained(DIR).merge_and_unload().save_pretrained(NEW) "
			"makes a model of it"},
		{".bin",
			"in Python, transformers.AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW) writes "
			"model.safetensors"},
		{".gguf", GGUF_HINT},
		{"consolidated.safetensors", "it is in Mistral's own format: take the model's Hugging Face directory"},
		{".pth", "it is in a format of PyTorch: take the model's Hugging Face directory"},
		{".pt", "it is in a format of PyTorch: take the model's Hugging Face directory"},
		{".h5", "it is in a format of TensorFlow: take the model's safetensors"},
		{".msgpack", "it is in a format of Flax: take the model's safetensors"},
	};
	static char text[512];
	size_t first = sizeof others / sizeof *others;
	DIR *d = opendir(dir);
	*text = 0;
	for (struct dirent *e; d && (e = readdir(d));) {
		int n = (int)strlen(e->d_name), index = (int)strlen(".index.json");
		if (n > index && !strcmp(e->d_name + n - index, ".index.json")) n -= index; /* of several files: of the first */
		if (!strncmp(e->d_name, "training_args.", 14)) continue;
		for (size_t i = 0; i < first; i++) {
			int m = (int)strlen(others[i].name);
			if (n < m || memcmp(e->d_name + n - m, others[i].name, (size_t)m) != 0) continue;
			first = i;
			snprintf(text, sizeof text, "; %s %.*s: %s",
				i ? "mt does not read" : "a LoRA adapter, which is no whole model, has", n < 80 ? n : 80, e->d_name,
				others[i].hint);
		}
	}
	if (d) closedir(d);
	return text;
}

/* The directory that config.json is in */
static void directory_of(const char *path, char dir[4096])
{
	struct stat st;
	const char *slash = strrchr(path, '/');
	if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) snprintf(dir, 4096, "%s", path);
	else if (slash) snprintf(dir, 4096, "%.*s", slash == path ? 1 : (int)(slash - path), path);
	else snprintf(dir, 4096, ".");
}

/* After "no such file": what the directory holds instead, or "" */
static const char *missing_hint(const char *path)
{
	char dir[4096];
	directory_of(path, dir);
	return hf_other_format(dir);
}

static int look_beside(const char *path, struct mt_geometry *geo)
{
	char dir[4096];
	directory_of(path, dir);
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0) return 0;
	int rc = read_beside(fd, geo);
	close(fd);
	return rc;
}

int mt_config_read(const char *path, struct mt_geometry *geo, char **text)
{
	return mt_config_read_mtp(path, 0, geo, text);
}

int mt_config_read_mtp(const char *path, double mtp, struct mt_geometry *geo, char **text)
{
	char shown[256], *buf = NULL;
	size_t bytes = 0;
	int fd = -1, rc = open_config(path, &fd, shown, sizeof shown);
	if (rc == 0) rc = read_text(fd, &buf, &bytes);
	if (fd >= 0) close(fd);
	if (rc == 0) rc = config_parse(buf, bytes, geo);
	if (rc == 0 && mtp != 0) rc = geometry_mtp(geo, mtp);
	if (rc == 0) rc = look_beside(path, geo);
	if (rc == 0 && text) {
		*text = buf;
		return 0;
	}
	free(buf);
	if (rc) mt_fail_in(rc, "%s", shown);
	if (rc != -MT_EX_NOINPUT) return rc;
	return mt_fail(MT_EX_NOINPUT, "%s%s%s", mt_errmsg(), missing_hint(path), hub_hint(path));
}
