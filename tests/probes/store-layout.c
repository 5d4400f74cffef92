/* store-layout CONFIG [DTYPE [GRAD]]: print the geometry of a config.json, then tables of units and tensors, as lines
 * of words that a test can grep. "inv_freq" lines have the fp32 patterns. Exit codes are libmt's. */
#include "cli/cli.h"

static enum mt_dtype dtype_of(const char *word)
{
	return strcmp(word, "bf16") == 0 ? MT_BF16 : strcmp(word, "fp32") == 0 ? MT_FP32 : MT_NONE;
}

static void print_geometry(const struct mt_geometry *g)
{
	printf("family %s\nlayers %u\nhidden %u\nheads %u\nkv_heads %u\nhead_dim %u\nffn %u\nvocab %u\nmax_position %u\n",
		g->family, g->layers, g->hidden, g->heads, g->kv_heads, g->head_dim, g->ffn, g->vocab, g->max_position);
	printf("tied %d\nqkv_bias %d\no_bias %d\nmlp_bias %d\nqk_norm %d\n", !!(g->flags & MT_TIED),
		!!(g->flags & MT_QKV_BIAS), !!(g->flags & MT_O_BIAS), !!(g->flags & MT_MLP_BIAS), !!(g->flags & MT_QK_NORM));
	printf("pad_token %d\nnorm_eps %g\ninit_range %g\nwindow %u\nwindow_from %u\nwindow_layers ", g->pad_token,
		(double)g->norm_eps, (double)g->init_range, g->window, g->window_from);
	for (uint32_t i = 0; i < g->layers; i++) putchar(g->window_layer[i] ? 'w' : '.');
	printf("\nrope_scaling %.9g\n", (double)g->rope_scaling);
	for (uint32_t i = 0; i < g->head_dim / 2; i++)
		printf("inv_freq %u %08x %.9g\n", i, mt_bits(g->rope_inv_freq[i]), (double)g->rope_inv_freq[i]);
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
	mt_must(
		mt_layout_make(&layout, &geo, dtype_of(argc > 2 ? argv[2] : "bf16"), dtype_of(argc > 3 ? argv[3] : "fp32")));
	print_geometry(&geo);
	print_layout(&layout);
	mt_layout_release(&layout);
	return 0;
}
