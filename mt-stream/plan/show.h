/* show.h: mt-stream --plan */
#ifndef MT_STREAM_PLAN_SHOW_H
#define MT_STREAM_PLAN_SHOW_H

#include "plan.h"

struct plan_options {
	const char *config, *profile;              /* profile: as profile_parse; without a NAME this machine's: */
	const struct gpu *here;                    /* its GPU; NULL: its cores */
	int threads;                               /* number of cores */
	enum mt_dtype dtype, grad, state, compute; /* compute: of operands on cores; 0: as a run has it */
	enum mt_optim optim;
	enum recompute recompute;
	uint32_t expert_window;
	uint64_t memory; /* of the device; 0: all that such a GPU has; of the cores: half of what is available */
	uint64_t host;   /* memory of the host; 0: as much as the fastest plan takes */
	uint64_t seq, micro, chunk_tokens, head_tokens, pass_rows;
	uint64_t nodes, streams, micros; /* streams of a node, micro-batches of a stream in a step; 1 or more */
	double net;                      /* GB/s to a node, and from it; 0: there is one node */
	bool own_attention;              /* plan our own kernels, as on a machine without cuDNN */
	bool json;
};

/* Print the plan on stdout. 0; -71: device or host memory is short; or an error of config.json or the profile */
int plan_show(const struct plan_options *);

/* Report on stderr, in two lines: a micro-batch's plan; the predicted times of a step of `micros` micro-batches */
void plan_report(const struct plan_request *, const struct plan_result *, uint32_t micros);

#endif
