/* names.c: names of the numbers in types.h, as options and files have them. */
#include <string.h>

#include "mt/types.h"

static const char *const dtypes[] = {[MT_BF16] = "bf16", [MT_FP32] = "fp32", [MT_NONE] = "none", [MT_INT8] = "int8"};
static const char *const optims[] = {[MT_ADAMW] = "adamw", [MT_LION] = "lion", [MT_SGD] = "sgd"};
#define COUNT(names) (sizeof(names) / sizeof *(names))

/* Numbers begin with 1 */
static const char *name_of(const char *const *names, size_t n, uint32_t number)
{
	return number > 0 && number < n ? names[number] : "?";
}

static uint32_t number_of(const char *const *names, size_t n, const char *name)
{
	for (uint32_t i = 1; i < n; i++)
		if (!strcmp(name, names[i])) return i;
	return 0;
}

const char *mt_dtype_name(uint32_t dtype) { return name_of(dtypes, COUNT(dtypes), dtype); }
enum mt_dtype mt_dtype_named(const char *name) { return number_of(dtypes, COUNT(dtypes), name); }
const char *mt_optim_name(uint32_t optim) { return name_of(optims, COUNT(optims), optim); }
enum mt_optim mt_optim_named(const char *name) { return number_of(optims, COUNT(optims), name); }
