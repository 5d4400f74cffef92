/* A tiny run for probes of libmt: made here, removed at the end. */
#ifndef SHM_COMMON_H
#define SHM_COMMON_H

#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/cli.h"
#include "mt.h"

static char run_name[MT_RUN_NAME + 1];

static void remove_run(void) { mt_run_remove(run_name, true); }

static struct mt_run *tiny_run(const char *what)
{
	struct mt_geometry geo = {
		.family = "llama",
		.layers = 2,
		.hidden = 32,
		.vocab = 96,
		.max_position = 128,
		.pad_token = -1,
		.norm_eps = 1e-5f,
		.init_range = 0.02f,
		.embed_scale = 1,
		.residual_scale = 1,
		.attention_scale = 0.353553391f,
		.logit_scale = 1,
		.n_kinds = 1,
		.kind = {{.heads = 4, .kv_heads = 2, .head_dim = 8, .ffn = 48, .rope_dim = 8, .rope_scaling = 1}},
	};
	struct mt_create opt = {.name = run_name,
		.config_text = "{}",
		.config_bytes = 2,
		.dtype = MT_BF16,
		.grad = MT_FP32,
		.step_tokens = 512};
	struct mt_run *run;
	snprintf(run_name, sizeof run_name, "%s-%d", what, (int)getpid());
	mt_must(mt_run_create(&opt, &geo));
	atexit(remove_run);
	mt_must(mt_run_open(&run, run_name, MT_RUN_RINGS | MT_RUN_WEIGHTS));
	mt_run_reset(run, 0, 0, NULL);
	mt_run_set_state(run, MT_FILLED);
	return run;
}

/* xorshift: the seed decides the schedule */
static inline uint64_t next_random(uint64_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s;
}

/* Mostly continue, sometimes yield, sometimes sleep, so that every interleaving occurs. */
static inline void stumble(uint64_t *s)
{
	uint64_t r = next_random(s) % 64;
	if (r == 0) usleep((useconds_t)(next_random(s) % 200));
	else if (r < 12) sched_yield();
}

#define CHECK(x, ...) \
	do { \
		if (!(x)) { \
			fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); \
			fprintf(stderr, __VA_ARGS__); \
			fputc('\n', stderr); \
			_exit(1); \
		} \
	} while (0)

#endif
