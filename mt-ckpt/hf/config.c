/* config.c: writes config.json, and compares two geometries. */
#include <math.h>
#include <stdlib.h>
#include "hf.h"
#include "abi.h"
#include "model/hfjson.h"
#include "model/names.h"

static json_t *block(const json_t *root, const char *key)
{
	json_t *v = json_object_get(root, key);
	return json_object_size(v) ? v : NULL;
}

static json_t *given(const json_t *obj, const char *key)
{
	json_t *v = json_object_get(obj, key);
	return json_is_null(v) ? NULL : v;
}

/* The kind of all layers that have rotary positions. NULL: there are several, or the family has them by type of layer,
 * even if all layers are of one type: they are left as the file has them */
static const struct mt_layer *one_rope(const struct mt_geometry *g)
{
	const struct mt_layer *one = &g->kind[0];
	if (rope_is_by_type(g->family)) return NULL;
	for (uint32_t i = 1; i < g->n_kinds; i++) {
		const struct mt_layer *k = &g->kind[i];
		if (one->rope_dim == 0) one = k;
		else if (k->rope_dim != 0 &&
			(k->rope_dim != one->rope_dim || k->rope_scaling != one->rope_scaling ||
				memcmp(k->rope_inv_freq, one->rope_inv_freq, sizeof k->rope_inv_freq)))
			return NULL;
	}
	return one;
}

#define ORIGINAL "original_max_position_embeddings"

/* rope_scaling as transformers 4 wants it. It warns of unknown keys; some classes refuse them. */
static json_t *scaling_of(const json_t *parameters, const char *family, const char *type, int *rc)
{
	if (strcmp(type, "default") == 0 && !json_object_get(parameters, "mrope_section")) return json_null();
	json_t *scaling = json_deep_copy(parameters);
	bool longrope = strcmp(type, "longrope") == 0;
	json_object_del(scaling, "rope_theta");
	json_object_del(scaling, "partial_rotary_factor");
	if (longrope) json_object_del(scaling, ORIGINAL);
	if (rope_has_type_only(family)) json_object_del(scaling, "rope_type");
	if (longrope || rope_has_type_only(family)) json_put(rc, scaling, "type", json_string(type));
	return scaling;
}

/* Has rope_parameters an object for each type of layers? Then a model may still have layers of one type only. */
static bool by_layer_type(json_t *parameters)
{
	const char *key;
	json_t *v;
	json_object_foreach(parameters, key, v) if (json_is_object(v)) return true;
	return false;
}

/* Are the rotary positions those of theta, without any scaling? */
static bool plain_rope(const struct mt_layer *k, double theta)
{
	bool same = k->rope_scaling == 1;
	for (uint32_t i = 0; i < k->rope_dim / 2; i++)
		same &= fabs((double)k->rope_inv_freq[i] * pow(theta, 2.0 * i / k->rope_dim) - 1) < 1e-4;
	return same;
}

/* The value at key in the file's root, where it is called root_key, or in one of the two blocks; NULL: in none */
static json_t *given_anywhere(const json_t *root, const json_t *parameters, const json_t *scaling, const char *root_key,
	const char *key)
{
	json_t *v = given(root, root_key);
	if (!v) v = given(parameters, key);
	return v ? v : given(scaling, key);
}

/* transformers 5 has the model's length where transformers 4 wants to read the original one. */
static void write_original(json_t *root, json_t *parameters, json_t *scaling, const char *type, int *rc)
{
	json_t *original = given_anywhere(root, parameters, scaling, ORIGINAL, ORIGINAL);
	if (!original && strcmp(type, "llama3") == 0) original = given(root, "max_position_embeddings");
	if (original && strcmp(type, "llama3") == 0) json_put(rc, parameters, ORIGINAL, json_incref(original));
	original = given(parameters, ORIGINAL);
	if (original && strcmp(type, "longrope") == 0 && !given(root, ORIGINAL))
		json_put(rc, root, ORIGINAL, json_incref(original));
}

/* transformers 4 reads rope_theta, partial_rotary_factor and rope_scaling. transformers 5 reads rope_parameters, but
 * prefers rope_scaling with the other two if rope_scaling is not null. So all of them are written, with the same
 * content. What the file does not say, and the family's class does, is not written. */
static void write_rope(json_t *root, const char *family, const struct mt_layer *k, int *rc)
{
	const char *theta_key = rope_root_key(family, "rope_theta");
	const char *partial_key = rope_root_key(family, "partial_rotary_factor");
	json_t *scaling = block(root, "rope_scaling"), *parameters = block(root, "rope_parameters");
	json_t *from = parameters ? parameters : scaling;
	json_t *theta = given_anywhere(root, parameters, scaling, theta_key, "rope_theta");
	json_t *partial = given_anywhere(root, parameters, scaling, partial_key, "partial_rotary_factor");
	json_t *type = given(from, "rope_type"), *new_parameters;
	if (by_layer_type(from) || (!from && !(theta && plain_rope(k, json_number_value(theta))))) return;
	if (!type) type = given(from, "type");
	const char *in_file = json_is_string(type) ? json_string_value(type) : "default";
	const char *name = rope_type_name(family, in_file);

	new_parameters = from ? json_deep_copy(from) : json_object();
	if (strcmp(name, in_file) != 0) json_object_del(new_parameters, "type");
	json_put(rc, new_parameters, "rope_type", json_string(name));
	if (theta) json_put(rc, new_parameters, "rope_theta", json_incref(theta));
	if (partial) json_put(rc, new_parameters, "partial_rotary_factor", json_incref(partial));
	write_original(root, new_parameters, scaling, name, rc);
	json_t *new_scaling = scaling_of(new_parameters, family, name, rc);
	if (theta) json_put(rc, root, theta_key, json_incref(theta));
	if (partial) json_put(rc, root, partial_key, json_incref(partial));
	json_put(rc, root, "rope_scaling", new_scaling);
	json_put(rc, root, "rope_parameters", new_parameters);
}

/* The same where rope_parameters are by type of layer: transformers 4 has rope_scaling for layers with full attention,
 * and another theta for the others only if there is a key for it. */
static void write_ropes_by_type(json_t *root, const char *family, int *rc)
{
	json_t *parameters = block(root, "rope_parameters"), *full = block(parameters, "full_attention");
	json_t *local = block(parameters, "sliding_attention"), *type = given(full, "rope_type");
	json_t *theta = given(full, "rope_theta"), *local_theta = given(local, "rope_theta");
	json_t *local_type = given(local, "rope_type");
	const char *local_key = rope_local_theta_key(family);
	if (!theta || !local_theta || !json_is_string(type)) return;
	if (local_type && (!json_is_string(local_type) || strcmp(json_string_value(local_type), "default") != 0)) return;
	if (!local_key && json_number_value(theta) != json_number_value(local_theta)) return;
	json_put(rc, root, "rope_theta", json_incref(theta));
	if (local_key) json_put(rc, root, local_key, json_incref(local_theta));
	json_put(rc, root, "rope_scaling", scaling_of(full, family, json_string_value(type), rc));
}

static uint32_t experts_of(const struct mt_geometry *g)
{
	uint32_t most = 0;
	for (uint32_t i = 0; i < g->n_kinds; i++)
		if (g->kind[i].experts > most) most = g->kind[i].experts;
	return most;
}

static void write_dtype(json_t *object, const char *name, bool both, int *rc)
{
	static const char *const keys[] = {"torch_dtype", "dtype"};
	for (int i = 0; i < 2; i++)
		if (both || json_object_get(object, keys[i])) json_put(rc, object, keys[i], json_string(name));
}

static void write_ropes(json_t *root, const struct mt_geometry *geo, int *rc)
{
	if (one_rope(geo)) write_rope(root, geo->family, one_rope(geo), rc);
	if (rope_is_by_type(geo->family)) write_ropes_by_type(root, geo->family, rc);
}

/* A wrapper's config.json stays in the form in which it was read: transformers 5 reads what transformers 4 wrote. In
 * what transformers 5 wrote, the text model's rope is added as transformers 4 reads it. Parts have dtypes of their
 * own. */
static void write_wrapper(json_t *root, const struct mt_geometry *geo, const char *dtype, int *rc)
{
	static const char tie[] = "tie_word_embeddings";
	const char *key;
	json_t *v, *text = json_object_get(root, "text_config");
	bool tied = geo->flags & MT_TIED;
	json_object_foreach(root, key, v) if (json_is_object(v)) write_dtype(v, dtype, false, rc);
	if (block(text, "rope_parameters")) write_ropes(text, geo, rc);
	write_dtype(root, dtype, true, rc);
	json_put(rc, root, "architectures", json_pack("[s]", family_class(geo->wrapper)));
	json_put(rc, root, tie, json_boolean(tied));
	if (json_object_get(text, tie)) json_put(rc, text, tie, json_boolean(tied));
}

static void write_text_model(json_t *root, const struct mt_geometry *geo, const char *dtype, int *rc)
{
	write_ropes(root, geo, rc);
	/* older and newer classes have different names for it, and read only their own */
	const char *experts = experts_key(geo->family);
	if (experts && experts_of(geo) && !given(root, experts)) json_put(rc, root, experts, json_integer(experts_of(geo)));
	/* the file may have come from another class, such as LlamaModel; what is written is the one with an LM head */
	if (given(root, "architectures")) json_put(rc, root, "architectures", json_pack("[s]", family_class(geo->family)));
	write_dtype(root, dtype, true, rc);
	json_put(rc, root, "tie_word_embeddings", json_boolean(geo->flags & MT_TIED));
	/* Without head_dim, transformers 4 fails for a mistral with scaled rope: it computes with None. Some families whose
	 * files have other names compute head_dim, and refuse the key. */
	if (geo->names == MT_NAMES_LLAMA && !mt_layer_most(geo).kv_rank && !given(root, "head_dim"))
		json_put(rc, root, "head_dim", json_integer(mt_layer_most(geo).head_dim));
}

/* The tensors that these keys announce are left out. */
static void write_no_mtp(json_t *root, int *rc)
{
	static const char *const keys[] = {"num_nextn_predict_layers", "mtp_num_hidden_layers"};
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
		if (json_is_integer(json_object_get(root, keys[i]))) json_put(rc, root, keys[i], json_integer(0));
}

int config_export(const struct mt_geometry *geo, const char *config, size_t bytes, enum mt_dtype dtype, bool no_mtp,
	char **text)
{
	const char *name = dtype == MT_BF16 ? "bfloat16" : "float32";
	json_error_t err;
	json_t *root = hfjson_parse(config, bytes, &err);
	int rc = 0;
	if (!json_is_object(root)) {
		bool memory = !root && json_error_code(&err) == json_error_out_of_memory;
		json_decref(root);
		return memory ? mt_fail(MT_EX_NOMEM, "no memory for config.json")
					  : mt_fail(MT_EX_DATA, "the run's config.json is damaged");
	}
	json_object_del(root, "quantization_config"); /* mt-ckpt load has dequantized the weights */
	json_object_del(json_object_get(root, "text_config"), "quantization_config");
	if (*geo->wrapper) write_wrapper(root, geo, name, &rc);
	else write_text_model(root, geo, name, &rc);
	json_t *text_model = *geo->wrapper ? json_object_get(root, "text_config") : root;
	if (geo->mtp != 0) json_put(&rc, text_model, "mtp_loss_coef", json_real((double)geo->mtp));
	if (no_mtp) write_no_mtp(root, &rc);
	if (no_mtp) write_no_mtp(json_object_get(root, "text_config"), &rc);
	*text = rc == 0 ? json_text(root, 2) : NULL;
	json_decref(root);
	if (!*text) return rc < 0 ? rc : mt_fail(MT_EX_NOMEM, "no memory for config.json");
	hfjson_unmark(*text);
	return 0;
}

/* All fields of two geometries: shm/abi.h has the one list of them. They are called what config.json calls them, if it
 * has one key for the field. */
static const struct field {
	const char *of, *name;
	size_t at, bytes;
	bool real;
} fields[] = {
#define FIELD(type, field, at, bytes) \
	{#type, #field, at, bytes, _Generic(((struct type *)0)->field, float : true, default : false)},
	MT_ABI_GEOMETRY(FIELD)};

static const char *key_of(const char *name)
{
	static const char *const keys[][2] = {{"layers", "num_hidden_layers"}, {"hidden", "hidden_size"},
		{"vocab", "vocab_size"}, {"max_position", "max_position_embeddings"},
		{"norm_eps", "rms_norm_eps or layer_norm_eps"}, {"heads", "num_attention_heads"},
		{"kv_heads", "num_key_value_heads"}, {"ffn", "intermediate_size"}, {"window", "sliding_window"},
		{"span", "attention_chunk_size"}, {"rope_inv_freq", "rope_theta or rope_scaling"},
		{"experts", "the number of experts"}, {"experts_per_token", "num_experts_per_tok"},
		{"tied", "tie_word_embeddings"}, {"qkv_bias", "attention_bias"}};
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
		if (!strcmp(name, keys[i][0])) return keys[i][1];
	return name;
}

static double number_at(const struct field *f, const void *of)
{
	const void *at = (const char *)of + f->at;
	return f->real ? *(const float *)at : *(const uint32_t *)at;
}

/* 65 and the first field of two structs of a type that differs, but for those in `but`, with a blank around each */
static int fields_same(const char *type, const void *run, const void *dir, const char *where, const char *but)
{
	for (const struct field *f = fields; f < fields + sizeof fields / sizeof *fields; f++) {
		char word[40];
		snprintf(word, sizeof word, " %s ", f->name);
		if (strcmp(f->of, type) || strstr(but, word)) continue;
		if (!memcmp((const char *)run + f->at, (const char *)dir + f->at, f->bytes)) continue;
		if (f->bytes > 4) return mt_fail(MT_EX_DATA, "config.json: %s%s is not the run's", key_of(f->name), where);
		return mt_fail(MT_EX_DATA, "config.json: %s%s is %g, the run's is %g", key_of(f->name), where,
			number_at(f, dir), number_at(f, run));
	}
	return 0;
}

#define FLAG(name, bit, word) [bit] = #word,
static const char *const flags[] = {MT_FLAGS(FLAG)};

static int flags_same(uint32_t run, uint32_t dir)
{
	uint32_t differ = (run ^ dir) & ~(uint32_t)(MT_SHORT_ROWS | MT_DROPOUT);
	if (!differ) return 0;
	int bit = __builtin_ctz(differ);
	return mt_fail(MT_EX_DATA, "config.json: %s is %u, the run's is %u", key_of(flags[bit]), dir >> bit & 1,
		run >> bit & 1);
}

/* What does not change the model's function or its tensors; the length is that of a table with MT_POSITIONS alone */
#define NO_DIFFERENCE \
	" family flags names pad_token init_range n_kinds kind_of kind aux_coef z_coef wrapper " \
	"carried_bytes carried mtp "
#define LENGTH "max_position "

int config_same(const struct mt_geometry *run, const struct mt_geometry *dir)
{
	if (strncmp(run->family, dir->family, sizeof run->family))
		return mt_fail(MT_EX_DATA, "config.json: model_type is %.32s, the run's is %.32s", dir->family, run->family);
	if (strncmp(run->wrapper, dir->wrapper, sizeof run->wrapper))
		return mt_fail(MT_EX_DATA, "config.json: is of %s %.32s, the run's of %s %.32s",
			*dir->wrapper ? "the class for images" : "the text model", *dir->wrapper ? dir->wrapper : dir->family,
			*run->wrapper ? "the class for images" : "the text model", *run->wrapper ? run->wrapper : run->family);
	if ((run->mtp != 0) != (dir->mtp != 0))
		return mt_fail(MT_EX_DATA, "config.json: trains multi-token prediction%s along, the run does%s: --mtp X",
			dir->mtp != 0 ? "" : " not", dir->mtp != 0 ? " not" : "");
	int rc = flags_same(run->flags, dir->flags);
	if (rc == 0)
		rc = fields_same("mt_geometry", run, dir, "", dir->flags & MT_POSITIONS ? NO_DIFFERENCE : NO_DIFFERENCE LENGTH);
	for (uint32_t i = 0; i < dir->layers && rc == 0; i++) {
		char where[24];
		snprintf(where, sizeof where, " of layer %u", i);
		rc = fields_same("mt_layer", mt_layer_of(run, i), mt_layer_of(dir, i), where, "");
	}
	return rc;
}
