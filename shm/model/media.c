/* media.c: tokens that stand for no text: the model reads an image or a sound in their place. A wrapper's config.json
 * names them in its root: image_token_id, video_token_index, visual_indicator_token_ids, ... */
#include <jansson.h>
#include <string.h>

#include "hffiles.h"
#include "hfjson.h"
#include "mt/media.h"
#include "mt/memory.h"

static bool is_text(const char *key)
{
	static const char *const text[] = {"eos_", "bos_", "pad_", "sep_", "unk_", "decoder_start_"};
	for (size_t i = 0; i < sizeof text / sizeof *text; i++)
		if (!strncmp(key, text[i], strlen(text[i]))) return true;
	return false;
}

static void add(struct mt_media *m, const char *key, const json_t *v)
{
	json_int_t id = json_integer_value(v);
	if (!json_is_integer(v) || id < 0 || id >= MT_CONTEXT_ONLY || m->n == MT_MEDIA) return;
	m->token[m->n].id = (uint32_t)id;
	snprintf(m->token[m->n++].key, sizeof m->token->key, "%s", key);
}

void mt_media_read(const char *config, size_t bytes, struct mt_media *m)
{
	json_error_t error;
	json_t *root = hfjson_load(config, bytes, &error), *v;
	const char *key;
	*m = (struct mt_media){0};
	json_object_foreach(root, key, v)
	{
		bool one = ends_with(key, "_token_id") || ends_with(key, "_token_index");
		if (!(one || ends_with(key, "_token_ids")) || is_text(key)) continue;
		if (one) add(m, key, v);
		else
			for (size_t i = 0; i < json_array_size(v); i++) add(m, key, json_array_get(v, i));
	}
	json_decref(root);
}
