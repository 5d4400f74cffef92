/* dry.h: what the files of mt-plan share */
#ifndef MT_STREAM_PLAN_DRY_H
#define MT_STREAM_PLAN_DRY_H

#include "options.h"

struct dry {
	const struct requested *r; /* memory 0: all that such a GPU has; of the cores: half of what is available. host 0: as
	                            * much as the fastest plan takes. profile: without a NAME this machine's: */
	const struct gpu *here;    /* its GPU; NULL: its cores */
	const char *config, *train, *freeze;
	size_t config_bytes;
	uint64_t tier_memory; /* bytes of lo, m and v that stay in memory beside a tier, if given */
	bool tier_memory_given;
	double mtp;         /* weight of multi-token prediction's loss; 0: none */
	uint64_t steps;     /* of the run; 0: not given */
	uint32_t batch;     /* rows of a step, whose micro-batches are to be selected; 0: the request has them */
	bool own_attention; /* plan our own kernels, as on a machine without cuDNN */
	bool json, csv;
};

/* dry.c: print the plan on stdout. The request has what options say. 0; -71: device or host memory is short; or an
 * error of config.json or the profile */
int plan_show(struct dry *, struct plan_request *);

/* Another choice of options, and how many times as fast the step is with it; 0: none is faster */
struct advice {
	const char *options; /* NULL: none, */
	double times;
	const char *bound; /* what the step would gain most from more of, */
	double share;      /* and the part of its time that would shrink with it */
};

/* show.c. store: bytes of the run's state */
void show_text(const struct plan_request *, const struct plan_result *, uint64_t store, const struct advice *);
void show_json(const struct plan_request *, const struct plan_result *, uint64_t store, const struct advice *);
void show_csv(const struct plan_request *, const struct plan_result *, const struct advice *);

#endif
