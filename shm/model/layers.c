/* layers.c: the keys that make layers differ: windows, layers without positions, sizes -> each layer's kind. */
#include "config.h"
#include "mt/error.h"

/* sliding_window and max_window_layers: Qwen2Config, Qwen3Config; most others have the former */
enum { WINDOW_DEFAULT = 4096, MAX_WINDOW_LAYERS_DEFAULT = 28, NOPE_INTERVAL_DEFAULT = 4 };

/* What differs from layer to layer: bits of a layer's word */
enum { HAS_WINDOW = 1, HAS_ROPE = 2, HAS_MIXER = 4, HAS_SPAN = 8 };

/* ---- windows */

/* Read layer_types, if given, over the windows that the keys of transformers 4 gave. strict: those keys are in the
 * file, and both must agree. */
static void read_layer_types(struct reader *r, const struct family *family, uint32_t layers, uint8_t *has,
	bool window_given, bool strict)
{
	const json_t *types = json_object_get(r->root, "layer_types");
	if (r->rc || !is_given(types)) return;
	if (!json_is_array(types)) return REFUSE(r, MT_EX_DATA, "layer_types is not a list");
	if (json_array_size(types) != layers)
		return REFUSE(r, MT_EX_CONFIG, "layer_types has %zu entries for %u layers", json_array_size(types), layers);
	for (uint32_t i = 0; i < layers; i++) {
		const char *type = json_string_value(json_array_get(types, i));
		if (!type) return REFUSE(r, MT_EX_DATA, "layer_types has an entry that is not a string");
		bool sliding = strcmp(type, "sliding_attention") == 0;
		bool mixer = (family->delta && strcmp(type, "linear_attention") == 0) ||
			(family->conv && strcmp(type, "conv") == 0) ||
			(family->mamba && (strcmp(type, "linear_attention") == 0 || strcmp(type, "mamba") == 0)) ||
			(family->beside && strcmp(type, "hybrid") == 0);
		bool full = (!family->beside && strcmp(type, "full_attention") == 0) ||
			(family->mamba && strcmp(type, "attention") == 0) ||
			(family->read == read_indexed && strcmp(type, "indexed_attention") == 0);
		bool span = family->spans && strcmp(type, "chunked_attention") == 0;
		if (!sliding && !mixer && !full && !span) REFUSE(r, MT_EX_CONFIG, "layer_types '%.40s' is not supported", type);
		if (sliding && !window_given)
			REFUSE(r, MT_EX_CONFIG, "layer_types: layer %u is sliding_attention, but no window is in force", i);
		if (strict && sliding != !!(has[i] & HAS_WINDOW))
			REFUSE(r, MT_EX_CONFIG, "layer_types of layer %u disagrees with the keys of transformers 4", i);
		has[i] = (uint8_t)((has[i] & HAS_ROPE) | (sliding ? HAS_WINDOW : 0) | (mixer ? HAS_MIXER : 0) |
			(span ? HAS_SPAN : 0));
	}
}

/* Of models in which each such layer is full: which. 0: the file says it by layer_types alone */
static uint32_t read_pattern(struct reader *r, const struct family *family, bool window)
{
	const char *key = family->pattern_key;
	const json_t *v = key ? json_object_get(r->root, key) : NULL;
	if (!window || !v) return family->pattern;
	if (json_is_integer(v)) return key_u32(r, key, family->pattern, 1, INT32_MAX);
	if (!is_given(json_object_get(r->root, "layer_types")))
		REFUSE(r, MT_EX_CONFIG, "%s without layer_types is not an integer", key);
	return 0;
}

/* Tokens of the window; 0: none */
static uint32_t read_tokens(struct reader *r, const struct family *family)
{
	const json_t *given = json_object_get(r->root, "sliding_window");
	bool switched = family->window == WINDOW_QWEN || family->window == WINDOW_NOPE;
	if (family->window == WINDOW_NEVER || (switched && !key_bool(r, r->root, "use_sliding_window", false))) return 0;
	if (!given && (family->window_missing_none || family->window == WINDOW_NOPE)) return 0;
	if (!json_is_null(given))
		return key_u32(r, "sliding_window", family->tokens ? family->tokens : WINDOW_DEFAULT, 1, INT32_MAX);
	if (family->window == WINDOW_PATTERN && !family->window_null_none)
		REFUSE(r, MT_EX_CONFIG, "sliding_window null is not supported");
	return 0;
}

/* Does layer i have the window, by the keys of transformers 4? every, from: this family's */
static bool in_window(const struct family *family, uint32_t i, uint8_t has, uint32_t every, uint32_t from)
{
	switch (family->window) {
	case WINDOW_PATTERN: return every && (i + (family->first_full ? 0 : 1)) % every;
	case WINDOW_NOPE: return !(has & HAS_ROPE);
	case WINDOW_QWEN:
	case WINDOW_FROM: return i >= from;
	case WINDOW_ALL: return true;
	case WINDOW_NEVER: return false;
	}
	return false;
}

static uint32_t read_windows(struct reader *r, const struct family *family, uint32_t layers, uint8_t *has)
{
	uint32_t tokens = read_tokens(r, family), from = 0, every = 0;
	bool ranged = family->window == WINDOW_QWEN || family->window == WINDOW_FROM;
	if (tokens && ranged)
		from = key_u32(r, "max_window_layers", family->from ? family->from : MAX_WINDOW_LAYERS_DEFAULT, 0, INT32_MAX);
	if (family->window == WINDOW_PATTERN) every = read_pattern(r, family, tokens != 0);
	for (uint32_t i = 0; i < layers; i++)
		if (tokens && in_window(family, i, has[i], every, from)) has[i] |= HAS_WINDOW;
	bool strict = family->window != WINDOW_FROM; /* whose class has had layer_types from the beginning */
	if (family->window == WINDOW_QWEN) strict = json_object_get(r->root, "max_window_layers");
	if (family->window == WINDOW_PATTERN)
		strict = !family->types_win && every && family->pattern_key && json_object_get(r->root, family->pattern_key);
	read_layer_types(r, family, layers, has, tokens != 0, strict && family->window != WINDOW_NOPE);
	if (family->last_full) has[layers - 1] &= (uint8_t)~HAS_WINDOW;
	return tokens;
}

/* ---- spans */

/* Tokens of a span; 0: none */
static uint32_t read_span(struct reader *r, const struct family *family)
{
	bool none = !family->spans || json_is_null(json_object_get(r->root, "attention_chunk_size"));
	return none ? 0 : key_u32(r, "attention_chunk_size", 8192, 1, INT32_MAX);
}

/* ---- mixers beside attention */

/* Without layer_types, which says it otherwise */
static void read_interval(struct reader *r, uint32_t layers, uint8_t *has)
{
	if (is_given(json_object_get(r->root, "layer_types"))) return;
	uint32_t every = key_u32(r, "full_attention_interval", 4, 1, INT32_MAX);
	for (uint32_t i = 0; i < layers; i++)
		if ((i + 1) % every) has[i] |= HAS_MIXER;
}

/* The same of convolutions */
static void read_full_layers(struct reader *r, uint32_t layers, uint8_t *has)
{
	bool full[1024];
	if (is_given(json_object_get(r->root, "layer_types")) || !key_layers(r, "full_attn_idxs", layers, full)) return;
	for (uint32_t i = 0; i < layers; i++)
		if (!full[i]) has[i] |= HAS_MIXER;
}

/* All numbers that the part has, which are those that are not 0 */
static void add_part(struct mt_layer *k, const struct mt_layer *part)
{
	static const uint32_t none;
	for (size_t at = 0; at < sizeof *k; at += sizeof none)
		if (memcmp((const char *)part + at, &none, sizeof none))
			memcpy((char *)k + at, (const char *)part + at, sizeof none);
}

static void set_experts(const struct model *m, struct mt_layer *k)
{
	k->ffn = 0;
	add_part(k, &m->experts);
}

static void set_mixer(const struct model *m, struct mt_layer *k)
{
	if (!(m->mixer.mamba_flags & MT_BESIDE_ATTENTION)) {
		k->heads = k->kv_heads = k->head_dim = k->window = k->output_gate = 0;
		k->q_rank = k->kv_rank = k->v_dim = k->rope_dim = 0;
	}
	add_part(k, &m->mixer);
}

/* Of a layer that is one half alone, the other half */
static void remove_half(char half, struct mt_layer *k)
{
	if (half == 'E' || half == '-') {
		k->mixer = MT_NO_MIXER;
		k->heads = k->kv_heads = k->head_dim = 0;
	} else if (half) {
		k->ffn = 0;
	}
}

/* ---- NoPE */

/* Layers without rope by their numbers: no_rope_layers has 0 for them, or each no_rope_layer_interval-th is one */
static void read_nope_list(struct reader *r, const struct family *family, uint32_t layers, uint8_t *has)
{
	const json_t *list = json_object_get(r->root, "no_rope_layers");
	uint32_t every = key_u32(r, "no_rope_layer_interval", NOPE_INTERVAL_DEFAULT, 1, INT32_MAX);
	bool none = family->spans && json_is_array(list) && json_array_size(list) == 0, given = is_given(list) && !none;
	if (r->rc) return;
	if (given && (!json_is_array(list) || json_array_size(list) < layers))
		return REFUSE(r, MT_EX_CONFIG, "no_rope_layers is not a list of %u numbers", layers);
	for (uint32_t i = 0; i < layers; i++) {
		const json_t *v = json_array_get(list, i);
		if (given && !json_is_integer(v))
			return REFUSE(r, MT_EX_DATA, "no_rope_layers has an entry that is not an integer");
		if (given ? json_integer_value(v) == 0 : (i + 1) % every == 0) has[i] &= (uint8_t)~HAS_ROPE;
	}
}

/* ---- sizes */

void check_heads(struct reader *r, const struct mt_layer *k)
{
	if (k->heads % k->kv_heads)
		REFUSE(r, MT_EX_CONFIG, "num_attention_heads %u is not a multiple of num_key_value_heads %u", k->heads,
			k->kv_heads);
	if (k->head_dim % 2 || k->head_dim > 512 || k->head_dim == 0)
		REFUSE(r, MT_EX_CONFIG, "head_dim %u is not an even number up to 512", k->head_dim);
}

/* Sizes of one layer, from per_layer_config: {"5": {"head_dim": 512, ...}, ...} */
static void read_own_sizes(struct reader *r, const json_t *all, uint32_t layer, struct mt_layer *k)
{
	char number[16];
	snprintf(number, sizeof number, "%u", layer);
	struct reader own = {.root = json_object_get(all, number), .rc = r->rc};
	const char *key;
	json_t *v;
	json_object_foreach((json_t *)own.root, key,
		v) if (strcmp(key, "head_dim") != 0 && strcmp(key, "num_key_value_heads") != 0) return REFUSE(r, MT_EX_CONFIG,
		"per_layer_config: %.40s is not supported", key);
	k->head_dim = key_u32(&own, "head_dim", k->head_dim, 2, 512);
	k->kv_heads = key_u32(&own, "num_key_value_heads", k->kv_heads, 1, 1 << 14);
	r->rc = own.rc;
}

static void set_sizes(struct reader *r, const struct family *family, const struct model *m, uint32_t layer,
	struct mt_layer *k)
{
	const json_t *own = family->per_layer ? json_object_get(r->root, "per_layer_config") : NULL;
	if (!k->window) {
		if (m->full_head_dim) k->head_dim = m->full_head_dim;
		if (m->full_kv_heads) k->kv_heads = m->full_kv_heads;
		k->k_is_v = m->full_k_is_v;
	}
	if (is_given(own) && !json_is_object(own)) return REFUSE(r, MT_EX_DATA, "per_layer_config is not an object");
	if (is_given(own)) read_own_sizes(r, own, layer, k);
	if (m->ffn[layer]) k->ffn = m->ffn[layer];
	k->sparsity = m->sparsity[layer];
	check_heads(r, k);
}

/* ---- k and v of another layer */

/* The last layers of the model read k and v of the last one before them all that is of their type. */
static void set_shared(struct reader *r, const struct model *m, uint32_t layer, struct mt_layer *k)
{
	const struct mt_geometry *geo = &m->geo;
	uint32_t own = geo->layers - m->kv_shared, from = own;
	if (layer < own) return;
	while (from && geo->kind[geo->kind_of[from - 1]].window != k->window) from--;
	if (!from)
		return REFUSE(r, MT_EX_CONFIG, "num_kv_shared_layers %u: no layer before has the k and v of layer %u",
			m->kv_shared, layer);
	const struct mt_layer *other = &geo->kind[geo->kind_of[from - 1]];
	if (other->kv_heads != k->kv_heads || other->head_dim != k->head_dim)
		REFUSE(r, MT_EX_CONFIG, "num_kv_shared_layers: layer %u has heads of another size than layer %u", layer,
			from - 1);
	k->kv_kind = 1u + geo->kind_of[from - 1];
	if (m->kv_shared_wide) k->ffn *= 2;
}

/* ---- kinds of layers */

/* The number of this kind, which is entered if no layer before is of it */
static uint8_t kind_number(struct reader *r, struct model *m, const struct mt_layer *k, enum rope_of rope)
{
	struct mt_geometry *geo = &m->geo;
	for (uint32_t i = 0; i < geo->n_kinds; i++)
		if (memcmp(&geo->kind[i], k, sizeof *k) == 0 && m->rope_of[i] == rope) return (uint8_t)i;
	if (geo->n_kinds == MT_KINDS) return REFUSE(r, MT_EX_CONFIG, "more than %d kinds of layers", MT_KINDS), 0;
	geo->kind[geo->n_kinds] = *k;
	m->rope_of[geo->n_kinds] = rope;
	return (uint8_t)geo->n_kinds++;
}

void read_layers(struct reader *r, const struct family *family, struct model *m)
{
	uint8_t has[sizeof m->geo.kind_of];
	memset(has, HAS_ROPE, sizeof has);
	if (m->kv_shared >= m->geo.layers)
		return REFUSE(r, MT_EX_CONFIG, "num_kv_shared_layers %u of %u layers are not supported", m->kv_shared,
			m->geo.layers);
	if (family->nope == NOPE_LIST) read_nope_list(r, family, m->geo.layers, has);
	uint32_t span = read_span(r, family);
	for (uint32_t i = 0; i < m->geo.layers; i++)
		if (span && has[i] & HAS_ROPE) has[i] |= HAS_SPAN;
	uint32_t tokens = read_windows(r, family, m->geo.layers, has);
	if (family->delta && !m->mixed) read_interval(r, m->geo.layers, has);
	if (family->conv) read_full_layers(r, m->geo.layers, has);
	bool all = (family->mamba || family->beside) && !is_given(json_object_get(r->root, "layer_types"));
	for (uint32_t i = 0; i < m->geo.layers; i++)
		if (m->halves[i] == 'M' || all || m->mixes[i]) has[i] |= HAS_MIXER;
	bool nope = family->nope == NOPE_FULL || (family->nope == NOPE_BESIDE_WINDOWS && tokens);

	for (uint32_t i = 0; i < m->geo.layers; i++) {
		struct mt_layer k = m->base;
		bool window = has[i] & HAS_WINDOW;
		enum rope_of rope = family->local_theta > 0 && window ? ROPE_LOCAL : ROPE_FULL;
		k.window = window ? tokens : 0;
		k.span = has[i] & HAS_SPAN ? span : 0;
		if (has[i] & HAS_SPAN && !span)
			REFUSE(r, MT_EX_CONFIG, "layer_types: layer %u is chunked_attention without attention_chunk_size", i);
		set_sizes(r, family, m, i, &k);
		if (m->sparse[i]) set_experts(m, &k);
		set_shared(r, m, i, &k);
		if (has[i] & HAS_MIXER) set_mixer(m, &k);
		remove_half(m->halves[i], &k);
		k.parts |= (i ? m->later : m->first) | (i + 1 == m->geo.layers ? m->last : 0);
		if (!(has[i] & HAS_ROPE) || m->no_rope || (nope && !window) || !k.heads) rope = ROPE_NONE;
		m->geo.kind_of[i] = kind_number(r, m, &k, rope);
	}
	for (uint32_t i = 0; i < m->geo.n_kinds && !r->rc; i++) rope_fill(r, family, m, m->rope_of[i], &m->geo.kind[i]);
	/* mt-step refuses rows above max_position with this flag. */
	if (!m->longest_row) return;
	m->geo.flags |= MT_SHORT_ROWS;
	if (m->longest_row < m->geo.max_position) m->geo.max_position = m->longest_row;
}
