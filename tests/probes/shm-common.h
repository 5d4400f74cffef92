/* A tiny run for probes of libmt: made here, removed at the end. */
#ifndef SHM_COMMON_H
#define SHM_COMMON_H

#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/cli.h"
#include "mt.h"
#include "splitmix.h"
#include "tiny.h"

#define finish _exit

static char run_name[MT_RUN_NAME + 1];

static void remove_run(void) { mt_run_remove(run_name, true); }

static struct mt_run *tiny_run(const char *what)
{
	struct mt_geometry geo = tiny_llama(2, 32, 96,
		(struct mt_layer){.heads = 4, .kv_heads = 2, .head_dim = 8, .ffn = 48, .rope_dim = 8, .rope_scaling = 1});
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

/* Mostly continue, sometimes yield, sometimes sleep, so that every interleaving occurs. */
static inline void stumble(uint64_t *s)
{
	uint64_t r = splitmix_next(s) % 64;
	if (r == 0) usleep((useconds_t)(splitmix_next(s) % 200));
	else if (r < 12) sched_yield();
}

#endif
