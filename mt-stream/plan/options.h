/* options.h: the options that mt-stream and mt-plan have both */
#ifndef MT_STREAM_PLAN_OPTIONS_H
#define MT_STREAM_PLAN_OPTIONS_H

#include "cli/cli.h"
#include "mt/memory.h"
#include "plan.h"

/* What decides bits beside the device; 0: not requested */
struct chunk_sizes {
	uint64_t chunk_tokens, head_tokens, pass_rows;
};

struct requested { /* 0, NULL: not requested */
	const char *device;
	const char *profile; /* the rates that the planner assumes: as profile_parse takes them */
	uint64_t memory;     /* bytes of device memory, the device's own included */
	uint64_t host;       /* bytes of host memory that the run may take */
	double tier;         /* GB a second that the drives of --tier read and write */
	bool tier_given;
	uint64_t expert_window, threads;
	uint64_t streams; /* of this machine, each on a GPU; 0: 1 */
	bool streams_given;
	struct chunk_sizes sizes;
	/* from these words requested_parse makes */
	const char *recompute_words, *compute_words;
	enum recompute recompute;
	unsigned without;      /* enum without, of the environment */
	enum mt_dtype compute; /* the type of operands, */
	bool fp8;              /* which many GEMMs round to FP8 */
};

/* Their rows in a program's table, values in r; without options whose help differs between the programs */
/* clang-format off */
#define REQUESTED_OPTIONS(r) \
	{"device-memory", OPT_SIZE, &(r).memory, "BYTES", \
		"device memory that it may use (default: what is free; cpu: half of what is available)"}, \
	{"host-memory", OPT_SIZE, &(r).host, "BYTES", "host memory that the run may use"}, \
	{"tier", OPT_DOUBLE, &(r).tier, "GB/s", \
		"plan with lo, m and v on drives that read and write so much at once, both added (mt-tier --bench)", \
		&(r).tier_given, .least = 1e-6, .most = 1e6}, \
	{"streams", OPT_U64, &(r).streams, "N", \
		"GPUs of this machine that the run uses, which share its memory and links (default: 1); same bits", \
		&(r).streams_given, .least = 1, .most = MT_STREAMS}, \
	{"recompute", OPT_CHOICE, &(r).recompute_words, "auto|full|none", \
		"activations: full recomputes all but block inputs, none nothing (default: auto); same bits"}, \
	{"expert-window", OPT_U64, &(r).expert_window, "N", \
		"stream mixtures of experts N experts at a time (default: as the plan has it); same bits", \
		.most = INT32_MAX}, \
	{"compute", OPT_CHOICE, &(r).compute_words, "fp8|bf16|fp32", \
		"type to multiply in: fp8: e4m3 where weights are bf16, but in the first and the last block; cpu: bf16 or " \
		"fp32 (default: bf16 if weights are and the CPU has AMX, or is AMD's with AVX512-BF16; else fp32)"}, \
	{"threads", OPT_U64, &(r).threads, "N", "compute threads (default: usable cores); same bits", \
		.most = 4096}, \
	{"profile", OPT_STR, &(r).profile, "GPU[,K=N...]", \
		"rates to plan with: H200, H100, ..., cpu (help lists them; default: the GPU found, else cpu); h2d=, d2h=, " \
		"hbm=, ram=, links= GB/s, flops= TFLOP/s, adam= G params/s"}
/* clang-format on */

/* Of a device's name: */
#define NO_CUDA "--device %s: mt was built without CUDA: install nvcc, then make clean all"

/* Check them, and parse words. An invalid number ends the program with 64. */
void requested_parse(struct requested *);
int requested_threads(const struct requested *);
uint32_t requested_streams(const struct requested *);
/* The GPU's number in cuda or cuda:N */
int requested_gpu(const struct requested *);
bool requested_cuda(const struct requested *);

#endif
