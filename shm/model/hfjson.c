/* hfjson.c: JSON as Python writes it. A number that jansson does not know becomes a marked text in the tree. A text of
 * the file that begins with the mark's first character gets this character twice, so it is not mistaken for a mark. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hfjson.h"

#define MARK "\001number "        /* in the tree */
#define QUOTED "\"\\u0001number " /* in text, as json_dumps writes it */
#define FIRST "\\u0001"           /* its first character, in text */

enum { MARK_LEN = sizeof MARK - 1, QUOTED_LEN = sizeof QUOTED - 1, FIRST_LEN = sizeof FIRST - 1 };

/* Length of a number, NaN or Infinity */
static size_t token_len(const char *s)
{
	size_t n = 0;
	while (isalnum((unsigned char)s[n]) || (s[n] && strchr("+-.", s[n]))) n++;
	return n;
}

static bool is_word(const char *s, size_t n, const char *word) { return n == strlen(word) && !memcmp(s, word, n); }

/* Does Python read this number, but not jansson? Tokens that are no numbers are left to jansson, which refuses them. */
static bool is_odd(const char *s, size_t n)
{
	if (is_word(s, n, "NaN") || is_word(s, n, "Infinity") || is_word(s, n, "-Infinity")) return true;
	const char *digits = s + (*s == '-');
	if (!isdigit((unsigned char)*digits) || (*digits == '0' && isdigit((unsigned char)digits[1]))) return false;
	char *end;
	errno = 0;
	if (digits + strspn(digits, "0123456789") == s + n) return strtoll(s, &end, 10), errno == ERANGE;
	if (strspn(digits, "0123456789.eE+-") != n - (size_t)(digits - s)) return false;
	return isinf(strtod(s, &end)) && end == s + n;
}

enum { GROWTH = 7 }; /* maximum: NaN and a comma become 19 bytes and a comma */

/* Copy text, with its odd numbers as marked texts. To be freed. */
static char *mark(const char *text, size_t bytes, size_t *marked)
{
	char *out = malloc(bytes * GROWTH + 1), *p = out;
	bool in_string = false;
	for (size_t i = 0; out && i < bytes;) {
		char c = text[i];
		if (in_string || !(c == '-' || isalnum((unsigned char)c))) {
			if (in_string && c == '\\' && i + 1 < bytes) *p++ = text[i++];
			else if (c == '"') in_string = !in_string;
			*p++ = text[i++];
			if (c == '"' && in_string && !strncmp(text + i, FIRST, FIRST_LEN)) p = mempcpy(p, FIRST, FIRST_LEN);
			continue;
		}
		size_t n = token_len(text + i);
		bool key = text[i + n + strspn(text + i + n, " \t\r\n")] == ':'; /* a key is not a number */
		if (is_odd(text + i, n) && !key) p += sprintf(p, QUOTED "%.*s\"", (int)n, text + i);
		else p = mempcpy(p, text + i, n);
		i += n;
	}
	*marked = (size_t)(p - out);
	return out;
}

/* ---- without memory */

static json_malloc_t under;              /* jansson's allocator */
static _Thread_local jmp_buf *no_memory; /* the load in progress, which ends here without memory */

static void *guarded_malloc(size_t n)
{
	void *p = under(n);
	if (!p && no_memory) longjmp(*no_memory, 1);
	return p;
}

static void set_no_memory(json_error_t *error)
{
	*error = (json_error_t){.text = "no memory"};
	error->text[JSON_ERROR_TEXT_LENGTH - 1] = json_error_out_of_memory; /* json_error_code reads it here */
}

/* ---- duplicate keys */

#define OTHER "\\u0001key" /* what the second key of two is called, in text */
#define OTHER_KEY "\001key"

enum { VALUE_SHOWN = 40 }; /* bytes of each value */

/* The object that has the key OTHER_KEY; NULL: none */
static const json_t *find_other(const json_t *v)
{
	const json_t *found = json_object_get(v, OTHER_KEY) ? v : NULL, *inner;
	const char *key;
	size_t i;
	json_object_foreach((json_t *)v, key, inner) if (!found) found = find_other(inner);
	json_array_foreach(v, i, inner) if (!found) found = find_other(inner);
	return found;
}

static void show_value(const json_t *v, char out[VALUE_SHOWN + 4])
{
	char *text = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
	snprintf(out, VALUE_SHOWN + 4, "%.*s%s", VALUE_SHOWN, text ? text : "?",
		text && strlen(text) > VALUE_SHOWN ? "..." : "");
	free(text);
}

/* After jansson's refusal of a duplicate key, which ends at error->position: say its name and both values. The text is
 * read again with another name in place of the second key. */
static void show_duplicate(const char *text, size_t bytes, json_error_t *error)
{
	size_t end = (size_t)error->position, begin = end - 1; /* behind the closing quote, at the opening one */
	char *other = end > 1 && end <= bytes && text[end - 1] == '"' ? malloc(bytes + sizeof OTHER) : NULL;
	if (!other) return;
	do begin--;
	while (begin && (text[begin] != '"' || text[begin - 1] == '\\'));
	char *rest = mempcpy(mempcpy(other, text, begin + 1), OTHER, sizeof OTHER - 1);
	memcpy(rest, text + end - 1, bytes - end + 1);
	json_t *root = json_loadb(other, (size_t)(rest - other) + bytes - end + 1, 0, NULL);
	const json_t *both = find_other(root);
	char key[VALUE_SHOWN + 1], first[VALUE_SHOWN + 4], second[VALUE_SHOWN + 4];
	snprintf(key, sizeof key, "%.*s", (int)(end - 2 - begin), text + begin + 1);
	if (both) {
		show_value(json_object_get(both, key), first);
		show_value(json_object_get(both, OTHER_KEY), second);
		char *code = &error->text[JSON_ERROR_TEXT_LENGTH - 1], was = *code; /* json_error_code reads it here */
		snprintf(error->text, JSON_ERROR_TEXT_LENGTH - 1, "duplicate object key '%s': %s and %s", key, first, second);
		*code = was;
	}
	json_decref(root);
	free(other);
}

json_t *hfjson_load(const char *text, size_t bytes, json_error_t *error)
{
	jmp_buf out;
	json_free_t release;
	json_t *volatile root = NULL;
	json_get_alloc_funcs(&under, &release);
	json_set_alloc_funcs(guarded_malloc, release);
	no_memory = &out;
	if (!setjmp(out)) root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, error);
	else set_no_memory(error); /* the part of the tree that was read is leaked */
	no_memory = NULL;
	json_set_alloc_funcs(under, release);
	if (!root && json_error_code(error) == json_error_duplicate_key) show_duplicate(text, bytes, error);
	return root;
}

json_t *hfjson_parse(const char *text, size_t bytes, json_error_t *error)
{
	size_t n;
	char *own = malloc(bytes + 1), *marked = NULL; /* NUL-terminated, for string functions */
	if (own) {
		memcpy(own, text, bytes);
		own[bytes] = 0;
		marked = mark(own, bytes, &n);
	}
	json_t *root = marked ? hfjson_load(marked, n, error) : NULL;
	if (!marked) set_no_memory(error);
	free(marked);
	free(own);
	return root;
}

const char *hfjson_odd_number(const json_t *v)
{
	const char *s = json_string_value(v);
	return s && !strncmp(s, MARK, MARK_LEN) ? s + MARK_LEN : NULL;
}

void hfjson_unmark(char *text)
{
	char *to = text;
	for (const char *from = text; *from;) {
		if (*from != '"') {
			*to++ = *from++;
			continue;
		}
		size_t n = strncmp(from, QUOTED, QUOTED_LEN) ? 0 : token_len(from + QUOTED_LEN);
		if (n) {
			memmove(to, from + QUOTED_LEN, n);
			to += n;
			from += QUOTED_LEN + n + 1;
			continue;
		}
		*to++ = *from++;
		if (!strncmp(from, FIRST FIRST, 2 * FIRST_LEN)) from += FIRST_LEN;
		while (*from && *from != '"') { /* the text up to the closing quote */
			if (*from == '\\' && from[1]) *to++ = *from++;
			*to++ = *from++;
		}
		if (*from) *to++ = *from++;
	}
	*to = 0;
}
