/* stop.c: which tokens end a continuation, as the model's own files say */
#include <jansson.h>

#include "mt/error.h"
#include "mt/run.h"
#include "say.h"
#include "sample.h"

static void add(struct stops *s, const json_t *id)
{
	json_int_t v = json_is_integer(id) ? json_integer_value(id) : -1;
	if (v >= 0 && v < MT_CONTEXT_ONLY && s->n < STOPS) s->id[s->n++] = (uint32_t)v;
}

/* eos_token_id: a number, a list of numbers, or null. false: the text has none */
static bool add_all(struct stops *s, const char *name, const char *text, size_t bytes)
{
	json_error_t error;
	json_t *root = json_loadb(text, bytes, 0, &error), *eos = json_object_get(root, "eos_token_id");
	if (!eos) eos = json_object_get(json_object_get(root, "text_config"), "eos_token_id");
	if (!root) mt_say("warning: %s: not JSON: %s", name, error.text);
	for (size_t i = 0; i < json_array_size(eos); i++) add(s, json_array_get(eos, i));
	add(s, eos);
	bool found = eos != NULL;
	json_decref(root);
	return found;
}

struct eos_search {
	struct stops *stops;
	bool found;
};

/* mt_files_each */
static int look_into(const char *name, const void *data, size_t bytes, void *arg)
{
	struct eos_search *s = arg;
	if (!strcmp(name, "generation_config.json")) s->found = add_all(s->stops, name, data, bytes);
	return 0;
}

void stops_of_run(const struct mt_run *run, struct stops *stops)
{
	struct eos_search s = {.stops = stops};
	size_t bytes;
	const char *config = mt_config_text(run, &bytes);
	stops->n = 0;
	/* a region of kept files that cannot be read prevents nothing: config.json has the ids as well */
	if (mt_files_each(run, look_into, &s)) mt_say("warning: generation_config.json is not read: %s", mt_errmsg());
	if (!s.found) add_all(stops, "config.json", config, bytes);
}

bool stops_have(const struct stops *s, uint32_t token)
{
	for (int i = 0; i < s->n; i++)
		if (s->id[i] == token) return true;
	return false;
}
