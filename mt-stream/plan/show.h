/* show.h: mt-stream --plan */
#ifndef MT_STREAM_PLAN_SHOW_H
#define MT_STREAM_PLAN_SHOW_H

#include "plan.h"

struct plan_options {
	const char *config, *profile;
	enum mt_dtype dtype, grad;
	enum recompute recompute;
	uint64_t memory; /* 0: what such a GPU has */
	uint64_t host;   /* host memory, 0: as much as it takes */
	uint64_t seq, micro, chunk_tokens, head_tokens, pass_rows;
	bool own_attention; /* by our own kernels, as where there is no cuDNN */
	bool json;
};

/* Print the plan on stdout. 0, -71 (the device's memory is short, or the host's), or what config.json or the profile is
 * wrong with */
int plan_show(const struct plan_options *);

/* Say a micro-batch's plan, and what is predicted of it and of a step of so many, in two lines */
void plan_report(const struct plan_request *, const struct plan_result *, uint32_t micros);

#endif
