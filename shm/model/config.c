/* config.c: Hugging Face's config.json -> struct mt_geometry. The only file that knows model families by name.
 *
 * Both dialects are read: transformers 4 wrote rope_theta, rope_scaling and torch_dtype; transformers 5 writes
 * rope_parameters, dtype and layer_types. If a file has both, they must agree.
 */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "hfjson.h"
#include "lib.h"

#define CONFIG_BYTES (16u << 20)

/* ------------------------------------------------------------------------------------------------ families */

enum { SIZES = 8 };
enum { DERIVED = 0 }; /* kv_heads: as heads; head_dim: hidden / heads */

static const struct size_key {
	const char *name;
	size_t at; /* in struct mt_geometry */
	uint32_t max;
	bool nullable; /* null: DERIVED */
} size_keys[SIZES] = {
	{"num_hidden_layers", offsetof(struct mt_geometry, layers), 1024, false},
	{"hidden_size", offsetof(struct mt_geometry, hidden), 1 << 20, false},
	{"intermediate_size", offsetof(struct mt_geometry, ffn), 1 << 22, false},
	{"vocab_size", offsetof(struct mt_geometry, vocab), 1 << 24, false},
	{"max_position_embeddings", offsetof(struct mt_geometry, max_position), INT32_MAX, false},
	{"num_attention_heads", offsetof(struct mt_geometry, heads), 1 << 14, false},
	{"num_key_value_heads", offsetof(struct mt_geometry, kv_heads), 1 << 14, true},
	{"head_dim", offsetof(struct mt_geometry, head_dim), 512, true},
};

static const struct flag_key {
	const char *name;
	uint32_t flags;
} flag_keys[] = {
	{"tie_word_embeddings", MT_TIED},
	{"attention_bias", MT_QKV_BIAS | MT_O_BIAS}, /* of q, k, v and o */
	{"mlp_bias", MT_MLP_BIAS},
};

/* Defaults of LlamaConfig, MistralConfig, ... (configuration_*.py of transformers 4.57 and 5), and what
 * LlamaForCausalLM, ... (modeling_*.py) compute. */
static const struct family {
	const char *name, *architecture;
	uint32_t size[SIZES];   /* defaults, in the order of size_keys */
	uint32_t flags, by_key; /* that every model of the family has; that its flag_keys may set */
	enum { WINDOW_NEVER, WINDOW_ALL, WINDOW_QWEN } window;
	bool heads_divide_hidden; /* LlamaConfig requires it even if head_dim is given */
} families[] = {
	{"llama", "LlamaForCausalLM", {32, 4096, 11008, 32000, 2048, 32, DERIVED, DERIVED}, 0,
		MT_TIED | MT_QKV_BIAS | MT_O_BIAS | MT_MLP_BIAS, WINDOW_NEVER, true},
	{"mistral", "MistralForCausalLM", {32, 4096, 14336, 32000, 131072, 32, 8, DERIVED}, 0, MT_TIED, WINDOW_ALL, false},
	{"qwen2", "Qwen2ForCausalLM", {32, 4096, 22016, 151936, 32768, 32, 32, DERIVED}, MT_QKV_BIAS, MT_TIED, WINDOW_QWEN,
		false},
	{"qwen3", "Qwen3ForCausalLM", {32, 4096, 22016, 151936, 32768, 32, 32, 128}, MT_QK_NORM,
		MT_TIED | MT_QKV_BIAS | MT_O_BIAS, WINDOW_QWEN, false},
};

/* In every family's class: sliding_window and max_window_layers (Qwen2Config, Qwen3Config; MistralConfig has the
 * former), rope_theta, rms_norm_eps, initializer_range */
enum { WINDOW_DEFAULT = 4096, MAX_WINDOW_LAYERS_DEFAULT = 28 };
static const double ROPE_THETA_DEFAULT = 10000, NORM_EPS_DEFAULT = 1e-6, INIT_RANGE_DEFAULT = 0.02;

/* ------------------------------------------------------------------------------------------------ keys */

/* rc and mt_errmsg() are of the first error. After it every getter returns the default. */
struct reader {
	const json_t *root;
	int rc;
};

#define REFUSE(r, ex, ...) ((r)->rc ? (void)0 : (void)((r)->rc = mt_fail((ex), __VA_ARGS__)))

static bool is_given(const json_t *v) { return v && !json_is_null(v); }

/* Python reads NaN, Infinity and numbers beyond 64 bits; mt refuses them in the keys that it uses. */
static bool is_odd(struct reader *r, const char *key, const json_t *v)
{
	const char *odd = hfjson_odd_number(v);
	if (odd) REFUSE(r, MT_EX_CONFIG, "%s %.40s is out of range", key, odd);
	return odd;
}

static uint32_t get_u32(struct reader *r, const char *key, uint32_t missing, uint32_t lo, uint32_t hi)
{
	const json_t *v = json_object_get(r->root, key);
	if (r->rc || !v || is_odd(r, key, v)) return missing;
	if (!json_is_integer(v)) return REFUSE(r, MT_EX_DATA, "%s is not an integer", key), missing;
	json_int_t i = json_integer_value(v);
	if (i < (json_int_t)lo || i > (json_int_t)hi)
		return REFUSE(r, MT_EX_CONFIG, "%s %lld is not between %u and %u", key, (long long)i, lo, hi), missing;
	return (uint32_t)i;
}

/* obj's number at key; NaN when it is missing or null */
static double get_number(struct reader *r, const json_t *obj, const char *key)
{
	const json_t *v = json_object_get(obj, key);
	if (r->rc || !is_given(v) || is_odd(r, key, v)) return NAN;
	if (!json_is_number(v)) REFUSE(r, MT_EX_DATA, "%s is not a number", key);
	return json_number_value(v);
}

static bool get_bool(struct reader *r, const json_t *obj, const char *key, bool missing)
{
	const json_t *v = json_object_get(obj, key);
	if (r->rc || !v) return missing;
	if (!json_is_boolean(v) && !json_is_null(v)) REFUSE(r, MT_EX_DATA, "%s is not true or false", key);
	return json_is_true(v);
}

/* NULL when it is missing or null */
static const char *get_string(struct reader *r, const json_t *obj, const char *key)
{
	const json_t *v = json_object_get(obj, key);
	if (r->rc || !is_given(v)) return NULL;
	if (!json_is_string(v)) REFUSE(r, MT_EX_DATA, "%s is not a string", key);
	return json_string_value(v);
}

static const json_t *get_object(struct reader *r, const char *key)
{
	const json_t *v = json_object_get(r->root, key);
	if (r->rc || !is_given(v)) return NULL;
	if (!json_is_object(v)) return REFUSE(r, MT_EX_DATA, "%s is not an object", key), NULL;
	return json_object_size(v) ? v : NULL;
}

/* ------------------------------------------------------------------------------------------------ rope */

/* Keys of rope_scaling and rope_parameters: modeling_rope_utils.py, ROPE_INIT_FUNCTIONS and the _compute_* functions */
enum rope_key { R_FACTOR, R_LOW, R_HIGH, R_ORIGINAL, R_ATTENTION, R_FAST, R_SLOW, R_MSCALE, R_MSCALE_ALL, R_KEYS };

static const char *const rope_keys[R_KEYS] = {
	"factor",
	"low_freq_factor",
	"high_freq_factor",
	"original_max_position_embeddings",
	"attention_factor",
	"beta_fast",
	"beta_slow",
	"mscale",
	"mscale_all_dim",
};

static const struct rope_kind {
	const char *name;
	unsigned uses, needs;
	bool truncates;
} rope_kinds[] = {
	{"default", 0, 0, false},
	{"linear", 1 << R_FACTOR, 1 << R_FACTOR, false},
	{"dynamic", 1 << R_FACTOR, 1 << R_FACTOR, false},
	{"llama3", 1 << R_FACTOR | 1 << R_LOW | 1 << R_HIGH | 1 << R_ORIGINAL, 1 << R_FACTOR | 1 << R_LOW | 1 << R_HIGH,
		false},
	{"yarn",
		1 << R_FACTOR | 1 << R_ORIGINAL | 1 << R_ATTENTION | 1 << R_FAST | 1 << R_SLOW | 1 << R_MSCALE |
			1 << R_MSCALE_ALL,
		1 << R_FACTOR, true},
};

struct rope {
	const struct rope_kind *kind;
	double v[R_KEYS]; /* NaN: not given */
	bool truncate;
};

/* Read one dialect's object, rope_scaling or rope_parameters. NULL: plain rope */
static void rope_read(struct reader *r, const json_t *block, const char *where, struct rope *rope)
{
	*rope = (struct rope){.kind = &rope_kinds[0], .truncate = true};
	for (int k = 0; k < R_KEYS; k++) rope->v[k] = NAN;
	if (!block) return;
	if (json_object_get(block, "full_attention") || json_object_get(block, "sliding_attention"))
		REFUSE(r, MT_EX_CONFIG, "%s by layer type is not supported", where);
	const char *type = get_string(r, block, "rope_type"), *old = get_string(r, block, "type");
	if (type && old && strcmp(type, old) != 0)
		REFUSE(r, MT_EX_CONFIG, "%s: rope_type '%.40s' and type '%.40s' disagree", where, type, old);
	if (!type) type = old ? old : "default";
	rope->kind = NULL;
	for (size_t i = 0; i < sizeof rope_kinds / sizeof *rope_kinds; i++)
		if (strcmp(type, rope_kinds[i].name) == 0) rope->kind = &rope_kinds[i];
	if (!rope->kind) {
		REFUSE(r, MT_EX_CONFIG, "rope_type '%.40s' is not supported", type);
		rope->kind = &rope_kinds[0];
	}
	for (int k = 0; k < R_KEYS; k++) {
		if (!(rope->kind->uses & 1u << k)) continue;
		rope->v[k] = get_number(r, block, rope_keys[k]);
		if (rope->kind->needs & 1u << k && isnan(rope->v[k]))
			REFUSE(r, MT_EX_CONFIG, "%s of rope_type '%s' is missing", rope_keys[k], type);
	}
	if (rope->kind->truncates) rope->truncate = get_bool(r, block, "truncate", true);
}

static bool rope_same(const struct rope *a, const struct rope *b)
{
	bool same = a->kind == b->kind && a->truncate == b->truncate;
	for (int k = 0; k < R_KEYS; k++) same &= a->v[k] == b->v[k] || (isnan(a->v[k]) && isnan(b->v[k]));
	return same;
}

/* A number that may be in the file's root and in both dialects' objects, where all must agree. NaN: in none */
static double agreed_number(struct reader *r, const json_t *scaling, const json_t *parameters, const char *key)
{
	double found = NAN;
	const json_t *const places[] = {r->root, scaling, parameters};
	for (int i = 0; i < 3; i++) {
		double x = places[i] ? get_number(r, places[i], key) : NAN;
		if (isnan(x)) continue;
		if (!isnan(found) && x != found)
			REFUSE(r, MT_EX_CONFIG, "%s is %g here and %g there: the two dialects disagree", key, found, x);
		found = x;
	}
	return found;
}

static void rope_check(struct reader *r, const struct rope *rope)
{
	static const double most = 1e9;
	for (int k = 0; k < R_KEYS; k++)
		if (!isnan(rope->v[k]) && (rope->v[k] < 0 || rope->v[k] > most))
			REFUSE(r, MT_EX_CONFIG, "%s %g is out of range", rope_keys[k], rope->v[k]);
	static const enum rope_key positive[] = {R_FACTOR, R_LOW, R_ORIGINAL};
	for (size_t i = 0; i < sizeof positive / sizeof *positive; i++)
		if (rope->v[positive[i]] == 0) REFUSE(r, MT_EX_CONFIG, "%s 0 is out of range", rope_keys[positive[i]]);
	if (rope->v[R_HIGH] <= rope->v[R_LOW])
		REFUSE(r, MT_EX_CONFIG, "high_freq_factor %g is not above low_freq_factor %g", rope->v[R_HIGH], rope->v[R_LOW]);
}

/* transformers computes inv_freq in fp32, with a reciprocal and a multiplication for a division. The operations below
 * are in the order of modeling_rope_utils.py, so that they round in the same way. */
static const double pi = 3.14159265358979323846;

/* base ** (arange(0, dim, 2) / dim) */
static float pair_power(double base, uint32_t i, uint32_t dim)
{
	return powf((float)base, (float)(2 * i) / (float)dim);
}

/* Llama 3.1 (_compute_llama3_parameters): frequencies of long wavelengths are divided by factor, short ones are kept,
 * those between are interpolated. */
static void rope_llama3(float *inv_freq, uint32_t n, const double v[R_KEYS])
{
	float factor = (float)v[R_FACTOR], low = (float)v[R_LOW], original = (float)v[R_ORIGINAL];
	float low_wavelen = (float)(v[R_ORIGINAL] / v[R_LOW]), high_wavelen = (float)(v[R_ORIGINAL] / v[R_HIGH]);
	for (uint32_t i = 0; i < n; i++) {
		float f = inv_freq[i], wavelen = 1.0f / f * (float)(2 * pi);
		if (wavelen > low_wavelen) {
			inv_freq[i] = f / factor;
			continue;
		}
		if (wavelen < high_wavelen) continue;
		float smooth = (1.0f / wavelen * original - low) / (float)(v[R_HIGH] - v[R_LOW]);
		float slowed = (1.0f - smooth) * f / factor, kept = smooth * f;
		inv_freq[i] = slowed + kept;
	}
}

/* Dimension at which a pair turns `rotations` times over the original context (arXiv 2309.00071) */
static double yarn_dim(double rotations, uint32_t dim, double base, double original)
{
	return dim * log(original / (rotations * 2 * pi)) / (2 * log(base));
}

static float yarn_mscale(double scale, double mscale)
{
	return (float)(scale <= 1 ? 1.0 : 0.1 * mscale * log(scale) + 1.0);
}

static void rope_yarn(struct mt_geometry *geo, const struct rope *rope, double base)
{
	const double *v = rope->v;
	uint32_t dim = geo->head_dim;
	double fast = v[R_FAST] > 0 ? v[R_FAST] : 32,
		   slow = v[R_SLOW] > 0 ? v[R_SLOW] : 1; /* 0 or none: the paper's values */
	double low = yarn_dim(fast, dim, base, v[R_ORIGINAL]), high = yarn_dim(slow, dim, base, v[R_ORIGINAL]);
	if (rope->truncate) {
		low = floor(low);
		high = ceil(high);
	}
	low = fmax(low, 0);
	high = fmin(high, dim - 1);
	if (low == high) high += 0.001;
	for (uint32_t i = 0; i < dim / 2; i++) {
		float power = pair_power(base, i, dim), ramp = ((float)i - (float)low) / (float)(high - low);
		ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
		float keep = 1.0f - ramp;
		float slowed = 1.0f / ((float)v[R_FACTOR] * power) * (1.0f - keep), kept = 1.0f / power * keep;
		geo->rope_inv_freq[i] = slowed + kept;
	}
	if (!isnan(v[R_ATTENTION])) geo->rope_scaling = (float)v[R_ATTENTION];
	else if (v[R_MSCALE] > 0 && v[R_MSCALE_ALL] > 0)
		geo->rope_scaling = yarn_mscale(v[R_FACTOR], v[R_MSCALE]) / yarn_mscale(v[R_FACTOR], v[R_MSCALE_ALL]);
	else geo->rope_scaling = yarn_mscale(v[R_FACTOR], 1);
}

static void rope_table(struct reader *r, struct mt_geometry *geo, struct rope *rope, double theta)
{
	uint32_t n = geo->head_dim / 2;
	geo->rope_scaling = 1;
	if (isnan(rope->v[R_ORIGINAL])) rope->v[R_ORIGINAL] = geo->max_position;
	for (uint32_t i = 0; i < n; i++) geo->rope_inv_freq[i] = 1.0f / pair_power(theta, i, geo->head_dim);
	if (strcmp(rope->kind->name, "linear") == 0)
		for (uint32_t i = 0; i < n; i++) geo->rope_inv_freq[i] /= (float)rope->v[R_FACTOR];
	else if (strcmp(rope->kind->name, "llama3") == 0) rope_llama3(geo->rope_inv_freq, n, rope->v);
	else if (strcmp(rope->kind->name, "yarn") == 0) rope_yarn(geo, rope, theta);
	/* The base changes only for sequences longer than max_position_embeddings, and mt-step refuses those. */
	else if (strcmp(rope->kind->name, "dynamic") == 0) geo->flags |= MT_ROPE_DYNAMIC;
	for (uint32_t i = 0; i < n; i++)
		if (!isfinite(geo->rope_inv_freq[i]) || geo->rope_inv_freq[i] < 0 || !isfinite(geo->rope_scaling))
			REFUSE(r, MT_EX_CONFIG, "rope_theta %g gives no finite frequencies", theta);
}

static void read_rope(struct reader *r, struct mt_geometry *geo)
{
	const json_t *scaling = get_object(r, "rope_scaling"), *parameters = get_object(r, "rope_parameters");
	struct rope old, rope;
	rope_read(r, scaling, "rope_scaling", &old);
	rope_read(r, parameters, "rope_parameters", &rope);
	if (!parameters) rope = old;
	else if (json_object_get(r->root, "rope_scaling") && !rope_same(&old, &rope))
		REFUSE(r, MT_EX_CONFIG, "rope_scaling and rope_parameters disagree");
	double theta = agreed_number(r, scaling, parameters, "rope_theta");
	double partial = agreed_number(r, scaling, parameters, "partial_rotary_factor");
	if (!isnan(partial) && partial != 1) REFUSE(r, MT_EX_CONFIG, "partial_rotary_factor %g is not supported", partial);
	if (isnan(theta)) theta = ROPE_THETA_DEFAULT;
	if (!(theta > 1 && theta < 1e15)) REFUSE(r, MT_EX_CONFIG, "rope_theta %g is out of range", theta);
	/* For these two kinds transformers 5 prefers the value in the file's root; 4 reads only the object's. */
	double original = rope.kind->uses & 1u << R_ORIGINAL ? get_number(r, r->root, rope_keys[R_ORIGINAL]) : NAN;
	if (!isnan(original)) {
		if (!isnan(rope.v[R_ORIGINAL]) && rope.v[R_ORIGINAL] != original)
			REFUSE(r, MT_EX_CONFIG, "%s is %g here and %g there: the two dialects disagree", rope_keys[R_ORIGINAL],
				original, rope.v[R_ORIGINAL]);
		rope.v[R_ORIGINAL] = original;
	}
	rope_check(r, &rope);
	if (!r->rc) rope_table(r, geo, &rope, theta);
}

/* ------------------------------------------------------------------------------------------------ windows */

static void set_window(struct mt_geometry *geo, uint32_t window)
{
	geo->window = 0;
	for (uint32_t i = geo->layers; i-- > 0;)
		if (geo->window_layer[i]) {
			geo->window = window;
			geo->window_from = i;
		}
}

/* Read layer_types, if given, over the windows that the keys of transformers 4 gave. strict: those keys are in the
 * file, and both must agree. */
static void read_layer_types(struct reader *r, struct mt_geometry *geo, bool window_given, bool strict)
{
	const json_t *types = json_object_get(r->root, "layer_types");
	if (r->rc || !is_given(types)) return;
	if (!json_is_array(types)) return REFUSE(r, MT_EX_DATA, "layer_types is not a list");
	if (json_array_size(types) != geo->layers)
		return REFUSE(r, MT_EX_CONFIG, "layer_types has %zu entries for %u layers", json_array_size(types),
			geo->layers);
	for (uint32_t i = 0; i < geo->layers; i++) {
		const char *type = json_string_value(json_array_get(types, i));
		if (!type) return REFUSE(r, MT_EX_DATA, "layer_types has an entry that is not a string");
		bool sliding = strcmp(type, "sliding_attention") == 0;
		if (!sliding && strcmp(type, "full_attention") != 0)
			REFUSE(r, MT_EX_CONFIG, "layer_types '%.40s' is not supported", type);
		if (sliding && !window_given)
			REFUSE(r, MT_EX_CONFIG, "layer_types: layer %u is sliding_attention, but no window is in force", i);
		if (strict && sliding != geo->window_layer[i])
			REFUSE(r, MT_EX_CONFIG, "layer_types of layer %u disagrees with the keys of transformers 4", i);
		geo->window_layer[i] = sliding;
	}
}

static void read_windows(struct reader *r, const struct family *family, struct mt_geometry *geo)
{
	bool in_force = family->window == WINDOW_ALL ||
		(family->window == WINDOW_QWEN && get_bool(r, r->root, "use_sliding_window", false));
	uint32_t window = 0, from = 0;
	const json_t *given = json_object_get(r->root, "sliding_window");
	if (in_force && !json_is_null(given)) window = get_u32(r, "sliding_window", WINDOW_DEFAULT, 1, INT32_MAX);
	if (window && family->window == WINDOW_QWEN)
		from = get_u32(r, "max_window_layers", MAX_WINDOW_LAYERS_DEFAULT, 0, INT32_MAX);
	for (uint32_t i = 0; i < geo->layers; i++) geo->window_layer[i] = window && i >= from;
	bool strict = family->window != WINDOW_QWEN || json_object_get(r->root, "max_window_layers");
	read_layer_types(r, geo, window != 0, strict);
	set_window(geo, window);
}

/* ------------------------------------------------------------------------------------------------ all keys */

static const struct family *find_family(struct reader *r)
{
	const char *type = get_string(r, r->root, "model_type");
	if (!type) return REFUSE(r, MT_EX_CONFIG, "model_type is missing"), NULL;
	const struct family *family = NULL;
	for (size_t i = 0; i < sizeof families / sizeof *families; i++)
		if (strcmp(type, families[i].name) == 0) family = &families[i];
	if (!family) return REFUSE(r, MT_EX_CONFIG, "model_type '%.40s' is not supported", type), NULL;
	const json_t *list = json_object_get(r->root, "architectures");
	if (!is_given(list)) return family;
	const char *first = json_string_value(json_array_get(list, 0));
	if (!json_is_array(list) || !first) return REFUSE(r, MT_EX_DATA, "architectures is not a list of names"), NULL;
	if (strcmp(first, family->architecture) != 0)
		return REFUSE(r, MT_EX_CONFIG, "architectures '%.60s' is not supported, only %s", first, family->architecture),
			   NULL;
	return family;
}

/* Refuse keys that change a model's computation in ways that mt does not support, and dialects that disagree.
 * quantization_config, torch_dtype and dtype are PreTrainedConfig's. */
static void refuse_foreign(struct reader *r)
{
	static const char *const never[] = {"quantization_config", "compression_config", "per_layer_config"};
	for (size_t i = 0; i < sizeof never / sizeof *never; i++)
		if (is_given(json_object_get(r->root, never[i]))) REFUSE(r, MT_EX_CONFIG, "%s is not supported", never[i]);
	const char *act = get_string(r, r->root, "hidden_act");
	if (act && strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0) /* swish: transformers' other name for it */
		REFUSE(r, MT_EX_CONFIG, "hidden_act '%.40s' is not supported", act);
	double dropout = get_number(r, r->root, "attention_dropout");
	if (!isnan(dropout) && dropout != 0) REFUSE(r, MT_EX_CONFIG, "attention_dropout %g is not supported", dropout);
	const char *old = get_string(r, r->root, "torch_dtype"), *now = get_string(r, r->root, "dtype");
	if (old && now && strcmp(old, now) != 0)
		REFUSE(r, MT_EX_CONFIG, "torch_dtype '%.20s' and dtype '%.20s' disagree", old, now);
}

static void read_sizes(struct reader *r, const struct family *family, struct mt_geometry *geo)
{
	for (int i = 0; i < SIZES; i++) {
		const struct size_key *k = &size_keys[i];
		bool null = k->nullable && json_is_null(json_object_get(r->root, k->name));
		uint32_t size = null ? DERIVED : get_u32(r, k->name, family->size[i], 1, k->max);
		memcpy((char *)geo + k->at, &size, sizeof size);
	}
	if (geo->kv_heads == DERIVED) geo->kv_heads = geo->heads;
	bool derived = geo->head_dim == DERIVED;
	if (derived) geo->head_dim = geo->hidden / geo->heads;

	if ((derived || family->heads_divide_hidden) && geo->hidden % geo->heads)
		REFUSE(r, MT_EX_CONFIG, "hidden_size %u is not a multiple of num_attention_heads %u", geo->hidden, geo->heads);
	if (geo->heads % geo->kv_heads)
		REFUSE(r, MT_EX_CONFIG, "num_attention_heads %u is not a multiple of num_key_value_heads %u", geo->heads,
			geo->kv_heads);
	if (geo->head_dim % 2 || geo->head_dim > 512 || geo->head_dim == 0)
		REFUSE(r, MT_EX_CONFIG, "head_dim %u is not an even number up to 512", geo->head_dim);
}

/* As nn.Embedding: a negative padding_idx counts from the vocabulary's end. -1: none */
static int32_t read_pad_token(struct reader *r, uint32_t vocab)
{
	const json_t *v = json_object_get(r->root, "pad_token_id");
	if (r->rc || !is_given(v) || is_odd(r, "pad_token_id", v)) return -1;
	if (!json_is_integer(v)) return REFUSE(r, MT_EX_DATA, "pad_token_id is not an integer"), -1;
	json_int_t id = json_integer_value(v);
	if (id >= (json_int_t)vocab || id < -(json_int_t)vocab)
		REFUSE(r, MT_EX_CONFIG, "pad_token_id %lld is not in a vocabulary of %u", (long long)id, vocab);
	return (int32_t)(id < 0 ? id + (json_int_t)vocab : id);
}

static int read_geometry(const json_t *root, struct mt_geometry *geo)
{
	struct reader reader = {.root = root}, *r = &reader;
	memset(geo, 0, sizeof *geo);
	const struct family *family = find_family(r);
	if (!family) return r->rc;
	snprintf(geo->family, sizeof geo->family, "%s", family->name);
	refuse_foreign(r);
	read_sizes(r, family, geo);
	if (r->rc) return r->rc; /* the code below divides by the sizes and uses them as indices */

	geo->flags = family->flags;
	for (size_t i = 0; i < sizeof flag_keys / sizeof *flag_keys; i++)
		if (family->by_key & flag_keys[i].flags && get_bool(r, root, flag_keys[i].name, false))
			geo->flags |= flag_keys[i].flags;
	geo->pad_token = read_pad_token(r, geo->vocab);
	double eps = get_number(r, root, "rms_norm_eps"), range = get_number(r, root, "initializer_range");
	if (isnan(eps)) eps = NORM_EPS_DEFAULT;
	if (isnan(range) || range == 0) range = INIT_RANGE_DEFAULT; /* as PreTrainedModel._init_weights */
	if (!(eps >= 0 && eps < 1)) REFUSE(r, MT_EX_CONFIG, "rms_norm_eps %g is out of range", eps);
	if (!(range > 0 && range <= 1)) REFUSE(r, MT_EX_CONFIG, "initializer_range %g is out of range", range);
	geo->norm_eps = (float)eps;
	geo->init_range = (float)range;
	read_windows(r, family, geo);
	read_rope(r, geo);
	return r->rc;
}

/* ------------------------------------------------------------------------------------------------ the file */

/* Read the whole file, NUL-terminated, to be freed. */
static int read_text(int fd, char **text, size_t *bytes)
{
	struct stat st;
	if (fstat(fd, &st) < 0) return mt_fail(MT_EX_IO, "%s", strerror(errno));
	if (!S_ISREG(st.st_mode)) return mt_fail(MT_EX_DATA, "not a regular file");
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

/* A hint after "no such file", if the path looks like a model's name on the Hugging Face hub, or "" */
static const char *hub_hint(const char *path)
{
	static char hint[512];
	const char *slash = strchr(path, '/');
	bool hub = slash && slash != path && slash[1] && !strchr(slash + 1, '/') && path[0] != '.' && access(path, F_OK) &&
		strspn(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/") == strlen(path);
	if (!hub || strlen(path) > 128) return "";
	snprintf(hint, sizeof hint,
		"; if a Hugging Face name is meant: mt does not download: hf download %s --local-dir DIR", path);
	return hint;
}

int mt_config_read(const char *path, struct mt_geometry *geo, char **text)
{
	char shown[256], *buf = NULL;
	size_t bytes = 0;
	int fd = -1, rc = open_config(path, &fd, shown, sizeof shown);
	if (rc == 0) rc = read_text(fd, &buf, &bytes);
	if (fd >= 0) close(fd);
	if (rc == 0) rc = config_parse(buf, bytes, geo);
	if (rc == 0 && text) {
		*text = buf;
		return 0;
	}
	free(buf);
	if (rc) mt_fail_in(rc, "%s", shown);
	return rc == -MT_EX_NOINPUT ? mt_fail(MT_EX_NOINPUT, "%s%s", mt_errmsg(), hub_hint(path)) : rc;
}
