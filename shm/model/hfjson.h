/* hfjson.h: JSON as Python writes it, which is what Hugging Face's files are: integers of any size, and NaN, Infinity
 * and
 * -Infinity. jansson knows neither, so such a number is a marked text in the tree, and a number again when printed. */
#ifndef MT_HFJSON_H
#define MT_HFJSON_H

#include <jansson.h>

/* As json_loadb, duplicate keys refused; but without memory it always fails, which json_error_code tells. (jansson's
 * own reader drops what it has no memory for, and goes on.) */
json_t *hfjson_load(const char *text, size_t bytes, json_error_t *);
/* The same, for what Python wrote. */
json_t *hfjson_parse(const char *text, size_t bytes, json_error_t *);
/* A number that no json_int_t and no finite double holds, as it was written; NULL: v is anything else. */
const char *hfjson_odd_number(const json_t *v);
/* What json_dumps made of a tree, with its marked texts turned into numbers again, in place. */
void hfjson_unmark(char *text);

#endif
