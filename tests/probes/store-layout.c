/* store-layout CONFIG [DTYPE [GRAD]]: print the geometry of a config.json, then tables of units and tensors, as lines
 * of words that a test can grep. "inv_freq" lines have the fp32 patterns. Exit codes are libmt's. */
#include <stdio.h>

#include "cli/cli.h"
#include "mt/error.h"
#include "mt/layout.h"

static enum mt_dtype dtype_of(const char *word)
{
	return strcmp(word, "bf16") == 0 ? MT_BF16 : strcmp(word, "fp32") == 0 ? MT_FP32 : MT_NONE;
}

static void print_layer(const struct mt_layer *l)
{
	printf("heads %u\nkv_heads %u\nhead_dim %u\nffn %u\nform %u\nrope_dim %u\nneighbours %u\nk_is_v %u\nkv_kind %u\n",
		l->heads, l->kv_heads, l->head_dim, l->ffn, l->form, l->rope_dim, l->neighbours, l->k_is_v, l->kv_kind);
	printf("mamba_flags %u\nrope_scaling %.9g\nspan %u\nparts %u\nsparsity %.9g\n", l->mamba_flags,
		(double)l->rope_scaling, l->span, l->parts, (double)l->sparsity);
	for (uint32_t i = 0; i < l->rope_dim / 2; i++)
		printf("inv_freq %u %08x %.9g\n", i, mt_bits(l->rope_inv_freq[i]), (double)l->rope_inv_freq[i]);
}

/* Kinds after the first one follow a line "kind N" */
static void print_geometry(const struct mt_geometry *g)
{
	printf("family %s\nlayers %u\nhidden %u\nvocab %u\nmax_position %u\nkinds %u\n", g->family, g->layers, g->hidden,
		g->vocab, g->max_position, g->n_kinds);
#define FLAG(name, bit, word) printf("%s %d\n", #word, !!(g->flags & MT_##name));
	MT_FLAGS(FLAG)
	printf("pad_token %d\nnorm_eps %g\ninit_range %g\nkind_of ", g->pad_token, (double)g->norm_eps,
		(double)g->init_range);
	uint32_t window = 0;
	for (uint32_t i = 0; i < g->layers; i++) printf("%u", g->kind_of[i]);
	printf("\nwindow_layers ");
	for (uint32_t i = 0; i < g->layers; i++) {
		putchar(mt_layer_of(g, i)->window ? 'w' : '.');
		if (mt_layer_of(g, i)->window > window) window = mt_layer_of(g, i)->window;
	}
	printf("\nwindow %u\nembed_scale %.9g\nresidual_scale %.9g\nattention_scale %.9g\n", window, (double)g->embed_scale,
		(double)g->residual_scale, (double)g->attention_scale);
	printf("mlp_scale %.9g\nmamba_out_scale %.9g\ngate_scale %.9g\n", (double)g->mlp_scale, (double)g->mamba_out_scale,
		(double)g->gate_scale);
	printf("mamba_in_scale %.9g\nattention_in_scale %.9g\n", (double)g->mamba_in_scale, (double)g->attention_in_scale);
	for (int i = 0; i < 5; i++) printf("mamba_scale_%d %.9g\n", i, (double)g->mamba_scale[i]);
	printf("attention_cap %.9g\nlogit_scale %.9g\nlogit_cap %.9g\ntemperature %.9g %u\n", (double)g->attention_cap,
		(double)g->logit_scale, (double)g->logit_cap, (double)g->temperature, g->temperature_positions);
	printf("ple_dim %u\nple_vocab %u\naltup %u\nlaurel_rank %u\n", g->ple_dim, g->ple_vocab, g->altup, g->laurel_rank);
	printf("sine_step %.9g\n", (double)g->sine_step);
	printf("alibi %.9g\nalibi_scale %.9g\nalibi_rounded %u\n", (double)g->alibi, (double)g->alibi_scale,
		g->alibi_rounded);
	for (uint32_t k = 0; k < g->n_kinds; k++) {
		if (k) printf("kind %u\n", k);
		print_layer(&g->kind[k]);
	}
}

static void print_layout(const struct mt_layout *l)
{
	printf("params %llu\nstore_bytes %llu\n", (unsigned long long)l->params, (unsigned long long)l->store_bytes);
	for (uint32_t i = 0; i < l->n_units; i++) {
		const struct mt_unit *u = &l->units[i];
		printf("unit %u elems %llu params %llu tensors %u+%u w %llu lo %llu m %llu v %llu g %llu %llu\n", i,
			(unsigned long long)u->elems, (unsigned long long)u->params, u->first_tensor, u->tensors,
			(unsigned long long)u->w, (unsigned long long)u->lo, (unsigned long long)u->m, (unsigned long long)u->v,
			(unsigned long long)u->g[0], (unsigned long long)u->g[1]);
	}
	for (uint32_t i = 0; i < l->n_tensors; i++) {
		const struct mt_tensor *t = &l->tensors[i];
		printf("tensor %s unit %u role %u shape %llu %llu off %llu n %llu decay %u\n", t->name, t->unit, t->role,
			(unsigned long long)t->shape[0], (unsigned long long)t->shape[1], (unsigned long long)t->off,
			(unsigned long long)t->n, t->decay);
	}
}

int main(int argc, char **argv)
{
	struct mt_geometry geo;
	struct mt_layout layout;
	if (argc < 2) mt_die(MT_EX_USAGE, "usage: store-layout CONFIG [DTYPE [GRAD]]");
	mt_must(mt_config_read(argv[1], &geo, NULL));
	mt_must(mt_layout_make(&layout, &geo, dtype_of(argc > 2 ? argv[2] : "bf16"), dtype_of(argc > 3 ? argv[3] : "fp32"),
		dtype_of(argc > 4 ? argv[4] : "fp32"), MT_ADAMW));
	print_geometry(&geo);
	print_layout(&layout);
	mt_layout_release(&layout);
	return 0;
}
