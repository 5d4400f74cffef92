/* stop.c: what ends a continuation: tokens, as the model's own files say, or a text that new tokens complete */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- texts: what each token adds to the text, by the run's tokenizer.json */

/* What a character behind a backslash stands for; 0: for no other one */
static char escape_of(char c) { return c == 'n' ? '\n' : c == 't' ? '\t' : c == '\\' ? c : 0; }

int stops_add_text(struct stops *s, const char *text)
{
	char *to = malloc(strlen(text) + 1);
	size_t n = 0;
	if (!to) return mt_fail(MT_EX_NOMEM, "no memory for --stop");
	for (const char *c = text; *c; c++) {
		char other = *c == '\\' ? escape_of(c[1]) : 0;
		to[n++] = other ? other : *c;
		c += other != 0;
	}
	s->text[s->texts++] = (struct stop_text){to, n};
	if (n > s->longest) s->longest = n;
	return 0;
}

/* The byte of a character in the alphabet of byte-level BPE, GPT-2's bytes_to_unicode; -1: it is not in it */
static int byte_of(uint32_t c)
{
	enum { FIRST = 256, BELOW = 33, MIDDLE = 67 };
	if (c < FIRST) return (int)c;
	c -= FIRST;
	return c < BELOW ? (int)c : c < MIDDLE ? (int)(c - BELOW) + 127 : c == MIDDLE ? 173 : -1;
}

/* The next character of UTF-8 and its bytes; jansson has checked it */
static int character(const char *s, uint32_t *c)
{
	const unsigned char *u = (const unsigned char *)s;
	int n = *u < 0x80 ? 1 : *u < 0xe0 ? 2 : *u < 0xf0 ? 3 : 4;
	*c = n == 1 ? *u : *u & (0xffu >> (n + 1));
	for (int i = 1; i < n; i++) *c = *c << 6 | (u[i] & 0x3f);
	return n;
}

/* A token of the vocabulary as text: of byte-level BPE, or as SentencePiece writes it */
static size_t decode(char *to, const char *piece, size_t bytes, bool byte_level)
{
	enum { BLANK = 0x2581 }; /* SentencePiece's */
	unsigned value;
	int end = 0;
	size_t n = 0;
	if (!byte_level && bytes == 6 && sscanf(piece, "<0x%2X>%n", &value, &end) == 1 && end == 6) {
		*to = (char)value;
		return 1;
	}
	for (size_t i = 0; i < bytes;) {
		uint32_t c;
		int wide = character(piece + i, &c), byte = byte_level ? byte_of(c) : c == BLANK ? ' ' : -1;
		if (byte >= 0) to[n++] = (char)byte;
		else memcpy(to + n, piece + i, (size_t)wide), n += (size_t)wide;
		i += (size_t)wide;
	}
	return n;
}

struct token_search {
	struct stops *stops;
	uint32_t vocab;
	int rc;
	bool found;
};

static int token_add(struct token_search *s, json_int_t id, const json_t *piece, int how)
{
	size_t n = json_string_length(piece);
	if (id < 0 || id >= s->vocab || !json_is_string(piece)) return 0;
	struct stop_text *t = &s->stops->token[id];
	char *to = realloc((char *)t->bytes, n + 1);
	if (!to) return mt_fail(MT_EX_NOMEM, "no memory for the texts of tokens");
	*t = (struct stop_text){to, n};
	if (how < 0) memcpy(to, json_string_value(piece), n);
	else t->n = decode(to, json_string_value(piece), n, how);
	return 0;
}

static bool is_byte_level(const json_t *decoder)
{
	const json_t *parts = json_object_get(decoder, "decoders");
	const char *type = json_string_value(json_object_get(decoder, "type"));
	for (size_t i = 0; i < json_array_size(parts); i++)
		if (is_byte_level(json_array_get(parts, i))) return true;
	return type && !strcmp(type, "ByteLevel");
}

static int tokens_add(struct token_search *s, json_t *root)
{
	json_t *model = json_object_get(root, "model"), *vocab = json_object_get(model, "vocab"), *id;
	json_t *added = json_object_get(root, "added_tokens");
	const char *type = json_string_value(json_object_get(model, "type")), *piece;
	bool byte_level = is_byte_level(json_object_get(root, "decoder"));
	int rc = 0;
	if (!json_is_array(vocab) && !json_object_get(model, "merges"))
		return mt_fail(MT_EX_CONFIG, "--stop TEXT: tokenizer.json is of type %s, not BPE or Unigram",
			type ? type : "unknown");
	json_object_foreach(vocab, piece, id)
	{
		json_t *text = json_string_nocheck(piece);
		rc = rc ? rc : token_add(s, json_integer_value(id), text, byte_level);
		json_decref(text);
	}
	for (size_t i = 0; i < json_array_size(vocab) && !rc; i++)
		rc = token_add(s, (json_int_t)i, json_array_get(json_array_get(vocab, i), 0), byte_level);
	for (size_t i = 0; i < json_array_size(added) && !rc; i++) {
		const json_t *a = json_array_get(added, i);
		rc = token_add(s, json_integer_value(json_object_get(a, "id")), json_object_get(a, "content"), -1);
	}
	return rc;
}

/* mt_files_each */
static int look_for_tokens(const char *name, const void *data, size_t bytes, void *arg)
{
	struct token_search *s = arg;
	json_error_t error;
	if (strcmp(name, "tokenizer.json")) return 0;
	json_t *root = json_loadb(data, bytes, JSON_ALLOW_NUL, &error);
	s->found = true;
	s->rc = root ? tokens_add(s, root) : mt_fail(MT_EX_DATA, "tokenizer.json: not JSON: %s", error.text);
	json_decref(root);
	return 0;
}

int stops_open_texts(const struct mt_run *run, struct stops *stops, uint32_t vocab)
{
	enum { BYTES = 256, BYTES_VOCAB = 512 }; /* a model of bytes has a vocabulary of at most this */
	struct token_search s = {.stops = stops, .vocab = vocab};
	size_t most = 1;
	if (!(stops->token = calloc(vocab, sizeof *stops->token)))
		return mt_fail(MT_EX_NOMEM, "no memory for the texts of tokens");
	if (mt_files_each(run, look_for_tokens, &s))
		return mt_fail(MT_EX_CONFIG, "--stop TEXT: the files that the run keeps cannot be read");
	if (s.rc) return s.rc;
	if (!s.found && vocab > BYTES_VOCAB)
		return mt_fail(MT_EX_CONFIG, "--stop TEXT: the run keeps no tokenizer.json: give the ids of tokens");
	for (uint32_t i = 0; !s.found && i < vocab && i < BYTES; i++) {
		char *byte = malloc(1);
		if (!byte) return mt_fail(MT_EX_NOMEM, "no memory for the texts of tokens");
		*byte = (char)i;
		stops->token[i] = (struct stop_text){byte, 1};
	}
	for (uint32_t i = 0; i < vocab; i++) most = stops->token[i].n > most ? stops->token[i].n : most;
	if (!(stops->tail = malloc(stops->longest + most))) return mt_fail(MT_EX_NOMEM, "no memory for --stop");
	return 0;
}

bool stops_text_completed(struct stops *s, bool first, uint32_t token)
{
	if (!s->texts) return false;
	size_t keep = first ? 0 : s->tail_n < s->longest ? s->tail_n : s->longest - 1;
	struct stop_text t = s->token[token];
	memmove(s->tail, s->tail + s->tail_n - keep, keep); /* what was there alone completed none */
	if (t.n) memcpy(s->tail + keep, t.bytes, t.n);
	s->tail_n = keep + t.n;
	for (int i = 0; i < s->texts; i++)
		if (memmem(s->tail, s->tail_n, s->text[i].bytes, s->text[i].n)) return true;
	return false;
}
