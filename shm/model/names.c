/* names.c: names of numbers, as options and files have them. */
#include <string.h>

#include "mt/model.h"

static const char *const optims[] = {[MT_ADAMW] = "adamw", [MT_LION] = "lion", [MT_SGD] = "sgd"};
enum { OPTIMS = sizeof optims / sizeof *optims };

const char *mt_optim_name(uint32_t optim) { return optim < OPTIMS && optims[optim] ? optims[optim] : "?"; }

enum mt_optim mt_optim_named(const char *name)
{
	for (uint32_t i = MT_ADAMW; i < OPTIMS; i++)
		if (!strcmp(name, optims[i])) return i;
	return 0;
}
