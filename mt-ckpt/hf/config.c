/* config.c: writes config.json, and compares two geometries. */
#include <stdlib.h>
#include "ckpt.h"
#include "model/hfjson.h"

/* Default of every family's class in transformers; libmt reads a file without rope_theta in the same way. */
#define THETA_DEFAULT 10000.0

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

/* transformers 4 reads rope_theta and rope_scaling. transformers 5 reads rope_parameters, but prefers rope_scaling with
 * rope_theta if rope_scaling is not null. So all of them are written, with the same content. */
static void write_rope(json_t *root, int *rc)
{
	json_t *scaling = block(root, "rope_scaling"), *parameters = block(root, "rope_parameters");
	json_t *from = parameters ? parameters : scaling;
	json_t *theta = given(root, "rope_theta");
	json_t *new_parameters = from ? json_deep_copy(from) : json_object(), *new_scaling;

	if (!theta) theta = given(parameters, "rope_theta");
	if (!theta) theta = given(scaling, "rope_theta");
	theta = theta ? json_incref(theta) : json_real(THETA_DEFAULT);
	json_t *type = given(from, "rope_type");
	if (!type) type = given(from, "type");
	type = type ? json_incref(type) : json_string("default");

	json_put(rc, new_parameters, "rope_type", json_incref(type));
	json_put(rc, new_parameters, "rope_theta", json_incref(theta));
	if (json_is_string(type) && !strcmp(json_string_value(type), "default")) new_scaling = json_null();
	else { /* transformers 4 warns of unknown keys in rope_scaling */ new_scaling = json_deep_copy(new_parameters);
		json_object_del(new_scaling, "rope_theta");
		json_object_del(new_scaling, "partial_rotary_factor");
	}
	json_put(rc, root, "rope_theta", theta);
	json_put(rc, root, "rope_scaling", new_scaling);
	json_put(rc, root, "rope_parameters", new_parameters);
	json_decref(type);
}

int config_export(struct mt_run *run, enum mt_dtype dtype, char **text)
{
	size_t n;
	const char *have = mt_config_text(run, &n), *name = dtype == MT_BF16 ? "bfloat16" : "float32";
	json_error_t err;
	json_t *root = hfjson_parse(have, n, &err);
	int rc = 0;

	if (!json_is_object(root)) {
		bool memory = !root && json_error_code(&err) == json_error_out_of_memory;
		json_decref(root);
		return memory ? mt_fail(MT_EX_NOMEM, "no memory for config.json")
					  : mt_fail(MT_EX_DATA, "the run's config.json is damaged");
	}
	write_rope(root, &rc);
	json_put(&rc, root, "torch_dtype", json_string(name));
	json_put(&rc, root, "dtype", json_string(name));
	json_put(&rc, root, "tie_word_embeddings", json_boolean(mt_geometry(run)->flags & MT_TIED));
	/* Without head_dim, transformers 4 fails for a mistral with scaled rope: it computes with None. */
	if (!given(root, "head_dim")) json_put(&rc, root, "head_dim", json_integer(mt_geometry(run)->head_dim));
	*text = rc == 0 ? json_text(root, 2) : NULL;
	json_decref(root);
	if (!*text) return rc < 0 ? rc : mt_fail(MT_EX_NOMEM, "no memory for config.json");
	hfjson_unmark(*text);
	return 0;
}

static int differs(const char *key, double run, double dir)
{
	return mt_fail(MT_EX_DATA, "config.json: %s is %g, the run's is %g", key, dir, run);
}

int config_same(const struct mt_geometry *run, const struct mt_geometry *dir)
{
	static const struct {
		const char *key;
		uint32_t flag;
	} flags[] = {
		{"tie_word_embeddings", MT_TIED},
		{"attention_bias", MT_QKV_BIAS | MT_O_BIAS},
		{"mlp_bias", MT_MLP_BIAS},
		{"the norms of q and k", MT_QK_NORM},
	};

	if (strncmp(run->family, dir->family, sizeof run->family))
		return mt_fail(MT_EX_DATA, "config.json: model_type is %.16s, the run's is %.16s", dir->family, run->family);
#define SAME(field, key) \
	if (run->field != dir->field) return differs(key, run->field, dir->field)
	SAME(layers, "num_hidden_layers");
	SAME(hidden, "hidden_size");
	SAME(heads, "num_attention_heads");
	SAME(kv_heads, "num_key_value_heads");
	SAME(head_dim, "head_dim");
	SAME(ffn, "intermediate_size");
	SAME(vocab, "vocab_size");
	SAME(norm_eps, "rms_norm_eps");
	SAME(window, "sliding_window");
	SAME(rope_scaling, "the rope's attention factor");
#undef SAME
	for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
		if ((run->flags ^ dir->flags) & flags[i].flag)
			return mt_fail(MT_EX_DATA, "config.json: %s is not the run's", flags[i].key);
	for (uint32_t i = 0; i < dir->layers && i < sizeof dir->window_layer; i++)
		if (run->window_layer[i] != dir->window_layer[i])
			return mt_fail(MT_EX_DATA, "config.json: the sliding window of layer %u is not the run's", i);
	for (uint32_t i = 0; i < dir->head_dim / 2 && i < 256; i++)
		if (run->rope_inv_freq[i] != dir->rope_inv_freq[i])
			return mt_fail(MT_EX_DATA, "config.json: rope_theta or rope_scaling is not the run's");
	return 0;
}
