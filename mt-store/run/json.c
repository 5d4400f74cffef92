/* json.c: what the script reads of JSON, and writes. Each line of stdin is an object, and becomes a line of values with
 * tabs between them. What is not there is empty, and so is each value of a line that is no object. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mt/error.h"
#include "supervise.h"

/* Of a text the first line that is not empty */
static void print(const json_t *v)
{
	const char *s = json_string_value(v);
	char *json = v && !s ? json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15)) : NULL;
	if (json) fputs(json, stdout);
	free(json);
	for (s += s ? strspn(s, "\n") : 0; s && *s && *s != '\n'; s++)
		putchar(*s == '\t' ? ' ' : (unsigned char)*s < ' ' || *s == 127 ? '?' : *s);
}

/* Of an object, or of the stages of mt-store stat, whose names they have */
static const json_t *member(const json_t *of, const char *name)
{
	size_t i;
	const json_t *stage;
	if (!json_is_array(of)) return json_object_get(of, name);
	json_array_foreach(of, i, stage)
	{
		const char *is = json_string_value(json_object_get(stage, "stage"));
		if (is && !strcmp(is, name)) return stage;
	}
	return NULL;
}

/* path: "state", or "stages.mt-store.alive" */
static const json_t *find(const json_t *v, const char *path)
{
	char name[256];
	while (v && *path) {
		size_t n = strcspn(path, ".");
		snprintf(name, sizeof name, "%.*s", (int)n, path);
		path += n + (path[n] == '.');
		v = member(v, name);
	}
	return v;
}

/* PATH...: these values; none: all of the object, a line of name and value each */
void json(int argc, char **argv)
{
	char *line = NULL;
	size_t room = 0;
	ssize_t n;
	while ((n = getline(&line, &room, stdin)) >= 0) {
		const char *key;
		json_t *value, *object = json_loadb(line, (size_t)n, 0, NULL);
		for (int i = 1; i < argc; i++) {
			if (i > 1) putchar('\t');
			print(find(object, argv[i]));
		}
		json_object_foreach(argc > 1 ? NULL : object, key, value)
		{
			printf("%s\t", key);
			print(value);
			putchar('\n');
		}
		json_decref(object);
		if (argc > 1) putchar('\n');
		if (fflush(stdout)) break; /* a reader that follows the metrics waits for each line */
	}
	free(line);
	exit(ferror(stdin) || ferror(stdout) ? MT_EX_IO : 0);
}

/* Lines of a name and a number, true, false or null, with a tab between them: prints an object that has them */
void object(int argc, char **argv)
{
	char name[64], value[64];
	json_t *all = json_object();
	if (argc > 1) mt_die(MT_EX_USAGE, "unexpected operand '%s'", argv[1]);
	while (scanf("%63s %63s", name, value) == 2)
		json_object_set_new(all, name, json_loads(value, JSON_DECODE_ANY, NULL));
	json_dumpf(all, stdout, JSON_REAL_PRECISION(15));
	json_decref(all);
	exit(0);
}
