/* options.c: checks the options that mt-stream and mt-plan share. */
#include <stdlib.h>
#include <string.h>

#include "mt/error.h"
#include "options.h"

static unsigned without_parse(const char *list)
{
	/* in the order of enum without */
	static const char *const words[] = {"slots", "prefetch", "grads", "pieces", "update"};
	unsigned without = 0;
	for (size_t n; list && *list; list += n + (list[n] == ',')) {
		size_t i = 0;
		n = strcspn(list, ",");
		while (i < sizeof words / sizeof *words && (strlen(words[i]) != n || strncmp(words[i], list, n))) i++;
		if (i == sizeof words / sizeof *words)
			mt_die(MT_EX_USAGE, "MT_WITHOUT: '%.*s': not slots, prefetch, grads, pieces or update", (int)n, list);
		without |= 1u << i;
	}
	return without;
}

void requested_parse(struct requested *r)
{
	const char *recompute = r->recompute_words ? r->recompute_words : "auto";
	r->recompute = *recompute == 'a' ? RECOMPUTE_AUTO : *recompute == 'f' ? RECOMPUTE_FULL : RECOMPUTE_NONE;
	r->fp8 = r->compute_words && !strcmp(r->compute_words, "fp8");
	r->compute = r->fp8 ? MT_BF16 : r->compute_words ? mt_dtype_named(r->compute_words) : 0;
	r->without = without_parse(getenv("MT_WITHOUT"));
}

uint32_t requested_streams(const struct requested *r) { return r->streams ? (uint32_t)r->streams : 1; }

int requested_threads(const struct requested *r) { return r->threads ? (int)r->threads : mt_cores(); }

bool requested_cuda(const struct requested *r) { return !strcmp(r->device, "cuda") || !strncmp(r->device, "cuda:", 5); }

int requested_gpu(const struct requested *r)
{
	const char *number = r->device + strlen("cuda");
	char *end = NULL;
	unsigned long gpu = *number ? strtoul(number + 1, &end, 10) : 0;
	if (*number && (!number[1] || number[1] == '-' || *end || gpu > 4095))
		mt_die(MT_EX_USAGE, "--device: '%s': the GPU's number is 0 to 4095", r->device);
	return (int)gpu;
}
