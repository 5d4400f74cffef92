/* tiny.h: what probes of libmt and mt-optim share: a geometry for tiny runs, and CHECK. */
#ifndef TINY_H
#define TINY_H

#include <stdio.h>

#include "mt/model.h"

/* A llama whose layers are of one kind */
static inline struct mt_geometry tiny_llama(uint32_t layers, uint32_t hidden, uint32_t vocab, struct mt_layer kind)
{
	return (struct mt_geometry){.family = "llama",
		.layers = layers,
		.hidden = hidden,
		.vocab = vocab,
		.max_position = 128,
		.pad_token = -1,
		.norm_eps = 1e-5f,
		.init_range = 0.02f,
		.embed_scale = 1,
		.residual_scale = 1,
		.mlp_scale = 1,
		.gate_scale = 1,
		.attention_in_scale = 1,
		.attention_scale = 0.353553391f,
		.logit_scale = 1,
		.n_kinds = 1,
		.kind = {kind}};
}

/* The probe defines how it ends: finish(1) */
#define CHECK(x, ...) \
	do { \
		if (!(x)) { \
			fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); \
			fprintf(stderr, __VA_ARGS__); \
			fputc('\n', stderr); \
			finish(1); \
		} \
	} while (0)

#endif
