/* rope.c: rope_scaling and rope_parameters of config.json -> the frequencies of each kind of layers. */
#include "config.h"
#include "hfjson.h"
#include "mt/error.h"

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
	"alpha",
	"llama_4_scaling_beta",
};

static const double ROPE_THETA_DEFAULT = 10000;

static const struct rope_kind {
	const char *name;
	unsigned uses, needs;
	bool truncates;
} rope_kinds[] = {
	{"default", 0, 0, false},
	{"linear", 1 << R_FACTOR, 1 << R_FACTOR, false},
	{"dynamic", 1 << R_FACTOR | 1 << R_ALPHA, 1 << R_FACTOR, false},
	{"llama3", 1 << R_FACTOR | 1 << R_LOW | 1 << R_HIGH | 1 << R_ORIGINAL, 1 << R_FACTOR | 1 << R_LOW | 1 << R_HIGH,
		false},
	{"yarn",
		1 << R_FACTOR | 1 << R_ORIGINAL | 1 << R_ATTENTION | 1 << R_FAST | 1 << R_SLOW | 1 << R_MSCALE |
			1 << R_MSCALE_ALL,
		1 << R_FACTOR, true},
	{"longrope", 1 << R_FACTOR | 1 << R_ORIGINAL | 1 << R_ATTENTION, 0, false},
	{"proportional", 1 << R_FACTOR, 0, false},
};

static bool kind_is(const struct rope *rope, const char *name) { return strcmp(rope->kind->name, name) == 0; }

/* NULL: no rope_type of the family has this name */
static const struct rope_kind *find_kind(const struct family *family, const char *name)
{
	if (family->longrope && (strcmp(name, "su") == 0 || strcmp(name, "yarn") == 0)) name = "longrope";
	if (family->longrope && strcmp(name, "longrope") != 0 && strcmp(name, "default") != 0) return NULL;
	if (family->latent[1] && strcmp(name, "deepseek_yarn") == 0) name = "yarn"; /* Sarvam's name for it */
	for (size_t i = 0; i < sizeof rope_kinds / sizeof *rope_kinds; i++)
		if (strcmp(name, rope_kinds[i].name) == 0) return &rope_kinds[i];
	return NULL;
}

/* longrope: a factor for each pair. The long ones, which rows above the original length would have, are not used. */
static void read_factors(struct reader *r, const json_t *block, struct rope *rope)
{
	static const char *const keys[] = {"long_factor", "short_factor"};
	for (int i = 0; i < 2; i++) {
		const json_t *list = json_object_get(block, keys[i]);
		if (!json_is_array(list) || json_array_size(list) > MAX_PAIRS)
			return REFUSE(r, MT_EX_CONFIG, "%s of rope_type 'longrope' is not a list of numbers", keys[i]);
		rope->n_short = (uint32_t)json_array_size(list);
		for (uint32_t n = 0; n < rope->n_short; n++) {
			const json_t *v = json_array_get(list, n);
			rope->short_factor[n] = (float)json_number_value(v);
			if (!json_is_number(v) || !(rope->short_factor[n] > 0) || !isfinite(rope->short_factor[n]))
				return REFUSE(r, MT_EX_CONFIG, "%s has an entry that is not a number above 0", keys[i]);
		}
	}
}

static bool by_type(const json_t *block)
{
	return json_object_get(block, "full_attention") || json_object_get(block, "sliding_attention");
}

/* What a rope of several positions is with equal ones */
static const char *of_one_position(const char *type)
{
	if (type && strcmp(type, "mrope") == 0) return "default";
	return type && strcmp(type, "xdrope") == 0 ? "dynamic" : type; /* HunYuan's name */
}

/* Read one dialect's object, rope_scaling or rope_parameters. NULL: plain rope */
static void rope_read(struct reader *r, const struct family *family, const json_t *block, const char *where,
	struct rope *rope)
{
	memset(rope, 0, sizeof *rope);
	rope->kind = &rope_kinds[0];
	rope->truncate = true;
	rope->theta = rope->partial = NAN;
	rope->theta_key = "rope_theta";
	rope->partial_key = "partial_rotary_factor";
	for (int k = 0; k < R_KEYS; k++) rope->v[k] = NAN;
	if (!block) return;
	if (by_type(block)) REFUSE(r, MT_EX_CONFIG, "%s by layer type is not supported", where);
	const char *type = key_string(r, block, "rope_type"), *old = key_string(r, block, "type");
	if (family->mrope) type = of_one_position(type), old = of_one_position(old);
	if (type && old && strcmp(type, old) != 0)
		REFUSE(r, MT_EX_CONFIG, "%s: rope_type '%.40s' and type '%.40s' disagree", where, type, old);
	if (!type) type = old ? old : "default";
	rope->kind = find_kind(family, type);
	if (!rope->kind) {
		REFUSE(r, MT_EX_CONFIG, "rope_type '%.40s' is not supported", type);
		rope->kind = &rope_kinds[0];
	}
	for (int k = 0; k < R_KEYS; k++) {
		if (!(rope->kind->uses & 1u << k)) continue;
		rope->v[k] = key_number(r, block, rope_keys[k]);
		if (rope->kind->needs & 1u << k && isnan(rope->v[k]))
			REFUSE(r, MT_EX_CONFIG, "%s of rope_type '%s' is missing", rope_keys[k], type);
	}
	if (family->latent[1] && !kind_is(rope, "default")) /* whatever the type */
		rope->v[R_MSCALE_ALL] = key_number(r, block, rope_keys[R_MSCALE_ALL]);
	if (family->temperature) { /* whatever the type, too */
		rope->v[R_BETA] = key_number(r, block, rope_keys[R_BETA]);
		rope->v[R_ORIGINAL] = key_number(r, block, rope_keys[R_ORIGINAL]);
	}
	if (rope->kind->truncates) rope->truncate = key_bool(r, block, "truncate", true);
	if (kind_is(rope, "longrope")) read_factors(r, block, rope);
}

static bool rope_same(const struct rope *a, const struct rope *b)
{
	bool same = a->kind == b->kind && a->truncate == b->truncate;
	for (int k = 0; k < R_KEYS; k++) same &= a->v[k] == b->v[k] || (isnan(a->v[k]) && isnan(b->v[k]));
	return same && memcmp(a->short_factor, b->short_factor, sizeof a->short_factor) == 0;
}

const char *rope_root_key(const char *model_type, const char *key)
{
	const struct family *family = family_find(model_type);
	const char *own = family ? strcmp(key, "rope_theta") == 0 ? family->theta_key : family->partial_key : NULL;
	return own ? own : key;
}

const char *rope_type_name(const char *model_type, const char *name)
{
	const struct family *family = family_find(model_type);
	const struct rope_kind *kind = family ? find_kind(family, name) : NULL;
	return kind ? kind->name : name;
}

bool rope_has_type_only(const char *model_type)
{
	const struct family *family = family_find(model_type);
	return family && family->type_only;
}

const char *rope_local_theta_key(const char *model_type)
{
	const struct family *family = family_find(model_type);
	return family ? family->local_theta_key : NULL;
}

bool rope_is_by_type(const char *model_type)
{
	const struct family *family = family_find(model_type);
	return family && family->local_theta > 0;
}

/* A number that may be in the file's root and in both dialects' objects, where all must agree; missing: what it is if
 * it is nowhere. A class with another name for it in the root ignores *name there, but transformers 4 writes both.
 * *name becomes the name that the file has for it. */
static double agreed_number(struct reader *r, const struct family *family, const json_t *scaling,
	const json_t *parameters, const char **name, double missing)
{
	const char *key = *name, *root_key = rope_root_key(family->name, key);
	const struct {
		const json_t *object;
		const char *key;
	} places[] = {{r->root, root_key}, {scaling, key}, {parameters, key}, {r->root, key}};
	double found = NAN;
	for (int i = 0; i < 4; i++) {
		if (i == 3 && isnan(found)) found = missing;
		double x = places[i].object ? key_number(r, places[i].object, places[i].key) : NAN;
		if (isnan(x)) continue;
		if (isnan(found)) *name = places[i].key;
		else if (x != found)
			REFUSE(r, MT_EX_CONFIG, "%s is %g here and %g there: the two dialects disagree", key, found, x);
		found = x;
	}
	return found;
}

/* Are its numbers sane? The original length is by default the model's. */
static void rope_check(struct reader *r, const struct mt_geometry *geo, struct rope *rope)
{
	static const double most = 1e9;
	for (int k = 0; k < R_KEYS; k++)
		if (!isnan(rope->v[k]) && (rope->v[k] < 0 || rope->v[k] > most))
			REFUSE(r, MT_EX_CONFIG, "%s %g is out of range", rope_keys[k], rope->v[k]);
	static const enum rope_key positive[] = {R_FACTOR, R_LOW, R_ORIGINAL};
	for (size_t i = 0; i < sizeof positive / sizeof *positive; i++)
		if (rope->v[positive[i]] == 0) REFUSE(r, MT_EX_CONFIG, "%s 0 is out of range", rope_keys[positive[i]]);
	if (!(rope->theta > 1 && rope->theta < 1e15))
		REFUSE(r, MT_EX_CONFIG, "%s %g is out of range", rope->theta_key, rope->theta);
	if (rope->v[R_HIGH] <= rope->v[R_LOW])
		REFUSE(r, MT_EX_CONFIG, "high_freq_factor %g is not above low_freq_factor %g", rope->v[R_HIGH], rope->v[R_LOW]);
	if (isnan(rope->v[R_ORIGINAL])) rope->v[R_ORIGINAL] = geo->max_position;
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

static void rope_yarn(struct mt_layer *k, const struct rope *rope, double base)
{
	const double *v = rope->v;
	uint32_t dim = k->rope_dim;
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
		k->rope_inv_freq[i] = slowed + kept;
	}
	if (!isnan(v[R_ATTENTION])) k->rope_scaling = (float)v[R_ATTENTION];
	else if (v[R_MSCALE] > 0 && v[R_MSCALE_ALL] > 0)
		k->rope_scaling = yarn_mscale(v[R_FACTOR], v[R_MSCALE]) / yarn_mscale(v[R_FACTOR], v[R_MSCALE_ALL]);
	else k->rope_scaling = yarn_mscale(v[R_FACTOR], 1);
}

/* HunYuan's alpha stretches the base (compute_ntk_alpha_rope_parameters), whatever the sequence's length is */
static double alpha_base(double theta, double alpha, uint32_t dim)
{
	return theta * pow(alpha, (double)dim / (dim - 2));
}

/* This rope's frequencies hold for this many positions; a model's, for the fewest of all its ropes */
static void holds_for(struct model *m, uint32_t positions)
{
	if (!m->longest_row || positions < m->longest_row) m->longest_row = positions;
}

/* LongRoPE (arXiv 2402.13753) for rows up to the original length: the short factors. */
static void rope_longrope(struct reader *r, struct model *m, const struct rope *rope, struct mt_layer *k)
{
	const double *v = rope->v;
	uint32_t n = k->rope_dim / 2;
	if (rope->n_short != n)
		return REFUSE(r, MT_EX_CONFIG, "short_factor has %u entries for %u pairs", rope->n_short, n);
	for (uint32_t i = 0; i < n; i++)
		k->rope_inv_freq[i] = 1.0f / (rope->short_factor[i] * pair_power(rope->theta, i, k->rope_dim));
	double factor = isnan(v[R_FACTOR]) ? m->geo.max_position / v[R_ORIGINAL] : v[R_FACTOR];
	if (!isnan(v[R_ATTENTION])) k->rope_scaling = (float)v[R_ATTENTION];
	else if (factor > 1) k->rope_scaling = (float)sqrt(1 + log(factor) / log(v[R_ORIGINAL]));
	holds_for(m, (uint32_t)v[R_ORIGINAL]);
}

/* The first pairs of a head turn, at the frequencies that they have in a head that turns in full; the others stand. */
static void rope_proportional(const struct rope *rope, struct mt_layer *k)
{
	uint32_t n = k->rope_dim / 2;
	double partial = isnan(rope->partial) ? 1 : rope->partial;
	float factor = isnan(rope->v[R_FACTOR]) ? 1 : (float)rope->v[R_FACTOR];
	uint32_t turning = (uint32_t)floor(floor(partial * k->head_dim / 2));
	for (uint32_t i = 0; i < n; i++) k->rope_inv_freq[i] = i < turning ? k->rope_inv_freq[i] / factor : 0;
}

/* Elements of a head that turn */
static uint32_t rope_dim(struct reader *r, const struct family *family, const struct rope *rope, uint32_t head_dim)
{
	bool proportional = kind_is(rope, "proportional");
	double partial = isnan(rope->partial) ? 1 : rope->partial;
	if (partial == 1 || (proportional && partial >= 0 && partial < 1)) return head_dim;
	double dim = floor(head_dim * partial);
	if (family->partial == 0 || proportional || !(dim >= 2 && partial < 1) || fmod(dim, 2) != 0)
		return REFUSE(r, MT_EX_CONFIG, "%s %g is not supported", rope->partial_key, partial), head_dim;
	return (uint32_t)dim;
}

static void rope_table(struct reader *r, struct model *m, const struct rope *rope, struct mt_layer *k)
{
	uint32_t n = k->rope_dim / 2;
	k->rope_scaling = 1;
	for (uint32_t i = 0; i < n; i++) k->rope_inv_freq[i] = 1.0f / pair_power(rope->theta, i, k->rope_dim);
	if (kind_is(rope, "linear"))
		for (uint32_t i = 0; i < n; i++) k->rope_inv_freq[i] /= (float)rope->v[R_FACTOR];
	else if (kind_is(rope, "llama3")) rope_llama3(k->rope_inv_freq, n, rope->v);
	else if (kind_is(rope, "yarn")) rope_yarn(k, rope, rope->theta);
	else if (kind_is(rope, "longrope")) rope_longrope(r, m, rope, k);
	else if (kind_is(rope, "proportional")) rope_proportional(rope, k);
	/* The base changes only for sequences longer than max_position_embeddings, and mt-step refuses those. */
	else if (kind_is(rope, "dynamic")) holds_for(m, m->geo.max_position);
	for (uint32_t i = 0; i < n; i++)
		if (!isfinite(k->rope_inv_freq[i]) || k->rope_inv_freq[i] < 0 || !isfinite(k->rope_scaling))
			REFUSE(r, MT_EX_CONFIG, "%s %g gives no finite frequencies", rope->theta_key, rope->theta);
}

void rope_fill(struct reader *r, const struct family *family, struct model *m, enum rope_of of, struct mt_layer *k)
{
	k->rope_scaling = 1;
	if (of == ROPE_NONE) return; /* MLA's k has the part without positions, too: its angles are 0 */
	struct rope rope = m->rope[of];
	if (rope.unclear)
		return REFUSE(r, MT_EX_CONFIG, "rope_theta %g without rope_parameters of sliding_attention is not supported",
			m->rope[ROPE_FULL].theta);
	if (k->mixer == MT_MLA) {
		/* which part turns is known: of its own dimensions all do */
		if (!isnan(rope.partial) && rope.partial != 1 && rope.partial * k->head_dim != k->rope_dim)
			REFUSE(r, MT_EX_CONFIG, "%s %g is not supported", rope.partial_key, rope.partial);
	} else {
		k->rope_dim = rope_dim(r, family, &rope, k->head_dim);
		k->neighbours = family->neighbours;
	}
	if (family->alpha && rope.v[R_ALPHA] > 0) {
		rope.theta = alpha_base(rope.theta, rope.v[R_ALPHA], k->rope_dim);
		rope.kind = &rope_kinds[0];
	}
	if (!r->rc) rope_table(r, m, &rope, k);
	for (uint32_t i = 0; family->backwards && i < k->rope_dim / 2; i++) k->rope_inv_freq[i] *= -1;
}

/* ---- the file's ropes */

/* For these kinds transformers 5 prefers the value in the file's root; 4 reads only the object's. */
static void read_original(struct reader *r, const struct family *family, struct rope *rope)
{
	double *v = &rope->v[R_ORIGINAL], root = NAN;
	if (rope->kind->uses & 1u << R_ORIGINAL) root = key_number(r, r->root, rope_keys[R_ORIGINAL]);
	if (isnan(root) && family->original) root = family->original;
	if (!isnan(root) && !isnan(*v) && *v != root)
		REFUSE(r, MT_EX_CONFIG, "%s is %g here and %g there: the two dialects disagree", rope_keys[R_ORIGINAL], root,
			*v);
	if (!isnan(root)) *v = root;
}

/* null is not the class's part: transformers 5 takes it for 1 in the root of some families' files, 4 fails */
static void refuse_null(struct reader *r, const json_t *object, const char *key)
{
	if (json_is_null(json_object_get(object, key))) REFUSE(r, MT_EX_CONFIG, "%s null is not supported", key);
}

/* One rope for all layers that have one */
static void read_one(struct reader *r, const struct family *family, struct model *m, const json_t *scaling,
	const json_t *parameters)
{
	struct rope old, *rope = &m->rope[ROPE_FULL];
	rope_read(r, family, scaling, "rope_scaling", &old);
	rope_read(r, family, parameters, "rope_parameters", rope);
	read_original(r, family, &old);
	read_original(r, family, rope);
	if (!scaling && family->temperature) { /* is no part of the rope: plain rope says nothing of it */
		old.v[R_BETA] = rope->v[R_BETA];
		old.v[R_ORIGINAL] = rope->v[R_ORIGINAL];
	}
	if (!parameters) *rope = old;
	else if (json_object_get(r->root, "rope_scaling") && !rope_same(&old, rope))
		REFUSE(r, MT_EX_CONFIG, "rope_scaling and rope_parameters disagree");
	rope->theta = agreed_number(r, family, scaling, parameters, &rope->theta_key,
		family->theta > 0 ? family->theta : ROPE_THETA_DEFAULT);
	double partial = family->partial > 0 ? family->partial : NAN;
	if (m->rotary_dim) partial = (double)m->rotary_dim / m->base.head_dim;
	rope->partial = agreed_number(r, family, scaling, parameters, &rope->partial_key, partial);
	if (m->rotary_dim && rope->partial != partial)
		REFUSE(r, MT_EX_CONFIG, "rotary_dim %u of head_dim %u and %s %g disagree", m->rotary_dim, m->base.head_dim,
			rope->partial_key, rope->partial);
	if (family->partial > 0) {
		refuse_null(r, r->root, rope_root_key(family->name, "partial_rotary_factor"));
		refuse_null(r, scaling, "partial_rotary_factor");
		refuse_null(r, parameters, "partial_rotary_factor");
	}
	rope_check(r, &m->geo, rope);
}

/* rope_parameters of one layer type; theta: what it is if they do not say, by the file's `key` */
static void read_type(struct reader *r, const struct family *family, const struct model *m, const json_t *block,
	double theta, const char *key, struct rope *rope)
{
	rope_read(r, family, block, "rope_parameters", rope);
	rope->theta = block ? key_number(r, block, "rope_theta") : NAN;
	rope->partial = block ? key_number(r, block, "partial_rotary_factor") : NAN;
	if (isnan(rope->theta)) {
		rope->theta = theta;
		rope->theta_key = key;
	}
	rope->truncate = true; /* transformers looks for it beside the layer types only */
	rope_check(r, &m->geo, rope);
}

/* theta in the file's root, as transformers 4 wrote it; if rope_parameters have one, both must agree. NAN: none */
static double root_theta(struct reader *r, const char *key, const json_t *block)
{
	double root = key ? key_number(r, r->root, key) : NAN, own = block ? key_number(r, block, "rope_theta") : NAN;
	if (!isnan(root) && !isnan(own) && root != own)
		REFUSE(r, MT_EX_CONFIG, "%s is %g here and %g there: the two dialects disagree", key, root, own);
	return root;
}

/* A rope for layers with full attention, and one for layers with a window. transformers 4 has rope_scaling for the
 * former only. */
static void read_by_type(struct reader *r, const struct family *family, struct model *m, const json_t *scaling,
	const json_t *parameters)
{
	if (parameters && !by_type(parameters))
		return REFUSE(r, MT_EX_CONFIG, "rope_parameters have no full_attention and sliding_attention");
	const json_t *full = json_object_get(parameters, "full_attention");
	const json_t *local = json_object_get(parameters, "sliding_attention");
	if ((is_given(full) && !json_is_object(full)) || (is_given(local) && !json_is_object(local)))
		return REFUSE(r, MT_EX_DATA, "rope_parameters: full_attention or sliding_attention is not an object");
	if (!is_given(full)) full = NULL;
	if (!is_given(local)) local = NULL;
	if (json_object_get(scaling, "type") && !json_object_get(scaling, "rope_type"))
		REFUSE(r, MT_EX_CONFIG, "rope_scaling: transformers 5 ignores the older key type here: write rope_type");
	double theta = root_theta(r, "rope_theta", full), local_theta = root_theta(r, family->local_theta_key, local);
	const char *local_key = isnan(local_theta) ? "rope_theta" : family->local_theta_key;
	if (isnan(theta)) theta = family->theta;
	if (isnan(local_theta)) local_theta = family->local_theta;
	read_type(r, family, m, full ? full : scaling, theta, "rope_theta", &m->rope[ROPE_FULL]);
	read_type(r, family, m, local, local_theta, local_key, &m->rope[ROPE_LOCAL]);
	if (full && scaling) {
		struct rope old;
		rope_read(r, family, scaling, "rope_scaling", &old);
		old.truncate = true;
		old.theta = m->rope[ROPE_FULL].theta;
		rope_check(r, &m->geo, &old);
		if (!rope_same(&old, &m->rope[ROPE_FULL]))
			REFUSE(r, MT_EX_CONFIG, "rope_scaling and rope_parameters of full_attention disagree");
	}
	m->rope[ROPE_LOCAL].unclear = !family->local_theta_key && !local && theta != local_theta;
}

void read_ropes(struct reader *r, const struct family *family, struct model *m)
{
	const json_t *scaling = key_object(r, "rope_scaling"), *parameters = key_object(r, "rope_parameters");
	json_error_t error;
	json_t *missing = NULL;
	if (!scaling && family->rope && !is_given(json_object_get(r->root, "rope_parameters"))) {
		if (json_object_get(r->root, "rope_scaling") && family->local_theta == 0)
			REFUSE(r, MT_EX_CONFIG,
				"rope_scaling is empty and rope_parameters are missing: to transformers 4 this is plain rope, to 5 the "
				"class's default; write rope_parameters");
		parameters = missing = hfjson_parse(family->rope, strlen(family->rope), &error);
		if (!missing) REFUSE(r, MT_EX_NOMEM, "no memory for its JSON");
	}
	if (family->local_theta > 0) read_by_type(r, family, m, scaling, parameters);
	else read_one(r, family, m, scaling, parameters);
	json_decref(missing);
	const struct rope *rope = &m->rope[ROPE_FULL];
	if (m->base.mixer == MT_MLA && rope->v[R_MSCALE_ALL] > 0 && rope->v[R_FACTOR] > 1) {
		double m_scale = 0.1 * rope->v[R_MSCALE_ALL] * log(rope->v[R_FACTOR]) + 1;
		m->geo.attention_scale = (float)(m_scale * m_scale / sqrt(m->base.head_dim));
	}
	if (!family->temperature) return;
	if (isnan(rope->v[R_BETA])) REFUSE(r, MT_EX_CONFIG, "%s is missing", rope_keys[R_BETA]);
	m->geo.temperature = (float)rope->v[R_BETA];
	m->geo.temperature_positions = (uint32_t)rope->v[R_ORIGINAL];
}
