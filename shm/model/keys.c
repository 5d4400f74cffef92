/* keys.c: the values of config.json's keys, checked. */
#include <math.h>

#include "config.h"
#include "hfjson.h"
#include "mt/error.h"

bool key_is_odd(struct reader *r, const char *key, const json_t *v)
{
	const char *odd = hfjson_odd_number(v);
	if (odd) REFUSE(r, MT_EX_CONFIG, "%s %.40s is out of range", key, odd);
	return odd;
}

uint32_t key_u32(struct reader *r, const char *key, uint32_t missing, uint32_t lo, uint32_t hi)
{
	const json_t *v = json_object_get(r->root, key);
	if (r->rc || !v || key_is_odd(r, key, v)) return missing;
	if (!json_is_integer(v)) return REFUSE(r, MT_EX_DATA, "%s is not an integer", key), missing;
	json_int_t i = json_integer_value(v);
	if (i < (json_int_t)lo || i > (json_int_t)hi)
		return REFUSE(r, MT_EX_CONFIG, "%s %lld is not between %u and %u", key, (long long)i, lo, hi), missing;
	return (uint32_t)i;
}

double key_number(struct reader *r, const json_t *obj, const char *key)
{
	const json_t *v = json_object_get(obj, key);
	if (r->rc || !is_given(v) || key_is_odd(r, key, v)) return NAN;
	if (!json_is_number(v)) REFUSE(r, MT_EX_DATA, "%s is not a number", key);
	return json_number_value(v);
}

float key_coefficient(struct reader *r, const char *key, float missing)
{
	double v = key_number(r, r->root, key);
	if (isnan(v)) return missing;
	if (!(v >= 0 && v < 1e6)) REFUSE(r, MT_EX_CONFIG, "%s %g is out of range", key, v);
	return (float)v;
}

bool key_bool(struct reader *r, const json_t *obj, const char *key, bool missing)
{
	const json_t *v = json_object_get(obj, key);
	if (r->rc || !v) return missing;
	if (!json_is_boolean(v) && !json_is_null(v)) REFUSE(r, MT_EX_DATA, "%s is not true or false", key);
	return json_is_true(v);
}

const char *key_string(struct reader *r, const json_t *obj, const char *key)
{
	const json_t *v = json_object_get(obj, key);
	if (r->rc || !is_given(v)) return NULL;
	if (!json_is_string(v)) REFUSE(r, MT_EX_DATA, "%s is not a string", key);
	return json_string_value(v);
}

const json_t *key_object(struct reader *r, const char *key)
{
	const json_t *v = json_object_get(r->root, key);
	if (r->rc || !is_given(v)) return NULL;
	if (!json_is_object(v)) return REFUSE(r, MT_EX_DATA, "%s is not an object", key), NULL;
	return json_object_size(v) ? v : NULL;
}

bool key_layers(struct reader *r, const char *key, uint32_t layers, bool *in)
{
	const json_t *list = json_object_get(r->root, key), *v;
	size_t at;
	if (!is_given(list)) return false;
	if (!json_is_array(list)) return REFUSE(r, MT_EX_DATA, "%s is not a list", key), false;
	memset(in, 0, layers);
	json_array_foreach((json_t *)list, at, v)
	{
		json_int_t i = json_integer_value(v);
		if (!json_is_integer(v)) return REFUSE(r, MT_EX_DATA, "%s has an entry that is not an integer", key), false;
		if (i >= 0 && i < (json_int_t)layers) in[i] = true;
	}
	return true;
}
