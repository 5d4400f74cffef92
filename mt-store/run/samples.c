/* samples.c: what mt-sample has made, as lines of OUT/samples.jsonl. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "supervise.h"

/* Bytes that are not UTF-8 become U+FFFD, one for each maximal part of a character, as Unicode and Python do it */
static json_t *text_of(const char *bytes, size_t n)
{
	char *text = malloc(3 * n + 1), *end = text;
	bool whole;
	for (size_t i = 0, part; text && i < n; i += part) {
		part = mt_utf8_part(bytes + i, n - i, &whole);
		end = whole ? mempcpy(end, bytes + i, part) : stpcpy(end, "\ufffd");
	}
	json_t *v = text ? json_stringn(text, (size_t)(end - text)) : NULL;
	free(text);
	return v;
}

/* Ids above 255 are left out of text: a vocabulary can be larger than 256, and a model that was trained for a few steps
 * makes such ids. */
static json_t *read_record(bool text)
{
	uint32_t count, id, n = 0;
	if (fread(&count, sizeof count, 1, stdin) != 1) return NULL;
	char *bytes = malloc((size_t)count + 1);
	json_t *ids = json_array();
	while (bytes && count-- && fread(&id, sizeof id, 1, stdin) == 1) {
		json_array_append_new(ids, json_integer(id));
		if (id < 256) bytes[n++] = (char)id;
	}
	json_t *made = text ? json_pack("{s:o}", "text", text_of(bytes, n)) : json_pack("{s:O}", "tokens", ids);
	json_decref(ids);
	free(bytes);
	return made;
}

/* STEP LAST-STEP FORM: stdin has records, of bytes or of tokens; or the objects of mt-tokens --decode --json */
void samples(int argc, char **argv)
{
	if (argc != 4) mt_die(MT_EX_USAGE, "samples: for the script alone");
	bool objects = !strcmp(argv[3], "objects"), text = !strcmp(argv[3], "bytes");
	for (json_int_t prompt = 1;; prompt++) {
		json_t *made = objects ? json_loadf(stdin, JSON_DISABLE_EOF_CHECK, NULL) : read_record(text);
		json_t *line = json_pack("{s:I}", "step", (json_int_t)atoll(argv[1]));
		if (!made) exit(0);
		if (strcmp(argv[1], argv[2])) json_object_set_new(line, "last_step", json_integer(atoll(argv[2])));
		json_object_set_new(line, "prompt", json_integer(prompt));
		json_object_update(line, made);
		json_dumpf(line, stdout, 0);
		putchar('\n');
		json_decref(line);
		json_decref(made);
	}
}
